/* SPDX-License-Identifier: Apache-2.0 */
/* What the cost model expects of many operations on one topology. */
#ifndef PITH_SIM_ESTIMATE_H
#define PITH_SIM_ESTIMATE_H

#include <pith/sim.h>

typedef struct pith_estimator pith_estimator;

pith_status pith__estimator_create(const pith_sim_topology *topology, pith_estimator **estimator);
void pith__estimator_destroy(pith_estimator *estimator);

/* Seconds of an allreduce of n f32 by what the library would take. `codec_value`: seconds of the codec for each value,
 * to encode and decode; below 0: those of the topology. */
pith_status pith__estimator_seconds(pith_estimator *estimator, const pith_codec *codec, double codec_value, size_t n,
                                    const char **algorithm, double *seconds);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What work takes and how long payloads are, by a topology and a codec. */
#ifndef PITH_SIM_COSTS_H
#define PITH_SIM_COSTS_H

#include <pith/sim.h>

#include "sim/graph.h"

#define PITH_SIM_SIZES_MOST 64

typedef struct pith_sim_codec_costs {
  pith_sim_costs costs;
  const pith_sim_topology *topology;
  const pith_codec *codec, *entries;
  size_t n;        /* values of the tensor */
  float *values;   /* made up, for payloads whose size depends on them; NULL until one is needed */
  float *decoded;  /* what is left of them by a sparse codec */
  float *joint;    /* and what is left by one of several ranks at least … */
  int joint_ranks; /* … of so many */
  double density;  /* entries of one rank, for each value */
  struct pith_sim_known {
    pith_effort effort;
    int passes;
    size_t n, bytes;
  } known[PITH_SIM_SIZES_MOST];
  size_t known_count;
} pith_sim_codec_costs;

void pith__sim_costs_init(pith_sim_codec_costs *c, const pith_sim_topology *topology, const pith_codec *codec,
                          const pith_codec *entries, size_t n);
void pith__sim_costs_fini(pith_sim_codec_costs *c);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What one codec does to one tensor on this machine: bytes, error, time. One thread. */
#ifndef PITH_CLI_MEASURE_H
#define PITH_CLI_MEASURE_H

#include <stddef.h>

#include <pith/pith.h>

#include "cli/base/data.h"

/* A tensor and the buffers around it: allocated once, touched, aligned to 64 bytes, ordinary pages. */
typedef struct cli_workload {
  pith_dtype dtype;
  size_t n, bytes;
  const float *values; /* what src holds, as f32 */
  double norm;         /* of those */
  void *src, *dst, *copy;
  float *decoded; /* n values */
} cli_workload;

pith_status cli_workload_create(pith_dtype dtype, cli_dist dist, size_t bytes, cli_workload *work);
void cli_workload_destroy(cli_workload *work);

/* Times are medians over the repetitions, in seconds a call; ratios are medians of each repetition's own ratio. */
typedef struct cli_measurement {
  size_t payload, scratch, state; /* bytes */
  double error;                   /* ‖x − x̂‖ / ‖x‖ of the first step, when memories are still empty */
  double copy_time, encode_time, decode_time;
  double encode_ratio, decode_ratio; /* speed as a multiple of memcpy's */
} cli_measurement;

/* A repetition copies, encodes and decodes right after each other: on a machine whose speed drifts all three drift
 * together, and the ratios stay true. */
pith_status cli_measure(const pith_codec *codec, const cli_workload *work, size_t repetitions, size_t warmup,
                        cli_measurement *result);

/* Seconds of a clock that only moves on. */
double cli_now(void);
/* Of at least one value; sorts them. */
double cli_median(double *x, size_t n);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Made-up gradients of known distributions, the same in every run. */
#ifndef PITH_CLI_DATA_H
#define PITH_CLI_DATA_H

#include <stddef.h>
#include <stdint.h>

/* All have mean 0 and, SPARSE aside, variance 1. */
typedef enum cli_dist {
  CLI_DIST_NORMAL,
  CLI_DIST_LAPLACE, /* heavier tails, as real gradients have */
  CLI_DIST_UNIFORM,
  CLI_DIST_SPARSE, /* one value in ten is normal, the others are zero, as in embeddings */
} cli_dist;

#define CLI_DIST_NAMES "normal|laplace|uniform|sparse"

const char *cli_dist_name(cli_dist dist);

void cli_data_fill(cli_dist dist, uint64_t seed, float *values, size_t n);

#endif

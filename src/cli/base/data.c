/* SPDX-License-Identifier: Apache-2.0 */
/* Draws from distributions by the inverse or by Box and Muller's method, from a 64-bit counter generator. */
#include "cli/base/data.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static uint64_t next(uint64_t *state) {
  uint64_t x = *state += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* In (0, 1): never an end, so that logarithms are finite. */
static double unit(uint64_t *state) { return ((double)(next(state) >> 12) + 0.5) * 0x1p-52; }

static float draw_normal(uint64_t *state) {
  double radius = sqrt(-2 * log(unit(state)));
  return (float)(radius * cos(2 * pi * unit(state)));
}

static float draw_laplace(uint64_t *state) {
  double u = unit(state) - 0.5;
  return (float)(copysign(sqrt(0.5), u) * -log(1 - 2 * fabs(u)));
}

static float draw_uniform(uint64_t *state) { return (float)((unit(state) - 0.5) * sqrt(12)); }

static float draw_sparse(uint64_t *state) { return unit(state) < 0.1 ? draw_normal(state) : 0; }

const char *cli_dist_name(cli_dist dist) {
  static const char *const names[] = {"normal", "laplace", "uniform", "sparse"};
  return names[dist];
}

void cli_data_fill(cli_dist dist, uint64_t seed, float *values, size_t n) {
  static float (*const draw[])(uint64_t *) = {draw_normal, draw_laplace, draw_uniform, draw_sparse};
  uint64_t state = seed;
  for (size_t i = 0; i < n; i++) {
    values[i] = draw[dist](&state);
  }
}

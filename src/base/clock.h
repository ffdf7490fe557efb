/* SPDX-License-Identifier: Apache-2.0 */
/* Time that never jumps, in seconds. */
#ifndef PITH_BASE_CLOCK_H
#define PITH_BASE_CLOCK_H

#include <time.h>

static inline double pith__now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The same clock as of its last tick, some milliseconds ago at most: a fraction of the cost. */
static inline double pith__now_rough(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif

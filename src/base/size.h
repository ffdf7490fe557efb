/* SPDX-License-Identifier: Apache-2.0 */
/* Small sums with sizes that many loops need. */
#ifndef PITH_BASE_SIZE_H
#define PITH_BASE_SIZE_H

#include <stddef.h>

/* For loops over tiles: `pith__least(TILE, n - first)` values are left for this one. */
static inline size_t pith__least(size_t a, size_t b) { return a < b ? a : b; }

static inline size_t pith__most(size_t a, size_t b) { return a > b ? a : b; }

static inline size_t pith__sum(const size_t *sizes, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) {
    sum += sizes[i];
  }
  return sum;
}

/* Neither is 0. */
static inline size_t pith__least_common_multiple(size_t a, size_t b) {
  size_t x = a, y = b;
  while (y) {
    size_t rest = x % y;
    x = y;
    y = rest;
  }
  return a / x * b;
}

/* Bytes of n values of `bits` bits each. */
static inline size_t pith__packed_size(size_t n, size_t bits) { return (n * bits + 7) / 8; }

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that stop at SIZE_MAX instead of wrapping around, so that no bound is ever too small. */
#ifndef PITH_BASE_SATURATE_H
#define PITH_BASE_SATURATE_H

#include <stddef.h>
#include <stdint.h>

static inline size_t pith__sat_add(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

static inline size_t pith__sat_mul(size_t a, size_t b) {
  size_t product;
  return __builtin_mul_overflow(a, b, &product) ? SIZE_MAX : product;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of kernels are given: values of all kinds, in all types, and comparing them. */
#ifndef PITH_TESTS_CUDA_INPUTS_H
#define PITH_TESTS_CUDA_INPUTS_H

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "gpu.h"
#include "test.h"

typedef enum pattern {
  NORMAL,
  WIDE,
  TINY,
  SMALL,
  HUGE_ONES,
  ZEROS,
  SPARSE,
  CONSTANT,
  WITH_NAN,
  WITH_INF,
  PATTERNS
} pattern;

/* The fields that an item shares with a pith_ctx: from one, and back. */
#define CTX_FIELDS(ctx)                                                                                   \
  .seed = (ctx).seed, .step = (ctx).step, .layer = (ctx).layer, .rank = (ctx).rank, .ranks = (ctx).ranks, \
  .offset = (ctx).offset, .rows = (ctx).rows, .gamma = (ctx).gamma
#define ITEM_CTX(item) (&(pith_ctx){.size = sizeof(pith_ctx), CTX_FIELDS(item)})

static const char *const pattern_names[] = {"normal", "wide",   "denormal", "small",   "huge",
                                            "zeros",  "sparse", "constant", "one NaN", "one Inf"};

static uint64_t random_state = 1;

static inline double uniform(void) {
  random_state = random_state * 6364136223846793005u + 1442695040888963407u;
  return (double)(random_state >> 11) * 0x1p-53;
}

static inline double normal(void) { return sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()); }

static inline float value_of(pattern kind) {
  switch (kind) {
    case WIDE:
      return (float)(normal() * pow(10, 12 * uniform() - 6));
    case TINY:
      return (float)(normal() * 1e-40);
    case SMALL:
      return (float)(normal() * 1e-14);
    case HUGE_ONES:
      return (float)((uniform() - 0.5) * 6e38);
    case ZEROS:
      return uniform() < 0.5 ? 0.0f : -0.0f;
    case SPARSE:
      return uniform() < 0.99 ? 0.0f : (float)normal();
    case CONSTANT:
      return -3.25f;
    default:
      return (float)normal();
  }
}

static inline void fill(float *x, size_t n, pattern kind) {
  for (size_t i = 0; i < n; i++) {
    x[i] = value_of(kind);
  }
  if (n && (kind == WITH_NAN || kind == WITH_INF)) {
    x[(size_t)(uniform() * (double)n)] = kind == WITH_NAN ? NAN : -INFINITY;
  }
}

/* In the type of the tensor; `out` has room for f32. */
static inline void narrow(const float *x, size_t n, pith_dtype dtype, void *out) {
  for (size_t i = 0; i < n; i++) {
    if (dtype == PITH_F32) {
      ((float *)out)[i] = x[i];
    } else {
      ((uint16_t *)out)[i] = dtype == PITH_F16 ? pith__f32_to_f16(x[i]) : pith__f32_to_bf16(x[i]);
    }
  }
}

static inline uint32_t value_bits(const void *x, size_t i, pith_dtype dtype) {
  return dtype == PITH_F32 ? ((const uint32_t *)x)[i] : ((const uint16_t *)x)[i];
}

static inline int is_nan(uint32_t bits, pith_dtype dtype) {
  uint32_t inf = dtype == PITH_F32 ? 0x7f800000u : dtype == PITH_F16 ? 0x7c00u : 0x7f80u;
  return (bits & (dtype == PITH_F32 ? 0x7fffffffu : 0x7fffu)) > inf;
}

/* Equal, or both NaN: which NaN an operation gives, CPUs and GPUs leave open. */
static inline void check_values(const void *a, const void *b, size_t n, pith_dtype dtype, const char *what,
                                const char *spec, pattern kind) {
  for (size_t i = 0; i < n; i++) {
    uint32_t x = value_bits(a, i, dtype), y = value_bits(b, i, dtype);
    CHECK_MSG(x == y || (is_nan(x, dtype) && is_nan(y, dtype)),
              "%s: %s of %zu values (%s, %s): value %zu is 0x%x, not 0x%x", spec, what, n, pith_dtype_name(dtype),
              pattern_names[kind], i, y, x);
  }
}

static inline void need_gpu(void) {
  const char *why = gpu_open();
  if (why) {
    test_skip("%s", why);
  }
}

/* Under a checker of memory accesses, which makes everything slow, fewer rounds do. */
static inline int quick(void) { return getenv("PITH_CUDA_QUICK") != NULL; }

#endif

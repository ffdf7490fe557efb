/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions of raw values: floats in f32 or f64, integers as they are, always in the order of the sources. */
#include <string.h>

#include "collective/job.h"

#define TILE 1024

/* ---- f32, f16, bf16: sums through the kernels, the rest value by value ------------------------------------------- */

static void combine_floats(pith_reduce_op reduce, const float *x, float *acc, size_t n) {
  switch (reduce) {
    case PITH_MAX:
      for (size_t i = 0; i < n; i++) {
        acc[i] = x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i]; /* NaN stays */
      }
      break;
    case PITH_MIN:
      for (size_t i = 0; i < n; i++) {
        acc[i] = x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i];
      }
      break;
    case PITH_PROD:
      for (size_t i = 0; i < n; i++) {
        acc[i] *= x[i];
      }
      break;
    default:
      pith__values_add(x, acc, n);
  }
}

/* Whether sums can grow where the result belongs: f32, and no source but the first lies there. */
static int is_free(pith_dtype dtype, const void *const *sources, int count, const void *out) {
  for (int s = 1; s < count; s++) {
    if (sources[s] == out) {
      return 0;
    }
  }
  return dtype == PITH_F32;
}

static void reduce_floats(pith_dtype dtype, pith_reduce_op reduce, const void *const *sources, int count, void *out,
                          size_t n) {
  float tile[TILE], buffer[TILE];
  int in_out = is_free(dtype, sources, count, out);
  for (size_t first = 0; first < n; first += TILE) {
    size_t m = n - first < TILE ? n - first : TILE;
    const float *x = pith__span_load((pith_cspan){sources[0], n, dtype}, first, m, buffer);
    float *acc = in_out ? (float *)out + first : tile;
    if (acc != x) {
      memcpy(acc, x, m * sizeof *acc);
    }
    for (int s = 1; s < count; s++) {
      combine_floats(reduce, pith__span_load((pith_cspan){sources[s], n, dtype}, first, m, buffer), acc, m);
    }
    if (reduce == PITH_MEAN) {
      pith__values_scale(1.0f / (float)count, acc, m);
    }
    if (!in_out) {
      pith__span_store((pith_span){out, n, dtype}, first, m, acc, PITH_SET, buffer);
    }
  }
}

/* ---- f64 and integers -------------------------------------------------------------------------------------------- */

#define COMBINE_LOOP(expression)   \
  for (size_t i = 0; i < m; i++) { \
    acc[i] = (expression);         \
  }                                \
  break

#define DEFINE_REDUCE(name, type, wide, bitwise)                                                                 \
  static void combine_##name(pith_reduce_op reduce, const type *x, type *acc, size_t m) {                        \
    switch (reduce) {                                                                                            \
      case PITH_MAX:                                                                                             \
        COMBINE_LOOP(x[i] > acc[i] || x[i] != x[i] ? x[i] : acc[i]);                                             \
      case PITH_MIN:                                                                                             \
        COMBINE_LOOP(x[i] < acc[i] || x[i] != x[i] ? x[i] : acc[i]);                                             \
      case PITH_PROD:                                                                                            \
        COMBINE_LOOP((type)((wide)acc[i] * (wide)x[i]));                                                         \
      case PITH_SUM:                                                                                             \
      case PITH_MEAN:                                                                                            \
        COMBINE_LOOP((type)((wide)acc[i] + (wide)x[i]));                                                         \
      default:                                                                                                   \
        bitwise(reduce, x, acc, m);                                                                              \
        break;                                                                                                   \
    }                                                                                                            \
  }                                                                                                              \
  static void reduce_##name(pith_reduce_op reduce, const void *const *sources, int count, type *out, size_t n) { \
    type acc[TILE], x[TILE];                                                                                     \
    for (size_t first = 0; first < n; first += TILE) {                                                           \
      size_t m = n - first < TILE ? n - first : TILE;                                                            \
      memcpy(acc, (const type *)sources[0] + first, m * sizeof *acc);                                            \
      for (int s = 1; s < count; s++) {                                                                          \
        memcpy(x, (const type *)sources[s] + first, m * sizeof *x);                                              \
        combine_##name(reduce, x, acc, m);                                                                       \
      }                                                                                                          \
      memcpy(out + first, acc, m * sizeof *acc);                                                                 \
    }                                                                                                            \
  }

#define NO_BITWISE(reduce, x, acc, m) (void)0
#define BITWISE(reduce, x, acc, m)                         \
  for (size_t i = 0; i < (m); i++) {                       \
    (acc)[i] = (reduce) == PITH_BAND  ? (acc)[i] & (x)[i]  \
               : (reduce) == PITH_BOR ? (acc)[i] | (x)[i]  \
                                      : (acc)[i] ^ (x)[i]; \
  }

/* Integers wrap around: the arithmetic is done in unsigned. */
DEFINE_REDUCE(f64, double, double, NO_BITWISE)
DEFINE_REDUCE(i8, int8_t, uint32_t, BITWISE)
DEFINE_REDUCE(u8, uint8_t, uint32_t, BITWISE)
DEFINE_REDUCE(i16, int16_t, uint32_t, BITWISE)
DEFINE_REDUCE(i32, int32_t, uint32_t, BITWISE)
DEFINE_REDUCE(i64, int64_t, uint64_t, BITWISE)

static void divide_f64(double *x, size_t n, int count) {
  for (size_t i = 0; i < n; i++) {
    x[i] /= count;
  }
}

void pith__reduce_many(pith_dtype dtype, pith_reduce_op reduce, const void *const *sources, int count, void *out,
                       size_t n) {
  switch (dtype) {
    case PITH_F64:
      reduce_f64(reduce, sources, count, out, n);
      if (reduce == PITH_MEAN) {
        divide_f64(out, n, count);
      }
      break;
    case PITH_I8:
      reduce_i8(reduce, sources, count, out, n);
      break;
    case PITH_U8:
      reduce_u8(reduce, sources, count, out, n);
      break;
    case PITH_I16:
      reduce_i16(reduce, sources, count, out, n);
      break;
    case PITH_I32:
      reduce_i32(reduce, sources, count, out, n);
      break;
    case PITH_I64:
      reduce_i64(reduce, sources, count, out, n);
      break;
    default:
      reduce_floats(dtype, reduce, sources, count, out, n);
  }
}

/* ---- In several steps -------------------------------------------------------------------------------------------- */

static pith_reduce_op step_of(pith_reduce_op reduce) { return reduce == PITH_MEAN ? PITH_SUM : reduce; }

pith_dtype pith__partial_type(pith_dtype dtype, pith_reduce_op reduce) {
  int halves = dtype == PITH_F16 || dtype == PITH_BF16;
  return halves && step_of(reduce) == PITH_SUM ? PITH_F32 : dtype;
}

void pith__partial_sum(const pith_raw *raw, const void *const *sources, int count, void *sum, size_t n) {
  if (pith__partial_type(raw->dtype, raw->reduce) == raw->dtype) {
    pith__reduce_many(raw->dtype, step_of(raw->reduce), sources, count, sum, n);
    return;
  }
  for (int i = 0; i < count; i++) {
    pith__sum_values((pith_cspan){sources[i], n, raw->dtype}, 0, sum, n, i == 0);
  }
}

void pith__partial_finish(const pith_raw *raw, int ranks, void *sum, uint8_t *to, size_t n) {
  pith_dtype partial = pith__partial_type(raw->dtype, raw->reduce);
  float buffer[TILE];
  if (raw->reduce == PITH_MEAN && partial == PITH_F32) {
    pith__values_scale(1.0f / (float)ranks, sum, n);
  } else if (raw->reduce == PITH_MEAN) {
    divide_f64(sum, n, ranks);
  }
  if (partial == raw->dtype) {
    memcpy(to, sum, n * pith_dtype_size(partial));
    return;
  }
  for (size_t i = 0; i < n; i += TILE) {
    size_t m = n - i < TILE ? n - i : TILE;
    pith__span_store((pith_span){to, n, raw->dtype}, i, m, (const float *)sum + i, PITH_SET, buffer);
  }
}

static int is_float(pith_dtype dtype) {
  return dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16 || dtype == PITH_F64;
}

pith_status pith__reduce_check(pith_dtype dtype, pith_reduce_op reduce) {
  PITH_REQUIRE(pith_dtype_size(dtype) > 0, PITH_ERR_ARGUMENT, "unknown type %d", (int)dtype);
  PITH_REQUIRE((unsigned)reduce <= PITH_BXOR, PITH_ERR_ARGUMENT, "unknown reduction %d", (int)reduce);
  PITH_REQUIRE(reduce != PITH_MEAN || is_float(dtype), PITH_ERR_ARGUMENT, "a mean of %s values is not whole: use a sum",
               pith_dtype_name(dtype));
  PITH_REQUIRE(reduce < PITH_BAND || !is_float(dtype), PITH_ERR_ARGUMENT, "%s values have no bitwise reduction",
               pith_dtype_name(dtype));
  return PITH_OK;
}

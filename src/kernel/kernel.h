/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The hot loops, behind one table of functions for each instruction set.
 *
 * Every loop is written once, over vectors of 16 lanes (body_*.h), and compiled once for each ISA with that ISA's idea
 * of such a vector (simd_*.h). All tables therefore give the same bits: no fused multiply-add, and sums run in 16
 * interleaved lanes that are added in a fixed tree (docs/format.md, "Sums").
 *
 * Unless said otherwise: pointers may have any alignment, n may be 0, source and destination do not overlap, and
 * inputs of quantizers are finite (codecs look at range() or absmax() first).
 */
#ifndef PITH_KERNEL_KERNEL_H
#define PITH_KERNEL_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#include <pith/pith.h>

#include "base/rng.h"
#include "kernel/formats.h"

#define PITH_INF_BITS 0x7f800000u /* |x| as bits: at or above this, x is not finite */

#define PITH_ORDER_BINS 65536 /* of order_count and order_number */

/* level = round((x - lo) · inverse) + zero, kept within 0…top. */
typedef struct pith_quantizer {
  float lo, inverse;
  int32_t zero, top;
} pith_quantizer;

/* x = base + unit · (level - zero) */
typedef struct pith_dequantizer {
  float base, unit;
  int32_t zero;
} pith_dequantizer;

typedef struct pith_moments {
  float sum, sum_abs, sum_squares;
} pith_moments;

/* Values below zero, and the others. */
typedef struct pith_halves {
  float sum_negative, sum_other;
  size_t negatives;
} pith_halves;

/* What a sparsifier orders values by: the bits of |x|, or of |x| on one side of zero and 0 on the other. */
typedef enum pith_side { PITH_SIDE_BOTH = 0, PITH_SIDE_POSITIVE = 1, PITH_SIDE_NEGATIVE = 2 } pith_side;

#define PITH_OUTER_ROWS 4

typedef struct pith_kernels {
  /* Conversions. */
  void (*f16_to_f32)(const uint16_t *src, float *dst, size_t n);
  void (*bf16_to_f32)(const uint16_t *src, float *dst, size_t n);
  void (*f32_to_f16)(const float *src, uint16_t *dst, size_t n);
  void (*f32_to_bf16)(const float *src, uint16_t *dst, size_t n);
  /* Rounded up or down at random, without bias. Finite values stay finite; others become 0. */
  void (*f32_to_bf16_random)(const float *src, uint16_t *dst, size_t n, pith_key key, uint32_t index);

  /* Element by element. blend is βe + γg; out may be e or g. */
  void (*blend)(const float *e, const float *g, float beta, float gamma, float *out, size_t n);
  void (*residual)(const float *p, const float *d, float *e, size_t n); /* e = p − d where that is finite; e may be p */
  void (*add)(const float *src, float *dst, size_t n);
  void (*scale)(float factor, float *x, size_t n);
  void (*vote)(float *x, size_t n); /* the sign of x: −1, 0 or 1; NaN stays NaN */

  /* An optimizer's step on n f32 values, with a residual in f32; u->n, u->dtype and u->store are not looked at.
   * Pointers are the same or do not overlap. */
  void (*update)(const pith_update_task *u, size_t n);

  /* Reductions. absmax and range return the bits of the largest |x| (0 for n = 0). */
  uint32_t (*absmax)(const float *x, size_t n);
  uint32_t (*range)(const float *x, size_t n, float *lo, float *hi);
  void (*moments)(const float *x, size_t n, pith_moments *m);
  void (*halves)(const float *x, size_t n, pith_halves *h);

  /* Uniform quantizers, by bits 1…8. Value i takes bits i·b … i·b + b − 1 of the output, lowest bit first. */
  void (*quantize[9])(const float *x, size_t n, const pith_quantizer *q, uint8_t *out);
  void (*quantize_random[9])(const float *x, size_t n, const pith_quantizer *q, pith_key key, uint32_t index,
                             uint8_t *out);
  void (*dequantize[9])(const uint8_t *in, size_t n, const pith_dequantizer *q, pith_mode mode, float *dst);

  /* Levels of any spacing, by bits 1…4: level = how many of the 2^b − 1 cuts are at or below x · inverse. */
  void (*classify[5])(const float *x, size_t n, float inverse, const float *cuts, uint8_t *out);
  void (*lookup[5])(const uint8_t *in, size_t n, const float *levels, pith_mode mode, float *dst);

  /* Powers of two relative to 1, by bits b = 2…8: of y = x · inverse in −1…1 a sign (bit b − 1) and L below it, for 0
   * (L = 0) or 2^(L − top), top = 2^(b−1) − 1; to the nearest, or drawn without bias. Decoded values are scaled. */
  void (*power_pack[9])(const float *x, size_t n, float inverse, int random, pith_key key, uint32_t index,
                        uint8_t *out);
  void (*power_unpack[9])(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);

  /* Signs: bit 1 where x < 0; decoded to `plus` for 0 and `minus` for 1. */
  void (*sign_pack)(const float *x, size_t n, uint8_t *out);
  void (*sign_unpack)(const uint8_t *in, size_t n, float plus, float minus, pith_mode mode, float *dst);

  /* Votes: signs, those of zeros being 1 at odd places, or at even ones if `odd`; and in `zeros`, which the caller has
   * cleared, a bit for each 32 values that are all zero. These decode to 0, others to ±scale. Returns what absmax()
   * does. */
  uint32_t (*vote_pack)(const float *x, size_t n, int odd, uint8_t *zeros, uint8_t *out);
  void (*vote_unpack)(const uint8_t *zeros, const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);

  /* Trits, five in a byte: docs/format.md. x is clipped to ±clip, then −1, 0 or 1 is drawn for x · inverse. */
  void (*tern_pack)(const float *x, size_t n, float clip, float inverse, pith_key key, uint32_t index, uint8_t *out);
  void (*tern_unpack)(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);
  uint8_t (*byte_max)(const uint8_t *in, size_t n);

  /* Powers of two: sign and distance of the exponent below `top` (an exponent field), 0 for zero. */
  void (*natural_pack)(const float *x, size_t n, int32_t top, pith_key key, uint32_t index, uint8_t *out);
  void (*natural_unpack)(const uint8_t *in, size_t n, int32_t top, pith_mode mode, float *dst);

  /* The 8-bit dynamic tree (src/codec/tree8.c) of x · inverse, which lies in −1…1; decoded values are scaled. */
  void (*tree8_pack)(const float *x, size_t n, float inverse, uint8_t *out);
  void (*tree8_unpack)(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);

  /* FP8 of x · inverse, by type; decoded values are scaled. */
  void (*fp8_pack[PITH_FP8_TYPES])(const float *x, size_t n, float inverse, uint8_t *out);
  void (*fp8_unpack[PITH_FP8_TYPES])(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);

  /* Floats apart and together again, bit for bit, by type (pith_dtype): planes of signs and mantissas as in lossless,
   * and exponents, a byte each. */
  void (*float_split[3])(const void *x, size_t n, uint8_t *planes, uint8_t *exponents);
  void (*float_join[3])(const uint8_t *planes, const uint8_t *exponents, size_t n, void *x);

  /* Codes of 1…5 bits for exponents from `base` on; the last code is an escape. Escapes have room for n + 16 bytes;
   * returns how many there are. To unpack, 16 zeros are behind the `count` of them, and are those that lack. */
  size_t (*window_pack[PITH_LOSSLESS_WIDTHS])(const uint8_t *exponents, size_t n, int base, uint8_t *out,
                                              uint8_t *escapes);
  void (*window_unpack[PITH_LOSSLESS_WIDTHS])(const uint8_t *in, size_t n, int base, const uint8_t *escapes,
                                              size_t count, uint8_t *exponents);

  /* Small floats in rows that share a scale, by type. x may be anything: a row that is not all finite becomes NaN. */
  void (*mx_pack[PITH_MINI_TYPES])(const float *x, size_t n, uint8_t *scales, uint8_t *out);
  void (*mx_unpack[PITH_MINI_TYPES])(const uint8_t *scales, const uint8_t *in, size_t n, pith_mode mode, float *dst);
  /* Rows of E2M1, each with a scale in E4M3 times `scale`. inverse is 1/(6·scale), or 0; no |x| is above 2688·scale. */
  void (*nv_pack)(const float *x, size_t n, float scale, float inverse, uint8_t *scales, uint8_t *out);
  void (*nv_unpack)(const uint8_t *scales, const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst);

  /* Bytes below 2^b to b bits each, b = 1…8, as quantize packs its levels. */
  void (*pack[9])(const uint8_t *in, size_t n, uint8_t *out);

  /* Values to within `bound`: a tag of 2 bits each, and in `out` nothing (0), a multiple of `step` in one byte (1) or
   * two (2), or the value itself (3). `out` has room for 4n bytes; those used are returned. x may be anything. */
  size_t (*bounded_pack)(const float *x, size_t n, float bound, float step, uint8_t *tags, uint8_t *out);
  void (*bounded_unpack)(const uint8_t *tags, const uint8_t *in, const uint8_t *end, size_t n, float step,
                         pith_mode mode, float *dst);

  /* Quantile buckets. A bin is the upper 16 bits of a float, in the order of the floats; both zeros share one.
   * order_number gives each value the bucket of its bin, and adds it to the sum of that. */
  void (*order_count)(const float *x, size_t n, uint64_t *count);
  void (*order_number)(const float *x, size_t n, const uint8_t *bucket, double *sum, uint8_t *number);

  /* Seeded orthonormal rotation of n = 2^k values in place: random signs, then Hadamard, and back. */
  void (*rotate)(float *x, size_t n, pith_key key, uint32_t index);
  void (*unrotate)(float *x, size_t n, pith_key key, uint32_t index);

  /* Selection. The order of x is that of the bits of |x| (see pith_side). */
  size_t (*count)(const float *x, size_t n, pith_side side, uint32_t cut); /* how many are at or above `cut` */
  /* Those values and their places, in order; both outputs have room for n. Returns how many. */
  size_t (*collect)(const float *x, size_t n, pith_side side, uint32_t cut, uint32_t *place, float *value);
  /* Adds to bins[(bits >> shift) & mask] for every x whose bits >> above equal `prefix` (above = 32: for every x). */
  void (*histogram)(const float *x, size_t n, pith_side side, int shift, uint32_t mask, int above, uint32_t prefix,
                    uint32_t *bins);

  /* Low rank: out[k] += Σ m[i] · q[k·stride + i], and q[k·stride + i] += m[j][i] · p[j·r + k] for j = 0, 1, … rows, for
   * k < r. Fastest with PITH_OUTER_ROWS rows. */
  void (*dots)(const float *m, size_t n, const float *q, size_t stride, size_t r, float *out);
  void (*outer)(const float *const *m, size_t rows, size_t n, const float *p, size_t r, float *q, size_t stride);
  /* out[i] = Σ_k p[k] · q[k·stride + i] */
  void (*combine)(const float *p, size_t r, const float *q, size_t stride, float *out, size_t n);
} pith_kernels;

/* The table in use. */
const pith_kernels *pith__kernels(void);

/* The table of an ISA, or NULL where it was not built or the CPU lacks it. For tests and benchmarks. */
const pith_kernels *pith__kernels_of(pith_isa isa);

extern const pith_kernels pith__kernels_scalar;
#if PITH_WITH_AVX2
extern const pith_kernels pith__kernels_avx2;
#endif
#if PITH_WITH_AVX512
extern const pith_kernels pith__kernels_avx512;
#endif

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the block codecs share: f32 numbers at the head of a block, the "not finite" block, the bucket parameter.
 *
 * A block starts with its scale as one or two f32, little endian. A block of values with a NaN or Inf has NaN in place
 * of the scale and zeros behind it; decoding then gives NaN for all of it, because NaN · anything is NaN.
 */
#ifndef PITH_CODEC_BLOCK_H
#define PITH_CODEC_BLOCK_H

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/size.h"
#include "codec/codec.h"
#include "kernel/formats.h"
#include "kernel/kernel.h"

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Pith's payloads are little endian, and so must be the host"
#endif

#define PITH_PARAM_BUCKET(initial)                   \
  {sizeof(pith_param), "bucket", PITH_PARAM_INT, 32, \
   PITH_BLOCK_MAX,     initial,  NULL,           "values that share a scale; a multiple of 32"}

static inline float pith__usable_scale(float scale) { return scale < PITH_SCALE_MIN ? 0.0f : scale; }

static inline void pith__put_f32(uint8_t *out, float x) { memcpy(out, &x, sizeof x); }

static inline float pith__get_f32(const uint8_t *in) {
  float x;
  memcpy(&x, in, sizeof x);
  return x;
}

static inline float pith__nan(void) { return pith__float_of(PITH_NAN_BITS); }

/* A block that decodes to NaN: `scales` NaNs, then zeros up to `size` bytes. */
static inline size_t pith__put_not_finite(uint8_t *out, size_t scales, size_t size) {
  memset(out, 0, size);
  for (size_t i = 0; i < scales; i++) {
    pith__put_f32(out + 4 * i, pith__nan());
  }
  return size;
}

/* What the planner tries beside fp8, mx and nvfp4: small floats of all sizes. */
extern const char *const pith__small_floats[];

pith_status pith__check_bucket(const char *name, int64_t bucket);

/* n values that travel as they are, from any alignment. */
void pith__get_values(const uint8_t *in, size_t n, float *dst, pith_mode mode);

/* √Σx² and Σ|x|, with a slower sum where squares or sums leave the range of f32. x is finite. */
double pith__norm(const float *x, size_t n);
double pith__sum_abs(const float *x, size_t n);

/* The norm of a choice l2|linf; `most` is that of absmax(). Not finite if any of x is not. */
float pith__norm_by(const float *x, size_t n, uint32_t most, int64_t choice);

#endif

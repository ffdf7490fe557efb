/* SPDX-License-Identifier: Apache-2.0 */
/* Value codings: see value_coding.h. docs/format.md has the bytes. */
#include "codec/value_coding.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/saturate.h"
#include "base/size.h"
#include "codec/bitstream.h"
#include "kernel/kernel.h"

#define Q8_ZERO 128 /* the level of the middle */

/* From here on a finite value would round to Inf, and the largest value there is. */
typedef struct value_limit {
  float overflow, largest;
} value_limit;

static value_limit limit_of(pith_value_coding coding) {
  switch (coding) {
    case PITH_VALUES_FP16:
      return (value_limit){65520.0f, 65504.0f};
    case PITH_VALUES_BF16:
      return (value_limit){0x1.ffp127f, 0x1.fep127f};
    default:
      return (value_limit){INFINITY, INFINITY};
  }
}

unsigned pith__values_bits(unsigned levels) { return levels < 2 ? 0 : 32 - (unsigned)__builtin_clz(levels - 1); }

static size_t q8_size(size_t count) {
  size_t blocks = count / PITH_VALUES_BLOCK + (count % PITH_VALUES_BLOCK != 0);
  return pith__sat_add(count, pith__sat_mul(blocks, PITH_Q8_HEAD));
}

static size_t buckets_size(unsigned levels, size_t count) {
  size_t bits = pith__sat_mul(count, pith__values_bits(levels));
  return bits == SIZE_MAX ? SIZE_MAX : levels * sizeof(float) + bits / 8 + (bits % 8 != 0);
}

size_t pith__values_size(pith_value_format format, size_t count) {
  switch (format.coding) {
    case PITH_VALUES_FP32:
      return pith__sat_mul(count, 4);
    case PITH_VALUES_FP16:
    case PITH_VALUES_BF16:
      return pith__sat_mul(count, 2);
    case PITH_VALUES_Q8:
      return q8_size(count);
    case PITH_VALUES_MEAN:
      return sizeof(float);
    case PITH_VALUES_BUCKETS:
      return buckets_size(format.levels, count);
  }
  return SIZE_MAX;
}

/* ---- Writing --------------------------------------------------------------------------------------------------- */

/* The largest level must not round to Inf when decoded, hence a unit a little too small. */
static float q8_unit(float lo, float hi) {
  float unit = (hi * 0.5f - lo * 0.5f) * (0.999999f / (Q8_ZERO - 1));
  return unit < FLT_MIN ? 0.0f : unit;
}

/* Counted from the middle, differences of huge values stay finite. */
static void write_q8(const float *x, size_t n, uint8_t *out) {
  const pith_kernels *k = pith__kernels();
  float lo, hi, head[2] = {NAN, 0};
  if (k->range(x, n, &lo, &hi) < PITH_INF_BITS) {
    head[0] = lo * 0.5f + hi * 0.5f;
    head[1] = q8_unit(lo, hi);
    pith_quantizer q = {head[0], head[1] > 0 ? 1.0f / head[1] : 0, Q8_ZERO, 2 * Q8_ZERO - 1};
    k->quantize[8](x, n, &q, out + PITH_Q8_HEAD);
  } else {
    memset(out + PITH_Q8_HEAD, 0, n);
  }
  memcpy(out, head, PITH_Q8_HEAD);
}

/* A block as it may travel: NaN for everything not finite, and no overflow. */
static void tame(float *x, size_t n, value_limit limit) {
  if (pith__kernels()->absmax(x, n) < pith__bits_of(limit.overflow)) {
    return;
  }
  for (size_t i = 0; i < n; i++) {
    if (!isfinite(x[i])) {
      x[i] = NAN;
    } else if (fabsf(x[i]) >= limit.overflow) {
      x[i] = copysignf(limit.largest, x[i]);
    }
  }
}

static void write_block(pith_value_writer *w, size_t n) {
  const pith_kernels *k = pith__kernels();
  tame(w->block, n, limit_of(w->coding));
  switch (w->coding) {
    case PITH_VALUES_FP16:
      k->f32_to_f16(w->block, (uint16_t *)(void *)w->at, n);
      break;
    case PITH_VALUES_BF16:
      k->f32_to_bf16(w->block, (uint16_t *)(void *)w->at, n);
      break;
    case PITH_VALUES_Q8:
      write_q8(w->block, n, w->at);
      break;
    default:
      memcpy(w->at, w->block, n * sizeof *w->block);
  }
  w->at += pith__values_size((pith_value_format){w->coding, 0}, n);
}

void pith__value_writer_init(pith_value_writer *w, pith_value_coding coding, uint8_t *out) {
  w->coding = coding;
  w->at = out;
  w->fill = 0;
}

void pith__values_write(pith_value_writer *w, const float *x, size_t n) {
  while (n > 0) {
    size_t room = PITH_VALUES_BLOCK - w->fill, part = pith__least(n, room);
    memcpy(w->block + w->fill, x, part * sizeof *x);
    w->fill += part;
    x += part;
    n -= part;
    if (w->fill == PITH_VALUES_BLOCK) {
      write_block(w, w->fill);
      w->fill = 0;
    }
  }
}

uint8_t *pith__value_writer_finish(pith_value_writer *w) {
  if (w->fill > 0) {
    write_block(w, w->fill);
    w->fill = 0;
  }
  return w->at;
}

/* ---- Reading --------------------------------------------------------------------------------------------------- */

/* Whether all bucket numbers are below `levels`, and zeros follow the last. */
int pith__values_valid(pith_value_format format, const uint8_t *in, size_t count) {
  if (format.coding != PITH_VALUES_BUCKETS || count == 0) {
    return 1;
  }
  unsigned width = pith__values_bits(format.levels);
  const uint8_t *numbers = in + format.levels * sizeof(float), *end = in + pith__values_size(format, count);
  size_t first = format.levels == 1u << width ? (count - 1) / 8 * 8 : 0; /* all numbers exist: look at the end only */
  pith_bit_reader bits = {numbers + first / 8 * width, end, 0, 0};
  for (size_t i = first; i < count; i++) {
    uint64_t number;
    if (!pith__bits_get(&bits, width, &number) || number >= format.levels) {
      return 0;
    }
  }
  return pith__bits_tail(&bits) == end;
}

static void read_q8(const uint8_t *in, size_t n, float *x) {
  float head[2];
  memcpy(head, in, PITH_Q8_HEAD);
  pith_dequantizer q = {head[0], head[1], Q8_ZERO};
  pith__kernels()->dequantize[8](in + PITH_Q8_HEAD, n, &q, PITH_SET, x);
}

static void read_mean(const uint8_t *in, size_t n, float *x) {
  float mean;
  memcpy(&mean, in, sizeof mean);
  for (size_t i = 0; i < n; i++) {
    x[i] = mean;
  }
}

/* A block of 512 numbers takes whole bytes, whatever their width. */
static void read_buckets(pith_value_format format, const uint8_t *in, size_t first, size_t n, float *x) {
  unsigned width = pith__values_bits(format.levels);
  const uint8_t *numbers = in + format.levels * sizeof(float) + first / 8 * width;
  pith_bit_reader bits = {numbers, numbers + pith__packed_size(n, width), 0, 0};
  for (size_t i = 0; i < n; i++) {
    uint64_t number = 0;
    pith__bits_get(&bits, width, &number);
    memcpy(x + i, in + number * sizeof *x, sizeof *x);
  }
}

void pith__values_read(pith_value_format format, const uint8_t *in, size_t first, size_t n, float *x) {
  const pith_kernels *k = pith__kernels();
  switch (format.coding) {
    case PITH_VALUES_FP32:
      memcpy(x, in + first * sizeof *x, n * sizeof *x);
      break;
    case PITH_VALUES_FP16:
      k->f16_to_f32((const uint16_t *)(const void *)(in + first * 2), x, n);
      break;
    case PITH_VALUES_BF16:
      k->bf16_to_f32((const uint16_t *)(const void *)(in + first * 2), x, n);
      break;
    case PITH_VALUES_Q8:
      read_q8(in + q8_size(first), n, x);
      break;
    case PITH_VALUES_MEAN:
      read_mean(in, n, x);
      break;
    case PITH_VALUES_BUCKETS:
      read_buckets(format, in, first, n, x);
      break;
  }
}

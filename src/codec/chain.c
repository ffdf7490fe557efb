/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs transform and codec over tensors. Block codecs only ever see blocks of f32 values: cutting, converting, rotating
 * and checking happen here, once for all of them, a tile at a time so that what is in between stays in the cache.
 */
#include <string.h>

#include "base/half.h"
#include "base/saturate.h"
#include "base/size.h"
#include "codec/codec.h"
#include "kernel/kernel.h"

/* ---- Spans ------------------------------------------------------------------------------------------------------- */

const float *pith__span_load(pith_cspan span, size_t first, size_t n, float *buffer) {
  const uint16_t *halves = span.data;
  switch (span.dtype) {
    case PITH_F16:
      pith__kernels()->f16_to_f32(halves + first, buffer, n);
      return buffer;
    case PITH_BF16:
      pith__kernels()->bf16_to_f32(halves + first, buffer, n);
      return buffer;
    default:
      return (const float *)span.data + first;
  }
}

static void store_halves(pith_span span, size_t first, size_t n, const float *values) {
  uint16_t *halves = (uint16_t *)span.data + first;
  if (span.dtype == PITH_F16) {
    pith__kernels()->f32_to_f16(values, halves, n);
  } else {
    pith__kernels()->f32_to_bf16(values, halves, n);
  }
}

void pith__span_store(pith_span span, size_t first, size_t n, const float *values, pith_mode mode, float *buffer) {
  if (span.dtype == PITH_F32) {
    float *dst = (float *)span.data + first;
    if (mode == PITH_ADD) {
      pith__kernels()->add(values, dst, n);
    } else {
      memcpy(dst, values, n * sizeof *dst);
    }
  } else if (mode == PITH_ADD) {
    pith_cspan source = {span.data, span.n, span.dtype};
    pith__span_load(source, first, n, buffer);
    pith__kernels()->add(values, buffer, n);
    store_halves(span, first, n, buffer);
  } else {
    store_halves(span, first, n, values);
  }
}

float pith__span_get(pith_cspan span, size_t i) {
  switch (span.dtype) {
    case PITH_F16:
      return pith__f16_to_f32(((const uint16_t *)span.data)[i]);
    case PITH_BF16:
      return pith__bf16_to_f32(((const uint16_t *)span.data)[i]);
    default:
      return ((const float *)span.data)[i];
  }
}

void pith__span_put(pith_span span, size_t i, float value) {
  switch (span.dtype) {
    case PITH_F16:
      ((uint16_t *)span.data)[i] = pith__f32_to_f16(value);
      break;
    case PITH_BF16:
      ((uint16_t *)span.data)[i] = pith__f32_to_bf16(value);
      break;
    default:
      ((float *)span.data)[i] = value;
  }
}

void pith__values_add(const float *src, float *dst, size_t n) { pith__kernels()->add(src, dst, n); }

void pith__values_scale(float factor, float *x, size_t n) { pith__kernels()->scale(factor, x, n); }

void pith__values_vote(float *x, size_t n) { pith__kernels()->vote(x, n); }

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

size_t pith_codec_bound(const pith_codec *codec, size_t n) {
  const pith_codec_ops *ops = codec->ops;
  if (!pith__codec_has_blocks(codec)) {
    return ops->bound(codec->args, n);
  }
  size_t block = ops->block(codec->args), rest = n % block;
  size_t full = pith__sat_mul(n / block, ops->block_bound(codec->args, block));
  return pith__sat_add(full, rest ? ops->block_bound(codec->args, rest) : 0);
}

/* Bytes of one buffer of n values in the scratch of a whole codec, whose own scratch behind it must be aligned. */
static size_t rotated_size(size_t n) {
  const size_t line = 64;
  return pith__sat_mul(pith__sat_add(pith__sat_mul(n, sizeof(float)), line - 1) / line, line);
}

/* Block codecs need one tile for converted or rotated values and one to add half types in. Whole codecs behind a
 * transform need the same for the whole tensor, before their own scratch. */
void *pith__codec_take_scratch(const pith_codec *codec, size_t n, pith_arena *arena) {
  if (pith__codec_has_blocks(codec)) {
    return pith__arena_take(arena, 2 * pith__least(codec->tile, n), sizeof(float));
  }
  size_t rotated = codec->transform ? pith__sat_mul(rotated_size(n), 2) : 0;
  return pith__arena_take(arena, pith__sat_add(rotated, codec->ops->scratch(codec->args, n)), 1);
}

/* ---- Transforms -------------------------------------------------------------------------------------------------- */

typedef pith_status (*transform_fn)(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx);

static pith_status transform_tile(const pith_codec *codec, transform_fn run, float *x, size_t n, uint64_t index,
                                  const pith_ctx *ctx) {
  size_t block = codec->transform->block(codec->transform_args);
  for (size_t i = 0; i < n; i += block) {
    PITH_TRY(run(codec->transform_args, x + i, pith__least(block, n - i), index + i, ctx));
  }
  return PITH_OK;
}

/* ---- Block codecs ------------------------------------------------------------------------------------------------ */

static size_t encode_tile(const pith_codec *codec, const float *x, size_t n, uint8_t *out, uint64_t index,
                          const pith_ctx *ctx) {
  size_t block = codec->ops->block(codec->args), used = 0;
  for (size_t i = 0; i < n; i += block) {
    used += codec->ops->encode_block(codec->args, x + i, pith__least(block, n - i), out + used, index + i, ctx);
  }
  return used;
}

static pith_status encode_blocks(const pith_codec *codec, pith_cspan src, pith_out *out, float *buffer,
                                 const pith_ctx *ctx) {
  size_t used = 0;
  for (size_t first = 0; first < src.n; first += codec->tile) {
    size_t n = pith__least(codec->tile, src.n - first);
    uint64_t index = ctx->offset + first;
    const float *x = pith__span_load(src, first, n, buffer);
    if (codec->transform) {
      if (x != buffer) {
        x = memcpy(buffer, x, n * sizeof *x);
      }
      PITH_TRY(transform_tile(codec, codec->transform->forward, buffer, n, index, ctx));
    }
    used += encode_tile(codec, x, n, (uint8_t *)out->data + used, index, ctx);
  }
  out->size = used;
  return PITH_OK;
}

/* Bytes of the block at the start of `in`, 0 if it is malformed. */
static size_t block_size(const pith_codec *codec, pith_bytes in, size_t n) {
  const pith_codec_ops *ops = codec->ops;
  if (ops->check_block) {
    return ops->check_block(codec->args, in, n);
  }
  size_t size = ops->block_bound(codec->args, n);
  return size <= in.size ? size : 0;
}

static pith_status check_blocks(const pith_codec *codec, pith_bytes in, size_t n) {
  const pith_codec_ops *ops = codec->ops;
  if (codec->caps & PITH_CAP_FIXED) {
    size_t expected = pith_codec_bound(codec, n);
    PITH_REQUIRE(in.size == expected, PITH_ERR_CORRUPT, "%s: %zu values take %zu bytes, but the payload has %zu",
                 codec->spec, n, expected, in.size);
    if (!ops->check_block) {
      return PITH_OK;
    }
  }
  size_t block = ops->block(codec->args), used = 0;
  for (size_t i = 0; i < n; i += block) {
    pith_bytes rest = {(const uint8_t *)in.data + used, in.size - used};
    size_t size = block_size(codec, rest, pith__least(block, n - i));
    PITH_REQUIRE(size > 0 && size <= rest.size, PITH_ERR_CORRUPT, "%s: malformed block at byte %zu of %zu", codec->spec,
                 used, in.size);
    used += size;
  }
  PITH_REQUIRE(used == in.size, PITH_ERR_CORRUPT, "%s: %zu bytes behind the last block", codec->spec, in.size - used);
  return PITH_OK;
}

/* Decodes n values from *in and moves it behind them. The payload has been checked. */
static void decode_tile(const pith_codec *codec, pith_bytes *in, float *dst, size_t n, pith_mode mode, uint64_t index,
                        const pith_ctx *ctx) {
  size_t block = codec->ops->block(codec->args);
  for (size_t i = 0; i < n; i += block) {
    size_t m = pith__least(block, n - i), size = block_size(codec, *in, m);
    codec->ops->decode_block(codec->args, in->data, m, dst + i, mode, index + i, ctx);
    *in = (pith_bytes){(const uint8_t *)in->data + size, in->size - size};
  }
}

static pith_status decode_blocks(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode, float *buffer,
                                 const pith_ctx *ctx) {
  int direct = dst.dtype == PITH_F32 && !codec->transform;
  size_t tile = pith__least(codec->tile, dst.n);
  for (size_t first = 0; first < dst.n; first += tile) {
    size_t n = pith__least(tile, dst.n - first);
    uint64_t index = ctx->offset + first;
    if (direct) {
      decode_tile(codec, &in, (float *)dst.data + first, n, mode, index, ctx);
      continue;
    }
    decode_tile(codec, &in, buffer, n, PITH_SET, index, ctx);
    if (codec->transform) {
      PITH_TRY(transform_tile(codec, codec->transform->inverse, buffer, n, index, ctx));
    }
    pith__span_store(dst, first, n, buffer, mode, buffer + tile);
  }
  return PITH_OK;
}

/* ---- Whole codecs ------------------------------------------------------------------------------------------------ */

static pith_status encode_whole(const pith_codec *codec, pith_cspan src, pith_out *out, void *part, void *scratch,
                                const pith_ctx *ctx) {
  pith_ctx here = *ctx;
  here.scratch = scratch;
  here.scratch_size = codec->ops->scratch(codec->args, src.n);
  if (codec->transform) {
    float *buffer = scratch;
    const float *x = pith__span_load(src, 0, src.n, buffer);
    if (x != buffer) {
      memcpy(buffer, x, src.n * sizeof *x);
    }
    PITH_TRY(transform_tile(codec, codec->transform->forward, buffer, src.n, ctx->offset, ctx));
    src = (pith_cspan){buffer, src.n, PITH_F32};
    here.scratch = (uint8_t *)scratch + 2 * rotated_size(src.n);
  }
  return codec->ops->encode(codec->args, src, out, part, &here);
}

static pith_status decode_whole(const pith_codec *codec, pith_bytes in, pith_span dst, pith_apply apply, void *scratch,
                                const pith_ctx *ctx) {
  pith_ctx here = *ctx;
  here.scratch = scratch;
  here.scratch_size = codec->ops->scratch(codec->args, dst.n);
  if (!codec->transform) {
    return codec->ops->decode(codec->args, in, dst, apply, &here);
  }
  PITH_REQUIRE(apply != PITH_APPLY_CLEAR, PITH_ERR_UNSUPPORTED, "%s: rotated values have no places to clear",
               codec->spec);
  size_t size = rotated_size(dst.n);
  float *buffer = scratch, *half = (float *)(void *)((uint8_t *)scratch + size);
  here.scratch = (uint8_t *)scratch + 2 * size;
  pith_span rotated = {buffer, dst.n, PITH_F32};
  PITH_TRY(codec->ops->decode(codec->args, in, rotated, PITH_APPLY_SET, &here));
  PITH_TRY(transform_tile(codec, codec->transform->inverse, buffer, dst.n, ctx->offset, ctx));
  if (apply == PITH_APPLY_SUB) {
    pith__values_scale(-1.0f, buffer, dst.n);
  }
  pith__span_store(dst, 0, dst.n, buffer, apply == PITH_APPLY_SET ? PITH_SET : PITH_ADD, half);
  return PITH_OK;
}

/* ---- The chain --------------------------------------------------------------------------------------------------- */

pith_status pith__codec_encode(const pith_codec *codec, pith_cspan src, pith_out *out, void *part, void *scratch,
                               const pith_ctx *ctx) {
  if (pith__codec_has_blocks(codec)) {
    return encode_blocks(codec, src, out, scratch, ctx);
  }
  return encode_whole(codec, src, out, part, scratch, ctx);
}

pith_status pith__codec_decode(const pith_codec *codec, pith_bytes in, pith_span dst, pith_apply apply, void *scratch,
                               const pith_ctx *ctx) {
  if (!pith__codec_has_blocks(codec)) {
    return decode_whole(codec, in, dst, apply, scratch, ctx);
  }
  PITH_REQUIRE(apply == PITH_APPLY_SET || apply == PITH_APPLY_ADD, PITH_ERR_UNSUPPORTED,
               "%s: blocks are only set or added", codec->spec);
  PITH_TRY(check_blocks(codec, in, dst.n));
  return decode_blocks(codec, in, dst, apply == PITH_APPLY_ADD ? PITH_ADD : PITH_SET, scratch, ctx);
}

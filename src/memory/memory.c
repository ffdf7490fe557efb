/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a memory around the chain.
 *
 * Block codecs go tile by tile: the values to send are made in a tile, encoded, decoded again where the memory asks
 * what was lost, and the rest goes back to the state, all while they are in the first-level cache. The payload of the
 * whole consists of the payloads of the tiles one after another, so tiles do not show in the bytes.
 *
 * Whole codecs work on the memory's own buffer in place: first every value is compensated, then the codec runs over
 * the buffer, then what was sent is taken out.
 *
 * A residual that is kept in fewer bits than 32 is widened before and packed afterwards: a tile at a time, so that it
 * costs no further pass over memory, or all of it for whole codecs, in scratch that lasts as long as the call.
 *
 * Values that are not finite travel (the loss scaler must see them) but never stay: a memory with a NaN in it would
 * give nothing else for the rest of the training.
 *
 * Where a rank has several threads, layers are cut at granules, a slice for each. Only codecs whose pieces have sizes
 * known beforehand can be cut: then everybody knows where to write.
 */
#include "memory/memory.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/size.h"
#include "base/split.h"
#include "kernel/kernel.h"

/* 2^15. Values below that stay finite whatever a codec makes of them, as halves too, and what they leave behind need
 * not be looked at. */
#define TAME_BITS 0x47000000u

#define PAGE 4096 /* bytes */
#define LINE 64

#define WORTH_SHARING 16384 /* values for each thread: less is done sooner than said */
#define TEXT 256

static size_t tile_of(const pith_codec *codec) {
  size_t granule = codec->granule ? codec->granule : 1;
  return granule < PITH_MEMORY_TILE ? PITH_MEMORY_TILE / granule * granule : granule;
}

static int is_packed(const pith_state *state) { return state->store != PITH_STORE_F32; }

/* In f32, which all memories have but those of pith__codec_store(). */
static float *accumulator(const pith_codec *codec, const pith_state *state) {
  return codec->memory->accumulator == PITH_KEEPS_MOMENTUM ? state->momentum : (float *)state->residual;
}

/* What is kept of values from `first` on: where it is, or widened to `wide`. */
static pith_kept open_tile(const pith_state *state, size_t first, size_t n, float *wide) {
  float *momentum = state->momentum ? state->momentum + first : NULL;
  if (!is_packed(state)) {
    return (pith_kept){state->residual ? (float *)state->residual + first : NULL, momentum};
  }
  pith__store_widen(state->store, pith__store_at(state->store, state->residual, first), n, wide);
  return (pith_kept){wide, momentum};
}

static void close_tile(const pith_state *state, const pith_kept *kept, size_t first, size_t n, const pith_ctx *ctx) {
  if (is_packed(state)) {
    void *to = pith__store_at(state->store, state->residual, first);
    pith__store_pack(state->store, kept->residual, n, pith__store_key(ctx), first, to);
  }
}

static float *accumulated_in(const pith_codec *codec, const pith_kept *kept) {
  return codec->memory->accumulator == PITH_KEEPS_MOMENTUM ? kept->momentum : kept->residual;
}

void pith__memory_take_scratch(const pith_codec *codec, size_t n, pith_arena *arena, pith_encode_scratch *scratch) {
  size_t tile = pith__least(tile_of(codec), n);
  *scratch = (pith_encode_scratch){.chain = pith__codec_take_scratch(codec, n, arena)};
  if (pith__codec_store(codec) != PITH_STORE_F32) {
    scratch->wide = pith__arena_take(arena, codec->caps & PITH_CAP_CHUNKED ? tile : n, sizeof(float));
  }
  if (codec->memory) {
    scratch->gradient = pith__arena_take(arena, tile, sizeof(float));
    scratch->sent = pith__arena_take(arena, tile, sizeof(float));
    scratch->decoded = pith__arena_take(arena, tile, sizeof(float));
    pith__arena_take(arena, PAGE, 1); /* behind them: see move_apart() */
  }
}

/* An exploded gradient must be clipped too: where squares overflow, they are summed again in double. */
static double sum_squares(const float *x, size_t n) {
  pith_moments moments;
  pith__kernels()->moments(x, n, &moments);
  if (isfinite(moments.sum_squares)) {
    return moments.sum_squares;
  }
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i] * x[i];
  }
  return sum;
}

static double span_norm(pith_cspan src, size_t tile, float *buffer) {
  double sum = 0;
  for (size_t first = 0; first < src.n; first += tile) {
    size_t n = pith__least(tile, src.n - first);
    sum += sum_squares(pith__span_load(src, first, n, buffer), n);
  }
  return sqrt(sum);
}

static float gradient_factor(const pith_codec *codec, pith_cspan src, size_t tile, float *buffer, const pith_ctx *ctx) {
  const pith_memory_ops *memory = codec->memory;
  if (!memory->limit) {
    return ctx->gamma;
  }
  double limit = memory->limit(codec->memory_args, ctx), norm = span_norm(src, tile, buffer) * fabs((double)ctx->gamma);
  float factor = limit > 0 && norm > limit && isfinite(norm) ? (float)(limit / norm) : 1.0f;
  return ctx->gamma * factor;
}

/* ---- Block codecs ------------------------------------------------------------------------------------------------ */

static pith_status encode_tile(const pith_codec *codec, pith_state *state, const float *g, float gamma, size_t n,
                               pith_out *out, const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  size_t first = (size_t)ctx->offset;
  pith_kept kept = open_tile(state, first, n, scratch->wide);
  PITH_TRY(codec->memory->compensate(codec->memory_args, &kept, g, gamma, scratch->sent, n));
  PITH_TRY(pith__codec_encode(codec, (pith_cspan){scratch->sent, n, PITH_F32}, out, NULL, scratch->chain, ctx));
  if (codec->memory->after == PITH_AFTER_SUBTRACT) {
    pith_span decoded = {scratch->decoded, n, PITH_F32};
    PITH_TRY(
        pith__codec_decode(codec, (pith_bytes){out->data, out->size}, decoded, PITH_APPLY_SET, scratch->chain, ctx));
  } else {
    memset(scratch->decoded, 0, n * sizeof(float));
  }
  pith__kernels()->residual(scratch->sent, scratch->decoded, accumulated_in(codec, &kept), n);
  close_tile(state, &kept, first, n, ctx);
  return PITH_OK;
}

/* CPUs tell a load from the stores before it by the place in a page, first of all: tiles that lie there just before
 * what is kept make each step of residual() wait for the one before. They are moved to half a page from it. */
static void move_apart(pith_encode_scratch *scratch, const float *kept) {
  size_t skip = ((uintptr_t)kept + PAGE / 2 - (uintptr_t)scratch->sent) % PAGE / LINE * LINE;
  scratch->sent += skip / sizeof(float);
  scratch->decoded += skip / sizeof(float);
}

static pith_status encode_blocks(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                 const pith_encode_scratch *given, const pith_ctx *ctx) {
  size_t tile = tile_of(codec), used = 0;
  pith_encode_scratch scratch = *given;
  move_apart(&scratch, is_packed(state) ? scratch.wide : accumulator(codec, state) + ctx->offset);
  float gamma = gradient_factor(codec, src, tile, scratch.gradient, ctx);
  for (size_t first = 0; first < src.n; first += tile) {
    size_t n = pith__least(tile, src.n - first);
    pith_ctx here = *ctx;
    here.offset = ctx->offset + first;
    pith_out piece = {(uint8_t *)out->data + used, out->capacity - used, 0};
    const float *g = pith__span_load(src, first, n, scratch.gradient);
    PITH_TRY(encode_tile(codec, state, g, gamma, n, &piece, &scratch, &here));
    used += piece.size;
  }
  out->size = used;
  return PITH_OK;
}

pith_status pith__memory_sum_own(const pith_codec *codec, pith_state *state, pith_cspan src, float *sum,
                                 pith_apply apply, const pith_ctx *ctx) {
  static const float nothing[PITH_MEMORY_TILE];
  float buffer[PITH_MEMORY_TILE], compensated[PITH_MEMORY_TILE], wide[PITH_MEMORY_TILE];
  float gamma = codec->memory ? gradient_factor(codec, src, PITH_MEMORY_TILE, buffer, ctx) : 1.0f;
  for (size_t first = 0; first < src.n; first += PITH_MEMORY_TILE) {
    size_t n = pith__least(PITH_MEMORY_TILE, src.n - first), at = (size_t)ctx->offset + first;
    const float *own = pith__span_load(src, first, n, buffer);
    if (codec->memory) {
      pith_kept kept = open_tile(state, at, n, wide);
      PITH_TRY(codec->memory->compensate(codec->memory_args, &kept, own, gamma, compensated, n));
      const float *sent = codec->memory->after == PITH_AFTER_SUBTRACT ? compensated : nothing;
      pith__kernels()->residual(compensated, sent, accumulated_in(codec, &kept), n);
      close_tile(state, &kept, at, n, ctx);
      own = compensated;
    }
    if (apply == PITH_APPLY_ADD) {
      pith__values_add(own, sum + first, n);
    } else {
      memcpy(sum + first, own, n * sizeof *sum);
    }
  }
  return PITH_OK;
}

/* ---- Whole codecs ------------------------------------------------------------------------------------------------ */

static void forget_not_finite(float *x, size_t n) {
  if (!x || pith__kernels()->absmax(x, n) < PITH_INF_BITS) {
    return;
  }
  for (size_t i = 0; i < n; i++) {
    x[i] = isfinite(x[i]) ? x[i] : 0.0f;
  }
}

pith_cspan pith__memory_accumulated(const pith_codec *codec, const pith_state *state, pith_cspan src) {
  return codec->memory ? (pith_cspan){accumulator(codec, state), state->n, PITH_F32} : src;
}

float pith__memory_factor(const pith_codec *codec, pith_cspan src, float *buffer, const pith_ctx *ctx) {
  return codec->memory ? gradient_factor(codec, src, PITH_MEMORY_TILE, buffer, ctx) : 1.0f;
}

pith_status pith__memory_compensate(const pith_codec *codec, pith_state *state, pith_cspan src, pith_extent part,
                                    float factor, float *buffer, uint32_t *most) {
  *most = 0;
  for (size_t at = part.first, end = part.first + part.n; codec->memory && at < end; at += PITH_MEMORY_TILE) {
    size_t n = pith__least(PITH_MEMORY_TILE, end - at);
    const float *g = pith__span_load(src, at, n, buffer);
    pith_kept kept = open_tile(state, at, n, NULL);
    float *compensated = accumulated_in(codec, &kept);
    PITH_TRY(codec->memory->compensate(codec->memory_args, &kept, g, factor, compensated, n));
    uint32_t here = pith__kernels()->absmax(compensated, n);
    *most = here > *most ? here : *most;
  }
  return PITH_OK;
}

static pith_status take_out_sent(const pith_codec *codec, pith_state *state, pith_bytes sent, void *chain,
                                 const pith_ctx *ctx) {
  pith_span residual = {state->residual, state->n, PITH_F32}, momentum = {state->momentum, state->n, PITH_F32};
  switch (codec->memory->after) {
    case PITH_AFTER_SUBTRACT:
      return pith__codec_decode(codec, sent, residual, PITH_APPLY_SUB, chain, ctx);
    case PITH_AFTER_CLEAR:
      PITH_TRY(pith__codec_decode(codec, sent, residual, PITH_APPLY_CLEAR, chain, ctx));
      return pith__codec_decode(codec, sent, momentum, PITH_APPLY_CLEAR, chain, ctx);
    case PITH_AFTER_KEEP:
      break;
  }
  return PITH_OK;
}

static pith_status encode_whole(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  float factor = pith__memory_factor(codec, src, scratch->gradient, ctx);
  uint32_t most;
  PITH_TRY(pith__memory_compensate(codec, state, src, (pith_extent){0, src.n}, factor, scratch->gradient, &most));
  pith_cspan sent = pith__memory_accumulated(codec, state, src);
  PITH_TRY(pith__codec_encode(codec, sent, out, state->part, scratch->chain, ctx));
  PITH_TRY(take_out_sent(codec, state, (pith_bytes){out->data, out->size}, scratch->chain, ctx));
  if (most >= TAME_BITS) {
    forget_not_finite(state->residual, state->n);
    forget_not_finite(state->momentum, state->n);
  }
  return PITH_OK;
}

/* On a copy of the residual in f32. */
static pith_status encode_whole_packed(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                       const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  pith_state wide = *state;
  wide.store = PITH_STORE_F32;
  wide.residual = scratch->wide;
  pith__store_widen(state->store, state->residual, state->n, scratch->wide);
  PITH_TRY(encode_whole(codec, &wide, src, out, scratch, ctx));
  pith__store_pack(state->store, scratch->wide, state->n, pith__store_key(ctx), 0, state->residual);
  return PITH_OK;
}

static void settle_tile(const pith_codec *codec, pith_state *state, pith_cspan decoded, size_t first, size_t n,
                        float *buffer, const pith_ctx *ctx) {
  float *p = accumulator(codec, state) + first;
  const float *d = buffer;
  if (codec->ops->own) {
    codec->ops->own(codec->args, p, n, first, buffer, state->part, ctx);
  } else {
    d = pith__span_load(decoded, first, n, buffer);
  }
  pith__kernels()->residual(p, d, p, n);
}

void pith__memory_settle(const pith_codec *codec, pith_state *state, pith_cspan decoded, pith_extent part,
                         float *buffer, const pith_ctx *ctx) {
  for (size_t at = part.first, end = part.first + part.n; codec->memory && at < end; at += PITH_MEMORY_TILE) {
    size_t n = pith__least(PITH_MEMORY_TILE, end - at);
    if (codec->memory->after == PITH_AFTER_SUBTRACT) {
      settle_tile(codec, state, decoded, at, n, buffer, ctx);
    }
    forget_not_finite(accumulator(codec, state) + at, n);
  }
}

pith_status pith__memory_encode(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  if (!codec->memory) {
    return pith__codec_encode(codec, src, out, state ? state->part : NULL, scratch->chain, ctx);
  }
  if (codec->caps & PITH_CAP_CHUNKED) {
    return encode_blocks(codec, state, src, out, scratch, ctx);
  }
  return is_packed(state) ? encode_whole_packed(codec, state, src, out, scratch, ctx)
                          : encode_whole(codec, state, src, out, scratch, ctx);
}

/* ---- Results ----------------------------------------------------------------------------------------------------- */

int pith__memory_keeps_results(const pith_codec *codec, const pith_state *state) {
  return state && codec->memory && codec->memory->after == PITH_AFTER_SUBTRACT && (codec->caps & PITH_CAP_CHUNKED);
}

/* The same memory around the same chain, with another residual. */
pith_status pith__memory_encode_result(const pith_codec *codec, pith_state *state, pith_cspan values, pith_out *out,
                                       const pith_encode_scratch *scratch, const pith_ctx *given) {
  pith_ctx ctx = *given;
  ctx.gamma = 1.0f;
  if (!pith__memory_keeps_results(codec, state)) {
    return pith__codec_encode(codec, values, out, NULL, scratch->chain, &ctx);
  }
  PITH_TRY(pith__state_own_results(state, (size_t)ctx.offset, values.n));
  pith_state results = {
      .n = state->n, .rows = state->rows, .keeps = state->keeps, .store = state->store, .residual = state->result};
  return encode_blocks(codec, &results, values, out, scratch, &ctx);
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

typedef struct outcome {
  pith_status status;
  char text[TEXT];
} outcome;

/* What all threads know. */
typedef struct threaded {
  unsigned parts;
  const pith_codec *codec;
  pith_encode_fn encode; /* NULL: decoding, or … */
  float *sum;            /* … adding our own values to this */
  pith_state *state;
  size_t n;
  pith_dtype dtype;
  uint8_t *values, *bytes;
  pith_apply apply;
  const pith_encode_scratch *scratch;
  const pith_ctx *ctx;
  outcome *outcome; /* of each part */
} threaded;

static unsigned parts_of(const pith_thread_pool *pool, const pith_codec *codec, size_t n) {
  const uint32_t needed = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  size_t worth = n / WORTH_SHARING;
  return (codec->caps & needed) != needed || worth < 2 ? 1 : (unsigned)pith__least(pith__thread_pool_size(pool), worth);
}

static pith_status run_part(const threaded *s, unsigned part) {
  pith_range range = pith__split(s->n, s->codec->granule, s->parts, part);
  if (range.n == 0) {
    return PITH_OK;
  }
  pith_ctx ctx = *s->ctx;
  ctx.offset += range.first;
  uint8_t *values = s->values + range.first * pith_dtype_size(s->dtype);
  if (s->sum) {
    return pith__memory_sum_own(s->codec, s->state, (pith_cspan){values, range.n, s->dtype}, s->sum + range.first,
                                s->apply, &ctx);
  }
  uint8_t *bytes = s->bytes + pith_codec_bound(s->codec, range.first);
  size_t size = pith_codec_bound(s->codec, range.n);
  if (s->encode) {
    pith_out out = {bytes, size, 0};
    return s->encode(s->codec, s->state, (pith_cspan){values, range.n, s->dtype}, &out, &s->scratch[part], &ctx);
  }
  return pith__codec_decode(s->codec, (pith_bytes){bytes, size}, (pith_span){values, range.n, s->dtype}, s->apply,
                            s->scratch[part].chain, &ctx);
}

/* Messages belong to threads: what went wrong elsewhere is told here. */
static void run_and_tell(void *argument, unsigned part) {
  threaded *s = argument;
  outcome *o = &s->outcome[part];
  o->status = run_part(s, part);
  if (o->status != PITH_OK) {
    snprintf(o->text, sizeof o->text, "%s", pith_error());
  }
}

static pith_status run_all(pith_thread_pool *pool, threaded *s) {
  outcome outcomes[PITH_THREADS_MOST]; /* many bytes, which only parts that fail write to */
  s->outcome = outcomes;
  pith__thread_pool_run(pool, s->parts, run_and_tell, s);
  for (unsigned part = 0; part < s->parts; part++) {
    PITH_REQUIRE(s->outcome[part].status == PITH_OK, s->outcome[part].status, "%s", s->outcome[part].text);
  }
  return PITH_OK;
}

pith_status pith__encode_in_threads(pith_thread_pool *pool, pith_encode_fn encode, const pith_codec *codec,
                                    pith_state *state, pith_cspan src, pith_out *out,
                                    const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, src.n),
                .codec = codec,
                .encode = encode,
                .state = state,
                .n = src.n,
                .dtype = src.dtype,
                .values = (uint8_t *)(uintptr_t)src.data,
                .bytes = out->data,
                .scratch = scratch,
                .ctx = ctx};
  size_t size = s.parts > 1 ? pith_codec_bound(codec, src.n) : 0;
  if (s.parts == 1 || size > out->capacity) {
    return encode(codec, state, src, out, scratch, ctx);
  }
  out->size = size;
  return run_all(pool, &s);
}

pith_status pith__decode_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_bytes in, pith_span dst,
                                    pith_apply apply, const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, dst.n),
                .codec = codec,
                .n = dst.n,
                .dtype = dst.dtype,
                .values = dst.data,
                .bytes = (uint8_t *)(uintptr_t)in.data,
                .apply = apply,
                .scratch = scratch,
                .ctx = ctx};
  if (s.parts == 1 || in.size != pith_codec_bound(codec, dst.n)) { /* the wrong size is told as ever */
    return pith__codec_decode(codec, in, dst, apply, scratch[0].chain, ctx);
  }
  return run_all(pool, &s);
}

pith_status pith__sum_own_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_state *state, pith_cspan src,
                                     float *sum, pith_apply apply, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, src.n),
                .codec = codec,
                .sum = sum,
                .state = state,
                .n = src.n,
                .dtype = src.dtype,
                .values = (uint8_t *)(uintptr_t)src.data,
                .apply = apply,
                .ctx = ctx};
  if (s.parts == 1) {
    return pith__memory_sum_own(codec, state, src, sum, apply, ctx);
  }
  return run_all(pool, &s);
}

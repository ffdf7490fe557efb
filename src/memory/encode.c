/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls that move values: arguments are checked here, scratch is found here, the layers below do the
 * work. */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "base/struct_size.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

/* ---- Arguments --------------------------------------------------------------------------------------------------- */

static pith_status check_tensor(const pith_codec *codec, const void *data, size_t n, pith_dtype dtype) {
  PITH_REQUIRE(dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: tensors are f32, f16 or bf16, not %s", codec->spec, pith_dtype_name(dtype));
  PITH_REQUIRE(data || n == 0, PITH_ERR_ARGUMENT, "%s: %zu values at NULL", codec->spec, n);
  PITH_REQUIRE(n <= SIZE_MAX / 8, PITH_ERR_ARGUMENT, "%s: %zu values do not fit any memory", codec->spec, n);
  return PITH_OK;
}

/* The caller's context with defaults filled in; fields that an older caller does not know are zero. */
static pith_status read_ctx(const pith_codec *codec, const pith_ctx *given, pith_ctx *ctx) {
  memset(ctx, 0, sizeof *ctx);
  if (given) {
    PITH_TRY(PITH_STRUCT_READ(pith_ctx, given, ctx));
  }
  ctx->size = sizeof *ctx;
  ctx->ranks = ctx->ranks ? ctx->ranks : 1;
  ctx->gamma = ctx->gamma != 0 ? ctx->gamma : 1.0f;
  size_t granule = codec->granule;
  PITH_REQUIRE(granule ? ctx->offset % granule == 0 : ctx->offset == 0, PITH_ERR_ARGUMENT,
               "%s: a piece cannot start at value %llu: %s %zu", codec->spec, (unsigned long long)ctx->offset,
               granule ? "pieces start at multiples of" : "the method needs the whole layer, so the offset must be",
               granule);
  return PITH_OK;
}

/* ---- Scratch ----------------------------------------------------------------------------------------------------- */

size_t pith_codec_scratch(const pith_codec *codec, size_t n) {
  pith_arena arena = pith__arena_over(NULL, 0);
  pith_encode_scratch scratch;
  pith__memory_take_scratch(codec, n, &arena, &scratch);
  return pith__arena_need(&arena);
}

/* Points at the caller's scratch, or at fresh memory that must then be freed: *owned, else NULL. */
static pith_status find_scratch(const pith_codec *codec, size_t n, const pith_ctx *ctx, pith_encode_scratch *scratch,
                                void **owned) {
  size_t need = pith_codec_scratch(codec, n);
  void *memory = ctx->scratch;
  *owned = NULL;
  if (memory) {
    PITH_REQUIRE(ctx->scratch_size >= need, PITH_ERR_BUFFER, "%s: %zu values need %zu bytes of scratch, not %zu",
                 codec->spec, n, need, ctx->scratch_size);
  } else if (need) {
    memory = *owned = need < SIZE_MAX ? malloc(need) : NULL;
    PITH_REQUIRE(memory, PITH_ERR_MEMORY, "%s: no memory for %zu bytes of scratch", codec->spec, need);
  }
  pith_arena arena = pith__arena_over(memory, need);
  pith__memory_take_scratch(codec, n, &arena, scratch);
  return PITH_OK;
}

/* ---- Encode, decode, aggregate ----------------------------------------------------------------------------------- */

pith_status pith_encode(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                        const pith_ctx *given) {
  pith_ctx ctx;
  PITH_REQUIRE(codec && out, PITH_ERR_ARGUMENT, "pith_encode: codec and out must not be NULL");
  PITH_TRY(check_tensor(codec, src.data, src.n, src.dtype));
  PITH_TRY(read_ctx(codec, given, &ctx));
  PITH_TRY(pith__state_fits(codec, state, src.n, &ctx));
  size_t bound = pith_codec_bound(codec, src.n);
  PITH_REQUIRE(out->capacity >= bound && (out->data || bound == 0), PITH_ERR_BUFFER,
               "%s: %zu values take up to %zu bytes, the buffer has %zu", codec->spec, src.n, bound,
               out->data ? out->capacity : 0);
  if (state) {
    ctx.rows = state->rows;
  }
  pith_encode_scratch scratch;
  void *owned;
  PITH_TRY(find_scratch(codec, src.n, &ctx, &scratch, &owned));
  pith_out result = {out->data, out->capacity, 0};
  pith_status status = pith__memory_encode(codec, state, src, &result, &scratch, &ctx);
  free(owned);
  PITH_TRY(status);
  out->size = result.size;
  return PITH_OK;
}

pith_status pith_decode(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode, const pith_ctx *given) {
  pith_ctx ctx;
  PITH_REQUIRE(codec, PITH_ERR_ARGUMENT, "pith_decode: codec must not be NULL");
  PITH_REQUIRE(in.data || in.size == 0, PITH_ERR_ARGUMENT, "pith_decode: %zu bytes at NULL", in.size);
  PITH_REQUIRE(mode == PITH_SET || mode == PITH_ADD, PITH_ERR_ARGUMENT, "pith_decode: mode %d is neither SET nor ADD",
               (int)mode);
  PITH_TRY(check_tensor(codec, dst.data, dst.n, dst.dtype));
  PITH_TRY(read_ctx(codec, given, &ctx));
  pith_encode_scratch scratch;
  void *owned;
  PITH_TRY(find_scratch(codec, dst.n, &ctx, &scratch, &owned));
  pith_status status =
      pith__codec_decode(codec, in, dst, mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET, scratch.chain, &ctx);
  free(owned);
  return status;
}

#define AGGREGATE_TILE 1024

pith_status pith_aggregate(const pith_codec *codec, pith_span sum, const pith_ctx *given) {
  pith_ctx ctx;
  PITH_REQUIRE(codec, PITH_ERR_ARGUMENT, "pith_aggregate: codec must not be NULL");
  PITH_TRY(check_tensor(codec, sum.data, sum.n, sum.dtype));
  PITH_TRY(read_ctx(codec, given, &ctx));
  float tile[AGGREGATE_TILE];
  for (size_t first = 0; first < sum.n; first += AGGREGATE_TILE) {
    size_t n = pith__least(AGGREGATE_TILE, sum.n - first);
    float *x = sum.dtype == PITH_F32 ? (float *)sum.data + first : tile;
    pith__span_load((pith_cspan){sum.data, sum.n, sum.dtype}, first, n, x);
    if (codec->caps & PITH_CAP_VOTE) {
      pith__kernels()->vote(x, n);
    } else {
      pith__kernels()->scale(1.0f / (float)ctx.ranks, x, n);
    }
    if (x == tile) {
      pith__span_store(sum, first, n, tile, PITH_SET, tile);
    }
  }
  return PITH_OK;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static pith_status check_round(const pith_codec *codec, const pith_state *state, size_t index) {
  PITH_REQUIRE(codec && state, PITH_ERR_ARGUMENT, "rounds need a codec and a state");
  size_t rounds = pith_codec_rounds(codec);
  PITH_REQUIRE(index < rounds, PITH_ERR_ARGUMENT, "%s has %zu rounds; there is no round %zu", codec->spec, rounds,
               index);
  return PITH_OK;
}

pith_status pith_round_describe(const pith_codec *codec, const pith_state *state, size_t index, pith_round *round) {
  PITH_TRY(check_round(codec, state, index));
  PITH_REQUIRE(round, PITH_ERR_ARGUMENT, "pith_round_describe: round must not be NULL");
  pith_round full = PITH_ROUND_INIT;
  PITH_TRY(codec->ops->describe(codec->args, state->n, state->rows, index, &full));
  return PITH_STRUCT_WRITE(pith_round, &full, round);
}

static pith_status read_round_ctx(const pith_codec *codec, const pith_state *state, const pith_ctx *given,
                                  pith_ctx *ctx) {
  PITH_TRY(read_ctx(codec, given, ctx));
  PITH_REQUIRE(ctx->offset == 0, PITH_ERR_ARGUMENT, "%s: rounds work on whole layers, so the offset must be 0",
               codec->spec);
  ctx->rows = state->rows;
  if (codec->ops->admit) {
    PITH_TRY(codec->ops->admit(codec->args, ctx));
  }
  return pith__state_fits(codec, state, state->n, ctx);
}

/* A round of no values needs no buffer. */
static pith_status check_buffer(const pith_codec *codec, const pith_state *state, size_t index, const void *buffer) {
  pith_round round = PITH_ROUND_INIT;
  PITH_TRY(pith_round_describe(codec, state, index, &round));
  PITH_REQUIRE(buffer || round.count == 0, PITH_ERR_ARGUMENT, "%s: round %zu has %zu values at NULL", codec->spec,
               index, round.count);
  return PITH_OK;
}

/* ---- Strip by strip: each is compensated, multiplied, decoded and settled while it is in the cache --------------- */

typedef struct strips {
  size_t length, count;
} strips;

/* A layer without values is one strip, too. */
static strips strips_of(const pith_codec *codec, const pith_state *state) {
  size_t length = codec->ops->strip ? codec->ops->strip(codec->args, state->n, state->rows) : state->n;
  return length ? (strips){length, (state->n + length - 1) / length} : (strips){0, 1};
}

static pith_extent strip_at(const strips *s, const pith_state *state, size_t number) {
  size_t first = number * s->length, rest = state->n - first;
  return (pith_extent){first, rest < s->length ? rest : s->length};
}

static pith_status produce_strips(const pith_codec *codec, pith_state *state, size_t index, pith_cspan src,
                                  void *buffer, pith_ctx *ctx) {
  float tile[PITH_MEMORY_TILE], factor = index == 0 ? pith__memory_factor(codec, src, tile, ctx) : 1.0f;
  pith_cspan accumulated = pith__memory_accumulated(codec, state, src);
  strips all = strips_of(codec, state);
  for (size_t i = 0; i < all.count; i++) {
    pith_extent strip = strip_at(&all, state, i);
    ctx->offset = strip.first;
    if (index == 0) {
      uint32_t most;
      PITH_TRY(pith__memory_compensate(codec, state, src, strip, factor, tile, &most));
    }
    PITH_TRY(codec->ops->produce(codec->args, index, accumulated, buffer, state->part, ctx));
  }
  return PITH_OK;
}

static pith_status consume_strips(const pith_codec *codec, pith_state *state, size_t index, const void *buffer,
                                  pith_span dst, pith_ctx *ctx) {
  float tile[PITH_MEMORY_TILE];
  strips all = strips_of(codec, state);
  for (size_t i = 0; i < all.count; i++) {
    pith_extent strip = strip_at(&all, state, i);
    ctx->offset = strip.first;
    PITH_TRY(codec->ops->consume(codec->args, index, buffer, dst, state->part, ctx));
    ctx->offset = 0;
    pith__memory_settle(codec, state, (pith_cspan){dst.data, dst.n, dst.dtype}, strip, tile, ctx);
  }
  return PITH_OK;
}

pith_status pith_round_produce(const pith_codec *codec, pith_state *state, size_t index, pith_cspan src, void *buffer,
                               const pith_ctx *given) {
  pith_ctx ctx;
  PITH_TRY(check_round(codec, state, index));
  PITH_TRY(check_tensor(codec, src.data, src.n, src.dtype));
  PITH_TRY(read_round_ctx(codec, state, given, &ctx));
  PITH_REQUIRE(src.n == state->n, PITH_ERR_STATE, "the state is for %zu values, not %zu", state->n, src.n);
  PITH_REQUIRE(index == 0 || index == state->round, PITH_ERR_STATE,
               "%s: round %zu must be consumed before round %zu is produced", codec->spec, index - 1, index);
  PITH_TRY(check_buffer(codec, state, index, buffer));
  state->round = index == 0 ? 0 : state->round;
  PITH_TRY(produce_strips(codec, state, index, src, buffer, &ctx));
  state->produced = 1;
  return PITH_OK;
}

pith_status pith_round_consume(const pith_codec *codec, pith_state *state, size_t index, const void *buffer,
                               pith_span dst, const pith_ctx *given) {
  pith_ctx ctx;
  PITH_TRY(check_round(codec, state, index));
  PITH_TRY(read_round_ctx(codec, state, given, &ctx));
  PITH_REQUIRE(index == state->round, PITH_ERR_STATE, "%s: round %zu is next, not %zu", codec->spec, state->round,
               index);
  PITH_REQUIRE(state->produced, PITH_ERR_STATE, "%s: round %zu must be produced before it is consumed", codec->spec,
               index);
  PITH_TRY(check_buffer(codec, state, index, buffer));
  int last = index + 1 == pith_codec_rounds(codec);
  if (last) {
    PITH_TRY(check_tensor(codec, dst.data, dst.n, dst.dtype));
    PITH_REQUIRE(dst.n == state->n, PITH_ERR_STATE, "the state is for %zu values, not %zu", state->n, dst.n);
  }
  if (last) {
    PITH_TRY(consume_strips(codec, state, index, buffer, dst, &ctx));
  } else {
    pith_span size_only = {NULL, state->n, PITH_F32};
    PITH_TRY(codec->ops->consume(codec->args, index, buffer, size_only, state->part, &ctx));
  }
  state->round = last ? 0 : index + 1;
  state->produced = 0;
  return PITH_OK;
}

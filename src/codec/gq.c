/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gq: integers on one scale for all ranks, so that any allreduce can add up payloads.
 *
 * Rounds: the largest |x| of all ranks, M; then levels z = SR(x·L/M) + L in 0…2L, packed, L being so small that the sum
 * over all ranks still fits the b bits: fields never carry into each other, and the packed bytes can be added as bytes.
 *
 * Alone (encode and decode) the scale is that of the bucket, and L as large as b bits allow.
 */
#include "codec/block.h"

enum { GQ_BITS, GQ_BUCKET }; /* head of a block: M */

static const pith_param gq_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 4, 8, "8", NULL, "bits of a sum: 4 (up to 7 ranks) or 8 (up to 127)"},
    PITH_PARAM_BUCKET("512"),
    {0},
};

static pith_status gq_check(const pith_value *a) {
  PITH_REQUIRE(a[GQ_BITS].i == 4 || a[GQ_BITS].i == 8, PITH_ERR_RANGE,
               "gq: bits=%lld is neither 4 nor 8: sums must not cross bytes", (long long)a[GQ_BITS].i);
  return pith__check_bucket("gq", a[GQ_BUCKET].i);
}

/* The greatest level L such that `ranks` sums of 0…2L fit the bits; 0 if there is none. */
static int32_t gq_levels(const pith_value *a, uint32_t ranks) {
  return (int32_t)(((1u << a[GQ_BITS].i) - 1) / 2 / ranks);
}

static size_t packed(const pith_value *a, size_t n) { return pith__packed_size(n, (size_t)a[GQ_BITS].i); }

static void draw_levels(const pith_value *a, const float *x, size_t n, float most, int32_t levels, uint64_t index,
                        uint8_t *out, const pith_ctx *ctx) {
  pith_quantizer q = {.inverse = most > 0 ? (float)levels / most : 0.0f, .zero = levels, .top = 2 * levels};
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
  pith__kernels()->quantize_random[a[GQ_BITS].i](x, n, &q, key, (uint32_t)index, out);
}

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static size_t gq_block(const pith_value *a) { return (size_t)a[GQ_BUCKET].i; }

static size_t gq_bound(const pith_value *a, size_t n) { return PITH_HEAD_ONE + packed(a, n); }

static size_t gq_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                        const pith_ctx *ctx) {
  uint32_t bits = pith__kernels()->absmax(x, n);
  if (bits >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, gq_bound(a, n));
  }
  float most = pith__usable_scale(pith__float_of(bits));
  pith__put_f32(out, most);
  draw_levels(a, x, n, most, gq_levels(a, 1), index, out + PITH_HEAD_ONE, ctx);
  return gq_bound(a, n);
}

static void gq_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                      const pith_ctx *ctx) {
  (void)index, (void)ctx;
  int32_t levels = gq_levels(a, 1);
  pith_dequantizer q = {.unit = pith__get_f32(in) / (float)levels, .zero = levels};
  pith__kernels()->dequantize[a[GQ_BITS].i](in + PITH_HEAD_ONE, n, &q, mode, dst);
}

/* ---- In rounds --------------------------------------------------------------------------------------------------- */

#define TILE 1024

typedef struct gq_part {
  float most; /* of all ranks; Inf when one of them is not finite */
} gq_part;

static size_t gq_part_size(const pith_value *a, size_t n, uint64_t rows) {
  (void)a, (void)n, (void)rows;
  return sizeof(gq_part);
}

static size_t gq_rounds(const pith_value *a) {
  (void)a;
  return 2;
}

static pith_status gq_describe(const pith_value *a, size_t n, uint64_t rows, size_t index, pith_round *round) {
  (void)rows;
  round->dtype = index == 0 ? PITH_F32 : PITH_I8;
  round->reduce = index == 0 ? PITH_MAX : PITH_SUM;
  round->count = index == 0 ? 1 : packed(a, n);
  return PITH_OK;
}

static float span_absmax(pith_cspan src) {
  float tile[TILE];
  uint32_t most = 0;
  for (size_t first = 0; first < src.n; first += TILE) {
    size_t n = pith__least(TILE, src.n - first);
    uint32_t bits = pith__kernels()->absmax(pith__span_load(src, first, n, tile), n);
    most = bits > most ? bits : most;
  }
  /* NaN does not survive a maximum; Inf does. */
  return pith__float_of(most > PITH_INF_BITS ? PITH_INF_BITS : most);
}

static float common_scale(float most) { return most < INFINITY ? pith__usable_scale(most) : 0.0f; }

static pith_status gq_admit(const pith_value *a, const pith_ctx *ctx) {
  PITH_REQUIRE(gq_levels(a, ctx->ranks) > 0, PITH_ERR_RANGE, "gq:%lld cannot sum %u ranks without overflow; use %s",
               (long long)a[GQ_BITS].i, ctx->ranks, a[GQ_BITS].i == 4 ? "gq:8" : "another method");
  return PITH_OK;
}

static pith_status gq_produce(const pith_value *a, size_t index, pith_cspan src, void *buffer, void *part,
                              const pith_ctx *ctx) {
  int32_t levels = gq_levels(a, ctx->ranks);
  if (index == 0) {
    float most = span_absmax(src);
    memcpy(buffer, &most, sizeof most);
    return PITH_OK;
  }
  float most = common_scale(((gq_part *)part)->most), tile[TILE];
  for (size_t first = 0; first < src.n; first += TILE) {
    size_t n = pith__least(TILE, src.n - first);
    const float *x = most > 0 ? pith__span_load(src, first, n, tile) : memset(tile, 0, sizeof tile);
    draw_levels(a, x, n, most, levels, first, (uint8_t *)buffer + packed(a, first), ctx);
  }
  return PITH_OK;
}

static pith_status gq_consume(const pith_value *a, size_t index, const void *buffer, pith_span dst, void *part,
                              const pith_ctx *ctx) {
  gq_part *mine = part;
  if (index == 0) {
    memcpy(&mine->most, buffer, sizeof mine->most);
    return PITH_OK;
  }
  int32_t levels = gq_levels(a, ctx->ranks);
  float unit = common_scale(mine->most) / ((float)levels * (float)ctx->ranks), tile[TILE], more[TILE];
  pith_dequantizer q = {
      .base = isfinite(mine->most) ? 0.0f : pith__nan(), .unit = unit, .zero = levels * (int32_t)ctx->ranks};
  for (size_t first = 0; first < dst.n; first += TILE) {
    size_t n = pith__least(TILE, dst.n - first);
    pith__kernels()->dequantize[a[GQ_BITS].i]((const uint8_t *)buffer + packed(a, first), n, &q, PITH_SET, tile);
    pith__span_store(dst, first, n, tile, PITH_SET, more);
  }
  return PITH_OK;
}

/* Drawn again: the random numbers are the same. */
static void gq_own(const pith_value *a, const float *x, size_t n, uint64_t index, float *decoded, const void *part,
                   const pith_ctx *ctx) {
  const gq_part *mine = part;
  int32_t levels = gq_levels(a, ctx->ranks);
  float most = common_scale(mine->most);
  pith_dequantizer q = {
      .base = isfinite(mine->most) ? 0.0f : pith__nan(), .unit = most / (float)levels, .zero = levels};
  uint8_t codes[TILE];
  for (size_t i = 0; i < n; i += TILE) {
    size_t m = pith__least(TILE, n - i);
    if (most > 0) {
      draw_levels(a, x + i, m, most, levels, index + i, codes, ctx);
    } else {
      memset(codes, 0, sizeof codes); /* x may not be finite; the unit is 0 anyway */
    }
    pith__kernels()->dequantize[a[GQ_BITS].i](codes, m, &q, PITH_SET, decoded + i);
  }
}

static void gq_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->bits = (uint8_t)a[GQ_BITS].i;
  task->levels = gq_levels(a, 1);
}

static const pith_codec_traits gq_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = gq_gpu};

const pith_codec_ops pith__codec_gq = {
    .size = sizeof(pith_codec_ops),
    .name = "gq",
    .family = "quantization",
    .summary = "levels on one scale for all ranks: packed sums that never overflow, inside any allreduce",
    .bits = "bits + 32/bucket alone; bits in rounds",
    .origin = "Xin 2023 (Global-QSGD)",
    .detail = "the largest magnitude of all ranks, then sums of levels of `bits` bits that never overflow",
    .use = "sums inside an allreduce that is not Pith's; gq:4 for at most 7 ranks, gq:8 for 127",
    .wire_id = PITH_WIRE_GQ,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_LINEAR | PITH_CAP_ROUNDS | PITH_CAP_UNBIASED | PITH_CAP_SEEDED,
    .params = gq_params,
    .check = gq_check,
    .block = gq_block,
    .block_bound = gq_bound,
    .encode_block = gq_encode,
    .decode_block = gq_decode,
    .part_size = gq_part_size,
    .rounds = gq_rounds,
    .admit = gq_admit,
    .describe = gq_describe,
    .produce = gq_produce,
    .consume = gq_consume,
    .own = gq_own,
    .traits = &gq_traits,
};

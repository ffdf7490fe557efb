/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random-k: k = ⌈ratio·n⌉ values at places that follow from seed, step and layer alone, the same on every rank. No
 * indices travel and no head: the payload is the values, so that payloads of several ranks add up.
 *
 * Place j is the image of j under a keyed permutation of 0 … n − 1: a Feistel network over just enough bits, applied
 * again while its result is n or more. Any place can be computed by itself, in any order, on any device.
 *
 * NaN or Inf anywhere in the tensor turns every value sent to NaN: the place itself may not have been drawn.
 */
#include <math.h>

#include "codec/sparse.h"

enum { RATIO, UNBIASED, VALUES };

static const pith_param params[] = {
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-9, 1, "0.01", NULL, "share of the values that travel"},
    {sizeof(pith_param), "unbiased", PITH_PARAM_INT, 0, 1, "0", NULL,
     "1: scale by n/k, so that the expectation is the input"},
    PITH_VALUES_PARAM,
    {0},
};

static pith_value_format format_of(const pith_value *a) {
  return (pith_value_format){(pith_value_coding)a[VALUES].i, 0};
}

static uint32_t caps_of(const pith_value *a) {
  uint32_t caps = PITH_CAP_FIXED | PITH_CAP_SEEDED;
  caps |= format_of(a).coding == PITH_VALUES_Q8 ? 0 : PITH_CAP_LINEAR;
  caps |= a[UNBIASED].i ? PITH_CAP_UNBIASED : 0;
  return caps;
}

/* ---- The permutation -------------------------------------------------------------------------------------------- */

typedef struct permutation {
  uint64_t n;
  unsigned low_bits; /* a number is a low half of so many bits and a high half of as many or one more */
  uint32_t low_mask, high_mask;
  pith_key key[PITH_PERMUTE_ROUNDS];
} permutation;

static pith_key round_key(const pith_ctx *ctx, unsigned round) {
  return pith__rng_key_of(ctx->seed, ctx->step, ctx->layer, 0, PITH_DOMAIN_SELECT, round);
}

static permutation permutation_of(const pith_ctx *ctx, uint64_t n) {
  permutation p = {.n = n};
  unsigned bits = n < 2 ? 0 : 64 - (unsigned)__builtin_clzll(n - 1);
  p.low_bits = bits / 2;
  p.low_mask = (uint32_t)((1ull << p.low_bits) - 1);
  p.high_mask = (uint32_t)((1ull << (bits - p.low_bits)) - 1);
  for (unsigned round = 0; round < PITH_PERMUTE_ROUNDS; round++) {
    p.key[round] = round_key(ctx, round);
  }
  return p;
}

/* The halves change in turn, each by a function of the other. */
static uint64_t permute_once(const permutation *p, uint64_t number) {
  uint32_t low = (uint32_t)number & p->low_mask, high = (uint32_t)(number >> p->low_bits);
  for (unsigned round = 0; round < PITH_PERMUTE_ROUNDS; round += 2) {
    high ^= pith__rng32(p->key[round], low) & p->high_mask;
    low ^= pith__rng32(p->key[round + 1], high) & p->low_mask;
  }
  return (uint64_t)high << p->low_bits | low;
}

static uint64_t permute(const permutation *p, uint64_t number) {
  do {
    number = permute_once(p, number);
  } while (number >= p->n);
  return number;
}

static void draw(const permutation *p, uint64_t first, size_t n, uint64_t *place) {
  for (size_t i = 0; i < n; i++) {
    place[i] = permute(p, first + i);
  }
}

/* ---- The codec -------------------------------------------------------------------------------------------------- */

static size_t bound(const pith_value *a, size_t n) {
  return pith__values_size(format_of(a), pith__ratio_count(a[RATIO].f, n));
}

static size_t scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  pith_arena arena = pith__arena_over(NULL, 0);
  pith__arena_take(&arena, PITH_TILE, sizeof(float));
  return pith__arena_need(&arena);
}

/* The type of what the payload is an array of. Not asked for q8, whose payloads do not add up. */
static pith_dtype linear(const pith_value *a) {
  static const pith_dtype types[] = {
      [PITH_VALUES_FP32] = PITH_F32, [PITH_VALUES_FP16] = PITH_F16, [PITH_VALUES_BF16] = PITH_BF16};
  return types[format_of(a).coding];
}

static int all_finite(pith_cspan src, float *buffer) {
  uint32_t largest = 0;
  for (size_t at = 0; at < src.n && largest < PITH_INF_BITS; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    largest = pith__kernels()->absmax(pith__span_load(src, at, n, buffer), n);
  }
  return largest < PITH_INF_BITS;
}

static void gather(pith_cspan src, const uint64_t *place, size_t n, float *values) {
  for (size_t i = 0; i < n; i++) {
    values[i] = pith__span_get(src, place[i]);
  }
}

static pith_status encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)part;
  pith_arena arena = pith__arena_over(ctx->scratch, ctx->scratch_size);
  int finite = all_finite(src, pith__arena_take(&arena, PITH_TILE, sizeof(float)));
  permutation p = permutation_of(ctx, src.n);
  size_t k = pith__ratio_count(a[RATIO].f, src.n);
  uint64_t place[PITH_VALUES_BLOCK];
  float values[PITH_VALUES_BLOCK];
  pith_value_writer writer;
  pith__value_writer_init(&writer, format_of(a).coding, out->data);
  for (size_t first = 0; first < k; first += PITH_VALUES_BLOCK) {
    size_t n = pith__least(PITH_VALUES_BLOCK, k - first);
    draw(&p, first, n, place);
    gather(src, place, n, values);
    for (size_t i = 0; !finite && i < n; i++) {
      values[i] = NAN;
    }
    pith__values_write(&writer, values, n);
  }
  out->size = (size_t)(pith__value_writer_finish(&writer) - (uint8_t *)out->data);
  return PITH_OK;
}

/* On decoded values. */
static float factor_of(const pith_value *a, size_t n, size_t k) {
  return a[UNBIASED].i ? (float)((double)n / (double)k) : 1.0f;
}

static pith_status decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx) {
  size_t k = pith__ratio_count(a[RATIO].f, dst.n), size = pith__values_size(format_of(a), k);
  PITH_REQUIRE(in.size == size, PITH_ERR_CORRUPT, "%zu bytes are not %zu random values of %zu", in.size, k, dst.n);
  permutation p = permutation_of(ctx, dst.n);
  float factor = factor_of(a, dst.n, k);
  uint64_t place[PITH_VALUES_BLOCK];
  float values[PITH_VALUES_BLOCK];
  if (apply == PITH_APPLY_SET) {
    pith__span_clear(dst);
  }
  for (size_t first = 0; first < k; first += PITH_VALUES_BLOCK) {
    size_t n = pith__least(PITH_VALUES_BLOCK, k - first);
    draw(&p, first, n, place);
    pith__values_read(format_of(a), in.data, first, n, values);
    pith__kernels()->scale(factor, values, n);
    pith__span_scatter(dst, place, values, n, apply);
  }
  return PITH_OK;
}

static void gpu_task(const pith_value *a, const pith_ctx *ctx, pith_gpu_sparse *task) {
  task->k = task->most = (uint32_t)pith__ratio_count(a[RATIO].f, task->n);
  task->factor = factor_of(a, task->n, task->k);
  task->coding = (uint8_t)a[VALUES].i;
  for (unsigned round = 0; round < PITH_PERMUTE_ROUNDS; round++) {
    pith_key key = round_key(ctx, round);
    task->permute[2 * round] = key.k0;
    task->permute[2 * round + 1] = key.k1;
  }
}

static const pith_codec_traits traits = {.gpu = PITH_GPU_SPARSE, .gpu_sparse = gpu_task};

const pith_codec_ops pith__codec_randomk = {
    .size = sizeof(pith_codec_ops),
    .name = "randomk",
    .family = "sparsification",
    .summary = "values at random places that every rank knows",
    .bits = "32*ratio",
    .origin = "Stich 2018; Wangni 2018",
    .detail = "values at places that follow from the seed: no indices travel, and payloads add up",
    .use = "where payloads must add up, or as a reference for topk; use it behind ef",
    .wire_id = PITH_WIRE_RANDOMK,
    .caps = PITH_CAP_FIXED | PITH_CAP_LINEAR | PITH_CAP_SEEDED,
    .survey = 1,
    .params = params,
    .caps_of = caps_of,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
    .linear = linear,
    .traits = &traits,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * q: uniform levels between the least and the greatest value of a bucket. qsgd and gq's plain form have the same
 * kernels and other borders.
 *
 * Block: least value and unit as f32, then one level of `bits` bits for each value, packed.
 */
#include "codec/block.h"

enum { Q_BITS, Q_BUCKET, Q_ROUND, Q_TAIL }; /* head of a block: lo, unit */
enum { TAIL_QUANTIZED, TAIL_EXACT };

static const pith_param q_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 1, 8, "4", NULL, "bits of a level"},
    PITH_PARAM_BUCKET("512"),
    {sizeof(pith_param), "round", PITH_PARAM_CHOICE, 0, 0, "nearest", "nearest|stochastic",
     "stochastic is unbiased, with a larger error"},
    {sizeof(pith_param), "tail", PITH_PARAM_CHOICE, 0, 0, "quantized", "quantized|exact",
     "values of an incomplete last bucket; exact: they are sent as f32"},
    {0},
};

static pith_status q_check(const pith_value *a) { return pith__check_bucket("q", a[Q_BUCKET].i); }

static uint32_t q_caps(const pith_value *a) {
  uint32_t caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return a[Q_ROUND].i == PITH_ROUND_STOCHASTIC ? caps | PITH_CAP_UNBIASED | PITH_CAP_SEEDED : caps;
}

static size_t q_block(const pith_value *a) { return (size_t)a[Q_BUCKET].i; }

static int is_exact_tail(const pith_value *a, size_t n) {
  return a[Q_TAIL].i == TAIL_EXACT && n < (size_t)a[Q_BUCKET].i;
}

static size_t q_bound(const pith_value *a, size_t n) {
  return is_exact_tail(a, n) ? 4 * n : PITH_HEAD_TWO + pith__packed_size(n, (size_t)a[Q_BITS].i);
}

static size_t q_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                       const pith_ctx *ctx) {
  const pith_kernels *kernels = pith__kernels();
  int bits = (int)a[Q_BITS].i;
  if (is_exact_tail(a, n)) {
    memcpy(out, x, 4 * n);
    return 4 * n;
  }
  float lo, hi, top = (float)((1 << bits) - 1);
  uint32_t most = kernels->range(x, n, &lo, &hi);
  float range = hi - lo;
  if (most >= PITH_INF_BITS || pith__bits_of(range) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 2, q_bound(a, n));
  }
  int flat = range < PITH_SCALE_MIN;
  pith_quantizer q = {.lo = lo, .inverse = flat ? 0.0f : top / range, .zero = 0, .top = (int32_t)top};
  pith__put_f32(out, lo);
  pith__put_f32(out + 4, flat ? 0.0f : range / top);
  if (a[Q_ROUND].i == PITH_ROUND_STOCHASTIC) {
    pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
    kernels->quantize_random[bits](x, n, &q, key, (uint32_t)index, out + PITH_HEAD_TWO);
  } else {
    kernels->quantize[bits](x, n, &q, out + PITH_HEAD_TWO);
  }
  return q_bound(a, n);
}

static void q_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                     const pith_ctx *ctx) {
  (void)index, (void)ctx;
  if (is_exact_tail(a, n)) {
    pith__get_values(in, n, dst, mode);
    return;
  }
  pith_dequantizer q = {.base = pith__get_f32(in), .unit = pith__get_f32(in + 4), .zero = 0};
  pith__kernels()->dequantize[a[Q_BITS].i](in + PITH_HEAD_TWO, n, &q, mode, dst);
}

/* Smaller buckets cost a little and lose less where magnitudes differ by row: a finer ladder than bits alone. */
static const char *const q_variants[] = {"", ",bucket=128", ",bucket=256", ",bucket=1024", NULL};

static int q_tail_apart(const pith_value *a) { return a[Q_TAIL].i == TAIL_EXACT; }

static void q_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->kind = is_exact_tail(a, task->n) ? PITH_WIRE_NONE : PITH_WIRE_Q;
  task->bits = (uint8_t)a[Q_BITS].i;
  task->choice = (uint8_t)a[Q_ROUND].i;
}

static const pith_codec_traits q_traits = {
    .variants = q_variants, .gpu = PITH_GPU_BLOCKS, .gpu_tail_apart = q_tail_apart, .gpu_block = q_gpu};

const pith_codec_ops pith__codec_q = {
    .size = sizeof(pith_codec_ops),
    .name = "q",
    .family = "quantization",
    .summary = "max-min quantization: 2^bits levels from the least to the greatest value of a bucket",
    .bits = "bits + 64/bucket",
    .origin = "Markov 2022 (CGX)",
    .detail =
        "for each bucket its least value and the step between levels, then a level of `bits` bits for each "
        "value; with tail=exact the values of an incomplete last bucket as they are",
    .use =
        "the usual choice: q:4 trains like the uncompressed run in most settings; q:8 where its error is too "
        "large, ef/q:2 where it sends too many bytes",
    .wire_id = PITH_WIRE_Q,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = q_params,
    .check = q_check,
    .caps_of = q_caps,
    .block = q_block,
    .block_bound = q_bound,
    .encode_block = q_encode,
    .decode_block = q_decode,
    .traits = &q_traits,
};

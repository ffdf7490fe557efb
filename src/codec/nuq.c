/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nuq: levels at powers of two times the bucket's norm. With b bits a value has a sign and one of 2^(b−1) magnitudes: 0
 * and norm · 2^(L − top) for L = 1 … top = 2^(b−1) − 1. Where most values are small, such levels lose less than uniform
 * ones.
 *
 * Block: the norm as f32, then one code of `bits` bits for each value, packed: L, and the sign above it.
 */
#include "codec/block.h"

enum { NUQ_BITS, NUQ_NORM, NUQ_ROUND, NUQ_BUCKET }; /* head of a block: the norm */

static const pith_param nuq_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 2, 8, "4", NULL, "bits of a code: a sign and a power of two"},
    {sizeof(pith_param), "norm", PITH_PARAM_CHOICE, 0, 0, "linf", "l2|linf", "what the greatest level stands for"},
    {sizeof(pith_param), "round", PITH_PARAM_CHOICE, 0, 0, "stochastic", "nearest|stochastic",
     "stochastic is unbiased, with a larger error"},
    PITH_PARAM_BUCKET("512"),
    {0},
};

static pith_status nuq_check(const pith_value *a) { return pith__check_bucket("nuq", a[NUQ_BUCKET].i); }

static uint32_t nuq_caps(const pith_value *a) {
  uint32_t caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return a[NUQ_ROUND].i == PITH_ROUND_STOCHASTIC ? caps | PITH_CAP_UNBIASED | PITH_CAP_SEEDED : caps;
}

static size_t nuq_block(const pith_value *a) { return (size_t)a[NUQ_BUCKET].i; }

static size_t nuq_bound(const pith_value *a, size_t n) {
  return PITH_HEAD_ONE + pith__packed_size(n, (size_t)a[NUQ_BITS].i);
}

static size_t nuq_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                         const pith_ctx *ctx) {
  uint32_t most = pith__kernels()->absmax(x, n);
  float norm = pith__norm_by(x, n, most, a[NUQ_NORM].i);
  if (pith__bits_of(norm) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, nuq_bound(a, n));
  }
  norm = pith__usable_scale(norm);
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
  pith__put_f32(out, norm);
  pith__kernels()->power_pack[a[NUQ_BITS].i](x, n, norm > 0 ? 1.0f / norm : 0.0f,
                                             a[NUQ_ROUND].i == PITH_ROUND_STOCHASTIC, key, (uint32_t)index,
                                             out + PITH_HEAD_ONE);
  return nuq_bound(a, n);
}

static void nuq_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                       const pith_ctx *ctx) {
  (void)index, (void)ctx;
  pith__kernels()->power_unpack[a[NUQ_BITS].i](in + PITH_HEAD_ONE, n, pith__get_f32(in), mode, dst);
}

static void nuq_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->levels = 1; /* values are scaled to −1…1 */
  task->bits = (uint8_t)a[NUQ_BITS].i;
  task->choice = (uint8_t)a[NUQ_ROUND].i;
  task->norm = (uint8_t)a[NUQ_NORM].i;
}

static const pith_codec_traits nuq_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = nuq_gpu};

const pith_codec_ops pith__codec_nuq = {
    .size = sizeof(pith_codec_ops),
    .name = "nuq",
    .family = "quantization",
    .summary = "sign and a power of two between 0 and the norm of the bucket",
    .bits = "bits + 32/bucket",
    .origin = "Ramezani-Kebrya 2021 (NUQSGD); CGX for Horovod",
    .detail = "for each bucket its norm, then a sign and the number of a power of two for each value",
    .use = "where a few values of a bucket are far larger than the others; q has the smaller error for most gradients",
    .wire_id = PITH_WIRE_NUQ,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_UNBIASED | PITH_CAP_SEEDED,
    .params = nuq_params,
    .check = nuq_check,
    .caps_of = nuq_caps,
    .block = nuq_block,
    .block_bound = nuq_bound,
    .encode_block = nuq_encode,
    .decode_block = nuq_decode,
    .traits = &nuq_traits,
};

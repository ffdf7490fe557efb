/* SPDX-License-Identifier: Apache-2.0 */
/*
 * natural: every value becomes the power of two below or above it, drawn without bias. A byte holds the sign and how
 * far the exponent lies below the bucket's top; values more than 2^126 below the top become zero.
 */
#include "codec/block.h"

enum { NATURAL_BUCKET }; /* head of a block: the top, a power of two */

static const pith_param natural_params[] = {PITH_PARAM_BUCKET("512"), {0}};

static pith_status natural_check(const pith_value *a) { return pith__check_bucket("natural", a[NATURAL_BUCKET].i); }

static size_t natural_block(const pith_value *a) { return (size_t)a[NATURAL_BUCKET].i; }

static size_t natural_bound(const pith_value *a, size_t n) {
  (void)a;
  return PITH_HEAD_ONE + n;
}

static size_t natural_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                             const pith_ctx *ctx) {
  uint32_t most = pith__kernels()->absmax(x, n);
  if (most >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, natural_bound(a, n));
  }
  /* One above the largest exponent, which rounding may reach; 2^127 is the greatest there is. */
  int32_t top = (int32_t)(most >> 23) + 1;
  top = top > 254 ? 254 : top;
  pith__put_f32(out, pith__float_of((uint32_t)top << 23));
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
  pith__kernels()->natural_pack(x, n, top, key, (uint32_t)index, out + PITH_HEAD_ONE);
  return natural_bound(a, n);
}

static size_t natural_check_block(const pith_value *a, pith_bytes in, size_t n) {
  size_t size = natural_bound(a, n);
  if (in.size < size) {
    return 0;
  }
  uint32_t top = pith__bits_of(pith__get_f32(in.data));
  int power_of_two = (top & 0x807fffffu) == 0 && top != 0 && top < PITH_INF_BITS;
  return power_of_two || top == pith__bits_of(pith__nan()) ? size : 0;
}

static void natural_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                           const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  float top = pith__get_f32(in);
  if (top != top) {
    pith_dequantizer nothing = {.base = top};
    pith__kernels()->dequantize[8](in + PITH_HEAD_ONE, n, &nothing, mode, dst);
    return;
  }
  pith__kernels()->natural_unpack(in + PITH_HEAD_ONE, n, (int32_t)(pith__bits_of(top) >> 23), mode, dst);
}

static const pith_codec_traits natural_traits = {.gpu = PITH_GPU_BLOCKS};

const pith_codec_ops pith__codec_natural = {
    .size = sizeof(pith_codec_ops),
    .name = "natural",
    .family = "quantization",
    .summary = "a power of two, drawn without bias: sign and 7-bit exponent",
    .bits = "8 + 32/bucket",
    .origin = "Horváth 2019",
    .detail = "for each bucket a power of two, then a sign and an exponent of 7 bits for each value",
    .use = "where an unbiased mean is needed and values differ by many orders of magnitude",
    .wire_id = PITH_WIRE_NATURAL,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_UNBIASED | PITH_CAP_SEEDED,
    .survey = 1,
    .params = natural_params,
    .check = natural_check,
    .block = natural_block,
    .block_bound = natural_bound,
    .encode_block = natural_encode,
    .check_block = natural_check_block,
    .decode_block = natural_decode,
    .traits = &natural_traits,
};

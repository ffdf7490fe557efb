/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tree8: x / max|x| to the nearest value of an 8-bit type whose exponent is unary. Of the seven bits behind the sign,
 * z leading zeros scale by 10^-z, a one ends them, and the other 6 − z bits cut (0.1, 1] evenly; all zeros are 0.
 * Number m = 2^(6-z) + f stands for 10^-z · (0.1 + 0.9·(f + 1)/2^(6-z)): increasing in m, 1 for m = 127.
 */
#include "codec/block.h"

enum { TREE8_BUCKET }; /* head of a block: max |x| */

static const pith_param tree8_params[] = {PITH_PARAM_BUCKET("512"), {0}};

static pith_status tree8_check(const pith_value *a) { return pith__check_bucket("tree8", a[TREE8_BUCKET].i); }

static size_t tree8_block(const pith_value *a) { return (size_t)a[TREE8_BUCKET].i; }

static size_t tree8_bound(const pith_value *a, size_t n) {
  (void)a;
  return PITH_HEAD_ONE + n;
}

static size_t tree8_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                           const pith_ctx *ctx) {
  (void)index, (void)ctx;
  uint32_t most = pith__kernels()->absmax(x, n);
  if (most >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, tree8_bound(a, n));
  }
  float scale = pith__usable_scale(pith__float_of(most));
  pith__put_f32(out, scale);
  pith__kernels()->tree8_pack(x, n, scale > 0 ? 1.0f / scale : 0.0f, out + PITH_HEAD_ONE);
  return tree8_bound(a, n);
}

static void tree8_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                         const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  pith__kernels()->tree8_unpack(in + PITH_HEAD_ONE, n, pith__get_f32(in), mode, dst);
}

static const pith_codec_traits tree8_traits = {.gpu = PITH_GPU_BLOCKS};

const pith_codec_ops pith__codec_tree8 = {
    .size = sizeof(pith_codec_ops),
    .name = "tree8",
    .family = "quantization",
    .summary = "x / max|x| to the nearest of 256 values of the dynamic-tree 8-bit type",
    .bits = "8 + 32/bucket",
    .origin = "Dettmers 2015",
    .detail = "for each bucket its largest magnitude, then a byte for each value",
    .use = "8 bits for values of very different sizes, behind ef (u8)",
    .wire_id = PITH_WIRE_TREE8,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = tree8_params,
    .check = tree8_check,
    .block = tree8_block,
    .block_bound = tree8_bound,
    .encode_block = tree8_encode,
    .decode_block = tree8_decode,
    .traits = &tree8_traits,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8: the 8-bit floats of the Open Compute Project (OCP 8-bit Floating Point 1.0), E4M3 or E5M2, as a codec. A bucket
 * has a scale in f32, by which its largest |x| becomes the largest value of the type.
 *
 * Block: the scale, max |x| / the type's largest value; a byte for each value.
 */
#include "codec/block.h"

enum { FP8_TYPE, FP8_BUCKET };

static const pith_param fp8_params[] = {
    {sizeof(pith_param), "type", PITH_PARAM_CHOICE, 0, 0, "e4m3", "e4m3|e5m2",
     "bits of exponent and mantissa of a value"},
    PITH_PARAM_BUCKET("512"),
    {0},
};

static const float largest[PITH_FP8_TYPES] = {PITH_FP8_LARGEST_E4M3, PITH_FP8_LARGEST_E5M2};

static pith_status fp8_check(const pith_value *a) { return pith__check_bucket("fp8", a[FP8_BUCKET].i); }

static size_t fp8_block(const pith_value *a) { return (size_t)a[FP8_BUCKET].i; }

static size_t fp8_bound(const pith_value *a, size_t n) {
  (void)a;
  return PITH_HEAD_ONE + n;
}

static size_t fp8_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                         const pith_ctx *ctx) {
  (void)index, (void)ctx;
  uint32_t most = pith__kernels()->absmax(x, n);
  if (most >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, fp8_bound(a, n));
  }
  float scale = pith__usable_scale(pith__float_of(most) / largest[a[FP8_TYPE].i]);
  pith__put_f32(out, scale);
  pith__kernels()->fp8_pack[a[FP8_TYPE].i](x, n, scale > 0 ? 1.0f / scale : 0.0f, out + PITH_HEAD_ONE);
  return fp8_bound(a, n);
}

static void fp8_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                       const pith_ctx *ctx) {
  (void)index, (void)ctx;
  pith__kernels()->fp8_unpack[a[FP8_TYPE].i](in + PITH_HEAD_ONE, n, pith__get_f32(in), mode, dst);
}

static void fp8_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->choice = (uint8_t)a[FP8_TYPE].i;
}

static const pith_codec_traits fp8_traits = {
    .beside = pith__small_floats, .gpu = PITH_GPU_BLOCKS, .gpu_block = fp8_gpu};

const pith_codec_ops pith__codec_fp8 = {
    .size = sizeof(pith_codec_ops),
    .name = "fp8",
    .family = "quantization",
    .summary = "floats of 8 bits with a scale for each bucket",
    .bits = "8 + 32/bucket",
    .origin = "OCP 8-bit Floating Point 1.0 (2023)",
    .detail = "for each bucket a scale (32 bits), then a byte for each value",
    .use = "8 bits where values of a bucket differ by orders of magnitude; q:8 where they do not",
    .wire_id = PITH_WIRE_FP8,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = fp8_params,
    .check = fp8_check,
    .block = fp8_block,
    .block_bound = fp8_bound,
    .encode_block = fp8_encode,
    .decode_block = fp8_decode,
    .traits = &fp8_traits,
};

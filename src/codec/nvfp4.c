/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvfp4: the 4-bit format of NVIDIA's Blackwell GPUs, as a codec. Rows of 16 values share a scale in E4M3, and rows one
 * more scale, an f32. There it belongs to a tensor, here to a block, so that tensors can be cut.
 *
 * Block of 512 values: the f32 scale, max |x| / 2688; the scales of its rows, a byte each; the values as E2M1, packed.
 */
#include "codec/block.h"

static const pith_param nvfp4_params[] = {{0}};

static size_t scales_size(size_t n) { return (n + PITH_NV_ROW - 1) / PITH_NV_ROW; }

static size_t nvfp4_block(const pith_value *a) {
  (void)a;
  return PITH_MINI_BLOCK;
}

static size_t nvfp4_bound(const pith_value *a, size_t n) {
  (void)a;
  return PITH_HEAD_ONE + scales_size(n) + pith__packed_size(n, 4);
}

static size_t nvfp4_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                           const pith_ctx *ctx) {
  (void)index, (void)ctx;
  uint32_t most = pith__kernels()->absmax(x, n);
  if (most >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, nvfp4_bound(a, n));
  }
  float scale = pith__usable_scale(pith__float_of(most) / PITH_NV_LARGEST);
  uint8_t *scales = out + PITH_HEAD_ONE;
  pith__put_f32(out, scale);
  pith__kernels()->nv_pack(x, n, scale, scale > 0 ? 1.0f / (6.0f * scale) : 0.0f, scales, scales + scales_size(n));
  return nvfp4_bound(a, n);
}

static void nvfp4_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                         const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  const uint8_t *scales = in + PITH_HEAD_ONE;
  pith__kernels()->nv_unpack(scales, scales + scales_size(n), n, pith__get_f32(in), mode, dst);
}

static void nvfp4_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)a, (void)ctx;
  task->bits = 4;
}

static const pith_codec_traits nvfp4_traits = {
    .beside = pith__small_floats, .gpu = PITH_GPU_BLOCKS, .gpu_block = nvfp4_gpu};

const pith_codec_ops pith__codec_nvfp4 = {
    .size = sizeof(pith_codec_ops),
    .name = "nvfp4",
    .family = "quantization",
    .summary = "floats of 4 bits; 16 values share a scale of 8 bits, 512 one of 32",
    .bits = "4 + 8/16 + 32/512",
    .origin = "NVIDIA Blackwell (2024)",
    .detail = "for each 512 values a scale, for each 16 of them a byte that scales it, then the values, packed",
    .use = "where hardware has this format, or values of a bucket differ by orders of magnitude",
    .wire_id = PITH_WIRE_NVFP4,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = nvfp4_params,
    .block = nvfp4_block,
    .block_bound = nvfp4_bound,
    .encode_block = nvfp4_encode,
    .decode_block = nvfp4_decode,
    .traits = &nvfp4_traits,
};

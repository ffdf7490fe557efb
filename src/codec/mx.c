/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mx: the microscaling formats of the Open Compute Project (OCP MX 1.0), as a codec. Rows of 32 values share a scale, a
 * power of two, as E8M0; the values are small floats: MXFP8 (E4M3 or E5M2), MXFP6 (E2M3 or E3M2), MXFP4 (E2M1).
 *
 * Block of 512 values: the scales of its rows, a byte each, then the codes of the values, packed. A row that is not all
 * finite has the scale NaN and zeros for codes.
 */
#include "codec/block.h"

enum { MX_TYPE };

static const pith_param mx_params[] = {
    {sizeof(pith_param), "type", PITH_PARAM_CHOICE, 0, 0, "e4m3", "e4m3|e5m2|e2m3|e3m2|e2m1",
     "bits of exponent and mantissa of a value"},
    {0},
};

static size_t bits_of_type(const pith_value *a) {
  static const uint8_t bits[PITH_MINI_TYPES] = {8, 8, 6, 6, 4};
  return bits[a[MX_TYPE].i];
}

static size_t scales_size(size_t n) { return (n + PITH_MX_ROW - 1) / PITH_MX_ROW; }

static size_t mx_block(const pith_value *a) {
  (void)a;
  return PITH_MINI_BLOCK;
}

static size_t mx_bound(const pith_value *a, size_t n) { return scales_size(n) + pith__packed_size(n, bits_of_type(a)); }

static size_t mx_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                        const pith_ctx *ctx) {
  (void)index, (void)ctx;
  pith__kernels()->mx_pack[a[MX_TYPE].i](x, n, out, out + scales_size(n));
  return mx_bound(a, n);
}

static void mx_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                      const pith_ctx *ctx) {
  (void)index, (void)ctx;
  pith__kernels()->mx_unpack[a[MX_TYPE].i](in, in + scales_size(n), n, mode, dst);
}

static void mx_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->choice = (uint8_t)a[MX_TYPE].i;
  task->bits = (uint8_t)bits_of_type(a);
}

static const pith_codec_traits mx_traits = {.beside = pith__small_floats, .gpu = PITH_GPU_BLOCKS, .gpu_block = mx_gpu};

const pith_codec_ops pith__codec_mx = {
    .size = sizeof(pith_codec_ops),
    .name = "mx",
    .family = "quantization",
    .summary = "small floats of 8, 6 or 4 bits; 32 values share a power of two",
    .bits = "bits + 8/32",
    .origin = "OCP Microscaling Formats 1.0 (2023)",
    .detail = "for each 32 values a byte, the exponent of their scale; then the values, packed",
    .use = "where hardware has these formats, or values of a bucket differ by orders of magnitude; mxfp8, mxfp6, mxfp4",
    .wire_id = PITH_WIRE_MX,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = mx_params,
    .block = mx_block,
    .block_bound = mx_bound,
    .encode_block = mx_encode,
    .decode_block = mx_decode,
    .traits = &mx_traits,
};

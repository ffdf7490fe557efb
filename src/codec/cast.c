/* SPDX-License-Identifier: Apache-2.0 */
/* none, fp16, bf16: the values themselves, in 32 or 16 bits. The yardstick for everything else. */
#include "codec/block.h"

#define CAST_BLOCK 4096
#define CAST_GPU_BLOCK 512

static const pith_param no_params[] = {{0}};

static size_t cast_block(const pith_value *a) {
  (void)a;
  return CAST_BLOCK;
}

static size_t bound_32(const pith_value *a, size_t n) {
  (void)a;
  return 4 * n;
}

static size_t bound_16(const pith_value *a, size_t n) {
  (void)a;
  return 2 * n;
}

static size_t encode_none(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                          const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  memcpy(out, x, 4 * n);
  return 4 * n;
}

static void decode_none(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                        const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  pith__get_values(in, n, dst, mode);
}

/* Payloads have any alignment; halves are moved through the kernels a piece at a time. */
#define PIECE 256

typedef void (*narrow_fn)(const float *src, uint16_t *dst, size_t n);
typedef void (*widen_fn)(const uint16_t *src, float *dst, size_t n);

static size_t encode_16(narrow_fn narrow, const float *x, size_t n, uint8_t *out) {
  uint16_t piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = pith__least(PIECE, n - i);
    narrow(x + i, piece, m);
    memcpy(out + 2 * i, piece, 2 * m);
  }
  return 2 * n;
}

static void decode_16(widen_fn widen, const uint8_t *in, size_t n, float *dst, pith_mode mode) {
  uint16_t piece[PIECE];
  float wide[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = pith__least(PIECE, n - i);
    memcpy(piece, in + 2 * i, 2 * m);
    if (mode == PITH_SET) {
      widen(piece, dst + i, m);
    } else {
      widen(piece, wide, m);
      pith__kernels()->add(wide, dst + i, m);
    }
  }
}

#define DEFINE_CAST(type)                                                                                  \
  static size_t encode_##type(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index, \
                              const pith_ctx *ctx) {                                                       \
    (void)a, (void)index, (void)ctx;                                                                       \
    return encode_16(pith__kernels()->f32_to_##type, x, n, out);                                           \
  }                                                                                                        \
  static void decode_##type(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode,  \
                            uint64_t index, const pith_ctx *ctx) {                                         \
    (void)a, (void)index, (void)ctx;                                                                       \
    decode_16(pith__kernels()->type##_to_f32, in, n, dst, mode);                                           \
  }
DEFINE_CAST(f16)
DEFINE_CAST(bf16)

/* There are no scales: any cut will do, and this one gives many threads work. */
static void cast_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  (void)a;
  task->bucket = CAST_GPU_BLOCK;
}

static const pith_codec_traits none_traits = {.exact = 1, .gpu = PITH_GPU_BLOCKS, .gpu_block = cast_gpu};
static const pith_codec_traits half_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = cast_gpu};

const pith_codec_ops pith__codec_none = {
    .size = sizeof(pith_codec_ops),
    .name = "none",
    .family = "cast",
    .summary = "the values as f32",
    .bits = "32",
    .detail = "every value as f32",
    .use = "the reference for all others, and for layers that are too small or too delicate to compress",
    .wire_id = PITH_WIRE_NONE,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_LINEAR | PITH_CAP_UNBIASED,
    .params = no_params,
    .block = cast_block,
    .block_bound = bound_32,
    .encode_block = encode_none,
    .decode_block = decode_none,
    .traits = &none_traits,
};

const pith_codec_ops pith__codec_fp16 = {
    .size = sizeof(pith_codec_ops),
    .name = "fp16",
    .family = "cast",
    .summary = "IEEE half precision; beyond ±65504 it is Inf",
    .bits = "16",
    .detail = "every value in half precision",
    .use = "half the bytes with hardly any error, if no gradient exceeds 65504",
    .wire_id = PITH_WIRE_FP16,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_LINEAR,
    .params = no_params,
    .block = cast_block,
    .block_bound = bound_16,
    .encode_block = encode_f16,
    .decode_block = decode_f16,
    .traits = &half_traits,
};

const pith_codec_ops pith__codec_bf16 = {
    .size = sizeof(pith_codec_ops),
    .name = "bf16",
    .family = "cast",
    .summary = "bfloat16: the range of f32, 8 bits of precision",
    .bits = "16",
    .detail = "every value as bfloat16",
    .use = "half the bytes, with nothing to tune; compare other methods with it",
    .wire_id = PITH_WIRE_BF16,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_LINEAR,
    .params = no_params,
    .block = cast_block,
    .block_bound = bound_16,
    .encode_block = encode_bf16,
    .decode_block = decode_bf16,
    .traits = &half_traits,
};

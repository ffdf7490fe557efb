/* SPDX-License-Identifier: Apache-2.0 */
/* terngrad: −1, 0 or 1 times a scale, drawn without bias from the clipped value; five trits in a byte. */
#include "codec/block.h"

enum { TERN_CLIP, TERN_BUCKET }; /* head of a block: the scale */

static const pith_param tern_params[] = {
    {sizeof(pith_param), "clip", PITH_PARAM_REAL, 0, 100, "2.5", NULL,
     "clip at this many standard deviations (about zero); 0: never"},
    PITH_PARAM_BUCKET("1280"),
    {0},
};

static pith_status tern_check(const pith_value *a) { return pith__check_bucket("terngrad", a[TERN_BUCKET].i); }

static uint32_t tern_caps(const pith_value *a) {
  uint32_t caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_SEEDED;
  return a[TERN_CLIP].f > 0 ? caps : caps | PITH_CAP_UNBIASED;
}

static size_t tern_block(const pith_value *a) { return (size_t)a[TERN_BUCKET].i; }

/* Groups of 80 values take 16 bytes, the last one ⌈m/5⌉: ⌈n/5⌉ in all, since 80 is a multiple of 5. */
static size_t tern_bound(const pith_value *a, size_t n) {
  (void)a;
  return PITH_HEAD_ONE + (n + PITH_TRITS - 1) / PITH_TRITS;
}

static size_t tern_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                          const pith_ctx *ctx) {
  uint32_t most = pith__kernels()->absmax(x, n);
  if (most >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, tern_bound(a, n));
  }
  float scale = pith__float_of(most);
  if (a[TERN_CLIP].f > 0) {
    float clip = (float)(a[TERN_CLIP].f * pith__norm(x, n) / sqrt((double)n));
    scale = clip < scale ? clip : scale;
  }
  scale = pith__usable_scale(scale);
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
  pith__put_f32(out, scale);
  pith__kernels()->tern_pack(x, n, scale, scale > 0 ? 1.0f / scale : 0.0f, key, (uint32_t)index, out + PITH_HEAD_ONE);
  return tern_bound(a, n);
}

static size_t tern_check_block(const pith_value *a, pith_bytes in, size_t n) {
  size_t size = tern_bound(a, n);
  return size <= in.size &&
                 pith__kernels()->byte_max((const uint8_t *)in.data + PITH_HEAD_ONE, size - PITH_HEAD_ONE) <= 242
             ? size
             : 0;
}

static void tern_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                        const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  pith__kernels()->tern_unpack(in + PITH_HEAD_ONE, n, pith__get_f32(in), mode, dst);
}

static void tern_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->clip = a[TERN_CLIP].f;
}

static const pith_codec_traits tern_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = tern_gpu};

const pith_codec_ops pith__codec_terngrad = {
    .size = sizeof(pith_codec_ops),
    .name = "terngrad",
    .family = "quantization",
    .summary = "−1, 0 or 1 times the clipped maximum, drawn without bias but for the clipping",
    .bits = "1.6 + 32/bucket",
    .origin = "Wen 2017",
    .detail = "for each bucket its scale, then −1, 0 or 1 for each value, five of them in a byte",
    .use =
        "few bits without a memory; its error is large in one step and averages out over ranks and steps, so "
        "it takes no ef",
    .wire_id = PITH_WIRE_TERNGRAD,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_SEEDED,
    .survey = 1,
    .params = tern_params,
    .check = tern_check,
    .caps_of = tern_caps,
    .block = tern_block,
    .block_bound = tern_bound,
    .encode_block = tern_encode,
    .check_block = tern_check_block,
    .decode_block = tern_decode,
    .traits = &tern_traits,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lloyd: the best 2^bits levels for a normal distribution, scaled so that the decoded vector is unbiased when a
 * uniformly random rotation went before (EDEN; hadamard comes near it where many values count): y = Rx, Q the levels of
 * √n·y/‖y‖, decoded S·Q with S = ‖y‖²/⟨Q, y⟩.
 */
#include "codec/block.h"

enum { LLOYD_BITS, LLOYD_BUCKET }; /* head of a block: S */
#define PIECE 256

static const pith_param lloyd_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 1, 4, "2", NULL, "bits of a level"},
    PITH_PARAM_BUCKET("4096"),
    {0},
};

/* Lloyd–Max levels of the standard normal distribution: the positive half; cuts are the middles between levels. */
static const float positive[5][8] = {
    {0}, {PITH_LLOYD_1}, {PITH_LLOYD_2}, {PITH_LLOYD_3}, {PITH_LLOYD_4},
};

static void levels_of(int bits, float scale, float *levels) {
  int half = 1 << (bits - 1);
  for (int i = 0; i < half; i++) {
    levels[half + i] = scale * positive[bits][i];
    levels[half - 1 - i] = -levels[half + i];
  }
}

static pith_status lloyd_check(const pith_value *a) { return pith__check_bucket("lloyd", a[LLOYD_BUCKET].i); }

static size_t lloyd_block(const pith_value *a) { return (size_t)a[LLOYD_BUCKET].i; }

static size_t lloyd_bound(const pith_value *a, size_t n) {
  return PITH_HEAD_ONE + pith__packed_size(n, (size_t)a[LLOYD_BITS].i);
}

/* ⟨Q, y⟩ from the codes just written. */
static float inner_product(int bits, const uint8_t *codes, const float *y, size_t n, const float *levels) {
  float decoded[PIECE], sum = 0.0f;
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = pith__least(PIECE, n - i);
    pith__kernels()->lookup[bits](codes + i / 8 * (size_t)bits, m, levels, PITH_SET, decoded);
    pith__kernels()->dots(y + i, m, decoded, 0, 1, &sum);
  }
  return sum;
}

static size_t lloyd_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                           const pith_ctx *ctx) {
  (void)index, (void)ctx;
  int bits = (int)a[LLOYD_BITS].i, count = 1 << bits;
  uint32_t most = pith__kernels()->absmax(x, n);
  float norm = most >= PITH_INF_BITS ? pith__float_of(most) : (float)pith__norm(x, n);
  if (pith__bits_of(norm) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, lloyd_bound(a, n));
  }
  float levels[16], cuts[16];
  levels_of(bits, 1.0f, levels);
  for (int i = 0; i + 1 < count; i++) {
    cuts[i] = 0.5f * (levels[i] + levels[i + 1]);
  }
  float inverse = norm < PITH_SCALE_MIN ? 0.0f : sqrtf((float)n) / norm;
  pith__kernels()->classify[bits](x, n, inverse, cuts, out + PITH_HEAD_ONE);
  float shrink = norm > 1.0f ? 0x1p-8f : 1.0f; /* ⟨Q, y⟩ is up to √n·‖y‖, which may be too large for f32 */
  levels_of(bits, shrink, levels);
  float product = inner_product(bits, out + PITH_HEAD_ONE, x, n, levels);
  pith__put_f32(out, inverse > 0 && product > 0 ? norm * (norm * shrink / product) : 0.0f);
  return lloyd_bound(a, n);
}

static void lloyd_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                         const pith_ctx *ctx) {
  (void)index, (void)ctx;
  float levels[16];
  levels_of((int)a[LLOYD_BITS].i, pith__get_f32(in), levels);
  pith__kernels()->lookup[a[LLOYD_BITS].i](in + PITH_HEAD_ONE, n, levels, mode, dst);
}

static void lloyd_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->bits = (uint8_t)a[LLOYD_BITS].i;
}

static const pith_codec_traits lloyd_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = lloyd_gpu};

const pith_codec_ops pith__codec_lloyd = {
    .size = sizeof(pith_codec_ops),
    .name = "lloyd",
    .family = "quantization",
    .summary = "Lloyd–Max levels of a normal distribution, scaled so that ⟨x, x̂⟩ = ‖x‖²; meant to follow hadamard",
    .bits = "bits + 32/bucket",
    .origin = "Vargaftik 2022",
    .detail = "for each bucket a scale, then a level of `bits` bits for each value",
    .use = "behind hadamard, which makes values normally distributed (eden)",
    .wire_id = PITH_WIRE_LLOYD,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = lloyd_params,
    .check = lloyd_check,
    .block = lloyd_block,
    .block_bound = lloyd_bound,
    .encode_block = lloyd_encode,
    .decode_block = lloyd_decode,
    .traits = &lloyd_traits,
};

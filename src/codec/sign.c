/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sign: one bit for each value, ±scale, the scale being 1 (then ranks vote), the mean |x|, or that of DRIVE.
 *
 * A vote has a third answer, none, for values that are exactly zero: else the rows of an embedding that no rank has
 * touched would all move by a step. A bit cannot say it for a single value, but one more bit for each group of 32
 * values can: a group of zeros decodes to zeros. Zeros in other groups vote plus and minus in turn, by their place,
 * rank and step, so that they cancel between two ranks or two steps.
 *
 * Block: the scale as f32; of votes, a bit for each group, filled up to whole words; the signs.
 */
#include "codec/block.h"

enum { SIGN_SCALE, SIGN_BUCKET }; /* head of a block: the scale */

static const pith_param sign_params[] = {
    {sizeof(pith_param), "scale", PITH_PARAM_CHOICE, 0, 0, "one", "one|mean|unbiased",
     "1 and a majority vote; mean |x|; Σx²/Σ|x| (after a rotation)"},
    PITH_PARAM_BUCKET("4096"),
    {0},
};

static pith_status sign_check(const pith_value *a) { return pith__check_bucket("sign", a[SIGN_BUCKET].i); }

static uint32_t sign_caps(const pith_value *a) {
  uint32_t caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return a[SIGN_SCALE].i == PITH_SCALE_ONE ? caps | PITH_CAP_VOTE : caps;
}

static size_t sign_block(const pith_value *a) { return (size_t)a[SIGN_BUCKET].i; }

static int is_vote(const pith_value *a) { return a[SIGN_SCALE].i == PITH_SCALE_ONE; }

/* Bytes of the bits that tell groups of zeros. */
static size_t zeros_size(const pith_value *a, size_t n) { return is_vote(a) ? PITH_VOTE_ZEROS_SIZE(n) : 0; }

static size_t sign_bound(const pith_value *a, size_t n) {
  return PITH_HEAD_ONE + zeros_size(a, n) + pith__packed_size(n, 1);
}

static float sign_scale(int64_t kind, const float *x, size_t n) {
  double sum_abs = pith__sum_abs(x, n);
  if (kind == PITH_SCALE_MEAN) {
    return (float)(sum_abs / (double)n);
  }
  double norm = pith__norm(x, n);
  return sum_abs > 0 ? (float)(norm * (norm / sum_abs)) : 0.0f;
}

/* Whether a zero at this place votes minus; the next one then votes plus. */
static int is_odd(const pith_ctx *ctx, uint64_t index) { return (int)((index + ctx->rank + ctx->step) & 1); }

/* Values are looked at once: whether all are finite shows when they are packed. */
static size_t encode_votes(const pith_value *a, const float *x, size_t n, int odd, uint8_t *out) {
  uint8_t *zeros = out + PITH_HEAD_ONE, *signs = zeros + zeros_size(a, n);
  pith__put_f32(out, 1.0f);
  memset(zeros, 0, zeros_size(a, n));
  return pith__kernels()->vote_pack(x, n, odd, zeros, signs) < PITH_INF_BITS
             ? sign_bound(a, n)
             : pith__put_not_finite(out, 1, sign_bound(a, n));
}

static size_t sign_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                          const pith_ctx *ctx) {
  if (is_vote(a)) {
    return encode_votes(a, x, n, is_odd(ctx, index), out);
  }
  if (pith__kernels()->absmax(x, n) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, sign_bound(a, n));
  }
  float scale = sign_scale(a[SIGN_SCALE].i, x, n);
  if (pith__bits_of(scale) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 1, sign_bound(a, n));
  }
  pith__put_f32(out, scale);
  pith__kernels()->sign_pack(x, n, out + PITH_HEAD_ONE);
  return sign_bound(a, n);
}

/* Votes have the scale 1 or NaN and no other. */
static size_t sign_check_block(const pith_value *a, pith_bytes in, size_t n) {
  size_t size = sign_bound(a, n);
  if (in.size < size) {
    return 0;
  }
  float scale = pith__get_f32(in.data);
  return !is_vote(a) || scale == 1.0f || scale != scale ? size : 0;
}

static void sign_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                        const pith_ctx *ctx) {
  (void)index, (void)ctx;
  float scale = pith__get_f32(in);
  in += PITH_HEAD_ONE;
  if (is_vote(a)) {
    pith__kernels()->vote_unpack(in, in + zeros_size(a, n), n, scale, mode, dst);
  } else {
    pith__kernels()->sign_unpack(in, n, scale, -scale, mode, dst);
  }
}

static void sign_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  task->choice = (uint8_t)a[SIGN_SCALE].i;
  task->levels = is_odd(ctx, task->index);
}

static const pith_codec_traits sign_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_block = sign_gpu};

const pith_codec_ops pith__codec_sign = {
    .size = sizeof(pith_codec_ops),
    .name = "sign",
    .family = "quantization",
    .summary = "the sign, times 1 (a vote), the mean |x| or Σx²/Σ|x|",
    .bits = "1 + 32/bucket, votes 1/32 more",
    .origin = "Bernstein 2018, Karimireddy 2019, Vargaftik 2021",
    .detail =
        "for each bucket a scale, of votes a bit for each 32 values that says whether all are zero, then one bit for "
        "each "
        "value",
    .use =
        "one bit a value; as a vote (signsgd) it needs the step size of a sign method, with scale=mean it "
        "needs ef",
    .wire_id = PITH_WIRE_SIGN,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = sign_params,
    .check = sign_check,
    .caps_of = sign_caps,
    .block = sign_block,
    .block_bound = sign_bound,
    .encode_block = sign_encode,
    .check_block = sign_check_block,
    .decode_block = sign_decode,
    .traits = &sign_traits,
};

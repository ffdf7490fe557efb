/*
 * terngrad with its usual block of 1280 values, full ones of f32 at aligned payloads: 80 values of a lane stay in registers, so
 * that memory is read once. A kernel of its own, since so many registers would slow the others down.
 */
#include "batch.cuh"
#include "encode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define GROUPS (TERN_BUCKET / PITH_TRIT_GROUP)
#define VALUES (TERN_BUCKET / LANES)

/* Sums of squares that are finite tell that all values are; the others are looked at. */
INLINE bool has_not_finite(const float (&v)[VALUES]) {
  bool found = false;
  EACH_STEP(k, VALUES) { found |= !is_finite(v[k]); }
  return found;
}

INLINE float trit_scale(const Task &t, const TensorSource &s, const float (&v)[VALUES], bool *bad) {
  float most = 0.0f, squares = 0.0f;
  EACH_STEP(k, VALUES) {
    most = fmaxf(most, fabsf(v[k]));
    squares += v[k] * v[k];
  }
  float scale = lane_greatest(most), sum = lane_sum(squares);
  *bad = lane_any(!is_finite(squares) && has_not_finite(v));
  if (t.clip > 0) {
    double norm = norm_of(s, sum, *bad ? INF_BITS : bits_of(scale));
    float clip = (float)(t.clip * norm / sqrt((double)TERN_BUCKET));
    scale = clip < scale ? clip : scale;
  }
  return usable_scale(scale);
}

INLINE void encode_tern_block(const Task &t, uint32_t first, uint8_t *out) {
  TensorSource s = {t, first, TERN_BUCKET};
  float v[VALUES];
  const float *p = (const float *)t.values + first + lane16();
  EACH_STEP(k, VALUES) { v[k] = p[LANES * k]; }
  bool bad;
  float scale = trit_scale(t, s, v, &bad), inverse = scale > 0 ? 1.0f / scale : 0.0f;
  uint32_t noise = (t.index + first + lane16()) * RNG_WEYL + t.key0;
  if (lane16() == 0) {
    *(float *)out = bad ? nan_value() : scale;
  }
  out += PITH_HEAD_ONE;
  EACH_STEP(group, GROUPS) {
    float code = 0.0f;
    EACH_STEP(digit, PITH_TRITS) {
      const int k = PITH_TRITS * group + PITH_TRITS - 1 - digit;
      code = __fmaf_rn(3.0f, code, draw_trit(v[k], scale, inverse, noise + LANES * k * RNG_WEYL, t.key1));
    }
    out[LANES * group + lane16()] = bad ? 0 : (uint8_t)bits_of(code + ROUNDER);
  }
}

__global__ void __launch_bounds__(THREADS, 4) encode_tern_kernel(const __grid_constant__ Batch batch) {
  each_item_of_warp(batch, [&](const Task &t, uint32_t pair) {
    uint32_t block = 2 * pair + half_of_warp();
    encode_tern_block(t, block * TERN_BUCKET, t.payload + (size_t)block * t.block_size);
  });
}

cudaError_t launch_encode_tern(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_tern_kernel, THREADS, WARPS, 0, batch, stream);
}

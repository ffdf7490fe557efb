/* SPDX-License-Identifier: Apache-2.0 */
/*
 * terngrad with its usual block of 1280 values, full ones of f32 at aligned payloads: a warp takes one, 40 values of a
 * lane stay in registers, so that memory is read once. The upper half of the warp has the later half of each of the
 * CPU's 16 lanes, and adds to what the lower one has added up.
 */
#include "batch.cuh"
#include "encode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define RESIDENT 5 /* blocks of threads on a multiprocessor; with more, registers spill */
#define HALF (TERN_BUCKET / 2)
#define VALUES (HALF / LANES)
#define GROUPS (VALUES / PITH_TRITS)

/* Sums of squares that are finite tell that all values are; the others are looked at. */
INLINE bool has_not_finite(const float (&v)[VALUES]) {
  bool found = false;
  EACH_STEP(k, VALUES) { found |= !is_finite(v[k]); }
  return found;
}

INLINE float add_squares(float sum, const float (&v)[VALUES]) {
  EACH_STEP(k, VALUES) { sum += v[k] * v[k]; }
  return sum;
}

INLINE float trit_scale(const Task &t, const TensorSource &s, const float (&v)[VALUES], bool *bad) {
  float most = 0.0f, squares = add_squares(0.0f, v);
  EACH_STEP(k, VALUES) { most = fmaxf(most, fabsf(v[k])); }
  float scale = lane_greatest(most);
  scale = fmaxf(scale, __shfl_xor_sync(FULL, scale, LANES));
  *bad = __any_sync(FULL, !is_finite(squares) && has_not_finite(v));
  if (t.clip > 0) {
    float sum = lane_sum(
        add_squares(__shfl_xor_sync(FULL, squares, LANES), v)); /* in the upper half: the lower one's, then its own */
    sum = __shfl_sync(FULL, sum, LANES);
    double norm = norm_of(s, sum, *bad ? INF_BITS : bits_of(scale));
    float clip = (float)(t.clip * norm / sqrt((double)TERN_BUCKET));
    scale = clip < scale ? clip : scale;
  }
  return usable_scale(scale);
}

/* How trits are drawn: what x is multiplied by, and the key of its random number. */
struct Draw {
  float scale, inverse;
  uint32_t noise, key1;
};

INLINE float next_trit(const Draw &d, float x, int k, float code) {
  return __fmaf_rn(3.0f, code, draw_trit(x, d.scale, d.inverse, d.noise + LANES * k * RNG_WEYL, d.key1));
}

/* Whether a trit is [u < t] + [u < t + 1], with t = x / scale, for all x, also for those beyond the scale. u need not
 * be brought to 0…1 then: t is made larger instead, which must neither overflow nor save products that would have
 * vanished. */
INLINE bool draws_fast(const Draw &d) { return d.scale * d.inverse >= 1.0f && d.scale <= 1.0f && d.scale >= 0x1p-90f; }

/* For d.inverse that is 2³² times as large. The random number's upper 24 bits count. */
INLINE float next_trit_fast(const Draw &d, float x, int k, float code) {
  float u = (float)(rng_from(d.noise + LANES * k * RNG_WEYL, d.key1) & 0xffffff00u), t = x * d.inverse;
  code *= 3.0f;
  code += u < t ? 1.0f : 0.0f;
  return code + (u < t + 0x1p32f ? 1.0f : 0.0f);
}

template <bool FAST>
INLINE void put_trits(const Draw &d, const float (&v)[VALUES], bool bad, uint8_t *out) {
  EACH_STEP(group, GROUPS) {
    float code = 0.0f;
    EACH_STEP(digit, PITH_TRITS) {
      const int k = PITH_TRITS * group + PITH_TRITS - 1 - digit;
      code = FAST ? next_trit_fast(d, v[k], k, code) : next_trit(d, v[k], k, code);
    }
    out[LANES * group + lane16()] = bad ? 0 : (uint8_t)bits_of(code + ROUNDER);
  }
}

INLINE void encode_tern_block(const Task &t, uint32_t first, uint8_t *out) {
  TensorSource s = {t, first, TERN_BUCKET};
  float v[VALUES];
  uint32_t own = first + HALF * half_of_warp() + lane16();
  const float *p = (const float *)t.values + own;
  EACH_STEP(k, VALUES) { v[k] = p[LANES * k]; }
  bool bad;
  float scale = trit_scale(t, s, v, &bad);
  Draw d = {scale, scale > 0 ? 1.0f / scale : 0.0f, (t.index + own) * RNG_WEYL + t.key0, t.key1};
  if (threadIdx.x % 32 == 0) {
    *(float *)out = bad ? nan_value() : scale;
  }
  out += PITH_HEAD_ONE + LANES * GROUPS * half_of_warp();
  if (draws_fast(d)) {
    d.inverse *= 0x1p32f;
    put_trits<true>(d, v, bad, out);
  } else {
    put_trits<false>(d, v, bad, out);
  }
}

__global__ void __launch_bounds__(THREADS, RESIDENT) encode_tern_kernel(const __grid_constant__ Batch batch) {
  each_item_of_warp(batch, [&](const Task &t, uint32_t pair) {
    for (uint32_t block = 2 * pair; block < 2 * pair + 2; block++) {
      encode_tern_block(t, block * TERN_BUCKET, t.payload + (size_t)block * t.block_size);
    }
  });
}

cudaError_t launch_encode_tern(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_tern_kernel, THREADS, WARPS, 0, batch, stream);
}

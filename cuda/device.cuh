/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all kernels share: random numbers, conversions and reductions with the very bits of src/kernel and src/base.
 *
 * Half a warp works on a block: lane j of its 16 lanes holds values j, j + 16, j + 32, … which are those that lane j of
 * a CPU vector meets, in the same order. So sums come out bit for bit as on the CPU (docs/format.md, "Sums"), and what
 * differs between a CPU and a GPU is only who waits for whom. Compiled without fused multiply-add.
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <stdint.h>

#include "kernel/formats.h"

#define LANES PITH_SUM_LANES
#define STEPS 32 /* values of a lane in registers */
#define CHUNK (LANES * STEPS)
#define FULL 0xffffffffu
#define INF_BITS 0x7f800000u
#define ROUNDER 12582912.0f /* 1.5 · 2^23: adding it leaves no bits for a fraction */

#define INLINE __device__ __forceinline__

typedef pith_gpu_task Task;

INLINE uint32_t bits_of(float x) { return __float_as_uint(x); }
INLINE float float_of(uint32_t x) { return __uint_as_float(x); }
INLINE uint32_t magnitude(float x) { return bits_of(x) & 0x7fffffffu; }
INLINE bool is_finite(float x) { return magnitude(x) < INF_BITS; }
INLINE float nan_value() { return float_of(PITH_NAN_BITS); }
INLINE unsigned lane16() { return threadIdx.x & 15u; }
INLINE unsigned half_of_warp() { return threadIdx.x >> 4 & 1u; }
INLINE uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- Random numbers: src/base/rng.h ------------------------------------------------------------------------------ */

#define RNG_WEYL 0x9e3779b9u

/* `start` is index · WEYL + k0, which steps by additions. */
INLINE uint32_t rng_from(uint32_t start, uint32_t k1) {
  uint32_t x = start;
  x ^= x >> 13;
  x *= 0x21f0aaadu;
  x ^= (x >> 15) ^ k1;
  x *= 0x735a2d97u;
  return x ^ (x >> 15);
}

INLINE float unit_of(uint32_t random) { return (float)(int32_t)(random >> 8) * 0x1p-24f; }

/* ---- Conversions: src/base/half.h -------------------------------------------------------------------------------- */

INLINE float f16_to_f32(uint16_t h) {
  if ((h & 0x7fffu) > 0x7c00u) { /* NaN keeps its bits, quiet */
    return float_of((uint32_t)(h & 0x8000u) << 16 | 0x7fc00000u | (uint32_t)(h & 0x3ffu) << 13);
  }
  return __half2float(__ushort_as_half(h));
}

INLINE uint16_t f32_to_f16(float x) {
  uint32_t u = bits_of(x), size = u & 0x7fffffffu;
  if (size > INF_BITS) {
    return (uint16_t)((u >> 16 & 0x8000u) | 0x7e00u | (size >> 13 & 0x3ffu));
  }
  return __half_as_ushort(__float2half_rn(x));
}

/* Whether one of them is NaN: one comparison. */
INLINE bool is_unordered(float a, float b) { return !(a < b) && !(a >= b); }

/* Two at a time, the first in the low half: one instruction where neither is NaN. */
INLINE uint32_t f32_to_f16x2(float low, float high) {
  if (is_unordered(low, high)) {
    return f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16;
  }
  __half2 both = __floats2half2_rn(low, high);
  return __half_as_ushort(__low2half(both)) | (uint32_t)__half_as_ushort(__high2half(both)) << 16;
}

INLINE float2 f16x2_to_f32(uint32_t word) {
  __half2 both = __halves2half2(__ushort_as_half((uint16_t)word), __ushort_as_half((uint16_t)(word >> 16)));
  float2 x = __half22float2(both);
  return is_unordered(x.x, x.y) ? make_float2(f16_to_f32((uint16_t)word), f16_to_f32((uint16_t)(word >> 16))) : x;
}

INLINE float bf16_to_f32(uint16_t h) { return float_of((uint32_t)h << 16); }

INLINE uint16_t f32_to_bf16(float x) {
  uint32_t u = bits_of(x);
  if ((u & 0x7fffffffu) > INF_BITS) {
    return (uint16_t)(u >> 16 | 0x40u);
  }
  return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

INLINE float2 bf16x2_to_f32(uint32_t word) { return make_float2(float_of(word << 16), float_of(word & 0xffff0000u)); }

INLINE uint32_t f32_to_bf16x2(float low, float high) {
  if (is_unordered(low, high)) {
    return f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
  }
  __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  return __bfloat16_as_ushort(__low2bfloat16(both)) | (uint32_t)__bfloat16_as_ushort(__high2bfloat16(both)) << 16;
}

INLINE float value_at(const void *values, int dtype, uint32_t i) {
  switch (dtype) {
    case PITH_GPU_F16:
      return f16_to_f32(((const uint16_t *)values)[i]);
    case PITH_GPU_BF16:
      return bf16_to_f32(((const uint16_t *)values)[i]);
    default:
      return ((const float *)values)[i];
  }
}

INLINE void put_value(void *values, int dtype, uint32_t i, float x) {
  switch (dtype) {
    case PITH_GPU_F16:
      ((uint16_t *)values)[i] = f32_to_f16(x);
      break;
    case PITH_GPU_BF16:
      ((uint16_t *)values)[i] = f32_to_bf16(x);
      break;
    default:
      ((float *)values)[i] = x;
  }
}

/* ---- Bytes of any alignment -------------------------------------------------------------------------------------- */

INLINE bool aligned4(const void *p) { return ((uintptr_t)p & 3) == 0; }

INLINE void put_f32(uint8_t *out, float x) {
  uint32_t u = bits_of(x);
  if (aligned4(out)) {
    *(uint32_t *)out = u;
    return;
  }
  for (int i = 0; i < 4; i++) {
    out[i] = (uint8_t)(u >> 8 * i);
  }
}

INLINE uint32_t get_u32(const uint8_t *in) {
  if (aligned4(in)) {
    return *(const uint32_t *)in;
  }
  return in[0] | (uint32_t)in[1] << 8 | (uint32_t)in[2] << 16 | (uint32_t)in[3] << 24;
}

INLINE float get_f32(const uint8_t *in) { return float_of(get_u32(in)); }

/* Half a warp copies bytes from shared memory, which are aligned there. */
INLINE void copy_out(const uint8_t *from, uint8_t *out, uint32_t size) {
  uint32_t words = aligned4(out) ? size / 4 : 0;
  for (uint32_t w = lane16(); w < words; w += LANES) {
    ((uint32_t *)out)[w] = ((const uint32_t *)from)[w];
  }
  for (uint32_t i = 4 * words + lane16(); i < size; i += LANES) {
    out[i] = from[i];
  }
}

/* ---- Reductions over the 16 lanes of a half-warp; all of them get the result ------------------------------------- */

/* Every lane adds the same pairs as the CPU's tree (j and j + 8, then + 4, + 2, + 1), if the other way round. */
INLINE float lane_sum(float x) {
  for (int h = LANES / 2; h; h /= 2) {
    x += __shfl_xor_sync(FULL, x, h);
  }
  return x;
}

INLINE uint32_t lane_max(uint32_t x) {
  for (int h = LANES / 2; h; h /= 2) {
    x = max(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

INLINE float lane_least(float x) {
  for (int h = LANES / 2; h; h /= 2) {
    x = fminf(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

INLINE float lane_greatest(float x) {
  for (int h = LANES / 2; h; h /= 2) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

/* Whether any lane of this half-warp says so. */
INLINE bool lane_any(bool x) { return (__ballot_sync(FULL, x) >> 16 * half_of_warp() & 0xffffu) != 0; }

INLINE double lane_first(double x) { return __shfl_sync(FULL, x, 0, LANES); }

/* ---- Bits of a warp ---------------------------------------------------------------------------------------------- */

/* The sign of x goes to the lowest bit, all others one up. */
INLINE uint32_t push_sign(uint32_t word, float x) { return __funnelshift_l(bits_of(x), word, 1); }

/* Bit j of lane i becomes bit i of lane j. */
INLINE uint32_t transpose_bits(uint32_t word) {
  const uint32_t low[] = {0x55555555u, 0x33333333u, 0x0f0f0f0fu, 0x00ff00ffu, 0x0000ffffu};
#pragma unroll
  for (int step = 4; step >= 0; step--) {
    int h = 1 << step;
    uint32_t other = __shfl_xor_sync(FULL, word, h);
    word = threadIdx.x & h ? (other >> h & low[step]) | (word & ~low[step])
                           : (word & low[step]) | (other & low[step]) << h;
  }
  return word;
}

/* ---- Reductions over a warp; devices before 8.0 have no instruction for them ------------------------------------- */

template <class Join>
INLINE uint32_t warp_join(uint32_t x, Join join) {
  for (int h = 16; h; h /= 2) {
    x = join(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

#if __CUDA_ARCH__ >= 800
INLINE uint32_t warp_sum(uint32_t x) { return __reduce_add_sync(FULL, x); }
INLINE uint32_t warp_most(uint32_t x) { return __reduce_max_sync(FULL, x); }
INLINE uint32_t warp_or(uint32_t x) { return __reduce_or_sync(FULL, x); }
#else
INLINE uint32_t warp_sum(uint32_t x) {
  return warp_join(x, [](uint32_t a, uint32_t b) { return a + b; });
}
INLINE uint32_t warp_most(uint32_t x) {
  return warp_join(x, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
INLINE uint32_t warp_or(uint32_t x) {
  return warp_join(x, [](uint32_t a, uint32_t b) { return a | b; });
}
#endif

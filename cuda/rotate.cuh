/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seeded Hadamard rotation of a tile in shared memory, by all threads of a block: the plain radix-2 butterflies of
 * src/kernel/body_rotate.h, bit for bit, four strides at a time in registers.
 */
#pragma once

#include "batch.cuh"
#include "source.cuh"

/* Words of shared memory for the values of a tile (see tile_place), and for the flags of its blocks. */
#define TILE_PLACES(values) ((values) + (values) / 16 + 16)
#define TILE_FLAGS(values) ((values) / 64 + 1)

INLINE float rotation_scale(uint32_t n) {
  float scale = 1.0f;
  for (; n >= 4; n /= 4) {
    scale *= 0.5f;
  }
  return n == 2 ? scale * 0.70710678f : scale;
}

/* The sign bits of 16 values; `index` is that of any of them. */
INLINE uint32_t sign_bits(const Task &t, uint32_t index) {
  return rng_from(index / LANES * RNG_WEYL + t.rotate0, t.rotate1);
}

INLINE float flip(float x, uint32_t bits, uint32_t i) { return float_of(bits_of(x) ^ (bits >> i & 1) << 31); }

/* Strides 1, 2, … R/2 of an array in registers. */
template <int R>
INLINE void butterfly(float (&x)[R]) {
#pragma unroll
  for (int s = 1; s < R; s *= 2) {
#pragma unroll
    for (int c = 0; c < R; c++) {
      if (!(c & s)) {
        float a = x[c], b = x[c + s];
        x[c] = a + b;
        x[c + s] = a - b;
      }
    }
  }
}

/* Butterflies of strides h, 2h, … R/2·h over n values at `first`. Returns NaN if this thread met what is not finite,
 * else 0. */
template <int R>
INLINE float butterflies(float *tile, uint32_t first, uint32_t n, uint32_t h) {
  float poison = 0.0f;
  for (uint32_t q = threadIdx.x; q < n / R; q += blockDim.x) {
    uint32_t low = q & (h - 1), start = first + (q - low) * R + low; /* h is a power of two */
    float x[R];
#pragma unroll
    for (int c = 0; c < R; c++) {
      x[c] = tile[tile_place(start + c * h)];
    }
    butterfly(x);
#pragma unroll
    for (int c = 0; c < R; c++) {
      tile[tile_place(start + c * h)] = x[c];
      poison = __fmaf_rn(x[c], 0.0f, poison);
    }
  }
  __syncthreads();
  return poison;
}

/* Strides from 16 up, within blocks of `power` values: all blocks of a run together, since butterflies never cross one.
 */
INLINE float butterflies_between(float *tile, uint32_t first, uint32_t n, uint32_t power) {
  float poison = 0.0f;
  uint32_t h = LANES;
  for (; 16 * h <= power; h *= 16) {
    poison += butterflies<16>(tile, first, n, h);
  }
  if (8 * h <= power) {
    poison += butterflies<8>(tile, first, n, h);
  } else if (4 * h <= power) {
    poison += butterflies<4>(tile, first, n, h);
  } else if (2 * h <= power) {
    poison += butterflies<2>(tile, first, n, h);
  }
  return poison;
}

/* Fewer than 16 values: the end of a layer. */
INLINE void butterflies_tiny(float *tile, uint32_t first, uint32_t n) {
  if (threadIdx.x == 0) {
    for (uint32_t h = 1; h < n; h *= 2) {
      for (uint32_t i = 0; i < n; i++) {
        if (!(i & h)) {
          float a = tile[tile_place(first + i)], b = tile[tile_place(first + i + h)];
          tile[tile_place(first + i)] = a + b;
          tile[tile_place(first + i + h)] = a - b;
        }
      }
    }
  }
  __syncthreads();
}

INLINE void flip_and_scale(const Task &t, float *tile, uint32_t first, uint32_t n, uint32_t index, float scale) {
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    float &x = tile[tile_place(first + i)];
    x = flip(x, sign_bits(t, index + i), (index + i) % LANES) * scale;
  }
  __syncthreads();
}

INLINE void scale_all(float *tile, uint32_t first, uint32_t n, float scale) {
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    tile[tile_place(first + i)] *= scale;
  }
  __syncthreads();
}

/* n values: blocks of `power` values that follow each other. `index` is the place of the first in its layer. */
INLINE void rotate_run(const Task &t, float *tile, uint32_t first, uint32_t n, uint32_t power, uint32_t index) {
  flip_and_scale(t, tile, first, n, index, rotation_scale(power));
  if (power < LANES) {
    butterflies_tiny(tile, first, n);
  } else {
    butterflies<16>(tile, first, n, 1);
    butterflies_between(tile, first, n, power);
  }
}

INLINE void unrotate_run(const Task &t, float *tile, uint32_t first, uint32_t n, uint32_t power, uint32_t index) {
  scale_all(tile, first, n, rotation_scale(power));
  if (power < LANES) {
    butterflies_tiny(tile, first, n);
  } else {
    butterflies_between(tile, first, n, power);
    butterflies<16>(tile, first, n, 1);
  }
  flip_and_scale(t, tile, first, n, index, 1.0f);
}

/* Runs over a tile: whole blocks together, then the powers of two that the last, shorter one is cut into. */
template <class Run>
INLINE void each_run(const Task &t, uint32_t n, Run run) {
  uint32_t whole = n >> t.rotation << t.rotation;
  if (whole) {
    run(0u, whole, 1u << t.rotation);
  }
  while (whole < n) {
    uint32_t power = 1u << (31 - __clz((int)(n - whole)));
    run(whole, power, power);
    whole += power;
  }
}

/* A rotated block with anything not finite is NaN throughout. Blocks are those of the rotation; the last may be short.
 */
INLINE void spread_nan(const Task &t, float *tile, uint32_t n, uint32_t *flags) {
  uint32_t blocks = (n + (1u << t.rotation) - 1) >> t.rotation;
  for (uint32_t i = threadIdx.x; i < blocks; i += blockDim.x) {
    flags[i] = 0;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    if (!is_finite(tile[tile_place(i)])) {
      flags[i >> t.rotation] = 1;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < n; i += blockDim.x) {
    if (flags[i >> t.rotation]) {
      tile[tile_place(i)] = nan_value();
    }
  }
  __syncthreads();
}

/* ---- Whole tiles of f32 values at aligned addresses: 16 neighbours at a time in registers ------------------------ */

INLINE bool sixteens_fit(const Task &t, uint32_t n) {
  return t.dtype == PITH_GPU_F32 && n == t.tile && (((uintptr_t)t.values | (uintptr_t)t.memory) & 15) == 0;
}

INLINE void get_sixteen(const float *p, float (&x)[LANES]) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    float4 v = ((const float4 *)p)[c];
    x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
  }
}

INLINE void put_sixteen(float *p, const float (&x)[LANES]) {
#pragma unroll
  for (int c = 0; c < 4; c++) {
    ((float4 *)p)[c] = make_float4(x[4 * c], x[4 * c + 1], x[4 * c + 2], x[4 * c + 3]);
  }
}

INLINE void compensate_sixteen(const Task &t, uint32_t i, float (&x)[LANES]) {
  get_sixteen((const float *)t.values + i, x);
  if (t.memory) {
    float e[LANES];
    get_sixteen(t.memory + i, e);
#pragma unroll
    for (int c = 0; c < LANES; c++) {
      x[c] = t.beta * e[c] + t.gamma * x[c];
    }
  }
}

INLINE void flip_sixteen(const Task &t, uint32_t index, float scale, float (&x)[LANES]) {
  uint32_t bits = sign_bits(t, index);
#pragma unroll
  for (int c = 0; c < LANES; c++) {
    x[c] = flip(x[c], bits, c) * scale;
  }
}

/* From the tensor to a rotated tile. Returns NaN if this thread met what is not finite. */
INLINE float rotate_in(const Task &t, uint32_t first, float *tile) {
  float scale = rotation_scale(1u << t.rotation);
#pragma unroll 2
  for (uint32_t g = threadIdx.x; g < t.tile / LANES; g += blockDim.x) {
    float x[LANES];
    compensate_sixteen(t, first + LANES * g, x);
    flip_sixteen(t, t.index + first + LANES * g, scale, x);
    butterfly(x);
    float *p = tile + tile_place(LANES * g);
#pragma unroll
    for (int c = 0; c < LANES; c++) {
      p[c] = x[c];
    }
  }
  __syncthreads();
  return butterflies_between(tile, 0, t.tile, 1u << t.rotation);
}

/* And back: what becomes of 16 values at a time is up to `take`. The tile holds values times the scale of the rotation.
 */
template <class Take>
INLINE void rotate_out(const Task &t, uint32_t first, float *tile, Take take) {
  butterflies_between(tile, 0, t.tile, 1u << t.rotation);
#pragma unroll 2
  for (uint32_t g = threadIdx.x; g < t.tile / LANES; g += blockDim.x) {
    float x[LANES];
    const float *p = tile + tile_place(LANES * g);
#pragma unroll
    for (int c = 0; c < LANES; c++) {
      x[c] = p[c];
    }
    butterfly(x);
    flip_sixteen(t, t.index + first + LANES * g, 1.0f, x);
    take(first + LANES * g, x);
  }
  __syncthreads();
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* With room for the largest tile. */
static inline cudaError_t launch_tiles(BatchKernel kernel, int threads, const Batch &batch, cudaStream_t stream) {
  uint32_t values = 0;
  for (uint32_t i = 0; i < batch.count; i++) {
    values = batch.task[i].tile > values ? batch.task[i].tile : values;
  }
  size_t shared = 4u * (TILE_PLACES(values) + TILE_FLAGS(values));
  cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
  return error == cudaSuccess ? launch_batch(kernel, threads, 1, shared, batch, stream) : error;
}

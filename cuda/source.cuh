/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the values of a block come from, and where a memory takes what stays of them. The encoders of encode_block.cuh
 * are written over this: blocks straight from the tensor, compensated by the memory on the way, or from a rotated tile
 * in shared memory.
 *
 * Lane j of a half-warp holds values from + 16·k + j. Places that do not exist read as `pad`.
 */
#pragma once

#include "device.cuh"

INLINE float compensate(const Task &t, uint32_t i, float g) {
  return t.memory ? t.beta * t.memory[i] + t.gamma * g : g;
}

/* What of a value p stays once d was sent in its place. Nothing that is not finite ever stays. */
INLINE void settle(const Task &t, uint32_t i, float p, float d) {
  float rest = t.keeps == PITH_GPU_KEEP_LOST ? p - d : p;
  if (is_finite(rest)) {
    t.memory[i] = rest;
  }
}

struct TensorSource {
  const Task &t;
  uint32_t origin; /* of the block in the task */
  uint32_t m;      /* values of the block; 0: there is none */

  template <int N, class T>
  INLINE void fetch(T (&v)[STEPS], const T *p, uint32_t at, bool full, T pad) const {
    if (full) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = p[LANES * k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = at + LANES * k < m ? p[LANES * k] : pad;
      }
    }
  }

  /* The tensor's own values. Those of 16 bits are widened behind all loads, so that the loads exist once for both
   * types. The pad is one of the values, or 0, and so fits the type; behind a memory it may not, and is set again. */
  template <int N>
  INLINE void read(float (&v)[STEPS], uint32_t at, bool full, float pad) const {
    uint16_t h[STEPS];
    if (t.dtype == PITH_GPU_F32) {
      fetch<N>(v, (const float *)t.values + origin + at, at, full, pad);
      return;
    }
    uint16_t narrow_pad = t.dtype == PITH_GPU_F16 ? f32_to_f16(pad) : f32_to_bf16(pad);
    fetch<N>(h, (const uint16_t *)t.values + origin + at, at, full, narrow_pad);
    if (t.dtype == PITH_GPU_F16) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = f16_to_f32(h[k]);
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = bf16_to_f32(h[k]);
      }
    }
  }

  template <int N>
  INLINE void load(float (&v)[STEPS], uint32_t from, float pad) const {
    uint32_t at = from + lane16(), i = origin + at;
    bool full = __all_sync(FULL, from + LANES * N <= m);
    read<N>(v, at, full, pad);
    if (t.memory) {
      const float *e = t.memory + i;
      if (full) {
#pragma unroll
        for (int k = 0; k < N; k++) {
          v[k] = t.beta * e[LANES * k] + t.gamma * v[k];
        }
      } else {
#pragma unroll
        for (int k = 0; k < N; k++) {
          v[k] = at + LANES * k < m ? t.beta * e[LANES * k] + t.gamma * v[k] : pad;
        }
      }
    }
  }

  INLINE float one(uint32_t i) const { return compensate(t, origin + i, value_at(t.values, t.dtype, origin + i)); }

  INLINE bool keeps() const { return t.memory != nullptr; }

  INLINE void keep(uint32_t i, float p, float d) const {
    if (i < m) {
      settle(t, origin + i, p, d);
    }
  }
};

/* A place is left out behind every 16 values: then neither rows nor columns of 16 meet in one bank. */
INLINE uint32_t tile_place(uint32_t i) { return i + (i >> 4); }

struct TileSource {
  const Task &t;
  uint32_t origin, m;
  float *tile;
  uint32_t first; /* of the block in the tile */

  template <int N>
  INLINE void load(float (&v)[STEPS], uint32_t from, float pad) const {
    uint32_t at = from + lane16();
    const float *p = tile + tile_place(first + from) + lane16();
    if (__all_sync(FULL, from + LANES * N <= m)) {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = p[(LANES + 1) * k];
      }
    } else {
#pragma unroll
      for (int k = 0; k < N; k++) {
        v[k] = at + LANES * k < m ? p[(LANES + 1) * k] : pad;
      }
    }
  }

  INLINE float one(uint32_t i) const { return tile[tile_place(first + i)]; }

  /* What was sent goes back to the tile, to be rotated back. */
  INLINE bool keeps() const { return t.memory != nullptr && t.keeps == PITH_GPU_KEEP_LOST; }

  INLINE void keep(uint32_t i, float, float d) const {
    if (i < m) {
      tile[tile_place(first + i)] = d;
    }
  }
};

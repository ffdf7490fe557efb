/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seeded rotation of full tiles in registers: 128 threads hold 4096 f32 values, warp w and lane j the quads
 * 1024·w + 128·r + 4·j + c of rows r. Butterflies of strides 1, 2 and 128 to 512 stay within a lane, those of 4 to 64
 * go between lanes, those of 1024 and 2048 between warps by way of shared memory. Strides come in the order of
 * src/kernel/body_rotate.h, so that every bit is the same. Blocks of up to 1024 values never leave their warp.
 */
#pragma once

#include "quads.cuh"
#include "rotate.cuh"

#define TURN_THREADS 128
#define TURN_WARP (ROTATED_TILE / (TURN_THREADS / 32)) /* values of a warp */

/* Of a whole tile, in shared memory. */
typedef float4 Exchange[ROTATED_TILE / 4];

INLINE float4 to_four(const float (&x)[4]) { return make_float4(x[0], x[1], x[2], x[3]); }

INLINE void from_four(float4 four, float (&x)[4]) { x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w; }

/* The first value of this warp in a task, and the first of this lane's. */
INLINE uint32_t warp_start(uint32_t item) { return item * ROTATED_TILE + threadIdx.x / 32 * TURN_WARP; }
INLINE uint32_t lane_start(uint32_t item) { return warp_start(item) + 4 * (threadIdx.x % 32); }

INLINE void load_rows(const float *from, float (&v)[QUAD_ROWS][4]) {
  EACH_ROW(r) { from_four(*(const float4 *)(from + 128 * r), v[r]); }
}

/* Four lanes have their rows' values in the same groups of 16, which share a word of signs: each lane draws those of
 * two rows. The signs of a row's four values are the upper four bits of signs[r]. `index` is that of the lane's first
 * value; rows are `step` values apart. */
INLINE void draw_signs(const Task &t, uint32_t index, uint32_t step, uint32_t (&signs)[QUAD_ROWS]) {
  uint32_t row = threadIdx.x % 4, up = 28 - 4 * row;
  uint32_t low = sign_bits(t, index + step * row), high = sign_bits(t, index + step * (row + 4));
  EACH_ROW(r) { signs[r] = __shfl_sync(FULL, r < 4 ? low : high, r % 4, 4) << up; }
}

INLINE float flip_by(float x, uint32_t signs, int c) { return float_of(bits_of(x) ^ (signs << (3 - c) & 0x80000000u)); }

/* The upper lane of a pair takes the difference. A product by ±1 is exact: there is one rounding, that of the sum. */
INLINE void butterfly_lanes(float (&v)[QUAD_ROWS][4], int h) {
  float side = threadIdx.x & h ? -1.0f : 1.0f;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { v[r][c] = __fmaf_rn(v[r][c], side, __shfl_xor_sync(FULL, v[r][c], h)); }
  }
}

template <int S>
INLINE void butterfly_rows(float (&v)[QUAD_ROWS][4]) {
  EACH_ROW(r) {
    if (!(r & S)) {
      EACH_OF_FOUR(c) {
        float a = v[r][c], b = v[r + S][c];
        v[r][c] = a + b;
        v[r + S][c] = a - b;
      }
    }
  }
}

/* Strides 64 to 512, as far as blocks reach. */
INLINE void butterfly_warp(const Task &t, float (&v)[QUAD_ROWS][4]) {
  if (t.rotation > 6) {
    butterfly_lanes(v, 16);
  }
  if (t.rotation > 7) {
    butterfly_rows<1>(v);
  }
  if (t.rotation > 8) {
    butterfly_rows<2>(v);
  }
  if (t.rotation > 9) {
    butterfly_rows<4>(v);
  }
}

/* Strides 1024 and 2048. Returns whether anything in the tile is not finite then. The tile stays in `all`, whose rows a
 * thread reads and writes itself are its own but for what happens here. */
INLINE bool butterfly_tile(float (&v)[QUAD_ROWS][4], Exchange &all) {
  float4 *mine = all + threadIdx.x / 32 * (TURN_WARP / 4) + threadIdx.x % 32;
  EACH_ROW(r) { mine[32 * r] = to_four(v[r]); }
  __syncthreads();
  float poison = 0.0f;
#pragma unroll
  for (int k = 0; k < 2; k++) { /* two rows of each warp */
    float4 *row = all + 32 * (threadIdx.x / 32 * 2 + k) + threadIdx.x % 32;
    float x[4][4];
    EACH_OF_FOUR(w) { from_four(row[w * (TURN_WARP / 4)], x[w]); }
    EACH_OF_FOUR(c) {
      float y[4] = {x[0][c], x[1][c], x[2][c], x[3][c]};
      butterfly(y);
      EACH_OF_FOUR(w) {
        x[w][c] = y[w];
        poison = __fmaf_rn(y[w], 0.0f, poison);
      }
    }
    EACH_OF_FOUR(w) { row[w * (TURN_WARP / 4)] = to_four(x[w]); }
  }
  bool odd = __syncthreads_or(poison != poison);
  EACH_ROW(r) { from_four(mine[32 * r], v[r]); }
  return odd;
}

/* A rotated block with anything not finite is NaN throughout. Rare. */
INLINE void spread_rows(const Task &t, float (&v)[QUAD_ROWS][4]) {
  uint32_t bad = 0, group = t.rotation > 6 ? FULL : 0xffffu << (threadIdx.x & 16);
  EACH_ROW(r) {
    float poison = 0.0f;
    EACH_OF_FOUR(c) { poison = __fmaf_rn(v[r][c], 0.0f, poison); }
    bad |= __ballot_sync(FULL, poison != poison) & group ? 1u << r : 0;
  }
  bad |= t.rotation > 7 ? (bad & 0x55u) << 1 | (bad & 0xaau) >> 1 : 0;
  bad |= t.rotation > 8 ? (bad & 0x33u) << 2 | (bad & 0xccu) >> 2 : 0;
  bad |= t.rotation > 9 ? (bad & 0x0fu) << 4 | (bad & 0xf0u) >> 4 : 0;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { v[r][c] = t.rotation > 10 || (bad >> r & 1) ? nan_value() : v[r][c]; }
  }
}

/* Rotates a tile, whose rotation is up to 10, or 12. Returns whether anything of a warp's blocks is NaN now. `i` is
 * lane_start(). */
INLINE bool turn(const Task &t, uint32_t i, float (&v)[QUAD_ROWS][4], Exchange &all) {
  uint32_t signs[QUAD_ROWS];
  float scale = rotation_scale(1u << t.rotation);
  draw_signs(t, t.index + i, 128, signs);
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { v[r][c] = flip_by(v[r][c], signs[r], c) * scale; }
    butterfly(v[r]);
  }
  butterfly_lanes(v, 1);
  butterfly_lanes(v, 2);
  butterfly_lanes(v, 4);
  butterfly_lanes(v, 8);
  butterfly_warp(t, v);
  bool odd = t.rotation > 10 ? butterfly_tile(v, all) : has_odd<32>(v) || has_odd<32>(v + QUAD_ROWS / 2);
  if (odd) {
    spread_rows(t, v);
  }
  return odd;
}

/* And back. The values are those of the tile times the scale of the rotation. */
INLINE void turn_back(const Task &t, uint32_t i, float (&v)[QUAD_ROWS][4], Exchange &all) {
  uint32_t signs[QUAD_ROWS];
  butterfly_lanes(v, 4);
  butterfly_lanes(v, 8);
  butterfly_warp(t, v);
  if (t.rotation > 10) {
    butterfly_tile(v, all);
  }
  EACH_ROW(r) { butterfly(v[r]); }
  butterfly_lanes(v, 1);
  butterfly_lanes(v, 2);
  draw_signs(t, t.index + i, 128, signs);
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { v[r][c] = flip_by(v[r][c], signs[r], c); }
  }
}

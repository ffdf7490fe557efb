/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Blocks of 512 values in the registers of W lanes, half a warp or a warp: lane j holds values 4·W·r + 4·j + c of rows
 * r. Least and greatest values do not depend on an order, so that a lane can take four neighbours at a time, and levels
 * pack without leaving their lane. Used for blocks straight from a tensor (encode_quads.cu, half a warp) and for
 * rotated ones (encode_rotated_quads.cu, a warp).
 */
#pragma once

#include "batch.cuh"
#include "encode_block.cuh"

#define QUAD_ROWS 8
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < QUAD_ROWS; r++)
#define EACH_OF_FOUR(c) _Pragma("unroll") for (int c = 0; c < 4; c++)

struct Quads {
  float v[QUAD_ROWS][4];
};

/* Of W lanes. */
template <int W>
INLINE float least_of(float x) {
  for (int h = W / 2; h; h /= 2) {
    x = fminf(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

template <int W>
INLINE float greatest_of(float x) {
  for (int h = W / 2; h; h /= 2) {
    x = fmaxf(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

template <int W>
INLINE bool any_of(bool x) {
  return W == 32 ? __any_sync(FULL, x) != 0 : lane_any(x);
}

INLINE void load_quads(const Task &t, uint32_t first, Quads &q) {
  const float4 *p = (const float4 *)((const float *)t.values + first) + lane16();
  EACH_ROW(r) {
    float4 x = p[LANES * r];
    q.v[r][0] = x.x, q.v[r][1] = x.y, q.v[r][2] = x.z, q.v[r][3] = x.w;
  }
  if (t.memory) {
    const float4 *e = (const float4 *)(t.memory + first) + lane16();
    EACH_ROW(r) {
      float4 x = e[LANES * r];
      float old[4] = {x.x, x.y, x.z, x.w};
      EACH_OF_FOUR(c) { q.v[r][c] = t.beta * old[c] + t.gamma * q.v[r][c]; }
    }
  }
}

INLINE void settle_quad(const Task &t, uint32_t i, const float (&rest)[4]) {
  if (is_finite(rest[0]) && is_finite(rest[1]) && is_finite(rest[2]) && is_finite(rest[3])) {
    *(float4 *)(t.memory + i) = make_float4(rest[0], rest[1], rest[2], rest[3]);
    return;
  }
  for (int c = 0; c < 4; c++) {
    if (is_finite(rest[c])) {
      t.memory[i + c] = rest[c];
    }
  }
}

/* What stays of a row in the memory once d was sent in its place. */
INLINE auto settle_rows(const Task &t, uint32_t first, const Quads &q) {
  return [&t, &q, first](int r, const float(&d)[4]) {
    float rest[4];
    EACH_OF_FOUR(c) { rest[c] = t.keeps == PITH_GPU_KEEP_LOST ? q.v[r][c] - d[c] : q.v[r][c]; }
    settle_quad(t, first + 64 * r + 4 * lane16(), rest);
  };
}

/* The low bits of four words, next to each other. Words of levels are those of level + ROUNDER, whose 22 lowest bits
 * are the level. */
template <int BITS>
INLINE uint32_t join_four(const uint32_t (&w)[4]) {
  if (BITS == 8) {
    return __byte_perm(__byte_perm(w[0], w[1], 0x0040), __byte_perm(w[2], w[3], 0x0040), 0x5410);
  }
  return ((w[3] * (1u << BITS) + w[2]) * (1u << BITS) + w[1]) * (1u << BITS) + w[0];
}

template <int BITS, int W>
INLINE void put_quad(uint8_t *out, int r, uint32_t word) {
  uint32_t at = W * r + threadIdx.x % W;
  if (BITS == 8) {
    ((uint32_t *)out)[at] = word;
  } else if (BITS == 4) {
    ((uint16_t *)out)[at] = (uint16_t)word;
  } else {
    out[at] = (uint8_t)word;
  }
}

/* level + ROUNDER; see level_value in codes.cuh. */
template <bool RANDOM>
INLINE float raised_level(const Uniform &u, float x, uint32_t noise, uint32_t k1) {
  float t = (x - u.lo) * u.inverse;
  if (!RANDOM) {
    return t + ROUNDER;
  }
  float whole = floorf(t), more = unit_of(rng_from(noise, k1)) < t - whole ? 1.0f : 0.0f;
  return fminf(fmaxf(whole + (u.zero + ROUNDER) + more, ROUNDER), u.top + ROUNDER);
}

/* Levels of a block of rows `v`. Where there is a memory, `sent` gets what a row decodes to. */
template <int BITS, bool RANDOM, int W, class Sent>
INLINE void emit_quads(const Task &t, uint32_t first, const float (*v)[4], const Uniform &u, bool bad, uint8_t *out,
                       Sent sent) {
  uint32_t start = (t.index + first + 4 * (threadIdx.x % W)) * RNG_WEYL + t.key0;
#pragma unroll
  for (int r = 0; r < QUAD_BUCKET / 4 / W; r++) {
    float level[4];
    EACH_OF_FOUR(c) { level[c] = raised_level<RANDOM>(u, v[r][c], start + (4 * W * r + c) * RNG_WEYL, t.key1); }
    uint32_t word[4] = {bits_of(level[0]), bits_of(level[1]), bits_of(level[2]), bits_of(level[3])};
    put_quad<BITS, W>(out, r, bad ? 0 : join_four<BITS>(word));
    if (t.memory) {
      float d[4];
      EACH_OF_FOUR(c) { d[c] = u.base + u.unit * (level[c] - ROUNDER - u.zero); }
      sent(r, d);
    }
  }
}

template <bool RANDOM, int W, class Sent>
INLINE void emit_quads_by_bits(const Task &t, uint32_t first, const float (*v)[4], const Uniform &u, bool bad,
                               uint8_t *out, Sent sent) {
  switch (t.bits) {
    case 8:
      return emit_quads<8, RANDOM, W>(t, first, v, u, bad, out, sent);
    case 4:
      return emit_quads<4, RANDOM, W>(t, first, v, u, bad, out, sent);
    default:
      return emit_quads<2, RANDOM, W>(t, first, v, u, bad, out, sent);
  }
}

/* The largest |x|; NaN if anything is not finite. */
INLINE float largest_of(const Quads &q) {
  float most = 0.0f, poison = 0.0f;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      most = fmaxf(most, fabsf(q.v[r][c]));
      poison = __fmaf_rn(q.v[r][c], 0.0f, poison);
    }
  }
  most = lane_greatest(most);
  return lane_any(poison != poison) ? nan_value() : most;
}

/* Whether anything of a block is not finite. */
template <int W>
INLINE bool has_odd(const float (*v)[4]) {
  float poison = 0.0f; /* NaN from the first value that is not finite */
#pragma unroll
  for (int r = 0; r < QUAD_BUCKET / 4 / W; r++) {
    EACH_OF_FOUR(c) { poison = __fmaf_rn(v[r][c], 0.0f, poison); }
  }
  return any_of<W>(poison != poison);
}

/* CHECKS: whether anything is not finite is found out here; else `odd` says so. */
template <int W, bool CHECKS, class Sent>
INLINE void encode_quads_q(const Task &t, uint32_t first, const float (*v)[4], bool odd, uint8_t *out, Sent sent) {
  float lo = v[0][0], hi = lo, poison = 0.0f;
#pragma unroll
  for (int r = 0; r < QUAD_BUCKET / 4 / W; r++) {
    EACH_OF_FOUR(c) {
      lo = fminf(lo, v[r][c]);
      hi = fmaxf(hi, v[r][c]);
      poison = CHECKS ? __fmaf_rn(v[r][c], 0.0f, poison) : poison;
    }
  }
  lo = least_of<W>(lo) + 0.0f;
  hi = greatest_of<W>(hi) + 0.0f;
  float range = hi - lo, top = (float)((1 << t.bits) - 1);
  bool bad = (CHECKS ? any_of<W>(poison != poison) : odd) || !is_finite(range), flat = range < PITH_SCALE_MIN;
  Uniform u = {lo,  flat ? 0.0f : top / range, 0.0f,
               top, bad ? nan_value() : lo,    bad ? nan_value() : flat ? 0.0f : range / top};
  uint32_t lane = threadIdx.x % W;
  if (lane < 2) {
    ((float *)out)[lane] = lane ? u.unit : u.base;
  }
  if (t.choice == PITH_ROUND_NEAREST) {
    emit_quads_by_bits<false, W>(t, first, v, u, bad, out + PITH_HEAD_TWO, sent);
  } else {
    emit_quads_by_bits<true, W>(t, first, v, u, bad, out + PITH_HEAD_TWO, sent);
  }
}

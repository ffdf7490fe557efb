/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of single values, both ways: what src/kernel/body_quant.h and body_small.h do for 16 lanes. */
#pragma once

#include "batch.cuh"

/* ---- Uniform levels ---------------------------------------------------------------------------------------------- */

struct Uniform {
  float lo, inverse, zero, top; /* level = round((x − lo) · inverse) + zero, kept within 0…top */
  float base, unit;             /* x = base + unit · (level − zero) */
};

/* ⌊t⌋, or one more with the probability of the fraction. */
INLINE float round_random(float t, uint32_t noise, uint32_t k1) {
  float whole = floorf(t);
  return unit_of(rng_from(noise, k1)) < t - whole ? whole + 1.0f : whole;
}

/* Nearest levels never leave 0…top: x lies within the borders. */
template <bool RANDOM>
INLINE float level_value(const Uniform &u, float x, uint32_t noise, uint32_t k1) {
  float t = (x - u.lo) * u.inverse;
  if (!RANDOM) {
    return (t + ROUNDER) - ROUNDER;
  }
  return fminf(fmaxf(round_random(t, noise, k1) + u.zero, 0.0f), u.top);
}

template <bool RANDOM>
INLINE uint8_t level_byte(const Uniform &u, float x, uint32_t noise, uint32_t k1) {
  if (!RANDOM) {
    return (uint8_t)bits_of((x - u.lo) * u.inverse + ROUNDER); /* the low bits are the level */
  }
  return (uint8_t)bits_of(level_value<true>(u, x, noise, k1) + ROUNDER);
}

/* ---- Powers of two ----------------------------------------------------------------------------------------------- */

/* Codes relative to a top, as few operations as there can be. A value's bits plus 23 random ones carry into the
 * exponent; what comes out is zero below `least` (twice that sum, which has no room for a sign), else the exponent's
 * distance from top − 127. */
struct Natural {
  uint32_t least, shift;
};

INLINE Natural natural_of(int top) {
  int low = top - 127;
  return Natural{(uint32_t)max(low + 1, 1) << 24, 0u - ((uint32_t)low << 24)};
}

/* The code in the upper byte. Exponents never come out above the top, but for the largest floats, which natural_byte is
 * for. */
INLINE uint32_t natural_word(float x, Natural n, uint32_t random) {
  uint32_t sum = (bits_of(x) << 1) + ((random & 0x7fffffu) << 1), word = sum + n.shift;
  return sum < n.least ? 0 : (word & 0x7fffffffu) | (bits_of(x) & 0x80000000u);
}

/* 2^127 is the greatest power there is: beyond it exponents are cut. */
INLINE uint8_t natural_byte(float x, int top, uint32_t random) {
  int exponent = min((int)((magnitude(x) + (random & 0x7fffffu)) >> 23), top);
  int code = exponent == 0 ? 0 : max(exponent - (top - 127), 0);
  return (uint8_t)(code == 0 ? 0 : code | (bits_of(x) >> 31 << 7));
}

INLINE float natural_value(uint32_t byte, int top) {
  int code = byte & 0x7f, exponent = code + top - 127;
  return code == 0 || exponent < 1 ? 0.0f : float_of((uint32_t)exponent << 23 | byte >> 7 << 31);
}

/* Codes of nuq for y in −1…1: see power_level in src/kernel/body_quant.h. One more than the level at or below |y| where
 * `unit` lies below its place between the two. */
INLINE uint8_t power_code(float y, int bits, float unit) {
  float size = fminf(fabsf(y), 1.0f);
  int top = (1 << (bits - 1)) - 1, below = (int)(bits_of(size) >> 23) + top - 127;
  float mantissa = float_of((bits_of(size) & 0x7fffffu) | 0x3f800000u) - 1.0f;
  float place = below < 1 ? size * float_of((uint32_t)(top + 126) << 23) : mantissa;
  int level = min(max(below, 0) + (unit < place ? 1 : 0), top);
  return (uint8_t)(level == 0 ? 0 : level | (bits_of(y) >> 31 << (bits - 1)));
}

INLINE float power_value(uint32_t code, int bits) {
  uint32_t top = (1u << (bits - 1)) - 1, level = code & top;
  return float_of((level == 0 ? 0 : (level + 127 - top) << 23) | code >> (bits - 1) << 31);
}

/* ---- Small floats: src/kernel/body_mini.h ------------------------------------------------------------------------ */

/* A type (PITH_MINI_…): bits of a code, of its mantissa, the exponent's bias, the code of the largest finite value. */
template <int TYPE>
struct Mini {
  static constexpr int bits = TYPE < PITH_MINI_E2M3 ? 8 : TYPE < PITH_MINI_E2M1 ? 6 : 4;
  static constexpr int mantissa = TYPE == PITH_MINI_E4M3 || TYPE == PITH_MINI_E2M3   ? 3
                                  : TYPE == PITH_MINI_E5M2 || TYPE == PITH_MINI_E3M2 ? 2
                                                                                     : 1;
  static constexpr int bias = TYPE == PITH_MINI_E4M3 ? 7 : TYPE == PITH_MINI_E5M2 ? 15 : TYPE == PITH_MINI_E3M2 ? 3 : 1;
  static constexpr uint32_t top = TYPE == PITH_MINI_E4M3   ? 0x7e
                                  : TYPE == PITH_MINI_E5M2 ? 0x7b
                                  : TYPE == PITH_MINI_E2M1 ? 0x07
                                                           : 0x1f;
  static constexpr uint32_t exponent = (top >> mantissa) - bias; /* of the largest value */
};

INLINE constexpr uint32_t power_bits(int exponent) { return (uint32_t)(exponent + 127) << 23; }

/* y is finite. */
template <int TYPE>
INLINE uint32_t mini_code(float y) {
  typedef Mini<TYPE> M;
  uint32_t size = magnitude(y), odd = size >> (23 - M::mantissa) & 1;
  uint32_t rounded = size + ((1u << (22 - M::mantissa)) - 1) + odd;
  uint32_t normal = (rounded >> (23 - M::mantissa)) - ((uint32_t)(127 - M::bias) << M::mantissa);
  const uint32_t rounder = power_bits(24 - M::bias - M::mantissa);
  uint32_t tiny = bits_of(float_of(size) + float_of(rounder)) - rounder;
  uint32_t code = size < (uint32_t)(128 - M::bias) << 23 ? tiny : normal;
  return least(code, M::top) | bits_of(y) >> 31 << (M::bits - 1);
}

/* E2M1 has four values below 2, two from 2 to 4 and two from there on: in each part the code is a line in |y|, rounded,
 * and the least of the three lines is the one that holds. */
template <>
INLINE uint32_t mini_code<PITH_MINI_E2M1>(float y) {
  float size = fabsf(y), from_two = fminf(size + (ROUNDER + 2), __fmaf_rn(size, 0.5f, ROUNDER + 4));
  float code = fminf(fminf(__fmaf_rn(size, 2.0f, ROUNDER), from_two), ROUNDER + Mini<PITH_MINI_E2M1>::top);
  return (bits_of(code) & 7u) | (bits_of(y) >> 28 & ~7u);
}

template <int TYPE>
INLINE float mini_value(uint32_t code) {
  typedef Mini<TYPE> M;
  uint32_t size = code & ((1u << (M::bits - 1)) - 1);
  uint32_t normal = (size << (23 - M::mantissa)) + ((uint32_t)(127 - M::bias) << 23);
  float tiny = (float)size * float_of(power_bits(1 - M::bias - M::mantissa));
  uint32_t value = size < 1u << M::mantissa ? bits_of(tiny) : normal;
  if (M::bits == 8) {
    value = size > M::top ? INF_BITS | size << (23 - M::mantissa) : value;
  }
  return float_of(value | code >> (M::bits - 1) << 31);
}

/* Calls `with` for a type, which is a constant there. */
template <int TYPE>
struct MiniTag {
  static constexpr int type = TYPE;
};

template <class With>
INLINE void with_mini(int type, With with) {
  switch (type) {
    case PITH_MINI_E4M3:
      return with(MiniTag<PITH_MINI_E4M3>());
    case PITH_MINI_E5M2:
      return with(MiniTag<PITH_MINI_E5M2>());
    case PITH_MINI_E2M3:
      return with(MiniTag<PITH_MINI_E2M3>());
    case PITH_MINI_E3M2:
      return with(MiniTag<PITH_MINI_E3M2>());
    default:
      return with(MiniTag<PITH_MINI_E2M1>());
  }
}

/* Of fp8. */
INLINE float fp8_largest(const Task &t) {
  return t.choice == PITH_MINI_E4M3 ? PITH_FP8_LARGEST_E4M3 : PITH_FP8_LARGEST_E5M2;
}

INLINE uint32_t fp8_code(const Task &t, float y) {
  return t.choice == PITH_MINI_E4M3 ? mini_code<PITH_MINI_E4M3>(y) : mini_code<PITH_MINI_E5M2>(y);
}

INLINE float fp8_value(const Task &t, uint32_t code) {
  return t.choice == PITH_MINI_E4M3 ? mini_value<PITH_MINI_E4M3>(code) : mini_value<PITH_MINI_E5M2>(code);
}

/* The scale of a row of mx from its largest |x|, and what it makes of values, both ways. */
template <int TYPE>
INLINE uint32_t mx_scale(uint32_t most) {
  uint32_t field = most >> 23;
  return most >= INF_BITS ? PITH_MX_NAN : field > Mini<TYPE>::exponent ? field - Mini<TYPE>::exponent : 0;
}

INLINE float mx_inverse(uint32_t scale) { return float_of((PITH_MX_NAN - 1 - least(scale, PITH_MX_NAN - 1)) << 23); }

INLINE float mx_factor(uint32_t scale) {
  return scale == PITH_MX_NAN ? nan_value() : float_of(scale ? scale << 23 : 1u << 22);
}

/* The scales of nvfp4: of a block from its largest |x|; what a row's largest |x| is multiplied by; a row's values. */
INLINE float nv_scale(uint32_t most) {
  float scale = float_of(most) / PITH_NV_LARGEST;
  return scale < PITH_SCALE_MIN ? 0.0f : scale;
}

INLINE float nv_inverse(float scale) { return scale > 0 ? 1.0f / (6.0f * scale) : 0.0f; }

INLINE float nv_factor(float row) { return row > 0 ? 1.0f / row : 0.0f; }

/* ---- Trits ------------------------------------------------------------------------------------------------------- */

/* 0, 1 or 2. */
INLINE float draw_trit(float x, float clip, float inverse, uint32_t noise, uint32_t k1) {
  float clipped = fminf(fmaxf(x, -clip), clip);
  float trit = round_random(clipped * inverse, noise, k1) + 1.0f;
  return fminf(fmaxf(trit, 0.0f), 2.0f);
}

/* ---- The 8-bit dynamic tree: tables as in src/kernel/body_small.h ------------------------------------------------ */

/* Where decades end, and what makes a number of a size in one: number + 1 = round(size · gain − shift + 2^decade). */
#define TREE8_ENDS 1e-6f, 1e-5f, 1e-4f, 1e-3f, 1e-2f, 1e-1f
static __constant__ const float tree8_gain[7] = {
    1e6f, 1e5f * (2 / 0.9f), 1e4f * (4 / 0.9f), 1e3f * (8 / 0.9f), 1e2f * (16 / 0.9f), 1e1f * (32 / 0.9f), 64 / 0.9f};
static __constant__ const float tree8_shift[7] = {0.0f,        0.2f / 0.9f, 0.4f / 0.9f, 0.8f / 0.9f,
                                                  1.6f / 0.9f, 3.2f / 0.9f, 6.4f / 0.9f};

static __constant__ const float tree8_base[7] = {1e-6f * 0.1f, 1e-5f * 0.1f, 1e-4f * 0.1f, 1e-3f * 0.1f,
                                                 1e-2f * 0.1f, 1e-1f * 0.1f, 0.1f};
static __constant__ const float tree8_step[7] = {0.9e-6f,     0.45e-5f,     0.225e-4f, 0.1125e-3f,
                                                 0.05625e-2f, 0.028125e-1f, 0.0140625f};

/* The values of numbers 0…127, for the table. */
INLINE float tree8_number(uint32_t number) {
  if (number == 0) {
    return 0.0f;
  }
  int decade = 31 - __clz((int)number);
  float place = ((float)number - (float)(1 << decade)) + 1.0f;
  return tree8_base[decade] + tree8_step[decade] * place;
}

INLINE float tree8_value(uint32_t byte, const float *tree) {
  return float_of(bits_of(tree[byte & 0x7f]) ^ byte >> 7 << 31);
}

/* ---- Lloyd–Max levels -------------------------------------------------------------------------------------------- */

struct Lloyd {
  float levels[16], cuts[16];
  int bits;
  INLINE float level(uint32_t number) const { return levels[number]; }
};

/* How many cuts lie at or below y. */
INLINE uint32_t lloyd_number(float y, const Lloyd &lloyd) {
  uint32_t number = 0;
  for (uint32_t step = 1u << (lloyd.bits - 1); step; step /= 2) {
    number += lloyd.cuts[number + step - 1] <= y ? step : 0;
  }
  return number;
}

/* ---- Tables in shared memory ------------------------------------------------------------------------------------- */

struct Tree8Power { /* sizes from a power of two up to the next: decades are longer, so that one at most ends there */
  float end;        /* infinite: none does */
  uint32_t decade;  /* of those up to the end */
};

struct Tables {
  float tree[128];
  Lloyd lloyd[4];
  Tree8Power tree_powers[256]; /* by the exponent of a float */
  float4 tree_lines[7];        /* of decades: gain, shift, 2^decade */
};

/* The number of y in −1…1, in the low byte. */
INLINE uint32_t tree8_word(float y, const Tables &tables) {
  float size = fabsf(y);
  Tree8Power power = tables.tree_powers[bits_of(size) >> 23];
  float4 line = tables.tree_lines[power.decade + (power.end < size ? 1 : 0)];
  float whole = size * line.x - line.y + line.z + ROUNDER;
  return ((bits_of(whole) - 1) & 0x7fu) | (bits_of(y) >> 24 & 0x80u);
}

static __constant__ const float lloyd_positive[4][8] = {{PITH_LLOYD_1}, {PITH_LLOYD_2}, {PITH_LLOYD_3}, {PITH_LLOYD_4}};

INLINE float lloyd_level(int bits, int number) {
  int half = 1 << (bits - 1);
  return number >= half ? lloyd_positive[bits - 1][number - half] : -lloyd_positive[bits - 1][half - 1 - number];
}

INLINE void fill_lloyd(Lloyd &lloyd, int bits, uint32_t number) {
  uint32_t count = 1u << bits;
  float level = number < count ? lloyd_level(bits, (int)number) : 0.0f;
  lloyd.bits = bits;
  lloyd.levels[number] = level;
  lloyd.cuts[number] = number + 1 < count ? 0.5f * (level + lloyd_level(bits, (int)number + 1)) : INFINITY;
}

INLINE void fill_tree8(Tables &tables) {
  uint32_t i = threadIdx.x;
  const float ends[6] = {TREE8_ENDS};
  if (i < 128) {
    tables.tree[i] = tree8_number(i);
  }
  for (uint32_t e = i; e < 256; e += blockDim.x) {
    Tree8Power power = {INFINITY, 0};
#pragma unroll
    for (int d = 0; d < 6; d++) { /* no end is a power of two */
      power.decade += bits_of(ends[d]) >> 23 < e ? 1 : 0;
      power.end = bits_of(ends[d]) >> 23 == e ? ends[d] : power.end;
    }
    tables.tree_powers[e] = power;
  }
  if (i < 7) {
    tables.tree_lines[i] = make_float4(tree8_gain[i], tree8_shift[i], (float)(1 << i), 0.0f);
  }
}

/* By all threads of a block, at least 128: what the batch needs. */
INLINE void fill_tables(const Batch &batch, Tables &tables) {
  if (batch.tables & TABLE_TREE8) {
    fill_tree8(tables);
  }
  if ((batch.tables & TABLE_LLOYD) && threadIdx.x < 64) {
    fill_lloyd(tables.lloyd[threadIdx.x / 16], (int)(threadIdx.x / 16) + 1, threadIdx.x % 16);
  }
  if (batch.tables) {
    __syncthreads();
  }
}

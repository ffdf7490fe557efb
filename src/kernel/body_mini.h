/* SPDX-License-Identifier: Apache-2.0 */
/* Small floats, with a sign, e bits of exponent and m of mantissa: FP8, FP6 and FP4; and rows of them that share
 * scales, as in the OCP's microscaling formats (MX) and in NVFP4. Part of body.h. */

/* Types as constants of the functions below: bits of a code, of its mantissa, the exponent's bias, and the code of the
 * largest finite value, which takes all that are larger. */
#define E4M3 8, 3, 7, 0x7e
#define E5M2 8, 2, 15, 0x7b
#define E2M3 6, 3, 1, 0x1f
#define E3M2 6, 2, 3, 0x1f
#define E2M1 4, 1, 1, 0x07
#define TYPE int bits, int mantissa, int bias, int top
#define SAME_TYPE bits, mantissa, bias, top

INLINE float power_of_two(int exponent) {
  uint32_t bits = (uint32_t)(exponent + 127) << 23;
  float power;
  memcpy(&power, &bits, sizeof power);
  return power;
}

/* To the nearest, of two equally near ones to the even one. y is finite. Below the smallest normal value, adding a
 * power of two rounds to a multiple of the smallest one there is. */
INLINE vi mini_code(vf y, TYPE) {
  vi size = magnitude_bits(y), odd = i_and(i_shr(size, 23 - mantissa), i_set(1));
  vi rounded = i_add(i_add(size, i_set((1 << (22 - mantissa)) - 1)), odd);
  vi normal = i_sub(i_shr(rounded, 23 - mantissa), i_set((127 - bias) << mantissa));
  vf rounder = v_set(power_of_two(24 - bias - mantissa));
  vi tiny = i_sub(i_cast(v_add(v_cast(size), rounder)), i_cast(rounder));
  vi code = i_select(i_lt(size, i_set((128 - bias) << 23)), tiny, normal);
  return i_or(i_min(code, i_set(top)), i_shl(i_shr(i_cast(y), 31), bits - 1));
}

/* Of 8 bits, codes above the top are not finite: in E4M3 one, NaN; in E5M2 infinity and NaN. Others have none. */
INLINE vf mini_value(vi code, TYPE) {
  static const float fours[LANES] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                     -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
  if (bits == 4) {
    return v_permute(v_load(fours), code);
  }
  vi size = i_and(code, i_set((1 << (bits - 1)) - 1));
  vi normal = i_add(i_shl(size, 23 - mantissa), i_set((127 - bias) << 23));
  vf tiny = v_mul(v_from(size), v_set(power_of_two(1 - bias - mantissa)));
  vi value = i_select(i_lt(size, i_set(1 << mantissa)), i_cast(tiny), normal);
  if (bits == 8) {
    vi beyond = i_or(i_set(0x7f800000), i_shl(size, 23 - mantissa));
    value = i_select(i_lt(i_set(top), size), beyond, value);
  }
  return v_cast(i_or(value, i_shl(i_shr(code, bits - 1), 31)));
}

/* ---- FP8: a scale for all --------------------------------------------------------------------------------------- */

INLINE void fp8_unpack(const uint8_t *in, size_t n, TYPE, float scale, pith_mode mode, float *dst) {
  STEPS(i, k, n) { apply(dst + i, v_mul(mini_value(get_bytes(in + i, k), SAME_TYPE), v_set(scale)), k, mode); }
}

#define DEFINE_FP8(name, type)                                                                            \
  static void k_fp8_pack_##name(const float *x, size_t n, float inverse, uint8_t *out) {                  \
    STEPS(i, k, n) { put_bytes(out + i, mini_code(v_mul(get(x + i, k), v_set(inverse)), type), k); }      \
  }                                                                                                       \
  static void k_fp8_unpack_##name(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) { \
    if (mode == PITH_ADD) {                                                                               \
      fp8_unpack(in, n, type, scale, PITH_ADD, dst);                                                      \
    } else {                                                                                              \
      fp8_unpack(in, n, type, scale, PITH_SET, dst);                                                      \
    }                                                                                                     \
  }
DEFINE_FP8(e4m3, E4M3)
DEFINE_FP8(e5m2, E5M2)
#undef DEFINE_FP8

/* ---- MX: a scale for PITH_MX_ROW values, a power of two ---------------------------------------------------------- */

/* Scales of as many rows at a time as a vector has lanes, from the bits of their largest |x|: the exponent of that
 * becomes the exponent of the largest code. */
INLINE vi mx_scales(vi most, int largest) {
  vi exponent = i_max(i_sub(i_shr(most, 23), i_set(largest)), i_set(0));
  return i_select(i_lt(most, i_set((int32_t)PITH_INF_BITS)), exponent, i_set(PITH_MX_NAN));
}

INLINE void mx_pack(const float *x, size_t n, TYPE, uint8_t *scales, uint8_t *out) {
  enum { BATCH = LANES * PITH_MX_ROW };
  for (size_t start = 0; start < n; start += BATCH) {
    size_t m = n - start < BATCH ? n - start : BATCH, rows = (m + PITH_MX_ROW - 1) / PITH_MX_ROW;
    float most[LANES] = {0}, inverse[LANES];
    for (size_t i = 0; i < m; i += PITH_MX_ROW) {
      size_t left = m - i, k = left < LANES ? left : LANES, more = left < PITH_MX_ROW ? left - k : LANES;
      vi first = magnitude_bits(get(x + start + i, k));
      vi second = more ? magnitude_bits(get(x + start + i + LANES, more)) : i_set(0);
      uint32_t size = lane_max(i_max(first, second));
      memcpy(&most[i / PITH_MX_ROW], &size, sizeof size);
    }
    vi scale = mx_scales(i_cast(v_load(most)), (top >> mantissa) - bias);
    v_store(inverse, v_cast(i_shl(i_sub(i_set(PITH_MX_NAN - 1), i_min(scale, i_set(PITH_MX_NAN - 1))), 23)));
    put_bytes(scales + start / PITH_MX_ROW, scale, rows);
    STEPS(i, k, m) {
      vf values = v_mul(get(x + start + i, k), v_set(inverse[i / PITH_MX_ROW]));
      put_bits(out + (start + i) / 8 * (size_t)bits, mini_code(values, SAME_TYPE), k, bits);
    }
    for (size_t r = 0; r < rows && lane_max(scale) == PITH_MX_NAN; r++) { /* codes of what is not finite */
      size_t first = start + r * PITH_MX_ROW, count = n - first < PITH_MX_ROW ? n - first : PITH_MX_ROW;
      if (scales[first / PITH_MX_ROW] == PITH_MX_NAN) {
        memset(out + first / 8 * (size_t)bits, 0, (count * (size_t)bits + 7) / 8);
      }
    }
  }
}

/* 2^(scale − 127); the smallest is subnormal. */
INLINE vf mx_factor(uint32_t scale) {
  uint32_t bits = scale == PITH_MX_NAN ? PITH_NAN_BITS : scale ? scale << 23 : 1u << 22;
  return v_cast(i_set((int32_t)bits));
}

INLINE void mx_unpack(const uint8_t *scales, const uint8_t *in, size_t n, TYPE, pith_mode mode, float *dst) {
  const uint8_t *end = in + (n * (size_t)bits + 7) / 8;
  STEPS(i, k, n) {
    vi code = get_bits(in + i / 8 * (size_t)bits, end, k, bits);
    apply(dst + i, v_mul(mini_value(code, SAME_TYPE), mx_factor(scales[i / PITH_MX_ROW])), k, mode);
  }
}

#define DEFINE_MX(name, type)                                                                                      \
  static void k_mx_pack_##name(const float *x, size_t n, uint8_t *scales, uint8_t *out) {                          \
    mx_pack(x, n, type, scales, out);                                                                              \
  }                                                                                                                \
  static void k_mx_unpack_##name(const uint8_t *scales, const uint8_t *in, size_t n, pith_mode mode, float *dst) { \
    if (mode == PITH_ADD) {                                                                                        \
      mx_unpack(scales, in, n, type, PITH_ADD, dst);                                                               \
    } else {                                                                                                       \
      mx_unpack(scales, in, n, type, PITH_SET, dst);                                                               \
    }                                                                                                              \
  }
DEFINE_MX(e4m3, E4M3)
DEFINE_MX(e5m2, E5M2)
DEFINE_MX(e3m2, E3M2)
DEFINE_MX(e2m3, E2M3)
DEFINE_MX(e2m1, E2M1)
#undef DEFINE_MX

/* ---- NVFP4: a scale in E4M3 for PITH_NV_ROW values, times one for all ------------------------------------------- */

/* Scales are found for as many rows at a time as a vector has lanes. */
static void k_nv_pack(const float *x, size_t n, float scale, float inverse, uint8_t *scales, uint8_t *out) {
  for (size_t start = 0; start < n; start += LANES * LANES) {
    size_t m = n - start < LANES * LANES ? n - start : LANES * LANES, rows = (m + LANES - 1) / LANES;
    float most[LANES] = {0}, factor[LANES];
    STEPS(i, k, m) {
      uint32_t bits = lane_max(magnitude_bits(get(x + start + i, k)));
      memcpy(&most[i / LANES], &bits, sizeof bits);
    }
    vi code = mini_code(v_mul(v_load(most), v_set(inverse)), E4M3);
    vf row = v_mul(mini_value(code, E4M3), v_set(scale));
    v_store(factor, v_select(v_lt(v_set(0.0f), row), v_div(v_set(1.0f), row), v_set(0.0f)));
    put_bytes(scales + start / LANES, code, rows);
    STEPS(i, k, m) {
      vf values = v_mul(get(x + start + i, k), v_set(factor[i / LANES]));
      put_bits(out + (start + i) / 2, mini_code(values, E2M1), k, 4);
    }
  }
}

INLINE void nv_unpack(const uint8_t *scales, const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  const uint8_t *end = in + (n + 1) / 2;
  STEPS(i, k, n) {
    vf row = mini_value(i_set(scales[i / PITH_NV_ROW]), E4M3);
    vi code = get_bits(in + i / 2, end, k, 4);
    vf value = mini_value(code, E2M1);
    apply(dst + i, v_mul(value, v_mul(row, v_set(scale))), k, mode);
  }
}

static void k_nv_unpack(const uint8_t *scales, const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  if (mode == PITH_ADD) {
    nv_unpack(scales, in, n, scale, PITH_ADD, dst);
  } else {
    nv_unpack(scales, in, n, scale, PITH_SET, dst);
  }
}

#undef E4M3
#undef E5M2
#undef E2M3
#undef E3M2
#undef E2M1
#undef TYPE
#undef SAME_TYPE

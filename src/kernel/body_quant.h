/* SPDX-License-Identifier: Apache-2.0 */
/* Quantizers with uniform levels, with levels of any spacing, and with powers of two. One body; bits are a constant of
 * each instance. Part of body.h. */

INLINE void quantize(const float *x, size_t n, const pith_quantizer *q, int bits, int random, pith_key key,
                     uint32_t index, uint8_t *out) {
  vf lo = v_set(q->lo), inverse = v_set(q->inverse);
  vi zero = i_set(q->zero), top = i_set(q->top), bottom = i_set(0);
  STEPS(i, k, n) {
    vf t = v_mul(v_sub(get(x + i, k), lo), inverse);
    vi level = random ? round_random(t, key, index + (uint32_t)i) : i_round(t);
    level = i_min(i_max(i_add(level, zero), bottom), top);
    put_bits(out + i / 8 * (size_t)bits, level, k, bits);
  }
}

INLINE void dequantize(const uint8_t *in, size_t n, const pith_dequantizer *q, int bits, pith_mode mode, float *dst) {
  const uint8_t *end = in + (n * (size_t)bits + 7) / 8;
  vf base = v_set(q->base), unit = v_set(q->unit);
  vi zero = i_set(q->zero);
  STEPS(i, k, n) {
    vi level = get_bits(in + i / 8 * (size_t)bits, end, k, bits);
    apply(dst + i, v_add(base, v_mul(unit, v_from(i_sub(level, zero)))), k, mode);
  }
}

#define DEFINE_UNIFORM(b)                                                                                            \
  static void k_quantize_##b(const float *x, size_t n, const pith_quantizer *q, uint8_t *out) {                      \
    quantize(x, n, q, b, 0, (pith_key){0, 0}, 0, out);                                                               \
  }                                                                                                                  \
  static void k_quantize_random_##b(const float *x, size_t n, const pith_quantizer *q, pith_key key, uint32_t index, \
                                    uint8_t *out) {                                                                  \
    quantize(x, n, q, b, 1, key, index, out);                                                                        \
  }                                                                                                                  \
  static void k_dequantize_##b(const uint8_t *in, size_t n, const pith_dequantizer *q, pith_mode mode, float *dst) { \
    if (mode == PITH_ADD) {                                                                                          \
      dequantize(in, n, q, b, PITH_ADD, dst);                                                                        \
    } else {                                                                                                         \
      dequantize(in, n, q, b, PITH_SET, dst);                                                                        \
    }                                                                                                                \
  }
DEFINE_UNIFORM(1)
DEFINE_UNIFORM(2)
DEFINE_UNIFORM(3)
DEFINE_UNIFORM(4)
DEFINE_UNIFORM(5)
DEFINE_UNIFORM(6)
DEFINE_UNIFORM(7)
DEFINE_UNIFORM(8)
#undef DEFINE_UNIFORM

INLINE void classify(const float *x, size_t n, float inverse, const float *cuts, int bits, uint8_t *out) {
  vf factor = v_set(inverse);
  STEPS(i, k, n) {
    vf y = v_mul(get(x + i, k), factor);
    vi level = i_set(0);
    for (int c = 0; c < (1 << bits) - 1; c++) {
      level = i_select(v_le(v_set(cuts[c]), y), i_set(c + 1), level);
    }
    put_bits(out + i / 8 * (size_t)bits, level, k, bits);
  }
}

INLINE void lookup(const uint8_t *in, size_t n, const float *levels, int bits, pith_mode mode, float *dst) {
  const uint8_t *end = in + (n * (size_t)bits + 7) / 8;
  vf table = v_loadn(levels, (size_t)1 << bits);
  STEPS(i, k, n) { apply(dst + i, v_permute(table, get_bits(in + i / 8 * (size_t)bits, end, k, bits)), k, mode); }
}

#define DEFINE_LEVELS(b)                                                                                   \
  static void k_classify_##b(const float *x, size_t n, float inverse, const float *cuts, uint8_t *out) {   \
    classify(x, n, inverse, cuts, b, out);                                                                 \
  }                                                                                                        \
  static void k_lookup_##b(const uint8_t *in, size_t n, const float *levels, pith_mode mode, float *dst) { \
    if (mode == PITH_ADD) {                                                                                \
      lookup(in, n, levels, b, PITH_ADD, dst);                                                             \
    } else {                                                                                               \
      lookup(in, n, levels, b, PITH_SET, dst);                                                             \
    }                                                                                                      \
  }
DEFINE_LEVELS(1)
DEFINE_LEVELS(2)
DEFINE_LEVELS(3)
DEFINE_LEVELS(4)
#undef DEFINE_LEVELS

/* A magnitude lies between two neighbours among 0, 2^(1−top), … 1/2, 1. Between powers of two its place is its
 * mantissa; all steps are exact, since only exponents change. */
INLINE vi power_level(vf size, int top, int random, pith_key key, uint32_t index) {
  vi bits = i_cast(size), below = i_add(i_shr(bits, 23), i_set(top - 127));
  vf mantissa = v_sub(v_cast(i_or(i_and(bits, i_set(0x7fffff)), i_set(0x3f800000))), v_set(1.0f));
  vm lowest = i_lt(below, i_set(1));
  vf place = v_select(lowest, v_mul(size, v_cast(i_set((top + 126) << 23))), mantissa); /* 2^(top−1) */
  vm up = random ? v_lt(draw_unit(key, index), place) : v_lt(v_set(0.5f), place);
  below = i_select(lowest, i_set(0), below);
  return i_min(i_select(up, i_add(below, i_set(1)), below), i_set(top));
}

INLINE void power_pack(const float *x, size_t n, float inverse, int bits, int random, pith_key key, uint32_t index,
                       uint8_t *out) {
  vf factor = v_set(inverse);
  STEPS(i, k, n) {
    vf y = v_mul(get(x + i, k), factor);
    vf size = v_min(v_cast(magnitude_bits(y)), v_set(1.0f));
    vi level = power_level(size, (1 << (bits - 1)) - 1, random, key, index + (uint32_t)i);
    vi sign = i_shl(i_shr(i_cast(y), 31), bits - 1);
    put_bits(out + i / 8 * (size_t)bits, i_select(i_eq(level, i_set(0)), level, i_or(level, sign)), k, bits);
  }
}

INLINE void power_unpack(const uint8_t *in, size_t n, float scale, int bits, pith_mode mode, float *dst) {
  const uint8_t *end = in + (n * (size_t)bits + 7) / 8;
  const int top = (1 << (bits - 1)) - 1;
  STEPS(i, k, n) {
    vi code = get_bits(in + i / 8 * (size_t)bits, end, k, bits), level = i_and(code, i_set(top));
    vi power = i_shl(i_add(level, i_set(127 - top)), 23), sign = i_shl(i_shr(code, bits - 1), 31);
    power = i_or(i_select(i_eq(level, i_set(0)), i_set(0), power), sign);
    apply(dst + i, v_mul(v_set(scale), v_cast(power)), k, mode);
  }
}

#define DEFINE_POWERS(b)                                                                                          \
  static void k_power_pack_##b(const float *x, size_t n, float inverse, int random, pith_key key, uint32_t index, \
                               uint8_t *out) {                                                                    \
    if (random) {                                                                                                 \
      power_pack(x, n, inverse, b, 1, key, index, out);                                                           \
    } else {                                                                                                      \
      power_pack(x, n, inverse, b, 0, key, index, out);                                                           \
    }                                                                                                             \
  }                                                                                                               \
  static void k_power_unpack_##b(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {          \
    if (mode == PITH_ADD) {                                                                                       \
      power_unpack(in, n, scale, b, PITH_ADD, dst);                                                               \
    } else {                                                                                                      \
      power_unpack(in, n, scale, b, PITH_SET, dst);                                                               \
    }                                                                                                             \
  }
DEFINE_POWERS(2)
DEFINE_POWERS(3)
DEFINE_POWERS(4)
DEFINE_POWERS(5)
DEFINE_POWERS(6)
DEFINE_POWERS(7)
DEFINE_POWERS(8)
#undef DEFINE_POWERS

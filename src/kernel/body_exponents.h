/* SPDX-License-Identifier: Apache-2.0 */
/* Floats apart, as lossless has them: their exponents, and planes of the rest; and codes of a few bits for exponents
 * that lie close together. Part of body.h. */

/* Of any alignment. */
INLINE vi get_halves(const void *p, size_t k) {
  if (k == LANES) {
    return i_load16(p);
  }
  uint16_t halves[LANES] = {0};
  memcpy(halves, p, k * sizeof *halves);
  return i_load16(halves);
}

INLINE void put_halves(void *p, vi x, size_t k) {
  if (k == LANES) {
    i_store16(p, x);
  } else {
    uint16_t halves[LANES];
    i_store16(halves, x);
    memcpy(p, halves, k * sizeof *halves);
  }
}

/* ---- Apart and together ------------------------------------------------------------------------------------------ */

static void k_float_split_f32(const void *x, size_t n, uint8_t *planes, uint8_t *exponents) {
  const float *values = x;
  STEPS(i, k, n) {
    vi bits = i_cast(get(values + i, k));
    put_halves(planes + 2 * i, i_and(bits, i_set(0xffff)), k);
    put_bytes(planes + 2 * n + i, i_or(i_and(i_shr(bits, 16), i_set(0x7f)), i_shl(i_shr(bits, 31), 7)), k);
    put_bytes(exponents + i, i_and(i_shr(bits, 23), i_set(0xff)), k);
  }
}

static void k_float_join_f32(const uint8_t *planes, const uint8_t *exponents, size_t n, void *x) {
  float *values = x;
  STEPS(i, k, n) {
    vi low = get_halves(planes + 2 * i, k), high = get_bytes(planes + 2 * n + i, k);
    vi exponent = get_bytes(exponents + i, k);
    vi size = i_or(i_or(low, i_shl(i_and(high, i_set(0x7f)), 16)), i_shl(exponent, 23));
    put(values + i, v_cast(i_or(size, i_shl(i_shr(high, 7), 31))), k);
  }
}

static void k_float_split_f16(const void *x, size_t n, uint8_t *planes, uint8_t *exponents) {
  const uint16_t *values = x;
  STEPS(i, k, n) {
    vi bits = get_halves(values + i, k);
    put_bytes(planes + i, i_and(bits, i_set(0xff)), k);
    put_bits(planes + n + i / 8 * 3, i_or(i_and(i_shr(bits, 8), i_set(3)), i_shl(i_shr(bits, 15), 2)), k, 3);
    put_bytes(exponents + i, i_and(i_shr(bits, 10), i_set(0x1f)), k);
  }
}

static void k_float_join_f16(const uint8_t *planes, const uint8_t *exponents, size_t n, void *x) {
  uint16_t *values = x;
  const uint8_t *end = planes + n + (3 * n + 7) / 8;
  STEPS(i, k, n) {
    vi low = get_bytes(planes + i, k), high = get_bits(planes + n + i / 8 * 3, end, k, 3);
    vi exponent = i_and(get_bytes(exponents + i, k), i_set(0x1f));
    vi size = i_or(i_or(low, i_shl(i_and(high, i_set(3)), 8)), i_shl(exponent, 10));
    put_halves(values + i, i_or(size, i_shl(i_shr(high, 2), 15)), k);
  }
}

static void k_float_split_bf16(const void *x, size_t n, uint8_t *planes, uint8_t *exponents) {
  const uint16_t *values = x;
  STEPS(i, k, n) {
    vi bits = get_halves(values + i, k);
    put_bytes(planes + i, i_or(i_and(bits, i_set(0x7f)), i_shl(i_shr(bits, 15), 7)), k);
    put_bytes(exponents + i, i_and(i_shr(bits, 7), i_set(0xff)), k);
  }
}

static void k_float_join_bf16(const uint8_t *planes, const uint8_t *exponents, size_t n, void *x) {
  uint16_t *values = x;
  STEPS(i, k, n) {
    vi rest = get_bytes(planes + i, k), exponent = get_bytes(exponents + i, k);
    vi size = i_or(i_and(rest, i_set(0x7f)), i_shl(exponent, 7));
    put_halves(values + i, i_or(size, i_shl(i_shr(rest, 7), 15)), k);
  }
}

/* ---- Codes ------------------------------------------------------------------------------------------------------- */

INLINE vm first_lanes(vm m, size_t k) { return m_from(m_bits(m) & (0xffffu >> (LANES - k))); }

INLINE size_t window_pack(const uint8_t *exponents, size_t n, int base, int bits, uint8_t *out, uint8_t *escapes) {
  vi escape = i_set((1 << bits) - 1), zero = i_set(0);
  uint8_t *at = escapes;
  STEPS(i, k, n) {
    vi exponent = get_bytes(exponents + i, k), above = i_sub(exponent, i_set(base));
    vi code = i_select(i_lt(above, zero), escape, i_min(above, escape));
    vm escaped = i_eq(code, escape);
    escaped = k == LANES ? escaped : first_lanes(escaped, k);
    put_bits(out + i / 8 * (size_t)bits, code, k, bits);
    i_compress8(at, exponent, escaped);
    at += __builtin_popcount(m_bits(escaped));
  }
  return (size_t)(at - escapes);
}

INLINE void window_unpack(const uint8_t *in, size_t n, int base, int bits, const uint8_t *escapes, size_t count,
                          uint8_t *exponents) {
  const uint8_t *end = in + (n * (size_t)bits + 7) / 8;
  size_t used = 0;
  STEPS(i, k, n) {
    vi code = get_bits(in + i / 8 * (size_t)bits, end, k, bits);
    vm escaped = i_eq(code, i_set((1 << bits) - 1));
    vi window = i_and(i_add(code, i_set(base)), i_set(0xff));
    put_bytes(exponents + i, i_select(escaped, i_expand8(escapes + used, escaped), window), k);
    used += (size_t)__builtin_popcount(m_bits(escaped));
    used = used < count ? used : count;
  }
}

#define DEFINE_WINDOW(b)                                                                                          \
  static size_t k_window_pack_##b(const uint8_t *exponents, size_t n, int base, uint8_t *out, uint8_t *escapes) { \
    return window_pack(exponents, n, base, b, out, escapes);                                                      \
  }                                                                                                               \
  static void k_window_unpack_##b(const uint8_t *in, size_t n, int base, const uint8_t *escapes, size_t count,    \
                                  uint8_t *exponents) {                                                           \
    window_unpack(in, n, base, b, escapes, count, exponents);                                                     \
  }
DEFINE_WINDOW(1)
DEFINE_WINDOW(2)
DEFINE_WINDOW(3)
DEFINE_WINDOW(4)
DEFINE_WINDOW(5)
#undef DEFINE_WINDOW

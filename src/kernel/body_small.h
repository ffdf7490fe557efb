/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of a few bits that are not uniform levels: signs, trits, powers of two, the 8-bit dynamic tree. Part of
 * body.h. */

static void k_sign_pack(const float *x, size_t n, uint8_t *out) {
  STEPS(i, k, n) {
    uint32_t bits = m_bits(v_lt(get(x + i, k), v_set(0.0f)));
    out[i / 8] = (uint8_t)bits;
    if (k > 8) {
      out[i / 8 + 1] = (uint8_t)(bits >> 8);
    }
  }
}

static void k_sign_unpack(const uint8_t *in, size_t n, float plus, float minus, pith_mode mode, float *dst) {
  vf p = v_set(plus), m = v_set(minus);
  STREAM(i, k, n) {
    uint32_t bits = in[i / 8] | (k > 8 ? (uint32_t)in[i / 8 + 1] << 8 : 0);
    apply(dst + i, v_select(m_from(bits), m, p), k, mode);
  }
}

/* A group is two steps of 16 values. */
static uint32_t k_vote_pack(const float *x, size_t n, int odd, uint8_t *zeros, uint8_t *out) {
  uint32_t minus = odd ? 0x5555 : 0xaaaa, all = 0xffff;
  int before = 0; /* whether the step before was all zeros */
  vi most = i_set(0);
  STEPS(i, k, n) {
    vf a = get(x + i, k); /* lanes that do not exist are zero */
    vi size = magnitude_bits(a);
    uint32_t none = m_bits(i_eq(size, i_set(0))), bits = m_bits(v_lt(a, v_set(0.0f)));
    most = i_max(most, size);
    if (none) { /* seldom */
      int ends = i & LANES ? before : i + LANES >= n;
      zeros[i / 256] |= (uint8_t)((uint32_t)(ends && none == all) << (i / 32 % 8));
      bits = (bits | (none & minus)) & (all >> (LANES - k));
    }
    before = none == all;
    out[i / 8] = (uint8_t)bits;
    if (k > 8) {
      out[i / 8 + 1] = (uint8_t)(bits >> 8);
    }
  }
  return lane_max(most);
}

static void k_vote_unpack(const uint8_t *zeros, const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  for (size_t first = 0; first < n; first += 256) { /* those of a byte of `zeros` */
    size_t m = n - first < 256 ? n - first : 256;
    uint32_t none = zeros[first / 256];
    for (size_t i = 0; none && i < m; i += 32) {
      size_t count = m - i < 32 ? m - i : 32;
      float plus = none >> (i / 32) & 1 ? 0.0f : scale;
      k_sign_unpack(in + (first + i) / 8, count, plus, plus == 0.0f ? 0.0f : -scale, mode, dst + first + i);
    }
    k_sign_unpack(in + first / 8, none ? 0 : m, scale, -scale, mode, dst + first);
  }
}

/*
 * Trits travel in groups of 80: byte j holds the trits of values j, j + 16, … j + 64, the first with weight 1, the next
 * with 3, 9, 27, 81. A last group of m < 80 values has w = ⌈m/5⌉ bytes and stride w in place of 16.
 */
#define TRIT_GROUP 80

INLINE vi draw_trits(const float *x, size_t k, vf clip, vf inverse, pith_key key, uint32_t index) {
  vf clipped = v_min(v_max(get(x, k), v_sub(v_set(0.0f), clip)), clip);
  vi trit = i_add(round_random(v_mul(clipped, inverse), key, index), i_set(1));
  return i_min(i_max(trit, i_set(0)), i_set(2));
}

static void k_tern_pack(const float *x, size_t n, float clip, float inverse, pith_key key, uint32_t index,
                        uint8_t *out) {
  for (size_t start = 0; start < n; start += TRIT_GROUP) {
    size_t m = n - start < TRIT_GROUP ? n - start : TRIT_GROUP, width = (m + 4) / 5;
    vi code = i_set(0);
    for (size_t digit = 5; digit-- > 0;) {
      size_t first = digit * width, k = first >= m ? 0 : m - first < width ? m - first : width;
      vi trits = draw_trits(x + start + (k ? first : 0), k, v_set(clip), v_set(inverse), key,
                            index + (uint32_t)(start + first));
      code = i_add(i_mul(code, i_set(3)), i_select(m_from((1u << k) - 1), trits, i_set(0)));
    }
    put_bytes(out + start / 5, code, width);
  }
}

INLINE void tern_unpack(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  vf s = v_set(scale);
  for (size_t start = 0; start < n; start += TRIT_GROUP) {
    size_t m = n - start < TRIT_GROUP ? n - start : TRIT_GROUP, width = (m + 4) / 5;
    vi code = get_bytes(in + start / 5, width);
    for (size_t first = 0; first < m; first += width) {
      vi third = i_shr(i_mul(code, i_set(171)), 9); /* code / 3 for code < 256 */
      vi trit = i_sub(code, i_mul(third, i_set(3)));
      size_t k = m - first < width ? m - first : width;
      apply(dst + start + first, v_mul(s, v_from(i_sub(trit, i_set(1)))), k, mode);
      code = third;
    }
  }
}

static void k_tern_unpack(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  if (mode == PITH_ADD) {
    tern_unpack(in, n, scale, PITH_ADD, dst);
  } else {
    tern_unpack(in, n, scale, PITH_SET, dst);
  }
}

static uint8_t k_byte_max(const uint8_t *in, size_t n) {
  uint8_t most = 0;
  for (size_t i = 0; i < n; i++) {
    most = in[i] > most ? in[i] : most;
  }
  return most;
}

/* Adding 23 random bits to the mantissa carries into the exponent with the probability that unbiased rounding asks for,
 * for subnormals too. */
static void k_natural_pack(const float *x, size_t n, int32_t top, pith_key key, uint32_t index, uint8_t *out) {
  STEPS(i, k, n) {
    vf a = get(x + i, k);
    vi noise = i_and(draw(key, index + (uint32_t)i), i_set(0x7fffff));
    vi exponent = i_min(i_shr(i_add(magnitude_bits(a), noise), 23), i_set(top));
    vi code = i_max(i_sub(exponent, i_set(top - 127)), i_set(0));
    code = i_select(i_eq(exponent, i_set(0)), i_set(0), code);
    vi sign = i_shl(i_shr(i_cast(a), 31), 7);
    put_bytes(out + i, i_select(i_eq(code, i_set(0)), code, i_or(code, sign)), k);
  }
}

static void k_natural_unpack(const uint8_t *in, size_t n, int32_t top, pith_mode mode, float *dst) {
  STEPS(i, k, n) {
    vi byte = get_bytes(in + i, k), code = i_and(byte, i_set(0x7f));
    vi exponent = i_add(code, i_set(top - 127));
    vi bits = i_or(i_shl(exponent, 23), i_shl(i_shr(byte, 7), 31));
    vm zero = i_lt(i_select(i_eq(code, i_set(0)), i_set(0), exponent), i_set(1));
    apply(dst + i, v_cast(i_select(zero, i_set(0), bits)), k, mode);
  }
}

/*
 * Number m of the tree is 2^d + f, f < 2^d: d (0…6) says the decade, f the place in it, and the value is
 * 10^(d-6) · (0.1 + 0.9·(f + 1)/2^d). Tables by d, so that lanes of different decades go together:
 */
#define TREE8_DECADES(scale) \
  {1e-6f * (scale), 1e-5f * (scale), 1e-4f * (scale), 1e-3f * (scale), 1e-2f * (scale), 1e-1f * (scale), scale}
static const float tree8_power[LANES] = {1, 2, 4, 8, 16, 32, 64};
static const float tree8_base[LANES] = TREE8_DECADES(0.1f);
static const float tree8_step[LANES] = {0.9e-6f,     0.45e-5f,     0.225e-4f, 0.1125e-3f,
                                        0.05625e-2f, 0.028125e-1f, 0.0140625f};
/* Place in the decade = x · gain − shift, a whole number at each value. Below 10^-6 there is only 0, at place 0. */
static const float tree8_gain[LANES] = {
    1e6f, 1e5f * (2 / 0.9f), 1e4f * (4 / 0.9f), 1e3f * (8 / 0.9f), 1e2f * (16 / 0.9f), 1e1f * (32 / 0.9f), 64 / 0.9f};
static const float tree8_shift[LANES] = {0,           0.2f / 0.9f, 0.4f / 0.9f, 0.8f / 0.9f,
                                         1.6f / 0.9f, 3.2f / 0.9f, 6.4f / 0.9f};

static void k_tree8_pack(const float *x, size_t n, float inverse, uint8_t *out) {
  static const float border[7] = TREE8_DECADES(1.0f);
  vf power = v_load(tree8_power), gain = v_load(tree8_gain), shift = v_load(tree8_shift);
  STEPS(i, k, n) {
    vf y = v_mul(get(x + i, k), v_set(inverse)), size = v_cast(magnitude_bits(y));
    vi decade = i_set(0);
    for (int d = 0; d < 6; d++) {
      decade = i_select(v_lt(v_set(border[d]), size), i_set(d + 1), decade);
    }
    vf place = v_sub(v_mul(size, v_permute(gain, decade)), v_permute(shift, decade));
    vi number = i_sub(i_round(v_add(place, v_permute(power, decade))), i_set(1));
    number = i_min(i_max(number, i_set(0)), i_set(127));
    put_bytes(out + i, i_or(number, i_shl(i_shr(i_cast(y), 31), 7)), k);
  }
}

static void k_tree8_unpack(const uint8_t *in, size_t n, float scale, pith_mode mode, float *dst) {
  vf power = v_load(tree8_power), base = v_load(tree8_base), step = v_load(tree8_step), factor = v_set(scale);
  STEPS(i, k, n) {
    vi byte = get_bytes(in + i, k), number = i_and(byte, i_set(0x7f));
    vf m = v_from(number);
    vi decade = i_max(i_sub(i_shr(i_cast(m), 23), i_set(127)), i_set(0)); /* the exponent of m is ⌊log2 m⌋ */
    vf place = v_add(v_sub(m, v_permute(power, decade)), v_set(1.0f));
    vf value = v_add(v_permute(base, decade), v_mul(v_permute(step, decade), place));
    value = v_select(i_eq(number, i_set(0)), v_set(0.0f), value);
    vf signed_value = v_cast(i_xor(i_cast(value), i_shl(i_shr(byte, 7), 31)));
    apply(dst + i, v_mul(factor, signed_value), k, mode);
  }
}

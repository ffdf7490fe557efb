/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codes that follow from more than the value itself: what takes 0, 1, 2 or 4 bytes by its size, and the quantile
 * buckets of a whole tensor. Lanes are worked on together; only moving them to their places goes one by one. Part of
 * body.h.
 */

/* ---- As few bytes as a bound allows ------------------------------------------------------------------------------ */

/* Bytes behind a tag of 0…3: 0, 1, 2, 4. */
INLINE vi tag_bytes(vi tag) { return i_add(tag, i_and(tag, i_shr(tag, 1))); }

INLINE vf distance(vf x, vi count, vf step) { return v_cast(magnitude_bits(v_sub(x, v_mul(v_from(count), step)))); }

/* Multiples of the step lie near x, so that their differences to x are exact in f32. The nearest of them may be missed
 * by one, since 1/step is rounded: where the first is too far, the one on the other side of x is tried. */
INLINE vi bounded_code(vf x, vf bound, vf step, vf inverse, vi *tag) {
  vf limit = v_set(32768.0f), place = v_max(v_min(v_mul(x, inverse), limit), v_sub(v_set(0.0f), limit));
  vi near = i_round(place);
  vm beyond = v_lt(v_mul(v_from(near), step), x);
  vi next = i_add(near, i_select(beyond, i_set(1), i_set(-1)));
  vi count = i_select(v_le(distance(x, near, step), bound), near, next);
  vi size = i_max(count, i_sub(i_set(0), count));
  vi found = i_select(i_lt(size, i_set(128)), i_set(1), i_select(i_lt(size, i_set(32768)), i_set(2), i_set(3)));
  found = i_select(v_le(distance(x, count, step), bound), found, i_set(3));
  *tag = i_select(v_le(v_cast(magnitude_bits(x)), bound), i_set(0), found);
  vi finite = i_select(i_lt(magnitude_bits(x), i_set((int32_t)PITH_INF_BITS)), i_cast(x), i_set(0x7fc00000));
  return i_select(i_eq(*tag, i_set(3)), finite, count);
}

static size_t k_bounded_pack(const float *x, size_t n, float bound, float step, uint8_t *tags, uint8_t *out) {
  vf b = v_set(bound), s = v_set(step), inverse = v_set(1.0f / step);
  uint8_t *at = out;
  STEPS(i, k, n) {
    vi tag, word = bounded_code(get(x + i, k), b, s, inverse, &tag), bytes = tag_bytes(tag);
    uint32_t words[LANES], sizes[LANES];
    memcpy(words, &word, sizeof words);
    memcpy(sizes, &bytes, sizeof sizes);
    put_bits(tags + i / 4, tag, k, 2);
    for (size_t j = 0; j < k; j++) { /* the next one overwrites what is too much */
      memcpy(at, &words[j], sizeof *words);
      at += sizes[j];
    }
  }
  return (size_t)(at - out);
}

/* The low `bits` bits as a signed number. */
INLINE vi sign_extend(vi x, int bits) {
  vi half = i_set(1 << (bits - 1));
  return i_sub(i_xor(i_and(x, i_set((1 << bits) - 1)), half), half);
}

INLINE vf bounded_value(vi tag, vi word, vf step) {
  vi count = i_select(i_eq(tag, i_set(1)), sign_extend(word, 8), sign_extend(word, 16));
  vf value = v_select(i_eq(tag, i_set(3)), v_cast(word), v_mul(v_from(count), step));
  return v_select(i_eq(tag, i_set(0)), v_set(0.0f), value);
}

/* Where fewer than 16 words are left to read, they are read from a copy with room behind it. */
INLINE void bounded_unpack(const uint8_t *tags, const uint8_t *in, const uint8_t *end, size_t n, float step,
                           pith_mode mode, float *dst) {
  STEPS(i, k, n) {
    vi tag = get_bits(tags + i / 4, tags + (n + 3) / 4, k, 2), bytes = tag_bytes(tag), word;
    uint8_t copy[LANES * sizeof(uint32_t)] = {0};
    uint32_t words[LANES] = {0}, sizes[LANES];
    size_t left = (size_t)(end - in), used = 0;
    const uint8_t *from = left < sizeof copy ? memcpy(copy, in, left) : in;
    memcpy(sizes, &bytes, sizeof sizes);
    for (size_t j = 0; j < k; j++) {
      memcpy(&words[j], from + used, sizeof *words);
      used += sizes[j];
    }
    in += used;
    memcpy(&word, words, sizeof word);
    apply(dst + i, bounded_value(tag, word, v_set(step)), k, mode);
  }
}

static void k_bounded_unpack(const uint8_t *tags, const uint8_t *in, const uint8_t *end, size_t n, float step,
                             pith_mode mode, float *dst) {
  if (mode == PITH_ADD) {
    bounded_unpack(tags, in, end, n, step, PITH_ADD, dst);
  } else {
    bounded_unpack(tags, in, end, n, step, PITH_SET, dst);
  }
}

/* ---- Quantile buckets -------------------------------------------------------------------------------------------- */

#define PIECE 256 /* values whose bins are found before any is looked up: the lookups then overlap */

/* The upper 16 bits of floats in their order: negative ones count down as bits, the others up; both zeros are one. */
INLINE vi order_bin(vf x) {
  vi bits = i_cast(x), size = magnitude_bits(x), upper = i_shr(size, 16), zero = i_set(PITH_ORDER_BINS / 2);
  vi bin = i_select(i_lt(bits, i_set(0)), i_sub(i_set(PITH_ORDER_BINS / 2 - 1), upper), i_add(zero, upper));
  return i_select(i_eq(size, i_set(0)), zero, bin);
}

/* The bins of up to PIECE values; returns how many. */
INLINE size_t order_bins(const float *x, size_t left, uint16_t bins[PIECE]) {
  size_t n = left < PIECE ? left : PIECE;
  STEPS(i, k, n) { i_store16(bins + i, order_bin(get(x + i, k))); }
  return n;
}

static void k_order_count(const float *x, size_t n, uint64_t *count) {
  uint16_t bins[PIECE];
  for (size_t first = 0; first < n; first += PIECE) {
    for (size_t j = 0, m = order_bins(x + first, n - first, bins); j < m; j++) {
      count[bins[j]]++;
    }
  }
}

static void k_order_number(const float *x, size_t n, const uint8_t *bucket, double *sum, uint8_t *number) {
  uint16_t bins[PIECE];
  for (size_t first = 0; first < n; first += PIECE) {
    for (size_t j = 0, m = order_bins(x + first, n - first, bins); j < m; j++) {
      uint8_t b = bucket[bins[j]];
      number[first + j] = b;
      sum[b] += (double)x[first + j];
    }
  }
}

#undef PIECE

#define DEFINE_PACK(b)                                                        \
  static void k_pack_##b(const uint8_t *in, size_t n, uint8_t *out) {         \
    STEPS(i, k, n) { put_bits(out + i / 8 * b, get_bytes(in + i, k), k, b); } \
  }
DEFINE_PACK(1)
DEFINE_PACK(2)
DEFINE_PACK(3)
DEFINE_PACK(4)
DEFINE_PACK(5)
DEFINE_PACK(6)
DEFINE_PACK(7)
DEFINE_PACK(8)
#undef DEFINE_PACK

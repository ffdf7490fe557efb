/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection by magnitude: the loops that sparsifiers scan a tensor with.
 *
 * Values are compared as integers: the bits of |x| order like |x|, and NaN and Inf stand above every finite value, so
 * that a selection of the largest never loses them. Such a key has 31 bits and compares as a signed number.
 *
 * Without an instruction to compress, a scan goes by groups of 64 values and one mask, since most groups have no hit.
 */

#define GROUP 64

/* A mask that is a register, not a vector, comes with an instruction that compresses by it: cheaper than any walk. */
#define MASKS_ARE_REGISTERS (sizeof(vm) == sizeof(uint16_t))

/* The bits of |x|, or 0 for values of the other side. `side` is a constant wherever this is inlined. */
INLINE vi x_key(vf x, pith_side side) {
  vi bits = i_cast(x), key = i_and(bits, i_set(0x7fffffff)), zero = i_set(0);
  if (side == PITH_SIDE_BOTH) {
    return key;
  }
  vm negative = i_lt(bits, zero);
  return side == PITH_SIDE_POSITIVE ? i_select(negative, zero, key) : i_select(negative, key, zero);
}

/* The next 16 values, or the `left` that remain and zeros. */
INLINE vf x_next(const float *x, size_t left) { return left >= LANES ? v_load(x) : v_loadn(x, left); }

/* A bit for each of 16 lanes that hold a value. */
INLINE uint32_t x_lanes(size_t left) { return left >= LANES ? 0xffff : (1u << left) - 1; }

/* A bit for each of the next 64 values at or above `cut`; those beyond `left` have none. The test is key > cut − 1,
 * so that cuts of 0 and of 2^31 (above every key) stay right in signed arithmetic. */
INLINE uint64_t x_hits(const float *x, size_t left, pith_side side, uint32_t cut) {
  vi below = i_set((int32_t)(cut - 1));
  uint64_t hits = 0;
  for (size_t j = 0; j < GROUP && j < left; j += LANES) {
    hits |= (uint64_t)m_bits(i_lt(below, x_key(x_next(x + j, left - j), side))) << j;
  }
  return left < GROUP ? hits & ((1ull << left) - 1) : hits;
}

INLINE size_t x_count(const float *x, size_t n, pith_side side, uint32_t cut) {
  size_t count = 0;
  for (size_t i = 0; i < n; i += GROUP) {
    count += (size_t)__builtin_popcountll(x_hits(x + i, n - i, side, cut));
  }
  return count;
}

static size_t k_count(const float *x, size_t n, pith_side side, uint32_t cut) {
  switch (side) {
    case PITH_SIDE_POSITIVE:
      return x_count(x, n, PITH_SIDE_POSITIVE, cut);
    case PITH_SIDE_NEGATIVE:
      return x_count(x, n, PITH_SIDE_NEGATIVE, cut);
    default:
      return x_count(x, n, PITH_SIDE_BOTH, cut);
  }
}

/* Most groups have no hit or few: a walk over the set bits. */
INLINE size_t x_collect_walk(const float *x, size_t n, pith_side side, uint32_t cut, uint32_t *place, float *value) {
  size_t count = 0;
  for (size_t i = 0; i < n; i += GROUP) {
    for (uint64_t hits = x_hits(x + i, n - i, side, cut); hits; hits &= hits - 1, count++) {
      size_t j = i + (size_t)__builtin_ctzll(hits);
      place[count] = (uint32_t)j;
      value[count] = x[j];
    }
  }
  return count;
}

INLINE size_t x_collect_compress(const float *x, size_t n, pith_side side, uint32_t cut, uint32_t *place,
                                 float *value) {
  size_t count = 0;
  vi places = i_iota(), below = i_set((int32_t)(cut - 1));
  for (size_t i = 0; i < n; i += LANES) {
    vf v = x_next(x + i, n - i);
    uint32_t hits = m_bits(i_lt(below, x_key(v, side))) & x_lanes(n - i);
    i_compress(place + count, places, m_from(hits));
    v_compress(value + count, v, m_from(hits));
    count += (size_t)__builtin_popcount(hits);
    places = i_add(places, i_set(LANES));
  }
  return count;
}

INLINE size_t x_collect(const float *x, size_t n, pith_side side, uint32_t cut, uint32_t *place, float *value) {
  return MASKS_ARE_REGISTERS ? x_collect_compress(x, n, side, cut, place, value)
                             : x_collect_walk(x, n, side, cut, place, value);
}

static size_t k_collect(const float *x, size_t n, pith_side side, uint32_t cut, uint32_t *place, float *value) {
  switch (side) {
    case PITH_SIDE_POSITIVE:
      return x_collect(x, n, PITH_SIDE_POSITIVE, cut, place, value);
    case PITH_SIDE_NEGATIVE:
      return x_collect(x, n, PITH_SIDE_NEGATIVE, cut, place, value);
    default:
      return x_collect(x, n, PITH_SIDE_BOTH, cut, place, value);
  }
}

/* The increments themselves are scalar: two lanes may meet in one bin. */
INLINE void x_histogram(const float *x, size_t n, pith_side side, int shift, uint32_t mask, int above, uint32_t prefix,
                        uint32_t *bins) {
  for (size_t i = 0; i < n; i += LANES) {
    vi key = x_key(x_next(x + i, n - i), side);
    vi bin = i_and(i_shr(key, shift), i_set((int32_t)mask));
    uint32_t hits = m_bits(i_eq(i_shr(key, above), i_set((int32_t)prefix)));
    uint32_t lane[LANES];
    memcpy(lane, &bin, sizeof lane);
    for (hits &= x_lanes(n - i); hits; hits &= hits - 1) {
      bins[lane[__builtin_ctz(hits)]]++;
    }
  }
}

static void k_histogram(const float *x, size_t n, pith_side side, int shift, uint32_t mask, int above, uint32_t prefix,
                        uint32_t *bins) {
  if (above > 31) { /* keys have 31 bits: nothing is left above */
    above = 31;
    prefix = 0;
  }
  switch (side) {
    case PITH_SIDE_POSITIVE:
      x_histogram(x, n, PITH_SIDE_POSITIVE, shift, mask, above, prefix, bins);
      break;
    case PITH_SIDE_NEGATIVE:
      x_histogram(x, n, PITH_SIDE_NEGATIVE, shift, mask, above, prefix, bins);
      break;
    default:
      x_histogram(x, n, PITH_SIDE_BOTH, shift, mask, above, prefix, bins);
      break;
  }
}

#undef GROUP
#undef MASKS_ARE_REGISTERS

/* SPDX-License-Identifier: Apache-2.0 */
/* Conversions, element-wise arithmetic and reductions. Part of body.h. */

/* Halves are read through a copy where a step is not full. */
static void k_f16_to_f32(const uint16_t *src, float *dst, size_t n) {
  STEPS(i, k, n) {
    uint16_t h[LANES] = {0};
    const uint16_t *from = k == LANES ? src + i : memcpy(h, src + i, k * sizeof *h);
    put(dst + i, v_from_f16(from), k);
  }
}

static void k_bf16_to_f32(const uint16_t *src, float *dst, size_t n) {
  STEPS(i, k, n) {
    uint16_t h[LANES] = {0};
    const uint16_t *from = k == LANES ? src + i : memcpy(h, src + i, k * sizeof *h);
    put(dst + i, v_cast(i_shl(i_load16(from), 16)), k);
  }
}

static void k_f32_to_f16(const float *src, uint16_t *dst, size_t n) {
  STEPS(i, k, n) {
    uint16_t h[LANES];
    if (k == LANES) {
      v_to_f16(dst + i, v_load(src + i));
    } else {
      v_to_f16(h, v_loadn(src + i, k));
      memcpy(dst + i, h, k * sizeof *h);
    }
  }
}

INLINE vi to_bf16(vf x) {
  vi u = i_cast(x), top = i_shr(u, 16);
  vi rounded = i_shr(i_add(u, i_add(i_set(0x7fff), i_and(top, i_set(1)))), 16);
  return i_select(i_lt(i_set((int32_t)PITH_INF_BITS), magnitude_bits(x)), i_or(top, i_set(0x40)), rounded);
}

static void k_f32_to_bf16(const float *src, uint16_t *dst, size_t n) {
  STEPS(i, k, n) {
    uint16_t h[LANES];
    if (k == LANES) {
      i_store16(dst + i, to_bf16(v_load(src + i)));
    } else {
      i_store16(h, to_bf16(v_loadn(src + i, k)));
      memcpy(dst + i, h, k * sizeof *h);
    }
  }
}

/* What is cut off is the probability of the next magnitude, in 65536ths. */
INLINE vi to_bf16_random(vf x, pith_key key, uint32_t index) {
  vi size = magnitude_bits(x), sign = i_and(i_shr(i_cast(x), 16), i_set(0x8000));
  vi up = i_min(i_add(size, i_shr(draw(key, index), 16)), i_set((int32_t)PITH_INF_BITS - 1));
  return i_select(i_lt(size, i_set((int32_t)PITH_INF_BITS)), i_or(i_shr(up, 16), sign), i_set(0));
}

static void k_f32_to_bf16_random(const float *src, uint16_t *dst, size_t n, pith_key key, uint32_t index) {
  STEPS(i, k, n) {
    uint16_t h[LANES];
    vi x = to_bf16_random(get(src + i, k), key, index + (uint32_t)i);
    if (k == LANES) {
      i_store16(dst + i, x);
    } else {
      i_store16(h, x);
      memcpy(dst + i, h, k * sizeof *h);
    }
  }
}

static void k_blend(const float *e, const float *g, float beta, float gamma, float *out, size_t n) {
  vf b = v_set(beta), c = v_set(gamma);
  STREAM(i, k, n) { put(out + i, v_add(v_mul(b, get(e + i, k)), v_mul(c, get(g + i, k))), k); }
}

static void k_residual(const float *p, const float *d, float *e, size_t n) {
  STEPS(i, k, n) {
    vf r = v_sub(get(p + i, k), get(d + i, k));
    vm finite = i_lt(magnitude_bits(r), i_set((int32_t)PITH_INF_BITS));
    put(e + i, v_select(finite, r, get(e + i, k)), k);
  }
}

static void k_add(const float *src, float *dst, size_t n) {
  STREAM(i, k, n) { put(dst + i, v_add(get(dst + i, k), get(src + i, k)), k); }
}

static void k_scale(float factor, float *x, size_t n) {
  vf f = v_set(factor);
  STEPS(i, k, n) { put(x + i, v_mul(get(x + i, k), f), k); }
}

static void k_vote(float *x, size_t n) {
  vf plus = v_set(1.0f), minus = v_set(-1.0f), zero = v_set(0.0f);
  STEPS(i, k, n) {
    vf a = get(x + i, k);
    vf r = v_select(v_lt(zero, a), plus, v_select(v_lt(a, zero), minus, a)); /* NaN stays NaN */
    put(x + i, v_select(i_eq(magnitude_bits(a), i_set(0)), zero, r), k);
  }
}

INLINE uint32_t lane_max(vi x) { return (uint32_t)i_most(x); }

static uint32_t k_absmax(const float *x, size_t n) {
  vi most = i_set(0);
  STEPS(i, k, n) { most = i_max(most, magnitude_bits(get(x + i, k))); }
  return lane_max(most);
}

static uint32_t k_range(const float *x, size_t n, float *lo, float *hi) {
  vf first = v_set(n ? x[0] : 0.0f), least = first, greatest = first;
  vi most = i_set(0);
  STEPS(i, k, n) {
    vf a = k == LANES ? v_load(x + i) : v_select(m_from((1u << k) - 1), v_loadn(x + i, k), first);
    least = v_min(a, least);
    greatest = v_max(a, greatest);
    most = i_max(most, magnitude_bits(a));
  }
  float low[LANES], high[LANES];
  v_store(low, least);
  v_store(high, greatest);
  for (int j = 1; j < LANES; j++) {
    low[0] = low[j] < low[0] ? low[j] : low[0];
    high[0] = high[j] > high[0] ? high[j] : high[0];
  }
  *lo = low[0] + 0.0f; /* −0 becomes 0, whichever came first */
  *hi = high[0] + 0.0f;
  return lane_max(most);
}

static void k_moments(const float *x, size_t n, pith_moments *m) {
  vf sum = v_set(0.0f), sum_abs = sum, sum_squares = sum;
  STEPS(i, k, n) {
    vf a = get(x + i, k);
    sum = v_add(sum, a);
    sum_abs = v_add(sum_abs, v_cast(magnitude_bits(a)));
    sum_squares = v_add(sum_squares, v_mul(a, a));
  }
  *m = (pith_moments){lane_sum(sum), lane_sum(sum_abs), lane_sum(sum_squares)};
}

static void k_halves(const float *x, size_t n, pith_halves *h) {
  vf zero = v_set(0.0f), negative = zero, other = zero;
  size_t negatives = 0;
  STEPS(i, k, n) {
    vf a = get(x + i, k);
    vm below = v_lt(a, zero);
    negative = v_add(negative, v_select(below, a, zero));
    other = v_add(other, v_select(below, zero, a));
    negatives += (size_t)__builtin_popcount(m_bits(below));
  }
  *h = (pith_halves){lane_sum(negative), lane_sum(other), negatives};
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The seeded rotation: H·D/√n with D random signs. The butterflies run within vectors first, then between them, two
 * strides at a time; both orders of evaluation are the plain radix-2 one, bit for bit. Part of body.h.
 */

/* The sign bits of values index … index + 15, index being a multiple of 16. */
INLINE uint32_t sign_bits(pith_key key, uint32_t index) { return pith__rng32(key, index / LANES) & 0xffff; }

INLINE vf flip(vf x, uint32_t bits) {
  return v_cast(i_xor(i_cast(x), i_select(m_from(bits), i_set(INT32_MIN), i_set(0))));
}

INLINE float rotation_scale(size_t n) {
  float scale = 1.0f;
  for (; n >= 4; n /= 4) {
    scale *= 0.5f;
  }
  return n == 2 ? scale * 0.70710678f : scale;
}

/* Fewer than 16 values: the tail of a layer. */
static void hadamard_tiny(float *x, size_t n) {
  for (size_t h = 1; h < n; h *= 2) {
    for (size_t i = 0; i < n; i++) {
      if (!(i & h)) {
        float a = x[i], b = x[i + h];
        x[i] = a + b;
        x[i + h] = a - b;
      }
    }
  }
}

INLINE void butterfly2(float *x, size_t n, size_t h) {
  for (size_t start = 0; start < n; start += 2 * h) {
    for (float *p = x + start; p < x + start + h; p += LANES) {
      vf a = v_load(p), b = v_load(p + h);
      v_store(p, v_add(a, b));
      v_store(p + h, v_sub(a, b));
    }
  }
}

INLINE void butterfly4(float *x, size_t n, size_t h) {
  for (size_t start = 0; start < n; start += 4 * h) {
    for (float *p = x + start; p < x + start + h; p += LANES) {
      vf a = v_load(p), b = v_load(p + h), c = v_load(p + 2 * h), d = v_load(p + 3 * h);
      vf ab = v_add(a, b), a_b = v_sub(a, b), cd = v_add(c, d), c_d = v_sub(c, d);
      v_store(p, v_add(ab, cd));
      v_store(p + h, v_add(a_b, c_d));
      v_store(p + 2 * h, v_sub(ab, cd));
      v_store(p + 3 * h, v_sub(a_b, c_d));
    }
  }
}

static void butterflies_between(float *x, size_t n) {
  size_t h = LANES;
  for (; 4 * h <= n; h *= 4) {
    butterfly4(x, n, h);
  }
  if (2 * h <= n) {
    butterfly2(x, n, h);
  }
}

static void flip_tiny(float *x, size_t n, pith_key key, uint32_t index, float scale) {
  uint32_t bits = sign_bits(key, index) >> (index % LANES);
  for (size_t i = 0; i < n; i++) {
    x[i] = scale * (bits >> i & 1 ? -x[i] : x[i]);
  }
}

static void k_rotate(float *x, size_t n, pith_key key, uint32_t index) {
  float scale = rotation_scale(n);
  if (n < LANES) {
    flip_tiny(x, n, key, index, scale);
    hadamard_tiny(x, n);
    return;
  }
  vf factor = v_set(scale);
  for (size_t i = 0; i < n; i += LANES) {
    v_store(x + i, v_hadamard(v_mul(flip(v_load(x + i), sign_bits(key, index + (uint32_t)i)), factor)));
  }
  butterflies_between(x, n);
}

static void k_unrotate(float *x, size_t n, pith_key key, uint32_t index) {
  k_scale(rotation_scale(n), x, n); /* first: sums of n values could overflow, those of rotated ones cannot */
  if (n < LANES) {
    hadamard_tiny(x, n);
    flip_tiny(x, n, key, index, 1.0f);
    return;
  }
  butterflies_between(x, n);
  for (size_t i = 0; i < n; i += LANES) {
    v_store(x + i, flip(v_hadamard(v_load(x + i)), sign_bits(key, index + (uint32_t)i)));
  }
}

/* Uniform quantizers, quantizers with levels of any spacing, and signs. One body; bits are a constant of each
 * instance. Part of body.h. */

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

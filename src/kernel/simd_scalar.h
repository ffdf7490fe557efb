/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The 16-lane vector layer in plain C: the meaning of every operation, and the fallback for any CPU.
 *
 * vf holds 16 floats, vi 16 ints, vm a truth value for each lane. v_* take and give floats, i_* ints, m_* masks.
 * simd_avx2.h and simd_avx512.h define exactly the same names. Operations that look at `bits` expect a constant.
 */
#ifndef PITH_KERNEL_SIMD_H
#define PITH_KERNEL_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/half.h"

#define LANES 16
#define INLINE static inline __attribute__((always_inline, unused))

typedef struct vf {
  float v[LANES];
} vf;
typedef struct vi {
  int32_t v[LANES];
} vi;
typedef struct vm { /* -1 where true, 0 where not: what a compiler can turn into whatever vectors there are */
  int32_t v[LANES];
} vm;

#define EACH for (int j = 0; j < LANES; j++)
#define DEFINE_F2(name, expression) \
  INLINE vf name(vf a, vf b) {      \
    vf r;                           \
    EACH { r.v[j] = expression; }   \
    return r;                       \
  }
#define DEFINE_I2(name, expression)          \
  INLINE vi name(vi a, vi b) {               \
    vi r;                                    \
    EACH { r.v[j] = (int32_t)(expression); } \
    return r;                                \
  }
#define DEFINE_M2(name, type, expression)    \
  INLINE vm name(type a, type b) {           \
    vm r;                                    \
    EACH { r.v[j] = (expression) ? -1 : 0; } \
    return r;                                \
  }
#define UNSIGNED(x) ((uint32_t)(x))

DEFINE_F2(v_add, a.v[j] + b.v[j])
DEFINE_F2(v_sub, a.v[j] - b.v[j])
DEFINE_F2(v_mul, a.v[j] * b.v[j])
DEFINE_F2(v_div, a.v[j] / b.v[j])
DEFINE_F2(v_min, a.v[j] < b.v[j] ? a.v[j] : b.v[j])
DEFINE_F2(v_max, a.v[j] > b.v[j] ? a.v[j] : b.v[j])
DEFINE_I2(i_add, UNSIGNED(a.v[j]) + UNSIGNED(b.v[j]))
DEFINE_I2(i_sub, UNSIGNED(a.v[j]) - UNSIGNED(b.v[j]))
DEFINE_I2(i_mul, UNSIGNED(a.v[j]) * UNSIGNED(b.v[j]))
DEFINE_I2(i_and, a.v[j] & b.v[j])
DEFINE_I2(i_or, a.v[j] | b.v[j])
DEFINE_I2(i_xor, a.v[j] ^ b.v[j])
DEFINE_I2(i_min, a.v[j] < b.v[j] ? a.v[j] : b.v[j])
DEFINE_I2(i_max, a.v[j] > b.v[j] ? a.v[j] : b.v[j])
DEFINE_M2(v_lt, vf, a.v[j] < b.v[j])
DEFINE_M2(v_le, vf, a.v[j] <= b.v[j])
DEFINE_M2(i_lt, vi, a.v[j] < b.v[j])
DEFINE_M2(i_eq, vi, a.v[j] == b.v[j])

INLINE vf v_set(float x) {
  vf r;
  EACH { r.v[j] = x; }
  return r;
}
INLINE vf v_sqrt(vf a) {
  EACH { a.v[j] = sqrtf(a.v[j]); }
  return a;
}
INLINE vi i_set(int32_t x) {
  vi r;
  EACH { r.v[j] = x; }
  return r;
}
INLINE vi i_iota(void) {
  vi r;
  EACH { r.v[j] = j; }
  return r;
}
INLINE vi i_shl(vi a, int count) {
  EACH { a.v[j] = (int32_t)(UNSIGNED(a.v[j]) << count); }
  return a;
}
INLINE vi i_shr(vi a, int count) {
  EACH { a.v[j] = (int32_t)(UNSIGNED(a.v[j]) >> count); }
  return a;
}

INLINE vf v_load(const float *p) {
  vf r;
  memcpy(&r, p, sizeof r);
  return r;
}
INLINE void v_store(float *p, vf a) { memcpy(p, &a, sizeof a); }
/* The first k lanes; the others are zero, and are not read or written. */
INLINE vf v_loadn(const float *p, size_t k) {
  vf r = {{0}};
  memcpy(&r, p, k * sizeof *p);
  return r;
}
INLINE void v_storen(float *p, vf a, size_t k) { memcpy(p, &a, k * sizeof *p); }
INLINE vi i_load8(const uint8_t *p) {
  vi r;
  EACH { r.v[j] = p[j]; }
  return r;
}
INLINE void i_store8(uint8_t *p, vi a) {
  EACH { p[j] = (uint8_t)a.v[j]; }
}
INLINE vi i_load16(const uint16_t *p) {
  uint16_t h[LANES];
  vi r;
  memcpy(h, p, sizeof h);
  EACH { r.v[j] = h[j]; }
  return r;
}
INLINE void i_store16(uint16_t *p, vi a) {
  uint16_t h[LANES];
  EACH { h[j] = (uint16_t)a.v[j]; }
  memcpy(p, h, sizeof h);
}

INLINE vi i_cast(vf a) {
  vi r;
  memcpy(&r, &a, sizeof r);
  return r;
}
INLINE vf v_cast(vi a) {
  vf r;
  memcpy(&r, &a, sizeof r);
  return r;
}
/* To the nearest integer, ties to even; |a| below 2^22. Adding 1.5·2^23 leaves no bits for a fraction. */
INLINE vi i_round(vf a) {
  vi r;
  EACH { r.v[j] = (int32_t)((a.v[j] + 12582912.0f) - 12582912.0f); }
  return r;
}
INLINE vf v_from(vi a) {
  vf r;
  EACH { r.v[j] = (float)a.v[j]; }
  return r;
}
/* |a| below 2^31. */
INLINE vf v_floor(vf a) {
  EACH {
    float t = (float)(int32_t)a.v[j];
    a.v[j] = t > a.v[j] ? t - 1.0f : t;
  }
  return a;
}
INLINE vf v_from_f16(const uint16_t *p) {
  uint16_t h[LANES];
  vf r;
  memcpy(h, p, sizeof h);
  EACH { r.v[j] = pith__f16_to_f32(h[j]); }
  return r;
}
INLINE void v_to_f16(uint16_t *p, vf a) {
  uint16_t h[LANES];
  EACH { h[j] = pith__f32_to_f16(a.v[j]); }
  memcpy(p, h, sizeof h);
}

/* The greatest lane; none is below zero. */
INLINE int32_t i_most(vi a) {
  int32_t most = 0;
  EACH { most = a.v[j] > most ? a.v[j] : most; }
  return most;
}

INLINE uint32_t m_bits(vm m) {
  uint32_t bits = 0;
  EACH { bits |= (uint32_t)(m.v[j] & 1) << j; }
  return bits;
}
INLINE vm m_from(uint32_t bits) {
  vm r;
  EACH { r.v[j] = -(int32_t)(bits >> j & 1); }
  return r;
}
INLINE vi i_select(vm m, vi yes, vi no) {
  EACH { no.v[j] = (yes.v[j] & m.v[j]) | (no.v[j] & ~m.v[j]); }
  return no;
}
INLINE vf v_select(vm m, vf yes, vf no) { return v_cast(i_select(m, i_cast(yes), i_cast(no))); }
/* Writes the lanes of the mask one after another, and nothing else. */
INLINE void v_compress(float *p, vf a, vm m) {
  EACH {
    if (m.v[j]) {
      *p++ = a.v[j];
    }
  }
}
INLINE void i_compress(uint32_t *p, vi a, vm m) {
  EACH {
    if (m.v[j]) {
      *p++ = (uint32_t)a.v[j];
    }
  }
}

/* Lanes of the mask and bytes, one after another; there is room for 16, and the others lanes are 0. */
INLINE void i_compress8(uint8_t *p, vi a, vm m) {
  EACH {
    if (m.v[j]) {
      *p++ = (uint8_t)a.v[j];
    }
  }
}
INLINE vi i_expand8(const uint8_t *p, vm m) {
  vi r;
  EACH { r.v[j] = m.v[j] ? *p++ : 0; }
  return r;
}

/* Lane j of the result is lane index[j] of the table; indices 0…15. */
INLINE vf v_permute(vf table, vi index) {
  vf r;
  EACH { r.v[j] = table.v[index.v[j] & 15]; }
  return r;
}

/* 16 values of `bits` bits to 2·bits bytes, value 0 in the lowest bits. */
INLINE void i_pack(uint8_t *p, vi a, int bits) {
  for (int half = 0; half < 2; half++) {
    uint64_t word = 0;
    for (int j = 0; j < 8; j++) {
      word |= (uint64_t)(uint32_t)a.v[half * 8 + j] << (j * bits);
    }
    for (int j = 0; j < bits; j++) {
      *p++ = (uint8_t)(word >> (8 * j));
    }
  }
}
/* And back; reads 2·bits bytes. `room` is how many may be read beyond p. */
INLINE vi i_unpack(const uint8_t *p, size_t room, int bits) {
  (void)room;
  vi r;
  for (int half = 0; half < 2; half++) {
    uint64_t word = 0;
    for (int j = 0; j < bits; j++) {
      word |= (uint64_t)*p++ << (8 * j);
    }
    for (int j = 0; j < 8; j++) {
      r.v[half * 8 + j] = (int32_t)(word >> (j * bits) & ((1u << bits) - 1));
    }
  }
  return r;
}

/* The Hadamard butterfly over the 16 lanes: strides 1, 2, 4, 8. */
INLINE vf v_hadamard(vf a) {
  for (int h = 1; h < LANES; h *= 2) {
    vf r;
    EACH { r.v[j] = j & h ? a.v[j ^ h] - a.v[j] : a.v[j] + a.v[j ^ h]; }
    a = r;
  }
  return a;
}

#undef DEFINE_F2
#undef DEFINE_I2
#undef DEFINE_M2
#undef UNSIGNED
#undef EACH
#endif

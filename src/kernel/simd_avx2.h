/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-lane vector layer in two 256-bit registers. simd_scalar.h says what each operation means. */
#ifndef PITH_KERNEL_SIMD_H
#define PITH_KERNEL_SIMD_H

#include "kernel/simd_x86.h"

typedef struct vf {
  __m256 a, b;
} vf;
typedef struct vi {
  __m256i a, b;
} vi;
typedef struct vm { /* all bits of a lane set, or none */
  __m256i a, b;
} vm;

#define BOTH(type, call_a, call_b) \
  return (type) { (call_a), (call_b) }

INLINE vf v_add(vf x, vf y) { BOTH(vf, _mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)); }
INLINE vf v_sub(vf x, vf y) { BOTH(vf, _mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)); }
INLINE vf v_mul(vf x, vf y) { BOTH(vf, _mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)); }
INLINE vf v_div(vf x, vf y) { BOTH(vf, _mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)); }
INLINE vf v_sqrt(vf x) { BOTH(vf, _mm256_sqrt_ps(x.a), _mm256_sqrt_ps(x.b)); }
INLINE vf v_min(vf x, vf y) { BOTH(vf, _mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)); }
INLINE vf v_max(vf x, vf y) { BOTH(vf, _mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)); }
INLINE vi i_add(vi x, vi y) { BOTH(vi, _mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)); }
INLINE vi i_sub(vi x, vi y) { BOTH(vi, _mm256_sub_epi32(x.a, y.a), _mm256_sub_epi32(x.b, y.b)); }
INLINE vi i_mul(vi x, vi y) { BOTH(vi, _mm256_mullo_epi32(x.a, y.a), _mm256_mullo_epi32(x.b, y.b)); }
INLINE vi i_and(vi x, vi y) { BOTH(vi, _mm256_and_si256(x.a, y.a), _mm256_and_si256(x.b, y.b)); }
INLINE vi i_or(vi x, vi y) { BOTH(vi, _mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)); }
INLINE vi i_xor(vi x, vi y) { BOTH(vi, _mm256_xor_si256(x.a, y.a), _mm256_xor_si256(x.b, y.b)); }
INLINE vi i_min(vi x, vi y) { BOTH(vi, _mm256_min_epi32(x.a, y.a), _mm256_min_epi32(x.b, y.b)); }
INLINE vi i_max(vi x, vi y) { BOTH(vi, _mm256_max_epi32(x.a, y.a), _mm256_max_epi32(x.b, y.b)); }
INLINE __m256i x_compare(__m256 x, __m256 y, int equal) {
  return _mm256_castps_si256(equal ? _mm256_cmp_ps(x, y, _CMP_LE_OQ) : _mm256_cmp_ps(x, y, _CMP_LT_OQ));
}
INLINE vm v_lt(vf x, vf y) { BOTH(vm, x_compare(x.a, y.a, 0), x_compare(x.b, y.b, 0)); }
INLINE vm v_le(vf x, vf y) { BOTH(vm, x_compare(x.a, y.a, 1), x_compare(x.b, y.b, 1)); }
INLINE vm i_lt(vi x, vi y) { BOTH(vm, _mm256_cmpgt_epi32(y.a, x.a), _mm256_cmpgt_epi32(y.b, x.b)); }
INLINE vm i_eq(vi x, vi y) { BOTH(vm, _mm256_cmpeq_epi32(x.a, y.a), _mm256_cmpeq_epi32(x.b, y.b)); }

INLINE vf v_set(float x) { BOTH(vf, _mm256_set1_ps(x), _mm256_set1_ps(x)); }
INLINE vi i_set(int32_t x) { BOTH(vi, _mm256_set1_epi32(x), _mm256_set1_epi32(x)); }
INLINE vi i_iota(void) {
  BOTH(vi, _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_setr_epi32(8, 9, 10, 11, 12, 13, 14, 15));
}
INLINE vi i_shl(vi x, int count) { BOTH(vi, _mm256_slli_epi32(x.a, count), _mm256_slli_epi32(x.b, count)); }
INLINE vi i_shr(vi x, int count) { BOTH(vi, _mm256_srli_epi32(x.a, count), _mm256_srli_epi32(x.b, count)); }

INLINE vf v_load(const float *p) { BOTH(vf, _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)); }
INLINE void v_store(float *p, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
INLINE vm x_first(size_t k) {
  vi lane = i_iota();
  return i_lt(lane, i_set((int32_t)k));
}
INLINE vf v_loadn(const float *p, size_t k) {
  vm m = x_first(k);
  BOTH(vf, _mm256_maskload_ps(p, m.a), _mm256_maskload_ps(p + 8, m.b));
}
INLINE void v_storen(float *p, vf x, size_t k) {
  vm m = x_first(k);
  _mm256_maskstore_ps(p, m.a, x.a);
  _mm256_maskstore_ps(p + 8, m.b, x.b);
}
INLINE vi x_widen8(__m128i bytes) {
  BOTH(vi, _mm256_cvtepu8_epi32(bytes), _mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)));
}
/* The low 16 bits of every lane, in order. */
INLINE __m256i x_narrow16(vi x) {
  __m256i low = _mm256_set1_epi32(0xffff);
  return _mm256_permute4x64_epi64(_mm256_packus_epi32(_mm256_and_si256(x.a, low), _mm256_and_si256(x.b, low)), 0xd8);
}
INLINE __m128i x_narrow8(vi x) {
  __m256i words = x_narrow16(i_and(x, i_set(0xff)));
  return _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}
INLINE vi i_load8(const uint8_t *p) { return x_widen8(_mm_loadu_si128((const __m128i *)p)); }
INLINE void i_store8(uint8_t *p, vi x) { _mm_storeu_si128((__m128i *)p, x_narrow8(x)); }
INLINE vi i_load16(const uint16_t *p) {
  BOTH(vi, _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)),
       _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INLINE void i_store16(uint16_t *p, vi x) { _mm256_storeu_si256((__m256i *)p, x_narrow16(x)); }

INLINE vi i_cast(vf x) { BOTH(vi, _mm256_castps_si256(x.a), _mm256_castps_si256(x.b)); }
INLINE vf v_cast(vi x) { BOTH(vf, _mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)); }
/* The conversion follows the thread's rounding mode; rounding first makes it explicit. */
INLINE vi i_round(vf x) {
  enum { nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
  BOTH(vi, _mm256_cvttps_epi32(_mm256_round_ps(x.a, nearest)), _mm256_cvttps_epi32(_mm256_round_ps(x.b, nearest)));
}
INLINE vf v_from(vi x) { BOTH(vf, _mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)); }
INLINE vf v_floor(vf x) { BOTH(vf, _mm256_floor_ps(x.a), _mm256_floor_ps(x.b)); }
INLINE vf v_from_f16(const uint16_t *p) {
  BOTH(vf, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
       _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))));
}
INLINE void v_to_f16(uint16_t *p, vf x) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}

INLINE int32_t i_most(vi x) {
  __m256i eight = _mm256_max_epi32(x.a, x.b);
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1)));
}

INLINE uint32_t m_bits(vm m) {
  return (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.a)) | (uint32_t)_mm256_movemask_ps(_mm256_castsi256_ps(m.b))
                                                                      << 8;
}
INLINE vm m_from(uint32_t bits) {
  vi bit = {_mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128),
            _mm256_setr_epi32(256, 512, 1024, 2048, 4096, 8192, 16384, 32768)};
  return i_eq(i_and(i_set((int32_t)bits), bit), bit);
}
INLINE vi i_select(vm m, vi yes, vi no) {
  BOTH(vi, _mm256_blendv_epi8(no.a, yes.a, m.a), _mm256_blendv_epi8(no.b, yes.b, m.b));
}
INLINE vf v_select(vm m, vf yes, vf no) {
  BOTH(vf, _mm256_blendv_ps(no.a, yes.a, _mm256_castsi256_ps(m.a)),
       _mm256_blendv_ps(no.b, yes.b, _mm256_castsi256_ps(m.b)));
}
/* Selections are sparse: walking the set bits costs less than a table of permutations. */
INLINE void i_compress(uint32_t *p, vi x, vm m) {
  uint32_t lanes[LANES];
  memcpy(lanes, &x, sizeof lanes);
  for (uint32_t bits = m_bits(m); bits; bits &= bits - 1) {
    *p++ = lanes[__builtin_ctz(bits)];
  }
}
INLINE void v_compress(float *p, vf x, vm m) {
  float lanes[LANES];
  memcpy(lanes, &x, sizeof lanes);
  for (uint32_t bits = m_bits(m); bits; bits &= bits - 1) {
    *p++ = lanes[__builtin_ctz(bits)];
  }
}

INLINE void i_compress8(uint8_t *p, vi x, vm m) {
  uint8_t lanes[LANES];
  i_store8(lanes, x);
  for (uint32_t bits = m_bits(m); bits; bits &= bits - 1) {
    *p++ = lanes[__builtin_ctz(bits)];
  }
}
INLINE vi i_expand8(const uint8_t *p, vm m) {
  uint8_t lanes[LANES] = {0};
  for (uint32_t bits = m_bits(m); bits; bits &= bits - 1) {
    lanes[__builtin_ctz(bits)] = *p++;
  }
  return i_load8(lanes);
}

INLINE __m256 x_permute(vf table, __m256i index) {
  __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)); /* bit 3 of the index to the sign */
  return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table.a, index), _mm256_permutevar8x32_ps(table.b, index), upper);
}
INLINE vf v_permute(vf table, vi index) { BOTH(vf, x_permute(table, index.a), x_permute(table, index.b)); }

INLINE void i_pack(uint8_t *p, vi x, int bits) { x86_pack(p, x_narrow8(x), bits); }
INLINE __m256i x_unpack(__m256i bytes, int bits, int half) {
  __m256i pairs = _mm256_shuffle_epi8(bytes, _mm256_load_si256((const __m256i *)(x86_bytes[bits] + 32 * half)));
  __m256i shift = _mm256_load_si256((const __m256i *)(x86_shift[bits] + 8 * half));
  return _mm256_and_si256(_mm256_srlv_epi32(pairs, shift), _mm256_set1_epi32((1 << bits) - 1));
}
INLINE vi i_unpack(const uint8_t *p, size_t room, int bits) {
  __m128i bytes = x86_load(p, room, bits);
  if (bits == 8) {
    return x_widen8(bytes);
  }
  __m256i twice = _mm256_broadcastsi128_si256(bytes);
  BOTH(vi, x_unpack(twice, bits, 0), x_unpack(twice, bits, 1));
}

INLINE __m256 x_hadamard(__m256 x) {
  __m256 low = _mm256_moveldup_ps(x), high = _mm256_movehdup_ps(x);
  x = _mm256_blend_ps(_mm256_add_ps(low, high), _mm256_sub_ps(low, high), 0xaa);
  low = _mm256_permute_ps(x, 0x44), high = _mm256_permute_ps(x, 0xee);
  x = _mm256_blend_ps(_mm256_add_ps(low, high), _mm256_sub_ps(low, high), 0xcc);
  low = _mm256_permute2f128_ps(x, x, 0x00), high = _mm256_permute2f128_ps(x, x, 0x11);
  return _mm256_blend_ps(_mm256_add_ps(low, high), _mm256_sub_ps(low, high), 0xf0);
}
INLINE vf v_hadamard(vf x) {
  vf y = {x_hadamard(x.a), x_hadamard(x.b)};
  BOTH(vf, _mm256_add_ps(y.a, y.b), _mm256_sub_ps(y.a, y.b));
}

#undef BOTH
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The 16-lane vector layer in one 512-bit register (F, BW, DQ, VL). simd_scalar.h says what each operation means. */
#ifndef PITH_KERNEL_SIMD_H
#define PITH_KERNEL_SIMD_H

#include "kernel/simd_x86.h"

typedef __m512 vf;
typedef __m512i vi;
typedef __mmask16 vm;

INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_sqrt(vf a) { return _mm512_sqrt_ps(a); }
INLINE vf v_min(vf a, vf b) { return _mm512_min_ps(a, b); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vi i_add(vi a, vi b) { return _mm512_add_epi32(a, b); }
INLINE vi i_sub(vi a, vi b) { return _mm512_sub_epi32(a, b); }
INLINE vi i_mul(vi a, vi b) { return _mm512_mullo_epi32(a, b); }
INLINE vi i_and(vi a, vi b) { return _mm512_and_si512(a, b); }
INLINE vi i_or(vi a, vi b) { return _mm512_or_si512(a, b); }
INLINE vi i_xor(vi a, vi b) { return _mm512_xor_si512(a, b); }
INLINE vi i_min(vi a, vi b) { return _mm512_min_epi32(a, b); }
INLINE vi i_max(vi a, vi b) { return _mm512_max_epi32(a, b); }
INLINE vm v_lt(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
INLINE vm v_le(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_LE_OQ); }
INLINE vm i_lt(vi a, vi b) { return _mm512_cmplt_epi32_mask(a, b); }
INLINE vm i_eq(vi a, vi b) { return _mm512_cmpeq_epi32_mask(a, b); }

INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE vi i_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE vi i_iota(void) { return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
INLINE vi i_shl(vi a, int count) { return _mm512_slli_epi32(a, (unsigned)count); }
INLINE vi i_shr(vi a, int count) { return _mm512_srli_epi32(a, (unsigned)count); }

INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vm x_first(size_t k) { return (vm)((1u << k) - 1); }
INLINE vf v_loadn(const float *p, size_t k) { return _mm512_maskz_loadu_ps(x_first(k), p); }
INLINE void v_storen(float *p, vf a, size_t k) { _mm512_mask_storeu_ps(p, x_first(k), a); }
INLINE vi i_load8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
INLINE void i_store8(uint8_t *p, vi a) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a)); }
INLINE vi i_load16(const uint16_t *p) { return _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void i_store16(uint16_t *p, vi a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(a)); }

INLINE vi i_cast(vf a) { return _mm512_castps_si512(a); }
INLINE vf v_cast(vi a) { return _mm512_castsi512_ps(a); }
INLINE vi i_round(vf a) { return _mm512_cvt_roundps_epi32(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE vf v_from(vi a) { return _mm512_cvtepi32_ps(a); }
INLINE vf v_floor(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
INLINE vf v_from_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE void v_to_f16(uint16_t *p, vf a) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}

INLINE int32_t i_most(vi a) { return _mm512_reduce_max_epi32(a); }

INLINE uint32_t m_bits(vm m) { return m; }
INLINE vm m_from(uint32_t bits) { return (vm)bits; }
INLINE vf v_select(vm m, vf yes, vf no) { return _mm512_mask_blend_ps(m, no, yes); }
INLINE vi i_select(vm m, vi yes, vi no) { return _mm512_mask_blend_epi32(m, no, yes); }
/* In a register first: compressing straight to memory is microcoded on some CPUs. */
INLINE void v_compress(float *p, vf a, vm m) {
  _mm512_mask_storeu_ps(p, x_first((size_t)__builtin_popcount(m)), _mm512_maskz_compress_ps(m, a));
}
INLINE void i_compress(uint32_t *p, vi a, vm m) {
  _mm512_mask_storeu_epi32(p, x_first((size_t)__builtin_popcount(m)), _mm512_maskz_compress_epi32(m, a));
}

/* 16 bytes are written, of which the first are the lanes of the mask; … */
INLINE void i_compress8(uint8_t *p, vi a, vm m) {
  _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_maskz_compress_epi32(m, a)));
}
/* … and back: 16 bytes are read. */
INLINE vi i_expand8(const uint8_t *p, vm m) { return _mm512_maskz_expand_epi32(m, i_load8(p)); }

INLINE vf v_permute(vf table, vi index) { return _mm512_permutexvar_ps(index, table); }

INLINE void i_pack(uint8_t *p, vi a, int bits) {
  if (bits == 1) {
    uint16_t word = _mm512_test_epi32_mask(a, a);
    memcpy(p, &word, sizeof word);
  } else {
    x86_pack(p, _mm512_cvtepi32_epi8(a), bits);
  }
}
INLINE vi i_unpack(const uint8_t *p, size_t room, int bits) {
  __m128i bytes = x86_load(p, room, bits);
  if (bits == 8) {
    return _mm512_cvtepu8_epi32(bytes);
  }
  __m512i pairs = _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), _mm512_load_si512(x86_bytes[bits]));
  return _mm512_and_si512(_mm512_srlv_epi32(pairs, _mm512_load_si512(x86_shift[bits])),
                          _mm512_set1_epi32((1 << bits) - 1));
}

INLINE vf x_butterfly(vf low, vf high, vm subtract) {
  return _mm512_mask_sub_ps(_mm512_add_ps(low, high), subtract, low, high);
}
INLINE vf v_hadamard(vf a) {
  a = x_butterfly(_mm512_moveldup_ps(a), _mm512_movehdup_ps(a), 0xaaaa);
  a = x_butterfly(_mm512_permute_ps(a, 0x44), _mm512_permute_ps(a, 0xee), 0xcccc);
  a = x_butterfly(_mm512_shuffle_f32x4(a, a, 0xa0), _mm512_shuffle_f32x4(a, a, 0xf5), 0xf0f0);
  return x_butterfly(_mm512_shuffle_f32x4(a, a, 0x44), _mm512_shuffle_f32x4(a, a, 0xee), 0xff00);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What the AVX2 and the AVX-512 layer share: packing 16 small values into bits, and the tables to unpack them. */
#ifndef PITH_KERNEL_SIMD_X86_H
#define PITH_KERNEL_SIMD_X86_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline, unused))

/* 16 bytes of `bits` < 8 bits each to 2·bits bytes: neighbours are joined to 16, 32, then 64 bits. */
INLINE __m128i x86_join(__m128i bytes, int bits) {
  __m128i low = _mm_and_si128(bytes, _mm_set1_epi16(0x00ff));
  __m128i pairs = _mm_or_si128(low, _mm_srli_epi16(_mm_andnot_si128(_mm_set1_epi16(0x00ff), bytes), 8 - bits));
  __m128i quads = _mm_madd_epi16(pairs, _mm_set1_epi32((int)(1u << (2 * bits + 16)) | 1));
  __m128i eights = _mm_or_si128(_mm_and_si128(quads, _mm_set1_epi64x(0xffffffff)),
                                _mm_slli_epi64(_mm_srli_epi64(quads, 32), 4 * bits));
#define AT(i) (char)((i) < bits ? (i) : (i) < 2 * bits ? 8 + (i) - bits : 0x80)
  return _mm_shuffle_epi8(eights, _mm_setr_epi8(AT(0), AT(1), AT(2), AT(3), AT(4), AT(5), AT(6), AT(7), AT(8), AT(9),
                                                AT(10), AT(11), AT(12), AT(13), AT(14), AT(15)));
#undef AT
}

INLINE void x86_pack(uint8_t *p, __m128i bytes, int bits) {
  if (bits == 8) {
    _mm_storeu_si128((__m128i *)p, bytes);
    return;
  }
  __m128i joined = x86_join(bytes, bits);
  if (bits >= 4) { /* straight from the register, eight, four and two bytes at a time */
    _mm_storel_epi64((__m128i *)p, joined);
    p += 8, bits -= 4, joined = _mm_srli_si128(joined, 8);
  }
  if (bits >= 2) {
    int four = _mm_cvtsi128_si32(joined);
    memcpy(p, &four, sizeof four);
    p += 4, bits -= 2, joined = _mm_srli_si128(joined, 4);
  }
  if (bits) {
    int two = _mm_cvtsi128_si32(joined);
    memcpy(p, &two, 2);
  }
}

INLINE __m128i x86_load(const uint8_t *p, size_t room, int bits) {
  if (bits == 8 || room >= 16) {
    return _mm_loadu_si128((const __m128i *)p);
  }
  __m128i bytes = _mm_setzero_si128();
  memcpy(&bytes, p, (size_t)(2 * bits));
  return bytes;
}

/* For lane j: the two bytes that hold bits j·b … j·b + b − 1, and how far to shift them down. */
#define BYTES(b, j) (uint8_t)((j) * (b) / 8), (uint8_t)((j) * (b) / 8 < 15 ? (j) * (b) / 8 + 1 : 0x80), 0x80, 0x80
#define SHIFT(b, j) ((j) * (b)) % 8
#define FOUR(what, b, j) what(b, j), what(b, (j) + 1), what(b, (j) + 2), what(b, (j) + 3)
#define ALL(what, b) FOUR(what, b, 0), FOUR(what, b, 4), FOUR(what, b, 8), FOUR(what, b, 12)
static const uint8_t x86_bytes[8][64] __attribute__((aligned(64))) = {
    {0},
    {ALL(BYTES, 1)},
    {ALL(BYTES, 2)},
    {ALL(BYTES, 3)},
    {ALL(BYTES, 4)},
    {ALL(BYTES, 5)},
    {ALL(BYTES, 6)},
    {ALL(BYTES, 7)},
};
static const int32_t x86_shift[8][16] __attribute__((aligned(64))) = {
    {0},
    {ALL(SHIFT, 1)},
    {ALL(SHIFT, 2)},
    {ALL(SHIFT, 3)},
    {ALL(SHIFT, 4)},
    {ALL(SHIFT, 5)},
    {ALL(SHIFT, 6)},
    {ALL(SHIFT, 7)},
};
#undef BYTES
#undef SHIFT
#undef FOUR
#undef ALL

#endif

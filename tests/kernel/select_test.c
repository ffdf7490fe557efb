/* SPDX-License-Identifier: Apache-2.0 */
/* The selection loops of every ISA against the plainest code that does the same. */
#include <stdlib.h>

#include "base/half.h"
#include "kernel/kernel.h"
#include "test.h"

#define MOST 1100
#define GUARD 0x5a5a5a5au

static uint32_t key_of(float x, pith_side side) {
  uint32_t bits = pith__bits_of(x), negative = bits >> 31;
  int counts = side == PITH_SIDE_BOTH || (side == PITH_SIDE_NEGATIVE) == (negative == 1);
  return counts ? bits & 0x7fffffffu : 0;
}

/* Values that meet the cut, miss it by one, or are special, among ordinary ones. */
static float draw_value(uint32_t cut) {
  static const uint32_t special[] = {0,           0x80000000u, 1,           0x80000001u,
                                     0x7f800000u, 0xff800000u, 0x7fc00000u, 0xffffffffu};
  switch (test_below(4)) {
    case 0:
      return pith__float_of(special[test_below(8)]);
    case 1:
      return pith__float_of((cut + (uint32_t)test_below(3) - 1) ^ (uint32_t)test_below(2) << 31);
    default:
      return test_normal();
  }
}

static uint32_t draw_cut(void) {
  static const uint32_t special[] = {0, 1, 0x7f800000u, 0x7fffffffu, 0x80000000u};
  return test_below(3) ? pith__bits_of(test_normal()) & 0x7fffffffu : special[test_below(5)];
}

static void check_count_and_collect(const pith_kernels *k, const float *x, size_t n, pith_side side, uint32_t cut) {
  uint32_t place[MOST + 1];
  float value[MOST + 1];
  size_t count = 0;
  place[n] = GUARD;
  value[n] = pith__float_of(GUARD);
  size_t got = k->collect(x, n, side, cut, place, value);
  for (size_t i = 0; i < n; i++) {
    if (key_of(x[i], side) >= cut) {
      CHECK(count < got);
      CHECK_EQ(place[count], i);
      CHECK_EQ(pith__bits_of(value[count]), pith__bits_of(x[i]));
      count++;
    }
  }
  CHECK_EQ(got, count);
  CHECK_EQ(k->count(x, n, side, cut), count);
  CHECK_EQ(place[n], GUARD);
  CHECK_EQ(pith__bits_of(value[n]), GUARD);
}

static void check_histogram(const pith_kernels *k, const float *x, size_t n, pith_side side, uint32_t prefix) {
  static const struct {
    int shift, bits, above;
  } digit[] = {{20, 11, 32}, {20, 11, 31}, {10, 10, 20}, {0, 10, 10}};
  for (size_t d = 0; d < 4; d++) {
    uint32_t bins[2048] = {0}, wanted[2048] = {0}, mask = (1u << digit[d].bits) - 1;
    uint32_t start = digit[d].above >= 31 ? 0 : prefix >> digit[d].above;
    for (size_t i = 0; i < n; i++) {
      uint64_t key = key_of(x[i], side);
      wanted[key >> digit[d].shift & mask] += key >> digit[d].above == start;
    }
    k->histogram(x, n, side, digit[d].shift, mask, digit[d].above, start, bins);
    CHECK_BYTES(bins, wanted, sizeof bins);
  }
}

static void check_isa(const pith_kernels *k) {
  float *block = malloc((MOST + 1) * sizeof *block);
  for (size_t n = 0; n <= MOST; n += n < 200 ? 1 : 97) {
    uint32_t cut = draw_cut();
    float *x = block + (n & 1);
    for (size_t i = 0; i < n; i++) {
      x[i] = draw_value(cut);
    }
    for (pith_side side = PITH_SIDE_BOTH; side <= PITH_SIDE_NEGATIVE; side++) {
      check_count_and_collect(k, x, n, side, cut);
      check_histogram(k, x, n, side, cut);
    }
  }
  free(block);
}

TEST(selection_loops_of_scalar_do_what_they_say) { check_isa(pith__kernels_of(PITH_ISA_SCALAR)); }

TEST(selection_loops_of_avx2_do_what_they_say) {
  const pith_kernels *k = pith__kernels_of(PITH_ISA_AVX2);
  if (!k) {
    LACKS("avx2", "no AVX2 here");
  }
  check_isa(k);
}

TEST(selection_loops_of_avx512_do_what_they_say) {
  const pith_kernels *k = pith__kernels_of(PITH_ISA_AVX512);
  if (!k) {
    LACKS("avx512", "no AVX-512 here");
  }
  check_isa(k);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Index codings: the smallest is chosen, every one comes back as it was, and no bytes lead a reader astray. */
#include "codec/index_coding.h"

#include <stdlib.h>

#include "test.h"

#define MOST 3000

/* Increasing places below n: each is in with the given chance, or follows another one where `cluster` is likely. */
static size_t draw_places(uint32_t *place, size_t n, double chance, double cluster) {
  size_t count = 0;
  for (size_t i = 0; i < n && count < MOST; i++) {
    int follows = count > 0 && place[count - 1] + 1 == i;
    if (test_uniform() < (follows ? cluster : chance)) {
      place[count++] = (uint32_t)i;
    }
  }
  return count;
}

static uint64_t rice_bytes(const uint32_t *place, size_t count, unsigned rice) {
  uint64_t bits = 0, next = 0;
  for (size_t i = 0; i < count; i++) {
    bits += ((place[i] - next) >> rice) + 1 + rice;
    next = (uint64_t)place[i] + 1;
  }
  return (bits + 7) / 8;
}

static uint64_t smallest_bytes(const uint32_t *place, size_t count, size_t n) {
  uint64_t best = (n + 7) / 8 < 4 * count ? (n + 7) / 8 : 4 * count;
  for (unsigned rice = 0; rice <= PITH_RICE_MAX; rice++) {
    uint64_t bytes = rice_bytes(place, count, rice);
    best = bytes < best ? bytes : best;
  }
  return count == n ? 0 : best;
}

static pith_index_plan plan_of(const uint32_t *place, size_t count, size_t n) {
  pith_gaps gaps = {.count = 0};
  size_t half = count / 2;
  pith__gaps_add(&gaps, 0, place, half);
  pith__gaps_add(&gaps, 0, place + half, count - half);
  return pith__index_choose(&gaps, n);
}

static void check_round_trip(pith_index_plan plan, uint64_t base, const uint32_t *place, size_t count, uint64_t n) {
  uint8_t *bytes = malloc(plan.bytes + PITH_BITS_SLACK);
  uint64_t *back = malloc((count + 1) * sizeof *back);
  pith_index_writer w;
  pith_index_reader r;
  pith__index_writer_init(&w, plan, bytes);
  pith__index_write(&w, base, place, count);
  pith__index_writer_finish(&w);
  CHECK(pith__index_reader_init(&r, plan.coding, plan.rice, n, bytes, bytes + plan.bytes));
  CHECK(pith__index_read(&r, back, count));
  for (size_t i = 0; i < count; i++) {
    CHECK_EQ(back[i], base + place[i]);
  }
  CHECK(pith__index_reader_end(&r) == bytes + plan.bytes);
  free(back);
  free(bytes);
}

TEST(smallest_coding_is_chosen_and_comes_back) {
  static uint32_t place[MOST];
  for (int round = 0; round < 400; round++) {
    size_t n = 1 + test_below(round % 4 ? 6000 : 4000000);
    size_t count = draw_places(place, n, test_uniform() * test_uniform() * test_uniform(), test_uniform());
    pith_index_plan plan = plan_of(place, count, n);
    CHECK_EQ(plan.bytes, smallest_bytes(place, count, n));
    CHECK(plan.bytes + PITH_BITS_SLACK <= pith__index_bound(n, count));
    if (plan.coding != PITH_INDEX_DENSE) {
      check_round_trip(plan, 0, place, count, n);
    }
  }
}

TEST(every_coding_comes_back) {
  static uint32_t place[MOST];
  size_t n = 5000, count = draw_places(place, n, 0.1, 0.5);
  check_round_trip((pith_index_plan){PITH_INDEX_RAW, 0, 4 * count}, 0, place, count, n);
  check_round_trip((pith_index_plan){PITH_INDEX_BITMAP, 0, (n + 7) / 8}, 0, place, count, n);
  for (unsigned rice = 0; rice <= PITH_RICE_MAX; rice++) {
    check_round_trip((pith_index_plan){PITH_INDEX_RICE, rice, rice_bytes(place, count, rice)}, 0, place, count, n);
  }
}

TEST(places_beyond_32_bits_come_back) {
  uint32_t place[] = {0, 7, 1000000, 0xfffffffe};
  uint64_t base = 0x500000000u, n = 0x700000000u;
  pith_gaps gaps = {.count = 0};
  pith__gaps_add(&gaps, base, place, 4);
  pith_index_plan plan = pith__index_choose(&gaps, n);
  CHECK_EQ(plan.coding, PITH_INDEX_RICE);
  check_round_trip(plan, base, place, 4, n);
}

/* Whatever the bytes: places are increasing and below n, or the reader says no. */
static void check_sane(unsigned coding, unsigned rice, const uint8_t *bytes, size_t size, size_t n, size_t count) {
  pith_index_reader r;
  uint64_t place[64];
  uint8_t *exact = malloc(size + 1);
  memcpy(exact, bytes, size);
  if (pith__index_reader_init(&r, coding, rice, n, exact, exact + size) && pith__index_read(&r, place, count)) {
    for (size_t i = 0; i < count; i++) {
      CHECK(place[i] < n && (i == 0 || place[i] > place[i - 1]));
    }
    const uint8_t *end = pith__index_reader_end(&r);
    CHECK(!end || (end >= exact && end <= exact + size));
  }
  free(exact);
}

TEST(any_bytes_give_sane_places_or_none) {
  for (int round = 0; round < 20000; round++) {
    uint8_t bytes[200];
    unsigned density = 1 + (unsigned)test_below(8);
    for (size_t i = 0; i < sizeof bytes; i++) {
      bytes[i] = test_below(8) < density ? (uint8_t)test_random() : 0;
    }
    check_sane((unsigned)test_below(5), (unsigned)test_below(PITH_RICE_MAX + 2), bytes, test_below(sizeof bytes),
               test_below(2) ? test_below(1000) : test_random() >> test_below(64), test_below(64));
  }
  CHECK(1);
}

TEST(bounds_do_not_overflow) {
  CHECK(pith__index_bound(SIZE_MAX, SIZE_MAX) >= SIZE_MAX / 8);
  CHECK(pith__index_bound((size_t)1 << 44, 1) <= 64);
  CHECK(pith__index_bound(0, 0) >= PITH_BITS_SLACK);
}

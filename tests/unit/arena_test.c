/* SPDX-License-Identifier: Apache-2.0 */
/* The arena: measuring and taking agree, pieces are aligned and apart, and nothing overflows. */
#include "base/arena.h"

#include <stdlib.h>

#include "test.h"

#define PIECES 5
static const size_t sizes[PIECES] = {1, 64, 0, 100, 4096};

static void take_all(pith_arena *arena, uint8_t *pieces[PIECES]) {
  for (int i = 0; i < PIECES; i++) {
    pieces[i] = pith__arena_take(arena, sizes[i], 1);
  }
}

static size_t measure(void) {
  pith_arena arena = pith__arena_over(NULL, 0);
  uint8_t *pieces[PIECES];
  take_all(&arena, pieces);
  for (int i = 0; i < PIECES; i++) {
    CHECK(pieces[i] == NULL);
  }
  return pith__arena_need(&arena);
}

TEST(what_was_measured_is_enough_wherever_the_memory_starts) {
  size_t need = measure();
  uint8_t *memory = aligned_alloc(64, (need + 127) / 64 * 64), *pieces[PIECES];
  for (size_t offset = 0; offset < 64; offset++) {
    pith_arena arena = pith__arena_over(memory + offset, need);
    take_all(&arena, pieces);
    for (int i = 0; i < PIECES; i++) {
      CHECK(pieces[i] && (uintptr_t)pieces[i] % PITH_ARENA_ALIGN == 0);
      CHECK(pieces[i] >= memory + offset && pieces[i] + sizes[i] <= memory + offset + need);
      CHECK(i == 0 || pieces[i] >= pieces[i - 1] + sizes[i - 1]);
    }
  }
  free(memory);
}

TEST(a_piece_that_does_not_fit_is_null_and_still_measured) {
  _Alignas(64) uint8_t memory[128];
  pith_arena arena = pith__arena_over(memory, sizeof memory);
  CHECK(pith__arena_take(&arena, 64, 1) == memory);
  CHECK(pith__arena_take(&arena, 65, 1) == NULL);
  CHECK_EQ(arena.used, 192);
  CHECK(pith__arena_take(&arena, 1, 1) == NULL);
}

TEST(memory_smaller_than_its_misalignment_holds_nothing) {
  _Alignas(64) uint8_t memory[128];
  pith_arena arena = pith__arena_over(memory + 1, 10);
  CHECK_EQ(arena.capacity, 0);
  CHECK(pith__arena_take(&arena, 1, 1) == NULL);
}

TEST(sizes_that_overflow_are_never_there) {
  static const struct {
    size_t count, size;
  } huge[] = {{SIZE_MAX, 1}, {SIZE_MAX, 2}, {SIZE_MAX / 2, 4}, {SIZE_MAX - 63, 1}, {1, SIZE_MAX}};
  _Alignas(64) uint8_t memory[64];
  for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
    pith_arena arena = pith__arena_over(memory, sizeof memory);
    CHECK(pith__arena_take(&arena, huge[i].count, huge[i].size) == NULL);
    CHECK(pith__arena_take(&arena, 1, 1) == NULL);
    CHECK(pith__arena_need(&arena) > sizeof memory);
  }
}

TEST(nothing_needs_nothing) {
  pith_arena arena = pith__arena_over(NULL, 0);
  CHECK_EQ(pith__arena_need(&arena), 0);
  pith__arena_take(&arena, 0, 8);
  CHECK_EQ(pith__arena_need(&arena), 0);
}

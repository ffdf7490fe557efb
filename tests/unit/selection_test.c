/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Selection where the sample lies. A first run over a ramp shows which places are sampled, since the sample stays in
 * the selector's scratch; tensors are then made that look different there than anywhere else. Whatever the sample says,
 * the exact choice must be exact.
 */
#include "codec/selection.h"

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "test.h"

#define N 200000

typedef struct bench {
  void *memory;
  pith_selector selector;
  pith_ctx ctx;
} bench;

static bench bench_of(void) {
  pith_arena measure = pith__arena_over(NULL, 0);
  pith__selector_take(&measure, N);
  size_t size = pith__arena_need(&measure);
  bench b = {.memory = malloc(size), .ctx = PITH_CTX_INIT};
  b.ctx.seed = test_random();
  pith_arena arena = pith__arena_over(b.memory, size);
  b.selector = pith__selector_take(&arena, N);
  return b;
}

/* Marks the places that a selection samples: the values of the ramp are their places. */
static void find_sampled(const bench *b, unsigned char *sampled) {
  float *ramp = malloc(N * sizeof *ramp);
  for (size_t i = 0; i < N; i++) {
    ramp[i] = (float)i;
  }
  pith__select_top(&b->selector, (pith_cspan){ramp, N, PITH_F32}, PITH_SIDE_BOTH, 2000, &b->ctx);
  memset(sampled, 0, N);
  for (size_t i = 0; i < b->selector.samples; i++) {
    sampled[(size_t)b->selector.sample[i]] = 1;
  }
  free(ramp);
}

static int descending(const void *a, const void *b) {
  float x = fabsf(*(const float *)a), y = fabsf(*(const float *)b);
  return (x < y) - (x > y);
}

/* All values differ, so the k largest are those at or above the k-th. */
static void check_exact(const bench *b, const float *x, size_t k) {
  float *sorted = malloc(N * sizeof *sorted);
  memcpy(sorted, x, N * sizeof *sorted);
  qsort(sorted, N, sizeof *sorted, descending);
  pith_pick pick = pith__select_top(&b->selector, (pith_cspan){x, N, PITH_F32}, PITH_SIDE_BOTH, k, &b->ctx);
  pith_picker picker = pith__picker_of(pick, b->selector.tile);
  size_t count = 0;
  while (pith__picker_next(&picker)) {
    for (size_t i = 0; i < picker.count; i++) {
      CHECK(x[picker.base + picker.tile.place[i]] == picker.tile.value[i]);
      CHECK(fabsf(picker.tile.value[i]) >= fabsf(sorted[k - 1]));
    }
    count += picker.count;
  }
  CHECK_EQ(count, k);
  free(sorted);
}

/* Distinct values, multiplied by `factor` at the sampled places. */
static void check_misled(float factor, size_t k) {
  bench b = bench_of();
  unsigned char *sampled = malloc(N);
  float *x = malloc(N * sizeof *x);
  find_sampled(&b, sampled);
  for (size_t i = 0; i < N; i++) {
    float distinct = 1 + (float)((i * 7919) % N) / N;
    x[i] = (i % 2 ? -distinct : distinct) * (sampled[i] ? factor : 1);
  }
  check_exact(&b, x, k);
  free(x);
  free(sampled);
  free(b.memory);
}

TEST(a_sample_that_is_honest_gives_the_exact_choice) {
  check_misled(1, N / 100);
  check_misled(1, N / 4);
}

TEST(a_sample_that_sees_only_small_values_does_not_change_the_choice) {
  check_misled(0x1p-20f, N / 100); /* too many candidates */
  check_misled(0x1p-20f, N / 4);   /* too many above the bracket */
}

TEST(a_sample_that_sees_only_large_values_does_not_change_the_choice) {
  check_misled(0x1p20f, N / 100);
  check_misled(0x1p20f, N / 4); /* too few at or above the bracket */
}

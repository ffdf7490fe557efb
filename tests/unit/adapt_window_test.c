/* SPDX-License-Identifier: Apache-2.0 */
/* What an adapter measures, and from when on: late starts, and gradients that are added up over several steps. */
#include <math.h>
#include <stdlib.h>

#include "adapt/adapt.h"
#include "test.h"

enum { LAYERS = 2, RANKS = 2 };
static const size_t shapes[LAYERS][2] = {{64, 48}, {40, 80}};

static pith_adapter *adapter_of(const char *spec) {
  static const char *const names[LAYERS] = {"a", "b"};
  pith_layer layers[LAYERS];
  pith_adapter *a;
  for (size_t l = 0; l < LAYERS; l++) {
    layers[l] = (pith_layer){sizeof(pith_layer), names[l], shapes[l], 2, PITH_F32, NULL};
  }
  CHECK_OK(pith_adapter_create(spec, layers, LAYERS, 0, RANKS, 1, &a));
  return a;
}

static size_t size_of(size_t l) { return shapes[l][0] * shapes[l][1]; }

static float gradient_of(uint64_t step, size_t l, size_t i) {
  return (float)sin((double)(i * (l + 3)) * 0.7 + (double)step) / (float)(1 + i % 17);
}

/* A step, as if both ranks had the same gradients. Layer 1 has none in every third. */
static void take_step(pith_adapter *a) {
  uint64_t step = pith_adapter_step_number(a);
  float x[64 * 80];
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t i = 0; i < size_of(l); i++) {
      x[i] = gradient_of(step, l, i);
    }
    if (l == 0 || step % 3) {
      CHECK_OK(pith_adapter_observe(a, l, (pith_cspan){x, size_of(l), PITH_F32}));
    }
  }
  pith_adapter_step measured = PITH_ADAPTER_STEP_INIT;
  measured.seconds = 0.1;
  double *numbers;
  size_t count;
  int changed;
  CHECK_OK(pith_adapter_finish(a, &measured, &numbers, &count));
  for (size_t i = 0; i < count; i++) {
    numbers[i] *= RANKS;
  }
  CHECK_OK(pith_adapter_advance(a, 1e-3, &changed));
}

TEST(no_plan_comes_before_the_start) {
  pith_adapter *a = adapter_of("lgreco:q:4,start=100,period=64");
  CHECK_EQ(pith_adapter_next_plan(a), 100);
  for (int step = 0; step < 100; step++) {
    CHECK(strstr(pith_adapter_reason(a, 0), "warm-up"));
    CHECK_STR(pith_adapter_spec(a, 0), "q:4");
    CHECK(step >= 100 - PITH_ADAPT_SAMPLED || !pith_adapter_wants(a, 0));
    take_step(a);
  }
  CHECK(strstr(pith_adapter_reason(a, 0), "plan of step 100"));
  CHECK_EQ(pith_adapter_next_plan(a), 164);
  pith_adapter_destroy(a);
  a = adapter_of("lgreco:q:4,start=5");
  CHECK_EQ(pith_adapter_next_plan(a), 20); /* the warm-up is longer */
  pith_adapter_destroy(a);
}

/* What the plan of step 20 is made from: the mean of these steps. */
static void check_means(const pith_adapter *a, uint64_t first, uint64_t steps) {
  for (size_t l = 0; l < LAYERS; l++) {
    pith_profile *p;
    pith_layer layer = {sizeof(pith_layer), "x", shapes[l], 2, PITH_F32, NULL};
    float mean[64 * 80] = {0};
    double came = 0;
    for (uint64_t step = first; step < first + steps; step++) {
      came += l == 0 || step % 3;
      for (size_t i = 0; i < size_of(l) && (l == 0 || step % 3); i++) {
        mean[i] += gradient_of(step, l, i);
      }
    }
    for (size_t i = 0; i < size_of(l); i++) {
      mean[i] *= 1.0f / (float)came;
    }
    CHECK_OK(pith_profile_create(&layer, 1, "q:2;q:4;none", &p));
    CHECK_OK(pith_profile_update(p, 0, (pith_cspan){mean, size_of(l), PITH_F32}, NULL));
    for (size_t c = 0; c < 3; c++) {
      size_t same;
      double bytes, error, wanted_bytes, wanted;
      CHECK_OK(pith__profile_find(a->last, pith_profile_candidate(p, c), &same));
      CHECK_OK(pith_profile_get(a->last, l, same, &bytes, &error));
      CHECK_OK(pith_profile_get(p, 0, c, &wanted_bytes, &wanted));
      CHECK(bytes == wanted_bytes);
      CHECK_NEAR(error, wanted, 1e-6 * wanted);
    }
    pith_profile_destroy(p);
  }
}

TEST(gradients_are_added_up_over_several_steps) {
  pith_adapter *a = adapter_of("lgreco:q:4,accumulate=5");
  for (int step = 0; step < 20; step++) {
    take_step(a);
  }
  check_means(a, 12, 5);
  CHECK(a->last->values[PITH_SUM_SAMPLES] == RANKS); /* one sample of each */
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK(!a->sum[l] && !a->summed[l]);
  }
  pith_adapter_destroy(a);
}

TEST(a_window_longer_than_the_warm_up_has_what_there_is) {
  pith_adapter *a = adapter_of("kmeans:q:4,accumulate=500");
  for (int step = 0; step < 20; step++) {
    take_step(a);
  }
  check_means(a, 0, 17);
  pith_adapter_destroy(a);
}

static uint8_t *saved(pith_adapter *a, size_t *size) {
  *size = pith_adapter_save_size(a);
  uint8_t *bytes = malloc(*size);
  pith_out out = {bytes, *size, 0};
  CHECK(bytes);
  CHECK_OK(pith_adapter_save(a, &out));
  return bytes;
}

/* Adapters that go on from a checkpoint in the middle of a window end with the same bytes. */
TEST(a_checkpoint_has_the_sums_so_far) {
  for (int stop = 11; stop < 19; stop++) {
    pith_adapter *a = adapter_of("lgreco:q:4,accumulate=5"), *b = adapter_of("lgreco:q:4,accumulate=5");
    size_t size, other;
    for (int step = 0; step < stop; step++) {
      take_step(a);
    }
    uint8_t *bytes = saved(a, &size);
    CHECK_OK(pith_adapter_load(b, (pith_bytes){bytes, size}));
    free(bytes);
    for (int step = stop; step < 25; step++) {
      take_step(a);
      take_step(b);
    }
    uint8_t *one = saved(a, &size), *two = saved(b, &other);
    CHECK_EQ(size, other);
    CHECK(memcmp(one, two, size) == 0);
    free(one);
    free(two);
    pith_adapter_destroy(a);
    pith_adapter_destroy(b);
  }
}

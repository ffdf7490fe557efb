/* SPDX-License-Identifier: Apache-2.0 */
/* Samples of large layers: tables from some of the blocks on each rank are near to those from all, and so are the plans
 * made of them. */
#include <math.h>
#include <stdlib.h>

#include "profile/profile.h"
#include "test.h"

enum { LAYERS = 6, ROWS = 512, COLS = 640, N = ROWS * COLS, SAMPLES = 4 };

static const char *const names[LAYERS] = {"a", "b", "c", "d", "e", "f"};

static pith_profile *make_profile(void) {
  static const size_t shape[2] = {ROWS, COLS};
  char candidates[8192];
  pith_layer layers[LAYERS];
  pith_profile *profile;
  for (size_t l = 0; l < LAYERS; l++) {
    layers[l] = (pith_layer){sizeof(pith_layer), names[l], shape, 2, PITH_F32, NULL};
  }
  CHECK_OK(pith_plan_candidates("q:4", candidates, sizeof candidates));
  CHECK_OK(pith_profile_create(layers, LAYERS, candidates, &profile));
  return profile;
}

/* Rows of very different magnitude, a fifth of them zero as in embeddings; layers of different magnitude, too.
 * Magnitudes stay from step to step and are those of all ranks. */
static void choose_scales(double scale[ROWS], size_t layer) {
  for (size_t i = 0; i < ROWS; i++) {
    scale[i] = test_below(5) ? exp(0.7 * test_normal() + (double)layer - 3) : 0;
  }
}

static void fill(float *x, const double scale[ROWS]) {
  for (size_t i = 0; i < N; i++) {
    x[i] = (float)scale[i / COLS] * test_normal();
  }
}

/* Both profiles see the same gradients of two ranks in two steps, one of them in samples. */
static void measure(pith_profile *whole, pith_profile *sampled) {
  float *x = malloc(N * sizeof *x);
  double scale[ROWS];
  CHECK(x);
  for (size_t l = 0; l < LAYERS; l++) {
    choose_scales(scale, l);
    for (uint64_t s = 0; s < SAMPLES; s++) {
      pith_ctx ctx = PITH_CTX_INIT;
      ctx.step = l + 4 * (s / 2);
      ctx.rank = (uint32_t)(s % 2);
      ctx.ranks = 2;
      fill(x, scale);
      CHECK_OK(pith__profile_sample(sampled, l, (pith_cspan){x, N, PITH_F32}, &ctx));
      CHECK_OK(pith_profile_update(whole, l, (pith_cspan){x, N, PITH_F32}, NULL));
    }
  }
  free(x);
}

TEST(samples_tell_what_the_whole_would) {
  pith_profile *whole = make_profile(), *sampled = make_profile();
  measure(whole, sampled);
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t c = 0; c < pith_profile_candidates(whole); c++) {
      double bytes, error, all_bytes, all_error;
      CHECK_OK(pith_profile_get(whole, l, c, &all_bytes, &all_error));
      CHECK_OK(pith_profile_get(sampled, l, c, &bytes, &error));
      CHECK(bytes == all_bytes);
      CHECK_MSG(fabs(error / all_error - 1) < 0.2, "layer %zu, %s: %g instead of %g", l,
                pith_profile_candidate(whole, c), error, all_error);
    }
  }
  pith_profile_destroy(whole);
  pith_profile_destroy(sampled);
}

TEST(plans_from_samples_are_as_good) {
  pith_profile *whole = make_profile(), *sampled = make_profile();
  pith_plan *best, *plan;
  pith_plan_info wanted = PITH_PLAN_INFO_INIT, found = PITH_PLAN_INFO_INIT;
  measure(whole, sampled);
  pith_plan_request request = {.size = sizeof request, .method = PITH_PLAN_LGRECO, .uniform = "q:4"};
  CHECK_OK(pith_plan_make(whole, &request, &best));
  CHECK_OK(pith_plan_make(sampled, &request, &plan));
  CHECK_OK(pith_plan_price(plan, whole));
  CHECK_OK(pith_plan_info_get(best, &wanted));
  CHECK_OK(pith_plan_info_get(plan, &found));
  CHECK_MSG(found.error <= 1.05 * wanted.budget, "error %g of %g", found.error, wanted.budget);
  CHECK_MSG(found.bytes <= 1.03 * wanted.bytes, "%g bytes instead of %g", found.bytes, wanted.bytes);
  pith_plan_destroy(best);
  pith_plan_destroy(plan);
  pith_profile_destroy(whole);
  pith_profile_destroy(sampled);
}

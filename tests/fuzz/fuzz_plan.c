/* SPDX-License-Identifier: Apache-2.0 */
/* Text as a plan and as statistics: an error, or an object whose own text reads back to itself, and from which plans
 * can be made. */
#include "fuzz/fuzz.h"

static void check_plan(pith_bytes text) {
  pith_plan *plan, *again;
  pith_rules *rules;
  if (pith_plan_parse(text, &plan) != PITH_OK) {
    return;
  }
  const char *written = pith_plan_text(plan);
  FUZZ_REQUIRE(pith_plan_parse((pith_bytes){written, strlen(written)}, &again) == PITH_OK);
  FUZZ_REQUIRE(strcmp(pith_plan_rules(again), pith_plan_rules(plan)) == 0);
  FUZZ_REQUIRE(pith_rules_create(pith_plan_rules(plan), &rules) == PITH_OK);
  pith_rules_destroy(rules);
  pith_plan_destroy(again);
  pith_plan_destroy(plan);
}

static void check_made(const pith_profile *profile, const pith_plan *plan) {
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  double seconds;
  FUZZ_REQUIRE(pith_plan_info_get(plan, &info) == PITH_OK);
  FUZZ_REQUIRE(info.error <= info.budget);
  FUZZ_REQUIRE(pith_plan_seconds(plan, profile, NULL, &seconds) == PITH_OK);
}

/* Plans of every method; those that cannot be are errors. */
static void check_stats(pith_bytes text) {
  pith_profile *profile;
  if (pith_profile_parse(text, &profile) != PITH_OK) {
    return;
  }
  for (int i = 0; i < 3; i++) {
    pith_plan_request request = {.size = sizeof request,
                                 .method = i == 1 ? PITH_PLAN_KMEANS : PITH_PLAN_LGRECO,
                                 .objective = i == 2 ? PITH_PLAN_TIME : PITH_PLAN_BYTES,
                                 .uniform = pith_profile_candidate(profile, 0),
                                 .families = "mix"};
    pith_plan *plan;
    if (pith_profile_layers(profile) <= 64 && pith_plan_make(profile, &request, &plan) == PITH_OK) {
      check_made(profile, plan);
      pith_plan_destroy(plan);
    }
  }
  pith_profile_destroy(profile);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *exact = malloc(size + !size); /* so that reading one byte too many shows */
  FUZZ_REQUIRE(exact);
  if (size) {
    memcpy(exact, data, size);
  }
  check_plan((pith_bytes){exact, size});
  check_stats((pith_bytes){exact, size});
  free(exact);
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Every allocation of the planner fails once: its absence is an error that gives nothing back and leaks nothing (the
 * latter shows in builds with the address sanitizer). The linker sends the library's allocations through the functions
 * below. */
#include <stdlib.h>
#include <string.h>

#include "failing_allocations.h"
#include "test.h"

static void check_every_failure(pith_status (*attempt)(void)) {
  CHECK(pith_method_count() > 0); /* opens the registry */
  for (long i = 0;; i++) {
    allowed = i;
    has_failed = 0;
    pith_status status = attempt();
    allowed = -1;
    if (!has_failed) {
      CHECK_EQ(status, PITH_OK);
      CHECK(i > 1);
      return;
    }
    CHECK_STATUS(status, PITH_ERR_MEMORY);
    CHECK_MSG(i < 1000, "there is no end of allocations");
  }
}

static const char stats[] =
    "{\"pith_statistics\": 1, \"candidates\": [\"q:2\", \"q:4\", \"none\"], \"layers\": [\n"
    "{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 2, \"skipped\": 1, \"norm\": 8, \"top\": 1, \"bytes\": [2300, "
    "4400, 32768], "
    "\"errors\": [3, 0.5, 0]},\n"
    "{\"name\": \"b\", \"shape\": [128, 64], \"samples\": 2, \"norm\": 80, \"top\": 10, \"bytes\": [4600, 8800, "
    "65536], \"errors\": [2, 1, 0]},\n"
    "{\"name\": \"c\", \"shape\": [64], \"samples\": 0}]}";

static pith_status parse_stats(void) {
  pith_profile *profile = NULL;
  pith_status status = pith_profile_parse((pith_bytes){stats, strlen(stats)}, &profile);
  CHECK((profile != NULL) == (status == PITH_OK));
  pith_profile_destroy(profile);
  return status;
}

TEST(reading_statistics) { check_every_failure(parse_stats); }

static pith_profile *profile; /* for the tests below */

static pith_status make(pith_plan_method method, pith_plan_objective objective) {
  pith_plan *plan = NULL;
  pith_plan_request request = {
      .size = sizeof request, .method = method, .objective = objective, .uniform = "q:4", .families = "mix"};
  pith_status status = pith_plan_make(profile, &request, &plan);
  CHECK((plan != NULL) == (status == PITH_OK));
  pith_plan_destroy(plan);
  return status;
}

static pith_status make_lgreco(void) { return make(PITH_PLAN_LGRECO, PITH_PLAN_BYTES); }
static pith_status make_for_time(void) { return make(PITH_PLAN_LGRECO, PITH_PLAN_TIME); }
static pith_plan_method method; /* that is made next */
static pith_status make_next(void) { return make(method, PITH_PLAN_BYTES); }

TEST(making_plans) {
  CHECK_OK(pith_profile_parse((pith_bytes){stats, strlen(stats)}, &profile));
  check_every_failure(make_lgreco);
  check_every_failure(make_for_time);
  static const pith_plan_method others[] = {PITH_PLAN_KMEANS, PITH_PLAN_CGX, PITH_PLAN_LINEAR, PITH_PLAN_BEST,
                                            PITH_PLAN_BAYES};
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    method = others[i];
    check_every_failure(make_next);
  }
  pith_profile_destroy(profile);
}

static pith_status make_global(void) {
  pith_plan *plan = NULL;
  pith_plan_request request = {.size = sizeof request, .method = PITH_PLAN_GLOBAL, .uniform = "topk:0.1"};
  pith_status status = pith_plan_make(profile, &request, &plan);
  CHECK((plan != NULL) == (status == PITH_OK));
  pith_plan_destroy(plan);
  return status;
}

TEST(making_plans_of_one_threshold) {
  static const char sparse[] =
      "{\"pith_statistics\": 1, \"candidates\": [\"topk:0.05\", \"topk:0.1\"], \"layers\": [\n"
      "{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 1, \"norm\": 8, \"top\": 1, \"bytes\": [1100, 2000], "
      "\"errors\": [3, 1]}]}";
  CHECK_OK(pith_profile_parse((pith_bytes){sparse, strlen(sparse)}, &profile));
  check_every_failure(make_global);
  pith_profile_destroy(profile);
}

static const char plan_text[] =
    "{\"pith_plan\": 1, \"note\": \"x\", \"budget\": 2, \"layers\": [{\"name\": \"a\", \"spec\": \"q:4\", \"shape\": "
    "[64, 64], \"share\": 0.5},\n"
    "{\"name\": \"b\", \"spec\": \"q:2\"}, {\"name\": \"c\", \"spec\": \"none\"}]}";

static pith_status parse_plan(void) {
  pith_plan *plan = NULL;
  pith_status status = pith_plan_parse((pith_bytes){plan_text, strlen(plan_text)}, &plan);
  CHECK((plan != NULL) == (status == PITH_OK));
  pith_plan_destroy(plan);
  return status;
}

TEST(reading_a_plan) { check_every_failure(parse_plan); }

static pith_plan *plan_to_price;

static pith_status price(void) {
  double seconds;
  pith_status status = pith_plan_price(plan_to_price, profile);
  return status == PITH_OK ? pith_plan_seconds(plan_to_price, profile, NULL, &seconds) : status;
}

TEST(pricing_a_plan) {
  CHECK_OK(pith_profile_parse((pith_bytes){stats, strlen(stats)}, &profile));
  CHECK_OK(pith_plan_parse((pith_bytes){plan_text, strlen(plan_text)}, &plan_to_price));
  check_every_failure(price);
  pith_plan_destroy(plan_to_price);
  pith_profile_destroy(profile);
}

static float gradient[64 * 64];

/* What a failed update has not added, a later one adds: the statistics are those of the good ones. */
static pith_status update(void) {
  return pith_profile_update(profile, 0, (pith_cspan){gradient, 64 * 64, PITH_F32}, NULL);
}

TEST(measuring_a_gradient) {
  static const size_t shape[] = {64, 64};
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  for (int i = 0; i < 64 * 64; i++) {
    gradient[i] = test_normal();
  }
  CHECK_OK(pith_profile_create(&(pith_layer){sizeof(pith_layer), "a", shape, 2, PITH_F32, NULL}, 1,
                               "q:4;topk:0.01;powersgd:2;sketchml:16", &profile));
  check_every_failure(update);
  CHECK_OK(pith_profile_layer_get(profile, 0, &layer));
  CHECK_EQ(layer.samples, 1);
  pith_profile_destroy(profile);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Making plans: methods, budgets, families, the cost of a step, hysteresis, and what is refused. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

enum { LAYERS = 6, CANDIDATES = 10, HEAD = 4 };
static const char candidates[] = "q:2;q:3;q:4;q:5;q:6;ef/topk:0.001;ef/topk:0.01;ef/topk:0.1;ef/powersgd:4;none";
static const size_t shapes[LAYERS][2] = {{512, 512}, {64, 64}, {2048, 512}, {256, 16}, {1024, 1024}, {32, 0}};

/* Layers of different size and norm: errors as they might be. The last is a bias. */
static void fill(pith_profile *profile, double factor) {
  size_t count;
  double *v = pith_profile_values(profile, &count);
  for (size_t l = 0; l + 1 < LAYERS; l++, v += HEAD + 2 * CANDIDATES) {
    double n = (double)(shapes[l][0] * shapes[l][1]), norm = factor * exp((double)l * 1.3 - 2);
    static const double bits[] = {2.125, 3.125, 4.125, 5.125, 6.125, 0.05, 0.4, 3.5, 0.5, 32};
    static const double lost[] = {0.3, 0.07, 0.015, 0.004, 0.001, 0.9, 0.6, 0.2, 0.4, 0};
    v[0] = 2, v[2] = 2 * norm, v[3] = norm;
    for (int c = 0; c < CANDIDATES; c++) {
      v[HEAD + c] = 2 * ceil(bits[c] * n / 8);
      v[HEAD + CANDIDATES + c] = 2 * norm * lost[c] * (1 + 0.1 * (double)((l * 7 + (size_t)c * 3) % 5));
    }
  }
}

static pith_profile *empty_profile(void) {
  static const char *const names[LAYERS] = {"a.weight", "b.weight", "c.weight", "d.weight", "e.weight", "e.bias"};
  pith_layer layers[LAYERS];
  pith_profile *profile;
  for (size_t l = 0; l < LAYERS; l++) {
    layers[l] = (pith_layer){sizeof(pith_layer), names[l], shapes[l], l + 1 < LAYERS ? 2 : 1, PITH_F32, NULL};
  }
  CHECK_OK(pith_profile_create(layers, LAYERS, candidates, &profile));
  return profile;
}

static pith_profile *profile_of(double factor) {
  pith_profile *profile = empty_profile();
  fill(profile, factor);
  return profile;
}

static pith_plan *make(const pith_profile *profile, pith_plan_request request) {
  pith_plan *plan = NULL;
  request.size = sizeof request;
  CHECK_OK(pith_plan_make(profile, &request, &plan));
  return plan;
}

static pith_plan_info info_of(const pith_plan *plan) {
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  CHECK_OK(pith_plan_info_get(plan, &info));
  return info;
}

static int uses(const pith_plan *plan, const char *method) { return strstr(pith_plan_rules(plan), method) != NULL; }

TEST(a_plan_keeps_the_error_of_its_reference_with_fewer_bytes) {
  pith_profile *profile = profile_of(1);
  pith_plan *plan = make(profile, (pith_plan_request){.uniform = "q:4"}), *uniform;
  CHECK_OK(pith_plan_uniform(profile, "q:4", &uniform));
  CHECK(info_of(plan).error <= info_of(uniform).error);
  CHECK(info_of(plan).bytes < info_of(uniform).bytes);
  CHECK(info_of(plan).budget == info_of(uniform).error);
  CHECK_STR(info_of(plan).method, "lgreco");
  CHECK_STR(info_of(plan).reference, "q:4");
  CHECK(!uses(plan, "topk") && !uses(plan, "powersgd")); /* the family of the reference alone */
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  CHECK_OK(pith_plan_layer_get(plan, LAYERS - 1, &layer));
  CHECK_STR(layer.spec, "none");
  CHECK(layer.bytes == 128 && layer.error == 0);
  pith_plan_destroy(plan);
  pith_plan_destroy(uniform);
  pith_profile_destroy(profile);
}

/* The least share of its uniform bytes that a layer has. */
static double least_share(const pith_plan *plan, const pith_plan *uniform) {
  double least = 1;
  for (size_t l = 0; l < LAYERS; l++) {
    pith_plan_layer mine = PITH_PLAN_LAYER_INIT, theirs = PITH_PLAN_LAYER_INIT;
    CHECK_OK(pith_plan_layer_get(plan, l, &mine));
    CHECK_OK(pith_plan_layer_get(uniform, l, &theirs));
    least = fmin(least, mine.bytes / theirs.bytes);
  }
  return least;
}

TEST(no_layer_gets_less_than_its_floor) {
  pith_profile *profile = profile_of(1);
  pith_plan *free_ = make(profile, (pith_plan_request){.uniform = "q:4", .alpha = 4}), *uniform, *same, *plan;
  CHECK_OK(pith_plan_uniform(profile, "q:4", &uniform));
  CHECK_MSG(least_share(free_, uniform) < 0.7, "nothing to show: %g", least_share(free_, uniform));
  plan = make(profile, (pith_plan_request){.uniform = "q:4", .alpha = 4, .floor = 0.7});
  CHECK(least_share(plan, uniform) >= 0.7);
  CHECK(info_of(plan).error <= info_of(plan).budget && info_of(plan).bytes >= info_of(free_).bytes);
  same = make(profile, (pith_plan_request){.uniform = "q:4", .floor = 1});
  CHECK(info_of(same).bytes == info_of(uniform).bytes);
  pith_plan *refused;
  CHECK_STATUS(
      pith_plan_make(profile, &(pith_plan_request){.size = sizeof(pith_plan_request), .uniform = "q:4", .floor = 2},
                     &refused),
      PITH_ERR_ARGUMENT);
  pith_plan_destroy(free_), pith_plan_destroy(uniform), pith_plan_destroy(same), pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

TEST(all_families_together_are_no_worse_than_any) {
  pith_profile *profile = profile_of(1);
  static const char *const families[] = {"q", "topk", "powersgd,none", "q,topk", "none"};
  pith_plan *mix = make(profile, (pith_plan_request){.uniform = "ef/topk:0.1", .families = "mix"});
  for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
    pith_plan *plan = make(profile, (pith_plan_request){.uniform = "ef/topk:0.1", .families = families[i]});
    CHECK(info_of(mix).bytes <= info_of(plan).bytes);
    pith_plan_destroy(plan);
  }
  pith_plan_destroy(mix);
  pith_profile_destroy(profile);
}

TEST(a_larger_budget_never_costs_more) {
  pith_profile *profile = profile_of(1);
  double last = INFINITY;
  for (double alpha = 0.5; alpha < 20; alpha *= 1.3) {
    pith_plan *plan = make(profile, (pith_plan_request){.uniform = "q:4", .alpha = alpha, .families = "mix"});
    CHECK(info_of(plan).bytes <= last);
    CHECK(info_of(plan).error <= info_of(plan).budget);
    last = info_of(plan).bytes;
    pith_plan_destroy(plan);
  }
  pith_profile_destroy(profile);
}

TEST(the_same_statistics_give_the_same_plan) {
  pith_profile *one = profile_of(1), *other = profile_of(1);
  for (int method = 0; method < 2; method++) {
    pith_plan_request request = {.method = (pith_plan_method)method, .uniform = "q:4", .families = "mix"};
    pith_plan *a = make(one, request), *b = make(other, request);
    CHECK_STR(pith_plan_text(a), pith_plan_text(b));
    pith_plan_destroy(a);
    pith_plan_destroy(b);
  }
  pith_profile_destroy(one);
  pith_profile_destroy(other);
}

TEST(clusters_keep_the_budget_and_are_no_larger_than_uniform) {
  pith_profile *profile = profile_of(1);
  static const char *const specs[] = {"q:2", "q:3", "q:4", "q:5", "ef/topk:0.01", "ef/topk:0.1", "none"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    pith_plan *uniform, *plan = make(profile, (pith_plan_request){.method = PITH_PLAN_KMEANS, .uniform = specs[i]});
    pith_plan *best = make(profile, (pith_plan_request){.uniform = specs[i]});
    CHECK_OK(pith_plan_uniform(profile, specs[i], &uniform));
    CHECK(info_of(plan).error <= info_of(uniform).error);
    CHECK(info_of(plan).bytes <= info_of(uniform).bytes);
    CHECK(info_of(best).bytes <= info_of(plan).bytes);
    pith_plan_destroy(plan);
    pith_plan_destroy(best);
    pith_plan_destroy(uniform);
  }
  pith_profile_destroy(profile);
}

TEST(accordion_spares_layers_whose_norm_changes) {
  pith_profile *before = profile_of(1), *now = profile_of(1);
  size_t count;
  double *v = pith_profile_values(now, &count);
  v[2] *= 4; /* the norm of the first layer has doubled */
  pith_plan_request request = {.method = PITH_PLAN_ACCORDION, .critical = "q:5", .otherwise = "q:2", .before = before};
  pith_plan *plan = make(now, request);
  CHECK_STR(pith_plan_rules(plan),
            "a.weight=q:5;b.weight=q:2;c.weight=q:2;d.weight=q:2;e.weight=q:2;e.bias=none;*=none");
  request.threshold = 1.5;
  pith_plan *calm = make(now, request);
  CHECK(!uses(calm, "q:5"));
  request.before = NULL; /* the first window */
  pith_plan *first = make(now, request);
  CHECK(!uses(first, "q:2"));
  request = (pith_plan_request){.critical = "q:5", .otherwise = "q:2", .before = before};
  pith_plan *joined = make(now, request); /* as the budget of lgreco */
  CHECK(info_of(joined).budget == info_of(plan).error);
  CHECK(info_of(joined).bytes <= info_of(plan).bytes);
  pith_plan_destroy(plan);
  pith_plan_destroy(calm);
  pith_plan_destroy(first);
  pith_plan_destroy(joined);
  pith_profile_destroy(before);
  pith_profile_destroy(now);
}

/* ---- Time -------------------------------------------------------------------------------------------------------- */

static double seconds_of(const pith_plan *plan, const pith_profile *profile, const pith_plan_cost *cost) {
  double seconds;
  CHECK_OK(pith_plan_seconds(plan, profile, cost, &seconds));
  return seconds;
}

TEST(a_plan_for_time_is_faster_than_one_for_bytes) {
  pith_profile *profile = profile_of(1);
  for (double bandwidth = 1e6; bandwidth < 1e11; bandwidth *= 10) {
    for (double compute = 0; compute < 0.5; compute += 0.1) {
      pith_plan_cost cost = {
          .size = sizeof cost, .ranks = 8, .bandwidth = bandwidth, .compute = compute, .latency = 1e-4};
      pith_plan_request request = {.uniform = "q:3", .families = "mix", .cost = &cost};
      pith_plan *small = make(profile, request);
      request.objective = PITH_PLAN_TIME;
      pith_plan *fast = make(profile, request), *uniform, *none;
      CHECK_OK(pith_plan_uniform(profile, "q:3", &uniform));
      CHECK_OK(pith_plan_uniform(profile, "none", &none));
      double mine = seconds_of(fast, profile, &cost) * (1 - 1e-5);
      CHECK(mine <= seconds_of(small, profile, &cost));
      CHECK(mine <= seconds_of(uniform, profile, &cost));
      CHECK(mine <= seconds_of(none, profile, &cost));
      CHECK(info_of(fast).error <= info_of(fast).budget);
      CHECK_STR(info_of(fast).objective, "time");
      pith_plan_destroy(small);
      pith_plan_destroy(fast);
      pith_plan_destroy(uniform);
      pith_plan_destroy(none);
    }
  }
  pith_profile_destroy(profile);
}

TEST(a_fast_link_needs_no_compression) {
  pith_profile *profile = profile_of(1);
  pith_plan_cost cost = {.size = sizeof cost, .bandwidth = 1e12};
  pith_plan *plan = make(
      profile, (pith_plan_request){.uniform = "q:4", .families = "mix", .objective = PITH_PLAN_TIME, .cost = &cost});
  CHECK(!uses(plan, "q:") && !uses(plan, "topk") && !uses(plan, "powersgd"));
  pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

TEST(a_step_ends_when_the_last_layer_is_through) {
  pith_profile *profile = profile_of(1);
  pith_plan *none;
  CHECK_OK(pith_plan_uniform(profile, "none", &none));
  double values = 0, ready[LAYERS] = {0};
  for (size_t l = 0; l < LAYERS; l++) {
    values += (double)shapes[l][0] * (l + 1 < LAYERS ? (double)shapes[l][1] : 1);
  }
  pith_plan_cost cost = {.size = sizeof cost, .ranks = 4, .bandwidth = 1e8, .latency = 1e-3};
  double wire = 2 * 4 * values * 3 / 4 / 1e8, latency = 5e-3; /* five layers; the bias rides along */
  CHECK_NEAR(seconds_of(none, profile, &cost), wire + latency, 1e-9);
  ready[0] = 100; /* the first layer is the last to be ready: only its own exchange is left then */
  cost.ready = ready;
  CHECK_NEAR(seconds_of(none, profile, &cost), 100 + 1e-3 + 2 * 4 * 512.0 * 512 * 3 / 4 / 1e8, 1e-9);
  pith_plan_destroy(none);
  pith_profile_destroy(profile);
}

/* ---- Hysteresis -------------------------------------------------------------------------------------------------- */

TEST(a_plan_stays_until_another_gains_enough) {
  pith_profile *profile = profile_of(1);
  pith_plan *uniform, *plan = make(profile, (pith_plan_request){.uniform = "q:4"});
  CHECK_OK(pith_plan_uniform(profile, "q:4", &uniform));
  double gain = 1 - info_of(plan).bytes / info_of(uniform).bytes;
  CHECK(gain > 0.01);
  CHECK(pith_plan_gains(uniform, plan, profile, NULL, 0.9 * gain));
  CHECK(!pith_plan_gains(uniform, plan, profile, NULL, 1.1 * gain));
  CHECK(!pith_plan_gains(plan, plan, profile, NULL, 0.05));
  pith_plan *lossy;
  CHECK_OK(pith_plan_uniform(profile, "q:2", &lossy)); /* smaller, but over the budget */
  CHECK(pith_plan_gains(lossy, plan, profile, NULL, 0.05));
  pith_plan_cost cost = {.size = sizeof cost, .bandwidth = 1e6};
  CHECK(pith_plan_gains(uniform, plan, profile, &cost, 0.5 * gain));
  pith_plan_destroy(lossy);
  pith_plan_destroy(uniform);
  pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

TEST(prices_follow_the_statistics) {
  pith_profile *then = profile_of(1), *now = profile_of(3);
  pith_plan *plan = make(then, (pith_plan_request){.uniform = "q:4"});
  double error = info_of(plan).error, bytes = info_of(plan).bytes;
  CHECK_OK(pith_plan_price(plan, now));
  CHECK_NEAR(info_of(plan).error, 3 * error, 1e-9 * error);
  CHECK(info_of(plan).bytes == bytes);
  pith_plan_destroy(plan);
  pith_profile_destroy(then);
  pith_profile_destroy(now);
}

/* ---- Models ------------------------------------------------------------------------------------------------------ */

TEST(a_plan_for_another_model_is_refused) {
  pith_profile *profile = profile_of(1);
  pith_plan *plan = make(profile, (pith_plan_request){.uniform = "q:4"});
  pith_layer layers[LAYERS];
  for (size_t l = 0; l < LAYERS; l++) {
    pith_profile_layer info = PITH_PROFILE_LAYER_INIT;
    CHECK_OK(pith_profile_layer_get(profile, l, &info));
    layers[l] = (pith_layer){sizeof(pith_layer), info.name, info.shape, info.dimensions, PITH_F32, NULL};
  }
  layers[2].shape = (size_t[]){512, 2048};
  pith_profile *other;
  CHECK_OK(pith_profile_create(layers, 3, candidates, &other));
  size_t count;
  double *v = pith_profile_values(other, &count);
  for (size_t i = 0; i < count; i++) {
    v[i] = 1;
  }
  CHECK_STATUS(pith_plan_price(plan, other), PITH_ERR_MISMATCH);
  pith_profile_destroy(other);
  pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

TEST(rules_of_a_plan_are_rules) {
  pith_profile *profile = profile_of(1);
  pith_plan *plan = make(profile, (pith_plan_request){.uniform = "q:4", .families = "mix"});
  pith_rules *rules;
  CHECK_OK(pith_rules_create(pith_plan_rules(plan), &rules));
  for (size_t l = 0; l < LAYERS; l++) {
    pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
    pith_match match = PITH_MATCH_INIT;
    CHECK_OK(pith_plan_layer_get(plan, l, &layer));
    CHECK_OK(pith_rules_find(rules, layer.name, layer.dimensions, layer.n, &match));
    CHECK_STR(pith_codec_spec(match.codec), layer.spec);
  }
  pith_rules_destroy(rules);
  pith_plan_destroy(plan);
  pith_profile_destroy(profile);
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void refuse(const pith_profile *profile, pith_plan_request request, pith_status status, const char *says) {
  pith_plan *plan = NULL;
  request.size = sizeof request;
  CHECK_STATUS(pith_plan_make(profile, &request, &plan), status);
  CHECK_ERROR_SAYS(says);
  CHECK(plan == NULL);
}

TEST(requests_that_cannot_be_met_say_why) {
  pith_profile *profile = profile_of(1), *bare = empty_profile();
  refuse(profile, (pith_plan_request){.budget = 1e-9, .families = "q"}, PITH_ERR_RANGE, "the budget cannot be kept");
  refuse(profile, (pith_plan_request){.budget = 1e-9, .families = "q", .method = PITH_PLAN_KMEANS}, PITH_ERR_RANGE,
         "cannot be kept");
  refuse(profile, (pith_plan_request){.budget = -1}, PITH_ERR_RANGE, "budget is -1");
  refuse(profile, (pith_plan_request){.budget = NAN}, PITH_ERR_RANGE, "budget is");
  refuse(profile, (pith_plan_request){.uniform = "q:8"}, PITH_ERR_STATE, "q:8 was not measured");
  refuse(profile, (pith_plan_request){.uniform = "q:4", .alpha = -1}, PITH_ERR_RANGE, "alpha");
  refuse(profile, (pith_plan_request){.uniform = "q:4", .families = "q,eden"}, PITH_ERR_STATE, "\"eden\"");
  refuse(profile, (pith_plan_request){.uniform = "q:4", .families = ""}, PITH_ERR_ARGUMENT, "no family");
  refuse(profile, (pith_plan_request){.method = PITH_PLAN_ACCORDION, .critical = "q:4"}, PITH_ERR_ARGUMENT,
         "two specs");
  refuse(profile, (pith_plan_request){.method = PITH_PLAN_KMEANS, .uniform = "q:4", .objective = PITH_PLAN_TIME},
         PITH_ERR_ARGUMENT, "only lgreco plans for time");
  refuse(bare, (pith_plan_request){.uniform = "q:4"}, PITH_ERR_STATE, "layer a.weight has no statistics");
  pith_plan_cost cost = {.size = sizeof cost, .bandwidth = -1};
  refuse(profile, (pith_plan_request){.uniform = "q:4", .objective = PITH_PLAN_TIME, .cost = &cost}, PITH_ERR_RANGE,
         "bandwidth -1");
  pith_plan *plan = NULL;
  CHECK_STATUS(pith_plan_make(profile, &(pith_plan_request){.uniform = "q:4"}, &plan), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("pith_plan_request.size");
  pith_profile_destroy(profile);
  pith_profile_destroy(bare);
}

TEST(profiles_that_cannot_be_say_why) {
  pith_profile *profile = NULL;
  pith_layer good = {sizeof(pith_layer), "a", shapes[0], 2, PITH_F32, NULL},
             star = {sizeof(pith_layer), "a*", shapes[0], 2, PITH_F32, NULL}, twice[] = {good, good};
  CHECK_STATUS(pith_profile_create(&star, 1, "q:4", &profile), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_profile_create(twice, 2, "q:4", &profile), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("layer a comes twice");
  CHECK_STATUS(pith_profile_create(&good, 1, ";", &profile), PITH_ERR_SPEC);
  CHECK_STATUS(pith_profile_create(&good, 1, "q:4;q", &profile), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_profile_create(&good, 1, "q:4;zz", &profile), PITH_ERR_SPEC);
  CHECK(profile == NULL);
  float x[16] = {0};
  CHECK_OK(pith_profile_create(&good, 1, "q:4", &profile));
  CHECK_STATUS(pith_profile_update(profile, 0, (pith_cspan){x, 16, PITH_F32}, NULL), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("layer a has 262144 values, not 16");
  CHECK_STATUS(pith_profile_update(profile, 1, (pith_cspan){x, 16, PITH_F32}, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_profile_update(profile, 0, (pith_cspan){x, 16, PITH_I32}, NULL), PITH_ERR_ARGUMENT);
  pith_profile_destroy(profile);
  pith_profile_destroy(NULL);
  pith_plan_destroy(NULL);
}

static void check_candidates(const char *spec, const char *wanted) {
  char text[4096];
  CHECK_OK(pith_plan_candidates(spec, text, sizeof text));
  CHECK_STR(text, wanted);
}

TEST(candidates_surround_a_spec) {
  check_candidates("q:3,bucket=64",
                   "q:1,bucket=64;q:2,bucket=64;q:3,bucket=64;q:4,bucket=64;q:5,bucket=64;q:6,bucket=64");
  check_candidates(
      "q:1", "q:1;q:1,bucket=128;q:1,bucket=256;q:1,bucket=1024;q:2;q:2,bucket=128;q:2,bucket=256;q:2,bucket=1024");
  check_candidates("ef/powersgd:2",
                   "ef/powersgd:1;ef/powersgd:2;ef/powersgd:3;ef/powersgd:4;ef/powersgd:5;ef/powersgd:6;"
                   "ef/powersgd:7;ef/powersgd:8");
  check_candidates("gq:8", "gq:4;gq:8");
  check_candidates("gq:4", "gq:4;gq:8");
  check_candidates("qsgd:64", "qsgd:1;qsgd:3;qsgd:7;qsgd:15;qsgd:31;qsgd:63;qsgd:64;qsgd:127");
  check_candidates("ef/qsgd:7,norm=linf",
                   "ef/qsgd:1,norm=linf;ef/qsgd:3,norm=linf;ef/qsgd:7,norm=linf;ef/qsgd:15,norm=linf;"
                   "ef/qsgd:31,norm=linf;ef/qsgd:63,norm=linf;ef/qsgd:127,norm=linf");
  check_candidates("sketchml:64",
                   "sketchml:2;sketchml:4;sketchml:8;sketchml:16;sketchml:32;sketchml:64;sketchml:128;sketchml:256");
  check_candidates(
      "terngrad",
      "terngrad:0.625;terngrad:0.743;terngrad:0.884;terngrad:1.05;terngrad:1.25;terngrad:1.49;terngrad:1.77;"
      "terngrad:2.1;terngrad:2.5;terngrad:2.97;terngrad:3.54;terngrad:4.2;terngrad:5;terngrad:5.95;"
      "terngrad:7.07;terngrad:8.41;terngrad:10");
  check_candidates("terngrad:0", "terngrad:0");
  check_candidates("none", "none");
  check_candidates("eden:2", "eden:1;eden:2;eden:3;eden:4");
  char text[4096];
  CHECK_OK(pith_plan_candidates("ef/topk:0.01,values=fp16", text, sizeof text));
  CHECK(strstr(text, "ef/topk:0.001,values=fp16;") == text && strstr(text, ";ef/topk:0.1,values=fp16"));
  CHECK_STATUS(pith_plan_candidates("q:4", text, 8), PITH_ERR_BUFFER);
  CHECK_STATUS(pith_plan_candidates("zz", text, sizeof text), PITH_ERR_SPEC);
}

/* Whatever is offered as a candidate can be one. */
TEST(all_candidates_can_be_measured) {
  static const char *const specs[] = {
      "mix",     "q:4",   "ef/topk:0.01", "ef/powersgd:4", "eden:2",          "randomk:0.01",     "dgc:0.01",
      "qsgd:64", "gq:8",  "sketchml:64",  "terngrad",      "inceptionn:0.01", "ef/threshold:0.5", "adaptive:0.01",
      "natural", "drive", "ef/signmean"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    char text[8192];
    pith_profile *profile;
    pith_layer layer = {sizeof(pith_layer), "a", shapes[1], 2, PITH_F32, NULL};
    float x[64 * 64];
    for (int k = 0; k < 64 * 64; k++) {
      x[k] = test_normal();
    }
    CHECK_OK(pith_plan_candidates(specs[i], text, sizeof text));
    CHECK_OK(pith_profile_create(&layer, 1, text, &profile));
    CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){x, 64 * 64, PITH_F32}, NULL));
    pith_profile_destroy(profile);
  }
}

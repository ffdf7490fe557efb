/* SPDX-License-Identifier: Apache-2.0 */
/* Plan and statistics files: what is written reads back as the same; anything else is refused with a sentence. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "test.h"

static pith_status parse_plan(const char *text, pith_plan **plan) {
  return pith_plan_parse((pith_bytes){text, strlen(text)}, plan);
}

static pith_status parse_stats(const char *text, pith_profile **profile) {
  return pith_profile_parse((pith_bytes){text, strlen(text)}, profile);
}

#define HAND_MADE                                                                            \
  "{\n"                                                                                      \
  "  \"pith_plan\": 1,\n"                                                                    \
  "  \"note\": \"made by hand\",\n"                                                          \
  "  \"default\": \"none\",\n"                                                               \
  "  \"layers\": [\n"                                                                        \
  "    {\"name\": \"embed.weight\", \"spec\": \"ef/topk:0.01\", \"shape\": [50257, 768]},\n" \
  "    {\"name\": \"fc1.weight\", \"spec\": \"q:4\", \"shape\": [512, 784]}\n"               \
  "  ]\n"                                                                                    \
  "}\n"

TEST(a_plan_made_by_hand_reads_back_as_it_is) {
  pith_plan *plan;
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  CHECK_OK(parse_plan(HAND_MADE, &plan));
  CHECK_STR(pith_plan_text(plan), HAND_MADE);
  CHECK_STR(pith_plan_rules(plan), "embed.weight=ef/topk:0.01;fc1.weight=q:4;*=none");
  CHECK_OK(pith_plan_info_get(plan, &info));
  CHECK_STR(info.note, "made by hand");
  CHECK(info.budget < 0 && info.bytes < 0 && info.error < 0);
  CHECK_OK(pith_plan_layer_get(plan, 1, &layer));
  CHECK_EQ(layer.n, 512 * 784);
  CHECK_EQ(layer.dimensions, 2);
  CHECK_STATUS(pith_plan_layer_get(plan, 2, &layer), PITH_ERR_ARGUMENT);
  pith_plan_destroy(plan);
}

TEST(a_plan_may_leave_out_what_it_does_not_know) {
  pith_plan *plan;
  CHECK_OK(parse_plan("{\"layers\":[{\"spec\":\"q\",\"name\":\"a\"}],\"pith_plan\":1}", &plan));
  CHECK_STR(pith_plan_rules(plan), "a=q:4;*=none");
  pith_plan_destroy(plan);
  CHECK_OK(parse_plan("{\"pith_plan\": 1}", &plan));
  CHECK_STR(pith_plan_rules(plan), "*=none");
  pith_plan_destroy(plan);
}

#define BY_ERRORS                                                \
  "{\n"                                                          \
  "  \"pith_plan\": 1,\n"                                        \
  "  \"note\": \"\",\n"                                          \
  "  \"metric\": \"l2\",\n"                                      \
  "  \"budget\": 8,\n"                                           \
  "  \"default\": \"none\",\n"                                   \
  "  \"layers\": [\n"                                            \
  "    {\"name\": \"a\", \"spec\": \"q:4\", \"share\": 0.25},\n" \
  "    {\"name\": \"b\", \"spec\": \"q:2\", \"share\": 0.5}\n"   \
  "  ]\n"                                                        \
  "}\n"

TEST(a_plan_keeps_its_metric) {
  pith_plan *plan;
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  CHECK_OK(parse_plan(BY_ERRORS, &plan));
  CHECK_STR(pith_plan_text(plan), BY_ERRORS);
  CHECK_OK(pith_plan_info_get(plan, &info));
  CHECK_STR(info.metric, "l2");
  CHECK(info.error == 6);
  pith_plan_destroy(plan);
  CHECK_STATUS(parse_plan("{\"pith_plan\": 1, \"metric\": \"l3\"}", &plan), PITH_ERR_CORRUPT);
  CHECK_ERROR_SAYS("l2sq or l2");
}

TEST(escapes_and_foreign_letters_survive) {
  pith_plan *plan, *again;
  pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
  CHECK_OK(
      parse_plan("{\"pith_plan\":1,\"note\":\"\\u00e9\\ud83d\\ude00\\n\\\"\\\\ "
                 "\\/\",\"layers\":[{\"name\":\"größe/w\",\"spec\":\"q\"}]}",
                 &plan));
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  CHECK_OK(pith_plan_info_get(plan, &info));
  CHECK_STR(info.note, "é😀\n\"\\ /");
  CHECK_OK(parse_plan(pith_plan_text(plan), &again));
  CHECK_STR(pith_plan_text(again), pith_plan_text(plan));
  CHECK_OK(pith_plan_layer_get(again, 0, &layer));
  CHECK_STR(layer.name, "größe/w");
  pith_plan_destroy(plan);
  pith_plan_destroy(again);
}

static void refuse_plan(const char *text, pith_status status, const char *says) {
  pith_plan *plan = NULL;
  CHECK_STATUS(parse_plan(text, &plan), status);
  CHECK_ERROR_SAYS(says);
  CHECK(plan == NULL);
}

TEST(damaged_plans_are_refused_with_a_line) {
  refuse_plan("", PITH_ERR_CORRUPT, "empty");
  refuse_plan("{}", PITH_ERR_CORRUPT, "not a plan");
  refuse_plan("[1]", PITH_ERR_CORRUPT, "line 1: expected \"{\"");
  refuse_plan("{\"pith_plan\": 2}", PITH_ERR_CORRUPT, "version 2");
  refuse_plan("{\"pith_plan\": 1} x", PITH_ERR_CORRUPT, "something follows");
  refuse_plan("{\"pith_plan\": 1,\n\"layer\": []}", PITH_ERR_CORRUPT, "line 2: no such key: layer");
  refuse_plan("{\"pith_plan\": 1, \"pith_plan\": 1}", PITH_ERR_CORRUPT, "twice");
  refuse_plan("{\"pith_plan\": 1, \"budget\": -1}", PITH_ERR_CORRUPT, "budget");
  refuse_plan("{\"pith_plan\": 1, \"budget\": 1e999}", PITH_ERR_CORRUPT, "number");
  refuse_plan("{\"pith_plan\": 1, \"budget\": 0x10}", PITH_ERR_CORRUPT, "");
  refuse_plan("{\"pith_plan\": 1, \"budget\": nan}", PITH_ERR_CORRUPT, "number");
  refuse_plan("{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\"}]}", PITH_ERR_CORRUPT, "needs a name and a spec");
  refuse_plan("{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\", \"shape\": [1.5]}]}",
              PITH_ERR_CORRUPT, "whole number");
  refuse_plan("{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\"},]}", PITH_ERR_CORRUPT, "expected");
  refuse_plan("{\"pith_plan\": 1, \"note\": \"\\ud800\"}", PITH_ERR_CORRUPT, "character that cannot be");
  refuse_plan("{\"pith_plan\": 1, \"note\": \"\\u0000\"}", PITH_ERR_CORRUPT, "character that cannot be");
}

TEST(plans_that_cannot_be_followed_are_refused) {
  refuse_plan("{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q:99\"}]}", PITH_ERR_RANGE,
              "a: q: bits=99");
  refuse_plan("{\"pith_plan\": 1, \"default\": \"tokp\"}", PITH_ERR_SPEC, "default: ");
  refuse_plan(
      "{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\"}, {\"name\": \"a\", \"spec\": \"q\"}]}",
      PITH_ERR_ARGUMENT, "layer a comes twice");
  refuse_plan("{\"pith_plan\": 1, \"layers\": [{\"name\": \"a*\", \"spec\": \"q\"}]}", PITH_ERR_ARGUMENT,
              "cannot name a layer");
  refuse_plan(
      "{\"pith_plan\": 1, \"layers\": [{\"name\": \"a\", \"spec\": \"q\", \"shape\": [9000000000000000, "
      "9000000000000000]}]}",
      PITH_ERR_RANGE, "more values than any memory");
}

/* Every beginning of a good file is a bad one. */
TEST(no_beginning_of_a_plan_is_a_plan) {
  static const char text[] = HAND_MADE;
  for (size_t size = 0; size < sizeof text - 2; size++) {
    pith_plan *plan;
    CHECK(pith_plan_parse((pith_bytes){text, size}, &plan) != PITH_OK);
  }
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static pith_profile *measured(void) {
  pith_profile *profile;
  static const size_t shape[] = {64, 100}, flat[] = {64};
  pith_layer layers[] = {{sizeof(pith_layer), "w", shape, 2, PITH_F32, NULL},
                         {sizeof(pith_layer), "b", flat, 1, PITH_F32, NULL},
                         {sizeof(pith_layer), "unseen", shape, 2, PITH_F32, NULL}};
  float x[6400];
  for (int i = 0; i < 6400; i++) {
    x[i] = test_normal();
  }
  CHECK_OK(pith_profile_create(layers, 3, "q:2;q:4;ef/topk:0.01;powersgd:2", &profile));
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){x, 6400, PITH_F32}, NULL));
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){x, 6400, PITH_F32}, NULL));
  return profile;
}

TEST(statistics_read_back_to_the_last_bit) {
  char path[] = "/tmp/pith-stats-XXXXXX";
  int fd = mkstemp(path);
  pith_profile *profile = measured(), *again;
  CHECK(fd >= 0);
  close(fd);
  CHECK_OK(pith_profile_save(profile, path));
  CHECK_OK(pith_profile_load(path, &again));
  size_t count, same;
  double *a = pith_profile_values(profile, &count), *b = pith_profile_values(again, &same);
  CHECK_EQ(count, same);
  CHECK_BYTES(a, b, count * sizeof *a);
  CHECK_STR(pith_profile_candidate(again, 2), "ef/topk:0.01");
  CHECK(pith_profile_candidate(again, 4) == NULL);
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  CHECK_OK(pith_profile_layer_get(again, 0, &layer));
  CHECK_EQ(layer.samples, 2);
  CHECK_EQ(layer.n, 6400);
  CHECK_OK(pith_profile_layer_get(again, 1, &layer));
  CHECK(layer.fixed);
  remove(path);
  pith_profile_destroy(profile);
  pith_profile_destroy(again);
}

static void refuse_stats(const char *text, pith_status status, const char *says) {
  pith_profile *profile = NULL;
  CHECK_STATUS(parse_stats(text, &profile), status);
  CHECK_ERROR_SAYS(says);
  CHECK(profile == NULL);
}

#define STATS(layers) "{\"pith_statistics\": 1, \"candidates\": [\"q:2\", \"q:4\"], \"layers\": [" layers "]}"

TEST(damaged_statistics_are_refused) {
  refuse_stats("", PITH_ERR_CORRUPT, "empty");
  refuse_stats("{\"pith_plan\": 1}", PITH_ERR_CORRUPT, "no such key: pith_plan");
  refuse_stats("{\"pith_statistics\": 1}", PITH_ERR_CORRUPT, "needs pith_statistics, candidates and layers");
  refuse_stats("{\"pith_statistics\": 9}", PITH_ERR_CORRUPT, "version 9");
  refuse_stats("{\"pith_statistics\": 1, \"layers\": []}", PITH_ERR_CORRUPT, "candidates come before layers");
  refuse_stats("{\"pith_statistics\": 1, \"candidates\": [], \"layers\": []}", PITH_ERR_SPEC, "no candidate");
  refuse_stats("{\"pith_statistics\": 1, \"candidates\": [\"q:2;q:4\"], \"layers\": []}", PITH_ERR_CORRUPT,
               "candidate");
  refuse_stats("{\"pith_statistics\": 1, \"candidates\": [\"q:2\", \"q:2\"], \"layers\": []}", PITH_ERR_ARGUMENT,
               "twice");
  refuse_stats("{\"pith_statistics\": 1, \"candidates\": [\"zz\"], \"layers\": []}", PITH_ERR_SPEC, "zz");
  refuse_stats(STATS("{\"name\": \"a\", \"shape\": [64, 64]}"), PITH_ERR_CORRUPT, "lacks a field");
  refuse_stats(STATS("{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 1}"), PITH_ERR_CORRUPT, "lacks a field");
  refuse_stats(STATS("{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 1, \"norm\": 1, \"top\": 1, \"bytes\": [1], "
                     "\"errors\": [1, 2]}"),
               PITH_ERR_CORRUPT, "not as many numbers");
  refuse_stats(STATS("{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 1, \"norm\": 1, \"top\": 1, \"bytes\": [1, "
                     "2], \"errors\": [1, -2]}"),
               PITH_ERR_CORRUPT, "not negative");
  refuse_stats(
      STATS(
          "{\"name\": \"a\", \"shape\": [64, 64], \"samples\": 0}, {\"name\": \"a\", \"shape\": [4], \"samples\": 0}"),
      PITH_ERR_ARGUMENT, "layer a comes twice");
}

TEST(files_that_are_not_there_are_errors_with_their_name) {
  pith_profile *profile;
  pith_plan *plan;
  CHECK_STATUS(pith_profile_load("/no/such/file", &profile), PITH_ERR_SYSTEM);
  CHECK_ERROR_SAYS("/no/such/file");
  CHECK_STATUS(pith_plan_load("/no/such/file", &plan), PITH_ERR_SYSTEM);
  CHECK_OK(parse_plan(HAND_MADE, &plan));
  CHECK_STATUS(pith_plan_save(plan, "/no/such/folder/plan.json"), PITH_ERR_SYSTEM);
  CHECK_ERROR_SAYS("/no/such/folder");
  pith_plan_destroy(plan);
}

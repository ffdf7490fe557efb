/* SPDX-License-Identifier: Apache-2.0 */
/* Rules: which layer gets which spec, and why. */
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

static pith_rules *make(const char *text) {
  pith_rules *rules = NULL;
  CHECK_OK(pith_rules_create(text, &rules));
  return rules;
}

static pith_match find(const pith_rules *rules, const char *layer, size_t dimensions, size_t n) {
  pith_match match = PITH_MATCH_INIT;
  CHECK_OK(pith_rules_find(rules, layer, dimensions, n, &match));
  return match;
}

static void check_text(const char *text, const char *canonical) {
  pith_rules *rules = make(text), *again = make(canonical);
  CHECK_STR(pith_rules_text(rules), canonical);
  CHECK_STR(pith_rules_text(again), canonical);
  pith_rules_destroy(rules);
  pith_rules_destroy(again);
}

static void check_refused(const char *text, pith_status status, const char *says) {
  pith_rules *rules = NULL;
  CHECK_STATUS(pith_rules_create(text, &rules), status);
  CHECK_ERROR_SAYS(says);
  CHECK(rules == NULL);
}

TEST(a_lone_spec_is_a_rule_for_everything) {
  check_text("q:4", "*=q:4");
  check_text(" q:4 ; ", "*=q:4");
  check_text("q:4,bucket=1024", "*=q:4,bucket=1024");
  check_text("ef/topk:0.01,values=fp16", "*=ef/topk:0.01,values=fp16");
}

TEST(texts_are_canonical) {
  check_text("*.bias=none;*=q:4", "*.bias=none;*=q:4");
  check_text(" *.bias = none ;\n\t;; *=q:4,round=nearest ;", "*.bias=none;*=q:4");
  check_text("a/b[0]:c d=q:4,bucket=1024;x=none", "a/b[0]:c d=q:4,bucket=1024;x=none");
}

TEST(mistakes_name_the_rule) {
  check_refused("", PITH_ERR_SPEC, "no rule");
  check_refused(" ; ", PITH_ERR_SPEC, "no rule");
  check_refused("q:4;none", PITH_ERR_SPEC, "several specs need patterns");
  check_refused("*.bias=none;q:4", PITH_ERR_SPEC, "rule 2, \"q:4\", has no pattern");
  check_refused("*.bias=none;a,b=q:4", PITH_ERR_SPEC, "no commas");
  check_refused("=q:4", PITH_ERR_SPEC, "empty pattern");
  check_refused("*=", PITH_ERR_SPEC, "rule 1 (*): the spec is empty");
  check_refused("a=none;b=q:9", PITH_ERR_RANGE, "rule 2 (b): q: bits=9");
  check_refused("*=tokp:0.01", PITH_ERR_SPEC, "did you mean topk?");
  check_refused(NULL, PITH_ERR_ARGUMENT, "NULL");
  CHECK_STATUS(pith_rules_create("q:4", NULL), PITH_ERR_ARGUMENT);
}

TEST(the_first_match_wins_and_says_so) {
  pith_rules *rules = make("*.bias=none;embed*=ef/topk:0.01;*=q:4");
  CHECK_EQ(pith_rules_count(rules), 3);
  pith_match match = find(rules, "embed.bias", 2, 5000);
  CHECK_EQ(match.rule, 0);
  CHECK_STR(match.reason, "rule *.bias");
  match = find(rules, "embed.weight", 2, 5000);
  CHECK_EQ(match.rule, 1);
  CHECK_STR(pith_codec_spec(match.codec), "ef/topk:0.01");
  match = find(rules, "layer.0.weight", 2, 5000);
  CHECK_EQ(match.rule, 2);
  CHECK_STR(match.reason, "rule *");
  pith_rules_destroy(rules);
}

static void check_default(const pith_rules *rules, const char *layer, size_t dimensions, size_t n, const char *reason) {
  pith_match match = find(rules, layer, dimensions, n);
  CHECK_EQ(match.rule, SIZE_MAX);
  CHECK_STR(match.reason, reason);
  CHECK_STR(pith_codec_spec(match.codec), "none");
}

TEST(small_and_flat_tensors_travel_uncompressed_by_default) {
  pith_rules *rules = make("q:4");
  check_default(rules, "a", 1, 1 << 20, "one dimension");
  check_default(rules, "a", 2, 1023, "under 1024 values");
  check_default(rules, "a", 0, 1, "one dimension");
  CHECK_EQ(find(rules, "a", 2, 1024).rule, 0);
  pith_rules_destroy(rules);
}

/* The setting of the process, or of its environment; rules keep what they were made with. */
TEST(the_least_size_is_a_setting) {
  pith_rules *before = make("q:4");
  size_t values = 0;
  CHECK_OK(pith_minimal_size(&values));
  CHECK_EQ(values, 1024);
  setenv("PITH_MINIMAL_SIZE", "16", 1);
  pith_rules *smaller = make("q:4");
  check_default(smaller, "a", 2, 15, "under 16 values");
  CHECK_EQ(find(smaller, "a", 2, 16).rule, 0);
  pith_minimal_size_set(5000);
  pith_rules *larger = make("head*=q:8;*=q:4");
  check_default(larger, "a", 2, 4999, "under 5000 values");
  CHECK_EQ(find(larger, "a", 2, 5000).rule, 1);
  CHECK_EQ(find(larger, "head", 2, 10).rule, 0);
  check_default(before, "a", 2, 1023, "under 1024 values");
  pith_minimal_size_set(0);
  pith_rules *all = make("q:4");
  CHECK_EQ(find(all, "a", 2, 1).rule, 0);
  check_default(all, "a", 1, 5000, "one dimension");
  pith_minimal_size_set(PITH_MINIMAL_SIZE_UNSET);
  static const char *const wrong[] = {"many", "-1", "1k", " 5", "99999999999999999999999"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    setenv("PITH_MINIMAL_SIZE", wrong[i], 1);
    check_refused("q:4", PITH_ERR_ARGUMENT, "is not a number of values");
  }
  unsetenv("PITH_MINIMAL_SIZE");
  CHECK_STATUS(pith_minimal_size(NULL), PITH_ERR_ARGUMENT);
  pith_rules_destroy(before);
  pith_rules_destroy(smaller);
  pith_rules_destroy(larger);
  pith_rules_destroy(all);
}

TEST(a_pattern_that_names_a_small_tensor_overrides_the_default) {
  pith_rules *rules = make("head*=q:8;*=q:4");
  CHECK_EQ(find(rules, "head.bias", 1, 10).rule, 0);
  check_default(rules, "body.bias", 1, 10, "one dimension");
  pith_rules_destroy(rules);
}

TEST(a_layer_without_a_rule_travels_uncompressed) {
  pith_rules *rules = make("head*=q:8");
  check_default(rules, "body", 2, 1 << 20, "no rule matches");
  pith_rules_destroy(rules);
}

TEST(rules_that_match_nothing_can_be_found) {
  pith_rules *rules = make("head*=q:8;*=q:4");
  CHECK(pith_rules_matches(rules, 0, "head.0"));
  CHECK(!pith_rules_matches(rules, 0, "body"));
  CHECK(pith_rules_matches(rules, 1, "body"));
  CHECK(!pith_rules_matches(rules, 2, "body"));
  CHECK(!pith_rules_matches(rules, 0, NULL));
  pith_rules_destroy(rules);
}

TEST(missing_arguments_are_errors) {
  pith_rules *rules = make("q:4");
  pith_match match = PITH_MATCH_INIT;
  CHECK_STATUS(pith_rules_find(NULL, "a", 2, 10, &match), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_rules_find(rules, NULL, 2, 10, &match), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_rules_find(rules, "a", 2, 10, NULL), PITH_ERR_ARGUMENT);
  pith_rules_destroy(rules);
  pith_rules_destroy(NULL);
}

TEST(a_thousand_rules_work) {
  char text[20000] = "";
  for (int i = 0; i < 1000; i++) {
    char rule[32];
    snprintf(rule, sizeof rule, "l%d.*=q:%d;", i, 1 + i % 8);
    strcat(text, rule);
  }
  pith_rules *rules = make(text);
  CHECK_EQ(pith_rules_count(rules), 1000);
  CHECK_EQ(find(rules, "l999.weight", 2, 5000).rule, 999);
  pith_rules_destroy(rules);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Tests of means with what the fake module can do, whoever carries the bytes: check_means() is the includer's. */
#ifndef PITH_TESTS_FAKE_MEANS_TESTS_H
#define PITH_TESTS_FAKE_MEANS_TESTS_H

#include "test.h"

#define FAKE_MIXED "*.bias=q:8;embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;small*=powersgd:16;*=bf16"

static void check_means(const char *rules);

TEST(block_codecs_have_the_bits_of_buckets) {
  check_means("none");
  check_means("bf16");
  check_means("*=q:4");
  check_means("*.weight=q:3,bucket=64;*=q:8");
}

TEST(votes_go_to_the_majority_and_ties_in_turn) { check_means("signsgd"); }

TEST(memories_go_on_from_step_to_step) {
  check_means("ef/q:4");
  check_means("*=ef/q:2,bucket=128");
  check_means("signum:0.9");
  check_means("efsignsgd");
}

TEST(sparse_payloads_are_added_in_rank_order) {
  check_means("topk:0.05");
  check_means("*=ef/topk:0.02;");
  check_means("ef/topk:0.1,values=fp16");
}

TEST(block_codecs_can_be_gathered_and_encoded_once) {
  check_means("*=q:4,encode=once");
  check_means("*=ef/q:2,bucket=128,encode=once");
  check_means("signsgd,encode=once");
}

TEST(low_rank_agrees_within_rounding) {
  check_means("powersgd:2");
  check_means("ef/powersgd:4");
}

TEST(all_ways_go_together) { check_means(FAKE_MIXED); }

#endif

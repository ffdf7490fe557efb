/* SPDX-License-Identifier: Apache-2.0 */
/* Words: distances, guesses and patterns. */
#include "base/spec.h"
#include "test.h"

static pith_text text(const char *word) { return (pith_text){word, strlen(word)}; }

static int matches(const char *pattern, const char *name) { return pith__glob(text(pattern), name); }

TEST(distance_counts_single_edits) {
  CHECK_EQ(pith__text_distance(text("topk"), "topk"), 0);
  CHECK_EQ(pith__text_distance(text("topk"), "top"), 1);
  CHECK_EQ(pith__text_distance(text("topk"), "tokp"), 2);
  CHECK_EQ(pith__text_distance(text(""), "abc"), 3);
  CHECK_EQ(pith__text_distance(text("kitten"), "sitting"), 3);
}

TEST(distance_of_very_long_words_is_large_and_safe) {
  char word[500];
  memset(word, 'a', sizeof word - 1);
  word[sizeof word - 1] = 0;
  CHECK(pith__text_distance(text(word), "a") >= 64);
  CHECK(pith__text_distance(text("a"), word) >= 64);
}

TEST(nearest_keeps_the_first_of_the_best_and_ignores_the_far) {
  const char *best = NULL;
  pith__text_nearest(text("tokp"), "sign", &best);
  CHECK(best == NULL);
  pith__text_nearest(text("tokp"), "topk", &best);
  CHECK_STR(best, "topk");
  pith__text_nearest(text("tokp"), "tokpx", &best);
  CHECK_STR(best, "tokpx");
  pith__text_nearest(text("tokp"), "xtokp", &best);
  CHECK_STR(best, "tokpx");
}

TEST(text_is_compares_whole_words) {
  CHECK(pith__text_is(text("q"), "q"));
  CHECK(!pith__text_is(text("q"), "qsgd"));
  CHECK(!pith__text_is(text("qsgd"), "q"));
  CHECK(pith__text_is((pith_text){"qsgd", 1}, "q"));
}

TEST(patterns_match_as_people_expect) {
  CHECK(matches("*", ""));
  CHECK(matches("*", "layer.0.weight"));
  CHECK(matches("*.bias", "a.bias"));
  CHECK(!matches("*.bias", "a.bias.b"));
  CHECK(matches("*norm*", "layernorm"));
  CHECK(matches("l?.w", "l1.w"));
  CHECK(!matches("l?.w", "l.w"));
  CHECK(!matches("l?.w", "l12.w"));
  CHECK(matches("", ""));
  CHECK(!matches("", "a"));
  CHECK(matches("**a**", "bab"));
  CHECK(matches("a*b*c", "aXbYbZc"));
  CHECK(!matches("A", "a"));
}

/* The plainest definition there is, for comparison. */
static int slow_match(const char *pattern, const char *name) {
  if (*pattern == '*') {
    return slow_match(pattern + 1, name) || (*name && slow_match(pattern, name + 1));
  }
  if (!*pattern || !*name) {
    return !*pattern && !*name;
  }
  return (*pattern == '?' || *pattern == *name) && slow_match(pattern + 1, name + 1);
}

TEST(patterns_agree_with_their_definition_on_random_words) {
  for (int round = 0; round < 20000; round++) {
    char pattern[9] = "", name[11] = "";
    for (uint64_t i = 0, n = test_below(8); i < n; i++) {
      pattern[i] = "ab*?"[test_below(4)];
    }
    for (uint64_t i = 0, n = test_below(10); i < n; i++) {
      name[i] = "ab"[test_below(2)];
    }
    CHECK_MSG(matches(pattern, name) == slow_match(pattern, name), "\"%s\" on \"%s\"", pattern, name);
  }
}

TEST_WITHIN(many_stars_do_not_take_exponential_time, 5) {
  char pattern[2001], name[20001];
  for (size_t i = 0; i < 2000; i += 2) {
    memcpy(pattern + i, "*a", 2);
  }
  memcpy(pattern + 1998, "*b", 3);
  memset(name, 'a', 20000);
  name[20000] = 0;
  CHECK(!matches(pattern, name));
  name[19999] = 'b';
  CHECK(matches(pattern, name));
}

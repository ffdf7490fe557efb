/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors are sentences. A rank that one mentions is either held responsible or the one who tells; the words around it
 * say which.
 */
#include <stdlib.h>
#include <string.h>

#include "chaos.h"

/* Words before or after a rank that only tells. */
static const struct {
  const char *before, *after;
} tellers[] = {
    {"seen by ", ""},
    {"while ", " was waiting for it"},
    {"", " did not find rank 0"},
    {"", " has no tcp connection with"},
    {"did not come to ", ""},
};

static int ends_with(const char *start, const char *at, const char *word) {
  size_t length = strlen(word);
  return (size_t)(at - start) >= length && memcmp(at - length, word, length) == 0;
}

static int is_teller(const char *start, const char *at, const char *end) {
  for (size_t i = 0; i < sizeof tellers / sizeof *tellers; i++) {
    if (ends_with(start, at, tellers[i].before) && strncmp(end, tellers[i].after, strlen(tellers[i].after)) == 0) {
      return 1;
    }
  }
  return 0;
}

/* "rank 2", or "ranks 1, 2 and 3": the bits of the numbers. *end is behind them. */
static unsigned read_ranks(const char *at, const char **end) {
  unsigned bits = 0;
  at += strncmp(at, "ranks ", 6) == 0 ? 6 : 5;
  while (*at >= '0' && *at <= '9') {
    char *behind;
    unsigned long number = strtoul(at, &behind, 10);
    bits |= number < RANKS_MOST ? 1u << number : 0;
    *end = behind;
    at = strncmp(behind, " and ", 5) == 0 ? behind + 5 : strncmp(behind, ", ", 2) == 0 ? behind + 2 : "";
  }
  return bits;
}

chaos_blame chaos_read_blame(const char *text) {
  chaos_blame blame = {0, 0};
  for (const char *at = strstr(text, "rank"); at; at = strstr(at + 1, "rank")) {
    const char *end = at;
    unsigned bits = strncmp(at, "rank ", 5) == 0 || strncmp(at, "ranks ", 6) == 0 ? read_ranks(at, &end) : 0;
    if (is_teller(text, at, end)) {
      blame.observers |= bits;
    } else {
      blame.named |= bits;
    }
  }
  return blame;
}

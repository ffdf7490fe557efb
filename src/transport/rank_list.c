/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks in words. */
#include "transport/rank_list.h"

#include <stdio.h>

enum { NAMED_MOST = 12 };

static int count_flags(const uint8_t *flags, int ranks) {
  int count = 0;
  for (int i = 0; i < ranks; i++) {
    count += flags[i] != 0;
  }
  return count;
}

static const char *separator(int named, int total) { return named == 0 ? " " : named + 1 == total ? " and " : ", "; }

const char *pith__rank_list(const uint8_t *flags, int ranks, char text[PITH_RANK_LIST_TEXT]) {
  int total = count_flags(flags, ranks), named = 0;
  size_t used = (size_t)snprintf(text, PITH_RANK_LIST_TEXT, total == 1 ? "rank" : total ? "ranks" : "no rank");
  for (int i = 0; i < ranks && named < NAMED_MOST; i++) {
    if (flags[i]) {
      used += (size_t)snprintf(text + used, PITH_RANK_LIST_TEXT - used, "%s%d", separator(named++, total), i);
    }
  }
  if (named < total) {
    snprintf(text + used, PITH_RANK_LIST_TEXT - used, " and %d more", total - named);
  }
  return text;
}

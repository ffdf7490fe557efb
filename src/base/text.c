/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Words: comparing them, guessing which one was meant, matching layer names. All of it works on pieces of strings that
 * the caller owns, so that parsing never copies.
 */
#include <string.h>

#include "base/spec.h"

#define WORD_MAX 64 /* longer words are never typing errors of a name */

int pith__text_is(pith_text text, const char *word) {
  return strlen(word) == text.size && memcmp(text.at, word, text.size) == 0;
}

int pith__text_same(pith_text a, pith_text b) { return a.size == b.size && memcmp(a.at, b.at, a.size) == 0; }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* Levenshtein's distance, one row of the table at a time. */
size_t pith__text_distance(pith_text a, const char *b) {
  size_t columns = strlen(b), row[WORD_MAX + 1];
  if (a.size > WORD_MAX || columns > WORD_MAX) {
    return WORD_MAX;
  }
  for (size_t j = 0; j <= columns; j++) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= columns; j++) {
      size_t replaced = diagonal + (a.at[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = smaller(replaced, smaller(row[j], row[j - 1]) + 1);
    }
  }
  return row[columns];
}

void pith__text_nearest(pith_text text, const char *candidate, const char **best) {
  size_t distance = pith__text_distance(text, candidate);
  size_t enough = (text.size + 2) / 3; /* one error in three letters: "tokp" is topk, "ab" is not sign */
  if (distance <= enough && (!*best || distance < pith__text_distance(text, *best))) {
    *best = candidate;
  }
}

/* Only the last * seen can still take more characters: whatever an earlier one could take, this one can take too.
 * So one place to go back to is enough, and time is at most the product of the lengths. */
int pith__glob(pith_text pattern, const char *name) {
  size_t p = 0, star = SIZE_MAX;
  const char *resume = NULL;
  while (*name) {
    if (p < pattern.size && pattern.at[p] == '*') {
      star = p++;
      resume = name;
    } else if (p < pattern.size && (pattern.at[p] == '?' || pattern.at[p] == *name)) {
      p++;
      name++;
    } else if (star != SIZE_MAX) {
      p = star + 1;
      name = ++resume;
    } else {
      return 0;
    }
  }
  while (p < pattern.size && pattern.at[p] == '*') {
    p++;
  }
  return p == pattern.size;
}

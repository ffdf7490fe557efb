/* SPDX-License-Identifier: Apache-2.0 */
/* Edit distance, one row at a time. The library has its own for specs; the command sees only the public API. */
#include "cli/base/nearest.h"

#include <stddef.h>
#include <string.h>

enum { WORD_MAX = 64 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t distance(const char *a, const char *b) {
  size_t row[WORD_MAX + 1], columns = strlen(b);
  if (columns > WORD_MAX) {
    return WORD_MAX;
  }
  for (size_t j = 0; j <= columns; j++) {
    row[j] = j;
  }
  for (size_t i = 1; a[i - 1]; i++) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= columns; j++) {
      size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = smaller(replaced, 1 + smaller(row[j], row[j - 1]));
    }
  }
  return row[columns];
}

void cli_nearest(const char *word, const char *candidate, const char **best) {
  size_t found = distance(word, candidate), limit = 1 + strlen(word) / 3;
  if (found <= limit && (!*best || found < distance(word, *best))) {
    *best = candidate;
  }
}

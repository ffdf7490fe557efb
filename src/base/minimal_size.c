/* SPDX-License-Identifier: Apache-2.0 */
/* The least size of tensors that are compressed: see minimal_size.h. */
#include "base/minimal_size.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

#define USUAL 1024 /* tensors under this many values cost more to compress than to send */

static _Atomic size_t chosen = PITH_MINIMAL_SIZE_UNSET;

void pith_minimal_size_set(size_t values) { chosen = values; }

pith_status pith_minimal_size(size_t *values) {
  PITH_REQUIRE(values, PITH_ERR_ARGUMENT, "pith_minimal_size: values is NULL");
  const char *text = getenv("PITH_MINIMAL_SIZE");
  size_t set = chosen;
  if (set != PITH_MINIMAL_SIZE_UNSET || !text || !*text) {
    *values = set != PITH_MINIMAL_SIZE_UNSET ? set : USUAL;
    return PITH_OK;
  }
  char *end;
  errno = 0;
  unsigned long long number = strtoull(text, &end, 10);
  PITH_REQUIRE(!*end && *text >= '0' && *text <= '9' && errno == 0 && number < PITH_MINIMAL_SIZE_UNSET,
               PITH_ERR_ARGUMENT, "PITH_MINIMAL_SIZE=%s is not a number of values, such as 1024", text);
  *values = (size_t)number;
  return PITH_OK;
}

pith_small_reason pith__small_reason(size_t minimal) {
  pith_small_reason reason;
  snprintf(reason.text, sizeof reason.text, "under %zu values", minimal);
  return reason;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Text as rules: an error, or rules whose canonical text reads back to itself; every name gets an answer. */
#include "fuzz/fuzz.h"

/* What stands behind the first newline is the name of a layer. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  pith_rules *rules, *again;
  FUZZ_REQUIRE(text);
  memcpy(text, data, size);
  char *name = strchr(text, 10);
  if (name) {
    *name++ = 0;
  }
  if (pith_rules_create(text, &rules) == PITH_OK) {
    pith_match match = PITH_MATCH_INIT;
    FUZZ_REQUIRE(pith_rules_find(rules, name ? name : "layer.weight", 2, 4096, &match) == PITH_OK);
    FUZZ_REQUIRE(match.codec && match.reason);
    FUZZ_REQUIRE(pith_rules_create(pith_rules_text(rules), &again) == PITH_OK);
    FUZZ_REQUIRE(strcmp(pith_rules_text(rules), pith_rules_text(again)) == 0);
    pith_rules_destroy(again);
    pith_rules_destroy(rules);
  }
  free(text);
  return 0;
}

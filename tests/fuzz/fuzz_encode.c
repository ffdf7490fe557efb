/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as values, of every family, behind every memory. */
#include "fuzz/fuzz.h"

static const char *const specs[] = {
#include "fuzz/specs_encode.inc"
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  fuzz_round_trip(&in, specs, FUZZ_COUNT(specs));
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as payloads of every sparsifier. */
#include "fuzz/fuzz.h"

static const char *const specs[] = {
#include "fuzz/specs_sparse.inc"
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  fuzz_decode(&in, specs, FUZZ_COUNT(specs));
  return 0;
}

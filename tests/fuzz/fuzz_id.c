/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as a unique id: refused, or a host and a port with texts that end. With an odd first byte the checksum is made
 * right, so that what stands behind it is reached too.
 */
#include "base/hash.h"
#include "fuzz/fuzz.h"
#include "transport/unique_id.h"

enum { SUM_AT = 8, SUMMED_FROM = 16 }; /* docs/format.md */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  pith_unique_id id = {{0}};
  pith_id_content content;
  fuzz_input in = {data, size};
  int is_sealed = fuzz_take(&in, 1) & 1;
  memcpy(id.bytes, in.data, in.size < sizeof id.bytes ? in.size : sizeof id.bytes);
  if (is_sealed) {
    uint64_t sum = pith__hash64(id.bytes + SUMMED_FROM, sizeof id.bytes - SUMMED_FROM, 0);
    memcpy(id.bytes + SUM_AT, &sum, sizeof sum);
  }
  if (pith__unique_id_read(&id, &content) != PITH_OK) {
    FUZZ_REQUIRE(pith_error()[0]);
    return 0;
  }
  FUZZ_REQUIRE(content.port && strlen(content.hosts) && strlen(content.hosts) < PITH_ID_HOSTS);
  FUZZ_REQUIRE(strlen(content.secret) < PITH_ID_SECRET);
  return 0;
}

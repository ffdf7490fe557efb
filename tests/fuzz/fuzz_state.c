/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as saved states: loaded or refused, and a refusal leaves the state as it was. */
#include "fuzz/fuzz.h"

static const char *const specs[] = {
#include "fuzz/specs_state.inc"
};

static pith_out save(const pith_state *state) {
  pith_out out = {malloc(pith_state_save_size(state)), pith_state_save_size(state), 0};
  FUZZ_REQUIRE(out.data && pith_state_save(state, &out) == PITH_OK);
  return out;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  fuzz_case c = fuzz_take_case(&in, specs, FUZZ_COUNT(specs));
  pith_state *state;
  FUZZ_REQUIRE(pith_state_create(c.codec, c.n, 0, &state) == PITH_OK);
  pith_out before = save(state);
  pith_status status = pith_state_load(state, (pith_bytes){in.data ? in.data : data, in.size});
  pith_out after = save(state);
  FUZZ_REQUIRE(status == PITH_OK || memcmp(before.data, after.data, before.size) == 0);
  FUZZ_REQUIRE(status != PITH_OK || memcmp(in.data, after.data, after.size) == 0);
  pith_state_destroy(state);
  free(before.data);
  free(after.data);
  return 0;
}

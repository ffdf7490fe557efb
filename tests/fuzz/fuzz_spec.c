/* SPDX-License-Identifier: Apache-2.0 */
/* Text as a spec: an error, or a codec whose canonical text means the same and is its own canonical text. */
#include "fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  char *text = calloc(1, size + 1);
  pith_codec *codec, *again;
  FUZZ_REQUIRE(text);
  memcpy(text, data, size);
  if (pith_codec_create(text, &codec) == PITH_OK) {
    FUZZ_REQUIRE(pith_codec_create(pith_codec_spec(codec), &again) == PITH_OK);
    FUZZ_REQUIRE(strcmp(pith_codec_spec(codec), pith_codec_spec(again)) == 0);
    FUZZ_REQUIRE(pith_codec_fingerprint(codec) == pith_codec_fingerprint(again));
    pith_codec_destroy(again);
    FUZZ_REQUIRE(pith_codec_create(pith_codec_parts(codec), &again) == PITH_OK);
    FUZZ_REQUIRE(pith_codec_fingerprint(codec) == pith_codec_fingerprint(again));
    pith_codec_destroy(again);
    pith_codec_bound(codec, 1000);
    pith_codec_scratch(codec, 1000);
    pith_codec_destroy(codec);
  } else {
    FUZZ_REQUIRE(pith_error()[0] != 0);
  }
  free(text);
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What the targets share: reading the head of an input, decoding in a tight buffer, the round trip. */
#include "fuzz/fuzz.h"

#define SPECS_MOST 64

fuzz_case fuzz_take_case(fuzz_input *in, const char *const *specs, size_t count) {
  static pith_codec *codecs[SPECS_MOST];
  static const char *const *codecs_of;
  FUZZ_REQUIRE(count <= SPECS_MOST && (!codecs_of || codecs_of == specs));
  codecs_of = specs;
  size_t which = (size_t)fuzz_take(in, 1) % count;
  if (!codecs[which]) {
    FUZZ_REQUIRE(pith_codec_create(specs[which], &codecs[which]) == PITH_OK);
  }
  fuzz_case c = {.codec = codecs[which], .ctx = PITH_CTX_INIT};
  c.n = (size_t)fuzz_take(in, 2) % 5000;
  unsigned flags = (unsigned)fuzz_take(in, 1);
  c.dtype = (pith_dtype)(flags % 3);
  c.mode = (pith_mode)(flags / 4 % 2);
  c.ctx.seed = flags / 8;
  return c;
}

void fuzz_decode(fuzz_input *in, const char *const *specs, size_t count) {
  fuzz_case c = fuzz_take_case(in, specs, count);
  size_t bytes = c.n * pith_dtype_size(c.dtype);
  uint8_t *dst = malloc(bytes + 1), *before = malloc(bytes + 1);
  uint8_t *payload = malloc(in->size + 1); /* a copy that ends where the input ends, at an odd address */
  FUZZ_REQUIRE(dst && before && payload);
  memset(dst, 0x3c, bytes);
  memset(before, 0x3c, bytes);
  memcpy(payload + 1, in->data, in->size);
  pith_span span = {dst, c.n, c.dtype};
  if (pith_decode(c.codec, (pith_bytes){payload + 1, in->size}, span, c.mode, &c.ctx) != PITH_OK) {
    FUZZ_REQUIRE(memcmp(dst, before, bytes) == 0);
    FUZZ_REQUIRE(pith_error()[0] != 0);
  }
  free(dst);
  free(before);
  free(payload);
}

static pith_out encode(const fuzz_case *c, const void *values) {
  pith_state *state;
  size_t bound = pith_codec_bound(c->codec, c->n);
  pith_out out = {malloc(bound + 1), bound, 0};
  FUZZ_REQUIRE(out.data);
  FUZZ_REQUIRE(pith_state_create(c->codec, c->n, 0, &state) == PITH_OK);
  FUZZ_REQUIRE(pith_encode(c->codec, state, (pith_cspan){values, c->n, c->dtype}, &out, &c->ctx) == PITH_OK);
  FUZZ_REQUIRE(out.size <= bound);
  pith_state_destroy(state);
  return out;
}

void fuzz_round_trip(fuzz_input *in, const char *const *specs, size_t count) {
  fuzz_case c = fuzz_take_case(in, specs, count);
  size_t width = pith_dtype_size(c.dtype);
  c.n = in->size / width;
  void *values = malloc(in->size + 1), *decoded = malloc(in->size + 1);
  FUZZ_REQUIRE(values && decoded);
  memcpy(values, in->data, c.n * width);
  pith_out first = encode(&c, values), second = encode(&c, values);
  FUZZ_REQUIRE(first.size == second.size && memcmp(first.data, second.data, first.size) == 0);
  pith_bytes payload = {first.data, first.size};
  FUZZ_REQUIRE(pith_decode(c.codec, payload, (pith_span){decoded, c.n, c.dtype}, PITH_SET, &c.ctx) == PITH_OK);
  free(first.data);
  free(second.data);
  free(values);
  free(decoded);
}

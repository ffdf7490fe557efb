/* SPDX-License-Identifier: Apache-2.0 */
/* The frozen formats: every line of tests/golden/payloads.txt, on every instruction set. */
#include <stdio.h>
#include <stdlib.h>

#include "golden/golden.h"
#include "test.h"

#define LINE_MOST 100000
#define VALUES_MOST 4000

typedef struct line {
  char kind[8], spec[128], hex[LINE_MOST];
  size_t n, size;
  unsigned long long hash;
  uint8_t bytes[LINE_MOST / 2];
} line;

/* Reads the next line that is not a comment; 0 at the end. */
static int read_line(FILE *file, line *l) {
  static char text[LINE_MOST];
  do {
    if (!fgets(text, sizeof text, file)) {
      return 0;
    }
  } while (text[0] == '#');
  l->hash = 0;
  int fields = sscanf(text, "%7s %127s %zu %99999s %llx", l->kind, l->spec, &l->n, l->hex, &l->hash);
  CHECK(fields >= 4 && l->n <= VALUES_MOST);
  l->size = strcmp(l->hex, "-") == 0 ? 0 : strlen(l->hex) / 2;
  for (size_t i = 0; i < l->size; i++) {
    unsigned byte;
    CHECK(sscanf(l->hex + 2 * i, "%2x", &byte) == 1);
    l->bytes[i] = (uint8_t)byte;
  }
  return 1;
}

static size_t for_each_line(const char *kind, void (*check)(const line *l, const pith_codec *codec)) {
  static line l;
  size_t count = 0;
  FILE *file = fopen(GOLDEN_FILE, "r");
  CHECK_MSG(file, "cannot read %s", GOLDEN_FILE);
  while (read_line(file, &l)) {
    if (strcmp(l.kind, kind) == 0) {
      pith_codec *codec;
      CHECK_OK(pith_codec_create(l.spec, &codec));
      check(&l, codec);
      pith_codec_destroy(codec);
      count++;
    }
  }
  fclose(file);
  return count;
}

/* ---- What must decode -------------------------------------------------------------------------------------------- */

static void check_encodes(const line *l, const pith_codec *codec) {
  static float x[VALUES_MOST];
  pith_state *state;
  pith_ctx ctx = golden_ctx();
  size_t bound = pith_codec_bound(codec, l->n);
  pith_out out = {malloc(bound), bound, 0};
  golden_fill(x, l->n);
  CHECK_OK(pith_state_create(codec, l->n, 0, &state));
  CHECK_OK(pith_encode(codec, state, (pith_cspan){x, l->n, PITH_F32}, &out, &ctx));
  CHECK_MSG(out.size == l->size && memcmp(out.data, l->bytes, l->size) == 0,
            "%s of %zu values encodes to other bytes on %s", l->spec, l->n, pith_isa_name(pith_isa_current()));
  pith_state_destroy(state);
  free(out.data);
}

static void check_decodes(const line *l, const pith_codec *codec) {
  static float x[VALUES_MOST];
  pith_ctx ctx = golden_ctx();
  CHECK_OK(pith_decode(codec, (pith_bytes){l->bytes, l->size}, (pith_span){x, l->n, PITH_F32}, PITH_SET, &ctx));
  CHECK_MSG(golden_hash(x, l->n) == l->hash, "%s of %zu values decodes to other values on %s", l->spec, l->n,
            pith_isa_name(pith_isa_current()));
}

static void on_every_isa(const char *kind, void (*check)(const line *l, const pith_codec *codec)) {
  for (int isa = 0; isa < PITH_ISA_COUNT; isa++) {
    if (pith_isa_available((pith_isa)isa)) {
      CHECK_OK(pith_isa_select((pith_isa)isa));
      CHECK(for_each_line(kind, check) >= 50);
    }
  }
}

TEST(golden_input_encodes_to_the_golden_payloads) { on_every_isa("decode", check_encodes); }

TEST(golden_payloads_decode_to_the_golden_values) { on_every_isa("decode", check_decodes); }

/* ---- What must not ----------------------------------------------------------------------------------------------- */

static void check_refused(const line *l, const pith_codec *codec) {
  static float x[VALUES_MOST], before[VALUES_MOST];
  pith_ctx ctx = golden_ctx();
  golden_fill(x, VALUES_MOST);
  golden_fill(before, VALUES_MOST);
  pith_status status =
      pith_decode(codec, (pith_bytes){l->bytes, l->size}, (pith_span){x, l->n, PITH_F32}, PITH_ADD, &ctx);
  CHECK_MSG(status == PITH_ERR_CORRUPT, "%s of %zu values takes %.40s…: %s", l->spec, l->n, l->hex,
            pith_status_string(status));
  CHECK(strlen(pith_error()) > 0);
  CHECK_BYTES(x, before, sizeof x);
}

TEST(damaged_payloads_are_refused_and_change_nothing) { on_every_isa("refuse", check_refused); }

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocation fails once: whatever the library asks for, its absence must be an error that changes nothing and
 * leaks nothing (the latter shows in builds with the address sanitizer). The linker sends the library's allocations
 * through the functions below (tests/CMakeLists.txt).
 */
#include <stdlib.h>
#include <string.h>

#include "failing_allocations.h"
#include "test.h"

/* Calls `attempt` with the first, the second, … allocation failing, until it gets through without one. */
static void check_every_failure(pith_status (*attempt)(void *), void *argument) {
  CHECK(pith_method_count() > 0); /* opens the registry */
  for (long i = 0;; i++) {
    allowed = i;
    has_failed = 0;
    pith_status status = attempt(argument);
    allowed = -1;
    if (!has_failed) {
      CHECK_EQ(status, PITH_OK);
      return;
    }
    CHECK_STATUS(status, PITH_ERR_MEMORY);
    CHECK_MSG(i < 1000, "there is no end of allocations");
  }
}

static pith_status create_codec(void *spec) {
  pith_codec *codec = NULL;
  pith_status status = pith_codec_create(spec, &codec);
  CHECK((codec != NULL) == (status == PITH_OK));
  pith_codec_destroy(codec);
  return status;
}

TEST(creating_a_codec) {
  check_every_failure(create_codec, "ef/q:4");
  check_every_failure(create_codec, "dgc:0.01");
}

static pith_status create_rules(void *text) {
  pith_rules *rules = NULL;
  pith_status status = pith_rules_create(text, &rules);
  CHECK((rules != NULL) == (status == PITH_OK));
  pith_rules_destroy(rules);
  return status;
}

TEST(reading_rules) {
  check_every_failure(create_rules, "*.bias=none;embed*=ef/topk:0.01;*=q:4");
  check_every_failure(create_rules, "q:4");
}

static pith_status create_state(void *codec) {
  pith_state *state = NULL;
  pith_status status = pith_state_create(codec, 5000, 50, &state);
  CHECK((state != NULL) == (status == PITH_OK));
  pith_state_destroy(state);
  return status;
}

static const char *const specs[] = {"none",       "ef/q:4",        "ef/topk:0.01", "dgc:0.01",
                                    "signum:0.9", "ef/powersgd:2", "ef/drive"};

TEST(creating_a_state) {
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    pith_codec *codec;
    CHECK_OK(pith_codec_create(specs[i], &codec));
    check_every_failure(create_state, codec);
    pith_codec_destroy(codec);
  }
}

enum { VALUES = 5000 };

typedef struct exchange {
  pith_codec *codec;
  pith_state *state;
  float values[VALUES];
  uint8_t *bytes;
  pith_out out;
} exchange;

static pith_status encode(void *argument) {
  exchange *x = argument;
  return pith_encode(x->codec, x->state, (pith_cspan){x->values, VALUES, PITH_F32}, &x->out, NULL);
}

static pith_status decode(void *argument) {
  exchange *x = argument;
  float result[VALUES];
  return pith_decode(x->codec, (pith_bytes){x->bytes, x->out.size}, (pith_span){result, VALUES, PITH_F32}, PITH_SET,
                     NULL);
}

TEST(encoding_and_decoding_with_scratch_of_their_own) {
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    exchange x = {0};
    CHECK_OK(pith_codec_create(specs[i], &x.codec));
    CHECK_OK(pith_state_create(x.codec, VALUES, 50, &x.state));
    for (int k = 0; k < VALUES; k++) {
      x.values[k] = test_normal();
    }
    if (!(pith_codec_caps(x.codec) & PITH_CAP_ROUNDS)) {
      size_t bound = pith_codec_bound(x.codec, VALUES);
      x.bytes = malloc(bound);
      x.out = (pith_out){x.bytes, bound, 0};
      check_every_failure(encode, &x);
      check_every_failure(decode, &x);
    }
    free(x.bytes);
    pith_state_destroy(x.state);
    pith_codec_destroy(x.codec);
  }
}

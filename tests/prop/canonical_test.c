/* SPDX-License-Identifier: Apache-2.0 */
/* Laws of specs over all methods and random values of their parameters. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "test.h"

#define ROUNDS 3000

static size_t param_count(const pith_method *method) {
  size_t n = 0;
  while (method->params[n].key) {
    n++;
  }
  return n;
}

/* A value as a person might write it: in range, or now and then at or over its edge. */
static void write_value(const pith_param *param, char *text, size_t size) {
  double x = param->min + (param->max - param->min) * pow(test_uniform(), 4);
  switch (test_below(16)) {
    case 0:
      x = param->min;
      break;
    case 1:
      x = param->max;
      break;
    case 2:
      x = param->max + 1;
      break;
    default:
      break;
  }
  if (param->type == PITH_PARAM_CHOICE) {
    const char *choice = param->choices;
    while (test_below(2) && strchr(choice, '|')) {
      choice = strchr(choice, '|') + 1;
    }
    snprintf(text, size, "%.*s", (int)strcspn(choice, "|"), choice);
  } else if (param->type == PITH_PARAM_REAL) {
    snprintf(text, size, "%.*g", 1 + (int)test_below(17), x);
  } else {
    int64_t step = test_below(2) ? 64 : 1; /* buckets are multiples */
    snprintf(text, size, "%" PRId64, (int64_t)x / step * step);
  }
}

static void write_stage(const pith_method *method, char *text, size_t size) {
  size_t used = (size_t)snprintf(text, size, "%s", method->name), n = param_count(method);
  if (n > 0 && test_below(2)) {
    char value[64];
    write_value(&method->params[0], value, sizeof value);
    used += (size_t)snprintf(text + used, size - used, ":%s", value);
  }
  if (n > 1 && test_below(2)) {
    char value[64];
    const pith_param *param = &method->params[1 + test_below(n - 1)];
    write_value(param, value, sizeof value);
    snprintf(text + used, size - used, ",%s=%s", param->key, value);
  }
}

static pith_method random_method(int last) {
  pith_method method = PITH_METHOD_INIT;
  do {
    CHECK_OK(pith_method_get(test_below(pith_method_count()), &method));
  } while ((method.kind == PITH_KIND_CODEC || method.kind == PITH_KIND_PRESET) != last);
  return method;
}

static void write_spec(char *text, size_t size) {
  size_t used = 0;
  text[0] = 0;
  for (uint64_t before = test_below(3); before > 0; before--) {
    pith_method method = random_method(0);
    write_stage(&method, text + used, size - used);
    used = strlen(text);
    used += (size_t)snprintf(text + used, size - used, "/");
  }
  pith_method method = random_method(1);
  write_stage(&method, text + used, size - used);
}

static void check_same(const pith_codec *codec, const char *text, const char *what, const char *origin) {
  pith_codec *again = NULL;
  CHECK_MSG(pith_codec_create(text, &again) == PITH_OK, "%s %s of %s: %s", what, text, origin, pith_error());
  CHECK_MSG(pith_codec_fingerprint(again) == pith_codec_fingerprint(codec), "%s %s of %s", what, text, origin);
  CHECK_STR(pith_codec_parts(again), pith_codec_parts(codec));
  CHECK_EQ(pith_codec_caps(again), pith_codec_caps(codec));
  CHECK_EQ(pith_codec_granule(again), pith_codec_granule(codec));
  pith_codec_destroy(again);
}

TEST(a_spec_is_refused_with_a_sentence_or_has_texts_that_mean_the_same) {
  int accepted = 0;
  for (int round = 0; round < ROUNDS; round++) {
    char text[400];
    pith_codec *codec = NULL;
    write_spec(text, sizeof text);
    if (pith_codec_create(text, &codec) != PITH_OK) {
      CHECK_MSG(strlen(pith_error()) > 10, "%s is refused without a reason", text);
      continue;
    }
    accepted++;
    check_same(codec, text, "text", text);
    check_same(codec, pith_codec_spec(codec), "spec", text);
    check_same(codec, pith_codec_parts(codec), "parts", text);
    pith_codec_destroy(codec);
  }
  CHECK_MSG(accepted > ROUNDS / 10, "only %d of %d specs were accepted", accepted, ROUNDS);
}

TEST(damaged_specs_never_crash) {
  for (int round = 0; round < ROUNDS; round++) {
    char text[400];
    pith_codec *codec = NULL;
    write_spec(text, sizeof text);
    for (uint64_t damage = 1 + test_below(3); damage > 0; damage--) {
      text[test_below(strlen(text))] = (char)(1 + test_below(255));
    }
    pith_status status = pith_codec_create(text, &codec);
    CHECK((status == PITH_OK) == (codec != NULL));
    pith_codec_destroy(codec);
  }
}

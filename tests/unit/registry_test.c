/* SPDX-License-Identifier: Apache-2.0 */
/* The list of methods: complete, findable, growable, and strict with tables from outside. */
#include "codec/registry.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>

#include "test.h"

static pith_text text(const char *word) { return (pith_text){word, strlen(word)}; }

static int find_method(const char *name, pith_kind kind, pith_method *method) {
  for (size_t i = 0; i < pith_method_count(); i++) {
    CHECK_OK(pith_method_get(i, method));
    if (method->kind == kind && strcmp(method->name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

/* ---- What is there ---- */

TEST(the_sixteen_methods_of_the_survey_are_there_and_marked) {
  static const char *const survey[] = {"qsgd",   "terngrad", "natural",    "signsgd", "signum",  "efsignsgd",
                                       "onebit", "u8",       "inceptionn", "topk",    "randomk", "threshold",
                                       "dgc",    "adaptive", "sketchml",   "powersgd"};
  for (size_t i = 0; i < sizeof survey / sizeof *survey; i++) {
    pith_method method = PITH_METHOD_INIT;
    int found = find_method(survey[i], PITH_KIND_CODEC, &method) || find_method(survey[i], PITH_KIND_PRESET, &method);
    CHECK_MSG(found, "%s is missing", survey[i]);
    CHECK_MSG(method.survey, "%s is not marked", survey[i]);
    CHECK_MSG(method.origin && *method.origin, "%s names no paper", survey[i]);
  }
  size_t marked = 0;
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method method = PITH_METHOD_INIT;
    CHECK_OK(pith_method_get(i, &method));
    marked += method.survey != 0;
  }
  CHECK_EQ(marked, sizeof survey / sizeof *survey);
}

TEST(every_built_in_table_made_it_into_the_registry) {
  size_t wanted = 0;
  for (size_t i = 0; pith__builtin_codecs[i]; i++) {
    wanted++;
  }
  for (size_t i = 0; pith__builtin_transforms[i]; i++) {
    wanted++;
  }
  for (size_t i = 0; pith__builtin_memories[i]; i++) {
    wanted++;
  }
  for (size_t i = 0; pith__builtin_presets[i]; i++) {
    wanted++;
  }
  CHECK_EQ(pith_method_count(), wanted);
}

TEST(every_method_describes_itself) {
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method m = PITH_METHOD_INIT;
    CHECK_OK(pith_method_get(i, &m));
    CHECK_MSG(m.name && m.family && m.summary && m.params, "method %zu (%s)", i, m.name);
    int is_last = m.kind == PITH_KIND_CODEC || m.kind == PITH_KIND_PRESET;
    CHECK_MSG((m.bits != NULL) == is_last, "%s: bits", m.name);
    CHECK_MSG((m.wire_id != 0) == is_last, "%s: wire id", m.name);
    CHECK_MSG(is_last || m.caps == 0, "%s: capabilities", m.name);
    CHECK_MSG((m.made_of != NULL) == (m.kind == PITH_KIND_PRESET), "%s: made_of", m.name);
    for (const pith_param *p = m.params; p->key; p++) {
      CHECK_MSG(p->help && *p->help, "%s: %s has no help", m.name, p->key);
    }
  }
}

TEST(every_built_in_method_says_when_to_use_it) {
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method method = PITH_METHOD_INIT;
    CHECK_OK(pith_method_get(i, &method));
    CHECK_MSG(pith_method_use(i) && *pith_method_use(i), "%s", method.name);
    CHECK_MSG(method.kind == PITH_KIND_PRESET || (pith_method_detail(i) && *pith_method_detail(i)), "%s", method.name);
  }
  CHECK(!pith_method_use(pith_method_count()));
  CHECK(!pith_method_detail(pith_method_count()));
}

TEST(every_codec_and_preset_works_by_its_name_alone) {
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method m = PITH_METHOD_INIT;
    pith_codec *codec;
    CHECK_OK(pith_method_get(i, &m));
    if (m.kind == PITH_KIND_CODEC || m.kind == PITH_KIND_PRESET) {
      CHECK_OK(pith_codec_create(m.name, &codec));
      CHECK_EQ(pith_codec_wire_id(codec), m.wire_id);
      pith_codec_destroy(codec);
    }
  }
}

TEST(a_method_past_the_end_is_an_error) {
  pith_method method = PITH_METHOD_INIT;
  CHECK_STATUS(pith_method_get(pith_method_count(), &method), PITH_ERR_RANGE);
  CHECK_STATUS(pith_method_get(SIZE_MAX, &method), PITH_ERR_RANGE);
  CHECK_STATUS(pith_method_get(0, NULL), PITH_ERR_ARGUMENT);
}

/* ---- Finding ---- */

TEST(an_unknown_name_gets_the_nearest_one_of_its_place) {
  const pith_entry *entry = NULL;
  CHECK_STATUS(pith__registry_find(text("tokp"), PITH_KINDS_LAST, &entry), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("did you mean topk?");
  CHECK_STATUS(pith__registry_find(text("hadamrd"), PITH_KINDS_BEFORE, &entry), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("did you mean hadamard?");
  CHECK_STATUS(pith__registry_find(text("elephants"), PITH_KINDS_LAST, &entry), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("pith codecs");
  CHECK(entry == NULL);
}

TEST(a_known_name_in_the_wrong_place_is_told_its_place) {
  const pith_entry *entry = NULL;
  CHECK_STATUS(pith__registry_find(text("ef"), PITH_KINDS_LAST, &entry), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("needs a codec behind it");
  CHECK_STATUS(pith__registry_find(text("q"), PITH_KINDS_BEFORE, &entry), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("comes last");
}

TEST(one_name_may_mean_a_memory_before_and_a_preset_at_the_end) {
  const pith_entry *entry = NULL;
  CHECK_OK(pith__registry_find(text("dgc"), PITH_KINDS_BEFORE, &entry));
  CHECK_EQ(entry->info.kind, PITH_KIND_MEMORY);
  CHECK_OK(pith__registry_find(text("dgc"), PITH_KINDS_LAST, &entry));
  CHECK_EQ(entry->info.kind, PITH_KIND_PRESET);
}

/* ---- Adding ---- */

static const pith_param no_params[] = {{0}};

static size_t one(const pith_value *a) { return (void)a, 1; }

static size_t same(const pith_value *a, size_t n) { return (void)a, n; }

static size_t encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index, const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  for (size_t i = 0; i < n; i++) {
    out[i] = x[i] > 0;
  }
  return n;
}

static void decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                   const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  for (size_t i = 0; i < n; i++) {
    dst[i] = in[i] + (mode == PITH_ADD ? dst[i] : 0);
  }
}

static const pith_codec_ops good = {
    .size = sizeof(pith_codec_ops),
    .name = "outsider",
    .family = "test",
    .summary = "one byte a value",
    .bits = "8",
    .wire_id = 0x8001,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = no_params,
    .block = one,
    .block_bound = same,
    .encode_block = encode,
    .decode_block = decode,
};

static pith_status add_list(const pith_codec_ops *const *list, size_t n) {
  pith_plugin plugin = {.size = sizeof plugin, .codecs = list, .codec_count = n};
  return pith__registry_add(&plugin, "test.so");
}

static pith_status add(pith_codec_ops *ops) {
  const pith_codec_ops *list[] = {ops};
  return add_list(list, 1);
}

TEST(a_codec_from_outside_can_be_added_and_used) {
  static pith_codec_ops ops;
  ops = good;
  pith_codec *codec;
  pith_method method = PITH_METHOD_INIT;
  CHECK_STATUS(pith_codec_create("outsider", &codec), PITH_ERR_SPEC);
  size_t before = pith_method_count();
  CHECK_OK(add(&ops));
  CHECK_EQ(pith_method_count(), before + 1);
  CHECK_OK(pith_method_get(before, &method));
  CHECK_STR(method.origin, "test.so");
  CHECK_OK(pith_codec_create("ef/outsider", &codec));
  CHECK_EQ(pith_codec_wire_id(codec), 0x8001);
  pith_codec_destroy(codec);
}

static void check_table_refused(pith_codec_ops ops, const char *says) {
  size_t before = pith_method_count();
  CHECK_STATUS(add(&ops), PITH_ERR_PLUGIN);
  CHECK_ERROR_SAYS(says);
  CHECK_EQ(pith_method_count(), before);
}

#define WITHOUT(field) check_table_refused((ops = good, ops.field = NULL, ops), "missing")

/* Those built before Pith's own codecs had traits keep their texts; what is in that place is not read. */
TEST(traits_of_a_plug_in_are_ignored) {
  static pith_codec_ops ops;
  size_t index = pith_method_count();
  pith_codec *codec;
  ops = good;
  ops.name = "traitless", ops.wire_id = 0x9002, ops.use = "seldom";
  ops.size = offsetof(pith_codec_ops, traits);
  ops.traits = (const struct pith_codec_traits *)8;
  CHECK_OK(add(&ops));
  CHECK_STR(pith_method_use(index), "seldom");
  CHECK_OK(pith_codec_create("traitless", &codec));
  CHECK(!codec->traits->exact && codec->traits->gpu == PITH_GPU_NO_KERNELS);
  pith_codec_destroy(codec);
}

TEST(bad_tables_are_refused) {
  pith_codec_ops ops;
  WITHOUT(block);
  WITHOUT(block_bound);
  WITHOUT(encode_block);
  WITHOUT(decode_block);
  check_table_refused((ops = good, ops.caps = PITH_CAP_CHUNKED, ops), "check_block");
  check_table_refused((ops = good, ops.caps = PITH_CAP_FIXED, ops), "needs bound, encode and decode");
  check_table_refused((ops = good, ops.caps |= PITH_CAP_ROUNDS, ops), "ROUNDS needs");
  check_table_refused((ops = good, ops.size = 8, ops), "pith_codec_ops.size is 8");
  check_table_refused((ops = good, ops.name = NULL, ops), "no name");
  check_table_refused((ops = good, ops.name = "Big", ops), "cannot be the name");
  check_table_refused((ops = good, ops.bits = NULL, ops), "bits");
  check_table_refused((ops = good, ops.params = NULL, ops), "no parameter list");
  check_table_refused((ops = good, ops.wire_id = 0, ops), "not allowed");
  check_table_refused((ops = good, ops.wire_id = 0x7fff, ops), "not allowed");
  check_table_refused((ops = good, ops.name = "q", ops), "already a method \"q\"");
  check_table_refused((ops = good, ops.name = "dgc", ops), "already a method \"dgc\"");
}

TEST(a_list_with_one_bad_table_adds_nothing) {
  static pith_codec_ops first, second;
  first = second = good;
  second.name = "other";
  const pith_codec_ops *list[] = {&first, &second};
  size_t before = pith_method_count();
  CHECK_STATUS(add_list(list, 2), PITH_ERR_PLUGIN);
  CHECK_ERROR_SAYS("same wire id");
  CHECK_EQ(pith_method_count(), before);
  second.wire_id++;
  CHECK_OK(add_list(list, 2));
  CHECK_EQ(pith_method_count(), before + 2);
}

TEST(a_full_registry_says_so) {
  static pith_codec_ops ops[300];
  static char names[300][16];
  pith_status status = PITH_OK;
  size_t i = 0;
  for (; i < 300 && status == PITH_OK; i++) {
    snprintf(names[i], sizeof names[i], "codec%zu", i);
    ops[i] = good;
    ops[i].name = names[i];
    ops[i].wire_id = (uint16_t)(0x8000 + i);
    status = add(&ops[i]);
  }
  CHECK(i > 100);
  CHECK_EQ(status, PITH_ERR_PLUGIN);
  CHECK_ERROR_SAYS("full");
}

/* ---- Threads ---- */

static void *use_registry(void *failed) {
  for (int i = 0; i < 200; i++) {
    pith_codec *codec = NULL;
    if (pith_codec_create(i % 2 ? "ef/q:4" : "signum:0.5", &codec) != PITH_OK || pith_method_count() == 0) {
      *(int *)failed = 1;
    }
    pith_codec_destroy(codec);
  }
  return NULL;
}

TEST(first_use_from_many_threads_while_codecs_are_added) {
  static pith_codec_ops ops[50];
  static char names[50][16];
  pthread_t threads[8];
  int failed[8] = {0};
  for (int t = 0; t < 8; t++) {
    CHECK_EQ(pthread_create(&threads[t], NULL, use_registry, &failed[t]), 0);
  }
  for (size_t i = 0; i < 50; i++) {
    snprintf(names[i], sizeof names[i], "codec%zu", i);
    ops[i] = good;
    ops[i].name = names[i];
    ops[i].wire_id = (uint16_t)(0x8000 + i);
    CHECK_OK(add(&ops[i]));
  }
  for (int t = 0; t < 8; t++) {
    pthread_join(threads[t], NULL);
    CHECK_EQ(failed[t], 0);
  }
}

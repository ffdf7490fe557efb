/* SPDX-License-Identifier: Apache-2.0 */
/* Plug-ins: the example loads and works, broken ones are refused and leave nothing behind. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <pith/plugin.h>

#include "test.h"

static int is_known(const char *spec) {
  pith_codec *codec = NULL;
  int known = pith_codec_create(spec, &codec) == PITH_OK;
  pith_codec_destroy(codec);
  return known;
}

static void check_refused(const char *name, pith_status status, const char *says) {
  size_t before = pith_method_count();
  CHECK_STATUS(pith_plugin_load(name), status);
  CHECK_ERROR_SAYS(says);
  CHECK_EQ(pith_method_count(), before);
}

TEST(a_plugin_loads_by_path_once) {
  size_t before = pith_method_count();
  CHECK(!is_known("float8"));
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_float8.so"));
  CHECK(is_known("ef/float8,bucket=64"));
  CHECK_EQ(pith_method_count(), before + 1);
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_float8.so"));
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/./pith_float8.so"));
  CHECK_EQ(pith_method_count(), before + 1);
}

TEST(a_plugin_loads_by_name_from_the_folders_of_the_path) {
  setenv("PITH_PLUGIN_PATH", "/nowhere::" GOOD_PLUGINS ":/nowhere", 1);
  CHECK_OK(pith_plugin_load("float8"));
  CHECK(is_known("float8"));
}

TEST(plugins_of_the_environment_are_there_at_first_use) {
  setenv("PITH_PLUGIN_PATH", GOOD_PLUGINS, 1);
  setenv("PITH_PLUGINS", "missing,float8," BAD_PLUGINS "/pith_bad_abi.so", 1);
  CHECK(is_known("hadamard/float8"));
  pith_method method = PITH_METHOD_INIT;
  CHECK_OK(pith_method_get(pith_method_count() - 1, &method));
  CHECK_STR(method.name, "float8");
  CHECK_STR(method.origin, GOOD_PLUGINS "/pith_float8.so");
}

TEST(a_value_survives_the_way_through_a_plugin) {
  pith_codec *codec;
  float in[100], out[100];
  uint8_t bytes[200];
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_float8.so"));
  CHECK_OK(pith_codec_create("float8", &codec));
  for (int i = 0; i < 100; i++) {
    in[i] = test_normal();
  }
  pith_out written = {bytes, sizeof bytes, 0};
  CHECK_OK(pith_encode(codec, NULL, (pith_cspan){in, 100, PITH_F32}, &written, NULL));
  CHECK_EQ(written.size, 104);
  CHECK_OK(pith_decode(codec, (pith_bytes){bytes, written.size}, (pith_span){out, 100, PITH_F32}, PITH_SET, NULL));
  for (int i = 0; i < 100; i++) {
    CHECK_NEAR(out[i], in[i], 0.0626 * fabs((double)in[i]) + 0.01); /* three bits of mantissa */
  }
  pith_codec_destroy(codec);
}

/* A codec of the program's own, which sees the tensor as a whole: a copy. */
static size_t copy_bound(const pith_value *a, size_t n) {
  (void)a;
  return n * sizeof(float);
}

static size_t copy_scratch(const pith_value *a, size_t n) {
  (void)a;
  return n;
}

static pith_status copy_encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)a;
  (void)part;
  memset(ctx->scratch, 1, ctx->scratch_size);
  out->size = src.n * sizeof(float);
  memcpy(out->data, src.data, out->size);
  return PITH_OK;
}

static pith_status copy_decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply,
                               const pith_ctx *ctx) {
  (void)a;
  memset(ctx->scratch, 1, ctx->scratch_size);
  for (size_t i = 0; i < in.size / sizeof(float); i++) {
    float x = ((const float *)in.data)[i], *y = (float *)dst.data + i;
    *y = apply == PITH_APPLY_SET ? x : apply == PITH_APPLY_ADD ? *y + x : *y - x;
  }
  return PITH_OK;
}

static void check_copy_of(const char *spec, int is_plain) {
  enum { N = 777 };
  pith_codec *codec;
  pith_state *state;
  float in[N], out[N], bytes[N];
  CHECK_OK(pith_codec_create(spec, &codec));
  CHECK_OK(pith_state_create(codec, N, 0, &state));
  for (int i = 0; i < N; i++) {
    in[i] = test_normal();
    out[i] = 1;
  }
  pith_out written = {bytes, sizeof bytes, 0};
  CHECK_OK(pith_encode(codec, state, (pith_cspan){in, N, PITH_F32}, &written, NULL));
  CHECK_EQ(memcmp(bytes, in, sizeof in) == 0, is_plain);
  CHECK_OK(pith_decode(codec, (pith_bytes){bytes, written.size}, (pith_span){out, N, PITH_F32}, PITH_ADD, NULL));
  for (int i = 0; i < N; i++) {
    CHECK_NEAR(out[i], in[i] + 1, 1e-5);
  }
  pith_state_destroy(state);
  pith_codec_destroy(codec);
}

TEST(a_program_adds_codecs_of_its_own_and_transforms_fit_them) {
  const pith_param none[] = {{.size = sizeof(pith_param)}};
  const pith_codec_ops copy = {.size = sizeof copy,
                               .name = "copy",
                               .family = "test",
                               .summary = "a copy",
                               .bits = "32",
                               .wire_id = 0x9000,
                               .params = none,
                               .bound = copy_bound,
                               .scratch = copy_scratch,
                               .encode = copy_encode,
                               .decode = copy_decode};
  const pith_codec_ops *const codecs[] = {&copy};
  const pith_plugin plugin = {.size = sizeof plugin,
                              .abi = PITH_PLUGIN_ABI,
                              .name = "this test",
                              .version = "1",
                              .codecs = codecs,
                              .codec_count = 1};
  CHECK_OK(pith_plugin_add(&plugin));
  CHECK_STATUS(pith_plugin_add(&plugin), PITH_ERR_PLUGIN);
  CHECK_ERROR_SAYS("already a method");
  CHECK_STATUS(pith_plugin_add(NULL), PITH_ERR_ARGUMENT);
  check_copy_of("copy", 1);
  check_copy_of("hadamard/copy", 0);
  check_copy_of("ef/hadamard/copy", 0);
}

TEST(broken_plugins_are_refused_and_leave_nothing_behind) {
  check_refused(BAD_PLUGINS "/pith_bad_abi.so", PITH_ERR_PLUGIN, "ABI 3, this library 2");
  check_refused(BAD_PLUGINS "/pith_bad_entry.so", PITH_ERR_PLUGIN, "does not export pith_plugin_entry");
  check_refused(BAD_PLUGINS "/pith_bad_size.so", PITH_ERR_PLUGIN, "which no version of the struct has had");
  check_refused(BAD_PLUGINS "/pith_bad_version.so", PITH_ERR_PLUGIN, "no name or version");
  check_refused(BAD_PLUGINS "/pith_bad_empty.so", PITH_ERR_PLUGIN, "has no codecs");
  check_refused(BAD_PLUGINS "/pith_bad_second.so", PITH_ERR_PLUGIN, "already a method \"q\"");
  CHECK(!is_known("fine"));
}

TEST(what_cannot_be_found_or_opened_is_an_error) {
  unsetenv("PITH_PLUGIN_PATH");
  check_refused("float8", PITH_ERR_PLUGIN, "PITH_PLUGIN_PATH is not set");
  setenv("PITH_PLUGIN_PATH", "/nowhere", 1);
  check_refused("float8", PITH_ERR_PLUGIN, "no pith_float8.so in PITH_PLUGIN_PATH (/nowhere)");
  check_refused("pith_float8.so", PITH_ERR_ARGUMENT, "./pith_float8.so");
  check_refused("../x", PITH_ERR_PLUGIN, "cannot load the plug-in");
  check_refused(__FILE__, PITH_ERR_PLUGIN, "cannot load the plug-in");
  check_refused("", PITH_ERR_ARGUMENT, "NULL or empty");
  check_refused(NULL, PITH_ERR_ARGUMENT, "NULL or empty");
}

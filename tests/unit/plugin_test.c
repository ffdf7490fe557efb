/* Plug-ins: the example loads and works, broken ones are refused and leave nothing behind. */
#include <math.h>
#include <stdlib.h>

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
  CHECK(!is_known("fp8"));
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_fp8.so"));
  CHECK(is_known("ef/fp8,bucket=64"));
  CHECK_EQ(pith_method_count(), before + 1);
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_fp8.so"));
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/./pith_fp8.so"));
  CHECK_EQ(pith_method_count(), before + 1);
}

TEST(a_plugin_loads_by_name_from_the_folders_of_the_path) {
  setenv("PITH_PLUGIN_PATH", "/nowhere::" GOOD_PLUGINS ":/nowhere", 1);
  CHECK_OK(pith_plugin_load("fp8"));
  CHECK(is_known("fp8"));
}

TEST(plugins_of_the_environment_are_there_at_first_use) {
  setenv("PITH_PLUGIN_PATH", GOOD_PLUGINS, 1);
  setenv("PITH_PLUGINS", "missing,fp8," BAD_PLUGINS "/pith_bad_abi.so", 1);
  CHECK(is_known("hadamard/fp8"));
  pith_method method = PITH_METHOD_INIT;
  CHECK_OK(pith_method_get(pith_method_count() - 1, &method));
  CHECK_STR(method.name, "fp8");
  CHECK_STR(method.origin, GOOD_PLUGINS "/pith_fp8.so");
}

TEST(a_value_survives_the_way_through_a_plugin) {
  pith_codec *codec;
  float in[100], out[100];
  uint8_t bytes[200];
  CHECK_OK(pith_plugin_load(GOOD_PLUGINS "/pith_fp8.so"));
  CHECK_OK(pith_codec_create("fp8", &codec));
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
  check_refused("fp8", PITH_ERR_PLUGIN, "PITH_PLUGIN_PATH is not set");
  setenv("PITH_PLUGIN_PATH", "/nowhere", 1);
  check_refused("fp8", PITH_ERR_PLUGIN, "no pith_fp8.so in PITH_PLUGIN_PATH (/nowhere)");
  check_refused("pith_fp8.so", PITH_ERR_ARGUMENT, "./pith_fp8.so");
  check_refused("../x", PITH_ERR_PLUGIN, "cannot load the plug-in");
  check_refused(__FILE__, PITH_ERR_PLUGIN, "cannot load the plug-in");
  check_refused("", PITH_ERR_ARGUMENT, "NULL or empty");
  check_refused(NULL, PITH_ERR_ARGUMENT, "NULL or empty");
}

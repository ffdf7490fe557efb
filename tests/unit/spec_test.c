/* SPDX-License-Identifier: Apache-2.0 */
/* The grammar of specs, the reading of values, and the canonical text. */
#include "base/spec.h"

#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

static const pith_param sample[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 1, 8, "4", NULL, "bits"},
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-6, 1, "0.5", NULL, "share"},
    {sizeof(pith_param), "round", PITH_PARAM_CHOICE, 0, 0, "nearest", "nearest|stochastic", "rounding"},
    {0},
};

static const pith_param any_real[] = {
    {sizeof(pith_param), "x", PITH_PARAM_REAL, -HUGE_VAL, HUGE_VAL, NULL, NULL, "any"}, {0}};

static const pith_param nothing[] = {{0}};

static pith_status bind(const char *text, const pith_param *params, pith_value *values) {
  pith_spec spec;
  pith_status status = pith__spec_parse(text, &spec);
  return status == PITH_OK ? pith__spec_bind(&spec.stage[0], params, values) : status;
}

static const char *canonical(const char *text, const pith_param *params) {
  static char printed[PITH_SPEC_MAX];
  pith_value values[PITH_PARAMS_MAX];
  CHECK_OK(bind(text, params, values));
  CHECK(pith__spec_print("m", params, values, printed, sizeof printed) == strlen(printed));
  return printed;
}

/* ---- Parsing ---- */

TEST(a_spec_splits_into_stages_values_and_pairs) {
  pith_spec spec;
  CHECK_OK(pith__spec_parse("ef/topk:0.01,values=fp16,select=exact/q_2", &spec));
  CHECK_EQ(spec.stages, 3);
  CHECK(pith__text_is(spec.stage[0].name, "ef"));
  CHECK_EQ(spec.stage[0].value.size, 0);
  CHECK(pith__text_is(spec.stage[1].name, "topk"));
  CHECK(pith__text_is(spec.stage[1].value, "0.01"));
  CHECK_EQ(spec.stage[1].pairs, 2);
  CHECK(pith__text_is(spec.stage[1].pair[1].key, "select"));
  CHECK(pith__text_is(spec.stage[1].pair[1].value, "exact"));
  CHECK(pith__text_is(spec.stage[2].name, "q_2"));
}

TEST(mistakes_are_refused_with_the_place) {
  static const struct {
    const char *text, *says;
  } wrong[] = {
      {"", "empty"},
      {"/q", "character 1"},
      {"q/", "character 3, found the end"},
      {"q:", "character 3, found the end"},
      {"q:4,", "character 5, found the end"},
      {"q:4,bucket", "character 11, found the end"},
      {"q:4,bucket=", "character 12, found the end"},
      {"q:4,=3", "character 5, found '='"},
      {"q::4", "character 3, found ':'"},
      {"q: 4", "character 3, found a blank"},
      {" q", "character 1, found a blank"},
      {"Q:4", "character 1, found 'Q'"},
      {"q:4,Bucket=3", "character 5, found 'B'"},
      {"q:4;", "character 4, found ';'"},
      {"q:4=5", "character 4, found '='"},
      {"q\x01", "character 2, found byte 0x01"},
      {"q\xc3\xa4", "character 2, found byte 0xc3"},
      {"a/b/c/d/e", "more than 4 stages at character 9"},
      {"q,a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1,j=1", "too many parameters at character 39"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    pith_spec spec;
    CHECK_STATUS(pith__spec_parse(wrong[i].text, &spec), PITH_ERR_SPEC);
    CHECK_ERROR_SAYS(wrong[i].says);
  }
}

TEST(null_is_an_error) {
  pith_spec spec;
  CHECK_STATUS(pith__spec_parse(NULL, &spec), PITH_ERR_ARGUMENT);
}

TEST(length_limit_is_exact) {
  char text[PITH_SPEC_MAX + 1];
  pith_spec spec;
  memset(text, 'a', sizeof text);
  text[PITH_SPEC_MAX - 1] = 0;
  CHECK_OK(pith__spec_parse(text, &spec));
  CHECK_EQ(spec.stage[0].name.size, PITH_SPEC_MAX - 1);
  text[PITH_SPEC_MAX - 1] = 'a';
  text[PITH_SPEC_MAX] = 0;
  CHECK_STATUS(pith__spec_parse(text, &spec), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("longer than 511");
}

TEST(random_bytes_never_crash_and_never_pass_foreign_characters) {
  static const char letters[] = "aq09_:,=/.+-A;* \n\xff";
  for (int round = 0; round < 50000; round++) {
    char text[24] = "";
    for (uint64_t i = 0, n = test_below(sizeof text); i < n; i++) {
      text[i] = letters[test_below(sizeof letters - 1)];
    }
    pith_spec spec;
    int passed = pith__spec_parse(text, &spec) == PITH_OK;
    CHECK(!passed || !strpbrk(text, ";* \n\xff"));
  }
}

/* ---- Binding ---- */

TEST(values_land_at_their_parameters_and_defaults_fill_the_rest) {
  pith_value values[PITH_PARAMS_MAX];
  CHECK_OK(bind("m:3,round=stochastic", sample, values));
  CHECK_EQ(values[0].i, 3);
  CHECK(values[1].f == 0.5);
  CHECK_EQ(values[2].i, 1);
  CHECK_OK(bind("m,ratio=1e-6,bits=8", sample, values));
  CHECK_EQ(values[0].i, 8);
  CHECK(values[1].f == 1e-6);
  CHECK_EQ(values[2].i, 0);
}

static void check_refused(const char *text, pith_status status, const char *says) {
  pith_value values[PITH_PARAMS_MAX];
  memset(values, 0x5a, sizeof values);
  CHECK_STATUS(bind(text, sample, values), status);
  CHECK_ERROR_SAYS(says);
  CHECK_EQ(values[0].i, 0x5a5a5a5a5a5a5a5a);
}

TEST(bad_values_are_refused_and_leave_the_output_alone) {
  check_refused("m:9", PITH_ERR_RANGE, "m: bits=9 is out of range; it goes from 1 to 8");
  check_refused("m:0", PITH_ERR_RANGE, "from 1 to 8");
  check_refused("m:-1", PITH_ERR_RANGE, "from 1 to 8");
  check_refused("m:99999999999999999999999", PITH_ERR_RANGE, "from 1 to 8");
  check_refused("m:4.0", PITH_ERR_SPEC, "not a whole number");
  check_refused("m:+4", PITH_ERR_SPEC, "not a whole number");
  check_refused("m:4k", PITH_ERR_SPEC, "not a whole number");
  check_refused("m:-", PITH_ERR_SPEC, "not a whole number");
  check_refused("m,ratio=0", PITH_ERR_RANGE, "from 1e-6 to 1");
  check_refused("m,ratio=1.0000001", PITH_ERR_RANGE, "from 1e-6 to 1");
  check_refused("m,ratio=nan", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=inf", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=1e999", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=0x1p-3", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=0.5x", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=.", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=1e", PITH_ERR_SPEC, "finite number");
  check_refused("m,ratio=1-1", PITH_ERR_SPEC, "finite number");
  check_refused("m,round=neerest", PITH_ERR_SPEC, "did you mean nearest?");
  check_refused("m,round=near", PITH_ERR_SPEC, "nearest|stochastic");
  check_refused("m,round=nearest_", PITH_ERR_SPEC, "did you mean nearest?");
}

TEST(unknown_and_repeated_keys_are_refused) {
  check_refused("m,bitz=3", PITH_ERR_SPEC, "did you mean bits?");
  check_refused("m,elephant=3", PITH_ERR_SPEC, "it has: bits, ratio, round");
  check_refused("m:3,bits=3", PITH_ERR_SPEC, "bits is given twice");
  check_refused("m,ratio=1,ratio=1", PITH_ERR_SPEC, "ratio is given twice");
  pith_value values[PITH_PARAMS_MAX];
  CHECK_STATUS(bind("m:3", nothing, values), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("takes no value");
  CHECK_STATUS(bind("m,a=3", nothing, values), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("it has none");
}

TEST(a_parameter_without_default_must_be_given) {
  pith_value values[PITH_PARAMS_MAX];
  CHECK_STATUS(bind("m", any_real, values), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("m needs x");
  CHECK_OK(bind("m:-2.5", any_real, values));
  CHECK(values[0].f == -2.5);
}

/* ---- Printing ---- */

TEST(canonical_text_leaves_defaults_out_and_keeps_the_strength) {
  CHECK_STR(canonical("m", sample), "m:4");
  CHECK_STR(canonical("m,bits=4,ratio=0.50,round=nearest", sample), "m:4");
  CHECK_STR(canonical("m,round=stochastic,bits=07", sample), "m:7,round=stochastic");
  CHECK_STR(canonical("m,ratio=1.0e-3", sample), "m:4,ratio=0.001");
  CHECK_STR(canonical("m", nothing), "m");
}

TEST(canonical_text_shows_layout_choices_and_factors_only_when_changed) {
  static const pith_param bucket[] = {{sizeof(pith_param), "bucket", PITH_PARAM_INT, 1, 100, "64", NULL, ""}, {0}};
  static const pith_param choice[] = {{sizeof(pith_param), "scale", PITH_PARAM_CHOICE, 0, 0, "one", "one|mean", ""},
                                      {0}};
  static const pith_param factor[] = {{sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 1, "1", NULL, ""}, {0}};
  CHECK_STR(canonical("m", bucket), "m");
  CHECK_STR(canonical("m:32", bucket), "m:32");
  CHECK_STR(canonical("m:one", choice), "m");
  CHECK_STR(canonical("m:mean", choice), "m:mean");
  CHECK_STR(canonical("m:1.0", factor), "m");
  CHECK_STR(canonical("m:0.5", factor), "m:0.5");
}

TEST(reals_print_in_their_shortest_form) {
  CHECK_STR(canonical("m:0.01", any_real), "m:0.01");
  CHECK_STR(canonical("m:.10", any_real), "m:0.1");
  CHECK_STR(canonical("m:1000", any_real), "m:1000");
  CHECK_STR(canonical("m:1e9", any_real), "m:1e9");
  CHECK_STR(canonical("m:1E-5", any_real), "m:1e-5");
  CHECK_STR(canonical("m:-0.0", any_real), "m:0");
  CHECK_STR(canonical("m:0.30000000000000004", any_real), "m:0.30000000000000004");
}

TEST(every_double_reads_back_as_itself) {
  for (int round = 0; round < 20000; round++) {
    uint64_t bits = test_random();
    pith_value value, again[PITH_PARAMS_MAX];
    memcpy(&value.f, &bits, sizeof bits);
    if (!isfinite(value.f)) {
      continue;
    }
    char text[PITH_SPEC_MAX];
    CHECK(pith__spec_print("m", any_real, &value, text, sizeof text) != SIZE_MAX);
    CHECK_OK(bind(text, any_real, again));
    CHECK_MSG(again[0].f == value.f, "%a printed as %s", value.f, text);
  }
}

TEST(printing_that_does_not_fit_says_so) {
  pith_value values[PITH_PARAMS_MAX];
  char text[16];
  CHECK_OK(bind("m:4,ratio=0.25", sample, values));
  for (size_t size = 0; size <= strlen("m:4,ratio=0.25"); size++) {
    memset(text, '#', sizeof text);
    CHECK_EQ(pith__spec_print("m", sample, values, text, size), SIZE_MAX);
    CHECK_EQ(text[size], '#');
  }
  CHECK_EQ(pith__spec_print("m", sample, values, text, strlen("m:4,ratio=0.25") + 1), strlen("m:4,ratio=0.25"));
}

/* Switches to a locale with a decimal comma: an installed one, or one compiled here. Returns whether there is one. */
static int use_comma_locale(void) {
  char folder[] = "/tmp/pith_locale_XXXXXX", command[200];
  if (setlocale(LC_ALL, "de_DE.UTF-8") || !mkdtemp(folder)) {
    return setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
  }
  snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 %s/de_DE.UTF-8 >/dev/null 2>&1", folder);
  setenv("LOCPATH", folder, 1);
  int found = system(command) == 0 && setlocale(LC_ALL, "de_DE.UTF-8") != NULL;
  snprintf(command, sizeof command, "rm -r %s", folder);
  return system(command) == 0 && found;
}

TEST(a_decimal_comma_in_the_locale_changes_nothing) {
  if (!use_comma_locale()) {
    LACKS("locale", "no locale with a decimal comma: neither de_DE.UTF-8 nor localedef is installed");
  }
  char half[8];
  snprintf(half, sizeof half, "%.1f", 0.5);
  CHECK_STR(half, "0,5");
  CHECK_STR(canonical("m:0.25", any_real), "m:0.25");
  snprintf(half, sizeof half, "%.1f", 0.5);
  CHECK_STR(half, "0,5");
}

/* ---- Parameter lists from outside ---- */

static void check_list_refused(const pith_param *params, const char *says) {
  CHECK(pith__spec_check("m", params) != PITH_OK);
  CHECK_ERROR_SAYS(says);
}

TEST(bad_parameter_lists_are_refused) {
  static const pith_param many[PITH_PARAMS_MAX + 2] = {
      {sizeof(pith_param), "a", 0, 0, 1, "0", NULL, ""}, {sizeof(pith_param), "b", 0, 0, 1, "0", NULL, ""},
      {sizeof(pith_param), "c", 0, 0, 1, "0", NULL, ""}, {sizeof(pith_param), "d", 0, 0, 1, "0", NULL, ""},
      {sizeof(pith_param), "e", 0, 0, 1, "0", NULL, ""}, {sizeof(pith_param), "f", 0, 0, 1, "0", NULL, ""},
      {sizeof(pith_param), "g", 0, 0, 1, "0", NULL, ""}, {sizeof(pith_param), "h", 0, 0, 1, "0", NULL, ""},
      {sizeof(pith_param), "i", 0, 0, 1, "0", NULL, ""},
  };
  CHECK_OK(pith__spec_check("m", sample));
  CHECK_OK(pith__spec_check("m", nothing));
  check_list_refused(NULL, "no parameter list");
  check_list_refused(many, "more than 8 parameters");
  check_list_refused((pith_param[]){{sizeof(pith_param), "A", 0, 0, 1, "0", NULL, ""}, {0}}, "cannot be the name");
  check_list_refused(
      (pith_param[]){
          {sizeof(pith_param), "a", 0, 0, 1, "0", NULL, ""}, {sizeof(pith_param), "a", 0, 0, 1, "0", NULL, ""}, {0}},
      "called a");
  check_list_refused((pith_param[]){{sizeof(pith_param), "a", 0, 2, 1, "2", NULL, ""}, {0}}, "empty range");
  check_list_refused((pith_param[]){{sizeof(pith_param), "a", 0, 0, 1, "2", NULL, ""}, {0}}, "out of range");
  check_list_refused((pith_param[]){{sizeof(pith_param), "a", PITH_PARAM_CHOICE, 0, 0, "x", NULL, ""}, {0}},
                     "no choices");
  check_list_refused((pith_param[]){{sizeof(pith_param), "a", PITH_PARAM_CHOICE, 0, 0, "x", "y|z", ""}, {0}},
                     "not one of y|z");
  CHECK(pith__spec_check("Q", nothing) != PITH_OK);
  CHECK(pith__spec_check("", nothing) != PITH_OK);
  CHECK(pith__spec_check(NULL, nothing) != PITH_OK);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Specs: text to stages (parse), stages to values (bind), values to text (print).
 *
 * Printing is the inverse of reading: what print writes, parse and bind read back as the same values. Numbers are read
 * and written in the C locale, whatever the process has set, so that "0.5" is always a half.
 */
#include "base/spec.h"

#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Text to stages ---------------------------------------------------------------------------------------------- */

typedef struct pith_cursor {
  const char *text, *at;
} pith_cursor;

static int is_name_character(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

static int is_value_character(char c) {
  return is_name_character(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '+' || c == '-';
}

/* The piece that starts here and is made of such characters; may be empty. */
static pith_text take(pith_cursor *cursor, int (*belongs)(char)) {
  pith_text piece = {cursor->at, 0};
  while (belongs(*cursor->at)) {
    cursor->at++;
  }
  piece.size = (size_t)(cursor->at - piece.at);
  return piece;
}

static int skip(pith_cursor *cursor, char c) {
  if (*cursor->at != c) {
    return 0;
  }
  cursor->at++;
  return 1;
}

/* What stands here, for people. */
static void show_character(char c, char shown[16]) {
  if (c == 0) {
    snprintf(shown, 16, "the end");
  } else if (c == ' ' || c == '\t' || c == '\n' || c == '\r') {
    snprintf(shown, 16, "a blank");
  } else if (c > ' ' && c < 127) {
    snprintf(shown, 16, "'%c'", c);
  } else {
    snprintf(shown, 16, "byte 0x%02x", (unsigned char)c);
  }
}

static pith_status unexpected(const pith_cursor *cursor, const char *expected, const char *advice) {
  char shown[16];
  show_character(*cursor->at, shown);
  return pith_fail(PITH_ERR_SPEC, "expected %s at character %zu, found %s; %s (spec \"%s\")", expected,
                   (size_t)(cursor->at - cursor->text) + 1, shown, advice, cursor->text);
}

static pith_status parse_pair(pith_cursor *cursor, pith_spec_stage *stage) {
  PITH_REQUIRE(stage->pairs <= PITH_PARAMS_MAX, PITH_ERR_SPEC,
               "too many parameters at character %zu: a stage takes at most %d (spec \"%s\")",
               (size_t)(cursor->at - cursor->text) + 1, PITH_PARAMS_MAX + 1, cursor->text);
  pith_text key = take(cursor, is_name_character);
  if (key.size == 0) {
    return unexpected(cursor, "a parameter name", "write key=value after each comma, keys in lower case");
  }
  if (!skip(cursor, '=')) {
    return unexpected(cursor, "'='", "write key=value after each comma; only the first value may follow a ':'");
  }
  pith_text value = take(cursor, is_value_character);
  if (value.size == 0) {
    return unexpected(cursor, "a value", "values are letters, digits and _ . + -");
  }
  stage->pair[stage->pairs].key = key;
  stage->pair[stage->pairs++].value = value;
  return PITH_OK;
}

static pith_status parse_stage(pith_cursor *cursor, pith_spec_stage *stage) {
  *stage = (pith_spec_stage){.name = take(cursor, is_name_character)};
  if (stage->name.size == 0) {
    return unexpected(cursor, "the name of a method", "names are lower-case letters, digits and _, as in ef/q:4");
  }
  if (skip(cursor, ':')) {
    stage->value = take(cursor, is_value_character);
    if (stage->value.size == 0) {
      return unexpected(cursor, "a value", "values are letters, digits and _ . + -");
    }
  }
  while (skip(cursor, ',')) {
    PITH_TRY(parse_pair(cursor, stage));
  }
  return PITH_OK;
}

pith_status pith__spec_parse(const char *text, pith_spec *spec) {
  PITH_REQUIRE(text, PITH_ERR_ARGUMENT, "the spec is NULL");
  PITH_REQUIRE(*text, PITH_ERR_SPEC, "the spec is empty; write a method such as q:4, or none");
  PITH_REQUIRE(strnlen(text, PITH_SPEC_MAX) < PITH_SPEC_MAX, PITH_ERR_SPEC,
               "the spec is longer than %d characters: \"%.40s…\"", PITH_SPEC_MAX - 1, text);
  pith_cursor cursor = {text, text};
  pith_spec result = {0};
  do {
    PITH_REQUIRE(result.stages < PITH_STAGES_MAX, PITH_ERR_SPEC,
                 "more than %d stages at character %zu; a spec is memory/transform/codec (spec \"%s\")",
                 PITH_STAGES_MAX, (size_t)(cursor.at - text) + 1, text);
    PITH_TRY(parse_stage(&cursor, &result.stage[result.stages++]));
  } while (skip(&cursor, '/'));
  if (*cursor.at) {
    return unexpected(&cursor, "':', ',', '/' or the end", "a spec is name:value,key=value/name…, without blanks");
  }
  *spec = result;
  return PITH_OK;
}

/* ---- Numbers ----------------------------------------------------------------------------------------------------- */

/* strtod and printf follow the thread's locale; these two lend it the C locale for a moment. */
static locale_t enter_c_locale(locale_t *c) {
  *c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
  return uselocale(*c);
}

static void leave_c_locale(locale_t before, locale_t c) {
  uselocale(before);
  if (c) {
    freelocale(c);
  }
}

static int is_real_character(char c) {
  return (c >= '0' && c <= '9') || c == '.' || c == '+' || c == '-' || c == 'e' || c == 'E';
}

/* A finite decimal number; hexadecimal, inf and nan are not. Returns whether all of the text is one. */
static int read_real(pith_text text, double *value) {
  char copy[PITH_SPEC_MAX], *end;
  if (text.size == 0 || text.size >= sizeof copy) {
    return 0;
  }
  for (size_t i = 0; i < text.size; i++) {
    if (!is_real_character(text.at[i])) {
      return 0;
    }
  }
  memcpy(copy, text.at, text.size);
  copy[text.size] = 0;
  locale_t c, before = enter_c_locale(&c);
  double x = strtod(copy, &end);
  leave_c_locale(before, c);
  if (*end || !isfinite(x)) {
    return 0;
  }
  *value = x == 0 ? 0 : x; /* -0 means 0, and must print and hash as it */
  return 1;
}

/* Digits with at most a minus before them. Saturates, so that a range check refuses what does not fit. */
static int read_integer(pith_text text, int64_t *value) {
  int negative = text.size > 0 && text.at[0] == '-';
  int64_t x = 0;
  if (text.size == (size_t)negative) {
    return 0;
  }
  for (size_t i = (size_t)negative; i < text.size; i++) {
    int digit = text.at[i] - '0';
    if (digit < 0 || digit > 9) {
      return 0;
    }
    x = x > (INT64_MAX - digit) / 10 ? INT64_MAX : x * 10 + digit;
  }
  *value = negative ? -x : x;
  return 1;
}

/* "1e-06" and "1e+20" to "1e-6" and "1e20". */
static void tidy_exponent(char *number) {
  char *e = strchr(number, 'e');
  if (!e) {
    return;
  }
  char *from = e + 1, *to = e + 1;
  if (*from == '-') {
    to++;
  }
  from += strspn(from, "+-");
  from += strspn(from, "0");
  memmove(to, from, strlen(from) + 1);
}

/* The fewest digits that read back as the same double; plain below a million, as people write. */
static void print_real(double x, char number[32]) {
  locale_t c, before = enter_c_locale(&c);
  for (int digits = 6; digits <= 17; digits++) {
    snprintf(number, 32, "%.*g", digits, x);
    if (strtod(number, NULL) == x) {
      break;
    }
  }
  leave_c_locale(before, c);
  tidy_exponent(number);
}

/* ---- Choices: "nearest|stochastic" ------------------------------------------------------------------------------- */

/* Choice number `index`; empty past the last. */
static pith_text choice_at(const char *choices, int64_t index) {
  while (*choices && index > 0) {
    index -= *choices++ == '|';
  }
  return (pith_text){choices, strcspn(choices, "|")};
}

static int find_choice(pith_text text, const char *choices, int64_t *index) {
  for (int64_t i = 0;; i++) {
    pith_text choice = choice_at(choices, i);
    if (choice.size == 0) {
      return 0;
    }
    if (choice.size == text.size && memcmp(choice.at, text.at, text.size) == 0) {
      *index = i;
      return 1;
    }
  }
}

static pith_status unknown_choice(pith_text method, const pith_param *param, pith_text text) {
  char word[PITH_SPEC_MAX], best_word[PITH_SPEC_MAX];
  const char *best = NULL;
  for (int64_t i = 0; choice_at(param->choices, i).size; i++) {
    pith_text choice = choice_at(param->choices, i);
    const char *before = best;
    snprintf(word, sizeof word, "%.*s", (int)choice.size, choice.at);
    pith__text_nearest(text, word, &best);
    if (best != before) {
      memcpy(best_word, word, sizeof word);
      best = best_word;
    }
  }
  return pith_fail(PITH_ERR_SPEC, "%.*s: %s=%.*s is not one of %s%s%s%s", (int)method.size, method.at, param->key,
                   (int)text.size, text.at, param->choices, best ? "; did you mean " : "", best ? best : "",
                   best ? "?" : "");
}

/* ---- Stages to values -------------------------------------------------------------------------------------------- */

static pith_status out_of_range(pith_text method, const pith_param *param, pith_text text) {
  char min[32], max[32];
  print_real(param->min, min);
  print_real(param->max, max);
  return pith_fail(PITH_ERR_RANGE, "%.*s: %s=%.*s is out of range; it goes from %s to %s", (int)method.size, method.at,
                   param->key, (int)text.size, text.at, min, max);
}

static pith_status read_value(pith_text method, const pith_param *param, pith_text text, pith_value *value) {
  double x;
  if (param->type == PITH_PARAM_CHOICE) {
    return find_choice(text, param->choices, &value->i) ? PITH_OK : unknown_choice(method, param, text);
  }
  if (param->type == PITH_PARAM_INT) {
    PITH_REQUIRE(read_integer(text, &value->i), PITH_ERR_SPEC, "%.*s: %s=%.*s is not a whole number", (int)method.size,
                 method.at, param->key, (int)text.size, text.at);
    x = (double)value->i;
  } else {
    int64_t word;
    if (param->choices && find_choice(text, param->choices, &word)) {
      value->f = (double)word;
      return PITH_OK;
    }
    PITH_REQUIRE(read_real(text, &value->f), PITH_ERR_SPEC, "%.*s: %s=%.*s is not a finite number such as 0.01 or 1e-3",
                 (int)method.size, method.at, param->key, (int)text.size, text.at);
    x = value->f;
  }
  return x >= param->min && x <= param->max ? PITH_OK : out_of_range(method, param, text);
}

static pith_text whole(const char *word) { return (pith_text){word, strlen(word)}; }

static void list_keys(const pith_param *params, char *list, size_t size) {
  size_t used = 0;
  list[0] = 0;
  for (; params->key && used < size; params++) {
    used += (size_t)snprintf(list + used, size - used, "%s%s", used ? ", " : "", params->key);
  }
}

static pith_status unknown_key(pith_text method, pith_text key, const pith_param *params) {
  char known[256];
  const char *best = NULL;
  for (const pith_param *p = params; p->key; p++) {
    pith__text_nearest(key, p->key, &best);
  }
  list_keys(params, known, sizeof known);
  if (best) {
    return pith_fail(PITH_ERR_SPEC, "%.*s has no parameter \"%.*s\"; did you mean %s?", (int)method.size, method.at,
                     (int)key.size, key.at, best);
  }
  return pith_fail(PITH_ERR_SPEC, "%.*s has no parameter \"%.*s\"; %s%s", (int)method.size, method.at, (int)key.size,
                   key.at, known[0] ? "it has: " : "it has none", known);
}

static pith_status find_key(pith_text method, pith_text key, const pith_param *params, size_t *index) {
  for (size_t i = 0; params[i].key; i++) {
    if (pith__text_is(key, params[i].key)) {
      *index = i;
      return PITH_OK;
    }
  }
  return unknown_key(method, key, params);
}

/* Puts the texts of a stage at the places of their parameters. */
static pith_status assign_texts(const pith_spec_stage *stage, const pith_param *params, pith_text *texts) {
  if (stage->value.size) {
    PITH_REQUIRE(params[0].key, PITH_ERR_SPEC, "%.*s takes no value: leave out \":%.*s\"", (int)stage->name.size,
                 stage->name.at, (int)stage->value.size, stage->value.at);
    texts[0] = stage->value;
  }
  for (size_t i = 0; i < stage->pairs; i++) {
    size_t index = 0;
    PITH_TRY(find_key(stage->name, stage->pair[i].key, params, &index));
    PITH_REQUIRE(!texts[index].size, PITH_ERR_SPEC, "%.*s: %s is given twice (what follows the ':' is %s)",
                 (int)stage->name.size, stage->name.at, params[index].key, params[0].key);
    texts[index] = stage->pair[i].value;
  }
  return PITH_OK;
}

pith_status pith__spec_bind(const pith_spec_stage *stage, const pith_param *params, pith_value *values) {
  pith_text texts[PITH_PARAMS_MAX] = {{0}};
  pith_value result[PITH_PARAMS_MAX] = {{0}};
  PITH_TRY(assign_texts(stage, params, texts));
  for (size_t i = 0; params[i].key; i++) {
    if (!texts[i].size) {
      PITH_REQUIRE(params[i].initial, PITH_ERR_SPEC, "%.*s needs %s (%s)", (int)stage->name.size, stage->name.at,
                   params[i].key, params[i].help ? params[i].help : "no default");
      texts[i] = whole(params[i].initial);
    }
    PITH_TRY(read_value(stage->name, &params[i], texts[i], &result[i]));
  }
  memcpy(values, result, sizeof result);
  return PITH_OK;
}

/* ---- Parameter lists --------------------------------------------------------------------------------------------- */

static int is_name(const char *word) {
  size_t size = 0;
  while (is_name_character(word[size])) {
    size++;
  }
  return size > 0 && word[size] == 0;
}

static pith_status check_param(const char *method, const pith_param *params, size_t i) {
  const pith_param *param = &params[i];
  pith_value value;
  PITH_REQUIRE(is_name(param->key), PITH_ERR_ARGUMENT, "%s: \"%s\" cannot be the name of a parameter", method,
               param->key);
  PITH_REQUIRE(strcmp(param->key, PITH_SPEC_ENCODE) != 0, PITH_ERR_ARGUMENT,
               "%s: %s=once is a word of all specs, and cannot be the name of a parameter", method, param->key);
  for (size_t j = 0; j < i; j++) {
    PITH_REQUIRE(strcmp(params[j].key, param->key) != 0, PITH_ERR_ARGUMENT, "%s: two parameters are called %s", method,
                 param->key);
  }
  PITH_REQUIRE(param->type <= PITH_PARAM_CHOICE, PITH_ERR_ARGUMENT, "%s: %s has an unknown type", method, param->key);
  if (param->type == PITH_PARAM_CHOICE) {
    PITH_REQUIRE(param->choices && *param->choices, PITH_ERR_ARGUMENT, "%s: %s has no choices", method, param->key);
  } else {
    PITH_REQUIRE(param->min <= param->max, PITH_ERR_ARGUMENT, "%s: %s has an empty range", method, param->key);
  }
  return param->initial ? read_value(whole(method), param, whole(param->initial), &value) : PITH_OK;
}

pith_status pith__spec_check(const char *method, const pith_param *params) {
  PITH_REQUIRE(method && is_name(method), PITH_ERR_ARGUMENT,
               "\"%s\" cannot be the name of a method: use lower-case letters, digits and _", method ? method : "");
  PITH_REQUIRE(params, PITH_ERR_ARGUMENT, "%s has no parameter list; an empty one ends with a NULL key", method);
  for (size_t i = 0; params[i].key; i++) {
    PITH_REQUIRE(i < PITH_PARAMS_MAX, PITH_ERR_ARGUMENT, "%s has more than %d parameters", method, PITH_PARAMS_MAX);
    PITH_TRY(check_param(method, params, i));
  }
  return PITH_OK;
}

/* ---- Values to text ---------------------------------------------------------------------------------------------- */

size_t pith__spec_print_value(const pith_param *param, pith_value value, char *text, size_t size) {
  int length;
  if (param->type == PITH_PARAM_CHOICE) {
    pith_text choice = choice_at(param->choices, value.i);
    length = snprintf(text, size, "%.*s", (int)choice.size, choice.at);
  } else if (param->type == PITH_PARAM_INT) {
    length = snprintf(text, size, "%" PRId64, value.i);
  } else {
    char number[32];
    print_real(value.f, number);
    length = snprintf(text, size, "%s", number);
  }
  return (size_t)length < size ? (size_t)length : SIZE_MAX;
}

/* Compared as text: equal values print equally. */
static int is_default(const pith_param *param, const char *printed) {
  pith_value initial;
  char text[PITH_SPEC_MAX];
  return param->initial && read_value(whole(param->key), param, whole(param->initial), &initial) == PITH_OK &&
         pith__spec_print_value(param, initial, text, sizeof text) != SIZE_MAX && strcmp(text, printed) == 0;
}

/* Whether a first parameter is the strength of its method, which people want to see even when it is the default. */
static int is_strength(const pith_param *param) {
  int is_layout = !strcmp(param->key, "bucket") || !strcmp(param->key, "block") || !strcmp(param->key, "every");
  int is_factor_of_one = param->initial && !strcmp(param->initial, "1") && param->type == PITH_PARAM_REAL;
  return param->type != PITH_PARAM_CHOICE && !is_layout && !is_factor_of_one;
}

size_t pith__spec_print(const char *name, const pith_param *params, const pith_value *values, char *text, size_t size) {
  size_t used = strlen(name);
  if (used >= size) {
    return SIZE_MAX;
  }
  memcpy(text, name, used + 1);
  for (size_t i = 0; params[i].key; i++) {
    char value[PITH_SPEC_MAX];
    if (pith__spec_print_value(&params[i], values[i], value, sizeof value) == SIZE_MAX) {
      return SIZE_MAX;
    }
    if (is_default(&params[i], value) && !(i == 0 && is_strength(&params[i]))) {
      continue;
    }
    int length = i == 0 ? snprintf(text + used, size - used, ":%s", value)
                        : snprintf(text + used, size - used, ",%s=%s", params[i].key, value);
    if ((size_t)length >= size - used) {
      return SIZE_MAX;
    }
    used += (size_t)length;
  }
  return used;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* `pith codecs`: every method there is, from the registry, so that the list cannot fall behind the library. */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/base/json.h"
#include "cli/base/nearest.h"
#include "cli/base/options.h"
#include "cli/base/page.h"
#include "cli/base/table.h"
#include "cli/commands.h"
#include "cli/explain.h"
#include "cli/methods.h"

enum { NAME, KIND, FAMILY, BITS, FORMULA, SURVEY, SUMMARY, CAPS, PARAMETERS, COLUMN_COUNT };
enum { CELL_MAX = 256 };

/* "ratio=0.0001…1 (0.01)", the default in brackets. */
static void print_param(const pith_param *param, char *text) {
  char range[CELL_MAX / 2];
  cli_range_print(param, range, sizeof range);
  if (param->initial) {
    snprintf(text, CELL_MAX, "%s=%s (%s)", param->key, range, param->initial);
  } else {
    snprintf(text, CELL_MAX, "%s=%s", param->key, range);
  }
}

/* Bits per value with the default parameters; empty where there are none, or where a parameter must be given. */
static const char *print_bits(const pith_method *method, char *text) {
  pith_codec *codec = NULL;
  text[0] = 0;
  if (method->bits && pith_codec_create(method->name, &codec) == PITH_OK) {
    snprintf(text, CELL_MAX, "%.3f", cli_typical_bits(codec));
  }
  pith_codec_destroy(codec);
  return text;
}

/* With --wide a method takes a line for what it is made of and for each parameter, the first beside its name. */
static void print_rows(const cli_table *table, const pith_method *method) {
  char caps[CELL_MAX], bits[CELL_MAX], last[CELL_MAX] = "";
  const char *cells[COLUMN_COUNT] = {
      [NAME] = method->name,       [KIND] = cli_kind_name(method->kind),
      [FAMILY] = method->family,   [BITS] = print_bits(method, bits),
      [FORMULA] = method->bits,    [SURVEY] = method->survey ? "●" : NULL,
      [SUMMARY] = method->summary, [CAPS] = cli_caps_print(method->caps, caps, sizeof caps),
  };
  const pith_param *param = method->params;
  if (method->made_of) {
    snprintf(last, sizeof last, "= %s", method->made_of);
  } else if (param && param->key) {
    print_param(param++, last);
  }
  cells[PARAMETERS] = last;
  cli_table_row(table, cells);
  for (; table->wide && param && param->key; param++) {
    const char *more[COLUMN_COUNT] = {[PARAMETERS] = last};
    print_param(param, last);
    cli_table_row(table, more);
  }
}

static void fit(cli_table *table, const pith_method *method) {
  char caps[CELL_MAX];
  cli_table_fit(table, NAME, method->name);
  cli_table_fit(table, KIND, cli_kind_name(method->kind));
  cli_table_fit(table, FAMILY, method->family);
  cli_table_fit(table, FORMULA, method->bits);
  cli_table_fit(table, SUMMARY, method->summary);
  cli_table_fit(table, CAPS, cli_caps_print(method->caps, caps, sizeof caps));
}

static int print_all(int wide) {
  cli_table table = {.columns = COLUMN_COUNT,
                     .column = {[NAME] = {.title = "name"},
                                [KIND] = {.title = "kind"},
                                [FAMILY] = {.title = "family", .hidden = !wide},
                                [BITS] = {.title = "bits", .right = 1, .width = 6},
                                [FORMULA] = {.title = "bits per value", .hidden = !wide},
                                [SURVEY] = {.title = "●"},
                                [SUMMARY] = {.title = "what it does"},
                                [CAPS] = {.title = "capabilities", .hidden = !wide},
                                [PARAMETERS] = {.title = "parameters (defaults), = parts", .hidden = !wide}},
                     .wide = wide};
  pith_method method = PITH_METHOD_INIT;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    fit(&table, &method);
  }
  for (size_t i = 0; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    fit(&table, &method);
  }
  cli_table_head(&table);
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    print_rows(&table, &method);
  }
  for (size_t i = 0; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    const char *cells[COLUMN_COUNT] = {
        [NAME] = method.name, [KIND] = "adaptive", [FAMILY] = method.family, [SUMMARY] = method.summary};
    cli_table_row(&table, cells);
  }
  putchar('\n');
  cli_paragraphs(
      stdout,
      "bits: per value, of normally distributed values, with default parameters. ●: one of the sixteen methods of "
      "the GRACE survey.\n\n"
      "A spec is memory/transform/codec, the first two optional, as q:4, ef/topk:0.01,values=fp16 or ef/hadamard/q:2. "
      "With ,encode=once at its end, payloads of all ranks are gathered and their sum is not encoded again. "
      "\"pith codecs SPEC\" explains one; --wide adds formulas, capabilities and parameters to this table.\n");
  return CLI_OK;
}

static void print_detail_params(const pith_method *method) {
  const pith_param *param = method->params;
  for (; param && param->key; param++) {
    char range[CELL_MAX], first[CELL_MAX], rest[CELL_MAX];
    snprintf(first, sizeof first, "  %-10s ", param->key);
    snprintf(rest, sizeof rest, "%*s", (int)strlen(first), "");
    char text[4 * CELL_MAX];
    snprintf(text, sizeof text, "%s, %s%s: %s", cli_range_print(param, range, sizeof range),
             param->initial ? "default " : "must be given", param->initial ? param->initial : "",
             param->help ? param->help : "");
    cli_paragraph(stdout, first, rest, text);
  }
}

static void print_field(const char *label, const char *text) {
  char first[CELL_MAX], rest[CELL_MAX];
  snprintf(first, sizeof first, "%-16s", label);
  snprintf(rest, sizeof rest, "%16s", "");
  if (text) {
    cli_paragraph(stdout, first, rest, text);
  }
}

static void print_detail(size_t index, const pith_method *method) {
  pith_codec *codec = NULL;
  cli_say(stdout, "", "%s: %s", method->name, method->summary);
  putchar('\n');
  print_field("kind", cli_kind_name(method->kind));
  print_field("family", method->family);
  print_field("made of", method->made_of);
  print_field(method->kind == PITH_KIND_MEMORY ? "keeps" : "sends", pith_method_detail(index));
  print_field("use", pith_method_use(index));
  print_field("formula of bits", method->bits);
  print_field("origin", method->origin ? method->origin : "-");
  print_field("survey", method->survey ? "one of the sixteen methods of the GRACE survey" : NULL);
  if (method->params && method->params->key) {
    putchar('\n');
    cli_say(stdout, "", "parameters (the first may be given as %s:VALUE, the others as ,KEY=VALUE)", method->name);
    print_detail_params(method);
  }
  if (method->bits && pith_codec_create(method->name, &codec) == PITH_OK) {
    puts("\nwith these defaults");
    cli_explain_codec(codec);
    pith_codec_destroy(codec);
  }
}

static void write_param(cli_json *json, const pith_param *param) {
  static const char *const types[] = {"int", "real", "choice"};
  cli_json_object(json, NULL);
  cli_json_string(json, "key", param->key);
  cli_json_string(json, "type", types[param->type]);
  if (param->type == PITH_PARAM_CHOICE) {
    cli_json_string(json, "choices", param->choices);
  } else {
    cli_json_number(json, "min", param->min);
    cli_json_number(json, "max", param->max);
  }
  cli_json_string(json, "default", param->initial);
  cli_json_string(json, "help", param->help);
  cli_json_object_end(json);
}

static void write_method(cli_json *json, const pith_method *method) {
  cli_json_object(json, NULL);
  cli_json_string(json, "name", method->name);
  cli_json_string(json, "kind", cli_kind_name(method->kind));
  cli_json_string(json, "family", method->family);
  cli_json_string(json, "summary", method->summary);
  cli_json_string(json, "bits", method->bits);
  cli_json_string(json, "made_of", method->made_of);
  cli_json_bool(json, "survey", method->survey);
  cli_json_string(json, "origin", method->origin);
  cli_json_count(json, "wire_id", method->wire_id);
  cli_json_array(json, "capabilities");
  for (size_t i = 0; i < cli_cap_count; i++) {
    if (method->caps & (uint32_t)cli_caps[i].cap) {
      cli_json_string(json, NULL, cli_caps[i].name);
    }
  }
  cli_json_array_end(json);
  cli_json_array(json, "parameters");
  for (const pith_param *param = method->params; param && param->key; param++) {
    write_param(json, param);
  }
  cli_json_array_end(json);
  cli_json_object_end(json);
}

/* All methods, or the one of that name. */
static int write_json(const char *name) {
  cli_json json = {.file = stdout};
  pith_method method = PITH_METHOD_INIT;
  cli_json_object(&json, NULL);
  cli_json_string(&json, "version", pith_version());
  cli_json_array(&json, "methods");
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (!name || !strcmp(name, method.name)) {
      write_method(&json, &method);
    }
  }
  cli_json_array_end(&json);
  cli_json_object_end(&json);
  return CLI_OK;
}

/* A name may stand for two methods in different places: `dgc` is a memory, and a preset made with it. */
static int print_named(const char *name) {
  pith_method method = PITH_METHOD_INIT;
  int found = 0;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (!strcmp(method.name, name)) {
      fputs(found++ ? "\n\n" : "", stdout);
      print_detail(i, &method);
    }
  }
  return CLI_OK;
}

/* A word that is no name: offers the nearest. */
static int fail_name(const char *name) {
  const char *nearest = NULL;
  pith_method method = PITH_METHOD_INIT;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    cli_nearest(name, method.name, &nearest);
  }
  for (size_t i = 0; pith_adaptive_get(i, &method) == PITH_OK; i++) {
    cli_nearest(name, method.name, &nearest);
  }
  if (nearest) {
    return cli_fail(CLI_USAGE, "no method \"%s\"; did you mean \"%s\"?", name, nearest);
  }
  return cli_fail(CLI_USAGE, "no method \"%s\"; \"pith codecs\" lists them all", name);
}

/* A spec with its stages' methods. */
static int write_spec(const char *spec) {
  cli_json json = {.file = stdout};
  pith_codec *codec = NULL;
  if (pith_codec_create(spec, &codec) != PITH_OK) {
    return cli_fail(CLI_USAGE, "codecs: %s: %s", spec, pith_error());
  }
  pith_codec_destroy(codec);
  cli_json_object(&json, NULL);
  cli_json_string(&json, "version", pith_version());
  cli_explain_json(&json, spec);
  cli_json_object_end(&json);
  return CLI_OK;
}

int cli_codecs(int argc, char **argv) {
  int json = 0, wide = 0;
  cli_list names = {.count = 0};
  const cli_option options[] = {
      {"--wide", CLI_FLAG, &wide, NULL, "the list with formulas, capabilities and parameters"},
      {"--json", CLI_FLAG, &json, NULL, "print JSON"},
      {.name = NULL}};
  const cli_usage usage = {
      "codecs", "[NAME|SPEC|RULES]",
      "Lists every method, or explains one. A spec, an adaptive spec or rules are explained in full:\n"
      "  pith codecs ef/topk:0.01,values=fp16\n"
      "  pith codecs auto,budget=q:4\n"
      "  pith codecs 'embed*=ef/topk:0.01;*=q:4'",
      options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &names);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (names.count > 1) {
    return cli_fail(CLI_USAGE, "codecs: one name or spec at a time; quote rules");
  }
  const char *name = names.count ? names.item[0] : NULL;
  if (name && !cli_method_exists(name)) {
    int is_word = !name[strcspn(name, ":,/;=")] && !pith_adapter_is(name);
    return is_word ? fail_name(name) : json ? write_spec(name) : cli_explain(name);
  }
  if (json) {
    return write_json(name);
  }
  return name ? print_named(name) : print_all(wide);
}

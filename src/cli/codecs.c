/* `pith codecs`: every method there is, from the registry, so that the list cannot fall behind the library. */
#include <stdio.h>
#include <string.h>

#include <pith/pith.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "cli/methods.h"
#include "cli/nearest.h"
#include "cli/options.h"
#include "cli/table.h"

enum { NAME, KIND, FAMILY, BITS, SURVEY, CAPS, PARAMETERS, COLUMN_COUNT };
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

/* A method takes a line for what it is made of and for each parameter, the first beside its name. */
static void print_rows(const cli_table *table, const pith_method *method) {
  char caps[CELL_MAX], last[CELL_MAX];
  const char *cells[COLUMN_COUNT] = {
      [NAME] = method->name,
      [KIND] = cli_kind_name(method->kind),
      [FAMILY] = method->family,
      [BITS] = method->bits,
      [SURVEY] = method->survey ? "●" : NULL,
      [CAPS] = cli_caps_print(method->caps, caps, sizeof caps),
  };
  const pith_param *param = method->params;
  if (method->made_of) {
    snprintf(last, sizeof last, "= %s", method->made_of);
  } else if (param && param->key) {
    print_param(param++, last);
  } else {
    last[0] = 0;
  }
  cells[PARAMETERS] = last;
  cli_table_row(table, cells);
  for (; param && param->key; param++) {
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
  cli_table_fit(table, BITS, method->bits ? method->bits : "");
  cli_table_fit(table, CAPS, cli_caps_print(method->caps, caps, sizeof caps));
}

static int print_all(void) {
  cli_table table = {COLUMN_COUNT,
                     {[NAME] = {.title = "name"},
                      [KIND] = {.title = "kind"},
                      [FAMILY] = {.title = "family"},
                      [BITS] = {.title = "bits per value"},
                      [SURVEY] = {.title = "●"},
                      [CAPS] = {.title = "capabilities"},
                      [PARAMETERS] = {.title = "parameters (defaults), = parts"}}};
  pith_method method;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    fit(&table, &method);
  }
  cli_table_head(&table);
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    print_rows(&table, &method);
  }
  printf(
      "\n● one of the sixteen methods of the GRACE survey. \"pith codecs NAME\" explains a method.\n"
      "A spec is memory/transform/codec, the first two optional: q:4  ef/topk:0.01,values=fp16  ef/hadamard/q:2\n");
  return CLI_OK;
}

static void print_detail_params(const pith_method *method) {
  const pith_param *param = method->params;
  for (; param && param->key; param++) {
    char range[CELL_MAX];
    printf("  %-10s %s, ", param->key, cli_range_print(param, range, sizeof range));
    if (param->initial) {
      printf("default %s", param->initial);
    } else {
      printf("must be given");
    }
    printf(": %s\n", param->help ? param->help : "");
  }
}

static void print_detail_caps(uint32_t caps) {
  for (size_t i = 0; i < cli_cap_count; i++) {
    if (caps & (uint32_t)cli_caps[i].cap) {
      printf("  %-10s %s\n", cli_caps[i].name, cli_caps[i].meaning);
    }
  }
}

static void print_detail(const pith_method *method) {
  printf("%s: %s\n\n", method->name, method->summary);
  printf("kind            %s\n", cli_kind_name(method->kind));
  printf("family          %s\n", method->family);
  if (method->made_of) {
    printf("made of         %s\n", method->made_of);
  }
  if (method->bits) {
    printf("bits per value  %s\n", method->bits);
  }
  printf("origin          %s\n", method->origin ? method->origin : "-");
  if (method->survey) {
    printf("survey          one of the sixteen methods of the GRACE survey\n");
  }
  if (method->params && method->params->key) {
    printf("\nparameters (the first may be given as %s:VALUE, the others as ,KEY=VALUE)\n", method->name);
    print_detail_params(method);
  }
  if (method->caps) {
    printf("\ncapabilities\n");
    print_detail_caps(method->caps);
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
  pith_method method;
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
  pith_method method;
  int found = 0;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (!strcmp(method.name, name)) {
      fputs(found++ ? "\n\n" : "", stdout);
      print_detail(&method);
    }
  }
  return CLI_OK;
}

static int check_name(const char *name) {
  const char *nearest = NULL;
  pith_method method;
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (!strcmp(method.name, name)) {
      return CLI_OK;
    }
    cli_nearest(name, method.name, &nearest);
  }
  if (nearest) {
    return cli_fail(CLI_USAGE, "no method \"%s\"; did you mean \"%s\"?", name, nearest);
  }
  return cli_fail(CLI_USAGE, "no method \"%s\"; \"pith codecs\" lists them all", name);
}

int cli_codecs(int argc, char **argv) {
  int json = 0;
  cli_list names = {.count = 0};
  const cli_option options[] = {{"--json", CLI_FLAG, &json, NULL, "print JSON"}, {.name = NULL}};
  const cli_usage usage = {"codecs", "[NAME]", "Lists every method, or explains one.", options};
  cli_parsed parsed = cli_options_parse(&usage, argc, argv, &names);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  if (names.count > 1) {
    return cli_fail(CLI_USAGE, "codecs: one name at a time");
  }
  const char *name = names.count ? names.item[0] : NULL;
  int code = name ? check_name(name) : CLI_OK;
  if (code != CLI_OK) {
    return code;
  }
  if (json) {
    return write_json(name);
  }
  return name ? print_named(name) : print_all();
}

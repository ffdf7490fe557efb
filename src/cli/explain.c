/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Explaining specs. Everything said here comes from the library: the tables of methods, and what a codec answers.
 * This file only puts it into sentences.
 */
#include "cli/explain.h"

#include <pith/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/data.h"
#include "cli/base/nearest.h"
#include "cli/base/page.h"
#include "cli/methods.h"

enum { SPEC_SIZE = 512, VALUE_SIZE = 256, TYPICAL_VALUES = 1 << 16, LABEL = 16 };

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

double cli_typical_bits(const pith_codec *codec) {
  size_t n = TYPICAL_VALUES, bound = pith_codec_bound(codec, n);
  float *values = malloc(n * sizeof *values);
  pith_out out = {malloc(bound), bound, 0};
  pith_state *state = NULL;
  pith_ctx ctx = PITH_CTX_INIT;
  double bits = 0;
  if (values && out.data && pith_state_create(codec, n, 256, &state) == PITH_OK) {
    cli_data_fill(CLI_DIST_NORMAL, 1, values, n);
    ctx.rows = 256;
    if (pith_encode(codec, state, (pith_cspan){values, n, PITH_F32}, &out, &ctx) == PITH_OK) {
      bits = 8 * (double)out.size / (double)n;
    }
  }
  pith_state_destroy(state);
  free(out.data);
  free(values);
  return bits;
}

static void say(const char *label, const char *text) {
  char first[SPEC_SIZE], rest[SPEC_SIZE];
  snprintf(first, sizeof first, "%-*s", LABEL, label);
  snprintf(rest, sizeof rest, "%*s", LABEL, "");
  cli_paragraph(stdout, first, rest, text);
}

static void explain_bits(const pith_codec *codec) {
  char text[SPEC_SIZE];
  double bits = cli_typical_bits(codec);
  if (bits > 0) {
    snprintf(text, sizeof text, "%.3f, %.1f times fewer than f32%s", bits, 32 / bits,
             pith_codec_caps(codec) & PITH_CAP_FIXED ? "; the same for any values"
                                                     : "; of 65,536 normal values, others may take more or fewer");
    say("bits per value", text);
  }
}

/* How the contributions of ranks become one result. */
static const char *aggregation_of(const pith_codec *codec) {
  uint32_t caps = pith_codec_caps(codec);
  return caps & PITH_CAP_VOTE   ? "the majority of the ranks' signs, value by value"
         : caps & PITH_CAP_ONCE ? "payloads of all ranks go to all, are decoded and added in rank order; then the mean"
         : caps & PITH_CAP_ROUNDS ? "sums of what each exchange sends, inside any allreduce; then the mean is decoded"
         : caps & PITH_CAP_LINEAR ? "payloads add up without being decoded; then the mean"
         : caps & PITH_CAP_SPARSE ? "values are added at their places, in rank order; then the mean"
                                  : "payloads are decoded and added in f32, in rank order; then the mean";
}

static void explain_state(const pith_codec *codec) {
  pith_state *state = NULL;
  const size_t n = TYPICAL_VALUES;
  char text[SPEC_SIZE];
  if (pith_state_create(codec, n, 256, &state) != PITH_OK) {
    return;
  }
  double each = (double)pith_state_save_size(state) / (double)n;
  pith_state_destroy(state);
  if (each < 0.01) {
    say("keeps", "nothing between steps");
  } else {
    snprintf(text, sizeof text, "%.3g bytes for each value on every rank, in checkpoints too", each);
    say("keeps", text);
  }
}

static void explain_algorithms(const pith_codec *codec) {
  char text[SPEC_SIZE] = "", asked[SPEC_SIZE] = "";
  const char *name;
  for (size_t i = 0; (name = pith_algorithm_get(i)); i++) {
    if (!strcmp(name, "auto") || pith_algorithm_suits(name, codec) != PITH_OK) {
      continue;
    }
    int is_wish =
        !strcmp(name, "ring") || !strcmp(name, "tree"); /* they encode sums again: nothing chooses them by itself */
    char *list = is_wish ? asked : text;
    size_t used = strlen(list);
    snprintf(list + used, SPEC_SIZE - used, "%s%s", used ? ", " : "", name);
  }
  size_t used = strlen(text);
  if (*asked) {
    snprintf(text + used, sizeof text - used, "%s%s where they are asked for", used ? "; " : "", asked);
  }
  say("allreduce by", *text ? text : "none");
}

static void explain_caps(uint32_t caps) {
  char text[SPEC_SIZE] = "";
  for (size_t i = 0; i < cli_cap_count; i++) {
    size_t used = strlen(text);
    if (caps & (uint32_t)cli_caps[i].cap) {
      snprintf(text + used, sizeof text - used, "%s%s (%s)", used ? ", " : "", cli_caps[i].name, cli_caps[i].meaning);
    }
  }
  if (*text) {
    say("capabilities", text);
  }
}

void cli_explain_codec(const pith_codec *codec) {
  explain_bits(codec);
  say("ranks", aggregation_of(codec));
  explain_state(codec);
  explain_algorithms(codec);
  if (pith_cuda_supports(codec) == PITH_OK) {
    say("CUDA", "there are kernels for it");
  } else {
    char text[SPEC_SIZE];
    snprintf(text, sizeof text, "no kernels: %s", pith_error());
    say("CUDA", text);
  }
  explain_caps(pith_codec_caps(codec));
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

/* A stage of canonical text: "topk:0.01,values=fp16". */
typedef struct stage {
  char name[VALUE_SIZE], rest[SPEC_SIZE];
} stage;

static const char *next_stage(const char *parts, stage *s) {
  size_t size = strcspn(parts, "/"), name = strcspn(parts, ":,/");
  snprintf(s->name, sizeof s->name, "%.*s", (int)name, parts);
  snprintf(s->rest, sizeof s->rest, "%.*s", (int)(size - name), parts + name);
  return parts[size] ? parts + size + 1 : NULL;
}

/* The value of a parameter in ":0.01,values=fp16", else its default. */
static void value_of(const stage *s, const pith_param *param, int is_first, char value[VALUE_SIZE]) {
  snprintf(value, VALUE_SIZE, "%s", param->initial ? param->initial : "");
  const char *at = s->rest;
  if (*at == ':') {
    size_t size = strcspn(++at, ",");
    if (is_first) {
      snprintf(value, VALUE_SIZE, "%.*s", (int)size, at);
    }
    at += size;
  }
  while (*at == ',') {
    size_t size = strcspn(++at, ","), key = strcspn(at, "=");
    if (key < size && strlen(param->key) == key && !strncmp(at, param->key, key)) {
      snprintf(value, VALUE_SIZE, "%.*s", (int)(size - key - 1), at + key + 1);
    }
    at += size;
  }
}

/* Its place in the registry: before the last stage a memory or a transform, there a codec. */
static int find_method(const char *name, int is_last, size_t *index, pith_method *method) {
  for (size_t i = 0; pith_method_get(i, method) == PITH_OK; i++) {
    int is_codec = method->kind == PITH_KIND_CODEC;
    int is_before = method->kind == PITH_KIND_MEMORY || method->kind == PITH_KIND_TRANSFORM;
    if (!strcmp(method->name, name) && (is_last ? is_codec : is_before)) {
      *index = i;
      return 1;
    }
  }
  return 0;
}

static void explain_param(const char *key, const char *value, const pith_param *param) {
  char first[SPEC_SIZE], range[VALUE_SIZE] = "", rest[SPEC_SIZE];
  if (param->type != PITH_PARAM_SPEC) {
    cli_range_print(param, range, sizeof range);
  }
  snprintf(first, sizeof first, "    %s=%s", key, *value ? value : "(none)");
  snprintf(rest, sizeof rest, "%*s", 24, "");
  size_t used = cli_text_width(first);
  snprintf(first + strlen(first), sizeof first - strlen(first), "%*s", used < 23 ? (int)(24 - used) : 1, "");
  char text[2 * SPEC_SIZE];
  snprintf(text, sizeof text, "%s%s%s%s", param->help ? param->help : "", *range ? " (" : "", range, *range ? ")" : "");
  cli_paragraph(stdout, first, rest, text);
}

static void explain_stage(const stage *s, int is_last) {
  static const char *const details[] = {
      [PITH_KIND_CODEC] = "sends", [PITH_KIND_TRANSFORM] = "sends", [PITH_KIND_MEMORY] = "keeps"};
  pith_method method = PITH_METHOD_INIT;
  size_t index;
  if (!find_method(s->name, is_last, &index, &method)) {
    return;
  }
  char head[VALUE_SIZE + 16];
  snprintf(head, sizeof head, "  %s: ", s->name);
  cli_paragraph(stdout, head, "    ", method.summary);
  const char *detail = pith_method_detail(index), *use = pith_method_use(index);
  for (const pith_param *param = method.params; param && param->key; param++) {
    char value[VALUE_SIZE];
    value_of(s, param, param == method.params, value);
    explain_param(param->key, value, param);
  }
  if (detail) {
    cli_say(stdout, "    ", "%s: %s", details[method.kind], detail);
  }
  if (use) {
    cli_say(stdout, "    ", "use: %s", use);
  }
}

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

static void explain_use_of_preset(const char *spec) {
  pith_method method = PITH_METHOD_INIT;
  size_t length = strcspn(spec, ":,/");
  for (size_t i = 0; pith_method_get(i, &method) == PITH_OK; i++) {
    if (method.kind == PITH_KIND_PRESET && strlen(method.name) == length && !strncmp(method.name, spec, length)) {
      say("preset", method.summary);
      if (pith_method_use(i)) {
        say("use", pith_method_use(i));
      }
    }
  }
}

static void explain_parts(const pith_codec *codec) {
  const char *spec = pith_codec_spec(codec), *parts = pith_codec_parts(codec);
  if (strcmp(spec, parts) != 0) {
    explain_use_of_preset(spec);
    say("made of", parts);
  }
  puts("stages");
  for (const char *at = parts; at;) {
    stage s;
    at = next_stage(at, &s);
    explain_stage(&s, at == NULL);
  }
  putchar('\n');
  cli_explain_codec(codec);
}

/* Names of adaptive specs are not those of methods: a slip in one is looked for here. */
static int fail_spec(const char *spec) {
  char name[VALUE_SIZE], reason[2 * SPEC_SIZE];
  const char *nearest = NULL;
  pith_method method = PITH_METHOD_INIT;
  snprintf(reason, sizeof reason, "%s", pith_error());
  snprintf(name, sizeof name, "%.*s", (int)strcspn(spec, ":,/"), spec);
  for (size_t i = 0; !cli_method_exists(name) && pith_adaptive_get(i, &method) == PITH_OK; i++) {
    cli_nearest(name, method.name, &nearest);
  }
  return nearest ? cli_fail(CLI_USAGE, "codecs: %s: there is no method \"%s\"; did you mean %s?", spec, name, nearest)
                 : cli_fail(CLI_USAGE, "codecs: %s: %s", spec, reason);
}

static int explain_spec(const char *spec) {
  pith_codec *codec = NULL;
  if (pith_codec_create(spec, &codec) != PITH_OK) {
    return fail_spec(spec);
  }
  printf("%s\n\n", pith_codec_spec(codec));
  explain_parts(codec);
  pith_codec_destroy(codec);
  return CLI_OK;
}

/* ---- Adaptive specs ---------------------------------------------------------------------------------------------- */

static int find_adaptive(const char *spec, size_t *index, pith_method *method) {
  size_t length = strcspn(spec, ":,");
  for (size_t i = 0; pith_adaptive_get(i, method) == PITH_OK; i++) {
    if (strlen(method->name) == length && !strncmp(method->name, spec, length)) {
      *index = i;
      return 1;
    }
  }
  return 0;
}

/* "q:1 … q:8 (32)": the first and the last of a family, and how many there are. */
static void add_family(const char *first, const char *last, size_t count, char *text, size_t size) {
  size_t used = strlen(text);
  if (count == 1) {
    snprintf(text + used, size - used, "%s%s", used ? ", " : "", first);
  } else if (count) {
    snprintf(text + used, size - used, "%s%s … %s (%zu)", used ? ", " : "", first, last, count);
  }
}

static int same_family(const char *a, const char *b) {
  size_t length = strcspn(a, ":,");
  return length == strcspn(b, ":,") && !strncmp(a, b, length);
}

/* The specs that layers may get, in the order in which the planner has them: family by family. */
static void explain_candidates(const char *spec, const pith_method *method) {
  static const size_t shape[] = {64, 64};
  const pith_layer layer = {.size = sizeof layer, .name = "layer", .shape = shape, .dimensions = 2};
  char text[2 * SPEC_SIZE] = "", budget[SPEC_SIZE] = "";
  const char *first = NULL, *last = NULL, *at;
  size_t count = 0;
  pith_adapter *adapter = NULL;
  pith_adapter_option(spec, "budget", budget, sizeof budget);
  if (!strcmp(method->name, "accordion") || pith_adapter_create(spec, &layer, 1, 0, 2, 0, &adapter) != PITH_OK) {
    return;
  }
  for (size_t i = 0; (at = pith_adapter_candidate(adapter, i)); i++) {
    if (first && !same_family(first, at)) {
      add_family(first, last, count, text, sizeof text);
      first = NULL;
    }
    count = first ? count + 1 : 1;
    first = first ? first : at;
    last = at;
  }
  add_family(first, last, first ? count : 0, text, sizeof text);
  size_t used = strlen(text);
  snprintf(text + used, sizeof text - used, "%s%s", *budget ? "; together no more error than " : "", budget);
  say("candidates", text);
  pith_adapter_destroy(adapter);
}

/* "lgreco" by itself lacks its spec: the page of the method still helps. */
static int explain_adaptive(const char *spec) {
  pith_method method = PITH_METHOD_INIT;
  size_t index = 0;
  int is_name = find_adaptive(spec, &index, &method) && !strcmp(method.name, spec),
      good = pith_adapter_check(spec) == PITH_OK;
  if (!good && !is_name) {
    return cli_fail(CLI_USAGE, "codecs: %s", pith_error());
  }
  cli_say(stdout, "", "%s: %s", spec, method.summary);
  putchar('\n');
  say("written as", method.made_of);
  say("use", pith_adaptive_use(index));
  say("origin", method.origin);
  puts("options");
  char value[VALUE_SIZE];
  for (const pith_param *option = method.params; option->key; option++) {
    snprintf(value, sizeof value, "%s", option->initial ? option->initial : "");
    if (good) {
      pith_adapter_option(spec, option->key, value, sizeof value);
    }
    explain_param(option->key, value, option);
  }
  putchar('\n');
  say("how",
      "gradients are measured while the model trains, and every plan gives each layer one of the candidates; leaving a "
      "layer "
      "uncompressed is one of them");
  if (good) {
    explain_candidates(spec, &method);
  }
  say("memory",
      "each layer keeps what its spec keeps; where a spec changes, what was not sent is added to later gradients");
  say("CUDA", "works for models on GPUs too; statistics are then made by the CPU, from copies of gradients");
  return CLI_OK;
}

/* ---- Rules ------------------------------------------------------------------------------------------------------- */

/* A text whose first "=" stands before any "," is rules: docs/format.md. */
static int is_rules(const char *text) {
  size_t first = strcspn(text, ",=");
  return text[first] == '=' || strchr(text, ';');
}

static int explain_rule(const char *rule) {
  size_t pattern = strcspn(rule, "=");
  const char *spec = rule[pattern] ? rule + pattern + 1 : rule;
  cli_say(stdout, "", "layers named %.*s", rule[pattern] ? (int)pattern : 1, rule[pattern] ? rule : "*");
  return pith_adapter_is(spec) ? explain_adaptive(spec) : explain_spec(spec);
}

/* The last rule may be adaptive; all others are specs, which the library checks as a whole. */
static int explain_rules(const char *text) {
  char *copy = strdup(text), *rest = NULL;
  int code = copy ? CLI_OK : cli_fail(CLI_FAILED, "no memory");
  const char *last = strrchr(text, ';');
  last = last ? last + 1 : text;
  pith_rules *rules = NULL;
  if (!pith_adapter_is(last + strcspn(last, "=") + (last[strcspn(last, "=")] == '=')) &&
      pith_rules_create(text, &rules) != PITH_OK) {
    code = fail_spec(text);
  }
  pith_rules_destroy(rules);
  if (code == CLI_OK) {
    cli_paragraphs(
        stdout,
        "Rules give each layer a spec by its name; the first that matches wins. Tensors of one dimension or under "
        "1,024 values stay uncompressed unless a pattern other than * names them.\n\n");
  }
  for (char *rule = copy ? strtok_r(copy, ";", &rest) : NULL; rule && code == CLI_OK;
       rule = strtok_r(NULL, ";", &rest)) {
    code = explain_rule(rule);
    fputs(*rest ? "\n" : "", stdout);
  }
  free(copy);
  return code;
}

int cli_explain(const char *text) {
  return pith_adapter_is(text) ? explain_adaptive(text) : is_rules(text) ? explain_rules(text) : explain_spec(text);
}

int cli_explain_json(cli_json *json, const char *spec) {
  pith_codec *codec = NULL;
  if (pith_codec_create(spec, &codec) != PITH_OK) {
    return fail_spec(spec);
  }
  cli_json_string(json, "spec", pith_codec_spec(codec));
  cli_json_string(json, "parts", pith_codec_parts(codec));
  cli_json_number(json, "bits_per_value", cli_typical_bits(codec));
  cli_json_bool(json, "cuda", pith_cuda_supports(codec) == PITH_OK);
  cli_json_array(json, "algorithms");
  const char *name;
  for (size_t i = 0; (name = pith_algorithm_get(i)); i++) {
    if (strcmp(name, "auto") != 0 && pith_algorithm_suits(name, codec) == PITH_OK) {
      cli_json_string(json, NULL, name);
    }
  }
  cli_json_array_end(json);
  pith_codec_destroy(codec);
  return CLI_OK;
}

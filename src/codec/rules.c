/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rules: which spec a layer gets. All codecs are made when the rules are read, so that a mistake in the last rule shows
 * at the first line of a program and not when its layer comes along.
 *
 * Whether a text is a list of rules or one spec shows at its first '=' and ',': a pattern has no comma, and a spec has
 * no '=' before one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/minimal_size.h"
#include "base/spec.h"
#include "base/struct_size.h"

typedef struct pith_rule {
  char *reason;        /* "rule embed*" */
  const char *pattern; /* the end of it */
  pith_codec *codec;
} pith_rule;

struct pith_rules {
  char *text;
  pith_codec *none; /* for layers that no rule decides */
  size_t minimal;   /* values of a layer that the rule for everything compresses */
  pith_small_reason small;
  size_t count;
  pith_rule *rule;
};

/* ---- Reading ----------------------------------------------------------------------------------------------------- */

static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

static pith_text trim(pith_text text) {
  while (text.size && is_blank(text.at[0])) {
    text.at++;
    text.size--;
  }
  while (text.size && is_blank(text.at[text.size - 1])) {
    text.size--;
  }
  return text;
}

static int has_patterns(const char *text) {
  size_t first = strcspn(text, "=,");
  return text[first] == '=';
}

/* Takes the next entry that is not empty off the text; an empty one means the end. */
static pith_text next_entry(const char **text) {
  pith_text entry = {*text, 0};
  while (**text && entry.size == 0) {
    size_t size = strcspn(*text, ";");
    entry = trim((pith_text){*text, size});
    *text += size + ((*text)[size] == ';');
  }
  return entry;
}

/* Cuts "pattern=spec" in two. */
static pith_status split_entry(pith_text entry, size_t number, pith_text *pattern, pith_text *spec) {
  size_t cut = 0;
  while (cut < entry.size && entry.at[cut] != '=' && entry.at[cut] != ',') {
    cut++;
  }
  PITH_REQUIRE(cut < entry.size && entry.at[cut] == '=', PITH_ERR_SPEC,
               "rule %zu, \"%.*s\", has no pattern; write pattern=spec, as in *=q:4 (patterns have no commas)", number,
               (int)entry.size, entry.at);
  *pattern = trim((pith_text){entry.at, cut});
  *spec = trim((pith_text){entry.at + cut + 1, entry.size - cut - 1});
  PITH_REQUIRE(pattern->size, PITH_ERR_SPEC, "rule %zu has an empty pattern before the '='; * matches every layer",
               number);
  return PITH_OK;
}

static pith_status make_codec(pith_text spec, size_t number, pith_text pattern, pith_codec **codec) {
  char text[PITH_SPEC_MAX];
  PITH_REQUIRE(spec.size < sizeof text, PITH_ERR_SPEC, "rule %zu has a spec of more than %d characters", number,
               PITH_SPEC_MAX - 1);
  memcpy(text, spec.at, spec.size);
  text[spec.size] = 0;
  pith_status status = pith_codec_create(text, codec);
  return status == PITH_OK
             ? PITH_OK
             : pith_fail(status, "rule %zu (%.*s): %s", number, (int)pattern.size, pattern.at, pith_error());
}

static pith_status add_rule(pith_rules *rules, pith_text pattern, pith_text spec) {
  static const char word[] = "rule ";
  size_t number = rules->count + 1, size = sizeof word + pattern.size;
  pith_rule *grown = realloc(rules->rule, number * sizeof *grown);
  char *reason = malloc(size);
  rules->rule = grown ? grown : rules->rule;
  if (!grown || !reason) {
    free(reason);
    return pith_fail(PITH_ERR_MEMORY, "no memory for rule %zu", number);
  }
  snprintf(reason, size, "%s%.*s", word, (int)pattern.size, pattern.at);
  grown[rules->count++] = (pith_rule){reason, reason + strlen(word), NULL};
  return make_codec(spec, number, pattern, &grown[number - 1].codec);
}

static pith_status read_rules(pith_rules *rules, const char *text) {
  const char *rest = text;
  for (pith_text entry = next_entry(&rest); entry.size; entry = next_entry(&rest)) {
    pith_text pattern, spec;
    PITH_TRY(split_entry(entry, rules->count + 1, &pattern, &spec));
    PITH_TRY(add_rule(rules, pattern, spec));
  }
  return PITH_OK;
}

static pith_status read_lone_spec(pith_rules *rules, const char *text) {
  pith_text spec = next_entry(&text), more = next_entry(&text);
  PITH_REQUIRE(spec.size, PITH_ERR_SPEC, "there is no rule; write a spec such as q:4, or pattern=spec;pattern=spec");
  PITH_REQUIRE(!more.size, PITH_ERR_SPEC,
               "several specs need patterns: write pattern=spec;pattern=spec, as in "
               "*.bias=none;*=q:4");
  return add_rule(rules, (pith_text){"*", 1}, spec);
}

static pith_status write_text(pith_rules *rules) {
  size_t size = 1;
  for (size_t i = 0; i < rules->count; i++) {
    size += strlen(rules->rule[i].pattern) + strlen(pith_codec_spec(rules->rule[i].codec)) + strlen(";=");
  }
  rules->text = malloc(size);
  PITH_REQUIRE(rules->text, PITH_ERR_MEMORY, "no memory for the text of the rules");
  for (size_t i = 0, used = 0; i < rules->count; i++) {
    used += (size_t)snprintf(rules->text + used, size - used, "%s%s=%s", i ? ";" : "", rules->rule[i].pattern,
                             pith_codec_spec(rules->rule[i].codec));
  }
  return PITH_OK;
}

static pith_status build(pith_rules *rules, const char *text) {
  PITH_TRY(pith_minimal_size(&rules->minimal));
  rules->small = pith__small_reason(rules->minimal);
  PITH_TRY(pith_codec_create("none", &rules->none));
  PITH_TRY(has_patterns(text) ? read_rules(rules, text) : read_lone_spec(rules, text));
  return write_text(rules);
}

pith_status pith_rules_create(const char *text, pith_rules **rules) {
  PITH_REQUIRE(text, PITH_ERR_ARGUMENT, "pith_rules_create: text is NULL");
  PITH_REQUIRE(rules, PITH_ERR_ARGUMENT, "pith_rules_create: rules is NULL");
  pith_rules *made = calloc(1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for rules");
  pith_status status = build(made, text);
  if (status != PITH_OK) {
    pith_rules_destroy(made);
    return status;
  }
  *rules = made;
  return PITH_OK;
}

void pith_rules_destroy(pith_rules *rules) {
  if (!rules) {
    return;
  }
  for (size_t i = 0; i < rules->count; i++) {
    free(rules->rule[i].reason);
    pith_codec_destroy(rules->rule[i].codec);
  }
  free(rules->rule);
  free(rules->text);
  pith_codec_destroy(rules->none);
  free(rules);
}

const char *pith_rules_text(const pith_rules *rules) { return rules->text; }

size_t pith_rules_count(const pith_rules *rules) { return rules->count; }

/* ---- Finding ----------------------------------------------------------------------------------------------------- */

int pith_rules_matches(const pith_rules *rules, size_t index, const char *layer) {
  if (!rules || !layer || index >= rules->count) {
    return 0;
  }
  const char *pattern = rules->rule[index].pattern;
  return pith__glob((pith_text){pattern, strlen(pattern)}, layer);
}

/* What a default has to say of a layer that only the rule for everything matches; NULL: nothing. */
static const char *default_reason(const pith_rules *rules, size_t dimensions, size_t n) {
  return dimensions <= 1 ? "one dimension" : n < rules->minimal ? rules->small.text : NULL;
}

pith_status pith_rules_find(const pith_rules *rules, const char *layer, size_t dimensions, size_t n,
                            pith_match *match) {
  PITH_REQUIRE(rules && layer && match, PITH_ERR_ARGUMENT, "pith_rules_find: rules, layer or match is NULL");
  size_t i = 0;
  while (i < rules->count && !pith_rules_matches(rules, i, layer)) {
    i++;
  }
  const char *reason = "no rule matches";
  if (i < rules->count) {
    reason = strcmp(rules->rule[i].pattern, "*") == 0 ? default_reason(rules, dimensions, n) : NULL;
  }
  pith_match found = {.codec = rules->none, .rule = SIZE_MAX, .reason = reason};
  if (!reason) {
    found = (pith_match){.codec = rules->rule[i].codec, .rule = i, .reason = rules->rule[i].reason};
  }
  return PITH_STRUCT_WRITE(pith_match, &found, match);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adaptive specs: "lgreco:q:4,period=200". What follows the name is a spec with its own parameters; options of ours are
 * told from those by their keys.
 */
#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/struct_size.h"
#include "solve/plan_object.h"

enum { PERIOD_LEAST = 32, WARMUP_LEAST = 4, ACCUMULATE_MOST = 1024 };
#define COUNT_MOST 1e9

/* ---- What there is ----------------------------------------------------------------------------------------------- */

#define PERIOD_OPTION                                          \
  {sizeof(pith_param), "period", PITH_PARAM_INT, PERIOD_LEAST, \
   COUNT_MOST,         "256",    NULL,           "steps from one plan to the next"}
#define WARMUP_OPTION \
  {sizeof(pith_param), "warmup", PITH_PARAM_INT, WARMUP_LEAST, COUNT_MOST, "20", NULL, "steps before the first plan"}
#define ALPHA_OPTION \
  {sizeof(pith_param), "alpha", PITH_PARAM_REAL, 1e-6, 1e6, "1", NULL, "factor on the error that may be lost"}
#define BUDGET_OPTION(help) {sizeof(pith_param), "budget", PITH_PARAM_SPEC, 0, 0, NULL, NULL, help}
#define THRESHOLD_OPTION \
  {sizeof(pith_param),   \
   "threshold",          \
   PITH_PARAM_REAL,      \
   1e-6,                 \
   1e6,                  \
   "0.5",                \
   NULL,                 \
   "how much the gradient's norm changes in a critical phase"}
#define CRITICAL_OPTION \
  {sizeof(pith_param), "critical", PITH_PARAM_SPEC, 0, 0, NULL, NULL, "the spec for critical phases"}

#define METRIC_OPTION  \
  {sizeof(pith_param), \
   "metric",           \
   PITH_PARAM_CHOICE,  \
   0,                  \
   0,                  \
   "l2sq",             \
   "l2sq|l2",          \
   "what is added up over layers: squared errors, or errors as the authors of L-GreCo do"}
#define CAP_OPTION     \
  {sizeof(pith_param), \
   "cap",              \
   PITH_PARAM_REAL,    \
   0,                  \
   1e6,                \
   "0",                \
   NULL,               \
   "no layer gets more than this times the strength of the budget's spec; 0: no cap"}
#define TOLERANCE_OPTION \
  {sizeof(pith_param),   \
   "tolerance",          \
   PITH_PARAM_REAL,      \
   0,                    \
   1,                    \
   "0",                  \
   NULL,                 \
   "the share of a step's progress that may be lost, in place of alpha; 0: alpha counts"}
#define ACCUMULATE_OPTION                               \
  {sizeof(pith_param), "accumulate", PITH_PARAM_INT, 1, \
   ACCUMULATE_MOST,    "1",          NULL,           "errors are those of the mean gradient over this many steps"}
#define START_OPTION {sizeof(pith_param), "start", PITH_PARAM_INT, 0, COUNT_MOST, "0", NULL, "no plan before this step"}
#define SCHEDULE_OPTIONS PERIOD_OPTION, WARMUP_OPTION, START_OPTION, ACCUMULATE_OPTION

static const pith_param auto_options[] = {
    BUDGET_OPTION("only specs that lose no more than this one on all layers are tried; without it only speed counts"),
    {sizeof(pith_param), "delayed", PITH_PARAM_INT, 0, 1, "1", NULL,
     "0: without methods whose gradients arrive late, sparse and low-rank ones with error feedback"},
    PERIOD_OPTION,
    WARMUP_OPTION,
    {0}};
static const pith_param lgreco_options[] = {
    BUDGET_OPTION("the spec whose error on all layers may be lost; else the spec itself"),
    ALPHA_OPTION,
    {sizeof(pith_param), "floor", PITH_PARAM_REAL, 0, 1, "0.5", NULL,
     "no layer gets less than this share of the bytes that the spec gives it"},
    METRIC_OPTION,
    CAP_OPTION,
    TOLERANCE_OPTION,
    CRITICAL_OPTION,
    THRESHOLD_OPTION,
    SCHEDULE_OPTIONS,
    {0}};
static const pith_param assigner_options[] = {
    BUDGET_OPTION("the spec whose error on all layers may be lost; else the spec itself"),
    ALPHA_OPTION,
    METRIC_OPTION,
    CAP_OPTION,
    TOLERANCE_OPTION,
    SCHEDULE_OPTIONS,
    {0}};
static const pith_param accordion_options[] = {CRITICAL_OPTION, THRESHOLD_OPTION, SCHEDULE_OPTIONS, {0}};

/* In the order of pith_adapt_kind. */
static const struct {
  const char *name, *form, *summary, *origin, *use;
  const pith_param *options;
} kinds[] = {
    {"auto", "auto", "the fastest plan, found by trials; no compression is one of the options", "Pith",
     "with budget=q:4 it is the default of pith.torch.compress(); without a budget use it with plain SGD, or with "
     "delayed=0 for optimizers that keep moments",
     auto_options},
    {"lgreco", "lgreco:SPEC",
     "the fewest bytes at the error that SPEC has on all layers: each layer gets its own strength",
     "Alimohammadi 2023 (L-GreCo)",
     "where a spec trains well and its bytes are too many; lgreco:mix,budget=q:4 chooses from all families",
     lgreco_options},
    {"kmeans", "kmeans:SPEC", "groups layers of similar size and norm, and gives each group its own strength",
     "Markov 2022 (CGX)", "to compare with lgreco, which loses less at the same bytes", assigner_options},
    {"accordion", "accordion:SPEC,CRITICAL",
     "a light spec while the gradient's norm changes fast, a strong one otherwise", "Agarwal 2021 (Accordion)",
     "where early epochs need more precision than later ones", accordion_options},
    {"cgxkmeans", "cgxkmeans:SPEC", "layers in groups as CGX makes them: neighbouring strengths, by the norm alone",
     "Markov 2022 (CGX)", "to compare with CGX; kmeans has fewer bytes at the same error", assigner_options},
    {"linear", "linear:SPEC", "the strength of a layer follows the logarithm of its norm", "Markov 2022 (CGX)",
     "to compare with CGX; lgreco has fewer bytes at the same error", assigner_options},
    {"best", "best:SPEC", "each layer by itself weighs bits against the logarithm of its error", "Markov 2022 (CGX)",
     "to compare with CGX; lgreco has fewer bytes at the same error", assigner_options},
    {"bayes", "bayes:SPEC", "Bayesian optimization over the strengths of all layers", "Markov 2022 (CGX)",
     "to compare with CGX; lgreco finds the optimum in less time", assigner_options},
    {"global", "global:SPEC", "the largest values of the whole model: one threshold for all layers", "Aji 2017",
     "for topk, where layers differ much in the size of their gradients", assigner_options},
};
enum { NAMES = sizeof kinds / sizeof *kinds };

pith_status pith_adaptive_get(size_t index, pith_method *method) {
  PITH_REQUIRE(method, PITH_ERR_ARGUMENT, "pith_adaptive_get: method is NULL");
  PITH_REQUIRE(index < NAMES, PITH_ERR_RANGE, "there is no adaptive spec %zu: there are %d, counted from 0", index,
               NAMES);
  pith_method found = {.name = kinds[index].name,
                       .family = "adaptive",
                       .summary = kinds[index].summary,
                       .made_of = kinds[index].form,
                       .kind = PITH_KIND_PRESET,
                       .origin = kinds[index].origin,
                       .params = kinds[index].options};
  return PITH_STRUCT_WRITE(pith_method, &found, method);
}

const char *pith_adaptive_use(size_t index) { return index < NAMES ? kinds[index].use : NULL; }

/* Places of a text that a piece can go to. */
typedef struct pieces {
  char *target; /* the one that the last piece went to */
  char value[PITH_SPEC_MAX];
  char alpha[PITH_SPEC_MAX], period[PITH_SPEC_MAX], warmup[PITH_SPEC_MAX], threshold[PITH_SPEC_MAX],
      floor[PITH_SPEC_MAX], metric[PITH_SPEC_MAX], cap[PITH_SPEC_MAX], tolerance[PITH_SPEC_MAX],
      accumulate[PITH_SPEC_MAX], start[PITH_SPEC_MAX], delayed[PITH_SPEC_MAX];
} pieces;

static int kind_of(const char *spec) {
  for (int k = 0; k < NAMES; k++) {
    size_t size = strlen(kinds[k].name);
    if (!strncmp(spec, kinds[k].name, size) && (!spec[size] || spec[size] == ':' || spec[size] == ',')) {
      return k;
    }
  }
  return -1;
}

int pith_adapter_is(const char *spec) {
  while (spec && isspace((unsigned char)*spec)) {
    spec++;
  }
  return spec && kind_of(spec) >= 0;
}

/* ---- Cutting ----------------------------------------------------------------------------------------------------- */

/* Where the value of an option goes; NULL: it is none of ours. */
static char *place_of(const char *piece, size_t key, pieces *p, pith_adapt_options *o) {
  const struct {
    const char *name;
    char *place;
  } known[] = {{"period", p->period},       {"warmup", p->warmup},         {"alpha", p->alpha},
               {"budget", o->budget},       {"critical", o->critical},     {"threshold", p->threshold},
               {"floor", p->floor},         {"metric", p->metric},         {"cap", p->cap},
               {"tolerance", p->tolerance}, {"accumulate", p->accumulate}, {"start", p->start},
               {"delayed", p->delayed}};
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    if (strlen(known[i].name) == key && !strncmp(piece, known[i].name, key)) {
      return known[i].place;
    }
  }
  return NULL;
}

static void append(char *place, const char *text, size_t size) {
  size_t used = strlen(place);
  snprintf(place + used, PITH_SPEC_MAX - used, "%s%.*s", used ? "," : "", (int)size, text);
}

/* A piece between two commas: an option of ours, the second spec of accordion, or more of what came before. */
static pith_status take_piece(const char *piece, size_t size, pieces *p, pith_adapt_options *o) {
  size_t key = 0;
  while (key < size && piece[key] != '=') {
    key++;
  }
  char *place = key < size ? place_of(piece, key, p, o) : NULL;
  if (place) {
    PITH_REQUIRE(!*place, PITH_ERR_SPEC, "%s: %.*s comes twice", o->text, (int)key, piece);
    PITH_REQUIRE(size > key + 1, PITH_ERR_SPEC, "%s: %.*s has no value", o->text, (int)key, piece);
    p->target = place;
    append(place, piece + key + 1, size - key - 1);
  } else if (key == size && o->kind == PITH_ADAPT_ACCORDION && !*o->critical) {
    p->target = o->critical;
    append(o->critical, piece, size);
  } else {
    PITH_REQUIRE(p->target && key < size, PITH_ERR_SPEC, "%s: \"%.*s\" is no option; pith codecs %s lists them",
                 o->text, (int)size, piece, kinds[o->kind].name);
    append(p->target, piece, size);
  }
  return PITH_OK;
}

static pith_status cut(const char *rest, pieces *p, pith_adapt_options *o) {
  if (*rest == ':') {
    size_t size = strcspn(++rest, ",");
    append(o->spec, rest, size);
    p->target = o->spec;
    rest += size;
  }
  while (*rest == ',') {
    size_t size = strcspn(++rest, ",");
    PITH_TRY(take_piece(rest, size, p, o));
    rest += size;
  }
  return PITH_OK;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static pith_status read_number(const pith_adapt_options *o, const char *key, const char *text, double least,
                               double most, double *number) {
  char *end;
  if (!*text) {
    return PITH_OK;
  }
  double value = strtod(text, &end);
  PITH_REQUIRE(end != text && !*end && isfinite(value) && value >= least && value <= most, PITH_ERR_SPEC,
               "%s: %s=%s is not a number from %g to %g", o->text, key, text, least, most);
  *number = value;
  return PITH_OK;
}

static pith_status read_count(const pith_adapt_options *o, const char *key, const char *text, size_t least,
                              size_t *count) {
  double value = (double)*count;
  PITH_TRY(read_number(o, key, text, (double)least, COUNT_MOST, &value));
  PITH_REQUIRE(value == floor(value), PITH_ERR_SPEC, "%s: %s=%s is not a whole number", o->text, key, text);
  *count = (size_t)value;
  return PITH_OK;
}

/* The default of an option; all of them are options of lgreco. */
static double initial_of(const char *key) {
  const pith_param *option = lgreco_options;
  while (option->key && strcmp(option->key, key) != 0) {
    option++;
  }
  return option->initial ? strtod(option->initial, NULL) : 0;
}

static pith_status read_metric(pith_adapt_options *o, const char *text) {
  size_t i = 0;
  while (*text && pith__metric_names[i] && strcmp(pith__metric_names[i], text) != 0) {
    i++;
  }
  PITH_REQUIRE(pith__metric_names[i], PITH_ERR_SPEC, "%s: metric=%s is neither l2sq nor l2", o->text, text);
  o->metric = (pith_plan_metric)i;
  return PITH_OK;
}

static pith_status read_delayed(pith_adapt_options *o, const char *text) {
  double value = 1;
  PITH_TRY(read_number(o, "delayed", text, 0, 1, &value));
  PITH_REQUIRE(value == floor(value), PITH_ERR_SPEC, "%s: delayed=%s is neither 0 nor 1", o->text, text);
  o->delayed = value != 0;
  return PITH_OK;
}

/* Whether an option that was written is one of the kind. */
static pith_status check_option(const pith_adapt_options *o, const char *key, const char *text) {
  const pith_param *option = kinds[o->kind].options;
  while (*text && option->key && strcmp(option->key, key) != 0) {
    option++;
  }
  PITH_REQUIRE(!*text || option->key, PITH_ERR_SPEC, "%s: %s is no option of %s", o->text, key, kinds[o->kind].name);
  return PITH_OK;
}

static pith_status check_options(const pieces *p, const pith_adapt_options *o) {
  PITH_TRY(check_option(o, "metric", p->metric));
  PITH_TRY(check_option(o, "cap", p->cap));
  PITH_TRY(check_option(o, "tolerance", p->tolerance));
  PITH_TRY(check_option(o, "accumulate", p->accumulate));
  PITH_TRY(check_option(o, "start", p->start));
  PITH_TRY(check_option(o, "delayed", p->delayed));
  PITH_REQUIRE(!*p->tolerance || !*p->alpha, PITH_ERR_SPEC,
               "%s: alpha and tolerance both say what the budget is: give one of them", o->text);
  return PITH_OK;
}

static pith_status read_values(const pieces *p, pith_adapt_options *o) {
  o->period = (size_t)initial_of("period"), o->warmup = (size_t)initial_of("warmup");
  o->alpha = initial_of("alpha"), o->threshold = initial_of("threshold");
  o->floor = o->kind == PITH_ADAPT_LGRECO && strcmp(o->spec, PITH_MIX) != 0
                 ? initial_of("floor")
                 : 0; /* bytes of several families say little about each other */
  PITH_TRY(read_count(o, "period", p->period, PERIOD_LEAST, &o->period));
  PITH_TRY(read_count(o, "warmup", p->warmup, WARMUP_LEAST, &o->warmup));
  PITH_TRY(read_number(o, "alpha", p->alpha, 1e-6, 1e6, &o->alpha));
  PITH_TRY(read_number(o, "floor", p->floor, 0, 1, &o->floor));
  o->accumulate = 1;
  PITH_TRY(read_count(o, "accumulate", p->accumulate, 1, &o->accumulate));
  PITH_REQUIRE(o->accumulate <= ACCUMULATE_MOST, PITH_ERR_SPEC, "%s: accumulate is at most %d steps", o->text,
               ACCUMULATE_MOST);
  PITH_TRY(read_count(o, "start", p->start, 0, &o->start));
  PITH_TRY(read_number(o, "cap", p->cap, 1, 1e6, &o->cap));
  PITH_TRY(read_number(o, "tolerance", p->tolerance, 1e-9, 1, &o->tolerance));
  PITH_TRY(read_metric(o, p->metric));
  PITH_TRY(read_delayed(o, p->delayed));
  return read_number(o, "threshold", p->threshold, 1e-6, 1e6, &o->threshold);
}

/* A spec that layers could have, which loses something: in canonical form. */
static pith_status settle(const pith_adapt_options *o, const char *what, char *spec) {
  pith_codec *codec;
  pith_status status = pith_codec_create(spec, &codec);
  if (status != PITH_OK) {
    char reason[512];
    snprintf(reason, sizeof reason, "%s", pith_error());
    return pith_fail(status, "%s: the %s: %s", o->text, what, reason);
  }
  int moment = pith_codec_moment(codec, NULL), exact = codec->traits->exact,
      largest = codec->traits->largest && !codec->transform;
  memcpy(spec, codec->spec, PITH_SPEC_MAX);
  pith_codec_destroy(codec);
  PITH_REQUIRE(!moment, PITH_ERR_SPEC, "%s: the %s sends momentum, and adaptive specs choose specs for gradients",
               o->text, what);
  PITH_REQUIRE(!exact || !strcmp(what, "critical spec"), PITH_ERR_RANGE,
               "%s: the %s is " PITH_UNCOMPRESSED ", which loses nothing: there is nothing to share out", o->text,
               what);
  PITH_REQUIRE(o->kind != PITH_ADAPT_GLOBAL || largest, PITH_ERR_SPEC,
               "%s: global is for methods that send the largest values, as global:ef/topk:0.01", o->text);
  return PITH_OK;
}

/* ---- What fits together ------------------------------------------------------------------------------------------ */

static pith_status check_auto(pith_adapt_options *o) {
  PITH_REQUIRE(!*o->spec && !*o->critical && o->alpha == 1, PITH_ERR_SPEC,
               "%s: auto chooses specs by itself; its options are budget, delayed, period and warmup", o->text);
  if (!*o->budget) {
    return PITH_OK;
  }
  int left_out;
  PITH_TRY(settle(o, "budget", o->budget));
  PITH_TRY(pith__adapt_leaves_out(o, o->budget, &left_out));
  PITH_REQUIRE(!left_out, PITH_ERR_SPEC,
               "%s: gradients of %s arrive late, and delayed=0 leaves out what does: give another budget", o->text,
               o->budget);
  return PITH_OK;
}

static pith_status check_specs(pith_adapt_options *o) {
  int mix = !strcmp(o->spec, PITH_MIX);
  PITH_REQUIRE(*o->spec, PITH_ERR_SPEC, "%s: a spec is missing, as in %s", o->text,
               o->kind == PITH_ADAPT_ACCORDION ? "accordion:q:4,q:8"
               : o->kind == PITH_ADAPT_GLOBAL  ? "global:ef/topk:0.01"
               : o->kind == PITH_ADAPT_KMEANS  ? "kmeans:q:4"
                                               : "lgreco:q:4");
  PITH_REQUIRE(!mix || o->kind == PITH_ADAPT_LGRECO, PITH_ERR_SPEC, "%s: mix is for lgreco", o->text);
  PITH_REQUIRE(!mix || *o->budget, PITH_ERR_SPEC, "%s: mix needs a budget, as in lgreco:mix,budget=q:4", o->text);
  PITH_REQUIRE(o->kind != PITH_ADAPT_ACCORDION || *o->critical, PITH_ERR_SPEC,
               "%s: accordion needs two specs, the second for critical phases, as in accordion:q:4,q:8", o->text);
  PITH_REQUIRE(o->kind != PITH_ADAPT_ACCORDION || !*o->budget, PITH_ERR_SPEC, "%s: accordion has no budget", o->text);
  PITH_REQUIRE(o->kind == PITH_ADAPT_LGRECO || o->kind == PITH_ADAPT_ACCORDION || !*o->critical, PITH_ERR_SPEC,
               "%s: %s has no critical phases", o->text, kinds[o->kind].name);
  PITH_REQUIRE(o->cap == 0 || !*o->critical, PITH_ERR_SPEC,
               "%s: a cap is a multiple of one spec's strength, and there are two", o->text);
  if (!mix) {
    PITH_TRY(settle(o, "spec", o->spec));
  }
  if (!*o->budget) {
    memcpy(o->budget, o->spec, sizeof o->budget);
  }
  PITH_TRY(settle(o, "budget", o->budget));
  return *o->critical ? settle(o, "critical spec", o->critical) : PITH_OK;
}

pith_status pith__adapt_parse(const char *text, pith_adapt_options *o) {
  pieces p = {.target = NULL};
  memset(o, 0, sizeof *o);
  PITH_REQUIRE(text, PITH_ERR_ARGUMENT, "an adaptive spec is NULL");
  text += strspn(text, " \t\r\n");
  size_t size = strlen(text);
  while (size && isspace((unsigned char)text[size - 1])) {
    size--;
  }
  PITH_REQUIRE(size < sizeof o->text, PITH_ERR_SPEC, "an adaptive spec has more than %d characters", PITH_SPEC_MAX - 1);
  memcpy(o->text, text, size);
  int kind = kind_of(o->text);
  PITH_REQUIRE(kind >= 0, PITH_ERR_SPEC,
               "\"%s\" is no adaptive spec; there are auto, lgreco:…, kmeans:…, accordion:… and others: pith codecs",
               o->text);
  o->kind = (pith_adapt_kind)kind;
  PITH_TRY(cut(o->text + strlen(kinds[kind].name), &p, o));
  PITH_TRY(read_values(&p, o));
  PITH_TRY(check_options(&p, o));
  return o->kind == PITH_ADAPT_AUTO ? check_auto(o) : check_specs(o);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

pith_status pith_adapter_check(const char *spec) {
  pith_adapt_options *o = malloc(sizeof *o);
  PITH_REQUIRE(o, PITH_ERR_MEMORY, "no memory for an adaptive spec");
  pith_status status = pith__adapt_parse(spec, o);
  free(o);
  return status;
}

pith_status pith_adapter_option(const char *spec, const char *key, char *text, size_t size) {
  PITH_REQUIRE(key && text && size, PITH_ERR_ARGUMENT, "pith_adapter_option: a text or its size is missing");
  pith_adapt_options *o = malloc(sizeof *o);
  PITH_REQUIRE(o, PITH_ERR_MEMORY, "no memory for an adaptive spec");
  pith_status status = pith__adapt_parse(spec, o);
  const struct {
    const char *key, *text;
    double number;
  } known[] = {{"spec", o->spec, 0},
               {"budget", o->budget, 0},
               {"critical", o->critical, 0},
               {"period", NULL, (double)o->period},
               {"warmup", NULL, (double)o->warmup},
               {"alpha", NULL, o->alpha},
               {"threshold", NULL, o->threshold},
               {"floor", NULL, o->floor},
               {"metric", pith__metric_names[o->metric], 0},
               {"cap", NULL, o->cap},
               {"tolerance", NULL, o->tolerance},
               {"accumulate", NULL, (double)o->accumulate},
               {"start", NULL, (double)o->start},
               {"delayed", NULL, (double)o->delayed}};
  size_t at = 0, count = sizeof known / sizeof *known;
  while (at < count && strcmp(known[at].key, key) != 0) {
    at++;
  }
  if (status == PITH_OK && at == count) {
    status = pith_fail(PITH_ERR_ARGUMENT, "\"%s\" is not an option of adaptive specs", key);
  }
  if (status == PITH_OK && known[at].text) {
    snprintf(text, size, "%s", known[at].text);
  } else if (status == PITH_OK) {
    snprintf(text, size, "%.9g", known[at].number);
  }
  free(o);
  return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Plans: a spec for each layer. plan_file.c reads and writes them, make.c finds them. */
#include "solve/plan_object.h"

#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "codec/shortlist.h"
#include "profile/writer.h"
#include "solve/step_cost.h"

const char *const pith__metric_names[] = {"l2sq", "l2", NULL};

/* ---- Making ------------------------------------------------------------------------------------------------------ */

pith_status pith__plan_create(size_t count, pith_plan **plan) {
  pith_plan *made = calloc(1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for a plan");
  made->line = calloc(count + 1, sizeof *made->line);
  made->count = count;
  made->budget = -1;
  for (size_t i = 0; made->line && i < count; i++) {
    made->line[i].bytes = made->line[i].error = -1;
  }
  if (!made->line) {
    free(made);
    return pith_fail(PITH_ERR_MEMORY, "no memory for a plan of %zu layers", count);
  }
  *plan = made;
  return PITH_OK;
}

void pith_plan_destroy(pith_plan *plan) {
  if (!plan) {
    return;
  }
  for (size_t i = 0; i < plan->count; i++) {
    free(plan->line[i].name);
    free(plan->line[i].spec);
  }
  free(plan->line);
  free(plan->method);
  free(plan->objective);
  free(plan->reference);
  free(plan->note);
  free(plan->fallback);
  free(plan->rules);
  free(plan->text);
  free(plan);
}

pith_status pith__plan_put(char **field, const char *text) {
  char *copy = strdup(text);
  PITH_REQUIRE(copy, PITH_ERR_MEMORY, "no memory for a text of %zu characters", strlen(text));
  free(*field);
  *field = copy;
  return PITH_OK;
}

/* Checks a spec and makes it canonical. */
static pith_status settle_spec(char **spec, const char *where) {
  pith_codec *codec;
  pith_status status = pith_codec_create(*spec, &codec);
  if (status != PITH_OK) {
    return pith_fail(status, "%s: %s", where, pith_error());
  }
  status = pith__plan_put(spec, codec->spec);
  pith_codec_destroy(codec);
  return status;
}

static pith_status check_names(const pith_plan *plan) {
  const char **names = calloc(plan->count + 1, sizeof *names);
  PITH_REQUIRE(names, PITH_ERR_MEMORY, "no memory for names");
  for (size_t i = 0; i < plan->count; i++) {
    names[i] = plan->line[i].name;
  }
  pith_status status = pith__check_unique(names, plan->count);
  free(names);
  return status;
}

static pith_status write_rules(pith_plan *plan) {
  pith_writer w = {.text = NULL};
  for (size_t i = 0; i < plan->count; i++) {
    pith__write(&w, "%s=%s;", plan->line[i].name, plan->line[i].spec);
  }
  pith__write(&w, "*=%s", plan->fallback);
  return pith__writer_close(&w, &plan->rules);
}

pith_status pith__plan_finish(pith_plan *plan) {
  for (size_t i = 0; i < plan->count; i++) {
    pith_plan_line *line = &plan->line[i];
    PITH_REQUIRE(line->name && line->spec, PITH_ERR_CORRUPT, "layer %zu of the plan lacks a name or a spec", i + 1);
    PITH_TRY(pith__check_layer_name(line->name));
    PITH_TRY(settle_spec(&line->spec, line->name));
    PITH_TRY(pith__shape_count(line->name, line->shape, line->dimensions, &line->n));
    line->n = line->has_shape ? line->n : 0;
  }
  if (!plan->fallback) {
    PITH_TRY(pith__plan_put(&plan->fallback, PITH_UNCOMPRESSED));
  }
  PITH_TRY(settle_spec(&plan->fallback, "default"));
  PITH_TRY(check_names(plan));
  PITH_TRY(write_rules(plan));
  return pith__plan_write(plan);
}

/* Bytes, and the error by the metric. */
static pith_status price_line(pith_plan_line *line, pith_plan_metric metric, const pith_profile *p, size_t l,
                              size_t candidate) {
  PITH_TRY(pith_profile_get(p, l, candidate, &line->bytes, &line->error));
  line->error = pith__metric_error(metric, line->error);
  return PITH_OK;
}

static pith_status fill_line(pith_plan_line *line, pith_plan_metric metric, const pith_profile *p, size_t l,
                             size_t candidate) {
  const pith_profiled *layer = &p->layer[l];
  PITH_TRY(pith__plan_put(&line->name, layer->name));
  PITH_TRY(pith__plan_put(&line->spec, layer->fixed ? PITH_UNCOMPRESSED : p->codec[candidate]->spec));
  memcpy(line->shape, layer->shape, sizeof line->shape);
  line->dimensions = layer->dimensions;
  line->has_shape = 1;
  return price_line(line, metric, p, l, candidate);
}

static pith_status fill(pith_plan *plan, const pith_profile *p, const size_t *choice, const pith_plan_origin *origin) {
  plan->metric = origin->metric;
  plan->budget = origin->budget;
  for (size_t l = 0; l < p->layers; l++) {
    PITH_TRY(fill_line(&plan->line[l], plan->metric, p, l, choice[l]));
  }
  PITH_TRY(pith__plan_put(&plan->method, origin->method));
  PITH_TRY(pith__plan_put(&plan->objective, origin->objective));
  if (origin->reference) {
    PITH_TRY(pith__plan_put(&plan->reference, origin->reference));
  }
  return pith__plan_finish(plan);
}

pith_status pith__plan_from_choice(const pith_profile *p, const size_t *choice, const pith_plan_origin *origin,
                                   pith_plan **plan) {
  pith_plan *made;
  PITH_TRY(pith__plan_create(p->layers, &made));
  pith_status status = fill(made, p, choice, origin);
  if (status != PITH_OK) {
    pith_plan_destroy(made);
    return status;
  }
  *plan = made;
  return PITH_OK;
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

static double sum_of(const pith_plan *plan, int errors) {
  double sum = 0;
  for (size_t i = 0; i < plan->count; i++) {
    double part = errors ? plan->line[i].error : plan->line[i].bytes;
    if (part < 0) {
      return -1;
    }
    sum += part;
  }
  return sum;
}

static const char *or_empty(const char *text) { return text ? text : ""; }

pith_status pith_plan_info_get(const pith_plan *plan, pith_plan_info *info) {
  PITH_REQUIRE(plan && info, PITH_ERR_ARGUMENT, "pith_plan_info_get: plan or info is NULL");
  pith_plan_info found = {.method = or_empty(plan->method),
                          .objective = or_empty(plan->objective),
                          .reference = or_empty(plan->reference),
                          .note = or_empty(plan->note),
                          .fallback = plan->fallback,
                          .budget = plan->budget,
                          .bytes = sum_of(plan, 0),
                          .error = sum_of(plan, 1),
                          .layers = plan->count,
                          .metric = pith__metric_names[plan->metric]};
  return PITH_STRUCT_WRITE(pith_plan_info, &found, info);
}

pith_status pith_plan_layer_get(const pith_plan *plan, size_t index, pith_plan_layer *layer) {
  PITH_REQUIRE(plan && layer && index < plan->count, PITH_ERR_ARGUMENT, "pith_plan_layer_get: there is no layer %zu",
               index);
  const pith_plan_line *line = &plan->line[index];
  pith_plan_layer found = {.name = line->name,
                           .spec = line->spec,
                           .shape = line->shape,
                           .dimensions = line->dimensions,
                           .n = line->n,
                           .bytes = line->bytes,
                           .error = line->error};
  return PITH_STRUCT_WRITE(pith_plan_layer, &found, layer);
}

const char *pith_plan_rules(const pith_plan *plan) { return plan->rules; }

const char *pith_plan_text(const pith_plan *plan) { return plan->text; }

/* ---- Against a profile ------------------------------------------------------------------------------------------- */

static int same_shape(const pith_plan_line *line, const size_t *shape, size_t dimensions) {
  return !line->has_shape ||
         (line->dimensions == dimensions && (!dimensions || !memcmp(line->shape, shape, dimensions * sizeof *shape)));
}

static const pith_plan_line *find_line(const pith_plan *plan, const char *name, size_t guess) {
  if (guess < plan->count && !strcmp(plan->line[guess].name, name)) {
    return &plan->line[guess];
  }
  for (size_t i = 0; i < plan->count; i++) {
    if (!strcmp(plan->line[i].name, name)) {
      return &plan->line[i];
    }
  }
  return NULL;
}

static pith_status find_candidate(const pith_profile *p, const char *layer, const char *spec, size_t *candidate) {
  for (size_t c = 0; c < p->candidates; c++) { /* both are canonical */
    if (!strcmp(p->codec[c]->spec, spec)) {
      *candidate = c;
      return PITH_OK;
    }
  }
  return pith_fail(PITH_ERR_STATE, "layer %s: %s is none of the %zu candidates of these statistics", layer, spec,
                   p->candidates);
}

pith_status pith__plan_to_choice(const pith_plan *plan, const pith_profile *p, size_t *choice) {
  PITH_REQUIRE(plan->count <= p->layers, PITH_ERR_MISMATCH,
               "the plan is for another model: it has %zu layers, the statistics %zu", plan->count, p->layers);
  for (size_t l = 0; l < p->layers; l++) {
    const pith_profiled *layer = &p->layer[l];
    const pith_plan_line *line = find_line(plan, layer->name, l);
    PITH_REQUIRE(line, PITH_ERR_MISMATCH, "the plan is for another model: it has no layer %s", layer->name);
    PITH_REQUIRE(same_shape(line, layer->shape, layer->dimensions), PITH_ERR_MISMATCH,
                 "the plan is for another model: layer %s has another shape in the statistics", layer->name);
    choice[l] = 0;
    if (!layer->fixed) {
      PITH_TRY(find_candidate(p, layer->name, line->spec, &choice[l]));
    } else {
      PITH_REQUIRE(!strcmp(line->spec, PITH_UNCOMPRESSED), PITH_ERR_STATE,
                   "layer %s: %s was not measured on a layer of this size", layer->name, line->spec);
    }
  }
  return PITH_OK;
}

static pith_status choice_of(const pith_plan *plan, const pith_profile *p, size_t **choice) {
  size_t *made = calloc(p->layers + 1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for %zu layers", p->layers);
  pith_status status = pith__plan_to_choice(plan, p, made);
  if (status != PITH_OK) {
    free(made);
    return status;
  }
  *choice = made;
  return PITH_OK;
}

pith_status pith_plan_price(pith_plan *plan, const pith_profile *p) {
  size_t *choice;
  PITH_REQUIRE(plan && p, PITH_ERR_ARGUMENT, "pith_plan_price: plan or profile is NULL");
  PITH_TRY(pith__profile_complete(p));
  PITH_TRY(choice_of(plan, p, &choice));
  for (size_t l = 0; l < p->layers; l++) {
    pith_plan_line *line = (pith_plan_line *)find_line(plan, p->layer[l].name, l);
    price_line(line, plan->metric, p, l, choice[l]); /* complete, so it cannot fail */
  }
  free(choice);
  return pith__plan_write(plan);
}

pith_status pith_plan_seconds(const pith_plan *plan, const pith_profile *p, const pith_plan_cost *cost,
                              double *seconds) {
  size_t *choice;
  PITH_REQUIRE(plan && p && seconds, PITH_ERR_ARGUMENT, "pith_plan_seconds: plan, profile or seconds is NULL");
  PITH_TRY(pith__profile_complete(p));
  PITH_TRY(choice_of(plan, p, &choice));
  pith_status status = pith__step_seconds(p, choice, cost, seconds);
  free(choice);
  return status;
}

/* The sum of errors by another plan's metric; negative: not known. */
static double error_by(const pith_plan *plan, pith_plan_metric metric) {
  double sum = 0;
  for (size_t i = 0; i < plan->count; i++) {
    double error = plan->line[i].error;
    if (error < 0) {
      return -1;
    }
    sum += plan->metric == metric ? error : metric == PITH_PLAN_L2 ? sqrt(error) : error * error;
  }
  return sum;
}

int pith_plan_gains(const pith_plan *old, const pith_plan *fresh, const pith_profile *p, const pith_plan_cost *cost,
                    double share) {
  double before = sum_of(old, 0), after = sum_of(fresh, 0), error = error_by(old, fresh->metric);
  if (cost &&
      (pith_plan_seconds(old, p, cost, &before) != PITH_OK || pith_plan_seconds(fresh, p, cost, &after) != PITH_OK)) {
    return 1; /* old is none of this model, or has a spec that is not measured any more */
  }
  int unknown = before < 0 || error < 0;
  return unknown || after < before * (1 - share) || (fresh->budget >= 0 && error > fresh->budget * (1 + share));
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The adapter: the object, and what can be asked of it. adapt.h lists the other files. */
#include "adapt/adapt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { CANDIDATES_TEXT = 16384, PROBE_VALUES = 1 << 15 };

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static pith_status make_profiles(pith_adapter *a, const pith_layer *layers) {
  char *text = malloc(CANDIDATES_TEXT);
  PITH_REQUIRE(text, PITH_ERR_MEMORY, "no memory for candidates");
  pith_status status = pith__adapt_candidates(&a->options, a->ranks, text, CANDIDATES_TEXT);
  pith_profile **profile[] = {&a->window, &a->last, &a->before};
  for (size_t i = 0; i < 3 && status == PITH_OK; i++) {
    status = pith_profile_create(layers, a->layers, text, profile[i]);
  }
  free(text);
  return status == PITH_OK ? pith__profile_find(a->window, PITH_UNCOMPRESSED, &a->none) : status;
}

/* auto learns the bandwidth from the exchange of the sums, and needs enough of them. */
static pith_status make_rooms(pith_adapter *a) {
  size_t count, least = a->options.kind == PITH_ADAPT_AUTO ? PROBE_VALUES : PITH_MEASURES;
  pith_profile_values(a->window, &count);
  a->room = pith__most(count, least);
  a->numbers = calloc(a->room, sizeof *a->numbers);
  a->place = calloc(a->layers + 1, sizeof *a->place);
  a->sum = calloc(a->layers + 1, sizeof *a->sum);
  a->summed = calloc(a->layers + 1, sizeof *a->summed);
  a->in_force = malloc(a->layers + 1);
  a->plans = malloc(PITH_PLANS * a->layers + 1);
  a->made.choice = malloc(PITH_PLANS * a->layers + 1);
  PITH_REQUIRE(a->numbers && a->place && a->sum && a->summed && a->in_force && a->plans && a->made.choice,
               PITH_ERR_MEMORY, "no memory to plan %zu layers", a->layers);
  memset(a->in_force, (int)a->none, a->layers);
  memset(a->plans, (int)a->none, PITH_PLANS * a->layers);
  memset(a->made.choice, (int)a->none, PITH_PLANS * a->layers);
  return PITH_OK;
}

static void place_layers(pith_adapter *a) {
  double total = 0, before = 0;
  for (size_t l = 0; l < a->layers; l++) {
    total += a->window->layer[l].fixed ? 0 : (double)a->window->layer[l].n;
  }
  for (size_t l = 0; l < a->layers; l++) {
    double n = a->window->layer[l].fixed ? 0 : (double)a->window->layer[l].n;
    a->place[l] = total > 0 ? (before + n / 2) / total : 0;
    before += n;
    a->largest = n > (double)a->window->layer[a->largest].n || a->window->layer[a->largest].fixed ? l : a->largest;
  }
  a->idle = a->ranks < 2 || total == 0;
}

/* Until the first plan layers have the spec whose error is the budget: exact steps can cost more than the plans of a
 * whole run save. auto needs to know how long exact ones take. */
static pith_status begin_warm_up(pith_adapter *a) {
  const pith_adapt_options *o = &a->options;
  if (a->idle || o->kind == PITH_ADAPT_AUTO) {
    return PITH_OK;
  }
  size_t candidate;
  PITH_TRY(pith__profile_find(a->window, *o->critical ? o->critical : o->budget, &candidate));
  for (size_t l = 0; l < a->layers; l++) {
    a->in_force[l] = a->window->layer[l].fixed ? (uint8_t)a->none : (uint8_t)candidate;
  }
  return PITH_OK;
}

static pith_status read_environment(pith_adapter *a) {
  const char *path = a->rank == 0 ? getenv("PITH_PROFILE") : NULL;
  if (path && *path) {
    a->profile_path = strdup(path);
    PITH_REQUIRE(a->profile_path, PITH_ERR_MEMORY, "no memory for a file name");
  }
  return PITH_OK;
}

static pith_status build(pith_adapter *a, const char *spec, const pith_layer *layers) {
  PITH_TRY(pith__adapt_parse(spec, &a->options));
  PITH_TRY(make_profiles(a, layers));
  PITH_TRY(make_rooms(a));
  PITH_TRY(read_environment(a));
  place_layers(a);
  PITH_TRY(begin_warm_up(a));
  a->s.target = pith__most(a->options.warmup, a->options.start);
  pith__adapt_describe(a);
  return PITH_OK;
}

pith_status pith_adapter_create(const char *spec, const pith_layer *layers, size_t count, int rank, int ranks,
                                uint64_t seed, pith_adapter **adapter) {
  PITH_REQUIRE(spec && (layers || !count) && adapter, PITH_ERR_ARGUMENT,
               "pith_adapter_create: spec, layers or adapter is NULL");
  PITH_REQUIRE(ranks > 0 && rank >= 0 && rank < ranks, PITH_ERR_ARGUMENT,
               "pith_adapter_create: there is no rank %d of %d", rank, ranks);
  pith_adapter *a = calloc(1, sizeof *a);
  PITH_REQUIRE(a, PITH_ERR_MEMORY, "no memory for an adapter");
  a->layers = count;
  a->rank = rank;
  a->ranks = ranks;
  a->seed = seed;
  pith__worker_init(&a->worker);
  pith_status status = build(a, spec, layers);
  if (status != PITH_OK) {
    pith_adapter_destroy(a);
    return status;
  }
  *adapter = a;
  return PITH_OK;
}

pith_status pith__adapter_of_parts(pith_adapter *a, int of_shards) {
  pith_profile *profiles[] = {a->window, a->last, a->before};
  for (size_t i = 0; i < 3; i++) {
    pith__profile_take_small(profiles[i]);
  }
  a->of_shards = of_shards;
  place_layers(a);
  return begin_warm_up(a);
}

void pith__adapter_measure_by(pith_adapter *a, pith_measurer *measurer) {
  a->measurer = measurer;
  a->window->space = measurer->space;
}

void pith_adapter_destroy(pith_adapter *a) {
  if (!a) {
    return;
  }
  pith__worker_fini(a);
  for (size_t l = 0; a->sum && l < a->layers; l++) {
    pith__space_release(a->window->space, a->sum[l]);
  }
  pith_profile_destroy(a->window);
  pith_profile_destroy(a->last);
  pith_profile_destroy(a->before);
  if (a->measurer) {
    a->measurer->destroy(a->measurer);
  }
  free(a->sum);
  free(a->summed);
  free(a->place);
  free(a->in_force);
  free(a->plans);
  free(a->made.choice);
  free(a->numbers);
  free(a->profile_path);
  free(a);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

/* Why layers have the specs they have. */
void pith__adapt_describe(pith_adapter *a) {
  const char *text = a->options.text;
  size_t size = sizeof a->reason;
  if (a->idle) {
    snprintf(a->reason, size, "%s, one rank", text);
  } else if (!a->s.planned) {
    snprintf(a->reason, size, "%s, warm-up", text);
  } else if (a->options.kind != PITH_ADAPT_AUTO) {
    snprintf(a->reason, size, "%s, plan of step %llu", text, (unsigned long long)a->s.changed);
  } else if (a->s.trying) {
    snprintf(a->reason, size, "%s, trial of %s", text, pith__shortlist_plans[a->s.slot].name);
  } else {
    snprintf(a->reason, size, "%s, %s since step %llu", text, pith__shortlist_plans[a->s.slot].name,
             (unsigned long long)a->s.changed);
  }
}

const char *pith_adapter_spec(const pith_adapter *a, size_t layer) {
  return a && layer < a->layers ? a->window->codec[a->in_force[layer]]->spec : NULL;
}

const char *pith_adapter_reason(const pith_adapter *a, size_t layer) {
  if (!a || layer >= a->layers) {
    return NULL;
  }
  const pith_profiled *l = &a->window->layer[layer];
  return !l->fixed ? a->reason : l->dimensions <= 1 ? "one dimension" : a->window->small.text;
}

const char *pith_adapter_candidate(const pith_adapter *a, size_t index) {
  return pith_profile_candidate(a->window, index);
}

uint64_t pith_adapter_step_number(const pith_adapter *a) { return a->s.step; }
uint64_t pith_adapter_next_plan(const pith_adapter *a) { return a->s.target; }

pith_status pith_adapter_profile(pith_adapter *a, const char *path) {
  PITH_REQUIRE(a && path, PITH_ERR_ARGUMENT, "pith_adapter_profile: adapter or path is NULL");
  PITH_TRY(pith__worker_wait(a));
  PITH_REQUIRE(a->s.planned, PITH_ERR_STATE, "there are no statistics yet: the first plan is for step %llu",
               (unsigned long long)a->s.target);
  return pith_profile_save(a->last, path);
}

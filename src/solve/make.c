/* SPDX-License-Identifier: Apache-2.0 */
/* From a profile and a request to a plan: which candidates may be used, the budget, and the method that decides. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "codec/shortlist.h"
#include "solve/lgreco.h"
#include "solve/methods.h"
#include "solve/plan_object.h"
#include "solve/step_cost.h"

#define THRESHOLD 0.5
#define INFEASIBLE 1e18

static const char *const method_names[] = {"lgreco", "kmeans", "accordion", "uniform", "cgxkmeans",
                                           "linear", "best",   "bayes",     "global"};
static const char *const objective_names[] = {"bytes", "time"};

typedef struct maker {
  const pith_profile *p;
  pith_plan_request r;
  size_t option[PITH_CANDIDATES_MAX], options; /* candidates that may be used */
  double budget;
  size_t *choice;    /* of candidates, for each layer */
  size_t *reference; /* the choice that defines the budget */
  int has_reference;
} maker;

/* ---- Families ---------------------------------------------------------------------------------------------------- */

/* Takes the next name off a list with commas; an empty one means the end. */
static pith_text next_family(const char **list) {
  pith_text name = {*list, strcspn(*list, ",")};
  *list += name.size + ((*list)[name.size] == ',');
  return name;
}

static int is_listed(const char *families, pith_text family) {
  while (*families) {
    if (pith__text_same(next_family(&families), family)) {
      return 1;
    }
  }
  return 0;
}

static int has_family(const pith_profile *p, pith_text name) {
  for (size_t c = 0; c < p->candidates; c++) {
    if (pith__text_same(pith__family_of(p->codec[c]), name)) {
      return 1;
    }
  }
  return 0;
}

static pith_status check_families(const maker *m, const char *families) {
  PITH_REQUIRE(*families, PITH_ERR_ARGUMENT, "there is no family; name some, as in q,topk, or mix for all");
  while (*families) {
    pith_text name = next_family(&families);
    PITH_REQUIRE(has_family(m->p, name), PITH_ERR_STATE, "no candidate of these statistics is of the family \"%.*s\"",
                 (int)name.size, name.at);
  }
  return PITH_OK;
}

/* The families of the specs that were given: lgreco of q:4 plans with q alone. */
static pith_status is_family_of_given(const maker *m, size_t candidate, int *found) {
  const char *given[] = {m->r.uniform, m->r.critical, m->r.otherwise};
  *found = !given[0] && !given[1] && !given[2];
  for (size_t i = 0; i < 3 && !*found; i++) {
    size_t c;
    if (given[i]) {
      PITH_TRY(pith__profile_find(m->p, given[i], &c));
      *found = pith__text_same(pith__family_of(m->p->codec[c]), pith__family_of(m->p->codec[candidate]));
    }
  }
  return PITH_OK;
}

static pith_status choose_options(maker *m) {
  const char *families = m->r.families;
  int all = families && !strcmp(families, PITH_MIX);
  if (families && !all) {
    PITH_TRY(check_families(m, families));
  }
  for (size_t c = 0; c < m->p->candidates; c++) {
    int wanted = all || (families && is_listed(families, pith__family_of(m->p->codec[c])));
    if (!families) {
      PITH_TRY(is_family_of_given(m, c, &wanted));
    }
    if (wanted) {
      m->option[m->options++] = c;
    }
  }
  return PITH_OK;
}

/* ---- Budget ------------------------------------------------------------------------------------------------------ */

static pith_assignment assignment_of(const maker *m) {
  return (pith_assignment){m->p, m->option, m->options, m->r.metric, m->budget};
}

static double error_of(const maker *m, const size_t *choice) {
  pith_assignment a = assignment_of(m);
  double bytes, error;
  pith__assignment_total(&a, choice, &bytes, &error);
  return error;
}

static double bytes_of(const maker *m, const size_t *choice) {
  pith_assignment a = assignment_of(m);
  double bytes, error;
  pith__assignment_total(&a, choice, &bytes, &error);
  return bytes;
}

static pith_status choose_accordion(const maker *m, size_t *choice) {
  size_t critical, otherwise;
  PITH_REQUIRE(m->r.critical && m->r.otherwise, PITH_ERR_ARGUMENT,
               "accordion needs two specs: one for critical phases, one for all others");
  PITH_TRY(pith__profile_find(m->p, m->r.critical, &critical));
  PITH_TRY(pith__profile_find(m->p, m->r.otherwise, &otherwise));
  double threshold = m->r.threshold > 0 ? m->r.threshold : THRESHOLD;
  return pith__accordion_choose(m->p, m->r.before, threshold, critical, otherwise, choice);
}

/* A step of gradient descent with a gradient that is off by e makes at least 1 − ‖e‖²/‖g‖² of its progress. */
static double tolerated(const maker *m) {
  double norm = 0;
  for (size_t l = 0; l < m->p->layers; l++) {
    pith_profile_layer info = PITH_PROFILE_LAYER_INIT;
    pith_profile_layer_get(m->p, l, &info);
    norm += info.fixed ? 0 : info.norm;
  }
  return pith__metric_error(m->r.metric, m->r.tolerance * norm);
}

static pith_status find_budget(maker *m) {
  double alpha = m->r.alpha != 0 ? m->r.alpha : 1;
  PITH_REQUIRE(isfinite(alpha) && alpha > 0, PITH_ERR_RANGE, "alpha is %g; it is a factor above 0", alpha);
  m->has_reference = 1;
  if (m->r.critical || m->r.method == PITH_PLAN_ACCORDION) {
    PITH_TRY(choose_accordion(m, m->reference));
  } else if (m->r.uniform) {
    size_t candidate;
    PITH_TRY(pith__profile_find(m->p, m->r.uniform, &candidate));
    for (size_t l = 0; l < m->p->layers; l++) {
      m->reference[l] = candidate;
    }
  } else {
    PITH_REQUIRE(isfinite(m->r.budget) && m->r.budget >= 0, PITH_ERR_RANGE,
                 "the budget is %g; it is a sum of errors, not below 0", m->r.budget);
    m->has_reference = 0;
    m->budget = m->r.tolerance > 0 ? tolerated(m) : m->r.budget;
    return PITH_OK;
  }
  m->budget = m->r.tolerance > 0 ? tolerated(m) : alpha * error_of(m, m->reference);
  return PITH_OK;
}

/* ---- Cap --------------------------------------------------------------------------------------------------------- */

/* Whether these options can keep the budget. */
static int can_keep_budget(const maker *m, const size_t *option, size_t options) {
  double sum = 0;
  for (size_t l = 0; l < m->p->layers; l++) {
    double least = INFINITY;
    for (size_t o = 0; o < options; o++) {
      double bytes, error;
      pith_profile_get(m->p, l, option[o], &bytes, &error);
      least = fmin(least, pith__metric_error(m->r.metric, error));
    }
    sum += least;
  }
  return sum <= m->budget;
}

/* A candidate of the uniform spec's family with more than the cap times its strength. */
static int is_above_cap(const maker *m, const pith_codec *uniform, const pith_codec *codec) {
  int same = pith__text_same(pith__family_of(codec), pith__family_of(uniform)) && codec->strength == uniform->strength;
  return same && pith__strength_of(codec) > m->r.cap * pith__strength_of(uniform) * (1 + 1e-9);
}

static pith_status apply_cap(maker *m) {
  size_t uniform, kept[PITH_CANDIDATES_MAX], count = 0, below[PITH_CANDIDATES_MAX], lossy = 0;
  PITH_REQUIRE(m->r.uniform, PITH_ERR_ARGUMENT, "a cap is a multiple of the uniform spec's strength: which spec?");
  PITH_TRY(pith__profile_find(m->p, m->r.uniform, &uniform));
  for (size_t o = 0; o < m->options; o++) {
    const pith_codec *codec = m->p->codec[m->option[o]];
    if (!is_above_cap(m, m->p->codec[uniform], codec)) {
      kept[count++] = m->option[o];
      if (!codec->traits->exact) {
        below[lossy++] = m->option[o];
      }
    }
  }
  int without = can_keep_budget(m, below, lossy);
  m->options = without ? lossy : count;
  memcpy(m->option, without ? below : kept, m->options * sizeof *kept);
  return PITH_OK;
}

/* ---- The programme ----------------------------------------------------------------------------------------------- */

/* Its tables: rows are layers, in the order of readiness where time counts. */
typedef struct tables {
  double *cost, *error;
  size_t *start, *choice;
} tables;

static void tables_fini(tables *t) {
  free(t->cost);
  free(t->error);
  free(t->start);
  free(t->choice);
}

static pith_status tables_init(tables *t, size_t layers, size_t options) {
  size_t cells = layers * options + 1;
  *t = (tables){calloc(cells, sizeof *t->cost), calloc(cells, sizeof *t->error), calloc(layers + 1, sizeof *t->start),
                calloc(layers + 1, sizeof *t->choice)};
  if (!t->cost || !t->error || !t->start || !t->choice) {
    tables_fini(t);
    return pith_fail(PITH_ERR_MEMORY, "no memory to plan %zu layers", layers);
  }
  return PITH_OK;
}

/* Whether an option that loses something gives a layer less than its share. */
static int is_below_floor(const maker *m, size_t layer, size_t option, double bytes, double error) {
  double least = 0, lost;
  if (m->r.floor > 0 && error > 0 && m->has_reference && m->option[option] != m->reference[layer]) {
    pith_profile_get(m->p, layer, m->reference[layer], &least, &lost);
  }
  return bytes < m->r.floor * least;
}

/* Fills the tables. Returns whether the reference is among the options. */
static int fill_tables(const maker *m, const pith_step *step, tables *t) {
  int time = m->r.objective == PITH_PLAN_TIME, has_start = m->has_reference;
  for (size_t i = 0; i < m->p->layers; i++) {
    size_t l = time ? step->order[i] : i;
    int found = m->p->layer[l].fixed;
    for (size_t o = 0; o < m->options; o++) {
      double *cost = &t->cost[i * m->options + o], *error = &t->error[i * m->options + o];
      pith_profile_get(m->p, l, m->option[o], cost, error);
      *error = pith__metric_error(m->r.metric, *error);
      if (is_below_floor(m, l, o, *cost, *error)) {
        *cost = *error = INFEASIBLE; /* any other option dominates it */
        continue;
      }
      *cost = time ? pith__step_service(step, m->p, l, m->option[o]) : *cost;
      if (m->has_reference && m->option[o] == m->reference[l]) {
        t->start[i] = o;
        found = 1;
      }
    }
    has_start &= found;
  }
  return has_start;
}

static pith_status run_programme(maker *m, const pith_step *step, tables *t) {
  int time = m->r.objective == PITH_PLAN_TIME, has_start = fill_tables(m, step, t);
  pith_problem problem = {.layers = m->p->layers,
                          .options = m->options,
                          .cost = t->cost,
                          .error = t->error,
                          .budget = m->budget,
                          .ready = time ? step->ready : NULL,
                          .start = has_start ? t->start : NULL};
  PITH_TRY(pith__lgreco_solve(&problem, t->choice));
  for (size_t i = 0; i < m->p->layers; i++) {
    m->choice[time ? step->order[i] : i] = m->option[t->choice[i]];
  }
  return PITH_OK;
}

static pith_status choose_lgreco(maker *m) {
  tables t;
  pith_step step;
  PITH_TRY(pith__step_init(&step, m->p, m->r.cost));
  pith_status status = tables_init(&t, m->p->layers, m->options);
  if (status == PITH_OK) {
    status = run_programme(m, &step, &t);
    tables_fini(&t);
  }
  pith__step_fini(&step);
  return status;
}

/* Assigners follow one rule, which can be far off for small models: the reference is taken where it is better, and
 * where only rounding speaks against it. */
static pith_status choose_otherwise(maker *m) {
  pith_assignment a = assignment_of(m);
  switch (m->r.method) {
    case PITH_PLAN_LINEAR:
      PITH_TRY(pith__linear_choose(&a, m->choice));
      break;
    case PITH_PLAN_BEST:
      PITH_TRY(pith__best_choose(&a, m->choice));
      break;
    case PITH_PLAN_BAYES:
      PITH_TRY(pith__bayes_choose(&a, m->choice));
      break;
    case PITH_PLAN_GLOBAL:
      PITH_TRY(pith__global_choose(&a, m->choice));
      break;
    default:
      PITH_TRY(pith__kmeans_choose(&a, m->r.method == PITH_PLAN_CGX, m->choice));
  }
  double error = error_of(m, m->choice);
  if (m->has_reference && (error > m->budget || bytes_of(m, m->choice) > bytes_of(m, m->reference)) &&
      error_of(m, m->reference) <= m->budget) {
    memcpy(m->choice, m->reference, m->p->layers * sizeof *m->choice);
    error = m->budget;
  }
  PITH_REQUIRE(error <= m->budget, PITH_ERR_RANGE,
               "the budget cannot be kept: it is an error of %.6g, and the least that %s can do is %.6g", m->budget,
               method_names[m->r.method], error);
  return PITH_OK;
}

/* ---- Requests ---------------------------------------------------------------------------------------------------- */

static pith_status read_request(const pith_plan_request *given, pith_plan_request *r) {
  *r = (pith_plan_request)PITH_PLAN_REQUEST_INIT;
  PITH_TRY(PITH_STRUCT_READ(pith_plan_request, given, r));
  PITH_REQUIRE((unsigned)r->method <= PITH_PLAN_GLOBAL && (unsigned)r->objective <= PITH_PLAN_TIME &&
                   (unsigned)r->metric <= PITH_PLAN_L2,
               PITH_ERR_ARGUMENT, "there is no such method, objective or metric of planning");
  PITH_REQUIRE(r->method != PITH_PLAN_UNIFORM || r->uniform, PITH_ERR_ARGUMENT, "a uniform plan needs a spec");
  PITH_REQUIRE(r->floor >= 0 && r->floor <= 1, PITH_ERR_ARGUMENT, "the floor of a plan is a share from 0 to 1, not %g",
               r->floor);
  PITH_REQUIRE(r->cap == 0 || (isfinite(r->cap) && r->cap >= 1), PITH_ERR_ARGUMENT,
               "the cap of a plan is a factor of at least 1, not %g", r->cap);
  PITH_REQUIRE(r->tolerance >= 0 && r->tolerance <= 1, PITH_ERR_ARGUMENT,
               "a tolerated loss is a share from 0 to 1, not %g", r->tolerance);
  PITH_REQUIRE(r->tolerance == 0 || r->alpha == 0 || r->alpha == 1, PITH_ERR_ARGUMENT,
               "alpha and a tolerated loss both say what the budget is: give one of them");
  PITH_REQUIRE(r->objective == PITH_PLAN_BYTES || r->method == PITH_PLAN_LGRECO, PITH_ERR_ARGUMENT,
               "only lgreco plans for time; %s counts bytes", method_names[r->method]);
  return PITH_OK;
}

static pith_status choose(maker *m) {
  PITH_TRY(find_budget(m));
  if (m->r.method == PITH_PLAN_ACCORDION || m->r.method == PITH_PLAN_UNIFORM) {
    memcpy(m->choice, m->reference, m->p->layers * sizeof *m->choice);
    return PITH_OK;
  }
  PITH_TRY(choose_options(m));
  PITH_TRY(m->r.cap > 0 ? apply_cap(m) : PITH_OK);
  return m->r.method == PITH_PLAN_LGRECO ? choose_lgreco(m) : choose_otherwise(m);
}

static pith_status make(maker *m, pith_plan **plan) {
  PITH_TRY(pith__profile_complete(m->p));
  PITH_TRY(choose(m));
  pith_plan_origin origin = {method_names[m->r.method], objective_names[m->r.objective], m->r.uniform, m->r.metric,
                             m->budget};
  return pith__plan_from_choice(m->p, m->choice, &origin, plan);
}

pith_status pith_plan_make(const pith_profile *profile, const pith_plan_request *request, pith_plan **plan) {
  PITH_REQUIRE(profile && request && plan, PITH_ERR_ARGUMENT, "pith_plan_make: profile, request or plan is NULL");
  maker m = {.p = profile};
  PITH_TRY(read_request(request, &m.r));
  m.choice = calloc(profile->layers + 1, sizeof *m.choice);
  m.reference = calloc(profile->layers + 1, sizeof *m.reference);
  pith_status status = PITH_ERR_MEMORY;
  if (m.choice && m.reference) {
    status = make(&m, plan);
  } else {
    pith_fail(status, "no memory to plan %zu layers", profile->layers);
  }
  free(m.choice);
  free(m.reference);
  return status;
}

pith_status pith_plan_uniform(const pith_profile *profile, const char *spec, pith_plan **plan) {
  PITH_REQUIRE(spec, PITH_ERR_ARGUMENT, "pith_plan_uniform: spec is NULL");
  return pith_plan_make(
      profile, &(pith_plan_request){.size = sizeof(pith_plan_request), .method = PITH_PLAN_UNIFORM, .uniform = spec},
      plan);
}

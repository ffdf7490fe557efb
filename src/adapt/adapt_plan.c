/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From sums over all ranks to plans. Lgreco, kmeans and accordion have one; auto has its eleven candidates, each with
 * the time that a step would take. Runs in the adapter's thread, on numbers that are the same on all ranks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/log.h"
#include "solve/plan_object.h"

#define GAIN 0.05                     /* a plan that gains less does not replace the one in force */
#define DOUBLINGS 64                  /* steps in which the bandwidth is raised, … */
#define STEP 1.1892071150027210667    /* … four to a doubling */
#define PROBE_BYTES (8.0 * (1 << 15)) /* the exchange of the sums has at least these */

/* ---- Cost -------------------------------------------------------------------------------------------------------- */

/* Seconds for a value, by the spec of its family that was timed. */
static double codec_seconds(const pith_codec *codec, const pith_measures *m) {
  for (size_t k = 0; k < PITH_SHORTLIST_TIMED; k++) {
    if (pith__text_same(pith__family_of(codec), pith__family_in(pith__shortlist_timed[k]))) {
      return m->codec[k] * (codec->traits->cost ? codec->traits->cost(codec->args) : 1);
    }
  }
  return 0;
}

/* The exchange that was seen cannot have been faster than the link: where the timed one says so, it was disturbed. The
 * bandwidth at which the plan in force takes as long as it did, if that is more. */
static pith_status raise_bandwidth(const pith_adapter *a, const pith_plan *in_force, pith_plan_cost *cost) {
  pith_plan_cost tried = *cost;
  for (int i = 0; i < DOUBLINGS; i++, tried.bandwidth *= STEP) {
    double seconds;
    PITH_TRY(pith_plan_seconds(in_force, a->last, &tried, &seconds));
    if (seconds <= a->s.measures.span) {
      break;
    }
    cost->bandwidth = tried.bandwidth;
  }
  return PITH_OK;
}

/* The model is that of an allreduce, in which a rank sends 2 · (ranks − 1) / ranks of a layer. Of shards it sends
 * ranks − 1, and encodes one for each owner. */
static pith_plan_cost cost_of(const pith_adapter *a, double *codec) {
  const pith_measures *m = &a->s.measures;
  double encoded = a->of_shards ? a->ranks : 1, slower = a->of_shards ? a->ranks / 2.0 : 1;
  double values = (double)(a->last->layers * a->last->stride) * sizeof(double), share = (a->ranks - 1.0) / a->ranks;
  double sent = 2 * share * fmax(values, PROBE_BYTES), seconds = fmax(m->probe - m->latency, m->probe / 4);
  for (size_t c = 0; c < a->last->candidates; c++) {
    codec[c] = encoded * codec_seconds(a->last->codec[c], m);
  }
  return (pith_plan_cost){.size = sizeof(pith_plan_cost),
                          .ranks = (uint32_t)a->ranks,
                          .latency = m->latency,
                          .bandwidth = seconds > 0 ? sent / seconds / slower : 0,
                          .compute = fmax(0, m->span - m->waiting),
                          .codec = codec};
}

/* ---- Making ------------------------------------------------------------------------------------------------------ */

static uint8_t *choice_of(const pith_adapter *a, size_t index) { return a->made.choice + index * a->layers; }

static const pith_plan_origin unnamed = {.method = "", .objective = "", .budget = -1};

/* A plan of candidates, as one that can be priced and compared. */
static pith_status plan_in_force(const pith_adapter *a, pith_plan **plan) {
  size_t *choice = calloc(a->layers + 1, sizeof *choice);
  PITH_REQUIRE(choice, PITH_ERR_MEMORY, "no memory to compare plans");
  for (size_t l = 0; l < a->layers; l++) {
    choice[l] = a->in_force[l];
  }
  pith_status status = pith__plan_from_choice(a->last, choice, &unnamed, plan);
  free(choice);
  return status;
}

/* The plan in force stays where a new one of its kind gains too little. */
static pith_status keep_or_replace(const pith_adapter *a, size_t index, const pith_plan *fresh,
                                   const pith_plan_cost *cost) {
  pith_plan *old;
  PITH_TRY(plan_in_force(a, &old));
  int gains = pith_plan_gains(old, fresh, a->last, cost, GAIN);
  pith_plan_destroy(old);
  if (!gains) {
    memcpy(choice_of(a, index), a->in_force, a->layers);
  }
  return PITH_OK;
}

static pith_status write_choice(const pith_adapter *a, size_t index, const pith_plan *plan) {
  size_t *choice = calloc(a->layers + 1, sizeof *choice);
  PITH_REQUIRE(choice, PITH_ERR_MEMORY, "no memory for a plan");
  pith_status status = pith__plan_to_choice(plan, a->last, choice);
  for (size_t l = 0; l < a->layers && status == PITH_OK; l++) {
    choice_of(a, index)[l] = a->last->layer[l].fixed ? (uint8_t)a->none : (uint8_t)choice[l];
  }
  free(choice);
  return status;
}

/* `cost` where time is to decide whether the plan in force is replaced. */
static pith_status make_one(const pith_adapter *a, size_t index, const pith_plan_request *request,
                            const pith_plan_cost *cost) {
  pith_plan *plan;
  PITH_TRY(pith_plan_make(a->last, request, &plan));
  pith_status status = write_choice(a, index, plan);
  if (status == PITH_OK && a->s.planned && a->s.slot == index) {
    status = keep_or_replace(a, index, plan, cost);
  }
  pith_plan_destroy(plan);
  return status;
}

static pith_status price(const pith_adapter *a, size_t index, const pith_plan_cost *cost, double *seconds,
                         double *error) {
  size_t *choice = calloc(a->layers + 1, sizeof *choice);
  pith_plan *plan;
  PITH_REQUIRE(choice, PITH_ERR_MEMORY, "no memory to price a plan");
  *error = 0;
  for (size_t l = 0; l < a->layers; l++) {
    double bytes, e;
    choice[l] = choice_of(a, index)[l];
    pith_profile_get(a->last, l, choice[l], &bytes, &e);
    *error += e;
  }
  pith_status status = pith__plan_from_choice(a->last, choice, &unnamed, &plan);
  free(choice);
  PITH_TRY(status);
  status = pith_plan_seconds(plan, a->last, cost, seconds);
  pith_plan_destroy(plan);
  return status;
}

static pith_status error_of_uniform(const pith_adapter *a, const char *spec, double *error) {
  size_t candidate;
  PITH_TRY(pith__profile_find(a->last, spec, &candidate));
  *error = 0;
  for (size_t l = 0; l < a->layers; l++) {
    double bytes, e;
    pith_profile_get(a->last, l, a->last->layer[l].fixed ? a->none : candidate, &bytes, &e);
    *error += e;
  }
  return PITH_OK;
}

/* What may lose more than the user would: plans lose no more than the spec whose error they keep. */
static pith_status exclude(pith_adapter *a, double limit) {
  for (size_t i = 0; i < PITH_PLANS; i++) {
    double error = PITH_EXCLUDED;
    if (a->made.error[i] < PITH_EXCLUDED) {
      PITH_TRY(error_of_uniform(a, pith__shortlist_plans[i].uniform, &error));
    }
    if (error > limit) {
      a->made.error[i] = PITH_EXCLUDED;
    }
  }
  return PITH_OK;
}

/* A plan within the error of a spec that is no candidate: layers stay exact in it, and it is never in force. */
static void leave_out(pith_adapter *a, size_t index) {
  memset(choice_of(a, index), (int)a->none, a->layers);
  a->made.predicted[index] = a->s.measures.seconds;
  a->made.error[index] = PITH_EXCLUDED;
}

static pith_status make_slot(pith_adapter *a, size_t index, const pith_plan_cost *cost) {
  const pith_shortlist_plan *slot = &pith__shortlist_plans[index];
  pith_plan_request request = {.size = sizeof request,
                               .method = slot->method,
                               .objective = slot->objective,
                               .uniform = slot->uniform,
                               .families = slot->families,
                               .cost = cost};
  double exchange;
  int left_out;
  PITH_TRY(pith__adapt_leaves_out(&a->options, slot->uniform, &left_out));
  if (left_out) {
    leave_out(a, index);
    return PITH_OK;
  }
  PITH_TRY(make_one(a, index, &request, slot->objective == PITH_PLAN_TIME ? cost : NULL));
  PITH_TRY(price(a, index, cost, &exchange, &a->made.error[index]));
  a->made.predicted[index] = fmax(0, a->s.measures.seconds - a->s.measures.span) + exchange;
  return PITH_OK;
}

static pith_status make_all(pith_adapter *a) {
  double codec[PITH_CANDIDATES_MAX], limit;
  pith_plan_cost cost = cost_of(a, codec);
  pith_plan *old;
  PITH_TRY(plan_in_force(a, &old));
  pith_status status = cost.bandwidth > 0 ? raise_bandwidth(a, old, &cost) : PITH_OK;
  pith_plan_destroy(old);
  PITH_TRY(status);
  PITH_LOG_INFO("planner: step %.4g s, of it exchange %.4g s, waiting %.4g s; link %.4g MB/s, latency %.3g us",
                a->s.measures.seconds, a->s.measures.span, a->s.measures.waiting, cost.bandwidth * 1e-6,
                cost.latency * 1e6);
  for (size_t i = 0; i < PITH_PLANS; i++) {
    PITH_TRY(make_slot(a, i, &cost));
  }
  if (!*a->options.budget) {
    return PITH_OK;
  }
  PITH_TRY(error_of_uniform(a, a->options.budget, &limit));
  return exclude(a, limit);
}

/* "q,none": candidates of the spec's own family, and exactness. */
static void name_families(const pith_adapt_options *o, char *text, size_t size) {
  const char *stage = strrchr(o->spec, '/');
  stage = stage ? stage + 1 : o->spec;
  snprintf(text, size, "%.*s,none", (int)strcspn(stage, ":,"), stage);
}

static pith_plan_method method_of(pith_adapt_kind kind) {
  static const pith_plan_method methods[] = {
      [PITH_ADAPT_AUTO] = PITH_PLAN_LGRECO,   [PITH_ADAPT_LGRECO] = PITH_PLAN_LGRECO,
      [PITH_ADAPT_KMEANS] = PITH_PLAN_KMEANS, [PITH_ADAPT_ACCORDION] = PITH_PLAN_ACCORDION,
      [PITH_ADAPT_CGX] = PITH_PLAN_CGX,       [PITH_ADAPT_LINEAR] = PITH_PLAN_LINEAR,
      [PITH_ADAPT_BEST] = PITH_PLAN_BEST,     [PITH_ADAPT_BAYES] = PITH_PLAN_BAYES,
      [PITH_ADAPT_GLOBAL] = PITH_PLAN_GLOBAL,
  };
  return methods[kind];
}

static pith_status make_single(pith_adapter *a) {
  const pith_adapt_options *o = &a->options;
  char families[PITH_SPEC_MAX + 8];
  name_families(o, families, sizeof families);
  pith_plan_request request = {.size = sizeof request,
                               .method = method_of(o->kind),
                               .uniform = o->budget,
                               .alpha = o->alpha,
                               .families = strcmp(o->spec, PITH_MIX) ? families : PITH_MIX,
                               .before = a->s.planned ? a->before : NULL,
                               .threshold = o->threshold,
                               .critical = *o->critical ? o->critical : NULL,
                               .otherwise = *o->critical ? o->budget : NULL,
                               .floor = o->floor,
                               .metric = o->metric,
                               .cap = o->cap,
                               .tolerance = o->tolerance};
  return make_one(a, 0, &request, NULL);
}

pith_status pith__adapt_make_plans(pith_adapter *a) {
  if (a->profile_path && pith_profile_save(a->last, a->profile_path) != PITH_OK) {
    PITH_LOG_WARN("PITH_PROFILE: %s", pith_error());
  }
  return a->options.kind == PITH_ADAPT_AUTO ? make_all(a) : make_single(a);
}

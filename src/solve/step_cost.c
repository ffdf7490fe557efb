/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of a step: see step_cost.h. */
#include "solve/step_cost.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"

#define CODEC_SECONDS 1e-9 /* to encode and decode a value, where the caller has not measured it */

static pith_status read_cost(const pith_plan_cost *given, pith_plan_cost *cost) {
  *cost = (pith_plan_cost)PITH_PLAN_COST_INIT;
  PITH_TRY(given ? PITH_STRUCT_READ(pith_plan_cost, given, cost) : PITH_OK);
  cost->ranks = cost->ranks ? cost->ranks : 2;
  cost->latency = cost->latency != 0 ? cost->latency : 60e-6;
  cost->bandwidth = cost->bandwidth != 0 ? cost->bandwidth : 1.25e8;
  int good = isfinite(cost->latency) && cost->latency >= 0 && isfinite(cost->bandwidth) && cost->bandwidth > 0 &&
             isfinite(cost->compute) && cost->compute >= 0;
  PITH_REQUIRE(good, PITH_ERR_RANGE, "a cost is negative or not finite: latency %g s, bandwidth %g B/s, compute %g s",
               cost->latency, cost->bandwidth, cost->compute);
  return PITH_OK;
}

/* From the last layer to the first, as the backward pass goes; each takes its share of it. */
static void pass_backward(pith_step *step, const pith_profile *p) {
  double total = 0, done = 0;
  for (size_t l = 0; l < p->layers; l++) {
    total += (double)p->layer[l].n;
  }
  for (size_t i = 0; i < p->layers; i++) {
    size_t l = p->layers - 1 - i;
    done += (double)p->layer[l].n;
    step->order[i] = l;
    step->ready[i] = total > 0 ? step->cost.compute * done / total : 0;
  }
}

/* By the caller's times; of equals the last layer first. An insertion sort: they are nearly in order. */
static void sort_by_time(pith_step *step, const pith_profile *p) {
  for (size_t i = 0; i < p->layers; i++) {
    size_t l = p->layers - 1 - i, at = i;
    double ready = step->cost.ready[l];
    for (; at > 0 && step->ready[at - 1] > ready; at--) {
      step->ready[at] = step->ready[at - 1];
      step->order[at] = step->order[at - 1];
    }
    step->ready[at] = ready;
    step->order[at] = l;
  }
}

pith_status pith__step_init(pith_step *step, const pith_profile *p, const pith_plan_cost *cost) {
  *step = (pith_step){.order = NULL};
  PITH_TRY(read_cost(cost, &step->cost));
  for (size_t l = 0; l < p->layers && step->cost.ready; l++) {
    PITH_REQUIRE(isfinite(step->cost.ready[l]) && step->cost.ready[l] >= 0, PITH_ERR_RANGE, "layer %s is ready at %g s",
                 p->layer[l].name, step->cost.ready[l]);
  }
  for (size_t c = 0; c < p->candidates && step->cost.codec; c++) {
    PITH_REQUIRE(isfinite(step->cost.codec[c]) && step->cost.codec[c] >= 0, PITH_ERR_RANGE, "%s takes %g s for a value",
                 p->codec[c]->spec, step->cost.codec[c]);
  }
  step->order = calloc(p->layers + 1, sizeof *step->order);
  step->ready = calloc(p->layers + 1, sizeof *step->ready);
  if (!step->order || !step->ready) {
    pith__step_fini(step);
    return pith_fail(PITH_ERR_MEMORY, "no memory for the times of %zu layers", p->layers);
  }
  pith_status status = step->cost.topology ? pith__estimator_create(step->cost.topology, &step->estimator) : PITH_OK;
  if (status != PITH_OK) {
    pith__step_fini(step);
    return status;
  }
  if (step->cost.ready) {
    sort_by_time(step, p);
  } else {
    pass_backward(step, p);
  }
  return PITH_OK;
}

void pith__step_fini(pith_step *step) {
  free(step->order);
  free(step->ready);
  pith__estimator_destroy(step->estimator);
}

/* What a rank sends for a payload of that many bytes: docs/algorithms.md. */
static double sent_bytes(uint32_t caps, double bytes, double raw, double ranks) {
  double share = (ranks - 1) / ranks;
  if (!(caps & PITH_CAP_ONCE) && (caps & (PITH_CAP_CHUNKED | PITH_CAP_LINEAR | PITH_CAP_ROUNDS))) {
    return 2 * bytes * share;
  }
  double gather = bytes * (ranks - 1);
  double ranges = bytes * share + fmin(bytes, raw / ranks) * (ranks - 1);
  return caps & PITH_CAP_SPARSE ? fmin(gather, ranges) : gather;
}

/* On the cost's topology. The estimate of a candidate that it cannot make is none: such a candidate is never taken. */
static double estimated(const pith_step *step, const pith_profile *p, size_t layer, size_t candidate) {
  const pith_codec *codec = p->codec[candidate];
  int is_plain = codec->traits->exact || p->layer[layer].fixed;
  double seconds = INFINITY;
  pith_status status = pith__estimator_seconds(step->estimator, is_plain ? NULL : codec,
                                               step->cost.codec ? step->cost.codec[candidate] : CODEC_SECONDS,
                                               p->layer[layer].n, NULL, &seconds);
  return status == PITH_OK ? seconds : INFINITY;
}

double pith__step_service(const pith_step *step, const pith_profile *p, size_t layer, size_t candidate) {
  const pith_profiled *l = &p->layer[layer];
  const pith_codec *codec = p->codec[candidate];
  if (step->estimator) {
    return estimated(step, p, layer, candidate);
  }
  double bytes = 0, error = 0, ranks = step->cost.ranks, raw = (double)l->n * sizeof(float);
  if (l->fixed) { /* small layers are joined to the messages of others */
    return sent_bytes(PITH_CAP_LINEAR, raw, raw, ranks) / step->cost.bandwidth;
  }
  pith_profile_get(p, layer, candidate, &bytes, &error);
  double rounds = codec->caps & PITH_CAP_ROUNDS ? (double)codec->ops->rounds(codec->args) : 1;
  double rate = step->cost.codec ? step->cost.codec[candidate] : codec->traits->exact ? 0 : CODEC_SECONDS;
  return rounds * step->cost.latency + sent_bytes(codec->caps, bytes, raw, ranks) / step->cost.bandwidth +
         rate * (double)l->n;
}

pith_status pith__step_seconds(const pith_profile *p, const size_t *choice, const pith_plan_cost *cost,
                               double *seconds) {
  pith_step step;
  PITH_TRY(pith__step_init(&step, p, cost));
  double end = 0;
  for (size_t i = 0; i < p->layers; i++) {
    end = fmax(end, step.ready[i]) + pith__step_service(&step, p, step.order[i], choice[step.order[i]]);
  }
  pith__step_fini(&step);
  *seconds = end;
  return PITH_OK;
}

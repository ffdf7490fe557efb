/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two assigners of CGX's Horovod fork, for any method with a strength. Both have one knob, which CGX leaves to the
 * user; here it is turned until the plan is the smallest within the budget.
 *
 * linear: a layer of half the norm may have an error twice as large against it, which is one bit less of a quantizer.
 * Strengths are compared by the octaves of error that they take off, so that this means something for any method.
 *
 * best: each layer by itself weighs bits for each value against the logarithm of its error.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solve/methods.h"

#define EXACT_OCTAVES 16.0  /* what loses nothing is that far above the rung below it */
#define SPREAD_OCTAVES 48.0 /* norms that differ by more count as if they did not */
#define KNOB_STEP 0.125
#define LEAST_SHARE 1e-12 /* of the norm: errors below count as this */

/* Keeps a trial that is within the budget and smaller than the best so far. */
static void offer(const pith_assignment *a, const size_t *trial, size_t *choice, double *best) {
  double bytes, error;
  pith__assignment_total(a, trial, &bytes, &error);
  if (error <= a->budget && bytes < *best) {
    *best = bytes;
    memcpy(choice, trial, a->p->layers * sizeof *choice);
  }
}

static void take_everywhere(const pith_assignment *a, size_t candidate, size_t *choice) {
  for (size_t l = 0; l < a->p->layers; l++) {
    choice[l] = candidate;
  }
}

static pith_profile_layer layer_of(const pith_assignment *a, size_t layer) {
  pith_profile_layer info = PITH_PROFILE_LAYER_INIT;
  pith_profile_layer_get(a->p, layer, &info);
  return info;
}

/* ---- Linear ------------------------------------------------------------------------------------------------------ */

/* How many octaves of error a rung takes off that of the lowest one. */
static void measure_depths(const pith_assignment *a, const pith_ladder *ladder, double *depth) {
  double octave = a->metric == PITH_PLAN_L2 ? 1 : 2;
  for (size_t r = 0; r < ladder->rungs; r++) {
    double error = ladder->rung[r].error, first = ladder->rung[0].error;
    depth[r] = r == 0 ? 0 : error > 0 ? log2(first / error) / octave : depth[r - 1] + EXACT_OCTAVES;
  }
}

static void set_linear(const pith_assignment *a, const pith_ladder *ladder, const double *depth, const double *octaves,
                       double base, size_t *trial) {
  for (size_t l = 0; l < a->p->layers; l++) {
    size_t r = 0;
    while (r + 1 < ladder->rungs && depth[r] < base + octaves[l]) {
      r++;
    }
    trial[l] = ladder->rung[r].candidate;
  }
}

/* Octaves of each layer's norm below the largest. */
static void measure_norms(const pith_assignment *a, double *octaves) {
  double most = 0;
  for (size_t l = 0; l < a->p->layers; l++) {
    pith_profile_layer info = layer_of(a, l);
    octaves[l] = info.fixed || info.norm <= 0 ? -SPREAD_OCTAVES : 0.5 * log2(info.norm);
    most = l == 0 || octaves[l] > most ? octaves[l] : most;
  }
  for (size_t l = 0; l < a->p->layers; l++) {
    octaves[l] = fmax(octaves[l] - most, -SPREAD_OCTAVES);
  }
}

pith_status pith__linear_choose(const pith_assignment *a, size_t *choice) {
  pith_ladder ladder;
  double depth[PITH_CANDIDATES_MAX] = {0}, best = INFINITY, *octaves = calloc(a->p->layers + 1, sizeof *octaves);
  size_t *trial = calloc(a->p->layers + 1, sizeof *trial);
  pith_status status = octaves && trial ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory to plan");
  if (status == PITH_OK) {
    pith__ladder_make(a, PITH_CANDIDATES_MAX, &ladder);
    measure_depths(a, &ladder, depth);
    measure_norms(a, octaves);
    size_t top = ladder.rungs ? ladder.rungs - 1 : 0;
    take_everywhere(a, ladder.rung[top].candidate, choice);
    for (double base = 0; base <= depth[top] + SPREAD_OCTAVES; base += KNOB_STEP) {
      set_linear(a, &ladder, depth, octaves, base, trial);
      offer(a, trial, choice, &best);
    }
  }
  free(octaves);
  free(trial);
  return status;
}

/* ---- Best for each layer ----------------------------------------------------------------------------------------- */

/* The candidate with the least of bits + weight·log2(error). */
static size_t best_of(const pith_assignment *a, size_t layer, double weight) {
  pith_profile_layer info = layer_of(a, layer);
  double floor = pith__metric_error(a->metric, LEAST_SHARE * fmax(info.norm, 1e-300)), least = INFINITY;
  size_t best = a->option[0];
  for (size_t i = 0; i < a->options; i++) {
    double bytes, error;
    pith__assignment_price(a, layer, a->option[i], &bytes, &error);
    double value = 8 * bytes / (double)info.n + weight * log2(fmax(error, floor));
    if (value < least) {
      least = value;
      best = a->option[i];
    }
  }
  return best;
}

pith_status pith__best_choose(const pith_assignment *a, size_t *choice) {
  double best = INFINITY;
  size_t *trial = calloc(a->p->layers + 1, sizeof *trial);
  PITH_REQUIRE(trial, PITH_ERR_MEMORY, "no memory to plan");
  take_everywhere(a, a->option[0], choice);
  for (double knob = -12; knob <= 12; knob += KNOB_STEP) {
    for (size_t l = 0; l < a->p->layers; l++) {
      trial[l] = a->p->layer[l].fixed ? a->option[0] : best_of(a, l, exp2(knob));
    }
    offer(a, trial, choice, &best);
  }
  if (isinf(best)) {
    memcpy(choice, trial, a->p->layers * sizeof *choice); /* of the largest weight: what loses least */
  }
  free(trial);
  return PITH_OK;
}

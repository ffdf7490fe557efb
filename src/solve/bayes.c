/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bayesian optimization over the strengths of all layers, as CGX's Horovod fork has it: a surrogate of the cost,
 * trained on the plans tried so far, says which plan to try next. There it is a forest over bit widths; here a Gaussian
 * process over places on the ladder, whose factors grow by a row for each trial. The cost of a plan is the logarithm of
 * its bytes, with a penalty for what is over the budget. The first trials are the rungs, for all layers alike. Random
 * numbers follow from the number of the trial, so that all ranks try the same.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "base/size.h"
#include "solve/methods.h"

enum { RUNGS = 24, TRIALS_MOST = 160, PROPOSALS = 64 };
#define PENALTY 4.0
#define NOISE 1e-6
#define SQRT_HALF 0.70710678118654752440
#define INV_SQRT_2PI 0.39894228040143267794

typedef struct search {
  const pith_assignment *a;
  pith_ladder ladder;
  size_t layers, *layer; /* those that are decided */
  size_t trials;
  uint8_t *place;                                             /* TRIALS_MOST × layers: rungs */
  double cost[TRIALS_MOST], factor[TRIALS_MOST][TRIALS_MOST]; /* lower triangle of the Cholesky factor */
  double weight[TRIALS_MOST];                                 /* K⁻¹·(cost − mean) */
  double mean, scale;
  size_t *choice; /* to work with */
  size_t *best;
  double best_bytes;
} search;

static const uint8_t *place_of(const search *s, size_t trial) { return s->place + trial * s->layers; }

/* ---- The surrogate ----------------------------------------------------------------------------------------------- */

/* Plans are alike where most layers have nearly the same rung. */
static double likeness(const search *s, const uint8_t *x, const uint8_t *y) {
  double sum = 0, unit = 1.0 / (double)s->ladder.rungs;
  for (size_t l = 0; l < s->layers; l++) {
    double d = ((double)x[l] - (double)y[l]) * unit;
    sum += d * d;
  }
  return exp(-8 * sum / (double)s->layers);
}

/* L·out = in */
static void solve_lower(const search *s, size_t n, const double *in, double *out) {
  for (size_t i = 0; i < n; i++) {
    double sum = in[i];
    for (size_t j = 0; j < i; j++) {
      sum -= s->factor[i][j] * out[j];
    }
    out[i] = sum / s->factor[i][i];
  }
}

/* The row of the factor for the last trial. */
static void grow(search *s) {
  size_t n = s->trials - 1;
  double with[TRIALS_MOST] = {0}, square = 1 + NOISE;
  for (size_t i = 0; i < n; i++) {
    with[i] = likeness(s, place_of(s, i), place_of(s, n));
  }
  solve_lower(s, n, with, s->factor[n]);
  for (size_t i = 0; i < n; i++) {
    square -= s->factor[n][i] * s->factor[n][i];
  }
  s->factor[n][n] = sqrt(fmax(square, NOISE));
}

static void refit(search *s) {
  double sum = 0, square = 0, half[TRIALS_MOST], centred[TRIALS_MOST] = {0};
  for (size_t i = 0; i < s->trials; i++) {
    sum += s->cost[i];
    square += s->cost[i] * s->cost[i];
  }
  s->mean = sum / (double)s->trials;
  s->scale = sqrt(fmax(square / (double)s->trials - s->mean * s->mean, 1e-12));
  for (size_t i = 0; i < s->trials; i++) {
    centred[i] = (s->cost[i] - s->mean) / s->scale;
  }
  solve_lower(s, s->trials, centred, half);
  for (size_t i = s->trials; i-- > 0;) {
    double left = half[i];
    for (size_t j = i + 1; j < s->trials; j++) {
      left -= s->factor[j][i] * s->weight[j];
    }
    s->weight[i] = left / s->factor[i][i];
  }
}

/* By how much a plan is expected to be better than the best cost so far. */
static double expected_gain(const search *s, const uint8_t *place, double best) {
  double with[TRIALS_MOST] = {0}, half[TRIALS_MOST], mean = 0, variance = 1 + NOISE;
  for (size_t i = 0; i < s->trials; i++) {
    with[i] = likeness(s, place_of(s, i), place);
    mean += with[i] * s->weight[i];
  }
  solve_lower(s, s->trials, with, half);
  for (size_t i = 0; i < s->trials; i++) {
    variance -= half[i] * half[i];
  }
  double deviation = sqrt(fmax(variance, 1e-12)), z = ((best - s->mean) / s->scale - mean) / deviation;
  return deviation * (z * 0.5 * erfc(-z * SQRT_HALF) + INV_SQRT_2PI * exp(-0.5 * z * z));
}

/* ---- Trials ------------------------------------------------------------------------------------------------------ */

/* Tries the plan in the next place. */
static void try_next(search *s) {
  const uint8_t *place = place_of(s, s->trials);
  double bytes, error, budget = fmax(s->a->budget, 1e-300);
  for (size_t l = 0; l < s->layers; l++) {
    s->choice[s->layer[l]] = s->ladder.rung[place[l]].candidate;
  }
  pith__assignment_total(s->a, s->choice, &bytes, &error);
  if (error <= s->a->budget && bytes < s->best_bytes) {
    s->best_bytes = bytes;
    memcpy(s->best, s->choice, s->a->p->layers * sizeof *s->best);
  }
  s->cost[s->trials++] = log(fmax(bytes, 1)) + (error > budget ? PENALTY * log(error / budget) + 1 : 0);
  grow(s);
}

static size_t best_trial(const search *s) {
  size_t best = 0;
  for (size_t i = 1; i < s->trials; i++) {
    best = s->cost[i] < s->cost[best] ? i : best;
  }
  return best;
}

/* Some layers of the best plan a rung or two up or down: more layers in the first half of the proposals. */
static void propose(const search *s, size_t number, uint8_t *place) {
  pith_key key = pith__rng_key_of(0, s->trials, number, 0, PITH_DOMAIN_SEARCH, 0);
  size_t top = s->ladder.rungs - 1;
  float share = number < PROPOSALS / 2 ? 0.25f : 2.0f / (float)s->layers;
  memcpy(place, place_of(s, best_trial(s)), s->layers);
  for (size_t l = 0; l < s->layers; l++) {
    float u = pith__rng_unit(key, (uint32_t)(2 * l)), v = pith__rng_unit(key, (uint32_t)(2 * l + 1));
    if (u < share) {
      long moved = (long)place[l] + (v < 0.4f ? -1 : v < 0.5f ? -2 : v < 0.9f ? 1 : 2);
      place[l] = (uint8_t)(moved < 0 ? 0 : (size_t)moved > top ? top : (size_t)moved);
    }
  }
}

static void take_best_proposal(search *s) {
  uint8_t *place = s->place + s->trials * s->layers, *proposal = s->place + TRIALS_MOST * s->layers;
  double most = -1, best = s->cost[best_trial(s)];
  for (size_t i = 0; i < PROPOSALS; i++) {
    propose(s, i, proposal);
    double gain = expected_gain(s, proposal, best);
    if (gain > most) {
      most = gain;
      memcpy(place, proposal, s->layers);
    }
  }
}

static void run(search *s) {
  size_t trials = pith__least(TRIALS_MOST, s->ladder.rungs + s->layers * s->ladder.rungs / 2 + 16);
  for (size_t r = 0; r < s->ladder.rungs; r++) {
    memset(s->place + s->trials * s->layers, (int)r, s->layers);
    try_next(s);
  }
  while (s->trials < trials) {
    refit(s);
    take_best_proposal(s);
    try_next(s);
  }
}

static void start(search *s, const pith_assignment *a, size_t *best) {
  s->a = a;
  s->best = best;
  s->best_bytes = INFINITY;
  pith__ladder_make(a, RUNGS, &s->ladder);
  for (size_t l = 0; l < a->p->layers; l++) {
    best[l] = s->choice[l] = s->ladder.rung[s->ladder.rungs - 1].candidate;
    if (!a->p->layer[l].fixed) {
      s->layer[s->layers++] = l;
    }
  }
}

pith_status pith__bayes_choose(const pith_assignment *a, size_t *choice) {
  search *s = calloc(1, sizeof *s);
  size_t layers = a->p->layers + 1;
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory to search");
  s->layer = calloc(layers, sizeof *s->layer);
  s->choice = calloc(layers, sizeof *s->choice);
  s->place = calloc((TRIALS_MOST + 1) * layers, 1);
  pith_status status = PITH_OK;
  if (!s->layer || !s->choice || !s->place) {
    status = pith_fail(PITH_ERR_MEMORY, "no memory to search plans of %zu layers", a->p->layers);
  } else {
    start(s, a, choice);
    if (s->layers) {
      run(s);
    }
  }
  free(s->layer);
  free(s->choice);
  free(s->place);
  free(s);
  return status;
}

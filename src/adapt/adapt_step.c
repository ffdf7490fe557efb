/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step of the adapter. What is due when follows from the number of the step and the target, from which the next plan
 * is in force:
 *
 *   target−12 … target−4  sampling
 *   target−3              sums are added up
 *   target−2              so are measured times; the thread makes plans
 *   target−1              the plan is there, or waited for
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/size.h"
#include "base/struct_size.h"

enum { TILE = 1024 };
#define MOVED 0.15

/* ---- Sampling ---------------------------------------------------------------------------------------------------- */

/* Whether gradients are added up in this step: the last ones in which sampling is possible. */
static int accumulates(const pith_adapter *a) {
  uint64_t end = a->s.target - PITH_ADAPT_SPARE + 1, steps = a->options.accumulate;
  return steps > 1 && a->s.step < end && a->s.step + steps >= end;
}

/* Layers take turns by size, so that about as much is copied in each step; each comes twice. */
int pith_adapter_wants(const pith_adapter *a, size_t layer) {
  if (a->idle || layer >= a->layers || a->window->layer[layer].fixed || !a->s.target) {
    return 0;
  }
  if (a->options.accumulate > 1) {
    return accumulates(a);
  }
  uint64_t first = a->s.target > PITH_ADAPT_SAMPLED ? a->s.target - PITH_ADAPT_SAMPLED : 0;
  first = first > a->s.begun ? first : a->s.begun;
  uint64_t steps = a->s.target - PITH_ADAPT_SPARE + 1 - first;
  if (a->s.step < first || a->s.step >= first + steps) {
    return 0;
  }
  uint64_t turn = (uint64_t)(a->place[layer] * (double)steps), now = a->s.step - first;
  return now == turn || now == (turn + steps / 2) % steps;
}

static pith_status accumulate(pith_adapter *a, size_t layer, pith_cspan gradient) {
  float tile[TILE];
  if (!a->sum[layer]) {
    PITH_TRY(pith__space_zeros(a->window->space, gradient.n * sizeof(float), (void **)&a->sum[layer]));
  }
  PITH_TRY(a->measurer ? a->measurer->add(a->measurer, gradient, a->sum[layer]) : PITH_OK);
  for (size_t at = 0, n; !a->measurer && at < gradient.n; at += n) {
    n = pith__least(TILE, gradient.n - at);
    pith__values_add(pith__span_load(gradient, at, n, tile), a->sum[layer] + at, n);
  }
  a->summed[layer]++;
  return PITH_OK;
}

/* The last step in which gradients are added up is over: their means are measured. */
static pith_status measure_means(pith_adapter *a) {
  for (size_t l = 0; l < a->layers; l++) {
    size_t n = a->window->layer[l].n;
    if (a->summed[l]) {
      PITH_TRY(pith__space_scale(a->window->space, 1.0f / (float)a->summed[l], a->sum[l], n));
      PITH_TRY(pith__worker_measure(a, l, (pith_cspan){a->sum[l], n, PITH_F32}));
    }
    pith__space_release(a->window->space, a->sum[l]);
    a->sum[l] = NULL;
    a->summed[l] = 0;
  }
  return PITH_OK;
}

pith_status pith_adapter_observe(pith_adapter *a, size_t layer, pith_cspan gradient) {
  PITH_REQUIRE(a && layer < a->layers, PITH_ERR_ARGUMENT, "pith_adapter_observe: there is no layer %zu", layer);
  PITH_REQUIRE(gradient.n == a->window->layer[layer].n && (gradient.data || !gradient.n), PITH_ERR_ARGUMENT,
               "layer %s has %zu values, not %zu", a->window->layer[layer].name, a->window->layer[layer].n, gradient.n);
  if (!pith_adapter_wants(a, layer)) {
    return PITH_OK;
  }
  return a->options.accumulate > 1 ? accumulate(a, layer, gradient) : pith__worker_measure(a, layer, gradient);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

/* The first steps behind a change do not count. The least of them is in the ring's last place, which no other time has
 * yet. */
static double *least_uncounted(pith_adapter *a) { return &a->s.own.seconds[PITH_ADAPT_RING - 1]; }

static void remember(pith_adapter *a, const pith_adapter_step *m) {
  if (m->seconds <= 0) {
    return;
  }
  if (a->s.step < a->s.changed + PITH_TRIAL_SKIPPED) {
    int is_least = a->s.step == a->s.changed || m->seconds < *least_uncounted(a);
    *least_uncounted(a) = is_least ? m->seconds : *least_uncounted(a);
    return;
  }
  size_t at = a->s.own.count++ % PITH_ADAPT_RING;
  a->s.own.seconds[at] = m->seconds;
  a->s.own.span[at] = m->span;
  a->s.own.waiting[at] = m->waiting;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* The lower quartile of what is remembered, for what disturbs a step only makes it longer; 0 if that is nothing. */
static double typical(const pith_adapter *a, const double *ring) {
  double sorted[PITH_ADAPT_RING];
  size_t count = a->s.own.count < PITH_ADAPT_RING ? (size_t)a->s.own.count : PITH_ADAPT_RING;
  if (!count) {
    return 0;
  }
  memcpy(sorted, ring, count * sizeof *sorted);
  qsort(sorted, count, sizeof *sorted, compare);
  return sorted[count / 4];
}

/* ---- What is due ------------------------------------------------------------------------------------------------- */

static pith_due due_now(const pith_adapter *a) {
  uint64_t since = a->s.step - a->s.changed;
  if (a->s.target && a->s.step + 3 == a->s.target) {
    return PITH_DUE_SUMS;
  }
  if (a->s.target && a->s.step + 2 == a->s.target) {
    return PITH_DUE_MEASURES;
  }
  if (a->s.trying) {
    int looks = since + 1 == PITH_TRIAL_SKIPPED || since + 1 == PITH_TRIAL_LOOK || since + 1 == PITH_TRIAL_STEPS;
    return looks ? PITH_DUE_TRIAL : PITH_DUE_NOTHING;
  }
  int watched = a->options.kind == PITH_ADAPT_AUTO && a->s.planned && (since + 1) % PITH_ADAPT_RING == 0;
  return watched ? PITH_DUE_WATCH : PITH_DUE_NOTHING;
}

static size_t write_sums(pith_adapter *a) {
  size_t count;
  const double *values = pith_profile_values(a->window, &count);
  memcpy(a->numbers, values, count * sizeof *values);
  memset(a->numbers + count, 0, (a->room - count) * sizeof *a->numbers);
  return a->room;
}

static size_t write_measures(pith_adapter *a) {
  pith_measures m = {typical(a, a->s.own.seconds),
                     typical(a, a->s.own.span),
                     typical(a, a->s.own.waiting),
                     a->s.own.probe,
                     a->s.own.latency,
                     {0}};
  memcpy(m.codec, a->s.own.codec, sizeof m.codec);
  memcpy(a->numbers, &m, sizeof m);
  return PITH_MEASURES;
}

static size_t write_time(pith_adapter *a) {
  int is_early = a->s.step + 1 <= a->s.changed + PITH_TRIAL_SKIPPED;
  a->numbers[0] = is_early ? *least_uncounted(a) : typical(a, a->s.own.seconds);
  return 1;
}

pith_status pith_adapter_finish(pith_adapter *a, const pith_adapter_step *given, double **numbers, size_t *count) {
  PITH_REQUIRE(a && given && numbers && count, PITH_ERR_ARGUMENT,
               "pith_adapter_finish: adapter, measured, numbers or count is NULL");
  pith_adapter_step measured = PITH_ADAPTER_STEP_INIT;
  PITH_TRY(PITH_STRUCT_READ(pith_adapter_step, given, &measured));
  *numbers = a->numbers;
  *count = 0;
  a->due = PITH_DUE_NOTHING;
  if (a->idle) {
    return PITH_OK;
  }
  remember(a, &measured);
  if (accumulates(a) && a->s.step + PITH_ADAPT_SPARE == a->s.target) {
    PITH_TRY(measure_means(a));
  }
  pith_due due = due_now(a);
  if (due == PITH_DUE_SUMS || due == PITH_DUE_MEASURES) {
    PITH_TRY(pith__worker_wait(a));
  }
  a->due = due;
  *count = due == PITH_DUE_SUMS       ? write_sums(a)
           : due == PITH_DUE_MEASURES ? write_measures(a)
           : due == PITH_DUE_NOTHING  ? 0
                                      : write_time(a);
  return PITH_OK;
}

/* ---- What was added up ------------------------------------------------------------------------------------------- */

/* A layer that was not measured in this window has the numbers of the one before; without any it is exact. */
static void fill_gap(pith_adapter *a, size_t layer, const double *old) {
  double *sums = pith__sums(a->last, layer);
  if (old[PITH_SUM_SAMPLES] > 0) {
    memcpy(sums, old, a->last->stride * sizeof *sums);
    return;
  }
  sums[PITH_SUM_SAMPLES] = 1;
  for (size_t c = 0; c < a->last->candidates; c++) {
    sums[PITH_SUM_BYTES + c] = c == a->none ? 0 : (double)a->last->layer[layer].n * sizeof(float);
  }
}

static void take_sums(pith_adapter *a) {
  size_t count, measured = 0;
  double *last = pith_profile_values(a->last, &count), *before = pith_profile_values(a->before, &count);
  memcpy(before, last, count * sizeof *last);
  memcpy(last, a->numbers, count * sizeof *last);
  for (size_t l = 0; l < a->layers; l++) {
    measured += pith__sums(a->last, l)[PITH_SUM_SAMPLES] > 0;
  }
  a->s.empty = measured == 0;
  for (size_t l = 0; l < a->layers && measured; l++) {
    if (!a->last->layer[l].fixed && pith__sums(a->last, l)[PITH_SUM_SAMPLES] == 0) {
      fill_gap(a, l, before + l * a->last->stride);
    }
  }
  if (a->s.empty) {
    memcpy(last, before, count * sizeof *last);
  }
  pith_profile_reset(a->window);
}

/* Looks in a row that must have moved: more where alarms were false, as on machines that are never calm. */
static uint32_t patience(const pith_adapter *a) { return a->s.alarms == 0 ? 2 : a->s.alarms == 1 ? 4 : 8; }

/* Step times that moved bring the next plan forward. */
static void look(pith_adapter *a, double seconds) {
  if (seconds <= 0) {
    return;
  }
  if (a->s.reference <= 0) {
    a->s.reference = seconds;
  }
  uint32_t upward = seconds > a->s.reference;
  int moved = fabs(seconds - a->s.reference) > MOVED * a->s.reference;
  a->s.moved = !moved ? 0 : a->s.upward == upward ? a->s.moved + 1 : 1;
  a->s.upward = upward;
  if (a->s.moved >= patience(a) && !a->s.wide) {
    a->s.wide = 1;
    if (a->s.target > a->s.step + 1 + PITH_ADAPT_SAMPLED) {
      a->s.begun = a->s.step + 1;
      a->s.target = a->s.step + 1 + PITH_ADAPT_SAMPLED;
    }
  }
}

/* The times that a plan is made from are looked at, too: one that is due anyway should know that they have moved. */
static pith_status take_measures(pith_adapter *a) {
  double *means = a->numbers;
  for (size_t i = 0; i < PITH_MEASURES; i++) {
    means[i] /= a->ranks;
  }
  memcpy(&a->s.measures, means, sizeof a->s.measures);
  if (a->options.kind == PITH_ADAPT_AUTO && a->s.planned) {
    look(a, a->s.measures.seconds);
  }
  memset(a->s.own.codec, 0, sizeof a->s.own.codec); /* timed anew in the next window */
  return a->s.empty ? PITH_OK : pith__worker_plan(a);
}

/* Exchanges of few numbers tell the latency: the least of them, for what disturbs only ever makes it longer. */
static void time_exchange(pith_adapter *a, double seconds) {
  double least = a->s.own.latency;
  if (a->due == PITH_DUE_SUMS) {
    a->s.own.probe = seconds;
  } else if (seconds > 0) {
    a->s.own.latency = least > 0 && least < seconds ? least : seconds;
  }
}

static pith_status take_numbers(pith_adapter *a, int *trial_over) {
  switch (a->due) {
    case PITH_DUE_SUMS:
      take_sums(a);
      return PITH_OK;
    case PITH_DUE_MEASURES:
      return take_measures(a);
    case PITH_DUE_TRIAL:
      *trial_over = pith__trial_look(a, a->numbers[0] / a->ranks);
      return PITH_OK;
    case PITH_DUE_WATCH:
      look(a, a->numbers[0] / a->ranks);
      return PITH_OK;
    default:
      return PITH_OK;
  }
}

/* ---- Changing ---------------------------------------------------------------------------------------------------- */

void pith__adapt_switch(pith_adapter *a, size_t slot) {
  const uint8_t *plan = a->plans + slot * a->layers;
  if (memcmp(plan, a->in_force, a->layers) != 0) {
    memcpy(a->in_force, plan, a->layers);
    a->s.changed = a->s.step;
    a->s.own.count = 0;
  } else if (a->s.trying) {
    a->s.changed = a->s.step;
    a->s.own.count = 0;
  }
  a->s.slot = (uint32_t)slot;
}

/* The step of the target comes. */
static pith_status take_plan(pith_adapter *a) {
  uint64_t target = a->s.target;
  PITH_TRY(pith__worker_wait(a));
  if (a->s.empty) {
    a->s.begun = a->s.step;
    a->s.target = target + PITH_ADAPT_RING;
    return PITH_OK;
  }
  memcpy(a->plans, a->made.choice, PITH_PLANS * a->layers);
  if (a->options.kind == PITH_ADAPT_AUTO) {
    pith__trial_begin(a);
    return PITH_OK;
  }
  a->s.changed = a->s.planned ? a->s.changed : a->s.step; /* the first plan ends the warm-up, whatever it says */
  a->s.planned = a->s.step;
  a->s.begun = a->s.step;
  a->s.target = target + a->options.period;
  pith__adapt_switch(a, 0);
  return PITH_OK;
}

pith_status pith_adapter_advance(pith_adapter *a, double seconds, int *changed) {
  PITH_REQUIRE(a && changed, PITH_ERR_ARGUMENT, "pith_adapter_advance: adapter or changed is NULL");
  uint64_t step = a->s.step + 1;
  *changed = 0;
  if (a->idle) {
    a->s.step = step;
    return PITH_OK;
  }
  uint32_t slot = a->s.slot;
  int trial_over = 0;
  time_exchange(a, seconds);
  PITH_TRY(take_numbers(a, &trial_over));
  a->due = PITH_DUE_NOTHING;
  a->s.step = step;
  if (trial_over) {
    pith__trial_next(a);
  }
  if (a->s.target == step) {
    PITH_TRY(take_plan(a));
  }
  *changed = a->s.changed == step || slot != a->s.slot;
  pith__adapt_describe(a);
  return PITH_OK;
}

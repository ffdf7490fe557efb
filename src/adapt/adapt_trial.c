/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How auto chooses: predictions say what is worth trying, step times decide. Pure arithmetic on numbers that all ranks
 * share, so all choose alike.
 */
#include <math.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/log.h"

enum { FIRST_MOST = 6, LATER_MOST = 2, FIRST_FINALISTS = 5, LATER_FINALISTS = 3, FIRST_FINALS = 4, LATER_FINALS = 2 };
#define NEVER 2.0  /* times slower than the best, by prediction: not tried */
#define FAMILY 1.6 /* one of every family that is predicted within this */
#define NEAR 1.1   /* the best are tried again, in turns, if they are within this */
#define RIVAL \
  1.05 /* at later plans: a more exact one that may be that much slower is tried, and whatever may be faster */
#define SLOW 1.33     /* a trial that is that much slower ends early, … */
#define MUCH_SLOWER 2 /* … and one that is that much slower in its first steps at once */
#define SAME 1.015    /* within this, the more exact one wins … */
#define MUCH_LESS 0.5 /* … if it loses no more than this share */
#define UNKNOWN 1e9   /* seconds of a trial in which nothing was measured */
#define GRAIN 0.05
#define LEAST 0.05 /* no prediction is below this share of what is now */

/* ---- Predictions ------------------------------------------------------------------------------------------------- */

/* What the model says, moved so that it is right for the plan in force. */
static double moved(const pith_adapter *a, size_t slot) {
  double now = a->s.measures.seconds, wrong = now - a->s.predicted[a->s.base];
  return fmax(a->s.predicted[slot] + wrong, LEAST * now);
}

static double bias_of(const pith_adapter *a, size_t slot) { return a->s.bias[slot] > 0 ? a->s.bias[slot] : 1; }

static double expected(const pith_adapter *a, size_t slot) {
  return slot == a->s.base ? a->s.measures.seconds : moved(a, slot) * bias_of(a, slot);
}

/* What was learnt fades, so that nothing is dismissed for ever; a change of circumstances makes it worthless. */
static void fade(pith_adapter *a) {
  for (size_t i = 0; i < PITH_PLANS; i++) {
    a->s.bias[i] = a->s.wide ? 1 : sqrt(bias_of(a, i));
  }
}

static void learn(pith_adapter *a) {
  for (size_t i = 0; i < PITH_PLANS; i++) {
    if (a->s.time[i] > 0 && i != a->s.base) {
      a->s.bias[i] = a->s.time[i] / moved(a, i);
    }
  }
}

/* ---- What is tried ----------------------------------------------------------------------------------------------- */

/* Whether it loses no more than the user allows, and its gradients do not arrive late where they must not. */
static int is_allowed(const pith_adapter *a, size_t slot) { return a->s.error[slot] < PITH_EXCLUDED; }

static double least_expected(const pith_adapter *a) {
  double least = expected(a, 0); /* none is always allowed */
  for (size_t i = 1; i < PITH_PLANS; i++) {
    least = is_allowed(a, i) ? fmin(least, expected(a, i)) : least;
  }
  return least;
}

/* Predictions are coarse: where they differ by less than a grain, one spec for all layers comes before a plan of many,
 * whose messages cost more than the model knows, and then the more exact. */
static int comes_before(const pith_adapter *a, size_t one, size_t other, double least) {
  double x = floor(expected(a, one) / (GRAIN * least)), y = floor(expected(a, other) / (GRAIN * least));
  int uniform = pith__shortlist_plans[one].method == PITH_PLAN_UNIFORM,
      other_uniform = pith__shortlist_plans[other].method == PITH_PLAN_UNIFORM;
  return x != y ? x < y : uniform != other_uniform ? uniform : a->s.error[one] < a->s.error[other];
}

static void sort_by_expectation(const pith_adapter *a, size_t order[PITH_PLANS]) {
  double least = least_expected(a);
  for (size_t i = 0; i < PITH_PLANS; i++) {
    size_t at = i;
    for (; at > 0 && comes_before(a, i, order[at - 1], least); at--) {
      order[at] = order[at - 1];
    }
    order[at] = i;
  }
}

static int same_specs(const pith_adapter *a, size_t one, size_t other) {
  return !memcmp(a->plans + one * a->layers, a->plans + other * a->layers, a->layers);
}

/* Whether a plan is new among those that are tried and the one in force; and whether its family is. */
static int is_news(const pith_adapter *a, size_t slot, int *new_family) {
  int news = !same_specs(a, slot, a->s.base);
  *new_family = pith__shortlist_plans[slot].family != pith__shortlist_plans[a->s.base].family;
  for (size_t i = 0; i < a->s.tries; i++) {
    news &= !same_specs(a, slot, a->s.order[i]);
    *new_family &= pith__shortlist_plans[slot].family != pith__shortlist_plans[a->s.order[i]].family;
  }
  return news;
}

static int is_wanted_first(const pith_adapter *a, double time, double best, int new_family) {
  return time <= NEVER * best && (a->s.tries < FIRST_MOST || (new_family && time <= FAMILY * best));
}

static int is_wanted_later(const pith_adapter *a, size_t slot, double time) {
  int more_exact = a->s.error[slot] < a->s.error[a->s.base];
  return a->s.tries < LATER_MOST && time < a->s.measures.seconds * (more_exact ? RIVAL : 1);
}

static void choose_trials(pith_adapter *a) {
  size_t order[PITH_PLANS];
  sort_by_expectation(a, order);
  a->s.tries = 0;
  for (size_t i = 0; i < PITH_PLANS && a->s.tries < PITH_TRIED_MOST; i++) {
    int new_family, news = is_news(a, order[i], &new_family) && is_allowed(a, order[i]);
    double time = expected(a, order[i]);
    int wanted =
        a->s.wide ? is_wanted_first(a, time, least_expected(a), new_family) : is_wanted_later(a, order[i], time);
    PITH_LOG_INFO("planner: %s is expected to take %.4g s%s", pith__shortlist_plans[order[i]].name, time,
                  order[i] == a->s.base     ? ", is in force"
                  : wanted && news          ? ", is tried"
                  : is_allowed(a, order[i]) ? ""
                                            : ", is not allowed");
    if (wanted && news) {
      a->s.order[a->s.tries++] = (uint32_t)order[i];
    }
  }
}

/* When circumstances have changed, what the plan in force took says little: it is tried as any other, before them. */
static void try_base_first(pith_adapter *a) {
  size_t kept = a->s.tries < PITH_TRIED_MOST ? a->s.tries : PITH_TRIED_MOST - 1;
  memmove(a->s.order + 1, a->s.order, kept * sizeof *a->s.order);
  a->s.order[0] = a->s.base;
  a->s.tries = (uint32_t)kept + 1;
}

/* ---- What was measured ------------------------------------------------------------------------------------------- */

/* A further trial of a plan. Its time is the median of its trials (of two the mean): one that was disturbed, or lucky,
 * does not decide. */
static void note(pith_adapter *a, size_t slot, double seconds) {
  double *trial = a->s.trial[slot];
  uint32_t count = a->s.trials[slot] < PITH_TRIALS_MOST ? a->s.trials[slot]++ : PITH_TRIALS_MOST - 1;
  for (; count > 0 && trial[count - 1] > seconds; count--) {
    trial[count] = trial[count - 1];
  }
  trial[count] = seconds;
  uint32_t last = a->s.trials[slot] - 1;
  a->s.time[slot] = (trial[last / 2] + trial[(last + 1) / 2]) / 2;
}

/* ---- What stays -------------------------------------------------------------------------------------------------- */

static size_t fastest(const pith_adapter *a, size_t but) {
  size_t best = PITH_PLANS;
  for (size_t i = 0; i < PITH_PLANS; i++) {
    if (i != but && a->s.time[i] > 0 && (best == PITH_PLANS || a->s.time[i] < a->s.time[best])) {
      best = i;
    }
  }
  return best;
}

/* Of those that are about as fast as the fastest: one that loses much less. (A plan always loses a little less than the
 * spec whose error it keeps.) */
static size_t most_exact(const pith_adapter *a) {
  size_t best = fastest(a, PITH_PLANS);
  double limit = SAME * a->s.time[best];
  for (size_t i = 0; i < PITH_PLANS; i++) {
    if (a->s.time[i] > 0 && a->s.time[i] <= limit && a->s.error[i] < MUCH_LESS * a->s.error[best]) {
      best = i;
    }
  }
  return best;
}

/* Trials are over: the next plan comes a period from now, when there is something new to look at. Step times are then
 * compared with the first that are seen; or, where the plan in force stays for what it took before the trials, with
 * that: it may be true no longer. */
static void settle(pith_adapter *a) {
  size_t chosen = most_exact(a);
  int untried = chosen == a->s.base && a->s.trials[chosen] == 1 && !a->s.wide;
  PITH_LOG_INFO("planner: step %llu: %s stays, %.4g s a step", (unsigned long long)a->s.step,
                pith__shortlist_plans[chosen].name, a->s.time[chosen]);
  learn(a);
  a->s.alarms = !a->s.alarmed ? a->s.alarms : chosen == a->s.base ? a->s.alarms + 1 : 0;
  a->s.alarmed = 0;
  a->s.trying = a->s.finals = 0;
  a->s.wide = a->s.moved = 0;
  a->s.reference = untried ? a->s.time[chosen] : 0;
  a->s.begun = a->s.step;
  a->s.target = a->s.step + a->options.period;
  pith__adapt_switch(a, chosen);
}

/* How many were faster. */
static size_t rank_of(const pith_adapter *a, size_t slot) {
  size_t faster = 0;
  for (size_t i = 0; i < PITH_PLANS; i++) {
    faster += a->s.time[i] > 0 && (a->s.time[i] < a->s.time[slot] || (a->s.time[i] == a->s.time[slot] && i < slot));
  }
  return faster;
}

/* The first trials of all: steps of near rivals are hardly lost, and much depends on the choice. */
static int is_first(const pith_adapter *a) { return a->s.wide && !a->s.alarmed; }

static uint32_t finals_of(const pith_adapter *a) { return is_first(a) ? FIRST_FINALS : LATER_FINALS; }

/* Those that are near to the best are tried again, in turns: a machine that is slow for a while is slow for all of
 * them. */
static int is_close(pith_adapter *a) {
  double limit = NEAR * a->s.time[fastest(a, PITH_PLANS)];
  if (a->s.finals >= finals_of(a)) {
    return 0;
  }
  a->s.finals++;
  a->s.tried = a->s.tries = 0;
  for (size_t i = 0; i < PITH_PLANS; i++) {
    if (a->s.time[i] > 0 && a->s.time[i] <= limit &&
        rank_of(a, i) < (is_first(a) ? FIRST_FINALISTS : LATER_FINALISTS)) {
      a->s.order[a->s.tries++] = (uint32_t)i;
    }
  }
  return a->s.tries > 1;
}

void pith__trial_next(pith_adapter *a) {
  if (a->s.tried < a->s.tries || is_close(a)) {
    pith__adapt_switch(a, a->s.order[a->s.tried]);
  } else {
    settle(a);
  }
}

void pith__trial_begin(pith_adapter *a) {
  a->s.alarmed = a->s.wide && a->s.planned;
  a->s.wide |= a->s.planned == 0;
  a->s.planned = a->s.step;
  a->s.target = 0;
  a->s.base = a->s.slot;
  memcpy(a->s.predicted, a->made.predicted, sizeof a->s.predicted);
  memcpy(a->s.error, a->made.error, sizeof a->s.error);
  memset(a->s.time, 0, sizeof a->s.time);
  memset(a->s.trials, 0, sizeof a->s.trials);
  int stays = is_allowed(a, a->s.base); /* gradients change, and what is too much with them */
  a->s.wide |= !stays;
  fade(a);
  a->s.tries = a->s.tried = 0;
  if (a->s.measures.seconds > 0) {
    choose_trials(a);
  }
  if (a->s.alarmed && a->s.tries && stays) {
    try_base_first(a);
  } else { /* without measurements everything stays as it is */
    note(a, a->s.slot, a->s.measures.seconds > 0 && stays ? a->s.measures.seconds : UNKNOWN);
  }
  a->s.trying = a->s.tries > 0;
  a->s.finals = a->s.trying ? 0 : finals_of(a);
  pith__trial_next(a);
}

int pith__trial_look(pith_adapter *a, double seconds) {
  size_t slot = a->s.order[a->s.tried], rival = fastest(a, slot);
  uint64_t steps = a->s.step + 1 - a->s.changed;
  double limit = rival == PITH_PLANS ? INFINITY : a->s.time[rival] * (steps <= PITH_TRIAL_SKIPPED ? MUCH_SLOWER : SLOW);
  int is_known = seconds > 0 || steps <= PITH_TRIAL_SKIPPED;
  if (steps < PITH_TRIAL_STEPS && is_known && seconds <= limit) {
    return 0;
  }
  note(a, slot, seconds > 0 ? seconds : UNKNOWN);
  PITH_LOG_INFO("planner: step %llu: %s took %.4g s a step", (unsigned long long)a->s.step,
                pith__shortlist_plans[slot].name, seconds);
  a->s.tried++;
  return 1;
}

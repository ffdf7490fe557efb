/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One threshold for all layers: what is sent are the largest values of the whole model, wherever they are. Each layer's
 * ratio follows from that. Between two ratios with k and k' values the squared error falls by e − e', so values there
 * have a size of √((e − e')/(k' − k)): a layer takes the next ratio as long as that is at least the threshold. The
 * threshold is the largest within the budget.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "solve/methods.h"

/* A layer's candidates, from the fewest values on; size[i] is the squared size of the values that rung i adds. */
typedef struct stairs {
  size_t candidate[PITH_CANDIDATES_MAX], count;
  double values[PITH_CANDIDATES_MAX], size[PITH_CANDIDATES_MAX];
} stairs;

static pith_status values_of(const pith_assignment *a, size_t candidate, size_t n, double *values) {
  const pith_codec *c = a->p->codec[candidate];
  size_t k = n;
  double bytes;
  PITH_REQUIRE(c->traits->exact || (!c->transform && c->traits->largest && c->traits->largest(c->args, n, &k, &bytes)),
               PITH_ERR_UNSUPPORTED, "one threshold for all layers is for methods that send the largest values: %s",
               c->spec);
  *values = c->traits->exact ? (double)n + 1 : (double)k; /* exactness comes last */
  return PITH_OK;
}

static void insert(stairs *s, size_t candidate, double values) {
  size_t at = s->count;
  while (at > 0 && s->values[at - 1] > values) {
    s->candidate[at] = s->candidate[at - 1];
    s->values[at] = s->values[at - 1];
    at--;
  }
  s->candidate[at] = candidate;
  s->values[at] = values;
  s->count++;
}

/* Two ratios can mean the same values of a small layer. */
static int is_known(const stairs *s, double values) {
  for (size_t i = 0; i < s->count; i++) {
    if (s->values[i] == values) {
      return 1;
    }
  }
  return 0;
}

static pith_status climb(const pith_assignment *a, size_t layer, stairs *s) {
  double before = 0;
  s->count = 0;
  for (size_t i = 0; i < a->options; i++) {
    double values = 0;
    PITH_TRY(values_of(a, a->option[i], a->p->layer[layer].n, &values));
    if (!is_known(s, values)) {
      insert(s, a->option[i], values);
    }
  }
  for (size_t i = 0; i < s->count; i++) {
    double bytes, error;
    pith_profile_get(a->p, layer, s->candidate[i], &bytes, &error);
    s->size[i] = i == 0 ? INFINITY : fmax(0, before - error) / (s->values[i] - s->values[i - 1]);
    s->size[i] = i == 0 ? INFINITY : fmin(s->size[i], s->size[i - 1]); /* sampling may say otherwise */
    before = error;
  }
  return PITH_OK;
}

static void cut(const pith_assignment *a, const stairs *s, double threshold, size_t *trial) {
  for (size_t l = 0; l < a->p->layers; l++) {
    size_t i = 0;
    while (i + 1 < s[l].count && s[l].size[i + 1] >= threshold) {
      i++;
    }
    trial[l] = s[l].candidate[i];
  }
}

static int compare_falling(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x < y) - (x > y);
}

/* The first of the falling thresholds that keeps the budget: the error falls along the list. */
static void find_threshold(const pith_assignment *a, const stairs *s, const double *thresholds, size_t count,
                           size_t *choice) {
  size_t low = 0, high = count ? count - 1 : 0;
  double bytes, error;
  while (low < high) {
    size_t middle = (low + high) / 2;
    cut(a, s, thresholds[middle], choice);
    pith__assignment_total(a, choice, &bytes, &error);
    *(error <= a->budget ? &high : &low) = error <= a->budget ? middle : middle + 1;
  }
  cut(a, s, count ? thresholds[low] : 0, choice);
}

pith_status pith__global_choose(const pith_assignment *a, size_t *choice) {
  size_t layers = a->p->layers, count = 0;
  stairs *s = calloc(layers + 1, sizeof *s);
  double *thresholds = calloc(layers * a->options + 1, sizeof *thresholds);
  pith_status status = s && thresholds ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory to plan %zu layers", layers);
  for (size_t l = 0; l < layers && status == PITH_OK; l++) {
    status = climb(a, l, &s[l]);
    for (size_t i = 0; i < s[l].count && !a->p->layer[l].fixed; i++) {
      thresholds[count++] = s[l].size[i]; /* infinite of the first: nothing but the least ratios */
    }
  }
  if (status == PITH_OK) {
    qsort(thresholds, count, sizeof *thresholds, compare_falling);
    find_threshold(a, s, thresholds, count, choice);
  }
  free(s);
  free(thresholds);
  return status;
}

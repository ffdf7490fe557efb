/* SPDX-License-Identifier: Apache-2.0 */
/* What assigners have in common: prices by the metric, and candidates in the order of their strength. */
#include <stdlib.h>

#include "base/size.h"
#include "solve/methods.h"

void pith__assignment_price(const pith_assignment *a, size_t layer, size_t candidate, double *bytes, double *error) {
  *bytes = *error = 0;
  pith_profile_get(a->p, layer, candidate, bytes, error); /* the profile is complete */
  *error = pith__metric_error(a->metric, *error);
}

void pith__assignment_total(const pith_assignment *a, const size_t *choice, double *bytes, double *error) {
  *bytes = *error = 0;
  for (size_t l = 0; l < a->p->layers; l++) {
    double b, e;
    pith__assignment_price(a, l, choice[l], &b, &e);
    *bytes += b;
    *error += e;
  }
}

static int compare_rungs(const void *a, const void *b) {
  const pith_rung *x = a, *y = b;
  if (x->bytes != y->bytes) {
    return x->bytes < y->bytes ? -1 : 1;
  }
  return x->error != y->error ? (x->error < y->error ? -1 : 1)
                              : (x->candidate > y->candidate) - (x->candidate < y->candidate);
}

static pith_rung rung_of(const pith_assignment *a, size_t candidate) {
  pith_rung r = {candidate, 0, 0};
  for (size_t l = 0; l < a->p->layers; l++) {
    double bytes, error;
    if (!a->p->layer[l].fixed) {
      pith__assignment_price(a, l, candidate, &bytes, &error);
      r.bytes += bytes;
      r.error += error;
    }
  }
  return r;
}

void pith__ladder_make(const pith_assignment *a, size_t most, pith_ladder *ladder) {
  pith_rung all[PITH_CANDIDATES_MAX];
  size_t kept = 0;
  for (size_t i = 0; i < a->options; i++) {
    all[i] = rung_of(a, a->option[i]);
  }
  qsort(all, a->options, sizeof *all, compare_rungs);
  for (size_t i = 0; i < a->options; i++) {
    if (!kept || all[i].error < all[kept - 1].error) {
      all[kept++] = all[i];
    }
  }
  ladder->rungs = pith__least(kept, most);
  for (size_t i = 0; i < ladder->rungs; i++) {
    ladder->rung[i] = all[kept > most && most > 1 ? i * (kept - 1) / (most - 1) : i];
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The other ways to a plan, beside lgreco.h. Each fills choice[layer] with a candidate of the profile: the smallest of
 * its kind within the budget, or, where it finds none, what loses least. The caller looks whether the budget is kept.
 */
#ifndef PITH_SOLVE_METHODS_H
#define PITH_SOLVE_METHODS_H

#include "solve/plan_object.h"

/* What is to be shared out, and among which candidates. */
typedef struct pith_assignment {
  const pith_profile *p;
  const size_t *option; /* candidates that may be used */
  size_t options;
  pith_plan_metric metric;
  double budget;
} pith_assignment;

/* Bytes, and the error by the metric, of a layer and of all layers. */
void pith__assignment_price(const pith_assignment *a, size_t layer, size_t candidate, double *bytes, double *error);
void pith__assignment_total(const pith_assignment *a, const size_t *choice, double *bytes, double *error);

/* ---- ladder.c: candidates by size, each losing less than those below it ---- */

typedef struct pith_rung {
  size_t candidate;
  double bytes, error; /* of all layers that are decided */
} pith_rung;

typedef struct pith_ladder {
  pith_rung rung[PITH_CANDIDATES_MAX];
  size_t rungs;
} pith_ladder;

/* At most `most` rungs; of more every so-and-so-many-th is taken. */
void pith__ladder_make(const pith_assignment *a, size_t most, pith_ladder *ladder);

/* ---- The methods ---- */

/* kmeans.c: clusters of layers by size and norm, the more sensitive ones losing less. `as_cgx`: as CGX has them. */
pith_status pith__kmeans_choose(const pith_assignment *a, int as_cgx, size_t *choice);

/* assigners.c */
pith_status pith__linear_choose(const pith_assignment *a, size_t *choice);
pith_status pith__best_choose(const pith_assignment *a, size_t *choice);

/* bayes.c */
pith_status pith__bayes_choose(const pith_assignment *a, size_t *choice);

/* threshold_plan.c. PITH_ERR_UNSUPPORTED if a candidate that loses something does not send the largest values. */
pith_status pith__global_choose(const pith_assignment *a, size_t *choice);

/* candidates.c: a number that grows with what a codec of a family lets through; 0 for one without a strength. */
double pith__strength_of(const pith_codec *codec);

/* Accordion: `critical` where the norm has changed by `threshold` of itself since the window before, else `otherwise`.
 */
pith_status pith__accordion_choose(const pith_profile *p, const pith_profile *before, double threshold, size_t critical,
                                   size_t otherwise, size_t *choice);

#endif

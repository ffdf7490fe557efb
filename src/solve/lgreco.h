/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L-GreCo programme: one option for each layer, so that the cost is least and the sum of errors stays within a
 * budget. Pure arithmetic on tables. docs/planner.md says why the result is what it is.
 */
#ifndef PITH_SOLVE_LGRECO_H
#define PITH_SOLVE_LGRECO_H

#include "base/status.h"

#define PITH_LGRECO_STEPS 10000 /* of the error axis */

typedef struct pith_problem {
  size_t layers, options;
  const double *cost, *error; /* layers × options, not negative */
  double budget;
  /* With `ready` layers are served one after another, none before it is ready, and the cost is the end of the last one:
   * end = max(end, ready) + cost. Layers are then in the order they become ready. NULL: the cost is the sum. */
  const double *ready;
  const size_t *start; /* a choice to be no worse than, if it keeps the budget; NULL: none */
} pith_problem;

/* choice[layer] = option. PITH_ERR_RANGE if no choice keeps the budget. */
pith_status pith__lgreco_solve(const pith_problem *p, size_t *choice);

double pith__problem_cost(const pith_problem *p, const size_t *choice);
double pith__problem_error(const pith_problem *p, const size_t *choice);

#endif

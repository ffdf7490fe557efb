/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the exchange of a layer costs, and when a step ends: layers become ready one after another in the backward pass,
 * wait for the link, and are served in that order. A model with few numbers, to choose by.
 */
#ifndef PITH_SOLVE_STEP_COST_H
#define PITH_SOLVE_STEP_COST_H

#include "profile/profile.h"
#include "sim/estimate.h"

typedef struct pith_step {
  pith_plan_cost cost;       /* with defaults filled in */
  size_t *order;             /* layers in the order they become ready */
  double *ready;             /* when, in that order */
  pith_estimator *estimator; /* of the cost's topology; NULL: there is none */
} pith_step;

pith_status pith__step_init(pith_step *step, const pith_profile *p, const pith_plan_cost *cost);
void pith__step_fini(pith_step *step);

/* Seconds of a layer's exchange with a candidate. */
double pith__step_service(const pith_step *step, const pith_profile *p, size_t layer, size_t candidate);

pith_status pith__step_seconds(const pith_profile *p, const size_t *choice, const pith_plan_cost *cost,
                               double *seconds);

#endif

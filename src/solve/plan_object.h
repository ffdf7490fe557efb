/* SPDX-License-Identifier: Apache-2.0 */
/* Plans, inside. */
#ifndef PITH_SOLVE_PLAN_OBJECT_H
#define PITH_SOLVE_PLAN_OBJECT_H

#include <math.h>

#include "profile/profile.h"

/* An error by a metric, from a squared one. */
static inline double pith__metric_error(pith_plan_metric metric, double squared) {
  return metric == PITH_PLAN_L2 ? sqrt(squared) : squared;
}

typedef struct pith_plan_line {
  char *name, *spec;
  size_t shape[PITH_SHAPE_MAX], dimensions, n;
  int has_shape;
  double bytes, error; /* error by the plan's metric; negative: not known */
} pith_plan_line;

struct pith_plan {
  size_t count;
  pith_plan_line *line;
  char *method, *objective, *reference, *note, *fallback; /* NULL: none */
  pith_plan_metric metric;
  double budget;
  char *rules, *text;
};

/* A plan of `count` empty lines. */
pith_status pith__plan_create(size_t count, pith_plan **plan);

/* Copies a text to a field of a plan. */
pith_status pith__plan_put(char **field, const char *text);

/* Once lines and fields are there: checks names and specs, makes specs canonical, writes rules and text. */
pith_status pith__plan_finish(pith_plan *plan);

/* The text of the file, anew. */
pith_status pith__plan_write(pith_plan *plan);

/* How a plan was made. Without a reference that is NULL, without a budget negative. */
typedef struct pith_plan_origin {
  const char *method, *objective, *reference;
  pith_plan_metric metric;
  double budget;
} pith_plan_origin;

/* A plan from a choice of candidates for every layer of a profile; fixed layers are never compressed. */
pith_status pith__plan_from_choice(const pith_profile *p, const size_t *choice, const pith_plan_origin *origin,
                                   pith_plan **plan);

/* The words of files for metrics, in the order of pith_plan_metric; NULL behind the last. */
extern const char *const pith__metric_names[];

/* The candidates that a plan takes, for each layer of the profile. PITH_ERR_MISMATCH if it is for another model. */
pith_status pith__plan_to_choice(const pith_plan *plan, const pith_profile *p, size_t *choice);

#endif

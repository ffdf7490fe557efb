/* Plans, inside. */
#ifndef PITH_SOLVE_PLAN_OBJECT_H
#define PITH_SOLVE_PLAN_OBJECT_H

#include "profile/profile.h"

typedef struct pith_plan_line {
  char *name, *spec;
  size_t shape[PITH_SHAPE_MAX], dimensions, n;
  int has_shape;
  double bytes, error; /* negative: not known */
} pith_plan_line;

struct pith_plan {
  size_t count;
  pith_plan_line *line;
  char *method, *objective, *reference, *note, *fallback; /* NULL: none */
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

/* A plan from a choice of candidates for every layer of a profile; fixed layers travel uncompressed whatever it says.
 */
pith_status pith__plan_from_choice(const pith_profile *p, const size_t *choice, const char *method,
                                   const char *objective, const char *reference, double budget, pith_plan **plan);

/* The candidates that a plan takes, for each layer of the profile. PITH_ERR_MISMATCH if it is for another model. */
pith_status pith__plan_to_choice(const pith_plan *plan, const pith_profile *p, size_t *choice);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shortlist: the specs that planning starts from. It stands beside the methods, so that the planner and `auto` know
 * none of them by name.
 */
#ifndef PITH_CODEC_SHORTLIST_H
#define PITH_CODEC_SHORTLIST_H

#include <pith/plan.h>

#define PITH_MIX "mix"           /* in place of a spec or of families: all of the shortlist */
#define PITH_UNCOMPRESSED "none" /* the spec of layers that are not compressed */

enum { PITH_SHORTLIST_TIMED = 5, PITH_SHORTLIST_PLANS = 11 };

/* What `mix` has candidates around; ends with NULL. */
extern const char *const pith__shortlist[];

/* Those of them that cost time, in the order in which checkpoints have their times. */
extern const char *const pith__shortlist_timed[PITH_SHORTLIST_TIMED];

/* A plan that `auto` considers: one spec for all layers, or the best choice within the error of that spec. */
typedef struct pith_shortlist_plan {
  const char *name; /* for people */
  pith_plan_method method;
  pith_plan_objective objective;
  const char *uniform, *families;
  int family; /* plans of one number are variants of one another */
} pith_shortlist_plan;

extern const pith_shortlist_plan pith__shortlist_plans[PITH_SHORTLIST_PLANS];

#endif

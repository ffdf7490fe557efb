/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of a model's gradients, inside. All sums are in one array of doubles, so that ranks can add them up in one
 * exchange: for each layer samples, skipped, Σ norm², Σ of the norm² of the largest hundredth, then bytes and errors of
 * each candidate.
 */
#ifndef PITH_PROFILE_PROFILE_H
#define PITH_PROFILE_PROFILE_H

#include <pith/plan.h>
#include <string.h>

#include "base/minimal_size.h"
#include "codec/codec.h"
#include "profile/measure.h"

#define PITH_SHAPE_MAX 16

enum { PITH_SUM_SAMPLES, PITH_SUM_SKIPPED, PITH_SUM_NORM, PITH_SUM_TOP, PITH_SUM_BYTES };

typedef struct pith_profiled {
  char *name;
  size_t shape[PITH_SHAPE_MAX], dimensions, n;
  int fixed;
  void *sketch;     /* what low rank keeps between updates, in the profile's space; NULL before the first */
  _Atomic int warm; /* whether there is anything in it */
} pith_profiled;

struct pith_profile {
  size_t layers, candidates, stride;
  size_t minimal; /* layers under this many values travel uncompressed, as in rules */
  pith_small_reason small;
  pith_profiled *layer;
  pith_codec **codec;
  double *values;
  pith_space *space; /* where gradients and sketches are; NULL: main memory */
};

/* None of the layers is exact for its size. Before the first measurement. */
void pith__profile_take_small(pith_profile *p);

/* The sums of one layer; errors are behind the bytes. */
static inline double *pith__sums(const pith_profile *p, size_t layer) { return p->values + layer * p->stride; }
static inline double *pith__sum_errors(const pith_profile *p, size_t layer) {
  return pith__sums(p, layer) + PITH_SUM_BYTES + p->candidates;
}

/* What is to be measured on a gradient of a layer that is not fixed: error_table.c. `sampled`: block codecs on some
 * blocks of large layers, others for each rank of ctx->ranks and in steps that are 4 apart. */
pith_status pith__measurement_init(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx, int sampled,
                                   pith_measurement *m);

/* Measures in main memory. */
pith_status pith__measure(const pith_measurement *m, pith_measured *measured);

/* What follows for the profile: it is added to its sums. */
pith_status pith__profile_add(pith_profile *p, const pith_measurement *m, const pith_measured *measured);

/* pith_profile_update() by samples. */
pith_status pith__profile_sample(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx);

/* Bytes of what low rank keeps for a layer; 0: nothing. */
size_t pith__sketch_size(pith_profile *p, size_t layer);

/* How many values a shape has; PITH_ERR_RANGE if it has too many dimensions or values. `name` is for the message. */
pith_status pith__shape_count(const char *name, const size_t *shape, size_t dimensions, size_t *n);

/* Whether a text can name a layer of a plan, which becomes a pattern of rules. */
pith_status pith__check_layer_name(const char *name);

/* No name comes twice. Sorts the list. */
pith_status pith__check_unique(const char **names, size_t count);

/* The place of a spec among the candidates, however it is written. PITH_ERR_STATE if it was not measured. */
pith_status pith__profile_find(const pith_profile *p, const char *spec, size_t *candidate);

/* Every layer that a plan can decide has been measured. */
pith_status pith__profile_complete(const pith_profile *p);

/* The method that a spec names last: "topk" for ef/topk:0.01, "eden" for eden:3. */
pith_text pith__family_in(const char *spec);
static inline pith_text pith__family_of(const pith_codec *codec) { return pith__family_in(codec->spec); }

#endif

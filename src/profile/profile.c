/* SPDX-License-Identifier: Apache-2.0 */
/* Profiles: the object, its sums, and what can be asked of them. error_table.c measures, profile_file.c reads and
 * writes. */
#include "profile/profile.h"

#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"

#define NUMBER_MAX 1e200 /* sums of these stay finite */

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

pith_status pith__shape_count(const char *name, const size_t *shape, size_t dimensions, size_t *n) {
  size_t count = 1;
  PITH_REQUIRE(dimensions <= PITH_SHAPE_MAX, PITH_ERR_RANGE, "layer %s has %zu dimensions; %d are possible", name,
               dimensions, PITH_SHAPE_MAX);
  for (size_t i = 0; i < dimensions; i++) {
    int overflow = __builtin_mul_overflow(count, shape[i], &count);
    PITH_REQUIRE(!overflow && count <= SIZE_MAX / 64, PITH_ERR_RANGE, "layer %s has more values than any memory", name);
  }
  *n = count;
  return PITH_OK;
}

pith_status pith__check_layer_name(const char *name) {
  size_t size = strlen(name);
  int blank = size && (strchr(" \t\r\n", name[0]) || strchr(" \t\r\n", name[size - 1]));
  PITH_REQUIRE(size && !blank && !strpbrk(name, "*?[]=,;\n"), PITH_ERR_ARGUMENT,
               "\"%s\" cannot name a layer of a plan: names have none of * ? [ ] = , ; and no blanks around them",
               name);
  return PITH_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp(*(const char *const *)a, *(const char *const *)b);
}

pith_status pith__check_unique(const char **names, size_t count) {
  qsort(names, count, sizeof *names, compare_names);
  for (size_t i = 0; i + 1 < count; i++) {
    PITH_REQUIRE(strcmp(names[i], names[i + 1]) != 0, PITH_ERR_ARGUMENT, "layer %s comes twice", names[i]);
  }
  return PITH_OK;
}

static pith_status check_names(const pith_profile *p) {
  const char **names = calloc(p->layers + 1, sizeof *names);
  PITH_REQUIRE(names, PITH_ERR_MEMORY, "no memory for names");
  for (size_t i = 0; i < p->layers; i++) {
    names[i] = p->layer[i].name;
  }
  pith_status status = pith__check_unique(names, p->layers);
  free(names);
  return status;
}

static pith_status add_layer(pith_profile *p, const pith_layer *given) {
  pith_profiled *l = &p->layer[p->layers];
  PITH_REQUIRE(given->name && (given->shape || !given->dimensions), PITH_ERR_ARGUMENT, "layer %zu has no name or shape",
               p->layers);
  PITH_TRY(pith__check_layer_name(given->name));
  PITH_TRY(pith__shape_count(given->name, given->shape, given->dimensions, &l->n));
  l->name = strdup(given->name);
  PITH_REQUIRE(l->name, PITH_ERR_MEMORY, "no memory for layer %s", given->name);
  l->dimensions = given->dimensions;
  l->fixed = given->dimensions <= 1 || l->n < p->minimal;
  if (given->dimensions) {
    memcpy(l->shape, given->shape, given->dimensions * sizeof *l->shape);
  }
  p->layers++;
  return PITH_OK;
}

/* ---- Candidates -------------------------------------------------------------------------------------------------- */

static pith_status add_candidate(pith_profile *p, pith_text spec) {
  char text[PITH_SPEC_MAX];
  PITH_REQUIRE(spec.size < sizeof text, PITH_ERR_SPEC, "candidate %zu has more than %d characters", p->candidates + 1,
               PITH_SPEC_MAX - 1);
  PITH_REQUIRE(p->candidates < PITH_CANDIDATES_MAX, PITH_ERR_RANGE, "there are more than %d candidates",
               PITH_CANDIDATES_MAX);
  memcpy(text, spec.at, spec.size);
  text[spec.size] = 0;
  PITH_TRY(pith_codec_create(text, &p->codec[p->candidates]));
  p->candidates++;
  for (size_t i = 0; i + 1 < p->candidates; i++) {
    PITH_REQUIRE(strcmp(p->codec[i]->spec, p->codec[p->candidates - 1]->spec) != 0, PITH_ERR_ARGUMENT,
                 "the candidate %s comes twice", p->codec[i]->spec);
  }
  return PITH_OK;
}

static pith_status add_candidates(pith_profile *p, const char *text) {
  p->codec = calloc(PITH_CANDIDATES_MAX, sizeof *p->codec);
  PITH_REQUIRE(p->codec, PITH_ERR_MEMORY, "no memory for candidates");
  while (*text) {
    size_t size = strcspn(text, ";");
    if (size) {
      PITH_TRY(add_candidate(p, (pith_text){text, size}));
    }
    text += size + (text[size] == ';');
  }
  PITH_REQUIRE(p->candidates, PITH_ERR_SPEC, "there is no candidate; write specs with ';' between them, as in q:2;q:4");
  return PITH_OK;
}

/* ---- The object -------------------------------------------------------------------------------------------------- */

static pith_status build(pith_profile *p, const pith_layer *layers, size_t count, const char *candidates) {
  PITH_TRY(pith_minimal_size(&p->minimal));
  p->small = pith__small_reason(p->minimal);
  PITH_TRY(add_candidates(p, candidates));
  p->layer = calloc(count + 1, sizeof *p->layer);
  PITH_REQUIRE(p->layer, PITH_ERR_MEMORY, "no memory for %zu layers", count);
  for (size_t i = 0; i < count; i++) {
    pith_layer layer = PITH_LAYER_INIT;
    PITH_TRY(PITH_STRUCT_READ_AT(pith_layer, layers, i, &layer));
    PITH_TRY(add_layer(p, &layer));
  }
  PITH_TRY(check_names(p));
  p->stride = PITH_SUM_BYTES + 2 * p->candidates;
  p->values = calloc(count * p->stride + 1, sizeof *p->values);
  PITH_REQUIRE(p->values, PITH_ERR_MEMORY, "no memory for the statistics of %zu layers", count);
  return PITH_OK;
}

void pith__profile_take_small(pith_profile *p) {
  for (size_t l = 0; l < p->layers; l++) {
    p->layer[l].fixed = p->layer[l].dimensions <= 1 || p->layer[l].n == 0;
  }
}

pith_status pith_profile_create(const pith_layer *layers, size_t count, const char *candidates,
                                pith_profile **profile) {
  PITH_REQUIRE((layers || !count) && candidates && profile, PITH_ERR_ARGUMENT,
               "pith_profile_create: layers, candidates or profile is NULL");
  pith_profile *made = calloc(1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for a profile");
  pith_status status = build(made, layers, count, candidates);
  if (status != PITH_OK) {
    pith_profile_destroy(made);
    return status;
  }
  *profile = made;
  return PITH_OK;
}

void pith_profile_destroy(pith_profile *p) {
  if (!p) {
    return;
  }
  for (size_t i = 0; i < p->layers; i++) {
    free(p->layer[i].name);
    pith__space_release(p->space, p->layer[i].sketch);
  }
  for (size_t c = 0; c < p->candidates; c++) {
    pith_codec_destroy(p->codec[c]);
  }
  free(p->layer);
  free(p->codec);
  free(p->values);
  free(p);
}

void pith_profile_reset(pith_profile *p) { memset(p->values, 0, p->layers * p->stride * sizeof *p->values); }

double *pith_profile_values(pith_profile *p, size_t *count) {
  *count = p->layers * p->stride;
  return p->values;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static pith_status update(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx, int sampled) {
  PITH_REQUIRE(p && layer < p->layers, PITH_ERR_ARGUMENT, "pith_profile_update: there is no layer %zu", layer);
  const pith_profiled *l = &p->layer[layer];
  PITH_REQUIRE(x.n == l->n && (x.data || !x.n), PITH_ERR_ARGUMENT, "layer %s has %zu values, not %zu", l->name, l->n,
               x.n);
  pith_measurement m;
  pith_measured measured;
  PITH_TRY(pith__measurement_init(p, layer, x, ctx, sampled, &m));
  if (l->fixed) {
    return PITH_OK;
  }
  PITH_TRY(pith__measure(&m, &measured));
  return pith__profile_add(p, &m, &measured);
}

pith_status pith_profile_update(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *given) {
  pith_ctx ctx = PITH_CTX_INIT;
  PITH_TRY(given ? PITH_STRUCT_READ(pith_ctx, given, &ctx) : PITH_OK);
  return update(p, layer, x, &ctx, 0);
}

pith_status pith__profile_sample(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx) {
  return update(p, layer, x, ctx, 1);
}

/* ---- Asking ------------------------------------------------------------------------------------------------------ */

size_t pith_profile_layers(const pith_profile *p) { return p->layers; }

size_t pith_profile_candidates(const pith_profile *p) { return p->candidates; }

const char *pith_profile_candidate(const pith_profile *p, size_t i) {
  return i < p->candidates ? p->codec[i]->spec : NULL;
}

pith_status pith_profile_layer_get(const pith_profile *p, size_t index, pith_profile_layer *layer) {
  PITH_REQUIRE(p && layer && index < p->layers, PITH_ERR_ARGUMENT, "pith_profile_layer_get: there is no layer %zu",
               index);
  const pith_profiled *l = &p->layer[index];
  const double *sums = pith__sums(p, index);
  double samples = sums[PITH_SUM_SAMPLES], each = samples > 0 ? 1 / samples : 0;
  pith_profile_layer found = {.name = l->name,
                              .shape = l->shape,
                              .dimensions = l->dimensions,
                              .n = l->n,
                              .fixed = l->fixed,
                              .samples = (uint64_t)samples,
                              .skipped = (uint64_t)sums[PITH_SUM_SKIPPED],
                              .norm = sums[PITH_SUM_NORM] * each,
                              .top = sums[PITH_SUM_TOP] * each};
  return PITH_STRUCT_WRITE(pith_profile_layer, &found, layer);
}

pith_status pith_profile_get(const pith_profile *p, size_t layer, size_t candidate, double *bytes, double *error) {
  PITH_REQUIRE(p && bytes && error && layer < p->layers && candidate < p->candidates, PITH_ERR_ARGUMENT,
               "pith_profile_get: there is no layer %zu or candidate %zu", layer, candidate);
  const double *sums = pith__sums(p, layer);
  double samples = sums[PITH_SUM_SAMPLES];
  if (p->layer[layer].fixed) {
    *bytes = (double)(p->layer[layer].n * sizeof(float));
    *error = 0;
    return PITH_OK;
  }
  PITH_REQUIRE(samples > 0, PITH_ERR_STATE, "layer %s has no statistics: no gradient of it was measured",
               p->layer[layer].name);
  *bytes = sums[PITH_SUM_BYTES + candidate] / samples;
  *error = pith__sum_errors(p, layer)[candidate] / samples;
  return PITH_OK;
}

pith_text pith__family_in(const char *spec) {
  const char *stage = strrchr(spec, '/');
  stage = stage ? stage + 1 : spec;
  return (pith_text){stage, strcspn(stage, ":,")};
}

pith_status pith__profile_find(const pith_profile *p, const char *spec, size_t *candidate) {
  pith_codec *codec;
  PITH_TRY(pith_codec_create(spec, &codec));
  size_t c = 0;
  while (c < p->candidates && strcmp(p->codec[c]->spec, codec->spec) != 0) {
    c++;
  }
  pith_codec_destroy(codec);
  PITH_REQUIRE(c < p->candidates, PITH_ERR_STATE,
               "%s was not measured: it is none of the %zu candidates of these statistics", spec, p->candidates);
  *candidate = c;
  return PITH_OK;
}

pith_status pith__profile_complete(const pith_profile *p) {
  for (size_t i = 0; i < p->layers; i++) {
    for (size_t c = 0; c < p->candidates; c++) {
      double bytes, error;
      PITH_TRY(pith_profile_get(p, i, c, &bytes, &error));
      PITH_REQUIRE(bytes >= 0 && error >= 0 && bytes <= NUMBER_MAX && error <= NUMBER_MAX, PITH_ERR_STATE,
                   "layer %s: its statistics for %s are no numbers to plan with", p->layer[i].name, p->codec[c]->spec);
    }
  }
  return PITH_OK;
}

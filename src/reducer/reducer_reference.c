/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters as differences. Every rank keeps a reference of what it was given last of each shard; the owner encodes
 * how its parameters differ from it, and all ranks, the owner too, add what they decode. So references have the same
 * bits on all ranks, and what one message loses is a part of the next difference: the error of a gathered parameter is
 * that of encoding one difference, whatever came before. docs/reducer.md, "Parameters as differences".
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/spec.h"
#include "codec/codec.h"
#include "reducer/stages.h"

#define NAME "delta"

enum { EVERY, FRESH, STORE };
enum { TILE = 1024 };

static const pith_param params[] = {
    {sizeof(pith_param), "every", PITH_PARAM_INT, 0, 1e9, "256", NULL,
     "one of so many messages has whole parameters; 0: the first alone"},
    {sizeof(pith_param), "fresh", PITH_PARAM_CHOICE, 0, 0, "none", "none|8", "how these travel: exactly, or by q:8"},
    {sizeof(pith_param), "store", PITH_PARAM_CHOICE, 0, 0, "f32", "f32|bf16", "how references are kept"},
    {0},
};

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static pith_status read_spec(const char *text, pith_value values[PITH_PARAMS_MAX], const char **rest) {
  pith_spec spec;
  *rest = NULL;
  if (strncmp(text, NAME, strlen(NAME)) != 0 || !strchr(":,/", text[strlen(NAME)])) {
    return PITH_OK;
  }
  *rest = strchr(text, '/');
  PITH_REQUIRE(*rest, PITH_ERR_SPEC, "\"%s\": " NAME " needs a codec for the differences, as in " NAME "/q:4", text);
  ++*rest;
  PITH_TRY(pith__spec_parse(text, &spec));
  return pith__spec_bind(&spec.stage[0], params, values);
}

pith_status pith__reference_create(pith_reducer *r, pith_reducer_layer *l, const char *name, const char *spec,
                                   const char **rest) {
  pith_value values[PITH_PARAMS_MAX];
  const pith_codec *codec;
  PITH_TRY(read_spec(spec, values, rest));
  if (!*rest) {
    *rest = spec;
    return PITH_OK;
  }
  PITH_TRY(pith__reducer_codec(r, *rest, &codec));
  pith_reference *made = calloc(1, sizeof *made);
  PITH_REQUIRE(made, PITH_ERR_MEMORY, "no memory for layer %s", name);
  l->reference = made;
  made->dtype = values[STORE].i ? PITH_BF16 : PITH_F32;
  made->every = (uint64_t)values[EVERY].i;
  made->fresh = values[FRESH].i ? "q:8" : "none";
  size_t used = pith__spec_print(NAME, params, values, made->spec, sizeof made->spec);
  size_t length = strlen(codec->spec);
  PITH_REQUIRE(used < sizeof made->spec && length + 2 <= sizeof made->spec - used, PITH_ERR_SPEC,
               "the spec is longer than %d characters when written out", PITH_SPEC_MAX - 1);
  made->spec[used] = '/';
  memcpy(made->spec + used + 1, codec->spec, length + 1);
  made->fingerprint = pith__hash64(made->spec, used + 1 + length, codec->fingerprint);
  made->space = r->space;
  return pith__space_zeros(r->space, (l->n + 1) * pith_dtype_size(made->dtype), &made->values);
}

void pith__reference_destroy(pith_reference *reference) {
  if (reference) {
    pith__space_release(reference->space, reference->values);
    free(reference);
  }
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static int is_exact(const pith_reducer_layer *l) { return strcmp(l->match.codec->spec, "none") == 0; }

/* Layers take turns, so that no step has all of them whole. */
int pith__reference_is_fresh(const pith_reducer_layer *l) {
  uint64_t every = l->reference->every;
  return is_exact(l) || l->steps == 0 || (every && (l->steps + l->number % every) % every == 0);
}

pith_status pith__reference_wire(pith_reducer *r, pith_reducer_layer *l, int restores) {
  const pith_reference *kept = l->reference;
  pith_dtype dtype = kept->dtype == PITH_BF16 || restores ? kept->dtype : l->dtype;
  int is_exact_now = restores || is_exact(l) || strcmp(kept->fresh, "none") == 0;
  if (!restores && !pith__reference_is_fresh(l)) {
    return pith__reducer_codec(r, l->match.codec->spec, &l->wire);
  }
  return is_exact_now ? pith__reducer_exact_codec(r, dtype, &l->wire) : pith__reducer_codec(r, kept->fresh, &l->wire);
}

pith_span pith__reference_values(const pith_reducer_layer *l) {
  return (pith_span){l->reference->values, l->n, l->reference->dtype};
}

/* ---- In main memory ---------------------------------------------------------------------------------------------- */

static size_t tile_at(size_t n, size_t at) { return n - at < TILE ? n - at : TILE; }

void pith__reference_subtract(const pith_reducer_layer *l, pith_cspan src, float *to) {
  pith_span kept = pith__reference_values(l);
  float wide[TILE];
  for (size_t at = 0, n; at < l->n; at += n) {
    n = tile_at(l->n, at);
    const float *from = pith__span_load((pith_cspan){kept.data, kept.n, kept.dtype}, at, n, to + at);
    if (from != to + at) {
      memcpy(to + at, from, n * sizeof *to);
    }
    pith__values_scale(-1.0f, to + at, n);
    pith__values_add(pith__span_load(src, at, n, wide), to + at, n);
  }
}

void pith__reference_copy(const pith_reducer_layer *l, pith_span to) {
  pith_span kept = pith__reference_values(l);
  float wide[TILE];
  for (size_t at = 0, n; at < l->n; at += n) {
    n = tile_at(l->n, at);
    const float *from = pith__span_load((pith_cspan){kept.data, kept.n, kept.dtype}, at, n, wide);
    pith__span_store(to, at, n, from, PITH_SET, NULL);
  }
}

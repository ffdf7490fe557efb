/* The reducer: layers with names, specs and states, reduced in the background; its life, and what ranks must agree on.
 */
#include "engine/reducer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/struct_size.h"
#include "codec/codec.h"

#define LAYERS_MOST ((size_t)1 << 20)

/* ---- Life -------------------------------------------------------------------------------------------------------- */

pith_status pith_reducer_create(pith_comm *comm, const char *rules, uint64_t seed, pith_reducer **made) {
  PITH_REQUIRE(comm && rules && made, PITH_ERR_ARGUMENT,
               "pith_reducer_create: comm, rules and reducer must not be NULL");
  pith_reducer *r = calloc(1, sizeof *r);
  PITH_REQUIRE(r, PITH_ERR_MEMORY, "no memory for a reducer");
  r->comm = comm;
  r->seed = seed;
  char *fixed = NULL;
  pith_status status = pith__reducer_split(rules, &fixed, &r->adaptive.text);
  if (status == PITH_OK) {
    status = pith_rules_create(fixed, &r->rules);
  }
  free(fixed);
  if (status != PITH_OK) {
    free(r->adaptive.text);
    free(r);
    return status;
  }
  *made = r;
  return PITH_OK;
}

static void release_layer(pith_named *l) {
  free(l->name);
  free(l->shape);
  free(l->debt);
  pith_state_destroy(l->state);
}

void pith_reducer_destroy(pith_reducer *r) {
  if (!r) {
    return;
  }
  pith__reducer_drop_flights(r);
  for (size_t i = 0; i < r->count; i++) {
    release_layer(&r->layers[i]);
  }
  free(r->layers);
  pith__reducer_adapt_fini(r);
  pith_rules_destroy(r->rules);
  free(r);
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

pith_status pith__reducer_grow(void **array, size_t *room, size_t used, size_t size) {
  if (used < *room) {
    return PITH_OK;
  }
  size_t more = *room ? 2 * *room : 16;
  void *larger = realloc(*array, more * size);
  PITH_REQUIRE(larger, PITH_ERR_MEMORY, "no memory for a reducer");
  *array = larger;
  *room = more;
  return PITH_OK;
}

static pith_status shape_size(const char *name, const size_t *shape, size_t dimensions, size_t *n) {
  *n = 1;
  for (size_t d = 0; d < dimensions; d++) {
    PITH_REQUIRE(!__builtin_mul_overflow(*n, shape[d], n) && *n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT,
                 "layer %s is too large", name);
  }
  return PITH_OK;
}

static pith_status check_name(const pith_reducer *r, const char *name) {
  for (size_t i = 0; i < r->count; i++) {
    PITH_REQUIRE(strcmp(r->layers[i].name, name) != 0, PITH_ERR_ARGUMENT, "there is already a layer %s", name);
  }
  return PITH_OK;
}

/* The last rule has the adaptive spec, if there is one; small layers are exact by default. */
static int is_adapted(const pith_reducer *r, const pith_named *l) {
  return r->adaptive.text && l->match.rule + 1 == pith_rules_count(r->rules);
}

static pith_status fill_layer(const pith_reducer *r, const pith_layer *given, pith_named *l) {
  const char *name = given->name;
  const size_t *shape = given->shape, dimensions = given->dimensions;
  *l = (pith_named){.dtype = given->dtype,
                    .match = PITH_MATCH_INIT,
                    .rows = dimensions > 1 ? shape[0] : 0,
                    .number = pith__hash64(name, strlen(name), 0),
                    .dimensions = dimensions,
                    .adapted = SIZE_MAX};
  PITH_TRY(shape_size(name, shape, dimensions, &l->n));
  PITH_TRY(pith_rules_find(r->rules, name, dimensions, l->n, &l->match));
  PITH_TRY(pith_state_create(l->match.codec, l->n, l->rows <= l->n ? l->rows : 0, &l->state));
  l->name = strdup(name);
  l->shape = malloc((dimensions + 1) * sizeof *shape);
  if (!l->name || !l->shape) {
    release_layer(l);
    return pith_fail(PITH_ERR_MEMORY, "no memory for layer %s", name);
  }
  if (dimensions) {
    memcpy(l->shape, shape, dimensions * sizeof *shape);
  }
  if (is_adapted(r, l)) {
    l->adapted = 0; /* counted when all layers are there */
    l->match.reason = r->adaptive.text;
  }
  return PITH_OK;
}

pith_status pith_reducer_add(pith_reducer *r, const pith_layer *given, size_t *index) {
  pith_layer layer = PITH_LAYER_INIT;
  PITH_REQUIRE(r && given, PITH_ERR_ARGUMENT, "pith_reducer_add: reducer and layer must not be NULL");
  PITH_TRY(PITH_STRUCT_READ(pith_layer, given, &layer));
  PITH_REQUIRE(layer.name && *layer.name && (layer.shape || layer.dimensions == 0), PITH_ERR_ARGUMENT,
               "pith_reducer_add: a layer needs a name and a shape");
  PITH_REQUIRE(!r->checked && !r->adaptive.adapter, PITH_ERR_STATE, "layer %s comes too late: the first step has begun",
               layer.name);
  PITH_REQUIRE(layer.dtype == PITH_F32 || layer.dtype == PITH_F16 || layer.dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "layer %s: gradients are f32, f16 or bf16", layer.name);
  PITH_REQUIRE(r->count < LAYERS_MOST, PITH_ERR_ARGUMENT, "more than %zu layers", LAYERS_MOST);
  PITH_TRY(check_name(r, layer.name));
  PITH_TRY(pith__reducer_grow((void **)&r->layers, &r->room, r->count, sizeof *r->layers));
  PITH_TRY(fill_layer(r, &layer, &r->layers[r->count]));
  if (index) {
    *index = r->count;
  }
  r->count++;
  return PITH_OK;
}

size_t pith_reducer_layers(const pith_reducer *r) { return r ? r->count : 0; }

pith_status pith_reducer_layer_stats(const pith_reducer *r, size_t index, pith_layer_stats *stats) {
  PITH_REQUIRE(r && stats && index < r->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  const pith_named *l = &r->layers[index];
  pith_layer_stats found = {.name = l->name,
                            .spec = l->match.codec->spec,
                            .reason = l->match.reason,
                            .n = l->n,
                            .bytes = pith__layer_bytes(l),
                            .steps = l->steps};
  return PITH_STRUCT_WRITE(pith_layer_stats, &found, stats);
}

pith_status pith_reducer_layer_traffic(const pith_reducer *r, size_t index, pith_traffic *traffic) {
  PITH_REQUIRE(r && traffic && index < r->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  return PITH_STRUCT_WRITE(pith_traffic, &r->layers[index].traffic, traffic);
}

pith_status pith_reducer_scale(pith_reducer *r, float factor) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "pith_reducer_scale: reducer must not be NULL");
  PITH_REQUIRE(r->flight_count == 0 && r->open_count == 0, PITH_ERR_STATE,
               "a step is under way: finish it before scaling");
  for (size_t i = 0; i < r->count; i++) {
    PITH_TRY(pith_state_scale(r->layers[i].state, factor));
    pith__debt_scale(&r->layers[i], factor);
  }
  return PITH_OK;
}

/* ---- Before the first step --------------------------------------------------------------------------------------- */

static pith_status check_rules(const pith_reducer *r) {
  for (size_t rule = 0; rule < pith_rules_count(r->rules); rule++) {
    size_t matched = 0;
    for (size_t i = 0; i < r->count; i++) {
      matched += pith_rules_matches(r->rules, rule, r->layers[i].name) != 0;
    }
    PITH_REQUIRE(matched, PITH_ERR_SPEC, "rule number %zu of \"%s\" matches none of %zu layers", rule + 1,
                 pith_rules_text(r->rules), r->count);
  }
  return PITH_OK;
}

static uint64_t layer_hash(const pith_reducer *r, size_t i) {
  const pith_named *l = &r->layers[i];
  uint64_t facts[5] = {l->number, l->n, l->rows, (uint64_t)l->dtype, l->match.codec->fingerprint};
  return pith__hash64(facts, sizeof facts, 0);
}

/* What all ranks must have in common. */
static uint64_t summary_of(const pith_reducer *r) {
  const char *text = r->adaptive.text ? r->adaptive.text : "";
  uint64_t hash = pith__hash64(text, strlen(text), r->seed);
  for (size_t i = 0; i < r->count; i++) {
    uint64_t layer = layer_hash(r, i);
    hash = pith__hash64(&layer, sizeof layer, hash);
  }
  return hash;
}

/* What ranks tell each other once their summaries differ: all of them know that, and take part. */
typedef struct reducer_facts {
  char rules[256];
  uint64_t seed, count;
} reducer_facts;

/* Finds the first layer that rank p has otherwise than rank 0. */
static pith_status fail_layer(pith_reducer *r, int p) {
  int ranks = pith_comm_size(r->comm);
  uint64_t *mine = calloc(r->count, sizeof *mine), *all = calloc(r->count * (size_t)ranks, sizeof *all);
  pith_status status = mine && all ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t i = 0; i < r->count && status == PITH_OK; i++) {
    mine[i] = layer_hash(r, i);
  }
  if (status == PITH_OK) {
    status = pith_all_gather(r->comm, (pith_cspan){mine, r->count, PITH_I64},
                             (pith_span){all, r->count * (size_t)ranks, PITH_I64}, NULL, NULL, NULL);
  }
  size_t i = 0;
  while (status == PITH_OK && i + 1 < r->count && all[i] == all[(size_t)p * r->count + i]) {
    i++;
  }
  if (status == PITH_OK) {
    status = pith_fail(
        PITH_ERR_MISMATCH,
        "ranks disagree: layer %zu, %s on this rank, has another name, shape, type or spec on rank %d than on rank 0",
        i, r->layers[i].name, p);
  }
  free(mine);
  free(all);
  return status;
}

/* Rank p is the first whose summary is another than rank 0's: says in what. */
static pith_status fail_difference(pith_reducer *r, int p) {
  int ranks = pith_comm_size(r->comm);
  reducer_facts mine = {.seed = r->seed, .count = r->count}, *all = calloc((size_t)ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a reducer");
  snprintf(mine.rules, sizeof mine.rules, "%s", r->adaptive.text ? r->adaptive.text : pith_rules_text(r->rules));
  size_t words = sizeof mine / sizeof(uint64_t);
  pith_status status = pith_all_gather(r->comm, (pith_cspan){&mine, words, PITH_I64},
                                       (pith_span){all, words * (size_t)ranks, PITH_I64}, NULL, NULL, NULL);
  reducer_facts first = all[0], other = all[p];
  free(all);
  PITH_TRY(status);
  first.rules[sizeof first.rules - 1] = other.rules[sizeof other.rules - 1] = 0;
  PITH_REQUIRE(!strcmp(first.rules, other.rules), PITH_ERR_MISMATCH,
               "ranks disagree: rank 0 has the spec %s, rank %d has %s; give all ranks the same", first.rules, p,
               other.rules);
  PITH_REQUIRE(first.seed == other.seed, PITH_ERR_MISMATCH,
               "ranks disagree: rank 0 has the seed %" PRIu64 ", rank %d has %" PRIu64, first.seed, p, other.seed);
  PITH_REQUIRE(first.count == other.count, PITH_ERR_MISMATCH,
               "ranks disagree: rank 0 has %" PRIu64 " layers, rank %d has %" PRIu64, first.count, p, other.count);
  return fail_layer(r, p);
}

pith_status pith_reducer_check(pith_reducer *r) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "pith_reducer_check: reducer must not be NULL");
  if (r->checked) {
    return PITH_OK;
  }
  PITH_TRY(check_rules(r));
  PITH_TRY(pith__reducer_adapter_ready(r));
  int ranks = pith_comm_size(r->comm);
  uint64_t mine = summary_of(r), *all = calloc((size_t)ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a reducer");
  pith_status status = pith_all_gather(r->comm, (pith_cspan){&mine, 1, PITH_I64},
                                       (pith_span){all, (size_t)ranks, PITH_I64}, NULL, NULL, NULL);
  int other = 0;
  for (int p = ranks - 1; p > 0 && status == PITH_OK; p--) {
    other = all[p] != all[0] ? p : other;
  }
  free(all);
  if (status == PITH_OK && other) {
    status = fail_difference(r, other);
  }
  r->checked = status == PITH_OK;
  return status;
}

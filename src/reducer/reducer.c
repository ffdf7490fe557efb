/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: layers with names, specs and states, reduced in the background. Its life, and what ranks agree on. */
#include "reducer/reducer.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/struct_size.h"
#include "codec/codec.h"
#include "device/cuda_space.h"
#include "device/device_carrier.h"
#include "device/hosts_carrier.h"
#include "device/staged_carrier.h"
#include "memory/memory.h"
#include "reducer/stages.h"

#define LAYERS_MOST ((size_t)1 << 20)
#define SMALL_ROOM 4096                      /* bytes that any layer may take */
#define STAGED_CHUNK_BYTES ((size_t)8 << 20) /* copies to and from the host overlap with messages: smaller chunks */

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* A comm reduces gradients in main memory by itself; memory of a device, and shards, go over it as over a carrier. */
static pith_status open_with(pith_reducer *r, const char *rules) {
  pith_reducer_options *options = &r->options;
  PITH_FREED char *fixed = NULL;
  PITH_TRY(pith__reducer_split(rules, &fixed, &r->adaptive.text));
  PITH_TRY(pith_rules_create(fixed, &r->rules));
  PITH_REQUIRE(!r->adaptive.text || !(options->capturable || options->lent), PITH_ERR_UNSUPPORTED,
               "%s changes specs between steps, and %s", r->adaptive.text,
               options->lent ? "with them what layers keep, which is lent here" : "a graph repeats one");
  if (options->cuda) {
    pith_cuda_space *space = NULL;
    PITH_TRY(pith__cuda_space_create(options->stream, options->allocator, &space));
    r->space = &space->base;
    space->carrier = &r->carrier;
  }
  if (r->comm && !options->cuda && !options->sharded) {
    return PITH_OK;
  }
  if (r->comm) {
    pith_device_way way = PITH_DEVICE_AUTO, across = PITH_DEVICE_STAGED;
    PITH_TRY(options->cuda ? pith__device_ways(options->carrier, &way, &across) : PITH_OK);
    PITH_REQUIRE(!options->capturable || way != PITH_DEVICE_STAGED, PITH_ERR_ARGUMENT,
                 "a step can be captured only where a carrier enqueues it, and not through pinned memory (staged)");
    int in_levels = options->cuda && !options->sharded && !options->capturable && pith__hosts_fit(r->comm);
    if (across == PITH_DEVICE_NCCL && !in_levels) {
      PITH_LOG_INFO("rank %d: no NCCL between hosts: gradients are not summed within hosts first", r->rank);
    }
    PITH_TRY(in_levels       ? pith__hosts_carrier(r->comm, way, across, &r->carrier)
             : options->cuda ? pith__device_carrier(r->comm, way, options->capturable, &r->carrier)
                             : pith__comm_carrier(r->comm, &r->carrier));
    r->comm = NULL;
  }
  r->stage_ops = r->space ? &pith__stage_cuda : &pith__stage_host;
  return pith__stages_create(r, &r->stages);
}

static pith_status create(pith_reducer from, const char *rules, uint64_t seed, const pith_reducer_options *options,
                          pith_reducer **made) {
  pith_reducer_options read = PITH_REDUCER_OPTIONS_INIT;
  PITH_TRY(options ? PITH_STRUCT_READ(pith_reducer_options, options, &read) : PITH_OK);
  PITH_REQUIRE(from.comm || !read.cuda == !(from.carrier.caps & PITH_CARRIER_CUDA), PITH_ERR_ARGUMENT,
               "carrier %s moves memory of %s, and gradients are not there", from.carrier.name,
               read.cuda ? "the host" : "a CUDA device");
  PITH_REQUIRE(!read.capturable || (read.cuda && !read.sharded), PITH_ERR_ARGUMENT,
               "a step can be captured only where a carrier enqueues it on a CUDA stream, as that of NCCL does");
  PITH_REQUIRE(!read.lent || !read.sharded, PITH_ERR_ARGUMENT, "states of shards cannot be lent");
  pith_reducer *r = malloc(sizeof *r);
  PITH_REQUIRE(r, PITH_ERR_MEMORY, "no memory for a reducer");
  *r = from;
  r->seed = seed;
  r->made_in = pith__fork_number();
  r->options = read;
  pith_status status = open_with(r, rules);
  if (status != PITH_OK) {
    if (from.comm && r->carrier.release) {
      r->carrier.release(r->carrier.self); /* that of a caller stays his */
    }
    pith_reducer_destroy(r);
    return status;
  }
  *made = r;
  return PITH_OK;
}

pith_status pith_reducer_create_with(pith_comm *comm, const char *rules, uint64_t seed,
                                     const pith_reducer_options *options, pith_reducer **made) {
  PITH_REQUIRE(comm && rules && made, PITH_ERR_ARGUMENT,
               "pith_reducer_create: comm, rules and reducer must not be NULL");
  return create((pith_reducer){.comm = comm, .rank = comm->rank, .ranks = comm->ranks}, rules, seed, options, made);
}

pith_status pith_reducer_create(pith_comm *comm, const char *rules, uint64_t seed, pith_reducer **made) {
  return pith_reducer_create_with(comm, rules, seed, NULL, made);
}

pith_status pith_reducer_create_over(const pith_carrier *given, const char *rules, uint64_t seed,
                                     const pith_reducer_options *options, pith_reducer **made) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  PITH_REQUIRE(given && rules && made, PITH_ERR_ARGUMENT,
               "pith_reducer_create_over: carrier, rules and reducer must not be NULL");
  PITH_TRY(PITH_STRUCT_READ(pith_carrier, given, &carrier));
  PITH_REQUIRE(carrier.name && carrier.start && carrier.wait, PITH_ERR_ARGUMENT,
               "a carrier needs a name, start and wait");
  PITH_REQUIRE(carrier.ranks > 0 && carrier.rank >= 0 && carrier.rank < carrier.ranks, PITH_ERR_ARGUMENT,
               "carrier %s: rank %d of %d is impossible", carrier.name, carrier.rank, carrier.ranks);
  return create((pith_reducer){.carrier = carrier, .rank = carrier.rank, .ranks = carrier.ranks}, rules, seed, options,
                made);
}

pith_status pith__reducer_check_process(const pith_reducer *r) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "reducer must not be NULL");
  PITH_REQUIRE(r->made_in == pith__fork_number(), PITH_ERR_STATE,
               "this process was forked from rank %d, whose reducer it cannot use: it can only destroy its copy, or "
               "create one of its own",
               r->rank);
  return PITH_OK;
}

int pith__reducer_is_idle(const pith_reducer *r) {
  int waiting = 0;
  for (size_t g = 0; g < r->group_count; g++) {
    waiting |= r->groups[g].is_sent || r->groups[g].missing < r->groups[g].count;
  }
  return r->operation_count == 0 && r->open_count == 0 && !waiting;
}

static void release_layer(pith_reducer_layer *l) {
  free(l->name);
  free(l->shape);
  free(l->exact);
  pith__reference_destroy(l->reference);
  pith__space_release(l->state ? l->state->space : NULL, l->pending);
  pith_state_destroy(l->state);
}

void pith_reducer_destroy(pith_reducer *r) {
  if (!r) {
    return;
  }
  pith_kept_error error;
  pith__error_keep(&error);
  pith__stages_destroy(r->stages);
  pith__reducer_drop_operations(r);
  pith__reducer_drop_groups(r);
  free(r->order);
  for (size_t i = 0; i < r->count; i++) {
    release_layer(&r->layers[i]);
  }
  free(r->layers);
  pith__reducer_adapt_fini(r);
  pith_rules_destroy(r->rules);
  pith__cuda_space_destroy((pith_cuda_space *)r->space);
  free(r);
  pith__error_restore(&error);
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

static pith_status find_codec(pith_reducer *r, const pith_layer *given, const char *spec, pith_reducer_layer *l) {
  if (spec && pith_adapter_is(spec)) {
    PITH_REQUIRE(r->adaptive.text && strcmp(spec, r->adaptive.text) == 0, PITH_ERR_SPEC,
                 "layer %s: its adaptive spec is %s, and that of the reducer %s", given->name, spec,
                 r->adaptive.text ? r->adaptive.text : "none");
    l->adapted = 0; /* counted when all layers are there */
    l->match.reason = r->adaptive.text;
    return pith__reducer_codec(r, "none", &l->match.codec);
  }
  if (spec) {
    l->match.reason = "its own spec";
    PITH_TRY(r->options.sharded ? pith__reference_create(r, l, given->name, spec, &spec) : PITH_OK);
    return pith__reducer_codec(r, spec, &l->match.codec);
  }
  if (!given->exact) {
    return pith_rules_find(r->rules, given->name, given->dimensions, l->n, &l->match);
  }
  l->exact = strdup(given->exact);
  PITH_REQUIRE(l->exact, PITH_ERR_MEMORY, "no memory for layer %s", given->name);
  l->match.reason = l->exact;
  return pith__reducer_codec(r, "none", &l->match.codec);
}

uint64_t pith_layer_number(const char *name) { return name ? pith__hash64(name, strlen(name), 0) : 0; }

pith_status pith__reducer_check_codec(const pith_reducer *r, const char *name, const pith_reducer_layer *l,
                                      const pith_codec *codec) {
  PITH_REQUIRE(!r->options.sharded || !pith_codec_moment(codec, NULL), PITH_ERR_UNSUPPORTED,
               "layer %s: %s sends the momentum of whole layers, and the reducer is for shards", name, codec->spec);
  PITH_REQUIRE(!r->options.lent || !pith_codec_moment(codec, NULL), PITH_ERR_UNSUPPORTED,
               "layer %s: %s sends the momentum of an optimizer that Pith drives, and here states are lent to it", name,
               codec->spec);
  if (r->space && pith_cuda_supports(codec) != PITH_OK) {
    return pith_fail(PITH_ERR_UNSUPPORTED, "layer %s: %s", name, pith_error());
  }
  PITH_REQUIRE(!r->options.capturable || pith__codec_store(codec) == PITH_STORE_F32, PITH_ERR_UNSUPPORTED,
               "layer %s: %s rounds its residual by other random numbers in every step, and a graph would repeat those "
               "of one: leave store out",
               name, codec->spec);
  size_t most = pith_codec_bound(codec, l->n), values = pith__layer_bytes(l);
  PITH_REQUIRE(
      !r->options.capturable || (codec->caps & (PITH_CAP_FIXED | PITH_CAP_ROUNDS)) || most <= values / 2 + SMALL_ROOM,
      PITH_ERR_UNSUPPORTED,
      "layer %s: payloads of %s vary in size up to %zu bytes, and in a graph, where nobody waits for sizes, all "
      "of that would be sent for %zu bytes of values; topk with a small ratio has a small bound",
      name, codec->spec, most, values);
  return PITH_OK;
}

static pith_status fill_layer(pith_reducer *r, const pith_layer *given, const char *spec, size_t owner,
                              pith_reducer_layer *l) {
  const char *name = given->name;
  const size_t *shape = given->shape, dimensions = given->dimensions;
  *l = (pith_reducer_layer){.n = 1,
                            .dtype = given->dtype,
                            .match = PITH_MATCH_INIT,
                            .rows = dimensions > 1 ? shape[0] : 0,
                            .number = pith_layer_number(name),
                            .dimensions = dimensions,
                            .adapted = SIZE_MAX,
                            .owner = (int)owner};
  for (size_t d = 0; d < dimensions; d++) {
    PITH_REQUIRE(!__builtin_mul_overflow(l->n, shape[d], &l->n) && l->n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT,
                 "layer %s is too large", name);
  }
  PITH_TRY(find_codec(r, given, spec, l));
  PITH_TRY(pith__reducer_check_codec(r, name, l, l->match.codec));
  PITH_TRY((r->options.lent ? pith__state_create_lent : pith__state_create_in)(
      r->space, l->match.codec, l->n, l->rows <= l->n ? l->rows : 0, r->rank, &l->state));
  l->name = strdup(name);
  l->shape = malloc((dimensions + 1) * sizeof *shape);
  PITH_REQUIRE(l->name && l->shape, PITH_ERR_MEMORY, "no memory for layer %s", name);
  if (dimensions) {
    memcpy(l->shape, shape, dimensions * sizeof *shape);
  }
  /* The last rule has the adaptive spec, if there is one; small layers are exact by default. */
  if (r->adaptive.text && !spec && !l->exact && l->match.rule + 1 == pith_rules_count(r->rules)) {
    l->adapted = 0;
    l->match.reason = r->adaptive.text;
  }
  return PITH_OK;
}

/* One for each owner, who has a state of his own. */
static pith_status add_entries(pith_reducer *r, const pith_layer *layer, const char *spec, size_t *index) {
  size_t first = r->count, owners = pith__reducer_owners(r);
  pith_status status = PITH_OK;
  for (size_t owner = 0; owner < owners && status == PITH_OK; owner++) {
    status = pith__reducer_grow((void **)&r->layers, &r->room, r->count, sizeof *r->layers);
    status = status == PITH_OK ? fill_layer(r, layer, spec, owner, &r->layers[r->count++]) : status;
  }
  while (status != PITH_OK && r->count > first) {
    release_layer(&r->layers[--r->count]);
  }
  if (status == PITH_OK && index) {
    *index = first / owners;
  }
  return status;
}

static pith_status add(pith_reducer *r, const pith_layer *given, const char *spec, size_t *index) {
  pith_layer layer = PITH_LAYER_INIT;
  PITH_REQUIRE(r && given, PITH_ERR_ARGUMENT, "pith_reducer_add: reducer and layer must not be NULL");
  PITH_TRY(PITH_STRUCT_READ(pith_layer, given, &layer));
  PITH_REQUIRE(layer.name && *layer.name && (layer.shape || layer.dimensions == 0), PITH_ERR_ARGUMENT,
               "pith_reducer_add: a layer needs a name and a shape");
  PITH_REQUIRE(!r->checked && !r->adaptive.adapter, PITH_ERR_STATE, "layer %s comes too late: the first step has begun",
               layer.name);
  PITH_REQUIRE(layer.dtype == PITH_F32 || layer.dtype == PITH_F16 || layer.dtype == PITH_BF16 ||
                   (layer.dtype == PITH_F64 && layer.exact),
               PITH_ERR_ARGUMENT, "layer %s: gradients are f32, f16 or bf16; of f64 only if the layer is exact",
               layer.name);
  PITH_REQUIRE(r->count / pith__reducer_owners(r) < LAYERS_MOST, PITH_ERR_ARGUMENT, "more than %zu layers",
               LAYERS_MOST);
  for (size_t i = 0; i < r->count; i++) {
    PITH_REQUIRE(r->layers[i].owner || strcmp(r->layers[i].name, layer.name) != 0, PITH_ERR_ARGUMENT,
                 "there is already a layer %s", layer.name);
  }
  return add_entries(r, &layer, spec, index);
}

pith_status pith_reducer_add(pith_reducer *r, const pith_layer *given, size_t *index) {
  PITH_REQUIRE(!r || !r->options.sharded, PITH_ERR_STATE, "a sharded reducer takes shards: pith_reducer_add_shards()");
  return add(r, given, NULL, index);
}

pith_status pith_reducer_add_shards(pith_reducer *r, const pith_layer *shard, const char *spec, size_t *index) {
  PITH_REQUIRE(r && spec, PITH_ERR_ARGUMENT, "pith_reducer_add_shards: reducer and spec must not be NULL");
  PITH_REQUIRE(r->options.sharded, PITH_ERR_STATE, "the reducer is for whole gradients: options.sharded");
  return add(r, shard, spec, index);
}

pith_status pith_reducer_add_as(pith_reducer *r, const pith_layer *layer, const char *spec, size_t *index) {
  PITH_REQUIRE(r && spec, PITH_ERR_ARGUMENT, "pith_reducer_add_as: reducer and spec must not be NULL");
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "a sharded reducer takes shards: pith_reducer_add_shards()");
  return add(r, layer, spec, index);
}

size_t pith_reducer_layers(const pith_reducer *r) { return r ? r->count / pith__reducer_owners(r) : 0; }

pith_status pith__reducer_find(const pith_reducer *r, size_t index, pith_reducer_layer **layer) {
  PITH_REQUIRE(index < pith_reducer_layers(r), PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  *layer = &r->layers[index * pith__reducer_owners(r)];
  return PITH_OK;
}

pith_status pith_reducer_layer_stats(const pith_reducer *r, size_t index, pith_layer_stats *stats) {
  pith_reducer_layer *l = NULL;
  PITH_REQUIRE(stats, PITH_ERR_ARGUMENT, "pith_reducer_layer_stats: stats must not be NULL");
  PITH_TRY(pith__reducer_find(r, index, &l));
  pith_layer_stats found = {.name = l->name,
                            .spec = pith__layer_spec(l),
                            .reason = l->match.reason,
                            .n = l->n,
                            .bytes = pith__layer_bytes(l),
                            .steps = l->steps};
  return PITH_STRUCT_WRITE(pith_layer_stats, &found, stats);
}

pith_status pith_reducer_layer_traffic(const pith_reducer *r, size_t index, pith_traffic *traffic) {
  pith_reducer_layer *l = NULL;
  PITH_REQUIRE(traffic, PITH_ERR_ARGUMENT, "pith_reducer_layer_traffic: traffic must not be NULL");
  PITH_TRY(pith__reducer_find(r, index, &l));
  return PITH_STRUCT_WRITE(pith_traffic, &l->traffic, traffic);
}

pith_status pith_reducer_scale(pith_reducer *r, float factor) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "pith_reducer_scale: reducer must not be NULL");
  PITH_TRY(pith__reducer_check_owned(r, "scale"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before scaling");
  for (size_t i = 0; i < r->count; i++) {
    PITH_TRY(pith_state_scale(r->layers[i].state, factor));
    PITH_TRY(pith__pending_scale(&r->layers[i], factor));
  }
  return PITH_OK;
}

pith_status pith_reducer_scale_residual(pith_reducer *r, size_t index, float factor) {
  pith_reducer_layer *l = NULL;
  PITH_TRY(pith__reducer_find(r, index, &l));
  PITH_TRY(pith__reducer_check_owned(r, "scale"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before scaling");
  for (size_t owner = 0; owner < pith__reducer_owners(r); owner++) {
    PITH_TRY(pith_state_scale_residual(l[owner].state, factor));
    PITH_TRY(pith__pending_scale(&l[owner], factor));
  }
  return PITH_OK;
}

/* ---- Before the first step --------------------------------------------------------------------------------------- */

static pith_status check_rules(const pith_reducer *r) {
  int is_empty = r->options.lent && r->count == 0; /* as trees of a program may be */
  for (size_t rule = 0; rule < pith_rules_count(r->rules) && !is_empty; rule++) {
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
  const pith_reducer_layer *l = &r->layers[i];
  uint64_t facts[5] = {l->number, l->n, l->rows, (uint64_t)l->dtype, pith__layer_fingerprint(l)};
  return pith__hash64(facts, sizeof facts, 0);
}

/* What ranks tell each other once their summaries differ: all of them know that, and take part. */
typedef struct reducer_facts {
  char rules[256];
  uint64_t seed, count;
} reducer_facts;

/* Finds the first layer that rank p has otherwise than rank 0. */
static pith_status fail_layer(pith_reducer *r, int p) {
  PITH_FREED uint64_t *mine = calloc(r->count, sizeof *mine);
  PITH_FREED uint64_t *all = calloc(r->count * (size_t)r->ranks, sizeof *all);
  PITH_REQUIRE(mine && all, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t i = 0; i < r->count; i++) {
    mine[i] = layer_hash(r, i);
  }
  PITH_TRY(pith__reducer_gather(r, mine, r->count * sizeof *mine, all));
  size_t i = 0;
  while (i + 1 < r->count && all[i] == all[(size_t)p * r->count + i]) {
    i++;
  }
  return pith_fail(
      PITH_ERR_MISMATCH,
      "ranks disagree: layer %zu, %s on this rank, has another name, shape, type or spec on rank %d than on rank 0", i,
      r->layers[i].name, p);
}

/* Rank p is the first whose summary is another than rank 0's: says in what. */
static pith_status fail_difference(pith_reducer *r, int p) {
  reducer_facts mine = {.seed = r->seed, .count = r->count};
  PITH_FREED reducer_facts *all = calloc((size_t)r->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a reducer");
  snprintf(mine.rules, sizeof mine.rules, "%s", r->adaptive.text ? r->adaptive.text : pith_rules_text(r->rules));
  PITH_TRY(pith__reducer_gather(r, &mine, sizeof mine, all));
  reducer_facts first = all[0], other = all[p];
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
  PITH_TRY(pith__reducer_check_process(r));
  if (r->checked) {
    return PITH_OK;
  }
  PITH_TRY(r->options.sharded ? PITH_OK : check_rules(r));
  PITH_TRY(pith__reducer_adapter_ready(r));
  const char *text = r->adaptive.text ? r->adaptive.text : "";
  uint64_t mine = pith__hash64(text, strlen(text), r->seed); /* of what all ranks must have in common */
  for (size_t i = 0; i < r->count; i++) {
    uint64_t layer = layer_hash(r, i);
    mine = pith__hash64(&layer, sizeof layer, mine);
  }
  PITH_FREED uint64_t *all = calloc((size_t)r->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a reducer");
  PITH_TRY(pith__reducer_gather(r, &mine, sizeof mine, all));
  for (int p = 1; p < r->ranks; p++) {
    PITH_TRY(all[p] == all[0] ? PITH_OK : fail_difference(r, p));
  }
  PITH_TRY(r->is_ordered ? pith__reducer_agree_order(r) : PITH_OK);
  const char *way = pith__device_carrier_way(&r->carrier);
  if (way && strcmp(way, "staged") == 0 && !r->options.chunk_bytes) {
    r->options.chunk_bytes = STAGED_CHUNK_BYTES;
  }
  PITH_TRY(pith__reducer_has_groups(r) ? pith__reducer_form_groups(r) : PITH_OK);
  r->checked = 1;
  return PITH_OK;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

pith_status pith_reducer_start(pith_reducer *r, size_t index, void *gradient) {
  PITH_REQUIRE(r && index < r->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  PITH_TRY(pith__reducer_check_process(r));
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "shards travel by pith_reducer_reduce_scatter()");
  pith_reducer_layer *l = &r->layers[index];
  PITH_REQUIRE(gradient || l->n == 0, PITH_ERR_ARGUMENT, "layer %s: the gradient is NULL", l->name);
  PITH_REQUIRE((uintptr_t)gradient % pith_dtype_size(l->dtype) == 0, PITH_ERR_ARGUMENT,
               "layer %s: the gradient is not aligned for %s", l->name, pith_dtype_name(l->dtype));
  PITH_REQUIRE(l->started != r->step + 1, PITH_ERR_STATE, "layer %s was started twice in step %llu", l->name,
               (unsigned long long)r->step);
  PITH_REQUIRE(l->is_folded || !pith_codec_moment(l->match.codec, NULL), PITH_ERR_STATE,
               "layer %s sends its momentum (%s), which needs an optimizer: pith_reducer_update() (in PyTorch "
               "compress(…, optimizer=…))",
               l->name, l->match.codec->spec);
  PITH_REQUIRE(!r->options.lent || l->lent == r->step + 1, PITH_ERR_STATE,
               "layer %s starts without its arrays: pith_reducer_lend()", l->name);
  PITH_TRY(pith_reducer_check(r));
  PITH_TRY(r->options.in_parts ? pith__reducer_turn(r, &index, 1) : PITH_OK);
  PITH_TRY(pith__reducer_observe(r, l, gradient));
  PITH_TRY(pith__pending_release(l, (pith_span){gradient, l->n, l->dtype}));
  l->started = r->step + 1;
  l->steps++;
  return pith__reducer_has_groups(r) ? pith__reducer_put(r, index, gradient) : pith__reducer_send(r, index, gradient);
}

pith_status pith_reducer_flush(pith_reducer *r) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_TRY(pith__reducer_send_groups(r));
  return pith__reducer_send_joined(r);
}

pith_status pith_reducer_finish(pith_reducer *r) {
  PITH_TRY(pith__reducer_check_process(r));
  double waited = pith__now();
  pith_status left = pith_reducer_flush(r),
              arrived = r->stages ? pith__stages_finish(r->stages) : pith__reducer_wait(r);
  for (size_t g = 0; g < r->group_count; g++) {
    r->groups[g].missing = r->groups[g].count;
    r->groups[g].is_sent = 0;
  }
  r->next_group = 0;
  r->step++;
  pith__reducer_take_back(r);
  PITH_TRY(left);
  PITH_TRY(arrived);
  return pith__reducer_adapt(r, waited);
}

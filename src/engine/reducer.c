/*
 * The reducer: layers with names, specs and states, reduced in the background.
 *
 * Compressed and large layers become an operation each, at once, so that they travel while the next gradients are computed.
 * Small uncompressed ones are copied into a buffer and become one operation together: a message costs more than they do.
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/saturate.h"
#include "codec/codec.h"
#include "engine/comm.h"
#include "memory/memory.h"

#define FUSE_MOST ((size_t)64 << 10)    /* layers up to this many bytes are joined … */
#define FUSE_BUFFER ((size_t)1 << 20)   /* … until they are this many */
#define LAYERS_MOST ((size_t)1 << 20)

typedef struct layer {
  char *name;
  uint64_t number; /* from the name: the same on all ranks */
  size_t n, rows;
  pith_dtype dtype;
  pith_match match;
  pith_state *state;
  uint64_t steps, started; /* started: the step it was last started in, plus one */
} layer;

/* A layer that waits in the buffer, and where its mean goes. */
typedef struct fused {
  size_t layer, at; /* byte in the buffer */
  void *gradient;
} fused;

/* One operation under way. */
typedef struct flight {
  pith_request *request;
  uint8_t *buffer; /* of joined layers, else NULL */
  fused *members;
  size_t member_count;
} flight;

struct pith_reducer {
  pith_comm *comm;
  pith_rules *rules;
  uint64_t seed, step;
  int checked;
  layer *layers;
  size_t count, room;
  flight *flights;
  size_t flight_count, flight_room;
  flight open; /* joined layers that have not left yet; all of one type */
  size_t open_bytes, open_room;
  pith_dtype open_dtype;
};

/* ---- Life -------------------------------------------------------------------------------------------------------- */

pith_status pith_reducer_create(pith_comm *comm, const char *rules, uint64_t seed, pith_reducer **made) {
  PITH_REQUIRE(comm && rules && made, PITH_ERR_ARGUMENT, "pith_reducer_create: comm, rules and reducer must not be NULL");
  pith_reducer *r = calloc(1, sizeof *r);
  PITH_REQUIRE(r, PITH_ERR_MEMORY, "no memory for a reducer");
  r->comm = comm;
  r->seed = seed;
  pith_status status = pith_rules_create(rules, &r->rules);
  if (status != PITH_OK) {
    free(r);
    return status;
  }
  *made = r;
  return PITH_OK;
}

static void release_flight(flight *f) {
  free(f->buffer);
  free(f->members);
  *f = (flight){0};
}

void pith_reducer_destroy(pith_reducer *r) {
  if (!r) {
    return;
  }
  for (size_t i = 0; i < r->flight_count; i++) {
    if (r->flights[i].request) {
      pith_wait(r->flights[i].request); /* tensors are lent until then, whatever comes of it */
    }
    release_flight(&r->flights[i]);
  }
  release_flight(&r->open);
  for (size_t i = 0; i < r->count; i++) {
    free(r->layers[i].name);
    pith_state_destroy(r->layers[i].state);
  }
  free(r->layers);
  free(r->flights);
  pith_rules_destroy(r->rules);
  free(r);
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

/* Room for one more; arrays double. */
static pith_status grow(void **array, size_t *room, size_t used, size_t size) {
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
    PITH_REQUIRE(!__builtin_mul_overflow(*n, shape[d], n) && *n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT, "layer %s is too large", name);
  }
  return PITH_OK;
}

static pith_status check_name(const pith_reducer *r, const char *name) {
  for (size_t i = 0; i < r->count; i++) {
    PITH_REQUIRE(strcmp(r->layers[i].name, name) != 0, PITH_ERR_ARGUMENT, "there is already a layer %s", name);
  }
  return PITH_OK;
}

static pith_status fill_layer(const pith_reducer *r, const char *name, const size_t *shape, size_t dimensions, pith_dtype dtype, layer *l) {
  *l = (layer){.dtype = dtype, .rows = dimensions > 1 ? shape[0] : 0, .number = pith__hash64(name, strlen(name), 0)};
  PITH_TRY(shape_size(name, shape, dimensions, &l->n));
  PITH_TRY(pith_rules_find(r->rules, name, dimensions, l->n, &l->match));
  PITH_TRY(pith_state_create(l->match.codec, l->n, l->rows <= l->n ? l->rows : 0, &l->state));
  l->name = strdup(name);
  if (!l->name) {
    pith_state_destroy(l->state);
    return pith_fail(PITH_ERR_MEMORY, "no memory for layer %s", name);
  }
  return PITH_OK;
}

pith_status pith_reducer_add(pith_reducer *r, const char *name, const size_t *shape, size_t dimensions, pith_dtype dtype, size_t *index) {
  PITH_REQUIRE(r && name && *name && (shape || dimensions == 0), PITH_ERR_ARGUMENT, "pith_reducer_add: a layer needs a name and a shape");
  PITH_REQUIRE(!r->checked, PITH_ERR_STATE, "layer %s comes too late: the first step has begun", name);
  PITH_REQUIRE(dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16, PITH_ERR_ARGUMENT, "layer %s: gradients are f32, f16 or bf16",
               name);
  PITH_REQUIRE(r->count < LAYERS_MOST, PITH_ERR_ARGUMENT, "more than %zu layers", LAYERS_MOST);
  PITH_TRY(check_name(r, name));
  PITH_TRY(grow((void **)&r->layers, &r->room, r->count, sizeof *r->layers));
  PITH_TRY(fill_layer(r, name, shape, dimensions, dtype, &r->layers[r->count]));
  if (index) {
    *index = r->count;
  }
  r->count++;
  return PITH_OK;
}

size_t pith_reducer_layers(const pith_reducer *r) { return r ? r->count : 0; }

static size_t layer_bytes(const layer *l) { return l->n * pith_dtype_size(l->dtype); }

pith_status pith_reducer_layer(const pith_reducer *r, size_t index, pith_layer *info) {
  PITH_REQUIRE(r && info && index < r->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  const layer *l = &r->layers[index];
  *info = (pith_layer){l->name, l->match.codec->spec, l->match.reason, l->n, layer_bytes(l), l->steps};
  return PITH_OK;
}

/* ---- Before the first step --------------------------------------------------------------------------------------- */

static pith_status check_rules(const pith_reducer *r) {
  for (size_t rule = 0; rule < pith_rules_count(r->rules); rule++) {
    size_t matched = 0;
    for (size_t i = 0; i < r->count; i++) {
      matched += pith_rules_matches(r->rules, rule, r->layers[i].name) != 0;
    }
    PITH_REQUIRE(matched, PITH_ERR_SPEC, "rule number %zu of \"%s\" matches none of %zu layers", rule + 1, pith_rules_text(r->rules), r->count);
  }
  return PITH_OK;
}

/* What all ranks must have in common. */
static uint64_t summary_of(const pith_reducer *r) {
  uint64_t hash = r->seed;
  for (size_t i = 0; i < r->count; i++) {
    const layer *l = &r->layers[i];
    uint64_t facts[5] = {l->number, l->n, l->rows, (uint64_t)l->dtype, l->match.codec->fingerprint};
    hash = pith__hash64(facts, sizeof facts, hash);
  }
  return hash;
}

pith_status pith_reducer_check(pith_reducer *r) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "pith_reducer_check: reducer must not be NULL");
  if (r->checked) {
    return PITH_OK;
  }
  PITH_TRY(check_rules(r));
  int ranks = pith_comm_ranks(r->comm);
  uint64_t mine = summary_of(r), *all = calloc((size_t)ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a reducer");
  pith_status status =
      pith_all_gather(r->comm, (pith_cspan){&mine, 1, PITH_I64}, (pith_span){all, (size_t)ranks, PITH_I64}, NULL, NULL, NULL);
  for (int p = 0; p < ranks && status == PITH_OK; p++) {
    if (all[p] != all[0]) {
      status = pith_fail(PITH_ERR_MISMATCH, "rank %d has other layers, rules or another seed than rank 0", p);
    }
  }
  free(all);
  r->checked = status == PITH_OK;
  return status;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

static pith_status add_flight(pith_reducer *r, flight f) {
  PITH_TRY(grow((void **)&r->flights, &r->flight_room, r->flight_count, sizeof *r->flights));
  r->flights[r->flight_count++] = f;
  return PITH_OK;
}

static pith_status launch(pith_reducer *r, layer *l, void *gradient) {
  pith_call call = PITH_CALL_INIT;
  flight f = {0};
  call.codec = strcmp(l->match.codec->spec, "none") == 0 ? NULL : l->match.codec;
  call.state = call.codec ? l->state : NULL;
  call.ctx.seed = r->seed;
  call.ctx.step = r->step;
  call.ctx.layer = l->number;
  PITH_TRY(pith_allreduce(r->comm, (pith_cspan){gradient, l->n, l->dtype}, (pith_span){gradient, l->n, l->dtype}, PITH_MEAN, &call,
                          &f.request));
  return add_flight(r, f);
}

/* Sends the joined layers on their way. */
static pith_status launch_open(pith_reducer *r) {
  flight f = r->open;
  size_t n = r->open_bytes / pith_dtype_size(r->open_dtype);
  r->open = (flight){0};
  r->open_bytes = r->open_room = 0;
  if (f.member_count == 0) {
    release_flight(&f);
    return PITH_OK;
  }
  pith_span span = {f.buffer, n, r->open_dtype};
  pith_status status = pith_allreduce(r->comm, (pith_cspan){f.buffer, n, r->open_dtype}, span, PITH_MEAN, NULL, &f.request);
  if (status == PITH_OK) {
    status = add_flight(r, f);
  }
  if (status != PITH_OK && !f.request) {
    release_flight(&f);
  }
  return status;
}

static pith_status join(pith_reducer *r, size_t index, void *gradient) {
  layer *l = &r->layers[index];
  size_t bytes = layer_bytes(l);
  if (r->open.member_count && (r->open_dtype != l->dtype || r->open_bytes + bytes > FUSE_BUFFER)) {
    PITH_TRY(launch_open(r));
  }
  if (!r->open.buffer) {
    r->open.buffer = malloc(FUSE_BUFFER);
    PITH_REQUIRE(r->open.buffer, PITH_ERR_MEMORY, "no memory to join layers");
  }
  PITH_TRY(grow((void **)&r->open.members, &r->open_room, r->open.member_count, sizeof *r->open.members));
  r->open_dtype = l->dtype;
  r->open.members[r->open.member_count++] = (fused){index, r->open_bytes, gradient};
  memcpy(r->open.buffer + r->open_bytes, gradient, bytes);
  r->open_bytes += bytes;
  return PITH_OK;
}

pith_status pith_reducer_start(pith_reducer *r, size_t index, void *gradient) {
  PITH_REQUIRE(r && index < r->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", index);
  layer *l = &r->layers[index];
  PITH_REQUIRE(gradient || l->n == 0, PITH_ERR_ARGUMENT, "layer %s: the gradient is NULL", l->name);
  PITH_REQUIRE(l->started != r->step + 1, PITH_ERR_STATE, "layer %s was started twice in step %llu", l->name, (unsigned long long)r->step);
  PITH_TRY(pith_reducer_check(r));
  int plain = strcmp(l->match.codec->spec, "none") == 0;
  PITH_TRY(plain && layer_bytes(l) <= FUSE_MOST ? join(r, index, gradient) : launch(r, l, gradient));
  l->started = r->step + 1;
  l->steps++;
  return PITH_OK;
}

static void hand_back(const pith_reducer *r, const flight *f) {
  for (size_t i = 0; i < f->member_count; i++) {
    const fused *member = &f->members[i];
    memcpy(member->gradient, f->buffer + member->at, layer_bytes(&r->layers[member->layer]));
  }
}

pith_status pith_reducer_finish(pith_reducer *r) {
  PITH_REQUIRE(r, PITH_ERR_ARGUMENT, "pith_reducer_finish: reducer must not be NULL");
  pith_status first = launch_open(r);
  for (size_t i = 0; i < r->flight_count; i++) {
    flight *f = &r->flights[i];
    pith_status status = f->request ? pith_wait(f->request) : PITH_OK;
    if (status == PITH_OK) {
      hand_back(r, f);
    }
    first = first == PITH_OK ? status : first;
    release_flight(f);
  }
  r->flight_count = 0;
  r->step++;
  return first;
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

#define REDUCER_MAGIC 0x44524850u /* "PHRD" */

typedef struct reducer_header {
  uint32_t magic, version;
  uint64_t step, seed, layers, reserved;
} reducer_header;

typedef struct layer_header {
  uint64_t number, fingerprint, size;
} layer_header;

size_t pith_reducer_size(const pith_reducer *r) {
  size_t size = sizeof(reducer_header);
  for (size_t i = 0; i < r->count; i++) {
    size = pith__sat_add(size, pith__sat_add(sizeof(layer_header), pith_state_size(r->layers[i].state)));
  }
  return size;
}

pith_status pith_reducer_save(const pith_reducer *r, pith_out *out) {
  PITH_REQUIRE(r && out && out->data, PITH_ERR_ARGUMENT, "pith_reducer_save: reducer and out must not be NULL");
  PITH_REQUIRE(r->flight_count == 0 && r->open.member_count == 0, PITH_ERR_STATE, "a step is under way: finish it before saving");
  size_t size = pith_reducer_size(r), at = sizeof(reducer_header);
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the reducer takes %zu bytes, the buffer has %zu", size, out->capacity);
  uint8_t *bytes = out->data;
  reducer_header head = {REDUCER_MAGIC, 1, r->step, r->seed, r->count, 0};
  memcpy(bytes, &head, sizeof head);
  for (size_t i = 0; i < r->count; i++) {
    const layer *l = &r->layers[i];
    layer_header lh = {l->number, l->match.codec->fingerprint, pith_state_size(l->state)};
    memcpy(bytes + at, &lh, sizeof lh);
    pith_out piece = {bytes + at + sizeof lh, size - at - sizeof lh, 0};
    PITH_TRY(pith_state_save(l->state, &piece));
    at += sizeof lh + piece.size;
  }
  out->size = size;
  return PITH_OK;
}

static pith_status check_saved_layer(const layer *l, pith_bytes rest, layer_header *lh) {
  PITH_REQUIRE(rest.size >= sizeof *lh, PITH_ERR_CORRUPT, "the checkpoint ends before layer %s", l->name);
  memcpy(lh, rest.data, sizeof *lh);
  PITH_REQUIRE(lh->number == l->number, PITH_ERR_STATE, "the checkpoint has another layer where %s should be", l->name);
  PITH_REQUIRE(lh->fingerprint == l->match.codec->fingerprint, PITH_ERR_STATE, "the checkpoint has another spec for layer %s than %s",
               l->name, l->match.codec->spec);
  PITH_REQUIRE(lh->size == pith_state_size(l->state) && lh->size <= rest.size - sizeof *lh, PITH_ERR_CORRUPT,
               "the checkpoint has another size for layer %s", l->name);
  return PITH_OK;
}

/* Walks the layers of a checkpoint: first into fresh states, to see that all of them load; then into the real ones. */
static pith_status walk(pith_reducer *r, pith_bytes in, int for_real) {
  size_t at = sizeof(reducer_header);
  for (size_t i = 0; i < r->count; i++) {
    layer *l = &r->layers[i];
    layer_header lh;
    pith_state *target = l->state;
    PITH_TRY(check_saved_layer(l, (pith_bytes){(const uint8_t *)in.data + at, in.size - at}, &lh));
    if (!for_real) {
      PITH_TRY(pith_state_create(l->match.codec, l->n, l->state->rows, &target));
    }
    pith_status status = pith_state_load(target, (pith_bytes){(const uint8_t *)in.data + at + sizeof lh, (size_t)lh.size});
    if (!for_real) {
      pith_state_destroy(target);
    }
    PITH_TRY(status);
    at += sizeof lh + (size_t)lh.size;
  }
  PITH_REQUIRE(at == in.size, PITH_ERR_CORRUPT, "the checkpoint has %zu bytes behind its last layer", in.size - at);
  return PITH_OK;
}

pith_status pith_reducer_load(pith_reducer *r, pith_bytes in) {
  reducer_header head;
  PITH_REQUIRE(r && in.data, PITH_ERR_ARGUMENT, "pith_reducer_load: reducer and bytes must not be NULL");
  PITH_REQUIRE(r->flight_count == 0 && r->open.member_count == 0, PITH_ERR_STATE, "a step is under way: finish it before loading");
  PITH_REQUIRE(in.size >= sizeof head, PITH_ERR_CORRUPT, "a checkpoint has at least %zu bytes, not %zu", sizeof head, in.size);
  memcpy(&head, in.data, sizeof head);
  PITH_REQUIRE(head.magic == REDUCER_MAGIC && head.version == 1 && head.reserved == 0, PITH_ERR_CORRUPT,
               "these bytes are not a checkpoint of a reducer");
  PITH_REQUIRE(head.layers == r->count, PITH_ERR_STATE, "the checkpoint has %llu layers, the reducer %zu", (unsigned long long)head.layers,
               r->count);
  PITH_TRY(walk(r, in, 0));
  PITH_TRY(walk(r, in, 1));
  r->step = head.step;
  r->seed = head.seed;
  for (size_t i = 0; i < r->count; i++) {
    r->layers[i].started = 0;
  }
  return PITH_OK;
}

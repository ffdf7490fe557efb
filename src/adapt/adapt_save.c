/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of an adapter. One walk over everything that is kept serves all: it counts, writes or reads. Bytes are
 * read into a fresh adapter, checked, and only then take the place of what is there.
 */
#include <stdlib.h>
#include <string.h>

#include "adapt/adapt.h"
#include "base/hash.h"
#include "base/rng.h"

#define ADAPTER_MAGIC 0x44414850u /* "PHAD" */
#define ADAPTER_VERSION 2u

typedef struct adapter_header {
  uint32_t magic, version;
  uint64_t model;    /* spec, layers and candidates */
  uint64_t size;     /* of all of it */
  uint64_t checksum; /* of what follows */
} adapter_header;

typedef enum pass { COUNT, WRITE, READ } pass;

typedef struct walk {
  pass pass;
  uint8_t *at;
  size_t left, size; /* of what is read; of everything */
  int broken;
} walk;

/* What the bytes are good for. */
static uint64_t model_of(const pith_adapter *a) {
  uint64_t hash = pith__hash64(a->options.text, strlen(a->options.text), (uint64_t)a->ranks);
  for (size_t l = 0; l < a->layers; l++) {
    const pith_profiled *layer = &a->window->layer[l];
    hash = pith__hash64(layer->name, strlen(layer->name), hash);
    hash = pith__hash64(layer->shape, layer->dimensions * sizeof *layer->shape, hash);
  }
  for (size_t c = 0; c < a->window->candidates; c++) {
    hash = pith__hash64(&a->window->codec[c]->fingerprint, sizeof(uint64_t), hash);
  }
  return hash;
}

/* Data may be in a space. */
static void move_from(walk *w, pith_space *space, void *data, size_t size) {
  w->size += size;
  if (w->pass == COUNT || w->broken) {
    return;
  }
  if (w->pass == READ && w->left < size) {
    w->broken = 1;
    return;
  }
  w->broken = pith__space_copy(space, w->pass == READ ? data : w->at, w->pass == READ ? w->at : data, size) != PITH_OK;
  w->left -= w->pass == READ ? size : 0;
  w->at += size;
}

static void move(walk *w, void *data, size_t size) { move_from(w, NULL, data, size); }

/* What low rank keeps for the tables: there from a layer's first sample on. */
static void move_sketch(walk *w, pith_adapter *a, size_t layer) {
  pith_profiled *l = &a->window->layer[layer];
  pith_space *space = a->window->space;
  uint64_t size = l->sketch && l->warm ? pith__sketch_size(a->window, layer) : 0;
  move(w, &size, sizeof size);
  if (w->pass == READ && !w->broken && size) {
    w->broken = size != pith__sketch_size(a->window, layer) || pith__space_zeros(space, size, &l->sketch) != PITH_OK;
    l->warm = 1;
  }
  if (size && !w->broken) {
    move_from(w, space, l->sketch, size);
  }
}

/* Gradients that are being added up; only adapters with that option have any. */
static void move_sum(walk *w, pith_adapter *a, size_t layer) {
  size_t n = a->window->layer[layer].n;
  move(w, &a->summed[layer], sizeof *a->summed);
  if (w->pass == READ && !w->broken && a->summed[layer]) {
    w->broken = a->window->layer[layer].fixed || a->summed[layer] > a->options.accumulate ||
                w->left < n * sizeof(float) ||
                pith__space_zeros(a->window->space, n * sizeof(float), (void **)&a->sum[layer]) != PITH_OK;
  }
  if (a->summed[layer] && !w->broken) {
    move_from(w, a->window->space, a->sum[layer], n * sizeof(float));
  }
}

static void move_all(walk *w, pith_adapter *a) {
  pith_profile *profile[] = {a->window, a->last, a->before};
  move(w, &a->s, sizeof a->s);
  move(w, a->in_force, a->layers);
  move(w, a->plans, PITH_PLANS * a->layers);
  move(w, a->made.predicted, sizeof a->made.predicted);
  move(w, a->made.error, sizeof a->made.error);
  move(w, a->made.choice, PITH_PLANS * a->layers);
  for (size_t i = 0; i < 3; i++) {
    size_t count;
    double *values = pith_profile_values(profile[i], &count);
    move(w, values, count * sizeof *values);
  }
  for (size_t l = 0; l < a->layers; l++) {
    move_sketch(w, a, l);
  }
  for (size_t l = 0; l < a->layers && a->options.accumulate > 1; l++) {
    move_sum(w, a, l);
  }
}

size_t pith_adapter_save_size(pith_adapter *a) {
  walk w = {.pass = COUNT};
  pith__worker_wait(a); /* what went wrong there, the next step will tell */
  move_all(&w, a);
  return sizeof(adapter_header) + w.size;
}

pith_status pith_adapter_save(pith_adapter *a, pith_out *out) {
  PITH_REQUIRE(a && out && out->data, PITH_ERR_ARGUMENT, "pith_adapter_save: adapter and out must not be NULL");
  PITH_REQUIRE(a->due == PITH_DUE_NOTHING, PITH_ERR_STATE, "a step is under way: finish it before saving");
  PITH_TRY(pith__worker_wait(a));
  size_t size = pith_adapter_save_size(a);
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the adapter takes %zu bytes, the buffer has %zu", size,
               out->capacity);
  uint8_t *bytes = out->data;
  walk w = {.pass = WRITE, .at = bytes + sizeof(adapter_header)};
  move_all(&w, a);
  PITH_REQUIRE(!w.broken, PITH_ERR_SYSTEM, "the adapter cannot be saved: %s", pith_error());
  adapter_header head = {ADAPTER_MAGIC, ADAPTER_VERSION, model_of(a), size, 0};
  head.checksum = pith__hash64(bytes + sizeof head, size - sizeof head, 0);
  memcpy(bytes, &head, sizeof head);
  out->size = size;
  return PITH_OK;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

static int are_candidates(const pith_adapter *a, const uint8_t *choice, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (choice[i] >= a->window->candidates) {
      return 0;
    }
  }
  return 1;
}

/* Numbers that become places in memory, or loops. */
static int is_sound(const pith_adapter *a) {
  const pith_adapt_state *s = &a->s;
  int good = s->slot < PITH_PLANS && s->base < PITH_PLANS && s->tries <= PITH_TRIED_MOST && s->changed <= s->step &&
             s->begun <= s->step;
  good = good && (!s->trying || s->tried < s->tries) && (!s->target || s->target > s->step) && (s->target || s->trying);
  for (size_t i = 0; i < PITH_TRIED_MOST; i++) {
    good = good && s->order[i] < PITH_PLANS;
  }
  for (size_t i = 0; i < PITH_PLANS; i++) {
    good = good && s->trials[i] <= PITH_TRIALS_MOST;
  }
  return good && are_candidates(a, a->in_force, a->layers) && are_candidates(a, a->plans, PITH_PLANS * a->layers) &&
         are_candidates(a, a->made.choice, PITH_PLANS * a->layers);
}

static pith_status check_head(const pith_adapter *a, pith_bytes in) {
  adapter_header head;
  PITH_REQUIRE(in.size >= sizeof head, PITH_ERR_CORRUPT, "a saved adapter has at least %zu bytes, not %zu", sizeof head,
               in.size);
  memcpy(&head, in.data, sizeof head);
  PITH_REQUIRE(head.magic == ADAPTER_MAGIC && head.version == ADAPTER_VERSION, PITH_ERR_CORRUPT,
               "these bytes are not a saved adapter");
  PITH_REQUIRE(head.model == model_of(a), PITH_ERR_STATE,
               "the adapter was saved with another spec than %s, other layers or another number of ranks",
               a->options.text);
  const uint8_t *rest = (const uint8_t *)in.data + sizeof head;
  PITH_REQUIRE(head.size == in.size && head.checksum == pith__hash64(rest, in.size - sizeof head, 0), PITH_ERR_CORRUPT,
               "the saved adapter is damaged: its checksum does not match");
  return PITH_OK;
}

static pith_layer *shapes_of(const pith_adapter *a) {
  pith_layer *shape = calloc(a->layers + 1, sizeof *shape);
  for (size_t l = 0; shape && l < a->layers; l++) {
    const pith_profiled *layer = &a->window->layer[l];
    shape[l] = (pith_layer){
        .size = sizeof(pith_layer), .name = layer->name, .shape = layer->shape, .dimensions = layer->dimensions};
  }
  return shape;
}

static pith_status read_into(pith_adapter *fresh, pith_bytes in) {
  walk w = {.pass = READ,
            .at = (uint8_t *)(uintptr_t)in.data + sizeof(adapter_header),
            .left = in.size - sizeof(adapter_header)};
  move_all(&w, fresh);
  PITH_REQUIRE(!w.broken && w.left == 0 && is_sound(fresh), PITH_ERR_CORRUPT, "the saved adapter is damaged");
  return PITH_OK;
}

/* What is kept changes hands; threads and file names stay. */
static void exchange(pith_adapter *a, pith_adapter *b) {
#define SWAP(type, field) \
  do {                    \
    type kept = a->field; \
    a->field = b->field;  \
    b->field = kept;      \
  } while (0)
  SWAP(pith_profile *, window);
  SWAP(pith_profile *, last);
  SWAP(pith_profile *, before);
  SWAP(pith_adapt_state, s);
  SWAP(uint8_t *, in_force);
  SWAP(uint8_t *, plans);
  SWAP(pith_planned, made);
  SWAP(float **, sum);
  SWAP(uint64_t *, summed);
#undef SWAP
}

pith_status pith_adapter_load(pith_adapter *a, pith_bytes in) {
  pith_adapter *fresh;
  PITH_REQUIRE(a && in.data, PITH_ERR_ARGUMENT, "pith_adapter_load: adapter and bytes must not be NULL");
  PITH_REQUIRE(a->due == PITH_DUE_NOTHING, PITH_ERR_STATE, "a step is under way: finish it before loading");
  PITH_TRY(check_head(a, in));
  PITH_TRY(pith__worker_wait(a));
  pith_layer *shapes = shapes_of(a);
  PITH_REQUIRE(shapes, PITH_ERR_MEMORY, "no memory to load an adapter");
  pith_status status = pith_adapter_create(a->options.text, shapes, a->layers, a->rank, a->ranks, a->seed, &fresh);
  free(shapes);
  PITH_TRY(status);
  fresh->window->space = a->window->space;
  status = read_into(fresh, in);
  if (status == PITH_OK) {
    exchange(a, fresh);
    pith__adapt_describe(a);
  }
  pith_adapter_destroy(fresh);
  return status;
}

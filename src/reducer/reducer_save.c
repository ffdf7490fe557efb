/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checkpoints of a reducer: the step and every layer's state, with an adaptive spec the adapter, and what layers have
 * pending. A checkpoint belongs to the rank that saved it. docs/format.md has the bytes. Everything is read into
 * fresh objects first, and takes the place of the old ones when all of it is good.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/saturate.h"
#include "codec/codec.h"
#include "memory/memory.h"
#include "reducer/reducer.h"

#define REDUCER_MAGIC 0x44524850u /* "PHRD" */

/* Versions. The first two said whether there is an adapter, and not whose checkpoint it is. Since the third, tails
 * follow states where there is an adapter or shards; in the fourth, always: it is for layers that send momentum, and
 * for residuals that wait for their release after a spec was set. The fifth has references in tails of shards, the
 * sixth what shards have pending. */
enum { FIXED = 1, ADAPTIVE = 2, OWNED = 3, TAILED = 4, REFERENCED = 5, RELEASING = 6 };

#define FOLDED ((uint64_t)1 << 63) /* in a tail's number of steps */

typedef struct reducer_header {
  uint32_t magic, version;
  uint64_t step, seed, layers;
  uint64_t adapter;     /* bytes of it; 0: none */
  uint32_t rank, ranks; /* from version 3 on */
} reducer_header;

_Static_assert(sizeof(reducer_header) == 48, "the header has no holes");

static size_t head_size(const reducer_header *head) {
  return head->version >= OWNED ? sizeof *head : offsetof(reducer_header, rank);
}

typedef struct layer_header {
  uint64_t number, fingerprint, size;
} layer_header;

/* ---- Saving ------------------------------------------------------------------------------------------------------ */

static uint32_t version_of(const pith_reducer *r) {
  int needs_tails = 0;
  for (size_t i = 0; i < r->count && r->options.sharded; i++) {
    if (r->layers[i].pending) {
      return RELEASING;
    }
  }
  for (size_t i = 0; i < r->count; i++) {
    if (r->layers[i].reference) {
      return REFERENCED;
    }
    needs_tails |= (r->layers[i].pending && !r->adaptive.text) || pith_codec_moment(r->layers[i].match.codec, NULL);
  }
  return needs_tails ? TAILED : OWNED;
}

static int has_tails(const pith_reducer *r, uint32_t version) {
  return version >= TAILED || r->adaptive.text || r->options.sharded;
}

/* Of a reference: the owner saves it. */
static size_t reference_size(const pith_reducer *r, const pith_reducer_layer *l) {
  return l->reference && l->owner == r->rank ? l->n * pith_dtype_size(l->reference->dtype) : 0;
}

static int has_releases(const pith_reducer *r, uint32_t version) { return r->options.sharded && version >= RELEASING; }

/* What follows a layer's state: what is pending, how many steps and the values, and whether its momentum has been
 * folded; of shards their steps, which their random numbers come from, in the sixth version how many steps are pending,
 * the values that are, and the owner's reference. */
static size_t tail_size(const pith_reducer *r, uint32_t version, const pith_reducer_layer *l) {
  return sizeof(uint64_t) * (has_releases(r, version) ? 2 : 1) + (l->pending ? l->n * sizeof(float) : 0) +
         reference_size(r, l);
}

/* Before the first step the adapter may not be there yet; a fresh one is saved then. */
static size_t adapter_size(const pith_reducer *r) {
  pith_status status = pith__reducer_adapter_ready((pith_reducer *)(uintptr_t)r);
  return status == PITH_OK && r->adaptive.adapter ? pith_adapter_save_size(r->adaptive.adapter) : 0;
}

size_t pith_reducer_save_size(const pith_reducer *r) {
  if (!r) {
    return 0;
  }
  size_t size = pith__sat_add(sizeof(reducer_header), adapter_size(r));
  uint32_t version = version_of(r);
  int tails = has_tails(r, version);
  for (size_t i = 0; i < r->count; i++) {
    size = pith__sat_add(size, pith__sat_add(sizeof(layer_header), pith_state_save_size(r->layers[i].state)));
    size = pith__sat_add(size, tails ? tail_size(r, version, &r->layers[i]) : 0);
  }
  return size;
}

static pith_status save_layers(const pith_reducer *r, uint32_t version, uint8_t *bytes, size_t size, size_t at) {
  int tails = has_tails(r, version);
  for (size_t i = 0; i < r->count; i++) {
    const pith_reducer_layer *l = &r->layers[i];
    layer_header lh = {l->number, pith__layer_fingerprint(l), pith_state_save_size(l->state)};
    memcpy(bytes + at, &lh, sizeof lh);
    pith_out piece = {bytes + at + sizeof lh, size - at - sizeof lh, 0};
    PITH_TRY(pith_state_save(l->state, &piece));
    at += sizeof lh + piece.size;
    if (tails) {
      uint64_t steps = r->options.sharded ? l->steps : l->pending ? l->pending_steps : 0;
      steps |= pith_codec_moment(l->match.codec, NULL) && l->is_folded ? FOLDED : 0;
      memcpy(bytes + at, &steps, sizeof steps);
      at += sizeof steps;
      if (has_releases(r, version)) {
        uint64_t pending = l->pending ? l->pending_steps : 0;
        memcpy(bytes + at, &pending, sizeof pending);
        at += sizeof pending;
      }
      if (l->pending) {
        PITH_TRY(pith__space_copy(l->state->space, bytes + at, l->pending, l->n * sizeof(float)));
        at += l->n * sizeof(float);
      }
      if (reference_size(r, l)) {
        PITH_TRY(pith__space_copy(r->space, bytes + at, l->reference->values, reference_size(r, l)));
        at += reference_size(r, l);
      }
    }
  }
  return PITH_OK;
}

pith_status pith_reducer_save(const pith_reducer *r, pith_out *out) {
  PITH_REQUIRE(r && out && out->data, PITH_ERR_ARGUMENT, "pith_reducer_save: reducer and out must not be NULL");
  PITH_TRY(pith__reducer_check_owned(r, "save"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before saving");
  size_t size = pith_reducer_save_size(r), adapter = adapter_size(r);
  PITH_REQUIRE(adapter || !r->adaptive.text, PITH_ERR_STATE, "the adapter cannot be saved: %s", pith_error());
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the reducer takes %zu bytes, the buffer has %zu", size,
               out->capacity);
  uint8_t *bytes = out->data;
  reducer_header head = {.magic = REDUCER_MAGIC,
                         .version = version_of(r),
                         .step = r->step,
                         .seed = r->seed,
                         .layers = r->count,
                         .adapter = adapter,
                         .rank = (uint32_t)r->rank,
                         .ranks = (uint32_t)r->ranks};
  memcpy(bytes, &head, sizeof head);
  if (adapter) {
    PITH_TRY(pith_adapter_save(r->adaptive.adapter, &(pith_out){bytes + sizeof head, adapter, 0}));
  }
  PITH_TRY(save_layers(r, head.version, bytes, size, sizeof head + adapter));
  out->size = size;
  return PITH_OK;
}

/* ---- Loading ----------------------------------------------------------------------------------------------------- */

/* What a checkpoint has, before it takes the place of what is there. */
typedef struct loaded {
  pith_adapter *adapter;
  struct loaded_layer {
    const pith_codec *codec;
    pith_state *state;
    float *pending;
    void *reference; /* the owner's */
    uint64_t steps;  /* that shards have made */
    uint64_t pending_steps;
    int is_folded;
  } *layer;
} loaded;

typedef struct cursor {
  const uint8_t *at;
  size_t left;
} cursor;

/* The next bytes, where they lie: of a layer, or of the adapter. */
static pith_status take(cursor *c, uint64_t size, const pith_reducer_layer *l, const void **taken) {
  PITH_REQUIRE(c->left >= size, PITH_ERR_CORRUPT, "the checkpoint ends within %s%s", l ? "layer " : "the adapter",
               l ? l->name : "");
  *taken = c->at;
  c->at += size;
  c->left -= (size_t)size;
  return PITH_OK;
}

static pith_status load_values(const pith_reducer *r, const pith_reducer_layer *l, cursor *c, size_t size,
                               void **values) {
  const void *taken = NULL;
  PITH_TRY(take(c, size, l, &taken));
  PITH_TRY(pith__space_zeros(r->space, size, values));
  return pith__space_copy(r->space, *values, taken, size);
}

static pith_status load_tail(const pith_reducer *r, uint32_t version, const pith_reducer_layer *l, cursor *c,
                             struct loaded_layer *to) {
  const void *taken = NULL;
  void *pending = NULL;
  PITH_TRY(take(c, sizeof to->steps, l, &taken));
  memcpy(&to->steps, taken, sizeof to->steps);
  to->is_folded = (to->steps & FOLDED) != 0;
  to->steps &= ~FOLDED;
  if (has_releases(r, version)) {
    PITH_TRY(take(c, sizeof to->pending_steps, l, &taken));
    memcpy(&to->pending_steps, taken, sizeof to->pending_steps);
  } else if (!r->options.sharded) {
    to->pending_steps = to->steps;
  }
  if (to->pending_steps) {
    PITH_TRY(load_values(r, l, c, l->n * sizeof *to->pending, &pending));
    to->pending = pending;
  }
  return reference_size(r, l) ? load_values(r, l, c, reference_size(r, l), &to->reference) : PITH_OK;
}

static pith_status load_layer(pith_reducer *r, const loaded *new, uint32_t version, size_t index, cursor *c) {
  const pith_reducer_layer *l = &r->layers[index];
  struct loaded_layer *to = &new->layer[index];
  layer_header lh;
  const void *taken = NULL;
  to->codec = l->match.codec;
  if (new->adapter && l->adapted != SIZE_MAX && !l->is_set) {
    PITH_TRY(pith__reducer_codec(r, pith_adapter_spec(new->adapter, l->adapted), &to->codec));
  }
  PITH_REQUIRE(c->left >= sizeof lh, PITH_ERR_CORRUPT, "the checkpoint ends before layer %s", l->name);
  PITH_TRY(take(c, sizeof lh, l, &taken));
  memcpy(&lh, taken, sizeof lh);
  PITH_REQUIRE(lh.number == l->number, PITH_ERR_STATE, "the checkpoint has another layer where %s should be", l->name);
  uint64_t fingerprint = l->reference ? l->reference->fingerprint : to->codec->fingerprint;
  PITH_REQUIRE(lh.fingerprint == fingerprint, PITH_ERR_STATE, "the checkpoint has another spec for layer %s than %s",
               l->name, l->reference ? l->reference->spec : to->codec->spec);
  PITH_TRY(take(c, lh.size, l, &taken));
  PITH_TRY(pith__state_create_in(r->space, to->codec, l->n, l->state->rows, r->rank, &to->state));
  PITH_TRY(pith_state_load(to->state, (pith_bytes){taken, (size_t)lh.size}));
  return has_tails(r, version) ? load_tail(r, version, l, c, to) : PITH_OK;
}

static pith_status load_all(pith_reducer *r, loaded *new, const reducer_header *head, cursor c) {
  if (r->adaptive.adapter) {
    const void *taken = NULL;
    PITH_TRY(take(&c, head->adapter, NULL, &taken));
    PITH_TRY(pith__reducer_adapter_create(r, &new->adapter));
    PITH_TRY(pith_adapter_load(new->adapter, (pith_bytes){taken, (size_t)head->adapter}));
  }
  for (size_t i = 0; i < r->count; i++) {
    PITH_TRY(load_layer(r, new, head->version, i, &c));
  }
  PITH_REQUIRE(c.left == 0, PITH_ERR_CORRUPT, "the checkpoint has %zu bytes behind its last layer", c.left);
  return PITH_OK;
}

static void release(const pith_reducer *r, loaded *new, size_t count) {
  for (size_t i = 0; i < count; i++) {
    pith_state_destroy(new->layer[i].state);
    pith__space_release(r->space, new->layer[i].pending);
    pith__space_release(r->space, new->layer[i].reference);
  }
  free(new->layer);
  pith_adapter_destroy(new->adapter);
}

#define EXCHANGE(type, a, b) \
  do {                       \
    type kept = (a);         \
    (a) = (b);               \
    (b) = kept;              \
  } while (0)

static void commit(pith_reducer *r, loaded *new, const reducer_header *head) {
  r->step = head->step;
  r->seed = head->seed;
  EXCHANGE(pith_adapter *, r->adaptive.adapter, new->adapter);
  r->adaptive.begun = r->adaptive.ended = 0;
  for (size_t i = 0; i < r->count; i++) {
    pith_reducer_layer *l = &r->layers[i];
    struct loaded_layer *from = &new->layer[i];
    l->match.codec = from->codec;
    l->started = l->turn = 0;
    EXCHANGE(pith_state *, l->state, from->state);
    EXCHANGE(float *, l->pending, from->pending);
    l->steps = r->options.sharded ? from->steps : l->steps;
    l->pending_steps = from->pending_steps;
    l->is_folded = from->is_folded;
    if (l->reference) {
      l->reference->is_stale = 1;
      if (from->reference) {
        EXCHANGE(void *, l->reference->values, from->reference);
      }
    }
    if (l->adapted != SIZE_MAX && !l->is_set) {
      l->match.reason = pith_adapter_reason(r->adaptive.adapter, l->adapted);
    }
  }
}

static pith_status check_head(const pith_reducer *r, pith_bytes in, reducer_header *head) {
  size_t least = offsetof(reducer_header, rank);
  PITH_REQUIRE(in.size >= least, PITH_ERR_CORRUPT, "a checkpoint has at least %zu bytes, not %zu", least, in.size);
  memcpy(head, in.data, least);
  PITH_REQUIRE(head->magic == REDUCER_MAGIC, PITH_ERR_CORRUPT, "these bytes are not a checkpoint of a reducer");
  PITH_REQUIRE(head->version >= FIXED && head->version <= RELEASING, PITH_ERR_CORRUPT,
               "the checkpoint was saved by version %u of the format, and this library reads %u to %u", head->version,
               FIXED, RELEASING);
  PITH_REQUIRE(head->version >= OWNED || (head->version == ADAPTIVE) == (head->adapter > 0), PITH_ERR_CORRUPT,
               "the checkpoint is damaged: version %u with an adapter of %llu bytes", head->version,
               (unsigned long long)head->adapter);
  PITH_REQUIRE(in.size >= head_size(head), PITH_ERR_CORRUPT, "the checkpoint ends within its head");
  if (head->version >= OWNED) {
    memcpy(head, in.data, sizeof *head);
    PITH_TRY(pith__check_owner("the checkpoint", head->rank, head->ranks, (uint32_t)r->rank, (uint32_t)r->ranks));
  }
  PITH_REQUIRE(head->layers == r->count, PITH_ERR_STATE, "the checkpoint has %llu layers, the reducer %zu",
               (unsigned long long)head->layers, r->count);
  PITH_REQUIRE((head->adapter > 0) == (r->adaptive.text != NULL), PITH_ERR_STATE,
               "the checkpoint was saved %s an adaptive spec", head->adapter ? "with" : "without");
  return PITH_OK;
}

pith_status pith_reducer_load(pith_reducer *r, pith_bytes in) {
  reducer_header head;
  PITH_REQUIRE(r && in.data, PITH_ERR_ARGUMENT, "pith_reducer_load: reducer and bytes must not be NULL");
  PITH_TRY(pith__reducer_check_owned(r, "load"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before loading");
  PITH_TRY(check_head(r, in, &head));
  PITH_TRY(pith__reducer_adapter_ready(r));
  loaded new = {.layer = calloc(r->count + 1, sizeof *new.layer)};
  PITH_REQUIRE(new.layer, PITH_ERR_MEMORY, "no memory to load a checkpoint");
  pith_status status =
      load_all(r, &new, &head, (cursor){(const uint8_t *)in.data + head_size(&head), in.size - head_size(&head)});
  if (status == PITH_OK) {
    commit(r, &new, &head);
    status = r->checked && pith__reducer_has_groups(r) ? pith__reducer_form_groups(r) : PITH_OK;
  }
  release(r, &new, r->count);
  return status;
}

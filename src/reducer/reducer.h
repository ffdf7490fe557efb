/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The inside of a reducer: layers with names, specs and states, and what is under way.
 *
 *   reducer.c          its life, its layers, its steps, what ranks must agree on
 *   reducer_group.c    which layers are sent together, and when
 *   reducer_step.c     over a comm: operations, and layers joined to one
 *   stages.c           over a carrier: groups that go through stages, with an exchange after each (stage_work.c)
 *   reducer_link.c     small exchanges between steps, over either
 *   reducer_adapt.c    adaptive specs: what the adapter sees, and the change to its plans
 *   reducer_moment.c   momentum in place of gradients: specs that are set, and the optimizer's step
 *   reducer_pending.c  residuals of specs that layers do not have any more
 *   reducer_save.c     checkpoints
 *   reducer_shards.c   models of which every rank owns a shard of each layer
 *   reducer_reference.c  their parameters as differences from what all ranks have
 *   reducer_owed.c     what layers owe, in a form that any number of ranks can go on with
 *   reducer_lent.c     states in the caller's memory
 */
#ifndef PITH_REDUCER_REDUCER_H
#define PITH_REDUCER_REDUCER_H

#include <pith/adapt.h>
#include <pith/carrier.h>
#include <pith/optimizer.h>

#include "base/spec.h"
#include "comm/comm.h"
#include "device/bucket.h"

/* What all ranks were given last of a shard, with the same bits on each of them. */
typedef struct pith_reference {
  pith_space *space;
  void *values;      /* there */
  pith_dtype dtype;  /* f32 or bf16 */
  uint64_t every;    /* one of so many messages has whole parameters; 0: the first alone; … */
  const char *fresh; /* … by this spec */
  int is_stale;      /* after a load: only the owner has it */
  uint64_t fingerprint;
  char spec[PITH_SPEC_MAX]; /* with that of the differences */
} pith_reference;

/* A layer as the reducer knows it. */
typedef struct pith_reducer_layer {
  char *name;
  uint64_t number; /* from the name: the same on all ranks */
  size_t n, rows;
  size_t *shape, dimensions;
  pith_dtype dtype;
  pith_match match;
  pith_state *state;
  pith_traffic traffic;
  uint64_t steps, started;   /* started: the step it was last started in, plus one */
  uint64_t lent;             /* the same for the step its arrays were lent for */
  uint64_t turn;             /* the same for the turn of an adaptive spec */
  void *gradient;            /* of this step, while it waits for its group */
  char *exact;               /* why it is never compressed, whatever the rules say; NULL: they decide */
  size_t adapted;            /* its place in the adapter; SIZE_MAX: it has none */
  int is_set;                /* its spec was set, and is the adapter's no more */
  float *pending;            /* a residual that its spec has no place for: added to the gradients of the next … */
  uint64_t pending_steps;    /* … so many steps */
  int is_folded;             /* momentum: the residual has had its part of an optimizer's step */
  uint64_t updated;          /* the update it was last a part of */
  int owner;                 /* sharded: whose shard it is; each has an entry, one behind the other */
  const pith_codec *wire;    /* sharded: what travels: exact halves as halves */
  pith_reference *reference; /* sharded: parameters are gathered as differences from it; NULL: as they are */
} pith_reducer_layer;

/* One allreduce over the comm: of layers that are joined, or of one alone (with no members). */
typedef struct pith_reducer_operation {
  pith_request *request;   /* NULL: not started yet */
  const pith_codec *codec; /* NULL: uncompressed */
  pith_dtype dtype;
  size_t *layer; /* `count` of them, with … */
  void **gradient;
  pith_member *member;
  size_t count, room;
  uint8_t *buffer; /* … their values, one after another, where they are not compressed; else they stay apart */
  size_t n, bytes; /* values with those between them; bytes of gradients */
} pith_reducer_operation;

#define PITH_OPEN_MOST 8

/* How layers travel over a carrier. */
typedef enum pith_group_kind {
  PITH_GROUP_BLOCKS,  /* codecs of fixed size that can be cut, and exact layers: a part for each rank */
  PITH_GROUP_WHOLE,   /* other codecs, and those that are to be encoded once: everybody gets all payloads */
  PITH_GROUP_ROUNDS,  /* methods of several rounds: a reduction for each */
  PITH_GROUP_PLAIN,   /* types that no codec takes: one reduction */
  PITH_GROUP_SCATTER, /* shards for each owner, who adds them up */
  PITH_GROUP_GATHER,  /* shards of this rank, for all */
  PITH_GROUP_HOSTS,   /* BLOCKS, summed within hosts first */
} pith_group_kind;

/* Layers that are sent together. */
typedef struct pith_group {
  pith_group_kind kind;
  const pith_codec *codec; /* ROUNDS: the one of all its layers */
  size_t *layer, count, room;
  size_t chunk, number; /* of one large layer: this chunk of every part; 0: all of it */
  size_t bytes;         /* of gradients, as limits count them */
  size_t missing;       /* gradients that are not ready in this step */
  int is_sent;          /* in this step */
  pith_bucket *bucket;  /* BLOCKS: of all layers; NULL until it is needed; … */
  pith_bucket *across;  /* … HOSTS: of our part of them, among hosts */
} pith_group;

typedef struct pith_stages pith_stages;
typedef struct pith_stage_ops pith_stage_ops;

/* What an adaptive spec needs; all zero without one. */
typedef struct pith_adaptive {
  char *text; /* the adaptive spec */
  pith_adapter *adapter;
  pith_codec **codec; /* of all specs that layers have had */
  size_t codecs, room;
  size_t set;          /* so many of its layers have specs that were set; it rests meanwhile */
  double begun, ended; /* when the first gradient of this step came, and when the step before ended */
  /* If the caller does not say when a step is over: */
  uint64_t turn; /* so many are */
  double spent;  /* seconds in calls that wait for others, in this one; … */
  double last;   /* … and when the last of them returned */
} pith_adaptive;

struct pith_reducer {
  pith_comm *comm;      /* NULL: … */
  pith_carrier carrier; /* … over this */
  pith_stages *stages;
  const pith_stage_ops *stage_ops; /* over a carrier */
  pith_space *space;               /* where gradients and states are; NULL: main memory */
  pith_reducer_options options;
  int rank, ranks;
  unsigned made_in;  /* pith__fork_number() */
  pith_rules *rules; /* with *=none in place of an adaptive spec */
  pith_adaptive adaptive;
  uint64_t seed, step, updates;
  int checked;
  int is_ordered;  /* groups are formed and sent in the order that rank 0 has of layers, with options.in_order */
  uint32_t *order; /* in which layers become ready; NULL: from the last to the first */
  pith_reducer_layer *layers;
  size_t count, room;
  pith_reducer_operation *operations; /* under way */
  size_t operation_count, operation_room;
  pith_reducer_operation open[PITH_OPEN_MOST]; /* not started: layers can still be joined */
  size_t open_count;
  pith_group *groups; /* made before the first step, and when specs change */
  size_t group_count, group_room;
  size_t *group_of;  /* of each layer */
  size_t next_group; /* to be sent, where groups are sent in order */
};

/* Room for one more of `size` bytes each; arrays double. */
pith_status pith__reducer_grow(void **array, size_t *room, size_t used, size_t size);

static inline size_t pith__layer_bytes(const pith_reducer_layer *l) { return l->n * pith_dtype_size(l->dtype); }

static inline const pith_codec *pith__layer_codec(const pith_reducer_layer *l) {
  return l->wire ? l->wire : l->match.codec;
}

/* The most bytes that it travels as. */
static inline size_t pith__layer_bound(const pith_reducer_layer *l) {
  return pith_codec_bound(pith__layer_codec(l), l->n);
}

static inline const char *pith__layer_spec(const pith_reducer_layer *l) {
  return l->reference ? l->reference->spec : l->match.codec->spec;
}

static inline uint64_t pith__layer_fingerprint(const pith_reducer_layer *l) {
  return l->reference ? l->reference->fingerprint : l->match.codec->fingerprint;
}

/* How many entries a layer has. */
static inline size_t pith__reducer_owners(const pith_reducer *r) { return r->options.sharded ? (size_t)r->ranks : 1; }

/* The first entry of a layer. */
pith_status pith__reducer_find(const pith_reducer *r, size_t index, pith_reducer_layer **layer);

/* Whether a layer can be sent by a codec: there are kernels for it where its gradient is. */
pith_status pith__reducer_check_codec(const pith_reducer *r, const char *name, const pith_reducer_layer *l,
                                      const pith_codec *codec);

/* Not NULL, and not the copy of a forked child. */
pith_status pith__reducer_check_process(const pith_reducer *r);

/* Whether nothing of a step is under way. */
int pith__reducer_is_idle(const pith_reducer *r);

/* ---- reducer_step.c ---- */

/* Starts to reduce a layer over the comm, or joins it to others. */
pith_status pith__reducer_send(pith_reducer *r, size_t index, void *gradient);
/* Starts to reduce what is joined so far. */
pith_status pith__reducer_send_joined(pith_reducer *r);
/* Waits for all operations over the comm. */
pith_status pith__reducer_wait(pith_reducer *r);
/* Waits for those that are started and drops the others. */
void pith__reducer_drop_operations(pith_reducer *r);

/* ---- reducer_group.c ---- */

static inline int pith__reducer_has_groups(const pith_reducer *r) {
  return !r->options.sharded && (r->stages || r->options.group_bytes);
}

/* Before the first step: all layers, in the order in which their gradients become ready. */
pith_status pith__reducer_set_order(pith_reducer *r, const uint32_t *layers);
/* All ranks take rank 0's order, or from the last layer to the first where it has none. */
pith_status pith__reducer_agree_order(pith_reducer *r);
/* Groups of the layers as they are; drops those from before. */
pith_status pith__reducer_form_groups(pith_reducer *r);
void pith__reducer_drop_groups(pith_reducer *r);
/* A gradient is ready: its group is sent if it is complete. */
pith_status pith__reducer_put(pith_reducer *r, size_t index, void *gradient);
/* Sends all groups, with the gradients that are ready. */
pith_status pith__reducer_send_groups(pith_reducer *r);

/* ---- reducer_link.c: all ranks take part; returns when it is complete ---- */

/* `all` gets `bytes` of each rank, in rank order. */
pith_status pith__reducer_gather(const pith_reducer *r, const void *mine, size_t bytes, void *all);
/* Sums in place. */
pith_status pith__reducer_sum(const pith_reducer *r, double *numbers, size_t count);
pith_status pith__reducer_barrier(const pith_reducer *r);

/* ---- reducer_adapt.c ---- */

/* Cuts an adaptive spec off a text: *rules is what is left, *adaptive the spec or NULL. Both are the caller's. */
pith_status pith__reducer_split(const char *text, char **rules, char **adaptive);
void pith__reducer_adapt_fini(pith_reducer *r);

/* An adapter for the layers there are; the reducer's own, once they are complete. Does not communicate. */
pith_status pith__reducer_adapter_create(const pith_reducer *r, pith_adapter **adapter);
pith_status pith__reducer_adapter_ready(pith_reducer *r);

/* A codec that lives as long as the reducer; … */
pith_status pith__reducer_codec(pith_reducer *r, const char *spec, const pith_codec **codec);
/* … one whose payloads are the values of that type as they are. */
pith_status pith__reducer_exact_codec(pith_reducer *r, pith_dtype dtype, const pith_codec **codec);

/* If the caller does not say when a step is over (shards, options.in_parts), it is when a layer comes again: ends it if
 * one of these does. */
pith_status pith__reducer_turn(pith_reducer *r, const size_t *layers, size_t count);
/* A gradient is ready. */
pith_status pith__reducer_observe(pith_reducer *r, const pith_reducer_layer *l, const void *gradient);
/* All gradients of a step are means. `waited`: when the last one was ready. */
pith_status pith__reducer_adapt(pith_reducer *r, double waited);

/* ---- reducer_reference.c ---- */

/* Of a spec that begins with "delta": *rest is what follows, for the differences. Of others *rest is the spec. */
pith_status pith__reference_create(pith_reducer *r, pith_reducer_layer *l, const char *name, const char *spec,
                                   const char **rest);
void pith__reference_destroy(pith_reference *reference);
/* Whether the next message has whole parameters. */
int pith__reference_is_fresh(const pith_reducer_layer *l);
/* Sets the codec of the next message. `restores`: it has references, after a load. */
pith_status pith__reference_wire(pith_reducer *r, pith_reducer_layer *l, int restores);

/* ---- reducer_lent.c ---- */

/* PITH_ERR_STATE if the states are lent: `what` is then the caller's to do. */
pith_status pith__reducer_check_owned(const pith_reducer *r, const char *what);
/* The step is over. */
void pith__reducer_take_back(pith_reducer *r);

/* ---- reducer_pending.c ---- */

/* The state of a layer moves to another codec. A residual that has no place there becomes pending; one that was pending
 * and has a place there becomes part of the state again. */
pith_status pith__pending_move(pith_reducer_layer *l, const pith_codec *codec, int ranks);
/* Nothing is pending. */
void pith__pending_drop(pith_reducer_layer *l);
/* Values become pending, beside those that are. */
pith_status pith__pending_add(pith_reducer_layer *l, const float *values);
/* Adds a part of what is pending to a gradient. */
pith_status pith__pending_release(pith_reducer_layer *l, pith_span gradient);
pith_status pith__pending_scale(pith_reducer_layer *l, float factor);

#endif

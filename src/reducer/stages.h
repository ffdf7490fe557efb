/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer over a carrier: groups go through stages of work, with an exchange after each but the last. stages.c has
 * the order of stages and the thread that drives them, stage_work.c what is done in each.
 */
#ifndef PITH_REDUCER_STAGES_H
#define PITH_REDUCER_STAGES_H

#include "device/hosts_carrier.h"
#include "reducer/reducer.h"

/* Memory that groups use one after another. */
typedef struct pith_stage_buffer {
  uint8_t *data;
  size_t room;
} pith_stage_buffer;

/* A group under way. */
typedef struct pith_staged {
  struct pith_staged *next;
  pith_reducer *reducer;
  pith_stages *stages;
  pith_group_kind kind;
  size_t count, *layer;
  void **gradient;
  size_t chunk, number; /* BLOCKS: of one layer that is sent in chunks; 0: all of it */
  size_t stage;
  pith_bucket *bucket;
  pith_bucket *across; /* HOSTS: of our part, among hosts */
  int owns_bucket;
  pith_level level;       /* whom the exchange is with */
  int is_padded;          /* BLOCKS: results of all ranks are gathered as if they had one size */
  size_t room;            /* bytes that each rank sends to all; 0: messages have the sizes they have */
  size_t *bytes, *counts; /* of each rank; of each layer */
  uint64_t *sizes;        /* WHOLE: of the payloads of all ranks, rank by rank, … */
  size_t own, table;      /* … ours from there on, of so many in all; … */
  int has_sizes;          /* … which need no exchange */
  pith_reduce_op op;      /* SCATTER: a sum or a mean; … */
  void *target;           /* … SCATTER, GATHER: where results go, … */
  size_t *sent;           /* … and what others were sent of each layer */
  int restores;           /* GATHER: references travel, which only their owners have after a load */
  pith_stage_buffer out, in;
  pith_stage_buffer more, sums; /* of the space's own */
  pith_exchange exchange;       /* what follows the stage; … */
  int has_exchange;             /* … 0: it was the last */
  uint64_t ticket;
  pith_traffic traffic;
} pith_staged;

static inline pith_reducer_layer *pith__stage_layer(const pith_staged *f, size_t i) {
  return &f->reducer->layers[f->layer[i]];
}

/* What a space does to values in the stages of a group: out and in are buffers there. */
struct pith_stage_ops {
  /* BLOCKS: gradients to `out`, a part for each rank; `in`, what ranks sent of our part, to its mean in `out`, padded
   * to f->room or once for each rank; `in`, the means of all parts, to gradients. */
  pith_status (*encode_parts)(pith_staged *f, const pith_ctx *ctx);
  pith_status (*reduce_parts)(pith_staged *f, const pith_ctx *ctx);
  pith_status (*decode_parts)(pith_staged *f, const pith_ctx *ctx);
  /* WHOLE: payloads to `out`, one after another, and their sizes, on a device also to the beginning of `more`; what
   * follows the `own` bytes of payloads up to f->room; the messages of all ranks in `in` to means. */
  pith_status (*encode_payloads)(pith_staged *f);
  pith_status (*pad_message)(pith_staged *f, size_t own);
  pith_status (*average_payloads)(pith_staged *f);
  /* GATHER: the messages of all ranks in `in` to values in f->target, or to references and from there. */
  pith_status (*decode_payloads)(pith_staged *f);
  /* References of these layers, rank by rank, to values. */
  pith_status (*give_references)(pith_reducer *r, const size_t *layers, size_t count, pith_span dst);
  /* ROUNDS: produces or consumes f->counts values of `width` bytes for each layer in `in`. */
  pith_status (*run_round)(pith_staged *f, size_t round, size_t width, int consumes);
  /* PLAIN: gradients to `in`, or back: their sums or means to gradients. */
  pith_status (*copy_plain)(pith_staged *f, int back);
  pith_reduce_op plain_op;
};

extern const pith_stage_ops pith__stage_host, pith__stage_cuda;

pith_status pith__stages_create(pith_reducer *r, pith_stages **stages);
/* Other ranks may never take part in what is in flight: a thread that waits for them is left behind,
 * and releases it. */
void pith__stages_destroy(pith_stages *stages);

/* Starts a group, with the gradients that are ready. */
pith_status pith__stages_put(pith_stages *stages, pith_group *group);
/* Waits until all of them are complete. */
pith_status pith__stages_finish(pith_stages *stages);
/* One that was made elsewhere goes all the way, in the caller's thread; it is released. */
pith_status pith__stages_run(pith_stages *stages, pith_staged *f);

/* ---- stage_work.c ---- */

/* One with room for so many layers, and for a table of so many sizes; … */
pith_status pith__stage_make(pith_reducer *r, pith_group_kind kind, size_t layers, size_t table, pith_staged **made);
/* … of a group, with the gradients that are ready. */
pith_status pith__stage_make_of(pith_reducer *r, pith_group *group, pith_staged **made);
/* The work of its stage; sets the exchange that follows. */
pith_status pith__stage_work(pith_staged *f);
/* Shares of what was moved, and what it holds. */
void pith__stage_account(pith_staged *f);
void pith__stage_release(pith_staged *f);

pith_ctx pith__stage_ctx(const pith_staged *f, const pith_reducer_layer *l, int rank);
/* What travels of a shard, if not the values that the caller gave: made in f32, as … */
typedef enum pith_stage_source {
  PITH_SOURCE_GIVEN,      /* … is not the case; */
  PITH_SOURCE_REFERENCE,  /* the reference itself, as it is: nothing is made; */
  PITH_SOURCE_DIFFERENCE, /* their difference from the reference; */
  PITH_SOURCE_PENDING,    /* their sum with a part of what is pending. */
} pith_stage_source;
pith_stage_source pith__stage_source(const pith_staged *f, const pith_reducer_layer *l);
/* Whether a message is added to the reference of its layer; else it is set, as values of layers without one are. */
int pith__stage_adds(const pith_staged *f, const pith_reducer_layer *l);
/* Whether the sizes of its payloads are known before they are encoded. */
int pith__stage_is_fixed(const pith_staged *f);
/* Where the message of a rank begins in `in`. */
size_t pith__stage_message_at(const pith_staged *f, int rank);
/* What values travel by: exact halves as they are; "none" would send them as f32. */
pith_status pith__stage_wire_codec(pith_reducer *r, const pith_reducer_layer *l, const pith_codec **codec);

/* ---- stage_hosts.c ---- */

/* HOSTS: its two buckets, … */
pith_status pith__stage_make_levels(const pith_staged *f, pith_bucket **inside, pith_bucket **across);
/* … and the work of its stage. */
pith_status pith__stage_work_hosts(pith_staged *f);

/* ---- reducer_reference.c: the values of a reference, and in main memory … ---- */

pith_span pith__reference_values(const pith_reducer_layer *l);
/* … to = src - reference; … */
void pith__reference_subtract(const pith_reducer_layer *l, pith_cspan src, float *to);
/* … to = reference. */
void pith__reference_copy(const pith_reducer_layer *l, pith_span to);

/* Memory of at least that size, from the stages' own; keeps what is there if it is large enough. */
pith_status pith__stages_buffer(pith_stages *stages, pith_stage_buffer *buffer, size_t size);
void pith__stages_give_back(pith_stages *stages, pith_stage_buffer *buffer);
/* Between two steps: groups are others from now on, and may need much less. */
void pith__stages_release_kept(pith_stages *stages);

#endif

/*
 * A reducer over a carrier: groups go through stages of work, with an exchange after each but the last. stages.c has
 * the order of stages and the thread that drives them, stage_work.c what is done in each.
 */
#ifndef PITH_REDUCER_STAGES_H
#define PITH_REDUCER_STAGES_H

#include "reducer/reducer.h"

/* Memory that flights use one after another. */
typedef struct pith_stage_buffer {
  uint8_t *data;
  size_t room;
} pith_stage_buffer;

/* A group under way. */
typedef struct pith_staged {
  struct pith_staged *next;
  pith_reducer *reducer;
  pith_way way;
  size_t count, *layer;
  void **gradient;
  size_t stage;
  pith_bucket *bucket;
  int owns_bucket;
  int is_padded;          /* BLOCKS: results of all ranks are gathered as if they had one size */
  size_t room;            /* bytes that each rank sends to all */
  size_t *bytes, *counts; /* of each rank; of each layer */
  uint64_t *sizes;        /* WHOLE: of the payloads of all ranks, rank by rank */
  pith_stage_buffer out, in;
  pith_exchange exchange; /* what follows the stage; … */
  int has_exchange;       /* … 0: it was the last */
  uint64_t ticket;
  pith_traffic traffic;
} pith_staged;

pith_status pith__stages_create(pith_reducer *r, pith_stages **stages);
/* Waits for what is under way. */
void pith__stages_destroy(pith_stages *stages);

/* A group leaves, with the gradients that have come. */
pith_status pith__stages_put(pith_stages *stages, pith_group *group);
/* Waits until all of them have arrived. */
pith_status pith__stages_finish(pith_stages *stages);

/* ---- stage_work.c ---- */

/* What it needs to know before its first stage. */
pith_status pith__stage_prepare(pith_staged *f, pith_group *group);
/* The work of its stage; sets the exchange that follows. */
pith_status pith__stage_work(pith_staged *f, pith_stages *stages);
/* Shares of what was moved, and what it holds. */
void pith__stage_account(pith_staged *f);
void pith__stage_release(pith_staged *f, pith_stages *stages);

/* Memory of at least that size, from the stages' own; keeps what is there if it is large enough. */
pith_status pith__stages_buffer(pith_stages *stages, pith_stage_buffer *buffer, size_t size);
void pith__stages_give_back(pith_stages *stages, pith_stage_buffer *buffer);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers owe: what a rank was given of gradients and has not sent yet. A checkpoint of a reducer has it as codecs
 * keep it, for the same rank of as many ranks. Here it is plain values in units of a rank's gradient, whose mean over
 * all ranks is what the mean of gradients still lacks, so that any number of ranks can go on with it.
 */
#include "codec/codec.h"
#include "memory/memory.h"
#include "reducer/reducer.h"

static pith_status find(pith_reducer *r, size_t index, const char *what, pith_reducer_layer **layer) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_TRY(pith__reducer_find(r, index, layer));
  PITH_TRY(pith__reducer_check_owned(r, what));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it first");
  PITH_REQUIRE(!pith_codec_moment((*layer)->match.codec, NULL), PITH_ERR_UNSUPPORTED,
               "layer %s: what %s has not sent is a part of the optimizer's momentum, and not of gradients",
               (*layer)->name, (*layer)->match.codec->spec);
  return PITH_OK;
}

/* The next `n` of an array of all owners' shards; NULL of NULL. */
static float *next_of(float *at, size_t n) { return at ? at + n : NULL; }

pith_status pith_reducer_owed(pith_reducer *r, size_t index, float *owed, float *momentum) {
  pith_reducer_layer *l = NULL;
  PITH_TRY(find(r, index, "save", &l));
  for (size_t owner = 0; owner < pith__reducer_owners(r); owner++) {
    const pith_reducer_layer *entry = &l[owner];
    pith_span to = {owed, entry->n, PITH_F32};
    PITH_TRY(owed && entry->state->residual ? pith__state_take_residual(entry->state, (float)r->ranks, owed) : PITH_OK);
    PITH_TRY(owed && entry->pending ? pith__space_add(r->space, entry->pending, to) : PITH_OK);
    to.data = momentum;
    PITH_TRY(momentum && entry->state->momentum ? pith__space_add(r->space, entry->state->momentum, to) : PITH_OK);
    owed = next_of(owed, entry->n);
    momentum = next_of(momentum, entry->n);
  }
  return PITH_OK;
}

/* The state starts anew. What it has no place for waits for its release. */
static pith_status owe(pith_reducer *r, pith_reducer_layer *l, const float *owed, const float *momentum) {
  pith_state *fresh = NULL;
  PITH_TRY(pith__state_create_in(r->space, l->match.codec, l->n, l->state->rows, r->rank, &fresh));
  pith_state_destroy(l->state);
  l->state = fresh;
  pith__pending_drop(l);
  if (owed) {
    PITH_TRY(l->state->residual ? pith__state_add_residual(l->state, owed) : pith__pending_add(l, owed));
  }
  if (momentum && l->state->momentum) {
    PITH_TRY(pith__space_add(r->space, momentum, (pith_span){l->state->momentum, l->n, PITH_F32}));
  }
  return PITH_OK;
}

pith_status pith_reducer_owe(pith_reducer *r, size_t index, const float *owed, const float *momentum) {
  pith_reducer_layer *l = NULL;
  PITH_TRY(find(r, index, "load", &l));
  PITH_REQUIRE(!l->reference && l->dtype != PITH_F64, PITH_ERR_UNSUPPORTED, "layer %s owes nothing to gradients",
               l->name);
  for (size_t owner = 0; owner < pith__reducer_owners(r); owner++) {
    PITH_TRY(owe(r, &l[owner], owed, momentum));
    owed = next_of((float *)(uintptr_t)owed, l[owner].n);
    momentum = next_of((float *)(uintptr_t)momentum, l[owner].n);
  }
  return PITH_OK;
}

pith_status pith_reducer_resume(pith_reducer *r, uint64_t step) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_TRY(pith__reducer_check_owned(r, "load"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it first");
  r->step = r->options.sharded ? r->step : step;
  for (size_t i = 0; i < r->count; i++) {
    pith_reducer_layer *l = &r->layers[i];
    l->started = 0;
    l->steps = l->reference ? 0 : step; /* parameters are others now: the next message has all of them */
    if (l->reference) {
      l->reference->is_stale = 0;
    }
  }
  return PITH_OK;
}

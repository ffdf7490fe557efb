/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pending residuals: what a layer has not sent yet when it moves to a spec without a residual. It is released in equal
 * parts over the next steps, so that no single gradient is many times as large as the others. What is left of momentum
 * is not a gradient: it goes to other momentum or is dropped.
 */
#include "codec/codec.h"
#include "memory/memory.h"
#include "reducer/reducer.h"

enum { PENDING_STEPS = 16 }; /* suits optimizers that divide by the size of past gradients */

static pith_space *space_of(const pith_reducer_layer *l) { return l->state->space; }

void pith__pending_drop(pith_reducer_layer *l) {
  pith__space_release(space_of(l), l->pending);
  l->pending = NULL;
  l->pending_steps = 0;
}

static pith_status make_room(pith_reducer_layer *l) {
  void *memory = l->pending;
  PITH_TRY(memory ? PITH_OK : pith__space_zeros(space_of(l), l->n * sizeof *l->pending, &memory));
  l->pending = memory;
  l->pending_steps = PENDING_STEPS;
  return PITH_OK;
}

pith_status pith__pending_add(pith_reducer_layer *l, const float *values) {
  PITH_TRY(make_room(l));
  return pith__space_add(space_of(l), values, (pith_span){l->pending, l->n, PITH_F32});
}

pith_status pith__pending_move(pith_reducer_layer *l, const pith_codec *codec, int ranks) {
  int was_momentum = pith_codec_moment(l->match.codec, NULL), is_momentum = pith_codec_moment(codec, NULL);
  int had = l->state->residual != NULL, has = codec->memory && (codec->memory->keeps & PITH_KEEPS_RESIDUAL);
  if (was_momentum && !is_momentum) { /* the residual means nothing to the codec */
    pith_state *fresh = NULL;
    PITH_TRY(pith__state_create_in(space_of(l), codec, l->n, l->state->rows, l->state->draws_as, &fresh));
    pith_state_destroy(l->state);
    l->state = fresh;
    return PITH_OK;
  }
  if (had && !has) {
    PITH_TRY(make_room(l));
    PITH_TRY(pith__state_take_residual(l->state, (float)ranks, l->pending)); /* results are means over all ranks */
  }
  PITH_TRY(pith_state_adapt(l->state, codec));
  if (has && l->pending) {
    PITH_TRY(pith__state_add_residual(l->state, l->pending));
    pith__pending_drop(l);
  }
  if (is_momentum && !was_momentum) { /* what was not sent of gradients counts as a part of the next one */
    PITH_TRY(pith_state_scale_residual(l->state, pith__codec_gamma(codec)));
    l->is_folded = 0;
  }
  return PITH_OK;
}

pith_status pith__pending_release(pith_reducer_layer *l, pith_span gradient) {
  if (!l->pending) {
    return PITH_OK;
  }
  if (!space_of(l)) {
    pith__residual_release(l->pending, l->pending_steps, gradient);
  } else {
    float share = 1.0f / (float)l->pending_steps;
    PITH_TRY(pith__space_scale(space_of(l), share, l->pending, l->n));
    PITH_TRY(pith__space_add(space_of(l), l->pending, gradient));
    if (l->pending_steps > 1) {
      PITH_TRY(pith__space_scale(space_of(l), (1 - share) / share, l->pending, l->n));
    }
  }
  if (--l->pending_steps == 0) {
    pith__pending_drop(l);
  }
  return PITH_OK;
}

pith_status pith__pending_scale(pith_reducer_layer *l, float factor) {
  return l->pending ? pith__space_scale(space_of(l), factor, l->pending, l->n) : PITH_OK;
}

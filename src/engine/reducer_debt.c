/*
 * Debts: what a layer has not sent yet when it moves to a spec without a residual. It is paid back in parts, so that no single gradient is
 * many times as large as the others.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/reducer.h"
#include "memory/memory.h"

enum { STEPS = 16, TILE = 1024 };

static int keeps_residual(const pith_codec *codec) { return codec->memory && (codec->memory->keeps & PITH_KEEPS_RESIDUAL); }

/* All that a state owes: to its own gradients, and as the owner of results to the mean over all ranks. */
static void add_residuals(const pith_state *state, int ranks, float *debt) {
  if (state->residual) {
    pith__values_add(state->residual, debt, state->n);
  }
  for (size_t i = 0; i < state->result_n; i++) {
    debt[state->result_first + i] += (float)ranks * state->result[state->result_first + i];
  }
}

static pith_status lend(pith_named *l, int ranks) {
  if (!l->debt) {
    l->debt = calloc(l->n + 1, sizeof *l->debt);
    PITH_REQUIRE(l->debt, PITH_ERR_MEMORY, "no memory for what layer %s has not sent yet", l->name);
  }
  add_residuals(l->state, ranks, l->debt);
  l->debt_steps = STEPS;
  return PITH_OK;
}

static void drop(pith_named *l) {
  free(l->debt);
  l->debt = NULL;
  l->debt_steps = 0;
}

pith_status pith__debt_move(pith_named *l, const pith_codec *codec, int ranks) {
  int stays = keeps_residual(codec);
  if (l->state->residual && !stays) {
    PITH_TRY(lend(l, ranks));
  }
  PITH_TRY(pith_state_adapt(l->state, codec));
  if (l->debt && stays) {
    pith__values_add(l->debt, l->state->residual, l->n);
    drop(l);
  }
  return PITH_OK;
}

/* The last part is all that is left, so that nothing is lost to rounding. */
void pith__debt_pay(pith_named *l, void *gradient) {
  float part[TILE], buffer[TILE];
  if (!l->debt) {
    return;
  }
  float share = 1.0f / (float)l->debt_steps;
  for (size_t at = 0; at < l->n; at += TILE) {
    size_t n = l->n - at < TILE ? l->n - at : TILE;
    for (size_t i = 0; i < n; i++) {
      part[i] = l->debt[at + i] * share;
      l->debt[at + i] -= part[i];
    }
    pith__span_store((pith_span){gradient, l->n, l->dtype}, at, n, part, PITH_ADD, buffer);
  }
  if (--l->debt_steps == 0) {
    drop(l);
  }
}

void pith__debt_scale(pith_named *l, float factor) {
  if (l->debt) {
    pith__values_scale(factor, l->debt, l->n);
  }
}

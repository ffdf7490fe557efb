/*
 * Pending residuals: what a layer has not sent yet when it moves to a spec without a residual. It is released in parts,
 * so that no single gradient is many times as large as the others.
 */
#include <pith/adapt.h>
#include <string.h>

#include "memory/memory.h"

enum { TILE = 1024 };

static int keeps_residual(const pith_codec *codec) {
  return codec->memory && (codec->memory->keeps & PITH_KEEPS_RESIDUAL);
}

/* All that a state has pending: to its own gradients, and as the owner of results to the mean over all ranks. */
static void add_residuals(const pith_state *state, int ranks, float *debt) {
  pith__values_add(state->residual, debt, state->n);
  for (size_t i = 0; i < state->result_n; i++) {
    debt[state->result_first + i] += (float)ranks * state->result[state->result_first + i];
  }
}

pith_status pith_state_move(pith_state *state, const pith_codec *codec, int ranks, float *debt, int *owed) {
  PITH_REQUIRE(state && codec && debt && owed && ranks > 0, PITH_ERR_ARGUMENT,
               "pith_state_move: state, codec, debt and owed must not be NULL");
  int had = state->residual != NULL, has = keeps_residual(codec);
  if (had && !has) {
    add_residuals(state, ranks, debt);
  }
  pith_status status = pith_state_adapt(state, codec);
  if (status != PITH_OK) {
    return status;
  }
  if (has) {
    pith__values_add(debt, state->residual, state->n);
    memset(debt, 0, state->n * sizeof *debt);
  }
  *owed = had && !has;
  return PITH_OK;
}

pith_status pith_debt_pay(float *debt, size_t steps, pith_span gradient) {
  float part[TILE], buffer[TILE];
  PITH_REQUIRE(steps && (debt || !gradient.n) && (gradient.data || !gradient.n), PITH_ERR_ARGUMENT,
               "pith_debt_pay: debt or gradient is NULL, or there are no steps");
  float share = 1.0f / (float)steps;
  for (size_t at = 0; at < gradient.n; at += TILE) {
    size_t n = gradient.n - at < TILE ? gradient.n - at : TILE;
    for (size_t i = 0; i < n; i++) {
      part[i] = debt[at + i] * share;
      debt[at + i] -= part[i];
    }
    pith__span_store(gradient, at, n, part, PITH_ADD, buffer);
  }
  return PITH_OK;
}

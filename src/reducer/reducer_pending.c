/* Pending residuals of a reducer's layers after a change of spec: src/memory/pending.c has the arithmetic. */
#include <stdlib.h>

#include "codec/codec.h"
#include "reducer/reducer.h"

static void drop(pith_named *l) {
  free(l->pending);
  l->pending = NULL;
  l->pending_steps = 0;
}

pith_status pith__pending_move(pith_named *l, const pith_codec *codec, int ranks) {
  int is_pending = 0;
  if (!l->pending) {
    l->pending = calloc(l->n + 1, sizeof *l->pending);
    PITH_REQUIRE(l->pending, PITH_ERR_MEMORY, "no memory for what layer %s has not sent yet", l->name);
  }
  PITH_TRY(pith_state_move(l->state, codec, ranks, l->pending, &is_pending));
  l->pending_steps = is_pending ? PITH_DEBT_STEPS : l->pending_steps;
  if (!l->pending_steps || pith_state_residual(l->state)) {
    drop(l);
  }
  return PITH_OK;
}

void pith__pending_release(pith_named *l, void *gradient) {
  if (l->pending) {
    pith_debt_pay(l->pending, l->pending_steps, (pith_span){gradient, l->n, l->dtype});
    if (--l->pending_steps == 0) {
      drop(l);
    }
  }
}

void pith__pending_scale(pith_named *l, float factor) {
  if (l->pending) {
    pith__values_scale(factor, l->pending, l->n);
  }
}

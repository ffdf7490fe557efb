/* What layers of a reducer owe after a change of spec: src/memory/debt.c has the arithmetic. */
#include <stdlib.h>

#include "codec/codec.h"
#include "reducer/reducer.h"

static void drop(pith_named *l) {
  free(l->debt);
  l->debt = NULL;
  l->debt_steps = 0;
}

pith_status pith__debt_move(pith_named *l, const pith_codec *codec, int ranks) {
  int owed = 0;
  if (!l->debt) {
    l->debt = calloc(l->n + 1, sizeof *l->debt);
    PITH_REQUIRE(l->debt, PITH_ERR_MEMORY, "no memory for what layer %s has not sent yet", l->name);
  }
  PITH_TRY(pith_state_move(l->state, codec, ranks, l->debt, &owed));
  l->debt_steps = owed ? PITH_DEBT_STEPS : l->debt_steps;
  if (!l->debt_steps || pith_state_residual(l->state)) {
    drop(l);
  }
  return PITH_OK;
}

void pith__debt_pay(pith_named *l, void *gradient) {
  if (l->debt) {
    pith_debt_pay(l->debt, l->debt_steps, (pith_span){gradient, l->n, l->dtype});
    if (--l->debt_steps == 0) {
      drop(l);
    }
  }
}

void pith__debt_scale(pith_named *l, float factor) {
  if (l->debt) {
    pith__values_scale(factor, l->debt, l->n);
  }
}

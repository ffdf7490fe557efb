/* SPDX-License-Identifier: Apache-2.0 */
/* States in the caller's memory: lent to the reducer before a step, and taken back at its end. */
#include "memory/memory.h"
#include "reducer/reducer.h"

pith_status pith__reducer_check_owned(const pith_reducer *r, const char *what) {
  PITH_REQUIRE(!r->options.lent, PITH_ERR_STATE,
               "what layers keep is lent to this reducer step by step: it is the caller's to %s", what);
  return PITH_OK;
}

pith_status pith_reducer_array_sizes(const pith_reducer *r, size_t index, size_t bytes[PITH_STATE_ARRAYS]) {
  pith_reducer_layer *l = NULL;
  PITH_REQUIRE(r && bytes, PITH_ERR_ARGUMENT, "pith_reducer_array_sizes: reducer and bytes must not be NULL");
  PITH_TRY(pith__reducer_find(r, index, &l));
  pith__state_array_sizes(l->match.codec, l->state, bytes);
  return PITH_OK;
}

pith_status pith_reducer_lend(pith_reducer *r, size_t index, void *const arrays[PITH_STATE_ARRAYS]) {
  pith_reducer_layer *l = NULL;
  size_t bytes[PITH_STATE_ARRAYS];
  void *taken[PITH_STATE_ARRAYS];
  PITH_REQUIRE(r && arrays, PITH_ERR_ARGUMENT, "pith_reducer_lend: reducer and arrays must not be NULL");
  PITH_TRY(pith__reducer_find(r, index, &l));
  PITH_REQUIRE(r->options.lent, PITH_ERR_STATE, "the reducer keeps its states by itself: options.lent");
  PITH_REQUIRE(l->started != r->step + 1, PITH_ERR_STATE, "layer %s has started: lend its arrays before", l->name);
  pith__state_array_sizes(l->match.codec, l->state, bytes);
  for (int a = 0; a < PITH_STATE_ARRAYS; a++) {
    taken[a] = bytes[a] ? arrays[a] : NULL;
    PITH_REQUIRE(taken[a] || !bytes[a], PITH_ERR_ARGUMENT, "layer %s: %s keeps array %d, which is NULL", l->name,
                 l->match.codec->spec, a);
    PITH_REQUIRE((uintptr_t)taken[a] % sizeof(float) == 0, PITH_ERR_ARGUMENT,
                 "layer %s: array %d is not aligned for f32", l->name, a);
  }
  pith__state_lend(l->state, taken);
  l->lent = r->step + 1;
  return PITH_OK;
}

pith_status pith_reducer_set_step(pith_reducer *r, uint64_t step) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_REQUIRE(r->options.lent, PITH_ERR_STATE, "the reducer counts its steps by itself: options.lent");
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before setting the next");
  r->step = step;
  pith__reducer_take_back(r);
  return PITH_OK;
}

/* The same step may come again. */
void pith__reducer_take_back(pith_reducer *r) {
  for (size_t i = 0; i < r->count && r->options.lent; i++) {
    pith__state_lend(r->layers[i].state, NULL);
    r->layers[i].lent = r->layers[i].started = 0;
  }
}

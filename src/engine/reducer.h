/*
 * The inside of a reducer: layers with names, specs and states, and what is under way.
 *
 *   reducer.c       its life, its layers, what ranks must agree on
 *   reducer_step.c  a step: operations, and layers joined to one
 *   reducer_save.c  checkpoints
 */
#ifndef PITH_ENGINE_REDUCER_H
#define PITH_ENGINE_REDUCER_H

#include "engine/comm.h"

/* A layer as the reducer knows it. */
typedef struct pith_named {
  char *name;
  uint64_t number; /* from the name: the same on all ranks */
  size_t n, rows;
  pith_dtype dtype;
  pith_match match;
  pith_state *state;
  pith_traffic traffic;
  uint64_t steps, started; /* started: the step it was last started in, plus one */
} pith_named;

/* Layers that travel together, or one that travels alone (with no members). */
typedef struct pith_flight {
  pith_request *request;   /* NULL: has not left yet */
  const pith_codec *codec; /* NULL: uncompressed */
  pith_dtype dtype;
  size_t *layer; /* `count` of them, with … */
  void **gradient;
  pith_member *member;
  size_t count, room;
  uint8_t *buffer; /* … their values, one after another; NULL where they stay apart */
  size_t n, bytes; /* values in the buffer; bytes of gradients */
} pith_flight;

#define PITH_OPEN_MOST 8

struct pith_reducer {
  pith_comm *comm;
  pith_rules *rules;
  uint64_t seed, step;
  int checked;
  pith_named *layers;
  size_t count, room;
  pith_flight *flights; /* under way */
  size_t flight_count, flight_room;
  pith_flight open[PITH_OPEN_MOST]; /* still taking layers on board */
  size_t open_count;
};

/* Room for one more of `size` bytes each; arrays double. */
pith_status pith__reducer_grow(void **array, size_t *room, size_t used, size_t size);

static inline size_t pith__layer_bytes(const pith_named *l) { return l->n * pith_dtype_size(l->dtype); }

/* Waits for what is under way and drops the rest. */
void pith__reducer_drop_flights(pith_reducer *r);

#endif

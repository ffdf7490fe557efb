/*
 * Which layers of a reducer travel together, and when they leave. Groups follow from the layers and their specs alone:
 * from the last layer to the first, the order of a backward pass, layers of one kind are grouped until they have enough
 * bytes. So they are the same on all ranks and in every step, in whatever order gradients come, and what the owner of a
 * part keeps between steps stays with it.
 */
#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "reducer/reducer.h"
#include "reducer/stages.h"

#define BLOCK_BYTES ((size_t)8 << 20)
#define WHOLE_BYTES ((size_t)16 << 20) /* of methods that send little: what they cost is the time of a message */

/* ---- Forming them ------------------------------------------------------------------------------------------------ */

static pith_way way_of(const pith_named *l) {
  const uint32_t fixed_blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  const pith_codec *codec = l->match.codec;
  if (l->dtype == PITH_F64) {
    return PITH_WAY_PLAIN;
  }
  if (codec->caps & PITH_CAP_ROUNDS) {
    return PITH_WAY_ROUNDS;
  }
  return (codec->caps & fixed_blocks) == fixed_blocks ? PITH_WAY_BLOCKS : PITH_WAY_WHOLE;
}

/* Over a comm, layers of all kinds leave together, each its own way. */
static int takes(const pith_reducer *r, const pith_group *g, const pith_named *l) {
  if (!r->stages) {
    return 1;
  }
  return g->way == way_of(l) && (g->way != PITH_WAY_ROUNDS || g->codec->fingerprint == l->match.codec->fingerprint);
}

static size_t limit_of(const pith_reducer *r, pith_way way) {
  if (r->options.group_bytes) {
    return r->options.group_bytes;
  }
  return way == PITH_WAY_BLOCKS || way == PITH_WAY_PLAIN ? BLOCK_BYTES : WHOLE_BYTES;
}

/* The last group of the layer's kind, if it is not full; else a new one. */
static pith_status find_group(pith_reducer *r, const pith_named *l, size_t *found) {
  for (size_t g = r->group_count; g-- > 0;) {
    if (takes(r, &r->groups[g], l)) {
      if (r->groups[g].bytes < limit_of(r, r->groups[g].way)) {
        *found = g;
        return PITH_OK;
      }
      break;
    }
  }
  PITH_TRY(pith__reducer_grow((void **)&r->groups, &r->group_room, r->group_count, sizeof *r->groups));
  *found = r->group_count++;
  r->groups[*found] = (pith_group){.way = way_of(l), .codec = l->match.codec};
  return PITH_OK;
}

pith_status pith__reducer_form_groups(pith_reducer *r) {
  pith__reducer_drop_groups(r);
  r->group_of = calloc(r->count + 1, sizeof *r->group_of);
  PITH_REQUIRE(r->group_of, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t i = r->count; i-- > 0;) {
    size_t at;
    PITH_TRY(find_group(r, &r->layers[i], &at));
    pith_group *g = &r->groups[at];
    PITH_TRY(pith__reducer_grow((void **)&g->layer, &g->room, g->count, sizeof *g->layer));
    g->layer[g->count++] = i;
    g->bytes += pith__layer_bytes(&r->layers[i]);
    g->missing = g->count;
    r->group_of[i] = at;
  }
  return PITH_OK;
}

void pith__reducer_drop_groups(pith_reducer *r) {
  for (size_t g = 0; g < r->group_count; g++) {
    pith_bucket_destroy(r->groups[g].bucket);
    free(r->groups[g].layer);
  }
  free(r->groups);
  free(r->group_of);
  r->groups = NULL, r->group_of = NULL;
  r->group_count = r->group_room = 0;
  r->next_group = 0;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

static int has_come(const pith_reducer *r, size_t layer) { return r->layers[layer].started == r->step + 1; }

static pith_status send_over_comm(pith_reducer *r, const pith_group *g) {
  for (size_t i = 0; i < g->count; i++) {
    if (has_come(r, g->layer[i])) {
      PITH_TRY(pith__reducer_send(r, g->layer[i], r->layers[g->layer[i]].gradient));
    }
  }
  return pith__reducer_send_joints(r);
}

/* Layers whose gradients did not come are left out, on all ranks alike. */
static pith_status leave(pith_reducer *r, pith_group *g) {
  if (g->has_left || g->missing == g->count) {
    return PITH_OK;
  }
  g->has_left = 1;
  return r->stages ? pith__stages_put(r->stages, g) : send_over_comm(r, g);
}

pith_status pith__reducer_board(pith_reducer *r, size_t index, void *gradient) {
  pith_group *g = &r->groups[r->group_of[index]];
  r->layers[index].gradient = gradient;
  PITH_REQUIRE(!g->has_left, PITH_ERR_STATE, "layer %s comes after the reducer was flushed", r->layers[index].name);
  g->missing--;
  if (!r->options.in_order) {
    return g->missing ? PITH_OK : leave(r, g);
  }
  while (r->next_group < r->group_count && r->groups[r->next_group].missing == 0) {
    PITH_TRY(leave(r, &r->groups[r->next_group++]));
  }
  return PITH_OK;
}

pith_status pith__reducer_leave_all(pith_reducer *r) {
  for (size_t g = 0; g < r->group_count; g++) {
    PITH_TRY(leave(r, &r->groups[g]));
  }
  return PITH_OK;
}

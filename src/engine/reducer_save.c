/* Checkpoints of a reducer: the step and every layer's state. docs/format.md has the bytes. */
#include <stdlib.h>
#include <string.h>

#include "base/saturate.h"
#include "codec/codec.h"
#include "engine/reducer.h"
#include "memory/memory.h"

#define REDUCER_MAGIC 0x44524850u /* "PHRD" */

typedef struct reducer_header {
  uint32_t magic, version;
  uint64_t step, seed, layers, reserved;
} reducer_header;

typedef struct layer_header {
  uint64_t number, fingerprint, size;
} layer_header;

size_t pith_reducer_size(const pith_reducer *r) {
  size_t size = sizeof(reducer_header);
  for (size_t i = 0; i < r->count; i++) {
    size = pith__sat_add(size, pith__sat_add(sizeof(layer_header), pith_state_size(r->layers[i].state)));
  }
  return size;
}

pith_status pith_reducer_save(const pith_reducer *r, pith_out *out) {
  PITH_REQUIRE(r && out && out->data, PITH_ERR_ARGUMENT, "pith_reducer_save: reducer and out must not be NULL");
  PITH_REQUIRE(r->flight_count == 0 && r->open_count == 0, PITH_ERR_STATE, "a step is under way: finish it before saving");
  size_t size = pith_reducer_size(r), at = sizeof(reducer_header);
  PITH_REQUIRE(out->capacity >= size, PITH_ERR_BUFFER, "the reducer takes %zu bytes, the buffer has %zu", size, out->capacity);
  uint8_t *bytes = out->data;
  reducer_header head = {REDUCER_MAGIC, 1, r->step, r->seed, r->count, 0};
  memcpy(bytes, &head, sizeof head);
  for (size_t i = 0; i < r->count; i++) {
    const pith_named *l = &r->layers[i];
    layer_header lh = {l->number, l->match.codec->fingerprint, pith_state_size(l->state)};
    memcpy(bytes + at, &lh, sizeof lh);
    pith_out piece = {bytes + at + sizeof lh, size - at - sizeof lh, 0};
    PITH_TRY(pith_state_save(l->state, &piece));
    at += sizeof lh + piece.size;
  }
  out->size = size;
  return PITH_OK;
}

static pith_status check_saved_layer(const pith_named *l, pith_bytes rest, layer_header *lh) {
  PITH_REQUIRE(rest.size >= sizeof *lh, PITH_ERR_CORRUPT, "the checkpoint ends before layer %s", l->name);
  memcpy(lh, rest.data, sizeof *lh);
  PITH_REQUIRE(lh->number == l->number, PITH_ERR_STATE, "the checkpoint has another layer where %s should be", l->name);
  PITH_REQUIRE(lh->fingerprint == l->match.codec->fingerprint, PITH_ERR_STATE, "the checkpoint has another spec for layer %s than %s",
               l->name, l->match.codec->spec);
  PITH_REQUIRE(lh->size <= rest.size - sizeof *lh, PITH_ERR_CORRUPT, "the checkpoint ends within layer %s", l->name);
  return PITH_OK;
}

/* Walks the layers of a checkpoint: first into fresh states, to see that all of them load; then into the real ones. */
static pith_status walk(pith_reducer *r, pith_bytes in, int for_real) {
  size_t at = sizeof(reducer_header);
  for (size_t i = 0; i < r->count; i++) {
    pith_named *l = &r->layers[i];
    layer_header lh;
    pith_state *target = l->state;
    PITH_TRY(check_saved_layer(l, (pith_bytes){(const uint8_t *)in.data + at, in.size - at}, &lh));
    if (!for_real) {
      PITH_TRY(pith_state_create(l->match.codec, l->n, l->state->rows, &target));
    }
    pith_status status = pith_state_load(target, (pith_bytes){(const uint8_t *)in.data + at + sizeof lh, (size_t)lh.size});
    if (!for_real) {
      pith_state_destroy(target);
    }
    PITH_TRY(status);
    at += sizeof lh + (size_t)lh.size;
  }
  PITH_REQUIRE(at == in.size, PITH_ERR_CORRUPT, "the checkpoint has %zu bytes behind its last layer", in.size - at);
  return PITH_OK;
}

pith_status pith_reducer_load(pith_reducer *r, pith_bytes in) {
  reducer_header head;
  PITH_REQUIRE(r && in.data, PITH_ERR_ARGUMENT, "pith_reducer_load: reducer and bytes must not be NULL");
  PITH_REQUIRE(r->flight_count == 0 && r->open_count == 0, PITH_ERR_STATE, "a step is under way: finish it before loading");
  PITH_REQUIRE(in.size >= sizeof head, PITH_ERR_CORRUPT, "a checkpoint has at least %zu bytes, not %zu", sizeof head, in.size);
  memcpy(&head, in.data, sizeof head);
  PITH_REQUIRE(head.magic == REDUCER_MAGIC && head.version == 1 && head.reserved == 0, PITH_ERR_CORRUPT,
               "these bytes are not a checkpoint of a reducer");
  PITH_REQUIRE(head.layers == r->count, PITH_ERR_STATE, "the checkpoint has %llu layers, the reducer %zu", (unsigned long long)head.layers,
               r->count);
  PITH_TRY(walk(r, in, 0));
  PITH_TRY(walk(r, in, 1));
  r->step = head.step;
  r->seed = head.seed;
  for (size_t i = 0; i < r->count; i++) {
    r->layers[i].started = 0;
  }
  return PITH_OK;
}

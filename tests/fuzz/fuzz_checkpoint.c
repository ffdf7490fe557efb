/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes as checkpoints of reducers and adapters: loaded or refused; a refusal leaves the object
 * as it was, and what was loaded can be saved again. The first byte chooses the object; with its high bit the checksum
 * is made right, so that what stands behind it is reached too.
 */
#include <pith/adapt.h>
#include <pith/comm.h>

#include "base/hash.h"
#include "fuzz/checkpoint.h"
#include "fuzz/fuzz.h"

typedef struct object {
  void *it;
  size_t (*size)(void *it);
  pith_status (*save)(void *it, pith_out *out);
  pith_status (*load)(void *it, pith_bytes bytes);
  size_t sum_at, summed_from; /* 0: no checksum */
  pith_out first;             /* what a fresh one saves: objects go back to it */
} object;

static size_t reducer_size(void *it) { return pith_reducer_save_size(it); }
static pith_status reducer_save(void *it, pith_out *out) { return pith_reducer_save(it, out); }
static pith_status reducer_load(void *it, pith_bytes bytes) { return pith_reducer_load(it, bytes); }
static size_t adapter_size(void *it) { return pith_adapter_save_size(it); }
static pith_status adapter_save(void *it, pith_out *out) { return pith_adapter_save(it, out); }
static pith_status adapter_load(void *it, pith_bytes bytes) { return pith_adapter_load(it, bytes); }

static pith_out save(const object *o) {
  pith_out out = {malloc(o->size(o->it)), o->size(o->it), 0};
  FUZZ_REQUIRE(out.data && o->save(o->it, &out) == PITH_OK && out.size == out.capacity);
  return out;
}

enum { SUM_OF_ADAPTER = 24, BEHIND_ADAPTER = 32 };

static object *object_of(size_t number) {
  static object all[FUZZ_CHECKPOINTS];
  object *o = &all[number];
  if (o->it) {
    return o;
  }
  switch (number) {
    case FUZZ_CHECKPOINT_LGRECO:
    case FUZZ_CHECKPOINT_AUTO:
      *o = (object){
          fuzz_make_adapter(number), adapter_size, adapter_save, adapter_load, SUM_OF_ADAPTER, BEHIND_ADAPTER, {0}};
      break;
    case FUZZ_CHECKPOINT_SHARDS:
      *o = (object){fuzz_make_shards(), reducer_size, reducer_save, reducer_load, 0, 0, {0}};
      break;
    default:
      *o = (object){fuzz_make_reducer(number), reducer_size, reducer_save, reducer_load, 0, 0, {0}};
  }
  o->first = save(o);
  return o;
}

static void seal(const object *o, uint8_t *bytes, size_t size) {
  if (o->sum_at && size >= o->summed_from) {
    uint64_t sum = pith__hash64(bytes + o->summed_from, size - o->summed_from, 0);
    memcpy(bytes + o->sum_at, &sum, sizeof sum);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_input in = {data, size};
  unsigned head = (unsigned)fuzz_take(&in, 1);
  object *o = object_of(head % 128 % FUZZ_CHECKPOINTS);
  uint8_t *bytes = malloc(in.size + !in.size); /* so that reading one byte too many shows */
  FUZZ_REQUIRE(bytes);
  memcpy(bytes, in.data, in.size);
  if (head & 128) {
    seal(o, bytes, in.size);
  }
  pith_status status = o->load(o->it, (pith_bytes){bytes, in.size});
  pith_out after = save(o);
  if (status != PITH_OK) {
    FUZZ_REQUIRE(pith_error()[0]);
    FUZZ_REQUIRE(after.size == o->first.size && memcmp(after.data, o->first.data, after.size) == 0);
  } else {
    FUZZ_REQUIRE(o->load(o->it, (pith_bytes){after.data, after.size}) == PITH_OK);
    FUZZ_REQUIRE(o->load(o->it, (pith_bytes){o->first.data, o->first.size}) == PITH_OK);
  }
  free(after.data);
  free(bytes);
  return 0;
}

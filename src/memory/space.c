/* SPDX-License-Identifier: Apache-2.0 */
/* Values in main memory or elsewhere: see space.h. */
#include "memory/space.h"

#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "memory/store.h"

enum { TILE = 1024 };

pith_status pith__space_zeros(pith_space *space, size_t bytes, void **memory) {
  if (space) {
    return space->allocate(space, bytes ? bytes : 1, memory);
  }
  *memory = calloc(1, bytes ? bytes : 1);
  PITH_REQUIRE(*memory, PITH_ERR_MEMORY, "no memory for %zu bytes of a layer's state", bytes);
  return PITH_OK;
}

void pith__space_release(pith_space *space, void *memory) {
  if (space && memory) {
    space->release(space, memory);
  } else if (!space) {
    free(memory);
  }
}

pith_status pith__space_copy(pith_space *space, void *to, const void *from, size_t bytes) {
  if (space) {
    return bytes ? space->copy(space, to, from, bytes) : PITH_OK;
  }
  if (bytes) {
    memcpy(to, from, bytes);
  }
  return PITH_OK;
}

pith_status pith__space_scale(pith_space *space, float factor, float *x, size_t n) {
  if (space) {
    return n ? space->scale(space, factor, x, n) : PITH_OK;
  }
  pith__values_scale(factor, x, n);
  return PITH_OK;
}

pith_status pith__space_add(pith_space *space, const float *x, pith_span to) {
  float buffer[TILE];
  if (space) {
    return to.n ? space->add(space, x, to) : PITH_OK;
  }
  for (size_t at = 0, n; at < to.n; at += n) {
    n = to.n - at < TILE ? to.n - at : TILE;
    pith__span_store(to, at, n, x + at, PITH_ADD, buffer);
  }
  return PITH_OK;
}

pith_status pith__space_repack(pith_space *space, const pith_repack_task *task) {
  if (space) {
    return task->n ? space->repack(space, task) : PITH_OK;
  }
  pith__repack(task);
  return PITH_OK;
}

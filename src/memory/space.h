/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where values live, if not in main memory: on a CUDA device. States, and residuals that wait for their release, keep
 * their values in a space; NULL is main memory. What else is done to values there is done by kernels, elsewhere.
 */
#ifndef PITH_MEMORY_SPACE_H
#define PITH_MEMORY_SPACE_H

#include <pith/pith.h>

#include "kernel/formats.h"

typedef struct pith_space {
  pith_status (*allocate)(struct pith_space *space, size_t bytes, void **memory); /* zeros */
  void (*release)(struct pith_space *space, void *memory);
  /* Both ends may be of the space or of main memory. Returns when all that came before, and the copy, is done. */
  pith_status (*copy)(struct pith_space *space, void *to, const void *from, size_t bytes);
  /* x *= factor, to += x, and a residual in another store (store.h), in the order of the calls. */
  pith_status (*scale)(struct pith_space *space, float factor, float *x, size_t n);
  pith_status (*add)(struct pith_space *space, const float *x, pith_span to);
  pith_status (*repack)(struct pith_space *space, const pith_repack_task *task);
} pith_space;

pith_status pith__space_zeros(pith_space *space, size_t bytes, void **memory);
void pith__space_release(pith_space *space, void *memory);
pith_status pith__space_copy(pith_space *space, void *to, const void *from, size_t bytes);
pith_status pith__space_scale(pith_space *space, float factor, float *x, size_t n);
pith_status pith__space_add(pith_space *space, const float *x, pith_span to);
pith_status pith__space_repack(pith_space *space, const pith_repack_task *task);

#endif

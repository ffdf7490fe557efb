/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a state keeps its residual: as f32, or in fewer bits, with the layout of src/kernel/formats.h. Whoever works on
 * values widens them first, a tile at a time where that is possible, and packs what is left.
 *
 * Increments of a residual are often smaller than its steps. So values are rounded to one of their two neighbours at
 * random: what one step loses another gains, where rounding to the nearest would lose the same again and again.
 */
#ifndef PITH_MEMORY_STORE_H
#define PITH_MEMORY_STORE_H

#include "base/rng.h"
#include "kernel/formats.h"

/* Of the parameter `store`. */
const char *pith__store_name(pith_store store);

/* Bytes of n values. */
size_t pith__store_size(pith_store store, size_t n);

/* Values from `first` on, which begins a block; NULL of NULL. */
void *pith__store_at(pith_store store, const void *data, size_t first);

/* n values, the first of which begins a block. f32 are copied. */
void pith__store_widen(pith_store store, const void *data, size_t n, float *to);

/* The inverse. `index` is the place of the first value in its layer. */
void pith__store_pack(pith_store store, const float *x, size_t n, pith_key key, uint64_t index, void *data);

/* A task in main memory. */
void pith__repack(const pith_repack_task *task);

/* Values [first, first + n) of a task; `first` begins a block. */
pith_repack_task pith__repack_piece(const pith_repack_task *task, size_t first, size_t n);

/* What is drawn when a residual is packed in the step of a ctx. */
static inline pith_key pith__store_key(const pith_ctx *ctx) { return pith__rng_key(ctx, PITH_DOMAIN_STORE, 0); }

#endif

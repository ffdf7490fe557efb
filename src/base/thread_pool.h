/* SPDX-License-Identifier: Apache-2.0 */
/* A pool of threads that share a piece of work, together with whoever has it. They stay, and watch for more work for a
 * moment before they sleep, since pieces of a tensor follow each other closely. */
#ifndef PITH_BASE_THREAD_POOL_H
#define PITH_BASE_THREAD_POOL_H

#include <pith/pith.h>

typedef struct pith_thread_pool pith_thread_pool;

#define PITH_THREADS_MOST 64 /* threads, the caller included */

/* `threads` with the caller: 1 needs no pool. */
pith_status pith__thread_pool_create(unsigned threads, pith_thread_pool **pool);
void pith__thread_pool_destroy(pith_thread_pool *pool);

/* 1 for NULL. */
unsigned pith__thread_pool_size(const pith_thread_pool *pool);

/* Calls run(argument, 0), run(argument, 1), … for each of `parts`, at most the pool's size, on threads of their own;
 * the caller takes part 0. Returns when all are done. One caller at a time. */
void pith__thread_pool_run(pith_thread_pool *pool, unsigned parts, void (*run)(void *argument, unsigned part),
                           void *argument);

#endif

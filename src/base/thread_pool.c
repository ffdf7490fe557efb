/* SPDX-License-Identifier: Apache-2.0 */
/* Work is announced by a count: a worker that sees another number than last time has something to do. */
#include "base/thread_pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define WATCH_TURNS 2000 /* some ten microseconds */

typedef struct worker {
  pith_thread_pool *pool;
  unsigned part;
  pthread_t thread;
} worker;

struct pith_thread_pool {
  unsigned size, started;
  worker workers[PITH_THREADS_MOST];
  atomic_uint announced, left; /* pieces of work so far; workers who are not done with this one */
  atomic_int asleep, closing;
  unsigned parts;
  void (*run)(void *argument, unsigned part);
  void *argument;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
};

static void rest(void) {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#endif
}

/* Waits for other work than number `seen`; gives its number. */
static unsigned await_work(pith_thread_pool *pool, unsigned seen) {
  for (int turn = 0; turn < WATCH_TURNS; turn++) {
    if (atomic_load(&pool->announced) != seen) {
      return seen + 1;
    }
    rest();
  }
  pthread_mutex_lock(&pool->mutex);
  atomic_fetch_add(&pool->asleep, 1);
  while (atomic_load(&pool->announced) == seen) {
    pthread_cond_wait(&pool->changed, &pool->mutex);
  }
  atomic_fetch_sub(&pool->asleep, 1);
  pthread_mutex_unlock(&pool->mutex);
  return seen + 1;
}

static void *serve(void *argument) {
  const worker *me = argument;
  pith_thread_pool *pool = me->pool;
  for (unsigned seen = 0;;) {
    seen = await_work(pool, seen);
    if (atomic_load(&pool->closing)) {
      return NULL;
    }
    if (me->part < pool->parts) {
      pool->run(pool->argument, me->part);
    }
    atomic_fetch_sub(&pool->left, 1);
  }
}

static void announce(pith_thread_pool *pool) {
  atomic_fetch_add(&pool->announced, 1);
  if (atomic_load(&pool->asleep)) { /* one that falls asleep just now looks at the count again, with the mutex held */
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
  }
}

pith_status pith__thread_pool_create(unsigned threads, pith_thread_pool **made) {
  PITH_REQUIRE(threads >= 1 && threads <= PITH_THREADS_MOST, PITH_ERR_ARGUMENT,
               "%u threads: between 1 and %d are possible", threads, PITH_THREADS_MOST);
  pith_thread_pool *pool = calloc(1, sizeof *pool);
  PITH_REQUIRE(pool, PITH_ERR_MEMORY, "no memory for threads");
  pthread_mutex_init(&pool->mutex, NULL);
  pthread_cond_init(&pool->changed, NULL);
  pool->size = threads;
  for (unsigned part = 1; part < threads; part++) {
    worker *m = &pool->workers[part];
    *m = (worker){.pool = pool, .part = part};
    int failed = pthread_create(&m->thread, NULL, serve, m);
    if (failed) {
      pith__thread_pool_destroy(pool);
      return pith_fail(PITH_ERR_SYSTEM, "thread %u of %u cannot be started: %s", part + 1, threads, strerror(failed));
    }
    pool->started++;
  }
  *made = pool;
  return PITH_OK;
}

void pith__thread_pool_destroy(pith_thread_pool *pool) {
  if (!pool) {
    return;
  }
  atomic_store(&pool->closing, 1);
  announce(pool);
  for (unsigned part = 1; part <= pool->started; part++) {
    pthread_join(pool->workers[part].thread, NULL);
  }
  pthread_mutex_destroy(&pool->mutex);
  pthread_cond_destroy(&pool->changed);
  free(pool);
}

unsigned pith__thread_pool_size(const pith_thread_pool *pool) { return pool ? pool->size : 1; }

void pith__thread_pool_run(pith_thread_pool *pool, unsigned parts, void (*run)(void *argument, unsigned part),
                           void *argument) {
  pool->parts = parts;
  pool->run = run;
  pool->argument = argument;
  atomic_store(&pool->left, pool->started);
  announce(pool);
  run(argument, 0);
  for (int turn = 0; atomic_load(&pool->left); turn++) {
    if (turn < WATCH_TURNS) {
      rest();
    } else {
      sched_yield();
    }
  }
}

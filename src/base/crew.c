/* Work is announced by a count: a member that sees another number than last time has something to do. */
#include "base/crew.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

#define WATCH_TURNS 2000 /* some ten microseconds */

typedef struct member {
  pith_crew *crew;
  unsigned part;
  pthread_t thread;
} member;

struct pith_crew {
  unsigned size, started;
  member members[PITH_CREW_MOST];
  atomic_uint announced, left; /* pieces of work so far; members who are not done with this one */
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
static unsigned await_work(pith_crew *crew, unsigned seen) {
  for (int turn = 0; turn < WATCH_TURNS; turn++) {
    if (atomic_load(&crew->announced) != seen) {
      return seen + 1;
    }
    rest();
  }
  pthread_mutex_lock(&crew->mutex);
  atomic_fetch_add(&crew->asleep, 1);
  while (atomic_load(&crew->announced) == seen) {
    pthread_cond_wait(&crew->changed, &crew->mutex);
  }
  atomic_fetch_sub(&crew->asleep, 1);
  pthread_mutex_unlock(&crew->mutex);
  return seen + 1;
}

static void *serve(void *argument) {
  const member *me = argument;
  pith_crew *crew = me->crew;
  for (unsigned seen = 0;;) {
    seen = await_work(crew, seen);
    if (atomic_load(&crew->closing)) {
      return NULL;
    }
    if (me->part < crew->parts) {
      crew->run(crew->argument, me->part);
    }
    atomic_fetch_sub(&crew->left, 1);
  }
}

static void announce(pith_crew *crew) {
  atomic_fetch_add(&crew->announced, 1);
  if (atomic_load(&crew->asleep)) { /* one that falls asleep just now looks at the count again, with the mutex held */
    pthread_mutex_lock(&crew->mutex);
    pthread_cond_broadcast(&crew->changed);
    pthread_mutex_unlock(&crew->mutex);
  }
}

pith_status pith__crew_create(unsigned threads, pith_crew **made) {
  PITH_REQUIRE(threads >= 1 && threads <= PITH_CREW_MOST, PITH_ERR_ARGUMENT,
               "%u threads: between 1 and %d are possible", threads, PITH_CREW_MOST);
  pith_crew *crew = calloc(1, sizeof *crew);
  PITH_REQUIRE(crew, PITH_ERR_MEMORY, "no memory for threads");
  pthread_mutex_init(&crew->mutex, NULL);
  pthread_cond_init(&crew->changed, NULL);
  crew->size = threads;
  for (unsigned part = 1; part < threads; part++) {
    member *m = &crew->members[part];
    *m = (member){.crew = crew, .part = part};
    int failed = pthread_create(&m->thread, NULL, serve, m);
    if (failed) {
      pith__crew_destroy(crew);
      return pith_fail(PITH_ERR_SYSTEM, "thread %u of %u cannot be started: %s", part + 1, threads, strerror(failed));
    }
    crew->started++;
  }
  *made = crew;
  return PITH_OK;
}

void pith__crew_destroy(pith_crew *crew) {
  if (!crew) {
    return;
  }
  atomic_store(&crew->closing, 1);
  announce(crew);
  for (unsigned part = 1; part <= crew->started; part++) {
    pthread_join(crew->members[part].thread, NULL);
  }
  pthread_mutex_destroy(&crew->mutex);
  pthread_cond_destroy(&crew->changed);
  free(crew);
}

unsigned pith__crew_size(const pith_crew *crew) { return crew ? crew->size : 1; }

void pith__crew_run(pith_crew *crew, unsigned parts, void (*run)(void *argument, unsigned part), void *argument) {
  crew->parts = parts;
  crew->run = run;
  crew->argument = argument;
  atomic_store(&crew->left, crew->started);
  announce(crew);
  run(argument, 0);
  for (int turn = 0; atomic_load(&crew->left); turn++) {
    if (turn < WATCH_TURNS) {
      rest();
    } else {
      sched_yield();
    }
  }
}

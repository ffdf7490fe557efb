/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Groups of a reducer that are reduced over a carrier.
 *
 * Groups overlap: when one is put, its first exchange is started; then the one before it goes an exchange further, and
 * so on. That order follows from the order of groups alone, never from time, so it is the same on all ranks. A thread
 * does this where the carrier allows it; else whoever calls the reducer.
 */
#include "reducer/stages.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/forked.h"
#include "device/cuda_space.h"

#define KEPT_MOST 16 /* buffers */
#define TEXT 512
#define LOOK_NANOSECONDS 100000000 /* how often a caller who waits looks for signals */

struct pith_stages {
  pith_reducer *reducer;
  pith_space *space;      /* of buffers; NULL: main memory */
  pith_carrier carrier;   /* outlives the reducer where a thread still waits for it */
  pith_staged *under_way; /* the newest first */
  pith_stage_buffer kept[KEPT_MOST];
  size_t kept_count;
  pith_status failed; /* for good: other ranks may have gone on */
  char why[TEXT];
  /* Between the caller and the thread. */
  int has_thread;
  int is_ending, is_closing; /* what the thread is asked for: to finish the step, to end */
  int is_waiting;            /* the thread is in the carrier's wait(), which may take long, and touches no gradient */
  int has_given_up;          /* the caller has: nothing of the reducer may be touched any more */
  int is_abandoned;          /* the thread releases all this */
  pith_staged *queue, **queue_end;
  pthread_t thread;
  pthread_mutex_t mutex;
  pthread_cond_t changed;
};

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

pith_status pith__stages_buffer(pith_stages *s, pith_stage_buffer *buffer, size_t size) {
  if (buffer->room >= size && buffer->data) {
    return PITH_OK;
  }
  pith__stages_give_back(s, buffer);
  size_t best = s->kept_count;
  for (size_t i = 0; i < s->kept_count; i++) {
    if (s->kept[i].room >= size && (best == s->kept_count || s->kept[i].room < s->kept[best].room)) {
      best = i;
    }
  }
  if (best < s->kept_count) {
    *buffer = s->kept[best];
    s->kept[best] = s->kept[--s->kept_count];
    return PITH_OK;
  }
  void *memory = NULL;
  if (s->space) {
    PITH_TRY(s->space->allocate(s->space, size + 1, &memory));
  } else {
    memory = malloc(size + 1);
    PITH_REQUIRE(memory, PITH_ERR_MEMORY, "no memory for a message of %zu bytes", size);
  }
  *buffer = (pith_stage_buffer){memory, size};
  return PITH_OK;
}

void pith__stages_give_back(pith_stages *s, pith_stage_buffer *buffer) {
  if (buffer->data && s->kept_count < KEPT_MOST) {
    s->kept[s->kept_count++] = *buffer;
  } else {
    pith__space_release(s->space, buffer->data);
  }
  *buffer = (pith_stage_buffer){0};
}

void pith__stages_release_kept(pith_stages *s) {
  for (size_t i = 0; i < s->kept_count; i++) {
    pith__space_release(s->space, s->kept[i].data);
  }
  s->kept_count = 0;
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

/* Returns whether the caller has given up. */
static int set_waiting(pith_stages *s, int is_waiting) {
  pthread_mutex_lock(&s->mutex);
  s->is_waiting = is_waiting;
  int has_given_up = s->has_given_up;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  return has_given_up;
}

/* Work of the next stage, and the exchange behind it. */
static pith_status go_on(pith_stages *s, pith_staged *f) {
  const pith_carrier *carrier = &s->carrier;
  f->exchange = (pith_exchange){.size = sizeof f->exchange};
  f->has_exchange = 0;
  PITH_TRY(pith__stage_work(f));
  if (f->stage == SIZE_MAX) {
    return PITH_OK;
  }
  f->exchange.stream = s->reducer->options.stream;
  f->exchange.step = s->reducer->step;
  PITH_TRY(f->level ? pith__hosts_start(carrier, f->level, &f->exchange, &f->ticket)
                    : carrier->start(carrier->self, &f->exchange, &f->ticket));
  f->has_exchange = 1;
  return PITH_OK;
}

static pith_status await(pith_stages *s, pith_staged *f) {
  double start = pith__now();
  f->has_exchange = 0;
  set_waiting(s, 1);
  pith_status status = s->carrier.wait(s->carrier.self, f->ticket);
  f->traffic.wire += pith__now() - start;
  if (set_waiting(s, 0) && status == PITH_OK) {
    status = pith_fail(PITH_ERR_ABORTED, "the reducer was given up");
  }
  return status;
}

/* The first error is the one that counts. */
static void fail(pith_stages *s, pith_status status) {
  pthread_mutex_lock(&s->mutex);
  int is_first = s->failed == PITH_OK;
  if (is_first) {
    s->failed = status;
    snprintf(s->why, sizeof s->why, "%s", pith_error());
  }
  pthread_mutex_unlock(&s->mutex);
  if (is_first && s->carrier.abort) {
    s->carrier.abort(s->carrier.self, s->why);
  }
}

/* After an error: memory is lent to the carrier until it says otherwise. */
static void drop(pith_stages *s, pith_staged *f) {
  if (f->has_exchange) {
    await(s, f);
  }
  pith__stage_release(f);
}

static void drop_all(pith_stages *s) {
  for (pith_staged *f = s->under_way, *next; f; f = next) {
    next = f->next;
    drop(s, f);
  }
  s->under_way = NULL;
}

/* Every group that is under way goes one exchange further; those that are complete are left out. */
static void advance(pith_stages *s) {
  for (pith_staged **at = &s->under_way; *at && s->failed == PITH_OK;) {
    pith_staged *f = *at;
    pith_status status = await(s, f);
    status = status == PITH_OK ? go_on(s, f) : status;
    if (status != PITH_OK) {
      fail(s, status);
    } else if (f->stage == SIZE_MAX) {
      *at = f->next;
      pith__stage_account(f);
      pith__stage_release(f);
    } else {
      at = &f->next;
    }
  }
  if (s->failed != PITH_OK) {
    drop_all(s);
  }
}

static void begin(pith_stages *s, pith_staged *f) {
  if (s->failed != PITH_OK) {
    drop(s, f);
    return;
  }
  pith_status status = go_on(s, f);
  if (status != PITH_OK) {
    fail(s, status);
    drop(s, f);
    drop_all(s);
    return;
  }
  advance(s);
  if (f->stage == SIZE_MAX) { /* it had nothing to exchange */
    pith__stage_account(f);
    pith__stage_release(f);
  } else if (s->failed != PITH_OK) {
    drop(s, f);
  } else {
    f->next = s->under_way;
    s->under_way = f;
  }
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void release(pith_stages *s) {
  pith__stages_release_kept(s);
  pthread_mutex_destroy(&s->mutex);
  pthread_cond_destroy(&s->changed);
  if (s->carrier.release) {
    s->carrier.release(s->carrier.self);
  }
  free(s);
}

/* At most until the caller changes something, or so long that somebody should look again. */
static int wait_a_while(pith_stages *s) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += LOOK_NANOSECONDS;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  return pthread_cond_timedwait(&s->changed, &s->mutex, &until) != 0;
}

/* Between steps, of which the device may not have come to the end: whoever waits for it does not hear of ranks that are
 * gone. With the mutex held. */
static void watch(pith_stages *s, double idle_since) {
  if (!wait_a_while(s) || s->failed != PITH_OK || pith__cuda_space_is_done((pith_cuda_space *)s->space)) {
    return;
  }
  pthread_mutex_unlock(&s->mutex);
  pith_status status = s->carrier.check(s->carrier.self, pith__now() - idle_since);
  if (status != PITH_OK) {
    fail(s, status);
  }
  pthread_mutex_lock(&s->mutex);
}

/* The next group in the queue. NULL: the step is to be finished, or the thread to end. */
static pith_staged *next_task(pith_stages *s) {
  double idle_since = pith__now();
  while (!s->queue && !s->is_ending && !s->is_closing) {
    if (s->space && s->carrier.check) {
      watch(s, idle_since);
    } else {
      pthread_cond_wait(&s->changed, &s->mutex);
    }
  }
  pith_staged *f = s->queue;
  if (f) {
    s->queue = f->next;
    s->queue_end = s->queue ? s->queue_end : &s->queue;
  }
  return f;
}

/* With the mutex held but for work and waiting. */
static void *run(void *argument) {
  pith_stages *s = argument;
  int is_over = 0;
  pith_status entered = s->space ? pith__cuda_space_enter((pith_cuda_space *)s->space) : PITH_OK;
  if (entered != PITH_OK) {
    fail(s, entered);
  }
  pthread_mutex_lock(&s->mutex);
  while (!is_over) {
    pith_staged *f = next_task(s);
    is_over = !f && s->is_closing;
    pthread_mutex_unlock(&s->mutex);
    if (f) {
      begin(s, f);
    }
    while (!f && s->under_way) {
      advance(s);
    }
    pthread_mutex_lock(&s->mutex);
    s->is_ending = f ? s->is_ending : 0;
    pthread_cond_broadcast(&s->changed);
  }
  int is_mine = s->is_abandoned;
  pthread_mutex_unlock(&s->mutex);
  if (is_mine) {
    release(s);
  }
  return NULL;
}

/* With the mutex held: from now on the thread touches nothing of the reducer. */
static void give_up(pith_stages *s) {
  s->has_given_up = 1;
  while (!s->is_waiting && (s->is_ending || s->queue)) {
    pthread_cond_wait(&s->changed, &s->mutex);
  }
}

/* ---- What the reducer calls -------------------------------------------------------------------------------------- */

pith_status pith__stages_create(pith_reducer *r, pith_stages **made) {
  pith_stages *s = calloc(1, sizeof *s);
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory for a reducer");
  s->reducer = r;
  s->carrier = r->carrier;
  s->space = r->space;
  s->queue_end = &s->queue;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  *made = s;
  return PITH_OK;
}

/* Whether the thread is left behind, and releases it all when the carrier lets go. */
static int end_thread(pith_stages *s) {
  pthread_mutex_lock(&s->mutex);
  s->is_closing = s->is_ending = 1;
  pthread_cond_broadcast(&s->changed);
  give_up(s);
  int is_abandoned = s->is_abandoned = s->is_waiting;
  pthread_t thread = s->thread;
  pthread_mutex_unlock(&s->mutex);
  if (is_abandoned) {
    pthread_detach(thread);
  } else {
    pthread_join(thread, NULL);
  }
  return is_abandoned;
}

void pith__stages_destroy(pith_stages *s) {
  if (!s) {
    return;
  }
  int is_ours = s->reducer->made_in == pith__fork_number();
  if (s->has_thread && is_ours && end_thread(s)) {
    return;
  }
  if (!s->has_thread && is_ours) {
    drop_all(s);
  }
  if (!is_ours) {
    s->carrier.release = NULL; /* it is of the process that forked */
  }
  release(s);
}

pith_status pith__stages_run(pith_stages *s, pith_staged *f) {
  begin(s, f);
  return pith__stages_finish(s);
}

pith_status pith__stages_put(pith_stages *s, pith_group *g) {
  pith_staged *f = NULL;
  if (s->reducer->ranks == 1) {
    return PITH_OK; /* its gradients are the means */
  }
  if (!s->has_thread && (s->carrier.caps & PITH_CARRIER_THREADS) && !s->reducer->options.capturable) {
    PITH_REQUIRE(pthread_create(&s->thread, NULL, run, s) == 0, PITH_ERR_SYSTEM, "rank %d cannot start a thread",
                 s->reducer->rank);
    s->has_thread = 1;
  }
  PITH_TRY(pith__stage_make_of(s->reducer, g, &f));
  if (!s->has_thread) {
    begin(s, f);
    return s->failed == PITH_OK ? PITH_OK : pith_fail(s->failed, "%s", s->why);
  }
  pthread_mutex_lock(&s->mutex);
  *s->queue_end = f;
  s->queue_end = &f->next;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  return PITH_OK;
}

/* Until the thread has finished the step, or the caller is interrupted. */
static pith_status await_end(pith_stages *s) {
  pith_status status = PITH_OK;
  pthread_mutex_lock(&s->mutex);
  s->is_ending = !s->has_given_up;
  pthread_cond_broadcast(&s->changed);
  while (s->is_ending && status == PITH_OK) {
    int is_late = wait_a_while(s);
    pthread_mutex_unlock(&s->mutex);
    if (is_late && s->carrier.interrupted && s->carrier.interrupted(s->carrier.self)) {
      status = pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it waited for an exchange over %s",
                         s->reducer->rank, s->carrier.name);
    }
    pthread_mutex_lock(&s->mutex);
  }
  if (status != PITH_OK) {
    give_up(s);
  }
  pthread_mutex_unlock(&s->mutex);
  return status;
}

/* The host is at most one step ahead of the device, and hears of ranks that are gone. */
static void keep_pace(pith_stages *s) {
  pith_cuda_space *space = (pith_cuda_space *)s->space;
  pith_status status = pith__cuda_space_end_step(space);
  if (status == PITH_OK && s->carrier.check) {
    status = pith__cuda_space_keep_pace(space, 0);
    status = status == PITH_OK ? s->carrier.check(s->carrier.self, 0) : status;
  }
  if (status != PITH_OK) {
    fail(s, status);
  }
}

/* The thread may fail between steps, too. */
static pith_status failure_of(pith_stages *s) {
  pthread_mutex_lock(&s->mutex);
  pith_status status = s->failed;
  pthread_mutex_unlock(&s->mutex);
  return status;
}

pith_status pith__stages_finish(pith_stages *s) {
  PITH_TRY(s->has_thread ? await_end(s) : PITH_OK);
  while (!s->has_thread && s->under_way) {
    advance(s);
  }
  if (s->space && !s->reducer->options.capturable && failure_of(s) == PITH_OK) {
    keep_pace(s);
  }
  PITH_REQUIRE(!s->has_given_up, PITH_ERR_STATE, "the reducer was interrupted in the middle of a step: create it anew");
  pith_status status = failure_of(s);
  return status == PITH_OK ? PITH_OK : pith_fail(status, "%s", s->why);
}

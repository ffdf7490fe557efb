/*
 * Groups of a reducer on their way over a carrier.
 *
 * Groups overlap: when one leaves, its first exchange is started; then the one before it goes an exchange further, and
 * so on. That order follows from the order of groups alone, never from time, so it is the same on all ranks. A thread
 * does this where the carrier allows it; else whoever calls the reducer.
 */
#include "engine/stages.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/forked.h"

#define KEPT_MOST 16 /* buffers */
#define TEXT 512

struct pith_stages {
  pith_reducer *reducer;
  pith_staged *under_way; /* the newest first */
  pith_stage_buffer kept[KEPT_MOST];
  size_t kept_count;
  pith_status failed; /* for good: other ranks may have gone on */
  char why[TEXT];
  /* Between the caller and the thread. */
  int has_thread, is_ending, is_closing;
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
  *buffer = (pith_stage_buffer){malloc(size + 1), size};
  if (!buffer->data) {
    *buffer = (pith_stage_buffer){0};
    return pith_fail(PITH_ERR_MEMORY, "no memory for a message of %zu bytes", size);
  }
  return PITH_OK;
}

void pith__stages_give_back(pith_stages *s, pith_stage_buffer *buffer) {
  if (buffer->data && s->kept_count < KEPT_MOST) {
    s->kept[s->kept_count++] = *buffer;
  } else {
    free(buffer->data);
  }
  *buffer = (pith_stage_buffer){0};
}

/* ---- Stages ------------------------------------------------------------------------------------------------------ */

/* Work of the next stage, and the exchange behind it. */
static pith_status go_on(pith_stages *s, pith_staged *f) {
  const pith_carrier *carrier = &s->reducer->carrier;
  f->exchange = (pith_exchange){.size = sizeof f->exchange};
  f->has_exchange = 0;
  PITH_TRY(pith__stage_work(f, s));
  if (f->stage == SIZE_MAX) {
    return PITH_OK;
  }
  PITH_TRY(carrier->start(carrier->self, &f->exchange, &f->ticket));
  f->has_exchange = 1;
  return PITH_OK;
}

static pith_status await(const pith_stages *s, pith_staged *f) {
  const pith_carrier *carrier = &s->reducer->carrier;
  double start = pith__now();
  f->has_exchange = 0;
  pith_status status = carrier->wait(carrier->self, f->ticket);
  f->traffic.wire += pith__now() - start;
  return status;
}

static void fail(pith_stages *s, pith_status status) {
  s->failed = status;
  snprintf(s->why, sizeof s->why, "%s", pith_error());
}

/* After an error: memory is lent to the carrier until it says otherwise. */
static void drop(pith_stages *s, pith_staged *f) {
  if (f->has_exchange) {
    await(s, f);
  }
  pith__stage_release(f, s);
}

static void drop_all(pith_stages *s) {
  for (pith_staged *f = s->under_way, *next; f; f = next) {
    next = f->next;
    drop(s, f);
  }
  s->under_way = NULL;
}

/* Every group that is under way goes one exchange further; those that have arrived are left out. */
static void advance(pith_stages *s) {
  for (pith_staged **at = &s->under_way; *at && s->failed == PITH_OK;) {
    pith_staged *f = *at;
    pith_status status = await(s, f);
    if (status == PITH_OK) {
      status = go_on(s, f);
    }
    if (status != PITH_OK) {
      fail(s, status);
    } else if (f->stage == SIZE_MAX) {
      *at = f->next;
      pith__stage_account(f);
      pith__stage_release(f, s);
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
    pith__stage_release(f, s);
  } else if (s->failed != PITH_OK) {
    drop(s, f);
  } else {
    f->next = s->under_way;
    s->under_way = f;
  }
}

static void end(pith_stages *s) {
  while (s->under_way) {
    advance(s);
  }
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void *run(void *argument) {
  pith_stages *s = argument;
  pthread_mutex_lock(&s->mutex);
  for (;;) {
    pith_staged *f = s->queue;
    if (f) {
      s->queue = f->next;
      s->queue_end = s->queue ? s->queue_end : &s->queue;
    } else if (!s->is_ending && !s->is_closing) {
      pthread_cond_wait(&s->changed, &s->mutex);
      continue;
    }
    int closes = !f && s->is_closing;
    pthread_mutex_unlock(&s->mutex);
    if (f) {
      begin(s, f);
    } else {
      end(s);
    }
    pthread_mutex_lock(&s->mutex);
    if (!f) {
      s->is_ending = 0;
      pthread_cond_broadcast(&s->changed);
    }
    if (closes) {
      break;
    }
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static pith_status have_thread(pith_stages *s) {
  if (!s->has_thread && (s->reducer->carrier.caps & PITH_CARRIER_THREADS)) {
    PITH_REQUIRE(pthread_create(&s->thread, NULL, run, s) == 0, PITH_ERR_SYSTEM, "rank %d cannot start a thread",
                 s->reducer->rank);
    s->has_thread = 1;
  }
  return PITH_OK;
}

/* ---- What the reducer calls -------------------------------------------------------------------------------------- */

pith_status pith__stages_create(pith_reducer *r, pith_stages **made) {
  pith_stages *s = calloc(1, sizeof *s);
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory for a reducer");
  s->reducer = r;
  s->queue_end = &s->queue;
  pthread_mutex_init(&s->mutex, NULL);
  pthread_cond_init(&s->changed, NULL);
  *made = s;
  return PITH_OK;
}

void pith__stages_destroy(pith_stages *s) {
  if (!s) {
    return;
  }
  if (s->has_thread && s->reducer->made_in == pith__fork_number()) {
    pthread_mutex_lock(&s->mutex);
    s->is_closing = 1;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->mutex);
    pthread_join(s->thread, NULL);
  }
  for (size_t i = 0; i < s->kept_count; i++) {
    free(s->kept[i].data);
  }
  pthread_mutex_destroy(&s->mutex);
  pthread_cond_destroy(&s->changed);
  free(s);
}

static pith_status make_staged(pith_stages *s, pith_group *g, pith_staged **made) {
  pith_staged *f = calloc(1, sizeof *f);
  PITH_REQUIRE(f, PITH_ERR_MEMORY, "no memory for a group of %zu layers", g->count);
  f->reducer = s->reducer;
  f->way = g->way;
  pith_status status = pith__stage_prepare(f, g);
  if (status != PITH_OK) {
    pith__stage_release(f, s);
    return status;
  }
  *made = f;
  return PITH_OK;
}

pith_status pith__stages_put(pith_stages *s, pith_group *g) {
  pith_staged *f = NULL;
  if (s->reducer->ranks == 1) {
    return PITH_OK; /* its gradients are the means */
  }
  PITH_TRY(have_thread(s));
  PITH_TRY(make_staged(s, g, &f));
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

pith_status pith__stages_finish(pith_stages *s) {
  if (s->has_thread) {
    pthread_mutex_lock(&s->mutex);
    s->is_ending = 1;
    pthread_cond_broadcast(&s->changed);
    while (s->is_ending) {
      pthread_cond_wait(&s->changed, &s->mutex);
    }
    pthread_mutex_unlock(&s->mutex);
  } else {
    end(s);
  }
  return s->failed == PITH_OK ? PITH_OK : pith_fail(s->failed, "%s", s->why);
}

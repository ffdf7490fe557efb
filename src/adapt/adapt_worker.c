/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The adapter's thread: it makes error tables of gradients that were copied for it, or waits for a measurer's, and
 * plans. The caller touches neither sums nor plans before it has waited; so one mutex for the list of jobs is enough.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "adapt/adapt.h"
#include "base/forked.h"
#include "base/size.h"

struct pith_adapt_job {
  pith_adapt_job *next;
  pith_measurement measurement;
  void *ticket; /* of the measurer; NULL: it has none … */
  int is_timed;
  _Alignas(16) uint8_t data[]; /* … and the values are here */
};

#define POLL_NANOSECONDS 100000

/* ---- How fast codecs are ----------------------------------------------------------------------------------------- */

enum { TIMED_VALUES = 65536, TIMED_LEAST = 4096, TIMED_ROWS = 256, TIMED_RUNS = 3 };

static double cpu_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

typedef struct timing {
  pith_codec *codec;
  pith_state *state;
  uint8_t *payload;
  float *decoded;
} timing;

static void timing_fini(timing *t) {
  pith_codec_destroy(t->codec);
  pith_state_destroy(t->state);
  free(t->payload);
  free(t->decoded);
}

static pith_status timing_init(timing *t, const char *spec, size_t n) {
  *t = (timing){.codec = NULL};
  PITH_TRY(pith_codec_create(spec, &t->codec));
  PITH_TRY(pith_state_create(t->codec, n, n % TIMED_ROWS ? 0 : TIMED_ROWS, &t->state));
  t->payload = malloc(pith_codec_bound(t->codec, n) + 1);
  t->decoded = calloc(n + 1, sizeof *t->decoded);
  PITH_REQUIRE(t->payload && t->decoded, PITH_ERR_MEMORY, "no memory to time %s", spec);
  return PITH_OK;
}

/* An encoding and two decodings: of what is sent, and of the result. */
static pith_status time_run(timing *t, pith_cspan x, double *seconds) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.rows = x.n % TIMED_ROWS ? 0 : TIMED_ROWS;
  pith_out out = {t->payload, pith_codec_bound(t->codec, x.n), 0};
  double start = cpu_now();
  PITH_TRY(pith_encode(t->codec, t->state, x, &out, &ctx));
  double encoded = cpu_now();
  PITH_TRY(
      pith_decode(t->codec, (pith_bytes){out.data, out.size}, (pith_span){t->decoded, x.n, PITH_F32}, PITH_SET, &ctx));
  *seconds = encoded - start + 2 * (cpu_now() - encoded);
  return PITH_OK;
}

static pith_status time_codec(const char *spec, pith_cspan x, double *each) {
  timing t;
  double best = 0, seconds = 0;
  pith_status status = timing_init(&t, spec, x.n);
  for (int run = 0; run < TIMED_RUNS && status == PITH_OK; run++) {
    status = time_run(&t, x, &seconds);
    best = run == 0 || seconds < best ? seconds : best;
  }
  timing_fini(&t);
  *each = best / (double)x.n;
  return status;
}

/* Once for each window, on the first large layer of it. */
static pith_status time_codecs(pith_adapter *a, pith_cspan x) {
  x.n = x.n >= TIMED_VALUES ? TIMED_VALUES : x.n;
  for (size_t k = 0; k < PITH_SHORTLIST_TIMED; k++) {
    int left_out;
    PITH_TRY(pith__adapt_leaves_out(&a->options, pith__shortlist_timed[k], &left_out));
    if (left_out) {
      continue;
    }
    PITH_TRY(time_codec(pith__shortlist_timed[k], x, &a->s.own.codec[k]));
  }
  return PITH_OK;
}

/* ---- Jobs -------------------------------------------------------------------------------------------------------- */

/* Codecs that are timed on a device, NULL for those that are left out. */
static pith_status make_timed(const pith_adapter *a, pith_codec *codec[PITH_SHORTLIST_TIMED]) {
  for (size_t k = 0; k < PITH_SHORTLIST_TIMED; k++) {
    int left_out;
    PITH_TRY(pith__adapt_leaves_out(&a->options, pith__shortlist_timed[k], &left_out));
    PITH_TRY(left_out ? PITH_OK : pith_codec_create(pith__shortlist_timed[k], &codec[k]));
  }
  return PITH_OK;
}

static pith_status begin(pith_adapter *a, pith_adapt_job *job) {
  pith_codec *timed[PITH_SHORTLIST_TIMED] = {NULL};
  job->is_timed = a->options.kind == PITH_ADAPT_AUTO && job->measurement.layer == a->largest;
  pith_status status = job->is_timed ? make_timed(a, timed) : PITH_OK;
  if (status == PITH_OK) {
    status = a->measurer->begin(a->measurer, &job->measurement, timed, job->is_timed ? PITH_SHORTLIST_TIMED : 0,
                                &job->ticket);
  }
  for (size_t k = 0; k < PITH_SHORTLIST_TIMED; k++) {
    pith_codec_destroy(timed[k]);
  }
  return status;
}

static void release_job(pith_adapter *a, pith_adapt_job *job) {
  if (job && job->ticket && a->measurer) {
    a->measurer->drop(a->measurer, job->ticket);
  }
  free(job);
}

/* Until the measurer is done, or the adapter is destroyed. */
static pith_status await(pith_adapter *a, void *ticket, int *is_done) {
  int closing = 0;
  PITH_TRY(a->measurer->poll(a->measurer, ticket, is_done));
  while (!*is_done && !closing) {
    nanosleep(&(struct timespec){.tv_nsec = POLL_NANOSECONDS}, NULL);
    PITH_TRY(a->measurer->poll(a->measurer, ticket, is_done));
    pthread_mutex_lock(&a->worker.mutex);
    closing = a->worker.closing;
    pthread_mutex_unlock(&a->worker.mutex);
  }
  return PITH_OK;
}

static pith_status take(pith_adapter *a, const pith_adapt_job *job) {
  pith_measured measured;
  double seconds[PITH_SHORTLIST_TIMED] = {0};
  int is_done;
  PITH_TRY(await(a, job->ticket, &is_done));
  if (!is_done) {
    return PITH_OK;
  }
  a->measurer->take(a->measurer, job->ticket, &job->measurement, &measured, seconds);
  if (job->is_timed) {
    memcpy(a->s.own.codec, seconds, sizeof seconds);
  }
  return pith__profile_add(a->window, &job->measurement, &measured);
}

static pith_status measure(pith_adapter *a, const pith_adapt_job *job) {
  const pith_measurement *m = &job->measurement;
  pith_measured measured;
  if (job->ticket) {
    return take(a, job);
  }
  PITH_TRY(pith__measure(m, &measured));
  PITH_TRY(pith__profile_add(a->window, m, &measured));
  int untimed = a->options.kind == PITH_ADAPT_AUTO && a->s.own.codec[0] == 0 && m->x.n >= TIMED_LEAST;
  return untimed ? time_codecs(a, m->x) : PITH_OK;
}

static void note_failure(pith_adapt_worker *w, pith_status status) {
  if (status != PITH_OK && w->status == PITH_OK) {
    w->status = status;
    snprintf(w->message, sizeof w->message, "%s", pith_error());
  }
}

/* The next thing to do, taken off the list. Gives 0 at the end. Called with the mutex held. */
static int next_job(pith_adapt_worker *w, pith_adapt_job **job) {
  while (!w->first && !w->plan_wanted && !w->closing) {
    w->busy = 0;
    pthread_cond_broadcast(&w->changed);
    pthread_cond_wait(&w->changed, &w->mutex);
  }
  w->busy = 1;
  *job = w->first;
  if (*job) {
    w->first = (*job)->next;
    w->last = w->first ? w->last : &w->first;
  } else {
    w->plan_wanted = 0;
  }
  return !w->closing;
}

static void *work(void *argument) {
  pith_adapter *a = argument;
  pith_adapt_worker *w = &a->worker;
  pith_adapt_job *job;
  pthread_mutex_lock(&w->mutex);
  while (next_job(w, &job)) {
    pthread_mutex_unlock(&w->mutex);
    pith_status status = job ? measure(a, job) : pith__adapt_make_plans(a);
    release_job(a, job);
    pthread_mutex_lock(&w->mutex);
    note_failure(w, status);
  }
  release_job(a, job);
  w->busy = 0;
  pthread_mutex_unlock(&w->mutex);
  return NULL;
}

/* ---- For the caller ---------------------------------------------------------------------------------------------- */

pith_status pith__worker_init(pith_adapt_worker *w) {
  w->made_in = pith__fork_number();
  w->last = &w->first;
  pthread_mutex_init(&w->mutex, NULL);
  pthread_cond_init(&w->changed, NULL);
  return PITH_OK;
}

void pith__worker_fini(pith_adapter *a) {
  pith_adapt_worker *w = &a->worker;
  if (w->made_in != pith__fork_number()) {
    return; /* a child has neither the thread nor a mutex it could trust */
  }
  pthread_mutex_lock(&w->mutex);
  w->closing = 1;
  pthread_cond_broadcast(&w->changed);
  pthread_mutex_unlock(&w->mutex);
  if (w->started) {
    pthread_join(w->thread, NULL);
  }
  while (w->first) {
    pith_adapt_job *job = w->first;
    w->first = job->next;
    release_job(a, job);
  }
  pthread_cond_destroy(&w->changed);
  pthread_mutex_destroy(&w->mutex);
}

/* Adds a job, or asks for a plan; the thread starts with the first. */
static pith_status post(pith_adapter *a, pith_adapt_job *job) {
  pith_adapt_worker *w = &a->worker;
  pthread_mutex_lock(&w->mutex);
  if (!w->started && pthread_create(&w->thread, NULL, work, a) == 0) {
    pthread_setname_np(w->thread, "pith-planner"); /* so that what it costs can be seen: bench/plan_cost.py */
    w->started = 1;
    w->busy = 1;
  }
  if (w->started && job) {
    *w->last = job;
    w->last = &job->next;
  } else if (w->started) {
    w->plan_wanted = 1;
  }
  pthread_cond_broadcast(&w->changed);
  int started = w->started;
  pthread_mutex_unlock(&w->mutex);
  if (!started) {
    release_job(a, job);
    return pith_fail(PITH_ERR_SYSTEM, "no thread for the planner can be started");
  }
  return PITH_OK;
}

pith_status pith__worker_measure(pith_adapter *a, size_t layer, pith_cspan gradient) {
  size_t size = a->measurer ? 0 : gradient.n * pith_dtype_size(gradient.dtype);
  pith_adapt_job *job = malloc(sizeof *job + size);
  PITH_REQUIRE(job, PITH_ERR_MEMORY, "no memory to look at layer %s", a->window->layer[layer].name);
  *job = (pith_adapt_job){.next = NULL};
  if (!a->measurer) {
    memcpy(job->data, gradient.data, size);
    gradient.data = job->data;
  }
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = a->seed;
  ctx.step = a->s.step;
  ctx.rank = (uint32_t)a->rank;
  ctx.ranks = (uint32_t)a->ranks;
  pith_status status = pith__measurement_init(a->window, layer, gradient, &ctx, 1, &job->measurement);
  if (status == PITH_OK && a->measurer) {
    status = begin(a, job);
  }
  if (status != PITH_OK) {
    release_job(a, job);
    return status;
  }
  return post(a, job);
}

pith_status pith__worker_plan(pith_adapter *a) { return post(a, NULL); }

pith_status pith__worker_wait(pith_adapter *a) {
  pith_adapt_worker *w = &a->worker;
  pthread_mutex_lock(&w->mutex);
  while (w->started && (w->busy || w->first || w->plan_wanted)) {
    pthread_cond_wait(&w->changed, &w->mutex);
  }
  pith_status status = w->status;
  pthread_mutex_unlock(&w->mutex);
  return status == PITH_OK ? PITH_OK : pith_fail(status, "the planner failed: %s", w->message);
}

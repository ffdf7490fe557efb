/*
 * An optimizer's step in main memory: the kernel `update` over tasks of any type. Values are updated one by one, so
 * that threads may cut tasks anywhere.
 */
#include <string.h>

#include "base/size.h"
#include "base/split.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

#define TILE 1024
#define WORTH_SHARING 16384 /* values for each thread: less is done sooner than said */

pith_update_task pith__update_piece(const pith_update_task *task, size_t first, size_t n) {
  pith_update_task u = *task;
  size_t bytes = first * pith_dtype_size((pith_dtype)u.dtype);
  u.gradient = u.gradient ? (const uint8_t *)u.gradient + bytes : NULL;
  u.before = u.before ? (const uint8_t *)u.before + bytes : NULL;
  u.variance = u.variance ? (const uint8_t *)u.variance + bytes : NULL;
  u.moment = u.moment ? (uint8_t *)u.moment + bytes : NULL;
  u.parameter = u.parameter ? (uint8_t *)u.parameter + bytes : NULL;
  u.start = u.start ? u.start + first : NULL;
  u.residual = u.residual ? u.residual + first : NULL;
  u.n = n;
  return u;
}

static void load(const pith_update_task *task, const void *values, float *buffer) {
  if (values) {
    pith__span_load((pith_cspan){values, (size_t)task->n, (pith_dtype)task->dtype}, 0, (size_t)task->n, buffer);
  }
}

static void store(const pith_update_task *task, void *values, const float *buffer) {
  if (values) {
    pith_span span = {values, (size_t)task->n, (pith_dtype)task->dtype};
    pith__span_store(span, 0, (size_t)task->n, buffer, PITH_SET, NULL);
  }
}

/* A tile of halves, by way of f32. */
static void update_tile(const pith_update_task *task) {
  float gradient[TILE], moment[TILE], variance[TILE], parameter[TILE];
  pith_update_task u = *task;
  load(task, task->gradient, gradient);
  load(task, task->before, moment);
  load(task, task->variance, variance);
  load(task, task->start ? NULL : task->parameter, parameter);
  u.gradient = task->gradient ? gradient : NULL;
  u.before = task->before ? moment : NULL;
  u.variance = task->variance ? variance : NULL;
  u.moment = task->moment ? moment : NULL;
  u.parameter = task->parameter ? parameter : NULL;
  pith__kernels()->update(&u, (size_t)u.n);
  store(task, task->moment, moment);
  store(task, task->parameter, parameter);
}

static void update_range(const pith_update_task *task, size_t first, size_t n) {
  size_t tile = task->dtype == PITH_F32 ? n : TILE;
  for (size_t at = 0; at < n; at += tile) {
    pith_update_task piece = pith__update_piece(task, first + at, pith__least(tile, n - at));
    if (task->dtype == PITH_F32) {
      pith__kernels()->update(&piece, n);
    } else {
      update_tile(&piece);
    }
  }
}

typedef struct shared_updates {
  const pith_update_task *tasks;
  size_t count, total;
  unsigned parts;
} shared_updates;

/* The values of all tasks, one after another, in parts of the same size. */
static void run_part(void *argument, unsigned part) {
  const shared_updates *s = argument;
  pith_range range = pith__split(s->total, 1, s->parts, part);
  size_t end = range.first + range.n, at = 0;
  for (size_t i = 0; i < s->count && at < end; i++) {
    size_t n = (size_t)s->tasks[i].n, from = pith__most(range.first, at), to = pith__least(end, at + n);
    if (from < to) {
      update_range(&s->tasks[i], from - at, to - from);
    }
    at += n;
  }
}

void pith__update(pith_thread_pool *pool, const pith_update_task *tasks, size_t count) {
  shared_updates s = {.tasks = tasks, .count = count};
  for (size_t i = 0; i < count; i++) {
    s.total += (size_t)tasks[i].n;
  }
  s.parts = (unsigned)pith__least(pith__thread_pool_size(pool), s.total / WORTH_SHARING);
  if (s.parts > 1) {
    pith__thread_pool_run(pool, s.parts, run_part, &s);
    return;
  }
  for (size_t i = 0; i < count; i++) {
    update_range(&tasks[i], 0, (size_t)tasks[i].n);
  }
}

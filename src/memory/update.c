/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer's step in main memory: the kernel `update` over tasks of any type. Values are updated one by one, so
 * that threads may cut tasks anywhere but within a block of a packed residual.
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
  u.residual = pith__store_at((pith_store)u.store, u.residual, first);
  u.index += (uint32_t)first;
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

static void update_piece(const pith_update_task *task) {
  if (task->dtype == PITH_F32) {
    pith__kernels()->update(task, (size_t)task->n);
  } else {
    update_tile(task);
  }
}

/* A tile with a residual in fewer bits than 32. */
static void update_packed(const pith_update_task *task) {
  float residual[TILE];
  pith_update_task u = *task;
  pith_store store = (pith_store)task->store;
  u.residual = residual;
  pith__store_widen(store, task->residual, (size_t)task->n, residual);
  update_piece(&u);
  pith__store_pack(store, residual, (size_t)task->n, (pith_key){task->key0, task->key1}, task->index, task->residual);
}

static int is_packed(const pith_update_task *task) { return task->residual && task->store != PITH_STORE_F32; }

static void update_range(const pith_update_task *task, size_t first, size_t n) {
  size_t tile = task->dtype == PITH_F32 && !is_packed(task) ? n : TILE;
  for (size_t at = 0; at < n; at += tile) {
    pith_update_task piece = pith__update_piece(task, first + at, pith__least(tile, n - at));
    (is_packed(task) ? update_packed : update_piece)(&piece);
  }
}

typedef struct shared_updates {
  const pith_update_task *tasks;
  size_t count, total;
  unsigned parts;
} shared_updates;

/* Where a task is cut: at or before a value. */
static size_t cut_of(const pith_update_task *task, size_t value) {
  return value < task->n && is_packed(task) ? value / PITH_STORE_BLOCK * PITH_STORE_BLOCK : value;
}

/* The values of all tasks, one after another, in parts of nearly the same size. */
static void run_part(void *argument, unsigned part) {
  const shared_updates *s = argument;
  pith_range range = pith__split(s->total, 1, s->parts, part);
  size_t end = range.first + range.n, at = 0;
  for (size_t i = 0; i < s->count && at < end; i++) {
    const pith_update_task *task = &s->tasks[i];
    size_t n = (size_t)task->n, from = cut_of(task, pith__most(range.first, at) - at),
           to = cut_of(task, pith__least(end, at + n) - at);
    if (from < to) {
      update_range(task, from, to - from);
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

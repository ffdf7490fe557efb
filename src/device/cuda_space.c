/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a CUDA device as a space: see cuda_space.h. All work is enqueued on one stream, so that it is in order. */
#include "device/cuda_space.h"

#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/size.h"
#include "base/status.h"
#include "codec/codec.h"
#include "memory/memory.h"

#define TEXT 256
#define UPDATES 64          /* tasks that the module launches together */
#define ASK_SECONDS 0.01    /* between two questions to the carrier */
#define SPIN_SECONDS 200e-6 /* after which a wait is a long one */
#define SLEEP_NANOSECONDS 20000

static pith_cuda_space *space_of(pith_space *space) { return (pith_cuda_space *)space; }

static pith_status refuse(const char *text) { return pith_fail(PITH_ERR_SYSTEM, "CUDA: %s", text); }

/* The carrier's own operations are part of what is waited for, and may hang. */
pith_status pith__cuda_space_await(const pith_cuda_space *s, void *event) {
  const pith_carrier *carrier = s->carrier && s->carrier->check ? s->carrier : NULL;
  double begun = pith__now(), asked = begun;
  int is_done = 0;
  if (!carrier) {
    PITH_CUDA_TRY(s->gpu->event_wait, event);
    return PITH_OK;
  }
  while (!is_done) {
    PITH_CUDA_TRY(s->gpu->event_done, event, &is_done);
    double now = pith__now();
    if (!is_done && now - asked > ASK_SECONDS) {
      PITH_TRY(carrier->check(carrier->self, now - begun));
      asked = now;
    }
    if (!is_done && now - begun > SPIN_SECONDS) {
      nanosleep(&(struct timespec){.tv_nsec = SLEEP_NANOSECONDS}, NULL);
    }
  }
  return PITH_OK;
}

pith_status pith__cuda_space_end_step(pith_cuda_space *s) {
  char text[TEXT];
  pthread_mutex_lock(&s->mutex);
  int failed = s->gpu->event_record(s->ends[s->turn++ % 2], s->stream, text);
  pthread_mutex_unlock(&s->mutex);
  return failed ? refuse(text) : PITH_OK;
}

static void *last_end(const pith_cuda_space *s) { return s->ends[(s->turn + 1) % 2]; }

pith_status pith__cuda_space_keep_pace(const pith_cuda_space *s, int exact) {
  if (!exact && s->turn < 2) {
    return PITH_OK; /* there was no step before */
  }
  return pith__cuda_space_await(s, exact ? last_end(s) : s->ends[s->turn % 2]);
}

int pith__cuda_space_is_done(pith_cuda_space *s) {
  char text[TEXT];
  int is_done = 1;
  pthread_mutex_lock(&s->mutex);
  int has_failed = s->turn > 0 && s->gpu->event_done(last_end(s), &is_done, text);
  pthread_mutex_unlock(&s->mutex);
  return is_done || has_failed;
}

pith_status pith__cuda_space_move(const pith_cuda_space *s, void *to, const void *from, size_t bytes) {
  PITH_CUDA_TRY(s->gpu->move, to, from, bytes, s->stream);
  return PITH_OK;
}

pith_status pith__cuda_space_enter(const pith_cuda_space *s) {
  PITH_CUDA_TRY(s->gpu->use_device, s->device);
  return PITH_OK;
}

static pith_status allocate(pith_space *space, size_t bytes, void **memory) {
  pith_cuda_space *s = space_of(space);
  char text[TEXT];
  if (!s->allocator.allocate) {
    PITH_REQUIRE(!s->gpu->allocate(bytes, memory, text), PITH_ERR_MEMORY, "CUDA: %zu bytes: %s", bytes, text);
    return PITH_OK;
  }
  *memory = s->allocator.allocate(s->allocator.self, bytes);
  PITH_REQUIRE(*memory, PITH_ERR_MEMORY, "no %zu bytes of device memory", bytes);
  PITH_CUDA_TRY(s->gpu->clear, *memory, bytes, s->stream);
  return PITH_OK;
}

static void release(pith_space *space, void *memory) {
  pith_cuda_space *s = space_of(space);
  if (s->allocator.allocate) {
    s->allocator.release(s->allocator.self, memory);
  } else {
    s->gpu->release(memory);
  }
}

/* Returns when all that was enqueued is done. */
static pith_status copy(pith_space *space, void *to, const void *from, size_t bytes) {
  pith_cuda_space *s = space_of(space);
  char text[TEXT];
  PITH_TRY(pith__cuda_space_move(s, to, from, bytes));
  pthread_mutex_lock(&s->mutex);
  pith_status status =
      s->gpu->event_record(s->event, s->stream, text) ? refuse(text) : pith__cuda_space_await(s, s->event);
  pthread_mutex_unlock(&s->mutex);
  return status;
}

static pith_status scale(pith_space *space, float factor, float *x, size_t n) {
  const pith_cuda_space *s = space_of(space);
  for (size_t first = 0, some; first < n; first += some) {
    some = pith__least(n - first, PITH_GPU_TASK_VALUES);
    pith_gpu_mean task = {
        .sums = x + first, .values = x + first, .n = (uint32_t)some, .factor = factor, .dtype = PITH_GPU_F32};
    PITH_CUDA_TRY(s->gpu->mean, &task, 1, s->stream);
  }
  return PITH_OK;
}

/* Values as they are are the payload of a codec that does nothing, and decoding can add. */
static pith_status add(pith_space *space, const float *x, pith_span to) {
  const pith_cuda_space *s = space_of(space);
  pith_cuda_item item = {.size = sizeof item,
                         .codec = s->raw,
                         .dtype = to.dtype,
                         .n = to.n,
                         .values = to.data,
                         .payload = (void *)(uintptr_t)x};
  return pith_cuda_decode(&item, 1, PITH_ADD, NULL, 0, s->stream);
}

pith_status pith__cuda_space_update(const pith_cuda_space *s, const pith_update_task *tasks, size_t count,
                                    void *stream) {
  pith_update_task batch[UPDATES];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    size_t n = (size_t)tasks[i].n;
    for (size_t first = 0, some; first < n; first += some) {
      some = pith__least(n - first, PITH_GPU_TASK_VALUES);
      batch[used++] = pith__update_piece(&tasks[i], first, some);
      if (used == UPDATES) {
        PITH_CUDA_TRY(s->gpu->update, batch, used, stream);
        used = 0;
      }
    }
  }
  if (used) {
    PITH_CUDA_TRY(s->gpu->update, batch, used, stream);
  }
  return PITH_OK;
}

pith_status pith__cuda_space_repack(const pith_cuda_space *s, const pith_repack_task *task, void *stream) {
  for (size_t first = 0, some; first < task->n; first += some) {
    some = pith__least((size_t)task->n - first, PITH_GPU_TASK_VALUES);
    pith_repack_task piece = pith__repack_piece(task, first, some);
    PITH_CUDA_TRY(s->gpu->repack, &piece, 1, stream);
  }
  return PITH_OK;
}

static pith_status repack(pith_space *space, const pith_repack_task *task) {
  return pith__cuda_space_repack(space_of(space), task, space_of(space)->stream);
}

pith_status pith__cuda_space_create(void *stream, const pith_allocator *allocator, pith_cuda_space **made) {
  char text[TEXT];
  pith_cuda_space *s = calloc(1, sizeof *s);
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory for a reducer");
  s->base = (pith_space){allocate, release, copy, scale, add, repack};
  pthread_mutex_init(&s->mutex, NULL);
  s->stream = stream;
  if (allocator) {
    s->allocator = *allocator;
  }
  pith_status status = pith__cuda_module(&s->gpu);
  if (status == PITH_OK && (s->gpu->device(&s->device, text) || s->gpu->event_create(&s->event, text) ||
                            s->gpu->event_create(&s->ends[0], text) || s->gpu->event_create(&s->ends[1], text))) {
    status = refuse(text);
  }
  if (status == PITH_OK) {
    status = pith_codec_create("none", &s->raw);
  }
  if (status != PITH_OK) {
    pith__cuda_space_destroy(s);
    return status;
  }
  *made = s;
  return PITH_OK;
}

void pith__cuda_space_destroy(pith_cuda_space *s) {
  if (s) {
    void *events[] = {s->event, s->ends[0], s->ends[1]};
    for (size_t i = 0; i < 3; i++) {
      if (events[i]) {
        s->gpu->event_destroy(events[i]);
      }
    }
    pith_codec_destroy(s->raw);
    pthread_mutex_destroy(&s->mutex);
    free(s);
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of a CUDA device as a space (src/memory/space.h), and what the stages of a reducer need there. */
#ifndef PITH_DEVICE_CUDA_SPACE_H
#define PITH_DEVICE_CUDA_SPACE_H

#include <pith/carrier.h>
#include <pthread.h>

#include "device/cuda_device.h"
#include "kernel/formats.h"
#include "memory/space.h"

typedef struct pith_cuda_space {
  pith_space base; /* the first: a pith_space is one of these */
  const pith_cuda_module *gpu;
  int device;
  void *stream;          /* of all that is enqueued */
  void *event;           /* for whoever waits, one at a time: the caller and the reducer's thread */
  pthread_mutex_t mutex; /* of events */
  void *ends[2];         /* of the step that has just ended, and of the one before, in turns */
  unsigned turn;
  pith_codec *raw;
  pith_allocator allocator;    /* of a framework; without its functions the module's */
  const pith_carrier *carrier; /* asked, while somebody waits, whether that makes sense; NULL: nobody is */
} pith_cuda_space;

/* Of the calling thread's current device. */
pith_status pith__cuda_space_create(void *stream, const pith_allocator *allocator, pith_cuda_space **space);
void pith__cuda_space_destroy(pith_cuda_space *space);

/* The calling thread works on the space's device from now on. */
pith_status pith__cuda_space_enter(const pith_cuda_space *space);

/* Enqueues a copy; either end may be main memory, pinned or not. */
pith_status pith__cuda_space_move(const pith_cuda_space *space, void *to, const void *from, size_t bytes);
/* Enqueues an optimizer's step on layers, on a stream of the caller's. */
pith_status pith__cuda_space_update(const pith_cuda_space *space, const pith_update_task *tasks, size_t count,
                                    void *stream);
/* Likewise, a residual that goes to another store. */
pith_status pith__cuda_space_repack(const pith_cuda_space *space, const pith_repack_task *task, void *stream);
/* Waits for an event; the carrier is asked now and then whether that makes sense. */
pith_status pith__cuda_space_await(const pith_cuda_space *space, void *event);
/* All of a step is enqueued. */
pith_status pith__cuda_space_end_step(pith_cuda_space *space);
/* Waits for the device, so that the host is at most one step ahead of it; `exact`: not at all. */
pith_status pith__cuda_space_keep_pace(const pith_cuda_space *space, int exact);
/* Whether the device has come to the end of the last step; waits for nothing. */
int pith__cuda_space_is_done(pith_cuda_space *space);

#endif

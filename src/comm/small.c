/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Small allreduces of one host: a scalar loss, a norm, a flag. Writing, running and forgetting a schedule would take
 * longer than the messages. Here the messages of the schedule's one step (add_short_allreduce of allreduce.c) are sent
 * at once, and an operation that only receives, on the stack of the caller, waits for the others' like any other: early
 * messages, time-outs, dead peers and other threads are the comm's as usual. The messages are the same, so ranks need
 * not agree on which of them do this.
 */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"

#define RANKS_MOST 8
#define STAGED_MOST \
  ((size_t)8 << 10) /* bytes of all ranks: on the stack, and less than where the schedule begins to make two steps */

typedef struct small {
  pith_operation op;
  pith_task task[RANKS_MOST];
  pith_piece piece[RANKS_MOST];
  const void *sources[RANKS_MOST];
  _Alignas(64) uint8_t staging[STAGED_MOST];
} small;

/* On one host uncompressed values have one algorithm, whatever was wished for, unless that is a grid; what was asked
 * for in this call may be refused. */
static int is_small(const pith_comm *comm, size_t bytes, const pith_call *call) {
  return bytes > 0 && bytes <= STAGED_MOST / (size_t)comm->ranks && comm->ranks > 1 && comm->ranks <= RANKS_MOST &&
         comm->chooser.hosts->hosts == 1 && comm->chooser.wish != PITH_ALGORITHM_GRID && !comm->tracing &&
         pith__log_level() < PITH_LOG_INFO_ &&
         (!call || (call->size == sizeof *call && !call->codec && !call->algorithm));
}

/* In place and field by field: a copy of what was just written would wait for the writes. */
static void fill_frame(pith_frame *frame, pith_comm *comm, pith_cspan src, pith_reduce_op reduce, const pith_call *call,
                       size_t bytes) {
  frame->magic = PITH_FRAME_MAGIC;
  frame->version = PITH_FRAME_VERSION;
  frame->kind = PITH_FRAME_DATA;
  frame->operation = PITH_OP_ALLREDUCE;
  frame->flags = (uint32_t)PITH_ALGORITHM_SRA << 16 | (uint32_t)src.dtype << 8 | (uint32_t)reduce;
  frame->sequence = ++comm->sequence;
  frame->layer = call ? call->layer : 0;
  frame->count = src.n;
  frame->step = call ? call->step : 0;
  frame->seed = call ? call->seed : 0;
  frame->epoch = PITH_FRAME_EPOCH;
  frame->length = bytes;
  frame->tag = PITH_TAG(0, 0);
  pith__frame_seal(frame, src.data, 0);
}

/* The receives, each into its place. */
static void prepare(small *b, pith_comm *comm, pith_cspan src, size_t bytes) {
  uint32_t tasks = 0;
  b->op.comm = comm;
  b->op.job.rank = comm->rank, b->op.job.ranks = comm->ranks;
  b->op.job.src = src;
  b->op.job.schedule.task = b->task;
  for (int p = 0; p < comm->ranks; p++) {
    uint8_t *into = b->staging + (size_t)p * bytes;
    b->sources[p] = p == comm->rank ? src.data : into;
    if (p != comm->rank) {
      b->piece[tasks] = (pith_piece){into, bytes, bytes, bytes};
      b->task[tasks] = (pith_task){.kind = PITH_TASK_RECEIVE,
                                   .peer = p,
                                   .tag = b->op.frame.tag,
                                   .piece = &b->piece[tasks],
                                   .edges = PITH_NO_TASK,
                                   .started = 1};
      tasks++;
    }
  }
  b->op.job.schedule.tasks = b->op.unfinished = tasks;
}

static void count(pith_comm *comm, size_t bytes, double start) {
  pith_traffic *t = &comm->traffic[PITH_OP_ALLREDUCE];
  uint64_t messages = (uint64_t)comm->ranks - 1;
  comm->stats.operations++;
  comm->stats.raw_bytes += bytes;
  t->operations++, t->uncompressed++;
  t->messages += messages;
  t->raw_bytes += bytes;
  t->sent_bytes += messages * (sizeof(pith_frame) + bytes);
  t->wire += pith__now_rough() - start; /* of many, the sum is right */
}

/* With the mutex held. The peers in the order rank + 1, rank + 2, …: then no rank is the first peer of all others. */
static pith_status run(pith_comm *comm, small *b, pith_cspan src, size_t bytes) {
  double start = pith__now_rough();
  pith__running_add(comm, &b->op);
  if (comm->failed == PITH_OK) {
    for (int step = 1; step < comm->ranks; step++) {
      pith_link *link = pith__link_have(comm, (comm->rank + step) % comm->ranks);
      if (link) {
        pith__link_send_now(link, &b->op.frame, src.data);
      }
    }
    for (uint32_t t = 0; t < b->op.job.schedule.tasks; t++) {
      pith_link *link = pith__link_have(comm, b->task[t].peer);
      if (link) {
        pith__link_receive(link, &b->op, t);
      }
    }
    pith__comm_drive(comm, &b->op);
  }
  count(comm, bytes, start);
  return pith__operation_conclude(&b->op);
}

int pith__small_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, const pith_call *call,
                          pith_status *status) {
  size_t bytes = src.n * pith_dtype_size(src.dtype);
  small b;
  if (!is_small(comm, bytes, call)) {
    return 0;
  }
  pith__comm_lock(comm);
  if (comm->failed != PITH_OK) {
    pthread_mutex_unlock(&comm->mutex);
    return 0;
  }
  memset(&b.op, 0, sizeof b.op);
  fill_frame(&b.op.frame, comm, src, reduce, call, bytes);
  prepare(&b, comm, src, bytes);
  *status = run(comm, &b, src, bytes);
  pthread_mutex_unlock(&comm->mutex);
  if (*status == PITH_OK) {
    pith__reduce_many(src.dtype, reduce, b.sources, comm->ranks, dst.data, src.n);
  }
  return 1;
}

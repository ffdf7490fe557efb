/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A schedule is what one rank does in one operation: messages to send, messages to receive, work on values in between,
 * and what must be finished before what. Algorithms only write schedules (allreduce.c, …): they move nothing, so that
 * each can be read, and tested, without a network. The comm runs any schedule over any transports.
 *
 * Tasks are numbered in the order in which they are added; of those that could run, the lowest runs first. An
 * algorithm that adds its pipeline stage by stage therefore gets it in that order.
 */
#ifndef PITH_COLLECTIVE_SCHEDULE_H
#define PITH_COLLECTIVE_SCHEDULE_H

#include <pthread.h>

#include "base/status.h"

/* Bytes that travel. `size` is set by the work that fills the piece, or by the message that arrives in it: `least` to
 * `capacity`. */
typedef struct pith_piece {
  uint8_t *data;
  size_t capacity, size, least;
} pith_piece;

typedef struct pith_job pith_job;
typedef struct pith_task pith_task;

/* Work on values; runs to its end. */
typedef pith_status (*pith_work_fn)(pith_job *job, const pith_task *task);

typedef enum pith_task_kind { PITH_TASK_SEND, PITH_TASK_RECEIVE, PITH_TASK_WORK } pith_task_kind;

/* What work costs, for who does not run it: src/sim. `n` values of the task, `passes` times. */
typedef enum pith_effort {
  PITH_EFFORT_NONE,          /* pith__work_join alone */
  PITH_EFFORT_ENCODE,        /* fills the piece */
  PITH_EFFORT_DECODE,        /* reads the piece */
  PITH_EFFORT_ENCODE_DECODE, /* both */
  PITH_EFFORT_SUM,           /* of values as they are: `passes` sources */
  PITH_EFFORT_PRODUCE,       /* the values of a round, from all of the tensor */
  PITH_EFFORT_CONSUME,       /* takes what they were reduced to */
  PITH_EFFORT_PACK,          /* fills the piece with the entries of one rank … */
  PITH_EFFORT_PACK_RESULT,   /* … and of a result */
  PITH_EFFORT_UNPACK,        /* reads the piece: entries of one rank … */
  PITH_EFFORT_UNPACK_RESULT, /* … and of a result */
} pith_effort;

#define PITH_NO_TASK UINT32_MAX

struct pith_task {
  pith_task_kind kind;
  int peer;          /* SEND, RECEIVE */
  uint32_t tag;      /* tells the messages between two ranks apart within the operation */
  pith_piece *piece; /* SEND, RECEIVE, and most WORK */
  pith_work_fn work;
  size_t first, n; /* the values it is about: their place in the tensor that was encoded */
  size_t at;       /* and in dst */
  void *values;    /* where they are, for work that is not on the operation's own tensors */
  int mode;        /* the work's own */
  pith_effort effort;
  int passes; /* 0 means 1 */
  /* The executor's: */
  uint32_t waits; /* tasks that must finish first */
  uint32_t edges; /* first of the tasks that wait for this one */
  int started;
};

/* Memory that schedules are done with, for the next ones: by powers of two. */
#define PITH_POOL_CLASSES 27

typedef struct pith_pool {
  pthread_mutex_t mutex;
  void *kept[PITH_POOL_CLASSES];
  size_t bytes;
} pith_pool;

void pith__pool_init(pith_pool *pool);
void pith__pool_fini(pith_pool *pool);

typedef struct pith_schedule {
  pith_task *task;
  uint32_t tasks, task_room;
  struct pith_edge {
    uint32_t to, next;
  } *edge;
  uint32_t edges, edge_room;
  void *memory;    /* pieces and buffers, given back with the schedule */
  pith_pool *pool; /* NULL: memory comes from the system */
  int failed;      /* memory ran out while it was written */
  int is_dry;      /* it is never run: buffers have addresses, but no memory */
  size_t buffers;  /* of a dry schedule: bytes that they would have */
  uint32_t *ready; /* a heap of the work that can run, lowest number on top */
  uint32_t ready_count;
} pith_schedule;

uint32_t pith__schedule_add(pith_schedule *s, pith_task task);

/* `task` starts only when `before` has finished; PITH_NO_TASK is ignored. */
void pith__schedule_after(pith_schedule *s, uint32_t task, uint32_t before);

/* Memory that lives as long as the schedule, whatever its contents; NULL marks the schedule as failed. */
void *pith__schedule_take(pith_schedule *s, size_t count, size_t size);

/* The same for values and payloads. Those of a dry schedule must not be touched. */
void *pith__schedule_buffer(pith_schedule *s, size_t count, size_t size);

/* A piece with room for up to `capacity` bytes, or exactly over memory that is there. */
pith_piece *pith__schedule_piece(pith_schedule *s, size_t capacity);
pith_piece *pith__schedule_piece_over(pith_schedule *s, void *data, size_t size);

/* A task of each kind, after `before`. */
uint32_t pith__schedule_work(pith_schedule *s, pith_task work, uint32_t before);
uint32_t pith__schedule_send(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before);
uint32_t pith__schedule_receive(pith_schedule *s, int peer, uint32_t tag, pith_piece *piece, uint32_t before);

/* All tasks are added: there is room for those that can run. */
pith_status pith__schedule_start(pith_schedule *s);

/* A task can run; takes the lowest of those, of which there is one. */
void pith__schedule_push(pith_schedule *s, uint32_t task);
uint32_t pith__schedule_pop(pith_schedule *s);

void pith__schedule_fini(pith_schedule *s);

#endif

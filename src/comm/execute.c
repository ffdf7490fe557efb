/* Runs schedules: tasks become ready when what they wait for has finished; work runs lowest number first. */
#include <stdio.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "comm/trace.h"

#define SHORT_WORK 4096 /* values: takes no time worth noting */

/* ---- The heap of ready work -------------------------------------------------------------------------------------- */

static void swap(uint32_t *a, uint32_t *b) {
  uint32_t t = *a;
  *a = *b;
  *b = t;
}

static void heap_push(pith_operation *op, uint32_t task) {
  uint32_t *heap = op->ready, at = op->ready_count++;
  heap[at] = task;
  for (; at && heap[at] < heap[(at - 1) / 2]; at = (at - 1) / 2) {
    swap(&heap[at], &heap[(at - 1) / 2]);
  }
}

static uint32_t heap_pop(pith_operation *op) {
  uint32_t *heap = op->ready, top = heap[0], at = 0;
  heap[0] = heap[--op->ready_count];
  for (;;) {
    uint32_t least = at, left = 2 * at + 1, right = 2 * at + 2;
    least = left < op->ready_count && heap[left] < heap[least] ? left : least;
    least = right < op->ready_count && heap[right] < heap[least] ? right : least;
    if (least == at) {
      return top;
    }
    swap(&heap[at], &heap[least]);
    at = least;
  }
}

/* ---- Tasks ------------------------------------------------------------------------------------------------------- */

static void make_ready(pith_operation *op, uint32_t number) {
  pith_task *task = &op->job.schedule.task[number];
  task->started = 1;
  switch (task->kind) {
    case PITH_TASK_SEND:
      pith__link_send(&op->comm->link[task->peer], op, number);
      break;
    case PITH_TASK_RECEIVE:
      if (task->peer == PITH_ANY_RANK) {
        pith__link_receive_any(op->comm, op, number);
      } else {
        pith__link_receive(&op->comm->link[task->peer], op, number);
      }
      break;
    case PITH_TASK_WORK:
      heap_push(op, number);
      break;
  }
}

/* ---- Tracing ----------------------------------------------------------------------------------------------------- */

const char *pith__operation_name(unsigned kind) {
  static const char *const names[] = {"?",          "allreduce", "reduce",  "reduce_scatter", "all_gather", "broadcast",
                                      "all_to_all", "gather",    "scatter", "barrier",        "send"};
  return kind < sizeof names / sizeof *names ? names[kind] : "?";
}

static const char *work_name(pith_work_fn work) {
  return work == pith__work_encode || work == pith__work_encode_result                                       ? "encode"
         : work == pith__work_decode || work == pith__work_decode_result || work == pith__work_decode_to_dst ? "decode"
                                                                                                             : "reduce";
}

static void trace_work(const pith_operation *op, const pith_task *task, double start) {
  char detail[64];
  snprintf(detail, sizeof detail, "%zu values from %zu", task->n, task->first);
  pith__trace(op->comm->rank, "work", work_name(task->work), detail, start, pith__now());
}

static void trace_operation(const pith_operation *op) {
  char name[64], detail[PITH_SPEC_MAX + 64];
  const pith_codec *codec = op->job.codec;
  snprintf(name, sizeof name, "%s %llu", pith__operation_name(op->frame.operation),
           (unsigned long long)op->frame.sequence);
  snprintf(detail, sizeof detail, "%zu values, %s", op->job.src.n, codec ? codec->spec : "uncompressed");
  pith__trace(op->comm->rank, "operations", name, detail, op->started_at, pith__now());
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

void pith__traffic_add(pith_traffic *sum, const pith_traffic *t, double share) {
  sum->operations += t->operations;
  sum->uncompressed += t->uncompressed;
  sum->messages += t->messages;
  sum->raw_bytes += (uint64_t)((double)t->raw_bytes * share);
  sum->sent_bytes += (uint64_t)((double)t->sent_bytes * share);
  sum->encode += t->encode * share;
  sum->decode += t->decode * share;
  sum->wire += t->wire * share;
}

static void count(pith_operation *op) {
  pith_traffic *t = &op->traffic;
  const pith_job *job = &op->job;
  double rest = pith__now() - op->started_at - job->encode_seconds - job->decode_seconds;
  t->operations = 1;
  t->uncompressed = !job->codec;
  t->raw_bytes = job->src.n * pith_dtype_size(job->src.dtype);
  t->encode = job->encode_seconds;
  t->decode = job->decode_seconds;
  t->wire = rest > 0 ? rest : 0;
  pith__traffic_add(&op->comm->traffic[op->frame.operation], t, 1.0);
}

static void finish(pith_operation *op) {
  if (op->comm->tracing) {
    trace_operation(op);
  }
  if (op->started_at > 0) { /* else it counts itself */
    count(op);
  }
  op->comm->stats.encode += op->job.encode_seconds;
  op->comm->stats.decode += op->job.decode_seconds;
  op->done = 1;
  pthread_cond_broadcast(&op->comm->changed); /* the thread that waits for it need not be the driver */
}

void pith__operation_start(pith_operation *op) {
  pith_schedule *s = &op->job.schedule;
  op->unfinished = s->tasks;
  op->started_at = pith__now();
  for (uint32_t t = 0; t < s->tasks && !op->done; t++) {
    if (s->task[t].waits == 0 && !s->task[t].started) { /* a message that came early may have started it */
      make_ready(op, t);
    }
  }
  if (s->tasks == 0) {
    finish(op);
  }
}

void pith__operation_task_done(pith_operation *op, uint32_t number) {
  pith_schedule *s = &op->job.schedule;
  for (uint32_t e = s->task[number].edges; e != PITH_NO_TASK; e = s->edge[e].next) {
    uint32_t next = s->edge[e].to;
    if (--s->task[next].waits == 0 && !op->done) { /* it is done early when the comm fails */
      make_ready(op, next);
    }
  }
  if (--op->unfinished == 0 && !op->done) {
    finish(op);
  }
}

int pith__operation_work(pith_comm *comm) {
  for (pith_operation *op = comm->running; op; op = op->next) {
    if (op->done || op->ready_count == 0) {
      continue;
    }
    uint32_t number = heap_pop(op);
    const pith_task *task = &op->job.schedule.task[number];
    int is_long = task->n == 0 || task->n > SHORT_WORK; /* 0: it does not say */
    double start_at = comm->tracing ? pith__now() : 0, began = is_long ? pith__now_rough() : 0;
    pith_status status = task->work(&op->job, task);
    comm->busy += is_long ? pith__now_rough() - began : 0;
    if (comm->tracing) {
      trace_work(op, task, start_at);
    }
    if (status != PITH_OK) {
      char why[600];
      snprintf(why, sizeof why, "%s", pith_error());
      pith__comm_fail(comm, status, "rank %d: %s", comm->rank, why);
    } else {
      pith__operation_task_done(op, number);
    }
    return 1;
  }
  return 0;
}

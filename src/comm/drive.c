/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Running operations: they are handed to the comm here, their tasks started, bytes moved and work done until all are
 * finished, and their callers get the answer.
 *
 * The thread that waits for an operation drives all links and all operations, turn by turn (one thread at a time); a
 * background thread does while there are requests that no thread waits for. sleep.c has what happens when nothing
 * moves.
 */
#include <errno.h>
#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"

#define SHORT_WORK 4096   /* values: takes no time worth noting */
#define TURNS_TO_CHECK 64 /* between two looks at the clock while there is something to do */

/* ---- The mutex --------------------------------------------------------------------------------------------------- */

void pith__comm_lock(pith_comm *comm) {
  if (pthread_mutex_trylock(&comm->mutex) == 0) {
    return;
  }
  atomic_fetch_add(&comm->lock_requests, 1);
  pthread_mutex_lock(&comm->gate);
  pthread_mutex_lock(&comm->mutex);
  atomic_fetch_add(&comm->lock_grants, 1);
  pthread_mutex_unlock(&comm->gate);
}

/* A mutex is not fair: a driver that only unlocked it would have it back before another thread woke up. The driver
 * waits until all threads have had it that requested it before; later requests do not keep it from driving. It waits at
 * the gate, which is free again when the thread that waits there has the mutex: where cores are scarce, a driver that
 * only yielded would take them from the very thread it waits for. */
static void yield_lock(pith_comm *comm) {
  unsigned requests = atomic_load(&comm->lock_requests);
  if ((int)(requests - atomic_load(&comm->lock_grants)) > 0) {
    pthread_mutex_unlock(&comm->mutex);
    for (;;) {
      pthread_mutex_lock(&comm->gate);
      pthread_mutex_unlock(&comm->gate);
      if ((int)(requests - atomic_load(&comm->lock_grants)) <= 0) {
        break;
      }
      sched_yield(); /* it has requested the mutex, but is not at the gate yet */
    }
    pthread_mutex_lock(&comm->mutex);
  }
}

void pith__comm_wake(pith_comm *comm) {
  uint64_t one = 1;
  pthread_cond_broadcast(&comm->changed);
  if (comm->driving && write(comm->wake, &one, sizeof one) < 0 && errno != EAGAIN) {
    PITH_LOG_WARN("cannot write an eventfd: %s", strerror(errno));
  }
}

/* ---- Tasks: ready when what they wait for has finished ----------------------------------------------------------- */

static void make_ready(pith_operation *op, uint32_t number) {
  pith_task *task = &op->job.schedule.task[number];
  pith_link *link;
  task->started = 1;
  switch (task->kind) {
    case PITH_TASK_SEND:
      link = pith__link_have(op->comm, task->peer);
      if (link) {
        pith__link_send(link, op, number);
      }
      break;
    case PITH_TASK_RECEIVE:
      if (task->peer == PITH_ANY_RANK) {
        pith__link_receive_any(op->comm, op, number);
      } else {
        link = pith__link_have(op->comm, task->peer);
        if (link) {
          pith__link_receive(link, op, number);
        }
      }
      break;
    case PITH_TASK_WORK:
      pith__schedule_push(&op->job.schedule, number);
      break;
  }
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
    pith__trace_operation(op);
  }
  if (op->started_at > 0) { /* else it counts itself */
    count(op);
  }
  op->comm->stats.encode += op->job.encode_seconds;
  op->comm->stats.decode += op->job.decode_seconds;
  op->done = 1;
  pthread_cond_broadcast(&op->comm->changed); /* the thread that waits for it need not be the driver */
}

static void start_tasks(pith_operation *op) {
  pith_schedule *s = &op->job.schedule;
  op->unfinished = s->tasks;
  op->started_at = pith__now();
  for (uint32_t t = 0; t < s->tasks; t++) {
    op->expected_bytes += s->task[t].kind == PITH_TASK_RECEIVE ? s->task[t].piece->capacity : 0;
  }
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

/* Runs one piece of work of the oldest operation that has some; 0 if there is none. */
static int work_once(pith_comm *comm) {
  for (pith_operation *op = comm->running; op; op = op->next) {
    if (op->done || op->job.schedule.ready_count == 0) {
      continue;
    }
    uint32_t number = pith__schedule_pop(&op->job.schedule);
    const pith_task *task = &op->job.schedule.task[number];
    int is_long = task->n == 0 || task->n > SHORT_WORK; /* 0: it does not say */
    double start_at = comm->tracing ? pith__now() : 0, began = is_long ? pith__now_rough() : 0;
    pith_status status = task->work(&op->job, task);
    comm->busy += is_long ? pith__now_rough() - began : 0;
    if (comm->tracing) {
      pith__trace_work(op, task, start_at);
    }
    if (status != PITH_OK) {
      pith__comm_fail(comm, status, "rank %d: %s", comm->rank, pith_error());
    } else {
      pith__operation_task_done(op, number);
    }
    return 1;
  }
  return 0;
}

/* ---- Driving ----------------------------------------------------------------------------------------------------- */

/* *worked: something was computed. */
static int take_turn(pith_comm *comm, int *worked) {
  int moved = 0;
  for (int i = 0; i < comm->link_count && comm->failed == PITH_OK; i++) {
    moved |= pith__link_progress(comm->links[i]);
  }
  if (++comm->turns % TURNS_TO_CHECK == 0 && comm->failed == PITH_OK) {
    pith__comm_check_time(comm); /* others may keep us busy while one lets us wait */
  }
  *worked = comm->failed == PITH_OK && work_once(comm);
  return *worked || moved;
}

static int is_over(const pith_comm *comm, const pith_operation *op) {
  return op ? op->done : comm->closing || comm->waiters > 0;
}

int pith__comm_has_work(const pith_comm *comm) {
  for (const pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done) {
      return 1;
    }
  }
  return 0;
}

/* Whether the caller that waits here wants to stop waiting; asked now and then, without the mutex. */
static int is_interrupted(pith_comm *comm) {
  if (!comm->interrupt.ask || pith__now_rough() - comm->last_question < PITH_INTERRUPT_SECONDS) {
    return 0;
  }
  if (!pith__interrupt_is_possible(&comm->interrupt)) {
    return 0;
  }
  comm->last_question = pith__now_rough();
  pthread_mutex_unlock(&comm->mutex);
  int answer = pith__interrupt_ask(&comm->interrupt);
  pthread_mutex_lock(&comm->mutex);
  return answer;
}

/* Another thread drives. Signals do not end the wait for a condition: it ends by itself, now and then. */
static void wait_for_change(pith_comm *comm) {
  struct timespec until;
  if (!pith__interrupt_is_possible(&comm->interrupt)) {
    pthread_cond_wait(&comm->changed, &comm->mutex);
    return;
  }
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)(PITH_INTERRUPT_SECONDS * 1e9);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&comm->changed, &comm->mutex, &until);
}

/* Drives as the only driver. op == NULL: as long as there is work and no other thread wants to. 0: the caller that
 * waits for the operation was interrupted. */
static int drive(pith_comm *comm, const pith_operation *op) {
  int idle = 0;
  comm->driving = 1;
  comm->drives++;
  if (comm->watching) {
    pith__comm_leave_watch(comm);
  }
  pith__comm_begin_spin(comm);
  while (!is_over(comm, op) && (op || pith__comm_has_work(comm))) {
    yield_lock(comm);
    if (op && is_interrupted(comm)) {
      break;
    }
    uint64_t before = comm->moved_bytes;
    int worked = 0;
    if (take_turn(comm, &worked)) {
      idle = 0;
      if (!worked && !is_over(comm, op)) {
        pith__comm_let_gather(comm, comm->moved_bytes - before);
      }
    } else if (++idle > pith__comm_spin_turns(comm)) {
      pith__comm_check_time(comm);
      if (!is_over(comm, op)) {
        pith__comm_sleep(comm);
        idle = pith__comm_spin_turns(comm) / 2;
      }
    } else if (idle % comm->yield == 0) {
      sched_yield(); /* more ranks than cores: let the others work */
    }
  }
  comm->driving = 0;
  pthread_cond_broadcast(&comm->changed);
  return !op || op->done;
}

/* pith__comm_drive(), but for an interruption: then it returns 0, and the operation goes on. */
static int drive_unless_interrupted(pith_comm *comm, const pith_operation *op) {
  int goes_on = 1;
  if (op->done) {
    return 1; /* and no thread is woken in vain */
  }
  double start = pith__now_rough(); /* adds up to the right sum over many waits */
  comm->waiters++;
  if (comm->driving && !op->done) { /* another thread does; it may be asleep and not know of us or our messages */
    pith__comm_wake(comm);
  }
  while (!op->done && goes_on) {
    if (comm->driving) {
      wait_for_change(comm);
      goes_on = op->done || !is_interrupted(comm);
    } else {
      goes_on = drive(comm, op);
    }
  }
  comm->waiters--;
  comm->stats.wait += pith__now_rough() - start;
  pthread_cond_broadcast(&comm->changed);
  return op->done;
}

void pith__comm_drive(pith_comm *comm, const pith_operation *op) {
  if (!drive_unless_interrupted(comm, op)) {
    pith__comm_fail(comm, PITH_ERR_INTERRUPTED, "rank %d was interrupted while it waited for the other ranks",
                    comm->rank);
  }
}

/* ---- The background thread --------------------------------------------------------------------------------------- */

static void *run_in_background(void *argument) {
  pith_comm *comm = argument;
  pthread_mutex_lock(&comm->mutex);
  while (!comm->closing) {
    if (comm->driving || comm->waiters || !pith__comm_has_work(comm)) {
      pthread_cond_wait(&comm->changed, &comm->mutex);
    } else {
      drive(comm, NULL);
      if (comm->failed != PITH_OK) { /* no thread may call for long, and ranks without a link hear of it through us */
        pith__comm_flush(comm, comm->failed_at + 0.2);
      }
    }
  }
  pthread_mutex_unlock(&comm->mutex);
  return NULL;
}

static pith_status have_thread(pith_comm *comm) {
  PITH_REQUIRE(comm->thread_started || pthread_create(&comm->thread, NULL, run_in_background, comm) == 0,
               PITH_ERR_SYSTEM, "cannot start the thread that drives requests");
  comm->thread_started = 1;
  return PITH_OK;
}

void pith__comm_stop_thread(pith_comm *comm) {
  pith__comm_lock(comm);
  comm->closing = 1;
  pith__comm_wake(comm);
  pthread_mutex_unlock(&comm->mutex);
  if (comm->thread_started) {
    pthread_join(comm->thread, NULL);
    comm->thread_started = 0;
  }
}

void pith__comm_flush(pith_comm *comm, double end) {
  for (int more = 1; more && pith__now() < end; sched_yield()) {
    more = 0;
    for (int i = 0; i < comm->link_count; i++) {
      more |= pith__link_flush(comm->links[i]);
    }
  }
}

/* ---- Handing it to the comm -------------------------------------------------------------------------------------- */

static pith_status refuse_failed(const pith_comm *comm) { return pith_fail(comm->failed, "%s", comm->failure); }

/* With the mutex held. */
static pith_status start(pith_comm *comm, pith_operation *op) {
  if (comm->failed != PITH_OK) {
    return refuse_failed(comm);
  }
  if (op->frame.operation != PITH_OP_POINT) {
    op->frame.sequence = ++comm->sequence;
  }
  comm->stats.operations++;
  comm->stats.raw_bytes += op->job.src.n * pith_dtype_size(op->job.src.dtype);
  pith__running_add(comm, op);
  if (comm->failed == PITH_OK) {
    start_tasks(op);
  }
  return PITH_OK;
}

pith_status pith__operation_conclude(pith_operation *op) {
  pith_comm *comm = op->comm;
  pith_operation **at = &comm->running;
  while (*at != op) {
    at = &(*at)->next;
  }
  *at = op->next;
  if (!*at) {
    comm->running_end = at;
  }
  if (comm->failed != PITH_OK) {
    pith__comm_flush(comm, comm->failed_at + 0.2); /* the others should hear why */
  }
  return op->status == PITH_OK ? PITH_OK : refuse_failed(comm);
}

pith_status pith__operation_submit(pith_operation *op, pith_status written, pith_request **request) {
  pith_comm *comm = op->comm;
  pith_status status = written == PITH_OK ? pith__schedule_start(&op->job.schedule) : written;
  if (status != PITH_OK) {
    pith__operation_release(op);
    return status;
  }
  pith__comm_lock(comm);
  status = request ? have_thread(comm) : PITH_OK;
  status = status == PITH_OK ? start(comm, op) : status;
  if (status == PITH_OK && request) {
    pith__comm_wake(comm);
  } else if (status == PITH_OK) {
    pith__comm_drive(comm, op);
    status = pith__operation_conclude(op);
  }
  pthread_mutex_unlock(&comm->mutex);
  if (request && status == PITH_OK) {
    *request = (pith_request *)op;
  } else {
    pith__operation_release(op);
  }
  return status;
}

/* `may_go_on`: an interruption leaves the request in flight; else it ends the comm. */
static pith_status wait_for(pith_request *request, int may_go_on, pith_traffic *traffic, int *source) {
  PITH_REQUIRE(request, PITH_ERR_ARGUMENT, "pith_wait: request must not be NULL");
  pith_operation *op = &request->operation;
  pith_comm *comm = op->comm;
  pith_status status;
  if (comm) {
    PITH_TRY(pith__check_comm(comm));
    pith__comm_lock(comm);
    int goes_on = may_go_on && !drive_unless_interrupted(comm, op);
    if (!goes_on) {
      pith__comm_drive(comm, op);
      status = pith__operation_conclude(op);
    }
    pthread_mutex_unlock(&comm->mutex);
    PITH_REQUIRE(!goes_on, PITH_ERR_INTERRUPTED,
                 "rank %d was interrupted while it waited for an operation, which goes on", comm->rank);
  } else {
    status = op->status == PITH_OK ? PITH_OK
                                   : pith_fail(op->status, "the comm was destroyed while the operation was under way");
  }
  if (traffic) {
    *traffic = op->traffic;
  }
  if (source && status == PITH_OK) {
    *source = op->job.schedule.task[0].peer;
  }
  pith__operation_release(op);
  return status;
}

pith_status pith__wait(pith_request *request, pith_traffic *traffic, int *source) {
  return wait_for(request, 0, traffic, source);
}

pith_status pith_wait(pith_request *request) { return wait_for(request, 1, NULL, NULL); }

pith_status pith_wait_source(pith_request *request, int *source) {
  PITH_REQUIRE(source, PITH_ERR_ARGUMENT, "pith_wait_source: source must not be NULL");
  PITH_REQUIRE(request && request->operation.frame.operation == PITH_OP_POINT, PITH_ERR_ARGUMENT,
               "pith_wait_source: this is no request of pith_recv()");
  return wait_for(request, 1, NULL, source);
}

pith_status pith_test(pith_request *request, int *done) {
  PITH_REQUIRE(request && done, PITH_ERR_ARGUMENT, "pith_test: request and done must not be NULL");
  PITH_TRY(request->operation.comm ? pith__check_comm(request->operation.comm) : PITH_OK);
  *done = request->operation.done; /* without the mutex: threads that ask in a loop must not keep the driver from it */
  return PITH_OK;
}

/*
 * Driving: moving bytes and running work until an operation is done.
 *
 * A driver spins for a moment, since answers often come at once, then sleeps in poll() until a transport has something.
 * Where ranks have to share cores it lets the others run after every turn that brought nothing. Over a network a turn
 * costs system calls and answers take longer; so where another thread wants the core, it sleeps soon. While it sleeps
 * the mutex is free, so that other threads can submit; they wake it.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"

#define SPIN_TURNS 100      /* where others need the core */
#define SPIN_CALLS 200      /* over a network: system calls, of which a turn makes one for each rank */
#define SPIN_TURNS_OWN 4000 /* where all ranks are here and each can have a core */
#define SPIN_TURNS_FEW 16   /* over a network, where the core is wanted */
#define BULK_VALUES 65536   /* of an operation */
#define TRICKLE_BYTES 65536 /* of a turn: less is not worth its system calls */
#define NAP_LEAST 100000    /* nanoseconds; also the longest while there is something to send */
#define NAP_MOST 800000
#define MODEST_SLEEPS 100 /* so many of them until we look again whether it is */
#define YIELD_TURNS 64    /* between two that let others in, where each rank can have a core */
#define TURNS_TO_CHECK 64 /* between two looks at the clock while there is something to do */
#define POLLING_NAP_NS 50000

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

/* ---- Failing ----------------------------------------------------------------------------------------------------- */

void pith__comm_fail(pith_comm *comm, pith_status status, const char *format, ...) {
  if (comm->failed != PITH_OK) {
    return; /* the first reason is the one that counts */
  }
  va_list args;
  va_start(args, format);
  vsnprintf(comm->failure, sizeof comm->failure, format, args);
  va_end(args);
  comm->failed = status;
  comm->failed_at = pith__now();
  PITH_LOG_WARN("rank %d: %s: %s", comm->rank, pith_status_string(status), comm->failure);
  for (int p = 0; p < comm->ranks; p++) {
    pith__link_fail(&comm->link[p], comm->failure);
  }
  for (pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done) {
      op->status = status;
      op->done = 1;
    }
  }
  pith__comm_wake(comm);
}

/* ---- Time-outs: each peer that an operation waits for has its own clock ------------------------------------------ */

/* Seconds of waiting after which we tell the others that we are alive, again and again. */
static double patience(const pith_comm *comm) { return comm->timeout / 4 < 1 ? comm->timeout / 4 : 1; }

/* Whether the peer has not said for long that it waits, too. */
static int is_silent(const pith_link *link, double now) { return now - link->heard > 3 * patience(link->comm); }

/* How long the peer has let us wait. Time in which we worked and did not listen does not count: the clock stands still.
 */
static double waited_for(pith_link *link, double now) {
  double clock = now - link->comm->busy;
  if (link->moved != link->seen || !pith__link_is_awaited(link)) {
    link->seen = link->moved;
    link->since = clock;
  }
  return clock - link->since;
}

/* Names the peers that let us wait for too long; `silent`: only those of which we have heard nothing. */
static size_t name_missing(const pith_comm *comm, int silent, double now, char *text, size_t size) {
  size_t used = 0;
  for (int p = 0; p < comm->ranks && used + 24 < size; p++) {
    pith_link *link = &comm->link[p];
    if (waited_for(link, now) > comm->timeout && !(silent && !is_silent(link, now))) {
      used += (size_t)snprintf(text + used, size - used, "%srank %d", used ? ", " : "", p);
    }
  }
  return used;
}

static void send_signs(pith_comm *comm, double now) {
  comm->last_sign = now;
  for (int p = 0; p < comm->ranks; p++) {
    pith__link_sign(&comm->link[p]);
  }
}

static void fail_late(pith_comm *comm, double now, double waited) {
  char missing[256] = "";
  if (!name_missing(comm, 1, now, missing, sizeof missing)) {
    name_missing(comm, 0, now, missing, sizeof missing);
  }
  pith__comm_fail(
      comm, PITH_ERR_TIMEOUT,
      "Timed out waiting %.1f s for %s without a sign of life, seen by rank %d (a timeout of %g s, set by %s)", waited,
      missing, comm->rank, comm->timeout, comm->timeout_from);
}

/* ---- Hosts that are gone: known long before an operation's time-out, which may be half an hour ----------------- */

/* Looks this often within the time in which a host must answer, and ends a little before it. */
#define LOOKS 16

/* Whether the peer's host has answered nothing for too long. A process that is stopped is none of this: its host
 * answers.
 */
static int is_host_gone(const pith_comm *comm, pith_link *link, double now) {
  const pith_transport_ops *ops = link->transport ? link->transport->ops : NULL;
  int is_unanswered = ops && ops->is_unanswered && !link->left && ops->is_unanswered(link->transport, link->peer);
  /* If we have not looked for long, or were stopped ourselves, the time begins again. */
  int is_new = link->unanswered == 0 || now - comm->last_look > comm->liveness / 2;
  link->unanswered = !is_unanswered ? 0 : is_new ? now : link->unanswered;
  return is_unanswered && now - link->unanswered > comm->liveness * (1 - 3.0 / LOOKS);
}

static void check_hosts(pith_comm *comm, double now) {
  if (now - comm->last_look < comm->liveness / LOOKS) {
    return;
  }
  for (int p = 0; p < comm->ranks; p++) {
    pith_link *link = &comm->link[p];
    if (is_host_gone(comm, link, now)) {
      pith__comm_fail(comm, PITH_ERR_PEER,
                      "rank %d is gone (seen by rank %d): its host has not answered for %.1f s (PITH_LIVENESS is %g s)",
                      p, comm->rank, now - link->unanswered, comm->liveness);
      return;
    }
  }
  comm->last_look = now;
}

/* ---- Time-outs, in all ------------------------------------------------------------------------------------------- */

/* A peer that says that it waits, too, will tell us for whom: it gets a little longer. */
static void check_time(pith_comm *comm) {
  double now = pith__now(), longest = 0, overdue = 0;
  check_hosts(comm, now);
  for (int p = 0; p < comm->ranks; p++) {
    pith_link *link = &comm->link[p];
    double waited = waited_for(link, now), late = waited - (is_silent(link, now) ? 0 : 2 * patience(comm));
    longest = waited > longest ? waited : longest;
    overdue = late > overdue ? late : overdue;
  }
  if (overdue > comm->timeout) {
    fail_late(comm, now, longest);
  } else if (longest > patience(comm) && now - comm->last_sign > patience(comm)) {
    send_signs(comm, now);
  }
}

/* ---- One turn ---------------------------------------------------------------------------------------------------- */

/* *worked: something was computed. */
static int take_turn(pith_comm *comm, int *worked) {
  int moved = 0;
  for (int p = 0; p < comm->ranks && comm->failed == PITH_OK; p++) {
    moved |= pith__link_progress(&comm->link[p]);
  }
  if (++comm->turns % TURNS_TO_CHECK == 0 && comm->failed == PITH_OK) {
    check_time(comm); /* others may keep us busy while one lets us wait */
  }
  *worked = comm->failed == PITH_OK && pith__operation_work(comm);
  return *worked || moved;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

/* A transport has at most one descriptor of its own and two for each peer. */
static int descriptors_most(const pith_comm *comm) { return 1 + comm->transports * (1 + 2 * comm->ranks); }

static int collect_descriptors(pith_comm *comm, struct pollfd *fds) {
  uint8_t sending[comm->ranks];
  int count = 1, most = descriptors_most(comm);
  fds[0] = (struct pollfd){.fd = comm->wake, .events = POLLIN};
  for (int t = 0; t < comm->transports; t++) {
    pith_transport *transport = comm->transport[t];
    for (int p = 0; p < comm->ranks; p++) {
      sending[p] = comm->link[p].transport == transport && comm->link[p].out != NULL;
    }
    count += transport->ops->descriptors(transport, sending, fds + count, most - count);
  }
  return count;
}

static int fall_asleep(pith_comm *comm) {
  int something = 0;
  for (int t = 0; t < comm->transports; t++) {
    something |= comm->transport[t]->ops->sleep(comm->transport[t], 1);
  }
  return something;
}

static void wake_up(pith_comm *comm, int was_woken) {
  uint64_t count;
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->sleep(comm->transport[t], 0);
  }
  if (was_woken && read(comm->wake, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) {
    PITH_LOG_WARN("cannot read an eventfd: %s", strerror(errno));
  }
}

/* Whether a transport has no descriptors that would wake us. */
static int must_poll(const pith_comm *comm) {
  int polls = 0;
  for (int t = 0; t < comm->transports; t++) {
    polls |= comm->transport[t]->ops->polls;
  }
  return polls;
}

/* Often enough to look at the time-out. */
static int nap_milliseconds(const pith_comm *comm) {
  double nap = comm->timeout / 8;
  return nap > 0.25 ? 250 : (int)(nap * 1000) + 1;
}

/* Sleeps until something happens, at most a while: the time-out is looked at then. */
static void sleep_a_while(pith_comm *comm) {
  struct pollfd *fds = malloc((size_t)descriptors_most(comm) * sizeof *fds);
  int count = fds ? collect_descriptors(comm, fds) : 0;
  int milliseconds = nap_milliseconds(comm);
  if (!fall_asleep(comm)) {
    pthread_mutex_unlock(&comm->mutex);
    if (must_poll(comm) || !fds) { /* without memory we cannot know what to wait for */
      ppoll(fds, (nfds_t)count, &(struct timespec){0, POLLING_NAP_NS}, NULL);
    } else {
      poll(fds, (nfds_t)count, milliseconds);
    }
    pthread_mutex_lock(&comm->mutex);
  }
  wake_up(comm, count > 0 && fds[0].revents);
  free(fds);
}

static int is_over(const pith_comm *comm, const pith_operation *op) {
  return op ? op->done : comm->closing || comm->waiters > 0;
}

static int has_work(const pith_comm *comm) {
  for (const pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done) {
      return 1;
    }
  }
  return 0;
}

/* How patient to be; found out once. */
static void choose_spin(pith_comm *comm) {
  cpu_set_t cores;
  int here = 1;
  for (int p = 0; p < comm->ranks; p++) {
    here += comm->link[p].transport && !comm->link[p].remote;
  }
  int is_crowded = sched_getaffinity(0, sizeof cores, &cores) != 0 || here > CPU_COUNT(&cores);
  int is_local = here == comm->ranks;
  comm->networked = !is_local;
  comm->spin = is_local && !is_crowded ? SPIN_TURNS_OWN
               : is_local              ? SPIN_TURNS
                                       : SPIN_CALLS / comm->ranks + SPIN_TURNS_FEW;
  comm->yield = is_crowded ? 1 : YIELD_TURNS; /* the system may have put two ranks on one core all the same */
}

/* How often the system has given this thread's core to another one. */
static long times_displaced(void) {
  struct rusage used;
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

/* Whether a large operation is in flight: a wait is then long beside the time in which poll() wakes us. */
static int is_bulk(const pith_comm *comm) {
  for (const pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done && op->job.src.n > BULK_VALUES) {
      return 1;
    }
  }
  return 0;
}

/* How many turns without progress are worth it now. */
static int spin_of(const pith_comm *comm) {
  return comm->modest > 0 || (comm->networked && is_bulk(comm)) ? SPIN_TURNS_FEW : comm->spin;
}

/* A spin brought nothing. We cannot know what else runs here (other hosts of a lab, other programs); but if we lost the
 * core meanwhile, it was wanted. `displaced`: how often before. */
static void note_vain_spin(pith_comm *comm, long *displaced) {
  if (comm->modest > 1) {
    comm->modest--;
  } else if (comm->networked) {
    long now = times_displaced();
    comm->modest = comm->modest == 0 && now != *displaced ? MODEST_SLEEPS : 0;
    *displaced = now;
  }
}

static int is_sending(const pith_comm *comm) {
  for (int p = 0; p < comm->ranks; p++) {
    if (comm->link[p].out) {
      return 1;
    }
  }
  for (int t = 0; t < comm->transports; t++) {
    const pith_transport *transport = comm->transport[t];
    if (transport->ops->has_output && transport->ops->has_output(transport)) {
      return 1;
    }
  }
  return 0;
}

/* Bytes of a slow link come and go a packet at a time, and every look at them costs system calls that other ranks could
 * do with. So where a turn moved little of something large, and there was nothing to compute, we let more gather. */
static void let_gather(pith_comm *comm, uint64_t bytes) {
  if (!comm->networked || bytes >= TRICKLE_BYTES || !is_bulk(comm)) {
    comm->nap = bytes >= 2 * TRICKLE_BYTES ? comm->nap / 2 : comm->nap;
    return;
  }
  comm->nap = comm->nap < NAP_LEAST || is_sending(comm) ? NAP_LEAST
              : comm->nap < NAP_MOST / 2                ? 2 * comm->nap
                                                        : NAP_MOST;
  pthread_mutex_unlock(&comm->mutex);
  struct pollfd wake = {.fd = comm->wake, .events = POLLIN};
  ppoll(&wake, 1, &(struct timespec){0, comm->nap}, NULL); /* a thread that submits something ends it */
  pthread_mutex_lock(&comm->mutex);
  if (wake.revents) {
    uint64_t count;
    (void)!read(comm->wake, &count, sizeof count);
  }
}

/* ---- Interruption ------------------------------------------------------------------------------------------------ */

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
  if (!comm->spin) {
    choose_spin(comm);
  }
  long displaced = comm->networked ? times_displaced() : 0;
  while (!is_over(comm, op) && (op || has_work(comm))) {
    yield_lock(comm);
    if (op && is_interrupted(comm)) {
      return op->done;
    }
    uint64_t before = comm->moved_bytes;
    int worked = 0;
    if (take_turn(comm, &worked)) {
      idle = 0;
      if (!worked && !is_over(comm, op)) {
        let_gather(comm, comm->moved_bytes - before);
      }
    } else if (++idle > spin_of(comm)) {
      check_time(comm);
      if (!is_over(comm, op)) {
        note_vain_spin(comm, &displaced);
        sleep_a_while(comm);
        idle = spin_of(comm) / 2;
      }
    } else if (idle % comm->yield == 0) {
      sched_yield(); /* more ranks than cores: let the others work */
    }
  }
  return 1;
}

int pith__comm_drive_unless_interrupted(pith_comm *comm, const pith_operation *op) {
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
      continue;
    }
    comm->driving = 1;
    goes_on = drive(comm, op);
    comm->driving = 0;
    pthread_cond_broadcast(&comm->changed);
  }
  comm->waiters--;
  comm->stats.wait += pith__now_rough() - start;
  pthread_cond_broadcast(&comm->changed);
  return op->done;
}

void pith__comm_drive(pith_comm *comm, const pith_operation *op) {
  if (!pith__comm_drive_unless_interrupted(comm, op)) {
    pith__comm_fail(comm, PITH_ERR_INTERRUPTED, "rank %d was interrupted while it waited for the other ranks",
                    comm->rank);
  }
}

void pith__comm_flush(pith_comm *comm, double end) {
  for (int more = 1; more && pith__now() < end; sched_yield()) {
    more = 0;
    for (int p = 0; p < comm->ranks; p++) {
      more |= pith__link_flush(&comm->link[p]);
    }
  }
}

/* ---- The background thread --------------------------------------------------------------------------------------- */

static void *run_in_background(void *argument) {
  pith_comm *comm = argument;
  pthread_mutex_lock(&comm->mutex);
  while (!comm->closing) {
    if (comm->driving || comm->waiters || !has_work(comm)) {
      pthread_cond_wait(&comm->changed, &comm->mutex);
      continue;
    }
    comm->driving = 1;
    drive(comm, NULL);
    comm->driving = 0;
    pthread_cond_broadcast(&comm->changed);
  }
  pthread_mutex_unlock(&comm->mutex);
  return NULL;
}

pith_status pith__comm_start_thread(pith_comm *comm) {
  if (comm->thread_started) {
    return PITH_OK;
  }
  PITH_REQUIRE(pthread_create(&comm->thread, NULL, run_in_background, comm) == 0, PITH_ERR_SYSTEM,
               "cannot start the thread that drives requests");
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

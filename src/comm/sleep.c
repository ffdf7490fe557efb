/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a driver does while nothing moves.
 *
 * It spins for a moment, since answers often come at once, then sleeps in poll() until a transport has something. Where
 * ranks have to share cores it lets the others run after every turn that brought nothing. Over a network a turn costs
 * system calls and answers take longer; so where another thread wants the core, it sleeps soon. While it sleeps the
 * mutex is free, so that other threads can submit; they wake it.
 */
#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/comm.h"

#define SPIN_TURNS 100      /* where others need the core */
#define SPIN_CALLS 200      /* over a network: system calls, of which a turn makes one for each rank */
#define SPIN_TURNS_OWN 4000 /* where all ranks are here and each can have a core */
#define SPIN_TURNS_FEW 16   /* over a network, where the core is wanted */
#define BULK_BYTES 262144   /* that an operation receives */
#define TRICKLE_BYTES 65536 /* of a turn: less is not worth its system calls */
#define NAP_LEAST 100000    /* nanoseconds; also the longest while there is something to send */
#define NAP_MOST 800000
#define MODEST_SLEEPS 100 /* so many of them until we look again whether it is */
#define YIELD_TURNS 64    /* between two that let others in, where each rank can have a core */
#define POLLING_NAP_NS 50000
#define SLEEP_MOST 0.25 /* seconds */

/* ---- Spinning ---------------------------------------------------------------------------------------------------- */

/* How patient to be; found out once. */
static void choose_spin(pith_comm *comm) {
  cpu_set_t cores;
  int here = 0;
  for (int p = 0; p < comm->ranks; p++) {
    here += !pith__is_remote(comm, p);
  }
  int is_crowded = sched_getaffinity(0, sizeof cores, &cores) != 0 || here > CPU_COUNT(&cores);
  int is_local = here == comm->ranks;
  comm->networked = !is_local;
  comm->spin = is_local && !is_crowded ? SPIN_TURNS_OWN
               : is_local              ? SPIN_TURNS
                                       : SPIN_CALLS / (comm->link_count + 1) + SPIN_TURNS_FEW;
  comm->yield = is_crowded ? 1 : YIELD_TURNS; /* the system may have put two ranks on one core all the same */
}

/* How often the system has given this thread's core to another one. */
static long times_displaced(void) {
  struct rusage used;
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_nivcsw : 0;
}

void pith__comm_begin_spin(pith_comm *comm) {
  if (!comm->spin) {
    choose_spin(comm);
  }
  comm->displaced = comm->networked ? times_displaced() : 0;
}

/* Whether an operation with many bytes is in flight: a wait is then long beside the time in which poll() wakes us.
 * Large tensors whose payloads are short do not count. */
static int is_bulk(const pith_comm *comm) {
  for (const pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done && op->expected_bytes > BULK_BYTES) {
      return 1;
    }
  }
  return 0;
}

int pith__comm_spin_turns(const pith_comm *comm) {
  return comm->modest > 0 || (comm->networked && is_bulk(comm)) ? SPIN_TURNS_FEW : comm->spin;
}

/* A spin brought nothing. We cannot know what else runs here (other hosts of a lab, other programs); but if we lost the
 * core meanwhile, it was wanted. */
static void note_vain_spin(pith_comm *comm) {
  if (comm->modest > 1) {
    comm->modest--;
  } else if (comm->networked) {
    long now = times_displaced();
    comm->modest = comm->modest == 0 && now != comm->displaced ? MODEST_SLEEPS : 0;
    comm->displaced = now;
  }
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

int pith__comm_link_descriptors(pith_comm *comm, struct pollfd *fds, int most) {
  uint8_t sending[comm->ranks];
  int count = 0;
  for (int t = 0; t < comm->transports; t++) {
    pith_transport *transport = comm->transport[t];
    memset(sending, 0, sizeof sending);
    for (int i = 0; i < comm->link_count; i++) {
      const pith_link *link = comm->links[i];
      sending[link->peer] = link->linked && link->transport == transport && link->out != NULL;
    }
    count += transport->ops->descriptors(transport, sending, fds + count, most - count);
  }
  return count;
}

/* Somebody wanted us awake, and we are. */
static void clear_wake(const pith_comm *comm) {
  uint64_t count;
  if (read(comm->wake, &count, sizeof count) < 0 && errno != EAGAIN && errno != EINTR) {
    PITH_LOG_WARN("cannot read an eventfd: %s", strerror(errno));
  }
}

void pith__comm_sleep(pith_comm *comm) {
  note_vain_spin(comm);
  int most = 1 + pith__comm_descriptors_most(comm);
  PITH_FREED struct pollfd *fds = malloc((size_t)most * sizeof *fds);
  int count = 0, is_something = 0;
  if (fds) {
    fds[0] = (struct pollfd){.fd = comm->wake, .events = POLLIN};
    count = 1 + pith__comm_link_descriptors(comm, fds + 1, most - 1);
  }
  int must_poll = !fds; /* without memory we cannot know what to wait for */
  for (int t = 0; t < comm->transports; t++) {
    is_something |= comm->transport[t]->ops->sleep(comm->transport[t], 1);
    must_poll |= comm->transport[t]->ops->polls; /* no descriptor of it would wake us */
  }
  if (!is_something) {
    double share = comm->settings.timeout / 8; /* often enough to look at the time-out */
    long nap = must_poll ? POLLING_NAP_NS : (long)((share < SLEEP_MOST ? share : SLEEP_MOST) * 1e9);
    pthread_mutex_unlock(&comm->mutex);
    ppoll(fds, (nfds_t)count, &(struct timespec){0, nap}, NULL);
    pthread_mutex_lock(&comm->mutex);
  }
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->sleep(comm->transport[t], 0);
  }
  if (count > 0 && fds[0].revents) {
    clear_wake(comm);
  }
}

static int is_sending(const pith_comm *comm) {
  for (int i = 0; i < comm->link_count; i++) {
    if (comm->links[i]->out && comm->links[i]->linked) {
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
void pith__comm_let_gather(pith_comm *comm, uint64_t bytes) {
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
    clear_wake(comm);
  }
}

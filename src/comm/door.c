/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links that are made after the start, when a rank first sends something to another, and what else must be done while
 * no operation runs.
 *
 * A thread of its own waits at the door: for peers and strangers that connect, and for what our own calls bring. So
 * none of them keeps the driver waiting, and a rank that computes for long answers all the same. The thread takes the
 * comm's mutex for one step of what can be done at once. While nothing runs it looks after the links, too: in a group
 * whose ranks are not all linked, news of a failure reaches some of them through others only.
 *
 * Small groups, which are linked from the start, have no door.
 */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "comm/comm.h"

#define STRANGERS_MOST 128   /* descriptors of connections that are not links yet, beside those of the peers we ask */
#define TICK 0.1             /* seconds between two looks whether nothing runs */
#define TICK_ASKING 0.02     /* while a peer is asked for a link: calls are made again */
#define TICK_POLLING 0.005   /* for transports without descriptors */
#define TICK_IMPATIENT 0.001 /* both */
#define FLUSH_SECONDS 0.2    /* to tell others of a failure */
#define VAIN_MOST 4          /* looks at links that moved nothing, until the next waits for a tick */

static void wake_door(pith_comm *comm) {
  uint64_t one = 1;
  if (write(comm->door_wake, &one, sizeof one) < 0 && errno != EAGAIN) {
    PITH_LOG_WARN("cannot write an eventfd: %s", strerror(errno));
  }
}

void pith__link_ask(pith_link *link) {
  pith_comm *comm = link->comm;
  if (link->asked || link->linked || !link->transport || comm->failed != PITH_OK) {
    return;
  }
  link->asked = 1;
  comm->asking++;
  pith_status status = link->transport->ops->ask(link->transport, link->peer);
  if (status != PITH_OK) {
    pith__comm_fail(comm, status, "%s", pith_error());
    return;
  }
  pith__comm_note_linked(comm); /* threads of one process are linked at once */
  wake_door(comm);
}

void pith__comm_note_linked(pith_comm *comm) {
  int is_any = 0;
  for (int t = 0; t < comm->transports; t++) {
    pith_transport *transport = comm->transport[t];
    for (int peer; (peer = transport->ops->next_linked(transport)) >= 0;) {
      pith_link *link = pith__link_have(comm, peer);
      if (link) {
        pith__link_up(link);
      }
      is_any = 1;
    }
  }
  if (is_any) {
    pith__comm_wake(comm); /* a driver that sleeps does not know of it */
  }
}

/* ---- One step ---------------------------------------------------------------------------------------------------- */

static void attend(pith_comm *comm) {
  for (int t = 0; t < comm->transports && comm->failed == PITH_OK; t++) {
    pith_transport *transport = comm->transport[t];
    pith_status status = transport->is_open ? transport->ops->attend(transport) : PITH_OK;
    if (status != PITH_OK) {
      pith__comm_fail(comm, status, "%s (seen by rank %d)", pith_error(), comm->rank);
    }
  }
  if (comm->failed == PITH_OK) {
    pith__comm_note_linked(comm);
  }
}

static void wake_up(pith_comm *comm) {
  comm->watching = 0;
  for (int t = 0; t < comm->transports; t++) {
    comm->transport[t]->ops->sleep(comm->transport[t], 0);
  }
}

void pith__comm_leave_watch(pith_comm *comm) {
  wake_up(comm);
  wake_door(comm);
}

/* Takes a turn over the links, as a driver does, and gets ready to sleep on them. Returns whether there is more to do.
 * Early messages that no operation waits for may stay unread, and would wake us again and again: then we look at the
 * links once in a tick. *vain: looks in a row that moved nothing. */
static int watch_links(pith_comm *comm, int *vain) {
  int moved = 0, is_something = 0;
  for (int i = 0; i < comm->link_count && comm->failed == PITH_OK; i++) {
    moved |= pith__link_progress(comm->links[i]);
  }
  if (comm->failed == PITH_OK) {
    pith__comm_check_time(comm);
  }
  if (comm->failed != PITH_OK) {
    pith__comm_flush(comm, comm->failed_at + FLUSH_SECONDS);
    return 0;
  }
  *vain = moved ? 0 : *vain + 1;
  if (*vain > VAIN_MOST) {
    return 0;
  }
  comm->watching = 1;
  for (int t = 0; t < comm->transports; t++) {
    is_something |= comm->transport[t]->ops->sleep(comm->transport[t], 1);
  }
  if (moved || is_something) {
    wake_up(comm);
  }
  return moved || is_something;
}

static int is_idle(const pith_comm *comm) {
  return comm->failed == PITH_OK && !comm->driving && !comm->waiters && !pith__comm_has_work(comm);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

typedef struct door {
  pith_comm *comm;
  struct pollfd *fds;
  int most, count;
} door;

/* NULL: no memory. */
static struct pollfd *room_for(door *d, int most) {
  if (most > d->most) {
    struct pollfd *larger = realloc(d->fds, (size_t)most * sizeof *larger);
    if (!larger) {
      return NULL;
    }
    d->fds = larger;
    d->most = most;
  }
  return d->fds;
}

/* What ends the next sleep. Without memory it is the clock alone. */
static void collect(door *d) {
  pith_comm *comm = d->comm;
  d->count = 0;
  struct pollfd *fds = room_for(d, 1 + STRANGERS_MOST + 16 * comm->asking + pith__comm_descriptors_most(comm));
  if (!fds) {
    return;
  }
  fds[d->count++] = (struct pollfd){.fd = comm->door_wake, .events = POLLIN};
  for (int t = 0; t < comm->transports && comm->failed == PITH_OK; t++) {
    pith_transport *transport = comm->transport[t];
    if (transport->is_open && transport->ops->door) {
      d->count += transport->ops->door(transport, fds + d->count, d->most - d->count);
    }
  }
  if (comm->watching) {
    d->count += pith__comm_link_descriptors(comm, fds + d->count, d->most - d->count);
  }
}

static double tick_of(const pith_comm *comm) {
  int is_polling = 0;
  for (int t = 0; t < comm->transports; t++) {
    is_polling |= comm->transport[t]->is_open && !comm->transport[t]->ops->door;
  }
  return comm->failed != PITH_OK ? TICK
         : is_polling            ? (comm->asking ? TICK_IMPATIENT : TICK_POLLING)
         : comm->asking          ? TICK_ASKING
                                 : TICK;
}

static void *keep_door(void *argument) {
  door d = {.comm = argument};
  pith_comm *comm = d.comm;
  double tick = 0, looked = 0;
  unsigned drives = 0;
  int vain = 0;
  for (;;) {
    uint64_t rings;
    poll(d.fds, (nfds_t)d.count, (int)(tick * 1e3));
    pith__comm_lock(comm);
    if (comm->closing_door) {
      break;
    }
    if (read(comm->door_wake, &rings, sizeof rings) < 0 && errno != EAGAIN && errno != EINTR) {
      PITH_LOG_WARN("cannot read an eventfd: %s", strerror(errno));
    }
    double now = pith__now();
    int was_watching = comm->watching, is_more = 0;
    if (was_watching) {
      wake_up(comm);
    }
    attend(comm);
    int is_time = now - looked >= TICK && drives == comm->drives;
    vain = is_time ? 0 : vain;
    if (is_idle(comm) && (was_watching || is_time)) {
      is_more = watch_links(comm, &vain);
    }
    if (now - looked >= TICK) {
      looked = now;
      drives = comm->drives;
    }
    collect(&d);
    tick = is_more ? 0 : tick_of(comm);
    pthread_mutex_unlock(&comm->mutex);
  }
  pthread_mutex_unlock(&comm->mutex);
  free(d.fds);
  return NULL;
}

pith_status pith__comm_open_door(pith_comm *comm) {
  int is_open = 0;
  for (int t = 0; t < comm->transports; t++) {
    is_open |= comm->transport[t]->is_open;
  }
  if (!is_open) {
    return PITH_OK;
  }
  comm->door_wake = pith__fd_keep(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  PITH_REQUIRE(comm->door_wake >= 0, PITH_ERR_SYSTEM, "rank %d cannot open a descriptor to be asked for links: %s",
               comm->rank, strerror(errno));
  PITH_REQUIRE(pthread_create(&comm->door, NULL, keep_door, comm) == 0, PITH_ERR_SYSTEM,
               "rank %d cannot start the thread that makes links", comm->rank);
  comm->door_started = 1;
  return PITH_OK;
}

void pith__comm_close_door(pith_comm *comm) {
  if (comm->door_started) {
    pith__comm_lock(comm);
    comm->closing_door = 1;
    wake_door(comm);
    pthread_mutex_unlock(&comm->mutex);
    pthread_join(comm->door, NULL);
    comm->door_started = 0;
  }
  pith__fd_close(comm->door_wake);
  comm->door_wake = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How a comm fails: what was noticed anywhere ends all its operations, and what is noticed here is that peers let us
 * wait for too long, or that their hosts are gone. */
#include <stdarg.h>
#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"

int pith__comm_fail(pith_comm *comm, pith_status status, const char *format, ...) {
  if (comm->failed != PITH_OK) {
    return 0; /* the first reason is the one that counts */
  }
  va_list args;
  va_start(args, format);
  vsnprintf(comm->failure, sizeof comm->failure, format, args);
  va_end(args);
  comm->failed = status;
  comm->failed_at = pith__now();
  PITH_LOG_(comm->is_watch ? PITH_LOG_INFO_ : PITH_LOG_WARN_, "rank %d: %s: %s", comm->rank, pith_status_string(status),
            comm->failure);
  for (int i = 0; i < comm->link_count; i++) {
    pith__link_fail(comm->links[i], comm->failure);
  }
  for (pith_operation *op = comm->running; op; op = op->next) {
    if (!op->done) {
      op->status = status;
      op->done = 1;
    }
  }
  pith__comm_wake(comm);
  return 0;
}

/* ---- Time-outs: each peer that an operation waits for has its own clock ------------------------------------------ */

#define JOIN_SECONDS 5.0 /* for the error of a rank that cannot make its first links, beyond the time-out */

/* Seconds of waiting after which we tell the others that we are alive, again and again. */
static double patience(const pith_comm *comm) {
  return comm->settings.timeout / 4 < 1 ? comm->settings.timeout / 4 : 1;
}

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
  for (int i = 0; i < comm->link_count && used + 24 < size; i++) {
    pith_link *link = comm->links[i];
    if (waited_for(link, now) > comm->settings.timeout && !(silent && !is_silent(link, now))) {
      used += (size_t)snprintf(text + used, size - used, "%srank %d", used ? ", " : "", link->peer);
    }
  }
  return used;
}

/* ---- Hosts that are gone: known long before an operation's time-out, which may be half an hour ----------------- */

/* Looks this often within the time in which a host must answer, and ends a little before it. */
#define LOOKS 16

/* Fails if a peer's host has answered nothing for too long. A process that is stopped is none of this: its host
 * answers. */
static void check_hosts(pith_comm *comm, double now) {
  double liveness = comm->settings.liveness;
  if (now - comm->last_look < liveness / LOOKS) {
    return;
  }
  int is_late = now - comm->last_look > liveness / 2; /* or we were stopped ourselves: the time begins again */
  for (int i = 0; i < comm->link_count; i++) {
    pith_link *link = comm->links[i];
    const pith_transport_ops *ops = link->linked ? link->transport->ops : NULL;
    int is_unanswered = ops && ops->is_unanswered && !link->left && ops->is_unanswered(link->transport, link->peer);
    link->unanswered = !is_unanswered ? 0 : link->unanswered == 0 || is_late ? now : link->unanswered;
    if (is_unanswered && now - link->unanswered > liveness * (1 - 3.0 / LOOKS)) {
      pith__comm_fail(comm, PITH_ERR_PEER,
                      "rank %d is gone (seen by rank %d): its host has not answered for %.1f s (PITH_LIVENESS is %g s)",
                      link->peer, comm->rank, now - link->unanswered, liveness);
      return;
    }
  }
  comm->last_look = now;
}

/* ---- Time-outs, in all ------------------------------------------------------------------------------------------- */

/* Why a peer that lets us wait has no link with us yet, if that is known. */
static void name_trouble(const pith_comm *comm, char *text, size_t size) {
  *text = 0;
  for (int i = 0; i < comm->link_count && !*text; i++) {
    const pith_link *link = comm->links[i];
    if (link->asked && !link->linked && link->transport->ops->trouble && pith__link_is_awaited(link)) {
      char why[192];
      link->transport->ops->trouble(link->transport, link->peer, why, sizeof why);
      snprintf(text, size, "; rank %d has no connection with rank %d%s%s", comm->rank, link->peer, *why ? " " : "",
               why);
    }
  }
}

/* A peer that says that it waits, too, will tell us for whom: it gets a little longer. In a group whose ranks are not
 * all linked, one from which nothing has come may still make its first links, and will name who keeps it from that; and
 * one that waits may wait for such a rank. */
static double allowance(const pith_link *link, double now) {
  const pith_comm *comm = link->comm;
  int waits = !is_silent(link, now), is_sparse = comm->ranks > comm->settings.eager;
  return (waits ? 2 * patience(comm) : 0) + (is_sparse && (waits || !link->met) ? JOIN_SECONDS : 0);
}

/* One that we wait for and have no link with cannot say that it waits, too: then we make one. */
void pith__comm_check_time(pith_comm *comm) {
  double now = pith__now(), longest = 0, overdue = 0;
  check_hosts(comm, now);
  for (int i = 0; i < comm->link_count && comm->failed == PITH_OK; i++) {
    pith_link *link = comm->links[i];
    if (!link->linked && !link->asked && waited_for(link, now) > patience(comm) && pith__link_awaits_it(link)) {
      pith__link_ask(link);
    }
    double waited = waited_for(link, now), late = waited - allowance(link, now);
    longest = waited > longest ? waited : longest;
    overdue = late > overdue ? late : overdue;
  }
  if (comm->failed != PITH_OK) {
    return;
  }
  if (overdue > comm->settings.timeout) {
    char missing[256] = "", trouble[256];
    if (!name_missing(comm, 1, now, missing, sizeof missing)) {
      name_missing(comm, 0, now, missing, sizeof missing);
    }
    name_trouble(comm, trouble, sizeof trouble);
    pith__comm_fail(
        comm, PITH_ERR_TIMEOUT,
        "Timed out waiting %.1f s for %s without a sign of life, seen by rank %d (a timeout of %g s, set by %s)%s",
        longest, missing, comm->rank, comm->settings.timeout, comm->settings.timeout_from, trouble);
  } else if (longest > patience(comm) && now - comm->last_sign > patience(comm)) {
    comm->last_sign = now;
    for (int i = 0; i < comm->link_count; i++) {
      pith__link_sign(comm->links[i]);
    }
  }
}

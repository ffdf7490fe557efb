/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's answer to all clients of the rendezvous: the table of all records, or an error.
 *
 * The table of thousands of ranks is large, and goes to thousands. Rank 0 first sends every client the head of its
 * reply, so that all know that the table comes. Then it sends the table to some clients at a time, so that a slow
 * network is not flooded. Clients that take nothing for a while do not count among those: some more are served. A
 * client may be as slow as it likes, but not take nothing for longer than the time-out.
 */
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "transport/rank_list.h"
#include "transport/rendezvous_server.h"
#include "transport/sockets.h"

enum { SERVED_AT_ONCE = 16 }; /* clients that the table goes to: their buffers are about what a slow network keeps */

static const double stalled_seconds =
    0.5; /* without taking a byte, after which a client keeps no other from its turn */
static const double review_seconds = 0.05; /* between two looks for stalled clients */

/* ---- Reply and table --------------------------------------------------------------------------------------------- */

rendezvous_reply pith__rendezvous_make_reply(pith_status status, uint64_t job, const void *body, size_t size) {
  rendezvous_reply reply = {.head = pith__rendezvous_head(0), .status = (uint32_t)status, .job = job, .size = size};
  pith__rendezvous_digest(body, size, reply.digest);
  return reply;
}

void pith__rendezvous_prove_reply(const rendezvous_server *s, rendezvous_connection *c, const rendezvous_reply *reply) {
  c->reply = *reply;
  pith__rendezvous_prove(s->r, RENDEZVOUS_ROLE_REPLY, c->hello.nonce, &c->reply, offsetof(rendezvous_reply, proof),
                         c->reply.proof);
}

static pith_status make_table(const rendezvous_server *s, const void *mine, size_t size, uint8_t **table,
                              size_t *table_size) {
  int ranks = s->r->ranks;
  size_t head = (size_t)ranks * sizeof(uint32_t), total = head + size;
  const rendezvous_connection **of = calloc((size_t)ranks, sizeof *of); /* the connection of each rank */
  for (int i = 0; of && i < s->most; i++) {
    const rendezvous_connection *c = &s->connections[i];
    if (c->fd >= 0 && c->rank > 0) {
      of[c->rank] = c;
      total += c->hello.size;
    }
  }
  uint8_t *made = of ? malloc(total) : NULL;
  if (!made) {
    free(of);
    return pith_fail(PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", ranks);
  }
  uint8_t *to = made + head;
  for (int p = 0; p < ranks; p++) {
    const void *record = p == 0 ? mine : of[p] ? of[p]->record : NULL;
    uint32_t bytes = (uint32_t)(p == 0 ? size : of[p] ? of[p]->hello.size : 0);
    memcpy(made + (size_t)p * sizeof bytes, &bytes, sizeof bytes);
    if (bytes) {
      memcpy(to, record, bytes);
    }
    to += bytes;
  }
  free(of);
  *table = made;
  *table_size = total;
  return PITH_OK;
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

/* The answer, and how far it has gone. */
typedef struct answer {
  const void *body;
  size_t size;
  int next;   /* the first connection that is not served yet */
  int active; /* clients that are being served and take bytes */
  int left;   /* clients that do not have all of it */
} answer;

static size_t whole_of(const answer *a) { return sizeof(rendezvous_reply) + a->size; }

/* A client has all of the answer, or is lost. If it is lost, `error` says why, and the error names its rank. */
static void finish_client(rendezvous_server *s, answer *a, rendezvous_connection *c, int error) {
  a->left--;
  a->active -= a->active > 0;
  if (error && c->rank >= 0 && s->status == PITH_OK) {
    s->status = error == ETIMEDOUT ? PITH_ERR_TIMEOUT : PITH_ERR_PEER;
    s->lack = error;
  }
  if (error && c->rank >= 0) {
    s->missing[c->rank] = 1;
  }
  epoll_ctl(s->watch, EPOLL_CTL_DEL, c->fd, NULL);
  c->deadline = 0;
  c->moved = whole_of(a);
}

/* Sends as much as the client takes now. */
static void serve(rendezvous_server *s, answer *a, rendezvous_connection *c, double patience) {
  struct iovec whole[2] = {{&c->reply, sizeof c->reply}, {(void *)a->body, a->size}}, rest[2];
  int count = pith__pieces_slice(whole, 2, c->moved, SIZE_MAX, rest, 2);
  ssize_t taken = count ? pith__socket_write(c->fd, rest, count) : 0;
  if (taken < 0) {
    finish_client(s, a, c, errno);
    return;
  }
  c->moved += (size_t)taken;
  c->deadline = taken > 0 ? pith__now() + patience : c->deadline;
  if (c->moved == whole_of(a)) {
    finish_client(s, a, c, 0);
  }
}

static int is_waiting(const answer *a, const rendezvous_connection *c) {
  return c->fd >= 0 && c->has_hello && c->moved < whole_of(a);
}

/* Sends every client the head of its reply: then it waits for its turn. A short message always has room. */
static void announce(rendezvous_server *s, answer *a, const rendezvous_reply *reply) {
  for (int i = 0; i < s->most; i++) {
    rendezvous_connection *c = &s->connections[i];
    if (c->fd < 0 || !c->has_hello) {
      continue;
    }
    pith__rendezvous_prove_reply(s, c, reply);
    struct iovec piece = {&c->reply, sizeof c->reply};
    ssize_t taken = pith__socket_write(c->fd, &piece, 1);
    c->moved = taken > 0 ? (size_t)taken : 0; /* an error comes again when it is served */
    a->left++;
  }
}

static void begin_more(rendezvous_server *s, answer *a, double patience) {
  for (; a->next < s->most && a->active < SERVED_AT_ONCE; a->next++) {
    rendezvous_connection *c = &s->connections[a->next];
    if (c->fd < 0 || !c->has_hello) {
      continue;
    }
    a->active++;
    c->deadline = pith__now() + patience;
    pith__rendezvous_watch(s, EPOLL_CTL_MOD, c->fd, a->next, EPOLLOUT);
    serve(s, a, c, patience);
  }
}

/* Counts the clients that take bytes, and gives up those that have taken none for too long. */
static void review(rendezvous_server *s, answer *a, double patience) {
  double now = pith__now();
  int moving = 0;
  for (int i = 0; i < a->next; i++) {
    rendezvous_connection *c = &s->connections[i];
    if (!is_waiting(a, c)) {
      continue;
    }
    if (now >= c->deadline) {
      finish_client(s, a, c, ETIMEDOUT);
    } else {
      moving += now - (c->deadline - patience) < stalled_seconds;
    }
  }
  a->active = moving;
}

/* Serves some clients at a time. One that does not read does not make others wait: it counts only while it takes bytes.
 */
static void answer_all(rendezvous_server *s, const rendezvous_reply *reply, const void *body, double patience) {
  struct epoll_event events[RENDEZVOUS_EVENTS_MOST];
  answer a = {.body = body, .size = reply->size};
  double reviewed = pith__now();
  announce(s, &a, reply);
  while (a.left > 0) {
    begin_more(s, &a, patience);
    int count = a.left > 0 ? pith__rendezvous_events(s, events, pith__now() + review_seconds) : 0;
    for (int i = 0; i < count; i++) {
      rendezvous_connection *c = &s->connections[events[i].data.fd];
      if (is_waiting(&a, c)) {
        serve(s, &a, c, patience);
      }
    }
    if (pith__now() - reviewed >= review_seconds) {
      review(s, &a, patience);
      reviewed = pith__now();
    }
    if (pith__interrupt_ask(&s->r->interrupt)) {
      s->status = PITH_ERR_INTERRUPTED;
      return;
    }
  }
}

/* After the table was sent: whether all clients have it. */
static pith_status check_answered(rendezvous_server *s) {
  char list[PITH_RANK_LIST_TEXT];
  if (s->status == PITH_OK) {
    return PITH_OK;
  }
  if (s->status == PITH_ERR_INTERRUPTED) {
    return pith__rendezvous_interrupted(s->r);
  }
  pith__rank_list(s->missing, s->r->ranks, list);
  return s->status == PITH_ERR_TIMEOUT
             ? pith_fail(PITH_ERR_TIMEOUT, "%s came, but took nothing of the addresses of all ranks for %g s", list,
                         s->r->timeout)
             : pith_fail(PITH_ERR_PEER, "%s came, but left before it had the addresses of all ranks: %s", list,
                         strerror(s->lack));
}

pith_status pith__rendezvous_answer_table(rendezvous_server *s, const void *mine, size_t size, pith_records *all,
                                          uint64_t *job) {
  uint8_t *table = NULL;
  size_t table_size = 0;
  uint64_t number = 0;
  PITH_TRY(pith__random_bytes(&number, sizeof number));
  PITH_TRY(make_table(s, mine, size, &table, &table_size));
  rendezvous_reply reply = pith__rendezvous_make_reply(PITH_OK, number, table, table_size);
  answer_all(s, &reply, table, s->r->timeout);
  pith_status status =
      s->status != PITH_ERR_INTERRUPTED ? pith__table_read(table, table_size, s->r->ranks, all) : PITH_OK;
  free(table);
  PITH_TRY(status);
  *job = number;
  return check_answered(s);
}
void pith__rendezvous_answer_error(rendezvous_server *s, pith_status status, double patience) {
  rendezvous_reply reply = pith__rendezvous_make_reply(status, 0, s->text, strlen(s->text));
  answer_all(s, &reply, s->text, patience);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Rank 0's side of the rendezvous: one thread, one epoll loop, and no wait for a single client. Rank 0 greets whoever
 * connects, and gives it a few seconds to send its hello. It drops a connection that stays silent or sends nonsense.
 * When too many connections are open, it drops the one that has been silent longest. Clients with a hello wait until
 * all ranks have come; then all get the same answer (rendezvous_answer.c). After a disagreement rank 0 accepts
 * connections for a moment longer, so that the other ranks hear of it too.
 */
#include "transport/rendezvous_server.h"

#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rank_list.h"
#include "transport/sockets.h"

enum {
  STRANGERS_MOST = 64, /* connections at once, beside those of the ranks */
  LISTENER = -1,       /* in place of a connection's number */
};

/* Bytes for one client that the system buffers, or twice as many. With thousands of clients its own choice would be
 * gigabytes, and rank 0 would not notice a client that takes nothing. */
static const int send_buffer = 16 << 10;

static const double hello_seconds = 5;         /* for a connection to send its hello */
static const double crowded_seconds = 1;       /* the same, while others wait for a descriptor */
static const double gather_seconds = 2;        /* after a disagreement, for the other ranks to hear of it */
static const double lack_seconds = 1;          /* without a descriptor for a rank */
static const double error_seconds = 5;         /* for clients to take an error */
static const double interrupted_seconds = 0.2; /* the same, when rank 0 was interrupted */
static const double check_seconds = 0.05;      /* between two looks for silent connections */

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

int pith__rendezvous_watch(const rendezvous_server *s, int how, int fd, int number, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = number};
  return epoll_ctl(s->watch, how, fd, &event);
}

int pith__rendezvous_events(const rendezvous_server *s, struct epoll_event events[RENDEZVOUS_EVENTS_MOST],
                            double until) {
  double slice = pith__now() + PITH_INTERRUPT_SECONDS,
         end = pith__interrupt_is_possible(&s->r->interrupt) && slice < until ? slice : until;
  double left = end - pith__now();
  int ms = left <= 0 ? 0 : left > 3600 ? 3600000 : (int)(left * 1000) + 1;
  int count = epoll_wait(s->watch, events, RENDEZVOUS_EVENTS_MOST, ms);
  return count < 0 ? 0 : count;
}

/* ---- Connections ------------------------------------------------------------------------------------------------- */

/* An address is bound as it is. A name may mean another address here than elsewhere (Debian gives a machine's own name
 * 127.0.1.1), and an address may be that of a router before us: then all addresses are bound. */
static int bind_listener(const pith_rendezvous *r) {
  pith_sockaddr at;
  const char *name = strcmp(r->host, "localhost") == 0 ? "127.0.0.1" : r->host;
  if (pith__sockaddr_parse(name, r->port, &at)) {
    int fd = pith__socket_listen(&at);
    if (fd >= 0 || errno != EADDRNOTAVAIL) {
      return fd;
    }
  }
  at = pith__sockaddr_everywhere(r->port);
  return pith__socket_listen(&at);
}

static pith_status open_listener(rendezvous_server *s) {
  s->listener = s->listener >= 0 ? s->listener : bind_listener(s->r);
  if (s->listener >= 0) {
    PITH_REQUIRE(pith__rendezvous_watch(s, EPOLL_CTL_ADD, s->listener, LISTENER, EPOLLIN) == 0, PITH_ERR_SYSTEM,
                 "rank 0 cannot watch its port: %s", strerror(errno));
    return PITH_OK;
  }
  const char *hint =
      errno == EADDRINUSE ? "; another job, or a framework's own store, may have it: take another MASTER_PORT" : "";
  return pith_fail(PITH_ERR_SYSTEM, "rank 0 cannot listen on port %u of %s: %s%s", s->r->port, s->r->host,
                   strerror(errno), hint);
}

static void close_listener(rendezvous_server *s) {
  if (s->listener >= 0) {
    pith__fd_close(s->listener);
  }
  s->listener = -1;
}

static void drop(rendezvous_server *s, rendezvous_connection *c) {
  if (c->has_hello) {
    s->hello_count--;
    if (c->rank >= 0) {
      s->missing[c->rank] = 1;
      s->missing_count++;
    }
  }
  pith__socket_close(c->fd); /* which also ends watching it */
  free(c->record);
  *c = (rendezvous_connection){.fd = -1, .rank = -1};
  s->free_slots[s->free_count++] = (int)(c - s->connections);
}

/* The connection that has been silent longest; NULL: none is silent. */
static rendezvous_connection *find_oldest(rendezvous_server *s) {
  rendezvous_connection *oldest = NULL;
  for (int i = 0; i < s->most; i++) {
    rendezvous_connection *c = &s->connections[i];
    if (c->fd >= 0 && !c->has_hello && (!oldest || c->deadline < oldest->deadline)) {
      oldest = c;
    }
  }
  return oldest;
}

static void greet(rendezvous_server *s, int fd) {
  rendezvous_connection *oldest = s->free_count == 0 ? find_oldest(s) : NULL;
  if (oldest) {
    drop(s, oldest);
  }
  if (s->free_count == 0) {
    pith__fd_close(fd);
    return;
  }
  int number = s->free_slots[--s->free_count];
  rendezvous_connection *c = &s->connections[number];
  *c = (rendezvous_connection){.fd = fd, .rank = -1, .deadline = pith__now() + hello_seconds};
  pith__socket_tune(fd, RENDEZVOUS_LIVENESS);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  rendezvous_greeting greeting = {.head = pith__rendezvous_head(0)};
  struct iovec piece = {&greeting, sizeof greeting};
  int is_random = pith__random_bytes(c->nonce, sizeof c->nonce) == PITH_OK;
  memcpy(greeting.nonce, c->nonce, sizeof c->nonce);
  if (!is_random || pith__socket_write(fd, &piece, 1) != (ssize_t)sizeof greeting ||
      pith__rendezvous_watch(s, EPOLL_CTL_ADD, fd, number, EPOLLIN) != 0) {
    drop(s, c);
  }
}

/* A rank whose connection could not be accepted tries again. Silent strangers are dropped to make room. Where all
 * connections are those of ranks, only this process itself can free a descriptor; if it does not do so soon, the
 * rendezvous fails. */
static void note_lack(rendezvous_server *s, int error) {
  s->lacks_since = s->lack ? s->lacks_since : pith__now();
  s->lack = error;
  if (error != EMFILE && error != ENFILE) {
    return;
  }
  rendezvous_connection *oldest = find_oldest(s);
  if (oldest && pith__now() > oldest->deadline - hello_seconds + crowded_seconds) {
    drop(s, oldest);
  } else if (!oldest && s->status == PITH_OK && pith__now() > s->lacks_since + lack_seconds) {
    s->status = PITH_ERR_SYSTEM;
    snprintf(s->text, sizeof s->text,
             "rank 0 cannot accept more than %d of the %d connections it needs: %s (ulimit -n says how many files a "
             "process may open)",
             s->hello_count, s->r->ranks - 1, strerror(error));
  }
}

static void accept_all(rendezvous_server *s) {
  int fd;
  while ((fd = pith__socket_accept(s->listener)) >= 0) {
    s->lack = 0;
    greet(s, fd);
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    note_lack(s, errno);
    poll(NULL, 0, 10); /* no busy loop */
  }
}

/* ---- Hellos ------------------------------------------------------------------------------------------------------ */

typedef enum verdict { VERDICT_MORE, VERDICT_DONE, VERDICT_DROP } verdict;

static void accept_hello(rendezvous_server *s, rendezvous_connection *c) {
  c->has_hello = 1;
  s->hello_count++;
}
/* Ends the whole rendezvous: all clients get this error. The first one counts. */
__attribute__((format(printf, 3, 4))) static verdict disagree(rendezvous_server *s, rendezvous_connection *c,
                                                              const char *format, ...) {
  accept_hello(s, c);
  if (s->status == PITH_OK) {
    va_list args;
    va_start(args, format);
    vsnprintf(s->text, sizeof s->text, format, args);
    va_end(args);
    s->status = PITH_ERR_MISMATCH;
    double soon = pith__now() + gather_seconds;
    s->deadline = soon < s->deadline ? soon : s->deadline;
  }
  return VERDICT_DONE;
}

/* A connection that does not prove to belong to the job cannot stop it. It is told why, as far as it listens. */
static verdict reject(rendezvous_server *s, rendezvous_connection *c, const char *why) {
  snprintf(s->rejected, sizeof s->rejected, "; one that says it is rank %u was rejected: %s", c->hello.head.rank, why);
  PITH_LOG_WARN("rendezvous%s", s->rejected);
  rendezvous_reply reply = pith__rendezvous_make_reply(PITH_ERR_MISMATCH, 0, why, strlen(why));
  pith__rendezvous_prove_reply(s, c, &reply);
  struct iovec pieces[2] = {{&c->reply, sizeof c->reply}, {(void *)why, strlen(why)}};
  pith__socket_write(c->fd, pieces, 2);
  return VERDICT_DROP;
}

/* Builds that differ cannot even check a secret, so with one they are only rejected. */
static verdict refuse_build(rendezvous_server *s, rendezvous_connection *c, const char *what) {
  return pith__rendezvous_has_secret(s->r) ? reject(s, c, what) : disagree(s, c, "%s", what);
}

static verdict check_build(rendezvous_server *s, rendezvous_connection *c) {
  rendezvous_head *head = &c->hello.head;
  char text[128];
  if (memcmp(head->magic, RENDEZVOUS_MAGIC, sizeof head->magic) != 0) {
    return VERDICT_DROP;
  }
  if (head->order != RENDEZVOUS_ORDER) {
    snprintf(text, sizeof text, "rank %u has another byte order than rank 0", __builtin_bswap32(head->rank));
    return refuse_build(s, c, text);
  }
  if (strncmp(head->version, pith_version(), sizeof head->version) != 0) {
    snprintf(text, sizeof text, "rank %u runs Pith %.16s, rank 0 runs %s", head->rank, head->version, pith_version());
    return refuse_build(s, c, text);
  }
  return VERDICT_MORE;
}

static verdict check_proof(rendezvous_server *s, rendezvous_connection *c) {
  uint8_t proof[PITH_SHA256_SIZE];
  if (c->hello.has_secret && !pith__rendezvous_has_secret(s->r)) {
    return reject(s, c, "it has a secret and rank 0 has none (PITH_SECRET)");
  }
  pith__rendezvous_prove(s->r, RENDEZVOUS_ROLE_HELLO, c->nonce, &c->hello, offsetof(rendezvous_hello, proof), proof);
  if (!pith__digest_equal(proof, c->hello.proof)) {
    return reject(s, c, "it does not have rank 0's secret (PITH_SECRET)");
  }
  return VERDICT_MORE;
}

static verdict check_expectations(rendezvous_server *s, rendezvous_connection *c) {
  const rendezvous_hello *hello = &c->hello;
  if (hello->ranks != (uint32_t)s->r->ranks) {
    s->expected = INT_MAX;
    return disagree(s, c, "rank %u expects %u ranks, rank 0 has %d", hello->head.rank, hello->ranks, s->r->ranks);
  }
  if (hello->head.rank >= hello->ranks) {
    return disagree(s, c, "one process says it is rank %u of %u", hello->head.rank, hello->ranks);
  }
  if (hello->size > PITH_RECORD_MOST) {
    return disagree(s, c, "rank %u brings %llu bytes, more than %d", hello->head.rank, (unsigned long long)hello->size,
                    PITH_RECORD_MOST);
  }
  return VERDICT_MORE;
}

static verdict check_hello(rendezvous_server *s, rendezvous_connection *c) {
  verdict (*const checks[])(rendezvous_server *, rendezvous_connection *) = {check_build, check_proof,
                                                                             check_expectations};
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    verdict v = checks[i](s, c);
    if (v != VERDICT_MORE) {
      return v;
    }
  }
  return VERDICT_MORE;
}

/* Drops the connection of a rank if it is over: the rank may connect again. */
static void drop_dead(rendezvous_server *s, int rank) {
  for (int i = 0; i < s->most && !s->missing[rank]; i++) {
    rendezvous_connection *c = &s->connections[i];
    if (c->rank == rank && c->has_hello && pith__socket_is_over(c->fd)) {
      drop(s, c);
    }
  }
}

static verdict register_rank(rendezvous_server *s, rendezvous_connection *c) {
  uint8_t digest[PITH_SHA256_SIZE];
  int rank = (int)c->hello.head.rank;
  pith__rendezvous_digest(c->record, c->hello.size, digest);
  if (!pith__digest_equal(digest, c->hello.digest)) {
    return VERDICT_DROP;
  }
  drop_dead(s, rank);
  if (!s->missing[rank]) {
    return disagree(s, c, "two processes say they are rank %d", rank);
  }
  s->missing[rank] = 0;
  s->missing_count--;
  c->rank = rank;
  accept_hello(s, c);
  return VERDICT_DONE;
}

/* The hello is complete: checks it, and allocates memory for the record that follows. */
static verdict take_hello(rendezvous_server *s, rendezvous_connection *c) {
  verdict v = check_hello(s, c);
  if (v == VERDICT_MORE) {
    c->record = malloc(c->hello.size + 1);
    v = c->record ? VERDICT_MORE : VERDICT_DROP;
  }
  return v;
}

/* Reads what has come of the hello and its record. */
static verdict read_hello(rendezvous_server *s, rendezvous_connection *c) {
  size_t head = sizeof c->hello;
  while (c->moved < head) {
    ssize_t got = pith__socket_read(c->fd, (uint8_t *)&c->hello + c->moved, head - c->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DROP : VERDICT_MORE;
    }
    c->moved += (size_t)got;
    verdict v = c->moved == head ? take_hello(s, c) : VERDICT_MORE;
    if (v != VERDICT_MORE) {
      return v;
    }
  }
  while (c->moved < head + c->hello.size) {
    ssize_t got = pith__socket_read(c->fd, c->record + (c->moved - head), head + c->hello.size - c->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DROP : VERDICT_MORE;
    }
    c->moved += (size_t)got;
  }
  return register_rank(s, c);
}

/* After the hello only the end of the connection is of interest, even if more bytes came. */
static void handle_event(rendezvous_server *s, rendezvous_connection *c) {
  if (c->fd < 0) {
    return; /* dropped by an event before this one */
  }
  verdict v = c->has_hello ? VERDICT_DROP : read_hello(s, c);
  if (v == VERDICT_DONE) {
    pith__rendezvous_watch(s, EPOLL_CTL_MOD, c->fd, (int)(c - s->connections), EPOLLRDHUP);
  } else if (v == VERDICT_DROP) {
    drop(s, c);
  }
}

/* Every check_seconds: drops connections whose hello did not come in time. */
static void drop_silent(rendezvous_server *s, double now) {
  if (now < s->next_check) {
    return;
  }
  s->next_check = now + check_seconds;
  for (int i = 0; i < s->most; i++) {
    rendezvous_connection *c = &s->connections[i];
    if (c->fd >= 0 && !c->has_hello && now > c->deadline) {
      drop(s, c);
    }
  }
}

/* ---- Gathering --------------------------------------------------------------------------------------------------- */

/* Whether no hello can come any more that matters: all have come, though they may disagree, or rank 0 has failed. */
static int has_every_hello(const rendezvous_server *s) {
  return s->status == PITH_ERR_SYSTEM || (s->status != PITH_OK && s->hello_count >= s->expected);
}

/* PITH_ERR_INTERRUPTED, or PITH_OK; then s->status and s->missing say how it went. */
static pith_status gather_hellos(rendezvous_server *s) {
  struct epoll_event events[RENDEZVOUS_EVENTS_MOST];
  while (s->missing_count > 0 && !has_every_hello(s) && pith__now() < s->deadline) {
    int connected = s->most - s->free_count, silent = connected - s->hello_count;
    double next = silent > 0 ? pith__now() + check_seconds : s->deadline;
    int count = pith__rendezvous_events(s, events, next < s->deadline ? next : s->deadline), is_pending = 0;
    if (pith__interrupt_ask(&s->r->interrupt)) {
      return PITH_ERR_INTERRUPTED;
    }
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == LISTENER) {
        is_pending = 1;
      } else {
        handle_event(s, &s->connections[events[i].data.fd]);
      }
    }
    if (silent > 0) {
      drop_silent(s, pith__now());
    }
    if (is_pending) { /* last: no new connection may take a slot that became free above and has an event left */
      accept_all(s);
    }
  }
  return PITH_OK;
}

static void name_missing(rendezvous_server *s) {
  char list[PITH_RANK_LIST_TEXT], lack[160] = "";
  if (s->status == PITH_OK && s->missing_count > 0) {
    s->status = PITH_ERR_TIMEOUT;
    if (s->lack) {
      snprintf(lack, sizeof lack, "; rank 0 could not accept all connections: %s", strerror(s->lack));
    }
    snprintf(s->text, sizeof s->text, "%s did not come to rank 0 at %s:%u within %g s%s%s",
             pith__rank_list(s->missing, s->r->ranks, list), s->r->host, s->r->port, s->r->timeout, lack, s->rejected);
  }
}

static pith_status answer_clients(rendezvous_server *s, const void *mine, size_t size, pith_records *all,
                                  uint64_t *job) {
  name_missing(s);
  close_listener(s); /* before the answers: a client that has its own may connect at once for the next rendezvous */
  if (s->status == PITH_OK) {
    return pith__rendezvous_answer_table(s, mine, size, all, job);
  }
  pith_status status = s->status;
  pith__rendezvous_answer_error(s, status, error_seconds);
  return pith_fail(status, "%s", s->text);
}

/* Rank 0 leaves: the others should not try to reach it until their time-out. */
static pith_status answer_interrupted(rendezvous_server *s) {
  snprintf(s->text, sizeof s->text, "rank 0 was interrupted while it waited for the other ranks");
  s->status = PITH_ERR_PEER;
  close_listener(s);
  pith__rendezvous_answer_error(s, PITH_ERR_PEER, interrupted_seconds);
  return pith__rendezvous_interrupted(s->r);
}

/* ---- The whole --------------------------------------------------------------------------------------------------- */

static pith_status prepare(rendezvous_server *s) {
  size_t most = (size_t)s->most;
  s->connections = calloc(most, sizeof *s->connections);
  s->free_slots = calloc(most, sizeof *s->free_slots);
  s->missing = malloc((size_t)s->r->ranks);
  for (int i = 0; s->connections && i < s->most; i++) {
    s->connections[i].fd = -1;
  }
  PITH_REQUIRE(s->connections && s->free_slots && s->missing, PITH_ERR_MEMORY, "no memory for %d connections", s->most);
  for (int i = s->most - 1; i >= 0; i--) {
    s->free_slots[s->free_count++] = i;
  }
  memset(s->missing, 1, (size_t)s->r->ranks);
  s->missing[0] = 0;
  pith__descriptors_reserve(s->most);
  s->watch = pith__fd_keep(epoll_create1(EPOLL_CLOEXEC));
  PITH_REQUIRE(s->watch >= 0, PITH_ERR_SYSTEM, "rank 0 cannot watch connections: %s", strerror(errno));
  return open_listener(s);
}

static void clear_up(rendezvous_server *s) {
  for (int i = 0; s->connections && i < s->most; i++) {
    if (s->connections[i].fd >= 0) {
      drop(s, &s->connections[i]);
    }
  }
  close_listener(s);
  pith__fd_close(s->watch);
  free(s->connections);
  free(s->free_slots);
  free(s->missing);
}

pith_status pith__rendezvous_serve(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                   uint64_t *job) {
  rendezvous_server s = {.r = r,
                         .listener = r->listener > 0 ? r->listener : -1,
                         .watch = -1,
                         .deadline = pith__now() + r->timeout,
                         .missing_count = r->ranks - 1,
                         .expected = r->ranks - 1,
                         .most = r->ranks + STRANGERS_MOST};
  pith_status status = prepare(&s);
  if (status == PITH_OK) {
    status = gather_hellos(&s);
    status = status == PITH_OK ? answer_clients(&s, mine, size, all, job) : answer_interrupted(&s);
  }
  clear_up(&s);
  return status;
}

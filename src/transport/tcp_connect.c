/*
 * Making the links. Of each pair the higher rank calls and the lower one answers. Where links are encrypted, a
 * connection begins with the handshake of TLS. Then, inside it or in clear, come three messages (tcp.h). Only after the
 * third it counts for the listener: a caller with several addresses to try may have given up on the connection, and
 * only now it has proven to be of the job. Who says anything else is dropped; who says nothing is dropped after a
 * while, or when others need its place. All of it is one poll loop over calls (ours) and arrivals (theirs), so a slow
 * or hostile one keeps nobody waiting.
 */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rank_list.h"
#include "transport/tcp.h"

enum { STRANGERS_MOST = 64 }; /* among the arrivals, beside the peers */

static const double hello_seconds = 5;   /* for an arrival to say hello */
static const double address_seconds = 3; /* for a call, if there is another address to try */
static const double first_pause = 0.005, longest_pause = 0.5;

/* The time that is left when a link breaks that stood already: others will give up, too. It may be that of a rank which
 * had all its links and has left since, so the others get some time to come. */
static const double broken_seconds = 2;

/* ---- State ------------------------------------------------------------------------------------------------------- */

/* Both hellos of a connection. */
typedef struct tcp_hellos {
  tcp_hello caller, listener;
} tcp_hellos;

/* One connection to a lower rank. fd -1: waits for `time` to call; else the call is given up at `time`. */
typedef struct call {
  tcp_connection to;
  int peer, index, address;
  int is_put_through, is_open, is_done; /* is_open: our hello went out */
  int refusals;                         /* of TLS, one after another */
  double time, pause;
  size_t got;
  tcp_hellos said;
  tcp_answer answer;
} call;

/* A connection from somebody. */
typedef struct arrival {
  tcp_connection from;
  int is_secure;   /* the handshake of TLS is over, or there is none */
  int is_answered; /* it said a right hello; now it must prove it */
  double deadline; /* for what is next */
  size_t got;      /* bytes of the hello, then of the proof */
  tcp_hellos said;
  uint8_t proof[PITH_SHA256_SIZE];
} arrival;

typedef struct meeting {
  pith_tcp *tcp;
  const pith_link_key *key;
  const uint8_t *wanted;
  tcp_place *places; /* of every rank */
  call *calls;
  int call_count;
  arrival *arrivals;
  int arrival_count, arrival_most;
  int missing; /* connections that do not stand yet */
  struct pollfd *fds;
  double start, deadline;
  int is_broken;       /* a link that stood is over */
  int lack;            /* what this process itself lacked when it last tried, as an errno: descriptors or memory */
  pith_status refused; /* not PITH_OK: TLS with a peer failed for good, and there is a message */
  char trouble[TCP_TROUBLE]; /* why TLS with somebody failed last; "": it did not */
} meeting;

static tcp_hello make_hello(const pith_tcp *tcp, uint32_t rank, uint32_t index, uint64_t token) {
  tcp_hello h = {.version = TCP_HELLO_VERSION,
                 .order = TCP_HELLO_ORDER,
                 .ranks = (uint32_t)tcp->ranks,
                 .rank = rank,
                 .index = index,
                 .token = token};
  memcpy(h.magic, TCP_HELLO_MAGIC, sizeof h.magic);
  return h;
}

/* With TLS, a proof is also about this very session. */
static int prove(const meeting *m, const tcp_connection *c, const tcp_hellos *said, const char *role,
                 uint8_t proof[PITH_SHA256_SIZE]) {
  uint8_t binding[PITH_TLS_BINDING_SIZE];
  if (c->tls && !c->tls->ops->binding(c->tls, binding)) {
    return 0;
  }
  pith__link_key_prove(m->key, role, said, sizeof *said, binding, c->tls ? sizeof binding : 0, proof);
  return 1;
}

static int is_proven(const meeting *m, const tcp_connection *c, const tcp_hellos *said, const char *role,
                     const uint8_t given[PITH_SHA256_SIZE]) {
  uint8_t proof[PITH_SHA256_SIZE];
  return prove(m, c, said, role, proof) && pith__digest_equal(proof, given);
}

static int write_whole(tcp_connection *c, const void *data, size_t size) {
  struct iovec piece = {(void *)data, size};
  return pith__connection_write(c, &piece, 1) == (ssize_t)size; /* a new connection has room for a hello */
}

/* As tls->ops->shake_hands, on a connection whose session may have to be started first. */
static int shake_hands(meeting *m, tcp_connection *c, int is_caller) {
  pith_tls *tls = m->tcp->tls;
  if (!tls) {
    return 1;
  }
  c->tls = c->tls ? c->tls : tls->ops->start(tls, c->fd, is_caller);
  if (!c->tls) {
    m->lack = ENOMEM;
    return -1;
  }
  return c->tls->ops->shake_hands(c->tls);
}

/* Whether TLS on a connection that is over ended because one of us refuses the other; if so, the reason is kept. */
static int note_refusal(meeting *m, const tcp_connection *c) {
  if (!c->tls || !c->tls->ops->is_refused(c->tls)) {
    return 0;
  }
  snprintf(m->trouble, sizeof m->trouble, "%s", c->tls->ops->trouble(c->tls));
  return 1;
}

/* Whatever their random numbers are. */
static int same_hello(const tcp_hello *a, const tcp_hello *b) { return memcmp(a, b, offsetof(tcp_hello, nonce)) == 0; }

/* The connection is the peer's now. */
static void establish(meeting *m, int peer, int index, tcp_connection *c) {
  pith__socket_tune(c->fd, m->tcp->liveness);
  m->tcp->peers[peer].connection[index] = *c;
  *c = (tcp_connection){.fd = -1};
  m->missing--;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Another machine may be at one of several addresses. Who refuses us at all of them again and again will not change its
 * mind: better an error now than at the end of the time. */
static void give_up(meeting *m, call *c) {
  if (note_refusal(m, &c->to) && ++c->refusals > m->places[c->peer].count) {
    m->refused = pith_fail(PITH_ERR_PEER, "rank %d cannot make an encrypted connection with rank %d: %s", m->tcp->rank,
                           c->peer, m->trouble);
  }
  pith__connection_drop(&c->to);
  c->is_put_through = c->is_open = 0;
  c->address = (c->address + 1) % m->places[c->peer].count;
  c->time = pith__now() + c->pause;
  c->pause = 2 * c->pause < longest_pause ? 2 * c->pause : longest_pause;
}

/* Of the errors of a new socket, those that no network explains. */
static void note_lack(meeting *m) {
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    m->lack = errno;
  }
}

static void dial(meeting *m, call *c) {
  const tcp_place *place = &m->places[c->peer];
  c->to.fd = pith__socket_connect(&place->at[c->address]);
  c->got = 0;
  if (c->to.fd < 0) {
    note_lack(m);
    give_up(m, c);
    return;
  }
  c->time = place->count > 1 ? pith__now() + address_seconds : m->deadline;
}

/* The call was put through, or not. */
static int is_put_through(meeting *m, call *c) {
  int error = c->is_put_through ? 0 : pith__socket_connect_result(c->to.fd);
  if (error) {
    char text[PITH_SOCKADDR_TEXT];
    PITH_LOG_TRACE("tcp: rank %d at %s: %s", c->peer, pith__sockaddr_text(&m->places[c->peer].at[c->address], text),
                   strerror(error));
    give_up(m, c);
  }
  c->is_put_through = !error;
  return !error;
}

static void say_hello(meeting *m, call *c) {
  tcp_hello *mine = &c->said.caller;
  *mine = make_hello(m->tcp, (uint32_t)m->tcp->rank, (uint32_t)c->index, m->places[c->peer].token);
  if (pith__random_bytes(mine->nonce, sizeof mine->nonce) != PITH_OK || !write_whole(&c->to, mine, sizeof *mine)) {
    give_up(m, c);
    return;
  }
  c->is_open = 1;
}

static void open_call(meeting *m, call *c) {
  if (!is_put_through(m, c)) {
    return;
  }
  int secure = shake_hands(m, &c->to, 1);
  if (secure < 0) {
    give_up(m, c);
  } else if (secure) {
    say_hello(m, c);
  }
}

static void hear_answer(meeting *m, call *c) {
  ssize_t got = pith__connection_read(&c->to, (char *)&c->answer + c->got, sizeof c->answer - c->got);
  if (got < 0) {
    give_up(m, c);
    return;
  }
  c->got += (size_t)got;
  if (c->got < sizeof c->answer) {
    return;
  }
  uint8_t proof[PITH_SHA256_SIZE];
  tcp_hello wanted = make_hello(m->tcp, (uint32_t)c->peer, (uint32_t)c->index, m->places[c->peer].token);
  c->said.listener = c->answer.hello;
  if (!same_hello(&c->answer.hello, &wanted) || !is_proven(m, &c->to, &c->said, TCP_ROLE_LISTENER, c->answer.proof) ||
      !prove(m, &c->to, &c->said, TCP_ROLE_CALLER, proof) || !write_whole(&c->to, proof, sizeof proof)) {
    give_up(m, c);
    return;
  }
  establish(m, c->peer, c->index, &c->to);
  c->is_done = 1;
}

static void attend_call(meeting *m, call *c, short events) {
  if (c->to.fd < 0) {
    if (pith__now() >= c->time) {
      dial(m, c);
    }
  } else if (events) {
    c->is_open ? hear_answer(m, c) : open_call(m, c);
  } else if (pith__now() >= c->time) {
    give_up(m, c);
  }
}

/* ---- Arrivals ---------------------------------------------------------------------------------------------------- */

static void drop(meeting *m, int index) {
  pith__connection_drop(&m->arrivals[index].from); /* nothing, if it has become a link */
  m->arrivals[index] = m->arrivals[--m->arrival_count];
}

/* Makes place at the cost of the one who has been silent longest. Those who said a right hello have more time, and go
 * last. */
static void make_place(meeting *m) {
  int oldest = 0;
  for (int i = 1; i < m->arrival_count; i++) {
    if (m->arrivals[i].deadline < m->arrivals[oldest].deadline) {
      oldest = i;
    }
  }
  drop(m, oldest);
}

static void admit(meeting *m) {
  for (int fd; (fd = pith__socket_accept(m->tcp->listener)) >= 0;) {
    if (m->arrival_count == m->arrival_most) {
      make_place(m);
    }
    m->arrivals[m->arrival_count++] = (arrival){.from = {.fd = fd}, .deadline = pith__now() + hello_seconds};
  }
  note_lack(m);
}

/* Whether it is a connection that we wait for: the right job, a higher rank, one that does not stand yet. */
static int is_expected(const meeting *m, const tcp_hello *said) {
  const pith_tcp *tcp = m->tcp;
  tcp_hello wanted = make_hello(tcp, said->rank, said->index, tcp->token);
  return same_hello(said, &wanted) && said->rank > (uint32_t)tcp->rank && said->rank < (uint32_t)tcp->ranks &&
         m->wanted[said->rank] && said->index < (uint32_t)tcp->peers[said->rank].connections &&
         tcp->peers[said->rank].connection[said->index].fd < 0;
}

static int answer_hello(const meeting *m, arrival *a) {
  tcp_answer answer;
  const tcp_hello *caller = &a->said.caller;
  tcp_hello *mine = &a->said.listener;
  *mine = make_hello(m->tcp, (uint32_t)m->tcp->rank, caller->index, m->tcp->token);
  if (!is_expected(m, caller) || pith__random_bytes(mine->nonce, sizeof mine->nonce) != PITH_OK) {
    return 0;
  }
  answer.hello = *mine;
  a->is_answered = 1;
  a->got = 0;
  a->deadline = m->deadline; /* once the caller has sent its proof, it counts on the connection */
  return prove(m, &a->from, &a->said, TCP_ROLE_LISTENER, answer.proof) && write_whole(&a->from, &answer, sizeof answer);
}

/* Another connection may have come first: then this one is dropped. */
static int take_proof(meeting *m, arrival *a) {
  if (!is_proven(m, &a->from, &a->said, TCP_ROLE_CALLER, a->proof) || !is_expected(m, &a->said.caller)) {
    return 0;
  }
  establish(m, (int)a->said.caller.rank, (int)a->said.caller.index, &a->from);
  return 1;
}

/* Returns 0 if the arrival is to be dropped, also when it has become a link. */
static int hear_arrival(meeting *m, arrival *a) {
  char *into = a->is_answered ? (char *)a->proof : (char *)&a->said.caller;
  size_t size = a->is_answered ? sizeof a->proof : sizeof a->said.caller;
  ssize_t got = pith__connection_read(&a->from, into + a->got, size - a->got);
  if (got < 0) {
    return 0;
  }
  a->got += (size_t)got;
  if (a->got < size) {
    return pith__now() < a->deadline;
  }
  if (!a->is_answered && answer_hello(m, a)) {
    return 1;
  }
  if (!a->is_answered || !take_proof(m, a)) {
    PITH_LOG_WARN("tcp: rank %d dropped a connection that is none of this job's", m->tcp->rank);
  }
  return 0;
}

static int greet_arrival(meeting *m, arrival *a) {
  int secure = shake_hands(m, &a->from, 0);
  if (secure < 0) {
    int is_refused = note_refusal(m, &a->from);
    PITH_LOG_WARN("tcp: rank %d dropped a connection without TLS: %s", m->tcp->rank,
                  is_refused ? m->trouble : "it ended");
    return 0;
  }
  a->is_secure = secure;
  return secure ? hear_arrival(m, a) : pith__now() < a->deadline; /* its hello may have come with the handshake */
}

static int attend_arrival(meeting *m, arrival *a, short events) {
  if (!events) {
    return pith__now() < a->deadline;
  }
  return a->is_secure ? hear_arrival(m, a) : greet_arrival(m, a);
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static double next_time(const meeting *m) {
  double next = m->deadline, slice = pith__now() + PITH_INTERRUPT_SECONDS;
  next = pith__interrupt_is_possible(&m->tcp->interrupt) && slice < next ? slice : next;
  for (int i = 0; i < m->call_count; i++) {
    if (!m->calls[i].is_done && m->calls[i].time < next) {
      next = m->calls[i].time;
    }
  }
  for (int i = 0; i < m->arrival_count; i++) {
    if (m->arrivals[i].deadline < next) {
      next = m->arrivals[i].deadline;
    }
  }
  return next;
}

static struct pollfd descriptor_of(const tcp_connection *c, short events) {
  return (struct pollfd){c->fd, (short)(events | (pith__connection_has_output(c) ? POLLOUT : 0)), 0};
}

/* Of links that stand only the end is of interest: bytes are for later. */
static struct pollfd watch_link(const meeting *m, int peer, int index) {
  return (struct pollfd){m->is_broken ? -1 : m->tcp->peers[peer].connection[index].fd, POLLRDHUP, 0};
}

/* Calls first, or the links they have become; then arrivals, then the listener, then the links that came as arrivals.
 * poll() passes over descriptors below zero, but takes no more entries than the process may have files. */
static int fill_descriptors(meeting *m, int *listener) {
  int count = 0;
  for (int i = 0; i < m->call_count; i++) {
    const call *c = &m->calls[i];
    m->fds[count++] =
        c->is_done ? watch_link(m, c->peer, c->index) : descriptor_of(&c->to, c->is_put_through ? POLLIN : POLLOUT);
  }
  for (int i = 0; i < m->arrival_count; i++) {
    m->fds[count++] = descriptor_of(&m->arrivals[i].from, POLLIN);
  }
  *listener = count;
  m->fds[count++] = (struct pollfd){m->tcp->listener, POLLIN, 0};
  for (int p = m->tcp->rank + 1; p < m->tcp->ranks && !m->is_broken; p++) {
    for (int i = 0; i < m->tcp->peers[p].connections; i++) {
      if (m->tcp->peers[p].connection[i].fd >= 0) {
        m->fds[count++] = watch_link(m, p, i);
      }
    }
  }
  return count;
}

static void notice_ends(meeting *m, int listener, int count) {
  int ended = 0;
  for (int i = 0; i < m->call_count; i++) {
    ended |= m->calls[i].is_done && m->fds[i].revents;
  }
  for (int i = listener + 1; i < count; i++) {
    ended |= m->fds[i].revents != 0;
  }
  if (ended && !m->is_broken) {
    double soon = pith__now() + broken_seconds;
    m->is_broken = 1;
    m->deadline = soon < m->deadline ? soon : m->deadline;
  }
}

static void step(meeting *m) {
  int listener, count = fill_descriptors(m, &listener), arrivals = m->arrival_count;
  pith__poll_until(m->fds, count, next_time(m));
  notice_ends(m, listener, count);
  for (int i = 0; i < m->call_count; i++) {
    if (!m->calls[i].is_done) {
      attend_call(m, &m->calls[i], m->fds[i].revents);
    }
  }
  for (int i = arrivals - 1; i >= 0; i--) { /* downwards: dropping moves the last one here */
    if (!attend_arrival(m, &m->arrivals[i], m->fds[m->call_count + i].revents)) {
      drop(m, i);
    }
  }
  if (m->fds[listener].revents) {
    admit(m);
  }
}

static pith_status name_missing(const meeting *m) {
  const pith_tcp *tcp = m->tcp;
  char list[PITH_RANK_LIST_TEXT];
  uint8_t *missing = calloc((size_t)tcp->ranks, 1);
  for (int p = 0; missing && p < tcp->ranks; p++) {
    for (int i = 0; i < tcp->peers[p].connections; i++) {
      missing[p] |= tcp->peers[p].connection[i].fd < 0;
    }
  }
  const char *who = missing ? pith__rank_list(missing, tcp->ranks, list) : "all";
  pith_status status;
  if (m->lack) {
    status =
        pith_fail(PITH_ERR_SYSTEM, "rank %d cannot connect with %s: %s (ulimit -n says how many files it may open)",
                  tcp->rank, who, strerror(m->lack));
  } else if (*m->trouble) {
    status = pith_fail(PITH_ERR_TIMEOUT,
                       "rank %d has no encrypted connection with %s after %.1f s; of the last that came: %s", tcp->rank,
                       who, pith__now() - m->start, m->trouble);
  } else {
    status = pith_fail(PITH_ERR_TIMEOUT, "rank %d has no tcp connection with %s after %.1f s: is a firewall between?",
                       tcp->rank, who, pith__now() - m->start);
  }
  free(missing);
  return status;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

static int is_wanted(const meeting *m, int p) { return p != m->tcp->rank && m->wanted[p]; }

/* All ranks encrypt, or none: who is asked to encrypt says nothing in clear. */
static pith_status check_encryption(const pith_tcp *tcp, int p, const tcp_place *theirs) {
  const char *there = pith__tls_mode_name(theirs->tls), *here = pith__tls_mode_name(tcp->tls_mode);
  PITH_REQUIRE(theirs->tls == tcp->tls_mode, PITH_ERR_MISMATCH,
               "rank %d has PITH_TLS=%s and rank %d has PITH_TLS=%s: it must be the same on all ranks", p, there,
               tcp->rank, here);
  PITH_REQUIRE(!*theirs->tls_trouble, PITH_ERR_PEER, "rank %d cannot encrypt (PITH_TLS=%s): %s", p, there,
               theirs->tls_trouble);
  return PITH_OK;
}

/* Of every rank that has a tcp address, so that all who connect over tcp hear of the same trouble. Both sides take the
 * smaller number of connections, so that they need not be configured alike. */
static pith_status read_addresses(meeting *m, const pith_address *address) {
  pith_tcp *tcp = m->tcp;
  PITH_REQUIRE(!*tcp->tls_trouble, PITH_ERR_UNSUPPORTED, "rank %d cannot encrypt (PITH_TLS=%s): %s", tcp->rank,
               pith__tls_mode_name(tcp->tls_mode), tcp->tls_trouble);
  for (int p = 0; p < tcp->ranks; p++) {
    if (p == tcp->rank || (!is_wanted(m, p) && address[p].size == 0)) {
      continue;
    }
    PITH_TRY(pith__tcp_address_decode(&address[p], p, &m->places[p]));
    PITH_TRY(check_encryption(tcp, p, &m->places[p]));
    if (!is_wanted(m, p)) {
      continue;
    }
    pith__tcp_set_scope(&m->places[p], tcp->scope);
    tcp_peer *peer = &tcp->peers[p];
    int theirs = m->places[p].connections;
    peer->connections = theirs < tcp->connections ? theirs : tcp->connections;
    m->missing += peer->connections;
  }
  return PITH_OK;
}

static pith_status prepare(meeting *m, const pith_address *address) {
  pith_tcp *tcp = m->tcp;
  m->places = calloc((size_t)tcp->ranks, sizeof *m->places);
  PITH_REQUIRE(m->places, PITH_ERR_MEMORY, "no memory for %d addresses", tcp->ranks);
  PITH_TRY(read_addresses(m, address));
  pith__descriptors_reserve(m->missing + STRANGERS_MOST);
  m->arrival_most = m->missing + STRANGERS_MOST;
  m->calls = calloc((size_t)m->missing + 1, sizeof *m->calls);
  m->arrivals = calloc((size_t)m->arrival_most, sizeof *m->arrivals);
  m->fds = calloc((size_t)(2 * m->missing + m->arrival_most) + 1, sizeof *m->fds);
  PITH_REQUIRE(m->calls && m->arrivals && m->fds, PITH_ERR_MEMORY, "no memory for %d connections", m->missing);
  for (int p = 0; p < tcp->rank; p++) {
    for (int i = 0; i < tcp->peers[p].connections; i++) {
      m->calls[m->call_count++] = (call){.to = {.fd = -1}, .peer = p, .index = i, .pause = first_pause};
    }
  }
  return PITH_OK;
}

/* Nobody is to come after the links stand, or never stood: strangers and the listener go. */
static void clear_up(meeting *m) {
  for (int i = 0; i < m->call_count; i++) {
    pith__connection_drop(&m->calls[i].to); /* nothing, if it has become a link */
  }
  while (m->arrival_count > 0) {
    drop(m, m->arrival_count - 1);
  }
  pith__fd_close(m->tcp->listener);
  m->tcp->listener = -1;
  free(m->places);
  free(m->calls);
  free(m->arrivals);
  free(m->fds);
}

pith_status pith__tcp_connect(pith_transport *transport, const pith_address *address, const uint8_t *wanted,
                              const pith_link_key *key) {
  meeting m = {.tcp = (pith_tcp *)transport, .key = key, .wanted = wanted};
  m.start = pith__now();
  m.deadline =
      m.start + (transport->hurry > 0 && transport->hurry < m.tcp->timeout ? transport->hurry : m.tcp->timeout);
  pith_status status = prepare(&m, address);
  if (status == PITH_OK && m.tcp->tls) {
    uint8_t psk[PITH_TLS_KEY_SIZE];
    pith__link_key_tls(key, psk);
    m.tcp->tls->ops->set_key(m.tcp->tls, psk);
  }
  while (status == PITH_OK && m.missing > 0) {
    step(&m);
    status = m.refused;
    if (status == PITH_OK && m.missing > 0 && pith__interrupt_ask(&m.tcp->interrupt)) {
      status =
          pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it connected with the others", m.tcp->rank);
    } else if (status == PITH_OK && m.missing > 0 && pith__now() >= m.deadline) {
      status = name_missing(&m);
    }
  }
  if (status == PITH_OK && m.tcp->tls) {
    PITH_LOG_INFO("tcp: the links of rank %d are encrypted by TLS 1.3 (%s)", m.tcp->rank,
                  pith__tls_mode_name(m.tcp->tls_mode));
  }
  clear_up(&m);
  return status;
}

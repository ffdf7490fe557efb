/*
 * Connection setup. Of each pair the higher rank calls and the lower one listens. Where links are encrypted, a
 * connection begins with the handshake of TLS. Then, inside it or in clear, come three messages (tcp.h). The listener
 * takes the connection as a link only after the third: a caller with several addresses to try may have given up on the
 * connection, and only now it has proven to be of the job. A listener drops a connection that sends anything else, and
 * one that stays silent for a while, or sooner when others need its place. All of it is one poll loop over calls (ours)
 * and incoming connections (theirs), so a slow or hostile one keeps nobody waiting.
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

enum { STRANGERS_MOST = 64 }; /* incoming connections at once, beside those of the peers */

static const double hello_seconds = 5;   /* for an incoming connection to send its hello */
static const double address_seconds = 3; /* for a call, if there is another address to try */
static const double first_pause = 0.005, longest_pause = 0.5;

/* The time that is left when an established link breaks: others will give up, too. It may be that of a rank which had
 * all its links and has left since, so the others get some time to connect. */
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
  int is_connected, has_sent_hello, is_done;
  int refusals; /* of TLS, one after another */
  double time, pause;
  size_t got;
  tcp_hellos hellos;
  tcp_answer answer;
} call;

/* A connection that we accepted, of a rank or of a stranger. */
typedef struct incoming {
  tcp_connection from;
  int is_secure;   /* the handshake of TLS is over, or there is none */
  int is_answered; /* its hello is the expected one, and it has our answer; its proof is next */
  double deadline; /* for what is next */
  size_t got;      /* bytes of the hello, then of the proof */
  tcp_hellos hellos;
  uint8_t proof[PITH_SHA256_SIZE];
} incoming;

typedef struct setup {
  pith_tcp *tcp;
  const pith_link_key *key;
  const uint8_t *wanted;
  tcp_place *places; /* of every rank */
  call *calls;
  int call_count;
  incoming *incoming;
  int incoming_count, incoming_most;
  int missing; /* connections that are not established yet */
  struct pollfd *fds;
  double start, deadline;
  int is_broken;               /* an established link is over */
  int lack;                    /* the errno of the last call that failed for want of descriptors or memory; or 0 */
  pith_status refused;         /* not PITH_OK: TLS with a peer failed for good, and there is a message */
  char tls_error[TCP_TROUBLE]; /* why TLS failed last; "": it did not */
} setup;

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
static int prove(const setup *s, const tcp_connection *c, const tcp_hellos *hellos, const char *role,
                 uint8_t proof[PITH_SHA256_SIZE]) {
  uint8_t binding[PITH_TLS_BINDING_SIZE];
  if (c->tls && !c->tls->ops->binding(c->tls, binding)) {
    return 0;
  }
  pith__link_key_prove(s->key, role, hellos, sizeof *hellos, binding, c->tls ? sizeof binding : 0, proof);
  return 1;
}

static int is_proven(const setup *s, const tcp_connection *c, const tcp_hellos *hellos, const char *role,
                     const uint8_t given[PITH_SHA256_SIZE]) {
  uint8_t proof[PITH_SHA256_SIZE];
  return prove(s, c, hellos, role, proof) && pith__digest_equal(proof, given);
}

static int write_whole(tcp_connection *c, const void *data, size_t size) {
  struct iovec piece = {(void *)data, size};
  return pith__connection_write(c, &piece, 1) == (ssize_t)size; /* a new connection has room for a hello */
}

/* As tls->ops->shake_hands, on a connection whose session may have to be started first. */
static int shake_hands(setup *s, tcp_connection *c, int is_caller) {
  pith_tls *tls = s->tcp->tls;
  if (!tls) {
    return 1;
  }
  c->tls = c->tls ? c->tls : tls->ops->start(tls, c->fd, is_caller);
  if (!c->tls) {
    s->lack = ENOMEM;
    return -1;
  }
  return c->tls->ops->shake_hands(c->tls);
}

/* Whether TLS on a connection that is over ended because one of us refuses the other; if so, the reason is kept. */
static int note_refusal(setup *s, const tcp_connection *c) {
  if (!c->tls || !c->tls->ops->is_refused(c->tls)) {
    return 0;
  }
  snprintf(s->tls_error, sizeof s->tls_error, "%s", c->tls->ops->trouble(c->tls));
  return 1;
}

/* Equal but for their nonces. */
static int same_hello(const tcp_hello *a, const tcp_hello *b) { return memcmp(a, b, offsetof(tcp_hello, nonce)) == 0; }

/* The connection is the peer's now. */
static void establish(setup *s, int peer, int index, tcp_connection *c) {
  pith__socket_tune(c->fd, s->tcp->liveness);
  s->tcp->peers[peer].connection[index] = *c;
  *c = (tcp_connection){.fd = -1};
  s->missing--;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Another machine may be at one of several addresses. But a peer whose TLS refuses us at all of them will go on doing
 * so: better an error now than at the time-out. */
static void give_up(setup *s, call *c) {
  if (note_refusal(s, &c->to) && ++c->refusals > s->places[c->peer].count) {
    s->refused = pith_fail(PITH_ERR_PEER, "rank %d cannot make an encrypted connection with rank %d: %s", s->tcp->rank,
                           c->peer, s->tls_error);
  }
  pith__connection_drop(&c->to);
  c->is_connected = c->has_sent_hello = 0;
  c->address = (c->address + 1) % s->places[c->peer].count;
  c->time = pith__now() + c->pause;
  c->pause = 2 * c->pause < longest_pause ? 2 * c->pause : longest_pause;
}

/* Of the errors of a new socket, those that no network explains. */
static void note_lack(setup *s) {
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    s->lack = errno;
  }
}

static void dial(setup *s, call *c) {
  const tcp_place *place = &s->places[c->peer];
  c->to.fd = pith__socket_connect(&place->at[c->address]);
  c->got = 0;
  if (c->to.fd < 0) {
    note_lack(s);
    give_up(s, c);
    return;
  }
  c->time = place->count > 1 ? pith__now() + address_seconds : s->deadline;
}

static int is_connected(setup *s, call *c) {
  int error = c->is_connected ? 0 : pith__socket_connect_result(c->to.fd);
  if (error) {
    char text[PITH_SOCKADDR_TEXT];
    PITH_LOG_TRACE("tcp: rank %d at %s: %s", c->peer, pith__sockaddr_text(&s->places[c->peer].at[c->address], text),
                   strerror(error));
    give_up(s, c);
  }
  c->is_connected = !error;
  return !error;
}

static void send_hello(setup *s, call *c) {
  tcp_hello *mine = &c->hellos.caller;
  *mine = make_hello(s->tcp, (uint32_t)s->tcp->rank, (uint32_t)c->index, s->places[c->peer].token);
  if (pith__random_bytes(mine->nonce, sizeof mine->nonce) != PITH_OK || !write_whole(&c->to, mine, sizeof *mine)) {
    give_up(s, c);
    return;
  }
  c->has_sent_hello = 1;
}

static void handle_connected(setup *s, call *c) {
  if (!is_connected(s, c)) {
    return;
  }
  int secure = shake_hands(s, &c->to, 1);
  if (secure < 0) {
    give_up(s, c);
  } else if (secure) {
    send_hello(s, c);
  }
}

static void receive_answer(setup *s, call *c) {
  ssize_t got = pith__connection_read(&c->to, (char *)&c->answer + c->got, sizeof c->answer - c->got);
  if (got < 0) {
    give_up(s, c);
    return;
  }
  c->got += (size_t)got;
  if (c->got < sizeof c->answer) {
    return;
  }
  uint8_t proof[PITH_SHA256_SIZE];
  tcp_hello wanted = make_hello(s->tcp, (uint32_t)c->peer, (uint32_t)c->index, s->places[c->peer].token);
  c->hellos.listener = c->answer.hello;
  if (!same_hello(&c->answer.hello, &wanted) || !is_proven(s, &c->to, &c->hellos, TCP_ROLE_LISTENER, c->answer.proof) ||
      !prove(s, &c->to, &c->hellos, TCP_ROLE_CALLER, proof) || !write_whole(&c->to, proof, sizeof proof)) {
    give_up(s, c);
    return;
  }
  establish(s, c->peer, c->index, &c->to);
  c->is_done = 1;
}

static void handle_call(setup *s, call *c, short events) {
  if (c->to.fd < 0) {
    if (pith__now() >= c->time) {
      dial(s, c);
    }
  } else if (events) {
    c->has_sent_hello ? receive_answer(s, c) : handle_connected(s, c);
  } else if (pith__now() >= c->time) {
    give_up(s, c);
  }
}

/* ---- Incoming connections ---------------------------------------------------------------------------------------- */

static void drop(setup *s, int index) {
  pith__connection_drop(&s->incoming[index].from); /* nothing, if it has become a link */
  s->incoming[index] = s->incoming[--s->incoming_count];
}

/* Drops the connection that has been silent longest. Those with an expected hello have a later deadline, and go last.
 */
static void drop_oldest(setup *s) {
  int oldest = 0;
  for (int i = 1; i < s->incoming_count; i++) {
    if (s->incoming[i].deadline < s->incoming[oldest].deadline) {
      oldest = i;
    }
  }
  drop(s, oldest);
}

static void accept_all(setup *s) {
  for (int fd; (fd = pith__socket_accept(s->tcp->listener)) >= 0;) {
    if (s->incoming_count == s->incoming_most) {
      drop_oldest(s);
    }
    s->incoming[s->incoming_count++] = (incoming){.from = {.fd = fd}, .deadline = pith__now() + hello_seconds};
  }
  note_lack(s);
}

/* Whether we wait for this connection: the right job, a higher rank, and not established yet. */
static int is_expected(const setup *s, const tcp_hello *hello) {
  const pith_tcp *tcp = s->tcp;
  tcp_hello wanted = make_hello(tcp, hello->rank, hello->index, tcp->token);
  return same_hello(hello, &wanted) && hello->rank > (uint32_t)tcp->rank && hello->rank < (uint32_t)tcp->ranks &&
         s->wanted[hello->rank] && hello->index < (uint32_t)tcp->peers[hello->rank].connections &&
         tcp->peers[hello->rank].connection[hello->index].fd < 0;
}

static int answer_hello(const setup *s, incoming *a) {
  tcp_answer answer;
  const tcp_hello *caller = &a->hellos.caller;
  tcp_hello *mine = &a->hellos.listener;
  *mine = make_hello(s->tcp, (uint32_t)s->tcp->rank, caller->index, s->tcp->token);
  if (!is_expected(s, caller) || pith__random_bytes(mine->nonce, sizeof mine->nonce) != PITH_OK) {
    return 0;
  }
  answer.hello = *mine;
  a->is_answered = 1;
  a->got = 0;
  a->deadline = s->deadline; /* once the caller has sent its proof, it takes the connection as established */
  return prove(s, &a->from, &a->hellos, TCP_ROLE_LISTENER, answer.proof) &&
         write_whole(&a->from, &answer, sizeof answer);
}

/* Another connection may have been established first: then this one is dropped. */
static int take_proof(setup *s, incoming *a) {
  if (!is_proven(s, &a->from, &a->hellos, TCP_ROLE_CALLER, a->proof) || !is_expected(s, &a->hellos.caller)) {
    return 0;
  }
  establish(s, (int)a->hellos.caller.rank, (int)a->hellos.caller.index, &a->from);
  return 1;
}

/* Returns 0 if the entry is to be dropped, also when the connection has become a link. */
static int read_incoming(setup *s, incoming *a) {
  char *into = a->is_answered ? (char *)a->proof : (char *)&a->hellos.caller;
  size_t size = a->is_answered ? sizeof a->proof : sizeof a->hellos.caller;
  ssize_t got = pith__connection_read(&a->from, into + a->got, size - a->got);
  if (got < 0) {
    return 0;
  }
  a->got += (size_t)got;
  if (a->got < size) {
    return pith__now() < a->deadline;
  }
  if (!a->is_answered && answer_hello(s, a)) {
    return 1;
  }
  if (!a->is_answered || !take_proof(s, a)) {
    PITH_LOG_WARN("tcp: rank %d dropped a connection that is none of this job's", s->tcp->rank);
  }
  return 0;
}

static int secure_incoming(setup *s, incoming *a) {
  int secure = shake_hands(s, &a->from, 0);
  if (secure < 0) {
    int is_refused = note_refusal(s, &a->from);
    PITH_LOG_WARN("tcp: rank %d dropped a connection without TLS: %s", s->tcp->rank,
                  is_refused ? s->tls_error : "it ended");
    return 0;
  }
  a->is_secure = secure;
  return secure ? read_incoming(s, a) : pith__now() < a->deadline; /* its hello may have come with the handshake */
}

static int handle_incoming(setup *s, incoming *a, short events) {
  if (!events) {
    return pith__now() < a->deadline;
  }
  return a->is_secure ? read_incoming(s, a) : secure_incoming(s, a);
}

/* ---- The loop ---------------------------------------------------------------------------------------------------- */

static double next_time(const setup *s) {
  double next = s->deadline, slice = pith__now() + PITH_INTERRUPT_SECONDS;
  next = pith__interrupt_is_possible(&s->tcp->interrupt) && slice < next ? slice : next;
  for (int i = 0; i < s->call_count; i++) {
    if (!s->calls[i].is_done && s->calls[i].time < next) {
      next = s->calls[i].time;
    }
  }
  for (int i = 0; i < s->incoming_count; i++) {
    if (s->incoming[i].deadline < next) {
      next = s->incoming[i].deadline;
    }
  }
  return next;
}

static struct pollfd descriptor_of(const tcp_connection *c, short events) {
  return (struct pollfd){c->fd, (short)(events | (pith__connection_has_output(c) ? POLLOUT : 0)), 0};
}

/* Of established links only the end is of interest: bytes are for later. */
static struct pollfd watch_link(const setup *s, int peer, int index) {
  return (struct pollfd){s->is_broken ? -1 : s->tcp->peers[peer].connection[index].fd, POLLRDHUP, 0};
}

/* Calls first, or the links they have become; then incoming connections, the listener, and the links they have become.
 * poll() passes over descriptors below zero, but takes no more entries than the process may have files. */
static int fill_descriptors(setup *s, int *listener) {
  int count = 0;
  for (int i = 0; i < s->call_count; i++) {
    const call *c = &s->calls[i];
    s->fds[count++] =
        c->is_done ? watch_link(s, c->peer, c->index) : descriptor_of(&c->to, c->is_connected ? POLLIN : POLLOUT);
  }
  for (int i = 0; i < s->incoming_count; i++) {
    s->fds[count++] = descriptor_of(&s->incoming[i].from, POLLIN);
  }
  *listener = count;
  s->fds[count++] = (struct pollfd){s->tcp->listener, POLLIN, 0};
  for (int p = s->tcp->rank + 1; p < s->tcp->ranks && !s->is_broken; p++) {
    for (int i = 0; i < s->tcp->peers[p].connections; i++) {
      if (s->tcp->peers[p].connection[i].fd >= 0) {
        s->fds[count++] = watch_link(s, p, i);
      }
    }
  }
  return count;
}

static void notice_ends(setup *s, int listener, int count) {
  int ended = 0;
  for (int i = 0; i < s->call_count; i++) {
    ended |= s->calls[i].is_done && s->fds[i].revents;
  }
  for (int i = listener + 1; i < count; i++) {
    ended |= s->fds[i].revents != 0;
  }
  if (ended && !s->is_broken) {
    double soon = pith__now() + broken_seconds;
    s->is_broken = 1;
    s->deadline = soon < s->deadline ? soon : s->deadline;
  }
}

static void step(setup *s) {
  int listener, count = fill_descriptors(s, &listener), accepted = s->incoming_count;
  pith__poll_until(s->fds, count, next_time(s));
  notice_ends(s, listener, count);
  for (int i = 0; i < s->call_count; i++) {
    if (!s->calls[i].is_done) {
      handle_call(s, &s->calls[i], s->fds[i].revents);
    }
  }
  for (int i = accepted - 1; i >= 0; i--) { /* downwards: dropping moves the last one here */
    if (!handle_incoming(s, &s->incoming[i], s->fds[s->call_count + i].revents)) {
      drop(s, i);
    }
  }
  if (s->fds[listener].revents) {
    accept_all(s);
  }
}

static pith_status name_missing(const setup *s) {
  const pith_tcp *tcp = s->tcp;
  char list[PITH_RANK_LIST_TEXT];
  uint8_t *missing = calloc((size_t)tcp->ranks, 1);
  for (int p = 0; missing && p < tcp->ranks; p++) {
    for (int i = 0; i < tcp->peers[p].connections; i++) {
      missing[p] |= tcp->peers[p].connection[i].fd < 0;
    }
  }
  const char *who = missing ? pith__rank_list(missing, tcp->ranks, list) : "all";
  pith_status status;
  if (s->lack) {
    status =
        pith_fail(PITH_ERR_SYSTEM, "rank %d cannot connect with %s: %s (ulimit -n says how many files it may open)",
                  tcp->rank, who, strerror(s->lack));
  } else if (*s->tls_error) {
    status = pith_fail(PITH_ERR_TIMEOUT,
                       "rank %d has no encrypted connection with %s after %.1f s; of the last that came: %s", tcp->rank,
                       who, pith__now() - s->start, s->tls_error);
  } else {
    status = pith_fail(PITH_ERR_TIMEOUT, "rank %d has no tcp connection with %s after %.1f s: is a firewall between?",
                       tcp->rank, who, pith__now() - s->start);
  }
  free(missing);
  return status;
}

/* ---- Beginning and end ------------------------------------------------------------------------------------------- */

static int is_wanted(const setup *s, int p) { return p != s->tcp->rank && s->wanted[p]; }

/* All ranks encrypt, or none: a rank that is asked to encrypt sends nothing in clear. */
static pith_status check_encryption(const pith_tcp *tcp, int p, const tcp_place *theirs) {
  const char *there = pith__tls_mode_name(theirs->tls), *here = pith__tls_mode_name(tcp->tls_mode);
  PITH_REQUIRE(theirs->tls == tcp->tls_mode, PITH_ERR_MISMATCH,
               "rank %d has PITH_TLS=%s and rank %d has PITH_TLS=%s: it must be the same on all ranks", p, there,
               tcp->rank, here);
  PITH_REQUIRE(!*theirs->tls_trouble, PITH_ERR_PEER, "rank %d cannot encrypt (PITH_TLS=%s): %s", p, there,
               theirs->tls_trouble);
  return PITH_OK;
}

/* Of every rank that has a tcp address, so that all ranks that connect over tcp report the same error. Both sides take
 * the smaller number of connections, so that they need not be configured alike. */
static pith_status read_addresses(setup *s, const pith_address *address) {
  pith_tcp *tcp = s->tcp;
  PITH_REQUIRE(!*tcp->tls_trouble, PITH_ERR_UNSUPPORTED, "rank %d cannot encrypt (PITH_TLS=%s): %s", tcp->rank,
               pith__tls_mode_name(tcp->tls_mode), tcp->tls_trouble);
  for (int p = 0; p < tcp->ranks; p++) {
    if (p == tcp->rank || (!is_wanted(s, p) && address[p].size == 0)) {
      continue;
    }
    PITH_TRY(pith__tcp_address_decode(&address[p], p, &s->places[p]));
    PITH_TRY(check_encryption(tcp, p, &s->places[p]));
    if (!is_wanted(s, p)) {
      continue;
    }
    pith__tcp_set_scope(&s->places[p], tcp->scope);
    tcp_peer *peer = &tcp->peers[p];
    int theirs = s->places[p].connections;
    peer->connections = theirs < tcp->connections ? theirs : tcp->connections;
    s->missing += peer->connections;
  }
  return PITH_OK;
}

static pith_status prepare(setup *s, const pith_address *address) {
  pith_tcp *tcp = s->tcp;
  s->places = calloc((size_t)tcp->ranks, sizeof *s->places);
  PITH_REQUIRE(s->places, PITH_ERR_MEMORY, "no memory for %d addresses", tcp->ranks);
  PITH_TRY(read_addresses(s, address));
  pith__descriptors_reserve(s->missing + STRANGERS_MOST);
  s->incoming_most = s->missing + STRANGERS_MOST;
  s->calls = calloc((size_t)s->missing + 1, sizeof *s->calls);
  s->incoming = calloc((size_t)s->incoming_most, sizeof *s->incoming);
  s->fds = calloc((size_t)(2 * s->missing + s->incoming_most) + 1, sizeof *s->fds);
  PITH_REQUIRE(s->calls && s->incoming && s->fds, PITH_ERR_MEMORY, "no memory for %d connections", s->missing);
  for (int p = 0; p < tcp->rank; p++) {
    for (int i = 0; i < tcp->peers[p].connections; i++) {
      s->calls[s->call_count++] = (call){.to = {.fd = -1}, .peer = p, .index = i, .pause = first_pause};
    }
  }
  return PITH_OK;
}

/* Connections that did not become links end here, and so does the listener. */
static void clear_up(setup *s) {
  for (int i = 0; i < s->call_count; i++) {
    pith__connection_drop(&s->calls[i].to); /* nothing, if it has become a link */
  }
  while (s->incoming_count > 0) {
    drop(s, s->incoming_count - 1);
  }
  pith__fd_close(s->tcp->listener);
  s->tcp->listener = -1;
  free(s->places);
  free(s->calls);
  free(s->incoming);
  free(s->fds);
}

pith_status pith__tcp_connect(pith_transport *transport, const pith_address *address, const uint8_t *wanted,
                              const pith_link_key *key) {
  setup s = {.tcp = (pith_tcp *)transport, .key = key, .wanted = wanted};
  s.start = pith__now();
  s.deadline =
      s.start + (transport->hurry > 0 && transport->hurry < s.tcp->timeout ? transport->hurry : s.tcp->timeout);
  pith_status status = prepare(&s, address);
  if (status == PITH_OK && s.tcp->tls) {
    uint8_t psk[PITH_TLS_KEY_SIZE];
    pith__link_key_tls(key, psk);
    s.tcp->tls->ops->set_key(s.tcp->tls, psk);
  }
  while (status == PITH_OK && s.missing > 0) {
    step(&s);
    status = s.refused;
    if (status == PITH_OK && s.missing > 0 && pith__interrupt_ask(&s.tcp->interrupt)) {
      status =
          pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it connected with the others", s.tcp->rank);
    } else if (status == PITH_OK && s.missing > 0 && pith__now() >= s.deadline) {
      status = name_missing(&s);
    }
  }
  if (status == PITH_OK && s.tcp->tls) {
    PITH_LOG_INFO("tcp: the links of rank %d are encrypted by TLS 1.3 (%s)", s.tcp->rank,
                  pith__tls_mode_name(s.tcp->tls_mode));
  }
  clear_up(&s);
  return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection setup: at the start with the peers that connect names, of which the higher rank of each pair calls, and
 * later with any peer that one of both asks for. Where links are encrypted, a connection begins with the handshake of
 * TLS. Then, inside it or in clear, come four messages (tcp.h). The listener takes the connection as a link only after
 * the third: a caller with several addresses to try may have given up on the connection, and only now it has proven to
 * be of the job. The caller does so after the fourth: both may have called at the same time, and the listener decides
 * which connection stays. A listener drops a connection that sends anything else, and one that stays silent for a
 * while, or sooner when others need its place.
 *
 * All of it is one step over calls (ours) and incoming connections (theirs) that never waits for one of them, so a slow
 * or hostile one does not make others wait. connect takes steps until all its links are there; attend takes one.
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

static const double hello_seconds = 5;   /* for an incoming connection to send its hello, and then its proof */
static const double address_seconds = 3; /* for a call, if there is another address to try */
static const double first_pause = 0.005, longest_pause = 0.5;
static const double lack_pause = 0.1; /* until we accept again where there was no descriptor for a connection */

/* The time that is left when an established link breaks: others will give up, too. It may be that of a rank which had
 * all its links and has left since, so the others get some time to connect. */
static const double broken_seconds = 2;

/* A peer that listens nowhere any more has ended or left, and others may still tell why. Then it is an error. */
static const double refused_seconds = 2;

/* ---- State ------------------------------------------------------------------------------------------------------- */

/* Both hellos of a connection. */
typedef struct tcp_hellos {
  tcp_hello caller, listener;
} tcp_hellos;

/* A connection to a peer. fd -1: waits for `time` to call; else the call is given up at `time`. */
typedef struct call {
  tcp_connection to;
  int peer, index, address;
  int is_connected, has_sent_hello, has_sent_proof, is_done;
  int refusals; /* of TLS, one after another */
  double time, pause;
  double refused_at; /* since when nobody has listened there; 0: somebody did */
  int error;         /* the errno of the last try; 0: it had none */
  size_t got;
  tcp_hellos hellos;
  tcp_answer answer;
  uint8_t confirmed;
  tcp_place place;
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

typedef struct tcp_setup {
  pith_tcp *tcp;
  pith_link_key key;
  pith_directory directory;
  uint8_t *wanted;
  call *calls;
  int call_count, call_most;
  incoming *incoming;
  int incoming_count, incoming_most;
  int missing; /* connections that connect waits for */
  int later;   /* peers that may be linked later */
  struct pollfd *fds;
  int fds_most;
  double start, deadline;
  int is_connecting;           /* in connect */
  int is_broken;               /* an established link is over */
  int lack;                    /* the errno of the last call that failed for want of descriptors or memory; or 0 */
  double accepts_at;           /* not before: there was no descriptor for the last that came */
  pith_status failed;          /* not PITH_OK: there can be no link with some peer, and there is a message */
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
  pith__link_key_prove(&s->key, role, hellos, sizeof *hellos, binding, c->tls ? sizeof binding : 0, proof);
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

/* What there is of a link with a peer whose address is known; NULL: no memory. */
static tcp_peer *have_peer(setup *s, int rank, const tcp_place *place) {
  pith_tcp *tcp = s->tcp;
  if (tcp->peers[rank]) {
    return tcp->peers[rank];
  }
  tcp_peer *peer = calloc(1, sizeof *peer);
  if (!peer) {
    s->lack = ENOMEM;
    return NULL;
  }
  peer->rank = rank;
  peer->connections = place->connections < tcp->connections ? place->connections : tcp->connections;
  for (int i = 0; i < TCP_CONNECTIONS_MOST; i++) {
    peer->connection[i].fd = -1;
  }
  tcp->peers[rank] = peer;
  return peer;
}

/* Where a peer listens, and whether we can connect there at all. */
static pith_status find_place(const setup *s, int rank, tcp_place *place) {
  pith_address address;
  PITH_TRY(pith__directory_find(&s->directory, rank, &address));
  PITH_TRY(pith__tcp_address_decode(&address, rank, place));
  pith__tcp_set_scope(place, s->tcp->scope);
  return PITH_OK;
}

static call *find_call(setup *s, int peer, int index) {
  for (int i = 0; i < s->call_count; i++) {
    if (s->calls[i].peer == peer && s->calls[i].index == index && !s->calls[i].is_done) {
      return &s->calls[i];
    }
  }
  return NULL;
}

/* The connection is the peer's now; a call of ours for the same is given up. */
static void establish(setup *s, tcp_peer *peer, int index, tcp_connection *c) {
  pith_tcp *tcp = s->tcp;
  int is_whole = 1;
  pith__socket_tune(c->fd, tcp->liveness);
  peer->connection[index] = *c;
  *c = (tcp_connection){.fd = -1};
  call *own = find_call(s, peer->rank, index);
  if (own) {
    pith__connection_drop(&own->to);
    own->is_done = 1;
  }
  for (int i = 0; i < peer->connections; i++) {
    is_whole &= peer->connection[i].fd >= 0;
  }
  if (is_whole) {
    peer->is_linked = 1;
    tcp->linked[tcp->linked_count++] = peer;
  }
  s->missing -= s->wanted[peer->rank] == PITH_LINK_NOW;
  s->later -= is_whole && s->wanted[peer->rank] == PITH_LINK_LATER;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

static void note_unreachable(setup *s, const call *c) {
  char text[PITH_SOCKADDR_TEXT];
  s->failed = pith_fail(PITH_ERR_PEER,
                        "rank %d cannot be reached by rank %d: no process listens at %s any more, so it has ended, "
                        "or its comm was destroyed",
                        c->peer, s->tcp->rank, pith__sockaddr_text(&c->place.at[c->address], text));
}

/* Another machine may be at one of several addresses. But a peer whose TLS refuses us at all of them will go on doing
 * so: better an error now than at the time-out. */
static void give_up(setup *s, call *c) {
  if (note_refusal(s, &c->to) && ++c->refusals > c->place.count) {
    s->failed = pith_fail(PITH_ERR_PEER, "rank %d cannot make an encrypted connection with rank %d: %s", s->tcp->rank,
                          c->peer, s->tls_error);
  }
  double now = pith__now();
  c->refused_at = c->error != ECONNREFUSED ? 0 : c->refused_at > 0 ? c->refused_at : now;
  if (c->refused_at > 0 && now - c->refused_at > refused_seconds && !s->is_connecting) {
    note_unreachable(s, c);
  }
  pith__connection_drop(&c->to);
  c->is_connected = c->has_sent_hello = c->has_sent_proof = 0;
  c->address = (c->address + 1) % c->place.count;
  c->time = now + c->pause;
  c->pause = 2 * c->pause < longest_pause ? 2 * c->pause : longest_pause;
}

/* Of the errors of a new socket, those that no network explains; whether it is one. */
static int note_lack(setup *s) {
  int is_lack = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
  s->lack = is_lack ? errno : s->lack;
  return is_lack;
}

static void dial(setup *s, call *c) {
  c->to.fd = pith__socket_connect(&c->place.at[c->address]);
  c->got = 0;
  c->error = c->to.fd < 0 ? errno : 0;
  if (c->to.fd < 0) {
    note_lack(s);
    give_up(s, c);
    return;
  }
  c->time = c->place.count > 1 ? pith__now() + address_seconds : s->deadline;
}

static int is_connected(setup *s, call *c) {
  int error = c->is_connected ? 0 : pith__socket_connect_result(c->to.fd);
  if (error) {
    char text[PITH_SOCKADDR_TEXT];
    PITH_LOG_TRACE("tcp: rank %d at %s: %s", c->peer, pith__sockaddr_text(&c->place.at[c->address], text),
                   strerror(error));
    c->error = error;
    give_up(s, c);
  }
  c->is_connected = !error;
  return !error;
}

static void send_hello(setup *s, call *c) {
  tcp_hello *mine = &c->hellos.caller;
  *mine = make_hello(s->tcp, (uint32_t)s->tcp->rank, (uint32_t)c->index, c->place.token);
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
  tcp_hello wanted = make_hello(s->tcp, (uint32_t)c->peer, (uint32_t)c->index, c->place.token);
  c->hellos.listener = c->answer.hello;
  if (!same_hello(&c->answer.hello, &wanted) || !is_proven(s, &c->to, &c->hellos, TCP_ROLE_LISTENER, c->answer.proof) ||
      !prove(s, &c->to, &c->hellos, TCP_ROLE_CALLER, proof) || !write_whole(&c->to, proof, sizeof proof)) {
    give_up(s, c);
    return;
  }
  c->has_sent_proof = 1;
  c->time = s->deadline; /* it is the right address */
}

/* The listener may have taken another connection meanwhile: then it ends this one. */
static void receive_confirmation(setup *s, call *c) {
  tcp_peer *peer = s->tcp->peers[c->peer];
  ssize_t got = pith__connection_read(&c->to, &c->confirmed, sizeof c->confirmed);
  if (got == 0) {
    return;
  }
  if (got < 0 || c->confirmed != TCP_CONFIRMED) {
    give_up(s, c);
    return;
  }
  tcp_connection made = c->to;
  c->to = (tcp_connection){.fd = -1};
  c->is_done = 1;
  establish(s, peer, c->index, &made);
}

static void handle_call(setup *s, call *c, short events) {
  if (c->to.fd < 0) {
    if (pith__now() >= c->time) {
      dial(s, c);
    }
  } else if (events) {
    if (!c->has_sent_hello) {
      handle_connected(s, c);
    } else if (!c->has_sent_proof) {
      receive_answer(s, c);
    } else {
      receive_confirmation(s, c);
    }
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

/* Connections at once: of all peers that may come, and of some strangers. */
static int incoming_limit(const setup *s) { return STRANGERS_MOST + s->missing + s->later * s->tcp->connections; }

/* A place for one more, if need be that of another; NULL: no memory. */
static incoming *place_for_incoming(setup *s) {
  if (s->incoming_count >= incoming_limit(s)) {
    drop_oldest(s);
  }
  if (s->incoming_count == s->incoming_most) {
    int most = s->incoming_most ? 2 * s->incoming_most : 16;
    incoming *larger = realloc(s->incoming, (size_t)most * sizeof *larger);
    if (!larger) {
      return NULL;
    }
    s->incoming = larger;
    s->incoming_most = most;
  }
  return &s->incoming[s->incoming_count++];
}

/* Where descriptors are lacking, the connection stays in the queue and wakes us at once: hence the pause. */
static void accept_all(setup *s) {
  for (int fd; (fd = pith__socket_accept(s->tcp->listener)) >= 0;) {
    incoming *place = place_for_incoming(s);
    if (!place) {
      pith__fd_close(fd); /* who calls tries again */
      return;
    }
    *place = (incoming){.from = {.fd = fd}, .deadline = pith__now() + hello_seconds};
  }
  s->accepts_at = note_lack(s) ? pith__now() + lack_pause : 0;
}

/* Whether the connection may be of this job, from a peer whose connection of that number is not established yet. What
 * it says is not proven. */
static int is_expected(const setup *s, const tcp_hello *hello) {
  const pith_tcp *tcp = s->tcp;
  tcp_hello wanted = make_hello(tcp, hello->rank, hello->index, tcp->token);
  if (!same_hello(hello, &wanted) || hello->rank >= (uint32_t)tcp->ranks || !s->wanted[hello->rank] ||
      hello->index >= TCP_CONNECTIONS_MOST) {
    return 0;
  }
  const tcp_peer *peer = tcp->peers[hello->rank];
  return !peer || (hello->index < (uint32_t)peer->connections && peer->connection[hello->index].fd < 0);
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
  a->deadline = pith__now() + hello_seconds;
  return prove(s, &a->from, &a->hellos, TCP_ROLE_LISTENER, answer.proof) &&
         write_whole(&a->from, &answer, sizeof answer);
}

/* Whether our own call for the same connection goes before this one. The caller, a lower rank, is going to confirm it.
 */
static int is_overruled(setup *s, const tcp_hello *caller) {
  const call *own = find_call(s, (int)caller->rank, (int)caller->index);
  return own && own->has_sent_proof && (uint32_t)s->tcp->rank > caller->rank;
}

typedef enum proof_result { PROOF_FALSE, PROOF_LATE, PROOF_TAKEN } proof_result;

static proof_result take_proof(setup *s, incoming *a) {
  const tcp_hello *caller = &a->hellos.caller;
  const uint8_t confirmed = TCP_CONFIRMED;
  tcp_place place;
  if (!is_proven(s, &a->from, &a->hellos, TCP_ROLE_CALLER, a->proof)) {
    return PROOF_FALSE;
  }
  if (!is_expected(s, caller) || is_overruled(s, caller) ||
      (!s->tcp->peers[caller->rank] && find_place(s, (int)caller->rank, &place) != PITH_OK)) {
    return PROOF_LATE;
  }
  tcp_peer *peer = have_peer(s, (int)caller->rank, &place);
  if (!peer || caller->index >= (uint32_t)peer->connections || !write_whole(&a->from, &confirmed, sizeof confirmed)) {
    return PROOF_LATE;
  }
  establish(s, peer, (int)caller->index, &a->from);
  return PROOF_TAKEN;
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
  if (!a->is_answered || take_proof(s, a) == PROOF_FALSE) {
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
  return s->accepts_at > pith__now() && s->accepts_at < next ? s->accepts_at : next;
}

static struct pollfd descriptor_of(const tcp_connection *c, short events) {
  return (struct pollfd){c->fd, (short)(events | (pith__connection_has_output(c) ? POLLOUT : 0)), 0};
}

/* Memory for so many descriptors; 0: there is none. */
static int have_fds(setup *s, int count) {
  if (count > s->fds_most) {
    struct pollfd *larger = realloc(s->fds, (size_t)count * 2 * sizeof *larger);
    if (!larger) {
      return 0;
    }
    s->fds = larger;
    s->fds_most = 2 * count;
  }
  return 1;
}

/* Calls first, then incoming connections, then the listener. poll() passes over descriptors below zero, but takes no
 * more entries than the process may have files. */
static int list_pending(const setup *s, struct pollfd *fds, int most) {
  int count = 0;
  for (int i = 0; i < s->call_count && count < most; i++) {
    const call *c = &s->calls[i];
    fds[count++] = descriptor_of(&c->to, c->is_connected ? POLLIN : POLLOUT);
  }
  for (int i = 0; i < s->incoming_count && count < most; i++) {
    fds[count++] = descriptor_of(&s->incoming[i].from, POLLIN);
  }
  if (count < most) {
    fds[count++] = (struct pollfd){pith__now() < s->accepts_at ? -1 : s->tcp->listener, POLLIN, 0};
  }
  return count;
}

/* During connect the ends of established links are of interest; their bytes are for later. */
static int add_established(setup *s, int count) {
  const pith_tcp *tcp = s->tcp;
  for (int p = 0; p < tcp->ranks && s->is_connecting && !s->is_broken; p++) {
    const tcp_peer *peer = tcp->peers[p];
    for (int i = 0; peer && i < peer->connections && have_fds(s, count + 1); i++) {
      if (peer->connection[i].fd >= 0) {
        s->fds[count++] = (struct pollfd){peer->connection[i].fd, POLLRDHUP, 0};
      }
    }
  }
  return count;
}

static void notice_ends(setup *s, int first, int count) {
  int ended = 0;
  for (int i = first; i < count; i++) {
    ended |= s->fds[i].revents != 0;
  }
  if (ended && !s->is_broken) {
    double soon = pith__now() + broken_seconds;
    s->is_broken = 1;
    s->deadline = soon < s->deadline ? soon : s->deadline;
  }
}

/* Calls that have become links, or were given up for one, leave the list. */
static void forget_done(setup *s) {
  int kept = 0;
  for (int i = 0; i < s->call_count; i++) {
    if (!s->calls[i].is_done) {
      s->calls[kept++] = s->calls[i];
    }
  }
  s->call_count = kept;
}

/* Does what can be done, after something happened or at that time. */
static void step(setup *s, double until) {
  int pending = s->call_count + s->incoming_count + 1, calls = s->call_count, accepted = s->incoming_count;
  if (!have_fds(s, pending)) {
    s->lack = ENOMEM;
    poll(NULL, 0, 1);
    return;
  }
  list_pending(s, s->fds, pending);
  int count = add_established(s, pending);
  pith__poll_until(s->fds, count, until);
  notice_ends(s, pending, count);
  for (int i = 0; i < calls; i++) {
    if (!s->calls[i].is_done) {
      handle_call(s, &s->calls[i], s->fds[i].revents);
    }
  }
  for (int i = accepted - 1; i >= 0; i--) { /* downwards: dropping moves the last one here */
    if (!handle_incoming(s, &s->incoming[i], s->fds[calls + i].revents)) {
      drop(s, i);
    }
  }
  if (s->fds[calls + accepted].revents) {
    accept_all(s);
  }
  forget_done(s);
}

static pith_status name_missing(const setup *s) {
  const pith_tcp *tcp = s->tcp;
  char list[PITH_RANK_LIST_TEXT];
  uint8_t *missing = calloc((size_t)tcp->ranks, 1);
  for (int p = 0; missing && p < tcp->ranks; p++) {
    missing[p] = s->wanted[p] == PITH_LINK_NOW && !(tcp->peers[p] && tcp->peers[p]->is_linked);
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

static pith_status add_calls(setup *s, const tcp_peer *peer, const tcp_place *place) {
  int most = s->call_count + peer->connections;
  if (most > s->call_most) {
    call *larger = realloc(s->calls, (size_t)most * 2 * sizeof *larger);
    PITH_REQUIRE(larger, PITH_ERR_MEMORY, "no memory for %d connections", most);
    s->calls = larger;
    s->call_most = 2 * most;
  }
  for (int i = 0; i < peer->connections; i++) {
    if (peer->connection[i].fd < 0) {
      s->calls[s->call_count++] =
          (call){.to = {.fd = -1}, .peer = peer->rank, .index = i, .pause = first_pause, .place = *place};
    }
  }
  return PITH_OK;
}

/* Of a peer that connect links with the higher rank calls. Both sides take the smaller number of connections, so that
 * they need not be configured alike. */
static pith_status prepare_peer(setup *s, int rank, const tcp_place *place) {
  tcp_peer *peer = have_peer(s, rank, place);
  PITH_REQUIRE(peer, PITH_ERR_MEMORY, "no memory for a link with rank %d", rank);
  s->missing += peer->connections;
  return rank < s->tcp->rank ? add_calls(s, peer, place) : PITH_OK;
}

/* Looks at the address of every rank that has one, so that all ranks that connect over tcp report the same error. */
static pith_status read_addresses(setup *s) {
  pith_tcp *tcp = s->tcp;
  PITH_REQUIRE(!*tcp->tls_trouble, PITH_ERR_UNSUPPORTED, "rank %d cannot encrypt (PITH_TLS=%s): %s", tcp->rank,
               pith__tls_mode_name(tcp->tls_mode), tcp->tls_trouble);
  for (int p = 0; p < tcp->ranks; p++) {
    pith_address address = {.size = 0};
    tcp_place place;
    if (p == tcp->rank) {
      continue;
    }
    PITH_TRY(pith__directory_find(&s->directory, p, &address));
    if (!s->wanted[p] && address.size == 0) {
      continue;
    }
    PITH_TRY(pith__tcp_address_decode(&address, p, &place));
    PITH_TRY(check_encryption(tcp, p, &place));
    pith__tcp_set_scope(&place, tcp->scope);
    PITH_TRY(s->wanted[p] == PITH_LINK_NOW ? prepare_peer(s, p, &place) : PITH_OK);
    s->later += s->wanted[p] == PITH_LINK_LATER;
  }
  return PITH_OK;
}

static pith_status prepare(pith_tcp *tcp, const pith_directory *directory, const uint8_t *wanted,
                           const pith_link_key *key, double seconds) {
  setup *s = calloc(1, sizeof *s);
  PITH_REQUIRE(s, PITH_ERR_MEMORY, "no memory to connect %d ranks", tcp->ranks);
  tcp->setup = s;
  *s = (setup){.tcp = tcp, .key = *key, .directory = *directory, .is_connecting = 1, .start = pith__now()};
  s->deadline = s->start + seconds;
  s->wanted = malloc((size_t)tcp->ranks);
  tcp->linked = calloc((size_t)tcp->ranks, sizeof *tcp->linked);
  PITH_REQUIRE(s->wanted && tcp->linked, PITH_ERR_MEMORY, "no memory to connect %d ranks", tcp->ranks);
  memcpy(s->wanted, wanted, (size_t)tcp->ranks);
  s->wanted[tcp->rank] = PITH_LINK_NEVER;
  PITH_TRY(read_addresses(s));
  pith__descriptors_reserve(incoming_limit(s));
  if (tcp->tls) {
    uint8_t psk[PITH_TLS_KEY_SIZE];
    pith__link_key_tls(key, psk);
    tcp->tls->ops->set_key(tcp->tls, psk);
  }
  return PITH_OK;
}

void pith__tcp_setup_free(pith_tcp *tcp, int is_child) {
  setup *s = tcp->setup;
  if (!s) {
    return;
  }
  for (int i = 0; i < s->call_count; i++) {
    s->calls[i].to.fd = is_child ? -1 : s->calls[i].to.fd;
    pith__connection_drop(&s->calls[i].to); /* nothing, if it has become a link */
  }
  for (int i = 0; i < s->incoming_count; i++) {
    s->incoming[i].from.fd = is_child ? -1 : s->incoming[i].from.fd;
    pith__connection_drop(&s->incoming[i].from);
  }
  if (!is_child) {
    pith__fd_close(tcp->listener);
  }
  tcp->listener = -1;
  tcp->base.is_open = 0;
  tcp->setup = NULL;
  free(s->wanted);
  free(s->calls);
  free(s->incoming);
  free(s->fds);
  free(s);
}

/* When there is nobody left to link with, nobody listens any more. */
static void end_if_complete(pith_tcp *tcp) {
  if (tcp->setup->missing == 0 && tcp->setup->later == 0) {
    pith__tcp_setup_free(tcp, 0);
  }
}

static pith_status connect_all(setup *s) {
  pith_status status = PITH_OK;
  while (status == PITH_OK && s->missing > 0) {
    step(s, next_time(s));
    status = s->failed;
    if (status == PITH_OK && s->missing > 0 && pith__interrupt_ask(&s->tcp->interrupt)) {
      status =
          pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it connected with the others", s->tcp->rank);
    } else if (status == PITH_OK && s->missing > 0 && pith__now() >= s->deadline) {
      status = name_missing(s);
    }
  }
  return status;
}

pith_status pith__tcp_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                              const pith_link_key *key) {
  pith_tcp *tcp = (pith_tcp *)transport;
  PITH_REQUIRE(!tcp->setup, PITH_ERR_STATE, "tcp: connected already");
  pith_status status = prepare(tcp, directory, wanted, key, pith__connect_seconds(transport, tcp->timeout));
  status = status == PITH_OK ? connect_all(tcp->setup) : status;
  if (status != PITH_OK) {
    pith__tcp_setup_free(tcp, 0);
    return status;
  }
  if (tcp->tls) {
    PITH_LOG_INFO("tcp: the links of rank %d are encrypted by TLS 1.3 (%s)", tcp->rank,
                  pith__tls_mode_name(tcp->tls_mode));
  }
  tcp->setup->is_connecting = 0;
  transport->is_open = 1;
  end_if_complete(tcp);
  return PITH_OK;
}

/* ---- Links that are made later ----------------------------------------------------------------------------------- */

pith_status pith__tcp_ask(pith_transport *transport, int rank) {
  pith_tcp *tcp = (pith_tcp *)transport;
  setup *s = tcp->setup;
  tcp_place place;
  if (!s || s->wanted[rank] != PITH_LINK_LATER || (tcp->peers[rank] && tcp->peers[rank]->is_linked) ||
      find_call(s, rank, 0)) {
    return PITH_OK;
  }
  PITH_TRY(find_place(s, rank, &place));
  tcp_peer *peer = have_peer(s, rank, &place);
  PITH_REQUIRE(peer, PITH_ERR_MEMORY, "no memory for a link with rank %d", rank);
  return add_calls(s, peer, &place);
}

pith_status pith__tcp_attend(pith_transport *transport) {
  pith_tcp *tcp = (pith_tcp *)transport;
  setup *s = tcp->setup;
  if (!s) {
    return PITH_OK;
  }
  s->deadline = pith__now() + tcp->timeout;
  step(s, 0);
  pith_status status = s->failed;
  end_if_complete(tcp);
  return status;
}

int pith__tcp_door(pith_transport *transport, struct pollfd *fds, int most) {
  const pith_tcp *tcp = (const pith_tcp *)transport;
  return tcp->setup ? list_pending(tcp->setup, fds, most) : 0;
}

void pith__tcp_trouble(pith_transport *transport, int rank, char *text, size_t size) {
  const pith_tcp *tcp = (const pith_tcp *)transport;
  setup *s = tcp->setup;
  const call *c = s ? find_call(s, rank, 0) : NULL;
  char where[PITH_SOCKADDR_TEXT];
  *text = 0;
  if (s && s->lack) {
    snprintf(text, size, "%s (ulimit -n says how many files it may open)", strerror(s->lack));
  } else if (s && *s->tls_error) {
    snprintf(text, size, "%s", s->tls_error);
  } else if (c) {
    snprintf(text, size, "at %s: %s", pith__sockaddr_text(&c->place.at[c->address], where),
             c->error            ? strerror(c->error)
             : c->has_sent_hello ? "it does not answer"
                                 : "is a firewall between?");
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connection setup: at the start with the peers that connect names, of which the higher rank of each pair calls, and
 * later with any peer that one of both asks for. Nothing ever blocks, so that no order of arrival can deadlock two
 * ranks. Every process of the host can list the name of a socket and connect to it. So both sides must run as the same
 * user and prove to have the job's key before either sends its memory. A rank drops strangers and tells them nothing
 * about the job.
 *
 * The sockets keep message boundaries (SOCK_SEQPACKET): a message comes whole or not at all.
 */
#include "transport/shm_link.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rank_list.h"
#include "transport/sockets.h"
#include "transport/unix_socket.h"

#define INCOMING_MOST 64 /* accepted and not a link yet; the oldest is dropped for the next */
#define ACCEPTS_MOST 8   /* at a time */
#define LACK_PAUSE 0.1   /* seconds until we accept again where there was no descriptor for a connection */

/* The handshake of one connection. */
typedef struct handshake {
  int socket; /* -1: there is none now */
  struct {
    pith_shm_hello caller, listener;
  } hellos;
  int is_answered; /* both hellos were sent, and the caller knows that the listener is of the job */
} handshake;

/* A connection of ours to a peer. */
typedef struct call {
  int rank;
  handshake h;
  int is_done, is_gone; /* is_gone: it rejected us, or cannot be reached */
  double redial_at;     /* when to dial again; 0: it is not to */
  double lost_at;       /* when the first connection was lost; 0: none was */
} call;

typedef struct shm_pending {
  call *calls;
  int call_count, call_most;
  handshake incoming[INCOMING_MOST]; /* the oldest first */
  int incoming_count;
  double accepts_at; /* not before: there was no descriptor for the last that came */
  struct pollfd *fds;
  int fds_most;
  int missing; /* links that connect waits for */
  int is_connecting;
  int is_broken;         /* an established link is over */
  int gone;              /* peers that connect cannot reach */
  char first_error[256]; /* of the first of them: the error message */
  double start;
} shm_pending;

pith_status pith__shm_link_listen(int *listener, pith_address *address) {
  *address = (pith_address){.size = PITH_UNIX_NAME};
  return pith__unix_listen(listener, (char *)address->data);
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static pith_status make_hello(const pith_shm_setup *setup, int to, pith_shm_hello *hello) {
  *hello = (pith_shm_hello){
      .magic = PITH_SHM_HELLO_MAGIC, .from = setup->config->rank, .to = to, .ranks = setup->config->ranks};
  return pith__random_bytes(hello->nonce, sizeof hello->nonce);
}

static int is_for_us(const pith_shm_setup *setup, const pith_shm_hello *hello) {
  return hello->magic == PITH_SHM_HELLO_MAGIC && hello->ranks == setup->config->ranks &&
         hello->to == setup->config->rank && hello->zero == 0;
}

static void prove(const pith_shm_setup *setup, const handshake *h, const char *role, const pith_shm_offer *offer,
                  uint8_t proof[PITH_SHA256_SIZE]) {
  pith__link_key_prove(setup->key, role, &h->hellos, sizeof h->hellos, offer,
                       offer ? offsetof(pith_shm_offer, proof) : 0, proof);
}

static int send_offer(const pith_shm_setup *setup, const pith_shm_link *link, const handshake *h, const char *role) {
  pith_shm_offer offer = {.inbox = link->own.inbox, .shape = link->own.shape};
  prove(setup, h, role, &offer, offer.proof);
  return pith__packet_send(h->socket, &offer, sizeof offer, link->own.memory);
}

/* On PITH_PACKET_VALID the offer is proven, and the calling function owns the descriptor. */
static pith_packet_state receive_offer(const pith_shm_setup *setup, const handshake *h, const char *role,
                                       pith_shm_offer *offer, int *memory) {
  uint8_t proof[PITH_SHA256_SIZE];
  pith_packet_state state = pith__packet_receive(h->socket, offer, sizeof *offer, memory);
  if (state != PITH_PACKET_VALID) {
    return state;
  }
  prove(setup, h, role, offer, proof);
  if (!pith__digest_equal(proof, offer->proof) || offer->inbox >= offer->shape.inboxes) {
    close(*memory);
    return PITH_PACKET_INVALID;
  }
  return PITH_PACKET_VALID;
}

/* A pidfd, which tells when the process ends. The socket may not: a child that the process forked may hold it open. */
static int open_process(int socket) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
    return -1;
  }
  return pith__fd_keep((int)syscall(SYS_pidfd_open, peer.pid, 0)); /* descriptors of processes always are CLOEXEC */
}

static call *find_call(const pith_shm_setup *setup, int rank) {
  const shm_pending *p = setup->pending;
  for (int i = 0; i < p->call_count; i++) {
    if (p->calls[i].rank == rank && !p->calls[i].is_done) {
      return &p->calls[i];
    }
  }
  return NULL;
}

static void hang_up(handshake *h) {
  pith__fd_close(h->socket);
  h->socket = -1;
  h->is_answered = 0;
}

/* The connection is the peer's now; a call of ours is given up. */
static void establish(pith_shm_setup *setup, pith_shm_link *link, handshake *h, const pith_shm_offer *offer,
                      int memory) {
  link->socket = h->socket;
  link->process = open_process(h->socket);
  link->memory = memory;
  link->shape = offer->shape;
  link->inbox = offer->inbox;
  h->socket = -1;
  call *own = find_call(setup, link->rank);
  if (own) {
    hang_up(&own->h);
    own->is_done = 1;
  }
  setup->pending->missing -= setup->wanted[link->rank] == PITH_LINK_NOW;
  setup->established(setup->owner, link);
}

/* ---- Calling ----------------------------------------------------------------------------------------------------- */

/* When one rank is gone, others give up because of it and are gone, too. We wait this long to learn of all of them,
 * since any of them may be the cause. */
static const double gather_seconds = 0.2;

/* The same when an established link breaks. That may be a rank which had all its links and has left since, so the
 * others get some time to connect. */
static const double broken_seconds = 1.5;

/* A listener with too many incoming connections drops the oldest, even if it is one of its own ranks; and it drops one
 * that lost against its own call. So a rank whose connection is lost connects again, for a while. Where nobody listens
 * any more the while is shorter: the peer has ended, or left, and others may still tell why. */
static const double dial_pause = 0.01, dial_seconds = 5, refused_seconds = 2;
static const double queue_pause = 0.001; /* where the listener's queue is full */

static int remaining_ms(double end) {
  double left = end - pith__now();
  return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
}

static void end_within(pith_shm_setup *setup, double seconds) {
  double soon = pith__now() + seconds;
  setup->end = soon < setup->end ? soon : setup->end;
}

static pith_status rejected(int rank) {
  return pith_fail(PITH_ERR_PEER, "shm: rank %d rejected us or ended: is it of the same job, secret and version?",
                   rank);
}

/* Returns the status; but during connect, in place of PITH_ERR_PEER, it notes that the peer is gone, and why: there may
 * be more of them. */
static pith_status note_gone(pith_shm_setup *setup, call *c, pith_status status) {
  shm_pending *p = setup->pending;
  hang_up(&c->h);
  if (status != PITH_ERR_PEER || !p->is_connecting) {
    return status;
  }
  if (!*p->first_error) {
    snprintf(p->first_error, sizeof p->first_error, "%s", pith_error());
  }
  p->gone += !c->is_gone;
  c->is_gone = 1;
  c->redial_at = 0;
  end_within(setup, gather_seconds);
  return PITH_OK;
}

/* A connection was lost or rejected: we connect again, for some seconds. */
static pith_status note_lost(pith_shm_setup *setup, call *c, pith_status status, double seconds) {
  double now = pith__now();
  c->lost_at = c->lost_at > 0 ? c->lost_at : now;
  if (status != PITH_ERR_PEER || now > c->lost_at + seconds) {
    return note_gone(setup, c, status);
  }
  hang_up(&c->h);
  c->redial_at = now + dial_pause;
  return PITH_OK;
}

static pith_status greet(const pith_shm_setup *setup, call *c) {
  unsigned user;
  PITH_REQUIRE(pith__unix_same_user(c->h.socket, &user), PITH_ERR_PEER,
               "shm: rank %d runs as user %u, rank %d as user %u: ranks that share memory must run as one user",
               c->rank, user, setup->config->rank, (unsigned)geteuid());
  PITH_TRY(make_hello(setup, c->rank, &c->h.hellos.caller));
  pith__packet_send(c->h.socket, &c->h.hellos.caller, sizeof c->h.hellos.caller,
                    -1); /* if that fails, no answer comes either */
  return PITH_OK;
}

/* connect() gives EAGAIN when the listener's queue is full. That cannot be polled for: try again soon. */
static pith_status dial(pith_shm_setup *setup, call *c) {
  pith_address to;
  c->redial_at = 0;
  PITH_TRY(pith__directory_find(&setup->directory, c->rank, &to));
  if (!pith__unix_is_name(to.data, to.size)) {
    return note_gone(setup, c,
                     pith_fail(PITH_ERR_PEER,
                               "shm: rank %d gave an address that is none of shared memory: do all ranks use the same "
                               "transport?",
                               c->rank));
  }
  c->h = (handshake){.socket = pith__unix_open()};
  PITH_REQUIRE(c->h.socket >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  if (pith__unix_connect(c->h.socket, to.data) == 0) {
    pith_status status = greet(setup, c);
    return status == PITH_OK ? PITH_OK : note_gone(setup, c, status);
  }
  if (errno == EAGAIN || errno == EINTR) {
    hang_up(&c->h);
    c->redial_at = pith__now() + queue_pause;
    return PITH_OK;
  }
  pith_status status =
      pith_fail(PITH_ERR_PEER, "shm: cannot reach rank %d: %s (is it on this host, in the same container, and alive?)",
                c->rank, strerror(errno));
  return setup->pending->is_connecting ? note_gone(setup, c, status) : note_lost(setup, c, status, refused_seconds);
}

/* Checks the listener's proof and sends ours. */
static pith_status receive_answer(pith_shm_setup *setup, call *c) {
  pith_shm_answer answer;
  uint8_t proof[PITH_SHA256_SIZE];
  handshake *h = &c->h;
  pith_packet_state state = pith__packet_receive(h->socket, &answer, sizeof answer, NULL);
  if (state == PITH_PACKET_NONE) {
    return PITH_OK;
  }
  if (state == PITH_PACKET_INVALID || !is_for_us(setup, &answer.hello)) {
    return rejected(c->rank);
  }
  PITH_REQUIRE(answer.hello.from == c->rank, PITH_ERR_PEER, "shm: at the address of rank %d, rank %d answers", c->rank,
               (int)answer.hello.from);
  h->hellos.listener = answer.hello;
  prove(setup, h, PITH_SHM_ROLE_ANSWER, NULL, proof);
  PITH_REQUIRE(pith__digest_equal(proof, answer.proof), PITH_ERR_PEER,
               "shm: who answers at the address of rank %d is not of this job", c->rank);
  const pith_shm_link *link = setup->have(setup->owner, c->rank);
  if (!link) {
    return PITH_ERR_MEMORY;
  }
  h->is_answered = 1;
  return send_offer(setup, link, h, PITH_SHM_ROLE_CALLER) ? PITH_OK : rejected(c->rank);
}

static pith_status handle_call(pith_shm_setup *setup, call *c) {
  pith_shm_offer offer;
  int memory;
  if (!c->h.is_answered) {
    return receive_answer(setup, c);
  }
  pith_packet_state state = receive_offer(setup, &c->h, PITH_SHM_ROLE_LISTENER, &offer, &memory);
  if (state == PITH_PACKET_INVALID) {
    return rejected(c->rank);
  }
  if (state == PITH_PACKET_VALID) {
    handshake made = c->h;
    c->h.socket = -1;
    c->is_done = 1;
    establish(setup, setup->find(setup->owner, c->rank), &made, &offer, memory);
  }
  return PITH_OK;
}

/* ---- Being called ------------------------------------------------------------------------------------------------ */

/* Whether an incoming connection may be of a peer with which there is no link yet. What it says is not proven. */
static int is_expected(const pith_shm_setup *setup, const handshake *h) {
  int from = h->hellos.caller.from;
  if (from < 0 || from >= setup->config->ranks || !setup->wanted[from]) {
    return 0;
  }
  const pith_shm_link *link = setup->find(setup->owner, from);
  return !link || link->socket < 0;
}

/* Whether our own call goes before that of the caller, a lower rank, which is going to take it. */
static int is_overruled(const pith_shm_setup *setup, const handshake *h) {
  const call *own = find_call(setup, h->hellos.caller.from);
  return own && own->h.is_answered && setup->config->rank > h->hellos.caller.from;
}

/* Each returns whether the handshake is over: the connection is a link now, or is to be dropped. */
static int receive_hello(const pith_shm_setup *setup, handshake *h) {
  pith_shm_answer answer;
  pith_packet_state state = pith__packet_receive(h->socket, &h->hellos.caller, sizeof h->hellos.caller, NULL);
  if (state == PITH_PACKET_NONE) {
    return 0;
  }
  if (state == PITH_PACKET_INVALID || !is_for_us(setup, &h->hellos.caller) || !is_expected(setup, h) ||
      make_hello(setup, h->hellos.caller.from, &h->hellos.listener) != PITH_OK) {
    return 1;
  }
  answer.hello = h->hellos.listener;
  prove(setup, h, PITH_SHM_ROLE_ANSWER, NULL, answer.proof);
  h->is_answered = pith__packet_send(h->socket, &answer, sizeof answer, -1);
  return !h->is_answered;
}

static int handle_incoming(pith_shm_setup *setup, handshake *h) {
  pith_shm_offer offer;
  int memory;
  if (!h->is_answered) {
    return receive_hello(setup, h);
  }
  pith_packet_state state = receive_offer(setup, h, PITH_SHM_ROLE_CALLER, &offer, &memory);
  if (state == PITH_PACKET_NONE) {
    return 0;
  }
  if (state == PITH_PACKET_INVALID) {
    PITH_LOG_WARN("shm: rejected a process that claims to be rank %d and is not of this job",
                  (int)h->hellos.caller.from);
    return 1;
  }
  int is_taken = is_expected(setup, h) && !is_overruled(setup, h);
  pith_shm_link *link = is_taken ? setup->have(setup->owner, h->hellos.caller.from) : NULL;
  if (link && send_offer(setup, link, h, PITH_SHM_ROLE_LISTENER)) {
    establish(setup, link, h, &offer, memory);
  } else {
    close(memory);
  }
  return 1;
}

/* Closes its socket, unless that is a link's by now. */
static void drop_incoming(shm_pending *p, int at) {
  hang_up(&p->incoming[at]);
  size_t behind = (size_t)(--p->incoming_count - at);
  memmove(&p->incoming[at], &p->incoming[at + 1], behind * sizeof *p->incoming);
}

/* Drops the oldest incoming connection, if possible one that has sent no hello. */
static void drop_oldest(shm_pending *p) {
  int at = 0;
  while (at < p->incoming_count && p->incoming[at].is_answered) {
    at++;
  }
  drop_incoming(p, at < p->incoming_count ? at : 0);
}

/* Few at a time: those that were accepted before must have time for their hello before others replace them. Where
 * descriptors are lacking, the connection stays in the queue and wakes us at once: hence the pause. */
static void accept_incoming(shm_pending *p, int listener) {
  for (int i = 0; i < ACCEPTS_MOST; i++) {
    unsigned user;
    int socket = pith__fd_keep(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket < 0) {
      int is_lack = errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS;
      p->accepts_at = is_lack ? pith__now() + LACK_PAUSE : 0;
      return;
    }
    if (!pith__unix_same_user(socket, &user)) {
      PITH_LOG_WARN("shm: rejected a process of user %u", user);
      pith__fd_close(socket);
      continue;
    }
    if (p->incoming_count == INCOMING_MOST) {
      drop_oldest(p);
    }
    p->incoming[p->incoming_count++] = (handshake){.socket = socket};
  }
}

/* ---- Both at once ------------------------------------------------------------------------------------------------ */

/* The listener, incoming connections, calls. */
static int list_pending(const pith_shm_setup *setup, struct pollfd *fds, int most) {
  const shm_pending *p = setup->pending;
  int count = 0;
  if (count < most) {
    fds[count++] = (struct pollfd){pith__now() < p->accepts_at ? -1 : setup->listener, POLLIN, 0};
  }
  for (int i = 0; i < p->incoming_count && count < most; i++) {
    fds[count++] = (struct pollfd){p->incoming[i].socket, POLLIN, 0};
  }
  for (int i = 0; i < p->call_count && count < most; i++) {
    fds[count++] = (struct pollfd){p->calls[i].h.socket, POLLIN, 0};
  }
  return count;
}

/* During connect the ends of established links are of interest; their bytes are for later. */
static int add_established(const pith_shm_setup *setup, int count) {
  const shm_pending *p = setup->pending;
  for (int r = 0; r < setup->config->ranks && p->is_connecting && !p->is_broken; r++) {
    const pith_shm_link *link = setup->wanted[r] == PITH_LINK_NOW ? setup->find(setup->owner, r) : NULL;
    if (link && link->socket >= 0 && count + 2 <= p->fds_most) {
      p->fds[count++] = (struct pollfd){link->socket, 0, 0};
      p->fds[count++] = (struct pollfd){link->process, POLLIN, 0};
    }
  }
  return count;
}

static void notice_ends(pith_shm_setup *setup, int first, int count) {
  shm_pending *p = setup->pending;
  int ended = 0;
  for (int i = first; i < count; i++) {
    ended |= p->fds[i].revents != 0;
  }
  if (ended && !p->is_broken) {
    p->is_broken = 1;
    end_within(setup, broken_seconds);
  }
}

static pith_status redial(pith_shm_setup *setup) {
  shm_pending *p = setup->pending;
  for (int i = 0; i < p->call_count; i++) {
    call *c = &p->calls[i];
    if (!c->is_done && c->redial_at > 0 && pith__now() >= c->redial_at) {
      PITH_TRY(dial(setup, c));
    }
  }
  return PITH_OK;
}

/* When there is something to do even if no event comes. */
static double next_time(const pith_shm_setup *setup) {
  const shm_pending *p = setup->pending;
  double next = p->accepts_at > pith__now() && p->accepts_at < setup->end ? p->accepts_at : setup->end;
  for (int i = 0; i < p->call_count; i++) {
    double time = p->calls[i].redial_at;
    next = time > 0 && time < next ? time : next;
  }
  return next;
}

static void forget_done(shm_pending *p) {
  int kept = 0;
  for (int i = 0; i < p->call_count; i++) {
    if (!p->calls[i].is_done) {
      p->calls[kept++] = p->calls[i];
    }
  }
  p->call_count = kept;
}

/* Does what can be done, after something happened or when so many milliseconds have passed. */
static pith_status step(pith_shm_setup *setup, int ms) {
  shm_pending *p = setup->pending;
  int accepted = p->incoming_count, calls = p->call_count;
  int own = list_pending(setup, p->fds, p->fds_most), count = add_established(setup, own);
  int ready = poll(p->fds, (nfds_t)count, ms);
  PITH_REQUIRE(ready >= 0 || errno == EINTR, PITH_ERR_SYSTEM, "shm: cannot wait for peers: %s", strerror(errno));
  if (ready > 0) {
    notice_ends(setup, own, count);
    for (int i = 0; i < calls; i++) {
      call *c = &p->calls[i];
      if (!c->is_done && c->h.socket >= 0 && p->fds[1 + accepted + i].revents) {
        pith_status status = handle_call(setup, c);
        PITH_TRY(status == PITH_OK ? PITH_OK : note_lost(setup, c, status, dial_seconds));
      }
    }
    for (int at = accepted - 1; at >= 0; at--) {
      if (p->fds[1 + at].revents && handle_incoming(setup, &p->incoming[at])) {
        drop_incoming(p, at);
      }
    }
    if (p->fds[0].revents) {
      accept_incoming(p, setup->listener);
    }
  }
  PITH_TRY(redial(setup));
  forget_done(p);
  return PITH_OK;
}

static pith_status add_call(pith_shm_setup *setup, int rank) {
  shm_pending *p = setup->pending;
  if (p->call_count == p->call_most) {
    int most = p->call_most ? 2 * p->call_most : 16, fds = 1 + INCOMING_MOST + most + 2 * p->missing;
    call *calls = realloc(p->calls, (size_t)most * sizeof *calls);
    p->calls = calls ? calls : p->calls;
    struct pollfd *descriptors = calls ? realloc(p->fds, (size_t)fds * sizeof *descriptors) : NULL;
    PITH_REQUIRE(descriptors, PITH_ERR_MEMORY, "shm: no memory for %d links", most);
    p->fds = descriptors;
    p->fds_most = fds;
    p->call_most = most;
  }
  p->calls[p->call_count++] = (call){.rank = rank, .h = {.socket = -1}, .redial_at = pith__now()};
  return PITH_OK;
}

/* ---- The start --------------------------------------------------------------------------------------------------- */

/* Of the peers that connect waits for, those that are gone, or the others. */
static void flag_missing(const pith_shm_setup *setup, int is_gone, uint8_t *flags) {
  for (int r = 0; r < setup->config->ranks; r++) {
    const pith_shm_link *link = setup->find(setup->owner, r);
    const call *c = find_call(setup, r);
    flags[r] = setup->wanted[r] == PITH_LINK_NOW && !(link && link->socket >= 0) && (c && c->is_gone) == is_gone;
  }
}

/* Peers that rejected us up to the end. */
static void note_all_lost(pith_shm_setup *setup) {
  shm_pending *p = setup->pending;
  for (int i = 0; i < p->call_count; i++) {
    if (p->calls[i].lost_at > 0) {
      (void)note_gone(setup, &p->calls[i], rejected(p->calls[i].rank));
    }
  }
}

/* Some peers are not linked, and will not be. */
static pith_status fail_missing(pith_shm_setup *setup) {
  char list[PITH_RANK_LIST_TEXT];
  shm_pending *p = setup->pending;
  note_all_lost(setup);
  int ranks = setup->config->ranks;
  uint8_t *flags = calloc((size_t)ranks, 1);
  PITH_REQUIRE(flags, PITH_ERR_MEMORY, "shm: no memory for %d ranks", ranks);
  flag_missing(setup, p->gone > 0, flags);
  pith__rank_list(flags, ranks, list);
  free(flags);
  return p->gone == 1 ? pith_fail(PITH_ERR_PEER, "%s", p->first_error)
         : p->gone > 1
             ? pith_fail(PITH_ERR_PEER, "shm: %s rejected us or ended: are they of the same job, secret and version?",
                         list)
             : pith_fail(PITH_ERR_TIMEOUT, "shm: %s did not connect within %.1f s", list, pith__now() - p->start);
}

static pith_status prepare(pith_shm_setup *setup) {
  int own = 0;
  shm_pending *p = calloc(1, sizeof *p);
  setup->pending = p;
  PITH_REQUIRE(p, PITH_ERR_MEMORY, "shm: no memory to connect");
  p->start = pith__now();
  p->is_connecting = 1;
  for (int r = 0; r < setup->config->ranks; r++) {
    p->missing += setup->wanted[r] == PITH_LINK_NOW;
    own += setup->wanted[r] == PITH_LINK_NOW && r < setup->config->rank;
  }
  p->call_most = own ? own : 1;
  p->fds_most = 1 + INCOMING_MOST + p->call_most + 2 * p->missing;
  p->calls = calloc((size_t)p->call_most, sizeof *p->calls);
  p->fds = calloc((size_t)p->fds_most, sizeof *p->fds);
  PITH_REQUIRE(p->calls && p->fds, PITH_ERR_MEMORY, "shm: no memory for %d links", p->missing);
  for (int r = 0; r < setup->config->rank; r++) {
    PITH_TRY(setup->wanted[r] == PITH_LINK_NOW ? add_call(setup, r) : PITH_OK);
  }
  return redial(setup);
}

pith_status pith__shm_link_connect(pith_shm_setup *setup) {
  PITH_TRY(prepare(setup));
  shm_pending *p = setup->pending;
  while (p->missing > p->gone && remaining_ms(setup->end) > 0) {
    int left = remaining_ms(next_time(setup)), slice = (int)(PITH_INTERRUPT_SECONDS * 1000);
    PITH_REQUIRE(!pith__interrupt_ask(&setup->config->interrupt), PITH_ERR_INTERRUPTED,
                 "rank %d was interrupted while it connected with the others", setup->config->rank);
    PITH_TRY(step(setup, left < slice ? left : slice));
  }
  PITH_TRY(p->missing ? fail_missing(setup) : PITH_OK);
  p->is_connecting = 0;
  return PITH_OK;
}

/* ---- Later ------------------------------------------------------------------------------------------------------- */

pith_status pith__shm_link_ask(pith_shm_setup *setup, int rank) {
  const pith_shm_link *link = setup->find(setup->owner, rank);
  if ((link && link->socket >= 0) || find_call(setup, rank)) {
    return PITH_OK;
  }
  return add_call(setup, rank);
}

pith_status pith__shm_link_attend(pith_shm_setup *setup) { return step(setup, 0); }

int pith__shm_link_door(const pith_shm_setup *setup, struct pollfd *fds, int most) {
  return list_pending(setup, fds, most);
}

void pith__shm_link_end(pith_shm_setup *setup, int is_child) {
  shm_pending *p = setup->pending;
  for (int i = 0; p && i < p->call_count && !is_child; i++) {
    pith__fd_close(p->calls[i].h.socket);
  }
  for (int i = 0; p && i < p->incoming_count && !is_child; i++) {
    pith__fd_close(p->incoming[i].socket);
  }
  if (p) {
    free(p->calls);
    free(p->fds);
  }
  free(p);
  setup->pending = NULL;
}

void pith__shm_link_close(pith_shm_link *link) {
  if (link->socket >= 0) {
    shutdown(link->socket, SHUT_RDWR); /* even if a forked child holds it */
  }
  pith__fd_close(link->socket);
  pith__fd_close(link->process);
  if (link->memory >= 0) {
    close(link->memory);
  }
  link->socket = link->process = link->memory = -1;
}

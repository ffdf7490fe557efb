/*
 * Connection setup: every rank connects to the lower ones and accepts the higher ones, all at once and without ever
 * blocking, so that no order of arrival can deadlock two ranks. Every process of the host can list the name of a socket
 * and connect to it. So both sides must run as the same user and prove to have the job's key before either sends its
 * memory. A rank drops strangers and tells them nothing about the job.
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

/* The handshake of one connection. */
typedef struct handshake {
  struct {
    pith_shm_hello caller, listener;
  } hellos;
  int is_answered;  /* both hellos were sent, and the caller knows that the listener is of the job */
  double redial_at; /* caller: when to dial again; 0: it is not to */
  double lost_at;   /* caller: when the first connection was lost; 0: none was */
} handshake;

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

static int send_offer(const pith_shm_setup *setup, int index, int socket, const handshake *h, const char *role) {
  pith_shm_offer offer = {.inbox = (uint32_t)index, .shape = setup->shape};
  prove(setup, h, role, &offer, offer.proof);
  return pith__packet_send(socket, &offer, sizeof offer, setup->memory);
}

/* On PITH_PACKET_VALID the offer is proven, and the calling function owns the descriptor. */
static pith_packet_state receive_offer(const pith_shm_setup *setup, int socket, const handshake *h, const char *role,
                                       pith_shm_offer *offer, int *memory) {
  uint8_t proof[PITH_SHA256_SIZE];
  pith_packet_state state = pith__packet_receive(socket, offer, sizeof *offer, memory);
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

static void establish(pith_shm_link *link, int socket, const pith_shm_offer *offer, int memory) {
  link->socket = socket;
  link->process = open_process(socket);
  link->memory = memory;
  link->shape = offer->shape;
  link->inbox = offer->inbox;
}

/* ---- Connecting to the lower ranks ------------------------------------------------------------------------------- */

static int remaining_ms(double end) {
  double left = end - pith__now();
  return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
}

/* connect() gives EAGAIN when the listener's queue is full. That cannot be polled for: try again soon. */
static pith_status dial(pith_shm_setup *setup, int index, int socket, handshake *h) {
  unsigned user;
  int rank = setup->links[index].rank;
  const pith_address *to = &setup->address[rank];
  PITH_REQUIRE(pith__unix_is_name(to->data, to->size), PITH_ERR_PEER,
               "shm: rank %d gave an address that is none of shared memory: do all ranks use the same transport?",
               rank);
  while (pith__unix_connect(socket, to->data) != 0) {
    PITH_REQUIRE(errno == EAGAIN || errno == EINTR, PITH_ERR_PEER,
                 "shm: cannot reach rank %d: %s (is it on this host, in the same container, and alive?)", rank,
                 strerror(errno));
    PITH_REQUIRE(remaining_ms(setup->end) > 0, PITH_ERR_TIMEOUT, "shm: rank %d did not answer in time", rank);
    poll(NULL, 0, 1);
  }
  PITH_REQUIRE(pith__unix_same_user(socket, &user), PITH_ERR_PEER,
               "shm: rank %d runs as user %u, rank %d as user %u: ranks that share memory must run as one user", rank,
               user, setup->config->rank, (unsigned)geteuid());
  PITH_TRY(make_hello(setup, rank, &h->hellos.caller));
  pith__packet_send(socket, &h->hellos.caller, sizeof h->hellos.caller, -1); /* if that fails, no answer comes either */
  return PITH_OK;
}

static pith_status rejected(int rank) {
  return pith_fail(PITH_ERR_PEER, "shm: rank %d rejected us or ended: is it of the same job, secret and version?",
                   rank);
}

/* Checks the listener's proof and sends ours. */
static pith_status receive_answer(pith_shm_setup *setup, int index, int socket, handshake *h) {
  pith_shm_answer answer;
  uint8_t proof[PITH_SHA256_SIZE];
  int rank = setup->links[index].rank;
  pith_packet_state state = pith__packet_receive(socket, &answer, sizeof answer, NULL);
  if (state == PITH_PACKET_NONE) {
    return PITH_OK;
  }
  if (state == PITH_PACKET_INVALID || !is_for_us(setup, &answer.hello)) {
    return rejected(rank);
  }
  PITH_REQUIRE(answer.hello.from == rank, PITH_ERR_PEER, "shm: at the address of rank %d, rank %d answers", rank,
               (int)answer.hello.from);
  h->hellos.listener = answer.hello;
  prove(setup, h, PITH_SHM_ROLE_ANSWER, NULL, proof);
  PITH_REQUIRE(pith__digest_equal(proof, answer.proof), PITH_ERR_PEER,
               "shm: who answers at the address of rank %d is not of this job", rank);
  h->is_answered = 1;
  return send_offer(setup, index, socket, h, PITH_SHM_ROLE_CALLER) ? PITH_OK : rejected(rank);
}

static pith_status handle_outgoing(pith_shm_setup *setup, int index, int *socket, handshake *h) {
  pith_shm_offer offer;
  int memory;
  if (!h->is_answered) {
    return receive_answer(setup, index, *socket, h);
  }
  pith_packet_state state = receive_offer(setup, *socket, h, PITH_SHM_ROLE_LISTENER, &offer, &memory);
  if (state == PITH_PACKET_INVALID) {
    return rejected(setup->links[index].rank);
  }
  if (state == PITH_PACKET_VALID) {
    establish(&setup->links[index], *socket, &offer, memory);
    *socket = -1;
  }
  return PITH_OK;
}

/* ---- Accepting the higher ranks ---------------------------------------------------------------------------------- */

static int find_link(const pith_shm_setup *setup, int rank) {
  for (int i = 0; i < setup->count; i++) {
    if (setup->links[i].rank == rank) {
      return i;
    }
  }
  return -1;
}

/* The link that an incoming connection claims to be for, if we wait for it; -1 if we do not. */
static int claimed_link(const pith_shm_setup *setup, const handshake *h) {
  int from = h->hellos.caller.from, index = from > setup->config->rank ? find_link(setup, from) : -1;
  return index >= 0 && setup->links[index].socket < 0 ? index : -1;
}

/* Each returns whether the handshake is over: the connection is a link now, or is to be dropped (*socket is left open).
 */
static int receive_hello(const pith_shm_setup *setup, int socket, handshake *h) {
  pith_shm_answer answer;
  pith_packet_state state = pith__packet_receive(socket, &h->hellos.caller, sizeof h->hellos.caller, NULL);
  if (state == PITH_PACKET_NONE) {
    return 0;
  }
  if (state == PITH_PACKET_INVALID || !is_for_us(setup, &h->hellos.caller) || claimed_link(setup, h) < 0 ||
      make_hello(setup, h->hellos.caller.from, &h->hellos.listener) != PITH_OK) {
    return 1;
  }
  answer.hello = h->hellos.listener;
  prove(setup, h, PITH_SHM_ROLE_ANSWER, NULL, answer.proof);
  h->is_answered = pith__packet_send(socket, &answer, sizeof answer, -1);
  return !h->is_answered;
}

static int handle_incoming(pith_shm_setup *setup, int *socket, handshake *h) {
  pith_shm_offer offer;
  int memory;
  if (!h->is_answered) {
    return receive_hello(setup, *socket, h);
  }
  pith_packet_state state = receive_offer(setup, *socket, h, PITH_SHM_ROLE_CALLER, &offer, &memory);
  if (state == PITH_PACKET_NONE) {
    return 0;
  }
  if (state == PITH_PACKET_INVALID) {
    PITH_LOG_WARN("shm: rejected a process that claims to be rank %d and is not of this job",
                  (int)h->hellos.caller.from);
    return 1;
  }
  int index = claimed_link(setup, h);
  if (index >= 0 && send_offer(setup, index, *socket, h, PITH_SHM_ROLE_LISTENER)) {
    establish(&setup->links[index], *socket, &offer, memory);
    *socket = -1;
  } else {
    PITH_LOG_WARN("shm: rejected a second process that claims to be rank %d", (int)h->hellos.caller.from);
    close(memory);
  }
  return 1;
}

/* ---- Both at once ------------------------------------------------------------------------------------------------ */

typedef struct pending {
  struct pollfd *fds; /* the listener; then INCOMING_MOST incoming connections, the oldest first; then for each link its
                         outgoing connection, later its socket; then the process of each */
  handshake *handshakes; /* of incoming and outgoing connections */
  int incoming;
  uint8_t *gone;         /* of every rank: it rejected us, or cannot be reached */
  char first_error[256]; /* of the first of them: the error message */
  int is_broken;         /* an established link is over */
  double start;
} pending;

enum { FIRST_INCOMING = 1, FIRST_OUTGOING = FIRST_INCOMING + INCOMING_MOST };

/* When one rank is gone, others give up because of it and are gone, too. We wait this long to learn of all of them,
 * since any of them may be the cause. */
static const double gather_seconds = 0.2;

/* The same when an established link breaks. That may be a rank which had all its links and has left since, so the
 * others get some time to connect. */
static const double broken_seconds = 1.5;

/* A listener with too many incoming connections drops the oldest, even if it is one of its own ranks. So a rank whose
 * connection is lost connects again, for a while. */
static const double dial_pause = 0.01, dial_seconds = 5;

/* Closes its socket, unless that is a link's by now. */
static void drop_incoming(pending *p, int at) {
  pith__fd_close(p->fds[at].fd);
  size_t behind = (size_t)(FIRST_INCOMING + --p->incoming - at);
  memmove(&p->fds[at], &p->fds[at + 1], behind * sizeof *p->fds);
  memmove(&p->handshakes[at], &p->handshakes[at + 1], behind * sizeof *p->handshakes);
  p->fds[FIRST_INCOMING + p->incoming] = (struct pollfd){.fd = -1};
}

/* Drops the oldest incoming connection, if possible one that has sent no hello. */
static void drop_oldest(pending *p) {
  int at = 0;
  while (at < p->incoming && p->handshakes[FIRST_INCOMING + at].is_answered) {
    at++;
  }
  drop_incoming(p, FIRST_INCOMING + (at < p->incoming ? at : 0));
}

/* Few at a time: those that were accepted before must have time for their hello before others replace them. */
static void accept_incoming(pending *p, int listener) {
  for (int i = 0; i < ACCEPTS_MOST; i++) {
    unsigned user;
    int socket = pith__fd_keep(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket < 0) {
      return;
    }
    if (!pith__unix_same_user(socket, &user)) {
      PITH_LOG_WARN("shm: rejected a process of user %u", user);
      pith__fd_close(socket);
      continue;
    }
    if (p->incoming == INCOMING_MOST) {
      drop_oldest(p);
    }
    p->handshakes[FIRST_INCOMING + p->incoming] = (handshake){.is_answered = 0};
    p->fds[FIRST_INCOMING + p->incoming++] = (struct pollfd){socket, POLLIN, 0};
  }
}

static void end_within(pith_shm_setup *setup, double seconds) {
  double soon = pith__now() + seconds;
  setup->end = soon < setup->end ? soon : setup->end;
}

/* Returns the status, except PITH_ERR_PEER: then it notes that the peer is gone, and why. */
static pith_status note_gone(pith_shm_setup *setup, pending *p, int index, pith_status status) {
  if (status != PITH_ERR_PEER) {
    return status;
  }
  if (!*p->first_error) {
    snprintf(p->first_error, sizeof p->first_error, "%s", pith_error());
  }
  p->gone[setup->links[index].rank] = 1;
  pith__fd_close(p->fds[FIRST_OUTGOING + index].fd);
  p->fds[FIRST_OUTGOING + index].fd = -1;
  end_within(setup, gather_seconds);
  return PITH_OK;
}

/* A connection was lost or rejected. The peer may have dropped it for want of room, so we connect again. */
static pith_status note_lost(pith_shm_setup *setup, pending *p, int index, pith_status status) {
  handshake *h = &p->handshakes[FIRST_OUTGOING + index];
  double now = pith__now();
  h->lost_at = h->lost_at > 0 ? h->lost_at : now;
  if (status != PITH_ERR_PEER || now > h->lost_at + dial_seconds) {
    return note_gone(setup, p, index, status);
  }
  h->redial_at = now + dial_pause;
  pith__fd_close(p->fds[FIRST_OUTGOING + index].fd);
  p->fds[FIRST_OUTGOING + index].fd = -1;
  return PITH_OK;
}

static pith_status dial_one(pith_shm_setup *setup, pending *p, int index) {
  handshake *h = &p->handshakes[FIRST_OUTGOING + index];
  int socket = pith__unix_open();
  PITH_REQUIRE(socket >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  p->fds[FIRST_OUTGOING + index] = (struct pollfd){socket, POLLIN, 0};
  h->redial_at = 0;
  h->is_answered = 0;
  return note_gone(setup, p, index, dial(setup, index, socket, h));
}

static pith_status dial_lower(pith_shm_setup *setup, pending *p) {
  for (int i = 0; i < setup->count; i++) {
    if (setup->links[i].rank < setup->config->rank) {
      PITH_TRY(dial_one(setup, p, i));
    }
  }
  return PITH_OK;
}

static pith_status redial(pith_shm_setup *setup, pending *p) {
  for (int i = 0; i < setup->count; i++) {
    double time = p->handshakes[FIRST_OUTGOING + i].redial_at;
    if (time > 0 && pith__now() >= time) {
      PITH_TRY(dial_one(setup, p, i));
    }
  }
  return PITH_OK;
}

/* When there is something to do even if no event comes. */
static double next_time(const pith_shm_setup *setup, const pending *p) {
  double next = setup->end;
  for (int i = 0; i < setup->count; i++) {
    double time = p->handshakes[FIRST_OUTGOING + i].redial_at;
    next = time > 0 && time < next ? time : next;
  }
  return next;
}

/* Of established links only the end is of interest: bytes are for later. Their sockets replace the connections that
 * became them, since poll() takes no more entries than the process may have files. */
static void watch_links(const pith_shm_setup *setup, const pending *p) {
  struct pollfd *calls = p->fds + FIRST_OUTGOING, *processes = calls + setup->count;
  for (int i = 0; i < setup->count; i++) {
    if (setup->links[i].socket >= 0) {
      calls[i] = (struct pollfd){p->is_broken ? -1 : setup->links[i].socket, 0, 0};
      processes[i] = (struct pollfd){p->is_broken ? -1 : setup->links[i].process, POLLIN, 0};
    }
  }
}

static void notice_ends(pith_shm_setup *setup, pending *p) {
  const struct pollfd *calls = p->fds + FIRST_OUTGOING, *processes = calls + setup->count;
  for (int i = 0; i < setup->count && !p->is_broken; i++) {
    if (setup->links[i].socket >= 0 && (calls[i].revents || processes[i].revents)) {
      p->is_broken = 1;
      end_within(setup, broken_seconds);
    }
  }
}

static pith_status handle_events(pith_shm_setup *setup, pending *p) {
  int has_callers = p->fds[0].revents != 0;
  notice_ends(setup, p);
  for (int at = FIRST_INCOMING + p->incoming - 1; at >= FIRST_INCOMING; at--) {
    if (handle_incoming(setup, &p->fds[at].fd, &p->handshakes[at])) {
      drop_incoming(p, at);
    }
  }
  if (has_callers) {
    accept_incoming(p, setup->listener);
  }
  for (int i = 0; i < setup->count; i++) {
    struct pollfd *listener = &p->fds[FIRST_OUTGOING + i];
    if (setup->links[i].socket < 0 && listener->fd >= 0 && listener->revents) {
      pith_status status = handle_outgoing(setup, i, &listener->fd, &p->handshakes[FIRST_OUTGOING + i]);
      PITH_TRY(status == PITH_OK ? PITH_OK : note_lost(setup, p, i, status));
    }
  }
  return PITH_OK;
}

/* Of the peers that are not linked, those that are gone, or the others; how many. `flags` has room for every rank, or
 * is NULL. */
static int count_missing(const pith_shm_setup *setup, const pending *p, int is_gone, uint8_t *flags) {
  int count = 0;
  for (int i = 0; i < setup->count; i++) {
    int rank = setup->links[i].rank, is_missing = setup->links[i].socket < 0 && p->gone[rank] == is_gone;
    count += is_missing;
    if (flags) {
      flags[rank] = (uint8_t)is_missing;
    }
  }
  return count;
}

/* Peers that rejected us up to the end. */
static void note_all_lost(pith_shm_setup *setup, pending *p) {
  for (int i = 0; i < setup->count; i++) {
    if (setup->links[i].socket < 0 && p->handshakes[FIRST_OUTGOING + i].lost_at > 0) {
      (void)note_gone(setup, p, i, rejected(setup->links[i].rank));
    }
  }
}

/* Some peers are not linked, and will not be. */
static pith_status fail_missing(pith_shm_setup *setup, pending *p) {
  char list[PITH_RANK_LIST_TEXT];
  note_all_lost(setup, p);
  int ranks = setup->config->ranks, gone = count_missing(setup, p, 1, NULL);
  uint8_t *flags = calloc((size_t)ranks, 1);
  PITH_REQUIRE(flags, PITH_ERR_MEMORY, "shm: no memory for %d ranks", ranks);
  count_missing(setup, p, gone > 0, flags);
  pith__rank_list(flags, ranks, list);
  free(flags);
  return gone == 1 ? pith_fail(PITH_ERR_PEER, "%s", p->first_error)
         : gone > 1
             ? pith_fail(PITH_ERR_PEER, "shm: %s rejected us or ended: are they of the same job, secret and version?",
                         list)
             : pith_fail(PITH_ERR_TIMEOUT, "shm: %s did not connect within %.1f s", list, pith__now() - p->start);
}

static pith_status connect_all(pith_shm_setup *setup, pending *p) {
  int places = FIRST_OUTGOING + 2 * setup->count;
  PITH_TRY(dial_lower(setup, p));
  while (count_missing(setup, p, 0, NULL) > 0 && remaining_ms(setup->end) > 0) {
    int left = remaining_ms(next_time(setup, p)), slice = (int)(PITH_INTERRUPT_SECONDS * 1000);
    watch_links(setup, p);
    int ready = poll(p->fds, (nfds_t)places, left < slice ? left : slice);
    PITH_REQUIRE(ready >= 0 || errno == EINTR, PITH_ERR_SYSTEM, "shm: cannot wait for peers: %s", strerror(errno));
    PITH_REQUIRE(!pith__interrupt_ask(&setup->config->interrupt), PITH_ERR_INTERRUPTED,
                 "rank %d was interrupted while it connected with the others", setup->config->rank);
    if (ready > 0) {
      PITH_TRY(handle_events(setup, p));
    }
    PITH_TRY(redial(setup, p));
  }
  return count_missing(setup, p, 0, NULL) + count_missing(setup, p, 1, NULL) ? fail_missing(setup, p) : PITH_OK;
}

pith_status pith__shm_link_connect(pith_shm_setup *setup) {
  int own = FIRST_OUTGOING + setup->count, places = own + setup->count;
  pending p = {.fds = calloc((size_t)places, sizeof *p.fds),
               .handshakes = calloc((size_t)own, sizeof *p.handshakes),
               .gone = calloc((size_t)setup->config->ranks, 1),
               .start = pith__now()};
  pith_status status = p.fds && p.handshakes && p.gone
                           ? PITH_OK
                           : pith_fail(PITH_ERR_MEMORY, "shm: no memory for %d links", setup->count);
  for (int i = 0; i < places && status == PITH_OK; i++) {
    p.fds[i] = (struct pollfd){.fd = i == 0 ? setup->listener : -1, .events = POLLIN};
  }
  if (status == PITH_OK) {
    status = connect_all(setup, &p);
    for (int i = 1; i < own; i++) { /* connections that did not become links */
      if (i < FIRST_OUTGOING || setup->links[i - FIRST_OUTGOING].socket < 0) {
        pith__fd_close(p.fds[i].fd);
      }
    }
  }
  free(p.fds);
  free(p.handshakes);
  free(p.gone);
  return status;
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

/*
 * The meeting: every rank connects to the lower ones and accepts the higher ones, all at once and without ever
 * blocking, so that no order of arrival can lock two ranks up. Every process of the host can list the name of a socket
 * and connect to it. So both sides must run as the same user and prove to have the job's key before either sends its
 * memory; strangers are dropped without a word about the job.
 *
 * The sockets keep the limits of messages (SOCK_SEQPACKET): a message comes whole or not at all.
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

#define NAME_PREFIX "pith-"
#define NAME_SIZE (sizeof NAME_PREFIX - 1 + 32)
#define SEND_TRIES 100
#define GUESTS_MOST 64 /* accepted and not known yet; the oldest must go for the next */
#define ACCEPTS_MOST 8 /* at a time */

/* How far a link has come. */
typedef struct talk {
  struct {
    pith_shm_hello caller, listener;
  } said;
  int is_answered; /* both hellos have been said, and the caller knows that the listener is of the job */
  double again;    /* caller: when to dial again; 0: it is not to */
  double lost;     /* caller: when the first connection was lost; 0: none was */
} talk;

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static pith_status make_name(char name[NAME_SIZE + 1]) {
  uint64_t random[2];
  PITH_TRY(pith__random_bytes(random, sizeof random));
  snprintf(name, NAME_SIZE + 1, NAME_PREFIX "%016llx%016llx", (unsigned long long)random[0],
           (unsigned long long)random[1]);
  return PITH_OK;
}

/* The abstract name space starts with a zero byte; the name then is what the length says. */
static socklen_t make_socket_address(const void *name, struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(address->sun_path + 1, name, NAME_SIZE);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + NAME_SIZE);
}

static int open_socket(void) {
  return pith__fd_keep(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

pith_status pith__shm_link_listen(int *listener, pith_address *address) {
  char name[NAME_SIZE + 1];
  PITH_TRY(make_name(name));
  int fd = open_socket();
  PITH_REQUIRE(fd >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  struct sockaddr_un where;
  socklen_t size = make_socket_address(name, &where);
  if (bind(fd, (struct sockaddr *)&where, size) != 0 || listen(fd, SOMAXCONN) != 0) {
    int error = errno;
    pith__fd_close(fd);
    return pith_fail(PITH_ERR_SYSTEM, "shm: cannot listen at a Unix socket: %s", strerror(error));
  }
  *address = (pith_address){.size = NAME_SIZE};
  memcpy(address->data, name, NAME_SIZE);
  *listener = fd;
  return PITH_OK;
}

/* ---- Packets ----------------------------------------------------------------------------------------------------- */

typedef union descriptor_room { /* for one descriptor, aligned as the system wants it */
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
} descriptor_room;

/* memory -1: without a descriptor. */
static int send_packet(int socket, const void *data, size_t size, int memory) {
  struct iovec piece = {(void *)(uintptr_t)data, size};
  descriptor_room room = {0};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  if (memory >= 0) {
    message.msg_control = &room;
    message.msg_controllen = sizeof room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &memory, sizeof(int));
  }
  ssize_t sent;
  for (int i = 0; (sent = sendmsg(socket, &message, MSG_NOSIGNAL)) < 0; i++) {
    if (errno == EAGAIN && i < SEND_TRIES) { /* a packet or two always have room: whatever it is, it passes */
      poll(NULL, 0, 1);
    } else if (errno != EINTR) {
      break;
    }
  }
  return sent == (ssize_t)size;
}

/* The one descriptor of a message; a stranger may send several, of which none must stay open. */
static int take_descriptor(struct msghdr *message) {
  int taken = -1;
  for (struct cmsghdr *h = CMSG_FIRSTHDR(message); h; h = CMSG_NXTHDR(message, h)) {
    if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= h->cmsg_len; at += sizeof(int)) {
      int fd;
      memcpy(&fd, (char *)h + at, sizeof fd);
      if (taken >= 0) {
        close(taken);
      }
      taken = fd;
    }
  }
  return taken;
}

typedef enum hearing { HEARD_NOTHING, HEARD_PACKET, HEARD_NONSENSE } hearing;

/* Reads a packet of exactly that size, with a descriptor if `memory` is not NULL, else without. */
static hearing receive_packet(int socket, void *data, size_t size, int *memory) {
  struct iovec piece = {data, size};
  descriptor_room room;
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return HEARD_NOTHING;
  }
  int fd = got < 0 ? -1 : take_descriptor(&message);
  if (got == (ssize_t)size && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && (fd >= 0) == (memory != NULL)) {
    if (memory) {
      *memory = fd;
    }
    return HEARD_PACKET;
  }
  if (fd >= 0) {
    close(fd);
  }
  return HEARD_NONSENSE;
}

/* ---- What is said ------------------------------------------------------------------------------------------------ */

static pith_status make_hello(const pith_shm_meeting *meeting, int to, pith_shm_hello *hello) {
  *hello = (pith_shm_hello){
      .magic = PITH_SHM_HELLO_MAGIC, .from = meeting->config->rank, .to = to, .ranks = meeting->config->ranks};
  return pith__random_bytes(hello->nonce, sizeof hello->nonce);
}

/* Whether it is meant for us. */
static int is_to_us(const pith_shm_meeting *meeting, const pith_shm_hello *hello) {
  return hello->magic == PITH_SHM_HELLO_MAGIC && hello->ranks == meeting->config->ranks &&
         hello->to == meeting->config->rank && hello->zero == 0;
}

static void prove(const pith_shm_meeting *meeting, const talk *t, const char *role, const pith_shm_offer *offer,
                  uint8_t proof[PITH_SHA256_SIZE]) {
  pith__link_key_prove(meeting->key, role, &t->said, sizeof t->said, offer, offer ? offsetof(pith_shm_offer, proof) : 0,
                       proof);
}

static int send_offer(const pith_shm_meeting *meeting, int index, int socket, const talk *t, const char *role) {
  pith_shm_offer offer = {.inbox = (uint32_t)index, .shape = meeting->shape};
  prove(meeting, t, role, &offer, offer.proof);
  return send_packet(socket, &offer, sizeof offer, meeting->memory);
}

/* On HEARD_PACKET the offer is proven, and the descriptor is the caller's. */
static hearing receive_offer(const pith_shm_meeting *meeting, int socket, const talk *t, const char *role,
                             pith_shm_offer *offer, int *memory) {
  uint8_t proof[PITH_SHA256_SIZE];
  hearing heard = receive_packet(socket, offer, sizeof *offer, memory);
  if (heard != HEARD_PACKET) {
    return heard;
  }
  prove(meeting, t, role, offer, proof);
  if (!pith__digest_equal(proof, offer->proof) || offer->inbox >= offer->shape.inboxes) {
    close(*memory);
    return HEARD_NONSENSE;
  }
  return HEARD_PACKET;
}

/* Ranks that share memory run as one user: memory is not for others, whatever they know. */
static int is_same_user(int socket, unsigned *user) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  int is_known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  *user = is_known ? peer.uid : UINT32_MAX;
  return is_known && peer.uid == geteuid();
}

/* Tells when the process ends. A child that it forked may hold the socket open for long, and then that tells nothing.
 */
static int open_process(int socket) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
    return -1;
  }
  return pith__fd_keep((int)syscall(SYS_pidfd_open, peer.pid, 0)); /* descriptors of processes always are CLOEXEC */
}

static void settle(pith_shm_link *link, int socket, const pith_shm_offer *offer, int memory) {
  link->socket = socket;
  link->process = open_process(socket);
  link->memory = memory;
  link->shape = offer->shape;
  link->inbox = offer->inbox;
}

/* ---- Going to the lower ranks ------------------------------------------------------------------------------------ */

static int remaining_ms(double end) {
  double left = end - pith__now();
  return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
}

/* A listener whose queue is full says EAGAIN and cannot be polled for: try again soon. */
static pith_status dial(pith_shm_meeting *meeting, int index, int socket, talk *t) {
  unsigned user;
  int rank = meeting->links[index].rank;
  const pith_address *to = &meeting->address[rank];
  PITH_REQUIRE(to->size == NAME_SIZE && memcmp(to->data, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0, PITH_ERR_PEER,
               "shm: rank %d gave an address that is none of shared memory: do all ranks use the same transport?",
               rank);
  struct sockaddr_un where;
  socklen_t size = make_socket_address(to->data, &where);
  while (connect(socket, (struct sockaddr *)&where, size) != 0) {
    PITH_REQUIRE(errno == EAGAIN || errno == EINTR, PITH_ERR_PEER,
                 "shm: cannot reach rank %d: %s (is it on this host, in the same container, and alive?)", rank,
                 strerror(errno));
    PITH_REQUIRE(remaining_ms(meeting->end) > 0, PITH_ERR_TIMEOUT, "shm: rank %d did not answer in time", rank);
    poll(NULL, 0, 1);
  }
  PITH_REQUIRE(is_same_user(socket, &user), PITH_ERR_PEER,
               "shm: rank %d runs as user %u, rank %d as user %u: ranks that share memory must run as one user", rank,
               user, meeting->config->rank, (unsigned)geteuid());
  PITH_TRY(make_hello(meeting, rank, &t->said.caller));
  send_packet(socket, &t->said.caller, sizeof t->said.caller, -1); /* if that fails, nobody answers either */
  return PITH_OK;
}

static pith_status turned_away(int rank) {
  return pith_fail(PITH_ERR_PEER, "shm: rank %d turned us away or ended: is it of the same job, secret and version?",
                   rank);
}

/* The listener has proven itself, or not; it hears our side of it. */
static pith_status hear_answer(pith_shm_meeting *meeting, int index, int socket, talk *t) {
  pith_shm_answer answer;
  uint8_t proof[PITH_SHA256_SIZE];
  int rank = meeting->links[index].rank;
  hearing heard = receive_packet(socket, &answer, sizeof answer, NULL);
  if (heard == HEARD_NOTHING) {
    return PITH_OK;
  }
  if (heard == HEARD_NONSENSE || !is_to_us(meeting, &answer.hello)) {
    return turned_away(rank);
  }
  PITH_REQUIRE(answer.hello.from == rank, PITH_ERR_PEER, "shm: at the address of rank %d, rank %d answers", rank,
               (int)answer.hello.from);
  t->said.listener = answer.hello;
  prove(meeting, t, PITH_SHM_ROLE_ANSWER, NULL, proof);
  PITH_REQUIRE(pith__digest_equal(proof, answer.proof), PITH_ERR_PEER,
               "shm: who answers at the address of rank %d is not of this job", rank);
  t->is_answered = 1;
  return send_offer(meeting, index, socket, t, PITH_SHM_ROLE_CALLER) ? PITH_OK : turned_away(rank);
}

static pith_status hear_listener(pith_shm_meeting *meeting, int index, int *socket, talk *t) {
  pith_shm_offer offer;
  int memory;
  if (!t->is_answered) {
    return hear_answer(meeting, index, *socket, t);
  }
  hearing heard = receive_offer(meeting, *socket, t, PITH_SHM_ROLE_LISTENER, &offer, &memory);
  if (heard == HEARD_NONSENSE) {
    return turned_away(meeting->links[index].rank);
  }
  if (heard == HEARD_PACKET) {
    settle(&meeting->links[index], *socket, &offer, memory);
    *socket = -1;
  }
  return PITH_OK;
}

/* ---- Receiving the higher ranks ---------------------------------------------------------------------------------- */

static int find_link(const pith_shm_meeting *meeting, int rank) {
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].rank == rank) {
      return i;
    }
  }
  return -1;
}

/* The link that a guest claims to be the other end of, if we wait for it; -1 if we do not. */
static int claimed_link(const pith_shm_meeting *meeting, const talk *t) {
  int from = t->said.caller.from, index = from > meeting->config->rank ? find_link(meeting, from) : -1;
  return index >= 0 && meeting->links[index].socket < 0 ? index : -1;
}

/* Each returns whether the guest is done with: taken as a link, or to be dropped (*socket is left open). */
static int hear_hello(const pith_shm_meeting *meeting, int socket, talk *t) {
  pith_shm_answer answer;
  hearing heard = receive_packet(socket, &t->said.caller, sizeof t->said.caller, NULL);
  if (heard == HEARD_NOTHING) {
    return 0;
  }
  if (heard == HEARD_NONSENSE || !is_to_us(meeting, &t->said.caller) || claimed_link(meeting, t) < 0 ||
      make_hello(meeting, t->said.caller.from, &t->said.listener) != PITH_OK) {
    return 1;
  }
  answer.hello = t->said.listener;
  prove(meeting, t, PITH_SHM_ROLE_ANSWER, NULL, answer.proof);
  t->is_answered = send_packet(socket, &answer, sizeof answer, -1);
  return !t->is_answered;
}

static int hear_guest(pith_shm_meeting *meeting, int *socket, talk *t) {
  pith_shm_offer offer;
  int memory;
  if (!t->is_answered) {
    return hear_hello(meeting, *socket, t);
  }
  hearing heard = receive_offer(meeting, *socket, t, PITH_SHM_ROLE_CALLER, &offer, &memory);
  if (heard == HEARD_NOTHING) {
    return 0;
  }
  if (heard == HEARD_NONSENSE) {
    PITH_LOG_WARN("shm: turned away a process that claims to be rank %d and is not of this job",
                  (int)t->said.caller.from);
    return 1;
  }
  int index = claimed_link(meeting, t);
  if (index >= 0 && send_offer(meeting, index, *socket, t, PITH_SHM_ROLE_LISTENER)) {
    settle(&meeting->links[index], *socket, &offer, memory);
    *socket = -1;
  } else {
    PITH_LOG_WARN("shm: turned away a second process that claims to be rank %d", (int)t->said.caller.from);
    close(memory);
  }
  return 1;
}

/* ---- Both at once ------------------------------------------------------------------------------------------------ */

typedef struct lobby {
  struct pollfd *fds; /* the listener, then GUESTS_MOST guests in order of arrival, then for each link its call, later
                         its socket; then the process of each */
  talk *talks;        /* with guests and listeners */
  int guests;
  uint8_t *gone;     /* of every rank: it turned us away, or cannot be reached */
  char trouble[256]; /* the first of them, in a sentence */
  int is_broken;     /* a link that stood is over */
  double start;
} lobby;

enum { FIRST_GUEST = 1, FIRST_DIALLED = FIRST_GUEST + GUESTS_MOST };

/* When one rank is gone, others give up because of it and are gone, too. We wait for the news of all of them, since any
 * of them may be the reason. */
static const double gather_seconds = 0.2;

/* The same when a link breaks that stood already. That may be a rank which had all its links and has left since, so
 * the others get some time to come. */
static const double broken_seconds = 1.5;

/* A listener at whose door too many stand drops those who came first, also one of its own ranks. So a connection that
 * is lost is made again, for a while. */
static const double dial_pause = 0.01, dial_seconds = 5;

/* Its socket is a link's by now, or is closed here. */
static void forget_guest(lobby *l, int at) {
  pith__fd_close(l->fds[at].fd);
  size_t behind = (size_t)(FIRST_GUEST + --l->guests - at);
  memmove(&l->fds[at], &l->fds[at + 1], behind * sizeof *l->fds);
  memmove(&l->talks[at], &l->talks[at + 1], behind * sizeof *l->talks);
  l->fds[FIRST_GUEST + l->guests] = (struct pollfd){.fd = -1};
}

/* Makes a place, at the cost of the one who has stood there longest, if possible without a word. */
static void make_place(lobby *l) {
  int at = 0;
  while (at < l->guests && l->talks[FIRST_GUEST + at].is_answered) {
    at++;
  }
  forget_guest(l, FIRST_GUEST + (at < l->guests ? at : 0));
}

/* Few at a time: those who are here already must have time to speak before others push them out. */
static void accept_guests(lobby *l, int listener) {
  for (int i = 0; i < ACCEPTS_MOST; i++) {
    unsigned user;
    int socket = pith__fd_keep(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (socket < 0) {
      return;
    }
    if (!is_same_user(socket, &user)) {
      PITH_LOG_WARN("shm: turned away a process of user %u", user);
      pith__fd_close(socket);
      continue;
    }
    if (l->guests == GUESTS_MOST) {
      make_place(l);
    }
    l->talks[FIRST_GUEST + l->guests] = (talk){.is_answered = 0};
    l->fds[FIRST_GUEST + l->guests++] = (struct pollfd){socket, POLLIN, 0};
  }
}

static void end_within(pith_shm_meeting *meeting, double seconds) {
  double soon = pith__now() + seconds;
  meeting->end = soon < meeting->end ? soon : meeting->end;
}

/* Passes on a status, but of a peer that is gone: then the last error says why. */
static pith_status note_gone(pith_shm_meeting *meeting, lobby *l, int index, pith_status status) {
  if (status != PITH_ERR_PEER) {
    return status;
  }
  if (!*l->trouble) {
    snprintf(l->trouble, sizeof l->trouble, "%s", pith_error());
  }
  l->gone[meeting->links[index].rank] = 1;
  pith__fd_close(l->fds[FIRST_DIALLED + index].fd);
  l->fds[FIRST_DIALLED + index].fd = -1;
  end_within(meeting, gather_seconds);
  return PITH_OK;
}

/* A connection was lost, or turned away: that may have been for want of room. */
static pith_status note_lost(pith_shm_meeting *meeting, lobby *l, int index, pith_status status) {
  talk *t = &l->talks[FIRST_DIALLED + index];
  double now = pith__now();
  t->lost = t->lost > 0 ? t->lost : now;
  if (status != PITH_ERR_PEER || now > t->lost + dial_seconds) {
    return note_gone(meeting, l, index, status);
  }
  t->again = now + dial_pause;
  pith__fd_close(l->fds[FIRST_DIALLED + index].fd);
  l->fds[FIRST_DIALLED + index].fd = -1;
  return PITH_OK;
}

static pith_status dial_one(pith_shm_meeting *meeting, lobby *l, int index) {
  talk *t = &l->talks[FIRST_DIALLED + index];
  int socket = open_socket();
  PITH_REQUIRE(socket >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  l->fds[FIRST_DIALLED + index] = (struct pollfd){socket, POLLIN, 0};
  t->again = 0;
  t->is_answered = 0;
  return note_gone(meeting, l, index, dial(meeting, index, socket, t));
}

static pith_status dial_lower(pith_shm_meeting *meeting, lobby *l) {
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].rank < meeting->config->rank) {
      PITH_TRY(dial_one(meeting, l, i));
    }
  }
  return PITH_OK;
}

static pith_status dial_again(pith_shm_meeting *meeting, lobby *l) {
  for (int i = 0; i < meeting->count; i++) {
    double time = l->talks[FIRST_DIALLED + i].again;
    if (time > 0 && pith__now() >= time) {
      PITH_TRY(dial_one(meeting, l, i));
    }
  }
  return PITH_OK;
}

/* When there is something to do, whoever speaks. */
static double next_time(const pith_shm_meeting *meeting, const lobby *l) {
  double next = meeting->end;
  for (int i = 0; i < meeting->count; i++) {
    double time = l->talks[FIRST_DIALLED + i].again;
    next = time > 0 && time < next ? time : next;
  }
  return next;
}

/* Of links that stand only the end is of interest: bytes are for later. Their sockets take the places of the calls that
 * made them, since poll() takes no more entries than the process may have files. */
static void watch_links(const pith_shm_meeting *meeting, const lobby *l) {
  struct pollfd *calls = l->fds + FIRST_DIALLED, *processes = calls + meeting->count;
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].socket >= 0) {
      calls[i] = (struct pollfd){l->is_broken ? -1 : meeting->links[i].socket, 0, 0};
      processes[i] = (struct pollfd){l->is_broken ? -1 : meeting->links[i].process, POLLIN, 0};
    }
  }
}

static void notice_ends(pith_shm_meeting *meeting, lobby *l) {
  const struct pollfd *calls = l->fds + FIRST_DIALLED, *processes = calls + meeting->count;
  for (int i = 0; i < meeting->count && !l->is_broken; i++) {
    if (meeting->links[i].socket >= 0 && (calls[i].revents || processes[i].revents)) {
      l->is_broken = 1;
      end_within(meeting, broken_seconds);
    }
  }
}

static pith_status hear_all(pith_shm_meeting *meeting, lobby *l) {
  int has_callers = l->fds[0].revents != 0;
  notice_ends(meeting, l);
  for (int at = FIRST_GUEST + l->guests - 1; at >= FIRST_GUEST; at--) {
    if (hear_guest(meeting, &l->fds[at].fd, &l->talks[at])) {
      forget_guest(l, at);
    }
  }
  if (has_callers) {
    accept_guests(l, meeting->listener);
  }
  for (int i = 0; i < meeting->count; i++) {
    struct pollfd *listener = &l->fds[FIRST_DIALLED + i];
    if (meeting->links[i].socket < 0 && listener->fd >= 0 && listener->revents) {
      pith_status status = hear_listener(meeting, i, &listener->fd, &l->talks[FIRST_DIALLED + i]);
      PITH_TRY(status == PITH_OK ? PITH_OK : note_lost(meeting, l, i, status));
    }
  }
  return PITH_OK;
}

/* Of the peers that are not linked, those that are gone, or the others; how many. `flags` has room for every rank, or
 * is NULL. */
static int count_missing(const pith_shm_meeting *meeting, const lobby *l, int is_gone, uint8_t *flags) {
  int count = 0;
  for (int i = 0; i < meeting->count; i++) {
    int rank = meeting->links[i].rank, is_missing = meeting->links[i].socket < 0 && l->gone[rank] == is_gone;
    count += is_missing;
    if (flags) {
      flags[rank] = (uint8_t)is_missing;
    }
  }
  return count;
}

/* Those who turned us away up to the end. */
static void note_all_lost(pith_shm_meeting *meeting, lobby *l) {
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].socket < 0 && l->talks[FIRST_DIALLED + i].lost > 0) {
      (void)note_gone(meeting, l, i, turned_away(meeting->links[i].rank));
    }
  }
}

/* Some peers are not linked, and will not be. */
static pith_status fail_meeting(pith_shm_meeting *meeting, lobby *l) {
  char list[PITH_RANK_LIST_TEXT];
  note_all_lost(meeting, l);
  int ranks = meeting->config->ranks, gone = count_missing(meeting, l, 1, NULL);
  uint8_t *flags = calloc((size_t)ranks, 1);
  PITH_REQUIRE(flags, PITH_ERR_MEMORY, "shm: no memory for %d ranks", ranks);
  count_missing(meeting, l, gone > 0, flags);
  pith__rank_list(flags, ranks, list);
  free(flags);
  return gone == 1 ? pith_fail(PITH_ERR_PEER, "%s", l->trouble)
         : gone > 1
             ? pith_fail(PITH_ERR_PEER,
                         "shm: %s turned us away or ended: are they of the same job, secret and version?", list)
             : pith_fail(PITH_ERR_TIMEOUT, "shm: %s did not connect within %.1f s", list, pith__now() - l->start);
}

static pith_status meet_in(pith_shm_meeting *meeting, lobby *l) {
  int places = FIRST_DIALLED + 2 * meeting->count;
  PITH_TRY(dial_lower(meeting, l));
  while (count_missing(meeting, l, 0, NULL) > 0 && remaining_ms(meeting->end) > 0) {
    int left = remaining_ms(next_time(meeting, l)), slice = (int)(PITH_INTERRUPT_SECONDS * 1000);
    watch_links(meeting, l);
    int ready = poll(l->fds, (nfds_t)places, left < slice ? left : slice);
    PITH_REQUIRE(ready >= 0 || errno == EINTR, PITH_ERR_SYSTEM, "shm: cannot wait for peers: %s", strerror(errno));
    PITH_REQUIRE(!pith__interrupt_ask(&meeting->config->interrupt), PITH_ERR_INTERRUPTED,
                 "rank %d was interrupted while it connected with the others", meeting->config->rank);
    if (ready > 0) {
      PITH_TRY(hear_all(meeting, l));
    }
    PITH_TRY(dial_again(meeting, l));
  }
  return count_missing(meeting, l, 0, NULL) + count_missing(meeting, l, 1, NULL) ? fail_meeting(meeting, l) : PITH_OK;
}

pith_status pith__shm_link_meet(pith_shm_meeting *meeting) {
  int own = FIRST_DIALLED + meeting->count, places = own + meeting->count;
  lobby l = {.fds = calloc((size_t)places, sizeof *l.fds),
             .talks = calloc((size_t)own, sizeof *l.talks),
             .gone = calloc((size_t)meeting->config->ranks, 1),
             .start = pith__now()};
  pith_status status =
      l.fds && l.talks && l.gone ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "shm: no memory for %d links", meeting->count);
  for (int i = 0; i < places && status == PITH_OK; i++) {
    l.fds[i] = (struct pollfd){.fd = i == 0 ? meeting->listener : -1, .events = POLLIN};
  }
  if (status == PITH_OK) {
    status = meet_in(meeting, &l);
    for (int i = 1; i < own; i++) { /* guests that never spoke; links that never stood */
      if (i < FIRST_DIALLED || meeting->links[i - FIRST_DIALLED].socket < 0) {
        pith__fd_close(l.fds[i].fd);
      }
    }
  }
  free(l.fds);
  free(l.talks);
  free(l.gone);
  return status;
}

void pith__shm_link_close(pith_shm_link *link) {
  if (link->socket >= 0) {
    shutdown(link->socket, SHUT_RDWR); /* whoever else may hold it */
  }
  pith__fd_close(link->socket);
  pith__fd_close(link->process);
  if (link->memory >= 0) {
    close(link->memory);
  }
  link->socket = link->process = link->memory = -1;
}

/*
 * The meeting: every rank connects to the lower ones and accepts the higher ones, all at once and without ever
 * blocking, so that no order of arrival can lock two ranks up. Who connects says hello first; who accepts checks it and
 * answers. Strangers that connect (the name is random, but every process of the host may list it) are dropped without
 * an answer.
 *
 * The sockets keep the limits of messages (SOCK_SEQPACKET): a hello comes whole or not at all.
 */
#include "transport/shm_link.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

#define HELLO_MAGIC 0x31304d4853544950u /* "PITSHM01": the version is part of it */
#define NAME_PREFIX "pith-"
#define NAME_SIZE (sizeof NAME_PREFIX - 1 + 32)
#define GUESTS_MOST 64 /* accepted and silent so far; the oldest must go for the next */

typedef struct hello {
  uint64_t magic, job;
  int32_t from, to, ranks;
  uint32_t inbox; /* which of the sender's inboxes the other one writes to */
  pith_shm_shape shape;
} hello;

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static pith_status make_name(char name[NAME_SIZE + 1]) {
  uint64_t random[2];
  PITH_REQUIRE(getrandom(random, sizeof random, 0) == sizeof random, PITH_ERR_SYSTEM, "shm: no random numbers: %s",
               strerror(errno));
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

static int open_socket(void) { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

pith_status pith__shm_link_listen(int *listener, pith_address *address) {
  char name[NAME_SIZE + 1];
  PITH_TRY(make_name(name));
  int fd = open_socket();
  PITH_REQUIRE(fd >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  struct sockaddr_un where;
  socklen_t size = make_socket_address(name, &where);
  if (bind(fd, (struct sockaddr *)&where, size) != 0 || listen(fd, SOMAXCONN) != 0) {
    int error = errno;
    close(fd);
    return pith_fail(PITH_ERR_SYSTEM, "shm: cannot listen at a Unix socket: %s", strerror(error));
  }
  *address = (pith_address){.size = NAME_SIZE};
  memcpy(address->data, name, NAME_SIZE);
  *listener = fd;
  return PITH_OK;
}

/* ---- Hellos ------------------------------------------------------------------------------------------------------ */

typedef union descriptor_room { /* for one descriptor, aligned as the system wants it */
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
} descriptor_room;

static int send_hello(const pith_shm_meeting *meeting, int index, int socket) {
  hello text = {
      HELLO_MAGIC,     meeting->config->job, meeting->config->rank, meeting->links[index].rank, meeting->config->ranks,
      (uint32_t)index, meeting->shape};
  struct iovec piece = {&text, sizeof text};
  descriptor_room room = {0};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
  memcpy(CMSG_DATA(header), &meeting->memory, sizeof(int));
  return sendmsg(socket, &message, MSG_NOSIGNAL) == (ssize_t)sizeof text;
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

typedef enum hearing { HEARD_NOTHING, HEARD_HELLO, HEARD_NONSENSE } hearing;

/* Reads a hello to us of our job. On HEARD_HELLO the descriptor is the caller's. */
static hearing receive_hello(const pith_shm_meeting *meeting, int socket, hello *text, int *memory) {
  struct iovec piece = {text, sizeof *text};
  descriptor_room room;
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  ssize_t size = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
    return HEARD_NOTHING;
  }
  int fd = size < 0 ? -1 : take_descriptor(&message);
  if (fd >= 0 && size == (ssize_t)sizeof *text && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) &&
      text->magic == HELLO_MAGIC && text->job == meeting->config->job && text->ranks == meeting->config->ranks &&
      text->to == meeting->config->rank && text->inbox < text->shape.inboxes) {
    *memory = fd;
    return HEARD_HELLO;
  }
  if (fd >= 0) {
    close(fd);
  }
  return HEARD_NONSENSE;
}

/* Tells when the process ends. A child that it forked may hold the socket open for long, and then that tells nothing.
 */
static int open_process(int socket) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0) {
    return -1;
  }
  return (int)syscall(SYS_pidfd_open, peer.pid, 0); /* descriptors of processes always are CLOEXEC */
}

static void settle(pith_shm_link *link, int socket, const hello *text, int memory) {
  link->socket = socket;
  link->process = open_process(socket);
  link->memory = memory;
  link->shape = text->shape;
  link->inbox = text->inbox;
}

/* ---- Going to the lower ranks ------------------------------------------------------------------------------------ */

static int remaining_ms(double end) {
  double left = end - pith__now();
  return left <= 0 ? 0 : left > 1e6 ? 1000000000 : (int)(left * 1e3) + 1;
}

/* A listener whose queue is full says EAGAIN and cannot be polled for: try again soon. */
static pith_status dial(pith_shm_meeting *meeting, int index, int socket) {
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
  PITH_REQUIRE(send_hello(meeting, index, socket), PITH_ERR_PEER, "shm: cannot greet rank %d: %s", rank,
               strerror(errno));
  return PITH_OK;
}

static pith_status hear_answer(pith_shm_meeting *meeting, int index, int *socket) {
  hello text;
  int memory, rank = meeting->links[index].rank;
  hearing heard = receive_hello(meeting, *socket, &text, &memory);
  PITH_REQUIRE(heard != HEARD_NONSENSE, PITH_ERR_PEER,
               "shm: rank %d turned us away or ended: is it of the same job and version?", rank);
  if (heard == HEARD_NOTHING) {
    return PITH_OK;
  }
  if (text.from != rank) {
    close(memory);
    return pith_fail(PITH_ERR_PEER, "shm: at the address of rank %d, rank %d answers", rank, (int)text.from);
  }
  settle(&meeting->links[index], *socket, &text, memory);
  *socket = -1;
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

/* Whether the socket of a guest was used up: taken as a link, or closed. */
static int hear_guest(pith_shm_meeting *meeting, int socket) {
  hello text;
  int memory;
  hearing heard = receive_hello(meeting, socket, &text, &memory);
  if (heard == HEARD_NOTHING) {
    return 0;
  }
  int index = heard == HEARD_HELLO && text.from > meeting->config->rank ? find_link(meeting, text.from) : -1;
  if (index >= 0 && meeting->links[index].socket < 0 && send_hello(meeting, index, socket)) {
    settle(&meeting->links[index], socket, &text, memory);
    return 1;
  }
  if (heard == HEARD_HELLO) {
    PITH_LOG_WARN("shm: turned away a second process that claims to be rank %d", (int)text.from);
    close(memory);
  }
  close(socket);
  return 1;
}

/* ---- Both at once ------------------------------------------------------------------------------------------------ */

typedef struct lobby {
  struct pollfd
      *fds; /* the listener, then GUESTS_MOST guests in order of arrival, then a place for each link we dial */
  int guests;
} lobby;

static struct pollfd *guest(const lobby *l, int i) { return &l->fds[1 + i]; }
static struct pollfd *dialled(const lobby *l, int i) { return &l->fds[1 + GUESTS_MOST + i]; }

static void forget_guest(lobby *l, int i) {
  l->guests--;
  memmove(guest(l, i), guest(l, i + 1), (size_t)(l->guests - i) * sizeof *l->fds);
  *guest(l, l->guests) = (struct pollfd){.fd = -1};
}

static void accept_guests(lobby *l, int listener) {
  for (int i = 0; i < GUESTS_MOST; i++) { /* not forever, whoever comes */
    int socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) {
      return;
    }
    if (l->guests == GUESTS_MOST) {
      close(guest(l, 0)->fd);
      forget_guest(l, 0);
    }
    *guest(l, l->guests++) = (struct pollfd){socket, POLLIN, 0};
  }
}

static pith_status dial_lower(pith_shm_meeting *meeting, lobby *l) {
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].rank < meeting->config->rank) {
      int socket = open_socket();
      PITH_REQUIRE(socket >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
      *dialled(l, i) = (struct pollfd){socket, POLLIN, 0};
      PITH_TRY(dial(meeting, i, socket));
    }
  }
  return PITH_OK;
}

static pith_status hear_all(pith_shm_meeting *meeting, lobby *l) {
  if (l->fds[0].revents) {
    accept_guests(l, meeting->listener);
  }
  for (int i = l->guests - 1; i >= 0; i--) {
    if (hear_guest(meeting, guest(l, i)->fd)) {
      forget_guest(l, i);
    }
  }
  for (int i = 0; i < meeting->count; i++) {
    if (dialled(l, i)->fd >= 0 && dialled(l, i)->revents) {
      PITH_TRY(hear_answer(meeting, i, &dialled(l, i)->fd));
    }
  }
  return PITH_OK;
}

static int first_missing(const pith_shm_meeting *meeting) {
  for (int i = 0; i < meeting->count; i++) {
    if (meeting->links[i].socket < 0) {
      return meeting->links[i].rank;
    }
  }
  return -1;
}

static pith_status meet_in(pith_shm_meeting *meeting, lobby *l) {
  PITH_TRY(dial_lower(meeting, l));
  while (first_missing(meeting) >= 0) {
    int ready = poll(l->fds, 1 + GUESTS_MOST + (nfds_t)meeting->count, remaining_ms(meeting->end));
    PITH_REQUIRE(ready != 0, PITH_ERR_TIMEOUT, "shm: rank %d did not connect within %g s", first_missing(meeting),
                 meeting->config->timeout);
    PITH_REQUIRE(ready > 0 || errno == EINTR, PITH_ERR_SYSTEM, "shm: cannot wait for peers: %s", strerror(errno));
    if (ready > 0) {
      PITH_TRY(hear_all(meeting, l));
    }
  }
  return PITH_OK;
}

pith_status pith__shm_link_meet(pith_shm_meeting *meeting) {
  int places = 1 + GUESTS_MOST + meeting->count;
  lobby l = {malloc((size_t)places * sizeof *l.fds), 0};
  PITH_REQUIRE(l.fds, PITH_ERR_MEMORY, "shm: no memory for %d links", meeting->count);
  for (int i = 0; i < places; i++) {
    l.fds[i] = (struct pollfd){.fd = -1};
  }
  l.fds[0] = (struct pollfd){meeting->listener, POLLIN, 0};
  pith_status status = meet_in(meeting, &l);
  for (int i = 1; i < places; i++) { /* guests that never spoke; links that never stood */
    if (l.fds[i].fd >= 0) {
      close(l.fds[i].fd);
    }
  }
  free(l.fds);
  return status;
}

static void close_if_open(int *fd) {
  if (*fd >= 0) {
    close(*fd);
  }
  *fd = -1;
}

void pith__shm_link_close(pith_shm_link *link, int is_owner) {
  if (link->socket >= 0 && is_owner) {
    shutdown(link->socket, SHUT_RDWR); /* a child that was forked may hold it too */
  }
  close_if_open(&link->socket);
  close_if_open(&link->process);
  close_if_open(&link->memory);
}

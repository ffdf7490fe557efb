/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets between processes of one host: see unix_socket.h. */
#include "transport/unix_socket.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/forked.h"
#include "transport/sockets.h"

#define NAME_PREFIX "pith-"
#define SEND_TRIES 100

_Static_assert(sizeof NAME_PREFIX - 1 + 32 == PITH_UNIX_NAME, "a prefix and 128 random bits");

/* ---- Names ------------------------------------------------------------------------------------------------------- */

static pith_status make_name(char name[PITH_UNIX_NAME]) {
  uint64_t random[2];
  char text[PITH_UNIX_NAME + 1];
  PITH_TRY(pith__random_bytes(random, sizeof random));
  snprintf(text, sizeof text, NAME_PREFIX "%016llx%016llx", (unsigned long long)random[0],
           (unsigned long long)random[1]);
  memcpy(name, text, PITH_UNIX_NAME);
  return PITH_OK;
}

int pith__unix_is_name(const void *bytes, size_t size) {
  return size == PITH_UNIX_NAME && memcmp(bytes, NAME_PREFIX, sizeof NAME_PREFIX - 1) == 0;
}

/* The abstract name space starts with a zero byte; the name then is what the length says. */
static socklen_t make_address(const void *name, struct sockaddr_un *address) {
  *address = (struct sockaddr_un){.sun_family = AF_UNIX};
  memcpy(address->sun_path + 1, name, PITH_UNIX_NAME);
  return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + PITH_UNIX_NAME);
}

int pith__unix_open(void) { return pith__fd_keep(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)); }

pith_status pith__unix_listen(int *listener, char name[PITH_UNIX_NAME]) {
  PITH_TRY(make_name(name));
  int fd = pith__unix_open();
  PITH_REQUIRE(fd >= 0, PITH_ERR_SYSTEM, "shm: cannot open a Unix socket: %s", strerror(errno));
  struct sockaddr_un where;
  socklen_t size = make_address(name, &where);
  if (bind(fd, (struct sockaddr *)&where, size) != 0 || listen(fd, SOMAXCONN) != 0) {
    int error = errno;
    pith__fd_close(fd);
    return pith_fail(PITH_ERR_SYSTEM, "shm: cannot listen at a Unix socket: %s", strerror(error));
  }
  *listener = fd;
  return PITH_OK;
}

int pith__unix_connect(int socket, const void *name) {
  struct sockaddr_un where;
  socklen_t size = make_address(name, &where);
  return connect(socket, (struct sockaddr *)&where, size);
}

int pith__unix_same_user(int socket, unsigned *user) {
  struct ucred peer;
  socklen_t size = sizeof peer;
  int is_known = getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  *user = is_known ? peer.uid : UINT32_MAX;
  return is_known && peer.uid == geteuid();
}

/* ---- Packets ----------------------------------------------------------------------------------------------------- */

typedef union descriptor_room { /* for one descriptor, aligned as the system wants it */
  struct cmsghdr header;
  char bytes[CMSG_SPACE(sizeof(int))];
} descriptor_room;

int pith__packet_send(int socket, const void *data, size_t size, int descriptor) {
  struct iovec piece = {(void *)(uintptr_t)data, size};
  descriptor_room room = {0};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &room;
    message.msg_controllen = sizeof room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
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
  for (struct cmsghdr *header = CMSG_FIRSTHDR(message); header; header = CMSG_NXTHDR(message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) {
      continue;
    }
    for (size_t at = CMSG_LEN(0); at + sizeof(int) <= header->cmsg_len; at += sizeof(int)) {
      int fd;
      memcpy(&fd, (char *)header + at, sizeof fd);
      if (taken >= 0) {
        close(taken);
      }
      taken = fd;
    }
  }
  return taken;
}

pith_packet_state pith__packet_receive(int socket, void *data, size_t size, int *descriptor) {
  struct iovec piece = {data, size};
  descriptor_room room;
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &room, .msg_controllen = sizeof room};
  ssize_t got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
    return PITH_PACKET_NONE;
  }
  int fd = got < 0 ? -1 : take_descriptor(&message);
  if (got == (ssize_t)size && !(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) && (fd >= 0) == (descriptor != NULL)) {
    if (descriptor) {
      *descriptor = fd;
    }
    return PITH_PACKET_VALID;
  }
  if (fd >= 0) {
    close(fd);
  }
  return PITH_PACKET_INVALID;
}

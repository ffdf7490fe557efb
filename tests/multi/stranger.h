/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A job of two ranks with a stranger between them, for tests of what strangers can do. The stranger sits on the way
 * from rank 1 to rank 0's rendezvous and sees every byte of it. Both ranks make their comm by pith_comm_create.
 */
#ifndef PITH_TESTS_STRANGER_H
#define PITH_TESTS_STRANGER_H

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ranks.h"
#include "test.h"
#include "transport/address_record.h"
#include "transport/rendezvous_wire.h"
#include "transport/shm_link.h"
#include "transport/tcp.h"

#define NOBODY 65534
#define SECRET "the ranks know it"

/* ---- A job of two ranks, with somebody between them -------------------------------------------------------------- */

/* What a spy at the rendezvous knows of rank 0. */
typedef struct knowledge {
  uint64_t job;
  pith_address local, network;
} knowledge;

typedef int (*attack_fn)(const knowledge *k); /* whether rank 0 took us for rank 1, or told us more than it must */

static inline _Noreturn void be_rank(const char *transport, int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  float mine = rank ? 2 : 1, sum = 0;
  config.rank = rank, config.ranks = 2, config.port = port, config.host = "127.0.0.1";
  config.transport = transport, config.timeout = 10, config.secret = SECRET;
  CHECK_OK(pith_comm_create(&config, &comm));
  CHECK_STR(pith_comm_transport(comm, !rank), transport);
  CHECK_OK(
      pith_allreduce(comm, (pith_cspan){&mine, 1, PITH_F32}, (pith_span){&sum, 1, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK(sum == 3);
  pith_comm_destroy(comm);
  _exit(0);
}

static inline pid_t start_rank(const char *transport, int rank, int port) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    be_rank(transport, rank, port);
  }
  return child;
}

static inline int connect_to(int port) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  to.sin_port = htons((uint16_t)port);
  for (int i = 0; i < 1000; i++) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) {
      return fd;
    }
    close(fd);
    usleep(5000);
  }
  CHECK_MSG(0, "nobody listens on port %d", port);
  return -1;
}

static inline int listen_at(int port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  at.sin_port = htons((uint16_t)port);
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
  return fd;
}

static inline void read_whole(int fd, void *to, size_t size) { CHECK_EQ(recv(fd, to, size, MSG_WAITALL), size); }

static inline void write_whole(int fd, const void *from, size_t size) {
  CHECK_EQ(send(fd, from, size, MSG_NOSIGNAL), size);
}

/* An attack is made by a process of its own, so that it can be of another user. */
static inline int attack_as(attack_fn attack, uid_t user, const knowledge *k) {
  int status;
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    if (user != geteuid()) {
      CHECK(setgid(user) == 0 && setuid(user) == 0);
    }
    _exit(attack(k));
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) <= 1);
  return WEXITSTATUS(status);
}

/* A table of two ranks: two sizes, then the record of rank 0. */
static inline knowledge learn(const rendezvous_reply *reply, const uint8_t *table) {
  knowledge k = {.job = reply->job};
  pith_address_record record;
  uint32_t size;
  CHECK_EQ(reply->status, PITH_OK);
  memcpy(&size, table, sizeof size);
  CHECK(2 * sizeof size + size <= reply->size);
  CHECK_OK(pith__address_record_read(table + 2 * sizeof size, size, 0, &record));
  k.local = record.address[PITH_KIND_LOCAL];
  k.network = record.address[PITH_KIND_NETWORK];
  return k;
}

/* Rank 1 comes to rank 0's rendezvous through us. The attack is made when the addresses are known to us, and to rank 1
 * not yet. */
static inline int spy(int listener, int port, attack_fn attack, uid_t user) {
  uint8_t buffer[8192];
  rendezvous_greeting greeting;
  rendezvous_hello hello;
  rendezvous_reply reply;
  int client = accept(listener, NULL, NULL), server = connect_to(port);
  read_whole(server, &greeting, sizeof greeting);
  write_whole(client, &greeting, sizeof greeting);
  read_whole(client, &hello, sizeof hello);
  CHECK(hello.size <= sizeof buffer);
  read_whole(client, buffer, hello.size);
  write_whole(server, &hello, sizeof hello);
  write_whole(server, buffer, hello.size);
  read_whole(server, &reply, sizeof reply);
  CHECK(reply.size <= sizeof buffer);
  read_whole(server, buffer, reply.size);
  knowledge k = learn(&reply, buffer);
  int joined = attack_as(attack, user, &k);
  write_whole(client, &reply, sizeof reply);
  write_whole(client, buffer, reply.size);
  close(client);
  close(server);
  return joined;
}

/* Whether rank 0 let the attacker in. If not, the ranks must connect and agree. */
static inline int attack_job(const char *transport, attack_fn attack, uid_t user) {
  int port = ranks_free_port(), through = ranks_free_port(), listener = listen_at(through);
  if (user != geteuid() && geteuid() != 0) {
    LACKS("root", "only root can become another user");
  }
  pid_t child[2] = {start_rank(transport, 0, port), start_rank(transport, 1, through)};
  int joined = spy(listener, port, attack, user);
  close(listener);
  for (int r = 0; r < 2 && joined; r++) {
    kill(child[r], SIGKILL);
    waitpid(child[r], NULL, 0);
  }
  if (!joined) {
    ranks_wait(child, 2, -1);
  }
  return joined;
}

static inline void check_attack(const char *transport, attack_fn attack, uid_t user) {
  CHECK_MSG(!attack_job(transport, attack, user), "rank 0 let a stranger in");
}

/* ---- Speaking with a rank ---------------------------------------------------------------------------------------- */

static inline int dial_shm(const knowledge *k) {
  struct sockaddr_un where = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  memcpy(where.sun_path + 1, k->local.data, k->local.size);
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + k->local.size);
  CHECK_EQ(connect(fd, (struct sockaddr *)&where, size), 0);
  return fd;
}

static inline void send_with(int fd, const void *data, size_t size, int descriptor) {
  union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(sizeof(int))];
  } room = {0};
  struct iovec piece = {(void *)(uintptr_t)data, size};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
  if (descriptor >= 0) {
    message.msg_control = &room, message.msg_controllen = sizeof room;
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    *header = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  }
  CHECK(sendmsg(fd, &message, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE || errno == ECONNRESET);
}

/* What comes within a second: its size, 0 for the end. *has_memory: a descriptor came with it. */
static inline ssize_t hear_with(int fd, void *to, size_t size, int *has_memory) {
  char room[256];
  struct pollfd ready = {fd, POLLIN, 0};
  struct iovec piece = {to, size};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  *has_memory = 0;
  ssize_t got = poll(&ready, 1, 1000) > 0 ? recvmsg(fd, &message, 0) : 0;
  *has_memory = got > 0 && CMSG_FIRSTHDR(&message) != NULL;
  return got < 0 ? 0 : got;
}

static inline int dial_tcp(const knowledge *k, uint64_t *token) {
  tcp_place place;
  CHECK_OK(pith__tcp_address_decode(&k->network, 0, &place));
  int fd = socket(place.at[0].any.sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  CHECK(connect(fd, &place.at[0].any, pith__sockaddr_size(&place.at[0])) == 0);
  *token = place.token;
  return fd;
}

static inline void throw(int fd, const void *bytes, size_t size) {
  CHECK(send(fd, bytes, size, MSG_NOSIGNAL) == (ssize_t)size || errno == EPIPE || errno == ECONNRESET);
}

/* All of it, or as much as comes within a second before the end. */
static inline size_t hear(int fd, void *to, size_t size) {
  size_t done = 0;
  ssize_t got = 1;
  for (struct pollfd ready = {fd, POLLIN, 0}; done < size && got > 0 && poll(&ready, 1, 1000) > 0;) {
    got = recv(fd, (char *)to + done, size - done, 0);
    done += got > 0 ? (size_t)got : 0;
  }
  return done;
}

/* Whether a connection that said all it can say is still there: rank 0 closes those that are not of its job. */
static inline int stays_open(int fd) {
  char byte;
  struct pollfd ready = {fd, POLLIN, 0};
  return poll(&ready, 1, 1000) == 0 || recv(fd, &byte, 1, 0) > 0;
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records what is said at a rendezvous and while links are made, as inputs of the targets that hear it. Ranks are
 * threads over real sockets; random numbers are those of fake_sockets.c, so that what was said here is right there.
 */
#include "fuzz/make_handshakes.h"

#include <pthread.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "directory.h"
#include "fuzz/fake_sockets.h"
#include "fuzz/shm_links.h"
#include "transport/tcp.h"

enum { MOST = 20000, CONNECTIONS = 16, RANKS = 3, PAUSE_US = 200000 };

static _Thread_local int rank = -1;

/* What rank `hearer` hears, in the form of fake_sockets.h. Only its own thread writes here. */
static struct {
  int hearer;
  uint8_t bytes[MOST];
  size_t size;
  int fds[CONNECTIONS]; /* in the order in which they came or were made; -1: closed */
  int count;
} heard;

static void add_connection(int fd) {
  int type;
  socklen_t size = sizeof type;
  if (rank == heard.hearer && fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 && type != SOCK_DGRAM) {
    FUZZ_REQUIRE(heard.count < CONNECTIONS);
    heard.fds[heard.count++] = fd;
  }
}

static void put(const void *data, size_t size) {
  FUZZ_REQUIRE(heard.size + size <= MOST);
  memcpy(heard.bytes + heard.size, data, size);
  heard.size += size;
}

static void hear(int fd, const struct iovec *pieces, size_t count, ssize_t got, int brings) {
  size_t left = got > 0 ? (size_t)got : 0;
  for (int i = 0; i < heard.count && rank == heard.hearer && left; i++) {
    if (heard.fds[i] != fd) {
      continue;
    }
    uint8_t head[FAKE_RECORD_HEAD] = {(uint8_t)i, brings ? FAKE_BRINGS_DESCRIPTOR : 0, (uint8_t)left,
                                      (uint8_t)(left >> 8)};
    put(head, sizeof head);
    for (size_t k = 0; k < count && left; k++) {
      size_t n = pieces[k].iov_len < left ? pieces[k].iov_len : left;
      put(pieces[k].iov_base, n);
      left -= n;
    }
  }
}

#define WRAP(type, name, ...)      \
  type __real_##name(__VA_ARGS__); \
  type __wrap_##name(__VA_ARGS__); \
  type __wrap_##name(__VA_ARGS__)

WRAP(int, connect, int fd, const struct sockaddr *address, socklen_t size) {
  add_connection(fd);
  return __real_connect(fd, address, size);
}

WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *size, int flags) {
  int made = __real_accept4(fd, address, size, flags);
  add_connection(made);
  return made;
}

WRAP(ssize_t, recv, int fd, void *to, size_t size, int flags) {
  ssize_t got = __real_recv(fd, to, size, flags);
  hear(fd, &(struct iovec){to, size}, 1, flags & MSG_PEEK ? 0 : got, 0);
  return got;
}

WRAP(ssize_t, recvmsg, int fd, struct msghdr *message, int flags) {
  ssize_t got = __real_recvmsg(fd, message, flags);
  hear(fd, message->msg_iov, message->msg_iovlen, got, message->msg_controllen > 0);
  return got;
}

WRAP(int, close, int fd) {
  for (int i = 0; i < heard.count && rank == heard.hearer; i++) {
    heard.fds[i] = heard.fds[i] == fd ? -1 : heard.fds[i];
  }
  return __real_close(fd);
}

enum { NAME_BYTES = 16 }; /* names of sockets must differ here; no proof depends on them */

WRAP(ssize_t, getrandom, void *to, size_t size, unsigned flags) {
  if (rank < 0 || size == NAME_BYTES) {
    return __real_getrandom(to, size, flags);
  }
  memset(to, 0x5a, size);
  return (ssize_t)size;
}

/* ---- The exchanges ----------------------------------------------------------------------------------------------- */

static struct {
  int ranks, port;
  const char *secret;
  pthread_barrier_t listening;
  pith_address address[RANKS];
} job;

/* As fuzz_server.c and fuzz_client.c do it. */
static void *be_in_comm(void *argument) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  rank = (int)(size_t)argument;
  config.rank = rank, config.ranks = job.ranks, config.host = "127.0.0.1", config.port = job.port;
  config.transport = "tcp", config.timeout = 20, config.host_id = "here", config.secret = job.secret;
  config.interface = "127.0.0.1";
  usleep((useconds_t)rank * PAUSE_US);
  FUZZ_REQUIRE(pith_comm_create(&config, &comm) == PITH_OK);
  pith_comm_destroy(comm);
  return NULL;
}

static const pith_link_key key = {.job = 7, .bytes = {1, 2, 3}};

/* As fuzz_hello_tcp.c does it. Who is called comes first. */
static void *be_in_tcp(void *argument) {
  pith_transport *transport;
  uint8_t wanted[RANKS] = {1, 1, 1};
  rank = (int)(size_t)argument;
  wanted[rank] = 0;
  pith_transport_config config = {.rank = rank, .ranks = RANKS, .timeout = 20, .interface = "127.0.0.1"};
  FUZZ_REQUIRE(pith__transport_tcp.listen(&config, &transport, &job.address[rank]) == PITH_OK);
  pthread_barrier_wait(&job.listening);
  usleep((useconds_t)rank * PAUSE_US);
  pith_directory directory = directory_of(job.address);
  FUZZ_REQUIRE(pith__transport_tcp.connect(transport, &directory, wanted, &key) == PITH_OK);
  pith__transport_tcp.close(transport);
  return NULL;
}

/* As fuzz_hello_shm.c does it. */
static void *be_in_shm(void *argument) {
  shm_links links;
  pith_shm_segment segment;
  int listener, memory;
  rank = (int)(size_t)argument;
  pith_transport_config config = {.rank = rank, .ranks = RANKS, .timeout = 20};
  pith_shm_shape shape = pith__shm_shape(RANKS - 1, PITH_SHM_POOL);
  FUZZ_REQUIRE(pith__shm_segment_create(&shape, &segment, &memory) == PITH_OK);
  FUZZ_REQUIRE(pith__shm_link_listen(&listener, &job.address[rank]) == PITH_OK);
  pthread_barrier_wait(&job.listening);
  usleep((useconds_t)rank * PAUSE_US);
  pith_shm_setup setup = shm_links_begin(&links, &config, &key, job.address, listener, memory, 1e18);
  FUZZ_REQUIRE(pith__shm_link_connect(&setup) == PITH_OK);
  return NULL; /* the program ends soon, and all descriptors with it */
}

static void record(const char *target, int hearer, int ranks, int head, void *(*be)(void *)) {
  pthread_t threads[RANKS];
  memset(&heard, 0, sizeof heard);
  heard.hearer = hearer;
  job.ranks = ranks;
  pthread_barrier_init(&job.listening, NULL, (unsigned)ranks);
  for (int r = 0; r < ranks; r++) {
    FUZZ_REQUIRE(pthread_create(&threads[r], NULL, be, (void *)(size_t)r) == 0);
  }
  for (int r = 0; r < ranks; r++) {
    pthread_join(threads[r], NULL);
  }
  pthread_barrier_destroy(&job.listening);
  for (int trusts = 0; trusts <= FAKE_TRUSTS; trusts++) {
    uint8_t first[2] = {(uint8_t)head, (uint8_t)trusts};
    int is_plain = head < 0; /* no byte that chooses */
    fuzz_write_input(target, first + is_plain, sizeof first - (size_t)is_plain, heard.bytes, heard.size);
  }
}

void fuzz_make_handshakes(void) {
  for (int head = 0; head < 4; head++) { /* bit 0: three ranks; bit 1: a secret */
    job.port = 24000 + (int)(getpid() % 5000) + head;
    job.secret = head & 2 ? "secret" : NULL;
    record("server", 0, 2 + (head & 1), head, be_in_comm);
    record("client", 1, 2 + (head & 1), head, be_in_comm);
  }
  record("hello_tcp", 1, RANKS, -1, be_in_tcp);
  record("hello_shm", 1, RANKS, -1, be_in_shm);
}

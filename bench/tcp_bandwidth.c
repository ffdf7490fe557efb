/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much of a plain socket's bandwidth the tcp transport keeps on loopback: one process sends, one receives, in turns
 * over a bare connection (blocking send and recv) and over a link. Prints the best of some runs of each, in time and in
 * CPU time of both sides; the latter says more on a machine that others use too.
 *
 *   tcp_bandwidth [MiB of each run, 2048] [KiB of each call, 1024]
 */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/link_key.h"
#include "transport/sockets.h"
#include "transport/transport.h"

enum { RUNS = 5, WAYS = 4 };

static size_t total, piece;
static const int connections[WAYS] = {0, 1, 2, 4}; /* 0: plain */

static void demand(int condition, const char *what) {
  if (!condition) {
    fprintf(stderr, "tcp_bandwidth: %s (%s)\n", what, pith_error());
    exit(1);
  }
}

/* ---- A plain socket ---------------------------------------------------------------------------------------------- */

static void plain_send(const pith_sockaddr *to, char *buffer) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  demand(connect(fd, &to->any, pith__sockaddr_size(to)) == 0, "connect");
  pith__socket_tune(fd, 30);
  for (size_t done = 0; done < total;) {
    ssize_t n = send(fd, buffer, piece < total - done ? piece : total - done, MSG_NOSIGNAL);
    demand(n > 0, "send");
    done += (size_t)n;
  }
  close(fd);
}

static double plain_receive(int listener, char *buffer) {
  int fd = accept(listener, NULL, NULL);
  double start = pith__now();
  for (size_t done = 0; done < total;) {
    ssize_t n = recv(fd, buffer, piece, 0);
    demand(n > 0, "recv");
    done += (size_t)n;
  }
  close(fd);
  return pith__now() - start;
}

static double run_plain(char *buffer) {
  pith_sockaddr at;
  demand(pith__sockaddr_parse("127.0.0.1", 0, &at), "address");
  int listener = socket(AF_INET, SOCK_STREAM, 0);
  demand(bind(listener, &at.any, pith__sockaddr_size(&at)) == 0 && listen(listener, 1) == 0, "listen");
  pith__socket_local(listener, &at);
  pid_t child = fork();
  if (child == 0) {
    plain_send(&at, buffer);
    _exit(0);
  }
  double seconds = plain_receive(listener, buffer);
  waitpid(child, NULL, 0);
  close(listener);
  return seconds;
}

/* ---- A link ------------------------------------------------------------------------------------------------------ */

static void wait_for(pith_transport *t, int sending) {
  struct pollfd fds[4];
  uint8_t flags[2] = {(uint8_t)sending, (uint8_t)sending};
  poll(fds, (nfds_t)t->ops->descriptors(t, flags, fds, 4), 1000);
}

static double move(pith_transport *t, int rank, char *buffer) {
  double start = pith__now();
  for (size_t done = 0, moved = 0; done < total; done += moved) {
    size_t size = piece < total - done ? piece : total - done;
    struct iovec part = {buffer, size};
    demand((rank ? t->ops->send(t, 0, &part, 1, &moved) : t->ops->receive(t, 1, buffer, size, &moved)) == PITH_OK,
           "move");
    if (moved == 0) {
      wait_for(t, rank);
    }
  }
  return pith__now() - start;
}

/* What the two ranks see of each other. */
typedef struct place {
  pith_address address[2];
  atomic_int is_known[2];
} place;

static double run_rank(int rank, int count, place *shared, char *buffer) {
  pith_transport *t;
  pith_link_key key;
  pith_transport_config config = {.rank = rank, .ranks = 2, .connections = count, .timeout = 10};
  pith__link_key_make(NULL, 1, &key);
  demand(pith__transport_tcp.listen(&config, &t, &shared->address[rank]) == PITH_OK, "listen");
  atomic_store(&shared->is_known[rank], 1);
  while (!atomic_load(&shared->is_known[!rank])) {
    sched_yield();
  }
  demand(pith__transport_tcp.connect(t, shared->address, (const uint8_t[]){(uint8_t)rank, (uint8_t)!rank}, &key) ==
             PITH_OK,
         "link");
  double seconds = move(t, rank, buffer);
  pith__transport_tcp.close(t);
  return seconds;
}

static double run_link(int count, char *buffer) {
  place *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  demand(shared != MAP_FAILED, "memory");
  pid_t child = fork();
  if (child == 0) {
    run_rank(1, count, shared, buffer);
    _exit(0);
  }
  double seconds = run_rank(0, count, shared, buffer);
  waitpid(child, NULL, 0);
  munmap(shared, sizeof *shared);
  return seconds;
}

static double cpu_seconds(void) {
  double seconds = 0;
  for (int i = 0; i < 2; i++) {
    struct rusage use;
    getrusage(i ? RUSAGE_SELF : RUSAGE_CHILDREN, &use);
    seconds += (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec);
    seconds += 1e-6 * (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec);
  }
  return seconds;
}

int main(int argc, char **argv) {
  total = (size_t)(argc > 1 ? atol(argv[1]) : 2048) << 20;
  piece = (size_t)(argc > 2 ? atol(argv[2]) : 1024) << 10;
  char *buffer = malloc(piece);
  demand(buffer != NULL && total && piece, "sizes");
  memset(buffer, 1, piece);
  double best[WAYS] = {0}, cpu[WAYS] = {0};
  for (int run = 0; run < RUNS; run++) {
    for (int way = 0; way < WAYS; way++) {
      double before = cpu_seconds();
      double seconds = connections[way] ? run_link(connections[way], buffer) : run_plain(buffer);
      double rate = (double)total / seconds * 1e-9;
      double cost = (cpu_seconds() - before) / ((double)total * 1e-9);
      best[way] = rate > best[way] ? rate : best[way];
      cpu[way] = run == 0 || cost < cpu[way] ? cost : cpu[way];
    }
  }
  printf("%-14s %8s %8s %10s %8s\n", "loopback", "GB/s", "of plain", "CPU s/GB", "of plain");
  for (int way = 0; way < WAYS; way++) {
    char name[32];
    snprintf(name, sizeof name, connections[way] ? "tcp, %d conn." : "plain socket", connections[way]);
    printf("%-14s %8.2f %7.0f%% %10.3f %7.0f%%\n", name, best[way], 100 * best[way] / best[0], cpu[way],
           100 * cpu[way] / cpu[0]);
  }
  free(buffer);
  return 0;
}

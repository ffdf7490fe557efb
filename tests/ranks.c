/* SPDX-License-Identifier: Apache-2.0 */
/* Starts ranks. */
#include "ranks.h"
#include "descriptors.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "test.h"
#include "transport/module.h"

#define DESTROY_MOST 2.0 /* seconds, whatever has become of the others */

typedef struct one_rank {
  pith_config config;
  ranks_fn run;
  void *argument;
} one_rank;

/* Not one that the system gives to outgoing connections, which somebody may get before we use it. */
int ranks_free_port(void) {
  static unsigned turn;
  for (;;) {
    uint64_t mixed = ((uint64_t)getpid() * 7919 + ++turn) * 0x9e3779b97f4a7c15u + (uint64_t)(pith__now() * 1e6);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)(11000 + (mixed >> 33) % 20000));
    int s = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(s >= 0);
    int free_now = bind(s, (struct sockaddr *)&address, sizeof address) == 0;
    close(s);
    if (free_now) {
      return ntohs(address.sin_port);
    }
  }
}

static void *run_one(void *argument) {
  one_rank *me = argument;
  pith_comm *comm;
  CHECK_OK(pith_comm_create(&me->config, &comm));
  CHECK_EQ(pith_comm_rank(comm), me->config.rank);
  me->run(comm, me->argument);
  double start = pith__now();
  pith_comm_destroy(comm);
  double took = pith__now() - start;
  CHECK_MSG(took < DESTROY_MOST, "rank %d took %.1f s to leave", me->config.rank, took);
  return NULL;
}

static void run_threads(one_rank *rank, int ranks) {
  pthread_t thread[ranks];
  for (int r = 0; r < ranks; r++) {
    CHECK(pthread_create(&thread[r], NULL, run_one, &rank[r]) == 0);
  }
  for (int r = 0; r < ranks; r++) {
    pthread_join(thread[r], NULL);
  }
}

static _Noreturn void be_process(one_rank *me) {
  int before = count_descriptors();
  run_one(me);
  CHECK_EQ(count_descriptors(), before);
  _exit(0);
}

static void start_processes(one_rank *rank, int ranks, pid_t *child) {
  for (int r = 0; r < ranks; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      be_process(&rank[r]);
    }
  }
}

void ranks_wait(const pid_t *child, int ranks, int but) {
  for (int r = 0; r < ranks; r++) {
    int status;
    if (r != but) {
      CHECK(waitpid(child[r], &status, 0) == child[r]);
      CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "rank %d of %d failed", r, ranks);
    }
  }
}

static void configure(one_rank *rank, const char *transport, int ranks, size_t chunk, double timeout, ranks_fn run,
                      void *argument) {
  int port = ranks_free_port();
  for (int r = 0; r < ranks; r++) {
    pith_config config = PITH_CONFIG_INIT;
    config.rank = r, config.ranks = ranks, config.port = port, config.host = "127.0.0.1";
    config.transport = transport, config.chunk = chunk, config.timeout = timeout;
    rank[r] = (one_rank){config, run, argument};
  }
}

/* Over tcp each rank takes itself for a host of its own, so that messages are checked as on a network. */
void ranks_start(const char *transport, int ranks, double timeout, ranks_fn run, void *argument, pid_t *child) {
  one_rank rank[ranks];
  char names[ranks][16];
  configure(rank, transport, ranks, 0, timeout, run, argument);
  for (int r = 0; r < ranks && strcmp(transport, "tcp") == 0; r++) {
    snprintf(names[r], sizeof names[r], "host%d", r);
    rank[r].config.host_id = names[r];
  }
  start_processes(rank, ranks, child);
}

static void run_all(const char *transport, one_rank *rank, int ranks) {
  pid_t child[ranks];
  if (strcmp(transport, "inproc") == 0) {
    run_threads(rank, ranks);
  } else {
    start_processes(rank, ranks, child);
    ranks_wait(child, ranks, -1);
  }
}

void ranks_run(const char *transport, int ranks, size_t chunk, ranks_fn run, void *argument) {
  one_rank rank[ranks];
  configure(rank, transport, ranks, chunk, 20, run, argument);
  run_all(transport, rank, ranks);
}

void ranks_run_hosts(const char *transport, int ranks, int per_host, size_t chunk, const char *inside, ranks_fn run,
                     void *argument) {
  one_rank rank[ranks];
  char names[ranks][16];
  configure(rank, transport, ranks, chunk, 20, run, argument);
  for (int r = 0; r < ranks; r++) {
    snprintf(names[r], sizeof names[r], "host%d", r / per_host);
    rank[r].config.host_id = names[r];
    rank[r].config.inside = inside;
  }
  run_all(transport, rank, ranks);
}

void ranks_need_ucx(const char *modules, const char *networks) {
  const pith_transport_ops *ops;
  setenv("PITH_MODULE_PATH", modules, 1);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
  setenv("UCX_TLS", networks, 1);
  if (pith__transport_open("ucx", &ops) != PITH_OK || ops->probe() != PITH_OK) {
    LACKS("ucx", "%s", pith_error());
  }
}

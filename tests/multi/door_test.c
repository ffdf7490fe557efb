/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links that are made when they are first used: which ones there are, that all operations work over them, that two
 * ranks may want one at the same time, that a rank which computes still answers, and that failures are named on ranks
 * that have no link with the rank which failed.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "ranks.h"
#include "test.h"
#include "transport/rendezvous.h"
#include "transport/tcp.h"
#include "transport/unix_socket.h"

#define RANKS_MOST 128

/* A group whose ranks are linked on demand, however few they are. */
typedef struct group {
  const char *transport;
  int ranks, hosts, eager;
  double timeout;
  void (*run)(pith_comm *comm, void *argument);
  void *argument;
} group;

typedef struct member {
  group g;
  int rank, port;
} member;

static pith_comm *join(const member *m) {
  char host[16];
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = m->rank, config.ranks = m->g.ranks, config.port = m->port, config.host = "127.0.0.1";
  config.transport = m->g.transport, config.timeout = m->g.timeout > 0 ? m->g.timeout : 60;
  config.eager = m->g.eager ? m->g.eager : 1;
  if (m->g.hosts) {
    snprintf(host, sizeof host, "host%d", m->rank / (m->g.ranks / m->g.hosts));
    config.host_id = host;
  }
  CHECK_OK(pith_comm_create(&config, &comm));
  return comm;
}

static void *be_thread(void *argument) {
  const member *m = argument;
  pith_comm *comm = join(m);
  m->g.run(comm, m->g.argument);
  pith_comm_destroy(comm);
  return NULL;
}

static void run_threads(group g) {
  pthread_t thread[RANKS_MOST];
  static member members[RANKS_MOST];
  int port = ranks_free_port();
  for (int r = 0; r < g.ranks; r++) {
    members[r] = (member){g, r, port};
    CHECK(pthread_create(&thread[r], NULL, be_thread, &members[r]) == 0);
  }
  for (int r = 0; r < g.ranks; r++) {
    pthread_join(thread[r], NULL);
  }
}

static void start_processes(group g, pid_t *child) {
  int port = ranks_free_port();
  for (int r = 0; r < g.ranks; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      member m = {g, r, port};
      be_thread(&m);
      _exit(0);
    }
  }
}

static void run_processes(group g) {
  pid_t child[RANKS_MOST];
  start_processes(g, child);
  ranks_wait(child, g.ranks, -1);
}

static int links_of(const pith_comm *comm) {
  pith_stats stats = PITH_STATS_INIT;
  CHECK_OK(pith_comm_stats(comm, &stats));
  return (int)stats.links;
}

static int neighbours_of(int rank, int ranks) {
  int count = 0;
  for (int p = 0; p < ranks; p++) {
    count += p != rank && pith__are_neighbours(rank, p, ranks);
  }
  return count;
}

/* ---- Neighbours -------------------------------------------------------------------------------------------------- */

TEST(neighbours_are_mutual_few_and_reach_everybody_soon) {
  for (int ranks = 2; ranks <= 4096; ranks = ranks < 70 ? ranks + 1 : ranks * 3 - 1) {
    static int distance[4096], queue[4096];
    int head = 0, tail = 1, bits = 1;
    while (1 << bits < ranks) {
      bits++;
    }
    for (int p = 0; p < ranks; p++) {
      distance[p] = p ? -1 : 0;
      CHECK_EQ(pith__are_neighbours(p, 0, ranks), pith__are_neighbours(0, p, ranks));
    }
    CHECK_MSG(neighbours_of(0, ranks) <= bits + 2, "%d neighbours of %d ranks", neighbours_of(0, ranks), ranks);
    for (queue[0] = 0; head < tail; head++) {
      for (int p = 0; p < ranks; p++) {
        if (distance[p] < 0 && p != queue[head] && pith__are_neighbours(queue[head], p, ranks)) {
          distance[p] = distance[queue[head]] + 1;
          queue[tail++] = p;
        }
      }
    }
    CHECK_EQ(tail, ranks);
    CHECK_MSG(distance[queue[tail - 1]] <= bits + 1, "%d steps among %d ranks", distance[queue[tail - 1]], ranks);
  }
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

static void use_everything(pith_comm *comm, void *argument) {
  enum { N = 5000 };
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float *x = malloc(N * sizeof *x), *y = malloc((size_t)ranks * N * sizeof *y);
  (void)argument;
  CHECK(x && y);
  CHECK(links_of(comm) >= neighbours_of(rank, ranks)); /* others may have begun */
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < N; i++) {
      x[i] = (float)(rank + i % 7 + round);
    }
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){y, N, PITH_F32}, PITH_SUM, NULL, NULL));
    for (int i = 0; i < N; i++) {
      CHECK(y[i] == (float)(ranks * (ranks - 1) / 2 + ranks * (i % 7 + round)));
    }
    CHECK_OK(pith_broadcast(comm, (pith_span){x, N, PITH_F32}, round % ranks, NULL, NULL));
    CHECK(x[3] == (float)(round % ranks + 3 + round));
    CHECK_OK(pith_all_gather(comm, (pith_cspan){&rank, 1, PITH_I32}, (pith_span){y, (size_t)ranks, PITH_I32}, NULL,
                             NULL, NULL));
    for (int p = 0; p < ranks; p++) {
      CHECK_EQ(((int *)(void *)y)[p], p);
    }
    CHECK_OK(pith_barrier(comm, NULL));
  }
  free(x);
  free(y);
}

TEST(all_operations_work_over_links_on_demand) {
  static const int sizes[] = {2, 3, 5, 9};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    run_threads((group){.transport = "inproc", .ranks = sizes[i], .run = use_everything});
    run_processes((group){.transport = "shm", .ranks = sizes[i], .run = use_everything});
    run_processes((group){.transport = "tcp", .ranks = sizes[i], .run = use_everything});
  }
  run_processes((group){.transport = "auto", .ranks = 12, .hosts = 3, .run = use_everything});
}

TEST(all_operations_work_over_links_on_demand_of_ucx) {
  ranks_need_ucx(MODULES, "posix");
  run_processes((group){.transport = "ucx", .ranks = 7, .run = use_everything});
}

TEST(all_operations_work_over_links_on_demand_of_the_tcp_of_ucx) {
  ranks_need_ucx(MODULES, "tcp");
  run_processes((group){.transport = "ucx", .ranks = 7, .run = use_everything});
}

/* Several connections to a peer, each of which may be called for by both. */
TEST(links_of_several_connections_are_made_on_demand) {
  setenv("PITH_CONNECTIONS", "3", 1);
  for (int round = 0; round < 5; round++) {
    run_processes((group){.transport = "tcp", .ranks = 8, .run = use_everything});
  }
}

TEST(encrypted_links_are_made_on_demand) {
  setenv("PITH_MODULE_PATH", MODULES, 1);
  if (pith_tls_probe(NULL, NULL) != PITH_OK) {
    LACKS("openssl", "%s", pith_error());
  }
  setenv("PITH_SECRET", "of this job", 1);
  setenv("PITH_TLS", "psk", 1);
  run_processes((group){.transport = "tcp", .ranks = 7, .run = use_everything});
}

/* ---- Both at once ------------------------------------------------------------------------------------------------ */

/* Every pair, one after another, all of them at the same time: both ends send first, then receive. */
static void meet_each(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  (void)argument;
  for (int round = 1; round < ranks; round++) {
    int peer = (round - rank + ranks) % ranks, there = -1;
    pith_request *request;
    if (peer == rank) {
      continue;
    }
    CHECK_OK(pith_send(comm, (pith_cspan){&rank, 1, PITH_I32}, peer, 7, &request));
    CHECK_OK(pith_recv(comm, (pith_span){&there, 1, PITH_I32}, peer, 7, NULL));
    CHECK_OK(pith_wait(request));
    CHECK_EQ(there, peer);
  }
  CHECK_OK(pith_barrier(comm, NULL));
}

TEST(two_ranks_may_want_a_link_at_the_same_time) {
  for (int round = 0; round < 8; round++) {
    run_threads((group){.transport = "inproc", .ranks = 11, .run = meet_each});
    run_processes((group){.transport = "shm", .ranks = 11, .run = meet_each});
    run_processes((group){.transport = "tcp", .ranks = 11, .run = meet_each});
  }
}

/* More peers on a host than the first segment has inboxes for. */
TEST(a_rank_may_have_more_peers_over_shm_than_one_segment_serves) {
  run_processes((group){.transport = "shm", .ranks = 40, .run = meet_each});
}

/* ---- A rank that computes ---------------------------------------------------------------------------------------- */

/* Rank 0 is in no operation while rank 8 sends it something for the first time. */
static void send_to_the_busy(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm);
  float x = 3;
  (void)argument;
  CHECK(!pith__are_neighbours(0, 8, pith_comm_size(comm)));
  if (rank == 8) {
    double start = pith__now();
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 0, 1, NULL));
    CHECK_MSG(pith__now() - start < 2, "rank 0 answered after %.1f s", pith__now() - start);
  } else if (rank == 0) {
    sleep(4);
    x = 0;
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, PITH_ANY_RANK, 1, NULL));
    CHECK(x == 3);
  } else {
    sleep(5);
  }
}

TEST(a_rank_that_computes_answers_who_wants_a_link) {
  pid_t child[2][18];
  start_processes((group){.transport = "tcp", .ranks = 18, .run = send_to_the_busy}, child[0]);
  start_processes((group){.transport = "shm", .ranks = 18, .run = send_to_the_busy}, child[1]);
  ranks_wait(child[0], 18, -1);
  ranks_wait(child[1], 18, -1);
}

static double seconds_of_work(void) {
  struct timespec used;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
  return (double)used.tv_sec + 1e-9 * (double)used.tv_nsec;
}

/* Rank 1 sends more than rank 0 stores of messages that it does not wait for yet. */
static void send_ahead(pith_comm *comm, void *argument) {
  enum { N = 1 << 18, COUNT = 8 };
  float *x = calloc(N, sizeof *x);
  pith_request *request[COUNT];
  (void)argument;
  CHECK(x);
  if (pith_comm_rank(comm) == 1) {
    for (int i = 0; i < COUNT; i++) {
      CHECK_OK(pith_send(comm, (pith_cspan){x, N, PITH_F32}, 0, i, &request[i]));
    }
    for (int i = 0; i < COUNT; i++) {
      CHECK_OK(pith_wait(request[i]));
    }
  } else if (pith_comm_rank(comm) == 0) {
    sleep(1);
    double before = seconds_of_work();
    sleep(2);
    CHECK_MSG(seconds_of_work() - before < 0.3, "%.2f s of work in 2 s without a call", seconds_of_work() - before);
    for (int i = 0; i < COUNT; i++) {
      CHECK_OK(pith_recv(comm, (pith_span){x, N, PITH_F32}, 1, i, NULL));
    }
  }
  CHECK_OK(pith_barrier(comm, NULL));
  free(x);
}

TEST(messages_that_nobody_waits_for_keep_no_core_busy) {
  pith__early_bounds.pause = 1 << 16;
  run_processes((group){.transport = "tcp", .ranks = 4, .run = send_ahead});
  run_processes((group){.transport = "shm", .ranks = 4, .run = send_ahead});
}

/* A connection to where rank 0 listens. */
static int be_stranger(const pith_comm *comm) {
  const pith_records *all = &comm->records;
  pith_address_record record;
  tcp_place place;
  CHECK_OK(pith__address_record_read(all->bytes + all->at[0], all->at[1] - all->at[0], 0, &record));
  const pith_address *address = &record.address[comm->kind[0]];
  if (comm->kind[0] == PITH_KIND_LOCAL) {
    int fd = pith__unix_open();
    CHECK(fd >= 0 && pith__unix_connect(fd, address->data) == 0);
    return fd;
  }
  CHECK_OK(pith__tcp_address_decode(address, 0, &place));
  int fd = pith__socket_connect(&place.at[0]);
  CHECK(fd >= 0);
  return fd;
}

/* Takes all descriptors that the process may have. */
static int take_descriptors(int *taken, int most) {
  struct rlimit limit = {(rlim_t)most, (rlim_t)most};
  int count = 0;
  CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
  while (count < most && (taken[count] = dup(0)) >= 0) {
    count++;
  }
  CHECK(count > 0 && count < most);
  return count;
}

static void lack_descriptors(pith_comm *comm, void *argument) {
  enum { MOST = 256 };
  int rank = pith_comm_rank(comm), taken[MOST], count = 0;
  float x = 1;
  (void)argument;
  CHECK_OK(pith_barrier(comm, NULL));
  if (rank == 0) {
    count = take_descriptors(taken, MOST);
  }
  CHECK_OK(pith_barrier(comm, NULL));
  int stranger = rank == 1 ? be_stranger(comm) : -1;
  CHECK_OK(pith_barrier(comm, NULL));
  if (rank == 0) {
    double work = seconds_of_work(), start = pith__now();
    sleep(2);
    CHECK_MSG(seconds_of_work() - work < 0.3, "%.2f s of work in 2 s without a call", seconds_of_work() - work);
    start = pith__now();
    for (int i = 0; i < 200; i++) {
      CHECK(links_of(comm) > 0);
      usleep(100);
    }
    CHECK_MSG(pith__now() - start < 1, "200 calls took %.1f s", pith__now() - start);
  }
  while (count > 0) {
    close(taken[--count]);
  }
  CHECK_OK(pith_allreduce(comm, (pith_cspan){&x, 1, PITH_F32}, (pith_span){&x, 1, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK(x == (float)pith_comm_size(comm));
  if (rank == 1) {
    close(stranger);
  }
  CHECK_OK(pith_barrier(comm, NULL));
}

TEST(a_stranger_costs_a_rank_without_descriptors_nothing) {
  run_processes((group){.transport = "tcp", .ranks = 9, .run = lack_descriptors});
  run_processes((group){.transport = "shm", .ranks = 9, .run = lack_descriptors});
}

/* ---- Failures ---------------------------------------------------------------------------------------------------- */

typedef struct trouble {
  atomic_int ready;
  int victim, has_requests;
  double most, at;
} trouble;

static trouble *share(int victim, double most) {
  trouble *t = mmap(NULL, sizeof *t, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(t != MAP_FAILED);
  t->victim = victim, t->most = most;
  return t;
}

static int names_rank(const char *text, int rank) {
  char name[16];
  size_t size = (size_t)snprintf(name, sizeof name, "rank %d", rank);
  const char *found = strstr(text, name);
  return found && (found[size] < '0' || found[size] > '9');
}

static void check_told(const pith_comm *comm, trouble *t, pith_status status) {
  int rank = pith_comm_rank(comm);
  CHECK_MSG(status == PITH_ERR_PEER || status == PITH_ERR_ABORTED || status == PITH_ERR_TIMEOUT, "rank %d got %s", rank,
            pith_status_string(status));
  CHECK_MSG(names_rank(pith_error(), t->victim), "rank %d was told \"%s\"", rank, pith_error());
  CHECK_MSG(pith__now() - t->at < t->most, "rank %d was told after %.1f s", rank, pith__now() - t->at);
}

/* Every rank waits for a message of its neighbour, of none that is about the victim. */
static void wait_for_news(pith_comm *comm, void *argument) {
  trouble *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float x;
  atomic_fetch_add(&t->ready, 1);
  if (rank == t->victim) {
    for (;;) {
      pause();
    }
  }
  int peer = (rank + 1) % ranks == t->victim ? (rank + 2) % ranks : (rank + 1) % ranks;
  check_told(comm, t, pith_recv(comm, (pith_span){&x, 1, PITH_F32}, peer, 1, NULL));
}

static void harm(group g, trouble *t, int harm_signal) {
  pid_t child[RANKS_MOST];
  g.argument = t;
  start_processes(g, child);
  while (atomic_load(&t->ready) < g.ranks) {
    usleep(1000);
  }
  usleep(100000);
  t->at = pith__now();
  CHECK(kill(child[t->victim], harm_signal) == 0);
  ranks_wait(child, g.ranks, t->victim);
  CHECK(kill(child[t->victim], SIGKILL) == 0 || harm_signal == SIGKILL);
  CHECK(waitpid(child[t->victim], NULL, 0) == child[t->victim]);
  munmap(t, sizeof *t);
}

TEST(a_killed_rank_is_named_on_ranks_that_have_no_link_with_it) {
  static const char *const transports[] = {"shm", "tcp", "auto"};
  for (size_t i = 0; i < 3; i++) {
    harm((group){.transport = transports[i], .ranks = 32, .hosts = i == 2 ? 4 : 0, .run = wait_for_news},
         share((int)test_below(32), 3), SIGKILL);
  }
}

/* Ranks that compute pass the news on, and their next call fails. With `has_requests` they have begun something that
 * no thread waits for yet. */
static void compute(pith_comm *comm, void *argument) {
  trouble *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float x, y;
  pith_request *request = NULL;
  if (t->has_requests && rank != 0) {
    CHECK_OK(pith_recv(comm, (pith_span){&y, 1, PITH_F32}, (rank + ranks - 1) % ranks, 2, &request));
  }
  atomic_fetch_add(&t->ready, 1);
  if (rank == t->victim) {
    for (;;) {
      pause();
    }
  }
  if (rank == 0) { /* alone in an operation, and not linked with the victim */
    CHECK(!pith__are_neighbours(0, t->victim, pith_comm_size(comm)));
    check_told(comm, t, pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 1, 1, NULL));
  } else {
    sleep(6);
    t->most = 30;
    check_told(comm, t, request ? pith_wait(request) : pith_barrier(comm, NULL));
  }
}

TEST(ranks_that_compute_pass_on_that_a_rank_is_gone) {
  harm((group){.transport = "tcp", .ranks = 24, .run = compute}, share(11, 3), SIGKILL);
}

TEST(ranks_whose_requests_nobody_waits_for_pass_it_on_too) {
  static const char *const transports[] = {"tcp", "shm"};
  for (size_t i = 0; i < 2; i++) {
    trouble *t = share(11, 3);
    t->has_requests = 1;
    harm((group){.transport = transports[i], .ranks = 24, .run = compute}, t, SIGKILL);
  }
}

/* A stopped rank is found by who waits for it, though none of them was linked with it. */
static void wait_for_victim(pith_comm *comm, void *argument) {
  trouble *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float x;
  atomic_fetch_add(&t->ready, 1);
  if (rank == t->victim) {
    usleep(20000000);
    return;
  }
  int waits = rank == (t->victim + 8) % ranks;
  check_told(comm, t, pith_recv(comm, (pith_span){&x, 1, PITH_F32}, waits ? t->victim : (rank + 3) % ranks, 1, NULL));
}

TEST(a_stopped_rank_is_named_within_the_timeout_on_all) {
  harm((group){.transport = "tcp", .ranks = 20, .timeout = 2, .run = wait_for_victim}, share(5, 8), SIGSTOP);
}

/* A rank that exchanges addresses and then makes no links. */
static _Noreturn void hang_before_links(const member *m) {
  pith_address_record mine = pith__address_record_here(NULL);
  pith_transport *transport[PITH_KINDS] = {NULL, NULL};
  pith_transport_config config = {.rank = m->rank, .ranks = m->g.ranks, .timeout = 20, .rendezvous_host = "127.0.0.1"};
  pith_rendezvous r = {.rank = m->rank, .ranks = m->g.ranks, .host = "127.0.0.1", .timeout = 20};
  uint8_t bytes[PITH_ADDRESS_RECORD_MOST];
  pith_records all;
  uint64_t job;
  r.port = (uint16_t)m->port;
  CHECK_OK(pith__transports_listen(m->g.transport, &config, transport, &mine));
  CHECK_OK(pith__rendezvous_exchange(&r, bytes, pith__address_record_write(&mine, bytes), &all, &job));
  for (;;) {
    pause();
  }
}

/* Those that wait for it have begun later, and have more time; the others have their links and wait for them. */
static void be_told_of_it(member *m, trouble *t) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.rank = m->rank, config.ranks = m->g.ranks, config.port = m->port, config.host = "127.0.0.1";
  config.transport = m->g.transport, config.eager = 1;
  config.timeout = pith__are_neighbours(m->rank, t->victim, m->g.ranks) ? 3.5 : 2;
  pith_status status = pith_comm_create(&config, &comm);
  status = status == PITH_OK ? pith_barrier(comm, NULL) : status;
  CHECK(status != PITH_OK);
  CHECK_MSG(names_rank(pith_error(), t->victim), "rank %d was told \"%s\"", m->rank, pith_error());
  CHECK_MSG(pith__now() - t->at < t->most, "rank %d was told after %.1f s", m->rank, pith__now() - t->at);
  pith_comm_destroy(comm);
}

TEST(a_rank_that_hangs_before_it_has_links_is_named_on_those_that_have_theirs) {
  pid_t child[9];
  trouble *t = share(4, 12);
  int port = ranks_free_port();
  t->at = pith__now();
  for (int r = 0; r < 9; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      member m = {{.transport = "tcp", .ranks = 9}, r, port};
      if (r == t->victim) {
        hang_before_links(&m);
      }
      be_told_of_it(&m, t);
      _exit(0);
    }
  }
  ranks_wait(child, 9, t->victim);
  CHECK(kill(child[t->victim], SIGKILL) == 0 && waitpid(child[t->victim], NULL, 0) == child[t->victim]);
  munmap(t, sizeof *t);
}

/* Leaving is no failure; but who then wants something of the rank that left is told so, and soon. */
static void leave_early(pith_comm *comm, void *argument) {
  trouble *t = argument;
  int rank = pith_comm_rank(comm), victim = t->victim;
  float x = 1;
  if (rank == victim) {
    return;
  }
  sleep(1);
  if (rank == (victim + 8) % pith_comm_size(comm)) {
    t->at = pith__now();
    check_told(comm, t, pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, victim, 1, NULL));
  } else {
    sleep(5);
  }
}

TEST(a_rank_that_left_is_named_to_who_never_had_a_link_with_it) {
  pid_t child[2][18];
  trouble *t = share(4, 4);
  start_processes((group){.transport = "tcp", .ranks = 18, .run = leave_early, .argument = t}, child[0]);
  start_processes((group){.transport = "shm", .ranks = 18, .run = leave_early, .argument = t}, child[1]);
  ranks_wait(child[0], 18, -1);
  ranks_wait(child[1], 18, -1);
  munmap(t, sizeof *t);
}

/* ---- Many -------------------------------------------------------------------------------------------------------- */

static void reduce_over_hosts(pith_comm *comm, void *argument) {
  enum { N = 20000 };
  int ranks = pith_comm_size(comm), rank = pith_comm_rank(comm);
  float *x = malloc(N * sizeof *x);
  pith_call call = PITH_CALL_INIT;
  call.algorithm = "hierarchical";
  (void)argument;
  CHECK(x);
  for (int i = 0; i < N; i++) {
    x[i] = (float)(rank % 5 + i % 3);
  }
  CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){x, N, PITH_F32}, PITH_SUM, &call, NULL));
  float first = 0;
  for (int r = 0; r < ranks; r++) {
    first += (float)(r % 5);
  }
  for (int i = 0; i < N; i++) {
    CHECK(x[i] == first + (float)(ranks * (i % 3)));
  }
  int most = 15 + 7 + neighbours_of(rank, ranks); /* of its host, of other hosts, and from the start */
  CHECK_MSG(links_of(comm) <= most, "rank %d of %d has %d links, more than %d", rank, ranks, links_of(comm), most);
  CHECK_OK(pith_barrier(comm, NULL));
  free(x);
}

TEST(links_grow_with_the_peers_of_the_schedule_and_not_with_the_ranks) {
  run_threads((group){.transport = "auto", .ranks = 128, .hosts = 8, .eager = 0, .run = reduce_over_hosts});
}

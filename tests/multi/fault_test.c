/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to the ranks of a comm when one of them dies, stalls, leaves, disagrees or lies: an error on every other
 * rank, in time, that says who it was; no hang, no crash, no wrong sum, nothing left behind.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/comm.h"
#include "ranks.h"
#include "test.h"

#define RANKS_MOST 4
#define VALUES 20000

static const char *const transports[] = {"inproc", "shm", "tcp"};
static const char *const process_transports[] = {"shm", "tcp"};

/* Memory that the processes of a test share. */
typedef struct shared {
  atomic_int steps[RANKS_MOST];
  double harmed_at; /* when; written before the signal is sent */
  int victim;
  double most; /* seconds within which an error is due */
  int hearsay; /* the error may name a rank that gave up because of the victim */
  const char *spec;
} shared;

static shared *share(void) {
  shared *s = mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(s != MAP_FAILED);
  return s;
}

static int names_rank(const char *text, int rank) {
  char name[16];
  snprintf(name, sizeof name, "rank %d", rank);
  return strstr(text, name) != NULL;
}

/* After an error: everything is refused with the same status and the same text. */
static void check_refused(pith_comm *comm, pith_status status, const char *text) {
  float x = 0;
  CHECK_EQ(pith_barrier(comm, NULL), status);
  CHECK_STR(pith_error(), text);
  CHECK_EQ(pith_allreduce(comm, (pith_cspan){&x, 1, PITH_F32}, (pith_span){&x, 1, PITH_F32}, PITH_SUM, NULL, NULL),
           status);
  CHECK_STR(pith_error(), text);
}

static pith_status reduce_once(pith_comm *comm, const pith_call *call, float *x, float *y, size_t n) {
  return pith_allreduce(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){y, n, PITH_F32}, PITH_SUM, call, NULL);
}

/* ---- Killed and stopped ranks ------------------------------------------------------------------------------------ */

/* Allreduces until that fails. */
static void reduce_until_error(pith_comm *comm, void *argument) {
  shared *s = argument;
  int rank = pith_comm_rank(comm);
  float *x = calloc(VALUES, sizeof *x), *y = calloc(VALUES, sizeof *y);
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec = NULL;
  if (s->spec) {
    CHECK_OK(pith_codec_create(s->spec, &codec));
    call.codec = codec;
  }
  pith_status status;
  atomic_fetch_add(&s->steps[rank], 1); /* we have met */
  while ((status = reduce_once(comm, &call, x, y, VALUES)) == PITH_OK) {
    atomic_fetch_add(&s->steps[rank], 1);
  }
  double took = pith__now() - s->harmed_at;
  char text[1024];
  snprintf(text, sizeof text, "%s", pith_error());
  CHECK_MSG(status == PITH_ERR_PEER || status == PITH_ERR_ABORTED || status == PITH_ERR_TIMEOUT, "rank %d got %s: %s",
            rank, pith_status_string(status), text);
  CHECK_MSG(rank == s->victim || took < s->most, "rank %d was told after %.2f s", rank, took);
  CHECK_MSG(rank == s->victim || names_rank(text, s->victim) || (s->hearsay && strstr(text, " is gone")),
            "rank %d, told of rank %d: \"%s\"", rank, s->victim, text);
  check_refused(comm, status, text);
  pith_codec_destroy(codec);
  free(x);
  free(y);
}

/* Harms a rank at a random moment of its first 200 operations. */
static void harm(shared *s, const pid_t *child, int ranks, int harm_signal) {
  int step = 1 + (int)test_below(200);
  for (int r = 0; r < ranks; r++) {
    while (atomic_load(&s->steps[r]) < (r == s->victim ? step : 1)) {
      usleep(100);
    }
  }
  usleep((useconds_t)test_below(300));
  s->harmed_at = pith__now();
  CHECK(kill(child[s->victim], harm_signal) == 0);
}

static void kill_one(const char *transport, int ranks, int victim, const char *spec) {
  pid_t child[RANKS_MOST];
  shared *s = share();
  s->victim = victim, s->spec = spec, s->most = 2.0;
  s->hearsay = strcmp(transport, "ucx") == 0; /* a survivor's last words may get lost there: docs/transports.md */
  ranks_start(transport, ranks, 20, reduce_until_error, s, child);
  harm(s, child, ranks, SIGKILL);
  ranks_wait(child, ranks, victim);
  CHECK(waitpid(child[victim], NULL, 0) == child[victim]);
  munmap(s, sizeof *s);
}

static void kill_each(const char *transport, const char *spec) {
  for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
    for (int victim = 0; victim < ranks; victim++) {
      kill_one(transport, ranks, victim, spec);
    }
  }
}

TEST(a_killed_rank_is_an_error_within_two_seconds_over_shm) { kill_each("shm", NULL); }
TEST(a_killed_rank_is_an_error_within_two_seconds_over_tcp) { kill_each("tcp", NULL); }
TEST(a_killed_rank_is_an_error_within_two_seconds_over_ucx) {
  ranks_need_ucx(MODULES, "posix");
  kill_each("ucx", NULL);
}

TEST(a_killed_rank_is_an_error_within_two_seconds_over_the_tcp_of_ucx) {
  ranks_need_ucx(MODULES, "tcp");
  kill_each("ucx", "q:4");
}

TEST(a_killed_rank_is_an_error_with_compression_over_shm) { kill_each("shm", "q:4"); }
TEST(a_killed_rank_is_an_error_with_compression_over_tcp) { kill_each("tcp", "topk:0.01"); }

/* All groups at once: each only waits for its time-out. */
static void stop_some(const char *const *names, int count) {
  enum { GROUPS = 6 };
  pid_t child[GROUPS][RANKS_MOST];
  shared *s[GROUPS];
  for (int g = 0; g < GROUPS; g++) {
    int ranks = 2 + g / 2;
    s[g] = share();
    s[g]->victim = (int)test_below((uint64_t)ranks), s[g]->most = 3.0;
    s[g]->hearsay = strcmp(names[g % count], "ucx") == 0;
    ranks_start(names[g % count], ranks, 1.5, reduce_until_error, s[g], child[g]);
    harm(s[g], child[g], ranks, SIGSTOP);
  }
  for (int g = 0; g < GROUPS; g++) {
    ranks_wait(child[g], 2 + g / 2, s[g]->victim);
  }
  for (int g = 0; g < GROUPS; g++) { /* and now it finds itself alone */
    int status;
    CHECK(kill(child[g][s[g]->victim], SIGCONT) == 0);
    CHECK(waitpid(child[g][s[g]->victim], &status, 0) == child[g][s[g]->victim]);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a rank that went on after its group had given up failed");
    munmap(s[g], sizeof *s[g]);
  }
}

TEST(a_stopped_rank_is_an_error_within_the_timeout) { stop_some(process_transports, 2); }

TEST(a_stopped_rank_is_an_error_within_the_timeout_over_ucx) {
  ranks_need_ucx(MODULES, "posix");
  stop_some((const char *const[]){"ucx"}, 1);
}

/* Exchanges messages with the other of ranks 0 and 1, until that fails. */
static void *chat_until_error(void *argument) {
  pith_comm *comm = argument;
  int peer = 1 - pith_comm_rank(comm);
  float x[8] = {0}, y[8];
  pith_status status = PITH_OK;
  while (status == PITH_OK) {
    pith_request *sent;
    status = pith_send(comm, (pith_cspan){x, 8, PITH_F32}, peer, 1, &sent);
    if (status == PITH_OK) {
      status = pith_recv(comm, (pith_span){y, 8, PITH_F32}, peer, 1, NULL);
      (void)pith_wait(sent);
    }
  }
  return NULL;
}

static void reduce_and_chat(pith_comm *comm, void *argument) {
  pthread_t chat;
  int chats = pith_comm_rank(comm) < 2;
  if (chats) {
    CHECK(pthread_create(&chat, NULL, chat_until_error, comm) == 0);
  }
  reduce_until_error(comm, argument);
  if (chats) {
    pthread_join(chat, NULL);
  }
}

/* Each peer has its own clock: the messages of the others do not stop it. */
TEST(a_stopped_rank_is_an_error_though_the_others_keep_talking) {
  enum { GROUPS = 2 };
  pid_t child[GROUPS][RANKS_MOST];
  shared *s[GROUPS];
  for (int g = 0; g < GROUPS; g++) {
    s[g] = share();
    s[g]->victim = 2, s[g]->most = 4.0;
    ranks_start(process_transports[g], 3, 1.5, reduce_and_chat, s[g], child[g]);
    harm(s[g], child[g], 3, SIGSTOP);
  }
  for (int g = 0; g < GROUPS; g++) {
    ranks_wait(child[g], 3, s[g]->victim);
    CHECK(kill(child[g][2], SIGKILL) == 0);
    CHECK(waitpid(child[g][2], NULL, 0) == child[g][2]);
    munmap(s[g], sizeof *s[g]);
  }
}

/* ---- While links are made ---------------------------------------------------------------------------------------- */

/* A comm of four ranks over tcp in which one may open files for some of its links only, in the order of ranks. */
typedef struct scarcity {
  int rank, links; /* who, and how many */
  unsigned dies;   /* after so many seconds; 0: it does not */
  double timeout, most;
} scarcity;

static void allow_links(const scarcity *s) {
  int next = dup(0);
  struct rlimit few = {(rlim_t)(next + 2 + s->links), (rlim_t)(next + 2 + s->links)}; /* beside eventfd and listener */
  close(next);
  CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
  alarm(s->dies);
}

static _Noreturn void be_one_of_four(const scarcity *s, int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  float x = 1;
  config.rank = rank, config.ranks = 4, config.port = port, config.host = "127.0.0.1";
  config.transport = "tcp", config.timeout = s->timeout;
  if (rank == s->rank) {
    allow_links(s);
  }
  double start = pith__now();
  pith_status status = pith_comm_create(&config, &comm);
  if (status == PITH_OK) {
    CHECK_MSG(rank < s->links, "rank %d lacks a link and has a comm", rank);
    status = reduce_once(comm, NULL, &x, &x, 1);
  }
  CHECK(status != PITH_OK);
  CHECK_MSG(names_rank(pith_error(), s->rank), "rank %d was told \"%s\"", rank, pith_error());
  CHECK_MSG(s->dies || !strstr(pith_error(), " is gone"), "rank %d was told \"%s\"", rank, pith_error());
  CHECK_MSG(pith__now() - start < s->most, "rank %d was told after %.1f s", rank, pith__now() - start);
  pith_comm_destroy(comm);
  _exit(0);
}

static void run_with_few_files(scarcity s) {
  pid_t child[4];
  int port = ranks_free_port();
  for (int r = 0; r < 4; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      be_one_of_four(&s, r, port);
    }
  }
  ranks_wait(child, 4, s.dies ? s.rank : -1);
  if (s.dies) {
    CHECK(waitpid(child[s.rank], NULL, 0) == child[s.rank]);
  }
}

/* Ranks 0 and 1 have all their links. They hear why there is no group, and do not take the rank for dead that tells. */
TEST(a_rank_that_cannot_make_a_link_tells_the_others_why) {
  run_with_few_files((scarcity){.rank = 3, .links = 2, .timeout = 1, .most = 5});
}

/* Rank 0 alone is linked with rank 2 and sees its end. The others hear of it, long before their time is over. Before it
 * dies it has time to come that far on a busy machine. */
TEST(a_rank_that_dies_while_links_are_made_is_named_soon_over_tcp) {
  run_with_few_files((scarcity){.rank = 2, .links = 1, .dies = 4, .timeout = 60, .most = 20});
}

/* The linker sends calls of the library here. Rank 0 makes one for the rendezvous, and one when it begins with its
 * links over shm. */
int __real_epoll_create1(int flags);
int __wrap_epoll_create1(int flags);
static int dies_before_links;

int __wrap_epoll_create1(int flags) {
  if (dies_before_links && dies_before_links++ == 2) {
    _exit(0);
  }
  return __real_epoll_create1(flags);
}

static _Noreturn void be_one_of_two_hosts(int rank, int port) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  config.rank = rank, config.ranks = 4, config.port = port, config.host = "127.0.0.1";
  config.host_id = rank < 2 ? "first" : "second", config.transport = "auto", config.timeout = 60;
  dies_before_links = rank == 0;
  double start = pith__now();
  pith_status status = pith_comm_create(&config, &comm);
  CHECK(status != PITH_OK);
  CHECK_MSG(names_rank(pith_error(), 0), "rank %d was told \"%s\"", rank, pith_error());
  CHECK_MSG(pith__now() - start < 10, "rank %d was told after %.1f s", rank, pith__now() - start);
  _exit(0);
}

/* Rank 1 cannot link with rank 0 of its host. The ranks of the other host wait for both, and hear of it. */
TEST(a_rank_that_dies_before_it_has_links_is_named_soon_on_other_hosts) {
  pid_t child[4];
  int port = ranks_free_port();
  for (int r = 0; r < 4; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      be_one_of_two_hosts(r, port);
    }
  }
  ranks_wait(child, 4, -1);
}

/* ---- Ranks that leave -------------------------------------------------------------------------------------------- */

enum { LEAVES = 5 };

static void one_leaves(pith_comm *comm, void *argument) {
  int leaver = *(int *)argument, rank = pith_comm_rank(comm);
  float x[100] = {0}, y[100];
  pith_status status = PITH_OK;
  for (int i = 0; status == PITH_OK && !(rank == leaver && i == LEAVES); i++) {
    status = reduce_once(comm, NULL, x, y, 100);
  }
  if (rank != leaver) {
    char text[1024];
    snprintf(text, sizeof text, "%s", pith_error());
    CHECK_MSG(status == PITH_ERR_PEER || status == PITH_ERR_ABORTED, "rank %d got %s", rank,
              pith_status_string(status));
    CHECK_MSG(names_rank(text, leaver), "rank %d left, rank %d was told \"%s\"", leaver, rank, text);
    check_refused(comm, status, text);
  } else {
    CHECK_OK(status);
  }
}

TEST(a_rank_that_leaves_early_is_named) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
      for (int leaver = 0; leaver < ranks; leaver++) {
        ranks_run(transports[t], ranks, 0, one_leaves, &leaver);
      }
    }
  }
}

static void one_aborts(pith_comm *comm, void *argument) {
  int aborter = *(int *)argument;
  size_t n = 300000; /* more than fits on the way: messages have begun when it happens */
  float *x = calloc(n, sizeof *x), *y = calloc(n, sizeof *y);
  pith_request *first, *second;
  (void)reduce_once(comm, NULL, x, y, n); /* who is late hears of it here already */
  pith_status submitted =
      pith_allreduce(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){y, n, PITH_F32}, PITH_SUM, NULL, &first);
  pith_status also = submitted == PITH_OK ? pith_allreduce(comm, (pith_cspan){x, n, PITH_F32},
                                                           (pith_span){x, n, PITH_F32}, PITH_SUM, NULL, &second)
                                          : submitted;
  if (pith_comm_rank(comm) == aborter) {
    pith_comm_abort(comm, "the disk is full");
  }
  if (submitted == PITH_OK) {
    (void)pith_wait(first);
  }
  if (also == PITH_OK) {
    (void)pith_wait(second);
  }
  pith_status status;
  do {
    status = pith_barrier(comm, NULL);
  } while (status == PITH_OK);
  CHECK_MSG(status == PITH_ERR_ABORTED, "rank %d got %s: %s", pith_comm_rank(comm), pith_status_string(status),
            pith_error());
  CHECK_MSG(strstr(pith_error(), "the disk is full") && names_rank(pith_error(), aborter), "rank %d was told \"%s\"",
            pith_comm_rank(comm), pith_error());
  free(x);
  free(y);
}

TEST(an_abort_tells_all_ranks_why) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
      int aborter = ranks - 1;
      ranks_run(transports[t], ranks, 0, one_aborts, &aborter);
    }
  }
}

static void leave_requests_behind(pith_comm *comm, void *argument) {
  pith_request **request = (pith_request **)argument + pith_comm_rank(comm);
  static float never[2][10];
  CHECK_OK(
      pith_recv(comm, (pith_span){never[pith_comm_rank(comm)], 10, PITH_F32}, 1 - pith_comm_rank(comm), 3, request));
}

TEST(a_request_outlives_its_comm) {
  pith_request *request[2];
  int done = 0;
  ranks_run("inproc", 2, 0, leave_requests_behind, request);
  for (int r = 0; r < 2; r++) {
    CHECK_OK(pith_test(request[r], &done));
    CHECK(done);
    CHECK(pith_wait(request[r]) != PITH_OK);
  }
}

/* ---- Disagreement ------------------------------------------------------------------------------------------------ */

typedef enum mistake {
  KIND,
  SIZE,
  TYPE,
  REDUCTION,
  SPEC,
  UNCOMPRESSED,
  LAYER,
  STEP,
  SEED,
  PLAIN_STEP,
  EXTRA,
  MISTAKES
} mistake;

static const char *const words[MISTAKES][2] = {
    [KIND] = {"broadcast", "allreduce"},
    [SIZE] = {"4999", "5000"},
    [TYPE] = {"i32", "f32"},
    [REDUCTION] = {"max", "sum"},
    [SPEC] = {"q:3", "q:4"},
    [UNCOMPRESSED] = {"uncompressed values", "q:4"},
    [LAYER] = {"layer 5", "4"},
    [STEP] = {"4712", "4711"},
    [SEED] = {"3333", "2222"},
    [PLAIN_STEP] = {"4712", "4711"},
    [EXTRA] = {"barrier", "allreduce"},
};

/* One allreduce, on rank 1 with a mistake. */
static pith_status call_wrongly(pith_comm *comm, mistake m, float *x, float *y, size_t n) {
  int odd = pith_comm_rank(comm) == 1;
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(m == SPEC && odd ? "q:3" : "q:4", &codec));
  int is_compressed = m == SPEC || m == LAYER || m == UNCOMPRESSED || m == STEP || m == SEED;
  call.codec = is_compressed && !(m == UNCOMPRESSED && odd) ? codec : NULL;
  call.layer = m == LAYER && odd ? 5 : 4;
  call.step = (m == STEP || m == PLAIN_STEP) && odd ? 4712 : 4711;
  call.seed = m == SEED && odd ? 3333 : 2222;
  n -= m == SIZE && odd;
  pith_dtype dtype = m == TYPE && odd ? PITH_I32 : PITH_F32;
  pith_reduce_op reduce = m == REDUCTION && odd ? PITH_MAX : PITH_SUM;
  pith_status status = m == EXTRA && odd ? pith_barrier(comm, NULL) : PITH_OK;
  if (m == KIND && odd) {
    status = pith_broadcast(comm, (pith_span){y, n, PITH_F32}, 1, NULL, NULL);
  } else if (status == PITH_OK) {
    status = pith_allreduce(comm, (pith_cspan){x, n, dtype}, (pith_span){y, n, dtype}, reduce, &call, NULL);
  }
  pith_codec_destroy(codec);
  return status == PITH_OK ? pith_barrier(comm, NULL)
                           : status; /* what was only sent may be complete before anybody objects */
}

static void one_makes_a_mistake(pith_comm *comm, void *argument) {
  mistake m = *(mistake *)argument;
  size_t n = 5000;
  float *x = malloc(n * sizeof *x), *y = malloc(n * sizeof *y);
  for (size_t i = 0; i < n; i++) {
    x[i] = 1, y[i] = -7;
  }
  pith_status status = call_wrongly(comm, m, x, y, n);
  char text[1024];
  snprintf(text, sizeof text, "%s", pith_error());
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "mistake %d: rank %d got %s: %s", (int)m,
            pith_comm_rank(comm), pith_status_string(status), text);
  CHECK_MSG(names_rank(text, 1), "mistake %d: the error says \"%s\"", (int)m, text);
  for (size_t i = 0; i < 2 && !strstr(text, "has finished its operation");
       i++) { /* what each side did, in words, on every rank */
    CHECK_MSG(strstr(text, words[m][i]), "mistake %d: \"%s\" is not in \"%s\"", (int)m, words[m][i], text);
  }
  CHECK_MSG(!strstr(text, "0x"), "mistake %d: the error shows a hash: \"%s\"", (int)m, text);
  for (size_t i = 0; i < n; i++) {
    CHECK_MSG(y[i] == -7, "mistake %d: rank %d has summed to %g", (int)m, pith_comm_rank(comm), (double)y[i]);
  }
  check_refused(comm, status, text);
  free(x);
  free(y);
}

TEST(mismatched_calls_fail_on_every_rank_before_anything_is_summed) {
  for (size_t t = 0; t < 3; t++) {
    for (mistake m = 0; m < MISTAKES; m++) {
      for (int ranks = 2; ranks <= RANKS_MOST; ranks++) {
        ranks_run(transports[t], ranks, 0, one_makes_a_mistake, &m);
      }
    }
  }
}

/* Keys of random numbers follow from step and seed, and decoders need those of the encoder: these methods gave wrong
 * sums and no error. */
static void steps_differ(pith_comm *comm, void *argument) {
  enum { N = 4096 };
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  CHECK_OK(pith_codec_create(argument, &codec));
  for (size_t i = 0; i < N; i++) {
    x[i] = (float)(i % 17) - 8;
  }
  call.codec = codec;
  call.step = 41 + (uint64_t)(pith_comm_rank(comm) == 1);
  pith_status status =
      pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){y, N, PITH_F32}, PITH_SUM, &call, NULL);
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "%s: rank %d got %s", codec->spec,
            pith_comm_rank(comm), pith_status_string(status));
  CHECK_ERROR_SAYS("is at step 4");
  pith_codec_destroy(codec);
  free(x);
  free(y);
}

TEST(ranks_at_different_steps_are_told_so) {
  static char specs[][16] = {"hadamard/q:8", "randomk", "q:4"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    for (size_t t = 0; t < 3; t++) {
      ranks_run(transports[t], 2, 0, steps_differ, specs[s]);
    }
  }
}

static void roots_differ(pith_comm *comm, void *argument) {
  float x[64] = {0}, y[64];
  int root = pith_comm_rank(comm) == 1;
  pith_status status = *(int *)argument ? pith_broadcast(comm, (pith_span){x, 64, PITH_F32}, root, NULL, NULL)
                                        : pith_reduce(comm, (pith_cspan){x, 64, PITH_F32}, (pith_span){y, 64, PITH_F32},
                                                      PITH_SUM, root, NULL, NULL);
  status = status == PITH_OK ? pith_barrier(comm, NULL) : status;
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "rank %d got %s", pith_comm_rank(comm),
            pith_status_string(status));
}

TEST(different_roots_fail_on_every_rank) {
  for (size_t t = 0; t < 3; t++) {
    for (int broadcast = 0; broadcast < 2; broadcast++) {
      ranks_run(transports[t], 3, 0, roots_differ, &broadcast);
    }
  }
}

/* ---- Lack of descriptors ----------------------------------------------------------------------------------------- */

/* The error names what is lacking, not a firewall. */
TEST(a_lack_of_descriptors_is_told_as_such) {
  int port = ranks_free_port();
  pid_t child[2];
  for (int r = 0; r < 2; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      pith_config config = PITH_CONFIG_INIT;
      pith_comm *comm;
      struct rlimit few = {20, 20};
      CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
      config.rank = r, config.ranks = 2, config.port = port, config.host = "127.0.0.1", config.transport = "tcp";
      config.connections = 16, config.timeout = 1.5;
      CHECK_STATUS(pith_comm_create(&config, &comm), PITH_ERR_SYSTEM);
      CHECK_ERROR_SAYS("Too many open files");
      _exit(0);
    }
  }
  ranks_wait(child, 2, -1);
}

/* ---- Hostile bytes ----------------------------------------------------------------------------------------------- */

typedef enum attack { FLIP, CUT, NOISE, SWALLOW, REPEAT, ATTACKS } attack;

/* A man in the middle: what rank 1 sends is damaged from some byte of a link's stream on. */
static struct {
  attack kind;
  const pith_transport_ops *real;
  int peer;
  size_t at, passed;
  uint64_t noise;
} middle;

static pith_status send_whole(pith_transport *transport, int peer, const void *bytes, size_t size, size_t *taken) {
  return middle.real->send(transport, peer, &(struct iovec){(void *)(uintptr_t)bytes, size}, 1, taken);
}

static void damage(uint8_t *bytes, size_t size, size_t from) {
  if (middle.kind == FLIP) {
    bytes[from] ^= (uint8_t)(1u << test_below(8));
  }
  for (size_t i = from; middle.kind == NOISE && i < size; i++) {
    bytes[i] = (uint8_t)test_random();
  }
}

/* A few bytes at a time, so that there is one place to strike. */
static pith_status send_damaged(pith_transport *transport, int peer, const struct iovec *pieces, int count,
                                size_t *taken) {
  uint8_t bytes[4096];
  size_t size = pieces[0].iov_len < sizeof bytes ? pieces[0].iov_len : sizeof bytes;
  if (peer != middle.peer) {
    return middle.real->send(transport, peer, pieces, count, taken);
  }
  memcpy(bytes, pieces[0].iov_base, size);
  if (middle.passed + size > middle.at) {
    size_t from = middle.at > middle.passed ? middle.at - middle.passed : 0;
    if (middle.kind == CUT) {
      _exit(0);
    }
    if (middle.kind == SWALLOW && from == 0) {
      middle.at = SIZE_MAX; /* these never come */
      *taken = size;
      return PITH_OK;
    }
    if (middle.kind == REPEAT) {
      (void)send_whole(transport, peer, bytes, size, taken);
      middle.at = SIZE_MAX;
    } else if (middle.kind == FLIP) {
      damage(bytes, size, from);
      pith_status status = send_whole(transport, peer, bytes, from + 1, taken);
      middle.at = status == PITH_OK && *taken == from + 1 ? SIZE_MAX : middle.at;
      middle.passed += *taken;
      return status;
    } else {
      damage(bytes, size, from);
    }
  }
  *taken = 0;
  pith_status status = send_whole(transport, peer, bytes, size, taken);
  middle.passed += *taken;
  return status;
}

/* Damages what goes to the next rank. */
static void step_between(pith_comm *comm, attack kind, size_t at) {
  static pith_transport_ops ops;
  middle.kind = kind;
  middle.at = at;
  middle.peer = 0;
  middle.real = comm->transport[0]->ops;
  ops = *middle.real;
  ops.send = send_damaged;
  comm->transport[0]->ops = &ops;
}

typedef struct assault {
  attack kind;
  size_t at;
  const char *spec;
} assault;

static float value_of(int rank, size_t i) { return (float)((i * 7919 + (size_t)rank * 104729) % 2001); }

/* Sums are right until there is an error, and there is one. */
static void suffer(pith_comm *comm, void *argument) {
  const assault *a = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  enum { N = 3000 };
  float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
  pith_status status = PITH_OK;
  if (rank == 1) {
    step_between(comm, a->kind, a->at);
  }
  for (int round = 0; round < 40 && status == PITH_OK; round++) {
    for (size_t i = 0; i < N; i++) {
      x[i] = value_of(rank, i);
    }
    status = reduce_once(comm, NULL, x, y, N);
    for (size_t i = 0; i < N && status == PITH_OK && rank != 1; i++) {
      float sum = 0;
      for (int r = 0; r < ranks; r++) {
        sum += value_of(r, i);
      }
      CHECK_MSG(y[i] == sum, "attack %d at byte %zu: value %zu is %g, not %g", (int)a->kind, a->at, i, (double)y[i],
                (double)sum);
    }
  }
  CHECK_MSG(status != PITH_OK || rank == 1, "attack %d at byte %zu was not noticed by rank %d", (int)a->kind, a->at,
            rank);
  free(x);
  free(y);
}

/* Several at a time: some end in a time-out only. */
TEST(damaged_streams_are_errors_and_never_wrong_sums) {
  enum { BATCHES = 3, GROUPS = 10 };
  for (int b = 0; b < BATCHES; b++) {
    pid_t child[GROUPS][RANKS_MOST];
    assault a[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
      a[g] = (assault){(attack)(g % ATTACKS), (size_t)test_below(g < GROUPS / 2 ? 200 : 100000), NULL};
      ranks_start("tcp", 2 + (g + b) % 2, 1, suffer, &a[g], child[g]);
    }
    for (int g = 0; g < GROUPS; g++) {
      ranks_wait(child[g], 2 + (g + b) % 2, -1);
    }
  }
}

/* Every bit of the first header, and of what follows it. */
TEST(a_flipped_bit_of_a_header_is_an_error) {
  enum { GROUPS = 16 };
  for (size_t first = 0; first < sizeof(pith_frame); first += GROUPS) {
    pid_t child[GROUPS][RANKS_MOST];
    assault a[GROUPS];
    for (size_t g = 0; g < GROUPS; g++) {
      a[g] = (assault){FLIP, first + g, NULL};
      ranks_start("tcp", 2, 0.7, suffer, &a[g], child[g]);
    }
    for (size_t g = 0; g < GROUPS; g++) {
      ranks_wait(child[g], 2, -1);
    }
  }
}

/* Messages that are well made and say something impossible. */
static pith_frame forge(unsigned trick, uint64_t count, uint8_t *payload, size_t *size) {
  pith_frame f = {.magic = PITH_FRAME_MAGIC,
                  .version = PITH_FRAME_VERSION,
                  .kind = PITH_FRAME_DATA,
                  .operation = PITH_OP_ALLREDUCE,
                  .flags = (uint32_t)PITH_ALGORITHM_SRA << 16 | (uint32_t)PITH_F32 << 8 | PITH_SUM,
                  .sequence = 1,
                  .count = count,
                  .tag = PITH_TAG(0, 0)};
  *size = (size_t)count / 2 * sizeof(float);
  switch (trick) {
    case 0:
      *size += 4;
      break; /* more than there is room for */
    case 1:
      *size -= 4;
      break; /* less than the values need */
    case 2:
      *size = 0;
      break;
    case 3:
      f.length = UINT64_MAX;
      break;
    case 4:
      f.length = (uint64_t)1 << 39;
      break;
    case 5:
      f.kind = 77;
      break;
    case 6:
      f.kind = PITH_FRAME_ABORT;
      break; /* too long for a notice */
    case 7:
      f.operation = 999;
      break;
    case 8:
      f.sequence = 0;
      break;
    case 9:
      f.count++;
      break;
    case 10:
      f.flags ^= 1;
      break;
    default:
      f.version = 9;
      break;
  }
  f.length = f.length ? f.length : *size;
  (void)payload;
  return f;
}

enum { TRICKS = 12 };

static void forge_or_suffer(pith_comm *comm, void *argument) {
  enum { N = 3000 };
  static uint8_t payload[N * sizeof(float)];
  float *x = calloc(N, sizeof *x), *y = calloc(N, sizeof *y);
  if (pith_comm_rank(comm) == 1) {
    size_t size, taken = 0;
    pith_frame f = forge(*(unsigned *)argument, N, payload, &size);
    pith__frame_seal(&f, payload, f.length == size);
    struct iovec pieces[2] = {{&f, sizeof f}, {payload, size}};
    CHECK_OK(comm->transport[0]->ops->send(comm->transport[0], 0, pieces, 2, &taken));
  }
  pith_status status = PITH_OK;
  for (int i = 0; i < 3 && status == PITH_OK; i++) {
    status = reduce_once(comm, NULL, x, y, N);
  }
  CHECK_MSG(status != PITH_OK, "trick %u: rank %d noticed nothing", *(unsigned *)argument, pith_comm_rank(comm));
  free(x);
  free(y);
}

TEST(forged_messages_are_errors) {
  pid_t child[TRICKS][RANKS_MOST];
  unsigned trick[TRICKS];
  for (unsigned t = 0; t < TRICKS; t++) {
    trick[t] = t;
    ranks_start("tcp", 2, 1, forge_or_suffer, &trick[t], child[t]);
  }
  for (unsigned t = 0; t < TRICKS; t++) {
    ranks_wait(child[t], 2, -1);
  }
}

/* The first half of a message of another layer comes before the operation that it belongs to begins, the rest after. */
static void halve_a_message(pith_comm *comm, void *argument) {
  enum { N = 3000 };
  float x[N], y[N] = {0}, other[N], none;
  (void)argument;
  for (int i = 0; i < N; i++) {
    x[i] = 1, other[i] = 100;
  }
  if (pith_comm_rank(comm) == 1) {
    size_t size, taken = 0;
    pith_frame f = forge(TRICKS, N, NULL, &size);
    f.version = PITH_FRAME_VERSION, f.layer = 77, f.length = sizeof other;
    pith__frame_seal(&f, NULL, 0);
    struct iovec pieces[2] = {{&f, sizeof f}, {other, sizeof other / 2}};
    CHECK_OK(comm->transport[0]->ops->send(comm->transport[0], 0, pieces, 2, &taken));
    usleep(600000);
    pieces[0] = (struct iovec){other, sizeof other / 2};
    CHECK_OK(comm->transport[0]->ops->send(comm->transport[0], 0, pieces, 1, &taken));
    usleep(600000);
    return;
  }
  pith_request *request;
  int done = 0;
  CHECK_OK(pith_recv(comm, (pith_span){&none, 1, PITH_F32}, 1, 5, &request));
  for (double end = pith__now() + 0.3; pith__now() < end;) { /* takes what comes */
    CHECK_OK(pith_test(request, &done));
  }
  pith__comm_lock(comm);
  int is_arriving = comm->link[1]->stored != NULL;
  pthread_mutex_unlock(&comm->mutex);
  CHECK(!done && is_arriving);
  CHECK_STATUS(reduce_once(comm, NULL, x, y, N), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("layer 77");
  CHECK(y[0] == 0 && y[N - 1] == 0);
  CHECK(pith_wait(request) != PITH_OK);
}

TEST(a_message_that_comes_in_halves_is_compared_as_well) {
  pid_t child[2];
  ranks_start("tcp", 2, 5, halve_a_message, NULL, child);
  ranks_wait(child, 2, -1);
}

/* ---- Messages that nothing waits for ----------------------------------------------------------------------------- */

/* A header that claims half a tebibyte, and one byte of it. */
static void claim_much(pith_comm *comm, void *argument) {
  (void)argument;
  if (pith_comm_rank(comm) == 1) {
    pith_frame f = {.magic = PITH_FRAME_MAGIC,
                    .version = PITH_FRAME_VERSION,
                    .kind = PITH_FRAME_DATA,
                    .operation = PITH_OP_POINT,
                    .tag = 7,
                    .length = (uint64_t)1 << 39};
    size_t taken = 0;
    pith__frame_seal(&f, NULL, 0);
    struct iovec pieces[2] = {{&f, sizeof f}, {"", 1}};
    CHECK_OK(comm->transport[0]->ops->send(comm->transport[0], 0, pieces, 2, &taken));
    usleep(2000000);
  } else {
    float x;
    pith_status status = pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 1, 8, NULL);
    CHECK_MSG(status == PITH_ERR_TIMEOUT && names_rank(pith_error(), 1), "%s: %s", pith_status_string(status),
              pith_error());
  }
}

TEST(memory_grows_with_what_comes_and_not_with_what_is_claimed) {
  pid_t child[2];
  ranks_start("tcp", 2, 0.7, claim_much, NULL, child);
  ranks_wait(child, 2, -1);
}

enum { EARLY_VALUES = 1 << 20 };

/* What rank 0 waits for stands behind much that it does not wait for. */
static void send_out_of_order(pith_comm *comm, void *argument) {
  (void)argument;
  float *x = calloc(EARLY_VALUES, sizeof *x), last = 1;
  if (pith_comm_rank(comm) == 1) {
    pith_status status = pith_send(comm, (pith_cspan){x, EARLY_VALUES, PITH_F32}, 0, 1, NULL);
    status = status == PITH_OK ? pith_send(comm, (pith_cspan){&last, 1, PITH_F32}, 0, 2, NULL) : status;
    status = status == PITH_OK ? pith_barrier(comm, NULL) : status;
    CHECK(status != PITH_OK);
  } else {
    pith__early_bounds.limit = EARLY_VALUES;
    CHECK_STATUS(pith_recv(comm, (pith_span){&last, 1, PITH_F32}, 1, 2, NULL), PITH_ERR_MEMORY);
    CHECK_ERROR_SAYS("rank 1 sent rank 0 more than 1048576 bytes that it does not wait for yet");
  }
  free(x);
}

TEST(what_nothing_waits_for_is_bounded_also_while_something_else_is_waited_for) {
  ranks_run("tcp", 2, 0, send_out_of_order, NULL);
}

/* A message that is kept in part, and whose receive is posted then: the rest goes straight to its place. */
static void receive_what_has_begun(pith_comm *comm, void *argument) {
  (void)argument;
  float *x = calloc(EARLY_VALUES, sizeof *x), sign = 1;
  int rank = pith_comm_rank(comm);
  for (size_t i = 0; i < EARLY_VALUES && rank == 1; i++) {
    x[i] = value_of(1, i);
  }
  if (rank == 1) {
    CHECK_OK(pith_send(comm, (pith_cspan){x, EARLY_VALUES, PITH_F32}, 0, 1, NULL));
  } else if (rank == 2) {
    usleep(300000);
    CHECK_OK(pith_send(comm, (pith_cspan){&sign, 1, PITH_F32}, 0, 1, NULL));
  } else {
    pith__early_bounds = (pith_early_bounds){.pause = 100000, .limit = 2 * EARLY_VALUES};
    CHECK_OK(pith_recv(comm, (pith_span){&sign, 1, PITH_F32}, 2, 1, NULL));
    const pith_link *link = comm->link[1];
    CHECK_MSG(link->stored && link->payload_done >= 100000 && link->payload_done < 2 * EARLY_VALUES,
              "%zu bytes were kept", link->payload_done);
    CHECK_OK(pith_recv(comm, (pith_span){x, EARLY_VALUES, PITH_F32}, argument ? PITH_ANY_RANK : 1, 1, NULL));
    for (size_t i = 0; i < EARLY_VALUES; i++) {
      CHECK_MSG(x[i] == value_of(1, i), "value %zu is %g", i, (double)x[i]);
    }
  }
  free(x);
  CHECK_OK(pith_barrier(comm, NULL));
}

TEST(a_message_whose_receive_comes_in_its_middle_goes_on_to_its_place) {
  static const char *const two[] = {"shm", "tcp"};
  for (size_t i = 0; i < 2; i++) {
    ranks_run(two[i], 3, 0, receive_what_has_begun, NULL);
    ranks_run(two[i], 3, 0, receive_what_has_begun, "any");
  }
}

/* ---- Checksums --------------------------------------------------------------------------------------------------- */

/* An address of this machine that is not loopback; NULL: it has none. */
static const char *own_address(char text[INET_ADDRSTRLEN]) {
  struct ifaddrs *list = NULL;
  const char *found = NULL;
  CHECK(getifaddrs(&list) == 0);
  for (const struct ifaddrs *entry = list; entry && !found; entry = entry->ifa_next) {
    if (entry->ifa_addr && entry->ifa_addr->sa_family == AF_INET && !(entry->ifa_flags & IFF_LOOPBACK)) {
      const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)entry->ifa_addr;
      found = inet_ntop(AF_INET, &v4->sin_addr, text, INET_ADDRSTRLEN);
    }
  }
  freeifaddrs(list);
  return found;
}

/* Two ranks that call their host the same; whether their payloads carry a checksum. */
static void check_checksums(const char *interface, int expected) {
  int port = ranks_free_port();
  pid_t child[2];
  for (int r = 0; r < 2; r++) {
    child[r] = fork();
    CHECK(child[r] >= 0);
    if (child[r] == 0) {
      pith_config config = PITH_CONFIG_INIT;
      pith_comm *comm;
      config.rank = r, config.ranks = 2, config.port = port, config.host = "127.0.0.1", config.transport = "tcp";
      config.interface = interface, config.host_id = "twin";
      CHECK_OK(pith_comm_create(&config, &comm));
      CHECK_EQ(comm->link[1 - r]->checked, expected);
      CHECK_OK(pith_barrier(comm, NULL));
      pith_comm_destroy(comm);
      _exit(0);
    }
  }
  ranks_wait(child, 2, -1);
}

TEST(tcp_has_a_checksum_unless_it_is_loopback_whatever_ranks_call_their_host) {
  char text[INET_ADDRSTRLEN];
  check_checksums("127.0.0.1", 0);
  if (!own_address(text)) {
    LACKS("network", "this machine has no address but loopback");
  }
  check_checksums(text, 1);
}

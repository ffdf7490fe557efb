/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives: against plain references, on every transport, with one to nine ranks. Every rank knows what every other
 * rank has (values follow from rank and place), so each checks its own result.
 */
#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ranks.h"
#include "test.h"

#define MOST 70000

/* Whole numbers and halves: sums of a few are exact in f32. */
static float value_of(int rank, size_t i) {
  return (float)((int)((i * 7919 + (size_t)rank * 104729) % 2001) - 1000) * 0.5f;
}

static float *tensor_of(int rank, size_t n) {
  float *x = malloc((n + 1) * sizeof *x);
  for (size_t i = 0; i < n; i++) {
    x[i] = value_of(rank, i);
  }
  return x;
}

static double sum_at(int ranks, size_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; r++) {
    sum += value_of(r, i);
  }
  return sum;
}

typedef struct plan {
  const char *spec; /* NULL: uncompressed */
  size_t n;
  double tolerance; /* of the mean, against the largest value */
} plan;

/* All ranks compare with rank 0's result, bit by bit. */
static void check_replicas_agree(pith_comm *comm, const float *x, size_t n) {
  float *first = malloc((n + 1) * sizeof *first);
  memcpy(first, x, n * sizeof *x);
  CHECK_OK(pith_broadcast(comm, (pith_span){first, n, PITH_F32}, 0, NULL, NULL));
  CHECK_MSG(n == 0 || memcmp(first, x, n * sizeof *x) == 0, "rank %d of %d holds other bits than rank 0",
            pith_comm_rank(comm), pith_comm_size(comm));
  free(first);
}

static void allreduce_sum(pith_comm *comm, void *argument) {
  const plan *p = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float *x = tensor_of(rank, p->n), *y = calloc(p->n + 1, sizeof *y);
  CHECK_OK(pith_allreduce(comm, (pith_cspan){x, p->n, PITH_F32}, (pith_span){y, p->n, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK_OK(pith_allreduce(comm, (pith_cspan){x, p->n, PITH_F32}, (pith_span){x, p->n, PITH_F32}, PITH_SUM, NULL, NULL));
  for (size_t i = 0; i < p->n; i++) {
    CHECK_MSG(y[i] == (float)sum_at(ranks, i), "value %zu of %zu is %g on rank %d", i, p->n, (double)y[i], rank);
  }
  CHECK_BYTES(x, y, p->n * sizeof *x);
  free(x);
  free(y);
}

static const char *const transports[] = {"inproc", "shm", "tcp"};
static const size_t lengths[] = {0, 1, 2, 7, 100, 1000, 4097, MOST};

TEST(allreduce_sums_on_every_transport) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 1; ranks <= 5; ranks++) {
      for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
        plan p = {NULL, lengths[l], 0};
        ranks_run(transports[t], ranks, l % 2 ? 256 : 0, allreduce_sum, &p);
      }
    }
  }
}

static int count_sockets(void) {
  DIR *folder = opendir("/proc/self/fd");
  int count = 0;
  for (struct dirent *entry; folder && (entry = readdir(folder));) {
    struct stat about;
    count += fstatat(dirfd(folder), entry->d_name, &about, 0) == 0 && S_ISSOCK(about.st_mode);
  }
  closedir(folder);
  return count;
}

typedef struct sockets {
  plan plan;
  int *count; /* of each rank; shared */
} sockets;

static void allreduce_and_count(pith_comm *comm, void *argument) {
  sockets *s = argument;
  allreduce_sum(comm, &s->plan);
  s->count[pith_comm_rank(comm)] = count_sockets();
}

/* PITH_CONNECTIONS more sockets to each peer, and the same sums through them. */
TEST(the_environment_sets_the_number_of_connections) {
  enum { RANKS = 3, MORE = 4 };
  int *count = mmap(NULL, 2 * RANKS * sizeof *count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  CHECK(count != MAP_FAILED);
  ranks_run("tcp", RANKS, 0, allreduce_and_count, &(sockets){{NULL, MOST, 0}, count});
  setenv("PITH_CONNECTIONS", "4", 1);
  ranks_run("tcp", RANKS, 0, allreduce_and_count, &(sockets){{NULL, MOST, 0}, count + RANKS});
  unsetenv("PITH_CONNECTIONS");
  for (int r = 0; r < RANKS; r++) {
    CHECK_EQ(count[RANKS + r] - count[r], (MORE - 1) * (RANKS - 1));
  }
  munmap(count, 2 * RANKS * sizeof *count);
}

static void allreduce_compressed(pith_comm *comm, void *argument) {
  const plan *p = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(p->spec, &codec));
  CHECK_OK(pith_state_create(codec, p->n, 0, &call.state));
  call.codec = codec;
  float *x = tensor_of(rank, p->n), *y = calloc(p->n + 1, sizeof *y);
  for (uint64_t step = 0; step < 2; step++) {
    call.step = step;
    CHECK_OK(
        pith_allreduce(comm, (pith_cspan){x, p->n, PITH_F32}, (pith_span){y, p->n, PITH_F32}, PITH_MEAN, &call, NULL));
    check_replicas_agree(comm, y, p->n);
  }
  for (size_t i = 0; i < p->n && p->tolerance > 0; i++) {
    CHECK_NEAR(y[i], sum_at(ranks, i) / ranks, p->tolerance * 500);
  }
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
  free(x);
  free(y);
}

/* Tolerance as a part of the largest value: two roundings of half a unit; none where the method keeps few values. */
static const plan compressed[] = {{"none", 3000, 1e-6},        {"fp16", 3000, 2e-3},
                                  {"bf16", 3000, 2e-2},        {"q:8", 5000, 2e-2},
                                  {"q:4", 5000, 0.3},          {"q:4,round=stochastic", 5000, 0.5},
                                  {"ef/q:4", 5000, 0.5},       {"qsgd:64,norm=linf", 5000, 0.1},
                                  {"natural", 2000, 2.0},      {"terngrad", 5000, 0},
                                  {"signsgd", 9000, 0},        {"signum", 9000, 0},
                                  {"efsignsgd", 9000, 0},      {"onebit", 3000, 0},
                                  {"u8", 3000, 0.1},           {"inceptionn:0.5", 3000, 3e-3},
                                  {"gq:8", 3000, 0.2},         {"drive", 9000, 0},
                                  {"eden:4", 9000, 0},         {"hadamard/q:8", 5000, 0.1},
                                  {"topk:0.1", 3000, 0},       {"ef/topk:0.1", 3000, 0},
                                  {"randomk:0.1", 3000, 0},    {"threshold:100", 3000, 0.21},
                                  {"dgc:0.1", 3000, 0},        {"adaptive:0.1", 3000, 0},
                                  {"sketchml:256", 3000, 0.1}, {"powersgd:2", 2500, 0},
                                  {"ef/powersgd:2", 2500, 0},  {"q:4", 0, 0.3},
                                  {"topk:0.5", 1, 0},          {"q:4", 1, 0.3}};

TEST(compressed_replicas_are_identical_and_near_the_mean) {
  for (size_t c = 0; c < sizeof compressed / sizeof *compressed; c++) {
    for (int ranks = 1; ranks <= 4; ranks += c % 3 + 1) {
      plan p = compressed[c];
      ranks_run("inproc", ranks, 0, allreduce_compressed, &p);
    }
  }
}

TEST(compressed_replicas_are_identical_between_processes) {
  for (size_t c = 0; c < sizeof compressed / sizeof *compressed; c += 3) {
    plan p = compressed[c];
    ranks_run(c % 2 ? "shm" : "tcp", 3, 0, allreduce_compressed, &p);
  }
}

/* ---- Chunks ------------------------------------------------------------------------------------------------------ */

typedef struct kept {
  float *result; /* of rank 0 */
  const char *spec;
  size_t n;
} kept;

static void keep_result(pith_comm *comm, void *argument) {
  kept *k = argument;
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(k->spec, &codec));
  call.codec = codec;
  float *x = tensor_of(pith_comm_rank(comm), k->n);
  CHECK_OK(
      pith_allreduce(comm, (pith_cspan){x, k->n, PITH_F32}, (pith_span){x, k->n, PITH_F32}, PITH_MEAN, &call, NULL));
  if (pith_comm_rank(comm) == 0) {
    memcpy(k->result, x, k->n * sizeof *x);
  }
  pith_codec_destroy(codec);
  free(x);
}

TEST(results_do_not_depend_on_the_size_of_chunks) {
  static const char *const specs[] = {"q:4,round=stochastic", "hadamard/q:2", "sign,scale=mean", "inceptionn:1"};
  static const size_t chunks[] = {1, 4096, 20000, 1 << 20};
  for (size_t s = 0; s < 4; s++) {
    float *first = malloc(20000 * sizeof *first), *other = malloc(20000 * sizeof *other);
    for (size_t c = 0; c < 4; c++) {
      kept k = {c ? other : first, specs[s], 20000};
      ranks_run("inproc", 3, chunks[c], keep_result, &k);
      CHECK_BYTES(first, c ? other : first, 20000 * sizeof *first);
    }
    free(first);
    free(other);
  }
}

/* ---- The other operations ---------------------------------------------------------------------------------------- */

static void everything_else(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  size_t n = 500, all = n * (size_t)ranks;
  float *x = tensor_of(rank, all), *y = calloc(all, sizeof *y);
  CHECK_OK(pith_barrier(comm, NULL));

  CHECK_OK(pith_reduce_scatter(comm, (pith_cspan){x, all, PITH_F32}, (pith_span){y, n, PITH_F32}, NULL, PITH_SUM, NULL,
                               NULL));
  for (size_t i = 0; i < n; i++) {
    CHECK(y[i] == (float)sum_at(ranks, (size_t)rank * n + i));
  }
  CHECK_OK(pith_all_gather(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){y, all, PITH_F32}, NULL, NULL, NULL));
  for (size_t i = 0; i < all; i++) {
    CHECK(y[i] == value_of((int)(i / n), i % n));
  }
  CHECK_OK(pith_all_to_all(comm, (pith_cspan){x, all, PITH_F32}, NULL, (pith_span){y, all, PITH_F32}, NULL, NULL));
  for (size_t i = 0; i < all; i++) {
    CHECK(y[i] == value_of((int)(i / n), (size_t)rank * n + i % n));
  }
  for (int root = 0; root < ranks; root++) {
    memcpy(y, x, all * sizeof *x);
    CHECK_OK(pith_broadcast(comm, (pith_span){y, all, PITH_F32}, root, NULL, NULL));
    CHECK(y[3] == value_of(root, 3) && y[all - 1] == value_of(root, all - 1));
    memset(y, 0, all * sizeof *y);
    CHECK_OK(
        pith_reduce(comm, (pith_cspan){x, all, PITH_F32}, (pith_span){y, all, PITH_F32}, PITH_MAX, root, NULL, NULL));
    CHECK(rank != root || y[0] >= x[0]);
    CHECK_OK(pith_gather(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){y, all, PITH_F32}, NULL, root, NULL));
    CHECK(rank != root || y[all - 1] == value_of(ranks - 1, n - 1));
    CHECK_OK(pith_scatter(comm, (pith_cspan){x, all, PITH_F32}, NULL, (pith_span){y, n, PITH_F32}, root, NULL));
    CHECK(y[5] == value_of(root, (size_t)rank * n + 5));
  }
  if (ranks > 1) {
    int to = (rank + 1) % ranks, from = (rank + ranks - 1) % ranks;
    pith_request *sent;
    CHECK_OK(pith_send(comm, (pith_cspan){x, n, PITH_F32}, to, 7, &sent));
    CHECK_OK(pith_recv(comm, (pith_span){y, n, PITH_F32}, from, 7, NULL));
    CHECK_OK(pith_wait(sent));
    CHECK(y[9] == value_of(from, 9));
  }
  free(x);
  free(y);
}

TEST(moves_and_reductions_put_every_value_where_it_belongs) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 1; ranks <= 9; ranks += t ? 2 : 1) {
      ranks_run(transports[t], ranks, 700, everything_else, NULL);
    }
  }
}

/* Rank 0 receives from whoever sends: early messages and late ones, among others that name their source. */
static void receive_from_any(pith_comm *comm, void *argument) {
  (void)argument;
  enum { N = 3000, ROUNDS = 3 };
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm), from[9] = {0}, source = -2;
  float *x = tensor_of(rank, N), *y = malloc(N * sizeof *y);
  for (int round = 0; round < ROUNDS && rank > 0; round++) {
    CHECK_OK(pith_send(comm, (pith_cspan){x, N, PITH_F32}, 0, 5, NULL));
    CHECK_OK(pith_send(comm, (pith_cspan){x, 1, PITH_F32}, 0, 6, NULL));
  }
  for (int i = 0; i < ROUNDS * (ranks - 1) && rank == 0; i++) {
    pith_request *request;
    CHECK_OK(pith_recv(comm, (pith_span){y, N, PITH_F32}, PITH_ANY_RANK, 5, &request));
    CHECK_OK(pith_wait_source(request, &source));
    CHECK_MSG(source > 0 && source < ranks, "received from rank %d", source);
    CHECK(y[9] == value_of(source, 9) && y[N - 1] == value_of(source, N - 1));
    from[source]++;
  }
  for (int p = 1; p < ranks && rank == 0; p++) {
    CHECK_MSG(from[p] == ROUNDS, "%d messages from rank %d", from[p], p);
    for (int round = 0; round < ROUNDS; round++) { /* what was taken from any rank is not in the way of these */
      CHECK_OK(pith_recv(comm, (pith_span){y, 1, PITH_F32}, p, 6, NULL));
      CHECK(y[0] == value_of(p, 0));
    }
  }
  CHECK_OK(pith_barrier(comm, NULL));
  CHECK(pith_recv(comm, (pith_span){y, 1, PITH_F32}, -2, 6, NULL) == PITH_ERR_ARGUMENT);
  CHECK(pith_send(comm, (pith_cspan){y, 1, PITH_F32}, PITH_ANY_RANK, 6, NULL) == PITH_ERR_ARGUMENT);
  free(x);
  free(y);
}

TEST(a_receive_from_any_rank_says_who_sent) {
  for (size_t t = 0; t < 3; t++) {
    for (int ranks = 2; ranks <= 5; ranks++) {
      ranks_run(transports[t], ranks, 0, receive_from_any, NULL);
    }
  }
}

/* The last rank leaves at once; the others' messages still arrive. */
static void one_leaves(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm), source = -2;
  float x = 1;
  pith_request *request;
  if (rank == 0) {
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, ranks - 1, 2, NULL)); /* it leaves after this */
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, PITH_ANY_RANK, 3, &request));
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 1, 4, NULL));
    CHECK_OK(pith_wait_source(request, &source));
    CHECK_MSG(source == 1, "received from rank %d", source);
  } else if (rank == 1) {
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 0, 4, NULL));
    usleep(100000);
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 0, 3, NULL));
  } else if (rank == ranks - 1) {
    CHECK_OK(pith_send(comm, (pith_cspan){&x, 1, PITH_F32}, 0, 2, NULL));
  }
}

TEST(a_receive_from_any_rank_does_not_need_those_who_left) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 3, 0, one_leaves, NULL);
  }
}

/* A time-out that was long is made short while rank 0 waits for a message that never comes. */
static void shorten_timeout(pith_comm *comm, void *argument) {
  (void)argument;
  float x;
  pith_request *request;
  CHECK(pith_comm_set_timeout(comm, 0) == PITH_ERR_RANGE);
  CHECK(pith_comm_set_timeout(comm, -1) == PITH_ERR_RANGE);
  CHECK_OK(pith_comm_set_timeout(comm, 500));
  CHECK(pith_comm_timeout(comm) == 500);
  CHECK_OK(pith_barrier(comm, NULL));
  if (pith_comm_rank(comm) == 0) {
    CHECK_OK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, PITH_ANY_RANK, 1, &request));
    usleep(50000);
    CHECK_OK(pith_comm_set_timeout(comm, 0.2));
    CHECK(pith_wait(request) == PITH_ERR_TIMEOUT);
    CHECK_MSG(strstr(pith_error(), "Timed out waiting") &&
                  strstr(pith_error(), "a timeout of 0.2 s, set by pith_comm_set_timeout()"),
              "the error is %s", pith_error());
  } else {
    CHECK(pith_recv(comm, (pith_span){&x, 1, PITH_F32}, 0, 1, NULL) == PITH_ERR_ABORTED);
  }
}

TEST(a_timeout_can_be_changed_while_an_operation_waits) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 2, 0, shorten_timeout, NULL);
  }
}

static void many_requests(pith_comm *comm, void *argument) {
  (void)argument;
  enum { REQUESTS = 20 };
  pith_request *request[REQUESTS];
  float *x[REQUESTS];
  for (int i = 0; i < REQUESTS; i++) {
    x[i] = tensor_of(pith_comm_rank(comm) + i, 3000);
    pith_span span = {x[i], 3000, PITH_F32};
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x[i], 3000, PITH_F32}, span, PITH_SUM, NULL, &request[i]));
  }
  for (int i = REQUESTS; i-- > 0;) {
    double sum = 0;
    for (int r = 0; r < pith_comm_size(comm); r++) {
      sum += value_of(r + i, 11);
    }
    CHECK_OK(pith_wait(request[i]));
    CHECK(x[i][11] == (float)sum);
    free(x[i]);
  }
}

TEST(many_operations_can_be_under_way) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 3, 0, many_requests, NULL);
  }
}

static void split_in_two(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  pith_comm *half;
  CHECK_OK(pith_comm_split(comm, rank == 0 ? -1 : rank % 2, -rank, &half));
  if (rank == 0) {
    CHECK(half == NULL);
    return;
  }
  float x = (float)rank;
  int expected = 0, members = 0;
  for (int r = 1; r < ranks; r++) {
    expected += r % 2 == rank % 2 ? r : 0;
    members += r % 2 == rank % 2;
  }
  CHECK_EQ(pith_comm_size(half), members);
  CHECK_OK(pith_allreduce(half, (pith_cspan){&x, 1, PITH_F32}, (pith_span){&x, 1, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK(x == (float)expected);
  pith_comm_destroy(half);
}

TEST(a_comm_splits_into_groups) {
  for (size_t t = 0; t < 3; t++) {
    ranks_run(transports[t], 6, 0, split_in_two, NULL);
  }
}

/* ---- Disagreement ------------------------------------------------------------------------------------------------ */

static void one_is_wrong(pith_comm *comm, void *argument) {
  int kind = *(int *)argument, odd = pith_comm_rank(comm) == 1;
  float x[64] = {0};
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(kind == 2 && odd ? "q:3" : "q:4", &codec));
  call.codec = codec;
  call.layer = kind == 3 && odd ? 5 : 4;
  size_t n = kind == 1 && odd ? 63 : 64;
  pith_status status;
  if (kind == 0 && odd) {
    status = pith_barrier(comm, NULL);
  } else {
    status = pith_allreduce(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){x, n, PITH_F32}, PITH_SUM,
                            kind >= 2 ? &call : NULL, NULL);
  }
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED || status == PITH_ERR_PEER, "rank %d got %s",
            pith_comm_rank(comm), pith_status_string(status));
  CHECK_MSG(strstr(pith_error(), "rank 1"), "the error says \"%s\"", pith_error());
  CHECK(pith_barrier(comm, NULL) == status); /* refused with the same */
  pith_codec_destroy(codec);
}

TEST(ranks_that_disagree_are_told_so) {
  for (size_t t = 0; t < 3; t++) {
    for (int kind = 0; kind < 4; kind++) {
      ranks_run(transports[t], 3, 0, one_is_wrong, &kind);
    }
  }
}

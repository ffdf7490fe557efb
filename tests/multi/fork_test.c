/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Children that ranks fork, as loaders of data are: they never speak for their parent, and they do not hide its death.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "descriptors.h"
#include "ranks.h"
#include "test.h"

static const char *const transports[] = {"shm", "tcp"};

static void sum_up(pith_comm *comm) {
  float one = 1, sum = 0;
  CHECK_OK(pith_allreduce(comm, (pith_cspan){&one, 1, PITH_F32}, (pith_span){&sum, 1, PITH_F32}, PITH_SUM, NULL, NULL));
  CHECK(sum == (float)pith_comm_size(comm));
}

typedef void (*child_fn)(pith_comm *comm);

/* Rank 1 forks, and waits for its child; then the ranks go on. */
static void fork_once(pith_comm *comm, void *argument) {
  child_fn be_child = *(child_fn *)argument;
  sum_up(comm);
  if (pith_comm_rank(comm) == 1) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      be_child(comm);
      _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
  }
  sum_up(comm);
}

static void check_child(child_fn be_child) {
  for (size_t t = 0; t < sizeof transports / sizeof *transports; t++) {
    ranks_run(transports[t], 2, 0, fork_once, &be_child);
  }
}

/* ---- What children do -------------------------------------------------------------------------------------------- */

static void destroy_the_copy(pith_comm *comm) { pith_comm_destroy(comm); }

TEST(a_child_that_destroys_its_copy_says_nothing) { check_child(destroy_the_copy); }

static void abort_the_copy(pith_comm *comm) {
  pith_comm_abort(comm, "the child has had enough");
  pith_comm_destroy(comm);
}

TEST(a_child_cannot_abort_for_its_parent) { check_child(abort_the_copy); }

static void use_the_copy(pith_comm *comm) {
  float x[4] = {0};
  pith_comm *group;
  pith_request *request;
  pith_stats stats = {.size = sizeof stats};
  CHECK_STATUS(pith_barrier(comm, NULL), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("forked from rank 1");
  CHECK_STATUS(pith_barrier(comm, &request), PITH_ERR_STATE);
  CHECK_STATUS(pith_allreduce(comm, (pith_cspan){x, 4, PITH_F32}, (pith_span){x, 4, PITH_F32}, PITH_SUM, NULL, NULL),
               PITH_ERR_STATE);
  CHECK_STATUS(pith_send(comm, (pith_cspan){x, 4, PITH_F32}, 0, 0, NULL), PITH_ERR_STATE);
  CHECK_STATUS(pith_comm_split(comm, 0, 0, &group), PITH_ERR_STATE);
  CHECK_STATUS(pith_comm_stats(comm, &stats), PITH_ERR_STATE);
}

TEST(a_child_cannot_use_the_comm) { check_child(use_the_copy); }

/* It may have a comm of its own, whose descriptors have the numbers of its parent's. */
static void have_an_own_comm(pith_comm *comm) {
  pith_comm *own[2];
  pith_config config = PITH_CONFIG_INIT;
  config.rank = 0, config.ranks = 1;
  CHECK_OK(pith_comm_create(&config, &own[0]));
  CHECK_OK(pith_comm_create(&config, &own[1]));
  int before = count_descriptors();
  pith_comm_destroy(comm);
  CHECK_EQ(count_descriptors(), before);
  sum_up(own[0]);
  sum_up(own[1]);
  pith_comm_destroy(own[0]);
  pith_comm_destroy(own[1]);
}

TEST(a_child_can_have_a_comm_of_its_own) { check_child(have_an_own_comm); }

/* Requests that were under way, a thread that drove them, and threads that encoded are the parent's. */
static void fork_under_way(pith_comm *comm, void *argument) {
  (void)argument;
  enum { N = 300000 };
  float *x = calloc(N, sizeof *x);
  for (int round = 0; round < 5; round++) {
    pith_request *request;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){x, N, PITH_F32}, PITH_SUM, NULL, &request));
    int status, done;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
      alarm(20); /* rather than hang */
      CHECK_STATUS(pith_test(request, &done), PITH_ERR_STATE);
      CHECK_STATUS(pith_wait(request), PITH_ERR_STATE);
      pith_comm_destroy(comm);
      _exit(0);
    }
    CHECK_OK(pith_wait(request));
    CHECK(waitpid(child, &status, 0) == child);
    CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
  }
  free(x);
}

TEST(a_child_forked_while_requests_are_under_way_does_no_harm) {
  for (size_t t = 0; t < sizeof transports / sizeof *transports; t++) {
    ranks_run(transports[t], 2, 0, fork_under_way, NULL);
  }
}

static void fork_with_a_reducer(pith_comm *comm, void *argument) {
  pith_reducer *r;
  size_t layer, n = 5000;
  float x[5000] = {0};
  int status;
  CHECK_OK(pith_reducer_create(comm, argument, 1, &r));
  CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a", &n, 1, PITH_F32, NULL}, &layer));
  CHECK_OK(pith_reducer_start(r, layer, x));
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(20);
    CHECK_STATUS(pith_reducer_start(r, layer, x), PITH_ERR_STATE);
    CHECK_STATUS(pith_reducer_finish(r), PITH_ERR_STATE);
    pith_reducer_destroy(r);
    pith_comm_destroy(comm);
    _exit(0);
  }
  CHECK(waitpid(child, &status, 0) == child);
  CHECK_MSG(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child failed");
  CHECK_OK(pith_reducer_finish(r));
  pith_reducer_destroy(r);
}

TEST(a_child_cannot_use_the_reducer) {
  static char rules[][12] = {"none", "ef/q:4", "auto"};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    ranks_run("tcp", 2, 0, fork_with_a_reducer, rules[i]);
  }
}

/* ---- What children must not do ----------------------------------------------------------------------------------- */

/* Rank 1 dies and its child lives on. The time-out of operations is half an hour. */
static void die_with_a_child(pith_comm *comm, void *argument) {
  float x[1000] = {0};
  sum_up(comm);
  if (pith_comm_rank(comm) != 1) {
    CHECK_OK(pith_send(comm, (pith_cspan){x, 1, PITH_F32}, 1, 1, NULL));
  } else {
    pid_t parent = getpid();
    for (int p = 0; p < pith_comm_size(comm); p += 2) { /* the others have their sum: what we sent for it may be lost */
      CHECK_OK(pith_recv(comm, (pith_span){x, 1, PITH_F32}, p, 1, NULL));
    }
    if (fork() == 0) {
      for (int i = 0; i < 100 && getppid() == parent; i++) { /* until it is dead, and long enough for the others */
        usleep(10000);
      }
      sleep(5);
      _exit(0);
    }
    raise(SIGKILL);
  }
  (void)argument;
  double start = pith__now();
  pith_status status = PITH_OK;
  while (status == PITH_OK) {
    status =
        pith_allreduce(comm, (pith_cspan){x, 1000, PITH_F32}, (pith_span){x, 1000, PITH_F32}, PITH_SUM, NULL, NULL);
  }
  CHECK_MSG(status == PITH_ERR_PEER || status == PITH_ERR_ABORTED, "rank %d got %s", pith_comm_rank(comm),
            pith_status_string(status));
  CHECK_ERROR_SAYS("rank 1");
  CHECK_MSG(pith__now() - start < 2, "rank %d noticed after %.1f s", pith_comm_rank(comm), pith__now() - start);
}

static void check_death(const char *transport) {
  pid_t child[3];
  int status;
  ranks_start(transport, 3, 1800, die_with_a_child, NULL, child);
  CHECK(waitpid(child[1], &status, 0) == child[1]);
  CHECK(WIFSIGNALED(status));
  ranks_wait(child, 3, 1);
}

TEST(a_killed_rank_is_noticed_though_its_child_lives_over_tcp) { check_death("tcp"); }
TEST(a_killed_rank_is_noticed_though_its_child_lives_over_shm) { check_death("shm"); }

/* A child has none of its parent's descriptors: neither the comm's nor those of its start. */
static void count_in_a_child(pith_comm *comm, void *argument) {
  (void)argument;
  int status, others = count_descriptors();
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    _exit(count_descriptors());
  }
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
  int comms = others - WEXITSTATUS(status);
  CHECK_MSG(comms >= pith_comm_size(comm), "the child keeps %d of %d descriptors", WEXITSTATUS(status), others);
  sum_up(comm);
}

TEST(a_child_has_none_of_the_descriptors) {
  for (size_t t = 0; t < sizeof transports / sizeof *transports; t++) {
    ranks_run(transports[t], 3, 0, count_in_a_child, NULL);
  }
}

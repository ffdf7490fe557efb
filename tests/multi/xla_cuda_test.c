/* SPDX-License-Identifier: Apache-2.0 */
/* Foreign calls of XLA on a device, without one: an XLA, a CUDA module and an NCCL that are made up. What a GPU gives
 * is tests/cuda/jax_test.py's to show. */
#include <stdlib.h>
#include <time.h>

#include "cuda/fake/fake_nccl.h"
#include "fake_xla.h"
#include "ranks.h"
#include "test.h"

enum { ROWS = 64, COLUMNS = 48, N = ROWS * COLUMNS, STEPS = 4 };

static const char *spec, *carrier = "auto";

static int make_call(fake_call *c, const char *part) { return make_call_by(pith_xla_allreduce_cuda, c, part); }

static int64_t key_of(pith_comm *comm) { return 100 + pith_comm_rank(comm); } /* ranks are threads of one process */

static void add_layer(pith_reducer *r) {
  pith_layer layer = {sizeof layer, "fc", (size_t[]){ROWS, COLUMNS}, 2, PITH_F32, NULL};
  CHECK_OK(pith_reducer_add(r, &layer, NULL));
}

static pith_reducer *open_reducer(pith_comm *comm, int lent) {
  pith_reducer *r = NULL;
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  CHECK_OK(pith_xla_cuda_reducer(comm, 0, carrier, spec, 1, lent, &r));
  add_layer(r);
  CHECK_OK(pith_xla_bind((uint64_t)key_of(comm), comm, r));
  return r;
}

static void close_reducer(pith_comm *comm, pith_reducer *r) {
  pith_xla_unbind((uint64_t)key_of(comm));
  pith_reducer_destroy(r);
}

static void fill(float *gradient, int rank, int step) {
  for (int i = 0; i < N; i++) {
    gradient[i] = (float)((i * 37 + rank * 11 + step * 5) % 101) - 50.0f;
  }
}

/* Buffers of one rank: the token, a gradient, and what the layer keeps. */
typedef struct rank_state {
  uint32_t token[4];
  float gradient[N];
  uint8_t *kept[PITH_STATE_ARRAYS];
  size_t bytes[PITH_STATE_ARRAYS];
} rank_state;

static rank_state *make_state(pith_comm *comm, const pith_reducer *lent) {
  rank_state *s = calloc(1, sizeof *s);
  s->token[2] = (uint32_t)pith_comm_rank(comm);
  s->token[3] = (uint32_t)pith_comm_size(comm);
  if (lent) {
    CHECK_OK(pith_reducer_array_sizes(lent, 0, s->bytes));
  }
  for (int a = 0; a < PITH_STATE_ARRAYS; a++) {
    s->kept[a] = calloc(1, s->bytes[a] + 1);
  }
  return s;
}

static void free_state(rank_state *s) {
  for (int a = 0; a < PITH_STATE_ARRAYS; a++) {
    free(s->kept[a]);
  }
  free(s);
}

static void describe(fake_call *c, pith_comm *comm, rank_state *s) {
  begin_call(c, key_of(comm));
  add_buffer(c, XLA_U32, s->token, 4);
  add_buffer(c, XLA_F32, s->gradient, N);
  for (int a = 0; a < PITH_STATE_ARRAYS; a++) {
    if (s->bytes[a]) {
      add_buffer(c, XLA_U8, s->kept[a], (int64_t)s->bytes[a]);
    }
  }
}

/* ---- The same bits as on the host -------------------------------------------------------------------------------- */

static void take_steps(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  pith_reducer *host = NULL, *device = open_reducer(comm, 1);
  rank_state *s = make_state(comm, device);
  /* Matrix products of low rank round otherwise on a device: there a reducer that keeps its states is the measure. */
  CHECK_OK(strstr(spec, "powersgd") ? pith_xla_cuda_reducer(comm, 0, carrier, spec, 1, 0, &host)
                                    : pith_reducer_create(comm, spec, 1, &host));
  add_layer(host);
  for (int step = 0; step < STEPS; step++) {
    fake_call c;
    float expected[N];
    fill(expected, rank, step);
    fill(s->gradient, rank, step);
    CHECK_OK(pith_reducer_start(host, 0, expected));
    CHECK_OK(pith_reducer_finish(host));
    describe(&c, comm, s);
    CHECK_EQ(make_call(&c, ""), 0);
    if (memcmp(expected, s->gradient, sizeof expected) != 0) {
      test_fail(__FILE__, __LINE__, "%s over %s, step %d: the bits differ", spec, carrier, step);
    }
    CHECK_EQ(s->token[0], (uint32_t)step + 1);
  }
  CHECK_OK(pith_xla_check(comm));
  free_state(s);
  close_reducer(comm, device);
  pith_reducer_destroy(host);
}

TEST(steps_on_a_device_have_the_bits_of_the_host) {
  static const char *const specs[] = {
      "none", "q:4", "ef/q:4", "ef/topk:0.05", "sign", "ef/threshold:20", "ef/powersgd:2", "momentum/topk:0.05"};
  static const char *const carriers[] = {"auto", "nccl", "comm"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    spec = specs[i];
    carrier = carriers[i % 3];
    ranks_run("inproc", 2 + (int)i % 2, 0, take_steps, NULL);
  }
}

/* A state can be used again, and gives the same bits again: nothing of a step stays in the reducer. */
static void repeat_step(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *device = open_reducer(comm, 1);
  rank_state *before = make_state(comm, device), *first = make_state(comm, device), *second = make_state(comm, device);
  rank_state *results[] = {first, second, first};
  fill(before->gradient, pith_comm_rank(comm), 0);
  for (int i = 0; i < 3; i++) {
    fake_call c, d;
    describe(&c, comm, before);
    describe(&d, comm, results[i]);
    c.frame.results = d.frame.results;
    CHECK_EQ(make_call(&c, ""), 0);
  }
  CHECK_EQ(before->token[0], 0);
  CHECK_EQ(first->token[0], 1);
  CHECK(memcmp(first->gradient, second->gradient, sizeof first->gradient) == 0);
  CHECK(memcmp(first->gradient, before->gradient, sizeof first->gradient) != 0);
  for (int a = 0; a < PITH_STATE_ARRAYS; a++) {
    CHECK(memcmp(first->kept[a], second->kept[a], first->bytes[a]) == 0);
  }
  free_state(before);
  free_state(first);
  free_state(second);
  close_reducer(comm, device);
}

TEST(a_state_can_be_used_again) {
  spec = "ef/q:4";
  ranks_run("inproc", 2, 0, repeat_step, NULL);
  spec = "ef/powersgd:2";
  ranks_run("inproc", 2, 0, repeat_step, NULL);
}

static void keep_states(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *device = open_reducer(comm, 0); /* as those of adaptive specs */
  rank_state *s = make_state(comm, NULL);
  fake_call c;
  describe(&c, comm, s);
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK_EQ(make_call(&c, ""), 0);
  s->token[0] = 1;
  CHECK_EQ(make_call(&c, "the state is of step 1, and the reducer"), XLA_FAILED_PRECONDITION);
  free_state(s);
  close_reducer(comm, device);
}

TEST(a_reducer_that_keeps_its_states_takes_each_step_once) {
  spec = "ef/q:4";
  ranks_run("inproc", 1, 0, keep_states, NULL);
}

/* ---- What goes wrong --------------------------------------------------------------------------------------------- */

static void call_elsewhere(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *device = open_reducer(comm, 1);
  rank_state *s = make_state(comm, device);
  fake_call c;
  describe(&c, comm, s);
  CHECK_EQ(make_call_by(pith_xla_allreduce_host, &c, "was traced for a GPU and runs on a CPU"), XLA_UNIMPLEMENTED);
  ordinal_now = 1;
  CHECK_EQ(make_call(&c, "was traced for device 0 and runs on device 1"), XLA_UNIMPLEMENTED);
  ordinal_now = 0;
  free_state(s);
  close_reducer(comm, device);
}

TEST(a_call_on_another_device_is_an_error) {
  spec = "ef/q:4";
  ranks_run("inproc", 1, 0, call_elsewhere, NULL);
}

static void fall_back(pith_comm *comm, void *argument) {
  pith_reducer *device = open_reducer(comm, 1);
  rank_state *s = make_state(comm, device);
  fake_call c;
  describe(&c, comm, s);
  CHECK_EQ(make_call(&c, "cannot use NCCL: "), argument ? XLA_UNIMPLEMENTED : 0);
  free_state(s);
  close_reducer(comm, device);
}

TEST(without_nccl_messages_go_through_pinned_memory_unless_it_is_required) {
  static const char *const faults[] = {"id", "init"};
  spec = "ef/q:4";
  for (int i = 0; i < 2; i++) {
    fake_nccl_fault = faults[i];
    carrier = "auto";
    ranks_run("inproc", 2, 0, fall_back, NULL);
  }
  fake_nccl_fault = "id";
  carrier = "nccl";
  ranks_run("inproc", 2, 0, fall_back, &carrier);
  fake_nccl_fault = NULL;
}

/* `fault`: an operation that NCCL refuses at once, without saying why; NULL: the device waits for ever. */
static void lose_a_rank(pith_comm *comm, void *fault) {
  pith_reducer *device = open_reducer(comm, 1);
  rank_state *s = make_state(comm, device);
  fake_call c;
  describe(&c, comm, s);
  CHECK_EQ(make_call(&c, ""), 0);
  CHECK_OK(pith_barrier(comm, NULL));
  if (pith_comm_rank(comm) == 0) {
    fake_nccl_fault = fault;
    if (!fault) {
      setenv("PITH_FAKE_HANG", "1", 1);
    }
    CHECK_EQ(make_call(&c, "rank 1"), XLA_UNAVAILABLE);
    CHECK_EQ(make_call(&c, "rank 1"), XLA_UNAVAILABLE); /* for good */
    CHECK_STATUS(pith_xla_check(comm), PITH_ERR_PEER);
    unsetenv("PITH_FAKE_HANG");
    fake_nccl_fault = NULL;
  }
  free_state(s);
  close_reducer(comm, device);
}

TEST(a_rank_that_leaves_is_named_while_the_device_waits) {
  spec = "ef/q:4", carrier = "nccl";
  ranks_run("inproc", 2, 0, lose_a_rank, NULL);
}

TEST(a_rank_that_leaves_is_named_where_nccl_fails_at_once) {
  spec = "q:4", carrier = "nccl";
  ranks_run("inproc", 2, 0, lose_a_rank, "send");
}

static void mistake(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = NULL;
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  CHECK_STATUS(pith_xla_cuda_reducer(comm, 0, "mpi", "q:4", 1, 1, &r), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("there is no carrier \"mpi\": auto, nccl or comm");
  CHECK_STATUS(pith_xla_cuda_reducer(comm, 3, "auto", "q:4", 1, 1, &r), PITH_ERR_SYSTEM);
  CHECK_STATUS(pith_xla_cuda_reducer(comm, 0, "auto", "lgreco:q:4", 1, 1, &r), PITH_ERR_UNSUPPORTED);
  CHECK_STATUS(pith_xla_cuda_reducer(comm, 0, "auto", "nothing", 1, 1, &r), PITH_ERR_SPEC);
}

TEST(reducers_that_cannot_be_made_are_errors) { ranks_run("inproc", 1, 0, mistake, NULL); }

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer over NCCL without NCCL or GPUs: a made-up NCCL, whose ranks are threads, and a module that has the CPU
 * work in place of kernels (tests/cuda/fake). What travels where, in which order and from which place in memory is the
 * real code; tests/cuda/nccl_test.c has the same laws for the real thing.
 */
#include <time.h>

#include "cuda/device_laws.h"
#include "cuda/fake/fake_nccl.h"
#include "cuda/fake/means_tests.h"

enum { MOST = 4 };

static double law_timeout;

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  pith_status status = pith_nccl_carrier(w->comm, law_timeout, &carrier);
  if (status == PITH_OK) {
    status = pith_reducer_create_over(&carrier, rules, seed, options, reducer);
    if (status != PITH_OK) {
      carrier.release(carrier.self);
    }
  }
  return status;
}

/* ---- Ranks as threads -------------------------------------------------------------------------------------------- */

static uint64_t said[MOST];

static int same_everywhere(const law_world *w, uint64_t number) {
  const fake_comm *comm = w->comm;
  int same = 1;
  said[w->rank] = number;
  fake_barrier(comm);
  for (int p = 0; p < w->ranks; p++) {
    same = same && said[p] == number;
  }
  fake_barrier(comm);
  return same;
}

static void copy_to(void *to, const void *from, size_t size) { memcpy(to, from, size); }

static const law_memory law_device = {malloc, free, copy_to, copy_to, same_everywhere};

typedef struct rank_thread {
  fake_comm comm;
  law_world world;
  void (*run)(const law_world *);
  pthread_t thread;
} rank_thread;

static void *run_rank(void *data) {
  rank_thread *r = data;
  r->run(&r->world);
  return NULL;
}

/* Runs it on so many ranks at the same time. */
static void on_ranks(int ranks, void (*run)(const law_world *)) {
  static fake_world world;
  rank_thread list[MOST];
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  world.ranks = ranks;
  pthread_barrier_init(&world.barrier, NULL, (unsigned)ranks);
  for (int r = 0; r < ranks; r++) {
    list[r] = (rank_thread){{&world, r, 0}, {.rank = r, .ranks = ranks}, run, 0};
    list[r].world.comm = &list[r].comm;
    CHECK(pthread_create(&list[r].thread, NULL, run_rank, &list[r]) == 0);
  }
  for (int r = 0; r < ranks; r++) {
    pthread_join(list[r].thread, NULL);
  }
  pthread_barrier_destroy(&world.barrier);
}

/* ---- What the CPU gives ------------------------------------------------------------------------------------------ */

static const char *rules;
static pith_dtype dtype;

static void means(const law_world *w) { law_means(w, rules, dtype); }

static void check_means(const char *text) {
  rules = text;
  for (int ranks = 2; ranks <= MOST; ranks++) {
    static const pith_dtype types[] = {PITH_BF16, PITH_F32, PITH_F16};
    dtype = types[ranks - 2];
    on_ranks(ranks, means);
  }
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

static void checkpoints(const law_world *w) {
  law_checkpoints(w, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
}
TEST(a_checkpoint_goes_on_where_it_was_made) { on_ranks(3, checkpoints); }

static void scaling(const law_world *w) { law_scaling(w, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none"); }
TEST(what_is_kept_can_be_scaled) { on_ranks(2, scaling); }

static void refusals(const law_world *w) { law_refusals(w); }
TEST(mistakes_are_refused_before_anything_travels) { on_ranks(2, refusals); }

static void disagreement(const law_world *w) { law_disagreement(w); }
TEST(ranks_that_disagree_are_named) { on_ranks(3, disagreement); }

/* Checkpoints belong to a rank. */
static uint8_t *saved;
static size_t saved_size;

static void exchange_checkpoints(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer;
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &reducer));
  if (w->rank == 0) {
    saved_size = pith_reducer_save_size(reducer);
    saved = malloc(saved_size);
    CHECK_OK(pith_reducer_save(reducer, &(pith_out){saved, saved_size, 0}));
  }
  fake_barrier(w->comm);
  CHECK_STATUS(pith_reducer_load(reducer, (pith_bytes){saved, saved_size}), w->rank == 0 ? PITH_OK : PITH_ERR_STATE);
  fake_barrier(w->comm);
  pith_reducer_destroy(reducer);
}

TEST(another_ranks_checkpoint_is_refused) {
  on_ranks(2, exchange_checkpoints);
  free(saved);
}

static void no_memory(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer;
  law_layers(PITH_F32, layers);
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &reducer), PITH_ERR_MEMORY);
  CHECK_ERROR_SAYS("out of memory");
}

TEST(no_device_memory_is_an_error) {
  setenv("PITH_FAKE_MEMORY", "1000", 1);
  on_ranks(2, no_memory);
}

static pith_layer one_layer = {sizeof(pith_layer), "w", (size_t[]){1024, 1024}, 2, PITH_F32, NULL};

static void sizes(const law_world *w) {
  pith_reducer *reducer;
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  void *gradient = calloc(1024 * 1024, sizeof(float));
  size_t payload = (size_t)1024 * 1024 / 512 * 264;
  CHECK_OK(law_create(w, &one_layer, 1, "q:4", 0, &reducer));
  CHECK_OK(law_allreduce(reducer, &gradient));
  CHECK_OK(pith_reducer_layer_traffic(reducer, 0, &traffic));
  CHECK_EQ(traffic.sent_bytes, 2 * payload * 3 / 4);
  pith_reducer_destroy(reducer);
  free(gradient);
}
TEST(as_much_is_sent_as_the_codec_promises) { on_ranks(4, sizes); }

/* ---- Steps that a graph could capture ---------------------------------------------------------------------------- */

TEST(steps_that_wait_for_nothing_have_the_same_bits) {
  law_options.capturable = 1;
  check_means(FAKE_MIXED);
  check_means("ef/topk:0.05");
}

static void rooms(const law_world *w) {
  law_options.capturable = 1;
  law_refuses(w, "*=threshold:0.1", PITH_ERR_UNSUPPORTED, "vary in size");
  law_refuses(w, "*=topk:0.9", PITH_ERR_UNSUPPORTED, "vary in size");
  law_refuses(w, "lgreco:q:4", PITH_ERR_UNSUPPORTED, "a graph repeats one");
  law_refuses(w, "*=ef,store=8/q:4", PITH_ERR_UNSUPPORTED, "leave store out");
}
TEST(what_a_graph_cannot_hold_is_refused) { on_ranks(1, rooms); }

/* ---- What NCCL says ---------------------------------------------------------------------------------------------- */

static const char *fault, *words;
static long pause; /* between calls, in ns */
static pith_status expected;

static void failing(const law_world *w) {
  pith_reducer *reducer;
  void *gradient = calloc(1024 * 1024, sizeof(float));
  CHECK_OK(law_create(w, &one_layer, 1, "q:4", 0, &reducer));
  fake_barrier(w->comm);
  fake_nccl_fault = fault;
  CHECK_STATUS(law_allreduce(reducer, &gradient), expected);
  CHECK_ERROR_SAYS(words);
  CHECK_STATUS(law_allreduce(reducer, &gradient), expected); /* for good */
  pith_reducer_destroy(reducer);
  free(gradient);
}

TEST(errors_of_nccl_say_what_it_said_where) {
  fault = "send", words = "remote process exited (the last words)", expected = PITH_ERR_PEER;
  on_ranks(2, failing);
  fake_nccl_fault = NULL;
  fault = "gather", words = "NCCL: ncclAllGather on rank", expected = PITH_ERR_SYSTEM;
  on_ranks(2, failing);
  fake_nccl_fault = NULL;
}

/* Steps are enqueued, and the device never comes to their end. */
static void hanging(const law_world *w) {
  pith_reducer *reducer;
  void *gradient = calloc(1024 * 1024, sizeof(float));
  pith_status status = PITH_OK;
  CHECK_OK(law_create(w, &one_layer, 1, "q:4", 0, &reducer));
  fake_barrier(w->comm);
  setenv("PITH_FAKE_HANG", "1", 1);
  CHECK_OK(law_allreduce(reducer, &gradient));
  fake_barrier(w->comm);
  fake_nccl_async = expected == PITH_ERR_PEER ? 6 : 0;
  for (int tries = 0; tries < 10 && status == PITH_OK; tries++) {
    nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
    status = pith_reducer_finish(reducer);
  }
  CHECK_EQ(status, expected);
  CHECK_ERROR_SAYS(words);
  pith_reducer_destroy(reducer);
  free(gradient);
}

TEST(a_rank_that_is_gone_is_known_before_anybody_waits_for_it) {
  words = "remote process exited", expected = PITH_ERR_PEER, pause = 500000000;
  on_ranks(2, hanging);
}

TEST(a_rank_that_is_gone_is_known_before_the_next_step_has_ended) {
  words = "remote process exited", expected = PITH_ERR_PEER, pause = 1000;
  on_ranks(2, hanging);
}

TEST(a_step_that_never_ends_is_an_error) {
  words = "has waited", expected = PITH_ERR_TIMEOUT, law_timeout = 0.2, pause = 1000;
  on_ranks(2, hanging);
}

static void other_device(const law_world *w) {
  fake_comm comm = *(const fake_comm *)w->comm;
  pith_carrier carrier = PITH_CARRIER_INIT;
  comm.device = 5;
  CHECK_STATUS(pith_nccl_carrier(&comm, 0, &carrier), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("the communicator is of device 5, and the calling thread's current device is 0");
  CHECK_STATUS(pith_nccl_carrier(NULL, 0, &carrier), PITH_ERR_ARGUMENT);
}
TEST(a_comm_of_another_device_is_refused) { on_ranks(1, other_device); }

TEST(nccl_is_found_in_the_program) {
  int version = 0;
  CHECK_OK(pith_nccl_probe(&version));
  CHECK_EQ(version, 22000);
}

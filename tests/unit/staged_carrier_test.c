/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer on a device over comms of Pith's own, without a device: a module has the CPU work in place of kernels
 * (tests/cuda/fake), and brings copies to the host only to those who wait for them. Comms, groups, slots and the order
 * of everything are the real code; tests/cuda/device_test.c has the same laws for a real device.
 */
#include <unistd.h>

#include "cuda/fake/comm_laws.h"
#include "cuda/fake/means_tests.h"

enum { MOST = 4 };

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static void on_ranks(const char *transport, int ranks, law_fn run) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  law_options.carrier = "staged";
  ranks_run(transport, ranks, 0, run_law, &(law_run){run});
}

/* ---- What the CPU gives ------------------------------------------------------------------------------------------ */

static const char *rules;
static pith_dtype dtype;

static void means(const law_world *w) { law_means(w, rules, dtype); }

/* Two and three ranks have many small groups, and large layers in chunks; the others one group for each way. */
static void check_means(const char *text) {
  static const pith_dtype types[] = {PITH_BF16, PITH_F32, PITH_F16};
  rules = text;
  for (int ranks = 2; ranks <= MOST; ranks++) {
    int many = ranks < MOST;
    law_options.group_bytes = many ? 20 << 10 : 0;
    law_options.chunk_bytes = many ? 8 << 10 : 0;
    dtype = types[ranks - 2];
    on_ranks("inproc", ranks, means);
  }
}

TEST(residuals_in_fewer_bits_are_those_of_main_memory) {
  check_means("*=ef,store=8/q:2");
  check_means("*=ef,store=bf16/topk:0.05");
}

TEST(payloads_of_any_size_travel) {
  check_means("*=threshold:2");
  check_means("*=topk:0.9");
  check_means("*=threshold:100"); /* nothing, but an infinite value */
}

TEST(processes_do_the_same_over_shm_and_tcp) {
  rules = FAKE_MIXED;
  law_options.group_bytes = 30 << 10;
  on_ranks("shm", 3, means);
  on_ranks("tcp", 3, means);
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

#define KEEPING "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8"

static void checkpoints(const law_world *w) { law_checkpoints(w, KEEPING); }
TEST(a_checkpoint_goes_on_where_it_was_made) {
  on_ranks("inproc", 3, checkpoints);
  law_options.group_bytes = 20 << 10;
  on_ranks("inproc", 3, checkpoints);
}

static void scaling(const law_world *w) { law_scaling(w, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none"); }
TEST(what_is_kept_can_be_scaled) {
  law_options.group_bytes = 20 << 10;
  on_ranks("inproc", 2, scaling);
}

static void refusals(const law_world *w) { law_refusals(w); }
TEST(mistakes_are_refused_before_anything_travels) { on_ranks("inproc", 2, refusals); }

static void disagreement(const law_world *w) { law_disagreement(w); }
TEST(ranks_that_disagree_are_named) { on_ranks("inproc", 3, disagreement); }

static pith_reducer *make_default(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer;
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &reducer));
  return reducer;
}

static void no_memory(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  pith_reducer *reducer;
  CHECK_STATUS(law_create(w, &layer, 1, "ef/q:4", 0, &reducer), PITH_ERR_MEMORY);
  CHECK_ERROR_SAYS("out of memory");
}
TEST(no_memory_is_an_error) {
  setenv("PITH_FAKE_MEMORY", "1000", 1);
  on_ranks("inproc", 2, no_memory);
}

static size_t sent_by(const pith_reducer *reducer) {
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  CHECK_OK(pith_reducer_layer_traffic(reducer, 0, &traffic));
  return (size_t)traffic.sent_bytes;
}

static void sparse_sizes(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  pith_reducer *reducer;
  float *gradient = calloc(10000, sizeof *gradient);
  CHECK_OK(law_create(w, &layer, 1, "threshold:1", 0, &reducer));
  gradient[5] = gradient[7] = 2;
  CHECK_OK(law_allreduce(reducer, (void *const *)&gradient));
  CHECK_MSG(sent_by(reducer) > 8 && sent_by(reducer) < 100, "%zu bytes were sent", sent_by(reducer));
  CHECK(gradient[5] == 2 && gradient[7] == 2 && gradient[6] == 0);
  pith_reducer_destroy(reducer);
  free(gradient);
}
TEST(of_sparse_payloads_only_what_they_have_travels) { on_ranks("inproc", 2, sparse_sizes); }

static void nothing(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){0, 4}, 2, PITH_F32, NULL};
  pith_reducer *reducer;
  void *gradient = NULL;
  CHECK_OK(law_create(w, &layer, 1, "q:4", 0, &reducer));
  CHECK_OK(law_allreduce(reducer, &gradient));
  pith_reducer_destroy(reducer);
}
TEST(no_values_need_no_exchange) { on_ranks("inproc", 2, nothing); }

static void graphs(const law_world *w) {
  law_options.capturable = 1;
  law_refuses(w, "q:4", PITH_ERR_ARGUMENT, "a step can be captured only where a carrier enqueues it");
}
TEST(through_pinned_memory_nothing_can_be_captured) { on_ranks("inproc", 1, graphs); }

/* ---- Ranks that fail --------------------------------------------------------------------------------------------- */

/* The second call says the same, at once; then all is given back. */
static void fail_twice(pith_reducer *reducer, law_set *set, const char *says) {
  for (int i = 0; i < 2; i++) { /* a peer that failed, or whose failure another one told of */
    CHECK(law_allreduce(reducer, set->device) != PITH_OK);
    CHECK_ERROR_SAYS(says);
  }
  pith_reducer_destroy(reducer);
  law_give(set);
}

/* In processes, with many groups. One rank may leave as it likes. */
static void on_processes(int ranks, law_fn run, int but) {
  pid_t child[MOST];
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  law_options.carrier = "staged";
  law_options.group_bytes = 20 << 10;
  ranks_start("shm", ranks, 20, run_law, &(law_run){run}, child);
  ranks_wait(child, ranks, but);
}

/* Rank 1 goes away between two steps: the comm names it on the others, and objects can still be destroyed. */
static void leaving(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  law_blind_step(w, reducer, &set, 0);
  pith_status met = pith_barrier(
      w->comm, NULL); /* all are through that step when it ends; the others may hear of rank 1 while they are in it */
  if (w->rank == 1) {
    CHECK_OK(met);
    _exit(0);
  }
  fail_twice(reducer, &set, "rank 1 is gone");
}
TEST(a_rank_that_leaves_is_named) { on_processes(3, leaving, 1); }

/* The device of rank 0 fails in the middle of a call: the others learn it, and need not wait. */
static void failing(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  if (w->rank == 0) {
    setenv("PITH_FAKE_FAULT", "4", 1);
    fail_twice(reducer, &set, "a made-up error");
  } else {
    fail_twice(reducer, &set, "rank 0 gave up: CUDA: the fake module: a made-up error");
  }
}
TEST(a_device_that_fails_ends_the_comm_for_all) { on_processes(2, failing, -1); }

/* One rank restored an older checkpoint. */
static void other_step(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  size_t size = pith_reducer_save_size(reducer);
  pith_out out = {malloc(size), size, 0};
  CHECK_OK(pith_reducer_save(reducer, &out));
  law_blind_step(w, reducer, &set, 0);
  CHECK_OK(w->rank ? PITH_OK : pith_reducer_load(reducer, (pith_bytes){out.data, out.size}));
  CHECK(law_allreduce(reducer, set.device) != PITH_OK);
  CHECK_ERROR_SAYS("is at step");
  pith_reducer_destroy(reducer);
  free(out.data);
  law_give(&set);
}
TEST(ranks_at_other_steps_are_told_so) { on_processes(2, other_step, -1); }

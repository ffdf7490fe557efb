/*
 * An allreduce on a device over comms of Pith's own, without a device: a module has the CPU work in place of kernels
 * (tests/cuda/fake), and brings copies to the host only to those who wait for them. Comms, groups, slots and the order
 * of everything are the real code; tests/cuda/device_test.c has the same laws for a real device.
 */
#include <unistd.h>

#include "cuda/comm_laws.h"
#include "cuda/fake/means_tests.h"
#include "ranks.h"

enum { MOST = 4 };

static void copy_to(void *to, const void *from, size_t size) { memcpy(to, from, size); }

static const law_memory law_device = {malloc, free, copy_to, copy_to, law_same};

/* ---- Ranks
 * ------------------------------------------------------------------------------------------------------------- */

typedef void (*law_fn)(const law_world *);

typedef struct law_run {
  law_fn run;
} law_run;

static void run_law(pith_comm *comm, void *argument) {
  law_world world = {.comm = comm, .rank = pith_comm_rank(comm), .ranks = pith_comm_size(comm)};
  ((law_run *)argument)->run(&world);
}

static void on_ranks(const char *transport, int ranks, law_fn run) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  ranks_run(transport, ranks, 0, run_law, &(law_run){run});
}

/* ---- What the CPU gives
 * ------------------------------------------------------------------------------------------------ */

static const char *rules;
static pith_dtype dtype;

static void means(const law_world *w) { law_means(w, rules, dtype); }

/* Two and three ranks have many small groups, which wait for their turn, and large layers in slices; the others one
 * group for each way. */
static void check_means(const char *text) {
  static const pith_dtype types[] = {PITH_F32, PITH_BF16, PITH_F32, PITH_F16};
  rules = text;
  for (int ranks = 1; ranks <= MOST; ranks++) {
    int many = ranks == 2 || ranks == 3;
    law_options.group = many ? 20 << 10 : 0;
    law_options.slots = many ? (size_t)ranks : 0;
    dtype = types[ranks - 1];
    on_ranks("inproc", ranks, means);
  }
}

TEST(payloads_of_any_size_travel) {
  check_means("*=threshold:2");
  check_means("*=topk:0.9");
  check_means("*=threshold:100"); /* nothing, but an infinite value */
}

TEST(processes_do_the_same_over_shm_and_tcp) {
  rules = FAKE_MIXED;
  law_options.group = 30 << 10;
  law_options.slots = 3;
  on_ranks("shm", 3, means);
  on_ranks("tcp", 3, means);
}

/* ---- The rest
 * ---------------------------------------------------------------------------------------------------------- */

#define KEEPING "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8"

static void checkpoints(const law_world *w) { law_checkpoints(w, KEEPING); }
TEST(a_checkpoint_goes_on_where_it_was_made) {
  on_ranks("inproc", 3, checkpoints);
  law_options.group = 20 << 10;
  on_ranks("inproc", 3, checkpoints);
}

static void scaling(const law_world *w) { law_scaling(w, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none"); }
TEST(what_is_kept_can_be_scaled) {
  law_options.group = 20 << 10;
  on_ranks("inproc", 2, scaling);
}

static void refusals(const law_world *w) { law_refusals(w); }
TEST(mistakes_are_refused_before_anything_travels) { on_ranks("inproc", 2, refusals); }

static void disagreement(const law_world *w) { law_disagreement(w); }
TEST(ranks_that_disagree_are_named) { on_ranks("inproc", 3, disagreement); }

static pith_device *make_default(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_device *device;
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &device));
  return device;
}

/* A rank in whose groups there is something else would exchange other things. */
static void other_groups(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  pith_device_options options = PITH_DEVICE_OPTIONS_INIT;
  pith_device *device;
  options.group = w->rank ? 1 << 10 : 1 << 20;
  CHECK_STATUS(pith_device_create(w->comm, &layer, 1, "q:4", 0, &options, &device), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("options");
  options.slots = 65;
  CHECK_STATUS(pith_device_create(w->comm, &layer, 1, "q:4", 0, &options, &device), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("65 slots are too many");
  options.size = 1;
  CHECK_STATUS(pith_device_create(w->comm, &layer, 1, "q:4", 0, &options, &device), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("set it to sizeof(pith_device_options)");
}
TEST(ranks_with_other_groups_are_named) { on_ranks("inproc", 2, other_groups); }

static void no_memory(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  pith_device *device;
  CHECK_STATUS(pith_device_create(w->comm, &layer, 1, "q:4", 0, NULL, &device), PITH_ERR_MEMORY);
  CHECK_ERROR_SAYS("out of memory");
}
TEST(no_memory_is_an_error) {
  setenv("PITH_FAKE_MEMORY", "1000", 1);
  on_ranks("inproc", 2, no_memory);
}

static void sizes(const law_world *w) {
  pith_layer layers[2] = {{sizeof(pith_layer), "w", (size_t[]){1024, 1024}, 2, PITH_F32, NULL},
                          {sizeof(pith_layer), "v", (size_t[]){512, 1024}, 2, PITH_F32, NULL}};
  pith_device_options options = PITH_DEVICE_OPTIONS_INIT;
  pith_device *device;
  size_t values = 256 * 1024, payload = values / 512 * 264, pinned;
  options.group = 1 << 20;
  options.slots = 2;
  CHECK_OK(pith_device_create(w->comm, layers, 2, "q:4", 0, &options, &device));
  CHECK_EQ(pith_device_sent(device), 6 * 2 * payload * 3 / 4);
  CHECK_EQ(pith_device_memory(device, &pinned),
           2 * 2 * payload + values); /* two slots of four quarters each way; a quarter of sums */
  CHECK_EQ(pinned, 2 * 2 * payload);
  CHECK_EQ(pith_device_save_size(device), 48); /* nothing is kept */
  pith_device_destroy(device);
}
TEST(memory_follows_from_groups_and_not_from_layers) { on_ranks("inproc", 4, sizes); }

static void sparse_sizes(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  pith_device *device;
  float *gradient = calloc(10000, sizeof *gradient);
  CHECK_OK(pith_device_create(w->comm, &layer, 1, "threshold:1", 0, NULL, &device));
  CHECK_EQ(pith_device_sent(device), 0); /* nobody knows yet */
  gradient[5] = gradient[7] = 2;
  CHECK_OK(pith_device_allreduce(device, (void *const *)&gradient, 0, NULL));
  CHECK_MSG(pith_device_sent(device) > 8 && pith_device_sent(device) < 100, "%zu bytes were sent",
            pith_device_sent(device));
  CHECK(gradient[5] == 2 && gradient[7] == 2 && gradient[6] == 0);
  pith_device_destroy(device);
  free(gradient);
}
TEST(of_sparse_payloads_only_what_they_have_travels) { on_ranks("inproc", 2, sparse_sizes); }

static void nothing(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){0, 4}, 2, PITH_F32, NULL};
  pith_device *device;
  void *gradient = NULL;
  CHECK_OK(pith_device_create(w->comm, NULL, 0, "q:4", 0, NULL, &device));
  CHECK_OK(pith_device_allreduce(device, NULL, 0, NULL));
  pith_device_destroy(device);
  CHECK_OK(pith_device_create(w->comm, &layer, 1, "q:4", 0, NULL, &device));
  CHECK_OK(pith_device_allreduce(device, &gradient, 0, NULL));
  pith_device_destroy(device);
}
TEST(no_values_need_no_exchange) { on_ranks("inproc", 2, nothing); }

TEST(null_is_nobody) {
  size_t pinned = 1;
  CHECK_EQ(pith_device_save_size(NULL) + pith_device_sent(NULL) + pith_device_memory(NULL, &pinned) + pinned, 0);
  CHECK_STATUS(pith_device_scale(NULL, 2, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_device_save(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_device_load(NULL, (pith_bytes){NULL, 0}), PITH_ERR_ARGUMENT);
}

/* ---- Ranks that fail
 * --------------------------------------------------------------------------------------------------- */

/* The second call says the same, at once; then all is given back. */
static void fail_twice(pith_device *device, law_set *set, const char *says) {
  for (int i = 0; i < 2; i++) {
    CHECK(pith_device_allreduce(device, set->device, 0, NULL) !=
          PITH_OK); /* a peer that failed, or whose failure another one told of */
    CHECK_ERROR_SAYS(says);
  }
  pith_device_destroy(device);
  law_give(set);
}

/* In processes, with many groups. One rank may leave as it likes. */
static void on_processes(int ranks, law_fn run, int but) {
  pid_t child[MOST];
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  law_options.group = 20 << 10;
  ranks_start("shm", ranks, 20, run_law, &(law_run){run}, child);
  ranks_wait(child, ranks, but);
}

/* Rank 1 goes away between two steps: the comm names it on the others, and objects can still be destroyed. */
static void leaving(const law_world *w) {
  pith_device *device = make_default(w);
  law_set set = law_take(PITH_F32);
  law_blind_step(w, device, &set, 0);
  pith_status met = pith_barrier(
      w->comm, NULL); /* all are through that step when it ends; the others may hear of rank 1 while they are in it */
  if (w->rank == 1) {
    CHECK_OK(met);
    _exit(0);
  }
  fail_twice(device, &set, "rank 1 is gone");
}
TEST(a_rank_that_leaves_is_named) { on_processes(3, leaving, 1); }

/* The device of rank 0 fails in the middle of a call: the others learn it, and need not wait. */
static void failing(const law_world *w) {
  pith_device *device = make_default(w);
  law_set set = law_take(PITH_F32);
  if (w->rank == 0) {
    setenv("PITH_FAKE_FAULT", "4", 1);
    fail_twice(device, &set, "a made-up error");
  } else {
    fail_twice(device, &set, "rank 0 gave up: CUDA: the fake module: a made-up error");
  }
}
TEST(a_device_that_fails_ends_the_comm_for_all) { on_processes(2, failing, -1); }

/* One rank restored an older checkpoint. */
static void other_step(const law_world *w) {
  pith_device *device = make_default(w);
  law_set set = law_take(PITH_F32);
  CHECK(pith_device_allreduce(device, set.device, (uint64_t)w->rank + 7, NULL) != PITH_OK);
  CHECK_ERROR_SAYS("is at step");
  pith_device_destroy(device);
  law_give(&set);
}
TEST(ranks_at_other_steps_are_told_so) { on_processes(2, other_step, -1); }

/*
 * An allreduce over NCCL without NCCL or GPUs: a made-up NCCL, whose ranks are threads, and a module that has the CPU
 * work in place of kernels (tests/cuda/fake). What travels where, in which order and from which place in memory is the
 * real code; tests/cuda/nccl_test.c has the same laws for the real thing.
 */
#include "cuda/fake/fake_nccl.h"
#include "cuda/fake/means_tests.h"
#include "cuda/nccl_laws.h"

enum { MOST = 4 };

/* ---- Ranks as threads
 * -------------------------------------------------------------------------------------------------- */

static uint64_t said[MOST];

static int same_everywhere(const law_world *w, uint64_t number) {
  const fake_comm *comm = w->comm;
  int same = 1;
  said[w->rank] = number;
  fake_meet(comm);
  for (int p = 0; p < w->ranks; p++) {
    same = same && said[p] == number;
  }
  fake_meet(comm);
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

/* ---- What the CPU gives
 * ------------------------------------------------------------------------------------------------ */

static const char *rules;
static pith_dtype dtype;

static void means(const law_world *w) { law_means(w, rules, dtype); }

static void check_means(const char *text) {
  rules = text;
  for (int ranks = 1; ranks <= MOST; ranks++) {
    static const pith_dtype types[] = {PITH_F32, PITH_BF16, PITH_F32, PITH_F16};
    dtype = types[ranks - 1];
    on_ranks(ranks, means);
  }
}

/* ---- The rest
 * ---------------------------------------------------------------------------------------------------------- */

static void checkpoints(const law_world *w) {
  law_checkpoints(w, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
}
TEST(a_checkpoint_goes_on_where_it_was_made) { on_ranks(3, checkpoints); }

static void scaling(const law_world *w) { law_scaling(w, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none"); }
TEST(what_is_kept_can_be_scaled) { on_ranks(2, scaling); }

static void refusals(const law_world *w) { law_refusals(w), law_rooms(w); }
TEST(mistakes_are_refused_before_anything_travels) { on_ranks(2, refusals); }

static void disagreement(const law_world *w) { law_disagreement(w); }
TEST(ranks_that_disagree_are_named) { on_ranks(3, disagreement); }

/* Checkpoints belong to a rank. */
static uint8_t *saved;
static size_t saved_size;

static void exchange_checkpoints(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_nccl *nccl;
  law_layers(PITH_F32, layers);
  CHECK_OK(pith_nccl_create(w->comm, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &nccl));
  if (w->rank == 0) {
    saved_size = pith_nccl_save_size(nccl);
    saved = malloc(saved_size);
    CHECK_OK(pith_nccl_save(nccl, &(pith_out){saved, saved_size, 0}));
  }
  fake_meet(w->comm);
  CHECK_STATUS(pith_nccl_load(nccl, (pith_bytes){saved, saved_size}), w->rank == 0 ? PITH_OK : PITH_ERR_STATE);
  fake_meet(w->comm);
  pith_nccl_destroy(nccl);
}

TEST(another_ranks_checkpoint_is_refused) {
  on_ranks(2, exchange_checkpoints);
  free(saved);
}

/* A rank without memory is known to all of them, and what was sent is what objects say. */
static void no_memory(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_nccl *nccl;
  law_layers(PITH_F32, layers);
  CHECK_STATUS(pith_nccl_create(w->comm, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &nccl), PITH_ERR_MEMORY);
  CHECK_ERROR_SAYS("out of memory");
}

TEST(no_device_memory_is_an_error) {
  setenv("PITH_FAKE_MEMORY", "1000", 1);
  on_ranks(2, no_memory);
}

static void sizes(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){1024, 1024}, 2, PITH_F32, NULL};
  pith_nccl *nccl;
  size_t values = 1024 * 1024, payload = values / 512 * 264;
  CHECK_OK(pith_nccl_create(w->comm, &layer, 1, "q:4", 0, &nccl));
  CHECK_EQ(pith_nccl_sent(nccl), 2 * payload * 3 / 4);
  CHECK(pith_nccl_memory(nccl) >= 2 * payload + values && pith_nccl_memory(nccl) < 2 * payload + values + 4096);
  CHECK_EQ(pith_nccl_save_size(nccl), 48); /* nothing is kept */
  pith_nccl_destroy(nccl);
}
TEST(sizes_are_what_the_codec_promises) { on_ranks(4, sizes); }

/* ---- What NCCL says
 * ------------------------------------------------------------------------------------------------------ */

static void failing(const law_world *w) {
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){100, 100}, 2, PITH_F32, NULL};
  void *gradient = calloc(10000, sizeof(float));
  pith_nccl *nccl;
  CHECK_OK(pith_nccl_create(w->comm, &layer, 1, "q:4", 0, &nccl));
  fake_nccl_fault = "send";
  CHECK_STATUS(pith_nccl_allreduce(nccl, &gradient, 0, NULL), PITH_ERR_PEER);
  CHECK_ERROR_SAYS("NCCL: ncclSend and ncclRecv on rank 0 of 1: remote process exited (the last words)");
  fake_nccl_fault = "gather";
  CHECK_STATUS(pith_nccl_allreduce(nccl, &gradient, 0, NULL), PITH_ERR_SYSTEM);
  CHECK_ERROR_SAYS("ncclAllGather on rank 0 of 1: a made-up error");
  fake_nccl_fault = NULL;
  CHECK_OK(pith_nccl_allreduce(nccl, &gradient, 0, NULL));
  pith_nccl_destroy(nccl);
  free(gradient);
}
TEST(errors_of_nccl_say_what_it_said_where) { on_ranks(1, failing); }

static void other_device(const law_world *w) {
  fake_comm comm = *(const fake_comm *)w->comm;
  pith_nccl *nccl;
  comm.device = 5;
  CHECK_STATUS(pith_nccl_create(&comm, NULL, 0, "q:4", 0, &nccl), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("the object is of device 5, and the calling thread's current device is 0");
}
TEST(a_comm_of_another_device_is_refused) { on_ranks(1, other_device); }

TEST(nccl_is_found_in_the_program) {
  int version = 0;
  CHECK_OK(pith_nccl_probe(&version));
  CHECK_EQ(version, 22000);
}

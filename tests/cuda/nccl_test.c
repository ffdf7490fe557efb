/*
 * A reducer over a real NCCL, by the laws that the made-up one obeys too (device_laws.h), and captured in a CUDA
 * graph. One process for each rank, with RANK and WORLD_SIZE in the environment, as `pith run` and torchrun set them:
 *
 *   pith run -n 4 -- nccl_test            a line for each law
 *   pith run -n 4 -- nccl_test bench      … and a table of times
 *
 * Ranks that share a GPU are taken for hosts by NCCL, which then talks TCP between them. Skipped with the reason where
 * a GPU, the module or NCCL is missing.
 */
#include "rank_program.h"

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  pith_status status = pith_nccl_carrier(w->comm, 60, &carrier);
  if (status == PITH_OK) {
    status = pith_reducer_create_over(&carrier, rules, seed, options, reducer);
    if (status != PITH_OK) {
      carrier.release(carrier.self);
    }
  }
  return status;
}

/* ---- NCCL and ranks
 * -------------------------------------------------------------------------------------------------------- */

typedef struct nccl_id {
  char bytes[128];
} nccl_id;

typedef struct nccl_functions {
  int (*get_id)(nccl_id *);
  int (*init)(void **, int, nccl_id, int);
  int (*destroy)(void *);
  int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
} nccl_functions;

enum { NCCL_FLOAT = 7, NCCL_SUM = 0 };

static nccl_functions nccl;

static const char *nccl_open(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    return "no NCCL (libnccl.so.2)";
  }
  int found =
      gpu_symbol(library, "ncclGetUniqueId", &nccl.get_id) && gpu_symbol(library, "ncclCommInitRank", &nccl.init) &&
      gpu_symbol(library, "ncclCommDestroy", &nccl.destroy) && gpu_symbol(library, "ncclAllReduce", &nccl.all_reduce);
  return found ? (pith_nccl_probe(NULL) == PITH_OK ? NULL : pith_error()) : "this NCCL is too old";
}

static void join_ranks(void) {
  nccl_id id = {{0}};
  if (here.rank == 0) {
    CHECK_EQ(nccl.get_id(&id), 0);
  }
  CHECK_OK(pith_broadcast(host, (pith_span){&id, sizeof id, PITH_U8}, 0, NULL, NULL));
  int result = nccl.init(&here.comm, here.ranks, id, here.rank);
  CHECK_MSG(result == 0, "ncclCommInitRank gives %d; NCCL_DEBUG=WARN says why", result);
}

/* ---- Graphs
 * ------------------------------------------------------------------------------------------------------------------------
 */

/* Graphs go before the comm: ncclCommDestroy() waits until nobody refers to it. */
static void drop_graph(void *graph, void *program) {
  int (*drop_program)(void *), (*drop)(void *);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(gpu_symbol(driver, "cuGraphExecDestroy", &drop_program) && gpu_symbol(driver, "cuGraphDestroy", &drop));
  GPU_CHECK(gpu.wait());
  GPU_CHECK(drop_program(program));
  GPU_CHECK(drop(graph));
}

typedef struct replayed {
  pith_reducer *reducer;
  void *graph, *program; /* NULL: called */
} replayed;

static void capture(const law_world *w, replayed *r, const law_set *set) {
  GPU_CHECK(gpu.wait());
  GPU_CHECK(gpu.capture_begin(w->stream, 2));
  CHECK_OK(law_allreduce(r->reducer, set->device));
  GPU_CHECK(gpu.capture_end(w->stream, &r->graph));
  GPU_CHECK(gpu.graph_make(&r->program, r->graph, 0));
}

static uint64_t replay(const law_world *w, const replayed *r, const law_set *set, uint64_t number) {
  void *values[LAW_LAYERS];
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    values[i] = law_gradient(w->rank, i, number, PITH_F32);
  }
  law_put(set, values, PITH_F32);
  if (r->program) {
    GPU_CHECK(gpu.graph_launch(r->program, w->stream));
  } else {
    CHECK_OK(law_allreduce(r->reducer, set->device));
  }
  uint64_t hash = law_get(set, values, PITH_F32);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    free(values[i]);
  }
  return hash;
}

/* Without random numbers, of which a graph has those of one step. */
#define CAPTURED "*.bias=q:8;embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;small*=powersgd:16;*=q:4"

/* A graph of a step, replayed, gives the bits of steps; memories go on. The first step is never captured: it takes
 * memory and makes connections. */
static void law_graph(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  replayed called = {0}, captured = {0};
  law_set set = law_take(PITH_F32);
  law_layers(PITH_F32, layers);
  law_options.capturable = 1;
  CHECK_OK(law_create(w, layers, LAW_LAYERS, CAPTURED, LAW_SEED, &called.reducer));
  CHECK_OK(law_create(w, layers, LAW_LAYERS, CAPTURED, LAW_SEED, &captured.reducer));
  for (uint64_t number = 0; number < 4; number++) {
    if (number == 1) {
      capture(w, &captured, &set);
    }
    uint64_t wanted = replay(w, &called, &set, number), found = replay(w, &captured, &set, number);
    CHECK_MSG(wanted == found, "replay %d of the graph has other bits than the call", (int)number);
    CHECK_MSG(same(w, found), "ranks have other means, replay %d", (int)number);
  }
  law_options.capturable = 0;
  drop_graph(captured.graph, captured.program);
  pith_reducer_destroy(called.reducer);
  pith_reducer_destroy(captured.reducer);
  law_give(&set);
}

/* ---- The program
 * ----------------------------------------------------------------------------------------------------------------------
 */

static void run_own_laws(void) {
  law_options.capturable = 1;
  law_means(&here, CAPTURED, PITH_F32);
  tell("steps that wait for nothing have the same bits", "");
  law_graph(&here);
  tell("a graph repeats the step", "");
}

static void sum_by_nccl(void *gradient) {
  CHECK_EQ(nccl.all_reduce(gradient, gradient, VALUES, NCCL_FLOAT, NCCL_SUM, here.comm, here.stream), 0);
}

static void measure(void) {
  contender list[] = {{.spec = NULL},     {.spec = "bf16"},         {.spec = "q:8"},          {.spec = "q:4"},
                      {.spec = "ef/q:4"}, {.spec = "ef/topk:0.01"}, {.spec = "ef/powersgd:4"}};
  law_options.capturable = 1; /* so that a call waits for nothing, as NCCL's own does */
  plain_sum = sum_by_nccl;
  plain_name = "ncclAllReduce, f32";
  run_bench(list, sizeof list / sizeof *list);
}

int main(int argc, char **argv) {
  if (!program_start("nccl_test", nccl_open)) {
    return 0;
  }
  join_ranks();
  run_laws();
  run_own_laws();
  if (argc > 1 && strcmp(argv[1], "bench") == 0) {
    measure();
  }
  CHECK_OK(pith_barrier(host, NULL));
  nccl.destroy(here.comm);
  program_end();
  return 0;
}

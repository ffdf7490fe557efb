/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer over a real NCCL, by the laws that the made-up one obeys too (device_laws.h), and captured in a CUDA
 * graph. One process for each rank, with RANK and WORLD_SIZE in the environment, as `pith run` and torchrun set them:
 *
 *   pith run -n 4 -- nccl_test            a line for each law
 *   pith run -n 4 -- nccl_test bench      a table of times
 *
 * Ranks that share a GPU are taken for hosts by NCCL, which then talks TCP between them. Skipped with the reason where
 * a GPU, the module or NCCL is missing.
 */
#include "graph_laws.h"

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

/* ---- NCCL and ranks ---------------------------------------------------------------------------------------------- */

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

/* ---- The program ------------------------------------------------------------------------------------------------- */

static void sum_by_nccl(void *gradient) {
  CHECK_EQ(nccl.all_reduce(gradient, gradient, VALUES, NCCL_FLOAT, NCCL_SUM, here.comm, here.stream), 0);
}

static void measure(void) {
  contender list[] = {{.spec = NULL},     {.spec = "bf16"},         {.spec = "q:8"},          {.spec = "q:4"},
                      {.spec = "ef/q:4"}, {.spec = "ef/topk:0.01"}, {.spec = "ef/powersgd:4"}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    list[i].enqueues = 1;
  }
  plain_sum = sum_by_nccl;
  plain_name = "ncclAllReduce, f32";
  run_bench(list, sizeof list / sizeof *list);
}

int main(int argc, char **argv) {
  if (!program_start("nccl_test", nccl_open)) {
    return 0;
  }
  join_ranks();
  if (argc > 1 && strcmp(argv[1], "bench") == 0) {
    measure();
  } else {
    run_laws();
    run_graph_laws();
  }
  CHECK_OK(pith_barrier(host, NULL));
  nccl.destroy(here.comm);
  program_end();
  return 0;
}

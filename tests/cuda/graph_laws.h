/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a reducer in CUDA graphs, over carriers that enqueue them (nccl_test.c, device_test.c). */
#ifndef PITH_TESTS_CUDA_GRAPH_LAWS_H
#define PITH_TESTS_CUDA_GRAPH_LAWS_H

#include "rank_program.h"

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

/* Steps that could be captured have the same bits, and so has a graph of one. */
static void run_graph_laws(void) {
  law_options.capturable = 1;
  law_means(&here, CAPTURED, PITH_F32);
  tell("steps that wait for nothing have the same bits", "");
  law_graph(&here);
  tell("a graph repeats the step", "");
}

#endif

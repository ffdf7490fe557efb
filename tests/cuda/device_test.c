/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer on a real device over comms of Pith's own, by the laws that made-up devices obey too (device_laws.h).
 * One process for each rank, which may share a GPU:
 *
 *   pith run -n 4 -- device_test                                       a line for each law
 *   pith run -n 4 -- device_test bench                                 a table of times
 *   pith run -n 4 -- device_test killed                                rank 1 is killed between two steps
 *   pith run -n 4 -- device_test killed-graph                          … which are replays of a graph
 *   pith run -n 4 -- device_test stalled                               rank 1 is late by more than the time-out
 *   PITH_ALGO=hierarchical … device_test hosts                         sums of hosts first; hosts-bench: its times
 *   pith run -n 2 -- device_test quick                                 a few laws, for a memory checker
 *
 * Ranks find each other as the environment says: PITH_TRANSPORT, or shm within a host and tcp between hosts; and
 * PITH_CUDA_CARRIER says how messages travel, ipc or staged. Skipped with the reason where a GPU or the module is
 * missing.
 */
#include <signal.h>

#include "base/clock.h"
#include "cuda/hosts_laws.h"
#include "device/device_carrier.h"
#include "reducer/reducer.h"

#include "graph_laws.h" /* behind all others: it has names of its own */

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer) {
  return pith_reducer_create_with(w->comm, rules, seed, options, reducer);
}

/* ---- Laws of its own --------------------------------------------------------------------------------------------- */

/* Many groups, some of them chunks of layers. */
static void run_groups(void) {
  static const char *const list[] = {
      "none",
      "q:4,round=stochastic",
      "ef/q:4",
      "ef,store=8/q:4",
      "ef,store=bf16/topk:0.05",
      "ef/topk:0.05",
      "dgc:0.05",
      "ef/powersgd:4",
      "*.bias=q:8;embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;small*=powersgd:16;*=bf16"};
  law_options.group_bytes = 20 << 10;
  law_options.chunk_bytes = 8 << 10;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    law_means(&here, list[i], PITH_F32);
    tell("means are those of the CPU, in groups", list[i]);
  }
  law_checkpoints(&here, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
  tell("a checkpoint goes on where it was made, in groups", "");
  law_options = (pith_reducer_options)PITH_REDUCER_OPTIONS_INIT;
}

/* Payloads that differ in size from rank to rank and step to step. */
static void run_varying(void) {
  static const char *const list[] = {"*=threshold:2", "*=ef/threshold:0.5", "*=topk:0.9", "ef/topk:0.05,select=sampled",
                                     "adaptive:0.02"};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    law_means(&here, list[i], PITH_F32);
    tell("payloads of any size travel", list[i]);
  }
}

/* ---- Ranks that are killed --------------------------------------------------------------------------------------- */

static pith_reducer *make_reducer(const char **way) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer = NULL;
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(&here, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &reducer));
  *way = pith__device_carrier_way(&reducer->carrier);
  return reducer;
}

/* Until a call names the rank that is gone; it must do so within two seconds. */
static void await_error(pith_reducer *reducer, const law_set *set, const char *what) {
  double begun = pith__now();
  while (law_allreduce(reducer, set->device) == PITH_OK) {
    CHECK_MSG(pith__now() - begun < 5, "no error after %.1f s", pith__now() - begun);
  }
  double took = pith__now() - begun;
  CHECK_MSG(strstr(pith_error(), "rank 1"), "the error does not name rank 1: %s", pith_error());
  CHECK_MSG(took < 2, "the error came after %.1f s", took);
  if (here.rank == 0) {
    printf("ok   a rank that is killed is named after %.2f s, %s: %s\n", took, what, pith_error());
  }
}

/* Rank 1 is late by more than the time-out, which is one second: the others name it, and it learns of them. */
static void run_stalled(void) {
  const char *way = NULL;
  law_set set = law_take(PITH_F32);
  CHECK_OK(pith_comm_set_timeout(host, 1));
  pith_reducer *reducer = make_reducer(&way);
  law_blind_step(&here, reducer, &set, 0);
  CHECK_OK(pith_barrier(host, NULL));
  if (here.rank == 1) {
    sleep(4);
  }
  double begun = pith__now();
  while (law_allreduce(reducer, set.device) == PITH_OK) {
    CHECK_MSG(pith__now() - begun < 10, "no error after %.1f s", pith__now() - begun);
  }
  CHECK_MSG(here.rank == 1 || strstr(pith_error(), "rank 1"), "the error does not name rank 1: %s", pith_error());
  if (here.rank < 2) {
    printf("ok   rank %d, after %.2f s: %s\n", here.rank, pith__now() - begun, pith_error());
  }
  pith_reducer_destroy(reducer);
  law_give(&set);
}

/* The means of a graph whose peer is gone are none: NaN, and the device does not hang. */
static void replay_alone(replayed *r, const law_set *set) {
  float value = 0;
  double begun = pith__now();
  GPU_CHECK(gpu.graph_launch(r->program, here.stream));
  GPU_CHECK(gpu.wait());
  double took = pith__now() - begun;
  get(&value, set->device[0], sizeof value);
  CHECK_MSG(isnan(value) && took < 2, "a mean without rank 1 is %g, after %.1f s", (double)value, took);
  CHECK(law_allreduce(r->reducer, set->device) != PITH_OK && strstr(pith_error(), "rank 1"));
  if (here.rank == 0) {
    printf("ok   a graph without rank 1 ends after %.2f s with NaN: %s\n", took, pith_error());
  }
}

static void run_killed(int in_graph) {
  const char *way = NULL;
  replayed r = {0};
  law_set set = law_take(PITH_F32);
  law_options.capturable = in_graph;
  r.reducer = make_reducer(&way);
  law_blind_step(&here, r.reducer, &set, 0);
  if (in_graph) {
    capture(&here, &r, &set);
    replay(&here, &r, &set, 1);
  }
  CHECK_OK(pith_barrier(host, NULL));
  if (here.rank == 1) {
    raise(SIGKILL);
  }
  if (in_graph) {
    replay_alone(&r, &set);
    drop_graph(r.graph, r.program);
  } else {
    await_error(r.reducer, &set, way ? way : "?");
  }
  pith_reducer_destroy(r.reducer);
  law_give(&set);
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

/* Bytes of a second that a copy on the device reads and writes, while the other ranks do nothing. */
static double copy_rate(void) {
  enum { TIMES = 20 };
  size_t size = sizeof(float) * VALUES;
  void *from = gpu_memory(size), *to = gpu_memory(size);
  double rate = 0;
  CHECK_OK(pith_barrier(host, NULL));
  for (int turn = 0; turn < 2 && here.rank == 0; turn++) {
    double begun = pith__now();
    for (int i = 0; i < TIMES; i++) {
      GPU_CHECK(gpu.copy((gpu_address)(uintptr_t)to, (gpu_address)(uintptr_t)from, size, here.stream));
    }
    GPU_CHECK(gpu.wait());
    rate = 2.0 * TIMES * (double)size / (pith__now() - begun);
  }
  CHECK_OK(pith_barrier(host, NULL));
  gpu_free(from);
  gpu_free(to);
  return rate;
}

/* Bytes that all ranks together read and write in device memory for a step over ipc, of values V and payloads P of all
 * of them: encode, two copies of each message, reduce, decode. */
static double moved_bytes(const char *spec) {
  pith_codec *codec;
  CHECK_OK(pith_codec_create(spec, &codec));
  double n = here.ranks, v = sizeof(float) * VALUES, p = (double)pith_codec_bound(codec, VALUES), others = (n - 1) / n;
  double encode = others * (v + p), scatter = 2 * others * p + 2 * p, reduce = others * p + v / n + p / n,
         gather = 2 * others * p + 2 * p, decode = p + v;
  pith_codec_destroy(codec);
  return n * (encode + scatter + reduce + gather + decode);
}

static void measure(void) {
  static const char *const specs[] = {"none", "bf16", "q:8", "q:4", "ef/q:4", "ef/topk:0.01", "ef/powersgd:4"};
  enum { SPECS = sizeof specs / sizeof *specs };
  contender list[2 * SPECS] = {{0}};
  for (size_t i = 0; i < 2 * SPECS; i++) {
    list[i].spec = specs[i / 2];
    list[i].carrier = i % 2 ? "staged" : "ipc";
    list[i].enqueues = i % 2 == 0;
  }
  double rate = copy_rate();
  run_bench(list, sizeof list / sizeof *list);
  if (here.rank == 0 && here.ranks > 1) {
    printf("staged over %s\ncopies of the device: %.2f TB/s, read and written\n", pith_comm_transport(host, 1),
           rate / 1e12);
    for (size_t i = 0; i < 4; i++) { /* those without a memory */
      printf("%-8s moves %8.1f MiB of device memory by ipc, %.3f ms at that rate\n", specs[i],
             moved_bytes(specs[i]) / (1 << 20), 1e3 * moved_bytes(specs[i]) / rate);
    }
  }
}

/* ---- The program ------------------------------------------------------------------------------------------------- */

static void run_all_laws(void) {
  const char *way = NULL;
  pith_reducer *reducer = make_reducer(&way);
  pith_reducer_destroy(reducer);
  if (here.rank == 0) {
    printf("messages travel by %s\n", way ? way : "nothing");
  }
  run_laws();
  run_groups();
  run_varying();
  if (way && strcmp(way, "ipc") == 0) {
    run_graph_laws();
  }
}

/* Where the comm asks for it (PITH_ALGO=hierarchical) and ranks call themselves hosts (PITH_HOSTID). */
static void run_levels(void) {
  static const char *const list[] = {"none", "q:4", "ef/q:4", "*.bias=q:8;embed*=q:3;*=ef/q:4", "hadamard/q:4"};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    law_levels(&here, list[i], PITH_F32);
    law_levels(&here, list[i], PITH_BF16);
    tell("hosts are summed first with the bits of main memory", list[i]);
  }
}

/* Enough for a memory checker. */
static void run_quick(void) {
  static const char *const list[] = {"none", "ef/q:4", "ef/topk:0.05", "ef/powersgd:4"};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    law_means(&here, list[i], PITH_F32);
    tell("means are those of the CPU", list[i]);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "laws";
  if (!program_start("device_test", NULL)) {
    return 0;
  }
  here.comm = host;
  if (strcmp(what, "bench") == 0) {
    measure();
  } else if (strcmp(what, "killed") == 0 || strcmp(what, "killed-graph") == 0) {
    run_killed(strcmp(what, "killed") != 0);
    fflush(stdout);
    _exit(0); /* rank 1 is gone: a barrier would fail */
  } else if (strcmp(what, "stalled") == 0) {
    run_stalled();
    fflush(stdout);
    _exit(0); /* they have given each other up */
  } else if (strcmp(what, "hosts") == 0) {
    run_levels();
  } else if (strcmp(what, "hosts-bench") == 0) {
    contender list[] = {{.spec = "none"}, {.spec = "q:8"}, {.spec = "q:4"}, {.spec = "ef/q:4"}};
    run_bench(list, sizeof list / sizeof *list);
  } else if (strcmp(what, "quick") == 0) {
    run_quick();
  } else {
    run_all_laws();
  }
  CHECK_OK(pith_barrier(host, NULL));
  program_end();
  return 0;
}

/*
 * A reducer on a real device over comms of Pith's own, by the laws that made-up devices obey too (device_laws.h).
 * One process for each rank, which may share a GPU:
 *
 *   pith run -n 4 -- device_test                                       a line for each law
 *   pith lab -n 4 --rate 10gbit -- device_test bench                   … and a table of times
 *
 * Ranks find each other as the environment says: PITH_TRANSPORT, or shm within a host and tcp between hosts. Skipped
 * with the reason where a GPU or the module is missing.
 */
#include "rank_program.h"

static pith_status law_open_reducer(const law_world *w, const char *rules, uint64_t seed,
                                    const pith_reducer_options *options, pith_reducer **reducer) {
  return pith_reducer_create_with(w->comm, rules, seed, options, reducer);
}

/* ---- Laws of its own
 * ---------------------------------------------------------------------------------------------------------------------
 */

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

/* ---- The program
 * -------------------------------------------------------------------------------------------------------------------------
 */

static void measure(void) {
  contender list[] = {{.spec = "none"},   {.spec = "bf16"},         {.spec = "q:8"},          {.spec = "q:4"},
                      {.spec = "ef/q:4"}, {.spec = "ef/topk:0.01"}, {.spec = "ef/powersgd:4"}};
  run_bench(list, sizeof list / sizeof *list);
  if (here.rank == 0 && here.ranks > 1) {
    printf("over %s\n", pith_comm_transport(host, 1));
  }
}

int main(int argc, char **argv) {
  if (!program_start("device_test", NULL)) {
    return 0;
  }
  here.comm = host;
  run_laws();
  run_groups();
  run_varying();
  if (argc > 1 && strcmp(argv[1], "bench") == 0) {
    measure();
  }
  CHECK_OK(pith_barrier(host, NULL));
  program_end();
  return 0;
}

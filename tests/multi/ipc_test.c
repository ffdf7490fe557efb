/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer on devices of one host whose messages go from device to device (src/device/ipc_carrier.c), without a
 * device: the module of tests/cuda/fake shares memory between processes and waits for flags as kernels do. Windows,
 * slots, flags and the ranks that are watched are the real code; tests/cuda/device_test.c has the same laws for a real
 * device.
 */
#include <signal.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "cuda/fake/comm_laws.h"
#include "cuda/fake/fake_nccl.h"
#include "cuda/fake/means_tests.h"
#include "cuda/hosts_laws.h"
#include "device/device_carrier.h"
#include "device/ipc_carrier.h"
#include "reducer/reducer.h"
#include "transport/unix_socket.h"

enum { MOST = 4, SMALL_WINDOW = 64 << 10 };

static const char *wanted = "ipc";

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

static void prepare(void) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  unsetenv("PITH_CUDA_CARRIER");
  law_options.carrier = wanted;
}

static void on_ranks(const char *transport, int ranks, law_fn run) {
  prepare();
  ranks_run(transport, ranks, 0, run_law, &(law_run){run});
}

/* In processes of one host. One rank may leave as it likes. */
static void on_processes(int ranks, double timeout, law_fn run, int but) {
  pid_t child[MOST];
  prepare();
  law_options.group_bytes = 20 << 10;
  ranks_start("shm", ranks, timeout, run_law, &(law_run){run}, child);
  ranks_wait(child, ranks, but);
}

/* ---- What the CPU gives: whatever the carrier -------------------------------------------------------------------- */

static const char *rules;
static pith_dtype dtype;

static void means(const law_world *w) { law_means(w, rules, dtype); }

/* Two and three ranks have many small groups, large layers in chunks, and windows that messages fill several times; the
 * others one group for each way. */
static void check_means(const char *text) {
  static const pith_dtype types[] = {PITH_BF16, PITH_F32, PITH_F16};
  rules = text;
  for (int ranks = 2; ranks <= MOST; ranks++) {
    int many = ranks < MOST;
    law_options.group_bytes = many ? 20 << 10 : 0;
    law_options.chunk_bytes = many ? 8 << 10 : 0;
    pith__ipc_window_bytes = many ? SMALL_WINDOW : (size_t)64 << 20;
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

TEST(processes_do_the_same) {
  rules = FAKE_MIXED;
  dtype = PITH_F32;
  law_options.group_bytes = 30 << 10;
  on_ranks("shm", 4, means);
  pith__ipc_window_bytes = SMALL_WINDOW;
  on_ranks("shm", 3, means);
}

/* f64 is added as it is: by the owners of its parts, in rank order. */
static void plain(const law_world *w) {
  enum { N = 50000 };
  pith_layer layer = {sizeof(pith_layer), "wide", (size_t[]){N}, 1, PITH_F64, "f64 is exact"};
  pith_reducer *reducer;
  double *x = malloc(N * sizeof *x);
  for (size_t i = 0; i < N; i++) {
    x[i] = (double)(i + 1) / (3.0 + w->rank);
  }
  void *gradient = x;
  CHECK_OK(law_create(w, &layer, 1, "q:4", 1, &reducer));
  CHECK_OK(law_allreduce(reducer, &gradient));
  for (size_t i = 0; i < N; i++) {
    double sum = (double)(i + 1) / 3.0;
    for (int p = 1; p < w->ranks; p++) {
      sum += (double)(i + 1) / (3.0 + p);
    }
    CHECK(x[i] == sum / w->ranks);
  }
  pith_reducer_destroy(reducer);
  free(x);
}
TEST(values_that_no_codec_takes_are_added_in_rank_order) {
  pith__ipc_window_bytes = SMALL_WINDOW;
  on_ranks("inproc", 3, plain);
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

static void checkpoints(const law_world *w) {
  law_checkpoints(w, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
}
TEST(a_checkpoint_goes_on_where_it_was_made) { on_ranks("inproc", 3, checkpoints); }

static void scaling(const law_world *w) { law_scaling(w, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none"); }
TEST(what_is_kept_can_be_scaled) { on_ranks("inproc", 2, scaling); }

static void refusals(const law_world *w) { law_refusals(w); }
TEST(mistakes_are_refused_before_anything_travels) { on_ranks("inproc", 2, refusals); }

static void disagreement(const law_world *w) { law_disagreement(w); }
TEST(ranks_that_disagree_are_named) { on_ranks("inproc", 3, disagreement); }

/* A step that is enqueued by its calls alone; what a graph would repeat. */
static void captured(const law_world *w) { law_means(w, rules, PITH_F32); }
TEST(steps_can_be_captured) {
  static const char *const list[] = {"none", "q:4", "ef/q:4", "ef/topk:0.02", "ef/powersgd:2"};
  law_options.capturable = 1;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    rules = list[i];
    on_ranks("inproc", 3, captured);
  }
}

/* ---- Hosts ------------------------------------------------------------------------------------------------------- */

static void levels(const law_world *w) { law_levels(w, rules, dtype); }

TEST(hosts_are_summed_first_with_the_bits_of_main_memory) {
  static const struct {
    const char *rules, *inside;
    pith_dtype dtype;
  } list[] = {{"none", NULL, PITH_F32},
              {"q:4", NULL, PITH_F32},
              {"q:4", "q:8", PITH_F32},
              {"ef/q:4", "q:8", PITH_F32},
              {"q:4", NULL, PITH_BF16},
              {"ef/q:2,bucket=128", "q:8", PITH_F16},
              {"*.bias=q:8;embed*=q:3;*=ef/q:4", "bf16", PITH_F32},
              {"*.bias=q:8;embed*=q:3;*=ef/q:4", "q:8", PITH_F32}};
  setenv("PITH_ALGO", "hierarchical", 1);
  wanted = NULL;
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    rules = list[i].rules, dtype = list[i].dtype;
    prepare();
    ranks_run_hosts("auto", 4, 2, 0, list[i].inside, run_law, &(law_run){levels});
  }
  rules = "ef/q:4", dtype = PITH_F32;
  ranks_run_hosts("auto", 6, 3, 0, "q:8", run_law, &(law_run){levels});
  ranks_run_hosts("auto", 6, 2, 0, "q:8", run_law, &(law_run){levels});
}

static pith_reducer *make_default(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer;
  law_layers(PITH_F32, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, "ef/q:4", LAW_SEED, &reducer));
  return reducer;
}

/* NCCL is asked for: one that fails is heard of, so that it was NCCL in the others. */
static void broken_levels(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  CHECK(law_allreduce(reducer, set.device) != PITH_OK);
  CHECK_MSG(strstr(pith_error(), "ncclSend") && strstr(pith_error(), "among ranks"), "%s", pith_error());
  pith_reducer_destroy(reducer);
  law_give(&set);
}

TEST(nccl_goes_between_hosts_where_it_is_asked_for) {
  setenv("PITH_ALGO", "hierarchical", 1);
  wanted = "auto/nccl";
  rules = "*.bias=q:8;embed*=q:3;*=ef/q:4", dtype = PITH_F32;
  prepare();
  ranks_run_hosts("inproc", 4, 2, 0, "q:8", run_law, &(law_run){levels});
  ranks_run_hosts("inproc", 6, 2, 0, NULL, run_law, &(law_run){levels});
  fake_nccl_fault = "send";
  ranks_run_hosts("inproc", 4, 2, 0, NULL, run_law, &(law_run){broken_levels});
}

/* ---- Which way --------------------------------------------------------------------------------------------------- */

static const char *expected;

static void way(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  CHECK_STR(pith__device_carrier_way(&reducer->carrier), expected);
  law_blind_step(w, reducer, &set, 0);
  pith_reducer_destroy(reducer);
  law_give(&set);
}

static void check_way(const char *asked, const char *variable, const char *way_of) {
  prepare();
  law_options.carrier = asked;
  expected = way_of;
  setenv("PITH_CUDA_CARRIER", variable, 1);
  ranks_run("shm", 2, 0, run_law, &(law_run){way});
}

TEST(ranks_of_one_host_go_from_gpu_to_gpu_unless_told_otherwise) {
  check_way(NULL, "", "ipc");
  check_way("auto", "auto", "ipc");
  check_way(NULL, "staged", "staged");
  check_way("ipc", "staged", "ipc");
  check_way("staged", "ipc", "staged");
  check_way("staged/nccl", "", "staged"); /* there is one host */
}

static void one_that_cannot(const law_world *w) {
  if (w->rank == 1) {
    setenv("PITH_FAKE_NO_IPC", "1", 1);
  }
  way(w);
}

TEST(all_go_through_pinned_memory_if_one_cannot_share) {
  wanted = NULL;
  expected = "staged";
  on_processes(3, 20, one_that_cannot, -1);
}

TEST(all_go_through_pinned_memory_if_nothing_arrives) {
  setenv("PITH_FAKE_DEAF", "1", 1);
  check_way(NULL, "", "staged");
}

TEST(ranks_that_use_one_gpu_in_turns_go_through_pinned_memory_unless_told_otherwise) {
  setenv("PITH_FAKE_TURNS", "1", 1);
  check_way(NULL, "", "staged");
  check_way(NULL, "ipc", "ipc");
}

TEST(ranks_of_several_hosts_go_through_pinned_memory) {
  wanted = NULL;
  expected = "staged";
  prepare();
  ranks_run_hosts("tcp", 4, 2, 0, NULL, run_law, &(law_run){way});
}

static void required(const law_world *w) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *reducer = NULL;
  law_layers(PITH_F32, layers);
  if (w->rank == 1) {
    setenv("PITH_FAKE_NO_IPC", "1", 1);
  }
  CHECK_STATUS(law_create(w, layers, LAW_LAYERS, "q:4", LAW_SEED, &reducer), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("rank 1: the fake module: it shares nothing");
}

TEST(what_was_asked_for_and_is_not_possible_is_an_error_on_all_ranks) { on_processes(3, 20, required, -1); }

static void unknown(const law_world *w) { law_refuses(w, "q:4", PITH_ERR_ARGUMENT, "there is no carrier \"pigeon\""); }
TEST(a_way_that_does_not_exist_is_refused) {
  wanted = "pigeon";
  on_ranks("inproc", 2, unknown);
}

TEST(what_a_machine_has_for_it_can_be_asked) {
  const char *how = NULL;
  prepare();
  CHECK_OK(pith_cuda_ipc_probe(&how));
  CHECK_MSG(strstr(how, "0 of 0 other GPUs can be reached; ranks that share a GPU run at the same time"), "%s", how);
  setenv("PITH_FAKE_NO_IPC", "1", 1);
  CHECK_STATUS(pith_cuda_ipc_probe(NULL), PITH_ERR_SYSTEM);
  CHECK_ERROR_SAYS("it shares nothing");
}

/* ---- Ranks that fail --------------------------------------------------------------------------------------------- */

/* The second call says the same, at once; then all is given back. */
static void fail_twice(pith_reducer *reducer, law_set *set, double within, const char *says) {
  double begun = pith__now();
  for (int i = 0; i < 2; i++) {
    CHECK(law_allreduce(reducer, set->device) != PITH_OK);
    CHECK_ERROR_SAYS(says);
  }
  CHECK_MSG(pith__now() - begun < within, "it took %.1f s", pith__now() - begun);
  pith_reducer_destroy(reducer);
  law_give(set);
}

static void killed(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  law_blind_step(w, reducer, &set, 0);
  pith_barrier(w->comm, NULL);
  if (w->rank == 1) {
    raise(SIGKILL);
  }
  fail_twice(reducer, &set, 2, "rank 1 is gone");
}
TEST(a_rank_that_is_killed_is_named_within_two_seconds) { on_processes(3, 60, killed, 1); }

static void stalled(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  law_blind_step(w, reducer, &set, 0);
  if (w->rank == 1) { /* later it learns that the others have given up */
    sleep(3);
    fail_twice(reducer, &set, 2, "gave up");
  } else {
    fail_twice(reducer, &set, 5, "for a message of rank 1, which may be stalled");
  }
}
TEST(a_rank_that_is_stalled_is_named) { on_processes(2, 1, stalled, -1); }

static void failing(const law_world *w) {
  pith_reducer *reducer = make_default(w);
  law_set set = law_take(PITH_F32);
  if (w->rank == 0) {
    setenv("PITH_FAKE_FAULT", "4", 1);
    fail_twice(reducer, &set, 5, "a made-up error");
  } else {
    fail_twice(reducer, &set, 5, "rank 0 gave up: CUDA: the fake module: a made-up error");
  }
}
TEST(a_device_that_fails_ends_the_step_for_all) { on_processes(2, 20, failing, -1); }

/* ---- Strangers --------------------------------------------------------------------------------------------------- */

/* Calls at every socket of the system that has a name of ours, with memory of its own and what may look like a packet.
 */
static _Noreturn void intrude(void) {
  uint8_t packet[48];
  memset(packet, 0x53, sizeof packet);
  for (;;) {
    char line[256];
    FILE *list = fopen("/proc/net/unix", "r");
    while (list && fgets(line, sizeof line, list)) {
      const char *name = strstr(line, "@pith-");
      int socket = name ? pith__unix_open() : -1;
      if (socket >= 0 && pith__unix_connect(socket, name + 1) == 0) {
        pith__packet_send(socket, packet, sizeof packet, 0);
      }
      if (socket >= 0) {
        close(socket);
      }
    }
    if (list) {
      fclose(list);
    }
    usleep(200);
  }
}

TEST(descriptors_of_strangers_are_refused) {
  pid_t stranger = fork();
  if (stranger == 0) {
    intrude();
  }
  rules = "q:4";
  dtype = PITH_F32;
  on_ranks("shm", 3, means);
  CHECK(kill(stranger, SIGKILL) == 0 && waitpid(stranger, NULL, 0) == stranger);
}

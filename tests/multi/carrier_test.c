/* SPDX-License-Identifier: Apache-2.0 */
/* A reducer over a carrier: the same bits as over a comm, whatever carries its bytes, and errors of the carrier. */
#include "carrier_laws.h"

/* ---- The same bits ----------------------------------------------------------------------------------------------- */

enum { STEPS = 3 };

static void check_bits(pith_comm *comm, void *argument) {
  const char *spec = argument;
  int rank = pith_comm_rank(comm);
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, 0);
  pith_reducer *over_comm, *over_carrier;
  CHECK_OK(pith_reducer_create(comm, spec, 5, &over_comm));
  CHECK_OK(pith_reducer_create_over(&carrier, spec, 5, NULL, &over_carrier));
  add_layers(over_comm);
  add_layers(over_carrier);
  for (uint64_t step = 0; step < STEPS; step++) {
    gradients a = make_gradients(rank, step), b = make_gradients(rank, step);
    CHECK_OK(take_step(over_comm, &a, 0));
    CHECK_OK(take_step(over_carrier, &b, 0));
    compare(&a, &b, spec, step);
    release(&a);
    release(&b);
  }
  pith_reducer_destroy(over_comm);
  pith_reducer_destroy(over_carrier);
}

/* Algorithms differ in what is encoded twice. A carrier has one for each kind of codec. */
static void use_algorithm_of(const char *spec) {
  uint32_t caps = pith_codec_caps(law_codec(spec)), blocks = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  const char *algorithm = (caps & (blocks | PITH_CAP_ONCE)) == blocks ? "sra" : "gather";
  if (pith_algorithm_suits(algorithm, law_codec(spec)) == PITH_OK) {
    setenv("PITH_ALGO", algorithm, 1);
  } else {
    unsetenv("PITH_ALGO"); /* rounds: one for all */
  }
}

TEST_WITHIN(all_methods_have_the_same_bits_over_a_comm_and_a_carrier, 120) {
  size_t compared = 0;
  for (size_t i = 0; i < law_spec_count(); i++) {
    use_algorithm_of(law_spec(i));
    ranks_run("inproc", 3, 0, check_bits, (void *)(uintptr_t)law_spec(i));
    compared++;
  }
  CHECK(compared > 50);
  unsetenv("PITH_ALGO");
}

/* ---- Order, threads, layers that do not come --------------------------------------------------------------------- */

typedef struct manner {
  const char *spec;
  uint32_t caps;
  pith_reducer_options options;
  int turns;  /* ranks start layers in orders of their own */
  int leaves; /* every third layer has no gradient in odd steps */
} manner;

static pith_status take_some(pith_reducer *r, gradients *g, size_t turn, int leaves) {
  for (size_t i = 0; i <= LAYERS; i++) {
    size_t l = (LAYERS - i + turn) % (LAYERS + 1);
    if (!leaves || l % 3) {
      pith_status status = pith_reducer_start(r, l, g->layer[l]);
      if (status != PITH_OK) {
        return status;
      }
    }
  }
  return pith_reducer_finish(r);
}

static void check_manner(pith_comm *comm, void *argument) {
  const manner *m = argument;
  int rank = pith_comm_rank(comm);
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, m->caps), plain = carrier_of(&w, 0);
  pith_reducer *expected, *r;
  CHECK_OK(pith_reducer_create_over(&plain, m->spec, 5, &m->options, &expected));
  CHECK_OK(pith_reducer_create_over(&carrier, m->spec, 5, &m->options, &r));
  add_layers(expected);
  add_layers(r);
  for (uint64_t step = 0; step < 4; step++) {
    int leaves = m->leaves && step % 2;
    gradients a = make_gradients(rank, step), b = make_gradients(rank, step);
    CHECK_OK(take_some(expected, &a, 0, leaves));
    CHECK_OK(take_some(r, &b, m->turns ? (size_t)rank * 3 + step : 0, leaves));
    compare(&a, &b, m->spec, step);
    release(&a);
    release(&b);
  }
  pith_layer_stats info = PITH_LAYER_STATS_INIT;
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  CHECK_OK(pith_reducer_layer_stats(r, 2, &info));
  CHECK_OK(pith_reducer_layer_traffic(r, 2, &traffic));
  CHECK(info.steps == 4 && traffic.raw_bytes == 4 * info.bytes && traffic.sent_bytes > 0);
  pith_reducer_destroy(expected);
  pith_reducer_destroy(r);
}

TEST(a_thread_and_any_order_of_gradients_change_no_bit) {
  static const char *const specs[] = {"ef/q:4",
                                      "ef/topk:0.05",
                                      "ef,store=8/q:2",
                                      "ef,store=bf16/topk:0.05",
                                      "ef/powersgd:2",
                                      "ef,store=bf16/q:2,bucket=96",
                                      "*2=topk:0.1;*5=q:8;*=powersgd:2"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    for (int k = 0; k < 4; k++) {
      manner m = {.spec = specs[i], .caps = k & 1 ? PITH_CARRIER_THREADS : 0, .turns = k & 2, .leaves = k == 1};
      m.options =
          (pith_reducer_options){.size = sizeof m.options, .group_bytes = k & 1 ? 4096 : 0, .in_order = m.turns};
      ranks_run("inproc", 3, 0, check_manner, &m);
    }
  }
}

/* ---- Checkpoints and adaptive specs ------------------------------------------------------------------------------ */

static void check_resume(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm);
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, PITH_CARRIER_THREADS);
  pith_reducer *r, *resumed;
  CHECK_OK(pith_reducer_create_over(&carrier, argument, 5, NULL, &r));
  CHECK_OK(pith_reducer_create_over(&carrier, argument, 5, NULL, &resumed));
  add_layers(r);
  add_layers(resumed);
  for (uint64_t step = 0; step < 6; step++) {
    gradients a = make_gradients(rank, step), b = make_gradients(rank, step);
    if (step == 3) {
      pith_out out = {.capacity = pith_reducer_save_size(r)};
      out.data = malloc(out.capacity);
      CHECK_OK(pith_reducer_save(r, &out));
      CHECK_OK(pith_reducer_load(resumed, (pith_bytes){out.data, out.size}));
      free(out.data);
    }
    CHECK_OK(take_step(r, &a, 0));
    if (step >= 3) {
      CHECK_OK(take_step(resumed, &b, 0));
      compare(&a, &b, argument, step);
    }
    release(&a);
    release(&b);
  }
  pith_reducer_destroy(r);
  pith_reducer_destroy(resumed);
}

TEST(a_checkpoint_resumes_over_a_carrier) {
  ranks_run("inproc", 3, 0, check_resume, "ef/q:2");
  ranks_run("inproc", 3, 0, check_resume, "*2=ef,store=8/topk:0.05;*5=ef,store=8/q:2,bucket=32;*=ef,store=bf16/q:2");
  ranks_run("inproc", 2, 0, check_resume, "ef/powersgd:2");
}

static void check_adaptive(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), changed = 0;
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, PITH_CARRIER_THREADS);
  pith_reducer *r;
  pith_layer_stats info = PITH_LAYER_STATS_INIT;
  (void)argument;
  CHECK_OK(pith_reducer_create_over(&carrier, "lgreco:q:4,warmup=4,period=32", 5, NULL, &r));
  add_layers(r);
  for (uint64_t step = 0; step < 50; step++) {
    gradients g = make_gradients(rank, step);
    CHECK_OK(take_step(r, &g, 0));
    CHECK_OK(pith_reducer_layer_stats(r, 2, &info));
    changed += strcmp(info.spec, "none") != 0;
    uint64_t hash = 0, *all = calloc((size_t)pith_comm_size(comm), sizeof *all);
    for (size_t i = 0; i < bytes_of(2); i++) {
      hash = hash * 31 + g.layer[2][i];
    }
    CHECK_OK(pith_all_gather(comm, (pith_cspan){&hash, 1, PITH_I64},
                             (pith_span){all, (size_t)pith_comm_size(comm), PITH_I64}, NULL, NULL, NULL));
    CHECK(all[0] == all[1] && all[1] == hash);
    free(all);
    release(&g);
  }
  CHECK(changed > 0);
  pith_reducer_destroy(r);
}

TEST(an_adaptive_spec_changes_layers_over_a_carrier) { ranks_run("inproc", 2, 0, check_adaptive, NULL); }

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static void check_cut(pith_comm *comm, void *argument) {
  const manner *m = argument;
  for (int at = 1, failed = 1; failed; at++) { /* every exchange cannot be started, once */
    pith_comm *group;
    pith_reducer *r;
    pith_status status = PITH_OK;
    CHECK_OK(pith_comm_split(comm, 0, 0, &group));
    wire w = {.comm = group, .fails_at = at};
    pith_carrier carrier = carrier_of(&w, m->caps);
    CHECK_OK(pith_reducer_create_over(&carrier, m->spec, 5, &m->options, &r));
    add_layers(r);
    gradients g = make_gradients(pith_comm_rank(comm), 0);
    for (int step = 0; step < 2 && status == PITH_OK; step++) {
      status = take_step(r, &g, 0);
    }
    failed = status != PITH_OK;
    CHECK(!failed || status == PITH_ERR_SYSTEM);
    if (failed) {
      CHECK_ERROR_SAYS("the wire is cut");
      CHECK(pith_reducer_finish(r) != PITH_OK || at == 1); /* and stays cut; before the first step nothing has begun */
    }
    pith_reducer_destroy(r);
    pith_comm_destroy(group);
    release(&g);
  }
}

TEST(an_exchange_that_cannot_start_is_an_error_with_its_text) {
  for (int k = 0; k < 2; k++) {
    manner m = {.spec = "*2=topk:0.1;*5=q:8;*=ef/powersgd:2", .caps = k ? PITH_CARRIER_THREADS : 0};
    m.options = (pith_reducer_options){.size = sizeof m.options, .group_bytes = 4096};
    ranks_run("inproc", 2, 0, check_cut, &m);
  }
}

static void check_destroy(pith_comm *comm, void *argument) {
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, *(const uint32_t *)argument);
  pith_reducer *r;
  CHECK_OK(pith_reducer_create_over(
      &carrier, "q:4", 5, &(pith_reducer_options){.size = sizeof(pith_reducer_options), .group_bytes = 64}, &r));
  add_layers(r);
  gradients g = make_gradients(pith_comm_rank(comm), 0);
  for (size_t l = LAYERS; l-- > 3;) {
    pith_status status = pith_reducer_start(r, l, g.layer[l]); /* another rank may have given up */
    CHECK(status == PITH_OK || status == PITH_ERR_ABORTED);
  }
  pith_reducer_destroy(r);             /* in the middle of a step: a thread may still wait … */
  pith_comm_abort(comm, "that is it"); /* … until the carrier says that it is over */
  while (w.waited != w.begun) {
    usleep(100);
  }
  release(&g);
}

TEST(a_reducer_can_be_destroyed_in_the_middle_of_a_step) {
  for (int k = 0; k < 20; k++) {
    uint32_t caps = k % 2 ? PITH_CARRIER_THREADS : 0;
    ranks_run("inproc", 3, 0, check_destroy, &caps);
  }
}

TEST(carriers_are_checked) {
  wire w = {0};
  pith_reducer *r;
  pith_carrier good = PITH_CARRIER_INIT;
  good.name = "test", good.self = &w, good.ranks = 2, good.start = start, good.wait = wait;
  pith_carrier bad[5] = {good, good, good, good, good};
  bad[0].size = 1;
  bad[1].name = NULL;
  bad[2].start = NULL;
  bad[3].rank = 2;
  bad[4].ranks = 0;
  for (size_t i = 0; i < 5; i++) {
    CHECK_STATUS(pith_reducer_create_over(&bad[i], "q:4", 0, NULL, &r), PITH_ERR_ARGUMENT);
  }
  CHECK_STATUS(pith_reducer_create_over(NULL, "q:4", 0, NULL, &r), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_create_over(&good, "nonsense", 0, NULL, &r), PITH_ERR_SPEC);
  CHECK_STATUS(pith_reducer_create_over(&good, "q:4", 0, &(pith_reducer_options){0}, &r), PITH_ERR_ARGUMENT);
  CHECK_OK(pith_reducer_create_over(&good, "q:4", 0, NULL, &r));
  CHECK_STATUS(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "wide", (size_t[]){4}, 1, PITH_F64, NULL}, NULL),
               PITH_ERR_ARGUMENT);
  pith_reducer_destroy(r);
}

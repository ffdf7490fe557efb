/* SPDX-License-Identifier: Apache-2.0 */
/* The reducer: layers by name and rule, joined small ones, checkpoints that resume, slips that are told before the
 * first step. */
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "ranks.h"
#include "test.h"

#define LAYERS 12

static const size_t shapes[LAYERS][2] = {{64, 32}, {1, 32},  {128, 64}, {1, 64},  {100, 100}, {7, 3},
                                         {1, 10},  {40, 60}, {1, 1},    {33, 65}, {2, 2},     {512, 16}};

static size_t size_of(size_t layer) { return shapes[layer][0] * shapes[layer][1]; }

static float gradient_of(int rank, uint64_t step, size_t layer, size_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u + layer * 40503u + step * 97u + (uint64_t)rank * 1299721u);
  h ^= h >> 13;
  h *= 0x5bd1e995u;
  return (float)(int32_t)(h >> 16 & 0xfff) / 4096.0f - 0.5f;
}

static void name_layer(size_t layer, char name[32]) {
  snprintf(name, 32, "layer%zu.%s", layer, shapes[layer][0] == 1 ? "bias" : "weight");
}

static pith_reducer *make(pith_comm *comm, const char *rules) {
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, rules, 5, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    char name[32];
    size_t index, flat = size_of(l);
    name_layer(l, name);
    CHECK_OK(pith_reducer_add(r,
                              &(pith_layer){sizeof(pith_layer), name, shapes[l][0] == 1 ? &flat : shapes[l],
                                            shapes[l][0] == 1 ? 1 : 2, PITH_F32, NULL},
                              &index));
    CHECK_EQ(index, l);
  }
  return r;
}

typedef struct gradients {
  float *layer[LAYERS];
} gradients;

static gradients take_step(pith_reducer *r, int rank, uint64_t step) {
  gradients g;
  for (size_t l = 0; l < LAYERS; l++) {
    g.layer[l] = malloc(size_of(l) * sizeof(float));
    for (size_t i = 0; i < size_of(l); i++) {
      g.layer[l][i] = gradient_of(rank, step, l, i);
    }
    CHECK_OK(pith_reducer_start(r, l, g.layer[l]));
  }
  CHECK_OK(pith_reducer_finish(r));
  return g;
}

static void release(gradients *g) {
  for (size_t l = 0; l < LAYERS; l++) {
    free(g->layer[l]);
  }
}

static double mean_of(int ranks, uint64_t step, size_t layer, size_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; r++) {
    sum += gradient_of(r, step, layer, i);
  }
  return sum / ranks;
}

static void reduce_layers(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  pith_reducer *r = make(comm, argument);
  for (uint64_t step = 0; step < 3; step++) {
    gradients g = take_step(r, rank, step);
    for (size_t l = 0; l < LAYERS; l++) {
      pith_layer_stats info = PITH_LAYER_STATS_INIT;
      CHECK_OK(pith_reducer_layer_stats(r, l, &info));
      double tolerance = strcmp(info.spec, "none") == 0 ? 1e-6 : strcmp(info.spec, "q:8") == 0 ? 0.02 : 10;
      for (size_t i = 0; i < size_of(l); i++) {
        CHECK_NEAR(g.layer[l][i], mean_of(ranks, step, l, i), tolerance);
      }
    }
    release(&g);
  }
  pith_reducer_destroy(r);
}

TEST(layers_become_their_means) {
  ranks_run("inproc", 3, 0, reduce_layers, "none");
  ranks_run("inproc", 1, 0, reduce_layers, "*=q:8");
  ranks_run("shm", 4, 0, reduce_layers, "layer2*=ef/topk:0.1;layer4*=ef/powersgd:2;*.bias=none;*=q:8");
  ranks_run("tcp", 2, 0, reduce_layers, "*=q:8");
}

static void check_layers(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = make(comm, "layer0*=q:2;*=ef/q:4");
  pith_layer_stats info = PITH_LAYER_STATS_INIT;
  CHECK_EQ(pith_reducer_layers(r), LAYERS);
  CHECK_OK(pith_reducer_layer_stats(r, 0, &info));
  CHECK_STR(info.spec, "q:2");
  CHECK_OK(pith_reducer_layer_stats(r, 1, &info));
  CHECK_STR(info.spec, "none"); /* one dimension */
  CHECK_OK(pith_reducer_layer_stats(r, 2, &info));
  CHECK_STR(info.spec, "ef/q:4");
  CHECK_OK(pith_reducer_layer_stats(r, 5, &info));
  CHECK_STR(info.spec, "none"); /* 21 values */
  CHECK_STATUS(pith_reducer_layer_stats(r, LAYERS, &info), PITH_ERR_ARGUMENT);
  CHECK_STATUS(
      pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "layer3.bias", shapes[3], 2, PITH_F32, NULL}, NULL),
      PITH_ERR_ARGUMENT);
  pith_reducer_destroy(r);
}

TEST(rules_give_every_layer_its_spec) { ranks_run("inproc", 1, 0, check_layers, NULL); }

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void resume(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm);
  pith_reducer *one = make(comm, argument), *two = make(comm, argument);
  for (uint64_t step = 0; step < 3; step++) {
    gradients g = take_step(one, rank, step);
    release(&g);
  }
  pith_out saved = {malloc(pith_reducer_save_size(one)), pith_reducer_save_size(one), 0};
  CHECK_OK(pith_reducer_save(one, &saved));
  ((uint8_t *)saved.data)[saved.size - 1] ^= 1;
  pith_status damaged = pith_reducer_load(two, (pith_bytes){saved.data, saved.size});
  CHECK(damaged == PITH_ERR_CORRUPT || damaged == PITH_ERR_STATE);
  ((uint8_t *)saved.data)[saved.size - 1] ^= 1;
  CHECK_STATUS(pith_reducer_load(two, (pith_bytes){saved.data, saved.size - 1}), PITH_ERR_CORRUPT);
  CHECK_OK(pith_reducer_load(two, (pith_bytes){saved.data, saved.size}));
  for (uint64_t step = 3; step < 5; step++) {
    gradients a = take_step(one, rank, step), b = take_step(two, rank, step);
    for (size_t l = 0; l < LAYERS; l++) {
      CHECK_BYTES(a.layer[l], b.layer[l], size_of(l) * sizeof(float));
    }
    release(&a);
    release(&b);
  }
  free(saved.data);
  pith_reducer_destroy(one);
  pith_reducer_destroy(two);
}

TEST(a_checkpoint_resumes_bit_by_bit) {
  ranks_run("inproc", 2, 0, resume, "*=ef/q:2,round=stochastic");
  ranks_run("shm", 3, 0, resume, "layer4*=ef/powersgd:2;*=dgc:0.1");
}

static pith_out saved_by[2]; /* ranks are threads */

static void swap_checkpoints(pith_comm *comm, void *argument) {
  (void)argument;
  int rank = pith_comm_rank(comm);
  pith_reducer *r = make(comm, "*=ef/q:2"), *untouched = make(comm, "*=ef/q:2");
  gradients g = take_step(r, rank, 0);
  release(&g);
  size_t size = pith_reducer_save_size(r);
  saved_by[rank] = (pith_out){malloc(size), size, 0};
  CHECK_OK(pith_reducer_save(r, &saved_by[rank]));
  CHECK_OK(pith_barrier(comm, NULL));
  const pith_out *other = &saved_by[1 - rank];
  CHECK_STATUS(pith_reducer_load(r, (pith_bytes){other->data, other->size}), PITH_ERR_STATE);
  CHECK_ERROR_SAYS(rank == 0 ? "saved by rank 1 of 2, and this is rank 0: "
                             : "saved by rank 0 of 2, and this is rank 1: ");
  CHECK_ERROR_SAYS("each rank loads what it saved itself");
  gradients a = take_step(r, rank, 1); /* the refused checkpoint has changed nothing */
  CHECK_OK(pith_reducer_load(untouched, (pith_bytes){saved_by[rank].data, saved_by[rank].size}));
  gradients b = take_step(untouched, rank, 1);
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_BYTES(a.layer[l], b.layer[l], size_of(l) * sizeof(float));
  }
  release(&a);
  release(&b);
  CHECK_OK(pith_barrier(comm, NULL));
  ((uint32_t *)saved_by[rank].data)[11] = 3; /* ranks */
  CHECK_STATUS(pith_reducer_load(r, (pith_bytes){saved_by[rank].data, saved_by[rank].size}), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("another number of ranks");
  free(saved_by[rank].data);
  pith_reducer_destroy(r);
  pith_reducer_destroy(untouched);
}

TEST(a_checkpoint_of_another_rank_is_refused) { ranks_run("inproc", 2, 0, swap_checkpoints, NULL); }

/* Version 1 has no rank: bytes 40 to 48 of the head. */
static void load_old(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = make(comm, "*=ef/q:2");
  pith_out saved = {malloc(pith_reducer_save_size(r)), pith_reducer_save_size(r), 0};
  CHECK_OK(pith_reducer_save(r, &saved));
  uint8_t *bytes = saved.data;
  ((uint32_t *)saved.data)[1] = 1;
  memmove(bytes + 40, bytes + 48, saved.size - 48);
  CHECK_OK(pith_reducer_load(r, (pith_bytes){bytes, saved.size - 8}));
  ((uint32_t *)saved.data)[1] = 7;
  CHECK_STATUS(pith_reducer_load(r, (pith_bytes){bytes, saved.size - 8}), PITH_ERR_CORRUPT);
  CHECK_ERROR_SAYS("saved by version 7 of the format");
  free(saved.data);
  pith_reducer_destroy(r);
}

TEST(a_checkpoint_of_the_first_version_is_loaded) { ranks_run("inproc", 1, 0, load_old, NULL); }

/* ---- Slips ------------------------------------------------------------------------------------------------------- */

static void slip(pith_comm *comm, void *argument) {
  (void)argument;
  float x[64 * 32] = {0};
  pith_reducer *r = make(comm, "leyer*=q:2;*=q:4");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("matches none");
  pith_reducer_destroy(r);
  r = make(comm, pith_comm_rank(comm) == 1 ? "*=q:3" : "*=q:4");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("rank 0 has the spec *=q:4, rank 1 has *=q:3");
  pith_reducer_destroy(r);
  r = make(comm, pith_comm_rank(comm) == 1 ? "*=lgreco:q:4" : "*=lgreco:q:4,period=64");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("rank 0 has the spec lgreco:q:4,period=64, rank 1 has lgreco:q:4");
  pith_reducer_destroy(r);
  r = make(comm, "*=q:4");
  CHECK_OK(pith_reducer_start(r, 0, x));
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_STATE);
  CHECK_OK(pith_reducer_finish(r));
  pith_reducer_destroy(r);
}

TEST(slips_are_told_before_the_first_step) { ranks_run("inproc", 3, 0, slip, NULL); }

/* ---- Joined layers ----------------------------------------------------------------------------------------------- */

/* What a reducer must give for a layer: an operation of its own. */
static void alone(pith_comm *comm, size_t layer, pith_state *state, const pith_codec *codec, uint64_t step, float *x) {
  pith_call call = PITH_CALL_INIT;
  char name[32];
  name_layer(layer, name);
  call.codec = codec;
  call.state = state;
  call.seed = 5, call.step = step, call.layer = pith__hash64(name, strlen(name), 0); /* what a reducer counts by */
  for (size_t i = 0; i < size_of(layer); i++) {
    x[i] = gradient_of(pith_comm_rank(comm), step, layer, i);
  }
  pith_span span = {x, size_of(layer), PITH_F32};
  CHECK_OK(pith_allreduce(comm, (pith_cspan){x, size_of(layer), PITH_F32}, span, PITH_MEAN, &call, NULL));
}

/* Joined or not, a layer is reduced to the same bits. Not for random numbers of results, which depend on who owns them.
 */
static void compare_joined(pith_comm *comm, void *argument) {
  const char *spec = argument;
  pith_codec *codec;
  pith_state *state[LAYERS];
  char rules[64];
  snprintf(rules, sizeof rules, "layer*=%s", spec); /* a pattern: small layers too */
  pith_reducer *r = make(comm, rules);
  CHECK_OK(pith_codec_create(spec, &codec));
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_OK(pith_state_create(codec, size_of(l), shapes[l][0] == 1 ? 0 : shapes[l][0], &state[l]));
  }
  for (uint64_t step = 0; step < 3; step++) {
    gradients g = take_step(r, pith_comm_rank(comm), step);
    for (size_t l = 0; l < LAYERS; l++) {
      float *x = malloc(size_of(l) * sizeof *x);
      alone(comm, l, state[l], codec, step, x);
      CHECK_MSG(memcmp(g.layer[l], x, size_of(l) * sizeof *x) == 0, "%s: layer %zu on rank %d in step %llu", spec, l,
                pith_comm_rank(comm), (unsigned long long)step);
      free(x);
    }
    release(&g);
  }
  for (size_t l = 0; l < LAYERS; l++) {
    pith_state_destroy(state[l]);
  }
  pith_reducer_destroy(r);
  pith_codec_destroy(codec);
}

TEST_WITHIN(layers_are_reduced_to_the_same_bits_joined_or_alone, 60) {
  static const char *const specs[] = {"q:4",
                                      "ef/q:2",
                                      "onebit",
                                      "fp16",
                                      "ef/sign,scale=mean",
                                      "u8",
                                      "topk:0.1",
                                      "ef/q:3,tail=exact",
                                      "onebit,means=column",
                                      "qsgd:7,coding=elias",
                                      "nuq:4",
                                      "signsgd"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    ranks_run("inproc", 2 + (int)(s % 3), s % 2 ? 4096 : 0, compare_joined, (void *)(uintptr_t)specs[s]);
  }
  ranks_run_hosts("inproc", 5, 2, 0, NULL, compare_joined, (void *)(uintptr_t)"ef/q:4");
  ranks_run_hosts("inproc", 5, 2, 0, "q:8,bucket=1024", compare_joined, (void *)(uintptr_t)"ef/q:4");
  ranks_run_hosts("inproc", 5, 2, 0, NULL, compare_joined, (void *)(uintptr_t)"ef/q:4,encode=once");
}

TEST_WITHIN(layers_are_reduced_to_the_same_bits_by_every_algorithm, 60) {
  static const char *const algorithms[] = {"sra", "ring", "tree", "gather"};
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
    setenv("PITH_ALGO", algorithms[a], 1);
    ranks_run("inproc", 4, 0, compare_joined, (void *)(uintptr_t)"ef/q:2");
  }
  unsetenv("PITH_ALGO");
}

/* An embedding of which each rank touches some rows: what nobody touches stays where it is, whatever the step. */
static void vote_on_rows(pith_comm *comm, void *argument) {
  enum { ROWS = 60, WIDTH = 64, N = ROWS * WIDTH };
  (void)argument;
  pith_codec *codec;
  CHECK_OK(pith_codec_create("signsgd", &codec));
  for (uint64_t step = 0; step < 4; step++) {
    float x[N] = {0};
    for (size_t i = 0; i < N; i++) {
      x[i] = i / WIDTH % 3 == 0 ? (i % 2 ? -0.5f : 2.0f) : 0.0f;
    }
    pith_call call = PITH_CALL_INIT;
    call.codec = codec;
    call.step = step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){x, N, PITH_F32}, PITH_MEAN, &call, NULL));
    for (size_t i = 0; i < N; i++) {
      float wanted = i / WIDTH % 3 == 0 ? (i % 2 ? -1.0f : 1.0f) : 0.0f;
      CHECK_MSG(x[i] == wanted, "step %llu: value %zu is %g, not %g", (unsigned long long)step, i, (double)x[i],
                (double)wanted);
    }
  }
  pith_codec_destroy(codec);
}

TEST(rows_that_no_rank_touches_do_not_move) {
  for (int ranks = 1; ranks <= 4; ranks++) {
    ranks_run("inproc", ranks, ranks % 2 ? 0 : 4096, vote_on_rows, NULL);
  }
}

/* Rounds of joined layers travel together: no more messages than one layer alone would send. */
static void count_messages(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = make(comm, "layer*=ef/powersgd:2");
  pith_traffic before = PITH_TRAFFIC_INIT, after = PITH_TRAFFIC_INIT;
  gradients g = take_step(r, pith_comm_rank(comm), 0);
  release(&g);
  CHECK_OK(pith_comm_traffic(comm, "allreduce", &before));
  g = take_step(r, pith_comm_rank(comm), 1);
  release(&g);
  CHECK_OK(pith_comm_traffic(comm, "allreduce", &after));
  CHECK_EQ(after.operations - before.operations, 1);
  CHECK_EQ(after.uncompressed - before.uncompressed, 0);
  CHECK(after.messages - before.messages <=
        2 * 2 * (uint64_t)(pith_comm_size(comm) - 1)); /* two rounds, two steps each */
  pith_reducer_destroy(r);
}

TEST(low_rank_factors_of_many_layers_travel_together) { ranks_run("inproc", 3, 0, count_messages, NULL); }

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static void count_layers(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = make(comm, "*=q:4");
  for (uint64_t step = 0; step < 4; step++) {
    gradients g = take_step(r, pith_comm_rank(comm), step);
    release(&g);
  }
  uint64_t sent = 0;
  for (size_t l = 0; l < LAYERS; l++) {
    pith_layer_stats info = PITH_LAYER_STATS_INIT;
    pith_traffic traffic = PITH_TRAFFIC_INIT;
    CHECK_OK(pith_reducer_layer_stats(r, l, &info));
    CHECK_OK(pith_reducer_layer_traffic(r, l, &traffic));
    int plain = strcmp(info.spec, "none") == 0;
    double ratio = (double)traffic.sent_bytes / (double)traffic.raw_bytes;
    CHECK_EQ(traffic.operations, 4);
    CHECK_EQ(traffic.uncompressed, plain ? 4 : 0);
    CHECK(traffic.raw_bytes > 4 * info.bytes - 8 &&
          traffic.raw_bytes <= 4 * info.bytes + 4 * info.bytes / 2); /* some share padding */
    CHECK_MSG(plain ? ratio > 0.9 : ratio < 0.4, "layer %s as %s: %g", info.name, info.spec, ratio);
    CHECK(traffic.wire > 0 && traffic.encode >= 0 && traffic.decode >= 0);
    CHECK(info.reason && *info.reason);
    sent += traffic.sent_bytes;
  }
  pith_traffic all = PITH_TRAFFIC_INIT;
  CHECK_OK(pith_comm_traffic(comm, "allreduce", &all));
  CHECK(sent <= all.sent_bytes && sent + 1000 > all.sent_bytes);
  CHECK_STATUS(pith_comm_traffic(comm, "allreduced", &all), PITH_ERR_ARGUMENT);
  pith_reducer_destroy(r);
}

TEST(statistics_of_layers_add_up_to_those_of_the_comm) { ranks_run("inproc", 3, 0, count_layers, NULL); }

/* ---- Disagreement ------------------------------------------------------------------------------------------------ */

/* Two layers of one size that rank 1 starts in another order. Joined or alone, compressed or not: an error, no sum. */
static void start_in_another_order(pith_comm *comm, void *argument) {
  enum { MOST = 40000 };
  const size_t n = *(size_t *)argument;
  static const char *const rules[] = {"none", "q:8"};
  int odd = pith_comm_rank(comm) == 1;
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    pith_comm *group;
    pith_reducer *r;
    size_t layer[2];
    float *values[2] = {calloc(MOST, sizeof(float)), calloc(MOST, sizeof(float))};
    for (size_t k = 0; k < n; k++) {
      values[0][k] = 1, values[1][k] = 100;
    }
    CHECK_OK(pith_comm_split(comm, 0, 0, &group)); /* a mismatch ends it */
    CHECK_OK(pith_reducer_create(group, rules[i], 5, &r));
    CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "first", &n, 1, PITH_F32, NULL}, &layer[0]));
    CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "second", &n, 1, PITH_F32, NULL}, &layer[1]));
    pith_status status = PITH_OK;
    for (int k = 0; k < 2 && status == PITH_OK; k++) {
      int which = odd ? !k : k;
      status = pith_reducer_start(r, layer[which], values[which]);
    }
    status = status == PITH_OK ? pith_reducer_finish(r) : status;
    CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "%s, %zu values: rank %d got %s and %g, %g",
              rules[i], n, pith_comm_rank(comm), pith_status_string(status), (double)values[0][0],
              (double)values[1][0]);
    CHECK_ERROR_SAYS("layer");
    CHECK(values[0][0] == 1 && values[1][0] == 100);
    pith_reducer_destroy(r);
    pith_comm_destroy(group);
    free(values[0]);
    free(values[1]);
  }
}

TEST(layers_in_another_order_are_an_error) {
  static size_t sizes[] = {600, 40000}; /* joined, alone */
  static const char *const transports[] = {"inproc", "shm", "tcp"};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    for (size_t t = 0; t < 3; t++) {
      ranks_run(transports[t], 2, 0, start_in_another_order, &sizes[i]);
    }
  }
}

/* One rank resumes an older checkpoint: with or without compression all are told. */
static void resume_an_older_step(pith_comm *comm, void *argument) {
  pith_reducer *r = make(comm, argument);
  size_t size = pith_reducer_save_size(r);
  uint8_t *bytes = malloc(size);
  pith_out out = {bytes, size, 0};
  gradients g = take_step(r, pith_comm_rank(comm), 0);
  release(&g);
  CHECK_OK(pith_reducer_save(r, &out));
  g = take_step(r, pith_comm_rank(comm), 1);
  release(&g);
  if (pith_comm_rank(comm) == 1) {
    CHECK_OK(pith_reducer_load(r, (pith_bytes){bytes, out.size}));
  }
  float *values[LAYERS];
  pith_status status = PITH_OK;
  for (size_t l = 0; l < LAYERS; l++) {
    values[l] = calloc(size_of(l), sizeof(float));
  }
  for (size_t l = 0; l < LAYERS && status == PITH_OK; l++) {
    status = pith_reducer_start(r, l, values[l]);
  }
  status = status == PITH_OK ? pith_reducer_finish(r) : status;
  CHECK_MSG(status == PITH_ERR_MISMATCH || status == PITH_ERR_ABORTED, "rank %d got %s", pith_comm_rank(comm),
            pith_status_string(status));
  CHECK_ERROR_SAYS("is at step");
  pith_reducer_destroy(r);
  free(bytes);
  for (size_t l = 0; l < LAYERS; l++) {
    free(values[l]);
  }
}

TEST(an_older_checkpoint_on_one_rank_is_an_error) {
  static char rules[][24] = {"none", "q:8", "hadamard/q:8", "randomk:0.1"};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    ranks_run("inproc", 2, 0, resume_an_older_step, rules[i]);
  }
}

/* ---- States in the caller's memory ------------------------------------------------------------------------------- */

typedef struct lent_arrays {
  void *array[LAYERS][PITH_STATE_ARRAYS];
} lent_arrays;

static pith_reducer *make_lent(pith_comm *comm, const char *rules, lent_arrays *arrays) {
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  pith_reducer *r;
  options.lent = 1;
  CHECK_OK(pith_reducer_create_with(comm, rules, 5, &options, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    char name[32];
    size_t flat = size_of(l), bytes[PITH_STATE_ARRAYS];
    name_layer(l, name);
    CHECK_OK(pith_reducer_add(r,
                              &(pith_layer){sizeof(pith_layer), name, shapes[l][0] == 1 ? &flat : shapes[l],
                                            shapes[l][0] == 1 ? 1 : 2, PITH_F32, NULL},
                              NULL));
    CHECK_OK(pith_reducer_array_sizes(r, l, bytes));
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      arrays->array[l][a] = bytes[a] ? calloc(1, bytes[a]) : NULL;
    }
  }
  return r;
}

static gradients take_lent_step(pith_reducer *r, lent_arrays *arrays, int rank, uint64_t step) {
  CHECK_OK(pith_reducer_set_step(r, step));
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_OK(pith_reducer_lend(r, l, arrays->array[l]));
  }
  return take_step(r, rank, step);
}

static void check_same(const gradients *a, const gradients *b) {
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK(memcmp(a->layer[l], b->layer[l], size_of(l) * sizeof(float)) == 0);
  }
}

static void compare_lent(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm);
  lent_arrays arrays;
  pith_reducer *owned = make(comm, argument), *lent = make_lent(comm, argument, &arrays);
  for (uint64_t step = 0; step < 4; step++) {
    gradients a = take_step(owned, rank, step), b = take_lent_step(lent, &arrays, rank, step);
    check_same(&a, &b);
    release(&a);
    release(&b);
  }
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      free(arrays.array[l][a]);
    }
  }
  pith_reducer_destroy(lent);
  pith_reducer_destroy(owned);
}

TEST(lent_states_give_the_bits_of_kept_ones) {
  const char *rules[] = {"q:4",
                         "ef/q:4",
                         "ef/topk:0.1",
                         "dgc:0.1",
                         "signum:0.9",
                         "ef/powersgd:2",
                         "powersgd:2",
                         "ef/hadamard/q:2",
                         "onebit",
                         "ef/gq:8",
                         "efsignsgd",
                         "ef/natural",
                         "ef/randomk:0.2",
                         "u8",
                         "none",
                         "ef/q:2,encode=once",
                         "ef,store=8/q:4",
                         "ef,store=bf16/topk:0.1"};
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
    for (int ranks = 1; ranks <= 3; ranks++) {
      ranks_run("inproc", ranks, 0, compare_lent, (void *)(uintptr_t)rules[i]);
    }
  }
}

static void refuse_lent(pith_comm *comm, void *argument) {
  (void)argument;
  lent_arrays arrays;
  float values[8192] = {0};
  pith_reducer *owned = make(comm, "ef/q:4"), *r = make_lent(comm, "ef/q:4", &arrays), *none;
  uint8_t bytes[64];
  CHECK_STATUS(pith_reducer_lend(owned, 0, arrays.array[0]), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_set_step(owned, 3), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_start(r, 0, values), PITH_ERR_STATE); /* nothing was lent */
  CHECK(strstr(pith_error(), "layer0.weight starts without its arrays") != NULL);
  CHECK_STATUS(pith_reducer_lend(r, 0, (void *[PITH_STATE_ARRAYS]){NULL}), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_scale(r, 2), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_set_spec(r, 0, "q:4"), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_save(r, &(pith_out){bytes, sizeof bytes, 0}), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_load(r, (pith_bytes){bytes, sizeof bytes}), PITH_ERR_STATE);
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  options.lent = 1;
  CHECK_STATUS(pith_reducer_create_with(comm, "auto", 5, &options, &none), PITH_ERR_UNSUPPORTED);
  CHECK_OK(pith_reducer_create_with(comm, "moment/onebit", 5, &options, &none));
  pith_layer layer = {sizeof layer, "fc", shapes[2], 2, PITH_F32, NULL};
  CHECK_STATUS(pith_reducer_add(none, &layer, NULL), PITH_ERR_UNSUPPORTED);
  pith_reducer_destroy(none);
  gradients g = take_lent_step(r, &arrays, 0, 7);
  release(&g);
  CHECK_STATUS(pith_reducer_start(r, 0, values), PITH_ERR_STATE); /* arrays are lent for one step */
  g = take_lent_step(r, &arrays, 0, 7);                           /* a step may come again */
  release(&g);
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      free(arrays.array[l][a]);
    }
  }
  pith_reducer_destroy(r);
  pith_reducer_destroy(owned);
}

TEST(lent_states_are_the_callers_to_save_and_to_scale) { ranks_run("inproc", 1, 0, refuse_lent, NULL); }

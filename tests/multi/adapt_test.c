/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adaptive specs in a reducer: ranks change together and stay bit-identical, nothing that was not sent is lost on the
 * way, mistakes are told before the first step, and a checkpoint in the middle of a period goes on with the same plans.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/hash.h"
#include "memory/memory.h"
#include "ranks.h"
#include "reducer/reducer.h"
#include "test.h"

enum { LAYERS = 6, MOST = 128 * 96 };

static const size_t shapes[LAYERS][2] = {{64, 64}, {128, 96}, {1, 96}, {100, 40}, {8, 8}, {96, 64}};

static size_t size_of(size_t layer) { return shapes[layer][0] * shapes[layer][1]; }

static float gradient_of(int rank, uint64_t step, size_t layer, size_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u + layer * 40503u + step * 97u + (uint64_t)rank * 1299721u);
  h ^= h >> 13;
  h *= 0x5bd1e995u;
  double noise = (double)(h >> 16 & 0xfff) / 4096 - 0.5, wave = sin((double)i * 0.01) * (double)(1 + layer);
  return (float)(wave + 0.3 * noise);
}

static pith_reducer *make(pith_comm *comm, const char *rules) {
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, rules, 5, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    char name[32];
    int flat = shapes[l][0] == 1;
    snprintf(name, sizeof name, "layer%zu.%s", l, flat ? "bias" : "weight");
    CHECK_OK(pith_reducer_add(
        r, &(pith_layer){sizeof(pith_layer), name, flat ? &shapes[l][1] : shapes[l], flat ? 1 : 2, PITH_F32, NULL},
        NULL));
  }
  return r;
}

typedef struct gradients {
  float layer[LAYERS][MOST];
} gradients;

static void take_step(pith_reducer *r, int rank, uint64_t step, gradients *g) {
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t i = 0; i < size_of(l); i++) {
      g->layer[l][i] = gradient_of(rank, step, l, i);
    }
    CHECK_OK(pith_reducer_start(r, l, g->layer[l]));
  }
  CHECK_OK(pith_reducer_finish(r));
}

/* Results, specs and reasons of a step in one number, which must be the same on all ranks. */
static uint64_t hash_of(const pith_reducer *r, const gradients *g) {
  uint64_t hash = 1;
  for (size_t l = 0; l < LAYERS; l++) {
    pith_layer_stats info = PITH_LAYER_STATS_INIT;
    CHECK_OK(pith_reducer_layer_stats(r, l, &info));
    hash = pith__hash64(g->layer[l], size_of(l) * sizeof(float), hash);
    hash = pith__hash64(info.spec, strlen(info.spec), hash);
    hash = pith__hash64(info.reason, strlen(info.reason), hash);
  }
  return hash;
}

static void compare(pith_comm *comm, uint64_t mine, uint64_t step) {
  int ranks = pith_comm_size(comm);
  uint64_t all[16];
  CHECK_OK(pith_all_gather(comm, (pith_cspan){&mine, 1, PITH_I64}, (pith_span){all, (size_t)ranks, PITH_I64}, NULL,
                           NULL, NULL));
  for (int p = 0; p < ranks; p++) {
    CHECK_MSG(all[p] == all[0], "rank %d differs from rank 0 in step %llu", p, (unsigned long long)step);
  }
}

static int is_compressed(const pith_reducer *r) {
  pith_layer_stats info = PITH_LAYER_STATS_INIT;
  int found = 0;
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_OK(pith_reducer_layer_stats(r, l, &info));
    found |= strcmp(info.spec, "none") != 0 &&
             strncmp(info.reason, "rule", 4) != 0; /* rules are in force from the first step on */
    CHECK_MSG((l != 2 && l != 4) || !strcmp(info.spec, "none"), "small layer %s has %s", info.name, info.spec);
  }
  return found;
}

/* Before the first plan. */
static int is_warming_up(const pith_reducer *r) {
  pith_layer_stats info = PITH_LAYER_STATS_INIT;
  CHECK_OK(pith_reducer_layer_stats(r, 1, &info));
  return strstr(info.reason, "warm-up") != NULL;
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static void change_together(pith_comm *comm, void *argument) {
  gradients *g = calloc(1, sizeof *g);
  pith_reducer *r = make(comm, argument);
  int seen = 0;
  for (uint64_t step = 0; step < 60; step++) {
    take_step(r, pith_comm_rank(comm), step, g);
    compare(comm, hash_of(r, g), step);
    CHECK(is_compressed(r));              /* from the first step on */
    CHECK(step >= 3 || is_warming_up(r)); /* the specs are those of the step that comes */
    seen |= !is_warming_up(r);
  }
  CHECK_MSG(seen, "%s has no plan", (const char *)argument);
  pith_reducer_destroy(r);
  free(g);
}

TEST_WITHIN(ranks_change_to_the_same_specs_in_the_same_step, 120) {
  ranks_run("inproc", 2, 0, change_together, "lgreco:q:4,warmup=4,period=32");
  ranks_run("inproc", 3, 0, change_together, "lgreco:mix,budget=q:4,warmup=4,period=32");
  ranks_run("shm", 2, 0, change_together, "lgreco:ef/topk:0.01,warmup=5,period=32");
  ranks_run("inproc", 2, 4096, change_together, "lgreco:ef/powersgd:2,warmup=6,period=32,alpha=2");
  static const char *const others[] = {
      "kmeans:q:4,warmup=4,period=32",
      "cgxkmeans:q:4,warmup=4,period=32",
      "linear:q:4,warmup=4,period=32,metric=l2",
      "best:ef/topk:0.05,warmup=4,period=32",
      "bayes:q:4,warmup=4,period=32,cap=2",
      "global:ef/topk:0.05,warmup=4,period=32",
      "lgreco:gq:8,warmup=4,period=32,alpha=4",
      "lgreco:qsgd:63,warmup=4,period=32,accumulate=3",
      "lgreco:ef/powersgd:2,warmup=4,period=32,tolerance=0.5,start=7",
  };
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    ranks_run("inproc", 2, 0, change_together, (void *)(uintptr_t)others[i]);
  }
  ranks_run("inproc", 2, 0, change_together, "layer0*=q:8;*=accordion:q:4,q:8,warmup=4,period=32");
}

static void choose_together(pith_comm *comm, void *argument) {
  gradients *g = calloc(1, sizeof *g);
  pith_reducer *r = make(comm, argument);
  for (uint64_t step = 0; step < 160; step++) { /* what is fastest here is not for a test to say */
    take_step(r, pith_comm_rank(comm), step, g);
    compare(comm, hash_of(r, g), step);
  }
  pith_reducer_destroy(r);
  free(g);
}

TEST_WITHIN(ranks_choose_the_same_by_trial, 120) {
  ranks_run("inproc", 2, 0, choose_together, "auto,warmup=12,period=64");
  ranks_run("shm", 3, 0, choose_together, "layer0*=none;*=auto,warmup=12,period=64");
}

/* ---- Nothing is lost --------------------------------------------------------------------------------------------- */

/* Moves a layer along a list of specs, as a plan would, and adds up what has come out and what is still owed: both
 * together are what went in. */
static void move_along(pith_comm *comm, void *argument) {
  const char *const *specs = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  gradients *g = calloc(1, sizeof *g);
  pith_reducer *r = make(comm, "none");
  pith_reducer_layer *l = &r->layers[1];
  size_t n = size_of(1);
  double *given = calloc(n, sizeof *given), *got = calloc(n, sizeof *got);
  for (uint64_t step = 0; step < 48; step++) {
    if (step % 12 == 0) {
      const pith_codec *codec;
      CHECK_OK(pith__reducer_codec(r, specs[step / 12], &codec));
      CHECK_OK(pith__pending_move(l, codec, ranks));
      l->match.codec = codec;
    }
    take_step(r, rank, step, g);
    for (size_t i = 0; i < n; i++) {
      given[i] += gradient_of(rank, step, 1, i) / ranks;
      got[i] += g->layer[1][i];
    }
  }
  for (size_t i = 0; i < n; i++) { /* what this rank still owes to the mean */
    given[i] -= l->pending ? l->pending[i] / ranks : 0;
    given[i] -= l->state->residual ? ((const float *)l->state->residual)[i] / ranks : 0;
  }
  for (size_t i = 0; i < l->state->result_n; i++) {
    given[l->state->result_first + i] -= ((const float *)l->state->result)[l->state->result_first + i];
  }
  pith_span span = {given, n, PITH_F64};
  CHECK_OK(pith_allreduce(comm, (pith_cspan){given, n, PITH_F64}, span, PITH_SUM, NULL, NULL));
  for (size_t i = 0; i < n; i++) {
    CHECK_NEAR(got[i], given[i], 2e-3);
  }
  free(given);
  free(got);
  pith_reducer_destroy(r);
  free(g);
}

TEST(what_was_not_sent_survives_a_change) {
  static const char *const one[] = {"ef/topk:0.05", "ef/topk:0.2", "ef/powersgd:2", "ef/q:2"};
  static const char *const two[] = {"ef/q:2", "none", "ef/topk:0.02", "none"};
  static const char *const three[] = {"ef/topk:0.05", "none", "none", "none"};
  ranks_run("inproc", 2, 0, move_along, (void *)(uintptr_t)one);
  ranks_run("inproc", 3, 0, move_along, (void *)(uintptr_t)two);
  ranks_run("inproc", 2, 0, move_along, (void *)(uintptr_t)three);
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void resume_at(pith_comm *comm, const char *rules, uint64_t at) {
  int rank = pith_comm_rank(comm);
  gradients *a = calloc(1, sizeof *a), *b = calloc(1, sizeof *b);
  pith_reducer *one = make(comm, rules), *two = make(comm, rules);
  for (uint64_t step = 0; step < at; step++) {
    take_step(one, rank, step, a);
  }
  pith_out saved = {malloc(pith_reducer_save_size(one)), pith_reducer_save_size(one), 0};
  CHECK_OK(pith_reducer_save(one, &saved));
  ((uint8_t *)saved.data)[saved.size / 2] ^= 1;
  pith_status damaged = pith_reducer_load(two, (pith_bytes){saved.data, saved.size});
  CHECK(damaged == PITH_ERR_CORRUPT || damaged == PITH_ERR_STATE);
  CHECK(is_warming_up(two));
  ((uint8_t *)saved.data)[saved.size / 2] ^= 1;
  CHECK_STATUS(pith_reducer_load(two, (pith_bytes){saved.data, saved.size - 1}), PITH_ERR_CORRUPT);
  CHECK_OK(pith_reducer_load(two, (pith_bytes){saved.data, saved.size}));
  for (uint64_t step = at; step < at + 45; step++) {
    take_step(one, rank, step, a);
    take_step(two, rank, step, b);
    CHECK_EQ(hash_of(one, a), hash_of(two, b));
  }
  free(saved.data);
  pith_reducer_destroy(one);
  pith_reducer_destroy(two);
  free(a);
  free(b);
}

static void resume(pith_comm *comm, void *argument) {
#ifdef __SANITIZE_THREAD__ /* ten times slower, and the same threads wherever it is */
  static const uint64_t at[] = {3, 34};
#else
  static const uint64_t at[] = {1, 3, 4, 7, 25, 30, 33, 34, 35, 36};
#endif
  for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
    resume_at(comm, argument, at[i]);
  }
}

TEST_WITHIN(a_checkpoint_in_the_middle_of_a_period_resumes_bit_by_bit, 120) {
  ranks_run("inproc", 2, 0, resume, "lgreco:mix,budget=ef/topk:0.02,warmup=4,period=32");
  ranks_run("inproc", 2, 0, resume, "layer3*=ef/topk:0.1;*=lgreco:ef/powersgd:2,warmup=4,period=32");
}

/* ---- Slips ------------------------------------------------------------------------------------------------------- */

static void slip(pith_comm *comm, void *argument) {
  (void)argument;
  static const char *const bad[] = {"lgreco:q:99",   "auto,period=3", "lgreco:mix", "*=lgreco:q:4,alpha=-1",
                                    "a*=auto;*=q:4", "a*=auto",       "auto;q:4",   "lgreco:q:4,budget=none"};
  float x[64 * 64] = {0};
  pith_reducer *r = NULL;
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    pith_status status = pith_reducer_create(comm, bad[i], 1, &r);
    CHECK_MSG(status == PITH_ERR_SPEC || status == PITH_ERR_RANGE, "%s: %s", bad[i], pith_status_string(status));
    CHECK(r == NULL);
  }
  CHECK_OK(pith_reducer_create(comm, "auto", 1, &r));
  CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "a[0]", shapes[0], 2, PITH_F32, NULL}, NULL));
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("cannot name a layer");
  pith_reducer_destroy(r);
  r = make(comm, pith_comm_rank(comm) ? "lgreco:q:4" : "lgreco:q:4,period=64");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_MISMATCH);
  pith_reducer_destroy(r);
}

TEST(slips_are_told_before_the_first_step) { ranks_run("inproc", 2, 0, slip, NULL); }

static void stay_alone(pith_comm *comm, void *argument) {
  gradients *g = calloc(1, sizeof *g);
  pith_reducer *r = make(comm, argument);
  for (uint64_t step = 0; step < 50; step++) {
    take_step(r, 0, step, g);
    CHECK(!is_compressed(r));
    for (size_t i = 0; i < size_of(1); i++) {
      CHECK(g->layer[1][i] == gradient_of(0, step, 1, i));
    }
  }
  pith_reducer_destroy(r);
  free(g);
}

TEST(one_rank_loses_nothing) { ranks_run("inproc", 1, 0, stay_alone, "auto,warmup=4,period=32"); }

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static char written[64], asked[64];

static void write_statistics(pith_comm *comm, void *argument) {
  gradients *g = calloc(1, sizeof *g);
  pith_reducer *r = make(comm, argument);
  CHECK_STATUS(pith_reducer_profile(r, asked), PITH_ERR_STATE);
  for (uint64_t step = 0; step < 6; step++) {
    take_step(r, pith_comm_rank(comm), step, g);
  }
  if (pith_comm_rank(comm) == 1) {
    CHECK_OK(pith_reducer_profile(r, asked));
  }
  pith_reducer_destroy(r);
  free(g);
}

TEST(statistics_are_those_of_all_ranks) {
  pith_profile *profile[2];
  snprintf(written, sizeof written, "/tmp/pith-adapt-%d-a", (int)getpid());
  snprintf(asked, sizeof asked, "/tmp/pith-adapt-%d-b", (int)getpid());
  setenv("PITH_PROFILE", written, 1);
  ranks_run("inproc", 3, 0, write_statistics, "lgreco:q:4,warmup=4,period=32");
  CHECK_OK(pith_profile_load(written, &profile[0]));
  CHECK_OK(pith_profile_load(asked, &profile[1]));
  size_t count[2];
  double *values[2] = {pith_profile_values(profile[0], &count[0]), pith_profile_values(profile[1], &count[1])};
  CHECK_EQ(count[0], count[1]);
  CHECK_BYTES(values[0], values[1], count[0] * sizeof(double));
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  CHECK_OK(pith_profile_layer_get(profile[0], 0, &layer));
  CHECK_STR(layer.name, "layer0.weight");
  CHECK_EQ(layer.samples, 3); /* with so short a warm-up there is time for one of each rank */
  for (int i = 0; i < 2; i++) {
    pith_profile_destroy(profile[i]);
  }
  remove(written);
  remove(asked);
}

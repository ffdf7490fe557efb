/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adaptive specs of shards, and of reducers whose steps have several parts: plans come without anybody saying that a
 * step is over, all ranks change together, and nothing is lost on the way. In main memory and on a device
 * (tests/cuda/fake).
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "ranks.h"
#include "test.h"

enum { LAYERS = 3, MOST = 64 * 60, RANKS_MOST = 4, STEPS = 70, SEED = 7 };

static const size_t rows[LAYERS] = {40, 64, 30}, columns = 60; /* of a shard, or a layer */

static size_t size_of(size_t l) { return rows[l] * columns; }

static float gradient_of(int rank, uint64_t step, size_t l, size_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u + l * 40503u + step * 97u + (uint64_t)rank * 1299721u);
  h = (h ^ h >> 13) * 0x5bd1e995u;
  return (float)(sin((double)i * 0.01) * (double)(1 + l) + 0.3 * ((double)(h >> 16 & 0xfff) / 4096 - 0.5));
}

typedef struct trial {
  const char *spec;
  int cuda, sharded, ranks, changes;
} trial;

static pith_reducer *create(pith_comm *comm, const trial *t) {
  pith_reducer *r;
  pith_reducer_options options = {
      .size = sizeof options, .sharded = t->sharded, .cuda = t->cuda, .in_parts = !t->sharded};
  CHECK_OK(pith_reducer_create_with(comm, t->spec, SEED, &options, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    char name[16];
    snprintf(name, sizeof name, "layer%zu", l);
    pith_layer layer = {sizeof layer, name, (size_t[]){rows[l], columns}, 2, PITH_F32, NULL};
    /* The last is exact in every plan. */
    CHECK_OK(t->sharded ? pith_reducer_add_shards(r, &layer, l == 2 ? "none" : t->spec, NULL)
                        : pith_reducer_add(r, &layer, NULL));
  }
  return r;
}

typedef struct sums {
  double given[LAYERS][MOST * RANKS_MOST], arrived[LAYERS][MOST * RANKS_MOST];
} sums;

/* Layer 0 by itself, then the others in one part. `s`: what is to arrive here, and what does. */
static void take_step(pith_comm *comm, pith_reducer *r, const trial *t, uint64_t step, sums *s) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  size_t owners = t->sharded ? (size_t)ranks : 1, all = 0, own = 0;
  float *x = calloc((size_t)LAYERS * MOST * RANKS_MOST, sizeof *x), *y = calloc((size_t)LAYERS * MOST, sizeof *y);
  static const size_t first[] = {0, 1, LAYERS};
  for (size_t part = 0; part < 2; part++, all = own = 0) {
    size_t numbers[LAYERS], count = 0;
    for (size_t l = first[part]; l < first[part + 1]; l++) {
      numbers[count++] = l;
      own += size_of(l);
    }
    for (size_t o = 0; o < owners; o++) {
      for (size_t k = 0; k < count; k++) {
        size_t n = size_of(numbers[k]), at = t->sharded ? o * n : 0;
        for (size_t i = 0; i < n; i++) {
          x[all + i] = gradient_of(rank, step, numbers[k], at + i);
          for (int p = 0; p < ranks && o == (t->sharded ? (size_t)rank : 0); p++) {
            s->given[numbers[k]][i] += (double)gradient_of(p, step, numbers[k], at + i) / ranks;
          }
        }
        CHECK_OK(t->sharded ? PITH_OK : pith_reducer_start(r, numbers[k], x + all));
        all += n;
      }
    }
    CHECK_OK(t->sharded ? pith_reducer_reduce_scatter(r, numbers, count, (pith_cspan){x, all, PITH_F32},
                                                      (pith_span){y, own, PITH_F32}, PITH_MEAN)
                        : pith_reducer_finish(r));
    const float *got = t->sharded ? y : x;
    for (size_t k = 0; k < count; got += size_of(numbers[k++])) {
      for (size_t i = 0; i < size_of(numbers[k]); i++) {
        s->arrived[numbers[k]][i] += (double)got[i];
      }
    }
  }
  free(x);
  free(y);
}

/* Whether there was a plan, and how often specs have changed. */
typedef struct seen {
  int plans, changes;
  char spec[LAYERS][64];
} seen;

static uint64_t hash_of(const pith_reducer *r, const trial *t, seen *plan) {
  uint64_t hash = 1;
  for (size_t l = 0; l < LAYERS; l++) {
    pith_layer_stats stats = PITH_LAYER_STATS_INIT;
    CHECK_OK(pith_reducer_layer_stats(r, l, &stats));
    hash = pith__hash64(stats.spec, strlen(stats.spec), hash);
    hash = pith__hash64(stats.reason, strlen(stats.reason), hash);
    plan->plans += l == 0 && strstr(stats.reason, "plan of step") != NULL;
    plan->changes += *plan->spec[l] && strcmp(plan->spec[l], stats.spec) != 0;
    snprintf(plan->spec[l], sizeof plan->spec[l], "%s", stats.spec);
    CHECK_MSG(l < 2 || !t->sharded || strcmp(stats.spec, "none") == 0, "layer 2 has %s", stats.spec);
  }
  return hash;
}

/* What arrived and what is owed is what was given. */
static void check_sums(pith_comm *comm, pith_reducer *r, const trial *t, const sums *s) {
  size_t ranks = (size_t)pith_comm_size(comm), rank = (size_t)pith_comm_rank(comm), owners = t->sharded ? ranks : 1;
  float *owed = malloc(MOST * RANKS_MOST * sizeof *owed);
  for (size_t l = 0; l < LAYERS; l++) {
    size_t n = size_of(l), all = n * owners;
    memset(owed, 0, all * sizeof *owed);
    CHECK_OK(pith_reducer_owed(r, l, owed, NULL));
    CHECK_OK(pith_allreduce(comm, (pith_cspan){owed, all, PITH_F32}, (pith_span){owed, all, PITH_F32}, PITH_MEAN, NULL,
                            NULL));
    for (size_t i = 0; i < n; i++) {
      double missing = s->given[l][i] - s->arrived[l][i] - (double)owed[(t->sharded ? rank * n : 0) + i];
      CHECK_MSG(fabs(missing) < 2e-3, "%s: value %zu of layer %zu lacks %g of %g", t->spec, i, l, missing,
                s->given[l][i]);
    }
  }
  free(owed);
}

static pith_reducer *resumed(pith_comm *comm, const trial *t, const pith_reducer *r) {
  pith_out out = {.capacity = pith_reducer_save_size(r)};
  out.data = malloc(out.capacity);
  CHECK_OK(pith_reducer_save(r, &out));
  pith_reducer *made = create(comm, t);
  CHECK_STATUS(pith_reducer_load(made, (pith_bytes){out.data, out.size - 1}), PITH_ERR_CORRUPT);
  CHECK_OK(pith_reducer_load(made, (pith_bytes){out.data, out.size}));
  free(out.data);
  return made;
}

static void change(pith_comm *comm, void *argument) {
  const trial *t = argument;
  pith_reducer *r = create(comm, t);
  sums *s = calloc(1, sizeof *s);
  seen plan = {0};
  int ranks = pith_comm_size(comm);
  for (uint64_t step = 0; step < STEPS; step++) {
    uint64_t mine, all[RANKS_MOST];
    take_step(comm, r, t, step, s);
    mine = hash_of(r, t, &plan);
    CHECK_OK(pith_all_gather(comm, (pith_cspan){&mine, 1, PITH_I64}, (pith_span){all, (size_t)ranks, PITH_I64}, NULL,
                             NULL, NULL));
    for (int p = 0; p < ranks; p++) {
      CHECK_MSG(all[p] == all[0], "rank %d differs from rank 0 in step %d", p, (int)step);
    }
    if (step % 16 == 7) { /* also while something is pending */
      pith_reducer *again = resumed(comm, t, r);
      pith_reducer_destroy(r);
      r = again;
    }
  }
  CHECK_MSG(plan.plans, "%s: no plan in %d steps", t->spec, STEPS);
  CHECK_MSG(plan.changes || !t->changes, "%s: no spec changes in %d steps", t->spec, STEPS);
  if (strstr(t->spec, "ef/")) { /* what specs without a memory lose is gone */
    check_sums(comm, r, t, s);
  }
  pith_reducer_destroy(r);
  free(s);
}

TEST_WITHIN(plans_change_shards_and_lose_nothing, 120) {
  static const trial trials[] = {{"lgreco:ef/topk:0.1,warmup=4,period=32", 0, 1, 3, 0},
                                 {"lgreco:mix,budget=q:4,warmup=4,period=32", 0, 1, 2, 1},
                                 {"lgreco:ef/topk:0.1,warmup=4,period=32", 1, 1, 2, 0},
                                 {"lgreco:ef/topk:0.1,warmup=4,period=32", 0, 0, 2, 0},
                                 {"lgreco:ef/topk:0.1,warmup=4,period=32", 1, 0, 3, 0}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
    ranks_run("inproc", trials[i].ranks, 0, change, (void *)(uintptr_t)&trials[i]);
  }
}

/* The default of sharded models measures, tries, and settles. */
static void settle(pith_comm *comm, void *argument) {
  const trial *t = argument;
  pith_reducer *r = create(comm, t);
  sums *s = calloc(1, sizeof *s);
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  int tried = 0;
  for (uint64_t step = 0; step < 3000 && !(tried && strstr(stats.reason, "since step")); step++) {
    take_step(comm, r, t, step, s);
    CHECK_OK(pith_reducer_layer_stats(r, 0, &stats));
    tried |= strstr(stats.reason, "trial of") != NULL;
  }
  CHECK_MSG(tried && strstr(stats.reason, "since step"), "%s: %s", t->spec, stats.reason);
  pith_reducer_destroy(r);
  free(s);
}

TEST_WITHIN(auto_settles_on_shards, 120) {
  static const trial trials[] = {{"auto,budget=q:4", 0, 1, 2, 0}, {"auto,budget=q:4", 1, 1, 2, 0}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
    ranks_run("inproc", trials[i].ranks, 0, settle, (void *)(uintptr_t)&trials[i]);
  }
}

static void slip(pith_comm *comm, void *argument) {
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1};
  pith_layer layer = {sizeof layer, "a", (size_t[]){8, 8}, 2, PITH_F32, NULL};
  float values[64 * RANKS_MOST] = {0};
  size_t ranks = (size_t)pith_comm_size(comm);
  (void)argument;
  CHECK_OK(pith_reducer_create_with(comm, "lgreco:q:4", SEED, &options, &r));
  CHECK_STATUS(pith_reducer_add_shards(r, &layer, "lgreco:q:5", NULL), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("that of the reducer lgreco:q:4");
  CHECK_OK(pith_reducer_add_shards(r, &layer, "lgreco:q:4", NULL));
  CHECK_STATUS(pith_reducer_all_gather(r, (size_t[]){0}, 1, (pith_cspan){values, 64, PITH_F32},
                                       (pith_span){values, 64 * ranks, PITH_F32}),
               PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("is for gradients");
  pith_reducer_destroy(r);
}

TEST(slips_are_told) { ranks_run("inproc", 2, 0, slip, NULL); }

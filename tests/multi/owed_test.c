/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What layers owe goes to other numbers of ranks: whatever they are, and however often they change, the sum of all
 * means and what is still owed is the sum of all mean gradients. Whole gradients and shards, in main memory and on a
 * device (tests/cuda/fake).
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "laws.h"
#include "ranks.h"
#include "test.h"

enum { LAYERS = 2, VALUES = 2400, ROWS = 40, LEG = 5, LEGS = 5, RANKS_MOST = 8, SEED = 3 };

/* From one number of ranks to the next. */
static struct {
  const char *spec[LEGS]; /* NULL: as before */
  int ranks[LEGS];
  int sharded[LEGS];
  int cuda, leg;
  size_t steps;
  float owed[LAYERS][VALUES]; /* the mean over ranks */
  double given[LAYERS][VALUES], arrived[LAYERS][VALUES];
} run;

static const char *spec_of(int leg) { return run.spec[leg] || leg == 0 ? run.spec[leg] : spec_of(leg - 1); }

static float gradient_of(int rank, size_t step, size_t l, size_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u + l * 40503u + step * 97u + (uint64_t)rank * 1299721u);
  h = (h ^ h >> 13) * 0x5bd1e995u;
  return (float)(h >> 16 & 0xfff) / 4096.0f - 0.4f;
}

static pith_reducer *create(pith_comm *comm) {
  pith_reducer *r;
  int sharded = run.sharded[run.leg];
  pith_reducer_options options = {.size = sizeof options, .sharded = sharded, .cuda = run.cuda};
  const char *spec = spec_of(run.leg);
  CHECK_OK(pith_reducer_create_with(comm, sharded ? "none" : spec, SEED, &options, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    size_t rows = sharded ? ROWS / (size_t)pith_comm_size(comm) : ROWS, shape[] = {rows, VALUES / ROWS};
    pith_layer layer = {sizeof layer, l ? "b" : "a", shape, 2, PITH_F32, NULL};
    CHECK_OK(sharded ? pith_reducer_add_shards(r, &layer, spec, NULL) : pith_reducer_add(r, &layer, NULL));
  }
  return r;
}

/* One step; rank 0 adds up what arrives of whole layers, every rank its own shard. */
static void take_step(pith_comm *comm, pith_reducer *r, size_t step) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm), sharded = run.sharded[run.leg];
  static _Thread_local float x[LAYERS][VALUES], own[VALUES];
  size_t n = sharded ? VALUES / (size_t)ranks : VALUES, first = sharded ? n * (size_t)rank : 0;
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t i = 0; i < VALUES; i++) {
      x[l][i] = gradient_of(rank, step, l, i);
      for (int p = 0; p < ranks && rank == 0; p++) {
        run.given[l][i] += (double)gradient_of(p, step, l, i) / ranks;
      }
    }
    CHECK_OK(sharded ? pith_reducer_reduce_scatter(r, &l, 1, (pith_cspan){x[l], VALUES, PITH_F32},
                                                   (pith_span){own, n, PITH_F32}, PITH_MEAN)
                     : pith_reducer_start(r, l, x[l]));
    for (size_t i = 0; i < n && sharded; i++) {
      run.arrived[l][first + i] += (double)own[i];
    }
  }
  CHECK_OK(sharded ? PITH_OK : pith_reducer_finish(r));
  for (size_t k = 0; k < (size_t)LAYERS * VALUES && !sharded && rank == 0; k++) {
    run.arrived[k / VALUES][k % VALUES] += (double)x[k / VALUES][k % VALUES];
  }
}

static void run_leg(pith_comm *comm, void *argument) {
  pith_reducer *r = create(comm);
  (void)argument;
  for (size_t l = 0; l < LAYERS; l++) {
    CHECK_OK(run.steps ? pith_reducer_owe(r, l, run.owed[l], NULL) : PITH_OK);
  }
  CHECK_OK(pith_reducer_resume(r, run.steps));
  CHECK_OK(pith_barrier(comm, NULL));
  for (size_t step = 0; step < LEG; step++) {
    take_step(comm, r, run.steps + step);
  }
  for (size_t l = 0; l < LAYERS; l++) {
    float mean[VALUES] = {0};
    CHECK_OK(pith_reducer_owed(r, l, mean, NULL));
    CHECK_OK(pith_allreduce(comm, (pith_cspan){mean, VALUES, PITH_F32}, (pith_span){mean, VALUES, PITH_F32}, PITH_MEAN,
                            NULL, NULL));
    if (pith_comm_rank(comm) == 0) {
      memcpy(run.owed[l], mean, sizeof mean);
    }
  }
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  CHECK_OK(pith_reducer_layer_stats(r, 0, &stats));
  CHECK_EQ(stats.steps, (uint64_t)(run.steps + LEG));
  pith_reducer_destroy(r);
}

/* Residuals in fewer bits are rounded in every step. */
static double tolerance_of(const char *spec) { return strstr(spec, "store=") ? 0.05 : 2e-4; }

static void check_sums(const char *what, int leg) {
  double most = 0;
  for (size_t l = 0; l < LAYERS; l++) {
    for (size_t i = 0; i < VALUES; i++) {
      double owed = (double)run.owed[l][i], missing = run.given[l][i] - run.arrived[l][i] - owed;
      most = fmax(most, fabs(owed));
      CHECK_MSG(fabs(missing) < tolerance_of(what), "%s: after leg %d value %zu of layer %zu lacks %g of %g", what, leg,
                i, l, missing, run.given[l][i]);
    }
  }
  CHECK_MSG(most > 1e-3, "%s: after leg %d nothing is owed, so that nothing was tested", what, leg);
}

static void check_run(const char *first, const char *later, const int sharded[LEGS], int cuda) {
  static const int ranks[LEGS] = {4, 2, 8, 1, 4};
  memset(&run, 0, sizeof run);
  run.spec[0] = first;
  run.spec[1] = later;
  run.cuda = cuda;
  for (int leg = 0; leg < LEGS; leg++) {
    run.ranks[leg] = ranks[leg];
    run.sharded[leg] = sharded[leg];
  }
  for (run.leg = 0; run.leg < LEGS; run.leg++, run.steps += LEG) {
    ranks_run("inproc", run.ranks[run.leg], 0, run_leg, NULL);
    check_sums(spec_of(run.leg), run.leg);
  }
}

static const int whole[LEGS] = {0}, shards[LEGS] = {1, 1, 1, 1, 1}, mixed[LEGS] = {1, 0, 1, 0, 0};

TEST_WITHIN(what_is_owed_survives_other_numbers_of_ranks, 120) {
  static const char *const specs[] = {"ef/q:2",         "ef/topk:0.05",           "ef/powersgd:2",
                                      "ef,store=8/q:2", "ef,store=bf16/topk:0.1", "ef/randomk:0.3"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    check_run(specs[i], NULL, whole, 0);
    check_run(specs[i], NULL, shards, 0);
    check_run(specs[i], NULL, mixed, 0);
  }
}

TEST_WITHIN(and_on_a_device, 120) {
  static const char *const specs[] = {"ef/q:2", "ef/topk:0.05", "ef,store=bf16/q:2"};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    check_run(specs[i], NULL, whole, 1);
    check_run(specs[i], NULL, shards, 1);
  }
}

/* Released over the next steps, so some of it is still owed after as few as these. */
TEST_WITHIN(specs_without_a_memory_release_what_is_owed, 120) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (int cuda = 0; cuda < 2; cuda++) {
    check_run("ef/topk:0.02", "none", whole, cuda);
    check_run("ef/topk:0.02", "none", shards, cuda);
  }
}

/* ---- Momenta, and slips ------------------------------------------------------------------------------------------ */

static void check_momentum(pith_comm *comm, void *argument) {
  pith_reducer *a, *b;
  float x[VALUES], momentum[VALUES] = {0}, again[VALUES] = {0};
  size_t shape[] = {ROWS, VALUES / ROWS};
  pith_layer layer = {sizeof layer, "a", shape, 2, PITH_F32, NULL};
  (void)argument;
  CHECK_OK(pith_reducer_create(comm, "signum", SEED, &a));
  CHECK_OK(pith_reducer_create(comm, "signum", SEED, &b));
  CHECK_OK(pith_reducer_add(a, &layer, NULL));
  CHECK_OK(pith_reducer_add(b, &layer, NULL));
  for (size_t i = 0; i < VALUES; i++) {
    x[i] = gradient_of(pith_comm_rank(comm), 0, 0, i);
  }
  CHECK_OK(pith_reducer_start(a, 0, x));
  CHECK_STATUS(pith_reducer_owed(a, 0, x, NULL), PITH_ERR_STATE);
  CHECK_OK(pith_reducer_finish(a));
  CHECK_OK(pith_reducer_owed(a, 0, NULL, momentum));
  CHECK(momentum[7] != 0);
  CHECK_OK(pith_reducer_owe(b, 0, NULL, momentum));
  CHECK_OK(pith_reducer_owed(b, 0, NULL, again));
  CHECK(!memcmp(momentum, again, sizeof momentum));
  CHECK_STATUS(pith_reducer_owe(b, 1, NULL, momentum), PITH_ERR_ARGUMENT);
  pith_reducer_destroy(a);
  pith_reducer_destroy(b);
  CHECK_OK(pith_reducer_create(comm, "moment/onebit", SEED, &a));
  CHECK_OK(pith_reducer_add(a, &layer, NULL));
  CHECK_STATUS(pith_reducer_owed(a, 0, x, NULL), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("optimizer's momentum");
  pith_reducer_destroy(a);
}

TEST(momenta_go_on_and_those_of_optimizers_are_refused) { ranks_run("inproc", 2, 0, check_momentum, NULL); }

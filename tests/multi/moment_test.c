/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Momentum in place of gradients: what is not sent of it is kept, on all ranks together; replicas stay the same to the
 * bit, with and without local steps; checkpoints go on; slips are told.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/hash.h"
#include "codec/codec.h"
#include "memory/memory.h"
#include "ranks.h"
#include "reducer/reducer.h"
#include "test.h"
#include "wire.h"

#define ROWS 40
#define COLUMNS 60
#define VALUES (ROWS * COLUMNS)
#define SEED 5

static const double beta = 0.9;

typedef struct run {
  const char *spec;
  int steps, every;
  pith_dtype dtype;
  uint32_t carrier; /* 1: over a carrier instead of the comm */
} run;

/* ---- Gradients with a part that all ranks have in common --------------------------------------------------------- */

static float noise(uint64_t seed, size_t i) {
  uint64_t h = pith__hash64(&i, sizeof i, seed);
  return (float)((double)(h >> 40) / (double)(1 << 24) - 0.5);
}

static float gradient_at(int rank, uint64_t step, size_t i) {
  return 0.5f * noise(7, i) + 0.2f * noise(1000 + step, i) + 0.4f * noise(100000 + step * 64 + (uint64_t)rank, i);
}

/* ---- A model of one layer, and what an optimizer keeps of it ----------------------------------------------------- */

typedef struct model {
  pith_comm *comm;
  wire w;
  pith_reducer *reducer;
  pith_dtype dtype;
  int rank, ranks;
  uint64_t step;
  float gradient[VALUES], moment[VALUES], variance[VALUES], parameter[VALUES], start[VALUES]; /* of any type */
} model;

static pith_span span_of(const model *m, float *values) { return (pith_span){values, VALUES, m->dtype}; }

static float value(const model *m, const float *values, size_t i) {
  return pith__span_get((pith_cspan){values, VALUES, m->dtype}, i);
}

static pith_reducer *make_reducer(model *m, const char *spec, uint32_t over_carrier) {
  size_t shape[] = {ROWS, COLUMNS}, index;
  pith_reducer *r;
  if (over_carrier) {
    m->w = (wire){.comm = m->comm};
    pith_carrier carrier = carrier_of(&m->w, 0);
    CHECK_OK(pith_reducer_create_over(&carrier, spec, SEED, NULL, &r));
  } else {
    CHECK_OK(pith_reducer_create(m->comm, spec, SEED, &r));
  }
  CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "layer", shape, 2, m->dtype, NULL}, &index));
  CHECK_EQ(index, 0);
  return r;
}

static model *make_model(pith_comm *comm, const run *given) {
  model *m = calloc(1, sizeof *m);
  m->comm = comm;
  m->dtype = given->dtype;
  m->rank = pith_comm_rank(comm);
  m->ranks = pith_comm_size(comm);
  m->reducer = make_reducer(m, given->spec, given->carrier);
  for (size_t i = 0; i < VALUES; i++) {
    pith__span_put(span_of(m, m->variance), i, 0.01f + noise(3, i) * noise(3, i));
    pith__span_put(span_of(m, m->parameter), i, noise(4, i));
    m->start[i] = value(m, m->parameter, i);
  }
  return m;
}

static void destroy_model(model *m) {
  pith_reducer_destroy(m->reducer);
  free(m);
}

static void draw_gradient(model *m) {
  for (size_t i = 0; i < VALUES; i++) {
    pith__span_put(span_of(m, m->gradient), i, gradient_at(m->rank, m->step, i));
  }
}

static pith_update update_of(model *m) {
  pith_update u = PITH_UPDATE_INIT;
  u.gradient = m->gradient;
  u.moment = m->moment;
  u.variance = m->variance;
  u.parameter = m->parameter;
  u.rate = 1e-2f;
  u.decay = 0.999f;
  u.root = 1.5f;
  u.epsilon = 1e-8f;
  return u;
}

/* The first momentum, which is 0, joins the residual: the reducer now knows of an optimizer. */
static void fold_first(model *m) {
  pith_update u = PITH_UPDATE_INIT;
  u.moment = m->moment;
  u.keep = 1;
  u.fold = (float)beta;
  CHECK_OK(pith_reducer_update(m->reducer, &u, 1, NULL));
}

/* The gradient becomes the mean of what was sent. */
static void exchange(model *m) {
  CHECK_OK(pith_reducer_start(m->reducer, 0, m->gradient));
  CHECK_OK(pith_reducer_finish(m->reducer));
}

static void step_together(model *m) {
  pith_update u = update_of(m);
  draw_gradient(m);
  exchange(m);
  u.take = 1;
  u.fold = (float)beta;
  CHECK_OK(pith_reducer_update(m->reducer, &u, 1, NULL));
  m->step++;
}

/* One of `every` steps that are exchanged together. The rate is the same in all, so residuals stay in its units. */
static void step_locally(model *m, int every) {
  int place = (int)(m->step % (uint64_t)every);
  pith_update u = update_of(m);
  draw_gradient(m);
  if (place + 1 < every) {
    u.keep = (float)beta;
    u.take = (float)(1 - beta);
    u.fold = place + 2 == every ? (float)(1 + beta) : 1.0f;
  } else {
    exchange(m);
    u.take = 1 / (float)every;
    u.rate *= (float)every;
    u.decay = u.decay * u.decay * u.decay * u.decay;
    u.start = m->start;
  }
  CHECK_OK(pith_reducer_update(m->reducer, &u, 1, NULL));
  m->step++;
}

/* ---- What ranks have together ------------------------------------------------------------------------------------ */

static void add_up(model *m, double *sums) {
  CHECK_OK(pith_allreduce(m->comm, (pith_cspan){sums, VALUES, PITH_F64}, (pith_span){sums, VALUES, PITH_F64}, PITH_SUM,
                          NULL, NULL));
}

/* The mean over ranks of what was not sent, and what results lost: in the units of a mean. */
static void lost_together(model *m, double *lost) {
  const pith_state *s = m->reducer->layers[0].state;
  float *residual;
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  CHECK(residual == s->residual && residual);
  for (size_t i = 0; i < VALUES; i++) {
    int owned = s->result && i >= s->result_first && i < s->result_first + s->result_n;
    lost[i] = residual[i] / (double)m->ranks + (owned ? (double)((const float *)s->result)[i - s->result_base] : 0.0);
  }
  add_up(m, lost);
}

static void check_alike(model *m) {
  uint64_t hash = pith__hash64(m->parameter, VALUES * pith_dtype_size(m->dtype), 0);
  hash = pith__hash64(m->moment, VALUES * pith_dtype_size(m->dtype), hash) >> 1;
  int64_t most = (int64_t)hash, least = most;
  CHECK_OK(
      pith_allreduce(m->comm, (pith_cspan){&most, 1, PITH_I64}, (pith_span){&most, 1, PITH_I64}, PITH_MAX, NULL, NULL));
  CHECK_OK(pith_allreduce(m->comm, (pith_cspan){&least, 1, PITH_I64}, (pith_span){&least, 1, PITH_I64}, PITH_MIN, NULL,
                          NULL));
  CHECK_MSG(most == least, "parameters of ranks differ after step %llu", (unsigned long long)m->step);
}

/* ---- Conservation ------------------------------------------------------------------------------------------------ */

/* With E, what all ranks together have lost so far: M = beta · M + (1 − beta) · mean of gradients + E before − E now.
 * So the difference from the exact momentum is known, at any step, from what ranks keep. */
static void conserve(pith_comm *comm, void *argument) {
  const run *given = argument;
  model *m = make_model(comm, given);
  double *exact = calloc(VALUES, sizeof *exact), *difference = calloc(VALUES, sizeof *exact),
         *before = calloc(VALUES, sizeof *exact), *now = calloc(VALUES, sizeof *exact),
         *mean = calloc(VALUES, sizeof *exact), most = 0;
  fold_first(m);
  for (int step = 0; step < given->steps; step++) {
    draw_gradient(m);
    for (size_t i = 0; i < VALUES; i++) {
      mean[i] = (double)value(m, m->gradient, i) / m->ranks;
    }
    add_up(m, mean);
    exchange(m);
    lost_together(m, now);
    for (size_t i = 0; i < VALUES; i++) {
      exact[i] = beta * exact[i] + (1 - beta) * mean[i];
      difference[i] = beta * difference[i] + before[i] - now[i];
      double sent = value(m, m->gradient, i);
      most = fmax(most, fabs(sent - exact[i]));
      CHECK_NEAR(sent - exact[i], difference[i], m->dtype == PITH_F32 ? 4e-6 : 4e-3);
    }
    pith_update u = update_of(m);
    u.take = 1;
    u.fold = (float)beta;
    CHECK_OK(pith_reducer_update(m->reducer, &u, 1, NULL));
    memcpy(before, now, VALUES * sizeof *now);
    m->step++;
    check_alike(m);
  }
  CHECK(most > 1e-3); /* else nothing was lost, and nothing proved */
  free(exact), free(difference), free(before), free(now), free(mean);
  destroy_model(m);
}

static const char *const specs[] = {"*=moment/onebit",     "*=moment/topk:0.05",       "*=moment/q:2",
                                    "*=moment/powersgd:4", "*=moment/hadamard/q:2",    "*=moment/q:2,encode=once",
                                    "*=moment/gq:4",       "*=moment,beta=0.9/onebit", "*=moment/randomk:0.1"};
enum { SPECS = sizeof specs / sizeof *specs };

TEST(what_is_not_sent_of_momentum_is_kept) {
  for (size_t i = 0; i < SPECS; i++) {
    for (int ranks = 2; ranks <= 4; ranks++) {
      for (uint32_t carrier = 0; carrier < 2; carrier++) {
        run given = {.spec = specs[i], .steps = 12, .carrier = carrier};
        ranks_run("inproc", ranks, 0, conserve, &given);
      }
    }
  }
}

TEST(the_same_holds_by_every_algorithm) {
  static const char *const algorithms[] = {"sra", "ring", "tree", "gather"};
  for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
    setenv("PITH_ALGO", algorithms[a], 1);
    for (size_t i = 0; i < 3; i++) {
      pith_codec *codec;
      CHECK_OK(pith_codec_create(specs[i] + 2, &codec));
      run given = {.spec = specs[i], .steps = 6};
      if (pith_algorithm_suits(algorithms[a], codec) == PITH_OK) {
        ranks_run("inproc", 4, 256, conserve, &given);
      }
      pith_codec_destroy(codec);
    }
  }
  unsetenv("PITH_ALGO");
  run given = {.spec = specs[0], .steps = 6};
  ranks_run_hosts("inproc", 4, 2, 0, NULL, conserve, &given);
}

TEST(halves_lose_only_what_their_type_cannot_hold) {
  for (size_t i = 0; i < 4; i++) {
    run given = {.spec = specs[i], .steps = 8, .dtype = PITH_BF16};
    ranks_run("inproc", 3, 0, conserve, &given);
    given.dtype = PITH_F16;
    ranks_run("inproc", 2, 0, conserve, &given);
  }
}

/* ---- The formulas, in f64 ---------------------------------------------------------------------------------------- */

/* What a rank sends of p, and what decoding makes of it. */
static void encode_alone(const pith_codec *codec, int rank, uint64_t step, const float *p, float *decoded, int ranks) {
  pith_ctx ctx = PITH_CTX_INIT;
  pith_out out = {malloc(pith_codec_bound(codec, VALUES)), pith_codec_bound(codec, VALUES), 0};
  ctx.seed = SEED, ctx.step = step, ctx.layer = pith_layer_number("layer"), ctx.rank = (uint32_t)rank;
  ctx.ranks = (uint32_t)ranks;
  CHECK_OK(pith_encode(codec, NULL, (pith_cspan){p, VALUES, PITH_F32}, &out, &ctx));
  CHECK_OK(
      pith_decode(codec, (pith_bytes){out.data, out.size}, (pith_span){decoded, VALUES, PITH_F32}, PITH_SET, &ctx));
  free(out.data);
}

/* All ranks, by one: e, M and x as the formulas have them. */
static void follow(pith_comm *comm, void *argument) {
  const run *given = argument;
  model *m = make_model(comm, given);
  pith_codec *codec;
  CHECK_OK(pith_codec_create(strchr(given->spec, '/') + 1, &codec));
  float *p = malloc(VALUES * sizeof *p), *decoded = malloc(VALUES * sizeof *p);
  double *e = calloc((size_t)m->ranks * VALUES, sizeof *e), *moment = calloc(VALUES, sizeof *e),
         *sum = calloc(VALUES, sizeof *e), *x = calloc(VALUES, sizeof *e);
  for (size_t i = 0; i < VALUES; i++) {
    x[i] = m->parameter[i];
  }
  fold_first(m);
  for (int step = 0; step < given->steps; step++) {
    pith_update u = update_of(m);
    step_together(m);
    memset(sum, 0, VALUES * sizeof *sum);
    for (int rank = 0; rank < m->ranks; rank++) {
      for (size_t i = 0; i < VALUES; i++) {
        p[i] = (float)(e[(size_t)rank * VALUES + i] + beta * moment[i] +
                       (1 - beta) * (double)gradient_at(rank, (uint64_t)step, i));
      }
      encode_alone(codec, rank, (uint64_t)step, p, decoded, m->ranks);
      for (size_t i = 0; i < VALUES; i++) {
        e[(size_t)rank * VALUES + i] = (double)p[i] - decoded[i];
        sum[i] += decoded[i];
      }
    }
    size_t off = 0;
    for (size_t i = 0; i < VALUES; i++) {
      moment[i] = sum[i] / m->ranks;
      x[i] = u.decay * x[i] - u.rate * moment[i] / (u.root * sqrt(m->variance[i]) + u.epsilon);
      off += fabs(m->moment[i] - moment[i]) > 1e-5 || fabs(m->parameter[i] - x[i]) > 1e-5;
    }
    CHECK_MSG(off <= VALUES / 100, "%zu of %d values are not those of the formulas in step %d", off, VALUES, step);
  }
  free(p), free(decoded), free(e), free(moment), free(sum), free(x);
  pith_codec_destroy(codec);
  destroy_model(m);
}

TEST(momentum_and_parameters_are_those_of_the_formulas) {
  static const char *const once[] = {"*=moment/signmean,encode=once", "*=moment/topk:0.05", "*=moment/q:2,encode=once"};
  for (size_t i = 0; i < sizeof once / sizeof *once; i++) {
    for (int ranks = 2; ranks <= 4; ranks++) {
      run given = {.spec = once[i], .steps = 6};
      ranks_run("inproc", ranks, 0, follow, &given);
    }
  }
}

/* ---- Local steps ------------------------------------------------------------------------------------------------- */

/* In a round of `every` steps all ranks make U = mean of their own sums of moments, but for what was lost before and is
 * lost now. */
static void take_rounds(pith_comm *comm, void *argument) {
  const run *given = argument;
  model *m = make_model(comm, given);
  double *own = calloc(VALUES, sizeof *own), *sum = calloc(VALUES, sizeof *own), *before = calloc(VALUES, sizeof *own),
         *now = calloc(VALUES, sizeof *own);
  fold_first(m);
  for (int round = 0; round < given->steps; round++) {
    for (size_t i = 0; i < VALUES; i++) {
      own[i] = value(m, m->moment, i);
      sum[i] = 0;
    }
    for (int place = 0; place < given->every; place++) {
      for (size_t i = 0; i < VALUES; i++) {
        own[i] = beta * own[i] + (1 - beta) * (double)gradient_at(m->rank, m->step, i);
        sum[i] += own[i] / m->ranks;
      }
      step_locally(m, given->every);
    }
    add_up(m, sum);
    lost_together(m, now);
    for (size_t i = 0; i < VALUES && m->dtype == PITH_F32; i++) {
      CHECK_NEAR(m->moment[i] * (double)given->every, sum[i] + before[i] - now[i], 2e-5);
    }
    memcpy(before, now, VALUES * sizeof *now);
    check_alike(m);
  }
  free(own), free(sum), free(before), free(now);
  destroy_model(m);
}

TEST(ranks_are_alike_after_local_steps) {
  for (size_t i = 0; i < 4; i++) {
    run given = {.spec = specs[i], .steps = 4, .every = 4};
    ranks_run("inproc", 3, 0, take_rounds, &given);
    given.dtype = PITH_BF16;
    given.carrier = 1;
    ranks_run("inproc", 2, 0, take_rounds, &given);
  }
}

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

/* Many layers of many sizes, by a pool of threads and without. */
static void update_in_threads(pith_comm *comm, void *argument) {
  (void)argument;
  enum { COUNT = 7 };
  static const size_t sizes[COUNT] = {1, 100000, 17, 70001, 4096, 30000, 3};
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, "none", 0, &r));
  pith_update updates[COUNT];
  float *x[COUNT], *expected[COUNT];
  for (size_t l = 0; l < COUNT; l++) {
    char name[16];
    snprintf(name, sizeof name, "%zu", l);
    CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), name, &sizes[l], 1, PITH_F32, NULL}, NULL));
    x[l] = malloc(2 * sizes[l] * sizeof(float));
    expected[l] = x[l] + sizes[l];
    for (size_t i = 0; i < sizes[l]; i++) {
      x[l][i] = noise(l, i);
      expected[l][i] = 0.5f * x[l][i] - 0.25f * (2 * x[l][i]);
    }
    updates[l] = (pith_update)PITH_UPDATE_INIT;
    updates[l].index = l, updates[l].gradient = x[l], updates[l].parameter = x[l];
    updates[l].take = 2, updates[l].decay = 0.5f, updates[l].rate = 0.25f;
  }
  CHECK_OK(pith_reducer_update(r, updates, COUNT, NULL));
  for (size_t l = 0; l < COUNT; l++) {
    CHECK_BYTES(x[l], expected[l], sizes[l] * sizeof(float));
    free(x[l]);
  }
  pith_reducer_destroy(r);
}

TEST(threads_update_every_value_once) {
  setenv("PITH_THREADS", "3", 1);
  ranks_run("inproc", 2, 0, update_in_threads, NULL);
  unsetenv("PITH_THREADS");
  ranks_run("inproc", 1, 0, update_in_threads, NULL);
}

/* ---- Residuals in fewer bits ------------------------------------------------------------------------------------- */

/* Copies of the residuals of layers of several sizes after some updates, one after another. */
enum { PACKED_VALUES = 150000 };

static void update_packed(pith_comm *comm, void *argument) {
  static const size_t sizes[] = {70001, 255, 60000, 1, 513};
  static const char *const stores[] = {"moment,store=8/q:4", "moment,store=bf16/q:4", "moment,store=8/topk:0.1",
                                       "moment,store=8/onebit", "moment/onebit"};
  enum { COUNT = sizeof sizes / sizeof *sizes };
  float *to = argument, *x = malloc(PACKED_VALUES * sizeof *x);
  pith_update updates[COUNT];
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, "none", 0, &r));
  for (size_t l = 0, at = 0; l < COUNT; at += sizes[l++]) {
    char name[16];
    snprintf(name, sizeof name, "%zu", l);
    CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), name, &sizes[l], 1, PITH_F32, NULL}, NULL));
    CHECK_OK(pith_reducer_set_spec(r, l, stores[l]));
    for (size_t i = 0; i < sizes[l]; i++) {
      x[at + i] = noise(l, i);
    }
    updates[l] = (pith_update)PITH_UPDATE_INIT;
    updates[l].index = l, updates[l].moment = x + at, updates[l].keep = 0.9f, updates[l].pass = 0.7f;
    updates[l].fold = 0.3f;
  }
  for (int step = 0; step < 3; step++) {
    CHECK_OK(pith_reducer_update(r, updates, COUNT, NULL));
  }
  for (size_t l = 0, at = 0; l < COUNT && pith_comm_rank(comm) == 0; at += sizes[l++]) {
    CHECK_OK(pith_reducer_copy_residual(r, l, to + at, NULL));
  }
  pith_reducer_destroy(r);
  free(x);
}

TEST(threads_update_packed_residuals_with_the_same_bits) {
  size_t bytes = PACKED_VALUES * sizeof(float);
  float *one = calloc(1, bytes), *many = calloc(1, bytes);
  setenv("PITH_THREADS", "1", 1);
  ranks_run("inproc", 2, 0, update_packed, one);
  setenv("PITH_THREADS", "3", 1);
  ranks_run("inproc", 2, 0, update_packed, many);
  unsetenv("PITH_THREADS");
  CHECK(one[0] != 0 && one[70000] != 0);
  CHECK_BYTES(one, many, bytes);
  free(one), free(many);
}

typedef struct lesson {
  run run;
  double distance; /* from the solution at the end, relative to the start */
} lesson;

/* Each rank pulls towards a point of its own; together they know the way to the mean of all. */
static void learn(pith_comm *comm, void *argument) {
  lesson *given = argument;
  model *m = make_model(comm, &given->run);
  double distance = 0, start = 0;
  fold_first(m);
  for (int step = 0; step < given->run.steps; step++) {
    for (size_t i = 0; i < VALUES; i++) {
      float own = noise(20 + (uint64_t)m->rank, i) - noise(21 - (uint64_t)m->rank, i); /* of two ranks: 0 together */
      m->gradient[i] = m->parameter[i] - noise(9, i) + own + 0.2f * noise(50 + (uint64_t)(2 * step + m->rank), i);
    }
    exchange(m);
    pith_update u = update_of(m);
    u.take = u.decay = 1;
    u.fold = (float)beta;
    CHECK_OK(pith_reducer_update(m->reducer, &u, 1, NULL));
  }
  for (size_t i = 0; i < VALUES; i++) {
    double off = (double)m->parameter[i] - noise(9, i), before = (double)noise(4, i) - noise(9, i);
    distance += off * off;
    start += before * before;
  }
  if (m->rank == 0) {
    given->distance = sqrt(distance / start);
  }
  check_alike(m);
  destroy_model(m);
}

static double distance_with(const char *spec, uint32_t carrier) {
  lesson l = {.run = {.spec = spec, .steps = 200, .carrier = carrier}};
  ranks_run("inproc", 2, 0, learn, &l);
  return l.distance;
}

/* Ranks that differ as much as these keep much, and momentum is a tenth of that: 8 bits are then a noise one can see.
 */
TEST(packed_momentum_ends_where_f32_does) {
  double exact = distance_with("*=moment/onebit", 0), half = distance_with("*=moment,store=bf16/onebit", 0),
         byte = distance_with("*=moment,store=8/onebit", 0);
  CHECK_MSG(exact < 0.2, "f32 ends at %g", exact);
  CHECK_MSG(half < 1.1 * exact && byte < 1.6 * exact, "f32 ends at %g, bf16 at %g, 8 bits at %g", exact, half, byte);
  for (size_t i = 0; i < 3; i++) {
    static const char *const stores[] = {"*=moment/onebit", "*=moment,store=bf16/onebit", "*=moment,store=8/onebit"};
    setenv("PITH_ALGO", "sra", 1);
    double comm = distance_with(stores[i], 0), carrier = distance_with(stores[i], 1);
    unsetenv("PITH_ALGO");
    CHECK_MSG(memcmp(&comm, &carrier, sizeof comm) == 0, "%s: a carrier ends at %.17g, a comm at %.17g", stores[i],
              carrier, comm);
  }
}

/* ---- Specs that are set ------------------------------------------------------------------------------------------ */

static const char *spec_of(const model *m) {
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  CHECK_OK(pith_reducer_layer_stats(m->reducer, 0, &stats));
  return stats.spec;
}

static void set_specs(pith_comm *comm, void *argument) {
  run given = {.spec = "*=ef/q:2", .carrier = *(uint32_t *)argument};
  model *m = make_model(comm, &given);
  float *residual, kept[VALUES];
  draw_gradient(m);
  exchange(m);
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  memcpy(kept, residual, sizeof kept);
  /* Gradients that wait become a part of the next: times 1 − beta. */
  CHECK_OK(pith_reducer_set_spec(m->reducer, 0, "moment:1,beta=0.75/onebit"));
  CHECK_STR(spec_of(m), "moment,beta=0.75/onebit");
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  for (size_t i = 0; i < VALUES; i++) {
    CHECK(residual[i] == 0.25f * kept[i]);
  }
  CHECK_STATUS(pith_reducer_start(m->reducer, 0, m->gradient), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("layer sends its momentum (moment,beta=0.75/onebit), which needs an optimizer");
  fold_first(m);
  step_together(m);
  /* Momentum goes to momentum as it is, and is dropped otherwise. */
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  memcpy(kept, residual, sizeof kept);
  CHECK_OK(pith_reducer_set_spec(m->reducer, 0, "moment/q:2"));
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  CHECK_BYTES(residual, kept, sizeof kept);
  step_together(m);
  CHECK_OK(pith_reducer_set_spec(m->reducer, 0, "ef/q:4"));
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  for (size_t i = 0; i < VALUES; i++) {
    CHECK(residual[i] == 0);
  }
  step_together(m);
  CHECK_OK(pith_reducer_set_spec(m->reducer, 0, "q:8"));
  CHECK_OK(pith_reducer_residual(m->reducer, 0, &residual));
  CHECK(!residual && m->reducer->layers[0].pending_steps == 16);
  /* What is pending is saved, too. */
  model *other = make_model(comm, &(run){.spec = "*=q:8", .carrier = given.carrier});
  pith_out out = {malloc(pith_reducer_save_size(m->reducer)), pith_reducer_save_size(m->reducer), 0};
  CHECK_OK(pith_reducer_save(m->reducer, &out));
  CHECK_OK(pith_reducer_load(other->reducer, (pith_bytes){out.data, out.size}));
  CHECK_EQ(other->reducer->layers[0].pending_steps, 16);
  CHECK_BYTES(other->reducer->layers[0].pending, m->reducer->layers[0].pending, sizeof kept);
  free(out.data);
  step_together(m);
  check_alike(m);
  destroy_model(other);
  destroy_model(m);
}

TEST(a_spec_that_is_set_keeps_what_it_can) {
  for (uint32_t carrier = 0; carrier < 2; carrier++) {
    ranks_run("inproc", 2, 0, set_specs, &carrier);
  }
}

TEST(a_spec_says_what_it_has_of_momentum) {
  pith_codec *codec;
  pith_moment moment = PITH_MOMENT_INIT;
  CHECK_OK(pith_codec_create("moment:4,beta=0.95,freeze=300,warm=4/q:2", &codec));
  CHECK_EQ(pith_codec_moment(codec, &moment), 1);
  CHECK(moment.every == 4 && moment.beta == 0.95 && moment.freeze == 300 && moment.warm == 4);
  pith_codec_destroy(codec);
  CHECK_OK(pith_codec_create("moment,every=1,freeze=auto/onebit", &codec));
  CHECK_STR(pith_codec_spec(codec), "moment/onebit");
  CHECK_STR(pith_codec_parts(codec), "moment/signmean");
  CHECK_EQ(pith_codec_moment(codec, &moment), 1);
  CHECK(moment.every == 1 && moment.beta == 0.9 && moment.freeze == 0 && moment.warm == 0);
  CHECK_EQ(pith_codec_moment(codec, NULL), 1);
  pith_codec_destroy(codec);
  CHECK_OK(pith_codec_create("onebit", &codec));
  CHECK_EQ(pith_codec_moment(codec, &moment), 0);
  pith_codec_destroy(codec);
  CHECK_STATUS(pith_codec_create("moment,warm=1/q:2", &codec), PITH_ERR_RANGE);
  CHECK_STATUS(pith_codec_create("moment/signsgd", &codec), PITH_ERR_UNSUPPORTED);
  CHECK_STATUS(pith_codec_create("moment/signum", &codec), PITH_ERR_UNSUPPORTED);
}

/* ---- Slips ------------------------------------------------------------------------------------------------------- */

static void slip(pith_comm *comm, void *argument) {
  (void)argument;
  run given = {.spec = "*=moment/onebit"};
  model *m = make_model(comm, &given);
  pith_reducer *r = m->reducer;
  float *residual;
  draw_gradient(m);
  CHECK_STATUS(pith_reducer_start(r, 0, m->gradient), PITH_ERR_STATE);
  CHECK_ERROR_SAYS(
      "layer layer sends its momentum (moment/onebit), which needs an optimizer: pith_reducer_update() (in "
      "PyTorch compress(…, optimizer=…))");
  CHECK_STATUS(pith_reducer_set_spec(r, 0, "moment/nothing"), PITH_ERR_SPEC);
  CHECK_STATUS(pith_reducer_set_spec(r, 0, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_set_spec(r, 1, "none"), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_residual(r, 1, &residual), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_copy_residual(r, 1, m->moment, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_copy_residual(r, 0, NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_OK(pith_reducer_set_spec(r, 0, "moment,store=8/onebit"));
  CHECK_STATUS(pith_reducer_residual(r, 0, &residual), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("layer layer keeps its residual in 8 bits");
  CHECK_OK(pith_reducer_set_spec(r, 0, "none"));
  CHECK_STATUS(pith_reducer_copy_residual(r, 0, m->moment, NULL), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("layer layer keeps no residual (none)");
  CHECK_OK(pith_reducer_set_spec(r, 0, "moment/onebit"));
  pith_update u[2] = {update_of(m), update_of(m)};
  u[0].take = 1;
  CHECK_STATUS(pith_reducer_update(r, u, 2, NULL), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("layer layer is updated twice");
  u[0].gradient = NULL;
  CHECK_STATUS(pith_reducer_update(r, u, 1, NULL), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("a factor on a gradient that is NULL");
  u[0] = update_of(m), u[0].index = 1;
  CHECK_STATUS(pith_reducer_update(r, u, 1, NULL), PITH_ERR_ARGUMENT);
  u[0] = update_of(m), u[0].moment = (uint8_t *)m->moment + 1;
  CHECK_STATUS(pith_reducer_update(r, u, 1, NULL), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("not aligned");
  CHECK_STATUS(pith_reducer_start(r, 0, m->gradient), PITH_ERR_STATE); /* none of these was an update */
  fold_first(m);
  CHECK_OK(pith_reducer_start(r, 0, m->gradient));
  CHECK_STATUS(pith_reducer_set_spec(r, 0, "q:4"), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("a step is under way");
  CHECK_STATUS(pith_reducer_update(r, u, 1, NULL), PITH_ERR_STATE);
  CHECK_OK(pith_reducer_finish(r));
  destroy_model(m);
}

TEST(slips_are_told) { ranks_run("inproc", 2, 0, slip, NULL); }

static void refuse(pith_comm *comm, void *argument) {
  (void)argument;
  size_t shape[] = {ROWS, COLUMNS}, index;
  pith_layer layer = {sizeof(pith_layer), "layer", shape, 2, PITH_F32, NULL};
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  pith_reducer *r;
  options.sharded = 1;
  CHECK_OK(pith_reducer_create_with(comm, "none", 0, &options, &r));
  CHECK_STATUS(pith_reducer_add_shards(r, &layer, "moment/onebit", &index), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("the reducer is for shards");
  CHECK_OK(pith_reducer_add_shards(r, &layer, "ef/q:4", &index));
  CHECK_STATUS(pith_reducer_set_spec(r, index, "q:4"), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_update(r, NULL, 0, NULL), PITH_ERR_STATE);
  pith_reducer_destroy(r);
  CHECK_OK(pith_reducer_create(comm, "none", 0, &r));
  CHECK_OK(pith_reducer_add(r, &layer, &index));
  CHECK_STATUS(pith_reducer_set_spec(r, index, NULL), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("there is no adaptive spec");
  pith_reducer_destroy(r);
  CHECK_OK(pith_reducer_create(comm, "none", 0, &r));
  layer.exact = "a test says so";
  CHECK_OK(pith_reducer_add(r, &layer, &index));
  CHECK_STATUS(pith_reducer_set_spec(r, index, "q:4"), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("never compressed: a test says so");
  pith_reducer_destroy(r);
}

TEST(layers_whose_specs_are_not_theirs_are_refused) { ranks_run("inproc", 1, 0, refuse, NULL); }

/* ---- Beside an adapter ------------------------------------------------------------------------------------------- */

enum { PERIOD = 32, PAUSE = 100 };

static void reduce_for(pith_reducer *r, int steps) {
  static _Thread_local float gradient[VALUES];
  for (int i = 0; i < steps; i++) {
    for (size_t k = 0; k < VALUES; k++) {
      gradient[k] = (float)(k % 17) - 8;
    }
    CHECK_OK(pith_reducer_start(r, 0, gradient));
    CHECK_OK(pith_reducer_finish(r));
  }
}

static const char *reason_of(const pith_reducer *r) {
  pith_layer_stats stats = {.size = sizeof stats};
  CHECK_OK(pith_reducer_layer_stats(r, 0, &stats));
  return stats.reason;
}

/* While a spec that was set is in force no plan is made; then the adapter goes on where it was. */
static void rest(pith_comm *comm, void *argument) {
  (void)argument;
  size_t shape[] = {ROWS, COLUMNS}, index;
  pith_layer layer = {sizeof(pith_layer), "layer", shape, 2, PITH_F32, NULL};
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, "lgreco:q:4,warmup=4,period=32", 0, &r));
  CHECK_OK(pith_reducer_add(r, &layer, &index));
  reduce_for(r, 2);
  CHECK_OK(pith_reducer_set_spec(r, index, "q:8"));
  uint64_t before = pith_adapter_step_number(r->adaptive.adapter);
  reduce_for(r, PAUSE);
  CHECK_EQ(pith_adapter_step_number(r->adaptive.adapter), before);
  CHECK(strcmp(r->layers[0].match.codec->spec, "q:8") == 0 && strcmp(reason_of(r), "its spec was set") == 0);
  CHECK_OK(pith_reducer_set_spec(r, index, NULL));
  reduce_for(r, PERIOD);
  CHECK_EQ(pith_adapter_step_number(r->adaptive.adapter), before + PERIOD);
  CHECK(strcmp(reason_of(r), "its spec was set") != 0);
  pith_reducer_destroy(r);
}

TEST(an_adapter_rests_while_a_spec_is_set) { ranks_run("inproc", 2, 0, rest, NULL); }

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void resume(pith_comm *comm, void *argument) {
  const run *given = argument;
  model *m = make_model(comm, given), *resumed = make_model(comm, given);
  fold_first(m);
  for (int i = 0; i < given->steps; i++) {
    step_locally(m, given->every);
  }
  pith_out out = {malloc(pith_reducer_save_size(m->reducer)), pith_reducer_save_size(m->reducer), 0};
  CHECK_OK(pith_reducer_save(m->reducer, &out));
  CHECK_EQ(out.size, out.capacity);
  CHECK_OK(pith_reducer_load(resumed->reducer, (pith_bytes){out.data, out.size}));
  free(out.data);
  resumed->step = m->step;
  memcpy(resumed->moment, m->moment, sizeof m->moment);
  memcpy(resumed->parameter, m->parameter, sizeof m->parameter);
  memcpy(resumed->start, m->start, sizeof m->start);
  for (int i = 0; i < 6; i++) {
    step_locally(m, given->every);
    step_locally(resumed, given->every);
    CHECK_BYTES(resumed->parameter, m->parameter, sizeof m->parameter);
    CHECK_BYTES(resumed->moment, m->moment, sizeof m->moment);
    const pith_reducer_layer *l = &m->reducer->layers[0];
    CHECK_BYTES(resumed->reducer->layers[0].state->residual, l->state->residual,
                pith_codec_residual_size(l->match.codec, l->n));
  }
  destroy_model(m);
  destroy_model(resumed);
}

TEST(a_checkpoint_in_the_middle_goes_on_with_the_same_bits) {
  static const char *const kept[] = {"*=moment/onebit",           "*=moment/topk:0.05",      "*=moment/q:2",
                                     "*=moment/powersgd:4",       "*=moment,store=8/onebit", "*=moment,store=bf16/q:2",
                                     "*=moment,store=8/topk:0.05"};
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
    for (uint32_t carrier = 0; carrier < 2; carrier++) {
      run given = {.spec = kept[i], .steps = 6, .every = 4, .carrier = carrier};
      ranks_run("inproc", 2, 0, resume, &given);
    }
  }
}

static void save_unfolded(pith_comm *comm, void *argument) {
  run given = {.spec = "*=moment/onebit"};
  (void)argument;
  model *m = make_model(comm, &given), *resumed = make_model(comm, &given);
  pith_out out = {malloc(pith_reducer_save_size(m->reducer)), pith_reducer_save_size(m->reducer), 0};
  CHECK_OK(pith_reducer_save(m->reducer, &out));
  fold_first(resumed);
  CHECK_OK(pith_reducer_load(resumed->reducer, (pith_bytes){out.data, out.size}));
  CHECK_STATUS(pith_reducer_start(resumed->reducer, 0, m->gradient), PITH_ERR_STATE);
  free(out.data);
  destroy_model(m);
  destroy_model(resumed);
}

TEST(a_checkpoint_from_before_the_first_update_needs_one) { ranks_run("inproc", 1, 0, save_unfolded, NULL); }

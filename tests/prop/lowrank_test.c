/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Methods of several exchanges, with the ranks simulated here: every rank produces, the test reduces element by element
 * as any allreduce would, every rank consumes. powersgd sums floats, gq sums packed bytes that wrap around.
 */
#include <math.h>

#include "kernel/kernel.h"
#include "laws.h"
#include "memory/memory.h"

#define RANKS_MAX 127

/* ---- Simulated ranks --------------------------------------------------------------------------------------------- */

typedef struct group {
  pith_codec *codec;
  uint32_t ranks;
  size_t n;
  pith_state *state[RANKS_MAX];
  pith_span src[RANKS_MAX], dst[RANKS_MAX];
} group;

static group group_of(const char *spec, uint32_t ranks, size_t n, size_t rows, pith_dtype type) {
  group g = {.codec = law_codec(spec), .ranks = ranks, .n = n};
  for (uint32_t r = 0; r < ranks; r++) {
    g.state[r] = law_state(g.codec, n, rows);
    g.dst[r] = law_tensor(LAW_NORMAL, n, type);
  }
  return g;
}

static pith_ctx ctx_of(const group *g, uint32_t rank, uint64_t step) {
  pith_ctx ctx = law_ctx(step);
  ctx.rank = rank;
  ctx.ranks = g->ranks;
  return ctx;
}

static void reduce(pith_round round, const void *from, void *into) {
  const float *x = from;
  float *sum = into;
  for (size_t i = 0; i < round.count; i++) {
    if (round.dtype == PITH_I8) {
      ((uint8_t *)into)[i] = (uint8_t)(((uint8_t *)into)[i] + ((const uint8_t *)from)[i]);
    } else {
      sum[i] = round.reduce == PITH_SUM ? sum[i] + x[i] : x[i] > sum[i] ? x[i] : sum[i];
    }
  }
}

static void exchange(group *g, size_t index, uint64_t step) {
  pith_round round = PITH_ROUND_INIT;
  CHECK_OK(pith_round_describe(g->codec, g->state[0], index, &round));
  size_t size = round.count * pith_dtype_size(round.dtype);
  void *sum = law_bytes(size, 4 * test_below(16));
  for (uint32_t r = 0; r < g->ranks; r++) {
    pith_ctx ctx = ctx_of(g, r, step);
    void *mine = law_bytes(size, 4 * test_below(16));
    CHECK_OK(pith_round_produce(g->codec, g->state[r], index, law_const(g->src[r]), mine, &ctx));
    if (r == 0) {
      memcpy(sum, mine, size);
    } else {
      reduce(round, mine, sum);
    }
  }
  for (uint32_t r = 0; r < g->ranks; r++) {
    pith_ctx ctx = ctx_of(g, r, step);
    CHECK_OK(pith_round_consume(g->codec, g->state[r], index, sum, g->dst[r], &ctx));
  }
}

/* A whole step; afterwards all ranks must hold the same bits. */
static void allreduce(group *g, uint64_t step) {
  for (size_t index = 0; index < pith_codec_rounds(g->codec); index++) {
    exchange(g, index, step);
  }
  for (uint32_t r = 1; r < g->ranks; r++) {
    CHECK_BYTES(g->dst[r].data, g->dst[0].data, g->n * pith_dtype_size(g->dst[0].dtype));
  }
}

/* ---- Matrices ---------------------------------------------------------------------------------------------------- */

/* x += weight · a·bᵀ, of random a and b. */
static void add_rank_one(pith_span x, size_t rows, float weight) {
  size_t cols = x.n / rows;
  float *a = law_floats(rows), *b = law_floats(cols), *m = x.data;
  for (size_t i = 0; i < rows; i++) {
    a[i] = weight * test_normal();
  }
  for (size_t j = 0; j < cols; j++) {
    b[j] = test_normal();
  }
  for (size_t i = 0; i < rows * cols; i++) {
    m[i] += a[i / cols] * b[i % cols];
  }
}

static pith_span zeros(size_t n) { return (pith_span){law_floats(n), n, PITH_F32}; }

static pith_span matrix_of_rank(size_t rows, size_t cols, int rank) {
  pith_span x = zeros(rows * cols);
  for (int k = 0; k < rank; k++) {
    add_rank_one(x, rows, 1);
  }
  return x;
}

static pith_span mean_of(const group *g) {
  pith_span mean = zeros(g->n);
  for (size_t i = 0; i < g->n; i++) {
    double sum = 0;
    for (uint32_t r = 0; r < g->ranks; r++) {
      sum += law_at(g->src[r], i);
    }
    law_put(mean, i, (float)(sum / g->ranks));
  }
  return mean;
}

static double distance(pith_span a, pith_span b) {
  double sum = 0, size = 0;
  for (size_t i = 0; i < a.n; i++) {
    double x = law_at(a, i), y = law_at(b, i);
    sum += (x - y) * (x - y);
    size += y * y;
  }
  return sqrt(sum / (size > 0 ? size : 1));
}

static void check_all_finite(pith_span x) {
  for (size_t i = 0; i < x.n; i++) {
    CHECK_MSG(isfinite(law_at(x, i)), "value %zu is %g", i, (double)law_at(x, i));
  }
}

/* ---- powersgd ---------------------------------------------------------------------------------------------------- */

TEST(a_matrix_of_no_higher_rank_comes_back) {
  for (int round = 0; round < 30; round++) {
    size_t rows = 40 + test_below(60), cols = 40 + test_below(60);
    pith_codec *codec = law_codec("powersgd:4");
    pith_span x = matrix_of_rank(rows, cols, (int)test_below(5));
    pith_ctx ctx = law_ctx((uint64_t)round);
    ctx.rows = rows;
    pith_span back = {(void *)law_round_trip(codec, x, ctx), x.n, PITH_F32};
    CHECK_MSG(distance(back, x) < 1e-3, "%zu x %zu: off by %g", rows, cols, distance(back, x));
    law_sweep();
  }
}

TEST(the_mean_of_low_rank_gradients_comes_back_on_all_ranks) {
  for (int round = 0; round < 20; round++) {
    size_t rows = 40 + test_below(60), cols = 40 + test_below(60);
    group g = group_of(round % 2 ? "powersgd:4" : "ef/powersgd:4", 1 + (uint32_t)(round % 4), rows * cols, rows,
                       (pith_dtype)(round % 3));
    for (uint32_t r = 0; r < g.ranks; r++) {
      g.src[r] = matrix_of_rank(rows, cols, 1);
    }
    allreduce(&g, 0);
    double slack = g.dst[0].dtype == PITH_F32 ? 1e-3 : 1e-2;
    CHECK_MSG(distance(g.dst[0], mean_of(&g)) < slack, "%u ranks: off by %g", g.ranks, distance(g.dst[0], mean_of(&g)));
    law_sweep();
  }
}

/* A peer that flattened convolutions along the wrong axis sent 100 times too much. */
TEST(a_layer_of_512_by_4608_at_rank_4_sends_20480_values) {
  pith_codec *codec = law_codec("powersgd:4");
  size_t n = 512 * 4608;
  pith_state *state = law_state(codec, n, 512);
  pith_round p = PITH_ROUND_INIT, q = PITH_ROUND_INIT;
  CHECK_OK(pith_round_describe(codec, state, 0, &p));
  CHECK_OK(pith_round_describe(codec, state, 1, &q));
  CHECK_EQ(p.count, 4 * 512);
  CHECK_EQ(q.count, 4 * 4608);
  CHECK_EQ(p.count + q.count, 20480);
  CHECK(p.dtype == PITH_F32 && q.dtype == PITH_F32 && p.reduce == PITH_SUM && q.reduce == PITH_SUM);
  pith_span g = zeros(n);
  CHECK_EQ(law_encode(codec, state, g, law_ctx(0)).size, 8 + 4 * 20480);
  law_sweep();
}

TEST(a_warm_start_improves_over_steps) {
  for (int alone = 0; alone < 2; alone++) {
    group g = group_of("powersgd:2", alone ? 1 : 3, 64 * 80, 64, PITH_F32);
    for (uint32_t r = 0; r < g.ranks; r++) {
      g.src[r] = zeros(g.n);
      for (int k = 0; k < 8; k++) {
        add_rank_one(g.src[r], 64, powf(0.6f, (float)k));
      }
    }
    pith_span mean = mean_of(&g);
    double first = 0, last = 0;
    for (uint64_t step = 0; step < 8; step++) {
      if (alone) {
        pith_bytes in = law_encode(g.codec, g.state[0], g.src[0], law_ctx(step));
        law_decode_to(g.codec, in, g.dst[0], PITH_SET, law_ctx(step));
      } else {
        allreduce(&g, step);
      }
      last = distance(g.dst[0], mean);
      first = step == 0 ? last : first;
      CHECK_MSG(last <= first * 1.0001, "step %d is worse: %g after %g", (int)step, last, first);
    }
    CHECK_MSG(last < 0.97 * first, "%g at first, %g at last", first, last);
    law_sweep();
  }
}

/* The largest rank's columns are kept as far as they go, and what was learnt with them. */
TEST(a_change_of_rank_keeps_the_columns_it_can_keep) {
  enum { N = 96 * 64, BYTES = 4 * 64 * sizeof(float) };
  group g = group_of("ef/powersgd:4", 1, N, 96, PITH_F32);
  uint8_t before[BYTES];
  g.src[0] = law_tensor(LAW_NORMAL, N, PITH_F32);
  for (uint64_t step = 0; step < 3; step++) {
    exchange(&g, 0, step);
    exchange(&g, 1, step);
  }
  memcpy(before, g.state[0]->part, BYTES);
  static const char *const next[] = {"ef/powersgd:6", "powersgd:4", "ef/powersgd:2", "ef/powersgd:5"};
  static const size_t kept[] = {4, 4, 2, 2};
  for (size_t i = 0; i < 4; i++) {
    CHECK_OK(pith_state_adapt(g.state[0], law_codec(next[i])));
    const uint8_t *part = g.state[0]->part;
    CHECK(memcmp(part, before, kept[i] * 64 * sizeof(float)) == 0);
    for (size_t at = kept[i] * 64 * sizeof(float); at < g.state[0]->part_size; at++) {
      CHECK(part[at] == 0);
    }
  }
  CHECK_OK(pith_state_adapt(g.state[0], law_codec("ef/q:4")));         /* another method */
  CHECK_OK(pith_state_adapt(g.state[0], law_codec("ef/powersgd:40"))); /* not worth factoring */
  CHECK(g.state[0]->part_size == 0);
  CHECK_OK(pith_state_adapt(g.state[0], law_codec("ef/powersgd:1")));
}

TEST(the_residual_of_a_rank_is_what_the_mean_did_not_give) {
  group g = group_of("ef/powersgd:2", 3, 60 * 70, 60, PITH_F32);
  for (uint64_t step = 0; step < 4; step++) {
    float *p[3];
    for (uint32_t r = 0; r < 3; r++) {
      g.src[r] = law_tensor(LAW_NORMAL, g.n, PITH_F32);
      p[r] = law_floats(g.n);
      for (size_t i = 0; i < g.n; i++) {
        p[r][i] = pith_state_residual(g.state[r])[i] + law_at(g.src[r], i);
      }
    }
    allreduce(&g, step);
    for (uint32_t r = 0; r < 3; r++) {
      for (size_t i = 0; i < g.n; i++) {
        CHECK(pith_state_residual(g.state[r])[i] == p[r][i] - law_at(g.dst[r], i));
      }
    }
  }
  law_sweep();
}

TEST(a_matrix_not_worth_factoring_travels_as_it_is) {
  static const struct {
    size_t n, rows;
  } small[] = {{0, 0}, {1, 1}, {100, 10}, {1000, 1}, {1000, 1000}, {63, 0}};
  for (size_t k = 0; k < sizeof small / sizeof *small; k++) {
    group g = group_of("ef/powersgd:4", 2, small[k].n, small[k].rows, (pith_dtype)test_below(3));
    pith_round round = PITH_ROUND_INIT;
    CHECK_OK(pith_round_describe(g.codec, g.state[0], 0, &round));
    CHECK_EQ(round.count, 0);
    CHECK_OK(pith_round_describe(g.codec, g.state[0], 1, &round));
    CHECK_EQ(round.count, g.n);
    g.src[0] = law_tensor(LAW_NORMAL, g.n, PITH_F32);
    g.src[1] = law_tensor(LAW_NORMAL, g.n, PITH_BF16);
    allreduce(&g, 0);
    pith_span wanted = law_copy(g.dst[0]);
    for (size_t i = 0; i < g.n; i++) {
      law_put(wanted, i, (law_at(g.src[0], i) + law_at(g.src[1], i)) * 0.5f);
      CHECK(law_at(g.dst[0], i) == law_at(wanted, i));
    }
    law_sweep();
  }
}

/* A direction that dies out must come to life again. */
TEST(zero_and_rank_deficient_matrices_give_no_nan_and_revive) {
  group g = group_of("powersgd:4", 2, 50 * 60, 50, PITH_F32);
  for (uint64_t step = 0; step < 9; step++) {
    for (uint32_t r = 0; r < 2; r++) {
      g.src[r] = step % 3 == 0 ? zeros(g.n) : step % 3 == 1 ? matrix_of_rank(50, 60, 1) : matrix_of_rank(50, 60, 2);
    }
    allreduce(&g, step);
    check_all_finite(g.dst[0]);
    CHECK_MSG(distance(g.dst[0], mean_of(&g)) < 1e-3, "step %d: off by %g", (int)step, distance(g.dst[0], mean_of(&g)));
  }
  law_sweep();
}

TEST(equal_columns_and_tiny_values_give_no_nan) {
  for (int kind = 0; kind < 3; kind++) {
    group g = group_of("powersgd:8", 2, 80 * 90, 80, PITH_F32);
    for (uint64_t step = 0; step < 4; step++) {
      for (uint32_t r = 0; r < 2; r++) {
        g.src[r] = law_tensor(kind == 0 ? LAW_CONSTANT : kind == 1 ? LAW_TINY : LAW_SPARSE, g.n, PITH_F32);
      }
      allreduce(&g, step);
      check_all_finite(g.dst[0]);
    }
    CHECK(kind != 0 || distance(g.dst[0], g.src[0]) < 1e-3);
    law_sweep();
  }
}

/* ---- Misuse ------------------------------------------------------------------------------------------------------ */

TEST(rounds_out_of_order_are_refused) {
  static const char *const specs[] = {"ef/powersgd:2", "ef/gq:8"};
  for (size_t k = 0; k < 2; k++) {
    group g = group_of(specs[k], 1, 50 * 60, 50, PITH_F32);
    pith_span src = law_tensor(LAW_NORMAL, g.n, PITH_F32), shorter = {src.data, g.n - 1, PITH_F32};
    pith_ctx ctx = ctx_of(&g, 0, 0), off = ctx;
    float *buffer = law_floats(g.n);
    pith_round round = PITH_ROUND_INIT;
    off.offset = 512;
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 1, law_const(src), buffer, &ctx), PITH_ERR_STATE);
    CHECK_STATUS(pith_round_consume(g.codec, g.state[0], 1, buffer, g.dst[0], &ctx), PITH_ERR_STATE);
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 2, law_const(src), buffer, &ctx), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_describe(g.codec, g.state[0], 2, &round), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_describe(g.codec, g.state[0], 0, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_describe(g.codec, NULL, 0, &round), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 0, law_const(src), buffer, &off), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 0, law_const(shorter), buffer, &ctx), PITH_ERR_STATE);
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 0, law_const(src), NULL, &ctx), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_round_consume(g.codec, g.state[0], 0, buffer, g.dst[0], &ctx),
                 PITH_ERR_STATE); /* nothing was produced */
    CHECK(pith_state_residual(g.state[0])[0] == 0);
    CHECK_OK(pith_round_produce(g.codec, g.state[0], 0, law_const(src), buffer, &ctx));
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 1, law_const(src), buffer, &ctx), PITH_ERR_STATE);
    CHECK_STATUS(pith_round_consume(g.codec, g.state[0], 0, NULL, g.dst[0], &ctx), PITH_ERR_ARGUMENT);
    CHECK_OK(pith_round_consume(g.codec, g.state[0], 0, buffer, g.dst[0], &ctx));
    CHECK_STATUS(pith_round_consume(g.codec, g.state[0], 0, buffer, g.dst[0], &ctx), PITH_ERR_STATE);
    CHECK_OK(pith_round_produce(g.codec, g.state[0], 1, law_const(src), buffer, &ctx));
    CHECK_STATUS(pith_round_consume(g.codec, g.state[0], 1, buffer, (pith_span){NULL, g.n, PITH_F32}, &ctx),
                 PITH_ERR_ARGUMENT);
    CHECK_OK(pith_round_consume(g.codec, g.state[0], 1, buffer, g.dst[0], &ctx));
    law_sweep();
  }
}

TEST(methods_of_one_exchange_have_no_rounds) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    pith_state *state = law_state(codec, 100, 0);
    pith_round round = PITH_ROUND_INIT;
    int rounds = (pith_codec_caps(codec) & PITH_CAP_ROUNDS) != 0;
    CHECK_EQ(pith_codec_rounds(codec) > 0, rounds);
    CHECK_EQ(pith_round_describe(codec, state, 0, &round) == PITH_OK, rounds);
    law_sweep();
  }
}

/* ---- gq ---------------------------------------------------------------------------------------------------------- */

static unsigned field(const uint8_t *bytes, size_t i, int bits) {
  return bits == 8 ? bytes[i] : bytes[i / 2] >> (i % 2 * 4) & 15u;
}

/* Both rounds by hand, with an eye on every field of the sums. */
static void check_fields(group *g, int bits, uint64_t step) {
  exchange(g, 0, step);
  size_t size = (g->n * (size_t)bits + 7) / 8;
  uint8_t *sum = law_bytes(size, 0), *mine = law_bytes(size, 1);
  unsigned *wanted = law_bytes(g->n * sizeof *wanted, 0);
  memset(sum, 0, size);
  memset(wanted, 0, g->n * sizeof *wanted);
  for (uint32_t r = 0; r < g->ranks; r++) {
    pith_ctx ctx = ctx_of(g, r, step);
    CHECK_OK(pith_round_produce(g->codec, g->state[r], 1, law_const(g->src[r]), mine, &ctx));
    reduce((pith_round){sizeof(pith_round), PITH_I8, PITH_SUM, size}, mine, sum);
    for (size_t i = 0; i < g->n; i++) {
      wanted[i] += field(mine, i, bits);
    }
  }
  for (size_t i = 0; i < g->n; i++) {
    CHECK_MSG(wanted[i] == field(sum, i, bits), "%u ranks: field %zu is %u, not %u", g->ranks, i, field(sum, i, bits),
              wanted[i]);
  }
  for (uint32_t r = 0; r < g->ranks; r++) {
    pith_ctx ctx = ctx_of(g, r, step);
    CHECK_OK(pith_round_consume(g->codec, g->state[r], 1, sum, g->dst[r], &ctx));
    CHECK_BYTES(g->dst[r].data, g->dst[0].data, g->n * sizeof(float));
  }
}

/* Every rank is within a level of its values, and so is the mean. */
TEST(packed_sums_never_carry_and_give_the_mean) {
  static const uint32_t counts[2][6] = {{1, 2, 3, 5, 6, 7}, {1, 2, 10, 63, 64, 127}};
  for (int round = 0; round < 36; round++) {
    int bits = round % 2 ? 8 : 4;
    uint32_t ranks = counts[round % 2][round / 2 % 6];
    group g = group_of(bits == 8 ? "gq:8" : "gq:4", ranks, law_length(2500), 0, PITH_F32);
    double most = 0, levels = floor(((1 << bits) - 1) / 2 / ranks);
    for (uint32_t r = 0; r < ranks; r++) {
      g.src[r] = law_tensor(round / 12 == 2 ? LAW_CONSTANT : (law_shape)(round / 12), g.n, (pith_dtype)(r % 3));
      for (size_t i = 0; i < g.n; i++) {
        most = fmax(most, fabs((double)law_at(g.src[r], i)));
      }
    }
    check_fields(&g, bits, (uint64_t)round);
    pith_span mean = mean_of(&g);
    for (size_t i = 0; i < g.n; i++) {
      CHECK_NEAR(law_at(g.dst[0], i), law_at(mean, i), most / levels * 1.001);
    }
    law_sweep();
  }
}

TEST(the_mean_over_steps_is_the_mean_over_ranks) {
  group g = group_of("gq:4", 3, 600, 0, PITH_F32);
  size_t steps = 600;
  double *sum = law_bytes(g.n * sizeof *sum, 0), squares = 0, variance = 0;
  memset(sum, 0, g.n * sizeof *sum);
  for (uint32_t r = 0; r < 3; r++) {
    g.src[r] = law_tensor(LAW_NORMAL, g.n, PITH_F32);
  }
  pith_span mean = mean_of(&g);
  for (size_t step = 0; step < steps; step++) {
    allreduce(&g, step);
    for (size_t i = 0; i < g.n; i++) {
      double error = (double)law_at(g.dst[0], i) - law_at(mean, i);
      sum[i] += error / (double)steps;
      variance += error * error / (double)steps;
    }
  }
  for (size_t i = 0; i < g.n; i++) {
    squares += sum[i] * sum[i];
  }
  /* 600 squares of normal means: a spread of √(2/600) = 6%; five of them. */
  CHECK_NEAR(squares * (double)steps / variance, 1, 0.3);
  law_sweep();
}

TEST(too_many_ranks_are_refused) {
  static const struct {
    const char *spec;
    uint32_t most;
  } each[] = {{"gq:4", 7}, {"gq:8", 127}};
  for (size_t k = 0; k < 2; k++) {
    group g = group_of(each[k].spec, 1, 100, 0, PITH_F32);
    pith_span src = law_tensor(LAW_NORMAL, 100, PITH_F32);
    float most;
    pith_ctx ctx = law_ctx(0);
    ctx.ranks = each[k].most;
    CHECK_OK(pith_round_produce(g.codec, g.state[0], 0, law_const(src), &most, &ctx));
    ctx.ranks = each[k].most + 1;
    CHECK_STATUS(pith_round_produce(g.codec, g.state[0], 0, law_const(src), &most, &ctx), PITH_ERR_RANGE);
    CHECK_ERROR_SAYS("without overflow");
    law_sweep();
  }
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

TEST(a_bad_value_on_one_rank_is_seen_by_all_and_forgotten) {
  static const char *const specs[] = {"gq:4",   "ef/gq:8", "powersgd:2", "ef/powersgd:2", "momentum/powersgd:2",
                                      "ef/gq:4"};
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int round = 0; round < 18; round++) {
    CHECK_OK(pith_isa_select(round % 2 ? PITH_ISA_SCALAR : pith_isa_current()));
    group g = group_of(specs[round % 6], 3, 50 * 60, 50, PITH_F32);
    for (uint64_t step = 0; step < 4; step++) {
      for (uint32_t r = 0; r < 3; r++) {
        g.src[r] = law_tensor(LAW_NORMAL, g.n, PITH_F32);
      }
      if (step == 1) {
        law_put(g.src[1], test_below(g.n), bad[round / 6]);
      }
      allreduce(&g, step);
      for (size_t i = 0; i < g.n; i++) {
        CHECK_MSG(step == 1 ? isnan(law_at(g.dst[2], i)) : isfinite(law_at(g.dst[2], i)),
                  "%s: value %zu is %g in step %d", specs[round % 6], i, (double)law_at(g.dst[2], i), (int)step);
      }
      for (uint32_t r = 0; r < 3; r++) {
        for (size_t i = 0; i < g.n && pith_state_residual(g.state[r]); i++) {
          CHECK(isfinite(pith_state_residual(g.state[r])[i]));
        }
      }
    }
    law_sweep();
  }
}

/* What the ranks say they sent adds up to what was received: the residuals lose nothing. */
TEST(shares_of_the_ranks_add_up_to_the_mean) {
  group g = group_of("ef/gq:8", 4, 5000, 0, PITH_F32);
  for (uint64_t step = 0; step < 3; step++) {
    double *shares = law_bytes(g.n * sizeof *shares, 0);
    memset(shares, 0, g.n * sizeof *shares);
    for (uint32_t r = 0; r < 4; r++) {
      g.src[r] = law_tensor(LAW_NORMAL, g.n, PITH_F32);
      for (size_t i = 0; i < g.n; i++) {
        shares[i] += (double)pith_state_residual(g.state[r])[i] + law_at(g.src[r], i);
      }
    }
    allreduce(&g, step);
    for (size_t i = 0; i < g.n; i++) {
      for (uint32_t r = 0; r < 4; r++) {
        shares[i] -= pith_state_residual(g.state[r])[i];
      }
      CHECK_NEAR(shares[i] / 4, law_at(g.dst[0], i), 1e-5);
    }
  }
  law_sweep();
}

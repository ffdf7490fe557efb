/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of which every rank owns a shard of each layer: over a carrier, over a comm and on a device (tests/cuda/fake),
 * with the bits that encoding each shard by itself gives.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "laws.h"
#include "wire.h"

enum { SHARDS = 4, FIRST = 3, RANKS_MOST = 4, SEED = 11 };

static const size_t shard_shapes[SHARDS][2] = {{40, 60}, {300, 0}, {7, 96}, {1, 0}};

static size_t dimensions_of(size_t l) { return shard_shapes[l][1] ? 2 : 1; }
static size_t values_of(size_t l) { return shard_shapes[l][0] * (shard_shapes[l][1] ? shard_shapes[l][1] : 1); }
static size_t rows_of(size_t l) { return shard_shapes[l][1] ? shard_shapes[l][0] : 0; }

static size_t whole_of(size_t count) {
  size_t sum = 0;
  for (size_t l = 0; l < count; l++) {
    sum += values_of(l);
  }
  return sum;
}

typedef struct trial {
  const char *spec, *first; /* `first`: of layer 0 */
  pith_dtype dtype;
  pith_reduce_op op;
  int has_kernels;
} trial;

static const char *spec_of(const trial *t, size_t l) { return l == 0 && t->first ? t->first : t->spec; }

static void name_of(size_t l, char name[32]) { snprintf(name, 32, "shard%zu", l); }

static void fill(pith_span to, int rank, uint64_t step) {
  for (size_t i = 0; i < to.n; i++) {
    uint32_t h = (uint32_t)(i * 2654435761u + step * 97u + (uint64_t)rank * 1299721u);
    h = (h ^ h >> 13) * 0x5bd1e995u;
    law_put(to, i, (float)(h >> 16 & 0xfff) / 4096.0f - 0.5f);
  }
}

static pith_span make(size_t n, pith_dtype dtype) { return (pith_span){malloc(n * 4 + 1), n, dtype}; }

/* ---- What it should be ------------------------------------------------------------------------------------------- */

/* All ranks know what the others have, so each encodes for all. */
typedef struct expected {
  const trial *t;
  int rank, ranks;
  uint64_t steps[SHARDS];
  const pith_codec *codec[SHARDS];
  pith_state *state[RANKS_MOST][SHARDS];
} expected;

static expected expect(const trial *t, int rank, int ranks) {
  expected e = {.t = t, .rank = rank, .ranks = ranks};
  for (size_t l = 0; l < SHARDS; l++) {
    const char *half = t->dtype == PITH_F16 ? "fp16" : "bf16", *spec = spec_of(t, l);
    e.codec[l] = law_codec(!strcmp(spec, "none") && t->dtype != PITH_F32 ? half : spec);
    for (int p = 0; p < ranks; p++) {
      CHECK_OK(pith_state_create(e.codec[l], values_of(l), rows_of(l), &e.state[p][l]));
    }
  }
  return e;
}

static void forget(expected *e) {
  for (size_t l = 0; l < SHARDS; l++) {
    for (int p = 0; p < e->ranks; p++) {
      pith_state_destroy(e->state[p][l]);
    }
  }
}

static pith_ctx ctx_of(const expected *e, size_t l, uint64_t step, int encoder, int owner) {
  char name[32];
  pith_ctx ctx = PITH_CTX_INIT;
  name_of(l, name);
  ctx.seed = SEED, ctx.layer = pith_layer_number(name), ctx.rows = rows_of(l);
  ctx.step = step * (uint64_t)e->ranks + (uint64_t)owner;
  ctx.rank = (uint32_t)encoder, ctx.ranks = (uint32_t)e->ranks;
  return ctx;
}

/* Encoded and decoded once. */
static void pass(const pith_codec *codec, pith_state *state, pith_cspan from, pith_span to, pith_mode mode,
                 const pith_ctx *ctx) {
  pith_out out = {.capacity = pith_codec_bound(codec, from.n)};
  out.data = malloc(out.capacity + 1);
  CHECK_OK(pith_encode(codec, state, from, &out, ctx));
  CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, to, mode, ctx));
  free(out.data);
}

static void expect_layer(expected *e, size_t l, size_t at, size_t whole, uint64_t step, pith_span to) {
  size_t n = values_of(l), width = pith_dtype_size(e->t->dtype);
  pith_span total = make(n, PITH_F32), all = make(whole * (size_t)e->ranks, e->t->dtype);
  pith_ctx ctx = PITH_CTX_INIT;
  for (int p = 0; p < e->ranks; p++) {
    fill(all, p, step);
    const uint8_t *from = (uint8_t *)all.data + ((size_t)e->rank * whole + at) * width;
    ctx = ctx_of(e, l, e->steps[l], p, e->rank);
    pass(e->codec[l], e->state[p][l], (pith_cspan){from, n, e->t->dtype}, total, p ? PITH_ADD : PITH_SET, &ctx);
  }
  int votes = (pith_codec_caps(e->codec[l]) & PITH_CAP_VOTE) != 0;
  if (votes || e->t->op == PITH_MEAN) {
    CHECK_OK(pith_aggregate(e->codec[l], total, &ctx));
  }
  for (size_t i = 0; i < n; i++) {
    float x = ((float *)total.data)[i];
    law_put(to, at + i, votes && e->t->op == PITH_SUM ? x * (float)e->ranks : x);
  }
  free(total.data);
  free(all.data);
  e->steps[l]++;
}

static pith_span expect_sum(expected *e, size_t count, uint64_t step) {
  pith_span to = make(whole_of(count), e->t->dtype);
  for (size_t l = 0, at = 0; l < count; at += values_of(l++)) {
    expect_layer(e, l, at, to.n, step, to);
  }
  return to;
}

static void expect_scaled(expected *e) {
  for (size_t l = 0; l < SHARDS; l++) {
    for (int p = 0; p < e->ranks; p++) {
      CHECK_OK(pith_state_scale(e->state[p][l], 0.5f));
      CHECK_OK(l == 2 ? pith_state_scale_residual(e->state[p][l], 10.0f) : PITH_OK);
    }
  }
}

/* ---- What it is -------------------------------------------------------------------------------------------------- */

static pith_reducer *add_all(pith_reducer *r, const trial *t) {
  for (size_t l = 0; l < SHARDS; l++) {
    char name[32];
    size_t index;
    name_of(l, name);
    pith_layer shard = {sizeof shard, name, shard_shapes[l], dimensions_of(l), PITH_F32, NULL};
    CHECK_OK(pith_reducer_add_shards(r, &shard, spec_of(t, l), &index));
    CHECK_EQ(index, l);
  }
  CHECK_EQ(pith_reducer_layers(r), (size_t)SHARDS);
  return r;
}

static pith_reducer *over_carrier(wire *w, const trial *t, int cuda) {
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1, .cuda = cuda};
  pith_carrier carrier = carrier_of(w, cuda ? PITH_CARRIER_CUDA : 0);
  CHECK_OK(pith_reducer_create_over(&carrier, "none", SEED, &options, &r));
  return add_all(r, t);
}

static pith_reducer *over_comm(pith_comm *comm, const trial *t, int cuda) {
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1, .cuda = cuda};
  CHECK_OK(pith_reducer_create_with(comm, "none", SEED, &options, &r));
  return add_all(r, t);
}

static const size_t numbers[SHARDS] = {0, 1, 2, 3};

static void check_sum(pith_reducer *r, const trial *t, int rank, int ranks, size_t count, uint64_t step,
                      pith_span wanted, const char *what) {
  pith_span all = make(wanted.n * (size_t)ranks, t->dtype), own = make(wanted.n, t->dtype);
  fill(all, rank, step);
  CHECK_OK(pith_reducer_reduce_scatter(r, numbers, count, (pith_cspan){all.data, all.n, all.dtype}, own, t->op));
  CHECK_MSG(!memcmp(own.data, wanted.data, wanted.n * pith_dtype_size(t->dtype)), "%s %s: step %d differs", what,
            t->spec, (int)step);
  free(all.data);
  free(own.data);
}

enum { KINDS = 5 };
static const char *const kinds[KINDS] = {"carrier", "comm", "device", "device over a comm", "loaded"};

/* A step without the last layer too: layers count their own messages. */
static void check_scatter(pith_comm *comm, void *argument) {
  const trial *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  wire a = {.comm = comm}, b = {.comm = comm}, c = {.comm = comm};
  pith_reducer *r[KINDS] = {over_carrier(&a, t, 0), over_comm(comm, t, 0),
                            t->has_kernels ? over_carrier(&b, t, 1) : NULL,
                            t->has_kernels ? over_comm(comm, t, 1) : NULL, NULL};
  expected e = expect(t, rank, ranks);
  for (uint64_t step = 0; step < 4; step++) {
    size_t count = step == 1 ? FIRST : SHARDS;
    pith_span wanted = expect_sum(&e, count, step);
    for (size_t k = 0; k < KINDS; k++) {
      if (r[k]) {
        check_sum(r[k], t, rank, ranks, count, step, wanted, kinds[k]);
        CHECK_OK(pith_reducer_scale(r[k], 0.5f));
        CHECK_OK(pith_reducer_scale_residual(r[k], 2, 10.0f));
      }
    }
    expect_scaled(&e);
    if (step == 1) {
      pith_out out = {.capacity = pith_reducer_save_size(r[0])};
      out.data = malloc(out.capacity);
      CHECK_OK(pith_reducer_save(r[0], &out));
      r[4] = over_carrier(&c, t, t->has_kernels);
      CHECK_OK(pith_reducer_load(r[4], (pith_bytes){out.data, out.size}));
      CHECK_STATUS(pith_reducer_load(r[4], (pith_bytes){out.data, out.size - 1}), PITH_ERR_CORRUPT);
      free(out.data);
    }
    free(wanted.data);
  }
  for (size_t k = 0; k < 4 && r[k]; k++) {
    pith_layer_stats first = PITH_LAYER_STATS_INIT, last = PITH_LAYER_STATS_INIT;
    pith_traffic traffic = PITH_TRAFFIC_INIT, other = PITH_TRAFFIC_INIT;
    CHECK_OK(pith_reducer_layer_stats(r[k], 0, &first));
    CHECK_OK(pith_reducer_layer_stats(r[k], 3, &last));
    CHECK_EQ(first.steps, (uint64_t)4);
    CHECK_EQ(last.steps, (uint64_t)3);
    CHECK_OK(pith_reducer_layer_traffic(r[k], 0, &traffic));
    CHECK_OK(pith_reducer_layer_traffic(r[0], 0, &other));
    CHECK_EQ(traffic.raw_bytes, (uint64_t)(4 * values_of(0) * (size_t)ranks * pith_dtype_size(t->dtype)));
    CHECK_EQ(traffic.sent_bytes, other.sent_bytes);
    if (pith_codec_caps(e.codec[0]) & PITH_CAP_FIXED) {
      CHECK_EQ(traffic.sent_bytes, (uint64_t)(4 * pith_codec_bound(e.codec[0], values_of(0)) * (size_t)(ranks - 1)));
    }
  }
  for (size_t k = 0; k < KINDS; k++) {
    pith_reducer_destroy(r[k]);
  }
  forget(&e);
}

TEST_WITHIN(shards_are_reduced_to_their_owners, 120) {
  static const trial trials[] = {
      {"none", NULL, PITH_F32, PITH_MEAN, 1},          {"none", NULL, PITH_BF16, PITH_SUM, 1},
      {"q:4", NULL, PITH_F32, PITH_MEAN, 1},           {"q:4", "none", PITH_F16, PITH_SUM, 1},
      {"ef/q:2", NULL, PITH_F32, PITH_SUM, 1},         {"signsgd", NULL, PITH_F32, PITH_SUM, 1},
      {"signsgd", NULL, PITH_BF16, PITH_SUM, 1},       {"signsgd", "q:8", PITH_F16, PITH_MEAN, 1},
      {"signum", NULL, PITH_F32, PITH_MEAN, 1},        {"ef/topk:0.05", NULL, PITH_F32, PITH_MEAN, 1},
      {"threshold:0.4", "q:4", PITH_F16, PITH_SUM, 1}, {"terngrad", NULL, PITH_F32, PITH_MEAN, 0},
      {"ef/powersgd:2", NULL, PITH_F32, PITH_MEAN, 0}, {"powersgd:2", "gq:8", PITH_F32, PITH_SUM, 0},
      {"sketchml", NULL, PITH_F32, PITH_MEAN, 0},      {"ef/randomk:0.2", NULL, PITH_BF16, PITH_MEAN, 0},
      {"ef,store=8/q:2", NULL, PITH_F32, PITH_SUM, 1}, {"ef,store=bf16/topk:0.05", NULL, PITH_F32, PITH_MEAN, 1}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
    ranks_run("inproc", i % 3 == 2 ? 1 : i % 3 + 2, 0, check_scatter, (void *)(uintptr_t)&trials[i]);
  }
}

static void check_gather(pith_comm *comm, void *argument) {
  const trial *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  wire a = {.comm = comm}, b = {.comm = comm};
  pith_reducer *r[3] = {over_carrier(&a, t, 0), over_comm(comm, t, 0), over_carrier(&b, t, 1)};
  expected e = expect(t, rank, ranks);
  size_t whole = whole_of(SHARDS), width = pith_dtype_size(t->dtype);
  pith_span wanted = make(whole * (size_t)ranks, t->dtype), own = make(whole, t->dtype), all = make(wanted.n, t->dtype);
  for (uint64_t step = 0; step < 2; step++) {
    for (int p = 0; p < ranks; p++) {
      fill(own, p, step);
      for (size_t l = 0, at = 0; l < SHARDS; at += values_of(l++)) {
        pith_ctx ctx = ctx_of(&e, l, 0, p, p);
        pass(e.codec[l], NULL, (pith_cspan){(uint8_t *)own.data + at * width, values_of(l), t->dtype},
             (pith_span){(uint8_t *)wanted.data + ((size_t)p * whole + at) * width, values_of(l), t->dtype}, PITH_SET,
             &ctx);
      }
    }
    fill(own, rank, step);
    for (size_t k = 0; k < 3; k++) {
      memset(all.data, 0, all.n * width);
      CHECK_OK(pith_reducer_all_gather(r[k], numbers, SHARDS, (pith_cspan){own.data, own.n, own.dtype}, all));
      CHECK_MSG(!memcmp(all.data, wanted.data, all.n * width), "%s %s: step %d differs", kinds[k], t->spec, (int)step);
    }
  }
  for (size_t k = 0; k < 3; k++) {
    pith_reducer_destroy(r[k]);
  }
  free(wanted.data);
  free(own.data);
  free(all.data);
  forget(&e);
}

TEST_WITHIN(shards_are_gathered_from_their_owners, 60) {
  static const trial trials[] = {{"q:8", NULL, PITH_F32, PITH_SUM, 1},
                                 {"q:3,bucket=64", "none", PITH_BF16, PITH_SUM, 1},
                                 {"none", "q:4", PITH_F16, PITH_SUM, 1}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
    ranks_run("inproc", (int)i + 1, 0, check_gather, (void *)(uintptr_t)&trials[i]);
  }
}

static void check_misuse(pith_comm *comm, void *argument) {
  static const trial t = {"ef/q:4", NULL, PITH_F32, PITH_MEAN, 1};
  pith_reducer *r = over_comm(comm, &t, 0), *plain, *none;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1};
  float values[16] = {0};
  pith_layer layer = {sizeof layer, "shard0", shard_shapes[0], 2, PITH_F32, NULL};
  (void)argument;
  CHECK_STATUS(pith_reducer_create_with(comm, "lgreco:qq", SEED, &options, &none), PITH_ERR_SPEC);
  CHECK_STATUS(pith_reducer_add(r, &layer, NULL), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_add_shards(r, &layer, "q:4", NULL), PITH_ERR_ARGUMENT); /* it is there */
  layer.name = "other";
  CHECK_STATUS(pith_reducer_add_shards(r, &layer, "qq", NULL), PITH_ERR_SPEC);
  CHECK_EQ(pith_reducer_layers(r), (size_t)SHARDS);
  CHECK_STATUS(pith_reducer_start(r, 0, values), PITH_ERR_STATE);
  pith_cspan one = {values, 1, PITH_F32};
  pith_span to = {values + 8, 1, PITH_F32}, both = {values, 2, PITH_F32};
  CHECK_STATUS(pith_reducer_reduce_scatter(r, numbers + 3, 1, one, to, PITH_MEAN), PITH_ERR_ARGUMENT);
  CHECK_ERROR_SAYS("1 values, and the shards have 2");
  CHECK_STATUS(pith_reducer_reduce_scatter(r, numbers + 3, 1, one, to, PITH_MAX), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_reduce_scatter(r, (size_t[]){4}, 1, one, to, PITH_SUM), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_all_gather(r, numbers + 3, 1, one, both), PITH_ERR_UNSUPPORTED);
  CHECK_OK(pith_reducer_reduce_scatter(r, numbers + 3, 1, (pith_cspan){values, 2, PITH_F32}, to, PITH_MEAN));
  CHECK_OK(pith_reducer_create(comm, "q:4", SEED, &plain));
  CHECK_STATUS(pith_reducer_add_shards(plain, &layer, "q:4", NULL), PITH_ERR_STATE);
  CHECK_STATUS(pith_reducer_reduce_scatter(plain, numbers, 0, one, to, PITH_SUM), PITH_ERR_STATE);
  pith_reducer_destroy(plain);
  pith_reducer_destroy(r);
}

TEST(shards_and_whole_gradients_do_not_mix) { ranks_run("inproc", 2, 0, check_misuse, NULL); }

static void check_cut(pith_comm *comm, void *argument) {
  static const trial t = {"q:4", NULL, PITH_F32, PITH_MEAN, 1};
  wire w = {.comm = comm, .fails_at = 2}; /* the first compares layers */
  pith_reducer *r = over_carrier(&w, &t, 0);
  float values[2] = {1, 2}, sum[1];
  (void)argument;
  for (int i = 0; i < 2; i++) {
    CHECK_STATUS(pith_reducer_reduce_scatter(r, numbers + 3, 1, (pith_cspan){values, 2, PITH_F32},
                                             (pith_span){sum, 1, PITH_F32}, PITH_MEAN),
                 PITH_ERR_SYSTEM);
    CHECK_ERROR_SAYS("the wire is cut");
  }
  pith_reducer_destroy(r);
}

TEST(a_cut_wire_ends_the_reducer) { ranks_run("inproc", 2, 0, check_cut, NULL); }

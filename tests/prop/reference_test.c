/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Parameters as differences from a reference: over random walks of parameters, what is gathered has the bits of a
 * direct computation on all ranks, and differs from the true parameters by one quantization step of a difference. In
 * main memory and on a device (tests/cuda/fake), which go on from each other's checkpoints.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "laws.h"
#include "wire.h"

enum { LAYERS = 3, STEPS = 100, RANKS_MOST = 3, SEED = 5, LEVELS = 15 };

static const size_t sizes[LAYERS] = {700, 33, 2048};
static const size_t numbers[LAYERS] = {0, 1, 2};

static size_t whole(void) {
  size_t sum = 0;
  for (size_t l = 0; l < LAYERS; l++) {
    sum += sizes[l];
  }
  return sum;
}

typedef struct trial {
  const char *spec, *codec; /* codec: of the differences */
  pith_dtype dtype, store;
  uint64_t every;
  const char *fresh;
} trial;

static const char *name_of(size_t l) { return ((const char *[]){"a", "b", "c"})[l]; }

/* All ranks know what the others have: parameters of a rank walk by steps of about 0.001. */
static void walk(float *x, size_t n, int rank, uint64_t step) {
  for (size_t i = 0; i < n; i++) {
    uint32_t h = (uint32_t)(i * 2654435761u + step * 40503u + (uint64_t)rank * 1299721u);
    h = (h ^ h >> 13) * 0x5bd1e995u;
    h ^= h >> 15;
    float move = (float)(h & 0xffff) / 65536.0f - 0.5f;
    x[i] = step ? x[i] + 0.002f * move : move;
  }
}

static pith_reducer *create_in(int cuda, pith_comm *comm, wire *w, const char *spec) {
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1, .cuda = cuda};
  pith_carrier carrier = w ? carrier_of(w, cuda ? PITH_CARRIER_CUDA : 0) : (pith_carrier){0};
  CHECK_OK(w ? pith_reducer_create_over(&carrier, "none", SEED, &options, &r)
             : pith_reducer_create_with(comm, "none", SEED, &options, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    pith_layer shard = {sizeof shard, name_of(l), &sizes[l], 1, PITH_F32, NULL};
    CHECK_OK(pith_reducer_add_shards(r, &shard, spec, NULL));
  }
  return r;
}

static float value(pith_cspan span, size_t i) {
  return law_at((pith_span){(void *)(uintptr_t)span.data, span.n, span.dtype}, i);
}

static void convert(pith_cspan from, pith_span to) {
  for (size_t i = 0; i < from.n; i++) {
    law_put(to, i, value(from, i));
  }
}

static pith_reducer *create(pith_comm *comm, wire *w, const char *spec) { return create_in(0, comm, w, spec); }

/* ---- What it should be ------------------------------------------------------------------------------------------- */

typedef struct expected {
  void *reference[RANKS_MOST];
  double error, bound; /* of the last step: the largest error, and the largest that there may be */
} expected;

static void expect_layer(const trial *t, expected *e, int p, int ranks, uint64_t step, size_t l, size_t at,
                         const float *truth) {
  size_t n = sizes[l], width = pith_dtype_size(t->store);
  pith_span kept = {(uint8_t *)e->reference[p] + at * width, n, t->store};
  pith_span given = {malloc(n * 4), n, t->dtype};
  float *difference = malloc(n * sizeof *difference), low = INFINITY, high = -INFINITY;
  convert((pith_cspan){truth + at, n, PITH_F32}, given);
  uint64_t number = pith_layer_number(name_of(l));
  int is_fresh = step == 0 || (t->every && (step + number % t->every) % t->every == 0);
  for (size_t i = 0; i < n; i++) {
    float x = value((pith_cspan){given.data, n, t->dtype}, i);
    difference[i] = is_fresh ? x : x - value((pith_cspan){kept.data, n, kept.dtype}, i);
    low = fminf(low, difference[i]);
    high = fmaxf(high, difference[i]);
  }
  const char *half = t->store == PITH_BF16 || t->dtype == PITH_BF16 ? "bf16" : t->dtype == PITH_F16 ? "fp16" : "none";
  pith_codec *codec = law_codec(is_fresh ? t->fresh ? t->fresh : half : t->codec);
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = SEED, ctx.layer = pith_layer_number(name_of(l)), ctx.rank = (uint32_t)p, ctx.ranks = (uint32_t)ranks;
  ctx.step = step * (uint64_t)ranks + (uint64_t)p;
  pith_out out = {.capacity = pith_codec_bound(codec, n)};
  out.data = malloc(out.capacity + 1);
  pith_cspan values = is_fresh ? (pith_cspan){given.data, n, t->dtype} : (pith_cspan){difference, n, PITH_F32};
  CHECK_OK(pith_encode(codec, NULL, values, &out, &ctx));
  CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, kept, is_fresh ? PITH_SET : PITH_ADD, &ctx));
  double step_size = is_fresh ? t->fresh ? (double)(high - low) / 255 : 0 : (double)(high - low) / LEVELS;
  for (size_t i = 0; i < n; i++) {
    double x = (double)value((pith_cspan){given.data, n, t->dtype}, i);
    double error = fabs((double)value((pith_cspan){kept.data, n, kept.dtype}, i) - x);
    double rounding = fabs(x) * (t->store == PITH_BF16 ? 1.0 / 256 : 1e-6);
    CHECK_MSG(error <= step_size * 1.001 + rounding + 1e-7, "%s: step %d, value %zu is off by %g, a step is %g",
              t->spec, (int)step, i, error, step_size);
    e->error = fmax(e->error, error);
  }
  free(out.data);
  free(difference);
  free(given.data);
}

static void expect(const trial *t, expected *e, int ranks, uint64_t step, float *const truth[]) {
  e->error = 0;
  for (int p = 0; p < ranks; p++) {
    for (size_t l = 0, at = 0; l < LAYERS; at += sizes[l++]) {
      expect_layer(t, e, p, ranks, step, l, at, truth[p]);
    }
  }
}

/* ---- Laws -------------------------------------------------------------------------------------------------------- */

static void gather(pith_reducer *r, pith_span own, pith_span all) {
  memset(all.data, 0, all.n * pith_dtype_size(all.dtype));
  CHECK_OK(pith_reducer_all_gather(r, numbers, LAYERS, (pith_cspan){own.data, own.n, own.dtype}, all));
}

/* Every rank's references, as the call's type. */
static void check_bits(const trial *t, const expected *e, int ranks, uint64_t step, pith_span all, const char *what) {
  size_t n = whole(), width = pith_dtype_size(t->dtype);
  pith_span wanted = {malloc(n * 4), n, t->dtype};
  for (int p = 0; p < ranks; p++) {
    convert((pith_cspan){e->reference[p], n, t->store}, wanted);
    CHECK_MSG(!memcmp(wanted.data, (uint8_t *)all.data + (size_t)p * n * width, n * width), "%s %s: step %d differs",
              what, t->spec, (int)step);
  }
  free(wanted.data);
}

static pith_reducer *again(int cuda, pith_comm *comm, wire *w, const trial *t, const pith_reducer *r) {
  pith_out out = {.capacity = pith_reducer_save_size(r)};
  out.data = malloc(out.capacity);
  CHECK_OK(pith_reducer_save(r, &out));
  CHECK(out.size < whole() * (size_t)4 + 4096); /* a rank saves the references of its own shards */
  pith_reducer *made = create_in(cuda, comm, w, t->spec), *other = create(comm, NULL, "delta:3/q:5");
  CHECK_STATUS(pith_reducer_load(made, (pith_bytes){out.data, out.size - 1}), PITH_ERR_CORRUPT);
  CHECK_STATUS(pith_reducer_load(other, (pith_bytes){out.data, out.size}), PITH_ERR_STATE);
  CHECK_OK(pith_reducer_load(made, (pith_bytes){out.data, out.size}));
  pith_reducer_destroy(other);
  free(out.data);
  return made;
}

enum { KINDS = 6 };
static const char *const kinds[KINDS] = {"carrier",           "comm", "device", "device over a comm", "loaded",
                                         "loaded on a device"};

static void check_walk(pith_comm *comm, void *argument) {
  const trial *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  wire a = {.comm = comm}, b = {.comm = comm}, c = {.comm = comm};
  pith_reducer *r[KINDS] = {create(comm, &a, t->spec), create(comm, NULL, t->spec), create_in(1, comm, &c, t->spec),
                            create_in(1, comm, NULL, t->spec)};
  expected e = {0};
  float *truth[RANKS_MOST];
  size_t n = whole(), width = pith_dtype_size(t->dtype);
  pith_span own = {malloc(n * 4), n, t->dtype}, all = {malloc(n * 4 * (size_t)ranks), n * (size_t)ranks, t->dtype};
  pith_span same = {malloc(n * 4 * (size_t)ranks), all.n, t->dtype};
  double early = 0, late = 0;
  for (int p = 0; p < ranks; p++) {
    truth[p] = calloc(n, sizeof **truth);
    e.reference[p] = calloc(n, sizeof(float));
  }
  for (uint64_t step = 0; step < STEPS; step++) {
    for (int p = 0; p < ranks; p++) {
      walk(truth[p], n, p, step);
    }
    expect(t, &e, ranks, step, truth);
    early = fmax(early, step < 10 ? e.error : 0);
    late = fmax(late, step >= STEPS - 10 ? e.error : 0);
    convert((pith_cspan){truth[rank], n, PITH_F32}, own);
    for (size_t k = 0; k < KINDS && r[k]; k++) {
      gather(r[k], own, all);
      check_bits(t, &e, ranks, step, all, kinds[k]);
      CHECK_OK(pith_reducer_gathered(r[k], numbers, LAYERS, same));
      CHECK(!memcmp(same.data, all.data, all.n * width));
    }
    if (step == 20) {
      r[4] = again(0, comm, &b, t, r[2]);
      r[5] = again(1, comm, NULL, t, r[4]); /* before the loaded one has had its references back */
      CHECK_OK(pith_reducer_gathered(r[5], numbers, LAYERS, same));
      CHECK(!memcmp(same.data, all.data, all.n * width));
    }
  }
  CHECK_MSG(late <= 2 * early + 1e-6, "%s: the error grows from %g to %g", t->spec, early, late);
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  CHECK_OK(pith_reducer_layer_stats(r[0], 0, &stats));
  CHECK_EQ(stats.steps, (uint64_t)STEPS);
  CHECK_STR(stats.spec, t->spec);
  CHECK_OK(pith_reducer_layer_traffic(r[0], 2, &traffic));
  CHECK_EQ(traffic.raw_bytes, (uint64_t)(STEPS * sizes[2] * (size_t)ranks * width));
  for (size_t k = 0; k < KINDS; k++) {
    pith_reducer_destroy(r[k]);
  }
  for (int p = 0; p < ranks; p++) {
    free(truth[p]);
    free(e.reference[p]);
  }
  free(own.data);
  free(all.data);
  free(same.data);
}

TEST_WITHIN(errors_stay_within_one_step_of_a_difference, 120) {
  static const trial trials[] = {{"delta/q:4", "q:4", PITH_F32, PITH_F32, 256, NULL},
                                 {"delta:0/q:4", "q:4", PITH_F32, PITH_F32, 0, NULL},
                                 {"delta:7,fresh=8/q:4", "q:4", PITH_F32, PITH_F32, 7, "q:8"},
                                 {"delta:16,store=bf16/q:4", "q:4", PITH_F32, PITH_BF16, 16, NULL},
                                 {"delta/q:4", "q:4", PITH_BF16, PITH_F32, 256, NULL},
                                 {"delta,store=bf16/q:4", "q:4", PITH_BF16, PITH_BF16, 256, NULL},
                                 {"delta/q:4", "q:4", PITH_F16, PITH_F32, 256, NULL}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof trials / sizeof *trials; i++) {
    ranks_run("inproc", (int)i % RANKS_MOST + 1, 0, check_walk, (void *)(uintptr_t)&trials[i]);
  }
}

/* Plain q:4 has the error of whole parameters, at every gather. */
static void check_plain(pith_comm *comm, void *argument) {
  pith_reducer *r[2] = {create(comm, NULL, "q:4"), create(comm, NULL, "delta/q:4")};
  size_t n = whole(), ranks = (size_t)pith_comm_size(comm), rank = (size_t)pith_comm_rank(comm);
  float *x = calloc(n, sizeof *x), *all = calloc(n * ranks, sizeof *all);
  double error[2] = {0};
  (void)argument;
  for (uint64_t step = 0; step < STEPS; step++) {
    walk(x, n, (int)rank, step);
    for (size_t k = 0; k < 2; k++) {
      gather(r[k], (pith_span){x, n, PITH_F32}, (pith_span){all, n * ranks, PITH_F32});
      error[k] = 0;
      for (size_t i = 0; i < n; i++) {
        error[k] = fmax(error[k], fabs((double)all[rank * n + i] - (double)x[i]));
      }
    }
  }
  CHECK_MSG(error[1] > 0 && error[1] < 0.01 * error[0], "differences lose %g, whole parameters %g", error[1], error[0]);
  pith_reducer_destroy(r[0]);
  pith_reducer_destroy(r[1]);
  free(x);
  free(all);
}

TEST(differences_lose_less_than_whole_parameters) { ranks_run("inproc", 2, 0, check_plain, NULL); }

/* Layers without compression are exact, and are kept as well, so that a module can be given again. */
static void check_exact(pith_comm *comm, void *argument) {
  pith_reducer *r = create(comm, NULL, "delta/none");
  size_t n = whole(), ranks = (size_t)pith_comm_size(comm), rank = (size_t)pith_comm_rank(comm);
  float *x = calloc(n, sizeof *x), *all = calloc(n * ranks, sizeof *all);
  (void)argument;
  for (uint64_t step = 0; step < 5; step++) {
    walk(x, n, (int)rank, step);
    gather(r, (pith_span){x, n, PITH_F32}, (pith_span){all, n * ranks, PITH_F32});
    CHECK(!memcmp(all + rank * n, x, n * sizeof *x));
    memset(all, 0, n * ranks * sizeof *all);
    CHECK_OK(pith_reducer_gathered(r, numbers, LAYERS, (pith_span){all, n * ranks, PITH_F32}));
    CHECK(!memcmp(all + rank * n, x, n * sizeof *x));
  }
  pith_reducer_destroy(r);
  free(x);
  free(all);
}

TEST(exact_layers_are_exact_every_time) { ranks_run("inproc", 2, 0, check_exact, NULL); }

static void check_misuse(pith_comm *comm, void *argument) {
  pith_reducer *r = create(comm, NULL, "delta/q:4"), *plain = create(comm, NULL, "q:4");
  size_t n = whole(), ranks = (size_t)pith_comm_size(comm), one = 8;
  float *x = calloc(n * ranks, sizeof *x), *y = calloc(n * ranks, sizeof *y);
  pith_span own = {y, n, PITH_F32}, all = {y, n * ranks, PITH_F32};
  (void)argument;
  static const struct {
    const char *spec, *says;
  } wrong[] = {{"delta", "needs a codec"},     {"delta:-1/q:4", "every"},    {"delta,store=8/q:4", "store"},
               {"delta,fresh=4/q:4", "fresh"}, {"delta,what=1/q:4", "what"}, {"delta/qq", "qq"},
               {"deltas/q:4", "deltas"}};
  pith_layer shard = {sizeof shard, "wrong", &one, 1, PITH_F32, NULL};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    pith_status status = pith_reducer_add_shards(r, &shard, wrong[i].spec, NULL);
    CHECK_MSG(status == PITH_ERR_SPEC || status == PITH_ERR_RANGE, "%s: %d", wrong[i].spec, (int)status);
    CHECK_ERROR_SAYS(wrong[i].says);
  }
  CHECK_STATUS(pith_reducer_gathered(r, numbers, LAYERS, all), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("nothing was gathered yet");
  CHECK_STATUS(pith_reducer_gathered(plain, numbers, LAYERS, all), PITH_ERR_STATE);
  CHECK_ERROR_SAYS("delta/");
  CHECK_STATUS(pith_reducer_reduce_scatter(r, numbers, LAYERS, (pith_cspan){x, n * ranks, PITH_F32}, own, PITH_SUM),
               PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("is for parameters");
  CHECK_OK(pith_reducer_all_gather(r, numbers, LAYERS, (pith_cspan){x, n, PITH_F32}, all));
  CHECK_STATUS(pith_reducer_gathered(r, numbers, LAYERS, own), PITH_ERR_ARGUMENT);
  pith_reducer_destroy(r);
  pith_reducer_destroy(plain);
  for (size_t i = 0; i < 2; i++) {
    pith_reducer *odd = create(comm, NULL, i ? "delta/topk:0.1" : "delta/ef/q:4");
    CHECK_STATUS(pith_reducer_all_gather(odd, numbers, LAYERS, (pith_cspan){x, n, PITH_F32}, all),
                 PITH_ERR_UNSUPPORTED);
    CHECK_ERROR_SAYS("fixed size without memory");
    pith_reducer_destroy(odd);
  }
  free(x);
  free(y);
}

TEST(wrong_use_is_refused) { ranks_run("inproc", 2, 0, check_misuse, NULL); }

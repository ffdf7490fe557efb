/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allreduce loses: laws on the error of the mean, by algorithm. Expectations are computed here in f64, from the
 * papers alone. bench/error_table.py has the errors of all methods.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/memory.h"
#include "ranks.h"
#include "test.h"

typedef struct question {
  const char *spec, *algorithm;
  int per_host;
  size_t n;
  float **x;   /* gradients of all ranks */
  float *mean; /* what rank 0 gets */
  uint64_t step;
} question;

static float **make_gradients(int ranks, size_t n) {
  float **x = calloc((size_t)ranks, sizeof *x);
  for (int r = 0; r < ranks; r++) {
    x[r] = malloc(n * sizeof **x);
    for (size_t i = 0; i < n; i++) {
      x[r][i] = test_normal() * (i % 7 ? 1.0f : 3.0f);
    }
  }
  return x;
}

static void free_gradients(float **x, int ranks) {
  for (int r = 0; r < ranks; r++) {
    free(x[r]);
  }
  free((void *)x);
}

static void ask(pith_comm *comm, void *argument) {
  const question *q = argument;
  int rank = pith_comm_rank(comm);
  float *y = malloc(q->n * sizeof *y);
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(q->spec, &codec));
  call.codec = codec, call.algorithm = q->algorithm, call.step = q->step, call.seed = 11;
  CHECK_OK(pith_allreduce(comm, (pith_cspan){q->x[rank], q->n, PITH_F32}, (pith_span){y, q->n, PITH_F32}, PITH_MEAN,
                          &call, NULL));
  if (rank == 0) {
    memcpy(q->mean, y, q->n * sizeof *y);
  }
  pith_codec_destroy(codec);
  free(y);
}

/* ‖y − mean‖ / ‖mean‖ */
static double error_of(float *const *x, int ranks, const double *y, size_t n) {
  double lost = 0, norm = 0;
  for (size_t i = 0; i < n; i++) {
    double mean = 0;
    for (int r = 0; r < ranks; r++) {
      mean += (double)x[r][i] / ranks;
    }
    lost += (y[i] - mean) * (y[i] - mean);
    norm += mean * mean;
  }
  return sqrt(lost / norm);
}

/* ---- CGX --------------------------------------------------------------------------------------------------------- */

enum { BUCKET = 512 };

/* Max-min quantization to 16 levels, a bucket at a time. */
static void cgx_quantize(double *x, size_t n) {
  for (size_t first = 0; first < n; first += BUCKET) {
    size_t m = n - first < BUCKET ? n - first : BUCKET;
    double *b = x + first, least = b[0], most = b[0];
    for (size_t i = 1; i < m; i++) {
      least = fmin(least, b[i]);
      most = fmax(most, b[i]);
    }
    double unit = (most - least) / 15;
    for (size_t i = 0; i < m && unit > 0; i++) {
      b[i] = least + unit * floor((b[i] - least) / unit + 0.5);
    }
  }
}

/* Rank p sums part p: its own values as they are, those of the others quantized; the result is quantized. */
static double *cgx_mean(float *const *x, int ranks, size_t n) {
  size_t part = n / (size_t)ranks;
  double *mean = calloc(n, sizeof *mean), *theirs = malloc(part * sizeof *theirs);
  for (int p = 0; p < ranks; p++) {
    double *sum = mean + (size_t)p * part;
    for (int r = 0; r < ranks; r++) {
      for (size_t i = 0; i < part; i++) {
        theirs[i] = x[r][(size_t)p * part + i];
      }
      if (r != p) {
        cgx_quantize(theirs, part);
      }
      for (size_t i = 0; i < part; i++) {
        sum[i] += theirs[i] / ranks;
      }
    }
    cgx_quantize(sum, part);
  }
  free(theirs);
  return mean;
}

TEST(four_bits_have_the_error_of_cgx) {
  enum { N = 8 * BUCKET * 16 };
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    float **x = make_gradients(ranks, N), *got = malloc(N * sizeof *got);
    double *y = malloc(N * sizeof *y), *expected = cgx_mean(x, ranks, N);
    question q = {.spec = "q:4", .algorithm = "sra", .n = N, .x = x, .mean = got};
    ranks_run("inproc", ranks, 0, ask, &q);
    for (size_t i = 0; i < N; i++) {
      y[i] = got[i];
    }
    double ours = error_of(x, ranks, y, N), theirs = error_of(x, ranks, expected, N);
    CHECK_MSG(fabs(ours / theirs - 1) < 0.01, "%d ranks: q:4 has an error of %g, CGX's scheme one of %g", ranks, ours,
              theirs);
    free_gradients(x, ranks);
    free(got);
    free(y);
    free(expected);
  }
}

/* ---- Nothing is lost for good ------------------------------------------------------------------------------------ */

enum { KEPT_VALUES = 5000, KEPT_STEPS = 5 };

typedef struct account {
  const char *algorithm;
  double sent[KEPT_VALUES], kept[KEPT_VALUES]; /* of all ranks together */
  double means[KEPT_VALUES];                   /* of all steps together */
} account;

static account accounts[8]; /* ranks are threads */

/* Gradients of all steps = means of all steps + what ranks keep of what they sent + what owners keep of results. */
static void keep(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  account *a = &accounts[rank];
  float x[KEPT_VALUES], y[KEPT_VALUES];
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  *a = (account){.algorithm = argument};
  CHECK_OK(pith_codec_create("ef/q:2", &codec));
  CHECK_OK(pith_state_create(codec, KEPT_VALUES, 0, &call.state));
  call.codec = codec, call.algorithm = a->algorithm, call.layer = 5;
  for (uint64_t step = 0; step < KEPT_STEPS; step++) {
    for (size_t i = 0; i < KEPT_VALUES; i++) {
      x[i] = sinf((float)(i * 13 + (size_t)rank * 5 + step * 3)) * (1.0f + (float)(i % 7));
      a->sent[i] += x[i];
    }
    call.step = step;
    pith_span to = {y, KEPT_VALUES, PITH_F32};
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, KEPT_VALUES, PITH_F32}, to, PITH_MEAN, &call, NULL));
    for (size_t i = 0; i < KEPT_VALUES; i++) {
      a->means[i] += y[i];
    }
  }
  const pith_state *s = call.state;
  const float *residual = s->residual, *result = s->result;
  for (size_t i = 0; i < KEPT_VALUES; i++) {
    int owned = s->result && i >= s->result_first && i < s->result_first + s->result_n;
    CHECK_MSG(!owned || residual[i] == 0, "%s: rank %d owns value %zu and keeps %g of its own", a->algorithm, rank, i,
              (double)residual[i]);
    a->kept[i] = (double)residual[i] + (owned ? (double)ranks * (double)result[i] : 0);
  }
  CHECK(s->result_n > 0 || rank > 0);
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

TEST(gradients_are_means_and_what_is_kept) {
  static const char *const algorithms[] = {"sra", "ring", "tree", "hierarchical"};
  for (size_t k = 0; k < sizeof algorithms / sizeof *algorithms; k++) {
    enum { RANKS = 4 };
    ranks_run_hosts("inproc", RANKS, 2, 0, NULL, keep, (void *)(uintptr_t)algorithms[k]);
    for (size_t i = 0; i < KEPT_VALUES; i++) {
      double sent = 0, kept = 0;
      for (int r = 0; r < RANKS; r++) {
        sent += accounts[r].sent[i];
        kept += accounts[r].kept[i];
      }
      CHECK_NEAR(RANKS * accounts[0].means[i] + kept, sent, 1e-3);
    }
  }
}

/* ---- A bound for every value ------------------------------------------------------------------------------------- */

static double largest_error(const question *q, int ranks) {
  double most = 0;
  for (size_t i = 0; i < q->n; i++) {
    double mean = 0;
    for (int r = 0; r < ranks; r++) {
      mean += (double)q->x[r][i] / ranks;
    }
    most = fmax(most, fabs(q->mean[i] - mean));
  }
  return most;
}

/* Encoded once, a mean of errors within the bound is within it. Sums on the way are encoded N − 1 times and divided by
 * N; the owner's encoding of the result adds its own. */
TEST(inceptionn_keeps_its_bound_where_it_is_encoded_once) {
  enum { N = 20000 };
  static const double bounds[] = {0.1, 1e-2, 1e-3};
  static const char *const again[] = {"sra", "ring", "tree"};
  for (int ranks = 2; ranks <= 8; ranks *= 2) {
    float **x = make_gradients(ranks, N), *got = malloc(N * sizeof *got);
    for (size_t b = 0; b < sizeof bounds / sizeof *bounds; b++) {
      char spec[64];
      snprintf(spec, sizeof spec, "inceptionn:%g", bounds[b]);
      question q = {.spec = spec, .algorithm = "gather", .n = N, .x = x, .mean = got};
      ranks_run("inproc", ranks, 0, ask, &q);
      double once = largest_error(&q, ranks), rounding = 1e-5;
      CHECK_MSG(once <= bounds[b] + rounding && once > 0, "%s on %d ranks, gathered: %g", spec, ranks, once);
      for (size_t a = 0; a < sizeof again / sizeof *again; a++) {
        q.algorithm = again[a];
        ranks_run("inproc", ranks, 0, ask, &q);
        double twice = largest_error(&q, ranks);
        CHECK_MSG(twice <= 2 * bounds[b] + rounding && twice > 0, "%s on %d ranks by %s: %g", spec, ranks, again[a],
                  twice);
      }
    }
    free_gradients(x, ranks);
    free(got);
  }
}

/* ---- No bias ----------------------------------------------------------------------------------------------------- */

enum { DRAWS = 10000, DRAWN = 300 };

typedef struct draws {
  const char *spec, *algorithm;
  double mean[DRAWN], squares[DRAWN]; /* of the error of the mean over ranks, by rank 0 */
} draws;

static float drawn_value(int rank, size_t i) {
  return sinf((float)(i * 17 + (size_t)rank * 5 + 1)) * (1.0f + (float)(i % 5)) / 4;
}

/* The same gradients, drawn again and again: random numbers follow from the step. */
static void draw(pith_comm *comm, void *argument) {
  draws *d = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float x[DRAWN], y[DRAWN];
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(d->spec, &codec));
  call.codec = codec, call.algorithm = d->algorithm, call.seed = 11;
  for (size_t i = 0; i < DRAWN; i++) {
    x[i] = drawn_value(rank, i);
  }
  for (uint64_t step = 0; step < DRAWS; step++) {
    pith_span to = {y, DRAWN, PITH_F32};
    call.step = step;
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, DRAWN, PITH_F32}, to, PITH_MEAN, &call, NULL));
    for (size_t i = 0; i < DRAWN && rank == 0; i++) {
      double error = y[i];
      for (int r = 0; r < ranks; r++) {
        error -= (double)drawn_value(r, i) / ranks;
      }
      d->mean[i] += error / DRAWS;
      d->squares[i] += error * error / DRAWS;
    }
  }
  pith_codec_destroy(codec);
}

/* How far the means are from the truth, in sigmas: their sum, or the sum of their squares. Inputs and seed are fixed,
 * so that what passes once passes always. */
static double deviation(const draws *d) {
  double sum = 0, squares = 0, count = 0;
  for (size_t i = 0; i < DRAWN; i++) {
    double spread = sqrt(d->squares[i] / DRAWS);
    if (spread > 1e-7) { /* the others are not drawn */
      sum += d->mean[i] / spread;
      squares += d->mean[i] * d->mean[i] / (spread * spread);
      count++;
    }
  }
  CHECK(count > DRAWN / 2);
  return fmax(fabs(sum) / sqrt(count), (squares - count) / sqrt(2 * count));
}

static double deviation_of(const char *spec, const char *algorithm) {
  draws d = {.spec = spec, .algorithm = algorithm};
  ranks_run("inproc", 3, 0, draw, &d);
  return deviation(&d);
}

TEST_WITHIN(unbiased_methods_are_so_as_a_whole, 240) {
  static const char *const specs[] = {"qsgd:8", "natural", "terngrad,clip=0", "q:2,round=stochastic"};
  static const char *const algorithms[] = {"gather", "sra"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    for (size_t a = 0; a < sizeof algorithms / sizeof *algorithms; a++) {
      double sigmas = deviation_of(specs[s], algorithms[a]);
      CHECK_MSG(sigmas < 4.5, "%s by %s is off by %.1f sigmas", specs[s], algorithms[a], sigmas);
    }
  }
}

/* What docs/methods.md says is not unbiased would be found by the same number of draws. */
TEST_WITHIN(clipping_and_rotations_are_biased, 240) {
  static const char *const specs[] = {"terngrad,clip=1.5", "drive", "eden:2", "q:2"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    double sigmas = deviation_of(specs[s], "gather");
    CHECK_MSG(sigmas > 20, "%s is off by %.1f sigmas only", specs[s], sigmas);
  }
}

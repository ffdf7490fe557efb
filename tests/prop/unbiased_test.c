/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unbiased methods are right on average: over many steps the mean of the decoded values converges to the input, as fast
 * as the variance says. Inputs and seeds are fixed, so that what passes once passes always.
 *
 * With v the mean squared error of a value over the steps, mean − x has the variance v / steps. Three sums of it, each
 * with other weights, are compared with their spread: all values (a drift), by sign (shrinking), by size (clipping);
 * and the sum of squares with its expectation, which finds a bias of single values.
 */
#include <math.h>

#include "base/rng.h"
#include "laws.h"

#define SIGMAS 4.5 /* one in 150,000 by chance, for each of some forty numbers */

static double unit(size_t i, unsigned stream) {
  return pith__rng_unit((pith_key){0x1234u + stream, 0x9876u}, (uint32_t)i);
}

static float fixed_normal(size_t i) {
  return (float)(sqrt(-2 * log(1 - unit(i, 0))) * cos(6.283185307179586 * unit(i, 1)));
}

static float fixed_laplace(size_t i) { return (float)((unit(i, 2) < 0.5 ? 1 : -1) * -log(1 - unit(i, 3))); }

typedef struct average {
  double *mean, *variance; /* of the decoded values; about x */
} average;

static average average_over(const pith_codec *codec, pith_span src, size_t steps) {
  average a = {law_bytes(src.n * sizeof(double), 0), law_bytes(src.n * sizeof(double), 0)};
  const float *x = src.data;
  size_t bound = pith_codec_bound(codec, src.n);
  pith_out out = {law_bytes(bound, 0), bound, 0};
  pith_span dst = {law_floats(src.n), src.n, PITH_F32};
  const float *got = dst.data;
  memset(a.mean, 0, src.n * sizeof *a.mean);
  memset(a.variance, 0, src.n * sizeof *a.variance);
  for (size_t step = 0; step < steps; step++) {
    pith_ctx ctx = law_ctx(step);
    CHECK_OK(pith_encode(codec, NULL, law_const(src), &out, &ctx));
    CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, dst, PITH_SET, &ctx));
    for (size_t i = 0; i < src.n; i++) {
      double error = (double)got[i] - x[i];
      a.mean[i] += got[i] / (double)steps;
      a.variance[i] += error * error / (double)steps;
    }
  }
  return a;
}

static double weight_of(int kind, float x) { return kind == 0 ? 1 : kind == 1 ? copysign(1, (double)x) : x; }

static void check_drift(const char *spec, const float *x, average a, size_t n, size_t steps) {
  for (int kind = 0; kind < 3; kind++) {
    double sum = 0, spread = 0, rounding = 0;
    for (size_t i = 0; i < n; i++) {
      double weight = weight_of(kind, x[i]);
      sum += weight * (a.mean[i] - x[i]);
      spread += weight * weight * a.variance[i] / (double)steps;
      rounding += 1e-6 * fabs(weight * x[i]);
    }
    CHECK_MSG(fabs(sum) <= SIGMAS * sqrt(spread) + rounding, "%s: sum %d is off by %g, %.2f sigmas", spec, kind, sum,
              fabs(sum) / sqrt(spread));
  }
}

/* The sum of squares of n errors, scaled to the expectation 1, has the spread √(2/n), n being the effective number
 * where variances differ; a fifth more for errors that are few and large, and so not normal even in the mean. */
static void check_each(const char *spec, const float *x, average a, size_t n, size_t steps) {
  double squares = 0, expected = 0, fourth = 0, floor = 0;
  for (size_t i = 0; i < n; i++) {
    double v = a.variance[i] / (double)steps;
    squares += (a.mean[i] - x[i]) * (a.mean[i] - x[i]);
    expected += v;
    fourth += v * v;
    floor += 1e-12 * (double)x[i] * x[i];
  }
  double spread = 1.2 * sqrt(2 * fourth);
  CHECK_MSG(squares <= expected + SIGMAS * spread + floor, "%s: the means are off by %g, not %g ± %g", spec, squares,
            expected, spread);
}

static void check_unbiased(const char *spec, float (*value)(size_t i), size_t n, size_t steps) {
  pith_codec *codec = law_codec(spec);
  pith_span src = {law_floats(n), n, PITH_F32};
  for (size_t i = 0; i < n; i++) {
    law_put(src, i, value(i));
  }
  average a = average_over(codec, src, steps);
  check_drift(spec, src.data, a, n, steps);
  check_each(spec, src.data, a, n, steps);
  law_sweep();
}

static const char *const promised[] = {
    "none",
    "q:1,round=stochastic",
    "q:4,round=stochastic",
    "qsgd:4",
    "qsgd:64",
    "qsgd:1,norm=linf",
    "qsgd:1,coding=elias",
    "nuq:3",
    "nuq:4,norm=l2",
    "nuq:8",
    "terngrad:0",
    "natural",
    "gq:4",
    "gq:8",
    "lossless",
    "randomk:0.1,unbiased=1",
    "randomk:0.5,unbiased=1,values=fp16",
    "hadamard/q:2,round=stochastic",
    "hadamard/terngrad:0",
};

TEST(codecs_that_promise_it_are_unbiased) {
  for (size_t k = 0; k < sizeof promised / sizeof *promised; k++) {
    CHECK(pith_codec_caps(law_codec(promised[k])) & PITH_CAP_UNBIASED);
    check_unbiased(promised[k], fixed_normal, 1111, 1500);
    check_unbiased(promised[k], fixed_laplace, 512, 1500);
  }
}

/* Their rotation is a random Hadamard one, not a uniform one: unbiased for vectors with many terms in each sum. */
TEST(drive_and_eden_are_unbiased_over_rotations_where_many_values_count) {
  static const char *const specs[] = {"drive:1024", "eden:1,block=1024", "eden:2,block=1024", "eden:4,block=1024"};
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    check_unbiased(specs[k], fixed_normal, 2048, 1000);
    check_unbiased(specs[k], fixed_laplace, 1024, 1000);
  }
}

static float three_values(size_t i) { return i == 0 ? 1 : i == 1 ? 0.5f : i == 2 ? 0.25f : 0; }

/* And not for others: of (1, 1/2, 1/4, 0 …) only the largest decides the signs of all sums. So they do not promise it.
 */
TEST(drive_and_eden_are_biased_where_a_few_values_count) {
  static const char *const specs[] = {"drive:1024", "eden:1,block=1024", "eden:2,block=1024"};
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    pith_codec *codec = law_codec(specs[k]);
    pith_span src = {law_floats(1024), 1024, PITH_F32};
    for (size_t i = 0; i < src.n; i++) {
      law_put(src, i, three_values(i));
    }
    average a = average_over(codec, src, 400);
    CHECK(!(pith_codec_caps(codec) & PITH_CAP_UNBIASED));
    double off = fmax(fabs(a.mean[0] - 1), fmax(fabs(a.mean[1] - 0.5), fabs(a.mean[2] - 0.25)));
    CHECK_MSG(off > 0.1, "%s: %g, %g, %g", specs[k], a.mean[0], a.mean[1], a.mean[2]);
    law_sweep();
  }
}

/* Every method says so itself, or is here under another name: a codec that joins with the flag must join the list. */
TEST(every_method_with_the_promise_is_tested) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    const char *parts = pith_codec_parts(codec), *last = strrchr(parts, '/') ? strrchr(parts, '/') + 1 : parts;
    size_t name = strcspn(last, ":,");
    int found = 0;
    for (size_t k = 0; k < sizeof promised / sizeof *promised; k++) {
      const char *other = strrchr(promised[k], '/') ? strrchr(promised[k], '/') + 1 : promised[k];
      found |= strcspn(other, ":,") == name && strncmp(other, last, name) == 0;
    }
    CHECK_MSG(found || !(pith_codec_caps(codec) & PITH_CAP_UNBIASED), "%s promises to be unbiased", law_spec(s));
    law_sweep();
  }
}

/* Clipped or nearest, they do not promise it, and should not: the means stay away from x. */
TEST(biased_codecs_do_not_promise_it) {
  static const char *const specs[] = {"q:4",         "terngrad", "sign,scale=mean", "topk:0.1",
                                      "randomk:0.1", "signmean", "tree8",           "fp16"};
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    CHECK_MSG(!(pith_codec_caps(law_codec(specs[k])) & PITH_CAP_UNBIASED), "%s", specs[k]);
  }
  law_sweep();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* What each sparsifier sends, over random lengths, types and distributions, against its definition. */
#include "prop/sparse_coder.h"

/* ---- Top-k ------------------------------------------------------------------------------------------------------- */

typedef struct ranked {
  uint32_t key;
  size_t index;
} ranked;

static int by_rank(const void *a, const void *b) {
  const ranked *x = a, *y = b;
  return x->key != y->key ? (x->key < y->key ? 1 : -1) : (x->index > y->index) - (x->index < y->index);
}

/* What top-k must decode to: found by sorting. */
static pith_span expected_top(pith_cspan src, size_t k) {
  ranked *order = malloc((src.n + 1) * sizeof *order);
  pith_span dst = floats(src.n);
  for (size_t i = 0; i < src.n; i++) {
    order[i] = (ranked){key_of(pith__span_get(src, i)), i};
  }
  qsort(order, src.n, sizeof *order, by_rank);
  for (size_t i = 0; i < k; i++) {
    float x = pith__span_get(src, order[i].index);
    pith__span_put(dst, order[i].index, isfinite(x) ? x : NAN);
  }
  free(order);
  return dst;
}

static void check_top(pith_cspan src, double ratio) {
  coder c = coder_of("topk:0.5");
  c.a[0].f = ratio;
  size_t k = (size_t)ceil(ratio * (double)src.n);
  pith_bytes in = encode(&c, src);
  pith_span got = decoded(&c, in, src.n), wanted = expected_top(src, k);
  uint64_t count;
  memcpy(&count, (const uint8_t *)in.data + 8, sizeof count);
  CHECK_EQ(count, k);
  for (size_t i = 0; i < src.n; i++) {
    CHECK_MSG(same(at(got, i), at(wanted, i)), "value %zu of %zu is %g, not %g", i, src.n, at(got, i), at(wanted, i));
  }
  free(got.data);
  free(wanted.data);
  release(in);
}

TEST(topk_sends_exactly_the_largest) {
  static const double ratios[] = {0.0009765625, 0.0078125, 0.015625, 0.0625, 0.25, 0.75, 1};
  for (int round = 0; round < 400; round++) {
    pith_cspan src = tensor((shape)(round % SHAPES), some_length(round), (pith_dtype)test_below(3));
    if (src.n > 0 && round % 5 == 0) {
      static const float bad[] = {NAN, INFINITY, -INFINITY};
      pith__span_put((pith_span){(void *)src.data, src.n, src.dtype}, test_below(src.n), bad[test_below(3)]);
    }
    check_top(src, ratios[test_below(7)]);
    free((void *)src.data);
  }
}

/* The large values in one place, or few different ones. tests/unit/selection_test.c has samples that mislead. */
TEST(topk_is_exact_for_clustered_and_repeated_values) {
  size_t n = 200000;
  for (int kind = 0; kind < 4; kind++) {
    pith_cspan src = tensor(NORMAL, n, PITH_F32);
    float *x = (float *)src.data;
    for (size_t i = 0; i < n; i++) {
      int inside = i >= n / 2 && i < n / 2 + 3000;
      x[i] = kind == 0   ? x[i] + 100 * (float)inside
             : kind == 1 ? x[i] * (float)inside
             : kind == 2 ? (float)(i % 7 == 0)
                         : x[i];
      x[i] = kind == 3 ? (float)(i % 3) - 1 : x[i];
    }
    check_top(src, 0.0078125);
    check_top(src, 0.015625);
    check_top(src, 0.25);
    free((void *)src.data);
  }
}

TEST(one_percent_takes_at_most_0_41_bits) {
  size_t n = 1 << 20;
  for (shape s = NORMAL; s <= LAPLACE; s++) {
    coder c = coder_of("topk:0.01");
    pith_cspan src = tensor(s, n, PITH_F32);
    pith_bytes in = encode(&c, src);
    CHECK_MSG(8.0 * (double)in.size / (double)n <= 0.41, "%g bits", 8.0 * (double)in.size / (double)n);
    release(in);
    free((void *)src.data);
  }
}

static size_t count_of(pith_bytes in) {
  uint64_t count;
  memcpy(&count, (const uint8_t *)in.data + 8, sizeof count);
  return (size_t)count;
}

/* Nothing that stayed is larger than what travelled, and the number is about right. */
static void check_about(const char *spec, shape s, size_t n) {
  coder c = coder_of(spec);
  pith_cspan src = tensor(s, n, PITH_F32);
  pith_bytes in = encode(&c, src);
  pith_span left = copy_of(src);
  CHECK_OK(decode(&c, in, left, PITH_APPLY_CLEAR));
  uint32_t stayed = 0, travelled = 0x7fffffff;
  for (size_t i = 0; i < n; i++) {
    uint32_t key = key_of(pith__span_get(src, i)), after = key_of(at(left, i));
    stayed = after > stayed ? after : stayed;
    travelled = key != after && key < travelled ? key : travelled;
  }
  size_t k = pith__ratio_count(c.a[0].f, n);
  CHECK(stayed <= travelled);
  CHECK_MSG(count_of(in) >= k / 2 && count_of(in) <= 2 * k, "%s: %zu of %zu for k = %zu", spec, count_of(in), n, k);
  free(left.data);
  release(in);
  free((void *)src.data);
}

TEST(sampled_and_fitted_cuts_are_about_right) {
  static const char *const specs[] = {"topk:0.01,select=sampled", "topk:0.01,select=fit", "topk:0.1,select=sampled",
                                      "topk:0.1,select=fit", "topk:0.001,select=fit"};
  for (size_t i = 0; i < 5; i++) {
    for (shape s = NORMAL; s < SHAPES; s++) {
      check_about(specs[i], s, 100000 + test_below(1000));
      check_about(specs[i], s, 1 + test_below(1000));
    }
  }
}

TEST(warmup_lowers_the_ratio_in_four_stages) {
  coder c = coder_of("topk:0.001,warmup=100");
  static const struct {
    uint64_t step;
    size_t count;
  } wanted[] = {{0, 16384}, {24, 16384}, {25, 4096}, {50, 1024}, {75, 256}, {99, 256}, {100, 66}, {1000, 66}};
  pith_cspan src = tensor(NORMAL, 65536, PITH_F32);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    pith_bytes in = encode_at(&c, src, ctx_of(wanted[i].step));
    CHECK_EQ(count_of(in), wanted[i].count);
    release(in);
  }
  free((void *)src.data);
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

TEST(threshold_sends_all_that_reach_it_and_all_values_where_that_is_smaller) {
  for (int round = 0; round < 200; round++) {
    coder c = coder_of("threshold:0.1");
    c.a[0].f = round % 20 ? test_uniform() * 3 : 0;
    pith_cspan src = tensor((shape)(round % SHAPES), some_length(round), (pith_dtype)test_below(3));
    pith_bytes in = encode(&c, src);
    pith_span got = decoded(&c, in, src.n);
    int dense = ((const uint8_t *)in.data)[0] == PITH_INDEX_DENSE;
    CHECK(in.size <= PITH_SPARSE_HEAD + 4 * src.n);
    for (size_t i = 0; i < src.n; i++) {
      float x = pith__span_get(src, i);
      CHECK(same(at(got, i), !isfinite(x) ? NAN : dense || fabs((double)x) >= c.a[0].f ? x : 0.0f));
    }
    free(got.data);
    release(in);
    free((void *)src.data);
  }
}

static void draw_places(const coder *c, size_t n, uint64_t step, unsigned *hits) {
  pith_ctx ctx = ctx_of(step);
  size_t k = pith__ratio_count(c->a[0].f, n);
  float *ones = malloc((k + 1) * sizeof *ones);
  for (size_t i = 0; i < k; i++) {
    ones[i] = 1;
  }
  pith_span dst = floats(n);
  CHECK_OK(c->ops->decode(c->a, (pith_bytes){ones, k * sizeof *ones}, dst, PITH_APPLY_ADD, &ctx));
  for (size_t i = 0; i < n; i++) {
    CHECK(at(dst, i) == 0 || at(dst, i) == 1); /* without replacement */
    hits[i] += at(dst, i) == 1;
  }
  free(dst.data);
  free(ones);
}

TEST(randomk_draws_every_place_equally_often) {
  static const size_t lengths[] = {1, 2, 3, 10, 100, 129, 1000};
  coder c = coder_of("randomk:0.3");
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
    size_t n = lengths[l], k = pith__ratio_count(0.3, n), rounds = 4000;
    unsigned *hits = calloc(n, sizeof *hits);
    double share = (double)k / (double)n, chi = 0, spread = (double)rounds * share * (1 - share);
    for (size_t step = 0; step < rounds; step++) {
      draw_places(&c, n, step, hits);
    }
    for (size_t i = 0; i < n; i++) {
      double off = (double)hits[i] - (double)rounds * share;
      chi += spread > 0 ? off * off / spread : off * off;
    }
    CHECK_MSG(chi <= (double)n + 6 * sqrt(2 * (double)n) + 6, "n = %zu: chi square %g", n, chi);
    free(hits);
  }
}

TEST(randomk_is_unbiased_on_request_and_the_same_on_every_rank) {
  coder c = coder_of("randomk:0.1,unbiased=1");
  size_t n = 500, rounds = 4000;
  pith_cspan src = tensor(NORMAL, n, PITH_F32);
  double *mean = calloc(n, sizeof *mean), error = 0, power = 0;
  for (size_t step = 0; step < rounds; step++) {
    pith_ctx mine = ctx_of(step), other = ctx_of(step);
    mine.rank = 5;
    pith_bytes in = encode_at(&c, src, mine);
    pith_span dst = floats(n);
    CHECK_OK(c.ops->decode(c.a, in, dst, PITH_APPLY_SET, &other));
    for (size_t i = 0; i < n; i++) {
      mean[i] += at(dst, i) / (double)rounds;
    }
    free(dst.data);
    release(in);
  }
  for (size_t i = 0; i < n; i++) {
    float x = pith__span_get(src, i);
    error += (mean[i] - x) * (mean[i] - x);
    power += x * x;
  }
  CHECK_NEAR(error / power, 9.0 / (double)rounds, 4.5 / (double)rounds);
  free(mean);
  free((void *)src.data);
}

TEST(randomk_payloads_add_up) {
  coder c = coder_of("randomk:0.25");
  size_t n = 1000;
  pith_cspan x = tensor(NORMAL, n, PITH_F32), y = tensor(NORMAL, n, PITH_F32);
  pith_bytes a = encode(&c, x), b = encode(&c, y);
  CHECK_EQ(a.size, b.size);
  CHECK_EQ(a.size, c.ops->bound(c.a, n));
  float *sum = malloc(a.size);
  for (size_t i = 0; i < a.size / sizeof *sum; i++) {
    sum[i] = ((const float *)a.data)[i] + ((const float *)b.data)[i];
  }
  pith_span together = decoded(&c, (pith_bytes){sum, a.size}, n), apart = decoded(&c, a, n);
  CHECK_OK(decode(&c, b, apart, PITH_APPLY_ADD));
  CHECK_BYTES(together.data, apart.data, n * sizeof(float));
  free(together.data);
  free(apart.data);
  free(sum);
  release(a);
  release(b);
  free((void *)x.data);
  free((void *)y.data);
}

TEST(adaptive_sends_the_mean_of_the_largest_of_each_side) {
  for (int round = 0; round < 60; round++) {
    coder c = coder_of("adaptive:0.125");
    pith_cspan src = tensor((shape)(round % SHAPES), some_length(round), PITH_F32);
    pith_bytes in = encode(&c, src);
    pith_span got = decoded(&c, in, src.n);
    double sum[2] = {0}, sent[2] = {0};
    size_t values[2] = {0}, travelled[2] = {0};
    for (size_t i = 0; i < src.n; i++) {
      float x = pith__span_get(src, i);
      int side = x < 0;
      values[side] += x != 0;
      travelled[side] += at(got, i) != 0;
      sum[side] += at(got, i) != 0 ? x : 0;
      sent[side] += at(got, i);
      CHECK(at(got, i) == 0 || (at(got, i) < 0) == side);
    }
    for (int side = 0; side < 2; side++) {
      CHECK_EQ(travelled[side], pith__ratio_count(0.125, values[side]));
      CHECK_NEAR(sent[side], sum[side], 1e-6 * fabs(sum[side]) + 1e-44 * (double)src.n);
    }
    free(got.data);
    release(in);
    free((void *)src.data);
  }
}

TEST(sketchml_keeps_order_and_mean_and_skips_zeros_where_that_is_smaller) {
  for (int round = 0; round < 60; round++) {
    coder c = coder_of("sketchml:64");
    pith_cspan src = tensor((shape)(round % SHAPES), some_length(round), PITH_F32);
    pith_bytes in = encode(&c, src);
    pith_span got = decoded(&c, in, src.n);
    double sum = 0, sent = 0, size = 0;
    for (size_t i = 0; i < src.n; i++) {
      float x = pith__span_get(src, i), d = at(got, i);
      sum += x;
      sent += d;
      size += fabs((double)x);
      if (i > 0) {
        float y = pith__span_get(src, i - 1), e = at(got, i - 1);
        CHECK((x <= y && d <= e) || (x >= y && d >= e));
      }
    }
    CHECK_NEAR(sent, sum, 1e-6 * size + 1e-43 * (double)src.n);
    CHECK(in.size <= PITH_SPARSE_HEAD + 64 * 4 + (6 * src.n + 7) / 8);
    if (round % SHAPES == SPARSE && src.n > 1000) {
      CHECK(in.size < PITH_SPARSE_HEAD + 64 * 4 + src.n / 8);
    }
    free(got.data);
    release(in);
    free((void *)src.data);
  }
}
/* ---- How values travel ------------------------------------------------------------------------------------------- */

/* Relative to the largest value; half types lose what they must, q8 half a level of a block. */
TEST(value_codings_lose_no_more_than_they_must) {
  static const struct {
    const char *spec;
    double loss;
  } wanted[] = {
      {"topk:0.2,values=fp16", 0x1p-11}, {"topk:0.2,values=bf16", 0x1p-8}, {"topk:0.2,values=q8", 0.51 / 127}};
  for (int round = 0; round < 90; round++) {
    coder c = coder_of(wanted[round % 3].spec);
    shape s = round / 3 % 2 ? NORMAL : round % 3 ? HUGE_ : LAPLACE;
    pith_cspan src = tensor(s, 1 + some_length(round), PITH_F32);
    pith_bytes in = encode(&c, src);
    pith_span got = decoded(&c, in, src.n), exact = expected_top(src, pith__ratio_count(0.2, src.n));
    double largest = 0, worst = 0;
    for (size_t i = 0; i < src.n; i++) {
      largest = fmax(largest, fabs((double)at(exact, i)));
      worst = fmax(worst, fabs((double)at(exact, i) - at(got, i)));
    }
    CHECK_MSG(worst <= largest * wanted[round % 3].loss * 1.001, "%s loses %g of %g", wanted[round % 3].spec, worst,
              largest);
    free(got.data);
    free(exact.data);
    release(in);
    free((void *)src.data);
  }
}

TEST(values_too_large_for_a_half_stay_finite) {
  float x[] = {1e6f, -3.4e38f, 70000, 65519, 1}, y[5];
  static const char *const specs[] = {"topk:1,values=fp16", "topk:1,values=bf16", "topk:1,values=q8",
                                      "topk:0.5,values=q8"};
  for (size_t s = 0; s < 4; s++) {
    coder c = coder_of(specs[s]);
    pith_bytes in = encode(&c, (pith_cspan){x, 5, PITH_F32});
    CHECK_OK(decode(&c, in, (pith_span){y, 5, PITH_F32}, PITH_APPLY_SET));
    for (size_t i = 0; i < 5; i++) {
      CHECK(isfinite(y[i]));
    }
    release(in);
  }
}

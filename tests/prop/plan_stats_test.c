/* SPDX-License-Identifier: Apache-2.0 */
/* Error tables: what they say of every candidate is what encoding and decoding shows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "test.h"

enum { ROWS = 96, COLS = 300, N = ROWS * COLS };

typedef struct gradient {
  float value[N];
} gradient;

/* Rows of different magnitude, some structure of low rank, some large values. */
static gradient *make_gradient(void) {
  gradient *g = malloc(sizeof *g);
  float left[ROWS], right[COLS];
  CHECK(g);
  for (size_t i = 0; i < COLS; i++) {
    right[i] = test_normal();
  }
  for (size_t i = 0; i < ROWS; i++) {
    float scale = (float)exp(2 * test_normal());
    left[i] = test_normal();
    for (size_t j = 0; j < COLS; j++) {
      float x = 2 * left[i] * right[j] + scale * test_normal();
      g->value[i * COLS + j] = test_below(50) ? x : 10 * x;
    }
  }
  return g;
}

static pith_profile *profile_of(const char *candidates) {
  pith_profile *profile = NULL;
  pith_layer layer = {sizeof(pith_layer), "w", (size_t[]){ROWS, COLS}, 2, PITH_F32, NULL};
  CHECK_OK(pith_profile_create(&layer, 1, candidates, &profile));
  return profile;
}

typedef struct truth {
  double bytes, error;
} truth;

/* The public way there and back, in f32. */
static truth measure(const char *spec, pith_cspan x, const float *plain) {
  pith_codec *codec;
  pith_state *state;
  float *decoded = malloc(N * sizeof *decoded);
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.rows = ROWS;
  CHECK_OK(pith_codec_create(spec, &codec));
  CHECK_OK(pith_state_create(codec, N, ROWS, &state)); /* of memories, fresh: they add nothing yet */
  pith_out out = {malloc(pith_codec_bound(codec, N)), pith_codec_bound(codec, N), 0};
  CHECK(decoded && out.data);
  CHECK_OK(pith_encode(codec, state, x, &out, &ctx));
  pith_state_destroy(state);
  CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, (pith_span){decoded, N, PITH_F32}, PITH_SET, &ctx));
  truth t = {(double)out.size, 0};
  for (size_t i = 0; i < N; i++) {
    t.error += ((double)plain[i] - (double)decoded[i]) * ((double)plain[i] - (double)decoded[i]);
  }
  free(decoded);
  free(out.data);
  pith_codec_destroy(codec);
  return t;
}

static void check_candidates(const char *candidates, double error_tolerance, double bytes_tolerance) {
  gradient *g = make_gradient();
  pith_profile *profile = profile_of(candidates);
  pith_cspan x = {g->value, N, PITH_F32};
  CHECK_OK(pith_profile_update(profile, 0, x, NULL));
  for (size_t c = 0; c < pith_profile_candidates(profile); c++) {
    const char *spec = pith_profile_candidate(profile, c);
    truth t = measure(spec, x, g->value);
    double bytes, error;
    CHECK_OK(pith_profile_get(profile, 0, c, &bytes, &error));
    CHECK_MSG(fabs(error - t.error) <= error_tolerance * t.error + 1e-9, "%s: error %.9g, not %.9g", spec, error,
              t.error);
    CHECK_MSG(fabs(bytes - t.bytes) <= bytes_tolerance * t.bytes, "%s: %.9g bytes, not %.9g", spec, bytes, t.bytes);
  }
  pith_profile_destroy(profile);
  free(g);
}

TEST(widths_of_quantizers) {
  check_candidates("q:1;q:2;q:3;q:4;q:5;q:6;q:7;q:8;q:4,bucket=64;q:3,bucket=2048", 1e-4, 0);
}

TEST(quantizers_of_all_kinds) {
  check_candidates("q:4,round=stochastic;qsgd:16;terngrad;natural;bf16;fp16;eden:3;hadamard/q:4;u8;q:4,bucket=768",
                   1e-4, 0);
}

/* The cut is known to a 128th of a magnitude, the indices as if places had no order. */
TEST(ratios_of_topk) {
  check_candidates("topk:0.001;topk:0.003;topk:0.01;topk:0.03;topk:0.1;topk:0.3;topk:0.9;topk:1", 0.01, 0.03);
}

TEST(sparsifiers_of_all_kinds) {
  check_candidates("topk:0.01,values=fp16;topk:0.02,select=sampled;randomk:0.1;threshold:3;adaptive:0.05;sketchml:32",
                   1e-4, 0);
}

TEST(nothing_is_lost_without_compression) {
  gradient *g = make_gradient();
  pith_profile *profile = profile_of("none;topk:1");
  double bytes, error;
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
  CHECK_OK(pith_profile_get(profile, 0, 0, &bytes, &error));
  CHECK(bytes == 4.0 * N && error == 0);
  pith_profile_destroy(profile);
  free(g);
}

/* Runs a rank alone, three times from a fresh state as the table does, and looks at what is left. */
static double left_by_rank(int rank, const float *x) {
  char spec[32];
  pith_codec *codec;
  pith_state *state;
  float *decoded = malloc(N * sizeof *decoded);
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.rows = ROWS;
  snprintf(spec, sizeof spec, "powersgd:%d", rank);
  CHECK_OK(pith_codec_create(spec, &codec));
  CHECK_OK(pith_state_create(codec, N, ROWS, &state));
  pith_out out = {malloc(pith_codec_bound(codec, N)), pith_codec_bound(codec, N), 0};
  for (int i = 0; i < 3; i++) {
    CHECK_OK(pith_encode(codec, state, (pith_cspan){x, N, PITH_F32}, &out, &ctx));
  }
  CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, (pith_span){decoded, N, PITH_F32}, PITH_SET, &ctx));
  double sum = 0;
  for (size_t i = 0; i < N; i++) {
    sum += ((double)x[i] - (double)decoded[i]) * ((double)x[i] - (double)decoded[i]);
  }
  free(decoded);
  free(out.data);
  pith_state_destroy(state);
  pith_codec_destroy(codec);
  return sum;
}

TEST(one_run_of_low_rank_tells_of_all_ranks) {
  static const int ranks[] = {1, 2, 3, 5, 8, 16};
  gradient *g = make_gradient();
  pith_profile *profile = profile_of("powersgd:1;powersgd:2;powersgd:3;powersgd:5;powersgd:8;powersgd:16;powersgd:64");
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
  double bytes, error;
  for (size_t c = 0; c < 6; c++) {
    double left = left_by_rank(ranks[c], g->value);
    CHECK_OK(pith_profile_get(profile, 0, c, &bytes, &error));
    CHECK_NEAR(error, left, 1e-3 * left);
    CHECK_EQ((size_t)bytes, (size_t)ranks[c] * (ROWS + COLS) * 4);
  }
  CHECK_OK(pith_profile_get(profile, 0, 6, &bytes, &error)); /* not worth factoring: travels as it is */
  CHECK(error == 0 && bytes == 4.0 * N);
  pith_profile_destroy(profile);
  free(g);
}

TEST(half_types_are_measured_as_what_they_hold) {
  gradient *g = make_gradient();
  uint16_t *half = malloc(N * sizeof *half);
  for (size_t i = 0; i < N; i++) { /* bf16 is the upper half */
    uint32_t bits;
    memcpy(&bits, &g->value[i], 4);
    half[i] = (uint16_t)(bits >> 16);
    bits &= 0xffff0000u;
    memcpy(&g->value[i], &bits, 4);
  }
  pith_profile *a = profile_of("q:4;topk:0.01;powersgd:2;sketchml:32"),
               *b = profile_of("q:4;topk:0.01;powersgd:2;sketchml:32");
  CHECK_OK(pith_profile_update(a, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
  CHECK_OK(pith_profile_update(b, 0, (pith_cspan){half, N, PITH_BF16}, NULL));
  size_t count;
  double *va = pith_profile_values(a, &count), *vb = pith_profile_values(b, &count);
  CHECK_BYTES(va, vb, count * sizeof *va);
  pith_profile_destroy(a);
  pith_profile_destroy(b);
  free(half);
  free(g);
}

TEST(sums_of_ranks_are_statistics_of_all_of_them) {
  pith_profile *one = profile_of("q:4;topk:0.01"), *other = profile_of("q:4;topk:0.01"),
               *both = profile_of("q:4;topk:0.01");
  for (int i = 0; i < 3; i++) {
    gradient *g = make_gradient();
    CHECK_OK(pith_profile_update(i < 2 ? one : other, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
    CHECK_OK(pith_profile_update(both, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
    free(g);
  }
  size_t count;
  double *a = pith_profile_values(one, &count), *b = pith_profile_values(other, &count);
  for (size_t i = 0; i < count; i++) {
    a[i] += b[i];
  }
  for (size_t c = 0; c < 2; c++) {
    double bytes, error, all_bytes, all_error;
    CHECK_OK(pith_profile_get(one, 0, c, &bytes, &error));
    CHECK_OK(pith_profile_get(both, 0, c, &all_bytes, &all_error));
    CHECK_NEAR(bytes, all_bytes, 1e-9 * all_bytes);
    CHECK_NEAR(error, all_error, 1e-9 * all_error);
  }
  pith_profile_destroy(one);
  pith_profile_destroy(other);
  pith_profile_destroy(both);
}

TEST(gradients_that_are_not_finite_are_left_out) {
  gradient *g = make_gradient();
  pith_profile *profile = profile_of("q:4;powersgd:2");
  pith_profile_layer layer = PITH_PROFILE_LAYER_INIT;
  double bytes, error;
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
  CHECK_OK(pith_profile_get(profile, 0, 0, &bytes, &error));
  float bad[] = {NAN, INFINITY, -INFINITY};
  for (int i = 0; i < 3; i++) {
    float kept = g->value[1234];
    double again;
    g->value[1234] = bad[i];
    CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
    g->value[1234] = kept;
    CHECK_OK(pith_profile_get(profile, 0, 0, &bytes, &again));
    CHECK(again == error);
  }
  CHECK_OK(pith_profile_layer_get(profile, 0, &layer));
  CHECK_EQ(layer.samples, 1);
  CHECK_EQ(layer.skipped, 3);
  pith_profile_destroy(profile);
  free(g);
}

TEST(zeros_are_measured_too) {
  gradient *g = calloc(1, sizeof *g);
  pith_profile *profile = profile_of("q:4;topk:0.01;powersgd:2;sketchml:32;eden:2");
  CHECK_OK(pith_profile_update(profile, 0, (pith_cspan){g->value, N, PITH_F32}, NULL));
  for (size_t c = 0; c < pith_profile_candidates(profile); c++) {
    double bytes, error;
    CHECK_OK(pith_profile_get(profile, 0, c, &bytes, &error));
    CHECK_MSG(error == 0 && bytes > 0, "%s: error %g", pith_profile_candidate(profile, c), error);
  }
  pith_profile_destroy(profile);
  free(g);
}

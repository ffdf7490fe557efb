/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a residual in fewer bits promises: with what was decoded it gives the compensated gradient, to within a step of
 * its store; what single steps lose by rounding others gain; nothing that is not finite stays; and it takes the bytes
 * that it should, in memory and in checkpoints.
 */
#include "memory/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "laws.h"
#include "memory/memory.h"

#define MOST 6000

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* How far a stored value may be from what it was, in a block whose largest magnitude is `most`. */
static double step_of(pith_store store, double value, double most) {
  return store == PITH_STORE_8 ? most / 127 * 1.0001 : fabs(value) * 0x1p-7 + 0x1p-133;
}

static double largest_in_block(const float *x, size_t n, size_t place) {
  size_t first = place / PITH_STORE_BLOCK * PITH_STORE_BLOCK;
  double most = 0x1p-119;
  for (size_t i = first; i < n && i < first + PITH_STORE_BLOCK; i++) {
    most = fmax(most, fabs((double)x[i]));
  }
  return most;
}

static void check_conserves(const char *spec, law_shape shape) {
  pith_codec *codec = law_codec(spec);
  size_t n = law_length(MOST);
  pith_state *state = law_state(codec, n, 0);
  for (uint64_t step = 0; step < 3; step++) {
    pith_span g = law_tensor(shape, n, PITH_F32);
    const float *before = law_residual(state, n);
    const float *decoded = law_decode(codec, law_encode(codec, state, g, law_ctx(step)), n, law_ctx(step));
    const float *after = law_residual(state, n);
    float *left = law_floats(n);
    for (size_t i = 0; i < n; i++) {
      left[i] = before[i] + law_at(g, i) - decoded[i];
    }
    for (size_t i = 0; i < n; i++) {
      double most = state->store == PITH_STORE_8 ? largest_in_block(left, n, i) : 0;
      CHECK_MSG(fabs((double)after[i] - (double)left[i]) <= step_of(state->store, left[i], most),
                "%s: value %zu of %zu keeps %.9g of %.9g", spec, i, n, (double)after[i], (double)left[i]);
    }
  }
  law_sweep();
}

TEST(what_is_sent_and_what_is_kept_are_the_gradient_to_within_a_step) {
  static const char *const specs[] = {"ef,store=bf16/topk:0.05",  "ef,store=8/topk:0.05",      "ef,store=bf16/q:2",
                                      "ef,store=8/q:2,bucket=96", "moment,store=bf16/onebit",  "moment,store=8/onebit",
                                      "ef,store=8/threshold:0.5", "ef,store=bf16/hadamard/q:3"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    for (law_shape shape = 0; shape < LAW_SHAPES; shape++) {
      check_conserves(specs[s], shape == LAW_HUGE ? LAW_NORMAL : shape);
    }
  }
}

/* Every value is one of its two neighbours, and the mean of many draws is the value. */
TEST(rounding_has_no_bias) {
  enum { N = 300, DRAWS = 4000 };
  float x[N], back[N];
  uint8_t packed[N * 4];
  for (int kind = PITH_STORE_BF16; kind <= PITH_STORE_8; kind++) {
    pith_store store = (pith_store)kind;
    double sum[N] = {0};
    for (size_t i = 0; i < N; i++) {
      x[i] = (float)sin((double)(i * i)) * (i % 2 ? 1.0f : 0.01f);
    }
    for (uint64_t draw = 0; draw < DRAWS; draw++) {
      pith_ctx ctx = law_ctx(draw);
      pith__store_pack(store, x, N, pith__store_key(&ctx), 0, packed);
      pith__store_widen(store, packed, N, back);
      for (size_t i = 0; i < N; i++) {
        sum[i] += back[i];
      }
    }
    for (size_t i = 0; i < N; i++) {
      double step = step_of(store, x[i], largest_in_block(x, N, i));
      CHECK_MSG(fabs(sum[i] / DRAWS - (double)x[i]) < 0.05 * step, "%s: the mean of value %zu is %.9g, not %.9g",
                pith__store_name(store), i, sum[i] / DRAWS, (double)x[i]);
    }
  }
}

/* Increments of a hundredth of a step: to the nearest, none of them would ever count. */
TEST(increments_far_below_a_step_add_up) {
  enum { N = 256, STEPS = 4000 };
  static const char *const specs[] = {"ef,store=bf16/topk:1e-6", "ef,store=8/topk:1e-6"};
  for (size_t s = 0; s < 2; s++) {
    pith_codec *codec = law_codec(specs[s]);
    pith_state *state = law_state(codec, N, 0);
    pith_span g = law_tensor(LAW_NORMAL, N, PITH_F32);
    float *x = g.data;
    double steps = 0;
    for (size_t i = 0; i < N; i++) {
      x[i] = i ? 1.0f : 500.0f; /* the largest is sent */
    }
    law_encode(codec, state, g, law_ctx(0));
    for (size_t i = 0; i < N; i++) {
      x[i] = i ? 1e-4f : 500.0f;
    }
    for (uint64_t step = 1; step <= STEPS; step++) {
      law_encode(codec, state, g, law_ctx(step));
    }
    const float *residual = law_residual(state, N);
    for (size_t i = 1; i < N; i++) {
      steps += ((double)residual[i] - 1.0) / 1e-4 / (N - 1);
    }
    CHECK_MSG(fabs(steps / STEPS - 1) < 0.05, "%s: %g of %d steps are in the residual", specs[s], steps, STEPS);
    law_sweep();
  }
}

/* All that was sent in T steps is T·g, less what is still kept and what rounding has added up to: T draws without bias,
 * each of which moves a value by half a step at most in the square mean. */
TEST(the_time_average_converges_to_the_gradient) {
  static const char *const specs[] = {"ef,store=bf16/topk:0.05", "ef,store=8/topk:0.05", "ef,store=8/q:2",
                                      "ef,store=bf16/q:2", "ef,store=8/signmean"};
  const size_t n = 2500, steps = 300;
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    pith_codec *codec = law_codec(specs[k]);
    pith_state *state = law_state(codec, n, 0);
    pith_span g = law_tensor(LAW_NORMAL, n, PITH_F32);
    double off = 0, most = 0, *mean = calloc(n, sizeof *mean);
    for (size_t step = 0; step < steps; step++) {
      const float *decoded = law_decode(codec, law_encode(codec, state, g, law_ctx(step)), n, law_ctx(step));
      for (size_t i = 0; i < n; i++) {
        mean[i] += (double)decoded[i] / (double)steps;
      }
      const float *kept = law_residual(state, n);
      for (size_t i = 0; i < n; i++) {
        most = fmax(most, fabs((double)kept[i]));
      }
    }
    const float *residual = law_residual(state, n);
    for (size_t i = 0; i < n; i++) {
      double due = law_at(g, i) - (double)residual[i] / (double)steps;
      off += (mean[i] - due) * (mean[i] - due);
    }
    double noise = 0.5 * step_of(state->store, most, most) / sqrt((double)steps);
    CHECK_MSG(sqrt(off / (double)n) < 1.1 * noise + 1e-4, "%s: the mean of %zu steps is off by %g, and its noise is %g",
              specs[k], steps, sqrt(off / (double)n), noise);
    free(mean);
    law_sweep();
  }
}

/* ---- A toy model ------------------------------------------------------------------------------------------------- */

/* Least squares: the distance from the solution after gradient descent with noise, relative to where it began. */
static double distance_after(const char *spec, size_t steps) {
  enum { N = 2000 };
  pith_codec *codec = law_codec(spec);
  pith_state *state = law_state(codec, N, 0);
  pith_span g = law_tensor(LAW_NORMAL, N, PITH_F32);
  double *x = calloc(N, sizeof *x), distance = 0, start = 0;
  float *gradient = g.data;
  for (size_t step = 0; step < steps; step++) {
    for (size_t i = 0; i < N; i++) {
      double curvature = 0.2 + 0.8 * (double)i / N, noise = 0.3 * sin((double)(step * 7 + i * 13));
      gradient[i] = (float)(curvature * (x[i] - cos((double)i)) + noise);
    }
    const float *decoded = law_decode(codec, law_encode(codec, state, g, law_ctx(step)), N, law_ctx(step));
    for (size_t i = 0; i < N; i++) {
      x[i] -= 0.01 * (double)decoded[i];
    }
  }
  for (size_t i = 0; i < N; i++) {
    distance += (x[i] - cos((double)i)) * (x[i] - cos((double)i));
    start += cos((double)i) * cos((double)i);
  }
  free(x);
  law_sweep();
  return sqrt(distance / start);
}

TEST(a_model_trains_as_with_residuals_in_f32) {
  double exact = distance_after("ef/topk:0.01", 3000), half = distance_after("ef,store=bf16/topk:0.01", 3000),
         byte = distance_after("ef,store=8/topk:0.01", 3000), none = distance_after("topk:0.01", 3000);
  CHECK_MSG(exact < 0.1 && none > 2 * exact, "with a residual %g, without one %g", exact, none);
  CHECK_MSG(half < 1.1 * exact && byte < 1.1 * exact, "f32 ends at %g, bf16 at %g, 8 bits at %g", exact, half, byte);
}

/* ---- Bytes ------------------------------------------------------------------------------------------------------- */

static size_t taken;

static pith_status allocate(pith_space *space, size_t bytes, void **memory) {
  (void)space;
  *memory = calloc(1, bytes);
  taken += bytes;
  return *memory ? PITH_OK : PITH_ERR_MEMORY;
}

static void release(pith_space *space, void *memory) { (void)space, free(memory); }

TEST(a_state_takes_two_bytes_or_one_a_value) {
  static const struct {
    const char *spec;
    double bytes;
  } kept[] = {{"ef/topk:0.01", 4},          {"ef,store=bf16/topk:0.01", 2},  {"ef,store=8/topk:0.01", 1 + 4.0 / 256},
              {"moment/onebit", 4},         {"moment,store=bf16/onebit", 2}, {"moment,store=8/onebit", 1 + 4.0 / 256},
              {"ef,store=f32/topk:0.01", 4}};
  const size_t n = 1 << 20, head = 80;
  for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
    pith_space space = {.allocate = allocate, .release = release};
    pith_codec *codec = law_codec(kept[i].spec);
    pith_state *state = NULL;
    size_t wanted = (size_t)(kept[i].bytes * (double)n);
    taken = 0;
    CHECK_OK(pith__state_create_in(&space, codec, n, 0, 0, &state));
    CHECK_EQ(taken, wanted);
    CHECK_EQ(pith_codec_residual_size(codec, n), wanted);
    CHECK(pith_state_save_size(state) <= wanted + head);
    CHECK_OK(pith__state_own_results(state, 512, n / 2)); /* the part of one of two ranks */
    CHECK_EQ(taken, wanted + wanted / 2);
    pith_state_destroy(state);
    law_sweep();
  }
}

/* ---- Checkpoints and other specs --------------------------------------------------------------------------------- */

static pith_bytes saved(const pith_state *state) {
  pith_out out = {law_floats(pith_state_save_size(state) / 4 + 1), pith_state_save_size(state), 0};
  CHECK_OK(pith_state_save(state, &out));
  return (pith_bytes){out.data, out.size};
}

/* Some steps and, between them, a change of what is pending. */
static void train(const pith_codec *codec, pith_state *state, const pith_span *g, uint64_t from, uint64_t to) {
  for (uint64_t step = from; step < to; step++) {
    law_encode(codec, state, g[step], law_ctx(step));
    CHECK_OK(pith_state_scale_residual(state, 0.9f));
  }
}

TEST(a_loaded_state_goes_on_with_the_same_bits) {
  static const char *const specs[] = {"ef,store=8/q:2", "ef,store=bf16/topk:0.1", "ef,store=8/topk:0.1",
                                      "moment,store=bf16/q:3,bucket=96"};
  for (int round = 0; round < 20; round++) {
    pith_codec *codec = law_codec(specs[round % 4]);
    size_t n = law_length(MOST);
    pith_state *whole = law_state(codec, n, 0), *first = law_state(codec, n, 0), *second = law_state(codec, n, 0);
    pith_span g[4];
    for (int i = 0; i < 4; i++) {
      g[i] = law_tensor(LAW_NORMAL, n, PITH_F32);
    }
    train(codec, whole, g, 0, 4);
    train(codec, first, g, 0, 2);
    CHECK_OK(pith_state_load(second, saved(first)));
    train(codec, second, g, 2, 4);
    pith_bytes a = saved(whole), b = saved(second);
    CHECK_EQ(a.size, b.size);
    CHECK_BYTES(a.data, b.data, a.size);
    law_sweep();
  }
}

TEST(a_state_of_another_store_is_refused_in_words) {
  static const char *const specs[] = {"ef/q:4", "ef,store=bf16/q:4", "ef,store=8/q:4"};
  for (size_t a = 0; a < 3; a++) {
    for (size_t b = 0; b < 3; b++) {
      pith_codec *one = law_codec(specs[a]), *other = law_codec(specs[b]);
      pith_state *from = law_state(one, 1000, 0), *to = law_state(other, 1000, 0);
      law_encode(one, from, law_tensor(LAW_NORMAL, 1000, PITH_F32), law_ctx(0));
      if (a == b) {
        CHECK_OK(pith_state_load(to, saved(from)));
      } else {
        CHECK_STATUS(pith_state_load(to, saved(from)), PITH_ERR_STATE);
        CHECK_MSG(strstr(pith_error(), "residual in"), "%s", pith_error());
        uint8_t payload[4000];
        pith_out out = {payload, sizeof payload, 0};
        float x[1000] = {0};
        CHECK_STATUS(pith_encode(other, from, (pith_cspan){x, 1000, PITH_F32}, &out, NULL), PITH_ERR_STATE);
      }
      law_sweep();
    }
  }
}

TEST(a_residual_keeps_its_value_in_another_store) {
  static const char *const specs[] = {"ef/q:4,bucket=32", "ef,store=bf16/q:4", "ef,store=8/q:4",
                                      "ef,store=8/topk:0.01"};
  for (size_t a = 0; a < 4; a++) {
    for (size_t b = 0; b < 4; b++) {
      enum { N = 3000, FIRST = 1024, OWNED = 1536 };
      pith_codec *one = law_codec(specs[a]), *other = law_codec(specs[b]);
      pith_state *state = law_state(one, N, 0);
      law_encode(one, state, law_tensor(LAW_NORMAL, N, PITH_F32), law_ctx(0));
      size_t first = FIRST + (a == 0 ? 32 : 0); /* of results, which need not begin with a block of another store */
      CHECK_OK(pith__state_own_results(state, first, OWNED));
      pith__repack(&(pith_repack_task){.from = state->residual,
                                       .to = pith__store_at(state->store, state->result, first - state->result_base),
                                       .n = OWNED,
                                       .factor = 1,
                                       .from_store = (uint8_t)state->store,
                                       .to_store = (uint8_t)state->store});
      const float *before = law_residual(state, N);
      float *pending = law_floats(N), *moved = law_floats(N);
      CHECK_OK(pith__state_take_residual(state, 2, pending));
      CHECK_OK(pith_state_adapt(state, other));
      const float *after = law_residual(state, N);
      CHECK_OK(pith__state_take_residual(state, 2, moved));
      double most = 0;
      for (size_t i = 0; i < N; i++) {
        most = fmax(most, fabs((double)before[i]));
      }
      for (size_t i = 0; i < N; i++) {
        double step =
            state->store == PITH_STORE_F32 ? 0 : step_of(state->store, before[i], largest_in_block(before, N, i));
        CHECK_MSG(fabs((double)after[i] - (double)before[i]) <= step, "%s to %s: value %zu was %g and is %g", specs[a],
                  specs[b], i, (double)before[i], (double)after[i]);
        CHECK_MSG(fabs((double)moved[i] - (double)pending[i]) <= 3 * step_of(PITH_STORE_8, 0, most),
                  "%s to %s: %g of value %zu is pending, and was %g", specs[a], specs[b], (double)moved[i], i,
                  (double)pending[i]);
      }
      law_sweep();
    }
  }
}

/* ---- What is refused --------------------------------------------------------------------------------------------- */

static void check_refused(const char *spec, pith_status status, const char *word) {
  pith_codec *codec = NULL;
  CHECK_STATUS(pith_codec_create(spec, &codec), status);
  CHECK_MSG(strstr(pith_error(), word), "%s: %s", spec, pith_error());
}

TEST(rounds_need_their_residual_in_f32) {
  check_refused("ef,store=8/powersgd:2", PITH_ERR_UNSUPPORTED, "leave store out");
  check_refused("moment,store=bf16/powersgd:2", PITH_ERR_UNSUPPORTED, "leave store out");
  CHECK(law_codec("ef,store=f32/powersgd:2") != NULL);
  check_refused("ef,store=4/q:4", PITH_ERR_SPEC, "f32|bf16|8");
  check_refused("momentum,store=8/q:4", PITH_ERR_SPEC, "store");
  law_sweep();
}

/* Checkpoints and ranks of before go on working. */
TEST(residuals_in_f32_have_the_fingerprint_that_they_always_had) {
  CHECK_EQ(pith_codec_fingerprint(law_codec("ef/q:4")), 0x9af3c1e856c15d2d);
  CHECK_EQ(pith_codec_fingerprint(law_codec("ef,store=f32/q:4")), 0x9af3c1e856c15d2d);
  CHECK(pith_codec_fingerprint(law_codec("ef,store=8/q:4")) != pith_codec_fingerprint(law_codec("ef/q:4")));
  CHECK(pith_codec_fingerprint(law_codec("ef,store=8/q:4")) != pith_codec_fingerprint(law_codec("ef,store=bf16/q:4")));
  law_sweep();
}

TEST(nothing_that_is_not_finite_is_kept) {
  static const float bad[] = {NAN, INFINITY, -INFINITY, 3.4e38f, -3.4e38f, 1e-45f, -0.0f};
  float x[300], back[300];
  uint8_t packed[4 * 300];
  for (int kind = PITH_STORE_BF16; kind <= PITH_STORE_8; kind++) {
    for (uint32_t key = 0; key < 50; key++) {
      for (size_t i = 0; i < 300; i++) {
        x[i] = bad[(i * 7 + key) % (i < 256 ? 7 : 3)];
      }
      pith__store_pack((pith_store)kind, x, 300, (pith_key){key, ~key}, 0, packed);
      pith__store_widen((pith_store)kind, packed, 300, back);
      for (size_t i = 0; i < 300; i++) {
        CHECK_MSG(isfinite(back[i]) && (isfinite(x[i]) || back[i] == 0), "%g is kept as %g", (double)x[i],
                  (double)back[i]);
      }
    }
  }
}

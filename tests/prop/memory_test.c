/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the memories promise. Each is simulated here with the plain formulas of METHODS.md in f32, next to the library,
 * over several steps: nothing of a gradient may be lost or counted twice, whatever the codec behind the memory does.
 */
#include "memory/memory.h"

#include <math.h>

#include "laws.h"

#define MOST 6000

static void check_equal(const char *spec, const char *what, const float *got, const float *wanted, size_t n) {
  for (size_t i = 0; i < n; i++) {
    CHECK_MSG(got[i] == wanted[i], "%s: value %zu of %zu of the %s is %.9g, not %.9g", spec, i, n, what, (double)got[i],
              (double)wanted[i]);
  }
}

static double norm_of(const float *x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i] * x[i];
  }
  return sqrt(sum);
}

/* ---- Error feedback ---------------------------------------------------------------------------------------------- */

/* p = βe + γg, as the memory must make it. */
static float *compensated(const pith_state *state, pith_span g, float beta, float gamma) {
  const float *e = pith_state_residual(state);
  float *p = law_floats(g.n);
  for (size_t i = 0; i < g.n; i++) {
    p[i] = beta * e[i] + gamma * law_at(g, i);
  }
  return p;
}

/* Half types only where the values are in their range. */
static pith_dtype type_for(law_shape shape) {
  return shape == LAW_HUGE || shape == LAW_MIXED ? PITH_F32 : (pith_dtype)test_below(3);
}

static void check_conserves(const char *spec, float beta, law_shape shape, int exact) {
  pith_codec *codec = law_codec(spec);
  size_t n = law_length(MOST);
  pith_state *state = law_state(codec, n, 0);
  for (uint64_t step = 0; step < 4; step++) {
    pith_span g = law_tensor(shape, n, type_for(shape));
    pith_ctx ctx = law_ctx(step);
    ctx.gamma = step % 2 ? 0.25f : 0;
    float *p = compensated(state, g, beta, ctx.gamma != 0 ? ctx.gamma : 1), *left = law_floats(n);
    const float *decoded = law_decode(codec, law_encode(codec, state, g, ctx), n, ctx);
    for (size_t i = 0; i < n; i++) {
      left[i] = p[i] - decoded[i];
      CHECK_MSG(!exact || decoded[i] + pith_state_residual(state)[i] == p[i], "%s: %g + %g is not %g", spec,
                (double)decoded[i], (double)pith_state_residual(state)[i], (double)p[i]);
    }
    check_equal(spec, "residual", pith_state_residual(state), left, n);
  }
  law_sweep();
}

TEST(sparsifiers_conserve_exactly) {
  static const char *const specs[] = {"ef/topk:0.05", "ef/topk:0.02,select=fit", "ef/topk:0.1,select=sampled",
                                      "ef/threshold:0.7", "ef/randomk:0.1"};
  for (int round = 0; round < 80; round++) {
    check_conserves(specs[round % 5], 1, (law_shape)(round / 5 % LAW_SHAPES), 1);
  }
}

TEST(what_a_quantizer_loses_stays_in_the_residual) {
  static const char *const specs[] = {"ef/q:1",
                                      "ef/q:4",
                                      "ef/q:2,round=stochastic",
                                      "ef/qsgd:4",
                                      "ef/terngrad",
                                      "ef/natural",
                                      "efsignsgd",
                                      "onebit",
                                      "u8",
                                      "ef/lloyd:2",
                                      "ef/inceptionn",
                                      "ef/gq:4",
                                      "ef/hadamard/q:3",
                                      "ef/sketchml",
                                      "ef/adaptive:0.1",
                                      "ef/topk:0.1,values=q8",
                                      "ef/bf16",
                                      "ef/powersgd:2",
                                      "ef/sign,scale=unbiased"};
  for (int round = 0; round < 2 * LAW_SHAPES * 19; round++) {
    law_shape shape = (law_shape)(round / 19 % LAW_SHAPES);
    check_conserves(specs[round % 19], 1, shape == LAW_HUGE ? LAW_NORMAL : shape, 0);
  }
}

TEST(a_fading_residual_is_carried_on_by_its_share) {
  for (law_shape shape = 0; shape < LAW_SHAPES; shape++) {
    check_conserves("ef:0.5/q:3", 0.5f, shape, 0);
    check_conserves("ef:0.9/topk:0.05", 0.9f, shape, 1);
    check_conserves("ef:0/q:3", 0, shape, 0);
  }
}

/* All that was sent in T steps is T·g less what is still in the residual: divided by T that vanishes. */
TEST(the_time_average_converges_to_the_gradient) {
  static const char *const specs[] = {
      "ef/topk:0.05",   "ef/q:2",        "efsignsgd", "onebit",        "u8",
      "ef/randomk:0.1", "ef/powersgd:2", "adaq:0.1",  "ef/sketchml:4", "ef/threshold:2"};
  const size_t n = 2500, steps = 300;
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    pith_codec *codec = law_codec(specs[k]);
    pith_state *state = law_state(codec, n, 50);
    pith_span g = law_tensor(LAW_NORMAL, n, PITH_F32);
    float *mean = law_floats(n), *off = law_floats(n);
    for (size_t step = 0; step < steps; step++) {
      pith_bytes in = law_encode(codec, state, g, law_ctx(step));
      const float *decoded = law_decode(codec, in, n, law_ctx(step));
      for (size_t i = 0; i < n; i++) {
        mean[i] += decoded[i] / (float)steps;
      }
    }
    for (size_t i = 0; i < n; i++) {
      off[i] = mean[i] - law_at(g, i);
      CHECK_NEAR(off[i], -pith_state_residual(state)[i] / (float)steps, 2e-3);
    }
    double relative = norm_of(off, n) / norm_of(g.data, n);
    CHECK_MSG(relative < 0.12, "%s: the mean of %zu steps is off by %g", specs[k], steps, relative);
    law_sweep();
  }
}

TEST(efsignsgd_scales_the_gradient_by_gamma) {
  pith_codec *codec = law_codec("efsignsgd");
  pith_state *state = law_state(codec, 4096, 0);
  for (uint64_t step = 0; step < 5; step++) {
    pith_span g = law_tensor(LAW_NORMAL, 4096, PITH_F32);
    pith_ctx ctx = law_ctx(step);
    ctx.gamma = 0.1f;
    float *p = compensated(state, g, 1, 0.1f);
    const float *decoded = law_decode(codec, law_encode(codec, state, g, ctx), 4096, ctx);
    double mean = 0;
    for (size_t i = 0; i < 4096; i++) {
      mean += fabs((double)p[i]) / 4096;
    }
    for (size_t i = 0; i < 4096; i++) {
      CHECK_NEAR(decoded[i], p[i] < 0 ? -mean : mean, 1e-5 * mean);
    }
  }
  law_sweep();
}

/* ---- dgc --------------------------------------------------------------------------------------------------------- */

/* One step of Lin 2018 on u and v: u = mu + g, v += u; both are cleared where v was sent. */
static void simulate_dgc(float *u, float *v, pith_span g, float m, const float *decoded, const char *spec) {
  for (size_t i = 0; i < g.n; i++) {
    u[i] = m * u[i] + law_at(g, i);
    v[i] = v[i] + u[i];
    CHECK_MSG(decoded[i] == 0 || decoded[i] == v[i], "%s sends %g of %g", spec, (double)decoded[i], (double)v[i]);
    u[i] = decoded[i] != 0 ? 0 : u[i];
    v[i] = decoded[i] != 0 ? 0 : v[i];
  }
}

TEST(dgc_clears_both_memories_where_it_sent_and_keeps_them_elsewhere) {
  static const struct {
    const char *spec;
    float momentum;
  } each[] = {
      {"dgc:0.05", 0.9f}, {"dgc:0.1,momentum=0.5", 0.5f}, {"dgc:0.9/threshold:1.5", 0.9f}, {"dgc:0/topk:0.02", 0}};
  for (int round = 0; round < 40; round++) {
    const char *spec = each[round % 4].spec;
    pith_codec *codec = law_codec(spec);
    size_t n = law_length(MOST);
    pith_state *state = law_state(codec, n, 0);
    float *u = law_floats(n), *v = law_floats(n);
    for (uint64_t step = 0; step < 5; step++) {
      pith_span g = law_tensor(round / 4 % 2 ? LAW_LAPLACE : LAW_NORMAL, n, (pith_dtype)test_below(3));
      const float *decoded = law_decode(codec, law_encode(codec, state, g, law_ctx(step)), n, law_ctx(step));
      simulate_dgc(u, v, g, each[round % 4].momentum, decoded, spec);
      check_equal(spec, "momentum", state->momentum, u, n);
      check_equal(spec, "residual", state->residual, v, n);
    }
    law_sweep();
  }
}

/* What one step sends and keeps is the clipped gradient. */
static double clipped_norm(float scale, uint32_t ranks, size_t n) {
  pith_codec *codec = law_codec("dgc:0.1,clip=2");
  pith_state *state = law_state(codec, n, 0);
  pith_span g = law_tensor(LAW_NORMAL, n, PITH_F32);
  for (size_t i = 0; i < n; i++) {
    law_put(g, i, law_at(g, i) * scale);
  }
  pith_ctx ctx = law_ctx(0);
  ctx.ranks = ranks;
  const float *decoded = law_decode(codec, law_encode(codec, state, g, ctx), n, ctx);
  float *sum = law_floats(n);
  double along = 0;
  for (size_t i = 0; i < n; i++) {
    sum[i] = decoded[i] + ((float *)state->residual)[i];
    along += (double)sum[i] * law_at(g, i);
  }
  double norm = norm_of(sum, n), full = norm_of(g.data, n);
  CHECK_NEAR(along / (norm * full), 1, 1e-5); /* the direction stays */
  CHECK(norm <= full * 1.00001);
  law_sweep();
  return norm;
}

TEST(dgc_clips_the_gradient_at_its_share_of_the_norm) {
  CHECK_NEAR(clipped_norm(1, 1, 5000), 2, 1e-4);
  CHECK_NEAR(clipped_norm(1, 4, 5000), 1, 1e-4);
  CHECK_NEAR(clipped_norm(1e10f, 16, 777), 0.5, 1e-4);
  CHECK(clipped_norm(1e-3f, 4, 5000) < 0.1); /* small enough as it is */
}

/* Squares overflow from 2e19 on: an exploded gradient is what clipping is for. */
TEST(dgc_clips_gradients_whose_squares_leave_f32) {
  CHECK_NEAR(clipped_norm(1e25f, 1, 5000), 2, 1e-4);
  CHECK_NEAR(clipped_norm(1e36f, 4, 5000), 1, 1e-4);
}

/* ---- Momentum ---------------------------------------------------------------------------------------------------- */

TEST(momentum_sends_the_running_mean) {
  for (int round = 0; round < 20; round++) {
    pith_codec *codec = law_codec(round % 2 ? "signum:0.75" : "momentum:0.75/none");
    size_t n = law_length(MOST);
    pith_state *state = law_state(codec, n, 0);
    float *m = law_floats(n), *wanted = law_floats(n);
    for (uint64_t step = 0; step < 4; step++) {
      pith_span g = law_tensor(LAW_NORMAL, n, (pith_dtype)test_below(3));
      const float *decoded = law_decode(codec, law_encode(codec, state, g, law_ctx(step)), n, law_ctx(step));
      for (size_t i = 0; i < n; i++) {
        m[i] = 0.75f * m[i] + 0.25f * law_at(g, i);
        float vote = m[i] > 0 ? 1.0f : m[i] < 0 ? -1.0f : decoded[i]; /* zeros vote either way, or not at all */
        CHECK(fabsf(vote) <= 1);
        wanted[i] = round % 2 ? vote : m[i];
      }
      check_equal("momentum", "momentum", state->momentum, m, n);
      check_equal("momentum", "result", decoded, wanted, n);
    }
    law_sweep();
  }
}

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static pith_bytes saved(const pith_state *state) {
  size_t size = pith_state_save_size(state);
  pith_out out = {law_bytes(size, test_below(64)), size, 0};
  CHECK_OK(pith_state_save(state, &out));
  CHECK_EQ(out.size, size);
  return (pith_bytes){out.data, out.size};
}

TEST(a_loaded_state_goes_on_bit_for_bit) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    pith_state *state = law_state(codec, n, 0), *resumed = law_state(codec, n, 0);
    for (uint64_t step = 0; step < 2; step++) {
      law_encode(codec, state, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(step));
    }
    CHECK_OK(pith_state_load(resumed, saved(state)));
    for (uint64_t step = 2; step < 4; step++) {
      pith_span g = law_tensor(LAW_NORMAL, n, PITH_F32);
      pith_bytes a = law_encode(codec, state, g, law_ctx(step)), b = law_encode(codec, resumed, g, law_ctx(step));
      CHECK_EQ(a.size, b.size);
      CHECK_BYTES(a.data, b.data, a.size);
    }
    pith_bytes a = saved(state), b = saved(resumed);
    CHECK_BYTES(a.data, b.data, a.size);
    law_sweep();
  }
}

static void check_refuses(pith_state *state, const uint8_t *bytes, size_t size, const char *what, size_t where) {
  pith_bytes before = saved(state);
  CHECK_MSG(pith_state_load(state, (pith_bytes){bytes, size}) != PITH_OK, "%s %zu of %zu passes", what, where, size);
  pith_bytes after = saved(state);
  CHECK_BYTES(before.data, after.data, before.size);
}

TEST(a_damaged_checkpoint_is_refused_and_changes_nothing) {
  static const char *const specs[] = {"ef/q:4", "dgc:0.05", "momentum/natural", "ef/powersgd:1", "q:4", "gq:8"};
  for (size_t k = 0; k < sizeof specs / sizeof *specs; k++) {
    pith_codec *codec = law_codec(specs[k]);
    size_t n = 64 + test_below(200);
    pith_state *state = law_state(codec, n, 0), *target = law_state(codec, n, 0);
    law_encode(codec, state, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(0));
    law_encode(codec, target, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(0));
    pith_bytes good = saved(state);
    uint8_t *bad = law_bytes(good.size + 1, 0);
    for (size_t i = 0; i < good.size; i++) {
      memcpy(bad, good.data, good.size);
      bad[i] ^= (uint8_t)(1u << test_below(8));
      check_refuses(target, bad, good.size, "a changed byte", i);
    }
    memcpy(bad, good.data, good.size);
    check_refuses(target, bad, good.size + 1, "a byte behind", good.size);
    for (int cut = 0; cut < 10; cut++) {
      size_t size = test_below(good.size);
      check_refuses(target, memcpy(law_bytes(size, 0), good.data, size), size, "a cut at", size);
    }
    CHECK_STATUS(pith_state_load(target, (pith_bytes){NULL, 0}), PITH_ERR_ARGUMENT);
    CHECK_OK(pith_state_load(target, good));
    law_sweep();
  }
}

TEST(a_checkpoint_needs_its_room) {
  pith_codec *codec = law_codec("ef/q:4");
  pith_state *state = law_state(codec, 1000, 0);
  size_t size = pith_state_save_size(state);
  pith_out out = {law_bytes(size - 1, 0), size - 1, 77};
  CHECK_STATUS(pith_state_save(state, &out), PITH_ERR_BUFFER);
  CHECK_EQ(out.size, 77);
  law_sweep();
}

/* ---- States and specs -------------------------------------------------------------------------------------------- */

TEST(a_new_spec_keeps_residual_and_momentum) {
  static const char *const with_residual[] = {"ef/topk:0.1", "ef/q:2", "ef/powersgd:2", "dgc:0.1", "ef/gq:8", "onebit"};
  size_t n = 3000;
  for (size_t a = 0; a < 6; a++) {
    for (size_t b = 0; b < 6; b++) {
      pith_codec *from = law_codec(with_residual[a]), *to = law_codec(with_residual[b]);
      pith_state *state = law_state(from, n, 0);
      law_encode(from, state, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(0));
      float *before = memcpy(law_floats(n), pith_state_residual(state), n * sizeof *before);
      CHECK_OK(pith_state_adapt(state, to));
      check_equal(with_residual[b], "adapted residual", pith_state_residual(state), before, n);
      pith_span g = law_tensor(LAW_NORMAL, n, PITH_F32);
      CHECK(law_encode(to, state, g, law_ctx(1)).size > 0);
      law_sweep();
    }
  }
}

TEST(a_new_spec_without_memory_drops_it) {
  pith_codec *from = law_codec("ef/q:4"), *to = law_codec("momentum/q:4");
  pith_state *state = law_state(from, 500, 0);
  law_encode(from, state, law_tensor(LAW_NORMAL, 500, PITH_F32), law_ctx(0));
  CHECK_OK(pith_state_adapt(state, to));
  CHECK(pith_state_residual(state) == NULL && state->momentum[0] == 0 && state->momentum[499] == 0);
  law_encode(to, state, law_tensor(LAW_NORMAL, 500, PITH_F32), law_ctx(0));
  float first = state->momentum[0];
  CHECK_OK(pith_state_adapt(state, law_codec("dgc:0.1")));
  CHECK(state->momentum[0] == first && pith_state_residual(state)[0] == 0);
  CHECK_STATUS(pith_state_adapt(NULL, to), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_state_adapt(state, NULL), PITH_ERR_ARGUMENT);
  law_sweep();
}

TEST(a_state_for_another_size_or_spec_is_refused) {
  static const char *const specs[] = {"ef/q:4", "dgc:0.1", "ef/powersgd:2", "momentum/sign", "ef/topk:0.1"};
  for (size_t k = 0; k < 5; k++) {
    pith_codec *codec = law_codec(specs[k]), *other = law_codec(k == 3 ? "ef/q:4" : "momentum/sign");
    pith_state *state = law_state(codec, 1000, 0), *foreign = law_state(other, 1001, 0),
               *smaller = law_state(codec, 999, 0);
    pith_span g = law_tensor(LAW_NORMAL, 1001, PITH_F32);
    pith_out out = {law_bytes(pith_codec_bound(codec, 1001), 0), pith_codec_bound(codec, 1001), 77};
    CHECK_STATUS(pith_encode(codec, state, law_const(g), &out, NULL), PITH_ERR_STATE);
    CHECK_STATUS(pith_encode(codec, foreign, law_const(g), &out, NULL), PITH_ERR_STATE);
    CHECK_ERROR_SAYS("another spec");
    CHECK_STATUS(pith_state_load(smaller, saved(state)), PITH_ERR_STATE);
    CHECK_STATUS(pith_state_load(foreign, saved(state)), PITH_ERR_STATE);
    CHECK_EQ(out.size, 77);
    law_sweep();
  }
}

TEST(a_layer_cannot_have_more_rows_than_values) {
  pith_state *state = NULL;
  CHECK_STATUS(pith_state_create(law_codec("ef/powersgd:2"), 10, 11, &state), PITH_ERR_ARGUMENT);
  CHECK(state == NULL);
  pith_state_destroy(NULL);
  law_sweep();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The conservation law over a schedule: the updates made, and the update that is pending, are those of the gradients.
 *
 *   Σ rate·(mean that came) + rate·(pending) = Σ rate·(mean of the gradients)
 */
#include <math.h>
#include <stdlib.h>

#include "carrier_laws.h"
#include "memory/memory.h"
#include "reducer/reducer.h"

enum { STEPS = 30, PERIOD = 10, LAYER = 2 };

static float rate_of(uint64_t step) { return step < PERIOD ? 0.5f : step < 2 * PERIOD ? 0.05f : 0.005f; }

typedef struct schedule {
  const char *spec;
  int over_carrier, follows;
} schedule;

/* The mean over ranks of what is pending, and what the owner of results has pending, which is of the mean already. */
static void add_pending(pith_comm *comm, const pith_reducer_layer *l, double rate, double *sum) {
  const pith_state *s = l->state;
  double *pending = calloc(l->n, sizeof *pending), ranks = pith_comm_size(comm);
  for (size_t i = 0; i < l->n; i++) {
    size_t at = i - s->result_base;
    int owns = s->result && i >= s->result_first && i < s->result_first + s->result_n;
    pending[i] = (s->residual ? (double)((float *)s->residual)[i] / ranks : 0) +
                 (owns ? (double)((float *)s->result)[at] : 0) + (l->pending ? (double)l->pending[i] / ranks : 0);
  }
  CHECK_OK(pith_allreduce(comm, (pith_cspan){pending, l->n, PITH_F64}, (pith_span){pending, l->n, PITH_F64}, PITH_SUM,
                          NULL, NULL));
  for (size_t i = 0; i < l->n; i++) {
    sum[i] += rate * pending[i];
  }
  free(pending);
}

static double distance(const double *a, const double *b, size_t n) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < n; i++) {
    difference += (a[i] - b[i]) * (a[i] - b[i]);
    size += b[i] * b[i];
  }
  return sqrt(difference / size);
}

static void follow_schedule(pith_comm *comm, void *argument) {
  const schedule *s = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  wire w = {.comm = comm};
  pith_carrier carrier = carrier_of(&w, 0);
  pith_reducer *r;
  CHECK_OK(s->over_carrier ? pith_reducer_create_over(&carrier, s->spec, 5, NULL, &r)
                           : pith_reducer_create(comm, s->spec, 5, &r));
  add_layers(r);
  size_t n = r->layers[LAYER].n;
  double *updates = calloc(n, sizeof *updates), *expected = calloc(n, sizeof *expected);
  for (uint64_t step = 0; step < STEPS; step++) {
    double rate = rate_of(step);
    if (s->follows && step && rate_of(step) != rate_of(step - 1)) {
      for (size_t l = 0; l < r->count; l++) {
        CHECK_OK(pith_reducer_scale_residual(r, l, rate_of(step - 1) / rate_of(step)));
      }
    }
    for (int p = 0; p < ranks; p++) {
      gradients theirs = make_gradients(p, step);
      const float *g = (const float *)theirs.layer[LAYER];
      for (size_t i = 0; i < n; i++) {
        expected[i] += rate * (double)g[i] / ranks;
      }
      release(&theirs);
    }
    gradients mine = make_gradients(rank, step);
    CHECK_OK(take_step(r, &mine, 0));
    const float *mean = (const float *)mine.layer[LAYER];
    for (size_t i = 0; i < n; i++) {
      updates[i] += rate * (double)mean[i];
    }
    release(&mine);
  }
  add_pending(comm, &r->layers[LAYER], rate_of(STEPS - 1), updates);
  double off = distance(updates, expected, n);
  CHECK(s->follows ? off < 1e-5 : off > 1e-2);
  free(updates);
  free(expected);
  pith_reducer_destroy(r);
}

TEST(updates_and_what_is_pending_are_those_of_the_gradients) {
  static const char *const specs[] = {"ef/topk:0.01", "ef/powersgd:4", "ef/q:2", "ef/sign,scale=mean"};
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    for (int k = 0; k < 4; k++) {
      schedule s = {specs[i], k & 1, k & 2};
      ranks_run("inproc", 2, 0, follow_schedule, &s);
    }
  }
}

/* ---- What does not depend on the rate ---------------------------------------------------------------------------- */

TEST(momenta_stay_when_residuals_are_scaled) {
  enum { N = 256 };
  float x[N];
  uint8_t bytes[8 * N];
  static const char *const specs[] = {"dgc/topk:0.1", "momentum/q:8"};
  for (size_t s = 0; s < 2; s++) {
    pith_codec *codec;
    pith_state *state;
    pith_out out = {bytes, sizeof bytes, 0};
    CHECK_OK(pith_codec_create(specs[s], &codec));
    CHECK_OK(pith_state_create(codec, N, 0, &state));
    for (size_t i = 0; i < N; i++) {
      x[i] = (float)i - 100;
    }
    CHECK_OK(pith_encode(codec, state, (pith_cspan){x, N, PITH_F32}, &out, NULL));
    float momentum = state->momentum[100 + 3], residual = state->residual ? ((float *)state->residual)[100 + 3] : 0;
    CHECK(momentum != 0 && (s || residual != 0));
    CHECK_OK(pith_state_scale_residual(state, 10.0f));
    CHECK(state->momentum[100 + 3] == momentum);
    CHECK(!state->residual || ((float *)state->residual)[100 + 3] == 10 * residual);
    CHECK_OK(pith_state_scale(state, 10.0f));
    CHECK(state->momentum[100 + 3] == 10 * momentum);
    pith_state_destroy(state);
    pith_codec_destroy(codec);
  }
}

/* ---- After a change of spec -------------------------------------------------------------------------------------- */

static void scale_pending(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r;
  pith_codec *exact;
  CHECK_OK(pith_reducer_create(comm, "ef/topk:0.01", 5, &r));
  CHECK_OK(pith_codec_create("q:8", &exact));
  add_layers(r);
  gradients g = make_gradients(pith_comm_rank(comm), 0);
  CHECK_OK(take_step(r, &g, 0));
  release(&g);
  pith_reducer_layer *l = &r->layers[LAYER];
  size_t at = 0;
  while (((float *)l->state->residual)[at] == 0) {
    at++;
  }
  float residual = ((float *)l->state->residual)[at], other = ((float *)r->layers[0].state->residual)[at];
  CHECK_OK(pith__pending_move(l, exact, pith_comm_size(comm)));
  CHECK(!l->state->residual && l->pending[at] == residual);
  CHECK_OK(pith_reducer_scale_residual(r, LAYER, 10.0f));
  CHECK(l->pending[at] == 10 * residual);
  CHECK(((float *)r->layers[0].state->residual)[at] == other); /* one layer only */
  pith_reducer_destroy(r);
  pith_codec_destroy(exact);
}

TEST(residuals_of_an_earlier_spec_are_scaled_too) { ranks_run("inproc", 2, 0, scale_pending, NULL); }

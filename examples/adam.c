/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adam whose momentum travels at one bit a value, once its variance is frozen; with moment:4 in every fourth step only.
 * A layer is fitted to a teacher, each rank with data of its own, exactly and as the spec says. Start it with
 *
 *   pith run -n 4 -- ./adam [SPEC]       moment:4/onebit by default; onebit compresses gradients, all the way
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pith/pith.h>

enum { IN = 128, OUT = 64, N = IN * OUT, BATCH = 32, STEPS = 840, WARM = 200 };

static const double rate = 0.01, beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, decay = 0.01;

static void check(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s: %s\n", pith_status_string(status), pith_error());
    exit(1);
  }
}

/* ---- The problem ------------------------------------------------------------------------------------------------- */

static double uniform(uint64_t *state) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (double)(*state >> 11) * 0x1p-53;
}

static float normal(uint64_t *state) {
  return (float)(sqrt(-2 * log(1 - uniform(state))) * cos(6.283185307179586 * uniform(state)));
}

/* The gradient of a batch drawn from `state`; returns the loss. Some inputs are larger than others. */
static double gradient_of(const float *x, const float *teacher, uint64_t *state, float *gradient) {
  double loss = 0;
  memset(gradient, 0, N * sizeof *gradient);
  for (int b = 0; b < BATCH; b++) {
    float input[IN];
    for (int i = 0; i < IN; i++) {
      input[i] = normal(state) * (0.5f + (float)i / IN);
    }
    for (int o = 0; o < OUT; o++) {
      float error = normal(state); /* nobody can know this part */
      for (int i = 0; i < IN; i++) {
        error += (x[o * IN + i] - teacher[o * IN + i]) * input[i];
      }
      for (int i = 0; i < IN; i++) {
        gradient[o * IN + i] += error * input[i] / BATCH;
      }
      loss += error * error / BATCH / OUT;
    }
  }
  return loss;
}

/* ---- The optimizer ----------------------------------------------------------------------------------------------- */

typedef struct adam {
  pith_reducer *reducer;
  float x[N], gradient[N], moment[N], variance[N];
  float start[N];      /* x as it was after the last exchange */
  unsigned every;      /* one of so many steps is exchanged */
  double before;       /* the rate of the step before, in whose units the residual is */
  double sum, product; /* of rates, and of what weight decay leaves, since the last exchange */
} adam;

static double rate_of(int t) { return rate * (1 - 0.9 * t / STEPS); }

/* While the gradient travels: as in any other program. */
static void step_exactly(adam *a, int t) {
  check(pith_reducer_start(a->reducer, 0, a->gradient));
  check(pith_reducer_finish(a->reducer));
  for (int i = 0; i < N; i++) {
    float g = a->gradient[i];
    a->moment[i] = (float)(beta1 * a->moment[i] + (1 - beta1) * g);
    a->variance[i] = (float)(beta2 * a->variance[i] + (1 - beta2) * g * g);
    double root = sqrt(a->variance[i] / (1 - pow(beta2, t)));
    a->x[i] = (float)((1 - rate_of(t) * decay) * a->x[i] -
                      rate_of(t) / (1 - pow(beta1, t)) * a->moment[i] / (root + epsilon));
  }
}

/* From here on the variance stays as it is, and the momentum travels. */
static void freeze(adam *a, const char *spec, int t) {
  pith_update u = PITH_UPDATE_INIT;
  u.moment = a->moment, u.keep = 1, u.fold = a->every == 1 ? (float)beta1 : 0;
  check(pith_reducer_set_spec(a->reducer, 0, spec));
  check(pith_reducer_update(a->reducer, &u, 1, NULL));
  memcpy(a->start, a->x, sizeof a->x);
  a->before = rate_of(t) / (1 - pow(beta1, t));
  a->sum = 0, a->product = 1;
}

static void step_frozen(adam *a, int t) {
  unsigned place = (unsigned)(t - WARM - 1) % a->every;
  double now = rate_of(t) / (1 - pow(beta1, t));
  pith_update u = PITH_UPDATE_INIT;
  u.gradient = a->gradient, u.moment = a->moment, u.variance = a->variance, u.parameter = a->x;
  u.root = (float)sqrt(1 / (1 - pow(beta2, WARM))), u.epsilon = (float)epsilon;
  a->product *= 1 - rate_of(t) * decay;
  if (place + 1 < a->every) { /* a local step; what it did waits in the residual, in units of its rate */
    u.keep = (float)beta1, u.take = (float)(1 - beta1);
    u.decay = (float)(1 - rate_of(t) * decay), u.rate = (float)now;
    u.pass = (float)(a->before / now), u.fold = place + 2 == a->every ? (float)(1 + beta1) : 1;
    a->before = now, a->sum += now;
  } else { /* the gradient becomes the mean of what all ranks did since the last exchange, in units of `before` */
    check(pith_reducer_start(a->reducer, 0, a->gradient));
    check(pith_reducer_finish(a->reducer));
    a->before = a->every == 1 ? now : a->before;
    double steps = a->sum / a->before + 1;
    u.take = (float)(1 / steps), u.rate = (float)(a->before * steps), u.decay = (float)a->product;
    u.start = a->every == 1 ? NULL : a->start, u.fold = a->every == 1 ? (float)beta1 : 0;
    a->sum = 0, a->product = 1;
  }
  check(pith_reducer_update(a->reducer, &u, 1, NULL));
}

/* ---- Training ---------------------------------------------------------------------------------------------------- */

/* The last step was exchanged: all ranks have the same bits. */
static void check_replicas(pith_comm *comm, const float *x, float *first) {
  memcpy(first, x, N * sizeof *x);
  check(pith_broadcast(comm, (pith_span){first, N, PITH_F32}, 0, NULL, NULL));
  for (int i = 0; i < N; i++) {
    if (x[i] != first[i]) {
      fprintf(stderr, "rank %d has other parameters than rank 0\n", pith_comm_rank(comm));
      exit(1);
    }
  }
}

/* Returns the mean loss of the last steps over all ranks. */
static double train(pith_comm *comm, const char *spec) {
  int rank = pith_comm_rank(comm);
  size_t shape[] = {OUT, IN}, index;
  uint64_t same = 1, own = 100 + (uint64_t)rank;
  float *teacher = malloc(N * sizeof *teacher);
  adam *a = calloc(1, sizeof *a);
  double loss = 0;
  if (!teacher || !a) {
    pith_comm_abort(comm, "out of memory");
    exit(1);
  }
  for (int i = 0; i < N; i++) {
    teacher[i] = 0.2f * normal(&same);
  }
  pith_codec *codec;
  pith_moment moment = PITH_MOMENT_INIT;
  check(pith_codec_create(spec, &codec));
  int travels = pith_codec_moment(codec, &moment);
  a->every = moment.every;
  pith_codec_destroy(codec);
  check(pith_reducer_create(comm, travels ? "none" : spec, 0, &a->reducer)); /* gradients are exact at first */
  check(pith_reducer_add(a->reducer, &(pith_layer){sizeof(pith_layer), "layer", shape, 2, PITH_F32, NULL}, &index));

  pith_traffic warm = PITH_TRAFFIC_INIT, all = PITH_TRAFFIC_INIT;
  for (int t = 1; t <= STEPS; t++) {
    double now = gradient_of(a->x, teacher, &own, a->gradient);
    loss += t > STEPS - 50 ? now / 50 : 0;
    if (!travels || t <= WARM) {
      step_exactly(a, t);
    } else {
      step_frozen(a, t);
    }
    if (t == WARM) {
      check(pith_reducer_layer_traffic(a->reducer, index, &warm));
    }
    if (t == WARM && travels) {
      freeze(a, spec, t);
    }
  }
  check(pith_allreduce(comm, (pith_cspan){&loss, 1, PITH_F64}, (pith_span){&loss, 1, PITH_F64}, PITH_MEAN, NULL, NULL));

  check_replicas(comm, a->x, teacher);
  check(pith_reducer_layer_traffic(a->reducer, index, &all));
  if (rank == 0) {
    printf("%-18s loss %.4f, %.2f MB sent by rank 0 after the first %d steps\n", spec, loss,
           (double)(all.sent_bytes - warm.sent_bytes) / 1e6, WARM);
  }
  pith_reducer_destroy(a->reducer);
  free(a), free(teacher);
  return loss;
}

int main(int argc, char **argv) {
  pith_comm *comm;
  check(pith_comm_create(NULL, &comm));
  double exact = train(comm, "none"), sent = train(comm, argc > 1 ? argv[1] : "moment:4/onebit");
  if (pith_comm_rank(comm) == 0) {
    printf("%.3f times the loss of exact Adam\n", sent / exact);
  }
  pith_comm_destroy(comm);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random operations whose results are known. Values are small integers that every rank can compute for every rank, so
 * sums are exact in any order. What a codec loses is bounded by its own parameters, or computed by encoding and
 * decoding every rank's values here.
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/status.h"
#include "chaos.h"

enum { LEVELS = 8, STATE_VALUES = 3000, LAYERS = 4 }; /* values are -LEVELS … LEVELS - 1 */

/* How the result of a spec is checked. */
typedef enum check_kind { CHECK_EXACT, CHECK_BOUND, CHECK_DRIFT, CHECK_CALLS } check_kind;

static const struct {
  const char *spec;
  check_kind check;
  double bound; /* of the error of one value, for each rank */
} specs[] = {
    {"none", CHECK_EXACT, 0},
    {"fp16", CHECK_EXACT, 0},
    /* Half a step of 16/15 when a rank encodes its values, and as much again when the sum is encoded. */
    {"q:4", CHECK_BOUND, 1.25},
    {"q:8", CHECK_BOUND, 0.075},
    /* With error feedback the errors of all steps together stay below those of two. */
    {"ef/q:4", CHECK_DRIFT, 3},
    /* What is sent and how it is added is what the codec's own calls say, bit by bit. */
    {"topk:0.05", CHECK_CALLS, 0},
    {"ef/topk:0.05", CHECK_CALLS, 0},
};
enum { SPECS = sizeof specs / sizeof *specs };

struct chaos_worker {
  const chaos_round *round;
  pith_comm *comm;
  chaos_board *board;
  int rank, ranks;
  uint64_t seed; /* of the operation */
  int number;
  pith_codec *codec[SPECS];
  pith_state *state[SPECS];              /* ours … */
  pith_state *mirror[SPECS][RANKS_MOST]; /* … and what every rank has, computed here */
  double *drift[SPECS];                  /* what all steps together were wrong by */
  uint64_t steps[SPECS];
  pith_reducer *reducer;
  double *layer_drift;
  uint64_t reducer_steps;
};

/* ---- Values ------------------------------------------------------------------------------------------------------ */

static inline int value_at(uint64_t seed, int rank, size_t i) {
  uint64_t h = (seed + (uint64_t)rank * 0xbf58476d1ce4e5b9u + i) * 0x9e3779b97f4a7c15u;
  h ^= h >> 32;
  h *= 0x94d049bb133111ebu;
  return (int)(h >> 60) - LEVELS;
}

static float *values_of(uint64_t seed, int rank, size_t n) {
  float *x = malloc((n + 1) * sizeof *x);
  for (size_t i = 0; x && i < n; i++) {
    x[i] = (float)value_at(seed, rank, i);
  }
  return x;
}

static float *sum_of(const chaos_worker *w, uint64_t seed, size_t n) {
  float *sum = calloc(n + 1, sizeof *sum);
  for (int r = 0; sum && r < w->ranks; r++) {
    for (size_t i = 0; i < n; i++) {
      sum[i] += (float)value_at(seed, r, i);
    }
  }
  return sum;
}

/* Mostly short, sometimes a megabyte, sometimes nothing. */
static size_t choose_length(chaos_random *random) {
  uint64_t kind = chaos_below(random, 20);
  return kind == 0   ? 0
         : kind < 8  ? 1 + (size_t)chaos_below(random, 64)
         : kind < 18 ? 1 + (size_t)chaos_below(random, 16384)
                     : 1 + (size_t)chaos_below(random, 262144);
}

/* ---- Judging ----------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 2, 3))) static void note_wrong(chaos_worker *w, const char *format, ...) {
  if (w->board->wrong++ == 0) {
    va_list args;
    va_start(args, format);
    vsnprintf(w->board->wrong_text, sizeof w->board->wrong_text, format, args);
    va_end(args);
  }
}

/* Results that all ranks share are compared by the group. */
static void note_digest(chaos_worker *w, const void *data, size_t size) {
  uint64_t hash = pith__hash64(data, size, w->board->digest[w->number]);
  w->board->digest[w->number] = hash ? hash : 1;
}

static void compare(chaos_worker *w, const char *what, const float *got, const float *wanted, size_t n, double bound) {
  for (size_t i = 0; i < n; i++) {
    if (!(fabs((double)got[i] - (double)wanted[i]) <= bound)) {
      note_wrong(w, "%s of %zu values, operation %d: value %zu is %.9g, not %.9g ± %g", what, n, w->number, i,
                 (double)got[i], (double)wanted[i], bound);
      return;
    }
  }
}

/* ---- Allreduce --------------------------------------------------------------------------------------------------- */

static float larger(float a, float b) { return a > b ? a : b; }

static pith_status allreduce_max(chaos_worker *w, size_t n) {
  float *x = values_of(w->seed, w->rank, n), *wanted = values_of(w->seed, 0, n);
  for (int r = 1; r < w->ranks; r++) {
    for (size_t i = 0; i < n; i++) {
      wanted[i] = larger(wanted[i], (float)value_at(w->seed, r, i));
    }
  }
  pith_span span = {x, n, PITH_F32};
  pith_status status = pith_allreduce(w->comm, (pith_cspan){x, n, PITH_F32}, span, PITH_MAX, NULL, NULL);
  if (status == PITH_OK) {
    compare(w, "max", x, wanted, n, 0);
    note_digest(w, x, n * sizeof *x);
  }
  free(x);
  free(wanted);
  return status;
}

static pith_status allreduce_integers(chaos_worker *w, size_t n) {
  int32_t *x = malloc((n + 1) * sizeof *x);
  float *wanted = sum_of(w, w->seed, n);
  for (size_t i = 0; i < n; i++) {
    x[i] = value_at(w->seed, w->rank, i);
  }
  pith_span span = {x, n, PITH_I32};
  pith_status status = pith_allreduce(w->comm, (pith_cspan){x, n, PITH_I32}, span, PITH_SUM, NULL, NULL);
  if (status == PITH_OK) {
    note_digest(w, x, n * sizeof *x);
    float *got = malloc((n + 1) * sizeof *got);
    for (size_t i = 0; i < n; i++) {
      got[i] = (float)x[i];
    }
    compare(w, "sum of i32", got, wanted, n, 0);
    free(got);
  }
  free(x);
  free(wanted);
  return status;
}

/* What the sum must be if every rank encodes its values and all payloads are decoded and added in rank order. */
static pith_status sum_by_calls(chaos_worker *w, int s, size_t n, const pith_ctx *ctx, float *sum) {
  size_t room = pith_codec_bound(w->codec[s], n);
  uint8_t *bytes = malloc(room + 1);
  pith_status status = PITH_OK;
  for (int r = 0; r < w->ranks && status == PITH_OK; r++) {
    float *x = values_of(w->seed, r, n);
    pith_ctx theirs = *ctx;
    pith_out out = {bytes, room, 0};
    theirs.rank = (uint32_t)r, theirs.ranks = (uint32_t)w->ranks;
    status = pith_encode(w->codec[s], w->mirror[s][r], (pith_cspan){x, n, PITH_F32}, &out, &theirs);
    if (status == PITH_OK) {
      status = pith_decode(w->codec[s], (pith_bytes){bytes, out.size}, (pith_span){sum, n, PITH_F32},
                           r ? PITH_ADD : PITH_SET, &theirs);
    }
    free(x);
  }
  free(bytes);
  return status;
}

static void check_drift(chaos_worker *w, int s, const float *got, const float *wanted, size_t n) {
  double bound = specs[s].bound * w->ranks;
  for (size_t i = 0; i < n; i++) {
    w->drift[s][i] += (double)got[i] - (double)wanted[i];
    if (!(fabs(w->drift[s][i]) <= bound)) {
      note_wrong(w, "%s, operation %d: after %llu steps value %zu is off by %g, more than %g", specs[s].spec, w->number,
                 (unsigned long long)w->steps[s], i, w->drift[s][i], bound);
      return;
    }
  }
}

static pith_status check_sum(chaos_worker *w, int s, size_t n, const pith_ctx *ctx, const float *got) {
  float *wanted = sum_of(w, w->seed, n);
  pith_status status = PITH_OK;
  switch (specs[s].check) {
    case CHECK_EXACT:
    case CHECK_BOUND:
      compare(w, specs[s].spec, got, wanted, n, specs[s].bound * w->ranks);
      break;
    case CHECK_DRIFT:
      check_drift(w, s, got, wanted, n);
      break;
    case CHECK_CALLS:
      status = sum_by_calls(w, s, n, ctx, wanted);
      compare(w, specs[s].spec, got, wanted, n, 0);
      break;
  }
  free(wanted);
  return status;
}

static pith_status allreduce_sum(chaos_worker *w, int s, size_t n) {
  pith_call call = PITH_CALL_INIT;
  n = w->state[s] ? STATE_VALUES : n; /* a state is for one length */
  float *x = values_of(w->seed, w->rank, n), *sum = malloc((n + 1) * sizeof *sum);
  call.codec = w->codec[s], call.state = w->state[s];
  if (specs[s].check == CHECK_CALLS) { /* between hosts their sums would be encoded, not the ranks' values */
    call.algorithm = w->seed & 1 ? "gather" : "ranges";
  }
  call.seed = w->round->seed, call.step = w->steps[s]++, call.layer = (uint64_t)s;
  pith_status status =
      pith_allreduce(w->comm, (pith_cspan){x, n, PITH_F32}, (pith_span){sum, n, PITH_F32}, PITH_SUM, &call, NULL);
  if (status == PITH_OK) {
    note_digest(w, sum, n * sizeof *sum);
    pith_ctx ctx = PITH_CTX_INIT;
    ctx.seed = call.seed, ctx.step = call.step, ctx.layer = call.layer;
    status = check_sum(w, s, n, &ctx, sum);
  }
  free(x);
  free(sum);
  return status;
}

/* ---- The others -------------------------------------------------------------------------------------------------- */

static pith_status broadcast(chaos_worker *w, size_t n, int root) {
  float *x = values_of(w->seed, w->rank, n), *wanted = values_of(w->seed, root, n);
  pith_status status = pith_broadcast(w->comm, (pith_span){x, n, PITH_F32}, root, NULL, NULL);
  if (status == PITH_OK) {
    compare(w, "broadcast", x, wanted, n, 0);
    note_digest(w, x, n * sizeof *x);
  }
  free(x);
  free(wanted);
  return status;
}

static size_t uneven(size_t n, int rank, int ranks) { return n / (size_t)ranks + (size_t)rank % 3; }

static pith_status all_gather(chaos_worker *w, size_t n) {
  size_t counts[RANKS_MOST], total = 0;
  for (int r = 0; r < w->ranks; r++) {
    total += counts[r] = uneven(n, r, w->ranks);
  }
  float *x = values_of(w->seed, w->rank, counts[w->rank]), *all = malloc((total + 1) * sizeof *all), *at = all;
  pith_status status = pith_all_gather(w->comm, (pith_cspan){x, counts[w->rank], PITH_F32},
                                       (pith_span){all, total, PITH_F32}, counts, NULL, NULL);
  for (int r = 0; r < w->ranks && status == PITH_OK; at += counts[r++]) {
    float *wanted = values_of(w->seed, r, counts[r]);
    compare(w, "all_gather", at, wanted, counts[r], 0);
    free(wanted);
  }
  if (status == PITH_OK) {
    note_digest(w, all, total * sizeof *all);
  }
  free(x);
  free(all);
  return status;
}

static pith_status reduce_scatter(chaos_worker *w, size_t n) {
  size_t counts[RANKS_MOST], total = 0, first = 0;
  for (int r = 0; r < w->ranks; r++) {
    counts[r] = uneven(n, r, w->ranks);
    first += r < w->rank ? counts[r] : 0;
    total += counts[r];
  }
  float *x = values_of(w->seed, w->rank, total), *mine = malloc((counts[w->rank] + 1) * sizeof *mine);
  pith_status status = pith_reduce_scatter(w->comm, (pith_cspan){x, total, PITH_F32},
                                           (pith_span){mine, counts[w->rank], PITH_F32}, counts, PITH_SUM, NULL, NULL);
  if (status == PITH_OK) {
    float *wanted = sum_of(w, w->seed, total);
    compare(w, "reduce_scatter", mine, wanted + first, counts[w->rank], 0);
    free(wanted);
  }
  free(x);
  free(mine);
  return status;
}

static pith_status all_to_all(chaos_worker *w, size_t n) {
  size_t part = n / (size_t)w->ranks, total = part * (size_t)w->ranks;
  float *x = values_of(w->seed, w->rank, total), *y = malloc((total + 1) * sizeof *y);
  pith_status status =
      pith_all_to_all(w->comm, (pith_cspan){x, total, PITH_F32}, NULL, (pith_span){y, total, PITH_F32}, NULL, NULL);
  for (int r = 0; r < w->ranks && status == PITH_OK; r++) {
    float *theirs = values_of(w->seed, r, total);
    compare(w, "all_to_all", y + (size_t)r * part, theirs + (size_t)w->rank * part, part, 0);
    free(theirs);
  }
  free(x);
  free(y);
  return status;
}

/* To the next rank, from the one before. */
static pith_status pass_on(chaos_worker *w, size_t n) {
  int to = (w->rank + 1) % w->ranks, from = (w->rank + w->ranks - 1) % w->ranks;
  float *x = values_of(w->seed, w->rank, n), *y = malloc((n + 1) * sizeof *y), *wanted = values_of(w->seed, from, n);
  pith_request *sent;
  pith_status status = pith_send(w->comm, (pith_cspan){x, n, PITH_F32}, to, 7, &sent);
  if (status == PITH_OK) {
    status = pith_recv(w->comm, (pith_span){y, n, PITH_F32}, from, 7, NULL);
    pith_status also = pith_wait(sent);
    status = status == PITH_OK ? also : status;
  }
  if (status == PITH_OK) {
    compare(w, "send and receive", y, wanted, n, 0);
  }
  free(x);
  free(y);
  free(wanted);
  return status;
}

/* ---- Several layers ---------------------------------------------------------------------------------------------- */

static const struct {
  const char *name;
  size_t n;
  double bound; /* of the mean; drift over all steps */
} layers[LAYERS] = {
    {"first.weight", 3000, 3}, {"first.bias", 40, 1e-4}, {"last.weight", 700, 3}, {"last.bias", 3, 1e-4}};

static pith_status make_reducer(chaos_worker *w) {
  pith_status status = pith_reducer_create(w->comm, "*.bias=none;*=ef/q:4", w->round->seed, &w->reducer);
  for (size_t i = 0; i < LAYERS && status == PITH_OK; i++) {
    size_t layer;
    status = pith_reducer_add(
        w->reducer, &(pith_layer){sizeof(pith_layer), layers[i].name, &layers[i].n, 1, PITH_F32, NULL}, &layer);
  }
  return status;
}

static void check_layer(chaos_worker *w, size_t layer, const float *mean) {
  float *sum = sum_of(w, w->seed + layer, layers[layer].n);
  double *drift = w->layer_drift + layer * STATE_VALUES;
  note_digest(w, mean, layers[layer].n * sizeof *mean);
  for (size_t i = 0; i < layers[layer].n; i++) {
    drift[i] += (double)mean[i] - (double)sum[i] / w->ranks;
    if (!(fabs(drift[i]) <= layers[layer].bound)) {
      note_wrong(w, "layer %s, operation %d: after %llu steps value %zu is off by %g", layers[layer].name, w->number,
                 (unsigned long long)w->reducer_steps, i, drift[i]);
      break;
    }
  }
  free(sum);
}

static pith_status reduce_layers(chaos_worker *w) {
  float *x[LAYERS];
  pith_status status = w->reducer ? PITH_OK : make_reducer(w);
  for (size_t i = 0; i < LAYERS; i++) {
    x[i] = values_of(w->seed + i, w->rank, layers[i].n);
  }
  for (size_t i = LAYERS; i-- > 0 && status == PITH_OK;) {
    status = pith_reducer_start(w->reducer, i, x[i]);
  }
  if (w->reducer && status == PITH_OK) {
    status = pith_reducer_finish(w->reducer);
  }
  w->reducer_steps++;
  for (size_t i = 0; i < LAYERS && status == PITH_OK; i++) {
    check_layer(w, i, x[i]);
  }
  if (status != PITH_OK && w->reducer) { /* gradients are lent until it is gone */
    char text[TEXT_SIZE];
    snprintf(text, sizeof text, "%s", pith_error());
    pith_reducer_destroy(w->reducer);
    w->reducer = NULL;
    pith_fail(status, "%s", text);
  }
  for (size_t i = 0; i < LAYERS; i++) {
    free(x[i]);
  }
  return status;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

pith_status chaos_operate(chaos_worker *w, int number) {
  chaos_random random = {w->round->seed + (uint64_t)number * 0x2545f4914f6cdd1du};
  w->seed = chaos_draw(&random);
  w->number = number;
  w->board->digest[number] = 0;
  size_t n = choose_length(&random);
  int root = (int)chaos_below(&random, (uint64_t)w->ranks), s = (int)chaos_below(&random, SPECS);
  switch (chaos_below(&random, 12)) {
    case 0:
      return allreduce_max(w, n);
    case 1:
      return allreduce_integers(w, n);
    case 2:
      return broadcast(w, n, root);
    case 3:
      return all_gather(w, n);
    case 4:
      return reduce_scatter(w, n);
    case 5:
      return all_to_all(w, n);
    case 6:
      return pass_on(w, n);
    case 7:
      return pith_barrier(w->comm, NULL);
    case 8:
      return reduce_layers(w);
    default:
      return allreduce_sum(w, s, n);
  }
}

static pith_status make_spec(chaos_worker *w, int s) {
  pith_status status = pith_codec_create(specs[s].spec, &w->codec[s]);
  int has_state = strncmp(specs[s].spec, "ef/", 3) == 0;
  if (has_state && status == PITH_OK) {
    w->drift[s] = calloc(STATE_VALUES, sizeof *w->drift[s]);
    status = pith_state_create(w->codec[s], STATE_VALUES, 0, &w->state[s]);
  }
  for (int r = 0; r < w->ranks && has_state && specs[s].check == CHECK_CALLS && status == PITH_OK; r++) {
    status = pith_state_create(w->codec[s], STATE_VALUES, 0, &w->mirror[s][r]);
  }
  return status;
}

pith_status chaos_worker_create(const chaos_round *round, pith_comm *comm, chaos_board *board, chaos_worker **worker) {
  chaos_worker *w = calloc(1, sizeof *w);
  *worker = w;
  w->round = round, w->comm = comm, w->board = board;
  w->rank = pith_comm_rank(comm), w->ranks = pith_comm_size(comm);
  w->layer_drift = calloc((size_t)LAYERS * STATE_VALUES, sizeof *w->layer_drift);
  pith_status status = PITH_OK;
  for (int s = 0; s < SPECS && status == PITH_OK; s++) {
    status = make_spec(w, s);
  }
  return status;
}

void chaos_worker_destroy(chaos_worker *w) {
  pith_reducer_destroy(w->reducer);
  for (int s = 0; s < SPECS; s++) {
    for (int r = 0; r < RANKS_MOST; r++) {
      pith_state_destroy(w->mirror[s][r]);
    }
    pith_state_destroy(w->state[s]);
    pith_codec_destroy(w->codec[s]);
    free(w->drift[s]);
  }
  free(w->layer_drift);
  free(w);
}

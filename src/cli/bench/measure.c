/* SPDX-License-Identifier: Apache-2.0 */
/* The stopwatch of `pith bench codec`; that of collectives is in bench_timing.c. */
#include "cli/bench/measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/base/cli.h"

enum { ALIGNMENT = 64 };

/* Calls on small tensors are repeated until they move this much: one alone is shorter than the clock is fine. */
static const size_t sample_bytes = 1 << 20;

/* What a codec under test owns. */
typedef struct subject {
  const pith_codec *codec;
  pith_state *state;
  pith_out payload;
  pith_ctx ctx;
} subject;

/* Seconds for one repetition of each. */
typedef struct lap {
  double copy, encode, decode;
} lap;

/* Touched, so that no page fault is timed. A benchmark has nothing to do when its memory is not there: it ends. */
static void *take(size_t bytes) {
  size_t whole = bytes > SIZE_MAX - ALIGNMENT ? 0 : (bytes / ALIGNMENT + 1) * ALIGNMENT;
  void *data = whole ? aligned_alloc(ALIGNMENT, whole) : NULL;
  if (!data) {
    exit(cli_fail(CLI_FAILED, "out of memory: %zu bytes", bytes));
  }
  return memset(data, 0, whole);
}

/* Converts between types of tensors by way of the codec that changes nothing. */
static pith_status convert(pith_cspan from, pith_span to) {
  pith_codec *codec;
  pith_status status = pith_codec_create("none", &codec);
  if (status != PITH_OK) {
    return status;
  }
  pith_out out = {NULL, pith_codec_bound(codec, from.n), 0};
  out.data = take(out.capacity);
  status = pith_encode(codec, NULL, from, &out, NULL);
  if (status == PITH_OK) {
    status = pith_decode(codec, (pith_bytes){out.data, out.size}, to, PITH_SET, NULL);
  }
  free(out.data);
  pith_codec_destroy(codec);
  return status;
}

static double norm_of(const float *x, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i] * x[i];
  }
  return sqrt(sum);
}

static double distance_of(const float *x, const float *y, size_t n) {
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    double d = (double)x[i] - y[i];
    sum += d * d;
  }
  return sqrt(sum);
}

pith_status cli_workload_create(pith_dtype dtype, cli_dist dist, size_t bytes, cli_workload *work) {
  size_t n = bytes / pith_dtype_size(dtype);
  float *values = take(n * sizeof *values);
  cli_data_fill(dist, 1, values, n);
  *work = (cli_workload){dtype, n, n * pith_dtype_size(dtype), values, 0, NULL, NULL, NULL, NULL};
  work->src = take(work->bytes);
  work->dst = take(work->bytes);
  work->copy = take(work->bytes);
  work->decoded = take(n * sizeof *work->decoded);
  pith_status status = convert((pith_cspan){values, n, PITH_F32}, (pith_span){work->src, n, dtype});
  if (status == PITH_OK) {
    status = convert((pith_cspan){work->src, n, dtype}, (pith_span){values, n, PITH_F32});
  }
  work->norm = norm_of(values, n);
  if (status != PITH_OK) {
    cli_workload_destroy(work);
  }
  return status;
}

void cli_workload_destroy(cli_workload *work) {
  free((void *)work->values);
  free(work->src);
  free(work->dst);
  free(work->copy);
  free(work->decoded);
  *work = (cli_workload){.n = 0};
}

/* Low rank sees a square matrix where there is one; the library finds a near-square one otherwise. */
static size_t rows_of(size_t n) {
  size_t root = (size_t)sqrt((double)n);
  return root && root * root == n ? root : 0;
}

static pith_status subject_init(subject *s, const pith_codec *codec, const cli_workload *work) {
  *s = (subject){.codec = codec, .ctx = PITH_CTX_INIT};
  s->ctx.seed = 1;
  s->ctx.rows = rows_of(work->n);
  s->ctx.scratch_size = pith_codec_scratch(codec, work->n);
  s->ctx.scratch = take(s->ctx.scratch_size);
  s->payload.capacity = pith_codec_bound(codec, work->n);
  s->payload.data = take(s->payload.capacity);
  return pith_state_create(codec, work->n, s->ctx.rows, &s->state);
}

static void subject_fini(subject *s) {
  pith_state_destroy(s->state);
  free(s->payload.data);
  free(s->ctx.scratch);
}

static pith_status encode(subject *s, const cli_workload *work) {
  s->ctx.step++;
  return pith_encode(s->codec, s->state, (pith_cspan){work->src, work->n, work->dtype}, &s->payload, &s->ctx);
}

static pith_status decode(const subject *s, pith_span dst, pith_mode mode) {
  return pith_decode(s->codec, (pith_bytes){s->payload.data, s->payload.size}, dst, mode, &s->ctx);
}

static pith_status measure_size_and_error(subject *s, const cli_workload *work, cli_measurement *result) {
  pith_status status = encode(s, work);
  if (status != PITH_OK) {
    return status;
  }
  result->payload = s->payload.size;
  result->scratch = s->ctx.scratch_size;
  result->state = pith_state_save_size(s->state);
  status = decode(s, (pith_span){work->decoded, work->n, PITH_F32}, PITH_SET);
  double distance = distance_of(work->values, work->decoded, work->n);
  result->error = distance > 0 ? distance / work->norm : distance;
  return status;
}

double cli_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void copy(const cli_workload *work) {
  memcpy(work->copy, work->src, work->bytes);
  __asm__ volatile("" ::: "memory"); /* the copy is really made, each time */
}

static pith_status run_lap(subject *s, const cli_workload *work, lap *times) {
  size_t calls = 1 + sample_bytes / (work->bytes + 1);
  pith_status status = PITH_OK;
  double start = cli_now();
  for (size_t i = 0; i < calls; i++) {
    copy(work);
  }
  double copied = cli_now();
  for (size_t i = 0; i < calls && status == PITH_OK; i++) {
    status = encode(s, work);
  }
  double encoded = cli_now();
  for (size_t i = 0; i < calls && status == PITH_OK; i++) {
    status = decode(s, (pith_span){work->dst, work->n, work->dtype}, PITH_ADD);
  }
  double decoded = cli_now(), each = 1.0 / (double)calls;
  *times = (lap){(copied - start) * each, (encoded - copied) * each, (decoded - encoded) * each};
  return status;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double cli_median(double *x, size_t n) {
  qsort(x, n, sizeof *x, compare);
  return n % 2 ? x[n / 2] : 0.5 * (x[n / 2 - 1] + x[n / 2]);
}

static void summarize(const lap *laps, size_t n, cli_measurement *result) {
  double *column = take(5 * n * sizeof *column);
  for (size_t i = 0; i < n; i++) {
    column[i] = laps[i].copy;
    column[n + i] = laps[i].encode;
    column[2 * n + i] = laps[i].decode;
    column[3 * n + i] = laps[i].copy / laps[i].encode;
    column[4 * n + i] = laps[i].copy / laps[i].decode;
  }
  result->copy_time = cli_median(column, n);
  result->encode_time = cli_median(column + n, n);
  result->decode_time = cli_median(column + 2 * n, n);
  result->encode_ratio = cli_median(column + 3 * n, n);
  result->decode_ratio = cli_median(column + 4 * n, n);
  free(column);
}

static pith_status measure_times(subject *s, const cli_workload *work, size_t repetitions, size_t warmup,
                                 cli_measurement *result) {
  lap *laps = take((repetitions + 1) * sizeof *laps);
  pith_status status = PITH_OK;
  for (size_t i = 0; i < warmup && status == PITH_OK; i++) {
    status = run_lap(s, work, &laps[repetitions]);
  }
  for (size_t i = 0; i < repetitions && status == PITH_OK; i++) {
    status = run_lap(s, work, &laps[i]);
  }
  if (status == PITH_OK) {
    summarize(laps, repetitions, result);
  }
  free(laps);
  return status;
}

pith_status cli_measure(const pith_codec *codec, const cli_workload *work, size_t repetitions, size_t warmup,
                        cli_measurement *result) {
  subject s;
  pith_status status = subject_init(&s, codec, work);
  if (status == PITH_OK) {
    status = measure_size_and_error(&s, work, result);
  }
  if (status == PITH_OK) {
    memset(work->dst, 0, work->bytes);
    status = measure_times(&s, work, repetitions, warmup, result);
  }
  subject_fini(&s);
  return status;
}

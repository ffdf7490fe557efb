/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast a codec is, for `pith sim`: a time for each call and one for each value, from two sizes. Measured here, or
 * taken from a file that `pith bench codec -b … -e … --json` has written; with one size there is no time for a call.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/machine.h"
#include "cli/bench/measure.h"
#include "cli/sim/sim.h"

enum { FILE_MOST = 16 << 20, REPETITIONS = 9, WARMUP = 2 };

/* Seconds of one size. */
typedef struct sample {
  double values, encode, decode, copy;
} sample;

/* A line through two points, with no negative part. */
static void fit(double n1, double t1, double n2, double t2, double *call, double *value) {
  double slope = n2 > n1 ? (t2 - t1) / (n2 - n1) : t2 / n2, start = n2 > n1 ? t1 - slope * n1 : 0;
  if (slope <= 0 || start < 0) {
    slope = t2 / n2;
    start = 0;
  }
  *call = start;
  *value = slope;
}

/* What the topology file or an option says stays. */
static void set_speed(cli_sim_setup *setup, const pith_codec *codec, const sample *small, const sample *large) {
  pith_sim_topology *t = &setup->topology;
  double ignored;
  if (codec && !setup->has_encode) {
    fit(small->values, small->encode, large->values, large->encode, &t->encode_call, &t->encode_value);
  }
  if (codec && !setup->has_decode) {
    fit(small->values, small->decode, large->values, large->decode, &t->decode_call, &t->decode_value);
  }
  if (large->copy > 0) {
    fit(0, 0, large->values, large->copy, &ignored, &t->sum_value);
  }
}

/* ---- Measured: by all cores at once, as ranks do it, which share the memory of a machine ------------------------- */

enum { THREADS_MOST = 16, VALUES_MOST = 8 << 20, CALL_VALUES = 1024 };

typedef struct measurement {
  const pith_codec *codec;
  size_t n;
  pthread_t thread;
  cli_measurement found;
  cli_dist dist;
  pith_status status;
  char error[256];
} measurement;

/* Methods of several rounds: what all of them take, without the sums between them. While these travel, and between
 * steps, caches are used for other things. */
static pith_status run_rounds(const pith_codec *codec, pith_state *state, const cli_workload *work, void *buffer,
                              double *produce, double *consume) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.gamma = 1;
  ctx.ranks = 1;
  *produce = *consume = 0;
  for (size_t i = 0; i < pith_codec_rounds(codec); i++) {
    memcpy(work->copy, work->decoded, work->bytes);
    double start = cli_now();
    pith_status status = pith_round_produce(codec, state, i, (pith_cspan){work->src, work->n, PITH_F32}, buffer, &ctx);
    double middle = cli_now();
    memcpy(work->copy, work->decoded, work->bytes);
    double later = cli_now();
    if (status == PITH_OK) {
      status = pith_round_consume(codec, state, i, buffer, (pith_span){work->dst, work->n, PITH_F32}, &ctx);
    }
    if (status != PITH_OK) {
      return status;
    }
    *produce += middle - start;
    *consume += cli_now() - later;
  }
  return PITH_OK;
}

static pith_status measure_rounds(const pith_codec *codec, const cli_workload *work, cli_measurement *found) {
  double produce[REPETITIONS], consume[REPETITIONS], ignored;
  pith_state *state = NULL;
  void *buffer = malloc(work->bytes * 2 + 4096); /* no round has more values than the tensor */
  pith_status status = pith_state_create(codec, work->n, 0, &state);
  for (size_t i = 0; i < WARMUP && buffer && status == PITH_OK; i++) {
    status = run_rounds(codec, state, work, buffer, &ignored, &ignored);
  }
  for (size_t i = 0; i < REPETITIONS && buffer && status == PITH_OK; i++) {
    status = run_rounds(codec, state, work, buffer, &produce[i], &consume[i]);
  }
  if (buffer && status == PITH_OK) {
    found->encode_time = cli_median(produce, REPETITIONS);
    found->decode_time = cli_median(consume, REPETITIONS);
  }
  free(buffer);
  pith_state_destroy(state);
  return status;
}

static void *run_measurement(void *argument) {
  measurement *m = argument;
  cli_workload work;
  m->status = cli_workload_create(PITH_F32, m->dist, m->n * sizeof(float), &work);
  if (m->status == PITH_OK) {
    m->status = cli_measure(m->codec, &work, REPETITIONS, WARMUP, &m->found);
    if (m->status == PITH_OK && (pith_codec_caps(m->codec) & PITH_CAP_ROUNDS)) {
      m->status = measure_rounds(m->codec, &work, &m->found);
    }
    cli_workload_destroy(&work);
  }
  snprintf(m->error, sizeof m->error, "%s", m->status == PITH_OK ? "" : pith_error());
  return NULL;
}

static int measure(const pith_codec *codec, size_t n, cli_dist dist, sample *s) {
  measurement m[THREADS_MOST];
  cli_machine machine;
  cli_machine_look(&machine);
  size_t threads = machine.usable_cores < THREADS_MOST ? machine.usable_cores : THREADS_MOST, started = 1;
  for (size_t i = 0; i < threads || i == 0; i++) {
    m[i] = (measurement){.codec = codec, .n = n, .dist = dist};
  }
  while (started < threads && pthread_create(&m[started].thread, NULL, run_measurement, &m[started]) == 0) {
    started++;
  }
  run_measurement(&m[0]);
  *s = (sample){.values = (double)n};
  int code = CLI_OK;
  for (size_t i = 0; i < started; i++) {
    if (i) {
      pthread_join(m[i].thread, NULL);
    }
    if (m[i].status != PITH_OK && code == CLI_OK) {
      code = cli_fail(CLI_FAILED, "%s", m[i].error);
    }
    s->encode = fmax(s->encode, m[i].found.encode_time); /* ranks wait for the slowest */
    s->decode = fmax(s->decode, m[i].found.decode_time);
    s->copy = fmax(s->copy, m[i].found.copy_time);
  }
  return code;
}

/* Entries of sparse payloads travel by a codec of their own, without loss. Its time is a line over their density. */
static int measure_entries(cli_sim_setup *setup, size_t n) {
  const double few = 0.00932, many = 0.1; /* of normal values beyond 2.6; of sparse ones */
  pith_codec *first = NULL, *second = NULL;
  sample a, b;
  if (pith_codec_create("threshold:2.6", &first) != PITH_OK ||
      pith_codec_create("threshold:1e-45", &second) != PITH_OK) {
    pith_codec_destroy(first);
    return cli_fail(CLI_FAILED, "%s", pith_error());
  }
  int code = measure(first, n, CLI_DIST_NORMAL, &a);
  code = code == CLI_OK ? measure(second, n, CLI_DIST_SPARSE, &b) : code;
  pith_codec_destroy(first);
  pith_codec_destroy(second);
  if (code == CLI_OK) {
    double ignored;
    pith_sim_topology *t = &setup->topology;
    fit(few * a.values, a.encode, many * b.values, b.encode, &t->pack_value, &t->pack_entry);
    fit(few * a.values, a.decode, many * b.values, b.decode, &ignored, &t->unpack_entry);
    t->pack_value /= (double)n;
  }
  return code;
}

/* On the whole tensor, as far as it is larger than all caches: ranks find their values in memory. A short call tells
 * what one takes in any case. */
int cli_sim_speed_measure(cli_sim_setup *setup, const pith_codec *codec, size_t n, cli_dist dist) {
  uint32_t caps = codec ? pith_codec_caps(codec) : PITH_CAP_CHUNKED;
  int is_chunked = (caps & PITH_CAP_CHUNKED) != 0;
  size_t most = is_chunked && n > VALUES_MOST ? VALUES_MOST : n, part = is_chunked ? CALL_VALUES : most / 16;
  size_t least = part < CALL_VALUES ? CALL_VALUES : part;
  least = least < most ? least : most;
  pith_codec *none = NULL;
  sample small, large;
  if (!codec && pith_codec_create("none", &none) != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s", pith_error());
  }
  int code = measure(codec ? codec : none, most, dist, &large);
  code = code == CLI_OK ? measure(codec ? codec : none, least, dist, &small) : code;
  code = code == CLI_OK && (caps & PITH_CAP_SPARSE) ? measure_entries(setup, n) : code;
  pith_codec_destroy(none);
  if (code == CLI_OK) {
    set_speed(setup, codec, &small, &large);
  }
  return code;
}

/* ---- From a file ------------------------------------------------------------------------------------------------- */

static char *read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  char *text = file ? malloc(FILE_MOST + 1) : NULL;
  size_t size = text ? fread(text, 1, FILE_MOST, file) : 0;
  if (file) {
    fclose(file);
  }
  if (text) {
    text[size] = 0;
  }
  return text;
}

/* The number of a key between two places of the text; 0 if it is not there. */
static double number_of(const char *from, const char *end, const char *key) {
  char quoted[64];
  snprintf(quoted, sizeof quoted, "\"%s\":", key);
  const char *at = strstr(from, quoted);
  return at && at < end ? strtod(at + strlen(quoted), NULL) : 0;
}

/* Whether the object that begins here is about this codec. */
static int is_about(const char *from, const char *end, const char *spec) {
  char quoted[600];
  const char *at = strstr(from, "\"codec\":");
  snprintf(quoted, sizeof quoted, "\"%s\"", spec);
  at = at ? strchr(at + strlen("\"codec\":"), '"') : NULL;
  return at && at < end && !strncmp(at, quoted, strlen(quoted));
}

static sample sample_of(const char *from, const char *end) {
  double gigabytes = 1e-9 * number_of(from, end, "bytes"), encode = number_of(from, end, "encode_gbps"),
         decode = number_of(from, end, "decode_add_gbps"), copy = number_of(from, end, "copy_gbps");
  sample s = {.values = number_of(from, end, "values")};
  if (s.values >= 1 && gigabytes > 0 && encode > 0 && decode > 0) {
    s.encode = gigabytes / encode;
    s.decode = gigabytes / decode;
    s.copy = copy > 0 ? gigabytes / copy : 0;
  }
  return s;
}

int cli_sim_speed_read(cli_sim_setup *setup, const pith_codec *codec, const char *path) {
  const char *spec = codec ? pith_codec_spec(codec) : "none";
  char *text = read_file(path);
  sample small = {0}, large = {0};
  if (!text) {
    return cli_fail(CLI_USAGE, "cannot read %s: %s", path, strerror(errno));
  }
  const char *results = strstr(text, "\"results\"");
  for (const char *at = results ? strchr(results, '{') : NULL, *end; at && (end = strchr(at, '}'));
       at = strchr(end, '{')) {
    sample s = is_about(at, end, spec) ? sample_of(at, end) : (sample){0};
    if (s.encode > 0) {
      small = small.encode <= 0 || s.values < small.values ? s : small;
      large = s.values > large.values ? s : large;
    }
  }
  free(text);
  if (large.encode <= 0) {
    return cli_fail(CLI_USAGE, "%s has no speed of %s: write it with pith bench codec --codec %s --json %s", path, spec,
                    spec, path);
  }
  set_speed(setup, codec, &small, &large);
  return CLI_OK;
}

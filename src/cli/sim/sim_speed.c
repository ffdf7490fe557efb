/*
 * How fast a codec is, for `pith sim`: a time for each call and one for each value, from two sizes. Measured here, or
 * taken from a file that `pith bench codec -b … -e … --json` has written; with one size there is no time for a call.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- Measured ---------------------------------------------------------------------------------------------------- */

static int measure(const pith_codec *codec, size_t n, sample *s) {
  cli_workload work;
  cli_measurement m;
  pith_codec *none = NULL;
  pith_status status = codec ? PITH_OK : pith_codec_create("none", &none);
  status = status == PITH_OK ? cli_workload_create(PITH_F32, CLI_DIST_NORMAL, n * sizeof(float), &work) : status;
  if (status == PITH_OK) {
    status = cli_measure(codec ? codec : none, &work, REPETITIONS, WARMUP, &m);
    cli_workload_destroy(&work);
  }
  pith_codec_destroy(none);
  *s = (sample){(double)n, m.encode_time, m.decode_time, m.copy_time};
  return status == PITH_OK ? CLI_OK : cli_fail(CLI_FAILED, "%s", pith_error());
}

/* Block codecs work on chunks, the others on the whole tensor. */
int cli_sim_speed_measure(cli_sim_setup *setup, const pith_codec *codec, size_t n) {
  size_t chunk = setup->topology.chunk / sizeof(float);
  size_t most = codec && !(pith_codec_caps(codec) & PITH_CAP_CHUNKED) ? n : n < chunk ? n : chunk;
  size_t least = most / 16 < 1024 ? (most < 1024 ? most : 1024) : most / 16;
  sample small, large;
  int code = measure(codec, most, &large);
  code = code == CLI_OK ? measure(codec, least, &small) : code;
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

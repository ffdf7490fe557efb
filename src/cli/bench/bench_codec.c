/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith bench codec`: every method on the same tensors, beside a memcpy of the same bytes. The columns are those that
 * decide whether a method pays: bits per value, error, speed of both directions, memory beyond input and output.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <pith/pith.h>

#include "cli/base/json.h"
#include "cli/base/machine.h"
#include "cli/base/options.h"
#include "cli/base/page.h"
#include "cli/base/table.h"
#include "cli/bench/bench.h"
#include "cli/bench/measure.h"

enum { SPEC, SIZE, BITS, ERROR, ENCODE, ENCODE_RATIO, DECODE, DECODE_RATIO, COPY, SCRATCH, STATE, COLUMN_COUNT };
enum { CELL_MAX = 32, SIZES_MAX = 64 /* factors are at least 2 */ };

/* Every family, with the parameters their papers recommend. */
static const char *const usual_specs[] = {
    "none",          "fp16",          "bf16",
    "q:8",           "q:4",           "q:4,round=stochastic",
    "q:2",           "qsgd",          "terngrad",
    "natural",       "signsgd",       "signum:0.9",
    "efsignsgd",     "onebit",        "u8",
    "gq:8",          "drive",         "eden:2",
    "ef/q:4",        "hadamard/q:4",  "inceptionn:0.01",
    "topk:0.01",     "ef/topk:0.01",  "ef/topk:0.01,select=sampled",
    "randomk:0.01",  "threshold:2.5", "dgc:0.01",
    "adaptive:0.01", "sketchml:64",   "ef/powersgd:4",
    "fp8",           "mxfp8",         "mxfp6",
    "mxfp4",         "nvfp4",         "lossless",
};

typedef struct settings {
  size_t from, to, factor, repetitions, warmup;
  int dtype, dist, isa, wide;
  const char *json, *import;
  cli_list specs;
} settings;

typedef struct bench {
  settings set;
  size_t codecs;
  pith_codec *codec[CLI_LIST_MAX];
  cli_table table;
  cli_json json; /* .file is NULL where none was asked for */
  int quiet;     /* JSON goes to standard output, so the table does not */
  size_t done, all;
} bench;

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static cli_parsed parse(int argc, char **argv, settings *set) {
  *set = (settings){.factor = 2, .repetitions = 20, .warmup = 5, .isa = -1};
  const cli_option options[] = {
      {"-b", CLI_SIZE, &set->from, "SIZE", "smallest tensor in bytes, as 4K or 64M (64M, or what -e says)"},
      {"-e", CLI_SIZE, &set->to, "SIZE", "largest tensor (what -b says)"},
      {"-f", CLI_COUNT, &set->factor, "FACTOR", "from one size to the next (2)"},
      {"-n", CLI_POSITIVE, &set->repetitions, "COUNT", "repetitions (20); medians are printed"},
      {"-w", CLI_COUNT, &set->warmup, "COUNT", "repetitions before those (5)"},
      {"--codec", CLI_LIST, &set->specs, "SPEC", "a method to measure; may be repeated (a selection of all)"},
      {"--import", CLI_TEXT, &set->import, "MODULE",
       "a module, or a file with .py, with methods written in Python; the Python package then does the measuring"},
      {"--dtype", CLI_CHOICE, &set->dtype, "f32|f16|bf16", "type of the tensor (f32)"},
      {"--dist", CLI_CHOICE, &set->dist, CLI_DIST_NAMES, "distribution of its values, of variance 1 (normal)"},
      {"--cpu", CLI_CHOICE, &set->isa, "scalar|avx2|avx512", "instruction set (the best there is, or PITH_CPU)"},
      {"--wide", CLI_FLAG, &set->wide, NULL,
       "all columns: also the speed of the copy, and memory beside input and output"},
      {"--json", CLI_TEXT, &set->json, "FILE", "also write JSON; - writes it to standard output instead of the table"},
      {.name = NULL},
  };
  const cli_usage usage = {
      "bench codec", NULL,
      "Encodes random gradients, then decodes them and adds them to a sum, on one thread. error is ‖x−x̂‖/‖x‖ of one "
      "step. GB/s are 10^9 bytes of input a second. decode includes adding to the sum. ×copy is the speed divided by "
      "that of a memcpy timed right before.",
      options};
  return cli_options_parse(&usage, argc, argv, NULL);
}

static int settle(settings *set) {
  const size_t usual = (size_t)64 << 20;
  set->from = set->from ? set->from : set->to ? set->to : usual;
  set->to = set->to ? set->to : set->from;
  if (set->from > set->to) {
    return cli_fail(CLI_USAGE, "bench codec: -b is larger than -e");
  }
  if (set->from < pith_dtype_size((pith_dtype)set->dtype)) {
    return cli_fail(CLI_USAGE, "bench codec: -b %zu: a tensor has at least one value, which is %zu bytes", set->from,
                    pith_dtype_size((pith_dtype)set->dtype));
  }
  if (set->factor < 2) {
    return cli_fail(CLI_USAGE, "bench codec: -f %zu: expected a FACTOR of at least 2", set->factor);
  }
  if (set->isa >= 0 && pith_isa_select((pith_isa)set->isa) != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s", pith_error());
  }
  if (!set->specs.count) {
    set->specs.count = sizeof usual_specs / sizeof *usual_specs;
    memcpy(set->specs.item, usual_specs, sizeof usual_specs);
  }
  return CLI_OK;
}

/* All specs are read before anything is measured: a slip in the last one shows at once. */
static int create_codecs(bench *b) {
  const cli_list *specs = &b->set.specs;
  for (; b->codecs < specs->count; b->codecs++) {
    if (pith_codec_create(specs->item[b->codecs], &b->codec[b->codecs]) != PITH_OK) {
      return cli_fail(CLI_USAGE, "%s: %s", specs->item[b->codecs], pith_error());
    }
  }
  return CLI_OK;
}

/* ---- Output ------------------------------------------------------------------------------------------------------ */

static double percent(size_t part, size_t whole) { return 100.0 * (double)part / (double)whole; }

static double bits_per_value(const cli_measurement *m, const cli_workload *work) {
  return 8.0 * (double)m->payload / (double)work->n;
}

static void print_head(bench *b, const cli_machine *machine) {
  const int narrow = !b->set.wide;
  b->table = (cli_table){.columns = COLUMN_COUNT,
                         .column = {[SPEC] = {.title = "codec"},
                                    [SIZE] = {.title = "size", .right = 1, .width = 4},
                                    [BITS] = {.title = "bits/value", .right = 1},
                                    [ERROR] = {.title = "error", .right = 1, .width = 9},
                                    [ENCODE] = {.title = "encode GB/s", .right = 1},
                                    [ENCODE_RATIO] = {.title = "×copy", .right = 1, .width = 6},
                                    [DECODE] = {.title = "decode GB/s", .right = 1},
                                    [DECODE_RATIO] = {.title = "×copy", .right = 1, .width = 6},
                                    [COPY] = {.title = "copy GB/s", .right = 1, .hidden = narrow},
                                    [SCRATCH] = {.title = "scratch %", .right = 1, .hidden = narrow},
                                    [STATE] = {.title = "state %", .right = 1, .hidden = narrow}},
                         .wide = b->set.wide};
  if (b->quiet) {
    return;
  }
  for (size_t i = 0; i < b->codecs; i++) {
    cli_table_fit(&b->table, SPEC, pith_codec_spec(b->codec[i]));
  }
  cli_say(stdout, "# ", "pith %s on %s, %s, one thread; %s, %s; %zu repetitions", pith_version(), machine->cpu,
          pith_isa_name(pith_isa_current()), pith_dtype_name((pith_dtype)b->set.dtype),
          cli_dist_name((cli_dist)b->set.dist), b->set.repetitions);
  cli_table_head(&b->table);
}

static void print_row(const bench *b, const pith_codec *codec, const cli_workload *work, const cli_measurement *m) {
  const double gigabytes = 1e-9 * (double)work->bytes;
  const double number[COLUMN_COUNT] = {
      [BITS] = bits_per_value(m, work),         [ERROR] = m->error,
      [ENCODE] = gigabytes / m->encode_time,    [ENCODE_RATIO] = m->encode_ratio,
      [DECODE] = gigabytes / m->decode_time,    [DECODE_RATIO] = m->decode_ratio,
      [COPY] = gigabytes / m->copy_time,        [SCRATCH] = percent(m->scratch, work->bytes),
      [STATE] = percent(m->state, work->bytes),
  };
  static const char *const format[COLUMN_COUNT] = {
      [BITS] = "%.3f",         [ERROR] = "%.2e", [ENCODE] = "%.2f",  [ENCODE_RATIO] = "%.2f", [DECODE] = "%.2f",
      [DECODE_RATIO] = "%.2f", [COPY] = "%.2f",  [SCRATCH] = "%.1f", [STATE] = "%.1f",
  };
  char text[COLUMN_COUNT][CELL_MAX];
  const char *cells[COLUMN_COUNT] = {pith_codec_spec(codec), cli_size_print(work->bytes, text[SIZE])};
  for (size_t i = BITS; i < COLUMN_COUNT; i++) {
    snprintf(text[i], CELL_MAX, format[i], number[i]);
    cells[i] = text[i];
  }
  cli_table_row(&b->table, cells);
  fflush(stdout);
}

static void write_head(bench *b, const cli_machine *machine) {
  cli_json *json = &b->json;
  cli_json_object(json, NULL);
  cli_json_string(json, "version", pith_version());
  cli_json_string(json, "cpu", machine->cpu);
  cli_json_string(json, "isa", pith_isa_name(pith_isa_current()));
  cli_json_string(json, "dtype", pith_dtype_name((pith_dtype)b->set.dtype));
  cli_json_string(json, "distribution", cli_dist_name((cli_dist)b->set.dist));
  cli_json_count(json, "repetitions", b->set.repetitions);
  cli_json_count(json, "warmup", b->set.warmup);
  cli_json_count(json, "threads", 1);
  cli_json_array(json, "results");
}

static void write_result(cli_json *json, const pith_codec *codec, const cli_workload *work, const cli_measurement *m) {
  const double gigabytes = 1e-9 * (double)work->bytes;
  cli_json_object(json, NULL);
  cli_json_string(json, "codec", pith_codec_spec(codec));
  cli_json_string(json, "parts", pith_codec_parts(codec));
  cli_json_count(json, "bytes", work->bytes);
  cli_json_count(json, "values", work->n);
  cli_json_count(json, "payload_bytes", m->payload);
  cli_json_number(json, "bits_per_value", bits_per_value(m, work));
  cli_json_number(json, "relative_error", m->error);
  cli_json_number(json, "encode_gbps", gigabytes / m->encode_time);
  cli_json_number(json, "encode_vs_copy", m->encode_ratio);
  cli_json_number(json, "decode_add_gbps", gigabytes / m->decode_time);
  cli_json_number(json, "decode_add_vs_copy", m->decode_ratio);
  cli_json_number(json, "copy_gbps", gigabytes / m->copy_time);
  cli_json_count(json, "scratch_bytes", m->scratch);
  cli_json_number(json, "scratch_percent", percent(m->scratch, work->bytes));
  cli_json_count(json, "state_bytes", m->state);
  cli_json_number(json, "state_percent", percent(m->state, work->bytes));
  cli_json_object_end(json);
}

static void show_progress(bench *b, const pith_codec *codec) {
  if (isatty(STDERR_FILENO)) {
    fprintf(stderr, "\r\033[K[%zu/%zu] %s", ++b->done, b->all, pith_codec_spec(codec));
  }
}

static void clear_progress(void) {
  if (isatty(STDERR_FILENO)) {
    fputs("\r\033[K", stderr);
  }
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static int run_codec(bench *b, const pith_codec *codec, const cli_workload *work) {
  cli_measurement m;
  show_progress(b, codec);
  pith_status status = cli_measure(codec, work, b->set.repetitions, b->set.warmup, &m);
  clear_progress();
  if (status != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s: %s", pith_codec_spec(codec), pith_error());
  }
  if (!b->quiet) {
    print_row(b, codec, work, &m);
  }
  if (b->json.file) {
    write_result(&b->json, codec, work, &m);
  }
  return CLI_OK;
}

static int run_size(bench *b, size_t bytes) {
  cli_workload work;
  if (cli_workload_create((pith_dtype)b->set.dtype, (cli_dist)b->set.dist, bytes, &work) != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s", pith_error());
  }
  int code = CLI_OK;
  for (size_t i = 0; i < b->codecs && code == CLI_OK; i++) {
    code = run_codec(b, b->codec[i], &work);
  }
  cli_workload_destroy(&work);
  return code;
}

/* From the smallest to the largest, by the factor. */
static size_t list_sizes(const settings *set, size_t sizes[SIZES_MAX]) {
  size_t count = 0;
  for (size_t bytes = set->from; bytes <= set->to; bytes *= set->factor) {
    sizes[count++] = bytes;
    if (bytes > SIZE_MAX / set->factor) {
      break;
    }
  }
  return count;
}

static int run_all(bench *b) {
  size_t sizes[SIZES_MAX], count = list_sizes(&b->set, sizes);
  int code = CLI_OK;
  b->all = count * b->codecs;
  for (size_t i = 0; i < count && code == CLI_OK; i++) {
    code = run_size(b, sizes[i]);
  }
  return code;
}

static int open_json(bench *b) {
  if (!b->set.json) {
    return CLI_OK;
  }
  b->quiet = !strcmp(b->set.json, "-");
  b->json.file = b->quiet ? stdout : fopen(b->set.json, "w");
  return b->json.file ? CLI_OK : cli_fail(CLI_FAILED, "cannot write %s", b->set.json);
}

static int close_json(bench *b) {
  cli_json_array_end(&b->json);
  cli_json_object_end(&b->json);
  int failed = ferror(b->json.file);
  if (!b->quiet) {
    failed |= fclose(b->json.file) != 0;
  }
  return failed ? cli_fail(CLI_FAILED, "cannot write %s", b->set.json) : CLI_OK;
}

/* Measures and reports. JSON holds whole results only and is closed properly, also when a codec failed in between. */
static int run_and_report(bench *b) {
  cli_machine machine;
  cli_machine_look(&machine);
  int code = open_json(b);
  if (code != CLI_OK) {
    return code;
  }
  print_head(b, &machine);
  if (!b->json.file) {
    return run_all(b);
  }
  write_head(b, &machine);
  code = run_all(b);
  int closed = close_json(b);
  return code != CLI_OK ? code : closed;
}

int cli_bench_codec(int argc, char **argv) {
  bench b = {.codecs = 0};
  cli_parsed parsed = parse(argc, argv, &b.set);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  int code = settle(&b.set);
  if (code == CLI_OK) {
    code = create_codecs(&b);
  }
  if (code == CLI_OK) {
    code = run_and_report(&b);
  }
  for (size_t i = 0; i < b.codecs; i++) {
    pith_codec_destroy(b.codec[i]);
  }
  return code;
}

/*
 * `pith bench allreduce` and its relatives. Every rank runs this; rank 0 prints. The columns are those that users of
 * collective libraries know, and the ones they miss: bytes on the wire, error, time in encoding and decoding. The
 * uncompressed line stands above every compressed one.
 *
 * algbw is size / time. busbw is algbw times the part of the size that must cross every rank's link whatever the
 * algorithm: 2(N-1)/N for allreduce, (N-1)/N for the others, 1 for broadcast. A compressed line may exceed the link.
 */
#include "cli/bench_collective.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <pith/pith.h>

#include "cli/cli.h"
#include "cli/json.h"
#include "cli/options.h"
#include "cli/table.h"

enum { SIZE, COUNT, TYPE, CODEC, TIME, ALGBW, BUSBW, WRONG, ERROR, WIRE, RATIO, SPEEDUP, ENCODE, DECODE, COLUMN_COUNT };
enum { CELL_MAX = 32 };

typedef struct buffers {
  size_t n; /* values of src; dst has at least as many */
  float *src, *dst;
} buffers;

struct cli_collective {
  const char *name;
  int encodes; /* takes a codec */
  pith_status (*run)(pith_comm *comm, const buffers *b, const pith_call *call);
  /* Where value i of dst on this rank comes from, as the exact result. */
  double (*expected)(int rank, int ranks, size_t n, size_t i);
  size_t (*results)(int ranks, size_t n); /* values of dst */
  double (*bus)(int ranks);
};

typedef struct settings {
  size_t from, to, factor, repetitions, warmup, check;
  const char *json, *transport;
  cli_list specs;
} settings;

typedef struct measurement {
  double seconds, encode, decode; /* of one operation, the slowest rank's */
  double error;
  size_t wrong;
  double wire; /* bytes that this rank sends */
} measurement;

/* ---- Data: every rank knows every rank's values ------------------------------------------------------------------ */

static float value_of(int rank, size_t i) {
  uint32_t h = ((uint32_t)i + 1) * 2654435761u + (uint32_t)rank * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  return (float)(int32_t)(h >> 16) * 0x1p-16f - 0.5f;
}

static double sum_at(int ranks, size_t i) {
  float sum = value_of(0, i);
  for (int r = 1; r < ranks; r++) {
    sum += value_of(r, i); /* in f32 and in rank order, as the library does */
  }
  return (double)sum;
}

/* ---- The collectives --------------------------------------------------------------------------------------------- */

static pith_cspan from(const float *x, size_t n) { return (pith_cspan){x, n, PITH_F32}; }
static pith_span to(float *x, size_t n) { return (pith_span){x, n, PITH_F32}; }

static pith_status run_allreduce(pith_comm *comm, const buffers *b, const pith_call *call) {
  return pith_allreduce(comm, from(b->src, b->n), to(b->dst, b->n), PITH_SUM, call, NULL);
}
static double expect_allreduce(int rank, int ranks, size_t n, size_t i) { return (void)rank, (void)n, sum_at(ranks, i); }

static size_t part(int ranks, size_t n) { return n / (size_t)ranks; }

static pith_status run_reduce_scatter(pith_comm *comm, const buffers *b, const pith_call *call) {
  int ranks = pith_comm_ranks(comm);
  size_t each = part(ranks, b->n);
  return pith_reduce_scatter(comm, from(b->src, each * (size_t)ranks), to(b->dst, each), NULL, PITH_SUM, call, NULL);
}
static double expect_reduce_scatter(int rank, int ranks, size_t n, size_t i) {
  return sum_at(ranks, (size_t)rank * part(ranks, n) + i);
}

static pith_status run_all_gather(pith_comm *comm, const buffers *b, const pith_call *call) {
  int ranks = pith_comm_ranks(comm);
  size_t each = part(ranks, b->n);
  return pith_all_gather(comm, from(b->src, each), to(b->dst, each * (size_t)ranks), NULL, call, NULL);
}
static double expect_all_gather(int rank, int ranks, size_t n, size_t i) {
  size_t each = part(ranks, n);
  return (void)rank, (double)value_of((int)(i / each), i % each);
}

static pith_status run_all_to_all(pith_comm *comm, const buffers *b, const pith_call *call) {
  (void)call;
  size_t all = part(pith_comm_ranks(comm), b->n) * (size_t)pith_comm_ranks(comm);
  return pith_all_to_all(comm, from(b->src, all), NULL, to(b->dst, all), NULL, NULL);
}
static double expect_all_to_all(int rank, int ranks, size_t n, size_t i) {
  size_t each = part(ranks, n);
  return (double)value_of((int)(i / each), (size_t)rank * each + i % each);
}

static pith_status run_broadcast(pith_comm *comm, const buffers *b, const pith_call *call) {
  return pith_broadcast(comm, to(b->src, b->n), 0, call, NULL);
}
static double expect_broadcast(int rank, int ranks, size_t n, size_t i) {
  return (void)rank, (void)ranks, (void)n, (double)value_of(0, i);
}

static size_t results_all(int ranks, size_t n) { return (void)ranks, n; }
static size_t results_whole(int ranks, size_t n) { return part(ranks, n) * (size_t)ranks; }
static size_t results_part(int ranks, size_t n) { return part(ranks, n); }
static double bus_twice(int ranks) { return 2.0 * (ranks - 1) / ranks; }
static double bus_once(int ranks) { return (double)(ranks - 1) / ranks; }
static double bus_whole(int ranks) { return (void)ranks, 1.0; }

static const cli_collective collectives[] = {
    {"allreduce", 1, run_allreduce, expect_allreduce, results_all, bus_twice},
    {"reduce_scatter", 1, run_reduce_scatter, expect_reduce_scatter, results_part, bus_once},
    {"all_gather", 1, run_all_gather, expect_all_gather, results_whole, bus_once},
    {"all_to_all", 0, run_all_to_all, expect_all_to_all, results_whole, bus_once},
    {"broadcast", 1, run_broadcast, expect_broadcast, results_all, bus_whole},
};

const cli_collective *cli_collective_find(const char *name) {
  for (size_t i = 0; i < sizeof collectives / sizeof *collectives; i++) {
    if (!strcmp(collectives[i].name, name)) {
      return &collectives[i];
    }
  }
  return NULL;
}

/* ---- Measuring --------------------------------------------------------------------------------------------------- */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void fill(int rank, const buffers *b) {
  for (size_t i = 0; i < b->n; i++) {
    b->src[i] = value_of(rank, i);
    b->dst[i] = 0;
  }
}

static void compare(const cli_collective *c, pith_comm *comm, const buffers *b, measurement *m) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_ranks(comm);
  const float *result = c->run == run_broadcast ? b->src : b->dst;
  double error = 0, norm = 0;
  m->wrong = 0;
  for (size_t i = 0, n = c->results(ranks, b->n); i < n; i++) {
    double wanted = c->expected(rank, ranks, b->n, i), d = (double)result[i] - wanted;
    m->wrong += d != 0;
    error += d * d;
    norm += wanted * wanted;
  }
  m->error = norm > 0 ? sqrt(error / norm) : sqrt(error);
}

/* The largest of all ranks. */
static pith_status slowest(pith_comm *comm, double *x, size_t n) {
  return pith_allreduce(comm, (pith_cspan){x, n, PITH_F64}, (pith_span){x, n, PITH_F64}, PITH_MAX, NULL, NULL);
}

#define TRY(call)                       \
  do {                                  \
    pith_status status_ = (call);       \
    if (status_ != PITH_OK) {           \
      return status_;                   \
    }                                   \
  } while (0)

static pith_status measure(const cli_collective *c, pith_comm *comm, const settings *set, const buffers *b, pith_call *call,
                           measurement *m) {
  pith_stats before = {.size = sizeof before}, after = {.size = sizeof after};
  size_t laps = set->repetitions;
  fill(pith_comm_rank(comm), b);
  TRY(c->run(comm, b, call));
  compare(c, comm, b, m);
  for (size_t i = 0; i < set->warmup; i++) {
    call->ctx.step++;
    TRY(c->run(comm, b, call));
  }
  TRY(pith_barrier(comm, NULL));
  TRY(pith_comm_stats(comm, &before));
  double start = now();
  for (size_t i = 0; i < laps; i++) {
    call->ctx.step++;
    TRY(c->run(comm, b, call));
  }
  double seconds = now() - start;
  TRY(pith_comm_stats(comm, &after));
  double worst[4] = {seconds / (double)laps, (after.encode - before.encode) / (double)laps,
                     (after.decode - before.decode) / (double)laps, (double)m->wrong};
  TRY(slowest(comm, worst, 4));
  *m = (measurement){worst[0], worst[1], worst[2], m->error, (size_t)worst[3],
                     (double)(after.sent_bytes - before.sent_bytes) / (double)laps};
  return PITH_OK;
}

/* ---- Printing ---------------------------------------------------------------------------------------------------- */

static void print_row(const cli_table *table, const cli_collective *c, int ranks, const char *spec, size_t bytes, const measurement *m,
                      double plain_seconds) {
  char text[COLUMN_COUNT][CELL_MAX];
  double algbw = (double)bytes / m->seconds * 1e-9, per_rank = (double)bytes * c->bus(ranks);
  snprintf(text[SIZE], CELL_MAX, "%zu", bytes);
  snprintf(text[COUNT], CELL_MAX, "%zu", bytes / 4);
  snprintf(text[TIME], CELL_MAX, m->seconds < 1e-4 ? "%.2f" : "%.1f", m->seconds * 1e6);
  snprintf(text[ALGBW], CELL_MAX, "%.3f", algbw);
  snprintf(text[BUSBW], CELL_MAX, "%.3f", algbw * c->bus(ranks));
  snprintf(text[WRONG], CELL_MAX, spec ? "N/A" : "%zu", m->wrong);
  snprintf(text[ERROR], CELL_MAX, "%.2e", m->error);
  snprintf(text[WIRE], CELL_MAX, "%.0f", m->wire);
  snprintf(text[RATIO], CELL_MAX, "%.2f", m->wire > 0 ? per_rank / m->wire : 0.0);
  snprintf(text[SPEEDUP], CELL_MAX, "%.2f", plain_seconds / m->seconds);
  snprintf(text[ENCODE], CELL_MAX, "%.1f", m->encode * 1e6);
  snprintf(text[DECODE], CELL_MAX, "%.1f", m->decode * 1e6);
  const char *cells[COLUMN_COUNT];
  for (size_t i = 0; i < COLUMN_COUNT; i++) {
    cells[i] = text[i];
  }
  cells[TYPE] = "f32";
  cells[CODEC] = spec ? spec : "-";
  cli_table_row(table, cells);
  fflush(stdout);
}

static void write_result(cli_json *json, const cli_collective *c, int ranks, const char *spec, size_t bytes, const measurement *m) {
  double algbw = (double)bytes / m->seconds * 1e-9;
  cli_json_object(json, NULL);
  cli_json_string(json, "collective", c->name);
  cli_json_string(json, "codec", spec);
  cli_json_count(json, "ranks", (uint64_t)ranks);
  cli_json_count(json, "bytes", bytes);
  cli_json_number(json, "seconds", m->seconds);
  cli_json_number(json, "algbw_gbps", algbw);
  cli_json_number(json, "busbw_gbps", algbw * c->bus(ranks));
  cli_json_number(json, "relative_error", m->error);
  cli_json_count(json, "wrong", m->wrong);
  cli_json_number(json, "wire_bytes", m->wire);
  cli_json_number(json, "encode_seconds", m->encode);
  cli_json_number(json, "decode_seconds", m->decode);
  cli_json_object_end(json);
}

static cli_table table_of(const settings *set) {
  cli_table table = {COLUMN_COUNT,
                     {[SIZE] = {"size", 1, 10},
                      [COUNT] = {"count", 1, 10},
                      [TYPE] = {.title = "type"},
                      [CODEC] = {.title = "codec"},
                      [TIME] = {"time us", 1, 10},
                      [ALGBW] = {"algbw GB/s", 1, 0},
                      [BUSBW] = {"busbw GB/s", 1, 0},
                      [WRONG] = {"#wrong", 1, 0},
                      [ERROR] = {"error", 1, 9},
                      [WIRE] = {"wire bytes", 1, 10},
                      [RATIO] = {"ratio", 1, 6},
                      [SPEEDUP] = {"speed-up", 1, 0},
                      [ENCODE] = {"encode us", 1, 0},
                      [DECODE] = {"decode us", 1, 0}}};
  for (size_t i = 0; i < set->specs.count; i++) {
    cli_table_fit(&table, CODEC, set->specs.item[i]);
  }
  return table;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

typedef struct bench {
  const cli_collective *collective;
  settings set;
  pith_comm *comm;
  pith_codec *codec[CLI_LIST_MAX];
  cli_table table;
  cli_json json;
  double plain_seconds;
} bench;

static int is_printing(const bench *b) { return pith_comm_rank(b->comm) == 0; }

/* codec NULL: uncompressed. */
static int run_one(bench *b, const buffers *values, const pith_codec *codec) {
  pith_call call = PITH_CALL_INIT;
  measurement m = {0};
  const char *spec = codec ? pith_codec_spec(codec) : NULL;
  call.codec = codec;
  if (codec && pith_state_create(codec, values->n, 0, &call.state) != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s", pith_error());
  }
  pith_status status = measure(b->collective, b->comm, &b->set, values, &call, &m);
  pith_state_destroy(call.state);
  if (status != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s %s: %s", b->collective->name, spec ? spec : "", pith_error());
  }
  b->plain_seconds = codec ? b->plain_seconds : m.seconds;
  if (is_printing(b)) {
    print_row(&b->table, b->collective, pith_comm_ranks(b->comm), spec, values->n * 4, &m, b->plain_seconds);
    if (b->json.file) {
      write_result(&b->json, b->collective, pith_comm_ranks(b->comm), spec, values->n * 4, &m);
    }
  }
  return !codec && m.wrong ? cli_fail(CLI_FAILED, "%zu values are wrong", m.wrong) : CLI_OK;
}

static int run_size(bench *b, size_t bytes) {
  buffers values = {bytes / sizeof(float), malloc(bytes + 4), malloc(bytes + 4)};
  if (!values.src || !values.dst) {
    return cli_fail(CLI_FAILED, "out of memory: %zu bytes", bytes);
  }
  int code = run_one(b, &values, NULL);
  for (size_t i = 0; i < b->set.specs.count && code == CLI_OK; i++) {
    code = run_one(b, &values, b->codec[i]);
  }
  free(values.src);
  free(values.dst);
  return code;
}

static int run_sizes(bench *b) {
  int code = CLI_OK;
  for (size_t bytes = b->set.from; bytes <= b->set.to && code == CLI_OK; bytes *= b->set.factor) {
    code = run_size(b, bytes);
  }
  return code;
}

static int run_and_report(bench *b) {
  if (is_printing(b)) {
    printf("# pith %s, %s on %d ranks over %s, %s; times are means of %zu repetitions, of the slowest rank\n", pith_version(),
           b->collective->name, pith_comm_ranks(b->comm), pith_comm_transport(b->comm, pith_comm_ranks(b->comm) - 1),
           pith_isa_name(pith_isa_current()), b->set.repetitions);
    b->table = table_of(&b->set);
    cli_table_head(&b->table);
    b->json.file = b->set.json ? fopen(b->set.json, "w") : NULL;
    if (b->set.json && !b->json.file) {
      return cli_fail(CLI_FAILED, "cannot write %s", b->set.json);
    }
  }
  if (b->json.file) {
    cli_json_array(&b->json, NULL);
  }
  int code = run_sizes(b);
  if (b->json.file) {
    cli_json_array_end(&b->json);
    if (fclose(b->json.file) != 0) {
      return cli_fail(CLI_FAILED, "cannot write %s", b->set.json);
    }
  }
  return code;
}

static cli_parsed parse(const cli_collective *collective, int argc, char **argv, settings *set) {
  *set = (settings){.from = 8, .to = (size_t)128 << 20, .factor = 2, .repetitions = 20, .warmup = 5};
  char command[64];
  const cli_option options[] = {
      {"-b", CLI_SIZE, &set->from, "SIZE", "smallest tensor in bytes, as 4K or 64M (8)"},
      {"-e", CLI_SIZE, &set->to, "SIZE", "largest tensor (128M)"},
      {"-f", CLI_COUNT, &set->factor, "FACTOR", "from one size to the next (2)"},
      {"-n", CLI_COUNT, &set->repetitions, "COUNT", "repetitions (20)"},
      {"-w", CLI_COUNT, &set->warmup, "COUNT", "repetitions before those (5)"},
      {"--codec", CLI_LIST, &set->specs, "SPEC", "a method to measure beside no compression; may be repeated"},
      {"--transport", CLI_TEXT, &set->transport, "NAME", "auto, shm or tcp (auto, or PITH_TRANSPORT)"},
      {"--json", CLI_TEXT, &set->json, "FILE", "rank 0 writes JSON too"},
      {.name = NULL},
  };
  snprintf(command, sizeof command, "bench %s", collective->name);
  const cli_usage usage = {command, NULL,
                           "Measures a collective on all ranks: start it with pith run or mpirun, as in\n"
                           "  pith run -n 4 -- pith bench allreduce -b 1M -e 64M --codec q:4\n"
                           "error is ‖result − exact‖/‖exact‖; wire bytes are what rank 0 sends.",
                           options};
  return cli_options_parse(&usage, argc, argv, NULL);
}

static int create_codecs(bench *b) {
  for (size_t i = 0; i < b->set.specs.count; i++) {
    if (pith_codec_create(b->set.specs.item[i], &b->codec[i]) != PITH_OK) {
      return cli_fail(CLI_USAGE, "%s: %s", b->set.specs.item[i], pith_error());
    }
  }
  if (b->set.specs.count && !b->collective->encodes) {
    return cli_fail(CLI_USAGE, "%s is not compressed", b->collective->name);
  }
  return b->set.factor < 2 || b->set.from < 4 || b->set.repetitions < 1
             ? cli_fail(CLI_USAGE, "-f must be at least 2, -b at least 4, -n at least 1")
             : CLI_OK;
}

int cli_bench_collective(const cli_collective *collective, int argc, char **argv) {
  bench b = {.collective = collective};
  cli_parsed parsed = parse(collective, argc, argv, &b.set);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  pith_config config = PITH_CONFIG_INIT;
  config.transport = b.set.transport;
  int code = create_codecs(&b);
  if (code == CLI_OK && pith_comm_create(&config, &b.comm) != PITH_OK) {
    code = cli_fail(CLI_FAILED, "%s", pith_error());
  }
  if (code == CLI_OK) {
    code = run_and_report(&b);
  }
  pith_comm_destroy(b.comm);
  for (size_t i = 0; i < b.set.specs.count; i++) {
    pith_codec_destroy(b.codec[i]);
  }
  return code;
}

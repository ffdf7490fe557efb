/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `pith bench allreduce` and its relatives: every size, uncompressed and with every codec, by every algorithm. Every
 * rank runs this; rank 0 prints. The uncompressed line stands above the compressed ones.
 *
 * What the operations are is in bench_operations.c, how they are timed in bench_timing.c, the lines in
 * bench_report.c.
 */
#include "cli/bench/bench_collective.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/bench/bench_least.h"
#include "cli/bench/bench_report.h"

typedef struct settings {
  size_t from, to, factor, repetitions, warmup;
  int check, wide;
  const char *json, *transport, *inside, *link;
  cli_list specs, algorithms;
} settings;

typedef struct bench {
  const cli_collective *collective;
  settings set;
  pith_comm *comm;
  pith_codec *codec[CLI_LIST_MAX];
  int was_used[CLI_LIST_MAX]; /* an algorithm suited something */
  int is_first_size;
  double plain_seconds, plain_sent; /* the least of the uncompressed lines of this size */
  double copy_seconds;              /* of a tensor of this size, where a link was given */
  double link;                      /* bytes per second */
  cli_report report;
} bench;

static int is_printing(const bench *b) { return pith_comm_rank(b->comm) == 0; }

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static int judge(const bench *b, const cli_result *r) {
  if (!r->spec && r->timing.wrong > 0) {
    return b->collective->check ? cli_fail(CLI_FAILED, "a rank left the barrier before all had called it")
                                : cli_fail(CLI_FAILED, "%.0f values are wrong", r->timing.wrong);
  }
  if (r->timing.differs) {
    return cli_fail(CLI_FAILED, "%s %s: the results of ranks differ", b->collective->name, r->spec ? r->spec : "");
  }
  return CLI_OK;
}

static pith_status measure(bench *b, const cli_buffers *values, const pith_codec *codec, cli_result *r) {
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.algorithm = r->algorithm;
  size_t n = cli_collective_encoded(b->collective, pith_comm_size(b->comm), values->n);
  pith_status status = codec ? pith_state_create(codec, n, 0, &call.state) : PITH_OK;
  if (status == PITH_OK) {
    status = cli_timing_measure(b->collective, b->comm, values, &call, b->set.repetitions, b->set.warmup, b->set.check,
                                &r->timing);
  }
  r->memory_seconds = b->copy_seconds * cli_least_copies(codec, call.state, n);
  pith_state_destroy(call.state);
  return status;
}

/* One line. An algorithm that does not suit is no failure of the others: *suits tells. */
static int run_one(bench *b, const cli_buffers *values, const pith_codec *codec, const char *algorithm, int *suits) {
  cli_result r = {
      .spec = codec ? pith_codec_spec(codec) : NULL, .algorithm = algorithm, .bytes = values->n * sizeof(float)};
  pith_status status = measure(b, values, codec, &r);
  *suits = status == PITH_OK;
  if (status == PITH_ERR_UNSUPPORTED && algorithm) {
    if (is_printing(b) && b->is_first_size) {
      cli_report_remark(&b->report, pith_error());
    }
    return CLI_OK;
  }
  if (status != PITH_OK) {
    return cli_fail(CLI_FAILED, "%s %s: %s", b->collective->name, r.spec ? r.spec : "", pith_error());
  }
  if (!codec) {
    b->plain_seconds = fmin(b->plain_seconds, r.timing.seconds);
    b->plain_sent = fmin(b->plain_sent, r.timing.sent);
  }
  r.plain_seconds = b->plain_seconds;
  r.plain_sent = b->plain_sent;
  if (is_printing(b)) {
    cli_report_add(&b->report, &r);
  }
  return judge(b, &r);
}

/* By every algorithm that was asked for. Uncompressed values are measured whatever was. */
static int run_codec(bench *b, const cli_buffers *values, const pith_codec *codec) {
  int code = CLI_OK, suits, lines = 0;
  for (size_t i = 0; i < b->set.algorithms.count && code == CLI_OK; i++) {
    code = run_one(b, values, codec, b->set.algorithms.item[i], &suits);
    b->was_used[i] |= suits;
    lines += suits;
  }
  int needs_line = !b->set.algorithms.count || (!codec && !lines);
  return code == CLI_OK && needs_line ? run_one(b, values, codec, NULL, &suits) : code;
}

static int run_size(bench *b, size_t bytes) {
  cli_buffers values = {bytes / sizeof(float), aligned_alloc(64, (bytes + 67) / 64 * 64),
                        aligned_alloc(64, (bytes + 67) / 64 * 64)};
  if (!values.src || !values.dst) {
    exit(cli_fail(CLI_FAILED, "out of memory: %zu bytes", bytes));
  }
  b->plain_seconds = b->plain_sent = INFINITY;
  int code = CLI_OK;
  if (b->link > 0 && cli_least_copy(b->comm, &values, &b->copy_seconds) != PITH_OK) {
    code = cli_fail(CLI_FAILED, "%s", pith_error());
  }
  code = code == CLI_OK ? run_codec(b, &values, NULL) : code;
  for (size_t i = 0; i < b->set.specs.count && code == CLI_OK; i++) {
    code = run_codec(b, &values, b->codec[i]);
  }
  free(values.src);
  free(values.dst);
  return code;
}

static int find_unused(const bench *b) {
  for (size_t i = 0; i < b->set.algorithms.count; i++) {
    if (!b->was_used[i]) {
      return cli_fail(CLI_FAILED, "%s suits none of these", b->set.algorithms.item[i]);
    }
  }
  return CLI_OK;
}

static int run_sizes(bench *b) {
  const settings *set = &b->set;
  int code = CLI_OK, ranks = pith_comm_size(b->comm);
  for (size_t bytes = set->from; bytes <= set->to && code == CLI_OK; bytes *= set->factor) {
    size_t size = cli_collective_size(b->collective, ranks, bytes);
    b->is_first_size = bytes == set->from;
    code = run_size(b, size);
    if (size == 0 || bytes > SIZE_MAX / set->factor) {
      break;
    }
  }
  return code == CLI_OK ? find_unused(b) : code;
}

static int run_and_report(bench *b) {
  const settings *set = &b->set;
  b->report = (cli_report){.collective = b->collective,
                           .ranks = pith_comm_size(b->comm),
                           .repetitions = set->repetitions,
                           .inside = set->inside,
                           .wide = set->wide,
                           .link = b->link};
  int code = is_printing(b) ? cli_report_open(&b->report, b->comm, &set->specs, &set->algorithms, set->json) : CLI_OK;
  if (code != CLI_OK) {
    return code;
  }
  code = run_sizes(b);
  int closed = cli_report_close(&b->report, set->json);
  return code != CLI_OK ? code : closed;
}

/* ---- Settings ---------------------------------------------------------------------------------------------------- */

static const char about_format[] =
    "Measures %s: %s. Start it with pith run, pith lab, mpirun or torchrun, as in\n"
    "  pith run -n 4 -- pith bench %s -b 1M -e 64M%s\n"
    "\n"
    "time is the median over repetitions; a repetition takes as long as its slowest rank. busbw is the bandwidth that "
    "an uncompressed operation of that time would need on its busiest link. error is ‖result − exact‖/‖exact‖ of the "
    "first operation. ratio and speed-up compare bytes and time with the uncompressed line, or with the best of "
    "several.\n"
    "\n"
    "With --wide, wire bytes are those of the rank that sends most. encode, wire and decode are mean times; wire is "
    "the time in which an operation neither encodes nor decodes.\n"
    "\n"
    "With --link, least is the larger of two times: what the link needs for those bytes, and what memory needs for "
    "the values that a method must read and write. The latter is measured as copies that all ranks make at once: one "
    "copy, one more for a memory, and more for sparse and low-rank methods, which read values again.";

static cli_parsed parse(const cli_collective *collective, int argc, char **argv, settings *set) {
  *set = (settings){.from = 8, .to = (size_t)128 << 20, .factor = 2, .repetitions = 20, .warmup = 5, .check = 1};
  char command[64], about[2048];
  const cli_option options[] = {
      {"-b", CLI_SIZE, &set->from, "SIZE", "smallest tensor in bytes, as 4K or 64M (8)"},
      {"-e", CLI_SIZE, &set->to, "SIZE", "largest tensor (128M)"},
      {"-f", CLI_COUNT, &set->factor, "FACTOR", "from one size to the next (2)"},
      {"-n", CLI_POSITIVE, &set->repetitions, "COUNT", "repetitions (20)"},
      {"-w", CLI_COUNT, &set->warmup, "COUNT", "repetitions before those (5)"},
      {"-c", CLI_CHOICE, &set->check, "0|1", "whether the first result is checked (1)"},
      {"--codec", CLI_LIST, &set->specs, "SPEC", "a method to measure, besides none; may be repeated"},
      {"--algo", CLI_LIST, &set->algorithms, "auto|sra|hierarchical|ring|tree|gather|ranges|linear|grid",
       "the algorithm of allreduce; may be repeated (PITH_ALGO, or auto)"},
      {"--inside", CLI_TEXT, &set->inside, "SPEC",
       "allreduce: the method between ranks of a host, with --algo hierarchical and --codec (PITH_INSIDE, or none)"},
      {"--transport", CLI_TEXT, &set->transport, "auto|shm|tcp|mpi|ucx",
       "the transport of messages (PITH_TRANSPORT, or auto)"},
      {"--wide", CLI_FLAG, &set->wide, NULL, "all columns, however wide the table becomes"},
      {"--link", CLI_TEXT, &set->link, "RATE", "the rate of a rank's link, such as 1gbit: adds the column least"},
      {"--json", CLI_TEXT, &set->json, "FILE",
       "rank 0 also writes JSON; - writes it to standard output instead of the table"},
      {.name = NULL},
  };
  snprintf(command, sizeof command, "bench %s", collective->name);
  snprintf(about, sizeof about, about_format, collective->name, collective->summary, collective->name,
           collective->encodes ? " --codec q:4" : "");
  const cli_usage usage = {command, NULL, about, options};
  return cli_options_parse(&usage, argc, argv, NULL);
}

static int check_settings(const bench *b) {
  const settings *set = &b->set;
  if (set->factor < 2) {
    return cli_fail(CLI_USAGE, "bench %s: -f %zu: expected a FACTOR of at least 2", b->collective->name, set->factor);
  }
  if (set->from < sizeof(float)) {
    return cli_fail(CLI_USAGE, "bench %s: -b %zu: a tensor has at least one value, which is 4 bytes",
                    b->collective->name, set->from);
  }
  if (set->from > set->to) {
    return cli_fail(CLI_USAGE, "bench %s: -b is larger than -e", b->collective->name);
  }
  if (set->specs.count && !b->collective->encodes) {
    return cli_fail(CLI_USAGE, "%s is not compressed", b->collective->name);
  }
  return (set->algorithms.count || set->inside) && strcmp(b->collective->name, "allreduce") != 0
             ? cli_fail(CLI_USAGE, "--algo and --inside are for allreduce; %s has one algorithm", b->collective->name)
             : CLI_OK;
}

static int read_link(bench *b) {
  unsigned long long bits = 0;
  if (b->set.link && (!cli_rate_parse(b->set.link, &bits) || strcmp(b->collective->name, "allreduce") != 0)) {
    return cli_fail(CLI_USAGE,
                    bits ? "--link %s: the least time is known for allreduce only"
                         : "--link %s is not a rate: write 1gbit or 100mbit",
                    b->set.link);
  }
  b->link = (double)bits / 8;
  return CLI_OK;
}

static int create_codecs(bench *b) {
  for (size_t i = 0; i < b->set.specs.count; i++) {
    if (pith_codec_create(b->set.specs.item[i], &b->codec[i]) != PITH_OK) {
      return cli_fail(CLI_USAGE, "%s: %s", b->set.specs.item[i], pith_error());
    }
  }
  return CLI_OK;
}

int cli_bench_collective(const cli_collective *collective, int argc, char **argv) {
  bench b = {.collective = collective};
  cli_parsed parsed = parse(collective, argc, argv, &b.set);
  if (parsed != CLI_PARSED) {
    return parsed == CLI_PARSED_HELP ? CLI_OK : CLI_USAGE;
  }
  pith_config config = PITH_CONFIG_INIT;
  config.transport = b.set.transport;
  config.inside = b.set.inside;
  int code = check_settings(&b);
  if (code == CLI_OK) {
    code = read_link(&b);
  }
  if (code == CLI_OK) {
    code = create_codecs(&b);
  }
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The columns are those that users of collective libraries know, and the ones they miss: bytes, error, where the time
 * goes. */
#include "cli/bench/bench_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cli/base/cli.h"
#include "cli/base/page.h"

/* clang-format off */
enum { SIZE, COUNT, TYPE, CODEC, ALGORITHM, TIME, ALGBW, BUSBW, WRONG, ERROR, BYTES, RATIO, SPEEDUP,
       ENCODE, WIRE, DECODE, LEAST, TIMES_LEAST, COLUMN_COUNT };
/* clang-format on */
enum { CELL_MAX = 32 };
_Static_assert((int)COLUMN_COUNT <= (int)CLI_COLUMNS_MAX, "a table has room for all columns");

/* Those that are hidden are shown by --wide. */
static const cli_column columns[COLUMN_COUNT] = {
    [SIZE] = {.title = "size", .right = 1, .width = 7},
    [COUNT] = {.title = "count", .right = 1, .width = 10, .hidden = 1},
    [TYPE] = {.title = "type", .hidden = 1},
    [CODEC] = {.title = "codec"},
    [ALGORITHM] = {.title = "algo"},
    [TIME] = {.title = "time us", .right = 1, .width = 9},
    [ALGBW] = {.title = "algbw GB/s", .right = 1, .hidden = 1},
    [BUSBW] = {.title = "busbw GB/s", .right = 1},
    [WRONG] = {.title = "#wrong", .right = 1},
    [ERROR] = {.title = "error", .right = 1, .width = 8},
    [BYTES] = {.title = "wire bytes", .right = 1, .width = 10, .hidden = 1},
    [RATIO] = {.title = "ratio", .right = 1, .width = 6},
    [SPEEDUP] = {.title = "speed-up", .right = 1},
    [ENCODE] = {.title = "encode us", .right = 1, .hidden = 1},
    [WIRE] = {.title = "wire us", .right = 1, .width = 9, .hidden = 1},
    [DECODE] = {.title = "decode us", .right = 1, .hidden = 1},
    [LEAST] = {.title = "least us", .right = 1, .width = 9},
    [TIMES_LEAST] = {.title = "×least", .right = 1, .width = 6},
};

static double algbw_of(const cli_result *r) { return (double)r->bytes / r->timing.seconds * 1e-9; }

static double ratio_of(const cli_result *r) { return r->timing.sent > 0 ? r->plain_sent / r->timing.sent : 1; }

static double speedup_of(const cli_result *r) { return r->plain_seconds / r->timing.seconds; }

static double least_of(const cli_report *report, const cli_result *r) {
  return fmax(r->timing.sent / report->link, r->memory_seconds);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static void make_table(cli_report *report, const cli_list *specs, const cli_list *algorithms) {
  cli_table *table = &report->table;
  *table = (cli_table){.columns = COLUMN_COUNT, .wide = report->wide};
  memcpy(table->column, columns, sizeof columns);
  for (size_t i = 0; i < COLUMN_COUNT && report->wide; i++) {
    table->column[i].hidden = 0;
  }
  table->column[SIZE].width = report->wide ? 10 : columns[SIZE].width;
  table->column[ALGORITHM].hidden = !report->has_algorithms;
  table->column[LEAST].hidden = table->column[TIMES_LEAST].hidden = !(report->link > 0);
  if (report->link > 0 && !report->wide) { /* the link says more than a bandwidth; wrong values end the benchmark */
    table->column[BUSBW].hidden = table->column[WRONG].hidden = 1;
  }
  for (size_t i = 0; i < specs->count; i++) {
    cli_table_fit(table, CODEC, specs->item[i]);
  }
  for (size_t i = 0; i < algorithms->count; i++) {
    cli_table_fit(table, ALGORITHM, algorithms->item[i]);
  }
}

/* Microseconds in at most eight characters, up to a minute. */
static void print_time(double seconds, char text[CELL_MAX]) {
  snprintf(text, CELL_MAX, seconds < 1e-4 ? "%.2f" : seconds < 1 ? "%.1f" : "%.0f", seconds * 1e6);
}

static void print_times(const cli_report *report, const cli_result *r, char text[COLUMN_COUNT][CELL_MAX]) {
  const cli_timing *t = &r->timing;
  print_time(t->seconds, text[TIME]);
  snprintf(text[ALGBW], CELL_MAX, "%.3f", algbw_of(r));
  snprintf(text[BUSBW], CELL_MAX, "%.3f", algbw_of(r) * report->collective->bus(report->ranks));
  snprintf(text[SPEEDUP], CELL_MAX, "%.2f", speedup_of(r));
  print_time(t->encode, text[ENCODE]);
  print_time(t->wire, text[WIRE]);
  print_time(t->decode, text[DECODE]);
  if (report->link > 0) {
    print_time(least_of(report, r), text[LEAST]);
    snprintf(text[TIMES_LEAST], CELL_MAX, "%.2f", t->seconds / least_of(report, r));
  }
}

static void print_row(const cli_report *report, const cli_result *r) {
  char text[COLUMN_COUNT][CELL_MAX] = {{0}};
  const char *cells[COLUMN_COUNT];
  const cli_timing *t = &r->timing;
  print_times(report, r, text);
  if (report->wide) {
    snprintf(text[SIZE], CELL_MAX, "%zu", r->bytes);
  } else {
    cli_size_print(r->bytes, text[SIZE]);
  }
  snprintf(text[COUNT], CELL_MAX, "%zu", r->bytes / sizeof(float));
  snprintf(text[WRONG], CELL_MAX, r->spec || !t->is_checked ? "N/A" : "%.0f", t->wrong);
  snprintf(text[ERROR], CELL_MAX, t->is_checked && r->bytes ? "%.2e" : "N/A", t->error);
  snprintf(text[BYTES], CELL_MAX, "%.0f", t->sent);
  snprintf(text[RATIO], CELL_MAX, "%.2f", ratio_of(r));
  for (size_t i = 0; i < COLUMN_COUNT; i++) {
    cells[i] = text[i];
  }
  cells[TYPE] = "f32";
  cells[CODEC] = r->spec ? r->spec : "-";
  cells[ALGORITHM] = r->algorithm ? r->algorithm : "auto";
  cli_table_row(&report->table, cells);
  fflush(stdout);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void write_what(cli_json *json, const cli_report *report, const cli_result *r) {
  cli_json_string(json, "collective", report->collective->name);
  cli_json_string(json, "codec", r->spec);
  cli_json_string(json, "algorithm", r->algorithm);
  cli_json_string(json, "inside", report->inside);
  cli_json_string(json, "transport", report->transports);
  cli_json_count(json, "ranks", (uint64_t)report->ranks);
  cli_json_string(json, "type", "f32");
  cli_json_count(json, "bytes", r->bytes);
  cli_json_count(json, "count", r->bytes / sizeof(float));
  cli_json_count(json, "repetitions", report->repetitions);
}

static void write_figures(cli_json *json, const cli_report *report, const cli_result *r) {
  const cli_timing *t = &r->timing;
  cli_json_number(json, "seconds", t->seconds);
  cli_json_number(json, "mean_seconds", t->mean);
  cli_json_number(json, "encode_seconds", t->encode);
  cli_json_number(json, "wire_seconds", t->wire);
  cli_json_number(json, "decode_seconds", t->decode);
  if (report->link > 0) {
    cli_json_number(json, "link_seconds", t->sent / report->link);
    cli_json_number(json, "memory_seconds", r->memory_seconds);
  }
  cli_json_number(json, "algbw_gbps", algbw_of(r));
  cli_json_number(json, "busbw_gbps", algbw_of(r) * report->collective->bus(report->ranks));
  cli_json_number(json, "wire_bytes", t->sent);
  cli_json_number(json, "ratio", ratio_of(r));
  cli_json_number(json, "speedup", speedup_of(r));
  cli_json_bool(json, "checked", t->is_checked);
  if (t->is_checked) {
    cli_json_count(json, "wrong", (uint64_t)t->wrong);
    cli_json_number(json, "relative_error", t->error);
  }
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

/* "shm", "tcp", or "shm and tcp"; "self" for a rank alone. */
static void name_transports(cli_report *report, pith_comm *comm) {
  char *text = report->transports;
  const size_t size = sizeof report->transports;
  snprintf(text, size, "%s", report->ranks == 1 ? "self" : "");
  for (int peer = 1; peer < report->ranks; peer++) {
    const char *name = pith_comm_transport(comm, peer);
    if (!strstr(text, name)) {
      size_t used = strlen(text);
      snprintf(text + used, size - used, "%s%s", used ? " and " : "", name);
    }
  }
}

static void print_head(cli_report *report) {
  char text[512];
  snprintf(text, sizeof text,
           "pith %s, %s on %d ranks over %s, %s%s%s; time is the median of %zu repetitions, of the slowest rank each%s",
           pith_version(), report->collective->name, report->ranks, report->transports,
           pith_isa_name(pith_isa_current()), report->inside ? ", inside hosts " : "",
           report->inside ? report->inside : "", report->repetitions,
           report->wide ? "" : "; --wide adds bytes on the wire and the time to encode, send and decode");
  if (report->wide) {
    printf("# %s\n", text);
  } else {
    cli_paragraph(stdout, "# ", "# ", text);
  }
  cli_table_head(&report->table);
}

int cli_report_open(cli_report *report, pith_comm *comm, const cli_list *specs, const cli_list *algorithms,
                    const char *file) {
  report->has_algorithms = algorithms->count > 0;
  name_transports(report, comm);
  make_table(report, specs, algorithms);
  report->quiet = file && !strcmp(file, "-");
  report->json.file = !file ? NULL : report->quiet ? stdout : fopen(file, "w");
  if (file && !report->json.file) {
    return cli_fail(CLI_FAILED, "cannot write %s", file);
  }
  if (!report->quiet) {
    print_head(report);
  }
  if (report->json.file) {
    cli_json_array(&report->json, NULL);
  }
  return CLI_OK;
}

void cli_report_add(cli_report *report, const cli_result *result) {
  if (!report->quiet) {
    print_row(report, result);
  }
  if (report->json.file) {
    cli_json_object(&report->json, NULL);
    write_what(&report->json, report, result);
    write_figures(&report->json, report, result);
    cli_json_object_end(&report->json);
  }
}

void cli_report_remark(const cli_report *report, const char *text) {
  if (!report->quiet) {
    cli_paragraph(stdout, "# ", "# ", text);
    fflush(stdout);
  }
}

int cli_report_close(cli_report *report, const char *file) {
  if (!report->json.file) {
    return CLI_OK;
  }
  cli_json_array_end(&report->json);
  int failed = ferror(report->json.file);
  if (!report->quiet) {
    failed |= fclose(report->json.file) != 0;
  }
  return failed ? cli_fail(CLI_FAILED, "cannot write %s", file) : CLI_OK;
}

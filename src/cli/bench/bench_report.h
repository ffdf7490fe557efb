/* SPDX-License-Identifier: Apache-2.0 */
/* The lines of `pith bench` for operations between ranks: a table, and JSON if it is asked for. */
#ifndef PITH_CLI_BENCH_REPORT_H
#define PITH_CLI_BENCH_REPORT_H

#include "cli/base/json.h"
#include "cli/base/options.h"
#include "cli/base/table.h"
#include "cli/bench/bench_timing.h"

typedef struct cli_report {
  const cli_collective *collective;
  int ranks;
  size_t repetitions;
  const char *inside;  /* spec inside a host, or NULL */
  char transports[64]; /* how rank 0 reaches the others */
  int has_algorithms;  /* whether there is a column for them */
  double link;         /* bytes per second that a rank's link carries; 0: no columns for the least time */
  int wide;            /* all columns */
  cli_table table;
  cli_json json; /* .file is NULL where none was asked for */
  int quiet;     /* JSON goes to standard output, so the table does not */
} cli_report;

/* One line. */
typedef struct cli_result {
  const char *spec, *algorithm; /* NULL: uncompressed; whichever the library chooses */
  size_t bytes;
  double plain_seconds, plain_sent; /* the least of the uncompressed lines of this size */
  cli_timing timing;
  double memory_seconds; /* the least that memory needs, where a link was given */
} cli_result;

/* Opens FILE, "-" for standard output, NULL for none, and prints the head. Returns an exit code. */
int cli_report_open(cli_report *report, pith_comm *comm, const cli_list *specs, const cli_list *algorithms,
                    const char *file);
void cli_report_add(cli_report *report, const cli_result *result);
/* A line that is no result. */
void cli_report_remark(const cli_report *report, const char *text);
int cli_report_close(cli_report *report, const char *file);

#endif

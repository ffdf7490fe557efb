/* SPDX-License-Identifier: Apache-2.0 */
/* pith plan, its parts, and what they share. */
#ifndef PITH_CLI_PLAN_COMMAND_H
#define PITH_CLI_PLAN_COMMAND_H

#include <pith/pith.h>

#include "cli/base/cli.h"

int cli_plan(int argc, char **argv);
int cli_plan_part(size_t index, cli_part *part);

int cli_plan_stats(int argc, char **argv); /* statistics from files of gradients */
int cli_plan_make(int argc, char **argv);
int cli_plan_show(int argc, char **argv);
int cli_plan_compare(int argc, char **argv);
int cli_plan_bench(int argc, char **argv);

/* Prints the library's last error as that of `what`; returns the exit code. */
int cli_plan_failed(const char *what, pith_status status);

/* Layer by layer: spec, bits per value, bytes, share of the budget. */
void cli_plan_print(const pith_plan *plan);

/* Bits per value against size, a point for each layer. Returns an exit code. */
int cli_plan_plot(const pith_plan *plan, const char *path);

/* ---- plan_topology.c --------------------------------------------------------------------------------------------- */

/* Reads a topology for so many ranks. Prints what is wrong, and returns an exit code. */
int cli_plan_topology(const char *path, size_t ranks, pith_sim_topology *topology);

/* What the library would choose for each layer there, and how long it takes. Returns an exit code. */
int cli_plan_print_algorithms(const pith_plan *plan, const pith_sim_topology *topology);

/* A number as an option; 0 if it is none or below `least`. */
int cli_real_parse(const char *text, double least, double *number);

/* Options of the cost model, as texts. */
typedef struct cli_plan_link {
  size_t ranks;
  const char *latency, *compute; /* microseconds, milliseconds */
} cli_plan_link;

#define CLI_PLAN_LINK_OPTIONS(link)                                       \
  {"--ranks", CLI_COUNT, &(link)->ranks, "N", "how many ranks (4)"},      \
      {"--latency", CLI_TEXT, &(link)->latency, "US",                     \
       "microseconds that every exchange takes, whatever its size (60)"}, \
      {"--compute", CLI_TEXT, &(link)->compute, "MS",                     \
       "milliseconds of the backward pass, in which layers become ready (0)"}

/* The cost of a link of that rate. Prints what is wrong and returns 0 if something is. */
int cli_plan_cost_of(const char *command, const cli_plan_link *link, const char *rate, pith_plan_cost *cost);

#endif

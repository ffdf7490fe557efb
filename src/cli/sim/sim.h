/* SPDX-License-Identifier: Apache-2.0 */
/* pith sim, and what its files share. */
#ifndef PITH_CLI_SIM_H
#define PITH_CLI_SIM_H

#include <pith/pith.h>

#include "cli/base/cli.h"
#include "cli/base/data.h"

int cli_sim(int argc, char **argv);
int cli_sim_part(size_t index, cli_part *part);

/* ---- sim_topology.c ---------------------------------------------------------------------------------------------- */

/* The topology, and how it follows from the number of ranks. */
typedef struct cli_sim_setup {
  pith_sim_topology topology;
  size_t hosts, per_host;     /* 0: not given */
  int has_encode, has_decode; /* speeds were given */
} cli_sim_setup;

/* Sets one key, as in a file: "rate", "10gbit". Returns NULL, or what is wrong with the value; "" if there is no such
 * key. */
const char *cli_sim_set(cli_sim_setup *setup, const char *key, const char *value);

/* Reads a file of lines "key = value". Prints what is wrong, with its line, and returns an exit code. */
int cli_sim_read(cli_sim_setup *setup, const char *path);

/* The topology is that of so many ranks, and of as many hosts as they take. */
void cli_sim_ranks(cli_sim_setup *setup, int ranks);

/* All keys with what they mean, one a line. */
void cli_sim_keys(char *text, size_t size);

/* ---- sim_speed.c ------------------------------------------------------------------------------------------------- */

/* Sets the speed of a codec (NULL: uncompressed): from a file of `pith bench codec --json`, or measured here, with
 * values of that distribution. */
int cli_sim_speed_read(cli_sim_setup *setup, const pith_codec *codec, const char *path);
int cli_sim_speed_measure(cli_sim_setup *setup, const pith_codec *codec, size_t n, cli_dist dist);

/* ---- sim_report.c, sim_plot.c ------------------------------------------------------------------------------------ */

/* One simulation. */
typedef struct cli_sim_row {
  int ranks, hosts;
  const char *spec;
  char why_not[256];      /* it was not simulated; "": it was */
  pith_sim_result result; /* its algorithm is set in any case */
  int is_auto, is_best;   /* what the library takes; the fastest of those that it may take */
  double worse;           /* with is_auto: seconds over those of the best, less 1 */
} cli_sim_row;

typedef struct cli_sim_rows {
  cli_sim_row *row;
  size_t count;
} cli_sim_rows;

typedef enum cli_sim_view {
  CLI_SIM_ALL,       /* a line for each simulation */
  CLI_SIM_CHOICES,   /* for what the library takes, beside the best */
  CLI_SIM_ESTIMATES, /* for what it takes; seconds are those that its cost model expects */
} cli_sim_view;

void cli_sim_print(const cli_sim_setup *setup, size_t bytes, const cli_sim_rows *rows, cli_sim_view view, int is_wide);
int cli_sim_write_json(const cli_sim_setup *setup, size_t bytes, const cli_sim_rows *rows, cli_sim_view view,
                       const char *path);
/* Time over ranks, a line for each codec and algorithm. `bytes` 0: of a barrier. */
int cli_sim_plot(const cli_sim_rows *rows, size_t bytes, const char *path);

#endif

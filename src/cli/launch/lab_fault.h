/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Faults of a lab's hosts: what can be done to a host while a job runs, how that is written, and when it happens.
 *
 *   cut:2@5s         at 5 s the link of host 2 is cut
 *   cut:2@5s+3s      and 3 s later it is restored
 *   slow:2:64kbit@1s
 */
#ifndef PITH_CLI_LAB_FAULT_H
#define PITH_CLI_LAB_FAULT_H

#include "cli/base/options.h"
#include "cli/launch/network.h"

typedef enum cli_fault_kind {
  CLI_FAULT_CUT,
  CLI_FAULT_CUT_IN,
  CLI_FAULT_CUT_OUT,
  CLI_FAULT_SLOW,
  CLI_FAULT_PAUSE,
  CLI_FAULT_RESTORE, /* the link, whatever was done to it */
  CLI_FAULT_RESUME,
} cli_fault_kind;

typedef struct cli_fault {
  cli_fault_kind kind;
  size_t host;
  unsigned long long rate; /* of slow */
  double time;             /* seconds since the ranks were started */
} cli_fault;

typedef struct cli_faults {
  cli_fault *item; /* by time */
  size_t count;
} cli_faults;

/* Reads the values of --fault, each a list separated by commas. Returns 0 after saying what is wrong. */
int cli_faults_parse(const cli_list *texts, size_t hosts, cli_faults *faults);
void cli_faults_free(cli_faults *faults);

/* Reads "cut 2" or "slow 2 64kbit", what a person writes while the lab runs. Returns 0 after saying what is wrong. */
int cli_fault_parse_line(const char *line, size_t hosts, cli_fault *fault);

/* Does it. Returns 0 after saying what is wrong. */
int cli_fault_apply(const cli_network *network, const cli_fault *fault);

/* "host 2 is cut off" */
const char *cli_fault_describe(const cli_fault *fault, char text[CLI_REASON_SIZE]);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* What one operation costs between ranks, and whether its result is right. All ranks call this together. */
#ifndef PITH_CLI_BENCH_TIMING_H
#define PITH_CLI_BENCH_TIMING_H

#include "cli/bench/bench_operations.h"

typedef struct cli_timing {
  double seconds;              /* the median over repetitions, each as long as it took its slowest rank */
  double mean;                 /* all repetitions together, divided; the slowest rank's */
  double encode, wire, decode; /* means, each the slowest rank's; wire: under way, but neither of the others */
  double sent;                 /* bytes, of the rank that sends most */
  int is_checked;
  double wrong; /* values that are not exact, of the rank with most */
  double error; /* ‖result − exact‖ / ‖exact‖ of the first operation, when memories are still empty; the worst rank's */
  int differs;  /* ranks that should hold the same bits do not */
} cli_timing;

/* The first operation is the one whose result is looked at, if `check`. */
pith_status cli_timing_measure(const cli_collective *collective, pith_comm *comm, const cli_buffers *b, pith_call *call,
                               size_t repetitions, size_t warmup, int check, cli_timing *timing);

#endif

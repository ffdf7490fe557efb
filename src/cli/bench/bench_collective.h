/* SPDX-License-Identifier: Apache-2.0 */
/* Benchmarks of operations between ranks, under pith run, mpirun or torchrun. */
#ifndef PITH_CLI_BENCH_COLLECTIVE_H
#define PITH_CLI_BENCH_COLLECTIVE_H

#include "cli/bench/bench_operations.h"

int cli_bench_collective(const cli_collective *collective, int argc, char **argv);

#endif

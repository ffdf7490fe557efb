/* SPDX-License-Identifier: Apache-2.0 */
/* pith bench, and its part that needs no ranks. */
#ifndef PITH_CLI_BENCH_H
#define PITH_CLI_BENCH_H

#include "cli/base/cli.h"

int cli_bench(int argc, char **argv);
int cli_bench_part(size_t index, cli_part *part);
int cli_bench_codec(int argc, char **argv);

#endif

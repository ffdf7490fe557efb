/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The least time an operation can take on a link and a machine, for the columns of `pith bench --link`: the larger of
 *
 *   what the link needs for the bytes that a rank sends, and
 *   what memory needs for what a rank must read and write, measured as copies of the tensor that all ranks
 *   make at once.
 *
 * A tensor counts as one copy: the gradient is read, the result is written. A memory is read and written: one more. A
 * method that needs to have seen all values before it can choose among them reads them again: half of one. So does
 * every further round of exchanges; and where what was lost is known only after the last round, the memory is read
 * and written again.
 */
#ifndef PITH_CLI_BENCH_LEAST_H
#define PITH_CLI_BENCH_LEAST_H

#include "cli/bench/bench_operations.h"

/* Seconds of one copy of the tensor, by all ranks at once; the slowest rank's. */
pith_status cli_least_copy(pith_comm *comm, const cli_buffers *b, double *seconds);

/* Copies of the tensor that a method must at least amount to. codec: NULL for none. */
double cli_least_copies(const pith_codec *codec, const pith_state *state, size_t n);

#endif

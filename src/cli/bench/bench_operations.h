/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What `pith bench` can measure between ranks: how each operation is called, and what it must give.
 *
 * algbw is size / time. busbw is algbw times the part of the size that must cross the busiest link whatever the
 * algorithm, so that it can be compared with the link's own speed, for N ranks:
 *
 *   allreduce                                2(N-1)/N   every value leaves its rank once, and its sum comes back once
 *   reduce_scatter, all_gather, all_to_all   (N-1)/N    a rank keeps its own part
 *   gather, scatter                          (N-1)/N    at the root's link
 *   reduce, broadcast, sendrecv              1
 *   barrier                                  0          it has no size
 *
 * The size is that of the whole tensor: of all parts together where ranks have parts. A compressed line may exceed
 * the link.
 */
#ifndef PITH_CLI_BENCH_OPERATIONS_H
#define PITH_CLI_BENCH_OPERATIONS_H

#include <stddef.h>

#include <pith/pith.h>

/* A tensor of n values and room for one more. */
typedef struct cli_buffers {
  size_t n;
  float *src, *dst;
} cli_buffers;

typedef struct cli_collective {
  const char *name;
  const char *counted_as; /* by pith_comm_traffic() */
  const char *summary;
  int encodes;  /* takes a codec */
  int parts;    /* the tensor has a part for each rank */
  int in_place; /* results are where the tensor was */
  int replicas; /* all ranks hold the same result */
  int joins;    /* no rank is done before all have begun, so that none can run ahead */
  int at_once;  /* operations that are under way together on a rank */
  pith_status (*run)(pith_comm *comm, const cli_buffers *b, const pith_call *call);
  size_t (*results)(int rank, int ranks, size_t n);            /* values that this rank gets; 0: none */
  double (*expected)(int rank, int ranks, size_t n, size_t i); /* value i of them, exactly */
  pith_status (*check)(pith_comm *comm, int *is_checked,
                       double *bad); /* where there are no values to compare; else NULL */
  double (*bus)(int ranks);
} cli_collective;

/* The collective of that place or name, or NULL. */
const cli_collective *cli_collective_get(size_t index);
const cli_collective *cli_collective_find(const char *name);

/* The size of a tensor of about that many bytes: parts are equal, and none is empty. */
size_t cli_collective_size(const cli_collective *collective, int ranks, size_t bytes);

/* Values that a rank hands to a codec. */
size_t cli_collective_encoded(const cli_collective *collective, int ranks, size_t n);

/* What every rank hands in: every rank knows every rank's values. Multiples of 2^-14 between -1/2 and 1/2, so that
 * sums over up to 1024 ranks are exact in any order. */
float cli_collective_value(int rank, size_t i);

/* The largest of all ranks, for each of n numbers. */
pith_status cli_collective_largest(pith_comm *comm, double *x, size_t n);

#endif

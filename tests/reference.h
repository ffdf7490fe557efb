/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allreduce must give, bit by bit, computed on one rank by pith_encode and pith_decode alone: for every
 * algorithm, any number of ranks and any layout of hosts.
 */
#ifndef PITH_TESTS_REFERENCE_H
#define PITH_TESTS_REFERENCE_H

#include <pith/pith.h>

typedef struct reference {
  const pith_codec *codec;
  const char *algorithm;    /* a name, not auto */
  const pith_codec *inside; /* of hierarchical; NULL: uncompressed */
  int ranks, per_host;      /* per_host: ranks of a host, for hierarchical; the last may have fewer */
  size_t n;
  pith_reduce_op reduce;
  pith_state **mine;    /* of every rank: what it keeps of its own values … */
  pith_state **results; /* … and of the results it encoded */
} reference;

/* result = the reduction of x[0 … ranks), each of n f32 values. ctx: seed, step and layer. */
void reference_allreduce(const reference *r, float *const *x, const pith_ctx *ctx, float *result);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* A step on a CUDA device: what is in order between XLA's stream, that of the reducer, and the host. */
#ifndef PITH_XLA_CUDA_STEP_H
#define PITH_XLA_CUDA_STEP_H

#include <pith/xla.h>

typedef struct pith_xla_cuda pith_xla_cuda;

/* Of a reducer with options.cuda. */
pith_status pith__xla_cuda_create(const pith_reducer *reducer, pith_xla_cuda **cuda);
void pith__xla_cuda_destroy(pith_xla_cuda *cuda);
int pith__xla_cuda_device(const pith_xla_cuda *cuda);

/* A call begins. XLA may give another stream to every call. */
pith_status pith__xla_cuda_begin(pith_xla_cuda *cuda, void *stream);
/* Enqueues a copy on XLA's stream. */
pith_status pith__xla_cuda_copy(const pith_xla_cuda *cuda, void *to, const void *from, size_t bytes);
/* Puts the reducer's stream behind XLA's. */
pith_status pith__xla_cuda_follow(pith_xla_cuda *cuda);
/* Brings the token to the host, for which it waits. */
pith_status pith__xla_cuda_fetch(pith_xla_cuda *cuda, void *token, const void *from, size_t bytes);
/* All of the step is enqueued. Writes the next token and waits for the end, so that an error is of the step in which it
 * happened. */
pith_status pith__xla_cuda_end(pith_xla_cuda *cuda, void *to, const void *token, size_t bytes);

#endif

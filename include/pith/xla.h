/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from programs compiled by XLA, such as those of JAX. One call turns all gradients of a step into means. Part of
 * the public API; pith.h includes it. The Python package pith.jax uses it; docs/jax.md lists operands and results.
 *
 *   options.lent = 1;
 *   pith_reducer_create_with(comm, rules, seed, &options, &reducer);
 *   pith_reducer_add(…);                                              // all layers
 *   pith_xla_bind(key, comm, reducer);                                // calls with the attribute "key" use it
 *   register the handler pith_xla_allreduce_host with XLA, for the platform Host
 *
 * For programs on a GPU, create the reducer by pith_xla_cuda_reducer() and use the handler pith_xla_allreduce_cuda.
 *
 * The library needs no part of XLA to be built or loaded. A handler checks the version of XLA's interface at run time,
 * and returns an error if it does not know the version.
 */
#ifndef PITH_XLA_H
#define PITH_XLA_H

#include <pith/carrier.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lends a comm and a reducer to calls with this key, which XLA passes as a signed 64-bit number. The reducer must have
 * been created for this comm and have all its layers. Without options.lent, as for adaptive specs, the reducer keeps
 * its states itself and accepts only calls with the token of its next step. PITH_ERR_ARGUMENT: the key is in use. */
PITH_API pith_status pith_xla_bind(uint64_t key, pith_comm *comm, pith_reducer *reducer);

/* The status of the first failed call over this comm, with its message in pith_error(); PITH_OK if none has failed.
 * Call it before a rank ends: nobody else may look at the results of the last step. */
PITH_API pith_status pith_xla_check(const pith_comm *comm);

/* Takes the comm and the reducer of a key back. Waits for a call that uses them; abort the comm first to end such a
 * call. An unknown key has no effect. */
PITH_API void pith_xla_unbind(uint64_t key);

/* The handler for the platform Host: a function of XLA's handler type, which takes a call frame and returns NULL or an
 * XLA error object. */
PITH_API void *pith_xla_allreduce_host(void *frame);

/* The handler for the platform CUDA. The key of a call must belong to a reducer created by pith_xla_cuda_reducer(). */
PITH_API void *pith_xla_allreduce_cuda(void *frame);

/* Creates a reducer for calls from programs on CUDA device number `device` of this process. It works on its own stream.
 * `carrier` says how messages travel: "nccl"; "comm", which is pinned memory and the comm; or "auto", which is NCCL if
 * all ranks can create a communicator, else the comm. Ranks agree on it at the first step. `lent` is as in
 * pith_reducer_options. The comm must outlive the reducer. */
PITH_API pith_status pith_xla_cuda_reducer(pith_comm *comm, int device, const char *carrier, const char *rules,
                                           uint64_t seed, int lent, pith_reducer **reducer);

/* How messages of this reducer travel: "NCCL", or "pith" through pinned memory. NULL before its first step, and for
 * other reducers.
 * */
PITH_API const char *pith_xla_carrier(const pith_reducer *reducer);

/* The version of XLA's interface with which a handler was registered in this process. PITH_ERR_STATE before the first
 * registration; PITH_ERR_UNSUPPORTED if the library does not know the version. */
PITH_API pith_status pith_xla_version(int *major, int *minor);

#ifdef __cplusplus
}
#endif
#endif

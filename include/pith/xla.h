/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls from programs that XLA has compiled, as those of JAX are: gradients of a step become means in one call. Part of
 * the public API; pith.h includes it. The Python package pith.jax uses it; docs/jax.md has operands and results.
 *
 *   options.lent = 1;
 *   pith_reducer_create_with(comm, rules, seed, &options, &reducer);
 *   pith_reducer_add(…);                                              // all layers
 *   pith_xla_bind(key, comm, reducer);                                // calls with the attribute "key" use it
 *   register the handler pith_xla_allreduce_host with XLA, for the platform Host
 *
 * For programs of a GPU the reducer is pith_xla_cuda_reducer()'s, and the handler pith_xla_allreduce_cuda.
 *
 * The library needs nothing of XLA to be built or loaded. A handler checks at run time which version of XLA's interface
 * it is called by, and returns an error where it does not know it.
 */
#ifndef PITH_XLA_H
#define PITH_XLA_H

#include <pith/carrier.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Lends a comm and a reducer to calls with this key, which XLA passes as a signed number of 64 bits. The reducer must
 * have been made for this comm, and have all its layers. Without options.lent it keeps states by itself, and takes only
 * calls with the token of its next step: for adaptive specs. PITH_ERR_ARGUMENT if the key is in use. */
PITH_API pith_status pith_xla_bind(uint64_t key, pith_comm *comm, pith_reducer *reducer);

/* The status of the first call over this comm that failed, with its text in pith_error(); PITH_OK if none has. For
 * ranks that end: the results of a last step may be nobody's. */
PITH_API pith_status pith_xla_check(const pith_comm *comm);

/* Takes them back. Waits for a call that uses them: abort the comm before if it should end. An unknown key is none. */
PITH_API void pith_xla_unbind(uint64_t key);

/* The handler for the platform Host: a function of XLA's type for handlers, which takes a call frame and returns NULL
 * or an error object of XLA's. */
PITH_API void *pith_xla_allreduce_host(void *frame);

/* The handler for the platform CUDA. Calls with its key need a reducer of pith_xla_cuda_reducer(). */
PITH_API void *pith_xla_allreduce_cuda(void *frame);

/* Creates a reducer for calls from programs of a CUDA device, by its number in this process. It works on a stream of
 * its own. `carrier` says how messages travel: "auto" is NCCL where all ranks can make a communicator of it, else
 * pinned memory and the comm; "nccl" and "comm" are one of them alone. Ranks agree on it at the first step. `lent` as
 * in pith_reducer_options. The comm must outlive the reducer. */
PITH_API pith_status pith_xla_cuda_reducer(pith_comm *comm, int device, const char *carrier, const char *rules,
                                           uint64_t seed, int lent, pith_reducer **reducer);

/* How its messages travel: "NCCL", or "pith" through pinned memory. NULL before its first step, and for other reducers.
 */
PITH_API const char *pith_xla_carrier(const pith_reducer *reducer);

/* The version of XLA's interface that a handler was registered with in this process, and the versions that are known.
 * PITH_ERR_STATE before the first registration; PITH_ERR_UNSUPPORTED for a version that is not known. */
PITH_API pith_status pith_xla_version(int *major, int *minor);

#ifdef __cplusplus
}
#endif
#endif

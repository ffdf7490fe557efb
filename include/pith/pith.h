/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith: compressed communication for distributed deep learning.
 *
 * This header includes the whole public API, in the order in which programs use it:
 *
 *   types.h    status codes, tensors, layers, and how structs grow
 *   codec.h    codecs, their state, encode and decode, rules, the list of methods
 *   comm.h     groups of ranks, collective operations, the reducer
 *   carrier.h  a reducer over other collectives, or over NCCL
 *   optimizer.h  momentum in place of gradients, and the optimizer's step
 *   plan.h     profiles of gradients, and plans made from them
 *   adapt.h    specs that change while a model is trained
 *   sim.h      the predicted time of collectives on a network that you describe
 *   cuda.h     encode and decode on CUDA devices
 *   xla.h      calls from programs compiled by XLA, such as those of JAX
 *
 * Two headers are not included: mpi.h needs an MPI installation, and plugin.h is for authors of codecs. Nothing here
 * needs the headers of CUDA, NCCL or XLA.
 *
 * Conventions. A function that can fail returns a pith_status and writes its outputs only on success. On failure,
 * pith_error() returns a readable message. Callers own every tensor and buffer; the library keeps no pointer to them
 * after it returns, unless the call says so. Objects are created and destroyed in pairs; destroying NULL is legal, and
 * destroying an object does not change pith_error(). A pith_codec never changes after its creation, so threads may
 * share it; most other objects belong to one thread at a time.
 */
#ifndef PITH_PITH_H
#define PITH_PITH_H

#include <pith/adapt.h>
#include <pith/carrier.h>
#include <pith/codec.h>
#include <pith/comm.h>
#include <pith/cuda.h>
#include <pith/optimizer.h>
#include <pith/plan.h>
#include <pith/sim.h>
#include <pith/types.h>
#include <pith/xla.h>

/* The version of this header. pith_version() returns the version of the library. */
#define PITH_VERSION_MAJOR 0
#define PITH_VERSION_MINOR 2
#define PITH_VERSION_PATCH 0

#endif

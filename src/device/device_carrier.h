/* SPDX-License-Identifier: Apache-2.0 */
/* A comm as a carrier of device memory: from GPU to GPU where all ranks can, else through pinned memory. */
#ifndef PITH_DEVICE_DEVICE_CARRIER_H
#define PITH_DEVICE_DEVICE_CARRIER_H

#include <pith/carrier.h>

typedef enum pith_device_way {
  PITH_DEVICE_AUTO,   /* ipc if possible */
  PITH_DEVICE_IPC,    /* an error where it is not possible */
  PITH_DEVICE_STAGED, /* pinned memory */
  PITH_DEVICE_NCCL    /* between hosts alone (hosts_carrier.h) */
} pith_device_way;

/* By names: "ipc" or "staged", and behind a slash the way between hosts where a host's GPUs sum first, "staged" or
 * "nccl" ("auto/nccl"). NULL and "auto": what PITH_CUDA_CARRIER says. */
pith_status pith__device_ways(const char *names, pith_device_way *way, pith_device_way *across);

/* The carrier of device memory of a comm's ranks that has these functions; `self` is theirs. */
pith_carrier pith__carrier_of(const pith_comm *comm, void *self, const pith_carrier *functions);

/* For the calling thread's current device. At the first exchange a comm is split off, which is the carrier's own, and
 * ranks find out which way messages go. `enqueues`: only a way by which exchanges are enqueued will do. */
pith_status pith__device_carrier(pith_comm *comm, pith_device_way way, int enqueues, pith_carrier *carrier);

/* Which way it goes: "ipc" or "staged"; NULL: there was no exchange yet, or it is another carrier. */
const char *pith__device_carrier_way(const pith_carrier *carrier);

#endif

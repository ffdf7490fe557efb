/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A carrier for ranks whose GPUs are on one host: messages go from GPU to GPU, everything is enqueued, and a step can
 * be captured in a graph. docs/gpu.md has the protocol.
 */
#ifndef PITH_DEVICE_IPC_CARRIER_H
#define PITH_DEVICE_IPC_CARRIER_H

#include <pith/carrier.h>

#define PITH_IPC_WHY 256

/* Bytes of device memory that each rank shares with the others. For tests to change. */
extern size_t pith__ipc_window_bytes;

/* All ranks call it, and come to the same end: a carrier for the calling thread's current device, or one without
 * functions, and in `why` which rank cannot and for what reason. `own` is a comm of the same ranks as the parent, which
 * lives longer; it stays the caller's if there is no carrier, and is destroyed after an error. `refusal`: why this rank
 * does not want to; NULL: it does. `required`, by any rank: that there is none is an error. */
pith_status pith__ipc_carrier(pith_comm *parent, pith_comm *own, const char *refusal, int required,
                              pith_carrier *carrier, char why[PITH_IPC_WHY]);

#endif

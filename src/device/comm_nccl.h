/* SPDX-License-Identifier: Apache-2.0 */
/* A carrier for ranks that share a comm and have a CUDA device each: NCCL where all can use it, else the comm
 * (device_carrier.h). */
#ifndef PITH_DEVICE_COMM_NCCL_H
#define PITH_DEVICE_COMM_NCCL_H

#include <pith/carrier.h>

typedef enum pith_nccl_choice {
  PITH_NCCL_IF_POSSIBLE, /* else messages go over the comm */
  PITH_NCCL_REQUIRED,    /* an error where it is not possible */
  PITH_NCCL_NEVER,
} pith_nccl_choice;

/* Fills in a carrier for the calling thread's current device. Ranks agree on NCCL at the first exchange, where its
 * communicator is made: one for all carriers of a comm. *stream (optional) is for options.stream; the carrier owns it.
 * A rank that dies while NCCL waits for it is an error that names it. */
pith_status pith__comm_nccl_carrier(pith_comm *comm, pith_nccl_choice choice, pith_carrier *carrier, void **stream);

/* What it found at its first exchange: "NCCL" or "pith"; NULL before, and for other carriers. */
const char *pith__comm_nccl_name(const pith_carrier *carrier);

#endif

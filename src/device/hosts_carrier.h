/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm of several hosts as a carrier of device memory with levels: from GPU to GPU among the ranks of a host, and
 * through pinned memory or NCCL among those that have the same place in their hosts. For the algorithm `hierarchical`
 * (docs/algorithms.md, "Hosts"); exchanges of all ranks go as over device_carrier.h.
 */
#ifndef PITH_DEVICE_HOSTS_CARRIER_H
#define PITH_DEVICE_HOSTS_CARRIER_H

#include "comm/comm.h"
#include "device/device_carrier.h"

typedef enum pith_level { PITH_LEVEL_ALL, PITH_LEVEL_INSIDE, PITH_LEVEL_ACROSS, PITH_LEVELS } pith_level;

/* Where this rank is: every host has as many ranks. */
typedef struct pith_hosts {
  int hosts, locals;        /* of the comm, and ranks of each */
  int host, local;          /* ours */
  int *here, *alike;        /* ranks of our host, and those with our place, host by host */
  const pith_codec *inside; /* for values within a host; NULL: as they are */
} pith_hosts;

/* Whether a comm asks for it, and its ranks are spread evenly, several on each of several hosts. */
int pith__hosts_fit(const pith_comm *comm);

/* For the calling thread's current device; the comm lives longer. `across`: between hosts, staged or nccl. */
pith_status pith__hosts_carrier(pith_comm *comm, pith_device_way way, pith_device_way across, pith_carrier *carrier);

/* NULL: it is another carrier. */
const pith_hosts *pith__hosts_of(const pith_carrier *carrier);

/* carrier->start() among the ranks of a level, which are numbered by `here` and `alike`; … */
pith_status pith__hosts_start(const pith_carrier *carrier, pith_level level, const pith_exchange *x, uint64_t *ticket);

#endif

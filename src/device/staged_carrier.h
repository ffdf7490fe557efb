/* SPDX-License-Identifier: Apache-2.0 */
/* A comm as a carrier. Its messages are in main memory: those of a CUDA device go through pinned memory. */
#ifndef PITH_DEVICE_STAGED_CARRIER_H
#define PITH_DEVICE_STAGED_CARRIER_H

#include <pith/carrier.h>

/* Main memory: exchanges of the comm, which lives longer. */
pith_status pith__comm_carrier(pith_comm *comm, pith_carrier *carrier);

/* Memory of the calling thread's current device. `own` is a comm of the same ranks as the parent, for a thread to use;
 * the carrier takes it over. */
pith_status pith__staged_carrier(pith_comm *parent, pith_comm *own, pith_carrier *carrier);

#endif

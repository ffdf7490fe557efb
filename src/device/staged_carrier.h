/* A comm as a carrier. Its messages are in main memory: those of a CUDA device go through pinned memory. */
#ifndef PITH_DEVICE_STAGED_CARRIER_H
#define PITH_DEVICE_STAGED_CARRIER_H

#include <pith/carrier.h>

/* The comm lives longer. For a device another is split off from it at the first exchange, for a thread to use. */
pith_status pith__comm_carrier(pith_comm *comm, int cuda, pith_carrier *carrier);

#endif

/* Memory of a CUDA device over a comm, whose own messages are in main memory: through pinned memory. */
#ifndef PITH_DEVICE_STAGED_CARRIER_H
#define PITH_DEVICE_STAGED_CARRIER_H

#include <pith/carrier.h>

/* Its comm is split off from this one at the first exchange, which lives longer. */
pith_status pith__staged_carrier(pith_comm *comm, pith_carrier *carrier);

#endif

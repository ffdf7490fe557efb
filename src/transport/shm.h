/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of the shm transport, for its tests: where its own segment lies. */
#ifndef PITH_TRANSPORT_SHM_H
#define PITH_TRANSPORT_SHM_H

#include "transport/shm_segment.h"
#include "transport/transport.h"

const pith_shm_segment *pith__shm_own_segment(const pith_transport *transport);

#endif

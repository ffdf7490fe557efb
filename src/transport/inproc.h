/* SPDX-License-Identifier: Apache-2.0 */
/* A knob of the inproc transport for its tests. */
#ifndef PITH_TRANSPORT_INPROC_H
#define PITH_TRANSPORT_INPROC_H

#include <stddef.h>

/* Bytes on their way between two ranks; to be set before any listen. */
extern size_t pith__inproc_ring_size;

#endif

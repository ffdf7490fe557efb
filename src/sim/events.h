/* SPDX-License-Identifier: Apache-2.0 */
/* What happens next: a heap of events by time, four children to a node. */
#ifndef PITH_SIM_EVENTS_H
#define PITH_SIM_EVENTS_H

#include <stdint.h>

#include "base/status.h"

/* `what` orders events of the same time. */
typedef struct pith_sim_event {
  double time;
  uint64_t what;
} pith_sim_event;

typedef struct pith_sim_events {
  pith_sim_event *heap;
  size_t count, room;
} pith_sim_events;

/* 0: there is no memory. */
int pith__sim_events_push(pith_sim_events *events, double time, uint64_t what);
/* Of at least one. */
pith_sim_event pith__sim_events_pop(pith_sim_events *events);

#endif

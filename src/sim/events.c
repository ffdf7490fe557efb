/* SPDX-License-Identifier: Apache-2.0 */
/* The heap of events. */
#include "sim/events.h"

#include <stdlib.h>

#define CHILDREN 4

static int is_before(const pith_sim_event *a, const pith_sim_event *b) {
  return a->time < b->time || (a->time <= b->time && a->what < b->what);
}

int pith__sim_events_push(pith_sim_events *e, double time, uint64_t what) {
  if (e->count == e->room) {
    size_t room = e->room ? 2 * e->room : 1024;
    pith_sim_event *larger = realloc(e->heap, room * sizeof *larger);
    if (!larger) {
      return 0;
    }
    e->heap = larger;
    e->room = room;
  }
  pith_sim_event new = {time, what};
  size_t at = e->count++;
  for (; at && is_before(&new, &e->heap[(at - 1) / CHILDREN]); at = (at - 1) / CHILDREN) {
    e->heap[at] = e->heap[(at - 1) / CHILDREN];
  }
  e->heap[at] = new;
  return 1;
}

pith_sim_event pith__sim_events_pop(pith_sim_events *e) {
  pith_sim_event top = e->heap[0], last = e->heap[--e->count];
  size_t at = 0;
  for (;;) {
    size_t first = CHILDREN * at + 1, least = first;
    if (first >= e->count) {
      break;
    }
    for (size_t child = first + 1; child < first + CHILDREN && child < e->count; child++) {
      least = is_before(&e->heap[child], &e->heap[least]) ? child : least;
    }
    if (!is_before(&e->heap[least], &last)) {
      break;
    }
    e->heap[at] = e->heap[least];
    at = least;
  }
  e->heap[at] = last;
  return top;
}

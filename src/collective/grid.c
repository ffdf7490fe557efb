/* SPDX-License-Identifier: Apache-2.0 */
/* Coordinates of ranks, and what waits for parts of a range. */
#include "collective/grid.h"

/* The smallest divisor of n whose square is at least `wide` times n, but less than n; 1 if n is prime. */
static int divisor_of(int n, int wide) {
  int found = 1;
  for (int d = 2; d < n && (long)found * found < (long)wide * n; d++) {
    found = n % d == 0 ? d : found;
  }
  return found;
}

static int is_uniform(const pith_layout *hosts) {
  for (int h = 0; h < hosts->hosts; h++) {
    if (pith__layout_members(hosts, h) != hosts->leaders) {
      return 0;
    }
  }
  return 1;
}

const char *pith__grid_make(const pith_layout *hosts, int rack_hosts, int wide, pith_grid *grid) {
  int inside = hosts->hosts > 1 ? hosts->leaders : 1, groups = hosts->ranks / inside; /* of one host: all ranks */
  if (hosts->hosts > 1 && !is_uniform(hosts)) {
    return "its hosts must have equally many ranks";
  }
  int has_racks = rack_hosts > 1 && rack_hosts < hosts->hosts && hosts->hosts % rack_hosts == 0;
  int rack = has_racks ? rack_hosts : divisor_of(groups, wide);
  if (rack == 1) {
    return "it needs a number of hosts that is not prime";
  }
  *grid = (pith_grid){{inside, rack, groups / rack}, hosts};
  return NULL;
}

/* Ranks in the order of hosts. */
static int position_of(const pith_grid *g, int rank) {
  return g->hosts->first[g->hosts->host[rank]] + g->hosts->local_rank[rank];
}

static int stride_of(const pith_grid *g, int level) {
  int stride = 1;
  for (int k = 0; k < level; k++) {
    stride *= g->size[k];
  }
  return stride;
}

int pith__grid_at(const pith_grid *g, int rank, int level) {
  return position_of(g, rank) / stride_of(g, level) % g->size[level];
}

int pith__grid_peer(const pith_grid *g, int rank, int level, int coordinate) {
  return g->hosts->member[position_of(g, rank) + (coordinate - pith__grid_at(g, rank, level)) * stride_of(g, level)];
}

/* ---- Ready lists ------------------------------------------------------------------------------------------------- */

pith_ready_list pith__ready_list(pith_schedule *s, size_t room) {
  pith_ready_list list = {.room = room};
  list.item = pith__schedule_take(s, room ? room : 1, sizeof *list.item);
  list.room = list.item ? room : 0;
  return list;
}

void pith__ready_add(pith_ready_list *list, pith_range range, uint32_t task) {
  if (range.n && list->count < list->room) {
    list->item[list->count++] = (struct pith_ready){range, task};
  }
}

void pith__ready_before(pith_schedule *s, const pith_ready_list *list, pith_range range, uint32_t task) {
  for (size_t i = 0; i < list->count; i++) {
    pith_range r = list->item[i].range;
    if (r.first < range.first + range.n && range.first < r.first + r.n) {
      pith__schedule_after(s, task, list->item[i].task);
    }
  }
}

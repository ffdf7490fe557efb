/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A grid: ranks by up to three coordinates, so that a rank reduces with few others at a time. On 4,096 ranks every one
 * has some hundred messages to send in place of 8,190. docs/algorithms.md, "Grid".
 *
 * The first coordinate is the rank within its host, the second the host within its rack, the third the rack. Ranks
 * without hosts, and hosts without racks, are grouped by their order. Values are cut along the first coordinate, parts
 * of them along the second, and so on. A rank exchanges messages with those that differ from it in one coordinate only.
 */
#ifndef PITH_COLLECTIVE_GRID_H
#define PITH_COLLECTIVE_GRID_H

#include "base/split.h"
#include "collective/layout.h"
#include "collective/schedule.h"

#define PITH_GRID_LEVELS 3

typedef struct pith_grid {
  int size[PITH_GRID_LEVELS]; /* 1: there is no such level */
  const pith_layout *hosts;
} pith_grid;

/* `rack_hosts`: hosts of a rack, in the order of hosts; 0: not known. Without it, groups of hosts become `wide` times
 * larger than there are groups. Returns why there is no grid of these ranks, or NULL. */
const char *pith__grid_make(const pith_layout *hosts, int rack_hosts, int wide, pith_grid *grid);

/* The coordinate of a rank. */
int pith__grid_at(const pith_grid *grid, int rank, int level);

/* The rank that has this coordinate at this level, and all others as `rank` has them. */
int pith__grid_peer(const pith_grid *grid, int rank, int level, int coordinate);

/* ---- Ranges of values that become ready piece by piece ----------------------------------------------------------- */

typedef struct pith_ready_list {
  struct pith_ready {
    pith_range range;
    uint32_t task;
  } *item;
  size_t count, room;
} pith_ready_list;

/* With room for `room` of them. */
pith_ready_list pith__ready_list(pith_schedule *s, size_t room);
void pith__ready_add(pith_ready_list *list, pith_range range, uint32_t task);

/* `task` starts only when all of the range is ready. */
void pith__ready_before(pith_schedule *s, const pith_ready_list *list, pith_range range, uint32_t task);

#endif

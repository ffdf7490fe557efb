/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ranks share a host: pure rank arithmetic, no network.
 *
 * Hosts are numbered in the order of their lowest ranks. In every host the first `leaders` ranks are leaders: they talk
 * to other hosts, leader l to the leaders l. There are as many as the smallest host has ranks. A flat layout has a host
 * for each rank: a hierarchical algorithm is then the one that ignores hosts.
 */
#ifndef PITH_COLLECTIVE_LAYOUT_H
#define PITH_COLLECTIVE_LAYOUT_H

#include "base/status.h"

typedef struct pith_layout {
  int ranks, hosts, leaders;
  int *host;       /* of each rank */
  int *local_rank; /* of each rank, in its host */
  int *first;      /* of each host, into `member`; and one more for the end */
  int *member;     /* ranks, host after host, ascending */
} pith_layout;

/* From a number for each rank that ranks of one host share; NULL: a host for each rank. */
pith_status pith__layout_create(int ranks, const uint64_t *host, pith_layout **layout);
void pith__layout_destroy(pith_layout *layout);

static inline int pith__layout_members(const pith_layout *l, int host) { return l->first[host + 1] - l->first[host]; }

/* The rank that has this local rank in this host. */
static inline int pith__layout_rank(const pith_layout *l, int host, int local_rank) {
  return l->member[l->first[host] + local_rank];
}

#endif

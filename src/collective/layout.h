/*
 * Which ranks share a host: pure rank arithmetic, no network.
 *
 * Hosts are numbered in the order of their lowest ranks. In every host the first `carriers` ranks talk to other hosts,
 * carrier l to the carriers l; as many as the smallest host has ranks. A flat layout has a host for each rank: what is
 * written for hosts then is the algorithm without them.
 */
#ifndef PITH_COLLECTIVE_LAYOUT_H
#define PITH_COLLECTIVE_LAYOUT_H

#include "base/status.h"

typedef struct pith_layout {
  int ranks, hosts, carriers;
  int *host;   /* of each rank */
  int *place;  /* of each rank, among those of its host */
  int *first;  /* of each host, into `member`; and one more for the end */
  int *member; /* ranks, host after host, ascending */
} pith_layout;

/* From a number for each rank that ranks of one host share; NULL: a host for each rank. */
pith_status pith__layout_create(int ranks, const uint64_t *host, pith_layout **layout);
void pith__layout_destroy(pith_layout *layout);

static inline int pith__layout_members(const pith_layout *l, int host) { return l->first[host + 1] - l->first[host]; }

/* Rank number `place` of a host. */
static inline int pith__layout_rank(const pith_layout *l, int host, int place) {
  return l->member[l->first[host] + place];
}

#endif

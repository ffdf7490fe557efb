/* SPDX-License-Identifier: Apache-2.0 */
/* Groups ranks by host. */
#include "collective/layout.h"

#include <stdlib.h>

static int host_of(const uint64_t *number, int rank) {
  int first = 0;
  while (number[first] != number[rank]) {
    first++;
  }
  return first; /* the lowest rank of the host */
}

/* Hosts are numbered in the order of their lowest ranks. */
static void number_hosts(pith_layout *l, const uint64_t *number) {
  for (int r = 0; r < l->ranks; r++) {
    int first = number ? host_of(number, r) : r;
    l->host[r] = first == r ? l->hosts++ : l->host[first];
  }
}

static void list_members(pith_layout *l) {
  int at = 0;
  for (int h = 0; h < l->hosts; h++) {
    l->first[h] = at;
    for (int r = 0; r < l->ranks; r++) {
      if (l->host[r] == h) {
        l->local_rank[r] = at - l->first[h];
        l->member[at++] = r;
      }
    }
    int members = at - l->first[h];
    l->leaders = h == 0 || members < l->leaders ? members : l->leaders;
  }
  l->first[l->hosts] = at;
}

pith_status pith__layout_create(int ranks, const uint64_t *number, pith_layout **layout) {
  size_t room = (size_t)ranks + 1;
  pith_layout *l = malloc(sizeof *l + 4 * room * sizeof(int));
  PITH_REQUIRE(l, PITH_ERR_MEMORY, "no memory for the layout of %d ranks", ranks);
  int *memory = (int *)(void *)(l + 1);
  *l = (pith_layout){.ranks = ranks,
                     .host = memory,
                     .local_rank = memory + room,
                     .first = memory + 2 * room,
                     .member = memory + 3 * room};
  number_hosts(l, number);
  list_members(l);
  *layout = l;
  return PITH_OK;
}

void pith__layout_destroy(pith_layout *layout) { free(layout); }

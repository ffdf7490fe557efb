/* SPDX-License-Identifier: Apache-2.0 */
/* Who shares a host with whom. */
#include "collective/layout.h"

#include "test.h"

TEST(a_flat_layout_has_a_host_for_each_rank) {
  pith_layout *l;
  CHECK_OK(pith__layout_create(5, NULL, &l));
  CHECK_EQ(l->hosts, 5);
  CHECK_EQ(l->leaders, 1);
  for (int r = 0; r < 5; r++) {
    CHECK_EQ(l->host[r], r);
    CHECK_EQ(l->local_rank[r], 0);
    CHECK_EQ(pith__layout_rank(l, r, 0), r);
  }
  pith__layout_destroy(l);
}

TEST(hosts_are_numbered_by_their_lowest_ranks_and_the_smallest_sets_the_carriers) {
  static const uint64_t host[] = {77, 5, 77, 5, 77, 9, 9};
  static const int numbers[] = {0, 1, 0, 1, 0, 2, 2}, local_ranks[] = {0, 0, 1, 1, 2, 0, 1};
  pith_layout *l;
  CHECK_OK(pith__layout_create(7, host, &l));
  CHECK_EQ(l->hosts, 3);
  CHECK_EQ(l->leaders, 2);
  CHECK_EQ(pith__layout_members(l, 0), 3);
  CHECK_EQ(pith__layout_members(l, 2), 2);
  for (int r = 0; r < 7; r++) {
    CHECK_EQ(l->host[r], numbers[r]);
    CHECK_EQ(l->local_rank[r], local_ranks[r]);
    CHECK_EQ(pith__layout_rank(l, l->host[r], l->local_rank[r]), r);
  }
  pith__layout_destroy(l);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Which ranks the chaos program takes an error to hold responsible: the sentences are those of the library. */
#include "chaos/chaos.h"
#include "test.h"

static void check_blame(const char *text, unsigned named, unsigned observers) {
  chaos_blame blame = chaos_read_blame(text);
  CHECK_MSG(blame.named == named && blame.observers == observers, "\"%s\": named %#x, observers %#x", text, blame.named,
            blame.observers);
}

enum { R0 = 1, R1 = 2, R2 = 4, R3 = 8, R5 = 32 };

TEST(a_rank_that_is_gone_is_named_and_who_saw_it_is_not) {
  check_blame("rank 2 is gone (seen by rank 0): rank 2 is gone: Connection reset by peer", R2, R0);
  check_blame("rank 2 left the group while rank 1 was waiting for it", R2, R1);
}

TEST(all_ranks_of_a_list_are_named) {
  check_blame("Timed out waiting 2.0 s for rank 2, rank 5 without a sign of life, seen by rank 1 (a timeout of 2 s)",
              R2 | R5, R1);
  check_blame("ranks 1, 2 and 5 did not come to rank 0 at 10.77.0.1:20196 within 2 s", R1 | R2 | R5, R0);
  check_blame("rank 3 has no tcp connection with ranks 0 and 2 after 2 s: is a firewall between?", R0 | R2, R3);
}

TEST(a_rank_that_looks_for_rank_0_is_not_named) {
  check_blame("rank 3 did not find rank 0 at 10.77.0.1:20003 within 2 s (Connection refused)", R0, R3);
}

TEST(sentences_without_a_rank_name_nobody) {
  check_blame("", 0, 0);
  check_blame("the ranks were not complete", 0, 0);
  check_blame("rank", 0, 0);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The cost of algorithms: what it must choose in cases that a person can judge. */
#include "collective/cost.h"

#include <string.h>

#include "test.h"

static double cost_of(pith_algorithm algorithm, const uint64_t *host, int ranks, size_t n, double bits, int is_dense) {
  pith_layout *l;
  CHECK_OK(pith__layout_create(ranks, host, &l));
  pith_grid grid;
  pith_cost_question q = {.layout = l,
                          .grid = pith__grid_make(l, 0, 1, &grid) ? NULL : &grid,
                          .kind = bits >= 32 ? PITH_COST_RAW
                                  : is_dense ? PITH_COST_BLOCKS
                                             : PITH_COST_WHOLE,
                          .n = n,
                          .raw = (double)n * 4,
                          .coded = (double)n * bits / 8,
                          .exchanges = 1,
                          .granule = 512,
                          .chunk = (size_t)512 << 10,
                          .message = (size_t)32 << 10};
  double seconds = pith__cost_of(algorithm, &q, &pith__cost_default).seconds;
  pith__layout_destroy(l);
  CHECK(seconds > 0 && seconds < 1e6);
  return seconds;
}

static double cost(pith_algorithm algorithm, const uint64_t *host, int ranks, size_t n, double bits) {
  return cost_of(algorithm, host, ranks, n, bits, 0);
}

static const uint64_t two_of_four[] = {1, 1, 1, 1, 2, 2, 2, 2}, apart[] = {1, 2, 3, 4, 5, 6, 7, 8};

TEST(crowded_hosts_sum_inside_first) {
  CHECK(cost(PITH_ALGORITHM_HIERARCHICAL, two_of_four, 8, 1 << 22, 32) <
        cost(PITH_ALGORITHM_SRA, two_of_four, 8, 1 << 22, 32) / 2);
  CHECK(cost(PITH_ALGORITHM_HIERARCHICAL, two_of_four, 8, 1 << 22, 4) <
        cost(PITH_ALGORITHM_SRA, two_of_four, 8, 1 << 22, 4));
}

TEST(sparse_payloads_are_gathered_and_dense_ones_split) {
  CHECK(cost(PITH_ALGORITHM_GATHER, apart, 8, 1 << 12, 0.4) < cost(PITH_ALGORITHM_RANGES, apart, 8, 1 << 12, 0.4));
  CHECK(cost(PITH_ALGORITHM_RANGES, apart, 8, 1 << 20, 20) < cost(PITH_ALGORITHM_GATHER, apart, 8, 1 << 20, 20));
}

/* With a block codec gathering saves a step, and costs work, and bytes on more than two ranks. */
TEST(few_ranks_gather_short_tensors) {
  CHECK(cost_of(PITH_ALGORITHM_GATHER, apart, 2, 1 << 15, 4, 1) < cost_of(PITH_ALGORITHM_SRA, apart, 2, 1 << 15, 4, 1));
  CHECK(cost_of(PITH_ALGORITHM_SRA, apart, 2, 1 << 17, 4, 1) < cost_of(PITH_ALGORITHM_GATHER, apart, 2, 1 << 17, 4, 1));
  CHECK(cost_of(PITH_ALGORITHM_GATHER, apart, 4, 1 << 10, 4, 1) < cost_of(PITH_ALGORITHM_SRA, apart, 4, 1 << 10, 4, 1));
  CHECK(cost_of(PITH_ALGORITHM_SRA, apart, 4, 1 << 20, 4, 1) < cost_of(PITH_ALGORITHM_GATHER, apart, 4, 1 << 20, 4, 1));
  CHECK(cost_of(PITH_ALGORITHM_SRA, apart, 8, 1 << 20, 4, 1) < cost_of(PITH_ALGORITHM_GATHER, apart, 8, 1 << 20, 4, 1));
}

TEST(payloads_that_add_up_are_summed) {
  CHECK(cost(PITH_ALGORITHM_LINEAR, apart, 8, 1 << 22, 3) < cost(PITH_ALGORITHM_GATHER, apart, 8, 1 << 22, 3));
}

TEST(a_tree_beats_a_ring_where_tensors_are_short) {
  CHECK(cost(PITH_ALGORITHM_TREE, apart, 8, 100, 4) < cost(PITH_ALGORITHM_RING, apart, 8, 100, 4));
  CHECK(cost(PITH_ALGORITHM_RING, apart, 8, 1 << 24, 4) < cost(PITH_ALGORITHM_TREE, apart, 8, 1 << 24, 4));
}

TEST(more_bytes_never_cost_less) {
  for (int a = PITH_ALGORITHM_SRA; a < PITH_ALGORITHM_GRID; a++) { /* there is no grid of two hosts */
    CHECK(cost((pith_algorithm)a, two_of_four, 8, 1 << 20, 4) <= cost((pith_algorithm)a, two_of_four, 8, 1 << 20, 8));
    CHECK(cost((pith_algorithm)a, two_of_four, 8, 1 << 20, 4) <= cost((pith_algorithm)a, two_of_four, 8, 1 << 21, 4));
  }
}

TEST(names_find_their_algorithms) {
  for (int a = 0; a < PITH_ALGORITHMS; a++) {
    CHECK_EQ(pith__algorithm_find(pith__algorithm_name((pith_algorithm)a)), a);
  }
  CHECK_EQ(pith__algorithm_find("rong"), PITH_ALGORITHMS);
}

TEST(algorithms_suit_codecs_by_what_they_can_do) {
  static const struct {
    const char *spec, *algorithm;
    int suits;
  } cases[] = {{"q:4", "sra", 1},
               {"q:4", "ring", 1},
               {"q:4", "gather", 1},
               {"topk:0.01", "sra", 0},
               {"topk:0.01", "ranges", 1},
               {"randomk:0.01", "linear", 1},
               {"q:4", "linear", 0},
               {"signsgd", "hierarchical", 0},
               {"signsgd", "ring", 0},
               {"ef/powersgd:4", "sra", 1},
               {"ef/powersgd:4", "gather", 0},
               {"q:4,encode=once", "gather", 1},
               {"q:4,encode=once", "sra", 0},
               {"q:4,encode=once", "ring", 0},
               {"q:4,encode=once", "tree", 0},
               {"q:4,encode=once", "hierarchical", 1}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    pith_codec *codec;
    CHECK_OK(pith_codec_create(cases[i].spec, &codec));
    pith_status status = pith_algorithm_suits(cases[i].algorithm, codec);
    CHECK_MSG(status == (cases[i].suits ? PITH_OK : PITH_ERR_UNSUPPORTED), "%s by %s: %s", cases[i].spec,
              cases[i].algorithm, pith_status_string(status));
    pith_codec_destroy(codec);
  }
  CHECK_OK(pith_algorithm_suits("sra", NULL));
  CHECK_STATUS(pith_algorithm_suits("pigeon", NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_algorithm_suits(NULL, NULL), PITH_ERR_ARGUMENT);
  CHECK_STR(pith_algorithm_get(1), "sra");
  CHECK(!pith_algorithm_get(100));
}

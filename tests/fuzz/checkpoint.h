/* SPDX-License-Identifier: Apache-2.0 */
/* The objects whose checkpoints are fuzzed: the target loads into them, make_corpus saves them. */
#ifndef PITH_TESTS_FUZZ_CHECKPOINT_H
#define PITH_TESTS_FUZZ_CHECKPOINT_H

#include <pith/adapt.h>
#include <pith/comm.h>

#include "fuzz/fuzz.h"

enum {
  FUZZ_CHECKPOINT_FIXED,    /* a reducer */
  FUZZ_CHECKPOINT_ADAPTIVE, /* a reducer whose layers change their specs */
  FUZZ_CHECKPOINT_LGRECO,   /* an adapter */
  FUZZ_CHECKPOINT_AUTO,     /* an adapter */
  FUZZ_CHECKPOINT_SHARDS,   /* a reducer of shards, with references and something pending */
  FUZZ_CHECKPOINTS
};

static inline pith_reducer *fuzz_make_reducer(size_t number) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm; /* lives as long as the program */
  pith_reducer *reducer;
  size_t layer;
  config.rank = 0, config.ranks = 1;
  const char *rules = number == FUZZ_CHECKPOINT_FIXED ? "b=none;m=ef/powersgd:1;*=ef/q:4" : "b=none;*=lgreco:q:4";
  FUZZ_REQUIRE(pith_comm_create(&config, &comm) == PITH_OK);
  FUZZ_REQUIRE(pith_reducer_create(comm, rules, 7, &reducer) == PITH_OK);
  FUZZ_REQUIRE(pith_reducer_add(reducer, &(pith_layer){sizeof(pith_layer), "b", (size_t[]){3}, 1, PITH_F32, NULL},
                                &layer) == PITH_OK);
  FUZZ_REQUIRE(pith_reducer_add(reducer, &(pith_layer){sizeof(pith_layer), "m", (size_t[]){4, 6}, 2, PITH_F32, NULL},
                                &layer) == PITH_OK);
  FUZZ_REQUIRE(pith_reducer_add(reducer, &(pith_layer){sizeof(pith_layer), "w", (size_t[]){20}, 1, PITH_F32, NULL},
                                &layer) == PITH_OK);
  return reducer;
}

static inline pith_reducer *fuzz_make_shards(void) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm; /* lives as long as the program */
  pith_reducer *reducer;
  pith_reducer_options options = {.size = sizeof options, .sharded = 1};
  static const char *const specs[] = {"delta/q:4", "ef/q:4", "q:2"};
  static const char *const names[] = {"p", "g", "w"};
  const float owed[24] = {1, -2, 3};
  config.rank = 0, config.ranks = 1;
  FUZZ_REQUIRE(pith_comm_create(&config, &comm) == PITH_OK);
  FUZZ_REQUIRE(pith_reducer_create_with(comm, "none", 7, &options, &reducer) == PITH_OK);
  for (size_t i = 0; i < 3; i++) {
    pith_layer layer = {sizeof layer, names[i], (size_t[]){4, 6}, 2, PITH_F32, NULL};
    FUZZ_REQUIRE(pith_reducer_add_shards(reducer, &layer, specs[i], NULL) == PITH_OK);
    FUZZ_REQUIRE(!i || pith_reducer_owe(reducer, i, owed, NULL) == PITH_OK);
  }
  return reducer;
}

static inline pith_adapter *fuzz_make_adapter(size_t number) {
  const size_t m[] = {4, 6}, w[] = {20};
  const pith_layer layers[] = {{sizeof(pith_layer), "m", m, 2, PITH_F32, NULL},
                               {sizeof(pith_layer), "w", w, 1, PITH_F32, NULL}};
  pith_adapter *adapter;
  FUZZ_REQUIRE(pith_adapter_create(number == FUZZ_CHECKPOINT_LGRECO ? "lgreco:q:4" : "auto", layers, 2, 0, 2, 7,
                                   &adapter) == PITH_OK);
  return adapter;
}

#endif

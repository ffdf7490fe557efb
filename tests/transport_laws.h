/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The laws that every transport keeps, and a way to start ranks: as threads, or as processes. A file of tests in multi/
 * says which transport it is about and names the laws; what only that transport promises, it checks itself.
 */
#ifndef PITH_TESTS_TRANSPORT_LAWS_H
#define PITH_TESTS_TRANSPORT_LAWS_H

#include <sys/types.h>

#include "test.h"
#include "transport/transport.h"

#define WORLD_RANKS_MOST 16

typedef enum world_kind {
  WORLD_THREADS,   /* ranks are threads of this process */
  WORLD_PROCESSES, /* processes that are forked */
  WORLD_LAUNCHED   /* processes that were started by something else; each runs all laws: world_join */
} world_kind;

typedef struct transport_world {
  const pith_transport_ops *ops;
  world_kind kind;
} transport_world;

/* For WORLD_LAUNCHED: which of how many processes this one is, all on one machine, and a folder that they and only they
 * share. Worlds with fewer ranks leave the last ones out. */
void world_join(int rank, int ranks, const char *folder);

/* One rank of a world, in its thread or process. */
typedef struct world_rank {
  const transport_world *world;
  int rank, ranks;
  pith_transport *transport; /* NULL once the body has closed it itself */
  struct world_shared *shared;
  const void *argument;
  uint64_t random;
  pith_link_key key; /* of the job */
} world_rank;

typedef void (*world_body)(world_rank *me);

/* Starts that many ranks, connects all of them with each other, runs the body in each and waits for them. `lost` (a bit
 * for each rank) says which may end in any way; the others must return from the body. */
void world_run(const transport_world *world, int ranks, unsigned lost, world_body body, const void *argument);

/* The same without connecting: for laws about connecting. */
void world_run_unconnected(const transport_world *world, int ranks, unsigned lost, world_body body,
                           const void *argument);

/* Steps of connection setup, for bodies that were not connected. */
void world_listen(world_rank *me, double timeout);
pith_status world_connect(world_rank *me, const uint8_t *wanted);
const pith_address *world_address(const world_rank *me, int rank);

uint64_t world_below(world_rank *me, uint64_t limit);
void world_barrier(world_rank *me);
pid_t world_pid(const world_rank *me, int rank); /* 0 for threads */

/* Sleeps as a comm does, until something may be done. Fails the test if that takes longer than `seconds`. */
void world_wait(world_rank *me, double seconds);

/* Sends or receives all of it, sleeping as needed. */
void world_send(world_rank *me, int peer, const void *bytes, size_t size);
void world_receive(world_rank *me, int peer, void *bytes, size_t size);

/* ---- Laws: each a test ------------------------------------------------------------------------------------------- */

void law_bytes_arrive_in_order(const transport_world *world, size_t most); /* bytes for each pair, at most */
void law_no_wakeup_is_lost(const transport_world *world, int rounds);
void law_one_silent_reader_blocks_no_other(const transport_world *world);
void law_last_bytes_of_a_closed_peer_arrive(const transport_world *world);
void law_last_bytes_of_a_killed_peer_arrive(const transport_world *world); /* processes only */
void law_a_spinning_rank_notices_a_killed_peer(const transport_world *world);
void law_a_stopped_peer_only_waits(const transport_world *world);
void law_groups_do_not_mix(const transport_world *world);
void law_one_rank_alone_works(const transport_world *world);
void law_a_missing_rank_is_named(const transport_world *world);
void law_another_job_is_not_met(const transport_world *world);
void law_nothing_leaks(const transport_world *world);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ucx: ranks as processes and as threads, over UCX's shared memory, its TCP, and what it chooses. Beside the laws of
 * all transports: addresses that lie.
 */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "directory.h"
#include "transport/module.h"
#include "transport_laws.h"

/* The module, or the reason why this test cannot run. UCX leaves memory behind when a process ends; what Pith's side of
 * it allocates is freed in close, which nothing_leaks looks at by its descriptors. */
static const pith_transport_ops *ucx(const char *networks) {
  const pith_transport_ops *ops;
  setenv("PITH_MODULE_PATH", MODULES, 1);
  setenv("UCX_WARN_UNUSED_ENV_VARS", "n", 1);
  if (networks) {
    setenv("UCX_TLS", networks, 1);
  }
  if (pith__transport_open("ucx", &ops) != PITH_OK || ops->probe() != PITH_OK) {
    LACKS("ucx", "%s", pith_error());
  }
  return ops;
}

#define PROCESSES (&(transport_world){ucx("posix"), WORLD_PROCESSES})
#define OVER_TCP (&(transport_world){ucx("tcp"), WORLD_PROCESSES})
#define THREADS (&(transport_world){ucx("posix"), WORLD_THREADS})
#define AS_UCX_LIKES (&(transport_world){ucx(NULL), WORLD_PROCESSES})

/* ---- The laws ---------------------------------------------------------------------------------------------------- */

TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(PROCESSES, 300000); }
TEST(bytes_arrive_in_order_over_whatever_there_is) { law_bytes_arrive_in_order(AS_UCX_LIKES, 300000); }
TEST(bytes_arrive_in_order_over_tcp) { law_bytes_arrive_in_order(OVER_TCP, 300000); }
TEST(bytes_arrive_in_order_through_full_windows) { law_bytes_arrive_in_order(PROCESSES, 3000000); }
TEST(bytes_arrive_in_order_among_threads) { law_bytes_arrive_in_order(THREADS, 100000); }
TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(PROCESSES, 3000); }
TEST(no_wakeup_is_lost_over_tcp) { law_no_wakeup_is_lost(OVER_TCP, 2000); }
TEST(one_silent_reader_blocks_no_other) { law_one_silent_reader_blocks_no_other(PROCESSES); }
TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(PROCESSES); }
TEST(last_bytes_of_a_closed_peer_arrive_over_tcp) { law_last_bytes_of_a_closed_peer_arrive(OVER_TCP); }
TEST(last_bytes_of_a_killed_peer_arrive) { law_last_bytes_of_a_killed_peer_arrive(PROCESSES); }
TEST(last_bytes_of_a_killed_peer_arrive_over_tcp) { law_last_bytes_of_a_killed_peer_arrive(OVER_TCP); }
TEST(a_spinning_rank_notices_a_killed_peer) { law_a_spinning_rank_notices_a_killed_peer(PROCESSES); }
TEST(a_stopped_peer_only_waits) { law_a_stopped_peer_only_waits(PROCESSES); }
TEST(a_stopped_peer_only_waits_over_tcp) { law_a_stopped_peer_only_waits(OVER_TCP); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(PROCESSES); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(PROCESSES); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(PROCESSES); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(PROCESSES); }
TEST(nothing_leaks) { law_nothing_leaks(PROCESSES); }
TEST(nothing_leaks_over_tcp) { law_nothing_leaks(OVER_TCP); }

/* ---- Death in the middle ----------------------------------------------------------------------------------------- */

/* Rank 1 dies at some moment, while all send as much as they can. The others notice, wherever they are, and can leave.
 * Not while links are made: UCX 1.13 itself does not always survive that. */
static void talk_to_the_dying(world_rank *me) {
  enum { BYTES = 100000 };
  uint8_t *bytes = calloc(1, BYTES);
  pith_status status = PITH_OK;
  CHECK(bytes != NULL);
  world_barrier(me);
  if (me->rank == 1) {
    ualarm((useconds_t)(1 + world_below(me, 5000)), 0);
  }
  for (int turn = 0; status == PITH_OK; turn++) {
    size_t moved;
    int peer = me->rank == 1 ? turn % 2 * 2 : 1;
    status = me->world->ops->send(me->transport, peer, &(struct iovec){bytes, BYTES}, 1, &moved);
    status = status == PITH_OK ? me->world->ops->receive(me->transport, peer, bytes, BYTES, &moved) : status;
  }
  CHECK_EQ(status, PITH_ERR_PEER);
  CHECK_ERROR_SAYS("rank 1");
  free(bytes);
}

static void let_one_die(const transport_world *world) {
  for (int round = 0; round < 30; round++) {
    world_run(world, 3, 1u << 1, talk_to_the_dying, NULL);
  }
}

TEST(a_rank_may_die_while_it_sends) { let_one_die(PROCESSES); }
TEST(a_rank_may_die_while_it_sends_over_tcp) { let_one_die(OVER_TCP); }

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

/* UCX itself would believe them. */
TEST(a_damaged_address_is_refused) {
  const pith_transport_ops *ops = ucx(NULL);
  pith_transport *transport;
  pith_address address[2], right;
  pith_transport_config config = {.rank = 0, .ranks = 2, .timeout = 1};
  CHECK_OK(ops->listen(&config, &transport, &right));
  for (int round = 0; round < 300; round++) {
    address[1] = right;
    if (round % 3 == 0) {
      address[1].size = (uint32_t)(test_below(4) ? test_below(right.size) : test_random() | 1u << 20);
    } else {
      address[1].data[test_below(right.size)] ^= (uint8_t)(1 + test_below(255));
    }
    pith_directory directory = directory_of(address);
    CHECK_STATUS(ops->connect(transport, &directory, (const uint8_t[]){0, 1}, &(pith_link_key){0}), PITH_ERR_PEER);
    CHECK_ERROR_SAYS("rank 1");
  }
  ops->close(transport);
}

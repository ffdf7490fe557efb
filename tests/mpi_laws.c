/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The laws of transports over MPI. mpirun starts the ranks, so this program is started by it (cli/mpi.sh), with the
 * name of one law at a time: a process can start MPI only once. What becomes of the others when a rank dies is up to
 * mpirun, so those laws are not here.
 *
 *   LAWS_FOLDER   an empty folder that the processes share
 */
#include <stdlib.h>

#include "transport/module.h"
#include "transport_laws.h"

static int number_of(const char *const *names) {
  for (; *names; names++) {
    if (getenv(*names)) {
      return atoi(getenv(*names));
    }
  }
  SKIP("not started by mpirun");
}

static void barrier_once(world_rank *me) { world_barrier(me); }

/* All processes must have made a comm once, whatever the law needs of them. */
static const transport_world *launched(void) {
  static transport_world world = {NULL, WORLD_LAUNCHED};
  static const char *const rank[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", NULL};
  static const char *const ranks[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", NULL};
  setenv("PITH_MODULE_PATH", MODULES, 1);
  int all = number_of(ranks);
  CHECK_OK(pith__transport_open("mpi", &world.ops));
  CHECK(getenv("LAWS_FOLDER") != NULL);
  world_join(number_of(rank), all, getenv("LAWS_FOLDER"));
  world_run(&world, all, 0, barrier_once, NULL);
  return &world;
}

TEST(bytes_arrive_in_order) { law_bytes_arrive_in_order(launched(), 300000); }
TEST(no_wakeup_is_lost) { law_no_wakeup_is_lost(launched(), 300); }
TEST(one_silent_reader_blocks_no_other) { law_one_silent_reader_blocks_no_other(launched()); }
TEST(last_bytes_of_a_closed_peer_arrive) { law_last_bytes_of_a_closed_peer_arrive(launched()); }
TEST(a_stopped_peer_only_waits) { law_a_stopped_peer_only_waits(launched()); }
TEST(groups_do_not_mix) { law_groups_do_not_mix(launched()); }
TEST(one_rank_alone_works) { law_one_rank_alone_works(launched()); }
TEST(a_missing_rank_is_named) { law_a_missing_rank_is_named(launched()); }
TEST(another_job_is_not_met) { law_another_job_is_not_met(launched()); }
TEST(nothing_leaks) { law_nothing_leaks(launched()); }

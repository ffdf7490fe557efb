/* SPDX-License-Identifier: Apache-2.0 */
/* One rank: a process that lives through many rounds, unless it is killed. */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../descriptors.h"
#include "base/clock.h"
#include "chaos.h"

static void note_end(chaos_board *board, pith_status status) {
  board->ended = pith__now();
  board->status = (int)status;
  snprintf(board->text, sizeof board->text, "%s", status == PITH_OK ? "" : pith_error());
}

static pith_status create(const chaos_round *round, int rank, int has_network, pith_comm **comm) {
  pith_config config = PITH_CONFIG_INIT;
  char host[32];
  int in_shm = strcmp(round->transport, "shm") == 0;
  snprintf(host, sizeof host, "chaos%d", round->host[rank]);
  config.rank = rank, config.ranks = round->ranks;
  config.host = round->address, config.port = round->port;
  config.transport = round->transport;
  config.interface = has_network && !in_shm ? "link0" : NULL;
  config.host_id = host;
  config.secret = round->has_secret ? "a secret of all ranks" : "";
  config.timeout = round->timeout;
  return pith_comm_create(&config, comm);
}

static pith_status work(const chaos_round *round, pith_comm *comm, chaos_board *board) {
  chaos_worker *worker;
  pith_status status = chaos_worker_create(round, comm, board, &worker);
  for (int i = 0; i < round->operations && status == PITH_OK; i++) {
    status = chaos_operate(worker, i);
    if (status == PITH_OK) {
      atomic_store(&board->progress, i + 1);
    }
  }
  note_end(board, status);
  chaos_worker_destroy(worker);
  return status;
}

static void play(const chaos_round *round, int rank, int has_network, chaos_board *board) {
  pith_comm *comm = NULL;
  atomic_store(&board->phase, PHASE_CREATING);
  pith_status status = create(round, rank, has_network, &comm);
  if (status != PITH_OK) {
    note_end(board, status);
  } else {
    atomic_store(&board->phase, PHASE_WORKING);
    work(round, comm, board);
    atomic_store(&board->phase, PHASE_LEAVING);
    pith_comm_destroy(comm);
  }
}

_Noreturn void chaos_rank(int rank, int pipe, const int *networks, chaos_board *board) {
  chaos_round round;
  while (read(pipe, &round, sizeof round) == sizeof round) {
    if (networks && setns(networks[round.host[rank]], CLONE_NEWNET) != 0) {
      break;
    }
    int before = count_descriptors();
    play(&round, rank, networks != NULL, board);
    board->leaked = count_descriptors() - before;
    atomic_store(&board->phase, PHASE_DONE);
  }
  _exit(0);
}

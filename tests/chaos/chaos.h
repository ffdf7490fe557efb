/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chaos: groups of ranks that run random operations while ranks are killed, stopped, cut off and restarted.
 *
 *   chaos.c       the command: starts some groups side by side, shows progress, adds up
 *   group.c       one group: starts its ranks, does them harm, and judges what they report
 *   blame.c       which ranks an error names
 *   rank.c        one rank: makes a comm in every round, and runs operations until the last one or an error
 *   operations.c  the operations, and what each must give
 *
 * Time is cut into rounds. In a round the ranks make a comm, run a fixed number of operations, and leave. Everything a
 * round does follows from the seed, the number of the group and that of the round; only the moments are not exact.
 */
#ifndef PITH_CHAOS_H
#define PITH_CHAOS_H

#include <pith/comm.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/rng.h"

enum { RANKS_LEAST = 4, RANKS_MOST = 8, HOSTS = 4, OPERATIONS_MOST = 48, TEXT_SIZE = 1024 };

/* ---- Random numbers ---------------------------------------------------------------------------------------------- */

typedef struct chaos_random {
  uint64_t state;
} chaos_random;

static inline uint64_t chaos_draw(chaos_random *r) { return pith__mix64(r->state += 0x9e3779b97f4a7c15u); }
static inline uint64_t chaos_below(chaos_random *r, uint64_t limit) { return chaos_draw(r) % limit; }
static inline double chaos_unit(chaos_random *r) { return (double)(chaos_draw(r) >> 11) * 0x1p-53; }

/* ---- A round, as its ranks see it -------------------------------------------------------------------------------- */

typedef struct chaos_round {
  uint64_t number, seed;
  int ranks, operations;
  const char *transport;
  int has_secret;
  int host[RANKS_MOST]; /* of every rank */
  char address[24];     /* where rank 0 is */
  int port;
  double timeout;
} chaos_round;

typedef enum chaos_phase { PHASE_IDLE, PHASE_CREATING, PHASE_WORKING, PHASE_LEAVING, PHASE_DONE } chaos_phase;

/* What one rank tells, in memory that it shares with its group. */
typedef struct chaos_board {
  atomic_int phase, progress; /* progress: operations that are complete */
  int status;                 /* how the round ended */
  char text[TEXT_SIZE];       /* the error */
  double ended;               /* when */
  int wrong;                  /* results that were not as they must be */
  char wrong_text[TEXT_SIZE];
  int leaked;                       /* descriptors that were not there before the round */
  uint64_t digest[OPERATIONS_MOST]; /* of results that all ranks share; 0: of one that they do not */
} chaos_board;

/* Serves rounds that come over a pipe until it is closed. `networks`: the namespaces of the hosts; NULL: there are
 * none. */
_Noreturn void chaos_rank(int rank, int pipe, const int *networks, chaos_board *board);

/* ---- Operations -------------------------------------------------------------------------------------------------- */

typedef struct chaos_worker chaos_worker;

/* What a rank keeps for the operations of one round. */
pith_status chaos_worker_create(const chaos_round *round, pith_comm *comm, chaos_board *board, chaos_worker **worker);
void chaos_worker_destroy(chaos_worker *worker);

/* Runs one operation and checks its result. The status is that of the operation; a wrong result is noted on the board.
 */
pith_status chaos_operate(chaos_worker *worker, int number);

/* ---- Blame ------------------------------------------------------------------------------------------------------- */

typedef struct chaos_blame {
  unsigned named;     /* a bit for each rank that the error holds responsible */
  unsigned observers; /* who saw it */
} chaos_blame;

chaos_blame chaos_read_blame(const char *text);

/* ---- A group ----------------------------------------------------------------------------------------------------- */

typedef enum chaos_kind {
  FAULT_KILL,    /* SIGKILL */
  FAULT_RESTART, /* SIGKILL, and the rank is there again at once */
  FAULT_STOP,    /* SIGSTOP, and SIGCONT a while later */
  FAULT_CUT,     /* the host's link, both directions */
  FAULT_CUT_IN,
  FAULT_CUT_OUT,
  FAULT_SLOW, /* a rate near zero */
  FAULT_KINDS
} chaos_kind;

/* Over all groups, in memory that they share. */
typedef struct chaos_totals {
  atomic_long rounds, whole, formed, operations, errors;
  atomic_long faults, by_kind[FAULT_KINDS], by_phase[PHASE_DONE + 1];
  atomic_long wrong_sums, hangs, wrong_blames, wrong_errors, crashes, leaks; /* what must stay 0 */
} chaos_totals;

typedef struct chaos_options {
  uint64_t seed;
  long faults;
  double seconds, timeout;
  int groups, group; /* how many; which this is */
  long only;         /* a single round, over and over; -1: all */
  int has_network, verbose;
  double start;
} chaos_options;

/* Runs rounds until the faults of all groups together are enough. */
_Noreturn void chaos_group_run(const chaos_options *options, chaos_totals *totals);

const char *chaos_kind_name(chaos_kind kind);
long chaos_failures(const chaos_totals *totals);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Which algorithm an allreduce takes: what was asked for, or what costs least here. */
#ifndef PITH_COLLECTIVE_CHOOSE_H
#define PITH_COLLECTIVE_CHOOSE_H

#include <stdatomic.h>

#include "collective/cost.h"
#include "collective/job.h"

#define PITH_EXPLAINED_MOST 64

/* What algorithms are chosen by. Threads may share one. */
typedef struct pith_chooser {
  pith_layout *hosts; /* which ranks share a host */
  int rack_hosts;     /* hosts of a rack, in their order; 0: not known */
  pith_cost_model cost;
  pith_algorithm wish;                             /* of the user, for all operations, where it suits */
  _Atomic uint64_t explained[PITH_EXPLAINED_MOST]; /* kinds of operations that the log has a line for */
} pith_chooser;

/* The algorithm of that name, or an error that lists all. */
pith_status pith__algorithm_parse(const char *name, pith_algorithm *algorithm);

/* Whether an allreduce may take the algorithm without being asked to. */
int pith__allreduce_may_take(const pith_chooser *chooser, const pith_job *job, pith_algorithm algorithm);

/* What an allreduce would take by itself, and the seconds that the model expects. */
pith_algorithm pith__allreduce_estimate(const pith_chooser *chooser, const pith_job *job, double *seconds);

/* Writes the schedule of an allreduce. `asked` names an algorithm, which must suit the codec; NULL: the cheapest, or
 * the wish where it suits. */
pith_status pith__allreduce(pith_job *job, pith_chooser *chooser, const char *asked, pith_algorithm *chosen);

#endif

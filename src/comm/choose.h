/* Which algorithm an allreduce takes. */
#ifndef PITH_COMM_CHOOSE_H
#define PITH_COMM_CHOOSE_H

#include "collective/cost.h"
#include "comm/comm.h"

/* The algorithm for a job, by name or by cost. `asked` is PITH_ALGORITHM_AUTO, or must suit the codec unless it is the
 * wish of the whole comm, which yields where it does not suit. */
pith_status pith__choose(pith_comm *comm, const pith_job *job, pith_algorithm asked, int is_wish,
                         pith_algorithm *chosen);

/* The algorithm of that name, or an error that lists all. */
pith_status pith__algorithm_parse(const char *name, pith_algorithm *algorithm);

#endif

/* Short allreduces of one host, without a schedule. */
#ifndef PITH_ENGINE_BRIEF_H
#define PITH_ENGINE_BRIEF_H

#include "engine/comm.h"

/* Does an allreduce whose arguments were checked, if it is short enough and nobody asks for more than its result; else
 * returns 0 and has done nothing. Ranks that go this way understand those that do not. */
int pith__brief_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, const pith_call *call,
                          pith_status *status);

#endif

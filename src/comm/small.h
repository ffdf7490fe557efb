/* Small allreduces of one host, without a schedule. */
#ifndef PITH_COMM_SMALL_H
#define PITH_COMM_SMALL_H

#include "comm/comm.h"

/* Does an allreduce whose arguments were checked, if it is small enough and the caller asks for no more than its
 * result; else returns 0 and has done nothing. Ranks that go this way understand those that do not. */
int pith__small_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, const pith_call *call,
                          pith_status *status);

#endif

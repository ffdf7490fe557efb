/* Making operations and handing them to the comm: what all public calls share. */
#ifndef PITH_COMM_SUBMIT_H
#define PITH_COMM_SUBMIT_H

#include "comm/comm.h"

/* Not NULL, and not the copy of a forked child. */
pith_status pith__check_comm(const pith_comm *comm);
/* The same, and a rank of it. */
pith_status pith__check_rank(const pith_comm *comm, int rank, const char *what);
pith_status pith__check_span(const void *data, size_t n, pith_dtype dtype);
#define PITH_NOWHERE SIZE_MAX
/* Two tensors of an operation, of which one may lie in the other only at that place (in values), if they overlap. */
pith_status pith__check_overlap(pith_cspan inner, pith_cspan outer, size_t place);

/* A new operation with its tensors; nothing is known to the comm yet. */
pith_status pith__operation_make(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                 pith_reduce_op reduce, const pith_call *call, pith_operation **made);
/* The same for layers joined to one tensor, or (ROUNDS codecs) to one exchange: src and dst then have their values in
 * all, and the members live as long as the operation. */
pith_status pith__operation_make_joined(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                        pith_reduce_op reduce, const pith_call *call, const pith_member *members,
                                        size_t count, pith_operation **made);
void pith__operation_release(pith_operation *op);

/* Takes the operation over, whatever comes of it. `written` is the status of its schedule. */
pith_status pith__operation_submit(pith_operation *op, pith_status written, pith_request **request);

/* ---- operations.c ------------------------------------------------------------------------------------------------ */

/* Writes the schedule of an allreduce: `asked` names an algorithm, or is NULL. */
pith_status pith__schedule_allreduce(pith_operation *op, const char *asked);

/* pith_all_to_all() for values of a step, seed and layer, which all ranks must have in common; the call has no codec.
 */
pith_status pith__all_to_all_of(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst,
                                const size_t *receive, const pith_call *call, pith_request **request);

#endif

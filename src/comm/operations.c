/* SPDX-License-Identifier: Apache-2.0 */
/* The public operations: arguments are checked, a schedule is written, and the operation goes to the comm. */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "comm/comm.h"

/* ---- Checks ------------------------------------------------------------------------------------------------------ */

static pith_cspan readable(pith_span span) { return (pith_cspan){span.data, span.n, span.dtype}; }

/* Both tensors of an operation, wherever they lie. */
static pith_status check_spans(pith_cspan src, pith_span dst) {
  PITH_TRY(pith__check_span(src.data, src.n, src.dtype));
  PITH_TRY(pith__check_span(dst.data, dst.n, dst.dtype));
  PITH_REQUIRE(src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src has %s values, dst %s", pith_dtype_name(src.dtype),
               pith_dtype_name(dst.dtype));
  return PITH_OK;
}

/* And where all values of one are reduced to the other: apart, or in place. */
static pith_status check_alike(pith_cspan src, pith_span dst) {
  PITH_TRY(check_spans(src, dst));
  PITH_REQUIRE(src.n == dst.n, PITH_ERR_ARGUMENT, "src has %zu values, dst %zu", src.n, dst.n);
  return pith__check_overlap(src, readable(dst), 0);
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

pith_status pith__schedule_allreduce(pith_operation *op, const char *asked) {
  pith_algorithm chosen;
  PITH_TRY(pith__allreduce(&op->job, &op->comm->chooser, asked, &chosen));
  op->frame.flags |= (uint32_t)chosen << 16;
  return PITH_OK;
}

pith_status pith_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, const pith_call *call,
                           pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  PITH_TRY(check_alike(src, dst));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  pith_status status;
  if (!request && pith__small_allreduce(comm, src, dst, reduce, call, &status)) {
    return status;
  }
  PITH_TRY(pith__operation_make(comm, PITH_OP_ALLREDUCE, src, dst, reduce, call, &op));
  return pith__operation_submit(op, pith__schedule_allreduce(op, call ? call->algorithm : NULL), request);
}

/* The counts of all ranks, the caller's or `each` for all; lives with the operation. */
static pith_status copy_counts(pith_operation *op, const size_t *counts, size_t each, size_t total) {
  size_t sum = 0;
  op->counts = calloc((size_t)op->job.ranks, sizeof *op->counts);
  PITH_REQUIRE(op->counts, PITH_ERR_MEMORY, "no memory for an operation");
  for (int p = 0; p < op->job.ranks; p++) {
    op->counts[p] = counts ? counts[p] : each;
    PITH_REQUIRE(op->counts[p] <= total - sum, PITH_ERR_ARGUMENT,
                 "the counts of %d ranks add up to more than %zu values", op->job.ranks, total);
    sum += op->counts[p];
  }
  PITH_REQUIRE(sum == total, PITH_ERR_ARGUMENT, "the counts of %d ranks add up to %zu values, not %zu", op->job.ranks,
               sum, total);
  return PITH_OK;
}

/* The same where all values, `whole`, are of all ranks and `own` is this rank's part of them: it has as many values as
 * its count says, and if both overlap, it lies at its place. */
static pith_status check_parts(pith_operation *op, const size_t *counts, pith_cspan own, pith_cspan whole,
                               const char *name) {
  PITH_TRY(copy_counts(op, counts, own.n, whole.n));
  PITH_REQUIRE(op->counts[op->job.rank] == own.n, PITH_ERR_ARGUMENT, "%s has %zu values, the counts say %zu", name,
               own.n, op->counts[op->job.rank]);
  return pith__check_overlap(own, whole, pith__sum(op->counts, op->job.rank));
}

static pith_status check_chunked(const pith_codec *codec, const char *why) {
  PITH_REQUIRE(!codec || (codec->caps & PITH_CAP_CHUNKED), PITH_ERR_UNSUPPORTED, "%s %s", codec->spec, why);
  return PITH_OK;
}

pith_status pith_reduce_scatter(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts,
                                pith_reduce_op reduce, const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  PITH_TRY(check_spans(src, dst));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  PITH_TRY(pith__operation_make(comm, PITH_OP_REDUCE_SCATTER, src, dst, reduce, call, &op));
  pith_status status = check_parts(op, counts, readable(dst), src, "dst");
  status =
      status == PITH_OK ? check_chunked(op->job.codec, "needs the whole tensor and cannot reduce parts of it") : status;
  return pith__operation_submit(op, status == PITH_OK ? pith__reduce_scatter(&op->job, op->counts) : status, request);
}

pith_status pith_reduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op reduce, int root,
                        const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_rank(comm, root, "root"));
  PITH_TRY(pith__check_span(src.data, src.n, src.dtype));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  PITH_TRY(comm->rank == root ? check_alike(src, dst) : PITH_OK);
  PITH_TRY(pith__operation_make(comm, PITH_OP_REDUCE, src, dst, reduce, call, &op));
  op->frame.flags |= (uint32_t)root << 16;
  pith_status status = check_chunked(op->job.codec, "cannot be reduced to one rank");
  return pith__operation_submit(op, status == PITH_OK ? pith__reduce_to(&op->job, root) : status, request);
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

pith_status pith_all_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, const pith_call *call,
                            pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  PITH_TRY(check_spans(src, dst));
  PITH_TRY(pith__operation_make(comm, PITH_OP_ALL_GATHER, src, dst, PITH_SUM, call, &op));
  op->frame.count = dst.n; /* src may differ between ranks */
  pith_status status = check_parts(op, counts, src, readable(dst), "src");
  return pith__operation_submit(op, status == PITH_OK ? pith__all_gather(&op->job, op->counts) : status, request);
}

pith_status pith_broadcast(pith_comm *comm, pith_span tensor, int root, const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_rank(comm, root, "root"));
  PITH_TRY(pith__check_span(tensor.data, tensor.n, tensor.dtype));
  PITH_TRY(pith__operation_make(comm, PITH_OP_BROADCAST, readable(tensor), tensor, PITH_SUM, call, &op));
  op->frame.flags |= (uint32_t)root << 16;
  return pith__operation_submit(op, comm->ranks == 1 ? PITH_OK : pith__broadcast(&op->job, root), request);
}

static pith_status schedule_all_to_all(pith_operation *op, const size_t *send, const size_t *receive) {
  size_t ranks = (size_t)op->job.ranks;
  PITH_TRY(copy_counts(op, send, op->job.src.n / ranks, op->job.src.n));
  PITH_FREED size_t *sent = op->counts;
  PITH_TRY(copy_counts(op, receive, op->job.dst.n / ranks, op->job.dst.n));
  return pith__all_to_all(&op->job, sent, op->counts);
}

pith_status pith__all_to_all_of(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst,
                                const size_t *receive, const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  PITH_TRY(check_spans(src, dst));
  PITH_TRY(pith__check_overlap(readable(dst), src, PITH_NOWHERE));
  PITH_TRY(pith__operation_make(comm, PITH_OP_ALL_TO_ALL, src, dst, PITH_SUM, call, &op));
  op->frame.count = 0; /* sizes differ between ranks */
  return pith__operation_submit(op, schedule_all_to_all(op, send, receive), request);
}

pith_status pith_all_to_all(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst, const size_t *receive,
                            pith_request **request) {
  return pith__all_to_all_of(comm, src, send, dst, receive, NULL, request);
}

pith_status pith_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, int root,
                        pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_rank(comm, root, "root"));
  PITH_TRY(comm->rank == root ? check_spans(src, dst) : pith__check_span(src.data, src.n, src.dtype));
  PITH_TRY(pith__operation_make(comm, PITH_OP_GATHER, src, dst, PITH_SUM, NULL, &op));
  op->frame.count = 0;
  op->frame.flags |= (uint32_t)root << 16;
  pith_status status = comm->rank == root ? check_parts(op, counts, src, readable(dst), "src") : PITH_OK;
  return pith__operation_submit(op, status == PITH_OK ? pith__gather(&op->job, op->counts, root) : status, request);
}

pith_status pith_scatter(pith_comm *comm, pith_cspan src, const size_t *counts, pith_span dst, int root,
                         pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_rank(comm, root, "root"));
  PITH_TRY(comm->rank == root ? check_spans(src, dst) : pith__check_span(dst.data, dst.n, dst.dtype));
  src.dtype = dst.dtype; /* of other ranks than the root it may be anything */
  PITH_TRY(pith__operation_make(comm, PITH_OP_SCATTER, src, dst, PITH_SUM, NULL, &op));
  op->frame.count = 0;
  op->frame.flags |= (uint32_t)root << 16;
  pith_status status = comm->rank == root ? check_parts(op, counts, readable(dst), src, "dst") : PITH_OK;
  return pith__operation_submit(op, status == PITH_OK ? pith__scatter(&op->job, op->counts, root) : status, request);
}

pith_status pith_barrier(pith_comm *comm, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  PITH_TRY(pith__operation_make(comm, PITH_OP_BARRIER, (pith_cspan){0}, (pith_span){0}, PITH_SUM, NULL, &op));
  return pith__operation_submit(op, pith__barrier(&op->job), request);
}

/* ---- Between two ranks ------------------------------------------------------------------------------------------- */

static pith_status point(pith_comm *comm, void *data, size_t n, pith_dtype dtype, int peer, uint32_t tag,
                         pith_task_kind kind, pith_request **request) {
  pith_operation *op;
  PITH_TRY(pith__check_comm(comm));
  if (peer == PITH_ANY_RANK && kind == PITH_TASK_RECEIVE) {
    PITH_REQUIRE(comm->ranks > 1, PITH_ERR_ARGUMENT, "there is no other rank to receive from");
  } else {
    PITH_TRY(pith__check_rank(comm, peer, "peer"));
  }
  PITH_REQUIRE(peer != comm->rank, PITH_ERR_ARGUMENT, "rank %d cannot exchange messages with itself", peer);
  PITH_TRY(pith__check_span(data, n, dtype));
  PITH_TRY(pith__operation_make(comm, PITH_OP_POINT, (pith_cspan){data, n, dtype}, (pith_span){data, n, dtype},
                                PITH_SUM, NULL, &op));
  pith_schedule *s = &op->job.schedule;
  pith_piece *piece = pith__schedule_piece_over(s, data, n * pith_dtype_size(dtype));
  pith__schedule_add(s, (pith_task){.kind = kind, .peer = peer, .tag = tag, .piece = piece});
  return pith__operation_submit(op, pith__schedule_finished(&op->job), request);
}

pith_status pith_send(pith_comm *comm, pith_cspan src, int peer, uint32_t tag, pith_request **request) {
  return point(comm, (void *)(uintptr_t)src.data, src.n, src.dtype, peer, tag, PITH_TASK_SEND, request);
}

pith_status pith_recv(pith_comm *comm, pith_span dst, int peer, uint32_t tag, pith_request **request) {
  return point(comm, dst.data, dst.n, dst.dtype, peer, tag, PITH_TASK_RECEIVE, request);
}

/* The public operations: arguments are checked, a schedule is written, and the operation goes to the comm. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/comm.h"
#include "memory/memory.h"

#define NETWORK_MESSAGE ((size_t)32 << 10) /* bytes of uncompressed values */

/* ---- Encoding: through the memory, with scratch of the operation ------------------------------------------------- */

typedef struct operation_scratch {
  pith_feed_scratch feed;
} operation_scratch;

static pith_operation *operation_of(pith_job *job) { return (pith_operation *)((char *)job - offsetof(pith_operation, job)); }

static pith_status encode_values(pith_job *job, size_t first, size_t n, pith_out *out) {
  const operation_scratch *scratch = operation_of(job)->scratch;
  size_t width = pith_dtype_size(job->src.dtype);
  pith_cspan values = {(const uint8_t *)job->src.data + first * width, n, job->src.dtype};
  pith_ctx ctx = job->ctx;
  ctx.rank = (uint32_t)job->rank;
  ctx.ranks = (uint32_t)job->ranks;
  ctx.offset = first;
  return pith__feed_encode(job->codec, job->state, values, out, &scratch->feed, &ctx);
}

/* One allocation: the pointers, then what they point at. */
static pith_status take_scratch(pith_operation *op) {
  pith_arena arena = pith__arena_over(NULL, 0);
  operation_scratch measured;
  pith__feed_take_scratch(op->job.codec, op->job.src.n, &arena, &measured.feed);
  size_t need = pith__arena_need(&arena);
  operation_scratch *scratch = need < SIZE_MAX - sizeof *scratch ? malloc(sizeof *scratch + need) : NULL;
  PITH_REQUIRE(scratch, PITH_ERR_MEMORY, "no memory for %zu bytes of scratch", need);
  arena = pith__arena_over(scratch + 1, need);
  pith__feed_take_scratch(op->job.codec, op->job.src.n, &arena, &scratch->feed);
  op->scratch = scratch;
  op->job.chain = scratch->feed.chain;
  op->job.encode = encode_values;
  return PITH_OK;
}

/* ---- Making an operation ----------------------------------------------------------------------------------------- */

static pith_status check_comm(const pith_comm *comm) {
  PITH_REQUIRE(comm, PITH_ERR_ARGUMENT, "comm must not be NULL");
  return PITH_OK;
}

static pith_status check_rank(const pith_comm *comm, int rank, const char *what) {
  PITH_REQUIRE(rank >= 0 && rank < comm->ranks, PITH_ERR_ARGUMENT, "%s %d is not one of %d ranks", what, rank, comm->ranks);
  return PITH_OK;
}

static pith_status check_span(const void *data, size_t n, pith_dtype dtype) {
  PITH_REQUIRE(pith_dtype_size(dtype) > 0, PITH_ERR_ARGUMENT, "unknown type %d", (int)dtype);
  PITH_REQUIRE(data || n == 0, PITH_ERR_ARGUMENT, "%zu values at NULL", n);
  PITH_REQUIRE(n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT, "%zu values do not fit any memory", n);
  return PITH_OK;
}

static pith_status check_codec(const pith_operation *op, const pith_call *call) {
  const pith_codec *codec = call->codec;
  pith_dtype dtype = op->job.src.dtype;
  PITH_REQUIRE(dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16, PITH_ERR_ARGUMENT, "%s: %s values cannot be compressed",
               codec->spec, pith_dtype_name(dtype));
  PITH_REQUIRE(op->job.reduce == PITH_SUM || op->job.reduce == PITH_MEAN, PITH_ERR_ARGUMENT, "%s: only sums and means are compressed",
               codec->spec);
  pith_ctx whole = call->ctx;
  whole.offset = 0;
  return pith__state_fits(codec, call->state, op->job.src.n, &whole);
}

static pith_status read_call(pith_operation *op, const pith_call *call) {
  op->job.ctx = (pith_ctx)PITH_CTX_INIT;
  op->job.ctx.gamma = 1.0f;
  if (!call) {
    return PITH_OK;
  }
  PITH_REQUIRE(call->size == sizeof *call, PITH_ERR_ARGUMENT, "pith_call.size is %zu: start from PITH_CALL_INIT", call->size);
  op->job.ctx = call->ctx;
  op->job.ctx.gamma = call->ctx.gamma != 0 ? call->ctx.gamma : 1.0f;
  if (call->codec) {
    PITH_TRY(check_codec(op, call));
    op->job.codec = call->codec;
    op->job.state = call->state;
    op->job.ctx.rows = call->state ? call->state->rows : call->ctx.rows;
    PITH_TRY(take_scratch(op));
  }
  return PITH_OK;
}

static void release(pith_operation *op) {
  pith__schedule_fini(&op->job.schedule);
  free(op->scratch);
  free(op->counts);
  free(op); /* the request it is the only member of */
}

/* On a network short messages keep the streams that share a link abreast; in memory long ones cost less. Either all ranks have
 * a link over a network, or none: they agree. */
static size_t message_of(const pith_comm *comm) {
  for (int p = 0; p < comm->ranks; p++) {
    if (comm->link[p].transport && comm->link[p].checked) {
      return NETWORK_MESSAGE;
    }
  }
  return comm->chunk;
}

/* A new operation with its tensors; nothing is known to the comm yet. */
static pith_status make(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst, pith_reduce reduce,
                        const pith_call *call, pith_operation **made) {
  pith_operation *op = calloc(1, sizeof(pith_request));
  PITH_REQUIRE(op, PITH_ERR_MEMORY, "no memory for an operation");
  op->comm = comm;
  op->job = (pith_job){.rank = comm->rank, .ranks = comm->ranks, .src = src, .dst = dst, .reduce = reduce, .chunk = comm->chunk};
  op->job.schedule.pool = &comm->pool;
  op->job.message = message_of(comm);
  pith_status status = read_call(op, call);
  if (status != PITH_OK) {
    release(op);
    return status;
  }
  const pith_codec *codec = op->job.codec;
  op->frame = (pith_frame){.magic = PITH_FRAME_MAGIC,
                           .version = PITH_FRAME_VERSION,
                           .kind = PITH_FRAME_DATA,
                           .operation = (uint16_t)kind,
                           .flags = (uint32_t)src.dtype << 8 | (uint32_t)reduce,
                           .layer = op->job.ctx.layer,
                           .codec = codec ? pith_codec_wire_id(codec) : 0,
                           .fingerprint = codec ? codec->fingerprint : 0,
                           .count = src.n};
  *made = op;
  return PITH_OK;
}

/* ---- Handing it to the comm -------------------------------------------------------------------------------------- */

static pith_status refuse_failed(const pith_comm *comm) {
  return pith_fail(comm->failed, "%s", comm->failure);
}

static void remove_running(pith_comm *comm, pith_operation *op) {
  for (pith_operation **at = &comm->running; *at; at = &(*at)->next) {
    if (*at == op) {
      *at = op->next;
      if (!*at) {
        comm->running_end = at;
      }
      return;
    }
  }
}

/* With the mutex held. */
static pith_status start(pith_comm *comm, pith_operation *op) {
  if (comm->failed != PITH_OK) {
    return refuse_failed(comm);
  }
  if (op->frame.operation != PITH_OP_POINT) {
    op->frame.sequence = ++comm->sequence;
  }
  *comm->running_end = op;
  comm->running_end = &op->next;
  comm->stats.operations++;
  comm->stats.raw_bytes += op->job.src.n * pith_dtype_size(op->job.src.dtype);
  for (int p = 0; p < comm->ranks && comm->failed == PITH_OK; p++) {
    pith__link_check_early(&comm->link[p], op);
  }
  if (comm->failed == PITH_OK) {
    pith__operation_start(op);
  }
  return PITH_OK;
}

static pith_status wait_for(pith_operation *op) {
  pith_comm *comm = op->comm;
  pith__comm_drive(comm, op);
  remove_running(comm, op);
  if (comm->failed != PITH_OK) {
    pith__comm_flush(comm, comm->failed_at + 0.2); /* the others should hear why */
  }
  return op->status == PITH_OK ? PITH_OK : refuse_failed(comm);
}

/* Takes the operation over, whatever comes of it. `written` is the status of its schedule. */
static pith_status submit(pith_operation *op, pith_status written, pith_request **request) {
  pith_comm *comm = op->comm;
  pith_status status = written;
  if (status == PITH_OK) {
    op->ready = pith__schedule_take(&op->job.schedule, op->job.schedule.tasks + 1, sizeof *op->ready);
    status = op->ready ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory for an operation");
  }
  if (status != PITH_OK) {
    release(op);
    return status;
  }
  pith__comm_lock(comm);
  status = request ? pith__comm_start_thread(comm) : PITH_OK;
  if (status == PITH_OK) {
    status = start(comm, op);
  }
  if (status == PITH_OK && request) {
    pith__comm_wake(comm);
  } else if (status == PITH_OK) {
    status = wait_for(op);
  }
  pthread_mutex_unlock(&comm->mutex);
  if (request && status == PITH_OK) {
    *request = (pith_request *)op;
  } else {
    release(op);
  }
  return status;
}

pith_status pith_wait(pith_request *request) {
  PITH_REQUIRE(request, PITH_ERR_ARGUMENT, "pith_wait: request must not be NULL");
  pith_operation *op = &request->operation;
  pith_comm *comm = op->comm;
  pith_status status;
  if (comm) {
    pith__comm_lock(comm);
    status = wait_for(op);
    pthread_mutex_unlock(&comm->mutex);
  } else {
    status = op->status == PITH_OK ? PITH_OK : pith_fail(op->status, "the comm was destroyed while the operation was under way");
  }
  release(op);
  return status;
}

pith_status pith_test(pith_request *request, int *done) {
  PITH_REQUIRE(request && done, PITH_ERR_ARGUMENT, "pith_test: request and done must not be NULL");
  pith_comm *comm = request->operation.comm;
  if (!comm) { /* destroyed */
    *done = 1;
    return PITH_OK;
  }
  pith__comm_lock(comm);
  *done = request->operation.done;
  pthread_mutex_unlock(&comm->mutex);
  return PITH_OK;
}

/* ---- Reductions -------------------------------------------------------------------------------------------------- */

/* One rank: nothing travels and nothing is lost. */
static pith_status work_copy(pith_job *job, const pith_task *task) {
  (void)task;
  const void *source = job->src.data;
  if (job->codec && (job->codec->caps & PITH_CAP_VOTE)) {
    pith_ctx ctx = PITH_CTX_INIT;
    memmove(job->dst.data, source, job->src.n * pith_dtype_size(job->src.dtype));
    return pith_aggregate(job->codec, job->dst, &ctx);
  }
  memmove(job->dst.data, source, job->dst.n * pith_dtype_size(job->dst.dtype));
  return PITH_OK;
}

static pith_status schedule_copy(pith_job *job) {
  if (job->src.n) {
    pith__schedule_add(&job->schedule, (pith_task){.kind = PITH_TASK_WORK, .work = work_copy});
  }
  return pith__schedule_finished(job);
}

static pith_status schedule_allreduce(pith_job *job) {
  if (job->ranks == 1) {
    return schedule_copy(job);
  }
  if (!job->codec) {
    return pith__allreduce_plain(job);
  }
  if ((job->codec->caps & PITH_CAP_ROUNDS) && job->state) {
    pith_ctx ctx = job->ctx;
    ctx.ranks = (uint32_t)job->ranks;
    PITH_TRY(job->codec->ops->admit ? job->codec->ops->admit(job->codec->args, &ctx) : PITH_OK);
    return pith__allreduce_rounds(job);
  }
  return job->codec->caps & PITH_CAP_CHUNKED ? pith__allreduce_blocks(job) : pith__allreduce_gather(job);
}

pith_status pith_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce reduce, const pith_call *call,
                           pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  PITH_REQUIRE(src.n == dst.n && src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src has %zu %s values, dst %zu %s", src.n,
               pith_dtype_name(src.dtype), dst.n, pith_dtype_name(dst.dtype));
  PITH_TRY(make(comm, PITH_OP_ALLREDUCE, src, dst, reduce, call, &op));
  return submit(op, schedule_allreduce(&op->job), request);
}

/* The counts of all ranks, the caller's or `each` for all; lives with the operation. */
static pith_status copy_counts(pith_operation *op, const size_t *counts, size_t each, size_t total) {
  size_t sum = 0;
  op->counts = malloc((size_t)op->job.ranks * sizeof *op->counts);
  PITH_REQUIRE(op->counts, PITH_ERR_MEMORY, "no memory for an operation");
  for (int p = 0; p < op->job.ranks; p++) {
    op->counts[p] = counts ? counts[p] : each;
    PITH_REQUIRE(op->counts[p] <= total - sum, PITH_ERR_ARGUMENT, "the counts of %d ranks add up to more than %zu values",
                 op->job.ranks, total);
    sum += op->counts[p];
  }
  PITH_REQUIRE(sum == total, PITH_ERR_ARGUMENT, "the counts of %d ranks add up to %zu values, not %zu", op->job.ranks, sum, total);
  return PITH_OK;
}

static pith_status schedule_reduce_scatter(pith_operation *op, const size_t *counts) {
  pith_job *job = &op->job;
  PITH_TRY(copy_counts(op, counts, job->dst.n, job->src.n));
  PITH_REQUIRE(op->counts[job->rank] == job->dst.n, PITH_ERR_ARGUMENT, "dst has %zu values, the counts say %zu", job->dst.n,
               op->counts[job->rank]);
  PITH_REQUIRE(!job->codec || (job->codec->caps & PITH_CAP_CHUNKED), PITH_ERR_UNSUPPORTED,
               "%s needs the whole tensor and cannot reduce parts of it", job->codec->spec);
  return job->ranks == 1 ? schedule_copy(job) : pith__reduce_scatter(job, op->counts);
}

pith_status pith_reduce_scatter(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, pith_reduce reduce,
                                const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  PITH_REQUIRE(src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src and dst have different types");
  PITH_TRY(make(comm, PITH_OP_REDUCE_SCATTER, src, dst, reduce, call, &op));
  return submit(op, schedule_reduce_scatter(op, counts), request);
}

static pith_status schedule_reduce(pith_job *job, int root) {
  PITH_REQUIRE(!job->codec || (job->codec->caps & PITH_CAP_CHUNKED), PITH_ERR_UNSUPPORTED, "%s cannot be reduced to one rank",
               job->codec->spec);
  return job->ranks == 1 ? schedule_copy(job) : pith__reduce_to(job, root);
}

pith_status pith_reduce_to(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce reduce, int root, const pith_call *call,
                           pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_rank(comm, root, "root"));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(pith__reduce_check(src.dtype, reduce));
  if (comm->rank == root) {
    PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
    PITH_REQUIRE(src.n == dst.n && src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src and dst differ in size or type");
  }
  PITH_TRY(make(comm, PITH_OP_REDUCE, src, dst, reduce, call, &op));
  op->frame.flags |= (uint32_t)root << 16;
  return submit(op, schedule_reduce(&op->job, root), request);
}

/* ---- Moves ------------------------------------------------------------------------------------------------------- */

static pith_status schedule_all_gather(pith_operation *op, const size_t *counts) {
  PITH_TRY(copy_counts(op, counts, op->job.src.n, op->job.dst.n));
  PITH_REQUIRE(op->counts[op->job.rank] == op->job.src.n, PITH_ERR_ARGUMENT, "src has %zu values, the counts say %zu", op->job.src.n,
               op->counts[op->job.rank]);
  return op->job.ranks == 1 ? schedule_copy(&op->job) : pith__all_gather(&op->job, op->counts);
}

pith_status pith_all_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, const pith_call *call,
                            pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
  PITH_REQUIRE(src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src and dst have different types");
  PITH_TRY(make(comm, PITH_OP_ALL_GATHER, src, dst, PITH_SUM, call, &op));
  op->frame.count = dst.n; /* src may differ between ranks */
  return submit(op, schedule_all_gather(op, counts), request);
}

static pith_status schedule_broadcast(pith_job *job, int root) {
  return job->ranks == 1 ? pith__schedule_finished(job) : pith__broadcast(job, root);
}

pith_status pith_broadcast(pith_comm *comm, pith_span tensor, int root, const pith_call *call, pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_rank(comm, root, "root"));
  PITH_TRY(check_span(tensor.data, tensor.n, tensor.dtype));
  pith_cspan src = {tensor.data, tensor.n, tensor.dtype};
  PITH_TRY(make(comm, PITH_OP_BROADCAST, src, tensor, PITH_SUM, call, &op));
  op->frame.flags |= (uint32_t)root << 16;
  return submit(op, schedule_broadcast(&op->job, root), request);
}

static pith_status schedule_all_to_all(pith_operation *op, const size_t *send, const size_t *receive) {
  size_t ranks = (size_t)op->job.ranks, *both = malloc(2 * ranks * sizeof *both);
  PITH_REQUIRE(both, PITH_ERR_MEMORY, "no memory for an operation");
  pith_status status = copy_counts(op, send, op->job.src.n / ranks, op->job.src.n);
  if (status == PITH_OK) {
    memcpy(both, op->counts, ranks * sizeof *both);
    free(op->counts);
    status = copy_counts(op, receive, op->job.dst.n / ranks, op->job.dst.n);
  }
  if (status == PITH_OK) {
    memcpy(both + ranks, op->counts, ranks * sizeof *both);
    status = pith__all_to_all(&op->job, both, both + ranks);
  }
  free(both);
  return status;
}

pith_status pith_all_to_all(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst, const size_t *receive,
                            pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
  PITH_REQUIRE(src.dtype == dst.dtype, PITH_ERR_ARGUMENT, "src and dst have different types");
  PITH_TRY(make(comm, PITH_OP_ALL_TO_ALL, src, dst, PITH_SUM, NULL, &op));
  op->frame.count = 0; /* sizes differ between ranks */
  return submit(op, schedule_all_to_all(op, send, receive), request);
}

static pith_status schedule_gather(pith_operation *op, const size_t *counts, int root) {
  if (op->job.rank == root) {
    PITH_TRY(copy_counts(op, counts, op->job.src.n, op->job.dst.n));
  }
  return pith__gather(&op->job, op->counts, root);
}

pith_status pith_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, int root, pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_rank(comm, root, "root"));
  PITH_TRY(check_span(src.data, src.n, src.dtype));
  PITH_TRY(make(comm, PITH_OP_GATHER, src, dst, PITH_SUM, NULL, &op));
  op->frame.count = 0;
  op->frame.flags |= (uint32_t)root << 16;
  return submit(op, schedule_gather(op, counts, root), request);
}

static pith_status schedule_scatter(pith_operation *op, const size_t *counts, int root) {
  if (op->job.rank == root) {
    PITH_TRY(copy_counts(op, counts, op->job.dst.n, op->job.src.n));
  }
  return pith__scatter(&op->job, op->counts, root);
}

pith_status pith_scatter(pith_comm *comm, pith_cspan src, const size_t *counts, pith_span dst, int root, pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_rank(comm, root, "root"));
  PITH_TRY(check_span(dst.data, dst.n, dst.dtype));
  src.dtype = dst.dtype;
  PITH_TRY(make(comm, PITH_OP_SCATTER, src, dst, PITH_SUM, NULL, &op));
  op->frame.count = 0;
  op->frame.flags |= (uint32_t)root << 16;
  return submit(op, schedule_scatter(op, counts, root), request);
}

pith_status pith_barrier(pith_comm *comm, pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(make(comm, PITH_OP_BARRIER, (pith_cspan){0}, (pith_span){0}, PITH_SUM, NULL, &op));
  return submit(op, pith__barrier(&op->job), request);
}

/* ---- Between two ranks ------------------------------------------------------------------------------------------- */

static pith_status point(pith_comm *comm, void *data, size_t n, pith_dtype dtype, int peer, uint32_t tag, pith_task_kind kind,
                         pith_request **request) {
  pith_operation *op;
  PITH_TRY(check_comm(comm));
  PITH_TRY(check_rank(comm, peer, "peer"));
  PITH_REQUIRE(peer != comm->rank, PITH_ERR_ARGUMENT, "rank %d cannot exchange messages with itself", peer);
  PITH_TRY(check_span(data, n, dtype));
  PITH_TRY(make(comm, PITH_OP_POINT, (pith_cspan){data, n, dtype}, (pith_span){data, n, dtype}, PITH_SUM, NULL, &op));
  pith_schedule *s = &op->job.schedule;
  pith_piece *piece = pith__schedule_piece_over(s, data, n * pith_dtype_size(dtype));
  pith__schedule_add(s, (pith_task){.kind = kind, .peer = peer, .tag = tag, .piece = piece});
  return submit(op, pith__schedule_finished(&op->job), request);
}

pith_status pith_send(pith_comm *comm, pith_cspan src, int peer, uint32_t tag, pith_request **request) {
  return point(comm, (void *)(uintptr_t)src.data, src.n, src.dtype, peer, tag, PITH_TASK_SEND, request);
}

pith_status pith_receive(pith_comm *comm, pith_span dst, int peer, uint32_t tag, pith_request **request) {
  return point(comm, dst.data, dst.n, dst.dtype, peer, tag, PITH_TASK_RECEIVE, request);
}

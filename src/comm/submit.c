/* SPDX-License-Identifier: Apache-2.0 */
/* From arguments to an operation: operations.c checks what is its own and writes the schedule, here is what all of them
 * share. drive.c runs it. */
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>

#include "base/forked.h"
#include "base/struct_size.h"
#include "collective/parts.h"
#include "memory/memory.h"

/* ---- Scratch of the codecs --------------------------------------------------------------------------------------- */

typedef struct operation_scratch {
  pith_encode_scratch thread[PITH_THREADS_MOST]; /* the first is that of the thread that drives */
  void *inside, *entries;
} operation_scratch;

static void take_all_scratch(const pith_operation *op, pith_arena *arena, operation_scratch *scratch) {
  const pith_comm *comm = op->comm;
  size_t n = op->job.src.n;
  unsigned threads = op->job.codec->caps & PITH_CAP_CHUNKED ? pith__thread_pool_size(comm->threads) : 1;
  for (unsigned t = 0; t < threads; t++) {
    pith__memory_take_scratch(op->job.codec, n, arena, &scratch->thread[t]);
  }
  scratch->inside = comm->inside ? pith__codec_take_scratch(comm->inside, n, arena) : NULL;
  scratch->entries = op->job.codec->caps & PITH_CAP_SPARSE ? pith__codec_take_scratch(comm->entries, n, arena) : NULL;
}

/* One allocation: the pointers, then what they point at. */
static pith_status take_scratch(pith_operation *op) {
  pith_arena arena = pith__arena_over(NULL, 0);
  operation_scratch measured;
  take_all_scratch(op, &arena, &measured);
  size_t need = pith__arena_need(&arena);
  operation_scratch *scratch = need < SIZE_MAX - sizeof *scratch ? malloc(sizeof *scratch + need) : NULL;
  PITH_REQUIRE(scratch, PITH_ERR_MEMORY, "no memory for %zu bytes of scratch", need);
  arena = pith__arena_over(scratch + 1, need);
  take_all_scratch(op, &arena, scratch);
  op->scratch = scratch;
  op->job.scratch = scratch->thread;
  op->job.inside_chain = scratch->inside;
  op->job.entries_chain = scratch->entries;
  return PITH_OK;
}

/* ---- Making an operation ----------------------------------------------------------------------------------------- */

pith_status pith__check_comm(const pith_comm *comm) {
  PITH_REQUIRE(comm, PITH_ERR_ARGUMENT, "comm must not be NULL");
  PITH_REQUIRE(
      comm->made_in == pith__fork_number(), PITH_ERR_STATE,
      "this process was forked from rank %d, whose comm it cannot use: it can only destroy its copy, or create a "
      "comm of its own",
      comm->rank);
  return PITH_OK;
}

pith_status pith__check_rank(const pith_comm *comm, int rank, const char *what) {
  PITH_TRY(pith__check_comm(comm));
  PITH_REQUIRE(rank >= 0 && rank < comm->ranks, PITH_ERR_ARGUMENT, "%s %d is not one of %d ranks", what, rank,
               comm->ranks);
  return PITH_OK;
}

pith_status pith__check_span(const void *data, size_t n, pith_dtype dtype) {
  PITH_REQUIRE(pith_dtype_size(dtype) > 0, PITH_ERR_ARGUMENT, "unknown type %d", (int)dtype);
  PITH_REQUIRE(data || n == 0, PITH_ERR_ARGUMENT, "%zu values at NULL", n);
  PITH_REQUIRE(n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT, "%zu values do not fit any memory", n);
  return PITH_OK;
}

pith_status pith__check_overlap(pith_cspan inner, pith_cspan outer, size_t place) {
  uintptr_t a = (uintptr_t)inner.data, b = (uintptr_t)outer.data;
  size_t width = pith_dtype_size(outer.dtype);
  int overlap = inner.n && outer.n && a < b + outer.n * width && b < a + inner.n * width;
  PITH_REQUIRE(!overlap || (place != PITH_NOWHERE && a == b + place * width), PITH_ERR_ARGUMENT,
               "src and dst overlap: they must lie apart, or exactly in place");
  return PITH_OK;
}

static pith_status read_call(pith_operation *op, const pith_call *given) {
  pith_call full = PITH_CALL_INIT, *call = &full;
  op->job.ctx = (pith_ctx){.size = sizeof(pith_ctx), .gamma = 1.0f};
  if (!given) {
    return PITH_OK;
  }
  PITH_TRY(PITH_STRUCT_READ(pith_call, given, call));
  op->job.ctx.seed = call->seed;
  op->job.ctx.step = call->step;
  op->job.ctx.layer = call->layer;
  op->job.ctx.rows = call->rows;
  op->job.ctx.gamma = call->gamma != 0 ? call->gamma : 1.0f;
  const pith_codec *codec = call->codec;
  pith_dtype dtype = op->job.src.dtype;
  if (!codec) {
    return PITH_OK;
  }
  PITH_REQUIRE(dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: %s values cannot be compressed", codec->spec, pith_dtype_name(dtype));
  PITH_REQUIRE(op->job.reduce == PITH_SUM || op->job.reduce == PITH_MEAN, PITH_ERR_ARGUMENT,
               "%s: only sums and means are compressed", codec->spec);
  if (!op->job.member_count) { /* else the reducer made every layer's state for its codec */
    PITH_TRY(pith__state_fits(codec, call->state, op->job.src.n, &op->job.ctx));
    PITH_TRY(call->state ? pith__state_claim(call->state, op->comm->rank, op->comm->ranks) : PITH_OK);
  }
  op->job.codec = codec;
  op->job.state = call->state;
  op->job.ctx.rows = call->state ? call->state->rows : call->rows;
  int rounds = (codec->caps & PITH_CAP_ROUNDS) && (call->state || op->job.member_count);
  return rounds ? PITH_OK : take_scratch(op); /* rounds work in their states */
}

void pith__operation_release(pith_operation *op) {
  pith__schedule_fini(&op->job.schedule);
  free(op->scratch);
  free(op->counts);
  free(op); /* the request it is the only member of */
}

/* All ranks agree whether some of them are elsewhere. */
static size_t message_of(const pith_comm *comm, size_t bytes) {
  return pith__message_size(comm->is_networked, bytes, comm->ranks, comm->settings.chunk);
}

pith_status pith__operation_make(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                 pith_reduce_op reduce, const pith_call *call, pith_operation **made) {
  return pith__operation_make_joined(comm, kind, src, dst, reduce, call, NULL, 0, made);
}

pith_status pith__operation_make_joined(pith_comm *comm, pith_operation_kind kind, pith_cspan src, pith_span dst,
                                        pith_reduce_op reduce, const pith_call *call, const pith_member *members,
                                        size_t count, pith_operation **made) {
  pith_operation *op = calloc(1, sizeof(pith_request));
  PITH_REQUIRE(op, PITH_ERR_MEMORY, "no memory for an operation");
  if (count && call->codec && !(call->codec->caps & PITH_CAP_ROUNDS)) {
    src.n = dst.n = pith__parts_joined(members, count, pith__parts_granule(call->codec, comm->inside));
  }
  op->comm = comm;
  op->job = (pith_job){.rank = comm->rank,
                       .ranks = comm->ranks,
                       .src = src,
                       .dst = dst,
                       .reduce = reduce,
                       .chunk = comm->settings.chunk};
  op->job.threads = comm->threads;
  op->job.layout = comm->flat;
  op->job.inside = comm->inside;
  op->job.entries = comm->entries;
  op->job.members = members;
  op->job.member_count = count;
  op->job.schedule.pool = &comm->pool;
  op->job.message = message_of(comm, src.n * pith_dtype_size(src.dtype));
  pith_status status = read_call(op, call);
  if (status != PITH_OK) {
    pith__operation_release(op);
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
                           .count = src.n,
                           .step = op->job.ctx.step,
                           .seed = op->job.ctx.seed,
                           .epoch = PITH_FRAME_EPOCH};
  *made = op;
  return PITH_OK;
}

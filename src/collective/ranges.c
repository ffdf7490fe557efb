/*
 * Allreduce with sparse codecs by index range: for payloads so dense, or so many, that most places are in several of
 * them.
 *
 * Every rank encodes its tensor once and takes what that decodes to apart: the entries of part p go to rank p, which
 * adds those of all ranks up and sends the entries of the result to all. Entries travel as they are, by a codec that
 * loses nothing, so that the result is, to the bit, the one of gather.c.
 */
#include "base/clock.h"
#include "collective/job.h"

enum { PHASE_SCATTER, PHASE_GATHER };

static pith_piece *piece_for(pith_job *job, size_t n) {
  return pith__schedule_piece(&job->schedule, pith_codec_bound(job->entries, n));
}

static pith_range part_of(const pith_job *job, int rank) {
  return pith__split(job->src.n, 1, (size_t)job->ranks, (size_t)rank);
}

/* What our payload decodes to: task->values. */
static pith_status work_encode_decode(pith_job *job, const pith_task *task) {
  PITH_TRY(pith__work_encode(job, &(pith_task){.piece = task->piece, .n = task->n}));
  return pith__work_decode(job, task);
}

static pith_status encode_entries(pith_job *job, const float *x, size_t n, pith_piece *piece) {
  double start = pith__now();
  pith_ctx ctx = job->ctx;
  pith_out out = {piece->data, piece->capacity, 0};
  ctx.offset = 0;
  PITH_TRY(pith__codec_encode(job->entries, (pith_cspan){x, n, PITH_F32}, &out, NULL, job->entries_chain, &ctx));
  piece->size = out.size;
  job->encode_seconds += pith__now() - start;
  return PITH_OK;
}

static pith_status decode_entries(pith_job *job, const pith_piece *piece, pith_span dst, pith_apply apply) {
  double start = pith__now();
  pith_ctx ctx = job->ctx;
  ctx.offset = 0;
  PITH_TRY(
      pith__codec_decode(job->entries, (pith_bytes){piece->data, piece->size}, dst, apply, job->entries_chain, &ctx));
  job->decode_seconds += pith__now() - start;
  return PITH_OK;
}

/* task->values (n floats) to entries; the result of a part first becomes one. */
static pith_status work_pack(pith_job *job, const pith_task *task) {
  return encode_entries(job, task->values, task->n, task->piece);
}

static pith_status work_pack_result(pith_job *job, const pith_task *task) {
  pith__make_result(job, task->values, task->n);
  return work_pack(job, task);
}

static pith_status work_add(pith_job *job, const pith_task *task) {
  return decode_entries(job, task->piece, (pith_span){task->values, task->n, PITH_F32},
                        task->mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET);
}

static pith_status work_unpack(pith_job *job, const pith_task *task) {
  uint8_t *to = (uint8_t *)job->dst.data + task->first * pith_dtype_size(job->dst.dtype);
  return decode_entries(job, task->piece, (pith_span){to, task->n, job->dst.dtype}, PITH_APPLY_SET);
}

static uint32_t add_task(pith_job *job, pith_work_fn work, pith_piece *piece, pith_range range, float *values, int mode,
                         pith_effort effort, uint32_t before) {
  return pith__schedule_work(&job->schedule,
                             (pith_task){.work = work,
                                         .piece = piece,
                                         .first = range.first,
                                         .n = range.n,
                                         .values = values,
                                         .mode = mode,
                                         .effort = effort},
                             before);
}

/* Adds up the entries of our part from all ranks in rank order, and sends the result to all. */
static void add_own_part(pith_job *job, float *x, uint32_t decoded) {
  pith_schedule *s = &job->schedule;
  pith_range mine = part_of(job, job->rank);
  float *sum = pith__schedule_buffer(s, mine.n, sizeof *sum);
  pith_piece *own = piece_for(job, mine.n), *result = piece_for(job, mine.n);
  uint32_t last = add_task(job, work_pack, own, mine, x ? x + mine.first : NULL, 0, PITH_EFFORT_PACK, decoded);
  uint32_t packed = last;
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : piece_for(job, mine.n);
    uint32_t arrived =
        p == job->rank ? packed : pith__schedule_receive(s, p, PITH_TAG(PHASE_SCATTER, 0), piece, PITH_NO_TASK);
    uint32_t add = add_task(job, work_add, piece, mine, sum, p ? PITH_ADD : PITH_SET, PITH_EFFORT_UNPACK, arrived);
    pith__schedule_after(s, add, last);
    last = add;
  }
  uint32_t ready = add_task(job, work_pack_result, result, mine, sum, 0, PITH_EFFORT_PACK_RESULT, last);
  for (int step = 1; step < job->ranks; step++) {
    pith__schedule_send(s, pith__peer_at(job, step), PITH_TAG(PHASE_GATHER, 0), result, ready);
  }
  add_task(job, work_unpack, result, mine, NULL, 0, PITH_EFFORT_UNPACK_RESULT, ready);
}

pith_status pith__allreduce_ranges(pith_job *job) {
  pith_schedule *s = &job->schedule;
  size_t n = job->src.n;
  float *x = pith__schedule_buffer(s, n ? n : 1, sizeof *x);
  pith_piece *payload = pith__piece_for(job, n);
  uint32_t decoded = pith__schedule_work(&job->schedule,
                                         (pith_task){.work = work_encode_decode,
                                                     .effort = PITH_EFFORT_ENCODE_DECODE,
                                                     .peer = job->rank,
                                                     .piece = payload,
                                                     .n = n,
                                                     .values = x,
                                                     .mode = PITH_SET},
                                         PITH_NO_TASK);
  for (int step = 1; step < job->ranks && !s->failed; step++) {
    int owner = pith__peer_at(job, step);
    pith_range part = part_of(job, owner);
    if (part.n) {
      pith_piece *piece = piece_for(job, part.n);
      uint32_t packed = add_task(job, work_pack, piece, part, x + part.first, 0, PITH_EFFORT_PACK, decoded);
      pith__schedule_send(s, owner, PITH_TAG(PHASE_SCATTER, 0), piece, packed);
    }
  }
  if (part_of(job, job->rank).n) {
    add_own_part(job, x, decoded);
  }
  for (int step = 1; step < job->ranks && !s->failed; step++) {
    int owner = pith__peer_at(job, job->ranks - step);
    pith_range part = part_of(job, owner);
    if (part.n) {
      pith_piece *piece = piece_for(job, part.n);
      uint32_t arrived = pith__schedule_receive(s, owner, PITH_TAG(PHASE_GATHER, 0), piece, PITH_NO_TASK);
      add_task(job, work_unpack, piece, part, NULL, 0, PITH_EFFORT_UNPACK_RESULT, arrived);
    }
  }
  return pith__schedule_finished(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Packing and unpacking entries. */
#include "collective/entries.h"

#include "base/clock.h"

pith_piece *pith__entries_piece(pith_job *job, size_t n) {
  return pith__schedule_piece(&job->schedule, pith_codec_bound(job->entries, n));
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
pith_status pith__work_pack(pith_job *job, const pith_task *task) {
  return encode_entries(job, task->values, task->n, task->piece);
}

pith_status pith__work_pack_result(pith_job *job, const pith_task *task) {
  pith__make_result(job, task->values, task->n);
  return pith__work_pack(job, task);
}

pith_status pith__work_unpack_sum(pith_job *job, const pith_task *task) {
  return decode_entries(job, task->piece, (pith_span){task->values, task->n, PITH_F32},
                        task->mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET);
}

pith_status pith__work_unpack_result(pith_job *job, const pith_task *task) {
  uint8_t *to = (uint8_t *)job->dst.data + task->first * pith_dtype_size(job->dst.dtype);
  return decode_entries(job, task->piece, (pith_span){to, task->n, job->dst.dtype}, PITH_APPLY_SET);
}

uint32_t pith__entries_work(pith_job *job, pith_work_fn work, pith_piece *piece, pith_range range, float *values,
                            int mode, pith_effort effort, int passes, uint32_t before) {
  return pith__schedule_work(&job->schedule,
                             (pith_task){.work = work,
                                         .piece = piece,
                                         .first = range.first,
                                         .n = range.n,
                                         .values = values,
                                         .mode = mode,
                                         .effort = effort,
                                         .passes = passes},
                             before);
}

float *pith__entries_decoded(pith_job *job, uint32_t *decoded) {
  size_t n = job->src.n;
  float *x = pith__schedule_buffer(&job->schedule, n ? n : 1, sizeof *x);
  pith_piece *payload = pith__piece_for(job, n);
  *decoded = pith__schedule_work(&job->schedule,
                                 (pith_task){.work = work_encode_decode,
                                             .effort = PITH_EFFORT_ENCODE_DECODE,
                                             .peer = job->rank,
                                             .piece = payload,
                                             .n = n,
                                             .values = x,
                                             .mode = PITH_SET},
                                 PITH_NO_TASK);
  return x;
}

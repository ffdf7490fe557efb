/* The work that schedules are made of: encoding, decoding and reducing a range of values. */
#include "base/clock.h"
#include "collective/job.h"


/* Random numbers of the second encoding (of results) must not be those of the first: owners count as further ranks. */
static pith_ctx ctx_of(const pith_job *job, int rank, int is_result, size_t first) {
  pith_ctx ctx = job->ctx;
  ctx.rank = (uint32_t)(is_result ? job->ranks + rank : rank);
  ctx.ranks = (uint32_t)job->ranks;
  ctx.offset = first;
  return ctx;
}

pith_status pith__work_encode(pith_job *job, const pith_task *task) {
  double start = pith__now();
  pith_out out = {task->piece->data, task->piece->capacity, 0};
  PITH_TRY(job->encode(job, task->first, task->n, &out));
  task->piece->size = out.size;
  job->encode_seconds += pith__now() - start;
  return PITH_OK;
}

static pith_status decode(pith_job *job, const pith_task *task, pith_span dst, int mode, int is_result) {
  double start = pith__now();
  pith_ctx ctx = ctx_of(job, task->peer, is_result, task->first);
  pith_bytes in = {task->piece->data, task->piece->size};
  PITH_TRY(pith__codec_decode(job->codec, in, dst, mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET, job->chain, &ctx));
  job->decode_seconds += pith__now() - start;
  return PITH_OK;
}

static pith_span range_of(pith_span span, size_t first, size_t n) {
  return (pith_span){(uint8_t *)span.data + first * pith_dtype_size(span.dtype), n, span.dtype};
}

pith_status pith__work_decode(pith_job *job, const pith_task *task) {
  return decode(job, task, (pith_span){task->values, task->n, PITH_F32}, task->mode, 0);
}

pith_status pith__work_decode_result(pith_job *job, const pith_task *task) {
  return decode(job, task, range_of(job->dst, task->at, task->n), PITH_SET, 1);
}

pith_status pith__work_decode_to_dst(pith_job *job, const pith_task *task) {
  return decode(job, task, range_of(job->dst, task->at, task->n), PITH_SET, 0);
}

/* Sums become means where asked, or votes. */
static void make_result(const pith_job *job, float *x, size_t n, size_t first) {
  if (job->codec->caps & PITH_CAP_VOTE) {
    pith__values_vote(first, x, n);
  } else if (job->reduce == PITH_MEAN) {
    pith__values_scale(1.0f / (float)job->ranks, x, n);
  }
}

pith_status pith__work_encode_result(pith_job *job, const pith_task *task) {
  double start = pith__now();
  pith_ctx ctx = ctx_of(job, job->rank, 1, task->first);
  pith_out out = {task->piece->data, task->piece->capacity, 0};
  make_result(job, task->values, task->n, task->first);
  PITH_TRY(pith__codec_encode(job->codec, (pith_cspan){task->values, task->n, PITH_F32}, &out, NULL, job->chain, &ctx));
  task->piece->size = out.size;
  job->encode_seconds += pith__now() - start;
  return PITH_OK;
}

#define TILE 1024

pith_status pith__work_store_result(pith_job *job, const pith_task *task) {
  float buffer[TILE];
  make_result(job, task->values, task->n, task->first);
  for (size_t i = 0; i < task->n; i += TILE) {
    size_t n = task->n - i < TILE ? task->n - i : TILE;
    pith__span_store(job->dst, task->at + i, n, (const float *)task->values + i, PITH_SET, buffer);
  }
  return PITH_OK;
}

pith_status pith__work_join(pith_job *job, const pith_task *task) {
  (void)job, (void)task;
  return PITH_OK;
}

pith_reduction *pith__schedule_reduction(pith_job *job, pith_dtype dtype, pith_reduce reduce, void *out) {
  pith_reduction *r = pith__schedule_take(&job->schedule, 1, sizeof *r);
  const void **sources = pith__schedule_take(&job->schedule, (size_t)job->ranks, sizeof *sources);
  if (!r || !sources) {
    return NULL;
  }
  *r = (pith_reduction){dtype, reduce, sources, out};
  return r;
}

pith_status pith__work_reduce(pith_job *job, const pith_task *task) {
  const pith_reduction *r = task->values;
  pith__reduce_many(r->dtype, r->reduce, r->sources, job->ranks, r->out, task->n);
  return PITH_OK;
}

uint32_t pith__add_work(pith_job *job, pith_task task, uint32_t before) {
  task.kind = PITH_TASK_WORK;
  uint32_t added = pith__schedule_add(&job->schedule, task);
  pith__schedule_after(&job->schedule, added, before);
  return added;
}

pith_piece *pith__piece_for(pith_job *job, size_t n) {
  return pith__schedule_piece(&job->schedule, pith_codec_bound(job->codec, n));
}

pith_status pith__schedule_finished(const pith_job *job) {
  PITH_REQUIRE(!job->schedule.failed, PITH_ERR_MEMORY, "no memory for the buffers of an operation of %zu values", job->src.n);
  return PITH_OK;
}

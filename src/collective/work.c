/* SPDX-License-Identifier: Apache-2.0 */
/* The work that schedules are made of: encoding, decoding and reducing a range of values. */
#include <string.h>

#include "base/clock.h"
#include "collective/job.h"

static pith_ctx ctx_of(const pith_job *job, int rank, int is_result, size_t first) {
  pith_ctx ctx = job->ctx;
  ctx.rank = is_result ? pith__result_rank(job->ranks) : (uint32_t)rank;
  ctx.ranks = (uint32_t)job->ranks;
  ctx.offset = first;
  return ctx;
}

pith_cspan pith__segment_values(const pith_job *job, size_t first, const pith_segment *s) {
  pith_dtype dtype = job->src.dtype;
  const void *data = s->values ? s->values : (const uint8_t *)job->src.data + (first + s->at) * pith_dtype_size(dtype);
  return (pith_cspan){data, s->n, dtype};
}

/* Where its results go: dst[at, …). */
static pith_span segment_results(const pith_job *job, size_t at, const pith_segment *s) {
  pith_dtype dtype = job->dst.dtype;
  void *data = s->values ? s->values : (uint8_t *)job->dst.data + (at + s->at) * pith_dtype_size(dtype);
  return (pith_span){data, s->n, dtype};
}

/* Encodes into the task's piece layer by layer, each behind its own memory; the errors of results have one of their
 * own. `gamma` is the factor on the values: src, or task->values. */
static pith_status encode(pith_job *job, const pith_task *task, float gamma, int is_result) {
  double start = pith__now();
  pith_encode_fn through_memory = is_result ? pith__memory_encode_result : pith__memory_encode;
  if (is_result) {
    pith__make_result(job, task->values, task->n);
  }
  size_t used = 0;
  pith_segment s = {0};
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith_ctx ctx = ctx_of(job, job->rank, is_result, s.offset);
    pith_cspan part = task->values ? (pith_cspan){(const float *)task->values + s.at, s.n, PITH_F32}
                                   : pith__segment_values(job, task->first, &s);
    pith_out out = {(uint8_t *)task->piece->data + used, task->piece->capacity - used, 0};
    ctx.layer = s.layer;
    ctx.gamma = gamma;
    if (is_result && pith__memory_keeps_results(job->codec, s.state)) {
      PITH_TRY(pith__state_own_results(s.state, s.offset, s.n)); /* before threads ask for it, each for its part */
    }
    PITH_TRY(
        pith__encode_in_threads(job->threads, through_memory, job->codec, s.state, part, &out, job->scratch, &ctx));
    used += out.size;
  }
  task->piece->size = used;
  job->encode_seconds += pith__now() - start;
  return PITH_OK;
}

pith_status pith__work_encode(pith_job *job, const pith_task *task) {
  return encode(job, task, task->mode == PITH_GATHERED ? 1.0f : job->ctx.gamma, 0);
}

#define TILE 1024

pith_status pith__work_add_own(pith_job *job, const pith_task *task) {
  float tile[TILE], gamma = job->codec->memory ? job->ctx.gamma : 1.0f;
  pith_segment s = {0};
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith_cspan own = pith__segment_values(job, task->first, &s);
    for (size_t i = 0; i < s.n; i += TILE) {
      size_t n = s.n - i < TILE ? s.n - i : TILE;
      const float *x = pith__span_load(own, i, n, tile);
      if (gamma != 1.0f) {
        memmove(tile, x, n * sizeof *tile);
        pith__values_scale(gamma, tile, n);
        x = tile;
      }
      pith__values_add(x, (float *)task->values + s.at + i, n);
    }
  }
  return PITH_OK;
}

/* The first member that ends behind a value. */
static size_t member_at(const pith_job *job, size_t value) {
  size_t low = 0, high = job->member_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (job->members[middle].first + job->members[middle].n <= value) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

int pith__next_segment(const pith_job *job, size_t first, size_t n, pith_segment *s) {
  if (job->member_count == 0) {
    *s = (pith_segment){s->number + 1, 0, n, first, job->ctx.layer, job->state, NULL};
    return s->number == 1;
  }
  size_t from = first + s->at + s->n, index = member_at(job, from);
  if (from >= first + n || index == job->member_count || job->members[index].first >= first + n) {
    return 0;
  }
  const pith_member *m = &job->members[index];
  from = m->first > from ? m->first : from;
  size_t end = m->first + m->n < first + n ? m->first + m->n : first + n, skipped = from - m->first;
  uint8_t *values = (uint8_t *)m->values + skipped * pith_dtype_size(job->src.dtype);
  *s = (pith_segment){s->number + 1, from - first, end - from, m->offset + skipped, m->layer, m->state, values};
  return 1;
}

pith_status pith__work_sum_own(pith_job *job, const pith_task *task) {
  double start = pith__now();
  pith_segment s = {0};
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith_ctx ctx = ctx_of(job, job->rank, 0, s.offset);
    pith_cspan part = task->piece ? (pith_cspan){(const float *)task->piece->data + s.at, s.n, PITH_F32}
                                  : pith__segment_values(job, task->first, &s);
    ctx.layer = s.layer;
    PITH_TRY(pith__sum_own_in_threads(job->threads, job->codec, s.state, part, (float *)task->values + s.at,
                                      task->mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET, &ctx));
  }
  job->decode_seconds += pith__now() - start;
  return PITH_OK;
}

/* The payload of a range is those of its layers one after another: codecs of joined tensors are FIXED, so each is known
 * by its size. Into `values`, or dst where that is NULL. */
static pith_status decode(pith_job *job, const pith_task *task, float *values, int mode, int is_result) {
  double start = pith__now();
  pith_segment s = {0};
  const uint8_t *bytes = task->piece->data;
  size_t used = 0, whole = task->piece->size;
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith_ctx ctx = ctx_of(job, task->peer, is_result, s.offset);
    size_t size = job->member_count ? pith_codec_bound(job->codec, s.n) : whole;
    ctx.layer = s.layer;
    PITH_REQUIRE(size <= whole - used, PITH_ERR_CORRUPT, "a payload of %zu bytes ends within one of its layers", whole);
    pith_span to = values ? (pith_span){values + s.at, s.n, PITH_F32} : segment_results(job, task->at, &s);
    PITH_TRY(pith__decode_in_threads(job->threads, job->codec, (pith_bytes){bytes + used, size}, to,
                                     mode == PITH_ADD ? PITH_APPLY_ADD : PITH_APPLY_SET, job->scratch, &ctx));
    used += size;
  }
  PITH_REQUIRE(used == whole, PITH_ERR_CORRUPT, "a payload has %zu bytes behind its last layer", whole - used);
  job->decode_seconds += pith__now() - start;
  return PITH_OK;
}

pith_status pith__work_decode(pith_job *job, const pith_task *task) {
  return decode(job, task, task->values, task->mode, 0);
}

pith_status pith__work_decode_result(pith_job *job, const pith_task *task) {
  return decode(job, task, NULL, PITH_SET, 1);
}

uint32_t pith__add_decode_result(pith_job *job, int owner, pith_piece *piece, pith_range range, uint32_t arrived) {
  return pith__schedule_work(&job->schedule,
                             (pith_task){.work = pith__work_decode_result,
                                         .effort = PITH_EFFORT_DECODE,
                                         .peer = owner,
                                         .piece = piece,
                                         .first = range.first,
                                         .n = range.n,
                                         .at = range.first},
                             arrived);
}

pith_status pith__work_decode_to_dst(pith_job *job, const pith_task *task) {
  return decode(job, task, NULL, PITH_SET, 0);
}

void pith__make_result(const pith_job *job, float *x, size_t n) {
  if (job->codec->caps & PITH_CAP_VOTE) {
    pith__values_vote(x, n);
  } else if (job->reduce == PITH_MEAN) {
    pith__values_scale(1.0f / (float)job->ranks, x, n);
  }
}

pith_status pith__work_encode_result(pith_job *job, const pith_task *task) { return encode(job, task, 1.0f, 1); }

pith_status pith__work_store_result(pith_job *job, const pith_task *task) {
  float buffer[TILE];
  pith__make_result(job, task->values, task->n);
  uint8_t *dst = job->dst.data; /* NULL for joined layers */
  if (dst && task->values == dst + task->at * pith_dtype_size(job->dst.dtype)) {
    return PITH_OK; /* it was made there */
  }
  pith_segment s = {0};
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith_span to = segment_results(job, task->at, &s);
    for (size_t i = 0; i < s.n; i += TILE) {
      size_t n = s.n - i < TILE ? s.n - i : TILE;
      pith__span_store(to, i, n, (const float *)task->values + s.at + i, PITH_SET, buffer);
    }
  }
  return PITH_OK;
}

pith_status pith__work_join(pith_job *job, const pith_task *task) {
  (void)job, (void)task;
  return PITH_OK;
}

pith_reduction *pith__schedule_reduction(pith_job *job, pith_dtype dtype, pith_reduce_op reduce, int count, void *out) {
  pith_reduction *r = pith__schedule_take(&job->schedule, 1, sizeof *r);
  const void **sources = pith__schedule_take(&job->schedule, (size_t)count, sizeof *sources);
  if (!r || !sources) {
    return NULL;
  }
  *r = (pith_reduction){dtype, reduce, count, sources, out};
  return r;
}

pith_status pith__work_reduce(pith_job *job, const pith_task *task) {
  const pith_reduction *r = task->values;
  double start = task->n > TILE ? pith__now() : 0; /* of short ones the clock would be much of the time */
  pith__reduce_many(r->dtype, r->reduce, r->sources, r->count, r->out, task->n);
  job->decode_seconds += task->n > TILE ? pith__now() - start : 0;
  return PITH_OK;
}

pith_piece *pith__piece_for(pith_job *job, size_t n) {
  return pith__schedule_piece(&job->schedule, pith_codec_bound(job->codec, n));
}

pith_status pith__schedule_finished(const pith_job *job) {
  PITH_REQUIRE(!job->schedule.failed, PITH_ERR_MEMORY, "no memory for the buffers of an operation of %zu values",
               job->src.n);
  return PITH_OK;
}

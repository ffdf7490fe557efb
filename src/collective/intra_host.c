/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Intra-host communication: ranks send their values to a leader, which adds them up in f32 in rank order and exchanges
 * the sum with the other hosts. Values travel as they are, or encoded by the intra-host codec (job->inside). Results
 * come back as the bytes that crossed hosts, so that nothing is rounded again.
 */
#include <string.h>

#include "base/clock.h"
#include "collective/job.h"

#define TILE 1024

typedef struct host_sum {
  float *sum;
  pith_piece *piece[]; /* of every rank of the host, in their order; NULL: our own values */
} host_sum;

static int host_of(const pith_job *job) { return job->layout->host[job->rank]; }

static pith_ctx intra_host_ctx(const pith_job *job, int rank, size_t first) {
  pith_ctx ctx = job->ctx;
  ctx.rank = (uint32_t)rank;
  ctx.ranks = (uint32_t)job->ranks;
  ctx.offset = first;
  return ctx;
}

static pith_status work_encode_intra_host(pith_job *job, const pith_task *task) {
  double start = pith__now();
  pith_ctx ctx = intra_host_ctx(job, job->rank, task->first);
  pith_out out = {task->piece->data, task->piece->capacity, 0};
  pith_cspan values = {task->values, task->n, job->src.dtype};
  PITH_TRY(pith__codec_encode(job->inside, values, &out, NULL, job->inside_chain, &ctx));
  task->piece->size = out.size;
  job->encode_seconds += pith__now() - start;
  return PITH_OK;
}

/* Our values of a range, one after another: those of joined layers lie apart. What is between layers is zero. */
static pith_status work_collect(pith_job *job, const pith_task *task) {
  size_t width = pith_dtype_size(job->src.dtype);
  pith_segment s = {0};
  memset(task->values, 0, task->n * width);
  while (pith__next_segment(job, task->first, task->n, &s)) {
    memcpy((uint8_t *)task->values + s.at * width, pith__segment_values(job, task->first, &s).data, s.n * width);
  }
  return PITH_OK;
}

static void *add_collected(pith_job *job, pith_range range, uint32_t *ready) {
  size_t width = pith_dtype_size(job->src.dtype);
  if (job->member_count == 0) {
    return (uint8_t *)(uintptr_t)job->src.data + range.first * width;
  }
  void *values = pith__schedule_buffer(&job->schedule, range.n, width);
  *ready = pith__schedule_work(
      &job->schedule,
      (pith_task){
          .work = work_collect, .effort = PITH_EFFORT_SUM, .first = range.first, .n = range.n, .values = values},
      *ready);
  return values;
}

static pith_piece *piece_for(pith_job *job, size_t n) {
  size_t bytes = job->inside ? pith_codec_bound(job->inside, n) : n * pith_dtype_size(job->src.dtype);
  return pith__schedule_piece(&job->schedule, bytes);
}

uint32_t pith__add_intra_host_send(pith_job *job, int leader, pith_range range, uint32_t tag, uint32_t before) {
  pith_schedule *s = &job->schedule;
  void *values = add_collected(job, range, &before);
  if (job->inside) {
    pith_piece *piece = piece_for(job, range.n);
    pith_task task = {.work = work_encode_intra_host,
                      .effort = PITH_EFFORT_ENCODE,
                      .piece = piece,
                      .first = range.first,
                      .n = range.n,
                      .values = values};
    return pith__schedule_send(s, leader, tag, piece, pith__schedule_work(&job->schedule, task, before));
  }
  pith_piece *piece = pith__schedule_piece_over(s, values, range.n * pith_dtype_size(job->src.dtype));
  return pith__schedule_send(s, leader, tag, piece, before);
}

void pith__sum_values(pith_cspan values, size_t first, float *sum, size_t n, int is_first) {
  float tile[TILE];
  for (size_t i = 0; i < n; i += TILE) {
    size_t m = n - i < TILE ? n - i : TILE;
    const float *x = pith__span_load(values, first + i, m, tile);
    if (is_first) {
      memcpy(sum + i, x, m * sizeof *sum);
    } else {
      pith__values_add(x, sum + i, m);
    }
  }
}

static void sum_own_values(const pith_job *job, const pith_task *task, float *sum, int is_first) {
  pith_segment s = {0};
  if (is_first && job->member_count) {
    memset(sum, 0, task->n * sizeof *sum); /* what is between layers */
  }
  while (pith__next_segment(job, task->first, task->n, &s)) {
    pith__sum_values(pith__segment_values(job, task->first, &s), 0, sum + s.at, s.n, is_first);
  }
}

static pith_status work_sum(pith_job *job, const pith_task *task) {
  const host_sum *all = task->values;
  double start = pith__now();
  int host = host_of(job);
  for (int i = 0; i < pith__layout_members(job->layout, host); i++) {
    const pith_piece *piece = all->piece[i];
    if (!piece) {
      sum_own_values(job, task, all->sum, i == 0);
    } else if (!job->inside) {
      pith__sum_values((pith_cspan){piece->data, task->n, job->src.dtype}, 0, all->sum, task->n, i == 0);
    } else {
      pith_ctx ctx = intra_host_ctx(job, pith__layout_rank(job->layout, host, i), task->first);
      PITH_TRY(pith__codec_decode(job->inside, (pith_bytes){piece->data, piece->size},
                                  (pith_span){all->sum, task->n, PITH_F32}, i ? PITH_APPLY_ADD : PITH_APPLY_SET,
                                  job->inside_chain, &ctx));
    }
  }
  job->decode_seconds += pith__now() - start;
  return PITH_OK;
}

uint32_t pith__add_intra_host_sum(pith_job *job, pith_range range, uint32_t tag, float *sum, uint32_t before) {
  pith_schedule *s = &job->schedule;
  int host = host_of(job), members = pith__layout_members(job->layout, host);
  host_sum *all = pith__schedule_take(s, 1, sizeof *all + (size_t)members * sizeof *all->piece);
  if (!all) {
    return PITH_NO_TASK;
  }
  all->sum = sum;
  uint32_t work = pith__schedule_work(&job->schedule,
                                      (pith_task){.work = work_sum,
                                                  .effort = PITH_EFFORT_SUM,
                                                  .passes = members,
                                                  .first = range.first,
                                                  .n = range.n,
                                                  .values = all},
                                      before);
  for (int i = 0; i < members; i++) {
    int rank = pith__layout_rank(job->layout, host, i);
    all->piece[i] = NULL;
    if (rank != job->rank) {
      all->piece[i] = piece_for(job, range.n);
      if (all->piece[i] && !job->inside) {
        all->piece[i]->least = all->piece[i]->capacity;
      }
      pith__schedule_after(s, work, pith__schedule_receive(s, rank, tag, all->piece[i], PITH_NO_TASK));
    }
  }
  return work;
}

void pith__add_intra_host_copies(pith_job *job, uint32_t tag, pith_piece *piece, uint32_t before) {
  int host = host_of(job);
  for (int i = 0; i < pith__layout_members(job->layout, host); i++) {
    int rank = pith__layout_rank(job->layout, host, i);
    if (rank != job->rank) {
      pith__schedule_send(&job->schedule, rank, tag, piece, before);
    }
  }
}

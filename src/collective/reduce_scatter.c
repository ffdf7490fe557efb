/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduce-scatter, and reduce to one rank: the first half of an allreduce, with parts as the caller wants them. Results
 * are not encoded again: they stay where they are made.
 */
#include "base/size.h"
#include "collective/job.h"

enum { PHASE_SCATTER };

static pith_range part_of(const size_t *counts, int rank) {
  return (pith_range){pith__sum(counts, rank), counts[rank]};
}

/* ---- Encoded ----------------------------------------------------------------------------------------------------- */

static pith_piece *add_encoded_part(pith_job *job, int owner, pith_range range, uint32_t *encoded) {
  pith_piece *piece = pith__piece_for(job, range.n);
  *encoded = pith__schedule_work(
      &job->schedule, (pith_task){.work = pith__work_encode, .piece = piece, .first = range.first, .n = range.n},
      PITH_NO_TASK);
  if (owner != job->rank) {
    pith__schedule_send(&job->schedule, owner, PITH_TAG(PHASE_SCATTER, 0), piece, *encoded);
  }
  return piece;
}

static void add_encoded_sum(pith_job *job, pith_range mine, pith_piece *own, uint32_t encoded, uint32_t all_encoded) {
  pith_schedule *s = &job->schedule;
  float *sum = pith__schedule_take(s, mine.n, sizeof *sum);
  uint32_t last = PITH_NO_TASK;
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : pith__piece_for(job, mine.n);
    uint32_t arrived =
        p == job->rank ? encoded : pith__schedule_receive(s, p, PITH_TAG(PHASE_SCATTER, 0), piece, PITH_NO_TASK);
    uint32_t decode = pith__schedule_work(&job->schedule,
                                          (pith_task){.work = pith__work_decode,
                                                      .peer = p,
                                                      .piece = piece,
                                                      .first = mine.first,
                                                      .n = mine.n,
                                                      .values = sum,
                                                      .mode = p ? PITH_ADD : PITH_SET},
                                          arrived);
    pith__schedule_after(s, decode, last);
    last = decode;
  }
  uint32_t store = pith__schedule_work(
      &job->schedule, (pith_task){.work = pith__work_store_result, .first = mine.first, .n = mine.n, .values = sum},
      last);
  pith__schedule_after(s, store, all_encoded); /* dst may lie in src */
}

static void reduce_scatter_encoded(pith_job *job, const size_t *counts) {
  pith_piece *own = NULL;
  uint32_t encoded = PITH_NO_TASK,
           all = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, PITH_NO_TASK);
  for (int step = 1; step <= job->ranks; step++) {
    int owner = pith__peer_at(job, step);
    if (counts[owner]) {
      uint32_t task;
      pith_piece *piece = add_encoded_part(job, owner, part_of(counts, owner), &task);
      pith__schedule_after(&job->schedule, all, task);
      own = owner == job->rank ? piece : own;
      encoded = owner == job->rank ? task : encoded;
    }
  }
  if (own) {
    add_encoded_sum(job, part_of(counts, job->rank), own, encoded, all);
  }
}

/* ---- Plain ------------------------------------------------------------------------------------------------------- */

/* Receives the values of [mine] from all ranks and reduces them to dst; sends our values of the other parts to their
 * owners. */
static void reduce_scatter_plain(pith_job *job, const size_t *counts) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(job->src.dtype);
  pith_range mine = part_of(counts, job->rank);
  pith_reduction *r = pith__schedule_reduction(job, job->src.dtype, job->reduce, job->ranks, job->dst.data);
  if (!r) {
    return;
  }
  uint32_t reduce = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_reduce, .n = mine.n, .values = r}, PITH_NO_TASK);
  for (int step = 0; step < job->ranks; step++) {
    int peer = pith__peer_at(job, step);
    pith_range theirs = part_of(counts, peer);
    uint8_t *values = (uint8_t *)(uintptr_t)job->src.data + theirs.first * width;
    if (peer == job->rank) {
      r->sources[peer] = values;
      continue;
    }
    if (theirs.n) { /* dst may lie in src: nothing is overwritten before it is sent */
      pith_piece *out = pith__schedule_piece_over(s, values, theirs.n * width);
      pith__schedule_after(s, reduce, pith__schedule_send(s, peer, PITH_TAG(PHASE_SCATTER, 0), out, PITH_NO_TASK));
    }
    pith_piece *in =
        mine.n ? pith__schedule_piece_over(s, pith__schedule_take(s, mine.n, width), mine.n * width) : NULL;
    if (in) {
      r->sources[peer] = in->data;
      pith__schedule_after(s, reduce, pith__schedule_receive(s, peer, PITH_TAG(PHASE_SCATTER, 0), in, PITH_NO_TASK));
    }
  }
}

pith_status pith__reduce_scatter(pith_job *job, const size_t *counts) {
  if (job->ranks == 1) {
    return pith__schedule_copy(job);
  }
  if (job->codec) {
    reduce_scatter_encoded(job, counts);
  } else {
    reduce_scatter_plain(job, counts);
  }
  return pith__schedule_finished(job);
}

/* All values are one part, the root's. */
pith_status pith__reduce_to(pith_job *job, int root) {
  size_t *counts = pith__schedule_take(&job->schedule, (size_t)job->ranks, sizeof *counts);
  PITH_REQUIRE(counts, PITH_ERR_MEMORY, "no memory for an operation");
  for (int p = 0; p < job->ranks; p++) {
    counts[p] = p == root ? job->src.n : 0;
  }
  return pith__reduce_scatter(job, counts);
}

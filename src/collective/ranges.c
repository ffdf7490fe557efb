/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with sparse codecs by index range: for payloads so dense, or so many, that most places are in several of
 * them.
 *
 * Every rank encodes its tensor once and takes what that decodes to apart: the entries of part p go to rank p, which
 * adds those of all ranks up and sends the entries of the result to all. Entries travel as they are, by a codec that
 * loses nothing, so that the result is, to the bit, the one of gather.c.
 */
#include "collective/entries.h"

enum { PHASE_SCATTER, PHASE_GATHER };

static pith_range part_of(const pith_job *job, int rank) {
  return pith__split(job->src.n, 1, (size_t)job->ranks, (size_t)rank);
}

/* Adds up the entries of our part from all ranks in rank order, and sends the result to all. */
static void add_own_part(pith_job *job, float *x, uint32_t decoded) {
  pith_schedule *s = &job->schedule;
  pith_range mine = part_of(job, job->rank);
  float *sum = pith__schedule_buffer(s, mine.n, sizeof *sum);
  pith_piece *own = pith__entries_piece(job, mine.n), *result = pith__entries_piece(job, mine.n);
  uint32_t last =
      pith__entries_work(job, pith__work_pack, own, mine, x ? x + mine.first : NULL, 0, PITH_EFFORT_PACK, 1, decoded);
  uint32_t packed = last;
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : pith__entries_piece(job, mine.n);
    uint32_t arrived =
        p == job->rank ? packed : pith__schedule_receive(s, p, PITH_TAG(PHASE_SCATTER, 0), piece, PITH_NO_TASK);
    uint32_t add = pith__entries_work(job, pith__work_unpack_sum, piece, mine, sum, p ? PITH_ADD : PITH_SET,
                                      PITH_EFFORT_UNPACK, 1, arrived);
    pith__schedule_after(s, add, last);
    last = add;
  }
  uint32_t ready =
      pith__entries_work(job, pith__work_pack_result, result, mine, sum, 0, PITH_EFFORT_PACK_RESULT, 0, last);
  for (int step = 1; step < job->ranks; step++) {
    pith__schedule_send(s, pith__peer_at(job, step), PITH_TAG(PHASE_GATHER, 0), result, ready);
  }
  pith__entries_work(job, pith__work_unpack_result, result, mine, NULL, 0, PITH_EFFORT_UNPACK_RESULT, 0, ready);
}

pith_status pith__allreduce_ranges(pith_job *job) {
  pith_schedule *s = &job->schedule;
  uint32_t decoded;
  float *x = pith__entries_decoded(job, &decoded);
  for (int step = 1; step < job->ranks && !s->failed; step++) {
    int owner = pith__peer_at(job, step);
    pith_range part = part_of(job, owner);
    if (part.n) {
      pith_piece *piece = pith__entries_piece(job, part.n);
      uint32_t packed =
          pith__entries_work(job, pith__work_pack, piece, part, x + part.first, 0, PITH_EFFORT_PACK, 1, decoded);
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
      pith_piece *piece = pith__entries_piece(job, part.n);
      uint32_t arrived = pith__schedule_receive(s, owner, PITH_TAG(PHASE_GATHER, 0), piece, PITH_NO_TASK);
      pith__entries_work(job, pith__work_unpack_result, piece, part, NULL, 0, PITH_EFFORT_UNPACK_RESULT, 0, arrived);
    }
  }
  return pith__schedule_finished(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with block codecs around a ring: every rank talks to its two neighbours only.
 *
 * Part p starts at rank p + 1 and travels up to rank p. Each rank on the way decodes the sum so far, adds its own
 * values and encodes the new sum; what that loses goes to the rank's own memory. Rank p adds its own values as they
 * are, behind its memory, and makes the result, which travels once more around as the same bytes. Sums run in the order
 * p + 1, p + 2, …, p.
 */
#include "collective/job.h"
#include "collective/parts.h"

#define WINDOW 4

enum { PHASE_REDUCE, PHASE_GATHER };

typedef struct ring {
  int next, previous;
  pith_parts parts;
  size_t chunk, chunks;
  float *sums; /* WINDOW times one for each part */
} ring;

static ring make_ring(pith_job *job) {
  size_t granule = job->codec->granule, ranks = (size_t)job->ranks, wanted = job->chunk / sizeof(float) / granule;
  ring r = {.next = pith__peer_at(job, 1),
            .previous = pith__peer_at(job, job->ranks - 1),
            .parts = pith__parts_make(job, granule, 1, job->ranks)};
  size_t part = pith__parts_largest(job, &r.parts);
  r.chunk = (wanted ? wanted : 1) * granule;
  r.chunks = part / r.chunk + (part % r.chunk != 0);
  r.chunk = r.chunk < part ? r.chunk : part;
  r.sums =
      pith__schedule_buffer(&job->schedule, (r.chunks < WINDOW ? r.chunks : WINDOW) * ranks, r.chunk * sizeof *r.sums);
  return r;
}

static uint32_t tag_of(const pith_job *job, int phase, int part, size_t number) {
  return PITH_TAG(phase, number * (size_t)job->ranks + (size_t)part);
}

/* The sum so far with our own values, in `sum`; at the start of the ring our own values are all there is. */
static uint32_t add_sum(pith_job *job, const ring *r, int part, size_t number, pith_range range, float *sum,
                        uint32_t before) {
  pith_piece *piece = pith__piece_for(job, range.n);
  uint32_t arrived =
      pith__schedule_receive(&job->schedule, r->previous, tag_of(job, PHASE_REDUCE, part, number), piece, PITH_NO_TASK);
  uint32_t decode = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_decode,
                                                    .effort = PITH_EFFORT_DECODE,
                                                    .peer = r->previous,
                                                    .piece = piece,
                                                    .first = range.first,
                                                    .n = range.n,
                                                    .values = sum,
                                                    .mode = PITH_SET},
                                        arrived);
  pith__schedule_after(&job->schedule, decode, before);
  pith_work_fn add = job->rank == part ? pith__work_sum_own : pith__work_add_own;
  return pith__schedule_work(
      &job->schedule,
      (pith_task){
          .work = add, .effort = PITH_EFFORT_SUM, .first = range.first, .n = range.n, .values = sum, .mode = PITH_ADD},
      decode);
}

/* The result goes on to the next rank, unless that made it. */
static void add_result(pith_job *job, const ring *r, int part, size_t number, pith_range range, pith_piece *piece,
                       uint32_t ready) {
  if (r->next != part) {
    pith__schedule_send(&job->schedule, r->next, tag_of(job, PHASE_GATHER, part, number), piece, ready);
  }
  pith__add_decode_result(job, part, piece, range, ready);
}

/* Our step of a part. Returns the task after which the sum is not needed. */
static uint32_t add_part(pith_job *job, const ring *r, int part, size_t number, float *sum, uint32_t before) {
  pith_schedule *s = &job->schedule;
  pith_range range = pith__split_chunk(pith__parts_of(job, &r->parts, 0, part), r->chunk, number);
  if (range.n == 0) {
    return PITH_NO_TASK;
  }
  int starts = job->rank == (part + 1) % job->ranks, owns = job->rank == part;
  pith_piece *piece = pith__piece_for(job, range.n);
  pith_task task = {
      .piece = piece, .first = range.first, .n = range.n, .work = pith__work_encode, .effort = PITH_EFFORT_ENCODE};
  uint32_t summed = before;
  if (!starts) {
    summed = add_sum(job, r, part, number, range, sum, before);
    task.values = sum;
    task.mode = PITH_GATHERED;
  }
  task.work = owns ? pith__work_encode_result : pith__work_encode;
  uint32_t encode = pith__schedule_work(&job->schedule, task, summed);
  if (owns) {
    add_result(job, r, part, number, range, piece, encode);
  } else {
    pith__schedule_send(s, r->next, tag_of(job, PHASE_REDUCE, part, number), piece, encode);
    pith_piece *result = pith__piece_for(job, range.n);
    uint32_t arrived =
        pith__schedule_receive(s, r->previous, tag_of(job, PHASE_GATHER, part, number), result, PITH_NO_TASK);
    add_result(job, r, part, number, range, result, arrived);
  }
  return encode;
}

pith_status pith__allreduce_ring(pith_job *job) {
  ring r = make_ring(job);
  uint32_t free_again[WINDOW];
  for (size_t c = 0; c < r.chunks && !job->schedule.failed; c++) {
    uint32_t before = c < WINDOW ? PITH_NO_TASK : free_again[c % WINDOW];
    uint32_t all = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, before);
    for (int step = 1; step <= job->ranks;
         step++) { /* in the order in which parts come by: ours to start first, ours to own last */
      int part = pith__peer_at(job, job->ranks - step);
      float *sum = r.sums + (c % WINDOW * (size_t)job->ranks + (size_t)part) * r.chunk;
      pith__schedule_after(&job->schedule, all, add_part(job, &r, part, c, sum, before));
    }
    free_again[c % WINDOW] = all;
  }
  return pith__schedule_finished(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with block codecs up and down a binomial tree: few steps, for short tensors and many ranks.
 *
 * The children of rank r are r + 1, r + 2, r + 4, … below the lowest bit of r. A rank decodes its children's sums, adds
 * its own values, and encodes the sum for its parent, in that order; what that loses goes to the rank's own memory.
 * Rank 0 adds its own as they are, behind its memory, and makes the result, which comes down as the same bytes.
 */
#include "collective/job.h"
#include "collective/parts.h"

#define WINDOW 4

enum { PHASE_UP, PHASE_DOWN };

static int parent_of(int rank) { return rank & (rank - 1); }

/* Calls for each child: rank + bit, for all bits below the rank's lowest. */
static int next_child(const pith_job *job, int *bit) {
  int child = job->rank + *bit;
  if ((job->rank && *bit >= (job->rank & -job->rank)) || child >= job->ranks) {
    return -1;
  }
  *bit *= 2;
  return child;
}

/* What the children sent, and our own values, in `sum`. */
static uint32_t add_sum(pith_job *job, size_t number, pith_range range, float *sum, uint32_t before) {
  uint32_t last = before;
  int children = 0;
  for (int bit = 1, child; (child = next_child(job, &bit)) >= 0; children++) {
    pith_piece *piece = pith__piece_for(job, range.n);
    uint32_t arrived = pith__schedule_receive(&job->schedule, child, PITH_TAG(PHASE_UP, number), piece, PITH_NO_TASK);
    uint32_t decode = pith__schedule_work(&job->schedule,
                                          (pith_task){.work = pith__work_decode,
                                                      .effort = PITH_EFFORT_DECODE,
                                                      .peer = child,
                                                      .piece = piece,
                                                      .first = range.first,
                                                      .n = range.n,
                                                      .values = sum,
                                                      .mode = children ? PITH_ADD : PITH_SET},
                                          arrived);
    pith__schedule_after(&job->schedule, decode, last);
    last = decode;
  }
  pith_work_fn add = job->rank ? pith__work_add_own : pith__work_sum_own;
  return pith__schedule_work(
      &job->schedule,
      (pith_task){
          .work = add, .effort = PITH_EFFORT_SUM, .first = range.first, .n = range.n, .values = sum, .mode = PITH_ADD},
      last);
}

static void add_down(pith_job *job, size_t number, pith_range range, pith_piece *piece, uint32_t ready) {
  for (int bit = 1, child; (child = next_child(job, &bit)) >= 0;) {
    pith__schedule_send(&job->schedule, child, PITH_TAG(PHASE_DOWN, number), piece, ready);
  }
  pith__add_decode_result(job, 0, piece, range, ready);
}

/* One chunk. Returns the task after which its sum is not needed. */
static uint32_t add_chunk(pith_job *job, size_t number, pith_range range, float *sum, uint32_t before) {
  pith_schedule *s = &job->schedule;
  int leaf = (job->rank & 1) || job->rank + 1 >= job->ranks;
  uint32_t summed = leaf ? before : add_sum(job, number, range, sum, before);
  pith_piece *up = pith__piece_for(job, range.n);
  pith_task task = {.piece = up,
                    .first = range.first,
                    .n = range.n,
                    .work = job->rank ? pith__work_encode : pith__work_encode_result,
                    .effort = PITH_EFFORT_ENCODE};
  if (!leaf) {
    task.values = sum;
    task.mode = PITH_GATHERED;
  }
  uint32_t encode = pith__schedule_work(&job->schedule, task, summed);
  if (job->rank == 0) {
    add_down(job, number, range, up, encode);
    return encode;
  }
  pith__schedule_send(s, parent_of(job->rank), PITH_TAG(PHASE_UP, number), up, encode);
  pith_piece *down = pith__piece_for(job, range.n);
  add_down(job, number, range, down,
           pith__schedule_receive(s, parent_of(job->rank), PITH_TAG(PHASE_DOWN, number), down, PITH_NO_TASK));
  return encode;
}

pith_status pith__allreduce_tree(pith_job *job) {
  size_t granule = job->codec->granule, wanted = job->chunk / sizeof(float) / granule;
  pith_parts one = pith__parts_make(job, granule, 1, 1);
  size_t n = pith__parts_of(job, &one, 0, 0).n;
  size_t chunk = (wanted ? wanted : 1) * granule, chunks = n / chunk + (n % chunk != 0);
  chunk = chunk < n ? chunk : n;
  float *sums = pith__schedule_buffer(&job->schedule, chunks < WINDOW ? chunks : WINDOW, chunk * sizeof *sums);
  uint32_t used[WINDOW];
  for (size_t c = 0; c < chunks && !job->schedule.failed; c++) {
    pith_range range = pith__split_chunk((pith_range){0, n}, chunk, c);
    used[c % WINDOW] =
        add_chunk(job, c, range, sums + c % WINDOW * chunk, c < WINDOW ? PITH_NO_TASK : used[c % WINDOW]);
  }
  return pith__schedule_finished(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with sparse codecs over a grid: what ranges.c does, with few peers at a time. docs/algorithms.md, "Grid".
 *
 * Every rank encodes its tensor once. Up: the entries of a peer's part go there, which adds them to its own; sums are
 * packed again for the next level, without loss. Down: results go back the same way. What several ranks of a host have
 * in common thereby leaves it once.
 */
#include "collective/entries.h"

enum { PHASE_UP, PHASE_DOWN };

typedef struct level {
  int size, at, number;
  pith_range whole, mine; /* what it cuts into parts, and our part */
  float *values, *sum;    /* of `whole`, ours; of `mine`, over the ranks of the level */
  int merged;             /* ranks that are in `values` */
} level;

static pith_range part_of(const level *l, int coordinate) {
  pith_range part = pith__split(l->whole.n, 1, (size_t)l->size, (size_t)coordinate);
  part.first += l->whole.first;
  return part;
}

static int make_levels(pith_job *job, float *x, level *levels) {
  level next = {.whole = {0, job->src.n}, .values = x, .merged = 1};
  int count = 0;
  for (int k = 0; k < PITH_GRID_LEVELS; k++) {
    if (job->grid->size[k] > 1) {
      level *l = &levels[count++];
      *l = next;
      l->size = job->grid->size[k];
      l->at = pith__grid_at(job->grid, job->rank, k);
      l->number = k;
      l->mine = part_of(l, l->at);
      l->sum = pith__schedule_buffer(&job->schedule, l->mine.n + 1, sizeof *l->sum);
      next = (level){.whole = l->mine, .values = l->sum, .merged = l->merged * l->size};
    }
  }
  return count;
}

static int peer_of(const pith_job *job, const level *l, int coordinate) {
  return pith__grid_peer(job->grid, job->rank, l->number, coordinate);
}

static uint32_t add_pack(pith_job *job, const level *l, pith_range range, pith_piece *piece, uint32_t ready) {
  float *values = l->values ? l->values + (range.first - l->whole.first) : NULL;
  return pith__entries_work(job, pith__work_pack, piece, range, values, 0, PITH_EFFORT_PACK, l->merged, ready);
}

/* Entries to the peers, and the sum of those of our part, in the order of ranks. Returns the task that ends it. */
static uint32_t add_up(pith_job *job, const level *l, uint32_t ready) {
  pith_schedule *s = &job->schedule;
  for (int step = 1; step < l->size; step++) {
    int to = (l->at + step) % l->size;
    pith_range range = part_of(l, to);
    if (range.n) {
      pith_piece *piece = pith__entries_piece(job, range.n);
      pith__schedule_send(s, peer_of(job, l, to), PITH_TAG(PHASE_UP, 0), piece, add_pack(job, l, range, piece, ready));
    }
  }
  uint32_t last = ready;
  for (int c = 0; c < l->size && l->mine.n; c++) {
    pith_piece *piece = pith__entries_piece(job, l->mine.n);
    uint32_t arrived = c == l->at
                           ? add_pack(job, l, l->mine, piece, ready)
                           : pith__schedule_receive(s, peer_of(job, l, c), PITH_TAG(PHASE_UP, 0), piece, PITH_NO_TASK);
    uint32_t add = pith__entries_work(job, pith__work_unpack_sum, piece, l->mine, l->sum, c ? PITH_ADD : PITH_SET,
                                      PITH_EFFORT_UNPACK, l->merged, arrived);
    pith__schedule_after(s, add, last);
    last = add;
  }
  return last;
}

/* Results to the peers, and theirs. Those of the first level go to dst, others to where the level's values were: they
 * have been sent. Returns the task after which all are there. */
static uint32_t add_down(pith_job *job, const level *l, int is_first, int is_last, uint32_t ready) {
  pith_schedule *s = &job->schedule;
  uint32_t all = pith__schedule_work(s, (pith_task){.work = pith__work_join}, ready);
  for (int step = 0; step < l->size; step++) {
    int from = (l->at + l->size - step) % l->size;
    pith_range range = part_of(l, from);
    if (range.n == 0) {
      continue;
    }
    pith_piece *piece = pith__entries_piece(job, range.n);
    uint32_t arrived =
        step == 0 ? pith__entries_work(job, is_last ? pith__work_pack_result : pith__work_pack, piece, range, l->sum, 0,
                                       PITH_EFFORT_PACK_RESULT, 0, ready)
                  : pith__schedule_receive(s, peer_of(job, l, from), PITH_TAG(PHASE_DOWN, 0), piece, PITH_NO_TASK);
    for (int other = 1; step == 0 && other < l->size; other++) {
      pith__schedule_send(s, peer_of(job, l, (l->at + other) % l->size), PITH_TAG(PHASE_DOWN, 0), piece, arrived);
    }
    float *into = is_first || !l->values ? NULL : l->values + (range.first - l->whole.first);
    uint32_t unpacked = pith__entries_work(job, is_first ? pith__work_unpack_result : pith__work_unpack_sum, piece,
                                           range, into, PITH_SET, PITH_EFFORT_UNPACK_RESULT, 0, arrived);
    pith__schedule_after(s, all, unpacked);
  }
  return all;
}

pith_status pith__allreduce_grid_ranges(pith_job *job) {
  level levels[PITH_GRID_LEVELS];
  uint32_t ready;
  float *x = pith__entries_decoded(job, &ready);
  int count = make_levels(job, x, levels);
  for (int k = 0; k < count && !job->schedule.failed; k++) {
    ready = add_up(job, &levels[k], ready);
  }
  for (int k = count - 1; k >= 0 && !job->schedule.failed; k--) {
    ready = add_down(job, &levels[k], k == 0, k == count - 1, ready);
  }
  return pith__schedule_finished(job);
}

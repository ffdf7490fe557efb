/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uncompressed allreduce over a grid. docs/algorithms.md, "Grid".
 *
 * Up: at every level a rank sends each of its peers there the peer's part of what it has summed so far, and sums its
 * own. In the end it has its slice of the sum over all ranks. Down: results go back the same way, last level first.
 * Messages are cut into blocks, so that the levels overlap.
 *
 * Sums are in the order of ranks within a level, and in f32 for halves, so that all is rounded once.
 */
#include "collective/job.h"

enum { UP, DOWN }; /* phases, from the caller's first */

/* One level of a rank. */
typedef struct level {
  int size, at, number;
  pith_range whole, mine; /* what is summed before it, and our part of that */
  const uint8_t *values;  /* ours of `whole` … */
  pith_dtype dtype;       /* … and their type */
  uint8_t *sum, *staging; /* of `mine`; values of the others */
  size_t block;           /* values of a message */
  pith_ready_list summed; /* `mine`, block after block */
} level;

typedef struct plan {
  const pith_grid *grid;
  pith_raw raw;
  unsigned phase;
  pith_dtype partial;
  level level[PITH_GRID_LEVELS];
  int levels; /* with more than one rank each */
  uint32_t before, end;
} plan;

static pith_range part_of(const level *l, int coordinate) {
  pith_range part = pith__split(l->whole.n, 1, (size_t)l->size, (size_t)coordinate);
  part.first += l->whole.first;
  return part;
}

static size_t blocks_of(pith_range r, size_t block) { return r.n / block + (r.n % block != 0); }

static void make_level(pith_job *job, plan *p, int number) {
  pith_schedule *s = &job->schedule;
  const level *below = p->levels ? &p->level[p->levels - 1] : NULL;
  level *l = &p->level[p->levels++];
  *l = (level){.size = p->grid->size[number],
               .at = pith__grid_at(p->grid, job->rank, number),
               .number = number,
               .whole = below ? below->mine : (pith_range){0, p->raw.n},
               .values = below ? below->sum : p->raw.src,
               .dtype = below ? p->partial : p->raw.dtype};
  size_t width = pith_dtype_size(l->dtype);
  l->mine = part_of(l, l->at);
  l->block = job->message / width ? job->message / width : 1;
  l->sum = pith__schedule_buffer(s, l->mine.n + 1, pith_dtype_size(p->partial));
  l->staging = pith__schedule_buffer(s, l->mine.n + 1, (size_t)(l->size - 1) * width);
  l->summed = pith__ready_list(s, blocks_of(l->mine, l->block));
}

/* ---- Up ---------------------------------------------------------------------------------------------------------- */

typedef struct sources {
  const plan *plan;
  const level *level;
  int count;
  void *sum;
  const void *of[];
} sources;

/* The last level makes the result of its sum. */
static pith_status work_sum(pith_job *job, const pith_task *task) {
  const sources *from = task->values;
  const plan *p = from->plan;
  const pith_raw *raw = &p->raw;
  if (from->level == p->level) {
    pith__partial_sum(raw, from->of, from->count, from->sum, task->n);
  } else {
    pith__partial_sum(&(pith_raw){.dtype = p->partial, .reduce = raw->reduce}, from->of, from->count, from->sum,
                      task->n);
  }
  if (from->level == &p->level[p->levels - 1]) {
    pith__partial_finish(raw, job->ranks, from->sum, raw->dst + task->first * pith_dtype_size(raw->dtype), task->n);
  }
  return PITH_OK;
}

static int peer_of(const pith_job *job, const plan *p, const level *l, int coordinate) {
  return pith__grid_peer(p->grid, job->rank, l->number, coordinate);
}

static uint32_t tag_of(const plan *p, int phase, size_t block) { return PITH_TAG(p->phase + (unsigned)phase, block); }

static pith_piece *piece_over(pith_job *job, const void *data, size_t first, size_t n, pith_dtype dtype) {
  size_t width = pith_dtype_size(dtype);
  return pith__schedule_piece_over(&job->schedule, (uint8_t *)(uintptr_t)data + first * width, n * width);
}

/* The values of one block of our part: ours, and those of all peers, which are received. */
static void add_sum(pith_job *job, plan *p, level *l, size_t number) {
  pith_schedule *s = &job->schedule;
  pith_range range = pith__split_chunk(l->mine, l->block, number);
  size_t width = pith_dtype_size(l->dtype), at = range.first - l->mine.first;
  sources *from = pith__schedule_take(s, 1, sizeof *from + (size_t)l->size * sizeof *from->of);
  if (range.n == 0 || !from) {
    return;
  }
  *from = (sources){.plan = p, .level = l, .count = l->size, .sum = l->sum + at * pith_dtype_size(p->partial)};
  uint32_t sum = pith__schedule_work(s,
                                     (pith_task){.work = work_sum,
                                                 .effort = PITH_EFFORT_SUM,
                                                 .passes = l->size,
                                                 .first = range.first,
                                                 .n = range.n,
                                                 .values = from},
                                     p->before);
  for (int c = 0, other = 0; c < l->size; c++) {
    uint8_t *into = l->staging + ((size_t)other * l->mine.n + at) * width;
    from->of[c] = c == l->at ? l->values + (range.first - l->whole.first) * width : into;
    if (c != l->at) {
      pith_piece *piece = pith__schedule_piece_over(s, into, range.n * width);
      uint32_t arrived = pith__schedule_receive(s, peer_of(job, p, l, c), tag_of(p, UP, number), piece, p->before);
      pith__schedule_after(s, sum, arrived);
      other++;
    }
  }
  if (l > p->level) {
    pith__ready_before(s, &l[-1].summed, range, sum);
  }
  pith__ready_add(&l->summed, range, sum);
  pith__schedule_after(s, p->end, sum);
}

/* The i-th block to send: those for the parts of the next level in turn, ours last. Else all ranks of a level would
 * first wait for the same of the next. */
static size_t block_at(const plan *p, const level *l, size_t blocks, size_t i) {
  if (l == &p->level[PITH_GRID_LEVELS - 1] || l[1].size == 0) {
    return i;
  }
  size_t parts = (size_t)l[1].size, each = blocks / parts, first = each * parts;
  if (each == 0) {
    return (i + 1 + (size_t)l[1].at * blocks / parts) % blocks;
  }
  return i < first ? (i + 1 + (size_t)l[1].at) % parts * each + i / parts : i;
}

/* Sends the peers at a level their blocks. Results may overwrite the first level's: *sent has the tasks, by peer and
 * block. */
static void add_up(pith_job *job, plan *p, level *l, uint32_t *sent) {
  pith_schedule *s = &job->schedule;
  size_t blocks = blocks_of(part_of(l, 0), l->block);
  for (size_t i = 0; i < blocks && !s->failed; i++) {
    size_t b = block_at(p, l, blocks, i);
    for (int step = 1; step < l->size; step++) {
      int to = (l->at + step) % l->size;
      pith_range range = pith__split_chunk(part_of(l, to), l->block, b);
      uint32_t send = PITH_NO_TASK;
      if (range.n) {
        pith_piece *piece = piece_over(job, l->values, range.first - l->whole.first, range.n, l->dtype);
        send = pith__schedule_send(s, peer_of(job, p, l, to), tag_of(p, UP, b), piece, p->before);
        if (l > p->level) {
          pith__ready_before(s, &l[-1].summed, range, send);
        }
        pith__schedule_after(s, p->end, send);
      }
      if (sent) {
        sent[b * (size_t)l->size + (size_t)to] = send;
      }
    }
    add_sum(job, p, l, b);
  }
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

/* Sends the results of our part to the peers, and receives those of theirs. `done` has what is ready of our part, and
 * then of all of it. Blocks are those of the tensor's own type, as on the first level, whose sends they wait for. */
static pith_ready_list add_down(pith_job *job, plan *p, const level *l, const pith_ready_list *done,
                                const uint32_t *sent) {
  pith_schedule *s = &job->schedule;
  size_t block = p->level[0].block, blocks = blocks_of(part_of(l, 0), block);
  pith_ready_list all = pith__ready_list(s, done->count + blocks * (size_t)l->size);
  for (size_t i = 0; i < done->count; i++) {
    pith__ready_add(&all, done->item[i].range, done->item[i].task);
  }
  for (size_t b = 0; b < blocks && !s->failed; b++) {
    pith_range mine = pith__split_chunk(l->mine, block, b);
    pith_piece *result = mine.n ? piece_over(job, p->raw.dst, mine.first, mine.n, p->raw.dtype) : NULL;
    for (int step = 1; step < l->size; step++) {
      int to = (l->at + step) % l->size, from = (l->at + l->size - step) % l->size;
      pith_range theirs = pith__split_chunk(part_of(l, from), block, b);
      if (result) {
        uint32_t send = pith__schedule_send(s, peer_of(job, p, l, to), tag_of(p, DOWN, b), result, PITH_NO_TASK);
        pith__ready_before(s, done, mine, send);
        pith__schedule_after(s, p->end, send);
      }
      if (theirs.n) {
        pith_piece *into = piece_over(job, p->raw.dst, theirs.first, theirs.n, p->raw.dtype);
        uint32_t before = sent ? sent[b * (size_t)l->size + (size_t)from] : p->before;
        uint32_t arrived = pith__schedule_receive(s, peer_of(job, p, l, from), tag_of(p, DOWN, b), into, before);
        pith__ready_add(&all, theirs, arrived);
        pith__schedule_after(s, p->end, arrived);
      }
    }
  }
  return all;
}

uint32_t pith__add_allreduce_grid(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  plan *p = pith__schedule_take(s, 1, sizeof *p);
  if (!p) {
    return PITH_NO_TASK;
  }
  *p = (plan){.grid = job->grid,
              .raw = *raw,
              .phase = phase,
              .partial = pith__partial_type(raw->dtype, raw->reduce),
              .before = before};
  p->end = pith__schedule_work(s, (pith_task){.work = pith__work_join}, before);
  for (int k = 0; k < PITH_GRID_LEVELS; k++) {
    if (job->grid->size[k] > 1) {
      make_level(job, p, k);
    }
  }
  const level *first = &p->level[0];
  size_t sends = blocks_of(part_of(first, 0), first->block) * (size_t)first->size;
  uint32_t *sent = pith__schedule_take(s, sends + 1, sizeof *sent);
  if (!sent) {
    return PITH_NO_TASK;
  }
  for (size_t i = 0; i < sends; i++) {
    sent[i] = PITH_NO_TASK; /* to ourselves, and what is empty */
  }
  for (int k = 0; k < p->levels && !s->failed; k++) {
    add_up(job, p, &p->level[k], k == 0 ? sent : NULL);
  }
  pith_ready_list done = p->level[p->levels - 1].summed;
  for (int k = p->levels - 1; k >= 0 && !s->failed; k--) {
    done = add_down(job, p, &p->level[k], &done, k == 0 ? sent : NULL);
  }
  return p->end;
}

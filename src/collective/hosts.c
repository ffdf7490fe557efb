/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uncompressed hierarchical allreduce: what blocks.c does with encoded values, with values as they are.
 * docs/algorithms.md, "Hosts". Every value crosses the link between hosts once, however many ranks a host has.
 *
 * Sums of a host travel in the tensor's own type, but those of halves as f32, so that they too are rounded once.
 */
#include "collective/job.h"

#define WINDOW 4

enum { SCATTER, GATHER, UP, DOWN }; /* phases, from the caller's first */

typedef struct plan {
  const pith_layout *layout;
  const pith_raw *raw;
  unsigned phase;
  int host, local_rank, members;
  pith_dtype partial; /* type of a host's sum */
  size_t chunk, chunks;
  uint8_t *slots; /* WINDOW times what slot_bytes says */
  uint32_t end;
} plan;

/* ---- Buffers of a chunk: our host's sums of each slice, its ranks' values of them, other hosts' sums of ours ----- */

static size_t sum_bytes(const plan *p) { return p->chunk * pith_dtype_size(p->partial); }
static size_t value_bytes(const plan *p) { return p->chunk * pith_dtype_size(p->raw->dtype); }

static size_t slot_bytes(const plan *p) {
  size_t bytes = (size_t)p->layout->hosts * (2 * sum_bytes(p) + (size_t)p->members * value_bytes(p));
  return (bytes + 63) / 64 * 64;
}

static uint8_t *slot_of(const plan *p, size_t number) { return p->slots + number % WINDOW * slot_bytes(p); }

static uint8_t *own_sum(const plan *p, size_t number, int host) {
  return slot_of(p, number) + (size_t)host * sum_bytes(p);
}

static uint8_t *other_sum(const plan *p, size_t number, int host) {
  return slot_of(p, number) + (size_t)(p->layout->hosts + host) * sum_bytes(p);
}

static uint8_t *values_of(const plan *p, size_t number, int host, int member) {
  return slot_of(p, number) + (size_t)p->layout->hosts * 2 * sum_bytes(p) +
         ((size_t)host * (size_t)p->members + (size_t)member) * value_bytes(p);
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

typedef struct sources {
  const plan *plan;
  void *sum;
  const void *of[];
} sources;

static pith_status work_sum_host(pith_job *job, const pith_task *task) {
  const sources *from = task->values;
  (void)job;
  pith__partial_sum(from->plan->raw, from->of, from->plan->members, from->sum, task->n);
  return PITH_OK;
}

static pith_status work_finish(pith_job *job, const pith_task *task) {
  const sources *from = task->values;
  const plan *p = from->plan;
  pith_reduce_op reduce = p->raw->reduce == PITH_MEAN ? PITH_SUM : p->raw->reduce;
  pith__reduce_many(p->partial, reduce, from->of, p->layout->hosts, from->sum, task->n);
  pith__partial_finish(p->raw, job->ranks, from->sum, p->raw->dst + task->first * pith_dtype_size(p->raw->dtype),
                       task->n);
  return PITH_OK;
}

static sources *take_sources(pith_job *job, const plan *p, int count, void *sum) {
  sources *from = pith__schedule_take(&job->schedule, 1, sizeof *from + (size_t)count * sizeof *from->of);
  if (from) {
    from->plan = p;
    from->sum = sum;
  }
  return from;
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static pith_range slice_of(const plan *p, int leader, int host, size_t number) {
  pith_range part = pith__split(p->raw->n, 1, (size_t)p->layout->leaders, (size_t)leader);
  pith_range slice = pith__split(part.n, 1, (size_t)p->layout->hosts, (size_t)host);
  slice.first += part.first;
  return pith__split_chunk(slice, p->chunk, number);
}

static uint32_t intra_host_tag(const plan *p, int phase, int host, size_t number) {
  return PITH_TAG(p->phase + (unsigned)phase, number * (size_t)p->layout->hosts + (size_t)host);
}

static uint32_t leader_tag(const plan *p, int phase, size_t number) {
  return PITH_TAG(p->phase + (unsigned)phase, number);
}

static pith_piece *piece_of(pith_job *job, const plan *p, const void *tensor, pith_range range) {
  size_t width = pith_dtype_size(p->raw->dtype);
  return pith__schedule_piece_over(&job->schedule, (uint8_t *)(uintptr_t)tensor + range.first * width, range.n * width);
}

static pith_piece *piece_over_sum(pith_job *job, const plan *p, void *sum, pith_range range) {
  return pith__schedule_piece_over(&job->schedule, sum, range.n * pith_dtype_size(p->partial));
}

/* Sends a result in dst to the other ranks of our host. */
static void add_copies(pith_job *job, const plan *p, int host, size_t number, pith_range range, uint32_t ready) {
  for (int i = 0; i < p->members; i++) {
    int rank = pith__layout_rank(p->layout, p->host, i);
    if (rank != job->rank) {
      uint32_t sent = pith__schedule_send(&job->schedule, rank, intra_host_tag(p, DOWN, host, number),
                                          piece_of(job, p, p->raw->dst, range), ready);
      pith__schedule_after(&job->schedule, p->end, sent);
    }
  }
}

/* ---- A leader's slices ------------------------------------------------------------------------------------------- */

/* Our host's sum of a slice. */
static uint32_t add_host_sum(pith_job *job, const plan *p, int host, size_t number, pith_range range, uint32_t before) {
  pith_schedule *s = &job->schedule;
  sources *from = take_sources(job, p, p->members, own_sum(p, number, host));
  if (!from) {
    return PITH_NO_TASK;
  }
  uint32_t work = pith__schedule_work(
      &job->schedule,
      (pith_task){.work = work_sum_host, .effort = PITH_EFFORT_SUM, .passes = p->members, .n = range.n, .values = from},
      before);
  for (int i = 0; i < p->members; i++) {
    int rank = pith__layout_rank(p->layout, p->host, i);
    if (rank == job->rank) {
      from->of[i] = p->raw->src + range.first * pith_dtype_size(p->raw->dtype);
    } else {
      uint8_t *into = values_of(p, number, host, i);
      pith_piece *piece = pith__schedule_piece_over(s, into, range.n * pith_dtype_size(p->raw->dtype));
      from->of[i] = into;
      pith__schedule_after(s, work,
                           pith__schedule_receive(s, rank, intra_host_tag(p, UP, host, number), piece, before));
    }
  }
  return work;
}

/* Our own slice: the sums of all hosts, in their order, become the result. */
static uint32_t add_own_slice(pith_job *job, const plan *p, size_t number, pith_range range, uint32_t summed,
                              uint32_t before) {
  pith_schedule *s = &job->schedule;
  sources *from = take_sources(job, p, p->layout->hosts, own_sum(p, number, p->host));
  if (!from) {
    return PITH_NO_TASK;
  }
  uint32_t finish = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = work_finish,
                                                    .effort = PITH_EFFORT_SUM,
                                                    .passes = p->layout->hosts,
                                                    .first = range.first,
                                                    .n = range.n,
                                                    .values = from},
                                        summed);
  for (int h = 0; h < p->layout->hosts; h++) {
    from->of[h] = h == p->host ? own_sum(p, number, h) : other_sum(p, number, h);
    if (h != p->host) {
      pith_piece *piece = piece_over_sum(job, p, other_sum(p, number, h), range);
      pith__schedule_after(s, finish,
                           pith__schedule_receive(s, pith__layout_rank(p->layout, h, p->local_rank),
                                                  leader_tag(p, SCATTER, number), piece, before));
    }
  }
  for (int step = 1; step < p->layout->hosts; step++) {
    int peer = pith__layout_rank(p->layout, (p->host + step) % p->layout->hosts, p->local_rank);
    pith_piece *result = piece_of(job, p, p->raw->dst, range);
    pith__schedule_after(s, p->end, pith__schedule_send(s, peer, leader_tag(p, GATHER, number), result, finish));
  }
  add_copies(job, p, p->host, number, range, finish);
  return finish;
}

/* Another host's slice: our sum goes there, the result comes back. */
static uint32_t add_other_slice(pith_job *job, const plan *p, int host, size_t number, pith_range range,
                                uint32_t summed) {
  pith_schedule *s = &job->schedule;
  int owner = pith__layout_rank(p->layout, host, p->local_rank);
  pith_piece *sum = piece_over_sum(job, p, own_sum(p, number, host), range);
  uint32_t sent = pith__schedule_send(s, owner, leader_tag(p, SCATTER, number), sum, summed);
  uint32_t arrived =
      pith__schedule_receive(s, owner, leader_tag(p, GATHER, number), piece_of(job, p, p->raw->dst, range), summed);
  add_copies(job, p, host, number, range, arrived);
  pith__schedule_after(s, p->end, arrived);
  return sent;
}

/* One chunk. Returns the task after which its buffers are free. */
static uint32_t add_leader_chunk(pith_job *job, const plan *p, size_t number, uint32_t before) {
  uint32_t free_again = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, before);
  for (int step = 1; step <= p->layout->hosts; step++) {
    int host = (p->host + step) % p->layout->hosts;
    pith_range range = slice_of(p, p->local_rank, host, number);
    if (range.n) {
      uint32_t summed = add_host_sum(job, p, host, number, range, before);
      uint32_t used = host == p->host ? add_own_slice(job, p, number, range, summed, before)
                                      : add_other_slice(job, p, host, number, range, summed);
      pith__schedule_after(&job->schedule, free_again, used);
    }
  }
  pith__schedule_after(&job->schedule, p->end, free_again);
  return free_again;
}

/* ---- Slices of the other leaders of our host --------------------------------------------------------------------- */

static void add_member_chunk(pith_job *job, const plan *p, int leader, size_t number, uint32_t before) {
  pith_schedule *s = &job->schedule;
  int rank = pith__layout_rank(p->layout, p->host, leader);
  for (int step = 1; step <= p->layout->hosts; step++) {
    int host = (p->host + step) % p->layout->hosts;
    pith_range range = slice_of(p, leader, host, number);
    if (range.n) {
      uint32_t sent = pith__schedule_send(s, rank, intra_host_tag(p, UP, host, number),
                                          piece_of(job, p, p->raw->src, range), before);
      uint32_t arrived = pith__schedule_receive(s, rank, intra_host_tag(p, DOWN, host, number),
                                                piece_of(job, p, p->raw->dst, range), sent);
      pith__schedule_after(s, p->end, arrived);
    }
  }
}

static plan *make_plan(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  const pith_layout *layout = job->layout;
  plan *p = pith__schedule_take(&job->schedule, 1, sizeof *p);
  pith_raw *copy = pith__schedule_take(&job->schedule, 1, sizeof *copy);
  if (!p || !copy) {
    return NULL;
  }
  *copy = *raw;
  *p = (plan){.layout = layout,
              .raw = copy,
              .phase = phase,
              .host = layout->host[job->rank],
              .local_rank = layout->local_rank[job->rank]};
  p->members = pith__layout_members(layout, p->host);
  p->partial = pith__partial_type(raw->dtype, raw->reduce);
  p->chunk = (job->chunk < job->message ? job->chunk : job->message) / pith_dtype_size(raw->dtype);
  p->chunk = p->chunk ? p->chunk : 1;
  p->chunks =
      pith__split_chunks(pith__split(raw->n, 1, (size_t)layout->leaders, 0).n, 1, (size_t)layout->hosts, p->chunk);
  p->slots = pith__schedule_buffer(&job->schedule, p->chunks < WINDOW ? p->chunks : WINDOW, slot_bytes(p));
  p->end = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, before);
  return p;
}

uint32_t pith__add_allreduce_hosts(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t start) {
  const plan *p = make_plan(job, raw, phase, start);
  uint32_t free_again[WINDOW];
  for (size_t c = 0; p && c < p->chunks && !job->schedule.failed; c++) {
    uint32_t before = c < WINDOW || p->local_rank >= p->layout->leaders ? start : free_again[c % WINDOW];
    for (int step = 1; step <= p->layout->leaders; step++) {
      int leader = (p->local_rank + step) % p->layout->leaders;
      if (leader != p->local_rank) {
        add_member_chunk(job, p, leader, c, before);
      }
    }
    if (p->local_rank < p->layout->leaders) {
      free_again[c % WINDOW] = add_leader_chunk(job, p, c, before);
    }
  }
  return p ? p->end : PITH_NO_TASK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with block codecs: scatter, reduce, gather, each message encoded. docs/algorithms.md, "Scatter, reduce,
 * gather" and "Hosts".
 *
 * The tensor is cut into a part for each leader of a host, a part into a slice for each host: leader l of host h owns
 * slice (l, h). Leader l of every other host sends its host's sum of that slice, encoded, to the owner, which adds its
 * own as it is. The owner's result comes back to the leaders, and from them, as the same bytes, to the other ranks of
 * their hosts. In a flat layout every rank is the only leader of its host, and there is no intra-host communication.
 *
 * Chunks of slices follow each other through encoding, wire and decoding, so that these overlap. A buffer serves every
 * WINDOW-th chunk, and no rank is further ahead than that.
 */
#include "collective/job.h"
#include "collective/parts.h"

#define WINDOW 4

enum { PHASE_SCATTER, PHASE_GATHER, PHASE_UP, PHASE_DOWN };

typedef struct plan {
  const pith_layout *layout;
  int host, local_rank; /* ours */
  int crowded;          /* our host has several ranks */
  pith_parts parts;     /* slices of all owners */
  size_t chunk, chunks; /* values, number */
  float *buffer;        /* WINDOW times: the sum of our own slice, then our host's sum of the slice of each host */
} plan;

static size_t buffers_of(const plan *p) { return 1 + (p->crowded ? (size_t)p->layout->hosts : 0); }

static plan make_plan(pith_job *job) {
  const pith_layout *layout = job->layout;
  int is_flat = layout->hosts == job->ranks; /* then nothing is sent within hosts */
  plan p = {.layout = layout,
            .host = layout->host[job->rank],
            .local_rank = layout->local_rank[job->rank],
            .parts = pith__parts_make(job, pith__parts_granule(job->codec, is_flat ? NULL : job->inside),
                                      layout->leaders, layout->hosts)};
  size_t wanted = job->chunk / sizeof(float) / p.parts.granule, slice = pith__parts_largest(job, &p.parts);
  p.crowded = pith__layout_members(layout, p.host) > 1;
  p.chunk = (wanted ? wanted : 1) * p.parts.granule;
  p.chunks = slice / p.chunk + (slice % p.chunk != 0);
  p.chunk = p.chunk < slice ? p.chunk : slice;
  p.buffer = pith__schedule_buffer(&job->schedule, (p.chunks < WINDOW ? p.chunks : WINDOW) * buffers_of(&p),
                                   p.chunk * sizeof *p.buffer);
  return p;
}

static float *buffer_of(const plan *p, size_t number, size_t index) {
  return p->buffer + (number % WINDOW * buffers_of(p) + index) * p->chunk;
}

static pith_range slice_of(const pith_job *job, const plan *p, int leader, int host, size_t number) {
  return pith__split_chunk(pith__parts_of(job, &p->parts, leader, host), p->chunk, number);
}

/* Messages between a rank and a leader of its host. */
static uint32_t intra_host_tag(const plan *p, int phase, int host, size_t number) {
  return PITH_TAG(phase, number * (size_t)p->layout->hosts + (size_t)host);
}

/* ---- A leader's slices ------------------------------------------------------------------------------------------- */

/* Our host's values of a slice, and the task after which they are there: encoded, or as they are, which is for the
 * slice that we sum ourselves. Then the piece is the sum of all ranks here, or NULL: src alone. */
typedef struct host_values {
  pith_piece *piece;
  int is_exact;
  uint32_t ready;
} host_values;

static host_values add_values(pith_job *job, const plan *p, int host, size_t number, pith_range range,
                              uint32_t before) {
  host_values v = {.is_exact = host == p->host && pith__own_is_exact(job->codec), .ready = before};
  float *sum = NULL;
  if (p->crowded) {
    sum = buffer_of(p, number, 1 + (size_t)host);
    v.ready = pith__add_intra_host_sum(job, range, intra_host_tag(p, PHASE_UP, host, number), sum, before);
  }
  if (v.is_exact) {
    v.piece = sum ? pith__schedule_piece_over(&job->schedule, sum, range.n * sizeof *sum) : NULL;
    return v;
  }
  v.piece = pith__piece_for(job, range.n);
  v.ready = pith__schedule_work(&job->schedule,
                                (pith_task){.work = pith__work_encode,
                                            .effort = PITH_EFFORT_ENCODE,
                                            .piece = v.piece,
                                            .first = range.first,
                                            .n = range.n,
                                            .values = sum},
                                v.ready);
  return v;
}

/* Receives all hosts' values of our slice and adds them up in the order of hosts. Returns the last addition. */
static uint32_t add_sum(pith_job *job, const plan *p, pith_range range, size_t number, host_values own, float *sum,
                        uint32_t before) {
  pith_schedule *s = &job->schedule;
  uint32_t last = before;
  for (int h = 0; h < p->layout->hosts; h++) {
    host_values v = own;
    int peer = pith__layout_rank(p->layout, h, p->local_rank);
    if (h != p->host) {
      v = (host_values){.piece = pith__piece_for(job, range.n)};
      v.ready = pith__schedule_receive(s, peer, PITH_TAG(PHASE_SCATTER, number), v.piece, PITH_NO_TASK);
    }
    uint32_t added = pith__schedule_work(&job->schedule,
                                         (pith_task){.work = v.is_exact ? pith__work_sum_own : pith__work_decode,
                                                     .effort = v.is_exact ? PITH_EFFORT_SUM : PITH_EFFORT_DECODE,
                                                     .peer = peer,
                                                     .piece = v.piece,
                                                     .first = range.first,
                                                     .n = range.n,
                                                     .values = sum,
                                                     .mode = h ? PITH_ADD : PITH_SET},
                                         v.ready);
    pith__schedule_after(s, added, last);
    last = added;
  }
  return last;
}

/* Sends the result of our slice to the other leaders and to the ranks of our host. All decode the same bytes, and so do
 * we. */
static uint32_t add_result(pith_job *job, const plan *p, pith_range range, size_t number, float *sum, uint32_t summed) {
  pith_piece *result = pith__piece_for(job, range.n);
  uint32_t encode = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_encode_result,
                                                    .effort = PITH_EFFORT_ENCODE,
                                                    .piece = result,
                                                    .first = range.first,
                                                    .n = range.n,
                                                    .values = sum},
                                        summed);
  for (int step = 1; step < p->layout->hosts; step++) {
    int peer = pith__layout_rank(p->layout, (p->host + step) % p->layout->hosts, p->local_rank);
    pith__schedule_send(&job->schedule, peer, PITH_TAG(PHASE_GATHER, number), result, encode);
  }
  pith__add_intra_host_copies(job, intra_host_tag(p, PHASE_DOWN, p->host, number), result, encode);
  pith__add_decode_result(job, job->rank, result, range, encode);
  return encode;
}

/* The results of the other hosts' slices. In place nothing is lost: an owner's result is made of what we encoded
 * before. */
static void add_results_of_others(pith_job *job, const plan *p, size_t number) {
  for (int step = 1; step < p->layout->hosts; step++) {
    int host = (p->host + p->layout->hosts - step) % p->layout->hosts,
        owner = pith__layout_rank(p->layout, host, p->local_rank);
    pith_range range = slice_of(job, p, p->local_rank, host, number);
    if (range.n) {
      pith_piece *piece = pith__piece_for(job, range.n);
      uint32_t arrived =
          pith__schedule_receive(&job->schedule, owner, PITH_TAG(PHASE_GATHER, number), piece, PITH_NO_TASK);
      pith__add_intra_host_copies(job, intra_host_tag(p, PHASE_DOWN, host, number), piece, arrived);
      pith__add_decode_result(job, owner, piece, range, arrived);
    }
  }
}

/* One chunk of our slices. Returns the task after which its buffers are free. */
static uint32_t add_leader_chunk(pith_job *job, const plan *p, size_t number, uint32_t before) {
  pith_schedule *s = &job->schedule;
  host_values own = {.ready = before};
  uint32_t free_again = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, before);
  for (int step = 1; step <= p->layout->hosts; step++) {
    int host = (p->host + step) % p->layout->hosts;
    pith_range range = slice_of(job, p, p->local_rank, host, number);
    if (range.n == 0) {
      continue;
    }
    host_values v = add_values(job, p, host, number, range, before);
    if (host == p->host) {
      own = v;
    } else {
      pith__schedule_after(s, free_again, v.ready);
      pith__schedule_send(s, pith__layout_rank(p->layout, host, p->local_rank), PITH_TAG(PHASE_SCATTER, number),
                          v.piece, v.ready);
    }
  }
  pith_range mine = slice_of(job, p, p->local_rank, p->host, number);
  if (mine.n) {
    float *sum = buffer_of(p, number, 0);
    uint32_t summed = add_sum(job, p, mine, number, own, sum, before);
    pith__schedule_after(s, free_again, add_result(job, p, mine, number, sum, summed));
  }
  add_results_of_others(job, p, number);
  return free_again;
}

/* ---- Slices of the other leaders of our host --------------------------------------------------------------------- */

static void add_member_chunk(pith_job *job, const plan *p, int leader, size_t number, uint32_t before) {
  int rank = pith__layout_rank(p->layout, p->host, leader);
  for (int step = 1; step <= p->layout->hosts; step++) {
    int host = (p->host + step) % p->layout->hosts;
    pith_range range = slice_of(job, p, leader, host, number);
    if (range.n) {
      uint32_t sent = pith__add_intra_host_send(job, rank, range, intra_host_tag(p, PHASE_UP, host, number), before);
      pith_piece *piece = pith__piece_for(job, range.n);
      uint32_t arrived = pith__schedule_receive(&job->schedule, rank, intra_host_tag(p, PHASE_DOWN, host, number),
                                                piece, PITH_NO_TASK);
      uint32_t decode = pith__add_decode_result(job, pith__layout_rank(p->layout, host, leader), piece, range, arrived);
      pith__schedule_after(&job->schedule, decode, sent);
    }
  }
}

pith_status pith__allreduce_blocks(pith_job *job) {
  plan p = make_plan(job);
  int leaders = p.layout->leaders;
  uint32_t free_again[WINDOW];
  for (size_t c = 0; c < p.chunks && !job->schedule.failed; c++) {
    uint32_t before = c < WINDOW ? PITH_NO_TASK : free_again[c % WINDOW];
    for (int step = 1; step <= leaders; step++) {
      int leader = (p.local_rank + step) % leaders;
      if (leader != p.local_rank) {
        add_member_chunk(job, &p, leader, c, before);
      }
    }
    free_again[c % WINDOW] = p.local_rank < leaders ? add_leader_chunk(job, &p, c, before) : PITH_NO_TASK;
  }
  return pith__schedule_finished(job);
}

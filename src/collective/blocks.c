/*
 * Allreduce with block codecs: scatter, reduce, gather, each message encoded. docs/algorithms.md, "Scatter, reduce,
 * gather" and "Hosts".
 *
 * The tensor is cut into a part for each leader of a host, a part into a slice for each host: leader l of host h owns
 * slice (l, h). Leader l of every host sends its host's sum of that slice, encoded, to the owner. The owner's result
 * comes back to the leaders, and from them, as the same bytes, to the other ranks of their hosts. In a flat layout
 * every rank is the only leader of its host, and there is no intra-host communication.
 *
 * Chunks of slices follow each other through encoding, wire and decoding, so that these overlap. A buffer serves every
 * WINDOW-th chunk, and no rank is further ahead than that.
 */
#include "collective/job.h"

#define WINDOW 4

enum { PHASE_SCATTER, PHASE_GATHER, PHASE_UP, PHASE_DOWN };

typedef struct plan {
  const pith_layout *layout;
  int host, local_rank;          /* ours */
  int crowded;                   /* our host has several ranks */
  size_t granule, chunk, chunks; /* values, values, number */
  float *buffer; /* WINDOW times: the sum of our own slice, then our host's sum of the slice of each host */
} plan;

/* Slices start where both codecs can start. */
static size_t common_granule(const pith_job *job) {
  size_t a = job->codec->granule, b = job->inside ? job->inside->granule : 1, x = a, y = b;
  while (y) {
    size_t rest = x % y;
    x = y;
    y = rest;
  }
  return a / x * b;
}

static size_t buffers_of(const plan *p) { return 1 + (p->crowded ? (size_t)p->layout->hosts : 0); }

static plan make_plan(pith_job *job) {
  const pith_layout *layout = job->layout;
  plan p = {.layout = layout,
            .host = layout->host[job->rank],
            .local_rank = layout->local_rank[job->rank],
            .granule = common_granule(job)};
  size_t wanted = job->chunk / sizeof(float) / p.granule, part, slice;
  p.crowded = pith__layout_members(layout, p.host) > 1;
  p.chunk = (wanted ? wanted : 1) * p.granule;
  part = pith__split(job->src.n, p.granule, (size_t)layout->leaders, 0).n;
  slice = pith__split(part, p.granule, (size_t)layout->hosts, 0).n;
  p.chunks = pith__split_chunks(part, p.granule, (size_t)layout->hosts, p.chunk);
  p.chunk = p.chunk < slice ? p.chunk : slice;
  p.buffer = pith__schedule_take(&job->schedule, (p.chunks < WINDOW ? p.chunks : WINDOW) * buffers_of(&p),
                                 p.chunk * sizeof *p.buffer);
  return p;
}

static float *buffer_of(const plan *p, size_t number, size_t index) {
  return p->buffer + (number % WINDOW * buffers_of(p) + index) * p->chunk;
}

static pith_range slice_of(const pith_job *job, const plan *p, int leader, int host, size_t number) {
  pith_range part = pith__split(job->src.n, p->granule, (size_t)p->layout->leaders, (size_t)leader);
  pith_range slice = pith__split(part.n, p->granule, (size_t)p->layout->hosts, (size_t)host);
  slice.first += part.first;
  return pith__split_chunk(slice, p->chunk, number);
}

/* Messages between a rank and a leader of its host. */
static uint32_t intra_host_tag(const plan *p, int phase, int host, size_t number) {
  return PITH_TAG(phase, number * (size_t)p->layout->hosts + (size_t)host);
}

static uint32_t add_decode_result(pith_job *job, int owner, pith_piece *piece, pith_range range, uint32_t arrived) {
  return pith__add_work(job,
                        (pith_task){.work = pith__work_decode_result,
                                    .peer = owner,
                                    .piece = piece,
                                    .first = range.first,
                                    .n = range.n,
                                    .at = range.first},
                        arrived);
}

/* ---- A leader's slices ------------------------------------------------------------------------------------------- */

/* Our host's values of a slice, encoded: src alone, or the sum of all ranks here. */
static pith_piece *add_encoded(pith_job *job, const plan *p, int host, size_t number, pith_range range, uint32_t before,
                               uint32_t *encoded) {
  float *sum = NULL;
  if (p->crowded) {
    sum = buffer_of(p, number, 1 + (size_t)host);
    before = pith__add_intra_host_sum(job, range, intra_host_tag(p, PHASE_UP, host, number), sum, before);
  }
  pith_piece *piece = pith__piece_for(job, range.n);
  *encoded = pith__add_work(
      job, (pith_task){.work = pith__work_encode, .piece = piece, .first = range.first, .n = range.n, .values = sum},
      before);
  return piece;
}

/* Receives all hosts' values of our slice and adds them up in the order of hosts. Returns the last addition. */
static uint32_t add_sum(pith_job *job, const plan *p, pith_range range, size_t number, pith_piece *own,
                        uint32_t encoded, float *sum, uint32_t before) {
  pith_schedule *s = &job->schedule;
  uint32_t last = before;
  for (int h = 0; h < p->layout->hosts; h++) {
    int peer = pith__layout_rank(p->layout, h, p->local_rank);
    pith_piece *piece = h == p->host ? own : pith__piece_for(job, range.n);
    uint32_t arrived =
        h == p->host ? encoded : pith__schedule_receive(s, peer, PITH_TAG(PHASE_SCATTER, number), piece, PITH_NO_TASK);
    uint32_t decode = pith__add_work(job,
                                     (pith_task){.work = pith__work_decode,
                                                 .peer = peer,
                                                 .piece = piece,
                                                 .first = range.first,
                                                 .n = range.n,
                                                 .values = sum,
                                                 .mode = h ? PITH_ADD : PITH_SET},
                                     arrived);
    pith__schedule_after(s, decode, last);
    last = decode;
  }
  return last;
}

/* Sends the result of our slice to the other leaders and to the ranks of our host. All decode the same bytes, and so do
 * we. */
static uint32_t add_result(pith_job *job, const plan *p, pith_range range, size_t number, float *sum, uint32_t summed) {
  pith_piece *result = pith__piece_for(job, range.n);
  uint32_t encode = pith__add_work(
      job,
      (pith_task){.work = pith__work_encode_result, .piece = result, .first = range.first, .n = range.n, .values = sum},
      summed);
  for (int step = 1; step < p->layout->hosts; step++) {
    int peer = pith__layout_rank(p->layout, (p->host + step) % p->layout->hosts, p->local_rank);
    pith__schedule_send(&job->schedule, peer, PITH_TAG(PHASE_GATHER, number), result, encode);
  }
  pith__add_intra_host_copies(job, intra_host_tag(p, PHASE_DOWN, p->host, number), result, encode);
  add_decode_result(job, job->rank, result, range, encode);
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
      add_decode_result(job, owner, piece, range, arrived);
    }
  }
}

/* One chunk of our slices. Returns the task after which its buffers are free. */
static uint32_t add_leader_chunk(pith_job *job, const plan *p, size_t number, uint32_t before) {
  pith_schedule *s = &job->schedule;
  uint32_t used = PITH_NO_TASK, encoded = PITH_NO_TASK;
  pith_piece *own = NULL;
  uint32_t free_again = pith__add_work(job, (pith_task){.work = pith__work_join}, before);
  for (int step = 1; step <= p->layout->hosts; step++) {
    int host = (p->host + step) % p->layout->hosts;
    pith_range range = slice_of(job, p, p->local_rank, host, number);
    if (range.n == 0) {
      continue;
    }
    pith_piece *piece = add_encoded(job, p, host, number, range, before, &encoded);
    pith__schedule_after(s, free_again, encoded);
    if (host == p->host) {
      own = piece;
    } else {
      pith__schedule_send(s, pith__layout_rank(p->layout, host, p->local_rank), PITH_TAG(PHASE_SCATTER, number), piece,
                          encoded);
    }
  }
  if (own) {
    pith_range mine = slice_of(job, p, p->local_rank, p->host, number);
    float *sum = buffer_of(p, number, 0);
    used = add_result(job, p, mine, number, sum, add_sum(job, p, mine, number, own, encoded, sum, before));
  }
  pith__schedule_after(s, free_again, used);
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
      uint32_t decode = add_decode_result(job, pith__layout_rank(p->layout, host, leader), piece, range, arrived);
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

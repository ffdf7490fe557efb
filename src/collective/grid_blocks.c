/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce with block codecs over a grid. docs/algorithms.md, "Grid".
 *
 * A value is encoded twice, however many ranks there are. Within a host values go to leaders as they are (or by the
 * intra-host codec), as in blocks.c. On the second level a leader encodes its host's sums, and sends each peer its
 * part; who gets them adds them up in f32. These sums are those of many hosts, but of few values: on the third level
 * they travel as they are. The owner of a slice encodes the result. It comes back the same way, as the same bytes.
 */
#include "collective/job.h"
#include "collective/parts.h"

enum { PHASE_SCATTER, PHASE_SUM, PHASE_RESULT, PHASE_PASS, PHASE_UP, PHASE_DOWN };
enum { HOST, RACK, TOP };

typedef struct plan {
  const pith_grid *grid;
  int at[PITH_GRID_LEVELS];
  pith_parts parts;
  pith_range host, rack, own; /* what our leaders' part, our part of that, and our slice of it are */
  size_t chunk;               /* values that go to a leader at a time */
  float *host_sum;            /* of `host`; NULL: a rank is a host */
  pith_ready_list host_ready;
  uint8_t *coded; /* the result of `host` */
} plan;

static pith_range rack_part(const pith_job *job, const plan *p, int leader, int host) {
  return pith__parts_under(job, &p->parts, leader, host);
}

static pith_range own_part(const pith_job *job, const plan *p, int host, int rack) {
  return pith__parts_of(job, &p->parts, p->at[HOST], host * p->grid->size[TOP] + rack);
}

static int peer_of(const pith_job *job, const plan *p, int level, int coordinate) {
  return pith__grid_peer(p->grid, job->rank, level, coordinate);
}

/* Bytes of the payload of a range: that of its layers, or pieces of them, one after another. */
static size_t bytes_of(const pith_job *job, pith_range range) {
  size_t bytes = 0;
  pith_segment s = {0};
  while (range.n && pith__next_segment(job, range.first, range.n, &s)) {
    bytes += pith_codec_bound(job->codec, s.n);
  }
  return bytes;
}

static plan make_plan(pith_job *job) {
  pith_schedule *s = &job->schedule;
  plan p = {.grid = job->grid};
  const int *size = p.grid->size;
  size_t granule = pith__parts_granule(job->codec, size[HOST] > 1 ? job->inside : NULL);
  for (int k = 0; k < PITH_GRID_LEVELS; k++) {
    p.at[k] = pith__grid_at(p.grid, job->rank, k);
  }
  p.parts = pith__parts_make_grouped(job, granule, size[HOST], size[RACK] * size[TOP], size[RACK]);
  p.host = rack_part(job, &p, p.at[HOST], PITH_ALL_GROUPS);
  p.rack = rack_part(job, &p, p.at[HOST], p.at[RACK]);
  p.own = own_part(job, &p, p.at[RACK], p.at[TOP]);
  size_t wanted = job->chunk / sizeof(float) / granule;
  p.chunk = (wanted ? wanted : 1) * granule;
  p.coded = pith__schedule_buffer(s, bytes_of(job, p.host) + 1, 1);
  return p;
}

/* Where the payload of a part of `host` is in the result. */
static pith_piece *result_piece(pith_job *job, const plan *p, pith_range range) {
  size_t at = bytes_of(job, (pith_range){p->host.first, range.first - p->host.first});
  return pith__schedule_piece_over(&job->schedule, p->coded + at, bytes_of(job, range));
}

/* ---- Within the host --------------------------------------------------------------------------------------------- */

/* The i-th chunk: first those for the hosts behind ours, so that no host is the first of all others. */
static size_t chunk_at(const plan *p, size_t chunks, size_t i) {
  return (i + 1 + (size_t)p->at[RACK] * chunks / (size_t)p->grid->size[RACK]) % chunks;
}

static size_t chunks_of(const plan *p, pith_range r) { return r.n / p->chunk + (r.n % p->chunk != 0); }

/* Our values to the other leaders; returns the task after which they may be overwritten. */
static uint32_t add_host_sends(pith_job *job, const plan *p) {
  uint32_t sent = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, PITH_NO_TASK);
  for (int step = 1; step < p->grid->size[HOST]; step++) {
    int leader = (p->at[HOST] + step) % p->grid->size[HOST];
    pith_range theirs = rack_part(job, p, leader, PITH_ALL_GROUPS);
    for (size_t i = 0; i < chunks_of(p, theirs); i++) {
      size_t c = chunk_at(p, chunks_of(p, theirs), i);
      pith_range range = pith__split_chunk(theirs, p->chunk, c);
      uint32_t send =
          pith__add_intra_host_send(job, peer_of(job, p, HOST, leader), range, PITH_TAG(PHASE_UP, c), PITH_NO_TASK);
      pith__schedule_after(&job->schedule, sent, send);
    }
  }
  return sent;
}

static void add_host_sum(pith_job *job, plan *p) {
  p->host_sum = pith__schedule_buffer(&job->schedule, p->host.n + 1, sizeof *p->host_sum);
  p->host_ready = pith__ready_list(&job->schedule, chunks_of(p, p->host));
  for (size_t i = 0; i < chunks_of(p, p->host); i++) {
    size_t c = chunk_at(p, chunks_of(p, p->host), i);
    pith_range range = pith__split_chunk(p->host, p->chunk, c);
    float *sum = p->host_sum + (range.first - p->host.first);
    pith__ready_add(&p->host_ready, range,
                    pith__add_intra_host_sum(job, range, PITH_TAG(PHASE_UP, c), sum, PITH_NO_TASK));
  }
}

/* ---- Up ---------------------------------------------------------------------------------------------------------- */

/* Our host's values of a range; NULL: they are in src. */
static float *host_values(const plan *p, pith_range range) {
  return p->host_sum ? p->host_sum + (range.first - p->host.first) : NULL;
}

static uint32_t add_encode(pith_job *job, const plan *p, pith_range range, pith_piece *piece) {
  uint32_t encode = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_encode,
                                                    .effort = PITH_EFFORT_ENCODE,
                                                    .piece = piece,
                                                    .first = range.first,
                                                    .n = range.n,
                                                    .values = host_values(p, range)},
                                        PITH_NO_TASK);
  pith__ready_before(&job->schedule, &p->host_ready, range, encode);
  return encode;
}

static void add_scatter(pith_job *job, const plan *p) {
  for (int step = 1; step < p->grid->size[RACK]; step++) {
    int to = (p->at[RACK] + step) % p->grid->size[RACK];
    pith_range range = rack_part(job, p, p->at[HOST], to);
    if (range.n) {
      pith_piece *piece = pith__schedule_piece(&job->schedule, bytes_of(job, range));
      uint32_t encode = add_encode(job, p, range, piece);
      pith__schedule_send(&job->schedule, peer_of(job, p, RACK, to), PITH_TAG(PHASE_SCATTER, 0), piece, encode);
    }
  }
}

/* The sum of our part over all hosts of the rack, in their order; ours as it is, if the codec lets it. */
static uint32_t add_rack_sum(pith_job *job, const plan *p, float *sum) {
  pith_schedule *s = &job->schedule;
  uint32_t last = PITH_NO_TASK;
  size_t bytes = bytes_of(job, p->rack);
  for (int c = 0; c < p->grid->size[RACK]; c++) {
    int is_own = c == p->at[RACK], is_exact = is_own && pith__own_is_exact(job->codec);
    float *values = host_values(p, p->rack);
    pith_piece *piece = !is_exact ? pith__schedule_piece(s, bytes)
                        : values  ? pith__schedule_piece_over(s, values, p->rack.n * sizeof *values)
                                  : NULL;
    uint32_t ready =
        is_exact ? PITH_NO_TASK
        : is_own ? add_encode(job, p, p->rack, piece)
                 : pith__schedule_receive(s, peer_of(job, p, RACK, c), PITH_TAG(PHASE_SCATTER, 0), piece, PITH_NO_TASK);
    uint32_t added = pith__schedule_work(s,
                                         (pith_task){.work = is_exact ? pith__work_sum_own : pith__work_decode,
                                                     .effort = is_exact ? PITH_EFFORT_SUM : PITH_EFFORT_DECODE,
                                                     .peer = peer_of(job, p, RACK, c),
                                                     .piece = piece,
                                                     .first = p->rack.first,
                                                     .n = p->rack.n,
                                                     .values = sum,
                                                     .mode = c ? PITH_ADD : PITH_SET},
                                         ready);
    if (is_exact) {
      pith__ready_before(s, &p->host_ready, p->rack, added);
    }
    pith__schedule_after(s, added, last);
    last = added;
  }
  return last;
}

/* The sum of our slice over all racks. Returns the task that ends it. */
static uint32_t add_top_sum(pith_job *job, const plan *p, float *rack_sum, float *sum, uint32_t summed) {
  pith_schedule *s = &job->schedule;
  int racks = p->grid->size[TOP];
  pith_reduction *r = pith__schedule_reduction(job, PITH_F32, PITH_SUM, racks, sum);
  float *staging = pith__schedule_buffer(s, (size_t)racks, (p->own.n + 1) * sizeof *staging);
  uint32_t reduce = pith__schedule_work(
      s, (pith_task){.work = pith__work_reduce, .effort = PITH_EFFORT_SUM, .passes = racks, .n = p->own.n, .values = r},
      summed);
  for (int step = 1; step < racks && r; step++) {
    int to = (p->at[TOP] + step) % racks, from = (p->at[TOP] + racks - step) % racks;
    pith_range theirs = own_part(job, p, p->at[RACK], to);
    if (theirs.n) {
      pith_piece *piece =
          pith__schedule_piece_over(s, rack_sum + (theirs.first - p->rack.first), theirs.n * sizeof *rack_sum);
      pith__schedule_send(s, peer_of(job, p, TOP, to), PITH_TAG(PHASE_SUM, 0), piece, summed);
    }
    float *into = staging + (size_t)from * p->own.n;
    r->sources[from] = into;
    if (p->own.n) {
      pith_piece *piece = pith__schedule_piece_over(s, into, p->own.n * sizeof *into);
      pith__schedule_after(
          s, reduce,
          pith__schedule_receive(s, peer_of(job, p, TOP, from), PITH_TAG(PHASE_SUM, 0), piece, PITH_NO_TASK));
    }
  }
  if (r) {
    r->sources[p->at[TOP]] = rack_sum + (p->own.first - p->rack.first);
  }
  return reduce;
}

/* ---- Down -------------------------------------------------------------------------------------------------------- */

/* The result of our slice, from its sum; then of all slices of `rack`. Returns the task after which they are there. */
static uint32_t add_result(pith_job *job, const plan *p, float *sum, uint32_t summed) {
  pith_schedule *s = &job->schedule;
  int racks = p->grid->size[TOP];
  uint32_t all = pith__schedule_work(s, (pith_task){.work = pith__work_join}, PITH_NO_TASK), encode = PITH_NO_TASK;
  pith_piece *own = result_piece(job, p, p->own);
  if (p->own.n) {
    encode = pith__schedule_work(s,
                                 (pith_task){.work = pith__work_encode_result,
                                             .effort = PITH_EFFORT_ENCODE,
                                             .piece = own,
                                             .first = p->own.first,
                                             .n = p->own.n,
                                             .values = sum},
                                 summed);
    pith__schedule_after(s, all, encode);
  }
  for (int step = 1; step < racks; step++) {
    int to = (p->at[TOP] + step) % racks, from = (p->at[TOP] + racks - step) % racks;
    pith_range theirs = own_part(job, p, p->at[RACK], from);
    if (p->own.n) {
      pith__schedule_send(s, peer_of(job, p, TOP, to), PITH_TAG(PHASE_RESULT, 0), own, encode);
    }
    if (theirs.n) {
      pith__schedule_after(s, all,
                           pith__schedule_receive(s, peer_of(job, p, TOP, from), PITH_TAG(PHASE_RESULT, 0),
                                                  result_piece(job, p, theirs), PITH_NO_TASK));
    }
  }
  return all;
}

/* The results of `rack` go to the other hosts, theirs come, and all go to the ranks of our host. */
static void add_pass(pith_job *job, const plan *p, uint32_t ready) {
  pith_schedule *s = &job->schedule;
  int hosts = p->grid->size[RACK];
  pith_piece *ours = result_piece(job, p, p->rack);
  for (int step = 1; step < hosts && p->rack.n; step++) {
    pith__schedule_send(s, peer_of(job, p, RACK, (p->at[RACK] + step) % hosts), PITH_TAG(PHASE_PASS, 0), ours, ready);
  }
  for (int step = 0; step < hosts; step++) {
    int from = (p->at[RACK] + hosts - step) % hosts;
    pith_range range = rack_part(job, p, p->at[HOST], from);
    if (range.n) {
      pith_piece *piece = step ? result_piece(job, p, range) : ours;
      uint32_t arrived =
          step ? pith__schedule_receive(s, peer_of(job, p, RACK, from), PITH_TAG(PHASE_PASS, 0), piece, PITH_NO_TASK)
               : ready;
      if (p->host_sum) {
        pith__add_intra_host_copies(job, PITH_TAG(PHASE_DOWN, from), piece, arrived);
      }
      pith__add_decode_result(job, peer_of(job, p, RACK, from), piece, range, arrived);
    }
  }
}

/* The results of the other leaders of our host; they may overwrite what we sent them. */
static void add_host_results(pith_job *job, const plan *p, uint32_t sent) {
  for (int step = 1; step < p->grid->size[HOST]; step++) {
    int leader = (p->at[HOST] + step) % p->grid->size[HOST], rank = peer_of(job, p, HOST, leader);
    for (int h = 0; h < p->grid->size[RACK]; h++) {
      pith_range range = rack_part(job, p, leader, h);
      if (range.n) {
        pith_piece *piece = pith__schedule_piece(&job->schedule, bytes_of(job, range));
        uint32_t arrived = pith__schedule_receive(&job->schedule, rank, PITH_TAG(PHASE_DOWN, h), piece, PITH_NO_TASK);
        pith__schedule_after(&job->schedule, pith__add_decode_result(job, rank, piece, range, arrived), sent);
      }
    }
  }
}

pith_status pith__allreduce_grid_blocks(pith_job *job) {
  pith_schedule *s = &job->schedule;
  plan p = make_plan(job);
  uint32_t sent = PITH_NO_TASK;
  if (p.grid->size[HOST] > 1) {
    sent = add_host_sends(job, &p);
    add_host_sum(job, &p);
  }
  add_scatter(job, &p);
  if (p.rack.n && !s->failed) {
    float *rack_sum = pith__schedule_buffer(s, p.rack.n, sizeof *rack_sum);
    float *sum = pith__schedule_buffer(s, p.own.n + 1, sizeof *sum);
    uint32_t summed = add_rack_sum(job, &p, rack_sum);
    add_pass(job, &p, add_result(job, &p, sum, add_top_sum(job, &p, rack_sum, sum, summed)));
  } else {
    add_pass(job, &p, PITH_NO_TASK);
  }
  add_host_results(job, &p, sent);
  return pith__schedule_finished(job);
}

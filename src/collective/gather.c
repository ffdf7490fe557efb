/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce by gathering: every rank gets the payloads of all ranks, decodes them and adds them up in the same order.
 * What is encoded is encoded once. That suits codecs that need the whole tensor, few ranks, and methods whose promise
 * (no bias, a bound) a second encoding would break.
 *
 * Tensors of block codecs go chunk after chunk, so that encoding, wire and decoding overlap; WINDOW of them are under
 * way. All others are one chunk.
 *
 * Hierarchically, the first rank of each host is its leader: it adds up the values of its host, encodes the sum, and
 * passes the payloads of all hosts on.
 */
#include "collective/job.h"
#include "collective/parts.h"

#define WINDOW 4

enum { PHASE_GATHER, PHASE_UP, PHASE_DOWN };

/* One chunk. */
typedef struct gathering {
  pith_range range;
  size_t number;
  float *sum; /* of the payloads so far: dst itself if it can be, since all that is read from src there comes first */
  uint32_t last;  /* the last task that uses it */
  int awaits_all; /* nothing is decoded before all payloads are there: ranks whose calls differ are told so first */
  uint32_t set;   /* the first decoding */
} gathering;

static uint32_t down_tag(const pith_job *job, const gathering *g, int host) {
  return PITH_TAG(PHASE_DOWN, g->number * (size_t)job->layout->hosts + (size_t)host);
}

static void add_decode(pith_job *job, gathering *g, int host, int leader, pith_piece *piece, uint32_t arrived) {
  uint32_t decode = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_decode,
                                                    .effort = PITH_EFFORT_DECODE,
                                                    .peer = leader,
                                                    .piece = piece,
                                                    .first = g->range.first,
                                                    .n = g->range.n,
                                                    .values = g->sum,
                                                    .mode = host ? PITH_ADD : PITH_SET},
                                        arrived);
  pith__schedule_after(&job->schedule, decode, g->last);
  g->last = decode;
  if (host == 0) {
    g->set = decode;
  } else if (g->awaits_all) {
    pith__schedule_after(&job->schedule, g->set, arrived);
  }
}

/* Our values, or the sum of our host's. */
static pith_piece *add_encoded(pith_job *job, gathering *g, int crowded) {
  pith_piece *own = pith__piece_for(job, g->range.n);
  if (crowded) {
    g->last = pith__add_intra_host_sum(job, g->range, PITH_TAG(PHASE_UP, g->number), g->sum, g->last);
  }
  g->last = pith__schedule_work(&job->schedule,
                                (pith_task){.work = pith__work_encode,
                                            .effort = PITH_EFFORT_ENCODE,
                                            .piece = own,
                                            .first = g->range.first,
                                            .n = g->range.n,
                                            .values = crowded ? g->sum : NULL},
                                g->last);
  return own;
}

/* The first rank of a host. */
static void add_leader(pith_job *job, gathering *g, int host) {
  pith_schedule *s = &job->schedule;
  const pith_layout *layout = job->layout;
  pith_piece *own = add_encoded(job, g, pith__layout_members(layout, host) > 1);
  uint32_t encoded = g->last, tag = PITH_TAG(PHASE_GATHER, g->number);
  for (int step = 1; step < layout->hosts; step++) {
    pith__schedule_send(s, pith__layout_rank(layout, (host + step) % layout->hosts, 0), tag, own, encoded);
  }
  for (int h = 0; h < layout->hosts; h++) {
    int leader = pith__layout_rank(layout, h, 0);
    pith_piece *piece = h == host ? own : pith__piece_for(job, g->range.n);
    uint32_t arrived = h == host ? encoded : pith__schedule_receive(s, leader, tag, piece, PITH_NO_TASK);
    pith__add_intra_host_copies(job, down_tag(job, g, h), piece, arrived);
    add_decode(job, g, h, leader, piece, arrived);
  }
}

static void add_follower(pith_job *job, gathering *g, int host) {
  const pith_layout *layout = job->layout;
  int first = pith__layout_rank(layout, host, 0);
  g->last = pith__add_intra_host_send(job, first, g->range, PITH_TAG(PHASE_UP, g->number), g->last);
  for (int h = 0; h < layout->hosts; h++) {
    pith_piece *piece = pith__piece_for(job, g->range.n);
    uint32_t arrived = pith__schedule_receive(&job->schedule, first, down_tag(job, g, h), piece, PITH_NO_TASK);
    add_decode(job, g, h, pith__layout_rank(layout, h, 0), piece, arrived);
  }
}

/* One chunk, after `before`. Returns the task after which its sum is not needed. */
static uint32_t add_chunk(pith_job *job, gathering g, uint32_t before) {
  int host = job->layout->host[job->rank];
  g.last = before;
  if (job->layout->local_rank[job->rank] == 0) {
    add_leader(job, &g, host);
  } else {
    add_follower(job, &g, host);
  }
  pith_task store = {.work = pith__work_store_result,
                     .effort = PITH_EFFORT_SUM,
                     .first = g.range.first,
                     .n = g.range.n,
                     .values = g.sum};
  store.at = g.range.first;
  return pith__schedule_work(&job->schedule, store, g.last);
}

/* Values of a chunk of `n`. */
static size_t chunk_of(const pith_job *job, int crowded, size_t n) {
  if (!(job->codec->caps & PITH_CAP_CHUNKED)) {
    return n;
  }
  size_t granule = pith__parts_granule(job->codec, crowded ? job->inside : NULL);
  size_t wanted = job->chunk / sizeof(float) / granule, chunk = (wanted ? wanted : 1) * granule;
  return chunk < n ? chunk : n;
}

/* ---- Short payloads of many ranks: passed on, as in short.c ------------------------------------------------------ */

static int is_passed_on(const pith_job *job, int crowded) {
  return !crowded && !job->member_count && (job->codec->caps & PITH_CAP_FIXED) &&
         pith__is_bruck(pith_codec_bound(job->codec, job->src.n), job->ranks);
}

static void pass_on(pith_job *job) {
  size_t n = job->src.n, bytes = pith_codec_bound(job->codec, n);
  gathering g = {.range = {0, n}, .sum = pith__schedule_buffer(&job->schedule, n, sizeof *g.sum)};
  uint8_t *blocks = pith__schedule_buffer(&job->schedule, (size_t)job->ranks, bytes);
  uint32_t encode = pith__schedule_work(&job->schedule,
                                        (pith_task){.work = pith__work_encode,
                                                    .effort = PITH_EFFORT_ENCODE,
                                                    .piece = pith__schedule_piece_over(&job->schedule, blocks, bytes),
                                                    .n = n},
                                        PITH_NO_TASK);
  g.last = pith__add_bruck(job, blocks, bytes, PHASE_GATHER, encode);
  for (int p = 0; p < job->ranks && !job->schedule.failed; p++) {
    uint8_t *block = blocks + (size_t)((p + job->ranks - job->rank) % job->ranks) * bytes;
    add_decode(job, &g, p, p, pith__schedule_piece_over(&job->schedule, block, bytes), g.last);
  }
  pith__schedule_work(&job->schedule,
                      (pith_task){.work = pith__work_store_result, .effort = PITH_EFFORT_SUM, .n = n, .values = g.sum},
                      g.last);
}

pith_status pith__allreduce_gather(pith_job *job) {
  int crowded = job->layout->hosts < job->ranks;
  if (is_passed_on(job, crowded)) {
    pass_on(job);
    return pith__schedule_finished(job);
  }
  size_t n = job->src.n, chunk = chunk_of(job, crowded, n), chunks = chunk ? (n - 1) / chunk + 1 : 1;
  if (job->member_count) {
    pith__parts_make(job, pith__parts_granule(job->codec, crowded ? job->inside : NULL), 1, 1);
  }
  int in_dst = job->dst.dtype == PITH_F32 && !crowded && !job->member_count;
  float *sums = in_dst ? job->dst.data
                       : pith__schedule_buffer(&job->schedule, chunks < WINDOW ? chunks : WINDOW,
                                               (chunk ? chunk : 1) * sizeof *sums);
  uint32_t stored[WINDOW];
  for (size_t c = 0; c < chunks && !job->schedule.failed; c++) {
    gathering g = {.range = pith__split_chunk((pith_range){0, n}, chunk ? chunk : 1, c), .number = c};
    g.sum = sums + (in_dst ? g.range.first : c % WINDOW * chunk);
    g.awaits_all = in_dst && c < WINDOW && (job->codec->caps & PITH_CAP_CHUNKED);
    stored[c % WINDOW] = add_chunk(job, g, c < WINDOW ? PITH_NO_TASK : stored[c % WINDOW]);
  }
  return pith__schedule_finished(job);
}

/*
 * Allreduce. docs/algorithms.md has steps, bytes and the number of quantizations of each.
 *
 * Values are owned: rank p reduces part p. In the scatter phase everybody sends part p to rank p, in the gather phase every
 * owner sends its result to all. Sums run in rank order, whoever's message comes first. Chunks of a part follow each other through
 * encoding, wire and decoding, so that these overlap; a buffer serves every WINDOW-th chunk, and no rank is further ahead than
 * that: streams that share a link then stay abreast, and none is left to finish alone on a link that idles otherwise.
 *
 * Short tensors make one step instead of two: everybody sends all of it to everybody.
 */
#include <string.h>

#include "collective/job.h"
#include "collective/split.h"

#define WINDOW 4
#define SHORT_SENT ((size_t)16 << 10) /* bytes a rank sends at most in one step */

enum { PHASE_SCATTER, PHASE_GATHER, PHASE_ROUND };

/* ---- Uncompressed ------------------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* One chunk of the scatter phase: sends everybody theirs, receives ours, reduces it. Returns the task that reduces; *sent of each
 * peer is the task that sends the values a result will overwrite. */
static uint32_t add_scatter_chunk(pith_job *job, const pith_raw *raw, unsigned tag, size_t chunk, size_t number, uint8_t *staging,
                                  uint32_t before, uint32_t *sent) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(raw->dtype);
  pith_range mine = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)job->rank), chunk, number);
  pith_reduction *r = pith__schedule_reduction(job, raw->dtype, raw->reduce, raw->dst + mine.first * width);
  if (!r) {
    return PITH_NO_TASK;
  }
  r->sources[job->rank] = raw->src + mine.first * width;
  uint32_t received[job->ranks];
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    pith_range theirs = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)to), chunk, number);
    uint8_t *into = staging + (size_t)(step - 1) * chunk * width;
    pith_piece *out = pith__schedule_piece_over(s, (void *)(uintptr_t)(raw->src + theirs.first * width), theirs.n * width);
    sent[to] = theirs.n ? pith__schedule_send(s, to, tag, out, before) : PITH_NO_TASK;
    received[from] = mine.n ? pith__schedule_receive(s, from, tag, pith__schedule_piece_over(s, into, mine.n * width), before)
                            : PITH_NO_TASK;
    r->sources[from] = into;
  }
  uint32_t reduce = pith__add_work(job, (pith_task){.work = pith__work_reduce, .n = mine.n, .values = r}, before);
  for (int p = 0; p < job->ranks; p++) {
    pith__schedule_after(s, reduce, p == job->rank ? PITH_NO_TASK : received[p]);
  }
  return reduce;
}

/* One chunk of the gather phase, after our part is reduced. */
static void add_gather_chunk(pith_job *job, const pith_raw *raw, unsigned tag, size_t chunk, size_t number, uint32_t reduced,
                             const uint32_t *sent, uint32_t end) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(raw->dtype);
  pith_range mine = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)job->rank), chunk, number);
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    pith_range theirs = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)from), chunk, number);
    if (mine.n) {
      pith_piece *result = pith__schedule_piece_over(s, raw->dst + mine.first * width, mine.n * width);
      pith__schedule_after(s, end, pith__schedule_send(s, to, tag, result, reduced));
    }
    if (theirs.n) {
      pith_piece *into = pith__schedule_piece_over(s, raw->dst + theirs.first * width, theirs.n * width);
      pith__schedule_after(s, end, pith__schedule_receive(s, from, tag, into, sent[from]));
    }
  }
}

/* One step: all of it to all, and the same reduction everywhere. */
static uint32_t add_short_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  size_t bytes = raw->n * pith_dtype_size(raw->dtype);
  pith_reduction *r = pith__schedule_reduction(job, raw->dtype, raw->reduce, raw->dst);
  uint8_t *staging = pith__schedule_take(s, (size_t)job->ranks, bytes);
  if (!r || !staging) {
    return PITH_NO_TASK;
  }
  r->sources[job->rank] = raw->src;
  uint32_t reduce = pith__add_work(job, (pith_task){.work = pith__work_reduce, .n = raw->n, .values = r}, before);
  pith_piece *own = pith__schedule_piece_over(s, (void *)(uintptr_t)raw->src, bytes);
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    uint8_t *into = staging + (size_t)from * bytes;
    r->sources[from] = into;
    pith__schedule_after(s, reduce, pith__schedule_send(s, to, PITH_TAG(phase, 0), own, before)); /* dst may be src */
    pith__schedule_after(s, reduce,
                         pith__schedule_receive(s, from, PITH_TAG(phase, 0), pith__schedule_piece_over(s, into, bytes), before));
  }
  return reduce;
}

static uint32_t add_long_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(raw->dtype), chunk = larger(smaller(job->chunk, job->message) / width, 1);
  size_t chunks = pith__split_chunks(raw->n, 1, (size_t)job->ranks, chunk), staged = (size_t)(job->ranks - 1) * chunk * width;
  uint8_t *staging = pith__schedule_take(s, chunks < WINDOW ? chunks : WINDOW, staged);
  uint32_t end = pith__add_work(job, (pith_task){.work = pith__work_join}, before), reduced[WINDOW], sent[job->ranks];
  for (size_t c = 0; c < chunks && !s->failed; c++) {
    uint32_t start = c < WINDOW ? before : reduced[c % WINDOW];
    uint32_t tag_scatter = PITH_TAG(phase, c), tag_gather = PITH_TAG(phase + 1, c);
    uint32_t reduce = add_scatter_chunk(job, raw, tag_scatter, chunk, c, staging + c % WINDOW * staged, start, sent);
    reduced[c % WINDOW] = reduce;
    pith__schedule_after(s, end, reduce);
    for (int p = 0; p < job->ranks; p++) {
      pith__schedule_after(s, end, p == job->rank ? PITH_NO_TASK : sent[p]);
    }
    add_gather_chunk(job, raw, tag_gather, chunk, c, reduce, sent, end);
  }
  return end;
}

uint32_t pith__add_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  size_t sent = raw->n * pith_dtype_size(raw->dtype) * (size_t)(job->ranks - 1);
  return raw->n && sent <= SHORT_SENT ? add_short_allreduce(job, raw, phase, before) : add_long_allreduce(job, raw, phase, before);
}

static pith_raw raw_of(const pith_job *job) {
  return (pith_raw){job->src.data, job->dst.data, job->src.n, job->src.dtype, job->reduce};
}

pith_status pith__allreduce_plain(pith_job *job) {
  pith_raw raw = raw_of(job);
  pith__add_allreduce(job, &raw, PHASE_SCATTER, PITH_NO_TASK);
  return pith__schedule_finished(job);
}

/* ---- Blocks: scatter, reduce, gather, each message encoded ------------------------------------------------------- */

typedef struct block_plan {
  size_t granule, chunk, chunks; /* values, values, number */
} block_plan;

static block_plan plan_blocks(const pith_job *job) {
  size_t granule = job->codec->granule, wanted = job->chunk / sizeof(float);
  block_plan plan = {.granule = granule, .chunk = larger(wanted / granule, 1) * granule};
  plan.chunks = pith__split_chunks(job->src.n, granule, (size_t)job->ranks, plan.chunk);
  return plan;
}

static pith_range chunk_of(const pith_job *job, const block_plan *plan, int owner, size_t number) {
  pith_range part = pith__split(job->src.n, plan->granule, (size_t)job->ranks, (size_t)owner);
  return pith__split_chunk(part, plan->chunk, number);
}

/* Encodes our values of every part, sends them to their owners, and returns the piece that stays here. */
static pith_piece *add_block_scatter(pith_job *job, const block_plan *plan, size_t number, uint32_t before, uint32_t *encoded) {
  pith_piece *own = NULL;
  for (int step = 1; step <= job->ranks; step++) {
    int owner = pith__peer_at(job, step);
    pith_range range = chunk_of(job, plan, owner, number);
    if (range.n == 0) {
      continue;
    }
    pith_piece *piece = pith__piece_for(job, range.n);
    uint32_t encode = pith__add_work(job, (pith_task){.work = pith__work_encode, .piece = piece, .first = range.first, .n = range.n},
                               before);
    if (owner == job->rank) {
      own = piece;
      *encoded = encode;
    } else {
      pith__schedule_send(&job->schedule, owner, PITH_TAG(PHASE_SCATTER, number), piece, encode);
    }
  }
  return own;
}

/* Receives everybody's values of our part and adds them up in rank order. Returns the last addition. */
static uint32_t add_block_sum(pith_job *job, pith_range range, size_t number, pith_piece *own, uint32_t encoded, float *sum,
                              uint32_t before) {
  pith_schedule *s = &job->schedule;
  uint32_t last = before;
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : pith__piece_for(job, range.n);
    uint32_t arrived = p == job->rank ? encoded : pith__schedule_receive(s, p, PITH_TAG(PHASE_SCATTER, number), piece, PITH_NO_TASK);
    uint32_t decode = pith__add_work(job,
                               (pith_task){.work = pith__work_decode,
                                           .peer = p,
                                           .piece = piece,
                                           .first = range.first,
                                           .n = range.n,
                                           .values = sum,
                                           .mode = p ? PITH_ADD : PITH_SET},
                               arrived);
    pith__schedule_after(s, decode, last);
    last = decode;
  }
  return last;
}

/* The result of our part to all, ourselves included: everybody decodes the same bytes. */
static uint32_t add_block_result(pith_job *job, pith_range range, size_t number, float *sum, uint32_t summed) {
  pith_piece *result = pith__piece_for(job, range.n);
  uint32_t encode = pith__add_work(
      job, (pith_task){.work = pith__work_encode_result, .piece = result, .first = range.first, .n = range.n, .values = sum}, summed);
  for (int step = 1; step < job->ranks; step++) {
    pith__schedule_send(&job->schedule, pith__peer_at(job, step), PITH_TAG(PHASE_GATHER, number), result, encode);
  }
  pith__add_work(job,
           (pith_task){.work = pith__work_decode_result,
                       .peer = job->rank,
                       .piece = result,
                       .first = range.first,
                       .n = range.n,
                       .at = range.first},
           encode);
  return encode;
}

/* The results of the other parts. In place nothing is lost: an owner's result is made of what we encoded before. */
static void add_block_gather(pith_job *job, const block_plan *plan, size_t number) {
  for (int step = 1; step < job->ranks; step++) {
    int owner = pith__peer_at(job, job->ranks - step);
    pith_range range = chunk_of(job, plan, owner, number);
    if (range.n == 0) {
      continue;
    }
    pith_piece *piece = pith__piece_for(job, range.n);
    uint32_t arrived = pith__schedule_receive(&job->schedule, owner, PITH_TAG(PHASE_GATHER, number), piece, PITH_NO_TASK);
    pith__add_work(job,
                   (pith_task){.work = pith__work_decode_result,
                               .peer = owner,
                               .piece = piece,
                               .first = range.first,
                               .n = range.n,
                               .at = range.first},
                   arrived);
  }
}

pith_status pith__allreduce_blocks(pith_job *job) {
  block_plan plan = plan_blocks(job);
  float *sums = pith__schedule_take(&job->schedule, plan.chunks < WINDOW ? plan.chunks : WINDOW, plan.chunk * sizeof *sums);
  uint32_t used[WINDOW];
  for (size_t c = 0; c < plan.chunks && !job->schedule.failed; c++) {
    uint32_t encoded = PITH_NO_TASK, before = c < WINDOW ? PITH_NO_TASK : used[c % WINDOW];
    pith_range mine = chunk_of(job, &plan, job->rank, c);
    pith_piece *own = add_block_scatter(job, &plan, c, before, &encoded);
    if (mine.n && own) {
      float *sum = sums + c % WINDOW * plan.chunk;
      uint32_t summed = add_block_sum(job, mine, c, own, encoded, sum, before);
      used[c % WINDOW] = add_block_result(job, mine, c, sum, summed);
    } else {
      used[c % WINDOW] = PITH_NO_TASK;
    }
    add_block_gather(job, &plan, c);
  }
  return pith__schedule_finished(job);
}

/* ---- Gather: everybody gets all payloads and adds them up -------------------------------------------------------- */

pith_status pith__allreduce_gather(pith_job *job) {
  pith_schedule *s = &job->schedule;
  size_t n = job->src.n;
  pith_piece *own = pith__piece_for(job, n);
  uint32_t encode = pith__add_work(job, (pith_task){.work = pith__work_encode, .piece = own, .n = n}, PITH_NO_TASK);
  for (int step = 1; step < job->ranks; step++) {
    pith__schedule_send(s, pith__peer_at(job, step), PITH_TAG(PHASE_GATHER, 0), own, encode);
  }
  uint32_t last = encode; /* dst may be src: nothing is written before it is encoded */
  float *sum = pith__schedule_take(s, n ? n : 1, sizeof *sum);
  for (int p = 0; p < job->ranks; p++) {
    pith_piece *piece = p == job->rank ? own : pith__piece_for(job, n);
    uint32_t arrived = p == job->rank ? encode : pith__schedule_receive(s, p, PITH_TAG(PHASE_GATHER, 0), piece, PITH_NO_TASK);
    uint32_t decode = pith__add_work(
        job, (pith_task){.work = pith__work_decode, .peer = p, .piece = piece, .n = n, .values = sum, .mode = p ? PITH_ADD : PITH_SET},
        arrived);
    pith__schedule_after(s, decode, last);
    last = decode;
  }
  pith__add_work(job, (pith_task){.work = pith__work_store_result, .n = n, .values = sum}, last);
  return pith__schedule_finished(job);
}

/* ---- Rounds: low rank, integers on a common scale ---------------------------------------------------------------- */

typedef struct round_buffers {
  size_t index;
  pith_round round;
  uint8_t *mine, *reduced;
} round_buffers;

static pith_ctx round_ctx(const pith_job *job) {
  pith_ctx ctx = job->ctx;
  ctx.rank = (uint32_t)job->rank;
  ctx.ranks = (uint32_t)job->ranks;
  return ctx;
}

static pith_status work_produce(pith_job *job, const pith_task *task) {
  const round_buffers *b = task->values;
  pith_ctx ctx = round_ctx(job);
  return pith_round_produce(job->codec, job->state, b->index, job->src, b->mine, &ctx);
}

static pith_status work_consume(pith_job *job, const pith_task *task) {
  const round_buffers *b = task->values;
  pith_ctx ctx = round_ctx(job);
  return pith_round_consume(job->codec, job->state, b->index, b->reduced, job->dst, &ctx);
}

/* Rounds end in a mean; a sum is that many times as much. */
static pith_status work_mean_to_sum(pith_job *job, const pith_task *task) {
  float tile[1024], buffer[1024];
  (void)task;
  for (size_t first = 0; first < job->dst.n; first += 1024) {
    size_t n = job->dst.n - first < 1024 ? job->dst.n - first : 1024;
    pith_cspan mean = {job->dst.data, job->dst.n, job->dst.dtype};
    memmove(tile, pith__span_load(mean, first, n, tile), n * sizeof *tile);
    pith__values_scale((float)job->ranks, tile, n);
    pith__span_store(job->dst, first, n, tile, PITH_SET, buffer);
  }
  return PITH_OK;
}

pith_status pith__allreduce_rounds(pith_job *job) {
  pith_schedule *s = &job->schedule;
  uint32_t last = PITH_NO_TASK;
  for (size_t i = 0, rounds = pith_codec_rounds(job->codec); i < rounds && !s->failed; i++) {
    round_buffers *b = pith__schedule_take(s, 1, sizeof *b);
    if (!b) {
      break;
    }
    b->index = i;
    PITH_TRY(pith_round_describe(job->codec, job->state, i, &b->round));
    b->mine = pith__schedule_take(s, b->round.count + 1, pith_dtype_size(b->round.dtype));
    b->reduced = pith__schedule_take(s, b->round.count + 1, pith_dtype_size(b->round.dtype));
    pith_raw raw = {b->mine, b->reduced, b->round.count, b->round.dtype, b->round.reduce};
    uint32_t produce = pith__add_work(job, (pith_task){.work = work_produce, .values = b}, last);
    uint32_t reduced = pith__add_allreduce(job, &raw, PHASE_ROUND + 2 * (unsigned)i, produce);
    last = pith__add_work(job, (pith_task){.work = work_consume, .values = b}, reduced);
  }
  if (job->reduce == PITH_SUM) {
    pith__add_work(job, (pith_task){.work = work_mean_to_sum}, last);
  }
  return pith__schedule_finished(job);
}

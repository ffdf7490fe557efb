/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Allreduce of values as they are, and of what methods make of them that can be summed as it is: rounds and LINEAR
 * payloads.
 *
 * Values are owned: rank p reduces part p. In the scatter phase every rank sends part p to rank p, in the gather phase
 * every owner sends its result to all. Sums run in rank order, in whatever order messages come. Chunks of a part follow
 * each other through encoding, wire and decoding, so that these overlap; a buffer serves every WINDOW-th chunk, and no
 * rank is further ahead than that: streams that share a link then stay abreast, and none is left to finish alone on a
 * link that idles otherwise.
 *
 * Short tensors take other ways: short.c.
 */
#include <string.h>

#include "base/clock.h"
#include "base/split.h"
#include "collective/job.h"

#define WINDOW 4

enum { PHASE_SCATTER, PHASE_ROUND = PHASE_SCATTER };

/* ---- Uncompressed ------------------------------------------------------------------------------------------------ */

static size_t larger(size_t a, size_t b) { return a > b ? a : b; }
static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

/* One chunk of the scatter phase: sends every rank its part, receives ours, reduces it. Returns the task that reduces;
 * *sent of each peer is the task that sends the values a result will overwrite. */
static uint32_t add_scatter_chunk(pith_job *job, const pith_raw *raw, unsigned tag, size_t chunk, size_t number,
                                  uint8_t *staging, uint32_t before, uint32_t *sent) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(raw->dtype);
  pith_range mine = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)job->rank), chunk, number);
  pith_reduction *r = pith__schedule_reduction(job, raw->dtype, raw->reduce, job->ranks, raw->dst + mine.first * width);
  uint32_t received[job->ranks];
  memset(received, 0xff, sizeof received); /* PITH_NO_TASK */
  memset(sent, 0xff, sizeof received);
  if (!r) {
    return PITH_NO_TASK;
  }
  r->sources[job->rank] = raw->src + mine.first * width;
  for (int step = 1; step < job->ranks; step++) {
    int to = pith__peer_at(job, step), from = pith__peer_at(job, job->ranks - step);
    pith_range theirs = pith__split_chunk(pith__split(raw->n, 1, (size_t)job->ranks, (size_t)to), chunk, number);
    uint8_t *into = staging + (size_t)(step - 1) * chunk * width;
    pith_piece *out =
        pith__schedule_piece_over(s, (void *)(uintptr_t)(raw->src + theirs.first * width), theirs.n * width);
    sent[to] = theirs.n ? pith__schedule_send(s, to, tag, out, before) : PITH_NO_TASK;
    received[from] =
        mine.n ? pith__schedule_receive(s, from, tag, pith__schedule_piece_over(s, into, mine.n * width), before)
               : PITH_NO_TASK;
    r->sources[from] = into;
  }
  uint32_t reduce = pith__schedule_work(
      &job->schedule,
      (pith_task){.work = pith__work_reduce, .effort = PITH_EFFORT_SUM, .passes = job->ranks, .n = mine.n, .values = r},
      before);
  for (int p = 0; p < job->ranks; p++) {
    pith__schedule_after(s, reduce, received[p]);
  }
  return reduce;
}

/* One chunk of the gather phase, after our part is reduced. */
static void add_gather_chunk(pith_job *job, const pith_raw *raw, unsigned tag, size_t chunk, size_t number,
                             uint32_t reduced, const uint32_t *sent, uint32_t end) {
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

static uint32_t add_long_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  pith_schedule *s = &job->schedule;
  size_t width = pith_dtype_size(raw->dtype), chunk = larger(smaller(job->chunk, job->message) / width, 1);
  size_t chunks = pith__split_chunks(raw->n, 1, (size_t)job->ranks, chunk),
         staged = (size_t)(job->ranks - 1) * chunk * width;
  uint8_t *staging = pith__schedule_buffer(s, chunks < WINDOW ? chunks : WINDOW, staged);
  uint32_t end = pith__schedule_work(&job->schedule, (pith_task){.work = pith__work_join}, before), reduced[WINDOW],
           sent[job->ranks];
  for (size_t c = 0; c < chunks && !s->failed; c++) {
    uint32_t start = c < WINDOW ? before : reduced[c % WINDOW];
    uint32_t tag_scatter = PITH_TAG(phase, c), tag_gather = PITH_TAG(phase + 1, c);
    uint32_t reduce = add_scatter_chunk(job, raw, tag_scatter, chunk, c, staging + c % WINDOW * staged, start, sent);
    reduced[c % WINDOW] = reduce;
    pith__schedule_after(s, end, reduce);
    for (int p = 0; p < job->ranks; p++) {
      pith__schedule_after(s, end, sent[p]);
    }
    add_gather_chunk(job, raw, tag_gather, chunk, c, reduce, sent, end);
  }
  return end;
}

uint32_t pith__add_allreduce(pith_job *job, const pith_raw *raw, unsigned phase, uint32_t before) {
  if (job->grid) {
    return pith__add_allreduce_grid(job, raw, phase, before);
  }
  if (job->layout->hosts < job->ranks) {
    return pith__add_allreduce_hosts(job, raw, phase, before);
  }
  return pith__is_short(raw->n * pith_dtype_size(raw->dtype), job->ranks)
             ? pith__add_allreduce_short(job, raw, phase, before)
             : add_long_allreduce(job, raw, phase, before);
}

#define NETWORK_MESSAGE ((size_t)32 << 10)
#define LOCAL_MESSAGE ((size_t)64 << 10) /* of tensors whose parts are long; short parts travel in one piece */
#define LOCAL_PART ((size_t)512 << 10)

/* On a network short messages keep the streams that share a link abreast. In memory one message costs least, but of
 * long parts the bytes should still be in the caches when they are summed. */
size_t pith__message_size(int is_networked, size_t bytes, int ranks, size_t chunk) {
  return is_networked ? NETWORK_MESSAGE : bytes / (size_t)ranks > LOCAL_PART ? LOCAL_MESSAGE : chunk;
}

static pith_raw raw_of(const pith_job *job) {
  return (pith_raw){job->src.data, job->dst.data, job->src.n, job->src.dtype, job->reduce};
}

pith_status pith__allreduce_plain(pith_job *job) {
  pith_raw raw = raw_of(job);
  pith__add_allreduce(job, &raw, PHASE_SCATTER, PITH_NO_TASK);
  return pith__schedule_finished(job);
}

/* ---- Linear: payloads that add up -------------------------------------------------------------------------------- */

pith_status pith__allreduce_linear(pith_job *job) {
  pith_schedule *s = &job->schedule;
  pith_dtype dtype = job->codec->ops->linear(job->codec->args);
  size_t n = job->src.n, bytes = pith_codec_bound(job->codec, n);
  pith_piece *own = pith__schedule_piece(s, bytes), *sum = pith__schedule_piece(s, bytes);
  if (s->failed) {
    return pith__schedule_finished(job);
  }
  pith_raw raw = {own->data, sum->data, bytes / pith_dtype_size(dtype), dtype, job->reduce};
  uint32_t encode = pith__schedule_work(
      &job->schedule, (pith_task){.work = pith__work_encode, .effort = PITH_EFFORT_ENCODE, .piece = own, .n = n},
      PITH_NO_TASK);
  uint32_t reduced = pith__add_allreduce(job, &raw, PHASE_SCATTER, encode);
  pith__schedule_work(
      &job->schedule,
      (pith_task){
          .work = pith__work_decode_to_dst, .effort = PITH_EFFORT_DECODE, .peer = job->rank, .piece = sum, .n = n},
      reduced);
  return pith__schedule_finished(job);
}

/* ---- Rounds: low rank, integers on a common scale ---------------------------------------------------------------- */

/* What the rounds of a step work on: the whole tensor, or one layer of those that are joined. */
typedef struct round_layer {
  pith_state *state;
  pith_cspan src;
  pith_span dst;
  uint64_t layer;
} round_layer;

static size_t round_layers(const pith_job *job) { return job->member_count ? job->member_count : 1; }

static round_layer round_layer_of(const pith_job *job, size_t index) {
  if (job->member_count == 0) {
    return (round_layer){job->state, job->src, job->dst, job->ctx.layer};
  }
  const pith_member *m = &job->members[index];
  return (round_layer){m->state, {m->values, m->n, job->src.dtype}, {m->values, m->n, job->dst.dtype}, m->layer};
}

/* One exchange: what all layers produce, one after another. */
typedef struct round_buffers {
  size_t index;
  pith_dtype dtype;
  pith_reduce_op reduce;
  size_t count;
  uint8_t *mine, *reduced;
} round_buffers;

static pith_ctx round_ctx(const pith_job *job, uint64_t layer) {
  pith_ctx ctx = job->ctx;
  ctx.rank = (uint32_t)job->rank;
  ctx.ranks = (uint32_t)job->ranks;
  ctx.layer = layer;
  return ctx;
}

/* Runs through the layers of an exchange; `consume` takes the reduced values, else ours are produced. */
static pith_status walk_round(pith_job *job, const round_buffers *b, int consume) {
  size_t at = 0, width = pith_dtype_size(b->dtype);
  double start = pith__now();
  for (size_t i = 0; i < round_layers(job); i++) {
    round_layer l = round_layer_of(job, i);
    pith_ctx ctx = round_ctx(job, l.layer);
    pith_round round = PITH_ROUND_INIT;
    PITH_TRY(pith_round_describe(job->codec, l.state, b->index, &round));
    PITH_TRY(consume ? pith_round_consume(job->codec, l.state, b->index, b->reduced + at * width, l.dst, &ctx)
                     : pith_round_produce(job->codec, l.state, b->index, l.src, b->mine + at * width, &ctx));
    at += round.count;
  }
  *(consume ? &job->decode_seconds : &job->encode_seconds) += pith__now() - start;
  return PITH_OK;
}

static pith_status work_produce(pith_job *job, const pith_task *task) { return walk_round(job, task->values, 0); }
static pith_status work_consume(pith_job *job, const pith_task *task) { return walk_round(job, task->values, 1); }

/* Rounds end in a mean; a sum is that many times as much. */
static pith_status work_mean_to_sum(pith_job *job, const pith_task *task) {
  (void)task;
  if (job->dst.dtype == PITH_F32) {
    pith__values_scale((float)job->ranks, job->dst.data, job->dst.n);
    return PITH_OK;
  }
  float tile[1024], buffer[1024];
  for (size_t first = 0; first < job->dst.n; first += 1024) {
    size_t n = job->dst.n - first < 1024 ? job->dst.n - first : 1024;
    pith_cspan mean = {job->dst.data, job->dst.n, job->dst.dtype};
    memmove(tile, pith__span_load(mean, first, n, tile), n * sizeof *tile);
    pith__values_scale((float)job->ranks, tile, n);
    pith__span_store(job->dst, first, n, tile, PITH_SET, buffer);
  }
  return PITH_OK;
}

/* The sizes of an exchange and room for it. Layers that share a codec exchange the same type in the same way. */
static pith_status prepare_round(pith_job *job, size_t index, round_buffers *b) {
  *b = (round_buffers){.index = index};
  for (size_t i = 0; i < round_layers(job); i++) {
    pith_round round = PITH_ROUND_INIT;
    PITH_TRY(pith_round_describe(job->codec, round_layer_of(job, i).state, index, &round));
    b->dtype = round.dtype;
    b->reduce = round.reduce;
    b->count += round.count;
  }
  b->mine = pith__schedule_buffer(&job->schedule, b->count + 1, pith_dtype_size(b->dtype));
  b->reduced = pith__schedule_buffer(&job->schedule, b->count + 1, pith_dtype_size(b->dtype));
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
    PITH_TRY(prepare_round(job, i, b));
    pith_raw raw = {b->mine, b->reduced, b->count, b->dtype, b->reduce};
    uint32_t produce = pith__schedule_work(
        &job->schedule, (pith_task){.work = work_produce, .effort = PITH_EFFORT_PRODUCE, .values = b}, last);
    uint32_t reduced = pith__add_allreduce(job, &raw, PHASE_ROUND + PITH_RAW_PHASES * (unsigned)i, produce);
    last = pith__schedule_work(&job->schedule,
                               (pith_task){.work = work_consume, .effort = PITH_EFFORT_CONSUME, .values = b}, reduced);
  }
  if (job->reduce == PITH_SUM) {
    pith__schedule_work(&job->schedule,
                        (pith_task){.work = work_mean_to_sum, .effort = PITH_EFFORT_SUM, .n = job->dst.n}, last);
  }
  return pith__schedule_finished(job);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stages of a group over a carrier: their order, the sizes of messages, and the exchange that follows each. What is
 * done to values is done where they live: stage_host.c, stage_cuda.c. docs/reducer.md has the stages of each way:
 *
 *   BLOCKS  encode a part for each rank · all-to-all · add up and encode our part · all-gather · decode
 *   WHOLE   encode · all-gather of sizes, where they vary · all-gather of payloads · decode and add up in rank order
 *   ROUNDS  produce · allreduce · consume, for each round
 *   PLAIN   copy · allreduce · divide
 *   SCATTER encode for each owner · all-to-all of sizes, where they vary · and of payloads · decode and add up
 *   GATHER  encode · all-gather · decode
 *   HOSTS   stage_hosts.c
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/size.h"
#include "codec/codec.h"
#include "reducer/stages.h"

pith_ctx pith__stage_ctx(const pith_staged *f, const pith_reducer_layer *l, int rank) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = f->reducer->seed;
  ctx.step = f->reducer->step;
  if (l && f->reducer->options.sharded) { /* every owner has steps of its own; parameters are always of the first */
    int is_first = f->kind == PITH_GROUP_GATHER && !l->reference;
    ctx.step = is_first ? (uint64_t)rank : l->steps * (uint64_t)f->reducer->ranks + (uint64_t)l->owner;
  }
  ctx.layer = l ? l->number : 0;
  ctx.rank = (uint32_t)rank;
  ctx.ranks = (uint32_t)f->reducer->ranks;
  ctx.rows = l ? l->state->rows : 0;
  ctx.gamma = l ? pith__codec_gamma(pith__layer_codec(l)) : 1.0f;
  return ctx;
}

static void end_stages(pith_staged *f) { f->stage = SIZE_MAX; }

static void gather(pith_staged *f, const void *send, void *recv, size_t bytes) {
  f->exchange.kind = PITH_EXCHANGE_ALL_GATHER;
  f->exchange.send = send;
  f->exchange.recv = recv;
  f->exchange.bytes = bytes;
  f->traffic.messages++;
  f->traffic.sent_bytes += bytes * (size_t)(f->reducer->ranks - 1);
}

static void reduce(pith_staged *f, void *values, size_t count, pith_dtype dtype, pith_reduce_op op) {
  size_t ranks = (size_t)f->reducer->ranks;
  f->exchange.kind = PITH_EXCHANGE_ALLREDUCE;
  f->exchange.recv = values;
  f->exchange.count = count;
  f->exchange.dtype = dtype;
  f->exchange.op = op;
  f->traffic.messages++;
  f->traffic.sent_bytes += 2 * count * pith_dtype_size(dtype) * (ranks - 1) / ranks;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

pith_status pith__stage_wire_codec(pith_reducer *r, const pith_reducer_layer *l, const pith_codec **codec) {
  *codec = l->match.codec;
  return strcmp(l->match.codec->spec, "none") ? PITH_OK : pith__reducer_exact_codec(r, l->dtype, codec);
}

pith_stage_source pith__stage_source(const pith_staged *f, const pith_reducer_layer *l) {
  if (l->reference) {
    return f->restores                   ? PITH_SOURCE_REFERENCE
           : pith__reference_is_fresh(l) ? PITH_SOURCE_GIVEN
                                         : PITH_SOURCE_DIFFERENCE;
  }
  return f->reducer->options.sharded && l->pending ? PITH_SOURCE_PENDING : PITH_SOURCE_GIVEN;
}

int pith__stage_adds(const pith_staged *f, const pith_reducer_layer *l) {
  return l->reference && !f->restores && !pith__reference_is_fresh(l);
}

static pith_status make_bucket(const pith_staged *f, pith_bucket **bucket) {
  PITH_FREED pith_bucket_item *layers = calloc(f->count + 1, sizeof *layers);
  PITH_REQUIRE(layers, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    layers[i] =
        (pith_bucket_item){.layer = l->number, .n = l->n, .dtype = l->dtype, .chunk = f->chunk, .number = f->number};
    PITH_TRY(pith__stage_wire_codec(f->reducer, l, &layers[i].codec));
    layers[i].state = layers[i].codec->memory && !f->reducer->space ? l->state : NULL;
  }
  return pith__bucket_create(f->reducer->rank, f->reducer->ranks, layers, f->count, bucket);
}

/* The bucket of a whole group stays for the next steps. */
static pith_status find_bucket(pith_staged *f, pith_group *g) {
  pith_bucket **bucket = f->count < g->count ? &f->bucket : &g->bucket, **across = &g->across;
  f->owns_bucket = f->count < g->count;
  across = f->owns_bucket ? &f->across : across;
  if (!*bucket) {
    PITH_TRY(g->kind == PITH_GROUP_HOSTS ? pith__stage_make_levels(f, bucket, across) : make_bucket(f, bucket));
  }
  f->bucket = *bucket;
  f->across = *across;
  return PITH_OK;
}

/* Parts of almost the same size are gathered as if they had one. */
static void measure_parts(pith_staged *f) {
  int ranks = f->reducer->ranks;
  size_t most = 0;
  for (int p = 0; p < ranks; p++) {
    f->bytes[p] = f->bucket->bytes[p];
    most = pith__most(most, f->bytes[p]);
  }
  size_t sum = pith__sum(f->bytes, ranks);
  f->is_padded = most * (size_t)ranks <= sum + sum / 10;
  f->room = f->is_padded ? most : f->bytes[f->reducer->rank];
}

/* f->counts has our own part for each rank. */
static void scatter(pith_staged *f, const size_t *send, const size_t *receive) {
  int rank = f->reducer->rank;
  f->exchange.kind = PITH_EXCHANGE_ALL_TO_ALL;
  f->exchange.send = f->out.data;
  f->exchange.recv = f->in.data;
  f->exchange.send_bytes = send;
  f->exchange.recv_bytes = receive;
  f->traffic.messages++;
  f->traffic.sent_bytes += pith__sum(send, f->reducer->ranks) - send[rank];
}

static pith_status work_blocks(pith_staged *f) {
  const pith_stage_ops *ops = f->reducer->stage_ops;
  int ranks = f->reducer->ranks;
  pith_ctx ctx = pith__stage_ctx(f, NULL, f->reducer->rank);
  switch (f->stage++) {
    case 0: {
      measure_parts(f);
      size_t own = f->bytes[f->reducer->rank], all = pith__sum(f->bytes, ranks);
      for (int p = 0; p < ranks; p++) {
        f->counts[p] = own;
      }
      PITH_TRY(pith__stages_buffer(f->stages, &f->out, pith__most(all, pith__most(f->room, own * (size_t)ranks))));
      PITH_TRY(pith__stages_buffer(f->stages, &f->in, pith__most(all, pith__most(f->room, own) * (size_t)ranks)));
      PITH_TRY(ops->encode_parts(f, &ctx));
      scatter(f, f->bytes, f->counts);
      return PITH_OK;
    }
    case 1:
      PITH_TRY(ops->reduce_parts(f, &ctx));
      if (f->is_padded) {
        gather(f, f->out.data, f->in.data, f->room);
      } else {
        scatter(f, f->counts, f->bytes);
      }
      return PITH_OK;
    default:
      end_stages(f);
      return ops->decode_parts(f, &ctx);
  }
}

/* ---- Whole payloads ---------------------------------------------------------------------------------------------- */

int pith__stage_is_fixed(const pith_staged *f) {
  uint32_t caps = PITH_CAP_FIXED;
  for (size_t i = 0; i < f->count; i++) {
    caps &= pith__layer_codec(pith__stage_layer(f, i))->caps;
  }
  return caps != 0;
}

static size_t message_of(const pith_staged *f, int rank) {
  size_t sum = 0;
  for (size_t i = 0; i < f->count; i++) {
    sum += (size_t)f->sizes[(size_t)rank * f->count + i];
  }
  return sum;
}

size_t pith__stage_message_at(const pith_staged *f, int rank) {
  size_t at = f->room * (size_t)rank;
  for (int p = 0; p < rank && !f->room; p++) {
    at += message_of(f, p);
  }
  return at;
}

/* Where sizes are exchanged: in the space; … */
static uint64_t *size_table(pith_staged *f) { return f->reducer->space ? (uint64_t *)(void *)f->more.data : f->sizes; }

/* … and from there to f->sizes. */
static pith_status read_sizes(pith_staged *f) {
  pith_space *space = f->reducer->space;
  return space ? space->copy(space, f->sizes, f->more.data, f->table * sizeof *f->sizes) : PITH_OK;
}

/* What ranks say is checked: no payload is larger than its bound. */
static pith_status check_sizes(const pith_staged *f) {
  for (size_t i = 0; i < f->count * (size_t)f->reducer->ranks; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i % f->count);
    size_t bound = pith__layer_bound(l);
    PITH_REQUIRE(f->sizes[i] <= bound, PITH_ERR_CORRUPT,
                 "rank %zu says that the payload of layer %s has %llu bytes; %zu is the most", i / f->count, l->name,
                 (unsigned long long)f->sizes[i], bound);
  }
  return PITH_OK;
}

static pith_status gather_payloads(pith_staged *f) {
  int ranks = f->reducer->ranks;
  size_t own = message_of(f, f->reducer->rank);
  PITH_TRY(check_sizes(f));
  f->room = 1;
  for (int p = 0; p < ranks; p++) {
    f->room = pith__most(f->room, message_of(f, p));
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->in, f->room * (size_t)ranks));
  PITH_TRY(f->reducer->stage_ops->pad_message(f, own));
  gather(f, f->out.data, f->in.data, f->room);
  return PITH_OK;
}

static pith_status work_whole(pith_staged *f) {
  const pith_stage_ops *ops = f->reducer->stage_ops;
  int is_capturable = f->reducer->options.capturable;
  if (f->stage == 0) {
    for (size_t i = 0; i < f->count * (size_t)f->reducer->ranks && is_capturable; i++) {
      const pith_reducer_layer *l = pith__stage_layer(f, i % f->count);
      f->sizes[i] = pith_codec_bound(l->match.codec, l->n); /* nobody may wait for sizes: all have the largest */
    }
    PITH_TRY(ops->encode_payloads(f));
    f->stage = 1;
    if (!pith__stage_is_fixed(f)) {
      uint64_t *table = size_table(f);
      f->has_sizes = 0;
      gather(f, table + f->own, table, f->count * sizeof *table);
      return PITH_OK;
    }
    f->has_sizes = 1;
    for (int p = 0; p < f->reducer->ranks; p++) {
      memmove(f->sizes + (size_t)p * f->count, f->sizes + f->own, f->count * sizeof *f->sizes);
    }
  }
  if (f->stage++ == 1) {
    PITH_TRY(f->has_sizes || is_capturable ? PITH_OK : read_sizes(f));
    return gather_payloads(f);
  }
  end_stages(f);
  return f->kind == PITH_GROUP_GATHER ? ops->decode_payloads(f) : ops->average_payloads(f);
}

/* ---- Shards ------------------------------------------------------------------------------------------------------ */

/* f->sizes has those of our payloads for each rank, and behind them those of what each rank has for us. From now on it
 * is our own shards that matter. */
static pith_status send_shards(pith_staged *f) {
  size_t ranks = (size_t)f->reducer->ranks, layers = f->count / ranks, rank = (size_t)f->reducer->rank;
  f->count = layers;
  for (size_t p = 0; p < ranks; p++) {
    f->bytes[p] = message_of(f, (int)p);
    for (size_t i = 0; i < layers && p != rank; i++) {
      f->sent[i] += (size_t)f->sizes[p * layers + i];
    }
  }
  memmove(f->sizes, f->sizes + layers * ranks, layers * ranks * sizeof *f->sizes);
  memmove(f->layer, f->layer + rank * layers, layers * sizeof *f->layer);
  PITH_TRY(check_sizes(f));
  uint8_t *to = f->target;
  for (size_t i = 0; i < layers; to += pith__layer_bytes(pith__stage_layer(f, i++))) {
    f->gradient[i] = to;
  }
  for (size_t p = 0; p < ranks; p++) {
    f->counts[p] = message_of(f, (int)p);
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->in, pith__sum(f->counts, ranks)));
  scatter(f, f->bytes, f->counts);
  return PITH_OK;
}

static pith_status work_scatter(pith_staged *f) {
  const pith_stage_ops *ops = f->reducer->stage_ops;
  if (f->stage == 0) {
    PITH_TRY(ops->encode_payloads(f));
    f->stage = 1;
    f->has_sizes = pith__stage_is_fixed(f);
    if (!f->has_sizes) {
      uint64_t *table = size_table(f);
      for (int p = 0; p < f->reducer->ranks; p++) {
        f->bytes[p] = f->count / (size_t)f->reducer->ranks * sizeof *table;
      }
      scatter(f, f->bytes, f->bytes);
      f->exchange.send = table;
      f->exchange.recv = table + f->count;
      return PITH_OK;
    }
    memcpy(f->sizes + f->count, f->sizes, f->count * sizeof *f->sizes); /* shards are as large on all ranks */
  }
  if (f->stage++ == 1) {
    PITH_TRY(f->has_sizes ? PITH_OK : read_sizes(f));
    return send_shards(f);
  }
  end_stages(f);
  return ops->average_payloads(f);
}

/* All of a layer is counted by its first entry. */
static void account_shards(pith_staged *f) {
  size_t ranks = (size_t)f->reducer->ranks;
  for (size_t i = 0; i < f->count; i++) {
    pith_reducer_layer *l = &f->reducer->layers[f->layer[i]] - f->reducer->rank;
    l->traffic.sent_bytes += f->sent[i];
    if (f->restores) {
      continue;
    }
    l->traffic.operations++;
    l->traffic.raw_bytes += pith__layer_bytes(l) * ranks;
    for (size_t p = 0; p < ranks; p++) {
      l[p].steps++;
    }
  }
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static pith_status describe(const pith_staged *f, size_t round, pith_round *first, size_t *sum) {
  *sum = 0;
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    pith_round entry = PITH_ROUND_INIT;
    PITH_TRY(pith_round_describe(l->match.codec, l->state, round, &entry));
    f->counts[i] = entry.count;
    *sum += entry.count;
    *first = entry; /* layers of one spec have the same types and reductions */
  }
  return PITH_OK;
}

/* Where all layers of a round have nothing to say, on all ranks alike, the next one follows at once. */
static pith_status work_rounds(pith_staged *f) {
  const pith_stage_ops *ops = f->reducer->stage_ops;
  pith_round kind = PITH_ROUND_INIT;
  size_t rounds = pith_codec_rounds(pith__stage_layer(f, 0)->match.codec), sum = 0;
  while (sum == 0) {
    if (f->stage) {
      PITH_TRY(describe(f, f->stage - 1, &kind, &sum));
      PITH_TRY(ops->run_round(f, f->stage - 1, pith_dtype_size(kind.dtype), 1));
    }
    if (f->stage == rounds) {
      end_stages(f);
      return PITH_OK;
    }
    PITH_TRY(describe(f, f->stage, &kind, &sum));
    PITH_TRY(pith__stages_buffer(f->stages, &f->in, sum * pith_dtype_size(kind.dtype)));
    PITH_TRY(ops->run_round(f, f->stage++, pith_dtype_size(kind.dtype), 0));
  }
  reduce(f, f->in.data, sum, kind.dtype, kind.reduce);
  return PITH_OK;
}

/* ---- Types that no codec takes ----------------------------------------------------------------------------------- */

static pith_status work_plain(pith_staged *f) {
  const pith_stage_ops *ops = f->reducer->stage_ops;
  size_t n = 0;
  for (size_t i = 0; i < f->count; i++) {
    n += pith__stage_layer(f, i)->n;
  }
  if (f->stage++ == 0 && n) {
    PITH_TRY(pith__stages_buffer(f->stages, &f->in, n * sizeof(double)));
    PITH_TRY(ops->copy_plain(f, 0));
    reduce(f, f->in.data, n, PITH_F64, ops->plain_op);
    return PITH_OK;
  }
  end_stages(f);
  return n ? ops->copy_plain(f, 1) : PITH_OK;
}

/* ---- All of them ------------------------------------------------------------------------------------------------- */

pith_status pith__stage_make(pith_reducer *r, pith_group_kind kind, size_t layers, size_t table, pith_staged **made) {
  size_t ranks = (size_t)r->ranks;
  pith_staged *f = calloc(1, sizeof *f);
  PITH_REQUIRE(f, PITH_ERR_MEMORY, "no memory for a group of %zu layers", layers);
  *f = (pith_staged){.reducer = r, .stages = r->stages, .kind = kind, .op = PITH_MEAN, .table = table};
  f->layer = calloc(layers + 1, sizeof *f->layer);
  f->gradient = calloc(layers + 1, sizeof *f->gradient);
  f->bytes = calloc(ranks, sizeof *f->bytes);
  f->counts = calloc(pith__most(ranks, layers), sizeof *f->counts);
  f->sizes = calloc(table + 1, sizeof *f->sizes);
  f->sent = calloc(layers + 1, sizeof *f->sent);
  if (!f->layer || !f->gradient || !f->bytes || !f->counts || !f->sizes || !f->sent) {
    pith__stage_release(f);
    return pith_fail(PITH_ERR_MEMORY, "no memory for a group of %zu layers", layers);
  }
  *made = f;
  return PITH_OK;
}

pith_status pith__stage_make_of(pith_reducer *r, pith_group *g, pith_staged **made) {
  pith_staged *f;
  PITH_TRY(pith__stage_make(r, g->kind, g->count, g->kind == PITH_GROUP_WHOLE ? g->count * (size_t)r->ranks : 0, &f));
  pith_status status = PITH_OK;
  for (size_t i = 0; i < g->count && status == PITH_OK; i++) {
    pith_reducer_layer *l = &r->layers[g->layer[i]];
    if (l->started == r->step + 1) {
      status = pith__state_claim(l->state, r->rank, r->ranks);
      f->layer[f->count] = g->layer[i];
      f->gradient[f->count++] = l->gradient;
      f->traffic.raw_bytes += pith__layer_bytes(l);
    }
  }
  f->chunk = g->chunk;
  f->number = g->number;
  f->own = (size_t)r->rank * f->count;
  f->traffic.operations = 1;
  if (status == PITH_OK && (g->kind == PITH_GROUP_BLOCKS || g->kind == PITH_GROUP_HOSTS)) {
    status = find_bucket(f, g);
  }
  if (status != PITH_OK) {
    pith__stage_release(f);
    return status;
  }
  *made = f;
  return PITH_OK;
}

pith_status pith__stage_work(pith_staged *f) {
  static pith_status (*const by_kind[])(pith_staged *) = {
      [PITH_GROUP_BLOCKS] = work_blocks,          [PITH_GROUP_WHOLE] = work_whole,
      [PITH_GROUP_ROUNDS] = work_rounds,          [PITH_GROUP_PLAIN] = work_plain,
      [PITH_GROUP_SCATTER] = work_scatter,        [PITH_GROUP_GATHER] = work_whole,
      [PITH_GROUP_HOSTS] = pith__stage_work_hosts};
  double start = pith__now(), *seconds = f->stage == 0 ? &f->traffic.encode : &f->traffic.decode;
  pith_status status = by_kind[f->kind](f);
  *seconds += pith__now() - start;
  return status;
}

/* Every layer has its share of what was moved for all of them, by what its codec makes of it. */
void pith__stage_account(pith_staged *f) {
  double whole = 0;
  if (f->reducer->options.sharded) {
    account_shards(f);
    return;
  }
  for (size_t i = 0; i < f->count; i++) {
    whole += (double)pith_codec_bound(pith__stage_layer(f, i)->match.codec, pith__stage_layer(f, i)->n);
  }
  for (size_t i = 0; i < f->count; i++) {
    pith_reducer_layer *l = &f->reducer->layers[f->layer[i]];
    pith_traffic mine = f->traffic;
    mine.raw_bytes = f->number ? 0 : pith__layer_bytes(l); /* once, where it is sent in chunks */
    mine.uncompressed = strcmp(l->match.codec->spec, "none") == 0;
    double share = whole > 0 ? (double)pith_codec_bound(l->match.codec, l->n) / whole : 0;
    pith__traffic_add(&l->traffic, &mine, share);
    l->traffic.raw_bytes += mine.raw_bytes - (uint64_t)((double)mine.raw_bytes * share);
  }
}

void pith__stage_release(pith_staged *f) {
  pith_stage_buffer *buffers[] = {&f->out, &f->in, &f->more, &f->sums};
  for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
    pith__stages_give_back(f->stages, buffers[i]);
  }
  if (f->owns_bucket) {
    pith__bucket_destroy(f->bucket);
    pith__bucket_destroy(f->across);
  }
  free(f->layer);
  free(f->gradient);
  free(f->bytes);
  free(f->counts);
  free(f->sizes);
  free(f->sent);
  free(f);
}

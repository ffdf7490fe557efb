/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stages of block codecs on devices of several hosts, with the bits of the algorithm `hierarchical` over a comm
 * (docs/algorithms.md, "Hosts"). A layer is cut into a part for each place in a host, a part into a slice for each
 * host.
 *
 *   encode a part for each rank of the host · all-to-all within hosts
 *   add up our part, encode a slice of it for each host · all-to-all among the ranks of our place
 *   add up our slice and encode its mean · all-gather among the ranks of our place
 *   all-gather of these bytes within hosts · decode
 *
 * Within a host values travel by the codec for that (PITH_INSIDE), or as they are.
 */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "device/cuda_space.h"
#include "device/cuda_tasks.h"
#include "memory/memory.h"
#include "reducer/stages.h"

static const pith_hosts *hosts_of(const pith_staged *f) { return pith__hosts_of(&f->reducer->carrier); }

static void *stream_of(const pith_staged *f) { return f->reducer->options.stream; }

/* ---- Buckets ----------------------------------------------------------------------------------------------------- */

static pith_status fill_item(const pith_staged *f, size_t index, int is_inside, pith_bucket_item *item) {
  const pith_hosts *h = hosts_of(f);
  const pith_reducer_layer *l = pith__stage_layer(f, index);
  const pith_codec *codec = l->match.codec; /* sums of exact halves travel as f32: they are rounded once */
  int is_lossy = h->inside && strcmp(l->match.codec->spec, "none") != 0; /* exact layers stay so within hosts */
  *item = (pith_bucket_item){.codec = codec,
                             .layer = l->number,
                             .n = l->n,
                             .dtype = l->dtype,
                             .granule = pith__least_common_multiple(codec->granule, is_lossy ? h->inside->granule : 1),
                             .turns = (uint64_t)h->hosts};
  if (is_inside) {
    const char *as_is = l->dtype == PITH_F16 ? "fp16" : l->dtype == PITH_BF16 ? "bf16" : "none";
    item->codec = h->inside;
    PITH_TRY(is_lossy ? PITH_OK : pith__reducer_codec(f->reducer, as_is, &item->codec));
  }
  return PITH_OK;
}

/* Our part of each layer becomes a layer of the second. */
pith_status pith__stage_make_levels(const pith_staged *f, pith_bucket **inside, pith_bucket **across) {
  const pith_hosts *h = hosts_of(f);
  PITH_FREED pith_bucket_item *items = calloc(f->count + 1, sizeof *items);
  PITH_REQUIRE(items, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t i = 0; i < f->count; i++) {
    PITH_TRY(fill_item(f, i, 1, &items[i]));
  }
  PITH_TRY(pith__bucket_create(h->local, h->locals, items, f->count, inside));
  (*inside)->all = f->reducer->ranks;
  (*inside)->names = h->here;
  for (size_t i = 0; i < f->count; i++) {
    pith_range part = pith__bucket_part(*inside, i, h->local);
    PITH_TRY(fill_item(f, i, 0, &items[i]));
    items[i].n = part.n, items[i].base = part.first;
    items[i].dtype = PITH_F32;
    items[i].turns = 0;
  }
  PITH_TRY(pith__bucket_create(h->host, h->hosts, items, f->count, across));
  (*across)->all = f->reducer->ranks;
  (*across)->names = h->alike;
  return PITH_OK;
}

/* The slice of a host, of the part of a place. */
static pith_range slice_of(const pith_staged *f, size_t index, int local, int host) {
  const pith_bucket_item *l = &f->across->layer[index];
  pith_range part = pith__bucket_part(f->bucket, index, local);
  pith_range slice = pith__split_turned(part.n, l->granule, (size_t)f->across->ranks, (size_t)host, l->layer);
  return (pith_range){part.first + slice.first, slice.n};
}

/* Bytes of the largest slice of all layers: results are gathered as if all had that size. */
static size_t largest_slice(const pith_staged *f) {
  size_t most = 1;
  for (int local = 0; local < f->bucket->ranks; local++) {
    for (int host = 0; host < f->across->ranks; host++) {
      size_t bytes = 0;
      for (size_t i = 0; i < f->count; i++) {
        bytes += pith__bucket_piece_bytes(f->across, i, slice_of(f, i, local, host));
      }
      most = pith__most(most, bytes);
    }
  }
  return most;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static void count_sent(pith_staged *f, size_t bytes) {
  f->traffic.messages++;
  f->traffic.sent_bytes += bytes;
}

/* A part for each rank of a level; as many bytes of ours come from each. */
static void scatter(pith_staged *f, pith_level level, const pith_bucket *b) {
  for (int p = 0; p < b->ranks; p++) {
    f->bytes[p] = b->bytes[p];
    f->counts[p] = b->bytes[b->rank];
  }
  f->level = level;
  f->exchange.kind = PITH_EXCHANGE_ALL_TO_ALL;
  f->exchange.send = f->out.data;
  f->exchange.recv = f->in.data;
  f->exchange.send_bytes = f->bytes;
  f->exchange.recv_bytes = f->counts;
  count_sent(f, pith__sum(f->bytes, b->ranks) - f->bytes[b->rank]);
}

static void gather(pith_staged *f, pith_level level, const pith_bucket *b, const void *send, void *recv, size_t bytes) {
  f->level = level;
  f->exchange.kind = PITH_EXCHANGE_ALL_GATHER;
  f->exchange.send = send;
  f->exchange.recv = recv;
  f->exchange.bytes = bytes;
  count_sent(f, bytes * (size_t)(b->ranks - 1));
}

static pith_status take_room(pith_staged *f, pith_stage_buffer *buffer, const pith_bucket *b) {
  size_t all = pith__sum(b->bytes, b->ranks), mine = b->bytes[b->rank] * (size_t)b->ranks;
  return pith__stages_buffer(f->stages, buffer, pith__most(all, mine));
}

/* ---- Work -------------------------------------------------------------------------------------------------------- */

/* Where the sums of our part of each layer are, in `more`. */
static void **sums_of(const pith_staged *f) {
  void **sums = calloc(f->count + 1, sizeof *sums);
  float *at = (float *)(void *)f->more.data;
  for (size_t i = 0; sums && i < f->count; i++) {
    sums[i] = at;
    at += f->across->layer[i].n;
  }
  return sums;
}

/* Of our part: what a layer keeps, and what its results keep. */
static pith_status find_memories(const pith_staged *f, void **memories, void **results) {
  for (size_t i = 0; i < f->count; i++) {
    pith_state *state = pith__stage_layer(f, i)->state;
    const pith_memory_ops *memory = f->across->layer[i].codec->memory;
    pith_range own = pith__bucket_part(f->across, i, f->across->rank);
    size_t first = f->across->layer[i].base + own.first;
    if (memory) {
      memories[i] = memory->accumulator == PITH_KEEPS_RESIDUAL ? state->residual : (void *)state->momentum;
    }
    if (memory && memory->after == PITH_AFTER_SUBTRACT && own.n) {
      PITH_TRY(pith__state_own_results(state, first, own.n));
      results[i] = pith__store_at(state->store, state->result, first - state->result_base);
    }
  }
  return PITH_OK;
}

static pith_status encode_inside(pith_staged *f, const pith_ctx *ctx) {
  PITH_TRY(take_room(f, &f->out, f->bucket));
  PITH_TRY(take_room(f, &f->in, f->bucket));
  PITH_TRY(pith__cuda_bucket_encode(f->bucket, (const void *const *)f->gradient, NULL, ctx, f->out.data, NULL,
                                    stream_of(f)));
  scatter(f, PITH_LEVEL_INSIDE, f->bucket);
  return PITH_OK;
}

/* Both sides of the exchange among hosts: our host's sums to slices, and slices to our mean. */
static pith_status work_across(pith_staged *f, const pith_ctx *ctx, int reduces) {
  PITH_FREED void **memories = calloc(f->count + 1, sizeof *memories);
  PITH_FREED void **results = calloc(f->count + 1, sizeof *results);
  PITH_FREED void **sums = sums_of(f);
  PITH_REQUIRE(memories && results && sums, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  PITH_TRY(find_memories(f, memories, results));
  PITH_TRY(pith__stages_buffer(f->stages, &f->sums, pith__cuda_bucket_workspace(f->across, reduces)));
  if (reduces) {
    PITH_TRY(pith__stages_buffer(f->stages, &f->out, f->room));
    return pith__cuda_bucket_reduce(f->across, (const void *const *)sums, memories, results, f->in.data, ctx,
                                    f->out.data, f->sums.data, stream_of(f));
  }
  PITH_TRY(take_room(f, &f->out, f->across));
  PITH_TRY(pith__cuda_bucket_encode(f->across, (const void *const *)sums, memories, ctx, f->out.data, f->sums.data,
                                    stream_of(f)));
  return take_room(f, &f->in, f->across);
}

static pith_status sum_inside(pith_staged *f, const pith_ctx *ctx) {
  size_t values = 1;
  for (size_t i = 0; i < f->count; i++) {
    values += f->across->layer[i].n;
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->more, values * sizeof(float)));
  PITH_TRY(pith__cuda_bucket_sum(f->bucket, (const void *const *)f->gradient, f->in.data, ctx,
                                 (float *)(void *)f->more.data, stream_of(f)));
  PITH_TRY(work_across(f, ctx, 0));
  scatter(f, PITH_LEVEL_ACROSS, f->across);
  return PITH_OK;
}

/* All ranks decode the same bytes, those of the owners. */
static pith_status decode_all(pith_staged *f, const pith_ctx *ctx) {
  size_t locals = (size_t)f->bucket->ranks, hosts = (size_t)f->across->ranks, used = 0;
  PITH_FREED pith_cuda_item *items = calloc(f->count * locals * hosts + 1, sizeof *items);
  PITH_REQUIRE(items, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t k = 0; k < locals * hosts; k++) {
    uint8_t *at = f->in.data + k * f->room;
    for (size_t i = 0; i < f->count; i++) {
      const pith_reducer_layer *l = pith__stage_layer(f, i);
      const pith_codec *codec = f->across->layer[i].codec;
      pith_range slice = slice_of(f, i, (int)(k / hosts), (int)(k % hosts));
      pith_ctx here = pith__bucket_ctx(f->across, ctx, i, pith__result_rank(f->reducer->ranks), 0);
      here.offset = slice.first - slice.first % codec->granule;
      if (slice.n) {
        uint8_t *values = (uint8_t *)f->gradient[i] + slice.first * pith_dtype_size(l->dtype);
        items[used] = pith__gpu_item(codec, (pith_span){values, slice.n, l->dtype}, &here);
        items[used++].payload = at;
      }
      at += pith__bucket_piece_bytes(f->across, i, slice);
    }
  }
  return pith_cuda_decode(items, used, PITH_SET, NULL, 0, stream_of(f));
}

pith_status pith__stage_work_hosts(pith_staged *f) {
  pith_ctx ctx = pith__stage_ctx(f, NULL, f->reducer->rank);
  size_t hosts = (size_t)f->across->ranks;
  switch (f->stage++) {
    case 0:
      f->room = largest_slice(f);
      return encode_inside(f, &ctx);
    case 1:
      return sum_inside(f, &ctx);
    case 2:
      PITH_TRY(work_across(f, &ctx, 1));
      PITH_TRY(pith__stages_buffer(f->stages, &f->in, f->room * hosts));
      gather(f, PITH_LEVEL_ACROSS, f->across, f->out.data, f->in.data, f->room);
      return PITH_OK;
    case 3: { /* what was received is sent on */
      pith_stage_buffer received = f->in;
      f->in = f->out;
      f->out = received;
      PITH_TRY(pith__stages_buffer(f->stages, &f->in, f->room * hosts * (size_t)f->bucket->ranks));
      gather(f, PITH_LEVEL_INSIDE, f->bucket, f->out.data, f->in.data, f->room * hosts);
      return PITH_OK;
    }
    default:
      f->stage = SIZE_MAX;
      return decode_all(f, &ctx);
  }
}

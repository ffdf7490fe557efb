/* SPDX-License-Identifier: Apache-2.0 */
/* The work of stages on a CUDA device: see stages.h. Everything is enqueued on the space's stream; the host waits only
 * for sizes of payloads, where they vary. */
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "codec/codec.h"
#include "device/bucket.h"
#include "device/cuda_space.h"
#include "device/cuda_tasks.h"
#include "memory/memory.h"
#include "reducer/stages.h"

#define ALIGNMENT 256

static pith_cuda_space *space_of(const pith_staged *f) { return (pith_cuda_space *)f->reducer->space; }

static size_t aligned(size_t size) { return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

/* What kernels call the memory of a codec: what holds the values that the codec was given. (Their momentum is the
 * second thing that is kept where places which were sent start again.) */
static void *memory_of(const pith_reducer_layer *l) {
  const pith_memory_ops *memory = l->match.codec->memory;
  return !memory ? NULL : memory->accumulator == PITH_KEEPS_RESIDUAL ? l->state->residual : (void *)l->state->momentum;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static pith_status list_memories(const pith_staged *f, void ***memories) {
  *memories = calloc(f->count, sizeof **memories);
  PITH_REQUIRE(*memories, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t i = 0; i < f->count; i++) {
    (*memories)[i] = memory_of(pith__stage_layer(f, i));
  }
  return PITH_OK;
}

static pith_status encode_parts(pith_staged *f, const pith_ctx *ctx) {
  PITH_FREED void **memories = NULL;
  size_t workspace = pith__cuda_bucket_workspace(f->bucket, 0);
  PITH_TRY(workspace ? pith__stages_buffer(f->stages, &f->sums, workspace) : PITH_OK);
  PITH_TRY(list_memories(f, &memories));
  return pith__cuda_bucket_encode(f->bucket, (const void *const *)f->gradient, memories, ctx, f->out.data, f->sums.data,
                                  space_of(f)->stream);
}

/* Where results of ours keep what they lost: that of the whole part, of which a chunk is a piece. */
static pith_status find_results(const pith_staged *f, void **results) {
  for (size_t i = 0; i < f->count; i++) {
    pith_reducer_layer *l = pith__stage_layer(f, i);
    const pith_memory_ops *memory = l->match.codec->memory;
    pith_range own = pith__bucket_part(f->bucket, i, f->reducer->rank),
               piece = pith__bucket_piece(f->bucket, i, f->reducer->rank);
    if (memory && memory->after == PITH_AFTER_SUBTRACT && own.n) {
      PITH_TRY(pith__state_own_results(l->state, own.first, own.n));
      results[i] = pith__store_at(l->state->store, l->state->result, piece.first - l->state->result_base);
    }
  }
  return PITH_OK;
}

static pith_status reduce_parts(pith_staged *f, const pith_ctx *ctx) {
  size_t own = f->bytes[f->reducer->rank];
  PITH_FREED void **memories = NULL;
  PITH_FREED void **results = calloc(f->count, sizeof *results);
  PITH_REQUIRE(results, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  PITH_TRY(find_results(f, results));
  PITH_TRY(list_memories(f, &memories));
  PITH_TRY(pith__stages_buffer(f->stages, &f->sums, pith__cuda_bucket_workspace(f->bucket, 1)));
  PITH_TRY(pith__cuda_bucket_reduce(f->bucket, (const void *const *)f->gradient, memories, results, f->in.data, ctx,
                                    f->out.data, f->sums.data, space_of(f)->stream));
  for (int p = 1; p < f->reducer->ranks && !f->is_padded; p++) {
    PITH_TRY(pith__cuda_space_move(space_of(f), f->out.data + (size_t)p * own, f->out.data, own));
  }
  return PITH_OK;
}

static pith_status decode_parts(pith_staged *f, const pith_ctx *ctx) {
  return pith__cuda_bucket_decode(f->bucket, f->in.data, f->is_padded ? f->room : 0, ctx, f->gradient,
                                  space_of(f)->stream);
}

/* ---- Many layers in one call ------------------------------------------------------------------------------------- */

/* Items of all layers, with what encoding needs; the caller adds the rest, and frees them. */
static pith_status make_items(const pith_staged *f, int rank, pith_cuda_item **made) {
  pith_cuda_item *items = *made = calloc(f->count + 1, sizeof *items);
  PITH_REQUIRE(items, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    pith_ctx ctx = pith__stage_ctx(f, l, rank);
    const pith_memory_ops *memory = l->match.codec->memory;
    items[i] = pith__gpu_item(pith__layer_codec(l), (pith_span){f->gradient[i], l->n, l->dtype}, &ctx);
    items[i].memory = memory_of(l);
    items[i].momentum = memory && memory->after == PITH_AFTER_CLEAR ? l->state->momentum : NULL;
    items[i].part = l->state->part;
  }
  return PITH_OK;
}

static pith_status take_workspace(pith_staged *f, const pith_cuda_item *items, size_t *size) {
  *size = pith_cuda_workspace(items, f->count);
  return pith__stages_buffer(f->stages, &f->sums, *size);
}

/* ---- Whole payloads ---------------------------------------------------------------------------------------------- */

/* In `more`: the sizes of payloads, of all ranks, and where they vary the payloads themselves, at their bounds. */
static size_t table_bytes(const pith_staged *f) { return aligned(f->table * sizeof(uint64_t)); }

/* Of any layers, whose payloads have sizes that are known. */
static pith_status decode_items(pith_staged *f, const pith_cuda_item *items, size_t count, pith_mode mode) {
  size_t workspace = pith_cuda_workspace(items, count);
  PITH_TRY(pith__stages_buffer(f->stages, &f->sums, workspace));
  return pith_cuda_decode(items, count, mode, f->sums.data, workspace, space_of(f)->stream);
}

/* Values as they are, from one place and type to another: the payload of a codec that does nothing. */
static pith_status copy_item(pith_reducer *r, pith_span from, pith_span to, pith_cuda_item *item) {
  const pith_codec *codec;
  pith_ctx ctx = PITH_CTX_INIT;
  PITH_TRY(pith__reducer_exact_codec(r, from.dtype, &codec));
  *item = pith__gpu_item(codec, to, &ctx);
  item->payload = from.data;
  return PITH_OK;
}

/* to = -reference */
static pith_status negate(const pith_staged *f, const pith_reducer_layer *l, float *to) {
  int is_half = l->reference->dtype == PITH_BF16;
  return pith__space_repack(f->reducer->space,
                            &(pith_repack_task){.from = l->reference->values,
                                                .to = to,
                                                .n = l->n,
                                                .factor = -1.0f,
                                                .from_store = (uint8_t)(is_half ? PITH_STORE_BF16 : PITH_STORE_F32)});
}

/* What travels in the place of the values that were given, in `in`, which is free until something comes. */
static pith_status make_sources(pith_staged *f, pith_cuda_item *items) {
  size_t room = 0, added = 0;
  PITH_FREED pith_cuda_item *add = calloc(f->count + 1, sizeof *add);
  PITH_REQUIRE(add, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    room += pith__stage_source(f, l) >= PITH_SOURCE_DIFFERENCE ? aligned(l->n * sizeof(float)) : 0;
  }
  PITH_TRY(room ? pith__stages_buffer(f->stages, &f->in, room) : PITH_OK);
  uint8_t *at = f->in.data;
  for (size_t i = 0; i < f->count; i++) {
    pith_reducer_layer *l = pith__stage_layer(f, i);
    pith_stage_source source = pith__stage_source(f, l);
    pith_span given = {items[i].values, l->n, items[i].dtype}, made = {at, l->n, PITH_F32};
    if (source == PITH_SOURCE_GIVEN) {
      continue;
    }
    if (source == PITH_SOURCE_REFERENCE) {
      made = pith__reference_values(l);
    } else if (source == PITH_SOURCE_DIFFERENCE) {
      PITH_TRY(negate(f, l, made.data));
      PITH_TRY(copy_item(f->reducer, given, made, &add[added++]));
      at += aligned(l->n * sizeof(float));
    } else {
      pith_cuda_item whole;
      PITH_TRY(copy_item(f->reducer, given, made, &whole));
      PITH_TRY(decode_items(f, &whole, 1, PITH_SET));
      PITH_TRY(pith__pending_release(l, made));
      at += aligned(l->n * sizeof(float));
    }
    items[i].values = made.data;
    items[i].dtype = made.dtype;
  }
  return added ? decode_items(f, add, added, PITH_ADD) : PITH_OK;
}

static pith_status encode_items(pith_staged *f) {
  size_t room = 0, message = 0, workspace;
  int vary = !pith__stage_is_fixed(f);
  PITH_FREED pith_cuda_item *items = NULL;
  PITH_TRY(make_items(f, f->reducer->rank, &items));
  PITH_TRY(f->reducer->options.sharded ? make_sources(f, items) : PITH_OK);
  for (size_t i = 0; i < f->count; i++) {
    room += vary ? aligned(pith__layer_bound(pith__stage_layer(f, i))) : 0;
    message += pith__layer_bound(pith__stage_layer(f, i));
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->more, table_bytes(f) + room));
  PITH_TRY(pith__stages_buffer(f->stages, &f->out, message));
  uint8_t *at = vary ? f->more.data + table_bytes(f) : f->out.data;
  for (size_t i = 0; i < f->count; i++) {
    items[i].payload = at;
    items[i].payload_size = (uint64_t *)(void *)f->more.data + f->own + i;
    at += vary ? aligned(pith__layer_bound(pith__stage_layer(f, i))) : pith__layer_bound(pith__stage_layer(f, i));
  }
  PITH_TRY(take_workspace(f, items, &workspace));
  return pith_cuda_encode(items, f->count, f->sums.data, workspace, space_of(f)->stream);
}

/* The host must know how much travels, and waits for that where it varies. */
static pith_status fetch_sizes(pith_staged *f) {
  uint64_t *sizes = f->sizes + f->own;
  const uint64_t *there = (const uint64_t *)(const void *)f->more.data + f->own;
  PITH_TRY(pith__stage_is_fixed(f) ? PITH_OK
                                   : pith__space_copy(f->reducer->space, sizes, there, f->count * sizeof *sizes));
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    size_t bound = pith__layer_bound(l);
    sizes[i] = pith__layer_codec(l)->caps & PITH_CAP_FIXED ? bound : sizes[i];
    PITH_REQUIRE(sizes[i] <= bound, PITH_ERR_CORRUPT, "layer %s: a payload of %llu bytes, and %zu is the most", l->name,
                 (unsigned long long)sizes[i], bound);
  }
  return pith__cuda_space_move(space_of(f), (void *)(uintptr_t)there, sizes, f->count * sizeof *sizes);
}

static pith_status encode_payloads(pith_staged *f) {
  size_t used = 0, at = table_bytes(f);
  PITH_TRY(encode_items(f));
  PITH_TRY(f->reducer->options.capturable ? PITH_OK : fetch_sizes(f)); /* else they are bounds */
  const uint64_t *sizes = f->sizes + f->own;
  for (size_t i = 0; i < f->count && !pith__stage_is_fixed(f); i++) {
    PITH_TRY(pith__cuda_space_move(space_of(f), f->out.data + used, f->more.data + at, (size_t)sizes[i]));
    used += (size_t)sizes[i];
    at += aligned(pith__layer_bound(pith__stage_layer(f, i)));
  }
  return PITH_OK;
}

static pith_status pad_message(pith_staged *f, size_t own) {
  PITH_CUDA_TRY(space_of(f)->gpu->clear, f->out.data + own, f->room - own, space_of(f)->stream);
  return PITH_OK;
}

static pith_status decode_message(pith_staged *f, int rank, void **values, pith_dtype dtype, pith_mode mode) {
  size_t workspace, first = (size_t)rank * f->count;
  uint8_t *at = f->in.data + pith__stage_message_at(f, rank);
  PITH_FREED pith_cuda_item *items = NULL;
  PITH_TRY(make_items(f, rank, &items));
  for (size_t i = 0; i < f->count; i++) {
    items[i].values = values[i];
    items[i].dtype = dtype;
    items[i].payload = at;
    items[i].payload_size = (uint64_t *)(void *)f->more.data + first + i;
    items[i].memory = items[i].momentum = NULL;
    items[i].part = NULL;
    at += f->sizes[first + i];
  }
  PITH_TRY(take_workspace(f, items, &workspace));
  return pith_cuda_decode(items, f->count, mode, f->sums.data, workspace, space_of(f)->stream);
}

static pith_status aggregate(pith_staged *f, float **total) {
  PITH_FREED pith_cuda_item *items = NULL;
  PITH_TRY(make_items(f, f->reducer->rank, &items));
  for (size_t i = 0; i < f->count; i++) {
    items[i].payload = total[i];
    if (f->op == PITH_SUM && items[i].codec->caps & PITH_CAP_VOTE) {
      /* A sum of votes is the majority times their number: whoever asked for a sum divides it. */
      pith_cuda_item votes = items[i];
      votes.values = votes.payload;
      votes.dtype = PITH_F32;
      PITH_TRY(pith_cuda_aggregate(&votes, 1, space_of(f)->stream));
      PITH_TRY(pith__space_scale(f->reducer->space, (float)f->reducer->ranks, votes.values, votes.n));
    }
    if (f->op == PITH_SUM) { /* then nothing is divided */
      items[i].codec = space_of(f)->raw;
      items[i].ranks = 1;
    }
  }
  return pith_cuda_aggregate(items, f->count, space_of(f)->stream);
}

/* To the device; in graphs it has them, and the host bounds. */
static pith_status put_sizes(const pith_staged *f) {
  size_t table = f->count * (size_t)f->reducer->ranks * sizeof *f->sizes;
  return f->reducer->options.capturable ? PITH_OK : pith__cuda_space_move(space_of(f), f->more.data, f->sizes, table);
}

/* Rank after rank, in f32: in place, or in `out` where gradients are no f32. */
static pith_status average_payloads(pith_staged *f) {
  size_t wide = 0;
  PITH_FREED float **total = calloc(f->count + 1, sizeof *total);
  PITH_REQUIRE(total, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  PITH_TRY(put_sizes(f));
  for (size_t i = 0; i < f->count; i++) {
    wide += pith__stage_layer(f, i)->dtype == PITH_F32 ? 0 : aligned(pith__stage_layer(f, i)->n * sizeof(float));
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->out, wide));
  uint8_t *at = f->out.data;
  for (size_t i = 0; i < f->count; i++) {
    int is_wide = pith__stage_layer(f, i)->dtype != PITH_F32;
    total[i] = is_wide ? (float *)(void *)at : f->gradient[i];
    at += is_wide ? aligned(pith__stage_layer(f, i)->n * sizeof(float)) : 0;
  }
  for (int p = 0; p < f->reducer->ranks; p++) {
    PITH_TRY(decode_message(f, p, (void **)total, PITH_F32, p ? PITH_ADD : PITH_SET));
  }
  return aggregate(f, total);
}

/* The messages of all ranks in as few calls as there are modes. */
static pith_status decode_payloads(pith_staged *f) {
  size_t ranks = (size_t)f->reducer->ranks, count[2] = {0}, copies = 0, all = f->count * ranks;
  uint8_t *to = f->target;
  PITH_FREED pith_cuda_item *items = calloc(3 * all + 1, sizeof *items);
  PITH_REQUIRE(items, PITH_ERR_MEMORY, "no memory for a group of %zu layers", f->count);
  for (size_t p = 0; p < ranks; p++) {
    uint8_t *from = f->in.data + pith__stage_message_at(f, (int)p);
    for (size_t i = 0; i < f->count; i++) {
      pith_reducer_layer *l = pith__stage_layer(f, i) - f->reducer->rank + p; /* the entry of its owner */
      pith_ctx ctx = pith__stage_ctx(f, l, (int)p);
      pith_span values = {to, l->n, l->dtype}, into = l->reference ? pith__reference_values(l) : values;
      int adds = pith__stage_adds(f, l);
      pith_cuda_item *item = &items[(size_t)adds * all + count[adds]++];
      *item = pith__gpu_item(pith__layer_codec(l), into, &ctx);
      item->payload = from;
      if (l->reference) {
        l->reference->is_stale = 0;
      }
      if (l->reference && !f->restores) {
        PITH_TRY(copy_item(f->reducer, pith__reference_values(l), values, &items[2 * all + copies++]));
      }
      from += f->sizes[p * f->count + i];
      to = f->restores ? NULL : to + pith__layer_bytes(l);
    }
  }
  PITH_TRY(decode_items(f, items, count[0], PITH_SET));
  PITH_TRY(decode_items(f, items + all, count[1], PITH_ADD));
  return decode_items(f, items + 2 * all, copies, PITH_SET);
}

static pith_status give_references(pith_reducer *r, const size_t *layers, size_t count, pith_span dst) {
  size_t ranks = (size_t)r->ranks;
  uint8_t *to = dst.data;
  PITH_FREED pith_cuda_item *items = calloc(count * ranks + 1, sizeof *items);
  PITH_REQUIRE(items, PITH_ERR_MEMORY, "no memory for %zu layers", count);
  for (size_t k = 0; k < count * ranks; k++) {
    const pith_reducer_layer *l = &r->layers[layers[k % count] * ranks + k / count];
    PITH_TRY(copy_item(r, pith__reference_values(l), (pith_span){to, l->n, dst.dtype}, &items[k]));
    to += l->n * pith_dtype_size(dst.dtype);
  }
  return pith_cuda_decode(items, count * ranks, PITH_SET, NULL, 0, ((pith_cuda_space *)r->space)->stream);
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static pith_status run_round(pith_staged *f, size_t round, size_t width, int consumes) {
  size_t workspace;
  uint8_t *at = f->in.data;
  PITH_FREED pith_cuda_item *items = NULL;
  PITH_TRY(make_items(f, f->reducer->rank, &items));
  for (size_t i = 0; i < f->count; at += f->counts[i++] * width) {
    items[i].payload = at;
  }
  PITH_TRY(take_workspace(f, items, &workspace));
  return (consumes ? pith_cuda_consume : pith_cuda_produce)(items, f->count, round, f->sums.data, workspace,
                                                            space_of(f)->stream);
}

/* ---- Types that no codec takes ----------------------------------------------------------------------------------- */

static pith_status copy_plain(pith_staged *f, int back) {
  uint8_t *at = f->in.data;
  for (size_t i = 0; i < f->count; at += pith__layer_bytes(pith__stage_layer(f, i++))) {
    void *from = back ? (void *)at : f->gradient[i], *to = back ? f->gradient[i] : (void *)at;
    PITH_TRY(pith__cuda_space_move(space_of(f), to, from, pith__layer_bytes(pith__stage_layer(f, i))));
  }
  return PITH_OK;
}

const pith_stage_ops pith__stage_cuda = {.encode_parts = encode_parts,
                                         .reduce_parts = reduce_parts,
                                         .decode_parts = decode_parts,
                                         .encode_payloads = encode_payloads,
                                         .pad_message = pad_message,
                                         .average_payloads = average_payloads,
                                         .decode_payloads = decode_payloads,
                                         .give_references = give_references,
                                         .run_round = run_round,
                                         .copy_plain = copy_plain,
                                         .plain_op = PITH_MEAN};

/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets on a device: the same pieces in the same order as in main memory, all pieces of a step in one call to the
 * kernels. */
#include <pith/cuda.h>
#include <stdlib.h>

#include "device/bucket.h"
#include "device/cuda_tasks.h"
#include "memory/store.h"

#define ALIGNMENT 256 /* of a workspace */

typedef struct item_list {
  pith_cuda_item *item;
  size_t count;
} item_list;

/* The caller frees the items. */
static pith_status make_items(const pith_bucket *b, size_t pieces, pith_cuda_item **items) {
  *items = malloc((pieces + 1) * sizeof **items);
  PITH_REQUIRE(*items, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  return PITH_OK;
}

static void add_item(item_list *list, const pith_bucket *b, size_t index, pith_range piece, void *values,
                     pith_dtype dtype, void *payload, const pith_ctx *ctx, uint32_t rank) {
  if (piece.n) {
    pith_ctx at = pith__bucket_ctx(b, ctx, index, rank, piece.first);
    list->item[list->count] = pith__gpu_item(b->layer[index].codec, (pith_span){values, piece.n, dtype}, &at);
    list->item[list->count++].payload = payload;
  }
}

static void *value_at(const pith_bucket *b, size_t index, const void *data, size_t first) {
  return (uint8_t *)(uintptr_t)data + first * pith_dtype_size(b->layer[index].dtype);
}

/* Encodes or decodes all pieces of all ranks, as they lie in parts and results. */
typedef enum pieces { PARTS, RESULTS } pieces;

static pith_status run_all(const pith_bucket *b, const void *const *tensors, void *const *memories, const pith_ctx *ctx,
                           const void *bytes, size_t stride, pieces what, void *workspace, void *stream) {
  uint32_t rank = what == RESULTS ? pith__result_rank(b->all) : pith__bucket_name(b, b->rank);
  uint8_t *at = (uint8_t *)(uintptr_t)bytes;
  PITH_FREED pith_cuda_item *items = NULL;
  PITH_TRY(make_items(b, b->count * (size_t)b->ranks, &items));
  item_list list = {items, 0};
  for (int p = 0; p < b->ranks; p++) {
    at = stride ? (uint8_t *)(uintptr_t)bytes + (size_t)p * stride : at;
    for (size_t i = 0; i < b->count; i++) {
      pith_range piece = pith__bucket_piece(b, i, p);
      size_t before = list.count;
      if (what == RESULTS || !pith__bucket_sums_as_is(b, i, p)) {
        add_item(&list, b, i, piece, value_at(b, i, tensors[i], piece.first), b->layer[i].dtype, at, ctx, rank);
      }
      if (list.count > before && memories && memories[i]) {
        list.item[before].memory =
            pith__store_at(pith__codec_store(b->layer[i].codec), memories[i], b->layer[i].base + piece.first);
      }
      at += pith__bucket_piece_bytes(b, i, piece);
    }
  }
  if (what == RESULTS) {
    return pith_cuda_decode(items, list.count, PITH_SET, NULL, 0, stream);
  }
  return pith_cuda_encode(items, list.count, workspace, pith__gpu_wide_bytes(items, list.count), stream);
}

static size_t sum_bytes(const pith_bucket *b) {
  size_t values = 0;
  for (size_t i = 0; i < b->count; i++) {
    values += pith__bucket_piece(b, i, b->rank).n;
  }
  return (values * sizeof(float) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

size_t pith__cuda_bucket_workspace(const pith_bucket *b, int own) {
  size_t bytes = own ? sum_bytes(b) : 0;
  for (int p = own ? b->rank : 0; p < (own ? b->rank + 1 : b->ranks); p++) {
    for (size_t i = 0; i < b->count; i++) {
      pith_cuda_item item = {.codec = b->layer[i].codec, .n = pith__bucket_piece(b, i, p).n};
      bytes += pith__gpu_wide_bytes(&item, 1);
    }
  }
  return bytes;
}

pith_status pith__cuda_bucket_encode(const pith_bucket *b, const void *const *src, void *const *memories,
                                     const pith_ctx *ctx, void *parts, void *workspace, void *stream) {
  return run_all(b, src, memories, ctx, parts, 0, PARTS, workspace, stream);
}

pith_status pith__cuda_bucket_decode(const pith_bucket *b, const void *results, size_t stride, const pith_ctx *ctx,
                                     void *const *dst, void *stream) {
  return run_all(b, (const void *const *)dst, NULL, ctx, results, stride, RESULTS, NULL, stream);
}

/* ---- Our own pieces: what is reduced in one step, and the rest, step by step ------------------------------------- */

/* What pith__cuda_bucket_reduce() is given, and for each layer how many of the first values of our piece one kernel
 * decodes, adds up and encodes. */
typedef struct own_pieces {
  const pith_bucket *b;
  const void *const *src;
  void *const *memories, *const *result_memories;
  const uint8_t *received;
  const pith_ctx *ctx;
  uint8_t *result;
  size_t *fused;
  pith_codec *plain; /* codecs of results without the memory that is for gradients alone */
} own_pieces;

/* Our piece of a layer behind the values that one kernel takes. */
static pith_range rest_of(const own_pieces *o, size_t index) {
  pith_range piece = pith__bucket_piece(o->b, index, o->b->rank);
  return (pith_range){piece.first + o->fused[index], piece.n - o->fused[index]};
}

/* `bytes` has payloads of all pieces, one after another, `sums` the values of their rests. Without those that are
 * summed as they are where only payloads are asked for. */
static void list_own(item_list *list, const own_pieces *o, float *sums, const void *bytes, const pith_ctx *ctx,
                     uint32_t rank, int only_payloads) {
  const pith_bucket *b = o->b;
  uint8_t *at = (uint8_t *)(uintptr_t)bytes;
  list->count = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_range rest = rest_of(o, i);
    if (!only_payloads || !pith__bucket_sums_as_is(b, i, b->rank)) {
      add_item(list, b, i, rest, sums, PITH_F32, at + pith__bucket_piece_bytes(b, i, (pith_range){0, o->fused[i]}), ctx,
               rank);
    }
    at += pith__bucket_piece_bytes(b, i, pith__bucket_piece(b, i, b->rank));
    sums += rest.n;
  }
}

/* The memory of our own values of a layer, from one of them on; NULL: there is none. */
static void *own_memory(const own_pieces *o, size_t index, size_t first) {
  const pith_bucket_item *l = &o->b->layer[index];
  return l->codec->memory && o->memories
             ? pith__store_at(pith__codec_store(l->codec), o->memories[index], l->base + first)
             : NULL;
}

/* Our own values of the rests, behind their memories, which are widened where they are packed. */
static pith_status sum_own(item_list *list, const own_pieces *o, float *sums, void *workspace, void *stream) {
  const pith_bucket *b = o->b;
  pith_gpu_batch batch = {.stream = stream, .kind = PITH_GPU_OWN_TASKS};
  PITH_FREED pith_cuda_item *widened = NULL;
  list->count = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_range rest = rest_of(o, i);
    if (rest.n && pith__bucket_sums_as_is(b, i, b->rank)) {
      add_item(list, b, i, rest, value_at(b, i, o->src[i], rest.first), b->layer[i].dtype, sums, o->ctx,
               pith__bucket_name(b, b->rank));
      list->item[list->count - 1].memory = own_memory(o, i, rest.first);
    }
    sums += rest.n;
  }
  PITH_TRY(pith__cuda_module(&batch.gpu));
  PITH_TRY(make_items(b, list->count, &widened));
  PITH_TRY(pith__gpu_widen(batch.gpu, list->item, list->count, workspace, widened, stream));
  for (size_t i = 0; i < list->count; i++) {
    for (size_t first = 0; first < widened[i].n;) {
      PITH_TRY(pith__gpu_make_room(&batch));
      first += pith__gpu_next_own(&widened[i], b->rank > 0, first, &batch.own[batch.used++]);
    }
  }
  PITH_TRY(pith__gpu_hand_over(&batch));
  return pith__gpu_pack(batch.gpu, list->item, list->count, workspace, stream);
}

/* Results go through a memory of their own where one keeps what was lost; any other memory is for gradients alone. */
static void set_result_memory(const own_pieces *o, size_t index, size_t first, pith_cuda_item *item) {
  const pith_codec *codec = o->b->layer[index].codec;
  item->gamma = 1.0f;
  if (codec->memory && codec->memory->after == PITH_AFTER_SUBTRACT) {
    item->memory = pith__store_at(pith__codec_store(codec), o->result_memories[index], first);
  } else {
    o->plain[index] = *codec;
    o->plain[index].memory = NULL;
    item->codec = &o->plain[index];
  }
}

/* ---- In one step ------------------------------------------------------------------------------------------------- */

enum { FLOATS = 16, WORDS = 4 }; /* how kernels want values and payloads aligned */

static int is_aligned(const void *p, size_t to) { return (uintptr_t)p % to == 0; }

/* The first values of our piece of a layer, with payloads at `at` in each part. */
static void fuse_layer(own_pieces *o, size_t index, size_t at, pith_cuda_item *own, pith_cuda_item *result) {
  const pith_bucket *b = o->b;
  const pith_bucket_item *l = &b->layer[index];
  pith_range piece = pith__bucket_piece(b, index, b->rank);
  size_t n = pith__bucket_sums_as_is(b, index, b->rank) ? pith__gpu_reducible(l->codec, l->dtype, piece.n) : 0;
  if (!n || b->ranks > UINT8_MAX) {
    return;
  }
  pith_ctx mine = pith__bucket_ctx(b, o->ctx, index, pith__bucket_name(b, b->rank), piece.first),
           mean = pith__bucket_ctx(b, o->ctx, index, pith__result_rank(b->all), piece.first);
  pith_span values = {value_at(b, index, o->src[index], piece.first), n, l->dtype};
  *own = pith__gpu_item(l->codec, values, &mine);
  *result = pith__gpu_item(l->codec, values, &mean);
  own->memory = own_memory(o, index, piece.first);
  own->payload = (void *)(uintptr_t)(o->received + at);
  result->payload = o->result + at;
  set_result_memory(o, index, 0, result);
  int fits = is_aligned(values.data, FLOATS) && is_aligned(own->memory, FLOATS) && is_aligned(result->memory, FLOATS) &&
             is_aligned(own->payload, WORDS) && is_aligned(result->payload, WORDS) &&
             (b->bytes[b->rank] % WORDS == 0 || b->ranks == 1);
  o->fused[index] = fits ? n : 0;
}

static pith_status reduce_at_once(own_pieces *o, void *stream) {
  const pith_bucket *b = o->b;
  pith_gpu_batch batch = {.stream = stream, .kind = PITH_GPU_REDUCE_TASKS};
  size_t at = 0;
  PITH_TRY(pith__cuda_module(&batch.gpu));
  for (size_t i = 0; i < b->count; i++) {
    pith_cuda_item own, result;
    fuse_layer(o, i, at, &own, &result);
    for (size_t first = 0; first < o->fused[i];) {
      PITH_TRY(pith__gpu_make_room(&batch));
      pith_gpu_reduce *task = &batch.reduce[batch.used++];
      size_t some = pith__gpu_next_reduce(&own, &result, first, task);
      task->received = (const uint8_t *)own.payload + pith_codec_bound(own.codec, first);
      task->stride = b->bytes[b->rank];
      task->rank = (uint8_t)b->rank, task->ranks = (uint8_t)b->ranks;
      first += some;
    }
    at += pith__bucket_piece_bytes(b, i, pith__bucket_piece(b, i, b->rank));
  }
  return pith__gpu_hand_over(&batch);
}

/* ---- Step by step ------------------------------------------------------------------------------------------------ */

/* The sum rank after rank, as on the CPU, so that it has the same bits. */
static pith_status sum_rests(own_pieces *o, item_list list, float *sums, void *wide, void *stream) {
  const pith_bucket *b = o->b;
  for (int p = 0; p < b->ranks; p++) {
    list_own(&list, o, sums, o->received + (size_t)p * b->bytes[b->rank], o->ctx, pith__bucket_name(b, p),
             p == b->rank);
    PITH_TRY(pith_cuda_decode(list.item, list.count, p ? PITH_ADD : PITH_SET, NULL, 0, stream));
    PITH_TRY(p == b->rank ? sum_own(&list, o, sums, wide, stream) : PITH_OK);
  }
  return PITH_OK;
}

/* The sum, its mean, and the result, encoded. */
static pith_status reduce_rests(own_pieces *o, pith_cuda_item *items, void *workspace, void *stream) {
  const pith_bucket *b = o->b;
  float *sums = workspace;
  void *wide = (uint8_t *)workspace + sum_bytes(b);
  item_list list = {items, 0};
  PITH_TRY(sum_rests(o, list, sums, wide, stream));
  list_own(&list, o, sums, sums, &(pith_ctx)PITH_CTX_INIT, pith__bucket_name(b, b->rank), 0);
  for (size_t k = 0; k < list.count; k++) {
    items[k].payload = items[k].values; /* in place */
  }
  PITH_TRY(pith_cuda_aggregate(items, list.count, stream));
  list_own(&list, o, sums, o->result, o->ctx, pith__result_rank(b->all), 0);
  pith_cuda_item *item = items;
  for (size_t i = 0; i < b->count; i++) {
    if (rest_of(o, i).n) {
      set_result_memory(o, i, o->fused[i], item++);
    }
  }
  return pith_cuda_encode(items, list.count, wide, pith__gpu_wide_bytes(items, list.count), stream);
}

pith_status pith__cuda_bucket_reduce(const pith_bucket *b, const void *const *src, void *const *memories,
                                     void *const *result_memories, const void *received, const pith_ctx *ctx,
                                     void *result, void *workspace, void *stream) {
  PITH_FREED pith_codec *plain = malloc((b->count + 1) * sizeof *plain);
  PITH_FREED size_t *fused = calloc(b->count + 1, sizeof *fused);
  PITH_FREED pith_cuda_item *items = NULL;
  own_pieces o = {b, src, memories, result_memories, received, ctx, result, fused, plain};
  PITH_REQUIRE(plain && fused, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  PITH_TRY(make_items(b, b->count, &items));
  PITH_TRY(reduce_at_once(&o, stream));
  size_t rest = 0;
  for (size_t i = 0; i < b->count; i++) {
    rest += rest_of(&o, i).n;
  }
  return rest ? reduce_rests(&o, items, workspace, stream) : PITH_OK;
}

pith_status pith__cuda_bucket_sum(const pith_bucket *b, const void *const *src, const void *received,
                                  const pith_ctx *ctx, float *sums, void *stream) {
  PITH_FREED size_t *fused = calloc(b->count + 1, sizeof *fused);
  PITH_FREED pith_cuda_item *items = NULL;
  own_pieces o = {.b = b, .src = src, .received = received, .ctx = ctx, .fused = fused};
  PITH_REQUIRE(fused, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  PITH_TRY(make_items(b, b->count, &items));
  return sum_rests(&o, (item_list){items, 0}, sums, NULL, stream);
}

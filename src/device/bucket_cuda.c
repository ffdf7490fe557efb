/* Buckets on a device: the same pieces in the same order as in main memory, all pieces of a step in one call to the
 * kernels. */
#include <pith/cuda.h>
#include <stdlib.h>

#include "device/bucket.h"
#include "device/cuda_tasks.h"
#include "memory/store.h"

typedef struct item_list {
  pith_cuda_item *item;
  size_t count;
} item_list;

static pith_status make_list(const pith_bucket *b, size_t pieces, item_list *list) {
  *list = (item_list){malloc((pieces + 1) * sizeof *list->item), 0};
  PITH_REQUIRE(list->item, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  return PITH_OK;
}

static void add_item(item_list *list, const pith_bucket *b, size_t index, pith_range piece, void *values,
                     pith_dtype dtype, void *payload, const pith_ctx *ctx, uint32_t rank) {
  if (piece.n) {
    pith_ctx at = pith__bucket_ctx(b, ctx, index, rank, piece.first);
    list->item[list->count++] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                                 .codec = b->layer[index].codec,
                                                 .dtype = dtype,
                                                 .n = piece.n,
                                                 .values = values,
                                                 .payload = payload,
                                                 .seed = at.seed,
                                                 .step = at.step,
                                                 .layer = at.layer,
                                                 .rank = at.rank,
                                                 .ranks = at.ranks,
                                                 .offset = at.offset,
                                                 .gamma = at.gamma};
  }
}

static void *value_at(const pith_bucket *b, size_t index, const void *data, size_t first) {
  return (uint8_t *)(uintptr_t)data + first * pith_dtype_size(b->layer[index].dtype);
}

/* Encodes or decodes all pieces of all ranks, as they lie in parts and results. */
typedef enum pieces { PARTS, RESULTS } pieces;

static pith_status run_all(const pith_bucket *b, const void *const *tensors, void *const *memories, const pith_ctx *ctx,
                           const void *bytes, size_t stride, pieces what, void *workspace, void *stream) {
  item_list list;
  uint32_t rank = what == RESULTS ? pith__result_rank(b->ranks) : (uint32_t)b->rank;
  uint8_t *at = (uint8_t *)(uintptr_t)bytes;
  PITH_TRY(make_list(b, b->count * (size_t)b->ranks, &list));
  for (int p = 0; p < b->ranks; p++) {
    at = stride ? (uint8_t *)(uintptr_t)bytes + (size_t)p * stride : at;
    for (size_t i = 0; i < b->count; i++) {
      pith_range piece = pith__bucket_piece(b, i, p);
      size_t before = list.count;
      if (what == RESULTS || !pith__bucket_sums_as_is(b, i, p)) {
        add_item(&list, b, i, piece, value_at(b, i, tensors[i], piece.first), b->layer[i].dtype, at, ctx, rank);
      }
      if (list.count > before && memories && memories[i]) {
        list.item[before].memory = pith__store_at(pith__codec_store(b->layer[i].codec), memories[i], piece.first);
      }
      at += pith__bucket_piece_bytes(b, i, piece);
    }
  }
  size_t size = what == PARTS ? pith__gpu_wide_bytes(list.item, list.count) : 0;
  pith_status status = what == PARTS ? pith_cuda_encode(list.item, list.count, workspace, size, stream)
                                     : pith_cuda_decode(list.item, list.count, PITH_SET, NULL, 0, stream);
  free(list.item);
  return status;
}

size_t pith__cuda_bucket_workspace(const pith_bucket *b, int own) {
  size_t bytes = 0;
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

/* Our own pieces: `bytes` has their payloads one after another, `sums` their values. Without those that are summed as
 * they are where only payloads are asked for. */
static void list_own(item_list *list, const pith_bucket *b, float *sums, const void *bytes, const pith_ctx *ctx,
                     uint32_t rank, int only_payloads) {
  uint8_t *at = (uint8_t *)(uintptr_t)bytes;
  list->count = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_range piece = pith__bucket_piece(b, i, b->rank);
    if (!only_payloads || !pith__bucket_sums_as_is(b, i, b->rank)) {
      add_item(list, b, i, piece, sums, PITH_F32, at, ctx, rank);
    }
    at += pith__bucket_piece_bytes(b, i, piece);
    sums += piece.n;
  }
}

static pith_status run_own(const pith_cuda_module *gpu, const item_list *list, int add, void *stream) {
  pith_gpu_batch batch = {.gpu = gpu, .stream = stream, .kind = PITH_GPU_OWN_TASKS};
  for (size_t i = 0; i < list->count; i++) {
    for (size_t first = 0; first < list->item[i].n;) {
      PITH_TRY(pith__gpu_make_room(&batch));
      first += pith__gpu_next_own(&list->item[i], add, first, &batch.own[batch.used++]);
    }
  }
  return pith__gpu_hand_over(&batch);
}

/* Our own values of our own pieces, behind their memories. */
static pith_status sum_own(item_list *list, const pith_bucket *b, const void *const *src, void *const *memories,
                           const pith_ctx *ctx, float *sums, void *workspace, void *stream) {
  const pith_cuda_module *gpu;
  item_list widened;
  list->count = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_range piece = pith__bucket_piece(b, i, b->rank);
    const pith_bucket_item *l = &b->layer[i];
    if (piece.n && pith__bucket_sums_as_is(b, i, b->rank)) {
      add_item(list, b, i, piece, value_at(b, i, src[i], piece.first), l->dtype, sums, ctx, (uint32_t)b->rank);
      list->item[list->count - 1].memory =
          l->codec->memory ? pith__store_at(pith__codec_store(l->codec), memories[i], piece.first) : NULL;
    }
    sums += piece.n;
  }
  PITH_TRY(pith__cuda_module(&gpu));
  if (!pith__gpu_wide_bytes(list->item, list->count)) {
    return run_own(gpu, list, b->rank > 0, stream);
  }
  PITH_TRY(make_list(b, list->count, &widened));
  widened.count = list->count;
  pith_status status = pith__gpu_widen(gpu, list->item, list->count, workspace, widened.item, stream);
  if (status == PITH_OK) {
    status = run_own(gpu, &widened, b->rank > 0, stream);
  }
  free(widened.item);
  return status == PITH_OK ? pith__gpu_pack(gpu, list->item, list->count, workspace, stream) : status;
}

/* Rank after rank, as on the CPU: the sum has the same bits. */
pith_status pith__cuda_bucket_sum(const pith_bucket *b, const void *const *src, void *const *memories,
                                  const void *received, const pith_ctx *ctx, float *sums, void *workspace,
                                  void *stream) {
  item_list list;
  PITH_TRY(make_list(b, b->count, &list));
  pith_status status = PITH_OK;
  for (int p = 0; p < b->ranks && status == PITH_OK; p++) {
    list_own(&list, b, sums, (const uint8_t *)received + (size_t)p * b->bytes[b->rank], ctx, (uint32_t)p, p == b->rank);
    status = pith_cuda_decode(list.item, list.count, p ? PITH_ADD : PITH_SET, NULL, 0, stream);
    if (status == PITH_OK && p == b->rank) {
      status = sum_own(&list, b, src, memories, ctx, sums, workspace, stream);
    }
  }
  free(list.item);
  return status;
}

pith_status pith__cuda_bucket_mean(const pith_bucket *b, float *sums, void *stream) {
  item_list list;
  PITH_TRY(make_list(b, b->count, &list));
  list_own(&list, b, sums, sums, &(pith_ctx)PITH_CTX_INIT, (uint32_t)b->rank, 0);
  for (size_t k = 0; k < list.count; k++) {
    list.item[k].payload = list.item[k].values; /* in place */
  }
  pith_status status = pith_cuda_aggregate(list.item, list.count, stream);
  free(list.item);
  return status;
}

/* Results go through a memory of their own where one keeps what was lost; any other memory is for gradients alone. */
static pith_status encode_results(const pith_bucket *b, item_list *list, pith_codec *plain, void *const *memories,
                                  void *workspace, void *stream) {
  for (size_t i = 0, k = 0; i < b->count; i++) {
    const pith_codec *codec = b->layer[i].codec;
    if (pith__bucket_piece(b, i, b->rank).n == 0) {
      continue;
    }
    list->item[k].gamma = 1.0f;
    if (codec->memory && codec->memory->after == PITH_AFTER_SUBTRACT) {
      list->item[k].memory = memories ? memories[i] : NULL;
    } else {
      plain[i] = *codec;
      plain[i].memory = NULL;
      list->item[k].codec = &plain[i];
    }
    k++;
  }
  return pith_cuda_encode(list->item, list->count, workspace, pith__gpu_wide_bytes(list->item, list->count), stream);
}

pith_status pith__cuda_bucket_result(const pith_bucket *b, float *sums, void *const *memories, const pith_ctx *ctx,
                                     void *result, void *workspace, void *stream) {
  item_list list;
  PITH_TRY(make_list(b, b->count, &list));
  pith_codec *plain = malloc((b->count + 1) * sizeof *plain);
  pith_status status = plain ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  if (status == PITH_OK) {
    list_own(&list, b, sums, result, ctx, pith__result_rank(b->ranks), 0);
    status = encode_results(b, &list, plain, memories, workspace, stream);
  }
  free(plain);
  free(list.item);
  return status;
}

/*
 * One allreduce over NCCL, as it is enqueued. Everything has its place already, so that all there is to do is to fill in tasks; arguments are checked
 * before the first of them, since a rank that stopped halfway would leave the others waiting.
 */
#include "base/size.h"
#include "codec/codec.h"
#include "engine/cuda_device.h"
#include "engine/nccl.h"

#define TEXT 256

pith_cuda_item pith__nccl_item(const pith_nccl *o, const pith_nccl_member *m, int rank, uint64_t step) {
  pith_cuda_item item = {.codec = m->codec,
                         .dtype = m->dtype,
                         .n = m->n,
                         .memory = m->memory,
                         .momentum = m->momentum,
                         .part = m->part,
                         .ctx = PITH_CTX_INIT};
  item.ctx.seed = o->seed;
  item.ctx.step = step;
  item.ctx.layer = m->number;
  item.ctx.rank = (uint32_t)rank;
  item.ctx.ranks = (uint32_t)o->link.ranks;
  item.ctx.rows = m->rows;
  item.ctx.gamma = 1.0f;
  return item;
}

/* ---- Blocks: a part for every rank ------------------------------------------------------------------------------- */

static pith_status reduce_blocks(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_BLOCKS];
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = o->seed;
  ctx.step = step;
  for (size_t i = 0; i < list->count; i++) {
    o->tensors[i] = gradients[list->index[i]];
  }
  if (o->stride == 0) {
    return PITH_OK; /* there are no values */
  }
  uint8_t *results = o->parts; /* all parts are gone by then */
  PITH_TRY(pith__cuda_bucket_encode(o->bucket, (const void *const *)o->tensors, o->memories, &ctx, o->parts, o->stride, stream));
  PITH_TRY(pith__nccl_scatter(&o->link, o->parts, o->bytes, o->received, o->stride, stream));
  PITH_TRY(pith__cuda_bucket_sum(o->bucket, o->received, o->stride, &ctx, o->sums, stream));
  PITH_TRY(pith_cuda_bucket_mean(o->bucket, o->sums, stream));
  PITH_TRY(pith_cuda_bucket_result(o->bucket, o->sums, o->results, &ctx, results + (size_t)o->link.rank * o->stride, stream));
  PITH_TRY(pith__nccl_gather(&o->link, results, o->stride, stream));
  return pith__cuda_bucket_decode(o->bucket, results, o->stride, &ctx, o->tensors, stream);
}

/* ---- Whole payloads: everybody gets all ---------------------------------------------------------------------------- */

/* The items of a rank's message: their payloads, and where it has their sizes. */
static void list_message(pith_nccl *o, void *const *gradients, int rank, uint64_t step) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_WHOLE];
  uint8_t *message = o->messages + (size_t)rank * o->room;
  for (size_t i = 0; i < list->count; i++) {
    const pith_nccl_member *m = &o->members[list->index[i]];
    o->items[i] = pith__nccl_item(o, m, rank, step);
    o->items[i].values = gradients[list->index[i]];
    o->items[i].payload = message + m->at;
    o->items[i].size = (uint64_t *)(void *)message + i;
  }
}

/* Rank after rank, in f32. */
static pith_status add_messages(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_WHOLE];
  for (int p = 0; p < o->link.ranks; p++) {
    list_message(o, gradients, p, step);
    for (size_t i = 0; i < list->count; i++) {
      const pith_nccl_member *m = &o->members[list->index[i]];
      o->items[i].values = m->total ? m->total : o->items[i].values;
      o->items[i].dtype = PITH_F32;
    }
    PITH_TRY(pith_cuda_decode(o->items, list->count, p ? PITH_ADD : PITH_SET, o->workspace, o->workspace_size, stream));
  }
  return PITH_OK;
}

static pith_status reduce_whole(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_WHOLE];
  list_message(o, gradients, o->link.rank, step);
  PITH_TRY(pith_cuda_encode(o->items, list->count, o->workspace, o->workspace_size, stream));
  PITH_TRY(pith__nccl_gather(&o->link, o->messages, o->room, stream));
  PITH_TRY(add_messages(o, gradients, step, stream));
  for (size_t i = 0; i < list->count; i++) {
    const pith_nccl_member *m = &o->members[list->index[i]];
    o->items[i] = pith__nccl_item(o, m, o->link.rank, step);
    o->items[i].values = gradients[list->index[i]];
    o->items[i].payload = m->total ? (void *)m->total : o->items[i].values;
  }
  return pith_cuda_aggregate(o->items, list->count, stream);
}

/* ---- Factors: sums of them ------------------------------------------------------------------------------------------ */

static void list_factors(pith_nccl *o, void *const *gradients, size_t round, uint64_t step) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_FACTORS];
  float *at = o->buffer;
  for (size_t i = 0; i < list->count; i++) {
    const pith_nccl_member *m = &o->members[list->index[i]];
    o->items[i] = pith__nccl_item(o, m, o->link.rank, step);
    o->items[i].values = gradients[list->index[i]];
    o->items[i].payload = at;
    at += m->counts[round];
  }
}

static pith_status reduce_factors(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  size_t count = o->lists[PITH_NCCL_FACTORS].count;
  for (size_t round = 0; round < PITH_NCCL_ROUNDS; round++) {
    list_factors(o, gradients, round, step);
    PITH_TRY(pith_cuda_produce(o->items, count, round, o->workspace, o->workspace_size, stream));
    PITH_TRY(o->totals[round] ? pith__nccl_sum(&o->link, o->buffer, o->totals[round], stream) : PITH_OK);
    PITH_TRY(pith_cuda_consume(o->items, count, round, o->workspace, o->workspace_size, stream));
  }
  return PITH_OK;
}

/* ---- All of them ----------------------------------------------------------------------------------------------------- */

static pith_status check_gradients(const pith_nccl *o, void *const *gradients) {
  for (size_t i = 0; i < o->count; i++) {
    const pith_nccl_member *m = &o->members[i];
    PITH_REQUIRE(gradients[i] || m->n == 0, PITH_ERR_ARGUMENT, "layer %zu: %zu values at NULL", i, m->n);
    PITH_REQUIRE((uintptr_t)gradients[i] % pith_dtype_size(m->dtype) == 0, PITH_ERR_ARGUMENT, "layer %zu: values are not aligned for %s", i,
                 pith_dtype_name(m->dtype));
  }
  return PITH_OK;
}

static pith_status scale(const pith_nccl *o, float *values, size_t n, float factor, void *stream) {
  char text[TEXT];
  for (size_t first = 0, some; values && first < n; first += some) {
    some = pith__least(n - first, PITH_GPU_TASK_VALUES);
    pith_gpu_mean task = {.sums = values + first, .values = values + first, .n = (uint32_t)some, .factor = factor, .dtype = PITH_GPU_F32};
    PITH_REQUIRE(!o->gpu->mean(&task, 1, stream, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  return PITH_OK;
}

pith_status pith_nccl_scale(pith_nccl *o, float factor, void *stream) {
  PITH_REQUIRE(o, PITH_ERR_ARGUMENT, "pith_nccl_scale: nccl must not be NULL");
  PITH_TRY(pith__nccl_check_device(o));
  for (size_t i = 0; i < o->count; i++) {
    const pith_nccl_member *m = &o->members[i];
    PITH_TRY(scale(o, m->memory, m->n, factor, stream));
    PITH_TRY(scale(o, m->momentum, m->n, factor, stream));
    PITH_TRY(scale(o, m->result, m->own, factor, stream));
  }
  return PITH_OK;
}

pith_status pith_nccl_allreduce(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  static pith_status (*const ways[])(pith_nccl *, void *const *, uint64_t, void *) = {
      [PITH_NCCL_BLOCKS] = reduce_blocks, [PITH_NCCL_WHOLE] = reduce_whole, [PITH_NCCL_FACTORS] = reduce_factors};
  PITH_REQUIRE(o && (gradients || o->count == 0), PITH_ERR_ARGUMENT, "pith_nccl_allreduce: nccl and gradients must not be NULL");
  PITH_TRY(pith__nccl_check_device(o));
  PITH_TRY(check_gradients(o, gradients));
  for (int way = 0; way < PITH_NCCL_WAYS; way++) {
    PITH_TRY(o->lists[way].count ? ways[way](o, gradients, step, stream) : PITH_OK);
  }
  return PITH_OK;
}

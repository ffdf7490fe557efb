/*
 * An allreduce on a device, stage by stage. Everything has its place already, so that all there is to do is to fill in
 * tasks; arguments are checked before the first of them, since a rank that stopped halfway would leave the others
 * waiting.
 */
#include "base/size.h"
#include "codec/codec.h"
#include "device/cuda_device.h"
#include "device/device.h"

pith_cuda_item pith__device_item(const pith_device_core *o, const pith_device_unit *u, int rank, uint64_t step) {
  return (pith_cuda_item){.size = sizeof(pith_cuda_item),
                          .codec = u->of->codec,
                          .dtype = u->of->dtype,
                          .n = u->n,
                          .memory = u->memory,
                          .momentum = u->momentum,
                          .part = u->part,
                          .seed = o->seed,
                          .step = step,
                          .layer = u->number,
                          .rank = (uint32_t)rank,
                          .ranks = (uint32_t)o->ranks,
                          .rows = u->of->rows,
                          .gamma = 1.0f};
}

static uint8_t *slot_of(const pith_device_core *o, size_t group) {
  return o->slots + group % o->slot_count * o->slot_size;
}

static void *values_of(const pith_device_unit *u, const pith_device_job *job) {
  uint8_t *values = job->gradients[u->layer]; /* NULL, maybe, where there are none */
  return u->first ? values + u->first * pith_dtype_size(u->of->dtype) : values;
}

/* ---- Blocks: a part for every rank ------------------------------------------------------------------------------- */

static uint8_t *received_in(const pith_device_group *g, uint8_t *slot) { return slot + pith__device_aligned(g->span); }

/* Our own parts become means, in the place of ours among all results: the parts are gone by then. */
static pith_status average_parts(const pith_device_core *o, const pith_device_group *g, uint8_t *slot,
                                 const pith_ctx *ctx, void *stream) {
  float *sums = (float *)(void *)o->scratch;
  PITH_TRY(pith__cuda_bucket_sum(g->bucket, (const void *const *)o->tensors + g->first, o->memories + g->first,
                                 received_in(g, slot), g->apart, ctx, sums, stream));
  PITH_TRY(pith_cuda_bucket_mean(g->bucket, sums, stream));
  return pith_cuda_bucket_result(g->bucket, sums, o->results + g->first, ctx, slot + g->at[o->rank], stream);
}

static pith_status work_blocks(pith_device_core *o, size_t group, size_t stage, const pith_device_job *job) {
  const pith_device_group *g = &o->groups[group];
  uint8_t *slot = slot_of(o, group);
  void **tensors = o->tensors + g->first;
  size_t stride = o->spread ? g->apart : 0;
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = o->seed;
  ctx.step = job->step;
  for (size_t i = 0; i < g->count; i++) {
    tensors[i] = values_of(&o->units[g->first + i], job);
  }
  switch (stage) {
    case 0:
      return pith__cuda_bucket_encode(g->bucket, (const void *const *)tensors, o->memories + g->first, &ctx, slot,
                                      stride, job->stream);
    case 1:
      return average_parts(o, g, slot, &ctx, job->stream);
    default:
      return pith__cuda_bucket_decode(g->bucket, slot, stride, &ctx, tensors, job->stream);
  }
}

static pith_device_exchange exchange_blocks(const pith_device_core *o, size_t group, size_t stage) {
  const pith_device_group *g = &o->groups[group];
  uint8_t *slot = slot_of(o, group);
  switch (stage) {
    case 0:
      return (pith_device_exchange){PITH_DEVICE_SCATTER, slot, received_in(g, slot), g->span,
                                    g->apart * (size_t)o->ranks};
    case 1:
      return (pith_device_exchange){PITH_DEVICE_GATHER, slot + g->at[o->rank], slot, g->bytes[o->rank], g->span};
    default:
      return (pith_device_exchange){.move = PITH_DEVICE_END};
  }
}

/* ---- Whole payloads: everybody gets all ----------------------------------------------------------------------------
 */

/* The items of a rank's message: their payloads, and where it has their sizes. */
static void list_message(pith_device_core *o, size_t group, int rank, const pith_device_job *job) {
  const pith_device_group *g = &o->groups[group];
  uint8_t *message = slot_of(o, group) + (size_t)rank * g->room;
  for (size_t i = 0; i < g->count; i++) {
    const pith_device_unit *u = &o->units[g->first + i];
    o->items[i] = pith__device_item(o, u, rank, job->step);
    o->items[i].values = values_of(u, job);
    o->items[i].payload = message + u->at;
    o->items[i].payload_size = (uint64_t *)(void *)message + i;
  }
}

/* Where a unit is added up: in place, or in the scratch where gradients are no f32. */
static void *sum_of(const pith_device_core *o, const pith_device_unit *u, const pith_device_job *job) {
  return u->of->dtype == PITH_F32 ? values_of(u, job) : o->scratch + o->workspace_size + u->total;
}

/* Rank after rank, in f32. */
static pith_status add_messages(pith_device_core *o, size_t group, const pith_device_job *job) {
  const pith_device_group *g = &o->groups[group];
  for (int p = 0; p < o->ranks; p++) {
    list_message(o, group, p, job);
    for (size_t i = 0; i < g->count; i++) {
      o->items[i].values = sum_of(o, &o->units[g->first + i], job);
      o->items[i].dtype = PITH_F32;
    }
    PITH_TRY(pith_cuda_decode(o->items, g->count, p ? PITH_ADD : PITH_SET, o->scratch, o->workspace_size, job->stream));
  }
  return PITH_OK;
}

static pith_device_exchange exchange_whole(const pith_device_core *o, size_t group, size_t stage) {
  const pith_device_group *g = &o->groups[group];
  uint8_t *slot = slot_of(o, group);
  pith_device_exchange x = {PITH_DEVICE_GATHER, slot + (size_t)o->rank * g->room, slot, g->room,
                            g->room * (size_t)o->ranks};
  if (o->waits) {
    x.move = stage == 0 ? PITH_DEVICE_SIZES : stage == 1 ? PITH_DEVICE_PAYLOADS : PITH_DEVICE_END;
  } else {
    x.move = stage == 0 ? PITH_DEVICE_GATHER : PITH_DEVICE_END;
  }
  return x;
}

static pith_status work_whole(pith_device_core *o, size_t group, size_t stage, const pith_device_job *job) {
  const pith_device_group *g = &o->groups[group];
  if (stage == 0) {
    list_message(o, group, o->rank, job);
    return pith_cuda_encode(o->items, g->count, o->scratch, o->workspace_size, job->stream);
  }
  if (exchange_whole(o, group, stage).move != PITH_DEVICE_END) {
    return PITH_OK; /* sizes are known now, and payloads not there yet */
  }
  PITH_TRY(add_messages(o, group, job));
  for (size_t i = 0; i < g->count; i++) {
    const pith_device_unit *u = &o->units[g->first + i];
    o->items[i] = pith__device_item(o, u, o->rank, job->step);
    o->items[i].values = values_of(u, job);
    o->items[i].payload = sum_of(o, u, job);
  }
  return pith_cuda_aggregate(o->items, g->count, job->stream);
}

/* ---- Factors: sums of them ------------------------------------------------------------------------------------------
 */

static void list_factors(pith_device_core *o, size_t group, size_t round, const pith_device_job *job) {
  const pith_device_group *g = &o->groups[group];
  float *at = (float *)(void *)slot_of(o, group);
  for (size_t i = 0; i < g->count; i++) {
    const pith_device_unit *u = &o->units[g->first + i];
    o->items[i] = pith__device_item(o, u, o->rank, job->step);
    o->items[i].values = values_of(u, job);
    o->items[i].payload = at;
    at += u->counts[round];
  }
}

/* Sums of the round before, then products for the next. */
static pith_status work_factors(pith_device_core *o, size_t group, size_t stage, const pith_device_job *job) {
  size_t count = o->groups[group].count;
  if (stage > 0) {
    list_factors(o, group, stage - 1, job);
    PITH_TRY(pith_cuda_consume(o->items, count, stage - 1, o->scratch, o->workspace_size, job->stream));
  }
  if (stage < PITH_DEVICE_ROUNDS) {
    list_factors(o, group, stage, job);
    PITH_TRY(pith_cuda_produce(o->items, count, stage, o->scratch, o->workspace_size, job->stream));
  }
  return PITH_OK;
}

static pith_device_exchange exchange_factors(const pith_device_core *o, size_t group, size_t stage) {
  uint8_t *slot = slot_of(o, group);
  if (stage == PITH_DEVICE_ROUNDS) {
    return (pith_device_exchange){.move = PITH_DEVICE_END};
  }
  size_t size = o->groups[group].totals[stage] * sizeof(float);
  return (pith_device_exchange){PITH_DEVICE_SUM, slot, slot, size, size};
}

/* ---- All of them
 * ----------------------------------------------------------------------------------------------------- */

pith_status pith__device_work(pith_device_core *o, size_t group, size_t stage, const pith_device_job *job) {
  static pith_status (*const ways[])(pith_device_core *, size_t, size_t, const pith_device_job *) = {
      [PITH_DEVICE_BLOCKS] = work_blocks, [PITH_DEVICE_WHOLE] = work_whole, [PITH_DEVICE_FACTORS] = work_factors};
  return ways[o->groups[group].way](o, group, stage, job);
}

pith_device_exchange pith__device_exchange(const pith_device_core *o, size_t group, size_t stage) {
  static pith_device_exchange (*const ways[])(const pith_device_core *, size_t, size_t) = {
      [PITH_DEVICE_BLOCKS] = exchange_blocks,
      [PITH_DEVICE_WHOLE] = exchange_whole,
      [PITH_DEVICE_FACTORS] = exchange_factors};
  return ways[o->groups[group].way](o, group, stage);
}

pith_status pith__device_check_gradients(const pith_device_core *o, void *const *gradients) {
  for (size_t i = 0; i < o->count; i++) {
    const pith_device_member *m = &o->members[i];
    PITH_REQUIRE(gradients[i] || m->n == 0, PITH_ERR_ARGUMENT, "layer %zu: %zu values at NULL", i, m->n);
    PITH_REQUIRE((uintptr_t)gradients[i] % pith_dtype_size(m->dtype) == 0, PITH_ERR_ARGUMENT,
                 "layer %zu: values are not aligned for %s", i, pith_dtype_name(m->dtype));
  }
  return PITH_OK;
}

/* ---- Other units
 * -------------------------------------------------------------------------------------------------------- */

static pith_status scale(const pith_device_core *o, float *values, size_t n, float factor, void *stream) {
  char text[PITH_DEVICE_TEXT];
  for (size_t first = 0, some; values && first < n; first += some) {
    some = pith__least(n - first, PITH_GPU_TASK_VALUES);
    pith_gpu_mean task = {
        .sums = values + first, .values = values + first, .n = (uint32_t)some, .factor = factor, .dtype = PITH_GPU_F32};
    PITH_REQUIRE(!o->gpu->mean(&task, 1, stream, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  return PITH_OK;
}

pith_status pith__device_scale(const pith_device_core *o, float factor, void *stream) {
  PITH_TRY(pith__device_check(o));
  for (size_t i = 0; i < o->unit_count; i++) {
    const pith_device_unit *u = &o->units[i];
    PITH_TRY(scale(o, u->memory, u->n, factor, stream));
    PITH_TRY(scale(o, u->momentum, u->n, factor, stream));
    PITH_TRY(scale(o, u->result, u->own, factor, stream));
  }
  return PITH_OK;
}

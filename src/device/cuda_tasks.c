/* SPDX-License-Identifier: Apache-2.0 */
/* From codecs to tasks: see cuda_tasks.h. */
#include "device/cuda_tasks.h"

#include "base/rng.h"
#include "base/size.h"
#include "memory/store.h"

#define TILE_VALUES 4096

/* ---- Kinds and memories ------------------------------------------------------------------------------------------ */

int pith__gpu_is_block(const pith_codec *codec) { return codec->traits->gpu == PITH_GPU_BLOCKS; }
int pith__gpu_is_sparse(const pith_codec *codec) { return codec->traits->gpu == PITH_GPU_SPARSE; }
int pith__gpu_is_lowrank(const pith_codec *codec) { return codec->traits->gpu == PITH_GPU_LOWRANK; }
int pith__gpu_is_lossless(const pith_codec *codec) { return codec->traits->gpu == PITH_GPU_LOSSLESS; }

pith_cuda_item pith__gpu_item(const pith_codec *codec, pith_span values, const pith_ctx *ctx) {
  return (pith_cuda_item){.size = sizeof(pith_cuda_item),
                          .codec = codec,
                          .dtype = values.dtype,
                          .n = values.n,
                          .values = values.data,
                          .seed = ctx->seed,
                          .step = ctx->step,
                          .layer = ctx->layer,
                          .rank = ctx->rank,
                          .ranks = ctx->ranks,
                          .offset = ctx->offset,
                          .rows = ctx->rows,
                          .gamma = ctx->gamma};
}

/* What random numbers, and the parts of a method that depend on the place of a value, follow from. */
static pith_ctx ctx_of(const pith_cuda_item *item) {
  return (pith_ctx){.size = sizeof(pith_ctx),
                    .seed = item->seed,
                    .step = item->step,
                    .layer = item->layer,
                    .rank = item->rank,
                    .ranks = item->ranks,
                    .offset = item->offset,
                    .rows = item->rows,
                    .gamma = item->gamma};
}

/* The memory's share of a task of any kind. */
static void describe_memory(const pith_cuda_item *item, float *beta, float *gamma, uint8_t *keeps) {
  const pith_codec *codec = item->codec;
  pith_blend blend = codec->memory->blend(codec->memory_args, item->gamma != 0 ? item->gamma : 1.0f);
  *beta = blend.beta;
  *gamma = blend.gamma;
  *keeps = (uint8_t)codec->memory->after;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static void describe_block(const pith_codec *codec, const pith_ctx *ctx, pith_gpu_task *task) {
  task->kind = codec->ops->wire_id;
  task->bits = 8;
  task->bucket = (uint32_t)codec->ops->block(codec->args);
  if (codec->traits->gpu_block) {
    codec->traits->gpu_block(codec->args, ctx, task);
  }
  task->block_size = (uint32_t)codec->ops->block_bound(codec->args, task->bucket);
  if (codec->transform) {
    size_t granule = codec->granule;
    codec->transform->gpu_block(codec->transform_args, task);
    task->tile = (uint32_t)(granule < TILE_VALUES ? TILE_VALUES / granule * granule : granule);
  }
}

/* The first `first` values are done: the next task of an item. Keys change where an index outgrows 32 bits, and tasks
 * end there. */
size_t pith__gpu_next_task(const pith_cuda_item *item, int encode, size_t first, pith_gpu_task *task) {
  const pith_codec *codec = item->codec;
  uint64_t index = item->offset + first, border = ((index >> 32) + 1) << 32;
  size_t granule = codec->granule, most = PITH_GPU_TASK_VALUES / granule * granule;
  size_t to_border = (size_t)((border - index + granule - 1) / granule * granule);
  size_t n = pith__least(item->n - first, pith__least(most, to_border));
  size_t block = codec->ops->block(codec->args);
  if (n > block && codec->traits->gpu_tail_apart && codec->traits->gpu_tail_apart(codec->args)) {
    n -= n % block; /* an incomplete last block has a task of its own */
  }
  pith_ctx ctx = ctx_of(item);
  pith_key round = pith__rng_key(&ctx, PITH_DOMAIN_ROUND, index),
           rotate = pith__rng_key(&ctx, PITH_DOMAIN_ROTATE, index);
  *task = (pith_gpu_task){
      .values = (uint8_t *)item->values + first * pith_dtype_size(item->dtype),
      .payload = (uint8_t *)item->payload + pith_codec_bound(codec, first),
      .n = (uint32_t)n,
      .index = (uint32_t)index,
      .key0 = round.k0,
      .key1 = round.k1,
      .rotate0 = rotate.k0,
      .rotate1 = rotate.k1,
      .dtype = (uint8_t)item->dtype,
  };
  describe_block(codec, &ctx, task);
  if (encode && codec->memory) {
    task->memory = (float *)item->memory + first;
    describe_memory(item, &task->beta, &task->gamma, &task->keeps);
  }
  return n;
}

size_t pith__gpu_next_own(const pith_cuda_item *item, int add, size_t first, pith_gpu_own *task) {
  size_t n = pith__least(item->n - first, PITH_GPU_TASK_VALUES);
  *task = (pith_gpu_own){.values = (uint8_t *)item->values + first * pith_dtype_size(item->dtype),
                         .sums = (float *)item->payload + first,
                         .n = (uint32_t)n,
                         .dtype = (uint8_t)item->dtype,
                         .add = add != 0};
  if (item->codec->memory) {
    task->memory = (float *)item->memory + first;
    describe_memory(item, &task->beta, &task->gamma, &task->keeps);
  }
  return n;
}

size_t pith__gpu_reducible(const pith_codec *codec, pith_dtype dtype, size_t n) {
  int is_uniform = codec->ops->wire_id >= PITH_WIRE_NONE && codec->ops->wire_id <= PITH_WIRE_QSGD;
  if (!pith__gpu_is_block(codec) || !is_uniform || codec->transform || dtype != PITH_F32 ||
      pith__codec_store(codec) != PITH_STORE_F32) {
    return 0;
  }
  pith_gpu_task task = {.bucket = 0};
  size_t unit = pith__most(codec->granule, PITH_GPU_REDUCE_VALUES); /* what is left begins a granule */
  describe_block(codec, &(pith_ctx)PITH_CTX_INIT, &task);
  int fits = task.bucket == PITH_GPU_REDUCE_BUCKET && unit % codec->granule == 0 && unit % PITH_GPU_REDUCE_VALUES == 0;
  return fits ? n / unit * unit : 0;
}

size_t pith__gpu_next_reduce(const pith_cuda_item *own, const pith_cuda_item *result, size_t first,
                             pith_gpu_reduce *task) {
  *task = (pith_gpu_reduce){.own = (const float *)own->values + first,
                            .factor = 1.0f / (float)own->ranks,
                            .rank = (uint8_t)own->rank,
                            .ranks = (uint8_t)own->ranks};
  size_t n = pith__gpu_next_task(result, 1, first, &task->result);
  task->result.values = NULL;
  task->n = (uint32_t)n;
  if (own->codec->memory) {
    task->memory = (float *)own->memory + first;
    describe_memory(own, &task->beta, &task->gamma, &task->keeps);
  }
  return n;
}

size_t pith__gpu_next_mean(const pith_cuda_item *item, size_t first, pith_gpu_mean *task) {
  size_t n = pith__least(item->n - first, PITH_GPU_TASK_VALUES);
  *task = (pith_gpu_mean){
      .sums = (const float *)item->payload + first,
      .values = (uint8_t *)item->values + first * pith_dtype_size(item->dtype),
      .n = (uint32_t)n,
      .factor = 1.0f / (float)(item->ranks ? item->ranks : 1),
      .dtype = (uint8_t)item->dtype,
      .vote = (item->codec->caps & PITH_CAP_VOTE) != 0,
  };
  return n;
}

size_t pith__gpu_next_repack(const pith_cuda_item *item, float *wide, int pack, size_t first, pith_repack_task *task) {
  pith_ctx ctx = ctx_of(item);
  pith_key key = pith__store_key(&ctx);
  pith_store store = pith__codec_store(item->codec);
  pith_repack_task all = {.from = pack ? wide : item->memory,
                          .to = pack ? item->memory : wide,
                          .index = (uint32_t)item->offset,
                          .key0 = key.k0,
                          .key1 = key.k1,
                          .factor = 1.0f,
                          .from_store = (uint8_t)(pack ? PITH_STORE_F32 : store),
                          .to_store = (uint8_t)(pack ? store : PITH_STORE_F32)};
  size_t n = pith__least(item->n - first, PITH_GPU_TASK_VALUES);
  *task = pith__repack_piece(&all, first, n);
  return n;
}

/* ---- Whole tensors ----------------------------------------------------------------------------------------------- */

pith_gpu_sparse pith__gpu_sparse_task(const pith_cuda_item *item, int encode) {
  const pith_codec *codec = item->codec;
  const pith_memory_ops *memory = codec->memory;
  pith_ctx ctx = ctx_of(item);
  pith_key sample = pith__rng_key(&ctx, PITH_DOMAIN_SAMPLE, 0);
  pith_gpu_sparse task = {
      .values = item->values,
      .payload = item->payload,
      .size = item->payload_size,
      .capacity = pith_codec_bound(codec, item->n),
      .n = (uint32_t)item->n,
      .key0 = sample.k0,
      .key1 = sample.k1,
      .kind = codec->ops->wire_id,
      .dtype = (uint8_t)item->dtype,
  };
  codec->traits->gpu_sparse(codec->args, &ctx, &task);
  if (encode && memory) {
    task.memory = item->memory;
    task.momentum = memory->after == PITH_AFTER_CLEAR ? item->momentum : NULL;
    task.clip = memory->limit ? memory->limit(codec->memory_args, &ctx) : 0;
    describe_memory(item, &task.beta, &task.gamma, &task.keeps);
  }
  return task;
}

/* A matrix that is not worth factoring has no part. */
size_t pith_cuda_part(const pith_codec *codec, size_t n, size_t rows) {
  return codec && codec->ops->part_size ? codec->ops->part_size(codec->args, n, rows) : 0;
}

pith_gpu_lowrank pith__gpu_lowrank_task(const pith_cuda_item *item, int memory) {
  const pith_codec *codec = item->codec;
  pith_ctx ctx = ctx_of(item);
  pith_gpu_lowrank task = {
      .values = item->values,
      .payload = item->payload,
      .size = item->payload_size,
      .part = item->part,
      .n = (uint32_t)item->n,
      .factor = 1.0f / (float)(item->ranks ? item->ranks : 1),
      .dtype = (uint8_t)item->dtype,
  };
  codec->traits->gpu_lowrank(codec->args, &ctx, &task);
  if (memory && codec->memory) {
    task.memory = item->memory;
    describe_memory(item, &task.beta, &task.gamma, &task.keeps);
  }
  return task;
}

pith_gpu_lossless pith__gpu_lossless_task(const pith_cuda_item *item) {
  return (pith_gpu_lossless){.values = item->values,
                             .payload = item->payload,
                             .size = item->payload_size,
                             .capacity = pith_codec_bound(item->codec, item->n),
                             .n = (uint32_t)item->n,
                             .dtype = (uint8_t)item->dtype};
}

/* ---- Handing them to the module ---------------------------------------------------------------------------------- */

pith_status pith__gpu_hand_over(pith_gpu_batch *b) {
  const pith_cuda_module *gpu = b->gpu;
  int encode = b->what == PITH_GPU_LOWRANK_ENCODE, add = b->what == PITH_GPU_LOWRANK_ADD;
  size_t count = b->used;
  char text[256];
  b->used = 0;
  if (count == 0) {
    return PITH_OK;
  }
  int failed = 0;
  switch (b->kind) {
    case PITH_GPU_BLOCK_TASKS:
      failed =
          encode ? gpu->encode(b->block, count, b->stream, text) : gpu->decode(b->block, count, add, b->stream, text);
      break;
    case PITH_GPU_SPARSE_TASKS:
      failed = encode ? gpu->sparse_encode(b->sparse, count, b->stream, text)
                      : gpu->sparse_decode(b->sparse, count, add, b->stream, text);
      break;
    case PITH_GPU_LOWRANK_TASKS:
      failed = gpu->lowrank(b->lowrank, count, b->what, b->stream, text);
      break;
    case PITH_GPU_MEAN_TASKS:
      failed = gpu->mean(b->mean, count, b->stream, text);
      break;
    case PITH_GPU_OWN_TASKS:
      failed = gpu->own(b->own, count, b->stream, text);
      break;
    case PITH_GPU_REPACK_TASKS:
      failed = gpu->repack(b->repack, count, b->stream, text);
      break;
    case PITH_GPU_REDUCE_TASKS:
      failed = gpu->reduce(b->reduce, count, b->stream, text);
      break;
    case PITH_GPU_LOSSLESS_TASKS:
      failed = encode ? gpu->lossless_encode(b->lossless, count, b->stream, text)
                      : gpu->lossless_decode(b->lossless, count, add, b->stream, text);
  }
  PITH_REQUIRE(!failed, PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}

/* ---- Packed memories --------------------------------------------------------------------------------------------- */

#define WIDE_ALIGNMENT 256

static size_t wide_bytes(const pith_cuda_item *item) {
  size_t bytes = item->n * sizeof(float);
  return pith__codec_store(item->codec) == PITH_STORE_F32
             ? 0
             : (bytes + WIDE_ALIGNMENT - 1) / WIDE_ALIGNMENT * WIDE_ALIGNMENT;
}

size_t pith__gpu_wide_bytes(const pith_cuda_item *items, size_t count) {
  size_t bytes = 0;
  for (size_t i = 0; i < count; i++) {
    bytes += wide_bytes(&items[i]);
  }
  return bytes;
}

static pith_status repack(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, void *wide, int pack,
                          void *stream) {
  pith_gpu_batch batch = {.gpu = gpu, .stream = stream, .kind = PITH_GPU_REPACK_TASKS};
  uint8_t *at = wide;
  for (size_t i = 0; i < count; at += wide_bytes(&items[i]), i++) {
    for (size_t first = 0; wide_bytes(&items[i]) && first < items[i].n;) {
      PITH_TRY(pith__gpu_make_room(&batch));
      first += pith__gpu_next_repack(&items[i], (float *)(void *)at, pack, first, &batch.repack[batch.used++]);
    }
  }
  return pith__gpu_hand_over(&batch);
}

pith_status pith__gpu_widen(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, void *wide,
                            pith_cuda_item *widened, void *stream) {
  uint8_t *at = wide;
  for (size_t i = 0; i < count; at += wide_bytes(&items[i]), i++) {
    widened[i] = items[i];
    widened[i].memory = wide_bytes(&items[i]) ? at : items[i].memory;
  }
  return repack(gpu, items, count, wide, 0, stream);
}

pith_status pith__gpu_pack(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, void *wide,
                           void *stream) {
  return repack(gpu, items, count, wide, 1, stream);
}

/* From codecs to tasks: see cuda_tasks.h. */
#include "device/cuda_tasks.h"

#include <math.h>
#include <string.h>

#include "base/half.h"
#include "base/rng.h"
#include "base/size.h"
#include "codec/sparse.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

#define CAST_BUCKET 512 /* casts have no scales: any cut will do */
#define TILE_VALUES 4096

/* ---- Blocks
 * ------------------------------------------------------------------------------------------------------------- */

static const pith_value *arg(const pith_param *params, const pith_value *values, const char *key) {
  for (; params->key; params++, values++) {
    if (strcmp(params->key, key) == 0) {
      return values;
    }
  }
  return NULL;
}

int64_t pith__gpu_int_arg(const pith_codec *codec, const char *key, int64_t otherwise) {
  const pith_value *value = arg(codec->ops->params, codec->args, key);
  return value ? value->i : otherwise;
}

static int log2_of(size_t power) { return 63 - __builtin_clzll((unsigned long long)power); }

/* Bits that hold −levels … levels. */
static int signed_bits(int64_t levels) { return 1 + log2_of((size_t)levels) + 1; }

static void describe_codec(const pith_codec *codec, pith_gpu_task *task) {
  task->kind = codec->ops->wire_id;
  task->bits = (uint8_t)pith__gpu_int_arg(codec, "bits", 8);
  task->bucket = (uint32_t)pith__gpu_int_arg(codec, "bucket", CAST_BUCKET);
  task->block_size = (uint32_t)codec->ops->block_bound(codec->args, task->bucket);
  switch (task->kind) {
    case PITH_WIRE_Q:
      task->choice = (uint8_t)pith__gpu_int_arg(codec, "round", 0);
      break;
    case PITH_WIRE_QSGD:
      task->levels = (int32_t)pith__gpu_int_arg(codec, "levels", 0);
      task->bits = (uint8_t)signed_bits(task->levels);
      task->choice = (uint8_t)pith__gpu_int_arg(codec, "norm", 0);
      break;
    case PITH_WIRE_GQ:
      task->levels = ((1 << task->bits) - 1) / 2;
      break;
    case PITH_WIRE_SIGN:
      task->choice = (uint8_t)pith__gpu_int_arg(codec, "scale", 0);
      break;
    case PITH_WIRE_TERNGRAD:
      task->clip = arg(codec->ops->params, codec->args, "clip")->f;
      break;
    default:
      break;
  }
  if (codec->transform) {
    size_t granule = codec->granule;
    task->rotation = (uint8_t)log2_of(codec->transform->block(codec->transform_args));
    task->tile = (uint32_t)(granule < TILE_VALUES ? TILE_VALUES / granule * granule : granule);
  }
}

static void describe_memory(const pith_codec *codec, float gamma, pith_gpu_task *task) {
  task->beta = (float)arg(codec->memory->params, codec->memory_args, "beta")->f;
  task->keeps = codec->memory->after == PITH_AFTER_SUBTRACT ? PITH_GPU_KEEP_LOST : PITH_GPU_KEEP_ALL;
  task->gamma = codec->memory->after == PITH_AFTER_SUBTRACT ? gamma : (1.0f - task->beta) * gamma;
}

int pith__gpu_is_sparse(const pith_codec *codec) {
  return codec->ops->wire_id >= PITH_WIRE_TOPK && codec->ops->wire_id <= PITH_WIRE_ADAPTIVE;
}

int pith__gpu_is_block(const pith_codec *codec) {
  uint32_t needed = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  return (codec->caps & needed) == needed && codec->ops->wire_id <= PITH_WIRE_GQ;
}

int pith__gpu_is_lowrank(const pith_codec *codec) { return codec->ops->wire_id == PITH_WIRE_POWERSGD; }

/* The first `first` values are done: the next task of an item. Keys change where an index outgrows 32 bits, and tasks
 * end there. */
size_t pith__gpu_next_task(const pith_cuda_item *item, int encode, size_t first, pith_gpu_task *task) {
  const pith_codec *codec = item->codec;
  uint64_t index = item->ctx.offset + first, border = ((index >> 32) + 1) << 32;
  size_t granule = codec->granule, most = PITH_GPU_TASK_VALUES / granule * granule;
  size_t to_border = (size_t)((border - index + granule - 1) / granule * granule);
  size_t n = pith__least(item->n - first, pith__least(most, to_border));
  pith_ctx ctx = item->ctx;
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
  describe_codec(codec, task);
  if (encode && codec->memory) {
    task->memory = item->memory + first;
    describe_memory(codec, ctx.gamma != 0 ? ctx.gamma : 1.0f, task);
  }
  return n;
}

/* ---- Sparsifiers
 * ------------------------------------------------------------------------------------------------------- */

/* topk's share of a step: see src/codec/topk.c. */
static double ratio_at(const pith_codec *codec, uint64_t step) {
  double ratio = arg(codec->ops->params, codec->args, "ratio")->f;
  uint64_t warmup = (uint64_t)pith__gpu_int_arg(codec, "warmup", 0);
  return step >= warmup ? ratio : fmax(ratio, pow(0.25, 1 + floor(4.0 * (double)step / (double)warmup)));
}

/* The bits of the least float that is not below v. */
static uint32_t cut_at(double v) {
  float cut = (float)v;
  return pith__bits_of((double)cut < v ? nextafterf(cut, INFINITY) : cut);
}

static void describe_topk(const pith_cuda_item *item, pith_gpu_sparse *task) {
  task->k = (uint32_t)pith__ratio_count(ratio_at(item->codec, item->ctx.step), item->n);
  int sampled = pith__gpu_int_arg(item->codec, "select", 0) == PITH_TOPK_SAMPLED;
  task->select = sampled ? PITH_GPU_SELECT_SAMPLED : PITH_GPU_SELECT_EXACT;
  task->most = sampled && task->k <= task->n / 2 ? 2 * task->k : sampled ? task->n : task->k;
  if (task->k == task->n) { /* all of them are above nothing */
    task->select = PITH_GPU_SELECT_ABOVE;
  }
}

static void describe_randomk(const pith_cuda_item *item, pith_gpu_sparse *task) {
  const pith_ctx *ctx = &item->ctx;
  task->k = task->most =
      (uint32_t)pith__ratio_count(arg(item->codec->ops->params, item->codec->args, "ratio")->f, item->n);
  task->factor = pith__gpu_int_arg(item->codec, "unbiased", 0) ? (float)((double)item->n / (double)task->k) : 1.0f;
  for (unsigned round = 0; round < PITH_PERMUTE_ROUNDS; round++) {
    pith_key key = pith__rng_key_of(ctx->seed, ctx->step, ctx->layer, 0, PITH_DOMAIN_SELECT, round);
    task->permute[2 * round] = key.k0;
    task->permute[2 * round + 1] = key.k1;
  }
}

static void describe_sparsifier(const pith_cuda_item *item, pith_gpu_sparse *task) {
  switch (task->kind) {
    case PITH_WIRE_TOPK:
      describe_topk(item, task);
      break;
    case PITH_WIRE_RANDOMK:
      describe_randomk(item, task);
      break;
    case PITH_WIRE_THRESHOLD:
      task->select = PITH_GPU_SELECT_ABOVE;
      task->most = task->n;
      task->cut = cut_at(arg(item->codec->ops->params, item->codec->args, "v")->f);
      break;
    default:
      task->ratio = arg(item->codec->ops->params, item->codec->args, "ratio")->f;
      task->coding = PITH_VALUES_MEAN;
  }
}

static void describe_whole_memory(const pith_cuda_item *item, pith_gpu_sparse *task) {
  const pith_memory_ops *memory = item->codec->memory;
  const pith_value *values = item->codec->memory_args;
  float gamma = item->ctx.gamma != 0 ? item->ctx.gamma : 1.0f;
  task->memory = item->memory;
  if (memory->after != PITH_AFTER_CLEAR) {
    pith_gpu_task same = {0};
    describe_memory(item->codec, gamma, &same);
    task->beta = same.beta;
    task->gamma = same.gamma;
    task->keeps = same.keeps;
    return;
  }
  task->momentum = item->momentum;
  task->beta = (float)arg(memory->params, values, "momentum")->f;
  task->gamma = gamma;
  task->clip = arg(memory->params, values, "clip")->f / sqrt(item->ctx.ranks ? (double)item->ctx.ranks : 1.0);
  task->keeps = PITH_GPU_KEEP_UNSENT;
}

pith_gpu_sparse pith__gpu_sparse_task(const pith_cuda_item *item, int encode) {
  pith_key sample = pith__rng_key(&item->ctx, PITH_DOMAIN_SAMPLE, 0);
  pith_gpu_sparse task = {
      .values = item->values,
      .payload = item->payload,
      .size = item->size,
      .capacity = pith_codec_bound(item->codec, item->n),
      .n = (uint32_t)item->n,
      .key0 = sample.k0,
      .key1 = sample.k1,
      .kind = item->codec->ops->wire_id,
      .dtype = (uint8_t)item->dtype,
      .coding = (uint8_t)pith__gpu_int_arg(item->codec, "values", 0),
  };
  describe_sparsifier(item, &task);
  if (encode && item->codec->memory) {
    describe_whole_memory(item, &task);
  }
  return task;
}

/* ---- Low rank
 * ---------------------------------------------------------------------------------------------------------- */

/* As src/codec/powersgd.c: a matrix that is not worth factoring has no part. */
size_t pith_cuda_part(const pith_codec *codec, size_t n, size_t rows) {
  return codec && codec->ops->part_size ? codec->ops->part_size(codec->args, n, rows) : 0;
}

static size_t near_square(size_t n) {
  size_t side = (size_t)sqrt((double)n);
  return side ? side : 1;
}

/* What a column's key begins with: pith__rng_key_of(). */
static uint64_t hash_of(const pith_ctx *ctx) {
  uint64_t h = pith__mix64(ctx->seed + 0x9e3779b97f4a7c15u);
  h = pith__mix64(h ^ pith__mix64(ctx->step + 0x3c6ef372fe94f82au));
  return pith__mix64(h ^ pith__mix64(ctx->layer + 0xdaa66d2c7ddf743fu));
}

pith_gpu_lowrank pith__gpu_lowrank_task(const pith_cuda_item *item, int memory) {
  const pith_ctx *ctx = &item->ctx;
  size_t rows = ctx->rows && ctx->rows <= item->n ? (size_t)ctx->rows : near_square(item->n);
  pith_gpu_lowrank task = {
      .values = item->values,
      .payload = item->payload,
      .size = item->size,
      .part = item->part,
      .hash = hash_of(ctx),
      .n = (uint32_t)item->n,
      .rows = (uint32_t)rows,
      .cols = (uint32_t)((item->n + rows - 1) / rows),
      .rank = (uint32_t)pith__gpu_int_arg(item->codec, "rank", 1),
      .factor = 1.0f / (float)(ctx->ranks ? ctx->ranks : 1),
      .dtype = (uint8_t)item->dtype,
      .dense = pith_cuda_part(item->codec, item->n, (size_t)ctx->rows) == 0,
  };
  if (memory && item->codec->memory) {
    pith_gpu_task same = {0};
    describe_memory(item->codec, ctx->gamma != 0 ? ctx->gamma : 1.0f, &same);
    task.memory = item->memory;
    task.beta = same.beta;
    task.gamma = same.gamma;
    task.keeps = same.keeps;
  }
  return task;
}

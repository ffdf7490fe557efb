/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a codec's parameters come down to for the CUDA module: plain numbers (kernel/formats.h). The codec's own share
 * of them is told by its traits (codec/traits.h). Items have been checked.
 */
#ifndef PITH_DEVICE_CUDA_TASKS_H
#define PITH_DEVICE_CUDA_TASKS_H

#include <pith/cuda.h>

#include "codec/codec.h"
#include "device/cuda_device.h"

/* The kinds of codecs that have kernels. */
int pith__gpu_is_block(const pith_codec *codec);
int pith__gpu_is_sparse(const pith_codec *codec);
int pith__gpu_is_lowrank(const pith_codec *codec);
int pith__gpu_is_lossless(const pith_codec *codec);

/* An item of values, with what a ctx says of them. */
pith_cuda_item pith__gpu_item(const pith_codec *codec, pith_span values, const pith_ctx *ctx);

/* The first `first` values are done: the next task of an item. Returns how many values it takes. */
size_t pith__gpu_next_task(const pith_cuda_item *item, int encode, size_t first, pith_gpu_task *task);

/* Likewise, of an item whose values are added to item->payload, f32 sums, as they are. */
size_t pith__gpu_next_own(const pith_cuda_item *item, int add, size_t first, pith_gpu_own *task);

/* Likewise, of an item whose sums, item->payload, become means. */
size_t pith__gpu_next_mean(const pith_cuda_item *item, size_t first, pith_gpu_mean *task);

/* How many of the first n values of a layer of that type one kernel can decode, add up and encode again; 0: none. */
size_t pith__gpu_reducible(const pith_codec *codec, pith_dtype dtype, size_t n);

/* Likewise, of an item whose values are the owner's own: `result` is where their mean goes. The caller adds what was
 * received. */
size_t pith__gpu_next_reduce(const pith_cuda_item *own, const pith_cuda_item *result, size_t first,
                             pith_gpu_reduce *task);

/* Without workspace. The memory is left out where it has no part in what is done. */
pith_gpu_sparse pith__gpu_sparse_task(const pith_cuda_item *item, int memory);
pith_gpu_lowrank pith__gpu_lowrank_task(const pith_cuda_item *item, int memory);
pith_gpu_lossless pith__gpu_lossless_task(const pith_cuda_item *item);

/* Likewise, of an item whose memory is packed: from there to f32 values at `wide`, or back. */
size_t pith__gpu_next_repack(const pith_cuda_item *item, float *wide, int pack, size_t first, pith_repack_task *task);

/* ---- Handing them to the module ---------------------------------------------------------------------------------- */

#define PITH_GPU_TASKS 64 /* at a time */

/* Tasks of one kind. */
typedef struct pith_gpu_batch {
  const pith_cuda_module *gpu;
  void *stream;
  enum {
    PITH_GPU_BLOCK_TASKS,
    PITH_GPU_SPARSE_TASKS,
    PITH_GPU_LOWRANK_TASKS,
    PITH_GPU_MEAN_TASKS,
    PITH_GPU_OWN_TASKS,
    PITH_GPU_REPACK_TASKS,
    PITH_GPU_REDUCE_TASKS,
    PITH_GPU_LOSSLESS_TASKS
  } kind;
  int what; /* of blocks, sparse payloads and low rank: PITH_GPU_LOWRANK_… */
  size_t used;
  union {
    pith_gpu_task block[PITH_GPU_TASKS];
    pith_gpu_sparse sparse[PITH_GPU_TASKS];
    pith_gpu_lowrank lowrank[PITH_GPU_TASKS];
    pith_gpu_mean mean[PITH_GPU_TASKS];
    pith_gpu_own own[PITH_GPU_TASKS];
    pith_repack_task repack[PITH_GPU_TASKS];
    pith_gpu_reduce reduce[PITH_GPU_TASKS];
    pith_gpu_lossless lossless[PITH_GPU_TASKS];
  };
} pith_gpu_batch;

/* Enqueues all of them; there is room for as many again. */
pith_status pith__gpu_hand_over(pith_gpu_batch *batch);

/* For one more. */
static inline pith_status pith__gpu_make_room(pith_gpu_batch *batch) {
  return batch->used < PITH_GPU_TASKS ? PITH_OK : pith__gpu_hand_over(batch);
}

/* ---- Packed memories: kernels work on f32, so they are widened before and packed afterwards ---------------------- */

/* Bytes of all that these items widen, a multiple of 256; 0: no memory is packed. */
size_t pith__gpu_wide_bytes(const pith_cuda_item *items, size_t count);

/* Enqueues the widening into `wide`, aligned to 256. `widened` becomes a copy of the items, which point there. */
pith_status pith__gpu_widen(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, void *wide,
                            pith_cuda_item *widened, void *stream);

/* Enqueues the packing. `items` are those that were widened, in the same order. */
pith_status pith__gpu_pack(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, void *wide,
                           void *stream);

#endif

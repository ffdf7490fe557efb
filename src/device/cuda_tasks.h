/*
 * What a codec's parameters come down to for the CUDA module: plain numbers (kernel/formats.h). The codec's own share
 * of them is told by its traits (codec/traits.h). Items have been checked.
 */
#ifndef PITH_DEVICE_CUDA_TASKS_H
#define PITH_DEVICE_CUDA_TASKS_H

#include <pith/cuda.h>

#include "codec/codec.h"
#include "kernel/formats.h"

/* The three kinds of codecs that have kernels. */
int pith__gpu_is_block(const pith_codec *codec);
int pith__gpu_is_sparse(const pith_codec *codec);
int pith__gpu_is_lowrank(const pith_codec *codec);

/* The first `first` values are done: the next task of an item. Returns how many values it takes. */
size_t pith__gpu_next_task(const pith_cuda_item *item, int encode, size_t first, pith_gpu_task *task);

/* Likewise, of an item whose values are added to item->payload, f32 sums, as they are. */
size_t pith__gpu_next_own(const pith_cuda_item *item, int add, size_t first, pith_gpu_own *task);

/* Both without workspace. The memory is left out where it has no part in what is done. */
pith_gpu_sparse pith__gpu_sparse_task(const pith_cuda_item *item, int memory);
pith_gpu_lowrank pith__gpu_lowrank_task(const pith_cuda_item *item, int memory);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Many tasks in one launch: they travel as an argument of the kernel, so that nothing has to be copied to the device
 * before, and a captured graph holds them. */
#pragma once

#include "device.cuh"

#define BATCH_TASKS 64
#define QUAD_BUCKET 512   /* of encode_quads.cu */
#define TERN_BUCKET 1280  /* of encode_tern.cu */
#define SIGN_BUCKET 4096  /* of encode_signs.cu */
#define DECODE_ITEM 1024  /* values of an item of decode.cu */
#define ROTATED_TILE 4096 /* of rotate_quads.cuh */

struct Batch {
  uint32_t count, items; /* items: of all tasks together */
  uint32_t tables;       /* of codes.cuh: those that a task needs */
  Task task[BATCH_TASKS];
};

enum { TABLE_TREE8 = 1, TABLE_LLOYD = 2 };

static inline uint32_t tables_of(const Task &t) {
  return t.kind == PITH_WIRE_TREE8 ? TABLE_TREE8 : t.kind == PITH_WIRE_LLOYD ? TABLE_LLOYD : 0;
}

/* Block codecs are encoded by one of two sets of code (encode_block.cuh): casts, uniform levels and signs, or the rest.
 */
static inline __host__ __device__ bool is_common(const Task &t) {
  return t.kind != PITH_WIRE_TERNGRAD && t.kind != PITH_WIRE_LLOYD && t.kind != PITH_WIRE_NATURAL &&
         t.kind != PITH_WIRE_TREE8 && t.kind != PITH_WIRE_NUQ && t.kind != PITH_WIRE_MX && t.kind != PITH_WIRE_NVFP4 &&
         t.kind != PITH_WIRE_FP8;
}

/* Codecs that are seldom used, or cost others registers, have kernels of their own: those of a batch are taken if it
 * has one of them. */
static inline __host__ __device__ bool is_vote(const Task &t) {
  return t.kind == PITH_WIRE_SIGN && t.choice == PITH_SCALE_ONE;
}

static inline __host__ __device__ bool is_power(const Task &t) { return t.kind == PITH_WIRE_NUQ; }

static inline __host__ __device__ bool is_mini(const Task &t) {
  return t.kind == PITH_WIRE_MX || t.kind == PITH_WIRE_NVFP4 || t.kind == PITH_WIRE_FP8;
}

/* Which of them a kernel has beside the usual ones: none, the first two, or all. */
enum Rare { USUAL, RARE_ONES, ALL };

static inline bool has_any(const Batch &batch, bool (*is)(const Task &)) {
  bool found = false;
  for (uint32_t i = 0; i < batch.count; i++) {
    found |= is(batch.task[i]);
  }
  return found;
}

static inline Rare rare_of(const Batch &batch) {
  return has_any(batch, is_mini) ? ALL : has_any(batch, is_vote) || has_any(batch, is_power) ? RARE_ONES : USUAL;
}

/* The task that has an item: the first that ends behind it. */
INLINE uint32_t task_of(const Batch &batch, uint32_t item) {
  uint32_t task = 0;
  for (uint32_t step = batch.count > 1 ? BATCH_TASKS / 2 : 0; step; step /= 2) {
    task += task + step < batch.count && batch.task[task + step - 1].end <= item ? step : 0;
  }
  return task;
}

/* The items start, start + step, … of a batch: `each` gets the task and the item's number in it. */
template <class Each>
INLINE void each_item(const Batch &batch, uint32_t start, uint32_t step, Each each) {
  for (uint32_t item = start; item < batch.items; item += step) {
    const Task &t = batch.task[task_of(batch, item)];
    each(t, item - t.begin);
  }
}

/* Every warp takes an item at a time. */
template <class Each>
INLINE void each_item_of_warp(const Batch &batch, Each each) {
  uint32_t warps = blockDim.x / 32;
  each_item(batch, blockIdx.x * warps + threadIdx.x / 32, gridDim.x * warps, each);
}

/* Every block of threads does. */
template <class Each>
INLINE void each_item_of_block(const Batch &batch, Each each) {
  each_item(batch, blockIdx.x, gridDim.x, each);
}

/* Launchers of the kernels; each takes tasks with begin and end set. */
cudaError_t launch_encode_quads(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode_minis(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode_tern(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode_signs(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode(const Batch &batch, bool common,
                          cudaStream_t stream); /* tasks of which is_common() says the same */
cudaError_t launch_decode(const Batch &batch, bool add, cudaStream_t stream);
cudaError_t launch_encode_rotated(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode_rotated_quads(const Batch &batch, cudaStream_t stream);
cudaError_t launch_encode_rotated_sums(const Batch &batch, cudaStream_t stream);
cudaError_t launch_decode_rotated_quads(const Batch &batch, bool add, cudaStream_t stream);
cudaError_t launch_decode_rotated(const Batch &batch, bool add, cudaStream_t stream);

/* As many blocks as the device runs at a time, or fewer. */
template <class Kernel>
static cudaError_t grid_for(Kernel kernel, int threads, size_t shared, uint32_t wanted, uint32_t *blocks) {
  int device, processors, resident;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared);
  }
  if (error != cudaSuccess) {
    return error;
  }
  uint32_t most = (uint32_t)processors * (uint32_t)(resident > 0 ? resident : 1);
  *blocks = wanted < most ? wanted : most;
  return cudaSuccess;
}

/* A block of threads for each `at_once` items. Blocks begin in the order of their numbers, so that what is read and
 * written at a time lies close together; a grid that stays and takes items in turn drifts apart, which costs memory a
 * tenth of its speed. */
typedef void (*BatchKernel)(const Batch);

static inline cudaError_t launch_batch(BatchKernel kernel, int threads, uint32_t at_once, size_t shared,
                                       const Batch &batch, cudaStream_t stream) {
  kernel<<<(batch.items + at_once - 1) / at_once, threads, shared, stream>>>(batch);
  return cudaGetLastError();
}

/* ---- Tasks of other kinds: each value by itself ------------------------------------------------------------------ */

/* A batch of them; begin and end are the task's items. */
template <class T>
struct Many {
  uint32_t count, items;
  T task[BATCH_TASKS];

  INLINE const T &task_of(uint32_t item) const {
    uint32_t i = 0;
    while (item >= task[i].end) {
      i++;
    }
    return task[i];
  }
};

/* Blocks of threads take items of so many values. Tasks have at most PITH_GPU_TASK_VALUES values, so that the items of
 * a batch can be counted. */
template <class T>
static cudaError_t launch_many(void (*kernel)(const Many<T>), int threads, uint32_t values, const T *tasks,
                               size_t count, cudaStream_t stream) {
  Many<T> batch;
  cudaError_t error = cudaSuccess;
  for (size_t first = 0; first < count && error == cudaSuccess; first += BATCH_TASKS) {
    batch.count = (uint32_t)(count - first < BATCH_TASKS ? count - first : BATCH_TASKS);
    batch.items = 0;
    for (uint32_t i = 0; i < batch.count; i++) {
      T &t = batch.task[i];
      t = tasks[first + i];
      t.begin = batch.items;
      t.end = batch.items += ((uint32_t)t.n + values - 1) / values;
    }
    uint32_t blocks;
    error = grid_for(kernel, threads, 0, batch.items, &blocks);
    if (error == cudaSuccess && batch.items) {
      kernel<<<blocks, threads, 0, stream>>>(batch);
      error = cudaGetLastError();
    }
  }
  return error;
}

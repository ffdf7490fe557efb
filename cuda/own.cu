/* The owner of a part adds its own values to the sum as they are, behind its memory: the bits of pith__memory_sum_own()
 * in src/memory/memory.c. */
#include "batch.cuh"
#include "own_host.h"

#define THREADS 256
#define EACH 8 /* values of a thread */
#define ITEM (THREADS * EACH)
#define OWNS 64

typedef pith_gpu_own Own;

struct Owns {
  uint32_t count, items;
  Own task[OWNS];
};

INLINE const Own &own_of(const Owns &batch, uint32_t item) {
  uint32_t i = 0;
  while (item >= batch.task[i].end) {
    i++;
  }
  return batch.task[i];
}

/* All loads come before all stores, so that they are under way together. */
__global__ void __launch_bounds__(THREADS) own_kernel(const __grid_constant__ Owns batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Own &t = own_of(batch, item);
    uint32_t first = (item - t.begin) * ITEM + threadIdx.x;
    float x[EACH], sum[EACH], kept[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      uint32_t i = first + j * THREADS;
      x[j] = i < t.n ? value_at(t.values, t.dtype, i) : 0.0f;
      sum[j] = t.add && i < t.n ? t.sums[i] : 0.0f;
      kept[j] = t.memory && i < t.n ? t.memory[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      uint32_t i = first + j * THREADS;
      if (i < t.n) {
        float p = t.memory ? t.beta * kept[j] + t.gamma * x[j] : x[j];
        float rest = t.keeps == PITH_GPU_KEEP_LOST ? p - p : p;
        if (t.memory && is_finite(rest)) { /* nothing else ever stays in a memory */
          t.memory[i] = rest;
        }
        t.sums[i] = t.add ? sum[j] + p : p;
      }
    }
  }
}

static cudaError_t launch_own(const Owns &batch, cudaStream_t stream) {
  uint32_t blocks;
  cudaError_t error = grid_for(own_kernel, THREADS, 0, batch.items, &blocks);
  if (error != cudaSuccess || batch.items == 0) {
    return error;
  }
  own_kernel<<<blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

/* Tasks have at most PITH_GPU_TASK_VALUES values, so that the items of a batch can be counted. */
cudaError_t pith__own_run(const pith_gpu_own *tasks, size_t count, cudaStream_t stream) {
  Owns batch;
  cudaError_t error = cudaSuccess;
  for (size_t first = 0; first < count && error == cudaSuccess; first += OWNS) {
    batch.count = (uint32_t)(count - first < OWNS ? count - first : OWNS);
    batch.items = 0;
    for (uint32_t i = 0; i < batch.count; i++) {
      Own &t = batch.task[i];
      t = tasks[first + i];
      t.begin = batch.items;
      t.end = batch.items += (t.n + ITEM - 1) / ITEM;
    }
    error = launch_own(batch, stream);
  }
  return error;
}

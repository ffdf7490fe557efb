/* SPDX-License-Identifier: Apache-2.0 */
/* The owner of a part adds its own values to the sum as they are, behind its memory: the bits of pith__memory_sum_own()
 * in src/memory/memory.c. */
#include "batch.cuh"
#include "own_host.h"

#define THREADS 256
#define EACH 8 /* values of a thread */
#define ITEM (THREADS * EACH)

typedef pith_gpu_own Own;

/* All loads come before all stores, so that they are under way together. */
__global__ void __launch_bounds__(THREADS) own_kernel(const __grid_constant__ Many<Own> batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Own &t = batch.task_of(item);
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

cudaError_t pith__own_run(const pith_gpu_own *tasks, size_t count, cudaStream_t stream) {
  return launch_many(own_kernel, THREADS, ITEM, tasks, count, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Sums over ranks become means or votes, in the tensor's own type: the bits of `scale` and `vote` in
 * src/kernel/body_arith.h. */
#include "batch.cuh"
#include "mean_host.h"

#define THREADS 256
#define EACH 16 /* values of a thread */
#define ITEM (THREADS * EACH)

typedef pith_gpu_mean Mean;

/* A tie is 0; NaN stays NaN. */
INLINE float vote_of(float x) { return magnitude(x) == 0 ? 0.0f : x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

__global__ void __launch_bounds__(THREADS) mean_kernel(const __grid_constant__ Many<Mean> batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Mean &t = batch.task_of(item);
    uint32_t first = (item - t.begin) * ITEM + threadIdx.x;
    float x[EACH];
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      uint32_t i = first + j * THREADS;
      x[j] = i < t.n ? t.sums[i] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      uint32_t i = first + j * THREADS;
      if (i < t.n) {
        put_value(t.values, t.dtype, i, t.vote ? vote_of(x[j]) : x[j] * t.factor);
      }
    }
  }
}

cudaError_t pith__mean_run(const pith_gpu_mean *tasks, size_t count, cudaStream_t stream) {
  return launch_many(mean_kernel, THREADS, ITEM, tasks, count, stream);
}

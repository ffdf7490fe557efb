/* Sums over ranks become means or votes, in the tensor's own type: the bits of `scale` and `vote` in
 * src/kernel/body_arith.h. */
#include "batch.cuh"
#include "mean_host.h"

#define THREADS 256
#define EACH 16 /* values of a thread */
#define ITEM (THREADS * EACH)
#define MEANS 64

typedef pith_gpu_mean Mean;

struct Means {
  uint32_t count, items;
  Mean task[MEANS];
};

INLINE const Mean &mean_of(const Means &batch, uint32_t item) {
  uint32_t i = 0;
  while (item >= batch.task[i].end) {
    i++;
  }
  return batch.task[i];
}

/* A tie is 0; NaN stays NaN. */
INLINE float vote_of(float x) { return magnitude(x) == 0 ? 0.0f : x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x; }

__global__ void __launch_bounds__(THREADS) mean_kernel(const __grid_constant__ Means batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Mean &t = mean_of(batch, item);
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

static cudaError_t launch_mean(const Means &batch, cudaStream_t stream) {
  uint32_t blocks;
  cudaError_t error = grid_for(mean_kernel, THREADS, 0, batch.items, &blocks);
  if (error != cudaSuccess || batch.items == 0) {
    return error;
  }
  mean_kernel<<<blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

/* Tasks have at most PITH_GPU_TASK_VALUES values, so that the items of a batch can be counted. */
cudaError_t pith__mean_run(const pith_gpu_mean *tasks, size_t count, cudaStream_t stream) {
  Means batch;
  cudaError_t error = cudaSuccess;
  for (size_t first = 0; first < count && error == cudaSuccess; first += MEANS) {
    batch.count = (uint32_t)(count - first < MEANS ? count - first : MEANS);
    batch.items = 0;
    for (uint32_t i = 0; i < batch.count; i++) {
      Mean &t = batch.task[i];
      t = tasks[first + i];
      t.begin = batch.items;
      t.end = batch.items += (t.n + ITEM - 1) / ITEM;
    }
    error = launch_mean(batch, stream);
  }
  return error;
}

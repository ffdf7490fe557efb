/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals that go from one store to another: the bits of pith__repack() in src/memory/store.c. */
#include "batch.cuh"
#include "repack_host.h"
#include "store.cuh"

#define THREADS 256
#define ITEM (THREADS / 32 * PITH_STORE_BLOCK)

typedef pith_repack_task Repack;

__global__ void __launch_bounds__(THREADS) repack_kernel(const __grid_constant__ Many<Repack> batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Repack &t = batch.task_of(item);
    StoreBlock b = store_block(item - t.begin, (uint32_t)t.n);
    float x[STORE_EACH], sum[STORE_EACH];
    load_store(t.from, t.from_store, b, x);
    if (t.add) {
      load_store(t.to, t.to_store, b, sum);
    }
#pragma unroll
    for (int j = 0; j < STORE_EACH; j++) {
      x[j] = t.factor * x[j];
      x[j] = t.add ? sum[j] + x[j] : x[j];
    }
    save_store(t.to, t.to_store, b, x, t.index, t.key0, t.key1);
  }
}

cudaError_t pith__repack_run(const pith_repack_task *tasks, size_t count, cudaStream_t stream) {
  return launch_many(repack_kernel, THREADS, ITEM, tasks, count, stream);
}

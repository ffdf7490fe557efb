/* SPDX-License-Identifier: Apache-2.0 */
/* Encoding of block codecs straight from tensors: each warp takes two blocks at a time, of whatever task is next.
 * Codecs that are often used together share a kernel, so that a bucket of layers usually takes one launch. */
#include "batch.cuh"
#include "encode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)

template <bool COMMON, bool VOTES>
__global__ void __launch_bounds__(THREADS, 6) encode_kernel(const __grid_constant__ Batch batch) {
  __shared__ __align__(16) uint8_t stages[2 * WARPS][STAGE];
  __shared__ Tables tables;
  fill_tables(batch, tables);
  uint8_t *stage = stages[threadIdx.x / LANES];
  each_item_of_warp(batch, [&](const Task &t, uint32_t pair) {
    uint32_t block = 2 * pair + half_of_warp();
    uint32_t first = block * t.bucket, m = first < t.n ? least(t.bucket, t.n - first) : 0;
    encode_block<COMMON, VOTES>(TensorSource{t, first, m}, t, t.payload + (size_t)block * t.block_size, stage, tables);
  });
}

cudaError_t launch_encode(const Batch &batch, bool common, cudaStream_t stream) {
  auto kernel = !common                   ? encode_kernel<false, false>
                : has_any(batch, is_vote) ? encode_kernel<true, true>
                                          : encode_kernel<true, false>;
  return launch_batch(kernel, THREADS, WARPS, 0, batch, stream);
}

/* Encoding of block codecs straight from tensors: each warp takes two blocks at a time, of whatever task is next. */
#include "batch.cuh"
#include "encode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)

__global__ void __launch_bounds__(THREADS, 6) encode_kernel(const __grid_constant__ Batch batch) {
  __shared__ __align__(16) uint8_t stages[2 * WARPS][STAGE];
  __shared__ Tables tables;
  fill_tables(tables);
  uint8_t *stage = stages[threadIdx.x / LANES];
  uint32_t task = 0, step = gridDim.x * WARPS;
  for (uint32_t item = blockIdx.x * WARPS + threadIdx.x / 32; item < batch.items; item += step) {
    while (item >= batch.task[task].end) {
      task++;
    }
    const Task &t = batch.task[task];
    uint32_t block = 2 * (item - t.begin) + half_of_warp();
    uint32_t first = block * t.bucket, m = first < t.n ? least(t.bucket, t.n - first) : 0;
    encode_block(TensorSource{t, first, m}, t, t.payload + (size_t)block * t.block_size, stage, tables);
  }
}

cudaError_t launch_encode(const Batch &batch, cudaStream_t stream) {
  uint32_t blocks;
  cudaError_t error = grid_for(encode_kernel, THREADS, 0, (batch.items + WARPS - 1) / WARPS, &blocks);
  if (error == cudaSuccess) {
    encode_kernel<<<blocks, THREADS, 0, stream>>>(batch);
    error = cudaGetLastError();
  }
  return error;
}

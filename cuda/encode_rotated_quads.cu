/*
 * The common codec behind a rotation, faster: q in blocks of 512 values, full tiles of f32 values at aligned addresses,
 * no memory; module.cu decides, and gives the rest to rotated.cu. Most of the time there is waiting, for memory and for
 * each other: with one codec in the kernel there are registers for more blocks of threads on a processor.
 */
#include "quads.cuh"
#include "rotate.cuh"

#define THREADS 128
#ifndef ROTATED_QUAD_RESIDENT
#define ROTATED_QUAD_RESIDENT 8
#endif

INLINE void encode_tile(const Task &t, uint32_t first, const float *tile) {
  for (uint32_t at = threadIdx.x / LANES * QUAD_BUCKET; at < t.tile; at += THREADS / LANES * QUAD_BUCKET) {
    Quads q;
    EACH_ROW(r) {
      const float *p = tile + tile_place(at + 64 * r + 4 * lane16());
      EACH_OF_FOUR(c) { q.v[r][c] = p[c]; }
    }
    encode_quads_q(t, first + at, q, t.payload + (size_t)((first + at) / QUAD_BUCKET) * t.block_size);
  }
}

/* Items are tiles, all of them full. */
__global__ void __launch_bounds__(THREADS, ROTATED_QUAD_RESIDENT)
    encode_rotated_quads_kernel(const __grid_constant__ Batch batch) {
  extern __shared__ __align__(16) float tile[];
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    uint32_t first = item * t.tile;
    float poison = rotate_in(t, first, tile);
    if (__syncthreads_or(poison != poison)) {
      spread_nan(t, tile, t.tile, (uint32_t *)(tile + TILE_PLACES(t.tile)));
    }
    encode_tile(t, first, tile);
    __syncthreads();
  });
}

cudaError_t launch_encode_rotated_quads(const Batch &batch, cudaStream_t stream) {
  return launch_tiles(encode_rotated_quads_kernel, THREADS, batch, stream);
}

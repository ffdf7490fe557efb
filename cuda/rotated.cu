/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs behind a rotation. A block of threads takes a tile: as many whole granules (blocks of the rotation and of the
 * codec that end together) as make a few thousand values. The tile is rotated in shared memory and encoded from there;
 * for a memory it is decoded in place, rotated back, and what is missing is kept.
 */
#include "batch.cuh"
#include "decode_block.cuh"
#include "encode_block.cuh"
#include "rotate.cuh"

#define THREADS 128

struct Tile {
  float *values;
  uint32_t *flags;
};

INLINE Tile tile_of(const Task &t, uint8_t *memory) {
  return Tile{(float *)memory, (uint32_t *)memory + TILE_PLACES(t.tile)};
}

/* Any tile: odd lengths, other types. */
INLINE void load_tile(const Task &t, uint32_t first, uint32_t n, Tile tile) {
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    tile.values[tile_place(i)] = compensate(t, first + i, value_at(t.values, t.dtype, first + i));
  }
  __syncthreads();
  each_run(t, n, [&](uint32_t at, uint32_t count, uint32_t power) {
    rotate_run(t, tile.values, at, count, power, t.index + first + at);
  });
  spread_nan(t, tile.values, n, tile.flags);
}

INLINE void settle_tile(const Task &t, uint32_t first, uint32_t n, Tile tile) {
  if (t.keeps == PITH_GPU_KEEP_LOST) {
    each_run(t, n, [&](uint32_t at, uint32_t count, uint32_t power) {
      unrotate_run(t, tile.values, at, count, power, t.index + first + at);
    });
  }
  for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
    float p = compensate(t, first + i, value_at(t.values, t.dtype, first + i));
    settle(t, first + i, p, tile.values[tile_place(i)]);
  }
  __syncthreads();
}

INLINE void settle_sixteens(const Task &t, uint32_t first, Tile tile) {
  scale_all(tile.values, 0, t.tile, rotation_scale(1u << t.rotation));
  rotate_out(t, first, tile.values, [&](uint32_t i, float(&d)[LANES]) {
    float p[LANES], rest[LANES], poison = 0.0f;
    compensate_sixteen(t, i, p);
#pragma unroll
    for (int c = 0; c < LANES; c++) {
      rest[c] = p[c] - d[c];
      poison = __fmaf_rn(rest[c], 0.0f, poison); /* NaN from the first that is not finite */
    }
    if (poison == poison) { /* in few wide stores */
      put_sixteen(t.memory + i, rest);
      return;
    }
    for (int c = 0; c < LANES; c++) {
      settle(t, i + c, p[c], d[c]);
    }
  });
}

INLINE void encode_tile(const Task &t, uint32_t first, Tile tile, uint8_t *stage, const Tables &tables) {
  uint32_t n = least(t.tile, t.n - first);
  bool sixteens = sixteens_fit(t, n);
  if (sixteens) {
    float poison = rotate_in(t, first, tile.values);
    if (__syncthreads_or(poison != poison)) {
      spread_nan(t, tile.values, n, tile.flags);
    }
  } else {
    load_tile(t, first, n, tile);
  }
  uint32_t blocks = (n + t.bucket - 1) / t.bucket, before = first / t.bucket;
  for (uint32_t pair = threadIdx.x / 32; 2 * pair < blocks; pair += THREADS / 32) {
    uint32_t block = 2 * pair + half_of_warp(), at = block * t.bucket, m = at < n ? least(t.bucket, n - at) : 0;
    TileSource source = {t, first + at, m, tile.values, at};
    uint8_t *out = t.payload + (size_t)(before + block) * t.block_size;
    if (is_common(t)) {
      encode_common<false>(source, t, out, stage); /* votes are not rotated */
    } else {
      encode_rarer(source, t, out, stage, tables);
    }
  }
  __syncthreads();
  if (t.memory && sixteens && t.keeps == PITH_GPU_KEEP_LOST) {
    settle_sixteens(t, first, tile);
  } else if (t.memory) {
    settle_tile(t, first, n, tile);
  }
}

__global__ void __launch_bounds__(THREADS, 5) encode_rotated_kernel(const __grid_constant__ Batch batch) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ __align__(16) uint8_t stages[THREADS / LANES][STAGE];
  __shared__ Tables tables;
  fill_tables(batch, tables);
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    encode_tile(t, item * t.tile, tile_of(t, memory), stages[threadIdx.x / LANES], tables);
  });
}

template <Rare RARE>
INLINE void decode_tile(const Task &t, uint32_t first, uint32_t n, float scale, float *tile, const Tables &tables) {
  Group group = group_of<RARE>(t);
#pragma unroll 4
  for (uint32_t i = 4 * threadIdx.x; i < n; i += 4 * THREADS) {
    float d[4];
    decode_four<RARE>(t, group, first + i, d, tables);
    for (uint32_t j = 0; j < 4 && i + j < n; j++) {
      tile[tile_place(i + j)] = d[j] * scale;
    }
  }
  __syncthreads();
}

template <bool ADD, Rare RARE>
__global__ void __launch_bounds__(THREADS) decode_rotated_kernel(const __grid_constant__ Batch batch) {
  extern __shared__ __align__(16) uint8_t memory[];
  __shared__ Tables tables;
  float *tile = (float *)memory;
  fill_tables(batch, tables);
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    uint32_t first = item * t.tile, n = least(t.tile, t.n - first);
    bool sixteens = sixteens_fit(t, n);
    float scale = sixteens ? rotation_scale(1u << t.rotation) : 1.0f;
    decode_tile<RARE>(t, first, n, scale, tile, tables);
    if (sixteens) {
      rotate_out(t, first, tile, [&](uint32_t i, float(&d)[LANES]) {
        if (ADD) {
          float x[LANES];
          get_sixteen((const float *)t.values + i, x);
#pragma unroll
          for (int c = 0; c < LANES; c++) {
            d[c] = x[c] + d[c];
          }
        }
        put_sixteen((float *)t.values + i, d);
      });
      return;
    }
    each_run(t, n, [&](uint32_t at, uint32_t count, uint32_t power) {
      unrotate_run(t, tile, at, count, power, t.index + first + at);
    });
    for (uint32_t i = threadIdx.x; i < n; i += THREADS) {
      float d = tile[tile_place(i)];
      put_value(t.values, t.dtype, first + i, ADD ? value_at(t.values, t.dtype, first + i) + d : d);
    }
    __syncthreads();
  });
}

cudaError_t launch_encode_rotated(const Batch &batch, cudaStream_t stream) {
  return launch_tiles(encode_rotated_kernel, THREADS, batch, stream);
}

cudaError_t launch_decode_rotated(const Batch &batch, bool add, cudaStream_t stream) {
  static const BatchKernel kernels[2][3] = {
      {decode_rotated_kernel<false, USUAL>, decode_rotated_kernel<false, RARE_ONES>, decode_rotated_kernel<false, ALL>},
      {decode_rotated_kernel<true, USUAL>, decode_rotated_kernel<true, RARE_ONES>, decode_rotated_kernel<true, ALL>}};
  return launch_tiles(kernels[add][rare_of(batch)], THREADS, batch, stream);
}

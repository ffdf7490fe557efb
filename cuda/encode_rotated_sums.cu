/*
 * Codecs of one scale behind a rotation, faster: sign with an unbiased scale, and lloyd, in blocks of 4096 values that
 * are those of the rotation (drive, eden). Full tiles of f32 values at aligned addresses, no memory; module.cu decides,
 * and gives the rest to rotated.cu. Sums have an order: 16 lanes of one warp add a tile up from shared memory. Other
 * blocks of threads have the processor meanwhile.
 */
#include "rotate_quads.cuh"

#ifndef SUMS_RESIDENT
#define SUMS_RESIDENT 7
#endif
#define PIECE 256 /* of a tile, whose products are summed together */

struct Shared {
  Exchange all;
  float norm, parts[ROTATED_TILE / PIECE];
  Tables tables;
};

/* What the sums of encode_block.cuh fall back on. */
struct WholeTile {
  const float *tile;
  uint32_t m;
  INLINE float one(uint32_t i) const { return tile[i]; }
};

/* The warp that sums: not always the same, since warps of one number share a scheduler. */
INLINE bool is_summing(uint32_t item) { return threadIdx.x / 32 == item * RNG_WEYL >> 30; }

/* Σx² in the lower half of a warp, Σ|x| in the upper one. */
INLINE float ordered_sum(const float *tile) {
  bool upper = half_of_warp();
  float sum = 0.0f;
#pragma unroll 16
  for (int k = 0; k < ROTATED_TILE / LANES; k++) {
    float x = tile[LANES * k + lane16()];
    sum += upper ? fabsf(x) : x * x;
  }
  return lane_sum(sum);
}

/* The greatest |x|, of which sums that left the range of f32 ask whether it is zero. */
INLINE uint32_t most_of(const float *tile, bool needed) {
  uint32_t most = 0;
  for (uint32_t i = threadIdx.x % 32; needed && i < ROTATED_TILE; i += 32) {
    most = max(most, magnitude(tile[i]));
  }
  return warp_most(most);
}

/* By a whole warp. The largest values are NaN if anything is. */
INLINE double tile_norm(const WholeTile &tile, float squares) {
  bool fine = squares > 0x1p-80f && squares < 0x1p+126f;
  return norm_of(tile, squares, most_of(tile.tile, !fine));
}

/* Bits of this warp's rows, as exchange_nibbles takes them. */
INLINE void put_bits(uint8_t *out, uint32_t word) { ((uint32_t *)out)[quad_word()] = exchange_nibbles(word); }

/* ---- drive ------------------------------------------------------------------------------------------------------- */

INLINE void encode_tile_signs(uint32_t item, const float (&v)[QUAD_ROWS][4], bool odd, uint8_t *out, Shared &shared) {
  uint8_t *signs = out + PITH_HEAD_ONE + threadIdx.x / 32 * (TURN_WARP / 8);
  uint32_t word = 0;
#pragma unroll
  for (int i = 4 * QUAD_ROWS - 1; i >= 0; i--) {
    word = push_sign(word, bits_of(v[i / 4][i % 4] + 0.0f)); /* −0 is not negative */
  }
  put_bits(signs, word);
  bool bad = odd;
  if (is_summing(item)) {
    WholeTile tile = {(const float *)shared.all, ROTATED_TILE};
    float sums = ordered_sum(tile.tile), squares = __shfl_sync(FULL, sums, 0), sizes = __shfl_sync(FULL, sums, 16);
    double norm = tile_norm(tile, squares);
    double sum_abs = sum_abs_of(tile, sizes, most_of(tile.tile, !is_finite(sizes)));
    float scale = sum_abs > 0 ? (float)(norm * (norm / sum_abs)) : 0.0f;
    bad |= !is_finite(scale);
    if (threadIdx.x % 32 == 0) {
      *(float *)out = bad ? nan_value() : scale;
    }
  }
  if (__syncthreads_or(bad)) {
    put_bits(signs, 0);
  }
}

/* ---- eden -------------------------------------------------------------------------------------------------------- */

template <int BITS>
INLINE uint32_t lloyd_number_of(float y, const float *cuts) {
  uint32_t number = 0;
#pragma unroll
  for (uint32_t step = 1u << (BITS - 1); step; step /= 2) {
    number += cuts[number + step - 1] <= y ? step : 0;
  }
  return number;
}

/* Numbers, and in place of the tile's values their products with levels. */
template <int BITS>
INLINE void put_numbers(const float (&v)[QUAD_ROWS][4], bool bad, float inverse, float shrink, const Lloyd &lloyd,
                        uint8_t *out, float4 *products) {
  uint32_t all = 0;
  EACH_ROW(r) {
    uint32_t number[4];
    float product[4];
    EACH_OF_FOUR(c) {
      number[c] = lloyd_number_of<BITS>(v[r][c] * inverse, lloyd.cuts);
      product[c] = v[r][c] * (shrink * lloyd.level(number[c]));
    }
    products[32 * r] = to_four(product);
    uint32_t word = bad ? 0 : join_four<BITS>(number);
    if (BITS == 1) {
      all |= word << 4 * r;
    } else {
      put_quad<BITS == 1 ? 2 : BITS, 32>(out, r, word);
    }
  }
  if (BITS == 1) {
    put_bits(out, all);
  }
}

/* ⟨Q, y⟩ of each piece of this warp, one after another for half a warp. */
INLINE void sum_pieces(Shared &shared) {
  uint32_t first = threadIdx.x / 32 * (TURN_WARP / PIECE) + half_of_warp();
  const float *all = (const float *)shared.all;
  __syncwarp();
#pragma unroll
  for (uint32_t piece = first; piece < first + TURN_WARP / PIECE; piece += 2) {
    float part = 0.0f;
    EACH_STEP(k, PIECE / LANES) { part += all[piece * PIECE + LANES * k + lane16()]; }
    part = lane_sum(part);
    if (lane16() == 0) {
      shared.parts[piece] = part;
    }
  }
}

INLINE void encode_tile_lloyd(const Task &t, uint32_t item, const float (&v)[QUAD_ROWS][4], bool odd, uint8_t *out,
                              Shared &shared) {
  if (is_summing(item)) {
    WholeTile tile = {(const float *)shared.all, ROTATED_TILE};
    float norm = (float)tile_norm(tile, __shfl_sync(FULL, ordered_sum(tile.tile), 0));
    if (threadIdx.x % 32 == 0) {
      shared.norm = norm;
    }
  }
  __syncthreads();
  float norm = shared.norm, shrink = norm > 1.0f ? 0x1p-8f : 1.0f;
  bool bad = odd || !is_finite(norm);
  float inverse = bad || norm < PITH_SCALE_MIN ? 0.0f : sqrtf((float)ROTATED_TILE) / norm;
  uint8_t *numbers = out + PITH_HEAD_ONE + threadIdx.x / 32 * (TURN_WARP / 8) * t.bits;
  float4 *products = shared.all + threadIdx.x / 32 * (TURN_WARP / 4) + threadIdx.x % 32;
  const Lloyd &lloyd = shared.tables.lloyd[t.bits - 1];
  switch (t.bits) {
    case 1:
      put_numbers<1>(v, bad, inverse, shrink, lloyd, numbers, products);
      break;
    case 2:
      put_numbers<2>(v, bad, inverse, shrink, lloyd, numbers, products);
      break;
    default:
      put_numbers<4>(v, bad, inverse, shrink, lloyd, numbers, products);
  }
  sum_pieces(shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    float product = 0.0f;
    EACH_STEP(i, ROTATED_TILE / PIECE) { product += shared.parts[i]; }
    float scale = inverse > 0 && product > 0 ? norm * (norm * shrink / product) : 0.0f;
    *(float *)out = bad ? nan_value() : scale;
  }
}

/* Items are tiles, all of them full: a block of the codec each. */
__global__ void __launch_bounds__(TURN_THREADS, SUMS_RESIDENT)
    encode_rotated_sums_kernel(const __grid_constant__ Batch batch) {
  __shared__ Shared shared;
  fill_tables(shared.tables);
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    uint32_t i = lane_start(item);
    uint8_t *out = t.payload + (size_t)item * t.block_size;
    float v[QUAD_ROWS][4];
    load_rows((const float *)t.values + i, v);
    bool odd = turn(t, i, v, shared.all);
    if (t.kind == PITH_WIRE_SIGN) {
      encode_tile_signs(item, v, odd, out, shared);
    } else {
      encode_tile_lloyd(t, item, v, odd, out, shared);
    }
  });
}

cudaError_t launch_encode_rotated_sums(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_rotated_sums_kernel, TURN_THREADS, 1, 0, batch, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Codecs of one scale behind a rotation, faster: sign with an unbiased scale, and lloyd, in blocks of 4096 values that
 * are those of the rotation (drive, eden). Full blocks of f32 values at aligned addresses, no memory; module.cu
 * decides, and gives the rest to rotated.cu.
 *
 * A thread has 32 values in registers, three times others: strides 1 and 2 of quads as they are read, strides 4 to 64,
 * then 128 to 2048. In between and for sums they go through shared memory, which takes less time than shuffles. Sums
 * have an order: 16 lanes of a warp add a block up. Other blocks of threads have the processor meanwhile.
 */
#include "rotate_quads.cuh"

#define RESIDENT 8 /* blocks of threads on a processor at least */
#define VALUES 32  /* of a thread */
#define PIECE 256  /* of a block, whose products are summed together */

/* Places of values in shared memory: where threads take every fourth value, where lanes add every sixteenth, two at a
 * time, and where they add those of a piece. No two threads of a warp meet in a bank. */
INLINE uint32_t turning_place(uint32_t i) { return i + i / 128 * 4; }
INLINE uint32_t lane_place(uint32_t i) { return i % LANES * (ROTATED_TILE / LANES + 2) + i / LANES; }
INLINE uint32_t piece_place(uint32_t i) { return i + i / PIECE * LANES; }

struct Shared {
  __align__(16) float values[ROTATED_TILE + ROTATED_TILE / PIECE * LANES];
  float norm, parts[ROTATED_TILE / PIECE];
  Lloyd lloyd;
};

/* The warp that sums: not always the same, since warps of one number share a scheduler. */
INLINE bool is_summing(uint32_t item) { return threadIdx.x / 32 == item * RNG_WEYL >> 30; }

#define EACH_VALUE(j) _Pragma("unroll") for (int j = 0; j < VALUES; j++)

/* From the tensor to a rotated block: value 128·j + threadIdx.x in v[j]. In shared memory it is where lanes add. */
INLINE void turn_block(const Task &t, uint32_t first, float (&v)[VALUES], float *shared) {
  uint32_t at = 4 * threadIdx.x, signs[QUAD_ROWS];
  const float *from = (const float *)t.values + first + at;
  float scale = rotation_scale(ROTATED_TILE), quads[QUAD_ROWS][4];
  EACH_ROW(r) { from_four(*(const float4 *)(from + 512 * r), quads[r]); }
  draw_signs(t, t.index + first + at, 512, signs);
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { quads[r][c] = flip_by(quads[r][c], signs[r], c) * scale; }
    butterfly(quads[r]);
    *(float4 *)(shared + turning_place(512 * r + at)) = to_four(quads[r]);
  }
  __syncthreads();
  float *mine = shared + turning_place(threadIdx.x / 4 * 128) + threadIdx.x % 4;
  EACH_VALUE(j) { v[j] = mine[4 * j]; }
  butterfly(v);
  EACH_VALUE(j) { mine[4 * j] = v[j]; }
  __syncthreads();
  EACH_VALUE(j) { v[j] = shared[turning_place(128 * j) + threadIdx.x]; }
  butterfly(v);
  __syncthreads();
  EACH_VALUE(j) { shared[lane_place(threadIdx.x) + 128 / LANES * j] = v[j]; }
  __syncthreads();
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* What those of encode_block.cuh fall back on. */
struct WholeBlock {
  const float *values;
  uint32_t m;
  INLINE float one(uint32_t i) const { return values[lane_place(i)]; }
};

/* Σx² and, for SIZES, Σ|x|: in 16 lanes, every one of which adds its values in their order. All lanes get them. */
template <bool SIZES>
INLINE void ordered_sums(const float *values, float *squares, float *sizes) {
  float sum = 0.0f, sum_abs = 0.0f;
  if (half_of_warp() == 0) {
    const float2 *mine = (const float2 *)(values + lane_place(lane16()));
#pragma unroll 16
    for (int k = 0; k < ROTATED_TILE / LANES / 2; k++) {
      float2 x = mine[k];
      sum += x.x * x.x;
      sum_abs += SIZES ? fabsf(x.x) : 0.0f;
      sum += x.y * x.y;
      sum_abs += SIZES ? fabsf(x.y) : 0.0f;
    }
  }
  __syncwarp();
  *squares = __shfl_sync(FULL, lane_sum(sum), 0);
  *sizes = __shfl_sync(FULL, lane_sum(sum_abs), 0);
}

/* The greatest |x|, of which sums that left the range of f32 ask whether it is zero. */
INLINE uint32_t most_of(const WholeBlock &block, bool needed) {
  uint32_t most = 0;
  for (uint32_t i = threadIdx.x % 32; needed && i < block.m; i += 32) {
    most = max(most, magnitude(block.one(i)));
  }
  return warp_most(most);
}

/* By a whole warp. Squares within the range of f32 tell that all values are finite; else that is looked for. */
INLINE double block_norm(const WholeBlock &block, float squares, bool *odd) {
  bool fine = squares > 0x1p-80f && squares < 0x1p+126f;
  uint32_t most = most_of(block, !fine);
  *odd = !fine && most >= INF_BITS;
  return norm_of(block, squares, most);
}

/* ---- drive ------------------------------------------------------------------------------------------------------- */

/* Words of 32 neighbours: those of row `lane` of this warp. */
INLINE void put_signs(uint8_t *out, uint32_t word) {
  ((uint32_t *)out)[4 * (threadIdx.x % 32) + threadIdx.x / 32] = word;
}

INLINE void encode_block_signs(uint32_t item, const float (&v)[VALUES], uint8_t *out, Shared &shared) {
  uint32_t word = 0;
#pragma unroll
  for (int j = VALUES - 1; j >= 0; j--) {
    word = push_sign(word, v[j] + 0.0f); /* −0 is not negative */
  }
  put_signs(out + PITH_HEAD_ONE, transpose_bits(word));
  bool bad = false;
  if (is_summing(item)) {
    WholeBlock block = {shared.values, ROTATED_TILE};
    float squares, sizes;
    ordered_sums<true>(shared.values, &squares, &sizes);
    double norm = block_norm(block, squares, &bad);
    double sum_abs = sum_abs_of(block, sizes, most_of(block, !is_finite(sizes)));
    float scale = sum_abs > 0 ? (float)(norm * (norm / sum_abs)) : 0.0f;
    bad |= !is_finite(scale);
    if (threadIdx.x % 32 == 0) {
      *(float *)out = bad ? nan_value() : scale;
    }
  }
  if (__syncthreads_or(bad)) {
    put_signs(out + PITH_HEAD_ONE, 0);
  }
}

/* ---- eden -------------------------------------------------------------------------------------------------------- */

/* Which number y has: how many cuts lie at or below it. A bit of each plane says for every digit whether it is 0, the
 * sign of a difference. Returns the level times `shrink`, a power of two. Cuts and levels of few bits are in registers,
 * those of more in shared memory. */
template <int BITS>
struct Numbers {
  float cuts[4], levels[4], shrink; /* cuts with the other sign, none of them −0 */
  const Lloyd &lloyd;
  uint32_t planes[BITS];

  INLINE Numbers(const Lloyd &given, float by) : shrink(by), lloyd(given) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      cuts[i] = 0.0f - given.cuts[i];
      levels[i] = by * given.levels[i];
    }
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) {
      planes[bit] = 0;
    }
  }

  INLINE bool is_above(int bit, float y, float cut) {
    float over = y + cut;
    planes[bit] = push_sign(planes[bit], over);
    return over >= 0.0f;
  }

  INLINE float put(float y) {
    if (BITS == 1) {
      return is_above(0, y, cuts[0]) ? levels[1] : levels[0];
    }
    if (BITS == 2) {
      bool upper = is_above(1, y, cuts[1]), high = is_above(0, y, upper ? cuts[2] : cuts[0]);
      return upper ? (high ? levels[3] : levels[2]) : (high ? levels[1] : levels[0]);
    }
    uint32_t number = 0;
#pragma unroll
    for (int bit = BITS - 1; bit >= 0; bit--) {
      number += is_above(bit, y, 0.0f - lloyd.cuts[number + (1 << bit) - 1]) ? 1 << bit : 0;
    }
    return shrink * lloyd.level(number);
  }
};

/* Every BITS-th bit of a word is one of the lowest 32 / BITS bits of x. */
template <int BITS>
INLINE uint32_t spread_bits(uint32_t x) {
  if (BITS == 2) {
    x = (x | x << 8) & 0x00ff00ffu;
    x = (x | x << 4) & 0x0f0f0f0fu;
    x = (x | x << 2) & 0x33333333u;
    return (x | x << 1) & 0x55555555u;
  }
  if (BITS == 4) {
    x = (x | x << 12) & 0x000f000fu;
    x = (x | x << 6) & 0x03030303u;
    return (x | x << 3) & 0x11111111u;
  }
  return x;
}

/* The numbers of 32 neighbours from their planes. */
template <int BITS>
INLINE void put_planes(uint8_t *out, const uint32_t (&planes)[BITS], bool bad) {
  uint32_t *words = (uint32_t *)out + BITS * (4 * (threadIdx.x % 32) + threadIdx.x / 32);
#pragma unroll
  for (int w = 0; w < BITS; w++) {
    uint32_t word = 0;
#pragma unroll
    for (int bit = 0; bit < BITS; bit++) {
      word |= spread_bits<BITS>(planes[bit] >> 32 / BITS * w & (uint32_t)((1ull << 32 / BITS) - 1)) << bit;
    }
    words[w] = bad ? 0 : word;
  }
}

/* Numbers, and in shared memory the products of values and levels. */
template <int BITS>
INLINE void put_numbers(const float (&v)[VALUES], bool bad, float inverse, float shrink, const Lloyd &lloyd,
                        uint8_t *out, float *products) {
  Numbers<BITS> numbers(lloyd, shrink);
#pragma unroll
  for (int j = VALUES - 1; j >= 0; j--) {
    products[piece_place(128 * j) + threadIdx.x] = v[j] * numbers.put(v[j] * inverse);
  }
#pragma unroll
  for (int bit = 0; bit < BITS; bit++) {
    numbers.planes[bit] = ~transpose_bits(numbers.planes[bit]);
  }
  put_planes<BITS>(out, numbers.planes, bad);
}

/* ⟨Q, y⟩ of each piece; half a warp takes two. */
INLINE void sum_pieces(Shared &shared) {
#pragma unroll
  for (uint32_t piece = threadIdx.x / LANES; piece < ROTATED_TILE / PIECE; piece += TURN_THREADS / LANES) {
    float part = 0.0f;
    EACH_STEP(k, PIECE / LANES) { part += shared.values[piece_place(piece * PIECE) + LANES * k + lane16()]; }
    part = lane_sum(part);
    if (lane16() == 0) {
      shared.parts[piece] = part;
    }
  }
}

template <int BITS>
INLINE void encode_block_lloyd(uint32_t item, const float (&v)[VALUES], uint8_t *out, Shared &shared) {
  if (is_summing(item)) {
    float squares, none;
    bool odd;
    ordered_sums<false>(shared.values, &squares, &none);
    float norm = (float)block_norm(WholeBlock{shared.values, ROTATED_TILE}, squares, &odd);
    if (threadIdx.x % 32 == 0) {
      shared.norm = odd ? nan_value() : norm;
    }
  }
  __syncthreads();
  float norm = shared.norm, shrink = norm > 1.0f ? 0x1p-8f : 1.0f;
  bool bad = !is_finite(norm);
  float inverse = bad || norm < PITH_SCALE_MIN ? 0.0f : sqrtf((float)ROTATED_TILE) / norm;
  put_numbers<BITS>(v, bad, inverse, shrink, shared.lloyd, out + PITH_HEAD_ONE, shared.values);
  __syncthreads();
  sum_pieces(shared);
  __syncthreads();
  if (threadIdx.x == 0) {
    float product = 0.0f;
    EACH_STEP(i, ROTATED_TILE / PIECE) { product += shared.parts[i]; }
    float scale = inverse > 0 && product > 0 ? norm * (norm * shrink / product) : 0.0f;
    *(float *)out = bad ? nan_value() : scale;
  }
}

/* Of a number; 0: signs. */
static inline __host__ __device__ int number_bits(const Task &t) { return t.kind == PITH_WIRE_SIGN ? 0 : t.bits; }

/* Items are blocks, all of them full. Those whose numbers have other than BITS bits are left to another kernel:
 * together they would take each other's registers. */
template <int BITS>
__global__ void __launch_bounds__(TURN_THREADS, RESIDENT)
    encode_rotated_sums_kernel(const __grid_constant__ Batch batch) {
  __shared__ Shared shared;
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    if (number_bits(t) != BITS) {
      return;
    }
    uint8_t *out = t.payload + (size_t)item * t.block_size;
    float v[VALUES];
    if (BITS > 0 && threadIdx.x < 16) {
      fill_lloyd(shared.lloyd, BITS, threadIdx.x);
    }
    turn_block(t, item * ROTATED_TILE, v, shared.values);
    if constexpr (BITS > 0) {
      encode_block_lloyd<BITS>(item, v, out, shared);
    } else {
      encode_block_signs(item, v, out, shared);
    }
    __syncthreads();
  });
}

template <int BITS>
static cudaError_t launch_bits(const Batch &batch, cudaStream_t stream) {
  bool any = has_any(batch, [](const Task &t) { return number_bits(t) == BITS; });
  return any ? launch_batch(encode_rotated_sums_kernel<BITS>, TURN_THREADS, 1, 0, batch, stream) : cudaSuccess;
}

cudaError_t launch_encode_rotated_sums(const Batch &batch, cudaStream_t stream) {
  cudaError_t error = launch_bits<0>(batch, stream);
  error = error == cudaSuccess ? launch_bits<1>(batch, stream) : error;
  error = error == cudaSuccess ? launch_bits<2>(batch, stream) : error;
  return error == cudaSuccess ? launch_bits<4>(batch, stream) : error;
}

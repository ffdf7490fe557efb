/* Decoding of block codecs straight into tensors: each warp takes 1024 values of a task at a time. */
#include "batch.cuh"
#include "decode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define ITEM DECODE_ITEM
#define ROW DECODE_ROW
#define FOURS (ITEM / ROW) /* of a thread */

template <bool ADD>
INLINE void store_slowly(const Task &t, uint32_t i, const float (&d)[4]) {
  for (uint32_t j = 0; j < 4 && i + j < t.n; j++) {
    put_value(t.values, t.dtype, i + j, ADD ? value_at(t.values, t.dtype, i + j) + d[j] : d[j]);
  }
}

/* Four values of a 16-bit type in two words. */
INLINE float half_at(const Task &t, uint2 words, int j) {
  uint16_t h = (uint16_t)((j < 2 ? words.x : words.y) >> 16 * (j % 2));
  return t.dtype == PITH_GPU_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

INLINE uint32_t halves_of(const Task &t, float low, float high) {
  uint32_t a = t.dtype == PITH_GPU_F16 ? f32_to_f16(low) : f32_to_bf16(low);
  uint32_t b = t.dtype == PITH_GPU_F16 ? f32_to_f16(high) : f32_to_bf16(high);
  return a | b << 16;
}

template <bool ADD, bool RARE, Group GROUP>
INLINE void decode_floats(const Task &t, uint32_t first, const Tables &tables) {
  Cursor cursor = cursor_at(t, first);
  float4 *out = (float4 *)((float *)t.values + first) + threadIdx.x % 32;
  constexpr int TOGETHER = ADD ? 4 : 8; /* rows that are read before the first is used, as registers allow */
  for (int r = 0; r < FOURS; r += TOGETHER) {
    float4 x[TOGETHER];
    float d[TOGETHER][4];
    if (ADD) {
#pragma unroll
      for (int k = 0; k < TOGETHER; k++) {
        x[k] = out[32 * (r + k)];
      }
    }
    decode_rows<RARE, GROUP>(t, cursor, d, tables);
#pragma unroll
    for (int k = 0; k < TOGETHER; k++) {
      out[32 * (r + k)] = ADD ? make_float4(x[k].x + d[k][0], x[k].y + d[k][1], x[k].z + d[k][2], x[k].w + d[k][3])
                              : make_float4(d[k][0], d[k][1], d[k][2], d[k][3]);
    }
  }
}

template <bool ADD, bool RARE>
INLINE void decode_halves(const Task &t, uint32_t first, const Tables &tables) {
  uint2 *out = (uint2 *)((uint16_t *)t.values + first) + threadIdx.x % 32;
  for (int r = 0; r < FOURS; r++) {
    float d[4];
    uint2 x = ADD ? out[32 * r] : make_uint2(0, 0);
    decode_four<RARE>(t, group_of<RARE>(t), first + 4 * (threadIdx.x % 32 + 32 * r), d, tables);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      d[j] = ADD ? half_at(t, x, j) + d[j] : d[j];
    }
    out[32 * r] = make_uint2(halves_of(t, d[0], d[1]), halves_of(t, d[2], d[3]));
  }
}

/* Whether pairs of rows lie within blocks, the last block of the item is full, and all words of the payload are
 * aligned. */
INLINE bool rows_fit(const Task &t, uint32_t first) {
  uint32_t end = ((first + ITEM - 1) / t.bucket + 1) * t.bucket;
  return t.bucket % (2 * ROW) == 0 && end <= t.n && aligned4(t.payload) && t.block_size % 4 == 0;
}

template <bool ADD, bool RARE>
__global__ void __launch_bounds__(THREADS, 7) decode_kernel(const __grid_constant__ Batch batch) {
  __shared__ Tables tables;
  fill_tables(tables);
  each_item_of_warp(batch, [&](const Task &t, uint32_t item) {
    uint32_t first = item * ITEM;
    uintptr_t mask = t.dtype == PITH_GPU_F32 ? 15 : 7;
    bool floats = t.dtype == PITH_GPU_F32;
    if (first + ITEM > t.n || ((uintptr_t)t.values & mask) || (floats && !rows_fit(t, first))) {
      for (uint32_t i = first + 4 * (threadIdx.x % 32); i < least(first + ITEM, t.n); i += ROW) {
        float d[4];
        decode_four<RARE>(t, group_of<RARE>(t), i, d, tables);
        store_slowly<ADD>(t, i, d);
      }
    } else if (floats) {
      with_group<RARE>(t, [&](auto group) { decode_floats<ADD, RARE, group.value>(t, first, tables); });
    } else {
      decode_halves<ADD, RARE>(t, first, tables);
    }
  });
}

cudaError_t launch_decode(const Batch &batch, bool add, cudaStream_t stream) {
  bool rare = has_any(batch, is_vote) || has_any(batch, is_power);
  auto kernel = add ? (rare ? decode_kernel<true, true> : decode_kernel<true, false>)
                    : (rare ? decode_kernel<false, true> : decode_kernel<false, false>);
  return launch_batch(kernel, THREADS, WARPS, 0, batch, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of block codecs straight into tensors: each warp takes 1024 values of a task at a time. */
#include "batch.cuh"
#include "decode_block.cuh"

#define THREADS 128
#define WARPS (THREADS / 32)
#define ITEM DECODE_ITEM
#define RESIDENT 8 /* blocks of threads on a processor at least */

template <bool ADD>
INLINE void store_slowly(const Task &t, uint32_t i, const float (&d)[4]) {
  for (uint32_t j = 0; j < 4 && i + j < t.n; j++) {
    put_value(t.values, t.dtype, i + j, ADD ? value_at(t.values, t.dtype, i + j) + d[j] : d[j]);
  }
}

/* Rows of a tensor of any type, from this lane's first value on. */
template <int ROWS>
INLINE void read_rows(const Task &t, uint32_t i, float (&x)[ROWS][4]) {
  if (t.dtype == PITH_GPU_F32) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float4 four = *(const float4 *)((const float *)t.values + i + DECODE_ROW * r);
      x[r][0] = four.x, x[r][1] = four.y, x[r][2] = four.z, x[r][3] = four.w;
    }
    return;
  }
  uint2 words[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    words[r] = *(const uint2 *)((const uint16_t *)t.values + i + DECODE_ROW * r);
  }
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    bool half = t.dtype == PITH_GPU_F16;
    float2 low = half ? f16x2_to_f32(words[r].x) : bf16x2_to_f32(words[r].x);
    float2 high = half ? f16x2_to_f32(words[r].y) : bf16x2_to_f32(words[r].y);
    x[r][0] = low.x, x[r][1] = low.y, x[r][2] = high.x, x[r][3] = high.y;
  }
}

/* SOON: what is written leaves the cache first, which makes writing alone a little faster. */
template <bool SOON, int ROWS>
INLINE void write_rows(const Task &t, uint32_t i, const float (&x)[ROWS][4]) {
  if (t.dtype == PITH_GPU_F32) {
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float4 *out = (float4 *)((float *)t.values + i + DECODE_ROW * r);
      float4 four = make_float4(x[r][0], x[r][1], x[r][2], x[r][3]);
      if (SOON) {
        __stcs(out, four);
      } else {
        *out = four;
      }
    }
    return;
  }
  bool half = t.dtype == PITH_GPU_F16;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    *(uint2 *)((uint16_t *)t.values + i + DECODE_ROW * r) =
        make_uint2(half ? f32_to_f16x2(x[r][0], x[r][1]) : f32_to_bf16x2(x[r][0], x[r][1]),
                   half ? f32_to_f16x2(x[r][2], x[r][3]) : f32_to_bf16x2(x[r][2], x[r][3]));
  }
}

template <bool ADD, Rare RARE>
INLINE void decode_item(const Task &t, uint32_t first, const Tables &tables) {
  Cursor cursor = cursor_at(t, first);
  constexpr int TOGETHER = ADD ? 4 : 8; /* rows that are read before the first is used, as registers allow */
#pragma unroll 1
  for (uint32_t i = first + 4 * (threadIdx.x % 32), end = first + ITEM; i < end; i += TOGETHER * DECODE_ROW) {
    float x[TOGETHER][4], d[TOGETHER][4];
    if (ADD) {
      read_rows(t, i, x);
    }
    with_group<RARE>(t, [&](auto group) { decode_rows<RARE, group.value>(t, cursor, d, tables); });
#pragma unroll
    for (int r = 0; ADD && r < TOGETHER; r++) {
#pragma unroll
      for (int c = 0; c < 4; c++) {
        d[r][c] = x[r][c] + d[r][c];
      }
    }
    write_rows<!ADD>(t, i, d);
  }
}

/* Any item: odd lengths, blocks and addresses. */
template <bool ADD, Rare RARE>
INLINE void decode_slowly(const Task &t, uint32_t first, const Tables &tables) {
#pragma unroll 1
  for (uint32_t i = first + 4 * (threadIdx.x % 32); i < least(first + ITEM, t.n); i += DECODE_ROW) {
    float d[4];
    decode_four<RARE>(t, group_of<RARE>(t), i, d, tables);
    store_slowly<ADD>(t, i, d);
  }
}

/* Whether the last block of an item is full. */
INLINE bool blocks_are_full(const Task &t, uint32_t first) {
  return ((first + ITEM - 1) / t.bucket + 1) * t.bucket <= t.n;
}

template <bool ADD, Rare RARE>
__global__ void __launch_bounds__(THREADS, RESIDENT) decode_kernel(const __grid_constant__ Batch batch) {
  __shared__ Tables tables;
  fill_tables(batch, tables);
  each_item_of_warp(batch, [&](const Task &t, uint32_t item) {
    uint32_t first = item * ITEM;
    bool aligned = ((uintptr_t)t.values & (t.dtype == PITH_GPU_F32 ? 15 : 7)) == 0;
    if (first + ITEM > t.n || !aligned || !rows_fit(t) || !blocks_are_full(t, first)) {
      decode_slowly<ADD, RARE>(t, first, tables);
    } else {
      decode_item<ADD, RARE>(t, first, tables);
    }
  });
}

cudaError_t launch_decode(const Batch &batch, bool add, cudaStream_t stream) {
  static const BatchKernel kernels[2][3] = {
      {decode_kernel<false, USUAL>, decode_kernel<false, RARE_ONES>, decode_kernel<false, ALL>},
      {decode_kernel<true, USUAL>, decode_kernel<true, RARE_ONES>, decode_kernel<true, ALL>}};
  return launch_batch(kernels[add][rare_of(batch)], THREADS, WARPS, 0, batch, stream);
}

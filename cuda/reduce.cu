/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's step in one kernel: what all ranks sent of a block is decoded and added up in registers, with the owner's
 * own values in their place, and the mean encoded at once. Sums are in rank order, and all arithmetic is that of
 * decode.cu, own.cu, mean.cu and the encoders, so the bytes are the same as step by step; no sum is ever in memory.
 *
 * Half a warp takes a block of 512 values, in the layout of quads.cuh. Levels of 8, 4 and 2 bits are packed from there;
 * for all others the block goes by way of shared memory to the encoders of encode_block.cuh.
 */
#include "batch.cuh"
#include "decode_block.cuh"
#include "quads.cuh"
#include "reduce_host.h"

#define THREADS 128
#define WARPS (THREADS / 32)
#define PAIR (2 * QUAD_BUCKET) /* values of a warp */
#define ITEM (WARPS * PAIR)

typedef pith_gpu_reduce Reduce;

/* A block in shared memory, in order. */
struct RowSource {
  const Task &t;
  uint32_t origin, m;
  const float *row;

  template <int N>
  INLINE void load(float (&v)[STEPS], uint32_t from, float) const {
    EACH_STEP(k, N) { v[k] = row[from + LANES * k + lane16()]; }
  }

  INLINE float one(uint32_t i) const { return row[i]; }
  INLINE bool keeps() const { return t.memory != nullptr; }
  INLINE void keep(uint32_t i, float p, float d) const { settle(t, origin + i, p, d); }
};

INLINE void get_row(const float *from, int r, float (&x)[4]) {
  float4 four = ((const float4 *)from)[LANES * r + lane16()];
  x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
}

/* Our own values, behind their memory. */
INLINE void add_own(const Reduce &t, uint32_t first, bool add, Quads &q) {
  Task kept;
  kept.memory = t.memory;
  EACH_ROW(r) {
    float x[4], rest[4];
    get_row(t.own + first, r, x);
    if (t.memory) {
      float old[4];
      get_row(t.memory + first, r, old);
      EACH_OF_FOUR(c) {
        x[c] = t.beta * old[c] + t.gamma * x[c];
        rest[c] = t.keeps == PITH_GPU_KEEP_LOST ? x[c] - x[c] : x[c];
      }
      settle_quad(kept, first + 64 * r + 4 * lane16(), rest);
    }
    EACH_OF_FOUR(c) { q.v[r][c] = add ? q.v[r][c] + x[c] : x[c]; }
  }
}

template <Group GROUP>
INLINE void add_ranks(const Reduce &t, uint32_t block, Quads &q, const Tables &tables) {
  for (uint32_t p = 0; p < t.ranks; p++) {
    if (p == t.rank) {
      add_own(t, block * QUAD_BUCKET, p > 0, q);
      continue;
    }
    const uint8_t *in = t.received + p * t.stride + (size_t)block * t.result.block_size;
    Head head = head_at<true>(t.result, GROUP, in, 4 * lane16(), QUAD_BUCKET), heads[QUAD_ROWS];
    EACH_ROW(r) {
      heads[r] = head;
      heads[r].at += 64 * r;
      if (has_codes(GROUP)) {
        fetch_four(t.result, GROUP, heads[r]);
      }
    }
    finish_head(t.result, GROUP, head);
    float d[QUAD_ROWS][4];
    EACH_ROW(r) {
      heads[r].a = head.a, heads[r].b = head.b;
      decode_at<USUAL, true>(t.result, GROUP, heads[r], d[r], tables);
    }
    EACH_ROW(r) {
      EACH_OF_FOUR(c) { q.v[r][c] = p ? q.v[r][c] + d[r][c] : d[r][c]; }
    }
  }
}

/* The mean, behind the memory of results. */
INLINE void finish_mean(const Reduce &t, uint32_t first, Quads &q) {
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { q.v[r][c] *= t.factor; }
    if (t.result.memory) {
      float old[4];
      get_row(t.result.memory + first, r, old);
      EACH_OF_FOUR(c) { q.v[r][c] = t.result.beta * old[c] + t.result.gamma * q.v[r][c]; }
    }
  }
}

INLINE bool packs_quads(const Task &t) { return t.kind == PITH_WIRE_Q && (t.bits == 8 || t.bits == 4 || t.bits == 2); }

/* A warp takes a pair of blocks, both of which exist. */
INLINE void reduce_block(const Reduce &t, uint32_t block, float *row, uint8_t *stage, const Tables &tables) {
  const Task &result = t.result;
  uint32_t first = block * QUAD_BUCKET;
  uint8_t *out = result.payload + (size_t)block * result.block_size;
  Quads q;
  switch (group_of<USUAL>(result)) {
    case GROUP_NONE:
      add_ranks<GROUP_NONE>(t, block, q, tables);
      break;
    case GROUP_FP16:
      add_ranks<GROUP_FP16>(t, block, q, tables);
      break;
    case GROUP_BF16:
      add_ranks<GROUP_BF16>(t, block, q, tables);
      break;
    case GROUP_Q:
      add_ranks<GROUP_Q>(t, block, q, tables);
      break;
    default: /* qsgd */
      add_ranks<GROUP_AROUND_ZERO>(t, block, q, tables);
  }
  finish_mean(t, first, q);
  if (packs_quads(result)) {
    encode_quads_q<LANES, true>(result, first, q.v, false, out, settle_rows(result, first, q));
    return;
  }
  EACH_ROW(r) { ((float4 *)row)[LANES * r + lane16()] = make_float4(q.v[r][0], q.v[r][1], q.v[r][2], q.v[r][3]); }
  __syncwarp();
  encode_block<true, false>(RowSource{result, first, QUAD_BUCKET, row}, result, out, stage, tables);
  __syncwarp();
}

__global__ void __launch_bounds__(THREADS, 5) reduce_kernel(const __grid_constant__ Many<Reduce> batch) {
  __shared__ __align__(16) float rows[2 * WARPS][QUAD_BUCKET];
  __shared__ __align__(16) uint8_t stages[2 * WARPS][STAGE];
  __shared__ Tables tables; /* none of these codecs has any */
  uint32_t half = threadIdx.x / LANES;
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Reduce &t = batch.task_of(item);
    uint32_t first = (item - t.begin) * ITEM + threadIdx.x / 32 * PAIR;
    if (first < t.n) {
      reduce_block(t, first / QUAD_BUCKET + half_of_warp(), rows[half], stages[half], tables);
    }
  }
}

cudaError_t pith__reduce_run(const pith_gpu_reduce *tasks, size_t count, cudaStream_t stream) {
  return launch_many(reduce_kernel, THREADS, ITEM, tasks, count, stream);
}

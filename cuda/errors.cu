/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Squared errors for the planner. Uniform levels of all widths are measured in one pass, without encoding: a warp holds
 * 1024 values in registers, which are whole buckets of each size. Any other codec encodes and decodes a sample, and
 * the difference is squared. Sums are made in a fixed order: each block of threads writes its own, and one kernel joins
 * them.
 */
#include "batch.cuh"
#include "statistics_host.h"

#define THREADS 128
#define WARPS (THREADS / 32)
#define ROWS 8             /* of 128 values: lane j has values 4j … 4j + 3 of each */
#define GROUP (ROWS * 128) /* values of a warp at a time */
#define SUMS 32
#define BLOCKS 1024 /* most of a launch */
#define DIFFERENCE_BLOCKS 256

static_assert(SUMS * BLOCKS * sizeof(double) <= PITH_GPU_STATISTICS_SPACE, "the workspace has room for all sums");
static_assert(PITH_GPU_DIFFERENCES * DIFFERENCE_BLOCKS * sizeof(double) <= PITH_GPU_STATISTICS_SPACE, "here as well");

/* ---- Joining ----------------------------------------------------------------------------------------------------- */

/* Over a block of THREADS threads, in a fixed order; the first thread has the result. */
INLINE double sum_of_block(double x) {
  __shared__ double warps[WARPS];
  for (int h = 16; h; h /= 2) {
    x += __shfl_xor_sync(FULL, x, h);
  }
  if ((threadIdx.x & 31) == 0) {
    warps[threadIdx.x / 32] = x;
  }
  __syncthreads();
  for (int w = 1; w < WARPS && threadIdx.x == 0; w++) {
    x += warps[w];
  }
  return x;
}

struct Joined {
  const double *partial; /* `parts` of each sum */
  uint32_t parts;
  double *sum[PITH_GPU_DIFFERENCES]; /* NULL: not wanted */
};

__global__ void __launch_bounds__(THREADS) join_kernel(const __grid_constant__ Joined j) {
  double sum = 0;
  for (uint32_t i = threadIdx.x; i < j.parts; i += THREADS) {
    sum += j.partial[(size_t)blockIdx.x * j.parts + i];
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0 && j.sum[blockIdx.x]) {
    *j.sum[blockIdx.x] = sum;
  }
}

/* ---- Uniform levels ---------------------------------------------------------------------------------------------- */

/* Values of a group, then their places in the range of their bucket, from 0 to 1. */
struct Group {
  float v[ROWS][4];
};

#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define EACH_OF_FOUR(c) _Pragma("unroll") for (int c = 0; c < 4; c++)

/* Those beyond the end are not a number, which neither fminf nor fmaxf takes. */
INLINE void load_group(const float *values, uint32_t left, Group &g) {
  uint32_t lane = threadIdx.x & 31;
  if (left == GROUP) {
    const float4 *p = (const float4 *)values + lane;
    EACH_ROW(r) {
      float4 x = p[32 * r];
      g.v[r][0] = x.x, g.v[r][1] = x.y, g.v[r][2] = x.z, g.v[r][3] = x.w;
    }
  } else {
    EACH_ROW(r) {
      EACH_OF_FOUR(c) {
        uint32_t at = 128 * r + 4 * lane + c;
        g.v[r][c] = at < left ? values[at] : nan_value();
      }
    }
  }
}

/* Squared ranges of buckets of WIDTH rows; values become places. Where there is no range, or no value, they are 0. */
template <int WIDTH>
INLINE void find_places(Group &g, bool is_whole, float (&squares)[ROWS / WIDTH]) {
#pragma unroll
  for (int b = 0; b < ROWS / WIDTH; b++) {
    float lo = float_of(INF_BITS), hi = -lo;
#pragma unroll
    for (int r = b * WIDTH; r < (b + 1) * WIDTH; r++) {
      EACH_OF_FOUR(c) {
        lo = fminf(lo, g.v[r][c]);
        hi = fmaxf(hi, g.v[r][c]);
      }
    }
    for (int h = 16; h; h /= 2) {
      lo = fminf(lo, __shfl_xor_sync(FULL, lo, h));
      hi = fmaxf(hi, __shfl_xor_sync(FULL, hi, h));
    }
    float range = hi - lo;
    bool flat = range < PITH_SCALE_MIN;
    float inverse = flat ? 0.0f : __frcp_rn(range);
    squares[b] = flat ? 0.0f : range * range;
#pragma unroll
    for (int r = b * WIDTH; r < (b + 1) * WIDTH; r++) {
      EACH_OF_FOUR(c) {
        float place = (g.v[r][c] - lo) * inverse;
        g.v[r][c] = is_whole || place == place ? place : 0.0f;
      }
    }
  }
}

/* What a value loses of a step between levels is what its place, in steps, is away from a whole number. */
template <int WIDTH>
INLINE void add_errors(const float *values, uint32_t left, uint32_t wanted, float *sums) {
  Group g;
  float squares[ROWS / WIDTH];
  load_group(values, left, g);
  find_places<WIDTH>(g, left == GROUP, squares);
#pragma unroll
  for (int bits = 1; bits <= 8; bits++) {
    if (!(wanted >> (bits - 1) & 1)) {
      continue;
    }
    const float top = (float)((1 << bits) - 1), step = 1.0f / top;
    float sum = 0.0f;
#pragma unroll
    for (int b = 0; b < ROWS / WIDTH; b++) {
      float part = 0.0f;
#pragma unroll
      for (int r = b * WIDTH; r < (b + 1) * WIDTH; r++) {
        EACH_OF_FOUR(c) {
          float level = __fmaf_rn(g.v[r][c], top, ROUNDER) - ROUNDER, rest = __fmaf_rn(g.v[r][c], top, -level);
          part = __fmaf_rn(rest, rest, part);
        }
      }
      sum = __fmaf_rn(part, squares[b], sum);
    }
    sums[(bits - 1) * THREADS] += sum * (step * step);
  }
}

__global__ void __launch_bounds__(THREADS, 7)
    uniform_kernel(const __grid_constant__ pith_gpu_uniform t, double *partial) {
  __shared__ float sums[SUMS][THREADS];
  __shared__ double parts[WARPS][SUMS];
  uint64_t groups = (t.n + GROUP - 1) / GROUP;
  for (int i = 0; i < SUMS; i++) {
    sums[i][threadIdx.x] = 0.0f;
  }
  for (uint64_t i = (uint64_t)blockIdx.x * WARPS + threadIdx.x / 32; i < groups; i += (uint64_t)gridDim.x * WARPS) {
    const float *values = t.values + i * GROUP;
    uint32_t left = (uint32_t)(t.n - i * GROUP < GROUP ? t.n - i * GROUP : GROUP);
    if (t.wanted & 0xffu) {
      add_errors<1>(values, left, t.wanted, &sums[0][threadIdx.x]);
    }
    if (t.wanted >> 8 & 0xffu) { /* what was read is in the cache */
      add_errors<2>(values, left, t.wanted >> 8, &sums[8][threadIdx.x]);
    }
    if (t.wanted >> 16 & 0xffu) {
      add_errors<4>(values, left, t.wanted >> 16, &sums[16][threadIdx.x]);
    }
    if (t.wanted >> 24) {
      add_errors<8>(values, left, t.wanted >> 24, &sums[24][threadIdx.x]);
    }
  }
  __syncthreads();
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31;
  double sum = 0;
  for (int i = 0; i < 32; i++) { /* in turns, so that each lane has a bank of its own */
    sum += (double)sums[lane][32 * warp + ((i + lane) & 31)];
  }
  parts[warp][lane] = sum;
  __syncthreads();
  for (int w = 1; w < WARPS && warp == 0; w++) {
    sum += parts[w][lane];
  }
  if (warp == 0) {
    partial[(size_t)lane * gridDim.x + blockIdx.x] = sum;
  }
}

cudaError_t pith__uniform_run(const pith_gpu_uniform *task, cudaStream_t stream) {
  uint32_t blocks;
  uint64_t wanted = (task->n + (uint64_t)WARPS * GROUP - 1) / ((uint64_t)WARPS * GROUP);
  double *partial = (double *)task->space;
  cudaError_t error = grid_for(uniform_kernel, THREADS, 0, (uint32_t)(wanted < BLOCKS ? wanted : BLOCKS), &blocks);
  if (error != cudaSuccess || !blocks) {
    return error;
  }
  uniform_kernel<<<blocks, THREADS, 0, stream>>>(*task, partial);
  Joined joined = {partial, blocks, {}};
  for (int i = 0; i < SUMS; i++) {
    joined.sum[i] = task->wanted >> i & 1 ? task->errors + i : nullptr;
  }
  join_kernel<<<SUMS, THREADS, 0, stream>>>(joined);
  return cudaGetLastError();
}

/* ---- Differences ------------------------------------------------------------------------------------------------- */

struct Differences {
  pith_gpu_difference task[PITH_GPU_DIFFERENCES];
};

__global__ void __launch_bounds__(THREADS) difference_kernel(const __grid_constant__ Differences d, double *partial) {
  const pith_gpu_difference &t = d.task[blockIdx.y];
  double sum = 0;
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < t.n; i += (uint64_t)gridDim.x * THREADS) {
    float x = t.b ? t.a[i] - t.b[i] : t.a[i];
    sum = __fma_rn((double)x, (double)x, sum);
  }
  sum = sum_of_block(sum);
  if (threadIdx.x == 0) {
    partial[(size_t)blockIdx.y * gridDim.x + blockIdx.x] = sum;
  }
}

cudaError_t pith__differences_run(const pith_gpu_difference *tasks, size_t count, void *space, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (size_t first = 0; first < count && error == cudaSuccess; first += PITH_GPU_DIFFERENCES) {
    Differences batch;
    Joined joined = {(const double *)space, 0, {}};
    uint32_t some = (uint32_t)(count - first < PITH_GPU_DIFFERENCES ? count - first : PITH_GPU_DIFFERENCES);
    uint64_t most = 0;
    for (uint32_t i = 0; i < some; i++) {
      batch.task[i] = tasks[first + i];
      joined.sum[i] = tasks[first + i].sum;
      most = tasks[first + i].n > most ? tasks[first + i].n : most;
    }
    uint64_t wanted = most / (8 * THREADS) + 1;
    joined.parts = wanted < DIFFERENCE_BLOCKS ? (uint32_t)wanted : DIFFERENCE_BLOCKS;
    difference_kernel<<<dim3(joined.parts, some), THREADS, 0, stream>>>(batch, (double *)space);
    join_kernel<<<some, THREADS, 0, stream>>>(joined);
    error = cudaGetLastError();
  }
  return error;
}

/* ---- Samples, copies, the clock ---------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) sample_kernel(const __grid_constant__ pith_gpu_sample t) {
  for (uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x; i < t.count; i += (uint64_t)gridDim.x * THREADS) {
    uint64_t piece = i / t.piece, from = (t.first + piece * t.stride) * t.piece + i % t.piece;
    t.sample[i] = t.dtype == PITH_GPU_F32   ? ((const float *)t.values)[from]
                  : t.dtype == PITH_GPU_F16 ? f16_to_f32(((const uint16_t *)t.values)[from])
                                            : bf16_to_f32(((const uint16_t *)t.values)[from]);
  }
}

static uint32_t blocks_for(uint64_t n) {
  uint64_t wanted = n / (4 * THREADS) + 1;
  return (uint32_t)(wanted < 4 * BLOCKS ? wanted : 4 * BLOCKS);
}

cudaError_t pith__sample_run(const pith_gpu_sample *task, cudaStream_t stream) {
  sample_kernel<<<blocks_for(task->count), THREADS, 0, stream>>>(*task);
  return cudaGetLastError();
}

__global__ void __launch_bounds__(THREADS) keep_kernel(const double *flag, float *to, const float *from, size_t n) {
  if (*flag == 0) {
    return;
  }
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
    to[i] = from[i];
  }
}

cudaError_t pith__keep_run(const double *flag, float *to, const float *from, size_t n, cudaStream_t stream) {
  keep_kernel<<<blocks_for(n), THREADS, 0, stream>>>(flag, to, from, n);
  return cudaGetLastError();
}

__global__ void stamp_kernel(double *nanoseconds) {
  unsigned long long now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  *nanoseconds = (double)(now & ((1ull << 52) - 1));
}

cudaError_t pith__stamp_run(double *nanoseconds, cudaStream_t stream) {
  stamp_kernel<<<1, 1, 0, stream>>>(nanoseconds);
  return cudaGetLastError();
}

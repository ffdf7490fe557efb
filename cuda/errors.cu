/*
 * Squared errors of block codecs for the planner, all candidates in one pass (two, if rarer codecs are among them): a
 * warp takes a short piece of the tensor and encodes it by every candidate while it is in the cache. The encoders are
 * those of payloads; what they tell a memory about lost values is summed up instead, and the bytes go to a corner of
 * the workspace that is overwritten again and again.
 */
#include "batch.cuh"
#include "encode_block.cuh"
#include "planning_host.h"

#define THREADS 128
#define WARPS (THREADS / 32)
#define PIECE 2048  /* values: of all warps together they fit the second-level cache */
#define BLOCKS 1024 /* most of a launch */

/* A block of the tensor, without a memory, whose losses are added up. */
struct ErrorSource {
  const Task &t;
  uint32_t origin, m;
  float &sum;

  template <int N>
  INLINE void load(float (&v)[STEPS], uint32_t from, float pad) const {
    TensorSource{t, origin, m}.template read<N>(v, from + lane16(), __all_sync(FULL, from + LANES * N <= m), pad);
  }
  INLINE float one(uint32_t i) const { return value_at(t.values, t.dtype, origin + i); }
  INLINE bool keeps() const { return true; }
  INLINE void keep(uint32_t i, float p, float d) const {
    if (i < m) {
      sum += (p - d) * (p - d);
    }
  }
};

/* The error of the blocks that begin in a piece. */
template <bool COMMON>
INLINE double piece_error(const Task &t, uint32_t from, uint32_t to, uint8_t *dump, uint8_t *stage,
                          const Tables &tables) {
  uint32_t block = (from + t.bucket - 1) / t.bucket, end = (to + t.bucket - 1) / t.bucket;
  double error = 0;
  for (; block < end; block += 2) {
    uint32_t mine = block + half_of_warp(), first = mine * t.bucket;
    uint32_t m = mine < end && first < t.n ? least(t.bucket, t.n - first) : 0;
    float sum = 0.0f;
    encode_block<COMMON>(ErrorSource{t, first, m, sum}, t, dump, stage, tables);
    error += (double)sum;
    __syncwarp();
  }
  for (int h = 16; h; h /= 2) {
    error += __shfl_xor_sync(FULL, error, h);
  }
  return error;
}

/* Of the candidates of which is_common() says so; the others are left to the other kernel. */
template <bool COMMON>
__global__ void __launch_bounds__(THREADS, 5)
    errors_kernel(const __grid_constant__ Batch batch, uint8_t *dumps, uint32_t dump_size, double *partial) {
  __shared__ __align__(16) uint8_t stages[2 * WARPS][STAGE];
  __shared__ Tables tables;
  __shared__ double sums[WARPS][PITH_GPU_CANDIDATES];
  fill_tables(tables);
  uint32_t warp = threadIdx.x / 32, lane = threadIdx.x & 31, n = batch.task[0].n, step = gridDim.x * WARPS;
  uint8_t *dump = dumps + (size_t)(2 * WARPS * blockIdx.x + threadIdx.x / LANES) * dump_size;
  for (uint32_t c = lane; c < batch.count; c += 32) {
    sums[warp][c] = 0;
  }
  __syncwarp();
  for (uint32_t piece = blockIdx.x * WARPS + warp; piece < batch.items; piece += step) {
    uint32_t from = piece * PIECE, to = least(n, from + PIECE);
    for (uint32_t c = 0; c < batch.count; c++) {
      if (is_common(batch.task[c]) != COMMON) {
        continue;
      }
      double error = piece_error<COMMON>(batch.task[c], from, to, dump, stages[threadIdx.x / LANES], tables);
      if (lane == 0) {
        sums[warp][c] += error;
      }
    }
  }
  __syncthreads();
  for (uint32_t c = threadIdx.x; c < batch.count; c += THREADS) {
    double sum = 0;
    for (int w = 0; w < WARPS; w++) {
      sum += sums[w][c];
    }
    if (is_common(batch.task[c]) == COMMON) {
      partial[(size_t)c * gridDim.x + blockIdx.x] = sum;
    }
  }
}

/* A block for each candidate; always in the same order. */
__global__ void __launch_bounds__(THREADS) join_errors_kernel(const double *partial, uint32_t count, double *errors) {
  __shared__ double sums[THREADS];
  double sum = 0;
  for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
    sum += partial[(size_t)blockIdx.x * count + i];
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (int h = THREADS / 2; h; h /= 2) {
    if (threadIdx.x < (uint32_t)h) {
      sums[threadIdx.x] += sums[threadIdx.x + h];
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    errors[blockIdx.x] = sums[0];
  }
}

/* ---- The host's side
 * ------------------------------------------------------------------------------------------------------------- */

static size_t round_up(size_t size) { return (size + 255) / 256 * 256; }

static uint32_t dump_size(const pith_gpu_task *tasks, size_t count) {
  uint32_t most = 0;
  for (size_t i = 0; i < count; i++) {
    most = tasks[i].block_size > most ? tasks[i].block_size : most;
  }
  return (most + 15) / 16 * 16;
}

static uint32_t blocks_for(uint32_t n) {
  uint32_t wanted = (n / PIECE + 1 + WARPS - 1) / WARPS;
  return wanted < BLOCKS ? wanted : BLOCKS;
}

size_t pith__errors_space(const pith_gpu_task *tasks, size_t count) {
  uint32_t blocks = count ? blocks_for(tasks[0].n) : 0;
  return round_up(sizeof(double) * count * blocks) + round_up((size_t)2 * WARPS * blocks * dump_size(tasks, count));
}

cudaError_t pith__errors_run(const pith_gpu_task *tasks, size_t count, double *errors, void *space,
                             cudaStream_t stream) {
  Batch batch;
  if (count == 0) {
    return cudaSuccess;
  }
  uint32_t blocks = blocks_for(tasks[0].n);
  size_t common = 0;
  for (size_t i = 0; i < count; i++) {
    batch.task[i] = tasks[i];
    common += is_common(tasks[i]);
  }
  batch.count = (uint32_t)count;
  batch.items = (tasks[0].n + PIECE - 1) / PIECE;
  double *partial = (double *)space;
  uint8_t *dumps = (uint8_t *)space + round_up(sizeof(double) * count * blocks);
  if (common) {
    errors_kernel<true><<<blocks, THREADS, 0, stream>>>(batch, dumps, dump_size(tasks, count), partial);
  }
  if (common < count) {
    errors_kernel<false><<<blocks, THREADS, 0, stream>>>(batch, dumps, dump_size(tasks, count), partial);
  }
  join_errors_kernel<<<(uint32_t)count, THREADS, 0, stream>>>(partial, blocks, errors);
  return cudaGetLastError();
}

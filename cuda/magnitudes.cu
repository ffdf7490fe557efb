/*
 * How the magnitudes of a tensor are spread: a bin for each exponent and seven bits of the fraction, as
 * src/profile/error_table.c has them. From these follow, for every ratio of top-k at once, what travels.
 *
 * Bins are counted in shared memory, those of as many octaves as fit; values outside, which gradients hardly have, in
 * device memory. A second count for each bin adds up the next twelve bits of the fraction, so that its mean is known:
 * integers, whose sums depend on no order. The norm is a sum of its own, in double, and in a fixed order.
 */
#include "batch.cuh"
#include "statistics_host.h"

#define THREADS 1024
#define TOGETHER 8
#define BINS 0x8000u
#define BIN_INF 0x7f80u
#define OCTAVE 128u           /* bins */
#define ABOVE (150u * OCTAVE) /* bins below this one are counted in shared memory, as many as fit: from 2^23 down */
#define LOW_BITS 12
#define LOW_MASK ((1u << LOW_BITS) - 1)
#define CHUNK_LEAST (1u << 14)
#define CHUNK_MOST (1u << 20) /* values of a block of threads: times LOW_MASK they fit 32 bits */
#define NORMS 4096            /* blocks of threads */

/* The workspace. */
struct Bins {
  unsigned long long count[BINS], low[BINS];
  unsigned long long counts_above[BINS]; /* of a bin and all above it */
  double energy_above[BINS], norm[NORMS];
};
static_assert(sizeof(Bins) <= PITH_GPU_STATISTICS_SPACE, "the workspace has room for all bins");

INLINE double warp_sum_double(double x) {
  for (int h = 16; h; h /= 2) {
    x += __shfl_xor_sync(FULL, x, h);
  }
  return x;
}

/* Over all threads of a block, in a fixed order; the first warp has the result. */
INLINE double block_sum_double(double x) {
  __shared__ double warps[32];
  x = warp_sum_double(x);
  if ((threadIdx.x & 31) == 0) {
    warps[threadIdx.x / 32] = x;
  }
  __syncthreads();
  return warp_sum_double(threadIdx.x < 32 ? warps[threadIdx.x] : 0.0);
}

/* ---- Counting ---------------------------------------------------------------------------------------------------- */

struct Counter {
  Bins *bins;
  uint32_t *count, *low, below, held; /* in shared memory: `held` bins from `below` on */
  uint32_t zeros;
  double norm;

  INLINE void take(float x) {
    uint32_t size = magnitude(x), bin = size >> 16, low_bits = size >> (16 - LOW_BITS) & LOW_MASK, at = bin - below;
    norm = __fma_rn((double)x, (double)x, norm);
    if (size == 0) {
      zeros++;
    } else if (at < held) {
      atomicAdd(&count[at], 1u);
      atomicAdd(&low[at], low_bits);
    } else {
      atomicAdd(&bins->count[bin], 1ull);
      atomicAdd(&bins->low[bin], (unsigned long long)low_bits);
    }
  }
};

template <class T>
INLINE float widen(T x, int dtype) {
  return sizeof(T) == 4 ? (float)x : dtype == PITH_GPU_F16 ? f16_to_f32((uint16_t)x) : bf16_to_f32((uint16_t)x);
}

template <class T>
__global__ void __launch_bounds__(THREADS, 1)
    count_kernel(const T *values, int dtype, uint64_t n, uint32_t chunk, uint32_t held, Bins *bins) {
  extern __shared__ uint32_t shared[];
  uint64_t begin = (uint64_t)blockIdx.x * chunk;
  uint32_t here = (uint32_t)(n - begin < chunk ? n - begin : chunk);
  Counter c = {bins, shared, shared + held, ABOVE - held, held, 0, 0.0};
  for (uint32_t i = threadIdx.x; i < 2 * held; i += THREADS) {
    shared[i] = 0;
  }
  __syncthreads();
  for (uint32_t first = threadIdx.x; first < here; first += TOGETHER * THREADS) {
    T x[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      x[j] = first + j * THREADS < here ? values[begin + first + j * THREADS] : T(0);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      if (first + j * THREADS < here) {
        c.take(widen(x[j], dtype));
      }
    }
  }
  uint32_t zeros = warp_sum(c.zeros);
  if ((threadIdx.x & 31) == 0 && zeros) {
    atomicAdd(&bins->count[0], (unsigned long long)zeros);
  }
  double norm = block_sum_double(c.norm); /* all threads have come here: bins are complete */
  if (threadIdx.x == 0) {
    bins->norm[blockIdx.x] = norm;
  }
  for (uint32_t i = threadIdx.x; i < held; i += THREADS) {
    if (c.count[i]) {
      atomicAdd(&bins->count[c.below + i], (unsigned long long)c.count[i]);
      atomicAdd(&bins->low[c.below + i], (unsigned long long)c.low[i]);
    }
  }
}

/* ---- What travels ------------------------------------------------------------------------------------------------ */

/* Σx² of a bin: its mean is known, and values are taken to be spread evenly about it. Those of bf16 stand at its lower
 * end. */
INLINE double energy_of(uint32_t bin, unsigned long long count, unsigned long long low, bool is_bf16) {
  if (count == 0 || bin >= BIN_INF) {
    return 0;
  }
  uint32_t exponent = bin / OCTAVE;
  double number = (double)count, width = ldexp(1.0, (int)(exponent ? exponent : 1) - 127) / OCTAVE;
  double start = (exponent ? OCTAVE : 0) + bin % OCTAVE;
  double mean = is_bf16 ? start : start + ((double)low / number + 0.5) / (LOW_MASK + 1);
  double spread = is_bf16 ? 0 : (1 - 1 / number) / 12;
  return number * (mean * mean + spread) * width * width;
}

/* The k largest: whole bins, and a share of the last. */
INLINE double energy_of_top(const Bins &b, uint64_t k) {
  uint32_t low = 0, high = BINS; /* the first bin with as many or fewer is in (low, high] unless it is 0 */
  if (b.counts_above[0] <= k) {
    return b.energy_above[0];
  }
  while (high - low > 1) {
    uint32_t middle = (low + high) / 2;
    (b.counts_above[middle] <= k ? high : low) = middle;
  }
  uint64_t beyond = high < BINS ? b.counts_above[high] : 0;
  double energy = high < BINS ? b.energy_above[high] : 0.0;
  double part = (double)(k - beyond) / (double)(b.counts_above[low] - beyond);
  return energy + part * (b.energy_above[low] - energy);
}

/* One block of threads, each with 32 neighbouring bins. */
__global__ void __launch_bounds__(THREADS, 1)
    tops_kernel(const __grid_constant__ pith_gpu_magnitudes t, uint32_t norms) {
  enum { EACH = BINS / THREADS };
  __shared__ unsigned long long counts[THREADS];
  __shared__ double energies[THREADS];
  __shared__ double all;
  Bins &b = *(Bins *)t.space;
  uint32_t first = threadIdx.x * EACH;
  unsigned long long count = 0;
  double energy = 0, norm = 0;
  for (uint32_t i = threadIdx.x; i < norms; i += THREADS) {
    norm += b.norm[i];
  }
  norm = block_sum_double(norm);
  if (threadIdx.x == 0) {
    all = norm;
  }
  for (uint32_t bin = first + EACH; bin-- > first;) {
    count += b.count[bin];
    energy += energy_of(bin, b.count[bin], b.low[bin], t.dtype == PITH_GPU_BF16);
    b.counts_above[bin] = count;
    b.energy_above[bin] = energy;
  }
  counts[threadIdx.x] = count;
  energies[threadIdx.x] = energy;
  __syncthreads();
  norm = all;
  for (uint32_t step = 1; step < THREADS; step *= 2) {
    bool has = threadIdx.x + step < THREADS;
    unsigned long long more = has ? counts[threadIdx.x + step] : 0;
    double more_energy = has ? energies[threadIdx.x + step] : 0.0;
    __syncthreads();
    counts[threadIdx.x] += more;
    energies[threadIdx.x] += more_energy;
    __syncthreads();
  }
  unsigned long long beyond = threadIdx.x + 1 < THREADS ? counts[threadIdx.x + 1] : 0;
  double energy_beyond = threadIdx.x + 1 < THREADS ? energies[threadIdx.x + 1] : 0.0;
  double scale = energies[0] > 0 ? norm / energies[0] : 1.0; /* so that all bins together are the norm */
  for (uint32_t bin = first; bin < first + EACH; bin++) {
    b.counts_above[bin] += beyond;
    b.energy_above[bin] = scale * (b.energy_above[bin] + energy_beyond);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    t.numbers[0] = b.counts_above[BIN_INF] == 0 ? 1.0 : 0.0;
    t.numbers[1] = norm;
  }
  for (uint32_t i = threadIdx.x; i < t.tops; i += THREADS) {
    t.numbers[2 + i] = energy_of_top(b, t.top[i]);
  }
}

/* ---- The host's side --------------------------------------------------------------------------------------------- */

template <class T>
static cudaError_t count_values(const pith_gpu_magnitudes &t, uint32_t blocks, uint32_t chunk, uint32_t held,
                                cudaStream_t stream) {
  int shared = (int)(2 * held * sizeof(uint32_t));
  cudaError_t error = cudaFuncSetAttribute(count_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  if (error == cudaSuccess && blocks) {
    count_kernel<T>
        <<<blocks, THREADS, shared, stream>>>((const T *)t.values, t.dtype, t.n, chunk, held, (Bins *)t.space);
    error = cudaGetLastError();
  }
  return error;
}

cudaError_t pith__magnitudes_run(const pith_gpu_magnitudes *task, cudaStream_t stream) {
  int device, processors = 1, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error != cudaSuccess) {
    return error;
  }
  uint64_t each = (task->n + (uint64_t)processors - 1) / (uint64_t)processors;
  uint32_t chunk = each < CHUNK_LEAST ? CHUNK_LEAST : each > CHUNK_MOST ? CHUNK_MOST : (uint32_t)each;
  uint64_t blocks = (task->n + chunk - 1) / chunk;
  uint32_t octaves = ((uint32_t)shared - 1024) / (2 * sizeof(uint32_t) * OCTAVE), most = ABOVE / OCTAVE - 1;
  if (blocks > NORMS || task->tops > PITH_GPU_TOPS) {
    return cudaErrorInvalidValue;
  }
  Bins *bins = (Bins *)task->space;
  error = cudaMemsetAsync(bins, 0, sizeof bins->count + sizeof bins->low, stream);
  uint32_t held = (octaves < most ? octaves : most) * OCTAVE;
  if (error == cudaSuccess) {
    error = task->dtype == PITH_GPU_F32 ? count_values<float>(*task, (uint32_t)blocks, chunk, held, stream)
                                        : count_values<uint16_t>(*task, (uint32_t)blocks, chunk, held, stream);
  }
  if (error == cudaSuccess) {
    tops_kernel<<<1, THREADS, 0, stream>>>(*task, (uint32_t)blocks);
    error = cudaGetLastError();
  }
  return error;
}

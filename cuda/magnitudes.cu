/* SPDX-License-Identifier: Apache-2.0 */
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
#define PER_WARP (BINS * 32 / THREADS)

/* The workspace. */
struct Bins {
  unsigned long long count[BINS], low[BINS];
  unsigned long long counts_above[BINS]; /* of a bin and those above it that are of the same warp … */
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

/* What is above the bins of each warp. */
struct Above {
  unsigned long long count[THREADS / 32 + 1];
  double energy[THREADS / 32 + 1];
};

struct Top {
  const Bins &b;
  const Above &above;
  INLINE unsigned long long count(uint32_t bin) const {
    return bin < BINS ? b.counts_above[bin] + above.count[bin / PER_WARP + 1] : 0;
  }
  INLINE double energy(uint32_t bin) const {
    return bin < BINS ? b.energy_above[bin] + above.energy[bin / PER_WARP + 1] : 0.0;
  }

  /* The k largest: whole bins, and a share of the last. */
  INLINE double of(uint64_t k) const {
    uint32_t low = 0, high = BINS; /* the first bin with as many or fewer is in (low, high] unless it is 0 */
    if (count(0) <= k) {
      return energy(0);
    }
    while (high - low > 1) {
      uint32_t middle = (low + high) / 2;
      (count(middle) <= k ? high : low) = middle;
    }
    double part = (double)(k - count(high)) / (double)(count(low) - count(high));
    return energy(high) + part * (energy(low) - energy(high));
  }
};

/* A warp adds up its bins from the highest down, a row of 32 at a time; rows without values are most. */
INLINE void add_up(Bins &b, uint32_t first, bool is_bf16, unsigned long long *count, double *energy) {
  uint32_t lane = threadIdx.x & 31;
  *count = 0, *energy = 0;
#pragma unroll 4
  for (uint32_t row = PER_WARP; row > 0; row -= 32) {
    uint32_t bin = first + row - 1 - lane; /* the first lane has the highest */
    unsigned long long here = b.count[bin];
    double more = 0;
    if (__any_sync(FULL, here != 0)) {
      more = energy_of(bin, here, b.low[bin], is_bf16);
      for (int h = 1; h < 32; h *= 2) {
        unsigned long long other = __shfl_up_sync(FULL, here, h);
        double other_energy = __shfl_up_sync(FULL, more, h);
        here += lane >= (uint32_t)h ? other : 0;
        more += lane >= (uint32_t)h ? other_energy : 0.0;
      }
    }
    b.counts_above[bin] = *count + here;
    b.energy_above[bin] = *energy + more;
    *count += __shfl_sync(FULL, here, 31);
    *energy += __shfl_sync(FULL, more, 31);
  }
}

/* One block of threads, each warp of which has 1024 neighbouring bins. */
__global__ void __launch_bounds__(THREADS, 1)
    tops_kernel(const __grid_constant__ pith_gpu_magnitudes t, uint32_t norms) {
  __shared__ Above above;
  __shared__ double all;
  Bins &b = *(Bins *)t.space;
  uint32_t warp = threadIdx.x / 32;
  unsigned long long count;
  double energy, norm = 0;
  for (uint32_t i = threadIdx.x; i < norms; i += THREADS) {
    norm += b.norm[i];
  }
  norm = block_sum_double(norm);
  add_up(b, warp * PER_WARP, t.dtype == PITH_GPU_BF16, &count, &energy);
  if ((threadIdx.x & 31) == 0) {
    above.count[warp] = count;
    above.energy[warp] = energy;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    above.count[THREADS / 32] = 0;
    above.energy[THREADS / 32] = 0;
    for (int w = THREADS / 32; w-- > 0;) {
      above.count[w] += above.count[w + 1];
      above.energy[w] += above.energy[w + 1];
    }
    all = above.energy[0] > 0 ? norm / above.energy[0] : 1.0; /* so that all bins together are the norm */
    t.numbers[1] = norm;
  }
  __syncthreads();
  Top top = {b, above};
  if (threadIdx.x == 0) {
    t.numbers[0] = top.count(BIN_INF) == 0 ? 1.0 : 0.0;
  }
  for (uint32_t i = threadIdx.x; i < t.tops; i += THREADS) {
    t.numbers[2 + i] = all * top.of(t.top[i]);
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

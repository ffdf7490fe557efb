/*
 * How the magnitudes of a tensor are spread: a bin for each exponent and seven bits of the fraction, as
 * src/profile/error_table.c has them. From these follow the norm and, for every ratio of top-k at once, what is left
 * out. Bins are counted in shared memory, 128 KiB of it; the energy of a bin is that of values spread evenly over it
 * (of bf16 values, which stand at its lower end, exactly).
 */
#include "device.cuh"
#include "planning_host.h"

#define THREADS 1024
#define BINS PITH_GPU_MAGNITUDES
#define TOGETHER 8

template <class T>
__global__ void __launch_bounds__(THREADS, 1) count_kernel(const T *values, int dtype, size_t n, uint64_t *counts) {
  extern __shared__ uint32_t bins[];
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    bins[i] = 0;
  }
  __syncthreads();
  size_t step = (size_t)gridDim.x * THREADS;
  for (size_t first = (size_t)blockIdx.x * THREADS + threadIdx.x; first < n; first += TOGETHER * step) {
    T x[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      x[j] = first + j * step < n ? values[first + j * step] : T(0);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      float v = sizeof(T) == 4          ? (float)x[j]
                : dtype == PITH_GPU_F16 ? f16_to_f32((uint16_t)x[j])
                                        : bf16_to_f32((uint16_t)x[j]);
      if (first + j * step < n) {
        atomicAdd(&bins[magnitude(v) >> 16], 1u);
      }
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    if (bins[i]) {
      atomicAdd((unsigned long long *)&counts[i], (unsigned long long)bins[i]);
    }
  }
}

/* Devices whose shared memory is smaller. */
__global__ void __launch_bounds__(THREADS)
    count_slowly_kernel(const void *values, int dtype, size_t n, uint64_t *counts) {
  for (size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x; i < n; i += (size_t)gridDim.x * THREADS) {
    float v = value_at(values, dtype, (uint32_t)i);
    atomicAdd((unsigned long long *)&counts[magnitude(v) >> 16], 1ull);
  }
}

__global__ void energy_kernel(int dtype, const uint64_t *counts, double *energies) {
  uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
  double low = float_of(i << 16), high = i < 0x7f7f ? (double)float_of((i + 1) << 16) : low, width = high - low;
  double each = dtype == PITH_GPU_BF16 ? low * low : low * low + low * width + width * width / 3;
  energies[i] = counts[i] ? (double)counts[i] * each : 0.0;
}

template <class T>
static cudaError_t count_values(const void *values, int dtype, size_t n, uint64_t *counts, int processors,
                                cudaStream_t stream) {
  cudaError_t error = cudaFuncSetAttribute(count_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, 4 * BINS);
  if (error == cudaSuccess) {
    count_kernel<T><<<processors, THREADS, 4 * BINS, stream>>>((const T *)values, dtype, n, counts);
    error = cudaGetLastError();
  }
  return error;
}

cudaError_t pith__magnitudes_run(const void *values, int dtype, size_t n, uint64_t *counts, double *energies,
                                 cudaStream_t stream) {
  int device, processors = 1, shared = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  }
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(counts, 0, BINS * sizeof *counts, stream);
  }
  if (error == cudaSuccess && n && shared < 4 * BINS) {
    count_slowly_kernel<<<2 * processors, THREADS, 0, stream>>>(values, dtype, n, counts);
    error = cudaGetLastError();
  } else if (error == cudaSuccess && n) {
    error = dtype == PITH_GPU_F32 ? count_values<float>(values, dtype, n, counts, processors, stream)
                                  : count_values<uint16_t>(values, dtype, n, counts, processors, stream);
  }
  if (error == cudaSuccess) {
    energy_kernel<<<BINS / 256, 256, 0, stream>>>(dtype, counts, energies);
    error = cudaGetLastError();
  }
  return error;
}

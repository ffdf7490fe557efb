/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CUDA as far as the kernels of cuda/ use it, on a CPU: so that a machine without a GPU compares them with the CPU's
 * codecs, and AddressSanitizer sees what they read and write. emulator.cpp runs the threads of a block in turns, each
 * until it waits for others. What it does not show is speed, and races between blocks of threads.
 *
 * translate.sed turns a launch, kernel<<<grid, threads, shared, stream>>>(arguments), into
 * kernel->*pith_launch(grid, threads, shared, stream)(arguments).
 */
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <tuple>

#define __global__ static
#define __device__
#define __host__
#define __constant__
#define __shared__ static
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

/* ---- Types ------------------------------------------------------------------------------------------------------- */

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

struct __align__(8) float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(8) uint2 {
  unsigned x, y;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};

static inline float2 make_float2(float x, float y) { return {x, y}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

/* ---- Threads ----------------------------------------------------------------------------------------------------- */

struct pith_thread {
  dim3 place;
  unsigned lane;
};

extern pith_thread *pith_running; /* the thread whose turn it is */
extern dim3 blockIdx, blockDim, gridDim;

#define threadIdx (pith_running->place)

/* Every lane of the mask puts down a value; when all have, each sees those of all. `there` says whose. */
struct pith_exchanged {
  const uint64_t *value;
  uint32_t there;
};

pith_exchanged pith_exchange(uint32_t mask, uint64_t value);
void *pith_dynamic_shared(void);
unsigned long long pith_nanoseconds(void);
[[noreturn]] void pith_emulation_fails(const char *why);

void __syncthreads(void);
int __syncthreads_or(int predicate);

static inline void __syncwarp(uint32_t mask = 0xffffffffu) { pith_exchange(mask, 0); }
static inline void __threadfence(void) {}
static inline void __threadfence_system(void) {}
static inline void __nanosleep(unsigned) {}

template <class T>
static inline T pith_lane_value(const pith_exchanged &all, unsigned lane) {
  T found;
  if (!(all.there >> lane & 1)) {
    pith_emulation_fails("a lane reads from one that does not take part");
  }
  memcpy((void *)&found, &all.value[lane], sizeof found);
  return found;
}

template <class T>
static inline pith_exchanged pith_exchange_of(uint32_t mask, T value) {
  uint64_t bits = 0;
  static_assert(sizeof value <= sizeof bits, "one word at a time");
  memcpy(&bits, (const void *)&value, sizeof value);
  return pith_exchange(mask, bits);
}

template <class T>
static inline T __shfl_sync(uint32_t mask, T value, int from, int width = 32) {
  unsigned lane = pith_running->lane, first = lane & ~(unsigned)(width - 1);
  return pith_lane_value<T>(pith_exchange_of(mask, value), first | ((unsigned)from & (unsigned)(width - 1)));
}

template <class T>
static inline T __shfl_xor_sync(uint32_t mask, T value, int by, int width = 32) {
  unsigned lane = pith_running->lane, from = lane ^ (unsigned)by,
           end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
  return pith_lane_value<T>(pith_exchange_of(mask, value), from < end ? from : lane);
}

template <class T>
static inline T __shfl_up_sync(uint32_t mask, T value, unsigned by, int width = 32) {
  unsigned lane = pith_running->lane, first = lane & ~(unsigned)(width - 1);
  return pith_lane_value<T>(pith_exchange_of(mask, value), lane >= first + by ? lane - by : lane);
}

template <class T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned by, int width = 32) {
  unsigned lane = pith_running->lane, end = (lane & ~(unsigned)(width - 1)) + (unsigned)width;
  return pith_lane_value<T>(pith_exchange_of(mask, value), lane + by < end ? lane + by : lane);
}

static inline uint32_t __ballot_sync(uint32_t mask, int predicate) {
  pith_exchanged all = pith_exchange(mask, predicate != 0);
  uint32_t found = 0;
  for (unsigned lane = 0; lane < 32; lane++) {
    found |= (all.there >> lane & 1) && all.value[lane] ? 1u << lane : 0;
  }
  return found;
}

static inline int __any_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
static inline int __all_sync(uint32_t mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }

static inline uint32_t __match_any_sync(uint32_t mask, uint32_t value) {
  pith_exchanged all = pith_exchange(mask, value);
  uint32_t found = 0;
  for (unsigned lane = 0; lane < 32; lane++) {
    found |= (all.there >> lane & 1) && all.value[lane] == value ? 1u << lane : 0;
  }
  return found;
}

template <class Join>
static inline uint32_t pith_join_lanes(uint32_t mask, uint32_t value, uint32_t start, Join join) {
  pith_exchanged all = pith_exchange(mask, value);
  for (unsigned lane = 0; lane < 32; lane++) {
    start = all.there >> lane & 1 ? join(start, (uint32_t)all.value[lane]) : start;
  }
  return start;
}

static inline uint32_t __reduce_add_sync(uint32_t mask, uint32_t x) {
  return pith_join_lanes(mask, x, 0, [](uint32_t a, uint32_t b) { return a + b; });
}
static inline uint32_t __reduce_max_sync(uint32_t mask, uint32_t x) {
  return pith_join_lanes(mask, x, 0, [](uint32_t a, uint32_t b) { return a > b ? a : b; });
}
static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t x) {
  return pith_join_lanes(mask, x, 0, [](uint32_t a, uint32_t b) { return a | b; });
}

/* Threads take turns, so that nothing comes between. */
template <class T, class U>
static inline T atomicAdd(T *at, U x) {
  T before = *at;
  *at = (T)(before + (T)x);
  return before;
}
template <class T, class U>
static inline T atomicMax(T *at, U x) {
  T before = *at;
  *at = before > (T)x ? before : (T)x;
  return before;
}
template <class T, class U>
static inline T atomicOr(T *at, U x) {
  T before = *at;
  *at = before | (T)x;
  return before;
}
template <class T, class U>
static inline T atomicExch(T *at, U x) {
  T before = *at;
  *at = (T)x;
  return before;
}

/* ---- Arithmetic -------------------------------------------------------------------------------------------------- */

static inline uint32_t __float_as_uint(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}
static inline float __uint_as_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline int __float2int_rn(float x) {
  return x != x ? 0 : x >= 0x1p31f ? INT32_MAX : x < -0x1p31f ? INT32_MIN : (int)lrintf(x);
}
static inline int __popc(uint32_t x) { return __builtin_popcount(x); }
static inline int __clz(int x) { return x ? __builtin_clz((uint32_t)x) : 32; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) {
  return (uint32_t)((((uint64_t)high << 32 | low) << (by & 31)) >> 32);
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) {
  return (uint32_t)(((uint64_t)high << 32 | low) >> (by & 31));
}
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t selectors) {
  uint64_t bytes = (uint64_t)b << 32 | a;
  uint32_t found = 0;
  for (int i = 0; i < 4; i++) {
    uint32_t selector = selectors >> 4 * i, byte = (uint32_t)(bytes >> 8 * (selector & 7)) & 0xff;
    found |= (selector & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * i;
  }
  return found;
}

template <class T>
static inline void __stcs(T *at, T x) {
  *at = x;
}

/* As CUDA has them: of mixed signs the unsigned one. */
template <class A, class B>
static inline typename std::common_type<A, B>::type max(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return (T)a > (T)b ? (T)a : (T)b;
}
template <class A, class B>
static inline typename std::common_type<A, B>::type min(A a, B b) {
  typedef typename std::common_type<A, B>::type T;
  return (T)a < (T)b ? (T)a : (T)b;
}

/* ---- The runtime ------------------------------------------------------------------------------------------------- */

typedef enum cudaError {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorMemoryAllocation = 2,
  cudaErrorInsufficientDriver = 35,
  cudaErrorNotReady = 600
} cudaError_t;

typedef enum cudaMemcpyKind {
  cudaMemcpyHostToDevice = 1,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
} cudaMemcpyKind;
typedef enum cudaDeviceAttr {
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97
} cudaDeviceAttr;
typedef enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 } cudaFuncAttribute;
enum { cudaEventDisableTiming = 2, cudaStreamNonBlocking = 1, cudaHostAllocPortable = 1 };
typedef struct pith_stream *cudaStream_t;
typedef struct pith_event *cudaEvent_t;
typedef struct cudaDeviceProp {
  char name[256];
  int major, minor;
  size_t totalGlobalMem;
} cudaDeviceProp;

cudaError_t cudaMalloc(void **memory, size_t size);
cudaError_t cudaFree(void *memory);
cudaError_t cudaHostAlloc(void **memory, size_t size, unsigned flags);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
const char *cudaGetErrorString(cudaError_t error);

template <class Kernel>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Kernel, int, size_t) {
  *blocks = 1;
  return cudaSuccess;
}
template <class Kernel>
static inline cudaError_t cudaFuncSetAttribute(Kernel, cudaFuncAttribute, int) {
  return cudaSuccess;
}

/* Everything is done when its call returns. */
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; }
static inline cudaError_t cudaGetDevice(int *device) { return *device = 0, cudaSuccess; }
static inline cudaError_t cudaSetDevice(int device) { return device ? cudaErrorInvalidValue : cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int *version) { return *version = 0, cudaSuccess; }
static inline cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 0, cudaSuccess; }
static inline cudaError_t cudaMemset(void *to, int byte, size_t size) { return memset(to, byte, size), cudaSuccess; }
static inline cudaError_t cudaMemsetAsync(void *to, int byte, size_t size, cudaStream_t) {
  return cudaMemset(to, byte, size);
}
static inline cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind) {
  return memmove(to, from, size), cudaSuccess;
}
static inline cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t size, cudaMemcpyKind kind, cudaStream_t) {
  return cudaMemcpy(to, from, size, kind);
}
static inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  return *event = (cudaEvent_t)1, cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  return *least = *greatest = 0, cudaSuccess;
}
static inline cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) {
  return *stream = (cudaStream_t)1, cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
static inline cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }

/* ---- Launching --------------------------------------------------------------------------------------------------- */

void pith_run_grid(dim3 grid, dim3 block, size_t shared, const std::function<void()> &thread);

struct pith_launch {
  dim3 grid, block;
  size_t shared;
  pith_launch(dim3 grid, dim3 block, size_t shared, cudaStream_t) : grid(grid), block(block), shared(shared) {}

  template <class... Arguments>
  struct With {
    const pith_launch &launch;
    std::tuple<Arguments...> arguments;
  };

  template <class... Arguments>
  With<Arguments...> operator()(Arguments... arguments) const {
    return {*this, {arguments...}};
  }
};

template <class... Parameters, class... Arguments>
static inline void operator->*(void (*kernel)(Parameters...), const pith_launch::With<Arguments...> &with) {
  std::tuple<typename std::decay<Parameters>::type...> arguments(with.arguments);
  pith_run_grid(with.launch.grid, with.launch.block, with.launch.shared, [&] { std::apply(kernel, arguments); });
}

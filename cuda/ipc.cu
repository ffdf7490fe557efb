/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the GPUs of one host: a kernel that waits for flags, one that copies and then sets flags, and one
 * that adds up what came (docs/gpu.md has the protocol).
 *
 * Whoever sets a flag releases all that its stream has done before, at the scope of the system; whoever finds it set
 * acquires that. Ranks may share a GPU, so the kernel that waits is one warp, and leaves the processors to the others.
 */
#include "device.cuh"
#include "ipc_host.h"

#define SPINS 64          /* looks at a flag between two looks at the clock and at the host */
#define PATIENT_NS 100000 /* after which a wait is a long one, and the warp sleeps between looks */
#define SLEEP_NS 500
#define COPY_THREADS 512
#define COPY_BLOCKS 128 /* most */
#define TOGETHER 4      /* words of a thread that are read before the first is written */
#define COMBINE_THREADS 256

INLINE uint32_t acquire(const uint32_t *flag) {
  uint32_t x;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(x) : "l"(flag) : "memory");
  return x;
}

INLINE void release(uint32_t *flag, uint32_t x) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(x) : "memory");
}

INLINE uint64_t clock_ns() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

INLINE bool is_broken(const uint32_t *broken) { return *(const volatile uint32_t *)broken != 0; }

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

/* The first to fail writes the report. */
INLINE void fail(const pith_ipc_wait &w, uint32_t how, int rank) {
  if (atomicExch(w.broken, 1u) == 0) {
    *(volatile int32_t *)&w.report->rank = rank;
    __threadfence_system();
    *(volatile uint32_t *)&w.report->failed = how;
    __threadfence_system();
  }
}

/* A lane for each flag. */
__global__ void __launch_bounds__(32) wait_kernel(const __grid_constant__ pith_ipc_wait w) {
  uint32_t i = threadIdx.x;
  if (i >= w.count || is_broken(w.broken)) {
    return;
  }
  uint64_t begun = clock_ns();
  for (uint32_t spins = 1; acquire(w.flag[i]) == 0; spins++) {
    if (spins % SPINS) {
      continue;
    }
    uint64_t waited = clock_ns() - begun;
    bool aborts = *(volatile uint32_t *)&w.report->abort != 0, late = waited > w.limit;
    if (aborts || late || is_broken(w.broken)) {
      fail(w, aborts ? PITH_IPC_ABORTED : PITH_IPC_LATE, w.rank[i]);
      return;
    }
    if (waited > PATIENT_NS) {
      __nanosleep(SLEEP_NS);
    }
  }
  *(volatile uint32_t *)w.flag[i] = 0;
}

cudaError_t pith__ipc_wait(const pith_ipc_wait *task, cudaStream_t stream) {
  if (task->count) {
    wait_kernel<<<1, 32, 0, stream>>>(*task);
  }
  return cudaGetLastError();
}

/* ---- Copying ----------------------------------------------------------------------------------------------------- */

template <class Word>
INLINE void copy_words(Word *to, const Word *from, uint64_t words, uint64_t first, uint64_t step) {
  uint64_t i = first;
  for (; i + (TOGETHER - 1) * step < words; i += TOGETHER * step) {
    Word x[TOGETHER];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      x[j] = from[i + j * step];
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      to[i + j * step] = x[j];
    }
  }
  for (; i < words; i += step) {
    to[i] = from[i];
  }
}

/* In the widest words that both ends are aligned for, and the last bytes one by one. */
INLINE void copy_piece(const pith_ipc_piece &p, uint64_t first, uint64_t step) {
  uintptr_t both = (uintptr_t)p.from | (uintptr_t)p.to;
  uint64_t width = both % 16 == 0 ? 16 : both % 8 == 0 ? 8 : both % 4 == 0 ? 4 : 1, whole = p.size / width * width;
  switch (width) {
    case 16:
      copy_words((uint4 *)p.to, (const uint4 *)p.from, p.size / 16, first, step);
      break;
    case 8:
      copy_words((uint2 *)p.to, (const uint2 *)p.from, p.size / 8, first, step);
      break;
    case 4:
      copy_words((uint32_t *)p.to, (const uint32_t *)p.from, p.size / 4, first, step);
      break;
    default:
      copy_words((uint8_t *)p.to, (const uint8_t *)p.from, p.size, first, step);
  }
  copy_words((uint8_t *)p.to + whole, (const uint8_t *)p.from + whole, p.size - whole, first, step);
}

INLINE void spoil_piece(const pith_ipc_piece &p, uint64_t first, uint64_t step) {
  for (uint64_t i = first; i < p.size; i += step) {
    ((uint8_t *)p.to)[i] = 0xff;
  }
}

/* All blocks take their share of each piece. The last to end sets the flags: by then all that was copied is visible to
 * whoever sees a flag, and all that was read may be overwritten. */
__global__ void __launch_bounds__(COPY_THREADS) copy_kernel(const __grid_constant__ pith_ipc_copy c) {
  uint64_t first = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x, step = (uint64_t)gridDim.x * blockDim.x;
  bool broken = is_broken(c.broken);
  for (uint32_t i = 0; i < c.pieces && (!broken || c.spoils); i++) {
    if (broken) {
      spoil_piece(c.piece[i], first, step);
    } else {
      copy_piece(c.piece[i], first, step);
    }
  }
  if (c.flags == 0) {
    return;
  }
  __threadfence_system();
  __syncthreads();
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    is_last = atomicAdd(c.blocks, 1u) == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) {
    return;
  }
  __threadfence_system();
  if (threadIdx.x == 0) {
    *c.blocks = 0;
  }
  if (threadIdx.x < c.flags && !broken) {
    release(c.flag[threadIdx.x], 1);
  }
}

cudaError_t pith__ipc_copy(const pith_ipc_copy *task, cudaStream_t stream) {
  uint64_t most = 0;
  for (uint32_t i = 0; i < task->pieces; i++) {
    most = task->piece[i].size > most ? task->piece[i].size : most;
  }
  uint64_t blocks = most / (COPY_THREADS * TOGETHER * 16) + 1;
  copy_kernel<<<(unsigned)(blocks < COPY_BLOCKS ? blocks : COPY_BLOCKS), COPY_THREADS, 0, stream>>>(*task);
  return cudaGetLastError();
}

/* ---- Adding up --------------------------------------------------------------------------------------------------- */

/* The bits of pith__reduce_many() in src/collective/reduce.c: means of f32 by a factor, of f64 by a division. */
__global__ void __launch_bounds__(COMBINE_THREADS) combine_kernel(const __grid_constant__ pith_ipc_combine c) {
  bool broken = is_broken(c.broken);
  float factor = 1.0f / (float)c.count;
  for (uint64_t i = (uint64_t)blockIdx.x * COMBINE_THREADS + threadIdx.x; i < c.n;
       i += (uint64_t)gridDim.x * COMBINE_THREADS) {
    if (c.is_f64) {
      double sum = ((const double *)c.from[0])[i];
      for (uint32_t p = 1; p < c.count; p++) {
        sum += ((const double *)c.from[p])[i];
      }
      sum = c.is_mean ? sum / (double)c.count : sum;
      ((double *)c.to)[i] = broken ? (double)nan_value() : sum;
    } else {
      float sum = ((const float *)c.from[0])[i];
      for (uint32_t p = 1; p < c.count; p++) {
        sum += ((const float *)c.from[p])[i];
      }
      sum = c.is_mean ? sum * factor : sum;
      ((float *)c.to)[i] = broken ? nan_value() : sum;
    }
  }
}

cudaError_t pith__ipc_combine(const pith_ipc_combine *task, cudaStream_t stream) {
  uint64_t blocks = (task->n + COMBINE_THREADS - 1) / COMBINE_THREADS;
  if (blocks) {
    combine_kernel<<<(unsigned)(blocks < 1024 ? blocks : 1024), COMBINE_THREADS, 0, stream>>>(*task);
  }
  return cudaGetLastError();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories of whole-tensor codecs: the tensor is compensated by what was kept, in place, before anything is selected,
 * as src/memory/memory.c does it; what is sent is taken out where it is written or drawn (take_out). Values that are
 * not finite travel but never stay.
 */
#include "sparse.cuh"

#define THREADS 512
#define HALVES (THREADS / LANES)

/* The squares of a tile, in 16 lanes; in double and in order where they overflow. */
INLINE double tile_squares(const Section &s, uint32_t first) {
  uint32_t end = least(s.n, first + MEMORY_TILE);
  float sum = 0.0f;
  for (uint32_t i = first + lane16(); i < end; i += LANES) {
    float x = value_at(s.given, s.type, i);
    sum += x * x;
  }
  sum = lane_sum(sum);
  double total = sum;
  if (!is_finite(sum)) {
    total = 0;
    for (uint32_t i = first; i < end; i++) {
      double x = value_at(s.given, s.type, i);
      total += x * x;
    }
  }
  return total;
}

__global__ void __launch_bounds__(THREADS) norm_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  uint32_t tiles = (s.n + MEMORY_TILE - 1) / MEMORY_TILE, step = share.parts * HALVES;
  if (!(s.clip > 0)) {
    return;
  }
  for (uint32_t pair = share.part * HALVES + threadIdx.x / 32 * 2; pair < tiles; pair += step) {
    uint32_t tile = pair + half_of_warp();
    double squares = tile_squares(s, tile < tiles ? tile * MEMORY_TILE : s.n);
    if (tile < tiles && lane16() == 0) {
      s.squares[tile] = squares;
    }
  }
}

/* One after another, as on the CPU; a warp reads ahead for its first lane. */
INLINE double sum_in_order(const double *x, uint32_t n) {
  double sum = 0;
  for (uint32_t first = 0; first < n; first += 32) {
    double mine = first + threadIdx.x < n ? x[first + threadIdx.x] : 0.0;
    uint32_t m = least(32, n - first);
    for (uint32_t i = 0; i < m; i++) {
      sum += __shfl_sync(FULL, mine, (int)i);
    }
  }
  return sum;
}

INLINE float clipped_gamma(const Section &s) {
  if (!(s.clip > 0)) {
    return s.gamma;
  }
  double norm = sqrt(sum_in_order(s.squares, (s.n + MEMORY_TILE - 1) / MEMORY_TILE)) * fabs((double)s.gamma);
  bool clip = norm > s.clip && norm < INFINITY;
  return s.gamma * (clip ? (float)(s.clip / norm) : 1.0f);
}

/* A clear start, by one block. */
__global__ void __launch_bounds__(THREADS) begin_kernel(const __grid_constant__ Sections batch) {
  const Section &s = share_of(batch).s;
  uint32_t *words = (uint32_t *)s.control;
  for (uint32_t i = threadIdx.x; i < sizeof(Control) / 4; i += THREADS) {
    words[i] = 0;
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    float gamma = clipped_gamma(s);
    if (threadIdx.x == 0) {
      s.control->gamma = gamma;
      s.control->low = s.control->high = (int32_t)s.cut - 1;
    }
  }
}

INLINE void compensate_one(const Section &s, uint32_t i, float gamma) {
  bool second = s.keeps == PITH_GPU_KEEP_UNSENT;
  float u = second ? s.momentum[i] : 0.0f;
  s.memory[i] = compensated(s, value_at(s.given, s.type, i), s.memory[i], u, gamma, &u);
  if (second) {
    s.momentum[i] = u;
  }
}

INLINE float4 compensate_four(float4 e, float4 g, float beta, float gamma) {
  return make_float4(beta * e.x + gamma * g.x, beta * e.y + gamma * g.y, beta * e.z + gamma * g.z,
                     beta * e.w + gamma * g.w);
}

INLINE bool fours_fit(const Section &s) {
  uintptr_t all = (uintptr_t)s.given | (uintptr_t)s.memory | (uintptr_t)s.momentum;
  return s.type == PITH_GPU_F32 && (all & 15) == 0;
}

/* Only the first section of a tensor: then all of it has been compensated. */
__global__ void __launch_bounds__(THREADS) compensate_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  if (!s.memory || s.before || s.fused) {
    return;
  }
  float gamma = s.control->gamma;
  size_t step = (size_t)share.parts * THREADS, first = (size_t)share.part * THREADS + threadIdx.x;
  size_t fours = fours_fit(s) ? s.n / 4 : 0;
  float4 *memory = (float4 *)s.memory, *momentum = (float4 *)s.momentum;
  const float4 *given = (const float4 *)s.given;
  for (size_t i = first; i < fours; i += step) {
    float4 g = given[i], e = memory[i];
    if (s.keeps == PITH_GPU_KEEP_UNSENT) {
      float4 u = compensate_four(momentum[i], g, s.beta, gamma);
      momentum[i] = u;
      memory[i] = make_float4(e.x + u.x, e.y + u.y, e.z + u.z, e.w + u.w);
    } else {
      memory[i] = compensate_four(e, g, s.beta, gamma);
    }
  }
  for (size_t i = 4 * fours + first; i < s.n; i += step) {
    compensate_one(s, (uint32_t)i, gamma);
  }
}

__global__ void __launch_bounds__(THREADS) forget_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  if (!s.memory || !s.control->not_finite) {
    return;
  }
  for (size_t i = (size_t)share.part * THREADS + threadIdx.x; i < s.n; i += (size_t)share.parts * THREADS) {
    if (!is_finite(s.memory[i])) {
      s.memory[i] = 0.0f;
    }
    if (s.momentum && !is_finite(s.momentum[i])) {
      s.momentum[i] = 0.0f;
    }
  }
}

cudaError_t launch_norm(const Sections &batch, cudaStream_t stream) {
  norm_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_begin(const Sections &batch, cudaStream_t stream) {
  begin_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_compensate(const Sections &batch, cudaStream_t stream) {
  compensate_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_forget(const Sections &batch, cudaStream_t stream) {
  forget_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

/* SPDX-License-Identifier: Apache-2.0 */
/* The products of low rank, both ways, and decoding. See lowrank.cuh. */
#include "lowrank.cuh"

INLINE uint32_t slice_end(uint32_t first, uint32_t slice, uint32_t all) {
  return all - first < slice ? all : first + slice;
}

/* Types are parameters, so that nothing stands between the loads of several values. */
template <class T>
INLINE float widened(T x, int dtype) {
  return sizeof(T) == 4 ? (float)x : dtype == PITH_GPU_F16 ? f16_to_f32((uint16_t)x) : bf16_to_f32((uint16_t)x);
}

#define FEW 4 /* columns of P and Q, for which there are kernels that take fewer registers; others hold eight */
#define MORE 8

/* V neighbours, read and written together. */
template <class T, int V>
struct __align__(sizeof(T) * V) Pack {
  T x[V];
};

/* Whether rows can be read in packs of four; whole rows of them, that is: their ends go one by one. */
INLINE bool packs_fit(const Factor &f) {
  uintptr_t narrow = (uintptr_t)f.m | (uintptr_t)f.given | (uintptr_t)f.dst,
            wide = (uintptr_t)f.memory | (uintptr_t)f.q;
  bool floats = f.m_type == PITH_GPU_F32 && f.type == PITH_GPU_F32;
  return f.cols % 4 == 0 && (narrow & (floats ? 15 : 7)) == 0 && (wide & 15) == 0;
}

/* ---- P = MQ: a warp takes some rows and K columns of Q ----------------------------------------------------------- */

/* WHOLE: all values of the rows exist. T is the type of M, or where the tensor is compensated that of the tensor. */
template <class T, int V, int K, bool WHOLE, bool COMPENSATES>
INLINE void multiply(const Factor &f, uint32_t row, uint32_t slice, uint32_t k0) {
  uint32_t lane = threadIdx.x & 31, from = slice * f.p_slice, to = slice_end(from, f.p_slice, f.cols);
  size_t start = (size_t)row * f.cols, left = start < f.n ? f.n - start : 0; /* values from this row on */
  const T *m = (const T *)(COMPENSATES ? f.given : f.m) + start;
  float *memory = f.memory + start;
  const float *q = f.q + (size_t)k0 * f.cols;
  const int type = COMPENSATES ? f.type : f.m_type;
  uint32_t columns = least(K, f.rank - k0);
  float sum[P_ROWS][K] = {};
#pragma unroll(V == 1 ? 4 : 1)
  for (uint32_t col = from + V * lane; col < to; col += 32 * V) {
    Pack<T, V> x[P_ROWS];
    Pack<float, V> e[P_ROWS], y[K];
#pragma unroll
    for (int r = 0; r < P_ROWS; r++) {
      size_t at = (size_t)r * f.cols + col;
      bool there = WHOLE || at < left;
      x[r] = there ? *(const Pack<T, V> *)(m + at) : Pack<T, V>{};
      if (COMPENSATES) {
        e[r] = there ? *(const Pack<float, V> *)(memory + at) : Pack<float, V>{};
      }
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
      y[k] = k < columns ? *(const Pack<float, V> *)(q + (size_t)k * f.cols + col) : Pack<float, V>{};
    }
#pragma unroll
    for (int r = 0; r < P_ROWS; r++) {
      size_t at = (size_t)r * f.cols + col;
#pragma unroll
      for (int j = 0; j < V; j++) {
        float value = widened(x[r].x[j], type);
        if (COMPENSATES) {
          value = e[r].x[j] = f.beta * e[r].x[j] + f.gamma * value;
        }
#pragma unroll
        for (int k = 0; k < K; k++) {
          sum[r][k] = __fmaf_rn(value, y[k].x[j], sum[r][k]);
        }
      }
      if (COMPENSATES && (WHOLE || at < left)) {
        *(Pack<float, V> *)(memory + at) = e[r];
      }
    }
  }
  float *out = f.p_slices == 1 ? f.p : f.partial + (size_t)slice * f.rank * f.rows;
#pragma unroll
  for (int r = 0; r < P_ROWS; r++) {
#pragma unroll
    for (int k = 0; k < K; k++) {
      float x = sum[r][k];
      for (int h = 16; h; h /= 2) {
        x += __shfl_xor_sync(FULL, x, h);
      }
      if (lane == 0 && row + r < f.rows && k < columns) {
        out[(size_t)(k0 + k) * f.rows + row + r] = x;
      }
    }
  }
}

template <class T, int K, bool COMPENSATES>
INLINE void multiply_rows(const Factor &f, uint32_t row, uint32_t slice, uint32_t k0, bool packs) {
  if (packs && (size_t)(row + P_ROWS) * f.cols <= f.n) {
    multiply<T, 4, K, true, COMPENSATES>(f, row, slice, k0);
  } else {
    multiply<T, 1, K, false, COMPENSATES>(f, row, slice, k0);
  }
}

/* Columns beyond the first K find the tensor compensated. */
template <class T, int K, bool COMPENSATES>
INLINE void multiply_all(const Factor &f, uint32_t part, uint32_t parts) {
  uint32_t groups = (f.rows + P_ROWS - 1) / P_ROWS, items = p_items(f);
  bool packs = packs_fit(f);
  for (uint32_t item = part * P_WARPS + threadIdx.x / 32; item < items; item += parts * P_WARPS) {
    uint32_t row = item % groups * P_ROWS, slice = item / groups;
    multiply_rows<T, K, COMPENSATES>(f, row, slice, 0, packs);
    for (uint32_t k = K; k < f.rank; k += K) {
      if (COMPENSATES) {
        __syncwarp();
        multiply_rows<float, K, false>(f, row, slice, k, packs);
      } else {
        multiply_rows<T, K, false>(f, row, slice, k, packs);
      }
    }
  }
}

/* Kernels for K columns at a time: more take more registers. */
template <int K>
__global__ void __launch_bounds__(32 * P_WARPS, K == FEW ? 6 : 4)
    multiply_kernel(const __grid_constant__ Factors batch) {
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  if (f.memory) {
    f.type == PITH_GPU_F32 ? multiply_all<float, K, true>(f, part, parts)
                           : multiply_all<uint16_t, K, true>(f, part, parts);
  } else {
    f.type == PITH_GPU_F32 ? multiply_all<float, K, false>(f, part, parts)
                           : multiply_all<uint16_t, K, false>(f, part, parts);
  }
}

/* ---- Q = MᵀP: a thread takes four columns of M, and rows of a slice ---------------------------------------------- */

/* Four columns: neighbours, or where single values may be missing as far apart as there are threads. */
template <class T, bool WHOLE>
INLINE void four_of_row(const T *row, uint32_t col, size_t left, uint32_t cols, T (&x)[4]) {
  Pack<T, 4> pack = {};
  if (WHOLE) {
    pack = *(const Pack<T, 4> *)(row + col);
  }
#pragma unroll
  for (int j = 0; j < 4; j++) {
    uint32_t c = col + j * Q_THREADS;
    x[j] = WHOLE ? pack.x[j] : c < cols && c < left ? row[c] : T(0);
  }
}

template <class T, int K, bool WHOLE>
INLINE void add_rows(const Factor &f, uint32_t first, uint32_t rows, uint32_t col, const float (*p)[K],
                     float (&sum)[4][K]) {
  size_t start = (size_t)first * f.cols, left = start < f.n ? f.n - start : 0;
  const T *m = (const T *)f.m + start;
#pragma unroll 8
  for (uint32_t r = 0; r < rows; r++) {
    size_t at = (size_t)r * f.cols;
    T x[4];
    four_of_row<T, WHOLE>(m + at, col, left > at ? left - at : 0, f.cols, x);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float value = widened(x[j], f.m_type);
#pragma unroll
      for (int k = 0; k < K; k++) {
        sum[j][k] = __fmaf_rn(value, p[r][k], sum[j][k]);
      }
    }
  }
}

template <class T, int K>
INLINE void multiply_transposed(const Factor &f, uint32_t block, uint32_t slice, uint32_t k0, float (*p)[K]) {
  uint32_t from = slice * f.q_slice, to = slice_end(from, f.q_slice, f.rows), columns = least(K, f.rank - k0);
  bool full = packs_fit(f) && (block + 1) * Q_COLS <= f.cols && (size_t)to * f.cols <= f.n;
  uint32_t step = full ? 1 : Q_THREADS, col = block * Q_COLS + threadIdx.x * (full ? 4 : 1);
  float sum[4][K] = {};
  for (uint32_t first = from; first < to; first += Q_ROWS_MOST) {
    uint32_t rows = slice_end(first, Q_ROWS_MOST, to) - first;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * K; i += Q_THREADS) {
      uint32_t k = i / rows, r = i % rows;
      p[r][k] = k < columns ? f.p[(size_t)(k0 + k) * f.rows + first + r] : 0.0f;
    }
    __syncthreads();
    if (full) {
      add_rows<T, K, true>(f, first, rows, col, p, sum);
    } else {
      add_rows<T, K, false>(f, first, rows, col, p, sum);
    }
  }
  float *out = f.q_slices == 1 ? f.q : f.partial + (size_t)slice * f.rank * f.cols;
#pragma unroll
  for (int j = 0; j < 4; j++) {
#pragma unroll
    for (int k = 0; k < K; k++) {
      if (k < columns && col + j * step < f.cols) {
        out[(size_t)(k0 + k) * f.cols + col + j * step] = sum[j][k];
      }
    }
  }
}

template <int K>
__global__ void __launch_bounds__(Q_THREADS, K == FEW ? 7 : 5)
    multiply_transposed_kernel(const __grid_constant__ Factors batch) {
  __shared__ __align__(16) float p[Q_ROWS_MOST][K];
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  uint32_t blocks = (f.cols + Q_COLS - 1) / Q_COLS, items = q_items(f);
  for (uint32_t item = part; item < items; item += parts) {
    for (uint32_t k = 0; k < f.rank; k += K) {
      if (f.m_type == PITH_GPU_F32) {
        multiply_transposed<float, K>(f, item % blocks, item / blocks, k, p);
      } else {
        multiply_transposed<uint16_t, K>(f, item % blocks, item / blocks, k, p);
      }
    }
  }
}

/* ---- Slices, in order -------------------------------------------------------------------------------------------- */

template <bool P>
__global__ void __launch_bounds__(256) add_slices_kernel(const __grid_constant__ Factors batch) {
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  uint32_t slices = P ? f.p_slices : f.q_slices;
  size_t count = (size_t)f.rank * (P ? f.rows : f.cols);
  float *out = P ? f.p : f.q;
  for (size_t i = (size_t)part * 256 + threadIdx.x; slices > 1 && i < count; i += (size_t)parts * 256) {
    float sum = 0.0f;
#pragma unroll 8
    for (uint32_t s = 0; s < slices; s++) {
      sum += f.partial[s * count + i];
    }
    out[i] = sum;
  }
}

/* ---- PQᵀ: the CPU's bits ----------------------------------------------------------------------------------------- */

enum Expand { EXPAND_SET, EXPAND_ADD, EXPAND_OUT };

#define EXPAND_TOGETHER 4 /* rows that are read before the first is written */

/* What becomes of a value x in whose place d is decoded. */
template <int HOW, class T>
INLINE T expanded(const Factor &f, T x, float d) {
  if (HOW == EXPAND_OUT) {
    float rest = (float)x - d;
    return (T)(is_finite(rest) ? rest : 0.0f);
  }
  float y = HOW == EXPAND_ADD ? widened(x, f.type) + d : d;
  return sizeof(T) == 4 ? (T)y : (T)(f.type == PITH_GPU_F16 ? f32_to_f16(y) : f32_to_bf16(y));
}

/* Some rows of V neighbouring columns. Sums run in the order of columns of P and Q, nothing fused; HELD of these are in
 * registers, the others come from the cache. Zeros are added for those that do not exist, which changes nothing: a sum
 * that begins with 0 is never −0. WHOLE: all values exist. */
template <int HOW, class T, int V, int HELD, bool WHOLE>
INLINE void expand_rows(const Factor &f, T *dst, uint32_t col, uint32_t row0, uint32_t rows, const float (*p)[HELD]) {
  Pack<float, V> q[HELD];
#pragma unroll
  for (int k = 0; k < HELD; k++) {
    q[k] = k < f.rank ? *(const Pack<float, V> *)(f.q + (size_t)k * f.cols + col) : Pack<float, V>{};
  }
#pragma unroll 1
  for (uint32_t r0 = 0; r0 < rows; r0 += EXPAND_TOGETHER) {
    Pack<T, V> x[EXPAND_TOGETHER];
    size_t at = (size_t)(row0 + r0) * f.cols + col;
#pragma unroll
    for (int j = 0; j < EXPAND_TOGETHER; j++) {
      bool there = HOW != EXPAND_SET && (WHOLE || (r0 + j < rows && at + (size_t)j * f.cols < f.n));
      x[j] = there ? *(const Pack<T, V> *)(dst + at + (size_t)j * f.cols) : Pack<T, V>{};
    }
    float sum[EXPAND_TOGETHER][V] = {};
#pragma unroll
    for (int k = 0; k < HELD; k++) {
#pragma unroll
      for (int j = 0; j < EXPAND_TOGETHER; j++) {
#pragma unroll
        for (int c = 0; c < V; c++) {
          sum[j][c] = sum[j][c] + p[r0 + j][k] * q[k].x[c];
        }
      }
    }
    for (uint32_t k = HELD; HELD > FEW && k < f.rank; k++) {
      Pack<float, V> y = *(const Pack<float, V> *)(f.q + (size_t)k * f.cols + col);
#pragma unroll
      for (int j = 0; j < EXPAND_TOGETHER; j++) {
        float x = f.p[(size_t)k * f.rows + least(row0 + r0 + j, f.rows - 1)];
#pragma unroll
        for (int c = 0; c < V; c++) {
          sum[j][c] = sum[j][c] + x * y.x[c];
        }
      }
    }
#pragma unroll
    for (int j = 0; j < EXPAND_TOGETHER; j++) {
#pragma unroll
      for (int c = 0; c < V; c++) {
        x[j].x[c] = expanded<HOW>(f, x[j].x[c], sum[j][c]);
      }
      if (WHOLE || (r0 + j < rows && at + (size_t)j * f.cols < f.n)) {
        *(Pack<T, V> *)(dst + at + (size_t)j * f.cols) = x[j];
      }
    }
  }
}

template <int HOW, class T, int HELD>
INLINE void expand_tile(const Factor &f, T *dst, uint32_t col0, uint32_t row0, float (*p)[HELD]) {
  uint32_t rows = least(EXPAND_ROWS, f.rows - row0);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < rows * HELD; i += EXPAND_THREADS) {
    uint32_t k = i / rows, r = i % rows;
    p[r][k] = k < f.rank ? f.p[(size_t)k * f.rows + row0 + r] : 0.0f;
  }
  __syncthreads();
  bool full = rows == EXPAND_ROWS && col0 + EXPAND_COLS <= f.cols && (size_t)(row0 + rows) * f.cols <= f.n;
  if (full && packs_fit(f)) {
    expand_rows<HOW, T, 4, HELD, true>(f, dst, col0 + 4 * threadIdx.x, row0, rows, p);
    return;
  }
#pragma unroll 1
  for (uint32_t col = col0 + threadIdx.x; col < least(f.cols, col0 + EXPAND_COLS); col += EXPAND_THREADS) {
    expand_rows<HOW, T, 1, HELD, false>(f, dst, col, row0, rows, p);
  }
}

template <int HOW, int HELD>
__global__ void __launch_bounds__(EXPAND_THREADS, HELD == FEW ? 8 : 5)
    expand_kernel(const __grid_constant__ Factors batch) {
  __shared__ __align__(16) float p[EXPAND_ROWS][HELD];
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  if (f.dense || (HOW == EXPAND_OUT && (!f.memory || f.keeps != PITH_GPU_KEEP_LOST))) {
    return;
  }
  uint32_t across = (f.cols + EXPAND_COLS - 1) / EXPAND_COLS, items = expand_items(f);
  for (uint32_t item = part; item < items; item += parts) {
    uint32_t col = item % across * EXPAND_COLS, row = item / across * EXPAND_ROWS;
    if (HOW == EXPAND_OUT) {
      expand_tile<HOW, float, HELD>(f, f.memory, col, row, p);
    } else if (f.type == PITH_GPU_F32) {
      expand_tile<HOW, float, HELD>(f, (float *)f.dst, col, row, p);
    } else {
      expand_tile<HOW, uint16_t, HELD>(f, (uint16_t *)f.dst, col, row, p);
    }
  }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static bool are_few(const Factors &batch) {
  bool few = true;
  for (uint32_t i = 0; i < batch.count; i++) {
    few &= batch.factor[i].rank <= FEW;
  }
  return few;
}

static cudaError_t launch(void (*few)(const Factors), void (*many)(const Factors), int threads, const Factors &batch,
                          cudaStream_t stream) {
  (are_few(batch) ? few : many)<<<batch.blocks, threads, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_multiply(const Factors &batch, cudaStream_t stream) {
  return launch(multiply_kernel<FEW>, multiply_kernel<MORE>, 32 * P_WARPS, batch, stream);
}

cudaError_t launch_multiply_transposed(const Factors &batch, cudaStream_t stream) {
  return launch(multiply_transposed_kernel<FEW>, multiply_transposed_kernel<MORE>, Q_THREADS, batch, stream);
}

cudaError_t launch_add_slices_p(const Factors &batch, cudaStream_t stream) {
  add_slices_kernel<true><<<batch.blocks, 256, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_add_slices_q(const Factors &batch, cudaStream_t stream) {
  add_slices_kernel<false><<<batch.blocks, 256, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_expand_set(const Factors &batch, cudaStream_t stream) {
  return launch(expand_kernel<EXPAND_SET, FEW>, expand_kernel<EXPAND_SET, MORE>, EXPAND_THREADS, batch, stream);
}

cudaError_t launch_expand_add(const Factors &batch, cudaStream_t stream) {
  return launch(expand_kernel<EXPAND_ADD, FEW>, expand_kernel<EXPAND_ADD, MORE>, EXPAND_THREADS, batch, stream);
}

cudaError_t launch_expand_out(const Factors &batch, cudaStream_t stream) {
  return launch(expand_kernel<EXPAND_OUT, FEW>, expand_kernel<EXPAND_OUT, MORE>, EXPAND_THREADS, batch, stream);
}

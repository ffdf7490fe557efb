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

/* ---- P = MQ: a warp takes some rows and K columns of Q
 * ----------------------------------------------------------------- */

template <class T, int ROWS, int K>
INLINE void multiply(const Factor &f, uint32_t row, uint32_t slice, uint32_t k0) {
  uint32_t lane = threadIdx.x & 31, from = slice * f.p_slice, to = slice_end(from, f.p_slice, f.cols);
  const T *m = (const T *)f.m + (size_t)row * f.cols;
  const float *q = f.q + (size_t)k0 * f.cols;
  size_t left = (size_t)row * f.cols < f.n ? f.n - (size_t)row * f.cols : 0; /* values from this row on */
  uint32_t columns = least(K, f.rank - k0);
  bool full = (size_t)ROWS * f.cols <= left;
  float sum[ROWS][K] = {};
#pragma unroll 2
  for (uint32_t col = from + lane; col < to; col += 32) {
    T x[ROWS];
    float y[K];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      size_t at = (size_t)r * f.cols + col;
      x[r] = full || at < left ? m[at] : T(0);
    }
#pragma unroll
    for (int k = 0; k < K; k++) {
      y[k] = k < columns ? q[(size_t)k * f.cols + col] : 0.0f;
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      float value = widened(x[r], f.m_type);
#pragma unroll
      for (int k = 0; k < K; k++) {
        sum[r][k] = __fmaf_rn(value, y[k], sum[r][k]);
      }
    }
  }
  float *out = f.p_slices == 1 ? f.p : f.partial + (size_t)slice * f.rank * f.rows;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
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

/* Rows of a warp: what registers hold of rows times columns. */
template <class T, int ROWS, int K>
INLINE void multiply_all(const Factor &f, uint32_t part, uint32_t parts) {
  uint32_t groups = (f.rows + ROWS - 1) / ROWS, items = groups * f.p_slices;
  for (uint32_t item = part * P_WARPS + threadIdx.x / 32; item < items; item += parts * P_WARPS) {
    for (uint32_t k = 0; k < f.rank; k += K) {
      multiply<T, ROWS, K>(f, item % groups * ROWS, item / groups, k);
    }
  }
}

template <class T>
INLINE void multiply_any(const Factor &f, uint32_t part, uint32_t parts) {
  if (f.rank <= 2) {
    multiply_all<T, P_ROWS, 2>(f, part, parts);
  } else if (f.rank <= 4) {
    multiply_all<T, P_ROWS, 4>(f, part, parts);
  } else {
    multiply_all<T, P_ROWS / 2, 8>(f, part, parts);
  }
}

__global__ void __launch_bounds__(32 * P_WARPS, 5) multiply_kernel(const __grid_constant__ Factors batch) {
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  if (f.m_type == PITH_GPU_F32) {
    multiply_any<float>(f, part, parts);
  } else {
    multiply_any<uint16_t>(f, part, parts);
  }
}

/* ---- Q = MᵀP: a thread takes two columns of M, and rows of a slice
 * -------------------------------------------------------- */

template <class T, int K>
INLINE void multiply_transposed(const Factor &f, uint32_t block, uint32_t slice, uint32_t k0, float (*p)[K]) {
  uint32_t from = slice * f.q_slice, to = slice_end(from, f.q_slice, f.rows);
  uint32_t col0 = block * Q_COLS + threadIdx.x, col1 = col0 + Q_THREADS, columns = least(K, f.rank - k0);
  float sum[2][K] = {};
  for (uint32_t first = from; first < to; first += Q_ROWS_MOST) {
    uint32_t rows = slice_end(first, Q_ROWS_MOST, to) - first;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < rows * K; i += Q_THREADS) {
      uint32_t k = i / rows, r = i % rows;
      p[r][k] = k < columns ? f.p[(size_t)(k0 + k) * f.rows + first + r] : 0.0f;
    }
    __syncthreads();
    size_t start = (size_t)first * f.cols, left = start < f.n ? f.n - start : 0;
    const T *m = (const T *)f.m + start;
    bool full = (size_t)rows * f.cols <= left && (block + 1) * Q_COLS <= f.cols;
#pragma unroll 8
    for (uint32_t r = 0; r < rows; r++) {
      size_t at = (size_t)r * f.cols;
      T a = full || (col0 < f.cols && at + col0 < left) ? m[at + col0] : T(0);
      T b = full || (col1 < f.cols && at + col1 < left) ? m[at + col1] : T(0);
      float x = widened(a, f.m_type), y = widened(b, f.m_type);
#pragma unroll
      for (int k = 0; k < K; k++) {
        sum[0][k] = __fmaf_rn(x, p[r][k], sum[0][k]);
        sum[1][k] = __fmaf_rn(y, p[r][k], sum[1][k]);
      }
    }
  }
  float *out = f.q_slices == 1 ? f.q : f.partial + (size_t)slice * f.rank * f.cols;
#pragma unroll
  for (int k = 0; k < K; k++) {
    if (k < columns && col0 < f.cols) {
      out[(size_t)(k0 + k) * f.cols + col0] = sum[0][k];
    }
    if (k < columns && col1 < f.cols) {
      out[(size_t)(k0 + k) * f.cols + col1] = sum[1][k];
    }
  }
}

template <class T>
INLINE void multiply_transposed_any(const Factor &f, uint32_t block, uint32_t slice, float *p) {
  if (f.rank <= 4) {
    multiply_transposed<T, 4>(f, block, slice, 0, (float(*)[4])p);
    return;
  }
  for (uint32_t k = 0; k < f.rank; k += 8) {
    multiply_transposed<T, 8>(f, block, slice, k, (float(*)[8])p);
  }
}

__global__ void __launch_bounds__(Q_THREADS, 8) multiply_transposed_kernel(const __grid_constant__ Factors batch) {
  __shared__ __align__(16) float p[Q_ROWS_MOST * 8];
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  uint32_t blocks = (f.cols + Q_COLS - 1) / Q_COLS, items = blocks * f.q_slices;
  for (uint32_t item = part; item < items; item += parts) {
    if (f.m_type == PITH_GPU_F32) {
      multiply_transposed_any<float>(f, item % blocks, item / blocks, p);
    } else {
      multiply_transposed_any<uint16_t>(f, item % blocks, item / blocks, p);
    }
  }
}

/* ---- Slices, in order
 * --------------------------------------------------------------------------------------------------------- */

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

/* ---- PQᵀ: the CPU's bits
 * ---------------------------------------------------------------------------------------------------------- */

enum Expand { EXPAND_SET, EXPAND_ADD, EXPAND_OUT };

#define EXPAND_THREADS 256
#define EXPAND_ROWS 32 /* that a block takes at a time */
#define EXPAND_TOGETHER 8
#define HELD 8 /* columns of Q in registers; the others come from the cache */

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

/* Sums in the order of columns, nothing fused. Some rows at a time, so that what is there is read ahead of what is
 * written. */
template <int HOW, class T>
INLINE void expand_tile(const Factor &f, T *dst, uint32_t col, uint32_t row0, float (*p)[HELD]) {
  uint32_t rows = least(EXPAND_ROWS, f.rows - row0), held = least(HELD, f.rank);
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < rows * HELD; i += EXPAND_THREADS) {
    uint32_t k = i / rows, r = i % rows;
    p[r][k] = k < held ? f.p[(size_t)k * f.rows + row0 + r] : 0.0f;
  }
  __syncthreads();
  if (col >= f.cols) {
    return;
  }
  float q[HELD];
#pragma unroll
  for (int k = 0; k < HELD; k++) {
    q[k] = k < held ? f.q[(size_t)k * f.cols + col] : 0.0f;
  }
  for (uint32_t r0 = 0; r0 < rows; r0 += EXPAND_TOGETHER) {
    T x[EXPAND_TOGETHER];
    float sum[EXPAND_TOGETHER];
    size_t at = (size_t)(row0 + r0) * f.cols + col;
#pragma unroll
    for (int j = 0; j < EXPAND_TOGETHER; j++) {
      bool there = HOW != EXPAND_SET && r0 + j < rows && at + (size_t)j * f.cols < f.n;
      x[j] = there ? dst[at + (size_t)j * f.cols] : T(0);
    }
#pragma unroll
    for (int j = 0; j < EXPAND_TOGETHER; j++) {
      sum[j] = 0.0f;
#pragma unroll
      for (int k = 0; k < HELD; k++) {
        sum[j] = k < held ? sum[j] + p[(r0 + j) % EXPAND_ROWS][k] * q[k] : sum[j];
      }
    }
    for (uint32_t k = HELD; k < f.rank; k++) {
      float y = f.q[(size_t)k * f.cols + col];
#pragma unroll
      for (int j = 0; j < EXPAND_TOGETHER; j++) {
        sum[j] = sum[j] + f.p[(size_t)k * f.rows + least(row0 + r0 + j, f.rows - 1)] * y;
      }
    }
#pragma unroll
    for (int j = 0; j < EXPAND_TOGETHER; j++) {
      if (r0 + j < rows && at + (size_t)j * f.cols < f.n) {
        dst[at + (size_t)j * f.cols] = expanded<HOW>(f, x[j], sum[j]);
      }
    }
  }
}

template <int HOW>
__global__ void __launch_bounds__(EXPAND_THREADS) expand_kernel(const __grid_constant__ Factors batch) {
  __shared__ float p[EXPAND_ROWS][HELD];
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  if (f.dense || (HOW == EXPAND_OUT && (!f.memory || f.keeps != PITH_GPU_KEEP_LOST))) {
    return;
  }
  uint32_t across = (f.cols + EXPAND_THREADS - 1) / EXPAND_THREADS, down = (f.rows + EXPAND_ROWS - 1) / EXPAND_ROWS;
  for (uint32_t item = part; item < across * down; item += parts) {
    uint32_t col = item % across * EXPAND_THREADS + threadIdx.x, row = item / across * EXPAND_ROWS;
    if (HOW == EXPAND_OUT) {
      expand_tile<HOW>(f, f.memory, col, row, p);
    } else if (f.type == PITH_GPU_F32) {
      expand_tile<HOW>(f, (float *)f.dst, col, row, p);
    } else {
      expand_tile<HOW>(f, (uint16_t *)f.dst, col, row, p);
    }
  }
}

/* ---- Launching
 * -----------------------------------------------------------------------------------------------------------------------
 */

cudaError_t launch_multiply(const Factors &batch, cudaStream_t stream) {
  multiply_kernel<<<batch.blocks, 32 * P_WARPS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_multiply_transposed(const Factors &batch, cudaStream_t stream) {
  multiply_transposed_kernel<<<batch.blocks, Q_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
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
  expand_kernel<EXPAND_SET><<<batch.blocks, EXPAND_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_expand_add(const Factors &batch, cudaStream_t stream) {
  expand_kernel<EXPAND_ADD><<<batch.blocks, EXPAND_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_expand_out(const Factors &batch, cudaStream_t stream) {
  expand_kernel<EXPAND_OUT><<<batch.blocks, EXPAND_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * powersgd on the device: a matrix M of rows × cols, its factors P (rank columns of `rows`) and Q (rank columns of
 * `cols`). At low ranks the products are limited by reading M, and plain kernels with a few columns in registers will
 * do; sums run in slices that are added in order, so that the same input always gives the same bits, if not the CPU's.
 * P is made orthonormal by one block of threads for each matrix. What is decoded from P and Q is the CPU's, bit for
 * bit.
 */
#pragma once

#include "device.cuh"

#define FACTORS 16 /* matrices of a launch */

struct Factor {
  const void *m; /* the tensor, or the memory, where it has been compensated */
  const void *given;
  void *dst;
  uint8_t *payload;
  uint64_t *size;
  float *memory, *p, *q, *partial;
  uint64_t hash;
  uint32_t n, rows, cols, rank;
  uint32_t p_slices, q_slices, p_slice, q_slice; /* how a sum is cut, and how long the slices are */
  uint32_t begin, end;
  float beta, gamma, factor;
  uint8_t m_type, type, keeps, dense;
};

struct Factors {
  uint32_t count, blocks;
  Factor factor[FACTORS];
};

#define P_ROWS 4 /* of a warp in P = MQ */
#define P_WARPS 4
#define P_SLICE 2048 /* columns that a warp takes at most */
#define Q_THREADS 128
#define Q_COLS (4 * Q_THREADS) /* of a block in Q = MᵀP */
#define Q_ROWS_MOST 256        /* of P in shared memory */
#define EXPAND_THREADS 128
#define EXPAND_COLS (4 * EXPAND_THREADS) /* of a block in PQᵀ */
#define EXPAND_ROWS 32

typedef cudaError_t (*FactorLaunch)(const Factors &batch, cudaStream_t stream);

cudaError_t launch_multiply(const Factors &batch, cudaStream_t stream); /* compensates first where there is a memory */
cudaError_t launch_multiply_transposed(const Factors &batch, cudaStream_t stream);
cudaError_t launch_add_slices_p(const Factors &batch, cudaStream_t stream);
cudaError_t launch_add_slices_q(const Factors &batch, cudaStream_t stream);
cudaError_t launch_expand_set(const Factors &batch, cudaStream_t stream);
cudaError_t launch_expand_add(const Factors &batch, cudaStream_t stream);
cudaError_t launch_expand_out(const Factors &batch, cudaStream_t stream); /* out of the memory */

/* Items of a matrix: a warp's in P = MQ, a block's in the others. */
static inline __host__ __device__ uint32_t p_items(const Factor &f) {
  return (f.rows + P_ROWS - 1) / P_ROWS * f.p_slices;
}

static inline __host__ __device__ uint32_t q_items(const Factor &f) {
  return (f.cols + Q_COLS - 1) / Q_COLS * f.q_slices;
}

static inline __host__ __device__ uint32_t expand_items(const Factor &f) {
  return ((f.cols + EXPAND_COLS - 1) / EXPAND_COLS) * ((f.rows + EXPAND_ROWS - 1) / EXPAND_ROWS);
}

INLINE const Factor &factor_of(const Factors &batch, uint32_t *part, uint32_t *parts) {
  uint32_t i = 0;
  while (blockIdx.x >= batch.factor[i].end) {
    i++;
  }
  const Factor &f = batch.factor[i];
  *part = blockIdx.x - f.begin;
  *parts = f.end - f.begin;
  return f;
}

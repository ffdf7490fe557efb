/* SPDX-License-Identifier: Apache-2.0 */
/* Low rank besides the products: starting, orthonormalizing, payloads, memories, and the order of kernels. See
 * lowrank.cuh. */
#include "lowrank.cuh"

#include "lowrank_host.h"

#define THREADS 256
#define ORTHO_THREADS 512
#define HEAD 8
#define GROUP 8 /* columns that are projected out together */

/* ---- Q at the start ---------------------------------------------------------------------------------------------- */

INLINE uint64_t mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* A column of zeros, or with anything not finite, is drawn anew: a block for each column. */
__global__ void __launch_bounds__(THREADS) wake_kernel(const __grid_constant__ Factors batch) {
  uint32_t k, parts;
  const Factor &f = factor_of(batch, &k, &parts);
  if (f.dense) {
    return;
  }
  float *column = f.q + (size_t)k * f.cols;
  bool some = false, bad = false;
  for (uint32_t i = threadIdx.x; i < f.cols; i += THREADS) {
    some |= magnitude(column[i]) != 0;
    bad |= !is_finite(column[i]);
  }
  some = __syncthreads_or(some);
  bad = __syncthreads_or(bad);
  if (some && !bad) {
    return;
  }
  const uint64_t domain = 5; /* of low rank */
  uint64_t h = mix64(mix64(f.hash ^ mix64(k + (domain << 56))) ^ mix64(0x78dde6e5fd29f054u));
  for (uint32_t i = threadIdx.x; i < f.cols; i += THREADS) {
    column[i] = 2.0f * unit_of(rng_from(i * RNG_WEYL + (uint32_t)h, (uint32_t)(h >> 32))) - 1.0f;
  }
}

/* ---- Orthonormal columns ----------------------------------------------------------------------------------------- */

/* Sums over all threads of a block, in a fixed order. */
INLINE double block_sum(double x, double *warps) {
  for (int h = 16; h; h /= 2) {
    x += __shfl_xor_sync(FULL, x, h);
  }
  if ((threadIdx.x & 31) == 0) {
    warps[threadIdx.x / 32] = x;
  }
  __syncthreads();
  x = (threadIdx.x & 31) < ORTHO_THREADS / 32 ? warps[threadIdx.x & 31] : 0.0;
  for (int h = 16; h; h /= 2) {
    x += __shfl_xor_sync(FULL, x, h);
  }
  __syncthreads();
  return x;
}

INLINE double column_norm(const float *x, uint32_t n, double *warps) {
  double sum = 0;
  for (uint32_t i = threadIdx.x; i < n; i += ORTHO_THREADS) {
    sum += (double)x[i] * (double)x[i];
  }
  return sqrt(block_sum(sum, warps));
}

/* Takes the directions of `count` ≤ GROUP columns out of another. */
INLINE void project_out(const float *columns, uint32_t count, float *column, uint32_t n, double *warps) {
  double dot[GROUP] = {};
  for (uint32_t i = threadIdx.x; i < n; i += ORTHO_THREADS) {
    double x = column[i];
#pragma unroll
    for (uint32_t j = 0; j < GROUP; j++) {
      dot[j] += j < count ? (double)columns[(size_t)j * n + i] * x : 0.0;
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < GROUP; j++) {
    dot[j] = j < count ? block_sum(dot[j], warps) : 0.0;
  }
  for (uint32_t i = threadIdx.x; i < n; i += ORTHO_THREADS) {
    double x = column[i];
#pragma unroll
    for (uint32_t j = 0; j < GROUP; j++) {
      x -= j < count ? dot[j] * (double)columns[(size_t)j * n + i] : 0.0;
    }
    column[i] = (float)x;
  }
  __syncthreads();
}

INLINE bool is_dependent(float after, float before) { return after <= 1e-5f * before || after < PITH_SCALE_MIN; }

/* Gram–Schmidt, twice over the columns before. One that depends on the others becomes zero. */
INLINE void orthonormalize_many(const Factor &f, double *warps) {
  for (uint32_t k = 0; k < f.rank; k++) {
    float *column = f.p + (size_t)k * f.rows;
    double before = column_norm(column, f.rows, warps);
    for (int pass = 0; pass < 2; pass++) {
      for (uint32_t j = 0; j < k; j += GROUP) {
        project_out(f.p + (size_t)j * f.rows, least(GROUP, k - j), column, f.rows, warps);
      }
    }
    float after = (float)column_norm(column, f.rows, warps);
    float scale = is_dependent(after, (float)before) ? 0.0f : 1.0f / after;
    for (uint32_t i = threadIdx.x; i < f.rows; i += ORTHO_THREADS) {
      column[i] *= scale;
    }
    __syncthreads();
  }
}

/* Of few columns, the same from their inner products alone, so that they are read and written once: column k becomes
 * Σ w[j][k] · column j, j ≤ k. Inner products are sums of doubles, in which nothing of a float is lost. */
struct Gram {
  double warps[ORTHO_THREADS / 32][GROUP * (GROUP + 1) / 2];
  double products[GROUP][GROUP], w[GROUP][GROUP];
};

template <int K>
INLINE void read_row(const Factor &f, uint32_t row, float (&x)[K]) {
#pragma unroll
  for (int k = 0; k < K; k++) {
    x[k] = k < f.rank ? f.p[(size_t)k * f.rows + row] : 0.0f;
  }
}

template <int K>
INLINE void inner_products(const Factor &f, Gram &gram) {
  constexpr int PAIRS = K * (K + 1) / 2;
  double sum[PAIRS] = {};
#pragma unroll 4
  for (uint32_t row = threadIdx.x; row < f.rows; row += ORTHO_THREADS) {
    float x[K];
    read_row<K>(f, row, x);
#pragma unroll
    for (int k = 0; k < K; k++) {
#pragma unroll
      for (int j = 0; j <= k; j++) {
        sum[k * (k + 1) / 2 + j] += (double)x[k] * (double)x[j];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < PAIRS; i++) {
    for (int h = 16; h; h /= 2) {
      sum[i] += __shfl_xor_sync(FULL, sum[i], h);
    }
    if ((threadIdx.x & 31) == 0) {
      gram.warps[threadIdx.x / 32][i] = sum[i];
    }
  }
  __syncthreads();
  uint32_t k = threadIdx.x / K, j = threadIdx.x % K;
  if (k < K && j <= k) {
    double total = 0;
    for (int warp = 0; warp < ORTHO_THREADS / 32; warp++) {
      total += gram.warps[warp][k * (k + 1) / 2 + j];
    }
    gram.products[k][j] = gram.products[j][k] = total;
  }
  __syncthreads();
}

/* ⟨Σ a[j] · column j, column k⟩ over j ≤ last: later columns, which may be NaN, play no part. */
template <int K>
INLINE double product_with(const Gram &gram, const double (&a)[K], uint32_t k, uint32_t last) {
  double sum = 0;
#pragma unroll
  for (uint32_t j = 0; j < K; j++) {
    sum += j <= last ? a[j] * gram.products[j][k] : 0.0;
  }
  return sum;
}

/* Gram–Schmidt on coefficients, by one thread. */
template <int K>
INLINE void find_weights(const Factor &f, Gram &gram) {
  for (uint32_t k = 0; k < K; k++) {
    double a[K] = {}, norm = 0;
#pragma unroll
    for (uint32_t j = 0; j < K; j++) {
      a[j] = j == k ? 1.0 : 0.0;
    }
    for (uint32_t i = 0; i < k; i++) {
      double b[K], along;
#pragma unroll
      for (int j = 0; j < K; j++) {
        b[j] = gram.w[j][i];
      }
      along = product_with<K>(gram, b, k, i);
#pragma unroll
      for (int j = 0; j < K; j++) {
        a[j] -= along * b[j];
      }
    }
#pragma unroll
    for (uint32_t j = 0; j < K; j++) {
      norm += j <= k ? a[j] * product_with<K>(gram, a, j, k) : 0.0;
    }
    double before = sqrt(gram.products[k][k]), after = sqrt(norm < 0 ? 0.0 : norm); /* in f32, errors would grow */
    bool dependent = k >= f.rank || is_dependent((float)after, (float)before);
#pragma unroll
    for (int j = 0; j < K; j++) {
      gram.w[j][k] = dependent ? 0.0 : a[j] / after;
    }
  }
}

template <int K>
INLINE void orthonormalize_few(const Factor &f, Gram &gram) {
  inner_products<K>(f, gram);
  if (threadIdx.x == 0) {
    find_weights<K>(f, gram);
  }
  __syncthreads();
#pragma unroll 4
  for (uint32_t row = threadIdx.x; row < f.rows; row += ORTHO_THREADS) {
    float x[K];
    read_row<K>(f, row, x);
#pragma unroll
    for (int k = 0; k < K; k++) {
      double sum = 0;
#pragma unroll
      for (int j = 0; j <= k; j++) {
        sum += gram.w[j][k] * (double)x[j];
      }
      if (k < f.rank) {
        f.p[(size_t)k * f.rows + row] = (float)sum;
      }
    }
  }
}

__global__ void __launch_bounds__(ORTHO_THREADS) orthonormalize_kernel(const __grid_constant__ Factors batch) {
  __shared__ Gram gram;
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  if (f.dense) {
    return;
  }
  if (f.rank <= 4) {
    orthonormalize_few<4>(f, gram);
  } else if (f.rank <= GROUP) {
    orthonormalize_few<GROUP>(f, gram);
  } else {
    orthonormalize_many(f, &gram.warps[0][0]);
  }
}

/* ---- Bytes, memories, dense layers: values one by one ------------------------------------------------------------ */

/* `one` is called for all of 0 … count − 1. */
template <class One>
INLINE void each(uint32_t part, uint32_t parts, size_t count, One one) {
  for (size_t i = (size_t)part * THREADS + threadIdx.x; i < count; i += (size_t)parts * THREADS) {
    one(i);
  }
}

INLINE void put_u64(uint8_t *out, uint64_t x) {
  for (int i = 0; i < 8; i++) {
    out[i] = (uint8_t)(x >> 8 * i);
  }
}

enum Step {
  COMPENSATE,
  PUT_PAYLOAD,
  GET_PAYLOAD,
  PUT_P,
  PUT_Q,
  GET_P,
  GET_Q,
  DENSE_PUT,
  DENSE_SET,
  DENSE_ADD,
  DENSE_MEAN,
  SETTLE,
  FORGET
};

INLINE void settle_one(const Factor &f, size_t i) {
  float p = f.memory[i], rest = f.keeps == PITH_GPU_KEEP_LOST ? p - value_at(f.dst, f.type, (uint32_t)i) : p;
  f.memory[i] = is_finite(rest) ? rest : is_finite(p) ? p : 0.0f;
}

/* The tensor is compensated in the memory, four values of a thread at a time; where it is factored, multiply_kernel
 * does. */
template <class T>
INLINE void compensate_all(const Factor &f, uint32_t part, uint32_t parts) {
  const T *given = (const T *)f.given;
  size_t step = (size_t)parts * THREADS;
  for (size_t first = (size_t)part * THREADS + threadIdx.x; first < f.n; first += 4 * step) {
    T g[4];
    float e[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      bool there = first + j * step < f.n;
      g[j] = there ? given[first + j * step] : T(0);
      e[j] = there ? f.memory[first + j * step] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float x = sizeof(T) == 4           ? (float)g[j]
                : f.type == PITH_GPU_F16 ? f16_to_f32((uint16_t)g[j])
                                         : bf16_to_f32((uint16_t)g[j]);
      if (first + j * step < f.n) {
        f.memory[first + j * step] = f.beta * e[j] + f.gamma * x;
      }
    }
  }
}

template <int STEP>
__global__ void __launch_bounds__(THREADS) step_kernel(const __grid_constant__ Factors batch) {
  uint32_t part, parts;
  const Factor &f = factor_of(batch, &part, &parts);
  size_t in_p = (size_t)f.rank * f.rows, in_q = (size_t)f.rank * f.cols;
  uint8_t *payload = f.payload;
  float *buffer = (float *)payload;
  if (STEP == COMPENSATE && f.memory && f.dense) {
    if (f.type == PITH_GPU_F32) {
      compensate_all<float>(f, part, parts);
    } else {
      compensate_all<uint16_t>(f, part, parts);
    }
  } else if (STEP == SETTLE && f.memory) {
    each(part, parts, f.n, [&](size_t i) { settle_one(f, i); });
  } else if (STEP == FORGET && f.memory && f.keeps == PITH_GPU_KEEP_ALL) {
    each(part, parts, f.n, [&](size_t i) { settle_one(f, i); });
  } else if (STEP == PUT_PAYLOAD) {
    size_t values = f.dense ? f.n : in_p + in_q;
    if (part == 0 && threadIdx.x == 0) {
      put_u64(payload, f.dense ? 0 : f.rows);
      if (f.size) {
        *f.size = HEAD + 4 * values;
      }
    }
    each(part, parts, values, [&](size_t i) {
      put_f32(payload + HEAD + 4 * i, f.dense    ? value_at(f.m, f.m_type, (uint32_t)i)
                                      : i < in_p ? f.p[i]
                                                 : f.q[i - in_p]);
    });
    if (f.dense && f.memory &&
        f.keeps == PITH_GPU_KEEP_LOST) { /* nothing is lost; each value by the thread that sent it */
      each(part, parts, f.n, [&](size_t i) { f.memory[i] = 0.0f; });
    }
  } else if (STEP == GET_PAYLOAD && !f.dense) {
    each(part, parts, in_p + in_q,
         [&](size_t i) { (i < in_p ? f.p[i] : f.q[i - in_p]) = get_f32(payload + HEAD + 4 * i); });
  } else if (STEP == PUT_P && !f.dense) {
    each(part, parts, in_p, [&](size_t i) { buffer[i] = f.p[i]; });
  } else if (STEP == PUT_Q && !f.dense) {
    each(part, parts, in_q, [&](size_t i) { buffer[i] = f.q[i]; });
  } else if (STEP == GET_P && !f.dense) {
    each(part, parts, in_p, [&](size_t i) { f.p[i] = buffer[i]; });
  } else if (STEP == GET_Q && !f.dense) {
    each(part, parts, in_q, [&](size_t i) { f.q[i] = buffer[i] * f.factor; });
  } else if (STEP == DENSE_PUT && f.dense) {
    each(part, parts, f.n, [&](size_t i) { buffer[i] = value_at(f.m, f.m_type, (uint32_t)i); });
  } else if (STEP == DENSE_SET && f.dense) {
    each(part, parts, f.n, [&](size_t i) { put_value(f.dst, f.type, (uint32_t)i, get_f32(payload + HEAD + 4 * i)); });
  } else if (STEP == DENSE_ADD && f.dense) {
    each(part, parts, f.n, [&](size_t i) {
      put_value(f.dst, f.type, (uint32_t)i, value_at(f.dst, f.type, (uint32_t)i) + get_f32(payload + HEAD + 4 * i));
    });
  } else if (STEP == DENSE_MEAN && f.dense) {
    each(part, parts, f.n, [&](size_t i) { put_value(f.dst, f.type, (uint32_t)i, buffer[i] * f.factor); });
  }
}

/* ---- The workspace ----------------------------------------------------------------------------------------------- */

static size_t round_up(size_t size) { return (size + 255) / 256 * 256; }

/* Slices give a device enough to do even where rows or columns are few, and are short enough that the last ones do not
 * keep it waiting. */
static void cut_sums(Factor &f) {
  const uint32_t warps = 132 * 32, blocks = 132 * 16;
  uint32_t groups = (f.rows + P_ROWS - 1) / P_ROWS, across = (f.cols + Q_COLS - 1) / Q_COLS;
  uint32_t p_least = (f.cols + P_SLICE - 1) / P_SLICE, p_most = (f.cols + 255) / 256, q_most = (f.rows + 31) / 32;
  uint32_t p = warps / groups, q = blocks / across;
  p = p < p_least ? p_least : p > p_most ? p_most : p;
  q = q < 1 ? 1 : q > q_most ? q_most : q;
  f.p_slice = ((f.cols + p - 1) / p + 3) / 4 * 4; /* packs of four columns */
  f.q_slice = (f.rows + q - 1) / q;
  f.p_slices = (f.cols + f.p_slice - 1) / f.p_slice;
  f.q_slices = (f.rows + f.q_slice - 1) / f.q_slice;
}

static size_t partial_bytes(const Factor &f) {
  size_t p = f.p_slices > 1 ? (size_t)f.p_slices * f.rank * f.rows : 0,
         q = f.q_slices > 1 ? (size_t)f.q_slices * f.rank * f.cols : 0;
  return round_up(4 * (p > q ? p : q));
}

static Factor make_factor(const pith_gpu_lowrank &t) {
  Factor f = {};
  f.given = t.values;
  f.dst = t.values;
  f.m = t.memory ? (const void *)t.memory : t.values;
  f.m_type = t.memory ? (uint8_t)PITH_GPU_F32 : t.dtype;
  f.type = t.dtype;
  f.payload = t.payload;
  f.size = t.size;
  f.memory = t.memory;
  f.hash = t.hash;
  f.n = t.n;
  f.rows = t.rows;
  f.cols = t.cols;
  f.rank = t.rank;
  f.beta = t.beta;
  f.gamma = t.gamma;
  f.factor = t.factor;
  f.keeps = t.keeps;
  f.dense = t.dense;
  if (!t.dense) {
    cut_sums(f);
    uint8_t *space = (uint8_t *)t.space;
    f.q = t.part ? t.part : (float *)space;
    f.p = f.q + (size_t)t.rank * t.cols;
    f.partial = (float *)(space + (t.part ? 0 : round_up(4 * (size_t)t.rank * ((size_t)t.rows + t.cols))));
  }
  return f;
}

/* Enough whether or not there is a part: decoding has none. */
size_t pith__lowrank_space(const pith_gpu_lowrank *task) {
  if (task->dense) {
    return 0;
  }
  return partial_bytes(make_factor(*task)) + round_up(4 * (size_t)task->rank * ((size_t)task->rows + task->cols));
}

/* ---- The order of kernels ---------------------------------------------------------------------------------------- */

enum Blocks { ONE, RANK, MANY, P_ITEMS, Q_ITEMS, EXPAND_ITEMS }; /* the last three: a block for each of them */

struct FactorRunner {
  Factors &batch;
  cudaStream_t stream;
  uint32_t most;
  cudaError_t error;

  uint32_t blocks_of(const Factor &f, Blocks blocks) const {
    uint32_t wanted = f.n / 4096 + 1;
    switch (blocks) {
      case ONE:
        return 1;
      case RANK:
        return f.rank;
      case P_ITEMS:
        return f.dense ? 1 : (p_items(f) + P_WARPS - 1) / P_WARPS;
      case Q_ITEMS:
        return f.dense ? 1 : q_items(f);
      case EXPAND_ITEMS:
        return f.dense ? 1 : expand_items(f);
      default:
        return wanted < most ? wanted : most;
    }
  }

  void run(FactorLaunch launch, Blocks blocks) {
    if (error != cudaSuccess || batch.count == 0) {
      return;
    }
    batch.blocks = 0;
    for (uint32_t i = 0; i < batch.count; i++) {
      Factor &f = batch.factor[i];
      f.begin = batch.blocks;
      f.end = batch.blocks += blocks_of(f, blocks);
    }
    error = launch(batch, stream);
  }

  template <int STEP>
  void step() {
    run(
        [](const Factors &b, cudaStream_t s) {
          step_kernel<STEP><<<b.blocks, THREADS, 0, s>>>(b);
          return cudaGetLastError();
        },
        MANY);
  }
};

static cudaError_t launch_wake_here(const Factors &batch, cudaStream_t stream) {
  wake_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

static cudaError_t launch_orthonormalize_here(const Factors &batch, cudaStream_t stream) {
  orthonormalize_kernel<<<batch.blocks, ORTHO_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

/* A fresh Q is zeros, which wake. */
static void clear_fresh(FactorRunner &r, const pith_gpu_lowrank *tasks) {
  for (uint32_t i = 0; i < r.batch.count && r.error == cudaSuccess; i++) {
    const Factor &f = r.batch.factor[i];
    if (!f.dense && !tasks[i].part) {
      r.error = cudaMemsetAsync(f.q, 0, 4 * (size_t)f.rank * f.cols, r.stream);
    }
  }
}

static void make_p(FactorRunner &r) {
  r.run(launch_wake_here, RANK);
  r.run(launch_multiply, P_ITEMS);
  r.run(launch_add_slices_p, MANY);
}

static void make_q(FactorRunner &r) {
  r.run(launch_multiply_transposed, Q_ITEMS);
  r.run(launch_add_slices_q, MANY);
}

static void encode(FactorRunner &r, const pith_gpu_lowrank *tasks) {
  r.step<COMPENSATE>();
  clear_fresh(r, tasks);
  make_p(r);
  r.run(launch_orthonormalize_here, ONE);
  make_q(r);
  r.step<PUT_PAYLOAD>();
  r.run(launch_expand_out, EXPAND_ITEMS);
  r.step<FORGET>();
}

static void run_batch(FactorRunner &r, const pith_gpu_lowrank *tasks, int what) {
  switch (what) {
    case PITH_GPU_LOWRANK_ENCODE:
      encode(r, tasks);
      break;
    case PITH_GPU_LOWRANK_SET:
      r.step<GET_PAYLOAD>();
      r.run(launch_expand_set, EXPAND_ITEMS);
      r.step<DENSE_SET>();
      break;
    case PITH_GPU_LOWRANK_ADD:
      r.step<GET_PAYLOAD>();
      r.run(launch_expand_add, EXPAND_ITEMS);
      r.step<DENSE_ADD>();
      break;
    case PITH_GPU_LOWRANK_PRODUCE_P:
      r.step<COMPENSATE>();
      make_p(r);
      r.step<PUT_P>();
      break;
    case PITH_GPU_LOWRANK_CONSUME_P:
      r.step<GET_P>();
      r.run(launch_orthonormalize_here, ONE);
      break;
    case PITH_GPU_LOWRANK_PRODUCE_Q:
      make_q(r);
      r.step<PUT_Q>();
      r.step<DENSE_PUT>();
      break;
    default:
      r.step<GET_Q>();
      r.run(launch_expand_set, EXPAND_ITEMS);
      r.step<DENSE_MEAN>();
      r.step<SETTLE>();
  }
}

cudaError_t pith__lowrank_run(const pith_gpu_lowrank *tasks, size_t count, int what, cudaStream_t stream) {
  Factors batch;
  int device, processors = 1;
  FactorRunner r = {batch, stream, 1, cudaGetDevice(&device)};
  if (r.error == cudaSuccess) {
    r.error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  }
  r.most = (uint32_t)processors * 16;
  for (size_t first = 0; first < count && r.error == cudaSuccess; first += FACTORS) {
    batch.count = (uint32_t)(count - first < FACTORS ? count - first : FACTORS);
    for (uint32_t i = 0; i < batch.count; i++) {
      batch.factor[i] = make_factor(tasks[first + i]);
    }
    run_batch(r, tasks + first, what);
  }
  return r.error;
}

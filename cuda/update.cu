/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An optimizer's step on many layers in one launch: the bits of k_update() in src/kernel/body_update.h.
 *
 * A thread takes four values that lie side by side, in one access of each tensor, and QUADS of those at a time. All
 * loads come before anything is computed or stored, so that they are under way together: memory is the limit, at 28
 * bytes for an f32 value whose moment arrives as the gradient. The last item of a layer, and layers of which a tensor
 * is not aligned for four values, go value by value.
 *
 * Layers whose residual is kept in fewer bits than 32 have a kernel of their own, in which a warp takes a block of it.
 */
#include "batch.cuh"
#include "store.cuh"
#include "update_host.h"

#define THREADS 256
#define QUADS 2
#define ITEM (THREADS * 4 * QUADS)

typedef pith_update_task Update;

/* ---- One value --------------------------------------------------------------------------------------------------- */

INLINE float new_moment(const Update &t, float before, float gradient) {
  float old = t.keep * before, more = t.take * gradient;
  return t.before && t.gradient ? old + more : t.before ? old : more;
}

INLINE float new_parameter(const Update &t, float base, float variance, float moment) {
  float step = t.rate * moment;
  if (t.variance) {
    step = __fdiv_rn(step, t.root * __fsqrt_rn(variance) + t.epsilon);
  }
  return t.decay * base - step;
}

INLINE float new_residual(const Update &t, float residual, float moment) { return t.pass * residual + t.fold * moment; }

INLINE float value_or_zero(const void *values, int dtype, uint32_t i) {
  return values ? value_at(values, dtype, i) : 0.0f;
}

/* All but the residual; gives the new moment. */
template <int DTYPE>
INLINE float update_parameter(const Update &t, uint32_t i) {
  float m = new_moment(t, value_or_zero(t.before, DTYPE, i), value_or_zero(t.gradient, DTYPE, i));
  if (t.moment) {
    put_value(t.moment, DTYPE, i, m);
  }
  if (t.parameter) {
    float base = t.start ? t.start[i] : value_at(t.parameter, DTYPE, i);
    float x = new_parameter(t, base, value_or_zero(t.variance, DTYPE, i), m);
    put_value(t.parameter, DTYPE, i, x);
    if (t.start) {
      t.start[i] = x;
    }
  }
  return m;
}

template <int DTYPE>
INLINE void update_value(const Update &t, uint32_t i) {
  float m = update_parameter<DTYPE>(t, i), *residual = (float *)t.residual;
  if (residual) {
    residual[i] = new_residual(t, residual[i], m);
  }
}

/* ---- Four values ------------------------------------------------------------------------------------------------- */

struct Quad {
  float x[4];
};

/* As they lie in memory. */
template <int DTYPE>
struct Raw {
  typedef uint2 type;
};
template <>
struct Raw<PITH_GPU_F32> {
  typedef float4 type;
};

/* Quad number `i`; zeros where there is no tensor. */
template <int DTYPE>
INLINE typename Raw<DTYPE>::type load(const void *values, uint32_t i) {
  typename Raw<DTYPE>::type raw = {};
  if (values) {
    raw = ((const typename Raw<DTYPE>::type *)values)[i];
  }
  return raw;
}

template <int DTYPE>
INLINE float half_of(uint32_t halves, int shift) {
  uint16_t h = (uint16_t)(halves >> shift);
  return DTYPE == PITH_GPU_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

template <int DTYPE>
INLINE Quad widened(float4 raw) {
  return {{raw.x, raw.y, raw.z, raw.w}};
}

template <int DTYPE>
INLINE Quad widened(uint2 raw) {
  return {{half_of<DTYPE>(raw.x, 0), half_of<DTYPE>(raw.x, 16), half_of<DTYPE>(raw.y, 0), half_of<DTYPE>(raw.y, 16)}};
}

template <int DTYPE>
INLINE uint32_t two_halves(float low, float high) {
  return DTYPE == PITH_GPU_F16 ? f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16
                               : f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
}

template <int DTYPE>
INLINE void store(void *values, uint32_t i, const Quad &q) {
  if (!values) {
    return;
  }
  if (DTYPE == PITH_GPU_F32) {
    ((float4 *)values)[i] = make_float4(q.x[0], q.x[1], q.x[2], q.x[3]);
  } else {
    ((uint2 *)values)[i] = make_uint2(two_halves<DTYPE>(q.x[0], q.x[1]), two_halves<DTYPE>(q.x[2], q.x[3]));
  }
}

/* Whether four values can be had at once from every tensor. NULL is aligned for anything. */
INLINE bool is_aligned(const Update &t) {
  uintptr_t values = (uintptr_t)t.gradient | (uintptr_t)t.before | (uintptr_t)t.variance | (uintptr_t)t.moment |
                     (uintptr_t)t.parameter,
            floats = (uintptr_t)t.start | (uintptr_t)t.residual;
  return values % (t.dtype == PITH_GPU_F32 ? 16 : 8) == 0 && floats % 16 == 0;
}

template <int DTYPE>
INLINE void update_quads(const Update &t, uint32_t first) {
  typename Raw<DTYPE>::type gradient[QUADS], before[QUADS], variance[QUADS], parameter[QUADS];
  float4 start[QUADS], residual[QUADS];
  const void *base = t.start ? NULL : t.parameter;
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
    uint32_t i = first + q * THREADS;
    gradient[q] = load<DTYPE>(t.gradient, i);
    before[q] = load<DTYPE>(t.before, i);
    variance[q] = load<DTYPE>(t.variance, i);
    parameter[q] = load<DTYPE>(base, i);
    start[q] = load<PITH_GPU_F32>(t.start, i);
    residual[q] = load<PITH_GPU_F32>(t.residual, i);
  }
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
    uint32_t i = first + q * THREADS;
    Quad g = widened<DTYPE>(gradient[q]), m = widened<DTYPE>(before[q]), v = widened<DTYPE>(variance[q]),
         x = t.start ? widened<PITH_GPU_F32>(start[q]) : widened<DTYPE>(parameter[q]),
         a = widened<PITH_GPU_F32>(residual[q]);
#pragma unroll
    for (int j = 0; j < 4; j++) {
      m.x[j] = new_moment(t, m.x[j], g.x[j]);
      x.x[j] = new_parameter(t, x.x[j], v.x[j], m.x[j]);
      a.x[j] = new_residual(t, a.x[j], m.x[j]);
    }
    store<DTYPE>(t.moment, i, m);
    store<DTYPE>(t.parameter, i, x);
    store<PITH_GPU_F32>(t.start, i, x);
    store<PITH_GPU_F32>(t.residual, i, a);
  }
}

/* ---- Many layers ------------------------------------------------------------------------------------------------- */

template <int DTYPE>
INLINE void update_item(const Update &t, uint32_t number) {
  uint32_t n = (uint32_t)t.n, first = number * ITEM;
  if (n - first >= ITEM && is_aligned(t)) {
    update_quads<DTYPE>(t, first / 4 + threadIdx.x);
    return;
  }
  uint32_t end = n - first < ITEM ? n : first + ITEM;
  for (uint32_t i = first + threadIdx.x; i < end; i += THREADS) {
    update_value<DTYPE>(t, i);
  }
}

__global__ void __launch_bounds__(THREADS) update_kernel(const __grid_constant__ Many<Update> batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Update &t = batch.task_of(item);
    switch (t.dtype) {
      case PITH_GPU_F16:
        update_item<PITH_GPU_F16>(t, item - t.begin);
        break;
      case PITH_GPU_BF16:
        update_item<PITH_GPU_BF16>(t, item - t.begin);
        break;
      default:
        update_item<PITH_GPU_F32>(t, item - t.begin);
    }
  }
}

/* ---- Packed residuals -------------------------------------------------------------------------------------------- */

#define PACKED_ITEM (THREADS / 32 * PITH_STORE_BLOCK)

INLINE float update_parameter_of(const Update &t, uint32_t i) {
  switch (t.dtype) {
    case PITH_GPU_F16:
      return update_parameter<PITH_GPU_F16>(t, i);
    case PITH_GPU_BF16:
      return update_parameter<PITH_GPU_BF16>(t, i);
    default:
      return update_parameter<PITH_GPU_F32>(t, i);
  }
}

__global__ void __launch_bounds__(THREADS) update_packed_kernel(const __grid_constant__ Many<Update> batch) {
  for (uint32_t item = blockIdx.x; item < batch.items; item += gridDim.x) {
    const Update &t = batch.task_of(item);
    StoreBlock b = store_block(item - t.begin, (uint32_t)t.n);
    float residual[STORE_EACH];
    load_store(t.residual, t.store, b, residual);
#pragma unroll
    for (int j = 0; j < STORE_EACH; j++) {
      uint32_t i = b.place(j);
      residual[j] = i < b.m ? new_residual(t, residual[j], update_parameter_of(t, b.first + i)) : 0.0f;
    }
    save_store(t.residual, t.store, b, residual, t.index, t.key0, t.key1);
  }
}

/* ---- Launches ---------------------------------------------------------------------------------------------------- */

static cudaError_t launch_some(const pith_update_task *tasks, size_t count, bool packed, cudaStream_t stream) {
  pith_update_task some[BATCH_TASKS];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if ((tasks[i].residual && tasks[i].store != PITH_STORE_F32) == packed) {
      some[used++] = tasks[i];
    }
  }
  return packed ? launch_many(update_packed_kernel, THREADS, PACKED_ITEM, some, used, stream)
                : launch_many(update_kernel, THREADS, ITEM, some, used, stream);
}

cudaError_t pith__update_run(const pith_update_task *tasks, size_t count, cudaStream_t stream) {
  cudaError_t error = cudaSuccess;
  for (size_t first = 0; first < count && error == cudaSuccess; first += BATCH_TASKS) {
    size_t some = count - first < BATCH_TASKS ? count - first : BATCH_TASKS;
    error = launch_some(tasks + first, some, false, stream);
    if (error == cudaSuccess) {
      error = launch_some(tasks + first, some, true, stream);
    }
  }
  return error;
}

/*
 * An optimizer's step on many layers in one launch: the bits of k_update() in src/kernel/body_update.h.
 *
 * A thread takes four values that lie side by side, in one access of each tensor where all of them are aligned for
 * that, and QUADS of those at a time. All loads come before all stores, so that they are under way together: memory is
 * the limit, at 28 bytes for an f32 value whose moment arrives as the gradient.
 */
#include "batch.cuh"
#include "update_host.h"

#define THREADS 256
#define QUADS 2
#define ITEM (THREADS * 4 * QUADS)

typedef pith_update_task Update;

struct Quad {
  float x[4];
};

/* Four values of a tensor as they lie in memory. */
INLINE Quad quad_at(const float *values, uint32_t i) {
  float4 v = *(const float4 *)(values + i);
  return {{v.x, v.y, v.z, v.w}};
}

INLINE void put_quad(float *values, uint32_t i, const Quad &q) {
  *(float4 *)(values + i) = make_float4(q.x[0], q.x[1], q.x[2], q.x[3]);
}

template <int DTYPE>
INLINE float widened(uint16_t h) {
  return DTYPE == PITH_GPU_F16 ? f16_to_f32(h) : bf16_to_f32(h);
}

template <int DTYPE>
INLINE uint32_t narrowed(float low, float high) {
  return DTYPE == PITH_GPU_F16 ? f32_to_f16(low) | (uint32_t)f32_to_f16(high) << 16
                               : f32_to_bf16(low) | (uint32_t)f32_to_bf16(high) << 16;
}

/* Those of [i, i + 4) that exist; zeros where there is no tensor. */
template <int DTYPE>
INLINE Quad load(const void *values, uint32_t i, uint32_t n, bool is_whole) {
  Quad q = {{0.0f, 0.0f, 0.0f, 0.0f}};
  if (!values) {
    return q;
  }
  if (!is_whole) {
    for (int j = 0; j < 4; j++) {
      q.x[j] = i + j < n ? value_at(values, DTYPE, i + j) : 0.0f;
    }
    return q;
  }
  if (DTYPE == PITH_GPU_F32) {
    return quad_at((const float *)values, i);
  }
  uint2 v = *(const uint2 *)((const uint16_t *)values + i);
  return {{widened<DTYPE>((uint16_t)v.x), widened<DTYPE>((uint16_t)(v.x >> 16)), widened<DTYPE>((uint16_t)v.y),
           widened<DTYPE>((uint16_t)(v.y >> 16))}};
}

template <int DTYPE>
INLINE void store(void *values, uint32_t i, uint32_t n, bool is_whole, const Quad &q) {
  if (!values) {
    return;
  }
  if (!is_whole) {
    for (int j = 0; j < 4; j++) {
      if (i + j < n) {
        put_value(values, DTYPE, i + j, q.x[j]);
      }
    }
  } else if (DTYPE == PITH_GPU_F32) {
    put_quad((float *)values, i, q);
  } else {
    *(uint2 *)((uint16_t *)values + i) = make_uint2(narrowed<DTYPE>(q.x[0], q.x[1]), narrowed<DTYPE>(q.x[2], q.x[3]));
  }
}

/* Whether four values can be had at once from every tensor. NULL is aligned for anything. */
INLINE bool is_aligned(const Update &t) {
  uintptr_t values = (uintptr_t)t.gradient | (uintptr_t)t.before | (uintptr_t)t.variance | (uintptr_t)t.moment |
                     (uintptr_t)t.parameter,
            floats = (uintptr_t)t.start | (uintptr_t)t.residual;
  return values % (t.dtype == PITH_GPU_F32 ? 16 : 8) == 0 && floats % 16 == 0;
}

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

template <int DTYPE>
INLINE void update_item(const Update &t, uint32_t number) {
  const uint32_t n = (uint32_t)t.n, first = number * ITEM + threadIdx.x * 4;
  const bool vectors = is_aligned(t);
  Quad gradient[QUADS], moment[QUADS], variance[QUADS], base[QUADS], residual[QUADS];
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
    uint32_t i = first + q * THREADS * 4;
    bool is_whole = vectors && i + 4 <= n;
    gradient[q] = load<DTYPE>(t.gradient, i, n, is_whole);
    moment[q] = load<DTYPE>(t.before, i, n, is_whole);
    variance[q] = load<DTYPE>(t.variance, i, n, is_whole);
    base[q] = t.start ? load<PITH_GPU_F32>(t.start, i, n, is_whole) : load<DTYPE>(t.parameter, i, n, is_whole);
    residual[q] = load<PITH_GPU_F32>(t.residual, i, n, is_whole);
  }
#pragma unroll
  for (int q = 0; q < QUADS; q++) {
    uint32_t i = first + q * THREADS * 4;
    bool is_whole = vectors && i + 4 <= n;
#pragma unroll
    for (int j = 0; j < 4; j++) {
      float m = new_moment(t, moment[q].x[j], gradient[q].x[j]);
      moment[q].x[j] = m;
      base[q].x[j] = new_parameter(t, base[q].x[j], variance[q].x[j], m);
      residual[q].x[j] = t.pass * residual[q].x[j] + t.fold * m;
    }
    store<DTYPE>(t.moment, i, n, is_whole, moment[q]);
    store<DTYPE>(t.parameter, i, n, is_whole, base[q]);
    store<PITH_GPU_F32>(t.start, i, n, is_whole, base[q]);
    store<PITH_GPU_F32>(t.residual, i, n, is_whole, residual[q]);
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

cudaError_t pith__update_run(const pith_update_task *tasks, size_t count, cudaStream_t stream) {
  return launch_many(update_kernel, THREADS, ITEM, tasks, count, stream);
}

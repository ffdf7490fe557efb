/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Error feedback with signs and their mean magnitude (`efsignsgd`) in full blocks of 4096 f32 values: too many for half
 * a warp's registers, so that 128 threads share a block, 32 values each, and tensor and residual are read once. The sum
 * runs in 16 lanes through all values in order, as it must: eight half-warps take their turns and hand the lanes' sums
 * on. A kernel of its own, since the others need no turns.
 */
#include "batch.cuh"
#include "encode_block.cuh"

#define THREADS 256
#define BLOCK_THREADS (SIGN_BUCKET / STEPS)
#define TURNS (BLOCK_THREADS / LANES)

struct Shared {
  float sum[2][LANES];
  uint32_t most[2];
};

/* Sums of |x| in the order of the CPU; every half-warp of a block gets those of all 16 lanes. */
INLINE float sum_in_turns(Shared &shared, const float (&p)[STEPS], uint32_t which, uint32_t turn) {
  for (uint32_t now = 0; now < TURNS; now++) {
    if (now == turn) {
      float sum = now ? shared.sum[which][lane16()] : 0.0f;
      EACH_STEP(k, STEPS) { sum += fabsf(p[k]); }
      shared.sum[which][lane16()] = sum;
    }
    __syncthreads();
  }
  return shared.sum[which][lane16()];
}

INLINE void encode_pair(const Task &t, uint32_t pair, Shared &shared) {
  uint32_t which = threadIdx.x / BLOCK_THREADS, turn = threadIdx.x % BLOCK_THREADS / LANES;
  uint32_t block = 2 * pair + which, first = block * SIGN_BUCKET;
  TensorSource s = {t, first, SIGN_BUCKET};
  float p[STEPS];
  SignSums sums = {0, 0, 0.0f, 0.0f, 0.0f, 0.0f};
  s.load<STEPS>(p, turn * CHUNK, 0.0f);
  uint32_t word = gather_signs(p, &sums.negatives);
  EACH_STEP(k, STEPS) { sums.most = max(sums.most, magnitude(p[k])); }
  if (threadIdx.x < 2) {
    shared.most[threadIdx.x] = 0;
  }
  __syncthreads();
  sums.most = lane_max(sums.most);
  if (lane16() == 0) {
    atomicMax(&shared.most[which], sums.most);
  }
  sums.sum_abs = sum_in_turns(shared, p, which, turn);
  sums.most = shared.most[which];
  float scale = sign_scale(s, t, sums); /* may read the tensor again: before anything of it changes */
  bool bad = sums.most >= INF_BITS || !is_finite(scale);
  uint8_t *out = t.payload + (size_t)block * t.block_size;
  __syncthreads();
  put_signs(out + PITH_HEAD_ONE + turn * CHUNK / 8, bad ? 0 : word, CHUNK);
  if (threadIdx.x % BLOCK_THREADS == 0) {
    put_f32(out, bad ? nan_value() : scale);
  }
  EACH_STEP(k, STEPS) {
    float d = bad ? nan_value() : p[k] < 0.0f ? -scale : scale;
    s.keep(turn * CHUNK + LANES * k + lane16(), p[k], d);
  }
}

__global__ void __launch_bounds__(THREADS, 4) encode_signs_kernel(const __grid_constant__ Batch batch) {
  __shared__ Shared shared;
  each_item_of_block(batch, [&](const Task &t, uint32_t pair) {
    encode_pair(t, pair, shared);
    __syncthreads();
  });
}

cudaError_t launch_encode_signs(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_signs_kernel, THREADS, 1, 0, batch, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * randomk: values at places that follow from keys alone, so that every thread finds its own (src/codec/randomk.c). No
 * indices travel. A tensor with anything in it that is not finite is sent as NaN throughout: it is read once to know.
 */
#include "sparse.cuh"

#define THREADS 512
#define WARPS (THREADS / 32)

/* ---- The permutation --------------------------------------------------------------------------------------------- */

INLINE uint32_t permute_once(const Drawing &d, uint32_t number, uint32_t low_bits, uint32_t low_mask,
                             uint32_t high_mask) {
  uint32_t low = number & low_mask, high = low_bits < 32 ? number >> low_bits : 0;
#pragma unroll
  for (int round = 0; round < PITH_PERMUTE_ROUNDS; round += 2) {
    high ^= rng_from(low * RNG_WEYL + d.permute[2 * round], d.permute[2 * round + 1]) & high_mask;
    low ^= rng_from(high * RNG_WEYL + d.permute[2 * round + 2], d.permute[2 * round + 3]) & low_mask;
  }
  return high << low_bits | low;
}

INLINE uint32_t place_of(const Drawing &d, uint32_t number) {
  uint32_t bits = d.s.n < 2 ? 0 : 32 - __clz((int)(d.s.n - 1)), low_bits = bits / 2;
  uint32_t low_mask = (1u << low_bits) - 1, high_mask = (1u << (bits - low_bits)) - 1;
  do {
    number = permute_once(d, number, low_bits, low_mask, high_mask);
  } while (number >= d.s.n);
  return number;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) finite_kernel(const __grid_constant__ Drawing d) {
  size_t step = (size_t)gridDim.x * THREADS, i = (size_t)blockIdx.x * THREADS + threadIdx.x;
  uint32_t most = 0;
  size_t fours = d.s.src_type == PITH_GPU_F32 && ((uintptr_t)d.s.src & 15) == 0 ? d.s.n / 4 : 0;
#pragma unroll 4
  for (size_t f = i; f < fours; f += step) {
    float4 v = ((const float4 *)d.s.src)[f];
    most = max(max(most, max(magnitude(v.x), magnitude(v.y))), max(magnitude(v.z), magnitude(v.w)));
  }
  for (size_t f = 4 * fours + i; f < d.s.n; f += step) {
    most = max(most, magnitude(value_at(d.s.src, d.s.src_type, (uint32_t)f)));
  }
  if (most >= INF_BITS) {
    d.s.control->not_finite = 1;
  }
}

__global__ void __launch_bounds__(THREADS) draw_kernel(const __grid_constant__ Drawing d) {
  const Section &s = d.s;
  bool bad = s.control->not_finite;
  auto value = [&](uint32_t j) { return bad ? nan_value() : value_at(s.src, s.src_type, place_of(d, j)); };
  if (s.coding == PITH_VALUES_Q8) {
    uint32_t blocks = (s.k + PITH_VALUES_BLOCK - 1) / PITH_VALUES_BLOCK;
    for (uint32_t b = blockIdx.x * WARPS + threadIdx.x / 32; b < blocks; b += gridDim.x * WARPS) {
      uint32_t first = b * PITH_VALUES_BLOCK;
      put_q8_block(s.payload + (size_t)b * (PITH_VALUES_BLOCK + PITH_Q8_HEAD), least(PITH_VALUES_BLOCK, s.k - first),
                   [&](uint32_t i) { return value(first + i); });
    }
    return;
  }
  for (size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x; j < s.k; j += (size_t)gridDim.x * THREADS) {
    put_coded(s.payload, s.coding, j, value((uint32_t)j));
  }
}

__global__ void __launch_bounds__(THREADS) take_out_kernel(const __grid_constant__ Drawing d) {
  for (size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x; j < d.s.k; j += (size_t)gridDim.x * THREADS) {
    uint32_t place = place_of(d, (uint32_t)j);
    take_out(d.s, place, d.s.memory[place], get_coded(d.s.payload, d.s.coding, j) * d.factor);
  }
}

cudaError_t launch_drawing_encode(const Drawing &drawing, uint32_t blocks, cudaStream_t stream) {
  finite_kernel<<<blocks, THREADS, 0, stream>>>(drawing);
  draw_kernel<<<blocks, THREADS, 0, stream>>>(drawing);
  if (drawing.s.memory && drawing.s.keeps != PITH_GPU_KEEP_ALL) {
    take_out_kernel<<<blocks, THREADS, 0, stream>>>(drawing);
  }
  return cudaGetLastError();
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

template <bool ADD>
__global__ void __launch_bounds__(THREADS) scatter_kernel(const __grid_constant__ Drawing d) {
  for (size_t j = (size_t)blockIdx.x * THREADS + threadIdx.x; j < d.s.k; j += (size_t)gridDim.x * THREADS) {
    float x = get_coded(d.s.payload, d.s.coding, j) * d.factor;
    apply_value(d.s.dst, d.s.type, place_of(d, (uint32_t)j), x, ADD);
  }
}

cudaError_t launch_drawing_decode(const Drawing &drawing, bool add, uint32_t blocks, cudaStream_t stream) {
  if (add) {
    scatter_kernel<true><<<blocks, THREADS, 0, stream>>>(drawing);
  } else {
    scatter_kernel<false><<<blocks, THREADS, 0, stream>>>(drawing);
  }
  return cudaGetLastError();
}

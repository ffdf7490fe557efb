/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common codec behind a rotation, faster: q in blocks of 512 values, full tiles of f32 values at aligned addresses,
 * with or without a memory; module.cu decides, and gives the rest to rotated.cu. The tile stays in registers, for a
 * memory what was compensated too, so that everything is read once.
 */
#include "rotate_quads.cuh"

#define RESIDENT 8 /* blocks of threads on a processor at least */
#define RESIDENT_MEMORY 4

/* What of a tile p stays once what rotates back to d was sent in its place. */
INLINE void settle_rows(const Task &t, uint32_t i, const float (&p)[QUAD_ROWS][4], float (&d)[QUAD_ROWS][4],
                        Exchange &all) {
  bool lost = t.keeps == PITH_GPU_KEEP_LOST;
  if (lost) {
    turn_back(t, i, d, all);
  }
  EACH_ROW(r) {
    float rest[4];
    EACH_OF_FOUR(c) { rest[c] = lost ? p[r][c] - d[r][c] : p[r][c]; }
    settle_quad(t, i + 128 * r, rest);
  }
}

template <bool MEMORY>
INLINE void encode_tile(const Task &t, uint32_t item, Exchange &all) {
  uint32_t i = lane_start(item), first = warp_start(item);
  bool kept = MEMORY && t.memory;
  float v[QUAD_ROWS][4], p[QUAD_ROWS][4];
  load_rows((const float *)t.values + i, v);
  if (kept) {
    load_rows(t.memory + i, p);
    EACH_ROW(r) {
      EACH_OF_FOUR(c) { v[r][c] = p[r][c] = t.beta * p[r][c] + t.gamma * v[r][c]; }
    }
  }
  bool odd = turn(t, i, v, all);
  float scale = rotation_scale(1u << t.rotation);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float(*rows)[4] = v + half * QUAD_ROWS / 2;
    uint32_t start = first + half * QUAD_BUCKET;
    encode_quads_q<32, false>(t, start, rows, odd && has_odd<32>(rows),
                              t.payload + (size_t)(start / QUAD_BUCKET) * t.block_size, [&](int r, const float(&d)[4]) {
                                EACH_OF_FOUR(c) { rows[r][c] = MEMORY ? d[c] * scale : 0.0f; }
                              });
  }
  if (kept) {
    settle_rows(t, i, p, v, all);
  }
}

/* Items are tiles, all of them full. */
template <bool MEMORY>
__global__ void __launch_bounds__(TURN_THREADS, MEMORY ? RESIDENT_MEMORY : RESIDENT)
    encode_rotated_quads_kernel(const __grid_constant__ Batch batch) {
  __shared__ Exchange all;
  each_item_of_block(batch, [&](const Task &t, uint32_t item) { encode_tile<MEMORY>(t, item, all); });
}

cudaError_t launch_encode_rotated_quads(const Batch &batch, cudaStream_t stream) {
  bool memory = has_any(batch, [](const Task &t) { return t.memory != nullptr; });
  return launch_batch(memory ? encode_rotated_quads_kernel<true> : encode_rotated_quads_kernel<false>, TURN_THREADS, 1,
                      0, batch, stream);
}

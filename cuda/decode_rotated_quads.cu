/* SPDX-License-Identifier: Apache-2.0 */
/* Decoding of block codecs behind a rotation, faster: full tiles of f32 values at aligned addresses, in registers;
 * module.cu decides, and gives the rest to rotated.cu. */
#include "decode_block.cuh"
#include "rotate_quads.cuh"

#define RESIDENT 8 /* blocks of threads on a processor at least */

/* Items are tiles, all of them full. */
template <bool ADD, Rare RARE>
__global__ void __launch_bounds__(TURN_THREADS, RESIDENT)
    decode_rotated_quads_kernel(const __grid_constant__ Batch batch) {
  __shared__ Exchange all;
  __shared__ Tables tables;
  fill_tables(batch, tables);
  each_item_of_block(batch, [&](const Task &t, uint32_t item) {
    uint32_t i = lane_start(item);
    float *values = (float *)t.values + i, v[QUAD_ROWS][4], scale = rotation_scale(1u << t.rotation);
    Cursor cursor = cursor_at(t, warp_start(item));
    with_group<RARE>(t, [&](auto group) { decode_rows<RARE, group.value>(t, cursor, v, tables); });
    EACH_ROW(r) {
      EACH_OF_FOUR(c) { v[r][c] *= scale; }
    }
    turn_back(t, i, v, all);
    if (ADD) {
      float x[QUAD_ROWS][4];
      load_rows(values, x);
      EACH_ROW(r) {
        EACH_OF_FOUR(c) { v[r][c] = x[r][c] + v[r][c]; }
      }
    }
    EACH_ROW(r) { *(float4 *)(values + 128 * r) = to_four(v[r]); }
  });
}

cudaError_t launch_decode_rotated_quads(const Batch &batch, bool add, cudaStream_t stream) {
  bool rare = has_any(batch, is_power);
  auto kernel =
      add ? (rare ? decode_rotated_quads_kernel<true, RARE_ONES> : decode_rotated_quads_kernel<true, USUAL>)
          : (rare ? decode_rotated_quads_kernel<false, RARE_ONES> : decode_rotated_quads_kernel<false, USUAL>);
  return launch_batch(kernel, TURN_THREADS, 1, 0, batch, stream);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fp8, mx and nvfp4, faster: full blocks of 512 f32 values at aligned addresses, in the layout of quads.cuh; module.cu
 * decides, and gives the rest to encode.cu. A row of mx lies in 8 neighbouring lanes, one of nvfp4 in 4.
 */
#include "quads.cuh"

#define RESIDENT 8 /* blocks of threads on a processor at least: leaves 64 registers each */
#define THREADS 128
#define WARPS (THREADS / 32)

INLINE uint32_t most_of_four(const float (&v)[4]) {
  return max(max(magnitude(v[0]), magnitude(v[1])), max(magnitude(v[2]), magnitude(v[3])));
}

/* Of COUNT neighbours. */
template <int COUNT>
INLINE uint32_t most_of_lanes(uint32_t x) {
#pragma unroll
  for (int h = 1; h < COUNT; h *= 2) {
    x = max(x, __shfl_xor_sync(FULL, x, h));
  }
  return x;
}

/* Four codes of each lane. Those of 6 bits are 24 bits of a lane: of four lanes three write a word. */
template <int BITS>
INLINE void put_minis(uint8_t *out, int r, const uint32_t (&code)[4]) {
  if (BITS != 6) {
    put_quad<BITS, LANES>(out, r, join_four<BITS>(code));
    return;
  }
  uint32_t mine = join_four<6>(code), next = __shfl_down_sync(FULL, mine, 1), place = lane16() & 3;
  if (place < 3) {
    ((uint32_t *)out)[12 * r + 3 * (lane16() >> 2) + place] = mine >> 8 * place | next << (24 - 8 * place);
  }
}

template <int TYPE>
INLINE void encode_mx_quads(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  uint32_t mine = 0;
  uint8_t *codes = out + QUAD_BUCKET / PITH_MX_ROW;
  EACH_ROW(r) {
    uint32_t scale = mx_scale<TYPE>(most_of_lanes<8>(most_of_four(q.v[r]))), code[4];
    float inverse = mx_inverse(scale);
    mine = (lane16() & 7) == r ? scale : mine;
    EACH_OF_FOUR(c) { code[c] = scale == PITH_MX_NAN ? 0 : mini_code<TYPE>(q.v[r][c] * inverse); }
    put_minis<Mini<TYPE>::bits>(codes, r, code);
    if (t.memory) {
      float d[4];
      EACH_OF_FOUR(c) { d[c] = mini_value<TYPE>(code[c]) * mx_factor(scale); }
      settle_rows(t, first, q)(r, d);
    }
  }
  out[2 * (lane16() & 7) + (lane16() >> 3)] = (uint8_t)mine;
}

/* Four lanes have a row, eight rows at a time. Each finds the scales of two rows, and gets those of the others. */
INLINE void encode_nv_quads(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  uint32_t row_most[QUAD_ROWS], most = 0, place = lane16() & 3;
  EACH_ROW(r) {
    row_most[r] = most_of_lanes<4>(most_of_four(q.v[r]));
    most = max(most, row_most[r]);
  }
  most = lane_max(most);
  bool bad = most >= INF_BITS;
  float scale = bad ? nan_value() : nv_scale(most), inverse = bad ? 0.0f : nv_inverse(scale), row[2], factor[2];
  uint8_t *rows = out + PITH_HEAD_ONE, *codes = rows + QUAD_BUCKET / PITH_NV_ROW;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const uint32_t *of = row_most + 4 * h;
    uint32_t mine = place < 2 ? (place == 0 ? of[0] : of[1]) : (place == 2 ? of[2] : of[3]);
    uint32_t byte = bad ? 0 : mini_code<PITH_MINI_E4M3>(float_of(mine) * inverse);
    row[h] = mini_value<PITH_MINI_E4M3>(byte) * scale;
    factor[h] = nv_factor(row[h]);
    rows[LANES * h + 4 * place + (lane16() >> 2)] = (uint8_t)byte;
  }
  if (lane16() == 0) {
    *(float *)out = scale;
  }
  EACH_ROW(r) {
    float by = __shfl_sync(FULL, factor[r / 4], r % 4, 4);
    uint32_t code[4];
    EACH_OF_FOUR(c) { code[c] = mini_code<PITH_MINI_E2M1>(q.v[r][c] * by); }
    put_quad<4, LANES>(codes, r, bad ? 0 : join_four<4>(code));
    if (t.memory) {
      float d[4], unit = __shfl_sync(FULL, row[r / 4], r % 4, 4);
      EACH_OF_FOUR(c) { d[c] = mini_value<PITH_MINI_E2M1>(bad ? 0 : code[c]) * unit; }
      settle_rows(t, first, q)(r, d);
    }
  }
}

template <int TYPE>
INLINE void encode_fp8_quads(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  float most = largest_of(q), size = most / fp8_largest(t);
  bool bad = most != most;
  float scale = bad ? nan_value() : size < PITH_SCALE_MIN ? 0.0f : size, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  if (lane16() == 0) {
    *(float *)out = scale;
  }
  EACH_ROW(r) {
    uint32_t code[4];
    EACH_OF_FOUR(c) { code[c] = bad ? 0 : mini_code<TYPE>(q.v[r][c] * inverse); }
    put_minis<8>(out + PITH_HEAD_ONE, r, code);
    if (t.memory) {
      float d[4];
      EACH_OF_FOUR(c) { d[c] = scale * mini_value<TYPE>(code[c]); }
      settle_rows(t, first, q)(r, d);
    }
  }
}

INLINE void encode_minis(const Task &t, uint32_t first, uint8_t *out) {
  Quads q;
  load_quads(t, first, q);
  if (t.kind == PITH_WIRE_NVFP4) {
    encode_nv_quads(t, first, q, out);
  } else if (t.kind == PITH_WIRE_MX) {
    with_mini(t.choice, [&](auto mini) { encode_mx_quads<mini.type>(t, first, q, out); });
  } else if (t.choice == PITH_MINI_E4M3) {
    encode_fp8_quads<PITH_MINI_E4M3>(t, first, q, out);
  } else {
    encode_fp8_quads<PITH_MINI_E5M2>(t, first, q, out);
  }
}

/* Items are pairs of blocks, all of them full. */
__global__ void __launch_bounds__(THREADS, RESIDENT) encode_minis_kernel(const __grid_constant__ Batch batch) {
  each_item_of_warp(batch, [&](const Task &t, uint32_t pair) {
    uint32_t block = 2 * pair + half_of_warp();
    encode_minis(t, block * QUAD_BUCKET, t.payload + (size_t)block * t.block_size);
  });
}

cudaError_t launch_encode_minis(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_minis_kernel, THREADS, WARPS, 0, batch, stream);
}

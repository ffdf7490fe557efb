/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The common case, faster: full blocks of 512 f32 values at aligned addresses, of casts, q, gq, qsgd, natural and
 * tree8; module.cu decides, and gives the rest to encode.cu. Where a sum is needed (qsgd by the norm), values go by way
 * of shared memory to the lanes that must add them.
 */
#include "quads.cuh"

#define RESIDENT 8 /* blocks of threads on a processor at least: leaves 64 registers each */
#define THREADS 128
#define WARPS (THREADS / 32)

/* Σx² in the order of all sums: lane j adds values j, j + 16, … */
INLINE float ordered_squares(const Quads &q, float *row) {
  EACH_ROW(r) { ((float4 *)row)[LANES * r + lane16()] = make_float4(q.v[r][0], q.v[r][1], q.v[r][2], q.v[r][3]); }
  __syncwarp();
  float sum = 0.0f;
  EACH_STEP(k, STEPS) {
    float x = row[LANES * k + lane16()];
    sum += x * x;
  }
  __syncwarp();
  return lane_sum(sum);
}

/* The norm; not finite if anything is not. A usual sum of squares tells that all is. */
INLINE float norm_of_quads(const Task &t, uint32_t first, const Quads &q, float *row) {
  float squares = ordered_squares(q, row), scale = sqrtf(squares);
  if (__any_sync(FULL, !(squares > 0x1p-80f && squares < 0x1p+126f))) {
    float most = largest_of(q);
    bool bad = most != most;
    double norm = norm_of(TensorSource{t, first, QUAD_BUCKET}, squares, bad ? INF_BITS : bits_of(most));
    scale = bad ? nan_value() : (float)norm;
  }
  return scale;
}

INLINE void encode_quads_around_zero(const Task &t, uint32_t first, const Quads &q, uint8_t *out, float *row) {
  bool l2 = t.kind == PITH_WIRE_QSGD && t.norm == PITH_NORM_L2;
  float scale = l2 ? norm_of_quads(t, first, q, row) : largest_of(q), levels = (float)t.levels;
  bool bad = !is_finite(scale);
  scale = bad ? nan_value() : scale < PITH_SCALE_MIN ? 0.0f : scale;
  Uniform u = {0.0f, scale > 0 ? levels / scale : 0.0f, levels, 2 * levels, 0.0f, scale / levels};
  if (lane16() == 0) {
    *(float *)out = scale;
  }
  emit_quads_by_bits<true, LANES>(t, first, q.v, u, bad, out + PITH_HEAD_ONE, settle_rows(t, first, q));
}

INLINE void emit_natural(const Task &t, uint32_t start, const Quads &q, Natural n, bool bad, uint8_t *out) {
  EACH_ROW(r) {
    uint32_t w[4];
    EACH_OF_FOUR(c) { w[c] = natural_word(q.v[r][c], n, rng_from(start + (64 * r + c) * RNG_WEYL, t.key1)); }
    uint32_t word = __byte_perm(__byte_perm(w[0], w[1], 0x0073), __byte_perm(w[2], w[3], 0x0073), 0x5410);
    put_quad<8, LANES>(out, r, bad ? 0 : word);
  }
}

INLINE void encode_quads_bytes(const Task &t, uint32_t first, const Quads &q, uint8_t *out, const Tables &tables) {
  float most = largest_of(q);
  bool bad = most != most, natural = t.kind == PITH_WIRE_NATURAL;
  int top = (int)least((bits_of(most) >> 23) + 1, 254);
  float scale = bad ? nan_value() : most < PITH_SCALE_MIN ? 0.0f : most, inverse = scale > 0 ? 1.0f / scale : 0.0f;
  uint32_t start = (t.index + first + 4 * lane16()) * RNG_WEYL + t.key0;
  if (lane16() == 0) {
    *(float *)out = natural && !bad ? float_of((uint32_t)top << 23) : scale;
  }
  if (natural && !t.memory && __all_sync(FULL, top < 254 || bad)) {
    return emit_natural(t, start, q, natural_of(top), bad, out + PITH_HEAD_ONE);
  }
  EACH_ROW(r) {
    uint32_t byte[4];
    EACH_OF_FOUR(c) {
      byte[c] = natural ? natural_byte(q.v[r][c], top, rng_from(start + (64 * r + c) * RNG_WEYL, t.key1))
                        : tree8_word(q.v[r][c] * inverse, tables);
    }
    put_quad<8, LANES>(out + PITH_HEAD_ONE, r, bad ? 0 : join_four<8>(byte));
    if (t.memory) {
      float d[4];
      EACH_OF_FOUR(c) {
        d[c] = bad ? nan_value() : natural ? natural_value(byte[c], top) : scale * tree8_value(byte[c], tables.tree);
      }
      settle_rows(t, first, q)(r, d);
    }
  }
}

INLINE uint32_t join_halves(const Task &t, float low, float high) {
  return t.kind == PITH_WIRE_FP16 ? f32_to_f16x2(low, high) : f32_to_bf16x2(low, high);
}

INLINE float half_value(const Task &t, uint32_t half) {
  return t.kind == PITH_WIRE_FP16 ? f16_to_f32((uint16_t)half) : bf16_to_f32((uint16_t)half);
}

INLINE void encode_quads_cast(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  EACH_ROW(r) {
    const float(&v)[4] = q.v[r];
    uint2 words = make_uint2(0, 0);
    if (t.kind == PITH_WIRE_NONE) {
      ((float4 *)out)[LANES * r + lane16()] = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      words = make_uint2(join_halves(t, v[0], v[1]), join_halves(t, v[2], v[3]));
      ((uint2 *)out)[LANES * r + lane16()] = words;
    }
    if (t.memory) {
      float d[4] = {v[0], v[1], v[2], v[3]};
      if (t.kind != PITH_WIRE_NONE) {
        d[0] = half_value(t, words.x), d[1] = half_value(t, words.x >> 16);
        d[2] = half_value(t, words.y), d[3] = half_value(t, words.y >> 16);
      }
      settle_rows(t, first, q)(r, d);
    }
  }
}

INLINE void encode_quads(const Task &t, uint32_t first, uint8_t *out, float *row, const Tables &tables) {
  Quads q;
  load_quads(t, first, q);
  switch (t.kind) {
    case PITH_WIRE_NONE:
    case PITH_WIRE_FP16:
    case PITH_WIRE_BF16:
      return encode_quads_cast(t, first, q, out);
    case PITH_WIRE_Q:
      return encode_quads_q<LANES, true>(t, first, q.v, false, out, settle_rows(t, first, q));
    case PITH_WIRE_NATURAL:
    case PITH_WIRE_TREE8:
      return encode_quads_bytes(t, first, q, out, tables);
    default:
      return encode_quads_around_zero(t, first, q, out, row);
  }
}

/* Items are pairs of blocks, all of them full. */
__global__ void __launch_bounds__(THREADS, RESIDENT) encode_quads_kernel(const __grid_constant__ Batch batch) {
  __shared__ __align__(16) float rows[THREADS / LANES][QUAD_BUCKET + LANES];
  __shared__ Tables tables;
  fill_tables(batch, tables);
  float *row = rows[threadIdx.x / LANES];
  each_item_of_warp(batch, [&](const Task &t, uint32_t pair) {
    uint32_t block = 2 * pair + half_of_warp();
    encode_quads(t, block * QUAD_BUCKET, t.payload + (size_t)block * t.block_size, row, tables);
  });
}

cudaError_t launch_encode_quads(const Batch &batch, cudaStream_t stream) {
  return launch_batch(encode_quads_kernel, THREADS, WARPS, 0, batch, stream);
}

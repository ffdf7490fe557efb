/*
 * The common case, faster: full blocks of 512 f32 values at aligned addresses, of casts, q, gq, qsgd, natural and tree8; module.cu
 * decides, and gives the rest to encode.cu. Least and greatest values do not depend on an order, so that a lane can take four
 * neighbours at a time: lane j of a half-warp holds values 64·r + 4·j + c. Levels then pack without leaving their lane. Where a sum
 * is needed too (qsgd by the norm), values go by way of shared memory to the lanes that must add them.
 */
#include "batch.cuh"
#include "encode_block.cuh"

#define QUAD_ROWS 8
#ifndef QUAD_RESIDENT
#define QUAD_RESIDENT 7 /* blocks of threads on a processor at least: leaves 72 registers each */
#endif
#define THREADS 128
#define WARPS (THREADS / 32)

#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < QUAD_ROWS; r++)
#define EACH_OF_FOUR(c) _Pragma("unroll") for (int c = 0; c < 4; c++)

struct Quads {
  float v[QUAD_ROWS][4];
};

INLINE void load_quads(const Task &t, uint32_t first, Quads &q) {
  const float4 *p = (const float4 *)((const float *)t.values + first) + lane16();
  EACH_ROW(r) {
    float4 x = p[LANES * r];
    q.v[r][0] = x.x, q.v[r][1] = x.y, q.v[r][2] = x.z, q.v[r][3] = x.w;
  }
  if (t.memory) {
    const float4 *e = (const float4 *)(t.memory + first) + lane16();
    EACH_ROW(r) {
      float4 x = e[LANES * r];
      float old[4] = {x.x, x.y, x.z, x.w};
      EACH_OF_FOUR(c) { q.v[r][c] = t.beta * old[c] + t.gamma * q.v[r][c]; }
    }
  }
}

INLINE void settle_quad(const Task &t, uint32_t i, const float (&rest)[4]) {
  if (is_finite(rest[0]) && is_finite(rest[1]) && is_finite(rest[2]) && is_finite(rest[3])) {
    *(float4 *)(t.memory + i) = make_float4(rest[0], rest[1], rest[2], rest[3]);
    return;
  }
  for (int c = 0; c < 4; c++) {
    if (is_finite(rest[c])) {
      t.memory[i + c] = rest[c];
    }
  }
}

/* The low bits of four words, next to each other. Words of levels are those of level + ROUNDER, whose 22 lowest bits are the level. */
template <int BITS>
INLINE uint32_t join_four(const uint32_t (&w)[4]) {
  if (BITS == 8) {
    return __byte_perm(__byte_perm(w[0], w[1], 0x0040), __byte_perm(w[2], w[3], 0x0040), 0x5410);
  }
  return ((w[3] * (1u << BITS) + w[2]) * (1u << BITS) + w[1]) * (1u << BITS) + w[0];
}

template <int BITS>
INLINE void put_quad(uint8_t *out, int r, uint32_t word) {
  uint32_t at = LANES * r + lane16();
  if (BITS == 8) {
    ((uint32_t *)out)[at] = word;
  } else if (BITS == 4) {
    ((uint16_t *)out)[at] = (uint16_t)word;
  } else {
    out[at] = (uint8_t)word;
  }
}

/* level + ROUNDER; see level_value in codes.cuh. */
template <bool RANDOM>
INLINE float raised_level(const Uniform &u, float x, uint32_t noise, uint32_t k1) {
  float t = (x - u.lo) * u.inverse;
  if (!RANDOM) {
    return t + ROUNDER;
  }
  float whole = floorf(t), more = unit_of(rng_from(noise, k1)) < t - whole ? 1.0f : 0.0f;
  return fminf(fmaxf(whole + (u.zero + ROUNDER) + more, ROUNDER), u.top + ROUNDER);
}

template <int BITS, bool RANDOM>
INLINE void emit_quads(const Task &t, uint32_t first, const Quads &q, const Uniform &u, bool bad, uint8_t *out) {
  uint32_t start = (t.index + first + 4 * lane16()) * RNG_WEYL + t.key0;
  EACH_ROW(r) {
    float level[4];
    EACH_OF_FOUR(c) { level[c] = raised_level<RANDOM>(u, q.v[r][c], start + (64 * r + c) * RNG_WEYL, t.key1); }
    uint32_t word[4] = {bits_of(level[0]), bits_of(level[1]), bits_of(level[2]), bits_of(level[3])};
    put_quad<BITS>(out, r, bad ? 0 : join_four<BITS>(word));
    if (t.memory) {
      float rest[4];
      EACH_OF_FOUR(c) {
        float d = u.base + u.unit * (level[c] - ROUNDER - u.zero);
        rest[c] = t.keeps == PITH_GPU_KEEP_LOST ? q.v[r][c] - d : q.v[r][c];
      }
      settle_quad(t, first + 64 * r + 4 * lane16(), rest);
    }
  }
}

template <bool RANDOM>
INLINE void emit_quads_by_bits(const Task &t, uint32_t first, const Quads &q, const Uniform &u, bool bad, uint8_t *out) {
  switch (t.bits) {
    case 8:
      return emit_quads<8, RANDOM>(t, first, q, u, bad, out);
    case 4:
      return emit_quads<4, RANDOM>(t, first, q, u, bad, out);
    default:
      return emit_quads<2, RANDOM>(t, first, q, u, bad, out);
  }
}

/* The largest |x|; NaN if anything is not finite. */
INLINE float largest_of(const Quads &q) {
  float most = 0.0f, poison = 0.0f;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      most = fmaxf(most, fabsf(q.v[r][c]));
      poison = __fmaf_rn(q.v[r][c], 0.0f, poison);
    }
  }
  most = lane_greatest(most);
  return lane_any(poison != poison) ? nan_value() : most;
}

INLINE void encode_quads_q(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  float lo = q.v[0][0], hi = lo, poison = 0.0f;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      lo = fminf(lo, q.v[r][c]);
      hi = fmaxf(hi, q.v[r][c]);
      poison = __fmaf_rn(q.v[r][c], 0.0f, poison);
    }
  }
  lo = lane_least(lo) + 0.0f;
  hi = lane_greatest(hi) + 0.0f;
  float range = hi - lo, top = (float)((1 << t.bits) - 1);
  bool bad = lane_any(poison != poison) || !is_finite(range), flat = range < PITH_LEAST_SCALE;
  Uniform u = {lo, flat ? 0.0f : top / range, 0.0f, top, bad ? nan_value() : lo, bad ? nan_value() : flat ? 0.0f : range / top};
  if (lane16() < 2) {
    ((float *)out)[lane16()] = lane16() ? u.unit : u.base;
  }
  if (t.choice == PITH_ROUND_NEAREST) {
    emit_quads_by_bits<false>(t, first, q, u, bad, out + PITH_HEAD_TWO);
  } else {
    emit_quads_by_bits<true>(t, first, q, u, bad, out + PITH_HEAD_TWO);
  }
}

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
  bool l2 = t.kind == PITH_WIRE_QSGD && t.choice == PITH_NORM_L2;
  float scale = l2 ? norm_of_quads(t, first, q, row) : largest_of(q), levels = (float)t.levels;
  bool bad = !is_finite(scale);
  scale = bad ? nan_value() : scale < PITH_LEAST_SCALE ? 0.0f : scale;
  Uniform u = {0.0f, scale > 0 ? levels / scale : 0.0f, levels, 2 * levels, 0.0f, scale / levels};
  if (lane16() == 0) {
    *(float *)out = scale;
  }
  emit_quads_by_bits<true>(t, first, q, u, bad, out + PITH_HEAD_ONE);
}

INLINE void emit_natural(const Task &t, uint32_t start, const Quads &q, Natural n, bool bad, uint8_t *out) {
  EACH_ROW(r) {
    uint32_t w[4];
    EACH_OF_FOUR(c) { w[c] = natural_word(q.v[r][c], n, rng_from(start + (64 * r + c) * RNG_WEYL, t.key1)); }
    uint32_t word = __byte_perm(__byte_perm(w[0], w[1], 0x0073), __byte_perm(w[2], w[3], 0x0073), 0x5410);
    put_quad<8>(out, r, bad ? 0 : word);
  }
}

INLINE void encode_quads_bytes(const Task &t, uint32_t first, const Quads &q, uint8_t *out, const float *tree) {
  float most = largest_of(q);
  bool bad = most != most, natural = t.kind == PITH_WIRE_NATURAL;
  int top = (int)least((bits_of(most) >> 23) + 1, 254);
  float scale = bad ? nan_value() : most < PITH_LEAST_SCALE ? 0.0f : most, inverse = scale > 0 ? 1.0f / scale : 0.0f;
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
                        : tree8_byte(q.v[r][c] * inverse);
    }
    put_quad<8>(out + PITH_HEAD_ONE, r, bad ? 0 : join_four<8>(byte));
    if (t.memory) {
      float rest[4];
      EACH_OF_FOUR(c) {
        float d = bad ? nan_value() : natural ? natural_value(byte[c], top) : scale * tree8_value(byte[c], tree);
        rest[c] = t.keeps == PITH_GPU_KEEP_LOST ? q.v[r][c] - d : q.v[r][c];
      }
      settle_quad(t, first + 64 * r + 4 * lane16(), rest);
    }
  }
}

INLINE uint32_t join_halves(const Task &t, float low, float high) {
  uint32_t a = t.kind == PITH_WIRE_FP16 ? f32_to_f16(low) : f32_to_bf16(low);
  uint32_t b = t.kind == PITH_WIRE_FP16 ? f32_to_f16(high) : f32_to_bf16(high);
  return a | b << 16;
}

INLINE float half_value(const Task &t, uint32_t half) {
  return t.kind == PITH_WIRE_FP16 ? f16_to_f32((uint16_t)half) : bf16_to_f32((uint16_t)half);
}

INLINE void encode_quads_cast(const Task &t, uint32_t first, const Quads &q, uint8_t *out) {
  EACH_ROW(r) {
    const float(&v)[4] = q.v[r];
    float d[4] = {v[0], v[1], v[2], v[3]};
    if (t.kind == PITH_WIRE_NONE) {
      ((float4 *)out)[LANES * r + lane16()] = make_float4(v[0], v[1], v[2], v[3]);
    } else {
      uint2 words = make_uint2(join_halves(t, v[0], v[1]), join_halves(t, v[2], v[3]));
      ((uint2 *)out)[LANES * r + lane16()] = words;
      d[0] = half_value(t, words.x), d[1] = half_value(t, words.x >> 16);
      d[2] = half_value(t, words.y), d[3] = half_value(t, words.y >> 16);
    }
    if (t.memory) {
      float rest[4];
      EACH_OF_FOUR(c) { rest[c] = t.keeps == PITH_GPU_KEEP_LOST ? v[c] - d[c] : v[c]; }
      settle_quad(t, first + 64 * r + 4 * lane16(), rest);
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
      return encode_quads_q(t, first, q, out);
    case PITH_WIRE_NATURAL:
    case PITH_WIRE_TREE8:
      return encode_quads_bytes(t, first, q, out, tables.tree);
    default:
      return encode_quads_around_zero(t, first, q, out, row);
  }
}

/* Items are pairs of blocks, all of them full. */
__global__ void __launch_bounds__(THREADS, QUAD_RESIDENT) encode_quads_kernel(const __grid_constant__ Batch batch) {
  __shared__ __align__(16) float rows[THREADS / LANES][QUAD_BUCKET + LANES];
  __shared__ Tables tables;
  fill_tables(tables);
  float *row = rows[threadIdx.x / LANES];
  uint32_t task = 0, step = gridDim.x * WARPS;
  for (uint32_t item = blockIdx.x * WARPS + threadIdx.x / 32; item < batch.items; item += step) {
    while (item >= batch.task[task].end) {
      task++;
    }
    const Task &t = batch.task[task];
    uint32_t block = 2 * (item - t.begin) + half_of_warp();
    encode_quads(t, block * QUAD_BUCKET, t.payload + (size_t)block * t.block_size, row, tables);
  }
}

cudaError_t launch_encode_quads(const Batch &batch, cudaStream_t stream) {
  uint32_t blocks;
  cudaError_t error = grid_for(encode_quads_kernel, THREADS, 0, (batch.items + WARPS - 1) / WARPS, &blocks);
  if (error == cudaSuccess) {
    encode_quads_kernel<<<blocks, THREADS, 0, stream>>>(batch);
    error = cudaGetLastError();
  }
  return error;
}

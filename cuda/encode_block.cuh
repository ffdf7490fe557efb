/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The block codecs: each function encodes a block for each half of a warp. The payload is that of src/codec and
 * docs/format.md, byte for byte. A block of up to 512 values is read once and stays in registers; larger ones are read
 * twice.
 *
 * `stage` is 1 KiB of shared memory of this half-warp: levels, one in a byte, and behind them the packed bytes.
 */
#pragma once

#include "codes.cuh"
#include "source.cuh"

#define STAGE (2 * CHUNK)

#define EACH_STEP(k, n) _Pragma("unroll") for (int k = 0; k < (n); k++)

INLINE uint32_t chunks_of(const Task &t, uint32_t chunk) { return (t.bucket + chunk - 1) / chunk; }

/* How many values of a chunk exist. */
INLINE uint32_t count_from(uint32_t m, uint32_t from, uint32_t chunk) { return from < m ? least(m - from, chunk) : 0; }

INLINE void forget(float (&v)[STEPS]) {
  EACH_STEP(k, STEPS) { v[k] = 0.0f; }
}

/* A bad block decodes to NaN. A memory still keeps those of its values that are finite themselves, read once more:
 * forget() took them. */
template <class Source>
INLINE void keep_bad(const Source &s, uint32_t from) {
#pragma unroll 1
  for (uint32_t i = from + lane16(); i < least(s.m, from + CHUNK); i += LANES) {
    s.keep(i, s.one(i), nan_value());
  }
}

/* ---- Packing ----------------------------------------------------------------------------------------------------- */

/* Eight levels, one in a byte, to eight of `bits` bits. */
INLINE uint64_t pack8(uint2 x, int bits) {
  uint32_t a = (x.x & 0x00ff00ffu) | (x.x & 0xff00ff00u) >> (8 - bits);
  uint32_t b = (x.y & 0x00ff00ffu) | (x.y & 0xff00ff00u) >> (8 - bits);
  a = (a & 0xffffu) | a >> 16 << 2 * bits;
  b = (b & 0xffffu) | b >> 16 << 2 * bits;
  return (uint64_t)b << 4 * bits | a;
}

/* Packs `count` staged levels; those behind them are zero. */
INLINE void put_levels(uint8_t *stage, uint8_t *out, uint32_t count, int bits) {
  __syncwarp();
  if (bits == 8) {
    copy_out(stage, out, count);
  } else {
    bool direct = (bits == 4 || bits == 2) && count == CHUNK && aligned4(out);
    uint8_t *packed = stage + CHUNK;
    EACH_STEP(i, 4) {
      uint32_t group = lane16() + LANES * i;
      uint64_t word = pack8(*(const uint2 *)(stage + 8 * group), bits);
      if (direct && bits == 4) {
        ((uint32_t *)out)[group] = (uint32_t)word;
      } else if (direct) {
        ((uint16_t *)out)[group] = (uint16_t)word;
      } else {
        for (int c = 0; c < bits; c++) {
          packed[group * bits + c] = (uint8_t)(word >> 8 * c);
        }
      }
    }
    __syncwarp();
    copy_out(packed, out, direct ? 0 : (count * bits + 7) / 8);
  }
  __syncwarp();
}

/* ---- Sums -------------------------------------------------------------------------------------------------------- */

/* In order, in double: where the sums of 16 lanes left the range of f32. Rare, and as slow as it looks. */
template <class Source, class Term>
INLINE double serial_sum(const Source &s, bool needed, Term term) {
  double sum = 0;
  if (needed && lane16() == 0) {
    for (uint32_t i = 0; i < s.m; i++) {
      sum += term((double)s.one(i));
    }
  }
  __syncwarp();
  return lane_first(sum);
}

template <class Source>
INLINE double norm_of(const Source &s, float sum_squares, uint32_t most) {
  bool fine = sum_squares > 0x1p-80f && sum_squares < 0x1p+126f;
  bool needed = !fine && most != 0 && most < INF_BITS;
  double norm = fine ? (double)sqrtf(sum_squares) : 0.0;
  if (__any_sync(FULL, needed)) {
    double slow = sqrt(serial_sum(s, needed, [](double x) { return x * x; }));
    norm = needed ? slow : norm;
  }
  return norm;
}

template <class Source>
INLINE double sum_abs_of(const Source &s, float sum_abs, uint32_t most) {
  bool needed = !is_finite(sum_abs) && most < INF_BITS;
  double sum = sum_abs;
  if (__any_sync(FULL, needed)) {
    double slow = serial_sum(s, needed, [](double x) { return fabs(x); });
    sum = needed ? slow : sum;
  }
  return sum;
}

INLINE float usable_scale(float scale) { return scale < PITH_SCALE_MIN ? 0.0f : scale; }

/* ---- none, fp16, bf16 -------------------------------------------------------------------------------------------- */

template <class Source>
INLINE void encode_cast(const Source &s, const Task &t, uint8_t *out) {
  float v[STEPS];
  for (uint32_t from = 0; from < t.bucket; from += CHUNK) {
    s.template load<STEPS>(v, from, 0.0f);
    EACH_STEP(k, STEPS) {
      uint32_t i = from + LANES * k + lane16();
      if (i < s.m) {
        float d = v[k];
        if (t.kind == PITH_WIRE_NONE) {
          put_f32(out + 4 * i, d);
        } else {
          uint16_t h = t.kind == PITH_WIRE_FP16 ? f32_to_f16(d) : f32_to_bf16(d);
          d = t.kind == PITH_WIRE_FP16 ? f16_to_f32(h) : bf16_to_f32(h);
          if (((uintptr_t)out & 1) == 0) {
            *(uint16_t *)(out + 2 * i) = h;
          } else {
            out[2 * i] = (uint8_t)h;
            out[2 * i + 1] = (uint8_t)(h >> 8);
          }
        }
        if (s.keeps()) {
          s.keep(i, v[k], d);
        }
      }
    }
  }
}

/* ---- q, qsgd, gq ------------------------------------------------------------------------------------------------- */

/* Borders from the least and greatest value. */
template <class Source>
INLINE Uniform borders_of(const Source &s, const Task &t, float (&v)[STEPS], bool *bad) {
  float lo = INFINITY, hi = -INFINITY, poison = 0.0f, pad = 0.0f;
  if (s.m % CHUNK != 0) {
    pad = s.one(0);
  }
  for (uint32_t c = 0; c < chunks_of(t, CHUNK); c++) {
    s.template load<STEPS>(v, c * CHUNK, pad);
    EACH_STEP(k, STEPS) {
      lo = fminf(lo, v[k]);
      hi = fmaxf(hi, v[k]);
      poison = __fmaf_rn(v[k], 0.0f, poison); /* NaN from the first value that is not finite */
    }
  }
  lo = lane_least(lo) + 0.0f;
  hi = lane_greatest(hi) + 0.0f;
  float range = hi - lo, top = (float)((1 << t.bits) - 1);
  bool flat = range < PITH_SCALE_MIN;
  *bad = lane_any(poison != poison) || !is_finite(range);
  return Uniform{lo, flat ? 0.0f : top / range, 0.0f, top, lo, flat ? 0.0f : range / top};
}

/* The norm as a scale. A usual sum of squares tells that all values are finite; the largest is only looked for
 * otherwise. */
template <class Source>
INLINE float l2_norm(const Source &s, const Task &t, float squares, float (&v)[STEPS]) {
  float scale = sqrtf(squares);
  if (__any_sync(FULL, !(squares > 0x1p-80f && squares < 0x1p+126f))) {
    uint32_t most = 0;
    for (uint32_t c = 0; c < chunks_of(t, CHUNK); c++) {
      s.template load<STEPS>(v, c * CHUNK, 0.0f);
      EACH_STEP(k, STEPS) { most = max(most, magnitude(v[k])); }
    }
    most = lane_max(most);
    double norm = norm_of(s, squares, most);
    scale = most >= INF_BITS ? float_of(most) : (float)norm;
  }
  return scale;
}

/* Borders from the norm or the greatest |x|. */
template <class Source>
INLINE Uniform around_zero(const Source &s, const Task &t, float (&v)[STEPS], bool *bad, float *head) {
  uint32_t most = 0;
  float squares = 0.0f;
  bool l2 = t.kind != PITH_WIRE_GQ && t.norm == PITH_NORM_L2;
  for (uint32_t c = 0; c < chunks_of(t, CHUNK); c++) {
    s.template load<STEPS>(v, c * CHUNK, 0.0f);
    if (l2) {
      EACH_STEP(k, STEPS) { squares += v[k] * v[k]; }
    } else {
      EACH_STEP(k, STEPS) { most = max(most, magnitude(v[k])); }
    }
  }
  float scale, levels = (float)t.levels;
  if (l2) {
    scale = l2_norm(s, t, lane_sum(squares), v);
  } else {
    scale = float_of(lane_max(most));
  }
  *bad = !is_finite(scale);
  scale = usable_scale(scale);
  *head = scale;
  return Uniform{0.0f, scale > 0 ? levels / scale : 0.0f, levels, 2 * levels, 0.0f, scale / levels};
}

template <bool RANDOM, class Source>
INLINE void emit_uniform(const Source &s, const Task &t, Uniform u, bool bad, float (&v)[STEPS], uint8_t *out,
                         uint8_t *stage) {
  uint32_t chunks = chunks_of(t, CHUNK), start = (t.index + s.origin + lane16()) * RNG_WEYL + t.key0;
  for (uint32_t c = 0; c < chunks; c++) {
    uint32_t from = c * CHUNK, count = count_from(s.m, from, CHUNK), noise = start + from * RNG_WEYL;
    if (chunks > 1) {
      s.template load<STEPS>(v, from, 0.0f);
    }
    if (bad) {
      forget(v);
    }
    if (count == CHUNK) {
      EACH_STEP(k, STEPS) {
        stage[LANES * k + lane16()] = level_byte<RANDOM>(u, v[k], noise + LANES * k * RNG_WEYL, t.key1);
      }
    } else {
      EACH_STEP(k, STEPS) {
        uint32_t level = level_byte<RANDOM>(u, v[k], noise + LANES * k * RNG_WEYL, t.key1);
        stage[LANES * k + lane16()] = LANES * k + lane16() < count ? level : 0;
      }
    }
    put_levels(stage, out + from / 8 * t.bits, count, t.bits);
    if (s.keeps() && bad) {
      keep_bad(s, from);
    } else if (s.keeps()) {
      EACH_STEP(k, STEPS) {
        float level = level_value<RANDOM>(u, v[k], noise + LANES * k * RNG_WEYL, t.key1);
        s.keep(from + LANES * k + lane16(), v[k], u.base + u.unit * (level - u.zero));
      }
    }
  }
}

template <class Source>
INLINE void encode_uniform(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  float v[STEPS], first = 0.0f;
  bool bad, is_q = t.kind == PITH_WIRE_Q;
  Uniform u = is_q ? borders_of(s, t, v, &bad) : around_zero(s, t, v, &bad, &first);
  if (bad) { /* zeros in place of levels, NaN in place of scales */
    u = Uniform{0.0f, 0.0f, 0.0f, 0.0f, nan_value(), nan_value()};
    first = nan_value();
  }
  if (s.m && lane16() == 0) {
    put_f32(out, is_q ? u.base : first);
    if (is_q) {
      put_f32(out + 4, u.unit);
    }
  }
  out += is_q ? PITH_HEAD_TWO : PITH_HEAD_ONE;
  if (is_q && t.choice == PITH_ROUND_NEAREST) {
    emit_uniform<false>(s, t, u, bad, v, out, stage);
  } else {
    emit_uniform<true>(s, t, u, bad, v, out, stage);
  }
}

/* ---- nuq --------------------------------------------------------------------------------------------------------- */

template <class Source>
INLINE void encode_powers(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  float v[STEPS], scale = 0.0f;
  bool bad;
  Uniform u = around_zero(s, t, v, &bad, &scale);
  scale = bad ? nan_value() : scale;
  if (s.m && lane16() == 0) {
    put_f32(out, scale);
  }
  out += PITH_HEAD_ONE;
  uint32_t chunks = chunks_of(t, CHUNK), start = (t.index + s.origin + lane16()) * RNG_WEYL + t.key0;
  for (uint32_t c = 0; c < chunks; c++) {
    uint32_t from = c * CHUNK, noise = start + from * RNG_WEYL;
    if (chunks > 1) {
      s.template load<STEPS>(v, from, 0.0f);
    }
    if (bad) {
      forget(v);
    }
    EACH_STEP(k, STEPS) { /* places that do not exist are zeros, and so are their codes */
      float unit = t.choice == PITH_ROUND_NEAREST ? 0.5f : unit_of(rng_from(noise + LANES * k * RNG_WEYL, t.key1));
      stage[LANES * k + lane16()] = power_code(v[k] * u.inverse, t.bits, unit);
    }
    put_levels(stage, out + from / 8 * t.bits, count_from(s.m, from, CHUNK), t.bits);
    if (s.keeps() && bad) {
      keep_bad(s, from);
    } else if (s.keeps()) {
      EACH_STEP(k, STEPS) {
        s.keep(from + LANES * k + lane16(), v[k], scale * power_value(stage[LANES * k + lane16()], t.bits));
      }
    }
    __syncwarp();
  }
}

/* ---- natural, tree8, fp8 ----------------------------------------------------------------------------------------- */

template <class Source>
INLINE void encode_byte(const Source &s, const Task &t, uint8_t *out, uint8_t *stage, const Tables &tables) {
  float v[STEPS];
  uint32_t most = 0, chunks = chunks_of(t, CHUNK), start = (t.index + s.origin + lane16()) * RNG_WEYL + t.key0;
  bool natural = t.kind == PITH_WIRE_NATURAL, fp8 = t.kind == PITH_WIRE_FP8;
  for (uint32_t c = 0; c < chunks; c++) {
    s.template load<STEPS>(v, c * CHUNK, 0.0f);
    EACH_STEP(k, STEPS) { most = max(most, magnitude(v[k])); }
  }
  most = lane_max(most);
  bool bad = most >= INF_BITS;
  int top = (int)least((most >> 23) + 1, 254);
  float scale = usable_scale(fp8 ? float_of(most) / fp8_largest(t) : float_of(most)),
        inverse = scale > 0 ? 1.0f / scale : 0.0f;
  scale = bad ? nan_value() : scale;
  if (s.m && lane16() == 0) {
    put_f32(out, natural && !bad ? float_of((uint32_t)top << 23) : scale);
  }
  out += PITH_HEAD_ONE;
  for (uint32_t c = 0; c < chunks; c++) {
    uint32_t from = c * CHUNK, noise = start + from * RNG_WEYL;
    if (chunks > 1) {
      s.template load<STEPS>(v, from, 0.0f);
    }
    if (bad) {
      forget(v);
    }
    if (natural) {
      EACH_STEP(k, STEPS) {
        stage[LANES * k + lane16()] = natural_byte(v[k], top, rng_from(noise + LANES * k * RNG_WEYL, t.key1));
      }
    } else if (fp8) {
      EACH_STEP(k, STEPS) { stage[LANES * k + lane16()] = bad ? 0 : (uint8_t)fp8_code(t, v[k] * inverse); }
    } else {
      EACH_STEP(k, STEPS) { stage[LANES * k + lane16()] = (uint8_t)tree8_word(v[k] * inverse, tables); }
    }
    __syncwarp();
    copy_out(stage, out + from, count_from(s.m, from, CHUNK));
    if (s.keeps() && bad) {
      keep_bad(s, from);
    } else if (s.keeps()) {
      EACH_STEP(k, STEPS) {
        uint32_t byte = stage[LANES * k + lane16()];
        s.keep(from + LANES * k + lane16(), v[k],
               natural ? natural_value(byte, top)
               : fp8   ? scale * fp8_value(t, byte)
                       : scale * tree8_value(byte, tables.tree));
      }
    }
    __syncwarp();
  }
}

/* ---- mx, nvfp4 --------------------------------------------------------------------------------------------------- */

/* Row r is in steps 2r and 2r + 1. Rows that are not finite are NaN, and the others as usual. */
template <int TYPE, class Source>
INLINE void encode_mx(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  const int ROWS = STEPS * LANES / PITH_MX_ROW;
  float v[STEPS];
  uint32_t mine = 0, rows = (s.m + PITH_MX_ROW - 1) / PITH_MX_ROW;
  s.template load<STEPS>(v, 0, 0.0f);
  EACH_STEP(r, ROWS) {
    uint32_t scale = mx_scale<TYPE>(lane_max(max(magnitude(v[2 * r]), magnitude(v[2 * r + 1]))));
    float inverse = mx_inverse(scale), factor = mx_factor(scale);
    mine = lane16() == r ? scale : mine;
    EACH_STEP(h, 2) {
      uint32_t at = LANES * (2 * r + h) + lane16();
      uint32_t code = scale == PITH_MX_NAN ? 0 : mini_code<TYPE>(v[2 * r + h] * inverse);
      stage[at] = (uint8_t)code;
      if (s.keeps()) {
        s.keep(at, v[2 * r + h], mini_value<TYPE>(code) * factor);
      }
    }
  }
  if (lane16() < rows) {
    out[lane16()] = (uint8_t)mine;
  }
  put_levels(stage, out + rows, s.m, t.bits);
}

/* Row r is step r. */
template <class Source>
INLINE void encode_nv(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  float v[STEPS];
  uint32_t most = 0, low = 0, high = 0, rows = (s.m + PITH_NV_ROW - 1) / PITH_NV_ROW;
  s.template load<STEPS>(v, 0, 0.0f);
  EACH_STEP(k, STEPS) { most = max(most, magnitude(v[k])); }
  most = lane_max(most);
  bool bad = most >= INF_BITS;
  float scale = bad ? nan_value() : nv_scale(most), inverse = bad ? 0.0f : nv_inverse(scale);
  EACH_STEP(k, STEPS) {
    uint32_t row_most = lane_max(magnitude(v[k]));
    uint32_t byte = bad ? 0 : mini_code<PITH_MINI_E4M3>(float_of(row_most) * inverse);
    float row = mini_value<PITH_MINI_E4M3>(byte) * scale;
    uint32_t code = bad ? 0 : mini_code<PITH_MINI_E2M1>(v[k] * nv_factor(row));
    low = lane16() == k ? byte : low;
    high = lane16() + LANES == k ? byte : high;
    stage[LANES * k + lane16()] = (uint8_t)code;
    if (s.keeps()) {
      s.keep(LANES * k + lane16(), v[k], mini_value<PITH_MINI_E2M1>(code) * row);
    }
  }
  if (s.m && lane16() == 0) {
    put_f32(out, scale);
  }
  out += PITH_HEAD_ONE;
  if (lane16() < rows) {
    out[lane16()] = (uint8_t)low;
  }
  if (lane16() + LANES < rows) {
    out[lane16() + LANES] = (uint8_t)high;
  }
  put_levels(stage, out + rows, s.m, t.bits);
}

/* ---- sign, signmean ---------------------------------------------------------------------------------------------- */

struct SignSums {
  uint32_t most, negatives;
  float sum_abs, squares, negative, other;
};

/* A chunk's signs: lane j gets those of values 32·j … 32·j + 31. */
INLINE uint32_t gather_signs(const float (&v)[STEPS], uint32_t *negatives) {
  uint32_t mine = 0;
  EACH_STEP(k, STEPS) {
    uint32_t bits = __ballot_sync(FULL, v[k] < 0.0f) >> 16 * half_of_warp() & 0xffffu;
    *negatives += __popc(bits);
    mine |= lane16() == k / 2 ? bits << 16 * (k & 1) : 0;
  }
  return mine;
}

/* A chunk's votes, likewise, and which of its groups of 32 values are all zero: a bit each. Places that do not exist
 * are zeros. */
INLINE uint32_t gather_votes(const float (&v)[STEPS], uint32_t count, bool odd, uint32_t *groups) {
  uint32_t mine = 0, some = 0;
  bool minus = (lane16() + (odd ? 1 : 0)) & 1; /* where a zero votes so */
  EACH_STEP(k, STEPS) {
    uint32_t bits = __ballot_sync(FULL, v[k] < 0.0f || (v[k] == 0.0f && minus)) >> 16 * half_of_warp() & 0xffffu;
    uint32_t not_zero = __ballot_sync(FULL, v[k] != 0.0f) >> 16 * half_of_warp() & 0xffffu;
    mine |= lane16() == k / 2 ? bits << 16 * (k & 1) : 0;
    some |= lane16() == k / 2 ? not_zero : 0;
  }
  uint32_t valid = count > PITH_VOTE_GROUP * lane16() ? least(PITH_VOTE_GROUP, count - PITH_VOTE_GROUP * lane16()) : 0;
  *groups = __ballot_sync(FULL, valid > 0 && some == 0) >> 16 * half_of_warp() & 0xffffu;
  return valid == PITH_VOTE_GROUP ? mine : mine & ((1u << valid) - 1);
}

INLINE void clear_bytes(uint8_t *out, uint32_t size) {
  for (uint32_t i = lane16(); i < size; i += LANES) {
    out[i] = 0;
  }
}

/* The groups of chunk c: 16 of them. */
INLINE void put_groups(uint8_t *zeros, uint32_t size, uint32_t c, uint32_t groups) {
  if (lane16() == 0 && 2 * c < size) {
    zeros[2 * c] = (uint8_t)groups;
    zeros[2 * c + 1] = (uint8_t)(groups >> 8);
  }
}

INLINE void put_signs(uint8_t *out, uint32_t word, uint32_t count) {
  uint32_t mine = count > 32 * lane16() ? least(32, count - 32 * lane16()) : 0;
  out += 4 * lane16();
  if (mine == 32 && aligned4(out)) {
    *(uint32_t *)out = word;
    return;
  }
  for (uint32_t i = 0; 8 * i < mine; i++) {
    out[i] = (uint8_t)(word >> 8 * i);
  }
}

template <class Source>
INLINE float sign_scale(const Source &s, const Task &t, const SignSums &sums) {
  if (t.choice == PITH_SCALE_ONE) {
    return 1.0f;
  }
  double sum_abs = sum_abs_of(s, lane_sum(sums.sum_abs), sums.most);
  if (t.choice == PITH_SCALE_MEAN) {
    return (float)(sum_abs / (double)s.m);
  }
  double norm = norm_of(s, lane_sum(sums.squares), sums.most);
  return sum_abs > 0 ? (float)(norm * (norm / sum_abs)) : 0.0f;
}

template <class Source>
INLINE float mean_of_side(const Source &s, bool negative, float sum, uint32_t count, uint32_t most) {
  bool needed = !is_finite(sum) && most < INF_BITS;
  double total = sum;
  if (__any_sync(FULL, needed)) {
    double slow = serial_sum(s, needed, [negative](double x) { return (x < 0) == negative ? x : 0.0; });
    total = needed ? slow : total;
  }
  return count ? (float)(total / (double)count) : 0.0f;
}

template <bool VOTES, class Source>
INLINE void encode_sign(const Source &s, const Task &t, uint8_t *out) {
  float v[STEPS];
  bool means = t.kind == PITH_WIRE_SIGNMEAN, votes = VOTES && is_vote(t);
  uint32_t chunks = chunks_of(t, CHUNK), zeros_size = votes ? PITH_VOTE_ZEROS_SIZE(s.m) : 0;
  uint8_t *zeros = out + PITH_HEAD_ONE, *signs = out + (means ? PITH_HEAD_TWO : PITH_HEAD_ONE) + zeros_size;
  SignSums sums = {0, 0, 0.0f, 0.0f, 0.0f, 0.0f};
  if (VOTES) {
    clear_bytes(zeros, zeros_size);
    __syncwarp();
  }
  for (uint32_t c = 0; c < chunks; c++) { /* signs are written at once; the scale is known at the end */
    uint32_t count = count_from(s.m, c * CHUNK, CHUNK), word, groups;
    s.template load<STEPS>(v, c * CHUNK, 0.0f);
    if (votes) { /* the same for both halves of the warp */
      word = gather_votes(v, count, t.levels != 0, &groups);
      put_groups(zeros, zeros_size, c, groups);
    } else {
      word = gather_signs(v, &sums.negatives);
    }
    put_signs(signs + c * CHUNK / 8, word, count);
    EACH_STEP(k, STEPS) { sums.most = max(sums.most, magnitude(v[k])); }
    if (means) {
      EACH_STEP(k, STEPS) {
        sums.negative += v[k] < 0.0f ? v[k] : 0.0f;
        sums.other += v[k] < 0.0f ? 0.0f : v[k];
      }
    } else if (t.choice != PITH_SCALE_ONE) {
      EACH_STEP(k, STEPS) {
        sums.sum_abs += fabsf(v[k]);
        sums.squares += v[k] * v[k];
      }
    }
  }
  sums.most = lane_max(sums.most);
  float plus, minus;
  if (means) {
    minus = mean_of_side(s, true, lane_sum(sums.negative), sums.negatives, sums.most);
    plus = mean_of_side(s, false, lane_sum(sums.other), s.m - sums.negatives, sums.most);
  } else {
    plus = sign_scale(s, t, sums);
    minus = -plus;
  }
  bool bad = sums.most >= INF_BITS || (!means && !is_finite(plus));
  if (VOTES) {
    __syncwarp();
  }
  if (bad) {
    plus = minus = nan_value();
    if (VOTES) {
      clear_bytes(zeros, zeros_size);
    }
    for (uint32_t from = 0; from < s.m; from += CHUNK) {
      put_signs(signs + from / 8, 0, count_from(s.m, from, CHUNK));
    }
  }
  if (s.m && lane16() == 0) {
    put_f32(out, means ? minus : plus);
    if (means) {
      put_f32(out + 4, plus);
    }
  }
  if (!s.keeps()) {
    return;
  }
  for (uint32_t c = 0; c < chunks; c++) {
    if (chunks > 1) {
      s.template load<STEPS>(v, c * CHUNK, 0.0f);
    }
    EACH_STEP(k, STEPS) { s.keep(c * CHUNK + LANES * k + lane16(), v[k], v[k] < 0.0f ? minus : plus); }
  }
}

/* ---- terngrad ---------------------------------------------------------------------------------------------------- */

#define TERN_STEPS 30 /* six groups of 80 values */
#define TERN_CHUNK (LANES * TERN_STEPS)

/* The last group has fewer than 80 values, and so another stride. */
template <class Source>
INLINE void put_last_trits(const Source &s, const Task &t, float scale, float inverse, bool bad, uint8_t *out) {
  uint32_t r = s.m % PITH_TRIT_GROUP, first = s.m - r, width = (r + PITH_TRITS - 1) / PITH_TRITS;
  if (lane16() >= width) {
    return;
  }
  float code = 0.0f;
  for (int digit = PITH_TRITS - 1; digit >= 0; digit--) {
    uint32_t place = digit * width + lane16();
    float trit = 0.0f;
    if (place < r) {
      uint32_t i = first + place;
      float x = s.one(i);
      trit = draw_trit(x, scale, inverse, (t.index + s.origin + i) * RNG_WEYL + t.key0, t.key1);
      if (s.keeps()) {
        s.keep(i, x, scale * (trit - 1.0f));
      }
    }
    code = __fmaf_rn(3.0f, code, trit);
  }
  out[first / PITH_TRITS + lane16()] = bad ? 0 : (uint8_t)(int)code;
}

template <class Source>
INLINE void encode_tern(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  float v[STEPS], squares = 0.0f;
  uint32_t most = 0, chunks = chunks_of(t, TERN_CHUNK), start = (t.index + s.origin + lane16()) * RNG_WEYL + t.key0;
  for (uint32_t c = 0; c < chunks; c++) {
    s.template load<TERN_STEPS>(v, c * TERN_CHUNK, 0.0f);
    EACH_STEP(k, TERN_STEPS) {
      most = max(most, magnitude(v[k]));
      squares += v[k] * v[k];
    }
  }
  most = lane_max(most);
  float scale = float_of(most);
  if (t.clip > 0) {
    float clip = (float)(t.clip * norm_of(s, lane_sum(squares), most) / sqrt((double)s.m));
    scale = clip < scale ? clip : scale;
  }
  bool bad = most >= INF_BITS;
  scale = usable_scale(scale);
  float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  scale = bad ? nan_value() : scale;
  if (s.m && lane16() == 0) {
    put_f32(out, scale);
  }
  out += PITH_HEAD_ONE;
  for (uint32_t c = 0; c < chunks; c++) {
    uint32_t from = c * TERN_CHUNK, noise = start + from * RNG_WEYL;
    uint32_t count = count_from(s.m, from, TERN_CHUNK) / PITH_TRIT_GROUP * PITH_TRIT_GROUP;
    if (chunks > 1) {
      s.template load<TERN_STEPS>(v, from, 0.0f);
    }
    EACH_STEP(group, TERN_STEPS / PITH_TRITS) {
      float code = 0.0f; /* 3·code + trit is whole and small, so that nothing is ever rounded */
      EACH_STEP(digit, PITH_TRITS) {
        const int k = PITH_TRITS * group + PITH_TRITS - 1 - digit;
        float trit = draw_trit(v[k], scale, inverse, noise + LANES * k * RNG_WEYL, t.key1);
        code = __fmaf_rn(3.0f, code, trit);
        if (s.keeps() && LANES * k < count) {
          s.keep(from + LANES * k + lane16(), v[k], scale * (trit - 1.0f));
        }
      }
      stage[LANES * group + lane16()] = bad ? 0 : (uint8_t)bits_of(code + ROUNDER);
    }
    __syncwarp();
    copy_out(stage, out + from / PITH_TRITS, count / PITH_TRITS);
    __syncwarp();
  }
  put_last_trits(s, t, scale, inverse, bad, out);
}

/* ---- lloyd ------------------------------------------------------------------------------------------------------- */

/* Stages the numbers of a chunk, and adds its part of ⟨Q, y⟩ as the CPU does: 256 values at a time. */
INLINE float classify(const float (&v)[STEPS], uint32_t count, bool bad, float inverse, float shrink,
                      const Lloyd &lloyd, uint8_t *stage, float sum) {
  EACH_STEP(piece, 2) {
    float part = 0.0f;
    EACH_STEP(j, STEPS / 2) {
      const int k = piece * (STEPS / 2) + j;
      uint32_t number = lloyd_number(v[k] * inverse, lloyd);
      part += v[k] * (shrink * lloyd.level(number));
      stage[LANES * k + lane16()] = bad || LANES * k + lane16() >= count ? 0 : (uint8_t)number;
    }
    sum += lane_sum(part);
  }
  return sum;
}

template <class Source>
INLINE void encode_lloyd(const Source &s, const Task &t, uint8_t *out, uint8_t *stage, const Lloyd &lloyd) {
  float v[STEPS], squares = 0.0f;
  uint32_t most = 0, chunks = chunks_of(t, CHUNK);
  for (uint32_t c = 0; c < chunks; c++) {
    s.template load<STEPS>(v, c * CHUNK, 0.0f);
    EACH_STEP(k, STEPS) {
      most = max(most, magnitude(v[k]));
      squares += v[k] * v[k];
    }
  }
  most = lane_max(most);
  float norm = (float)norm_of(s, lane_sum(squares), most);
  bool bad = most >= INF_BITS || !is_finite(norm);
  float inverse = bad || norm < PITH_SCALE_MIN ? 0.0f : sqrtf((float)s.m) / norm;
  float shrink = norm > 1.0f ? 0x1p-8f : 1.0f, product = 0.0f;
  for (uint32_t c = 0; c < chunks; c++) {
    uint32_t from = c * CHUNK, count = count_from(s.m, from, CHUNK);
    if (chunks > 1) {
      s.template load<STEPS>(v, from, 0.0f);
    }
    if (bad) {
      forget(v);
    }
    product = classify(v, count, bad, inverse, shrink, lloyd, stage, product);
    put_levels(stage, out + PITH_HEAD_ONE + from / 8 * t.bits, count, t.bits);
  }
  float scale = inverse > 0 && product > 0 ? norm * (norm * shrink / product) : 0.0f;
  scale = bad ? nan_value() : scale;
  if (s.m && lane16() == 0) {
    put_f32(out, scale);
  }
  if (!s.keeps()) {
    return;
  }
  for (uint32_t c = 0; c < chunks; c++) {
    if (chunks > 1) {
      s.template load<STEPS>(v, c * CHUNK, 0.0f);
    }
    if (bad) {
      keep_bad(s, c * CHUNK);
      continue;
    }
    EACH_STEP(k, STEPS) {
      s.keep(c * CHUNK + LANES * k + lane16(), v[k], scale * lloyd.level(lloyd_number(v[k] * inverse, lloyd)));
    }
  }
}

/* ---- All --------------------------------------------------------------------------------------------------------- */

template <bool VOTES, class Source>
INLINE void encode_common(const Source &s, const Task &t, uint8_t *out, uint8_t *stage) {
  switch (t.kind) {
    case PITH_WIRE_NONE:
    case PITH_WIRE_FP16:
    case PITH_WIRE_BF16:
      encode_cast(s, t, out);
      break;
    case PITH_WIRE_SIGN:
    case PITH_WIRE_SIGNMEAN:
      encode_sign<VOTES>(s, t, out);
      break;
    default:
      encode_uniform(s, t, out, stage);
  }
}

template <class Source>
INLINE void encode_rarer(const Source &s, const Task &t, uint8_t *out, uint8_t *stage, const Tables &tables) {
  switch (t.kind) {
    case PITH_WIRE_TERNGRAD:
      encode_tern(s, t, out, stage);
      break;
    case PITH_WIRE_LLOYD:
      encode_lloyd(s, t, out, stage, tables.lloyd[t.bits - 1]);
      break;
    case PITH_WIRE_NUQ:
      encode_powers(s, t, out, stage);
      break;
    case PITH_WIRE_MX:
      with_mini(t.choice, [&](auto mini) { encode_mx<mini.type>(s, t, out, stage); });
      break;
    case PITH_WIRE_NVFP4:
      encode_nv(s, t, out, stage);
      break;
    default:
      encode_byte(s, t, out, stage, tables);
  }
}

/* COMMON says which of the two a kernel is for (is_common() in batch.cuh), VOTES whether it has votes: codecs that it
 * does not have take no registers from those it has, and two kernels compile in half the time of one. */
template <bool COMMON, bool VOTES, class Source>
INLINE void encode_block(const Source &s, const Task &t, uint8_t *out, uint8_t *stage, const Tables &tables) {
  if (COMMON) {
    encode_common<VOTES>(s, t, out, stage);
  } else {
    encode_rarer(s, t, out, stage, tables);
  }
}

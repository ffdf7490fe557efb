/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decoding: a thread takes four values at a time, which lie in one block since buckets are multiples of 32. `Reader`s
 * know the payload; what becomes of the values (set, added, of which type) is the caller's. Any bytes are safe to
 * decode.
 */
#pragma once

#include "batch.cuh"
#include "codes.cuh"

/* Codecs that read alike. */
enum Group {
  GROUP_NONE,
  GROUP_FP16,
  GROUP_BF16,
  GROUP_Q,
  GROUP_AROUND_ZERO,
  GROUP_TRIT,
  GROUP_NATURAL,
  GROUP_TREE8,
  GROUP_SIGN,
  GROUP_SIGNMEAN,
  GROUP_LLOYD,
  GROUP_POWER,
  GROUP_VOTE,
  GROUP_E4M3, /* fp8 and mx by type, in the order of these */
  GROUP_E5M2,
  GROUP_MX,
  GROUP_NV = GROUP_MX + PITH_MINI_TYPES
};

/* What is not usual only where RARE says so. */
template <Rare RARE>
INLINE Group group_of(const Task &t) {
  switch (t.kind) {
    case PITH_WIRE_NONE:
      return GROUP_NONE;
    case PITH_WIRE_FP16:
      return GROUP_FP16;
    case PITH_WIRE_BF16:
      return GROUP_BF16;
    case PITH_WIRE_Q:
      return GROUP_Q;
    case PITH_WIRE_TERNGRAD:
      return GROUP_TRIT;
    case PITH_WIRE_NATURAL:
      return GROUP_NATURAL;
    case PITH_WIRE_TREE8:
      return GROUP_TREE8;
    case PITH_WIRE_SIGN:
      return RARE >= RARE_ONES && is_vote(t) ? GROUP_VOTE : GROUP_SIGN;
    case PITH_WIRE_SIGNMEAN:
      return GROUP_SIGNMEAN;
    case PITH_WIRE_LLOYD:
      return GROUP_LLOYD;
    case PITH_WIRE_NUQ:
      return RARE >= RARE_ONES ? GROUP_POWER : GROUP_AROUND_ZERO;
    case PITH_WIRE_FP8:
      return RARE == ALL ? (Group)(GROUP_E4M3 + t.choice) : GROUP_AROUND_ZERO;
    case PITH_WIRE_MX:
      return RARE == ALL ? (Group)(GROUP_MX + t.choice) : GROUP_AROUND_ZERO;
    case PITH_WIRE_NVFP4:
      return RARE == ALL ? GROUP_NV : GROUP_AROUND_ZERO;
    default:
      return GROUP_AROUND_ZERO; /* qsgd, gq */
  }
}

/* The head of a block, in whatever way its codec reads it, and where the codes start. */
struct Head {
  float a, b;
  const uint8_t *codes;
  uint32_t at, count; /* place of the first of the four in the block; values of the block */
  bool fast;          /* words may be read: aligned, and the block is full */
  uint32_t low, high; /* where FAST: the words that the four codes are in */
};

/* A word of a payload, which nobody writes meanwhile. Payloads are read in small pieces between many writes: memory
 * gives more of them at a time, so that it turns from writing to reading less often. */
INLINE uint32_t load_word(const void *from) {
#if __CUDA_ARCH__ >= 800
  uint32_t word;
  asm volatile("ld.global.nc.L2::256B.b32 %0, [%1];" : "=r"(word) : "l"(from));
  return word;
#else
  return *(const uint32_t *)from;
#endif
}

/* FAST: everything is known to be aligned, and no alternative stands in the way of loads. */
template <bool FAST>
INLINE float read_f32(const uint8_t *in) {
  return FAST ? float_of(load_word(in)) : get_f32(in);
}

INLINE constexpr bool is_mx(Group group) { return group >= GROUP_MX && group < GROUP_NV; }

INLINE constexpr bool has_rows(Group group) { return group >= GROUP_MX; }

/* The head of the block that starts at `in` and has `count` values, for those at `at`. */
template <bool FAST>
INLINE Head head_at(const Task &t, Group group, const uint8_t *in, uint32_t at, uint32_t count) {
  Head h = {0.0f, 0.0f, in, at, count, FAST || (aligned4(in) && count == t.bucket), 0, 0};
  switch (group) {
    case GROUP_Q:
    case GROUP_SIGNMEAN:
      h.a = read_f32<FAST>(in);
      h.b = read_f32<FAST>(in + 4);
      h.codes = in + PITH_HEAD_TWO;
      break;
    case GROUP_NONE:
    case GROUP_FP16:
    case GROUP_BF16:
      break;
    case GROUP_NV:
      h.a = read_f32<FAST>(in);
      h.b = float_of(in[PITH_HEAD_ONE + at / PITH_NV_ROW]); /* a byte: see read_nv */
      h.codes = in + PITH_HEAD_ONE + (count + PITH_NV_ROW - 1) / PITH_NV_ROW;
      break;
    default:
      if (is_mx(group)) {
        h.a = float_of(in[at / PITH_MX_ROW]);
        h.codes = in + (count + PITH_MX_ROW - 1) / PITH_MX_ROW;
        break;
      }
      h.a = read_f32<FAST>(in);
      h.codes = in + PITH_HEAD_ONE; /* of votes, first those of groups of zeros */
  }
  h.fast = FAST || (h.fast && aligned4(h.codes));
  return h;
}

/* What a head's numbers become, behind all loads: a division is slow. */
INLINE void finish_head(const Task &t, Group group, Head &h) {
  h.b = group == GROUP_AROUND_ZERO ? h.a / (float)t.levels : h.b;
  h.a = group == GROUP_AROUND_ZERO ? 0.0f : h.a;
}

INLINE Head head_of(const Task &t, Group group, uint32_t i) {
  uint32_t block = i / t.bucket, at = i - block * t.bucket;
  Head h =
      head_at<false>(t, group, t.payload + (size_t)block * t.block_size, at, least(t.bucket, t.n - block * t.bucket));
  finish_head(t, group, h);
  return h;
}

/* How many bits a code has, in groups that use get_four. */
INLINE int code_bits(const Task &t, Group group) {
  return group == GROUP_NATURAL || group == GROUP_TREE8 || group == GROUP_E4M3 || group == GROUP_E5M2 ? 8
         : group == GROUP_SIGN || group == GROUP_SIGNMEAN                                             ? 1
                                                                                                      : t.bits;
}

INLINE bool has_codes(Group group) { return group > GROUP_BF16 && group != GROUP_TRIT && group != GROUP_VOTE; }

/* Reads the words of four codes, long before get_four takes them apart. */
INLINE void fetch_four(const Task &t, Group group, Head &h) {
  uint32_t bit = h.at * code_bits(t, group);
  const uint32_t *words = (const uint32_t *)h.codes + bit / 32;
  h.low = load_word(words);
  h.high = bit % 32 + 4 * code_bits(t, group) > 32 ? load_word(words + 1) : 0;
}

/* Four fields of `bits` bits from the stream, as many as exist. */
template <bool FAST>
INLINE uint32_t get_four(const Head &h, int bits) {
  uint32_t bit = h.at * bits;
  if (FAST) {
    return __funnelshift_r(h.low, h.high, bit % 32);
  }
  if (h.fast) {
    const uint32_t *words = (const uint32_t *)h.codes + bit / 32;
    return __funnelshift_r(words[0], bit % 32 + 4 * bits > 32 ? words[1] : 0, bit % 32);
  }
  uint32_t first = bit / 8, bytes = (h.count * bits + 7) / 8;
  uint64_t word = 0;
  for (uint32_t c = 0; c < 5 && first + c < bytes; c++) {
    word |= (uint64_t)h.codes[first + c] << 8 * c;
  }
  return (uint32_t)(word >> bit % 8);
}

INLINE uint32_t field(uint32_t word, int j, int bits) { return word >> j * bits & ((1u << bits) - 1); }

template <bool FAST>
INLINE void read_uniform(const Task &t, const Head &h, int zero, float (&d)[4]) {
  uint32_t word = get_four<FAST>(h, t.bits);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = h.a + h.b * (float)((int)field(word, j, t.bits) - zero);
  }
}

template <bool FAST>
INLINE void read_signs(const Head &h, float minus, float plus, float (&d)[4]) {
  uint32_t word = get_four<FAST>(h, 1);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = word >> j & 1 ? minus : plus;
  }
}

INLINE void read_votes(const Head &h, float (&d)[4]) {
  Head signs = h;
  signs.codes = h.codes + PITH_VOTE_ZEROS_SIZE(h.count);
  uint32_t word = get_four<false>(signs, 1), group = h.at / PITH_VOTE_GROUP;
  bool zeros = h.codes[group / 8] >> group % 8 & 1;
  float plus = zeros ? 0.0f : h.a, minus = zeros ? 0.0f : -h.a;
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = word >> j & 1 ? minus : plus;
  }
}

template <bool FAST>
INLINE void read_natural(const Head &h, float (&d)[4]) {
  uint32_t word = get_four<FAST>(h, 8);
  int top = (int)(bits_of(h.a) >> 23 & 0xff);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = h.a != h.a ? h.a : natural_value(field(word, j, 8), top);
  }
}

template <bool FAST>
INLINE void read_tree8(const Head &h, float (&d)[4], const float *tree) {
  uint32_t word = get_four<FAST>(h, 8);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = h.a * tree8_value(field(word, j, 8), tree);
  }
}

template <bool FAST>
INLINE void read_lloyd(const Task &t, const Head &h, float (&d)[4], const Lloyd &lloyd) {
  uint32_t word = get_four<FAST>(h, t.bits);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = h.a * lloyd.level(field(word, j, t.bits));
  }
}

template <bool FAST>
INLINE void read_powers(const Task &t, const Head &h, float (&d)[4]) {
  uint32_t word = get_four<FAST>(h, t.bits);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = h.a * power_value(field(word, j, t.bits), t.bits);
  }
}

/* 2^16 / 3^digit, rounded up: (code · this) >> 16 is code / 3^digit for every byte. */
INLINE uint32_t third_power(uint32_t digit) {
  return digit == 0 ? 65536 : digit == 1 ? 21846 : digit == 2 ? 7282 : digit == 3 ? 2428 : 810;
}

INLINE float trit_of(uint32_t code, uint32_t factor, float scale) {
  uint32_t rest = code * factor >> 16;
  return scale * (float)((int)(rest - (rest * 171 >> 9) * 3) - 1);
}

/* In a full group four neighbours are in four neighbouring bytes, at the same digit. */
INLINE void read_full_trits(const Head &h, uint32_t place, const uint8_t *codes, float (&d)[4]) {
  uint32_t word = load_word(codes + place % PITH_TRIT_STRIDE), factor = third_power(place / PITH_TRIT_STRIDE);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = trit_of(word >> 8 * j & 0xff, factor, h.a);
  }
}

/* FAST: all groups are full. */
template <bool FAST>
INLINE void read_trits(const Head &h, float (&d)[4]) {
  uint32_t group = h.at / PITH_TRIT_GROUP, place = h.at - group * PITH_TRIT_GROUP;
  uint32_t r = least(PITH_TRIT_GROUP, h.count - group * PITH_TRIT_GROUP);
  const uint8_t *codes = h.codes + group * PITH_TRIT_STRIDE;
  uint32_t width = (r + PITH_TRITS - 1) / PITH_TRITS;
  if (FAST || (h.fast && r == PITH_TRIT_GROUP)) {
    read_full_trits(h, place, codes, d);
  } else {
    for (uint32_t j = 0; j < 4; j++) {
      d[j] = place + j < r ? trit_of(codes[(place + j) % width], third_power((place + j) / width), h.a) : 0.0f;
    }
  }
}

template <bool FAST, int TYPE>
INLINE void read_minis(const Head &h, float factor, float (&d)[4]) {
  uint32_t word = get_four<FAST>(h, Mini<TYPE>::bits);
#pragma unroll
  for (int j = 0; j < 4; j++) {
    d[j] = mini_value<TYPE>(field(word, j, Mini<TYPE>::bits)) * factor;
  }
}

template <bool FAST>
INLINE void read_nv(const Head &h, float (&d)[4]) {
  read_minis<FAST, PITH_MINI_E2M1>(h, mini_value<PITH_MINI_E4M3>(bits_of(h.b)) * h.a, d);
}

INLINE void read_casts(const Head &h, Group group, float (&d)[4]) {
#pragma unroll
  for (uint32_t j = 0; j < 4; j++) {
    uint32_t i = h.at + j;
    if (i >= h.count) {
      d[j] = 0.0f;
    } else if (group == GROUP_NONE) {
      d[j] = get_f32(h.codes + 4 * i);
    } else {
      uint16_t half = (uint16_t)(h.codes[2 * i] | h.codes[2 * i + 1] << 8);
      d[j] = group == GROUP_FP16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
  }
}

INLINE void read_casts_fast(const Head &h, Group group, float (&d)[4]) {
  const uint32_t *words = (const uint32_t *)(h.codes + (group == GROUP_NONE ? 4 : 2) * h.at);
  if (group == GROUP_NONE) {
#pragma unroll
    for (int j = 0; j < 4; j++) {
      d[j] = float_of(words[j]);
    }
    return;
  }
#pragma unroll
  for (int j = 0; j < 4; j += 2) {
    uint32_t word = words[j / 2];
    float2 x = group == GROUP_FP16 ? f16x2_to_f32(word) : bf16x2_to_f32(word);
    d[j] = x.x, d[j + 1] = x.y;
  }
}

template <bool FAST>
INLINE void decode_mini(Group group, const Head &h, float (&d)[4]) {
  switch ((int)group) {
    case GROUP_E4M3:
      return read_minis<FAST, PITH_MINI_E4M3>(h, h.a, d);
    case GROUP_E5M2:
      return read_minis<FAST, PITH_MINI_E5M2>(h, h.a, d);
    case GROUP_NV:
      return read_nv<FAST>(h, d);
    case GROUP_MX + PITH_MINI_E4M3:
      return read_minis<FAST, PITH_MINI_E4M3>(h, mx_factor(bits_of(h.a)), d);
    case GROUP_MX + PITH_MINI_E5M2:
      return read_minis<FAST, PITH_MINI_E5M2>(h, mx_factor(bits_of(h.a)), d);
    case GROUP_MX + PITH_MINI_E2M3:
      return read_minis<FAST, PITH_MINI_E2M3>(h, mx_factor(bits_of(h.a)), d);
    case GROUP_MX + PITH_MINI_E3M2:
      return read_minis<FAST, PITH_MINI_E3M2>(h, mx_factor(bits_of(h.a)), d);
    default:
      return read_minis<FAST, PITH_MINI_E2M1>(h, mx_factor(bits_of(h.a)), d);
  }
}

/* FAST: aligned, in a full block. */
template <Rare RARE, bool FAST>
INLINE void decode_at(const Task &t, Group group, const Head &h, float (&d)[4], const Tables &tables) {
  switch (group) {
    case GROUP_NONE:
    case GROUP_FP16:
    case GROUP_BF16:
      if (h.fast) {
        read_casts_fast(h, group, d);
      } else {
        read_casts(h, group, d);
      }
      break;
    case GROUP_Q:
      read_uniform<FAST>(t, h, 0, d);
      break;
    case GROUP_AROUND_ZERO:
      read_uniform<FAST>(t, h, t.levels, d);
      break;
    case GROUP_TRIT:
      read_trits<FAST>(h, d);
      break;
    case GROUP_NATURAL:
      read_natural<FAST>(h, d);
      break;
    case GROUP_TREE8:
      read_tree8<FAST>(h, d, tables.tree);
      break;
    case GROUP_SIGN:
      read_signs<FAST>(h, -h.a, h.a, d);
      break;
    case GROUP_SIGNMEAN:
      read_signs<FAST>(h, h.a, h.b, d);
      break;
    case GROUP_LLOYD:
      read_lloyd<FAST>(t, h, d, tables.lloyd[t.bits - 1]);
      break;
    case GROUP_POWER:
      if (RARE >= RARE_ONES) {
        read_powers<FAST>(t, h, d);
      }
      break;
    case GROUP_VOTE:
      if (RARE >= RARE_ONES) {
        read_votes(h, d);
      }
      break;
    default:
      if (RARE == ALL) {
        decode_mini<FAST>(group, h, d);
      }
  }
}

/* Values i … i + 3 of a task, i a multiple of 4; those that do not exist are anything. */
template <Rare RARE>
INLINE void decode_four(const Task &t, Group group, uint32_t i, float (&d)[4], const Tables &tables) {
  decode_at<RARE, false>(t, group, head_of(t, group, i), d, tables);
}

#define DECODE_ROW 128 /* values of a row, of which a lane has four */

/* A place in the payload: a block, and a value of it. */
struct Cursor {
  const uint8_t *in;
  uint32_t at;
};

INLINE Cursor cursor_at(const Task &t, uint32_t i) {
  uint32_t block = i / t.bucket;
  return Cursor{t.payload + (size_t)block * t.block_size, i - block * t.bucket};
}

/* Whether decode_rows can take a task: pairs of rows lie within blocks, words of the payload are aligned, and there are
 * no short groups of trits. */
static inline __host__ __device__ bool rows_fit(const Task &t) {
  return t.bucket % (2 * DECODE_ROW) == 0 && ((uintptr_t)t.payload & 3) == 0 && t.block_size % 4 == 0 &&
         (t.kind != PITH_WIRE_TERNGRAD || t.bucket % PITH_TRIT_GROUP == 0);
}

/* Rows of values, pairs of them in one block, which is full: block and head are found once for all lanes. The group is
 * a constant, so that nothing stands between the loads of several rows. */
template <Rare RARE, Group GROUP, int ROWS>
INLINE void decode_rows(const Task &t, Cursor &cursor, float (&d)[ROWS][4], const Tables &tables) {
  Head heads[ROWS];
#pragma unroll
  for (int r = 0; r < ROWS; r += 2) {
    heads[r] = head_at<true>(t, GROUP, cursor.in, cursor.at + 4 * (threadIdx.x % 32), t.bucket);
    heads[r + 1] = heads[r];
    heads[r + 1].at += DECODE_ROW;
    if (has_rows(GROUP)) { /* which have scales of their own */
      heads[r + 1] = head_at<true>(t, GROUP, cursor.in, heads[r + 1].at, t.bucket);
    }
    if (has_codes(GROUP)) {
      fetch_four(t, GROUP, heads[r]);
      fetch_four(t, GROUP, heads[r + 1]);
    }
    cursor.at += 2 * DECODE_ROW;
    if (cursor.at == t.bucket) {
      cursor.at = 0;
      cursor.in += t.block_size;
    }
  }
#pragma unroll
  for (int r = 0; r < ROWS; r += 2) {
    finish_head(t, GROUP, heads[r]);
    if (!has_rows(GROUP)) {
      heads[r + 1].a = heads[r].a, heads[r + 1].b = heads[r].b;
    }
    decode_at<RARE, true>(t, GROUP, heads[r], d[r], tables);
    decode_at<RARE, true>(t, GROUP, heads[r + 1], d[r + 1], tables);
  }
}

template <Group GROUP>
struct GroupTag {
  static constexpr Group value = GROUP;
};

template <class With>
INLINE void with_mini_group(const Task &t, With with) {
  if (t.kind == PITH_WIRE_NVFP4) {
    return with(GroupTag<GROUP_NV>());
  }
  if (t.kind == PITH_WIRE_FP8) {
    return t.choice == PITH_MINI_E4M3 ? with(GroupTag<GROUP_E4M3>()) : with(GroupTag<GROUP_E5M2>());
  }
  with_mini(t.choice, [&](auto mini) { with(GroupTag<(Group)(GROUP_MX + mini.type)>()); });
}

/* Calls `with` for the group of a task, which is a constant there. */
template <Rare RARE, class With>
INLINE void with_group(const Task &t, With with) {
  switch (group_of<RARE>(t)) {
    case GROUP_NONE:
      return with(GroupTag<GROUP_NONE>());
    case GROUP_FP16:
      return with(GroupTag<GROUP_FP16>());
    case GROUP_BF16:
      return with(GroupTag<GROUP_BF16>());
    case GROUP_Q:
      return with(GroupTag<GROUP_Q>());
    case GROUP_AROUND_ZERO:
      return with(GroupTag<GROUP_AROUND_ZERO>());
    case GROUP_TRIT:
      return with(GroupTag<GROUP_TRIT>());
    case GROUP_NATURAL:
      return with(GroupTag<GROUP_NATURAL>());
    case GROUP_TREE8:
      return with(GroupTag<GROUP_TREE8>());
    case GROUP_SIGN:
      return with(GroupTag<GROUP_SIGN>());
    case GROUP_SIGNMEAN:
      return with(GroupTag<GROUP_SIGNMEAN>());
    case GROUP_LLOYD:
      return with(GroupTag<GROUP_LLOYD>());
    case GROUP_POWER:
      return RARE >= RARE_ONES ? with(GroupTag<GROUP_POWER>()) : void();
    case GROUP_VOTE:
      return RARE >= RARE_ONES ? with(GroupTag<GROUP_VOTE>()) : void();
    default:
      return RARE == ALL ? with_mini_group(t, with) : void();
  }
}

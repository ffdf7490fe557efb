/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless, with the bytes of src/codec/lossless.c. A warp takes a block of 1024 values in rows of 128, of which a lane
 * has four neighbours each. Encoding goes over the values twice: first each block chooses its window and counts its
 * escapes, which says how long it is; then, once it is known where it begins, it is put together in shared memory and
 * copied out. Decoding goes by the table of where blocks end. A malformed block decodes to NaN, and nothing is read or
 * written beyond payload and values.
 */
#include "batch.cuh"
#include "lossless_host.h"

#define THREADS 256
#define WARPS (THREADS / 32)
#define RESIDENT 4 /* blocks of threads on a processor at least, when encoding: leaves 64 registers each */
#define BLOCK PITH_LOSSLESS_BLOCK
#define ROWS (BLOCK / 128)
#define SCANNED 8 /* sums of a thread */
#define SCAN_THREADS 1024
#define EACH_ROW(r) _Pragma("unroll") for (int r = 0; r < ROWS; r++)
#define EACH_OF_FOUR(c) _Pragma("unroll") for (int c = 0; c < 4; c++)

typedef pith_gpu_lossless Tensor;
typedef uint32_t Values[ROWS][4]; /* bits of values */

/* A block's head is a word: how it is coded, the lowest exponent of its window, the number of escapes. */
INLINE uint32_t coding_of(uint32_t head) { return head & 0xffu; }
INLINE uint32_t base_of(uint32_t head) { return head >> 8 & 0xffu; }
INLINE uint32_t escapes_of(uint32_t head) { return head >> 16; }

INLINE uint32_t blocks_of(uint32_t n) { return n / BLOCK + (n % BLOCK != 0); }
INLINE uint32_t values_of(const Tensor &t, uint32_t block) { return least(BLOCK, t.n - block * BLOCK); }
INLINE uint32_t lane32() { return threadIdx.x % 32; }
INLINE uint32_t place_of(int r) { return 128 * r + 4 * lane32(); }

/* 0: there is no such block. */
INLINE uint32_t words_of(int type, uint32_t head, uint32_t m) {
  uint32_t coding = coding_of(head);
  if (coding == PITH_LOSSLESS_SAME) {
    return 2;
  }
  if (coding == PITH_LOSSLESS_STORED) {
    return PITH_LOSSLESS_RAW_WORDS(type, m);
  }
  bool is_coded = coding >= 1 && coding < PITH_LOSSLESS_WIDTHS && escapes_of(head) <= m;
  return is_coded ? PITH_LOSSLESS_CODED(type, m, coding, escapes_of(head)) : 0;
}

template <int TYPE>
INLINE uint32_t exponent_of(uint32_t raw) {
  return TYPE == PITH_GPU_F32 ? raw >> 23 & 0xffu : TYPE == PITH_GPU_F16 ? raw >> 10 & 0x1fu : raw >> 7 & 0xffu;
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

template <int TYPE>
INLINE bool quads_are_aligned(const void *values) {
  return ((uintptr_t)values & (TYPE == PITH_GPU_F32 ? 15 : 7)) == 0;
}

template <int TYPE>
INLINE uint32_t raw_at(const void *values, uint32_t i) {
  return TYPE == PITH_GPU_F32 ? ((const uint32_t *)values)[i] : ((const uint16_t *)values)[i];
}

/* Those that do not exist are like the first. */
template <int TYPE>
INLINE void load_values(const Tensor &t, uint32_t first, uint32_t m, Values &x) {
  if (m < BLOCK || !quads_are_aligned<TYPE>(t.values)) {
    EACH_ROW(r) {
      EACH_OF_FOUR(c) { x[r][c] = raw_at<TYPE>(t.values, first + (place_of(r) + c < m ? place_of(r) + c : 0)); }
    }
    return;
  }
  EACH_ROW(r) {
    uint32_t at = (first + place_of(r)) / 4;
    if (TYPE == PITH_GPU_F32) {
      uint4 four = ((const uint4 *)t.values)[at];
      x[r][0] = four.x, x[r][1] = four.y, x[r][2] = four.z, x[r][3] = four.w;
    } else {
      uint2 four = ((const uint2 *)t.values)[at];
      x[r][0] = four.x & 0xffffu, x[r][1] = four.x >> 16, x[r][2] = four.y & 0xffffu, x[r][3] = four.y >> 16;
    }
  }
}

/* ---- Windows ----------------------------------------------------------------------------------------------------- */

struct Counts {
  uint32_t bins[256];
  uint32_t below[256 + 32]; /* of each exponent: how many of the sample are lower */
};

/* Bits of a code and the lowest exponent, as in a head. */
template <int TYPE>
INLINE uint32_t choose_window(const Values &x, uint32_t m, Counts &counts) {
  uint32_t lane = lane32(), own[8], sum = 0, best = UINT32_MAX;
  for (uint32_t e = lane; e < 256; e += 32) {
    counts.bins[e] = 0;
  }
  __syncwarp();
  EACH_ROW(r) {
    if (place_of(r) % PITH_LOSSLESS_SAMPLE == 0 && place_of(r) < m) {
      atomicAdd(&counts.bins[exponent_of<TYPE>(x[r][0])], 1u);
    }
  }
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    own[k] = counts.bins[8 * lane + k];
    sum += own[k];
  }
  uint32_t upto = sum;
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
    uint32_t before = __shfl_up_sync(FULL, upto, h);
    upto += lane >= h ? before : 0;
  }
  uint32_t samples = __shfl_sync(FULL, upto, 31), at = upto - sum;
#pragma unroll
  for (int k = 0; k < 8; k++) {
    counts.below[8 * lane + k] = at;
    at += own[k];
  }
  counts.below[256 + lane] = samples;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < 8; k++) {
    uint32_t e = 8 * lane + k;
    for (uint32_t bits = 1; own[k] && bits < PITH_LOSSLESS_WIDTHS; bits++) {
      uint32_t inside = counts.below[e + (1u << bits) - 1] - counts.below[e];
      uint32_t cost = bits * samples + PITH_LOSSLESS_ESCAPE_BITS * (samples - inside);
      best = least(best, cost << 16 | bits << 8 | e);
    }
  }
  best = ~warp_most(~best);
  __syncwarp();
  return (best >> 8 & 0xffu) | (best & 0xffu) << 8;
}

template <int TYPE>
INLINE bool is_escape(uint32_t raw, uint32_t head) {
  return exponent_of<TYPE>(raw) - base_of(head) >= (1u << coding_of(head)) - 1;
}

template <int TYPE, bool WHOLE>
INLINE uint32_t count_escapes(const Values &x, uint32_t m, uint32_t head) {
  uint32_t count = 0;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { count += (WHOLE || place_of(r) + c < m) && is_escape<TYPE>(x[r][c], head) ? 1 : 0; }
  }
  return warp_sum(count);
}

template <int TYPE>
INLINE uint32_t measure_block(const Tensor &t, uint32_t block, Counts &counts) {
  uint32_t m = values_of(t, block);
  Values x;
  load_values<TYPE>(t, block * BLOCK, m, x);
  uint32_t one = __shfl_sync(FULL, x[0][0], 0), other = 0;
  EACH_ROW(r) {
    EACH_OF_FOUR(c) { other |= x[r][c] ^ one; }
  }
  if (__all_sync(FULL, other == 0)) {
    return PITH_LOSSLESS_SAME;
  }
  uint32_t head = choose_window<TYPE>(x, m, counts);
  head |= (m == BLOCK ? count_escapes<TYPE, true>(x, m, head) : count_escapes<TYPE, false>(x, m, head)) << 16;
  return words_of(TYPE, head, m) < PITH_LOSSLESS_RAW_WORDS(TYPE, m) ? head : PITH_LOSSLESS_STORED;
}

/* ---- Encoding ---------------------------------------------------------------------------------------------------- */

/* The workspace: words of items, which become where they begin; heads of blocks. */
INLINE uint32_t items_of(const Tensor &t) { return t.end - t.begin; }
INLINE uint32_t *starts_of(const Tensor &t) { return (uint32_t *)t.space; }
INLINE uint32_t *heads_of(const Tensor &t) { return (uint32_t *)t.space + items_of(t); }

/* Items are WARPS blocks. */
__global__ void __launch_bounds__(THREADS, RESIDENT) measure_kernel(const __grid_constant__ Many<Tensor> batch) {
  __shared__ Counts counts[WARPS];
  __shared__ uint32_t words[WARPS];
  const Tensor &t = batch.task_of(blockIdx.x);
  uint32_t item = blockIdx.x - t.begin, warp = threadIdx.x / 32, block = item * WARPS + warp, head = 0, size = 0;
  if (block < blocks_of(t.n)) {
    head = t.dtype == PITH_GPU_F32   ? measure_block<PITH_GPU_F32>(t, block, counts[warp])
           : t.dtype == PITH_GPU_F16 ? measure_block<PITH_GPU_F16>(t, block, counts[warp])
                                     : measure_block<PITH_GPU_BF16>(t, block, counts[warp]);
    size = words_of(t.dtype, head, values_of(t, block));
  }
  if (lane32() == 0) {
    words[warp] = size;
    if (size) {
      heads_of(t)[block] = head;
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t sum = 0;
    for (int w = 0; w < WARPS; w++) {
      sum += words[w];
    }
    starts_of(t)[item] = sum;
  }
}

/* The sum of x over the threads before this one; *all becomes that over all of them. */
INLINE uint32_t sum_before(uint32_t x, uint32_t *warps, uint32_t *all) {
  uint32_t upto = x, lane = lane32(), warp = threadIdx.x / 32;
#pragma unroll
  for (int h = 1; h < 32; h *= 2) {
    uint32_t before = __shfl_up_sync(FULL, upto, h);
    upto += lane >= h ? before : 0;
  }
  __syncthreads();
  if (lane == 31) {
    warps[warp] = upto;
  }
  __syncthreads();
  uint32_t mine = lane < SCAN_THREADS / 32 ? warps[lane] : 0;
  *all = warp_sum(mine);
  return upto - x + warp_sum(lane < warp ? mine : 0);
}

/* A block of threads for each tensor. */
__global__ void __launch_bounds__(SCAN_THREADS) scan_kernel(const __grid_constant__ Many<Tensor> batch) {
  __shared__ uint32_t warps[32];
  const Tensor &t = batch.task[blockIdx.x];
  uint32_t *starts = starts_of(t), items = items_of(t), before = 0;
  for (uint32_t first = 0; first < items; first += SCAN_THREADS * SCANNED) {
    uint32_t at = first + threadIdx.x * SCANNED, words[SCANNED], sum = 0, all;
#pragma unroll
    for (int k = 0; k < SCANNED; k++) {
      words[k] = at + k < items ? starts[at + k] : 0;
      sum += words[k];
    }
    sum = before + sum_before(sum, warps, &all);
#pragma unroll
    for (int k = 0; k < SCANNED; k++) {
      if (at + k < items) {
        starts[at + k] = sum;
      }
      sum += words[k];
    }
    before += all;
  }
  if (threadIdx.x == 0) {
    put_f32(t.payload, float_of(t.dtype));
    *t.size = PITH_LOSSLESS_HEAD + 4 * ((uint64_t)blocks_of(t.n) + before);
  }
}

/* The planes of values place … place + 3, of which `count` exist. */
template <int TYPE, bool WHOLE>
INLINE void put_planes(uint8_t *planes, uint32_t m, uint32_t place, const uint32_t (&x)[4]) {
  uint32_t low[4], high[4];
  EACH_OF_FOUR(c) {
    low[c] = TYPE == PITH_GPU_F32 ? x[c] & 0xffffu : x[c] & 0xffu;
    high[c] = TYPE == PITH_GPU_F32   ? (x[c] >> 16 & 0x7fu) | x[c] >> 31 << 7
              : TYPE == PITH_GPU_F16 ? (x[c] >> 8 & 3u) | x[c] >> 15 << 2
                                     : (x[c] & 0x7fu) | x[c] >> 15 << 7;
  }
  uint8_t *bytes = TYPE == PITH_GPU_F32 ? planes + 2 * m : planes;
  bool whole = WHOLE || (place + 4 <= m && m % 4 == 0);
  const uint32_t *byte = TYPE == PITH_GPU_F16 ? low : high;
  if (whole) {
    *(uint32_t *)(bytes + place) = byte[0] | byte[1] << 8 | byte[2] << 16 | byte[3] << 24;
  }
  if (TYPE == PITH_GPU_F32 && whole) {
    ((uint32_t *)planes)[place / 2] = low[0] | low[1] << 16;
    ((uint32_t *)planes)[place / 2 + 1] = low[2] | low[3] << 16;
  }
  EACH_OF_FOUR(c) {
    if (!whole && place + c < m) {
      bytes[place + c] = (uint8_t)byte[c];
      if (TYPE == PITH_GPU_F32) {
        ((uint16_t *)planes)[place + c] = (uint16_t)low[c];
      }
    }
  }
}

/* Bits go where nothing but zeros was. */
INLINE void put_field(uint32_t *words, uint32_t bit, uint32_t field, uint32_t size) {
  atomicOr(&words[bit / 32], field << bit % 32);
  if (bit % 32 + size > 32) {
    atomicOr(&words[bit / 32 + 1], field >> (32 - bit % 32));
  }
}

/* Escapes lie in the order of places: those of a row behind those of the row before. */
struct Rank {
  uint32_t row; /* that of the row's first */

  /* The number of each of a lane's four, where it is an escape. */
  INLINE void next(const bool (&escaped)[4], uint32_t (&rank)[4]) {
    uint32_t lower = (1u << lane32()) - 1, before = 0, all = 0;
    EACH_OF_FOUR(c) {
      uint32_t lanes = __ballot_sync(FULL, escaped[c]);
      before += __popc(lanes & lower);
      all += __popc(lanes);
    }
    EACH_OF_FOUR(c) {
      rank[c] = row + before;
      before += escaped[c] ? 1 : 0;
    }
    row += all;
  }
};

/* What codes and escapes of a block are written with: where they begin, in bits and bytes of the staged block. */
struct Layout {
  uint32_t coding, base, planes, codes, escapes;
};

/* Codes of a lane's four neighbours, and in f16 what the planes have of them besides bytes. */
template <int TYPE, bool WHOLE>
INLINE void put_codes(const Layout &at, uint32_t m, uint32_t place, const uint32_t (&x)[4], uint32_t *stage) {
  uint32_t field = 0, third = 0, top = (1u << at.coding) - 1;
  EACH_OF_FOUR(c) {
    bool exists = WHOLE || place + c < m;
    uint32_t code = least(exponent_of<TYPE>(x[c]) - at.base, top);
    field |= exists ? code << c * at.coding : 0;
    third |= exists ? ((x[c] >> 8 & 3u) | x[c] >> 15 << 2) << 3 * c : 0;
  }
  if (WHOLE || place < m) {
    put_field(stage, 8 * at.codes + place * at.coding, field, 4 * at.coding);
    if (TYPE == PITH_GPU_F16) {
      put_field(stage, 8 * (at.planes + m) + 3 * place, third, 12);
    }
  }
}

template <int TYPE, bool WHOLE>
INLINE void put_escapes(const Layout &at, uint32_t m, uint32_t place, uint32_t head, const uint32_t (&x)[4],
                        Rank &ranks, uint8_t *bytes) {
  bool escaped[4];
  uint32_t rank[4];
  EACH_OF_FOUR(c) { escaped[c] = (WHOLE || place + c < m) && is_escape<TYPE>(x[c], head); }
  ranks.next(escaped, rank);
  EACH_OF_FOUR(c) {
    if (escaped[c]) {
      bytes[at.escapes + rank[c]] = (uint8_t)exponent_of<TYPE>(x[c]);
    }
  }
}

/* In shared memory, row by row, so that a row's registers are free after it. WHOLE: the block has all of its values;
 * others may have codes and escapes in one word with what lies before them. */
template <int TYPE, bool WHOLE>
INLINE void build_block(const Values &x, uint32_t count, uint32_t head, uint32_t words, uint32_t *stage) {
  const uint32_t m = WHOLE ? BLOCK : count;
  Layout at = {coding_of(head), base_of(head), 4, 4 + PITH_LOSSLESS_PLANES(TYPE, m), 0};
  at.escapes = at.codes + (m * at.coding + 7) / 8;
  uint32_t fields = TYPE == PITH_GPU_F16 ? at.planes + m : at.codes; /* bits from here on are added to zeros */
  for (uint32_t w = fields / 4 + lane32(); w < words; w += 32) {
    stage[w] = 0;
  }
  __syncwarp();
  if (lane32() == 0) {
    stage[0] = head;
  }
  uint8_t *bytes = (uint8_t *)stage;
  Rank ranks = {0};
  EACH_ROW(r) {
    put_planes<TYPE, WHOLE>(bytes + at.planes, m, place_of(r), x[r]);
    if (!WHOLE) {
      __syncwarp();
    }
    put_codes<TYPE, WHOLE>(at, m, place_of(r), x[r], stage);
    if (!WHOLE) {
      __syncwarp();
    }
    put_escapes<TYPE, WHOLE>(at, m, place_of(r), head, x[r], ranks, bytes);
    if (!WHOLE) {
      __syncwarp();
    }
  }
  __syncwarp();
}

template <int TYPE>
INLINE void store_block(const Values &x, uint32_t m, uint32_t head, uint32_t words, uint32_t *stage) {
  if (lane32() == 0) {
    stage[0] = head;
    stage[1] = x[0][0];
    stage[words - 1] = words == 2 ? x[0][0] : 0; /* what fills up the last word */
  }
  __syncwarp();
  if (coding_of(head) == PITH_LOSSLESS_STORED) {
    EACH_ROW(r) {
      EACH_OF_FOUR(c) {
        uint32_t i = place_of(r) + c;
        if (i < m && TYPE == PITH_GPU_F32) {
          stage[1 + i] = x[r][c];
        } else if (i < m) {
          ((uint16_t *)stage)[2 + i] = (uint16_t)x[r][c];
        }
      }
    }
  }
  __syncwarp();
}

/* A warp copies words to any address. */
INLINE void copy_words(const uint32_t *from, uint8_t *out, uint32_t words) {
  if (aligned4(out)) {
    for (uint32_t w = lane32(); w < words; w += 32) {
      ((uint32_t *)out)[w] = from[w];
    }
    return;
  }
  for (uint32_t i = lane32(); i < 4 * words; i += 32) {
    out[i] = ((const uint8_t *)from)[i];
  }
}

template <int TYPE>
INLINE void emit_block(const Tensor &t, uint32_t block, uint32_t head, uint32_t start, uint32_t words,
                       uint32_t *stage) {
  uint32_t m = values_of(t, block), coding = coding_of(head);
  Values x;
  load_values<TYPE>(t, block * BLOCK, m, x);
  if (coding == PITH_LOSSLESS_SAME || coding == PITH_LOSSLESS_STORED) {
    store_block<TYPE>(x, m, head, words, stage);
  } else if (m == BLOCK) {
    build_block<TYPE, true>(x, m, head, words, stage);
  } else {
    build_block<TYPE, false>(x, m, head, words, stage);
  }
  uint8_t *table = t.payload + PITH_LOSSLESS_HEAD, *blocks = table + 4 * (size_t)blocks_of(t.n);
  if (lane32() == 0) {
    put_f32(table + 4 * (size_t)block, float_of(start + words));
  }
  copy_words(stage, blocks + 4 * (size_t)start, words);
}

__global__ void __launch_bounds__(THREADS, RESIDENT) emit_kernel(const __grid_constant__ Many<Tensor> batch) {
  __shared__ uint32_t stages[WARPS][PITH_LOSSLESS_RAW_WORDS(0, BLOCK) + 1];
  __shared__ uint32_t sizes[WARPS];
  const Tensor &t = batch.task_of(blockIdx.x);
  uint32_t item = blockIdx.x - t.begin, warp = threadIdx.x / 32, block = item * WARPS + warp, head = 0, words = 0;
  if (block < blocks_of(t.n)) {
    head = heads_of(t)[block];
    words = words_of(t.dtype, head, values_of(t, block));
  }
  if (lane32() == 0) {
    sizes[warp] = words;
  }
  __syncthreads();
  uint32_t start = starts_of(t)[item];
  for (uint32_t w = 0; w < warp; w++) {
    start += sizes[w];
  }
  if (words == 0) {
    return;
  }
  if (t.dtype == PITH_GPU_F32) {
    emit_block<PITH_GPU_F32>(t, block, head, start, words, stages[warp]);
  } else if (t.dtype == PITH_GPU_F16) {
    emit_block<PITH_GPU_F16>(t, block, head, start, words, stages[warp]);
  } else {
    emit_block<PITH_GPU_BF16>(t, block, head, start, words, stages[warp]);
  }
}

/* ---- Decoding ---------------------------------------------------------------------------------------------------- */

#define STAGED (5 * BLOCK / 32 + BLOCK / 4 + 2) /* words of codes and escapes, and one more */

/* FAST: a full block at an aligned address. */
template <int TYPE, bool FAST>
INLINE void get_planes(const uint8_t *planes, uint32_t m, Values &x) {
  const uint8_t *bytes = TYPE == PITH_GPU_F32 ? planes + 2 * m : planes, *thirds = planes + m;
  uint32_t low[ROWS][2], high[ROWS], third[ROWS];
  EACH_ROW(r) {
    uint32_t place = place_of(r);
    low[r][0] = low[r][1] = high[r] = third[r] = 0;
    if (FAST) {
      high[r] = *(const uint32_t *)(bytes + place);
      if (TYPE == PITH_GPU_F32) {
        low[r][0] = ((const uint32_t *)planes)[place / 2];
        low[r][1] = ((const uint32_t *)planes)[place / 2 + 1];
      }
    }
    EACH_OF_FOUR(c) {
      if (!FAST && place + c < m) {
        high[r] |= (uint32_t)bytes[place + c] << 8 * c;
        if (TYPE == PITH_GPU_F32) {
          const uint8_t *half = planes + 2 * (place + c);
          low[r][c / 2] |= (half[0] | (uint32_t)half[1] << 8) << 16 * (c & 1);
        }
      }
    }
    for (uint32_t k = 0; TYPE == PITH_GPU_F16 && k < 2 && place < m; k++) { /* 12 bits, that begin with a half byte */
      uint32_t at = 3 * place / 8 + k;
      third[r] |= at < (3 * m + 7) / 8 ? (uint32_t)thirds[at] << 8 * k : 0;
    }
  }
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      uint32_t byte = high[r] >> 8 * c & 0xffu, half = low[r][c / 2] >> 16 * (c & 1) & 0xffffu;
      uint32_t rest = third[r] >> (3 * place_of(r) % 8 + 3 * c) & 7u;
      x[r][c] = TYPE == PITH_GPU_F32   ? half | (byte & 0x7fu) << 16 | byte >> 7 << 31
                : TYPE == PITH_GPU_F16 ? byte | (rest & 3u) << 8 | rest >> 2 << 15
                                       : (byte & 0x7fu) | byte >> 7 << 15;
    }
  }
}

template <int TYPE>
INLINE uint32_t with_exponent(uint32_t rest, uint32_t exponent) {
  return TYPE == PITH_GPU_F32   ? rest | (exponent & 0xffu) << 23
         : TYPE == PITH_GPU_F16 ? rest | (exponent & 0x1fu) << 10
                                : rest | (exponent & 0xffu) << 7;
}

/* `stage` has codes and escapes. */
template <int TYPE>
INLINE void add_exponents(uint32_t head, uint32_t m, const uint32_t *stage, Values &x) {
  uint32_t coding = coding_of(head), top = (1u << coding) - 1, codes_size = (m * coding + 7) / 8;
  const uint8_t *escapes = (const uint8_t *)stage + codes_size;
  Rank ranks = {0};
  EACH_ROW(r) {
    uint32_t place = place_of(r), bit = place * coding, code[4], rank[4];
    uint32_t field = place < m ? __funnelshift_r(stage[bit / 32], stage[bit / 32 + 1], bit % 32) : 0;
    bool escaped[4];
    EACH_OF_FOUR(c) {
      code[c] = field >> c * coding & top;
      escaped[c] = place + c < m && code[c] == top;
    }
    ranks.next(escaped, rank);
    EACH_OF_FOUR(c) {
      uint32_t exponent = base_of(head) + code[c];
      if (escaped[c]) {
        exponent = rank[c] < escapes_of(head) ? escapes[rank[c]] : 0;
      }
      x[r][c] = with_exponent<TYPE>(x[r][c], exponent);
    }
  }
}

template <int TYPE, bool FAST>
INLINE void read_coded(const uint8_t *in, uint32_t head, uint32_t words, uint32_t m, uint32_t *stage, Values &x) {
  uint32_t skipped = 4 + PITH_LOSSLESS_PLANES(TYPE, m);
  get_planes<TYPE, FAST>(in + 4, m, x);
  if (FAST) {
    for (uint32_t w = lane32(); w < words - skipped / 4; w += 32) {
      stage[w] = ((const uint32_t *)(in + skipped))[w];
    }
  } else {
    for (uint32_t i = lane32(); i < 4 * words - skipped; i += 32) {
      ((uint8_t *)stage)[i] = in[skipped + i];
    }
  }
  __syncwarp();
  add_exponents<TYPE>(head, m, stage, x);
  __syncwarp();
}

/* `words`: 0 for a block that is malformed. */
template <int TYPE>
INLINE void read_block(const uint8_t *in, uint32_t head, uint32_t words, uint32_t m, uint32_t *stage, Values &x) {
  uint32_t coding = coding_of(head), one = TYPE == PITH_GPU_F32   ? PITH_NAN_BITS
                                           : TYPE == PITH_GPU_F16 ? 0x7e00
                                                                  : 0x7fc0;
  if (words && coding < PITH_LOSSLESS_WIDTHS) {
    if (m == BLOCK && aligned4(in)) {
      return read_coded<TYPE, true>(in, head, words, m, stage, x);
    }
    return read_coded<TYPE, false>(in, head, words, m, stage, x);
  }
  if (words && coding == PITH_LOSSLESS_SAME) {
    one = get_u32(in + 4);
  }
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      uint32_t i = place_of(r) + c;
      x[r][c] = one;
      if (words && coding == PITH_LOSSLESS_STORED && i < m) {
        const uint8_t *value = in + 4 + (TYPE == PITH_GPU_F32 ? 4 : 2) * i;
        x[r][c] = TYPE == PITH_GPU_F32 ? get_u32(value) : value[0] | (uint32_t)value[1] << 8;
      }
    }
  }
}

template <int TYPE>
INLINE float float_from(uint32_t raw) {
  return TYPE == PITH_GPU_F32   ? float_of(raw)
         : TYPE == PITH_GPU_F16 ? f16_to_f32((uint16_t)raw)
                                : bf16_to_f32((uint16_t)raw);
}

/* Of the tensor's own type, bit for bit; of another, by way of f32. */
template <int TYPE, bool ADD>
INLINE void write_values(const Tensor &t, uint32_t first, uint32_t m, const Values &x) {
  bool full = m == BLOCK;
  if (!ADD && t.dtype == TYPE) {
    if (full && quads_are_aligned<TYPE>(t.values)) {
      EACH_ROW(r) {
        uint32_t at = (first + place_of(r)) / 4;
        if (TYPE == PITH_GPU_F32) {
          __stcs((uint4 *)t.values + at, make_uint4(x[r][0], x[r][1], x[r][2], x[r][3]));
        } else {
          __stcs((uint2 *)t.values + at,
                 make_uint2((x[r][0] & 0xffffu) | x[r][1] << 16, (x[r][2] & 0xffffu) | x[r][3] << 16));
        }
      }
      return;
    }
    EACH_ROW(r) {
      EACH_OF_FOUR(c) {
        uint32_t i = place_of(r) + c;
        if (i < m && TYPE == PITH_GPU_F32) {
          ((uint32_t *)t.values)[first + i] = x[r][c];
        } else if (i < m) {
          ((uint16_t *)t.values)[first + i] = (uint16_t)x[r][c];
        }
      }
    }
    return;
  }
  if (full && t.dtype == PITH_GPU_F32 && quads_are_aligned<PITH_GPU_F32>(t.values)) {
    float4 *to = (float4 *)((float *)t.values + first);
    float4 sum[ROWS];
    EACH_ROW(r) { sum[r] = ADD ? to[place_of(r) / 4] : make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
    EACH_ROW(r) {
      float d[4];
      EACH_OF_FOUR(c) { d[c] = float_from<TYPE>(x[r][c]); }
      to[place_of(r) / 4] = ADD ? make_float4(sum[r].x + d[0], sum[r].y + d[1], sum[r].z + d[2], sum[r].w + d[3])
                                : make_float4(d[0], d[1], d[2], d[3]);
    }
    return;
  }
  EACH_ROW(r) {
    EACH_OF_FOUR(c) {
      uint32_t i = first + place_of(r) + c;
      if (place_of(r) + c < m) {
        float d = float_from<TYPE>(x[r][c]);
        put_value(t.values, t.dtype, i, ADD ? value_at(t.values, t.dtype, i) + d : d);
      }
    }
  }
}

struct Place {
  uint32_t start, words, head; /* words: 0 for a block that is malformed */
};

/* Where the table says that a block lies, if its head says the same. */
INLINE Place find_block(const Tensor &t, uint32_t block, uint64_t size, int type) {
  uint64_t table_end = PITH_LOSSLESS_HEAD + 4 * (uint64_t)blocks_of(t.n);
  Place p = {0, 0, 0};
  if (size < table_end || type > PITH_GPU_BF16) {
    return p;
  }
  const uint8_t *entry = t.payload + PITH_LOSSLESS_HEAD + 4 * (size_t)block;
  uint32_t end = get_u32(entry);
  p.start = block ? get_u32(entry - 4) : 0;
  if (p.start < end && 4 * (uint64_t)end <= size - table_end) {
    p.head = get_u32(t.payload + table_end + 4 * (size_t)p.start);
    p.words = words_of(type, p.head, values_of(t, block)) == end - p.start ? end - p.start : 0;
  }
  return p;
}

template <int TYPE, bool ADD>
INLINE void decode_block(const Tensor &t, uint32_t block, Place p, uint32_t *stage) {
  uint32_t m = values_of(t, block);
  Values x;
  read_block<TYPE>(t.payload + PITH_LOSSLESS_HEAD + 4 * ((size_t)blocks_of(t.n) + p.start), p.head, p.words, m, stage,
                   x);
  write_values<TYPE, ADD>(t, block * BLOCK, m, x);
}

template <bool ADD>
__global__ void __launch_bounds__(THREADS) decode_kernel(const __grid_constant__ Many<Tensor> batch) {
  __shared__ uint32_t stages[WARPS][STAGED];
  const Tensor &t = batch.task_of(blockIdx.x);
  uint32_t warp = threadIdx.x / 32, block = (blockIdx.x - t.begin) * WARPS + warp;
  if (block >= blocks_of(t.n)) {
    return;
  }
  uint64_t size = t.size && *t.size < t.capacity ? *t.size : t.capacity;
  int type = size < PITH_LOSSLESS_HEAD ? PITH_GPU_BF16 + 1 : (int)least(get_u32(t.payload), PITH_GPU_BF16 + 1);
  Place p = find_block(t, block, size, type);
  if (type == PITH_GPU_F16) {
    decode_block<PITH_GPU_F16, ADD>(t, block, p, stages[warp]);
  } else if (type == PITH_GPU_BF16) {
    decode_block<PITH_GPU_BF16, ADD>(t, block, p, stages[warp]);
  } else {
    decode_block<PITH_GPU_F32, ADD>(t, block, p, stages[warp]);
  }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

/* Every tensor has an item, even one without values. */
static uint32_t gather_batch(Many<Tensor> &batch, const Tensor *tasks, size_t count) {
  const uint32_t values = BLOCK * WARPS;
  batch.count = (uint32_t)(count < BATCH_TASKS ? count : BATCH_TASKS);
  batch.items = 0;
  for (uint32_t i = 0; i < batch.count; i++) {
    Tensor &t = batch.task[i];
    t = tasks[i];
    t.begin = batch.items;
    t.end = batch.items += t.n ? t.n / values + (t.n % values != 0) : 1;
  }
  return batch.count;
}

cudaError_t pith__lossless_encode(const pith_gpu_lossless *tasks, size_t count, cudaStream_t stream) {
  Many<Tensor> batch;
  for (size_t first = 0; first < count; first += batch.count) {
    gather_batch(batch, tasks + first, count - first);
    measure_kernel<<<batch.items, THREADS, 0, stream>>>(batch);
    scan_kernel<<<batch.count, SCAN_THREADS, 0, stream>>>(batch);
    emit_kernel<<<batch.items, THREADS, 0, stream>>>(batch);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

cudaError_t pith__lossless_decode(const pith_gpu_lossless *tasks, size_t count, bool add, cudaStream_t stream) {
  Many<Tensor> batch;
  for (size_t first = 0; first < count; first += batch.count) {
    gather_batch(batch, tasks + first, count - first);
    auto kernel = add ? decode_kernel<true> : decode_kernel<false>;
    kernel<<<batch.items, THREADS, 0, stream>>>(batch);
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) {
      return error;
    }
  }
  return cudaSuccess;
}

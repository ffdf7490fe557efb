/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a selection to a payload: values and the statistics of gaps, then the choice of the smallest index coding, then
 * the indices; at last the memory gives up what was sent. The bytes are those of src/codec/sparse.c.
 */
#include "sparse.cuh"

#define THREADS TILE_WORDS
#define WARPS (THREADS / 32)
#define PLANNERS 1024
#define EACH 16           /* tiles of a thread at a time */
#define PLACED 4          /* tiles of a thread whose codes are placed at a time */
#define STREAM_WORDS 1024 /* of a tile that are put together in shared memory */

/* ---- Ranks of tiles ---------------------------------------------------------------------------------------------- */

/* How many values stand before each tile, and where the last of them ends. One block. */
__global__ void __launch_bounds__(PLANNERS) tiles_kernel(const __grid_constant__ Sections batch) {
  __shared__ uint32_t warps[32];
  const Section &s = share_of(batch).s;
  uint32_t rank = 0, end = 0;
  if (s.control->coding != PITH_INDEX_BITMAP && s.control->values) {
    return; /* decoding another coding */
  }
  for (uint32_t first = 0; first < s.tiles; first += PLANNERS * EACH) {
    uint32_t at = first + threadIdx.x * EACH, sum = 0, most = 0, total, all;
    __align__(16) uint32_t count[EACH], last[EACH];
    if (at + EACH <= s.tiles) {
#pragma unroll
      for (int j = 0; j < EACH; j += 4) {
        *(uint4 *)(count + j) = *(const uint4 *)(s.tile_count + at + j);
        *(uint4 *)(last + j) = *(const uint4 *)(s.tile_last + at + j);
      }
    } else {
#pragma unroll
      for (int j = 0; j < EACH; j++) {
        count[j] = at + j < s.tiles ? s.tile_count[at + j] : 0;
        last[j] = at + j < s.tiles ? s.tile_last[at + j] : 0;
      }
    }
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      sum += count[j];
      most = max(most, last[j]);
    }
    uint32_t before = rank + block_before<uint32_t>(sum, warps, &total);
    uint32_t prev = max(end, block_most_before(most, warps, &all));
#pragma unroll
    for (int j = 0; j < EACH; j++) {
      if (at + j < s.tiles) {
        s.tile_rank[at + j] = before;
        s.tile_prev[at + j] = prev;
      }
      before += count[j];
      prev = max(prev, last[j]);
    }
    rank += total;
    end = max(end, all);
  }
  if (threadIdx.x == 0 && !s.control->values) {
    s.control->count = rank;
  }
}

/* ---- Values ------------------------------------------------------------------------------------------------------ */

struct ValuesTile {
  Walk walk;
  uint32_t ones[32];
};

/* Lane b counts how often bit b is set in the gaps of a warp. */
INLINE uint32_t count_ones(uint32_t gap) {
  uint32_t bits = 32 - __clz((int)warp_or(gap)), mine = 0, lane = threadIdx.x & 31;
  for (uint32_t b = 0; b < bits; b++) {
    uint32_t count = __popc(__ballot_sync(FULL, gap >> b & 1));
    mine = lane == b ? count : mine;
  }
  return mine;
}

/* What is known of a tile, read while the one before is worked on. */
struct Ahead {
  uint32_t word, rank, prev;
};

INLINE Ahead read_ahead(const Section &s, uint32_t tile) {
  bool there = tile < s.tiles;
  return Ahead{walk_word(s, tile), there ? s.tile_rank[tile] : 0, there ? s.tile_prev[tile] : 0};
}

INLINE void put_values(const Section &s, ValuesTile &t, uint32_t tile, const Ahead &known, double *sum,
                       uint32_t *most) {
  uint32_t ones = 0, count = walk_open(t.walk, known.word), rounds = (count + THREADS - 1) / THREADS;
  uint8_t *values = s.payload + PITH_SPARSE_HEAD;
  for (uint32_t r = 0; r < rounds; r++) {
    uint32_t i = r * THREADS + threadIdx.x, place = i < count ? tile * TILE + t.walk.place[i] : 0;
    float x = i < count ? value_at(s.src, s.src_type, place) : 0.0f;
    ones += count_ones(i < count ? walk_gap(t.walk, known.prev, tile, i) : 0); /* while x is on its way */
    if (i >= count) {
      continue;
    }
    if (s.coding == PITH_VALUES_MEAN) {
      *sum += x;
      *most = max(*most, magnitude(x));
    } else if (s.coding == PITH_VALUES_Q8) {
      s.list[known.rank + i] = x;
    } else {
      float d = put_coded(values, s.coding, known.rank + i, x);
      if (takes_out_at_once(s)) {
        take_out(s, place, x, d);
      }
    }
  }
  if (ones) {
    atomicAdd(&t.ones[threadIdx.x & 31], ones);
  }
}

__global__ void __launch_bounds__(THREADS, 4) values_kernel(const __grid_constant__ Sections batch) {
  __shared__ ValuesTile t;
  Share share = share_of(batch);
  const Section &s = share.s;
  double sum = 0;
  uint32_t most = 0;
  uint64_t total = 0;
  if (threadIdx.x < 32) {
    t.ones[threadIdx.x] = 0;
  }
  __syncthreads();
  Ahead ahead = read_ahead(s, share.part);
  EACH_TILE(tile, share) {
    Ahead known = ahead;
    ahead = read_ahead(s, tile + share.parts);
    put_values(s, t, tile, known, &sum, &most);
    __syncthreads();
    if (threadIdx.x < 32) {
      uint32_t ones = t.ones[threadIdx.x];
      s.tile_ones[32 * (size_t)tile + threadIdx.x] = (uint16_t)ones;
      total += ones;
      t.ones[threadIdx.x] = 0;
    }
    __syncthreads();
  }
  if (threadIdx.x < 32 && total) {
    atomicAdd((unsigned long long *)&s.control->ones[threadIdx.x], (unsigned long long)total);
  }
  if (s.coding == PITH_VALUES_MEAN) {
    for (int h = 16; h; h /= 2) {
      sum += __shfl_xor_sync(FULL, sum, h);
    }
    most = warp_most(most);
    if ((threadIdx.x & 31) == 0) {
      atomicAdd(&s.control->sum, sum);
      atomicMax(&s.control->most, most);
    }
  }
}

/* Values in blocks, from the list; a warp for each. */
__global__ void __launch_bounds__(THREADS) blocks_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  if (s.coding != PITH_VALUES_Q8) {
    return;
  }
  uint32_t count = s.control->count, blocks = (count + PITH_VALUES_BLOCK - 1) / PITH_VALUES_BLOCK;
  for (uint32_t b = share.part * WARPS + threadIdx.x / 32; b < blocks; b += share.parts * WARPS) {
    uint32_t first = b * PITH_VALUES_BLOCK;
    uint8_t *out = s.payload + PITH_SPARSE_HEAD + (size_t)b * (PITH_VALUES_BLOCK + PITH_Q8_HEAD);
    put_q8_block(out, least(PITH_VALUES_BLOCK, count - first), [&](uint32_t i) { return s.list[first + i]; });
  }
}

/* ---- The plan ---------------------------------------------------------------------------------------------------- */

INLINE uint64_t bytes_of(uint64_t bits) { return bits / 8 + (bits % 8 != 0); }

INLINE void consider(Control &c, int coding, uint32_t rice, uint64_t bytes) {
  if (bytes < c.index_bytes) {
    c.coding = (uint32_t)coding;
    c.rice = rice;
    c.index_bytes = bytes;
  }
}

/* As pith__index_choose. `ones` are those of the section. */
INLINE void choose_coding(const Section &s, Control &c, const uint64_t *ones) {
  if (c.count == s.n) {
    c.coding = PITH_INDEX_DENSE;
    c.rice = 0;
    c.index_bytes = 0;
    return;
  }
  uint64_t quotients = 0, best = ~0ull;
  uint32_t rice = 0;
  for (int r = PITH_RICE_MAX; r >= 0; r--) {
    quotients = 2 * quotients + (r < 32 ? ones[r] : 0);
    uint64_t bytes = bytes_of(quotients + (uint64_t)c.count * (uint64_t)(r + 1));
    if (bytes < best) {
      best = bytes;
      rice = (uint32_t)r;
    }
  }
  c.coding = PITH_INDEX_BITMAP;
  c.rice = 0;
  c.index_bytes = bytes_of(s.n);
  consider(c, PITH_INDEX_RICE, rice, best);
  consider(c, PITH_INDEX_RAW, 0, 4ull * c.count);
}

/* A sum of doubles in any order is the CPU's, made in order, if nothing was ever rounded: all values are multiples of
 * the least one's last bit, and the sum has fewer than 53 bits above that. */
INLINE bool sum_is_exact(const Control &c) {
  uint32_t least_key = c.cut > 0 ? (uint32_t)c.cut : 1;
  int unit = (int)max(least_key >> 23, 1u), top = (int)max(c.most >> 23, 1u) + 1;
  return top - (unit - 23) + (32 - __clz((int)c.count)) <= 53;
}

/* One after another, by a warp that reads for its first lane. Rare, and as slow as it looks. */
INLINE double sum_in_order(const Section &s) {
  double sum = 0;
  uint32_t lane = threadIdx.x & 31;
  for (uint32_t first = 0; first < s.n; first += 32) {
    uint32_t word = s.bitmap[first / 32];
    if (word == 0) {
      continue;
    }
    float x = word >> lane & 1 ? value_at(s.src, s.src_type, first + lane) : 0.0f;
    for (; word; word &= word - 1) {
      sum += (double)__shfl_sync(FULL, x, __ffs((int)word) - 1);
    }
  }
  return sum;
}

INLINE void find_mean(const Section &s, Control &c) {
  bool bad = c.most >= INF_BITS;
  double sum = bad || sum_is_exact(c) ? c.sum : sum_in_order(s);
  if (threadIdx.x == 0) {
    float mean = c.count ? (float)(sum / (double)c.count) : 0.0f;
    c.mean = bad || !is_finite(mean) ? nan_value() : mean;
  }
}

/* How many bits the codes of a tile take. Bits of gaps below the parameter, or that no gap has, are not looked at. */
INLINE uint64_t tile_code_bits(const Section &s, uint32_t tile, uint32_t rice, int top) {
  uint64_t bits = 0;
  const uint4 *p = (const uint4 *)(s.tile_ones + 32 * (size_t)tile);
  for (int q = top / 8; q >= (int)rice / 8; q--) { /* from the highest bits down */
    uint4 four = p[q];
    uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int b = 7; b >= 0; b--) {
      uint32_t bit = 8 * q + b, ones = words[b / 2] >> 16 * (b & 1) & 0xffff;
      bits = bit >= rice ? 2 * bits + ones : bits;
    }
  }
  return bits + (uint64_t)s.tile_count[tile] * (rice + 1);
}

/* Where the codes of each tile begin. */
INLINE void place_codes(const Section &s, uint32_t rice, const uint64_t *ones, uint64_t *warps) {
  uint64_t bits = 0;
  int top = 31;
  while (top > 0 && ones[top] == 0) {
    top--;
  }
  for (uint32_t first = 0; first < s.tiles; first += PLANNERS * PLACED) {
    uint32_t tile = first + threadIdx.x * PLACED;
    uint64_t mine[PLACED], sum = 0, total;
#pragma unroll
    for (int j = 0; j < PLACED; j++) {
      mine[j] = tile + j < s.tiles ? tile_code_bits(s, tile + j, rice, top) : 0;
      sum += mine[j];
    }
    uint64_t before = bits + block_before<uint64_t>(sum, warps, &total);
#pragma unroll
    for (int j = 0; j < PLACED; j++) {
      if (tile + j < s.tiles) {
        s.tile_bits[tile + j] = before;
      }
      before += mine[j];
    }
    bits += total;
  }
}

__global__ void __launch_bounds__(PLANNERS, 1) plan_kernel(const __grid_constant__ Sections batch) {
  __shared__ uint64_t warps[32], ones[32];
  const Section &s = share_of(batch).s;
  Control &c = *s.control;
  if (threadIdx.x < 32) {
    ones[threadIdx.x] = c.ones[threadIdx.x];
  }
  if (s.coding == PITH_VALUES_MEAN && threadIdx.x < 32) {
    find_mean(s, c);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    choose_coding(s, c, ones);
    c.total = PITH_SPARSE_HEAD + coded_size(s.coding, c.count) + c.index_bytes;
    uint64_t dense = PITH_SPARSE_HEAD + coded_size(s.coding, s.n);
    if (s.kind == PITH_WIRE_THRESHOLD && c.total > dense) {
      c.total = dense;
      c.coding = PITH_INDEX_DENSE;
      c.rice = 0;
      c.index_bytes = 0;
      c.count = s.n;
      c.k = ~0u; /* all values are written again */
    }
  }
  __syncthreads();
  if (c.coding == PITH_INDEX_RICE) {
    place_codes(s, c.rice, ones, warps);
  }
}

/* All values in a row, where that is smaller; and zeros for the codes to come. */
__global__ void __launch_bounds__(THREADS) dense_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  const Control &c = *s.control;
  size_t step = (size_t)share.parts * THREADS, first = (size_t)share.part * THREADS + threadIdx.x;
  if (c.coding == PITH_INDEX_RICE) {
    for (size_t i = first; i < (c.index_bytes + 3) / 4 + 1; i += step) {
      s.stream[i] = 0;
    }
  } else if (c.coding == PITH_INDEX_DENSE && c.k == ~0u) {
    uint8_t *values = s.payload + PITH_SPARSE_HEAD;
    if (s.coding != PITH_VALUES_Q8) {
      for (size_t i = first; i < s.n; i += step) {
        put_coded(values, s.coding, i, value_at(s.src, s.src_type, (uint32_t)i));
      }
      return;
    }
    uint32_t blocks = (s.n + PITH_VALUES_BLOCK - 1) / PITH_VALUES_BLOCK;
    for (uint32_t b = share.part * WARPS + threadIdx.x / 32; b < blocks; b += share.parts * WARPS) {
      uint32_t at = b * PITH_VALUES_BLOCK;
      put_q8_block(values + (size_t)b * (PITH_VALUES_BLOCK + PITH_Q8_HEAD), least(PITH_VALUES_BLOCK, s.n - at),
                   [&](uint32_t i) { return value_at(s.src, s.src_type, at + i); });
    }
  }
}

/* ---- Indices ----------------------------------------------------------------------------------------------------- */

struct CodesTile {
  Walk walk;
  uint32_t warps[32];
  uint32_t words[STREAM_WORDS + 2];
};

/* At most 63 bits of a stream that is zero there. */
template <class Or>
INLINE void put_code(uint64_t at, uint64_t code, Or put) {
  uint64_t shifted = code << (at & 31);
  put(at >> 5, (uint32_t)shifted);
  if (shifted >> 32) {
    put((at >> 5) + 1, (uint32_t)(shifted >> 32));
  }
}

/* What is known of a tile's codes, read while the tile before is worked on. */
struct CodesAhead {
  uint32_t word, prev;
  uint64_t start, end;
};

INLINE CodesAhead read_codes_ahead(const Section &s, uint32_t tile, uint64_t stream_bits) {
  bool there = tile < s.tiles;
  return CodesAhead{walk_word(s, tile), there ? s.tile_prev[tile] : 0, there ? s.tile_bits[tile] : stream_bits,
                    tile + 1 < s.tiles ? s.tile_bits[tile + 1] : stream_bits};
}

/* The codes of a tile that lie close together are joined in shared memory first. */
INLINE void put_codes(const Section &s, CodesTile &t, uint32_t tile, const CodesAhead &known, uint32_t rice) {
  uint64_t start = known.start, end = known.end;
  if (start == end) {
    return; /* nothing in this tile: all threads see that */
  }
  uint32_t count = walk_open(t.walk, known.word), prev = known.prev;
  uint64_t word0 = start >> 5, words = (end >> 5) - word0 + 1, bits = start;
  bool joined = words <= STREAM_WORDS;
  for (uint32_t i = threadIdx.x; joined && i < words + 1; i += THREADS) {
    t.words[i] = 0;
  }
  __syncthreads();
  for (uint32_t first = 0; first < count; first += THREADS) {
    uint32_t i = first + threadIdx.x, gap = i < count ? walk_gap(t.walk, prev, tile, i) : 0;
    uint32_t zeros = rice < 32 ? gap >> rice : 0,
             total; /* of a tile 32 bits hold all codes: gaps sum up to n at most */
    uint64_t at = bits + block_before<uint32_t>(i < count ? zeros + 1 + rice : 0, t.warps, &total) + zeros;
    if (i < count) {
      uint64_t code = (uint64_t)(rice < 32 ? gap & ((1u << rice) - 1) : gap) << 1 | 1;
      if (joined) {
        put_code(at, code, [&](uint64_t w, uint32_t x) { atomicOr(&t.words[w - word0], x); });
      } else {
        put_code(at, code, [&](uint64_t w, uint32_t x) { atomicOr(&s.stream[w], x); });
      }
    }
    bits += total;
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; joined && i < words; i += THREADS) {
    if (i == 0 || i == words - 1) { /* shared with the neighbours */
      atomicOr(&s.stream[word0 + i], t.words[i]);
    } else {
      s.stream[word0 + i] = t.words[i];
    }
  }
  __syncthreads();
}

INLINE void put_u32(uint8_t *out, uint32_t x) { put_f32(out, float_of(x)); }

INLINE uint64_t section_start(const Section &s) { return s.before ? s.before->total : 0; }

__global__ void __launch_bounds__(THREADS, 4) write_kernel(const __grid_constant__ Sections batch) {
  __shared__ CodesTile t;
  Share share = share_of(batch);
  const Section &s = share.s;
  const Control &c = *s.control;
  if (c.coding == PITH_INDEX_RICE) {
    uint64_t bits = 0;
    for (int b = 31; b >= (int)c.rice; b--) {
      bits = 2 * bits + c.ones[b];
    }
    bits += (uint64_t)c.count * (c.rice + 1);
    uint32_t rice = c.rice;
    CodesAhead ahead = read_codes_ahead(s, share.part, bits);
    EACH_TILE(tile, share) {
      CodesAhead known = ahead;
      ahead = read_codes_ahead(s, tile + share.parts, bits);
      put_codes(s, t, tile, known, rice);
    }
  } else if (c.coding == PITH_INDEX_RAW) {
    uint8_t *out = s.payload + section_start(s) + c.total - c.index_bytes;
    EACH_TILE(tile, share) {
      uint32_t count = walk_open(t.walk, walk_word(s, tile)), rank = s.tile_rank[tile];
      for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
        put_u32(out + 4ull * (rank + i), tile * TILE + t.walk.place[i]);
      }
      __syncthreads();
    }
  }
}

INLINE void put_head(const Section &s, const Control &c, uint8_t *out) {
  out[0] = (uint8_t)c.coding;
  out[1] = s.coding;
  out[2] = (uint8_t)c.rice;
  for (int i = 3; i < PITH_SPARSE_HEAD; i++) {
    out[i] = i < 8 || i >= 12 ? 0 : (uint8_t)(c.count >> 8 * (i - 8));
  }
  if (s.coding == PITH_VALUES_MEAN) {
    put_f32(out + PITH_SPARSE_HEAD, c.mean);
  }
  if (s.size) {
    *s.size = section_start(s) + c.total;
  }
}

/* The head, and indices from the workspace to the payload, at whatever address that is. */
__global__ void __launch_bounds__(THREADS) finish_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  const Section &s = share.s;
  const Control &c = *s.control;
  uint8_t *section = s.payload + section_start(s), *out = section + c.total - c.index_bytes;
  if (share.part == 0 && threadIdx.x == 0) {
    put_head(s, c, section);
  }
  if (c.coding != PITH_INDEX_RICE && c.coding != PITH_INDEX_BITMAP) {
    return;
  }
  const uint32_t *from = c.coding == PITH_INDEX_RICE ? s.stream : s.bitmap;
  for (size_t w = (size_t)share.part * THREADS + threadIdx.x; 4 * w < c.index_bytes;
       w += (size_t)share.parts * THREADS) {
    uint32_t word = from[w];
    if (4 * w + 4 <= c.index_bytes) {
      put_u32(out + 4 * w, word);
    } else {
      for (uint64_t i = 4 * w; i < c.index_bytes; i++) {
        out[i] = (uint8_t)(word >> 8 * (i & 3));
      }
    }
  }
}

/* ---- The memory -------------------------------------------------------------------------------------------------- */

__global__ void __launch_bounds__(THREADS) keep_kernel(const __grid_constant__ Sections batch) {
  __shared__ Walk walk;
  Share share = share_of(batch);
  const Section &s = share.s;
  const Control &c = *s.control;
  if (!s.memory || s.keeps == PITH_GPU_KEEP_ALL || takes_out_at_once(s)) {
    return;
  }
  const uint8_t *values = s.payload + section_start(s) + PITH_SPARSE_HEAD;
  if (c.coding == PITH_INDEX_DENSE) {
    for (size_t i = (size_t)share.part * THREADS + threadIdx.x; i < s.n; i += (size_t)share.parts * THREADS) {
      take_out(s, (uint32_t)i, s.memory[i], get_coded(values, s.coding, i));
    }
    return;
  }
  EACH_TILE(tile, share) {
    uint32_t count = walk_open(walk, walk_word(s, tile)), rank = s.tile_rank[tile];
    for (uint32_t i = threadIdx.x; i < count; i += THREADS) {
      uint32_t place = tile * TILE + walk.place[i];
      take_out(s, place, s.memory[place], get_coded(values, s.coding, rank + i));
    }
    __syncthreads();
  }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

cudaError_t launch_tiles(const Sections &batch, cudaStream_t stream) {
  tiles_kernel<<<batch.blocks, PLANNERS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_values(const Sections &batch, cudaStream_t stream) {
  bool blocks = false;
  values_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  for (uint32_t i = 0; i < batch.count; i++) {
    blocks |= batch.section[i].coding == PITH_VALUES_Q8;
  }
  if (blocks) {
    blocks_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  }
  return cudaGetLastError();
}

cudaError_t launch_plan(const Sections &batch, cudaStream_t stream) {
  plan_kernel<<<batch.blocks, PLANNERS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_dense(const Sections &batch, cudaStream_t stream) {
  dense_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_write(const Sections &batch, cudaStream_t stream) {
  write_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_finish(const Sections &batch, cudaStream_t stream) {
  finish_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_keep(const Sections &batch, cudaStream_t stream) {
  keep_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

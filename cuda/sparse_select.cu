/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which values are sent: a radix select that reads the tensor once in the usual case, as src/codec/selection.c does it.
 *
 *   sample   a block draws a sample and finds a bracket around the cut
 *   scan     marks everything above the bracket in the bitmap, and lists what is within
 *   digit    (six times, most of them without work) finds the cut digit by digit among the candidates: first of keys,
 *            then, since of equal keys those of lowest index are sent, of places
 *   mark     adds the candidates that are sent to the bitmap
 *
 * Where the bracket missed, candidates do not fit, or values that equal the bracket's lower end are needed too, `digit`
 * and `mark` go over the whole tensor. The result is the same: exactly the k first in the order of (|x|, index).
 */
#include "sparse.cuh"

#define THREADS TILE_WORDS
#define WARPS (THREADS / 32)
#define SAMPLERS 1024
#define STAGE 128         /* candidates of a warp on their way to the list */
#define NO_CUT 0x7fffffff /* above every key */
#define DOUBT 4.5

/* ---- The sample -------------------------------------------------------------------------------------------------- */

INLINE uint32_t rng(uint32_t key0, uint32_t key1, uint32_t index) { return rng_from(index * RNG_WEYL + key0, key1); }

/* The key of a value that has not been compensated yet. */
INLINE int32_t key_to_come(const Section &s, uint32_t i) {
  float u = s.keeps == PITH_GPU_KEEP_UNSENT ? s.momentum[i] : 0.0f;
  return key_of(compensated(s, value_at(s.given, s.type, i), s.memory[i], u, s.control->gamma, &u), s.side);
}

#define DRAWN 8 /* of a thread at a time: they are far apart in memory */

INLINE void draw_sample(const Section &s) {
  uint32_t runs = s.samples / SAMPLE_RUN, stratum = s.n / runs;
  for (uint32_t first = threadIdx.x; first < s.samples; first += DRAWN * SAMPLERS) {
    int32_t key[DRAWN];
#pragma unroll
    for (int j = 0; j < DRAWN; j++) {
      uint32_t i = least(first + j * SAMPLERS, s.samples - 1), run = i / SAMPLE_RUN;
      uint32_t place = run * stratum + rng(s.key0, s.key1, run) % (stratum - SAMPLE_RUN + 1) + i % SAMPLE_RUN;
      key[j] = s.fused ? key_to_come(s, place) : key_at(s, place);
    }
#pragma unroll
    for (int j = 0; j < DRAWN; j++) {
      if (first + j * SAMPLERS < s.samples) {
        s.sample[first + j * SAMPLERS] = (uint32_t)key[j];
      }
    }
  }
  __syncthreads();
}

#define SAMPLE_BINS 2048

struct Sampler {
  uint32_t bins[2][SAMPLE_BINS];
  uint32_t warps[32];
  uint32_t prefix[2], rank[2];
};

/* The bin in which the rank-th largest is; the rank becomes that within the bin. Two bins for each thread. */
INLINE void pick_bin(Sampler &m, int which, uint32_t bins, int bits) {
  uint32_t *bin = m.bins[which], rank = m.rank[which], total;
  uint32_t high = bins - 1 - 2 * threadIdx.x; /* this thread's, and the one below */
  bool mine = 2 * threadIdx.x < bins;
  uint32_t a = mine ? bin[high] : 0, b = mine ? bin[high - 1] : 0;
  uint32_t before = block_before<uint32_t>(a + b, m.warps, &total);
  if (mine && before < rank && rank <= before + a + b) {
    bool first = rank <= before + a;
    m.prefix[which] = m.prefix[which] << bits | (first ? high : high - 1);
    m.rank[which] = rank - before - (first ? 0 : a);
  }
  __syncthreads();
}

/* The keys of two ranks of the sample, 1 ≤ rank ≤ samples. */
INLINE void select_two(const Section &s, Sampler &m, uint32_t rank0, uint32_t rank1) {
  const int shifts[] = {20, 10, 0}, widths[] = {11, 10, 10};
  if (threadIdx.x < 2) {
    m.prefix[threadIdx.x] = 0;
    m.rank[threadIdx.x] = threadIdx.x ? rank1 : rank0;
  }
  for (int d = 0; d < 3; d++) {
    uint32_t bins = 1u << widths[d], mask = bins - 1;
    for (uint32_t i = threadIdx.x; i < bins; i += SAMPLERS) {
      m.bins[0][i] = m.bins[1][i] = 0;
    }
    __syncthreads();
    uint32_t p0 = m.prefix[0], p1 = m.prefix[1];
#pragma unroll 8
    for (uint32_t i = threadIdx.x; i < s.samples; i += SAMPLERS) {
      uint32_t key = s.sample[i], above = d ? key >> (shifts[d] + widths[d]) : 0, bin = key >> shifts[d] & mask;
      if (above == p0) {
        atomicAdd(&m.bins[0][bin], 1u);
      }
      if (above == p1 && d) {
        atomicAdd(&m.bins[1][bin], 1u);
      }
    }
    __syncthreads();
    if (d == 0) { /* both begin with the same counts */
      for (uint32_t i = threadIdx.x; i < bins; i += SAMPLERS) {
        m.bins[1][i] = m.bins[0][i];
      }
      __syncthreads();
    }
    pick_bin(m, 0, bins, widths[d]);
    pick_bin(m, 1, bins, widths[d]);
  }
}

INLINE uint32_t count_nonzero(const Section &s, Sampler &m) {
  uint32_t mine = 0, total;
  for (uint32_t i = threadIdx.x; i < s.samples; i += SAMPLERS) {
    mine += s.sample[i] > 0;
  }
  block_before<uint32_t>(mine, m.warps, &total);
  return total;
}

/* A cut from the sample alone: the same as the CPU's. */
INLINE void sampled_cut(const Section &s, Sampler &m) {
  uint32_t rank = (uint32_t)ceil((double)s.k / (double)s.n * (double)s.samples);
  rank = rank < 1 ? 1 : least(rank, s.samples);
  select_two(s, m, rank, rank);
  if (threadIdx.x == 0) {
    s.control->low = s.control->high = (int32_t)m.prefix[0] - 1;
  }
}

/* A bracket around the exact cut. */
INLINE void bracket(const Section &s, Sampler &m) {
  double samples = s.samples, share = (double)s.k / (double)s.n;
  if (s.side != SIDE_BOTH) {
    share = s.ratio * count_nonzero(s, m) / samples;
  }
  double rank = share * samples, doubt = DOUBT * sqrt(rank * (1 - share)) + SAMPLE_RUN;
  bool all = rank + doubt > samples, top = rank - doubt < 1;
  select_two(s, m, all ? s.samples : (uint32_t)(rank + doubt), top ? 1 : (uint32_t)(rank - doubt));
  if (threadIdx.x == 0) {
    s.control->low = all ? (s.side == SIDE_BOTH ? -1 : 0) : (int32_t)m.prefix[0];
    s.control->high = top ? NO_CUT : (int32_t)m.prefix[1];
  }
}

__global__ void __launch_bounds__(SAMPLERS, 1) sample_kernel(const __grid_constant__ Sections batch) {
  __shared__ Sampler m;
  const Section &s = share_of(batch).s;
  if (s.select == PITH_GPU_SELECT_ABOVE) {
    return;
  }
  if (s.samples == 0) { /* few values: all of them are candidates */
    if (threadIdx.x == 0) {
      s.control->low = s.side == SIDE_BOTH ? -1 : 0;
      s.control->high = NO_CUT;
    }
    return;
  }
  draw_sample(s);
  if (s.select == PITH_GPU_SELECT_SAMPLED) {
    sampled_cut(s, m);
  } else {
    bracket(s, m);
  }
}

/* ---- The scan ---------------------------------------------------------------------------------------------------- */

#define TOGETHER 16 /* values of a lane that are read before the first is used */
#define STRIP 1024  /* values of a warp at a time: a word of the bitmap for each lane */

/* Candidates of a warp on their way to the list. */
struct Stage {
  uint2 candidate[STAGE];
};

struct Tally {
  uint32_t above, equal, nonzero;
  int32_t most;
  uint32_t waiting; /* in the stage */
};

INLINE uint32_t take_room(const Section &s, uint32_t count) {
  uint32_t base = 0;
  if ((threadIdx.x & 31) == 0) {
    base = atomicAdd(&s.control->within, count);
  }
  return __shfl_sync(FULL, base, 0);
}

INLINE void put_candidate(const Section &s, uint32_t at, uint2 candidate) {
  if (at < s.room) {
    s.candidates[at] = candidate;
  }
}

INLINE void flush(const Section &s, Stage &stage, Tally &tally) {
  uint32_t base = take_room(s, tally.waiting);
  __syncwarp();
  for (uint32_t i = threadIdx.x & 31; i < tally.waiting; i += 32) {
    put_candidate(s, base + i, stage.candidate[i]);
  }
  __syncwarp();
  tally.waiting = 0;
}

/* Each lane has the candidates of one word; their values are read again, which few are. */
template <class Key>
INLINE void list_candidates(const Section &s, Stage &stage, Tally &tally, uint32_t within, uint32_t first,
                            Key key_at_place) {
  uint32_t lane = threadIdx.x & 31, mine = __popc(within), sum = mine;
  for (int h = 1; h < 32; h *= 2) {
    uint32_t other = __shfl_up_sync(FULL, sum, h);
    sum += lane >= (uint32_t)h ? other : 0;
  }
  uint32_t total = __shfl_sync(FULL, sum, 31), at = sum - mine;
  if (total + tally.waiting > STAGE) {
    flush(s, stage, tally);
  }
  bool direct = total > STAGE;
  at += direct ? take_room(s, total) : tally.waiting;
  for (; within; within &= within - 1, at++) {
    uint32_t place = first + 32 * lane + (uint32_t)__ffs((int)within) - 1;
    uint2 candidate = make_uint2((uint32_t)key_at_place(place), place);
    if (direct) {
      put_candidate(s, at, candidate);
    } else {
      stage.candidate[at] = candidate;
    }
  }
  tally.waiting += direct ? 0 : total;
  __syncwarp();
}

/* The bits of a strip go to the bitmap, their number and the last of them to the tile. */
INLINE void put_strip(const Section &s, uint32_t first, uint32_t word) {
  uint32_t lane = threadIdx.x & 31, tile = first / TILE;
  s.bitmap[first / 32 + lane] = word;
  uint32_t count = warp_sum((uint32_t)__popc(word));
  uint32_t last = warp_most(word ? first + 32 * lane + 32 - __clz((int)word) : 0);
  if (lane == 0 && count) {
    atomicAdd(&s.tile_count[tile], count);
    atomicMax(&s.tile_last[tile], last);
  }
}

/* Some values of a lane, 32 apart, from the tensor; those beyond the end are zeros. */
template <class T, int COUNT>
INLINE void read_values(const Section &s, const T *src, uint32_t at, bool full, float (&v)[COUNT]) {
  const int dtype = sizeof(T) == 4 ? (int)PITH_GPU_F32 : (int)s.type;
  T raw[COUNT];
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    raw[j] = full || at + 32 * j < s.n ? src[at + 32 * j] : T(0);
  }
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    v[j] = sizeof(T) == 4          ? (float)raw[j]
           : dtype == PITH_GPU_F16 ? f16_to_f32((uint16_t)raw[j])
                                   : bf16_to_f32((uint16_t)raw[j]);
  }
}

/* Compensates them; the memory keeps what they become. */
template <int COUNT>
INLINE void compensate_values(const Section &s, float gamma, uint32_t at, bool full, float (&v)[COUNT]) {
  float e[COUNT], u[COUNT] = {};
  bool second = s.keeps == PITH_GPU_KEEP_UNSENT;
  read_values<float>(s, s.memory, at, full, e);
  if (second) {
    read_values<float>(s, s.momentum, at, full, u);
  }
#pragma unroll
  for (int j = 0; j < COUNT; j++) {
    v[j] = compensated(s, v[j], e[j], u[j], gamma, &u[j]);
    if (full || at + 32 * j < s.n) {
      s.memory[at + 32 * j] = v[j];
      if (second) {
        s.momentum[at + 32 * j] = u[j];
      }
    }
  }
}

/* Which values of a strip have keys above `high`, and which above `low`: lane j has those of 32 values from 32·j on. */
struct Marks {
  uint32_t above, hits;
};

/* Any strip. Nothing here depends on the values, so that many loads are under way together. */
template <class T, bool SIDED, bool COMPENSATES>
INLINE Marks mark_strip(const Section &s, uint32_t first, int32_t low, int32_t high, float gamma, Tally &tally) {
  constexpr int COUNT = COMPENSATES ? TOGETHER / 2 : TOGETHER;
  const T *src = (const T *)(COMPENSATES ? s.given : s.src);
  const int side = SIDED ? (int)s.side : (int)SIDE_BOTH;
  uint32_t lane = threadIdx.x & 31;
  Marks marks = {0, 0};
  bool full = first + STRIP <= s.n;
#pragma unroll 1
  for (uint32_t at = first + lane, j0 = 0; j0 < 32; j0 += COUNT, at += 32 * COUNT) {
    float v[COUNT];
    read_values<T>(s, src, at, full, v);
    if (COMPENSATES) {
      compensate_values(s, gamma, at, full, v);
    }
#pragma unroll
    for (int j = 0; j < COUNT; j++) {
      int32_t key = full || at + 32 * j < s.n ? key_of(v[j], side) : -2;
      uint32_t above = __ballot_sync(FULL, key > high), hits = __ballot_sync(FULL, key > low);
      tally.equal += key == low;
      tally.most = max(tally.most, key);
      if (SIDED) {
        tally.nonzero += key > 0;
      }
      if (lane == j0 + j) {
        marks = Marks{above, hits};
      }
    }
  }
  return marks;
}

/* A lane's bits of eight rows of 128 values, bit 4·r + c that of value 128·r + 4·lane + c, become those of 32
 * neighbours: eight lanes exchange nibbles, so that lane j of them has those of row j, and words find their lanes. */
INLINE uint32_t words_of_quads(uint32_t word) {
  uint32_t lane = threadIdx.x & 31, other = __shfl_xor_sync(FULL, word, 4);
  word = __byte_perm(word, other, lane & 4 ? 0x3276 : 0x5410);
  other = __shfl_xor_sync(FULL, word, 2);
  word = __byte_perm(word, other, lane & 2 ? 0x3715 : 0x6240);
  other = __shfl_xor_sync(FULL, word, 1);
  word =
      lane & 1 ? (other >> 4 & 0x0f0f0f0fu) | (word & 0xf0f0f0f0u) : (word & 0x0f0f0f0fu) | (other & 0x0f0f0f0fu) << 4;
  return __shfl_sync(FULL, word, (int)(lane % 4 * 8 + lane / 4));
}

#define QUAD_ROWS 8
#define QUADS_TOGETHER 4 /* rows that are read before the first is used */

/* A full strip of f32 values at aligned addresses, behind one memory or none, four neighbours in a lane: half the
 * instructions. */
template <bool COMPENSATES>
INLINE Marks mark_quads(const Section &s, uint32_t first, int32_t low, int32_t high, float gamma, Tally &tally) {
  const float4 *src = (const float4 *)((const float *)(COMPENSATES ? s.given : s.src) + first) + (threadIdx.x & 31);
  float4 *memory = (float4 *)(s.memory + first) + (threadIdx.x & 31);
  Marks marks = {0, 0};
#pragma unroll 1
  for (int r0 = QUAD_ROWS - QUADS_TOGETHER; r0 >= 0; r0 -= QUADS_TOGETHER) { /* the last bits first */
    float4 v[QUADS_TOGETHER], e[QUADS_TOGETHER];
#pragma unroll
    for (int r = 0; r < QUADS_TOGETHER; r++) {
      v[r] = src[32 * (r0 + r)];
      if (COMPENSATES) {
        e[r] = memory[32 * (r0 + r)];
      }
    }
#pragma unroll
    for (int r = QUADS_TOGETHER - 1; r >= 0; r--) {
      if (COMPENSATES) {
        v[r] = make_float4(s.beta * e[r].x + gamma * v[r].x, s.beta * e[r].y + gamma * v[r].y,
                           s.beta * e[r].z + gamma * v[r].z, s.beta * e[r].w + gamma * v[r].w);
        memory[32 * (r0 + r)] = v[r];
      }
      const float four[4] = {v[r].x, v[r].y, v[r].z, v[r].w};
#pragma unroll
      for (int c = 3; c >= 0; c--) {
        int32_t key = key_of(four[c], SIDE_BOTH);
        marks.above = __funnelshift_l((uint32_t)(high - key), marks.above, 1); /* the sign of the difference */
        marks.hits = __funnelshift_l((uint32_t)(low - key), marks.hits, 1);
        tally.equal += key == low;
        tally.most = max(tally.most, key);
      }
    }
  }
  return Marks{words_of_quads(marks.above), words_of_quads(marks.hits)};
}

/* 1024 values by a warp. */
template <class T, bool SIDED, bool COMPENSATES>
INLINE void scan_strip(const Section &s, uint32_t first, int32_t low, int32_t high, float gamma, Stage &stage,
                       Tally &tally) {
  uintptr_t all = (uintptr_t)(COMPENSATES ? s.given : s.src) | (COMPENSATES ? (uintptr_t)s.memory : 0);
  bool quads = sizeof(T) == 4 && !SIDED && first + STRIP <= s.n && (all & 15) == 0 &&
               !(COMPENSATES && s.keeps == PITH_GPU_KEEP_UNSENT);
  Marks marks = quads ? mark_quads<COMPENSATES>(s, first, low, high, gamma, tally)
                      : mark_strip<T, SIDED, COMPENSATES>(s, first, low, high, gamma, tally);
  uint32_t within = marks.hits & ~marks.above;
  tally.above += __popc(marks.above);
  put_strip(s, first, marks.above);
  if (__any_sync(FULL, within != 0)) {
    __syncwarp();
    list_candidates(s, stage, tally, within, first, [&](uint32_t place) { return key_at(s, place); });
  }
}

INLINE uint32_t ratio_count(double ratio, uint32_t n) {
  double count = ceil(ratio * (double)n * (1 - 0x1p-50));
  return count < 1 ? n > 0 : count >= (double)n ? n : (uint32_t)count;
}

INLINE int bits_below(uint32_t range) { return range ? 32 - __clz((int)range) : 1; }

INLINE void seek(Control &c, Among among, Phase phase, uint32_t rank, int bits, uint32_t base) {
  c.among = among;
  c.phase = phase;
  c.rank = rank;
  c.left = (uint32_t)bits;
  c.base = base;
  c.prefix = 0;
}

/* What is left to do after the scan. */
INLINE void decide(const Section &s, Control &c) {
  uint32_t k = s.side == SIDE_BOTH ? s.k : ratio_count(s.ratio, c.nonzero);
  c.k = k;
  c.cut = c.high + 1;
  c.last = ~0u;
  if (s.select == PITH_GPU_SELECT_ABOVE || k == 0) {
    return;
  }
  if (s.select == PITH_GPU_SELECT_SAMPLED && s.samples) {
    if (c.above < k / 2 || c.above - c.above / 2 > k) {
      seek(c, AMONG_ALL, PHASE_KEY, k, 31, 0);
    }
  } else if (c.within > s.room || c.above >= k) {
    seek(c, AMONG_ALL, PHASE_KEY, k, 31, 0);
  } else if (c.above + c.within >= k) {
    uint32_t base = (uint32_t)(c.low + 1);
    seek(c, AMONG_CANDIDATES, PHASE_KEY, k - c.above, c.high == NO_CUT ? 31 : bits_below((uint32_t)c.high - base),
         base);
  } else if (c.above + c.within + c.equal >= k) {
    c.cut = c.low;
    uint32_t wanted = k - c.above - c.within;
    seek(c, AMONG_ALL, wanted == c.equal ? PHASE_DONE : PHASE_PLACE, wanted, bits_below(s.n - 1), 0);
  } else {
    seek(c, AMONG_ALL, PHASE_KEY, k, 31, 0);
  }
}

template <class T, bool SIDED, bool COMPENSATES>
INLINE void scan(const Share &share, Stage &stage) {
  const Section &s = share.s;
  Control &c = *s.control;
  int32_t low = c.low, high = c.high;
  Tally tally = {0, 0, 0, -2, 0};
  EACH_TILE(tile, share) {
    scan_strip<T, SIDED, COMPENSATES>(s, tile * TILE + STRIP * (threadIdx.x / 32), low, high, c.gamma, stage, tally);
  }
  flush(s, stage, tally);
  uint32_t above = warp_sum(tally.above), equal = warp_sum(tally.equal);
  uint32_t nonzero = warp_sum(tally.nonzero);
  bool bad = __any_sync(FULL, tally.most >= (int32_t)INF_BITS);
  if ((threadIdx.x & 31) == 0) {
    atomicAdd(&c.above, above);
    atomicAdd(&c.equal, equal);
    atomicAdd(&c.nonzero, nonzero);
    if (bad) {
      c.not_finite = 1;
    }
  }
}

__global__ void __launch_bounds__(THREADS, 2) scan_kernel(const __grid_constant__ Sections batch) {
  __shared__ Stage stages[WARPS];
  Share share = share_of(batch);
  Stage &stage = stages[threadIdx.x / 32];
  bool floats = (share.s.fused ? share.s.type : share.s.src_type) == PITH_GPU_F32;
  if (share.s.fused) {
    floats ? scan<float, false, true>(share, stage) : scan<uint16_t, false, true>(share, stage);
  } else if (share.s.side == SIDE_BOTH) {
    floats ? scan<float, false, false>(share, stage) : scan<uint16_t, false, false>(share, stage);
  } else {
    floats ? scan<float, true, false>(share, stage) : scan<uint16_t, true, false>(share, stage);
  }
  if (last_of(share) && threadIdx.x == 0) {
    decide(share.s, *share.s.control);
  }
}

/* ---- Digits ------------------------------------------------------------------------------------------------------ */

struct Digit {
  uint32_t bins[BINS];
  uint32_t warps[32];
};

INLINE void count_one(Digit &d, const Control &c, int32_t key, uint32_t place, uint32_t shift, uint32_t mask) {
  uint32_t x = c.phase == PHASE_KEY ? (uint32_t)key - c.base : place;
  bool here = c.phase == PHASE_KEY ? key >= (int32_t)c.base : key == c.cut;
  if (here && (uint64_t)x >> c.left == c.prefix) {
    atomicAdd(&d.bins[x >> shift & mask], 1u);
  }
}

/* The digit of the rank-th: keys count from the largest, places from the lowest. */
INLINE void pick_digit(const Section &s, Digit &d, Control &c, uint32_t bits) {
  const uint32_t each = BINS / THREADS;
  bool down = c.phase == PHASE_KEY;
  uint32_t first = threadIdx.x * each, mine = 0, total, rank = c.rank, left = c.left;
  for (uint32_t i = 0; i < each; i++) {
    uint32_t bin = down ? BINS - 1 - (first + i) : first + i;
    mine += c.bins[bin];
  }
  uint32_t before = block_before<uint32_t>(mine, d.warps, &total);
  if (before < rank && rank <= before + mine) {
    uint32_t i = 0, bin = 0, here = 0;
    for (; i < each; i++) {
      bin = down ? BINS - 1 - (first + i) : first + i;
      here = c.bins[bin];
      if (rank <= before + here) {
        break;
      }
      before += here;
    }
    c.prefix = c.prefix << bits | bin;
    c.rank = rank - before;
    c.left = left - bits;
    if (left == bits && down) {
      c.cut = (int32_t)(c.base + c.prefix);
      if (c.rank == here) { /* all that are equal travel */
        c.phase = PHASE_DONE;
      } else {
        c.phase = PHASE_PLACE;
        c.left = (uint32_t)bits_below(s.n - 1);
        c.prefix = 0;
      }
    } else if (left == bits) {
      c.last = c.prefix;
      c.phase = PHASE_DONE;
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    c.bins[i] = 0;
  }
}

__global__ void __launch_bounds__(THREADS) digit_kernel(const __grid_constant__ Sections batch) {
  __shared__ Digit d;
  Share share = share_of(batch);
  const Section &s = share.s;
  Control &c = *s.control;
  if (c.among == AMONG_NONE || c.phase == PHASE_DONE) {
    return;
  }
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    d.bins[i] = 0;
  }
  __syncthreads();
  uint32_t bits = least(DIGIT, c.left), shift = c.left - bits, mask = (1u << bits) - 1;
  size_t step = (size_t)share.parts * THREADS, first = (size_t)share.part * THREADS + threadIdx.x;
  if (c.among == AMONG_CANDIDATES) {
    for (size_t i = first; i < c.within; i += step) {
      uint2 x = s.candidates[i];
      count_one(d, c, (int32_t)x.x, x.y, shift, mask);
    }
  } else {
#pragma unroll 4
    for (size_t i = first; i < s.n; i += step) {
      count_one(d, c, key_at(s, (uint32_t)i), (uint32_t)i, shift, mask);
    }
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x; i < BINS; i += THREADS) {
    if (d.bins[i]) {
      atomicAdd(&c.bins[i], d.bins[i]);
    }
  }
  if (last_of(share)) {
    pick_digit(s, d, c, bits);
  }
}

/* ---- Marking ----------------------------------------------------------------------------------------------------- */

#define MARKED 4 /* candidates of a thread that are read before the first is marked */

/* Neighbours in the list are often of one tile, whose count goes up once for all of them in a warp. */
INLINE void mark_one(const Section &s, bool is_sent, uint32_t place) {
  uint32_t tile = is_sent ? place / TILE : ~0u, same = __match_any_sync(FULL, tile);
  if (is_sent) {
    atomicOr(&s.bitmap[place / 32], 1u << (place & 31));
    atomicMax(&s.tile_last[tile], place + 1);
    if ((uint32_t)__ffs((int)same) - 1 == (threadIdx.x & 31)) {
      atomicAdd(&s.tile_count[tile], (uint32_t)__popc(same));
    }
  }
}

INLINE void mark_candidates(const Share &share) {
  const Section &s = share.s;
  const int32_t cut = s.control->cut;
  const uint32_t last = s.control->last, within = s.control->within, step = share.parts * THREADS;
  for (uint32_t first = share.part * THREADS; first < within; first += MARKED * step) { /* the same for a whole warp */
    uint2 x[MARKED];
#pragma unroll
    for (int j = 0; j < MARKED; j++) {
      uint32_t i = first + j * step + threadIdx.x;
      x[j] = i < within ? s.candidates[i] : make_uint2(0, 0);
    }
#pragma unroll
    for (int j = 0; j < MARKED; j++) {
      bool there = first + j * step + threadIdx.x < within;
      mark_one(s, there && travels(cut, last, (int32_t)x[j].x, x[j].y), x[j].y);
    }
  }
}

/* The bitmap anew. Its tiles were counted by the scan, which may have marked too many: they start at zero again. */
INLINE void mark_all(const Share &share) {
  const Section &s = share.s;
  const int32_t cut = s.control->cut;
  const uint32_t last = s.control->last;
  EACH_TILE(tile, share) {
    if (threadIdx.x == 0) {
      s.tile_count[tile] = s.tile_last[tile] = 0;
    }
    __syncthreads();
    uint32_t first = tile * TILE + STRIP * (threadIdx.x / 32), word = 0;
#pragma unroll 8
    for (int j = 0; j < 32; j++) {
      uint32_t i = first + 32 * j + (threadIdx.x & 31);
      uint32_t hits = __ballot_sync(FULL, i < s.n && travels(cut, last, key_at(s, i), i));
      word = (threadIdx.x & 31) == (uint32_t)j ? hits : word;
    }
    put_strip(s, first, word);
  }
}

__global__ void __launch_bounds__(THREADS) mark_kernel(const __grid_constant__ Sections batch) {
  Share share = share_of(batch);
  switch (share.s.control->among) {
    case AMONG_CANDIDATES:
      mark_candidates(share);
      break;
    case AMONG_ALL:
      mark_all(share);
      break;
    default:
      break;
  }
}

cudaError_t launch_sample(const Sections &batch, cudaStream_t stream) {
  sample_kernel<<<batch.blocks, SAMPLERS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_scan(const Sections &batch, cudaStream_t stream) {
  scan_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_digit(const Sections &batch, cudaStream_t stream) {
  digit_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_mark(const Sections &batch, cudaStream_t stream) {
  mark_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

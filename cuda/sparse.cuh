/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernels of sparsifiers share. A *section* is a selection of values of a tensor and the part of a payload
 * they travel in; most codecs have one, `adaptive` two. Between selecting and writing, a selection is a bitmap in the
 * workspace: 1/32 of the tensor, it stays in the second-level cache while values, gaps and codes are made from it.
 * Tiles of it are worked on by a block of threads each.
 *
 * Everything that depends on the data (cuts, counts, codings, sizes) stays on the device, in the section's Control.
 */
#pragma once

#include "device.cuh"

#define SECTIONS 16 /* of a launch */
#define TILE 16384  /* values of a tile */
#define TILE_WORDS (TILE / 32)
#define DIGIT 12 /* bits of a digit of the radix select */
#define BINS (1 << DIGIT)
#define SAMPLED_FROM 16384 /* as src/codec/selection.c: below, there is no sample */
#define SAMPLE_RUN 8
#define SAMPLES_MOST 65536
#define MEMORY_TILE 1024  /* values whose squares are summed together: PITH_MEMORY_TILE */
#define STREAM_BLOCK 4096 /* bytes of a Rice stream that a block of threads decodes */
#define RICE_STATES (PITH_RICE_MAX + 1)

enum Side { SIDE_BOTH, SIDE_POSITIVE, SIDE_NEGATIVE };
enum Among { AMONG_NONE, AMONG_CANDIDATES, AMONG_ALL }; /* where the cut is looked for */
enum Phase { PHASE_KEY, PHASE_PLACE, PHASE_DONE };

struct Control {
  uint32_t bins[BINS];
  uint64_t ones[32];                      /* in how many gaps a bit is set */
  int32_t low, high;                      /* candidates have keys above the one, up to the other */
  uint32_t k;                             /* wanted */
  uint32_t above, within, equal, nonzero; /* how many keys are above high, candidates, equal to low, of this side */
  uint32_t done, not_finite;
  uint32_t among, phase, base, left, prefix,
      rank; /* radix select: bits left, digits found, rank among those that share them */
  int32_t cut;
  uint32_t last; /* of keys equal to the cut, those up to this place travel */
  uint32_t count, coding, rice;
  uint32_t most; /* greatest key that travels */
  float mean, gamma;
  double sum;
  uint64_t index_bytes, total;          /* of the section */
  uint64_t values, indices, limit, end; /* decoding: offsets in the payload */
};

struct Section {
  const void *src;   /* what is selected from: the tensor, or the memory, where it has been compensated */
  const void *given; /* the tensor */
  void *dst;
  uint8_t *payload;
  uint64_t *size; /* NULL: the section is not the last */
  Control *control;
  const Control *before; /* of the section that stands before this one */
  float *memory, *momentum;
  double *squares;
  uint32_t *bitmap, *stream;
  uint32_t *tile_count, *tile_last, *tile_rank, *tile_prev;
  uint64_t *tile_bits;
  uint16_t *tile_ones;
  uint2 *candidates; /* key, place */
  float *list;       /* values that are coded in blocks */
  uint32_t *sample;
  uint64_t *maps; /* decoding: what blocks of a Rice stream do to each state */
  double ratio, clip;
  uint64_t capacity;
  uint32_t n, k, most, tiles, room, samples, stream_blocks; /* room: for candidates */
  uint32_t key0, key1, cut;
  float beta, gamma;
  uint32_t begin, end; /* blocks of the launch */
  uint16_t kind;
  uint8_t src_type, type, coding, select, side, keeps;
  uint8_t fused; /* the scan compensates the tensor */
};

struct Sections {
  uint32_t count, blocks;
  Section section[SECTIONS];
};

/* The section of this block of threads, and which of its parts. */
struct Share {
  const Section &s;
  uint32_t part, parts;
};

INLINE Share share_of(const Sections &batch) {
  uint32_t i = 0;
  while (blockIdx.x >= batch.section[i].end) {
    i++;
  }
  const Section &s = batch.section[i];
  return Share{s, blockIdx.x - s.begin, s.end - s.begin};
}

#define EACH_TILE(tile, share) for (uint32_t tile = (share).part; tile < (share).s.tiles; tile += (share).parts)

/* ---- Keys -------------------------------------------------------------------------------------------------------- */

/* The bits of |x|, which order like |x|; 0 for values of the other side. */
INLINE int32_t key_of(float x, int side) {
  int32_t bits = (int32_t)bits_of(x), key = bits & 0x7fffffff;
  return side == SIDE_BOTH || (bits < 0) == (side == SIDE_NEGATIVE) ? key : 0;
}

INLINE int32_t key_at(const Section &s, uint32_t i) { return key_of(value_at(s.src, s.src_type, i), s.side); }

/* What is sent of a value g, compensated by the memory, which the caller passes. */
INLINE float compensated(const Section &s, float g, float e, float u, float gamma, float *next_u) {
  if (s.keeps == PITH_GPU_KEEP_UNSENT) {
    *next_u = s.beta * u + gamma * g;
    return e + *next_u;
  }
  return s.beta * e + gamma * g;
}

INLINE bool travels(int32_t cut, uint32_t last, int32_t key, uint32_t place) {
  return key > cut || (key == cut && place <= last);
}

/* ---- Values as they travel: src/codec/value_coding.c ------------------------------------------------------------- */

INLINE float tame(float x, int coding) {
  float overflow = coding == PITH_VALUES_FP16 ? 65520.0f : coding == PITH_VALUES_BF16 ? 0x1.ffp127f : INFINITY;
  float largest = coding == PITH_VALUES_FP16 ? 65504.0f : 0x1.fep127f;
  return !is_finite(x) ? nan_value() : fabsf(x) >= overflow ? copysignf(largest, x) : x;
}

INLINE uint32_t get_u16(const uint8_t *in) { return in[0] | (uint32_t)in[1] << 8; }

INLINE void put_u16(uint8_t *out, uint32_t x) {
  if (((uintptr_t)out & 1) == 0) {
    *(uint16_t *)out = (uint16_t)x;
  } else {
    out[0] = (uint8_t)x;
    out[1] = (uint8_t)(x >> 8);
  }
}

INLINE uint64_t coded_size(int coding, uint64_t count) {
  switch (coding) {
    case PITH_VALUES_FP32:
      return 4 * count;
    case PITH_VALUES_Q8:
      return count + (count + PITH_VALUES_BLOCK - 1) / PITH_VALUES_BLOCK * PITH_Q8_HEAD;
    case PITH_VALUES_MEAN:
      return 4;
    default:
      return 2 * count;
  }
}

/* Not for blocks of q8. Returns what is decoded. */
INLINE float put_coded(uint8_t *values, int coding, uint64_t rank, float x) {
  x = tame(x, coding);
  if (coding == PITH_VALUES_FP32) {
    put_f32(values + 4 * rank, x);
    return x;
  }
  bool half = coding == PITH_VALUES_FP16;
  uint16_t h = half ? f32_to_f16(x) : f32_to_bf16(x);
  put_u16(values + 2 * rank, h);
  return half ? f16_to_f32(h) : bf16_to_f32(h);
}

INLINE float get_coded(const uint8_t *values, int coding, uint64_t rank) {
  switch (coding) {
    case PITH_VALUES_FP32:
      return get_f32(values + 4 * rank);
    case PITH_VALUES_FP16:
      return f16_to_f32((uint16_t)get_u16(values + 2 * rank));
    case PITH_VALUES_BF16:
      return bf16_to_f32((uint16_t)get_u16(values + 2 * rank));
    case PITH_VALUES_Q8: {
      const uint8_t *block = values + rank / PITH_VALUES_BLOCK * (PITH_VALUES_BLOCK + PITH_Q8_HEAD);
      float level = (float)((int)block[PITH_Q8_HEAD + rank % PITH_VALUES_BLOCK] - 128);
      return get_f32(block) + get_f32(block + 4) * level;
    }
    default:
      return get_f32(values); /* a mean stands for all */
  }
}

/* A warp encodes a block of m values, of which `at` gives the i-th. */
template <class At>
INLINE void put_q8_block(uint8_t *out, uint32_t m, At at) {
  uint32_t lane = threadIdx.x & 31, most = 0;
  float lo = INFINITY, hi = -INFINITY, v[PITH_VALUES_BLOCK / 32];
#pragma unroll
  for (int j = 0; j < PITH_VALUES_BLOCK / 32; j++) {
    uint32_t i = lane + 32 * j;
    v[j] = i < m ? at(i) : 0.0f;
    if (i < m) {
      lo = fminf(lo, v[j]);
      hi = fmaxf(hi, v[j]);
      most = max(most, magnitude(v[j]));
    }
  }
  for (int h = 16; h; h /= 2) {
    lo = fminf(lo, __shfl_xor_sync(FULL, lo, h));
    hi = fmaxf(hi, __shfl_xor_sync(FULL, hi, h));
    most = max(most, __shfl_xor_sync(FULL, most, h));
  }
  bool bad = most >= INF_BITS;
  lo += 0.0f;
  hi += 0.0f;
  float middle = lo * 0.5f + hi * 0.5f, unit = (hi * 0.5f - lo * 0.5f) * (0.999999f / 127.0f);
  unit = unit < 0x1p-126f ? 0.0f : unit;
  float inverse = unit > 0 ? 1.0f / unit : 0.0f;
  if (lane == 0) {
    put_f32(out, bad ? nan_value() : middle);
    put_f32(out + 4, bad ? 0.0f : unit);
  }
#pragma unroll
  for (int j = 0; j < PITH_VALUES_BLOCK / 32; j++) {
    uint32_t i = lane + 32 * j;
    if (i < m) {
      int level = __float2int_rn((v[j] - middle) * inverse) + 128;
      out[PITH_Q8_HEAD + i] = bad ? 0 : (uint8_t)min(max(level, 0), 255);
    }
  }
}

/* ---- What becomes of decoded values ------------------------------------------------------------------------------ */

/* Sets or adds. */
INLINE void apply_value(void *dst, int dtype, uint32_t place, float d, bool add) {
  put_value(dst, dtype, place, add ? value_at(dst, dtype, place) + d : d);
}

/* What is sent of a value x of the memory is taken out of the memories. */
INLINE void take_out(const Section &s, uint32_t place, float x, float d) {
  if (s.keeps == PITH_GPU_KEEP_LOST) {
    float rest = x - d;
    s.memory[place] = rest;
    if (!is_finite(rest)) {
      s.control->not_finite = 1;
    }
  } else {
    s.memory[place] = 0.0f;
    s.momentum[place] = 0.0f;
  }
}

/* Whether values are taken out as they are written: nothing that is chosen later asks for them again, and they are
 * coded one by one. */
static inline __host__ __device__ bool takes_out_at_once(const Section &s) {
  return s.memory && s.keeps != PITH_GPU_KEEP_ALL && s.kind == PITH_WIRE_TOPK && s.coding <= PITH_VALUES_BF16;
}

/* ---- Blocks of threads ------------------------------------------------------------------------------------------- */

/* Sums of all threads before this one; `total` is that of all. `warps` holds a word for each warp; up to 1024 threads.
 */
template <class T>
INLINE T block_before(T x, T *warps, T *total) {
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, count = blockDim.x / 32;
  T sum = x;
  for (int h = 1; h < 32; h *= 2) {
    T other = __shfl_up_sync(FULL, sum, h);
    sum += lane >= (uint32_t)h ? other : T(0);
  }
  if (lane == 31) {
    warps[warp] = sum;
  }
  __syncthreads();
  if (warp == 0) {
    T mine = lane < count ? warps[lane] : T(0), part = mine;
    for (int h = 1; h < 32; h *= 2) {
      T other = __shfl_up_sync(FULL, part, h);
      part += lane >= (uint32_t)h ? other : T(0);
    }
    if (lane < count) {
      warps[lane] = part;
    }
  }
  __syncthreads();
  T before = sum - x + (warp ? warps[warp - 1] : T(0));
  *total = warps[count - 1];
  __syncthreads();
  return before;
}

/* The greatest of all threads before this one, 0 for the first; `all` is the greatest of all. */
INLINE uint32_t block_most_before(uint32_t x, uint32_t *warps, uint32_t *all) {
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32, count = blockDim.x / 32, most = x;
  for (int h = 1; h < 32; h *= 2) {
    uint32_t other = __shfl_up_sync(FULL, most, h);
    most = lane >= (uint32_t)h ? max(most, other) : most;
  }
  if (lane == 31) {
    warps[warp] = most;
  }
  uint32_t before = __shfl_up_sync(FULL, most, 1);
  before = lane ? before : 0;
  __syncthreads();
  uint32_t greatest = 0;
  for (uint32_t w = 0; w < count; w++) {
    before = w < warp ? max(before, warps[w]) : before;
    greatest = max(greatest, warps[w]);
  }
  *all = greatest;
  __syncthreads();
  return before;
}

/* Whether this is the last block of its section to come here: then it sees all that the others wrote before. */
INLINE bool last_of(const Share &share) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(&share.s.control->done, 1u) == share.parts - 1;
    if (last) {
      share.s.control->done = 0;
    }
  }
  __syncthreads();
  __threadfence();
  return last;
}

/* ---- Walking through a selection --------------------------------------------------------------------------------- */

/* The places of a tile that are selected, in order, relative to the tile. All TILE_WORDS threads take part. */
struct Walk {
  uint16_t place[TILE];
  uint32_t warps[TILE_WORDS / 32];
};

/* This thread's word of a tile, if there is such a tile: read while the tile before is worked on. */
INLINE uint32_t walk_word(const Section &s, uint32_t tile) {
  return tile < s.tiles ? s.bitmap[(size_t)tile * TILE_WORDS + threadIdx.x] : 0;
}

/* Before the next tile there must be a barrier. */
INLINE uint32_t walk_open(Walk &walk, uint32_t word) {
  uint32_t lane = threadIdx.x & 31, warp = threadIdx.x / 32;
  uint32_t mine = __popc(word), sum = mine;
  for (int h = 1; h < 32; h *= 2) {
    uint32_t other = __shfl_up_sync(FULL, sum, h);
    sum += lane >= (uint32_t)h ? other : 0;
  }
  if (lane == 31) {
    walk.warps[warp] = sum;
  }
  __syncthreads();
  uint32_t part = lane < TILE_WORDS / 32 ? walk.warps[lane] : 0, count = warp_sum(part);
  uint32_t at = sum - mine + warp_sum(lane < warp ? part : 0);
  for (; word; word &= word - 1) {
    walk.place[at++] = (uint16_t)(32 * threadIdx.x + __ffs((int)word) - 1);
  }
  __syncthreads();
  return count;
}

/* How many values stand between the i-th place of the tile and the one before, which `prev` is for the first. */
INLINE uint32_t walk_gap(const Walk &walk, uint32_t prev, uint32_t tile, uint32_t i) {
  uint32_t place = tile * TILE + walk.place[i];
  return place - (i ? tile * TILE + walk.place[i - 1] + 1 : prev);
}

/* ---- Launching: the host's side ---------------------------------------------------------------------------------- */

/* Compensates values; what is not finite is forgotten again. */
cudaError_t launch_norm(const Sections &batch, cudaStream_t stream);
cudaError_t launch_begin(const Sections &batch, cudaStream_t stream);
cudaError_t launch_compensate(const Sections &batch, cudaStream_t stream);
cudaError_t launch_forget(const Sections &batch, cudaStream_t stream);

cudaError_t launch_sample(const Sections &batch, cudaStream_t stream);
cudaError_t launch_scan(const Sections &batch, cudaStream_t stream);
cudaError_t launch_digit(const Sections &batch, cudaStream_t stream);
cudaError_t launch_mark(const Sections &batch, cudaStream_t stream);

cudaError_t launch_tiles(const Sections &batch, cudaStream_t stream);
cudaError_t launch_values(const Sections &batch, cudaStream_t stream);
cudaError_t launch_plan(const Sections &batch, cudaStream_t stream);
cudaError_t launch_dense(const Sections &batch, cudaStream_t stream);
cudaError_t launch_write(const Sections &batch, cudaStream_t stream);
cudaError_t launch_finish(const Sections &batch, cudaStream_t stream);
cudaError_t launch_keep(const Sections &batch, cudaStream_t stream);

cudaError_t launch_open(const Sections &batch, cudaStream_t stream);
cudaError_t launch_index(const Sections &batch, cudaStream_t stream);
cudaError_t launch_join(const Sections &batch, cudaStream_t stream);
cudaError_t launch_apply(const Sections &batch, bool add, cudaStream_t stream);

/* randomk: no section, since no indices travel; tensor, memory and payload are those of one. */
struct Drawing {
  Section s;
  uint32_t permute[2 * PITH_PERMUTE_ROUNDS];
  float factor;
};

cudaError_t launch_drawing_encode(const Drawing &drawing, uint32_t blocks, cudaStream_t stream);
cudaError_t launch_drawing_decode(const Drawing &drawing, bool add, uint32_t blocks, cudaStream_t stream);

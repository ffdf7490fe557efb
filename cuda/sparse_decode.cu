/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a sparse payload to a tensor. Any bytes are safe: offsets stay within the payload, places within the tensor.
 *
 *   open     reads the head
 *   index    prepares indices: counts the bits of a bitmap by tiles, or finds out what each block of a Rice stream does
 *   join     tells every tile or block how many values come before it, and where they end
 *   apply    sets or adds the values
 *
 * A Rice stream is one long chain: where a code begins follows from all codes before. But a position in it is in one of
 * r + 1 states only (among zeros, or before one of the r low bits), so that a piece of the stream is a small map: from
 * the state before it to the state behind, with the number of codes that end inside and the places they move on by.
 * Threads find the states behind short pieces, from all states at once (runs from two states that meet at the end of a
 * code stay together, and most do soon); following these is cheap, and once its state is known every piece is counted,
 * then decoded, by itself.
 */
#include "sparse.cuh"

#define THREADS TILE_WORDS
#define RICE_THREADS 128
#define PIECE (STREAM_BLOCK / RICE_THREADS) /* bytes of a thread */
#define JOIN_THREADS 1024

/* ---- The head ---------------------------------------------------------------------------------------------------- */

__global__ void open_kernel(const __grid_constant__ Sections batch) {
  const Section &s = share_of(batch).s;
  Control &c = *s.control;
  if (threadIdx.x != 0) {
    return;
  }
  uint64_t size = *s.size < s.capacity ? *s.size : s.capacity, start = s.before ? s.before->end : 0;
  c.done = c.count = c.rice = 0;
  c.coding = PITH_INDEX_RAW;
  c.values = c.indices = c.limit = c.end = size + 1; /* never 0 */
  if (start > size || size - start < PITH_SPARSE_HEAD) {
    return;
  }
  const uint8_t *head = s.payload + start;
  uint32_t coding = head[0], count = get_u32(head + 8);
  uint64_t values = start + PITH_SPARSE_HEAD, room = size - values, taken = coded_size(s.coding, count), bytes = 0;
  bool fits = coding <= PITH_INDEX_DENSE && head[1] == s.coding && head[2] <= PITH_RICE_MAX &&
              get_u32(head + 12) == 0 && count <= s.n && taken <= room;
  bytes = coding == PITH_INDEX_RAW ? 4ull * count : coding == PITH_INDEX_BITMAP ? (s.n + 7ull) / 8 : 0;
  if (!fits || bytes > room - taken || (coding == PITH_INDEX_DENSE && count != s.n)) {
    return;
  }
  c.coding = coding;
  c.rice = head[2];
  c.count = count;
  c.values = values;
  c.indices = values + taken;
  c.limit = size;
  c.end = c.indices + bytes; /* behind a Rice stream once it is decoded */
}

/* ---- Rice streams ------------------------------------------------------------------------------------------------ */

/* State 0 is among zeros; state j + 1 is before low bit j. */
struct Position {
  uint32_t state, codes, places; /* places: the next one that may follow */
};

INLINE uint64_t packed(Position p) { return (uint64_t)p.places << 32 | p.codes << 8 | p.state; }

/* A position moves on by a map. Sums wrap: only the map of the true state matters. */
INLINE Position moved(Position p, uint64_t map) {
  return Position{(uint32_t)map & 0xff, p.codes + ((uint32_t)map >> 8), p.places + (uint32_t)(map >> 32)};
}

/* A place is left out behind the words of every piece, so that threads at the same place of theirs do not meet in one
 * bank. */
INLINE uint32_t word_place(uint32_t word) { return word + word / (PIECE / 4); }

/* Runs over `bits` bits from words in shared memory. `emit` is given every place, numbered from p.codes, and the bit
 * behind its code; the run ends where it says no. */
template <class Emit>
INLINE Position run_codes(const uint32_t *words, uint32_t first, uint32_t bits, uint32_t rice, Position p, Emit emit) {
  uint32_t at = first, end = first + bits;
  while (at < end) {
    uint32_t window = __funnelshift_r(words[word_place(at >> 5)], words[word_place((at >> 5) + 1)], at & 31),
             here = least(32, end - at);
    if (p.state == 0) {
      uint32_t zeros = window ? (uint32_t)__ffs((int)window) - 1 : 32;
      if (zeros >= here) {
        p.places += rice < 32 ? here << rice : 0;
        at += here;
        continue;
      }
      p.places += (rice < 32 ? zeros << rice : 0) + 1;
      at += zeros + 1;
      p.state = 1;
    } else {
      uint32_t low = p.state - 1, take = least(rice - low, here);
      uint32_t value = take < 32 ? window & ((1u << take) - 1) : window;
      p.places += low < 32 ? value << low : 0;
      at += take;
      p.state += take;
    }
    if (p.state == rice + 1) {
      p.state = 0;
      bool on = emit(p.codes, p.places - 1, at);
      p.codes++;
      if (!on) {
        break;
      }
    }
  }
  return p;
}

INLINE Position count_codes(const uint32_t *words, uint32_t piece, uint32_t bits, uint32_t rice, uint32_t state) {
  return run_codes(words, piece * PIECE * 8, bits, rice, Position{state, 0, 0},
                   [](uint32_t, uint32_t, uint32_t) { return true; });
}

#define MARKS (PIECE / 4 + 1) /* words: a bit for each place of a piece where a code may end */

#define LISTED 6144 /* places of a block that are listed, to be applied by all threads together */

struct Stream {
  uint32_t words[STREAM_BLOCK / 4 + 2 + RICE_THREADS + 1];
  uint32_t marks[RICE_THREADS][MARKS];
  uint8_t behind[RICE_STATES][RICE_THREADS]; /* the state behind a piece */
  Position before[RICE_THREADS];             /* the position before it */
  uint32_t warps[32];
  uint32_t last; /* the state behind all */
};

struct Places {
  uint32_t place[LISTED];
};

/* The bits of a piece that exist. */
INLINE uint32_t piece_bits(uint64_t bytes, uint32_t block, uint32_t piece) {
  uint64_t first = (uint64_t)block * STREAM_BLOCK + (uint64_t)piece * PIECE;
  return first >= bytes ? 0 : 8 * (uint32_t)(bytes - first < PIECE ? bytes - first : PIECE);
}

INLINE void load_stream(const uint8_t *in, uint64_t bytes, uint32_t block, Stream &stream) {
  uint64_t first = (uint64_t)block * STREAM_BLOCK;
  for (uint32_t w = threadIdx.x; w < STREAM_BLOCK / 4 + 2; w += RICE_THREADS) {
    uint64_t at = first + 4 * w;
    uint32_t word = 0;
    if (at + 4 <= bytes) {
      word = get_u32(in + at);
    } else {
      for (uint64_t i = at; i < bytes; i++) {
        word |= (uint32_t)in[i] << 8 * (i - at);
      }
    }
    stream.words[word_place(w)] = word;
  }
  __syncthreads();
}

/* The states behind this thread's piece. The run from state 0 marks where its codes end; the others go on until they
 * meet it. */
INLINE void find_states(Stream &stream, uint32_t bits, uint32_t rice) {
  uint32_t *marks = stream.marks[threadIdx.x], first = threadIdx.x * PIECE * 8;
  for (int i = 0; i < MARKS; i++) {
    marks[i] = 0;
  }
  Position p = run_codes(stream.words, first, bits, rice, Position{0, 0, 0}, [&](uint32_t, uint32_t, uint32_t at) {
    marks[(at - first) >> 5] |= 1u << (at & 31);
    return true;
  });
  uint32_t usual = p.state;
  stream.behind[0][threadIdx.x] = (uint8_t)usual;
  for (uint32_t state = 1; state <= rice; state++) {
    bool met = false;
    p = run_codes(stream.words, first, bits, rice, Position{state, 0, 0}, [&](uint32_t, uint32_t, uint32_t at) {
      met = marks[(at - first) >> 5] >> (at & 31) & 1;
      return !met;
    });
    stream.behind[state][threadIdx.x] = (uint8_t)(met ? usual : p.state);
  }
  __syncthreads();
}

/* The positions before all pieces, given that before the first. */
INLINE Position follow(Stream &stream, uint32_t bits, uint32_t rice, Position start) {
  if (threadIdx.x == 0) {
    uint32_t state = start.state;
    for (uint32_t piece = 0; piece < RICE_THREADS; piece++) {
      stream.before[piece].state = state;
      state = stream.behind[state][piece];
    }
    stream.last = state;
  }
  __syncthreads();
  uint32_t codes, places;
  Position mine = count_codes(stream.words, threadIdx.x, bits, rice, stream.before[threadIdx.x].state);
  stream.before[threadIdx.x].codes = start.codes + block_before<uint32_t>(mine.codes, stream.warps, &codes);
  stream.before[threadIdx.x].places = start.places + block_before<uint32_t>(mine.places, stream.warps, &places);
  __syncthreads();
  return Position{stream.last, start.codes + codes, start.places + places};
}

/* What the whole block does to a state, given what it does to state 0: both soon come to the same position. */
INLINE Position follow_other(const Stream &stream, uint64_t bytes, uint32_t block, uint32_t rice, uint32_t state,
                             Position zero) {
  Position p = {state, 0, 0};
  uint32_t piece = 0;
  for (; piece < RICE_THREADS && p.state != stream.before[piece].state; piece++) {
    Position more = count_codes(stream.words, piece, piece_bits(bytes, block, piece), rice, p.state);
    p = Position{more.state, p.codes + more.codes, p.places + more.places};
  }
  if (piece < RICE_THREADS) {
    const Position &met = stream.before[piece];
    p = Position{zero.state, p.codes + zero.codes - met.codes, p.places + zero.places - met.places};
  }
  return p;
}

INLINE const uint8_t *stream_of(const Section &s, const Control &c, uint64_t *bytes) {
  *bytes = c.limit - c.indices;
  return s.payload + c.indices;
}

/* What whole blocks of the stream do to every state. */
INLINE void index_stream(const Share &share, Stream &stream) {
  const Section &s = share.s;
  const Control &c = *s.control;
  uint64_t bytes;
  const uint8_t *in = stream_of(s, c, &bytes);
  for (uint32_t block = share.part; block < s.stream_blocks && (uint64_t)block * STREAM_BLOCK < bytes;
       block += share.parts) {
    uint32_t bits = piece_bits(bytes, block, threadIdx.x);
    load_stream(in, bytes, block, stream);
    find_states(stream, bits, c.rice);
    Position zero = follow(stream, bits, c.rice, Position{0, 0, 0});
    if (threadIdx.x <= c.rice) {
      Position p = threadIdx.x ? follow_other(stream, bytes, block, c.rice, threadIdx.x, zero) : zero;
      s.maps[(size_t)block * RICE_STATES + threadIdx.x] = packed(p);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(RICE_THREADS) index_rice_kernel(const __grid_constant__ Sections batch) {
  __shared__ Stream stream;
  Share share = share_of(batch);
  if (share.s.control->coding == PITH_INDEX_RICE) {
    index_stream(share, stream);
  }
}

/* The position before each block of the stream, in place of its maps. */
INLINE void join_stream(const Section &s, const Control &c, uint64_t *maps, Position *start) {
  uint64_t bytes = c.limit - c.indices;
  uint32_t blocks = (uint32_t)((bytes + STREAM_BLOCK - 1) / STREAM_BLOCK), states = c.rice + 1,
           at_once = JOIN_THREADS / states;
  blocks = least(blocks, s.stream_blocks);
  Position p = {0, 0, 0}; /* of the first thread */
  for (uint32_t first = 0; first < blocks; first += at_once) {
    uint32_t block = first + threadIdx.x / states, state = threadIdx.x % states, count = least(at_once, blocks - first);
    if (threadIdx.x < count * states) {
      maps[threadIdx.x] = s.maps[(size_t)block * RICE_STATES + state];
    }
    __syncthreads();
    for (uint32_t b = 0; threadIdx.x == 0 && b < count; b++) {
      start[b] = p;
      p = moved(p, maps[b * states + p.state]);
    }
    __syncthreads();
    if (threadIdx.x < count) { /* codes of a whole stream take 32 bits */
      uint64_t *to = s.maps + (size_t)(first + threadIdx.x) * RICE_STATES;
      to[0] = packed(Position{start[threadIdx.x].state, 0, start[threadIdx.x].places});
      if (RICE_STATES > 1) {
        to[1] = start[threadIdx.x].codes;
      }
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(JOIN_THREADS) join_kernel(const __grid_constant__ Sections batch) {
  __shared__ uint64_t maps[JOIN_THREADS];
  __shared__ Position start[JOIN_THREADS];
  const Section &s = share_of(batch).s;
  if (s.control->coding == PITH_INDEX_RICE) {
    join_stream(s, *s.control, maps, start);
  }
}

#define APPLY_TOGETHER 8

/* f32 values to f32 tensors: several of a thread are under way together. */
template <bool ADD>
INLINE void apply_floats(const Section &s, const Places &list, uint32_t count, const float *values) {
  float *dst = (float *)s.dst;
  for (uint32_t first = threadIdx.x; first < count; first += APPLY_TOGETHER * RICE_THREADS) {
    uint32_t place[APPLY_TOGETHER];
    float x[APPLY_TOGETHER], before[APPLY_TOGETHER];
#pragma unroll
    for (int j = 0; j < APPLY_TOGETHER; j++) {
      uint32_t i = first + j * RICE_THREADS;
      place[j] = i < count ? list.place[i] : ~0u;
      x[j] = i < count ? values[i] : 0.0f;
      before[j] = ADD && place[j] < s.n ? dst[place[j]] : 0.0f;
    }
#pragma unroll
    for (int j = 0; j < APPLY_TOGETHER; j++) {
      if (place[j] < s.n) {
        dst[place[j]] = ADD ? before[j] + x[j] : x[j];
      }
    }
  }
}

/* Values of one block of a stream. */
template <bool ADD>
INLINE void apply_listed(const Section &s, const Places &list, uint32_t rank, uint32_t count, const uint8_t *values) {
  if (s.type == PITH_GPU_F32 && s.coding == PITH_VALUES_FP32 && aligned4(values)) {
    apply_floats<ADD>(s, list, count, (const float *)values + rank);
    return;
  }
  for (uint32_t i = threadIdx.x; i < count; i += RICE_THREADS) {
    if (list.place[i] < s.n) {
      apply_value(s.dst, s.type, list.place[i], get_coded(values, s.coding, rank + i), ADD);
    }
  }
}

template <bool ADD>
INLINE void apply_stream(const Share &share, Stream &stream, Places &list) {
  const Section &s = share.s;
  Control &c = *s.control;
  uint64_t bytes;
  const uint8_t *in = stream_of(s, c, &bytes), *values = s.payload + c.values;
  const uint32_t count = c.count, rice = c.rice;
  for (uint32_t block = share.part; block < s.stream_blocks && (uint64_t)block * STREAM_BLOCK < bytes;
       block += share.parts) {
    const uint64_t *from = s.maps + (size_t)block * RICE_STATES;
    if (from[1] >= count) {
      break; /* all values are behind us: what follows belongs to the next section */
    }
    uint32_t bits = piece_bits(bytes, block, threadIdx.x), start = (uint32_t)from[1];
    load_stream(in, bytes, block, stream);
    find_states(stream, bits, rice);
    Position end = follow(stream, bits, rice, Position{(uint32_t)from[0] & 0xff, start, (uint32_t)(from[0] >> 32)});
    run_codes(stream.words, threadIdx.x * PIECE * 8, bits, rice, stream.before[threadIdx.x],
              [&](uint32_t rank, uint32_t place, uint32_t at) {
                if (rank - start < LISTED) {
                  list.place[rank - start] = place;
                } else if (rank < count && place < s.n) {
                  apply_value(s.dst, s.type, place, get_coded(values, s.coding, rank), ADD);
                }
                if (rank + 1 == count) {
                  c.end = c.indices + (uint64_t)block * STREAM_BLOCK + (at + 7) / 8;
                }
                return rank < count;
              });
    __syncthreads();
    apply_listed<ADD>(s, list, start, least(least(end.codes, count) - start, LISTED), values);
    __syncthreads();
  }
}

template <bool ADD>
__global__ void __launch_bounds__(RICE_THREADS) apply_rice_kernel(const __grid_constant__ Sections batch) {
  __shared__ Stream stream;
  __shared__ Places list;
  Share share = share_of(batch);
  if (share.s.control->coding == PITH_INDEX_RICE) {
    apply_stream<ADD>(share, stream, list);
  }
}

/* ---- Other codings ----------------------------------------------------------------------------------------------- */

/* A bitmap comes to the workspace, where its words are aligned and end with the tensor. */
INLINE uint32_t bitmap_word(const Section &s, const Control &c, size_t word) {
  const uint8_t *in = s.payload + c.indices;
  uint64_t bytes = (s.n + 7ull) / 8, at = 4 * word;
  uint32_t x = 0;
  if (at + 4 <= bytes) {
    x = get_u32(in + at);
  } else {
    for (uint64_t i = at; i < bytes; i++) {
      x |= (uint32_t)in[i] << 8 * (i - at);
    }
  }
  uint64_t left = 32 * (uint64_t)word < s.n ? s.n - 32 * (uint64_t)word : 0;
  return left < 32 ? x & ((1u << left) - 1) : x;
}

__global__ void __launch_bounds__(THREADS) index_bitmap_kernel(const __grid_constant__ Sections batch) {
  __shared__ uint32_t warps[32];
  Share share = share_of(batch);
  const Section &s = share.s;
  if (s.control->coding != PITH_INDEX_BITMAP) {
    return;
  }
  EACH_TILE(tile, share) {
    size_t at = (size_t)tile * TILE_WORDS + threadIdx.x;
    uint32_t word = bitmap_word(s, *s.control, at), total;
    s.bitmap[at] = word;
    block_before<uint32_t>(__popc(word), warps, &total);
    if (threadIdx.x == 0) {
      s.tile_count[tile] = total;
      s.tile_last[tile] = 0;
    }
  }
}

template <bool ADD>
__global__ void __launch_bounds__(THREADS) apply_kernel(const __grid_constant__ Sections batch) {
  __shared__ Walk walk;
  Share share = share_of(batch);
  const Section &s = share.s;
  const Control &c = *s.control;
  const uint8_t *values = s.payload + c.values;
  size_t step = (size_t)share.parts * THREADS, first = (size_t)share.part * THREADS + threadIdx.x;
  if (c.coding == PITH_INDEX_RAW || c.coding == PITH_INDEX_DENSE) {
    for (size_t i = first; i < c.count; i += step) {
      uint32_t place = c.coding == PITH_INDEX_RAW ? get_u32(s.payload + c.indices + 4 * i) : (uint32_t)i;
      if (place < s.n) {
        apply_value(s.dst, s.type, place, get_coded(values, s.coding, i), ADD);
      }
    }
  } else if (c.coding == PITH_INDEX_BITMAP) {
    EACH_TILE(tile, share) {
      uint32_t count = walk_open(walk, walk_word(s, tile)), rank = s.tile_rank[tile];
      for (uint32_t i = threadIdx.x; i < count && rank + i < c.count; i += THREADS) {
        apply_value(s.dst, s.type, tile * TILE + walk.place[i], get_coded(values, s.coding, rank + i), ADD);
      }
      __syncthreads();
    }
  }
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

cudaError_t launch_open(const Sections &batch, cudaStream_t stream) {
  open_kernel<<<batch.blocks, 32, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_index(const Sections &batch, cudaStream_t stream) {
  index_rice_kernel<<<batch.blocks, RICE_THREADS, 0, stream>>>(batch);
  index_bitmap_kernel<<<batch.blocks, THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_join(const Sections &batch, cudaStream_t stream) {
  join_kernel<<<batch.blocks, JOIN_THREADS, 0, stream>>>(batch);
  return cudaGetLastError();
}

cudaError_t launch_apply(const Sections &batch, bool add, cudaStream_t stream) {
  if (add) {
    apply_rice_kernel<true><<<batch.blocks, RICE_THREADS, 0, stream>>>(batch);
    apply_kernel<true><<<batch.blocks, THREADS, 0, stream>>>(batch);
  } else {
    apply_rice_kernel<false><<<batch.blocks, RICE_THREADS, 0, stream>>>(batch);
    apply_kernel<false><<<batch.blocks, THREADS, 0, stream>>>(batch);
  }
  return cudaGetLastError();
}

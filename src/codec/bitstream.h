/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams of bits, lowest bit of the first byte first, and Rice codes in them.
 *
 * A Rice code with parameter r writes gap >> r in unary (that many zeros, then a one) and the low r bits after it.
 * The writer stores eight bytes at a time: its buffer needs PITH_BITS_SLACK bytes beyond what the stream takes.
 * The reader never looks beyond its end, and says so when a code would.
 */
#ifndef PITH_CODEC_BITSTREAM_H
#define PITH_CODEC_BITSTREAM_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "Pith's payloads are little endian, and so must be the host"
#endif

#define PITH_BITS_SLACK 8
#define PITH_BITS_MAX 56 /* most bits of one put or get */

typedef struct pith_bit_writer {
  uint8_t *at;
  uint64_t word; /* `fill` < 8 bits that do not make a byte yet */
  unsigned fill;
} pith_bit_writer;

/* `count` ≤ PITH_BITS_MAX bits; those of `bits` above them are zero. */
static inline void pith__bits_put(pith_bit_writer *w, uint64_t bits, unsigned count) {
  w->word |= bits << w->fill;
  w->fill += count;
  memcpy(w->at, &w->word, sizeof w->word);
  w->at += w->fill / 8;
  w->word >>= w->fill & ~7u;
  w->fill &= 7;
}

/* The end of the stream, the last byte filled up with zeros. */
static inline uint8_t *pith__bits_end(pith_bit_writer *w) {
  if (w->fill) {
    *w->at++ = (uint8_t)w->word;
  }
  return w->at;
}

static inline void pith__rice_put(pith_bit_writer *w, uint64_t gap, unsigned rice) {
  uint64_t zeros = gap >> rice, low = gap & ((1ull << rice) - 1);
  if (zeros + 1 + rice <= PITH_BITS_MAX) {
    pith__bits_put(w, (low << 1 | 1) << zeros, (unsigned)zeros + 1 + rice);
    return;
  }
  for (; zeros >= PITH_BITS_MAX; zeros -= PITH_BITS_MAX) {
    pith__bits_put(w, 0, PITH_BITS_MAX);
  }
  pith__bits_put(w, 1ull << zeros, (unsigned)zeros + 1);
  pith__bits_put(w, low, rice);
}

typedef struct pith_bit_reader {
  const uint8_t *at, *end;
  uint64_t word; /* `fill` bits, zeros above them */
  unsigned fill;
} pith_bit_reader;

static inline void pith__bits_refill(pith_bit_reader *r) {
  unsigned bytes = (63 - r->fill) / 8;
  uint64_t next = 0;
  if (r->end - r->at >= 8) {
    memcpy(&next, r->at, sizeof next);
    next &= (1ull << (8 * bytes)) - 1;
  } else {
    size_t left = (size_t)(r->end - r->at);
    bytes = left < bytes ? (unsigned)left : bytes;
    memcpy(&next, r->at, bytes);
  }
  r->word |= next << r->fill;
  r->at += bytes;
  r->fill += 8 * bytes;
}

/* Returns 0 at the end of the stream. */
static inline int pith__bits_get(pith_bit_reader *r, unsigned count, uint64_t *bits) {
  if (r->fill < count) {
    pith__bits_refill(r);
    if (r->fill < count) {
      return 0;
    }
  }
  *bits = r->word & ((1ull << count) - 1);
  r->word >>= count;
  r->fill -= count;
  return 1;
}

/* Returns 0 if the stream ends, or if the gap would be above `most`. */
static inline int pith__rice_get(pith_bit_reader *r, unsigned rice, uint64_t most, uint64_t *gap) {
  uint64_t zeros = 0, low;
  while (r->word == 0) {
    zeros += r->fill;
    r->fill = 0;
    pith__bits_refill(r);
    if (r->fill == 0) {
      return 0;
    }
  }
  unsigned run = (unsigned)__builtin_ctzll(r->word);
  zeros += run;
  r->word = r->word >> run >> 1;
  r->fill -= run + 1;
  if (zeros > most >> rice || !pith__bits_get(r, rice, &low)) {
    return 0;
  }
  *gap = zeros << rice | low;
  return *gap <= most;
}

/* Where the stream ends that was read so far, or NULL if its last byte is not filled up with zeros. */
static inline const uint8_t *pith__bits_tail(const pith_bit_reader *r) {
  unsigned padding = r->fill & 7;
  return r->word & ((1u << padding) - 1) ? NULL : r->at - r->fill / 8;
}

#endif

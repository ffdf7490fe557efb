/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of messages: docs/format.md, "Messages". */
#include <string.h>

#include "base/hash.h"
#include "comm/comm.h"

#define LINE 64
#define GOLDEN 0x9e3779b97f4a7c15u

/* Eight chains side by side, one for each word of a line: one alone would wait for its own multiplications. As
 * variables of their own they stay in registers. */
static uint64_t hash_lines(const uint8_t *at, size_t lines, uint64_t h) {
  uint64_t a = h, b = h + 1, c = h + 2, d = h + 3, e = h + 4, f = h + 5, g = h + 6, i = h + 7, word;
#define TAKE(chain, k)             \
  memcpy(&word, at + 8 * (k), 8);  \
  chain = (chain ^ word) * GOLDEN; \
  chain ^= chain >> 29;
  for (; lines > 0; lines--, at += LINE) {
    TAKE(a, 0) TAKE(b, 1) TAKE(c, 2) TAKE(d, 3) TAKE(e, 4) TAKE(f, 5) TAKE(g, 6) TAKE(i, 7)
  }
#undef TAKE
  uint64_t chains[LINE / 8] = {a, b, c, d, e, f, g, i};
  return pith__hash64(chains, sizeof chains, h);
}

/* Never 0, which stands for none. */
static uint32_t payload_sum(const pith_frame *frame, const void *payload) {
  size_t size = (size_t)frame->length;
  uint64_t hash = pith__hash64("", 0, 0);
  if (size >= LINE) {
    hash = hash_lines(payload, size / LINE, hash);
  }
  hash = pith__hash64((const uint8_t *)payload + size / LINE * LINE, size % LINE, hash);
  uint32_t sum = (uint32_t)(hash ^ hash >> 32);
  return sum ? sum : 1;
}

__extension__ typedef unsigned __int128 wide;

/* Every message has a header, also the shortest one: products of two words, none of which waits for another, and each
 * word loaded by itself, as it was stored. The keys differ, so that words which change places change the sum. */
static uint64_t frame_sum(const pith_frame *frame) {
  enum { PAIRS = sizeof *frame / 16 };
  uint64_t sum = 0;
#pragma GCC unroll 8
  for (uint64_t i = 0; i < PAIRS; i++) {
    uint64_t a, b = 0;
    memcpy(&a, (const uint8_t *)frame + 16 * i, 8);
    if (i < PAIRS - 1) { /* the last word is the sum */
      memcpy(&b, (const uint8_t *)frame + 16 * i + 8, 8);
    }
    wide product = (wide)(a ^ (2 * i + 1) * GOLDEN) * (b ^ (2 * i + 2) * GOLDEN);
    sum += (uint64_t)product ^ (uint64_t)(product >> 64);
  }
  return sum;
}

void pith__frame_seal(pith_frame *frame, const void *payload, int checked) {
  frame->payload_sum = checked ? payload_sum(frame, payload) : 0;
  frame->sum = frame_sum(frame);
}

int pith__frame_is_intact(const pith_frame *frame) { return frame->sum == frame_sum(frame); }

int pith__frame_payload_is_intact(const pith_frame *frame, const void *payload) {
  return !frame->payload_sum || frame->payload_sum == payload_sum(frame, payload);
}

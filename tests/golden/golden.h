/* SPDX-License-Identifier: Apache-2.0 */
/* The input of the golden payloads, and how their decoded values are summed up: the same for whoever writes or reads
 * them. */
#ifndef PITH_TESTS_GOLDEN_H
#define PITH_TESTS_GOLDEN_H

#include <pith/pith.h>
#include <stdint.h>
#include <string.h>

/* Values of many magnitudes and both signs; exact in f32 on every machine. */
static inline float golden_value(uint32_t i) {
  uint32_t h = (i + 1) * 2654435761u;
  float mantissa = (float)(int32_t)(h >> 12 & 0xffff) * 0x1p-16f + 0x1p-10f;
  float scale[4] = {1.0f, 0x1p-3f, 0x1p-6f, 0x1p-9f};
  return (h >> 31 ? -mantissa : mantissa) * scale[h >> 28 & 3];
}

static inline void golden_fill(float *x, size_t n) {
  for (size_t i = 0; i < n; i++) {
    x[i] = golden_value((uint32_t)i);
  }
}

static inline pith_ctx golden_ctx(void) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 7, ctx.step = 3, ctx.layer = 5, ctx.rank = 2;
  return ctx;
}

/* FNV-1a over the bits of the values. */
static inline uint64_t golden_hash(const float *x, size_t n) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (size_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    for (int b = 0; b < 32; b += 8) {
      hash = (hash ^ (bits >> b & 255)) * 0x100000001b3u;
    }
  }
  return hash;
}

#endif

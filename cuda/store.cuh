/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residuals as states keep them (kernel/formats.h, "Residuals"): the bits of src/memory/store.c. A warp takes a block
 * of them; lane j holds values j, j + 32, … of it.
 */
#pragma once

#include "codes.cuh"

#define STORE_EACH (PITH_STORE_BLOCK / 32)

/* What a warp works on. */
struct StoreBlock {
  uint32_t first; /* of its values in the task: begins a block */
  uint32_t m;     /* of them; 0: none */

  INLINE uint32_t place(int j) const { return threadIdx.x % 32 + 32 * j; }
};

/* The block of a warp in item `number` of a task of n values, with as many blocks in an item as a block of threads has
 * warps. */
INLINE StoreBlock store_block(uint32_t number, uint32_t n) {
  uint32_t first = (number * (blockDim.x / 32) + threadIdx.x / 32) * PITH_STORE_BLOCK;
  return {first, first < n ? least(n - first, PITH_STORE_BLOCK) : 0};
}

INLINE uint8_t *bytes_of(const void *data, const StoreBlock &b) {
  return (uint8_t *)data + (size_t)b.first / PITH_STORE_BLOCK * (PITH_STORE_HEAD + PITH_STORE_BLOCK);
}

INLINE void load_store(const void *data, int store, const StoreBlock &b, float (&x)[STORE_EACH]) {
  const uint8_t *bytes = bytes_of(data, b);
  float unit = store == PITH_STORE_8 && b.m ? *(const float *)bytes : 0.0f;
#pragma unroll
  for (int j = 0; j < STORE_EACH; j++) {
    uint32_t i = b.place(j);
    if (i >= b.m) {
      x[j] = 0.0f;
    } else if (store == PITH_STORE_8) {
      x[j] = 0.0f + unit * (float)((int)bytes[PITH_STORE_HEAD + i] - PITH_STORE_ZERO);
    } else {
      x[j] = value_at(data, store == PITH_STORE_BF16 ? PITH_GPU_BF16 : PITH_GPU_F32, b.first + i);
    }
  }
}

/* Finite values stay finite; others become 0. */
INLINE uint16_t random_bf16(float x, uint32_t random) {
  uint32_t up = least(magnitude(x) + (random >> 16), INF_BITS - 1);
  return is_finite(x) ? (uint16_t)(up >> 16 | (bits_of(x) >> 16 & 0x8000u)) : 0;
}

/* `index` is the place of the task's first value in its layer. All lanes of a warp call it: they agree on the unit,
 * and none writes before all have read. */
INLINE void save_store(void *data, int store, const StoreBlock &b, const float (&x)[STORE_EACH], uint32_t index,
                       uint32_t key0, uint32_t key1) {
  uint32_t most = 0, start = (index + b.first) * RNG_WEYL + key0;
#pragma unroll
  for (int j = 0; j < STORE_EACH; j++) {
    most = max(most, is_finite(x[j]) ? magnitude(x[j]) : 0u); /* those behind the end are 0 */
  }
  most = warp_most(most);
  float size = fminf(float_of(most), PITH_STORE_MOST);
  bool zero = size < PITH_SCALE_MIN;
  float unit = zero ? 0.0f : __fdiv_rn(size, (float)PITH_STORE_ZERO);
  Uniform u = {0.0f, zero ? 0.0f : __fdiv_rn((float)PITH_STORE_ZERO, size), (float)PITH_STORE_ZERO,
               2.0f * PITH_STORE_ZERO};
  uint8_t *bytes = bytes_of(data, b);
  if (store == PITH_STORE_8 && b.m && threadIdx.x % 32 == 0) {
    *(float *)bytes = unit;
  }
#pragma unroll
  for (int j = 0; j < STORE_EACH; j++) {
    uint32_t i = b.place(j), noise = start + i * RNG_WEYL;
    if (i >= b.m) {
      continue;
    }
    if (store == PITH_STORE_8) {
      bytes[PITH_STORE_HEAD + i] = level_byte<true>(u, is_finite(x[j]) ? x[j] : 0.0f, noise, key1);
    } else if (store == PITH_STORE_BF16) {
      ((uint16_t *)data)[b.first + i] = random_bf16(x[j], rng_from(noise, key1));
    } else {
      ((float *)data)[b.first + i] = x[j];
    }
  }
}

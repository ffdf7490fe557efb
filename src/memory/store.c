/* SPDX-License-Identifier: Apache-2.0 */
/* Residuals in fewer bits than 32: see store.h. A block of 8 bits is coded by the kernels of the quantizers. */
#include "memory/store.h"

#include <math.h>
#include <string.h>

#include "base/saturate.h"
#include "base/size.h"
#include "kernel/kernel.h"

enum { TILE = 1024 };

const char *pith__store_name(pith_store store) {
  return store == PITH_STORE_BF16 ? "bf16" : store == PITH_STORE_8 ? "8 bits" : "f32";
}

size_t pith__store_size(pith_store store, size_t n) {
  switch (store) {
    case PITH_STORE_BF16:
      return pith__sat_mul(n, sizeof(uint16_t));
    case PITH_STORE_8: {
      size_t blocks = n / PITH_STORE_BLOCK + (n % PITH_STORE_BLOCK != 0);
      return pith__sat_add(n, blocks * PITH_STORE_HEAD);
    }
    default:
      return pith__sat_mul(n, sizeof(float));
  }
}

void *pith__store_at(pith_store store, const void *data, size_t first) {
  return data ? (uint8_t *)(uintptr_t)data + pith__store_size(store, first) : NULL;
}

/* ---- Blocks of 8 bits -------------------------------------------------------------------------------------------- */

static void widen_block(const uint8_t *block, size_t n, float *to) {
  pith_dequantizer q = {.zero = PITH_STORE_ZERO};
  memcpy(&q.unit, block, sizeof q.unit);
  pith__kernels()->dequantize[8](block + PITH_STORE_HEAD, n, &q, PITH_SET, to);
}

static void pack_block(const float *x, size_t n, pith_key key, uint32_t index, uint8_t *block) {
  float finite[PITH_STORE_BLOCK], most;
  uint32_t bits = pith__kernels()->absmax(x, n);
  if (bits >= PITH_INF_BITS) {
    for (size_t i = 0; i < n; i++) {
      finite[i] = isfinite(x[i]) ? x[i] : 0.0f;
    }
    x = finite;
    bits = pith__kernels()->absmax(x, n);
  }
  memcpy(&most, &bits, sizeof most);
  int is_zero = most < PITH_SCALE_MIN;
  most = most < PITH_STORE_MOST ? most : PITH_STORE_MOST;
  float unit = is_zero ? 0.0f : most / (float)PITH_STORE_ZERO;
  pith_quantizer q = {
      .inverse = is_zero ? 0.0f : (float)PITH_STORE_ZERO / most, .zero = PITH_STORE_ZERO, .top = 2 * PITH_STORE_ZERO};
  memcpy(block, &unit, sizeof unit);
  pith__kernels()->quantize_random[8](x, n, &q, key, index, block + PITH_STORE_HEAD);
}

/* ---- Values of any store ----------------------------------------------------------------------------------------- */

void pith__store_widen(pith_store store, const void *data, size_t n, float *to) {
  switch (store) {
    case PITH_STORE_BF16:
      pith__kernels()->bf16_to_f32(data, to, n);
      break;
    case PITH_STORE_8: {
      const uint8_t *block = data;
      for (size_t i = 0; i < n; i += PITH_STORE_BLOCK, block += PITH_STORE_HEAD + PITH_STORE_BLOCK) {
        widen_block(block, pith__least(PITH_STORE_BLOCK, n - i), to + i);
      }
      break;
    }
    default:
      memcpy(to, data, n * sizeof *to);
  }
}

void pith__store_pack(pith_store store, const float *x, size_t n, pith_key key, uint64_t index, void *data) {
  switch (store) {
    case PITH_STORE_BF16:
      pith__kernels()->f32_to_bf16_random(x, data, n, key, (uint32_t)index);
      break;
    case PITH_STORE_8: {
      uint8_t *block = data;
      for (size_t i = 0; i < n; i += PITH_STORE_BLOCK, block += PITH_STORE_HEAD + PITH_STORE_BLOCK) {
        pack_block(x + i, pith__least(PITH_STORE_BLOCK, n - i), key, (uint32_t)(index + i), block);
      }
      break;
    }
    default:
      memcpy(data, x, n * sizeof *x);
  }
}

pith_repack_task pith__repack_piece(const pith_repack_task *task, size_t first, size_t n) {
  pith_repack_task piece = *task;
  piece.from = pith__store_at((pith_store)task->from_store, task->from, first);
  piece.to = pith__store_at((pith_store)task->to_store, task->to, first);
  piece.index += (uint32_t)first;
  piece.n = n;
  return piece;
}

static void repack_tile(const pith_repack_task *t) {
  float x[TILE], sum[TILE];
  size_t n = (size_t)t->n;
  pith__store_widen((pith_store)t->from_store, t->from, n, x);
  pith__kernels()->scale(t->factor, x, n);
  if (t->add) {
    pith__store_widen((pith_store)t->to_store, t->to, n, sum);
    pith__kernels()->add(sum, x, n);
  }
  pith__store_pack((pith_store)t->to_store, x, n, (pith_key){t->key0, t->key1}, t->index, t->to);
}

void pith__repack(const pith_repack_task *task) {
  for (size_t first = 0; first < task->n; first += TILE) {
    pith_repack_task tile = pith__repack_piece(task, first, pith__least(TILE, (size_t)task->n - first));
    repack_tile(&tile);
  }
}

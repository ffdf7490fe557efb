/* SPDX-License-Identifier: Apache-2.0 */
/* bfloat16: see cuda_runtime.h. */
#pragma once

#include "base/half.h"
#include "cuda_runtime.h"

struct __nv_bfloat16 {
  uint16_t bits;
};
struct __nv_bfloat162 {
  __nv_bfloat16 x, y;
};

static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 h) { return h.bits; }
static inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {{pith__f32_to_bf16(x)}, {pith__f32_to_bf16(y)}};
}
static inline __nv_bfloat16 __low2bfloat16(__nv_bfloat162 h) { return h.x; }
static inline __nv_bfloat16 __high2bfloat16(__nv_bfloat162 h) { return h.y; }

/* SPDX-License-Identifier: Apache-2.0 */
/* Half precision: see cuda_runtime.h. */
#pragma once

#include "base/half.h"
#include "cuda_runtime.h"

struct __half {
  uint16_t bits;
};
struct __half2 {
  __half x, y;
};

static inline __half __ushort_as_half(uint16_t bits) { return {bits}; }
static inline uint16_t __half_as_ushort(__half h) { return h.bits; }
static inline float __half2float(__half h) { return pith__f16_to_f32(h.bits); }
static inline __half __float2half_rn(float x) { return {pith__f32_to_f16(x)}; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline float2 __half22float2(__half2 h) { return {__half2float(h.x), __half2float(h.y)}; }
static inline __half __low2half(__half2 h) { return h.x; }
static inline __half __high2half(__half2 h) { return h.y; }

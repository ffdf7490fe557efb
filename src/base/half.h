/* SPDX-License-Identifier: Apache-2.0 */
/* f16 and bf16 to f32 and back, one value at a time: round to nearest even, NaN stays NaN, subnormals kept. */
#ifndef PITH_BASE_HALF_H
#define PITH_BASE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t pith__bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static inline float pith__float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

static inline float pith__bf16_to_f32(uint16_t h) { return pith__float_of((uint32_t)h << 16); }

static inline uint16_t pith__f32_to_bf16(float x) {
  uint32_t u = pith__bits_of(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) {
    return (uint16_t)((u >> 16) | 0x40u);
  }
  return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float pith__f16_to_f32(uint16_t h) {
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
  if (magnitude >= 0x7c00u) { /* Inf, NaN: quiet it, as the CPU's own conversion does */
    uint32_t quiet = magnitude > 0x7c00u ? 0x400000u : 0;
    return pith__float_of(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  /* Shifted into place the exponent is too small by 112: a multiplication corrects it, subnormals included. */
  float value = pith__float_of(magnitude << 13) * 0x1p112f;
  return pith__float_of(pith__bits_of(value) | sign);
}

static inline uint16_t pith__f32_to_f16(float x) {
  uint32_t u = pith__bits_of(x), sign = (u >> 16) & 0x8000u, magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) {
    return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  }
  if (magnitude >= 0x477ff000u) { /* 65520 and above round to Inf */
    return (uint16_t)(sign | 0x7c00u);
  }
  if (magnitude < 0x38800000u) { /* below 2^-14: subnormal; adding 0.5 lets the FPU round at 2^-24 */
    float rounded = pith__float_of(magnitude) + 0.5f;
    return (uint16_t)(sign | (pith__bits_of(rounded) - 0x3f000000u));
  }
  uint32_t odd = (magnitude >> 13) & 1u;
  return (uint16_t)(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All hot loops, written once over the 16-lane vectors of simd_*.h. scalar.c, avx2.c and avx512.c include their layer,
 * name their table in KERNEL_TABLE, and then include this file.
 */
#include "kernel/kernel.h"

/* ---- Shared by the parts ---------------------------------------------------------------------------------------- */

/* Walks 0…n in steps of 16; k is how many lanes of the step exist. That only the last step can lack some is said in a
 * way compilers see: they split the loop there, and the one over whole steps has no other branch than its own. */
#define STEPS(i, k, n)                                                                                        \
  for (size_t i = 0, k, i##_whole = (n) / LANES * LANES; i < (n) && (k = i < i##_whole ? LANES : (n) - i, 1); \
       i += LANES)

/* The same, not split, for loops that do little with values from memory: the split one asks for so many lines at once
 * that the CPU's own prefetching falls behind. Measured on Zen 4, encoding with a memory is then a tenth slower. */
#define STREAM(i, k, n) for (size_t i = 0, k; i < (n) && (k = (n) - i < LANES ? (n) - i : LANES, 1); i += LANES)

INLINE vf get(const float *p, size_t k) { return k == LANES ? v_load(p) : v_loadn(p, k); }

INLINE void put(float *p, vf x, size_t k) {
  if (k == LANES) {
    v_store(p, x);
  } else {
    v_storen(p, x, k);
  }
}

/* Stores decoded values, or adds them. */
INLINE void apply(float *p, vf x, size_t k, pith_mode mode) { put(p, mode == PITH_ADD ? v_add(get(p, k), x) : x, k); }

INLINE void put_bytes(uint8_t *out, vi x, size_t k) {
  if (k == LANES) {
    i_store8(out, x);
  } else {
    uint8_t bytes[LANES];
    i_store8(bytes, x);
    memcpy(out, bytes, k);
  }
}

INLINE vi get_bytes(const uint8_t *in, size_t k) {
  if (k == LANES) {
    return i_load8(in);
  }
  uint8_t bytes[LANES] = {0};
  memcpy(bytes, in, k);
  return i_load8(bytes);
}

/* k values of `bits` bits; a last step that is not full takes as many bytes as its bits need. */
INLINE void put_bits(uint8_t *out, vi x, size_t k, int bits) {
  if (k == LANES) {
    i_pack(out, x, bits);
  } else {
    uint8_t bytes[2 * LANES] = {0};
    i_pack(bytes, i_select(m_from((1u << k) - 1), x, i_set(0)), bits);
    memcpy(out, bytes, (k * (size_t)bits + 7) / 8);
  }
}

INLINE vi get_bits(const uint8_t *in, const uint8_t *end, size_t k, int bits) {
  if (k == LANES) {
    return i_unpack(in, (size_t)(end - in), bits);
  }
  uint8_t bytes[2 * LANES] = {0};
  memcpy(bytes, in, (k * (size_t)bits + 7) / 8);
  return i_unpack(bytes, sizeof bytes, bits);
}

/* pith__rng32 for the indices index … index + 15. */
INLINE vi draw(pith_key key, uint32_t index) {
  vi steps = i_mul(i_iota(), i_set((int32_t)PITH_RNG_WEYL)); /* a constant */
  vi x = i_add(i_set((int32_t)(index * PITH_RNG_WEYL + key.k0)), steps);
  x = i_mul(i_xor(x, i_shr(x, 13)), i_set((int32_t)PITH_RNG_M0));
  x = i_xor(i_xor(x, i_shr(x, 15)), i_set((int32_t)key.k1));
  x = i_mul(x, i_set((int32_t)PITH_RNG_M1));
  return i_xor(x, i_shr(x, 15));
}

INLINE vf draw_unit(pith_key key, uint32_t index) { return v_mul(v_from(i_shr(draw(key, index), 8)), v_set(0x1p-24f)); }

/* floor(t), or one more with the probability of the fraction. Whole numbers stay as they are. */
INLINE vi round_random(vf t, pith_key key, uint32_t index) {
  vf whole = v_floor(t);
  vi level = i_round(whole);
  return i_select(v_lt(draw_unit(key, index), v_sub(t, whole)), i_add(level, i_set(1)), level);
}

/* The sum of the lanes, in a fixed tree. */
INLINE float lane_sum(vf x) {
  float lane[LANES];
  v_store(lane, x);
  for (int h = LANES / 2; h; h /= 2) {
    for (int j = 0; j < h; j++) {
      lane[j] += lane[j + h];
    }
  }
  return lane[0];
}

INLINE vi magnitude_bits(vf x) { return i_and(i_cast(x), i_set(0x7fffffff)); }

#include "kernel/body_arith.h"
#include "kernel/body_exponents.h"
#include "kernel/body_lowrank.h"
#include "kernel/body_mini.h"
#include "kernel/body_quant.h"
#include "kernel/body_rotate.h"
#include "kernel/body_select.h"
#include "kernel/body_small.h"
#include "kernel/body_update.h"
#include "kernel/body_variable.h"

const pith_kernels KERNEL_TABLE = {
    .f16_to_f32 = k_f16_to_f32,
    .bf16_to_f32 = k_bf16_to_f32,
    .f32_to_f16 = k_f32_to_f16,
    .f32_to_bf16 = k_f32_to_bf16,
    .f32_to_bf16_random = k_f32_to_bf16_random,
    .blend = k_blend,
    .residual = k_residual,
    .add = k_add,
    .scale = k_scale,
    .vote = k_vote,
    .update = k_update,
    .absmax = k_absmax,
    .range = k_range,
    .moments = k_moments,
    .halves = k_halves,
    .quantize = {NULL, k_quantize_1, k_quantize_2, k_quantize_3, k_quantize_4, k_quantize_5, k_quantize_6, k_quantize_7,
                 k_quantize_8},
    .quantize_random = {NULL, k_quantize_random_1, k_quantize_random_2, k_quantize_random_3, k_quantize_random_4,
                        k_quantize_random_5, k_quantize_random_6, k_quantize_random_7, k_quantize_random_8},
    .dequantize = {NULL, k_dequantize_1, k_dequantize_2, k_dequantize_3, k_dequantize_4, k_dequantize_5, k_dequantize_6,
                   k_dequantize_7, k_dequantize_8},
    .classify = {NULL, k_classify_1, k_classify_2, k_classify_3, k_classify_4},
    .lookup = {NULL, k_lookup_1, k_lookup_2, k_lookup_3, k_lookup_4},
    .power_pack = {NULL, NULL, k_power_pack_2, k_power_pack_3, k_power_pack_4, k_power_pack_5, k_power_pack_6,
                   k_power_pack_7, k_power_pack_8},
    .power_unpack = {NULL, NULL, k_power_unpack_2, k_power_unpack_3, k_power_unpack_4, k_power_unpack_5,
                     k_power_unpack_6, k_power_unpack_7, k_power_unpack_8},
    .sign_pack = k_sign_pack,
    .sign_unpack = k_sign_unpack,
    .vote_pack = k_vote_pack,
    .vote_unpack = k_vote_unpack,
    .tern_pack = k_tern_pack,
    .tern_unpack = k_tern_unpack,
    .byte_max = k_byte_max,
    .natural_pack = k_natural_pack,
    .natural_unpack = k_natural_unpack,
    .tree8_pack = k_tree8_pack,
    .tree8_unpack = k_tree8_unpack,
    .fp8_pack = {k_fp8_pack_e4m3, k_fp8_pack_e5m2},
    .fp8_unpack = {k_fp8_unpack_e4m3, k_fp8_unpack_e5m2},
    .float_split = {k_float_split_f32, k_float_split_f16, k_float_split_bf16},
    .float_join = {k_float_join_f32, k_float_join_f16, k_float_join_bf16},
    .window_pack = {NULL, k_window_pack_1, k_window_pack_2, k_window_pack_3, k_window_pack_4, k_window_pack_5},
    .window_unpack = {NULL, k_window_unpack_1, k_window_unpack_2, k_window_unpack_3, k_window_unpack_4,
                      k_window_unpack_5},
    .mx_pack = {k_mx_pack_e4m3, k_mx_pack_e5m2, k_mx_pack_e2m3, k_mx_pack_e3m2, k_mx_pack_e2m1},
    .mx_unpack = {k_mx_unpack_e4m3, k_mx_unpack_e5m2, k_mx_unpack_e2m3, k_mx_unpack_e3m2, k_mx_unpack_e2m1},
    .nv_pack = k_nv_pack,
    .nv_unpack = k_nv_unpack,
    .pack = {NULL, k_pack_1, k_pack_2, k_pack_3, k_pack_4, k_pack_5, k_pack_6, k_pack_7, k_pack_8},
    .bounded_pack = k_bounded_pack,
    .bounded_unpack = k_bounded_unpack,
    .order_count = k_order_count,
    .order_number = k_order_number,
    .rotate = k_rotate,
    .unrotate = k_unrotate,
    .count = k_count,
    .collect = k_collect,
    .histogram = k_histogram,
    .dots = k_dots,
    .outer = k_outer,
    .combine = k_combine,
};

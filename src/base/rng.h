/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counter-based random numbers: the number of value `index` follows from a key and the index alone, so that every ISA,
 * every cut into chunks and every thread draws the same. The key follows from seed, step, layer, a domain (what the
 * number is for) and, where ranks should differ, the rank.
 *
 * The function is a 32-bit mixer: a Weyl step that starts anywhere (so that indices in strides of a power of two still
 * differ in their upper bits), then two rounds of xor-shift and multiply, keyed before and between. It is not
 * cryptographic. src/kernel/body.h has the same function over 16 lanes, where the Weyl step is an addition.
 */
#ifndef PITH_BASE_RNG_H
#define PITH_BASE_RNG_H

#include <pith/pith.h>
#include <stdint.h>

typedef struct pith_key {
  uint32_t k0, k1;
} pith_key;

typedef enum pith_domain {
  PITH_DOMAIN_ROUND = 1,   /* stochastic rounding */
  PITH_DOMAIN_ROTATE = 2,  /* signs of the Hadamard rotation */
  PITH_DOMAIN_SELECT = 3,  /* random-k's indices: the same on every rank */
  PITH_DOMAIN_SAMPLE = 4,  /* sampled thresholds */
  PITH_DOMAIN_LOWRANK = 5, /* the first Q: the same on every rank and step */
  PITH_DOMAIN_SEARCH = 6,  /* plans to try: the same on every rank */
  PITH_DOMAIN_STORE = 7,   /* rounding of residuals that are kept in fewer bits */
} pith_domain;

#define PITH_RNG_WEYL 0x9e3779b9u
#define PITH_RNG_M0 0x21f0aaadu
#define PITH_RNG_M1 0x735a2d97u

static inline uint32_t pith__rng32(pith_key key, uint32_t index) {
  uint32_t x = index * PITH_RNG_WEYL + key.k0;
  x ^= x >> 13;
  x *= PITH_RNG_M0;
  x ^= (x >> 15) ^ key.k1;
  x *= PITH_RNG_M1;
  x ^= x >> 15;
  return x;
}

/* Uniform in [0, 1), a multiple of 2^-24. */
static inline float pith__rng_unit(pith_key key, uint32_t index) {
  return (float)(int32_t)(pith__rng32(key, index) >> 8) * 0x1p-24f;
}

static inline uint64_t pith__mix64(uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9u;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/* What all keys of a layer in a step begin with. */
static inline uint64_t pith__rng_hash(uint64_t seed, uint64_t step, uint64_t layer) {
  uint64_t h = pith__mix64(seed + 0x9e3779b97f4a7c15u);
  h = pith__mix64(h ^ pith__mix64(step + 0x3c6ef372fe94f82au));
  return pith__mix64(h ^ pith__mix64(layer + 0xdaa66d2c7ddf743fu));
}

/* `high` takes the upper half of 64-bit indices (index >> 32). */
static inline pith_key pith__rng_key_of(uint64_t seed, uint64_t step, uint64_t layer, uint64_t rank, pith_domain domain,
                                        uint64_t high) {
  uint64_t h = pith__rng_hash(seed, step, layer);
  h = pith__mix64(h ^ pith__mix64(rank + ((uint64_t)domain << 56)));
  h = pith__mix64(h ^ pith__mix64(high + 0x78dde6e5fd29f054u));
  return (pith_key){(uint32_t)h, (uint32_t)(h >> 32)};
}

/* The key for a block of values that starts at `index`, different on every rank. */
static inline pith_key pith__rng_key(const pith_ctx *ctx, pith_domain domain, uint64_t index) {
  return pith__rng_key_of(ctx->seed, ctx->step, ctx->layer, ctx->rank, domain, index >> 32);
}

#endif

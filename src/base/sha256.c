/* SPDX-License-Identifier: Apache-2.0 */
/* SHA-256 a block at a time, and HMAC on top of it. */
#include "base/sha256.h"

#include <string.h>

static const uint32_t round_constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotate(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void expand(const uint8_t block[64], uint32_t w[64]) {
  for (int i = 0; i < 16; i++) {
    const uint8_t *b = block + 4 * i;
    w[i] = (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
  }
  for (int i = 16; i < 64; i++) {
    uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
    uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
    w[i] = w[i - 16] + s0 + w[i - 7] + s1;
  }
}

static void mix_block(uint32_t state[8], const uint8_t block[64]) {
  uint32_t w[64], v[8]; /* v: the standard's a … h */
  expand(block, w);
  memcpy(v, state, sizeof v);
  for (int i = 0; i < 64; i++) {
    uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25);
    uint32_t choice = (v[4] & v[5]) ^ (~v[4] & v[6]);
    uint32_t t1 = v[7] + s1 + choice + round_constants[i] + w[i];
    uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
    uint32_t majority = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
    memmove(v + 1, v, 7 * sizeof *v);
    v[4] += t1;
    v[0] = t1 + s0 + majority;
  }
  for (int i = 0; i < 8; i++) {
    state[i] += v[i];
  }
}

void pith__sha256_init(pith_sha256 *hash) {
  static const uint32_t start[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  memcpy(hash->state, start, sizeof start);
  hash->size = 0;
}

void pith__sha256_add(pith_sha256 *hash, const void *data, size_t size) {
  const uint8_t *from = data;
  while (size > 0) {
    size_t at = hash->size % 64, part = 64 - at < size ? 64 - at : size;
    memcpy(hash->block + at, from, part);
    hash->size += part;
    from += part;
    size -= part;
    if (hash->size % 64 == 0) {
      mix_block(hash->state, hash->block);
    }
  }
}

void pith__sha256_finish(pith_sha256 *hash, uint8_t digest[PITH_SHA256_SIZE]) {
  static const uint8_t padding[64] = {0x80};
  uint64_t bits = hash->size * 8;
  uint8_t length[8];
  for (int i = 0; i < 8; i++) {
    length[i] = (uint8_t)(bits >> (56 - 8 * i));
  }
  size_t at = hash->size % 64;
  pith__sha256_add(hash, padding, (at < 56 ? 56 : 120) - at);
  pith__sha256_add(hash, length, 8);
  for (int i = 0; i < PITH_SHA256_SIZE; i++) {
    digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
  }
}

/* Starts a hash with the key XOR a pad byte. */
static void start_keyed(pith_sha256 *hash, const uint8_t key[64], uint8_t pad) {
  uint8_t padded[64];
  for (int i = 0; i < 64; i++) {
    padded[i] = key[i] ^ pad;
  }
  pith__sha256_init(hash);
  pith__sha256_add(hash, padded, sizeof padded);
}

void pith__hmac_init(pith_hmac *mac, const void *key, size_t size) {
  memset(mac->key, 0, sizeof mac->key);
  if (size > sizeof mac->key) {
    pith__sha256_init(&mac->inner);
    pith__sha256_add(&mac->inner, key, size);
    pith__sha256_finish(&mac->inner, mac->key);
  } else {
    memcpy(mac->key, key, size);
  }
  start_keyed(&mac->inner, mac->key, 0x36);
}

void pith__hmac_add(pith_hmac *mac, const void *data, size_t size) { pith__sha256_add(&mac->inner, data, size); }

void pith__hmac_finish(pith_hmac *mac, uint8_t digest[PITH_SHA256_SIZE]) {
  pith_sha256 outer;
  pith__sha256_finish(&mac->inner, digest);
  start_keyed(&outer, mac->key, 0x5c);
  pith__sha256_add(&outer, digest, PITH_SHA256_SIZE);
  pith__sha256_finish(&outer, digest);
}

int pith__digest_equal(const uint8_t a[PITH_SHA256_SIZE], const uint8_t b[PITH_SHA256_SIZE]) {
  volatile uint8_t difference = 0;
  for (int i = 0; i < PITH_SHA256_SIZE; i++) {
    difference |= a[i] ^ b[i];
  }
  return difference == 0;
}

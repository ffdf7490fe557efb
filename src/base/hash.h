/* SPDX-License-Identifier: Apache-2.0 */
/* A 64-bit checksum of bytes, eight at a time. It finds damage; it is no protection against attackers. */
#ifndef PITH_BASE_HASH_H
#define PITH_BASE_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/rng.h"

static inline uint64_t pith__hash64(const void *data, size_t size, uint64_t start) {
  const uint8_t *at = data;
  uint64_t hash = pith__mix64(start ^ size);
  for (; size >= 8; size -= 8, at += 8) {
    uint64_t word;
    memcpy(&word, at, 8);
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    hash ^= hash >> 29;
  }
  uint64_t rest = 0;
  memcpy(&rest, at, size);
  return pith__mix64(hash ^ rest);
}

#endif

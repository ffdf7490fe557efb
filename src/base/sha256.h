/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SHA-256 and HMAC (FIPS 180-4, RFC 2104), for one purpose: to prove at the rendezvous that one has the job's secret
 * without sending it. Plain and slow; nothing hot may use it.
 */
#ifndef PITH_BASE_SHA256_H
#define PITH_BASE_SHA256_H

#include <stddef.h>
#include <stdint.h>

#define PITH_SHA256_SIZE 32

typedef struct pith_sha256 {
  uint32_t state[8];
  uint64_t size; /* bytes so far */
  uint8_t block[64];
} pith_sha256;

void pith__sha256_init(pith_sha256 *hash);
void pith__sha256_add(pith_sha256 *hash, const void *data, size_t size);
void pith__sha256_finish(pith_sha256 *hash, uint8_t digest[PITH_SHA256_SIZE]);

typedef struct pith_hmac {
  pith_sha256 inner;
  uint8_t key[64];
} pith_hmac;

void pith__hmac_init(pith_hmac *mac, const void *key, size_t size);
void pith__hmac_add(pith_hmac *mac, const void *data, size_t size);
void pith__hmac_finish(pith_hmac *mac, uint8_t digest[PITH_SHA256_SIZE]);

/* Whether two digests are equal, in a time that does not tell where they differ. */
int pith__digest_equal(const uint8_t a[PITH_SHA256_SIZE], const uint8_t b[PITH_SHA256_SIZE]);

#endif

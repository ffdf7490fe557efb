/* SPDX-License-Identifier: Apache-2.0 */
/* Keys of links, and proofs that one has them. */
#include "transport/link_key.h"

#include <string.h>

#include "base/rng.h"

_Static_assert(PITH_LINK_KEY_SIZE == PITH_SHA256_SIZE, "a key is an HMAC");

/* Texts end with their zero byte, so that none is the beginning of another. */
static void derive(const void *from, size_t size, const char *label, uint64_t number, uint8_t *key) {
  pith_hmac mac;
  pith__hmac_init(&mac, from, size);
  pith__hmac_add(&mac, label, strlen(label) + 1);
  pith__hmac_add(&mac, &number, sizeof number);
  pith__hmac_finish(&mac, key);
}

void pith__link_key_make(const char *secret, uint64_t job, pith_link_key *key) {
  secret = secret ? secret : "";
  key->job = job;
  derive(secret, strlen(secret), "pith link key 2", job, key->bytes);
}

void pith__link_key_split(const pith_link_key *parent, uint64_t number, pith_link_key *key) {
  pith_link_key made = {.job = pith__mix64(parent->job + number)};
  derive(parent->bytes, sizeof parent->bytes, "pith split key 2", number, made.bytes);
  *key = made;
}

void pith__link_key_tls(const pith_link_key *key, uint8_t made[PITH_SHA256_SIZE]) {
  derive(key->bytes, sizeof key->bytes, "pith tls key 1", 0, made);
}

void pith__link_key_prove(const pith_link_key *key, const char *role, const void *said, size_t said_size,
                          const void *more, size_t more_size, uint8_t proof[PITH_SHA256_SIZE]) {
  pith_hmac mac;
  pith__hmac_init(&mac, key->bytes, sizeof key->bytes);
  pith__hmac_add(&mac, role, strlen(role) + 1);
  pith__hmac_add(&mac, said, said_size);
  pith__hmac_add(&mac, more, more_size);
  pith__hmac_finish(&mac, proof);
}

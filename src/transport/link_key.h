/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the ranks of a job have and strangers lack: a key for the links. It follows from the job's secret and from the
 * number that the rendezvous drew. A stranger that read the rendezvous knows the number and all addresses, but not the
 * key. Without a secret the key follows from the number alone, and protects only against those that did not read it.
 *
 * Links prove the key and never send it. A proof covers a role, so that no answer can be used as a question, and both
 * sides' random numbers, so that none can be used twice.
 */
#ifndef PITH_TRANSPORT_LINK_KEY_H
#define PITH_TRANSPORT_LINK_KEY_H

#include "base/sha256.h"
#include "transport/transport.h"

#define PITH_LINK_NONCE 32

/* `secret` may be NULL. */
void pith__link_key_make(const char *secret, uint64_t job, pith_link_key *key);

/* The key of a group that was split off: all ranks of the parent can compute it, and no other process. */
void pith__link_key_split(const pith_link_key *parent, uint64_t number, pith_link_key *key);

/* The key of the links' TLS sessions: 32 bytes that do not tell the link key. */
void pith__link_key_tls(const pith_link_key *key, uint8_t made[PITH_SHA256_SIZE]);

/* Proves to have the key: `role` names the sender's role, the protocol and its version; `said` is what both sides have
 * sent. */
void pith__link_key_prove(const pith_link_key *key, const char *role, const void *said, size_t said_size,
                          const void *more, size_t more_size, uint8_t proof[PITH_SHA256_SIZE]);

#endif

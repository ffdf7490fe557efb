/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The messages of the rendezvous, byte by byte: docs/format.md, "Rendezvous". Three messages, each a struct in native
 * order:
 *
 *   server → client   greeting   who is here, and a challenge
 *   client → server   hello      who came, what it expects, a challenge of its own; then its record
 *   server → client   reply      a status; then the table of all records, or an error message
 *
 * Magic, version and order come first and never change their place, so that other versions can be told apart. If the
 * job has a secret, `proof` is an HMAC of the sender's role, the other side's challenge and the message: neither
 * side can be impersonated, and the proof of one side is none for the other. The digest in a message proves what
 * follows it: a table that goes to thousands is hashed once, and a reply can be believed before its body comes.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_WIRE_H
#define PITH_TRANSPORT_RENDEZVOUS_WIRE_H

#include "base/sha256.h"
#include "transport/rendezvous.h"

#define RENDEZVOUS_MAGIC "PITHMEET"
#define RENDEZVOUS_ORDER 0x01020304u
#define RENDEZVOUS_NONCE 32
#define RENDEZVOUS_LIVENESS \
  60 /* seconds without an answer of a host: the network may be busy with thousands of tables */
#define RENDEZVOUS_RANKS_MOST (1 << 16)                 /* keeps all arithmetic on sizes far from overflow */
#define RENDEZVOUS_TEXT 700                             /* most bytes of an error message */
#define RENDEZVOUS_ROLE_HELLO "pith rendezvous 3 hello" /* the number is the protocol's */
#define RENDEZVOUS_ROLE_REPLY "pith rendezvous 3 reply"

typedef struct rendezvous_head {
  char magic[8];
  char version[16];
  uint32_t order;
  uint32_t rank; /* of the sender */
} rendezvous_head;

typedef struct rendezvous_greeting {
  rendezvous_head head;
  uint8_t nonce[RENDEZVOUS_NONCE];
} rendezvous_greeting;

typedef struct rendezvous_hello {
  rendezvous_head head;
  uint32_t ranks, has_secret;
  uint64_t size;                    /* of the record that follows */
  uint8_t digest[PITH_SHA256_SIZE]; /* of it */
  uint8_t nonce[RENDEZVOUS_NONCE];
  uint8_t proof[PITH_SHA256_SIZE];
} rendezvous_hello;

typedef struct rendezvous_reply {
  rendezvous_head head;
  uint32_t status, zero;
  uint64_t job;
  uint64_t size;                    /* of the table or error message that follows */
  uint8_t digest[PITH_SHA256_SIZE]; /* of it */
  uint8_t proof[PITH_SHA256_SIZE];
} rendezvous_reply;

_Static_assert(sizeof(rendezvous_greeting) == 64, "wire format");
_Static_assert(sizeof(rendezvous_hello) == 144, "wire format");
_Static_assert(sizeof(rendezvous_reply) == 120, "wire format");

rendezvous_head pith__rendezvous_head(int rank);
int pith__rendezvous_has_secret(const pith_rendezvous *r);

pith_status pith__rendezvous_interrupted(const pith_rendezvous *r);

/* What only a holder of the secret can say to that challenge; zeros without a secret. */
void pith__rendezvous_prove(const pith_rendezvous *r, const char *role, const uint8_t *challenge, const void *said,
                            size_t size, uint8_t proof[PITH_SHA256_SIZE]);
void pith__rendezvous_digest(const void *bytes, size_t size, uint8_t digest[PITH_SHA256_SIZE]);

/* The most bytes of a table: a client allocates no more. */
size_t pith__table_most(int ranks);
/* Takes a table apart; `table` may hold anything. PITH_ERR_CORRUPT if it is none of that many ranks. */
pith_status pith__table_read(const uint8_t *table, size_t size, int ranks, pith_records *records);

/* The two sides of pith__rendezvous_exchange: rank 0 serves (rendezvous_server.c), the others join
 * (rendezvous_client.c). */
pith_status pith__rendezvous_serve(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                   uint64_t *job);
pith_status pith__rendezvous_join(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                  uint64_t *job);

#endif

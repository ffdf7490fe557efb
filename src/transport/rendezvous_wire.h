/*
 * What is said at the rendezvous, byte by byte. Three messages, each a struct in native order:
 *
 *   rank 0 → guest   greeting   who is here, and a challenge
 *   guest → rank 0   hello      who came, what it expects, a challenge of its own; then its bytes
 *   rank 0 → guest   reply      a status; then the table of all, or a sentence about what went wrong
 *
 * Magic, version and order come first and never change their place, so that other versions can be told apart. If the
 * job has a secret, `proof` is an HMAC of the speaker's role, the other side's challenge and everything said: neither
 * side can pretend, and what one side said is no proof when the other says it.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_WIRE_H
#define PITH_TRANSPORT_RENDEZVOUS_WIRE_H

#include "base/sha256.h"
#include "transport/rendezvous.h"

#define RENDEZVOUS_MAGIC "PITHMEET"
#define RENDEZVOUS_ORDER 0x01020304u
#define RENDEZVOUS_NONCE 32
#define RENDEZVOUS_TEXT 700                             /* most bytes of a sentence */
#define RENDEZVOUS_ROLE_HELLO "pith rendezvous 2 hello" /* the number is the protocol's */
#define RENDEZVOUS_ROLE_REPLY "pith rendezvous 2 reply"

typedef struct rendezvous_head {
  char magic[8];
  char version[16];
  uint32_t order;
  uint32_t rank; /* of the speaker */
} rendezvous_head;

typedef struct rendezvous_greeting {
  rendezvous_head head;
  uint8_t nonce[RENDEZVOUS_NONCE];
} rendezvous_greeting;

typedef struct rendezvous_hello {
  rendezvous_head head;
  uint32_t ranks, has_secret;
  uint64_t size;                    /* of the bytes that follow */
  uint8_t digest[PITH_SHA256_SIZE]; /* of them */
  uint8_t nonce[RENDEZVOUS_NONCE];
  uint8_t proof[PITH_SHA256_SIZE];
} rendezvous_hello;

typedef struct rendezvous_reply {
  rendezvous_head head;
  uint32_t status, zero;
  uint64_t job;
  uint64_t size; /* of the table or sentence that follows */
  uint8_t proof[PITH_SHA256_SIZE];
} rendezvous_reply;

_Static_assert(sizeof(rendezvous_greeting) == 64, "wire format");
_Static_assert(sizeof(rendezvous_hello) == 144, "wire format");
_Static_assert(sizeof(rendezvous_reply) == 88, "wire format");

rendezvous_head pith__rendezvous_head(int rank);
int pith__rendezvous_has_secret(const pith_rendezvous *r);

/* What only a holder of the secret can say to that challenge; zeros without a secret. */
void pith__rendezvous_prove(const pith_rendezvous *r, const char *role, const uint8_t *challenge, const void *said,
                            size_t said_size, const void *body, size_t body_size, uint8_t proof[PITH_SHA256_SIZE]);

/* Rank 0's side: rendezvous_host.c. */
pith_status pith__rendezvous_host(const pith_rendezvous *r, const void *mine, size_t size, void *all, uint64_t *job);

#endif

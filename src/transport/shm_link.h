/*
 * How two processes of one host connect: over a Unix socket each proves to be of the job, then gives the other the
 * descriptor of its segment. The socket stays open: it is the doorbell, and it tells when the peer ends.
 */
#ifndef PITH_TRANSPORT_SHM_LINK_H
#define PITH_TRANSPORT_SHM_LINK_H

#include "transport/link_key.h"
#include "transport/shm_segment.h"
#include "transport/transport.h"

/* ---- Messages: each a packet in native order --------------------------------------------------------------------- */

/*   caller → listener   hello
 *   listener → caller   hello and proof
 *   caller → listener   segment and proof, with the descriptor
 *   listener → caller   segment and proof, with the descriptor
 *
 * Neither side hands its memory to one that has not proven to have the job's key. */

#define PITH_SHM_HELLO_MAGIC 0x32304d4853544950u /* "PITSHM02": the version is part of it */
#define PITH_SHM_ROLE_ANSWER "pith shm 2 listener"
#define PITH_SHM_ROLE_CALLER "pith shm 2 caller's segment"
#define PITH_SHM_ROLE_LISTENER "pith shm 2 listener's segment"

typedef struct pith_shm_hello {
  uint64_t magic;
  int32_t from, to, ranks;
  uint32_t zero;
  uint8_t nonce[PITH_LINK_NONCE];
} pith_shm_hello;

typedef struct pith_shm_answer {
  pith_shm_hello hello;
  uint8_t proof[PITH_SHA256_SIZE]; /* of both hellos */
} pith_shm_answer;

typedef struct pith_shm_offer {
  uint32_t inbox; /* which of the sender's inboxes the other one writes to */
  pith_shm_shape shape;
  uint8_t proof[PITH_SHA256_SIZE]; /* of both hellos and of the above */
} pith_shm_offer;

_Static_assert(sizeof(pith_shm_hello) == 56 && sizeof(pith_shm_answer) == 88 && sizeof(pith_shm_offer) == 52,
               "wire format");

/* ---- Links ------------------------------------------------------------------------------------------------------- */

typedef struct pith_shm_link {
  int rank;             /* of the peer */
  int socket;           /* -1: not connected yet */
  int process;          /* a pidfd: tells that the peer's process ended even if children of it hold the socket; or -1 */
  int memory;           /* the peer's segment; -1: none */
  pith_shm_shape shape; /* of the peer's segment, as it says */
  uint32_t inbox;       /* the one in the peer's segment that is ours, as it says */
} pith_shm_link;

typedef struct pith_shm_setup {
  const pith_transport_config *config;
  const pith_link_key *key;
  const pith_address *address; /* of all ranks */
  int listener;
  int memory; /* our segment, with inbox i for links[i] */
  pith_shm_shape shape;
  pith_shm_link *links;
  int count;
  double end; /* when to give up */
} pith_shm_setup;

/* A socket in the abstract name space, with a random name that only processes with the address know. */
pith_status pith__shm_link_listen(int *listener, pith_address *address);

/* Connects with the peers links[i].rank. Also on failure some may be connected: close every link with
 * pith__shm_link_close. */
pith_status pith__shm_link_connect(pith_shm_setup *setup);

/* Tells the peer that we are gone. Not for forked children, whose parent still is there. */
void pith__shm_link_close(pith_shm_link *link);

#endif

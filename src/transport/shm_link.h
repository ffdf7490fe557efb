/* SPDX-License-Identifier: Apache-2.0 */
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

/* Two ranks may call each other at the same time. The listener decides when it has the caller's segment: it drops the
 * connection if the link is there already, or if it is the higher rank and has sent its own segment on a call of its
 * own. Else it sends its segment, and gives its own call up. So both sides keep the same connection. */

/* ---- Links ------------------------------------------------------------------------------------------------------- */

typedef struct pith_shm_link {
  int rank;             /* of the peer */
  int socket;           /* -1: not connected yet */
  int process;          /* a pidfd: tells that the peer's process ended even if children of it hold the socket; or -1 */
  int memory;           /* the peer's segment; -1: none */
  pith_shm_shape shape; /* of the peer's segment, as it says */
  uint32_t inbox;       /* the one in the peer's segment that is ours, as it says */
  struct {              /* what the peer gets of ours */
    int memory;
    pith_shm_shape shape;
    uint32_t inbox;
  } own;
} pith_shm_link;

/* No more than is needed to make links; all of it is the transport's. */
typedef struct pith_shm_setup {
  const pith_transport_config *config;
  const pith_link_key *key;
  pith_directory directory;
  const uint8_t *wanted; /* of every rank: PITH_LINK_… */
  int listener;

  /* The link with a rank, which is made if there is none, with an inbox for the peer; NULL and a message: it cannot be.
   * `find` does not make one. A peer that only claims to be of the job has none made. */
  pith_shm_link *(*have)(void *owner, int rank);
  pith_shm_link *(*find)(const void *owner, int rank);
  void (*established)(void *owner, pith_shm_link *link);
  void *owner;

  double end;                  /* when to give up */
  struct shm_pending *pending; /* what has begun */
} pith_shm_setup;

/* A socket in the abstract name space, with a random name that only processes with the address know. */
pith_status pith__shm_link_listen(int *listener, pith_address *address);

/* Connects with all peers of PITH_LINK_NOW. Also on failure some may be connected: close every link with
 * pith__shm_link_close. */
pith_status pith__shm_link_connect(pith_shm_setup *setup);

/* After connect, for peers of PITH_LINK_LATER: begins to call one; goes on with what has begun on either side, without
 * waiting; and which descriptors tell when there is something to do. */
pith_status pith__shm_link_ask(pith_shm_setup *setup, int rank);
pith_status pith__shm_link_attend(pith_shm_setup *setup);
int pith__shm_link_door(const pith_shm_setup *setup, struct pollfd *fds, int most);

/* Ends what has not become a link. A child that was forked has closed its descriptors already. */
void pith__shm_link_end(pith_shm_setup *setup, int is_child);

/* Tells the peer that we are gone. Not for forked children, whose parent still is there. */
void pith__shm_link_close(pith_shm_link *link);

#endif

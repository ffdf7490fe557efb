/*
 * How two processes of one host meet: over a Unix socket each gives the other the descriptor of its segment, with a
 * hello that proves to be of the same job. The socket stays: it is the doorbell while they work, and the death notice
 * in the end.
 */
#ifndef PITH_TRANSPORT_SHM_LINK_H
#define PITH_TRANSPORT_SHM_LINK_H

#include "transport/shm_segment.h"
#include "transport/transport.h"

typedef struct pith_shm_link {
  int rank;             /* of the peer */
  int socket;           /* -1: not met yet */
  int process;          /* a pidfd: tells that the peer's process ended even if children of it hold the socket; or -1 */
  int memory;           /* the peer's segment; -1: none */
  pith_shm_shape shape; /* of the peer's segment, as it says */
  uint32_t inbox;       /* the one in the peer's segment that is ours, as it says */
} pith_shm_link;

typedef struct pith_shm_meeting {
  const pith_transport_config *config;
  const pith_address *address; /* of all ranks */
  int listener;
  int memory; /* our segment, with inbox i for links[i] */
  pith_shm_shape shape;
  pith_shm_link *links;
  int count;
  double end; /* when to give up */
} pith_shm_meeting;

/* A socket in the abstract name space, with a random name that only those know who get the address. */
pith_status pith__shm_link_listen(int *listener, pith_address *address);

/* Meets the peers links[i].rank. On failure some may be met: pith__shm_link_close is for both. */
pith_status pith__shm_link_meet(pith_shm_meeting *meeting);

/* Tells the peer that we are gone, unless this is a forked child, whose parent still is there. */
void pith__shm_link_close(pith_shm_link *link, int is_owner);

#endif

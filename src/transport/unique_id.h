/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unique ids: how ranks find rank 0 when something else distributes the id (MPI, a key-value store). Rank 0 opens the
 * port of its rendezvous first and puts it into the id, so no port has to be agreed upon and none can be taken in
 * between.
 */
#ifndef PITH_TRANSPORT_UNIQUE_ID_H
#define PITH_TRANSPORT_UNIQUE_ID_H

#include <pith/comm.h>

#include "base/status.h"

#define PITH_ID_HOSTS 384 /* bytes for the addresses of rank 0, separated by commas */
#define PITH_ID_SECRET 65 /* 32 random bytes in hexadecimal digits, and a zero */

typedef struct pith_id_content {
  uint16_t port;
  char hosts[PITH_ID_HOSTS];
  char secret[PITH_ID_SECRET]; /* "": the job has a secret of its own */
} pith_id_content;

/* Opens rank 0's port. `interface`: only there; NULL: everywhere, and `towards` (a host, or NULL) says whom ranks must
 * be able to reach, so that the right address is tried first. */
pith_status pith__unique_id_create(const char *interface, const char *towards, int with_secret, pith_unique_id *id);

/* Any bytes may come: what is no id is refused. */
pith_status pith__unique_id_read(const pith_unique_id *id, pith_id_content *content);

/* The socket that was opened for an id in this process, now the caller's; -1 if there is none. */
int pith__unique_id_listener(const pith_unique_id *id);

#endif

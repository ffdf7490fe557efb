/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What link.c, which sends and drives, and link_receive.c share.
 * What other files use of links is in comm.h.
 */
#ifndef PITH_COMM_LINK_H
#define PITH_COMM_LINK_H

#include <stdlib.h>

#include "comm/comm.h"

#define PITH_NOTICE_MOST 700 /* bytes of a notice's text */

/* Bytes that one call moves over a link. Then the other links get their turn, and what came is worked on while it is in
 * the cache. */
#define PITH_LINK_TURN_BYTES ((size_t)256 << 10)

/* If no operation waits for the peer yet, its time-out begins now. */
static inline void pith__link_begin_wait(pith_link *link) {
  link->moved += !link->out && !link->posted && !link->match;
}

/* Memory for a message or a receive: the spare one, or new; and back. */
static inline void *pith__spare_take(void **spare, size_t size) {
  void *memory = *spare;
  *spare = NULL;
  return memory ? memory : malloc(size);
}

static inline void pith__spare_give(void **spare, void *memory) {
  free(*spare);
  *spare = memory;
}

/* Receives what has come; returns how many bytes. */
size_t pith__link_pull(pith_link *link);

/* Forgets all receives and all early messages. */
void pith__link_clear_receives(pith_link *link);

/* The peer has left: receives from any rank do not wait for it, as long as there is another peer. */
void pith__link_release_any(pith_link *link);

#endif

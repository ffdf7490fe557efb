/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How ranks that know nothing of each other exchange addresses: rank 0 is a server at an address that all know, every
 * other rank connects to it as a client, and each gets the address records of all. Used once; no data travels this way.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_H
#define PITH_TRANSPORT_RENDEZVOUS_H

#include "base/interrupt.h"
#include "base/status.h"

#define PITH_RECORD_MOST 4096 /* bytes of one rank's address record */

typedef struct pith_rendezvous {
  int rank, ranks;
  const char *host; /* name or address of rank 0's machine, IPv4 or IPv6; or several separated by commas */
  uint16_t port;
  int listener;       /* rank 0: a socket that already listens there, which the rendezvous will close; 0: none */
  double timeout;     /* seconds in which all must come; later, in which a table must move at least a little */
  const char *secret; /* shared by the ranks of a job, or NULL: a process that does not prove to have it is rejected */
  pith_interrupt interrupt; /* asked while waiting */
} pith_rendezvous;

/* The records of all ranks: that of rank p is bytes[at[p]] up to bytes[at[p + 1]]. */
typedef struct pith_records {
  uint32_t *at; /* one more than there are ranks */
  uint8_t *bytes;
} pith_records;

/* Each rank gives a record of at most PITH_RECORD_MOST bytes. All get the records of all, and a random number that is
 * the same for all. Errors name the ranks that did not come or do not read, two processes that claim one rank, and a
 * rank with another version, byte order or number of ranks. On success the records must be freed; and on rank 0 after
 * the error that a rank was lost while the table was sent: then `all` and `job` are set, since the others have them. */
pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                      uint64_t *job);

void pith__records_free(pith_records *records);

#endif

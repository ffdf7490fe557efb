/*
 * How ranks that know nothing of each other meet: rank 0 listens at an address all know, the others come to it, and
 * each gets what all the others brought. Used once, to exchange addresses; no data travels this way.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_H
#define PITH_TRANSPORT_RENDEZVOUS_H

#include "base/interrupt.h"
#include "base/status.h"

#define PITH_RECORD_MOST 4096 /* bytes that a rank may bring */

typedef struct pith_rendezvous {
  int rank, ranks;
  const char *host; /* name or address of rank 0's machine, IPv4 or IPv6; or several separated by commas */
  uint16_t port;
  int listener;             /* rank 0: a socket that already listens there, the rendezvous's from now on; 0: none */
  double timeout;           /* seconds in which all must come; later, in which a table must move at least a little */
  const char *secret;       /* shared by the ranks of a job, or NULL: who does not prove to have it is turned away */
  pith_interrupt interrupt; /* asked while waiting */
} pith_rendezvous;

/* What all ranks brought: the bytes of rank p are those from at[p] up to at[p + 1] of `bytes`. */
typedef struct pith_records {
  uint32_t *at; /* one more than there are ranks */
  uint8_t *bytes;
} pith_records;

/* Everybody brings at most PITH_RECORD_MOST bytes, each rank as many as it likes. All get what all brought, and a
 * random number that is the same for all. Errors name the ranks that did not come or do not listen, two processes that
 * claim one rank, another version, byte order or number of ranks. On success the records must be freed. */
pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                      uint64_t *job);

void pith__records_free(pith_records *records);

#endif

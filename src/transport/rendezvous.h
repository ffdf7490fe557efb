/*
 * How ranks that know nothing of each other meet: rank 0 listens at an address all know, the others come to it, and
 * each gets what all the others brought. Used once, to exchange addresses; no data travels this way.
 */
#ifndef PITH_TRANSPORT_RENDEZVOUS_H
#define PITH_TRANSPORT_RENDEZVOUS_H

#include "base/status.h"

typedef struct pith_rendezvous {
  int rank, ranks;
  const char *host; /* name or address of rank 0's machine, IPv4 or IPv6; or several separated by commas */
  uint16_t port;
  int listener;       /* rank 0: a socket that already listens there, the rendezvous's from now on; 0: none */
  double timeout;     /* seconds for all of it; a guest waits up to 2 more to hear from rank 0 who is missing */
  const char *secret; /* shared by the ranks of a job, or NULL: who does not prove to have it is turned away */
} pith_rendezvous;

/* Everybody brings `size` bytes and gets ranks · size bytes, in rank order, and a random number that is the same for
 * all. Errors name the ranks that did not come, two processes that claim one rank, another version or byte order,
 * another number of ranks or size. */
pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, void *all,
                                      uint64_t *job);

#endif

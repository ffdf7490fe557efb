/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transports: ordered, reliable streams of bytes between this rank and its peers, without blocking.
 *
 * A transport knows nothing of messages, collectives or codecs: the comm frames messages, checks headers and matches
 * them, once for all transports. A transport moves bytes, says which descriptors to wait for, and notices that a peer
 * died.
 *
 * Life: listen (gives an address), exchange of addresses (rendezvous.h), connect, then send and receive until close.
 * Links with further peers are made in between: ask begins one, attend goes on with all that have begun, those of peers
 * that ask us among them, and next_linked tells which are established. All calls on one transport come from one thread
 * at a time.
 */
#ifndef PITH_TRANSPORT_TRANSPORT_H
#define PITH_TRANSPORT_TRANSPORT_H

#include <poll.h>
#include <sys/uio.h>

#include "base/interrupt.h"
#include "base/status.h"

#define PITH_ADDRESS_MAX 1024 /* TCP needs some 60; UCX names every network card it could use */

/* Where a transport of a rank listens. Meant for the same transport of another rank; comes from the network, so
 * it is checked before it is used. */
typedef struct pith_address {
  uint32_t size;
  uint8_t data[PITH_ADDRESS_MAX];
} pith_address;

/* Whether connections that cross a network are encrypted, and by which key. */
typedef enum pith_tls_mode {
  PITH_TLS_OFF,
  PITH_TLS_PSK, /* one that follows from the job's key */
  PITH_TLS_CERT /* certificates on both sides; the job's key is proven inside */
} pith_tls_mode;

typedef struct pith_tls_config {
  pith_tls_mode mode;
  const char *certificate, *key, *authority; /* files in PEM, for PITH_TLS_CERT */
  uint64_t records_most; /* that one key encrypts before the next one follows; 0: the usual number */
} pith_tls_config;

typedef struct pith_transport_config {
  int rank, ranks;
  const char *interface; /* network interface or address to listen on; NULL: the one that reaches the rendezvous */
  int connections;       /* to each peer, for transports that can use several; 0: the transport's own choice */
  double timeout;        /* seconds for connect */
  double liveness;       /* seconds without an answer after which a peer's host counts as gone; 0: 15 */
  const char *rendezvous_host; /* how rank 0's machine is called; NULL: all ranks are on this one */
  pith_interrupt interrupt;    /* asked during connect */
  pith_tls_config tls;         /* for tcp; other transports do not encrypt */
} pith_transport_config;

#define PITH_LINK_KEY_SIZE 32

/* What the ranks of a job have and strangers do not (link_key.h). Known once addresses have been exchanged. */
typedef struct pith_link_key {
  uint64_t job; /* tells jobs apart; a stranger that read the rendezvous knows it */
  uint8_t bytes[PITH_LINK_KEY_SIZE];
} pith_link_key;

/* Where the other ranks listen, for one transport: may be asked until the transport is closed. */
typedef struct pith_directory {
  pith_status (*find)(const void *from, int rank, pith_address *address);
  const void *from;
} pith_directory;

static inline pith_status pith__directory_find(const pith_directory *d, int rank, pith_address *address) {
  return d->find(d->from, rank, address);
}

/* Whether a transport is to link with a peer. */
enum {
  PITH_LINK_NEVER,
  PITH_LINK_NOW,  /* connect does, on both sides */
  PITH_LINK_LATER /* when one of the two asks */
};

typedef struct pith_transport pith_transport; /* begins with a pointer to its operations */

typedef struct pith_transport_ops {
  const char *name, *summary;

  /* Whether it can run here at all; if not, the error says why. */
  pith_status (*probe)(void);

  /* Starts to listen and says where. */
  pith_status (*listen)(const pith_transport_config *config, pith_transport **transport, pith_address *address);

  /* Connects to every peer p with wanted[p] == PITH_LINK_NOW (never the own rank); all these want each other. A process
   * that lacks the key never becomes a peer. Returns when all those links are established, or with an error that names
   * the rank that is missing. If wanted[p] == PITH_LINK_LATER for some p, links can be made from then on. */
  pith_status (*connect)(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                         const pith_link_key *key);

  /* Begins to make a link with a peer of PITH_LINK_LATER, unless that has begun. The peer need not have asked. */
  pith_status (*ask)(pith_transport *transport, int peer);

  /* Goes on with the links that have begun on either side, without waiting. An error names the rank with which no link
   * can be made. */
  pith_status (*attend)(pith_transport *transport);

  /* A peer whose link is established and that was not told before; -1: there is none. Also of connect's, and after a
   * connect that failed: those that were made. */
  int (*next_linked)(pith_transport *transport);

  /* The descriptors to poll for before attend, at most `most`; returns how many. NULL: there are none, so attend is to
   * be called every few milliseconds. */
  int (*door)(pith_transport *transport, struct pollfd *fds, int most);

  /* Why there is no link with a peer yet that was asked for, in words; "" if nothing is known. NULL: never is. */
  void (*trouble)(pith_transport *transport, int peer, char *text, size_t size);

  /* Takes bytes for a peer: *taken is how many, 0 if there is no room now. */
  pith_status (*send)(pith_transport *transport, int peer, const struct iovec *pieces, int count, size_t *taken);

  /* Gives bytes from a peer: *got is how many, 0 if there are none now. PITH_ERR_PEER once the peer is gone and all its
   * bytes were given. */
  pith_status (*receive)(pith_transport *transport, int peer, void *buffer, size_t size, size_t *got);

  /* The descriptors to poll for, at most `most`; returns how many. `sending` (a flag for each rank) says whom we have
   * bytes for. */
  int (*descriptors)(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most);

  /* Called before poll (asleep = 1) and after it (0). Before: returns 1 if there is something to do already, and
   * promises that peers wake the descriptors from now on. */
  int (*sleep)(pith_transport *transport, int asleep);

  /* Closes all links. Peers see that this rank is gone. Legal at any time after listen, also half connected. */
  void (*close)(pith_transport *transport);

  /* Whether bytes that were taken wait here for room, which send, receive and sleep look for. NULL: never. */
  int (*has_output)(const pith_transport *transport);

  int polls; /* 1: no descriptor tells when bytes come, so no thread may sleep longer than some microseconds */

  /* Whether something that was sent to the peer has had no answer of its host yet, not even that it came: if that
   * lasts, the host is gone. NULL: the transport itself notices. */
  int (*is_unanswered)(pith_transport *transport, int peer);

  /* Whether the peer is connected by addresses that never leave a host. Both sides say the same. NULL: it does not
   * tell.
   */
  int (*is_loopback)(pith_transport *transport, int peer);
} pith_transport_ops;

struct pith_transport {
  const pith_transport_ops *ops;
  double hurry; /* at most so many seconds for connect: the group has failed already, and the others must hear of it. 0:
                   as the config says */
  double grace; /* seconds beyond those of the config for connect: peers may wait that long for others first */
  int is_open;  /* links can still be made: there is something to attend to */
};

/* How long connect may take, if the config says `timeout`. */
static inline double pith__connect_seconds(const pith_transport *t, double timeout) {
  return t->hurry > 0 && t->hurry < timeout ? t->hurry : timeout + t->grace;
}

extern const pith_transport_ops pith__transport_inproc, pith__transport_shm, pith__transport_tcp;

#endif

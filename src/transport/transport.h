/*
 * Transports: ordered, reliable streams of bytes between this rank and its peers, without blocking.
 *
 * A transport knows nothing of messages, collectives or codecs: the comm frames messages, checks headers and matches
 * them, once for all transports. A transport moves bytes, says which descriptors to wait for, and notices that a peer
 * died.
 *
 * Life: listen (gives an address), exchange of addresses (rendezvous.h), connect, then send and receive until close.
 * All calls on one transport come from one thread at a time.
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

typedef struct pith_transport pith_transport; /* begins with a pointer to its operations */

typedef struct pith_transport_ops {
  const char *name, *summary;

  /* Whether it can run here at all; if not, the error says why. */
  pith_status (*probe)(void);

  /* Starts to listen and says where. */
  pith_status (*listen)(const pith_transport_config *config, pith_transport **transport, pith_address *address);

  /* Connects to every peer p with wanted[p] != 0 (never the own rank), whose addresses are address[p]; all ranks want
   * each other. A process that lacks the key never becomes a peer. Returns when all links are established, or with
   * an error that names the rank that is missing. */
  pith_status (*connect)(pith_transport *transport, const pith_address *address, const uint8_t *wanted,
                         const pith_link_key *key);

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

  /* Whether the link with a peer is established: send and receive may be used. Of interest after a connect that failed,
   * when some may be. NULL: then none is. */
  int (*is_linked)(const pith_transport *transport, int peer);

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
                   as the config says. Only tcp, which connects after shm, obeys it */
};

extern const pith_transport_ops pith__transport_inproc, pith__transport_shm, pith__transport_tcp;

#endif

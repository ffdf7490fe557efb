/*
 * Inside tcp: what its three files share. tcp_address.c finds out where this rank can be reached, tcp_connect.c makes
 * the links, tcp.c moves bytes over them.
 */
#ifndef PITH_TRANSPORT_TCP_H
#define PITH_TRANSPORT_TCP_H

#include "transport/link_key.h"
#include "transport/sockets.h"
#include "transport/transport.h"

#define TCP_CONNECTIONS_MOST 16 /* to one peer */
#define TCP_ADDRESSES_MOST 8    /* of one rank */
#define TCP_AHEAD 256           /* bytes read ahead: with the end of one message comes the header of the next */

typedef struct tcp_peer {
  int fds[TCP_CONNECTIONS_MOST];
  int connections;         /* 0: no link */
  uint64_t sent, received; /* bytes of the stream: they say which connection is next */
  int is_over;             /* receive has said so */
  uint16_t ahead_at, ahead_end;
  uint8_t ahead[TCP_AHEAD]; /* with one connection: bytes that were read before they were asked for */
} tcp_peer;

typedef struct pith_tcp {
  pith_transport base;
  unsigned made_in; /* which process: base/forked.h */
  int rank, ranks, connections;
  uint64_t token;           /* only who has our address knows it */
  double timeout, liveness; /* seconds: for connect; without an answer of a peer's host */
  pith_interrupt interrupt;
  uint32_t scope; /* the interface of link-local addresses */
  int listener;
  tcp_peer *peers; /* of every rank */
} pith_tcp;

/* Bytes that travel on one connection before it is the next one's turn; the same on all ranks. For tests to change. */
extern size_t pith__tcp_block_size;

/* What a connection begins with, in native order, which `order` checks:
 *
 *   caller → listener   hello: the listener's token, rank, number of the connection
 *   listener → caller   hello of its own, and a proof of both
 *   caller → listener   a proof of both: this connection it is
 *
 * A proof shows that its sender has the job's key (link_key.h). */
#define TCP_HELLO_MAGIC "PITHLINK"
#define TCP_HELLO_VERSION 2
#define TCP_HELLO_ORDER 0x0102
#define TCP_ROLE_LISTENER "pith tcp 2 listener"
#define TCP_ROLE_CALLER "pith tcp 2 caller"

typedef struct tcp_hello {
  char magic[8];
  uint16_t version, order;
  uint32_t ranks, rank, index;
  uint64_t token;
  uint8_t nonce[PITH_LINK_NONCE];
} tcp_hello;

typedef struct tcp_answer {
  tcp_hello hello;
  uint8_t proof[PITH_SHA256_SIZE];
} tcp_answer;

_Static_assert(sizeof(tcp_hello) == 64 && sizeof(tcp_answer) == 96, "wire format");

/* Where a rank listens, as its address says. */
typedef struct tcp_place {
  uint64_t token;
  int connections;
  int count;
  pith_sockaddr at[TCP_ADDRESSES_MOST]; /* best first */
} tcp_place;

/* What to bind (with port 0) and what to tell peers (place->at, without a port). */
pith_status pith__tcp_choose(const pith_transport_config *config, pith_sockaddr *bind_to, tcp_place *place);

/* A link-local address means something on one interface only, which has another number on each host; so it travels
 * without. Here it is the interface that this rank listens on (0: unknown), and of peers' addresses it is the same. */
uint32_t pith__tcp_scope(const pith_transport_config *config, const tcp_place *own);
void pith__tcp_set_scope(tcp_place *place, uint32_t scope);

void pith__tcp_address_encode(const tcp_place *place, uint16_t port, pith_address *address);
pith_status pith__tcp_address_decode(const pith_address *address, int rank, tcp_place *place);

/* The connect operation. */
pith_status pith__tcp_connect(pith_transport *transport, const pith_address *address, const uint8_t *wanted,
                              const pith_link_key *key);

#endif

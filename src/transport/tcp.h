/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside tcp: what its files share. tcp_address.c finds out where this rank can be reached, tcp_connect.c makes the
 * links, tcp_connection.c is one connection, in clear or encrypted, and tcp.c moves bytes over them.
 */
#ifndef PITH_TRANSPORT_TCP_H
#define PITH_TRANSPORT_TCP_H

#include "transport/link_key.h"
#include "transport/sockets.h"
#include "transport/tls.h"
#include "transport/transport.h"

#define TCP_CONNECTIONS_MOST 16 /* to one peer */
#define TCP_ADDRESSES_MOST 8    /* of one rank */
#define TCP_AHEAD 256           /* bytes read ahead: with the end of one message comes the header of the next */

#define TCP_TROUBLE 320 /* bytes of a message about what a rank lacks for TLS */

/* One connection. With TLS it has a session; all that is read and written then goes through it. */
typedef struct tcp_connection {
  int fd; /* -1: none */
  pith_tls_session *tls;
} tcp_connection;

typedef struct tcp_peer {
  int rank, is_linked; /* is_linked: all its connections are established */
  tcp_connection connection[TCP_CONNECTIONS_MOST];
  int connections;
  uint64_t sent, received; /* bytes of the stream: they say which connection is next */
  int written;             /* the connection that was written last: no other has output that waits */
  int is_over;             /* receive has said so */
  uint16_t ahead_at, ahead_end;
  uint8_t ahead[TCP_AHEAD]; /* with one connection: bytes that were read before they were asked for */
} tcp_peer;

typedef struct pith_tcp {
  pith_transport base;
  unsigned made_in; /* which process: base/forked.h */
  int rank, ranks, connections;
  uint64_t token;           /* only processes that have our address know it */
  double timeout, liveness; /* seconds: for connect; without an answer of a peer's host */
  pith_interrupt interrupt;
  uint32_t scope; /* the interface of link-local addresses */
  int listener;
  tcp_peer **peers;        /* of every rank; NULL: not linked, and nothing of a link is there */
  tcp_peer **linked;       /* those that are */
  int linked_count, told;  /* told: how many of them next_linked has told */
  struct tcp_setup *setup; /* of links that are not made yet; NULL: before connect, and when all are */
  pith_tls_mode tls_mode;
  pith_tls *tls;                 /* NULL: in clear, or there is trouble */
  char tls_trouble[TCP_TROUBLE]; /* why this rank cannot encrypt: it and its peers report it when they connect */
} pith_tcp;

/* Bytes that travel on one connection before it is the next one's turn; the same on all ranks. For tests to change. */
extern size_t pith__tcp_block_size;

/* What a connection begins with, in native order, which `order` checks:
 *
 *   caller → listener   hello: the listener's token, rank, number of the connection
 *   listener → caller   hello of its own, and a proof of both
 *   caller → listener   a proof of both
 *   listener → caller   a byte: the connection is established
 *
 * Two ranks may call each other at the same time. The listener decides when it has the caller's proof: it drops the
 * connection if there is one of that number already, or if it is the higher rank and has sent its own proof on a call
 * of its own. Else it confirms, and gives its own call up. So both sides keep the same connection. A proof shows that
 * its sender has the job's key (link_key.h). With TLS all of this is sent inside the session, and the proofs cover the
 * session's binding: a man in the middle of two sessions has nothing to pass on. */
#define TCP_HELLO_MAGIC "PITHLINK"
#define TCP_HELLO_VERSION 3
#define TCP_HELLO_ORDER 0x0102
#define TCP_ROLE_LISTENER "pith tcp 3 listener"
#define TCP_ROLE_CALLER "pith tcp 3 caller"
#define TCP_CONFIRMED 1

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
  pith_tls_mode tls;
  char tls_trouble[TCP_TROUBLE]; /* "": none */
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

/* As pith__socket_read and pith__socket_write. */
ssize_t pith__connection_read(tcp_connection *c, void *buffer, size_t size);
ssize_t pith__connection_write(tcp_connection *c, const struct iovec *pieces, int count);

/* Brings out what TLS has taken and the socket had no room for. Returns whether some is left; a broken socket has none.
 */
int pith__connection_flush(tcp_connection *c);
int pith__connection_has_output(const tcp_connection *c);

/* Whether bytes are there that poll() does not know of. */
int pith__connection_has_input(const tcp_connection *c);

/* Why it is over, after a call that returned -1. */
const char *pith__connection_trouble(const tcp_connection *c);

/* Closes it at once, or (the link of two ranks) without losing bytes that were written. Both forget the session. */
void pith__connection_drop(tcp_connection *c);
void pith__connection_close(tcp_connection *c);

/* The operations that make links. */
pith_status pith__tcp_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                              const pith_link_key *key);
pith_status pith__tcp_ask(pith_transport *transport, int rank);
pith_status pith__tcp_attend(pith_transport *transport);
int pith__tcp_door(pith_transport *transport, struct pollfd *fds, int most);
void pith__tcp_trouble(pith_transport *transport, int rank, char *text, size_t size);

/* Ends what has not become a link, and the listener. A child that was forked has closed its descriptors already. */
void pith__tcp_setup_free(pith_tcp *tcp, int is_child);

#endif

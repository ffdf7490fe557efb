/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tcp: streams between ranks of many machines. A link is one or more connections; with several, the stream is cut into
 * blocks of a fixed size that take turns on them, and both sides find the next block by counting bytes, so nothing but
 * the stream itself travels. Buffers are left to the kernel's own tuning. Making links is in tcp_connect.c.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <linux/sockios.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"

enum { PIECES_MOST = 64 };

#define LINGER_SECONDS 0.5

size_t pith__tcp_block_size = 256 * 1024;

static pith_tcp *tcp_of(pith_transport *transport) { return (pith_tcp *)transport; }

/* ---- Starting and ending ----------------------------------------------------------------------------------------- */

static pith_status probe(void) {
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) {
    fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  }
  PITH_REQUIRE(fd >= 0, PITH_ERR_UNSUPPORTED, "no sockets: %s", strerror(errno));
  close(fd);
  return PITH_OK;
}

/* Bytes that were taken and are not under way yet: their receiver is behind. */
static int has_unsent(tcp_peer *peer) {
  for (int i = 0; i < peer->connections; i++) {
    tcp_connection *c = &peer->connection[i];
    int unsent = 0;
    if (pith__connection_flush(c) || (ioctl(c->fd, SIOCOUTQNSD, &unsent) == 0 && unsent > 0)) {
      return 1;
    }
  }
  return 0;
}

/* Reads away what came; whether the peer is still there. */
static int drain(const tcp_peer *peer) {
  char nothing[4096];
  ssize_t got = 0;
  for (int i = 0; i < peer->connections && got >= 0; i++) {
    do {
      got = pith__socket_read(peer->connection[i].fd, nothing, sizeof nothing);
    } while (got > 0);
  }
  return got >= 0;
}

/* The last message (why this rank gives up) may still wait for room. If a peer's bytes reached a closed socket then,
 * the system would discard the message, and the peer would only see that we are gone. Hence we read until it is out,
 * for a short time. */
static void linger(const pith_tcp *tcp) {
  double end = pith__now() + LINGER_SECONDS;
  for (int i = 0; i < tcp->linked_count; i++) {
    while (has_unsent(tcp->linked[i]) && drain(tcp->linked[i]) && pith__now() < end) {
      poll(NULL, 0, 1);
    }
  }
}

typedef void (*connection_fn)(tcp_connection *c);

static void for_each_connection(pith_tcp *tcp, connection_fn call) {
  for (int p = 0; tcp->peers && p < tcp->ranks; p++) {
    for (int i = 0; tcp->peers[p] && i < tcp->peers[p]->connections; i++) {
      call(&tcp->peers[p]->connection[i]);
    }
  }
}

static void say_goodbye(tcp_connection *c) {
  if (c->tls) {
    c->tls->ops->say_goodbye(c->tls);
  }
}

/* A child has closed its copies of the sockets already. */
static void forget(tcp_connection *c) {
  c->fd = -1;
  pith__connection_drop(c);
}

static void close_tcp(pith_transport *transport) {
  pith_tcp *tcp = tcp_of(transport);
  if (!tcp) {
    return;
  }
  int is_child = tcp->made_in != pith__fork_number();
  pith__tcp_setup_free(tcp, is_child);
  if (!is_child) {
    for_each_connection(tcp, say_goodbye);
    linger(tcp);
    for_each_connection(tcp, pith__connection_close);
    pith__fd_close(tcp->listener);
  } else {
    for_each_connection(tcp, forget);
  }
  if (tcp->tls) {
    tcp->tls->ops->close(tcp->tls);
  }
  for (int p = 0; tcp->peers && p < tcp->ranks; p++) {
    free(tcp->peers[p]);
  }
  free(tcp->peers);
  free(tcp->linked);
  free(tcp);
}

static pith_status open_listener(pith_tcp *tcp, const pith_transport_config *config, pith_address *address) {
  char text[PITH_SOCKADDR_TEXT];
  pith_sockaddr bind_to, bound;
  tcp_place place;
  PITH_TRY(pith__random_bytes(&tcp->token, sizeof tcp->token));
  PITH_TRY(pith__tcp_choose(config, &bind_to, &place));
  tcp->listener = pith__socket_listen(&bind_to);
  PITH_REQUIRE(tcp->listener >= 0 && pith__socket_local(tcp->listener, &bound) == 0, PITH_ERR_SYSTEM,
               "cannot listen on %s: %s", pith__sockaddr_text(&bind_to, text), strerror(errno));
  tcp->scope = pith__tcp_scope(config, &place);
  place.token = tcp->token;
  place.connections = tcp->connections;
  place.tls = tcp->tls_mode;
  memcpy(place.tls_trouble, tcp->tls_trouble, sizeof place.tls_trouble);
  pith__tcp_address_encode(&place, pith__sockaddr_port(&bound), address);
  return PITH_OK;
}

/* That a rank cannot encrypt is no error when it listens: it may need no tcp link. If it needs one, connect fails, and
 * its address tells the peers why. */
static void open_tls(pith_tcp *tcp, const pith_tls_config *config) {
  const pith_tls_ops *ops;
  tcp->tls_mode = config->mode;
  if (config->mode != PITH_TLS_OFF && (pith__tls_find(&ops) != PITH_OK || ops->open(config, &tcp->tls) != PITH_OK)) {
    snprintf(tcp->tls_trouble, sizeof tcp->tls_trouble, "%s", pith_error());
  }
}

static pith_status listen_tcp(const pith_transport_config *config, pith_transport **transport, pith_address *address) {
  int connections = config->connections ? config->connections : 1;
  PITH_REQUIRE(connections >= 1 && connections <= TCP_CONNECTIONS_MOST, PITH_ERR_ARGUMENT,
               "tcp takes 1 to %d connections to a peer, not %d", TCP_CONNECTIONS_MOST, connections);
  pith_tcp *tcp = calloc(1, sizeof *tcp);
  PITH_REQUIRE(tcp, PITH_ERR_MEMORY, "no memory for tcp");
  tcp->base.ops = &pith__transport_tcp;
  tcp->made_in = pith__fork_number();
  tcp->rank = config->rank;
  tcp->ranks = config->ranks;
  tcp->connections = connections;
  tcp->timeout = config->timeout;
  tcp->liveness = config->liveness > 0 ? config->liveness : PITH_LIVENESS_SECONDS;
  tcp->interrupt = config->interrupt;
  tcp->listener = -1;
  open_tls(tcp, &config->tls);
  tcp->peers = calloc((size_t)config->ranks, sizeof *tcp->peers);
  pith_status status = tcp->peers ? open_listener(tcp, config, address)
                                  : pith_fail(PITH_ERR_MEMORY, "no memory for %d peers", config->ranks);
  if (status != PITH_OK) {
    close_tcp(&tcp->base);
    return status;
  }
  *transport = &tcp->base;
  return PITH_OK;
}

/* ---- Moving bytes ------------------------------------------------------------------------------------------------ */

/* The number of the connection that carries the stream's byte at `position`, and how many it carries from there. */
static int connection_at(const tcp_peer *peer, uint64_t position, size_t *most) {
  if (peer->connections <= 1) {
    *most = SIZE_MAX;
    return 0;
  }
  *most = pith__tcp_block_size - (size_t)(position % pith__tcp_block_size);
  return (int)(position / pith__tcp_block_size % (uint64_t)peer->connections);
}

static pith_status lost(int rank, const tcp_connection *c) {
  return pith_fail(PITH_ERR_PEER, "rank %d is gone: %s", rank, pith__connection_trouble(c));
}

static size_t bytes_of(const struct iovec *pieces, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; i++) {
    bytes += pieces[i].iov_len;
  }
  return bytes;
}

static pith_status send_tcp(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken) {
  tcp_peer *peer = tcp_of(transport)->peers[rank];
  size_t done = 0;
  for (;;) {
    struct iovec part[PIECES_MOST];
    size_t most;
    int next = connection_at(peer, peer->sent, &most);
    if (next != peer->written && pith__connection_flush(&peer->connection[peer->written])) {
      break; /* the block before is not out yet */
    }
    peer->written = next;
    int parts = pith__pieces_slice(pieces, count, done, most, part, PIECES_MOST);
    ssize_t moved = parts ? pith__connection_write(&peer->connection[next], part, parts) : 0;
    if (moved < 0 && done == 0) {
      return lost(rank, &peer->connection[next]);
    }
    if (moved <= 0) {
      break; /* nothing left, no room, or an error that comes again next time */
    }
    done += (size_t)moved;
    peer->sent += (uint64_t)moved;
    if ((size_t)moved < bytes_of(part, parts)) {
      break;
    }
  }
  *taken = done;
  return PITH_OK;
}

/* As pith__socket_read, into several places. */
static ssize_t read_parts(int fd, struct iovec *parts, size_t count) {
  struct msghdr message = {.msg_iov = parts, .msg_iovlen = count};
  ssize_t got;
  do {
    got = recvmsg(fd, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == 0) {
    errno = 0;
    return -1;
  }
  return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : got;
}

static size_t take_ahead(tcp_peer *peer, void *buffer, size_t size) {
  size_t there = (size_t)(peer->ahead_end - peer->ahead_at), n = size < there ? size : there;
  memcpy(buffer, peer->ahead + peer->ahead_at, n);
  peer->ahead_at = (uint16_t)(peer->ahead_at + n);
  return n;
}

/* Reads what was asked for, and what follows as far as there is room: half as many system calls. Errors come again next
 * time. */
static pith_status receive_ahead(tcp_peer *peer, int rank, void *buffer, size_t size, size_t *got) {
  size_t done = take_ahead(peer, buffer, size);
  while (done < size) {
    struct iovec parts[2] = {{(char *)buffer + done, size - done}, {peer->ahead, sizeof peer->ahead}};
    ssize_t moved = read_parts(peer->connection[0].fd, parts, 2);
    if (moved < 0 && done == 0) {
      peer->is_over = 1;
      return lost(rank, &peer->connection[0]);
    }
    if (moved <= 0) {
      break;
    }
    size_t asked = size - done, used = (size_t)moved < asked ? (size_t)moved : asked;
    done += used;
    peer->ahead_at = 0;
    peer->ahead_end = (uint16_t)((size_t)moved - used);
    if (used < asked) {
      break;
    }
  }
  *got = done;
  return PITH_OK;
}

static pith_status receive_tcp(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  tcp_peer *peer = tcp_of(transport)->peers[rank];
  size_t done = 0;
  if (peer->connections <= 1 && !peer->connection[0].tls) { /* TLS reads ahead by itself */
    return receive_ahead(peer, rank, buffer, size, got);
  }
  pith__connection_flush(&peer->connection[peer->written]);
  while (done < size) {
    size_t most;
    tcp_connection *c = &peer->connection[connection_at(peer, peer->received, &most)];
    size_t part = size - done < most ? size - done : most;
    ssize_t moved = pith__connection_read(c, (char *)buffer + done, part);
    if (moved < 0 && done == 0) {
      peer->is_over = 1;
      return lost(rank, c);
    }
    if (moved <= 0) {
      break;
    }
    done += (size_t)moved;
    peer->received += (uint64_t)moved;
    if ((size_t)moved < part) {
      break;
    }
  }
  *got = done;
  return PITH_OK;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static void add_descriptor(struct pollfd *fds, int *count, int most, int fd, short events) {
  if (*count > 0 && fds[*count - 1].fd == fd) {
    fds[*count - 1].events |= events;
  } else if (*count < most) {
    fds[(*count)++] = (struct pollfd){fd, events, 0};
  }
}

/* Only the connection whose turn it is: on the others bytes may lie that nobody can take yet, and poll would not sleep.
 * A peer that dies closes all of them. Output that waits (TLS) comes before the next bytes. */
static int descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  pith_tcp *tcp = tcp_of(transport);
  int count = 0;
  for (int i = 0; i < tcp->linked_count; i++) {
    const tcp_peer *peer = tcp->linked[i];
    size_t room;
    if (peer->is_over) {
      continue;
    }
    const tcp_connection *receiving = &peer->connection[connection_at(peer, peer->received, &room)];
    const tcp_connection *written = &peer->connection[peer->written];
    add_descriptor(fds, &count, most, receiving->fd, POLLIN);
    if (pith__connection_has_output(written)) {
      add_descriptor(fds, &count, most, written->fd, POLLOUT);
    } else if (sending && sending[peer->rank]) {
      add_descriptor(fds, &count, most, peer->connection[connection_at(peer, peer->sent, &room)].fd, POLLOUT);
    }
  }
  return count;
}

/* The kernel wakes the descriptors whether we sleep or not; of bytes that we have already it knows nothing. What waits
 * to go out goes now if it can, since the comm may have no reason to call for this peer. */
static int sleep_tcp(pith_transport *transport, int asleep) {
  pith_tcp *tcp = tcp_of(transport);
  int work = 0;
  for (int i = 0; i < tcp->linked_count && (asleep || tcp->tls); i++) {
    tcp_peer *peer = tcp->linked[i];
    size_t most;
    pith__connection_flush(&peer->connection[peer->written]);
    work |=
        peer->ahead_at < peer->ahead_end ||
        (!peer->is_over && pith__connection_has_input(&peer->connection[connection_at(peer, peer->received, &most)]));
  }
  return asleep && work;
}

static int next_linked(pith_transport *transport) {
  pith_tcp *tcp = tcp_of(transport);
  return tcp->told < tcp->linked_count ? tcp->linked[tcp->told++]->rank : -1;
}

static int is_unanswered(pith_transport *transport, int rank) {
  const tcp_peer *peer = tcp_of(transport)->peers[rank];
  int is_any = 0;
  for (int i = 0; i < peer->connections && !peer->is_over; i++) {
    is_any |= pith__socket_is_unanswered(peer->connection[i].fd);
  }
  return is_any;
}

static int is_loopback(pith_transport *transport, int rank) {
  const tcp_peer *peer = tcp_of(transport)->peers[rank];
  int are_all = peer->connections > 0;
  for (int i = 0; i < peer->connections; i++) {
    are_all &= pith__socket_is_loopback(peer->connection[i].fd);
  }
  return are_all;
}

/* Only TLS keeps bytes. */
static int has_output(const pith_transport *transport) {
  const pith_tcp *tcp = (const pith_tcp *)transport;
  for (int i = 0; tcp->tls && i < tcp->linked_count; i++) {
    if (pith__connection_has_output(&tcp->linked[i]->connection[tcp->linked[i]->written])) {
      return 1;
    }
  }
  return 0;
}

const pith_transport_ops pith__transport_tcp = {
    .name = "tcp",
    .summary = "sockets: machines on any network",
    .probe = probe,
    .listen = listen_tcp,
    .connect = pith__tcp_connect,
    .send = send_tcp,
    .receive = receive_tcp,
    .descriptors = descriptors,
    .sleep = sleep_tcp,
    .ask = pith__tcp_ask,
    .attend = pith__tcp_attend,
    .next_linked = next_linked,
    .door = pith__tcp_door,
    .trouble = pith__tcp_trouble,
    .has_output = has_output,
    .close = close_tcp,
    .is_unanswered = is_unanswered,
    .is_loopback = is_loopback,
};

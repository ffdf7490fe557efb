/*
 * tcp: streams between ranks of many machines. A link is one or more connections; with several, the stream is cut into
 * blocks of a fixed size that take turns on them, and both sides find the next block by counting bytes, so nothing but
 * the stream itself travels. Buffers are left to the kernel's own tuning. Making links is in tcp_connect.c.
 */
#include "transport/tcp.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { PIECES_MOST = 64 };

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

static void close_tcp(pith_transport *transport) {
  pith_tcp *tcp = tcp_of(transport);
  if (!tcp) {
    return;
  }
  for (int p = 0; tcp->peers && p < tcp->ranks; p++) {
    for (int i = 0; i < tcp->peers[p].connections; i++) {
      pith__socket_close(tcp->peers[p].fds[i]);
    }
  }
  if (tcp->listener >= 0) {
    close(tcp->listener);
  }
  free(tcp->peers);
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
  place.token = tcp->token;
  place.connections = tcp->connections;
  pith__tcp_address_encode(&place, pith__sockaddr_port(&bound), address);
  return PITH_OK;
}

static tcp_peer *new_peers(int ranks) {
  tcp_peer *peers = calloc((size_t)ranks, sizeof *peers);
  for (int p = 0; peers && p < ranks; p++) {
    memset(peers[p].fds, -1, sizeof peers[p].fds);
  }
  return peers;
}

static pith_status listen_tcp(const pith_transport_config *config, pith_transport **transport, pith_address *address) {
  int connections = config->connections ? config->connections : 1;
  PITH_REQUIRE(connections >= 1 && connections <= TCP_CONNECTIONS_MOST, PITH_ERR_ARGUMENT,
               "tcp takes 1 to %d connections to a peer, not %d", TCP_CONNECTIONS_MOST, connections);
  pith_tcp *tcp = calloc(1, sizeof *tcp);
  PITH_REQUIRE(tcp, PITH_ERR_MEMORY, "no memory for tcp");
  tcp->base.ops = &pith__transport_tcp;
  tcp->rank = config->rank;
  tcp->ranks = config->ranks;
  tcp->connections = connections;
  tcp->job = config->job;
  tcp->timeout = config->timeout;
  tcp->listener = -1;
  tcp->peers = new_peers(config->ranks);
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

/* The connection that carries the stream's byte at `position`, and how many it carries from there. */
static int connection_at(const tcp_peer *peer, uint64_t position, size_t *most) {
  if (peer->connections <= 1) {
    *most = SIZE_MAX;
    return peer->fds[0];
  }
  *most = pith__tcp_block_size - (size_t)(position % pith__tcp_block_size);
  return peer->fds[position / pith__tcp_block_size % (uint64_t)peer->connections];
}

static pith_status lost(int rank) {
  return errno == 0 ? pith_fail(PITH_ERR_PEER, "rank %d is gone: it closed its connection", rank)
                    : pith_fail(PITH_ERR_PEER, "rank %d is gone: %s", rank, strerror(errno));
}

static size_t bytes_of(const struct iovec *pieces, int count) {
  size_t bytes = 0;
  for (int i = 0; i < count; i++) {
    bytes += pieces[i].iov_len;
  }
  return bytes;
}

static pith_status send_tcp(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken) {
  tcp_peer *peer = &tcp_of(transport)->peers[rank];
  size_t done = 0;
  for (;;) {
    struct iovec part[PIECES_MOST];
    size_t most;
    int fd = connection_at(peer, peer->sent, &most);
    int parts = pith__pieces_slice(pieces, count, done, most, part, PIECES_MOST);
    ssize_t moved = parts ? pith__socket_write(fd, part, parts) : 0;
    if (moved < 0 && done == 0) {
      return lost(rank);
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

static pith_status receive_tcp(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  tcp_peer *peer = &tcp_of(transport)->peers[rank];
  size_t done = 0;
  while (done < size) {
    size_t most;
    int fd = connection_at(peer, peer->received, &most);
    size_t part = size - done < most ? size - done : most;
    ssize_t moved = pith__socket_read(fd, (char *)buffer + done, part);
    if (moved < 0 && done == 0) {
      peer->is_over = 1;
      return lost(rank);
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
 * A * peer that dies closes all of them. */
static int descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  pith_tcp *tcp = tcp_of(transport);
  int count = 0;
  for (int p = 0; p < tcp->ranks; p++) {
    const tcp_peer *peer = &tcp->peers[p];
    size_t room;
    if (peer->connections == 0 || peer->is_over) {
      continue;
    }
    add_descriptor(fds, &count, most, connection_at(peer, peer->received, &room), POLLIN);
    if (sending && sending[p]) {
      add_descriptor(fds, &count, most, connection_at(peer, peer->sent, &room), POLLOUT);
    }
  }
  return count;
}

/* The kernel wakes the descriptors whether we sleep or not. */
static int sleep_tcp(pith_transport *transport, int asleep) {
  (void)transport;
  (void)asleep;
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
    .close = close_tcp,
};

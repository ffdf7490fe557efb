/* SPDX-License-Identifier: Apache-2.0 */
/* One connection of a link: a socket, or a TLS session on it. */
#include <errno.h>
#include <string.h>

#include "base/forked.h"
#include "transport/tcp.h"

ssize_t pith__connection_read(tcp_connection *c, void *buffer, size_t size) {
  return c->tls ? c->tls->ops->read(c->tls, buffer, size) : pith__socket_read(c->fd, buffer, size);
}

ssize_t pith__connection_write(tcp_connection *c, const struct iovec *pieces, int count) {
  return c->tls ? c->tls->ops->write(c->tls, pieces, count) : pith__socket_write(c->fd, pieces, count);
}

int pith__connection_flush(tcp_connection *c) { return c->tls && c->tls->ops->flush(c->tls) > 0; }

int pith__connection_has_output(const tcp_connection *c) { return c->tls && c->tls->ops->has_output(c->tls); }

int pith__connection_has_input(const tcp_connection *c) { return c->tls && c->tls->ops->has_input(c->tls); }

const char *pith__connection_trouble(const tcp_connection *c) {
  return c->tls ? c->tls->ops->trouble(c->tls) : errno ? strerror(errno) : "it closed its connection";
}

static void end_session(tcp_connection *c) {
  if (c->tls) {
    c->tls->ops->end(c->tls);
  }
  c->tls = NULL;
}

void pith__connection_drop(tcp_connection *c) {
  end_session(c);
  if (c->fd >= 0) {
    pith__fd_close(c->fd);
  }
  c->fd = -1;
}

void pith__connection_close(tcp_connection *c) {
  end_session(c);
  pith__socket_close(c->fd);
  c->fd = -1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What tcp and the rendezvous share: stream sockets that never block, never raise SIGPIPE, are closed on exec, and
 * whose calls survive signals. Nothing here knows a protocol.
 */
#ifndef PITH_TRANSPORT_SOCKETS_H
#define PITH_TRANSPORT_SOCKETS_H

#include <netinet/in.h>
#include <poll.h>
#include <sys/types.h>
#include <sys/uio.h>

#include "base/status.h"

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

typedef union pith_sockaddr {
  struct sockaddr any;
  struct sockaddr_in v4;
  struct sockaddr_in6 v6;
} pith_sockaddr;

#define PITH_SOCKADDR_TEXT 80

socklen_t pith__sockaddr_size(const pith_sockaddr *address);
uint16_t pith__sockaddr_port(const pith_sockaddr *address);
void pith__sockaddr_set_port(pith_sockaddr *address, uint16_t port);
int pith__sockaddr_is_loopback(const pith_sockaddr *address);
int pith__sockaddr_is_link_local(const pith_sockaddr *address); /* fe80::…: means something on one interface only */

/* "10.0.0.1:29500", "[fd00::1]:29500" or "[fe80::1%eth0]:29500", and the same without port and brackets; both return
 * `text`. */
const char *pith__sockaddr_text(const pith_sockaddr *address, char text[PITH_SOCKADDR_TEXT]);
const char *pith__sockaddr_name(const pith_sockaddr *address, char text[PITH_SOCKADDR_TEXT]);

/* Reads "10.0.0.1", "fd00::1" or "fe80::1%eth0", without asking a name server. Returns whether it is one. */
int pith__sockaddr_parse(const char *text, uint16_t port, pith_sockaddr *address);

/* The addresses of a host, or of several separated by commas, at most `most`. Returns how many; 0 with the reason in
 * *why. May ask a name server. */
int pith__sockaddr_resolve(const char *host, uint16_t port, pith_sockaddr *found, int most, const char **why);

/* Every address of one family's "all interfaces": both families at once where the system can, else IPv4. */
pith_sockaddr pith__sockaddr_everywhere(uint16_t port);

/* ---- Sockets: functions return a descriptor or -1 with errno ----------------------------------------------------- */

/* Children that are forked close them (base/forked.h): end them with pith__fd_close or pith__socket_close. */

int pith__socket_listen(const pith_sockaddr *at);
int pith__socket_local(int fd, pith_sockaddr *address); /* 0 on success */

/* The next connection that came in; -1 if there is none now. Out of descriptors, it stays where it is and wakes who
 * polls at once: wait a moment then. */
int pith__socket_accept(int listener);

/* Starts to connect; poll for POLLOUT, then ask how it went: 0 or an errno. A socket that connected to itself counts as
 * refused: that happens on one machine when nobody listens yet. */
int pith__socket_connect(const pith_sockaddr *to);
int pith__socket_connect_result(int fd);

/* Small messages at once; an idle connection ends when the peer's host does not answer for `liveness` seconds. A
 * process that is stopped does not count as gone: its host answers for it. */
#define PITH_LIVENESS_SECONDS 15.0 /* unless it is set */
void pith__socket_tune(int fd, double liveness);

/* Whether both ends have loopback addresses. */
int pith__socket_is_loopback(int fd);

/* Whether something that was sent is unanswered now: the peer's host answers it at once, whatever the process does. */
int pith__socket_is_unanswered(int fd);

/* Raises this process's limit of open files, as far as allowed, so that `more` can be opened. */
void pith__descriptors_reserve(int more);

/* Bytes moved; 0: none now; -1: the connection is over, and errno says why (0: the other side closed it). */
ssize_t pith__socket_read(int fd, void *buffer, size_t size);
ssize_t pith__socket_write(int fd, const struct iovec *pieces, int count);

/* Whether the other side closed it or is gone; looks only, takes no bytes. */
int pith__socket_is_over(int fd);

/* Closes without losing bytes that were written: unread input would make the kernel reset the connection. */
void pith__socket_close(int fd);

/* ---- Around them ------------------------------------------------------------------------------------------------- */

/* poll() until a time of pith__now(); a signal counts as nothing to do. */
int pith__poll_until(struct pollfd *fds, int count, double deadline);

/* `most` bytes of the pieces after the first `skip`, as at most `room` pieces; returns how many. */
int pith__pieces_slice(const struct iovec *from, int count, size_t skip, size_t most, struct iovec *to, int room);

pith_status pith__random_bytes(void *buffer, size_t size);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets that never block, and what one needs around them. */
#include "transport/sockets.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"

enum { DESCRIPTORS_SPARE = 64 }; /* for the program's own files */

/* ---- Addresses --------------------------------------------------------------------------------------------------- */

static int is_v6(const pith_sockaddr *address) { return address->any.sa_family == AF_INET6; }

socklen_t pith__sockaddr_size(const pith_sockaddr *address) {
  return is_v6(address) ? sizeof address->v6 : sizeof address->v4;
}

uint16_t pith__sockaddr_port(const pith_sockaddr *address) {
  return ntohs(is_v6(address) ? address->v6.sin6_port : address->v4.sin_port);
}

void pith__sockaddr_set_port(pith_sockaddr *address, uint16_t port) {
  if (is_v6(address)) {
    address->v6.sin6_port = htons(port);
  } else {
    address->v4.sin_port = htons(port);
  }
}

int pith__sockaddr_is_loopback(const pith_sockaddr *address) {
  const struct in6_addr *six = &address->v6.sin6_addr; /* an IPv4 one on a socket for both ends in its four bytes */
  return is_v6(address) ? IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127)
                        : ntohl(address->v4.sin_addr.s_addr) >> 24 == 127;
}

int pith__sockaddr_is_link_local(const pith_sockaddr *address) {
  return is_v6(address) && IN6_IS_ADDR_LINKLOCAL(&address->v6.sin6_addr);
}

/* The interface of a link-local address: "%eth0", or its number where it has no name any more. */
static void add_scope(uint32_t scope, char text[PITH_SOCKADDR_TEXT]) {
  char name[IF_NAMESIZE];
  size_t used = strlen(text);
  if (if_indextoname(scope, name)) {
    snprintf(text + used, PITH_SOCKADDR_TEXT - used, "%%%s", name);
  } else {
    snprintf(text + used, PITH_SOCKADDR_TEXT - used, "%%%u", scope);
  }
}

const char *pith__sockaddr_name(const pith_sockaddr *address, char text[PITH_SOCKADDR_TEXT]) {
  const void *from = is_v6(address) ? (const void *)&address->v6.sin6_addr : &address->v4.sin_addr;
  if (!inet_ntop(address->any.sa_family, from, text, PITH_SOCKADDR_TEXT)) {
    return memcpy(text, "?", 2);
  }
  if (pith__sockaddr_is_link_local(address) && address->v6.sin6_scope_id) {
    add_scope(address->v6.sin6_scope_id, text);
  }
  return text;
}

const char *pith__sockaddr_text(const pith_sockaddr *address, char text[PITH_SOCKADDR_TEXT]) {
  char host[PITH_SOCKADDR_TEXT];
  snprintf(text, PITH_SOCKADDR_TEXT, is_v6(address) ? "[%.64s]:%u" : "%.64s:%u", pith__sockaddr_name(address, host),
           pith__sockaddr_port(address));
  return text;
}

/* The interface after "%", by name or number; 0 if there is none such. */
static uint32_t parse_scope(const char *text) {
  char *end;
  unsigned long number = strtoul(text, &end, 10);
  uint32_t named = if_nametoindex(text);
  return named ? named : *text >= '0' && *text <= '9' && *end == 0 && number <= UINT32_MAX ? (uint32_t)number : 0;
}

/* An IPv6 address, with its interface if it is link-local. */
static int parse_v6(const char *text, pith_sockaddr *parsed) {
  char host[INET6_ADDRSTRLEN];
  size_t length = strcspn(text, "%");
  if (length >= sizeof host) {
    return 0;
  }
  memcpy(host, text, length);
  host[length] = 0;
  if (inet_pton(AF_INET6, host, &parsed->v6.sin6_addr) != 1) {
    return 0;
  }
  parsed->any.sa_family = AF_INET6;
  if (text[length] == 0) {
    return 1;
  }
  parsed->v6.sin6_scope_id = parse_scope(text + length + 1);
  return parsed->v6.sin6_scope_id != 0 && pith__sockaddr_is_link_local(parsed);
}

int pith__sockaddr_parse(const char *text, uint16_t port, pith_sockaddr *address) {
  pith_sockaddr parsed;
  memset(&parsed, 0, sizeof parsed);
  if (inet_pton(AF_INET, text, &parsed.v4.sin_addr) == 1) {
    parsed.any.sa_family = AF_INET;
  } else if (!parse_v6(text, &parsed)) {
    return 0;
  }
  pith__sockaddr_set_port(&parsed, port);
  *address = parsed;
  return 1;
}

static int resolve_one(const char *host, uint16_t port, pith_sockaddr *found, int most, const char **why) {
  struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *list = NULL;
  int error = getaddrinfo(host, NULL, &hints, &list), count = 0;
  if (error != 0) {
    *why = gai_strerror(error);
    return 0;
  }
  for (const struct addrinfo *a = list; a && count < most; a = a->ai_next) {
    if (a->ai_family == AF_INET || a->ai_family == AF_INET6) {
      memset(&found[count], 0, sizeof found[count]);
      memcpy(&found[count], a->ai_addr, a->ai_addrlen);
      pith__sockaddr_set_port(&found[count++], port);
    }
  }
  freeaddrinfo(list);
  *why = count ? NULL : "it has no address";
  return count;
}

int pith__sockaddr_resolve(const char *hosts, uint16_t port, pith_sockaddr *found, int most, const char **why) {
  int count = 0;
  *why = "it has no name";
  while (*hosts && count < most) {
    char host[256];
    size_t length = strcspn(hosts, ",");
    if (length < sizeof host) {
      memcpy(host, hosts, length);
      host[length] = 0;
      count += resolve_one(host, port, found + count, most - count, why);
    } else {
      *why = "the name is too long";
    }
    hosts += length + (hosts[length] == ',');
  }
  *why = count ? NULL : *why;
  return count;
}

pith_sockaddr pith__sockaddr_everywhere(uint16_t port) {
  pith_sockaddr address;
  memset(&address, 0, sizeof address);
  int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
  address.any.sa_family = fd >= 0 ? AF_INET6 : AF_INET; /* zeros are "any" in both */
  if (fd >= 0) {
    close(fd);
  }
  pith__sockaddr_set_port(&address, port);
  return address;
}

/* ---- Sockets ----------------------------------------------------------------------------------------------------- */

static void set_option(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

static int new_socket(const pith_sockaddr *address) {
  return pith__fd_keep(socket(address->any.sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

static int close_with_error(int fd) {
  int error = errno;
  pith__fd_close(fd);
  errno = error;
  return -1;
}

int pith__socket_listen(const pith_sockaddr *at) {
  int fd = new_socket(at);
  if (fd < 0) {
    return -1;
  }
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (is_v6(at)) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  }
  if (bind(fd, &at->any, pith__sockaddr_size(at)) != 0 || listen(fd, SOMAXCONN) != 0) {
    return close_with_error(fd);
  }
  return fd;
}

int pith__socket_local(int fd, pith_sockaddr *address) {
  socklen_t size = sizeof *address;
  memset(address, 0, sizeof *address);
  return getsockname(fd, &address->any, &size);
}

int pith__socket_accept(int listener) {
  for (;;) {
    int fd = pith__fd_keep(accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (fd >= 0 || errno == EAGAIN || errno == EWOULDBLOCK) {
      return fd;
    }
    if (errno != EINTR && errno != ECONNABORTED) {
      return -1;
    }
  }
}

int pith__socket_connect(const pith_sockaddr *to) {
  int fd = new_socket(to);
  if (fd < 0) {
    return -1;
  }
  /* After EINTR it goes on in the background, as after EINPROGRESS. */
  if (connect(fd, &to->any, pith__sockaddr_size(to)) != 0 && errno != EINPROGRESS && errno != EINTR) {
    return close_with_error(fd);
  }
  return fd;
}

static int met_itself(int fd) {
  pith_sockaddr here, there;
  socklen_t size = sizeof there;
  memset(&there, 0, sizeof there);
  if (pith__socket_local(fd, &here) != 0 || getpeername(fd, &there.any, &size) != 0 ||
      pith__sockaddr_port(&here) != pith__sockaddr_port(&there)) {
    return 0;
  }
  return is_v6(&here) ? IN6_ARE_ADDR_EQUAL(&here.v6.sin6_addr, &there.v6.sin6_addr)
                      : here.v4.sin_addr.s_addr == there.v4.sin_addr.s_addr;
}

int pith__socket_connect_result(int fd) {
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) {
    return errno;
  }
  if (error == 0 && met_itself(fd)) {
    struct linger now = {1, 0}; /* no TIME_WAIT: it holds the very port that rank 0 is about to bind */
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    return ECONNREFUSED;
  }
  return error;
}

/* The system's own limit for data in flight, TCP_USER_TIMEOUT, is not used: it also ends connections whose peer lives
 * but reads nothing. Keep-alive probes are sent on idle connections only; pith__socket_is_unanswered() is for the
 * others. */
void pith__socket_tune(int fd, double liveness) {
  int seconds = liveness > 86400 ? 86400 : liveness < 3 ? 3 : (int)liveness;
  int idle = seconds / 3, pause = seconds < 30 ? 1 : seconds / 15; /* many probes: a busy network loses some */
  int count = (seconds * 19 / 20 - idle) / pause;
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, idle);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, pause);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, count < 2 ? 2 : count);
}

int pith__socket_is_loopback(int fd) {
  pith_sockaddr here, there;
  socklen_t size = sizeof there;
  memset(&there, 0, sizeof there);
  return pith__socket_local(fd, &here) == 0 && getpeername(fd, &there.any, &size) == 0 &&
         pith__sockaddr_is_loopback(&here) && pith__sockaddr_is_loopback(&there);
}

/* Retransmissions of data and probes of a closed window are counted until an acknowledgement comes. */
int pith__socket_is_unanswered(int fd) {
  struct tcp_info info;
  socklen_t size = sizeof info;
  memset(&info, 0, sizeof info);
  return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         (info.tcpi_retransmits > 0 || info.tcpi_probes > 0);
}

void pith__descriptors_reserve(int more) {
  struct rlimit limit;
  int next = open("/dev/null", O_RDONLY | O_CLOEXEC); /* the lowest that is free: about as many are open */
  if (next >= 0) {
    close(next);
  }
  rlim_t wanted = (rlim_t)(next < 0 ? 0 : next) + (rlim_t)more + DESCRIPTORS_SPARE;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < wanted && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* where it is refused, opening one too many is the error */
  }
}

static int is_try_again(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

ssize_t pith__socket_read(int fd, void *buffer, size_t size) {
  ssize_t got;
  if (size == 0) {
    return 0;
  }
  do {
    got = recv(fd, buffer, size, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  if (got == 0) {
    errno = 0;
    return -1;
  }
  return got < 0 && is_try_again(errno) ? 0 : got;
}

ssize_t pith__socket_write(int fd, const struct iovec *pieces, int count) {
  struct msghdr message = {.msg_iov = (struct iovec *)pieces, .msg_iovlen = (size_t)count};
  ssize_t taken;
  do {
    taken = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (taken < 0 && errno == EINTR);
  return taken < 0 && is_try_again(errno) ? 0 : taken;
}

int pith__socket_is_over(int fd) {
  char byte;
  ssize_t got = recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return got == 0 || (got < 0 && !is_try_again(errno) && errno != EINTR);
}

void pith__socket_close(int fd) {
  char rest[4096];
  if (fd < 0) {
    return;
  }
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < 4096 && pith__socket_read(fd, rest, sizeof rest) > 0; i++) {
  }
  pith__fd_close(fd);
}

/* ---- Around them ------------------------------------------------------------------------------------------------- */

int pith__poll_until(struct pollfd *fds, int count, double deadline) {
  double left = deadline - pith__now();
  int ms = left <= 0 ? 0 : left > 3600 ? 3600000 : (int)ceil(left * 1000);
  int ready = poll(fds, (nfds_t)count, ms);
  if (ready < 0) {
    for (int i = 0; i < count; i++) {
      fds[i].revents = 0;
    }
    return 0;
  }
  return ready;
}

int pith__pieces_slice(const struct iovec *from, int count, size_t skip, size_t most, struct iovec *to, int room) {
  int used = 0;
  for (int i = 0; i < count && used < room && most > 0; i++) {
    if (skip >= from[i].iov_len) {
      skip -= from[i].iov_len;
      continue;
    }
    size_t size = from[i].iov_len - skip < most ? from[i].iov_len - skip : most;
    to[used++] = (struct iovec){(char *)from[i].iov_base + skip, size};
    most -= size;
    skip = 0;
  }
  return used;
}

pith_status pith__random_bytes(void *buffer, size_t size) {
  char *at = buffer;
  while (size > 0) {
    ssize_t got = getrandom(at, size, 0);
    if (got < 0 && errno != EINTR) {
      return pith_fail(PITH_ERR_SYSTEM, "no random numbers: %s", strerror(errno));
    }
    if (got > 0) {
      at += got;
      size -= (size_t)got;
    }
  }
  return PITH_OK;
}

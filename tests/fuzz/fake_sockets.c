/* SPDX-License-Identifier: Apache-2.0 */
/* Sockets in memory: fake_sockets.h. */
#include "fuzz/fake_sockets.h"

#include <errno.h>
#include <ifaddrs.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/epoll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum { FIRST = 200, MOST = 128, USER_ELSEWHERE = 12345 }; /* descriptors */

typedef enum kind { CLOSED, PLAIN, LISTENER, CONNECTION, DESCRIPTOR, WATCH } kind;

typedef struct record {
  const uint8_t *data;
  size_t size;
  unsigned flags;
} record;

typedef struct descriptor {
  kind kind;
  int type, number;         /* number: of a connection */
  int watch;                /* the epoll descriptor that it is watched by; 0: none */
  struct epoll_event event; /* what for */
} descriptor;

typedef struct connection {
  record queue[16];
  int first, count;
  int is_waiting; /* at the listener, to be accepted */
  int is_closed, is_other_user, has_failed;
} connection;

enum { CONNECTIONS = 32, CALLS_MOST = 200000 };

static struct {
  fuzz_input in;
  int trusts;
  descriptor fds[MOST];
  connection connections[CONNECTIONS];
  int count;
  double now;
  long calls;
} world;

static int is_running;

void fake_begin(fuzz_input in) {
  memset(&world, 0, sizeof world);
  world.trusts = fuzz_take(&in, 1) & FAKE_TRUSTS;
  world.in = in;
  world.now = 1000;
  is_running = 1;
}

void fake_end(void) {
  is_running = 0;
  for (int i = 0; i < MOST; i++) {
    FUZZ_REQUIRE(world.fds[i].kind == CLOSED);
  }
}

/* ---- Descriptors and connections --------------------------------------------------------------------------------- */

static int new_descriptor(kind which, int type, int number) {
  for (int i = 0; i < MOST; i++) {
    if (world.fds[i].kind == CLOSED) {
      world.fds[i] = (descriptor){.kind = which, .type = type, .number = number};
      return FIRST + i;
    }
  }
  errno = EMFILE;
  return -1;
}

static descriptor *descriptor_of(int fd) {
  return is_running && fd >= FIRST && fd < FIRST + MOST && world.fds[fd - FIRST].kind != CLOSED ? &world.fds[fd - FIRST]
                                                                                                : NULL;
}

static connection *connection_of(int fd) {
  descriptor *d = descriptor_of(fd);
  return d && d->kind == CONNECTION ? &world.connections[d->number] : NULL;
}

static int find_waiting(void) {
  for (int i = 0; i < world.count; i++) {
    if (world.connections[i].is_waiting) {
      return i;
    }
  }
  return -1;
}

/* Takes the next record of the input; whether there was one. */
static int take_record(void) {
  if (world.in.size < FAKE_RECORD_HEAD) {
    return 0;
  }
  int number = (int)fuzz_take(&world.in, 1) % CONNECTIONS;
  record r = {.flags = (unsigned)fuzz_take(&world.in, 1)};
  r.size = (size_t)fuzz_take(&world.in, 2);
  r.size = r.size < world.in.size ? r.size : world.in.size;
  r.data = world.in.data;
  world.in.data += r.size, world.in.size -= r.size;
  if (number >= world.count && world.count < CONNECTIONS) {
    number = world.count++;
    world.connections[number].is_waiting = 1;
  }
  connection *c = &world.connections[number < world.count ? number : world.count - 1];
  if (c->count < (int)FUZZ_COUNT(c->queue)) {
    c->queue[(c->first + c->count++) % (int)FUZZ_COUNT(c->queue)] = r;
  }
  c->is_closed |= r.flags & FAKE_CLOSES;
  c->is_other_user |= r.flags & FAKE_OTHER_USER;
  c->has_failed |= r.flags & FAKE_FAILS;
  return 1;
}

static short ready(int fd, short wanted) {
  descriptor *d = descriptor_of(fd);
  connection *c = connection_of(fd);
  if (d && d->kind == LISTENER) {
    return find_waiting() >= 0 ? wanted & POLLIN : 0;
  }
  if (!c) {
    return 0;
  }
  int has_news = c->count > 0 || c->is_closed || c->has_failed;
  return (short)((has_news ? wanted & (POLLIN | (c->is_closed ? POLLRDHUP : 0)) : 0) | (wanted & POLLOUT));
}

/* A loop without an end is a finding. */
static void count_call(void) { FUZZ_REQUIRE(++world.calls < CALLS_MOST); }

/* ---- The system calls -------------------------------------------------------------------------------------------- */

#define WRAP(type, name, ...)      \
  type __real_##name(__VA_ARGS__); \
  type __wrap_##name(__VA_ARGS__); \
  type __wrap_##name(__VA_ARGS__)

WRAP(int, socket, int domain, int type, int protocol) {
  if (!is_running) {
    return __real_socket(domain, type, protocol);
  }
  return new_descriptor(PLAIN, type & 15, 0);
}

WRAP(int, bind, int fd, const struct sockaddr *address, socklen_t size) {
  return descriptor_of(fd) ? 0 : __real_bind(fd, address, size);
}

WRAP(int, listen, int fd, int backlog) {
  descriptor *d = descriptor_of(fd);
  if (!d) {
    return __real_listen(fd, backlog);
  }
  d->kind = LISTENER;
  return 0;
}

WRAP(int, accept4, int fd, struct sockaddr *address, socklen_t *size, int flags) {
  if (!descriptor_of(fd)) {
    return __real_accept4(fd, address, size, flags);
  }
  count_call();
  int number = find_waiting();
  if (number < 0) {
    errno = EAGAIN;
    return -1;
  }
  world.connections[number].is_waiting = 0;
  return new_descriptor(CONNECTION, descriptor_of(fd)->type, number);
}

WRAP(int, connect, int fd, const struct sockaddr *address, socklen_t size) {
  descriptor *d = descriptor_of(fd);
  if (!d) {
    return __real_connect(fd, address, size);
  }
  count_call();
  if (d->type == SOCK_DGRAM) {
    return 0; /* asks for a route only */
  }
  if (world.count == CONNECTIONS) {
    errno = ECONNREFUSED;
    return -1;
  }
  d->kind = CONNECTION;
  d->number = world.count++;
  return 0;
}

WRAP(int, close, int fd) {
  descriptor *d = descriptor_of(fd);
  if (!d) {
    return __real_close(fd);
  }
  d->kind = CLOSED;
  return 0;
}

WRAP(int, shutdown, int fd, int how) { return descriptor_of(fd) ? 0 : __real_shutdown(fd, how); }

WRAP(int, setsockopt, int fd, int level, int option, const void *value, socklen_t size) {
  return descriptor_of(fd) ? 0 : __real_setsockopt(fd, level, option, value, size);
}

WRAP(int, getsockopt, int fd, int level, int option, void *value, socklen_t *size) {
  if (!descriptor_of(fd)) {
    return __real_getsockopt(fd, level, option, value, size);
  }
  memset(value, 0, *size);
  if (level == SOL_SOCKET && option == SO_PEERCRED) {
    connection *c = connection_of(fd);
    *(struct ucred *)value = (struct ucred){.uid = c && c->is_other_user ? USER_ELSEWHERE : geteuid()};
  }
  return 0;
}

WRAP(int, getsockname, int fd, struct sockaddr *address, socklen_t *size) {
  if (!descriptor_of(fd)) {
    return __real_getsockname(fd, address, size);
  }
  memset(address, 0, *size);
  address->sa_family = AF_INET;
  address->sa_data[0] = 0x30; /* a port */
  return 0;
}

WRAP(int, getpeername, int fd, struct sockaddr *address, socklen_t *size) {
  if (!descriptor_of(fd)) {
    return __real_getpeername(fd, address, size);
  }
  errno = ENOTCONN;
  return -1;
}

/* What is next of a connection: a stream goes on within records, of packets the rest is lost. */
static ssize_t read_from(connection *c, int is_packets, void *to, size_t size, int *brings, int is_peek) {
  count_call();
  if (c->count == 0) {
    errno = c->has_failed ? ECONNRESET : EAGAIN;
    return c->is_closed && !c->has_failed ? 0 : -1;
  }
  record *r = &c->queue[c->first];
  size_t n = r->size < size ? r->size : size;
  memcpy(to, r->data, n);
  if (is_peek) {
    return (ssize_t)n;
  }
  if (brings) {
    *brings = r->flags & FAKE_BRINGS_DESCRIPTOR;
  }
  r->data += n, r->size -= n;
  if (r->size == 0 || is_packets) {
    c->first = (c->first + 1) % (int)FUZZ_COUNT(c->queue);
    c->count--;
  }
  return (ssize_t)n;
}

WRAP(ssize_t, recv, int fd, void *to, size_t size, int flags) {
  connection *c = connection_of(fd);
  return c ? read_from(c, descriptor_of(fd)->type == SOCK_SEQPACKET, to, size, NULL, flags & MSG_PEEK)
           : __real_recv(fd, to, size, flags);
}

static void add_descriptor(struct msghdr *message) {
  struct cmsghdr *h = message->msg_control ? CMSG_FIRSTHDR(message) : NULL;
  int fd = h ? new_descriptor(DESCRIPTOR, 0, 0) : -1;
  if (fd >= 0) {
    *h = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(h), &fd, sizeof fd);
    message->msg_controllen = CMSG_SPACE(sizeof(int));
  } else {
    message->msg_controllen = 0;
  }
}

WRAP(ssize_t, recvmsg, int fd, struct msghdr *message, int flags) {
  connection *c = connection_of(fd);
  int brings = 0;
  if (!c) {
    return __real_recvmsg(fd, message, flags);
  }
  message->msg_flags = 0;
  ssize_t got = read_from(c, descriptor_of(fd)->type == SOCK_SEQPACKET, message->msg_iov[0].iov_base,
                          message->msg_iov[0].iov_len, &brings, 0);
  if (brings) {
    add_descriptor(message);
  } else {
    message->msg_controllen = 0;
  }
  return got;
}

WRAP(ssize_t, sendmsg, int fd, const struct msghdr *message, int flags) {
  connection *c = connection_of(fd);
  if (!c) {
    return __real_sendmsg(fd, message, flags);
  }
  count_call();
  ssize_t sum = 0;
  for (size_t i = 0; i < message->msg_iovlen; i++) {
    sum += (ssize_t)message->msg_iov[i].iov_len;
  }
  errno = EPIPE;
  return c->has_failed || c->is_closed ? -1 : sum;
}

WRAP(int, poll, struct pollfd *fds, nfds_t count, int milliseconds) {
  if (!is_running) {
    return __real_poll(fds, count, milliseconds);
  }
  do {
    int found = 0;
    count_call();
    for (nfds_t i = 0; i < count; i++) {
      fds[i].revents = ready(fds[i].fd, fds[i].events);
      found += fds[i].revents != 0;
    }
    if (found) {
      return found;
    }
  } while (count > 0 && milliseconds != 0 && take_record()); /* who does not wait sees what is there */
  world.now += 1e-3 * (milliseconds < 0 ? 1000000 : milliseconds);
  return 0;
}

/* ---- epoll: poll() over what is watched -------------------------------------------------------------------------- */

_Static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT && EPOLLRDHUP == POLLRDHUP, "one set of bits serves both");

WRAP(int, epoll_create1, int flags) { return is_running ? new_descriptor(WATCH, 0, 0) : __real_epoll_create1(flags); }

WRAP(int, epoll_ctl, int watch, int what, int fd, struct epoll_event *event) {
  descriptor *d = descriptor_of(fd);
  if (!descriptor_of(watch)) {
    return __real_epoll_ctl(watch, what, fd, event);
  }
  if (!d || (what == EPOLL_CTL_ADD) == (d->watch == watch)) {
    errno = !d ? EBADF : what == EPOLL_CTL_ADD ? EEXIST : ENOENT;
    return -1;
  }
  d->watch = what == EPOLL_CTL_DEL ? 0 : watch;
  d->event = event ? *event : d->event;
  return 0;
}

WRAP(int, epoll_wait, int watch, struct epoll_event *events, int most, int milliseconds) {
  struct pollfd fds[MOST];
  int count = 0, found = 0;
  if (!descriptor_of(watch)) {
    return __real_epoll_wait(watch, events, most, milliseconds);
  }
  for (int i = 0; i < MOST; i++) {
    if (world.fds[i].kind != CLOSED && world.fds[i].watch == watch) {
      fds[count++] = (struct pollfd){FIRST + i, (short)world.fds[i].event.events, 0};
    }
  }
  __wrap_poll(fds, (nfds_t)count, milliseconds);
  for (int i = 0; i < count && found < most; i++) {
    if (fds[i].revents) {
      events[found] = descriptor_of(fds[i].fd)->event;
      events[found++].events = (uint32_t)fds[i].revents;
    }
  }
  return found;
}

WRAP(int, clock_gettime, clockid_t clock, struct timespec *time) {
  if (!is_running) {
    return __real_clock_gettime(clock, time);
  }
  world.now += 1e-6;
  time->tv_sec = (time_t)world.now;
  time->tv_nsec = (long)((world.now - (double)time->tv_sec) * 1e9);
  return 0;
}

WRAP(ssize_t, getrandom, void *to, size_t size, unsigned flags) {
  if (!is_running) {
    return __real_getrandom(to, size, flags);
  }
  memset(to, 0x5a, size);
  return (ssize_t)size;
}

WRAP(int, getifaddrs, struct ifaddrs **list) {
  if (!is_running) {
    return __real_getifaddrs(list);
  }
  *list = NULL;
  return 0;
}

int __wrap_ioctl(int fd, unsigned long request, ...);
int __wrap_ioctl(int fd, unsigned long request, ...) {
  (void)fd, (void)request;
  errno = ENOTTY; /* only asked for bytes that are not out yet */
  return -1;
}

int __wrap_sched_yield(void);
int __wrap_sched_yield(void) { return 0; } /* nobody else has to run */

int __real_pith__digest_equal(const uint8_t *a, const uint8_t *b);
int __wrap_pith__digest_equal(const uint8_t *a, const uint8_t *b);
int __wrap_pith__digest_equal(const uint8_t *a, const uint8_t *b) {
  return (is_running && world.trusts) || __real_pith__digest_equal(a, b);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that fail on purpose. The linker sends the library's system calls and allocations through the functions below
 * (--wrap, tests/CMakeLists.txt), where they are counted; one of them fails, or does less than it was asked for. The
 * library itself has no hook. No other file of the program may include this.
 */
#ifndef PITH_TESTS_INJECTION_H
#define PITH_TESTS_INJECTION_H

#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

/* ---- Which call fails, and how ----------------------------------------------------------------------------------- */

/* clang-format off */
#define INJECTED_CALLS(X)                                                                                         \
  X(socket) X(bind) X(listen) X(accept4) X(connect) X(shutdown) X(close) X(setsockopt) X(getsockopt)              \
  X(getsockname) X(getpeername) X(getifaddrs) X(getaddrinfo) X(recv) X(recvmsg) X(send) X(sendmsg) X(poll)        \
  X(ppoll) X(epoll_create1) X(epoll_ctl) X(epoll_wait) X(eventfd) X(read) X(write) X(open) X(readlink) X(fstat)   \
  X(fcntl) X(ioctl) X(memfd_create) X(ftruncate) X(fallocate) X(mmap) X(getrandom) X(syscall) X(pthread_create)   \
  X(allocation)
/* clang-format on */

#define INJECTED_KIND(name) INJECT_##name,
typedef enum injected_kind { INJECTED_CALLS(INJECTED_KIND) INJECTED_KINDS } injected_kind;

/* Beyond errno values: the call moves one byte, or a part. */
enum { INJECT_ONE_BYTE = -1, INJECT_PART = -2 };

typedef struct injection {
  injected_kind kind;
  long number; /* of the call that fails, from 0; INJECT_EACH: every second one while is_injecting_each */
  int fault;   /* an errno, or INJECT_… */
} injection;

enum { INJECT_EACH = -1, INJECT_NOTHING = -2 };

static injection injected = {.number = INJECT_NOTHING};
static atomic_int is_injecting, is_injecting_each;
static atomic_long injected_calls[INJECTED_KINDS];
static atomic_int injected_hits;

/* Counts a call; the fault that it must have, or 0. */
static int inject(injected_kind kind) {
  if (!atomic_load_explicit(&is_injecting, memory_order_relaxed)) {
    return 0;
  }
  long number = atomic_fetch_add(&injected_calls[kind], 1);
  int is_meant = injected.number == INJECT_EACH ? number % 2 == 0 && is_injecting_each : number == injected.number;
  if (kind != injected.kind || !is_meant) {
    return 0;
  }
  atomic_fetch_add(&injected_hits, 1);
  return injected.fault;
}

static int fails(injected_kind kind) {
  int fault = inject(kind);
  if (fault > 0) {
    errno = fault;
  }
  return fault > 0;
}

/* ---- The calls --------------------------------------------------------------------------------------------------- */

#define INJECT_WRAP(type, name, parameters) \
  type __real_##name parameters;            \
  type __wrap_##name parameters;            \
  type __wrap_##name parameters

#define INJECT_PLAIN(type, name, parameters, arguments, failure) \
  INJECT_WRAP(type, name, parameters) { return fails(INJECT_##name) ? (failure) : __real_##name arguments; }

INJECT_PLAIN(int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
INJECT_PLAIN(int, bind, (int fd, const struct sockaddr *at, socklen_t size), (fd, at, size), -1)
INJECT_PLAIN(int, listen, (int fd, int backlog), (fd, backlog), -1)
INJECT_PLAIN(int, accept4, (int fd, struct sockaddr *at, socklen_t *size, int flags), (fd, at, size, flags), -1)
INJECT_PLAIN(int, shutdown, (int fd, int how), (fd, how), -1)
INJECT_PLAIN(int, setsockopt, (int fd, int level, int name, const void *value, socklen_t size),
             (fd, level, name, value, size), -1)
INJECT_PLAIN(int, getsockopt, (int fd, int level, int name, void *value, socklen_t *size),
             (fd, level, name, value, size), -1)
INJECT_PLAIN(int, getsockname, (int fd, struct sockaddr *at, socklen_t *size), (fd, at, size), -1)
INJECT_PLAIN(int, getpeername, (int fd, struct sockaddr *at, socklen_t *size), (fd, at, size), -1)
INJECT_PLAIN(int, getifaddrs, (struct ifaddrs * *list), (list), -1)
INJECT_PLAIN(int, poll, (struct pollfd * fds, nfds_t count, int milliseconds), (fds, count, milliseconds), -1)
INJECT_PLAIN(int, ppoll, (struct pollfd * fds, nfds_t count, const struct timespec *time, const sigset_t *mask),
             (fds, count, time, mask), -1)
INJECT_PLAIN(int, epoll_create1, (int flags), (flags), -1)
INJECT_PLAIN(int, epoll_ctl, (int fd, int what, int of, struct epoll_event *event), (fd, what, of, event), -1)
INJECT_PLAIN(int, epoll_wait, (int fd, struct epoll_event *events, int most, int time), (fd, events, most, time), -1)
INJECT_PLAIN(int, eventfd, (unsigned value, int flags), (value, flags), -1)
INJECT_PLAIN(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), -1)
INJECT_PLAIN(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), -1)
INJECT_PLAIN(ssize_t, send, (int fd, const void *from, size_t size, int flags), (fd, from, size, flags), -1)
INJECT_PLAIN(ssize_t, readlink, (const char *path, char *to, size_t size), (path, to, size), -1)
INJECT_PLAIN(int, fstat, (int fd, struct stat *to), (fd, to), -1)
INJECT_PLAIN(int, memfd_create, (const char *name, unsigned flags), (name, flags), -1)
INJECT_PLAIN(int, ftruncate, (int fd, off_t size), (fd, size), -1)
INJECT_PLAIN(int, fallocate, (int fd, int mode, off_t from, off_t size), (fd, mode, from, size), -1)
INJECT_PLAIN(void *, mmap, (void *at, size_t size, int protection, int flags, int fd, off_t from),
             (at, size, protection, flags, fd, from), MAP_FAILED)
INJECT_PLAIN(ssize_t, getrandom, (void *to, size_t size, unsigned flags), (to, size, flags), -1)

/* The descriptor is gone whatever close says. */
INJECT_WRAP(int, close, (int fd)) {
  int result = __real_close(fd);
  return fails(INJECT_close) ? -1 : result;
}

static int type_of(int fd) {
  int type = 0;
  socklen_t size = sizeof type;
  return __real_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) == 0 ? type : -1;
}

/* An interrupted connect goes on in the background, but for Unix sockets, which have not begun. Datagrams only take a
 * note of the address: nothing can interrupt that. */
INJECT_WRAP(int, connect, (int fd, const struct sockaddr *to, socklen_t size)) {
  if (type_of(fd) == SOCK_DGRAM || !fails(INJECT_connect)) {
    return __real_connect(fd, to, size);
  }
  if (injected.fault == EINTR && to->sa_family != AF_UNIX) {
    __real_connect(fd, to, size);
    errno = EINTR;
  }
  return -1;
}

INJECT_WRAP(int, getaddrinfo,
            (const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **list)) {
  return fails(INJECT_getaddrinfo) ? EAI_AGAIN : __real_getaddrinfo(host, service, hints, list);
}

INJECT_WRAP(int, pthread_create,
            (pthread_t * thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)) {
  return fails(INJECT_pthread_create) ? injected.fault : __real_pthread_create(thread, attributes, run, argument);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...) { return fails(INJECT_open) ? -1 : __real_open(path, flags, 0600); }

/* All that the library passes on is one word. */
#define INJECT_WORD(name, number_type)                                  \
  int __real_##name(int fd, number_type number, ...);                   \
  int __wrap_##name(int fd, number_type number, ...);                   \
  int __wrap_##name(int fd, number_type number, ...) {                  \
    va_list arguments;                                                  \
    va_start(arguments, number);                                        \
    void *word = va_arg(arguments, void *);                             \
    va_end(arguments);                                                  \
    return fails(INJECT_##name) ? -1 : __real_##name(fd, number, word); \
  }
INJECT_WORD(fcntl, int)
INJECT_WORD(ioctl, unsigned long)

long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...) {
  va_list arguments;
  va_start(arguments, number);
  long a = va_arg(arguments, long), b = va_arg(arguments, long);
  va_end(arguments);
  return fails(INJECT_syscall) ? -1 : __real_syscall(number, a, b);
}

/* ---- Those that may do less: streams only, since a message of packets comes whole -------------------------------- */

static int is_stream(int fd) { return type_of(fd) == SOCK_STREAM; }

static size_t part_of(int fault, size_t size) {
  return fault == INJECT_ONE_BYTE || size < 3 ? 1 : 1 + (size_t)injected.number % (size - 1);
}

INJECT_WRAP(ssize_t, recv, (int fd, void *to, size_t size, int flags)) {
  int fault = inject(INJECT_recv);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  return __real_recv(fd, to, fault && size && is_stream(fd) ? part_of(fault, size) : size, flags);
}

/* The first `most` bytes of a message: into or from copies of its pieces. */
static size_t cut(const struct msghdr *message, int fault, struct iovec *pieces, size_t room, size_t *count) {
  size_t all = 0;
  *count = message->msg_iovlen < room ? message->msg_iovlen : room;
  for (size_t i = 0; i < *count; i++) {
    pieces[i] = message->msg_iov[i];
    all += pieces[i].iov_len;
  }
  size_t left = all ? part_of(fault, all) : 0;
  for (size_t i = 0; i < *count; i++) {
    pieces[i].iov_len = pieces[i].iov_len < left ? pieces[i].iov_len : left;
    left -= pieces[i].iov_len;
  }
  return all;
}

enum { INJECT_PIECES = 64 };

INJECT_WRAP(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags)) {
  int fault = inject(INJECT_recvmsg);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  struct iovec pieces[INJECT_PIECES];
  struct msghdr less = *message;
  if (!fault || !is_stream(fd) || !cut(message, fault, pieces, INJECT_PIECES, &less.msg_iovlen)) {
    return __real_recvmsg(fd, message, flags);
  }
  less.msg_iov = pieces;
  return __real_recvmsg(fd, &less, flags);
}

INJECT_WRAP(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags)) {
  int fault = inject(INJECT_sendmsg);
  if (fault > 0) {
    errno = fault;
    return -1;
  }
  struct iovec pieces[INJECT_PIECES];
  struct msghdr less = *message;
  if (!fault || !is_stream(fd) || !cut(message, fault, pieces, INJECT_PIECES, &less.msg_iovlen)) {
    return __real_sendmsg(fd, message, flags);
  }
  less.msg_iov = pieces;
  return __real_sendmsg(fd, &less, flags);
}

/* ---- Allocations ------------------------------------------------------------------------------------------------- */

#define INJECT_ALLOCATION(type, name, parameters, arguments) \
  INJECT_WRAP(type, name, parameters) { return fails(INJECT_allocation) ? NULL : __real_##name arguments; }

INJECT_ALLOCATION(void *, malloc, (size_t size), (size))
INJECT_ALLOCATION(void *, calloc, (size_t n, size_t size), (n, size))
INJECT_ALLOCATION(void *, realloc, (void *old, size_t size), (old, size))
INJECT_ALLOCATION(void *, aligned_alloc, (size_t alignment, size_t size), (alignment, size))
INJECT_ALLOCATION(char *, strdup, (const char *text), (text))

#endif

/*
 * The guest's side of the rendezvous, and what both sides share. A guest tries rank 0's addresses in turn, again and
 * again until the time is over: rank 0 may start later, and a name may come to the name server later. Who answers there
 * without rank 0's greeting is passed by.
 */
#include "transport/rendezvous.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rendezvous_wire.h"
#include "transport/sockets.h"

enum { ADDRESSES_MOST = 8, SIZE_MOST = 1 << 20, TABLE_MOST = 1 << 30 };

static const double greeting_seconds = 5; /* rank 0 greets at once; strangers do not */
static const double verdict_seconds = 2;  /* more for rank 0, whose time ends a little later, to say why it failed */
static const double first_pause = 0.005, longest_pause = 0.2;

/* ---- Shared with rank 0's side ----------------------------------------------------------------------------------- */

rendezvous_head pith__rendezvous_head(int rank) {
  rendezvous_head head = {.order = RENDEZVOUS_ORDER, .rank = (uint32_t)rank};
  memcpy(head.magic, RENDEZVOUS_MAGIC, sizeof head.magic);
  snprintf(head.version, sizeof head.version, "%s", pith_version());
  return head;
}

int pith__rendezvous_has_secret(const pith_rendezvous *r) { return r->secret && *r->secret; }

void pith__rendezvous_prove(const pith_rendezvous *r, const char *role, const uint8_t *challenge, const void *said,
                            size_t said_size, const void *body, size_t body_size, uint8_t proof[PITH_SHA256_SIZE]) {
  memset(proof, 0, PITH_SHA256_SIZE);
  if (!pith__rendezvous_has_secret(r)) {
    return;
  }
  pith_hmac mac;
  pith__hmac_init(&mac, r->secret, strlen(r->secret));
  pith__hmac_add(&mac, role, strlen(role) + 1);
  pith__hmac_add(&mac, challenge, RENDEZVOUS_NONCE);
  pith__hmac_add(&mac, said, said_size);
  pith__hmac_add(&mac, body, body_size);
  pith__hmac_finish(&mac, proof);
}

/* ---- A guest ----------------------------------------------------------------------------------------------------- */

typedef struct guest {
  const pith_rendezvous *r;
  const void *mine;
  size_t size;
  void *all;
  uint64_t *job;
  double deadline;
  char trouble[256]; /* why the last attempt was in vain */
} guest;

/* What became of an attempt: it may be worth another one, or the status is final. */
typedef struct outcome {
  int again;
  pith_status status;
} outcome;

static outcome final(pith_status status) { return (outcome){0, status}; }

__attribute__((format(printf, 2, 3))) static outcome again(guest *g, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(g->trouble, sizeof g->trouble, format, args);
  va_end(args);
  return (outcome){1, PITH_ERR_TIMEOUT};
}

static double sooner(double a, double b) { return a < b ? a : b; }

static int wait_for(int fd, short events, double deadline) {
  struct pollfd ready = {fd, events, 0};
  do {
    if (pith__poll_until(&ready, 1, deadline) > 0) {
      return 1;
    }
  } while (pith__now() < deadline);
  return 0;
}

/* All of the bytes; 0, or the errno, ETIMEDOUT if they did not come in time. */
static int read_all(int fd, void *buffer, size_t size, double deadline) {
  for (size_t done = 0; done < size;) {
    ssize_t got = pith__socket_read(fd, (char *)buffer + done, size - done);
    if (got < 0) {
      return errno ? errno : ECONNRESET;
    }
    done += (size_t)got;
    if (got == 0 && !wait_for(fd, POLLIN, deadline)) {
      return ETIMEDOUT;
    }
  }
  return 0;
}

static int write_all(int fd, const struct iovec *pieces, int count, size_t size, double deadline) {
  for (size_t done = 0; done < size;) {
    struct iovec rest[2];
    ssize_t taken = pith__socket_write(fd, rest, pith__pieces_slice(pieces, count, done, size, rest, 2));
    if (taken < 0) {
      return errno;
    }
    done += (size_t)taken;
    if (taken == 0 && !wait_for(fd, POLLOUT, deadline)) {
      return ETIMEDOUT;
    }
  }
  return 0;
}

static int open_connection(const pith_sockaddr *to, double deadline, int *fd) {
  *fd = pith__socket_connect(to);
  if (*fd < 0) {
    return errno;
  }
  return wait_for(*fd, POLLOUT, deadline) ? pith__socket_connect_result(*fd) : ETIMEDOUT;
}

static rendezvous_hello make_hello(const guest *g, const rendezvous_greeting *greeting, const uint8_t *nonce) {
  rendezvous_hello hello = {.head = pith__rendezvous_head(g->r->rank),
                            .ranks = (uint32_t)g->r->ranks,
                            .has_secret = (uint32_t)pith__rendezvous_has_secret(g->r),
                            .size = g->size};
  pith_sha256 hash;
  pith__sha256_init(&hash);
  pith__sha256_add(&hash, g->mine, g->size);
  pith__sha256_finish(&hash, hello.digest);
  memcpy(hello.nonce, nonce, sizeof hello.nonce);
  pith__rendezvous_prove(g->r, RENDEZVOUS_ROLE_HELLO, greeting->nonce, &hello, offsetof(rendezvous_hello, proof), NULL,
                         0, hello.proof);
  return hello;
}

/* Ranks of other builds would disagree about bytes later; rank 0 says the same to the others. */
static pith_status check_head(const guest *g, const rendezvous_head *head) {
  PITH_REQUIRE(head->order == RENDEZVOUS_ORDER, PITH_ERR_MISMATCH, "rank 0 has another byte order than rank %d",
               g->r->rank);
  PITH_REQUIRE(strncmp(head->version, pith_version(), sizeof head->version) == 0, PITH_ERR_MISMATCH,
               "rank 0 runs Pith %.16s, rank %d runs %s", head->version, g->r->rank, pith_version());
  return PITH_OK;
}

/* Sizes first, before memory is taken for them. */
static int is_reply_plausible(const guest *g, const rendezvous_reply *reply) {
  int is_table = reply->status == PITH_OK;
  return memcmp(reply->head.magic, RENDEZVOUS_MAGIC, sizeof reply->head.magic) == 0 &&
         (is_table ? reply->size == g->size * (size_t)g->r->ranks : reply->size <= RENDEZVOUS_TEXT);
}

static pith_status take_reply(guest *g, const rendezvous_reply *reply, const uint8_t *nonce, const char *body) {
  uint8_t proof[PITH_SHA256_SIZE];
  pith__rendezvous_prove(g->r, RENDEZVOUS_ROLE_REPLY, nonce, reply, offsetof(rendezvous_reply, proof), body,
                         reply->size, proof);
  PITH_REQUIRE(pith__digest_equal(proof, reply->proof), PITH_ERR_MISMATCH,
               "who answers at %s:%u does not have the secret of rank %d: PITH_SECRET must be the same on all ranks",
               g->r->host, g->r->port, g->r->rank);
  if (reply->status != PITH_OK) {
    int is_known = reply->status == PITH_ERR_TIMEOUT || reply->status == PITH_ERR_MISMATCH;
    return pith_fail(is_known ? (pith_status)reply->status : PITH_ERR_PEER, "%.*s", RENDEZVOUS_TEXT,
                     body[0] ? body : "rank 0 gave up and did not say why");
  }
  memcpy(g->all, body, reply->size);
  *g->job = reply->job;
  return PITH_OK;
}

static outcome await_reply(guest *g, int fd, const uint8_t *nonce) {
  rendezvous_reply reply;
  double deadline = g->deadline + verdict_seconds;
  int error = read_all(fd, &reply, sizeof reply, deadline);
  if (error == ETIMEDOUT) {
    return final(pith_fail(PITH_ERR_TIMEOUT, "rank 0 is at %s:%u, but the ranks were not complete within %g s",
                           g->r->host, g->r->port, g->r->timeout));
  }
  if (error || !is_reply_plausible(g, &reply)) {
    return again(g, "rank 0 broke off: %s", error ? strerror(error) : "malformed reply");
  }
  char *body = malloc(reply.size + 1);
  if (!body) {
    return final(pith_fail(PITH_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)reply.size));
  }
  body[reply.size] = 0;
  error = read_all(fd, body, reply.size, deadline);
  outcome result =
      error ? again(g, "rank 0 broke off: %s", strerror(error)) : final(take_reply(g, &reply, nonce, body));
  free(body);
  return result;
}

static outcome talk(guest *g, int fd) {
  rendezvous_greeting greeting;
  uint8_t nonce[RENDEZVOUS_NONCE];
  if (pith__random_bytes(nonce, sizeof nonce) != PITH_OK) {
    return final(PITH_ERR_SYSTEM);
  }
  int error = read_all(fd, &greeting, sizeof greeting, sooner(g->deadline, pith__now() + greeting_seconds));
  if (error || memcmp(greeting.head.magic, RENDEZVOUS_MAGIC, sizeof greeting.head.magic) != 0) {
    return again(g, "who listens there is not rank 0 of a Pith job%s%s", error ? ": " : "",
                 error ? strerror(error) : "");
  }
  rendezvous_hello hello = make_hello(g, &greeting, nonce);
  struct iovec pieces[2] = {{&hello, sizeof hello}, {(void *)g->mine, g->size}};
  error = write_all(fd, pieces, 2, sizeof hello + g->size, g->deadline);
  pith_status status = check_head(g, &greeting.head); /* only now: rank 0 wants to know, too */
  if (status != PITH_OK) {
    return final(status);
  }
  return error ? again(g, "rank 0 broke off: %s", strerror(error)) : await_reply(g, fd, nonce);
}

static outcome try_address(guest *g, const pith_sockaddr *to) {
  char text[PITH_SOCKADDR_TEXT];
  int fd = -1, error = open_connection(to, sooner(g->deadline, pith__now() + greeting_seconds), &fd);
  outcome result = error ? again(g, "%s: %s", pith__sockaddr_text(to, text), strerror(error)) : talk(g, fd);
  if (fd >= 0) {
    pith__fd_close(fd);
  }
  return result;
}

static outcome try_all(guest *g) {
  pith_sockaddr addresses[ADDRESSES_MOST];
  const char *why = NULL;
  int count = pith__sockaddr_resolve(g->r->host, g->r->port, addresses, ADDRESSES_MOST, &why);
  outcome result = again(g, "%s", why ? why : "");
  for (int i = 0; i < count && result.again; i++) {
    result = try_address(g, &addresses[i]);
  }
  return result;
}

static pith_status visit(guest *g) {
  for (double pause = first_pause;; pause = sooner(2 * pause, longest_pause)) {
    outcome result = try_all(g);
    if (!result.again) {
      return result.status;
    }
    PITH_LOG_TRACE("rank %d: rank 0 is not at %s:%u yet: %s", g->r->rank, g->r->host, g->r->port, g->trouble);
    if (pith__now() + pause >= g->deadline) {
      return pith_fail(PITH_ERR_TIMEOUT, "rank %d did not find rank 0 at %s:%u within %g s (%s)", g->r->rank,
                       g->r->host, g->r->port, g->r->timeout, g->trouble);
    }
    poll(NULL, 0, (int)(pause * 1000));
  }
}

/* ---- Both -------------------------------------------------------------------------------------------------------- */

static pith_status check_arguments(const pith_rendezvous *r, const void *mine, size_t size, const void *all) {
  PITH_REQUIRE(r->ranks >= 1 && r->rank >= 0 && r->rank < r->ranks, PITH_ERR_ARGUMENT, "no rank %d among %d ranks",
               r->rank, r->ranks);
  PITH_REQUIRE(size <= SIZE_MOST && (size == 0 || size <= (size_t)(TABLE_MOST / r->ranks)), PITH_ERR_ARGUMENT,
               "%zu bytes of each of %d ranks are too many for a rendezvous", size, r->ranks);
  PITH_REQUIRE(size == 0 || (mine && all), PITH_ERR_ARGUMENT, "no bytes to exchange");
  PITH_REQUIRE(r->ranks == 1 || (r->host && *r->host && r->port), PITH_ERR_ARGUMENT,
               "%d ranks need a host and a port to meet at (MASTER_ADDR, MASTER_PORT)", r->ranks);
  return PITH_OK;
}

static pith_status stay_alone(const void *mine, size_t size, void *all, uint64_t *job) {
  PITH_TRY(pith__random_bytes(job, sizeof *job));
  if (size) {
    memcpy(all, mine, size);
  }
  return PITH_OK;
}

pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, void *all,
                                      uint64_t *job) {
  PITH_TRY(check_arguments(r, mine, size, all));
  if (r->ranks == 1) {
    return stay_alone(mine, size, all, job);
  }
  if (r->rank == 0) {
    return pith__rendezvous_host(r, mine, size, all, job);
  }
  guest g = {.r = r, .mine = mine, .size = size, .all = all, .job = job, .deadline = pith__now() + r->timeout};
  return visit(&g);
}

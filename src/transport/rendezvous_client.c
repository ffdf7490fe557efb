/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's side of the rendezvous. A client tries rank 0's addresses in turn, again and again until its time-out:
 * rank 0 may start later, and the name server may learn its name later. A client passes over any listener that does not
 * send rank 0's greeting.
 */
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

enum { ADDRESSES_MOST = 8 };

static const double greeting_seconds = 5; /* rank 0 greets at once; strangers do not */
static const double error_seconds = 2;    /* more for rank 0, whose time ends a little later, to say why it failed */
static const double slowest_rate = 1e6;   /* bytes a second at which rank 0 should serve all ranks, one after another */
static const double first_pause = 0.005, longest_pause = 0.2;

typedef struct client {
  const pith_rendezvous *r;
  const void *mine;
  size_t size;
  pith_records *all;
  uint64_t *job;
  double deadline;
  char last_error[256]; /* why the last attempt failed */
} client;

/* The result of an attempt: try again, or the status is final. */
typedef struct outcome {
  int again;
  pith_status status;
} outcome;

static outcome final(pith_status status) { return (outcome){0, status}; }

__attribute__((format(printf, 2, 3))) static outcome again(client *c, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(c->last_error, sizeof c->last_error, format, args);
  va_end(args);
  return (outcome){1, PITH_ERR_TIMEOUT};
}

static double sooner(double a, double b) { return a < b ? a : b; }

/* 0, ETIMEDOUT, or EINTR if the caller was interrupted. */
static int wait_for(const client *c, int fd, short events, double deadline) {
  struct pollfd ready = {fd, events, 0};
  for (;;) {
    double slice = pith__now() + PITH_INTERRUPT_SECONDS;
    if (pith__poll_until(&ready, 1,
                         pith__interrupt_is_possible(&c->r->interrupt) ? sooner(slice, deadline) : deadline) > 0) {
      return 0;
    }
    if (pith__interrupt_ask(&c->r->interrupt)) {
      return EINTR;
    }
    if (pith__now() >= deadline) {
      return ETIMEDOUT;
    }
  }
}

/* Reads all of the bytes. Returns 0 or an errno, ETIMEDOUT if they did not come in time. Every read that brings bytes
 * moves the deadline to at least `patience` seconds from then. */
static int read_all(const client *c, int fd, void *buffer, size_t size, double deadline, double patience) {
  for (size_t done = 0; done < size;) {
    ssize_t got = pith__socket_read(fd, (char *)buffer + done, size - done);
    if (got < 0) {
      return errno ? errno : ECONNRESET;
    }
    done += (size_t)got;
    deadline = got > 0 && pith__now() + patience > deadline ? pith__now() + patience : deadline;
    int error = got == 0 ? wait_for(c, fd, POLLIN, deadline) : 0;
    if (error) {
      return error;
    }
  }
  return 0;
}

static int write_all(const client *c, int fd, const struct iovec *pieces, int count, size_t size, double deadline) {
  for (size_t done = 0; done < size;) {
    struct iovec rest[2];
    ssize_t taken = pith__socket_write(fd, rest, pith__pieces_slice(pieces, count, done, size, rest, 2));
    if (taken < 0) {
      return errno;
    }
    done += (size_t)taken;
    int error = taken == 0 ? wait_for(c, fd, POLLOUT, deadline) : 0;
    if (error) {
      return error;
    }
  }
  return 0;
}

static int open_connection(const client *c, const pith_sockaddr *to, double deadline, int *fd) {
  *fd = pith__socket_connect(to);
  if (*fd < 0) {
    return errno;
  }
  int error = wait_for(c, *fd, POLLOUT, deadline);
  return error ? error : pith__socket_connect_result(*fd);
}

static rendezvous_hello make_hello(const client *c, const rendezvous_greeting *greeting, const uint8_t *nonce) {
  rendezvous_hello hello = {.head = pith__rendezvous_head(c->r->rank),
                            .ranks = (uint32_t)c->r->ranks,
                            .has_secret = (uint32_t)pith__rendezvous_has_secret(c->r),
                            .size = c->size};
  pith__rendezvous_digest(c->mine, c->size, hello.digest);
  memcpy(hello.nonce, nonce, sizeof hello.nonce);
  pith__rendezvous_prove(c->r, RENDEZVOUS_ROLE_HELLO, greeting->nonce, &hello, offsetof(rendezvous_hello, proof),
                         hello.proof);
  return hello;
}

/* Ranks of other builds would disagree about bytes later; rank 0 says the same to the others. */
static pith_status check_head(const client *c, const rendezvous_head *head) {
  PITH_REQUIRE(head->order == RENDEZVOUS_ORDER, PITH_ERR_MISMATCH, "rank 0 has another byte order than rank %d",
               c->r->rank);
  PITH_REQUIRE(strncmp(head->version, pith_version(), sizeof head->version) == 0, PITH_ERR_MISMATCH,
               "rank 0 runs Pith %.16s, rank %d runs %s", head->version, c->r->rank, pith_version());
  return PITH_OK;
}

/* Sizes are checked before memory is allocated for them. */
static int is_reply_plausible(const client *c, const rendezvous_reply *reply) {
  int is_table = reply->status == PITH_OK;
  return memcmp(reply->head.magic, RENDEZVOUS_MAGIC, sizeof reply->head.magic) == 0 &&
         reply->size <= (is_table ? pith__table_most(c->r->ranks) : RENDEZVOUS_TEXT);
}

static pith_status check_reply(const client *c, const rendezvous_reply *reply, const uint8_t *nonce) {
  uint8_t proof[PITH_SHA256_SIZE];
  pith__rendezvous_prove(c->r, RENDEZVOUS_ROLE_REPLY, nonce, reply, offsetof(rendezvous_reply, proof), proof);
  PITH_REQUIRE(pith__digest_equal(proof, reply->proof), PITH_ERR_MISMATCH,
               "who answers at %s:%u does not have the secret of rank %d: PITH_SECRET must be the same on all ranks",
               c->r->host, c->r->port, c->r->rank);
  return PITH_OK;
}

static outcome take_body(client *c, const rendezvous_reply *reply, const uint8_t *body) {
  uint8_t digest[PITH_SHA256_SIZE];
  pith__rendezvous_digest(body, reply->size, digest);
  if (!pith__digest_equal(digest, reply->digest)) {
    return again(c, "rank 0's reply was damaged");
  }
  if (reply->status != PITH_OK) {
    int is_known =
        reply->status == PITH_ERR_TIMEOUT || reply->status == PITH_ERR_MISMATCH || reply->status == PITH_ERR_SYSTEM;
    return final(pith_fail(is_known ? (pith_status)reply->status : PITH_ERR_PEER, "%.*s", RENDEZVOUS_TEXT,
                           reply->size > 0 ? (const char *)body : "rank 0 gave up and did not say why"));
  }
  pith_status status = pith__table_read(body, reply->size, c->r->ranks, c->all);
  *c->job = status == PITH_OK ? reply->job : *c->job;
  return status == PITH_OK || status == PITH_ERR_MEMORY ? final(status) : again(c, "malformed reply: %s", pith_error());
}

static outcome broke_off(client *c, int error) {
  return error == EINTR ? final(pith__rendezvous_interrupted(c->r)) : again(c, "rank 0 broke off: %s", strerror(error));
}

/* All ranks have come, and rank 0 serves one after another: the turn of this one may be the last. Once bytes come, they
 * must go on coming. A client waits no longer than that for a rank 0 that lives and is silent; it notices at once when
 * rank 0 or its host ends. */
static outcome await_body(client *c, int fd, const rendezvous_reply *reply) {
  double turn = (double)reply->size * c->r->ranks / slowest_rate;
  uint8_t *body = malloc(reply->size + 1);
  if (!body) {
    return final(pith_fail(PITH_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)reply->size));
  }
  body[reply->size] = 0;
  int error = read_all(c, fd, body, reply->size, pith__now() + c->r->timeout + turn, c->r->timeout);
  outcome result =
      error == ETIMEDOUT
          ? final(pith_fail(PITH_ERR_TIMEOUT, "rank 0 at %s:%u stopped sending the addresses of all ranks for %g s",
                            c->r->host, c->r->port, c->r->timeout))
      : error ? broke_off(c, error)
              : take_body(c, reply, body);
  free(body);
  return result;
}

static outcome await_reply(client *c, int fd, const uint8_t *nonce) {
  rendezvous_reply reply;
  int error = read_all(c, fd, &reply, sizeof reply, c->deadline + error_seconds, 0);
  if (error == ETIMEDOUT) {
    return final(pith_fail(PITH_ERR_TIMEOUT, "rank 0 is at %s:%u, but the ranks were not complete within %g s",
                           c->r->host, c->r->port, c->r->timeout));
  }
  if (error) {
    return broke_off(c, error);
  }
  if (!is_reply_plausible(c, &reply)) {
    return again(c, "rank 0 broke off: malformed reply");
  }
  pith_status status = check_reply(c, &reply, nonce);
  return status == PITH_OK ? await_body(c, fd, &reply) : final(status);
}

static outcome handshake(client *c, int fd) {
  rendezvous_greeting greeting;
  uint8_t nonce[RENDEZVOUS_NONCE];
  if (pith__random_bytes(nonce, sizeof nonce) != PITH_OK) {
    return final(PITH_ERR_SYSTEM);
  }
  int error = read_all(c, fd, &greeting, sizeof greeting, sooner(c->deadline, pith__now() + greeting_seconds), 0);
  if (error == EINTR) {
    return broke_off(c, error);
  }
  if (error || memcmp(greeting.head.magic, RENDEZVOUS_MAGIC, sizeof greeting.head.magic) != 0) {
    return again(c, "who listens there is not rank 0 of a Pith job%s%s", error ? ": " : "",
                 error ? strerror(error) : "");
  }
  rendezvous_hello hello = make_hello(c, &greeting, nonce);
  struct iovec pieces[2] = {{&hello, sizeof hello}, {(void *)c->mine, c->size}};
  error = write_all(c, fd, pieces, 2, sizeof hello + c->size, c->deadline);
  pith_status status = check_head(c, &greeting.head); /* only now: rank 0 must learn of the difference, too */
  if (status != PITH_OK) {
    return final(status);
  }
  return error ? broke_off(c, error) : await_reply(c, fd, nonce);
}

static outcome try_address(client *c, const pith_sockaddr *to) {
  char text[PITH_SOCKADDR_TEXT];
  int fd = -1, error = open_connection(c, to, sooner(c->deadline, pith__now() + greeting_seconds), &fd);
  if (!error) {
    pith__socket_tune(fd, RENDEZVOUS_LIVENESS);
  }
  outcome result = error == EINTR ? broke_off(c, error)
                   : error        ? again(c, "%s: %s", pith__sockaddr_text(to, text), strerror(error))
                                  : handshake(c, fd);
  if (fd >= 0) {
    pith__fd_close(fd);
  }
  return result;
}

static outcome try_all(client *c) {
  pith_sockaddr addresses[ADDRESSES_MOST];
  const char *why = NULL;
  int count = pith__sockaddr_resolve(c->r->host, c->r->port, addresses, ADDRESSES_MOST, &why);
  outcome result = again(c, "%s", why ? why : "");
  for (int i = 0; i < count && result.again; i++) {
    result = try_address(c, &addresses[i]);
  }
  return result;
}

static pith_status try_until_deadline(client *c) {
  for (double pause = first_pause;; pause = sooner(2 * pause, longest_pause)) {
    outcome result = try_all(c);
    if (!result.again) {
      return result.status;
    }
    if (pith__interrupt_ask(&c->r->interrupt)) {
      return pith__rendezvous_interrupted(c->r);
    }
    PITH_LOG_TRACE("rank %d: rank 0 is not at %s:%u yet: %s", c->r->rank, c->r->host, c->r->port, c->last_error);
    if (pith__now() + pause >= c->deadline) {
      return pith_fail(PITH_ERR_TIMEOUT, "rank %d did not find rank 0 at %s:%u within %g s (%s)", c->r->rank,
                       c->r->host, c->r->port, c->r->timeout, c->last_error);
    }
    poll(NULL, 0, (int)(pause * 1000));
  }
}

pith_status pith__rendezvous_join(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                  uint64_t *job) {
  client c = {.r = r, .mine = mine, .size = size, .all = all, .job = job, .deadline = pith__now() + r->timeout};
  return try_until_deadline(&c);
}

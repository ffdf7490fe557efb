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

enum { ADDRESSES_MOST = 8 };

static const double greeting_seconds = 5; /* rank 0 greets at once; strangers do not */
static const double verdict_seconds = 2;  /* more for rank 0, whose time ends a little later, to say why it failed */
static const double slowest_rate = 1e6;   /* bytes a second at which rank 0 should serve all ranks, one after another */
static const double first_pause = 0.005, longest_pause = 0.2;

/* ---- Shared with rank 0's side ----------------------------------------------------------------------------------- */

rendezvous_head pith__rendezvous_head(int rank) {
  rendezvous_head head = {.order = RENDEZVOUS_ORDER, .rank = (uint32_t)rank};
  memcpy(head.magic, RENDEZVOUS_MAGIC, sizeof head.magic);
  snprintf(head.version, sizeof head.version, "%s", pith_version());
  return head;
}

int pith__rendezvous_has_secret(const pith_rendezvous *r) { return r->secret && *r->secret; }

pith_status pith__rendezvous_interrupted(const pith_rendezvous *r) {
  return pith_fail(PITH_ERR_INTERRUPTED, "rank %d was interrupted while it waited for the other ranks", r->rank);
}

void pith__rendezvous_prove(const pith_rendezvous *r, const char *role, const uint8_t *challenge, const void *said,
                            size_t size, uint8_t proof[PITH_SHA256_SIZE]) {
  memset(proof, 0, PITH_SHA256_SIZE);
  if (!pith__rendezvous_has_secret(r)) {
    return;
  }
  pith_hmac mac;
  pith__hmac_init(&mac, r->secret, strlen(r->secret));
  pith__hmac_add(&mac, role, strlen(role) + 1);
  pith__hmac_add(&mac, challenge, RENDEZVOUS_NONCE);
  pith__hmac_add(&mac, said, size);
  pith__hmac_finish(&mac, proof);
}

void pith__rendezvous_digest(const void *bytes, size_t size, uint8_t digest[PITH_SHA256_SIZE]) {
  pith_sha256 hash;
  pith__sha256_init(&hash);
  pith__sha256_add(&hash, bytes, size);
  pith__sha256_finish(&hash, digest);
}

/* ---- The table: the size of each record, then the records -------------------------------------------------------- */

size_t pith__table_most(int ranks) { return (size_t)ranks * (sizeof(uint32_t) + PITH_RECORD_MOST); }

/* Where records begin and end, if their sizes are possible and add up to what is there. */
static pith_status read_sizes(const uint8_t *table, size_t size, int ranks, uint32_t *at) {
  size_t head = (size_t)ranks * sizeof(uint32_t);
  at[0] = 0;
  for (int p = 0; p < ranks; p++) {
    uint32_t record;
    memcpy(&record, table + (size_t)p * sizeof record, sizeof record);
    PITH_REQUIRE(record <= PITH_RECORD_MOST, PITH_ERR_CORRUPT,
                 "the table says that rank %d brought %u bytes, more than %d", p, record, PITH_RECORD_MOST);
    at[p + 1] = at[p] + record;
  }
  PITH_REQUIRE(at[ranks] == size - head, PITH_ERR_CORRUPT, "the table has %zu bytes of records and speaks of %u",
               size - head, at[ranks]);
  return PITH_OK;
}

pith_status pith__table_read(const uint8_t *table, size_t size, int ranks, pith_records *records) {
  size_t head = (size_t)ranks * sizeof(uint32_t);
  PITH_REQUIRE(size >= head && size <= pith__table_most(ranks), PITH_ERR_CORRUPT, "no table of %d ranks has %zu bytes",
               ranks, size);
  pith_records made = {.at = malloc(((size_t)ranks + 1) * sizeof *made.at), .bytes = malloc(size - head + 1)};
  pith_status status = made.at && made.bytes
                           ? read_sizes(table, size, ranks, made.at)
                           : pith_fail(PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", ranks);
  if (status != PITH_OK) {
    pith__records_free(&made);
    return status;
  }
  memcpy(made.bytes, table + head, size - head);
  *records = made;
  return PITH_OK;
}

void pith__records_free(pith_records *records) {
  free(records->at);
  free(records->bytes);
  *records = (pith_records){NULL, NULL};
}

/* ---- A guest ----------------------------------------------------------------------------------------------------- */

typedef struct guest {
  const pith_rendezvous *r;
  const void *mine;
  size_t size;
  pith_records *all;
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

/* 0, ETIMEDOUT, or EINTR if the caller does not want to go on. */
static int wait_for(const guest *g, int fd, short events, double deadline) {
  struct pollfd ready = {fd, events, 0};
  for (;;) {
    double slice = pith__now() + PITH_INTERRUPT_SECONDS;
    if (pith__poll_until(&ready, 1,
                         pith__interrupt_is_possible(&g->r->interrupt) ? sooner(slice, deadline) : deadline) > 0) {
      return 0;
    }
    if (pith__interrupt_ask(&g->r->interrupt)) {
      return EINTR;
    }
    if (pith__now() >= deadline) {
      return ETIMEDOUT;
    }
  }
}

/* All of the bytes; 0, or the errno, ETIMEDOUT if they did not come in time. Every byte that comes puts the deadline
 * off: `patience` seconds from then. */
static int read_all(const guest *g, int fd, void *buffer, size_t size, double deadline, double patience) {
  for (size_t done = 0; done < size;) {
    ssize_t got = pith__socket_read(fd, (char *)buffer + done, size - done);
    if (got < 0) {
      return errno ? errno : ECONNRESET;
    }
    done += (size_t)got;
    deadline = got > 0 && pith__now() + patience > deadline ? pith__now() + patience : deadline;
    int error = got == 0 ? wait_for(g, fd, POLLIN, deadline) : 0;
    if (error) {
      return error;
    }
  }
  return 0;
}

static int write_all(const guest *g, int fd, const struct iovec *pieces, int count, size_t size, double deadline) {
  for (size_t done = 0; done < size;) {
    struct iovec rest[2];
    ssize_t taken = pith__socket_write(fd, rest, pith__pieces_slice(pieces, count, done, size, rest, 2));
    if (taken < 0) {
      return errno;
    }
    done += (size_t)taken;
    int error = taken == 0 ? wait_for(g, fd, POLLOUT, deadline) : 0;
    if (error) {
      return error;
    }
  }
  return 0;
}

static int open_connection(const guest *g, const pith_sockaddr *to, double deadline, int *fd) {
  *fd = pith__socket_connect(to);
  if (*fd < 0) {
    return errno;
  }
  int error = wait_for(g, *fd, POLLOUT, deadline);
  return error ? error : pith__socket_connect_result(*fd);
}

static rendezvous_hello make_hello(const guest *g, const rendezvous_greeting *greeting, const uint8_t *nonce) {
  rendezvous_hello hello = {.head = pith__rendezvous_head(g->r->rank),
                            .ranks = (uint32_t)g->r->ranks,
                            .has_secret = (uint32_t)pith__rendezvous_has_secret(g->r),
                            .size = g->size};
  pith__rendezvous_digest(g->mine, g->size, hello.digest);
  memcpy(hello.nonce, nonce, sizeof hello.nonce);
  pith__rendezvous_prove(g->r, RENDEZVOUS_ROLE_HELLO, greeting->nonce, &hello, offsetof(rendezvous_hello, proof),
                         hello.proof);
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
         reply->size <= (is_table ? pith__table_most(g->r->ranks) : RENDEZVOUS_TEXT);
}

static pith_status check_reply(const guest *g, const rendezvous_reply *reply, const uint8_t *nonce) {
  uint8_t proof[PITH_SHA256_SIZE];
  pith__rendezvous_prove(g->r, RENDEZVOUS_ROLE_REPLY, nonce, reply, offsetof(rendezvous_reply, proof), proof);
  PITH_REQUIRE(pith__digest_equal(proof, reply->proof), PITH_ERR_MISMATCH,
               "who answers at %s:%u does not have the secret of rank %d: PITH_SECRET must be the same on all ranks",
               g->r->host, g->r->port, g->r->rank);
  return PITH_OK;
}

static outcome take_body(guest *g, const rendezvous_reply *reply, const uint8_t *body) {
  uint8_t digest[PITH_SHA256_SIZE];
  pith__rendezvous_digest(body, reply->size, digest);
  if (!pith__digest_equal(digest, reply->digest)) {
    return again(g, "rank 0's reply was damaged");
  }
  if (reply->status != PITH_OK) {
    int is_known =
        reply->status == PITH_ERR_TIMEOUT || reply->status == PITH_ERR_MISMATCH || reply->status == PITH_ERR_SYSTEM;
    return final(pith_fail(is_known ? (pith_status)reply->status : PITH_ERR_PEER, "%.*s", RENDEZVOUS_TEXT,
                           reply->size > 0 ? (const char *)body : "rank 0 gave up and did not say why"));
  }
  pith_status status = pith__table_read(body, reply->size, g->r->ranks, g->all);
  *g->job = status == PITH_OK ? reply->job : *g->job;
  return status == PITH_OK || status == PITH_ERR_MEMORY ? final(status) : again(g, "malformed reply: %s", pith_error());
}

static outcome broke_off(guest *g, int error) {
  return error == EINTR ? final(pith__rendezvous_interrupted(g->r)) : again(g, "rank 0 broke off: %s", strerror(error));
}

/* The ranks are complete, and rank 0 serves one after another: the turn of this one may come last. Once bytes come,
 * they must go on coming. Who lives but says nothing is waited for no longer than that; the end of rank 0, or of its
 * host, is noticed at once. */
static outcome await_body(guest *g, int fd, const rendezvous_reply *reply) {
  double turn = (double)reply->size * g->r->ranks / slowest_rate;
  uint8_t *body = malloc(reply->size + 1);
  if (!body) {
    return final(pith_fail(PITH_ERR_MEMORY, "no memory for %llu bytes", (unsigned long long)reply->size));
  }
  body[reply->size] = 0;
  int error = read_all(g, fd, body, reply->size, pith__now() + g->r->timeout + turn, g->r->timeout);
  outcome result =
      error == ETIMEDOUT
          ? final(pith_fail(PITH_ERR_TIMEOUT, "rank 0 at %s:%u stopped sending the addresses of all ranks for %g s",
                            g->r->host, g->r->port, g->r->timeout))
      : error ? broke_off(g, error)
              : take_body(g, reply, body);
  free(body);
  return result;
}

static outcome await_reply(guest *g, int fd, const uint8_t *nonce) {
  rendezvous_reply reply;
  int error = read_all(g, fd, &reply, sizeof reply, g->deadline + verdict_seconds, 0);
  if (error == ETIMEDOUT) {
    return final(pith_fail(PITH_ERR_TIMEOUT, "rank 0 is at %s:%u, but the ranks were not complete within %g s",
                           g->r->host, g->r->port, g->r->timeout));
  }
  if (error) {
    return broke_off(g, error);
  }
  if (!is_reply_plausible(g, &reply)) {
    return again(g, "rank 0 broke off: malformed reply");
  }
  pith_status status = check_reply(g, &reply, nonce);
  return status == PITH_OK ? await_body(g, fd, &reply) : final(status);
}

static outcome talk(guest *g, int fd) {
  rendezvous_greeting greeting;
  uint8_t nonce[RENDEZVOUS_NONCE];
  if (pith__random_bytes(nonce, sizeof nonce) != PITH_OK) {
    return final(PITH_ERR_SYSTEM);
  }
  int error = read_all(g, fd, &greeting, sizeof greeting, sooner(g->deadline, pith__now() + greeting_seconds), 0);
  if (error == EINTR) {
    return broke_off(g, error);
  }
  if (error || memcmp(greeting.head.magic, RENDEZVOUS_MAGIC, sizeof greeting.head.magic) != 0) {
    return again(g, "who listens there is not rank 0 of a Pith job%s%s", error ? ": " : "",
                 error ? strerror(error) : "");
  }
  rendezvous_hello hello = make_hello(g, &greeting, nonce);
  struct iovec pieces[2] = {{&hello, sizeof hello}, {(void *)g->mine, g->size}};
  error = write_all(g, fd, pieces, 2, sizeof hello + g->size, g->deadline);
  pith_status status = check_head(g, &greeting.head); /* only now: rank 0 wants to know, too */
  if (status != PITH_OK) {
    return final(status);
  }
  return error ? broke_off(g, error) : await_reply(g, fd, nonce);
}

static outcome try_address(guest *g, const pith_sockaddr *to) {
  char text[PITH_SOCKADDR_TEXT];
  int fd = -1, error = open_connection(g, to, sooner(g->deadline, pith__now() + greeting_seconds), &fd);
  if (!error) {
    pith__socket_tune(fd, RENDEZVOUS_LIVENESS);
  }
  outcome result = error == EINTR ? broke_off(g, error)
                   : error        ? again(g, "%s: %s", pith__sockaddr_text(to, text), strerror(error))
                                  : talk(g, fd);
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
    if (pith__interrupt_ask(&g->r->interrupt)) {
      return pith__rendezvous_interrupted(g->r);
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

static pith_status check_arguments(const pith_rendezvous *r, const void *mine, size_t size) {
  PITH_REQUIRE(r->ranks >= 1 && r->rank >= 0 && r->rank < r->ranks, PITH_ERR_ARGUMENT, "no rank %d among %d ranks",
               r->rank, r->ranks);
  PITH_REQUIRE(r->ranks <= RENDEZVOUS_RANKS_MOST, PITH_ERR_ARGUMENT, "%d ranks are too many for a rendezvous",
               r->ranks);
  PITH_REQUIRE(size <= PITH_RECORD_MOST, PITH_ERR_ARGUMENT, "%zu bytes are too many for a rendezvous, which takes %d",
               size, PITH_RECORD_MOST);
  PITH_REQUIRE(size == 0 || mine, PITH_ERR_ARGUMENT, "no bytes to exchange");
  PITH_REQUIRE(r->ranks == 1 || (r->host && *r->host && r->port), PITH_ERR_ARGUMENT,
               "%d ranks need a host and a port to meet at (MASTER_ADDR, MASTER_PORT)", r->ranks);
  return PITH_OK;
}

static pith_status stay_alone(const void *mine, size_t size, pith_records *all, uint64_t *job) {
  uint8_t table[sizeof(uint32_t) + PITH_RECORD_MOST];
  uint32_t record = (uint32_t)size;
  PITH_TRY(pith__random_bytes(job, sizeof *job));
  memcpy(table, &record, sizeof record);
  if (size) {
    memcpy(table + sizeof record, mine, size);
  }
  return pith__table_read(table, sizeof record + size, 1, all);
}

pith_status pith__rendezvous_exchange(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                      uint64_t *job) {
  PITH_TRY(check_arguments(r, mine, size));
  if (r->ranks == 1) {
    return stay_alone(mine, size, all, job);
  }
  if (r->rank == 0) {
    return pith__rendezvous_host(r, mine, size, all, job);
  }
  guest g = {.r = r, .mine = mine, .size = size, .all = all, .job = job, .deadline = pith__now() + r->timeout};
  return visit(&g);
}

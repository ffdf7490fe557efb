/*
 * Rank 0's side of the rendezvous: one thread, one poll loop, nobody is waited for alone. Whoever connects is greeted
 * and has a few seconds to say who it is; who says nothing, or nonsense, is dropped, and when too many are at the door
 * the one that has stood there longest goes first. Guests who told their rank wait until all are there, then all hear
 * the same: the table, or what is wrong. After a disagreement the door stays open a moment, so that the others hear of
 * it too.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rank_list.h"
#include "transport/rendezvous_wire.h"
#include "transport/sockets.h"

enum { STRANGERS_MOST = 64 }; /* at the door at once, beside the ranks */

static const double hello_seconds = 5, gather_seconds = 2, reply_seconds = 5;

typedef struct seat {
  int fd;
  int rank;        /* -1 until it has told, and for one that disagrees */
  int is_heard;    /* told all, waits for the reply */
  double deadline; /* to tell */
  size_t moved;    /* bytes of hello and gift that came; later, of the reply that went */
  uint8_t nonce[RENDEZVOUS_NONCE];
  rendezvous_hello hello;
  rendezvous_reply reply;
  uint8_t *gift; /* the bytes it brought; memory stays with the place when guests change */
} seat;

typedef struct host {
  const pith_rendezvous *r;
  size_t size;
  uint8_t *all;
  int listener;
  double deadline;
  seat *seats;
  int count, most;
  int others;               /* who are to come; after a disagreement about that: any number */
  uint8_t *gifts, *missing; /* missing: a flag for each rank */
  struct pollfd *fds;
  pith_status status; /* what all will hear */
  char text[RENDEZVOUS_TEXT];
  char turned_away[160]; /* the last one, and why: for the sentence about missing ranks */
} host;

/* ---- The door ---------------------------------------------------------------------------------------------------- */

/* An address is bound as it is. A name may mean another address here than elsewhere (Debian gives a machine's own name
 * 127.0.1.1), and an address may be that of a router before us: then all addresses are bound. */
static int bind_door(const pith_rendezvous *r) {
  pith_sockaddr at;
  const char *name = strcmp(r->host, "localhost") == 0 ? "127.0.0.1" : r->host;
  if (pith__sockaddr_parse(name, r->port, &at)) {
    int fd = pith__socket_listen(&at);
    if (fd >= 0 || errno != EADDRNOTAVAIL) {
      return fd;
    }
  }
  at = pith__sockaddr_everywhere(r->port);
  return pith__socket_listen(&at);
}

static pith_status open_door(host *h) {
  h->listener = h->listener >= 0 ? h->listener : bind_door(h->r);
  if (h->listener >= 0) {
    return PITH_OK;
  }
  const char *hint =
      errno == EADDRINUSE ? "; another job, or a framework's own store, may have it: take another MASTER_PORT" : "";
  return pith_fail(PITH_ERR_SYSTEM, "rank 0 cannot listen on port %u of %s: %s%s", h->r->port, h->r->host,
                   strerror(errno), hint);
}

static void close_door(host *h) {
  if (h->listener >= 0) {
    pith__fd_close(h->listener);
  }
  h->listener = -1;
}

static void dismiss(host *h, int index) {
  seat gone = h->seats[index];
  if (gone.rank >= 0 && gone.is_heard) {
    h->missing[gone.rank] = 1;
  }
  pith__socket_close(gone.fd);
  h->seats[index] = h->seats[--h->count];
  h->seats[h->count] = gone; /* with its memory */
}

/* Makes a free place, at the cost of who has stood there longest without a word. */
static int find_place(host *h) {
  if (h->count < h->most) {
    return h->count++;
  }
  int oldest = -1;
  for (int i = 0; i < h->count; i++) {
    if (!h->seats[i].is_heard && (oldest < 0 || h->seats[i].deadline < h->seats[oldest].deadline)) {
      oldest = i;
    }
  }
  if (oldest < 0) {
    return -1;
  }
  dismiss(h, oldest);
  return h->count++;
}

static void welcome(host *h, int fd) {
  int index = find_place(h);
  if (index < 0) {
    pith__fd_close(fd);
    return;
  }
  seat *s = &h->seats[index];
  *s = (seat){.fd = fd, .rank = -1, .deadline = pith__now() + hello_seconds, .gift = s->gift};
  rendezvous_greeting greeting = {.head = pith__rendezvous_head(0)};
  struct iovec piece = {&greeting, sizeof greeting};
  int is_random = pith__random_bytes(s->nonce, sizeof s->nonce) == PITH_OK;
  memcpy(greeting.nonce, s->nonce, sizeof s->nonce);
  if (!is_random || pith__socket_write(fd, &piece, 1) != (ssize_t)sizeof greeting) {
    dismiss(h, index);
  }
}

/* ---- What guests say --------------------------------------------------------------------------------------------- */

typedef enum verdict { VERDICT_MORE, VERDICT_HEARD, VERDICT_DISMISS } verdict;

static void seal(const host *h, seat *s, pith_status status, uint64_t job, const void *body, size_t size) {
  s->reply = (rendezvous_reply){.head = pith__rendezvous_head(0), .status = (uint32_t)status, .job = job, .size = size};
  pith__rendezvous_prove(h->r, RENDEZVOUS_ROLE_REPLY, s->hello.nonce, &s->reply, offsetof(rendezvous_reply, proof),
                         body, size, s->reply.proof);
}

/* Ends the whole rendezvous: all that come will hear this sentence. The first one counts. */
__attribute__((format(printf, 3, 4))) static verdict disagree(host *h, seat *s, const char *format, ...) {
  s->is_heard = 1;
  if (h->status == PITH_OK) {
    va_list args;
    va_start(args, format);
    vsnprintf(h->text, sizeof h->text, format, args);
    va_end(args);
    h->status = PITH_ERR_MISMATCH;
    double soon = pith__now() + gather_seconds;
    h->deadline = soon < h->deadline ? soon : h->deadline;
  }
  return VERDICT_HEARD;
}

/* Who does not prove to belong to the job cannot stop it; it hears why, as far as it listens. */
static verdict turn_away(host *h, seat *s, const char *why) {
  snprintf(h->turned_away, sizeof h->turned_away, "; one that says it is rank %u was turned away: %s",
           s->hello.head.rank, why);
  PITH_LOG_WARN("rendezvous%s", h->turned_away);
  seal(h, s, PITH_ERR_MISMATCH, 0, why, strlen(why));
  struct iovec pieces[2] = {{&s->reply, sizeof s->reply}, {(void *)why, strlen(why)}};
  pith__socket_write(s->fd, pieces, 2);
  return VERDICT_DISMISS;
}

/* Builds that differ cannot even check a secret, so with one they are only turned away. */
static verdict refuse_build(host *h, seat *s, const char *what) {
  return pith__rendezvous_has_secret(h->r) ? turn_away(h, s, what) : disagree(h, s, "%s", what);
}

static verdict check_build(host *h, seat *s) {
  rendezvous_head *head = &s->hello.head;
  char text[128];
  if (memcmp(head->magic, RENDEZVOUS_MAGIC, sizeof head->magic) != 0) {
    return VERDICT_DISMISS;
  }
  if (head->order != RENDEZVOUS_ORDER) {
    snprintf(text, sizeof text, "rank %u has another byte order than rank 0", __builtin_bswap32(head->rank));
    return refuse_build(h, s, text);
  }
  if (strncmp(head->version, pith_version(), sizeof head->version) != 0) {
    snprintf(text, sizeof text, "rank %u runs Pith %.16s, rank 0 runs %s", head->rank, head->version, pith_version());
    return refuse_build(h, s, text);
  }
  return VERDICT_MORE;
}

static verdict check_proof(host *h, seat *s) {
  uint8_t proof[PITH_SHA256_SIZE];
  if (s->hello.has_secret && !pith__rendezvous_has_secret(h->r)) {
    return turn_away(h, s, "it has a secret and rank 0 has none (PITH_SECRET)");
  }
  pith__rendezvous_prove(h->r, RENDEZVOUS_ROLE_HELLO, s->nonce, &s->hello, offsetof(rendezvous_hello, proof), NULL, 0,
                         proof);
  if (!pith__digest_equal(proof, s->hello.proof)) {
    return turn_away(h, s, "it does not have rank 0's secret (PITH_SECRET)");
  }
  return VERDICT_MORE;
}

static verdict check_expectations(host *h, seat *s) {
  const rendezvous_hello *hello = &s->hello;
  if (hello->ranks != (uint32_t)h->r->ranks) {
    h->others = INT_MAX;
    return disagree(h, s, "rank %u expects %u ranks, rank 0 has %d", hello->head.rank, hello->ranks, h->r->ranks);
  }
  if (hello->head.rank >= hello->ranks) {
    return disagree(h, s, "one process says it is rank %u of %u", hello->head.rank, hello->ranks);
  }
  if (hello->size != h->size) {
    return disagree(h, s, "rank %u brings %llu bytes, rank 0 expects %zu", hello->head.rank,
                    (unsigned long long)hello->size, h->size);
  }
  return VERDICT_MORE;
}

static verdict check_hello(host *h, seat *s) {
  verdict (*const checks[])(host *, seat *) = {check_build, check_proof, check_expectations};
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    verdict v = checks[i](h, s);
    if (v != VERDICT_MORE) {
      return v;
    }
  }
  return VERDICT_MORE;
}

/* Forgets one that sat there and is gone: its rank may come again. */
static void forget_dead(host *h, int rank) {
  for (int i = 0; i < h->count; i++) {
    if (h->seats[i].rank == rank && h->seats[i].is_heard && pith__socket_is_over(h->seats[i].fd)) {
      h->seats[i].rank = -1;
      h->missing[rank] = 1;
    }
  }
}

static verdict take_seat(host *h, seat *s) {
  uint8_t digest[PITH_SHA256_SIZE];
  pith_sha256 hash;
  int rank = (int)s->hello.head.rank;
  pith__sha256_init(&hash);
  pith__sha256_add(&hash, s->gift, h->size);
  pith__sha256_finish(&hash, digest);
  if (!pith__digest_equal(digest, s->hello.digest)) {
    return VERDICT_DISMISS;
  }
  forget_dead(h, rank);
  if (!h->missing[rank]) {
    return disagree(h, s, "two processes say they are rank %d", rank);
  }
  h->missing[rank] = 0;
  s->rank = rank;
  s->is_heard = 1;
  return VERDICT_HEARD;
}

/* Reads what has come of a hello and its gift. */
static verdict listen_to(host *h, seat *s) {
  size_t head = sizeof s->hello;
  while (s->moved < head) {
    ssize_t got = pith__socket_read(s->fd, (uint8_t *)&s->hello + s->moved, head - s->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DISMISS : VERDICT_MORE;
    }
    s->moved += (size_t)got;
    if (s->moved == head) {
      verdict v = check_hello(h, s);
      if (v != VERDICT_MORE) {
        return v;
      }
    }
  }
  while (s->moved < head + h->size) {
    ssize_t got = pith__socket_read(s->fd, s->gift + (s->moved - head), head + h->size - s->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DISMISS : VERDICT_MORE;
    }
    s->moved += (size_t)got;
  }
  return take_seat(h, s);
}

/* Of a guest who waits we only hear that it is gone. */
static verdict attend(host *h, seat *s, int is_ready) {
  if (s->is_heard) {
    return is_ready ? VERDICT_DISMISS : VERDICT_HEARD;
  }
  verdict v = is_ready ? listen_to(h, s) : VERDICT_MORE;
  return v == VERDICT_MORE && pith__now() > s->deadline ? VERDICT_DISMISS : v;
}

/* ---- The hall ---------------------------------------------------------------------------------------------------- */

static int is_complete(const host *h) { return memchr(h->missing, 1, (size_t)h->r->ranks) == NULL; }

/* Whether all who can come have been heard, though they may disagree. */
static int is_everybody_heard(const host *h) {
  int heard = 0;
  for (int i = 0; i < h->count; i++) {
    heard += h->seats[i].is_heard;
  }
  return h->status != PITH_OK && heard >= h->others;
}

/* Of guests who were heard, who may have sent more than was read, only the end is of interest. */
static int fill_descriptors(host *h) {
  for (int i = 0; i < h->count; i++) {
    short events = h->seats[i].is_heard ? POLLRDHUP : POLLIN;
    h->fds[i] = (struct pollfd){h->seats[i].fd, events, 0};
  }
  h->fds[h->count] = (struct pollfd){h->listener, POLLIN, 0};
  return h->count + 1;
}

static double next_deadline(const host *h) {
  double next = h->deadline;
  for (int i = 0; i < h->count; i++) {
    if (!h->seats[i].is_heard && h->seats[i].deadline < next) {
      next = h->seats[i].deadline;
    }
  }
  return next;
}

static void gather(host *h) {
  while (!is_complete(h) && !is_everybody_heard(h) && pith__now() < h->deadline) {
    int before = h->count;
    pith__poll_until(h->fds, fill_descriptors(h), next_deadline(h));
    for (int i = before - 1; i >= 0; i--) { /* downwards: dismissing moves the last one here */
      if (attend(h, &h->seats[i], h->fds[i].revents != 0) == VERDICT_DISMISS) {
        dismiss(h, i);
      }
    }
    for (int fd; h->fds[before].revents && (fd = pith__socket_accept(h->listener)) >= 0;) {
      welcome(h, fd);
    }
  }
}

static void conclude(host *h) {
  char list[PITH_RANK_LIST_TEXT];
  if (h->status == PITH_OK && !is_complete(h)) {
    h->status = PITH_ERR_TIMEOUT;
    snprintf(h->text, sizeof h->text, "%s did not come to rank 0 at %s:%u within %g s%s",
             pith__rank_list(h->missing, h->r->ranks, list), h->r->host, h->r->port, h->r->timeout, h->turned_away);
  }
}

static void make_table(host *h, const void *mine) {
  if (h->size == 0) {
    return;
  }
  memcpy(h->all, mine, h->size);
  for (int i = 0; i < h->count; i++) {
    if (h->seats[i].rank > 0) {
      memcpy(h->all + (size_t)h->seats[i].rank * h->size, h->seats[i].gift, h->size);
    }
  }
}

/* ---- The answer to all ------------------------------------------------------------------------------------------- */

/* Returns whether there is more to send to this one. */
static int send_reply(seat *s, const void *body, size_t size) {
  struct iovec whole[2] = {{&s->reply, sizeof s->reply}, {(void *)body, size}}, rest[2];
  int count = pith__pieces_slice(whole, 2, s->moved, SIZE_MAX, rest, 2);
  ssize_t taken = count ? pith__socket_write(s->fd, rest, count) : 0;
  s->moved = taken < 0 ? sizeof s->reply + size : s->moved + (size_t)taken;
  return s->moved < sizeof s->reply + size;
}

/* To all at once: one that does not read keeps nobody waiting. A rank that is lost here is missed when links are made.
 * */
static void answer_all(host *h, uint64_t job, const void *body, size_t size) {
  double deadline = pith__now() + reply_seconds;
  int waiting;
  for (int i = 0; i < h->count; i++) {
    seal(h, &h->seats[i], h->status, job, body, size);
    h->seats[i].moved = h->seats[i].is_heard ? 0 : sizeof h->seats[i].reply + size;
  }
  do {
    waiting = 0;
    for (int i = 0; i < h->count; i++) {
      if (send_reply(&h->seats[i], body, size)) {
        h->fds[waiting++] = (struct pollfd){h->seats[i].fd, POLLOUT, 0};
      }
    }
    if (waiting) {
      pith__poll_until(h->fds, waiting, deadline);
    }
  } while (waiting && pith__now() < deadline);
}

static pith_status answer(host *h, const void *mine, uint64_t *job) {
  uint64_t number = 0;
  conclude(h);
  close_door(h); /* before the answers: who hears its own may be back at once for the next rendezvous */
  if (h->status != PITH_OK) {
    answer_all(h, 0, h->text, strlen(h->text));
    return pith_fail(h->status, "%s", h->text);
  }
  PITH_TRY(pith__random_bytes(&number, sizeof number));
  make_table(h, mine);
  answer_all(h, number, h->all, h->size * (size_t)h->r->ranks);
  *job = number;
  return PITH_OK;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static pith_status furnish(host *h) {
  size_t most = (size_t)h->most;
  h->seats = calloc(most, sizeof *h->seats);
  h->gifts = malloc(most * h->size + 1);
  h->missing = malloc((size_t)h->r->ranks);
  h->fds = calloc(most + 1, sizeof *h->fds);
  PITH_REQUIRE(h->seats && h->gifts && h->missing && h->fds, PITH_ERR_MEMORY, "no memory for %d guests", h->most);
  for (int i = 0; i < h->most; i++) {
    h->seats[i].gift = h->gifts + (size_t)i * h->size;
  }
  memset(h->missing, 1, (size_t)h->r->ranks);
  h->missing[0] = 0;
  return open_door(h);
}

static void clear_up(host *h) {
  while (h->count > 0) {
    dismiss(h, h->count - 1);
  }
  close_door(h);
  free(h->seats);
  free(h->gifts);
  free(h->missing);
  free(h->fds);
}

pith_status pith__rendezvous_host(const pith_rendezvous *r, const void *mine, size_t size, void *all, uint64_t *job) {
  host h = {.r = r,
            .size = size,
            .all = all,
            .listener = r->listener > 0 ? r->listener : -1,
            .deadline = pith__now() + r->timeout,
            .others = r->ranks - 1,
            .most = r->ranks + STRANGERS_MOST};
  pith_status status = furnish(&h);
  if (status == PITH_OK) {
    gather(&h);
    status = answer(&h, mine, job);
  }
  clear_up(&h);
  return status;
}

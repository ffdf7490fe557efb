/*
 * Rank 0's side of the rendezvous: one thread, one epoll loop, nobody is waited for alone. Whoever connects is greeted
 * and has a few seconds to say who it is; who says nothing, or nonsense, is dropped, and when too many are at the door
 * the one that has stood there longest goes first. Guests who told their rank wait until all are there, then all hear
 * the same: the table, or what is wrong. After a disagreement the door stays open a moment, so that the others hear of
 * it too.
 *
 * The table of thousands of ranks is large, and goes to thousands. All guests are told at once that it comes. Then it
 * goes to some of them at a time, so that a slow network is not flooded; when those stand still, to some more. A guest
 * may be as slow as it likes, but not stand still for longer than the time-out.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/rank_list.h"
#include "transport/rendezvous_wire.h"
#include "transport/sockets.h"

enum {
  STRANGERS_MOST = 64, /* at the door at once, beside the ranks */
  SERVED_AT_ONCE = 16, /* guests that the table goes to: their buffers are about what a slow network keeps */
  EVENTS_MOST = 256,   /* of one look at the descriptors */
  LISTENER = -1,       /* in place of a seat's number */
};

/* Bytes of a guest that the system keeps, or twice as many: with thousands of guests, its own choice would be
 * gigabytes, and a guest that takes nothing would not be noticed. */
static const int send_buffer = 16 << 10;

static const double hello_seconds = 5, gather_seconds = 2;
static const double crowded_seconds = 1; /* to say hello, while others wait for a descriptor */
static const double lack_seconds = 1;    /* without a descriptor for a rank */
static const double farewell_seconds = 0.2;
static const double sentence_seconds = 5;  /* for guests to hear what went wrong */
static const double still_seconds = 0.5;   /* without taking a byte, after which a guest keeps no other from its turn */
static const double review_seconds = 0.05; /* between two looks at who stands still */
static const double sweep_seconds = 0.05;  /* between two looks at who has been silent for too long */

typedef struct seat {
  int fd;          /* -1: free */
  int rank;        /* -1 until it has told, and for one that disagrees */
  int is_heard;    /* told all, waits for the reply */
  double deadline; /* to tell; later, to take something of the reply */
  size_t moved;    /* bytes of hello and record that came; later, of the reply that went */
  uint8_t nonce[RENDEZVOUS_NONCE];
  rendezvous_hello hello;
  rendezvous_reply reply;
  uint8_t *record; /* the bytes it brought */
} seat;

typedef struct host {
  const pith_rendezvous *r;
  int listener, watch; /* watch: the epoll descriptor */
  double deadline;
  seat *seats; /* stay where they are: events carry their number */
  int *vacant; /* numbers of free seats */
  int most, vacant_count;
  int heard_count, missing_count;
  double next_sweep;
  int others;         /* who are to come; after a disagreement about that: any number */
  uint8_t *missing;   /* a flag for each rank */
  pith_status status; /* what all will hear */
  char text[RENDEZVOUS_TEXT];
  char turned_away[160]; /* the last one, and why: for the sentence about missing ranks */
  int lack;              /* what was lacking when somebody came last, as an errno: descriptors or memory; or 0 */
  double lacks_since;    /* then: since when */
} host;

/* ---- Descriptors ------------------------------------------------------------------------------------------------- */

static int watch_descriptor(const host *h, int how, int fd, int number, uint32_t events) {
  struct epoll_event event = {.events = events, .data.fd = number};
  return epoll_ctl(h->watch, how, fd, &event);
}

/* The events that there are until then; also a signal, and the time to ask for interruption, end it. */
static int await_events(const host *h, struct epoll_event *events, double until) {
  double slice = pith__now() + PITH_INTERRUPT_SECONDS,
         end = pith__interrupt_is_possible(&h->r->interrupt) && slice < until ? slice : until;
  double left = end - pith__now();
  int ms = left <= 0 ? 0 : left > 3600 ? 3600000 : (int)(left * 1000) + 1;
  int count = epoll_wait(h->watch, events, EVENTS_MOST, ms);
  return count < 0 ? 0 : count;
}

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
    PITH_REQUIRE(watch_descriptor(h, EPOLL_CTL_ADD, h->listener, LISTENER, EPOLLIN) == 0, PITH_ERR_SYSTEM,
                 "rank 0 cannot watch its port: %s", strerror(errno));
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

static void dismiss(host *h, seat *s) {
  if (s->is_heard) {
    h->heard_count--;
    if (s->rank >= 0) {
      h->missing[s->rank] = 1;
      h->missing_count++;
    }
  }
  pith__socket_close(s->fd); /* which also ends watching it */
  free(s->record);
  *s = (seat){.fd = -1, .rank = -1};
  h->vacant[h->vacant_count++] = (int)(s - h->seats);
}

/* Who has stood at the door longest without a word; NULL: nobody does. */
static seat *find_oldest(host *h) {
  seat *oldest = NULL;
  for (int i = 0; i < h->most; i++) {
    seat *s = &h->seats[i];
    if (s->fd >= 0 && !s->is_heard && (!oldest || s->deadline < oldest->deadline)) {
      oldest = s;
    }
  }
  return oldest;
}

static void welcome(host *h, int fd) {
  seat *oldest = h->vacant_count == 0 ? find_oldest(h) : NULL;
  if (oldest) {
    dismiss(h, oldest);
  }
  if (h->vacant_count == 0) {
    pith__fd_close(fd);
    return;
  }
  int number = h->vacant[--h->vacant_count];
  seat *s = &h->seats[number];
  *s = (seat){.fd = fd, .rank = -1, .deadline = pith__now() + hello_seconds};
  pith__socket_tune(fd, RENDEZVOUS_LIVENESS);
  setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &send_buffer, sizeof send_buffer);
  rendezvous_greeting greeting = {.head = pith__rendezvous_head(0)};
  struct iovec piece = {&greeting, sizeof greeting};
  int is_random = pith__random_bytes(s->nonce, sizeof s->nonce) == PITH_OK;
  memcpy(greeting.nonce, s->nonce, sizeof s->nonce);
  if (!is_random || pith__socket_write(fd, &piece, 1) != (ssize_t)sizeof greeting ||
      watch_descriptor(h, EPOLL_CTL_ADD, fd, number, EPOLLIN) != 0) {
    dismiss(h, s);
  }
}

/* Who could not be let in comes again. Strangers who say nothing make room; where all who have come are ranks, only the
 * process itself can, and soon, or that is the end of the rendezvous. */
static void note_lack(host *h, int error) {
  h->lacks_since = h->lack ? h->lacks_since : pith__now();
  h->lack = error;
  if (error != EMFILE && error != ENFILE) {
    return;
  }
  seat *oldest = find_oldest(h);
  if (oldest && pith__now() > oldest->deadline - hello_seconds + crowded_seconds) {
    dismiss(h, oldest);
  } else if (!oldest && h->status == PITH_OK && pith__now() > h->lacks_since + lack_seconds) {
    h->status = PITH_ERR_SYSTEM;
    snprintf(h->text, sizeof h->text,
             "rank 0 cannot accept more than %d of the %d connections it needs: %s (ulimit -n says how many files a "
             "process may open)",
             h->heard_count, h->r->ranks - 1, strerror(error));
  }
}

static void open_to_all(host *h) {
  int fd;
  while ((fd = pith__socket_accept(h->listener)) >= 0) {
    h->lack = 0;
    welcome(h, fd);
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
    note_lack(h, errno);
  }
}

/* ---- What guests say --------------------------------------------------------------------------------------------- */

typedef enum verdict { VERDICT_MORE, VERDICT_HEARD, VERDICT_DISMISS } verdict;

static void hear(host *h, seat *s) {
  s->is_heard = 1;
  h->heard_count++;
}

/* What all replies have in common; each guest has its own proof. */
static rendezvous_reply make_reply(pith_status status, uint64_t job, const void *body, size_t size) {
  rendezvous_reply reply = {.head = pith__rendezvous_head(0), .status = (uint32_t)status, .job = job, .size = size};
  pith__rendezvous_digest(body, size, reply.digest);
  return reply;
}

static void seal(const host *h, seat *s, const rendezvous_reply *reply) {
  s->reply = *reply;
  pith__rendezvous_prove(h->r, RENDEZVOUS_ROLE_REPLY, s->hello.nonce, &s->reply, offsetof(rendezvous_reply, proof),
                         s->reply.proof);
}

/* Ends the whole rendezvous: all that come will hear this sentence. The first one counts. */
__attribute__((format(printf, 3, 4))) static verdict disagree(host *h, seat *s, const char *format, ...) {
  hear(h, s);
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
  rendezvous_reply reply = make_reply(PITH_ERR_MISMATCH, 0, why, strlen(why));
  seal(h, s, &reply);
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
  pith__rendezvous_prove(h->r, RENDEZVOUS_ROLE_HELLO, s->nonce, &s->hello, offsetof(rendezvous_hello, proof), proof);
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
  if (hello->size > PITH_RECORD_MOST) {
    return disagree(h, s, "rank %u brings %llu bytes, more than %d", hello->head.rank, (unsigned long long)hello->size,
                    PITH_RECORD_MOST);
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
  for (int i = 0; i < h->most && !h->missing[rank]; i++) {
    seat *s = &h->seats[i];
    if (s->rank == rank && s->is_heard && pith__socket_is_over(s->fd)) {
      dismiss(h, s);
    }
  }
}

static verdict take_seat(host *h, seat *s) {
  uint8_t digest[PITH_SHA256_SIZE];
  int rank = (int)s->hello.head.rank;
  pith__rendezvous_digest(s->record, s->hello.size, digest);
  if (!pith__digest_equal(digest, s->hello.digest)) {
    return VERDICT_DISMISS;
  }
  forget_dead(h, rank);
  if (!h->missing[rank]) {
    return disagree(h, s, "two processes say they are rank %d", rank);
  }
  h->missing[rank] = 0;
  h->missing_count--;
  s->rank = rank;
  hear(h, s);
  return VERDICT_HEARD;
}

/* A whole hello: whether it is a right one, and memory for what follows. */
static verdict take_hello(host *h, seat *s) {
  verdict v = check_hello(h, s);
  if (v == VERDICT_MORE) {
    s->record = malloc(s->hello.size + 1);
    v = s->record ? VERDICT_MORE : VERDICT_DISMISS;
  }
  return v;
}

/* Reads what has come of a hello and its record. */
static verdict listen_to(host *h, seat *s) {
  size_t head = sizeof s->hello;
  while (s->moved < head) {
    ssize_t got = pith__socket_read(s->fd, (uint8_t *)&s->hello + s->moved, head - s->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DISMISS : VERDICT_MORE;
    }
    s->moved += (size_t)got;
    verdict v = s->moved == head ? take_hello(h, s) : VERDICT_MORE;
    if (v != VERDICT_MORE) {
      return v;
    }
  }
  while (s->moved < head + s->hello.size) {
    ssize_t got = pith__socket_read(s->fd, s->record + (s->moved - head), head + s->hello.size - s->moved);
    if (got <= 0) {
      return got < 0 ? VERDICT_DISMISS : VERDICT_MORE;
    }
    s->moved += (size_t)got;
  }
  return take_seat(h, s);
}

/* Of guests who were heard, who may have sent more than was read, only the end is of interest. */
static void attend(host *h, seat *s) {
  if (s->fd < 0) {
    return; /* dismissed by an event before this one */
  }
  verdict v = s->is_heard ? VERDICT_DISMISS : listen_to(h, s);
  if (v == VERDICT_HEARD) {
    watch_descriptor(h, EPOLL_CTL_MOD, s->fd, (int)(s - h->seats), EPOLLRDHUP);
  } else if (v == VERDICT_DISMISS) {
    dismiss(h, s);
  }
}

/* Drops those who did not tell in time, now and then. */
static void sweep(host *h, double now) {
  if (now < h->next_sweep) {
    return;
  }
  h->next_sweep = now + sweep_seconds;
  for (int i = 0; i < h->most; i++) {
    seat *s = &h->seats[i];
    if (s->fd >= 0 && !s->is_heard && now > s->deadline) {
      dismiss(h, s);
    }
  }
}

/* ---- The hall ---------------------------------------------------------------------------------------------------- */

/* Whether all who can come have been heard, though they may disagree; or there is no use in waiting for them. */
static int is_everybody_heard(const host *h) {
  return h->status == PITH_ERR_SYSTEM || (h->status != PITH_OK && h->heard_count >= h->others);
}

/* PITH_ERR_INTERRUPTED, or PITH_OK with whatever was found out. */
static pith_status gather(host *h) {
  struct epoll_event events[EVENTS_MOST];
  while (h->missing_count > 0 && !is_everybody_heard(h) && pith__now() < h->deadline) {
    int seated = h->most - h->vacant_count, silent = seated - h->heard_count;
    double next = silent > 0 ? pith__now() + sweep_seconds : h->deadline;
    int count = await_events(h, events, next < h->deadline ? next : h->deadline), is_knock = 0;
    if (pith__interrupt_ask(&h->r->interrupt)) {
      return PITH_ERR_INTERRUPTED;
    }
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd == LISTENER) {
        is_knock = 1;
      } else {
        attend(h, &h->seats[events[i].data.fd]);
      }
    }
    if (silent > 0) {
      sweep(h, pith__now());
    }
    if (is_knock) { /* last: a seat that became free above is not taken by another while its event waits */
      open_to_all(h);
    }
  }
  return PITH_OK;
}

static void conclude(host *h) {
  char list[PITH_RANK_LIST_TEXT], lack[160] = "";
  if (h->status == PITH_OK && h->missing_count > 0) {
    h->status = PITH_ERR_TIMEOUT;
    if (h->lack) {
      snprintf(lack, sizeof lack, "; rank 0 could not accept all connections: %s", strerror(h->lack));
    }
    snprintf(h->text, sizeof h->text, "%s did not come to rank 0 at %s:%u within %g s%s%s",
             pith__rank_list(h->missing, h->r->ranks, list), h->r->host, h->r->port, h->r->timeout, lack,
             h->turned_away);
  }
}

static pith_status make_table(const host *h, const void *mine, size_t size, uint8_t **table, size_t *table_size) {
  int ranks = h->r->ranks;
  size_t head = (size_t)ranks * sizeof(uint32_t), total = head + size;
  const seat **of = calloc((size_t)ranks, sizeof *of); /* the seat of each rank */
  for (int i = 0; of && i < h->most; i++) {
    const seat *s = &h->seats[i];
    if (s->fd >= 0 && s->rank > 0) {
      of[s->rank] = s;
      total += s->hello.size;
    }
  }
  uint8_t *made = of ? malloc(total) : NULL;
  if (!made) {
    free(of);
    return pith_fail(PITH_ERR_MEMORY, "no memory for the addresses of %d ranks", ranks);
  }
  uint8_t *to = made + head;
  for (int p = 0; p < ranks; p++) {
    const void *record = p == 0 ? mine : of[p] ? of[p]->record : NULL;
    uint32_t bytes = (uint32_t)(p == 0 ? size : of[p] ? of[p]->hello.size : 0);
    memcpy(made + (size_t)p * sizeof bytes, &bytes, sizeof bytes);
    if (bytes) {
      memcpy(to, record, bytes);
    }
    to += bytes;
  }
  free(of);
  *table = made;
  *table_size = total;
  return PITH_OK;
}

/* ---- The answer to all ------------------------------------------------------------------------------------------- */

/* What is said to all, and how far that is. */
typedef struct answer {
  const void *body;
  size_t size;
  int next;   /* seat that was not begun with yet */
  int active; /* guests who are being served, and take something */
  int left;   /* and who are not done */
} answer;

static size_t whole_of(const answer *a) { return sizeof(rendezvous_reply) + a->size; }

/* A guest is done with, or lost: then `error` says why, and the rank is one that the sentence names. */
static void finish_guest(host *h, answer *a, seat *s, int error) {
  a->left--;
  a->active -= a->active > 0;
  if (error && s->rank >= 0 && h->status == PITH_OK) {
    h->status = error == ETIMEDOUT ? PITH_ERR_TIMEOUT : PITH_ERR_PEER;
    h->lack = error;
  }
  if (error && s->rank >= 0) {
    h->missing[s->rank] = 1;
  }
  epoll_ctl(h->watch, EPOLL_CTL_DEL, s->fd, NULL);
  s->deadline = 0;
  s->moved = whole_of(a);
}

/* As much as the guest takes now. */
static void serve(host *h, answer *a, seat *s, double patience) {
  struct iovec whole[2] = {{&s->reply, sizeof s->reply}, {(void *)a->body, a->size}}, rest[2];
  int count = pith__pieces_slice(whole, 2, s->moved, SIZE_MAX, rest, 2);
  ssize_t taken = count ? pith__socket_write(s->fd, rest, count) : 0;
  if (taken < 0) {
    finish_guest(h, a, s, errno);
    return;
  }
  s->moved += (size_t)taken;
  s->deadline = taken > 0 ? pith__now() + patience : s->deadline;
  if (s->moved == whole_of(a)) {
    finish_guest(h, a, s, 0);
  }
}

static int is_waiting(const answer *a, const seat *s) { return s->fd >= 0 && s->is_heard && s->moved < whole_of(a); }

/* Says to all that the answer comes: who has heard that waits for its turn. A short message always finds room. */
static void announce(host *h, answer *a, const rendezvous_reply *reply) {
  for (int i = 0; i < h->most; i++) {
    seat *s = &h->seats[i];
    if (s->fd < 0 || !s->is_heard) {
      continue;
    }
    seal(h, s, reply);
    struct iovec piece = {&s->reply, sizeof s->reply};
    ssize_t taken = pith__socket_write(s->fd, &piece, 1);
    s->moved = taken > 0 ? (size_t)taken : 0; /* an error comes again when it is served */
    a->left++;
  }
}

static void begin_more(host *h, answer *a, double patience) {
  for (; a->next < h->most && a->active < SERVED_AT_ONCE; a->next++) {
    seat *s = &h->seats[a->next];
    if (s->fd < 0 || !s->is_heard) {
      continue;
    }
    a->active++;
    s->deadline = pith__now() + patience;
    watch_descriptor(h, EPOLL_CTL_MOD, s->fd, a->next, EPOLLOUT);
    serve(h, a, s, patience);
  }
}

/* Counts those who take something, and gives up those who have taken nothing for too long. */
static void review(host *h, answer *a, double patience) {
  double now = pith__now();
  int moving = 0;
  for (int i = 0; i < a->next; i++) {
    seat *s = &h->seats[i];
    if (!is_waiting(a, s)) {
      continue;
    }
    if (now >= s->deadline) {
      finish_guest(h, a, s, ETIMEDOUT);
    } else {
      moving += now - (s->deadline - patience) < still_seconds;
    }
  }
  a->active = moving;
}

/* To some at a time. One that does not read keeps nobody waiting: it counts only as long as it takes something. */
static void answer_all(host *h, const rendezvous_reply *reply, const void *body, double patience) {
  struct epoll_event events[EVENTS_MOST];
  answer a = {.body = body, .size = reply->size};
  double reviewed = pith__now();
  announce(h, &a, reply);
  while (a.left > 0) {
    begin_more(h, &a, patience);
    int count = a.left > 0 ? await_events(h, events, pith__now() + review_seconds) : 0;
    for (int i = 0; i < count; i++) {
      seat *s = &h->seats[events[i].data.fd];
      if (is_waiting(&a, s)) {
        serve(h, &a, s, patience);
      }
    }
    if (pith__now() - reviewed >= review_seconds) {
      review(h, &a, patience);
      reviewed = pith__now();
    }
    if (pith__interrupt_ask(&h->r->interrupt)) {
      h->status = PITH_ERR_INTERRUPTED;
      return;
    }
  }
}

/* After the table went out: whether all took it. */
static pith_status check_answered(host *h) {
  char list[PITH_RANK_LIST_TEXT];
  if (h->status == PITH_OK) {
    return PITH_OK;
  }
  if (h->status == PITH_ERR_INTERRUPTED) {
    return pith__rendezvous_interrupted(h->r);
  }
  pith__rank_list(h->missing, h->r->ranks, list);
  return h->status == PITH_ERR_TIMEOUT
             ? pith_fail(PITH_ERR_TIMEOUT, "%s came, but took nothing of the addresses of all ranks for %g s", list,
                         h->r->timeout)
             : pith_fail(PITH_ERR_PEER, "%s came, but left before it had the addresses of all ranks: %s", list,
                         strerror(h->lack));
}

static pith_status answer_table(host *h, const void *mine, size_t size, pith_records *all, uint64_t *job) {
  uint8_t *table = NULL;
  size_t table_size = 0;
  uint64_t number = 0;
  PITH_TRY(pith__random_bytes(&number, sizeof number));
  PITH_TRY(make_table(h, mine, size, &table, &table_size));
  rendezvous_reply reply = make_reply(PITH_OK, number, table, table_size);
  answer_all(h, &reply, table, h->r->timeout);
  pith_status status = check_answered(h);
  if (status == PITH_OK) {
    status = pith__table_read(table, table_size, h->r->ranks, all);
  }
  free(table);
  *job = status == PITH_OK ? number : *job;
  return status;
}

static pith_status answer_guests(host *h, const void *mine, size_t size, pith_records *all, uint64_t *job) {
  conclude(h);
  close_door(h); /* before the answers: who hears its own may be back at once for the next rendezvous */
  if (h->status == PITH_OK) {
    return answer_table(h, mine, size, all, job);
  }
  pith_status status = h->status;
  rendezvous_reply reply = make_reply(status, 0, h->text, strlen(h->text));
  answer_all(h, &reply, h->text, sentence_seconds);
  return pith_fail(status, "%s", h->text);
}

/* Rank 0 goes; the others should not look for it until their time is over. */
static pith_status say_interrupted(host *h) {
  int length = snprintf(h->text, sizeof h->text, "rank 0 was interrupted while it waited for the other ranks");
  rendezvous_reply reply = make_reply(PITH_ERR_PEER, 0, h->text, (size_t)length);
  h->status = PITH_ERR_PEER;
  close_door(h);
  answer_all(h, &reply, h->text, farewell_seconds);
  return pith__rendezvous_interrupted(h->r);
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static pith_status furnish(host *h) {
  size_t most = (size_t)h->most;
  h->seats = calloc(most, sizeof *h->seats);
  h->vacant = calloc(most, sizeof *h->vacant);
  h->missing = malloc((size_t)h->r->ranks);
  for (int i = 0; h->seats && i < h->most; i++) {
    h->seats[i].fd = -1;
  }
  PITH_REQUIRE(h->seats && h->vacant && h->missing, PITH_ERR_MEMORY, "no memory for %d guests", h->most);
  for (int i = h->most - 1; i >= 0; i--) {
    h->vacant[h->vacant_count++] = i;
  }
  memset(h->missing, 1, (size_t)h->r->ranks);
  h->missing[0] = 0;
  pith__descriptors_reserve(h->most);
  h->watch = pith__fd_keep(epoll_create1(EPOLL_CLOEXEC));
  PITH_REQUIRE(h->watch >= 0, PITH_ERR_SYSTEM, "rank 0 cannot watch connections: %s", strerror(errno));
  return open_door(h);
}

static void clear_up(host *h) {
  for (int i = 0; h->seats && i < h->most; i++) {
    if (h->seats[i].fd >= 0) {
      dismiss(h, &h->seats[i]);
    }
  }
  close_door(h);
  pith__fd_close(h->watch);
  free(h->seats);
  free(h->vacant);
  free(h->missing);
}

pith_status pith__rendezvous_host(const pith_rendezvous *r, const void *mine, size_t size, pith_records *all,
                                  uint64_t *job) {
  host h = {.r = r,
            .listener = r->listener > 0 ? r->listener : -1,
            .watch = -1,
            .deadline = pith__now() + r->timeout,
            .missing_count = r->ranks - 1,
            .others = r->ranks - 1,
            .most = r->ranks + STRANGERS_MOST};
  pith_status status = furnish(&h);
  if (status == PITH_OK) {
    status = gather(&h);
    status = status == PITH_OK ? answer_guests(&h, mine, size, all, job) : say_interrupted(&h);
  }
  clear_up(&h);
  return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inproc: ranks as threads of one process, for tests and simulations. Made to be obviously right rather than fast:
 * every rank has a port with a ring of bytes for each sender, and one mutex for all of it.
 *
 * Peers write into each other's ports and hold a reference to them, so that a port outlives its rank until the last
 * byte is read. No thread holds two mutexes at once, but for the table's, under which ports are found; hence nothing
 * can deadlock.
 */
#include "transport/inproc.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/forked.h"
#include "transport/transport.h"

typedef struct inproc_ring { /* bytes from one sender */
  uint8_t *bytes;            /* NULL until the first are sent: most pairs exchange none */
  size_t start, used;
  uint64_t job;             /* the sender's, once it came */
  uint8_t came;             /* the sender knows this port */
  struct inproc_port *from; /* its own port, which this one's rank holds until it closes */
  uint8_t ended;            /* the sender closed */
  uint8_t told;             /* and its receiver was woken for it */
  uint8_t wants_room;       /* the sender waits until bytes are taken */
} inproc_ring;

typedef struct inproc_port {
  uint64_t id[2];
  int rank, ranks;
  struct inproc_port *next; /* in the table, until close */
  int holders;              /* the rank itself and its peers; under the table's mutex */
  size_t capacity;          /* of each ring */

  pthread_mutex_t mutex; /* of all that follows */
  int asleep, closed;
  int bell; /* an eventfd */
  int door; /* the same: somebody came */
  inproc_ring ring[];
} inproc_port;

typedef struct inproc_transport {
  pith_transport base;
  unsigned made_in; /* which process: base/forked.h */
  double timeout;
  uint64_t job;
  pith_directory directory;
  inproc_port *port; /* ours */
  uint8_t *starving; /* a flag for each rank: a send wanted more room than there was */
  uint8_t *wanted;   /* PITH_LINK_… */
  int *linked;       /* peers, in the order in which they were linked */
  int linked_count, told, missing;
  inproc_port *peer[]; /* NULL: none */
} inproc_transport;

size_t pith__inproc_ring_size = 64 << 10;

static inproc_transport *inproc_of(pith_transport *transport) { return (inproc_transport *)(void *)transport; }

/* ---- The table of ports ------------------------------------------------------------------------------------------ */

static struct {
  pthread_once_t once;
  pthread_mutex_t mutex;
  pthread_cond_t arrival; /* a rank connected */
  inproc_port *first;
} table = {.once = PTHREAD_ONCE_INIT, .mutex = PTHREAD_MUTEX_INITIALIZER};

static void prepare_table(void) { /* waits must not depend on the wall clock */
  pthread_condattr_t attributes;
  pthread_condattr_init(&attributes);
  pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
  pthread_cond_init(&table.arrival, &attributes);
  pthread_condattr_destroy(&attributes);
}

static inproc_port *find_port(const pith_address *address) {
  for (inproc_port *port = table.first; port; port = port->next) {
    if (address->size == sizeof port->id && memcmp(port->id, address->data, sizeof port->id) == 0) {
      return port;
    }
  }
  return NULL;
}

static void unlist_port(inproc_port *port) {
  for (inproc_port **at = &table.first; *at; at = &(*at)->next) {
    if (*at == port) {
      *at = port->next;
      return;
    }
  }
}

static void destroy_port(inproc_port *port) {
  for (int i = 0; i < port->ranks; i++) {
    free(port->ring[i].bytes);
  }
  close(port->bell);
  close(port->door);
  pthread_mutex_destroy(&port->mutex);
  free(port);
}

/* Lets go of a port; the last holder ends it. The table's mutex must not be held. */
static void release_port(inproc_port *port) {
  pthread_mutex_lock(&table.mutex);
  int holders = --port->holders;
  pthread_mutex_unlock(&table.mutex);
  if (holders == 0) {
    destroy_port(port);
  }
}

static pith_status create_port(const pith_transport_config *config, inproc_port **port) {
  inproc_port *p = calloc(1, sizeof *p + (size_t)config->ranks * sizeof *p->ring);
  PITH_REQUIRE(p, PITH_ERR_MEMORY, "inproc: no memory for %d peers", config->ranks);
  p->bell = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  p->door = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (p->bell < 0 || p->door < 0 || getrandom(p->id, sizeof p->id, 0) != sizeof p->id) {
    int error = errno;
    if (p->bell >= 0) {
      close(p->bell);
    }
    if (p->door >= 0) {
      close(p->door);
    }
    free(p);
    return pith_fail(PITH_ERR_SYSTEM, "inproc: no eventfd or random numbers: %s", strerror(error));
  }
  p->rank = config->rank;
  p->ranks = config->ranks;
  p->capacity = pith__inproc_ring_size;
  p->holders = 1;
  pthread_mutex_init(&p->mutex, NULL);
  *port = p;
  return PITH_OK;
}

/* Wakes the rank of a port whose mutex the caller holds. */
static void ring_bell(inproc_port *port) {
  if (port->asleep) {
    port->asleep = 0;
    (void)!write(port->bell, &(uint64_t){1}, sizeof(uint64_t)); /* can only fail when it rings already */
  }
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static pith_status inproc_listen(const pith_transport_config *config, pith_transport **transport,
                                 pith_address *address) {
  pthread_once(&table.once, prepare_table);
  size_t ranks = (size_t)config->ranks;
  inproc_transport *t = calloc(1, sizeof *t + ranks * (sizeof *t->peer + sizeof *t->linked + 2));
  PITH_REQUIRE(t, PITH_ERR_MEMORY, "inproc: no memory for %d peers", config->ranks);
  t->base.ops = &pith__transport_inproc;
  t->made_in = pith__fork_number();
  t->timeout = config->timeout;
  t->linked = (int *)(void *)(t->peer + ranks);
  t->starving = (uint8_t *)(t->linked + ranks);
  t->wanted = t->starving + ranks;
  pith_status status = create_port(config, &t->port);
  if (status != PITH_OK) {
    free(t);
    return status;
  }
  *address = (pith_address){.size = sizeof t->port->id};
  memcpy(address->data, t->port->id, sizeof t->port->id);
  pthread_mutex_lock(&table.mutex);
  t->port->next = table.first;
  table.first = t->port;
  pthread_mutex_unlock(&table.mutex);
  *transport = &t->base;
  return PITH_OK;
}

/* Under the table's mutex, as are all `came` and `from`. */
static void hold_peer(inproc_transport *t, int rank, inproc_port *port) {
  port->holders++;
  t->peer[rank] = port;
  t->linked[t->linked_count++] = rank;
  t->missing -= t->wanted[rank] == PITH_LINK_LATER;
}

static pith_status join_port(inproc_transport *t, int rank) {
  pith_address address;
  PITH_TRY(pith__directory_find(&t->directory, rank, &address));
  inproc_port *port = find_port(&address);
  PITH_REQUIRE(port, PITH_ERR_PEER, "inproc: rank %d is not there: it closed, or is of another process", rank);
  PITH_REQUIRE(port->rank == rank && port->ranks == t->port->ranks, PITH_ERR_PEER,
               "inproc: at the address of rank %d is rank %d of %d, maybe of another job", rank, port->rank,
               port->ranks);
  inproc_ring *ring = &port->ring[t->port->rank];
  ring->came = 1;
  ring->job = t->job;
  ring->from = t->port;
  t->port->holders++;
  hold_peer(t, rank, port);
  (void)!write(port->door, &(uint64_t){1}, sizeof(uint64_t)); /* can only fail when it rings already */
  return PITH_OK;
}

/* The first of our peers that does not know us yet, or -1. */
static int first_missing(const inproc_transport *t) {
  for (int rank = 0; rank < t->port->ranks; rank++) {
    if (t->wanted[rank] == PITH_LINK_NOW && !t->port->ring[rank].came) {
      return rank;
    }
  }
  return -1;
}

static struct timespec timespec_of(double seconds) {
  time_t whole = (time_t)seconds;
  return (struct timespec){whole, (long)((seconds - (double)whole) * 1e9)};
}

static pith_status check_job(const inproc_transport *t, int rank) {
  PITH_REQUIRE(t->port->ring[rank].job == t->job, PITH_ERR_PEER,
               "inproc: at the address of rank %d is a rank of another job", rank);
  return PITH_OK;
}

static pith_status connect_all(inproc_transport *t) {
  struct timespec end = timespec_of(pith__now() + t->timeout);
  for (int rank = 0; rank < t->port->ranks; rank++) {
    if (t->wanted[rank] == PITH_LINK_NOW) {
      PITH_TRY(join_port(t, rank));
    }
    t->missing += t->wanted[rank] == PITH_LINK_LATER;
  }
  pthread_cond_broadcast(&table.arrival);
  while (first_missing(t) >= 0) {
    int error = pthread_cond_timedwait(&table.arrival, &table.mutex, &end);
    PITH_REQUIRE(error != ETIMEDOUT || first_missing(t) < 0, PITH_ERR_TIMEOUT,
                 "inproc: rank %d did not connect within %g s", first_missing(t), t->timeout);
  }
  for (int rank = 0; rank < t->port->ranks; rank++) {
    PITH_TRY(t->wanted[rank] == PITH_LINK_NOW ? check_job(t, rank) : PITH_OK);
  }
  t->base.is_open = t->missing > 0;
  return PITH_OK;
}

static pith_status inproc_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                                  const pith_link_key *key) {
  inproc_transport *t = inproc_of(transport);
  t->directory = *directory;
  t->job = key->job;
  memcpy(t->wanted, wanted, (size_t)t->port->ranks);
  t->wanted[t->port->rank] = PITH_LINK_NEVER;
  pthread_mutex_lock(&table.mutex);
  pith_status status = connect_all(t);
  pthread_mutex_unlock(&table.mutex);
  return status;
}

/* ---- Links that are made later: one side asks, the other finds it in its port ------------------------------------ */

static pith_status inproc_ask(pith_transport *transport, int rank) {
  inproc_transport *t = inproc_of(transport);
  if (t->peer[rank] || t->wanted[rank] != PITH_LINK_LATER) {
    return PITH_OK;
  }
  pthread_mutex_lock(&table.mutex);
  pith_status status = join_port(t, rank);
  t->base.is_open = t->missing > 0;
  pthread_mutex_unlock(&table.mutex);
  return status;
}

static pith_status inproc_attend(pith_transport *transport) {
  inproc_transport *t = inproc_of(transport);
  uint64_t rings;
  pith_status status = PITH_OK;
  if (read(t->port->door, &rings, sizeof rings) < 0) {
    return PITH_OK;
  }
  pthread_mutex_lock(&table.mutex);
  for (int rank = 0; rank < t->port->ranks && status == PITH_OK; rank++) {
    if (t->port->ring[rank].came && !t->peer[rank] && t->wanted[rank] == PITH_LINK_LATER) {
      status = check_job(t, rank);
      if (status == PITH_OK) { /* it may have left already: its last bytes are here */
        hold_peer(t, rank, t->port->ring[rank].from);
      }
    }
  }
  t->base.is_open = t->missing > 0;
  pthread_mutex_unlock(&table.mutex);
  return status;
}

static int inproc_next_linked(pith_transport *transport) {
  inproc_transport *t = inproc_of(transport);
  return t->told < t->linked_count ? t->linked[t->told++] : -1;
}

static int inproc_door(pith_transport *transport, struct pollfd *fds, int most) {
  if (most < 1) {
    return 0;
  }
  fds[0] = (struct pollfd){inproc_of(transport)->port->door, POLLIN, 0};
  return 1;
}

/* Tells a peer that no more bytes come. */
static void end_ring(inproc_port *port, int sender) {
  pthread_mutex_lock(&port->mutex);
  port->ring[sender].ended = 1;
  ring_bell(port);
  pthread_mutex_unlock(&port->mutex);
}

static void inproc_close(pith_transport *transport) {
  inproc_transport *t = inproc_of(transport);
  if (!t || t->made_in != pith__fork_number()) {
    return; /* a child has none of the ranks but its own thread, and mutexes in any state */
  }
  pthread_mutex_lock(&table.mutex);
  unlist_port(t->port);
  pthread_mutex_unlock(&table.mutex);
  (void)inproc_attend(transport); /* who asked for a link is told that we leave */
  pthread_mutex_lock(&t->port->mutex);
  t->port->closed = 1;
  pthread_mutex_unlock(&t->port->mutex);
  for (int rank = 0; rank < t->port->ranks; rank++) {
    if (t->port->ring[rank].from) {
      release_port(t->port->ring[rank].from);
    }
    if (t->peer[rank]) {
      end_ring(t->peer[rank], t->port->rank);
      release_port(t->peer[rank]);
    }
  }
  release_port(t->port);
  free(t);
}

/* ---- Rings ------------------------------------------------------------------------------------------------------- */

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

/* How many of the n bytes there was room for. */
static size_t put(inproc_ring *ring, size_t capacity, const uint8_t *bytes, size_t n) {
  n = least(n, capacity - ring->used);
  size_t end = (ring->start + ring->used) % capacity, straight = least(n, capacity - end);
  memcpy(ring->bytes + end, bytes, straight);
  memcpy(ring->bytes, bytes + straight, n - straight);
  ring->used += n;
  return n;
}

static size_t get(inproc_ring *ring, size_t capacity, uint8_t *bytes, size_t n) {
  n = least(n, ring->used);
  size_t straight = least(n, capacity - ring->start);
  memcpy(bytes, ring->bytes + ring->start, straight);
  memcpy(bytes + straight, ring->bytes, n - straight);
  ring->start = (ring->start + n) % capacity;
  ring->used -= n;
  return n;
}

static size_t put_pieces(inproc_ring *ring, size_t capacity, const struct iovec *pieces, int count) {
  size_t sum = 0;
  for (int i = 0; i < count; i++) {
    size_t n = pieces[i].iov_len > 0 ? put(ring, capacity, pieces[i].iov_base, pieces[i].iov_len) : 0;
    sum += n;
    if (n < pieces[i].iov_len) {
      ring->wants_room = 1;
      break;
    }
  }
  return sum;
}

/* ---- Sending and receiving --------------------------------------------------------------------------------------- */

static pith_status send_locked(inproc_transport *t, inproc_port *to, const struct iovec *pieces, int count,
                               size_t *taken) {
  inproc_ring *ring = &to->ring[t->port->rank];
  PITH_REQUIRE(!to->closed, PITH_ERR_PEER, "inproc: rank %d is gone: it closed its links", to->rank);
  if (!ring->bytes) {
    ring->bytes = malloc(to->capacity);
    PITH_REQUIRE(ring->bytes, PITH_ERR_MEMORY, "inproc: no memory for bytes to rank %d", to->rank);
  }
  *taken = put_pieces(ring, to->capacity, pieces, count);
  t->starving[to->rank] = ring->wants_room;
  if (*taken > 0) {
    ring_bell(to);
  }
  return PITH_OK;
}

static pith_status inproc_send(pith_transport *transport, int rank, const struct iovec *pieces, int count,
                               size_t *taken) {
  inproc_transport *t = inproc_of(transport);
  inproc_port *to = t->peer[rank];
  pthread_mutex_lock(&to->mutex);
  pith_status status = send_locked(t, to, pieces, count, taken);
  pthread_mutex_unlock(&to->mutex);
  return status;
}

/* Sets *room if the sender waits for what was taken. */
static pith_status receive_locked(inproc_port *port, int rank, void *buffer, size_t size, size_t *got, int *room) {
  inproc_ring *ring = &port->ring[rank];
  PITH_REQUIRE(ring->used > 0 || !ring->ended || size == 0, PITH_ERR_PEER,
               "inproc: rank %d is gone: it closed its links", rank);
  *got = ring->used > 0 ? get(ring, port->capacity, buffer, size) : 0;
  if (*got > 0 && ring->wants_room) {
    ring->wants_room = 0;
    *room = 1;
  }
  return PITH_OK;
}

static pith_status inproc_receive(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  inproc_transport *t = inproc_of(transport);
  int room = 0;
  pthread_mutex_lock(&t->port->mutex);
  pith_status status = receive_locked(t->port, rank, buffer, size, got, &room);
  pthread_mutex_unlock(&t->port->mutex);
  if (room) {
    pthread_mutex_lock(&t->peer[rank]->mutex);
    ring_bell(t->peer[rank]);
    pthread_mutex_unlock(&t->peer[rank]->mutex);
  }
  return status;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

static int inproc_descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  (void)sending; /* sleep() knows which sends lack room */
  if (most < 1) {
    return 0;
  }
  fds[0] = (struct pollfd){inproc_of(transport)->port->bell, POLLIN, 0};
  return 1;
}

/* From here on every send to us, and every read of our bytes, rings. Returns whether there are bytes already, or an end
 * that the caller does not know of. */
static int fall_asleep(inproc_port *port) {
  int work = 0;
  pthread_mutex_lock(&port->mutex);
  port->asleep = 1;
  for (int rank = 0; rank < port->ranks; rank++) {
    inproc_ring *ring = &port->ring[rank];
    work |= ring->used > 0 || (ring->ended && !ring->told);
    ring->told = ring->ended;
  }
  pthread_mutex_unlock(&port->mutex);
  return work;
}

static void wake_up(inproc_port *port) {
  uint64_t rings;
  pthread_mutex_lock(&port->mutex);
  port->asleep = 0;
  (void)!read(port->bell, &rings, sizeof rings);
  pthread_mutex_unlock(&port->mutex);
}

/* Told once for each send that lacked room, whether or not the caller still wants it. */
static int has_room(inproc_transport *t, int rank) {
  inproc_port *to = t->peer[rank];
  pthread_mutex_lock(&to->mutex);
  int room = to->closed || to->ring[t->port->rank].used < to->capacity;
  pthread_mutex_unlock(&to->mutex);
  t->starving[rank] &= !room;
  return room;
}

static int inproc_sleep(pith_transport *transport, int asleep) {
  inproc_transport *t = inproc_of(transport);
  int work = asleep && fall_asleep(t->port);
  for (int rank = 0; asleep && rank < t->port->ranks; rank++) {
    work |= t->starving[rank] && has_room(t, rank);
  }
  if (!asleep || work) {
    wake_up(t->port);
  }
  return work;
}

static pith_status inproc_probe(void) { return PITH_OK; }

const pith_transport_ops pith__transport_inproc = {
    .name = "inproc",
    .summary = "threads of one process",
    .probe = inproc_probe,
    .listen = inproc_listen,
    .connect = inproc_connect,
    .ask = inproc_ask,
    .attend = inproc_attend,
    .next_linked = inproc_next_linked,
    .door = inproc_door,
    .send = inproc_send,
    .receive = inproc_receive,
    .descriptors = inproc_descriptors,
    .sleep = inproc_sleep,
    .close = inproc_close,
};

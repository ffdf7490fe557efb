/* SPDX-License-Identifier: Apache-2.0 */
/*
 * shm: the ranks of one host, over memory they share. shm_segment.h says what lies there, shm_link.h how they connect.
 *
 * To send is to copy bytes into a free cell of the own segment and to write one slot into the receiver's; to receive is
 * to copy out of the sender's cell and to count it emptied. While both are awake there is no system call in this. A
 * rank that is about to sleep says so in its segment and looks for slots once more; a rank that wrote a slot looks at
 * that word afterwards. Both are sequentially consistent, so that one of the two sees the other and no wake-up is lost.
 * The doorbell is a byte through the Unix socket.
 *
 * Whatever a peer can write is read once, checked, and used from the copy.
 */
#include "transport/shm.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/forked.h"
#include "base/log.h"
#include "transport/shm_link.h"
#include "transport/sockets.h"

/* With so many cells in flight we look for emptied ones. Full cells that were reused sooner would be written again
 * while the reader's core still holds them, and each line would have to be fetched back from there; of nearly empty
 * ones, whose first lines all compete for the same places of a cache, as few as possible are in use. */
#define HOT_FULL 32
#define HOT_SHORT 8
#define SHORT_LENGTH 4096

#define EVENTS 16       /* taken from the system at a time */
#define IDLE_CALLS 1024 /* calls without bytes until we look whether the peers live */

/* Peers of the first segment. Each further one is for three times as many as there are, and has smaller cells: memory
 * grows with the peers, and a few of them have much. */
#define FIRST_PEERS 16
#define LATER_POOL (1u << 20)
#define POOLS_MOST 12

typedef enum peer_state { PEER_ALIVE, PEER_GONE, PEER_BROKEN } peer_state;

/* A segment of ours, for some of the peers. */
typedef struct shm_pool {
  pith_shm_segment segment;
  int memory;       /* its descriptor; -1: nobody else gets it */
  uint32_t inboxes; /* given to peers */
  uint16_t *free;   /* a stack of cells */
  uint32_t frees;
  uint32_t unserved; /* living peers without a cell in flight: one free cell is kept for each */
} shm_pool;

typedef struct shm_peer {
  pith_shm_link link;
  shm_pool *pool;           /* which segment of ours it has */
  pith_shm_segment segment; /* theirs */

  /* What we send: into their inbox that is ours, cells of our own. */
  pith_shm_inbox *out;
  uint16_t *sent_cells;     /* those sent and not yet emptied, a ring of link.shape.slots */
  uint32_t sent, reclaimed; /* counts, ever */
  uint32_t most;            /* cells in flight at once */
  uint32_t hot;             /* HOT_FULL or HOT_SHORT, as the last one was */
  uint32_t rung;            /* the sleep we woke them from last */

  /* What we receive: from our inbox that is theirs, cells of theirs. */
  pith_shm_inbox *in;
  uint32_t taken;    /* slots, ever */
  const uint8_t *at; /* the rest of the cell we are reading */
  size_t left;

  peer_state state;
  uint8_t starving;   /* a send wanted more room than there was */
  uint8_t unreported; /* its state changed, and the caller does not know yet */
} shm_peer;

typedef struct shm_transport {
  pith_transport base;
  pith_transport_config config;
  unsigned made_in; /* which process: base/forked.h */
  int listener, events;
  shm_pool pools[POOLS_MOST];
  int pool_count;
  uint8_t *wanted;    /* of every rank: PITH_LINK_… */
  shm_peer **by_rank; /* NULL: nothing of a link is there */
  shm_peer **peers;   /* those that are linked */
  int count, told;    /* told: how many of them next_linked has told */
  int possible, made; /* peers that there can be, and those in by_rank */
  uint32_t idle;      /* calls without bytes since we looked after the peers */
  pith_link_key key;
  pith_shm_setup setup;
  pith_status failed; /* of a link that was established and could not be opened */
} shm_transport;

static shm_transport *shm_of(pith_transport *transport) { return (shm_transport *)(void *)transport; }

const pith_shm_segment *pith__shm_own_segment(const pith_transport *transport) {
  return &((const shm_transport *)(const void *)transport)->pools[0].segment;
}

/* ---- The state of peers ------------------------------------------------------------------------------------------ */

static pith_status fail_peer(const shm_peer *peer) {
  if (peer->state == PEER_BROKEN) {
    return pith_fail(PITH_ERR_PEER, "shm: rank %d wrote invalid data into shared memory: a fault in that process",
                     peer->link.rank);
  }
  return pith_fail(
      PITH_ERR_PEER,
      "shm: rank %d is gone: it ended, was killed, or closed its links; see its output, and the system's log "
      "for a lack of memory",
      peer->link.rank);
}

static uint32_t in_flight(const shm_peer *peer) { return peer->sent - peer->reclaimed; }

/* Takes back the oldest n cells in flight to a peer. */
static void reclaim_cells(shm_peer *peer, uint32_t n) {
  shm_pool *pool = peer->pool;
  if (n == 0) {
    return;
  }
  while (n-- > 0) {
    pool->free[pool->frees++] = peer->sent_cells[peer->reclaimed++ & (peer->link.shape.slots - 1)];
  }
  if (in_flight(peer) == 0) {
    pool->unserved++;
  }
}

/* A dead peer reads no more: its cells are for others, and none is kept for it. */
static void lose_peer(shm_transport *t, shm_peer *peer, peer_state state) {
  if (peer->state != PEER_ALIVE) {
    return;
  }
  peer->state = state;
  peer->unreported = 1;
  peer->starving = 0;
  if (state == PEER_GONE) {
    reclaim_cells(peer, in_flight(peer));
  }
  if (in_flight(peer) == 0) {
    peer->pool->unserved--;
  }
  if (peer->link.process >= 0) {
    epoll_ctl(t->events, EPOLL_CTL_DEL, peer->link.process, NULL);
  }
  epoll_ctl(t->events, EPOLL_CTL_DEL, peer->link.socket, NULL);
}

/* Takes the bytes that rang; returns whether the peer still is there. */
static int answer_bell(const shm_peer *peer) {
  char bytes[8];
  for (int i = 0; i < EVENTS; i++) { /* what is left rings again */
    ssize_t size = recv(peer->link.socket, bytes, sizeof bytes, MSG_DONTWAIT);
    if (size <= 0) {
      return size < 0 && (errno == EAGAIN || errno == EINTR);
    }
  }
  return 1;
}

/* Events are numbered by peer: even for its socket, odd for its process. */
static void poll_peers(shm_transport *t) {
  struct epoll_event events[EVENTS];
  int n = epoll_wait(t->events, events, EVENTS, 0);
  for (int i = 0; i < n; i++) {
    shm_peer *peer = t->peers[events[i].data.u32 / 2];
    int is_process = events[i].data.u32 % 2;
    if (is_process || !answer_bell(peer)) {
      lose_peer(t, peer, PEER_GONE);
    }
  }
}

/* For callers that spin and never sleep. */
static void count_idle_call(shm_transport *t) {
  if (++t->idle >= IDLE_CALLS) {
    t->idle = 0;
    poll_peers(t);
  }
}

/* ---- The doorbell ------------------------------------------------------------------------------------------------ */

/* Rings if the peer sleeps for such a reason, once for each of its sleeps. A full socket has rung already. Follows a
 * sequentially consistent store of what it is to find. */
static void ring_bell(shm_peer *peer, uint32_t reason) {
  uint32_t word = atomic_load_explicit(&pith__shm_state_of(&peer->segment)->word, memory_order_seq_cst);
  if ((word & reason) && word != peer->rung) {
    peer->rung = word;
    while (send(peer->link.socket, "", 1, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 && errno == EINTR) {
    }
  }
}

/* ---- Sending ----------------------------------------------------------------------------------------------------- */

static pith_status reclaim_emptied(shm_transport *t, shm_peer *peer) {
  uint32_t emptied = atomic_load_explicit(&peer->out->emptied, memory_order_seq_cst) - peer->reclaimed;
  if (emptied > in_flight(peer)) {
    lose_peer(t, peer, PEER_BROKEN);
    return fail_peer(peer);
  }
  reclaim_cells(peer, emptied);
  return PITH_OK;
}

static void reclaim_from_all(shm_transport *t, const shm_pool *pool) {
  for (int i = 0; i < t->count; i++) {
    shm_peer *peer = t->peers[i];
    if (peer->pool == pool && peer->state == PEER_ALIVE && in_flight(peer) > 0) {
      (void)reclaim_emptied(t, peer); /* invalid data is reported when that peer is used */
    }
  }
}

/* Whether the pool has a cell for the peer: peers with none in flight each have one kept, so that none can starve
 * another. */
static int may_take_cell(const shm_peer *peer) {
  return peer->pool->frees > peer->pool->unserved - (in_flight(peer) == 0);
}

static int has_room(shm_transport *t, shm_peer *peer) {
  if (in_flight(peer) >= peer->hot || in_flight(peer) >= peer->most) {
    (void)reclaim_emptied(t, peer); /* invalid data changes its state */
  }
  if (peer->state != PEER_ALIVE || in_flight(peer) >= peer->most) {
    return 0;
  }
  if (!may_take_cell(peer)) {
    reclaim_from_all(t, peer->pool);
  }
  return peer->state == PEER_ALIVE && may_take_cell(peer);
}

static uint32_t take_cell(shm_peer *peer) {
  peer->pool->unserved -= in_flight(peer) == 0;
  return peer->pool->free[--peer->pool->frees];
}

static void publish_cell(shm_peer *peer, uint32_t cell, uint32_t length) {
  uint32_t slots = peer->link.shape.slots, slot = peer->sent & (slots - 1);
  uint64_t word = pith__shm_slot(pith__shm_lap(peer->sent, slots), cell, length);
  peer->sent_cells[slot] = (uint16_t)cell;
  peer->hot = length > SHORT_LENGTH ? HOT_FULL : HOT_SHORT;
  peer->sent++;
  atomic_store_explicit(&peer->out->slot[slot], word, memory_order_seq_cst);
  ring_bell(peer, PITH_SHM_ASLEEP);
}

/* A place in a list of pieces. */
typedef struct pieces_at {
  const struct iovec *piece;
  int count;
  size_t offset; /* in the first of them */
} pieces_at;

static void skip_empty(pieces_at *at) {
  while (at->count > 0 && at->offset == at->piece->iov_len) {
    at->piece++, at->count--, at->offset = 0;
  }
}

static uint32_t fill_cell(uint8_t *cell, size_t room, pieces_at *at) {
  size_t filled = 0;
  while (at->count > 0 && filled < room) {
    size_t rest = at->piece->iov_len - at->offset, n = rest < room - filled ? rest : room - filled;
    pith__copy(cell + filled, (const uint8_t *)at->piece->iov_base + at->offset, n);
    filled += n;
    at->offset += n;
    skip_empty(at);
  }
  return (uint32_t)filled;
}

static pith_status shm_send(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken) {
  shm_transport *t = shm_of(transport);
  shm_peer *peer = t->by_rank[rank];
  const pith_shm_segment *own = &peer->pool->segment;
  pieces_at at = {pieces, count, 0};
  size_t sum = 0;
  for (skip_empty(&at); at.count > 0 && has_room(t, peer);) {
    uint32_t cell = take_cell(peer);
    uint32_t length = fill_cell(pith__shm_cell_of(own, cell), own->shape.cell_size, &at);
    publish_cell(peer, cell, length);
    sum += length;
  }
  if (sum == 0) {
    count_idle_call(t);
  }
  if (peer->state != PEER_ALIVE) {
    return fail_peer(peer);
  }
  peer->starving = at.count > 0;
  *taken = sum;
  return PITH_OK;
}

/* ---- Receiving --------------------------------------------------------------------------------------------------- */

typedef enum slot_state { SLOT_OLD, SLOT_NEW, SLOT_NONSENSE } slot_state;

/* Looks at the next slot of a peer; slots that are neither of this lap nor of the one before are invalid. */
static slot_state next_slot(const shm_peer *peer, uint64_t *word) {
  uint32_t slots = peer->pool->segment.shape.slots;
  uint16_t lap = pith__shm_lap(peer->taken, slots);
  *word = atomic_load_explicit(&peer->in->slot[peer->taken & (slots - 1)], memory_order_seq_cst);
  if (pith__shm_slot_lap(*word) == (uint16_t)(lap - 1)) {
    return SLOT_OLD;
  }
  uint32_t length = pith__shm_slot_length(*word);
  int is_sane = pith__shm_slot_lap(*word) == lap && pith__shm_slot_cell(*word) < peer->link.shape.cells && length > 0 &&
                length <= peer->link.shape.cell_size;
  return is_sane ? SLOT_NEW : SLOT_NONSENSE;
}

/* Starts with the next cell; whether there is one. */
static int open_cell(shm_transport *t, shm_peer *peer) {
  uint64_t word;
  slot_state state = next_slot(peer, &word);
  if (state == SLOT_NONSENSE) {
    lose_peer(t, peer, PEER_BROKEN);
    peer->state = PEER_BROKEN; /* also of one that is gone */
  }
  if (state != SLOT_NEW) {
    return 0;
  }
  peer->at = pith__shm_cell_of(&peer->segment, pith__shm_slot_cell(word));
  peer->left = pith__shm_slot_length(word);
  __builtin_prefetch(peer->at); /* a header, and the values behind it: the second line need not wait for the first */
  __builtin_prefetch(peer->at + PITH_SHM_LINE);
  return 1;
}

static void give_cell_back(shm_peer *peer) {
  peer->taken++;
  atomic_store_explicit(&peer->in->emptied, peer->taken, memory_order_seq_cst);
  if (peer->state == PEER_ALIVE) {
    ring_bell(peer, PITH_SHM_STARVING);
  }
}

static size_t read_cells(shm_transport *t, shm_peer *peer, uint8_t *buffer, size_t size) {
  size_t sum = 0;
  while (sum < size && (peer->left > 0 || open_cell(t, peer))) {
    size_t n = peer->left < size - sum ? peer->left : size - sum;
    pith__copy(buffer + sum, peer->at, n);
    sum += n;
    peer->at += n;
    peer->left -= n;
    if (peer->left == 0) {
      give_cell_back(peer);
    }
  }
  return sum;
}

/* The state is read first: what a peer wrote before it ended is seen after. */
static pith_status shm_receive(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  shm_transport *t = shm_of(transport);
  shm_peer *peer = t->by_rank[rank];
  int was_lost = peer->state != PEER_ALIVE;
  size_t sum = peer->state == PEER_BROKEN ? 0 : read_cells(t, peer, buffer, size);
  if (sum == 0 && size > 0) {
    if (was_lost || peer->state == PEER_BROKEN) {
      peer->unreported = 0;
      return fail_peer(peer);
    }
    count_idle_call(t);
  }
  *got = sum;
  return PITH_OK;
}

/* ---- Sleeping ---------------------------------------------------------------------------------------------------- */

static int shm_descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  (void)sending; /* sleep() knows which sends lack room */
  if (most < 1) {
    return 0;
  }
  fds[0] = (struct pollfd){shm_of(transport)->events, POLLIN, 0};
  return 1;
}

/* Whether there is something to do for a peer now. A change of state and new room are reported once: the caller need
 * not act on them. */
static int has_work(shm_transport *t, shm_peer *peer) {
  uint64_t word;
  int work = peer->unreported || peer->left > 0 || (peer->state != PEER_BROKEN && next_slot(peer, &word) != SLOT_OLD);
  peer->unreported = 0;
  if (peer->starving) {
    (void)reclaim_emptied(t, peer);
    if (peer->state != PEER_ALIVE || has_room(t, peer)) {
      peer->starving = 0;
      work = 1;
    }
  }
  return work;
}

static uint32_t sleep_bits(const shm_transport *t) {
  for (int i = 0; i < t->count; i++) {
    if (t->peers[i]->starving) {
      return PITH_SHM_ASLEEP | PITH_SHM_STARVING;
    }
  }
  return PITH_SHM_ASLEEP;
}

/* Moves on to the next count, so that peers can tell this sleep from the last. */
static void set_state(shm_transport *t, uint32_t bits) {
  for (int i = 0; i < t->pool_count; i++) {
    _Atomic uint32_t *word = &pith__shm_state_of(&t->pools[i].segment)->word;
    uint32_t count = atomic_load_explicit(word, memory_order_relaxed) / PITH_SHM_NEXT + 1;
    atomic_store_explicit(word, count * PITH_SHM_NEXT | bits, memory_order_seq_cst);
  }
}

static int shm_sleep(pith_transport *transport, int asleep) {
  shm_transport *t = shm_of(transport);
  if (!asleep) {
    set_state(t, 0);
    poll_peers(t);
    return 0;
  }
  set_state(t, sleep_bits(t));
  int work = 0;
  for (int i = 0; i < t->count; i++) {
    work |= has_work(t, t->peers[i]);
  }
  if (work) {
    set_state(t, 0);
  }
  return work;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

static void free_pool(shm_pool *pool) {
  pith__shm_segment_unmap(&pool->segment);
  pith__fd_close(pool->memory);
  free(pool->free);
}

static void free_peer(shm_peer *peer, int is_ours) {
  if (peer && is_ours) {
    pith__shm_link_close(&peer->link);
  }
  if (peer) {
    pith__shm_segment_unmap(&peer->segment);
    free(peer->sent_cells);
  }
  free(peer);
}

/* Nobody is left to link with: no other process needs to know our name, or gets our memory. */
static void end_setup(shm_transport *t, int is_child) {
  pith__shm_link_end(&t->setup, is_child);
  if (!is_child) {
    pith__fd_close(t->listener);
  }
  for (int i = 0; i < t->pool_count; i++) {
    pith__fd_close(is_child ? -1 : t->pools[i].memory);
    t->pools[i].memory = -1;
  }
  t->listener = -1;
  t->base.is_open = 0;
}

static void shm_close(pith_transport *transport) {
  shm_transport *t = shm_of(transport);
  if (!t) {
    return;
  }
  int is_ours = t->made_in == pith__fork_number(); /* a child has closed its copies already */
  end_setup(t, !is_ours);
  for (int rank = 0; t->by_rank && rank < t->config.ranks; rank++) {
    free_peer(t->by_rank[rank], is_ours);
  }
  for (int i = 0; i < t->pool_count; i++) {
    free_pool(&t->pools[i]);
  }
  if (is_ours) {
    pith__fd_close(t->events);
  }
  free(t->wanted);
  free(t->by_rank);
  free(t->peers);
  free(t);
}

static pith_status shm_listen(const pith_transport_config *config, pith_transport **transport, pith_address *address) {
  shm_transport *t = calloc(1, sizeof *t);
  PITH_REQUIRE(t, PITH_ERR_MEMORY, "shm: no memory for a transport");
  t->base.ops = &pith__transport_shm;
  t->config = *config;
  t->made_in = pith__fork_number();
  t->listener = t->events = -1;
  pith_status status = pith__shm_link_listen(&t->listener, address);
  if (status != PITH_OK) {
    shm_close(&t->base);
    return status;
  }
  *transport = &t->base;
  return PITH_OK;
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

/* `peers`: how many it is for. */
static pith_status make_pool(shm_transport *t, uint32_t peers) {
  shm_pool *pool = &t->pools[t->pool_count];
  pith_shm_shape shape = pith__shm_shape(peers, t->pool_count == 0 ? PITH_SHM_POOL : LATER_POOL);
  PITH_REQUIRE(t->pool_count < POOLS_MOST, PITH_ERR_RANGE, "shm: no segment for so many peers");
  *pool = (shm_pool){.memory = -1};
  pool->free = malloc(shape.cells * sizeof *pool->free);
  PITH_REQUIRE(pool->free, PITH_ERR_MEMORY, "shm: no memory for %u cells", shape.cells);
  pith_status status = pith__shm_segment_create(&shape, &pool->segment, &pool->memory);
  if (status != PITH_OK) {
    free(pool->free);
    return status;
  }
  pith__fd_keep(pool->memory);
  while (pool->frees < shape.cells) { /* the first cell on top */
    pool->free[pool->frees] = (uint16_t)(shape.cells - 1 - pool->frees);
    pool->frees++;
  }
  t->pool_count++;
  return PITH_OK;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The segment that has an inbox for one more peer. */
static pith_status have_pool(shm_transport *t, shm_pool **found) {
  shm_pool *last = t->pool_count ? &t->pools[t->pool_count - 1] : NULL;
  if (!last || last->inboxes == last->segment.shape.inboxes) {
    PITH_TRY(make_pool(t, least((uint32_t)(t->possible - t->made), 3 * (uint32_t)t->made)));
  }
  *found = &t->pools[t->pool_count - 1];
  return PITH_OK;
}

static pith_shm_link *find_link(const void *owner, int rank) {
  shm_peer *peer = ((const shm_transport *)owner)->by_rank[rank];
  return peer ? &peer->link : NULL;
}

static pith_shm_link *have_link(void *owner, int rank) {
  shm_transport *t = owner;
  shm_pool *pool;
  if (t->by_rank[rank]) {
    return &t->by_rank[rank]->link;
  }
  shm_peer *peer = have_pool(t, &pool) == PITH_OK ? calloc(1, sizeof *peer) : NULL;
  if (!peer) {
    return NULL;
  }
  peer->pool = pool;
  peer->link = (pith_shm_link){.rank = rank, .socket = -1, .process = -1, .memory = -1};
  peer->link.own.memory = pool->memory;
  peer->link.own.shape = pool->segment.shape;
  peer->link.own.inbox = pool->inboxes++;
  t->by_rank[rank] = peer;
  t->made++;
  return &peer->link;
}

static pith_status watch(shm_transport *t, int fd, uint32_t number) {
  struct epoll_event event = {.events = EPOLLIN, .data.u32 = number};
  PITH_REQUIRE(fd < 0 || epoll_ctl(t->events, EPOLL_CTL_ADD, fd, &event) == 0, PITH_ERR_SYSTEM,
               "shm: cannot watch peers: %s", strerror(errno));
  return PITH_OK;
}

/* Maps the segment that a peer sent. */
static pith_status open_peer(shm_transport *t, shm_peer *peer) {
  uint32_t index = (uint32_t)t->count;
  PITH_TRY(pith__shm_segment_map(peer->link.memory, &peer->link.shape, peer->link.rank, &peer->segment));
  close(peer->link.memory);
  peer->link.memory = -1;
  uint32_t slots = peer->link.shape.slots;
  peer->most = least(peer->pool->segment.shape.slots, slots);
  peer->sent_cells = malloc(slots * sizeof *peer->sent_cells);
  PITH_REQUIRE(peer->sent_cells, PITH_ERR_MEMORY, "shm: no memory for %u cells", slots);
  peer->out = pith__shm_inbox_of(&peer->segment, peer->link.inbox);
  PITH_TRY(watch(t, peer->link.socket, 2 * index));
  PITH_TRY(watch(t, peer->link.process, 2 * index + 1));
  peer->in = pith__shm_inbox_of(&peer->pool->segment, peer->link.own.inbox);
  peer->pool->unserved++;
  t->peers[t->count++] = peer;
  return PITH_OK;
}

static void note_established(void *owner, pith_shm_link *link) {
  shm_transport *t = owner;
  pith_status status = open_peer(t, t->by_rank[link->rank]);
  t->failed = t->failed == PITH_OK ? status : t->failed;
}

static pith_status prepare(shm_transport *t, const pith_directory *directory, const uint8_t *wanted,
                           const pith_link_key *key) {
  int ranks = t->config.ranks, now = 0;
  t->wanted = calloc((size_t)ranks, 1);
  t->by_rank = calloc((size_t)ranks, sizeof *t->by_rank);
  t->peers = calloc((size_t)ranks, sizeof *t->peers);
  PITH_REQUIRE(t->wanted && t->by_rank && t->peers, PITH_ERR_MEMORY, "shm: no memory for %d peers", ranks);
  for (int rank = 0; rank < ranks; rank++) {
    t->wanted[rank] = rank == t->config.rank ? PITH_LINK_NEVER : wanted[rank];
    t->possible += t->wanted[rank] != PITH_LINK_NEVER;
    now += t->wanted[rank] == PITH_LINK_NOW;
  }
  t->events = pith__fd_keep(epoll_create1(EPOLL_CLOEXEC));
  PITH_REQUIRE(t->events >= 0, PITH_ERR_SYSTEM, "shm: cannot watch peers: %s", strerror(errno));
  PITH_TRY(make_pool(t, least((uint32_t)t->possible, now > FIRST_PEERS ? (uint32_t)now : FIRST_PEERS)));
  pith__descriptors_reserve(4 * t->possible); /* of each peer: socket, process and, for a while, memory */
  t->key = *key;
  t->setup = (pith_shm_setup){.config = &t->config,
                              .key = &t->key,
                              .directory = *directory,
                              .wanted = t->wanted,
                              .listener = t->listener,
                              .have = have_link,
                              .find = find_link,
                              .established = note_established,
                              .owner = t,
                              .end = pith__now() + pith__connect_seconds(&t->base, t->config.timeout)};
  return PITH_OK;
}

static pith_status shm_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                               const pith_link_key *key) {
  shm_transport *t = shm_of(transport);
  PITH_REQUIRE(!t->peers, PITH_ERR_STATE, "shm: connected already");
  PITH_TRY(prepare(t, directory, wanted, key));
  pith_status status = pith__shm_link_connect(&t->setup);
  status = status == PITH_OK ? t->failed : status;
  t->base.is_open = 1;
  if (status != PITH_OK || t->count == t->possible) {
    end_setup(t, 0);
  }
  return status;
}

static pith_status shm_ask(pith_transport *transport, int rank) {
  shm_transport *t = shm_of(transport);
  return t->base.is_open ? pith__shm_link_ask(&t->setup, rank) : PITH_OK;
}

static pith_status shm_attend(pith_transport *transport) {
  shm_transport *t = shm_of(transport);
  if (!t->base.is_open) {
    return PITH_OK;
  }
  pith_status status = pith__shm_link_attend(&t->setup);
  status = status == PITH_OK ? t->failed : status;
  if (t->count == t->possible) {
    end_setup(t, 0);
  }
  return status;
}

static int shm_next_linked(pith_transport *transport) {
  shm_transport *t = shm_of(transport);
  return t->told < t->count ? t->peers[t->told++]->link.rank : -1;
}

static int shm_door(pith_transport *transport, struct pollfd *fds, int most) {
  shm_transport *t = shm_of(transport);
  return t->base.is_open ? pith__shm_link_door(&t->setup, fds, most) : 0;
}

static pith_status shm_probe(void) {
  pith_shm_shape shape = {1, 1, 1, 1};
  pith_shm_segment segment;
  int fd;
  PITH_TRY(pith__shm_segment_create(&shape, &segment, &fd));
  pith__shm_segment_unmap(&segment);
  close(fd);
  pith_address address;
  PITH_TRY(pith__shm_link_listen(&fd, &address));
  pith__fd_close(fd);
  return PITH_OK;
}

const pith_transport_ops pith__transport_shm = {
    .name = "shm",
    .summary = "processes of one host, over shared memory",
    .probe = shm_probe,
    .listen = shm_listen,
    .connect = shm_connect,
    .send = shm_send,
    .receive = shm_receive,
    .descriptors = shm_descriptors,
    .sleep = shm_sleep,
    .ask = shm_ask,
    .attend = shm_attend,
    .next_linked = shm_next_linked,
    .door = shm_door,
    .close = shm_close,
};

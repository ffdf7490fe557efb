/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mpi: the streams of bytes as MPI messages, so that ranks started by mpirun or srun use whatever network their MPI
 * knows.
 *
 * All links of a process share one duplicate of MPI_COMM_WORLD; a listener has two tags of its own there, which its
 * address names, so that making a comm or splitting one needs no collective call of MPI. Who wants a link sends a
 * greeting to the second tag, where one receive from anybody is posted, and who gets one answers with its own: the link
 * is established on the side that has sent one and got one. A stream travels in pieces to the first tag: the receiver
 * keeps some receives posted for each peer, the sender copies into a few buffers of its own. MPI delivers pieces of one
 * sender and tag in order. An empty message comes last.
 *
 * MPI moves bytes only while a thread calls it. Once the comm has given us its bytes it may not call again for long,
 * so a progress thread calls MPI while sends are in flight. One mutex guards every call of MPI.
 *
 * MPI itself decides what happens when a process dies: mpirun usually ends the whole job.
 */
#include <dlfcn.h>
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/clock.h"
#include "transport/module.h"

#define PIECE ((size_t)64 << 10)
#define PIECE_SHORT ((size_t)4000) /* what every MPI sends at once, without asking the receiver first */
#define SHORT_MOST (3 * PIECE_SHORT)
#define SLOTS 4 /* pieces in flight to a peer, and from it */
#define KEEPER_NAP_NS 200000
#define KEEPER_NAP_BUSY_NS 1000000 /* while the comm does its work */
#define LINGER 1.0                 /* seconds that a rank which leaves gives to the others */
#define FAREWELL 0.05              /* seconds to hear the others leave, too */

static const pith_transport_host *host;
#define pith_fail host->fail

/* ---- MPI as a whole ---------------------------------------------------------------------------------------------- */

static struct {
  pthread_mutex_t mutex; /* of all calls of MPI, and of what follows */
  MPI_Comm comm;
  MPI_Request duplication;
  int started, ours, tags, tags_most;
  int open; /* transports */
  pid_t process;
} mpi = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void lock(void) { pthread_mutex_lock(&mpi.mutex); }

static void unlock(void) { pthread_mutex_unlock(&mpi.mutex); }

static pith_status failed(int code, const char *what) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int size;
  MPI_Error_string(code, text, &size);
  return pith_fail(PITH_ERR_SYSTEM, "mpi: %s: %s", what, text);
}

#define MPI_TRY(call)                     \
  do {                                    \
    int mpi_try_code = (call);            \
    if (mpi_try_code != MPI_SUCCESS) {    \
      return failed(mpi_try_code, #call); \
    }                                     \
  } while (0)

/* Whether all ranks come to their end, too, within some seconds. */
static int all_end(double seconds) {
  MPI_Request request;
  int done = 0;
  double end = pith__now() + seconds;
  if (!mpi.started || mpi.duplication != MPI_REQUEST_NULL || MPI_Ibarrier(mpi.comm, &request) != MPI_SUCCESS) {
    return 0;
  }
  while (MPI_Test(&request, &done, MPI_STATUS_IGNORE) == MPI_SUCCESS && !done && pith__now() < end) {
    sched_yield();
  }
  return done;
}

/* MPI_Finalize waits for all ranks. A rank that fails must not wait for one that never comes, nor may one whose comm is
 * still open and awaited: without MPI_Finalize, mpirun notices and ends the job. */
static void finalize_at_exit(int code, void *unused) {
  int over = 0;
  (void)unused;
  if (getpid() != mpi.process || mpi.open > 0 || MPI_Finalized(&over) != MPI_SUCCESS || over) {
    return;
  }
  if (code == 0 || all_end(LINGER)) {
    MPI_Finalize();
  }
}

/* Open MPI's own plug-ins may look for its symbols in the global scope; we were opened into a local one. */
static void make_global(void) {
#ifdef OPEN_MPI
  Dl_info info;
  void *symbol;
  int (*init)(int *, char ***, int, int *) = MPI_Init_thread;
  memcpy(&symbol, &init, sizeof symbol);
  if (dladdr(symbol, &info) && info.dli_fname) {
    (void)!dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  }
#endif
}

static pith_status initialize(void) {
  int level = 0;
  PITH_REQUIRE(getenv("OMPI_COMM_WORLD_RANK") || getenv("PMI_RANK") || getenv("PMIX_RANK"), PITH_ERR_UNSUPPORTED,
               "mpi: this process was not started by mpirun or srun, so MPI knows no other ranks");
  make_global();
  MPI_TRY(MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level));
  mpi.ours = 1;
  mpi.process = getpid();
  on_exit(finalize_at_exit, NULL);
  PITH_REQUIRE(level >= MPI_THREAD_SERIALIZED, PITH_ERR_UNSUPPORTED, "mpi: this MPI was built without threads");
  return PITH_OK;
}

static pith_status check_threads(void) {
  int level = 0;
  MPI_TRY(MPI_Query_thread(&level));
  PITH_REQUIRE(level == MPI_THREAD_MULTIPLE, PITH_ERR_UNSUPPORTED,
               "mpi: the program initialised MPI without MPI_THREAD_MULTIPLE, but Pith calls it from other threads");
  return PITH_OK;
}

/* Begins the only collective call; finish_start waits for it. */
static pith_status start(void) {
  int initialized = 0, finalized = 0, found = 0, *most = NULL;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  PITH_REQUIRE(!finalized, PITH_ERR_UNSUPPORTED, "mpi: the program has called MPI_Finalize already");
  if (mpi.started) {
    return PITH_OK;
  }
  if (!mpi.ours) {
    PITH_TRY(initialized ? check_threads() : initialize());
  }
  MPI_TRY(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &most, &found));
  mpi.tags_most = found ? *most : 32767;
  MPI_TRY(MPI_Comm_idup(MPI_COMM_WORLD, &mpi.comm, &mpi.duplication));
  mpi.process = getpid(); /* the program may have initialised MPI */
  mpi.started = 1;
  return PITH_OK;
}

static pith_status finish_start(int *done) {
  *done = mpi.duplication == MPI_REQUEST_NULL;
  if (!*done) {
    MPI_TRY(MPI_Test(&mpi.duplication, done, MPI_STATUS_IGNORE));
    if (*done) {
      MPI_TRY(MPI_Comm_set_errhandler(mpi.comm, MPI_ERRORS_RETURN));
    }
  }
  return PITH_OK;
}

/* ---- Links ------------------------------------------------------------------------------------------------------- */

typedef struct slot {
  MPI_Request request; /* MPI_REQUEST_NULL: idle (out) or arrived (in) */
  size_t size, at;     /* bytes that came, and how many of them were given */
} slot;

typedef struct mpi_greeting {
  uint64_t token; /* the receiver's, and the job: it proves that the sender means this very listener */
  uint64_t rank;
} mpi_greeting;

typedef struct mpi_peer {
  int rank;
  int world, tag; /* where our bytes for it go; its come to our own tag */
  mpi_greeting greeting;
  MPI_Request greeting_sent;
  uint8_t greeted, starving; /* greeted: it has greeted us, so that the link is established */
  uint8_t ended, told;       /* no more bytes come; the sleeper knows */
  int error;                 /* MPI's, from a send */
  unsigned in_first, out_first, out_used;
  slot in[SLOTS], out[SLOTS];
  uint8_t *memory; /* SLOTS pieces in, then SLOTS out */
  MPI_Request end;
} mpi_peer;

typedef struct mpi_transport {
  pith_transport base;
  int rank, ranks, tag, closing;
  double timeout;
  uint64_t token, job;
  pith_directory directory;
  uint8_t *wanted;       /* PITH_LINK_… */
  int later;             /* peers that may be linked later */
  mpi_greeting greeting; /* the next one that comes */
  MPI_Request greeting_came;
  mpi_peer **peers; /* those in `peer`, in the order in which they were made */
  int peer_count;
  int *linked;
  int linked_count, told;
  int in_flight;  /* pieces out, to all peers */
  unsigned calls; /* of the comm */
  int resting;    /* the progress thread sleeps until it is woken */
  pthread_cond_t flying;
  pthread_t progress_thread;
  mpi_peer *peer[]; /* of every rank; NULL: nothing of a link is there */
} mpi_transport;

/* What an address holds. Ranks of one MPI job run the same build of MPI on one kind of machine. */
typedef struct mpi_place {
  int32_t world, tag;
  uint64_t token;
} mpi_place;

static const pith_transport_ops ops; /* at the end */

static mpi_transport *mpi_of(pith_transport *transport) { return (mpi_transport *)(void *)transport; }

static uint8_t *in_bytes(const mpi_peer *peer, unsigned i) { return peer->memory + i * PIECE; }

static uint8_t *out_bytes(const mpi_peer *peer, unsigned i) { return peer->memory + (SLOTS + i) * PIECE; }

static pith_status gone(const mpi_peer *peer, int rank) {
  char text[MPI_MAX_ERROR_STRING] = "it closed its links";
  int size;
  if (peer->error != MPI_SUCCESS) {
    MPI_Error_string(peer->error, text, &size);
  }
  return pith_fail(PITH_ERR_PEER, "mpi: rank %d is gone: %s", rank, text);
}

/* ---- Pieces ------------------------------------------------------------------------------------------------------ */

static int post(const mpi_transport *t, mpi_peer *peer, unsigned i) {
  peer->in[i].size = peer->in[i].at = 0;
  return MPI_Irecv(in_bytes(peer, i), (int)PIECE, MPI_BYTE, peer->world, t->tag, mpi.comm, &peer->in[i].request);
}

/* The first piece that came from a peer; NULL if none has. */
static slot *arrived(mpi_peer *peer) {
  slot *s = &peer->in[peer->in_first];
  if (peer->ended) {
    return NULL;
  }
  if (s->request == MPI_REQUEST_NULL) {
    return s; /* not all of it was taken last time */
  }
  MPI_Status status;
  int done = 0, size = 0;
  int code = MPI_Test(&s->request, &done, &status);
  if (code == MPI_SUCCESS && !done) {
    return NULL;
  }
  if (code == MPI_SUCCESS) {
    MPI_Get_count(&status, MPI_BYTE, &size);
  }
  peer->ended = size <= 0; /* the empty message, or an error: either way nothing more comes */
  peer->error = code != MPI_SUCCESS ? code : peer->error;
  s->size = peer->ended ? 0 : (size_t)size;
  return peer->ended ? NULL : s;
}

static int consume(const mpi_transport *t, mpi_peer *peer) {
  unsigned i = peer->in_first;
  peer->in_first = (i + 1) % SLOTS;
  return post(t, peer, i);
}

/* Frees the buffers of sends that are done. */
static void reap(mpi_transport *t, mpi_peer *peer) {
  while (peer->out_used > 0) {
    int done = 0, code = MPI_Test(&peer->out[peer->out_first].request, &done, MPI_STATUS_IGNORE);
    peer->error = code != MPI_SUCCESS ? code : peer->error;
    if (code == MPI_SUCCESS && !done) {
      return;
    }
    peer->out_first = (peer->out_first + 1) % SLOTS;
    peer->out_used--;
    t->in_flight--;
  }
}

static void reap_all(mpi_transport *t) {
  for (int i = 0; i < t->peer_count && t->in_flight > 0; i++) {
    reap(t, t->peers[i]);
  }
}

/* Fills a buffer from the pieces, after the first `skip` bytes of them. */
static size_t gather(const struct iovec *pieces, int count, size_t skip, uint8_t *buffer, size_t most) {
  size_t used = 0;
  for (int i = 0; i < count && used < most; i++) {
    size_t size = pieces[i].iov_len, first = skip < size ? skip : size;
    size_t n = size - first < most - used ? size - first : most - used;
    if (n > 0) {
      memcpy(buffer + used, (const uint8_t *)pieces[i].iov_base + first, n);
    }
    skip -= first;
    used += n;
  }
  return used;
}

static size_t total_of(const struct iovec *pieces, int count) {
  size_t total = 0;
  for (int i = 0; i < count; i++) {
    total += pieces[i].iov_len;
  }
  return total;
}

static pith_status send_locked(mpi_transport *t, int rank, const struct iovec *pieces, int count, size_t *taken) {
  mpi_peer *peer = t->peer[rank];
  size_t piece = total_of(pieces, count) <= SHORT_MOST ? PIECE_SHORT : PIECE;
  t->calls++;
  reap(t, peer);
  if (peer->ended || peer->error != MPI_SUCCESS) {
    return gone(peer, rank);
  }
  *taken = 0;
  while (peer->out_used < SLOTS) {
    unsigned i = (peer->out_first + peer->out_used) % SLOTS;
    size_t n = gather(pieces, count, *taken, out_bytes(peer, i), piece);
    if (n == 0) {
      break;
    }
    MPI_TRY(MPI_Isend(out_bytes(peer, i), (int)n, MPI_BYTE, peer->world, peer->tag, mpi.comm, &peer->out[i].request));
    peer->out_used++;
    t->in_flight++;
    *taken += n;
  }
  peer->starving = peer->out_used == SLOTS;
  reap(t, peer); /* short ones are done already */
  if (t->in_flight > 0 && t->resting) {
    pthread_cond_signal(&t->flying);
  }
  return PITH_OK;
}

static pith_status mpi_send(pith_transport *transport, int rank, const struct iovec *pieces, int count, size_t *taken) {
  lock();
  pith_status status = send_locked(mpi_of(transport), rank, pieces, count, taken);
  unlock();
  return status;
}

static pith_status receive_locked(mpi_transport *t, int rank, uint8_t *buffer, size_t size, size_t *got) {
  mpi_peer *peer = t->peer[rank];
  *got = 0;
  t->calls++;
  for (slot *s; *got < size && (s = arrived(peer));) {
    size_t n = s->size - s->at < size - *got ? s->size - s->at : size - *got;
    memcpy(buffer + *got, in_bytes(peer, peer->in_first) + s->at, n);
    *got += n;
    s->at += n;
    if (s->at == s->size) {
      MPI_TRY(consume(t, peer));
    }
  }
  return *got > 0 || size == 0 || !peer->ended ? PITH_OK : gone(peer, rank);
}

static pith_status mpi_receive(pith_transport *transport, int rank, void *buffer, size_t size, size_t *got) {
  lock();
  pith_status status = receive_locked(mpi_of(transport), rank, buffer, size, got);
  unlock();
  return status;
}

/* ---- Waiting ----------------------------------------------------------------------------------------------------- */

static int mpi_descriptors(pith_transport *transport, const uint8_t *sending, struct pollfd *fds, int most) {
  (void)transport, (void)sending, (void)fds, (void)most; /* MPI has none: the comm asks again and again (.polls) */
  return 0;
}

static int mpi_sleep(pith_transport *transport, int asleep) {
  mpi_transport *t = mpi_of(transport);
  int work = 0;
  if (!asleep) {
    return 0;
  }
  lock();
  reap_all(t);
  for (int i = 0; i < t->peer_count; i++) {
    mpi_peer *peer = t->peers[i];
    work |= arrived(peer) != NULL || (peer->ended && !peer->told) || (peer->starving && peer->out_used < SLOTS);
    peer->told = peer->ended;
    peer->starving &= peer->out_used == SLOTS;
  }
  unlock();
  return work;
}

/* Waking a thread costs more than a short message does. So the progress thread does not rest as long as the comm calls,
 * and leaves the work to it then. */
static void *run_progress(void *argument) {
  mpi_transport *t = argument;
  unsigned calls = 0;
  lock();
  while (!t->closing) {
    int is_alone = t->calls == calls;
    calls = t->calls;
    if (is_alone && t->in_flight == 0) {
      t->resting = 1;
      pthread_cond_wait(&t->flying, &mpi.mutex);
      t->resting = 0;
      continue;
    }
    if (is_alone) {
      reap_all(t);
    }
    unlock();
    nanosleep(&(struct timespec){0, is_alone ? KEEPER_NAP_NS : KEEPER_NAP_BUSY_NS}, NULL);
    lock();
  }
  unlock();
  return NULL;
}

/* ---- Connecting -------------------------------------------------------------------------------------------------- */

static pith_status open_locked(mpi_transport *t, pith_address *address) {
  int world = 0, size = 0;
  PITH_TRY(start());
  MPI_TRY(MPI_Comm_rank(MPI_COMM_WORLD, &world));
  MPI_TRY(MPI_Comm_size(MPI_COMM_WORLD, &size));
  PITH_REQUIRE(size >= t->ranks, PITH_ERR_UNSUPPORTED,
               "mpi: a comm of %d ranks, but MPI was started with %d: start all of them with one mpirun", t->ranks,
               size);
  PITH_REQUIRE(getrandom(&t->token, sizeof t->token, 0) == sizeof t->token, PITH_ERR_SYSTEM, "mpi: no random numbers");
  t->tag = 2 * (mpi.tags++ % (mpi.tags_most / 2));
  mpi_place place = {world, t->tag, t->token};
  *address = (pith_address){.size = sizeof place};
  memcpy(address->data, &place, sizeof place);
  PITH_REQUIRE(pthread_create(&t->progress_thread, NULL, run_progress, t) == 0, PITH_ERR_SYSTEM,
               "mpi: cannot start a thread");
  mpi.open++;
  return PITH_OK;
}

static void free_transport(mpi_transport *t) {
  pthread_cond_destroy(&t->flying);
  for (int p = 0; p < t->ranks; p++) {
    free(t->peer[p]);
  }
  free(t->wanted);
  free(t->peers);
  free(t->linked);
  free(t);
}

static pith_status mpi_listen(const pith_transport_config *config, pith_transport **transport, pith_address *address) {
  mpi_transport *t = calloc(1, sizeof *t + (size_t)config->ranks * sizeof *t->peer);
  PITH_REQUIRE(t, PITH_ERR_MEMORY, "mpi: no memory for %d peers", config->ranks);
  t->base.ops = &ops;
  t->rank = config->rank;
  t->ranks = config->ranks;
  t->timeout = config->timeout;
  pthread_cond_init(&t->flying, NULL);
  t->greeting_came = MPI_REQUEST_NULL;
  t->wanted = calloc((size_t)t->ranks, 1);
  t->peers = calloc((size_t)t->ranks, sizeof *t->peers);
  t->linked = calloc((size_t)t->ranks, sizeof *t->linked);
  pith_status status = PITH_OK;
  if (t->wanted && t->peers && t->linked) {
    lock();
    status = open_locked(t, address);
    unlock();
  } else {
    status = pith_fail(PITH_ERR_MEMORY, "mpi: no memory for %d peers", config->ranks);
  }
  if (status != PITH_OK) {
    free_transport(t);
    return status;
  }
  *transport = &t->base;
  return PITH_OK;
}

/* Where a rank listens. */
static pith_status find_place(const mpi_transport *t, int rank, mpi_place *place) {
  pith_address address;
  int size = 0;
  PITH_TRY(pith__directory_find(&t->directory, rank, &address));
  MPI_TRY(MPI_Comm_size(mpi.comm, &size));
  PITH_REQUIRE(address.size == sizeof *place, PITH_ERR_PEER, "mpi: the address of rank %d is not one of MPI", rank);
  memcpy(place, address.data, sizeof *place);
  PITH_REQUIRE(place->world >= 0 && place->world < size && place->tag >= 0 && place->tag < mpi.tags_most - 1,
               PITH_ERR_PEER, "mpi: the address of rank %d is impossible here: rank %d of %d in MPI", rank,
               place->world, size);
  return PITH_OK;
}

/* Gets ready for bytes of a peer, and greets it, unless that is done. */
static pith_status reach(mpi_transport *t, int rank) {
  mpi_place place;
  if (t->peer[rank]) {
    return PITH_OK;
  }
  PITH_TRY(find_place(t, rank, &place));
  mpi_peer *peer = calloc(1, sizeof *peer);
  uint8_t *memory = peer ? malloc(2 * SLOTS * PIECE) : NULL;
  if (!memory) {
    free(peer);
    return pith_fail(PITH_ERR_MEMORY, "mpi: no memory for pieces from and to rank %d", rank);
  }
  *peer = (mpi_peer){.rank = rank, .world = place.world, .tag = place.tag, .memory = memory, .end = MPI_REQUEST_NULL};
  for (unsigned i = 0; i < SLOTS; i++) {
    peer->in[i].request = MPI_REQUEST_NULL;
  }
  peer->greeting = (mpi_greeting){place.token ^ t->job, (uint64_t)t->rank};
  peer->greeting_sent = MPI_REQUEST_NULL;
  t->peer[rank] = peer;
  t->peers[t->peer_count++] = peer;
  for (unsigned i = 0; i < SLOTS; i++) {
    MPI_TRY(post(t, peer, i));
  }
  MPI_TRY(MPI_Isend(&peer->greeting, sizeof peer->greeting, MPI_BYTE, place.world, place.tag + 1, mpi.comm,
                    &peer->greeting_sent));
  return PITH_OK;
}

static pith_status expect_greeting(mpi_transport *t) {
  MPI_TRY(
      MPI_Irecv(&t->greeting, sizeof t->greeting, MPI_BYTE, MPI_ANY_SOURCE, t->tag + 1, mpi.comm, &t->greeting_came));
  return PITH_OK;
}

/* The greeting of a process of the same MPI job: if it is wrong, something is. */
static pith_status take_greeting(mpi_transport *t, int world, int size) {
  int rank = size == sizeof t->greeting && t->greeting.rank < (uint64_t)t->ranks ? (int)t->greeting.rank : -1;
  mpi_place place = {0};
  PITH_REQUIRE(rank >= 0 && t->wanted[rank], PITH_ERR_PEER, "mpi: what came from process %d of MPI is no greeting",
               world);
  PITH_TRY(find_place(t, rank, &place));
  PITH_REQUIRE(t->greeting.token == (t->token ^ t->job) && world == place.world, PITH_ERR_PEER,
               "mpi: what came from rank %d is no greeting: it is another rank, or of another job", rank);
  PITH_TRY(reach(t, rank));
  if (!t->peer[rank]->greeted) {
    t->peer[rank]->greeted = 1;
    t->linked[t->linked_count++] = rank;
    t->later -= t->wanted[rank] == PITH_LINK_LATER;
  }
  return PITH_OK;
}

static pith_status take_greetings(mpi_transport *t) {
  for (;;) {
    MPI_Status status;
    int done = 0, size = 0;
    MPI_TRY(MPI_Test(&t->greeting_came, &done, &status));
    if (!done || t->greeting_came != MPI_REQUEST_NULL) {
      return PITH_OK;
    }
    MPI_TRY(MPI_Get_count(&status, MPI_BYTE, &size));
    pith_status taken = take_greeting(t, status.MPI_SOURCE, size);
    PITH_TRY(expect_greeting(t));
    PITH_TRY(taken);
  }
}

/* A rank that connect waits for and that has not greeted yet, or -1. */
static pith_status find_missing(mpi_transport *t, int *missing) {
  *missing = -1;
  PITH_TRY(take_greetings(t));
  for (int i = 0; i < t->peer_count; i++) {
    mpi_peer *peer = t->peers[i];
    if (!peer->greeted && t->wanted[peer->rank] == PITH_LINK_NOW) {
      (void)arrived(peer);
      PITH_TRY(peer->ended ? take_greetings(t) : PITH_OK); /* it may have greeted since, and closed at once */
      PITH_REQUIRE(peer->greeted || !peer->ended, PITH_ERR_PEER,
                   "mpi: rank %d is gone: it closed before it had connected", peer->rank);
      *missing = peer->greeted ? *missing : peer->rank;
    }
  }
  return PITH_OK;
}

static pith_status reach_all(mpi_transport *t) {
  for (int p = 0; p < t->ranks; p++) {
    PITH_TRY(t->wanted[p] == PITH_LINK_NOW ? reach(t, p) : PITH_OK);
    t->later += t->wanted[p] == PITH_LINK_LATER;
  }
  return PITH_OK;
}

/* No greeting is expected any more. */
static void stop_greetings(mpi_transport *t) {
  if (t->greeting_came != MPI_REQUEST_NULL) {
    MPI_Cancel(&t->greeting_came);
    MPI_Wait(&t->greeting_came, MPI_STATUS_IGNORE);
  }
  t->base.is_open = 0;
}

static void breathe(void) {
  unlock();
  sched_yield();
  lock();
}

static pith_status connect_locked(mpi_transport *t) {
  double end = pith__now() + pith__connect_seconds(&t->base, t->timeout);
  int done = 0, missing = 0;
  PITH_TRY(finish_start(&done));
  while (!done) {
    PITH_REQUIRE(pith__now() < end, PITH_ERR_TIMEOUT, "mpi: not all ranks of MPI_COMM_WORLD made a comm within %g s",
                 t->timeout);
    breathe();
    PITH_TRY(finish_start(&done));
  }
  PITH_TRY(expect_greeting(t));
  PITH_TRY(reach_all(t));
  PITH_TRY(find_missing(t, &missing));
  while (missing >= 0) {
    PITH_REQUIRE(pith__now() < end, PITH_ERR_TIMEOUT, "mpi: rank %d did not connect within %g s", missing, t->timeout);
    breathe();
    PITH_TRY(find_missing(t, &missing));
  }
  t->base.is_open = 1;
  if (t->later == 0) {
    stop_greetings(t);
  }
  return PITH_OK;
}

static pith_status mpi_connect(pith_transport *transport, const pith_directory *directory, const uint8_t *wanted,
                               const pith_link_key *key) {
  mpi_transport *t = mpi_of(transport);
  lock();
  t->job = key->job;
  t->directory = *directory;
  memcpy(t->wanted, wanted, (size_t)t->ranks);
  t->wanted[t->rank] = PITH_LINK_NEVER;
  pith_status status = connect_locked(t);
  unlock();
  return status;
}

/* ---- Links that are made later ----------------------------------------------------------------------------------- */

static pith_status mpi_ask(pith_transport *transport, int rank) {
  mpi_transport *t = mpi_of(transport);
  lock();
  pith_status status = t->wanted[rank] == PITH_LINK_LATER ? reach(t, rank) : PITH_OK;
  unlock();
  return status;
}

static pith_status mpi_attend(pith_transport *transport) {
  mpi_transport *t = mpi_of(transport);
  lock();
  pith_status status = t->base.is_open ? take_greetings(t) : PITH_OK;
  if (t->base.is_open && t->later == 0) {
    stop_greetings(t);
  }
  unlock();
  return status;
}

static int mpi_next_linked(pith_transport *transport) {
  mpi_transport *t = mpi_of(transport);
  return t->told < t->linked_count ? t->linked[t->told++] : -1;
}

/* ---- Leaving ----------------------------------------------------------------------------------------------------- */

static void say_goodbye(mpi_transport *t) {
  for (int i = 0; i < t->peer_count; i++) {
    mpi_peer *peer = t->peers[i];
    if (!peer->ended) {
      MPI_Isend(NULL, 0, MPI_BYTE, peer->world, peer->tag, mpi.comm, &peer->end);
    }
  }
}

/* Whether bytes for a peer that still listens are on their way. What comes meanwhile is dropped, lest it wait for us.
 */
static int is_flying(mpi_transport *t) {
  int flying = 0;
  for (int i = 0; i < t->peer_count; i++) {
    mpi_peer *peer = t->peers[i];
    int done = 1;
    while (arrived(peer) && consume(t, peer) == MPI_SUCCESS) {
    }
    reap(t, peer);
    if (peer->end != MPI_REQUEST_NULL) {
      MPI_Test(&peer->end, &done, MPI_STATUS_IGNORE);
    }
    flying |= !peer->ended && (peer->out_used > 0 || !done);
  }
  return flying;
}

/* A buffer that MPI still uses is left to it: better lost than written to after free. Returns whether the peer itself
 * can be freed. */
static int release(mpi_peer *peer) {
  int busy = peer->out_used > 0, is_sent = 1;
  if (peer->greeting_sent != MPI_REQUEST_NULL) {
    MPI_Test(&peer->greeting_sent, &is_sent, MPI_STATUS_IGNORE);
  }
  for (int i = 0; i < SLOTS; i++) {
    if (peer->memory && peer->in[i].request != MPI_REQUEST_NULL) {
      int done = 0;
      MPI_Cancel(&peer->in[i].request);
      MPI_Test(&peer->in[i].request, &done, MPI_STATUS_IGNORE);
      busy |= !done;
    }
  }
  if (!busy) {
    free(peer->memory);
  }
  return is_sent;
}

/* Whether a peer may yet say that it leaves: MPI does not like messages that nobody takes. */
static int is_awaited(const mpi_transport *t) {
  int awaited = 0;
  for (int i = 0; i < t->peer_count; i++) {
    awaited |= t->peers[i]->greeted && !t->peers[i]->ended && t->peers[i]->error == MPI_SUCCESS;
  }
  return awaited;
}

static void mpi_close(pith_transport *transport) {
  mpi_transport *t = mpi_of(transport);
  int over = 0;
  if (!t || mpi.process != getpid() || MPI_Finalized(&over) != MPI_SUCCESS || over) {
    return; /* in a forked child MPI cannot be used, not even to leave; nor after MPI_Finalize */
  }
  lock();
  stop_greetings(t);
  say_goodbye(t);
  double start = pith__now(), waited = 0;
  while ((is_flying(t) && waited < LINGER) || (is_awaited(t) && waited < FAREWELL)) {
    breathe();
    waited = pith__now() - start;
  }
  t->closing = 1;
  pthread_cond_signal(&t->flying);
  unlock();
  pthread_join(t->progress_thread, NULL);
  lock();
  for (int i = 0; i < t->peer_count; i++) {
    if (!release(t->peers[i])) {
      t->peer[t->peers[i]->rank] = NULL;
    }
  }
  mpi.open--;
  unlock();
  free_transport(t);
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

/* Being here means that MPI's libraries were found; whether mpirun started us is asked when somebody listens. */
static pith_status mpi_probe(void) { return PITH_OK; }

static const pith_transport_ops ops = {
    .name = "mpi",
    .summary = "messages of MPI: clusters with mpirun or srun",
    .probe = mpi_probe,
    .listen = mpi_listen,
    .connect = mpi_connect,
    .ask = mpi_ask,
    .attend = mpi_attend,
    .next_linked = mpi_next_linked,
    .send = mpi_send,
    .receive = mpi_receive,
    .descriptors = mpi_descriptors,
    .sleep = mpi_sleep,
    .close = mpi_close,
    .polls = 1,
};

__attribute__((visibility("default"))) const pith_transport_module *pith_transport_module_entry(
    const pith_transport_host *from);

const pith_transport_module *pith_transport_module_entry(const pith_transport_host *from) {
  static const pith_transport_module module = {PITH_TRANSPORT_ABI, sizeof(pith_transport_ops), &ops};
  host = from;
  return &module;
}

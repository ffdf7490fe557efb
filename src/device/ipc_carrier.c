/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages between the GPUs of one host: see ipc_carrier.h.
 *
 * Every rank has a window: device memory that all others map. A window has SLOTS regions for each rank, which alone
 * writes to them, and flags. To send, a rank waits until a region in the window of the receiver has room, copies its
 * message there, and sets the receiver's flag "data". The receiver waits for that flag, copies the message to where it
 * belongs, and sets the sender's flag "room". Both wait for words of their own device only. Flags are 0 or 1 and one
 * rank sets what the other clears, so a graph can repeat an exchange without counting.
 *
 * A kernel that waits ends: when the flag is set, when it has waited as long as the comm allows, or when a thread of
 * the carrier, which watches the ranks (rank_watch.h), finds that one is gone and says so in memory that the kernel
 * reads.
 */
#include "device/ipc_carrier.h"

#include <fcntl.h>
#include <pith/cuda.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/size.h"
#include "comm/comm.h"
#include "device/exchange_stream.h"
#include "device/rank_watch.h"

#define SLOTS 2
#define HEADER 4096 /* bytes of flags at the beginning of a window */
#define SMALL_SUM                                                                                         \
  ((size_t)256 << 10)      /* bytes that go to all ranks as they are: one turn of messages instead of two \
                            */
#define ALIGNMENT 256      /* of regions */
#define GRACE_SECONDS 0.3  /* a rank that has sent its last message may leave while others still receive it */
#define LINGER_SECONDS 1.0 /* for which release() waits for the device; the thread waits for the rest */
#define NAMING_SECONDS 1.5 /* a wait has failed: until then the comm may say which rank was the cause */
#define LOOK_SECONDS 0.02  /* between two looks of the thread */
#define LOOK_OFTEN 0.001   /* likewise, while release() waits for it */

size_t pith__ipc_window_bytes = (size_t)64 << 20;

typedef struct ipc_header {
  uint32_t data[SLOTS][PITH_IPC_RANKS]; /* from each rank: its region has a message */
  uint32_t room[SLOTS][PITH_IPC_RANKS]; /* for each rank: our region in its window is free */
  uint32_t broken, blocks;              /* kernel/formats.h */
} ipc_header;

_Static_assert(sizeof(ipc_header) <= HEADER, "the flags of a window");

typedef struct ipc_carrier {
  const pith_cuda_module *gpu;
  pith_comm *parent, *comm; /* the second is our own */
  int rank, ranks, device;
  pith_ipc_device identity;
  size_t region, size;                                     /* bytes of a region and of a window */
  uint8_t *window[PITH_IPC_RANKS];                         /* device memory: our own, and all others' */
  uint32_t sent[PITH_IPC_RANKS], received[PITH_IPC_RANKS]; /* messages to and from each rank: tell the slot */
  pith_ipc_report *report;                                 /* pinned memory */
  pith_exchange_stream way;
  pith_rank_watch *watch;
  void *last; /* an event behind everything, when the carrier is released */
  pthread_t thread;
  pthread_mutex_t mutex; /* of what follows */
  pthread_cond_t changed;
  int is_closing, is_idle, is_abandoned;
  atomic_int has_given_up;
} ipc_carrier;

static _Atomic uint32_t *shared_word(uint32_t *word) { return (_Atomic uint32_t *)word; }

/* ---- Ranks that are gone ----------------------------------------------------------------------------------------- */

static void end_kernels(const ipc_carrier *c) { atomic_store(shared_word(&c->report->abort), 1); }

/* How a wait of a kernel ended; 0: none has failed. */
static uint32_t failed_wait(const ipc_carrier *c) { return atomic_load(shared_word(&c->report->failed)); }

static void doze(double seconds) { nanosleep(&(struct timespec){.tv_nsec = (long)(seconds * 1e9)}, NULL); }

/* The comm hears of the end of a rank a moment after a wait for that rank has failed for its own reasons. */
static double lost_at(const ipc_carrier *c, double patience) {
  double lost = pith__rank_watch_look(c->watch);
  for (double since = pith__now(); !lost && pith__now() - since < patience;) {
    doze(0.005);
    lost = pith__rank_watch_look(c->watch);
  }
  return lost;
}

static pith_status check_waits(void *self, double waited) {
  ipc_carrier *c = self;
  uint32_t failed = failed_wait(c);
  (void)waited;
  if (!failed) {
    return PITH_OK;
  }
  if (lost_at(c, failed == PITH_IPC_LATE ? 0 : NAMING_SECONDS)) {
    return pith__rank_watch_fail(c->watch);
  }
  PITH_REQUIRE(failed == PITH_IPC_LATE, PITH_ERR_ABORTED, "ipc: the exchange was given up");
  double timeout = pith_comm_timeout(c->parent);
  return pith_fail(PITH_ERR_TIMEOUT,
                   "ipc: rank %d has waited %.1f s for a message of rank %d, which may be stalled (time-out: %s)",
                   c->rank, timeout, (int)c->report->rank, c->parent->settings.timeout_from);
}

/* Nothing is begun with a rank that is gone. */
static pith_status check_ranks(ipc_carrier *c) {
  PITH_TRY(check_waits(c, 0));
  if (pith__rank_watch_look(c->watch)) {
    return pith__rank_watch_fail(c->watch);
  }
  PITH_REQUIRE(!c->has_given_up, PITH_ERR_STATE, "ipc: the carrier was given up after an error");
  return PITH_OK;
}

static void give_up(void *self, const char *why) {
  ipc_carrier *c = self;
  pith_comm_abort(c->comm, why);
  c->has_given_up = 1;
  end_kernels(c);
}

/* ---- The thread -------------------------------------------------------------------------------------------------- */

static void destroy(ipc_carrier *c) {
  pith_comm_destroy(c->comm);
  pith__rank_watch_end(c->watch);
  for (int p = 0; p < PITH_IPC_RANKS; p++) {
    if (c->window[p]) {
      c->gpu->unmap(c->window[p], c->size);
    }
  }
  if (c->last) {
    c->gpu->event_destroy(c->last);
  }
  pith__exchange_stream_close(&c->way);
  if (c->report) {
    c->gpu->unpin(c->report);
  }
  pthread_mutex_destroy(&c->mutex);
  pthread_cond_destroy(&c->changed);
  free(c);
}

static void sleep_for(ipc_carrier *c, double seconds) {
  struct timespec until;
  clock_gettime(CLOCK_REALTIME, &until);
  until.tv_nsec += (long)(seconds * 1e9);
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  pthread_cond_timedwait(&c->changed, &c->mutex, &until);
}

/* Whether the device has come to the end of all that the carrier has enqueued; an error counts as that. */
static int is_drained(const ipc_carrier *c) {
  char text[256];
  int is_done = 1;
  return c->gpu->event_done(c->last, &is_done, text) || is_done;
}

/* While steps may be captured it calls nothing of CUDA. */
static void *watch_ranks(void *argument) {
  ipc_carrier *c = argument;
  char text[256];
  pthread_mutex_lock(&c->mutex);
  while (!c->is_idle) {
    sleep_for(c, c->is_closing ? LOOK_OFTEN : LOOK_SECONDS);
    double lost = pith__rank_watch_look(c->watch);
    if (lost && pith__now() - lost > GRACE_SECONDS) {
      end_kernels(c);
    }
    c->is_idle = c->is_closing && (c->gpu->use_device(c->device, text) || is_drained(c));
  }
  pthread_cond_broadcast(&c->changed);
  int is_ours = c->is_abandoned;
  pthread_mutex_unlock(&c->mutex);
  if (is_ours) {
    destroy(c);
  }
  return NULL;
}

/* What is enqueued uses the windows, and may wait for other ranks: where that takes long, the thread stays behind. */
static void release(void *self) {
  ipc_carrier *c = self;
  char text[256];
  double since = pith__now();
  int is_marked = !c->gpu->event_record(c->last, c->way.stream, text);
  pthread_mutex_lock(&c->mutex);
  c->is_closing = 1;
  c->is_idle = !is_marked;
  pthread_cond_broadcast(&c->changed);
  while (!c->is_idle && pith__now() - since < LINGER_SECONDS) {
    sleep_for(c, LOOK_OFTEN);
  }
  c->is_abandoned = !c->is_idle;
  int is_left = c->is_abandoned;
  pthread_t thread = c->thread;
  pthread_mutex_unlock(&c->mutex);
  if (is_left) {
    pthread_detach(thread);
  } else {
    pthread_join(thread, NULL);
    destroy(c);
  }
}

/* ---- Messages ---------------------------------------------------------------------------------------------------- */

static ipc_header *header_of(const ipc_carrier *c, int rank) { return (ipc_header *)(void *)c->window[rank]; }

static uint8_t *region_of(const ipc_carrier *c, int owner, int from, uint32_t slot) {
  return c->window[owner] + HEADER + ((size_t)slot * (size_t)c->ranks + (size_t)from) * c->region;
}

static pith_ipc_wait new_wait(const ipc_carrier *c) {
  return (pith_ipc_wait){.broken = &header_of(c, c->rank)->broken,
                         .report = c->report,
                         .limit = (uint64_t)(pith_comm_timeout(c->parent) * 1e9)};
}

static void add_wait(pith_ipc_wait *wait, uint32_t *flag, int rank) {
  wait->rank[wait->count] = (uint8_t)rank;
  wait->flag[wait->count++] = flag;
}

static pith_ipc_copy new_copy(const ipc_carrier *c) {
  return (pith_ipc_copy){.broken = &header_of(c, c->rank)->broken, .blocks = &header_of(c, c->rank)->blocks};
}

static void add_piece(pith_ipc_copy *copy, const void *from, void *to, size_t size) {
  if (size && from != to) {
    copy->piece[copy->pieces++] = (pith_ipc_piece){from, to, size};
  }
}

/* A message of at most a region to every other rank p with bytes[p] > 0. Each rank begins with its next neighbour. */
static pith_status push(ipc_carrier *c, const uint8_t *const *from, const size_t *bytes) {
  pith_ipc_wait wait = new_wait(c);
  pith_ipc_copy copy = new_copy(c);
  for (int i = 1; i < c->ranks; i++) {
    int p = (c->rank + i) % c->ranks;
    if (bytes[p]) {
      uint32_t slot = c->sent[p]++ % SLOTS;
      add_wait(&wait, &header_of(c, c->rank)->room[slot][p], p);
      add_piece(&copy, from[p], region_of(c, p, c->rank, slot), bytes[p]);
      copy.flag[copy.flags++] = &header_of(c, p)->data[slot][c->rank];
    }
  }
  if (!wait.count) {
    return PITH_OK;
  }
  PITH_CUDA_TRY(c->gpu->ipc_wait, &wait, c->way.stream);
  PITH_CUDA_TRY(c->gpu->ipc_copy, &copy, c->way.stream);
  return PITH_OK;
}

/* The messages of all other ranks p with bytes[p] > 0: where they are, until they are taken. */
static pith_status await_messages(ipc_carrier *c, const size_t *bytes, const uint8_t **where) {
  pith_ipc_wait wait = new_wait(c);
  for (int p = 0; p < c->ranks; p++) {
    if (p != c->rank && bytes[p]) {
      uint32_t slot = c->received[p] % SLOTS;
      add_wait(&wait, &header_of(c, c->rank)->data[slot][p], p);
      where[p] = region_of(c, c->rank, p, slot);
    }
  }
  if (wait.count) {
    PITH_CUDA_TRY(c->gpu->ipc_wait, &wait, c->way.stream);
  }
  return PITH_OK;
}

/* Copies them to where they belong (NULL: nowhere), and a piece of our own; their regions are free again. */
static pith_status take(ipc_carrier *c, const uint8_t *const *where, uint8_t *const *to, const size_t *bytes,
                        pith_ipc_piece own) {
  pith_ipc_copy copy = new_copy(c);
  copy.spoils = 1;
  add_piece(&copy, own.from, own.to, own.size);
  for (int p = 0; p < c->ranks; p++) {
    if (p != c->rank && bytes[p]) {
      uint32_t slot = c->received[p]++ % SLOTS;
      add_piece(&copy, where[p], to ? to[p] : (void *)(uintptr_t)where[p], bytes[p]);
      copy.flag[copy.flags++] = &header_of(c, p)->room[slot][c->rank];
    }
  }
  if (copy.pieces || copy.flags) {
    PITH_CUDA_TRY(c->gpu->ipc_copy, &copy, c->way.stream);
  }
  return PITH_OK;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

/* What goes to and comes from each rank. */
typedef struct ipc_transfer {
  const uint8_t *from[PITH_IPC_RANKS];
  uint8_t *to[PITH_IPC_RANKS];
  size_t sent[PITH_IPC_RANKS], received[PITH_IPC_RANKS];
} ipc_transfer;

/* In turns of a region for each pair. A pair whose messages are complete waits for nobody. */
static pith_status transfer(ipc_carrier *c, const ipc_transfer *t) {
  pith_ipc_piece own = {t->from[c->rank], t->to[c->rank], t->sent[c->rank]};
  size_t most = 1;
  for (int p = 0; p < c->ranks; p++) {
    most = p == c->rank ? most : pith__most(most, pith__most(t->sent[p], t->received[p]));
  }
  for (size_t first = 0; first < most; first += c->region, own.size = 0) {
    const uint8_t *from[PITH_IPC_RANKS], *where[PITH_IPC_RANKS];
    uint8_t *to[PITH_IPC_RANKS];
    size_t sent[PITH_IPC_RANKS] = {0}, received[PITH_IPC_RANKS] = {0};
    for (int p = 0; p < c->ranks; p++) {
      sent[p] = t->sent[p] > first ? pith__least(t->sent[p] - first, c->region) : 0;
      received[p] = t->received[p] > first ? pith__least(t->received[p] - first, c->region) : 0;
      from[p] = t->from[p] + first;
      to[p] = t->to[p] + first;
    }
    PITH_TRY(push(c, from, sent));
    PITH_TRY(await_messages(c, received, where));
    PITH_TRY(take(c, where, to, received, own));
  }
  return PITH_OK;
}

static pith_status all_to_all(ipc_carrier *c, const pith_exchange *x) {
  ipc_transfer t = {.sent = {0}};
  const uint8_t *from = x->send;
  uint8_t *to = x->recv;
  for (int p = 0; p < c->ranks; p++) {
    t.from[p] = from, t.to[p] = to;
    t.sent[p] = x->send_bytes[p], t.received[p] = x->recv_bytes[p];
    from += t.sent[p], to += t.received[p];
  }
  return transfer(c, &t);
}

static pith_status all_gather(ipc_carrier *c, const pith_exchange *x) {
  ipc_transfer t = {.sent = {0}};
  for (int p = 0; p < c->ranks; p++) {
    t.from[p] = x->send, t.to[p] = (uint8_t *)x->recv + (size_t)p * x->bytes;
    t.sent[p] = t.received[p] = x->bytes;
  }
  return transfer(c, &t);
}

static pith_ipc_combine new_sum(const ipc_carrier *c, void *to, size_t n, size_t width, int is_mean) {
  return (pith_ipc_combine){.to = to,
                            .broken = &header_of(c, c->rank)->broken,
                            .n = n,
                            .count = (uint32_t)c->ranks,
                            .is_mean = is_mean != 0,
                            .is_f64 = width == sizeof(double)};
}

/* Adds up, in rank order, what all ranks have sent, `own` in our place. */
static pith_status add_up(ipc_carrier *c, pith_ipc_combine sum, const uint8_t **where, const uint8_t *own,
                          const size_t *received) {
  where[c->rank] = own;
  for (int p = 0; p < c->ranks; p++) {
    sum.from[p] = where[p];
  }
  if (sum.n) {
    PITH_CUDA_TRY(c->gpu->ipc_combine, &sum, c->way.stream);
  }
  return take(c, where, NULL, received, (pith_ipc_piece){0});
}

/* Few values: every rank gets all of them, and adds up by itself. */
static pith_status reduce_few(ipc_carrier *c, uint8_t *values, size_t count, size_t width, int is_mean) {
  const uint8_t *from[PITH_IPC_RANKS], *where[PITH_IPC_RANKS];
  size_t bytes[PITH_IPC_RANKS] = {0};
  for (int p = 0; p < c->ranks; p++) {
    from[p] = values;
    bytes[p] = count * width;
  }
  PITH_TRY(push(c, from, bytes));
  PITH_TRY(await_messages(c, bytes, where));
  return add_up(c, new_sum(c, values, count, width, is_mean), where, values, bytes);
}

/* At most as many values as make a region for each rank: every rank adds up its part, and sends it to all. */
static pith_status reduce_some(ipc_carrier *c, uint8_t *values, size_t count, size_t width, int is_mean) {
  ipc_transfer t = {.sent = {0}};
  const uint8_t *where[PITH_IPC_RANKS];
  size_t first = count * (size_t)c->rank / (size_t)c->ranks, end = count * ((size_t)c->rank + 1) / (size_t)c->ranks;
  uint8_t *mine = values + first * width;
  for (int p = 0; p < c->ranks; p++) {
    size_t theirs = count * (size_t)p / (size_t)c->ranks, behind = count * ((size_t)p + 1) / (size_t)c->ranks;
    t.from[p] = t.to[p] = values + theirs * width;
    t.sent[p] = (behind - theirs) * width;
    t.received[p] = (end - first) * width;
  }
  PITH_TRY(push(c, t.from, t.sent));
  PITH_TRY(await_messages(c, t.received, where));
  PITH_TRY(add_up(c, new_sum(c, mine, end - first, width, is_mean), where, mine, t.received));
  for (int p = 0; p < c->ranks; p++) {
    t.from[p] = mine;
    t.received[p] = t.sent[p];
    t.sent[p] = (end - first) * width;
  }
  return transfer(c, &t);
}

static pith_status allreduce(ipc_carrier *c, const pith_exchange *x) {
  PITH_REQUIRE((x->dtype == PITH_F32 || x->dtype == PITH_F64) && (x->op == PITH_SUM || x->op == PITH_MEAN),
               PITH_ERR_UNSUPPORTED, "ipc does not reduce %s by operation %d", pith_dtype_name(x->dtype), (int)x->op);
  size_t width = pith_dtype_size(x->dtype), most = (c->region / width - 1) * (size_t)c->ranks;
  if (x->count * width <= pith__least(SMALL_SUM, c->region)) {
    return x->count ? reduce_few(c, x->recv, x->count, width, x->op == PITH_MEAN) : PITH_OK;
  }
  for (size_t first = 0, some; first < x->count; first += some) {
    some = pith__least(x->count - first, most);
    PITH_TRY(reduce_some(c, (uint8_t *)x->recv + first * width, some, width, x->op == PITH_MEAN));
  }
  return PITH_OK;
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  ipc_carrier *c = self;
  PITH_TRY(check_ranks(c));
  PITH_TRY(pith__exchange_stream_begin(&c->way, x->stream, ticket));
  PITH_TRY(x->kind == PITH_EXCHANGE_ALL_TO_ALL   ? all_to_all(c, x)
           : x->kind == PITH_EXCHANGE_ALL_GATHER ? all_gather(c, x)
                                                 : allreduce(c, x));
  return pith__exchange_stream_end(&c->way, x->stream, *ticket);
}

static pith_status wait(void *self, uint64_t ticket) {
  ipc_carrier *c = self;
  PITH_TRY(pith__exchange_stream_join(&c->way, ticket));
  return check_waits(c, 0);
}

static int interrupted(void *self) {
  const ipc_carrier *c = self;
  return c->parent->interrupt.ask && pith__interrupt_is_possible(&c->parent->interrupt) &&
         pith__interrupt_ask(&c->parent->interrupt);
}

/* ---- What a machine has ------------------------------------------------------------------------------------------ */

pith_status pith_cuda_ipc_probe(const char **how) {
  static _Thread_local char text[256];
  const pith_cuda_module *gpu = NULL;
  pith_ipc_device device;
  void *memory = NULL;
  int descriptor = -1;
  PITH_TRY(pith__cuda_module(&gpu));
  PITH_CUDA_TRY(gpu->identify, &device);
  PITH_CUDA_TRY(gpu->share, HEADER, &memory, &descriptor);
  gpu->unmap(memory, HEADER);
  close(descriptor);
  snprintf(text, sizeof text, "%u of %u other GPUs can be reached; ranks that share a GPU %s", device.reached,
           device.others, device.has_mps ? "run at the same time (MPS)" : "go through pinned memory (MPS is off)");
  if (how) {
    *how = text;
  }
  return PITH_OK;
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

/* What each rank tells the others before a step that all of them must be able to take. */
typedef struct ipc_offer {
  uint32_t is_able, required;
  int32_t process;
  pith_ipc_device device;
  char why[PITH_IPC_WHY - 64]; /* not */
} ipc_offer;

/* Kernels of processes that use a GPU in turns, without MPS, wait for each other for whole turns: milliseconds. */
static void look_for_turns(const ipc_offer *all, int ranks, char why[PITH_IPC_WHY]) {
  for (int p = 1; p < ranks; p++) {
    for (int q = 0; q < p && !all[p].device.has_mps; q++) {
      if (all[p].process != all[q].process &&
          memcmp(all[p].device.uuid, all[q].device.uuid, sizeof all[p].device.uuid) == 0) {
        snprintf(why, PITH_IPC_WHY, "ranks %d and %d share a GPU without MPS, and would use it in turns", q, p);
        return;
      }
    }
  }
}

/* Whether all ranks are able, on all of them alike; else why not. */
static pith_status compare(const ipc_carrier *c, const char *refusal, int required, char why[PITH_IPC_WHY]) {
  ipc_offer mine = {
      .is_able = !refusal, .required = required != 0, .process = (int32_t)getpid(), .device = c->identity};
  pith_call call = PITH_CALL_INIT;
  PITH_FREED ipc_offer *all = calloc((size_t)c->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a carrier");
  snprintf(mine.why, sizeof mine.why, "%s", refusal ? refusal : "");
  PITH_TRY(pith_all_gather(c->comm, (pith_cspan){&mine, sizeof mine, PITH_U8},
                           (pith_span){all, sizeof mine * (size_t)c->ranks, PITH_U8}, NULL, &call, NULL));
  int needs = -1;
  for (int p = c->ranks - 1; p >= 0; p--) {
    needs = all[p].required ? p : needs;
  }
  if (needs < 0) {
    look_for_turns(all, c->ranks, why);
  }
  for (int p = c->ranks - 1; p >= 0; p--) {
    if (!all[p].is_able) {
      all[p].why[sizeof all[p].why - 1] = 0;
      snprintf(why, PITH_IPC_WHY, "rank %d: %s", p, all[p].why);
    }
  }
  PITH_REQUIRE(!*why || needs < 0, PITH_ERR_UNSUPPORTED,
               "rank %d needs messages from GPU to GPU (ipc), and that is not possible: %s", needs, why);
  return PITH_OK;
}

/* Our own window, with its flags; *refusal: why there is none. */
static const char *make_window(ipc_carrier *c, int *descriptor, char text[256]) {
  ipc_header flags = {.broken = 0};
  memset(flags.room, 0, sizeof flags.room);
  for (int s = 0; s < SLOTS; s++) {
    for (int p = 0; p < PITH_IPC_RANKS; p++) {
      flags.room[s][p] = 1;
    }
  }
  void *memory = NULL, *report = NULL;
  if (c->gpu->identify(&c->identity, text) || c->gpu->share(c->size, &memory, descriptor, text)) {
    return text;
  }
  c->window[c->rank] = memory;
  fcntl(*descriptor, F_SETFD, FD_CLOEXEC);
  if (c->gpu->copy(memory, &flags, sizeof flags, text) || c->gpu->pin(sizeof *c->report, &report, text)) {
    return text;
  }
  c->report = report;
  *c->report = (pith_ipc_report){0};
  return NULL;
}

/* The windows of all others. */
static const char *map_windows(ipc_carrier *c, int *theirs, char text[256]) {
  char reason[256];
  for (int p = 0; p < c->ranks; p++) {
    void *memory = NULL;
    if (p != c->rank && c->gpu->map(theirs[p], c->size, &memory, reason)) {
      snprintf(text, 256, "the GPU of rank %d: %.200s", p, reason);
      return text;
    }
    c->window[p] = p == c->rank ? c->window[p] : memory;
  }
  return NULL;
}

static const char *exchange_windows(ipc_carrier *c, int descriptor, char text[256]) {
  int theirs[PITH_IPC_RANKS];
  const char *refusal = NULL;
  if (pith__comm_swap_descriptors(c->comm, descriptor, theirs) != PITH_OK) {
    snprintf(text, 256, "%s", pith_error());
    return text;
  }
  refusal = map_windows(c, theirs, text);
  for (int p = 0; p < c->ranks; p++) {
    if (p != c->rank) {
      close(theirs[p]); /* the mapping keeps the memory */
    }
  }
  return refusal;
}

/* ---- A first message: what is mapped may still not work, as over links that a hypervisor or an IOMMU redirects --- */

enum { SAMPLE = 256 };

static void make_sample(int rank, uint8_t sample[SAMPLE]) {
  for (int i = 0; i < SAMPLE; i++) {
    sample[i] = (uint8_t)(37 * rank + 11 * i + 1);
  }
}

/* Writes a sample to the windows of all others, by a kernel as messages are; … */
static const char *send_samples(const ipc_carrier *c, char text[256]) {
  uint8_t sample[SAMPLE], *from = region_of(c, c->rank, c->rank, 0); /* which nobody else uses */
  pith_ipc_copy copy = new_copy(c);
  make_sample(c->rank, sample);
  for (int p = 0; p < c->ranks; p++) {
    add_piece(&copy, from, region_of(c, p, c->rank, 0), SAMPLE);
  }
  int failed = c->gpu->copy(from, sample, SAMPLE, text) || c->gpu->ipc_copy(&copy, NULL, text) ||
               c->gpu->copy(sample, from, SAMPLE, text); /* waits for the device */
  return failed ? text : NULL;
}

/* … and looks for those of the others. */
static const char *check_samples(const ipc_carrier *c, char text[256]) {
  for (int p = 0; p < c->ranks; p++) {
    uint8_t sample[SAMPLE], found[SAMPLE];
    make_sample(p, sample);
    if (c->gpu->copy(found, region_of(c, c->rank, p, 0), SAMPLE, text)) {
      return text;
    }
    if (memcmp(sample, found, SAMPLE) != 0) {
      snprintf(text, 256, "what rank %d writes to its GPU does not arrive", p);
      return text;
    }
  }
  return NULL;
}

static pith_status open_windows(ipc_carrier *c, const char *refusal, int required, char why[PITH_IPC_WHY]) {
  char text[256];
  int descriptor = -1;
  refusal = refusal ? refusal : make_window(c, &descriptor, text);
  pith_status status = compare(c, refusal, required, why);
  if (status == PITH_OK && !*why) {
    status = compare(c, exchange_windows(c, descriptor, text), required, why);
  }
  if (status == PITH_OK && !*why) {
    status = compare(c, send_samples(c, text), required, why);
  }
  if (status == PITH_OK && !*why) {
    status = compare(c, check_samples(c, text), required, why);
  }
  if (descriptor >= 0) {
    close(descriptor);
  }
  return status;
}

static pith_status open_carrier(ipc_carrier *c, const char *refusal, int required, char why[PITH_IPC_WHY]) {
  if (c->ranks > PITH_IPC_RANKS || c->parent->chooser.hosts->hosts > 1) { /* as all ranks know */
    snprintf(why, PITH_IPC_WHY, "%s",
             c->ranks > PITH_IPC_RANKS ? "there are more than 16 ranks" : "the ranks are on several hosts");
    PITH_REQUIRE(!required, PITH_ERR_UNSUPPORTED, "messages cannot go from GPU to GPU (ipc): %s", why);
    return PITH_OK;
  }
  PITH_TRY(open_windows(c, refusal, required, why));
  if (*why) {
    return PITH_OK;
  }
  PITH_TRY(pith__exchange_stream_open(c->gpu, &c->way));
  PITH_CUDA_TRY(c->gpu->event_create, &c->last);
  PITH_TRY(pith__rank_watch_start(c->comm, &c->watch));
  PITH_REQUIRE(pthread_create(&c->thread, NULL, watch_ranks, c) == 0, PITH_ERR_SYSTEM, "rank %d cannot start a thread",
               c->rank);
  return PITH_OK;
}

pith_status pith__ipc_carrier(pith_comm *parent, pith_comm *own, const char *refusal, int required,
                              pith_carrier *carrier, char why[PITH_IPC_WHY]) {
  ipc_carrier *c = calloc(1, sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a carrier");
  c->parent = parent, c->comm = own;
  c->rank = own->rank, c->ranks = own->ranks;
  c->region = pith__ipc_window_bytes / SLOTS / (size_t)c->ranks / ALIGNMENT * ALIGNMENT;
  c->size = HEADER + SLOTS * (size_t)c->ranks * c->region;
  pthread_mutex_init(&c->mutex, NULL);
  pthread_cond_init(&c->changed, NULL);
  *why = 0;
  char text[256];
  pith_status status = pith__cuda_module(&c->gpu);
  if (status == PITH_OK && c->gpu->device(&c->device, text)) {
    status = pith_fail(PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  status = status == PITH_OK ? open_carrier(c, refusal, required, why) : status;
  if (status != PITH_OK || *why) {
    pith_kept_error error;
    pith__error_keep(&error);
    c->comm = status == PITH_OK ? NULL : c->comm; /* it stays the caller's */
    destroy(c);
    pith__error_restore(&error);
    return status;
  }
  *carrier = (pith_carrier){.size = sizeof *carrier,
                            .name = "ipc",
                            .self = c,
                            .rank = c->rank,
                            .ranks = c->ranks,
                            .caps = PITH_CARRIER_THREADS | PITH_CARRIER_CUDA,
                            .start = start,
                            .wait = wait,
                            .interrupted = interrupted,
                            .check = check_waits,
                            .abort = give_up,
                            .release = release};
  return PITH_OK;
}

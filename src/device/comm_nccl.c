/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL for the ranks of a comm. NCCL says neither which rank is gone nor, for long, that one is: beside it there is a
 * comm of the carrier's own, on which ranks watch each other (rank_watch.h).
 */
#include "device/comm_nccl.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "comm/comm.h"
#include "device/cuda_device.h"
#include "device/device_carrier.h"
#include "device/nccl_library.h"
#include "device/rank_watch.h"

#define GRACE_SECONDS 0.3  /* a rank that has done its part may leave while others still copy */
#define NAMING_SECONDS 1.5 /* NCCL has noticed something: until then the comm may say which rank */
#define NAP_NANOSECONDS 5000000

/* The communicator of a comm, for all its carriers. */
typedef struct shared_nccl {
  pith_comm *parent;
  void *comm;
  int users, is_aborted;
  struct shared_nccl *next;
} shared_nccl;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static shared_nccl *all_shared;

typedef struct comm_nccl {
  const pith_cuda_module *gpu;
  const pith_nccl_library *library;
  pith_comm *parent, *comm; /* the second is our own, from the first exchange on */
  pith_nccl_choice choice;
  void *stream;
  pith_carrier inner; /* without functions before the first exchange */
  shared_nccl *shared;
  pith_rank_watch *watch;
} comm_nccl;

/* ---- The communicator -------------------------------------------------------------------------------------------- */

/* What each rank tells the others. */
typedef struct nccl_offer {
  pith_nccl_id id; /* rank 0's is used */
  uint32_t is_able;
  char why[256]; /* not */
} nccl_offer;

static void offer_nccl(const comm_nccl *c, nccl_offer *mine) {
  const pith_nccl_library *library = NULL;
  const char *why = NULL;
  if (c->choice == PITH_NCCL_NEVER) {
    why = "it was not asked for";
  } else if (pith__nccl_library(&library) != PITH_OK) {
    why = pith_error();
  } else if (!library->unique_id || !library->init_rank || !library->comm_abort) {
    why = "this NCCL has no ncclCommInitRank";
  } else if (c->parent->rank == 0 && library->unique_id(&mine->id) != PITH_NCCL_SUCCESS) {
    why = "ncclGetUniqueId failed";
  }
  mine->is_able = !why;
  snprintf(mine->why, sizeof mine->why, "%s", why ? why : "");
}

static pith_status gather_offers(const comm_nccl *c, const nccl_offer *mine, nccl_offer *all) {
  pith_call call = PITH_CALL_INIT;
  return pith_all_gather(c->comm, (pith_cspan){mine, sizeof *mine, PITH_U8},
                         (pith_span){all, sizeof *mine * (size_t)c->parent->ranks, PITH_U8}, NULL, &call, NULL);
}

/* The first rank that cannot; -1: all can. */
static int first_unable(const comm_nccl *c, const nccl_offer *all) {
  int p = 0;
  while (p < c->parent->ranks && all[p].is_able) {
    p++;
  }
  return p < c->parent->ranks ? p : -1;
}

/* All ranks take part, and come to the same end. *made is NULL where one of them cannot. */
static pith_status make_communicator(comm_nccl *c, void **made) {
  nccl_offer mine = {0};
  PITH_FREED nccl_offer *all = calloc((size_t)c->parent->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for a carrier");
  offer_nccl(c, &mine);
  PITH_TRY(gather_offers(c, &mine, all));
  int unable = first_unable(c, all);
  void *comm = NULL;
  if (unable < 0) {
    PITH_TRY(pith__nccl_library(&c->library));
    int result = c->library->init_rank(&comm, c->parent->ranks, all[0].id, c->parent->rank);
    const char *detail = result && c->library->last_error ? c->library->last_error(NULL) : NULL;
    mine.is_able = result == PITH_NCCL_SUCCESS;
    snprintf(mine.why, sizeof mine.why, "ncclCommInitRank: %s%s%s", c->library->error_text(result),
             detail && *detail ? ": " : "", detail && *detail ? detail : "");
    PITH_TRY(gather_offers(c, &mine, all));
    unable = first_unable(c, all);
  }
  if (unable >= 0) {
    if (mine.is_able && comm) {
      c->library->comm_abort(comm);
    }
    all[unable].why[sizeof all[unable].why - 1] = 0;
    PITH_REQUIRE(c->choice != PITH_NCCL_REQUIRED, PITH_ERR_UNSUPPORTED, "rank %d cannot use NCCL: %s", unable,
                 all[unable].why);
    PITH_LOG_INFO("rank %d: messages go over pith: rank %d does not use NCCL: %s", c->parent->rank, unable,
                  all[unable].why);
    comm = NULL;
  }
  *made = comm;
  return PITH_OK;
}

/* That of another carrier of the comm, or one that is made: carriers have their first exchanges in one order. */
static pith_status take_communicator(comm_nccl *c) {
  void *made = NULL;
  pthread_mutex_lock(&mutex);
  for (shared_nccl *s = all_shared; s && !c->shared; s = s->next) {
    if (s->parent == c->parent && !s->is_aborted && c->choice != PITH_NCCL_NEVER) {
      s->users++;
      c->shared = s;
    }
  }
  pthread_mutex_unlock(&mutex);
  if (c->shared) {
    return pith__nccl_library(&c->library);
  }
  PITH_TRY(make_communicator(c, &made));
  if (made) {
    c->shared = calloc(1, sizeof *c->shared);
    PITH_REQUIRE(c->shared, PITH_ERR_MEMORY, "no memory for a carrier");
    pthread_mutex_lock(&mutex);
    *c->shared = (shared_nccl){.parent = c->parent, .comm = made, .users = 1, .next = all_shared};
    all_shared = c->shared;
    pthread_mutex_unlock(&mutex);
  }
  return PITH_OK;
}

static void leave_communicator(comm_nccl *c) {
  pthread_mutex_lock(&mutex);
  shared_nccl *s = c->shared, **at = &all_shared;
  int is_last = s && --s->users == 0;
  while (is_last && *at != s) {
    at = &(*at)->next;
  }
  if (is_last) {
    *at = s->next;
  }
  pthread_mutex_unlock(&mutex);
  if (is_last) {
    if (!s->is_aborted) {
      c->library->comm_abort(s->comm); /* waits for no other rank; nothing is under way any more */
    }
    free(s);
  }
  c->shared = NULL;
}

/* ---- Ranks that are gone ----------------------------------------------------------------------------------------- */

/* By this carrier, or by another that has the same communicator. */
static int is_given_up(const comm_nccl *c) {
  pthread_mutex_lock(&mutex);
  int is_aborted = c->shared && c->shared->is_aborted;
  pthread_mutex_unlock(&mutex);
  return is_aborted;
}

/* NCCL has failed, and says neither why nor where: soon the comm may say which rank is gone. */
static pith_status named(const comm_nccl *c, pith_status status) {
  double lost_at = pith__rank_watch_look(c->watch);
  pith_kept_error error;
  pith__error_keep(&error);
  for (double since = pith__now(); !lost_at && pith__now() - since < NAMING_SECONDS;) {
    nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
    lost_at = pith__rank_watch_look(c->watch);
  }
  pith__error_restore(&error);
  return lost_at ? pith__rank_watch_fail(c->watch) : status;
}

static pith_status check_ranks(void *self, double waited) {
  comm_nccl *c = self;
  if (!c->shared) { /* over the comm */
    return c->inner.check ? c->inner.check(c->inner.self, waited) : PITH_OK;
  }
  double lost_at = pith__rank_watch_look(c->watch);
  pith_status status = is_given_up(c) ? pith_fail(PITH_ERR_STATE, "NCCL's communicator was given up after an error")
                                      : c->inner.check(c->inner.self, waited);
  if (status != PITH_OK) {
    return named(c, status);
  }
  return lost_at && pith__now() - lost_at > GRACE_SECONDS ? pith__rank_watch_fail(c->watch) : PITH_OK;
}

/* What hangs in NCCL ends, and other ranks hear why. */
static void abort_ranks(void *self, const char *why) {
  comm_nccl *c = self;
  if (c->comm) {
    pith_comm_abort(c->comm, why);
  }
  pthread_mutex_lock(&mutex);
  int is_first = c->shared && !c->shared->is_aborted;
  if (is_first) {
    c->shared->is_aborted = 1;
  }
  pthread_mutex_unlock(&mutex);
  if (is_first) {
    c->library->comm_abort(c->shared->comm);
  } else if (!c->shared && c->inner.abort) {
    c->inner.abort(c->inner.self, why);
  }
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static pith_status open_inner(comm_nccl *c) {
  pith_carrier inner = PITH_CARRIER_INIT;
  PITH_TRY(c->comm ? PITH_OK : pith_comm_split(c->parent, 0, c->parent->rank, &c->comm));
  PITH_TRY(take_communicator(c));
  if (c->shared) {
    PITH_TRY(pith__rank_watch_start(c->comm, &c->watch));
    PITH_TRY(pith_nccl_carrier(c->shared->comm, 0, &inner));
  } else {
    pith_device_way way, across;
    PITH_TRY(pith__device_ways(NULL, &way, &across));
    PITH_TRY(pith__device_carrier(c->parent, way, 0, &inner));
  }
  PITH_LOG_INFO("rank %d: gradients of the device travel over %s", c->parent->rank, c->shared ? "NCCL" : "pith");
  c->inner = inner;
  return PITH_OK;
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  comm_nccl *c = self;
  PITH_TRY(c->inner.start ? PITH_OK : open_inner(c));
  PITH_TRY(is_given_up(c) ? check_ranks(c, 0) : PITH_OK);
  pith_status status = c->inner.start(c->inner.self, x, ticket);
  return status != PITH_OK && c->shared ? named(c, status) : status;
}

static pith_status wait(void *self, uint64_t ticket) {
  comm_nccl *c = self;
  return c->inner.wait(c->inner.self, ticket);
}

static int interrupted(void *self) {
  const comm_nccl *c = self;
  return c->inner.interrupted && c->inner.interrupted(c->inner.self);
}

static void release(void *self) {
  comm_nccl *c = self;
  if (c->inner.release) {
    c->inner.release(c->inner.self);
  }
  leave_communicator(c);
  pith_comm_destroy(c->comm);
  pith__rank_watch_end(c->watch);
  if (c->stream) {
    c->gpu->stream_destroy(c->stream);
  }
  free(c);
}

static const pith_carrier functions = {.start = start,
                                       .wait = wait,
                                       .interrupted = interrupted,
                                       .check = check_ranks,
                                       .abort = abort_ranks,
                                       .release = release};

const char *pith__comm_nccl_name(const pith_carrier *carrier) {
  const comm_nccl *c = carrier->start == start ? carrier->self : NULL;
  return !c || !c->inner.start ? NULL : c->shared ? "NCCL" : "pith";
}

pith_status pith__comm_nccl_carrier(pith_comm *comm, pith_nccl_choice choice, pith_carrier *carrier, void **stream) {
  const pith_cuda_module *gpu = NULL;
  PITH_TRY(pith__cuda_module(&gpu));
  comm_nccl *c = calloc(1, sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a carrier");
  *c = (comm_nccl){.gpu = gpu, .parent = comm, .choice = choice};
  char text[256];
  if (stream && gpu->stream_create(&c->stream, text)) {
    free(c);
    return pith_fail(PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  *carrier = pith__carrier_of(comm, c, &functions);
  if (stream) {
    *stream = c->stream;
  }
  return PITH_OK;
}

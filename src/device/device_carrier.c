/* SPDX-License-Identifier: Apache-2.0 */
/* A comm as a carrier of device memory: see device_carrier.h. What ranks find out is the same on all of them. */
#include "device/device_carrier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "comm/comm.h"
#include "device/cuda_device.h"
#include "device/ipc_carrier.h"
#include "device/staged_carrier.h"

static const char *const names[] = {[PITH_DEVICE_AUTO] = "auto",
                                    [PITH_DEVICE_IPC] = "ipc",
                                    [PITH_DEVICE_STAGED] = "staged",
                                    [PITH_DEVICE_NCCL] = "nccl"};

typedef struct device_carrier {
  pith_comm *parent;
  pith_device_way way; /* found: one of the last two */
  int enqueues;
  pith_carrier inner; /* without functions before the first exchange */
} device_carrier;

/* One of the names from `first` to `last`. */
static int find_way(const char *text, size_t size, pith_device_way first, pith_device_way last, pith_device_way *way) {
  for (size_t i = first; i <= last; i++) {
    if (strlen(names[i]) == size && memcmp(text, names[i], size) == 0) {
      *way = (pith_device_way)i;
      return 1;
    }
  }
  return 0;
}

pith_status pith__device_ways(const char *given, pith_device_way *way, pith_device_way *across) {
  const char *variable = getenv("PITH_CUDA_CARRIER"), *wanted = given;
  if (!given || strcmp(given, names[PITH_DEVICE_AUTO]) == 0) {
    wanted = variable && *variable ? variable : names[PITH_DEVICE_AUTO];
  }
  size_t size = strcspn(wanted, "/");
  const char *rest = wanted[size] ? wanted + size + 1 : names[PITH_DEVICE_STAGED];
  PITH_REQUIRE(find_way(wanted, size, PITH_DEVICE_AUTO, PITH_DEVICE_STAGED, way) &&
                   find_way(rest, strlen(rest), PITH_DEVICE_STAGED, PITH_DEVICE_NCCL, across),
               PITH_ERR_ARGUMENT, "there is no carrier \"%s\"%s: auto, ipc or staged, and behind a / staged or nccl",
               wanted, wanted == variable ? " (PITH_CUDA_CARRIER)" : "");
  return PITH_OK;
}

pith_carrier pith__carrier_of(const pith_comm *comm, void *self, const pith_carrier *functions) {
  pith_carrier made = *functions;
  made.size = sizeof made;
  made.name = "pith";
  made.self = self;
  made.rank = comm->rank;
  made.ranks = comm->ranks;
  made.caps = PITH_CARRIER_THREADS | PITH_CARRIER_CUDA;
  return made;
}

static pith_status open_inner(device_carrier *d) {
  pith_carrier inner = PITH_CARRIER_INIT;
  pith_comm *own = NULL;
  char why[PITH_IPC_WHY];
  const char *refusal = d->way == PITH_DEVICE_STAGED ? "it was told to use pinned memory" : NULL;
  PITH_TRY(pith_comm_split(d->parent, 0, d->parent->rank, &own));
  PITH_TRY(pith__ipc_carrier(d->parent, own, refusal, d->way == PITH_DEVICE_IPC || d->enqueues, &inner, why));
  pith_status status = *why ? pith__staged_carrier(d->parent, own, &inner) : PITH_OK;
  if (status != PITH_OK) {
    pith_comm_destroy(own);
    return status;
  }
  d->inner = inner;
  d->way = *why ? PITH_DEVICE_STAGED : PITH_DEVICE_IPC;
  if (*why) {
    PITH_LOG_INFO("rank %d: messages of the device go through pinned memory, not from GPU to GPU (ipc): %s",
                  d->parent->rank, why);
  } else {
    PITH_LOG_INFO("rank %d: messages of the device go from GPU to GPU (ipc)", d->parent->rank);
  }
  return PITH_OK;
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  device_carrier *d = self;
  PITH_TRY(d->inner.start ? PITH_OK : open_inner(d));
  return d->inner.start(d->inner.self, x, ticket);
}

static pith_status wait(void *self, uint64_t ticket) {
  device_carrier *d = self;
  return d->inner.wait(d->inner.self, ticket);
}

static int interrupted(void *self) {
  const device_carrier *d = self;
  return d->inner.interrupted && d->inner.interrupted(d->inner.self);
}

static pith_status check(void *self, double waited) {
  const device_carrier *d = self;
  return d->inner.check ? d->inner.check(d->inner.self, waited) : PITH_OK;
}

static void give_up(void *self, const char *why) {
  const device_carrier *d = self;
  if (d->inner.abort) {
    d->inner.abort(d->inner.self, why);
  }
}

static void release(void *self) {
  device_carrier *d = self;
  if (d->inner.release) {
    d->inner.release(d->inner.self);
  }
  free(d);
}

static const pith_carrier functions = {
    .start = start, .wait = wait, .interrupted = interrupted, .check = check, .abort = give_up, .release = release};

const char *pith__device_carrier_way(const pith_carrier *carrier) {
  const device_carrier *d = carrier->start == start ? carrier->self : NULL;
  return d && d->inner.start ? names[d->way] : NULL;
}

pith_status pith__device_carrier(pith_comm *comm, pith_device_way way, int enqueues, pith_carrier *carrier) {
  const pith_cuda_module *gpu = NULL;
  PITH_TRY(pith__cuda_module(&gpu));
  device_carrier *d = calloc(1, sizeof *d);
  PITH_REQUIRE(d, PITH_ERR_MEMORY, "no memory for a carrier");
  *d = (device_carrier){.parent = comm, .way = way, .enqueues = enqueues};
  *carrier = pith__carrier_of(comm, d, &functions);
  return PITH_OK;
}

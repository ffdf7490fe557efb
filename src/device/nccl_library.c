/*
 * NCCL: finds it, and makes errors of what it says.
 *
 * The NCCL that made the program's comm is the one to use. So symbols that the process shows come first, then a
 * libnccl.so.2 that somebody has loaded for himself (as Python does), and only then is one opened.
 */
#include "device/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

#define FILE_NAME "libnccl.so.2"
#define OLDEST 20700 /* ncclSend and ncclRecv */

/* ---- Finding it -------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pith_nccl_library library; /* under the lock until it is found */
static int found;
static char failure[512];

typedef struct wanted {
  const char *name;
  void *function;
} wanted;

static int take_symbol(void *handle, const char *name, void *function) {
  void *symbol = dlsym(handle, name);
  memcpy(function, &symbol, sizeof symbol); /* ISO C has no cast between the two kinds of pointers */
  return symbol != NULL;
}

/* The first name that is missing; NULL if all are there. */
static const char *take_symbols(void *handle) {
  const wanted list[] = {{"ncclGetVersion", &library.version},
                         {"ncclGetErrorString", &library.error_text},
                         {"ncclCommGetAsyncError", &library.async_error},
                         {"ncclCommCount", &library.ranks},
                         {"ncclCommUserRank", &library.rank},
                         {"ncclCommCuDevice", &library.device},
                         {"ncclGroupStart", &library.group_start},
                         {"ncclGroupEnd", &library.group_end},
                         {"ncclSend", &library.send},
                         {"ncclRecv", &library.receive},
                         {"ncclAllReduce", &library.all_reduce},
                         {"ncclAllGather", &library.all_gather}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    if (!take_symbol(handle, list[i].name, list[i].function)) {
      return list[i].name;
    }
  }
  take_symbol(handle, "ncclGetLastError", &library.last_error);
  return NULL;
}

/* Remembers why it failed: the next call gets the same answer. */
static void find_library(void) {
  int version = 0;
  void *handle = RTLD_DEFAULT;
  if (!dlsym(RTLD_DEFAULT, "ncclCommUserRank")) {
    handle = dlopen(FILE_NAME, RTLD_NOW | RTLD_NOLOAD);
    handle = handle ? handle : dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      const char *why = dlerror();
      snprintf(failure, sizeof failure, "NCCL cannot be opened: %s", why ? why : FILE_NAME " is not there");
      return;
    }
  }
  const char *missing = take_symbols(handle);
  if (missing) {
    snprintf(failure, sizeof failure, "this NCCL is too old: it has no %s", missing);
    return;
  }
  if (library.version(&version) != PITH_NCCL_SUCCESS || version < OLDEST) {
    snprintf(failure, sizeof failure, "NCCL %d is too old: 2.7 is the first that sends between two ranks", version);
    return;
  }
  PITH_LOG_INFO("NCCL: version %d", version);
  found = 1;
}

pith_status pith__nccl_library(const pith_nccl_library **out) {
  pthread_mutex_lock(&lock);
  if (!found && !failure[0]) {
    find_library();
  }
  int there = found;
  pthread_mutex_unlock(&lock);
  PITH_REQUIRE(there, PITH_ERR_UNSUPPORTED, "%s", failure);
  *out = &library;
  return PITH_OK;
}

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

static pith_status refuse(const pith_nccl_link *link, int result, const char *operation) {
  const pith_nccl_library *nccl = link->library;
  const char *detail = nccl->last_error ? nccl->last_error(link->comm) : NULL;
  int some = detail && *detail;
  return pith_fail(result == PITH_NCCL_REMOTE ? PITH_ERR_PEER : PITH_ERR_SYSTEM, "NCCL: %s on rank %d of %d: %s%s%s%s",
                   operation, link->rank, link->ranks, nccl->error_text(result), some ? " (" : "", some ? detail : "",
                   some ? ")" : "");
}

/* Comms that do not block answer "in progress" while they make connections. */
static pith_status check(const pith_nccl_link *link, int result, const char *operation) {
  while (result == PITH_NCCL_IN_PROGRESS) {
    int state = PITH_NCCL_SUCCESS, asked = link->library->async_error(link->comm, &state);
    result = asked == PITH_NCCL_SUCCESS ? state : asked;
    sched_yield();
  }
  return result == PITH_NCCL_SUCCESS ? PITH_OK : refuse(link, result, operation);
}

/* ---- Operations -------------------------------------------------------------------------------------------------- */

pith_status pith__nccl_link(void *comm, pith_nccl_link *link) {
  *link = (pith_nccl_link){.comm = comm, .rank = -1};
  PITH_TRY(pith__nccl_library(&link->library));
  PITH_TRY(check(link, link->library->ranks(comm, &link->ranks), "ncclCommCount"));
  PITH_TRY(check(link, link->library->rank(comm, &link->rank), "ncclCommUserRank"));
  PITH_TRY(check(link, link->library->device(comm, &link->device), "ncclCommCuDevice"));
  PITH_REQUIRE(link->ranks > 0 && link->rank >= 0 && link->rank < link->ranks, PITH_ERR_ARGUMENT,
               "NCCL says rank %d of %d: is this a comm?", link->rank, link->ranks);
  return PITH_OK;
}

static int send_and_receive(const pith_nccl_link *link, int peer, const uint8_t *part, size_t size, uint8_t *received,
                            size_t own, void *stream) {
  const pith_nccl_library *nccl = link->library;
  int result = size ? nccl->send(part, size, PITH_NCCL_UINT8, peer, link->comm, stream) : PITH_NCCL_SUCCESS;
  if (result == PITH_NCCL_SUCCESS && own) {
    result = nccl->receive(received, own, PITH_NCCL_UINT8, peer, link->comm, stream);
  }
  return result == PITH_NCCL_IN_PROGRESS ? PITH_NCCL_SUCCESS : result; /* the group's end tells */
}

/* Each rank starts with itself, then its next neighbour: not all at rank 0. A group that was started is ended, come
 * what may. */
pith_status pith__nccl_scatter(const pith_nccl_link *link, const uint8_t *parts, const size_t *bytes, uint8_t *received,
                               size_t stride, void *stream) {
  PITH_TRY(check(link, link->library->group_start(), "ncclGroupStart"));
  int result = PITH_NCCL_SUCCESS;
  for (int i = 0; i < link->ranks && result == PITH_NCCL_SUCCESS; i++) {
    int peer = (link->rank + i) % link->ranks;
    size_t at = (size_t)peer * stride;
    result = send_and_receive(link, peer, parts + at, bytes[peer], received + at, bytes[link->rank], stream);
  }
  int ended = link->library->group_end();
  PITH_TRY(check(link, result, "ncclSend and ncclRecv"));
  return check(link, ended, "ncclGroupEnd after ncclSend and ncclRecv");
}

pith_status pith__nccl_gather(const pith_nccl_link *link, uint8_t *all, size_t size, void *stream) {
  const uint8_t *own = all + (size_t)link->rank * size;
  return check(link, link->library->all_gather(own, all, size, PITH_NCCL_UINT8, link->comm, stream), "ncclAllGather");
}

pith_status pith__nccl_sum(const pith_nccl_link *link, float *values, size_t n, void *stream) {
  return check(link, link->library->all_reduce(values, values, n, PITH_NCCL_FLOAT32, PITH_NCCL_SUM, link->comm, stream),
               "ncclAllReduce");
}

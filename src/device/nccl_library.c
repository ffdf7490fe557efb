/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds NCCL.
 *
 * The NCCL that made the program's comm is the one to use. So symbols that the process shows come first, then a
 * libnccl.so.2 that the process has loaded already (as Python does), and only then is one opened.
 */
#include "device/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"

#define FILE_NAME "libnccl.so.2"
#define OLDEST 21000 /* ncclAvg */

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
  take_symbol(handle, "ncclGetUniqueId", &library.unique_id);
  take_symbol(handle, "ncclCommInitRank", &library.init_rank);
  take_symbol(handle, "ncclCommAbort", &library.comm_abort);
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
    snprintf(failure, sizeof failure, "NCCL %d is too old: 2.10 is the first that averages", version);
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

pith_status pith_nccl_probe(int *version) {
  const pith_nccl_library *there;
  PITH_TRY(pith__nccl_library(&there));
  if (version) {
    there->version(version);
  }
  return PITH_OK;
}

/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL, opened at run time: the few functions that are used, declared here, since its header is not needed to build. */
#ifndef PITH_DEVICE_NCCL_LIBRARY_H
#define PITH_DEVICE_NCCL_LIBRARY_H

#include <pith/pith.h>

enum { PITH_NCCL_SUCCESS = 0, PITH_NCCL_REMOTE = 6, PITH_NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { PITH_NCCL_UINT8 = 1 };                                                    /* ncclDataType_t */

typedef struct pith_nccl_id { /* ncclUniqueId */
  char bytes[128];
} pith_nccl_id;

typedef struct pith_nccl_library {
  int (*version)(int *);
  const char *(*error_text)(int);
  const char *(*last_error)(void *comm); /* since 2.13; NULL before */
  int (*async_error)(void *comm, int *);
  int (*ranks)(const void *comm, int *);
  int (*rank)(const void *comm, int *);
  int (*device)(const void *comm, int *);
  int (*group_start)(void);
  int (*group_end)(void);
  int (*send)(const void *, size_t, int, int, void *comm, void *stream);
  int (*receive)(void *, size_t, int, int, void *comm, void *stream);
  int (*all_reduce)(const void *, void *, size_t, int, int, void *comm, void *stream);
  int (*all_gather)(const void *, void *, size_t, int, void *comm, void *stream);
  /* To make communicators; NULL where a program shows only some of NCCL's functions. */
  int (*unique_id)(pith_nccl_id *);
  int (*init_rank)(void **comm, int ranks, pith_nccl_id id, int rank);
  int (*comm_abort)(void *comm);
} pith_nccl_library;

/* Found at the first call; the error says why there is none. */
pith_status pith__nccl_library(const pith_nccl_library **library);

#endif

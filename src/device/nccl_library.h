/* NCCL, opened at run time: the few functions that are used, declared here, since its header is not needed to build. */
#ifndef PITH_DEVICE_NCCL_LIBRARY_H
#define PITH_DEVICE_NCCL_LIBRARY_H

#include <pith/pith.h>

enum { PITH_NCCL_SUCCESS = 0, PITH_NCCL_REMOTE = 6, PITH_NCCL_IN_PROGRESS = 7 }; /* ncclResult_t */
enum { PITH_NCCL_UINT8 = 1, PITH_NCCL_FLOAT32 = 7 };                             /* ncclDataType_t */
enum { PITH_NCCL_SUM = 0 };                                                      /* ncclRedOp_t */

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
} pith_nccl_library;

/* Found at the first call; the error says why there is none. */
pith_status pith__nccl_library(const pith_nccl_library **library);

/* A comm as this rank sees it. */
typedef struct pith_nccl_link {
  const pith_nccl_library *library;
  void *comm;
  int rank, ranks, device;
} pith_nccl_link;

pith_status pith__nccl_link(void *comm, pith_nccl_link *link);

/* Part p, bytes[p] bytes at p · stride, goes to rank p; from rank p, `own` bytes come to p · stride. */
pith_status pith__nccl_scatter(const pith_nccl_link *link, const uint8_t *parts, const size_t *bytes, uint8_t *received,
                               size_t stride, void *stream);

/* Everybody gets the `size` bytes at rank · size of all ranks; one's own are there already. */
pith_status pith__nccl_gather(const pith_nccl_link *link, uint8_t *all, size_t size, void *stream);

/* In place. */
pith_status pith__nccl_sum(const pith_nccl_link *link, float *values, size_t n, void *stream);

#endif

/*
 * The inside of an allreduce over NCCL. Layers are sorted by how they travel; what each way needs of the device's memory is cut from one piece, which
 * is taken when the object is made. What is kept between steps comes first in it, so that a checkpoint is one copy.
 */
#ifndef PITH_ENGINE_NCCL_H
#define PITH_ENGINE_NCCL_H

#include <pith/bucket.h>
#include <pith/cuda.h>
#include <pith/nccl.h>

#include "engine/nccl_library.h"
#include "kernel/formats.h"

enum { PITH_NCCL_ROUNDS = 2 }; /* of powersgd */

typedef enum pith_nccl_way { PITH_NCCL_BLOCKS, PITH_NCCL_WHOLE, PITH_NCCL_FACTORS, PITH_NCCL_WAYS } pith_nccl_way;

typedef struct pith_nccl_member {
  const pith_codec *codec;
  const char *reason;
  uint64_t number;
  size_t n, rows;
  pith_dtype dtype;
  pith_nccl_way way;
  /* on the device */
  float *memory, *momentum; /* as items have them */
  float *result;            /* blocks: what results of ours lost … */
  size_t own;               /* … which are so many values */
  void *part;               /* factors */
  float *total;             /* whole: the sum, where it is not the gradient itself */
  /* in buffers */
  size_t at;                      /* whole: of the payload in a message */
  size_t counts[PITH_NCCL_ROUNDS]; /* factors: values in each round */
} pith_nccl_member;

/* The layers that go one way, in their order. */
typedef struct pith_nccl_list {
  size_t count, *index;
} pith_nccl_list;

struct pith_nccl {
  pith_nccl_link link;
  const pith_cuda_module *gpu;
  uint64_t seed, summary; /* summary: of what all ranks must have in common */
  pith_rules *rules;
  size_t count;
  pith_nccl_member *members;
  pith_nccl_list lists[PITH_NCCL_WAYS];
  pith_cuda_item *items; /* for one call; `count` of them */
  void *memory;          /* of the device, all of it */
  size_t memory_size, kept_size;
  void *workspace;
  size_t workspace_size;
  /* blocks */
  pith_bucket *bucket;
  void **tensors;            /* gradients of these layers */
  float **memories, **results;
  size_t *bytes;             /* of each rank's part */
  size_t stride, own;        /* from part to part; values of our pieces */
  uint8_t *parts, *received; /* received parts make room for results */
  float *sums;
  /* whole: every rank's message begins with the sizes of its payloads */
  uint8_t *messages;
  size_t room;
  /* factors */
  float *buffer;
  size_t totals[PITH_NCCL_ROUNDS];
};

/* All about a member for a call; values and payload are the caller's to add. */
pith_cuda_item pith__nccl_item(const pith_nccl *nccl, const pith_nccl_member *member, int rank, uint64_t step);

/* The calling thread's current device must be the comm's. */
pith_status pith__nccl_check_device(const pith_nccl *nccl);

#endif

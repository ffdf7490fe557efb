/*
 * The inside of an allreduce on a device, whoever carries its bytes: NCCL (nccl.c) or a comm of Pith's own
 * (device_comm.c).
 *
 * Layers travel in units: a layer, or a slice of a large one. Units that travel together are a group, and all go the
 * same way. A group goes through stages of work on the device, with an exchange between ranks after each but the last;
 * what an exchange sends and receives lies in a slot, and groups take turns in slots. All memory of the device is one
 * piece, which is taken when the object is made. What is kept between steps comes first in it, so that a checkpoint is
 * one copy.
 */
#ifndef PITH_DEVICE_DEVICE_H
#define PITH_DEVICE_DEVICE_H

#include <pith/bucket.h>
#include <pith/cuda.h>
#include <pith/device.h>

#include "base/saturate.h"
#include "kernel/formats.h"

#define PITH_DEVICE_TEXT 256
#define PITH_DEVICE_ALIGNMENT 256 /* of everything on the device */

enum { PITH_DEVICE_ROUNDS = 2 }; /* of powersgd */

typedef enum pith_device_way {
  PITH_DEVICE_BLOCKS,
  PITH_DEVICE_WHOLE,
  PITH_DEVICE_FACTORS,
  PITH_DEVICE_WAYS
} pith_device_way;

typedef struct pith_device_member { /* a layer */
  const pith_codec *codec;
  const char *reason;
  uint64_t number;
  size_t n, rows;
  pith_dtype dtype;
  pith_device_way way;
} pith_device_member;

typedef struct pith_device_unit {
  const pith_device_member *of;
  size_t layer, first, n; /* values first … of a layer */
  uint64_t number;
  /* on the device */
  float *memory, *momentum; /* as items have them */
  float *result;            /* blocks: what results of ours lost … */
  size_t own;               /* … which are so many values */
  void *part;               /* factors */
  /* in buffers */
  size_t at;                         /* whole: of the payload in a message */
  size_t total;                      /* whole: of the sum in the scratch, where it is not the gradient itself */
  size_t counts[PITH_DEVICE_ROUNDS]; /* factors: values in each round */
} pith_device_unit;

typedef struct pith_device_group {
  pith_device_way way;
  size_t first, count; /* of its units */
  /* blocks */
  pith_bucket *bucket;
  size_t *bytes;      /* of each rank's part */
  size_t *at;         /* where it begins */
  size_t span, apart; /* of all parts; from one received part to the next */
  size_t own;         /* values of our pieces */
  /* whole: every rank's message begins with the sizes of its payloads */
  size_t room;
  /* factors */
  size_t totals[PITH_DEVICE_ROUNDS];
} pith_device_group;

typedef struct pith_device_core {
  /* set by those who carry bytes */
  int rank, ranks, device;
  const pith_cuda_module *gpu;
  uint64_t seed;
  size_t limit;      /* bytes of gradients in a group; SIZE_MAX: one group for each way */
  size_t slot_count; /* at the most */
  int spread;        /* parts for ranks lie at equal distances, multiples of the alignment, and not one after another */
  int waits;         /* the host waits for sizes of payloads */
  /* the rest is made of it */
  uint64_t summary; /* of what all ranks must have in common */
  pith_rules *rules;
  size_t count, unit_count, group_count;
  pith_device_member *members;
  pith_device_unit *units; /* in the order of groups */
  pith_device_group *groups;
  pith_cuda_item *items; /* for one call */
  void **tensors;        /* of each unit, as the three below */
  float **memories, **results;
  void *memory; /* of the device, all of it */
  size_t memory_size, kept_size;
  uint8_t *slots, *scratch; /* scratch: for one stage of work */
  size_t slot_size, workspace_size;
} pith_device_core;

static inline size_t pith__device_aligned(size_t size) {
  return pith__sat_add(size, PITH_DEVICE_ALIGNMENT - 1) / PITH_DEVICE_ALIGNMENT * PITH_DEVICE_ALIGNMENT;
}

/* ---- Life: device.c and device_memory.c
 * ------------------------------------------------------------------------------ */

pith_status pith__device_make(pith_device_core *core, const pith_layer *layers, size_t count, const char *rules);
void pith__device_drop(pith_device_core *core);
/* The calling thread's current device must be the object's. */
pith_status pith__device_check(const pith_device_core *core);
/* The summaries of all ranks; 0 from those that could not make their object. */
pith_status pith__device_compare(const pith_device_core *core, const uint64_t *all);
pith_status pith__device_take_memory(pith_device_core *core);

pith_status pith__device_spec(const pith_device_core *core, size_t layer, const char **spec, const char **reason);
size_t pith__device_sent(const pith_device_core *core);
pith_status pith__device_scale(const pith_device_core *core, float factor, void *stream);

/* ---- Steps: device_stage.c
 * ------------------------------------------------------------------------------------------------ */

typedef struct pith_device_job {
  void *const *gradients;
  uint64_t step;
  void *stream;
} pith_device_job;

typedef enum pith_device_move {
  PITH_DEVICE_END,     /* the stage was the last */
  PITH_DEVICE_SCATTER, /* part p goes to rank p */
  PITH_DEVICE_GATHER,  /* everybody gets what every rank has at its place of `in` */
  PITH_DEVICE_SUM,     /* in place */
  /* where the host waits, in place of gathering messages with all their room: */
  PITH_DEVICE_SIZES,   /* everybody learns the sizes of all payloads … */
  PITH_DEVICE_PAYLOADS /* … and gets them */
} pith_device_move;

typedef struct pith_device_exchange {
  pith_device_move move;
  uint8_t *out, *in; /* on the device */
  size_t out_size, in_size;
} pith_device_exchange;

pith_status pith__device_check_gradients(const pith_device_core *core, void *const *gradients);

/* Enqueues a stage of a group's work. */
pith_status pith__device_work(pith_device_core *core, size_t group, size_t stage, const pith_device_job *job);

/* What follows that stage. */
pith_device_exchange pith__device_exchange(const pith_device_core *core, size_t group, size_t stage);

/* All about a unit for a call; values and payload are the caller's to add. */
pith_cuda_item pith__device_item(const pith_device_core *core, const pith_device_unit *unit, int rank, uint64_t step);

/* ---- Checkpoints: device_save.c
 * --------------------------------------------------------------------------------------------- */

size_t pith__device_size(const pith_device_core *core);
pith_status pith__device_save(const pith_device_core *core, pith_out *out);
pith_status pith__device_load(pith_device_core *core, pith_bytes bytes);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Reducers that foreign calls use, by key; and the work of a call, whatever the platform. */
#ifndef PITH_XLA_PROGRAMS_H
#define PITH_XLA_PROGRAMS_H

#include <pith/xla.h>

#include "base/status.h"
#include "xla/cuda_step.h"
#include "xla/xla_abi.h"

/* The token: the first operand. It orders steps, and says whose state it is. */
typedef struct pith_xla_token {
  uint32_t step[2]; /* low and high half */
  uint32_t rank, ranks;
} pith_xla_token;

/* A program that XLA has compiled, which makes steps in parts. Where XLA moves buffers between them, which is so in all
 * steps or in none, layers cannot start in parts; the first step finds out. */
typedef enum pith_xla_habit { PITH_XLA_UNKNOWN, PITH_XLA_STAYS, PITH_XLA_MOVES } pith_xla_habit;
typedef struct pith_xla_site {
  int64_t number;
  pith_xla_habit habit;
} pith_xla_site;

typedef struct pith_xla_program {
  uint64_t key;
  pith_comm *comm;
  pith_reducer *reducer;
  int is_busy;          /* a step is under way, which may be several calls */
  int in_call;          /* one of them is */
  size_t parts;         /* of the step under way: so many calls have come */
  pith_xla_site *site;  /* of the step under way, one of … */
  pith_xla_site *sites; /* … those that have been seen */
  size_t site_count, site_room;
  int ordinal;           /* of the device that called it first; -1: none has yet */
  pith_status failed;    /* of the first call that failed, and … */
  pith_kept_error error; /* … what was wrong */
  size_t layers;         /* of the reducer */
  size_t buffers;        /* of a step: the token, gradients, arrays */
  size_t *bytes;         /* of each */
  void **place;          /* where the step under way has each; NULL: not yet */
  uint32_t *order;       /* of layers, in the step under way */
  size_t *arrays;        /* PITH_STATE_ARRAYS for each layer: which buffer it is; 0: none */
  pith_xla_token token;  /* of the step under way */
  pith_xla_cuda *cuda;   /* NULL: for memory of the host */
  struct pith_xla_program *next;
} pith_xla_program;

/* A buffer of a call: argument and result. */
typedef struct pith_xla_operand {
  const void *from;
  void *to;
  size_t bytes;
} pith_xla_operand;

/* What a call does: a whole step, or a part of one, so that layers travel while others are still computed. */
enum { PITH_XLA_WHOLE = -2, PITH_XLA_FINISH = -1 };
typedef struct pith_xla_call {
  uint64_t key;
  int64_t part;     /* one of the above, or the number of a call that starts layers: 0, 1, … */
  xla_array layers; /* s64: that it starts */
  xla_array order;  /* s64, in part 0: all layers, in the order of the parts */
  int64_t site;     /* in part 0: which of the programs that use the key */
  int cuda;         /* for memory of a CUDA device */
  int ordinal;      /* of the device */
  void *stream;     /* of XLA, for memory of a CUDA device */
} pith_xla_call;

/* The program of a key, for this call alone. PITH_ERR_STATE if there is none, if another step uses it, or if parts of a
 * step come in another order; PITH_ERR_UNSUPPORTED if another device uses it. */
pith_status pith__xla_enter(const pith_xla_call *call, pith_xla_program **program);
/* The end of the call. If it failed, so has the step, and all ranks are told: they wait for this one. */
void pith__xla_leave(pith_xla_program *program, const pith_xla_call *call, pith_status status);

/* The work of a call. A whole step, and each part, has the token, gradients and arrays of its layers; the call that
 * finishes has those of all layers, where the parts have left them. Gradients become means, and what layers keep goes
 * on. Results have the buffers of their arguments, or get their values. */
pith_status pith__xla_step(pith_xla_program *program, const pith_xla_call *call, const pith_xla_operand *operands,
                           size_t count);

#endif

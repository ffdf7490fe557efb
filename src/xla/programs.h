/* Reducers that foreign calls use, by key; and the work of a call, whatever the platform. */
#ifndef PITH_XLA_PROGRAMS_H
#define PITH_XLA_PROGRAMS_H

#include <pith/xla.h>

#include "base/status.h"
#include "xla/cuda_step.h"

typedef struct pith_xla_program {
  uint64_t key;
  pith_comm *comm;
  pith_reducer *reducer;
  int is_busy;           /* a call uses it */
  int ordinal;           /* of the device that called it first; -1: none has yet */
  pith_status failed;    /* of the first call that failed, and … */
  pith_kept_error error; /* … what was wrong */
  size_t layers;         /* of the reducer */
  size_t *bytes;         /* of each gradient, and … */
  size_t *arrays;        /* … PITH_STATE_ARRAYS numbers for each layer: bytes of what it keeps */
  size_t buffers;        /* of a call: the token, gradients, arrays */
  pith_xla_cuda *cuda;   /* NULL: for memory of the host */
  struct pith_xla_program *next;
} pith_xla_program;

/* A buffer of a call: argument and result. */
typedef struct pith_xla_operand {
  const void *from;
  void *to;
  size_t bytes;
} pith_xla_operand;

/* The program of a key, for this call alone; `cuda`: the call is for memory of a CUDA device. PITH_ERR_STATE if there
 * is none, or if another call uses it; PITH_ERR_UNSUPPORTED if another device does. */
pith_status pith__xla_enter(uint64_t key, int cuda, int ordinal, pith_xla_program **program);
/* The end of the call. If it failed, all ranks are told: they wait for this one. */
void pith__xla_leave(pith_xla_program *program, pith_status status);

/* The token: the first operand. It orders steps, and says whose state it is. */
typedef struct pith_xla_token {
  uint32_t step[2]; /* low and high half */
  uint32_t rank, ranks;
} pith_xla_token;

/* Gradients become means, and what layers keep goes on. Results have the buffers of their arguments, or get their
 * values. `stream`: of XLA, for memory of a CUDA device. */
pith_status pith__xla_step(pith_xla_program *program, const pith_xla_operand *operands, size_t count, void *stream);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A step on a CUDA device. XLA's stream may differ from call to call, and the reducer's is one for life: events put the
 * second behind the first. The host waits twice. It needs the step's number, which is in the token, before it can
 * enqueue; and it returns when the device has come to the end of the exchange, since XLA would otherwise go on with
 * values that a dead rank never sent.
 */
#include "xla/cuda_step.h"

#include <stdlib.h>
#include <string.h>

#include "device/comm_nccl.h"
#include "device/cuda_space.h"
#include "reducer/reducer.h"

#define TOKEN_ROOM 64
#define COMM_CHUNK_BYTES ((size_t)8 << 20) /* through pinned memory: copies overlap with messages */

struct pith_xla_cuda {
  pith_cuda_space *space; /* of the reducer */
  const pith_cuda_module *gpu;
  void *stream;      /* of XLA, during a call */
  void *ready, *end; /* what was enqueued before the call; all of the step */
  void *pinned;      /* the token */
};

pith_status pith__xla_cuda_create(const pith_reducer *reducer, pith_xla_cuda **made) {
  pith_cuda_space *space = (pith_cuda_space *)reducer->space;
  char text[256];
  pith_xla_cuda *c = calloc(1, sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a program of XLA");
  *c = (pith_xla_cuda){.space = space, .gpu = space->gpu};
  if (c->gpu->event_create(&c->ready, text) || c->gpu->event_create(&c->end, text) ||
      c->gpu->pin(TOKEN_ROOM, &c->pinned, text)) {
    pith__xla_cuda_destroy(c);
    return pith_fail(PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  *made = c;
  return PITH_OK;
}

void pith__xla_cuda_destroy(pith_xla_cuda *c) {
  if (!c) {
    return;
  }
  void *events[] = {c->ready, c->end};
  for (size_t i = 0; i < 2; i++) {
    if (events[i]) {
      c->gpu->event_destroy(events[i]);
    }
  }
  if (c->pinned) {
    c->gpu->unpin(c->pinned);
  }
  free(c);
}

int pith__xla_cuda_device(const pith_xla_cuda *c) { return c ? c->space->device : -1; }

pith_status pith__xla_cuda_begin(pith_xla_cuda *c, void *stream) {
  c->stream = stream;
  return pith__cuda_space_enter(c->space);
}

pith_status pith__xla_cuda_copy(const pith_xla_cuda *c, void *to, const void *from, size_t bytes) {
  PITH_CUDA_TRY(c->gpu->move, to, from, bytes, c->stream);
  return PITH_OK;
}

pith_status pith__xla_cuda_follow(pith_xla_cuda *c) {
  PITH_CUDA_TRY(c->gpu->event_record, c->ready, c->stream);
  PITH_CUDA_TRY(c->gpu->stream_wait, c->space->stream, c->ready);
  return PITH_OK;
}

pith_status pith__xla_cuda_fetch(pith_xla_cuda *c, void *token, const void *from, size_t bytes) {
  PITH_CUDA_TRY(c->gpu->to_host, c->pinned, from, bytes, c->stream);
  PITH_CUDA_TRY(c->gpu->event_record, c->ready, c->stream);
  PITH_TRY(pith__cuda_space_await(c->space, c->ready));
  memcpy(token, c->pinned, bytes);
  return PITH_OK;
}

pith_status pith__xla_cuda_end(pith_xla_cuda *c, void *to, const void *token, size_t bytes) {
  memcpy(c->pinned, token, bytes);
  PITH_CUDA_TRY(c->gpu->to_device, to, c->pinned, bytes, c->space->stream);
  PITH_CUDA_TRY(c->gpu->event_record, c->end, c->space->stream);
  PITH_CUDA_TRY(c->gpu->stream_wait, c->stream, c->end);
  return pith__cuda_space_await(c->space, c->end);
}

/* ---- Its reducer ------------------------------------------------------------------------------------------------- */

static pith_status find_choice(const char *name, pith_nccl_choice *choice) {
  static const char *const names[] = {
      [PITH_NCCL_IF_POSSIBLE] = "auto", [PITH_NCCL_REQUIRED] = "nccl", [PITH_NCCL_NEVER] = "comm"};
  for (int i = 0; i < 3; i++) {
    if (strcmp(name, names[i]) == 0) {
      *choice = (pith_nccl_choice)i;
      return PITH_OK;
    }
  }
  return pith_fail(PITH_ERR_ARGUMENT, "there is no carrier \"%s\": auto, nccl or comm", name);
}

static pith_status create(pith_comm *comm, pith_nccl_choice choice, const char *rules, uint64_t seed, int lent,
                          pith_reducer **reducer) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  options.cuda = 1, options.lent = lent;
  options.chunk_bytes = choice == PITH_NCCL_NEVER ? COMM_CHUNK_BYTES : 0;
  PITH_TRY(pith__comm_nccl_carrier(comm, choice, &carrier, &options.stream));
  pith_status status = pith_reducer_create_over(&carrier, rules, seed, &options, reducer);
  if (status != PITH_OK) {
    carrier.release(carrier.self);
  }
  return status;
}

const char *pith_xla_carrier(const pith_reducer *reducer) {
  return reducer ? pith__comm_nccl_name(&reducer->carrier) : NULL;
}

pith_status pith_xla_cuda_reducer(pith_comm *comm, int device, const char *carrier, const char *rules, uint64_t seed,
                                  int lent, pith_reducer **reducer) {
  pith_nccl_choice choice = PITH_NCCL_IF_POSSIBLE;
  const pith_cuda_module *gpu = NULL;
  int before = 0;
  char text[256];
  PITH_REQUIRE(comm && carrier && rules && reducer, PITH_ERR_ARGUMENT,
               "pith_xla_cuda_reducer: comm, carrier, rules and reducer must not be NULL");
  PITH_TRY(find_choice(carrier, &choice));
  PITH_TRY(pith__cuda_module(&gpu));
  PITH_CUDA_TRY(gpu->device, &before);
  PITH_CUDA_TRY(gpu->use_device, device);
  pith_status status = create(comm, choice, rules, seed, lent, reducer);
  PITH_REQUIRE(!gpu->use_device(before, text) || status != PITH_OK, PITH_ERR_SYSTEM, "CUDA: %s", text);
  return status;
}

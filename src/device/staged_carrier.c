/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A comm as a carrier. Messages in main memory are exchanged as they are; those from the device of one rank to those of
 * others through pinned memory: copied to the host, exchanged by the comm, copied back. A slot is one exchange, with
 * its pinned memory, from its start until the copy back has been executed.
 */
#include "device/staged_carrier.h"

#include <stdlib.h>

#include "base/size.h"
#include "base/status.h"
#include "comm/comm.h"
#include "device/cuda_device.h"

#define TEXT 256
#define SLOTS_MOST 64
#define ROOM_LEAST ((size_t)64 << 10)

typedef struct staged_slot {
  uint8_t *memory; /* pinned: what is sent, and behind it what is received */
  size_t room;
  void *event; /* behind the last copy */
  int is_taken;
  pith_request *request;
  pith_exchange exchange;
  size_t sent, received;
} staged_slot;

typedef struct staged_carrier {
  const pith_cuda_module *gpu; /* NULL: main memory */
  pith_comm *parent, *comm;    /* the second is our own, or in main memory the same */
  int rank, ranks;
  size_t slot_count;
  staged_slot slots[SLOTS_MOST];
} staged_carrier;

/* ---- Slots ------------------------------------------------------------------------------------------------------- */

static void release_memory(const staged_carrier *c, staged_slot *slot) {
  if (slot->memory) {
    c->gpu->unpin(slot->memory);
  }
  if (slot->event) {
    c->gpu->event_destroy(slot->event);
  }
  slot->memory = NULL, slot->event = NULL;
  slot->room = 0;
}

/* Free, and with the least room that is enough; else any that is free, or a new one. */
static staged_slot *find_slot(staged_carrier *c, size_t room) {
  staged_slot *best = NULL;
  for (size_t i = 0; i < c->slot_count; i++) {
    staged_slot *slot = &c->slots[i];
    if (!slot->is_taken && (!best || (slot->room >= room && (best->room < room || slot->room < best->room)))) {
      best = slot;
    }
  }
  int is_enough = best && best->room >= room;
  return is_enough || c->slot_count == SLOTS_MOST ? best : &c->slots[c->slot_count++];
}

static pith_status have_room(const staged_carrier *c, staged_slot *slot, size_t room) {
  if (slot->room >= room && slot->memory) {
    PITH_CUDA_TRY(c->gpu->event_wait, slot->event); /* it is still read by the last copy */
    return PITH_OK;
  }
  release_memory(c, slot);
  size_t size = ROOM_LEAST;
  while (size < room) {
    size += size / 2;
  }
  void *memory = NULL;
  char text[TEXT];
  PITH_REQUIRE(!c->gpu->pin(size, &memory, text), PITH_ERR_MEMORY, "CUDA: %zu bytes of pinned memory: %s", size, text);
  slot->memory = memory;
  slot->room = size;
  PITH_CUDA_TRY(c->gpu->event_create, &slot->event);
  return PITH_OK;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static void measure(const staged_carrier *c, staged_slot *slot, const pith_exchange *x) {
  switch (x->kind) {
    case PITH_EXCHANGE_ALL_TO_ALL:
      slot->sent = pith__sum(x->send_bytes, c->ranks);
      slot->received = pith__sum(x->recv_bytes, c->ranks);
      break;
    case PITH_EXCHANGE_ALL_GATHER:
      slot->sent = x->bytes;
      slot->received = x->bytes * (size_t)c->ranks;
      break;
    default: /* in place */
      slot->sent = 0;
      slot->received = x->count * pith_dtype_size(x->dtype);
  }
}

static pith_status post(const staged_carrier *c, staged_slot *slot) {
  const pith_exchange *x = &slot->exchange;
  void *received = c->gpu ? slot->memory + slot->sent : x->recv;
  pith_cspan src = {c->gpu ? slot->memory : x->send, slot->sent, PITH_U8};
  pith_span dst = {received, slot->received, PITH_U8};
  pith_call call = PITH_CALL_INIT;
  call.step = x->step; /* ranks that differ in it are told so before any value is summed */
  switch (x->kind) {
    case PITH_EXCHANGE_ALL_TO_ALL:
      return pith__all_to_all_of(c->comm, src, x->send_bytes, dst, x->recv_bytes, &call, &slot->request);
    case PITH_EXCHANGE_ALL_GATHER:
      return pith_all_gather(c->comm, src, dst, NULL, &call, &slot->request);
    default:
      return pith_allreduce(c->comm, (pith_cspan){received, x->count, x->dtype},
                            (pith_span){received, x->count, x->dtype}, x->op, &call, &slot->request);
  }
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  staged_carrier *c = self;
  staged_slot wanted = {0};
  measure(c, &wanted, x);
  staged_slot *slot = find_slot(c, wanted.sent + wanted.received);
  PITH_REQUIRE(slot, PITH_ERR_STATE, "more than %d exchanges at a time", SLOTS_MOST);
  slot->sent = wanted.sent;
  slot->received = wanted.received;
  slot->exchange = *x;
  if (c->gpu) {
    size_t bytes = x->kind == PITH_EXCHANGE_ALLREDUCE ? slot->received : slot->sent;
    PITH_TRY(have_room(c, slot, slot->sent + slot->received));
    PITH_CUDA_TRY(c->gpu->to_host, slot->memory, x->send ? x->send : x->recv, bytes, x->stream);
    PITH_CUDA_TRY(c->gpu->event_record, slot->event, x->stream);
    PITH_CUDA_TRY(c->gpu->event_wait, slot->event);
  }
  PITH_TRY(post(c, slot));
  slot->is_taken = 1;
  *ticket = (uint64_t)(slot - c->slots);
  return PITH_OK;
}

static pith_status wait(void *self, uint64_t ticket) {
  staged_carrier *c = self;
  staged_slot *slot = &c->slots[ticket];
  pith_request *request = slot->request;
  slot->request = NULL;
  slot->is_taken = 0;
  PITH_TRY(request ? pith_wait(request) : PITH_OK);
  if (!c->gpu) {
    return PITH_OK;
  }
  void *stream = slot->exchange.stream;
  PITH_CUDA_TRY(c->gpu->to_device, slot->exchange.recv, slot->memory + slot->sent, slot->received, stream);
  PITH_CUDA_TRY(c->gpu->event_record, slot->event, stream);
  return PITH_OK;
}

/* ---- The rest ---------------------------------------------------------------------------------------------------- */

static int interrupted(void *self) {
  const staged_carrier *c = self;
  return c->parent->interrupt.ask && pith__interrupt_is_possible(&c->parent->interrupt) &&
         pith__interrupt_ask(&c->parent->interrupt);
}

/* The other ranks must not wait for us. */
static void abort_comm(void *self, const char *why) {
  const staged_carrier *c = self;
  pith_comm_abort(c->comm, why);
}

static void release(void *self) {
  staged_carrier *c = self;
  for (size_t i = 0; i < c->slot_count; i++) {
    release_memory(c, &c->slots[i]);
  }
  pith_comm_destroy(c->comm == c->parent ? NULL : c->comm);
  free(c);
}

static pith_status make(const pith_cuda_module *gpu, pith_comm *parent, pith_comm *comm, pith_carrier *carrier) {
  staged_carrier *c = calloc(1, sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a carrier");
  c->gpu = gpu;
  c->parent = parent;
  c->comm = comm;
  c->rank = comm->rank;
  c->ranks = comm->ranks;
  *carrier = (pith_carrier){.size = sizeof *carrier,
                            .name = "pith",
                            .self = c,
                            .rank = c->rank,
                            .ranks = c->ranks,
                            .caps = PITH_CARRIER_THREADS | (gpu ? PITH_CARRIER_CUDA : 0),
                            .start = start,
                            .wait = wait,
                            .interrupted = interrupted,
                            .abort = abort_comm,
                            .release = release};
  return PITH_OK;
}

pith_status pith__comm_carrier(pith_comm *comm, pith_carrier *carrier) { return make(NULL, comm, comm, carrier); }

pith_status pith__staged_carrier(pith_comm *parent, pith_comm *own, pith_carrier *carrier) {
  const pith_cuda_module *gpu = NULL;
  PITH_TRY(pith__cuda_module(&gpu));
  return make(gpu, parent, own, carrier);
}

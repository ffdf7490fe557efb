/* Payloads on their way from the device of one rank to those of others: pinned memory, copies, and the operations of
 * the comm. */
#include "device/device_lane.h"

#include <stdlib.h>

#include "base/size.h"
#include "base/status.h"
#include "codec/codec.h"
#include "comm/submit.h"

/* ---- Pinned memory
 * --------------------------------------------------------------------------------------------------- */

typedef struct lane_sizes {
  size_t out, in, sizes;
} lane_sizes;

static lane_sizes measure(const pith_device_core *o) {
  lane_sizes most = {0};
  for (size_t g = 0; g < o->group_count; g++) {
    pith_device_exchange x = {.move = PITH_DEVICE_SUM};
    for (size_t stage = 0; x.move != PITH_DEVICE_END; stage++) {
      x = pith__device_exchange(o, g, stage);
      most.out = pith__most(most.out, pith__device_aligned(x.out_size));
      most.in = pith__most(most.in, pith__device_aligned(x.in_size));
    }
    if (o->groups[g].way == PITH_DEVICE_WHOLE) {
      most.sizes =
          pith__most(most.sizes, pith__device_aligned(o->groups[g].count * sizeof(uint64_t) * (size_t)o->ranks));
    }
  }
  return most;
}

static pith_status take_pinned(pith_device_port *port, const pith_device_core *o, lane_sizes each) {
  char text[PITH_DEVICE_TEXT];
  size_t lane = pith__sat_add(each.out, pith__sat_add(each.in, each.sizes)), size = pith__sat_mul(lane, port->count);
  PITH_REQUIRE(!o->gpu->pin(size, &port->pinned, text), PITH_ERR_MEMORY,
               "CUDA: %zu bytes of pinned memory for %zu groups: %s", size, port->count, text);
  port->pinned_size = size;
  for (size_t i = 0; i < port->count; i++) {
    uint8_t *at = (uint8_t *)port->pinned + i * lane;
    port->lanes[i].sizes = (uint64_t *)(void *)at;
    port->lanes[i].out = at + each.sizes;
    port->lanes[i].in = at + each.sizes + each.out;
  }
  return PITH_OK;
}

pith_status pith__device_port_open(pith_device_port *port, const pith_device_core *o, pith_comm *comm) {
  char text[PITH_DEVICE_TEXT];
  size_t count = pith__least(o->slot_count, o->group_count);
  port->comm = comm;
  port->lanes = calloc(count + 1, sizeof *port->lanes);
  port->counts = calloc((size_t)o->ranks, sizeof *port->counts);
  PITH_REQUIRE(port->lanes && port->counts, PITH_ERR_MEMORY, "no memory for %zu groups", count);
  port->count = count;
  for (size_t i = 0; i < count; i++) {
    PITH_REQUIRE(!o->gpu->event_create(&port->lanes[i].event, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  return count ? take_pinned(port, o, measure(o)) : PITH_OK;
}

void pith__device_port_close(pith_device_port *port, const pith_device_core *o) {
  if (port->pinned) {
    o->gpu->unpin(port->pinned);
  }
  for (size_t i = 0; i < port->count; i++) {
    if (port->lanes[i].event) {
      o->gpu->event_destroy(port->lanes[i].event);
    }
  }
  free(port->lanes);
  free(port->counts);
}

/* ---- Payloads whose size varies, one after another
 * -------------------------------------------------------------------- */

static size_t payload_bytes(const pith_device_lane *lane, const pith_device_group *g, int rank) {
  size_t sum = 0;
  for (size_t i = 0; i < g->count; i++) {
    sum += lane->sizes[(size_t)rank * g->count + i];
  }
  return sum;
}

/* What ranks say is checked; codecs of fixed size say nothing. */
static pith_status read_sizes(pith_device_lane *lane, const pith_device_core *o, const pith_device_group *g) {
  for (size_t i = 0; i < g->count * (size_t)o->ranks; i++) {
    const pith_device_unit *u = &o->units[g->first + i % g->count];
    size_t bound = pith_codec_bound(u->of->codec, u->n);
    lane->sizes[i] = u->of->codec->caps & PITH_CAP_FIXED ? bound : lane->sizes[i];
    PITH_REQUIRE(lane->sizes[i] <= bound, PITH_ERR_CORRUPT,
                 "rank %zu says that a payload of %s has %llu bytes; %zu is the most", i / g->count, u->of->codec->spec,
                 (unsigned long long)lane->sizes[i], bound);
  }
  return PITH_OK;
}

static pith_status leave_payloads(const pith_device_lane *lane, const pith_device_core *o,
                                  const pith_device_exchange *x, void *stream) {
  const pith_device_group *g = &o->groups[lane->group];
  const uint64_t *sizes = lane->sizes + (size_t)o->rank * g->count;
  uint8_t *to = lane->out;
  char text[PITH_DEVICE_TEXT];
  for (size_t i = 0; i < g->count; to += sizes[i++]) {
    PITH_REQUIRE(!o->gpu->to_host(to, x->out + o->units[g->first + i].at, sizes[i], stream, text), PITH_ERR_SYSTEM,
                 "CUDA: %s", text);
  }
  return PITH_OK;
}

/* To where messages have them. Our own are there. */
static pith_status arrive_payloads(const pith_device_lane *lane, const pith_device_core *o,
                                   const pith_device_exchange *x, void *stream) {
  const pith_device_group *g = &o->groups[lane->group];
  const uint8_t *from = lane->in;
  char text[PITH_DEVICE_TEXT];
  for (int p = 0; p < o->ranks; p++) {
    const uint64_t *sizes = lane->sizes + (size_t)p * g->count;
    uint8_t *message = x->in + (size_t)p * g->room;
    if (p == o->rank) {
      from += payload_bytes(lane, g, p);
      continue;
    }
    PITH_REQUIRE(!o->gpu->to_device(message, sizes, g->count * sizeof *sizes, stream, text), PITH_ERR_SYSTEM,
                 "CUDA: %s", text);
    for (size_t i = 0; i < g->count; from += sizes[i++]) {
      PITH_REQUIRE(!o->gpu->to_device(message + o->units[g->first + i].at, from, sizes[i], stream, text),
                   PITH_ERR_SYSTEM, "CUDA: %s", text);
    }
  }
  return PITH_OK;
}

/* ---- Copies
 * ------------------------------------------------------------------------------------------------------------- */

pith_status pith__device_lane_leave(pith_device_port *port, pith_device_lane *lane, const pith_device_core *o,
                                    void *stream) {
  const pith_device_group *g = &o->groups[lane->group];
  pith_device_exchange x = pith__device_exchange(o, lane->group, lane->stage);
  char text[PITH_DEVICE_TEXT];
  if (x.move == PITH_DEVICE_PAYLOADS) {
    port->varying += ((size_t)o->ranks - 1) * payload_bytes(lane, g, o->rank);
    PITH_TRY(leave_payloads(lane, o, &x, stream));
  } else {
    size_t size = x.move == PITH_DEVICE_SIZES ? g->count * sizeof(uint64_t) : x.out_size;
    PITH_REQUIRE(!o->gpu->to_host(lane->out, x.out, size, stream, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  }
  PITH_REQUIRE(!o->gpu->event_record(lane->event, stream, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}

pith_status pith__device_lane_arrive(pith_device_lane *lane, const pith_device_core *o, void *stream) {
  pith_device_exchange x = pith__device_exchange(o, lane->group, lane->stage);
  pith_request *request = lane->request;
  char text[PITH_DEVICE_TEXT];
  lane->request = NULL;
  PITH_TRY(request ? pith_wait(request) : PITH_OK);
  switch (x.move) {
    case PITH_DEVICE_SIZES:
      return read_sizes(lane, o, &o->groups[lane->group]);
    case PITH_DEVICE_PAYLOADS:
      return arrive_payloads(lane, o, &x, stream);
    default:
      PITH_REQUIRE(!o->gpu->to_device(x.in, lane->in, x.in_size, stream, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
      return PITH_OK;
  }
}

/* ---- Exchanges
 * ---------------------------------------------------------------------------------------------------------- */

static pith_cspan sent(const pith_device_lane *lane, size_t n, pith_dtype dtype) {
  return (pith_cspan){lane->out, n, dtype};
}

static pith_span received(const pith_device_lane *lane, size_t n, pith_dtype dtype) {
  return (pith_span){lane->in, n, dtype};
}

/* Step, seed and group: ranks that differ in them are told so before any value is summed. */
static pith_call call_of(const pith_device_port *port, const pith_device_lane *lane, const pith_device_core *o) {
  pith_call call = PITH_CALL_INIT;
  call.step = port->step;
  call.seed = o->seed;
  call.layer = lane->group;
  return call;
}

static pith_status scatter(pith_device_port *port, pith_device_lane *lane, const pith_device_core *o,
                           const pith_device_exchange *x) {
  const pith_device_group *g = &o->groups[lane->group];
  for (int p = 0; p < o->ranks; p++) {
    port->counts[p] = g->bytes[o->rank];
  }
  pith_call call = call_of(port, lane, o);
  return pith__all_to_all_of(port->comm, sent(lane, x->out_size, PITH_U8), g->bytes,
                             received(lane, x->in_size, PITH_U8), port->counts, &call, &lane->request);
}

static pith_status gather_payloads(pith_device_port *port, pith_device_lane *lane, const pith_device_core *o) {
  size_t total = 0;
  for (int p = 0; p < o->ranks; p++) {
    port->counts[p] = payload_bytes(lane, &o->groups[lane->group], p);
    total += port->counts[p];
  }
  pith_call call = call_of(port, lane, o);
  return pith_all_gather(port->comm, sent(lane, port->counts[o->rank], PITH_U8), received(lane, total, PITH_U8),
                         port->counts, &call, &lane->request);
}

static pith_status gather_sizes(pith_device_port *port, pith_device_lane *lane, const pith_device_core *o) {
  size_t count = o->groups[lane->group].count;
  pith_call call = call_of(port, lane, o);
  port->varying += ((size_t)o->ranks - 1) * count * sizeof(uint64_t);
  return pith_all_gather(port->comm, sent(lane, count, PITH_I64),
                         (pith_span){lane->sizes, count * (size_t)o->ranks, PITH_I64}, NULL, &call, &lane->request);
}

pith_status pith__device_lane_post(pith_device_port *port, pith_device_lane *lane, const pith_device_core *o) {
  pith_device_exchange x = pith__device_exchange(o, lane->group, lane->stage);
  size_t values = x.in_size / sizeof(float);
  pith_call call = call_of(port, lane, o);
  char text[PITH_DEVICE_TEXT];
  PITH_REQUIRE(!o->gpu->event_wait(lane->event, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  switch (x.move) {
    case PITH_DEVICE_SCATTER:
      return scatter(port, lane, o, &x);
    case PITH_DEVICE_GATHER:
      return pith_all_gather(port->comm, sent(lane, x.out_size, PITH_U8), received(lane, x.in_size, PITH_U8),
                             o->groups[lane->group].bytes, &call, &lane->request);
    case PITH_DEVICE_SIZES:
      return gather_sizes(port, lane, o);
    case PITH_DEVICE_PAYLOADS:
      return gather_payloads(port, lane, o);
    default: /* a sum of nothing, where all factors are dense, is the same for all ranks */
      return values ? pith_allreduce(port->comm, sent(lane, values, PITH_F32), received(lane, values, PITH_F32),
                                     PITH_SUM, &call, &lane->request)
                    : PITH_OK;
  }
}

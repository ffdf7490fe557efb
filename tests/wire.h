/* SPDX-License-Identifier: Apache-2.0 */
/* A carrier made of the collectives of a comm, as that of a framework would be of the framework's. */
#ifndef PITH_TESTS_WIRE_H
#define PITH_TESTS_WIRE_H

#include <stdatomic.h>

#include "ranks.h"
#include "test.h"

#define IN_FLIGHT 64

typedef struct wire {
  pith_comm *comm;
  pith_request *request[IN_FLIGHT];
  uint64_t next;
  int starts;
  atomic_int begun, waited;            /* exchanges */
  int fails_at;                        /* the exchange that cannot be started; 0: none */
  int (*is_there)(const void *memory); /* whether memory is where the carrier has it; NULL: anywhere is */
} wire;

static pith_status begin(wire *w, const pith_exchange *x, uint64_t *ticket) {
  size_t ranks = (size_t)pith_comm_size(w->comm), sent = 0, received = 0;
  CHECK(!w->is_there || ((!x->send || w->is_there(x->send)) && (!x->recv || w->is_there(x->recv))));
  if (++w->starts == w->fails_at) {
    return pith_fail(PITH_ERR_SYSTEM, "the wire is cut");
  }
  pith_request **request = &w->request[w->next % IN_FLIGHT];
  CHECK(!*request);
  *ticket = w->next++;
  switch (x->kind) {
    case PITH_EXCHANGE_ALL_TO_ALL:
      for (size_t p = 0; p < ranks; p++) {
        sent += x->send_bytes[p];
        received += x->recv_bytes[p];
      }
      return pith_all_to_all(w->comm, (pith_cspan){x->send, sent, PITH_U8}, x->send_bytes,
                             (pith_span){x->recv, received, PITH_U8}, x->recv_bytes, request);
    case PITH_EXCHANGE_ALL_GATHER: {
      uint8_t *all = x->recv;
      const uint8_t *mine = x->send;
      CHECK(mine + x->bytes <= all || mine >= all + x->bytes * ranks ||
            mine == all + (size_t)pith_comm_rank(w->comm) * x->bytes);
      return pith_all_gather(w->comm, (pith_cspan){x->send, x->bytes, PITH_U8},
                             (pith_span){x->recv, x->bytes * ranks, PITH_U8}, NULL, NULL, request);
    }
    case PITH_EXCHANGE_ALLREDUCE:
      return pith_allreduce(w->comm, (pith_cspan){x->recv, x->count, x->dtype},
                            (pith_span){x->recv, x->count, x->dtype}, x->op, NULL, request);
  }
  return pith_fail(PITH_ERR_UNSUPPORTED, "exchange %d is unknown", (int)x->kind);
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  wire *w = self;
  pith_status status = begin(w, x, ticket);
  w->begun += status == PITH_OK;
  return status;
}

static pith_status wait(void *self, uint64_t ticket) {
  wire *w = self;
  pith_request *request = w->request[ticket % IN_FLIGHT];
  w->request[ticket % IN_FLIGHT] = NULL;
  pith_status status = request ? pith_wait(request) : PITH_OK;
  w->waited++;
  return status;
}

static pith_carrier carrier_of(wire *w, uint32_t caps) {
  pith_carrier carrier = PITH_CARRIER_INIT;
  carrier.name = "test", carrier.self = w, carrier.caps = caps;
  carrier.rank = pith_comm_rank(w->comm), carrier.ranks = pith_comm_size(w->comm);
  carrier.start = start, carrier.wait = wait;
  return carrier;
}

#endif

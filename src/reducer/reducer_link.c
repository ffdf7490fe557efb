/* SPDX-License-Identifier: Apache-2.0 */
/* Small exchanges of a reducer between its steps: what ranks compare, and numbers that the adapter adds up. */
#include <string.h>

#include "memory/space.h"
#include "reducer/reducer.h"

static pith_status run(const pith_reducer *r, pith_exchange x) {
  uint64_t ticket;
  x.size = sizeof x;
  x.stream = r->options.stream;
  x.step = r->step;
  PITH_TRY(r->carrier.start(r->carrier.self, &x, &ticket));
  return r->carrier.wait(r->carrier.self, ticket);
}

/* Over a carrier that moves memory of another space: by way of there. The first `sent` bytes are ours, at `send`. */
static pith_status exchange(const pith_reducer *r, pith_exchange x, size_t sent, size_t received) {
  void *there = NULL, *result = x.recv;
  if (!r->space) {
    return run(r, x);
  }
  PITH_TRY(pith__space_zeros(r->space, sent + received, &there));
  pith_status status = pith__space_copy(r->space, there, x.send ? x.send : x.recv, sent);
  x.recv = x.send ? (uint8_t *)there + sent : there;
  x.send = x.send ? there : NULL;
  status = status == PITH_OK ? run(r, x) : status;
  status = status == PITH_OK ? pith__space_copy(r->space, result, x.recv, received) : status;
  pith__space_release(r->space, there);
  return status;
}

pith_status pith__reducer_gather(const pith_reducer *r, const void *mine, size_t bytes, void *all) {
  if (r->ranks == 1) {
    memcpy(all, mine, bytes);
    return PITH_OK;
  }
  if (r->comm) {
    return pith_all_gather(r->comm, (pith_cspan){mine, bytes, PITH_U8},
                           (pith_span){all, bytes * (size_t)r->ranks, PITH_U8}, NULL, NULL, NULL);
  }
  return exchange(r, (pith_exchange){.kind = PITH_EXCHANGE_ALL_GATHER, .send = mine, .recv = all, .bytes = bytes},
                  bytes, bytes * (size_t)r->ranks);
}

pith_status pith__reducer_sum(const pith_reducer *r, double *numbers, size_t count) {
  if (r->ranks == 1) {
    return PITH_OK;
  }
  if (r->comm) {
    return pith_allreduce(r->comm, (pith_cspan){numbers, count, PITH_F64}, (pith_span){numbers, count, PITH_F64},
                          PITH_SUM, NULL, NULL);
  }
  pith_exchange x = {
      .kind = PITH_EXCHANGE_ALLREDUCE, .recv = numbers, .count = count, .dtype = PITH_F64, .op = PITH_SUM};
  return exchange(r, x, count * sizeof *numbers, count * sizeof *numbers);
}

pith_status pith__reducer_barrier(const pith_reducer *r) {
  double one = 1;
  return r->comm ? pith_barrier(r->comm, NULL) : pith__reducer_sum(r, &one, 1);
}

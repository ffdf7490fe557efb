/* Small exchanges of a reducer between its steps: what ranks compare, and numbers that the adapter adds up. */
#include <string.h>

#include "reducer/reducer.h"

static pith_status exchange(const pith_reducer *r, pith_exchange x) {
  uint64_t ticket;
  x.size = sizeof x;
  PITH_TRY(r->carrier.start(r->carrier.self, &x, &ticket));
  return r->carrier.wait(r->carrier.self, ticket);
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
  return exchange(r, (pith_exchange){.kind = PITH_EXCHANGE_ALL_GATHER, .send = mine, .recv = all, .bytes = bytes});
}

pith_status pith__reducer_sum(const pith_reducer *r, double *numbers, size_t count) {
  if (r->ranks == 1) {
    return PITH_OK;
  }
  if (r->comm) {
    return pith_allreduce(r->comm, (pith_cspan){numbers, count, PITH_F64}, (pith_span){numbers, count, PITH_F64},
                          PITH_SUM, NULL, NULL);
  }
  return exchange(
      r, (pith_exchange){
             .kind = PITH_EXCHANGE_ALLREDUCE, .recv = numbers, .count = count, .dtype = PITH_F64, .op = PITH_SUM});
}

pith_status pith__reducer_barrier(const pith_reducer *r) {
  double one = 1;
  return r->comm ? pith_barrier(r->comm, NULL) : pith__reducer_sum(r, &one, 1);
}

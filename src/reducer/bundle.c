/*
 * Layers joined to one operation: a message costs more than a small layer does.
 *
 * Layers with a codec stay where they are. Block codecs join what ranks send each other; each layer keeps its own
 * memory, random numbers and owners (src/collective/parts.c), so that it makes no difference to the result whether it
 * was joined. Methods of several rounds join what they exchange. Uncompressed layers are copied together. In each case
 * the ranks compare which layers are joined, in which order: a sum of different layers is an error, compressed or not.
 */
#include "base/hash.h"
#include "comm/submit.h"
#include "reducer/reducer.h"

/* What the ranks compare instead of one layer's number. */
static uint64_t number_of(const pith_member *members, size_t count) {
  uint64_t hash = count;
  for (size_t i = 0; i < count; i++) {
    uint64_t facts[2] = {members[i].layer, members[i].n};
    hash = pith__hash64(facts, sizeof facts, hash);
  }
  return hash;
}

pith_status pith__allreduce_joined(pith_comm *comm, pith_span joined, const pith_call *call, const pith_member *members,
                                   size_t count, pith_request **request) {
  pith_operation *op;
  pith_call one = *call;
  one.layer = number_of(members, count);
  pith_cspan src = {joined.data, joined.n, joined.dtype};
  PITH_TRY(pith__operation_make_joined(comm, PITH_OP_ALLREDUCE, src, joined, PITH_MEAN, &one, members, count, &op));
  return pith__operation_submit(op, pith__schedule_allreduce(op, NULL), request);
}

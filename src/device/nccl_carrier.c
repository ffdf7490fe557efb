/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL as a carrier: its operations are enqueued (exchange_stream.h), so that nobody has to wait for them on the host.
 */
#include <pith/carrier.h>
#include <sched.h>
#include <stdlib.h>

#include "base/size.h"
#include "base/struct_size.h"
#include "device/exchange_stream.h"
#include "device/nccl_library.h"

typedef struct nccl_carrier {
  const pith_nccl_library *library;
  const pith_cuda_module *gpu;
  void *comm;
  int rank, ranks;
  double timeout;
  pith_exchange_stream way;
} nccl_carrier;

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* Comms that do not block answer "in progress" while they make connections. */
static pith_status check(const nccl_carrier *c, int result, const char *operation) {
  while (result == PITH_NCCL_IN_PROGRESS) {
    int state = PITH_NCCL_SUCCESS, asked = c->library->async_error(c->comm, &state);
    result = asked == PITH_NCCL_SUCCESS ? state : asked;
    sched_yield();
  }
  if (result == PITH_NCCL_SUCCESS) {
    return PITH_OK;
  }
  const char *detail = c->library->last_error ? c->library->last_error(c->comm) : NULL;
  int some = detail && *detail;
  return pith_fail(result == PITH_NCCL_REMOTE ? PITH_ERR_PEER : PITH_ERR_SYSTEM, "NCCL: %s on rank %d of %d: %s%s%s%s",
                   operation, c->rank, c->ranks, c->library->error_text(result), some ? " (" : "", some ? detail : "",
                   some ? ")" : "");
}

static pith_status check_ranks(void *self, double waited) {
  const nccl_carrier *c = self;
  int state = PITH_NCCL_SUCCESS, asked = c->library->async_error(c->comm, &state);
  PITH_TRY(check(c, asked == PITH_NCCL_SUCCESS ? state : asked, "an exchange"));
  PITH_REQUIRE(
      !(c->timeout > 0) || waited < c->timeout, PITH_ERR_TIMEOUT,
      "NCCL: rank %d of %d has waited %.0f s for a step to end; a rank may have stopped, and NCCL does not tell "
      "which",
      c->rank, c->ranks, waited);
  return PITH_OK;
}

/* ---- Exchanges --------------------------------------------------------------------------------------------------- */

static int send_and_receive(const nccl_carrier *c, int peer, const pith_exchange *x, size_t from, size_t to) {
  size_t sent = x->send_bytes[peer], received = x->recv_bytes[peer];
  const uint8_t *send = (const uint8_t *)x->send + from;
  uint8_t *receive = (uint8_t *)x->recv + to;
  int result = sent ? c->library->send(send, sent, PITH_NCCL_UINT8, peer, c->comm, c->way.stream) : PITH_NCCL_SUCCESS;
  if (result == PITH_NCCL_SUCCESS && received) {
    result = c->library->receive(receive, received, PITH_NCCL_UINT8, peer, c->comm, c->way.stream);
  }
  return result == PITH_NCCL_IN_PROGRESS ? PITH_NCCL_SUCCESS : result; /* the group's end tells */
}

/* Each rank starts with itself, then its next neighbour: not all at rank 0. A group that was started is ended, come
 * what may. */
static pith_status all_to_all(const nccl_carrier *c, const pith_exchange *x) {
  PITH_TRY(check(c, c->library->group_start(), "ncclGroupStart"));
  int result = PITH_NCCL_SUCCESS;
  for (int i = 0; i < c->ranks && result == PITH_NCCL_SUCCESS; i++) {
    int peer = (c->rank + i) % c->ranks;
    result = send_and_receive(c, peer, x, pith__sum(x->send_bytes, peer), pith__sum(x->recv_bytes, peer));
  }
  int ended = c->library->group_end();
  PITH_TRY(check(c, result, "ncclSend and ncclRecv"));
  return check(c, ended, "ncclGroupEnd after ncclSend and ncclRecv");
}

static pith_status allreduce(const nccl_carrier *c, const pith_exchange *x) {
  /* What NCCL calls our types and operations, plus one; 0: it has none. */
  static const int types[] = {[PITH_F32] = 7 + 1, [PITH_F16] = 6 + 1, [PITH_BF16] = 9 + 1, [PITH_F64] = 8 + 1,
                              [PITH_U8] = 1 + 1,  [PITH_I8] = 0 + 1,  [PITH_I32] = 2 + 1,  [PITH_I64] = 4 + 1};
  static const int ops[] = {
      [PITH_SUM] = 0 + 1, [PITH_PROD] = 1 + 1, [PITH_MAX] = 2 + 1, [PITH_MIN] = 3 + 1, [PITH_MEAN] = 4 + 1};
  size_t type = (size_t)x->dtype, op = (size_t)x->op;
  PITH_REQUIRE(type < sizeof types / sizeof *types && types[type] && op < sizeof ops / sizeof *ops && ops[op],
               PITH_ERR_UNSUPPORTED, "NCCL does not reduce %s by operation %d", pith_dtype_name(x->dtype), (int)x->op);
  return check(c,
               c->library->all_reduce(x->recv, x->recv, x->count, types[type] - 1, ops[op] - 1, c->comm, c->way.stream),
               "ncclAllReduce");
}

static pith_status enqueue(const nccl_carrier *c, const pith_exchange *x) {
  switch (x->kind) {
    case PITH_EXCHANGE_ALL_TO_ALL:
      return all_to_all(c, x);
    case PITH_EXCHANGE_ALL_GATHER:
      return check(c, c->library->all_gather(x->send, x->recv, x->bytes, PITH_NCCL_UINT8, c->comm, c->way.stream),
                   "ncclAllGather");
    default:
      return allreduce(c, x);
  }
}

static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) {
  nccl_carrier *c = self;
  PITH_TRY(pith__exchange_stream_begin(&c->way, x->stream, ticket));
  PITH_TRY(enqueue(c, x));
  return pith__exchange_stream_end(&c->way, x->stream, *ticket);
}

static pith_status wait(void *self, uint64_t ticket) {
  nccl_carrier *c = self;
  return pith__exchange_stream_join(&c->way, ticket);
}

/* ---- Making one -------------------------------------------------------------------------------------------------- */

static pith_status look_at(nccl_carrier *c) {
  int device = 0, current = 0;
  PITH_TRY(pith__nccl_library(&c->library));
  PITH_TRY(check(c, c->library->ranks(c->comm, &c->ranks), "ncclCommCount"));
  PITH_TRY(check(c, c->library->rank(c->comm, &c->rank), "ncclCommUserRank"));
  PITH_TRY(check(c, c->library->device(c->comm, &device), "ncclCommCuDevice"));
  PITH_REQUIRE(c->ranks > 0 && c->rank >= 0 && c->rank < c->ranks, PITH_ERR_ARGUMENT,
               "NCCL says rank %d of %d: is this a comm?", c->rank, c->ranks);
  PITH_TRY(pith__cuda_module(&c->gpu));
  PITH_CUDA_TRY(c->gpu->device, &current);
  PITH_REQUIRE(device == current, PITH_ERR_ARGUMENT,
               "the communicator is of device %d, and the calling thread's current device is %d", device, current);
  return pith__exchange_stream_open(c->gpu, &c->way);
}

/* What is under way on the stream goes on; NCCL knows what it needs for that. */
static void release(void *self) {
  nccl_carrier *c = self;
  pith__exchange_stream_close(&c->way);
  free(c);
}

pith_status pith_nccl_carrier(void *comm, double timeout, pith_carrier *carrier) {
  PITH_REQUIRE(comm && carrier, PITH_ERR_ARGUMENT, "pith_nccl_carrier: comm and carrier must not be NULL");
  nccl_carrier *c = malloc(sizeof *c);
  PITH_REQUIRE(c, PITH_ERR_MEMORY, "no memory for a carrier");
  *c = (nccl_carrier){.comm = comm, .timeout = timeout, .rank = -1};
  pith_status status = look_at(c);
  pith_carrier made = {.size = sizeof made,
                       .name = "NCCL",
                       .self = c,
                       .rank = c->rank,
                       .ranks = c->ranks,
                       .caps = PITH_CARRIER_THREADS | PITH_CARRIER_CUDA,
                       .start = start,
                       .wait = wait,
                       .check = check_ranks,
                       .release = release};
  if (status == PITH_OK) {
    status = PITH_STRUCT_WRITE(pith_carrier, &made, carrier);
  }
  if (status != PITH_OK) {
    release(c);
  }
  return status;
}

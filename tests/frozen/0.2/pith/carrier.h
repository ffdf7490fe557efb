/*
 * Carriers: a reducer (pith/comm.h) over somebody else's collectives, such as a framework's process group. Part of the
 * public API; pith.h includes it.
 *
 *   static pith_status start(void *self, const pith_exchange *x, uint64_t *ticket) { … begins a collective … }
 *   static pith_status wait(void *self, uint64_t ticket) { … until it is complete … }
 *
 *   pith_carrier carrier = PITH_CARRIER_INIT;
 *   carrier.name = "mine", carrier.self = group, carrier.rank = rank, carrier.ranks = ranks;
 *   carrier.start = start, carrier.wait = wait;
 *   pith_reducer_create_over(&carrier, "ef/q:4", seed, NULL, &reducer);
 *
 * The reducer groups layers, encodes, decodes and averages; the carrier moves bytes. Every rank starts the same
 * exchanges in the same order. docs/reducer.md has the stages of each method.
 */
#ifndef PITH_CARRIER_H
#define PITH_CARRIER_H

#include <pith/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum pith_exchange_kind {
  PITH_EXCHANGE_ALL_TO_ALL = 0, /* send_bytes[p] bytes go to rank p, recv_bytes[p] come from it */
  PITH_EXCHANGE_ALL_GATHER = 1, /* every rank sends `bytes`; recv has those of rank 0, 1, … one after another */
  PITH_EXCHANGE_ALLREDUCE = 2,  /* `count` values of `dtype` in recv are reduced in place by `op`, to the same bits on
                                   all ranks; send is NULL */
} pith_exchange_kind;

/* One collective. What it points to is the reducer's, and stays until wait() has returned. */
typedef struct pith_exchange {
  size_t size; /* sizeof(pith_exchange) of the library */
  pith_exchange_kind kind;
  const void *send;
  void *recv;
  const size_t *send_bytes, *recv_bytes; /* all-to-all: for each rank; pieces lie one after another */
  size_t bytes;                          /* all-gather: of one rank */
  size_t count;                          /* allreduce */
  pith_dtype dtype;
  pith_reduce_op op;
  void *stream; /* CUDA: on which send was written, and on which recv will be read */
} pith_exchange;

/* What a carrier allows.
 * THREADS: start and wait may be called by a thread of the reducer's own, which then sends while the caller computes.
 *   Without it they are called inside calls of the reducer alone.
 * CUDA: send and recv are memory of a CUDA device. A collective starts behind what is enqueued on exchange->stream, and
 *   what is enqueued there after wait() comes behind the collective. */
enum { PITH_CARRIER_THREADS = 1 << 0, PITH_CARRIER_CUDA = 1 << 1 };

/* Both functions return PITH_OK, or the result of pith_fail(), whose text becomes that of the reducer's
 * error. They are never called by two threads at once. `start` should not wait for other ranks. After an error `wait`
 * is still called for each ticket, since memory is lent until then. */
typedef struct pith_carrier {
  size_t size; /* sizeof(pith_carrier) */
  const char *name;
  void *self;
  int rank, ranks;
  uint32_t caps; /* PITH_CARRIER_… */
  pith_status (*start)(void *self, const pith_exchange *exchange, uint64_t *ticket);
  pith_status (*wait)(void *self, uint64_t ticket);
  /* Optional, with THREADS: asked now and then, in the caller's thread, while it waits. Not 0 ends the wait with
   * PITH_ERR_INTERRUPTED, and with it the reducer. */
  int (*interrupted)(void *self);
} pith_carrier;

#define PITH_CARRIER_INIT {.size = sizeof(pith_carrier)}

/* Device memory of a framework, so that its statistics stay true. Both may be called by a thread of the reducer. */
typedef struct pith_allocator {
  void *self;
  void *(*allocate)(void *self, size_t bytes); /* NULL: there is none */
  void (*release)(void *self, void *memory);
} pith_allocator;

/* How a reducer forms groups of layers. Layers of one kind are grouped from the last that was added to the first, the
 * order of a backward pass, until they have so many bytes. A group leaves when all its gradients have come. */
typedef struct pith_reducer_options {
  size_t size;        /* sizeof(pith_reducer_options) */
  size_t group_bytes; /* 0: over a comm layers leave one by one as they come; over a carrier 8 MiB, or 16 MiB of methods
                         that send little */
  int in_order;       /* groups leave in one order on all ranks, in whatever order gradients come */
  int cuda;           /* gradients, and all that is kept of them, are memory of the current CUDA device */
  void *stream;       /* CUDA: on which the reducer works. Gradients are read behind what is enqueued there at start,
                         and are means behind what is there when finish returns */
  size_t chunk_bytes; /* CUDA: layers much larger travel in several exchanges; 0: 32 MiB */
  const pith_allocator *allocator; /* CUDA: whose memory; NULL: the reducer asks the device */
} pith_reducer_options;

#define PITH_REDUCER_OPTIONS_INIT {.size = sizeof(pith_reducer_options)}

/* pith_reducer_create() over a carrier. The struct is copied; what it points to lives as long as the reducer. To
 * destroy a reducer in the middle of a step does not wait for other ranks: a wait() of its thread that has not returned
 * may do so later, and no other call follows. */
PITH_API pith_status pith_reducer_create_over(const pith_carrier *carrier, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

/* pith_reducer_create() with options; NULL: the defaults. */
PITH_API pith_status pith_reducer_create_with(pith_comm *comm, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

#ifdef __cplusplus
}
#endif
#endif

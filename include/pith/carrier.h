/* SPDX-License-Identifier: Apache-2.0 */
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

/* The collectives that a reducer asks a carrier for. */
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
  void *stream;  /* CUDA: on which send was written, and on which recv will be read */
  uint64_t step; /* of the reducer: the same on all ranks */
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
  /* Optional, with CUDA: asked now and then while the device has not come to the end of a step, `waited` seconds after
   * somebody began to wait for that. An error, as of a rank that is gone, ends the wait, and with it the reducer. */
  pith_status (*check)(void *self, double waited);
  /* Optional: the reducer of this rank has failed, and takes part in nothing any more. Other ranks should learn it, and
   * what hangs should end. May be called by a thread of the reducer, at most once. */
  void (*abort)(void *self, const char *why);
  /* Optional: the reducer and its thread call nothing of the carrier any more. Not called if the reducer could not be
   * created. */
  void (*release)(void *self);
} pith_carrier;

#define PITH_CARRIER_INIT {.size = sizeof(pith_carrier)}

/* Device memory of a framework, so that its statistics stay true. Both may be called by a thread of the reducer. */
typedef struct pith_allocator {
  void *self;
  void *(*allocate)(void *self, size_t bytes); /* NULL: there is none */
  void (*release)(void *self, void *memory);
} pith_allocator;

/* How a reducer forms groups of layers. Layers of one kind are grouped from the last that was added to the first, the
 * order of a backward pass, until they have so many bytes. A group is sent when all its gradients are ready. */
typedef struct pith_reducer_options {
  size_t size;        /* sizeof(pith_reducer_options) */
  size_t group_bytes; /* 0: over a comm each layer is sent when it is ready; over a carrier 8 MiB, or 16 MiB of methods
                         that send little */
  int in_order;       /* groups are sent in one order on all ranks, in whatever order gradients are ready */
  int cuda;           /* gradients, and all that is kept of them, are memory of the current CUDA device */
  void *stream;       /* CUDA: on which the reducer works. Gradients are read behind what is enqueued there at start,
                         and are means behind what is there when finish returns */
  size_t chunk_bytes; /* CUDA: layers much larger are sent in several exchanges; 0: 32 MiB, or more at few bits */
  const pith_allocator *allocator; /* CUDA: whose memory; NULL: the reducer asks the device */
  int capturable; /* CUDA: calls enqueue a step and wait for nothing, so that a CUDA graph can capture it; see below */
  int sharded;    /* every rank owns a shard of each layer; see below */
  int lent;       /* what layers keep between steps is in arrays of the caller; see below */
  const char *carrier; /* CUDA, over a comm: "ipc", from GPU to GPU within a host, or "staged", through pinned memory;
                          NULL or "auto": PITH_CUDA_CARRIER, else ipc where all ranks can. "/nccl" behind that: by NCCL
                          between hosts, where each host sums first (docs/gpu.md) */
  int in_parts; /* a step of training is several starts and finishes: for an adaptive spec it is over when a layer is
                   started again */
} pith_reducer_options;

#define PITH_REDUCER_OPTIONS_INIT {.size = sizeof(pith_reducer_options)}

/* pith_reducer_create() over a carrier. The struct is copied; what it points to lives as long as the reducer. To
 * destroy a reducer in the middle of a step does not wait for other ranks: a wait() of its thread that has not returned
 * may do so later, and no other call follows. */
PITH_API pith_status pith_reducer_create_over(const pith_carrier *carrier, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

/* pith_reducer_create() with options; NULL: the defaults. With `cuda`, messages go from GPU to GPU where all ranks are
 * on one host and can reach each other's GPUs, else through pinned memory. Ranks find out at the first exchange, where
 * a comm of the reducer's own is split off. */
PITH_API pith_status pith_reducer_create_with(pith_comm *comm, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

/* ---- Sharded models ----------------------------------------------------------------------------------------------
 *
 * Where every rank owns a shard of each layer, as in FSDP, gradients are reduced to their owners, and parameters
 * gathered from them. With options.sharded a reducer does both, for layers of which each rank's shard is encoded by
 * itself: any codec can be used.
 *
 *   options.sharded = 1;
 *   pith_reducer_create_over(&carrier, "none", seed, &options, &reducer);   // or _with(comm, …); rules are not used
 *   pith_reducer_add_shards(reducer, &shard, "ef/q:4", &fc1);
 *   pith_reducer_reduce_scatter(reducer, (size_t[]){fc1, fc2}, 2, all, own, PITH_MEAN);
 *
 * Calls return when results are there; with options.cuda, when they are enqueued. Checkpoints, scaling and statistics
 * are those of all reducers, but there are no steps to finish: each layer counts its messages.
 *
 * With an adaptive spec in the place of rules ("lgreco:q:4"), layers that are added with the same text are in its
 * plans. Each rank measures the gradients of its own shards. A step is over when a layer comes again. */

/* Adds a layer with its spec. The shape is that of one shard, and the same on all ranks. */
PITH_API pith_status pith_reducer_add_shards(pith_reducer *reducer, const pith_layer *shard, const char *spec,
                                             size_t *index);

/* src has for each rank, one after another, its shards of these layers, in their order; dst gets the sums or means of
 * this rank's, added up by their owner in f32 in rank order. Both are f32, f16 or bf16. What encoding loses is kept for
 * each layer and owner. */
PITH_API pith_status pith_reducer_reduce_scatter(pith_reducer *reducer, const size_t *layers, size_t count,
                                                 pith_cspan src, pith_span dst, pith_reduce_op op);

/* src has this rank's shards of these layers, dst gets those of rank 0, 1, …; all ranks decode the same bytes, the
 * owner too. For codecs of fixed size without memory.
 *
 * With the spec delta/… ("delta:256,store=bf16/q:4") of a layer every rank keeps a reference: the values it was given
 * last, for all ranks' shards. What travels is the difference from it, and all ranks add that to their references,
 * which dst gets. One of `every` messages (0: the first alone) has whole parameters, exact or with fresh=8 by q:8. */
PITH_API pith_status pith_reducer_all_gather(pith_reducer *reducer, const size_t *layers, size_t count, pith_cspan src,
                                             pith_span dst);

/* dst gets what the last pith_reducer_all_gather() of these layers gave, of any type. All of them have specs with
 * delta/. Nothing travels, unless a checkpoint was loaded since: all ranks call it alike. */
PITH_API pith_status pith_reducer_gathered(pith_reducer *reducer, const size_t *layers, size_t count, pith_span dst);

/* ---- States in the caller's memory -------------------------------------------------------------------------------
 *
 * With options.lent a reducer keeps nothing of a step but its statistics. What a layer keeps is in arrays that the
 * caller lends it for each step, as programs do that make new arrays instead of changing old ones (JAX):
 *
 *   pith_reducer_array_sizes(reducer, fc1, bytes);          // once; the arrays start as zeros
 *   pith_reducer_set_step(reducer, step);                   // every step
 *   pith_reducer_lend(reducer, fc1, arrays);
 *   pith_reducer_start(reducer, fc1, gradient);
 *   pith_reducer_finish(reducer);                           // takes all arrays back
 *
 * The bits are those of a reducer that keeps its states. Checkpoints and scaling are the caller's; adaptive specs, and
 * specs that send momentum, are refused. */

/* The arrays that a layer's state consists of. */
typedef enum pith_state_array {
  PITH_STATE_RESIDUAL = 0, /* one for each value of the layer, as are the next two: f32, or packed (store=bf16|8) */
  PITH_STATE_MOMENTUM = 1,
  PITH_STATE_RESULT = 2, /* what the results that this rank encoded lost; zero where other ranks encode them */
  PITH_STATE_CODEC = 3,  /* bytes of the codec's own, such as the factors of low rank */
  PITH_STATE_ARRAYS = 4
} pith_state_array;

/* Bytes of each array of a layer; 0: its spec has none. */
PITH_API pith_status pith_reducer_array_sizes(const pith_reducer *reducer, size_t index,
                                              size_t bytes[PITH_STATE_ARRAYS]);

/* The arrays of a layer for the step that comes, aligned for f32; they are read and written until finish. Those that
 * its spec has not are ignored. */
PITH_API pith_status pith_reducer_lend(pith_reducer *reducer, size_t index, void *const arrays[PITH_STATE_ARRAYS]);

/* The number of the step that comes, the same on all ranks: random numbers follow from it. Between two steps, and for
 * reducers with options.lent alone. */
PITH_API pith_status pith_reducer_set_step(pith_reducer *reducer, uint64_t step);

/* ---- NCCL --------------------------------------------------------------------------------------------------------
 *
 * A communicator that the program has (ncclComm_t), as a carrier: everything is enqueued on the reducer's stream. The
 * library links neither to CUDA nor to NCCL: it uses the NCCL that the process has loaded, or else opens libnccl.so.2.
 *
 *   pith_carrier carrier = PITH_CARRIER_INIT;
 *   pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
 *   options.cuda = 1, options.stream = stream;
 *   pith_nccl_carrier(comm, 0, &carrier);
 *   pith_reducer_create_over(&carrier, "*.bias=none;*=ef/q:4", seed, &options, &reducer);
 *
 * The communicator must outlive the reducer, be of the calling thread's current device, and be used by nobody else
 * between the first start of a step and its finish.
 *
 * Graphs. With options.capturable a step (all starts and finish) can be captured, over NCCL and over a comm from GPU to
 * GPU (ipc): after one step that was not, which takes the memory and makes the connections. A graph repeats the step it
 * was captured with: the same random numbers every time, and the same ratio of a warm-up. It uses the reducer's memory
 * and the communicator, which must outlive it. Nobody waits for the sizes of payloads then: always as many bytes are
 * sent as the largest can have, and codecs whose payloads may grow to half of the gradient (threshold, topk:0.5) are
 * refused, as are adaptive specs, and residuals in fewer bits (ef,store=8), which need other random numbers in every
 * step. */

/* Whether NCCL can be used: it is there, and new enough. The error says why not. `version` (optional): NCCL's own
 * number, 22803 for 2.28.3. */
PITH_API pith_status pith_nccl_probe(int *version);

/* Fills in a carrier. Ranks that NCCL says are gone, and a device that needs more than `timeout` seconds for a step (0:
 * no limit), are errors of the reducer; the communicator stays the caller's to abort. */
PITH_API pith_status pith_nccl_carrier(void *comm, double timeout, pith_carrier *carrier);

#ifdef __cplusplus
}
#endif
#endif

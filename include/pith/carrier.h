/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Carriers: a reducer (pith/comm.h) over the collectives of another library, such as a framework's process group. Part
 * of the public API; pith.h includes it.
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
 * exchanges in the same order. docs/reducer.md lists the stages of each method.
 */
#ifndef PITH_CARRIER_H
#define PITH_CARRIER_H

#include <pith/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The collectives that a reducer asks a carrier for. */
typedef enum pith_exchange_kind {
  PITH_EXCHANGE_ALL_TO_ALL = 0, /* sends send_bytes[p] bytes to rank p, receives recv_bytes[p] from it */
  PITH_EXCHANGE_ALL_GATHER = 1, /* every rank sends `bytes` bytes; recv gets those of rank 0, 1, … in a row */
  PITH_EXCHANGE_ALLREDUCE = 2,  /* reduces `count` values of `dtype` in recv by `op`, in place, to the same bits on
                                   all ranks; send is NULL */
} pith_exchange_kind;

/* One collective. The memory that it points to belongs to the reducer and stays valid until wait() has returned. */
typedef struct pith_exchange {
  size_t size; /* sizeof(pith_exchange) of the library */
  pith_exchange_kind kind;
  const void *send;
  void *recv;
  const size_t *send_bytes, *recv_bytes; /* all-to-all: for each rank; pieces are contiguous */
  size_t bytes;                          /* all-gather: of each rank */
  size_t count;                          /* allreduce */
  pith_dtype dtype;
  pith_reduce_op op;
  void *stream;  /* CUDA: the stream on which send was written and recv will be read */
  uint64_t step; /* the reducer's step: the same on all ranks */
} pith_exchange;

/* What a carrier allows.
 * THREADS: a thread of the reducer may call start and wait, so that it sends while the caller computes. Without this
 *   flag the reducer calls them only inside calls of its own functions.
 * CUDA: send and recv are memory of a CUDA device. A collective runs after the work that is already enqueued on
 *   exchange->stream, and work enqueued there after wait() runs after the collective. */
enum { PITH_CARRIER_THREADS = 1 << 0, PITH_CARRIER_CUDA = 1 << 1 };

/* A carrier. `start` and `wait` return PITH_OK or the result of pith_fail(), whose text becomes the text of the
 * reducer's error. Two threads never call them at once. `start` should not wait for other ranks. After an error the
 * reducer still calls `wait` for each ticket, since memory is lent until then. */
typedef struct pith_carrier {
  size_t size; /* sizeof(pith_carrier) */
  const char *name;
  void *self;
  int rank, ranks;
  uint32_t caps; /* PITH_CARRIER_… */
  pith_status (*start)(void *self, const pith_exchange *exchange, uint64_t *ticket);
  pith_status (*wait)(void *self, uint64_t ticket);
  /* Optional, with THREADS: called now and then in the caller's thread while it waits. A result other than 0 ends the
   * wait with PITH_ERR_INTERRUPTED, and the reducer fails. */
  int (*interrupted)(void *self);
  /* Optional, with CUDA: called now and then while a call waits for the device to finish a step; `waited` is the time
   * since the wait began, in seconds. An error, for example about a dead rank, ends the wait, and the reducer fails. */
  pith_status (*check)(void *self, double waited);
  /* Optional: this rank's reducer has failed and will not communicate any more. The carrier should tell the other ranks
   * and end operations that hang. Called at most once, possibly by a thread of the reducer. */
  void (*abort)(void *self, const char *why);
  /* Optional: the reducer and its thread will not call the carrier any more. Not called if the reducer could not be
   * created. */
  void (*release)(void *self);
} pith_carrier;

#define PITH_CARRIER_INIT {.size = sizeof(pith_carrier)}

/* A framework's allocator of device memory, so that the framework's memory statistics stay true. A thread of the
 * reducer may call both functions. */
typedef struct pith_allocator {
  void *self;
  void *(*allocate)(void *self, size_t bytes); /* returns NULL if there is no memory left */
  void (*release)(void *self, void *memory);
} pith_allocator;

/* How a reducer groups layers, and where it works. Layers of one kind are grouped from the last added to the first, the
 * order of a backward pass, until a group has group_bytes bytes. A group is sent when all its gradients are ready. */
typedef struct pith_reducer_options {
  size_t size;        /* sizeof(pith_reducer_options) */
  size_t group_bytes; /* 0: over a comm each layer is sent when it is ready; over a carrier 8 MiB, or 16 MiB for methods
                         that send little */
  int in_order;       /* groups are sent in the same order on all ranks, in whatever order gradients become ready */
  int cuda;           /* gradients and states are in memory of the current CUDA device */
  void *stream; /* CUDA: the stream on which the reducer works. It reads a gradient after the work enqueued there at
                   start. Work enqueued there after finish sees the means */
  size_t chunk_bytes; /* CUDA: much larger layers are sent in several exchanges; 0: 32 MiB, or more at few bits */
  const pith_allocator *allocator; /* CUDA: provides the memory; NULL: the reducer allocates from the device */
  int capturable; /* CUDA: calls only enqueue a step and never wait, so that a CUDA graph can capture it; see below */
  int sharded;    /* every rank owns a shard of each layer; see below */
  int lent;       /* layers keep their states in arrays of the caller; see below */
  const char *carrier; /* CUDA, over a comm: "ipc" (from GPU to GPU within a host) or "staged" (through pinned memory);
                          NULL or "auto": PITH_CUDA_CARRIER, else ipc if all ranks can. With the suffix "/nccl" each
                          host sums first, and NCCL carries messages between hosts (docs/gpu.md) */
  int in_parts; /* a training step consists of several starts and finishes. An adaptive spec then counts a step as over
                   when a layer is started again */
} pith_reducer_options;

#define PITH_REDUCER_OPTIONS_INIT {.size = sizeof(pith_reducer_options)}

/* Like pith_reducer_create(), but over a carrier. The struct is copied; what it points to must outlive the reducer.
 * Destroying a reducer in the middle of a step does not wait for other ranks: a wait() that its thread is in may return
 * later, and no other call to the carrier follows. */
PITH_API pith_status pith_reducer_create_over(const pith_carrier *carrier, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

/* Like pith_reducer_create(), with options; NULL: the defaults. With `cuda`, messages go from GPU to GPU if all ranks
 * are on one host and can reach each other's GPUs, else through pinned memory. The ranks decide this at the first
 * exchange, when the reducer splits off its own comm. */
PITH_API pith_status pith_reducer_create_with(pith_comm *comm, const char *rules, uint64_t seed,
                                              const pith_reducer_options *options, pith_reducer **reducer);

/* ---- Sharded models ----------------------------------------------------------------------------------------------
 *
 * In FSDP and similar schemes every rank owns a shard of each layer: gradients are reduced to their owners, and
 * parameters are gathered from them. With options.sharded a reducer does both. Each rank's shard is encoded separately,
 * so any codec can be used.
 *
 *   options.sharded = 1;
 *   pith_reducer_create_over(&carrier, "none", seed, &options, &reducer);   // or _with(comm, …); rules are not used
 *   pith_reducer_add_shards(reducer, &shard, "ef/q:4", &fc1);
 *   pith_reducer_reduce_scatter(reducer, (size_t[]){fc1, fc2}, 2, all, own, PITH_MEAN);
 *
 * Calls return when the results are there; with options.cuda, when the work is enqueued. Checkpoints, scaling and
 * statistics work as with every reducer, but there are no steps to finish: each layer counts its own messages.
 *
 * With an adaptive spec instead of rules ("lgreco:q:4"), its plans cover the layers that are added with the same text.
 * Each rank measures the gradients of its own shards. A step is over when a layer is reduced again. */

/* Adds a layer with its spec. `shard` describes one shard; its shape is the same on all ranks. */
PITH_API pith_status pith_reducer_add_shards(pith_reducer *reducer, const pith_layer *shard, const char *spec,
                                             size_t *index);

/* src holds, rank after rank, the shards of these layers in the given order. dst gets the sums or means of this rank's
 * shards, which their owner adds up in f32 and in rank order. Both are f32, f16 or bf16. Residuals are kept for each
 * layer and owner. */
PITH_API pith_status pith_reducer_reduce_scatter(pith_reducer *reducer, const size_t *layers, size_t count,
                                                 pith_cspan src, pith_span dst, pith_reduce_op op);

/* src holds this rank's shards of these layers; dst gets the shards of rank 0, 1, … All ranks decode the same bytes,
 * the owner too. For FIXED codecs without memory.
 *
 * If the spec of a layer begins with delta/ ("delta:256,store=bf16/q:4"), every rank keeps a reference: the last values
 * of all ranks' shards. Ranks send the difference from the reference and add it to their references, which are copied
 * to dst. One of `every` messages (0: only the first) carries whole parameters, exact or, with fresh=8, encoded by
 * q:8. */
PITH_API pith_status pith_reducer_all_gather(pith_reducer *reducer, const size_t *layers, size_t count, pith_cspan src,
                                             pith_span dst);

/* dst gets the result of the last pith_reducer_all_gather() of these layers, in any type. The specs of all these layers
 * must begin with delta/. Communicates only if a checkpoint was loaded since then, so all ranks make the same calls. */
PITH_API pith_status pith_reducer_gathered(pith_reducer *reducer, const size_t *layers, size_t count, pith_span dst);

/* ---- States in the caller's memory -------------------------------------------------------------------------------
 *
 * With options.lent a reducer keeps only statistics between steps. The state of a layer is in arrays that the caller
 * lends to the reducer for each step. This suits programs that create new arrays instead of changing old ones, as in
 * JAX:
 *
 *   pith_reducer_array_sizes(reducer, fc1, bytes);          // once; the arrays start as zeros
 *   pith_reducer_set_step(reducer, step);                   // every step
 *   pith_reducer_lend(reducer, fc1, arrays);
 *   pith_reducer_start(reducer, fc1, gradient);
 *   pith_reducer_finish(reducer);                           // takes all arrays back
 *
 * The bits are the same as those of a reducer that keeps its states. Checkpoints and scaling are up to the caller.
 * Adaptive specs and specs that send momentum are refused. */

/* The arrays that make up a layer's state. */
typedef enum pith_state_array {
  PITH_STATE_RESIDUAL = 0, /* an entry for each value of the layer, like the next two: f32, or packed (store=bf16|8) */
  PITH_STATE_MOMENTUM = 1,
  PITH_STATE_RESULT = 2, /* residual of the results that this rank encodes; zero where other ranks encode them */
  PITH_STATE_CODEC = 3,  /* the codec's own bytes, such as the factors of low rank */
  PITH_STATE_ARRAYS = 4
} pith_state_array;

/* The size in bytes of each array of a layer; 0: its spec does not use the array. */
PITH_API pith_status pith_reducer_array_sizes(const pith_reducer *reducer, size_t index,
                                              size_t bytes[PITH_STATE_ARRAYS]);

/* Lends a layer its arrays for the coming step, aligned for f32. They are read and written until finish. Arrays that
 * its spec does not use are ignored. */
PITH_API pith_status pith_reducer_lend(pith_reducer *reducer, size_t index, void *const arrays[PITH_STATE_ARRAYS]);

/* Sets the number of the coming step, the same on all ranks; random numbers depend on it. Between two steps, and only
 * for reducers with options.lent. */
PITH_API pith_status pith_reducer_set_step(pith_reducer *reducer, uint64_t step);

/* ---- NCCL --------------------------------------------------------------------------------------------------------
 *
 * Uses the program's own communicator (ncclComm_t) as a carrier. Everything is enqueued on the reducer's stream. The
 * library links neither to CUDA nor to NCCL: it uses the NCCL that the process has loaded, or else opens libnccl.so.2.
 *
 *   pith_carrier carrier = PITH_CARRIER_INIT;
 *   pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
 *   options.cuda = 1, options.stream = stream;
 *   pith_nccl_carrier(comm, 0, &carrier);
 *   pith_reducer_create_over(&carrier, "*.bias=none;*=ef/q:4", seed, &options, &reducer);
 *
 * The communicator must outlive the reducer and belong to the calling thread's current device. Nobody else may use it
 * between the first start of a step and its finish.
 *
 * Graphs. With options.capturable a step (all starts and finish) can be captured in a CUDA graph, over NCCL and over a
 * comm from GPU to GPU (ipc). Run one step before the capture: it allocates memory and makes connections. A graph
 * repeats the captured step, with the same random numbers every time and the same ratio of a warm-up. It uses the
 * reducer's memory and the communicator, which must both outlive it. Since nobody waits for the sizes of payloads,
 * every message has the size of the largest possible payload. Refused are codecs whose payloads may grow to half of the
 * gradient (threshold, topk:0.5), adaptive specs, and residuals in fewer bits (ef,store=8), which need new random
 * numbers in every step. */

/* Whether NCCL is present and new enough. The error says why not. *version (optional) becomes NCCL's version number,
 * such as 22803 for 2.28.3. */
PITH_API pith_status pith_nccl_probe(int *version);

/* Fills in a carrier. The reducer fails if NCCL reports a lost rank, or if the device needs more than `timeout` seconds
 * for a step (0: no limit). It does not abort the communicator; that is up to the caller. */
PITH_API pith_status pith_nccl_carrier(void *comm, double timeout, pith_carrier *carrier);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith's communicator: groups of ranks that exchange tensors, compressed or not. Part of the public API; pith.h
 * includes it.
 *
 *   pith_comm *comm;
 *   pith_comm_create(NULL, &comm);                           // rank, size and address from the environment
 *   pith_call call = PITH_CALL_INIT;
 *   call.codec = codec;
 *   call.step = step;
 *   pith_allreduce(comm, src, dst, PITH_MEAN, &call, NULL);  // the same call on every rank
 *   pith_comm_destroy(comm);
 *
 * Every rank of a comm calls the same operations with the same arguments in the same order. If a rank does otherwise,
 * ends or stalls, the call fails on every rank with an error that names that rank, and the comm refuses all further
 * work with that error. Results are bit-identical on all ranks. Calls may come from any thread.
 *
 * A call with `request` == NULL returns when the operation is complete. Otherwise it returns at once: the tensors stay
 * lent to the operation, and pith_wait() or pith_test() says when it is complete.
 */
#ifndef PITH_COMM_H
#define PITH_COMM_H

#include <pith/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A group of ranks, and an operation in flight. */
typedef struct pith_comm pith_comm;
typedef struct pith_request pith_request;

/* ---- How this process was started -------------------------------------------------------------------------------- */

/* What the launcher's environment variables say. */
typedef struct pith_launch {
  size_t size;          /* sizeof(pith_launch) */
  const char *launcher; /* "torchrun", "Open MPI", "PMI", "PMIx", "Slurm"; "environment": RANK and WORLD_SIZE alone */
  int rank, ranks;
  int local_rank, local_ranks; /* on this host; -1 if the launcher does not say */
  char host[256];              /* rank 0's host: MASTER_ADDR, or as the launcher says; "" if unknown */
  int port; /* rank 0's port: PITH_PORT, MASTER_PORT, or derived from the launcher's job id; 0 if unknown */
} pith_launch;

#define PITH_LAUNCH_INIT {.size = sizeof(pith_launch)}

/*
 * Reads RANK and WORLD_SIZE (torchrun, pith run, scripts), OMPI_COMM_WORLD_* (Open MPI's mpirun), PMI_* (MPICH, Intel
 * MPI), PMIX_RANK, and SLURM_* (srun), in this order. The first launcher that gives both a rank and a size wins.
 * PITH_ERR_ARGUMENT if no launcher does; the message says what was found and what to set.
 */
PITH_API pith_status pith_launch_find(pith_launch *launch);

/*
 * For programs that can already send bytes from rank 0 to all other ranks, for example by MPI or a key-value store.
 * Rank 0 creates an id, the program sends it to every rank, and every rank passes it in pith_config.id. The id holds
 * rank 0's addresses and a port that is already open. Unless PITH_SECRET is set, it also holds a secret for this comm:
 * anyone who has the id can join, so send it only to the ranks.
 */
#define PITH_UNIQUE_ID_SIZE 512
typedef struct pith_unique_id {
  unsigned char bytes[PITH_UNIQUE_ID_SIZE];
} pith_unique_id;

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

/* How to form a comm. Texts only need to live during the call. A field that is NULL, 0 or -1 gets its value from an
 * environment variable, or else a default. */
typedef struct pith_config {
  size_t size;           /* sizeof(pith_config) */
  int rank, ranks;       /* -1: as the launcher says (pith_launch_find) */
  const char *host;      /* rank 0's host; NULL: MASTER_ADDR, else as the launcher says, else 127.0.0.1 */
  int port;              /* 0: PITH_PORT, MASTER_PORT or one derived from the launcher's job id, else 29499 */
  const char *transport; /* "auto" (shm within a host, tcp between hosts), "shm", "tcp", "mpi", "ucx", "inproc"; NULL:
                            PITH_TRANSPORT */
  const char *interface; /* network interface or address; NULL: PITH_IFNAME, else the one that reaches rank 0 */
  const char *host_id;   /* ranks with the same text share a host; NULL: PITH_HOSTID, else this machine's boot and
                            network namespace */
  const char *secret;    /* only ranks that have it can join; NULL: PITH_SECRET, else none */
  double timeout;        /* seconds without progress before an operation fails; 0: PITH_TIMEOUT, else 300 */
  size_t chunk;          /* bytes of a tensor that are processed at once; 0: 512 KiB. Results never depend on it */
  const char *algorithm; /* of an allreduce, if it suits the codec: "auto", "sra", "hierarchical", "ring", "tree",
                            "gather", "ranges", "linear", "grid"; NULL: PITH_ALGO, else auto */
  const char *inside; /* hierarchical: the spec used within a host, a CHUNKED codec without memory; NULL: PITH_INSIDE,
                         else none */
  int connections;    /* tcp: number for each peer; 0: PITH_CONNECTIONS, else 1 */
  int threads;        /* that encode and decode this rank's large tensors; 0: PITH_THREADS, else 1 */
  const pith_unique_id *id; /* rank 0's, instead of host and port; NULL: none */
  double liveness;          /* tcp: seconds without an answer from a peer's host before the peer counts as dead; 0:
                               PITH_LIVENESS, else 15 */
  int (*interrupted)(void *context); /* see "Signals" below; NULL: never interrupted */
  void *context;                     /* argument of interrupted */
  const char *tls;      /* encryption of tcp links: "off", "psk" (TLS 1.3 with a key from the secret), "cert" (with
                           certificates); the same on all ranks. NULL: PITH_TLS, else off */
  const char *tls_cert; /* "cert": files in PEM with this rank's certificate, its key, and the authority that both sides
                           trust; NULL: PITH_TLS_CERT, PITH_TLS_KEY, PITH_TLS_CA */
  const char *tls_key, *tls_ca;
  int eager; /* a group of up to this many ranks makes all connections at the start; in a larger group two ranks connect
                when one first sends to the other. The same on all ranks. 0: PITH_EAGER, else 16 */
} pith_config;

#define PITH_CONFIG_INIT {.size = sizeof(pith_config), .rank = -1, .ranks = -1}

/* For rank 0. Opens a port and creates the id of one comm. Uses `host` (an address of this host that all ranks can
 * reach; NULL: MASTER_ADDR), `interface` and `secret` of the config. A config of NULL takes everything from the
 * environment. */
PITH_API pith_status pith_unique_id_create(const pith_config *config, pith_unique_id *id);

/*
 * Signals. A wait continues after a signal handler has returned. Interpreters handle signals outside of handlers. For
 * them, `interrupted` is called several times a second while a call waits on the main thread of the process. It handles
 * pending signals and returns 0 to continue; any other value ends the wait with PITH_ERR_INTERRUPTED. No lock is held
 * during the callback, which must not use the waiting comm. After an interrupted wait:
 *  - pith_wait(), pith_wait_source(): the operation is still in flight, and its tensors are still lent. Wait again.
 *  - pith_comm_create(): nothing is left to clean up.
 *  - all other calls: the comm is aborted. The operation cannot be taken back, so all ranks get an error.
 */

/* Connects this rank to the others. A config of NULL takes everything from the environment. Waits for all ranks, up to
 * the timeout. */
PITH_API pith_status pith_comm_create(const pith_config *config, pith_comm **comm);

/* Creates one comm for each color, with ranks ordered by key, then by old rank. All ranks of `comm` call it. With a
 * negative color *group becomes NULL. */
PITH_API pith_status pith_comm_split(pith_comm *comm, int color, int key, pith_comm **group);

/* Ends all operations in flight, on every rank, with an error that says why. Afterwards the comm can only be
 * destroyed. */
PITH_API void pith_comm_abort(pith_comm *comm, const char *why);

/* Leaves the group. Operations in flight fail. */
PITH_API void pith_comm_destroy(pith_comm *comm);

/* This rank, and the number of ranks. -1 and 0 for NULL. */
PITH_API int pith_comm_rank(const pith_comm *comm);
PITH_API int pith_comm_size(const pith_comm *comm);
/* Seconds without progress before an operation fails, initially pith_config.timeout. Each rank has its own value.
 * Setting it also affects operations in flight. PITH_ERR_RANGE unless seconds > 0. */
PITH_API double pith_comm_timeout(const pith_comm *comm);
PITH_API pith_status pith_comm_set_timeout(pith_comm *comm, double seconds);
/* The transport to a peer: "shm", "tcp", …; "self" for this rank. */
PITH_API const char *pith_comm_transport(const pith_comm *comm, int peer);

/* Whether this machine can encrypt tcp links with the settings of the config (NULL: of the environment). The error says
 * why not. Reads the certificates. With "off", checks only that a TLS library is present. *version (optional) becomes
 * the name of the TLS library, such as "OpenSSL 3.0.11", which stays valid. */
PITH_API pith_status pith_tls_probe(const pith_config *config, const char **version);

/* Whether a transport ("shm", "tcp", "mpi", "ucx", "inproc") can run on this machine. The error says why not. */
PITH_API pith_status pith_transport_probe(const char *name);

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* Optional arguments of an operation; NULL: all defaults, uncompressed. The struct repeats the fields of pith_ctx that
 * the program decides instead of containing a pith_ctx. So both structs can grow, and the program cannot set the fields
 * that the comm sets (rank, ranks, offset, scratch) by mistake. */
typedef struct pith_call {
  size_t size;             /* sizeof(pith_call) */
  const pith_codec *codec; /* NULL: uncompressed. Codecs take f32, f16 and bf16, sums and means */
  pith_state *state;       /* for codecs with a memory or rounds */
  uint64_t seed;           /* this and the next four: as in pith_ctx */
  uint64_t step;
  uint64_t layer;
  uint64_t rows;
  float gamma;
  const char *algorithm; /* of an allreduce; must suit the codec. NULL: the comm's */
} pith_call;

#define PITH_CALL_INIT {.size = sizeof(pith_call)}

/* A call with wrong arguments returns PITH_ERR_ARGUMENT. It has sent and written nothing, and the comm continues as if
 * there had been no call. src and dst must either not overlap or be exactly in place: at the same address, or, if one
 * of them is a part of the other, at this rank's part. */

/* dst = the reduction of all src. */
PITH_API pith_status pith_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op op,
                                    const pith_call *call, pith_request **request);

/* dst of `root` = the reduction of all src. Other ranks' dst is ignored. */
PITH_API pith_status pith_reduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce_op op, int root,
                                 const pith_call *call, pith_request **request);

/* dst of rank r = the reduction of part r of all src. Part r has counts[r] values; NULL: dst.n values each. */
PITH_API pith_status pith_reduce_scatter(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts,
                                         pith_reduce_op op, const pith_call *call, pith_request **request);

/* dst = the src of all ranks, in rank order. src of rank r has counts[r] values; NULL: src.n values each. */
PITH_API pith_status pith_all_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts,
                                     const pith_call *call, pith_request **request);

/* Sends the tensor of `root` to all ranks. */
PITH_API pith_status pith_broadcast(pith_comm *comm, pith_span tensor, int root, const pith_call *call,
                                    pith_request **request);

/* Part p of src (send[p] values) goes to rank p, and part p of dst (receive[p] values) comes from rank p; NULL: equal
 * parts. Not in place. */
PITH_API pith_status pith_all_to_all(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst,
                                     const size_t *receive, pith_request **request);

/* Gather: dst of `root` = the src of all ranks, in rank order. Scatter is the inverse. Other ranks' dst of a gather and
 * src of a scatter are ignored. */
PITH_API pith_status pith_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, int root,
                                 pith_request **request);
PITH_API pith_status pith_scatter(pith_comm *comm, pith_cspan src, const size_t *counts, pith_span dst, int root,
                                  pith_request **request);

/* Completes when all ranks have called it. */
PITH_API pith_status pith_barrier(pith_comm *comm, pith_request **request);

/* Messages between two ranks, matched by tag, in order. Other ranks take no part. A receive from PITH_ANY_RANK takes
 * the first message with its tag from any rank; pith_wait_source() returns the sender. */
#define PITH_ANY_RANK (-1)
PITH_API pith_status pith_send(pith_comm *comm, pith_cspan src, int peer, uint32_t tag, pith_request **request);
PITH_API pith_status pith_recv(pith_comm *comm, pith_span dst, int peer, uint32_t tag, pith_request **request);

/* Waits until the operation is complete, returns its status and frees the request. PITH_ERR_INTERRUPTED: the operation
 * is still in flight and the request is still valid (pith_config.interrupted). */
PITH_API pith_status pith_wait(pith_request *request);
/* The same for a request of pith_recv(); *source is the rank that sent the message. */
PITH_API pith_status pith_wait_source(pith_request *request, int *source);
/* *done = 1 if the operation is complete. Never waits. pith_wait() must still be called. */
PITH_API pith_status pith_test(pith_request *request, int *done);

/* ---- Reducer: the object a training loop uses -------------------------------------------------------------------- */

/*
 * A reducer knows every layer's name, shape, spec and state. It reduces gradients to their mean over all ranks, in
 * place and in the background:
 *
 *   pith_reducer_create(comm, "*.bias=none;*=ef/q:4", seed, &reducer);
 *   pith_layer layer = {sizeof layer, "fc1.weight", (size_t[]){512, 784}, 2, PITH_F32};
 *   pith_reducer_add(reducer, &layer, &fc1);        // once for each layer
 *
 *   pith_reducer_start(reducer, fc1, gradient);     // every step: as gradients become ready; one order on all ranks
 *   pith_reducer_finish(reducer);                   // all gradients are means now
 *
 * A reducer belongs to one thread at a time. Gradients stay lent from pith_reducer_start() to pith_reducer_finish().
 *
 * An adaptive spec ("auto", "lgreco:q:4"; pith/adapt.h) may be given alone or in the last rule ("embed*=none;*=auto").
 * Layers then change their specs between two steps, in the same step on all ranks. A layer keeps its residual; if the
 * new spec has none, the residual is added to the gradients of the next steps.
 */
typedef struct pith_reducer pith_reducer;

/* Creates a reducer over a comm, which must outlive it. PITH_ERR_SPEC: the rules contain a mistake. */
PITH_API pith_status pith_reducer_create(pith_comm *comm, const char *rules, uint64_t seed, pith_reducer **reducer);
PITH_API void pith_reducer_destroy(pith_reducer *reducer);

/* Adds a layer. *index becomes its number, counted from 0. All ranks add the same layers in the same order, before the
 * first start. */
PITH_API pith_status pith_reducer_add(pith_reducer *reducer, const pith_layer *layer, size_t *index);

/* Adds a layer with its own spec, whatever the rules say about it and however small it is. If `spec` is the text of the
 * reducer's adaptive spec, the adaptive spec chooses. */
PITH_API pith_status pith_reducer_add_as(pith_reducer *reducer, const pith_layer *layer, const char *spec,
                                         size_t *index);

/* The number that reducers give a layer of this name (pith_ctx.layer). Programs that encode a layer themselves use it
 * to draw the same random numbers and so get the same bits. */
PITH_API uint64_t pith_layer_number(const char *name);

/* Begins to reduce the gradient of layer `index`. Small layers, and layers whose method takes several rounds, wait
 * until there are enough of them for one message, or until flush or finish. */
PITH_API pith_status pith_reducer_start(pith_reducer *reducer, size_t index, void *gradient);

/* Sends the layers that wait for others. Useful when the next gradient will take a while. All ranks call it at the same
 * points. */
PITH_API pith_status pith_reducer_flush(pith_reducer *reducer);

/* Waits for all layers of this step, and ends the step. */
PITH_API pith_status pith_reducer_finish(pith_reducer *reducer);

/* Checks the rules and compares layers and rules between ranks. PITH_ERR_SPEC names the first rule that matches no
 * layer, which is probably a mistake. PITH_ERR_MISMATCH: layers or rules differ between ranks. Communicates; the first
 * start calls it. */
PITH_API pith_status pith_reducer_check(pith_reducer *reducer);

/* Multiplies the residuals and momenta of all layers by `factor`, between two steps, for example after a change of the
 * loss scale. */
PITH_API pith_status pith_reducer_scale(pith_reducer *reducer, float factor);

/* Multiplies what one layer has still to send by `factor`, between two steps, for example after a change of the
 * learning rate. Like pith_state_scale_residual(), and it also scales residuals left by a spec that the layer no longer
 * has. */
PITH_API pith_status pith_reducer_scale_residual(pith_reducer *reducer, size_t index, float factor);

/* Writes the statistics from which an adaptive spec made its last plan, for `pith plan`. PITH_ERR_STATE if there are
 * none. */
PITH_API pith_status pith_reducer_profile(const pith_reducer *reducer, const char *path);

/* A layer of a reducer. The texts stay valid until the layer's spec changes. */
typedef struct pith_layer_stats {
  size_t size;                      /* sizeof(pith_layer_stats) */
  const char *name, *spec, *reason; /* spec of the next step, and the reason for it */
  size_t n, bytes;
  uint64_t steps;
} pith_layer_stats;

#define PITH_LAYER_STATS_INIT {.size = sizeof(pith_layer_stats)}

/* What operations have sent, and where their time went. */
typedef struct pith_traffic {
  size_t size; /* sizeof(pith_traffic) */
  uint64_t operations;
  uint64_t uncompressed; /* of those, how many had no codec */
  uint64_t messages;     /* sent by this rank */
  uint64_t raw_bytes;    /* of the tensors */
  uint64_t sent_bytes;   /* payloads and headers sent by this rank */
  double encode, decode; /* seconds; reducing uncompressed values counts as decoding */
  double wire;           /* other seconds until completion: on the wire, or waiting for other ranks */
} pith_traffic;

#define PITH_TRAFFIC_INIT {.size = sizeof(pith_traffic)}

/* The number of layers, and the statistics of layer `index`. PITH_ERR_ARGUMENT beyond the last. */
PITH_API size_t pith_reducer_layers(const pith_reducer *reducer);
PITH_API pith_status pith_reducer_layer_stats(const pith_reducer *reducer, size_t index, pith_layer_stats *stats);

/* The traffic of a layer: its own operations, and its share of the operations that sent it together with other
 * layers. */
PITH_API pith_status pith_reducer_layer_traffic(const pith_reducer *reducer, size_t index, pith_traffic *traffic);

/* Checkpoints hold the step and every layer's state, and with an adaptive spec the plan, the statistics and the
 * schedule. A checkpoint belongs to the rank that saved it. Loading checks rank, number of ranks, names, sizes and
 * specs before anything changes: PITH_ERR_STATE if one of them differs, PITH_ERR_CORRUPT if the bytes are damaged. */
PITH_API size_t pith_reducer_save_size(const pith_reducer *reducer);
PITH_API pith_status pith_reducer_save(const pith_reducer *reducer, pith_out *out);
PITH_API pith_status pith_reducer_load(pith_reducer *reducer, pith_bytes bytes);

/* Moves the residuals of layers to a job with another number of ranks. Call these between two steps, in any order of
 * layers; they do not communicate. Each array has one f32 for each value of the layer (for shards: those of all owners,
 * one after another) and lies in the memory space of the gradients. With options.cuda the work is enqueued on
 * options.stream.
 *
 *   pith_reducer_owed(old, layer, owed, NULL);     // adds this rank's unsent part of its gradients to `owed`
 *   … the mean of `owed` over all old ranks is still missing from the results; every new rank gets it …
 *   pith_reducer_owe(reducer, layer, mean, NULL);  // the next gradients include it
 *   pith_reducer_resume(reducer, step);            // counts steps, and draws random numbers, from `step` on
 *
 * pith_reducer_owed() adds to the arrays, so start with zeros. `momentum` is for codecs that keep a mean or sum of past
 * gradients (momentum, dgc); NULL leaves it out. pith_reducer_owe() replaces everything that the layer kept; a residual
 * for which its spec has no place is added to the gradients of the next 16 steps. After pith_reducer_resume(),
 * parameters that are gathered as differences are sent whole once. PITH_ERR_UNSUPPORTED: the layer sends the momentum
 * of an optimizer. */
PITH_API pith_status pith_reducer_owed(pith_reducer *reducer, size_t index, float *owed, float *momentum);
PITH_API pith_status pith_reducer_owe(pith_reducer *reducer, size_t index, const float *owed, const float *momentum);
PITH_API pith_status pith_reducer_resume(pith_reducer *reducer, uint64_t step);

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

/* What a comm has done since it was created. Times are in seconds. */
typedef struct pith_stats {
  size_t size; /* sizeof(pith_stats) */
  uint64_t operations, messages;
  uint64_t raw_bytes;  /* of the tensors */
  uint64_t sent_bytes; /* payloads and headers sent by this rank; the texts of specs, sent once, are not counted */
  double encode, decode, wait;
  uint64_t links; /* peers to which this rank is connected: those it exchanges messages with, and some neighbours */
} pith_stats;

#define PITH_STATS_INIT {.size = sizeof(pith_stats)}

/* Fills in this rank's totals. Any thread, at any time. */
PITH_API pith_status pith_comm_stats(const pith_comm *comm, pith_stats *stats);

/* The traffic of completed operations of one kind: "allreduce", "reduce", "reduce_scatter", "all_gather", "broadcast",
 * "all_to_all", "gather", "scatter", "barrier", or "send" for both directions between two ranks. */
PITH_API pith_status pith_comm_traffic(const pith_comm *comm, const char *operation, pith_traffic *traffic);

#ifdef __cplusplus
}
#endif
#endif

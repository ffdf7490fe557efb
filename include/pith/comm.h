/*
 * Pith's communicator: groups of ranks that exchange tensors, compressed or not. Part of the public API; pith.h
 * includes it.
 *
 *   pith_comm *comm;
 *   pith_comm_create(NULL, &comm);                        // rank, size and address from the environment
 *   pith_call call = PITH_CALL_INIT;  call.codec = codec;  call.ctx.step = step;
 *   pith_allreduce(comm, src, dst, PITH_MEAN, &call, NULL);  // the same call on every rank
 *   pith_comm_destroy(comm);
 *
 * Every rank of a comm calls the same operations with the same arguments in the same order. Ranks that do not, that end
 * or that stall make the call fail on every rank, with an error that names them; the comm then refuses all further work
 * with that error. Results are bit-identical on all ranks. Calls may come from any thread.
 *
 * A call with `request` == NULL returns when it is complete. Otherwise it returns at once, the tensors stay lent to it,
 * and pith_wait() or pith_test() tell when they come back.
 */
#ifndef PITH_COMM_H
#define PITH_COMM_H

#include <pith/pith.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_comm pith_comm;
typedef struct pith_request pith_request;

/* ---- How this process was started ---------------------------------------------------------------------------- */

/* What the launcher's environment variables say. */
typedef struct pith_launch {
  size_t size;          /* sizeof(pith_launch), set by the caller */
  const char *launcher; /* "torchrun", "Open MPI", "PMI", "PMIx", "Slurm"; "environment": RANK and WORLD_SIZE alone */
  int rank, ranks;
  int local_rank, local_ranks; /* among the ranks of this host; -1 where the launcher does not say */
  char host[256];              /* where rank 0 runs: MASTER_ADDR, or what the launcher says; "" if nothing does */
  int port; /* where rank 0 listens: PITH_PORT, MASTER_PORT, or made from the launcher's job id; 0 without any */
} pith_launch;

#define PITH_LAUNCH_INIT {.size = sizeof(pith_launch)}

/*
 * Reads RANK and WORLD_SIZE (torchrun, pith run, scripts), OMPI_COMM_WORLD_* (Open MPI's mpirun), PMI_* (MPICH, Intel
 * MPI), PMIX_RANK, and SLURM_* (srun), in this order. The first launcher that gives both a rank and a size wins.
 * PITH_ERR_ARGUMENT if none does; the message says what was found and what to set.
 */
PITH_API pith_status pith_launch_find(pith_launch *launch);

/*
 * What ranks must know to create a comm where the program can already send bytes from rank 0 to all others, by MPI or a
 * key-value store: rank 0 creates an id, the program sends it to every rank, and every rank passes it in
 * pith_config.id. The id holds rank 0's addresses and a port that is already open. Unless PITH_SECRET is set, it also
 * holds a secret for this comm: whoever has the id can join then, so send it only to the ranks.
 */
#define PITH_UNIQUE_ID_SIZE 512
typedef struct pith_unique_id {
  unsigned char bytes[PITH_UNIQUE_ID_SIZE];
} pith_unique_id;

/* ---- Groups ------------------------------------------------------------------------------------------------------ */

typedef struct pith_config {
  size_t size;      /* sizeof(pith_config) */
  int rank, ranks;  /* -1: as the launcher says (pith_launch_find) */
  const char *host; /* rank 0's host; NULL: MASTER_ADDR, else as the launcher says, else 127.0.0.1 */
  int port; /* 0: PITH_PORT, MASTER_PORT or one made from the launcher's job id (pith_launch_find), else 29499 */
  const char *transport; /* "auto" (shm within a host, tcp between hosts), "shm", "tcp", "mpi", "inproc"; NULL:
                            PITH_TRANSPORT */
  const char *interface; /* network interface or address; NULL: PITH_IFNAME, else the one that reaches rank 0 */
  const char *host_id; /* what counts as one host; NULL: PITH_HOSTID, else this machine's boot and network namespace */
  const char *secret;  /* who does not have it cannot join; NULL: PITH_SECRET, else none */
  double timeout;      /* seconds without progress before an operation fails; 0: PITH_TIMEOUT, else 300 */
  size_t chunk;        /* bytes of a tensor that are worked on at a time; 0: 512 KiB. Results never depend on it */
  const char *algorithm;    /* how to allreduce: "auto", "sra", "hierarchical", "ring", "tree", "gather", "ranges",
                               "linear", where it    suits the codec; NULL: PITH_ALGO, else auto */
  const char *inside;       /* hierarchical: the spec inside a host, of a codec for pieces and without memory; NULL:
                               PITH_INSIDE,       else none */
  int connections;          /* tcp: to each peer; 0: PITH_CONNECTIONS, else 1 */
  int threads;              /* of this rank that encode and decode large tensors; 0: PITH_THREADS, else 1 */
  const pith_unique_id *id; /* rank 0's, instead of host and port; NULL: none */
  double liveness; /* tcp: seconds without an answer of a peer's host before it counts as gone, however long operations
                      may take; 0: PITH_LIVENESS, else 15 */
  int (*interrupted)(void *context); /* asked several times a second while a call waits on the main thread of the
                                        process; NULL: never. See below */
  void *context;                     /* for interrupted */
  const char *tls; /* whether tcp links are encrypted: "off", "psk" (TLS 1.3 with a key from the secret), "cert" (with
                      certificates); NULL: PITH_TLS, else off. The same on all ranks */
  const char *tls_cert; /* "cert": this rank's certificate, its key and the authority that both sides trust, as files in
                           PEM; NULL: PITH_TLS_CERT, PITH_TLS_KEY, PITH_TLS_CA */
  const char *tls_key, *tls_ca;
} pith_config;

#define PITH_CONFIG_INIT {.size = sizeof(pith_config), .rank = -1, .ranks = -1}

/* Rank 0: opens a port and makes the id of one comm (see above). Of the config, `host` (to be reached from here; NULL:
 * MASTER_ADDR), `interface` and `secret` count; NULL: all from the environment. */
PITH_API pith_status pith_unique_id_create(const pith_config *config, pith_unique_id *id);

/*
 * Signals. A wait goes on after a signal handler has returned. Where signals have to be handled outside of handlers, as
 * interpreters do, `interrupted` handles them and says whether to end the wait: 0 to go on, anything else to end it
 * with PITH_ERR_INTERRUPTED. No lock is held meanwhile; it must not use the comm that waits. What a wait that was ended
 * leaves behind: pith_wait, pith_wait_source   the request in flight: it can be waited for again, and its tensors stay
 * lent pith_comm_create              nothing every other call              a comm that is aborted: the call cannot be
 * taken back, so all ranks get an error
 */

/* Meets the other ranks. NULL: everything from the environment. */
PITH_API pith_status pith_comm_create(const pith_config *config, pith_comm **comm);

/* A group for each colour, ranked by key (then by old rank). A negative colour joins none: *group is then NULL. */
PITH_API pith_status pith_comm_split(pith_comm *comm, int color, int key, pith_comm **group);

/* Ends what is under way on every rank with an error that says why; the comm can only be destroyed then. */
PITH_API void pith_comm_abort(pith_comm *comm, const char *why);

/* Leaves. Operations that are still under way fail. */
PITH_API void pith_comm_destroy(pith_comm *comm);

/* -1 and 0 for NULL. */
PITH_API int pith_comm_rank(const pith_comm *comm);
PITH_API int pith_comm_ranks(const pith_comm *comm);
/* Seconds without progress before an operation fails: pith_config.timeout at first. Each rank has its own; setting it
 * also counts for operations that are in flight. PITH_ERR_RANGE unless seconds > 0. */
PITH_API double pith_comm_timeout(const pith_comm *comm);
PITH_API pith_status pith_comm_set_timeout(pith_comm *comm, double seconds);
/* "shm", "tcp", …: how a peer is reached; "self" for the own rank. */
PITH_API const char *pith_comm_transport(const pith_comm *comm, int peer);

/* Whether tcp links can be encrypted on this machine, as `tls` and the other fields of the config say (NULL: as the
 * environment says); the error says why not. Certificates are read. With "off", only whether it could be done is looked
 * at. *version, if it is not NULL, becomes the name of the TLS library, such as "OpenSSL 3.0.11"; it stays valid. */
PITH_API pith_status pith_tls_probe(const pith_config *config, const char **version);

/* Whether a transport ("shm", "tcp", "mpi", "inproc") can run on this machine; the error says why not. */
PITH_API pith_status pith_transport_probe(const char *name);

/* ---- Operations -------------------------------------------------------------------------------------------------- */

/* What an operation may be told beyond its tensors. NULL: all defaults, uncompressed. */
typedef struct pith_call {
  size_t size;             /* sizeof(pith_call) */
  const pith_codec *codec; /* NULL: uncompressed. Codecs take f32, f16 and bf16, sums and means */
  pith_state *state;       /* for codecs with a memory or rounds */
  pith_ctx ctx;            /* seed, step, layer, rows, gamma; the comm fills in ranks and rank */
  const char *algorithm;   /* of an allreduce; must suit the codec. NULL: as the comm says */
} pith_call;

#define PITH_CALL_INIT {.size = sizeof(pith_call), .ctx = PITH_CTX_INIT}

/* Wrong arguments are PITH_ERR_ARGUMENT: nothing was sent or written, and the comm goes on as if there had been no
 * call. src and dst must lie apart, or exactly in place: at the same address, or where one is a part of the other, at
 * this rank's part. Other overlap is an error. */

/* dst = the reduction of all src. */
PITH_API pith_status pith_allreduce(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce reduce,
                                    const pith_call *call, pith_request **request);

/* dst on `root` only. */
PITH_API pith_status pith_reduce_to(pith_comm *comm, pith_cspan src, pith_span dst, pith_reduce reduce, int root,
                                    const pith_call *call, pith_request **request);

/* Rank r gets the reduction of part r of all src; src has the sum of counts[0…ranks) values. NULL counts: dst.n for
 * each. */
PITH_API pith_status pith_reduce_scatter(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts,
                                         pith_reduce reduce, const pith_call *call, pith_request **request);

/* dst = the src of all ranks, in rank order; counts as above, of each src. */
PITH_API pith_status pith_all_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts,
                                     const pith_call *call, pith_request **request);

/* tensor of `root` to all. */
PITH_API pith_status pith_broadcast(pith_comm *comm, pith_span tensor, int root, const pith_call *call,
                                    pith_request **request);

/* Part p of src goes to rank p, and part p of dst comes from it. send[p] and receive[p] values; NULL: equal parts. Not
 * in place. */
PITH_API pith_status pith_all_to_all(pith_comm *comm, pith_cspan src, const size_t *send, pith_span dst,
                                     const size_t *receive, pith_request **request);

/* dst on `root` = the src of all ranks; and the inverse. Other ranks' dst (src of a scatter) is not looked at. */
PITH_API pith_status pith_gather(pith_comm *comm, pith_cspan src, pith_span dst, const size_t *counts, int root,
                                 pith_request **request);
PITH_API pith_status pith_scatter(pith_comm *comm, pith_cspan src, const size_t *counts, pith_span dst, int root,
                                  pith_request **request);

/* Nobody passes before all have come. */
PITH_API pith_status pith_barrier(pith_comm *comm, pith_request **request);

/* Between two ranks; matched by tag, in order. The others take no part. A receive from PITH_ANY_RANK takes the first
 * message with its tag, whoever sends it; pith_wait_source() says who did. */
#define PITH_ANY_RANK (-1)
PITH_API pith_status pith_send(pith_comm *comm, pith_cspan src, int peer, uint32_t tag, pith_request **request);
PITH_API pith_status pith_receive(pith_comm *comm, pith_span dst, int peer, uint32_t tag, pith_request **request);

/* Waits until the operation is complete and gives back its status; frees the request. PITH_ERR_INTERRUPTED: it is still
 * in flight, and the request is not freed (pith_config.interrupted). */
PITH_API pith_status pith_wait(pith_request *request);
/* The same for a request of pith_receive(); *source is the rank that sent the message. */
PITH_API pith_status pith_wait_source(pith_request *request, int *source);
/* *done = 1 once it is complete; pith_wait() must still be called. */
PITH_API pith_status pith_test(pith_request *request, int *done);

/* ---- Reducer: the object a training loop uses -------------------------------------------------------------------- */

/*
 * Knows every layer's name, shape, spec and state, and reduces gradients to their mean over all ranks, in place, in the
 * background:
 *
 *   pith_reducer_create(comm, "*.bias=none;*=ef/q:4", seed, &reducer);
 *   pith_reducer_add(reducer, "fc1.weight", (size_t[]){512, 784}, 2, PITH_F32, &fc1);   // once for each layer
 *
 *   pith_reducer_start(reducer, fc1, gradient);     // every step: as soon as a gradient is there, in the same order on
 * all ranks pith_reducer_finish(reducer);                   // all gradients are means now
 *
 * A reducer belongs to one thread at a time. Gradients stay lent from start to finish.
 *
 * An adaptive spec ("auto", "lgreco:q:4"; pith/adapt.h) alone, or in the last rule ("embed*=none;*=auto"), lets layers
 * change their specs between two steps, on all ranks in the same step. What a layer has not sent yet moves along; where
 * the new spec keeps nothing it is added to the gradients of the next steps.
 */
typedef struct pith_reducer pith_reducer;

/* A mistake in the rules is an error here. */
PITH_API pith_status pith_reducer_create(pith_comm *comm, const char *rules, uint64_t seed, pith_reducer **reducer);
PITH_API void pith_reducer_destroy(pith_reducer *reducer);

/* Names are unique. All ranks add the same layers in the same order, before the first start. */
PITH_API pith_status pith_reducer_add(pith_reducer *reducer, const char *name, const size_t *shape, size_t dimensions,
                                      pith_dtype dtype, size_t *layer);

/* The number that reducers give a layer of this name (pith_ctx.layer), for those who encode it by themselves: the same
 * random numbers give the same bits. */
PITH_API uint64_t pith_layer_number(const char *name);

/* Begins to reduce a layer. Small layers, and those of methods that take several rounds, are joined to one message
 * until there is enough of them, or until flush or finish. */
PITH_API pith_status pith_reducer_start(pith_reducer *reducer, size_t layer, void *gradient);

/* Sends what is joined so far on its way: when the next gradient will take a while. In the same places on all ranks. */
PITH_API pith_status pith_reducer_flush(pith_reducer *reducer);

/* Waits for all layers of this step, and ends it. */
PITH_API pith_status pith_reducer_finish(pith_reducer *reducer);

/* Rules that match no layer are probably a slip: PITH_ERR_SPEC names the first of them. Ranks with other layers or
 * rules are an error too. Communicates; called by the first start. */
PITH_API pith_status pith_reducer_check(pith_reducer *reducer);

/* What operations have moved and where their time went. */
typedef struct pith_traffic {
  uint64_t operations;
  uint64_t uncompressed; /* of those, how many had no codec */
  uint64_t messages;     /* that left this rank */
  uint64_t raw_bytes;    /* of the tensors handed over */
  uint64_t sent_bytes;   /* payloads and headers that left this rank */
  double encode, decode; /* seconds; reducing uncompressed values counts as decoding */
  double wire;           /* seconds under way beyond that: on the wire, or waiting for others */
} pith_traffic;

/* Multiplies what all layers keep, between two steps: gradients come in other units now, as after a change of the loss
 * scale. */
PITH_API pith_status pith_reducer_scale(pith_reducer *reducer, float factor);

/* Writes the statistics that the last plan of an adaptive spec was made from, for `pith plan`. PITH_ERR_STATE if there
 * are none. */
PITH_API pith_status pith_reducer_profile(const pith_reducer *reducer, const char *path);

typedef struct pith_layer {
  const char *name, *spec, *reason; /* in the step that comes, and why */
  size_t n, bytes;
  uint64_t steps;
  pith_traffic traffic; /* of its own operations, and its share of those it was joined to */
} pith_layer;

PITH_API size_t pith_reducer_layers(const pith_reducer *reducer);
PITH_API pith_status pith_reducer_layer(const pith_reducer *reducer, size_t index, pith_layer *layer);

/* Checkpoints: the step and every layer's state, and with an adaptive spec the plan, the statistics and the schedule. A
 * checkpoint belongs to the rank that saved it. Loading checks rank, number of ranks, names, sizes and specs before
 * anything changes: PITH_ERR_STATE if one of them differs, PITH_ERR_CORRUPT if the bytes are damaged. */
PITH_API size_t pith_reducer_size(const pith_reducer *reducer);
PITH_API pith_status pith_reducer_save(const pith_reducer *reducer, pith_out *out);
PITH_API pith_status pith_reducer_load(pith_reducer *reducer, pith_bytes bytes);

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

/* What a comm has done since it was created. Times are in seconds. */
typedef struct pith_stats {
  size_t size; /* sizeof(pith_stats), set by the caller */
  uint64_t operations, messages;
  uint64_t raw_bytes; /* of the tensors handed to operations */
  uint64_t
      sent_bytes; /* payloads and headers that left this rank; texts of specs, which are told once, are not counted */
  double encode, decode, wait;
} pith_stats;

PITH_API pith_status pith_comm_stats(const pith_comm *comm, pith_stats *stats);

/* The same for one kind of operation ("allreduce", "reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all",
 * "gather", "scatter", "barrier", "send": both directions between two ranks), of operations that are complete. */
PITH_API pith_status pith_comm_traffic(const pith_comm *comm, const char *operation, pith_traffic *traffic);

#ifdef __cplusplus
}
#endif

#include <pith/carrier.h>

#endif

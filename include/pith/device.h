/*
 * Pith on devices, over its own transports: an allreduce of gradients in the memory of a CUDA device between the ranks
 * of a pith_comm (shm, tcp, mpi, ucx). Part of the public API; pith.h includes it. Over NCCL: pith/nccl.h.
 *
 *   pith_layer layers[] = {{sizeof(pith_layer), "fc1.weight", (size_t[]){512, 784}, 2, PITH_F32}, …};
 *   pith_device_create(comm, layers, count, "*.bias=none;*=ef/q:4", seed, NULL, &device);   // once, on all ranks
 *   pith_device_allreduce(device, gradients, step, stream);              // every step: gradients become means, in
 * place pith_device_destroy(device);
 *
 * Gradients are encoded and added up on the device. Only payloads cross the bus, through pinned memory, in groups of
 * layers: while the payloads of some groups are sent, others are encoded, copied or decoded. A call returns when the
 * last decoding is enqueued on the stream: the host has waited for payloads, and not for means. It cannot be captured
 * in a CUDA graph.
 *
 * The codec of a layer decides how it is exchanged:
 *  - FIXED and CHUNKED codecs (casts, q, sign, …; uncompressed layers too): part p of every layer goes to rank p, which
 *    adds up in rank order, and all ranks get the encoded mean. Bits are those of pith_bucket_reduce() on the CPU,
 * except for the random numbers of layers larger than a group.
 *  - Sparse codecs, with their memories (dgc): all ranks get the payloads of all, and add them up in rank order. Bits
 * are those of the CPU.
 *  - powersgd: two sums by pith_allreduce(), in its order. The same bits on all ranks, and those of the CPU up to
 *    rounding.
 *
 * All ranks make the same calls with the same arguments in the same order, those of the comm included. An object
 * belongs to one thread at a time, to the device that was current when it was created, and its calls to one stream (or
 * to streams that wait for each other). The comm must outlive it.
 *
 * If a rank ends, stalls or disagrees, every rank gets the comm's error, which names it. An error of the device in the
 * middle of a call aborts the comm. After either the object can only be queried and destroyed.
 */
#ifndef PITH_DEVICE_H
#define PITH_DEVICE_H

#include <pith/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_device pith_device;

/* How layers are grouped; the same on all ranks. The memory for exchanges depends on it, and not on the size of the
 * model. */
typedef struct pith_device_options {
  size_t size;  /* sizeof(pith_device_options) */
  size_t group; /* bytes of gradients that are sent together, four times as many with sparse and low-rank codecs; 0: 16
                   MiB. Larger layers are sent in slices if their codecs are CHUNKED, else alone */
  size_t slots; /* groups in flight at a time, up to 64; 0: 4 */
} pith_device_options;

#define PITH_DEVICE_OPTIONS_INIT {.size = sizeof(pith_device_options)}

/* `rules` is a spec, or rules for layers by name, as pith_rules_create() takes them. `options` may be NULL. Allocates
 * all memory that is ever needed, of the device and pinned. Communicates and waits. If ranks have other layers, rules,
 * options or another seed, or if one of them fails, all of them get an error. */
PITH_API pith_status pith_device_create(pith_comm *comm, const pith_layer *layers, size_t count, const char *rules,
                                        uint64_t seed, const pith_device_options *options, pith_device **device);
/* Waits for the device. */
PITH_API void pith_device_destroy(pith_device *device);

/* Gradients, in the order of the layers, become their means over all ranks. They must stay until the stream has
 * executed the call. */
PITH_API pith_status pith_device_allreduce(pith_device *device, void *const *gradients, uint64_t step, void *stream);

/* Multiplies the residuals and momenta of all layers by `factor`, as after a change of the loss scale. Enqueued. */
PITH_API pith_status pith_device_scale(pith_device *device, float factor, void *stream);

/* The spec of a layer, and the reason for it. Both texts live as long as the object. */
PITH_API pith_status pith_device_spec(const pith_device *device, size_t layer, const char **spec, const char **reason);

/* Bytes that this rank sends in a step: payloads, and for sums what a ring sends. For payloads whose size varies, those
 * of the last step. */
PITH_API size_t pith_device_sent(const pith_device *device);

/* Bytes of device memory of the object, and (optional) of pinned memory. */
PITH_API size_t pith_device_memory(const pith_device *device, size_t *pinned);

/* Checkpoints of what this rank keeps between steps (residuals, momenta, factors). They wait for the device. The bytes
 * are checked on load: other layers, specs, options, another rank or number of ranks, or damage, are errors that change
 * nothing. */
PITH_API size_t pith_device_save_size(const pith_device *device);
PITH_API pith_status pith_device_save(const pith_device *device, pith_out *out);
PITH_API pith_status pith_device_load(pith_device *device, pith_bytes bytes);

#ifdef __cplusplus
}
#endif
#endif

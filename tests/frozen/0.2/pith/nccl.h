/*
 * Pith over NCCL: an allreduce of gradients in device memory over a communicator that the program already has. Part of
 * the public API; pith.h includes it. The library links neither to CUDA nor to NCCL: it uses the NCCL that the process
 * has loaded, or else opens libnccl.so.2.
 *
 *   pith_layer layers[] = {{sizeof(pith_layer), "fc1.weight", (size_t[]){512, 784}, 2, PITH_F32}, …};
 *   pith_nccl_create(comm, layers, count, "*.bias=none;*=ef/q:4", seed, &nccl);        // once, on all ranks
 *   pith_nccl_allreduce(nccl, gradients, step, stream);                  // every step: gradients become means, in
 * place pith_nccl_destroy(nccl);
 *
 * A call only enqueues kernels and NCCL's operations: it neither waits for the device nor allocates memory there, and
 * can be captured in a CUDA graph. A graph repeats the step it was captured with: the same random numbers (of
 * stochastic rounding, rotations, randomk) every time, and the same ratio of a warm-up. It uses the object's memory, so
 * the object must outlive it, and ncclCommDestroy() waits until it is destroyed.
 *
 * The codec of a layer decides how it is exchanged:
 *  - FIXED and CHUNKED codecs (casts, q, sign, …; uncompressed layers too): part p of every layer goes to rank p, which
 *    adds up in rank order, and all ranks get the encoded mean. Bits are those of pith_bucket_reduce() on the CPU.
 *  - topk, randomk, adaptive, with their memories (dgc): all ranks get the payloads of all, and add them up in rank
 * order. Bits are those of the CPU. The size of a payload is sent with it and nothing waits for it: always as many
 * bytes as the largest payload can have are sent, pith_codec_bound(). For topk that is 1% more than payloads have, with
 *    select=sampled and for adaptive twice as much, with a warm-up as much as its first steps need. Codecs whose
 * payloads may grow to half of the tensor (threshold, topk:0.5) are refused.
 *  - powersgd: two sums by ncclAllReduce, in NCCL's order: the same bits on all ranks, not those of the CPU.
 *
 * All ranks make the same calls with the same arguments, in the same order on their streams, as with NCCL's own
 * operations. An object belongs to one thread at a time, and its calls to one stream (or to streams that wait for each
 * other), because they share its memory. The comm must outlive it and be of the calling thread's current device. A rank
 * that fails is handled by NCCL: see ncclCommGetAsyncError() and ncclCommAbort(). Errors say what NCCL said, in which
 * operation, on which rank.
 */
#ifndef PITH_NCCL_H
#define PITH_NCCL_H

#include <pith/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_nccl pith_nccl;

/* Whether NCCL can be used: it is there, and new enough. The error says why not. `version` (optional): NCCL's own
 * number, 22803 for 2.28.3. */
PITH_API pith_status pith_nccl_probe(int *version);

/* `comm` is an ncclComm_t. `rules` is a spec, or rules for layers by name, as pith_rules_create() takes them. Allocates
 * all device memory that is ever needed. Communicates and waits. If ranks have other layers, rules or another seed, or
 * if one of them fails, all of them get an error. */
PITH_API pith_status pith_nccl_create(void *comm, const pith_layer *layers, size_t count, const char *rules,
                                      uint64_t seed, pith_nccl **nccl);
/* Waits for the device. */
PITH_API void pith_nccl_destroy(pith_nccl *nccl);

/* Gradients, in the order of the layers, become their means over all ranks. They must stay until the stream has
 * executed the call. */
PITH_API pith_status pith_nccl_allreduce(pith_nccl *nccl, void *const *gradients, uint64_t step, void *stream);

/* Multiplies the residuals and momenta of all layers by `factor`, as after a change of the loss scale. Enqueued. */
PITH_API pith_status pith_nccl_scale(pith_nccl *nccl, float factor, void *stream);

/* The spec of a layer, and the reason for it. Both texts live as long as the object. */
PITH_API pith_status pith_nccl_spec(const pith_nccl *nccl, size_t layer, const char **spec, const char **reason);

/* Bytes that this rank sends in a step (for sums, what a ring sends), and bytes of device memory of the object. */
PITH_API size_t pith_nccl_sent(const pith_nccl *nccl);
PITH_API size_t pith_nccl_memory(const pith_nccl *nccl);

/* Checkpoints of what this rank keeps between steps (residuals, momenta, factors). They wait for the device. The bytes
 * are checked on load: other layers or specs, another rank or number of ranks, or damage are errors that change
 * nothing. */
PITH_API size_t pith_nccl_save_size(const pith_nccl *nccl);
PITH_API pith_status pith_nccl_save(const pith_nccl *nccl, pith_out *out);
PITH_API pith_status pith_nccl_load(pith_nccl *nccl, pith_bytes bytes);

#ifdef __cplusplus
}
#endif
#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pith on CUDA devices: encodes and decodes tensors in device memory, many layers at a time, on the caller's stream.
 * Part of the public API; pith.h includes it. The library does not link to CUDA: it opens libpith_cuda.so at the first
 * call.
 *
 *   pith_cuda_item item = PITH_CUDA_ITEM_INIT;
 *   item.codec = q4, item.n = n, item.values = gradient;
 *   item.payload = bytes;                                   // pith_codec_bound(codec, n) bytes
 *   pith_cuda_encode(&item, 1, NULL, 0, stream);            // the same bytes as on the CPU
 *   pith_cuda_decode(&item, 1, PITH_ADD, NULL, 0, stream);
 *
 * Calls only enqueue work. They do not wait for the device, allocate device memory or copy, and a CUDA graph can
 * capture them. Arguments are checked before anything is enqueued. The items may be reused when a call returns; the
 * memory that they point to must stay valid until the stream has executed the call. The caller's next synchronization
 * reports errors of kernels, as with any kernel.
 *
 * Calls use the calling thread's current device and may come from any thread.
 */
#ifndef PITH_CUDA_H
#define PITH_CUDA_H

#include <pith/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether GPUs can be used: the module was found and fits this library, and there is a device. The error says why not.
 * *device (optional) becomes a description of the current device that stays valid. */
PITH_API pith_status pith_cuda_probe(const char **device);

/* Whether messages can go from GPU to GPU within a host (ipc, docs/gpu.md), which needs device memory that processes
 * can share. The error says why not. *how (optional) becomes a sentence on what this machine uses for it, valid until
 * the thread's next call. */
PITH_API pith_status pith_cuda_ipc_probe(const char **how);

/* Whether there are kernels for this codec. The error says what is missing. */
PITH_API pith_status pith_cuda_supports(const pith_codec *codec);

/* A layer, or a piece of a layer that starts at a multiple of the granule. All pointers except `codec` point to device
 * memory. */
typedef struct pith_cuda_item {
  size_t size; /* sizeof(pith_cuda_item) */
  const pith_codec *codec;
  pith_dtype dtype; /* f32, f16 or bf16 */
  size_t n;
  void *values;  /* source (read only) or destination, aligned for its type */
  void *payload; /* any alignment; multiples of 4 are fastest */
  void *memory;  /* n values of the codec's memory: the residual of ef and dgc, the mean of momentum. Encoding reads and
                    updates it; start with zeros. f32, or for `ef,store=…` the format in docs/format.md ("Residuals"),
                    pith_codec_residual_size() bytes. NULL when decoding, and without a memory */
  float *momentum;        /* the second array of dgc, likewise */
  uint64_t *payload_size; /* codecs that are not FIXED: encoding writes the size of the payload here, decoding reads it.
                             In device memory, so that nothing has to wait for it */
  void *part;    /* powersgd: its factors, pith_cuda_part() bytes; start with zeros. If NULL when encoding, every step
                    starts anew. Always NULL when decoding */
  uint64_t seed; /* this and the next seven: as in pith_ctx, when decoding too */
  uint64_t step;
  uint64_t layer;
  uint32_t rank;
  uint32_t ranks;
  uint64_t offset;
  uint64_t rows;
  float gamma;
} pith_cuda_item;

#define PITH_CUDA_ITEM_INIT {.size = sizeof(pith_cuda_item)}

/* Bytes of item.part for a layer of n values in `rows` rows; 0 for codecs without one. */
PITH_API size_t pith_cuda_part(const pith_codec *codec, size_t n, size_t rows);

/* Bytes of device memory, aligned to 256, that a call with these items needs as workspace. 0 for block codecs, unless
 * they encode with a residual of fewer than 32 bits. Of the items' pointers only `codec` is used. */
PITH_API size_t pith_cuda_workspace(const pith_cuda_item *items, size_t count);

/* Encodes the values of `count` items to their payloads. The bytes are those of pith_encode(). */
PITH_API pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size,
                                      void *stream);

/* Decodes payloads. Unlike on the CPU they are not validated, since nothing waits for the answer. Whatever their bytes,
 * only the destination is written, but the values from a malformed payload are undefined. Sparse payloads of several
 * ranks may share a destination: they are added in the order of the items. */
PITH_API pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace,
                                      size_t workspace_size, void *stream);

/* Like pith_aggregate(). item.payload holds the sum of item.ranks ranks' decoded payloads, as aligned f32. item.values
 * becomes the mean, or the majority for VOTE codecs. If item.values is f32, it may be the same memory as the sum. */
PITH_API pith_status pith_cuda_aggregate(const pith_cuda_item *items, size_t count, void *stream);

/* One exchange of a method that takes several (powersgd), like pith_round_produce() and pith_round_consume().
 * item.payload is the buffer that pith_round_describe() describes, aligned for f32; the caller sums it over all ranks
 * between the two calls. The last consume writes item.values. item.part must be set. */
PITH_API pith_status pith_cuda_produce(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                                       size_t workspace_size, void *stream);
PITH_API pith_status pith_cuda_consume(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                                       size_t workspace_size, void *stream);

#ifdef __cplusplus
}
#endif
#endif

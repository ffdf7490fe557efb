/*
 * Pith on CUDA devices: encodes and decodes tensors in device memory, many layers at a time, on the caller's stream. Not part of
 * pith.h, since most programs need it not; the library itself does not link to CUDA and opens libpith_cuda.so when first asked.
 *
 *   pith_cuda_item items[] = {{.codec = q4, .dtype = PITH_F32, .n = n, .values = gradient, .payload = bytes, .ctx = ctx}, …};
 *   pith_cuda_encode(items, count, NULL, 0, stream);      // payload: pith_codec_bound(codec, n) bytes, the same as the CPU's
 *   pith_cuda_decode(items, count, PITH_ADD, NULL, 0, stream);
 *
 * Calls only enqueue: they neither wait for the device nor allocate nor copy, and can be captured in a CUDA graph. Arguments are
 * checked before anything is enqueued. The items themselves may go when a call returns; what they point to must stay until the
 * stream has come past it. Errors of kernels show where the caller next looks at the stream, as with any kernel.
 *
 * Calls act on the calling thread's current device, may come from any thread, and need no order between streams of their own.
 */
#ifndef PITH_CUDA_H
#define PITH_CUDA_H

#include <pith/pith.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether GPUs can be used: the module is there and fits, and there is a device. The error says why not. `device` (optional)
 * is set to a text about the current device that lives as long as the process. */
PITH_API pith_status pith_cuda_probe(const char **device);

/* Whether there are kernels for this codec; the error says what is missing. */
PITH_API pith_status pith_cuda_supports(const pith_codec *codec);

/* A layer, or a piece of one that starts at a multiple of the granule. All pointers but the codec's are device memory. */
typedef struct pith_cuda_item {
  const pith_codec *codec;
  pith_dtype dtype; /* f32, f16 or bf16 */
  size_t n;
  void *values;   /* source (which is only read) or destination, aligned for its type */
  void *payload;  /* any alignment; multiples of 4 are fastest */
  float *memory;  /* what the codec's memory keeps of these n values: the residual of ef, the mean of momentum. Encoding reads
                     and updates it in the same pass; zeros at the start. NULL for codecs without a memory, and for decoding */
  uint64_t *size; /* codecs of varying size: where encoding puts the bytes of the payload, and decoding finds them */
  pith_ctx ctx;   /* seed, step, layer, rank, offset, gamma */
} pith_cuda_item;

/* Bytes of device memory that a call with these items needs as workspace; 0 for codecs of fixed size. */
PITH_API size_t pith_cuda_workspace(const pith_cuda_item *items, size_t count);

PITH_API pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size,
                                      void *stream);

/* Payloads are not checked as on the CPU, since nobody waits for the answer: whatever their bytes, nothing outside of payload
 * and destination is touched, but what a malformed one decodes to is left open. */
PITH_API pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace,
                                      size_t workspace_size, void *stream);

#ifdef __cplusplus
}
#endif
#endif

/*
 * Pith on CUDA devices: encodes and decodes tensors in device memory, many layers at a time, on the caller's stream.
 * Not part of pith.h, since most programs need it not; the library itself does not link to CUDA and opens
 * libpith_cuda.so when first asked.
 *
 *   pith_cuda_item items[] = {{.codec = q4, .dtype = PITH_F32, .n = n, .values = gradient, .payload = bytes, .ctx =
 * ctx}, …}; pith_cuda_encode(items, count, NULL, 0, stream);      // payload: pith_codec_bound(codec, n) bytes, the
 * same as the CPU's pith_cuda_decode(items, count, PITH_ADD, NULL, 0, stream);
 *
 * Calls only enqueue: they neither wait for the device nor allocate nor copy, and can be captured in a CUDA graph.
 * Arguments are checked before anything is enqueued. The items themselves may go when a call returns; what they point
 * to must stay until the stream has come past it. Errors of kernels show where the caller next looks at the stream, as
 * with any kernel.
 *
 * Calls act on the calling thread's current device, may come from any thread, and need no order between streams of
 * their own.
 */
#ifndef PITH_CUDA_H
#define PITH_CUDA_H

#include <pith/pith.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Whether GPUs can be used: the module is there and fits, and there is a device. The error says why not. `device`
 * (optional) is set to a text about the current device that lives as long as the process. */
PITH_API pith_status pith_cuda_probe(const char **device);

/* Whether there are kernels for this codec; the error says what is missing. */
PITH_API pith_status pith_cuda_supports(const pith_codec *codec);

/* A layer, or a piece of one that starts at a multiple of the granule. All pointers but the codec's are device memory.
 */
typedef struct pith_cuda_item {
  const pith_codec *codec;
  pith_dtype dtype; /* f32, f16 or bf16 */
  size_t n;
  void *values;    /* source (which is only read) or destination, aligned for its type */
  void *payload;   /* any alignment; multiples of 4 are fastest */
  float *memory;   /* what the codec's memory keeps of these n values: the residual of ef and dgc, the mean of momentum.
                      Encoding   reads and updates it; zeros at the start. NULL for codecs without a memory, and for
                      decoding */
  float *momentum; /* the second thing that dgc keeps, likewise */
  uint64_t *size;  /* codecs of varying size: where encoding puts the bytes of the payload, and decoding finds them. On
                      the device,  too: nobody waits for the number, and whoever needs it on the host copies it */
  void *part; /* powersgd: what it keeps between steps, pith_cuda_part() bytes, zeros at the start. NULL when encoding:
                 every step starts anew. NULL when decoding */
  pith_ctx ctx; /* seed, step, layer, rank, offset, gamma; rows and ranks for low rank, when decoding too */
} pith_cuda_item;

/* Bytes of item.part for a layer of n values in `rows` rows; 0 for codecs that keep nothing of their own. */
PITH_API size_t pith_cuda_part(const pith_codec *codec, size_t n, size_t rows);

/* Bytes of device memory that a call with these items needs as workspace, at a multiple of 256; 0 for block codecs.
 * What the items point to does not matter. */
PITH_API size_t pith_cuda_workspace(const pith_cuda_item *items, size_t count);

PITH_API pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size,
                                      void *stream);

/* Payloads are not checked as on the CPU, since nobody waits for the answer: whatever their bytes, nothing outside of
 * payload and destination is touched, but what a malformed one decodes to is left open. Sparse payloads of several
 * ranks may share a destination: they are added in the order of the items. */
PITH_API pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace,
                                      size_t workspace_size, void *stream);

/* As pith_aggregate(): item.payload has a sum of decoded payloads of ctx.ranks ranks, f32 and aligned for it;
 * item.values gets the mean, or the majority for VOTE codecs, and may be the sum itself if that is its type. ctx.offset
 * says where in the layer it begins. */
PITH_API pith_status pith_cuda_aggregate(const pith_cuda_item *items, size_t count, void *stream);

/* ---- Buckets on a device ----------------------------------------------------------------------------------------- */

/*
 * The steps of bucket.h with all values and bytes in device memory, enqueued on a stream; the bucket itself is made as
 * for the CPU, without states. `memories` has, for each layer, what its codec keeps (NULL where it keeps nothing): all
 * n values for encoding, and for results those of our own piece. Zeros at the start.
 *
 * Between the two halves of reducing, pith_cuda_bucket_mean() turns the sum into a mean, or into the majority for
 * codecs that vote: sums hold the pieces of this rank one after another.
 */
struct pith_bucket;

/* The values of a layer that belong to a rank. */
PITH_API pith_status pith_bucket_piece(const struct pith_bucket *bucket, size_t layer, int rank, size_t *first,
                                       size_t *n);

PITH_API pith_status pith_cuda_bucket_encode(const struct pith_bucket *bucket, const void *const *src,
                                             float *const *memories, const pith_ctx *ctx, void *parts, void *stream);
PITH_API pith_status pith_cuda_bucket_sum(const struct pith_bucket *bucket, const void *received, const pith_ctx *ctx,
                                          float *sums, void *stream);
PITH_API pith_status pith_cuda_bucket_mean(const struct pith_bucket *bucket, float *sums, void *stream);
PITH_API pith_status pith_cuda_bucket_result(const struct pith_bucket *bucket, float *sums, float *const *memories,
                                             const pith_ctx *ctx, void *result, void *stream);
PITH_API pith_status pith_cuda_bucket_decode(const struct pith_bucket *bucket, const void *results, const pith_ctx *ctx,
                                             void *const *dst, void *stream);

/* One exchange of a method that takes several (powersgd), as pith_round_produce() and pith_round_consume():
 * item.payload is the buffer, as pith_round_describe() has it, aligned for f32. Whoever calls sums it over all ranks in
 * between. The last one to be consumed sets item.values. Items need their part. */
PITH_API pith_status pith_cuda_produce(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                                       size_t workspace_size, void *stream);
PITH_API pith_status pith_cuda_consume(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                                       size_t workspace_size, void *stream);

/* ---- For the planner -----------------------------------------------------------------------------------------------
 */

/* ‖x − decoded‖² of several block codecs on the same tensor, in one pass over it. All items have the same n, values and
 * dtype; payloads and memories are not looked at. `errors` are `count` numbers on the device. At most 64 items, without
 * a transform. */
PITH_API size_t pith_cuda_errors_workspace(const pith_cuda_item *items, size_t count);
PITH_API pith_status pith_cuda_errors(const pith_cuda_item *items, size_t count, double *errors, void *workspace,
                                      size_t workspace_size, void *stream);

/* How many values have magnitudes in each of 32,768 bins (the upper bits of |x| as f32: exponent and seven bits of the
 * fraction), and the sum of their squares, within a percent in any bin. Both on the device. The squares of the values
 * that top-k leaves out follow from these for every k. */
#define PITH_CUDA_BINS 32768
PITH_API pith_status pith_cuda_magnitudes(const void *values, pith_dtype dtype, size_t n, uint64_t *counts,
                                          double *energies, void *stream);

#ifdef __cplusplus
}
#endif
#endif

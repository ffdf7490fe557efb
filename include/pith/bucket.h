/*
 * Pith's buckets: layers encoded for an exchange that somebody else makes, such as the all-to-all and all-gather of a
 * framework's own backend. Part of the public API; pith.h includes it.
 *
 *   pith_bucket_create(rank, ranks, items, count, &bucket);            // once
 *   pith_bucket_encode(bucket, gradients, &ctx, parts);                // every step: part p is for rank p
 *     … part p goes to rank p; every rank gets its part of all ranks, in rank order …
 *   pith_bucket_reduce(bucket, gradients, mine_of_all, PITH_MEAN, &ctx, result);
 *     … results go to all, in rank order …
 *   pith_bucket_decode(bucket, results, &ctx, gradients);              // means now, with the same bits on all ranks
 *
 * Codecs must be FIXED and CHUNKED, so that all sizes are known before anything is sent; they may differ between
 * layers. Every layer is cut into a part for each rank. The means are those of pith_allreduce() with the algorithm
 * "sra", bit by bit. A bucket belongs to one thread at a time.
 */
#ifndef PITH_BUCKET_H
#define PITH_BUCKET_H

#include <pith/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct pith_bucket pith_bucket;

/* The values of a layer and what encodes them. */
typedef struct pith_bucket_item {
  size_t size; /* sizeof(pith_bucket_item) */
  const pith_codec *codec;
  pith_state *state; /* NULL for codecs without memory, and on devices. Belongs to the caller and outlives the bucket */
  uint64_t layer;    /* its number, the same on every rank */
  size_t n;
  pith_dtype dtype;
  size_t chunk, number; /* 0: all values. Else only chunk `number` of every part, of `chunk` values, a multiple of the
                           codec's granule: a large layer in several buckets, with the same bits as in one */
} pith_bucket_item;

#define PITH_BUCKET_ITEM_INIT {.size = sizeof(pith_bucket_item)}

PITH_API pith_status pith_bucket_create(int rank, int ranks, const pith_bucket_item *items, size_t count,
                                        pith_bucket **bucket);
PITH_API void pith_bucket_destroy(pith_bucket *bucket);

/* Bytes of part `rank`: of what every rank sends there, and of its result. */
PITH_API size_t pith_bucket_bytes(const pith_bucket *bucket, int rank);

/* Encodes all layers, each with its memory: the parts for ranks 0, 1, … one after another. ctx: seed, step, gamma. In
 * the part for this rank itself only layers that vote are encoded; the bytes of the others are not written. */
PITH_API pith_status pith_bucket_encode(pith_bucket *bucket, const void *const *src, const pith_ctx *ctx, void *parts);

/* Adds up the parts that ranks 0, 1, … sent to this rank, one after another, and encodes the sum or mean. Its own
 * values are added as they are, behind their memory: src is what was encoded, unchanged. */
PITH_API pith_status pith_bucket_reduce(pith_bucket *bucket, const void *const *src, pith_bytes received,
                                        pith_reduce_op op, const pith_ctx *ctx, void *result);

/* Decodes the results of ranks 0, 1, …, one after another. */
PITH_API pith_status pith_bucket_decode(pith_bucket *bucket, pith_bytes results, const pith_ctx *ctx, void *const *dst);

#ifdef __cplusplus
}
#endif
#endif

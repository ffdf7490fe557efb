/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: layers encoded for an exchange that a carrier makes, in main memory and on devices.
 *
 *   pith__bucket_encode(): part p is for rank p
 *     … part p goes to rank p; every rank gets its part of all ranks, in rank order …
 *   pith__bucket_reduce(): the mean of what this rank owns
 *     … results go to all, in rank order …
 *   pith__bucket_decode(): the same bits on all ranks
 *
 * Codecs are FIXED and CHUNKED, so that all sizes are known before anything is sent; they may differ between layers.
 * Every layer is cut into a part for each rank. The means are those of pith_allreduce() with the algorithm "sra", bit
 * by bit. The ctx of a call says seed, step and gamma. A bucket belongs to one thread at a time.
 */
#ifndef PITH_DEVICE_BUCKET_H
#define PITH_DEVICE_BUCKET_H

#include "base/split.h"
#include "codec/codec.h"
#include "memory/memory.h"

/* The values of a layer and what encodes them. */
typedef struct pith_bucket_item {
  const pith_codec *codec;
  pith_state *state; /* NULL for codecs without memory, and on devices. Belongs to the caller and outlives the bucket */
  uint64_t layer;    /* its number, the same on every rank */
  size_t n;
  pith_dtype dtype;
  size_t chunk, number; /* 0: all values. Else only chunk `number` of every part, of `chunk` values, a multiple of the
                           codec's granule: a large layer in several buckets, with the same bits as in one */
  size_t base;          /* the n values are those of a layer from this one on */
  size_t granule;       /* parts begin at multiples of it; 0: the codec's */
  uint64_t turns;       /* parts are turned by layer / turns, where layers are cut twice; 0: by layer */
} pith_bucket_item;

typedef struct pith_bucket {
  int rank, ranks;  /* owner of our part, and how many there are; … */
  int all;          /* … ranks whose values the sums have, … */
  const int *names; /* … and what each owner is called among these; NULL: as here */
  size_t count;
  size_t *bytes;                /* of each part */
  pith_encode_scratch *scratch; /* of each layer; all share one memory */
  void *memory;
  float *sum; /* as many values as the largest piece has */
  pith_bucket_item layer[];
} pith_bucket;

/* The values of a layer that belong to a part, … */
static inline pith_range pith__bucket_part(const pith_bucket *b, size_t index, int part) {
  const pith_bucket_item *l = &b->layer[index];
  return pith__split_turned(l->n, l->granule ? l->granule : l->codec->granule, (size_t)b->ranks, (size_t)part,
                            l->turns ? l->layer / l->turns : l->layer);
}

/* What random numbers know an owner by. */
static inline uint32_t pith__bucket_name(const pith_bucket *b, int owner) {
  return (uint32_t)(b->names ? b->names[owner] : owner);
}

/* … and those of them that are in this bucket. */
static inline pith_range pith__bucket_piece(const pith_bucket *b, size_t index, int part) {
  const pith_bucket_item *l = &b->layer[index];
  pith_range all = pith__bucket_part(b, index, part);
  return l->chunk ? pith__split_chunk(all, l->chunk, l->number) : all;
}

static inline size_t pith__bucket_piece_bytes(const pith_bucket *b, size_t index, pith_range piece) {
  return piece.n ? pith_codec_bound(b->layer[index].codec, piece.n) : 0;
}

/* Whether a part is our own, and we add our values of a layer in it as they are instead of encoding them. */
static inline int pith__bucket_sums_as_is(const pith_bucket *b, size_t index, int part) {
  return part == b->rank && pith__own_is_exact(b->layer[index].codec);
}

/* For what a rank encodes of a layer, from value `first` on; pith__result_rank() for results. */
static inline pith_ctx pith__bucket_ctx(const pith_bucket *b, const pith_ctx *given, size_t index, uint32_t rank,
                                        size_t first) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = given->seed;
  ctx.step = given->step;
  ctx.gamma = (given->gamma != 0 ? given->gamma : 1.0f) * pith__codec_gamma(b->layer[index].codec);
  ctx.layer = b->layer[index].layer;
  ctx.rank = rank;
  ctx.ranks = (uint32_t)b->all;
  ctx.offset = b->layer[index].base + first;
  ctx.offset -= ctx.offset % b->layer[index].codec->granule; /* casts may begin within one, and do not mind */
  return ctx;
}

/* ---- bucket.c ---------------------------------------------------------------------------------------------------- */

pith_status pith__bucket_create(int rank, int ranks, const pith_bucket_item *items, size_t count, pith_bucket **bucket);
void pith__bucket_destroy(pith_bucket *bucket);

/* Encodes all layers, each with its memory: the parts for ranks 0, 1, … one after another. In the part for this rank
 * itself only layers that vote are encoded; the bytes of the others are not written. */
pith_status pith__bucket_encode(pith_bucket *bucket, const void *const *src, const pith_ctx *ctx, void *parts);

/* Adds up the parts that ranks 0, 1, … sent to this rank, one after another, and encodes the mean. Its own values are
 * added as they are, behind their memory: src is what was encoded, unchanged. */
pith_status pith__bucket_reduce(pith_bucket *bucket, const void *const *src, const void *received, const pith_ctx *ctx,
                                void *result);

/* Decodes the results of ranks 0, 1, …: that of rank p begins at p · stride; 0: they lie one after another. */
pith_status pith__bucket_decode(pith_bucket *bucket, const void *results, size_t stride, const pith_ctx *ctx,
                                void *const *dst);

/* ---- bucket_cuda.c ----------------------------------------------------------------------------------------------- */

/*
 * The same with all values and bytes in device memory, enqueued on a stream. `memories` has, for each layer, the values
 * of its codec's memory (NULL for codecs without one): all n values for encoding and summing, and `result_memories`
 * those of this rank's piece for results. Residuals in fewer bits than 32 are widened in a workspace: of all pieces for
 * encoding, of our `own` for reducing, which also keeps its sums there.
 */
size_t pith__cuda_bucket_workspace(const pith_bucket *bucket, int own);
pith_status pith__cuda_bucket_encode(const pith_bucket *bucket, const void *const *src, void *const *memories,
                                     const pith_ctx *ctx, void *parts, void *workspace, void *stream);
pith_status pith__cuda_bucket_reduce(const pith_bucket *bucket, const void *const *src, void *const *memories,
                                     void *const *result_memories, const void *received, const pith_ctx *ctx,
                                     void *result, void *workspace, void *stream);
/* The sums of our part alone, f32, layer after layer; for codecs without memory that do not vote. */
pith_status pith__cuda_bucket_sum(const pith_bucket *bucket, const void *const *src, const void *received,
                                  const pith_ctx *ctx, float *sums, void *stream);
pith_status pith__cuda_bucket_decode(const pith_bucket *bucket, const void *results, size_t stride, const pith_ctx *ctx,
                                     void *const *dst, void *stream);

#endif

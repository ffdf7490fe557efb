/* The inside of a bucket: whose which values are, and the contexts they are coded with. For buckets in main memory and
 * on devices. */
#ifndef PITH_DEVICE_BUCKET_H
#define PITH_DEVICE_BUCKET_H

#include <pith/bucket.h>

#include "base/split.h"
#include "base/struct_size.h"
#include "codec/codec.h"
#include "memory/memory.h"

struct pith_bucket {
  int rank, ranks;
  size_t count;
  size_t *bytes;                /* of each part */
  pith_encode_scratch *scratch; /* of each layer; all share one memory */
  void *memory;
  float *sum; /* as many values as the largest piece has */
  pith_bucket_item layer[];
};

/* The values of a layer that belong to a part, … */
static inline pith_range pith__bucket_part(const pith_bucket *b, size_t index, int part) {
  const pith_bucket_item *l = &b->layer[index];
  return pith__split_turned(l->n, l->codec->granule, (size_t)b->ranks, (size_t)part, l->layer);
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

/* What a caller says of a step: seed, step, gamma. */
static inline pith_status pith__bucket_read_ctx(const pith_ctx *given, pith_ctx *ctx) {
  *ctx = (pith_ctx)PITH_CTX_INIT;
  return given ? PITH_STRUCT_READ(pith_ctx, given, ctx) : PITH_OK;
}

/* pith_bucket_decode() of results that begin at p · stride for rank p; 0: they lie one after another. */
pith_status pith__bucket_decode(pith_bucket *b, pith_bytes results, size_t stride, const pith_ctx *given,
                                void *const *dst);

/* For what a rank encodes of a layer, from value `first` on; pith__result_rank() for results. */
static inline pith_ctx pith__bucket_ctx(const pith_bucket *b, const pith_ctx *given, size_t index, uint32_t rank,
                                        size_t first) {
  pith_ctx ctx = PITH_CTX_INIT;
  if (given) {
    ctx.seed = given->seed;
    ctx.step = given->step;
    ctx.gamma = given->gamma;
  }
  ctx.gamma = ctx.gamma != 0 ? ctx.gamma : 1.0f;
  ctx.layer = b->layer[index].layer;
  ctx.rank = rank;
  ctx.ranks = (uint32_t)b->ranks;
  ctx.offset = first;
  return ctx;
}

#endif

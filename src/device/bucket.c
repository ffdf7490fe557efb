/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Buckets: scatter, reduce, gather for an exchange that others make. The parts of a layer go to ranks in turn, starting
 * at a rank that follows from the layer's number: small layers do not all fall to rank 0, and who owns what does not
 * depend on which layers share a bucket, since owners keep something between steps.
 */
#include "device/bucket.h"

#include <stdlib.h>
#include <string.h>

#include "base/saturate.h"
#include "base/size.h"

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* Layers are worked on one after another, so their scratch may overlap. */
static pith_status take_scratch(pith_bucket *b) {
  size_t need = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_arena measure = pith__arena_over(NULL, 0);
    pith__memory_take_scratch(b->layer[i].codec, b->layer[i].n, &measure, &b->scratch[i]);
    need = pith__most(need, pith__arena_need(&measure));
  }
  b->memory = need < SIZE_MAX ? malloc(need + 1) : NULL;
  PITH_REQUIRE(b->memory, PITH_ERR_MEMORY, "no memory for %zu bytes of scratch", need);
  for (size_t i = 0; i < b->count; i++) {
    pith_arena arena = pith__arena_over(b->memory, need);
    pith__memory_take_scratch(b->layer[i].codec, b->layer[i].n, &arena, &b->scratch[i]);
  }
  return PITH_OK;
}

static pith_status fill(pith_bucket *b) {
  size_t largest = 0;
  for (size_t i = 0; i < b->count; i++) {
    for (int p = 0; p < b->ranks; p++) {
      largest = pith__most(largest, pith__bucket_part(b, i, p).n);
    }
  }
  b->bytes = calloc((size_t)b->ranks, sizeof *b->bytes);
  b->scratch = calloc(b->count + 1, sizeof *b->scratch);
  b->sum = calloc(largest + 1, sizeof *b->sum);
  PITH_REQUIRE(b->bytes && b->scratch && b->sum, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", b->count);
  PITH_TRY(take_scratch(b));
  for (int p = 0; p < b->ranks; p++) {
    for (size_t i = 0; i < b->count; i++) {
      b->bytes[p] = pith__sat_add(b->bytes[p], pith__bucket_piece_bytes(b, i, pith__bucket_piece(b, i, p)));
    }
    PITH_REQUIRE(b->bytes[p] < SIZE_MAX / (size_t)b->ranks, PITH_ERR_ARGUMENT,
                 "the bucket is too large for any memory");
  }
  return PITH_OK;
}

pith_status pith__bucket_create(int rank, int ranks, const pith_bucket_item *items, size_t count, pith_bucket **made) {
  pith_bucket *b = calloc(1, sizeof *b + count * sizeof *b->layer);
  PITH_REQUIRE(b, PITH_ERR_MEMORY, "no memory for a bucket of %zu layers", count);
  b->rank = rank;
  b->ranks = b->all = ranks;
  b->count = count;
  memcpy(b->layer, items, count * sizeof *items);
  pith_status status = fill(b);
  if (status != PITH_OK) {
    pith__bucket_destroy(b);
    return status;
  }
  *made = b;
  return PITH_OK;
}

void pith__bucket_destroy(pith_bucket *b) {
  if (b) {
    free(b->bytes);
    free(b->scratch);
    free(b->memory);
    free(b->sum);
    free(b);
  }
}

/* ---- The three steps --------------------------------------------------------------------------------------------- */

static pith_cspan values_at(const void *data, const pith_bucket_item *l, pith_range r) {
  return (pith_cspan){(const uint8_t *)data + r.first * pith_dtype_size(l->dtype), r.n, l->dtype};
}

pith_status pith__bucket_encode(pith_bucket *b, const void *const *src, const pith_ctx *step, void *parts) {
  uint8_t *at = parts;
  for (int p = 0; p < b->ranks; p++) {
    for (size_t i = 0; i < b->count; i++) {
      pith_range r = pith__bucket_piece(b, i, p);
      const pith_bucket_item *l = &b->layer[i];
      pith_out out = {at, pith__bucket_piece_bytes(b, i, r), 0};
      if (r.n && !pith__bucket_sums_as_is(b, i, p)) {
        pith_ctx ctx = pith__bucket_ctx(b, step, i, pith__bucket_name(b, b->rank), r.first);
        PITH_TRY(pith__memory_encode(l->codec, l->state, values_at(src[i], l, r), &out, &b->scratch[i], &ctx));
      }
      at += out.capacity;
    }
  }
  return PITH_OK;
}

/* The sum of our own values and of what all other ranks sent of one piece of ours, at `at` in each rank's part. */
static pith_status sum_piece(const pith_bucket *b, const void *const *src, const uint8_t *received, size_t at,
                             size_t index, pith_range r, const pith_ctx *step) {
  const pith_bucket_item *l = &b->layer[index];
  for (int p = 0; p < b->ranks; p++) {
    pith_ctx ctx = pith__bucket_ctx(b, step, index, pith__bucket_name(b, p), r.first);
    if (pith__bucket_sums_as_is(b, index, p)) {
      pith_apply apply = p ? PITH_APPLY_ADD : PITH_APPLY_SET;
      PITH_TRY(pith__memory_sum_own(l->codec, l->state, values_at(src[index], l, r), b->sum, apply, &ctx));
      continue;
    }
    pith_bytes in = {received + (size_t)p * b->bytes[b->rank] + at, pith__bucket_piece_bytes(b, index, r)};
    PITH_TRY(pith__codec_decode(l->codec, in, (pith_span){b->sum, r.n, PITH_F32}, p ? PITH_APPLY_ADD : PITH_APPLY_SET,
                                b->scratch[index].chain, &ctx));
  }
  return PITH_OK;
}

pith_status pith__bucket_reduce(pith_bucket *b, const void *const *src, const void *received, const pith_ctx *step,
                                void *result) {
  size_t at = 0;
  for (size_t i = 0; i < b->count; i++) {
    pith_range r = pith__bucket_piece(b, i, b->rank);
    const pith_bucket_item *l = &b->layer[i];
    pith_out out = {(uint8_t *)result + at, pith__bucket_piece_bytes(b, i, r), 0};
    if (r.n) {
      pith_ctx ctx = pith__bucket_ctx(b, step, i, pith__result_rank(b->all), r.first);
      PITH_TRY(sum_piece(b, src, received, at, i, r, step));
      if (l->codec->caps & PITH_CAP_VOTE) {
        pith__values_vote(b->sum, r.n);
      } else {
        pith__values_scale(1.0f / (float)b->all, b->sum, r.n);
      }
      PITH_TRY(pith__memory_encode_result(l->codec, l->state, (pith_cspan){b->sum, r.n, PITH_F32}, &out, &b->scratch[i],
                                          &ctx));
    }
    at += out.capacity;
  }
  return PITH_OK;
}

pith_status pith__bucket_decode(pith_bucket *b, const void *results, size_t stride, const pith_ctx *step,
                                void *const *dst) {
  size_t at = 0;
  for (int p = 0; p < b->ranks; p++) {
    at = stride ? (size_t)p * stride : at;
    for (size_t i = 0; i < b->count; i++) {
      pith_range r = pith__bucket_piece(b, i, p);
      const pith_bucket_item *l = &b->layer[i];
      pith_bytes in = {(const uint8_t *)results + at, pith__bucket_piece_bytes(b, i, r)};
      if (r.n) {
        pith_ctx ctx = pith__bucket_ctx(b, step, i, pith__result_rank(b->all), r.first);
        pith_span to = {(uint8_t *)dst[i] + r.first * pith_dtype_size(l->dtype), r.n, l->dtype};
        PITH_TRY(pith__codec_decode(l->codec, in, to, PITH_APPLY_SET, b->scratch[i].chain, &ctx));
      }
      at += in.size;
    }
  }
  return PITH_OK;
}

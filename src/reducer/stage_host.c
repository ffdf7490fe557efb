/* SPDX-License-Identifier: Apache-2.0 */
/* The work of stages in main memory: see stages.h. */
#include <string.h>

#include "base/size.h"
#include "codec/codec.h"
#include "device/bucket.h"
#include "reducer/stages.h"

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static pith_status encode_parts(pith_staged *f, const pith_ctx *ctx) {
  return pith__bucket_encode(f->bucket, (const void *const *)f->gradient, ctx, f->out.data);
}

static pith_status reduce_parts(pith_staged *f, const pith_ctx *ctx) {
  size_t own = f->bytes[f->reducer->rank];
  PITH_TRY(pith__bucket_reduce(f->bucket, (const void *const *)f->gradient, f->in.data, ctx, f->out.data));
  if (f->is_padded) {
    memset(f->out.data + own, 0, f->room - own);
    return PITH_OK;
  }
  for (int p = 1; p < f->reducer->ranks; p++) {
    memcpy(f->out.data + (size_t)p * own, f->out.data, own);
  }
  return PITH_OK;
}

static pith_status decode_parts(pith_staged *f, const pith_ctx *ctx) {
  return pith__bucket_decode(f->bucket, f->in.data, f->is_padded ? f->room : 0, ctx, f->gradient);
}

/* ---- Whole payloads ---------------------------------------------------------------------------------------------- */

enum { TILE = 1024 };

static void widen(pith_cspan from, float *to) {
  for (size_t at = 0, n; at < from.n; at += n) {
    n = pith__least(from.n - at, TILE);
    const float *values = pith__span_load(from, at, n, to + at);
    if (values != to + at) {
      memcpy(to + at, values, n * sizeof *to);
    }
  }
}

/* What travels, in `sums` where it is made. */
static pith_status source_of(const pith_staged *f, pith_reducer_layer *l, pith_cspan *values) {
  float *made = (float *)(void *)f->sums.data;
  pith_span kept = {made, l->n, PITH_F32};
  switch (pith__stage_source(f, l)) {
    case PITH_SOURCE_GIVEN:
      return PITH_OK;
    case PITH_SOURCE_REFERENCE:
      kept = pith__reference_values(l);
      break;
    case PITH_SOURCE_DIFFERENCE:
      pith__reference_subtract(l, *values, made);
      break;
    case PITH_SOURCE_PENDING:
      widen(*values, made);
      PITH_TRY(pith__pending_release(l, kept));
  }
  *values = (pith_cspan){kept.data, kept.n, kept.dtype};
  return PITH_OK;
}

static pith_status encode_payloads(pith_staged *f) {
  size_t room = 0, used = 0, most = 0;
  uint64_t *sizes = f->sizes + f->own;
  for (size_t i = 0; i < f->count; i++) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    room += pith__layer_bound(l);
    most = pith__most(most, pith__stage_source(f, l) >= PITH_SOURCE_DIFFERENCE ? l->n : 0);
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->out, room));
  PITH_TRY(most ? pith__stages_buffer(f->stages, &f->sums, most * sizeof(float)) : PITH_OK);
  for (size_t i = 0; i < f->count; i++) {
    pith_reducer_layer *l = pith__stage_layer(f, i);
    pith_ctx ctx = pith__stage_ctx(f, l, f->reducer->rank);
    pith_out out = {f->out.data + used, room - used, 0};
    pith_cspan values = {f->gradient[i], l->n, l->dtype};
    PITH_TRY(source_of(f, l, &values));
    PITH_TRY(pith_encode(pith__layer_codec(l), l->state, values, &out, &ctx));
    sizes[i] = out.size;
    used += out.size;
  }
  return PITH_OK;
}

static pith_status pad_message(pith_staged *f, size_t own) {
  memset(f->out.data + own, 0, f->room - own);
  return PITH_OK;
}

/* A sum of votes is the majority times their number: whoever asked for a sum divides it. */
static pith_status aggregate(const pith_staged *f, const pith_codec *codec, pith_span total, pith_ctx ctx) {
  ctx.ranks = f->op == PITH_SUM ? 1 : ctx.ranks;
  PITH_TRY(pith_aggregate(codec, total, &ctx));
  if (f->op == PITH_SUM && codec->caps & PITH_CAP_VOTE) {
    pith__values_scale((float)f->reducer->ranks, total.data, total.n);
  }
  return PITH_OK;
}

/* In f32, in rank order. `at`: where the layer's payload of each rank begins in `in`. */
static pith_status average_layer(pith_staged *f, size_t index, size_t *at, float *wide) {
  const pith_reducer_layer *l = pith__stage_layer(f, index);
  const pith_codec *codec = pith__layer_codec(l);
  pith_span total = {l->dtype == PITH_F32 ? f->gradient[index] : wide, l->n, PITH_F32};
  pith_ctx ctx = pith__stage_ctx(f, l, 0);
  for (int p = 0; p < f->reducer->ranks; p++) {
    size_t size = (size_t)f->sizes[(size_t)p * f->count + index];
    ctx.rank = (uint32_t)p;
    PITH_TRY(pith_decode(codec, (pith_bytes){f->in.data + at[p], size}, total, p ? PITH_ADD : PITH_SET, &ctx));
    at[p] += size;
  }
  PITH_TRY(aggregate(f, codec, total, ctx));
  if (total.data == wide) {
    pith__span_store((pith_span){f->gradient[index], l->n, l->dtype}, 0, l->n, wide, PITH_SET, NULL);
  }
  return PITH_OK;
}

static pith_status average_payloads(pith_staged *f) {
  size_t most = 0;
  for (size_t i = 0; i < f->count; i++) {
    most = pith__most(most, pith__stage_layer(f, i)->dtype == PITH_F32 ? 0 : pith__stage_layer(f, i)->n);
  }
  PITH_TRY(pith__stages_buffer(f->stages, &f->out, most * sizeof(float)));
  for (int p = 0; p < f->reducer->ranks; p++) {
    f->bytes[p] = pith__stage_message_at(f, p);
  }
  for (size_t i = 0; i < f->count; i++) {
    PITH_TRY(average_layer(f, i, f->bytes, (float *)(void *)f->out.data));
  }
  return PITH_OK;
}

static pith_status decode_payloads(pith_staged *f) {
  uint8_t *to = f->target;
  for (int p = 0; p < f->reducer->ranks; p++) {
    const uint8_t *from = f->in.data + pith__stage_message_at(f, p);
    for (size_t i = 0; i < f->count; i++) {
      pith_reducer_layer *l = pith__stage_layer(f, i) - f->reducer->rank + p; /* the entry of its owner */
      pith_bytes in = {from, (size_t)f->sizes[(size_t)p * f->count + i]};
      pith_span values = {to, l->n, l->dtype};
      pith_ctx ctx = pith__stage_ctx(f, l, p);
      pith_span into = l->reference ? pith__reference_values(l) : values;
      PITH_TRY(pith_decode(pith__layer_codec(l), in, into, pith__stage_adds(f, l) ? PITH_ADD : PITH_SET, &ctx));
      if (l->reference) {
        l->reference->is_stale = 0;
      }
      if (l->reference && !f->restores) {
        pith__reference_copy(l, values);
      }
      from += in.size;
      to = f->restores ? NULL : to + pith__layer_bytes(l);
    }
  }
  return PITH_OK;
}

static pith_status give_references(pith_reducer *r, const size_t *layers, size_t count, pith_span dst) {
  uint8_t *to = dst.data;
  for (size_t p = 0; p < (size_t)r->ranks; p++) {
    for (size_t i = 0; i < count; i++) {
      const pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks + p];
      pith__reference_copy(l, (pith_span){to, l->n, dst.dtype});
      to += l->n * pith_dtype_size(dst.dtype);
    }
  }
  return PITH_OK;
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

static pith_status run_round(pith_staged *f, size_t round, size_t width, int consumes) {
  uint8_t *at = f->in.data;
  for (size_t i = 0; i < f->count; at += f->counts[i++] * width) {
    const pith_reducer_layer *l = pith__stage_layer(f, i);
    pith_ctx ctx = pith__stage_ctx(f, l, f->reducer->rank);
    pith_span values = {f->gradient[i], l->n, l->dtype};
    PITH_TRY(consumes ? pith_round_consume(l->match.codec, l->state, round, at, values, &ctx)
                      : pith_round_produce(l->match.codec, l->state, round,
                                           (pith_cspan){values.data, values.n, values.dtype}, at, &ctx));
  }
  return PITH_OK;
}

/* ---- Types that no codec takes ----------------------------------------------------------------------------------- */

static pith_status copy_plain(pith_staged *f, int back) {
  double *at = (double *)(void *)f->in.data;
  for (size_t i = 0; i < f->count; at += pith__stage_layer(f, i++)->n) {
    size_t n = pith__stage_layer(f, i)->n;
    if (!back) {
      memcpy(at, f->gradient[i], n * sizeof *at);
    }
    for (size_t k = 0; k < n && back; k++) {
      ((double *)f->gradient[i])[k] = at[k] / f->reducer->ranks;
    }
  }
  return PITH_OK;
}

const pith_stage_ops pith__stage_host = {.encode_parts = encode_parts,
                                         .reduce_parts = reduce_parts,
                                         .decode_parts = decode_parts,
                                         .encode_payloads = encode_payloads,
                                         .pad_message = pad_message,
                                         .average_payloads = average_payloads,
                                         .decode_payloads = decode_payloads,
                                         .give_references = give_references,
                                         .run_round = run_round,
                                         .copy_plain = copy_plain};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Models of which every rank owns a shard of each layer (FSDP): the reduce-scatter of their gradients and the
 * all-gather of their parameters. A layer has an entry in the reducer for each owner, with a state of its own; a
 * message goes through the stages of a group (stage_work.c), at once.
 */
#include <stdlib.h>

#include "base/clock.h"
#include "codec/codec.h"
#include "reducer/stages.h"

/* Shards of one message have the type that is given now. */
static pith_status check(pith_reducer *r, const size_t *layers, size_t count, pith_cspan src, pith_span dst,
                         size_t *whole) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_REQUIRE(r->options.sharded, PITH_ERR_STATE, "the reducer is for whole gradients: options.sharded");
  PITH_REQUIRE(layers || count == 0, PITH_ERR_ARGUMENT, "%zu layers at NULL", count);
  PITH_REQUIRE(src.dtype == dst.dtype && (src.dtype == PITH_F32 || src.dtype == PITH_F16 || src.dtype == PITH_BF16),
               PITH_ERR_ARGUMENT, "shards are f32, f16 or bf16, and their results of the same type");
  PITH_TRY(pith_reducer_check(r));
  *whole = 0;
  for (size_t i = 0; i < count; i++) {
    pith_reducer_layer *l;
    PITH_TRY(pith__reducer_find(r, layers[i], &l));
  }
  PITH_TRY(pith__reducer_turn(r, layers, count)); /* specs may be others behind it */
  for (size_t i = 0; i < count; i++) {
    pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks];
    for (int p = 0; p < r->ranks; p++) {
      l[p].dtype = src.dtype;
      PITH_TRY(l->reference ? pith__reference_wire(r, &l[p], 0) : pith__stage_wire_codec(r, &l[p], &l[p].wire));
    }
    *whole += l->n;
  }
  return PITH_OK;
}

static pith_status check_size(const char *what, const void *data, size_t n, size_t wanted) {
  PITH_REQUIRE(n == wanted && (data || n == 0), PITH_ERR_ARGUMENT, "%s: %zu values, and the shards have %zu", what, n,
               wanted);
  return PITH_OK;
}

/* SCATTER: all shards of the layers, owner by owner; GATHER: our own. They lie one after another from `values` on;
 * NULL: nothing is read. */
static pith_status make(pith_reducer *r, pith_group_kind kind, const size_t *layers, size_t count, const void *values,
                        pith_staged **made) {
  int is_scatter = kind == PITH_GROUP_SCATTER;
  size_t ranks = (size_t)r->ranks, all = is_scatter ? count * ranks : count, first = is_scatter ? 0 : (size_t)r->rank;
  pith_staged *f;
  PITH_TRY(pith__stage_make(r, kind, all, is_scatter ? 2 * all : all * ranks, &f)); /* ours and theirs, or all */
  f->count = all;
  f->own = first * all;
  uint8_t *at = (uint8_t *)(uintptr_t)values;
  for (size_t i = 0; i < all; i++) {
    f->layer[i] = layers[i % count] * ranks + first + i / count;
    f->gradient[i] = at;
    at = at ? at + pith__layer_bytes(&r->layers[f->layer[i]]) : NULL;
  }
  *made = f;
  return PITH_OK;
}

static pith_status run(pith_reducer *r, pith_staged *f) {
  double begun = pith__now();
  PITH_TRY(pith__stages_run(r->stages, f));
  r->step++; /* of messages: ranks that differ in it are told so */
  return pith__reducer_adapt(r, begun);
}

/* An adaptive spec sees this rank's own shards: those of all ranks are a whole gradient. */
static pith_status observe(pith_reducer *r, const size_t *layers, size_t count, pith_cspan src, size_t whole) {
  const uint8_t *at = (const uint8_t *)src.data + whole * (size_t)r->rank * pith_dtype_size(src.dtype);
  for (size_t i = 0; i < count; i++) {
    const pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks + (size_t)r->rank];
    PITH_TRY(pith__reducer_observe(r, l, at));
    at += pith__layer_bytes(l);
  }
  return PITH_OK;
}

pith_status pith_reducer_reduce_scatter(pith_reducer *r, const size_t *layers, size_t count, pith_cspan src,
                                        pith_span dst, pith_reduce_op op) {
  size_t whole;
  pith_staged *f;
  PITH_REQUIRE(op == PITH_SUM || op == PITH_MEAN, PITH_ERR_ARGUMENT, "shards are reduced to sums or means");
  PITH_TRY(check(r, layers, count, src, dst, &whole));
  PITH_TRY(check_size("the gradients of all ranks' shards", src.data, src.n, whole * (size_t)r->ranks));
  PITH_TRY(check_size("the gradients of this rank's shards", dst.data, dst.n, whole));
  for (size_t i = 0; i < count; i++) {
    const pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks];
    PITH_REQUIRE(!l->reference, PITH_ERR_UNSUPPORTED, "layer %s: %s is for parameters", l->name, l->reference->spec);
  }
  PITH_TRY(observe(r, layers, count, src, whole));
  PITH_TRY(make(r, PITH_GROUP_SCATTER, layers, count, src.data, &f));
  f->op = op;
  f->target = dst.data;
  return run(r, f);
}

/* A message of parameters, or of references. */
static pith_status gather(pith_reducer *r, const size_t *layers, size_t count, pith_cspan src, pith_span dst,
                          int restores) {
  pith_staged *f;
  PITH_TRY(make(r, PITH_GROUP_GATHER, layers, count, src.data, &f));
  for (size_t i = 0; i < count; i++) {
    const pith_reducer_layer *l = &r->layers[f->layer[i]];
    f->sent[i] = pith_codec_bound(l->wire, l->n) * (size_t)(r->ranks - 1);
  }
  f->target = dst.data;
  f->restores = restores;
  return run(r, f);
}

/* After a load a rank has its own references; those that the next message needs are gathered from their owners. */
static pith_status restore(pith_reducer *r, const size_t *layers, size_t count, int is_read) {
  PITH_FREED size_t *stale = calloc(count + 1, sizeof *stale);
  size_t found = 0;
  PITH_REQUIRE(stale, PITH_ERR_MEMORY, "no memory for a reducer");
  for (size_t i = 0; i < count; i++) {
    pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks];
    if (l->reference && l->reference->is_stale && (is_read || !pith__reference_is_fresh(l))) {
      stale[found++] = layers[i];
      for (int p = 0; p < r->ranks; p++) {
        PITH_TRY(pith__reference_wire(r, &l[p], 1));
      }
    }
  }
  PITH_TRY(found ? gather(r, stale, found, (pith_cspan){0}, (pith_span){0}, 1) : PITH_OK);
  for (size_t i = 0; i < found; i++) {
    for (int p = 0; p < r->ranks; p++) {
      PITH_TRY(pith__reference_wire(r, &r->layers[stale[i] * (size_t)r->ranks + (size_t)p], 0));
    }
  }
  return PITH_OK;
}

pith_status pith_reducer_all_gather(pith_reducer *r, const size_t *layers, size_t count, pith_cspan src,
                                    pith_span dst) {
  size_t whole;
  PITH_TRY(check(r, layers, count, src, dst, &whole));
  PITH_TRY(check_size("this rank's shards", src.data, src.n, whole));
  PITH_TRY(check_size("the shards of all ranks", dst.data, dst.n, whole * (size_t)r->ranks));
  for (size_t i = 0; i < count; i++) {
    const pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks];
    const pith_codec *codec = l->reference ? l->match.codec : l->wire;
    PITH_REQUIRE(l->adapted == SIZE_MAX, PITH_ERR_UNSUPPORTED, "layer %s: %s is for gradients, and not for parameters",
                 l->name, r->adaptive.text);
    PITH_REQUIRE(!codec->memory && !pith_codec_rounds(codec) && codec->caps & PITH_CAP_FIXED, PITH_ERR_UNSUPPORTED,
                 "layer %s: %s cannot be used for parameters: that takes a codec of fixed size without memory", l->name,
                 codec->spec);
  }
  PITH_TRY(restore(r, layers, count, 0));
  return gather(r, layers, count, src, dst, 0);
}

pith_status pith_reducer_gathered(pith_reducer *r, const size_t *layers, size_t count, pith_span dst) {
  size_t whole;
  PITH_TRY(check(r, layers, count, (pith_cspan){dst.data, dst.n, dst.dtype}, dst, &whole));
  PITH_TRY(check_size("the shards of all ranks", dst.data, dst.n, whole * (size_t)r->ranks));
  for (size_t i = 0; i < count; i++) {
    const pith_reducer_layer *l = &r->layers[layers[i] * (size_t)r->ranks];
    PITH_REQUIRE(l->reference && l->steps, PITH_ERR_STATE, "layer %s: %s", l->name,
                 l->reference ? "nothing was gathered yet" : "only specs with delta/ keep what was gathered");
  }
  PITH_TRY(restore(r, layers, count, 1));
  return r->stage_ops->give_references(r, layers, count, dst);
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Momentum in place of gradients. A layer's residual holds what is to be sent next apart from the gradient: what was
 * not sent yet, and beta times the momentum. The optimizer's step, which reads the momentum anyway, puts that part
 * there; then the momentum is sent as gradients with error feedback are, by the same code. docs/reducer.md, "Momentum".
 */
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "codec/codec.h"
#include "device/cuda_space.h"
#include "memory/memory.h"
#include "reducer/reducer.h"

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

/* The adapter rests while any of its layers has a spec that was set: the times of such steps are not those of its
 * plans. */
pith_status pith_reducer_set_spec(pith_reducer *r, size_t index, const char *spec) {
  pith_reducer_layer *l = NULL;
  const pith_codec *codec = NULL;
  const pith_adapter *adapter;
  int is_set = spec != NULL;
  PITH_TRY(pith__reducer_check_process(r));
  PITH_TRY(pith__reducer_find(r, index, &l));
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "layer %s: specs of shards cannot change", l->name);
  PITH_TRY(pith__reducer_check_owned(r, "change with its spec"));
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE,
               "layer %s: a step is under way: finish it before its spec is set", l->name);
  PITH_REQUIRE(!l->exact, PITH_ERR_STATE, "layer %s is never compressed: %s", l->name, l->exact);
  PITH_TRY(pith__reducer_adapter_ready(r));
  PITH_REQUIRE(is_set || l->adapted != SIZE_MAX, PITH_ERR_ARGUMENT,
               "layer %s: there is no adaptive spec that its spec could be left to", l->name);
  adapter = r->adaptive.adapter;
  PITH_TRY(pith__reducer_codec(r, is_set ? spec : pith_adapter_spec(adapter, l->adapted), &codec));
  PITH_TRY(pith__reducer_check_codec(r, l->name, l, codec));
  if (l->adapted != SIZE_MAX && is_set != l->is_set) {
    l->is_set = is_set;
    r->adaptive.set += is_set ? 1 : (size_t)-1;
  }
  l->match.reason = is_set ? "its spec was set" : pith_adapter_reason(adapter, l->adapted);
  if (codec->fingerprint == l->match.codec->fingerprint) {
    return PITH_OK;
  }
  PITH_TRY(pith__pending_move(l, codec, r->ranks));
  l->match.codec = codec;
  return r->checked && pith__reducer_has_groups(r) ? pith__reducer_form_groups(r) : PITH_OK;
}

pith_status pith_reducer_residual(pith_reducer *r, size_t index, float **residual) {
  pith_reducer_layer *l = NULL;
  PITH_REQUIRE(r && residual, PITH_ERR_ARGUMENT, "pith_reducer_residual: reducer and residual must not be NULL");
  PITH_TRY(pith__reducer_find(r, index, &l));
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "layer %s has a residual for each shard", l->name);
  PITH_REQUIRE(l->state->store == PITH_STORE_F32, PITH_ERR_UNSUPPORTED,
               "layer %s keeps its residual in %s (%s), so that there are no floats to point at: "
               "pith_reducer_copy_residual() gives a copy",
               l->name, pith__store_name(l->state->store), l->match.codec->spec);
  *residual = l->state->residual;
  return PITH_OK;
}

pith_status pith_reducer_copy_residual(pith_reducer *r, size_t index, float *to, void *stream) {
  pith_reducer_layer *l = NULL;
  PITH_TRY(pith__reducer_check_process(r));
  PITH_TRY(pith__reducer_find(r, index, &l));
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "layer %s has a residual for each shard", l->name);
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before residuals are copied");
  PITH_REQUIRE(l->state->residual, PITH_ERR_STATE, "layer %s keeps no residual (%s)", l->name, l->match.codec->spec);
  PITH_REQUIRE(to || !l->n, PITH_ERR_ARGUMENT, "pith_reducer_copy_residual: %zu values at NULL", l->n);
  if (!r->space) {
    pith_state_copy_residual(l->state, to);
    return PITH_OK;
  }
  pith_repack_task task = {
      .from = l->state->residual, .to = to, .n = l->n, .factor = 1.0f, .from_store = (uint8_t)l->state->store};
  return pith__cuda_space_repack((pith_cuda_space *)r->space, &task, stream);
}

/* ---- The optimizer's step ---------------------------------------------------------------------------------------- */

static int is_aligned(const void *values, size_t size) { return (uintptr_t)values % size == 0; }

static pith_status check_update(const pith_reducer *r, const pith_reducer_layer *l, const pith_update *u) {
  size_t size = pith_dtype_size(l->dtype);
  PITH_REQUIRE(l->dtype != PITH_F64, PITH_ERR_UNSUPPORTED, "layer %s: an update is of f32, f16 or bf16, not of f64",
               l->name);
  PITH_REQUIRE(l->updated != r->updates, PITH_ERR_ARGUMENT, "layer %s is updated twice in one call", l->name);
  PITH_REQUIRE((u->gradient || u->take == 0) && (u->moment || u->keep == 0), PITH_ERR_ARGUMENT,
               "layer %s: there is a factor on a %s that is NULL", l->name, u->moment ? "gradient" : "moment");
  PITH_REQUIRE(u->parameter || !u->start, PITH_ERR_ARGUMENT, "layer %s: there is a start without a parameter", l->name);
  PITH_REQUIRE(is_aligned(u->gradient, size) && is_aligned(u->moment, size) && is_aligned(u->variance, size) &&
                   is_aligned(u->parameter, size) && is_aligned(u->start, sizeof(float)),
               PITH_ERR_ARGUMENT, "layer %s: a tensor is not aligned for its type", l->name);
  return PITH_OK;
}

/* What does not change, and what a factor of 0 leaves out, is neither read nor written. */
static pith_update_task task_of(const pith_reducer_layer *l, const pith_update *u) {
  int changes_moment = u->take != 0 || u->keep != 1;
  int changes_residual = pith_codec_moment(l->match.codec, NULL) && (u->pass != 1 || u->fold != 0);
  pith_key key = changes_residual ? pith__state_key(l->state) : (pith_key){0, 0};
  return (pith_update_task){.gradient = u->take != 0 ? u->gradient : NULL,
                            .before = u->keep != 0 ? u->moment : NULL,
                            .variance = u->variance,
                            .moment = changes_moment ? u->moment : NULL,
                            .parameter = u->parameter,
                            .start = u->start,
                            .residual = changes_residual ? l->state->residual : NULL,
                            .n = l->n,
                            .keep = u->keep,
                            .take = u->take,
                            .decay = u->decay,
                            .rate = u->rate,
                            .root = u->root,
                            .epsilon = u->epsilon,
                            .pass = u->pass,
                            .fold = u->fold,
                            .key0 = key.k0,
                            .key1 = key.k1,
                            .dtype = (uint8_t)l->dtype,
                            .store = (uint8_t)l->state->store};
}

/* The pool is the comm's, and another thread may drive that: its mutex says whose turn it is. */
static pith_status run_tasks(pith_reducer *r, const pith_update_task *tasks, size_t count, void *stream) {
  pith_thread_pool *pool = r->comm ? r->comm->threads : NULL;
  if (r->space) {
    return pith__cuda_space_update((pith_cuda_space *)r->space, tasks, count, stream);
  }
  if (pool) {
    pith__comm_lock(r->comm);
  }
  pith__update(pool, tasks, count);
  if (pool) {
    pthread_mutex_unlock(&r->comm->mutex);
  }
  return PITH_OK;
}

pith_status pith_reducer_update(pith_reducer *r, const pith_update *updates, size_t count, void *stream) {
  PITH_TRY(pith__reducer_check_process(r));
  PITH_REQUIRE(updates || !count, PITH_ERR_ARGUMENT, "pith_reducer_update: updates must not be NULL");
  PITH_REQUIRE(!r->options.sharded, PITH_ERR_STATE, "an update is of whole layers, and the reducer is for shards");
  PITH_REQUIRE(pith__reducer_is_idle(r), PITH_ERR_STATE, "a step is under way: finish it before the update");
  PITH_FREED pith_update_task *tasks = malloc((count + 1) * sizeof *tasks);
  PITH_REQUIRE(tasks, PITH_ERR_MEMORY, "no memory for an update of %zu layers", count);
  r->updates++;
  for (size_t i = 0; i < count; i++) {
    pith_update u = PITH_UPDATE_INIT;
    pith_reducer_layer *l = NULL;
    PITH_TRY(PITH_STRUCT_READ_AT(pith_update, updates, i, &u));
    PITH_TRY(pith__reducer_find(r, u.index, &l));
    PITH_TRY(check_update(r, l, &u));
    l->updated = r->updates;
    tasks[i] = task_of(l, &u);
  }
  PITH_TRY(run_tasks(r, tasks, count, stream));
  for (size_t i = 0; i < r->count; i++) {
    r->layers[i].is_folded |= r->layers[i].updated == r->updates;
  }
  return PITH_OK;
}

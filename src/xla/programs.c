/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reducers that foreign calls use, by key, and steps of a reducer whose gradients and states are buffers of such calls.
 * A step is one call, or several that start layers and one that finishes. One step at a time uses a comm: a program
 * orders its steps by the token, so a second one at the same time means that ranks may make them in different orders.
 */
#include "xla/programs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "reducer/reducer.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;
static pith_xla_program *programs;

static pith_xla_program **find(uint64_t key) {
  pith_xla_program **at = &programs;
  while (*at && (*at)->key != key) {
    at = &(*at)->next;
  }
  return at;
}

/* The other ranks wait for this one, which takes part no more; on a device they may wait for its carrier. */
static void tell_ranks(const pith_xla_program *p) {
  pith_kept_error error;
  pith__error_keep(&error);
  pith_comm_abort(p->comm, error.text);
  if (p->cuda && p->reducer->carrier.abort) {
    p->reducer->carrier.abort(p->reducer->carrier.self, error.text);
  }
  pith__error_restore(&error);
}

static void release(pith_xla_program *p) {
  if (p) {
    free(p->bytes);
    free(p->arrays);
    free(p->place);
    free(p->order);
    free(p->sites);
    pith__xla_cuda_destroy(p->cuda);
    free(p);
  }
}

/* Numbers the buffers of a step: the token, gradients, then what layers keep. */
static pith_status describe(pith_xla_program *p) {
  size_t most = 1 + (1 + PITH_STATE_ARRAYS) * pith_reducer_layers(p->reducer), sizes[PITH_STATE_ARRAYS] = {0};
  p->layers = pith_reducer_layers(p->reducer);
  p->bytes = calloc(most, sizeof *p->bytes);
  p->place = calloc(most, sizeof *p->place);
  p->arrays = calloc(most, sizeof *p->arrays);
  p->order = calloc(most, sizeof *p->order);
  PITH_REQUIRE(p->bytes && p->place && p->arrays && p->order, PITH_ERR_MEMORY, "no memory for a program of XLA");
  p->bytes[0] = sizeof(pith_xla_token);
  p->buffers = 1 + p->layers;
  for (size_t i = 0; i < p->layers; i++) {
    pith_layer_stats stats = PITH_LAYER_STATS_INIT;
    PITH_TRY(pith_reducer_layer_stats(p->reducer, i, &stats));
    p->bytes[1 + i] = stats.bytes;
    if (p->reducer->options.lent) { /* else it keeps them by itself */
      PITH_TRY(pith_reducer_array_sizes(p->reducer, i, sizes));
    }
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      p->bytes[p->buffers] = sizes[a];
      p->arrays[PITH_STATE_ARRAYS * i + a] = sizes[a] ? p->buffers++ : 0;
    }
  }
  if (p->reducer->stages) { /* over a comm, messages say which layer they are of */
    p->reducer->is_ordered = p->reducer->options.in_order = 1;
  }
  return PITH_OK;
}

pith_status pith_xla_bind(uint64_t key, pith_comm *comm, pith_reducer *reducer) {
  PITH_REQUIRE(comm && reducer, PITH_ERR_ARGUMENT, "pith_xla_bind: comm and reducer must not be NULL");
  pith_xla_program *p = calloc(1, sizeof *p);
  PITH_REQUIRE(p, PITH_ERR_MEMORY, "no memory for a program of XLA");
  p->key = key, p->comm = comm, p->reducer = reducer, p->ordinal = -1;
  pith_status status = describe(p);
  if (status == PITH_OK && reducer->options.cuda) {
    status = pith__xla_cuda_create(reducer, &p->cuda);
  }
  pthread_mutex_lock(&mutex);
  if (status == PITH_OK && *find(key)) {
    status = pith_fail(PITH_ERR_ARGUMENT, "pith_xla_bind: key %016llx is in use", (unsigned long long)key);
  }
  if (status == PITH_OK) {
    p->next = programs;
    programs = p;
    p = NULL;
  }
  pthread_mutex_unlock(&mutex);
  release(p);
  return status;
}

void pith_xla_unbind(uint64_t key) {
  pthread_mutex_lock(&mutex);
  while (*find(key) && (*find(key))->in_call) {
    pthread_cond_wait(&left, &mutex);
  }
  pith_xla_program **at = find(key), *found = *at;
  if (found) {
    *at = found->next;
  }
  pthread_mutex_unlock(&mutex);
  release(found);
}

/* Several devices of a process would each be a rank, and there is one rank for each process. */
static pith_status check_device(const pith_xla_program *p, const pith_xla_call *call) {
  PITH_REQUIRE(!p->cuda == !call->cuda, PITH_ERR_UNSUPPORTED,
               "the allreduce was traced for a %s and runs on a %s: choose the device before, by jax_default_device or "
               "JAX_PLATFORMS",
               p->cuda ? "GPU" : "CPU", call->cuda ? "GPU" : "CPU");
  PITH_REQUIRE(!call->cuda || call->ordinal == pith__xla_cuda_device(p->cuda), PITH_ERR_UNSUPPORTED,
               "the allreduce was traced for device %d and runs on device %d: a rank is a process with one device",
               pith__xla_cuda_device(p->cuda), call->ordinal);
  PITH_REQUIRE(p->ordinal < 0 || p->ordinal == call->ordinal, PITH_ERR_UNSUPPORTED,
               "devices %d and %d of one process call the same allreduce: a rank is a process with one device; start a "
               "process for each device, or keep the arrays of the step on one",
               p->ordinal, call->ordinal);
  return PITH_OK;
}

static int begins_step(const pith_xla_call *call) { return call->part == PITH_XLA_WHOLE || call->part == 0; }

static pith_status check_turn(const pith_xla_program *p, const pith_xla_call *call) {
  int is_busy = 0;
  for (const pith_xla_program *other = programs; other; other = other->next) {
    is_busy |= other->is_busy && other->comm == p->comm;
  }
  PITH_REQUIRE(!p->in_call && (!is_busy || !begins_step(call)), PITH_ERR_STATE,
               "two allreduces of one comm are under way at once, and ranks might make them in different orders: give "
               "the later one the state that the earlier one returned, as its state or as after=");
  PITH_REQUIRE(begins_step(call) || (p->is_busy && p->parts && (call->part < 0 || (size_t)call->part == p->parts)),
               PITH_ERR_STATE, "part %lld of an allreduce comes after %zu others", (long long)call->part, p->parts);
  return PITH_OK;
}

static pith_status check_entry(const pith_xla_program *p, const pith_xla_call *call) {
  PITH_REQUIRE(p, PITH_ERR_STATE,
               "there is no reducer for this program (key %016llx): its comm was closed, or it was traced in another "
               "process; trace it again (jax.clear_caches())",
               (unsigned long long)call->key);
  PITH_TRY(check_device(p, call));
  return check_turn(p, call);
}

/* What has started uses buffers of XLA, which go when the call has failed: waits until it has ended. */
static void end_layers(pith_xla_program *p) {
  pith_kept_error error;
  pith__error_keep(&error);
  if (!pith__reducer_is_idle(p->reducer)) {
    pith_reducer_finish(p->reducer);
  }
  pith__error_restore(&error);
}

pith_status pith__xla_enter(const pith_xla_call *call, pith_xla_program **program) {
  pthread_mutex_lock(&mutex);
  pith_xla_program *p = *find(call->key);
  pith_status status = check_entry(p, call);
  if (status == PITH_OK) {
    p->is_busy = p->in_call = 1;
    p->ordinal = call->ordinal;
    p->parts = begins_step(call) ? 0 : p->parts;
    *program = p;
  } else if (p) {
    tell_ranks(p);
    if (p->is_busy && !p->in_call) {
      end_layers(p);
      p->is_busy = 0;
    }
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

void pith__xla_leave(pith_xla_program *p, const pith_xla_call *call, pith_status status) {
  if (status != PITH_OK) {
    tell_ranks(p);
    end_layers(p);
  }
  pthread_mutex_lock(&mutex);
  if (status != PITH_OK && p->failed == PITH_OK) {
    p->failed = status;
    pith__error_keep(&p->error);
  }
  p->is_busy = status == PITH_OK && call->part >= 0;
  p->in_call = 0;
  pthread_cond_broadcast(&left);
  pthread_mutex_unlock(&mutex);
}

pith_status pith_xla_check(const pith_comm *comm) {
  pith_status status = PITH_OK;
  pthread_mutex_lock(&mutex);
  for (const pith_xla_program *p = programs; p && status == PITH_OK; p = p->next) {
    if (p->comm == comm && p->failed != PITH_OK) {
      status = p->failed;
      pith__error_restore(&p->error);
    }
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

/* ---- A step ------------------------------------------------------------------------------------------------------ */

/* Which buffers of a step the operands of a call are: the token, gradients of its layers, and what they keep. */
static pith_status number_operands(const pith_xla_program *p, const pith_xla_call *call, size_t *number,
                                   size_t *count) {
  const int64_t *layers = call->layers.data;
  size_t called = call->part < 0 ? p->layers : call->layers.size;
  PITH_REQUIRE(called <= p->layers, PITH_ERR_ARGUMENT, "the foreign call starts %zu layers, and there are %zu", called,
               p->layers);
  number[0] = 0;
  *count = 1 + called;
  for (size_t k = 0; k < called; k++) {
    size_t layer = call->part < 0 ? k : (size_t)layers[k];
    PITH_REQUIRE(layer < p->layers, PITH_ERR_ARGUMENT, "the foreign call starts layer %zu, and there are %zu", layer,
                 p->layers);
    number[1 + k] = 1 + layer;
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      size_t array = p->arrays[PITH_STATE_ARRAYS * layer + a];
      if (array) {
        number[(*count)++] = array;
      }
    }
  }
  return PITH_OK;
}

static pith_status check_operands(const pith_xla_program *p, const size_t *number, size_t wanted,
                                  const pith_xla_operand *operands, size_t count) {
  PITH_REQUIRE(count == wanted, PITH_ERR_ARGUMENT,
               "the foreign call has %zu operands, and its reducer takes %zu: the program was traced for another tree "
               "or spec",
               count, wanted);
  for (size_t i = 0; i < count; i++) {
    PITH_REQUIRE(operands[i].bytes == p->bytes[number[i]], PITH_ERR_ARGUMENT,
                 "operand %zu of the foreign call has %zu bytes, and its layer %zu: the program was traced for another "
                 "tree or spec",
                 i, operands[i].bytes, p->bytes[number[i]]);
  }
  return PITH_OK;
}

static pith_status check_token(const pith_xla_program *p, const pith_xla_token *token) {
  uint32_t rank = (uint32_t)pith_comm_rank(p->comm), ranks = (uint32_t)pith_comm_size(p->comm);
  PITH_REQUIRE(token->ranks == ranks, PITH_ERR_STATE,
               "the state is of rank %u of %u, and this is rank %u of %u: with another number of ranks, start from "
               "pith.jax.init()",
               token->rank, token->ranks, rank, ranks);
  PITH_REQUIRE(token->rank == rank, PITH_ERR_STATE,
               "the state is of rank %u of %u, and this is rank %u: residuals differ from rank to rank, so each rank "
               "goes on with its own",
               token->rank, token->ranks, rank);
  return PITH_OK;
}

/* A reducer with states of its own, as with an adaptive spec, is at one step only. */
static pith_status set_step(const pith_xla_program *p, const pith_xla_token *token) {
  uint64_t step = token->step[0] | (uint64_t)token->step[1] << 32;
  if (p->reducer->options.lent) {
    return pith_reducer_set_step(p->reducer, step);
  }
  PITH_REQUIRE(
      step == p->reducer->step, PITH_ERR_STATE,
      "the state is of step %llu, and the reducer of its adaptive spec, which keeps residuals and plans, is at "
      "step %llu: go on with the newest state, or load what pith.jax.save() gave with it",
      (unsigned long long)step, (unsigned long long)p->reducer->step);
  return PITH_OK;
}

/* Results that have buffers of their own get the values of their arguments. */
static pith_status copy_operands(const pith_xla_program *p, const pith_xla_operand *operands, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (operands[i].to != operands[i].from && operands[i].bytes && p->cuda) {
      PITH_TRY(pith__xla_cuda_copy(p->cuda, operands[i].to, operands[i].from, operands[i].bytes));
    } else if (operands[i].to != operands[i].from && operands[i].bytes) {
      memcpy(operands[i].to, operands[i].from, operands[i].bytes);
    }
  }
  return PITH_OK;
}

/* All layers, in the order in which they start. */
static pith_status take_order(pith_xla_program *p, const pith_xla_call *call) {
  const int64_t *order = call->order.data;
  PITH_REQUIRE(call->part < 0 || call->order.size == p->layers, PITH_ERR_ARGUMENT,
               "the order is of %zu layers, and there are %zu", call->order.size, p->layers);
  for (size_t k = 0; k < p->layers; k++) {
    int64_t layer = call->part < 0 ? (int64_t)k : order[k];
    PITH_REQUIRE(layer >= 0 && (size_t)layer < p->layers, PITH_ERR_ARGUMENT,
                 "the order has layer %lld, and there are %zu", (long long)layer, p->layers);
    p->order[k] = (uint32_t)layer;
  }
  return PITH_OK;
}

static pith_status find_site(pith_xla_program *p, int64_t number) {
  size_t i = 0;
  while (i < p->site_count && p->sites[i].number != number) {
    i++;
  }
  if (i == p->site_count) {
    PITH_TRY(pith__reducer_grow((void **)&p->sites, &p->site_room, p->site_count, sizeof *p->sites));
    p->sites[p->site_count++] = (pith_xla_site){.number = number};
  }
  p->site = &p->sites[i];
  return PITH_OK;
}

/* The token comes to the host, and says which step it is. */
static pith_status begin_step(pith_xla_program *p, const pith_xla_call *call, const void *token) {
  if (p->cuda) {
    PITH_TRY(pith__xla_cuda_fetch(p->cuda, &p->token, token, sizeof p->token));
  } else {
    memcpy(&p->token, token, sizeof p->token);
  }
  PITH_TRY(check_token(p, &p->token));
  PITH_TRY(set_step(p, &p->token));
  memset(p->place, 0, p->buffers * sizeof *p->place);
  PITH_TRY(take_order(p, call));
  PITH_TRY(call->part == 0 ? find_site(p, call->site) : PITH_OK);
  if (p->reducer->is_ordered && !p->reducer->checked && call->part == 0) {
    PITH_TRY(pith__reducer_set_order(p->reducer, p->order));
  }
  return pith_reducer_check(p->reducer); /* the first start does that too, and a tree may be empty */
}

static pith_status start_layer(const pith_xla_program *p, size_t layer) {
  void *lent[PITH_STATE_ARRAYS] = {NULL};
  for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
    size_t array = p->arrays[PITH_STATE_ARRAYS * layer + a];
    lent[a] = array ? p->place[array] : NULL;
  }
  PITH_TRY(p->reducer->options.lent ? pith_reducer_lend(p->reducer, layer, lent) : PITH_OK);
  return pith_reducer_start(p->reducer, layer, p->place[1 + layer]);
}

/* Layers that come in a part start if their buffers stay where they are; else they wait for the others. */
static pith_status take_part(pith_xla_program *p, const pith_xla_call *call, const size_t *number,
                             const pith_xla_operand *operands, size_t count) {
  PITH_TRY(copy_operands(p, operands, count));
  PITH_TRY(begins_step(call) ? begin_step(p, call, operands[0].from) : PITH_OK);
  PITH_TRY(p->cuda ? pith__xla_cuda_follow(p->cuda) : PITH_OK);
  for (size_t i = 0; i < count; i++) {
    p->place[number[i]] = operands[i].to;
  }
  p->parts++;
  for (size_t i = 1; i < count && number[i] <= p->layers && p->site->habit == PITH_XLA_STAYS; i++) {
    PITH_TRY(start_layer(p, number[i] - 1));
  }
  return PITH_OK;
}

static pith_status take_whole(pith_xla_program *p, const pith_xla_operand *operands, size_t count) {
  PITH_TRY(copy_operands(p, operands, count));
  PITH_TRY(p->cuda ? pith__xla_cuda_follow(p->cuda) : PITH_OK);
  for (size_t i = 0; i < count; i++) {
    p->place[i] = operands[i].to;
  }
  for (size_t k = 0; k < p->layers; k++) {
    PITH_TRY(start_layer(p, p->order[k]));
  }
  return PITH_OK;
}

/* How many buffers are elsewhere than where the parts have left them; the token may be. */
static pith_status count_moved(const pith_xla_program *p, const pith_xla_operand *operands, size_t *moved) {
  *moved = 0;
  for (size_t i = 1; i < p->buffers; i++) {
    PITH_REQUIRE(p->place[i] || !p->bytes[i], PITH_ERR_STATE, "an allreduce ends, and buffer %zu has not come", i);
    *moved += p->place[i] != operands[i].from && p->bytes[i];
  }
  return PITH_OK;
}

/* What has started must not have been moved: the values of a copy would be those of some moment. */
static pith_status end_parts(pith_xla_program *p, const pith_xla_operand *operands, size_t count) {
  size_t moved = 0;
  PITH_TRY(count_moved(p, operands, &moved));
  if (p->site->habit == PITH_XLA_STAYS) {
    PITH_REQUIRE(!moved, PITH_ERR_STATE,
                 "XLA moved %zu of %zu buffers of an allreduce that was under way: set PITH_JAX_PART_BYTES=0 and "
                 "report this",
                 moved, p->buffers - 1);
    return PITH_OK;
  }
  if (p->site->habit == PITH_XLA_UNKNOWN) {
    p->site->habit = moved ? PITH_XLA_MOVES : PITH_XLA_STAYS;
    PITH_LOG_INFO("xla: this program's layers %s (XLA moves %zu of %zu buffers)",
                  moved ? "start when all gradients are ready" : "start as their gradients are ready", moved,
                  p->buffers - 1);
  }
  return take_whole(p, operands, count);
}

/* The step is over: means, what layers keep, and the next token. */
static pith_status finish_step(const pith_xla_program *p, void *token) {
  pith_xla_token next = p->token;
  PITH_TRY(pith_reducer_finish(p->reducer));
  next.step[1] += ++next.step[0] == 0;
  if (p->cuda) {
    return pith__xla_cuda_end(p->cuda, token, &next, sizeof next);
  }
  memcpy(token, &next, sizeof next);
  return PITH_OK;
}

pith_status pith__xla_step(pith_xla_program *p, const pith_xla_call *call, const pith_xla_operand *operands,
                           size_t count) {
  size_t wanted = 0;
  if (p->cuda && p->failed != PITH_OK) { /* the comm may not know it */
    pith__error_restore(&p->error);
    return p->failed;
  }
  PITH_FREED size_t *number = calloc(1 + (1 + PITH_STATE_ARRAYS) * p->layers, sizeof *number);
  PITH_REQUIRE(number, PITH_ERR_MEMORY, "no memory for a foreign call");
  PITH_TRY(number_operands(p, call, number, &wanted));
  PITH_TRY(check_operands(p, number, wanted, operands, count));
  PITH_TRY(p->cuda ? pith__xla_cuda_begin(p->cuda, call->stream) : PITH_OK);
  if (call->part >= 0) {
    return take_part(p, call, number, operands, count);
  }
  if (call->part == PITH_XLA_WHOLE) {
    PITH_TRY(begin_step(p, call, operands[0].from));
    PITH_TRY(take_whole(p, operands, count));
    return finish_step(p, operands[0].to);
  }
  int is_under_way = p->site->habit == PITH_XLA_STAYS;
  PITH_TRY(end_parts(p, operands, count));
  PITH_TRY(finish_step(p, operands[0].to));
  return is_under_way ? copy_operands(p, operands + 1, count - 1) : PITH_OK;
}

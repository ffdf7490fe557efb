/*
 * Reducers that foreign calls use, by key, and one step of a reducer whose gradients and states are buffers of such a
 * call. One call at a time uses a reducer: a program orders its steps by the token, so a second one at the same time
 * means that ranks may make them in different orders.
 */
#include "xla/programs.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

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
    pith__xla_cuda_destroy(p->cuda);
    free(p);
  }
}

/* What the operands of a call must be. */
static pith_status describe(pith_xla_program *p) {
  p->layers = pith_reducer_layers(p->reducer);
  p->bytes = calloc(p->layers + 1, sizeof *p->bytes);
  p->arrays = calloc(p->layers + 1, PITH_STATE_ARRAYS * sizeof *p->arrays);
  PITH_REQUIRE(p->bytes && p->arrays, PITH_ERR_MEMORY, "no memory for a program of XLA");
  p->buffers = 1 + p->layers;
  for (size_t i = 0; i < p->layers; i++) {
    pith_layer_stats stats = PITH_LAYER_STATS_INIT;
    PITH_TRY(pith_reducer_layer_stats(p->reducer, i, &stats));
    p->bytes[i] = stats.bytes;
    if (p->reducer->options.lent) { /* else it keeps them by itself */
      PITH_TRY(pith_reducer_array_sizes(p->reducer, i, &p->arrays[PITH_STATE_ARRAYS * i]));
    }
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      p->buffers += p->arrays[PITH_STATE_ARRAYS * i + a] > 0;
    }
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
  while (*find(key) && (*find(key))->is_busy) {
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
static pith_status check_entry(const pith_xla_program *p, uint64_t key, int cuda, int ordinal) {
  int is_busy = 0;
  for (const pith_xla_program *other = programs; other && p; other = other->next) {
    is_busy |= other->is_busy && other->comm == p->comm;
  }
  PITH_REQUIRE(p, PITH_ERR_STATE,
               "there is no reducer for this program (key %016llx): its comm was closed, or it was traced in another "
               "process; trace it again (jax.clear_caches())",
               (unsigned long long)key);
  PITH_REQUIRE(!p->cuda == !cuda, PITH_ERR_UNSUPPORTED,
               "the allreduce was traced for a %s and runs on a %s: choose the device before, by jax_default_device or "
               "JAX_PLATFORMS",
               p->cuda ? "GPU" : "CPU", cuda ? "GPU" : "CPU");
  PITH_REQUIRE(!cuda || ordinal == pith__xla_cuda_device(p->cuda), PITH_ERR_UNSUPPORTED,
               "the allreduce was traced for device %d and runs on device %d: a rank is a process with one device",
               pith__xla_cuda_device(p->cuda), ordinal);
  PITH_REQUIRE(p->ordinal < 0 || p->ordinal == ordinal, PITH_ERR_UNSUPPORTED,
               "devices %d and %d of one process call the same allreduce: a rank is a process with one device; start a "
               "process for each device, or keep the arrays of the step on one",
               p->ordinal, ordinal);
  PITH_REQUIRE(!is_busy, PITH_ERR_STATE,
               "two allreduces of one comm are under way at once, and ranks might make them in different orders: give "
               "the later one the state that the earlier one returned, as its state or as after=");
  return PITH_OK;
}

pith_status pith__xla_enter(uint64_t key, int cuda, int ordinal, pith_xla_program **program) {
  pthread_mutex_lock(&mutex);
  pith_xla_program *p = *find(key);
  pith_status status = check_entry(p, key, cuda, ordinal);
  if (status == PITH_OK) {
    p->is_busy = 1;
    p->ordinal = ordinal;
    *program = p;
  } else if (p) {
    tell_ranks(p);
  }
  pthread_mutex_unlock(&mutex);
  return status;
}

void pith__xla_leave(pith_xla_program *p, pith_status status) {
  if (status != PITH_OK) {
    tell_ranks(p);
  }
  pthread_mutex_lock(&mutex);
  if (status != PITH_OK && p->failed == PITH_OK) {
    p->failed = status;
    pith__error_keep(&p->error);
  }
  p->is_busy = 0;
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

static pith_status check_size(const pith_xla_operand *operand, size_t index, size_t bytes) {
  PITH_REQUIRE(operand->bytes == bytes, PITH_ERR_ARGUMENT,
               "operand %zu of the foreign call has %zu bytes, and its layer %zu: the program was traced for another "
               "tree or spec",
               index, operand->bytes, bytes);
  return PITH_OK;
}

static pith_status check_operands(const pith_xla_program *p, const pith_xla_operand *operands, size_t count) {
  PITH_REQUIRE(count == p->buffers, PITH_ERR_ARGUMENT,
               "the foreign call has %zu operands, and its reducer takes %zu: the program was traced for another tree "
               "or spec",
               count, p->buffers);
  size_t at = 0;
  PITH_TRY(check_size(&operands[at], at, sizeof(pith_xla_token)));
  for (size_t i = 0; i < p->layers; i++) {
    at++;
    PITH_TRY(check_size(&operands[at], at, p->bytes[i]));
  }
  for (size_t a = 0; a < PITH_STATE_ARRAYS * p->layers; a++) {
    if (p->arrays[a]) {
      at++;
      PITH_TRY(check_size(&operands[at], at, p->arrays[a]));
    }
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
static pith_status begin_step(const pith_xla_program *p, const pith_xla_token *token) {
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

/* Results that have buffers of their own get the values of their arguments, and the token comes to the host. */
static pith_status take_operands(const pith_xla_program *p, const pith_xla_operand *operands, size_t count,
                                 void *stream, pith_xla_token *token) {
  if (p->cuda) {
    PITH_TRY(pith__xla_cuda_begin(p->cuda, stream));
  }
  for (size_t i = 0; i < count; i++) {
    if (operands[i].to != operands[i].from && operands[i].bytes && p->cuda) {
      PITH_TRY(pith__xla_cuda_copy(p->cuda, operands[i].to, operands[i].from, operands[i].bytes));
    } else if (operands[i].to != operands[i].from && operands[i].bytes) {
      memcpy(operands[i].to, operands[i].from, operands[i].bytes);
    }
  }
  if (p->cuda) {
    return pith__xla_cuda_fetch(p->cuda, token, operands[0].from, sizeof *token);
  }
  memcpy(token, operands[0].from, sizeof *token);
  return PITH_OK;
}

/* The step is over: the next token. */
static pith_status give_token(const pith_xla_program *p, pith_xla_token token, void *to) {
  token.step[1] += ++token.step[0] == 0;
  if (p->cuda) {
    return pith__xla_cuda_end(p->cuda, to, &token, sizeof token);
  }
  memcpy(to, &token, sizeof token);
  return PITH_OK;
}

static pith_status start_layers(const pith_xla_program *p, const pith_xla_operand *operands) {
  const pith_xla_operand *array = operands + 1 + p->layers;
  PITH_TRY(pith_reducer_check(p->reducer)); /* the first start does that too, and a tree may be empty */
  for (size_t i = 0; i < p->layers; i++) {
    void *lent[PITH_STATE_ARRAYS] = {NULL};
    for (size_t a = 0; a < PITH_STATE_ARRAYS; a++) {
      lent[a] = p->arrays[PITH_STATE_ARRAYS * i + a] ? array++->to : NULL;
    }
    PITH_TRY(p->reducer->options.lent ? pith_reducer_lend(p->reducer, i, lent) : PITH_OK);
    PITH_TRY(pith_reducer_start(p->reducer, i, operands[1 + i].to));
  }
  return PITH_OK;
}

pith_status pith__xla_step(pith_xla_program *p, const pith_xla_operand *operands, size_t count, void *stream) {
  pith_xla_token token;
  if (p->cuda && p->failed != PITH_OK) { /* the comm may not know it */
    pith__error_restore(&p->error);
    return p->failed;
  }
  PITH_TRY(check_operands(p, operands, count));
  PITH_TRY(take_operands(p, operands, count, stream, &token));
  PITH_TRY(check_token(p, &token));
  PITH_TRY(begin_step(p, &token));
  pith_status status = start_layers(p, operands);
  if (status != PITH_OK) { /* what has started uses the buffers of the call: wait until it has ended */
    pith_kept_error error;
    tell_ranks(p);
    pith__error_keep(&error);
    pith_reducer_finish(p->reducer);
    pith__error_restore(&error);
    return status;
  }
  PITH_TRY(pith_reducer_finish(p->reducer));
  return give_token(p, token, operands[0].to);
}

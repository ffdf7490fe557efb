/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memories: what a rank keeps of a layer between steps, and how it compensates the next gradient.
 *
 * A memory is a few lines in src/codec/memories.c: how the gradient and what was kept make the values to send
 * ("compensate"),
 * and what stays of those once they are sent. memory.c runs this around the chain: tile by tile for block codecs, so
 * that gradient, residual and payload are each touched once; over the whole layer for the others.
 */
#ifndef PITH_MEMORY_MEMORY_H
#define PITH_MEMORY_MEMORY_H

#include "base/thread_pool.h"
#include "codec/codec.h"
#include "memory/space.h"
#include "memory/store.h"

struct pith_state {
  pith_space *space; /* of all values; NULL: main memory */
  size_t n;
  uint64_t rows;
  unsigned keeps;
  pith_store store;              /* of residual and result */
  uint64_t changes;              /* how often a residual in fewer bits than 32 has changed between steps: what is drawn
                                    then follows from it, … */
  int draws_as;                  /* … and from this rank */
  void *residual;                /* n values, or NULL */
  float *momentum;               /* likewise */
  void *result;                  /* what the results that this rank encoded lost; NULL until the first of them */
  size_t result_first, result_n; /* of these values of the layer … */
  size_t result_base;            /* … and `result` begins with this one: 0 in main memory */
  void *part;                    /* the codec's own */
  size_t part_size;
  const pith_nested *nested; /* where the first bytes of the part are columns of low rank; else NULL */
  size_t columns;            /* so many bytes of them */
  size_t round;              /* how many rounds of the current step are complete */
  int produced;              /* the next one has been produced */
  uint16_t rank, ranks;      /* of the comm that last used it; ranks is 0 before the first operation */
  int loaded;                /* from a checkpoint, and no operation has used it since */
  int lent;                  /* the arrays are the caller's, and there only during a step */
};

/* Scratch of encoding with or without memory. */
typedef struct pith_encode_scratch {
  void *chain;
  float *gradient, *sent, *decoded; /* a tile each; NULL without a memory */
  float *wide; /* of a residual in fewer bits than 32: a tile, or all of it for codecs that need the whole; else NULL */
} pith_encode_scratch;

void pith__memory_take_scratch(const pith_codec *codec, size_t n, pith_arena *arena, pith_encode_scratch *scratch);

/* Encodes src behind the memory (or without one) and updates the state. Arguments have been checked. */
pith_status pith__memory_encode(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                const pith_encode_scratch *scratch, const pith_ctx *ctx);

/* Whether the owner of a part sums its own values as they are. A vote counts signs: there, its own are encoded like
 * those of the others. */
static inline int pith__own_is_exact(const pith_codec *codec) { return !(codec->caps & PITH_CAP_VOTE); }

/* sum = or += src (values at ctx->offset) behind the memory, as the owner of a part adds its own values: not encoded,
 * so that nothing of them is lost and no residual stays. For block codecs. */
pith_status pith__memory_sum_own(const pith_codec *codec, pith_state *state, pith_cspan src, float *sum,
                                 pith_apply apply, const pith_ctx *ctx);

/* Whether results that this rank encodes for all have a memory of their own in a state. */
int pith__memory_keeps_results(const pith_codec *codec, const pith_state *state);

/* Encodes a result, f32 values at ctx->offset: what earlier ones lost there is added, and what this one loses kept. The
 * first result of a state makes room for that. */
pith_status pith__memory_encode_result(const pith_codec *codec, pith_state *state, pith_cspan values, pith_out *out,
                                       const pith_encode_scratch *scratch, const pith_ctx *ctx);

/* ---- By several threads: slices of a layer for each of them, with the bytes and sums that one thread would make -- */

typedef pith_status (*pith_encode_fn)(const pith_codec *codec, pith_state *state, pith_cspan src, pith_out *out,
                                      const pith_encode_scratch *scratch, const pith_ctx *ctx);

/* Each thread has a scratch of its own, `scratch[0]` is the caller's. pool: NULL for the caller alone. */
pith_status pith__encode_in_threads(pith_thread_pool *pool, pith_encode_fn encode, const pith_codec *codec,
                                    pith_state *state, pith_cspan src, pith_out *out,
                                    const pith_encode_scratch *scratch, const pith_ctx *ctx);
pith_status pith__decode_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_bytes in, pith_span dst,
                                    pith_apply apply, const pith_encode_scratch *scratch, const pith_ctx *ctx);
/* pith__memory_sum_own(). */
pith_status pith__sum_own_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_state *state, pith_cspan src,
                                     float *sum, pith_apply apply, const pith_ctx *ctx);

/* ---- States ------------------------------------------------------------------------------------------------------ */

/* PITH_ERR_STATE unless the rank that saved a checkpoint is the one that loads it. `what` names the checkpoint in the
 * message. */
pith_status pith__check_owner(const char *what, uint32_t saved_rank, uint32_t saved_ranks, uint32_t rank,
                              uint32_t ranks);

/* A rank of a comm is about to use the state. Refused if the state was loaded from a checkpoint of another rank. */
pith_status pith__state_claim(pith_state *state, int rank, int ranks);

/* Room for what results lose at [first, first + n). */
pith_status pith__state_own_results(pith_state *state, size_t first, size_t n);

/* Values of a layer, from one on. */
typedef struct pith_extent {
  size_t first, n;
} pith_extent;

/* The same in two halves for methods of several rounds, a range of the layer at a time. `buffer` holds
 * PITH_MEMORY_TILE values. What gradients are multiplied by, from all of them … */
float pith__memory_factor(const pith_codec *codec, pith_cspan src, float *buffer, const pith_ctx *ctx);
/* … then a range of gradients is compensated by what was kept; gives the bits of the largest |value| … */
pith_status pith__memory_compensate(const pith_codec *codec, pith_state *state, pith_cspan src, pith_extent part,
                                    float factor, float *buffer, uint32_t *most);
/* … what to send, as f32: src itself without a memory … */
pith_cspan pith__memory_accumulated(const pith_codec *codec, const pith_state *state, pith_cspan src);
/* … and what stays of a range, once it is known what was decoded. */
void pith__memory_settle(const pith_codec *codec, pith_state *state, pith_cspan decoded, pith_extent part,
                         float *buffer, const pith_ctx *ctx);

/* Adds one of `steps` equal parts of a pending residual to a gradient, and takes it from what is pending. */
void pith__residual_release(float *pending, size_t steps, pith_span gradient);

/* An optimizer's step on layers in main memory (update.c). The pool's threads take part; NULL: there are none. */
void pith__update(pith_thread_pool *pool, const pith_update_task *tasks, size_t count);

/* Values [first, first + n) of a task. */
pith_update_task pith__update_piece(const pith_update_task *task, size_t first, size_t n);

/* What is drawn when the residual changes between two steps. Each call is for another change. */
pith_key pith__state_key(pith_state *state);

/* Adds n f32 values, where those of the state are, to the residual. */
pith_status pith__state_add_residual(pith_state *state, const float *x);

/* Adds to n f32 values what the state has pending: its residual, and `results` times what results lost. */
pith_status pith__state_take_residual(const pith_state *state, float results, float *to);

/* A state whose values are in a space, and that changes between steps with the random numbers of a rank. */
pith_status pith__state_create_in(pith_space *space, const pith_codec *codec, size_t n, size_t rows, int rank,
                                  pith_state **state);

/* A state without arrays: the caller lends them for each step. Bytes of each (pith_state_array); 0: there is none. */
pith_status pith__state_create_lent(pith_space *space, const pith_codec *codec, size_t n, size_t rows, int rank,
                                    pith_state **state);
void pith__state_array_sizes(const pith_codec *codec, const pith_state *state, size_t bytes[PITH_STATE_ARRAYS]);
/* NULL: takes all of them back. */
void pith__state_lend(pith_state *state, void *const arrays[PITH_STATE_ARRAYS]);

/* Checks that a state was made for this codec (and for n values from ctx->offset). */
pith_status pith__state_fits(const pith_codec *codec, const pith_state *state, size_t n, const pith_ctx *ctx);

#define PITH_MEMORY_TILE                                                                         \
  1024 /* values: tiles of gradient, residual, sent and decoded values fit the first-level cache \
        */

#endif

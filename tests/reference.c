/* SPDX-License-Identifier: Apache-2.0 */
/* The reference: each algorithm as docs/algorithms.md tells it, without schedules, messages or chunks. */
#include "reference.h"

#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "collective/job.h"
#include "memory/memory.h"
#include "test.h"

static pith_ctx ctx_at(const reference *r, const pith_ctx *ctx, int rank, size_t first) {
  pith_ctx here = *ctx;
  here.rank = (uint32_t)rank;
  here.ranks = (uint32_t)r->ranks;
  here.offset = first;
  return here;
}

/* x[first, first + n) becomes what its payload decodes to. */
static void pass(const pith_codec *codec, pith_state *state, const pith_ctx *ctx, float *x, size_t n) {
  size_t bound = pith_codec_bound(codec, n);
  uint8_t *bytes = malloc(bound + 1);
  pith_out out = {bytes, bound, 0};
  CHECK_OK(pith_encode(codec, state, (pith_cspan){x, n, PITH_F32}, &out, ctx));
  CHECK_OK(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){x, n, PITH_F32}, PITH_SET, ctx));
  free(bytes);
}

static void add(float *sum, const float *x, size_t n, int is_first) {
  for (size_t i = 0; i < n; i++) {
    sum[i] = is_first ? x[i] : sum[i] + x[i];
  }
}

/* What the owner of a range sums of its own: the values behind its memory, of which nothing is lost. Votes count what
 * is encoded. */
static void pass_own(const reference *r, pith_state *state, const pith_ctx *ctx, float *x, size_t n) {
  const pith_memory_ops *memory = r->codec->memory;
  size_t first = (size_t)ctx->offset;
  if (pith_codec_caps(r->codec) & PITH_CAP_VOTE) {
    pass(r->codec, state, ctx, x, n);
    return;
  }
  if (!memory) {
    return;
  }
  int is_residual = memory->accumulator == PITH_KEEPS_RESIDUAL;
  pith_store store = is_residual ? state->store : PITH_STORE_F32;
  void *place = pith__store_at(store, is_residual ? state->residual : state->momentum, first);
  float *kept = malloc(n * sizeof *kept + 1);
  pith__store_widen(store, place, n, kept);
  for (size_t i = 0; i < n; i++) {
    pith_blend blend = memory->blend(r->codec->memory_args, ctx->gamma != 0 ? ctx->gamma : 1.0f);
    x[i] = blend.beta * kept[i] + blend.gamma * x[i];
    kept[i] = memory->after == PITH_AFTER_SUBTRACT ? 0.0f : x[i];
  }
  pith__store_pack(store, kept, n, pith__store_key(ctx), first, place);
  free(kept);
}

static void make_result(const reference *r, float *sum, size_t first, size_t n) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.ranks = (uint32_t)r->ranks;
  ctx.offset = pith_codec_caps(r->codec) & PITH_CAP_CHUNKED ? first : 0;
  if (r->reduce == PITH_MEAN || (pith_codec_caps(r->codec) & PITH_CAP_VOTE)) {
    CHECK_OK(pith_aggregate(r->codec, (pith_span){sum + first, n, PITH_F32}, &ctx));
  }
}

/* The owner's encoding of a result; its random numbers are those of one more rank. Only error feedback applies to
 * results. */
static void pass_result(const reference *r, const pith_ctx *ctx, int owner, float *sum, pith_range range) {
  pith_codec bare = *r->codec;
  int feeds = bare.memory && bare.memory->after == PITH_AFTER_SUBTRACT;
  bare.memory = NULL;
  make_result(r, sum, range.first, range.n);
  pith_ctx here = ctx_at(r, ctx, r->ranks, range.first);
  pass(feeds ? r->codec : &bare, feeds ? r->results[owner] : NULL, &here, sum + range.first, range.n);
}

/* The part of an owner: parts go to owners in turn, from owner `turn` on. */
static pith_range turned(size_t n, size_t granule, int owners, int owner, uint64_t turn) {
  for (int part = 0; part < owners; part++) {
    if (((uint64_t)part + turn % (uint64_t)owners) % (uint64_t)owners == (uint64_t)owner) {
      return pith__split(n, granule, (size_t)owners, (size_t)part);
    }
  }
  return (pith_range){0, 0};
}

/* ---- Hosts: of one rank each where the algorithm does not mind them ---------------------------------------------- */

typedef struct hosts {
  int count, per_host, leaders;
} hosts;

static hosts hosts_of(const reference *r) {
  int per_host = strcmp(r->algorithm, "hierarchical") == 0 ? r->per_host : 1;
  hosts h = {(r->ranks + per_host - 1) / per_host, per_host, per_host};
  int last = r->ranks - (h.count - 1) * per_host;
  h.leaders = last < per_host ? last : per_host;
  return h;
}

/* The sum of a host's values of a range, as its carrier adds them up. */
static void host_sum(const reference *r, const hosts *h, int host, int leader, float *const *x, const pith_ctx *ctx,
                     pith_range range, float *sum) {
  for (int i = 0, rank = host * h->per_host; i < h->per_host && rank < r->ranks; i++, rank++) {
    float *copy = malloc((range.n + 1) * sizeof *copy);
    memcpy(copy, x[rank] + range.first, range.n * sizeof *copy);
    if (r->inside && rank != leader) {
      pith_ctx here = ctx_at(r, ctx, rank, range.first);
      pass(r->inside, NULL, &here, copy, range.n);
    }
    add(sum, copy, range.n, i == 0);
    free(copy);
  }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static size_t least_common(size_t a, size_t b) {
  size_t m = a;
  while (m % b) {
    m += a;
  }
  return m;
}

static void slice(const reference *r, const hosts *h, int leader, int owner, pith_range range, float *const *x,
                  const pith_ctx *ctx, float *result) {
  float *sum = malloc((range.n + 1) * sizeof *sum);
  for (int host = 0; host < h->count; host++) {
    int rank = host * h->per_host + leader;
    pith_ctx here = ctx_at(r, ctx, rank, range.first);
    host_sum(r, h, host, rank, x, ctx, range, sum);
    if (rank == owner) {
      pass_own(r, r->mine[rank], &here, sum, range.n);
    } else {
      pass(r->codec, r->mine[rank], &here, sum, range.n);
    }
    add(result + range.first, sum, range.n, host == 0);
  }
  pass_result(r, ctx, owner, result, range);
  free(sum);
}

static void blocks(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  hosts h = hosts_of(r);
  size_t granule = least_common(r->codec->granule, r->inside && h.per_host > 1 ? r->inside->granule : 1);
  for (int leader = 0; leader < h.leaders; leader++) {
    pith_range part = turned(r->n, granule, h.leaders, leader, ctx->layer / (uint64_t)h.count);
    for (int host = 0; host < h.count; host++) {
      pith_range range = turned(part.n, granule, h.count, host, ctx->layer);
      range.first += part.first;
      if (range.n) {
        slice(r, &h, leader, host * h.per_host + leader, range, x, ctx, result);
      }
    }
  }
}

static void ring(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  for (int part = 0; part < r->ranks; part++) {
    pith_range range = turned(r->n, r->codec->granule, r->ranks, part, ctx->layer);
    float *sum = result + range.first;
    for (int step = 1; step <= r->ranks && range.n; step++) {
      int rank = (part + step) % r->ranks;
      add(sum, x[rank] + range.first, range.n, step == 1);
      if (rank != part) {
        pith_ctx here = ctx_at(r, ctx, rank, range.first);
        pass(r->codec, r->mine[rank], &here, sum, range.n);
      }
    }
    if (range.n) {
      pass_result(r, ctx, part, result, range);
    }
  }
}

/* The sum that comes up from a rank: its children's, then its own values. */
static void climb(const reference *r, int rank, float *const *x, const pith_ctx *ctx, float *sum) {
  int children = 0;
  for (int bit = 1; (rank == 0 || bit < (rank & -rank)) && rank + bit < r->ranks; bit *= 2) {
    float *theirs = malloc((r->n + 1) * sizeof *theirs);
    climb(r, rank + bit, x, ctx, theirs);
    add(sum, theirs, r->n, children++ == 0);
    free(theirs);
  }
  add(sum, x[rank], r->n, children == 0);
  if (rank) {
    pith_ctx here = ctx_at(r, ctx, rank, 0);
    pass(r->codec, r->mine[rank], &here, sum, r->n);
  }
}

static void tree(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  climb(r, 0, x, ctx, result);
  pass_result(r, ctx, 0, result, (pith_range){0, r->n});
}

/* ---- Grid: ranks of a host, hosts of a rack, racks; coordinate k of a rank counts in steps[k] -------------------- */

typedef struct grid {
  int size[3];
} grid;

static grid grid_of(const reference *r, int wide) {
  int inside = r->per_host < r->ranks ? r->per_host : 1, groups = r->ranks / inside, rack = 1;
  for (int d = groups - 1; d > 1; d--) {
    if (groups % d == 0 && (rack == 1 || d * d >= wide * groups)) {
      rack = d;
    }
  }
  return (grid){{inside, rack, groups / rack}};
}

static int rank_at(const grid *g, int inside, int rack, int top) {
  return inside + g->size[0] * (rack + g->size[1] * top);
}

/* The slice of the rank at these coordinates. */
static void grid_slice(const reference *r, const grid *g, const int *at, pith_range range, float *const *x,
                       const pith_ctx *ctx, float *result) {
  hosts h = {r->ranks / g->size[0], g->size[0], g->size[0]};
  float *sum = malloc((range.n + 1) * sizeof *sum), *one = malloc((range.n + 1) * sizeof *one);
  for (int top = 0; top < g->size[2]; top++) {
    for (int rack = 0; rack < g->size[1]; rack++) {
      int rank = rank_at(g, at[0], rack, top);
      pith_ctx here = ctx_at(r, ctx, rank, range.first);
      host_sum(r, &h, rank / g->size[0], rank, x, ctx, range, one);
      if (rack == at[1]) {
        pass_own(r, r->mine[rank], &here, one, range.n);
      } else {
        pass(r->codec, r->mine[rank], &here, one, range.n);
      }
      add(sum, one, range.n, rack == 0);
    }
    add(result + range.first, sum, range.n, top == 0);
  }
  pass_result(r, ctx, rank_at(g, at[0], at[1], at[2]), result, range);
  free(one);
  free(sum);
}

static void grid_blocks(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  grid g = grid_of(r, 4);
  size_t granule = least_common(r->codec->granule, r->inside && g.size[0] > 1 ? r->inside->granule : 1);
  uint64_t groups = (uint64_t)(r->ranks / g.size[0]);
  for (int i = 0; i < r->ranks; i++) {
    const int at[] = {i % g.size[0], i / g.size[0] % g.size[1], i / g.size[0] / g.size[1]};
    pith_range part = turned(r->n, granule, g.size[0], at[0], ctx->layer / groups);
    pith_range rack = turned(part.n, granule, g.size[1], at[1], ctx->layer / (uint64_t)g.size[2]);
    pith_range own = turned(rack.n, granule, g.size[2], at[2], ctx->layer);
    own.first += rack.first + part.first;
    if (own.n) {
      grid_slice(r, &g, at, own, x, ctx, result);
    }
  }
}

/* result = the sum of all ranks' values, level by level, each in its order. */
static void grid_sum(const grid *g, void **of, pith_dtype dtype, pith_reduce_op reduce, size_t n, void *result) {
  void *all[g->size[2]];
  for (int top = 0; top < g->size[2]; top++) {
    void *racks[g->size[1]];
    all[top] = malloc(n * pith_dtype_size(dtype) + 1);
    for (int rack = 0; rack < g->size[1]; rack++) {
      racks[rack] = malloc(n * pith_dtype_size(dtype) + 1);
      pith__reduce_many(dtype, reduce, (const void *const *)of + rank_at(g, 0, rack, top), g->size[0], racks[rack], n);
    }
    pith__reduce_many(dtype, reduce, (const void *const *)racks, g->size[1], all[top], n);
    for (int rack = 0; rack < g->size[1]; rack++) {
      free(racks[rack]);
    }
  }
  pith__reduce_many(dtype, reduce, (const void *const *)all, g->size[2], result, n);
  for (int top = 0; top < g->size[2]; top++) {
    free(all[top]);
  }
}

/* ---- Gathered payloads ------------------------------------------------------------------------------------------- */

static void grid_entries(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  grid g = grid_of(r, 1);
  void *decoded[r->ranks];
  for (int p = 0; p < r->ranks; p++) {
    pith_ctx here = ctx_at(r, ctx, p, 0);
    pass(r->codec, r->mine[p], &here, x[p], r->n);
    decoded[p] = x[p];
  }
  grid_sum(&g, decoded, PITH_F32, PITH_SUM, r->n, result);
  make_result(r, result, 0, r->n);
}

static void gather(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  hosts h = hosts_of(r);
  float *sum = malloc((r->n + 1) * sizeof *sum);
  for (int host = 0; host < h.count; host++) {
    int first = host * h.per_host;
    pith_ctx here = ctx_at(r, ctx, first, 0);
    host_sum(r, &h, host, first, x, ctx, (pith_range){0, r->n}, sum);
    pass(r->codec, r->mine[first], &here, sum, r->n);
    add(result, sum, r->n, host == 0);
  }
  make_result(r, result, 0, r->n);
  free(sum);
}

static void linear(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  size_t size = pith_codec_bound(r->codec, r->n);
  pith_dtype dtype = r->codec->ops->linear(r->codec->args);
  void *payload[r->ranks];
  pith_ctx here = ctx_at(r, ctx, 0, 0);
  for (int p = 0; p < r->ranks; p++) {
    pith_ctx theirs = ctx_at(r, ctx, p, 0);
    pith_out out = {payload[p] = malloc(size + 1), size, 0};
    CHECK_OK(pith_encode(r->codec, r->mine[p], (pith_cspan){x[p], r->n, PITH_F32}, &out, &theirs));
  }
  pith__reduce_many(dtype, r->reduce, (const void *const *)payload, r->ranks, payload[0],
                    size / pith_dtype_size(dtype));
  CHECK_OK(pith_decode(r->codec, (pith_bytes){payload[0], size}, (pith_span){result, r->n, PITH_F32}, PITH_SET, &here));
  for (int p = 0; p < r->ranks; p++) {
    free(payload[p]);
  }
}

/* ---- Rounds ------------------------------------------------------------------------------------------------------ */

/* Sums run in rank order, or host by host. */
static void reduce_round(const reference *r, const pith_round *round, void **of, void *reduced) {
  hosts h = hosts_of(r);
  void *sums[h.count];
  if (strcmp(r->algorithm, "grid") == 0) {
    grid g = grid_of(r, 1);
    grid_sum(&g, of, round->dtype, round->reduce == PITH_MEAN ? PITH_SUM : round->reduce, round->count, reduced);
    for (size_t i = 0; i < round->count && round->reduce == PITH_MEAN; i++) {
      ((float *)reduced)[i] *= 1.0f / (float)r->ranks;
    }
    return;
  }
  if (h.per_host == 1) {
    pith__reduce_many(round->dtype, round->reduce, (const void *const *)of, r->ranks, reduced, round->count);
    return;
  }
  for (int host = 0; host < h.count; host++) {
    int first = host * h.per_host, members = first + h.per_host <= r->ranks ? h.per_host : r->ranks - first;
    sums[host] = malloc(round->count * pith_dtype_size(round->dtype) + 1);
    pith__reduce_many(round->dtype, round->reduce == PITH_MEAN ? PITH_SUM : round->reduce,
                      (const void *const *)of + first, members, sums[host], round->count);
  }
  pith__reduce_many(round->dtype, round->reduce == PITH_MEAN ? PITH_SUM : round->reduce, (const void *const *)sums,
                    h.count, reduced, round->count);
  for (size_t i = 0; i < round->count && round->reduce == PITH_MEAN; i++) {
    ((float *)reduced)[i] *= 1.0f / (float)r->ranks;
  }
  for (int host = 0; host < h.count; host++) {
    free(sums[host]);
  }
}

static void rounds(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  for (size_t i = 0; i < pith_codec_rounds(r->codec); i++) {
    pith_round round = PITH_ROUND_INIT;
    CHECK_OK(pith_round_describe(r->codec, r->mine[0], i, &round));
    size_t bytes = round.count * pith_dtype_size(round.dtype) + 1;
    void *buffers[r->ranks], *reduced = malloc(bytes);
    for (int p = 0; p < r->ranks; p++) {
      pith_ctx here = ctx_at(r, ctx, p, 0);
      buffers[p] = malloc(bytes);
      CHECK_OK(pith_round_produce(r->codec, r->mine[p], i, (pith_cspan){x[p], r->n, PITH_F32}, buffers[p], &here));
    }
    reduce_round(r, &round, buffers, reduced);
    for (int p = 0; p < r->ranks; p++) {
      pith_ctx here = ctx_at(r, ctx, p, 0);
      CHECK_OK(pith_round_consume(r->codec, r->mine[p], i, reduced, (pith_span){result, r->n, PITH_F32}, &here));
      free(buffers[p]);
    }
    free(reduced);
  }
  for (size_t i = 0; i < r->n && r->reduce == PITH_SUM; i++) {
    result[i] *= (float)r->ranks;
  }
}

void reference_allreduce(const reference *r, float *const *x, const pith_ctx *ctx, float *result) {
  if (pith_codec_rounds(r->codec)) {
    rounds(r, x, ctx, result);
  } else if (strcmp(r->algorithm, "ring") == 0) {
    ring(r, x, ctx, result);
  } else if (strcmp(r->algorithm, "tree") == 0) {
    tree(r, x, ctx, result);
  } else if (strcmp(r->algorithm, "linear") == 0) {
    linear(r, x, ctx, result);
  } else if (strcmp(r->algorithm, "grid") == 0) {
    (pith_codec_caps(r->codec) & PITH_CAP_CHUNKED ? grid_blocks : grid_entries)(r, x, ctx, result);
  } else if (strcmp(r->algorithm, "gather") != 0 && (pith_codec_caps(r->codec) & PITH_CAP_CHUNKED) &&
             !(pith_codec_caps(r->codec) & PITH_CAP_ONCE)) {
    blocks(r, x, ctx, result);
  } else {
    gather(r, x, ctx, result);
  }
}

/*
 * A compressed allreduce is exactly what the codec calls say: every rank computes, with pith_encode and pith_decode
 * alone, what the result must be, bit by bit, for every method, number of ranks and length, whatever the chunks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"
#include "collective/job.h"
#include "collective/split.h"
#include "laws.h"
#include "ranks.h"
#include "test.h"

typedef struct trial {
  const char *spec;
  size_t n;
  pith_reduce reduce;
  uint64_t seed;
  int steps;
} trial;

/* Values of several magnitudes that every rank can compute for every rank. */
static float value_of(const trial *t, int rank, uint64_t step, size_t i) {
  uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + step * 0x94d049bb133111ebu + t->seed;
  h ^= h >> 29;
  h *= 0xbf58476d1ce4e5b9u;
  float x = (float)(int32_t)(h >> 40 & 0xffff) / 65536.0f - 0.5f;
  return h >> 60 ? x : x * 20.0f;
}

static float *values_of(const trial *t, int rank, uint64_t step) {
  float *x = malloc((t->n + 1) * sizeof *x);
  for (size_t i = 0; i < t->n; i++) {
    x[i] = value_of(t, rank, step, i);
  }
  return x;
}

static pith_ctx ctx_of(int rank, int ranks, uint64_t step) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 9, ctx.step = step, ctx.layer = 3, ctx.rank = (uint32_t)rank, ctx.ranks = (uint32_t)ranks;
  return ctx;
}

/* ---- The reference ----------------------------------------------------------------------------------------------- */

/* The sum of what all ranks' payloads decode to, in rank order. Each rank has its own state. */
static void sum_payloads(const trial *t, const pith_codec *codec, int ranks, uint64_t step, pith_state **states, float *sum) {
  size_t bound = pith_codec_bound(codec, t->n);
  uint8_t *bytes = malloc(bound + 1);
  for (int r = 0; r < ranks; r++) {
    pith_ctx ctx = ctx_of(r, ranks, step);
    float *x = values_of(t, r, step);
    pith_out out = {bytes, bound, 0};
    CHECK_OK(pith_encode(codec, states[r], (pith_cspan){x, t->n, PITH_F32}, &out, &ctx));
    CHECK_OK(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){sum, t->n, PITH_F32}, r ? PITH_ADD : PITH_SET, &ctx));
    free(x);
  }
  free(bytes);
}

static void make_result(const trial *t, const pith_codec *codec, int ranks, float *sum) {
  pith_ctx ctx = ctx_of(0, ranks, 0);
  if (t->reduce == PITH_MEAN || (pith_codec_caps(codec) & PITH_CAP_VOTE)) {
    CHECK_OK(pith_aggregate(codec, (pith_span){sum, t->n, PITH_F32}, &ctx));
  }
}

/* Owners encode their part once more; random numbers of owner p are those of rank ranks + p. */
static void encode_result(const trial *t, const pith_codec *codec, int ranks, uint64_t step, float *x) {
  pith_arena measure = pith__arena_over(NULL, 0);
  pith__codec_take_scratch(codec, t->n, &measure);
  void *memory = malloc(pith__arena_need(&measure) + 1), *bytes = malloc(pith_codec_bound(codec, t->n) + 1);
  pith_arena arena = pith__arena_over(memory, pith__arena_need(&measure));
  void *scratch = pith__codec_take_scratch(codec, t->n, &arena);
  for (int p = 0; p < ranks; p++) {
    pith_range part = pith__split(t->n, codec->granule, (size_t)ranks, (size_t)p);
    if (part.n == 0) {
      break;
    }
    pith_ctx ctx = ctx_of(ranks + p, ranks, step);
    pith_out out = {bytes, pith_codec_bound(codec, part.n), 0};
    ctx.offset = part.first;
    ctx.gamma = 1.0f;
    CHECK_OK(pith__codec_encode(codec, (pith_cspan){x + part.first, part.n, PITH_F32}, &out, NULL, scratch, &ctx));
    CHECK_OK(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){x + part.first, part.n, PITH_F32}, PITH_SET, &ctx));
  }
  free(memory);
  free(bytes);
}

/* Every rank's rounds, reduced in rank order. */
static void run_rounds(const trial *t, const pith_codec *codec, int ranks, uint64_t step, pith_state **states, float *result) {
  float *x[ranks];
  for (int r = 0; r < ranks; r++) {
    x[r] = values_of(t, r, step);
  }
  for (size_t i = 0; i < pith_codec_rounds(codec); i++) {
    pith_round round;
    CHECK_OK(pith_round_describe(codec, states[0], i, &round));
    size_t bytes = round.count * pith_dtype_size(round.dtype) + 1;
    void *buffers[ranks], *reduced = malloc(bytes);
    for (int r = 0; r < ranks; r++) {
      pith_ctx ctx = ctx_of(r, ranks, step);
      buffers[r] = malloc(bytes);
      CHECK_OK(pith_round_produce(codec, states[r], i, (pith_cspan){x[r], t->n, PITH_F32}, buffers[r], &ctx));
    }
    pith__reduce_many(round.dtype, round.reduce, (const void *const *)buffers, ranks, reduced, round.count);
    for (int r = 0; r < ranks; r++) {
      pith_ctx ctx = ctx_of(r, ranks, step);
      CHECK_OK(pith_round_consume(codec, states[r], i, reduced, (pith_span){result, t->n, PITH_F32}, &ctx));
      free(buffers[r]);
    }
    free(reduced);
  }
  for (size_t i = 0; i < t->n && t->reduce == PITH_SUM; i++) {
    result[i] *= (float)ranks;
  }
  for (int r = 0; r < ranks; r++) {
    free(x[r]);
  }
}

static void reference(const trial *t, const pith_codec *codec, int ranks, uint64_t step, pith_state **states, float *result) {
  if (pith_codec_rounds(codec)) {
    run_rounds(t, codec, ranks, step, states, result);
    return;
  }
  sum_payloads(t, codec, ranks, step, states, result);
  make_result(t, codec, ranks, result);
  if (pith_codec_caps(codec) & PITH_CAP_CHUNKED) {
    encode_result(t, codec, ranks, step, result);
  }
}

/* ---- The law ----------------------------------------------------------------------------------------------------- */

static void check_same(const trial *t, const float *got, const float *wanted, int rank, int ranks) {
  for (size_t i = 0; i < t->n; i++) {
    CHECK_MSG(memcmp(got + i, wanted + i, sizeof *got) == 0 || (isnan(got[i]) && isnan(wanted[i])),
              "%s of %zu values on rank %d of %d: value %zu is %.9g, not %.9g", t->spec, t->n, rank, ranks, i, (double)got[i],
              (double)wanted[i]);
  }
}

/* What one rank sends of a FIXED block codec when no part needs a second chunk. */
static uint64_t wire_bytes(const trial *t, const pith_codec *codec, int rank, int ranks) {
  uint64_t sum = 0;
  for (int p = 0; p < ranks; p++) {
    size_t theirs = pith__split(t->n, codec->granule, (size_t)ranks, (size_t)p).n;
    size_t mine = pith__split(t->n, codec->granule, (size_t)ranks, (size_t)rank).n;
    sum += p != rank && theirs ? 64 + pith_codec_bound(codec, theirs) : 0;
    sum += p != rank && mine ? 64 + pith_codec_bound(codec, mine) : 0;
  }
  return sum;
}

static void check_wire(const trial *t, const pith_codec *codec, pith_comm *comm, uint64_t sent) {
  uint32_t caps = pith_codec_caps(codec);
  if ((caps & PITH_CAP_FIXED) && (caps & PITH_CAP_CHUNKED) && !(caps & PITH_CAP_ROUNDS)) {
    CHECK_EQ(sent, wire_bytes(t, codec, pith_comm_rank(comm), pith_comm_ranks(comm)));
  }
}

static uint64_t sent_by(pith_comm *comm) {
  pith_stats stats = {.size = sizeof stats};
  CHECK_OK(pith_comm_stats(comm, &stats));
  return stats.sent_bytes;
}

static void obey(pith_comm *comm, void *argument) {
  const trial *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_ranks(comm);
  pith_codec *codec;
  pith_state *states[ranks];
  pith_call call = PITH_CALL_INIT;
  CHECK_OK(pith_codec_create(t->spec, &codec));
  CHECK_OK(pith_state_create(codec, t->n, 0, &call.state));
  call.codec = codec;
  for (int r = 0; r < ranks; r++) {
    CHECK_OK(pith_state_create(codec, t->n, 0, &states[r]));
  }
  for (int step = 0; step < t->steps; step++) {
    float *x = values_of(t, rank, (uint64_t)step), *wanted = calloc(t->n + 1, sizeof *wanted);
    uint64_t before = sent_by(comm);
    call.ctx = ctx_of(rank, ranks, (uint64_t)step);
    CHECK_OK(pith_allreduce(comm, (pith_cspan){x, t->n, PITH_F32}, (pith_span){x, t->n, PITH_F32}, t->reduce, &call, NULL));
    check_wire(t, codec, comm, sent_by(comm) - before);
    reference(t, codec, ranks, (uint64_t)step, states, wanted);
    check_same(t, x, wanted, rank, ranks);
    free(x);
    free(wanted);
  }
  for (int r = 0; r < ranks; r++) {
    pith_state_destroy(states[r]);
  }
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

/* Every spec, with some number of ranks from 2 to 9 and some length. */
TEST_WITHIN(an_allreduce_is_what_its_codec_calls_say, 120) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    trial t = {law_spec(s), law_length(4097), test_below(2) ? PITH_MEAN : PITH_SUM, test_random(), 2};
    int most = strstr(t.spec, "gq:4") ? 7 : 9; /* its sums have four bits */
    int ranks = 2 + (int)(s % 5 ? test_below(3) : test_below(8));
    ranks_run("inproc", ranks < most ? ranks : most, 0, obey, &t);
  }
}

TEST_WITHIN(and_so_between_processes, 120) {
  static const char *const transports[] = {"shm", "tcp"};
  for (size_t s = 0; s < law_spec_count(); s += 7) {
    trial t = {law_spec(s), law_length(4097), PITH_MEAN, test_random(), 2};
    ranks_run(transports[s % 2], 2 + (int)test_below(3), 0, obey, &t);
  }
}

static void too_many(pith_comm *comm, void *argument) {
  (void)argument;
  float x[10] = {1};
  pith_codec *codec;
  pith_call call = PITH_CALL_INIT;
  CHECK_OK(pith_codec_create("gq:4", &codec));
  CHECK_OK(pith_state_create(codec, 10, 0, &call.state));
  call.codec = codec;
  CHECK_STATUS(pith_allreduce(comm, (pith_cspan){x, 10, PITH_F32}, (pith_span){x, 10, PITH_F32}, PITH_SUM, &call, NULL), PITH_ERR_RANGE);
  CHECK_OK(pith_barrier(comm, NULL)); /* nothing was sent, and nothing is lost */
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

TEST(what_cannot_be_summed_is_refused_before_anything_is_sent) { ranks_run("inproc", 8, 0, too_many, NULL); }

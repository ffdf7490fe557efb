/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A compressed allreduce is exactly what the codec calls say: every rank computes, with pith_encode and pith_decode
 * alone (reference.c), what the result must be, bit by bit, for every method, algorithm, number of ranks and length,
 * whatever the chunks.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/split.h"
#include "codec/codec.h"
#include "comm/comm.h"
#include "laws.h"
#include "ranks.h"
#include "reference.h"
#include "test.h"

typedef struct trial {
  const char *spec, *algorithm,
      *inside; /* algorithm NULL: what the comm takes by itself on ranks of hosts of their own */
  int per_host;
  size_t n;
  pith_reduce_op reduce;
  uint64_t seed;
  int steps, large; /* large: of several chunks, so that the count of headers differs */
} trial;

/* Values of several magnitudes that every rank can compute for every rank. */
static float value_of(const trial *t, int rank, uint64_t step, size_t i) {
  uint64_t h =
      (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)rank * 0xbf58476d1ce4e5b9u + step * 0x94d049bb133111ebu + t->seed;
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

/* ---- The law ----------------------------------------------------------------------------------------------------- */

static void check_same(const trial *t, const float *got, const float *wanted, int rank, int ranks) {
  for (size_t i = 0; i < t->n; i++) {
    CHECK_MSG(memcmp(got + i, wanted + i, sizeof *got) == 0 || (isnan(got[i]) && isnan(wanted[i])),
              "%s of %zu values on rank %d of %d: value %zu is %.9g, not %.9g", t->spec, t->n, rank, ranks, i,
              (double)got[i], (double)wanted[i]);
  }
}

/* What one rank sends of a FIXED block codec when no part needs a second chunk. */
static uint64_t wire_bytes(const trial *t, const pith_codec *codec, int rank, int ranks, uint64_t layer) {
  uint64_t sum = 0;
  for (int p = 0; p < ranks; p++) {
    size_t theirs = pith__split_turned(t->n, codec->granule, (size_t)ranks, (size_t)p, layer).n;
    size_t mine = pith__split_turned(t->n, codec->granule, (size_t)ranks, (size_t)rank, layer).n;
    sum += p != rank && theirs ? sizeof(pith_frame) + pith_codec_bound(codec, theirs) : 0;
    sum += p != rank && mine ? sizeof(pith_frame) + pith_codec_bound(codec, mine) : 0;
  }
  return sum;
}

static void check_wire(const trial *t, const pith_codec *codec, pith_comm *comm, uint64_t sent) {
  uint32_t caps = pith_codec_caps(codec);
  if ((caps & PITH_CAP_FIXED) && (caps & PITH_CAP_CHUNKED) && !(caps & (PITH_CAP_ROUNDS | PITH_CAP_ONCE))) {
    CHECK_EQ(sent, wire_bytes(t, codec, pith_comm_rank(comm), pith_comm_size(comm), ctx_of(0, 1, 0).layer));
  }
}

static uint64_t sent_by(pith_comm *comm) {
  pith_stats stats = {.size = sizeof stats};
  CHECK_OK(pith_comm_stats(comm, &stats));
  return stats.sent_bytes;
}

/* One that every codec of its kind can take. Of codecs that need the whole tensor, cost alone chooses between this,
 * ranges, which give the same bits, and linear. */
static const char *usual_algorithm(const pith_codec *codec) {
  uint32_t caps = pith_codec_caps(codec);
  return (caps & (PITH_CAP_CHUNKED | PITH_CAP_ROUNDS)) && !(caps & PITH_CAP_ONCE) ? "sra" : "gather";
}

static void make_states(const pith_codec *codec, size_t n, int ranks, pith_state **states) {
  for (int r = 0; r < ranks; r++) {
    CHECK_OK(pith_state_create(codec, n, 0, &states[r]));
  }
}

static void destroy_states(pith_state **states, int ranks) {
  for (int r = 0; r < ranks; r++) {
    pith_state_destroy(states[r]);
  }
}

static void compare_step(const reference *expected, const trial *t, uint64_t step, const float *got, int rank) {
  float *x[expected->ranks], *wanted = calloc(t->n + 1, sizeof *wanted);
  pith_ctx ctx = ctx_of(0, expected->ranks, step);
  for (int r = 0; r < expected->ranks; r++) {
    x[r] = values_of(t, r, step);
  }
  if (expected->ranks == 1 && !strstr(pith_codec_parts(expected->codec), "momentum") &&
      !strstr(pith_codec_parts(expected->codec), "dgc")) {
    memcpy(wanted, x[0], t->n * sizeof *wanted); /* nothing travels: nothing is lost, but a vote of one is a vote */
    pith_span span = {wanted, t->n, PITH_F32};
    CHECK_OK(pith_codec_caps(expected->codec) & PITH_CAP_VOTE ? pith_aggregate(expected->codec, span, &ctx) : PITH_OK);
  } else {
    reference_allreduce(expected, x, &ctx, wanted);
  }
  check_same(t, got, wanted, rank, expected->ranks);
  for (int r = 0; r < expected->ranks; r++) {
    free(x[r]);
  }
  free(wanted);
}

static void obey(pith_comm *comm, void *argument) {
  const trial *t = argument;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  pith_codec *codec, *inside = NULL;
  pith_state *mine[ranks], *results[ranks];
  pith_call call = PITH_CALL_INIT;
  CHECK_OK(pith_codec_create(t->spec, &codec));
  CHECK_OK(pith_state_create(codec, t->n, 0, &call.state));
  if (t->inside) {
    CHECK_OK(pith_codec_create(t->inside, &inside));
  }
  call.codec = codec;
  int is_named = (pith_codec_caps(codec) & (PITH_CAP_LINEAR | PITH_CAP_CHUNKED)) != 0;
  call.algorithm = t->algorithm ? t->algorithm : is_named ? usual_algorithm(codec) : NULL;
  make_states(codec, t->n, ranks, mine);
  make_states(codec, t->n, ranks, results);
  reference expected = {
      codec,  t->algorithm ? t->algorithm : usual_algorithm(codec), inside, ranks, t->per_host, t->n, t->reduce, mine,
      results};
  for (int step = 0; step < t->steps; step++) {
    float *x = values_of(t, rank, (uint64_t)step);
    uint64_t before = sent_by(comm);
    pith_ctx ctx = ctx_of(rank, ranks, (uint64_t)step);
    call.seed = ctx.seed, call.step = ctx.step, call.layer = ctx.layer, call.rows = ctx.rows, call.gamma = ctx.gamma;
    CHECK_OK(
        pith_allreduce(comm, (pith_cspan){x, t->n, PITH_F32}, (pith_span){x, t->n, PITH_F32}, t->reduce, &call, NULL));
    if (!t->algorithm && !t->large) {
      check_wire(t, codec, comm, sent_by(comm) - before);
    }
    compare_step(&expected, t, (uint64_t)step, x, rank);
    free(x);
  }
  destroy_states(mine, ranks);
  destroy_states(results, ranks);
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
  pith_codec_destroy(inside);
}

static trial random_trial(size_t spec, const char *algorithm) {
  return (trial){.spec = law_spec(spec),
                 .algorithm = algorithm,
                 .per_host = 1,
                 .n = law_length(4097),
                 .reduce = test_below(2) ? PITH_MEAN : PITH_SUM,
                 .seed = test_random(),
                 .steps = 2};
}

static int most_ranks(const char *spec) { return strstr(spec, "gq:4") ? 7 : 9; } /* its sums have four bits */

/* Every spec, with some number of ranks from 2 to 9 and some length. */
TEST_WITHIN(an_allreduce_is_what_its_codec_calls_say, 120) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    trial t = random_trial(s, NULL);
    int ranks = 2 + (int)(s % 5 ? test_below(3) : test_below(8)), most = most_ranks(t.spec);
    ranks_run("inproc", ranks < most ? ranks : most, 0, obey, &t);
  }
}

/* Every spec once more, between processes. */
TEST_WITHIN(and_so_over_shared_memory, 120) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    trial t = random_trial(s, NULL);
    int ranks = 1 + (int)test_below(s % 8 ? 4 : 9), most = most_ranks(t.spec);
    ranks_run("shm", ranks < most ? ranks : most, 0, obey, &t);
  }
}

TEST_WITHIN(and_so_over_tcp, 120) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    trial t = random_trial(s, NULL);
    int ranks = 1 + (int)test_below(s % 8 ? 4 : 9), most = most_ranks(t.spec);
    ranks_run("tcp", ranks < most ? ranks : most, 0, obey, &t);
  }
}

TEST_WITHIN(and_so_over_ucx, 120) {
  ranks_need_ucx(MODULES, "posix");
  for (size_t s = 0; s < law_spec_count(); s++) {
    trial t = random_trial(s, NULL);
    int ranks = 1 + (int)test_below(s % 8 ? 3 : 9), most = most_ranks(t.spec);
    ranks_run("ucx", ranks < most ? ranks : most, 0, obey, &t);
  }
}

/* Tensors of many chunks. */
TEST_WITHIN(and_so_for_large_tensors, 120) {
  static const char *const specs[] = {"ef/q:4",        "terngrad",       "ef/topk:0.01",           "signsgd",
                                      "ef/powersgd:2", "ef,store=8/q:4", "ef,store=bf16/topk:0.01"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    trial t = random_trial(0, NULL);
    t.spec = specs[s];
    t.n = 1000000 + test_below(1000);
    t.large = 1;
    ranks_run(s % 2 ? "tcp" : "shm", 3, 0, obey, &t);
  }
}

/* Whether an algorithm takes a spec, as docs/algorithms.md says; a rank asks the comm, too. */
static int suits(const char *algorithm, const char *spec) {
  pith_codec *codec;
  CHECK_OK(pith_codec_create(spec, &codec));
  uint32_t caps = pith_codec_caps(codec);
  int whole = !(caps & (PITH_CAP_CHUNKED | PITH_CAP_ROUNDS)), steps = *algorithm == 'r' && algorithm[1] == 'i';
  int keeps_all = strstr(pith_codec_parts(codec), "momentum") != NULL;
  steps |= *algorithm == 't';
  uint32_t never = PITH_CAP_ROUNDS | PITH_CAP_VOTE | PITH_CAP_ONCE;
  int result = steps                              ? !whole && !(caps & never) && !keeps_all
               : strcmp(algorithm, "gather") == 0 ? !(caps & PITH_CAP_ROUNDS)
               : strcmp(algorithm, "ranges") == 0 ? whole && (caps & PITH_CAP_SPARSE)
               : strcmp(algorithm, "linear") == 0 ? whole && (caps & PITH_CAP_LINEAR)
                                                  : !(caps & PITH_CAP_VOTE);
  pith_codec_destroy(codec);
  return result;
}

static void refuse(pith_comm *comm, void *argument) {
  const trial *t = argument;
  float x[64] = {1};
  pith_call call = PITH_CALL_INIT;
  pith_codec *codec;
  CHECK_OK(pith_codec_create(t->spec, &codec));
  CHECK_OK(pith_state_create(codec, 64, 0, &call.state));
  call.codec = codec;
  call.algorithm = t->algorithm;
  CHECK_STATUS(pith_allreduce(comm, (pith_cspan){x, 64, PITH_F32}, (pith_span){x, 64, PITH_F32}, PITH_SUM, &call, NULL),
               PITH_ERR_UNSUPPORTED);
  CHECK_OK(pith_barrier(comm, NULL));
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

static void try_algorithm(const char *algorithm) {
  int compared = 0;
  for (size_t s = test_below(3); s < law_spec_count(); s += 3) {
    trial t = random_trial(s, algorithm);
    int most = most_ranks(t.spec), ranks = 2 + (int)test_below(8);
    compared += suits(algorithm, t.spec);
    ranks_run("inproc", ranks < most ? ranks : most, test_below(2) ? 2048 : 0, suits(algorithm, t.spec) ? obey : refuse,
              &t);
  }
  CHECK_MSG(compared > 0, "%s was compared with nothing", algorithm);
}

TEST_WITHIN(a_ring_is_what_its_codec_calls_say, 120) { try_algorithm("ring"); }
TEST_WITHIN(a_tree_is_what_its_codec_calls_say, 120) { try_algorithm("tree"); }

TEST_WITHIN(gathered_payloads_are_what_their_codec_calls_say, 120) { try_algorithm("gather"); }

TEST_WITHIN(ranges_and_linear_sums_are_what_their_codec_calls_say, 120) {
  static const char *const specs[] = {
      "ef/topk:0.1", "topk:0.7,values=fp16",       "threshold:0.3",          "ef/adaptive:0.05", "dgc:0.05",
      "randomk:0.3", "ef/randomk:0.2,values=fp16", "randomk:0.1,values=bf16"};
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    trial t = random_trial(0, strstr(specs[s], "random") ? "linear" : "ranges");
    t.spec = specs[s];
    ranks_run("inproc", 2 + (int)test_below(8), 0, obey, &t);
  }
}

/* Hosts of one to four ranks, the last with fewer; inside them values as they are, or encoded too. */
TEST_WITHIN(with_hosts_too, 120) {
  static const char *const insides[] = {NULL, "q:8", "bf16", "qsgd:64,bucket=128"};
  int compared = 0;
  for (size_t s = 0; s < law_spec_count(); s += 2) {
    trial t = random_trial(s, "hierarchical");
    int most = most_ranks(t.spec), ranks = 2 + (int)test_below(8);
    ranks = ranks < most ? ranks : most;
    ranks = ranks > 2 ? ranks : 3;
    t.per_host = 2 + (int)test_below(ranks > 4 ? 3 : (uint64_t)ranks - 2);
    pith_codec *codec;
    CHECK_OK(pith_codec_create(t.spec, &codec));
    t.inside = pith_codec_rounds(codec) ? NULL : insides[test_below(4)];
    pith_codec_destroy(codec);
    compared += suits("hierarchical", t.spec);
    ranks_run_hosts("inproc", ranks, t.per_host, test_below(2) ? 2048 : 0, t.inside,
                    suits("hierarchical", t.spec) ? obey : refuse, &t);
  }
  CHECK_MSG(compared > 10, "only %d specs were compared", compared);
}

/* Ranks of their own, of hosts of two or three, and all on one host. */
TEST_WITHIN(over_a_grid_too, 120) {
  static const int shapes[][2] = {{4, 1}, {6, 1}, {8, 1}, {9, 1}, {16, 1}, {8, 2}, {12, 3}, {16, 2}, {6, 6}};
  static const char *const insides[] = {NULL, "q:8", "bf16"};
  int compared = 0;
  for (size_t s = 0; s < law_spec_count(); s += 2) {
    trial t = random_trial(s, "grid");
    const int *shape = shapes[test_below(sizeof shapes / sizeof *shapes)];
    pith_codec *codec;
    CHECK_OK(pith_codec_create(t.spec, &codec));
    uint32_t caps = pith_codec_caps(codec);
    int rounds = pith_codec_rounds(codec) > 0, crowded = shape[1] > 1 && shape[1] < shape[0];
    int fits = rounds || ((caps & PITH_CAP_CHUNKED) ? (caps & PITH_CAP_FIXED) && !(caps & PITH_CAP_ONCE)
                                                    : (caps & PITH_CAP_SPARSE) != 0);
    int is_entries = !rounds && !(caps & PITH_CAP_CHUNKED);
    fits = fits && !(crowded && (caps & PITH_CAP_VOTE));
    shape = strstr(t.spec, "gq:4") ? shapes[0] : shape;
    t.per_host = shape[1];
    t.inside = rounds || is_entries || !crowded ? NULL : insides[test_below(3)];
    pith_codec_destroy(codec);
    compared += fits;
    ranks_run_hosts("inproc", shape[0], shape[1], test_below(2) ? 2048 : 0, t.inside, fits ? obey : refuse, &t);
  }
  CHECK_MSG(compared > 10, "only %d specs were compared", compared);
}

static void too_many(pith_comm *comm, void *argument) {
  (void)argument;
  float x[10] = {1};
  pith_codec *codec;
  pith_call call = PITH_CALL_INIT;
  CHECK_OK(pith_codec_create("gq:4", &codec));
  CHECK_OK(pith_state_create(codec, 10, 0, &call.state));
  call.codec = codec;
  CHECK_STATUS(pith_allreduce(comm, (pith_cspan){x, 10, PITH_F32}, (pith_span){x, 10, PITH_F32}, PITH_SUM, &call, NULL),
               PITH_ERR_RANGE);
  CHECK_OK(pith_barrier(comm, NULL)); /* nothing was sent, and nothing is lost */
  pith_state_destroy(call.state);
  pith_codec_destroy(codec);
}

TEST(what_cannot_be_summed_is_refused_before_anything_is_sent) { ranks_run("inproc", 8, 0, too_many, NULL); }

/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets: what they give is what an allreduce of each layer by itself gives. */
#include <stdlib.h>
#include <string.h>

#include "device/bucket.h"
#include "laws.h"
#include "reference.h"
#include "test.h"

enum { LAYERS = 6, RANKS_MOST = 6, STEPS = 3 };

static const char *const specs[] = {"q:4",  "ef/q:2,bucket=128",       "onebit", "signsgd",
                                    "bf16", "momentum/sign,bucket=64", "none",   "u8"};

typedef struct model {
  int ranks;
  size_t n[LAYERS];
  pith_codec *codec[LAYERS];
  pith_state *mine[LAYERS][RANKS_MOST], *results[LAYERS][RANKS_MOST]; /* of the reference */
  pith_state *state[LAYERS][RANKS_MOST];
  pith_bucket *bucket[RANKS_MOST];
} model;

static void make(model *m) {
  *m = (model){.ranks = 1 + (int)test_below(RANKS_MOST)};
  for (size_t l = 0; l < LAYERS; l++) {
    m->n[l] = law_length(3000);
    CHECK_OK(pith_codec_create(specs[test_below(sizeof specs / sizeof *specs)], &m->codec[l]));
    for (int r = 0; r < m->ranks; r++) {
      CHECK_OK(pith_state_create(m->codec[l], m->n[l], 0, &m->mine[l][r]));
      CHECK_OK(pith_state_create(m->codec[l], m->n[l], 0, &m->results[l][r]));
      CHECK_OK(pith_state_create(m->codec[l], m->n[l], 0, &m->state[l][r]));
    }
  }
  for (int r = 0; r < m->ranks; r++) {
    pith_bucket_item layers[LAYERS];
    for (size_t l = 0; l < LAYERS; l++) {
      layers[l] = (pith_bucket_item){
          .codec = m->codec[l], .state = m->state[l][r], .layer = l, .n = m->n[l], .dtype = PITH_F32};
    }
    CHECK_OK(pith__bucket_create(r, m->ranks, layers, LAYERS, &m->bucket[r]));
  }
}

static void destroy(model *m) {
  for (size_t l = 0; l < LAYERS; l++) {
    for (int r = 0; r < m->ranks; r++) {
      pith_state_destroy(m->mine[l][r]);
      pith_state_destroy(m->results[l][r]);
      pith_state_destroy(m->state[l][r]);
    }
    pith_codec_destroy(m->codec[l]);
  }
  for (int r = 0; r < m->ranks; r++) {
    pith__bucket_destroy(m->bucket[r]);
  }
}

/* Part p of every rank to rank p, in rank order; sizes as pith_bucket_bytes says. */
static void swap_parts(const model *m, uint8_t *const *parts, uint8_t *const *received) {
  for (int to = 0; to < m->ranks; to++) {
    size_t size = m->bucket[0]->bytes[to], before = 0;
    for (int p = 0; p < to; p++) {
      before += m->bucket[0]->bytes[p];
    }
    for (int from = 0; from < m->ranks; from++) {
      memcpy(received[to] + (size_t)from * size, parts[from] + before, size);
    }
  }
}

static void step_once(model *m, const pith_ctx *ctx, float *x[RANKS_MOST][LAYERS]) {
  uint8_t *parts[RANKS_MOST], *received[RANKS_MOST], *results;
  size_t total = 0, at = 0;
  for (int p = 0; p < m->ranks; p++) {
    total += m->bucket[0]->bytes[p];
  }
  results = law_bytes(total, 0);
  for (int r = 0; r < m->ranks; r++) {
    parts[r] = law_bytes(total, 0);
    received[r] = law_bytes(m->bucket[r]->bytes[r] * (size_t)m->ranks, 0);
    CHECK_OK(pith__bucket_encode(m->bucket[r], (const void *const *)x[r], ctx, parts[r]));
  }
  swap_parts(m, parts, received);
  for (int r = 0; r < m->ranks; r++) {
    size_t size = m->bucket[r]->bytes[r];
    CHECK_OK(pith__bucket_reduce(m->bucket[r], (const void *const *)x[r], received[r], ctx, results + at));
    at += size;
  }
  for (int r = 0; r < m->ranks; r++) {
    CHECK_OK(pith__bucket_decode(m->bucket[r], results, 0, ctx, (void *const *)x[r]));
  }
}

static void check_layer(const model *m, size_t l, const pith_ctx *given, float *const *before, float *const *after) {
  float *wanted = law_floats(m->n[l]);
  pith_ctx ctx = *given;
  reference r = {m->codec[l],
                 "sra",
                 NULL,
                 m->ranks,
                 1,
                 m->n[l],
                 PITH_MEAN,
                 (pith_state **)(uintptr_t)m->mine[l],
                 (pith_state **)(uintptr_t)m->results[l]};
  ctx.layer = l;
  reference_allreduce(&r, before, &ctx, wanted);
  for (int rank = 0; rank < m->ranks; rank++) {
    CHECK_MSG(memcmp(after[rank], wanted, m->n[l] * sizeof *wanted) == 0, "%s, %zu values, rank %d of %d",
              pith_codec_spec(m->codec[l]), m->n[l], rank, m->ranks);
  }
}

TEST(a_bucket_gives_what_each_layer_alone_would_give) {
  for (int turn = 0; turn < 40; turn++) {
    model m;
    make(&m);
    for (uint64_t step = 0; step < STEPS; step++) {
      float *x[RANKS_MOST][LAYERS], *before[LAYERS][RANKS_MOST], *after[LAYERS][RANKS_MOST];
      pith_ctx ctx = PITH_CTX_INIT;
      ctx.seed = 3, ctx.step = step;
      for (size_t l = 0; l < LAYERS; l++) {
        for (int r = 0; r < m.ranks; r++) {
          pith_span values = law_tensor(LAW_NORMAL, m.n[l], PITH_F32);
          x[r][l] = after[l][r] = values.data;
          before[l][r] = law_copy(values).data;
        }
      }
      step_once(&m, &ctx, x);
      for (size_t l = 0; l < LAYERS; l++) {
        check_layer(&m, l, &ctx, before[l], after[l]);
      }
      law_sweep();
    }
    destroy(&m);
  }
}

TEST(a_rank_may_have_no_part_of_a_small_layer) {
  pith_codec *q;
  pith_bucket *b;
  uint8_t result[1];
  float x[100] = {0};
  const void *src = x;
  CHECK_OK(pith_codec_create("q:4", &q));
  CHECK_OK(pith__bucket_create(1, 2, &(pith_bucket_item){.codec = q, .n = 100}, 1, &b));
  CHECK_EQ(b->bytes[1], 0);
  CHECK_OK(pith__bucket_reduce(b, &src, NULL, &(pith_ctx)PITH_CTX_INIT, result));
  pith__bucket_destroy(b);
  pith_codec_destroy(q);
}

/* After a change of the loss scale, what is kept is in the new units. */
TEST(a_scaled_state_continues_as_if_all_gradients_had_been_scaled) {
  static const char *const kept[] = {"ef/q:4", "dgc:0.05", "momentum/q:8"};
  for (size_t s = 0; s < 3; s++) {
    pith_codec *codec;
    pith_state *one, *two;
    enum { N = 640 };
    float x[N], big[N], y[N] = {0}, z[N] = {0};
    CHECK_OK(pith_codec_create(kept[s], &codec));
    CHECK_OK(pith_state_create(codec, N, 20, &one));
    CHECK_OK(pith_state_create(codec, N, 20, &two));
    uint8_t *bytes = law_bytes(pith_codec_bound(codec, N), 0);
    for (uint64_t step = 0; step < 4; step++) {
      pith_ctx ctx = PITH_CTX_INIT;
      pith_out out = {bytes, pith_codec_bound(codec, N), 0};
      ctx.step = step;
      for (size_t i = 0; i < N; i++) {
        x[i] = (float)((i * 37 + step * 11) % 101) - 50.0f;
        big[i] = step < 2 ? x[i] : x[i] * 1024.0f;
      }
      CHECK_OK(pith_encode(codec, one, (pith_cspan){x, N, PITH_F32}, &out, &ctx));
      CHECK_OK(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){y, N, PITH_F32}, PITH_SET, &ctx));
      out.size = 0;
      CHECK_OK(step == 2 ? pith_state_scale(two, 1024.0f) : PITH_OK);
      CHECK_OK(pith_encode(codec, two, (pith_cspan){big, N, PITH_F32}, &out, &ctx));
      CHECK_OK(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){z, N, PITH_F32}, PITH_SET, &ctx));
    }
    for (size_t i = 0; i < N; i++) {
      CHECK_MSG(y[i] * 1024.0f == z[i], "%s: value %zu is %g, not %g", kept[s], i, (double)z[i],
                (double)(y[i] * 1024.0f));
    }
    CHECK_STATUS(pith_state_scale(two, 0), PITH_ERR_ARGUMENT);
    pith_state_destroy(one);
    pith_state_destroy(two);
    pith_codec_destroy(codec);
    law_sweep();
  }
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * powersgd on the GPU: what is decoded from factors has the CPU's bits; the factors themselves come from sums in
 * another order, so that they agree within rounding, over steps with a memory too, alone and in rounds.
 */
#include "inputs.h"
#include "memory/memory.h"

typedef struct matrix {
  const char *spec;
  size_t n, rows;
} matrix;

static const matrix matrices[] = {{"powersgd:4", 512 * 600, 512},     {"ef/powersgd:2", 300 * 300, 300},
                                  {"ef/powersgd:1", 70000, 7},        {"powersgd:4", 100003, 0},
                                  {"ef/powersgd:20", 257 * 400, 257}, {"powersgd:8", 64 * 3000, 3000},
                                  {"ef/powersgd:4", 50, 10},          {"momentum:0.5/powersgd:3", 40000, 100}};
enum { MATRICES = sizeof matrices / sizeof *matrices };

/* A layer on both sides. */
typedef struct twin {
  pith_codec *codec;
  pith_state *state;
  pith_cuda_item item;
  size_t bound, space;
  void *workspace;
} twin;

static void twin_open(twin *t, const matrix *m, pith_dtype dtype) {
  CHECK_MSG(pith_codec_create(m->spec, &t->codec) == PITH_OK, "%s", pith_error());
  CHECK(pith_state_create(t->codec, m->n, m->rows, &t->state) == PITH_OK);
  size_t part = pith_cuda_part(t->codec, m->n, m->rows);
  t->bound = pith_codec_bound(t->codec, m->n);
  t->item = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                             .codec = t->codec,
                             .dtype = dtype,
                             .n = m->n,
                             .values = gpu_memory(4 * m->n),
                             .payload = gpu_memory(t->bound),
                             .payload_size = gpu_memory(8),
                             .memory = gpu_memory(4 * m->n),
                             .part = part ? gpu_memory(part) : NULL};
  t->item.seed = 3;
  t->item.rows = m->rows;
  gpu_fill(t->item.memory, 0, 4 * m->n);
  if (part) {
    gpu_fill(t->item.part, 0, part);
  }
  t->space = pith_cuda_workspace(&t->item, 1);
  t->workspace = gpu_memory(t->space);
}

static void twin_close(twin *t) {
  gpu_free(t->item.values);
  gpu_free(t->item.payload);
  gpu_free(t->item.payload_size);
  gpu_free(t->item.memory);
  if (t->item.part) {
    gpu_free(t->item.part);
  }
  gpu_free(t->workspace);
  pith_state_destroy(t->state);
  pith_codec_destroy(t->codec);
}

/* A few strong directions over noise, as gradients are: their factors are well defined. */
static void fill_matrix(float *x, size_t n, size_t rows) {
  size_t cols = rows ? (n + rows - 1) / rows : 1000;
  for (size_t i = 0; i < n; i++) {
    double r = (double)(i / cols), c = (double)(i % cols);
    x[i] = (float)(3 * sin(0.1 * r) * cos(0.07 * c) + 2 * cos(0.3 * r) * sin(0.2 * c) + 0.1 * normal());
  }
}

static double distance(const float *a, const float *b, size_t n) {
  double error = 0, norm = 1e-30;
  for (size_t i = 0; i < n; i++) {
    error += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
    norm += (double)a[i] * a[i];
  }
  return sqrt(error / norm);
}

static void check_near(const float *cpu, const float *gpu_values, size_t n, const matrix *m, const char *what) {
  double d = distance(cpu, gpu_values, n);
  CHECK_MSG(d < 2e-4, "%s of %zu values: %s differs by %g", m->spec, m->n, what, d);
}

static void check_encode(const matrix *m, pith_dtype dtype) {
  twin t;
  twin_open(&t, m, dtype);
  float *x = malloc(4 * m->n), *a = malloc(4 * m->n), *b = malloc(4 * m->n);
  void *input = malloc(4 * m->n);
  uint8_t *payload = malloc(t.bound);
  for (int step = 0; step < 3; step++) {
    uint64_t size = 0;
    fill_matrix(x, m->n, m->rows);
    narrow(x, m->n, dtype, input);
    t.item.step = (uint64_t)step;
    pith_out out = {payload, t.bound, 0};
    gpu_put(t.item.values, input, m->n * pith_dtype_size(dtype));
    CHECK(pith_encode(t.codec, t.state, (pith_cspan){input, m->n, dtype}, &out, ITEM_CTX(t.item)) == PITH_OK);
    CHECK_MSG(pith_cuda_encode(&t.item, 1, t.workspace, t.space, NULL) == PITH_OK, "%s", pith_error());
    GPU_CHECK(gpu.wait());
    gpu_get(&size, t.item.payload_size, 8);
    CHECK_EQ(size, out.size);
    CHECK(pith_decode(t.codec, (pith_bytes){payload, out.size}, (pith_span){a, m->n, PITH_F32}, PITH_SET,
                      ITEM_CTX(t.item)) == PITH_OK);
    gpu_get(payload, t.item.payload, size);
    CHECK_MSG(pith_decode(t.codec, (pith_bytes){payload, size}, (pith_span){b, m->n, PITH_F32}, PITH_SET,
                          ITEM_CTX(t.item)) == PITH_OK,
              "%s", pith_error());
    check_near(a, b, m->n, m, "what is decoded");
    pith_cuda_item there = t.item; /* decoding the same payload gives the same bits on both */
    there.part = NULL;
    there.dtype = PITH_F32;
    CHECK(pith_cuda_decode(&there, 1, PITH_SET, t.workspace, t.space, NULL) == PITH_OK);
    GPU_CHECK(gpu.wait());
    gpu_get(a, t.item.values, 4 * m->n);
    check_values(b, a, m->n, PITH_F32, "decoding", m->spec, NORMAL);
    if (t.state->residual) {
      gpu_get(b, t.item.memory, 4 * m->n);
      check_near(t.state->residual, b, m->n, m, "the residual");
    }
  }
  free(x);
  free(a);
  free(b);
  free(input);
  free(payload);
  twin_close(&t);
}

TEST_WITHIN(low_rank_agrees_with_the_cpu, 300) {
  need_gpu();
  for (int i = 0; i < MATRICES; i++) {
    check_encode(&matrices[i], PITH_F32);
  }
  check_encode(&matrices[1], PITH_BF16);
  check_encode(&matrices[3], PITH_F16);
}

/* Two ranks, summed here; both sides do the same. */
static void check_rounds(const matrix *m) {
  enum { RANKS = 2 };
  twin t[RANKS];
  float *cpu_sum = malloc(4 * m->n), *gpu_sum = malloc(4 * m->n), *buffer = malloc(4 * m->n);
  float *dst = malloc(4 * m->n), *found = malloc(4 * m->n);
  float *input[RANKS];
  for (int r = 0; r < RANKS; r++) {
    twin_open(&t[r], m, PITH_F32);
    t[r].item.ranks = RANKS;
    t[r].item.rank = (uint32_t)r;
    input[r] = malloc(4 * m->n);
  }
  for (int step = 0; step < 2; step++) {
    for (int r = 0; r < RANKS; r++) {
      t[r].item.step = (uint64_t)step;
      fill_matrix(input[r], m->n, m->rows);
      gpu_put(t[r].item.values, input[r], 4 * m->n);
    }
    for (size_t index = 0; index < 2; index++) {
      pith_round round = PITH_ROUND_INIT;
      CHECK(pith_round_describe(t[0].codec, t[0].state, index, &round) == PITH_OK);
      memset(cpu_sum, 0, 4 * m->n);
      memset(gpu_sum, 0, 4 * m->n);
      for (int r = 0; r < RANKS; r++) {
        CHECK(pith_round_produce(t[r].codec, t[r].state, index, (pith_cspan){input[r], m->n, PITH_F32}, buffer,
                                 ITEM_CTX(t[r].item)) == PITH_OK);
        for (size_t i = 0; i < round.count; i++) {
          cpu_sum[i] += buffer[i];
        }
        CHECK_MSG(pith_cuda_produce(&t[r].item, 1, index, t[r].workspace, t[r].space, NULL) == PITH_OK, "%s",
                  pith_error());
        GPU_CHECK(gpu.wait());
        gpu_get(buffer, t[r].item.payload, 4 * round.count);
        for (size_t i = 0; i < round.count; i++) {
          gpu_sum[i] += buffer[i];
        }
      }
      for (int r = 0; r < RANKS; r++) {
        CHECK(pith_round_consume(t[r].codec, t[r].state, index, cpu_sum, (pith_span){dst, m->n, PITH_F32},
                                 ITEM_CTX(t[r].item)) == PITH_OK);
        gpu_put(t[r].item.payload, gpu_sum, 4 * round.count);
        CHECK(pith_cuda_consume(&t[r].item, 1, index, t[r].workspace, t[r].space, NULL) == PITH_OK);
        GPU_CHECK(gpu.wait());
        if (index == 1) {
          gpu_get(found, t[r].item.values, 4 * m->n);
          check_near(dst, found, m->n, m, "the mean");
        }
      }
    }
    for (int r = 0; r < RANKS; r++) {
      if (t[r].state->residual) {
        gpu_get(found, t[r].item.memory, 4 * m->n);
        check_near(t[r].state->residual, found, m->n, m, "the residual of a round");
      }
    }
  }
  for (int r = 0; r < RANKS; r++) {
    free(input[r]);
    twin_close(&t[r]);
  }
  free(cpu_sum);
  free(gpu_sum);
  free(buffer);
  free(dst);
  free(found);
}

TEST_WITHIN(rounds_of_low_rank_agree_with_the_cpu, 300) {
  need_gpu();
  for (int i = 0; i < MATRICES; i++) {
    check_rounds(&matrices[i]);
  }
}

/* The same bits whenever the same is done. */
TEST(low_rank_repeats_itself) {
  need_gpu();
  const matrix *m = &matrices[0];
  uint8_t *first = NULL, *again;
  float *x = malloc(4 * m->n);
  uint64_t size = 0;
  fill_matrix(x, m->n, m->rows);
  for (int i = 0; i < 3; i++) {
    twin t;
    twin_open(&t, m, PITH_F32);
    gpu_put(t.item.values, x, 4 * m->n);
    CHECK(pith_cuda_encode(&t.item, 1, t.workspace, t.space, NULL) == PITH_OK);
    GPU_CHECK(gpu.wait());
    gpu_get(&size, t.item.payload_size, 8);
    again = malloc(size);
    gpu_get(again, t.item.payload, size);
    CHECK(!first || memcmp(first, again, size) == 0);
    free(first);
    first = again;
    twin_close(&t);
  }
  free(first);
  free(x);
}

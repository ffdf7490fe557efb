/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The owner's step in one kernel has the bytes of its steps: the same pieces are reduced from buffers that are aligned,
 * which one kernel takes, and from such that are not, which go step by step. On real devices (reduce_test.c) and
 * made-up ones (bucket_cuda_test.c). Who includes it defines `reduce_device`.
 */
#ifndef PITH_TESTS_CUDA_REDUCE_LAWS_H
#define PITH_TESTS_CUDA_REDUCE_LAWS_H

#include <stdlib.h>
#include <string.h>

#include "codec/codec.h"
#include "device/bucket.h"
#include "device/cuda_tasks.h"
#include "test.h"

/* Memory of the device; get and put wait for it. */
typedef struct reduce_memory {
  void *(*take)(size_t);
  void (*give)(void *);
  void (*put)(void *, const void *, size_t);
  void (*get)(void *, const void *, size_t);
} reduce_memory;

static const reduce_memory reduce_device;

typedef struct reduce_case {
  const char *spec, *wire; /* the second without the memory */
  size_t n;
  int rank, ranks;
  float (*value)(void);
} reduce_case;

/* What is read and written: values, memory, memory of results, result. */
typedef struct reduce_bytes {
  float *memory, *result_memory;
  uint8_t *result;
} reduce_bytes;

static void *reduce_upload(const void *bytes, size_t size) {
  void *there = reduce_device.take(size + 256);
  reduce_device.put(there, bytes, size);
  return there;
}

static float *reduce_values(const reduce_case *c, size_t n) {
  float *x = malloc((n + 1) * sizeof *x);
  for (size_t i = 0; i < n; i++) {
    x[i] = c->value();
  }
  return x;
}

/* `skew` bytes behind an aligned place. */
static void reduce_once(const reduce_case *c, const pith_bucket *b, const float *values, const uint8_t *received,
                        size_t skew, reduce_bytes *io) {
  pith_range piece = pith__bucket_piece(b, 0, c->rank);
  size_t bytes = b->bytes[c->rank], all = bytes * (size_t)c->ranks;
  uint8_t *in = reduce_device.take(all + 16), *out = reduce_device.take(bytes + 16);
  void *own = reduce_upload(values, c->n * sizeof *values);
  void *memory = reduce_upload(io->memory, c->n * sizeof(float)),
       *result_memory = reduce_upload(io->result_memory, piece.n * sizeof(float)),
       *workspace = reduce_device.take(pith__cuda_bucket_workspace(b, 1) + 256);
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 3, ctx.step = 2;
  reduce_device.put(in + skew, received, all);
  CHECK_OK(pith__cuda_bucket_reduce(b, (const void *const *)&own, &memory, &result_memory, in + skew, &ctx, out + skew,
                                    workspace, NULL));
  reduce_device.get(io->result, out + skew, bytes);
  reduce_device.get(io->memory, memory, c->n * sizeof(float));
  reduce_device.get(io->result_memory, result_memory, piece.n * sizeof(float));
  void *const taken[] = {in, out, own, memory, result_memory, workspace};
  for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
    reduce_device.give(taken[i]);
  }
}

/* Payloads of all ranks for our piece; in place of our own, bytes that nobody may read. */
static uint8_t *reduce_payloads(const reduce_case *c, const pith_bucket *b) {
  pith_range piece = pith__bucket_piece(b, 0, c->rank);
  size_t bytes = b->bytes[c->rank];
  uint8_t *received = malloc(bytes * (size_t)c->ranks + 1);
  pith_codec *codec;
  CHECK_OK(pith_codec_create(c->wire, &codec));
  for (int p = 0; p < c->ranks; p++) {
    float *x = reduce_values(c, piece.n);
    pith_out out = {received + (size_t)p * bytes, bytes, 0};
    CHECK_OK(pith_encode(codec, NULL, (pith_cspan){x, piece.n, PITH_F32}, &out, NULL));
    CHECK_EQ(out.size, bytes);
    free(x);
  }
  memset(received + (size_t)c->rank * bytes, 0x77, bytes);
  pith_codec_destroy(codec);
  return received;
}

static void reduce_law(const reduce_case *c) {
  pith_codec *codec;
  pith_bucket *b;
  CHECK_OK(pith_codec_create(c->spec, &codec));
  CHECK_OK(pith__bucket_create(c->rank, c->ranks,
                               &(pith_bucket_item){.codec = codec, .layer = 5, .n = c->n, .dtype = PITH_F32}, 1, &b));
  size_t own = pith__bucket_piece(b, 0, c->rank).n, bytes = b->bytes[c->rank];
  CHECK_MSG(own < 4 * PITH_GPU_REDUCE_VALUES || pith__gpu_reducible(codec, PITH_F32, own),
            "%s is not reduced at once: this proves nothing", c->spec);
  float *values = reduce_values(c, c->n), *memory = reduce_values(c, c->n), *kept = reduce_values(c, own);
  uint8_t *received = reduce_payloads(c, b);
  reduce_bytes io[2];
  for (size_t skew = 0; skew < 2; skew++) {
    io[skew] = (reduce_bytes){malloc(c->n * sizeof(float) + 1), malloc(own * sizeof(float) + 1), malloc(bytes + 1)};
    memcpy(io[skew].memory, memory, c->n * sizeof(float));
    memcpy(io[skew].result_memory, kept, own * sizeof(float));
    reduce_once(c, b, values, received, skew, &io[skew]);
  }
  CHECK_MSG(memcmp(io[0].result, io[1].result, bytes) == 0, "%s, rank %d of %d, %zu values: other bytes at once",
            c->spec, c->rank, c->ranks, c->n);
  CHECK_MSG(memcmp(io[0].memory, io[1].memory, c->n * sizeof(float)) == 0, "%s: another residual at once", c->spec);
  CHECK_MSG(memcmp(io[0].result_memory, io[1].result_memory, own * sizeof(float)) == 0,
            "%s: another residual of results at once", c->spec);
  for (size_t skew = 0; skew < 2; skew++) {
    free(io[skew].memory);
    free(io[skew].result_memory);
    free(io[skew].result);
  }
  free(values);
  free(memory);
  free(kept);
  free(received);
  pith__bucket_destroy(b);
  pith_codec_destroy(codec);
}

#endif

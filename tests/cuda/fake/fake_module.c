/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA module for tests without a GPU: device memory is main memory, and tasks are done by the CPU before the call
 * returns. It has the block codecs without random numbers, exact topk, threshold, ef and momentum, and powersgd; what
 * is rotated it encodes as it is; and lossless. Enough to try what is built on the module, not the kernels. Functions
 * of the library are those of the program that opens it.
 */
#include <math.h>
#include <pith/pith.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/half.h"
#include "base/rng.h"
#include "kernel/formats.h"

#define TEXT 256

static int refuse(char *text, const char *why) { return snprintf(text, TEXT, "the fake module: %s", why), 1; }

/* ---- Memories ---------------------------------------------------------------------------------------------------- */

static float load(const void *values, int dtype, size_t i) {
  return dtype == PITH_GPU_F32   ? ((const float *)values)[i]
         : dtype == PITH_GPU_F16 ? pith__f16_to_f32(((const uint16_t *)values)[i])
                                 : pith__bf16_to_f32(((const uint16_t *)values)[i]);
}

static void store(void *values, int dtype, size_t i, float x) {
  if (dtype == PITH_GPU_F32) {
    ((float *)values)[i] = x;
  } else {
    ((uint16_t *)values)[i] = dtype == PITH_GPU_F16 ? pith__f32_to_f16(x) : pith__f32_to_bf16(x);
  }
}

static void compensate(const void *values, int dtype, float *memory, float beta, float gamma, size_t n) {
  for (size_t i = 0; i < n; i++) {
    memory[i] = beta * memory[i] + gamma * load(values, dtype, i);
  }
}

static void keep_lost(float *memory, const float *decoded, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float rest = memory[i] - decoded[i];
    memory[i] = isfinite(rest) ? rest : isfinite(memory[i]) ? memory[i] : 0.0f;
  }
}

/* Encodes behind a memory, which may be NULL; 0 bytes: it failed. */
static size_t encode_with(const char *spec, pith_cspan src, float *memory, float beta, float gamma, int keeps,
                          const pith_ctx *ctx, uint8_t *payload) {
  pith_codec *codec;
  if (pith_codec_create(spec, &codec) != PITH_OK) {
    return 0;
  }
  pith_out out = {payload, pith_codec_bound(codec, src.n), 0};
  if (memory) {
    compensate(src.data, (int)src.dtype, memory, beta, gamma, src.n);
    src = (pith_cspan){memory, src.n, PITH_F32};
  }
  pith_status status = pith_encode(codec, NULL, src, &out, ctx);
  if (status == PITH_OK && memory && keeps == PITH_GPU_KEEP_LOST) {
    float *decoded = malloc(src.n * sizeof *decoded + 1);
    status = pith_decode(codec, (pith_bytes){payload, out.size}, (pith_span){decoded, src.n, PITH_F32}, PITH_SET, NULL);
    keep_lost(memory, decoded, src.n);
    free(decoded);
  }
  pith_codec_destroy(codec);
  return status == PITH_OK ? out.size : 0;
}

static int decode_with(const char *spec, pith_bytes in, pith_span dst, int add) {
  pith_codec *codec;
  pith_status status = pith_codec_create(spec, &codec);
  if (status == PITH_OK) {
    in.size = in.size ? in.size : pith_codec_bound(codec, dst.n);
    status = pith_decode(codec, in, dst, add ? PITH_ADD : PITH_SET, NULL);
    pith_codec_destroy(codec);
  }
  return status != PITH_OK;
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static int block_spec(const pith_gpu_task *t, char *spec) {
  static const char *const scales[] = {"one", "mean", "unbiased"};
  static const char *const types[] = {"e4m3", "e5m2", "e2m3", "e3m2", "e2m1"};
  if ((t->rotation && t->kind != PITH_WIRE_LLOYD) || (t->kind == PITH_WIRE_Q && t->choice != PITH_ROUND_NEAREST)) {
    return 0;
  }
  switch (t->kind) {
    case PITH_WIRE_LLOYD:
      return snprintf(spec, TEXT, "lloyd:%u,bucket=%u", (unsigned)t->bits, t->bucket);
    case PITH_WIRE_NONE:
      return snprintf(spec, TEXT, "none");
    case PITH_WIRE_FP16:
      return snprintf(spec, TEXT, "fp16");
    case PITH_WIRE_BF16:
      return snprintf(spec, TEXT, "bf16");
    case PITH_WIRE_Q:
      return snprintf(spec, TEXT, "q:%u,bucket=%u", (unsigned)t->bits, t->bucket);
    case PITH_WIRE_FP8:
      return snprintf(spec, TEXT, "fp8:%s,bucket=%u", types[t->choice], t->bucket);
    case PITH_WIRE_MX:
      return snprintf(spec, TEXT, "mx:%s", types[t->choice]);
    case PITH_WIRE_NVFP4:
      return snprintf(spec, TEXT, "nvfp4");
    case PITH_WIRE_SIGN:
      return snprintf(spec, TEXT, "sign,scale=%s,bucket=%u", scales[t->choice], t->bucket);
    default:
      return 0;
  }
}

static int encode(const pith_gpu_task *tasks, size_t count, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_task *t = &tasks[i];
    char spec[TEXT];
    pith_ctx ctx = PITH_CTX_INIT;
    ctx.step = t->kind == PITH_WIRE_SIGN && t->levels; /* which zeros vote minus follows from it */
    if (!block_spec(t, spec) || !encode_with(spec, (pith_cspan){t->values, t->n, (pith_dtype)t->dtype}, t->memory,
                                             t->beta, t->gamma, t->keeps, &ctx, t->payload)) {
      return refuse(text, "it cannot encode that");
    }
  }
  return 0;
}

static int decode(const pith_gpu_task *tasks, size_t count, int add, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_task *t = &tasks[i];
    char spec[TEXT];
    if (!block_spec(t, spec) ||
        decode_with(spec, (pith_bytes){t->payload, 0}, (pith_span){t->values, t->n, (pith_dtype)t->dtype}, add)) {
      return refuse(text, "it cannot decode that");
    }
  }
  return 0;
}

/* ---- topk -------------------------------------------------------------------------------------------------------- */

enum { SPACE = 256 };

static size_t space(const pith_gpu_sparse *task) { return (void)task, SPACE; }

static int sparse_spec(const pith_gpu_sparse *t, char *spec) {
  static const char *const codings[] = {"fp32", "fp16", "bf16", "q8"};
  float cut;
  memcpy(&cut, &t->cut, sizeof cut);
  if (t->kind == PITH_WIRE_THRESHOLD) {
    return snprintf(spec, TEXT, "threshold:%.9g,values=%s", (double)cut, codings[t->coding]);
  }
  int fits = t->kind == PITH_WIRE_TOPK && t->select != PITH_GPU_SELECT_SAMPLED && t->keeps != PITH_GPU_KEEP_UNSENT;
  double ratio = t->n ? ((double)t->k - 0.5) / (double)t->n : 1;
  return fits ? snprintf(spec, TEXT, "topk:%.9g,values=%s", ratio, codings[t->coding]) : 0;
}

static int sparse_encode(const pith_gpu_sparse *tasks, size_t count, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_sparse *t = &tasks[i];
    char spec[TEXT];
    pith_cspan src = {t->values, t->n, (pith_dtype)t->dtype};
    memset(t->space, 0xee, SPACE); /* kernels would use it */
    *t->size =
        sparse_spec(t, spec) ? encode_with(spec, src, t->memory, t->beta, t->gamma, t->keeps, NULL, t->payload) : 0;
    if (!*t->size || *t->size > t->capacity) {
      return refuse(text, "it cannot select that");
    }
    memset(t->payload + *t->size, 0xee, t->capacity - *t->size); /* what follows a payload travels, and means nothing */
  }
  return 0;
}

static int sparse_decode(const pith_gpu_sparse *tasks, size_t count, int add, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_sparse *t = &tasks[i];
    char spec[TEXT];
    memset(t->space, 0xee, SPACE);
    if (!sparse_spec(t, spec) || decode_with(spec, (pith_bytes){t->payload, *t->size},
                                             (pith_span){t->values, t->n, (pith_dtype)t->dtype}, add)) {
      return refuse(text, "it cannot decode that");
    }
  }
  return 0;
}

/* ---- lossless ---------------------------------------------------------------------------------------------------- */

static int lossless_encode(const pith_gpu_lossless *tasks, size_t count, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_lossless *t = &tasks[i];
    memset(t->space, 0xee, PITH_GPU_LOSSLESS_SPACE(t->n)); /* kernels would use it */
    *t->size =
        encode_with("lossless", (pith_cspan){t->values, t->n, (pith_dtype)t->dtype}, NULL, 0, 1, 0, NULL, t->payload);
    if (!*t->size || *t->size > t->capacity) {
      return refuse(text, "it cannot encode that");
    }
    memset(t->payload + *t->size, 0xee, t->capacity - *t->size);
  }
  return 0;
}

static int lossless_decode(const pith_gpu_lossless *tasks, size_t count, int add, void *stream, char *text) {
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_lossless *t = &tasks[i];
    if (decode_with("lossless", (pith_bytes){t->payload, *t->size}, (pith_span){t->values, t->n, (pith_dtype)t->dtype},
                    add)) {
      return refuse(text, "it cannot decode that");
    }
  }
  return 0;
}

/* ---- powersgd ---------------------------------------------------------------------------------------------------- */

static size_t lowrank_space(const pith_gpu_lowrank *task) { return (void)task, SPACE; }

static float at(const pith_gpu_lowrank *t, uint32_t row, uint32_t col) {
  size_t i = (size_t)row * t->cols + col;
  return i >= t->n ? 0.0f : t->memory ? t->memory[i] : load(t->values, t->dtype, i);
}

static void wake(const pith_gpu_lowrank *t) {
  for (uint32_t k = 0; k < t->rank; k++) {
    float *column = t->part + (size_t)k * t->cols;
    uint64_t h = pith__mix64(pith__mix64(t->hash ^ pith__mix64(k + ((uint64_t)PITH_DOMAIN_LOWRANK << 56))) ^
                             pith__mix64(0x78dde6e5fd29f054u));
    int some = 0;
    for (uint32_t i = 0; i < t->cols; i++) {
      some |= column[i] != 0;
    }
    for (uint32_t i = 0; !some && i < t->cols; i++) {
      column[i] = 2.0f * pith__rng_unit((pith_key){(uint32_t)h, (uint32_t)(h >> 32)}, i) - 1.0f;
    }
  }
}

/* out = M · columns, or Mᵀ · columns */
static void multiply(const pith_gpu_lowrank *t, const float *columns, float *out, int transposed) {
  uint32_t rows = transposed ? t->cols : t->rows, cols = transposed ? t->rows : t->cols;
  for (uint32_t k = 0; k < t->rank; k++) {
    for (uint32_t r = 0; r < rows; r++) {
      double sum = 0;
      for (uint32_t c = 0; c < cols; c++) {
        sum += (double)(transposed ? at(t, c, r) : at(t, r, c)) * columns[(size_t)k * cols + c];
      }
      out[(size_t)k * rows + r] = (float)sum;
    }
  }
}

static double dot(const float *a, const float *b, uint32_t n) {
  double sum = 0;
  for (uint32_t i = 0; i < n; i++) {
    sum += (double)a[i] * b[i];
  }
  return sum;
}

static void orthonormalize(float *columns, uint32_t count, uint32_t n) {
  for (uint32_t k = 0; k < count; k++) {
    float *column = columns + (size_t)k * n;
    for (uint32_t j = 0; j < 2 * k; j++) {
      const float *other = columns + (size_t)(j % k) * n;
      double share = dot(other, column, n);
      for (uint32_t i = 0; i < n; i++) {
        column[i] -= (float)(share * other[i]);
      }
    }
    double norm = sqrt(dot(column, column, n));
    for (uint32_t i = 0; i < n; i++) {
      column[i] = norm > 0 ? (float)(column[i] / norm) : 0.0f;
    }
  }
}

/* The mean, from the sum of all ranks, and what it leaves in the memory. */
static void finish(const pith_gpu_lowrank *t, const float *q, const float *p, const float *sums) {
  for (size_t i = 0; i < t->n; i++) {
    float value = t->dense ? sums[i] * t->factor : 0.0f;
    for (uint32_t k = 0; !t->dense && k < t->rank; k++) {
      value += p[(size_t)k * t->rows + i / t->cols] * q[(size_t)k * t->cols + i % t->cols];
    }
    store(t->values, t->dtype, i, value);
    if (t->memory && t->keeps == PITH_GPU_KEEP_LOST) {
      t->memory[i] -= load(t->values, t->dtype, i);
    }
  }
}

/* Without a part Q starts anew, in the payload, where P comes first. */
static void encode_lowrank(const pith_gpu_lowrank *t) {
  size_t in_p = (size_t)t->rank * t->rows, in_q = (size_t)t->rank * t->cols;
  float *p = malloc((in_p + in_q) * sizeof *p), *q = t->part ? t->part : p + in_p;
  uint64_t rows = t->dense ? 0 : t->rows;
  memset(p, 0, (in_p + in_q) * sizeof *p);
  if (t->memory) {
    compensate(t->values, t->dtype, t->memory, t->beta, t->gamma, t->n);
  }
  memcpy(t->payload, &rows, 8);
  for (size_t i = 0; t->dense && i < t->n; i++) {
    float x = t->memory ? t->memory[i] : load(t->values, t->dtype, i);
    memcpy(t->payload + 8 + 4 * i, &x, 4);
  }
  if (!t->dense) {
    pith_gpu_lowrank woken = *t;
    woken.part = q;
    wake(&woken);
    multiply(t, q, p, 0);
    orthonormalize(p, t->rank, t->rows);
    multiply(t, p, q, 1);
    memcpy(t->payload + 8, p, in_p * sizeof *p);
    memcpy(t->payload + 8 + in_p * sizeof *p, q, in_q * sizeof *q);
  }
  free(p);
}

static int decode_lowrank(const pith_gpu_lowrank *t, int add) {
  char spec[TEXT];
  size_t values = t->dense ? t->n : (size_t)t->rank * (t->rows + t->cols);
  snprintf(spec, TEXT, "powersgd:%u", t->rank);
  return decode_with(spec, (pith_bytes){t->payload, 8 + 4 * values}, (pith_span){t->values, t->n, (pith_dtype)t->dtype},
                     add);
}

static void one_round(const pith_gpu_lowrank *t, int what) {
  float *q = t->part, *p = q ? q + (size_t)t->rank * t->cols : NULL, *buffer = (float *)(void *)t->payload;
  size_t in_p = t->dense ? 0 : (size_t)t->rank * t->rows, in_q = t->dense ? 0 : (size_t)t->rank * t->cols;
  switch (what) {
    case PITH_GPU_LOWRANK_PRODUCE_P:
      if (t->memory) {
        compensate(t->values, t->dtype, t->memory, t->beta, t->gamma, t->n);
      }
      if (!t->dense) {
        wake(t);
        multiply(t, q, p, 0);
        memcpy(buffer, p, in_p * sizeof *p);
      }
      break;
    case PITH_GPU_LOWRANK_CONSUME_P:
      if (!t->dense) {
        memcpy(p, buffer, in_p * sizeof *p);
        orthonormalize(p, t->rank, t->rows);
      }
      break;
    case PITH_GPU_LOWRANK_PRODUCE_Q:
      if (!t->dense) {
        multiply(t, p, q, 1);
        memcpy(buffer, q, in_q * sizeof *q);
      }
      for (size_t i = 0; t->dense && i < t->n; i++) {
        buffer[i] = t->memory ? t->memory[i] : load(t->values, t->dtype, i);
      }
      break;
    default:
      for (size_t i = 0; i < in_q; i++) {
        q[i] = buffer[i] * t->factor;
      }
      finish(t, q, p, buffer);
  }
}

static int lowrank(const pith_gpu_lowrank *tasks, size_t count, int what, void *stream, char *text) {
  int failed = 0;
  (void)stream;
  for (size_t i = 0; i < count; i++) {
    memset(tasks[i].space, 0xee, SPACE);
    if (what == PITH_GPU_LOWRANK_ENCODE) {
      encode_lowrank(&tasks[i]);
    } else if (what < PITH_GPU_LOWRANK_PRODUCE_P) {
      failed |= decode_lowrank(&tasks[i], what == PITH_GPU_LOWRANK_ADD);
    } else {
      one_round(&tasks[i], what);
    }
  }
  return failed ? refuse(text, "it cannot decode that") : 0;
}

/* ---- Means and memory -------------------------------------------------------------------------------------------- */

static int own(const pith_gpu_own *tasks, size_t count, void *stream, char *text) {
  (void)stream, (void)text;
  for (size_t i = 0; i < count; i++) {
    const pith_gpu_own *t = &tasks[i];
    for (uint32_t j = 0; j < t->n; j++) {
      float g = load(t->values, t->dtype, j), p = t->memory ? t->beta * t->memory[j] + t->gamma * g : g;
      if (t->memory && isfinite(p)) {
        t->memory[j] = t->keeps == PITH_GPU_KEEP_LOST ? 0.0f : p;
      }
      t->sums[j] = t->add ? t->sums[j] + p : p;
    }
  }
  return 0;
}

/* ---- Residuals, value by value: docs/format.md, "Residuals" ------------------------------------------------------ */

enum { BLOCK = 256, BLOCK_BYTES = 260 };

static float widened(const void *values, int kind, size_t i) {
  const uint8_t *block = (const uint8_t *)values + i / BLOCK * BLOCK_BYTES;
  float unit;
  if (kind != PITH_STORE_8) {
    return load(values, kind == PITH_STORE_BF16 ? PITH_GPU_BF16 : PITH_GPU_F32, i);
  }
  memcpy(&unit, block, sizeof unit);
  return unit * (float)((int)block[4 + i % BLOCK] - 127) + 0.0f;
}

static uint16_t random_bf16(float x, uint32_t random) {
  uint32_t bits, up;
  memcpy(&bits, &x, sizeof bits);
  up = (bits & 0x7fffffffu) + (random >> 16);
  up = up < 0x7f7fffffu ? up : 0x7f7fffffu;
  return isfinite(x) ? (uint16_t)(up >> 16 | (bits >> 16 & 0x8000u)) : 0;
}

/* A block of values that are there as f32. */
static void pack(const float *x, size_t n, int kind, pith_key key, uint32_t index, void *values, size_t first) {
  uint8_t *block = (uint8_t *)values + first / BLOCK * BLOCK_BYTES;
  float most = 0;
  for (size_t i = 0; i < n; i++) {
    most = isfinite(x[i]) && fabsf(x[i]) > most ? fabsf(x[i]) : most;
  }
  most = most < 0x1p-119f ? 0.0f : most > 0x1p127f ? 0x1p127f : most;
  float unit = most / 127.0f, inverse = most > 0 ? 127.0f / most : 0.0f;
  for (size_t i = 0; i < n; i++) {
    uint32_t place = index + (uint32_t)i;
    float t = (isfinite(x[i]) ? x[i] : 0.0f) * inverse, whole = floorf(t);
    float level = whole + (pith__rng_unit(key, place) < t - whole ? 128.0f : 127.0f);
    if (kind == PITH_STORE_F32) {
      ((float *)values)[first + i] = x[i];
    } else if (kind == PITH_STORE_BF16) {
      ((uint16_t *)values)[first + i] = random_bf16(x[i], pith__rng32(key, place));
    } else {
      memcpy(block, &unit, sizeof unit);
      block[4 + i] = (uint8_t)(level < 0 ? 0 : level > 254 ? 254 : level);
    }
  }
}

static int repack(const pith_repack_task *tasks, size_t count, void *stream, char *text) {
  (void)stream, (void)text;
  for (size_t i = 0; i < count; i++) {
    const pith_repack_task *t = &tasks[i];
    for (size_t first = 0; first < t->n; first += BLOCK) {
      float x[BLOCK];
      size_t n = t->n - first < BLOCK ? t->n - first : BLOCK;
      for (size_t j = 0; j < n; j++) {
        x[j] = t->factor * widened(t->from, t->from_store, first + j);
        x[j] = t->add ? widened(t->to, t->to_store, first + j) + x[j] : x[j];
      }
      pack(x, n, t->to_store, (pith_key){t->key0, t->key1}, t->index + (uint32_t)first, t->to, first);
    }
  }
  return 0;
}

static void fold(const pith_update_task *t, size_t j, float m, float *kept) {
  kept[j % BLOCK] = t->pass * widened(t->residual, t->store, j) + t->fold * m;
  if (j % BLOCK == BLOCK - 1 || j + 1 == t->n) {
    size_t first = j / BLOCK * BLOCK;
    pack(kept, j + 1 - first, t->store, (pith_key){t->key0, t->key1}, t->index + (uint32_t)first, t->residual, first);
  }
}

static int update(const pith_update_task *tasks, size_t count, void *stream, char *text) {
  (void)stream, (void)text;
  for (size_t i = 0; i < count; i++) {
    const pith_update_task *t = &tasks[i];
    float kept[BLOCK];
    for (size_t j = 0; j < t->n; j++) {
      float old = t->before ? t->keep * load(t->before, t->dtype, j) : 0.0f;
      float more = t->gradient ? t->take * load(t->gradient, t->dtype, j) : 0.0f;
      float m = t->before && t->gradient ? old + more : t->before ? old : more, step = t->rate * m;
      if (t->variance) {
        step = step / (t->root * sqrtf(load(t->variance, t->dtype, j)) + t->epsilon);
      }
      if (t->moment) {
        store(t->moment, t->dtype, j, m);
      }
      if (t->parameter) {
        float x = t->decay * (t->start ? t->start[j] : load(t->parameter, t->dtype, j)) - step;
        store(t->parameter, t->dtype, j, x);
        t->start ? t->start[j] = x : 0;
      }
      if (t->residual) {
        fold(t, j, m, kept);
      }
    }
  }
  return 0;
}

static int mean(const pith_gpu_mean *tasks, size_t count, void *stream, char *text) {
  (void)stream, (void)text;
  for (size_t i = 0; i < count; i++) {
    for (uint32_t j = 0; j < tasks[i].n; j++) {
      float x = tasks[i].sums[j], vote = x > 0 ? 1.0f : x < 0 ? -1.0f : x == 0 ? 0.0f : x;
      store(tasks[i].values, tasks[i].dtype, j, tasks[i].vote ? vote : x * tasks[i].factor);
    }
  }
  return 0;
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static int sample(const pith_gpu_sample *t, void *stream, char *text) {
  (void)stream, (void)text;
  for (uint64_t i = 0; i < t->count; i++) {
    uint64_t from = (t->first + i / t->piece * t->stride) * t->piece + i % t->piece;
    t->sample[i] = from < t->n ? load(t->values, t->dtype, from) : NAN;
  }
  return 0;
}

enum { BINS = 0x8000, BIN_INF = 0x7f80 };

/* The k largest: whole bins, and a share of the last. */
static double energy_of_top(const uint64_t *count, const double *energy, uint64_t k) {
  double sum = 0;
  for (size_t bin = BINS; bin-- > 0;) {
    if (count[bin] >= k) {
      return sum + (count[bin] ? (double)k / (double)count[bin] * energy[bin] : 0);
    }
    k -= count[bin];
    sum += energy[bin];
  }
  return sum;
}

static int magnitudes(const pith_gpu_magnitudes *t, void *stream, char *text) {
  uint64_t *count = t->space;
  double *energy = (double *)(count + BINS);
  (void)stream, (void)text;
  memset(t->space, 0, 16 * BINS);
  t->numbers[0] = 1, t->numbers[1] = 0;
  for (uint64_t i = 0; i < t->n; i++) {
    float x = load(t->values, t->dtype, i);
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    size_t bin = bits >> 16 & (BINS - 1);
    count[bin]++;
    energy[bin] += (double)x * (double)x;
    t->numbers[0] = bin >= BIN_INF ? 0 : t->numbers[0];
    t->numbers[1] += (double)x * (double)x;
  }
  for (uint32_t i = 0; i < t->tops; i++) {
    t->numbers[2 + i] = energy_of_top(count, energy, t->top[i]);
  }
  return 0;
}

static double squares(const float *a, const float *b, uint64_t n) {
  double sum = 0;
  for (uint64_t i = 0; i < n; i++) {
    double x = (double)a[i] - (b ? (double)b[i] : 0);
    sum += x * x;
  }
  return sum;
}

static int differences(const pith_gpu_difference *tasks, size_t count, void *space, void *stream, char *text) {
  (void)stream, (void)text;
  memset(space, 0xee, PITH_GPU_STATISTICS_SPACE);
  for (size_t i = 0; i < count; i++) {
    *tasks[i].sum = squares(tasks[i].a, tasks[i].b, tasks[i].n);
  }
  return 0;
}

static int uniform_errors(const pith_gpu_uniform *t, void *stream, char *text) {
  uint8_t *payload = malloc(5 * t->n + 4096);
  float *decoded = malloc(4 * t->n + 4);
  int failed = 0;
  (void)stream;
  for (uint32_t i = 0; i < 32; i++) {
    char spec[TEXT];
    snprintf(spec, TEXT, "q:%u,bucket=%u", i % 8 + 1, 128u << i / 8);
    if (t->wanted >> i & 1) {
      size_t size =
          encode_with(spec, (pith_cspan){t->values, t->n, PITH_F32}, NULL, 0, 0, PITH_GPU_KEEP_ALL, NULL, payload);
      failed |= decode_with(spec, (pith_bytes){payload, size}, (pith_span){decoded, t->n, PITH_F32}, 0);
      t->errors[i] = squares(t->values, decoded, t->n);
    }
  }
  free(payload);
  free(decoded);
  return failed ? refuse(text, "it cannot measure that") : 0;
}

static int keep_if(const double *flag, float *to, const float *from, size_t n, void *stream, char *text) {
  (void)stream, (void)text;
  if (*flag != 0) {
    memcpy(to, from, n * sizeof *to);
  }
  return 0;
}

static int stamp(double *nanoseconds, void *stream, char *text) {
  struct timespec now;
  (void)stream, (void)text;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return *nanoseconds = 1e9 * (double)now.tv_sec + (double)now.tv_nsec, 0;
}

/* Step by step, in memory of its own. */
static int reduce(const pith_gpu_reduce *tasks, size_t count, void *stream, char *text) {
  int failed = 0;
  for (size_t i = 0; i < count && !failed; i++) {
    const pith_gpu_reduce *t = &tasks[i];
    pith_gpu_task task = t->result;
    float *sums = malloc(t->n * sizeof *sums + 1);
    if (t->n == 0 || t->n % PITH_GPU_REDUCE_VALUES || t->result.n != t->n ||
        t->result.bucket != PITH_GPU_REDUCE_BUCKET) {
      failed = refuse(text, "these are no pairs of blocks");
    }
    for (uint32_t p = 0; p < t->ranks && !failed; p++) {
      task.values = sums, task.payload = (uint8_t *)(uintptr_t)(t->received + p * t->stride), task.dtype = PITH_GPU_F32;
      pith_gpu_own mine = {t->own, t->memory, sums, t->n, 0, 0, t->beta, t->gamma, PITH_GPU_F32, t->keeps, p > 0, 0};
      failed = p == t->rank ? own(&mine, 1, stream, text) : decode(&task, 1, p > 0, stream, text);
    }
    task.payload = t->result.payload;
    failed = failed ||
             mean(&(pith_gpu_mean){.sums = sums, .values = sums, .n = t->n, .factor = t->factor}, 1, stream, text) ||
             encode(&task, 1, stream, text);
    free(sums);
  }
  return failed;
}

static int describe(char *text) { return snprintf(text, TEXT, "a fake device"), 0; }

static int device(int *number, char *text) { return (void)text, *number = 0, 0; }

/* PITH_FAKE_MEMORY: the most bytes that it gives at a time. */
static int allocate(size_t size, void **memory, char *text) {
  const char *most = getenv("PITH_FAKE_MEMORY");
  if (most && size > strtoull(most, NULL, 10)) {
    return refuse(text, "out of memory");
  }
  *memory = aligned_alloc(256, (size + 256) / 256 * 256);
  memset(*memory, 0, (size + 256) / 256 * 256);
  return 0;
}

static int copy(void *to, const void *from, size_t size, char *text) { return (void)text, memcpy(to, from, size), 0; }

/* ---- Pinned memory ----------------------------------------------------------------------------------------------- */

/* What goes to the host arrives when an event behind it has been waited for, and not before; until then other bytes are
 * there. */
typedef struct delayed {
  void *to, *bytes;
  size_t size;
  uint64_t turn;
  struct delayed *next;
} delayed;

/* Of the thread that enqueued them; others may wait for their events. Never freed. */
typedef struct queue {
  pthread_mutex_t mutex;
  delayed *under_way;
  uint64_t turns;
  struct queue *next;
} queue;

typedef struct event {
  queue *queue;
  uint64_t turn;
} event;

static queue *queues; /* so that all can be reached */
static pthread_mutex_t queues_mutex = PTHREAD_MUTEX_INITIALIZER;

static queue *own_queue(void) {
  static _Thread_local queue *mine;
  if (!mine) {
    mine = calloc(1, sizeof *mine);
    pthread_mutex_init(&mine->mutex, NULL);
    pthread_mutex_lock(&queues_mutex);
    mine->next = queues;
    queues = mine;
    pthread_mutex_unlock(&queues_mutex);
  }
  return mine;
}

static int pin(size_t size, void **memory, char *text) { return allocate(size, memory, text); }

static int to_host(void *to, const void *from, size_t size, void *stream, char *text) {
  queue *q = own_queue();
  delayed *d = malloc(sizeof *d), **end = &q->under_way;
  (void)stream, (void)text;
  pthread_mutex_lock(&q->mutex);
  *d = (delayed){to, malloc(size + 1), size, ++q->turns, NULL};
  memcpy(d->bytes, from, size);
  memset(to, 0xee, size);
  while (*end) {
    end = &(*end)->next;
  }
  *end = d;
  pthread_mutex_unlock(&q->mutex);
  return 0;
}

static int to_device(void *to, const void *from, size_t size, void *stream, char *text) {
  return (void)stream, copy(to, from, size, text);
}

static int event_create(void **made, char *text) { return (void)text, *made = calloc(1, sizeof(event)), 0; }

/* PITH_FAKE_FAULT: this event of a thread, counted from one, cannot be recorded. */
static int event_record(void *given, void *stream, char *text) {
  static _Thread_local uint64_t count;
  const char *fault = getenv("PITH_FAKE_FAULT");
  (void)stream;
  if (fault && ++count == strtoull(fault, NULL, 10)) {
    return refuse(text, "a made-up error");
  }
  queue *q = own_queue();
  return *(event *)given = (event){q, q->turns}, 0;
}

static int event_wait(void *given, char *text) {
  const event *e = given;
  queue *q = e->queue;
  (void)text;
  if (!q) {
    return 0; /* it was never recorded */
  }
  pthread_mutex_lock(&q->mutex);
  while (q->under_way && q->under_way->turn <= e->turn) {
    delayed *d = q->under_way;
    memcpy(d->to, d->bytes, d->size);
    q->under_way = d->next;
    free(d->bytes);
    free(d);
  }
  pthread_mutex_unlock(&q->mutex);
  return 0;
}

/* PITH_FAKE_HANG: the device never comes to the end of anything. */
static int event_done(void *given, int *done, char *text) {
  *done = !getenv("PITH_FAKE_HANG");
  return *done ? event_wait(given, text) : 0;
}

static int stream_create(void **stream, char *text) { return (void)text, *stream = malloc(1), 0; }

static int stream_wait(void *stream, void *given, char *text) { return (void)stream, (void)given, (void)text, 0; }

/* ---- Messages between devices: memory without a name, which other processes map ---------------------------------- */

static int map(int descriptor, size_t size, void **memory, char *text) {
  *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  return *memory == MAP_FAILED ? refuse(text, "that memory cannot be mapped") : 0;
}

/* One device for all; PITH_FAKE_TURNS: its processes run in turns. */
static int identify(pith_ipc_device *found, char *text) {
  (void)text;
  *found = (pith_ipc_device){.has_mps = !getenv("PITH_FAKE_TURNS")};
  return 0;
}

/* PITH_FAKE_NO_IPC: there is none. */
static int share(size_t size, void **memory, int *descriptor, char *text) {
  if (getenv("PITH_FAKE_NO_IPC")) {
    return refuse(text, "it shares nothing");
  }
  int fd = memfd_create("fake", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, (off_t)size) != 0 || map(fd, size, memory, text)) {
    return refuse(text, "out of shared memory");
  }
  *descriptor = fd;
  return 0;
}

static void unmap(void *memory, size_t size) { munmap(memory, size); }

static _Atomic uint32_t *word(uint32_t *at) { return (_Atomic uint32_t *)at; }

static uint64_t nanoseconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int ipc_wait(const pith_ipc_wait *w, void *stream, char *text) {
  uint64_t begun = nanoseconds();
  (void)stream, (void)text;
  for (uint32_t i = 0; i < w->count; i++) {
    while (!atomic_load(word(w->broken)) && !atomic_load(word(w->flag[i]))) {
      int aborts = atomic_load(word(&w->report->abort)) != 0;
      if (aborts || nanoseconds() - begun > w->limit) {
        w->report->rank = w->rank[i];
        atomic_store(word(w->broken), 1);
        atomic_store(word(&w->report->failed), aborts ? PITH_IPC_ABORTED : PITH_IPC_LATE);
      }
      sched_yield();
    }
    if (!atomic_load(word(w->broken))) {
      atomic_store(word(w->flag[i]), 0);
    }
  }
  return 0;
}

/* PITH_FAKE_DEAF: nothing arrives. */
static int ipc_copy(const pith_ipc_copy *c, void *stream, char *text) {
  int broken = atomic_load(word(c->broken)) != 0;
  (void)stream;
  if (c->pieces > PITH_IPC_RANKS || c->flags > PITH_IPC_RANKS || *c->blocks) {
    return refuse(text, "that is no copy");
  }
  for (uint32_t i = 0; i < c->pieces && !getenv("PITH_FAKE_DEAF"); i++) {
    if (!broken) {
      memcpy(c->piece[i].to, c->piece[i].from, c->piece[i].size);
    } else if (c->spoils) {
      memset(c->piece[i].to, 0xff, c->piece[i].size);
    }
  }
  for (uint32_t i = 0; i < c->flags && !broken; i++) {
    if (atomic_exchange(word(c->flag[i]), 1)) {
      return refuse(text, "a flag was set twice");
    }
  }
  return 0;
}

static int ipc_combine(const pith_ipc_combine *c, void *stream, char *text) {
  int broken = atomic_load(word(c->broken)) != 0;
  (void)stream, (void)text;
  for (uint64_t i = 0; i < c->n; i++) {
    if (c->is_f64) {
      double sum = ((const double *)c->from[0])[i];
      for (uint32_t p = 1; p < c->count; p++) {
        sum += ((const double *)c->from[p])[i];
      }
      ((double *)c->to)[i] = broken ? NAN : c->is_mean ? sum / c->count : sum;
    } else {
      float sum = ((const float *)c->from[0])[i];
      for (uint32_t p = 1; p < c->count; p++) {
        sum += ((const float *)c->from[p])[i];
      }
      ((float *)c->to)[i] = broken ? NAN : c->is_mean ? sum * (1.0f / (float)c->count) : sum;
    }
  }
  return 0;
}

/* ---- What it does not have --------------------------------------------------------------------------------------- */

static int use_device(int number, char *text) { return number ? refuse(text, "there is one device") : 0; }

static int move(void *to, const void *from, size_t size, void *stream, char *text) {
  return (void)stream, copy(to, from, size, text);
}

static int clear(void *memory, size_t size, void *stream, char *text) {
  return (void)stream, (void)text, memset(memory, 0, size), 0;
}

static const pith_cuda_module module = {
    .abi = PITH_CUDA_ABI,
    .describe = describe,
    .encode = encode,
    .decode = decode,
    .sparse_space = space,
    .sparse_encode = sparse_encode,
    .sparse_decode = sparse_decode,
    .lowrank_space = lowrank_space,
    .lowrank = lowrank,
    .mean = mean,
    .own = own,
    .update = update,
    .repack = repack,
    .sample = sample,
    .magnitudes = magnitudes,
    .uniform_errors = uniform_errors,
    .differences = differences,
    .keep_if = keep_if,
    .stamp = stamp,
    .device = device,
    .allocate = allocate,
    .release = free,
    .copy = copy,
    .pin = pin,
    .unpin = free,
    .to_host = to_host,
    .to_device = to_device,
    .event_create = event_create,
    .event_destroy = free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_done = event_done,
    .stream_create = stream_create,
    .stream_destroy = free,
    .stream_wait = stream_wait,
    .use_device = use_device,
    .move = move,
    .clear = clear,
    .identify = identify,
    .share = share,
    .map = map,
    .unmap = unmap,
    .ipc_wait = ipc_wait,
    .ipc_copy = ipc_copy,
    .ipc_combine = ipc_combine,
    .reduce = reduce,
    .lossless_encode = lossless_encode,
    .lossless_decode = lossless_decode,
};

__attribute__((visibility("default"))) const pith_cuda_module *pith_cuda_module_entry(void);
const pith_cuda_module *pith_cuda_module_entry(void) { return &module; }

/* SPDX-License-Identifier: Apache-2.0 */
/* The support for laws over random inputs: see laws.h. */
#include "laws.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/codec.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

#define GUARD 0xa5
#define ALIGN 64
#if defined(__SANITIZE_ADDRESS__)
#define TAIL 0 /* the sanitizer guards the end, against reading too */
#else
#define TAIL 32
#endif

typedef enum kind { BYTES, CODEC, STATE } kind;

typedef struct keepsake {
  kind kind;
  void *object;
  size_t front, size;
} keepsake;

static keepsake *kept;
static size_t kept_count, kept_room;

static pthread_mutex_t kept_mutex = PTHREAD_MUTEX_INITIALIZER; /* ranks may be threads */

static void keep(keepsake thing) {
  pthread_mutex_lock(&kept_mutex);
  if (kept_count == kept_room) {
    kept_room = kept_room ? 2 * kept_room : 64;
    kept = realloc(kept, kept_room * sizeof *kept);
  }
  kept[kept_count++] = thing;
  pthread_mutex_unlock(&kept_mutex);
}

void *law_bytes(size_t size, size_t lead) {
  size_t front = ALIGN + lead % ALIGN, all = front + size + TAIL;
  uint8_t *base = NULL;
  if (posix_memalign((void **)&base, ALIGN, all) != 0) {
    test_fail(__FILE__, __LINE__, "no memory for %zu bytes", all);
  }
  memset(base, GUARD, all);
  uint64_t word = test_random();
  for (size_t i = 0; i < size; i++) {
    base[front + i] = (uint8_t)(word >> (i % 8 * 8));
  }
  keep((keepsake){BYTES, base, front, size});
  return base + front;
}

float *law_floats(size_t n) {
  float *x = law_bytes(n * sizeof *x, 4 * test_below(16));
  memset(x, 0, n * sizeof *x);
  return x;
}

const float *law_residual(const pith_state *state, size_t n) {
  float *copy = law_floats(n);
  return pith_state_copy_residual(state, copy) ? copy : NULL;
}

static void check_guards(const keepsake *thing) {
  const uint8_t *base = thing->object;
  for (size_t i = 0; i < thing->front; i++) {
    CHECK_MSG(base[i] == GUARD, "byte %zu before a buffer of %zu was written", thing->front - i, thing->size);
  }
  for (size_t i = thing->front + thing->size; i < thing->front + thing->size + TAIL; i++) {
    CHECK_MSG(base[i] == GUARD, "byte %zu behind a buffer of %zu was written", i - thing->front - thing->size,
              thing->size);
  }
}

static void let_go(const keepsake *thing) {
  switch (thing->kind) {
    case BYTES:
      check_guards(thing);
      free(thing->object);
      break;
    case CODEC:
      pith_codec_destroy(thing->object);
      break;
    case STATE:
      pith_state_destroy(thing->object);
      break;
  }
}

void law_sweep(void) {
  while (kept_count > 0) {
    let_go(&kept[--kept_count]);
  }
}

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

const char *law_shape_name(law_shape shape) {
  static const char *const names[LAW_SHAPES] = {"normal", "laplace", "sparse", "constant",
                                                "huge",   "tiny",    "zero",   "mixed"};
  return names[shape];
}

static float draw(law_shape shape) {
  switch (shape) {
    case LAW_LAPLACE:
      return (float)((test_below(2) ? 1 : -1) * -log(1 - test_uniform()));
    case LAW_SPARSE:
      return test_below(50) ? 0.0f : test_normal();
    case LAW_CONSTANT:
      return -0.7071f;
    case LAW_HUGE:
      return (float)(2 * test_uniform() - 1) * 1e37f;
    case LAW_TINY:
      return test_normal() * 1e-39f;
    case LAW_ZERO:
      return test_below(2) ? 0.0f : -0.0f;
    case LAW_MIXED:
      return test_normal() * (float)pow(10, 24 * test_uniform() - 18);
    default:
      return test_normal();
  }
}

pith_span law_tensor(law_shape shape, size_t n, pith_dtype dtype) {
  size_t width = pith_dtype_size(dtype);
  pith_span span = {law_bytes(n * width, width * test_below(ALIGN / width)), n, dtype};
  for (size_t i = 0; i < n; i++) {
    law_put(span, i, draw(shape));
  }
  return span;
}

pith_span law_copy(pith_span span) {
  size_t width = pith_dtype_size(span.dtype);
  pith_span copy = {law_bytes(span.n * width, width * test_below(ALIGN / width)), span.n, span.dtype};
  memcpy(copy.data, span.data, span.n * width);
  return copy;
}

pith_span law_widened(pith_span span) {
  pith_span wide = {law_floats(span.n), span.n, PITH_F32};
  for (size_t i = 0; i < span.n; i++) {
    law_put(wide, i, law_at(span, i));
  }
  return wide;
}

size_t law_length(size_t most) {
  static const size_t edges[] = {0,   1,   2,   3,   7,    15,   16,   17,   63,   64,   65,   79,   80,   81,
                                 127, 511, 512, 513, 1023, 1024, 1025, 1279, 1280, 1281, 4095, 4096, 4097, 8192};
  size_t length = test_below(2) ? edges[test_below(sizeof edges / sizeof *edges)] : test_below(most + 1);
  return length <= most ? length : test_below(most + 1);
}

float law_at(pith_span span, size_t i) { return pith__span_get(law_const(span), i); }

void law_put(pith_span span, size_t i, float x) { pith__span_put(span, i, x); }

int law_same(float a, float b) { return memcmp(&a, &b, sizeof a) == 0 || (isnan(a) && isnan(b)); }

/* ---- Specs ------------------------------------------------------------------------------------------------------- */

#define SPECS_MAX 512
#define SPEC_SIZE 96

/* What defaults do not show: other bit widths, buckets that are not the tile, every choice. */
static const char *const variants[] = {
    "q:1",
    "q:2,bucket=64",
    "q:4,bucket=32",
    "q:5,bucket=96,round=stochastic",
    "q:4,tail=exact",
    "ef/q:3,bucket=96,tail=exact",
    "ef,store=8/q:3,bucket=32,tail=exact",
    "ef,store=bf16/q:3,bucket=96",
    "ef:0.9,store=8/hadamard:256/natural",
    "ef,store=8/signmean",
    "ef,store=8/topk:0.02",
    "ef,store=bf16/threshold:0.5",
    "hadamard/q:4,tail=exact",
    "q:3,bucket=192",
    "q:5",
    "q:6,round=stochastic",
    "q:7,bucket=1024",
    "q:8,bucket=65536",
    "q:1,round=stochastic",
    "ef/q:2,round=stochastic,bucket=128",
    "ef:0.9/q:8",
    "qsgd:1",
    "qsgd:4,norm=linf,bucket=64",
    "qsgd:127,bucket=4096",
    "qsgd:1,coding=elias",
    "qsgd:7,coding=elias,bucket=96",
    "qsgd:127,norm=linf,coding=elias",
    "ef/qsgd:3,coding=elias,bucket=1024",
    "nuq:2",
    "nuq:3,norm=l2,bucket=96",
    "nuq:5,round=nearest",
    "ef/nuq:8,norm=l2,round=nearest",
    "hadamard:256/nuq:6",
    "terngrad:0",
    "terngrad:1,bucket=64",
    "natural:64",
    "natural:8192",
    "sign,scale=mean",
    "sign,scale=unbiased,bucket=64",
    "ef/sign,scale=unbiased",
    "sign:one,bucket=192",
    "sign:mean,bucket=32",
    "natural:96",
    "signmean:64",
    "signmean,means=column",
    "onebit:96,means=column",
    "tree8:128",
    "fp8:e5m2",
    "fp8,bucket=96",
    "ef/fp8",
    "hadamard:256/fp8",
    "lossless,encode=once",
    "mx:e5m2",
    "mxfp6",
    "mx:e3m2",
    "mxfp4",
    "ef/mxfp8",
    "hadamard:256/mxfp4",
    "ef/nvfp4",
    "lloyd:1",
    "lloyd:3,bucket=64",
    "lloyd:4,bucket=192",
    "inceptionn:0.1",
    "inceptionn:1e-30,bucket=64",
    "inceptionn:1e30",
    "gq:4",
    "gq:4,bucket=64",
    "ef/gq:4",
    "hadamard:64/q:4",
    "hadamard:4096/q:2,bucket=64",
    "hadamard:128/q:4,bucket=192",
    "ef/hadamard:256/natural",
    "drive:64",
    "drive:1024",
    "eden:1",
    "eden:3,block=128",
    "eden:4",
    "topk:0.1,values=fp16",
    "topk:0.05,values=bf16,select=fit",
    "topk:0.2,values=q8,select=sampled",
    "topk:1",
    "ef/topk:0.01,values=fp16",
    "ef/topk:0.05,warmup=10",
    "randomk:0.3,unbiased=1",
    "randomk:0.1,values=q8",
    "ef/randomk:0.1,values=bf16",
    "threshold:0",
    "threshold:1,values=fp16",
    "ef/threshold:0.5,values=q8",
    "adaptive:0.2",
    "sketchml:2",
    "sketchml:100",
    "sketchml:256",
    "dgc:0.05,momentum=0.5,clip=1",
    "dgc:0.1,values=q8",
    "dgc:0.9/threshold:0.5",
    "powersgd:1",
    "ef/powersgd:2",
    "momentum:0.5/powersgd:1",
    "signum:0.5,bucket=64",
    "q:4,encode=once",
    "ef/q:2,bucket=128,encode=once",
    "momentum/q:8,encode=once",
    "ef/hadamard/q:2,encode=once",
    "qsgd:16,bucket=128,encode=once",
    "signsgd,encode=once",
    "inceptionn:0.001,encode=once",
};

static char specs[SPECS_MAX][SPEC_SIZE];
static size_t spec_count;

static void add_spec(const char *before, const char *name) {
  pith_codec *codec;
  char *text = specs[spec_count];
  snprintf(text, SPEC_SIZE, "%s%s", before, name);
  if (pith_codec_create(text, &codec) == PITH_OK) {
    pith_codec_destroy(codec);
    spec_count++;
  }
}

static void list_specs(void) {
  static const char *const before[] = {"", "ef/", "momentum/", "dgc/", "hadamard/", "ef/hadamard/"};
  for (size_t i = 0; i < pith_method_count(); i++) {
    pith_method method = PITH_METHOD_INIT;
    CHECK_OK(pith_method_get(i, &method));
    int names_codec = method.kind == PITH_KIND_CODEC || method.kind == PITH_KIND_PRESET;
    size_t first = spec_count;
    for (size_t b = 0; names_codec && b < sizeof before / sizeof *before; b++) {
      add_spec(before[b], method.name);
    }
    CHECK_MSG(!names_codec || spec_count > first, "no law covers %s: %s", method.name, pith_error());
  }
  for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
    size_t first = spec_count;
    add_spec("", variants[i]);
    CHECK_MSG(spec_count > first, "%s: %s", variants[i], pith_error());
  }
}

size_t law_spec_count(void) {
  if (spec_count == 0) {
    list_specs();
  }
  return spec_count;
}

const char *law_spec(size_t index) { return specs[index % law_spec_count()]; }

/* ---- Codecs ------------------------------------------------------------------------------------------------------ */

pith_codec *law_codec(const char *spec) {
  pith_codec *codec = NULL;
  CHECK_OK(pith_codec_create(spec, &codec));
  keep((keepsake){CODEC, codec, 0, 0});
  return codec;
}

pith_state *law_state(const pith_codec *codec, size_t n, size_t rows) {
  pith_state *state = NULL;
  CHECK_OK(pith_state_create(codec, n, rows, &state));
  keep((keepsake){STATE, state, 0, 0});
  return state;
}

pith_ctx law_ctx(uint64_t step) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 2026;
  ctx.step = step;
  ctx.layer = 3;
  return ctx;
}

static void lend_scratch(const pith_codec *codec, size_t n, pith_ctx *ctx) {
  ctx->scratch_size = pith_codec_scratch(codec, n);
  ctx->scratch = law_bytes(ctx->scratch_size, test_below(ALIGN));
}

pith_bytes law_encode(const pith_codec *codec, pith_state *state, pith_span src, pith_ctx ctx) {
  size_t bound = pith_codec_bound(codec, src.n);
  pith_out out = {law_bytes(bound, test_below(ALIGN)), bound, SIZE_MAX};
  lend_scratch(codec, src.n, &ctx);
  CHECK_OK(pith_encode(codec, state, law_const(src), &out, &ctx));
  CHECK_MSG(out.size <= bound, "%s: %zu values take %zu bytes, beyond the bound %zu", pith_codec_spec(codec), src.n,
            out.size, bound);
  CHECK_MSG(out.size == bound || !(pith_codec_caps(codec) & PITH_CAP_FIXED), "%s: %zu values take %zu bytes, not %zu",
            pith_codec_spec(codec), src.n, out.size, bound);
  return (pith_bytes){memcpy(law_bytes(out.size, test_below(ALIGN)), out.data, out.size), out.size};
}

void law_decode_to(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode, pith_ctx ctx) {
  lend_scratch(codec, dst.n, &ctx);
  CHECK_OK(pith_decode(codec, in, dst, mode, &ctx));
}

const float *law_decode(const pith_codec *codec, pith_bytes in, size_t n, pith_ctx ctx) {
  pith_span dst = {law_bytes(n * sizeof(float), 4 * test_below(ALIGN / 4)), n, PITH_F32};
  law_decode_to(codec, in, dst, PITH_SET, ctx);
  return dst.data;
}

const float *law_round_trip(const pith_codec *codec, pith_span src, pith_ctx ctx) {
  return law_decode(codec, law_encode(codec, NULL, src, ctx), src.n, ctx);
}

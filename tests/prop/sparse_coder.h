/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the sparsifiers share. The codecs are called through their tables, so that SUB and CLEAR can be
 * seen by themselves; buffers have exactly the promised sizes, for sanitizers to watch.
 */
#ifndef PITH_TESTS_SPARSE_CODER_H
#define PITH_TESTS_SPARSE_CODER_H

#include <math.h>
#include <stdlib.h>

#include "base/half.h"
#include "base/spec.h"
#include "codec/codec.h"
#include "codec/sparse.h"
#include "test.h"

extern const pith_codec_ops pith__codec_topk, pith__codec_randomk, pith__codec_threshold, pith__codec_adaptive,
    pith__codec_sketchml;

static const pith_codec_ops *const family[] = {&pith__codec_topk, &pith__codec_randomk, &pith__codec_threshold,
                                               &pith__codec_adaptive, &pith__codec_sketchml};

static const char *const every_spec[] = {
    "topk:0.01",
    "topk:0.3,values=fp16",
    "topk:0.05,values=bf16",
    "topk:0.1,values=q8",
    "topk:1",
    "topk:0.02,select=sampled",
    "topk:0.02,select=fit,values=q8",
    "topk:0.001,warmup=100",
    "randomk:0.05",
    "randomk:0.5,unbiased=1,values=fp16",
    "randomk:0.2,values=q8",
    "threshold:0.5",
    "threshold:1e-20,values=bf16",
    "threshold:2,values=q8",
    "adaptive:0.01",
    "adaptive:0.4",
    "sketchml:64",
    "sketchml:2",
    "sketchml:100",
    "sketchml:256",
};
#define SPECS (sizeof every_spec / sizeof *every_spec)

/* ---- Codecs from specs ------------------------------------------------------------------------------------------- */

typedef struct coder {
  const pith_codec_ops *ops;
  pith_value a[PITH_PARAMS_MAX];
} coder;

static inline coder coder_of(const char *text) {
  coder c = {NULL, {{0}}};
  pith_spec spec;
  CHECK_OK(pith__spec_parse(text, &spec));
  for (size_t i = 0; i < sizeof family / sizeof *family; i++) {
    if (pith__text_is(spec.stage[0].name, family[i]->name)) {
      c.ops = family[i];
    }
  }
  CHECK_OK(pith__spec_bind(&spec.stage[0], c.ops->params, c.a));
  return c;
}

static inline pith_ctx ctx_of(uint64_t step) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 42;
  ctx.step = step;
  ctx.layer = 3;
  return ctx;
}

/* The payload in a buffer of just its size. */
static inline pith_bytes encode_at(const coder *c, pith_cspan src, pith_ctx ctx) {
  size_t bound = c->ops->bound(c->a, src.n);
  ctx.scratch_size = c->ops->scratch(c->a, src.n);
  ctx.scratch = aligned_alloc(64, (ctx.scratch_size + 63) / 64 * 64);
  memset(ctx.scratch, (int)test_below(256), ctx.scratch_size);
  pith_out out = {malloc(bound + 1), bound, 0};
  memset(out.data, (int)test_below(256), bound);
  CHECK_OK(c->ops->encode(c->a, src, &out, NULL, &ctx));
  CHECK_MSG(out.size <= bound, "%s: %zu bytes for a bound of %zu", c->ops->name, out.size, bound);
  free(ctx.scratch);
  return (pith_bytes){realloc(out.data, out.size ? out.size : 1), out.size};
}

static inline pith_bytes encode(const coder *c, pith_cspan src) { return encode_at(c, src, ctx_of(7)); }

static inline pith_status decode(const coder *c, pith_bytes in, pith_span dst, pith_apply apply) {
  pith_ctx ctx = ctx_of(7);
  return c->ops->decode(c->a, in, dst, apply, &ctx);
}

static inline void release(pith_bytes bytes) { free((void *)bytes.data); }

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

typedef enum shape { NORMAL, LAPLACE, SPARSE, CONSTANT, ZERO, HUGE_, TINY, RAMP, ROWS, SHAPES } shape;

static inline float draw(shape s, size_t i, size_t n) {
  switch (s) {
    case LAPLACE:
      return (float)((test_below(2) ? 1 : -1) * -log(1 - test_uniform()));
    case SPARSE:
      return test_below(200) ? 0.0f : test_normal();
    case CONSTANT:
      return -0.75f;
    case ZERO:
      return test_below(2) ? 0.0f : -0.0f;
    case HUGE_:
      return test_normal() * 6e37f;
    case TINY:
      return test_normal() * 1e-41f;
    case RAMP:
      return (float)i - (float)n / 3;
    case ROWS:
      return test_normal() * (float)exp(4 * sin((double)(i / 512)));
    default:
      return test_normal();
  }
}

static inline pith_cspan tensor(shape s, size_t n, pith_dtype dtype) {
  pith_span t = {malloc((n + 1) * sizeof(float)), n, dtype};
  for (size_t i = 0; i < n; i++) {
    pith__span_put(t, i, draw(s, i, n));
  }
  return (pith_cspan){t.data, n, dtype};
}

static inline pith_span copy_of(pith_cspan src) {
  size_t size = src.n * pith_dtype_size(src.dtype);
  pith_span copy = {malloc(size + 1), src.n, src.dtype};
  memcpy(copy.data, src.data, size);
  return copy;
}

static inline pith_span floats(size_t n) { return (pith_span){calloc(n + 1, sizeof(float)), n, PITH_F32}; }

static inline float at(pith_span s, size_t i) { return pith__span_get((pith_cspan){s.data, s.n, s.dtype}, i); }

static inline pith_span decoded(const coder *c, pith_bytes in, size_t n) {
  pith_span dst = floats(n);
  memset(dst.data, 0x33, n * sizeof(float));
  CHECK_OK(decode(c, in, dst, PITH_APPLY_SET));
  return dst;
}

static inline size_t some_length(int round) {
  static const size_t large[] = {16383, 16384, 70001, 300000};
  return round % 16 == 0 ? large[test_below(4)] : round < 8 ? (size_t)round : test_below(5000);
}

static inline uint32_t key_of(float x) { return pith__bits_of(x) & 0x7fffffffu; }

static inline int same(float a, float b) { return pith__bits_of(a) == pith__bits_of(b) || (isnan(a) && isnan(b)); }

#endif

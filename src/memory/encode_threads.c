/* Layers are cut at granules. Only codecs whose pieces have sizes known beforehand can be cut: then everybody
 * knows where to write. */
#include "memory/encode_threads.h"

#include <stdio.h>

#include "base/size.h"
#include "base/split.h"

#define WORTH_SHARING 16384 /* values for each thread: less is done sooner than said */
#define TEXT 256

typedef struct outcome {
  pith_status status;
  char text[TEXT];
} outcome;

/* What all threads know. */
typedef struct threaded {
  unsigned parts;
  const pith_codec *codec;
  pith_encode_fn encode; /* NULL: decoding, or … */
  float *sum;            /* … adding our own values to this */
  pith_state *state;
  size_t n;
  pith_dtype dtype;
  uint8_t *values, *bytes;
  pith_apply apply;
  const pith_encode_scratch *scratch;
  const pith_ctx *ctx;
  outcome *outcome; /* of each part */
} threaded;

static unsigned parts_of(const pith_thread_pool *pool, const pith_codec *codec, size_t n) {
  const uint32_t needed = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  size_t worth = n / WORTH_SHARING;
  return (codec->caps & needed) != needed || worth < 2 ? 1 : (unsigned)pith__least(pith__thread_pool_size(pool), worth);
}

static pith_status run_part(const threaded *s, unsigned part) {
  pith_range range = pith__split(s->n, s->codec->granule, s->parts, part);
  if (range.n == 0) {
    return PITH_OK;
  }
  pith_ctx ctx = *s->ctx;
  ctx.offset += range.first;
  uint8_t *values = s->values + range.first * pith_dtype_size(s->dtype);
  if (s->sum) {
    pith__memory_sum_own(s->codec, s->state, (pith_cspan){values, range.n, s->dtype}, s->sum + range.first, s->apply,
                         &ctx);
    return PITH_OK;
  }
  uint8_t *bytes = s->bytes + pith_codec_bound(s->codec, range.first);
  size_t size = pith_codec_bound(s->codec, range.n);
  if (s->encode) {
    pith_out out = {bytes, size, 0};
    return s->encode(s->codec, s->state, (pith_cspan){values, range.n, s->dtype}, &out, &s->scratch[part], &ctx);
  }
  return pith__codec_decode(s->codec, (pith_bytes){bytes, size}, (pith_span){values, range.n, s->dtype}, s->apply,
                            s->scratch[part].chain, &ctx);
}

/* Messages belong to threads: what went wrong elsewhere is told here. */
static void run_and_tell(void *argument, unsigned part) {
  threaded *s = argument;
  outcome *o = &s->outcome[part];
  o->status = run_part(s, part);
  if (o->status != PITH_OK) {
    snprintf(o->text, sizeof o->text, "%s", pith_error());
  }
}

static pith_status run_all(pith_thread_pool *pool, threaded *s) {
  outcome outcomes[PITH_THREADS_MOST]; /* many bytes, which only parts that fail write to */
  s->outcome = outcomes;
  pith__thread_pool_run(pool, s->parts, run_and_tell, s);
  for (unsigned part = 0; part < s->parts; part++) {
    PITH_REQUIRE(s->outcome[part].status == PITH_OK, s->outcome[part].status, "%s", s->outcome[part].text);
  }
  return PITH_OK;
}

pith_status pith__encode_in_threads(pith_thread_pool *pool, pith_encode_fn encode, const pith_codec *codec,
                                    pith_state *state, pith_cspan src, pith_out *out,
                                    const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, src.n),
                .codec = codec,
                .encode = encode,
                .state = state,
                .n = src.n,
                .dtype = src.dtype,
                .values = (uint8_t *)(uintptr_t)src.data,
                .bytes = out->data,
                .scratch = scratch,
                .ctx = ctx};
  size_t size = s.parts > 1 ? pith_codec_bound(codec, src.n) : 0;
  if (s.parts == 1 || size > out->capacity) {
    return encode(codec, state, src, out, scratch, ctx);
  }
  out->size = size;
  return run_all(pool, &s);
}

pith_status pith__decode_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_bytes in, pith_span dst,
                                    pith_apply apply, const pith_encode_scratch *scratch, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, dst.n),
                .codec = codec,
                .n = dst.n,
                .dtype = dst.dtype,
                .values = dst.data,
                .bytes = (uint8_t *)(uintptr_t)in.data,
                .apply = apply,
                .scratch = scratch,
                .ctx = ctx};
  if (s.parts == 1 || in.size != pith_codec_bound(codec, dst.n)) { /* the wrong size is told as ever */
    return pith__codec_decode(codec, in, dst, apply, scratch[0].chain, ctx);
  }
  return run_all(pool, &s);
}

pith_status pith__sum_own_in_threads(pith_thread_pool *pool, const pith_codec *codec, pith_state *state, pith_cspan src,
                                     float *sum, pith_apply apply, const pith_ctx *ctx) {
  threaded s = {.parts = parts_of(pool, codec, src.n),
                .codec = codec,
                .sum = sum,
                .state = state,
                .n = src.n,
                .dtype = src.dtype,
                .values = (uint8_t *)(uintptr_t)src.data,
                .apply = apply,
                .ctx = ctx};
  if (s.parts == 1) {
    pith__memory_sum_own(codec, state, src, sum, apply, ctx);
    return PITH_OK;
  }
  return run_all(pool, &s);
}

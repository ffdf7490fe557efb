/* SPDX-License-Identifier: Apache-2.0 */
/*
 * SketchML (Jiang 2018): values become the numbers of q quantile buckets, each as full as the others, and each bucket
 * its mean. Where many values are zero, only the others travel, with delta-coded keys (the usual index codings).
 *
 * Quantiles come from a histogram of the upper 16 bits of the floats in their order: sign, exponent and 7 bits of
 * mantissa. All values of a bin go to one bucket, so a bucket may stay empty; its mean is then 0.
 *
 * NaN or Inf anywhere turns all means to NaN.
 */
#include <math.h>

#include "codec/sparse.h"

enum { LEVELS };

#define LEVELS_MAX 256
#define BIN_OF_ZERO (PITH_ORDER_BINS / 2)

static const pith_param params[] = {
    {sizeof(pith_param), "q", PITH_PARAM_INT, 2, LEVELS_MAX, "64", NULL, "number of quantile buckets"},
    {0},
};

typedef struct sketch {
  pith_tile tile;
  uint64_t *histogram; /* of all bins */
  uint8_t *bucket;     /* of each bin */
  uint8_t *number;     /* buckets of values that do not fill whole bytes yet, and of a further tile */
  uint64_t count[LEVELS_MAX];
  double sum[LEVELS_MAX];
} sketch;

static sketch sketch_take(pith_arena *arena) {
  sketch s = {.tile = pith__tile_take(arena)};
  s.histogram = pith__arena_take(arena, PITH_ORDER_BINS, sizeof *s.histogram);
  s.bucket = pith__arena_take(arena, PITH_ORDER_BINS, sizeof *s.bucket);
  s.number = pith__arena_take(arena, 8 + PITH_TILE, sizeof *s.number);
  return s;
}

static pith_value_format format_of(const pith_value *a) {
  return (pith_value_format){PITH_VALUES_BUCKETS, (unsigned)a[LEVELS].i};
}

static size_t bound(const pith_value *a, size_t n) { return pith__sparse_bound(format_of(a), n, n); }

static size_t scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  pith_arena arena = pith__arena_over(NULL, 0);
  sketch_take(&arena);
  return pith__arena_need(&arena);
}

static void count_bins(sketch *s, pith_cspan src) {
  memset(s->histogram, 0, PITH_ORDER_BINS * sizeof *s->histogram);
  for (size_t first = 0; first < src.n; first += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - first);
    pith__kernels()->order_count(pith__span_load(src, first, n, s->tile.loaded), n, s->histogram);
  }
}

/* How indices are written if only `count` values other than zero travel; dense where all of them take less. */
static pith_index_plan choose_coding(pith_value_format format, pith_cspan src, size_t count, pith_tile tile) {
  const pith_index_plan dense = {PITH_INDEX_DENSE, 0, 0};
  size_t saved = pith__values_size(format, src.n) - pith__values_size(format, count);
  if (saved <= count / 8) { /* no coding takes less than a bit for each index */
    return dense;
  }
  pith_gaps gaps = {.count = 0};
  pith_picker picker = pith__picker_of(pith__pick_all(src, PITH_SIDE_BOTH, 1), tile);
  while (pith__picker_next(&picker)) {
    pith__gaps_add(&gaps, picker.base, picker.tile.place, picker.count);
  }
  pith_index_plan plan = pith__index_choose(&gaps, src.n);
  return plan.bytes < saved ? plan : dense;
}

/* A bin belongs where its middle value stands among all. */
static void assign_buckets(sketch *s, uint64_t total, unsigned levels) {
  double scale = total ? (double)levels / (double)total : 0;
  uint64_t before = 0;
  for (size_t bin = 0; bin < PITH_ORDER_BINS; bin++) {
    double middle = (double)before + 0.5 * (double)s->histogram[bin];
    unsigned bucket = (unsigned)(middle * scale);
    bucket = bucket < levels ? bucket : levels - 1;
    s->bucket[bin] = (uint8_t)bucket;
    s->count[bucket] += s->histogram[bin];
    before += s->histogram[bin];
  }
}

/* The next values that travel, *n of them; NULL at the end. Where all do, they need not be picked. */
static const float *next_values(pith_picker *picker, int dense, size_t *n) {
  if (!dense) {
    *n = pith__picker_next(picker) ? picker->count : 0;
    return *n ? picker->tile.value : NULL;
  }
  size_t first = picker->at;
  *n = pith__least(PITH_TILE, picker->pick.src.n - first);
  picker->at = first + *n;
  return *n ? pith__span_load(picker->pick.src, first, *n, picker->tile.loaded) : NULL;
}

/* Writes the bucket numbers and adds up what the buckets hold. Returns the end. */
static uint8_t *put_numbers(sketch *s, uint8_t *out, unsigned width, pith_picker *picker, int dense) {
  const pith_kernels *kernels = pith__kernels();
  size_t n, waiting = 0;
  for (const float *x; (x = next_values(picker, dense, &n)) != NULL;) {
    kernels->order_number(x, n, s->bucket, s->sum, s->number + waiting);
    size_t ready = (waiting + n) / 8 * 8;
    kernels->pack[width](s->number, ready, out);
    out += ready / 8 * width;
    waiting = waiting + n - ready;
    memmove(s->number, s->number + ready, waiting);
  }
  kernels->pack[width](s->number, waiting, out);
  return out + pith__packed_size(waiting, width);
}

static void put_means(const sketch *s, uint8_t *out, unsigned levels) {
  double sum = 0;
  for (unsigned i = 0; i < levels; i++) {
    sum += s->sum[i]; /* not finite if a value is not: doubles do not overflow from floats */
  }
  for (unsigned i = 0; i < levels; i++) {
    float mean = s->count[i] ? (float)(s->sum[i] / (double)s->count[i]) : 0;
    mean = isfinite(sum) ? mean : NAN;
    memcpy(out + i * sizeof mean, &mean, sizeof mean);
  }
}

static pith_status encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)part;
  pith_value_format format = format_of(a);
  pith_arena arena = pith__arena_over(ctx->scratch, ctx->scratch_size);
  sketch s = sketch_take(&arena);
  count_bins(&s, src);
  size_t total = s.histogram[BIN_OF_ZERO] ? pith__span_count(src, PITH_SIDE_BOTH, 1, s.tile.loaded) : src.n;
  pith_index_plan plan = choose_coding(format, src, total, s.tile);
  int dense = plan.coding == PITH_INDEX_DENSE;
  if (dense) {
    total = src.n;
  } else {
    s.histogram[BIN_OF_ZERO] -= src.n - total;
  }
  assign_buckets(&s, total, format.levels);
  pith_picker picker = pith__picker_of(pith__pick_all(src, PITH_SIDE_BOTH, 1), s.tile);
  uint8_t *means = pith__sparse_put_head(out->data, plan, format, total);
  uint8_t *numbers = means + format.levels * sizeof(float);
  uint8_t *end = put_numbers(&s, numbers, pith__values_bits(format.levels), &picker, dense);
  put_means(&s, means, format.levels);
  end = dense ? end : pith__sparse_put_indices(end, plan, &picker);
  out->size = (size_t)(end - (uint8_t *)out->data);
  return PITH_OK;
}

static pith_status decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx) {
  (void)ctx;
  return pith__sparse_decode(in, dst, format_of(a), apply);
}

const pith_codec_ops pith__codec_sketchml = {
    .size = sizeof(pith_codec_ops),
    .name = "sketchml",
    .family = "sparsification",
    .summary = "numbers of quantile buckets and a mean for each bucket; zeros may be left out",
    .bits = "ceil(log2(q))",
    .origin = "Jiang 2018",
    .detail = "a table of means, a number of a bucket for each value, and the places of values that are not zero",
    .use = "gradients with many zeros and values of very different sizes",
    .wire_id = PITH_WIRE_SKETCHML,
    .caps = 0,
    .survey = 1,
    .params = params,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
};

/*
 * SketchML (Jiang 2018): values become the numbers of q quantile buckets, each as full as the others, and each bucket
 * its mean. Where many values are zero, only the others travel, with delta-coded keys (the usual index codings).
 *
 * Quantiles come from a histogram of the upper 16 bits of the floats in their order: sign, exponent and 7 bits of mantissa.
 * All values of a bin go to one bucket, so a bucket may stay empty; its mean is then 0.
 *
 * NaN or Inf anywhere turns all means to NaN.
 */
#include <math.h>

#include "base/half.h"
#include "codec/sparse.h"

enum { LEVELS };

#define BINS 65536
#define BIN_SHIFT 16
#define LEVELS_MAX 256

static const pith_param params[] = {
    {"q", PITH_PARAM_INT, 2, LEVELS_MAX, "64", NULL, "number of quantile buckets"},
    {NULL, 0, 0, 0, NULL, NULL, NULL},
};

typedef struct sketch {
  pith_tile tile;
  uint64_t *histogram; /* of BINS, in the order of the floats */
  uint8_t *bucket;     /* of each bin */
  uint64_t count[LEVELS_MAX];
  double sum[LEVELS_MAX];
} sketch;

static sketch sketch_take(pith_arena *arena) {
  sketch s = {.tile = pith__tile_take(arena)};
  s.histogram = pith__arena_take(arena, BINS, sizeof *s.histogram);
  s.bucket = pith__arena_take(arena, BINS, sizeof *s.bucket);
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

/* Negative floats count down as bits, the others up. Both zeros share a bin. */
static uint32_t bin_of(float x) {
  uint32_t bits = pith__bits_of(x), key = bits & 0x7fffffffu, bin = key >> BIN_SHIFT;
  return bits > 0x80000000u ? BINS / 2 - 1 - bin : BINS / 2 + bin;
}

/* How indices are written if only the values other than zero travel; dense where all of them take less. */
static pith_index_plan choose_coding(pith_value_format format, pith_cspan src, pith_tile tile) {
  const pith_index_plan dense = {PITH_INDEX_DENSE, 0, 0};
  size_t count = pith__span_count(src, PITH_SIDE_BOTH, 1, tile.loaded);
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

/* Counts the values of every bin; returns how many there are. */
static uint64_t count_bins(sketch *s, pith_picker *picker) {
  uint64_t total = 0;
  memset(s->histogram, 0, BINS * sizeof *s->histogram);
  pith__picker_rewind(picker);
  while (pith__picker_next(picker)) {
    total += picker->count;
    for (size_t i = 0; i < picker->count; i++) {
      s->histogram[bin_of(picker->tile.value[i])]++;
    }
  }
  return total;
}

/* A bin belongs where its middle value stands among all. */
static void assign_buckets(sketch *s, uint64_t total, unsigned levels) {
  double scale = total ? (double)levels / (double)total : 0;
  uint64_t before = 0;
  for (size_t bin = 0; bin < BINS; bin++) {
    double middle = (double)before + 0.5 * (double)s->histogram[bin];
    unsigned bucket = (unsigned)(middle * scale);
    s->bucket[bin] = (uint8_t)(bucket < levels ? bucket : levels - 1);
    before += s->histogram[bin];
  }
}

/* Writes the bucket numbers and adds up what the buckets hold. Returns the end. */
static uint8_t *put_numbers(sketch *s, uint8_t *out, unsigned width, pith_picker *picker) {
  pith_bit_writer bits = {.at = out};
  pith__picker_rewind(picker);
  while (pith__picker_next(picker)) {
    for (size_t i = 0; i < picker->count; i++) {
      float x = picker->tile.value[i];
      unsigned bucket = s->bucket[bin_of(x)];
      s->count[bucket]++;
      s->sum[bucket] += x;
      pith__bits_put(&bits, bucket, width);
    }
  }
  return pith__bits_end(&bits);
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
  pith_index_plan plan = choose_coding(format, src, s.tile);
  uint32_t cut = plan.coding == PITH_INDEX_DENSE ? 0 : 1;
  pith_picker picker = pith__picker_of(pith__pick_all(src, PITH_SIDE_BOTH, cut), s.tile);
  uint64_t total = count_bins(&s, &picker);
  assign_buckets(&s, total, format.levels);
  uint8_t *means = pith__sparse_put_head(out->data, plan, format, total);
  uint8_t *end = put_numbers(&s, means + format.levels * sizeof(float), pith__values_bits(format.levels), &picker);
  put_means(&s, means, format.levels);
  out->size = (size_t)(pith__sparse_put_indices(end, plan, &picker) - (uint8_t *)out->data);
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
    .wire_id = 36,
    .caps = 0,
    .survey = 1,
    .params = params,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
};

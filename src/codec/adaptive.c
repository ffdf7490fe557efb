/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adaptive threshold (Dryden 2016): the top `ratio` of the positive and the top `ratio` of the negative values travel
 * as bare indices, and each side's mean once. Two payloads stand one behind the other, the positive side's first.
 *
 * NaN and Inf are the largest of their side and so turn its mean to NaN.
 */
#include <math.h>

#include "base/saturate.h"
#include "codec/sparse.h"

enum { RATIO };

static const pith_value_format mean_format = {PITH_VALUES_MEAN, 0};
static const pith_side sides[] = {PITH_SIDE_POSITIVE, PITH_SIDE_NEGATIVE};

static const pith_param params[] = {
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-9, 1, "0.01", NULL, "share of either side's values that travels"},
    {0},
};

static size_t bound(const pith_value *a, size_t n) {
  return pith__sat_mul(2, pith__sparse_bound(mean_format, n, pith__ratio_count(a[RATIO].f, n)));
}

static size_t scratch(const pith_value *a, size_t n) {
  (void)a;
  pith_arena arena = pith__arena_over(NULL, 0);
  pith__selector_take(&arena, n);
  return pith__arena_need(&arena);
}

/* The payload of one side. Returns its end. */
static uint8_t *encode_side(uint8_t *out, pith_picker *picker, size_t n) {
  pith_gaps gaps = {.count = 0};
  double sum = 0;
  while (pith__picker_next(picker)) {
    pith__gaps_add(&gaps, picker->base, picker->tile.place, picker->count);
    for (size_t i = 0; i < picker->count; i++) {
      sum += picker->tile.value[i];
    }
  }
  float mean = gaps.count ? (float)(sum / (double)gaps.count) : 0;
  mean = isfinite(mean) ? mean : NAN;
  pith_index_plan plan = pith__index_choose(&gaps, n);
  uint8_t *values = pith__sparse_put_head(out, plan, mean_format, gaps.count);
  memcpy(values, &mean, sizeof mean);
  return pith__sparse_put_indices(values + sizeof mean, plan, picker);
}

static pith_status encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)part;
  pith_arena arena = pith__arena_over(ctx->scratch, ctx->scratch_size);
  pith_selector selector = pith__selector_take(&arena, src.n);
  uint8_t *end = out->data;
  for (size_t i = 0; i < 2; i++) {
    size_t values = pith__span_count(src, sides[i], 1, selector.tile.loaded);
    size_t k = pith__ratio_count(a[RATIO].f, values);
    pith_picker picker = pith__picker_of(pith__select_top(&selector, src, sides[i], k, ctx), selector.tile);
    end = encode_side(end, &picker, src.n);
  }
  out->size = (size_t)(end - (uint8_t *)out->data);
  return PITH_OK;
}

static pith_status decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx) {
  (void)a, (void)ctx;
  pith_sparse side[2];
  const uint8_t *end = (const uint8_t *)in.data + in.size;
  PITH_TRY(pith__sparse_open(in, dst.n, mean_format, &side[0]));
  PITH_TRY(pith__sparse_open((pith_bytes){side[0].end, (size_t)(end - side[0].end)}, dst.n, mean_format, &side[1]));
  PITH_REQUIRE(side[1].end == end, PITH_ERR_CORRUPT, "%zu bytes after both sides", (size_t)(end - side[1].end));
  if (apply == PITH_APPLY_SET) {
    pith__span_clear(dst);
  }
  pith__sparse_apply(&side[0], dst, apply);
  pith__sparse_apply(&side[1], dst, apply);
  return PITH_OK;
}

static void gpu_task(const pith_value *a, const pith_ctx *ctx, pith_gpu_sparse *task) {
  (void)ctx;
  task->ratio = a[RATIO].f;
  task->coding = PITH_VALUES_MEAN;
}

static const pith_codec_traits traits = {.gpu = PITH_GPU_SPARSE, .gpu_sparse = gpu_task};

const pith_codec_ops pith__codec_adaptive = {
    .size = sizeof(pith_codec_ops),
    .name = "adaptive",
    .family = "sparsification",
    .summary = "indices of the largest positive and negative values, and a mean for each",
    .bits = "ratio*(log2(1/ratio)+2.5)",
    .origin = "Dryden 2016",
    .detail = "a code for the place of the largest positive and negative values, and one mean for each side",
    .use = "fewer bytes than topk at the same ratio; use it behind ef, as adaq does",
    .wire_id = PITH_WIRE_ADAPTIVE,
    .caps = PITH_CAP_SPARSE,
    .survey = 1,
    .params = params,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
    .traits = &traits,
};

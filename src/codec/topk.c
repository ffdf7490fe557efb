/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Top-k: the k = ⌈ratio·n⌉ values of largest magnitude travel, with their indices. Of equals the first ones travel, so
 * that exactly k do. NaN and Inf order above everything and are therefore sent, as NaN.
 *
 * `select=sampled` and `select=fit` trade the exact number for a cut from a sample (DGC) or from a fitted tail (SIDCo);
 * k/2 to 2k values travel then. `warmup` starts at a ratio of 1/4 and divides it by four, four times over that many
 * steps or until `ratio` is reached, as DGC does.
 */
#include <math.h>

#include "codec/sparse.h"

enum { RATIO, SELECT, VALUES, WARMUP };
enum { SELECT_EXACT = PITH_GPU_SELECT_EXACT, SELECT_SAMPLED = PITH_GPU_SELECT_SAMPLED, SELECT_FIT };

#define WARMUP_RATIO 0.25 /* the first one, and the factor from one to the next */
#define WARMUP_STAGES 4

static const pith_param params[] = {
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-9, 1, "0.01", NULL, "share of the values that travel"},
    {sizeof(pith_param), "select", PITH_PARAM_CHOICE, 0, 0, "exact", "exact|sampled|fit", "how the cut is found"},
    PITH_VALUES_PARAM,
    {sizeof(pith_param), "warmup", PITH_PARAM_INT, 0, 1e9, "0", NULL, "steps over which the ratio falls from 1/4"},
    {0},
};

static double ratio_at(const pith_value *a, uint64_t step) {
  uint64_t warmup = (uint64_t)a[WARMUP].i;
  if (step >= warmup) {
    return a[RATIO].f;
  }
  double stage = floor((double)WARMUP_STAGES * (double)step / (double)warmup);
  return fmax(a[RATIO].f, pow(WARMUP_RATIO, 1 + stage));
}

static pith_value_format format_of(const pith_value *a) {
  return (pith_value_format){(pith_value_coding)a[VALUES].i, 0};
}

/* Most values that travel where k are wanted. */
static size_t most_of(const pith_value *a, size_t n, size_t k) {
  return a[SELECT].i == SELECT_EXACT ? k : k > n / 2 ? n : 2 * k;
}

static size_t bound(const pith_value *a, size_t n) {
  return pith__sparse_bound(format_of(a), n, most_of(a, n, pith__ratio_count(ratio_at(a, 0), n)));
}

static size_t scratch(const pith_value *a, size_t n) {
  (void)a;
  pith_arena arena = pith__arena_over(NULL, 0);
  pith__selector_take(&arena, n);
  return pith__arena_need(&arena);
}

static pith_pick select_values(const pith_value *a, const pith_selector *s, pith_cspan src, const pith_ctx *ctx) {
  size_t k = pith__ratio_count(ratio_at(a, ctx->step), src.n);
  switch (a[SELECT].i) {
    case SELECT_SAMPLED:
      return pith__select_sampled(s, src, k, ctx);
    case SELECT_FIT:
      return pith__select_fit(s, src, k, ctx);
    default:
      return pith__select_top(s, src, PITH_SIDE_BOTH, k, ctx);
  }
}

static pith_status encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)part;
  pith_arena arena = pith__arena_over(ctx->scratch, ctx->scratch_size);
  pith_selector selector = pith__selector_take(&arena, src.n);
  pith_picker picker = pith__picker_of(select_values(a, &selector, src, ctx), selector.tile);
  out->size = pith__sparse_encode(out->data, format_of(a).coding, &picker, src.n);
  return PITH_OK;
}

static pith_status decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx) {
  (void)ctx;
  return pith__sparse_decode(in, dst, format_of(a), apply);
}

/* ---- For the planner, and for GPUs ------------------------------------------------------------------------------ */

/* Once the warm-up is over. */
static int largest(const pith_value *a, size_t n, size_t *k, double *bytes) {
  if (a[SELECT].i != SELECT_EXACT || a[VALUES].i != PITH_VALUES_FP32) {
    return 0;
  }
  *k = pith__ratio_count(a[RATIO].f, n);
  *bytes = pith__sparse_expected(format_of(a), n, *k);
  return 1;
}

static const char *gpu_lacks(const pith_value *a) {
  return a[SELECT].i == SELECT_FIT ? "select=fit has no CUDA kernel; exact and sampled have" : NULL;
}

static void gpu_task(const pith_value *a, const pith_ctx *ctx, pith_gpu_sparse *task) {
  task->k = (uint32_t)pith__ratio_count(ratio_at(a, ctx->step), task->n);
  task->most = (uint32_t)most_of(a, task->n, task->k);
  task->coding = (uint8_t)a[VALUES].i;
  task->select = task->k == task->n ? PITH_GPU_SELECT_ABOVE : (uint8_t)a[SELECT].i; /* all of them: above nothing */
}

static const pith_codec_traits traits = {
    .largest = largest,
    .gpu = PITH_GPU_SPARSE,
    .gpu_lacks = gpu_lacks,
    .gpu_sparse = gpu_task,
};

const pith_codec_ops pith__codec_topk = {
    .size = sizeof(pith_codec_ops),
    .name = "topk",
    .family = "sparsification",
    .summary = "the values of largest magnitude, and their indices",
    .bits = "ratio*(32+log2(1/ratio)+1.5)",
    .origin = "Aji 2017; Lin 2018 (DGC); Abdelmoniem 2021 (SIDCo)",
    .detail = "the values of largest magnitude and a code of about log2(1/ratio) + 1.5 bits for the place of each",
    .use =
        "behind ef, for embeddings and very redundant layers on slow links; best with plain SGD, since moments "
        "see each value seldom",
    .wire_id = PITH_WIRE_TOPK,
    .caps = PITH_CAP_SPARSE,
    .survey = 1,
    .params = params,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
    .traits = &traits,
};

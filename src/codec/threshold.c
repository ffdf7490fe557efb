/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threshold: all |x| ≥ v travel, with their indices; all values do, without indices, where that is smaller.
 */
#include <float.h>
#include <math.h>

#include "base/half.h"
#include "codec/sparse.h"

enum { THRESHOLD, VALUES };

static const pith_param params[] = {
    {sizeof(pith_param), "v", PITH_PARAM_REAL, 0, FLT_MAX, "0.001", NULL, "smallest magnitude that travels"},
    PITH_VALUES_PARAM,
    {0},
};

static pith_value_format format_of(const pith_value *a) {
  return (pith_value_format){(pith_value_coding)a[VALUES].i, 0};
}

/* The key of the smallest float at or above v. */
static uint32_t cut_of(const pith_value *a) {
  float cut = (float)a[THRESHOLD].f;
  return pith__bits_of((double)cut < a[THRESHOLD].f ? nextafterf(cut, INFINITY) : cut);
}

static size_t bound(const pith_value *a, size_t n) { return pith__sparse_bound(format_of(a), n, n); }

static size_t scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  pith_arena arena = pith__arena_over(NULL, 0);
  pith__tile_take(&arena);
  return pith__arena_need(&arena);
}

static pith_status encode(const pith_value *a, pith_cspan src, pith_out *out, void *part, const pith_ctx *ctx) {
  (void)part;
  pith_arena arena = pith__arena_over(ctx->scratch, ctx->scratch_size);
  pith_tile tile = pith__tile_take(&arena);
  pith_picker picker = pith__picker_of(pith__pick_all(src, PITH_SIDE_BOTH, cut_of(a)), tile);
  pith_value_coding coding = format_of(a).coding;
  out->size = pith__sparse_encode(out->data, coding, &picker, src.n);
  if (out->size > PITH_SPARSE_HEAD + pith__values_size(format_of(a), src.n)) {
    out->size = pith__sparse_encode_dense(out->data, coding, src, tile.loaded);
  }
  return PITH_OK;
}

static pith_status decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply, const pith_ctx *ctx) {
  (void)ctx;
  return pith__sparse_decode(in, dst, format_of(a), apply);
}

static void gpu_task(const pith_value *a, const pith_ctx *ctx, pith_gpu_sparse *task) {
  (void)ctx;
  task->select = PITH_GPU_SELECT_ABOVE;
  task->most = task->n;
  task->cut = cut_of(a);
  task->coding = (uint8_t)a[VALUES].i;
}

static const pith_codec_traits traits = {.gpu = PITH_GPU_SPARSE, .gpu_sparse = gpu_task};

const pith_codec_ops pith__codec_threshold = {
    .size = sizeof(pith_codec_ops),
    .name = "threshold",
    .family = "sparsification",
    .summary = "all values of at least a given magnitude, and their indices",
    .bits = "share*(32+log2(1/share)+1.5), at most 32",
    .origin = "Dutta 2020; Strom 2015",
    .detail = "all values of at least that magnitude, and a code for the place of each",
    .use = "where the size of the values that matter is known; the bytes depend on the data",
    .wire_id = PITH_WIRE_THRESHOLD,
    .caps = PITH_CAP_SPARSE,
    .survey = 1,
    .params = params,
    .bound = bound,
    .scratch = scratch,
    .encode = encode,
    .decode = decode,
    .traits = &traits,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * signmean: one bit for each value; decoded to the mean of the negative values or to the mean of the others.
 *
 * The means are those of a bucket, or with means=column those of a column of the layer's weights as Seide 2014 has
 * them: all weights into one unit, which are a row of a tensor whose first dimension is that of the output. The codec
 * then takes the layer as a whole, since columns do not end where buckets do. Where a layer has no rows, or fewer than
 * COLUMN_LEAST values in each, it takes buckets.
 *
 * Payload: blocks, each with two means as f32 and the signs. With means=column the number of rows as u64 comes first; 0
 * if the blocks are buckets.
 */
#include "base/saturate.h"
#include "codec/block.h"

enum { SIGNMEAN_BUCKET, SIGNMEAN_MEANS };
enum { MEANS_OF_BUCKET, MEANS_OF_COLUMN };
enum { COLUMN_LEAST = 32, ROWS_SIZE = 8, TILE = 4096 };

static const pith_param signmean_params[] = {
    PITH_PARAM_BUCKET("512"),
    {sizeof(pith_param), "means", PITH_PARAM_CHOICE, 0, 0, "bucket", "bucket|column",
     "of which values the means are; column: all weights into one unit, where the shape is known"},
    {0},
};

static pith_status signmean_check(const pith_value *a) { return pith__check_bucket("signmean", a[SIGNMEAN_BUCKET].i); }

static uint32_t signmean_caps(const pith_value *a) {
  return a[SIGNMEAN_MEANS].i == MEANS_OF_BUCKET ? PITH_CAP_FIXED | PITH_CAP_CHUNKED : 0;
}

static size_t size_of(size_t n) { return PITH_HEAD_TWO + pith__packed_size(n, 1); }

/* The sum of the values on one side of zero; a slower one where that of the kernel overflowed. */
static double sum_of_side(const float *x, size_t n, int negative, float sum) {
  double total = sum;
  if (!isfinite(sum)) {
    total = 0;
    for (size_t i = 0; i < n; i++) {
      total += (x[i] < 0) == negative ? (double)x[i] : 0.0;
    }
  }
  return total;
}

static float mean_of(double sum, size_t count) { return count ? (float)(sum / (double)count) : 0.0f; }

/* ---- Buckets ----------------------------------------------------------------------------------------------------- */

static size_t signmean_block(const pith_value *a) { return (size_t)a[SIGNMEAN_BUCKET].i; }

static size_t signmean_block_bound(const pith_value *a, size_t n) {
  (void)a;
  return size_of(n);
}

static size_t signmean_encode_block(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                                    const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  pith_halves h;
  if (pith__kernels()->absmax(x, n) >= PITH_INF_BITS) {
    return pith__put_not_finite(out, 2, size_of(n));
  }
  pith__kernels()->halves(x, n, &h);
  pith__put_f32(out, mean_of(sum_of_side(x, n, 1, h.sum_negative), h.negatives));
  pith__put_f32(out + 4, mean_of(sum_of_side(x, n, 0, h.sum_other), n - h.negatives));
  pith__kernels()->sign_pack(x, n, out + PITH_HEAD_TWO);
  return size_of(n);
}

static void signmean_decode_block(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode,
                                  uint64_t index, const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  pith__kernels()->sign_unpack(in + PITH_HEAD_TWO, n, pith__get_f32(in + 4), pith__get_f32(in), mode, dst);
}

/* ---- Columns ----------------------------------------------------------------------------------------------------- */

/* Values of a block, by the number of rows in the payload. */
static size_t block_of(const pith_value *a, size_t n, uint64_t rows) {
  return rows ? (size_t)((n - 1) / rows + 1) : (size_t)a[SIGNMEAN_BUCKET].i;
}

/* The rows that the payload has: those of the layer where their values are worth two means. */
static uint64_t rows_of(size_t n, uint64_t rows) {
  return rows > 0 && rows <= n && (n - 1) / rows + 1 >= COLUMN_LEAST ? rows : 0;
}

static size_t signmean_bound(const pith_value *a, size_t n) {
  (void)a;
  size_t blocks = n / COLUMN_LEAST + 1; /* each with a byte that is not full */
  return pith__sat_add(ROWS_SIZE, pith__sat_add(n / 8, pith__sat_mul(blocks, PITH_HEAD_TWO + 1)));
}

static size_t signmean_scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  return 2 * TILE * sizeof(float);
}

/* Sums run over TILE values at a time, as those of a bucket, and those of tiles are added in f64. */
static size_t encode_column(pith_cspan src, size_t first, size_t n, float *tile, uint8_t *out) {
  const pith_kernels *kernels = pith__kernels();
  double negative = 0, other = 0;
  size_t negatives = 0;
  for (size_t i = 0; i < n; i += TILE) {
    size_t m = pith__least(TILE, n - i);
    const float *x = pith__span_load(src, first + i, m, tile);
    pith_halves h;
    if (kernels->absmax(x, m) >= PITH_INF_BITS) {
      return pith__put_not_finite(out, 2, size_of(n));
    }
    kernels->halves(x, m, &h);
    negative += sum_of_side(x, m, 1, h.sum_negative);
    other += sum_of_side(x, m, 0, h.sum_other);
    negatives += h.negatives;
    kernels->sign_pack(x, m, out + PITH_HEAD_TWO + i / 8);
  }
  pith__put_f32(out, mean_of(negative, negatives));
  pith__put_f32(out + 4, mean_of(other, n - negatives));
  return size_of(n);
}

static pith_status signmean_encode(const pith_value *a, pith_cspan src, pith_out *out, void *part,
                                   const pith_ctx *ctx) {
  (void)part;
  uint64_t rows = rows_of(src.n, ctx->rows);
  uint8_t *at = out->data;
  size_t block = block_of(a, src.n, rows);
  memcpy(at, &rows, sizeof rows);
  at += ROWS_SIZE;
  for (size_t first = 0; first < src.n; first += block) {
    at += encode_column(src, first, pith__least(block, src.n - first), ctx->scratch, at);
  }
  out->size = (size_t)(at - (uint8_t *)out->data);
  return PITH_OK;
}

static void decode_column(const uint8_t *in, pith_span dst, size_t first, size_t n, pith_apply apply, float *tile) {
  float minus = pith__get_f32(in), plus = pith__get_f32(in + 4);
  pith_mode mode = apply == PITH_APPLY_SET ? PITH_SET : PITH_ADD;
  if (apply == PITH_APPLY_SUB) {
    minus = -minus, plus = -plus;
  }
  for (size_t i = 0; i < n; i += TILE) {
    size_t m = pith__least(TILE, n - i);
    const uint8_t *signs = in + PITH_HEAD_TWO + i / 8;
    if (dst.dtype == PITH_F32) {
      pith__kernels()->sign_unpack(signs, m, plus, minus, mode, (float *)dst.data + first + i);
    } else {
      pith__kernels()->sign_unpack(signs, m, plus, minus, PITH_SET, tile);
      pith__span_store(dst, first + i, m, tile, mode, tile + TILE);
    }
  }
}

static pith_status signmean_decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply,
                                   const pith_ctx *ctx) {
  uint64_t rows;
  PITH_REQUIRE(in.size >= ROWS_SIZE, PITH_ERR_CORRUPT, "signmean: %zu bytes are no payload", in.size);
  memcpy(&rows, in.data, sizeof rows);
  PITH_REQUIRE(rows <= dst.n, PITH_ERR_CORRUPT, "signmean: %zu values in %llu rows", dst.n, (unsigned long long)rows);
  size_t block = block_of(a, dst.n, rows), last = dst.n % block;
  size_t expected = ROWS_SIZE + dst.n / block * size_of(block) + (last ? size_of(last) : 0);
  PITH_REQUIRE(in.size == expected, PITH_ERR_CORRUPT,
               "signmean: %zu values in %llu rows take %zu bytes, but the payload has %zu", dst.n,
               (unsigned long long)rows, expected, in.size);
  const uint8_t *at = (const uint8_t *)in.data + ROWS_SIZE;
  for (size_t first = 0; first < dst.n; first += block) {
    size_t n = pith__least(block, dst.n - first);
    decode_column(at, dst, first, n, apply, ctx->scratch);
    at += size_of(n);
  }
  return PITH_OK;
}

/* ---- The table --------------------------------------------------------------------------------------------------- */

static const char *signmean_gpu_lacks(const pith_value *a) {
  return a[SIGNMEAN_MEANS].i == MEANS_OF_COLUMN ? "means=column has no CUDA kernel; means=bucket has" : NULL;
}

static const pith_codec_traits signmean_traits = {.gpu = PITH_GPU_BLOCKS, .gpu_lacks = signmean_gpu_lacks};

const pith_codec_ops pith__codec_signmean = {
    .size = sizeof(pith_codec_ops),
    .name = "signmean",
    .family = "quantization",
    .summary = "the sign; decoded to the mean of the negative values or of the others",
    .bits = "1 + 64/bucket",
    .origin = "Seide 2014",
    .detail =
        "for each bucket (or column) the means of its negative and of its other values, then one bit for each value",
    .use = "one bit a value, behind ef (onebit)",
    .wire_id = PITH_WIRE_SIGNMEAN,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = signmean_params,
    .check = signmean_check,
    .caps_of = signmean_caps,
    .block = signmean_block,
    .block_bound = signmean_block_bound,
    .encode_block = signmean_encode_block,
    .decode_block = signmean_decode_block,
    .bound = signmean_bound,
    .scratch = signmean_scratch,
    .encode = signmean_encode,
    .decode = signmean_decode,
    .traits = &signmean_traits,
};

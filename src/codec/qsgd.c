/* SPDX-License-Identifier: Apache-2.0 */
/*
 * qsgd: levels between minus and plus the norm of a bucket, drawn without bias.
 *
 * Block: the norm as f32, then one level of `bits` bits for each value, packed. With coding=elias a word stands between
 * them, the coding (8 bits) and the bytes that follow (24 bits), and the levels are in the coding that is smallest for
 * the block (elias.h). Levels are drawn a piece at a time, once to measure and once to write them.
 */
#include "codec/block.h"
#include "codec/elias.h"

enum { QSGD_LEVELS, QSGD_NORM, QSGD_BUCKET, QSGD_CODING };
enum { CODING_FIXED, CODING_ELIAS };
enum { ELIAS_HEAD = PITH_HEAD_ONE + 4, PIECE = 256 };

static const pith_param qsgd_params[] = {
    {sizeof(pith_param), "levels", PITH_PARAM_INT, 1, 127, "127", NULL, "levels between 0 and the norm"},
    {sizeof(pith_param), "norm", PITH_PARAM_CHOICE, 0, 0, "l2", "l2|linf", "linf has the smaller error"},
    PITH_PARAM_BUCKET("512"),
    {sizeof(pith_param), "coding", PITH_PARAM_CHOICE, 0, 0, "fixed", "fixed|elias",
     "elias: fewer bytes where most levels are small; sizes follow the data"},
    {0},
};

static pith_status qsgd_check(const pith_value *a) { return pith__check_bucket("qsgd", a[QSGD_BUCKET].i); }

static int is_elias(const pith_value *a) { return a[QSGD_CODING].i == CODING_ELIAS; }

static uint32_t qsgd_caps(const pith_value *a) {
  return PITH_CAP_CHUNKED | PITH_CAP_UNBIASED | PITH_CAP_SEEDED | (is_elias(a) ? 0u : (uint32_t)PITH_CAP_FIXED);
}

static size_t qsgd_block(const pith_value *a) { return (size_t)a[QSGD_BUCKET].i; }

/* A sign and ⌈log2(levels + 1)⌉ bits: enough for −levels … levels. */
static int qsgd_bits(const pith_value *a) { return 33 - __builtin_clz((uint32_t)a[QSGD_LEVELS].i); }

static size_t packed(const pith_value *a, size_t n) { return pith__packed_size(n, (size_t)qsgd_bits(a)); }

/* Elias codes are only taken where they are smaller; their writer needs room behind them. */
static size_t qsgd_bound(const pith_value *a, size_t n) {
  return is_elias(a) ? ELIAS_HEAD + packed(a, n) + PITH_BITS_SLACK : PITH_HEAD_ONE + packed(a, n);
}

/* ---- Elias codes ------------------------------------------------------------------------------------------------- */

static void put_elias_head(uint8_t *out, float norm, pith_level_coding coding, size_t size) {
  uint32_t word = (uint32_t)coding | (uint32_t)size << 8;
  pith__put_f32(out, norm);
  memcpy(out + PITH_HEAD_ONE, &word, sizeof word);
}

static void get_elias_head(const uint8_t *in, pith_level_coding *coding, size_t *size) {
  uint32_t word;
  memcpy(&word, in + PITH_HEAD_ONE, sizeof word);
  *coding = (pith_level_coding)(word & 0xff);
  *size = word >> 8;
}

/* Draws levels i … i + m − 1 of the block as bytes; returns m. */
static size_t draw_piece(const float *x, size_t n, size_t i, const pith_quantizer *q, pith_key key, uint32_t index,
                         uint8_t piece[PIECE]) {
  size_t m = pith__least(PIECE, n - i);
  pith__kernels()->quantize_random[8](x + i, m, q, key, index + (uint32_t)i, piece);
  return m;
}

/* The smallest coding and its bytes. */
static pith_level_coding choose_coding(const pith_value *a, const float *x, size_t n, const pith_quantizer *q,
                                       pith_key key, uint32_t index, size_t *size) {
  pith_elias_sizes sizes = {0};
  uint8_t piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = draw_piece(x, n, i, q, key, index, piece);
    pith__elias_measure(&sizes, piece, m, q->zero);
  }
  size_t each = (size_t)(sizes.each + 7) / 8, runs = (size_t)(pith__elias_runs_bits(&sizes) + 7) / 8;
  *size = pith__least(packed(a, n), pith__least(each, runs));
  return *size == packed(a, n) ? PITH_LEVELS_FIXED : *size == each ? PITH_LEVELS_EACH : PITH_LEVELS_RUNS;
}

static size_t encode_elias(const pith_value *a, const float *x, size_t n, float norm, const pith_quantizer *q,
                           pith_key key, uint32_t index, uint8_t *out) {
  size_t size;
  pith_level_coding coding = choose_coding(a, x, n, q, key, index, &size);
  put_elias_head(out, norm, coding, size);
  out += ELIAS_HEAD;
  if (coding == PITH_LEVELS_FIXED) {
    pith__kernels()->quantize_random[qsgd_bits(a)](x, n, q, key, index, out);
    return ELIAS_HEAD + size;
  }
  pith_elias_writer writer = {.bits = {.at = out}, .coding = coding};
  uint8_t piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = draw_piece(x, n, i, q, key, index, piece);
    pith__elias_put(&writer, piece, m, q->zero);
  }
  return ELIAS_HEAD + (size_t)(pith__elias_end(&writer) - out);
}

static size_t elias_not_finite(const pith_value *a, size_t n, uint8_t *out) {
  put_elias_head(out, pith__nan(), PITH_LEVELS_FIXED, packed(a, n));
  memset(out + ELIAS_HEAD, 0, packed(a, n));
  return ELIAS_HEAD + packed(a, n);
}

static pith_elias_reader reader_of(const uint8_t *in, size_t n) {
  pith_level_coding coding;
  size_t size;
  get_elias_head(in, &coding, &size);
  in += ELIAS_HEAD;
  return (pith_elias_reader){.bits = {.at = in, .end = in + size}, .coding = coding, .left = n};
}

/* Reads all levels once before any is used. */
static size_t qsgd_check_block(const pith_value *a, pith_bytes in, size_t n) {
  pith_level_coding coding;
  size_t size;
  if (!is_elias(a)) {
    size_t bound = qsgd_bound(a, n);
    return in.size < bound ? 0 : bound;
  }
  if (in.size < ELIAS_HEAD) {
    return 0;
  }
  get_elias_head(in.data, &coding, &size);
  if (coding > PITH_LEVELS_RUNS || size > in.size - ELIAS_HEAD) {
    return 0;
  }
  if (coding == PITH_LEVELS_FIXED) {
    return size == packed(a, n) ? ELIAS_HEAD + size : 0;
  }
  pith_elias_reader reader = reader_of(in.data, n);
  uint8_t piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    if (!pith__elias_get(&reader, piece, pith__least(PIECE, n - i), (int)a[QSGD_LEVELS].i)) {
      return 0;
    }
  }
  return pith__bits_tail(&reader.bits) == reader.bits.end ? ELIAS_HEAD + size : 0;
}

static void decode_elias(const pith_value *a, const uint8_t *in, size_t n, const pith_dequantizer *q, pith_mode mode,
                         float *dst) {
  pith_elias_reader reader = reader_of(in, n);
  if (reader.coding == PITH_LEVELS_FIXED) {
    pith__kernels()->dequantize[qsgd_bits(a)](in + ELIAS_HEAD, n, q, mode, dst);
    return;
  }
  uint8_t piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = pith__least(PIECE, n - i);
    pith__elias_get(&reader, piece, m, q->zero);
    pith__kernels()->dequantize[8](piece, m, q, mode, dst + i);
  }
}

/* ---- Blocks ------------------------------------------------------------------------------------------------------ */

static size_t qsgd_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                          const pith_ctx *ctx) {
  uint32_t most = pith__kernels()->absmax(x, n);
  int32_t levels = (int32_t)a[QSGD_LEVELS].i;
  float norm = pith__norm_by(x, n, most, a[QSGD_NORM].i);
  if (pith__bits_of(norm) >= PITH_INF_BITS) {
    return is_elias(a) ? elias_not_finite(a, n, out) : pith__put_not_finite(out, 1, qsgd_bound(a, n));
  }
  norm = pith__usable_scale(norm);
  pith_quantizer q = {.inverse = norm > 0 ? (float)levels / norm : 0.0f, .zero = levels, .top = 2 * levels};
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_ROUND, index);
  if (is_elias(a)) {
    return encode_elias(a, x, n, norm, &q, key, (uint32_t)index, out);
  }
  pith__put_f32(out, norm);
  pith__kernels()->quantize_random[qsgd_bits(a)](x, n, &q, key, (uint32_t)index, out + PITH_HEAD_ONE);
  return qsgd_bound(a, n);
}

static void qsgd_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                        const pith_ctx *ctx) {
  (void)index, (void)ctx;
  int32_t levels = (int32_t)a[QSGD_LEVELS].i;
  pith_dequantizer q = {.unit = pith__get_f32(in) / (float)levels, .zero = levels};
  if (is_elias(a)) {
    decode_elias(a, in, n, &q, mode, dst);
    return;
  }
  pith__kernels()->dequantize[qsgd_bits(a)](in + PITH_HEAD_ONE, n, &q, mode, dst);
}

static const char *qsgd_gpu_lacks(const pith_value *a) {
  return is_elias(a) ? "coding=elias has no CUDA kernel; use coding=fixed" : NULL;
}

static void qsgd_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task) {
  (void)ctx;
  task->levels = (int32_t)a[QSGD_LEVELS].i;
  task->bits = (uint8_t)qsgd_bits(a);
  task->norm = (uint8_t)a[QSGD_NORM].i;
}

static const pith_codec_traits qsgd_traits = {
    .gpu = PITH_GPU_BLOCKS, .gpu_lacks = qsgd_gpu_lacks, .gpu_block = qsgd_gpu};

const pith_codec_ops pith__codec_qsgd = {
    .size = sizeof(pith_codec_ops),
    .name = "qsgd",
    .family = "quantization",
    .summary = "sign and a level drawn without bias between 0 and the norm of the bucket",
    .bits = "1 + ceil(log2(levels + 1)) + 32/bucket",
    .origin = "Alistarh 2017",
    .detail =
        "for each bucket its norm, then a sign and a level for each value, as Elias codes where coding=elias and they "
        "are "
        "smaller",
    .use = "where an unbiased mean is needed without a memory; q has the smaller error at the same bits",
    .wire_id = PITH_WIRE_QSGD,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED | PITH_CAP_UNBIASED | PITH_CAP_SEEDED,
    .survey = 1,
    .params = qsgd_params,
    .check = qsgd_check,
    .caps_of = qsgd_caps,
    .block = qsgd_block,
    .block_bound = qsgd_bound,
    .encode_block = qsgd_encode,
    .check_block = qsgd_check_block,
    .decode_block = qsgd_decode,
    .traits = &qsgd_traits,
};

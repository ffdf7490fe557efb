/* SPDX-License-Identifier: Apache-2.0 */
/*
 * powersgd: a gradient seen as a matrix M (first dimension × the rest) becomes P·Qᵀ of rank r by one step of power
 * iteration from the last Q: P = MQ, made orthonormal, then Q = MᵀP. Each product is one round that sums over ranks.
 *
 * P and Q are kept column by column: r columns of `rows`, r columns of `cols` values. The last row of M may be short
 * (when the caller gave no rows); missing values count as zero. A matrix that rank r would not make half as small
 * travels as it is: then the rounds are one sum of all values and one of none.
 *
 * Payload: u64 rows (0: the values themselves follow as f32), P, Q.
 */
#include "base/half.h"
#include "base/rng.h"
#include "base/saturate.h"
#include "codec/block.h"

enum { POWERSGD_RANK };
#define HEAD 8
#define TILE 2048
#define ROWS PITH_OUTER_ROWS
#define STRIP 16384 /* values, or a row: stays in the second-level cache */

static const pith_param powersgd_params[] = {
    {sizeof(pith_param), "rank", PITH_PARAM_INT, 1, 256, "4", NULL, "columns of the factors"},
    {0},
};

/* ---- Shape ------------------------------------------------------------------------------------------------------- */

typedef struct shape {
  size_t n, rows, cols, rank;
  int dense; /* not worth factoring */
} shape;

static size_t near_square(size_t n) {
  size_t side = (size_t)sqrt((double)n);
  return side ? side : 1;
}

static shape shape_of(const pith_value *a, size_t n, uint64_t rows) {
  shape s = {.n = n, .rank = (size_t)a[POWERSGD_RANK].i};
  s.rows = rows && rows <= n ? (size_t)rows : near_square(n);
  s.cols = (n + s.rows - 1) / s.rows;
  s.dense = pith__sat_mul(2 * s.rank, pith__sat_add(s.rows, s.cols)) > n;
  return s;
}

/* Rows of a strip, and those of the strip that begins at a value. */
static size_t strip_rows(const shape *s) { return s->cols < STRIP ? STRIP / s->cols : 1; }

typedef struct row_range {
  size_t from, to;
} row_range;

static row_range all_rows(const shape *s) { return (row_range){0, s->rows}; }

static row_range strip_at(const shape *s, uint64_t offset) {
  size_t from = (size_t)offset / s->cols;
  return (row_range){from, pith__least(s->rows, from + strip_rows(s))};
}

static size_t row_length(const shape *s, size_t row) {
  size_t start = row * s->cols;
  return start >= s->n ? 0 : s->n - start < s->cols ? s->n - start : s->cols;
}

/* ---- Products ---------------------------------------------------------------------------------------------------- */

/* P = MQ, some rows of it */
static void multiply(const shape *s, row_range rows, pith_cspan m, const float *q, float *p) {
  float tile[TILE], sums[256];
  for (size_t row = rows.from; row < rows.to; row++) {
    memset(sums, 0, s->rank * sizeof *sums);
    for (size_t col = 0, length = row_length(s, row); col < length; col += TILE) {
      size_t n = pith__least(TILE, length - col);
      pith__kernels()->dots(pith__span_load(m, row * s->cols + col, n, tile), n, q + col, s->cols, s->rank, sums);
    }
    for (size_t k = 0; k < s->rank; k++) {
      p[k * s->rows + row] = sums[k];
    }
  }
}

/* Payloads have any alignment: single values are copied, kernels load vectors from anywhere. */
static void row_of(const shape *s, const float *p, size_t row, float *out) {
  for (size_t k = 0; k < s->rank; k++) {
    memcpy(out + k, (const uint8_t *)p + (k * s->rows + row) * sizeof *p, sizeof *p);
  }
}

/* Q += MᵀP over some rows. ROWS of them share one pass over Q; every value still adds up in the order of rows. */
static void multiply_transposed(const shape *s, row_range rows, pith_cspan m, const float *p, float *q) {
  float tile[ROWS][TILE], factors[ROWS * 256];
  for (size_t row = rows.from, together; row < rows.to; row += together) {
    together = rows.to - row < ROWS || row_length(s, row + ROWS - 1) < s->cols ? 1 : ROWS;
    for (size_t j = 0; j < together; j++) {
      row_of(s, p, row + j, factors + j * s->rank);
    }
    for (size_t col = 0, length = row_length(s, row); col < length; col += TILE) {
      size_t n = pith__least(TILE, length - col);
      const float *x[ROWS];
      for (size_t j = 0; j < together; j++) {
        x[j] = pith__span_load(m, (row + j) * s->cols + col, n, tile[j]);
      }
      pith__kernels()->outer(x, together, n, factors, s->rank, q + col, s->cols);
    }
  }
}

static float dot(const float *a, const float *b, size_t n) {
  float sum = 0.0f;
  pith__kernels()->dots(a, n, b, 0, 1, &sum);
  return sum;
}

/* Takes the directions of earlier columns out of a column, twice: once is not enough in f32 when they are close. */
static void project_out(const float *columns, size_t count, float *column, size_t n) {
  for (int pass = 0; pass < 2; pass++) {
    for (size_t j = 0; j < count; j++) {
      float factor = -dot(columns + j * n, column, n);
      const float *direction = columns + j * n;
      pith__kernels()->outer(&direction, 1, n, &factor, 1, column, n);
    }
  }
}

/* Modified Gram–Schmidt. A column that depends on the others (up to rounding) becomes zero: it has nothing to say. */
static void orthonormalize(float *columns, size_t count, size_t n) {
  for (size_t k = 0; k < count; k++) {
    float *column = columns + k * n;
    float before = (float)pith__norm(column, n);
    project_out(columns, k, column, n);
    float after = (float)pith__norm(column, n);
    int dependent = after <= 1e-5f * before || after < PITH_SCALE_MIN;
    pith__kernels()->scale(dependent ? 0.0f : 1.0f / after, column, n);
  }
}

/* ---- Q between steps --------------------------------------------------------------------------------------------- */

/* Random, the same on every rank. `salt` tells later drawings from the first. */
static void draw_column(float *column, size_t n, size_t k, uint64_t salt, const pith_ctx *ctx) {
  for (size_t i = 0; i < n; i++) {
    pith_key key = pith__rng_key_of(ctx->seed, salt, ctx->layer, k, PITH_DOMAIN_LOWRANK, (uint64_t)i >> 32);
    column[i] = 2.0f * pith__rng_unit(key, (uint32_t)i) - 1.0f;
  }
}

/* A column of zeros (a fresh state, or a direction that died out) could never come to life again: it is drawn anew. */
static void wake_columns(const shape *s, float *q, const pith_ctx *ctx) {
  for (size_t k = 0; k < s->rank; k++) {
    float *column = q + k * s->cols;
    uint32_t most = pith__kernels()->absmax(column, s->cols);
    if (most == 0 || most >= PITH_INF_BITS) {
      draw_column(column, s->cols, k, ctx->step, ctx);
    }
  }
}

/* ---- Alone ------------------------------------------------------------------------------------------------------- */

static size_t powersgd_bound(const pith_value *a, size_t n) {
  (void)a;
  return pith__sat_add(HEAD, pith__sat_mul(n, sizeof(float))); /* factors take at most half of that */
}

static size_t powersgd_scratch(const pith_value *a, size_t n) {
  (void)a, (void)n;
  return 0; /* the factors are made where they travel */
}

/* Values as they are, to and from bytes of any alignment. */
static void copy_values(pith_cspan src, void *out) {
  float tile[TILE];
  for (size_t first = 0; first < src.n; first += TILE) {
    size_t n = pith__least(TILE, src.n - first);
    memcpy((uint8_t *)out + first * sizeof *tile, pith__span_load(src, first, n, tile), n * sizeof *tile);
  }
}

static void apply_values(const void *values, float factor, pith_span dst, pith_mode mode) {
  float tile[TILE], more[TILE];
  for (size_t first = 0; first < dst.n; first += TILE) {
    size_t n = pith__least(TILE, dst.n - first);
    memcpy(tile, (const uint8_t *)values + first * sizeof *tile, n * sizeof *tile);
    pith__kernels()->scale(factor, tile, n);
    pith__span_store(dst, first, n, tile, mode, more);
  }
}

static pith_status encode_dense(pith_cspan src, pith_out *out) {
  memset(out->data, 0, HEAD);
  copy_values(src, (uint8_t *)out->data + HEAD);
  out->size = HEAD + src.n * sizeof(float);
  return PITH_OK;
}

/* The factors are built inside the output buffer, which has room to spare, at the first aligned place behind the
 * head. */
static float *aligned_behind_head(void *payload) {
  uintptr_t at = (uintptr_t)payload + HEAD;
  return (float *)((at + sizeof(float) - 1) / sizeof(float) * sizeof(float));
}

static pith_status powersgd_encode(const pith_value *a, pith_cspan src, pith_out *out, void *part,
                                   const pith_ctx *ctx) {
  shape s = shape_of(a, src.n, ctx->rows);
  if (s.dense) {
    return encode_dense(src, out);
  }
  float *p = aligned_behind_head(out->data), *q = p + s.rank * s.rows;
  size_t q_bytes = s.rank * s.cols * sizeof *q;
  memset(q, 0, q_bytes);
  if (part) {
    memcpy(q, part, q_bytes);
  }
  wake_columns(&s, q, ctx);
  multiply(&s, all_rows(&s), src, q, p);
  orthonormalize(p, s.rank, s.rows);
  memset(q, 0, q_bytes);
  multiply_transposed(&s, all_rows(&s), src, p, q);
  if (part) {
    memcpy(part, q, q_bytes);
  }
  uint64_t rows = s.rows;
  size_t size = s.rank * (s.rows + s.cols) * sizeof *p;
  memmove((uint8_t *)out->data + HEAD, p, size);
  memcpy(out->data, &rows, HEAD);
  out->size = HEAD + size;
  return PITH_OK;
}

/* dst (+ or −)= PQᵀ, some rows of it */
static void expand(const shape *s, row_range rows, const float *p, const float *q, pith_span dst, pith_apply apply) {
  float tile[TILE], more[TILE], factors[256];
  for (size_t row = rows.from; row < rows.to; row++) {
    row_of(s, p, row, factors);
    for (size_t k = 0; k < s->rank && apply == PITH_APPLY_SUB; k++) {
      factors[k] = -factors[k];
    }
    for (size_t col = 0, length = row_length(s, row); col < length; col += TILE) {
      size_t n = pith__least(TILE, length - col);
      float *whole = dst.dtype == PITH_F32 && apply == PITH_APPLY_SET ? (float *)dst.data + row * s->cols + col : NULL;
      pith__kernels()->combine(factors, s->rank, q + col, s->cols, whole ? whole : tile, n);
      if (!whole) {
        pith__span_store(dst, row * s->cols + col, n, tile, apply == PITH_APPLY_SET ? PITH_SET : PITH_ADD, more);
      }
    }
  }
}

static pith_status decode_dense(pith_bytes in, pith_span dst, pith_apply apply) {
  PITH_REQUIRE(in.size == HEAD + 4 * dst.n, PITH_ERR_CORRUPT,
               "powersgd: %zu values as they are take %zu bytes, not %zu", dst.n, HEAD + 4 * dst.n, in.size);
  float factor = apply == PITH_APPLY_SUB ? -1.0f : 1.0f;
  apply_values((const uint8_t *)in.data + HEAD, factor, dst, apply == PITH_APPLY_SET ? PITH_SET : PITH_ADD);
  return PITH_OK;
}

static pith_status powersgd_decode(const pith_value *a, pith_bytes in, pith_span dst, pith_apply apply,
                                   const pith_ctx *ctx) {
  (void)ctx;
  uint64_t rows;
  PITH_REQUIRE(apply != PITH_APPLY_CLEAR, PITH_ERR_UNSUPPORTED, "powersgd: every value travels, none can be cleared");
  PITH_REQUIRE(in.size >= HEAD, PITH_ERR_CORRUPT, "powersgd: a payload has at least %d bytes, not %zu", HEAD, in.size);
  memcpy(&rows, in.data, HEAD);
  if (rows == 0) {
    return decode_dense(in, dst, apply);
  }
  PITH_REQUIRE(rows <= dst.n, PITH_ERR_CORRUPT, "powersgd: %llu rows for %zu values", (unsigned long long)rows, dst.n);
  shape s = shape_of(a, dst.n, rows);
  PITH_REQUIRE(!s.dense && in.size == HEAD + s.rank * (s.rows + s.cols) * sizeof(float), PITH_ERR_CORRUPT,
               "powersgd: %zu bytes do not hold rank %zu factors of %zu × %zu", in.size, s.rank, s.rows, s.cols);
  const float *p = (const float *)(const void *)((const uint8_t *)in.data + HEAD);
  expand(&s, all_rows(&s), p, p + s.rank * s.rows, dst, apply);
  return PITH_OK;
}

/* ---- In rounds --------------------------------------------------------------------------------------------------- */

/* The part is Q, then P. A layer that is not worth factoring has none. */
static size_t powersgd_part_size(const pith_value *a, size_t n, uint64_t rows) {
  shape s = shape_of(a, n, rows);
  return s.dense ? 0 : s.rank * (s.rows + s.cols) * sizeof(float);
}

static size_t powersgd_rounds(const pith_value *a) {
  (void)a;
  return 2;
}

static pith_status powersgd_describe(const pith_value *a, size_t n, uint64_t rows, size_t index, pith_round *round) {
  shape s = shape_of(a, n, rows);
  size_t sparse_count = s.rank * (index == 0 ? s.rows : s.cols), dense_count = index == 0 ? 0 : n;
  round->dtype = PITH_F32;
  round->reduce = PITH_SUM;
  round->count = s.dense ? dense_count : sparse_count;
  return PITH_OK;
}

/* Values of a layer that is not worth factoring are one strip. */
static size_t powersgd_strip(const pith_value *a, size_t n, uint64_t rows) {
  shape s = shape_of(a, n, rows);
  return s.dense ? n : strip_rows(&s) * s.cols;
}

static void produce_dense(size_t index, pith_cspan src, void *buffer) {
  if (index == 1) {
    copy_values(src, buffer);
  }
}

static pith_status powersgd_produce(const pith_value *a, size_t index, pith_cspan src, void *buffer, void *part,
                                    const pith_ctx *ctx) {
  shape s = shape_of(a, src.n, ctx->rows);
  if (s.dense) {
    produce_dense(index, src, buffer);
    return PITH_OK;
  }
  float *q = part, *p = q + s.rank * s.cols;
  row_range rows = strip_at(&s, ctx->offset);
  if (index == 0) {
    if (rows.from == 0) {
      wake_columns(&s, q, ctx);
    }
    multiply(&s, rows, src, q, buffer);
  } else {
    if (rows.from == 0) {
      memset(buffer, 0, s.rank * s.cols * sizeof(float));
    }
    multiply_transposed(&s, rows, src, p, buffer);
  }
  return PITH_OK;
}

static pith_status powersgd_consume(const pith_value *a, size_t index, const void *buffer, pith_span dst, void *part,
                                    const pith_ctx *ctx) {
  shape s = shape_of(a, dst.n, ctx->rows);
  float factor = 1.0f / (float)ctx->ranks;
  if (s.dense) {
    if (index == 1) {
      apply_values(buffer, factor, dst, PITH_SET);
    }
    return PITH_OK;
  }
  float *q = part, *p = q + s.rank * s.cols;
  if (index == 0) {
    memcpy(p, buffer, s.rank * s.rows * sizeof *p);
    orthonormalize(p, s.rank, s.rows); /* the same for a sum as for a mean */
    return PITH_OK;
  }
  if (ctx->offset == 0) {
    memcpy(q, buffer, s.rank * s.cols * sizeof *q);
    pith__kernels()->scale(factor, q, s.rank * s.cols);
  }
  expand(&s, strip_at(&s, ctx->offset), p, q, dst, PITH_APPLY_SET);
  return PITH_OK;
}

/* ---- For the planner, and for GPUs ------------------------------------------------------------------------------- */

static size_t powersgd_rank(const pith_value *a) { return (size_t)a[POWERSGD_RANK].i; }

/* P is orthonormal: ‖M − PQᵀ‖² = ‖M‖² − Σ‖q_k‖². */
static double powersgd_energy(const pith_value *a, size_t n, uint64_t rows, const void *part, size_t k) {
  shape s = shape_of(a, n, rows);
  const float *q = (const float *)part + k * s.cols;
  double sum = 0;
  for (size_t i = 0; i < s.cols; i++) {
    sum += (double)q[i] * (double)q[i];
  }
  return sum;
}

static size_t powersgd_columns(const pith_value *a, size_t n, uint64_t rows) {
  shape s = shape_of(a, n, rows);
  return s.dense ? 0 : s.rank * s.cols * sizeof(float);
}

/* At the default rank, 4, half of the time goes with the rank. */
static double powersgd_cost(const pith_value *a) { return (4 + (double)a[POWERSGD_RANK].i) / 8; }

static void powersgd_gpu(const pith_value *a, const pith_ctx *ctx, pith_gpu_lowrank *task) {
  shape s = shape_of(a, task->n, ctx->rows);
  task->hash = pith__rng_hash(ctx->seed, ctx->step, ctx->layer);
  task->rows = (uint32_t)s.rows;
  task->cols = (uint32_t)s.cols;
  task->rank = (uint32_t)s.rank;
  task->dense = (uint8_t)s.dense;
}

static const pith_nested powersgd_nested = {powersgd_rank, powersgd_energy, powersgd_columns};

static const pith_codec_traits powersgd_traits = {
    .cost = powersgd_cost,
    .nested = &powersgd_nested,
    .gpu = PITH_GPU_LOWRANK,
    .gpu_lowrank = powersgd_gpu,
};

const pith_codec_ops pith__codec_powersgd = {
    .size = sizeof(pith_codec_ops),
    .name = "powersgd",
    .family = "low rank",
    .summary = "the gradient as a matrix of rank r, by one step of power iteration from the last one",
    .bits = "32·rank·(rows + cols)/(rows·cols)",
    .origin = "Vogels 2019",
    .detail = "two thin matrices, P and then Q, summed over all ranks in two exchanges",
    .use = "behind ef, for large matrices on slow links: 100 times fewer bytes and more; small layers gain little",
    .wire_id = PITH_WIRE_POWERSGD,
    .caps = PITH_CAP_LINEAR | PITH_CAP_ROUNDS | PITH_CAP_SEEDED,
    .survey = 1,
    .params = powersgd_params,
    .bound = powersgd_bound,
    .scratch = powersgd_scratch,
    .encode = powersgd_encode,
    .decode = powersgd_decode,
    .part_size = powersgd_part_size,
    .rounds = powersgd_rounds,
    .describe = powersgd_describe,
    .produce = powersgd_produce,
    .consume = powersgd_consume,
    .strip = powersgd_strip,
    .traits = &powersgd_traits,
};

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The error of every candidate on one gradient, in few passes over it (here for main memory; on devices the same is
 * done by kernels, src/device/cuda_statistics.c):
 *
 *  - a histogram of magnitudes gives the norm and, for all numbers of largest values at once, the energy of what is
 *    left out;
 *  - block codecs (all widths at once) encode and decode a piece of the gradient while it is in the cache;
 *  - low rank runs once, at the largest rank: the first r columns of that run are, bit for bit, a run of rank r;
 *  - any other codec encodes and decodes the whole.
 *
 * Which of these a codec allows is told by its traits.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "codec/selection.h"
#include "profile/profile.h"

enum { PIECE = 16384, SAMPLE = 4096, TILE = 4096, BINS = 0x8000, KEY_SHIFT = 16, KEY_INF = 0x7f80, LANES = 16 };
enum { SAMPLE_MOST = 1 << 21 }; /* values of a sample: so that large layers cost no more than that */
enum { FIRST_ITERATIONS = 3 };  /* of low rank when there is no sketch yet: near to where training would be */
#define TOP_SHARE 0.01

/* ---- Magnitudes -------------------------------------------------------------------------------------------------- */

/* Bins by the upper bits of |x|: exponent and seven bits of the fraction. After `accumulate` a bin tells of itself and
 * all above. */
typedef struct histogram {
  uint64_t count[BINS + 1];
  double energy[BINS + 1];
} histogram;

static void count_values(histogram *h, pith_cspan x) {
  float tile[TILE];
  for (size_t at = 0; at < x.n; at += TILE) {
    size_t n = pith__least(TILE, x.n - at);
    const float *v = pith__span_load(x, at, n, tile);
    for (size_t i = 0; i < n; i++) {
      uint32_t bits;
      memcpy(&bits, &v[i], sizeof bits);
      uint32_t key = bits >> KEY_SHIFT & (BINS - 1);
      h->count[key]++;
      h->energy[key] += (double)v[i] * (double)v[i];
    }
  }
}

static void accumulate(histogram *h) {
  for (size_t key = BINS; key-- > 0;) {
    h->count[key] += h->count[key + 1];
    h->energy[key] += h->energy[key + 1];
  }
}

/* The energy of the k largest: whole bins, and a share of the last. */
static double energy_of_top(const histogram *h, size_t k) {
  size_t low = 0, high = BINS; /* the first bin with count ≤ k is in (low, high] unless it is 0 */
  if (h->count[0] <= k) {
    return h->energy[0];
  }
  while (high - low > 1) {
    size_t middle = (low + high) / 2;
    *(h->count[middle] <= k ? &high : &low) = middle;
  }
  uint64_t inside = h->count[low] - h->count[high];
  double part = (double)(k - h->count[high]) / (double)inside;
  return h->energy[high] + part * (h->energy[low] - h->energy[high]);
}

/* ---- Encode and decode ------------------------------------------------------------------------------------------- */

/* Memory for pieces of up to n values. */
typedef struct buffers {
  void *payload, *scratch;
  float *decoded, *loaded;
} buffers;

static double squared_difference(const float *a, const float *b, size_t n) {
  double sum = 0;
  for (size_t at = 0; at < n; at += 32 * LANES) {
    float lane[LANES] = {0};
    size_t end = pith__least(n, at + 32 * LANES), i = at;
    for (; i + LANES <= end; i += LANES) {
      for (size_t j = 0; j < LANES; j++) {
        float d = a[i + j] - b[i + j];
        lane[j] += d * d;
      }
    }
    double part = 0;
    for (; i < end; i++) {
      part += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    }
    for (size_t j = 0; j < LANES; j++) {
      part += (double)lane[j];
    }
    sum += part;
  }
  return sum;
}

static void buffers_fini(buffers *w) {
  free(w->payload);
  free(w->scratch);
  free(w->decoded);
  free(w->loaded);
}

static size_t scratch_need(const pith_codec *c, size_t n) {
  pith_arena arena = pith__arena_over(NULL, 0);
  pith__codec_take_scratch(c, n, &arena);
  return pith__arena_need(&arena);
}

/* Room for these codecs, on n values at a time. */
static pith_status buffers_init(buffers *w, pith_codec *const *codec, size_t count, size_t n) {
  size_t payload = 1, scratch = 1;
  for (size_t i = 0; i < count; i++) {
    payload = pith__most(payload, pith_codec_bound(codec[i], n));
    scratch = pith__most(scratch, scratch_need(codec[i], n));
  }
  *w = (buffers){malloc(payload), malloc(scratch), malloc((n + 1) * sizeof(float)), malloc((n + 1) * sizeof(float))};
  if (!w->payload || !w->scratch || !w->decoded || !w->loaded) {
    buffers_fini(w);
    return pith_fail(PITH_ERR_MEMORY, "no memory to measure %zu values", n);
  }
  return PITH_OK;
}

/* One piece of f32 values there and back. Adds to *bytes and *error. */
static pith_status measure_piece(const pith_codec *c, buffers *w, const float *x, size_t n, const pith_ctx *ctx,
                                 double *bytes, double *error) {
  size_t bound = pith_codec_bound(c, n), need = scratch_need(c, n);
  pith_arena arena = pith__arena_over(w->scratch, need);
  void *scratch = pith__codec_take_scratch(c, n, &arena);
  pith_out out = {w->payload, bound, 0};
  PITH_TRY(pith__codec_encode(c, (pith_cspan){x, n, PITH_F32}, &out, NULL, scratch, ctx));
  PITH_TRY(pith__codec_decode(c, (pith_bytes){out.data, out.size}, (pith_span){w->decoded, n, PITH_F32}, PITH_APPLY_SET,
                              scratch, ctx));
  *bytes += (double)out.size;
  *error += squared_difference(x, w->decoded, n);
  return PITH_OK;
}

/* ---- Kinds of candidates ----------------------------------------------------------------------------------------- */

static int is_in_pieces(const pith_codec *c) {
  return (c->caps & PITH_CAP_CHUNKED) && PIECE % c->granule == 0 && !c->traits->exact;
}

/* Whether a codec sends the largest values as they are, and no other; how many of n. */
static int is_largest(const pith_codec *c, size_t n, size_t *k, double *bytes) {
  return !c->transform && c->traits->largest && c->traits->largest(c->args, n, k, bytes);
}

static size_t part_size(const pith_measurement *m, size_t c) {
  const pith_codec *codec = m->codec[c];
  return codec->ops->part_size(codec->args, m->x.n, m->ctx.rows);
}

/* Its rank; 0: the codec is not of this kind, or the layer is not worth factoring. */
static size_t rank_of(const pith_measurement *m, size_t c) {
  const pith_codec *codec = m->codec[c];
  return codec->traits->nested && part_size(m, c) ? codec->traits->nested->rank(codec->args) : 0;
}

static void sort_candidates(pith_measurement *m) {
  m->run = m->candidates;
  for (size_t c = 0; c < m->candidates; c++) {
    const pith_codec *codec = m->codec[c];
    m->by[c] = codec->traits->exact                                              ? PITH_BY_NOTHING
               : is_in_pieces(codec)                                             ? PITH_BY_PIECES
               : codec->traits->nested                                           ? PITH_BY_COLUMNS
               : is_largest(codec, m->x.n, &m->largest[c], &m->largest_bytes[c]) ? PITH_BY_LARGEST
                                                                                 : PITH_BY_ENCODING;
    if (rank_of(m, c) > m->columns) {
      m->run = c;
      m->columns = rank_of(m, c);
    }
  }
}

/* Large layers are sampled: two samples of every rank make up the whole, unless that is more than SAMPLE_MOST. At least
 * eight pieces; others in other steps and on other ranks, so that all of them are seen by somebody. */
static void choose_samples(pith_measurement *m, size_t ranks) {
  size_t piece = SAMPLE;
  for (size_t c = 0; c < m->candidates; c++) {
    piece = m->by[c] == PITH_BY_PIECES && SAMPLE % m->codec[c]->granule ? PIECE : piece;
  }
  size_t pieces = m->x.n / piece;
  if (pieces >= 16) {
    m->piece = piece;
    m->stride = pith__least(2 * pith__most(1, ranks), pieces / 8);
    m->stride = pith__most(m->stride, pieces / (SAMPLE_MOST / piece));
    m->first = (m->ctx.step + m->ctx.step / 4 + 2 * m->ctx.rank) % m->stride;
  }
}

/* The sketch of a layer that has none yet is zeros. */
static pith_status find_sketch(pith_profile *p, pith_measurement *m) {
  pith_profiled *l = &p->layer[m->layer];
  if (m->run < m->candidates && !l->sketch && !l->fixed) {
    PITH_TRY(pith__space_zeros(p->space, part_size(m, m->run), &l->sketch));
  }
  m->sketch = l->sketch;
  m->iterations = l->warm ? 1 : FIRST_ITERATIONS;
  l->warm = 1;
  return PITH_OK;
}

static pith_measurement measurement_of(const pith_profile *p, size_t layer, pith_cspan x) {
  const pith_profiled *l = &p->layer[layer];
  pith_measurement m = {.layer = layer,
                        .name = l->name,
                        .x = x,
                        .ctx = PITH_CTX_INIT,
                        .candidates = p->candidates,
                        .codec = p->codec,
                        .top = pith__ratio_count(TOP_SHARE, x.n),
                        .piece = PIECE,
                        .stride = 1};
  m.ctx.layer = layer;
  m.ctx.ranks = 1;
  m.ctx.gamma = 1;
  m.ctx.rows = l->shape[0];
  sort_candidates(&m);
  return m;
}

pith_status pith__measurement_init(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx, int sampled,
                                   pith_measurement *m) {
  PITH_REQUIRE(x.dtype == PITH_F32 || x.dtype == PITH_F16 || x.dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "layer %s: gradients are f32, f16 or bf16, not %s", p->layer[layer].name, pith_dtype_name(x.dtype));
  *m = measurement_of(p, layer, x);
  if (ctx) {
    m->ctx.seed = ctx->seed;
    m->ctx.step = ctx->step;
    m->ctx.rank = ctx->rank;
  }
  if (sampled) {
    choose_samples(m, ctx ? ctx->ranks : 1);
  }
  return find_sketch(p, m);
}

size_t pith__sketch_size(pith_profile *p, size_t layer) {
  pith_measurement m = measurement_of(p, layer, (pith_cspan){NULL, p->layer[layer].n, PITH_F32});
  return p->layer[layer].fixed || m.run == m.candidates ? 0 : part_size(&m, m.run);
}

size_t pith__measured_values(const pith_measurement *m) {
  size_t n = m->x.n, step = m->piece * m->stride, begin = m->piece * m->first;
  size_t whole = begin < n ? (n - begin - 1) / step : 0, last = begin + whole * step;
  return begin < n ? whole * m->piece + pith__least(m->piece, n - last) : 0;
}

double pith__measured_bytes(const pith_measurement *m, size_t candidate) {
  size_t n = pith__measured_values(m), whole = n / m->piece, rest = n % m->piece;
  const pith_codec *codec = m->codec[candidate];
  return (double)whole * (double)pith_codec_bound(codec, m->piece) + (rest ? (double)pith_codec_bound(codec, rest) : 0);
}

/* ---- Measuring in main memory ------------------------------------------------------------------------------------ */

static pith_status measure_pieces(const pith_measurement *m, buffers *w, pith_measured *found) {
  size_t measured = 0;
  for (size_t at = m->piece * m->first; at < m->x.n; at += m->piece * m->stride) {
    size_t n = pith__least(m->piece, m->x.n - at);
    const float *x = pith__span_load(m->x, at, n, w->loaded);
    pith_ctx ctx = m->ctx;
    ctx.offset = measured;
    measured += n;
    for (size_t c = 0; c < m->candidates; c++) {
      if (m->by[c] == PITH_BY_PIECES) {
        PITH_TRY(measure_piece(m->codec[c], w, x, n, &ctx, &found->bytes[c], &found->error[c]));
      }
    }
  }
  return PITH_OK;
}

static pith_status measure_in_pieces(const pith_measurement *m, pith_measured *found) {
  buffers w;
  size_t count = 0;
  pith_codec *used[PITH_CANDIDATES_MAX];
  for (size_t c = 0; c < m->candidates; c++) {
    if (m->by[c] == PITH_BY_PIECES) {
      used[count++] = m->codec[c];
    }
  }
  if (!count) {
    return PITH_OK;
  }
  PITH_TRY(buffers_init(&w, used, count, PIECE));
  pith_status status = measure_pieces(m, &w, found);
  buffers_fini(&w);
  return status;
}

static pith_status measure_whole(const pith_measurement *m, size_t c, pith_measured *found) {
  buffers w;
  PITH_TRY(buffers_init(&w, &m->codec[c], 1, m->x.n));
  const float *x = pith__span_load(m->x, 0, m->x.n, w.loaded);
  pith_status status = measure_piece(m->codec[c], &w, x, m->x.n, &m->ctx, &found->bytes[c], &found->error[c]);
  buffers_fini(&w);
  return status;
}

static pith_status measure_lowrank(const pith_measurement *m, pith_measured *found) {
  if (m->run == m->candidates) {
    return PITH_OK; /* the values travel as they are, if there are such candidates at all */
  }
  const pith_codec *codec = m->codec[m->run];
  buffers w;
  PITH_TRY(buffers_init(&w, &m->codec[m->run], 1, m->x.n));
  pith_status status = PITH_OK;
  for (int i = 0; i < m->iterations && status == PITH_OK; i++) {
    pith_out out = {w.payload, pith_codec_bound(codec, m->x.n), 0};
    status = pith__codec_encode(codec, m->x, &out, m->sketch, w.scratch, &m->ctx);
  }
  buffers_fini(&w);
  for (size_t k = 0; k < m->columns; k++) {
    found->energy[k] = codec->traits->nested->energy(codec->args, m->x.n, m->ctx.rows, m->sketch, k);
  }
  return status;
}

static pith_status measure_all(const pith_measurement *m, histogram *h, pith_measured *found) {
  count_values(h, m->x);
  accumulate(h);
  found->finite = h->count[KEY_INF] == 0;
  if (!found->finite) {
    return PITH_OK;
  }
  found->norm = h->energy[0];
  found->top = energy_of_top(h, m->top);
  PITH_TRY(measure_in_pieces(m, found));
  PITH_TRY(measure_lowrank(m, found));
  for (size_t c = 0; c < m->candidates; c++) {
    if (m->by[c] == PITH_BY_LARGEST) {
      found->error[c] = energy_of_top(h, m->largest[c]);
    } else if (m->by[c] == PITH_BY_ENCODING) {
      PITH_TRY(measure_whole(m, c, found));
    }
  }
  return PITH_OK;
}

pith_status pith__measure(const pith_measurement *m, pith_measured *found) {
  histogram *h = calloc(1, sizeof *h);
  PITH_REQUIRE(h, PITH_ERR_MEMORY, "no memory to measure layer %s", m->name);
  memset(found, 0, sizeof *found);
  pith_status status = measure_all(m, h, found);
  free(h);
  return status;
}

/* ---- What follows ------------------------------------------------------------------------------------------------ */

/* What low rank leaves over: the columns before take their energy off the norm. */
static double left_by(const pith_measurement *m, const pith_measured *found, size_t rank) {
  double left = found->norm;
  for (size_t k = 0; k < rank && k < m->columns; k++) {
    left = fmax(0, left - found->energy[k]);
  }
  return rank ? left : 0;
}

static void conclude(const pith_measurement *m, const pith_measured *found, size_t c, double *bytes, double *error) {
  const pith_codec *codec = m->codec[c];
  size_t n = m->x.n, sampled = pith__measured_values(m);
  *bytes = *error = 0;
  switch (m->by[c]) {
    case PITH_BY_NOTHING:
      *bytes = (double)(n * pith_dtype_size(m->x.dtype));
      break;
    case PITH_BY_PIECES: { /* from the sample to the whole */
      double factor = sampled ? (double)n / (double)sampled : 0;
      int is_all = sampled == n;
      *error = is_all ? found->error[c] : found->error[c] * factor;
      *bytes = is_all                         ? found->bytes[c]
               : codec->caps & PITH_CAP_FIXED ? (double)pith_codec_bound(codec, n)
                                              : found->bytes[c] * factor;
      break;
    }
    case PITH_BY_LARGEST:
      *bytes = m->largest_bytes[c];
      *error = fmax(0, found->norm - found->error[c]);
      break;
    case PITH_BY_COLUMNS:
      *error = left_by(m, found, rank_of(m, c));
      break;
    default:
      *bytes = found->bytes[c];
      *error = found->error[c];
  }
}

/* What ROUNDS codecs exchange, in place of what they encode alone. */
static pith_status count_rounds(const pith_measurement *m, size_t c, double *bytes) {
  const pith_codec *codec = m->codec[c];
  *bytes = 0;
  for (size_t i = 0; i < codec->ops->rounds(codec->args); i++) {
    pith_round round = PITH_ROUND_INIT;
    PITH_TRY(codec->ops->describe(codec->args, m->x.n, m->ctx.rows, i, &round));
    *bytes += (double)round.count * (double)pith_dtype_size(round.dtype);
  }
  return PITH_OK;
}

pith_status pith__profile_add(pith_profile *p, const pith_measurement *m, const pith_measured *found) {
  double *sums = pith__sums(p, m->layer), *errors = pith__sum_errors(p, m->layer);
  double bytes[PITH_CANDIDATES_MAX], error[PITH_CANDIDATES_MAX];
  if (!found->finite) {
    sums[PITH_SUM_SKIPPED]++;
    p->layer[m->layer].warm = m->iterations == 1; /* a first run that did not count is no first one */
    return PITH_OK;
  }
  for (size_t c = 0; c < m->candidates; c++) {
    conclude(m, found, c, &bytes[c], &error[c]);
    PITH_TRY(m->codec[c]->caps & PITH_CAP_ROUNDS ? count_rounds(m, c, &bytes[c]) : PITH_OK);
  }
  sums[PITH_SUM_SAMPLES]++;
  sums[PITH_SUM_NORM] += found->norm;
  sums[PITH_SUM_TOP] += found->top;
  for (size_t c = 0; c < m->candidates; c++) {
    sums[PITH_SUM_BYTES + c] += bytes[c];
    errors[c] += error[c];
  }
  return PITH_OK;
}

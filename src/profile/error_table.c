/*
 * The error of every candidate on one gradient, in few passes over it:
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
enum { FIRST_ITERATIONS = 3 }; /* of low rank when there is no sketch yet: near to where training would be */
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

/* Whether a codec sends the largest values as they are, and no other; what that means for n values. */
static int measure_largest(const pith_codec *c, const histogram *h, size_t n, double *bytes, double *error) {
  size_t k;
  if (c->transform || !c->traits->largest || !c->traits->largest(c->args, n, &k, bytes)) {
    return 0;
  }
  *error = fmax(0, h->energy[0] - energy_of_top(h, k));
  return 1;
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

typedef struct measurement {
  pith_profile *p;
  pith_profiled *layer;
  pith_cspan x;
  pith_ctx ctx;
  size_t piece, stride; /* values of a piece; of `stride` of them one is measured */
  pith_error_table *table;
} measurement;

static int is_in_pieces(const pith_codec *c) {
  return (c->caps & PITH_CAP_CHUNKED) && PIECE % c->granule == 0 && !c->traits->exact;
}

/* Every piece, or one of `stride`: others in other steps and on other ranks, so that all of them are seen by somebody.
 */
static pith_status measure_pieces(measurement *m, buffers *w, size_t *measured) {
  size_t first = m->stride > 1 ? (m->ctx.step + m->ctx.step / 4 + 2 * m->ctx.rank) % m->stride : 0;
  for (size_t at = m->piece * first; at < m->x.n; at += m->piece * m->stride) {
    size_t n = pith__least(m->piece, m->x.n - at);
    const float *x = pith__span_load(m->x, at, n, w->loaded);
    *measured += n;
    pith_ctx ctx = m->ctx;
    ctx.offset = at;
    for (size_t c = 0; c < m->p->candidates; c++) {
      if (is_in_pieces(m->p->codec[c])) {
        PITH_TRY(measure_piece(m->p->codec[c], w, x, n, &ctx, &m->table->bytes[c], &m->table->error[c]));
      }
    }
  }
  return PITH_OK;
}

/* From the pieces that were measured to the whole. */
static void extrapolate(measurement *m, size_t measured) {
  double factor = measured ? (double)m->x.n / (double)measured : 0;
  for (size_t c = 0; c < m->p->candidates && measured < m->x.n; c++) {
    const pith_codec *codec = m->p->codec[c];
    if (is_in_pieces(codec)) {
      m->table->error[c] *= factor;
      m->table->bytes[c] =
          codec->caps & PITH_CAP_FIXED ? (double)pith_codec_bound(codec, m->x.n) : m->table->bytes[c] * factor;
    }
  }
}

static pith_status measure_in_pieces(measurement *m) {
  buffers w;
  size_t count = 0, measured = 0;
  pith_codec *used[PITH_CANDIDATES_MAX];
  for (size_t c = 0; c < m->p->candidates; c++) {
    if (is_in_pieces(m->p->codec[c])) {
      used[count++] = m->p->codec[c];
    }
  }
  if (!count) {
    return PITH_OK;
  }
  PITH_TRY(buffers_init(&w, used, count, PIECE));
  pith_status status = measure_pieces(m, &w, &measured);
  buffers_fini(&w);
  extrapolate(m, measured);
  return status;
}

static pith_status measure_whole(measurement *m, size_t c) {
  buffers w;
  PITH_TRY(buffers_init(&w, &m->p->codec[c], 1, m->x.n));
  const float *x = pith__span_load(m->x, 0, m->x.n, w.loaded);
  pith_status status = measure_piece(m->p->codec[c], &w, x, m->x.n, &m->ctx, &m->table->bytes[c], &m->table->error[c]);
  buffers_fini(&w);
  return status;
}

/* What ROUNDS codecs exchange, in place of what they encode alone. */
static pith_status count_rounds(const measurement *m, size_t c) {
  const pith_codec *codec = m->p->codec[c];
  double bytes = 0;
  for (size_t i = 0; i < codec->ops->rounds(codec->args); i++) {
    pith_round round = PITH_ROUND_INIT;
    PITH_TRY(codec->ops->describe(codec->args, m->x.n, m->ctx.rows, i, &round));
    bytes += (double)round.count * (double)pith_dtype_size(round.dtype);
  }
  m->table->bytes[c] = bytes;
  return PITH_OK;
}

/* ---- Low rank ---------------------------------------------------------------------------------------------------- */

static size_t part_size(const measurement *m, size_t c) {
  const pith_codec *codec = m->p->codec[c];
  return codec->ops->part_size(codec->args, m->x.n, m->ctx.rows);
}

/* Its rank; 0: the codec is not of this kind, or the layer is not worth factoring. */
static size_t rank_of(const measurement *m, size_t c) {
  const pith_codec *codec = m->p->codec[c];
  return codec->traits->nested && part_size(m, c) ? codec->traits->nested->rank(codec->args) : 0;
}

/* The candidate of the largest rank; `candidates` if there is none. */
static size_t largest_rank(const measurement *m) {
  size_t best = m->p->candidates, most = 0;
  for (size_t c = 0; c < m->p->candidates; c++) {
    if (rank_of(m, c) > most) {
      best = c;
      most = rank_of(m, c);
    }
  }
  return best;
}

static pith_status iterate(measurement *m, size_t c, int times) {
  const pith_codec *codec = m->p->codec[c];
  buffers w;
  PITH_TRY(buffers_init(&w, &m->p->codec[c], 1, m->x.n));
  pith_status status = PITH_OK;
  for (int i = 0; i < times && status == PITH_OK; i++) {
    pith_out out = {w.payload, pith_codec_bound(codec, m->x.n), 0};
    status = pith__codec_encode(codec, m->x, &out, m->layer->sketch, w.scratch, &m->ctx);
  }
  buffers_fini(&w);
  return status;
}

/* From one run to the error of every rank. */
static void share_out(measurement *m, const pith_codec *run) {
  const pith_nested *nested = run->traits->nested;
  double left = m->table->norm;
  for (size_t k = 0; k < nested->rank(run->args); k++) {
    left = fmax(0, left - nested->energy(run->args, m->x.n, m->ctx.rows, m->layer->sketch, k));
    for (size_t c = 0; c < m->p->candidates; c++) {
      if (rank_of(m, c) == k + 1) {
        m->table->error[c] = left;
      }
    }
  }
}

static pith_status measure_lowrank(measurement *m) {
  size_t c = largest_rank(m);
  if (c == m->p->candidates) {
    return PITH_OK; /* the values travel as they are, if there are such candidates at all */
  }
  int fresh = !m->layer->sketch;
  if (fresh) {
    m->layer->sketch = calloc(1, part_size(m, c));
    PITH_REQUIRE(m->layer->sketch, PITH_ERR_MEMORY, "no memory for a sketch of layer %s", m->layer->name);
  }
  pith_status status = iterate(m, c, fresh ? FIRST_ITERATIONS : 1);
  if (status != PITH_OK && fresh) {
    free(m->layer->sketch);
    m->layer->sketch = NULL;
  }
  PITH_TRY(status);
  share_out(m, m->p->codec[c]);
  return PITH_OK;
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

static pith_status measure_rest(measurement *m, const histogram *h) {
  for (size_t c = 0; c < m->p->candidates; c++) {
    const pith_codec *codec = m->p->codec[c];
    if (codec->traits->exact) {
      m->table->bytes[c] = (double)(m->x.n * pith_dtype_size(m->x.dtype));
    } else if (!is_in_pieces(codec) && !codec->traits->nested &&
               !measure_largest(codec, h, m->x.n, &m->table->bytes[c], &m->table->error[c])) {
      PITH_TRY(measure_whole(m, c));
    }
    if (codec->caps & PITH_CAP_ROUNDS) {
      PITH_TRY(count_rounds(m, c));
    }
  }
  return PITH_OK;
}

static pith_status measure_all(measurement *m, histogram *h) {
  count_values(h, m->x);
  accumulate(h);
  m->table->finite = h->count[KEY_INF] == 0;
  if (!m->table->finite) {
    return PITH_OK;
  }
  m->table->norm = h->energy[0];
  m->table->top = energy_of_top(h, pith__ratio_count(TOP_SHARE, m->x.n));
  PITH_TRY(measure_in_pieces(m));
  PITH_TRY(measure_lowrank(m));
  return measure_rest(m, h);
}

size_t pith__sketch_size(pith_profile *p, size_t layer) {
  pith_profiled *l = &p->layer[layer];
  measurement m = {.p = p, .layer = l, .x = {NULL, l->n, PITH_F32}, .ctx = PITH_CTX_INIT};
  m.ctx.rows = l->shape[0];
  size_t c = l->fixed ? p->candidates : largest_rank(&m);
  return c == p->candidates ? 0 : part_size(&m, c);
}

/* Large layers are sampled: two samples of every rank make up the whole. At least eight pieces. */
static void choose_samples(measurement *m, size_t ranks) {
  size_t piece = SAMPLE;
  for (size_t c = 0; c < m->p->candidates; c++) {
    const pith_codec *codec = m->p->codec[c];
    piece = is_in_pieces(codec) && SAMPLE % codec->granule ? PIECE : piece;
  }
  size_t pieces = m->x.n / piece;
  if (pieces >= 16) {
    m->piece = piece;
    m->stride = pith__least(2 * pith__most(1, ranks), pieces / 8);
  }
}

pith_status pith__error_table(pith_profile *p, size_t layer, pith_cspan x, const pith_ctx *ctx, int sampled,
                              pith_error_table *table) {
  pith_profiled *l = &p->layer[layer];
  measurement m = {.p = p, .layer = l, .x = x, .ctx = PITH_CTX_INIT, .piece = PIECE, .stride = 1, .table = table};
  if (ctx) {
    m.ctx.seed = ctx->seed;
    m.ctx.step = ctx->step;
    m.ctx.rank = ctx->rank;
  }
  m.ctx.layer = layer;
  m.ctx.ranks = 1;
  m.ctx.gamma = 1;
  m.ctx.rows = l->shape[0];
  if (sampled) {
    choose_samples(&m, ctx ? ctx->ranks : 1);
  }
  histogram *h = calloc(1, sizeof *h);
  PITH_REQUIRE(h, PITH_ERR_MEMORY, "no memory to measure layer %s", l->name);
  memset(table->bytes, 0, p->candidates * sizeof *table->bytes);
  memset(table->error, 0, p->candidates * sizeof *table->error);
  pith_status status = measure_all(&m, h);
  free(h);
  return status;
}

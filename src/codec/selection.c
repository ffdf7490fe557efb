/* SPDX-License-Identifier: Apache-2.0 */
/* Selection by magnitude: see selection.h. */
#include "codec/selection.h"

#include <math.h>
#include <string.h>

#include "base/half.h"

#define DIGIT_BINS 2048
#define SMALL 16384 /* below this, sampling does not pay */
#define RUN 8       /* values sampled side by side: they share a cache line */
#define SAMPLES_MAX 65536
#define DOUBT 4.5               /* standard deviations that a bracket is wide to each side */
#define CHUNK ((size_t)1 << 31) /* values that 32-bit counters surely hold */

size_t pith__ratio_count(double ratio, size_t n) {
  double count = ceil(ratio * (double)n * (1 - 0x1p-50)); /* 0.07 · 100 is 7, not a little more */
  if (count < 1) {
    return n > 0;
  }
  return count >= (double)n ? n : (size_t)count;
}

/* ---- Walking --------------------------------------------------------------------------------------------------- */

pith_tile pith__tile_take(pith_arena *arena) {
  pith_tile tile;
  tile.loaded = pith__arena_take(arena, PITH_TILE, sizeof *tile.loaded);
  tile.value = pith__arena_take(arena, PITH_TILE, sizeof *tile.value);
  tile.place = pith__arena_take(arena, PITH_TILE, sizeof *tile.place);
  return tile;
}

pith_pick pith__pick_all(pith_cspan src, pith_side side, uint32_t cut) {
  return (pith_pick){src, NULL, side, cut, PITH_TIES_ALL};
}

pith_picker pith__picker_of(pith_pick pick, pith_tile tile) {
  return (pith_picker){.pick = pick, .tile = tile, .ties = pick.ties};
}

void pith__picker_rewind(pith_picker *p) { *p = pith__picker_of(p->pick, p->tile); }

static uint32_t key_of(float x) { return pith__bits_of(x) & 0x7fffffffu; }

/* Keeps all values of the batch above the cut and as many at it as still may travel. Few batches have ties. */
static void drop_ties(pith_picker *p) {
  size_t kept = 0;
  if (pith__kernels()->count(p->tile.value, p->count, p->pick.side, p->pick.cut + 1) == p->count) {
    return;
  }
  for (size_t i = 0; i < p->count; i++) {
    int tie = key_of(p->tile.value[i]) == p->pick.cut;
    if (tie && p->ties == 0) {
      continue;
    }
    p->ties -= (size_t)tie;
    p->tile.place[kept] = p->tile.place[i];
    p->tile.value[kept++] = p->tile.value[i];
  }
  p->count = kept;
}

static void translate(pith_picker *p, size_t first) {
  for (size_t i = 0; i < p->count; i++) {
    p->tile.place[i] = p->pick.map[first + p->tile.place[i]];
  }
}

static void pick_tile(pith_picker *p, size_t first, size_t n) {
  const float *x = pith__span_load(p->pick.src, first, n, p->tile.loaded);
  uint32_t cut = p->pick.cut + (p->ties == 0);
  p->count = pith__kernels()->collect(x, n, p->pick.side, cut, p->tile.place, p->tile.value);
  if (p->ties != 0 && p->ties != PITH_TIES_ALL) {
    drop_ties(p);
  }
  p->base = p->pick.map ? 0 : first;
  if (p->pick.map) {
    translate(p, first);
  }
}

int pith__picker_next(pith_picker *p) {
  p->count = 0;
  while (p->count == 0 && p->at < p->pick.src.n) {
    size_t first = p->at, n = pith__least(PITH_TILE, p->pick.src.n - first);
    pick_tile(p, first, n);
    p->at = first + n;
  }
  return p->count > 0;
}

size_t pith__span_count(pith_cspan src, pith_side side, uint32_t cut, float *buffer) {
  size_t count = 0;
  for (size_t at = 0; at < src.n; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    count += pith__kernels()->count(pith__span_load(src, at, n, buffer), n, side, cut);
  }
  return count;
}

/* ---- The exact cut, digit by digit ------------------------------------------------------------------------------ */

typedef struct digit {
  int shift, bits;
} digit;

static const digit digits[] = {{20, 11}, {10, 10}, {0, 10}};

static void fold(uint32_t *bins, uint64_t *totals, size_t count) {
  for (size_t i = 0; i < count; i++) {
    totals[i] += bins[i];
  }
  memset(bins, 0, count * sizeof *bins);
}

/* How often each value of a digit occurs among keys that start with `prefix`. */
static void count_digit(const pith_selector *s, pith_cspan src, pith_side side, digit d, uint32_t prefix) {
  size_t bins = (size_t)1 << d.bits;
  memset(s->bins, 0, bins * sizeof *s->bins);
  memset(s->totals, 0, bins * sizeof *s->totals);
  for (size_t at = 0; at < src.n; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    const float *x = pith__span_load(src, at, n, s->tile.loaded);
    pith__kernels()->histogram(x, n, side, d.shift, (uint32_t)bins - 1, d.shift + d.bits, prefix, s->bins);
    if (at % CHUNK == 0) {
      fold(s->bins, s->totals, bins);
    }
  }
  fold(s->bins, s->totals, bins);
}

/* The k-th largest key, 1 ≤ k ≤ n, and how many of its equals are among the k largest. */
static pith_pick cut_by_digits(const pith_selector *s, pith_cspan src, pith_side side, size_t k) {
  uint32_t prefix = 0;
  for (size_t i = 0; i < sizeof digits / sizeof *digits; i++) {
    count_digit(s, src, side, digits[i], prefix);
    uint32_t bin = (1u << digits[i].bits) - 1;
    for (; s->totals[bin] < k; bin--) {
      k -= s->totals[bin];
    }
    prefix = prefix << digits[i].bits | bin;
  }
  return (pith_pick){src, NULL, side, prefix, k};
}

/* ---- The exact cut, by a bracket -------------------------------------------------------------------------------- */

pith_selector pith__selector_take(pith_arena *arena, size_t n) {
  pith_selector s = {.tile = pith__tile_take(arena)};
  s.bins = pith__arena_take(arena, DIGIT_BINS, sizeof *s.bins);
  s.totals = pith__arena_take(arena, DIGIT_BINS, sizeof *s.totals);
  if (n >= SMALL) {
    s.samples = n / 16 < SAMPLES_MAX ? n / 16 / RUN * RUN : SAMPLES_MAX;
    s.capacity = n / 60 + PITH_TILE;
    s.sample = pith__arena_take(arena, s.samples, sizeof *s.sample);
    s.candidate = pith__arena_take(arena, s.capacity + PITH_TILE, sizeof *s.candidate);
    s.candidate_place = pith__arena_take(arena, s.capacity + PITH_TILE, sizeof *s.candidate_place);
  }
  return s;
}

/* One run from each of equal strata, at a random place. */
static pith_cspan draw_sample(const pith_selector *s, pith_cspan src, const pith_ctx *ctx) {
  pith_key key = pith__rng_key(ctx, PITH_DOMAIN_SAMPLE, 0);
  size_t runs = s->samples / RUN, stratum = src.n / runs;
  for (size_t i = 0; i < runs; i++) {
    size_t first = i * stratum + pith__rng32(key, (uint32_t)i) % (stratum - RUN + 1);
    memcpy(s->sample + i * RUN, pith__span_load(src, first, RUN, s->tile.loaded), RUN * sizeof *s->sample);
  }
  return (pith_cspan){s->sample, s->samples, PITH_F32};
}

/* The key of a rank in the sample: at or above every key for ranks below 1, and 0 for those beyond the sample. */
static uint32_t key_of_rank(const pith_selector *s, pith_cspan sample, pith_side side, double rank) {
  if (rank < 1) {
    return PITH_CUT_NONE;
  }
  return rank > (double)sample.n ? 0 : cut_by_digits(s, sample, side, (size_t)rank).cut;
}

typedef struct bracket {
  uint32_t low, high; /* keys above the one, up to the other */
  int complete;       /* high is above everything, so that all that may travel is among the candidates */
} bracket;

/* Around the k-th largest key; to the top if the candidates are expected to fit then. */
static bracket bracket_of(const pith_selector *s, pith_cspan src, pith_side side, size_t k, const pith_ctx *ctx) {
  pith_cspan sample = draw_sample(s, src, ctx);
  double share = (double)k / (double)src.n, rank = share * (double)s->samples;
  double doubt = DOUBT * sqrt(rank * (1 - share)) + RUN;
  bracket b = {key_of_rank(s, sample, side, rank + doubt), PITH_CUT_NONE, 0};
  b.complete = src.n <= UINT32_MAX && (rank + 2 * doubt) / (double)s->samples * (double)src.n < (double)s->capacity;
  if (!b.complete) {
    b.high = key_of_rank(s, sample, side, rank - doubt);
  }
  return b;
}

/* Keeps candidates up to `high`, makes their places absolute and returns how many stay. */
static size_t keep_within(const pith_selector *s, size_t start, size_t count, uint32_t base, uint32_t high) {
  size_t kept = start;
  for (size_t i = start; i < start + count; i++) {
    s->candidate[kept] = s->candidate[i];
    s->candidate_place[kept] = s->candidate_place[i] + base;
    kept += key_of(s->candidate[kept]) <= high;
  }
  return kept - start;
}

/* Copies all values within the bracket to the candidates. Counts those above it, too. Returns 0 if they do not fit. */
static int gather(const pith_selector *s, pith_cspan src, pith_side side, bracket b, size_t *within, size_t *above) {
  size_t count = 0, outside = 0;
  for (size_t at = 0; at < src.n; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    const float *x = pith__span_load(src, at, n, s->tile.loaded);
    size_t found = pith__kernels()->collect(x, n, side, b.low + 1, s->candidate_place + count, s->candidate + count);
    size_t kept = keep_within(s, count, found, (uint32_t)at, b.high);
    outside += found - kept;
    count += kept;
    if (count > s->capacity) {
      return 0;
    }
  }
  *within = count;
  *above = outside;
  return 1;
}

/* Returns 0 if the bracket missed the cut. Values equal to its lower end are not gathered, since there may be many (all
 * of a constant tensor, the zeros of a sparse one): if too few are above them, they are the ties. */
static int cut_by_bracket(const pith_selector *s, pith_cspan src, pith_side side, size_t k, const pith_ctx *ctx,
                          pith_pick *pick) {
  size_t within, above;
  bracket b = bracket_of(s, src, side, k, ctx);
  if (!gather(s, src, side, b, &within, &above) || above >= k) {
    return 0;
  }
  if (above + within < k) {
    *pick = (pith_pick){src, NULL, side, b.low, k - above - within};
    return pith__span_count(src, side, b.low, s->tile.loaded) >= k;
  }
  pith_cspan candidates = {s->candidate, within, PITH_F32};
  *pick = cut_by_digits(s, candidates, side, k - above);
  if (b.complete) {
    pick->map = s->candidate_place;
  } else {
    pick->src = src;
  }
  return 1;
}

pith_pick pith__select_top(const pith_selector *s, pith_cspan src, pith_side side, size_t k, const pith_ctx *ctx) {
  pith_pick pick = {src, NULL, side, PITH_CUT_NONE, 0};
  if (k == 0) {
    return pick;
  }
  if (k == src.n) {
    return pith__pick_all(src, side, 0);
  }
  return s->sample && cut_by_bracket(s, src, side, k, ctx, &pick) ? pick : cut_by_digits(s, src, side, k);
}

/* ---- Cuts that are about right ----------------------------------------------------------------------------------- */

/* Everything at or above the cut if that is between k / 2 and 2k values, else the exact choice. */
static pith_pick pick_about(const pith_selector *s, pith_cspan src, uint32_t cut, size_t k, const pith_ctx *ctx) {
  size_t count, above;
  pith_pick pick = pith__pick_all(src, PITH_SIDE_BOTH, cut);
  bracket b = {cut - 1, PITH_CUT_NONE, 1};
  if (src.n <= UINT32_MAX && gather(s, src, PITH_SIDE_BOTH, b, &count, &above)) {
    pick.src = (pith_cspan){s->candidate, count, PITH_F32};
    pick.map = s->candidate_place;
  } else {
    count = pith__span_count(src, PITH_SIDE_BOTH, cut, s->tile.loaded);
  }
  return count >= k / 2 && count - count / 2 <= k ? pick : pith__select_top(s, src, PITH_SIDE_BOTH, k, ctx);
}

pith_pick pith__select_sampled(const pith_selector *s, pith_cspan src, size_t k, const pith_ctx *ctx) {
  if (!s->sample || k == src.n) {
    return pith__select_top(s, src, PITH_SIDE_BOTH, k, ctx);
  }
  double rank = (double)k / (double)src.n * (double)s->samples;
  uint32_t cut = key_of_rank(s, draw_sample(s, src, ctx), PITH_SIDE_BOTH, ceil(rank));
  return pick_about(s, src, cut, k, ctx);
}

/* The mean of all |x| at or above `floor`; NaN if there are none, or not all are finite. */
static double mean_above(const pith_selector *s, pith_cspan src, float floor) {
  double sum = 0, count = 0;
  for (size_t at = 0; at < src.n; at += PITH_TILE) {
    size_t n = pith__least(PITH_TILE, src.n - at);
    const float *x = pith__span_load(src, at, n, s->tile.loaded);
    if (floor > 0) {
      n = pith__kernels()->collect(x, n, PITH_SIDE_BOTH, pith__bits_of(floor), s->tile.place, s->tile.value);
      x = s->tile.value;
    }
    pith_moments m;
    pith__kernels()->moments(x, n, &m);
    sum += m.sum_abs;
    count += (double)n;
  }
  return sum / count;
}

/* SIDCo: |x| beyond a floor falls off like an exponential whose mean is that of the excess. Going to the wanted
 * share in three steps, a quarter each and then the rest, follows tails that are heavier or lighter than that. */
pith_pick pith__select_fit(const pith_selector *s, pith_cspan src, size_t k, const pith_ctx *ctx) {
  if (!s->sample || k == src.n) {
    return pith__select_top(s, src, PITH_SIDE_BOTH, k, ctx);
  }
  double share = (double)k / (double)src.n;
  float floor = 0;
  for (int stage = 0; stage < 3 && share < 1; stage++) {
    double step = stage < 2 && share < 0.25 ? 0.25 : share;
    floor += (float)((mean_above(s, src, floor) - floor) * -log(step));
    share /= step;
  }
  return isfinite(floor) ? pick_about(s, src, pith__bits_of(floor), k, ctx)
                         : pith__select_top(s, src, PITH_SIDE_BOTH, k, ctx);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* Elias gamma codes of levels: see elias.h. */
#include "codec/elias.h"

static unsigned length_of(uint64_t v) { return 63 - (unsigned)__builtin_clzll(v); }

static uint64_t gamma_bits(uint64_t v) { return 2 * length_of(v) + 1; }

static void put_gamma(pith_bit_writer *w, uint64_t v) {
  unsigned k = length_of(v);
  pith__bits_put(w, ((v & ((1ull << k) - 1)) << 1 | 1) << k, 2 * k + 1);
}

/* A number from 1 to `most`; 0 where the stream has none. */
static uint64_t get_gamma(pith_bit_reader *r, uint64_t most) {
  uint64_t k, low;
  if (!pith__rice_get(r, 0, length_of(most), &k) || !pith__bits_get(r, (unsigned)k, &low)) {
    return 0;
  }
  uint64_t v = 1ull << k | low;
  return v <= most ? v : 0;
}

/* 1, 2, 3, 4, 5 … for 0, 1, −1, 2, −2 … */
static uint64_t number_of(int level) { return level > 0 ? 2 * (uint64_t)level : 2 * (uint64_t)-level + 1; }

static int level_of(uint64_t number) { return number & 1 ? -(int)(number / 2) : (int)(number / 2); }

void pith__elias_measure(pith_elias_sizes *sizes, const uint8_t *levels, size_t n, int zero) {
  for (size_t i = 0; i < n; i++) {
    int level = levels[i] - zero;
    sizes->each += gamma_bits(number_of(level));
    if (level == 0) {
      sizes->zeros++;
    } else {
      sizes->runs += gamma_bits(sizes->zeros + 1) + 1 + gamma_bits((uint64_t)(level < 0 ? -level : level));
      sizes->zeros = 0;
    }
  }
}

uint64_t pith__elias_runs_bits(const pith_elias_sizes *sizes) {
  return sizes->runs + (sizes->zeros ? gamma_bits(sizes->zeros + 1) : 0);
}

void pith__elias_put(pith_elias_writer *w, const uint8_t *levels, size_t n, int zero) {
  for (size_t i = 0; i < n; i++) {
    int level = levels[i] - zero;
    if (w->coding == PITH_LEVELS_EACH) {
      put_gamma(&w->bits, number_of(level));
    } else if (level == 0) {
      w->zeros++;
    } else {
      put_gamma(&w->bits, w->zeros + 1);
      pith__bits_put(&w->bits, level < 0, 1);
      put_gamma(&w->bits, (uint64_t)(level < 0 ? -level : level));
      w->zeros = 0;
    }
  }
}

uint8_t *pith__elias_end(pith_elias_writer *w) {
  if (w->zeros) {
    put_gamma(&w->bits, w->zeros + 1);
  }
  return pith__bits_end(&w->bits);
}

static int get_each(pith_elias_reader *r, int zero, int *level) {
  uint64_t number = get_gamma(&r->bits, number_of(-zero));
  *level = number ? level_of(number) : 0;
  return number != 0;
}

static int get_in_run(pith_elias_reader *r, int zero, int *level) {
  if (!r->in_run) {
    uint64_t zeros = get_gamma(&r->bits, r->left + 1);
    if (!zeros) {
      return 0;
    }
    r->zeros = zeros - 1;
    r->in_run = 1;
  }
  *level = 0;
  if (r->zeros) {
    r->zeros--;
    return 1;
  }
  uint64_t negative, size;
  if (!pith__bits_get(&r->bits, 1, &negative) || !(size = get_gamma(&r->bits, (uint64_t)zero))) {
    return 0;
  }
  *level = negative ? -(int)size : (int)size;
  r->in_run = 0;
  return 1;
}

int pith__elias_get(pith_elias_reader *r, uint8_t *levels, size_t n, int zero) {
  for (size_t i = 0; i < n; i++) {
    int level;
    if (!(r->coding == PITH_LEVELS_EACH ? get_each(r, zero, &level) : get_in_run(r, zero, &level))) {
      return 0;
    }
    levels[i] = (uint8_t)(level + zero);
    r->left--;
  }
  return 1;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The random numbers: frozen, because payloads depend on them; and good enough, because unbiased methods are unbiased
 * only as far as they are. Keys are fixed, so that these tests either always pass or always fail.
 */
#include "base/rng.h"

#include <math.h>
#include <stdlib.h>

#include "test.h"

#define DRAWS (1 << 18)

static pith_key key_of(uint64_t seed, uint64_t step, uint64_t layer, uint64_t rank) {
  return pith__rng_key_of(seed, step, layer, rank, PITH_DOMAIN_ROUND, 0);
}

/* ---- Frozen ---- */

TEST(numbers_are_frozen) {
  pith_key key = {0x12345678u, 0x9abcdef0u};
  CHECK_EQ(pith__rng32(key, 0), 0x8a93fe52u);
  CHECK_EQ(pith__rng32(key, 1), 0xabdcead2u);
  CHECK_EQ(pith__rng32(key, 2), 0xa5f6d902u);
  CHECK_EQ(pith__rng32(key, 3), 0x70b88a40u);
  CHECK_EQ(pith__rng32(key, UINT32_MAX), 0xc176a5e4u);
  CHECK(pith__rng_unit(key, 0) == (float)(0x8a93fe52u >> 8) * 0x1p-24f);
}

static void check_key(pith_key key, uint32_t k0, uint32_t k1) {
  CHECK_EQ(key.k0, k0);
  CHECK_EQ(key.k1, k1);
}

TEST(keys_are_frozen) {
  check_key(pith__rng_key_of(1, 2, 3, 4, PITH_DOMAIN_ROUND, 0), 0xce7b5c8au, 0xcc72fffbu);
  check_key(pith__rng_key_of(0, 0, 0, 0, PITH_DOMAIN_SELECT, 0), 0x9ed89947u, 0xc04a5ed0u);
  check_key(pith__rng_key_of(UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT32_MAX, PITH_DOMAIN_LOWRANK, 7), 0x59e50f46u,
            0x57655c50u);
}

TEST(the_context_gives_the_key) {
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.seed = 1, ctx.step = 2, ctx.layer = 3, ctx.rank = 4;
  check_key(pith__rng_key(&ctx, PITH_DOMAIN_ROUND, 0xffffffffu), 0xce7b5c8au, 0xcc72fffbu);
  pith_key high = pith__rng_key_of(1, 2, 3, 4, PITH_DOMAIN_ROUND, 5);
  check_key(pith__rng_key(&ctx, PITH_DOMAIN_ROUND, 5ull << 32 | 9), high.k0, high.k1);
}

/* ---- Good enough ---- */

TEST(units_lie_in_zero_to_one_and_average_a_half) {
  pith_key key = key_of(1, 0, 0, 0);
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < DRAWS; i++) {
    double u = pith__rng_unit(key, i);
    CHECK(u >= 0 && u < 1);
    sum += u;
    squares += u * u;
  }
  CHECK_NEAR(sum / DRAWS, 0.5, 4 * sqrt(1.0 / 12 / DRAWS));
  CHECK_NEAR(squares / DRAWS, 1.0 / 3, 4 * sqrt(4.0 / 45 / DRAWS));
}

/* Pearson's statistic over 256 bins of 8 bits from `shift`: mean 255, deviation 22.6. */
static double chi_square(pith_key key, int shift, uint32_t stride) {
  unsigned bins[256] = {0};
  double sum = 0, expected = DRAWS / 256.0;
  for (uint32_t i = 0; i < DRAWS; i++) {
    bins[(pith__rng32(key, i * stride) >> shift) & 255]++;
  }
  for (int b = 0; b < 256; b++) {
    sum += (bins[b] - expected) * (bins[b] - expected) / expected;
  }
  return sum;
}

static void check_uniform(uint32_t stride, double deviations) {
  for (uint64_t step = 0; step < 4; step++) {
    for (int shift = 0; shift <= 24; shift += 8) {
      double chi = chi_square(key_of(7, step, 1, 0), shift, stride);
      CHECK_MSG(fabs(chi - 255) < deviations * 22.6, "step %d, stride %u, bits from %d: %g", (int)step, stride, shift,
                chi);
    }
  }
}

/* Neighbours as codecs draw them, and the columns of matrices: power-of-two strides are where weak mixers fail. */
TEST(all_bits_are_uniform_at_every_stride) {
  static const uint32_t strides[] = {1, 2, 3, 8, 16, 64, 100, 512, 768, 1000, 1024, 1280, 2048, 4096, 5120, 8192};
  for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
    check_uniform(strides[s], 5);
  }
}

/* The correlation of two streams of units; for independent ones normal with deviation 1/√n. */
static double correlation(pith_key a, pith_key b, uint32_t lag) {
  double sum = 0;
  for (uint32_t i = 0; i < DRAWS; i++) {
    sum += (pith__rng_unit(a, i) - 0.5) * (pith__rng_unit(b, i + lag) - 0.5);
  }
  return 12 * sum / DRAWS;
}

static void check_independent(pith_key a, pith_key b, uint32_t lag, const char *what, unsigned detail) {
  double r = correlation(a, b, lag);
  CHECK_MSG(fabs(r) < 5 / sqrt(DRAWS), "%s %u: correlation %g", what, detail, r);
}

TEST(neighbours_are_independent_at_every_small_lag) {
  pith_key key = key_of(3, 1, 4, 1);
  for (uint32_t lag = 1; lag <= 64; lag++) {
    check_independent(key, key, lag, "lag", lag);
  }
  for (uint32_t lag = 128; lag <= 65536; lag *= 2) {
    check_independent(key, key, lag, "lag", lag);
  }
}

TEST(steps_layers_ranks_and_seeds_are_independent) {
  pith_key key = key_of(0, 0, 0, 0);
  for (unsigned i = 1; i <= 16; i++) {
    check_independent(key, key_of(i, 0, 0, 0), 0, "seed", i);
    check_independent(key, key_of(0, i, 0, 0), 0, "step", i);
    check_independent(key, key_of(0, 0, i, 0), 0, "layer", i);
    check_independent(key, key_of(0, 0, 0, i), 0, "rank", i);
  }
}

TEST(domains_and_high_halves_of_the_index_are_independent) {
  pith_key key = key_of(0, 0, 0, 0);
  for (unsigned i = 2; i <= PITH_DOMAIN_LOWRANK; i++) {
    check_independent(key, pith__rng_key_of(0, 0, 0, 0, (pith_domain)i, 0), 0, "domain", i);
  }
  for (unsigned i = 1; i <= 8; i++) {
    check_independent(key, pith__rng_key_of(0, 0, 0, 0, PITH_DOMAIN_ROUND, i), 0, "high half", i);
  }
}

TEST(arguments_cannot_stand_in_for_each_other) {
  pith_key keys[4] = {key_of(1, 0, 0, 0), key_of(0, 1, 0, 0), key_of(0, 0, 1, 0), key_of(0, 0, 0, 1)};
  for (int i = 0; i < 4; i++) {
    for (int j = i + 1; j < 4; j++) {
      CHECK(keys[i].k0 != keys[j].k0 && keys[i].k1 != keys[j].k1);
    }
  }
}

/* Stochastic rounding needs the share of draws below p to be p, for small p too. */
TEST(the_share_of_units_below_a_probability_is_that_probability) {
  static const double probabilities[] = {0.5, 0.25, 0.1, 0.01, 0.001};
  pith_key key = key_of(11, 0, 0, 0);
  for (size_t k = 0; k < sizeof probabilities / sizeof *probabilities; k++) {
    double p = probabilities[k];
    unsigned below = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
      below += pith__rng_unit(key, i) < (float)p;
    }
    CHECK_NEAR((double)below / DRAWS, p, 4 * sqrt(p * (1 - p) / DRAWS));
  }
}

static int compare(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return (x > y) - (x < y);
}

TEST(a_key_gives_every_index_another_number) {
  uint32_t *numbers = malloc(DRAWS * sizeof *numbers);
  pith_key key = key_of(5, 5, 5, 5);
  CHECK(numbers != NULL);
  for (uint32_t i = 0; i < DRAWS; i++) {
    numbers[i] = pith__rng32(key, i);
  }
  qsort(numbers, DRAWS, sizeof *numbers, compare);
  for (uint32_t i = 1; i < DRAWS; i++) {
    CHECK(numbers[i] != numbers[i - 1]);
  }
  free(numbers);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* f16 and bf16: every one of the 65536 values, and rounding compared with exact arithmetic in double. */
#include "base/half.h"

#include <math.h>

#include "test.h"

/* A format of sign, exponent and `digits` bits of mantissa, with the exponent of its least normal number. */
typedef struct format {
  int digits, least;
  double limit; /* from here on values round to Inf */
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
} format;

static const format f16 = {10, -14, 65520, pith__f16_to_f32, pith__f32_to_f16};
static const format bf16 = {7, -126, 0x1.ffp127, pith__bf16_to_f32, pith__f32_to_bf16};

/* What the bits mean, by the definition of the format. */
static double meaning(const format *f, uint16_t h) {
  int exponent = (h & 0x7fff) >> f->digits, mantissa = h & ((1 << f->digits) - 1);
  int special = 0x7fff >> f->digits;
  double magnitude = exponent == special ? (mantissa ? NAN : INFINITY)
                     : exponent == 0     ? ldexp(mantissa, f->least - f->digits)
                                         : ldexp(mantissa + (1 << f->digits), f->least - f->digits + exponent - 1);
  return h & 0x8000 ? -magnitude : magnitude;
}

/* The nearest value of the format, ties to even: all steps are exact in double. */
static double nearest(const format *f, float x) {
  double magnitude = fabs((double)x);
  if (magnitude >= f->limit) {
    return copysign(INFINITY, x);
  }
  int exponent = f->least;
  if (magnitude > 0) {
    exponent = ilogb(magnitude) > f->least ? ilogb(magnitude) : f->least;
  }
  double quantum = ldexp(1, exponent - f->digits);
  return copysign(nearbyint(magnitude / quantum) * quantum, x);
}

static int is_same(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }

static void check_widening(const format *f) {
  for (uint32_t h = 0; h < 65536; h++) {
    CHECK_MSG(is_same(f->widen((uint16_t)h), meaning(f, (uint16_t)h)), "0x%04x", h);
  }
}

static void check_narrowing(const format *f, float x) {
  double got = meaning(f, f->narrow(x)), wanted = nearest(f, x);
  CHECK_MSG(is_same(got, wanted), "%a became %a, not %a", x, got, wanted);
}

/* The values themselves, the midpoints between neighbours, and the floats on both sides of those. */
static void check_all_boundaries(const format *f) {
  for (uint32_t h = 0; h < 65535; h++) {
    double here = meaning(f, (uint16_t)h), next = meaning(f, (uint16_t)(h + 1));
    if (isnan(here) || isinf(here)) {
      continue;
    }
    CHECK_EQ(f->narrow((float)here), h);
    float middle = isfinite(next) ? (float)((here + next) / 2) : (float)copysign(f->limit, here);
    check_narrowing(f, middle);
    check_narrowing(f, nextafterf(middle, INFINITY));
    check_narrowing(f, nextafterf(middle, -INFINITY));
    check_narrowing(f, nextafterf((float)here, INFINITY));
    check_narrowing(f, nextafterf((float)here, -INFINITY));
  }
}

static void check_random_floats(const format *f) {
  for (int i = 0; i < 1000000; i++) {
    float x = pith__float_of((uint32_t)test_random());
    if (!isnan(x)) {
      check_narrowing(f, x);
    }
  }
}

static void check_nans(const format *f) {
  for (uint32_t bit = 0; bit < 23; bit++) {
    for (uint32_t sign = 0; sign < 2; sign++) {
      uint16_t h = f->narrow(pith__float_of(sign << 31 | 0x7f800000u | 1u << bit));
      CHECK_MSG(isnan(meaning(f, h)), "a NaN with bit %u became 0x%04x", bit, h);
      CHECK_EQ(h >> 15, sign);
    }
  }
}

TEST(every_f16_widens_to_what_its_bits_mean) { check_widening(&f16); }
TEST(every_bf16_widens_to_what_its_bits_mean) { check_widening(&bf16); }
TEST(f16_rounds_exactly_at_every_boundary) { check_all_boundaries(&f16); }
TEST(bf16_rounds_exactly_at_every_boundary) { check_all_boundaries(&bf16); }
TEST(f16_rounds_random_floats_exactly) { check_random_floats(&f16); }
TEST(bf16_rounds_random_floats_exactly) { check_random_floats(&bf16); }
TEST(f16_keeps_nans) { check_nans(&f16); }
TEST(bf16_keeps_nans) { check_nans(&bf16); }

TEST(infinity_stays_and_overflow_becomes_it) {
  CHECK_EQ(pith__f32_to_f16(INFINITY), 0x7c00);
  CHECK_EQ(pith__f32_to_f16(-INFINITY), 0xfc00);
  CHECK_EQ(pith__f32_to_f16(65519.996f), 0x7bff);
  CHECK_EQ(pith__f32_to_f16(65520), 0x7c00);
  CHECK_EQ(pith__f32_to_bf16(INFINITY), 0x7f80);
  CHECK_EQ(pith__f32_to_bf16(0x1.fffffep127f), 0x7f80);
}

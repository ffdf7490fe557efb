/* SPDX-License-Identifier: Apache-2.0 */
/* Checks and sums that several block codecs use. */
#include "codec/block.h"

const char *const pith__small_floats[] = {"fp8", "fp8:e5m2", "mx", "mx:e2m3", "mx:e3m2", "mx:e2m1", "nvfp4", NULL};

pith_status pith__check_bucket(const char *name, int64_t bucket) {
  PITH_REQUIRE(bucket % 32 == 0, PITH_ERR_RANGE, "%s: bucket=%lld is not a multiple of 32", name, (long long)bucket);
  return PITH_OK;
}

#define PIECE 256 /* values moved to an aligned place at a time */

void pith__get_values(const uint8_t *in, size_t n, float *dst, pith_mode mode) {
  if (mode == PITH_SET) {
    memcpy(dst, in, 4 * n);
    return;
  }
  float piece[PIECE];
  for (size_t i = 0; i < n; i += PIECE) {
    size_t m = pith__least(PIECE, n - i);
    memcpy(piece, in + 4 * i, 4 * m);
    pith__kernels()->add(piece, dst + i, m);
  }
}

double pith__norm(const float *x, size_t n) {
  pith_moments m;
  pith__kernels()->moments(x, n, &m);
  if (m.sum_squares > 0x1p-80f && m.sum_squares < 0x1p+126f) {
    return sqrtf(m.sum_squares);
  }
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += (double)x[i] * x[i];
  }
  return sqrt(sum);
}

double pith__sum_abs(const float *x, size_t n) {
  pith_moments m;
  pith__kernels()->moments(x, n, &m);
  if (isfinite(m.sum_abs)) {
    return m.sum_abs;
  }
  double sum = 0;
  for (size_t i = 0; i < n; i++) {
    sum += fabs((double)x[i]);
  }
  return sum;
}

float pith__norm_by(const float *x, size_t n, uint32_t most, int64_t choice) {
  return most >= PITH_INF_BITS || choice == PITH_NORM_LINF ? pith__float_of(most) : (float)pith__norm(x, n);
}

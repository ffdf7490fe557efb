/* Checks and sums that several block codecs use. */
#include "codec/block.h"

pith_status pith__check_bucket(const char *name, int64_t bucket) {
  PITH_REQUIRE(bucket % 64 == 0, PITH_ERR_RANGE, "%s: bucket=%lld is not a multiple of 64", name, (long long)bucket);
  return PITH_OK;
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

/* SPDX-License-Identifier: Apache-2.0 */
/* The products of low rank. Matrices of r columns are kept column by column, so that rows of the gradient meet them
 * along contiguous memory. Part of body.h. */

#define COLUMNS 4 /* columns that share one pass over m */

INLINE void dots_group(const float *m, size_t n, const float *q, size_t stride, size_t columns, float *out) {
  vf sum[COLUMNS];
  for (size_t c = 0; c < columns; c++) {
    sum[c] = v_set(0.0f);
  }
  STEPS(i, k, n) {
    vf a = get(m + i, k);
    for (size_t c = 0; c < columns; c++) {
      sum[c] = v_add(sum[c], v_mul(a, get(q + c * stride + i, k)));
    }
  }
  for (size_t c = 0; c < columns; c++) {
    out[c] += lane_sum(sum[c]);
  }
}

static void k_dots(const float *m, size_t n, const float *q, size_t stride, size_t r, float *out) {
  size_t c = 0;
  for (; c + COLUMNS <= r; c += COLUMNS) {
    dots_group(m, n, q + c * stride, stride, COLUMNS, out + c);
  }
  for (; c < r; c++) {
    dots_group(m, n, q + c * stride, stride, 1, out + c);
  }
}

/* Rows are added one after another, so that the sums do not depend on how many come together. */
INLINE void outer_rows(const float *const *m, size_t rows, size_t n, const float *p, size_t r, float *q,
                       size_t stride) {
  for (size_t c = 0; c < r; c++) {
    vf factor[PITH_OUTER_ROWS];
    for (size_t j = 0; j < rows; j++) {
      factor[j] = v_set(p[j * r + c]);
    }
    float *column = q + c * stride;
    STEPS(i, k, n) {
      vf sum = get(column + i, k);
      for (size_t j = 0; j < rows; j++) {
        sum = v_add(sum, v_mul(get(m[j] + i, k), factor[j]));
      }
      put(column + i, sum, k);
    }
  }
}

static void k_outer(const float *const *m, size_t rows, size_t n, const float *p, size_t r, float *q, size_t stride) {
  if (rows == PITH_OUTER_ROWS) {
    outer_rows(m, PITH_OUTER_ROWS, n, p, r, q, stride);
  } else {
    for (size_t j = 0; j < rows; j++) {
      outer_rows(m + j, 1, n, p + j * r, r, q, stride);
    }
  }
}

static void k_combine(const float *p, size_t r, const float *q, size_t stride, float *out, size_t n) {
  STEPS(i, k, n) {
    vf sum = v_set(0.0f);
    for (size_t c = 0; c < r; c++) {
      sum = v_add(sum, v_mul(v_set(p[c]), get(q + c * stride + i, k)));
    }
    put(out + i, sum, k);
  }
}

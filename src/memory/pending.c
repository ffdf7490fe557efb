/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pending residuals: what a layer has not sent yet when it moves to a spec without a residual. It is released in equal
 * parts over the next steps, so that no single gradient is many times as large as the others.
 */
#include "memory/memory.h"

enum { TILE = 1024 };

void pith__residual_release(float *pending, size_t steps, pith_span gradient) {
  float part[TILE], buffer[TILE], share = 1.0f / (float)steps;
  for (size_t at = 0; at < gradient.n; at += TILE) {
    size_t n = gradient.n - at < TILE ? gradient.n - at : TILE;
    for (size_t i = 0; i < n; i++) {
      part[i] = pending[at + i] * share;
      pending[at + i] -= part[i];
    }
    pith__span_store(gradient, at, n, part, PITH_ADD, buffer);
  }
}

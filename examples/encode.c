/* SPDX-License-Identifier: Apache-2.0 */
/* Compresses a made-up gradient to 4 bits a value and adds it up again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <pith/pith.h>

enum { N = 1 << 20 };

static void check(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s: %s\n", pith_status_string(status), pith_error());
    exit(1);
  }
}

int main(void) {
  pith_codec *codec;
  pith_state *state; /* what error feedback keeps between steps */
  check(pith_codec_create("ef/q:4", &codec));
  check(pith_state_create(codec, N, 0, &state));

  size_t bound = pith_codec_bound(codec, N);
  float *gradient = malloc(N * sizeof(float)), *sum = calloc(N, sizeof(float));
  void *bytes = malloc(bound);
  for (int i = 0; i < N; i++) {
    gradient[i] = sinf((float)i);
  }
  for (uint64_t step = 0; step < 10; step++) {
    pith_ctx ctx = {.size = sizeof ctx, .seed = 1, .step = step};
    pith_out out = {bytes, bound, 0};
    check(pith_encode(codec, state, (pith_cspan){gradient, N, PITH_F32}, &out, &ctx));
    /* … out.size bytes travel … */
    check(pith_decode(codec, (pith_bytes){bytes, out.size}, (pith_span){sum, N, PITH_F32}, PITH_ADD, &ctx));
    printf("step %2d: %zu bytes instead of %zu, sum[1] %.4f of %.4f\n", (int)step, out.size, N * sizeof(float),
           (double)sum[1], (double)(step + 1) * (double)gradient[1]);
  }
  pith_state_destroy(state);
  pith_codec_destroy(codec);
  free(gradient), free(sum), free(bytes);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* How fast memory is, and how much of it a method must touch. */
#include "cli/bench/bench_least.h"

#include <string.h>

#include "cli/bench/measure.h"

enum { COPIES = 12 };

pith_status cli_least_copy(pith_comm *comm, const cli_buffers *b, double *seconds) {
  memset(b->src, 0, b->n * sizeof *b->src); /* the memory is there from now on */
  memset(b->dst, 0, b->n * sizeof *b->dst);
  pith_status status = pith_barrier(comm, NULL);
  double start = cli_now();
  for (int i = 0; i < COPIES; i++) {
    memcpy(b->dst, b->src, b->n * sizeof *b->dst);
    __asm__ volatile("" : : "r"(b->dst) : "memory"); /* all of them are wanted */
  }
  *seconds = (cli_now() - start) / COPIES;
  return status == PITH_OK ? cli_collective_largest(comm, seconds, 1) : status;
}

double cli_least_copies(const pith_codec *codec, const pith_state *state, size_t n) {
  if (!codec) {
    return 1;
  }
  int keeps = state && pith_state_save_size(state) >= n * sizeof(float);
  size_t rounds = pith_codec_rounds(codec);
  double copies = 1 + keeps;
  if (rounds > 1) {
    copies += 0.5 * (double)(rounds - 1) + keeps;
  } else if (pith_codec_caps(codec) & PITH_CAP_SPARSE) {
    copies += 0.5;
  }
  return copies;
}

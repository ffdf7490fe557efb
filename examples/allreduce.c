/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every rank has a gradient; all of them end with its mean, compressed to 4 bits a value on the way. Start it with
 *
 *   pith run -n 4 -- ./allreduce        or   mpirun -n 4 ./allreduce   or   srun -n 4 ./allreduce
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <pith/pith.h>

enum { N = 1 << 20, STEPS = 3 };

static void check(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s: %s\n", pith_status_string(status), pith_error());
    exit(1);
  }
}

int main(int argc, char **argv) {
  pith_comm *comm;
  pith_codec *codec;
  pith_state *state;                    /* what error feedback keeps between steps */
  check(pith_comm_create(NULL, &comm)); /* rank, size and where rank 0 is: as the launcher says */
  check(pith_codec_create(argc > 1 ? argv[1] : "ef/q:4", &codec));
  check(pith_state_create(codec, N, 0, &state));

  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm);
  float *gradient = malloc(N * sizeof *gradient), *mean = malloc(N * sizeof *mean);
  if (!gradient || !mean) {
    pith_comm_abort(comm, "out of memory"); /* so that the others do not wait */
    return 1;
  }
  for (int i = 0; i < N; i++) {
    gradient[i] = (float)(rank + 1) * sinf((float)i);
  }
  for (uint64_t step = 0; step < STEPS; step++) {
    pith_call call = PITH_CALL_INIT;
    call.codec = codec;
    call.state = state;
    call.step = step; /* the same on all ranks */
    check(pith_allreduce(comm, (pith_cspan){gradient, N, PITH_F32}, (pith_span){mean, N, PITH_F32}, PITH_MEAN, &call,
                         NULL));
    double error = 0, total = 0;
    for (int i = 0; i < N; i++) {
      double exact = (ranks + 1) / 2.0 * sin((double)(float)i);
      error += (mean[i] - exact) * (mean[i] - exact);
      total += exact * exact;
    }
    pith_stats stats = PITH_STATS_INIT;
    check(pith_comm_stats(comm, &stats));
    if (rank == 0) {
      printf("step %d: the mean of %d ranks, relative error %.3f; rank 0 has sent %.2f MB (a tensor has %.2f MB)\n",
             (int)step, ranks, sqrt(error / total), (double)stats.sent_bytes / 1e6, N * sizeof(float) / 1e6);
    }
  }
  free(gradient), free(mean);
  pith_state_destroy(state);
  pith_codec_destroy(codec);
  pith_comm_destroy(comm);
}

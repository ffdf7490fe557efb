/* SPDX-License-Identifier: Apache-2.0 */
/*
 * In a program that uses MPI already: a Pith comm of the ranks of an MPI communicator, and a compressed allreduce
 * beside MPI_Allreduce. Build it with   mpicc mpi_allreduce.c $(pkg-config --cflags --libs pith) -lm
 */
#include <math.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include <pith/mpi.h>

enum { N = 1 << 20 };

static void check(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s: %s\n", pith_status_string(status), pith_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
}

int main(int argc, char **argv) {
  pith_comm *comm;
  pith_codec *codec;
  int threads;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &threads); /* MPI_Init() will do, unless PITH_TRANSPORT=mpi */
  check(pith_comm_create_mpi(MPI_COMM_WORLD, NULL, &comm));
  check(pith_codec_create(argc > 1 ? argv[1] : "q:4", &codec));

  float *x = malloc(N * sizeof *x), *exact = malloc(N * sizeof *exact), *sum = malloc(N * sizeof *sum);
  for (int i = 0; i < N; i++) {
    x[i] = (float)(pith_comm_rank(comm) + 1) * sinf((float)i);
  }
  MPI_Allreduce(x, exact, N, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  check(pith_allreduce(comm, (pith_cspan){x, N, PITH_F32}, (pith_span){sum, N, PITH_F32}, PITH_SUM, &call, NULL));

  double error = 0, total = 0;
  for (int i = 0; i < N; i++) {
    error += pow(sum[i] - exact[i], 2);
    total += pow(exact[i], 2);
  }
  if (pith_comm_rank(comm) == 0) {
    printf("%d ranks: the compressed sum differs from MPI's by %.3f of its norm\n", pith_comm_size(comm),
           sqrt(error / total));
  }
  free(x), free(exact), free(sum);
  pith_codec_destroy(codec);
  pith_comm_destroy(comm);
  MPI_Finalize();
}

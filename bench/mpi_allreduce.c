/* SPDX-License-Identifier: Apache-2.0 */
/*
 * MPI_Allreduce of floats with the columns, inputs and repetitions of `pith bench allreduce`, to set the two side by
 * side (bench/compare-allreduce.sh). Usage: mpi_allreduce [from to factor repetitions warmup], sizes in bytes.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* As pith's. Sums of two ranks are exact; of more, MPI may add in another order. */
static float value_of(int rank, size_t i) {
  uint32_t h = ((uint32_t)i + 1) * 2654435761u + (uint32_t)rank * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  return (float)(int32_t)(h >> 16) * 0x1p-16f - 0.5f;
}

static size_t count_wrong(const float *result, int ranks, size_t n) {
  size_t wrong = 0;
  for (size_t i = 0; i < n; i++) {
    double sum = 0;
    for (int r = 0; r < ranks; r++) {
      sum += (double)value_of(r, i);
    }
    wrong += (double)result[i] != sum;
  }
  return wrong;
}

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Seconds of one allreduce: the median over repetitions, each its slowest rank's. */
static double time_allreduce(const float *src, float *dst, size_t n, int repetitions, int warmup) {
  double *laps = calloc((size_t)repetitions + 1, 2 * sizeof *laps), *slowest = laps + repetitions;
  if (!laps) {
    MPI_Abort(MPI_COMM_WORLD, 1);
  }
  for (int i = 0; i < warmup; i++) {
    MPI_Allreduce(src, dst, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  MPI_Barrier(MPI_COMM_WORLD);
  double before = MPI_Wtime(), median;
  for (int i = 0; i < repetitions; i++) {
    MPI_Allreduce(src, dst, (int)n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    double after = MPI_Wtime();
    laps[i] = after - before;
    before = after;
  }
  MPI_Allreduce(laps, slowest, repetitions, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  qsort(slowest, (size_t)repetitions, sizeof *slowest, ascending);
  median = (slowest[(repetitions - 1) / 2] + slowest[repetitions / 2]) / 2;
  free(laps);
  return median;
}

static void measure(int rank, int ranks, size_t bytes, int repetitions, int warmup) {
  size_t n = bytes / sizeof(float);
  float *src = malloc(bytes + 4), *dst = calloc(1, bytes + 4);
  if (!src || !dst) {
    MPI_Abort(MPI_COMM_WORLD, 1);
    return;
  }
  for (size_t i = 0; i < n; i++) {
    src[i] = value_of(rank, i);
  }
  double seconds = time_allreduce(src, dst, n, repetitions, warmup), algbw = (double)bytes / seconds * 1e-9;
  size_t wrong = count_wrong(dst, ranks, n);
  if (rank == 0) {
    printf("%10zu  %10zu  f32   -      %10.2f  %10.3f  %10.3f  %6zu\n", bytes, n, seconds * 1e6, algbw,
           algbw * 2.0 * (ranks - 1) / ranks, wrong);
    fflush(stdout);
  }
  free(src);
  free(dst);
}

int main(int argc, char **argv) {
  int rank, ranks;
  size_t from = argc > 1 ? strtoull(argv[1], NULL, 10) : 8,
         to = argc > 2 ? strtoull(argv[2], NULL, 10) : (size_t)64 << 20;
  size_t factor = argc > 3 ? strtoull(argv[3], NULL, 10) : 2;
  int repetitions = argc > 4 ? atoi(argv[4]) : 20, warmup = argc > 5 ? atoi(argv[5]) : 5;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (rank == 0) {
    printf("%10s  %10s  type  codec  %10s  algbw GB/s  busbw GB/s  #wrong\n", "size", "count", "time us");
  }
  for (size_t bytes = from; bytes <= to && factor > 1; bytes *= factor) {
    measure(rank, ranks, bytes, repetitions, warmup);
  }
  MPI_Finalize();
  return 0;
}

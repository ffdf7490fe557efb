/* SPDX-License-Identifier: Apache-2.0 */
/* The ranks of sim_lab.py: time means of made-up gradients, by every algorithm that is named.
 *
 *     pith lab -n RANKS -- sim_lab SPEC VALUES REPETITIONS ALGORITHM…
 *
 * All begin an operation together, behind a barrier, as they do in a simulation. It lasts from the first start to the
 * last end; clocks are those of one machine. Rank 0 prints each algorithm with its median in seconds, and the processor
 * time of an operation, the mean of all ranks. */
#include <pith/pith.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { WARMUP = 3, REPETITIONS_MOST = 1000 };

static void must(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "sim_lab: %s\n", pith_error());
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double processor(void) {
  struct rusage u;
  getrusage(RUSAGE_SELF, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Uniform, as those of pith bench allreduce. */
static float value(int rank, size_t i) {
  uint32_t h = ((uint32_t)i + 1) * 2654435761u + (uint32_t)rank * 2246822519u;
  h ^= h >> 15;
  h *= 2246822519u;
  return (float)(int32_t)(h >> 18) * 0x1p-14f - 0.5f;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static void measure(pith_comm *comm, const char *algorithm, const pith_codec *codec, pith_cspan src, pith_span dst,
                    int repetitions) {
  double start[REPETITIONS_MOST], end[REPETITIONS_MOST], spent = 0;
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  call.algorithm = algorithm;
  must(codec ? pith_state_create(codec, src.n, 0, &call.state) : PITH_OK);
  for (int i = -WARMUP; i < repetitions; i++) {
    int at = i < 0 ? 0 : i;
    call.step++;
    must(pith_barrier(comm, NULL));
    spent = i ? spent : -processor();
    start[at] = -now(); /* the largest is that of the first */
    must(pith_allreduce(comm, src, dst, PITH_MEAN, &call, NULL));
    end[at] = now();
  }
  spent += processor();
  size_t n = (size_t)repetitions;
  pith_span all = {&spent, 1, PITH_F64};
  must(pith_allreduce(comm, (pith_cspan){&spent, 1, PITH_F64}, all, PITH_MEAN, NULL, NULL));
  must(pith_allreduce(comm, (pith_cspan){start, n, PITH_F64}, (pith_span){start, n, PITH_F64}, PITH_MAX, NULL, NULL));
  must(pith_allreduce(comm, (pith_cspan){end, n, PITH_F64}, (pith_span){end, n, PITH_F64}, PITH_MAX, NULL, NULL));
  for (int i = 0; i < repetitions; i++) {
    end[i] += start[i];
  }
  qsort(end, n, sizeof *end, compare);
  if (pith_comm_rank(comm) == 0) {
    printf("%s %.9f %.9f\n", algorithm, end[n / 2], spent / repetitions);
  }
  pith_state_destroy(call.state);
}

int main(int argc, char **argv) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm;
  pith_codec *codec = NULL;
  if (argc < 5) {
    fprintf(stderr, "usage: sim_lab SPEC VALUES REPETITIONS ALGORITHM...\n");
    return 2;
  }
  size_t n = strtoul(argv[2], NULL, 10), bytes = (n * sizeof(float) / 64 + 1) * 64;
  int repetitions = atoi(argv[3]);
  float *src = aligned_alloc(64, bytes), *dst = aligned_alloc(64, bytes);
  if (!src || !dst || repetitions < 1 || repetitions > REPETITIONS_MOST) {
    return 2;
  }
  must(pith_comm_create(&config, &comm));
  must(strcmp(argv[1], "none") != 0 ? pith_codec_create(argv[1], &codec) : PITH_OK);
  for (size_t i = 0; i < n; i++) {
    src[i] = value(pith_comm_rank(comm), i);
    dst[i] = 0;
  }
  for (int a = 4; a < argc; a++) {
    measure(comm, argv[a], codec, (pith_cspan){src, n, PITH_F32}, (pith_span){dst, n, PITH_F32}, repetitions);
  }
  pith_codec_destroy(codec);
  pith_comm_destroy(comm);
  free(src);
  free(dst);
  return 0;
}

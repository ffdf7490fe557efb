/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One rank of a large job, for bench/many_ranks.sh: joins, makes some allreduces whose sums it checks, and then loses a
 * rank. Writes what that took to FOLDER/RANK, as one line of numbers.
 *
 *   many_ranks FOLDER STARTED VALUES ALGORITHM       STARTED: when the job was started, by the system's monotonic clock
 */
#include <dirent.h>
#include <pith/pith.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 3
#define LOSS_PAUSE 1 /* seconds in which all ranks come to rest before one is killed */

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void need(pith_status status, const char *what) {
  if (status != PITH_OK) {
    fprintf(stderr, "many_ranks: %s: %s\n", what, pith_error());
    exit(1);
  }
}

static int count_descriptors(void) {
  DIR *folder = opendir("/proc/self/fd");
  int count = 0;
  while (folder && readdir(folder)) {
    count++;
  }
  if (folder) {
    closedir(folder);
  }
  return count - 3; /* . and .., and the folder itself */
}

/* A number of /proc/self/status. */
static long status_of(const char *name) {
  char line[256];
  long number = 0;
  FILE *file = fopen("/proc/self/status", "r");
  while (file && fgets(line, sizeof line, file)) {
    if (strncmp(line, name, strlen(name)) == 0) {
      number = atol(line + strlen(name));
    }
  }
  if (file) {
    fclose(file);
  }
  return number;
}

/* Another one in every round: a sum of the round before would be wrong. */
static float value_of(int rank, size_t i, int round) { return (float)((rank + (int)(i % 5) + round) % 11); }

/* Returns how many values are wrong; adds the seconds of the operation. */
static int reduce(pith_comm *comm, size_t n, const char *algorithm, int round, double *seconds) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm), wrong = 0;
  float *x = malloc(n * sizeof *x), sum[5] = {0};
  pith_call call = PITH_CALL_INIT;
  call.algorithm = algorithm;
  if (!x) {
    fprintf(stderr, "no memory for %zu values\n", n);
    exit(1);
  }
  for (size_t i = 0; i < n; i++) {
    x[i] = value_of(rank, i, round);
  }
  double start = now();
  need(pith_allreduce(comm, (pith_cspan){x, n, PITH_F32}, (pith_span){x, n, PITH_F32}, PITH_SUM, &call, NULL),
       "allreduce");
  *seconds += now() - start;
  for (int r = 0; r < ranks; r++) {
    for (size_t i = 0; i < 5; i++) {
      sum[i] += value_of(r, i, round);
    }
  }
  for (size_t i = 0; i < n; i++) {
    wrong += x[i] != sum[i % 5];
  }
  free(x);
  return wrong;
}

/* Seconds until the death of the victim was an error here; negative: the error does not name it. */
static double lose(pith_comm *comm, const char *folder, int victim) {
  char path[512], name[32];
  float x = 0;
  double killed = 0;
  snprintf(path, sizeof path, "%s/killed", folder);
  if (pith_comm_rank(comm) == victim) {
    sleep(LOSS_PAUSE);
    FILE *file = fopen(path, "w");
    fprintf(file, "%.6f\n", now());
    fclose(file);
    raise(SIGKILL);
  }
  pith_status status =
      pith_allreduce(comm, (pith_cspan){&x, 1, PITH_F32}, (pith_span){&x, 1, PITH_F32}, PITH_SUM, NULL, NULL);
  double noticed = now();
  size_t size = (size_t)snprintf(name, sizeof name, "rank %d", victim);
  const char *found = status == PITH_OK ? NULL : strstr(pith_error(), name);
  int is_named = found && (found[size] < '0' || found[size] > '9');
  if (!is_named) {
    fprintf(stderr, "many_ranks: rank %d was told: %s\n", pith_comm_rank(comm), pith_error());
  }
  FILE *file = fopen(path, "r");
  if (!file || fscanf(file, "%lf", &killed) != 1) {
    is_named = 0;
  }
  if (file) {
    fclose(file);
  }
  return is_named ? noticed - killed : -1;
}

int main(int argc, char **argv) {
  char path[512];
  pith_comm *comm;
  pith_stats stats = PITH_STATS_INIT;
  if (argc != 5) {
    fprintf(stderr, "usage: many_ranks FOLDER STARTED VALUES ALGORITHM\n");
    return 2;
  }
  signal(SIGTERM, SIG_IGN); /* the launcher ends a job that has lost a rank; we want to see how the ranks notice */
  size_t n = (size_t)atol(argv[3]);
  need(pith_comm_create(NULL, &comm), "create");
  need(pith_barrier(comm, NULL), "barrier");
  double started = now() - atof(argv[2]), reduced = 0;
  int rank = pith_comm_rank(comm), ranks = pith_comm_size(comm), wrong = 0;
  need(pith_comm_stats(comm, &stats), "stats");
  uint64_t links_at_start = stats.links;
  for (int round = 0; round < ROUNDS; round++) {
    wrong += reduce(comm, n, argv[4], round, &reduced);
  }
  need(pith_comm_stats(comm, &stats), "stats");
  int descriptors = count_descriptors();
  long anonymous = status_of("RssAnon:"), shared = status_of("RssShmem:"), threads = status_of("Threads:");
  double noticed = lose(comm, argv[1], ranks / 3);
  snprintf(path, sizeof path, "%s/%d", argv[1], rank);
  FILE *file = fopen(path, "w");
  fprintf(file, "%.3f %d %d %d %ld %ld %ld %.3f %.3f %d\n", started, (int)links_at_start, (int)stats.links, descriptors,
          anonymous, shared, threads, reduced / ROUNDS, noticed, wrong);
  fclose(file);
  pith_comm_destroy(comm);
  return 0;
}

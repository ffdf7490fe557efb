/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What encryption costs: the same ranks have two comms over tcp, one in clear and one with TLS, and allreduce over them
 * in turns, so that whatever else the machine does disturbs both alike. Rank 0 prints medians of the time, and the CPU
 * time of all ranks for one allreduce. bench/tls_lab.sh starts it behind links of a known speed.
 *
 *   PITH_SECRET=… tls_allreduce [SPEC, q:4] [MiB, 16] [ROUNDS, 30]
 */
#include <pith/pith.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { WAYS = 2, ROUNDS_MOST = 1000, WARM_UP = 3 };

static const char *const names[WAYS] = {"clear", "tls"};

static void demand(pith_status status, const char *what) {
  if (status != PITH_OK) {
    fprintf(stderr, "tls_allreduce: %s: %s\n", what, pith_error());
    exit(1);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double cpu_time(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
         1e-6 * (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec);
}

/* Two comms at two ports. */
static pith_comm *make_comm(const pith_launch *launch, int way) {
  pith_config config = PITH_CONFIG_INIT;
  pith_comm *comm = NULL;
  config.port = launch->port + way;
  config.transport = "tcp";
  config.tls = way ? "psk" : "off";
  demand(pith_comm_create(&config, &comm), names[way]);
  return comm;
}

typedef struct measured {
  double wall[ROUNDS_MOST], cpu[ROUNDS_MOST];
} measured;

static void measure(pith_comm *comm, const pith_codec *codec, float *src, float *dst, size_t n, double *wall,
                    double *cpu) {
  pith_call call = PITH_CALL_INIT;
  call.codec = codec;
  demand(pith_barrier(comm, NULL), "barrier");
  double start = now(), used = cpu_time();
  demand(pith_allreduce(comm, (pith_cspan){src, n, PITH_F32}, (pith_span){dst, n, PITH_F32}, PITH_MEAN, &call, NULL),
         "allreduce");
  double mine[2] = {now() - start, cpu_time() - used}, longest, sum;
  demand(pith_allreduce(comm, (pith_cspan){&mine[0], 1, PITH_F64}, (pith_span){&longest, 1, PITH_F64}, PITH_MAX, NULL,
                        NULL),
         "times");
  demand(
      pith_allreduce(comm, (pith_cspan){&mine[1], 1, PITH_F64}, (pith_span){&sum, 1, PITH_F64}, PITH_SUM, NULL, NULL),
      "times");
  *wall = longest;
  *cpu = sum;
}

static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double quantile(double *values, int count, double q) {
  qsort(values, (size_t)count, sizeof *values, by_size);
  return values[(int)(q * (count - 1) + 0.5)];
}

static void print(measured *m, int rounds) {
  double first[3] = {0};
  printf("%-6s %10s %10s %8s %12s %8s\n", "links", "median ms", "best ms", "× clear", "CPU ms, all", "× clear");
  for (int way = 0; way < WAYS; way++) {
    double median = quantile(m[way].wall, rounds, 0.5), best = m[way].wall[0], cpu = quantile(m[way].cpu, rounds, 0.5);
    first[0] = way ? first[0] : median, first[1] = way ? first[1] : cpu;
    printf("%-6s %10.2f %10.2f %8.3f %12.1f %8.3f\n", names[way], 1e3 * median, 1e3 * best, median / first[0],
           1e3 * cpu, cpu / first[1]);
  }
}

int main(int count, char **arguments) {
  const char *spec = count > 1 ? arguments[1] : "q:4";
  size_t n = (size_t)(count > 2 ? atoi(arguments[2]) : 16) << 18;
  int rounds = count > 3 ? atoi(arguments[3]) : 30;
  pith_launch launch = PITH_LAUNCH_INIT;
  pith_codec *codec;
  pith_comm *comm[WAYS];
  static measured m[WAYS];
  rounds = rounds < 1 ? 1 : rounds < ROUNDS_MOST ? rounds : ROUNDS_MOST;
  demand(pith_launch_find(&launch), "launcher");
  demand(pith_codec_create(spec, &codec), spec);
  float *src = malloc(n * sizeof *src), *dst = malloc(n * sizeof *dst);
  if (!src || !dst) {
    fprintf(stderr, "tls_allreduce: no memory\n");
    return 1;
  }
  for (size_t i = 0; i < n; i++) {
    src[i] = (float)((i * 2654435761u >> 7) % 2001) * 1e-3f - 1;
    dst[i] = 0;
  }
  for (int way = 0; way < WAYS; way++) {
    comm[way] = make_comm(&launch, way);
  }
  for (int round = -WARM_UP; round < rounds; round++) {
    for (int turn = 0; turn < WAYS; turn++) {
      int way = (round + WARM_UP + turn) % WAYS, at = round < 0 ? 0 : round;
      measure(comm[way], codec, src, dst, n, &m[way].wall[at], &m[way].cpu[at]);
    }
  }
  if (launch.rank == 0) {
    print(m, rounds);
  }
  for (int way = 0; way < WAYS; way++) {
    pith_comm_destroy(comm[way]);
  }
  pith_codec_destroy(codec);
  free(src);
  free(dst);
  return 0;
}

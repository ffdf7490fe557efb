/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs have in common that try the laws of device_laws.h on real devices, one process for each rank, with RANK
 * and WORLD_SIZE in the environment. Included once; who includes it defines `law_open_reducer`.
 */
#ifndef PITH_TESTS_CUDA_RANK_PROGRAM_H
#define PITH_TESTS_CUDA_RANK_PROGRAM_H

#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "device_laws.h"
#include "gpu.h"

static pith_comm *host;
static law_world here;
static int passed;

static int rank_of(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

/* ---- What test.h asks of a program ------------------------------------------------------------------------------- */

void test_count_check(void) {}

void test_fail(const char *file, int line, const char *format, ...) {
  va_list list;
  va_start(list, format);
  fprintf(stderr, "FAIL on rank %d, after %d laws: %s:%d: ", here.rank, passed, file, line);
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  _exit(1);
}

/* ---- The device -------------------------------------------------------------------------------------------------- */

static void *take(size_t size) { return gpu_memory(size); }

/* The stream knows nothing of copies: everything is waited for before and after. */
static void put(void *to, const void *from, size_t size) {
  GPU_CHECK(gpu.wait());
  if (size) {
    gpu_put(to, from, size);
  }
  GPU_CHECK(gpu.wait());
}

static void get(void *to, const void *from, size_t size) {
  GPU_CHECK(gpu.wait());
  if (size) {
    gpu_get(to, from, size);
  }
}

static int same(const law_world *w, uint64_t number) { return (void)w, law_all_say(host, number); }

static const law_memory law_device = {take, gpu_free, put, get, same};

/* A device of our own, as far as there are enough; those who share one need names of their own for NCCL. */
static void choose_device(int local, int locals) {
  int (*count_of)(int *);
  int count = 1, device;
  void *context;
  char name[32];
  if (gpu_symbol(dlopen("libcuda.so.1", RTLD_NOW), "cuDeviceGetCount", &count_of)) {
    GPU_CHECK(count_of(&count));
  }
  GPU_CHECK(gpu.device(&device, local % count));
  GPU_CHECK(gpu.retain(&context, device));
  GPU_CHECK(gpu.current(context));
  if (locals > count) {
    snprintf(name, sizeof name, "rank%d", here.rank);
    setenv("NCCL_HOSTID", name, 0);
  }
}

/* ---- The laws that all obey -------------------------------------------------------------------------------------- */

#define MIXED "*.bias=q:8;embed*=ef/topk:0.01;fc*=ef/q:4,round=stochastic;head*=ef/powersgd:2;small*=powersgd:16;*=q:4"

static void tell(const char *name, const char *more) {
  passed++;
  if (here.rank == 0) {
    printf("ok   %s%s%s\n", name, *more ? ": " : "", more);
    fflush(stdout);
  }
}

static void run_means(void) {
  static const struct {
    const char *rules;
    pith_dtype dtype;
  } list[] = {{"none", PITH_F32},
              {"bf16", PITH_F32},
              {"q:4", PITH_F32},
              {"q:4", PITH_BF16},
              {"*=q:3,bucket=64", PITH_F16},
              {"q:4,round=stochastic", PITH_F32},
              {"signsgd", PITH_F32},
              {"*=signsgd", PITH_BF16},
              {"terngrad", PITH_F32},
              {"qsgd", PITH_F32},
              {"natural", PITH_F32},
              {"hadamard/q:4", PITH_F32},
              {"ef/q:4", PITH_F32},
              {"ef/q:2", PITH_F16},
              {"ef/hadamard/q:4", PITH_F32},
              {"signum:0.9", PITH_F32},
              {"efsignsgd", PITH_F32},
              {"onebit", PITH_F32},
              {"topk:0.05", PITH_F32},
              {"*=ef/topk:0.02", PITH_F32},
              {"ef/topk:0.1,values=fp16", PITH_BF16},
              {"ef/topk:0.05,values=q8", PITH_F32},
              {"dgc:0.05", PITH_F32},
              {"randomk:0.1", PITH_F32},
              {"adaptive:0.02", PITH_F32},
              {"powersgd:2", PITH_F32},
              {"ef/powersgd:4", PITH_F32},
              {MIXED, PITH_F32}};
  for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
    char text[200];
    snprintf(text, sizeof text, "%s of %s", list[i].rules, pith_dtype_name(list[i].dtype));
    law_means(&here, list[i].rules, list[i].dtype);
    tell("means are those of the CPU", text);
  }
}

static void run_laws(void) {
  run_means();
  law_checkpoints(&here, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
  tell("a checkpoint goes on where it was made", "");
  law_scaling(&here, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none");
  tell("what is kept can be scaled", "");
  law_refusals(&here);
  tell("mistakes are refused before anything travels", "");
  law_disagreement(&here);
  tell("ranks that disagree are named", "");
}

/* ---- Times ------------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 15, SIDE = 4096, VALUES = SIDE * SIDE };

typedef struct contender {
  const char *spec;    /* NULL: somebody else's sum of f32 */
  const char *carrier; /* of a comm: options.carrier */
  int enqueues;        /* options.capturable: a call waits for nothing, as NCCL's own does */
  pith_reducer *object;
  double time[ROUNDS], enqueue[ROUNDS];
} contender;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int before(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static double median(double *times) {
  qsort(times, ROUNDS, sizeof *times, before);
  return times[ROUNDS / 2];
}

static void (*plain_sum)(void *gradient); /* on our stream */
static const char *plain_name;

static void time_once(contender *c, void *gradient, const void *source, double *time, double *enqueue) {
  GPU_CHECK(
      gpu.copy((gpu_address)(uintptr_t)gradient, (gpu_address)(uintptr_t)source, sizeof(float) * VALUES, here.stream));
  GPU_CHECK(gpu.wait());
  CHECK_OK(pith_barrier(host, NULL));
  double start = now();
  if (c->spec) {
    CHECK_OK(law_allreduce(c->object, &gradient));
  } else {
    plain_sum(gradient);
  }
  *enqueue = now() - start;
  GPU_CHECK(gpu.wait());
  *time = now() - start;
}

static size_t sent_in_a_step(const pith_reducer *reducer) {
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  pith_traffic traffic = PITH_TRAFFIC_INIT;
  CHECK_OK(pith_reducer_layer_stats(reducer, 0, &stats));
  CHECK_OK(pith_reducer_layer_traffic(reducer, 0, &traffic));
  return (size_t)(traffic.sent_bytes / stats.steps);
}

static void print_times(contender *list, size_t count) {
  double plain = 0;
  printf("\n64 MiB of f32, %d ranks, median of %d\n%-24s %-8s %10s %10s %12s %8s\n", here.ranks, ROUNDS, "spec", "",
         "ms", "call ms", "sent MiB", "speed");
  for (size_t i = 0; i < count; i++) {
    size_t sent = list[i].spec ? sent_in_a_step(list[i].object)
                               : 2 * sizeof(float) * VALUES * (size_t)(here.ranks - 1) / (size_t)here.ranks;
    double time = median(list[i].time);
    plain = i ? plain : time;
    printf("%-24s %-8s %10.3f %10.3f %12.2f %7.2fx\n", list[i].spec ? list[i].spec : plain_name,
           list[i].carrier ? list[i].carrier : "", 1e3 * time, 1e3 * median(list[i].enqueue), (double)sent / (1 << 20),
           plain / time);
  }
}

/* Side by side, one after another in each round; the first is what others are compared with. */
static void run_bench(contender *list, size_t count) {
  pith_layer layer = {sizeof(pith_layer), "weight", (size_t[]){SIDE, SIDE}, 2, PITH_F32, NULL};
  void *gradient = gpu_memory(sizeof(float) * VALUES), *source = gpu_memory(sizeof(float) * VALUES);
  float *x = malloc(sizeof(float) * VALUES);
  for (size_t i = 0; i < VALUES; i++) { /* a sum of uniform numbers is near a normal one */
    uint64_t bits = pith__mix64((uint64_t)here.rank << 32 ^ i);
    x[i] = (float)((double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) +
                   (double)(bits >> 48) - 131070) *
           1e-6f;
  }
  put(source, x, sizeof(float) * VALUES);
  free(x);
  for (size_t i = 0; i < count; i++) {
    if (list[i].spec) {
      law_options.carrier = list[i].carrier;
      law_options.capturable = list[i].enqueues;
      CHECK_OK(law_create(&here, &layer, 1, list[i].spec, 1, &list[i].object));
    }
  }
  for (uint64_t round = 0; round < ROUNDS + 3; round++) { /* three to warm up */
    for (size_t i = 0; i < count; i++) {
      size_t at = round < 3 ? 0 : (size_t)round - 3;
      time_once(&list[i], gradient, source, &list[i].time[at], &list[i].enqueue[at]);
    }
  }
  if (here.rank == 0) {
    print_times(list, count);
  }
  for (size_t i = 0; i < count; i++) {
    pith_reducer_destroy(list[i].object);
  }
  gpu_free(gradient);
  gpu_free(source);
}

/* ---- From start to end ------------------------------------------------------------------------------------------- */

/* Connects to the other ranks; 0: it is skipped, and why. `missing` is what the caller found. */
static int program_start(const char *name, const char *(*missing)(void)) {
  pith_config config = PITH_CONFIG_INIT;
  config.rank = here.rank = rank_of("RANK", 0);
  config.ranks = here.ranks = rank_of("WORLD_SIZE", 1);
  const char *why = gpu_open();
  why = why ? why : missing ? missing() : NULL;
  if (why) {
    if (here.rank == 0) {
      printf("skip %s: %s\n0 passed, 0 failed, 1 skipped\n", name, why);
    }
    return 0;
  }
  CHECK_MSG(here.ranks <= LAW_RANKS, "%d ranks are too many for this test; %d are not", here.ranks, LAW_RANKS);
  choose_device(rank_of("LOCAL_RANK", here.rank), rank_of("LOCAL_WORLD_SIZE", here.ranks));
  CHECK_OK(pith_comm_create(&config, &host));
  GPU_CHECK(gpu.stream_create(&here.stream, 1));
  return 1;
}

static void program_end(void) {
  pith_comm_destroy(host);
  if (here.rank == 0) {
    printf("%d passed, 0 failed, 0 skipped\n", passed);
  }
}

#endif

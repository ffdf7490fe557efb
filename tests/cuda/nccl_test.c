/*
 * An allreduce over a real NCCL, by the laws that the made-up one obeys too (nccl_laws.h), and captured in a CUDA graph. One process for each rank,
 * with RANK and WORLD_SIZE in the environment, as `pith run` and torchrun set them:
 *
 *   pith run -n 4 -- nccl_test            a line for each law
 *   pith run -n 4 -- nccl_test bench      … and a table of times
 *
 * Ranks that share a GPU are taken for hosts by NCCL, which then talks TCP between them. Skipped with the reason where a GPU, the module or NCCL
 * is missing.
 */
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include "gpu.h"
#include "nccl_laws.h"

/* ---- NCCL and ranks -------------------------------------------------------------------------------------------------------- */

typedef struct nccl_id {
  char bytes[128];
} nccl_id;

typedef struct nccl_functions {
  int (*get_id)(nccl_id *);
  int (*init)(void **, int, nccl_id, int);
  int (*destroy)(void *);
  int (*all_reduce)(const void *, void *, size_t, int, int, void *, void *);
} nccl_functions;

enum { NCCL_FLOAT = 7, NCCL_SUM = 0 };

static nccl_functions nccl;
static pith_comm *host;
static law_world here;
static int passed;

static int rank_of(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

static const char *nccl_open(void) {
  void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_GLOBAL);
  if (!library) {
    return "no NCCL (libnccl.so.2)";
  }
  int found = gpu_symbol(library, "ncclGetUniqueId", &nccl.get_id) && gpu_symbol(library, "ncclCommInitRank", &nccl.init) &&
              gpu_symbol(library, "ncclCommDestroy", &nccl.destroy) && gpu_symbol(library, "ncclAllReduce", &nccl.all_reduce);
  return found ? (pith_nccl_probe(NULL) == PITH_OK ? NULL : pith_error()) : "this NCCL is too old";
}

/* ---- What test.h asks of a program -------------------------------------------------------------------------------------------- */

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

/* ---- The device ------------------------------------------------------------------------------------------------------------------ */

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

static int same(const law_world *w, uint64_t number) {
  uint64_t all[LAW_RANKS];
  CHECK_OK(pith_all_gather(host, (pith_cspan){&number, 1, PITH_I64}, (pith_span){all, (size_t)w->ranks, PITH_I64}, NULL, NULL, NULL));
  int equal = 1;
  for (int p = 0; p < w->ranks; p++) {
    equal = equal && all[p] == number;
  }
  return equal;
}

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

static void join_ranks(void) {
  nccl_id id = {{0}};
  if (here.rank == 0) {
    CHECK_EQ(nccl.get_id(&id), 0);
  }
  CHECK_OK(pith_broadcast(host, (pith_span){&id, sizeof id, PITH_U8}, 0, NULL, NULL));
  int result = nccl.init(&here.comm, here.ranks, id, here.rank);
  CHECK_MSG(result == 0, "ncclCommInitRank gives %d; NCCL_DEBUG=WARN says why", result);
  GPU_CHECK(gpu.stream_create(&here.stream, 1));
}

/* ---- Graphs ------------------------------------------------------------------------------------------------------------------------ */

#define MIXED "*.bias=q:8;embed*=ef/topk:0.01;fc*=ef/q:4,round=stochastic;head*=ef/powersgd:2;small*=powersgd:16;*=q:4"

/* Graphs go before the comm: ncclCommDestroy() waits until nobody refers to it. */
static void drop_graph(void *graph, void *program) {
  int (*drop_program)(void *), (*drop)(void *);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  CHECK(gpu_symbol(driver, "cuGraphExecDestroy", &drop_program) && gpu_symbol(driver, "cuGraphDestroy", &drop));
  GPU_CHECK(gpu.wait());
  GPU_CHECK(drop_program(program));
  GPU_CHECK(drop(graph));
}

typedef struct replayed {
  pith_nccl *nccl;
  void *graph, *program; /* NULL: called */
} replayed;

enum { CAPTURED_STEP = 7 };

static void capture(const law_world *w, replayed *r, const law_set *set) {
  GPU_CHECK(gpu.wait());
  GPU_CHECK(gpu.capture_begin(w->stream, 2));
  CHECK_OK(pith_nccl_allreduce(r->nccl, set->device, CAPTURED_STEP, w->stream));
  GPU_CHECK(gpu.capture_end(w->stream, &r->graph));
  GPU_CHECK(gpu.graph_make(&r->program, r->graph, 0));
}

static uint64_t replay(const law_world *w, const replayed *r, const law_set *set, uint64_t number) {
  void *values[LAW_LAYERS];
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    values[i] = law_gradient(w->rank, i, number, PITH_F32);
  }
  law_put(set, values, PITH_F32);
  if (r->program) {
    GPU_CHECK(gpu.graph_launch(r->program, w->stream));
  } else {
    CHECK_OK(pith_nccl_allreduce(r->nccl, set->device, CAPTURED_STEP, w->stream));
  }
  uint64_t hash = law_get(set, values, PITH_F32);
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    free(values[i]);
  }
  return hash;
}

/* A graph of a call, replayed, gives the bits of calls with the number of that step; memories go on. */
static void law_graph(const law_world *w) {
  pith_nccl_layer layers[LAW_LAYERS];
  replayed called = {0}, captured = {0};
  law_set set = law_take(PITH_F32);
  law_layers(PITH_F32, layers);
  CHECK_OK(pith_nccl_create(w->comm, layers, LAW_LAYERS, MIXED, LAW_SEED, &called.nccl));
  CHECK_OK(pith_nccl_create(w->comm, layers, LAW_LAYERS, MIXED, LAW_SEED, &captured.nccl));
  for (uint64_t number = 0; number < 3; number++) {
    uint64_t wanted = replay(w, &called, &set, number);
    if (number == 0) { /* kernels and connections are there by now */
      capture(w, &captured, &set);
    }
    uint64_t found = replay(w, &captured, &set, number);
    CHECK_MSG(wanted == found, "replay %d of the graph has other bits than the call", (int)number);
    CHECK_MSG(same(w, found), "ranks have other means, replay %d", (int)number);
  }
  drop_graph(captured.graph, captured.program);
  pith_nccl_destroy(called.nccl);
  pith_nccl_destroy(captured.nccl);
  law_give(&set);
}

/* ---- All laws ------------------------------------------------------------------------------------------------------------------------ */

static void tell(const char *name, const char *more) {
  passed++;
  if (here.rank == 0) {
    printf("ok   %s%s%s\n", name, *more ? ": " : "", more);
    fflush(stdout);
  }
}

static void run_laws(void) {
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
  law_checkpoints(&here, "embed*=ef/topk:0.01;fc*=ef/q:4;head*=ef/powersgd:2;*=q:8");
  tell("a checkpoint goes on where it was made", "");
  law_scaling(&here, "embed*=ef/topk:0.01;fc*=ef/q:4;*=none");
  tell("what is kept can be scaled", "");
  law_refusals(&here);
  tell("mistakes are refused before anything travels", "");
  law_disagreement(&here);
  tell("ranks that disagree are named", "");
  law_graph(&here);
  tell("a graph repeats the call", "");
}

/* ---- Times ---------------------------------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 15, SIDE = 4096, VALUES = SIDE * SIDE };

typedef struct contender {
  const char *spec; /* NULL: NCCL's own sum of f32 */
  pith_nccl *nccl;
  double time[ROUNDS], enqueue[ROUNDS];
} contender;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int before(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static double median(double *times) {
  qsort(times, ROUNDS, sizeof *times, before);
  return times[ROUNDS / 2];
}

static void time_once(contender *c, void *gradient, const void *source, uint64_t round, double *time, double *enqueue) {
  GPU_CHECK(gpu.copy((gpu_address)(uintptr_t)gradient, (gpu_address)(uintptr_t)source, sizeof(float) * VALUES, here.stream));
  GPU_CHECK(gpu.wait());
  CHECK_OK(pith_barrier(host, NULL));
  double start = now();
  if (c->spec) {
    CHECK_OK(pith_nccl_allreduce(c->nccl, &gradient, round, here.stream));
  } else {
    CHECK_EQ(nccl.all_reduce(gradient, gradient, VALUES, NCCL_FLOAT, NCCL_SUM, here.comm, here.stream), 0);
  }
  *enqueue = now() - start;
  GPU_CHECK(gpu.wait());
  *time = now() - start;
}

static void print_times(contender *list, size_t count) {
  double plain = 0;
  printf("\n64 MiB of f32, %d ranks, median of %d\n%-24s %10s %10s %12s %8s\n", here.ranks, ROUNDS, "spec", "ms", "enqueue ms", "sent MiB", "speed");
  for (size_t i = 0; i < count; i++) {
    size_t sent = list[i].spec ? pith_nccl_sent(list[i].nccl) : 2 * sizeof(float) * VALUES * (size_t)(here.ranks - 1) / (size_t)here.ranks;
    double time = median(list[i].time);
    plain = i ? plain : time;
    printf("%-24s %10.3f %10.3f %12.2f %7.2fx\n", list[i].spec ? list[i].spec : "ncclAllReduce, f32", 1e3 * time, 1e3 * median(list[i].enqueue),
           (double)sent / (1 << 20), plain / time);
  }
}

static void run_bench(void) {
  contender list[] = {{.spec = NULL},     {.spec = "bf16"},         {.spec = "q:8"},           {.spec = "q:4"},
                      {.spec = "ef/q:4"}, {.spec = "ef/topk:0.01"}, {.spec = "ef/powersgd:4"}};
  size_t count = sizeof list / sizeof *list;
  pith_nccl_layer layer = {"weight", (size_t[]){SIDE, SIDE}, 2, PITH_F32};
  void *gradient = gpu_memory(sizeof(float) * VALUES), *source = gpu_memory(sizeof(float) * VALUES);
  float *x = malloc(sizeof(float) * VALUES);
  for (size_t i = 0; i < VALUES; i++) { /* a sum of uniform numbers is near a normal one */
    uint64_t bits = pith__mix64((uint64_t)here.rank << 32 ^ i);
    x[i] = (float)((double)(bits & 0xffff) + (double)(bits >> 16 & 0xffff) + (double)(bits >> 32 & 0xffff) + (double)(bits >> 48) - 131070) * 1e-6f;
  }
  put(source, x, sizeof(float) * VALUES);
  free(x);
  for (size_t i = 0; i < count; i++) {
    if (list[i].spec) {
      CHECK_OK(pith_nccl_create(here.comm, &layer, 1, list[i].spec, 1, &list[i].nccl));
    }
  }
  for (uint64_t round = 0; round < ROUNDS + 3; round++) { /* three to warm up */
    for (size_t i = 0; i < count; i++) {
      size_t at = round < 3 ? 0 : (size_t)round - 3;
      time_once(&list[i], gradient, source, round, &list[i].time[at], &list[i].enqueue[at]);
    }
  }
  if (here.rank == 0) {
    print_times(list, count);
  }
  for (size_t i = 0; i < count; i++) {
    pith_nccl_destroy(list[i].nccl);
  }
  gpu_free(gradient);
  gpu_free(source);
}

/* ---- The program ---------------------------------------------------------------------------------------------------------------------- */

int main(int argc, char **argv) {
  pith_config config = PITH_CONFIG_INIT;
  config.rank = rank_of("RANK", 0);
  config.ranks = rank_of("WORLD_SIZE", 1);
  here.rank = config.rank;
  here.ranks = config.ranks;
  const char *why = gpu_open();
  why = why ? why : nccl_open();
  if (why) {
    if (here.rank == 0) {
      printf("skip nccl_test: %s\n0 passed, 0 failed, 1 skipped\n", why);
    }
    return 0;
  }
  CHECK_MSG(here.ranks <= LAW_RANKS, "%d ranks are too many for this test; %d are not", here.ranks, LAW_RANKS);
  choose_device(rank_of("LOCAL_RANK", here.rank), rank_of("LOCAL_WORLD_SIZE", here.ranks));
  CHECK_OK(pith_comm_create(&config, &host));
  join_ranks();
  run_laws();
  if (argc > 1 && strcmp(argv[1], "bench") == 0) {
    run_bench();
  }
  CHECK_OK(pith_barrier(host, NULL));
  nccl.destroy(here.comm);
  pith_comm_destroy(host);
  if (here.rank == 0) {
    printf("%d passed, 0 failed, 0 skipped\n", passed);
  }
  return 0;
}

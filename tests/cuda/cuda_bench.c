/*
 * How fast the CUDA kernels are, beside a copy from device to device. For every spec: the bytes that must move through
 * device memory at least (each input read once, each output written once), the time a copy that moves as many takes,
 * and the share of that speed which is reached. Medians.
 *
 *   cuda_bench [MEBI-VALUES] [SPEC…]      256 Mi values and a list of specs by default
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <pith/pith.h>

#include "gpu.h"

enum { RUNS = 21, WARM = 4, PATTERN = 1 << 22, LAYERS = 64 };

static gpu_event before[RUNS], after[RUNS];

static int compare(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

/* What is timed: a call with items (encoding or decoding), an update, a copy, else a fill. */
typedef struct job {
  pith_reducer *reducer;
  const pith_update *updates; /* `count` of them */
  const pith_cuda_item *items;
  size_t count;
  int decode;
  pith_mode mode;
  void *workspace;
  size_t space;
  void *to, *from;
  size_t bytes;
} job;

static void start(const job *j) {
  pith_status status = PITH_OK;
  if (j->updates) {
    status = pith_reducer_update(j->reducer, j->updates, j->count, NULL);
  } else if (!j->items && !j->from) {
    gpu_fill(j->to, 0, j->bytes);
  } else if (!j->items) {
    GPU_CHECK(gpu.copy((gpu_address)(uintptr_t)j->to, (gpu_address)(uintptr_t)j->from, j->bytes, NULL));
  } else if (j->decode) {
    status = pith_cuda_decode(j->items, j->count, j->mode, j->workspace, j->space, NULL);
  } else {
    status = pith_cuda_encode(j->items, j->count, j->workspace, j->space, NULL);
  }
  if (status != PITH_OK) {
    fprintf(stderr, "%s\n", pith_error());
    exit(1);
  }
}

/* Median seconds. */
static double seconds(const job *j) {
  float ms[RUNS];
  for (int i = 0; i < WARM; i++) {
    start(j);
  }
  for (int i = 0; i < RUNS; i++) {
    GPU_CHECK(gpu.event_record(before[i], NULL));
    start(j);
    GPU_CHECK(gpu.event_record(after[i], NULL));
  }
  GPU_CHECK(gpu.wait());
  for (int i = 0; i < RUNS; i++) {
    GPU_CHECK(gpu.event_between(&ms[i], before[i], after[i]));
  }
  qsort(ms, RUNS, sizeof *ms, compare);
  return ms[RUNS / 2] * 1e-3;
}

static double uniform(void) {
  static uint64_t state = 88172645463325252u;
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (double)(state >> 11) * 0x1p-53;
}

static void fill(void *values, size_t n) {
  float *x = malloc(PATTERN * sizeof *x);
  for (int i = 0; i < PATTERN; i++) {
    x[i] = (float)(sqrt(-2 * log(1 - uniform())) * cos(6.283185307179586 * uniform()));
  }
  for (size_t i = 0; i < n; i += PATTERN) {
    gpu_put((float *)values + i, x, (n - i < PATTERN ? n - i : PATTERN) * sizeof *x);
  }
  free(x);
}

typedef struct device {
  void *values, *other, *payload;
  float *momentum;
  uint64_t *size;
  size_t n;
  double copy; /* bytes a second, read and written together */
} device;

static void print_line(const char *what, const char *spec, double bytes, double input, double time, const device *d) {
  printf("%-12s %-28s %8.3f ms  %7.3f TB/s of values  %7.3f TB/s moved  %5.1f%% of a copy\n", what, spec, time * 1e3,
         input / time * 1e-12, bytes / time * 1e-12, 100 * bytes / d->copy / time);
  fflush(stdout);
}

static int is_lowrank(const pith_codec *codec) {
  return (pith_codec_caps(codec) & PITH_CAP_ROUNDS) != 0 && pith_codec_granule(codec) == 0;
}

/* How many tensors of f32 a memory reads and writes for each value, the gradient included. */
static int tensors_of(const pith_codec *codec) {
  const char *parts = pith_codec_parts(codec);
  int memory = strncmp(parts, "dgc", 3) == 0                                      ? 5
               : strncmp(parts, "ef", 2) == 0 || strncmp(parts, "moment", 6) == 0 ? 3
                                                                                  : 1;
  return memory + is_lowrank(codec); /* whose second product reads it again */
}

static double payload_size(const pith_cuda_item *item) {
  uint64_t size = pith_codec_bound(item->codec, item->n);
  if (!(pith_codec_caps(item->codec) & PITH_CAP_FIXED)) {
    gpu_get(&size, item->payload_size, sizeof size);
  }
  return (double)size;
}

static void measure(const char *spec, device *d) {
  pith_codec *codec;
  if (pith_codec_create(spec, &codec) != PITH_OK) {
    fprintf(stderr, "%s\n", pith_error());
    exit(1);
  }
  pith_cuda_item item = {.size = sizeof(pith_cuda_item),
                         .codec = codec,
                         .dtype = PITH_F32,
                         .n = d->n,
                         .values = d->values,
                         .payload = d->payload,
                         .memory = d->other,
                         .momentum = d->momentum,
                         .payload_size = d->size};
  double values = 4.0 * (double)d->n;
  int tensors = tensors_of(codec);
  size_t space = pith_cuda_workspace(&item, 1);
  void *workspace = space ? gpu_memory(space) : NULL;
  if (tensors > 1) {
    gpu_fill(d->other, 0, 4 * d->n);
    gpu_fill(d->momentum, 0, 4 * d->n);
  }
  job encode = {.items = &item, .count = 1, .workspace = workspace, .space = space};
  double time = seconds(&encode), payload = payload_size(&item);
  print_line("encode", spec, values * tensors + payload, values, time, d);
  if (tensors - is_lowrank(codec) == 1) {
    item.values = d->other;
    job add = {.items = &item, .count = 1, .decode = 1, .mode = PITH_ADD, .workspace = workspace, .space = space},
        set = add;
    int sparse = pith_codec_granule(codec) == 0 && !is_lowrank(codec); /* adding touches only what travels */
    set.mode = PITH_SET;
    print_line("decode", spec, values + payload, values, seconds(&set), d);
    print_line("decode-add", spec, sparse ? payload : 2 * values + payload, values, seconds(&add), d);
  }
  if (workspace) {
    gpu_free(workspace);
  }
  pith_codec_destroy(codec);
}

/* 64 layers of sizes from 1 Ki to 21 Mi values and different specs, in one call, beside one layer of as many values. */
static void measure_layers(device *d) {
  static const char *const specs[] = {"q:4",  "q:8",     "q:2", "sign,scale=mean", "q:4,round=stochastic",
                                      "qsgd", "natural", "none"};
  pith_cuda_item items[LAYERS];
  double bytes = 0, values = 0;
  size_t at = 0, used = 0;
  for (int i = 0; i < LAYERS; i++) {
    pith_codec *codec;
    size_t n = (size_t)1 << (10 + i * 7 % 15);
    n += n / 7 * (size_t)(i % 3);
    pith_codec_create(specs[i % 8], &codec);
    items[i] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                .codec = codec,
                                .n = n,
                                .values = (float *)d->values + at,
                                .payload = (uint8_t *)d->payload + used};
    at += (n + 63) / 64 * 64; /* as tensors of their own would lie */
    used += (pith_codec_bound(codec, n) + 15) / 16 * 16;
    bytes += 4.0 * (double)n + (double)pith_codec_bound(codec, n);
    values += 4.0 * (double)n;
  }
  job encode = {.items = items, .count = LAYERS}, one = {.items = items, .count = 1};
  print_line("64 layers", "mixed, encode", bytes, values, seconds(&encode), d);
  items[0].n = at;
  print_line("one layer", "q:4, as many values", values + (double)pith_codec_bound(items[0].codec, at), values,
             seconds(&one), d);
}

static void demand(pith_status status) {
  if (status != PITH_OK) {
    fprintf(stderr, "%s\n", pith_error());
    exit(1);
  }
}

/* The optimizer's step with momentum that has arrived as the gradient, in layers of `each` values: four tensors are
 * read and three written. A local step reads the moment, too. */
static void measure_update(device *d, pith_dtype dtype, size_t each, int is_local) {
  size_t width = pith_dtype_size(dtype), count = 0;
  pith_comm *comm;
  pith_reducer *r;
  pith_config config = PITH_CONFIG_INIT;
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  pith_update *updates = calloc(d->n / 2 / each + 1, sizeof *updates);
  config.rank = 0, config.ranks = 1, options.cuda = 1;
  demand(pith_comm_create(&config, &comm));
  demand(pith_reducer_create_with(comm, "none", 0, &options, &r));
  uint8_t *gradient = d->values, *moment = d->other, *variance = d->payload, *parameter = (uint8_t *)d->momentum;
  for (size_t at = 0; at + each <= d->n / 2; at += each) {
    char name[32];
    pith_update u = PITH_UPDATE_INIT;
    snprintf(name, sizeof name, "%zu", count);
    demand(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), name, &each, 1, dtype, NULL}, &u.index));
    demand(pith_reducer_set_spec(r, u.index, "moment/q:4"));
    u.gradient = gradient + at * width, u.moment = moment + at * width, u.variance = variance + at * width;
    u.parameter = parameter + at * width, u.take = is_local ? 0.1f : 1, u.keep = is_local ? 0.9f : 0;
    u.decay = 0.999f, u.rate = 1e-3f, u.epsilon = 1e-8f, u.fold = 0.9f;
    updates[count++] = u;
  }
  job update = {.reducer = r, .updates = updates, .count = count};
  double values = (double)(count * each), bytes = values * (double)((is_local ? 6 : 5) * width + 2 * sizeof(float));
  char text[64];
  snprintf(text, sizeof text, "%zu × %zu Ki %s%s", count, each >> 10, pith_dtype_name(dtype),
           is_local ? ", local" : "");
  print_line("update", text, bytes, values * (double)width, seconds(&update), d);
  free(updates);
  pith_reducer_destroy(r);
  pith_comm_destroy(comm);
}

static void measure_copy(device *d) {
  job copy = {.to = d->other, .from = d->values, .bytes = 4 * d->n};
  double time = seconds(&copy);
  d->copy = 8.0 * (double)d->n / time;
  printf("%-12s %-28s %8.3f ms  %7.3f TB/s moved\n", "copy", "device to device", time * 1e3, d->copy * 1e-12);
  job clear = {.to = d->other, .bytes = 4 * d->n};
  time = seconds(&clear);
  printf("%-12s %-28s %8.3f ms  %7.3f TB/s moved\n", "fill", "writes alone", time * 1e3,
         4.0 * (double)d->n / time * 1e-12);
}

int main(int argc, char **argv) {
  static const char *const specs[] = {"none",
                                      "fp16",
                                      "bf16",
                                      "q:1",
                                      "q:2",
                                      "q:4",
                                      "q:8",
                                      "q:4,round=stochastic",
                                      "q:3",
                                      "sign,scale=mean",
                                      "signmean",
                                      "qsgd",
                                      "terngrad",
                                      "natural",
                                      "tree8",
                                      "lloyd:2,bucket=512",
                                      "hadamard/q:4",
                                      "drive",
                                      "eden:2",
                                      "ef/q:4",
                                      "ef/q:4,round=stochastic",
                                      "onebit",
                                      "efsignsgd",
                                      "u8",
                                      "ef/hadamard/q:4",
                                      "topk:0.01",
                                      "topk:0.01,values=q8",
                                      "topk:0.1",
                                      "topk:0.01,select=sampled",
                                      "threshold:2.5758",
                                      "threshold:0.1",
                                      "randomk:0.01",
                                      "adaptive:0.01",
                                      "ef/topk:0.01",
                                      "dgc:0.01",
                                      "powersgd:4",
                                      "ef/powersgd:4"};
  const char *why = gpu_open(), *text;
  if (why) {
    printf("skipped: %s\n", why);
    return 0;
  }
  for (int i = 0; i < RUNS; i++) {
    GPU_CHECK(gpu.event_create(&before[i], 0));
    GPU_CHECK(gpu.event_create(&after[i], 0));
  }
  device d = {.n = (size_t)(argc > 1 ? atoi(argv[1]) : 256) << 20};
  d.values = gpu_memory(4 * d.n);
  d.other = gpu_memory(4 * d.n);
  d.momentum = gpu_memory(4 * d.n);
  d.payload = gpu_memory(4 * d.n + d.n / 4 + (1 << 20));
  d.size = gpu_memory(sizeof *d.size);
  fill(d.values, d.n);
  gpu_fill(d.other, 0, 4 * d.n);
  pith_cuda_probe(&text);
  printf("%s, %zu Mi values of f32\n", text, d.n >> 20);
  measure_copy(&d);
  for (int i = 2; i < argc; i++) {
    measure(argv[i], &d);
  }
  for (size_t i = 0; argc <= 2 && i < sizeof specs / sizeof *specs; i++) {
    measure(specs[i], &d);
  }
  if (argc <= 2) {
    measure_update(&d, PITH_F32, d.n / 2, 0);
    measure_update(&d, PITH_F32, d.n / 2, 1);
    measure_update(&d, PITH_BF16, d.n / 2, 0);
    measure_update(&d, PITH_F32, 640 << 10, 0);
    measure_layers(&d);
  }
  measure_copy(&d);
  return 0;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the CUDA kernels are, beside a copy from device to device. For every spec: the bytes that must move through
 * device memory at least (each input read once, each output written once), the time a copy that moves as many takes,
 * and the share of that speed which is reached. Medians.
 *
 *   cuda_bench [MEBI-VALUES] [SPEC…]      256 Mi values and a list of specs by default; "statistics": for the planner
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <pith/pith.h>
#include <time.h>

#include "device/cuda_statistics.h"
#include "gpu.h"
#include "profile/profile.h"

enum { RUNS = 21, WARM = 4, PATTERN = 1 << 22, LAYERS = 64 };

static gpu_event before[RUNS], after[RUNS];

static int compare(const void *a, const void *b) {
  float x = *(const float *)a, y = *(const float *)b;
  return x < y ? -1 : x > y;
}

/* What is timed: a function, a call with items (encoding or decoding), an update, a copy, else a fill. */
typedef struct job {
  pith_status (*run)(void *of);
  void *of;
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
  if (j->run) {
    status = j->run(j->of);
  } else if (j->updates) {
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

/* ---- Statistics for the planner ---------------------------------------------------------------------------------- */

typedef struct statistics {
  const pith_cuda_space *space;
  pith_measurer *measurer;
  pith_gpu_uniform uniform;
  pith_gpu_magnitudes magnitudes;
  pith_profile *profile;
  const float *values;
  uint64_t step;
} statistics;

static pith_status run_uniform(void *of) {
  statistics *s = of;
  PITH_CUDA_TRY(s->space->gpu->uniform_errors, &s->uniform, NULL);
  return PITH_OK;
}

static pith_status run_magnitudes(void *of) {
  statistics *s = of;
  PITH_CUDA_TRY(s->space->gpu->magnitudes, &s->magnitudes, NULL);
  return PITH_OK;
}

/* All layers of a model, as one of four ranks measures them in a step of its own. */
static pith_status run_layers(void *of) {
  statistics *s = of;
  const float *x = s->values;
  pith_ctx ctx = PITH_CTX_INIT;
  ctx.ranks = 4, ctx.step = s->step++;
  for (size_t l = 0; l < s->profile->layers; x += s->profile->layer[l++].n) {
    pith_measurement m;
    void *ticket;
    PITH_TRY(pith__measurement_init(s->profile, l, (pith_cspan){x, s->profile->layer[l].n, PITH_F32}, &ctx, 1, &m));
    PITH_TRY(s->measurer->begin(s->measurer, &m, NULL, 0, &ticket));
    s->measurer->drop(s->measurer, ticket); /* nobody wants to know */
  }
  return PITH_OK;
}

/* `around`: what the candidates are around. */
static void measure_layers_of(statistics *s, const char *around, const char *model, const pith_layer *layers,
                              size_t count) {
  static char candidates[16384];
  char text[64];
  struct timespec from, to;
  job all = {.run = run_layers, .of = s};
  demand(pith_plan_candidates(around, candidates, sizeof candidates));
  snprintf(text, sizeof text, "%s, %s", around, model);
  demand(pith_profile_create(layers, count, candidates, &s->profile));
  s->profile->space = s->measurer->space;
  start(&all); /* takes memory */
  GPU_CHECK(gpu.wait());
  clock_gettime(CLOCK_MONOTONIC, &from);
  start(&all);
  clock_gettime(CLOCK_MONOTONIC, &to);
  double host = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
  printf("%-12s %-28s %8.3f ms, of the host %.3f ms\n", "statistics", text, seconds(&all) * 1e3, host * 1e3);
  pith_profile_destroy(s->profile);
}

static void measure_gpt(statistics *s) {
  static const size_t shapes[][2] = {{2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {50304, 768}, {1024, 768}};
  static char names[50][16];
  pith_layer layers[50];
  for (size_t l = 0; l < 50; l++) {
    snprintf(names[l], sizeof names[l], "%zu", l);
    layers[l] = (pith_layer){sizeof(pith_layer), names[l], shapes[l < 48 ? l % 4 : l - 44], 2, PITH_F32, NULL};
  }
  static const char *const around[] = {"q:4", "eden:2", "ef/topk:0.01", "ef/powersgd:4", "mix"};
  for (size_t i = 0; i < sizeof around / sizeof *around; i++) {
    measure_layers_of(s, around[i], "GPT of 124 M", layers, 50);
  }
}

static void measure_statistics(device *d) {
  pith_cuda_space *space;
  statistics s = {.values = d->values};
  demand(pith__cuda_space_create(NULL, NULL, &space));
  demand(pith__cuda_measurer_create(space, &s.measurer));
  s.space = space;
  void *room = gpu_memory(PITH_GPU_STATISTICS_SPACE);
  double *numbers = gpu_memory(4096), n = (double)d->n * sizeof(float);
  s.uniform =
      (pith_gpu_uniform){.values = d->values, .errors = numbers, .space = room, .n = d->n, .wanted = 0xffu << 16};
  job uniform = {.run = run_uniform, .of = &s}, magnitudes = {.run = run_magnitudes, .of = &s};
  print_line("errors", "q:1 … q:8, one pass", n, n, seconds(&uniform), d);
  s.uniform.wanted = 0xffffffffu;
  print_line("errors", "and four buckets", n, n, seconds(&uniform), d);
  s.magnitudes = (pith_gpu_magnitudes){.values = d->values, .numbers = numbers, .space = room, .n = d->n, .tops = 22};
  print_line("magnitudes", "", n, n, seconds(&magnitudes), d);
  size_t shape[2] = {d->n >> 14, 1 << 14};
  measure_layers_of(&s, "mix", "one layer", &(pith_layer){sizeof(pith_layer), "0", shape, 2, PITH_F32, NULL}, 1);
  if (d->n >= (size_t)128 << 20) {
    measure_gpt(&s);
  }
  s.measurer->destroy(s.measurer);
  pith__cuda_space_destroy(space);
  gpu_free(room);
  gpu_free(numbers);
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
                                      "fp8",
                                      "fp8:e5m2",
                                      "mxfp8",
                                      "mxfp6",
                                      "mxfp4",
                                      "nvfp4",
                                      "ef/mxfp4",
                                      "lossless",
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
    strcmp(argv[i], "statistics") ? measure(argv[i], &d) : measure_statistics(&d);
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
    measure_statistics(&d);
  }
  measure_copy(&d);
  return 0;
}

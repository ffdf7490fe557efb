/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A reducer whose gradients are on a device, without a device: a module has the CPU work in place of kernels
 * (tests/cuda/fake). Groups, chunks, stages, states and checkpoints are the real code, and the bits are those of main
 * memory. tests/cuda/reducer_test.c has the same laws for a real device.
 */
#include <pthread.h>

#include "carrier_laws.h"

enum { STEPS = 3 };

/* Memory of a framework. What a carrier is given must be some of it. */
enum { PIECES = 4096 };
static struct piece {
  uint8_t *data;
  size_t size;
} pieces[PIECES];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static atomic_int lent;

static void *allocate(void *self, size_t bytes) {
  uint8_t *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  (void)self;
  memset(memory, 0xa5, bytes); /* nobody promised zeros */
  pthread_mutex_lock(&mutex);
  size_t i = 0;
  while (i < PIECES && pieces[i].data) {
    i++;
  }
  CHECK(i < PIECES);
  pieces[i] = (struct piece){memory, bytes};
  lent++;
  pthread_mutex_unlock(&mutex);
  return memory;
}

static void release_memory(void *self, void *memory) {
  size_t i = 0;
  (void)self;
  pthread_mutex_lock(&mutex);
  while (i < PIECES && pieces[i].data != memory) {
    i++;
  }
  CHECK(i < PIECES);
  pieces[i] = (struct piece){0};
  lent--;
  pthread_mutex_unlock(&mutex);
  free(memory);
}

static int is_there(const void *memory) {
  const uint8_t *at = memory;
  int found = 0;
  pthread_mutex_lock(&mutex);
  for (size_t i = 0; i < PIECES && !found; i++) {
    found = pieces[i].data && at >= pieces[i].data && at < pieces[i].data + pieces[i].size;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

static const pith_allocator framework = {NULL, allocate, release_memory};

typedef struct manner {
  const char *spec;
  uint32_t caps;
  size_t chunk;
  const pith_allocator *allocator;
} manner;

static pith_reducer *make(const pith_carrier *carrier, const manner *m, int cuda) {
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .group_bytes = 16 << 10};
  if (cuda) {
    options.cuda = 1, options.chunk_bytes = m->chunk, options.allocator = m->allocator;
  }
  CHECK_OK(pith_reducer_create_over(carrier, m->spec, 5, &options, &r));
  add_layers(r);
  return r;
}

static void check_bits(pith_comm *comm, void *argument) {
  const manner *m = argument;
  int rank = pith_comm_rank(comm);
  wire host_wire = {.comm = comm}, cuda_wire = {.comm = comm, .is_there = m->allocator ? is_there : NULL};
  pith_carrier host = carrier_of(&host_wire, 0), cuda = carrier_of(&cuda_wire, m->caps | PITH_CARRIER_CUDA);
  pith_reducer *a = make(&host, m, 0), *b = make(&cuda, m, 1), *resumed = NULL;
  for (uint64_t step = 0; step < STEPS; step++) {
    gradients x = make_gradients(rank, step), y = make_gradients(rank, step), z = make_gradients(rank, step);
    CHECK_OK(take_step(a, &x, 0));
    CHECK_OK(take_step(b, &y, 0));
    compare(&x, &y, m->spec, step);
    if (step == 1) { /* a checkpoint of main memory goes on on the device */
      pith_out out = {.capacity = pith_reducer_save_size(a)};
      out.data = malloc(out.capacity);
      CHECK_OK(pith_reducer_save(a, &out));
      resumed = make(&cuda, m, 1);
      CHECK_OK(pith_reducer_load(resumed, (pith_bytes){out.data, out.size}));
      free(out.data);
    } else if (step == 2) {
      CHECK_OK(take_step(resumed, &z, 0));
      compare(&x, &z, m->spec, step);
    }
    CHECK_OK(pith_reducer_scale(a, 0.5f));
    CHECK_OK(pith_reducer_scale(b, 0.5f));
    CHECK_OK(resumed ? pith_reducer_scale(resumed, 0.5f) : PITH_OK);
    CHECK_OK(pith_reducer_scale_residual(a, 2, 10.0f));
    CHECK_OK(pith_reducer_scale_residual(b, 2, 10.0f));
    CHECK_OK(resumed ? pith_reducer_scale_residual(resumed, 2, 10.0f) : PITH_OK);
    release(&x);
    release(&y);
    release(&z);
  }
  pith_reducer_destroy(a);
  pith_reducer_destroy(b);
  pith_reducer_destroy(resumed);
}

TEST_WITHIN(a_device_gives_the_bits_of_main_memory, 120) {
  static const char *const specs[] = {
      "none",
      "bf16",
      "q:4",
      "*=q:3,bucket=64",
      "ef/q:2",
      "signsgd",
      "signum",
      "efsignsgd",
      "topk:0.1",
      "ef/topk:0.05",
      "threshold:0.4",
      "ef/topk:0.1,values=fp16",
      "q:4,encode=once",
      "ef/q:2,encode=once",
      "ef,store=8/q:2",
      "ef,store=8/q:2,bucket=96",
      "ef,store=bf16/q:2",
      "ef,store=8/topk:0.05",
      "ef,store=bf16/topk:0.1,values=fp16",
      "*2=ef,store=bf16/topk:0.1;*5=q:8;*=ef,store=8/q:4",
      "signsgd,encode=once",
      "*2=topk:0.1;*5=q:8;*=ef/q:4"}; /* what the module has, but for low rank, whose products differ */
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    for (int k = 0; k < 2; k++) {
      manner m = {specs[i], k ? PITH_CARRIER_THREADS : 0, k ? 8192 : 0, k ? &framework : NULL};
      ranks_run("inproc", 3, 0, check_bits, &m);
      CHECK_EQ((int)lent, 0);
    }
  }
}

/* One layer has most of its gradient in a few values: it needs less than the others. */
static void concentrate(gradients *g) {
  float *values = (float *)(void *)g->layer[2];
  for (size_t i = 0; i < size_of(2); i++) {
    values[i] *= i % 64 ? 1e-3f : 1;
  }
}

typedef struct adaptive {
  const char *spec;
  int is_exact; /* results have the same bits: not those of low rank, whose products differ */
} adaptive;

static void check_specs(const pith_reducer *a, const pith_reducer *b, uint64_t step, char before[LAYERS][256],
                        int *changes) {
  for (size_t l = 0; l < LAYERS; l++) {
    pith_layer_stats x = PITH_LAYER_STATS_INIT, y = PITH_LAYER_STATS_INIT;
    CHECK_OK(pith_reducer_layer_stats(a, l, &x));
    CHECK_OK(pith_reducer_layer_stats(b, l, &y));
    CHECK_MSG(!strcmp(x.spec, y.spec), "step %d: %s and %s", (int)step, x.spec, y.spec);
    *changes += step && strcmp(before[l], x.spec) != 0;
    snprintf(before[l], sizeof before[l], "%s", x.spec);
  }
}

static pith_reducer *resume(const pith_reducer *from, const pith_carrier *carrier, const manner *m, int cuda) {
  pith_reducer *r = make(carrier, m, cuda);
  pith_out out = {.capacity = pith_reducer_save_size(from)};
  out.data = malloc(out.capacity);
  CHECK_OK(pith_reducer_save(from, &out));
  CHECK_OK(pith_reducer_load(r, (pith_bytes){out.data, out.size}));
  free(out.data);
  return r;
}

/* Plans change specs between steps, and residuals move along or wait: as in main memory, from the same statistics. In
 * the middle of a window each goes on from the other's checkpoint. */
static void check_adaptive(pith_comm *comm, void *argument) {
  const adaptive *tried = argument;
  manner m = {tried->spec, PITH_CARRIER_THREADS, 0, &framework};
  int rank = pith_comm_rank(comm), changes = 0;
  wire host_wire = {.comm = comm}, cuda_wire = {.comm = comm, .is_there = is_there};
  pith_carrier host = carrier_of(&host_wire, 0), cuda = carrier_of(&cuda_wire, m.caps | PITH_CARRIER_CUDA);
  pith_reducer *a = make(&host, &m, 0), *b = make(&cuda, &m, 1);
  char before[LAYERS][256] = {""};
  for (uint64_t step = 0; step < 80; step++) {
    gradients ours = make_gradients(rank, step), theirs = make_gradients(rank, step);
    concentrate(&ours);
    concentrate(&theirs);
    CHECK_OK(take_step(a, &ours, 0));
    CHECK_OK(take_step(b, &theirs, 0));
    check_specs(a, b, step, before, &changes);
    if (tried->is_exact) {
      compare(&ours, &theirs, m.spec, step);
    }
    if (step == 29) {
      pith_reducer *c = resume(b, &host, &m, 0), *d = resume(a, &cuda, &m, 1);
      pith_reducer_destroy(a);
      pith_reducer_destroy(b);
      a = c, b = d;
    }
    release(&ours);
    release(&theirs);
  }
  CHECK_MSG(changes > 0, "%s: nothing changes", m.spec);
  pith_reducer_destroy(a);
  pith_reducer_destroy(b);
}

TEST_WITHIN(specs_change_as_in_main_memory, 120) {
  static const adaptive tried[] = {{"lgreco:ef/topk:0.05,warmup=4,period=32", 1},
                                   {"lgreco:q:4,warmup=4,period=32", 1},
                                   {"lgreco:q:4,warmup=4,period=32,accumulate=5", 1},
                                   {"linear:q:4,warmup=4,period=32", 1},
                                   {"lgreco:ef/powersgd:2,warmup=4,period=32", 0}};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof tried / sizeof *tried; i++) {
    ranks_run("inproc", 2, 0, check_adaptive, (void *)(uintptr_t)&tried[i]);
    CHECK_EQ((int)lent, 0);
  }
}

/* The default of models on devices: it measures, times codecs there, and tries. */
static void check_auto(pith_comm *comm, void *argument) {
  manner m = {argument, PITH_CARRIER_THREADS, 0, &framework};
  int rank = pith_comm_rank(comm), tried = 0;
  wire cuda_wire = {.comm = comm, .is_there = is_there};
  pith_carrier cuda = carrier_of(&cuda_wire, m.caps | PITH_CARRIER_CUDA);
  pith_reducer *r = make(&cuda, &m, 1);
  pith_layer_stats stats = PITH_LAYER_STATS_INIT;
  /* How many trials it takes depends on how long they take; the ranks know the same times. */
  for (uint64_t step = 0; step < 5000 && !(tried && strstr(stats.reason, "since step")); step++) {
    gradients g = make_gradients(rank, step);
    CHECK_OK(take_step(r, &g, 0));
    CHECK_OK(pith_reducer_layer_stats(r, 2, &stats));
    tried |= strstr(stats.reason, "trial of") != NULL;
    release(&g);
  }
  CHECK(tried);
  CHECK_MSG(strstr(stats.reason, "since step"), "%s", stats.reason);
  pith_reducer_destroy(r);
}

TEST_WITHIN(auto_settles_on_a_device, 120) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  ranks_run("inproc", 2, 0, check_auto, "auto,budget=q:4");
  CHECK_EQ((int)lent, 0);
}

/* The optimizer's step on all layers but that of f64: `g` has what came back, or is NULL before the first step. */
static void update_layers(pith_reducer *r, const gradients *g, const gradients *moment, const gradients *parameter) {
  pith_update updates[LAYERS];
  for (size_t l = 0; l < LAYERS; l++) {
    pith_update u = PITH_UPDATE_INIT;
    u.index = l, u.moment = moment->layer[l], u.keep = g ? 0 : 0.5f, u.fold = 0.9f;
    if (g) {
      u.gradient = g->layer[l], u.take = 1, u.parameter = parameter->layer[l], u.rate = 0.01f, u.decay = 0.99f;
    }
    updates[l] = u;
  }
  CHECK_OK(pith_reducer_update(r, updates, LAYERS, NULL));
}

/* Momentum, specs that are set, and the optimizer's step: as in main memory. */
static void check_momentum(pith_comm *comm, void *argument) {
  manner m = {argument, PITH_CARRIER_THREADS, 8192, &framework};
  int rank = pith_comm_rank(comm);
  wire host_wire = {.comm = comm}, cuda_wire = {.comm = comm, .is_there = is_there};
  pith_carrier host = carrier_of(&host_wire, 0), cuda = carrier_of(&cuda_wire, m.caps | PITH_CARRIER_CUDA);
  pith_reducer *a = make(&host, &m, 0), *b = make(&cuda, &m, 1);
  gradients moment = make_gradients(0, 1), x = make_gradients(0, 2), device_moment = make_gradients(0, 1),
            device_x = make_gradients(0, 2);
  update_layers(a, NULL, &moment, &x);
  update_layers(b, NULL, &device_moment, &device_x);
  for (uint64_t step = 0; step < 6; step++) {
    gradients ours = make_gradients(rank, step), theirs = make_gradients(rank, step);
    CHECK_OK(take_step(a, &ours, 0));
    CHECK_OK(take_step(b, &theirs, 0));
    compare(&ours, &theirs, m.spec, step);
    update_layers(a, &ours, &moment, &x);
    update_layers(b, &theirs, &device_moment, &device_x);
    compare(&x, &device_x, m.spec, step);
    compare(&moment, &device_moment, m.spec, step);
    if (step == 2) {
      CHECK_OK(pith_reducer_set_spec(a, 2, "moment/q:4"));
      CHECK_OK(pith_reducer_set_spec(b, 2, "moment/q:4"));
    } else if (step == 4) {
      CHECK_OK(pith_reducer_set_spec(a, 2, "bf16"));
      CHECK_OK(pith_reducer_set_spec(b, 2, "bf16"));
    }
    release(&ours);
    release(&theirs);
  }
  release(&moment);
  release(&x);
  release(&device_moment);
  release(&device_x);
  pith_reducer_destroy(a);
  pith_reducer_destroy(b);
}

TEST(momentum_travels_as_in_main_memory) {
  static const char *const specs[] = {"*=moment/efsignsgd",         "*=moment/q:2",
                                      "*=moment/topk:0.05",         "*=moment/q:2,encode=once",
                                      "*5=none;*=moment/efsignsgd", "*=moment,store=8/efsignsgd",
                                      "*=moment,store=bf16/q:2",    "*=moment,store=8/topk:0.05"};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
    ranks_run("inproc", 3, 0, check_momentum, (void *)(uintptr_t)specs[i]);
    CHECK_EQ((int)lent, 0);
  }
}

TEST(a_carrier_must_move_what_the_reducer_has) {
  wire w = {0};
  pith_reducer *r;
  pith_reducer_options options = {.size = sizeof options, .cuda = 1};
  pith_carrier carrier = PITH_CARRIER_INIT;
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  carrier.name = "test", carrier.self = &w, carrier.ranks = 2, carrier.start = start, carrier.wait = wait;
  CHECK_STATUS(pith_reducer_create_over(&carrier, "q:4", 0, &options, &r), PITH_ERR_ARGUMENT);
  carrier.caps = PITH_CARRIER_CUDA;
  CHECK_STATUS(pith_reducer_create_over(&carrier, "q:4", 0, NULL, &r), PITH_ERR_ARGUMENT);
  CHECK_OK(pith_reducer_create_over(&carrier, "*=sketchml", 0, &options, &r));
  CHECK_STATUS(
      pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "layer", (size_t[]){100, 100}, 2, PITH_F32, NULL}, NULL),
      PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("layer layer:");
  pith_reducer_destroy(r);
}

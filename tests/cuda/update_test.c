/* SPDX-License-Identifier: Apache-2.0 */
/* The optimizer's step on the GPU: the bits of the CPU, in every type, at every size and alignment, with and without
 * each of its parts. Both go through a reducer, of one rank. */
#include <pith/carrier.h>
#include <pith/optimizer.h>

#include "inputs.h"

typedef enum part { GRADIENT = 1, MOMENT = 2, VARIANCE = 4, PARAMETER = 8, START = 16, RESIDUAL = 32, ALL = 64 } part;

/* A layer in main memory and on the device. */
typedef struct twin {
  size_t n;
  pith_dtype dtype;
  size_t shift; /* values by which tensors begin off their alignment */
  uint8_t *host[5], *device[5], *host_start[5], *device_start[5];
} twin;

static size_t width_of(const twin *t, int tensor) { return tensor == 4 ? sizeof(float) : pith_dtype_size(t->dtype); }

static void make_twin(twin *t, size_t n, pith_dtype dtype, size_t shift, pattern kind) {
  *t = (twin){.n = n, .dtype = dtype, .shift = shift};
  float *x = malloc(n * sizeof *x + 4);
  for (int i = 0; i < 5; i++) {
    size_t width = width_of(t, i);
    t->host_start[i] = malloc((n + shift) * 4 + 4);
    t->device_start[i] = gpu_memory((n + shift) * 4);
    t->host[i] = t->host_start[i] + shift * width;
    t->device[i] = t->device_start[i] + shift * width;
    fill(x, n, i == 2 && kind != WITH_NAN ? NORMAL : kind);
    for (size_t j = 0; i == 2 && j < n; j++) {
      x[j] *= x[j];
    }
    narrow(x, n, width == 4 ? PITH_F32 : dtype, t->host[i]);
    gpu_put(t->device[i], t->host[i], n * width);
  }
  free(x);
}

static void release_twin(twin *t) {
  for (int i = 0; i < 5; i++) {
    free(t->host_start[i]);
    gpu_free(t->device_start[i]);
  }
}

static pith_update update_of(uint8_t *const *tensor, size_t index, unsigned parts) {
  pith_update u = PITH_UPDATE_INIT;
  u.index = index;
  u.gradient = parts & GRADIENT ? tensor[0] : NULL, u.take = parts & GRADIENT ? 0.1f : 0;
  u.moment = parts & MOMENT ? tensor[1] : NULL, u.keep = parts & MOMENT ? 0.9f : 0;
  u.variance = parts & VARIANCE ? tensor[2] : NULL;
  u.parameter = parts & (PARAMETER | START) ? tensor[3] : NULL;
  u.start = parts & START ? (float *)(void *)tensor[4] : NULL;
  u.decay = 0.9997f, u.rate = 3e-4f, u.root = 1.7f, u.epsilon = 1e-8f;
  u.pass = parts & RESIDUAL ? 0.75f : 1, u.fold = parts & RESIDUAL ? 0.9f : 0;
  return u;
}

typedef struct pair {
  pith_comm *comm;
  pith_reducer *host, *device;
} pair;

#define STORES 3

/* How layer i keeps its residual. */
static const char *spec_of(size_t i, size_t store) {
  static const char *const specs[STORES] = {"moment/q:4", "moment,store=bf16/q:4", "moment,store=8/q:4"};
  return specs[(store + i) % STORES];
}

static pair make_pair(twin *twins, size_t count, size_t store) {
  pair p;
  pith_config config = PITH_CONFIG_INIT;
  pith_reducer_options options = PITH_REDUCER_OPTIONS_INIT;
  config.rank = 0, config.ranks = 1;
  CHECK_OK(pith_comm_create(&config, &p.comm));
  CHECK_OK(pith_reducer_create(p.comm, "none", 0, &p.host));
  options.cuda = 1;
  CHECK_OK(pith_reducer_create_with(p.comm, "none", 0, &options, &p.device));
  for (size_t i = 0; i < count; i++) {
    char name[32];
    snprintf(name, sizeof name, "layer%zu", i);
    pith_layer layer = {sizeof layer, name, &twins[i].n, 1, twins[i].dtype, NULL};
    float *host, *device;
    CHECK_OK(pith_reducer_add(p.host, &layer, NULL));
    CHECK_OK(pith_reducer_add(p.device, &layer, NULL));
    CHECK_OK(pith_reducer_set_spec(p.host, i, "moment/q:4"));
    CHECK_OK(pith_reducer_set_spec(p.device, i, "moment/q:4"));
    CHECK_OK(pith_reducer_residual(p.host, i, &host));
    CHECK_OK(pith_reducer_residual(p.device, i, &device));
    CHECK(host && device);
    fill(host, twins[i].n, NORMAL);
    gpu_put(device, host, twins[i].n * sizeof *host);
    CHECK_OK(pith_reducer_set_spec(p.host, i, spec_of(i, store))); /* both pack what is there */
    CHECK_OK(pith_reducer_set_spec(p.device, i, spec_of(i, store)));
  }
  return p;
}

static void destroy_pair(pair *p) {
  pith_reducer_destroy(p->host);
  pith_reducer_destroy(p->device);
  pith_comm_destroy(p->comm);
}

static void check_twin(const pair *p, const twin *t, size_t index, unsigned parts, pattern kind) {
  static const char *const names[] = {"gradient", "moment", "variance", "parameter", "start"};
  char what[64];
  uint8_t *found = malloc(t->n * 4 + 4);
  for (int i = 0; i < 5; i++) {
    gpu_get(found, t->device[i], t->n * width_of(t, i));
    snprintf(what, sizeof what, "the %s with parts 0x%x, %zu off", names[i], parts, t->shift);
    check_values(t->host[i], found, t->n, width_of(t, i) == 4 ? PITH_F32 : t->dtype, what, "update", kind);
  }
  float *host = malloc(t->n * sizeof *host + 4), *device = gpu_memory(t->n * sizeof *device);
  CHECK_OK(pith_reducer_copy_residual(p->host, index, host, NULL));
  CHECK_OK(pith_reducer_copy_residual(p->device, index, device, NULL));
  GPU_CHECK(gpu.wait());
  gpu_get(found, device, t->n * sizeof *device);
  check_values(host, found, t->n, PITH_F32, "the residual", "update", kind);
  gpu_free(device);
  free(host);
  free(found);
}

static void check_update(size_t n, pith_dtype dtype, size_t shift, unsigned parts, pattern kind, size_t store) {
  twin t;
  make_twin(&t, n, dtype, shift, kind);
  pair p = make_pair(&t, 1, store);
  pith_update host = update_of(t.host, 0, parts), device = update_of(t.device, 0, parts);
  for (int step = 0; step < 2; step++) {
    CHECK_OK(pith_reducer_update(p.host, &host, 1, NULL));
    CHECK_OK(pith_reducer_update(p.device, &device, 1, NULL));
  }
  GPU_CHECK(gpu.wait());
  check_twin(&p, &t, 0, parts, kind);
  destroy_pair(&p);
  release_twin(&t);
}

TEST(updates_have_the_bits_of_the_cpu) {
  need_gpu();
  static const size_t lengths[] = {1, 2, 3, 4, 5, 255, 1023, 2048, 2049, 4099, 100000};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (int dtype = PITH_F32; dtype <= PITH_BF16; dtype++) {
      for (size_t shift = 0; shift < 3; shift++) {
        check_update(lengths[i], (pith_dtype)dtype, shift, ALL - 1, NORMAL, 0);
        check_update(lengths[i], (pith_dtype)dtype, shift, GRADIENT | VARIANCE | PARAMETER | RESIDUAL, NORMAL, 0);
      }
    }
  }
}

TEST(updates_of_packed_residuals_have_the_bits_of_the_cpu) {
  need_gpu();
  static const size_t lengths[] = {1, 31, 255, 256, 257, 2048, 4099, 100000};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (size_t store = 1; store < STORES; store++) {
      for (int dtype = PITH_F32; dtype <= PITH_BF16; dtype++) {
        check_update(lengths[i], (pith_dtype)dtype, i % 3, ALL - 1, NORMAL, store);
        check_update(lengths[i], (pith_dtype)dtype, 0, GRADIENT | VARIANCE | PARAMETER | RESIDUAL, NORMAL, store);
      }
    }
  }
  for (int kind = 0; kind < PATTERNS; kind++) {
    check_update(5000, PITH_F32, 0, ALL - 1, (pattern)kind, 1);
    check_update(5000, PITH_F32, 0, ALL - 1, (pattern)kind, 2);
  }
}

TEST(every_part_of_an_update_can_be_left_out) {
  need_gpu();
  for (unsigned parts = 0; parts < ALL; parts += quick() ? 7 : 1) {
    for (int dtype = PITH_F32; dtype <= PITH_BF16; dtype++) {
      check_update(3001, (pith_dtype)dtype, 0, parts, NORMAL, parts % STORES);
    }
  }
}

TEST(updates_of_any_values_have_the_bits_of_the_cpu) {
  need_gpu();
  for (int kind = 0; kind < PATTERNS; kind++) {
    for (int dtype = PITH_F32; dtype <= PITH_BF16; dtype++) {
      check_update(5000, (pith_dtype)dtype, 0, ALL - 1, (pattern)kind, 0);
    }
  }
}

/* More layers than one launch takes, of several types and sizes. */
TEST(many_layers_are_updated_in_one_call) {
  need_gpu();
  enum { COUNT = 150 };
  static twin twins[COUNT];
  static pith_update host[COUNT], device[COUNT];
  for (size_t i = 0; i < COUNT; i++) {
    make_twin(&twins[i], 1 + (size_t)(uniform() * 9000), (pith_dtype)(i % 3), i % 5 == 4, NORMAL);
    host[i] = update_of(twins[i].host, i, (unsigned)i % ALL);
    device[i] = update_of(twins[i].device, i, (unsigned)i % ALL);
  }
  pair p = make_pair(twins, COUNT, 0);
  CHECK_OK(pith_reducer_update(p.host, host, COUNT, NULL));
  CHECK_OK(pith_reducer_update(p.device, device, COUNT, NULL));
  GPU_CHECK(gpu.wait());
  for (size_t i = 0; i < COUNT; i++) {
    check_twin(&p, &twins[i], i, (unsigned)i % ALL, NORMAL);
    release_twin(&twins[i]);
  }
  destroy_pair(&p);
}

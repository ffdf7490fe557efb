/* The reducer: layers by name and rule, joined small ones, checkpoints that resume, slips that are told before the first step. */
#include <stdio.h>
#include <stdlib.h>

#include "ranks.h"
#include "test.h"

#define LAYERS 12

static const size_t shapes[LAYERS][2] = {{64, 32}, {1, 32}, {128, 64}, {1, 64}, {100, 100}, {7, 3},
                                         {1, 10},  {40, 60}, {1, 1},   {33, 65}, {2, 2},    {512, 16}};

static size_t size_of(size_t layer) { return shapes[layer][0] * shapes[layer][1]; }

static float gradient_of(int rank, uint64_t step, size_t layer, size_t i) {
  uint32_t h = (uint32_t)(i * 2654435761u + layer * 40503u + step * 97u + (uint64_t)rank * 1299721u);
  h ^= h >> 13;
  h *= 0x5bd1e995u;
  return (float)(int32_t)(h >> 16 & 0xfff) / 4096.0f - 0.5f;
}

static pith_reducer *make(pith_comm *comm, const char *rules) {
  pith_reducer *r;
  CHECK_OK(pith_reducer_create(comm, rules, 5, &r));
  for (size_t l = 0; l < LAYERS; l++) {
    char name[32];
    size_t index, flat = size_of(l);
    snprintf(name, sizeof name, "layer%zu.%s", l, shapes[l][0] == 1 ? "bias" : "weight");
    CHECK_OK(pith_reducer_add(r, name, shapes[l][0] == 1 ? &flat : shapes[l], shapes[l][0] == 1 ? 1 : 2, PITH_F32, &index));
    CHECK_EQ(index, l);
  }
  return r;
}

typedef struct gradients {
  float *layer[LAYERS];
} gradients;

static gradients take_step(pith_reducer *r, int rank, uint64_t step) {
  gradients g;
  for (size_t l = 0; l < LAYERS; l++) {
    g.layer[l] = malloc(size_of(l) * sizeof(float));
    for (size_t i = 0; i < size_of(l); i++) {
      g.layer[l][i] = gradient_of(rank, step, l, i);
    }
    CHECK_OK(pith_reducer_start(r, l, g.layer[l]));
  }
  CHECK_OK(pith_reducer_finish(r));
  return g;
}

static void release(gradients *g) {
  for (size_t l = 0; l < LAYERS; l++) {
    free(g->layer[l]);
  }
}

static double mean_of(int ranks, uint64_t step, size_t layer, size_t i) {
  double sum = 0;
  for (int r = 0; r < ranks; r++) {
    sum += gradient_of(r, step, layer, i);
  }
  return sum / ranks;
}

static void reduce_layers(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm), ranks = pith_comm_ranks(comm);
  pith_reducer *r = make(comm, argument);
  for (uint64_t step = 0; step < 3; step++) {
    gradients g = take_step(r, rank, step);
    for (size_t l = 0; l < LAYERS; l++) {
      pith_layer info;
      CHECK_OK(pith_reducer_layer(r, l, &info));
      double tolerance = strcmp(info.spec, "none") == 0 ? 1e-6 : strcmp(info.spec, "q:8") == 0 ? 0.02 : 10;
      for (size_t i = 0; i < size_of(l); i++) {
        CHECK_NEAR(g.layer[l][i], mean_of(ranks, step, l, i), tolerance);
      }
    }
    release(&g);
  }
  pith_reducer_destroy(r);
}

TEST(layers_become_their_means) {
  ranks_run("inproc", 3, 0, reduce_layers, "none");
  ranks_run("inproc", 1, 0, reduce_layers, "*=q:8");
  ranks_run("shm", 4, 0, reduce_layers, "layer2*=ef/topk:0.1;layer4*=ef/powersgd:2;*.bias=none;*=q:8");
  ranks_run("tcp", 2, 0, reduce_layers, "*=q:8");
}

static void check_layers(pith_comm *comm, void *argument) {
  (void)argument;
  pith_reducer *r = make(comm, "layer0*=q:2;*=ef/q:4");
  pith_layer info;
  CHECK_EQ(pith_reducer_layers(r), LAYERS);
  CHECK_OK(pith_reducer_layer(r, 0, &info));
  CHECK_STR(info.spec, "q:2");
  CHECK_OK(pith_reducer_layer(r, 1, &info));
  CHECK_STR(info.spec, "none"); /* one dimension */
  CHECK_OK(pith_reducer_layer(r, 2, &info));
  CHECK_STR(info.spec, "ef/q:4");
  CHECK_OK(pith_reducer_layer(r, 5, &info));
  CHECK_STR(info.spec, "none"); /* 21 values */
  CHECK_STATUS(pith_reducer_layer(r, LAYERS, &info), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_reducer_add(r, "layer3.bias", shapes[3], 2, PITH_F32, NULL), PITH_ERR_ARGUMENT);
  pith_reducer_destroy(r);
}

TEST(rules_give_every_layer_its_spec) { ranks_run("inproc", 1, 0, check_layers, NULL); }

/* ---- Checkpoints ------------------------------------------------------------------------------------------------- */

static void resume(pith_comm *comm, void *argument) {
  int rank = pith_comm_rank(comm);
  pith_reducer *one = make(comm, argument), *two = make(comm, argument);
  for (uint64_t step = 0; step < 3; step++) {
    gradients g = take_step(one, rank, step);
    release(&g);
  }
  pith_out saved = {malloc(pith_reducer_size(one)), pith_reducer_size(one), 0};
  CHECK_OK(pith_reducer_save(one, &saved));
  ((uint8_t *)saved.data)[saved.size - 1] ^= 1;
  pith_status damaged = pith_reducer_load(two, (pith_bytes){saved.data, saved.size});
  CHECK(damaged == PITH_ERR_CORRUPT || damaged == PITH_ERR_STATE);
  ((uint8_t *)saved.data)[saved.size - 1] ^= 1;
  CHECK_STATUS(pith_reducer_load(two, (pith_bytes){saved.data, saved.size - 1}), PITH_ERR_CORRUPT);
  CHECK_OK(pith_reducer_load(two, (pith_bytes){saved.data, saved.size}));
  for (uint64_t step = 3; step < 5; step++) {
    gradients a = take_step(one, rank, step), b = take_step(two, rank, step);
    for (size_t l = 0; l < LAYERS; l++) {
      CHECK_BYTES(a.layer[l], b.layer[l], size_of(l) * sizeof(float));
    }
    release(&a);
    release(&b);
  }
  free(saved.data);
  pith_reducer_destroy(one);
  pith_reducer_destroy(two);
}

TEST(a_checkpoint_resumes_bit_by_bit) {
  ranks_run("inproc", 2, 0, resume, "*=ef/q:2,round=stochastic");
  ranks_run("shm", 3, 0, resume, "layer4*=ef/powersgd:2;*=dgc:0.1");
}

/* ---- Slips ------------------------------------------------------------------------------------------------------- */

static void slip(pith_comm *comm, void *argument) {
  (void)argument;
  float x[64 * 32] = {0};
  pith_reducer *r = make(comm, "leyer*=q:2;*=q:4");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_SPEC);
  CHECK_ERROR_SAYS("matches none");
  pith_reducer_destroy(r);
  r = make(comm, pith_comm_rank(comm) == 1 ? "*=q:3" : "*=q:4");
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_MISMATCH);
  CHECK_ERROR_SAYS("rank 1");
  pith_reducer_destroy(r);
  r = make(comm, "*=q:4");
  CHECK_OK(pith_reducer_start(r, 0, x));
  CHECK_STATUS(pith_reducer_start(r, 0, x), PITH_ERR_STATE);
  CHECK_OK(pith_reducer_finish(r));
  pith_reducer_destroy(r);
}

TEST(slips_are_told_before_the_first_step) { ranks_run("inproc", 3, 0, slip, NULL); }

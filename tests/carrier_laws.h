/* SPDX-License-Identifier: Apache-2.0 */
/* Steps of a reducer over a carrier (wire.h), in main memory (multi/carrier_test.c) and on devices
 * (unit/cuda_reducer_test.c). */
#ifndef PITH_TESTS_CARRIER_LAWS_H
#define PITH_TESTS_CARRIER_LAWS_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "laws.h"
#include "wire.h"

#define LAYERS 9

static const size_t shapes[LAYERS][2] = {{64, 32},  {1, 32},  {300, 100}, {1, 700}, {7, 3},
                                         {1, 5000}, {40, 60}, {1, 1},     {128, 96}};

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static size_t size_of(size_t layer) { return shapes[layer][0] * shapes[layer][1]; }

static const pith_dtype dtypes[LAYERS] = {PITH_F32,  PITH_F32, PITH_F32, PITH_F16, PITH_F32,
                                          PITH_BF16, PITH_F32, PITH_F32, PITH_F32};

static void add_layers(pith_reducer *r) {
  for (size_t l = 0; l < LAYERS; l++) {
    char name[32];
    size_t flat = size_of(l), is_flat = shapes[l][0] == 1;
    snprintf(name, sizeof name, "layer%zu", l);
    CHECK_OK(pith_reducer_add(
        r, &(pith_layer){sizeof(pith_layer), name, is_flat ? &flat : shapes[l], is_flat ? 1 : 2, dtypes[l], NULL},
        NULL));
  }
  CHECK_OK(pith_reducer_add(r, &(pith_layer){sizeof(pith_layer), "wide", (size_t[]){50}, 1, PITH_F64, "f64 is exact"},
                            NULL));
}

typedef struct gradients {
  uint8_t *layer[LAYERS + 1];
} gradients;

static size_t bytes_of(size_t l) { return l == LAYERS ? 50 * sizeof(double) : size_of(l) * pith_dtype_size(dtypes[l]); }

static gradients make_gradients(int rank, uint64_t step) {
  gradients g;
  for (size_t l = 0; l <= LAYERS; l++) {
    g.layer[l] = malloc(bytes_of(l) + 1);
    for (size_t i = 0; l < LAYERS && i < size_of(l); i++) {
      uint32_t h = (uint32_t)(i * 2654435761u + l * 40503u + step * 97u + (uint64_t)rank * 1299721u);
      h = (h ^ h >> 13) * 0x5bd1e995u;
      float value = (float)(h >> 16 & 0xfff) / 4096.0f - 0.5f;
      law_put((pith_span){g.layer[l], size_of(l), dtypes[l]}, i, value);
    }
    for (size_t i = 0; l == LAYERS && i < 50; i++) {
      ((double *)(void *)g.layer[l])[i] = (double)i * (rank + 1) / 3;
    }
  }
  return g;
}

static void release(gradients *g) {
  for (size_t l = 0; l <= LAYERS; l++) {
    free(g->layer[l]);
  }
}

/* Layers come from the last to the first, as in a backward pass, or in an order of the rank's own. */
static pith_status take_step(pith_reducer *r, gradients *g, size_t turn) {
  for (size_t i = 0; i <= LAYERS; i++) {
    size_t l = (LAYERS - i + turn) % (LAYERS + 1);
    pith_status status = pith_reducer_start(r, l, g->layer[l]);
    if (status != PITH_OK) {
      return status;
    }
  }
  return pith_reducer_finish(r);
}

static inline void compare(const gradients *a, const gradients *b, const char *spec, uint64_t step) {
  for (size_t l = 0; l <= LAYERS; l++) {
    CHECK_MSG(memcmp(a->layer[l], b->layer[l], bytes_of(l)) == 0, "%s: layer %zu differs in step %d", spec, l,
              (int)step);
  }
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* Hosts that are summed first, on devices: the bits of the same algorithm in main memory, over the same comm. */
#ifndef PITH_TESTS_CUDA_HOSTS_LAWS_H
#define PITH_TESTS_CUDA_HOSTS_LAWS_H

#include "cuda/device_laws.h"
#include "device/hosts_carrier.h"
#include "reducer/reducer.h"

/* The comm asks for `hierarchical`. Two reducers, of the device and of the host, over several steps. */
static void law_levels(const law_world *w, const char *rules, pith_dtype dtype) {
  pith_layer layers[LAW_LAYERS];
  pith_reducer *device, *main_memory;
  law_set set = law_take(dtype);
  law_layers(dtype, layers);
  CHECK_OK(law_create(w, layers, LAW_LAYERS, rules, LAW_SEED, &device));
  CHECK(pith__hosts_of(&device->carrier));
  CHECK_OK(pith_reducer_create(w->comm, rules, LAW_SEED, &main_memory));
  for (size_t i = 0; i < LAW_LAYERS; i++) {
    CHECK_OK(pith_reducer_add(main_memory, &layers[i], NULL));
  }
  for (uint64_t step = 0; step < LAW_STEPS; step++) {
    void *found[LAW_LAYERS], *expected[LAW_LAYERS];
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      found[i] = law_gradient(w->rank, i, step, dtype);
      expected[i] = law_gradient(w->rank, i, step, dtype);
    }
    law_put(&set, found, dtype);
    CHECK_OK(law_allreduce(device, set.device));
    CHECK_OK(law_allreduce(main_memory, expected));
    law_get(&set, found, dtype);
    for (size_t i = 0; i < LAW_LAYERS; i++) {
      CHECK_MSG(memcmp(found[i], expected[i], law_n(i) * pith_dtype_size(dtype)) == 0, "%s, step %d: %s differs", rules,
                (int)step, law_names[i]);
      free(found[i]);
      free(expected[i]);
    }
  }
  pith_reducer_destroy(device);
  pith_reducer_destroy(main_memory);
  law_give(&set);
}

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's step in one kernel has the bytes of the kernels of its steps. */
#include "inputs.h"
#include "reduce_laws.h"

static void *take(size_t size) { return gpu_memory(size); }

static void put(void *to, const void *from, size_t size) {
  if (size) {
    gpu_put(to, from, size);
  }
}

static void get(void *to, const void *from, size_t size) {
  GPU_CHECK(gpu.wait());
  if (size) {
    gpu_get(to, from, size);
  }
}

static const reduce_memory reduce_device = {take, gpu_free, put, get};

static pattern chosen;

static float value(void) {
  int is_bad = (chosen == WITH_NAN || chosen == WITH_INF) && uniform() < 1e-3;
  return !is_bad ? value_of(chosen) : chosen == WITH_NAN ? NAN : -INFINITY;
}

TEST(one_kernel_has_the_bytes_of_the_steps) {
  static const char *const specs[][2] = {{"none", "none"},
                                         {"fp16", "fp16"},
                                         {"bf16", "bf16"},
                                         {"q:1", "q:1"},
                                         {"q:2", "q:2"},
                                         {"q:3", "q:3"},
                                         {"q:4", "q:4"},
                                         {"q:5", "q:5"},
                                         {"q:6", "q:6"},
                                         {"q:7", "q:7"},
                                         {"q:8", "q:8"},
                                         {"q:4,round=stochastic", "q:4,round=stochastic"},
                                         {"q:3,round=stochastic", "q:3,round=stochastic"},
                                         {"qsgd", "qsgd"},
                                         {"ef/q:4", "q:4"},
                                         {"ef/q:3", "q:3"},
                                         {"ef/q:4,round=stochastic", "q:4,round=stochastic"},
                                         {"ef/bf16", "bf16"},
                                         {"ef/qsgd", "qsgd"},
                                         {"momentum/q:4", "q:4"}};
  static const size_t lengths[] = {3, 4096, 20001, 140000};
  static const pattern kinds[] = {NORMAL, WIDE, ZEROS, CONSTANT, HUGE_ONES, TINY};
  need_gpu();
  size_t some = getenv("PITH_CUDA_QUICK") ? 2 : sizeof lengths / sizeof *lengths;
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    for (size_t l = 0; l < some; l++) {
      for (int ranks = 1; ranks <= 4; ranks++) {
        chosen = kinds[(s + l + (size_t)ranks) % (sizeof kinds / sizeof *kinds)];
        int rank = (int)((s + l) % (size_t)ranks);
        reduce_law(&(reduce_case){specs[s][0], specs[s][1], lengths[l], rank, ranks, value});
      }
    }
    chosen = NORMAL;
    reduce_law(&(reduce_case){specs[s][0], specs[s][1], 50000, 1, 3, value});
    chosen = s % 2 ? WITH_NAN : WITH_INF;
    reduce_law(&(reduce_case){specs[s][0], specs[s][1], 50000, 1, 3, value});
  }
}

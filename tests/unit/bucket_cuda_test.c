/* SPDX-License-Identifier: Apache-2.0 */
/* The owner's step of buckets on a device, without a device: one call has the bytes of its steps. The module is that of
 * tests/cuda/fake; tests/cuda/reduce_test.c has the same for kernels. */
#include "cuda/reduce_laws.h"

static void copy_to(void *to, const void *from, size_t size) { memcpy(to, from, size); }

static void *take(size_t size) { return aligned_alloc(256, (size + 255) / 256 * 256); }

static const reduce_memory reduce_device = {take, free, copy_to, copy_to};

static float value(void) { return (float)test_below(20001) / 10000.0f - 1.0f; }

TEST(one_call_has_the_bytes_of_its_steps) {
  static const char *const specs[][2] = {{"none", "none"},  {"bf16", "bf16"},    {"q:1", "q:1"},
                                         {"q:4", "q:4"},    {"q:8", "q:8"},      {"ef/q:4", "q:4"},
                                         {"ef/q:3", "q:3"}, {"ef/none", "none"}, {"momentum/q:4", "q:4"}};
  static const size_t lengths[] = {3, 1024, 9001, 40000};
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
    for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l++) {
      for (int ranks = 1; ranks <= 4; ranks++) {
        for (int rank = 0; rank < ranks; rank++) {
          reduce_law(&(reduce_case){specs[s][0], specs[s][1], lengths[l], rank, ranks, value});
        }
      }
    }
  }
}

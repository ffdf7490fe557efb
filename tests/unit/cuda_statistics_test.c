/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of gradients on a device, without a device: a module has the CPU work in place of kernels
 * (tests/cuda/fake). Which candidate is measured how, samples, sketches and tables are the real code.
 * tests/cuda/statistics_test.c has the same laws for a real device. */
#include "cuda/statistics_laws.h"

static void *device_copy(const void *values, size_t bytes) { return memcpy(malloc(bytes + 1), values, bytes); }

static void device_free(void *memory) { free(memory); }

/* What the fake module has: no random numbers, and no rotations. */
static const char candidates[] =
    "none;bf16;fp16;q:1;q:3;q:4;q:8;q:2,bucket=128;q:4,bucket=256;q:5,bucket=1024;q:4,bucket=64;q:4,tail=exact;"
    "ef/q:2;ef/topk:0.01;topk:0.1;ef/topk:0.001;topk:0.05,values=fp16;threshold:0.5;ef/powersgd:1;ef/powersgd:4;"
    "powersgd:7;sign,scale=mean";

static pith_cuda_space *space;
static pith_measurer *device;

static void open_device(void) {
  setenv("PITH_MODULE_PATH", FAKE_MODULE, 1);
  CHECK_OK(pith__cuda_space_create(NULL, NULL, &space));
  CHECK_OK(pith__cuda_measurer_create(space, &device));
}

static void close_device(void) {
  device->destroy(device);
  pith__cuda_space_destroy(space);
}

TEST_WITHIN(a_device_says_of_gradients_what_the_cpu_says, 120) {
  static const size_t shapes[][2] = {{64, 32}, {37, 113}, {300, 333}, {512, 640}};
  open_device();
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    for (int kind = 0; kind < LAW_KINDS; kind++) {
      law_same_statistics(device, candidates, shapes[i][0], shapes[i][1], PITH_F32, (law_values)kind, 0);
    }
    law_same_statistics(device, candidates, shapes[i][0], shapes[i][1], PITH_BF16, LAW_ROWS, 0);
    law_same_statistics(device, candidates, shapes[i][0], shapes[i][1], PITH_F16, LAW_NORMAL, 0);
  }
  close_device();
}

TEST(gradients_that_are_not_finite_are_left_out) {
  open_device();
  law_same_statistics(device, candidates, 100, 200, PITH_F32, LAW_NORMAL, NAN);
  law_same_statistics(device, candidates, 100, 200, PITH_BF16, LAW_NORMAL, INFINITY);
  close_device();
}

TEST(bins_have_as_many_values_as_on_the_cpu) {
  open_device();
  law_same_bins(space, 10001, PITH_F32, LAW_WIDE);
  law_same_bins(space, 10001, PITH_F16, LAW_ROWS);
  close_device();
}

/* Tables arrive when their event has been waited for, by whoever that is; many can be under way. */
TEST(many_tables_can_be_under_way) {
  enum { MANY = 100, N = 4096 };
  static const size_t shape[2] = {64, 64};
  open_device();
  pith_profile *p = law_profile(shape, "none;q:4;ef/topk:0.1", PITH_F32);
  static float x[MANY][N];
  static void *tickets[MANY];
  static pith_measurement m[MANY];
  p->space = device->space;
  for (size_t i = 0; i < MANY; i++) {
    law_fill(x[i], 64, 64, LAW_ROWS);
    CHECK_OK(pith__measurement_init(p, 0, (pith_cspan){x[i], N, PITH_F32}, NULL, 1, &m[i]));
    CHECK_OK(device->begin(device, &m[i], NULL, 0, &tickets[i]));
  }
  for (size_t i = 0; i < MANY; i++) {
    pith_measured found, expected;
    int is_done = 0;
    CHECK_OK(device->poll(device, tickets[i], &is_done));
    CHECK(is_done);
    device->take(device, tickets[i], &m[i], &found, NULL);
    CHECK_OK(pith__measure(&m[i], &expected));
    CHECK_MSG(fabs(found.norm - expected.norm) <= 1e-12 * expected.norm, "table %zu is another one's", i);
    device->drop(device, tickets[i]);
  }
  pith_profile_destroy(p);
  close_device();
}

TEST(codecs_are_timed_on_the_device) {
  static const size_t shape[2] = {64, 64};
  static const char *const specs[] = {"bf16", "q:4", "ef/topk:0.1", "ef/powersgd:4"};
  pith_codec *timed[5] = {NULL};
  static float x[4096];
  double seconds[5];
  pith_measurement m;
  pith_measured found;
  void *ticket;
  int is_done;
  open_device();
  pith_profile *p = law_profile(shape, "none;q:4", PITH_F32);
  p->space = device->space;
  law_fill(x, 64, 64, LAW_NORMAL);
  for (size_t k = 0; k < 4; k++) {
    CHECK_OK(pith_codec_create(specs[k], &timed[k]));
  }
  CHECK_OK(pith__measurement_init(p, 0, (pith_cspan){x, 4096, PITH_F32}, NULL, 1, &m));
  CHECK_OK(device->begin(device, &m, timed, 5, &ticket));
  CHECK_OK(device->poll(device, ticket, &is_done));
  device->take(device, ticket, &m, &found, seconds);
  for (size_t k = 0; k < 4; k++) {
    CHECK_MSG(seconds[k] > 0 && seconds[k] < 1e-3, "%s: %g", specs[k], seconds[k]);
    pith_codec_destroy(timed[k]);
  }
  CHECK(seconds[4] == 0); /* the one that is left out */
  pith_profile_destroy(p);
  close_device();
}

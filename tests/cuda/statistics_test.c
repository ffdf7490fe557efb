/* SPDX-License-Identifier: Apache-2.0 */
/* Statistics of gradients on the GPU beside those of the CPU. */
#include "gpu.h"
#include "inputs.h"
#include "statistics_laws.h"

static void *device_copy(const void *values, size_t bytes) {
  void *there = gpu_memory(bytes);
  gpu_put(there, values, bytes);
  return there;
}

static void device_free(void *memory) { gpu_free(memory); }

static pith_cuda_space *space;
static pith_measurer *device;

static void open_device(void) {
  need_gpu();
  CHECK_OK(pith__cuda_space_create(NULL, NULL, &space));
  CHECK_OK(pith__cuda_measurer_create(space, &device));
}

static void close_device(void) {
  device->destroy(device);
  pith__cuda_space_destroy(space);
}

/* All of mix, and what else has kernels: with random numbers, of whole tensors, rotated, behind memories. */
static const char *candidates(void) {
  static char text[16384];
  CHECK_OK(pith_plan_candidates("mix", text, sizeof text));
  strcat(text,
         ";fp16;q:4,bucket=64;q:4,round=stochastic;q:4,tail=exact;ef/q:2,bucket=4096;qsgd:7;terngrad;natural;tree8;"
         "sign,scale=mean;signmean;gq:8;hadamard/q:4;drive;randomk:0.01;threshold:0.5;adaptive:0.01;"
         "topk:0.01,values=q8;topk:0.01,select=sampled");
  return text;
}

TEST_WITHIN(statistics_of_a_gpu_are_those_of_the_cpu, 240) {
  static const size_t shapes[][2] = {{64, 32}, {37, 113}, {300, 333}, {768, 768}, {2304, 768}, {5, 200000}};
  open_device();
  for (size_t i = 0; i < (quick() ? 3 : sizeof shapes / sizeof *shapes); i++) {
    for (int kind = 0; kind < LAW_KINDS; kind++) {
      law_same_statistics(device, candidates(), shapes[i][0], shapes[i][1], PITH_F32, (law_values)kind, 0);
    }
    law_same_statistics(device, candidates(), shapes[i][0], shapes[i][1], PITH_BF16, LAW_ROWS, 0);
    law_same_statistics(device, candidates(), shapes[i][0], shapes[i][1], PITH_F16, LAW_NORMAL, 0);
  }
  close_device();
}

TEST_WITHIN(statistics_of_large_layers_are_of_the_same_sample, 240) {
  char text[16384];
  open_device();
  CHECK_OK(pith_plan_candidates("mix", text, sizeof text));
  law_same_statistics(device, text, quick() ? 512 : 6000, 1500, PITH_F32, LAW_ROWS, 0);
  close_device();
}

TEST(statistics_leave_out_what_is_not_finite) {
  open_device();
  law_same_statistics(device, candidates(), 100, 200, PITH_F32, LAW_NORMAL, NAN);
  law_same_statistics(device, candidates(), 100, 200, PITH_BF16, LAW_NORMAL, INFINITY);
  law_same_statistics(device, "q:4;ef/powersgd:4;ef/topk:0.01", 100, 200, PITH_F32, LAW_ROWS, -INFINITY);
  close_device();
}

TEST(bins_of_a_gpu_have_as_many_values) {
  open_device();
  static const size_t lengths[] = {1, 1023, 16385, 300001, 3000001};
  for (size_t i = 0; i < (quick() ? 3 : sizeof lengths / sizeof *lengths); i++) {
    for (int kind = 0; kind < LAW_KINDS; kind++) {
      law_same_bins(space, lengths[i], PITH_F32, (law_values)kind);
    }
    law_same_bins(space, lengths[i], PITH_F16, LAW_WIDE);
    law_same_bins(space, lengths[i], PITH_BF16, LAW_ROWS);
  }
  close_device();
}

/* The same gradient twice gives the same bits: what ranks add up depends on no order of threads. */
TEST(statistics_repeat) {
  enum { ROWS = 700, COLS = 900 };
  static const size_t shape[2] = {ROWS, COLS};
  static float x[ROWS * COLS];
  char text[16384];
  open_device();
  CHECK_OK(pith_plan_candidates("mix", text, sizeof text));
  law_fill(x, ROWS, COLS, LAW_ROWS);
  void *there = device_copy(x, sizeof x);
  pith_profile *p[2] = {law_profile(shape, text, PITH_F32), law_profile(shape, text, PITH_F32)};
  size_t count;
  for (int i = 0; i < 2; i++) {
    p[i]->space = device->space;
    law_measure(device, p[i], (pith_cspan){there, ROWS * COLS, PITH_F32}, NULL);
  }
  const double *a = pith_profile_values(p[0], &count), *b = pith_profile_values(p[1], &count);
  CHECK(memcmp(a, b, count * sizeof *a) == 0);
  pith_profile_destroy(p[0]);
  pith_profile_destroy(p[1]);
  device_free(there);
  close_device();
}

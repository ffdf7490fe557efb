/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Statistics of gradients on a device beside those of the CPU, on the same values and samples: for a made-up device
 * (unit/cuda_statistics_test.c) and a real one (cuda/statistics_test.c). The includer says how memory gets there:
 * device_copy() and device_free().
 */
#ifndef PITH_TESTS_CUDA_STATISTICS_LAWS_H
#define PITH_TESTS_CUDA_STATISTICS_LAWS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "device/cuda_statistics.h"
#include "profile/profile.h"
#include "test.h"

static void *device_copy(const void *values, size_t bytes);
static void device_free(void *memory);

typedef enum law_values { LAW_NORMAL, LAW_WIDE, LAW_ROWS, LAW_CONSTANT, LAW_TINY, LAW_ZEROS, LAW_KINDS } law_values;

static void law_fill(float *x, size_t rows, size_t cols, law_values kind) {
  float scale = 1;
  for (size_t i = 0; i < rows * cols; i++) {
    scale = kind == LAW_ROWS && i % cols == 0 ? (test_below(5) ? expf(2 * test_normal()) : 0) : scale;
    float v = test_normal();
    x[i] = kind == LAW_NORMAL     ? 1e-3f * v
           : kind == LAW_WIDE     ? ldexpf(v, (int)test_below(40) - 60)
           : kind == LAW_ROWS     ? scale * v
           : kind == LAW_CONSTANT ? 0.7f
           : kind == LAW_TINY     ? 1e-40f * v
                                  : 0.0f;
  }
}

static void law_narrow(const float *x, size_t n, pith_dtype dtype, void *out) {
  for (size_t i = 0; i < n; i++) {
    pith__span_put((pith_span){out, n, dtype}, i, x[i]);
  }
}

static pith_profile *law_profile(const size_t shape[2], const char *candidates, pith_dtype dtype) {
  pith_profile *profile;
  pith_layer layer = {sizeof(pith_layer), "layer", shape, 2, dtype, NULL};
  CHECK_OK(pith_profile_create(&layer, 1, candidates, &profile));
  return profile;
}

/* What a device says of a gradient, added to a profile, which has its space. */
static void law_measure(pith_measurer *device, pith_profile *p, pith_cspan there, const pith_ctx *ctx) {
  pith_measurement m;
  pith_measured found;
  void *ticket;
  int is_done = 0;
  CHECK_OK(pith__measurement_init(p, 0, there, ctx, 1, &m));
  CHECK_OK(device->begin(device, &m, NULL, 0, &ticket));
  while (!is_done) {
    CHECK_OK(device->poll(device, ticket, &is_done));
  }
  device->take(device, ticket, &m, &found, NULL);
  device->drop(device, ticket);
  CHECK_OK(pith__profile_add(p, &m, &found));
}

static void law_near(double expected, double found, double share, double most, const char *what, const char *spec,
                     const size_t shape[2], law_values kind) {
  int is_same = (isnan(expected) && isnan(found)) || fabs(found - expected) <= share * fabs(expected) + most;
  CHECK_MSG(is_same, "%zu × %zu, kind %d, %s of %s: %.9g, not %.9g", shape[0], shape[1], (int)kind, what, spec, found,
            expected);
}

static void law_compare(const pith_profile *cpu, const pith_profile *theirs, const size_t shape[2], law_values kind) {
  const double *a = pith__sums(cpu, 0), *b = pith__sums(theirs, 0);
  /* Bins of denormals are coarse: of their energies less is known. */
  double norm = a[PITH_SUM_NORM], share = kind == LAW_TINY ? 1e-2 : 1e-5;
  CHECK(a[PITH_SUM_SAMPLES] == b[PITH_SUM_SAMPLES]);
  CHECK(a[PITH_SUM_SKIPPED] == b[PITH_SUM_SKIPPED]);
  law_near(norm, b[PITH_SUM_NORM], 1e-10, 0, "norm", "", shape, kind);
  law_near(a[PITH_SUM_TOP], b[PITH_SUM_TOP], share, 0, "top", "", shape, kind);
  for (size_t c = 0; c < cpu->candidates; c++) {
    const pith_codec *codec = cpu->codec[c];
    int is_lowrank = codec->traits->nested != NULL, is_sparse = codec->traits->largest != NULL;
    /* Squares of f32 differences below 1e-45 are nothing. */
    double most = (is_lowrank || is_sparse ? share : 1e-13) * norm + 2e-45 * (double)(shape[0] * shape[1]);
    law_near(a[PITH_SUM_BYTES + c], b[PITH_SUM_BYTES + c], 0, 0, "bytes", codec->spec, shape, kind);
    law_near(pith__sum_errors(cpu, 0)[c], pith__sum_errors(theirs, 0)[c], is_lowrank ? 1e-3 : 1e-4, most, "error",
             codec->spec, shape, kind);
  }
}

/* Three samples, as in training; the second one has `bad` in it. */
static void law_same_statistics(pith_measurer *device, const char *candidates, size_t rows, size_t cols,
                                pith_dtype dtype, law_values kind, float bad) {
  size_t shape[2] = {rows, cols}, n = rows * cols;
  pith_profile *cpu = law_profile(shape, candidates, dtype), *theirs = law_profile(shape, candidates, dtype);
  float *x = malloc(n * sizeof *x);
  void *narrowed = malloc(n * sizeof *x);
  theirs->space = device->space;
  for (uint64_t step = 0; step < 3; step++) {
    pith_ctx ctx = PITH_CTX_INIT;
    ctx.seed = 9, ctx.step = 7 + 4 * step, ctx.rank = 1, ctx.ranks = 2;
    law_fill(x, rows, cols, kind);
    x[n / 3] = step == 1 && bad != 0 ? bad : x[n / 3];
    law_narrow(x, n, dtype, narrowed);
    void *there = device_copy(narrowed, n * pith_dtype_size(dtype));
    CHECK_OK(pith__profile_sample(cpu, 0, (pith_cspan){narrowed, n, dtype}, &ctx));
    law_measure(device, theirs, (pith_cspan){there, n, dtype}, &ctx);
    device_free(there);
  }
  law_compare(cpu, theirs, shape, kind);
  free(x);
  free(narrowed);
  pith_profile_destroy(cpu);
  pith_profile_destroy(theirs);
}

/* Bins of magnitudes have as many values as on the CPU. */
static void law_same_bins(const pith_cuda_space *space, size_t n, pith_dtype dtype, law_values kind) {
  enum { BINS = 0x8000 };
  float *x = malloc((n + 1) * sizeof *x);
  void *narrowed = malloc((n + 1) * sizeof *x), *zeros = calloc(1, PITH_GPU_STATISTICS_SPACE);
  uint64_t *expected = calloc(BINS, sizeof *expected), *found = calloc(BINS, sizeof *found);
  law_fill(x, 1, n, kind);
  law_narrow(x, n, dtype, narrowed);
  for (size_t i = 0; i < n; i++) {
    float v = pith__span_get((pith_cspan){narrowed, n, dtype}, i);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    expected[bits >> 16 & (BINS - 1)]++;
  }
  void *there = device_copy(narrowed, n * pith_dtype_size(dtype)),
       *room = device_copy(zeros, PITH_GPU_STATISTICS_SPACE);
  double *numbers = device_copy(zeros, 64);
  char text[256];
  pith_gpu_magnitudes task = {
      .values = there, .numbers = numbers, .space = room, .n = n, .tops = 1, .dtype = (uint8_t)dtype, .top = {n / 2}};
  CHECK_MSG(!space->gpu->magnitudes(&task, NULL, text), "%s", text);
  CHECK_OK(pith__space_copy((pith_space *)(uintptr_t)&space->base, found, room, BINS * sizeof *found));
  for (size_t bin = 0; bin < BINS; bin++) {
    CHECK_MSG(found[bin] == expected[bin], "bin %zu has %llu values, not %llu", bin, (unsigned long long)found[bin],
              (unsigned long long)expected[bin]);
  }
  device_free(there);
  device_free(room);
  device_free(numbers);
  free(x);
  free(narrowed);
  free(zeros);
  free(expected);
  free(found);
}

#endif

/* What the planner asks a GPU: errors of candidates, and how magnitudes are spread. Both against the CPU. */
#include "inputs.h"

static double cpu_error(const pith_codec *codec, const void *x, size_t n, pith_dtype dtype, const pith_ctx *ctx) {
  size_t bound = pith_codec_bound(codec, n);
  uint8_t *payload = malloc(bound);
  float *wide = malloc(4 * n), *back = malloc(4 * n);
  pith_out out = {payload, bound, 0};
  double error = 0;
  CHECK(pith_encode(codec, NULL, (pith_cspan){x, n, dtype}, &out, ctx) == PITH_OK);
  CHECK(pith_decode(codec, (pith_bytes){payload, out.size}, (pith_span){back, n, PITH_F32}, PITH_SET, ctx) == PITH_OK);
  for (size_t i = 0; i < n; i++) {
    uint32_t bits = value_bits(x, i, dtype);
    float v = dtype == PITH_F32   ? ((const float *)x)[i]
              : dtype == PITH_F16 ? pith__f16_to_f32((uint16_t)bits)
                                  : pith__bf16_to_f32((uint16_t)bits);
    error += ((double)v - back[i]) * ((double)v - back[i]);
  }
  free(payload);
  free(wide);
  free(back);
  return error;
}

static void check_errors(size_t n, pith_dtype dtype) {
  static const char *const list[] = {"q:1",
                                     "q:2",
                                     "q:3",
                                     "q:4",
                                     "q:5",
                                     "q:8",
                                     "q:4,bucket=64",
                                     "q:2,bucket=4096",
                                     "q:4,round=stochastic",
                                     "fp16",
                                     "bf16",
                                     "qsgd:7",
                                     "terngrad",
                                     "natural",
                                     "sign,scale=mean",
                                     "signmean",
                                     "tree8",
                                     "lloyd:2",
                                     "gq:8"};
  enum { COUNT = sizeof list / sizeof *list };
  pith_codec *codecs[COUNT];
  pith_cuda_item items[COUNT];
  double errors[COUNT];
  float *x = malloc(4 * n);
  void *narrowed = malloc(4 * n), *values = gpu_memory(4 * n);
  fill(x, n, NORMAL);
  narrow(x, n, dtype, narrowed);
  gpu_put(values, narrowed, n * pith_dtype_size(dtype));
  for (int i = 0; i < COUNT; i++) {
    CHECK(pith_codec_create(list[i], &codecs[i]) == PITH_OK);
    items[i] = (pith_cuda_item){.codec = codecs[i], .dtype = dtype, .n = n, .values = values, .ctx = PITH_CTX_INIT};
    items[i].ctx.seed = 9;
  }
  size_t space = pith_cuda_errors_workspace(items, COUNT);
  void *workspace = gpu_memory(space);
  double *found = gpu_memory(sizeof errors);
  CHECK_MSG(pith_cuda_errors(items, COUNT, found, workspace, space, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  gpu_get(errors, found, sizeof errors);
  for (int i = 0; i < COUNT; i++) {
    double expected = cpu_error(codecs[i], narrowed, n, dtype, &items[i].ctx);
    CHECK_MSG(fabs(errors[i] - expected) <= 1e-4 * expected + 1e-12, "%s of %zu values: %g, not %g", list[i], n,
              errors[i], expected);
    pith_codec_destroy(codecs[i]);
  }
  gpu_free(values);
  gpu_free(workspace);
  gpu_free(found);
  free(x);
  free(narrowed);
}

TEST_WITHIN(errors_of_candidates_are_those_of_the_cpu, 120) {
  need_gpu();
  check_errors(100003, PITH_F32);
  check_errors(777, PITH_F32);
  check_errors(9000, PITH_BF16);
}

static void check_magnitudes(pith_dtype dtype, pattern kind) {
  enum { N = 200001 };
  float *x = malloc(4 * N);
  uint16_t *narrowed = malloc(4 * N);
  uint64_t *counts = calloc(PITH_CUDA_BINS, 8), *expected = calloc(PITH_CUDA_BINS, 8),
           *there = gpu_memory(8 * PITH_CUDA_BINS);
  double *energies = calloc(PITH_CUDA_BINS, 8), *squares = calloc(PITH_CUDA_BINS, 8),
         *far = gpu_memory(8 * PITH_CUDA_BINS);
  void *values = gpu_memory(4 * N);
  fill(x, N, kind);
  narrow(x, N, dtype, narrowed);
  gpu_put(values, narrowed, N * pith_dtype_size(dtype));
  for (int i = 0; i < N; i++) {
    float v = dtype == PITH_F32   ? x[i]
              : dtype == PITH_F16 ? pith__f16_to_f32(narrowed[i])
                                  : pith__bf16_to_f32(narrowed[i]);
    uint32_t bits;
    memcpy(&bits, &v, 4);
    expected[bits >> 16 & 0x7fff]++;
    squares[bits >> 16 & 0x7fff] += (double)v * v;
  }
  CHECK_MSG(pith_cuda_magnitudes(values, dtype, N, there, far, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  gpu_get(counts, there, 8 * PITH_CUDA_BINS);
  gpu_get(energies, far, 8 * PITH_CUDA_BINS);
  for (int b = 0; b < 0x7f80; b++) {
    CHECK_MSG(counts[b] == expected[b], "bin %d has %llu values, not %llu", b, (unsigned long long)counts[b],
              (unsigned long long)expected[b]);
    CHECK_MSG(fabs(energies[b] - squares[b]) <= 0.009 * squares[b] + 1e-70, "bin %d has %g, not %g", b, energies[b],
              squares[b]);
  }
  gpu_free(values);
  gpu_free(there);
  gpu_free(far);
  free(x);
  free(narrowed);
  free(counts);
  free(expected);
  free(energies);
  free(squares);
}

TEST(magnitudes_are_counted_as_on_the_cpu) {
  need_gpu();
  check_magnitudes(PITH_F32, NORMAL);
  check_magnitudes(PITH_F32, WIDE);
  check_magnitudes(PITH_F32, CONSTANT);
  check_magnitudes(PITH_BF16, NORMAL);
  check_magnitudes(PITH_F16, NORMAL);
}

/* These need no device. */
TEST(candidates_that_cannot_be_measured_are_named) {
  pith_codec *codec;
  CHECK(pith_codec_create("hadamard/q:4", &codec) == PITH_OK);
  pith_cuda_item item = {.codec = codec, .n = 8};
  CHECK_EQ(pith_cuda_errors(&item, 1, NULL, NULL, 0, NULL), PITH_ERR_UNSUPPORTED);
  CHECK(strstr(pith_error(), "hadamard") != NULL);
  pith_codec_destroy(codec);
}

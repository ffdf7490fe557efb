/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that become means or votes on the GPU: the bits of pith_aggregate(), in every type, in place and not. */
#include "inputs.h"

/* The CPU's answer, in the type of the tensor. */
static void expect(const pith_codec *codec, const float *sums, size_t n, pith_dtype dtype, const pith_ctx *ctx,
                   void *out) {
  float *copy = malloc(n * sizeof *copy + 4);
  memcpy(copy, sums, n * sizeof *copy);
  CHECK_OK(pith_aggregate(codec, (pith_span){copy, n, PITH_F32}, ctx));
  narrow(copy, n, dtype, out);
  free(copy);
}

static void check_sums(const char *spec, size_t n, pith_dtype dtype, pattern kind, uint32_t ranks) {
  pith_codec *codec;
  CHECK_OK(pith_codec_create(spec, &codec));
  float *sums = malloc(n * sizeof *sums + 4);
  void *expected = malloc(4 * n + 4), *found = malloc(4 * n + 4), *device = gpu_memory(4 * n),
       *values = gpu_memory(4 * n);
  fill(sums, n, kind);
  for (size_t i = 0; i < n; i += 3) { /* ties */
    sums[i] = i % 2 ? 0.0f : -0.0f;
  }
  gpu_put(device, sums, 4 * n);
  pith_cuda_item item = {
      .size = sizeof(pith_cuda_item), .codec = codec, .dtype = dtype, .n = n, .values = values, .payload = device};
  item.ranks = ranks;
  expect(codec, sums, n, dtype, ITEM_CTX(item), expected);
  for (int in_place = 0; in_place <= (dtype == PITH_F32); in_place++) {
    item.values = in_place ? device : values;
    CHECK_OK(pith_cuda_aggregate(&item, 1, NULL));
    GPU_CHECK(gpu.wait());
    gpu_get(found, item.values, n * pith_dtype_size(dtype));
    check_values(expected, found, n, dtype, in_place ? "the mean in place" : "the mean", spec, kind);
  }
  gpu_free(device);
  gpu_free(values);
  free(sums);
  free(expected);
  free(found);
  pith_codec_destroy(codec);
}

TEST(means_and_votes_have_the_bits_of_the_cpu) {
  need_gpu();
  static const size_t lengths[] = {1, 2, 255, 4096, 4097, 100003};
  for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
    for (int dtype = PITH_F32; dtype <= PITH_BF16; dtype++) {
      check_sums("q:4", lengths[i], (pith_dtype)dtype, NORMAL, 3);
      check_sums("signsgd", lengths[i], (pith_dtype)dtype, NORMAL, 5);
    }
  }
  for (int kind = 0; kind < PATTERNS; kind++) {
    check_sums("none", 9001, PITH_F32, (pattern)kind, 7);
    check_sums("signsgd", 9001, PITH_BF16, (pattern)kind, 4);
  }
}

/* More tensors than one launch takes, of which some are empty and some begin at odd places. */
TEST(many_sums_become_votes_in_one_call) {
  need_gpu();
  enum { COUNT = 150, MOST = 5000 };
  static float x[COUNT * MOST];
  static pith_cuda_item items[COUNT];
  pith_codec *codec;
  CHECK_OK(pith_codec_create("signsgd", &codec));
  fill(x, COUNT * MOST, SPARSE);
  float *device = gpu_memory(sizeof x), *found = malloc(sizeof x);
  gpu_put(device, x, sizeof x);
  for (size_t i = 0; i < COUNT; i++) {
    size_t n = i % 10 == 9 ? 0 : (size_t)(uniform() * MOST);
    items[i] = (pith_cuda_item){.size = sizeof(pith_cuda_item),
                                .codec = codec,
                                .n = n,
                                .values = device + i * MOST,
                                .payload = device + i * MOST};
    items[i].offset = i;
  }
  CHECK_OK(pith_cuda_aggregate(items, COUNT, NULL));
  GPU_CHECK(gpu.wait());
  gpu_get(found, device, sizeof x);
  for (size_t i = 0; i < COUNT; i++) {
    for (size_t j = 0; j < MOST; j++) {
      float sum = x[i * MOST + j], vote = sum > 0 ? 1.0f : sum < 0 ? -1.0f : 0.0f;
      float wanted = j < items[i].n ? vote : sum;
      CHECK_MSG(found[i * MOST + j] == wanted, "tensor %zu, value %zu: %g, not %g", i, j, (double)found[i * MOST + j],
                (double)wanted);
    }
  }
  gpu_free(device);
  free(found);
  pith_codec_destroy(codec);
}

TEST(bad_sums_are_refused) {
  pith_codec *codec;
  float some[4] = {0};
  CHECK_OK(pith_codec_create("q:4", &codec));
  pith_cuda_item item = {.size = sizeof(pith_cuda_item), .codec = codec, .n = 4, .values = some};
  CHECK_STATUS(pith_cuda_aggregate(&item, 1, NULL), PITH_ERR_ARGUMENT);
  item.payload = (char *)some + 1;
  CHECK_STATUS(pith_cuda_aggregate(&item, 1, NULL), PITH_ERR_ARGUMENT);
  item.payload = some;
  item.dtype = PITH_I64;
  CHECK_STATUS(pith_cuda_aggregate(&item, 1, NULL), PITH_ERR_ARGUMENT);
  CHECK_STATUS(pith_cuda_aggregate(NULL, 1, NULL), PITH_ERR_ARGUMENT);
  item.codec = NULL;
  CHECK_STATUS(pith_cuda_aggregate(&item, 1, NULL), PITH_ERR_ARGUMENT);
  pith_codec_destroy(codec);
}

/* SPDX-License-Identifier: Apache-2.0 */
/* lossless on a device: any bits, into any type, at any address; and bytes that are no payload. */
#include "inputs.h"
#include "kernel/formats.h"

enum { MOST = 20000, GUARD = 64 };

typedef enum content { ANY_BITS, NAN_PAYLOADS, FEW_EXPONENTS, ONE_VALUE, USUAL_VALUES, CONTENTS } content;

static uint32_t random_bits(void) { return (uint32_t)(uniform() * 0x1p32); }

static void fill_bits(void *values, size_t n, pith_dtype type, content kind) {
  uint32_t exponent = type == PITH_F16 ? 0x7c00u : type == PITH_BF16 ? 0x7f80u : 0x7f800000u, one = random_bits();
  for (size_t i = 0; i < n; i++) {
    uint32_t any = random_bits(), close = (any & ~exponent) | (exponent / 2 & exponent);
    float x = (float)normal();
    uint32_t bits = kind == ONE_VALUE       ? one
                    : kind == NAN_PAYLOADS  ? any | exponent
                    : kind == FEW_EXPONENTS ? (i % 50 ? close : any)
                                            : any;
    if (kind == USUAL_VALUES) {
      narrow(&x, 1, type, &bits);
    }
    memcpy((uint8_t *)values + i * pith_dtype_size(type), &bits, pith_dtype_size(type));
  }
}

typedef struct setting {
  pith_codec *codec;
  void *values, *payload, *workspace;
  uint64_t *size;
  size_t bound, space;
} setting;

static setting open_setting(void) {
  setting s = {.codec = NULL};
  CHECK(pith_codec_create("lossless", &s.codec) == PITH_OK);
  s.bound = pith_codec_bound(s.codec, MOST) + GUARD;
  s.values = gpu_memory(4 * MOST + GUARD);
  s.payload = gpu_memory(s.bound + GUARD);
  s.size = gpu_memory(sizeof *s.size);
  pith_cuda_item item = {.size = sizeof item, .codec = s.codec, .n = MOST, .payload_size = s.size};
  s.space = pith_cuda_workspace(&item, 1);
  s.workspace = gpu_memory(s.space);
  return s;
}

static pith_cuda_item item_of(const setting *s, size_t n, pith_dtype type, size_t odd) {
  return (pith_cuda_item){.size = sizeof(pith_cuda_item),
                          .codec = s->codec,
                          .dtype = type,
                          .n = n,
                          .values = (uint8_t *)s->values + odd * pith_dtype_size(type),
                          .payload = (uint8_t *)s->payload + odd,
                          .payload_size = s->size};
}

static void check_bits(const setting *s, size_t n, pith_dtype type, content kind, size_t odd) {
  size_t width = pith_dtype_size(type);
  uint8_t *x = malloc(4 * MOST), *expected = malloc(s->bound), *found = malloc(s->bound);
  uint64_t size;
  pith_out out = {expected, s->bound, 0};
  pith_cuda_item item = item_of(s, n, type, odd);
  fill_bits(x, n, type, kind);
  gpu_put(item.values, x, n * width);
  gpu_fill(s->payload, 0xa5, s->bound + GUARD);
  CHECK(pith_encode(s->codec, NULL, (pith_cspan){x, n, type}, &out, NULL) == PITH_OK);
  CHECK_MSG(pith_cuda_encode(&item, 1, s->workspace, s->space, NULL) == PITH_OK, "%s", pith_error());
  GPU_CHECK(gpu.wait());
  gpu_get(&size, s->size, sizeof size);
  CHECK_EQ(size, out.size);
  gpu_get(found, item.payload, out.size + GUARD);
  for (size_t i = 0; i < out.size + GUARD; i++) {
    uint8_t wanted = i < out.size ? expected[i] : 0xa5;
    CHECK_MSG(found[i] == wanted, "%zu values of %s, kind %d: byte %zu of %zu is 0x%02x, not 0x%02x", n,
              pith_dtype_name(type), (int)kind, i, out.size, found[i], wanted);
  }
  gpu_fill(s->values, 0xa5, 4 * MOST + GUARD);
  CHECK(pith_cuda_decode(&item, 1, PITH_SET, s->workspace, s->space, NULL) == PITH_OK);
  GPU_CHECK(gpu.wait());
  gpu_get(found, item.values, n * width);
  CHECK_BYTES(found, x, n * width);
  free(x);
  free(expected);
  free(found);
}

TEST_WITHIN(lossless_bits_come_back_in_every_type, 300) {
  static const size_t lengths[] = {0, 1, 2, 3, 7, 17, 1023, 1024, 1025, 1027, 8192, 8193, 9216, MOST};
  need_gpu();
  setting s = open_setting();
  for (size_t l = 0; l < sizeof lengths / sizeof *lengths; l += quick() ? 3 : 1) {
    for (int type = PITH_F32; type <= PITH_BF16; type++) {
      for (int kind = 0; kind < CONTENTS; kind++) {
        check_bits(&s, lengths[l], (pith_dtype)type, (content)kind, (l + (size_t)kind) % 2);
      }
    }
  }
}

/* What reducers do: payloads of the gradients' type are added to sums in f32. */
TEST(lossless_payloads_are_decoded_into_any_type) {
  enum { N = 9001 };
  need_gpu();
  setting s = open_setting();
  uint8_t *x = malloc(4 * N), *before = malloc(4 * N), *expected = malloc(4 * N), *found = malloc(s.bound);
  for (int from = PITH_F32; from <= PITH_BF16; from++) {
    for (int to = PITH_F32; to <= PITH_BF16; to++) {
      for (int mode = PITH_SET; mode <= PITH_ADD; mode++) {
        size_t bytes = N * pith_dtype_size((pith_dtype)to);
        pith_out out = {found, s.bound, 0};
        pith_cuda_item item = item_of(&s, N, (pith_dtype)to, 0);
        fill_bits(x, N, (pith_dtype)from, USUAL_VALUES);
        fill_bits(before, N, (pith_dtype)to, USUAL_VALUES);
        memcpy(expected, before, bytes);
        CHECK(pith_encode(s.codec, NULL, (pith_cspan){x, N, (pith_dtype)from}, &out, NULL) == PITH_OK);
        CHECK(pith_decode(s.codec, (pith_bytes){found, out.size}, (pith_span){expected, N, (pith_dtype)to},
                          (pith_mode)mode, NULL) == PITH_OK);
        uint64_t size = out.size;
        gpu_put(item.payload, found, out.size);
        gpu_put(s.size, &size, sizeof size);
        gpu_put(item.values, before, bytes);
        CHECK(pith_cuda_decode(&item, 1, (pith_mode)mode, s.workspace, s.space, NULL) == PITH_OK);
        GPU_CHECK(gpu.wait());
        gpu_get(found, item.values, bytes);
        check_values(expected, found, N, (pith_dtype)to, "decoding", "lossless", NORMAL);
      }
    }
  }
  free(x);
  free(before);
  free(expected);
  free(found);
}

/* Under a checker of memory accesses this shows that nothing is read beyond them. What the CPU accepts has the same
 * values. */
TEST(lossless_bytes_that_are_damaged_are_safe) {
  enum { N = 5000 };
  need_gpu();
  setting s = open_setting();
  float *x = malloc(4 * N), *expected = malloc(4 * N), *found = malloc(4 * N);
  uint8_t *payload = malloc(s.bound);
  size_t refused = 0, accepted = 0;
  for (int turn = 0; turn < (quick() ? 60 : 400); turn++) {
    pith_dtype type = (pith_dtype)(turn % 3);
    pith_out out = {payload, s.bound, 0};
    fill_bits(x, N, type, (content)(turn % CONTENTS));
    CHECK(pith_encode(s.codec, NULL, (pith_cspan){x, N, type}, &out, NULL) == PITH_OK);
    uint64_t size = turn % 5 ? out.size : (uint64_t)(uniform() * (double)out.size);
    payload[(size_t)(uniform() * (turn % 2 ? 60.0 : (double)out.size))] ^= (uint8_t)(1 + random_bits() % 255);
    void *exact = gpu_memory(size + 1); /* a checker sees the first byte behind it */
    pith_cuda_item item = item_of(&s, N, PITH_F32, 0);
    item.payload = exact;
    gpu_put(exact, payload, size ? size : 1);
    gpu_put(s.size, &size, sizeof size);
    CHECK(pith_cuda_decode(&item, 1, PITH_SET, s.workspace, s.space, NULL) == PITH_OK);
    GPU_CHECK(gpu.wait());
    gpu_get(found, item.values, 4 * N);
    pith_status status =
        pith_decode(s.codec, (pith_bytes){payload, size}, (pith_span){expected, N, PITH_F32}, PITH_SET, NULL);
    if (status == PITH_OK) {
      check_values(expected, found, N, PITH_F32, "decoding", "lossless", NORMAL);
    }
    refused += status != PITH_OK, accepted += status == PITH_OK;
    gpu_free(exact);
  }
  CHECK(refused > 5 && accepted > 5);
  free(x);
  free(expected);
  free(found);
  free(payload);
}

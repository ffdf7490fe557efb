/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lossless: any bits come back, in every type, and in few bytes; any bytes are safe; and the mean over ranks is that of
 * values that were not encoded.
 */
#include <stdlib.h>
#include <string.h>

#include "kernel/formats.h"
#include "laws.h"
#include "ranks.h"

enum { LONGEST = 5000 };

/* ---- Bits -------------------------------------------------------------------------------------------------------- */

typedef enum content { ANY_BITS, NAN_PAYLOADS, SPECIAL, NORMAL_VALUES, ONE_VALUE, FEW_EXPONENTS, CONTENTS } content;

static uint32_t special_of(pith_dtype type) {
  static const uint32_t wide[] = {0,           0x80000000u, 1,           0x807fffffu, 0x7f800000u, 0xff800000u,
                                  0x7fc00000u, 0x7f800001u, 0xffbfffffu, 0x7f7fffffu, 0x00800000u, 0x3f800000u};
  static const uint16_t half[] = {0, 0x8000, 1, 0x83ff, 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xfdff, 0x7bff, 0x0400, 0x3c00};
  size_t i = test_below(sizeof wide / sizeof *wide);
  return type == PITH_F32 ? wide[i] : type == PITH_F16 ? half[i] : wide[i] >> 16;
}

static uint32_t bits_of(content kind, pith_dtype type) {
  uint32_t exponent = type == PITH_F16 ? 0x7c00u : type == PITH_BF16 ? 0x7f80u : 0x7f800000u;
  uint32_t any = (uint32_t)test_random();
  switch (kind) {
    case NAN_PAYLOADS:
      return any | exponent;
    case SPECIAL:
      return special_of(type);
    case FEW_EXPONENTS: /* two next to each other, and one in fifty far away */
      return test_below(50) ? (any & ~exponent) | (exponent / 2 & exponent) : any;
    default:
      return any;
  }
}

static pith_span tensor_of(content kind, size_t n, pith_dtype type) {
  pith_span span = law_tensor(LAW_NORMAL, n, type);
  uint32_t one = (uint32_t)test_random();
  for (size_t i = 0; i < n && kind != NORMAL_VALUES; i++) {
    uint32_t bits = kind == ONE_VALUE ? one : bits_of(kind, type);
    memcpy((uint8_t *)span.data + i * pith_dtype_size(type), &bits, pith_dtype_size(type));
  }
  return span;
}

TEST(all_bits_come_back_in_every_type) {
  for (int turn = 0; turn < 600; turn++) {
    pith_codec *codec = law_codec("lossless");
    pith_dtype type = (pith_dtype)(turn % 3);
    size_t n = law_length(LONGEST);
    pith_span src = tensor_of((content)(turn / 3 % CONTENTS), n, type), got = law_tensor(LAW_ZERO, n, type);
    pith_bytes in = law_encode(codec, NULL, src, law_ctx(0));
    law_decode_to(codec, in, got, PITH_SET, law_ctx(0));
    CHECK_BYTES(got.data, src.data, n * pith_dtype_size(type));
    law_sweep();
  }
}

/* Of a type that is not the payload's: the value itself, or the nearest. */
TEST(a_payload_is_decoded_into_any_type) {
  for (int turn = 0; turn < 90; turn++) {
    pith_codec *codec = law_codec("lossless"), *none = law_codec("none");
    size_t n = law_length(LONGEST);
    pith_span src = law_tensor((law_shape)(turn % LAW_SHAPES), n, (pith_dtype)(turn % 3));
    pith_bytes in = law_encode(codec, NULL, src, law_ctx(0)), plain = law_encode(none, NULL, src, law_ctx(0));
    for (int type = PITH_F32; type <= PITH_BF16; type++) {
      for (int mode = PITH_SET; mode <= PITH_ADD; mode++) {
        pith_span got = law_tensor(LAW_NORMAL, n, (pith_dtype)type), wanted = law_copy(got);
        law_decode_to(codec, in, got, (pith_mode)mode, law_ctx(0));
        law_decode_to(none, plain, wanted, (pith_mode)mode, law_ctx(0));
        CHECK_BYTES(got.data, wanted.data, n * pith_dtype_size((pith_dtype)type));
      }
    }
    law_sweep();
  }
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

TEST(payloads_are_small_and_never_larger_than_stored_values) {
  enum { N = 1 << 18 };
  static const double most[] = {27.5, 14.5, 11.5}; /* bits of normal values */
  pith_codec *codec = law_codec("lossless");
  for (int type = PITH_F32; type <= PITH_BF16; type++) {
    double heads = 4 + 8.0 * N / PITH_LOSSLESS_BLOCK, stored = (double)pith_dtype_size((pith_dtype)type) * N;
    pith_bytes normal = law_encode(codec, NULL, tensor_of(NORMAL_VALUES, N, (pith_dtype)type), law_ctx(0));
    pith_bytes noise = law_encode(codec, NULL, tensor_of(ANY_BITS, N, (pith_dtype)type), law_ctx(0));
    pith_bytes one = law_encode(codec, NULL, tensor_of(ONE_VALUE, N, (pith_dtype)type), law_ctx(0));
    double bits = 8.0 * (double)normal.size / N;
    CHECK_MSG(bits <= most[type], "%s: %.3f bits", pith_dtype_name((pith_dtype)type), bits);
    CHECK_MSG((double)noise.size <= stored + heads, "%zu bytes", noise.size);
    CHECK_EQ(one.size, (size_t)(4 + 12.0 * N / PITH_LOSSLESS_BLOCK));
  }
  law_sweep();
}

/* ---- Bytes from others ------------------------------------------------------------------------------------------- */

/* A payload with a byte changed is refused, or decodes to something; what it lies in is watched by law_sweep(). */
TEST(damaged_payloads_are_refused_or_decoded_within_their_borders) {
  size_t refused = 0, decoded = 0;
  for (int turn = 0; turn < 3000; turn++) {
    pith_codec *codec = law_codec("lossless");
    size_t n = 1 + test_below(3000);
    pith_span src = tensor_of((content)(turn % CONTENTS), n, (pith_dtype)(turn % 3)), dst = law_tensor(LAW_ZERO, n, 0);
    pith_bytes whole = law_encode(codec, NULL, src, law_ctx(0));
    size_t size = turn % 2 ? whole.size : test_below(whole.size), head = size < 40 ? size : 40;
    uint8_t *bytes = law_bytes(size, test_below(8));
    pith_ctx ctx = law_ctx(0);
    memcpy(bytes, whole.data, size);
    if (size) {
      bytes[test_below(turn % 3 ? size : head)] ^= (uint8_t)(1 + test_below(255));
    }
    pith_status status = pith_decode(codec, (pith_bytes){bytes, size}, dst, PITH_SET, &ctx);
    CHECK(status == PITH_OK || status == PITH_ERR_CORRUPT);
    refused += status != PITH_OK, decoded += status == PITH_OK;
    for (size_t i = 0; i < n && status != PITH_OK; i++) {
      CHECK(law_at(dst, i) == 0); /* nothing was written */
    }
    law_sweep();
  }
  CHECK(refused > 100 && decoded > 100);
}

/* ---- Ranks ------------------------------------------------------------------------------------------------------- */

typedef struct mean_case {
  size_t n;
  pith_dtype type;
  const char *algorithm;
  uint64_t seed;
} mean_case;

static void fill(void *values, const mean_case *c, uint64_t rank) {
  uint64_t state = c->seed + 1000 * rank + 1;
  for (size_t i = 0; i < c->n; i++) {
    float x = 0;
    for (int k = 0; k < 4; k++) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      x += (float)(int32_t)(state >> 32) * 0x1p-31f;
    }
    law_put((pith_span){values, c->n, c->type}, i, i % 97 == 0 ? -0.0f : x * (i % 7 ? 1e-3f : 1e-12f));
  }
}

/* Sums are in rank order either way. */
static void mean_of_rank(pith_comm *comm, void *of) {
  const mean_case *c = of;
  size_t bytes = c->n * pith_dtype_size(c->type);
  uint8_t *src = malloc(bytes + 1), *exact = malloc(bytes + 1), *coded = malloc(bytes + 1);
  pith_codec *none, *lossless;
  CHECK_OK(pith_codec_create("none", &none));
  CHECK_OK(pith_codec_create("lossless", &lossless));
  fill(src, c, (uint64_t)pith_comm_rank(comm));
  pith_call call = PITH_CALL_INIT;
  call.codec = none;
  CHECK_OK(pith_allreduce(comm, (pith_cspan){src, c->n, c->type}, (pith_span){exact, c->n, c->type}, PITH_MEAN, &call,
                          NULL));
  call.codec = lossless;
  call.algorithm = c->algorithm;
  CHECK_OK(pith_allreduce(comm, (pith_cspan){src, c->n, c->type}, (pith_span){coded, c->n, c->type}, PITH_MEAN, &call,
                          NULL));
  CHECK_BYTES(coded, exact, bytes);
  pith_codec_destroy(none);
  pith_codec_destroy(lossless);
  free(src);
  free(exact);
  free(coded);
}

TEST(the_mean_is_that_of_uncompressed_values_bit_for_bit) {
  static const char *const algorithms[] = {NULL, "sra", "gather"};
  static const size_t lengths[] = {1, 1000, 5000, 300000};
  for (int ranks = 2; ranks <= 4; ranks++) {
    for (size_t i = 0; i < 12; i++) {
      mean_case c = {lengths[i % 4], (pith_dtype)(i / 4), algorithms[(i + (size_t)ranks) % 3], test_random()};
      ranks_run("inproc", ranks, 0, mean_of_rank, &c);
    }
  }
}

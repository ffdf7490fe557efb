/* SPDX-License-Identifier: Apache-2.0 */
/* Laws that hold for all sparsifiers, and bytes that are not payloads. */
#include "prop/sparse_coder.h"

/* ---- Laws of all of them ----------------------------------------------------------------------------------------- */

TEST(bytes_do_not_depend_on_the_isa_or_on_what_was_there_before) {
  pith_isa before = pith_isa_current();
  for (int round = 0; round < 300; round++) {
    coder c = coder_of(every_spec[round % SPECS]);
    pith_cspan src = tensor((shape)test_below(SHAPES), some_length(round), (pith_dtype)test_below(3));
    pith_bytes first = encode(&c, src);
    pith_span wanted = decoded(&c, first, src.n);
    for (pith_isa isa = PITH_ISA_SCALAR; isa < PITH_ISA_COUNT; isa++) {
      if (!pith_isa_available(isa)) {
        continue;
      }
      CHECK_OK(pith_isa_select(isa));
      pith_bytes in = encode(&c, src);
      pith_span got = decoded(&c, in, src.n);
      CHECK_EQ(in.size, first.size);
      CHECK_BYTES(in.data, first.data, in.size);
      CHECK_BYTES(got.data, wanted.data, src.n * sizeof(float));
      free(got.data);
      release(in);
    }
    CHECK_OK(pith_isa_select(before));
    free(wanted.data);
    release(first);
    free((void *)src.data);
  }
}

TEST(what_travelled_and_what_stayed_is_the_input) {
  static const char *const exact[] = {"topk:0.05", "topk:0.02,select=fit", "threshold:0.7", "randomk:0.1"};
  for (int round = 0; round < 200; round++) {
    coder c = coder_of(exact[round % 4]);
    pith_cspan src = tensor((shape)test_below(SHAPES), some_length(round), PITH_F32);
    pith_bytes in = encode(&c, src);
    pith_span left = copy_of(src), cleared = copy_of(src), got = decoded(&c, in, src.n);
    CHECK_OK(decode(&c, in, left, PITH_APPLY_SUB));
    CHECK_OK(decode(&c, in, cleared, PITH_APPLY_CLEAR));
    for (size_t i = 0; i < src.n; i++) {
      float x = pith__span_get(src, i);
      CHECK(at(got, i) == 0 || at(got, i) == x);
      CHECK(at(left, i) + at(got, i) == x);
      CHECK(at(left, i) == at(cleared, i));
    }
    free(left.data);
    free(cleared.data);
    free(got.data);
    release(in);
    free((void *)src.data);
  }
}

TEST(adding_and_subtracting_round_once_in_every_type) {
  for (int round = 0; round < 200; round++) {
    coder c = coder_of(every_spec[round % SPECS]);
    size_t n = test_below(3000);
    pith_cspan src = tensor(NORMAL, n, PITH_F32), old = tensor(NORMAL, n, (pith_dtype)test_below(3));
    pith_bytes in = encode(&c, src);
    pith_span plain = decoded(&c, in, n), sum = copy_of(old), difference = copy_of(old), wanted = copy_of(old);
    CHECK_OK(decode(&c, in, sum, PITH_APPLY_ADD));
    CHECK_OK(decode(&c, in, difference, PITH_APPLY_SUB));
    for (size_t i = 0; i < n; i++) {
      pith__span_put(wanted, i, pith__span_get(old, i) + at(plain, i));
      CHECK(at(sum, i) == at(wanted, i));
      pith__span_put(wanted, i, pith__span_get(old, i) - at(plain, i));
      CHECK(at(difference, i) == at(wanted, i));
    }
    free(plain.data);
    free(sum.data);
    free(difference.data);
    free(wanted.data);
    release(in);
    free((void *)src.data);
    free((void *)old.data);
  }
}

TEST(one_bad_value_is_seen) {
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (int round = 0; round < 400; round++) {
    coder c = coder_of(every_spec[round % SPECS]);
    size_t n = 1 + some_length(round), nans = 0;
    pith_cspan src = tensor((shape)test_below(SHAPES), n, (pith_dtype)test_below(3));
    pith__span_put((pith_span){(void *)src.data, n, src.dtype}, test_below(n), bad[round % 3]);
    pith_bytes in = encode(&c, src);
    pith_span got = decoded(&c, in, n);
    for (size_t i = 0; i < n; i++) {
      nans += isnan(at(got, i)) != 0;
      CHECK(!isinf(at(got, i)));
    }
    CHECK_MSG(nans > 0, "%s hides a bad value among %zu", every_spec[round % SPECS], n);
    free(got.data);
    release(in);
    free((void *)src.data);
  }
}

/* ---- Bytes that are not payloads --------------------------------------------------------------------------------- */

/* Either it decodes, or it is refused as corrupt and nothing is touched. */
static void check_any_bytes(const coder *c, const uint8_t *bytes, size_t size, size_t n) {
  uint8_t *exact = malloc(size + 1);
  memcpy(exact, bytes, size);
  pith_span dst = floats(n), before = floats(n);
  memset(dst.data, 0x11, n * sizeof(float));
  memset(before.data, 0x11, n * sizeof(float));
  pith_status status = decode(c, (pith_bytes){exact, size}, dst, (pith_apply)test_below(4));
  if (status != PITH_OK) {
    CHECK_EQ(status, PITH_ERR_CORRUPT);
    CHECK_BYTES(dst.data, before.data, n * sizeof(float));
  }
  free(dst.data);
  free(before.data);
  free(exact);
}

static void damage(uint8_t *bytes, size_t size) {
  for (size_t changes = 1 + test_below(3); size > 0 && changes > 0; changes--) {
    size_t where = test_below(test_below(2) ? size : size < 24 ? size : 24);
    bytes[where] = test_below(2) ? (uint8_t)test_random() : (uint8_t)(bytes[where] ^ 1u << test_below(8));
  }
}

TEST(damaged_payloads_decode_or_are_refused) {
  for (int round = 0; round < 6000; round++) {
    coder c = coder_of(every_spec[round % SPECS]);
    size_t n = test_below(600);
    pith_cspan src = tensor((shape)test_below(SHAPES), n, PITH_F32);
    pith_bytes in = encode(&c, src);
    uint8_t *bytes = malloc(in.size + 9);
    memset(bytes, 0, in.size + 9);
    memcpy(bytes, in.data, in.size);
    damage(bytes, round % 3 ? in.size : 0);
    size_t size = round % 4 ? in.size : test_below(in.size + 9);
    check_any_bytes(&c, bytes, size, test_below(8) ? n : test_below(600));
    free(bytes);
    release(in);
    free((void *)src.data);
  }
}

TEST(random_bytes_decode_or_are_refused) {
  for (int round = 0; round < 20000; round++) {
    coder c = coder_of(every_spec[round % SPECS]);
    uint8_t bytes[300] = {0};
    size_t size = test_below(sizeof bytes), start = round % 2 ? 0 : 16;
    for (size_t i = start; i < size; i++) {
      bytes[i] = (uint8_t)(test_random() & test_random());
    }
    bytes[0] = (uint8_t)test_below(5);
    bytes[1] = (uint8_t)test_below(7);
    bytes[8] = (uint8_t)test_random();
    check_any_bytes(&c, bytes, size, test_below(400));
  }
}

TEST(every_cut_short_payload_is_refused) {
  for (size_t i = 0; i < SPECS; i++) {
    coder c = coder_of(every_spec[i]);
    pith_cspan src = tensor(NORMAL, 500, PITH_F32);
    pith_bytes in = encode(&c, src);
    pith_span dst = floats(500);
    for (size_t size = 0; size < in.size; size++) {
      CHECK_STATUS(decode(&c, (pith_bytes){in.data, size}, dst, PITH_APPLY_SET), PITH_ERR_CORRUPT);
    }
    uint8_t *longer = malloc(in.size + 1);
    memcpy(longer, in.data, in.size);
    longer[in.size] = 0;
    CHECK_STATUS(decode(&c, (pith_bytes){longer, in.size + 1}, dst, PITH_APPLY_SET), PITH_ERR_CORRUPT);
    free(longer);
    free(dst.data);
    release(in);
    free((void *)src.data);
  }
}

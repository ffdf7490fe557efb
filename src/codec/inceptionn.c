/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inceptionn: as few bits for each value as keep its error within a bound. A tag of 2 bits says what follows for it:
 * nothing (0), a signed multiple of 2·bound in 8 or in 16 bits, or the f32 itself.
 *
 * Block: the tags of all its values, then what follows for each, in order.
 */
#include "codec/block.h"

enum { INCEPTIONN_BOUND, INCEPTIONN_BUCKET };

static const pith_param inceptionn_params[] = {
    {sizeof(pith_param), "bound", PITH_PARAM_REAL, 1e-30, 1e30, "0.0009765625", NULL, "largest error of a value"},
    PITH_PARAM_BUCKET("512"),
    {0},
};

static pith_status inceptionn_check(const pith_value *a) {
  return pith__check_bucket("inceptionn", a[INCEPTIONN_BUCKET].i);
}

static size_t inceptionn_block(const pith_value *a) { return (size_t)a[INCEPTIONN_BUCKET].i; }

static size_t tags_size(size_t n) { return pith__packed_size(n, 2); }

static size_t inceptionn_bound(const pith_value *a, size_t n) {
  (void)a;
  return tags_size(n) + 4 * n;
}

/* The kernels compare in f32: an error is at most `bound` exactly when it is at most the float at or below that. */
static float bound_below(double bound) {
  float below = (float)bound;
  return (double)below > bound ? nextafterf(below, 0.0f) : below;
}

static float step_of(const pith_value *a) { return (float)(2 * a[INCEPTIONN_BOUND].f); }

static size_t inceptionn_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                                const pith_ctx *ctx) {
  (void)index, (void)ctx;
  float bound = bound_below(a[INCEPTIONN_BOUND].f);
  return tags_size(n) + pith__kernels()->bounded_pack(x, n, bound, step_of(a), out, out + tags_size(n));
}

/* What follows 32 tags: a byte for a low bit that is set, two for a high one, and one more for both. */
static size_t bytes_behind(uint64_t tags) {
  const uint64_t ones = 0x5555555555555555u, pairs = 0x3333333333333333u, nibbles = 0x0f0f0f0f0f0f0f0fu;
  uint64_t low = tags & ones, high = tags >> 1 & ones, both = low & high;
  uint64_t of_two = ((low & pairs) + (low >> 2 & pairs)) + 2 * ((high & pairs) + (high >> 2 & pairs)) +
                    ((both & pairs) + (both >> 2 & pairs));
  uint64_t of_four = (of_two & nibbles) + (of_two >> 4 & nibbles);
  return (size_t)(of_four * 0x0101010101010101u >> 56);
}

static size_t words_size(const uint8_t *tags, size_t n) {
  size_t size = 0;
  for (size_t i = 0, count = tags_size(n); i < count; i += sizeof(uint64_t)) {
    uint64_t next = 0;
    memcpy(&next, tags + i, pith__least(sizeof next, count - i));
    size += bytes_behind(next);
  }
  return size;
}

static size_t inceptionn_check_block(const pith_value *a, pith_bytes in, size_t n) {
  (void)a;
  const uint8_t *tags = in.data;
  size_t size = tags_size(n);
  if (size > in.size) {
    return 0;
  }
  size += words_size(tags, n);
  int unused = n % 4 ? tags[n / 4] >> (n % 4 * 2) : 0;
  return size <= in.size && !unused ? size : 0;
}

static void inceptionn_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode,
                              uint64_t index, const pith_ctx *ctx) {
  (void)index, (void)ctx;
  const uint8_t *words = in + tags_size(n);
  pith__kernels()->bounded_unpack(in, words, words + words_size(in, n), n, step_of(a), mode, dst);
}

const pith_codec_ops pith__codec_inceptionn = {
    .size = sizeof(pith_codec_ops),
    .name = "inceptionn",
    .family = "quantization",
    .summary = "0, 8, 16 or 32 bits for each value: the fewest that keep its error within the bound",
    .bits = "2 + 0, 8, 16 or 32",
    .origin = "Li 2018",
    .detail = "two bits for each value that say whether 0, 8, 16 or 32 bits of it follow",
    .use = "where every value must be within a known error; the bytes depend on the data",
    .wire_id = PITH_WIRE_INCEPTIONN,
    .caps = PITH_CAP_CHUNKED,
    .survey = 1,
    .params = inceptionn_params,
    .check = inceptionn_check,
    .block = inceptionn_block,
    .block_bound = inceptionn_bound,
    .encode_block = inceptionn_encode,
    .check_block = inceptionn_check_block,
    .decode_block = inceptionn_decode,
};

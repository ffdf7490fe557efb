/*
 * inceptionn: as few bits for each value as keep its error within a bound. A tag of 2 bits says what follows for it:
 * nothing (0), a signed multiple of 2·bound in 8 or in 16 bits, or the f32 itself.
 *
 * Block: the tags of all its values, then what follows for each, in order. The loops are scalar: where a value's bytes
 * start depends on all values before it.
 */
#include "codec/block.h"

enum { INCEPTIONN_BOUND, INCEPTIONN_BUCKET };
enum { TAG_ZERO, TAG_8, TAG_16, TAG_32 };
static const uint8_t tag_bytes[4] = {0, 1, 2, 4};

static const pith_param inceptionn_params[] = {
    {"bound", PITH_PARAM_REAL, 1e-30, 1e30, "0.0009765625", NULL, "largest error of a value"},
    PITH_PARAM_BUCKET("512"),
    {0},
};

static pith_status inceptionn_check(const pith_value *a) { return pith__check_bucket("inceptionn", a[INCEPTIONN_BUCKET].i); }

static size_t inceptionn_block(const pith_value *a) { return (size_t)a[INCEPTIONN_BUCKET].i; }

static size_t tags_size(size_t n) { return (n + 3) / 4; }

static size_t inceptionn_bound(const pith_value *a, size_t n) {
  (void)a;
  return tags_size(n) + 4 * n;
}

/* The multiple of `step` nearest to x if it fits the limit and keeps the error, else INT32_MIN. */
static int32_t multiple(float x, double bound, float step, int32_t limit) {
  double count = nearbyint((double)x / step);
  if (!(fabs(count) <= limit)) {
    return INT32_MIN;
  }
  float decoded = (float)count * step;
  return fabs((double)x - decoded) <= bound ? (int32_t)count : INT32_MIN;
}

/* Writes what follows the tag and returns the tag. */
static int put_value(float x, double bound, float step, uint8_t **out) {
  if (fabs((double)x) <= bound) {
    return TAG_ZERO;
  }
  int32_t count = multiple(x, bound, step, INT16_MAX);
  if (count == INT32_MIN) {
    pith__put_f32(*out, isfinite(x) ? x : pith__nan());
    *out += 4;
    return TAG_32;
  }
  int small = count >= -INT8_MAX && count <= INT8_MAX;
  int16_t wide = (int16_t)count;
  memcpy(*out, &wide, small ? 1 : 2);
  *out += small ? 1 : 2;
  return small ? TAG_8 : TAG_16;
}

static size_t inceptionn_encode(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index, const pith_ctx *ctx) {
  (void)index, (void)ctx;
  double bound = a[INCEPTIONN_BOUND].f;
  uint8_t *tail = out + tags_size(n);
  memset(out, 0, tags_size(n));
  for (size_t i = 0; i < n; i++) {
    out[i / 4] |= (uint8_t)(put_value(x[i], bound, (float)(2 * bound), &tail) << (i % 4 * 2));
  }
  return (size_t)(tail - out);
}

static int tag_at(const uint8_t *tags, size_t i) { return tags[i / 4] >> (i % 4 * 2) & 3; }

static size_t inceptionn_check_block(const pith_value *a, pith_bytes in, size_t n) {
  (void)a;
  size_t size = tags_size(n);
  if (size > in.size) {
    return 0;
  }
  for (size_t i = 0; i < n; i++) {
    size += tag_bytes[tag_at(in.data, i)];
  }
  int unused = n % 4 ? ((const uint8_t *)in.data)[n / 4] >> (n % 4 * 2) : 0;
  return size <= in.size && !unused ? size : 0;
}

static float take_value(int tag, float step, const uint8_t *in) {
  int16_t wide;
  switch (tag) {
    case TAG_8:
      return (float)(int8_t)*in * step;
    case TAG_16:
      memcpy(&wide, in, sizeof wide);
      return (float)wide * step;
    case TAG_32:
      return pith__get_f32(in);
    default:
      return 0.0f;
  }
}

static void inceptionn_decode(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                              const pith_ctx *ctx) {
  (void)index, (void)ctx;
  float step = (float)(2 * a[INCEPTIONN_BOUND].f);
  const uint8_t *tail = in + tags_size(n);
  for (size_t i = 0; i < n; i++) {
    int tag = tag_at(in, i);
    float value = take_value(tag, step, tail);
    dst[i] = mode == PITH_ADD ? dst[i] + value : value;
    tail += tag_bytes[tag];
  }
}

const pith_codec_ops pith__codec_inceptionn = {
    .size = sizeof(pith_codec_ops),
    .name = "inceptionn",
    .family = "quantization",
    .summary = "0, 8, 16 or 32 bits for each value: the fewest that keep its error within the bound",
    .bits = "2 + 0, 8, 16 or 32",
    .origin = "Li 2018",
    .wire_id = 12,
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

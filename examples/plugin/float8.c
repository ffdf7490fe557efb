/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A codec from outside: `float8` casts to 8-bit floats (e4m3: sign, four bits of exponent, three of mantissa), with a
 * scale for each bucket that maps its largest value to the largest of the type. docs/adding-a-codec.md walks through
 * this file.
 *
 * A payload block is the scale (f32, little endian) and one byte for each value.
 */
#include <math.h>
#include <string.h>

#include <pith/plugin.h>

static const float largest = 448; /* of e4m3: 1.75 · 2^8 */

static const pith_param params[] = {
    {sizeof(pith_param), "bucket", PITH_PARAM_INT, 16, 65536, "512", NULL, "values that share a scale"},
    {.key = NULL},
};

/* ---- One value --------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

static float float_of(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

/* To the nearest, ties to even. The code for NaN is never used: the scale says that a bucket is not finite. */
static uint8_t to_e4m3(float x) {
  const uint32_t least_normal = 0x3c800000u /* 2^-6 */, ulp_is_step = 0x46800000u /* 2^14, whose ulp is 2^-9 */;
  const uint32_t top = 0x7e; /* 448 */
  uint32_t u = bits_of(x), sign = (u >> 24) & 0x80u, magnitude = u & 0x7fffffffu, code;
  if (magnitude < least_normal) { /* a multiple of 2^-9: the addition rounds */
    code = bits_of(float_of(magnitude) + float_of(ulp_is_step)) - ulp_is_step;
  } else {
    uint32_t odd = (magnitude >> 20) & 1u;
    code = ((magnitude + 0x7ffffu + odd) >> 20) - (120u << 3);
  }
  return (uint8_t)(sign | (code < top ? code : top));
}

/* Shifted into place the exponent is too small by 120: a multiplication corrects it, subnormals included. */
static float of_e4m3(uint8_t code) {
  float magnitude = float_of((uint32_t)(code & 0x7fu) << 20) * 0x1p120f;
  return float_of(bits_of(magnitude) | (uint32_t)(code & 0x80u) << 24);
}

/* ---- One block --------------------------------------------------------------------------------------------------- */

static size_t block(const pith_value *a) { return (size_t)a[0].i; }

static size_t block_bound(const pith_value *a, size_t n) {
  (void)a;
  return sizeof(float) + n;
}

/* NaN if a value is NaN or Inf: x · 0 is 0 for finite values alone. */
static float scale_of(const float *x, size_t n) {
  float most = 0, poison = 0;
  for (size_t i = 0; i < n; i++) {
    float magnitude = fabsf(x[i]);
    most = magnitude > most ? magnitude : most;
    poison += x[i] * 0;
  }
  return most / largest + poison;
}

static size_t encode_block(const pith_value *a, const float *x, size_t n, uint8_t *out, uint64_t index,
                           const pith_ctx *ctx) {
  (void)index, (void)ctx; /* nothing is random, nothing depends on the place */
  float scale = scale_of(x, n);
  memcpy(out, &scale, sizeof scale);
  for (size_t i = 0; i < n; i++) {
    out[sizeof scale + i] = scale > 0 ? to_e4m3(x[i] / scale) : 0;
  }
  return block_bound(a, n);
}

static void decode_block(const pith_value *a, const uint8_t *in, size_t n, float *dst, pith_mode mode, uint64_t index,
                         const pith_ctx *ctx) {
  (void)a, (void)index, (void)ctx;
  float scale;
  memcpy(&scale, in, sizeof scale);
  for (size_t i = 0; i < n; i++) {
    float value = scale * of_e4m3(in[sizeof scale + i]);
    dst[i] = mode == PITH_ADD ? dst[i] + value : value;
  }
}

/* ---- The tables -------------------------------------------------------------------------------------------------- */

static const pith_codec_ops float8 = {
    .size = sizeof(pith_codec_ops),
    .name = "float8",
    .family = "quantization",
    .summary = "8-bit floats (e4m3) with a scale for each bucket",
    .bits = "8 + 32/bucket",
    .origin = "Micikevicius 2022",
    .detail = "for each bucket a scale, then a byte for each value",
    .use = "8 bits for values of very different sizes; an example of a plug-in",
    .wire_id = 0x8008,
    .caps = PITH_CAP_FIXED | PITH_CAP_CHUNKED,
    .params = params,
    .block = block,
    .block_bound = block_bound,
    .encode_block = encode_block,
    .decode_block = decode_block,
};

static const pith_codec_ops *const codecs[] = {&float8};

static const pith_plugin plugin = {.size = sizeof(pith_plugin),
                                   .abi = PITH_PLUGIN_ABI,
                                   .name = "float8",
                                   .version = "1.0",
                                   .codecs = codecs,
                                   .codec_count = 1};

PITH_API const pith_plugin *pith_plugin_entry(void);

const pith_plugin *pith_plugin_entry(void) { return &plugin; }

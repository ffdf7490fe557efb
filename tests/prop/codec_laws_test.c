/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Laws that hold for every method there is, whatever it does with the values: sizes, determinism, one meaning on every
 * ISA, pieces and wholes, types, values that are not finite, bytes that are not payloads, calls that are not right.
 *
 * law_encode() and law_decode_to() lend exactly the promised bytes at random addresses, and law_sweep() looks at the
 * borders, so that every test here is one of buffers too.
 */
#include <math.h>

#include "kernel/kernel.h"
#include "laws.h"
#include "memory/memory.h"

#define MOST 9000 /* values: more than two tiles of any default codec */

static int has(const pith_codec *codec, pith_cap cap) { return (pith_codec_caps(codec) & (uint32_t)cap) != 0; }

/* Casts have no scale that could turn to NaN, nor has a small matrix that low rank leaves alone, nor an exact last
 * bucket: Inf stays Inf, which a loss scaler sees as well. */
static int may_show_inf(const pith_codec *codec) {
  return !strcmp(codec->ops->family, "cast") || !strcmp(codec->ops->name, "powersgd") ||
         strstr(codec->spec, "tail=exact");
}

static pith_dtype any_type(void) { return (pith_dtype)test_below(3); }

static law_shape any_shape(void) { return (law_shape)test_below(LAW_SHAPES); }

static void check_same_floats(const char *spec, const float *a, const float *b, size_t n) {
  for (size_t i = 0; i < n; i++) {
    CHECK_MSG(law_same(a[i], b[i]), "%s: value %zu of %zu is %.9g or %.9g", spec, i, n, (double)a[i], (double)b[i]);
  }
}

static void check_same_bytes(const char *spec, pith_bytes a, pith_bytes b) {
  CHECK_MSG(a.size == b.size, "%s: %zu bytes or %zu", spec, a.size, b.size);
  size_t at = test_first_difference(a.data, b.data, a.size);
  CHECK_MSG(at == a.size, "%s: the payloads differ from byte %zu of %zu", spec, at, a.size);
}

/* ---- The same bytes every time ----------------------------------------------------------------------------------- */

TEST(encoding_twice_gives_the_same_bytes_and_residual) {
  for (size_t s = 0; s < 2 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    pith_state *one = law_state(codec, n, 0), *other = law_state(codec, n, 0);
    for (uint64_t step = 0; step < 2; step++) {
      pith_span src = law_tensor(any_shape(), n, any_type()), again = law_copy(src);
      check_same_bytes(law_spec(s), law_encode(codec, one, src, law_ctx(step)),
                       law_encode(codec, other, again, law_ctx(step)));
      CHECK(memcmp(src.data, again.data, n * pith_dtype_size(src.dtype)) == 0); /* the gradient is only read */
    }
    if (law_residual(one, n)) {
      CHECK_BYTES(law_residual(one, n), law_residual(other, n), n * sizeof(float));
    }
    law_sweep();
  }
}

/* What an ISA makes of two steps. */
typedef struct outcome {
  pith_bytes payload[2];
  const float *decoded[2], *residual;
} outcome;

static outcome outcome_on(pith_isa isa, const pith_codec *codec, const pith_span src[2]) {
  outcome o;
  size_t n = src[0].n;
  pith_state *state = law_state(codec, n, 0);
  CHECK_OK(pith_isa_select(isa));
  for (uint64_t step = 0; step < 2; step++) {
    o.payload[step] = law_encode(codec, state, src[step], law_ctx(step));
    o.decoded[step] = law_decode(codec, o.payload[step], n, law_ctx(step));
  }
  o.residual = law_residual(state, n);
  return o;
}

/* Products of huge matrices overflow to NaNs, whose signs are the CPU's: their floats are compared, not their bytes. */
TEST(every_isa_gives_the_bytes_and_floats_of_the_scalar_one) {
  unsigned compared = 0;
  for (size_t s = 0; s < 3 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 1 + law_length(MOST);
    int low_rank = !strcmp(codec->ops->name, "powersgd");
    pith_span src[2] = {law_tensor(any_shape(), n, any_type()), law_tensor(any_shape(), n, any_type())};
    outcome scalar = outcome_on(PITH_ISA_SCALAR, codec, src);
    for (pith_isa isa = PITH_ISA_AVX2; isa < PITH_ISA_COUNT; isa++) {
      if (!pith_isa_available(isa)) {
        continue;
      }
      outcome o = outcome_on(isa, codec, src);
      for (int step = 0; step < 2; step++) {
        if (!low_rank || isfinite(scalar.decoded[step][0])) {
          check_same_bytes(law_spec(s), scalar.payload[step], o.payload[step]);
        }
        check_same_floats(law_spec(s), scalar.decoded[step], o.decoded[step], n);
      }
      if (o.residual) {
        check_same_floats(law_spec(s), scalar.residual, o.residual, n);
      }
      compared++;
    }
    law_sweep();
  }
  if (compared == 0) {
    SKIP("this machine has only the scalar ISA");
  }
}

TEST(a_missing_context_means_all_defaults_and_missing_scratch_changes_nothing) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    pith_span src = law_tensor(LAW_NORMAL, n, any_type());
    pith_ctx defaults = PITH_CTX_INIT;
    pith_out out = {law_bytes(pith_codec_bound(codec, n), 0), pith_codec_bound(codec, n), 0};
    pith_bytes given = law_encode(codec, law_state(codec, n, 0), src, defaults);
    CHECK_OK(pith_encode(codec, law_state(codec, n, 0), law_const(src), &out, NULL));
    check_same_bytes(law_spec(s), given, (pith_bytes){out.data, out.size});
    pith_span dst = {law_floats(n), n, PITH_F32};
    CHECK_OK(pith_decode(codec, given, dst, PITH_SET, NULL));
    check_same_floats(law_spec(s), law_decode(codec, given, n, defaults), dst.data, n);
    law_sweep();
  }
}

/* ---- Pieces and the whole ---------------------------------------------------------------------------------------- */

static pith_span piece_of(pith_span span, size_t first, size_t n) {
  return (pith_span){(uint8_t *)span.data + first * pith_dtype_size(span.dtype), n, span.dtype};
}

/* Encodes src in pieces that start at random multiples of the granule; each must be a slice of `whole`, if that is made
 * of blocks, and decode to its part of it in any case. */
static void check_pieces(const pith_codec *codec, pith_state *state, pith_span src, pith_bytes whole,
                         const float *decoded, pith_ctx ctx) {
  size_t granule = pith_codec_granule(codec), used = 0;
  for (size_t first = 0; first < src.n;) {
    size_t n = granule * (1 + test_below(4));
    n = n < src.n - first ? n : src.n - first;
    ctx.offset = first;
    pith_bytes piece = law_encode(codec, state, piece_of(src, first, n), ctx);
    if (pith__codec_has_blocks(codec)) {
      CHECK(piece.size <= whole.size - used);
      check_same_bytes(pith_codec_spec(codec), piece, (pith_bytes){(const uint8_t *)whole.data + used, piece.size});
    }
    check_same_floats(pith_codec_spec(codec), law_decode(codec, piece, n, ctx), decoded + first, n);
    used += piece.size;
    first += n;
  }
  CHECK(used == whole.size || !pith__codec_has_blocks(codec));
}

TEST(the_payload_of_a_tensor_is_the_payloads_of_its_pieces) {
  for (size_t s = 0; s < 2 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    if (has(codec, PITH_CAP_CHUNKED)) {
      size_t granule = pith_codec_granule(codec), n = law_length(MOST) + test_below(granule > 4096 ? 2 : 4) * granule;
      pith_state *together = law_state(codec, n, 0), *apart = law_state(codec, n, 0);
      for (uint64_t step = 0; step < 2; step++) {
        pith_span src = law_tensor(any_shape(), n, any_type());
        pith_bytes whole = law_encode(codec, together, src, law_ctx(step));
        check_pieces(codec, apart, src, whole, law_decode(codec, whole, n, law_ctx(step)), law_ctx(step));
      }
      if (law_residual(together, n)) {
        check_same_floats(law_spec(s), law_residual(together, n), law_residual(apart, n), n);
      }
    }
    law_sweep();
  }
}

/* The random numbers follow the place of a value, beyond 2^32 too. */
TEST(a_seeded_piece_depends_on_its_place) {
  static const char *const seeded[] = {"q:4,round=stochastic", "qsgd", "terngrad", "natural", "gq:8",
                                       "hadamard/q:4",         "drive"};
  for (size_t s = 0; s < sizeof seeded / sizeof *seeded; s++) {
    pith_codec *codec = law_codec(seeded[s]);
    pith_span src = law_tensor(LAW_NORMAL, 4096, PITH_F32);
    pith_ctx here = law_ctx(0), far = here;
    far.offset = pith_codec_granule(codec) << 32;
    pith_bytes a = law_encode(codec, NULL, src, here), b = law_encode(codec, NULL, src, far);
    CHECK_MSG(memcmp(a.data, b.data, a.size) != 0, "%s", seeded[s]);
    far = here;
    far.rank = 1;
    b = law_encode(codec, NULL, src, far);
    CHECK_MSG(memcmp(a.data, b.data, a.size) != 0, "%s draws the same on two ranks", seeded[s]);
    law_sweep();
  }
}

/* ---- Types and modes --------------------------------------------------------------------------------------------- */

TEST(adding_is_setting_and_one_f32_addition_in_every_type) {
  for (size_t s = 0; s < 2 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    law_shape shape = any_shape();
    pith_bytes in = law_encode(codec, law_state(codec, n, 0), law_tensor(shape, n, PITH_F32), law_ctx(1));
    const float *plain = law_decode(codec, in, n, law_ctx(1));
    pith_span sum = law_tensor(LAW_NORMAL, n, any_type()), wanted = law_copy(sum);
    law_decode_to(codec, in, sum, PITH_ADD, law_ctx(1));
    for (size_t i = 0; i < n; i++) {
      law_put(wanted, i, law_at(wanted, i) + plain[i]);
      CHECK_MSG(law_same(law_at(sum, i), law_at(wanted, i)), "%s, %s: value %zu of %zu is %g, not %g", law_spec(s),
                law_shape_name(shape), i, n, (double)law_at(sum, i), (double)law_at(wanted, i));
    }
    law_sweep();
  }
}

TEST(half_types_get_the_rounded_f32_result) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    pith_bytes in = law_encode(codec, law_state(codec, n, 0), law_tensor(any_shape(), n, PITH_F32), law_ctx(1));
    const float *plain = law_decode(codec, in, n, law_ctx(1));
    for (pith_dtype type = PITH_F16; type <= PITH_BF16; type++) {
      pith_span got = law_tensor(LAW_NORMAL, n, type), wanted = law_copy(got);
      law_decode_to(codec, in, got, PITH_SET, law_ctx(1));
      for (size_t i = 0; i < n; i++) {
        law_put(wanted, i, plain[i]);
        CHECK_MSG(law_same(law_at(got, i), law_at(wanted, i)), "%s: %s value %zu", law_spec(s), pith_dtype_name(type),
                  i);
      }
    }
    law_sweep();
  }
}

TEST(a_half_gradient_is_encoded_like_the_same_values_in_f32) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(MOST);
    pith_span half = law_tensor(any_shape(), n, test_below(2) ? PITH_F16 : PITH_BF16), wide = law_widened(half);
    if (pith_codec_wire_id(codec) != PITH_WIRE_LOSSLESS) { /* which writes the tensor's own type */
      check_same_bytes(law_spec(s), law_encode(codec, law_state(codec, n, 0), half, law_ctx(0)),
                       law_encode(codec, law_state(codec, n, 0), wide, law_ctx(0)));
    }
    law_sweep();
  }
}

/* ---- Sizes ------------------------------------------------------------------------------------------------------- */

/* METHODS.md, for normal values; sparse indices cost what Rice codes cost, within the tolerance. */
TEST(bits_per_value_are_those_of_the_formulas) {
  static const struct {
    const char *spec;
    double bits, tolerance;
  } wanted[] = {
      {"none", 32, 0},
      {"fp16", 16, 0},
      {"bf16", 16, 0},
      {"q:1", 1 + 64.0 / 512, 0},
      {"q:4", 4.125, 0},
      {"q:3,bucket=1024", 3 + 64.0 / 1024, 0},
      {"qsgd", 8 + 32.0 / 512, 0},
      {"qsgd:64", 8 + 32.0 / 512, 0},
      {"qsgd:63", 7 + 32.0 / 512, 0},
      {"qsgd:1,bucket=1024", 2 + 32.0 / 1024, 0},
      {"fp8", 8 + 32.0 / 512, 0},
      {"mxfp8", 8.25, 0},
      {"mxfp6", 6.25, 0},
      {"mxfp4", 4.25, 0},
      {"nvfp4", 4.5625, 0},
      {"nuq:4", 4 + 32.0 / 512, 0},
      {"nuq:2,bucket=64", 2.5, 0},
      {"terngrad", 1.6 + 32.0 / 1280, 1e-4},
      {"natural", 8 + 32.0 / 512, 0},
      {"signsgd", 1 + 1.0 / 32 + 32.0 / 4096, 0},
      {"signum", 1 + 1.0 / 32 + 32.0 / 4096, 0},
      {"efsignsgd", 1 + 32.0 / 4096, 0},
      {"onebit", 1 + 64.0 / 512, 0},
      {"u8", 8 + 32.0 / 512, 0},
      {"gq:4", 4 + 32.0 / 512, 0},
      {"gq:8", 8 + 32.0 / 512, 0},
      {"drive", 1 + 32.0 / 4096, 0},
      {"eden:3", 3 + 32.0 / 4096, 0},
      {"hadamard/q:2", 2.125, 0},
      {"lossless", 27.28, 0.05}, /* 24 and 3 bits, about 3% of escapes, 64 bits for 1024 values */
      {"inceptionn:100", 2, 0},
      {"inceptionn:1e-30", 34, 0},
      {"topk:0.01", 0.01 * (32 + 6.643856 + 1.5), 0.01},
      {"topk:0.01,values=fp16", 0.01 * (16 + 6.643856 + 1.5), 0.01},
      {"dgc:0.01", 0.01 * (32 + 6.643856 + 1.5), 0.08}, /* a sampled cut: the number of values is not exact */
      {"randomk:0.01", 0.32, 1e-4},
      {"adaptive:0.01", 0.01 * (6.643856 + 2.5), 0.01},
      {"sketchml:64", 6, 0.01},
      {"powersgd:4", 32.0 * 4 * (1024 + 1024) / (1024.0 * 1024), 1e-4},
  };
  size_t n = 1 << 20;
  pith_span src = law_tensor(LAW_NORMAL, n, PITH_F32);
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    pith_codec *codec = law_codec(wanted[i].spec);
    pith_bytes in = law_encode(codec, law_state(codec, n, 0), src, law_ctx(0));
    double bits = 8.0 * (double)in.size / (double)n;
    CHECK_MSG(fabs(bits - wanted[i].bits) <= wanted[i].tolerance, "%s takes %.6g bits, not %.6g", wanted[i].spec, bits,
              wanted[i].bits);
  }
  law_sweep();
}

TEST(bounds_grow_with_the_length_and_saturate) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t before = 0, most = strstr(law_spec(s), "tail=exact") ? 0 : SIZE_MAX / 2; /* a tail is more than a bucket */
    for (size_t n = 1; n < most; n *= 2) {
      CHECK_MSG(pith_codec_bound(codec, n) >= before, "%s: the bound of %zu values is smaller", law_spec(s), n);
      before = pith_codec_bound(codec, n);
    }
    CHECK(pith_codec_bound(codec, SIZE_MAX) >= before);
    law_sweep();
  }
}

/* Of a tensor of 64 MiB, error-feedback state aside: a packed residual of which all is needed at once is widened. */
TEST(scratch_is_at_most_a_twentieth_of_the_input) {
  size_t n = (size_t)16 << 20;
  for (size_t s = 0; s < law_spec_count(); s++) {
    const pith_codec *codec = law_codec(law_spec(s));
    int is_widened = strstr(law_spec(s), "store=") && !has(codec, PITH_CAP_CHUNKED);
    size_t scratch = pith_codec_scratch(codec, n), most = n * sizeof(float) / 20 + (is_widened ? n * sizeof(float) : 0);
    CHECK_MSG(scratch <= most, "%s: %zu bytes of scratch", law_spec(s), scratch);
    law_sweep();
  }
}

TEST(nothing_is_a_valid_tensor) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    pith_span nothing = {NULL, 0, any_type()};
    pith_out out = {law_bytes(pith_codec_bound(codec, 0), 0), pith_codec_bound(codec, 0), 99};
    CHECK_OK(pith_encode(codec, law_state(codec, 0, 0), law_const(nothing), &out, NULL));
    CHECK_EQ(out.size, law_encode(codec, law_state(codec, 0, 0), nothing, law_ctx(0)).size);
    CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, nothing, PITH_SET, NULL));
    CHECK_OK(pith_decode(codec, (pith_bytes){out.data, out.size}, nothing, PITH_ADD, NULL));
    law_sweep();
  }
}

/* ---- Values that are not finite ---------------------------------------------------------------------------------- */

/* Seen where it is; the other granules know nothing of it. */
static void check_block_shows(const pith_codec *codec, const float *decoded, size_t n, size_t place) {
  size_t granule = pith_codec_granule(codec), first = place / granule * granule;
  CHECK_MSG(may_show_inf(codec) ? !isfinite(decoded[place]) : isnan(decoded[place]), "%s decodes a bad value to %g",
            pith_codec_spec(codec), (double)decoded[place]);
  for (size_t i = 0; i < n; i++) {
    CHECK_MSG(isfinite(decoded[i]) || (i >= first && i < first + granule), "%s: value %zu is %g, the bad one is %zu",
              pith_codec_spec(codec), i, (double)decoded[i], place);
  }
}

static void check_shows(const pith_codec *codec, const float *decoded, size_t n) {
  size_t bad = 0;
  for (size_t i = 0; i < n; i++) {
    bad += !isfinite(decoded[i]);
    CHECK_MSG(!isinf(decoded[i]) || may_show_inf(codec), "%s: value %zu is %g", pith_codec_spec(codec), i,
              (double)decoded[i]);
  }
  CHECK_MSG(bad > 0, "%s hides a bad value among %zu", pith_codec_spec(codec), n);
}

static void check_finite(const char *spec, const char *what, const float *x, size_t n) {
  for (size_t i = 0; x && i < n; i++) {
    CHECK_MSG(isfinite(x[i]), "%s: value %zu of %zu of the %s is %g", spec, i, n, what, (double)x[i]);
  }
}

static void check_heals(const pith_codec *codec, pith_state *state, uint64_t step) {
  const char *spec = pith_codec_spec(codec);
  check_finite(spec, "residual", law_residual(state, state->n), state->n);
  check_finite(spec, "momentum", state->momentum, state->n);
  pith_span clean = law_tensor(LAW_NORMAL, state->n, PITH_F32);
  pith_bytes in = law_encode(codec, state, clean, law_ctx(step));
  check_finite(spec, "next result", law_decode(codec, in, state->n, law_ctx(step)), state->n);
}

TEST(a_value_that_is_not_finite_is_seen_and_forgotten) {
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (size_t s = 0; s < 3 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 1 + law_length(MOST), place = test_below(n);
    pith_state *state = law_state(codec, n, 0);
    law_encode(codec, state, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(0));
    pith_span src = law_tensor(LAW_NORMAL, n, any_type());
    law_put(src, place, bad[s / law_spec_count()]);
    pith_bytes in = law_encode(codec, state, src, law_ctx(1));
    const float *decoded = law_decode(codec, in, n, law_ctx(1));
    check_shows(codec, decoded, n);
    if (has(codec, PITH_CAP_CHUNKED)) {
      check_block_shows(codec, decoded, n, place);
    }
    check_heals(codec, state, 2);
    law_sweep();
  }
}

TEST(tensors_full_of_bad_values_are_seen_and_forgotten) {
  static const float bad[] = {NAN, INFINITY, -INFINITY};
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 1 + law_length(MOST);
    pith_state *state = law_state(codec, n, 0);
    pith_span src = law_tensor(LAW_NORMAL, n, any_type());
    for (size_t i = 0; i < n; i++) {
      law_put(src, i, bad[test_below(3)]);
    }
    check_shows(codec, law_decode(codec, law_encode(codec, state, src, law_ctx(1)), n, law_ctx(1)), n);
    check_heals(codec, state, 2);
    law_sweep();
  }
}

/* Whether the decoded values of a shape can be finite at all. Norms of a block of 1e37 may leave the range of f32,
 * and so may sums of products; fp16 ends at 65504. Such values are scaled down, but not so far that their squares
 * would fit. */
static float fitting_scale(const pith_codec *codec, law_shape shape) {
  int small = !strcmp(codec->ops->name, "fp16") && (shape == LAW_HUGE || shape == LAW_MIXED);
  return small ? 1e-36f : shape == LAW_HUGE ? 1e-3f : 1.0f;
}

TEST(finite_values_stay_finite) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    for (law_shape shape = 0; shape < LAW_SHAPES; shape++) {
      pith_codec *codec = law_codec(law_spec(s));
      size_t n = law_length(MOST);
      pith_span src = law_tensor(shape, n, PITH_F32);
      for (size_t i = 0; i < n; i++) {
        law_put(src, i, law_at(src, i) * fitting_scale(codec, shape));
      }
      const float *got = law_decode(codec, law_encode(codec, law_state(codec, n, 0), src, law_ctx(0)), n, law_ctx(0));
      check_finite(law_spec(s), law_shape_name(shape), got, n);
      law_sweep();
    }
  }
}

/* ---- Bytes that are not payloads --------------------------------------------------------------------------------- */

/* Decodes or is refused as corrupt; then nothing was written. */
static pith_status decode_any(const pith_codec *codec, const void *bytes, size_t size, size_t n) {
  pith_bytes in = {memcpy(law_bytes(size, test_below(64)), bytes, size), size};
  pith_span dst = law_tensor(LAW_NORMAL, n, any_type()), before = law_copy(dst);
  pith_ctx ctx = law_ctx(0);
  pith_status status = pith_decode(codec, in, dst, test_below(2) ? PITH_SET : PITH_ADD, &ctx);
  if (status != PITH_OK) {
    CHECK_EQ(status, PITH_ERR_CORRUPT);
    CHECK_BYTES(dst.data, before.data, n * pith_dtype_size(dst.dtype));
  }
  return status;
}

TEST(payloads_of_a_wrong_length_are_refused) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 1 + law_length(3000);
    pith_bytes in = law_encode(codec, law_state(codec, n, 0), law_tensor(any_shape(), n, PITH_F32), law_ctx(0));
    uint8_t *longer = law_bytes(in.size + 8, 0);
    memcpy(longer, in.data, in.size);
    memset(longer + in.size, 0, 8);
    for (int cut = 0; cut < 8; cut++) {
      size_t size = cut < 2 ? in.size - 1 - (size_t)cut * (in.size - 1) : test_below(in.size);
      CHECK_MSG(decode_any(codec, in.data, size, n) != PITH_OK, "%s: %zu of %zu bytes pass", law_spec(s), size,
                in.size);
    }
    CHECK_MSG(decode_any(codec, longer, in.size + 1, n) != PITH_OK, "%s: a byte too many passes", law_spec(s));
    CHECK_MSG(decode_any(codec, longer, in.size + 8, n) != PITH_OK, "%s: eight bytes too many pass", law_spec(s));
    law_sweep();
  }
}

TEST(damaged_and_random_payloads_decode_or_are_refused) {
  for (size_t s = 0; s < 12 * law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(1500);
    pith_bytes in = law_encode(codec, law_state(codec, n, 0), law_tensor(any_shape(), n, PITH_F32), law_ctx(0));
    uint8_t *bytes = law_bytes(in.size, 0);
    memcpy(bytes, in.data, in.size);
    size_t changes = s % 3 == 0 ? in.size : 1 + test_below(4);
    for (size_t i = 0; i < changes && in.size > 0; i++) {
      bytes[test_below(s % 3 == 1 && in.size > 24 ? 24 : in.size)] = (uint8_t)test_random();
    }
    CHECK(decode_any(codec, bytes, in.size, n) != PITH_ERR_ARGUMENT);
    CHECK(decode_any(codec, bytes, in.size, test_below(1500)) != PITH_ERR_ARGUMENT);
    law_sweep();
  }
}

/* ---- Calls that are not right ------------------------------------------------------------------------------------ */

static pith_bytes saved(const pith_state *state) {
  size_t size = pith_state_save_size(state);
  pith_out out = {law_bytes(size, 0), size, 0};
  CHECK_OK(pith_state_save(state, &out));
  return (pith_bytes){out.data, out.size};
}

TEST(too_little_room_is_an_error_that_changes_nothing) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 1 + law_length(MOST), bound = pith_codec_bound(codec, n), scratch = pith_codec_scratch(codec, n);
    pith_state *state = law_state(codec, n, 0);
    law_encode(codec, state, law_tensor(LAW_NORMAL, n, PITH_F32), law_ctx(0));
    pith_bytes before = saved(state);
    pith_span src = law_tensor(LAW_NORMAL, n, any_type());
    pith_out out = {law_bytes(bound - 1, 0), bound - 1, 77};
    pith_ctx ctx = law_ctx(1);
    CHECK_STATUS(pith_encode(codec, state, law_const(src), &out, &ctx), PITH_ERR_BUFFER);
    out = (pith_out){NULL, bound, 77};
    CHECK_STATUS(pith_encode(codec, state, law_const(src), &out, &ctx), PITH_ERR_BUFFER);
    out = (pith_out){law_bytes(bound, 0), bound, 77};
    if (scratch > 0) {
      ctx.scratch = law_bytes(scratch - 1, 0);
      ctx.scratch_size = scratch - 1;
      CHECK_STATUS(pith_encode(codec, state, law_const(src), &out, &ctx), PITH_ERR_BUFFER);
    }
    CHECK_EQ(out.size, 77);
    check_same_bytes(law_spec(s), before, saved(state));
    law_sweep();
  }
}

TEST(wrong_arguments_are_told_in_words) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = 100, bound = pith_codec_bound(codec, n);
    pith_state *state = law_state(codec, n, 0);
    pith_span src = law_tensor(LAW_NORMAL, n, PITH_F32), ints = {src.data, n, PITH_I32}, none = {NULL, n, PITH_F32};
    pith_out out = {law_bytes(bound, 0), bound, 77};
    pith_bytes in = law_encode(codec, state, src, law_ctx(0)), before = saved(state);
    pith_ctx off = law_ctx(0), sizeless = {0};
    off.offset = 1;
    CHECK_STATUS(pith_encode(codec, state, law_const(src), &out, &off), PITH_ERR_ARGUMENT);
    CHECK_ERROR_SAYS("cannot start at value 1");
    CHECK_STATUS(pith_decode(codec, in, src, PITH_SET, &off), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_encode(codec, state, law_const(src), &out, &sizeless), PITH_ERR_ARGUMENT);
    CHECK_ERROR_SAYS("set it to sizeof(pith_ctx)");
    CHECK_STATUS(pith_encode(codec, state, law_const(ints), &out, NULL), PITH_ERR_ARGUMENT);
    CHECK_ERROR_SAYS("f32, f16 or bf16, not i32");
    CHECK_STATUS(pith_encode(codec, state, law_const(none), &out, NULL), PITH_ERR_ARGUMENT);
    CHECK_ERROR_SAYS("at NULL");
    CHECK_STATUS(pith_encode(codec, state, law_const(src), NULL, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_encode(NULL, state, law_const(src), &out, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_decode(codec, in, ints, PITH_SET, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_decode(codec, in, none, PITH_SET, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_decode(codec, (pith_bytes){NULL, 4}, src, PITH_SET, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_decode(codec, in, src, (pith_mode)2, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_decode(NULL, in, src, PITH_SET, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_aggregate(NULL, src, NULL), PITH_ERR_ARGUMENT);
    CHECK_STATUS(pith_aggregate(codec, ints, NULL), PITH_ERR_ARGUMENT);
    if (codec->memory) {
      CHECK_STATUS(pith_encode(codec, NULL, law_const(src), &out, NULL), PITH_ERR_STATE);
      CHECK_ERROR_SAYS("needs a state");
    }
    CHECK_EQ(out.size, 77);
    check_same_bytes(law_spec(s), before, saved(state));
    law_sweep();
  }
}

/* ---- Joining ranks ----------------------------------------------------------------------------------------------- */

/* A group of zeros abstains. Other zeros vote in turn. */
static int vote_of(pith_span src, size_t i, pith_ctx ctx) {
  int some = 0;
  for (size_t j = i / 32 * 32; j < i / 32 * 32 + 32 && j < src.n; j++) {
    some |= law_at(src, j) != 0;
  }
  float x = law_at(src, i);
  return !some ? 0 : x != 0 ? (x < 0 ? -1 : 1) : (i + ctx.rank + ctx.step) % 2 ? -1 : 1;
}

TEST(a_vote_goes_to_the_majority_and_a_tie_to_nobody) {
  for (int round = 0; round < 80; round++) {
    pith_codec *codec = law_codec(round % 3 ? "signsgd" : "sign,bucket=96");
    size_t n = law_length(3000);
    pith_span sum = {law_floats(n), n, PITH_F32};
    int *votes = law_bytes(n * sizeof *votes, 0);
    memset(votes, 0, n * sizeof *votes);
    pith_ctx ctx = law_ctx((uint64_t)round);
    ctx.ranks = 1 + (uint32_t)test_below(6);
    ctx.offset = pith_codec_granule(codec) * test_below(3);
    for (ctx.rank = 0; ctx.rank < ctx.ranks; ctx.rank++) {
      pith_span src = law_tensor(round % 2 ? LAW_NORMAL : LAW_SPARSE, n, any_type());
      law_decode_to(codec, law_encode(codec, NULL, src, ctx), sum, PITH_ADD, ctx);
      for (size_t i = 0; i < n; i++) {
        votes[i] += vote_of(src, i, ctx);
      }
    }
    CHECK_OK(pith_aggregate(codec, sum, &ctx));
    for (size_t i = 0; i < n; i++) {
      CHECK(law_at(sum, i) == (votes[i] > 0 ? 1.0f : votes[i] < 0 ? -1.0f : 0.0f));
    }
    law_sweep();
  }
}

/* What is zero on every rank does not move: at all where whole groups are, and over two steps anywhere. */
TEST(values_that_nobody_touches_do_not_drift) {
  enum { ROWS = 9, WIDTH = 100, N = ROWS * WIDTH };
  for (uint32_t ranks = 1; ranks <= 5; ranks++) {
    pith_codec *codec = law_codec("signsgd");
    float moved[N] = {0};
    for (uint64_t step = 0; step < 6; step++) {
      float sum[N] = {0};
      pith_span total = {sum, N, PITH_F32}, x = {law_floats(N), N, PITH_F32};
      pith_ctx ctx = law_ctx(step);
      ctx.ranks = ranks;
      for (size_t i = 0; i < N; i++) { /* rows of an embedding, one in three touched, by all ranks alike */
        law_put(x, i, i / WIDTH % 3 == 1 ? test_normal() + 1e-6f : 0);
      }
      for (ctx.rank = 0; ctx.rank < ranks; ctx.rank++) {
        law_decode_to(codec, law_encode(codec, NULL, x, ctx), total, PITH_ADD, ctx);
      }
      CHECK_OK(pith_aggregate(codec, total, &ctx));
      ctx.rank = ranks; /* the result is encoded as that of one more rank */
      const float *result = law_round_trip(codec, total, ctx);
      for (size_t i = 0; i < N; i++) {
        moved[i] += result[i];
        int first = (int)(i / 32 * 32 / WIDTH % 3), last = (int)((i / 32 * 32 + 31) / WIDTH % 3);
        CHECK_MSG(first == 1 || last == 1 || result[i] == 0, "value %zu of an untouched group is %g", i,
                  (double)result[i]);
      }
    }
    for (size_t i = 0; i < N; i++) {
      CHECK_MSG(i / WIDTH % 3 == 1 || moved[i] == 0, "%u ranks: value %zu has drifted by %g", ranks, i,
                (double)moved[i]);
    }
    law_sweep();
  }
}

TEST(other_methods_take_the_mean_in_every_type) {
  for (size_t s = 0; s < law_spec_count(); s++) {
    pith_codec *codec = law_codec(law_spec(s));
    size_t n = law_length(3000);
    pith_span sum = law_tensor(LAW_NORMAL, n, any_type()), wanted = law_copy(sum);
    pith_ctx ctx = law_ctx(0);
    ctx.ranks = 1 + (uint32_t)test_below(9);
    CHECK_OK(pith_aggregate(codec, sum, &ctx));
    for (size_t i = 0; i < n && !has(codec, PITH_CAP_VOTE); i++) {
      law_put(wanted, i, law_at(wanted, i) * (1.0f / (float)ctx.ranks));
      CHECK(law_same(law_at(sum, i), law_at(wanted, i)));
    }
    law_sweep();
  }
}

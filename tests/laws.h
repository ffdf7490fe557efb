/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the laws in prop/ share: inputs of every kind, buffers that watch their borders, and the list of all specs a law
 * must hold for.
 *
 * Everything made here lives until law_sweep(), which checks the guard bytes around every buffer and frees all of it.
 * Buffers end where their memory ends under a sanitizer, so that it sees the first byte too many, read or written.
 */
#ifndef PITH_TESTS_LAWS_H
#define PITH_TESTS_LAWS_H

#include "test.h"

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

/* Random bytes that start `lead` bytes behind an address aligned to 64. */
void *law_bytes(size_t size, size_t lead);
float *law_floats(size_t n); /* zeros, at any address a float may have */

/* A copy of a state's residual, however it is kept; NULL if it has none. */
const float *law_residual(const pith_state *state, size_t n);
void law_sweep(void);

/* ---- Inputs ------------------------------------------------------------------------------------------------------ */

typedef enum law_shape {
  LAW_NORMAL,
  LAW_LAPLACE,
  LAW_SPARSE,   /* one value in fifty */
  LAW_CONSTANT, /* one value, everywhere */
  LAW_HUGE,     /* to 1e37 */
  LAW_TINY,     /* subnormal */
  LAW_ZERO,     /* of both signs */
  LAW_MIXED,    /* magnitudes of 24 decades side by side */
  LAW_SHAPES
} law_shape;

const char *law_shape_name(law_shape shape);

/* Values of a shape; halves are rounded from it. The address is any that a value may have. */
pith_span law_tensor(law_shape shape, size_t n, pith_dtype dtype);
pith_span law_copy(pith_span span);
pith_span law_widened(pith_span span); /* the same values as f32 */

/* 0, 1, around the sizes where blocks end, or any length up to `most`. */
size_t law_length(size_t most);

static inline pith_cspan law_const(pith_span span) { return (pith_cspan){span.data, span.n, span.dtype}; }
float law_at(pith_span span, size_t i);
void law_put(pith_span span, size_t i, float x);
int law_same(float a, float b); /* bit for bit, any NaN being like any other */

/* ---- Codecs ------------------------------------------------------------------------------------------------------ */

/* Every codec and preset of the registry, alone and behind each memory and transform it fits, and more parameters. */
size_t law_spec_count(void);
const char *law_spec(size_t index);

pith_codec *law_codec(const char *spec);
pith_state *law_state(const pith_codec *codec, size_t n, size_t rows);
pith_ctx law_ctx(uint64_t step);

/* Encodes with exactly the promised room for bytes and scratch, and checks the promises. The payload that comes back
 * has a buffer of its own size. */
pith_bytes law_encode(const pith_codec *codec, pith_state *state, pith_span src, pith_ctx ctx);

/* Decodes with exactly the promised scratch. */
void law_decode_to(const pith_codec *codec, pith_bytes in, pith_span dst, pith_mode mode, pith_ctx ctx);
const float *law_decode(const pith_codec *codec, pith_bytes in, size_t n, pith_ctx ctx);

/* There and back again, without a memory. */
const float *law_round_trip(const pith_codec *codec, pith_span src, pith_ctx ctx);

#endif

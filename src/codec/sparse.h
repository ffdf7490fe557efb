/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The payload that all sparsifiers share: a head of 16 bytes, values, indices. docs/format.md has it byte by byte.
 *
 * Writing passes twice over the picked values: the first pass writes the values and learns about the gaps between the
 * indices, the second writes the indices in the coding that turned out smallest.
 * Reading first checks everything, so that a bad payload leaves the destination untouched.
 */
#ifndef PITH_CODEC_SPARSE_H
#define PITH_CODEC_SPARSE_H

#include "codec/index_coding.h"
#include "codec/selection.h"
#include "codec/value_coding.h"

/* Most bytes of up to `count` of n values, with the room that writing takes. */
size_t pith__sparse_bound(pith_value_format format, size_t n, size_t count);

/* Bytes to expect of `count` of n values at places without order. */
double pith__sparse_expected(pith_value_format format, size_t n, size_t count);

/* The head, given what follows it. Returns where the values start. */
uint8_t *pith__sparse_put_head(uint8_t *out, pith_index_plan plan, pith_value_format format, uint64_t count);

/* The indices of everything picked, behind the values. Returns the end. */
uint8_t *pith__sparse_put_indices(uint8_t *out, pith_index_plan plan, pith_picker *picker);

/* A whole payload of the picked values, each written as `coding`. Returns its size. */
size_t pith__sparse_encode(uint8_t *out, pith_value_coding coding, pith_picker *picker, size_t n);

/* The same with all n values. */
size_t pith__sparse_encode_dense(uint8_t *out, pith_value_coding coding, pith_cspan src, float *buffer);

/* A checked payload. */
typedef struct pith_sparse {
  pith_value_format format;
  unsigned index_coding, rice;
  size_t count;
  const uint8_t *values, *indices, *end;
} pith_sparse;

/* Checks the payload at the start of `in` for n values in the given format; `view->end` is where it ends. */
pith_status pith__sparse_open(pith_bytes in, size_t n, pith_value_format format, pith_sparse *view);

/* Applies all its values to dst, which for SET has been cleared. */
void pith__sparse_apply(const pith_sparse *view, pith_span dst, pith_apply apply);

/* Open, clear where needed, apply: the decoder of codecs whose payload is one such thing. */
pith_status pith__sparse_decode(pith_bytes in, pith_span dst, pith_value_format format, pith_apply apply);

/* Zeros everywhere. */
void pith__span_clear(pith_span dst);

/* values[i] to place[i], i < n. */
void pith__span_scatter(pith_span dst, const uint64_t *place, const float *values, size_t n, pith_apply apply);

#endif

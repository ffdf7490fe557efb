/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the values of a sparse payload are written. The size follows from their count, so that indices can stand behind
 * them. Values that are not finite travel as NaN; what is too large for a half type travels as its largest value.
 */
#ifndef PITH_CODEC_VALUE_CODING_H
#define PITH_CODEC_VALUE_CODING_H

#include <stddef.h>
#include <stdint.h>

#include "kernel/formats.h"

#define PITH_VALUES_PARAM \
  {sizeof(pith_param), "values", PITH_PARAM_CHOICE, 0, 0, "fp32", "fp32|fp16|bf16|q8", "how the values travel"}

typedef struct pith_value_format {
  pith_value_coding coding;
  unsigned levels; /* of BUCKETS, 2…256; 0 for all others */
} pith_value_format;

/* Bits of a bucket number. */
unsigned pith__values_bits(unsigned levels);

/* Bytes of `count` values; SIZE_MAX if that overflows. */
size_t pith__values_size(pith_value_format format, size_t count);

/* Writes values as they come. Not for MEAN and BUCKETS, whose codecs know what to write. */
typedef struct pith_value_writer {
  pith_value_coding coding;
  uint8_t *at;
  size_t fill;
  float block[PITH_VALUES_BLOCK];
} pith_value_writer;

void pith__value_writer_init(pith_value_writer *w, pith_value_coding coding, uint8_t *out);
void pith__values_write(pith_value_writer *w, const float *x, size_t n);
uint8_t *pith__value_writer_finish(pith_value_writer *w); /* the end of the values */

/* Whether all `count` values mean something; `in` has pith__values_size() bytes. */
int pith__values_valid(pith_value_format format, const uint8_t *in, size_t count);

/* Values first … first + n − 1 of valid ones; first is a multiple of the block and n at most one block. */
void pith__values_read(pith_value_format format, const uint8_t *in, size_t first, size_t n, float *x);

#endif

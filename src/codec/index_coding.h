/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the places of travelling values are written: the smallest of four codings, chosen for each payload.
 *
 * A writer first shows all places to a pith_gaps, which learns how many bytes every coding would take, then plans, then
 * writes. A reader takes any bytes and gives out increasing places below n, or fails. docs/format.md has the bytes.
 */
#ifndef PITH_CODEC_INDEX_CODING_H
#define PITH_CODEC_INDEX_CODING_H

#include <stddef.h>
#include <stdint.h>

#include "codec/bitstream.h"
#include "kernel/formats.h"

/* The most bytes that up to `count` places below n can take; SIZE_MAX if that overflows. Writers need it as room. */
size_t pith__index_bound(size_t n, size_t count);

/* The bytes to expect of `count` places without order: their gaps are geometric. */
double pith__index_expected(size_t n, size_t count);

/* What is known about the gaps between places after a pass over them. A zeroed one is ready. */
typedef struct pith_gaps {
  uint64_t ones[64]; /* in how many gaps bit b is set: decides the size of every Rice code */
  uint64_t lanes[8]; /* the same for the last `pending` gaps, eight counters of a byte in each */
  unsigned pending;
  uint64_t next; /* the first place that may follow */
  uint64_t count;
} pith_gaps;

/* Further places, increasing: base + place[i]. */
void pith__gaps_add(pith_gaps *gaps, uint64_t base, const uint32_t *place, size_t count);

typedef struct pith_index_plan {
  pith_index_coding coding;
  unsigned rice;
  size_t bytes;
} pith_index_plan;

/* The smallest coding. Dense is only chosen when all n places were shown. */
pith_index_plan pith__index_choose(pith_gaps *gaps, size_t n);

typedef struct pith_index_writer {
  pith_index_plan plan;
  pith_bit_writer bits;
  uint8_t *out;
  uint64_t next;
} pith_index_writer;

void pith__index_writer_init(pith_index_writer *w, pith_index_plan plan, uint8_t *out);
void pith__index_write(pith_index_writer *w, uint64_t base, const uint32_t *place, size_t count);
void pith__index_writer_finish(pith_index_writer *w);

typedef struct pith_index_reader {
  pith_index_coding coding;
  unsigned rice;
  uint64_t n, next;
  const uint8_t *at, *end;
  uint64_t word; /* of a bitmap: bits of the current 64 not yet given out */
  pith_bit_reader bits;
} pith_index_reader;

/* Starts at `at`; nothing is read at or beyond `end`. Returns 0 if there is no such coding. */
int pith__index_reader_init(pith_index_reader *r, unsigned coding, unsigned rice, size_t n, const uint8_t *at,
                            const uint8_t *end);

/* The next `count` places. Returns 0 if there are not that many valid ones. */
int pith__index_read(pith_index_reader *r, uint64_t *place, size_t count);

/* After the last place: the end of the indices, or NULL if something other than padding follows. */
const uint8_t *pith__index_reader_end(pith_index_reader *r);

#endif

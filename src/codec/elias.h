/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Levels of a quantizer as Elias gamma codes, for blocks in which most levels are small. Levels travel as bytes here:
 * level + zero, from 0 to 2·zero.
 *
 * A number v ≥ 1 of k + 1 bits is k zeros, a one, and the low k bits of v. There are two streams:
 *  - each: for every value the code of 1, 2, 3, 4, 5 … for the levels 0, 1, −1, 2, −2 …
 *  - runs: the code of 1 + (zeros before the next level that is not 0), its sign (1: negative), the code of its
 *    magnitude; and so on. Zeros at the end are a run, too.
 */
#ifndef PITH_CODEC_ELIAS_H
#define PITH_CODEC_ELIAS_H

#include "codec/bitstream.h"

/* How the levels of a block are written. On the wire. */
typedef enum pith_level_coding { PITH_LEVELS_FIXED = 0, PITH_LEVELS_EACH = 1, PITH_LEVELS_RUNS = 2 } pith_level_coding;

/* What the levels of a block take, in bits, and where the run stands that they end in. Starts as zeros. */
typedef struct pith_elias_sizes {
  uint64_t each, runs, zeros;
} pith_elias_sizes;

void pith__elias_measure(pith_elias_sizes *sizes, const uint8_t *levels, size_t n, int zero);
uint64_t pith__elias_runs_bits(const pith_elias_sizes *sizes); /* once all levels are measured */

typedef struct pith_elias_writer {
  pith_bit_writer bits;
  pith_level_coding coding;
  uint64_t zeros;
} pith_elias_writer;

void pith__elias_put(pith_elias_writer *w, const uint8_t *levels, size_t n, int zero);
uint8_t *pith__elias_end(pith_elias_writer *w); /* where the stream ends; needs PITH_BITS_SLACK bytes behind that */

typedef struct pith_elias_reader {
  pith_bit_reader bits;
  pith_level_coding coding;
  size_t left;    /* values that have not been read */
  uint64_t zeros; /* of a run that is under way */
  int in_run;     /* and a level follows it */
} pith_elias_reader;

/* The next n levels. Returns 0 where the stream is malformed: it ends, a level is above `zero`, or a run is too long.
 */
int pith__elias_get(pith_elias_reader *r, uint8_t *levels, size_t n, int zero);

#endif

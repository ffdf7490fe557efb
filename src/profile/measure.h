/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One gradient and all candidates: what is to be measured, and what came out. error_table.c decides the first and draws
 * the conclusions. In between gradients are measured: by error_table.c itself where the gradient is in main memory,
 * else a measurer, which the profile was given.
 */
#ifndef PITH_PROFILE_MEASURE_H
#define PITH_PROFILE_MEASURE_H

#include "codec/codec.h"
#include "memory/space.h"

#define PITH_CANDIDATES_MAX 250 /* a choice is a byte */
#define PITH_COLUMNS_MAX 256

/* How a candidate is measured. */
typedef enum pith_measured_by {
  PITH_BY_NOTHING,  /* it is exact */
  PITH_BY_PIECES,   /* encoded and decoded, a sample of pieces of the gradient */
  PITH_BY_LARGEST,  /* the energy of the largest values */
  PITH_BY_COLUMNS,  /* low rank: one run at the largest rank serves all */
  PITH_BY_ENCODING, /* encoded and decoded as a whole */
} pith_measured_by;

typedef struct pith_measurement {
  size_t layer;
  const char *name; /* of the layer */
  pith_cspan x;
  pith_ctx ctx;
  size_t candidates;
  pith_codec *const *codec;
  uint8_t by[PITH_CANDIDATES_MAX]; /* pith_measured_by */
  size_t largest[PITH_CANDIDATES_MAX];
  double largest_bytes[PITH_CANDIDATES_MAX]; /* BY_LARGEST: how many travel, and in how many bytes */
  size_t top;                                /* values of the largest hundredth */
  /* Pieces: those that begin at piece · (first + i · stride). One behind the other they are the sample, which is
   * encoded as values from 0 on. */
  size_t piece, stride, first;
  /* Low rank. */
  size_t run; /* the candidate of the largest rank; `candidates`: there is none */
  size_t columns;
  int iterations;
  void *sketch; /* what the codec keeps of this layer */
} pith_measurement;

typedef struct pith_measured {
  int finite; /* nothing else is set otherwise */
  double norm, top;
  /* BY_PIECES, BY_ENCODING: bytes and squared error. BY_LARGEST: in `error` the energy of those that travel. */
  double bytes[PITH_CANDIDATES_MAX], error[PITH_CANDIDATES_MAX];
  double energy[PITH_COLUMNS_MAX]; /* of each column */
} pith_measured;

/* Values of the sample. */
size_t pith__measured_values(const pith_measurement *m);

/* Bytes of the sample by a codec of fixed size. */
double pith__measured_bytes(const pith_measurement *m, size_t candidate);

/* Measures gradients that are in a space, without waiting for it. */
typedef struct pith_measurer {
  pith_space *space;
  /* Enqueues all of it, and times these codecs on the gradient. The gradient may change behind what is enqueued. */
  pith_status (*begin)(struct pith_measurer *self, const pith_measurement *m, pith_codec *const *timed, size_t count,
                       void **ticket);
  /* Whether that is done. From any thread, as all that follows. */
  pith_status (*poll)(struct pith_measurer *self, void *ticket, int *is_done);
  /* What came out; seconds for a value of each codec that was timed. */
  void (*take)(struct pith_measurer *self, void *ticket, const pith_measurement *m, pith_measured *measured,
               double *seconds);
  void (*drop)(struct pith_measurer *self, void *ticket); /* taken or not */
  /* Enqueues sum += x. */
  pith_status (*add)(struct pith_measurer *self, pith_cspan x, float *sum);
  void (*destroy)(struct pith_measurer *self);
} pith_measurer;

#endif

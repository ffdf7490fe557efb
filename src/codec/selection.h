/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which values a sparsifier sends, and walking through them.
 *
 * A pith_pick says which: everything above a cut, and the first few that equal it, so that an exact number travels
 * whatever the ties. A pith_picker walks through them in order, in batches; it can be rewound, since writers pass
 * twice.
 *
 * Finding the exact cut costs one pass in the usual case: a sample brackets it, the values within the bracket are
 * copied to scratch, and the cut is selected among these few. A sample that misled is noticed, and then three
 * histograms over the whole tensor, which cannot fail, find the cut digit by digit.
 */
#ifndef PITH_CODEC_SELECTION_H
#define PITH_CODEC_SELECTION_H

#include "base/arena.h"
#include "base/size.h"
#include "codec/codec.h"
#include "kernel/kernel.h"

#define PITH_TILE 4096 /* values scanned at a time */
#define PITH_TIES_ALL SIZE_MAX
#define PITH_CUT_NONE 0x7fffffffu /* with no ties: above every key */

typedef struct pith_pick {
  pith_cspan src;
  const uint32_t *map; /* where the values of src stand in the tensor; NULL: src is the tensor */
  pith_side side;
  uint32_t cut;
  size_t ties; /* how many of the values at the cut itself travel, lowest index first */
} pith_pick;

/* The buffers of a picker, each for PITH_TILE values. */
typedef struct pith_tile {
  float *loaded, *value;
  uint32_t *place;
} pith_tile;

typedef struct pith_picker {
  pith_pick pick;
  pith_tile tile;
  size_t at, ties;
  uint64_t base; /* the batch: values tile.value[i] at base + tile.place[i], i < count */
  size_t count;
} pith_picker;

pith_tile pith__tile_take(pith_arena *arena);

pith_picker pith__picker_of(pith_pick pick, pith_tile tile);
int pith__picker_next(pith_picker *p); /* the next batch, never empty; 0 at the end */
void pith__picker_rewind(pith_picker *p);

/* Everything of a side at or above a cut. */
pith_pick pith__pick_all(pith_cspan src, pith_side side, uint32_t cut);

/* What finding a cut takes besides: under 4% of the tensor's size in f32 if that is large. */
typedef struct pith_selector {
  pith_tile tile;
  uint32_t *bins;
  uint64_t *totals;
  float *sample; /* NULL for small tensors, which are not sampled */
  size_t samples;
  float *candidate; /* capacity + PITH_TILE places in each */
  uint32_t *candidate_place;
  size_t capacity;
} pith_selector;

pith_selector pith__selector_take(pith_arena *arena, size_t n);

/* How many values of a side are at or above a cut. */
size_t pith__span_count(pith_cspan src, pith_side side, uint32_t cut, float *buffer);

/* Exactly the k largest: k ≤ n, and of one side at most as many as are not zero. The pick may point into the selector's
 * scratch. */
pith_pick pith__select_top(const pith_selector *s, pith_cspan src, pith_side side, size_t k, const pith_ctx *ctx);

/* About the k largest |x|: between k / 2 and 2k of them, by a cut from a sample or from a fitted tail. */
pith_pick pith__select_sampled(const pith_selector *s, pith_cspan src, size_t k, const pith_ctx *ctx);
pith_pick pith__select_fit(const pith_selector *s, pith_cspan src, size_t k, const pith_ctx *ctx);

/* ⌈ratio · n⌉, at least 1 and at most n; 0 for n = 0. */
size_t pith__ratio_count(double ratio, size_t n);

#endif

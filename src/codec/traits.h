/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What Pith's own codecs tell about themselves beyond their public table, so that the layers above know no codec by
 * name: how the planner tries, prices and measures them, and how the GPU layer describes them to its kernels.
 *
 * Every field is optional. Codecs without traits, such as those of plug-ins, are measured by encoding and decoding and
 * have no kernels on GPUs.
 */
#ifndef PITH_CODEC_TRAITS_H
#define PITH_CODEC_TRAITS_H

#include <pith/plugin.h>

#include "kernel/formats.h"

/* Which kernels a codec has on GPUs. */
typedef enum pith_gpu_kind {
  PITH_GPU_NO_KERNELS = 0,
  PITH_GPU_BLOCKS,
  PITH_GPU_SPARSE,
  PITH_GPU_LOWRANK,
  PITH_GPU_LOSSLESS,
} pith_gpu_kind;

/* Low rank whose columns do not depend on those behind them: the first r of a run are, bit for bit, a run of rank r. */
typedef struct pith_nested {
  size_t (*rank)(const pith_value *a);
  /* What column k takes off the squared norm of a layer of n values. `part` is what the codec keeps between steps. */
  double (*energy)(const pith_value *a, size_t n, uint64_t rows, const void *part, size_t k);
  /* How many bytes at the beginning of the part are columns between steps, for a layer of n values. */
  size_t (*columns)(const pith_value *a, size_t n, uint64_t rows);
} pith_nested;

typedef struct pith_codec_traits {
  /* ---- For the planner ---- */
  int exact;                           /* decoding gives back what was encoded, and costs nothing */
  const char *const *variants;         /* more parameters to try with every strength, as text for a spec; ends with
                                          NULL. The first is "": none of them */
  const char *const *beside;           /* of codecs without a strength: specs of other codecs to try in its place; ends
                                          with NULL */
  double (*cost)(const pith_value *a); /* seconds for a value, over those with default parameters; NULL: always 1 */
  /* Where only the k largest of n values travel, without loss: k, and the bytes to expect where they lie without order.
   * Returns 0 where these arguments mean anything else. */
  int (*largest)(const pith_value *a, size_t n, size_t *k, double *bytes);
  const pith_nested *nested;

  /* ---- For GPUs ---- */
  pith_gpu_kind gpu;
  /* What these arguments lack on GPUs, as the end of a sentence; NULL: nothing. */
  const char *(*gpu_lacks)(const pith_value *a);
  /* Whether an incomplete last block is a task of its own, of another kind; not behind a rotation. NULL: never. */
  int (*gpu_tail_apart)(const pith_value *a);
  /* The codec's part of a task of its kind. Everything else, n among it, is filled in before. Blocks find `kind` = the
   * wire id, `bits` = 8 and `bucket` = block(); they may leave all three. */
  void (*gpu_block)(const pith_value *a, const pith_ctx *ctx, pith_gpu_task *task);
  void (*gpu_sparse)(const pith_value *a, const pith_ctx *ctx, pith_gpu_sparse *task);
  void (*gpu_lowrank)(const pith_value *a, const pith_ctx *ctx, pith_gpu_lowrank *task);
} pith_codec_traits;

#endif

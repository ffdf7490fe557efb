/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks exchange momentum in place of gradients. This is for layers whose spec begins with `moment`, and for optimizers
 * such as Adam once their variance is frozen. Part of the public API; pith.h includes it. docs/reducer.md, "Momentum",
 * has the formulas.
 *
 *   pith_reducer_set_spec(reducer, fc1, "moment/onebit");      // the variance is frozen from now on
 *   pith_update u = PITH_UPDATE_INIT;
 *   u.index = fc1, u.moment = exp_avg, u.keep = 1, u.fold = beta;
 *   pith_reducer_update(reducer, &u, 1, NULL);                 // the first momentum joins the residual
 *
 *   pith_reducer_start(reducer, fc1, gradient);                // every step; what comes back is the mean momentum …
 *   pith_reducer_finish(reducer);
 *   u.gradient = gradient, u.take = 1, u.keep = 0;             // … and one pass does the rest of the step
 *   u.parameter = weights, u.variance = exp_avg_sq, u.rate = …;
 *   pith_reducer_update(reducer, &u, 1, NULL);
 */
#ifndef PITH_OPTIMIZER_H
#define PITH_OPTIMIZER_H

#include <pith/comm.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a spec says about momentum. The codec itself uses only beta; the other fields are for the code that drives the
 * optimizer. */
typedef struct pith_moment {
  size_t size;    /* sizeof(pith_moment) */
  double beta;    /* weight of the past in the momentum */
  double freeze;  /* when the variance is frozen. 0: when it has settled; below 1: after that share of the run; else at
                     that step */
  unsigned every; /* one of this many steps is exchanged, the others are local */
  unsigned warm;  /* bits of the gradients before the variance is frozen; 0: they are exact */
} pith_moment;

#define PITH_MOMENT_INIT {.size = sizeof(pith_moment)}

/* 1 if the codec's memory is `moment`, else 0. If it is, *moment (optional) is filled in. */
PITH_API int pith_codec_moment(const pith_codec *codec, pith_moment *moment);

/* Gives a layer another spec, between two steps; every rank does the same. A residual of gradients is kept: it is
 * converted to units of momentum if the new spec sends momentum, and added to the gradients of the next 16 steps if the
 * new spec has no residual. A residual of momentum is kept only if the new spec sends momentum too; otherwise it is
 * dropped. An adaptive spec pauses while any of its layers has a spec that was set; NULL returns the layer to it.
 * PITH_ERR_STATE: a step is under way, or the layer is exact or a shard and cannot have its spec set. CUDA graphs
 * captured before must be captured again. */
PITH_API pith_status pith_reducer_set_spec(pith_reducer *reducer, size_t index, const char *spec);

/* One layer's part of an optimizer's step. Values have the layer's type, except those of `start`, which are f32; all
 * arithmetic is f32. A factor of 0 on the old moment or on the gradient leaves that term out, even if its values are
 * NaN or Inf. */
typedef struct pith_update {
  size_t size;          /* sizeof(pith_update) */
  size_t index;         /* of the layer in the reducer */
  const void *gradient; /* NULL: take is 0 */
  void *moment;         /* NULL: keep is 0, and the moment is not stored */
  const void *variance; /* NULL: the moment is divided by 1 */
  void *parameter;      /* NULL: only moment and residual change */
  float *start; /* NULL, or f32 parameters: read as the base and overwritten with the result, as after local steps */
  float keep, take;    /* moment = keep · moment + take · gradient */
  float decay, rate;   /* parameter = decay · base − rate · moment / (root · √variance + epsilon) */
  float root, epsilon; /* … where base is the parameter, or start */
  float pass, fold;    /* residual = pass · residual + fold · moment, if the layer's spec is `moment/…` */
} pith_update;

#define PITH_UPDATE_INIT {.size = sizeof(pith_update), .decay = 1, .root = 1, .pass = 1}

/* Updates layers in place, between two steps, each layer at most once in a call. With options.cuda all values are in
 * memory of the reducer's device and the work is enqueued on `stream`; if that is not the reducer's stream, the caller
 * orders the two. Otherwise `stream` is not used. Gives the same bits on every CPU and GPU. Does not communicate. */
PITH_API pith_status pith_reducer_update(pith_reducer *reducer, const pith_update *updates, size_t count, void *stream);

/* Gives access to the residual of a layer: one float for each of its values, in the memory space of its gradients. NULL
 * if its spec keeps no residual. The memory belongs to the reducer and stays valid until the spec changes or a
 * checkpoint is loaded. PITH_ERR_UNSUPPORTED: the residual is kept in fewer bits (`moment,store=8`). */
PITH_API pith_status pith_reducer_residual(pith_reducer *reducer, size_t index, float **residual);

/* Writes the residual of a layer to `to`, between two steps, in whatever format it is kept: one float for each value of
 * the layer. With options.cuda `to` is in memory of the reducer's device, and the work is enqueued on `stream`, as with
 * pith_reducer_update(). PITH_ERR_STATE: a step is under way, or the spec keeps no residual. */
PITH_API pith_status pith_reducer_copy_residual(pith_reducer *reducer, size_t index, float *to, void *stream);

#ifdef __cplusplus
}
#endif
#endif

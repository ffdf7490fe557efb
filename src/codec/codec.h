/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A codec object: at most one memory, at most one transform, one codec, with their parameters.
 *
 * This layer runs transform and codec ("the chain"). Memories are described here; src/memory/ keeps their values and
 * runs them around the chain. Callers of this layer have checked spans and contexts and bring scratch.
 */
#ifndef PITH_CODEC_CODEC_H
#define PITH_CODEC_CODEC_H

#include "base/arena.h"
#include "base/spec.h"
#include "base/status.h"
#include "codec/traits.h"

/* An invertible step on blocks of f32 values, before the codec. */
typedef struct pith_transform_ops {
  const char *name, *family, *summary, *origin, *detail, *use;
  const pith_param *params;
  pith_status (*check)(const pith_value *a); /* optional: what the single ranges cannot say */
  size_t (*block)(const pith_value *a);
  /* n ≤ block() values in place; `index` is the place of x[0] in the layer. */
  pith_status (*forward)(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx);
  pith_status (*inverse)(const pith_value *a, float *x, size_t n, uint64_t index, const pith_ctx *ctx);
  void (*gpu_block)(const pith_value *a, pith_gpu_task *task); /* as in traits.h; NULL: GPUs have no kernel */
} pith_transform_ops;

typedef enum pith_keeps { PITH_KEEPS_RESIDUAL = 1, PITH_KEEPS_MOMENTUM = 2 } pith_keeps;

/* What stays of the values that were handed to the codec. */
typedef enum pith_after {
  PITH_AFTER_KEEP = PITH_GPU_KEEP_ALL,      /* all */
  PITH_AFTER_SUBTRACT = PITH_GPU_KEEP_LOST, /* what decoding does not give back */
  PITH_AFTER_CLEAR = PITH_GPU_KEEP_UNSENT,  /* what was not sent; the sent places start again, in the momentum too */
} pith_after;

/* beta · (what was kept) + gamma · (the gradient) */
typedef struct pith_blend {
  float beta, gamma;
} pith_blend;

/* A memory: which values it has encoded for a gradient, and what stays of them. src/memory runs it. */
typedef struct pith_memory_ops {
  const struct pith_memory_ops *in_place_of; /* the memory of presets that it can replace; NULL: none */
  const char *name, *summary, *origin, *detail, *use;
  const pith_param *params;
  pith_status (*check)(const pith_value *a); /* optional: what the single ranges cannot say */
  uint32_t needs, refuses;                   /* pith_cap bits that the codec behind it must have, and must not have */
  unsigned keeps;                            /* pith_keeps bits */
  pith_keeps accumulator;                    /* the buffer that holds what the codec was given */
  pith_after after;
  /* How a gradient, times gamma, joins what was kept: the momentum where there is one, else the residual. NULL in
   * memories from outside, which GPUs cannot run. */
  pith_blend (*blend)(const pith_value *a, float gamma);
  /* p = the values to send for gradient values g; p may be the accumulator. gamma: the factor on g. */
  pith_status (*compensate)(const pith_value *a, const pith_kept *kept, const float *g, float gamma, float *p,
                            size_t n);
  /* Optional: how the residual is kept. NULL: in f32. */
  pith_store (*store)(const pith_value *a);
  /* Optional: the factor on gradients that a reducer gives as gamma. It is no part of blend(), which results and sums
   * of several ranks go through, too. NULL: 1. */
  float (*gain)(const pith_value *a);
  /* Optional: the largest norm that the whole gradient may have, beyond which it is scaled down; 0: any. */
  double (*limit)(const pith_value *a, const pith_ctx *ctx);
} pith_memory_ops;

/* A name for a combination. `made_of` is a spec with {key} for the values of its parameters. Where the first parameter
 * is a choice between several combinations, `each` has one such spec for every choice, and `made_of` tells of them. */
typedef struct pith_preset {
  const char *name, *family, *summary, *bits, *origin, *made_of, *use;
  const char *const *each;
  int survey;
  const pith_param *params;
} pith_preset;

/* What the first parameter of a method means. Its key decides: that is how plug-ins say it, too. */
typedef enum pith_strength {
  PITH_STRENGTH_NONE = 0,
  PITH_STRENGTH_BITS,
  PITH_STRENGTH_RATIO,
  PITH_STRENGTH_RANK,
  PITH_STRENGTH_LEVELS,    /* beside zero, for each sign: 2^k − 1 of them fill k bits */
  PITH_STRENGTH_TABLE,     /* entries of a table: 2^k of them fill k bits */
  PITH_STRENGTH_MAGNITUDE, /* a size of values or errors: the larger, the more is lost */
} pith_strength;

struct pith_codec {
  char spec[PITH_SPEC_MAX], parts[PITH_SPEC_MAX];
  uint64_t fingerprint;
  uint32_t caps;
  size_t granule; /* values; 0 for whole codecs */
  size_t tile;    /* granules worked on at a time, so that intermediate values stay in the first-level cache */
  const pith_memory_ops *memory;
  const pith_transform_ops *transform;
  const pith_codec_ops *ops;
  const pith_codec_traits *traits; /* never NULL */
  pith_strength strength;          /* of the codec or preset that the spec names last */
  pith_value memory_args[PITH_PARAMS_MAX], transform_args[PITH_PARAMS_MAX], args[PITH_PARAMS_MAX];
};

/* Whether payloads are those of blocks, one after another. Other codecs encode a tensor, or a piece of one, at once. */
static inline int pith__codec_has_blocks(const pith_codec *codec) {
  return (codec->caps & PITH_CAP_CHUNKED) && codec->ops->encode_block;
}

/* The parameter of memories that says how a residual is kept. */
#define PITH_PARAM_STORE "store"

static inline pith_store pith__codec_store(const pith_codec *codec) {
  return codec->memory && codec->memory->store ? codec->memory->store(codec->memory_args) : PITH_STORE_F32;
}

/* The gamma of gradients that a reducer sends by this codec. */
static inline float pith__codec_gamma(const pith_codec *codec) {
  return codec->memory && codec->memory->gain ? codec->memory->gain(codec->memory_args) : 1.0f;
}

/* Whether gradients arrive late: a step brings some of their values, or a low rank of them, and error feedback the rest
 * in later steps. */
static inline int pith__codec_delays(const pith_codec *codec) {
  int feeds_back = codec->memory && (codec->memory->keeps & PITH_KEEPS_RESIDUAL);
  int is_part = (codec->caps & PITH_CAP_SPARSE) || codec->strength == PITH_STRENGTH_RATIO ||
                codec->strength == PITH_STRENGTH_RANK;
  return feeds_back && is_part;
}

/* Scratch of the chain for n values: takes it from the arena (or only measures). */
void *pith__codec_take_scratch(const pith_codec *codec, size_t n, pith_arena *arena);

/* Transform and codec, no memory. `scratch` comes from pith__codec_take_scratch; out has room for the bound.
 * `part` is the codec's piece of a state, or NULL. */
pith_status pith__codec_encode(const pith_codec *codec, pith_cspan src, pith_out *out, void *part, void *scratch,
                               const pith_ctx *ctx);

/* The inverse. Any bytes are safe; on error dst is unchanged, unless a transform from outside failed. SUB and CLEAR are
 * for SPARSE and whole codecs. */
pith_status pith__codec_decode(const pith_codec *codec, pith_bytes in, pith_span dst, pith_apply apply, void *scratch,
                               const pith_ctx *ctx);

/* Values [first, first + n) of a span as f32: a pointer into it, or converted into buffer. */
const float *pith__span_load(pith_cspan span, size_t first, size_t n, float *buffer);

/* Writes n f32 values to [first, first + n) of a span, or adds them in f32. `buffer` (n values) is overwritten when
 * a half type is added to. */
void pith__span_store(pith_span span, size_t first, size_t n, const float *values, pith_mode mode, float *buffer);

/* One value of a span, and back. */
float pith__span_get(pith_cspan span, size_t i);
void pith__span_put(pith_span span, size_t i, float value);

/* Sums of f32 values and what becomes of them, for the layers above: they do not see the kernels. */
void pith__values_add(const float *src, float *dst, size_t n);
void pith__values_scale(float factor, float *x, size_t n);
void pith__values_vote(float *x, size_t n); /* the sign; 0 for a tie */

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/* The memories: ef, momentum, moment, dgc. Each says how what was kept compensates a gradient; src/memory does the
 * rest. */
#include <math.h>

#include "base/struct_size.h"
#include "codec/codec.h"
#include "kernel/kernel.h"

/* Its choices are those of pith_store. */
#define STORE_PARAM    \
  {sizeof(pith_param), \
   PITH_PARAM_STORE,   \
   PITH_PARAM_CHOICE,  \
   0,                  \
   0,                  \
   "f32",              \
   "f32|bf16|8",       \
   "how the residual is kept: 4, 2 or 1 byte a value; all but f32 round it, without bias"}

/* ---- ef: what was lost last time is added to the next gradient -------------------------------------------------- */

enum { EF_BETA, EF_STORE };

static const pith_param ef_params[] = {
    {sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 1, "1", NULL, "how much of the residual is carried on"},
    STORE_PARAM,
    {0},
};

static pith_store ef_store(const pith_value *a) { return (pith_store)a[EF_STORE].i; }

static pith_blend ef_blend(const pith_value *a, float gamma) { return (pith_blend){(float)a[EF_BETA].f, gamma}; }

static pith_status ef_compensate(const pith_value *a, const pith_kept *kept, const float *g, float gamma, float *p,
                                 size_t n) {
  pith_blend blend = ef_blend(a, gamma);
  pith__kernels()->blend(kept->residual, g, blend.beta, blend.gamma, p, n);
  return PITH_OK;
}

const pith_memory_ops pith__memory_ef = {
    .name = "ef",
    .summary = "error feedback: the residual of what was sent joins the next gradient",
    .origin = "Seide 2014, Karimireddy 2019",
    .detail =
        "one f32 for each value, or fewer bits with store=: what was not sent of it, plus as much of the results that "
        "this rank encodes for others",
    .use =
        "what makes topk, q:2, signmean and powersgd converge; seldom worth its memory for q:4 and more bits; "
        "not for votes and unbiased methods",
    .params = ef_params,
    .refuses = PITH_CAP_VOTE,
    .keeps = PITH_KEEPS_RESIDUAL,
    .accumulator = PITH_KEEPS_RESIDUAL,
    .after = PITH_AFTER_SUBTRACT,
    .blend = ef_blend,
    .compensate = ef_compensate,
    .store = ef_store,
};

/* ---- momentum: the running mean of gradients is sent ------------------------------------------------------------ */

enum { MOMENTUM_BETA };

static const pith_param momentum_params[] = {
    {sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 0.9999, "0.9", NULL, "weight of the past"},
    {0},
};

static pith_blend momentum_blend(const pith_value *a, float gamma) {
  float beta = (float)a[MOMENTUM_BETA].f;
  return (pith_blend){beta, (1.0f - beta) * gamma};
}

static pith_status momentum_compensate(const pith_value *a, const pith_kept *kept, const float *g, float gamma,
                                       float *p, size_t n) {
  pith_blend blend = momentum_blend(a, gamma);
  pith__kernels()->blend(kept->momentum, g, blend.beta, blend.gamma, p, n);
  return PITH_OK;
}

const pith_memory_ops pith__memory_momentum = {
    .name = "momentum",
    .summary = "the running mean of the gradients is sent in their place",
    .origin = "Bernstein 2018",
    .detail = "one f32 for each value: the running mean",
    .use = "with votes (signum); the optimizer then needs no momentum of its own",
    .params = momentum_params,
    .keeps = PITH_KEEPS_MOMENTUM,
    .accumulator = PITH_KEEPS_MOMENTUM,
    .after = PITH_AFTER_KEEP,
    .blend = momentum_blend,
    .compensate = momentum_compensate,
};

/* ---- moment: the optimizer's momentum is sent, and what was lost of it joins the next ---------------------------- */

enum { MOMENT_EVERY, MOMENT_BETA, MOMENT_FREEZE, MOMENT_WARM, MOMENT_STORE };

static const pith_param moment_params[] = {
    {sizeof(pith_param), "every", PITH_PARAM_INT, 1, 1024, "1", NULL, "one of so many steps is exchanged"},
    {sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 0.9999, "0.9", NULL, "weight of the past, as in the optimizer"},
    {sizeof(pith_param), "freeze", PITH_PARAM_REAL, 0, 1e9, "auto", "auto",
     "when the variance is frozen: auto, below 1 a share of the run, else a step"},
    {sizeof(pith_param), "warm", PITH_PARAM_INT, 0, 8, "0", NULL, "bits of gradients before that; 0: they are exact"},
    STORE_PARAM,
    {0},
};

static pith_store moment_store(const pith_value *a) { return (pith_store)a[MOMENT_STORE].i; }

static pith_status moment_check(const pith_value *a) {
  PITH_REQUIRE(a[MOMENT_WARM].i != 1, PITH_ERR_RANGE, "moment: warm=1 is out of range; it is 0, or goes from 2 to 8");
  return PITH_OK;
}

static pith_blend moment_blend(const pith_value *a, float gamma) {
  (void)a;
  return (pith_blend){1.0f, gamma};
}

static pith_status moment_compensate(const pith_value *a, const pith_kept *kept, const float *g, float gamma, float *p,
                                     size_t n) {
  (void)a;
  pith__kernels()->blend(kept->residual, g, 1.0f, gamma, p, n);
  return PITH_OK;
}

static float moment_gain(const pith_value *a) { return (float)(1.0 - a[MOMENT_BETA].f); }

const pith_memory_ops pith__memory_moment = {
    .in_place_of = &pith__memory_ef,
    .name = "moment",
    .summary = "the momentum of the optimizer is sent in place of gradients, with error feedback",
    .origin = "Tang 2021, Lu 2022",
    .detail =
        "one f32 for each value, or fewer bits with store=: the momentum that is to be sent next, apart from the next "
        "gradient, plus as much of the results that this rank encodes for others",
    .use = "with AdamW, whose variance is frozen after a warm-up: onebit, q:2, topk:0.05; needs the optimizer",
    .params = moment_params,
    .check = moment_check,
    .refuses = PITH_CAP_VOTE,
    .keeps = PITH_KEEPS_RESIDUAL,
    .accumulator = PITH_KEEPS_RESIDUAL,
    .after = PITH_AFTER_SUBTRACT,
    .blend = moment_blend,
    .compensate = moment_compensate,
    .store = moment_store,
    .gain = moment_gain,
};

int pith_codec_moment(const pith_codec *codec, pith_moment *moment) {
  if (!codec || codec->memory != &pith__memory_moment) {
    return 0;
  }
  const pith_value *a = codec->memory_args;
  pith_moment found = {.beta = a[MOMENT_BETA].f,
                       .freeze = a[MOMENT_FREEZE].f,
                       .every = (unsigned)a[MOMENT_EVERY].i,
                       .warm = (unsigned)a[MOMENT_WARM].i};
  return !moment || PITH_STRUCT_WRITE(pith_moment, &found, moment) == PITH_OK;
}

/* ---- dgc: momentum correction and factor masking ---------------------------------------------------------------- */

enum { DGC_MOMENTUM, DGC_CLIP };

static const pith_param dgc_params[] = {
    {sizeof(pith_param), "momentum", PITH_PARAM_REAL, 0, 0.999, "0.9", NULL, "weight of the past in u = m·u + g"},
    {sizeof(pith_param), "clip", PITH_PARAM_REAL, 0, 1e6, "0", NULL,
     "clip the gradient's norm at this, over the root of the ranks; 0: never"},
    {0},
};

static pith_blend dgc_blend(const pith_value *a, float gamma) { return (pith_blend){(float)a[DGC_MOMENTUM].f, gamma}; }

static pith_status dgc_compensate(const pith_value *a, const pith_kept *kept, const float *g, float gamma, float *p,
                                  size_t n) {
  float *u = kept->momentum, *v = kept->residual;
  pith_blend blend = dgc_blend(a, gamma);
  pith__kernels()->blend(u, g, blend.beta, blend.gamma, u, n);
  pith__kernels()->blend(v, u, 1.0f, 1.0f, p, n);
  return PITH_OK;
}

static double dgc_limit(const pith_value *a, const pith_ctx *ctx) {
  return a[DGC_CLIP].f / sqrt(ctx->ranks ? (double)ctx->ranks : 1.0);
}

const pith_memory_ops pith__memory_dgc = {
    .name = "dgc",
    .summary = "momentum is accumulated until it is sent, then both start again at that place",
    .origin = "Lin 2018",
    .detail = "two f32 for each value: the momentum and the values that wait",
    .use = "with topk, in place of the momentum of the optimizer: use plain SGD then",
    .params = dgc_params,
    .needs = PITH_CAP_SPARSE,
    .keeps = PITH_KEEPS_RESIDUAL | PITH_KEEPS_MOMENTUM,
    .accumulator = PITH_KEEPS_RESIDUAL,
    .after = PITH_AFTER_CLEAR,
    .blend = dgc_blend,
    .compensate = dgc_compensate,
    .limit = dgc_limit,
};

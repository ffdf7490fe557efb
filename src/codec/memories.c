/* The memories: ef, momentum, dgc. Each says how what was kept compensates a gradient; src/memory does the rest. */
#include <math.h>

#include "codec/codec.h"
#include "kernel/kernel.h"

/* ---- ef: what was lost last time is added to the next gradient -------------------------------------------------- */

enum { EF_BETA };

static const pith_param ef_params[] = {
    {sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 1, "1", NULL, "how much of the residual is carried on"},
    {0},
};

static pith_blend ef_blend(const pith_value *a, float gamma) { return (pith_blend){(float)a[EF_BETA].f, gamma}; }

static void ef_compensate(const pith_value *a, const pith_kept *kept, size_t first, const float *g, float gamma,
                          float *p, size_t n) {
  pith_blend blend = ef_blend(a, gamma);
  pith__kernels()->blend(kept->residual + first, g, blend.beta, blend.gamma, p, n);
}

const pith_memory_ops pith__memory_ef = {
    .name = "ef",
    .summary = "error feedback: the residual of what was sent joins the next gradient",
    .origin = "Seide 2014, Karimireddy 2019",
    .detail =
        "one f32 for each value: what was not sent of it, plus as much of the results that this rank "
        "encodes for others",
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

static void momentum_compensate(const pith_value *a, const pith_kept *kept, size_t first, const float *g, float gamma,
                                float *p, size_t n) {
  pith_blend blend = momentum_blend(a, gamma);
  pith__kernels()->blend(kept->momentum + first, g, blend.beta, blend.gamma, p, n);
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

/* ---- dgc: momentum correction and factor masking ---------------------------------------------------------------- */

enum { DGC_MOMENTUM, DGC_CLIP };

static const pith_param dgc_params[] = {
    {sizeof(pith_param), "momentum", PITH_PARAM_REAL, 0, 0.999, "0.9", NULL, "weight of the past in u = m·u + g"},
    {sizeof(pith_param), "clip", PITH_PARAM_REAL, 0, 1e6, "0", NULL,
     "clip the gradient's norm at this, over the root of the ranks; 0: never"},
    {0},
};

static pith_blend dgc_blend(const pith_value *a, float gamma) { return (pith_blend){(float)a[DGC_MOMENTUM].f, gamma}; }

static void dgc_compensate(const pith_value *a, const pith_kept *kept, size_t first, const float *g, float gamma,
                           float *p, size_t n) {
  float *u = kept->momentum + first, *v = kept->residual + first;
  pith_blend blend = dgc_blend(a, gamma);
  pith__kernels()->blend(u, g, blend.beta, blend.gamma, u, n);
  pith__kernels()->blend(v, u, 1.0f, 1.0f, p, n);
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

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The classic methods, taken apart: each is a memory, a transform and a codec that exist by themselves, so that
 * "error feedback with sign" is one piece of code and not one for each paper. Sizes and choices of the parts are
 * checked where the parts are.
 */
#include "codec/block.h"
#include "codec/registry.h"

#define SIGN_BUCKET PITH_PARAM_BUCKET("4096")
#define BLOCK                                       \
  {sizeof(pith_param), "block", PITH_PARAM_INT, 64, \
   PITH_BLOCK_MAX,     "4096",  NULL,           "values rotated together; a power of two"}

static const pith_param sign_params[] = {SIGN_BUCKET, {0}};

static const pith_param mean_params[] = {PITH_PARAM_BUCKET("512"), {0}};

static const pith_param onebit_params[] = {
    PITH_PARAM_BUCKET("512"),
    {sizeof(pith_param), "means", PITH_PARAM_CHOICE, 0, 0, "bucket", "bucket|column",
     "of which values the means are; column: all weights into one unit, where the shape is known"},
    {0},
};

static const pith_param drive_params[] = {BLOCK, {0}};

static const pith_param signum_params[] = {
    {sizeof(pith_param), "beta", PITH_PARAM_REAL, 0, 0.9999, "0.9", NULL, "share of the old momentum that is kept"},
    SIGN_BUCKET,
    {0},
};

static const pith_param eden_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 1, 4, "2", NULL, "bits of a level"},
    BLOCK,
    {0},
};

static const pith_param dgc_params[] = {
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-6, 1, "0.01", NULL, "share of the values that travels"},
    {sizeof(pith_param), "momentum", PITH_PARAM_REAL, 0, 0.999, "0.9", NULL,
     "momentum that the values gather while they wait"},
    {sizeof(pith_param), "clip", PITH_PARAM_REAL, 0, 1e6, "0", NULL,
     "largest norm of a layer's gradient over all ranks; 0: no limit"},
    {sizeof(pith_param), "values", PITH_PARAM_CHOICE, 0, 0, "fp32", "fp32|fp16|bf16|q8", "how the values travel"},
    {sizeof(pith_param), "warmup", PITH_PARAM_INT, 0, 1e9, "0", NULL,
     "steps over which the ratio falls to its value; 0: none"},
    {0},
};

static const pith_param adaq_params[] = {
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-9, 1, "0.01", NULL, "share of either side's values that travels"},
    {0},
};

static const pith_param mxfp8_params[] = {
    {sizeof(pith_param), "type", PITH_PARAM_CHOICE, 0, 0, "e4m3", "e4m3|e5m2", "bits of exponent and mantissa"},
    {0},
};

static const pith_param mxfp6_params[] = {
    {sizeof(pith_param), "type", PITH_PARAM_CHOICE, 0, 0, "e2m3", "e2m3|e3m2", "bits of exponent and mantissa"},
    {0},
};

static const pith_param mxfp4_params[] = {{0}};

static const pith_preset mxfp8 = {
    .name = "mxfp8",
    .family = "quantization",
    .summary = "floats of 8 bits; 32 values share a power of two",
    .bits = "8 + 8/32",
    .origin = "OCP Microscaling Formats 1.0 (2023)",
    .use = "8 bits for values that differ by orders of magnitude",
    .made_of = "mx:{type}",
    .params = mxfp8_params,
};

static const pith_preset mxfp6 = {
    .name = "mxfp6",
    .family = "quantization",
    .summary = "floats of 6 bits; 32 values share a power of two",
    .bits = "6 + 8/32",
    .origin = "OCP Microscaling Formats 1.0 (2023)",
    .use = "6 bits for values that differ by orders of magnitude",
    .made_of = "mx:{type}",
    .params = mxfp6_params,
};

static const pith_preset mxfp4 = {
    .name = "mxfp4",
    .family = "quantization",
    .summary = "floats of 4 bits; 32 values share a power of two",
    .bits = "4 + 8/32",
    .origin = "OCP Microscaling Formats 1.0 (2023)",
    .use = "4 bits for values that differ by orders of magnitude",
    .made_of = "mx:e2m1",
    .params = mxfp4_params,
};

static const pith_preset signsgd = {
    .name = "signsgd",
    .family = "quantization",
    .summary = "the sign of each value, joined by majority vote",
    .bits = "1 + 1/32 + 32/bucket",
    .origin = "Bernstein 2018",
    .use = "one bit a value where the optimizer's step size is that of a sign method, about a hundredth of SGD's",
    .made_of = "sign,bucket={bucket}",
    .survey = 1,
    .params = sign_params,
};

static const pith_preset signum = {
    .name = "signum",
    .family = "quantization",
    .summary = "the sign of the momentum, joined by majority vote",
    .bits = "1 + 1/32 + 32/bucket",
    .origin = "Bernstein 2018",
    .use = "like signsgd, with less noise",
    .made_of = "momentum:{beta}/sign,bucket={bucket}",
    .survey = 1,
    .params = signum_params,
};

static const pith_preset efsignsgd = {
    .name = "efsignsgd",
    .family = "quantization",
    .summary = "signs times the mean magnitude, with error feedback",
    .bits = "1 + 32/bucket",
    .origin = "Karimireddy 2019",
    .use = "one bit a value with the step size of the uncompressed run",
    .made_of = "ef/sign,scale=mean,bucket={bucket}",
    .survey = 1,
    .params = sign_params,
};

static const pith_preset onebit = {
    .name = "onebit",
    .family = "quantization",
    .summary = "signs, and the means of both sides, with error feedback",
    .bits = "1 + 64/bucket",
    .origin = "Seide 2014",
    .use = "one bit a value with the step size of the uncompressed run",
    .made_of = "ef/signmean,bucket={bucket},means={means}",
    .survey = 1,
    .params = onebit_params,
};

static const pith_preset u8 = {
    .name = "u8",
    .family = "quantization",
    .summary = "the 8-bit dynamic tree type, with error feedback",
    .bits = "8 + 32/bucket",
    .origin = "Dettmers 2015",
    .use = "8 bits for values of very different sizes",
    .made_of = "ef/tree8,bucket={bucket}",
    .survey = 1,
    .params = mean_params,
};

static const pith_preset drive = {
    .name = "drive",
    .family = "quantization",
    .summary = "signs after a random rotation, scaled so that ⟨x, x̂⟩ = ‖x‖²",
    .bits = "1 + 32/block",
    .origin = "Vargaftik 2021",
    .use = "one bit a value without a memory; nearly unbiased where many values of a block count, not where a few do",
    .made_of = "hadamard:{block}/sign,scale=unbiased,bucket={block}",
    .params = drive_params,
};

static const pith_preset eden = {
    .name = "eden",
    .family = "quantization",
    .summary = "the best levels for a normal distribution, after a random rotation",
    .bits = "bits + 32/block",
    .origin = "Vargaftik 2022",
    .use =
        "1 to 4 bits a value without a memory; nearly unbiased where many values of a block count, not where a few do",
    .made_of = "hadamard:{block}/lloyd:{bits},bucket={block}",
    .params = eden_params,
};

static const pith_preset dgc = {
    .name = "dgc",
    .family = "sparsification",
    .summary = "the largest values; the others accumulate momentum until they are sent",
    .bits = "ratio·(32 + log2(1/ratio) + 1.5)",
    .origin = "Lin 2018",
    .use =
        "80 times fewer bytes with the effect of momentum: use SGD without momentum, at the step size of the "
        "run with it",
    .made_of = "dgc:{momentum},clip={clip}/topk:{ratio},select=sampled,values={values},warmup={warmup}",
    .survey = 1,
    .params = dgc_params,
};

static const pith_preset adaq = {
    .name = "adaq",
    .family = "sparsification",
    .summary = "adaptive with error feedback, as its authors define it",
    .bits = "ratio*(log2(1/ratio)+2.5)",
    .origin = "Dryden 2016",
    .use = "fewer bytes than ef/topk at the same ratio, and a larger error",
    .made_of = "ef/adaptive:{ratio}",
    .params = adaq_params,
};

/* ---- As others have them: docs/fidelity.md ----------------------------------------------------------------------- */

/* Buckets as large as there are: GRACE takes one scale for a tensor. */
static const pith_param grace_params[] = {
    {sizeof(pith_param), "method", PITH_PARAM_CHOICE, 0, 0, "topk",
     "topk|randomk|threshold|dgc|adaptive|sketchml|powersgd|qsgd|terngrad|natural|signsgd|signum|efsignsgd|onebit|u8|"
     "inceptionn",
     "of the survey"},
    {sizeof(pith_param), "ratio", PITH_PARAM_REAL, 1e-6, 1, "0.01", NULL,
     "topk, randomk, dgc, adaptive: share that travels"},
    {sizeof(pith_param), "rank", PITH_PARAM_INT, 1, 256, "1", NULL, "powersgd: rank of the factors"},
    {0},
};

static const char *const grace_each[] = {
    "ef/topk:{ratio}",
    "ef/randomk:{ratio}",
    "ef/threshold:0.01",
    "dgc:0.9/topk:{ratio},select=sampled",
    "ef/adaptive:{ratio}",
    "sketchml:64",
    "ef/powersgd:{rank}",
    "qsgd:127,bucket=128,encode=once",
    "terngrad:2.5,bucket=65536,encode=once",
    "natural,encode=once",
    "sign,encode=once",
    "momentum:0.9/sign,encode=once",
    "ef/sign,scale=mean,bucket=65536,encode=once",
    "ef/signmean,bucket=65536,encode=once",
    "ef/tree8,bucket=65536,encode=once",
    "inceptionn:0.0009765625,encode=once",
};

static const pith_preset grace = {
    .name = "grace",
    .family = "as elsewhere",
    .summary = "a method of the survey with the parameters that GRACE gives it",
    .bits = "those of the method",
    .origin = "Xu 2020 (GRACE)",
    .use = "to compare with results of GRACE; the methods by their own names have better buckets",
    .made_of = "what docs/fidelity.md says of the method",
    .each = grace_each,
    .params = grace_params,
};

static const pith_param cgx_params[] = {
    {sizeof(pith_param), "bits", PITH_PARAM_INT, 1, 8, "4", NULL, "bits of a level"},
    PITH_PARAM_BUCKET("512"),
    {sizeof(pith_param), "tail", PITH_PARAM_CHOICE, 0, 0, "quantized", "quantized|exact",
     "values of an incomplete last bucket; exact: they are sent as f32"},
    {0},
};

static const pith_preset cgx = {
    .name = "cgx",
    .family = "as elsewhere",
    .summary = "max-min quantization with stochastic rounding, as in CGX",
    .bits = "bits + 64/bucket",
    .origin = "Markov 2022 (CGX)",
    .use = "to compare with results of CGX; q rounds to nearest, with a smaller error in each step",
    .made_of = "q:{bits},bucket={bucket},round=stochastic,tail={tail}",
    .params = cgx_params,
};

const pith_preset *const pith__builtin_presets[] = {&signsgd, &signum, &efsignsgd, &onebit, &u8,
                                                    &mxfp8,   &mxfp6,  &mxfp4,     &drive,  &eden,
                                                    &dgc,     &adaq,   &grace,     &cgx,    NULL};

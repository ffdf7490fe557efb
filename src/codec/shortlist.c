/* SPDX-License-Identifier: Apache-2.0 */
/* What planning starts from: see shortlist.h. */
#include "codec/shortlist.h"

#define EACH PITH_PLAN_UNIFORM, PITH_PLAN_BYTES
#define FEWEST_BYTES PITH_PLAN_LGRECO, PITH_PLAN_BYTES
#define LEAST_TIME PITH_PLAN_LGRECO, PITH_PLAN_TIME

const char *const pith__shortlist[] = {"none", "bf16", "eden:2", "q:4", "ef/topk:0.01", "ef/powersgd:4", NULL};

const char *const pith__shortlist_timed[PITH_SHORTLIST_TIMED] = {"bf16", "q:4", "ef/topk:0.01", "ef/powersgd:4",
                                                                 "eden:2"};

const pith_shortlist_plan pith__shortlist_plans[PITH_SHORTLIST_PLANS] = {
    {"none", EACH, "none", NULL, 0},
    {"bf16", EACH, "bf16", NULL, 1},
    {"q:8", EACH, "q:8", NULL, 2},
    {"q:4", EACH, "q:4", NULL, 3},
    {"lgreco:q:4", FEWEST_BYTES, "q:4", "q,none", 3},
    {"ef/topk:0.01", EACH, "ef/topk:0.01", NULL, 4},
    {"lgreco:ef/topk:0.01", FEWEST_BYTES, "ef/topk:0.01", "topk,none", 4},
    {"ef/powersgd:4", EACH, "ef/powersgd:4", NULL, 5},
    {"lgreco:ef/powersgd:4", FEWEST_BYTES, "ef/powersgd:4", "powersgd,none", 5},
    {"a mix within q:4", LEAST_TIME, "q:4", PITH_MIX, 6},
    {"a mix within ef/powersgd:4", LEAST_TIME, "ef/powersgd:4", PITH_MIX, 6},
};

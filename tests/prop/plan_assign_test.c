/* SPDX-License-Identifier: Apache-2.0 */
/* Laws of all ways to a plan, on random statistics: within the budget, no larger than the uniform spec, and no way is
 * smaller than lgreco, whose search has all of their plans in it. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "codec/selection.h"
#include "profile/profile.h"
#include "solve/methods.h"
#include "test.h"

enum { LAYERS_MOST = 12, PROFILES = 60 };

static const pith_plan_method methods[] = {PITH_PLAN_LGRECO, PITH_PLAN_KMEANS, PITH_PLAN_CGX,   PITH_PLAN_LINEAR,
                                           PITH_PLAN_BEST,   PITH_PLAN_BAYES,  PITH_PLAN_GLOBAL};
enum { METHODS = sizeof methods / sizeof *methods };

typedef struct family {
  const char *uniform, *around; /* candidates are those around the second */
} family;

static const family families[] = {
    {"q:4", "q:4"}, {"ef/topk:0.01", "ef/topk:0.01"}, {"ef/powersgd:4", "ef/powersgd:4"}, {"qsgd:31", "qsgd:64"}};
enum { FAMILIES = sizeof families / sizeof *families };

/* Statistics as gradients would give them: less error for more bytes, in proportion to the norm, with some noise. */
static pith_profile *random_profile(const family *f) {
  char candidates[8192], names[LAYERS_MOST][32];
  size_t layers = 1 + test_below(LAYERS_MOST), shapes[LAYERS_MOST][2], count;
  pith_layer layer[LAYERS_MOST];
  pith_profile *p;
  CHECK_OK(pith_plan_candidates(f->around, candidates, sizeof candidates));
  snprintf(candidates + strlen(candidates), sizeof candidates - strlen(candidates), ";none");
  for (size_t l = 0; l < layers; l++) {
    snprintf(names[l], sizeof names[l], "layer%zu", l);
    shapes[l][0] = 16 << test_below(6);
    shapes[l][1] = 80 << test_below(5);
    layer[l] = (pith_layer){sizeof(pith_layer), names[l], shapes[l], 1 + (test_below(8) > 0), PITH_F32, NULL};
  }
  CHECK_OK(pith_profile_create(layer, layers, candidates, &p));
  pith_profile_values(p, &count);
  for (size_t l = 0; l < layers; l++) {
    double *sums = pith__sums(p, l), *errors = pith__sum_errors(p, l);
    double norm = exp(8 * test_uniform()), decay = 0.1 + 0.8 * test_uniform();
    sums[PITH_SUM_SAMPLES] = 1;
    sums[PITH_SUM_NORM] = norm;
    sums[PITH_SUM_TOP] = norm * (0.1 + 0.8 * test_uniform());
    for (size_t c = 0; c + 1 < p->candidates; c++) {
      double strength = pith__strength_of(p->codec[c]);
      sums[PITH_SUM_BYTES + c] = ceil((double)p->layer[l].n * strength / 50 * (0.95 + 0.1 * test_uniform()));
      errors[c] = norm * exp(-decay * log1p(strength)) * (0.9 + 0.2 * test_uniform());
    }
    sums[PITH_SUM_BYTES + p->candidates - 1] = 4 * (double)p->layer[l].n;
  }
  return p;
}

typedef struct totals {
  double bytes, error, largest; /* largest: strength of a layer, over that of the uniform spec */
} totals;

/* From the profile, by the metric, whatever the plan says of itself. */
static totals totals_of(const pith_profile *p, const pith_plan *plan, pith_plan_metric metric, const char *uniform) {
  totals t = {0, 0, 0};
  size_t reference;
  CHECK_OK(pith__profile_find(p, uniform, &reference));
  for (size_t l = 0; l < p->layers; l++) {
    pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
    size_t c;
    double bytes, error;
    CHECK_OK(pith_plan_layer_get(plan, l, &layer));
    CHECK_OK(pith__profile_find(p, layer.spec, &c));
    CHECK_OK(pith_profile_get(p, l, c, &bytes, &error));
    t.bytes += bytes;
    t.error += metric == PITH_PLAN_L2 ? sqrt(error) : error;
    double strength = p->codec[c]->traits->exact ? INFINITY : pith__strength_of(p->codec[c]);
    t.largest = p->layer[l].fixed ? t.largest : fmax(t.largest, strength / pith__strength_of(p->codec[reference]));
  }
  return t;
}

static totals make(const pith_profile *p, pith_plan_request r) {
  pith_plan *plan = NULL;
  pith_plan_info info = PITH_PLAN_INFO_INIT;
  r.size = sizeof r;
  r.families = "mix";
  CHECK_OK(pith_plan_make(p, &r, &plan));
  CHECK_OK(pith_plan_info_get(plan, &info));
  totals t = totals_of(p, plan, r.metric, r.uniform);
  CHECK_STR(info.metric, r.metric == PITH_PLAN_L2 ? "l2" : "l2sq");
  CHECK_NEAR(info.error, t.error, 1e-9 * t.error);
  CHECK_MSG(t.error <= info.budget * (1 + 1e-12), "%s over budget: %.17g of %.17g", info.method, t.error, info.budget);
  pith_plan_destroy(plan);
  return t;
}

static int suits(pith_plan_method method, const family *f) {
  return method != PITH_PLAN_GLOBAL || strstr(f->uniform, "topk");
}

TEST(every_way_keeps_the_budget_and_is_no_larger_than_uniform) {
  size_t smaller[METHODS] = {0};
  for (size_t i = 0; i < PROFILES; i++) {
    const family *f = &families[i % FAMILIES];
    pith_profile *p = random_profile(f);
    for (int metric = 0; metric < 2; metric++) {
      pith_plan_request r = {.uniform = f->uniform, .metric = (pith_plan_metric)metric};
      pith_plan *uniform;
      CHECK_OK(pith_plan_uniform(p, f->uniform, &uniform));
      double most = totals_of(p, uniform, r.metric, f->uniform).bytes, least = make(p, r).bytes;
      pith_plan_destroy(uniform);
      for (size_t k = 0; k < METHODS; k++) {
        r.method = methods[k];
        if (suits(r.method, f)) {
          double bytes = make(p, r).bytes;
          CHECK_MSG(bytes <= most, "method %d: %g bytes, uniform has %g", (int)r.method, bytes, most);
          CHECK_MSG(bytes >= 0.999 * least, "method %d: %g bytes, lgreco %g", (int)r.method, bytes, least);
          smaller[k] += bytes < 0.999 * most;
        }
      }
    }
    pith_profile_destroy(p);
  }
  for (size_t k = 0; k < METHODS; k++) {
    CHECK_MSG(smaller[k] > PROFILES / 16, "method %d was smaller than uniform %zu times only", (int)methods[k],
              smaller[k]);
  }
}

TEST(no_layer_is_above_the_cap) {
  for (size_t i = 0; i < PROFILES; i++) {
    const family *f = &families[i % FAMILIES];
    pith_profile *p = random_profile(f);
    for (size_t k = 0; k < METHODS; k++) {
      double last = INFINITY;
      for (double cap = 1; suits(methods[k], f) && cap < 5; cap *= 1.5) {
        pith_plan_request r = {.uniform = f->uniform, .method = methods[k], .cap = cap, .metric = i % 2};
        totals t = make(p, r);
        CHECK_MSG(t.largest <= cap * (1 + 1e-6), "a layer has %g times the strength, the cap is %g", t.largest, cap);
        CHECK(methods[k] != PITH_PLAN_LGRECO || t.bytes <= last * (1 + 1e-3));
        last = t.bytes;
      }
    }
    /* A budget that the cap cannot keep is kept without compression. */
    pith_plan_request tight = {.uniform = f->uniform, .cap = 1, .alpha = 1e-3};
    make(p, tight);
    pith_profile_destroy(p);
  }
}

/* What a step of gradient descent loses of its progress is at most ‖e‖²/‖g‖², by either metric. */
TEST(a_tolerated_loss_bounds_the_squared_error) {
  for (size_t i = 0; i < PROFILES; i++) {
    const family *f = &families[i % FAMILIES];
    pith_profile *p = random_profile(f);
    double norm = 0;
    for (size_t l = 0; l < p->layers; l++) {
      norm += p->layer[l].fixed ? 0 : pith__sums(p, l)[PITH_SUM_NORM];
    }
    for (int metric = 0; metric < 2; metric++) {
      double last = INFINITY;
      for (double tolerance = 1e-4; tolerance <= 1; tolerance *= 10) {
        pith_plan *plan;
        pith_plan_request r = {.size = sizeof r,
                               .uniform = f->uniform,
                               .families = "mix",
                               .tolerance = tolerance,
                               .metric = (pith_plan_metric)metric};
        CHECK_OK(pith_plan_make(p, &r, &plan));
        totals t = totals_of(p, plan, PITH_PLAN_L2SQ, f->uniform);
        CHECK_MSG(t.error <= tolerance * norm * (1 + 1e-9), "%g of %g at %g", t.error, norm, tolerance);
        CHECK(t.bytes <= last * (1 + 1e-3));
        last = t.bytes;
        pith_plan_destroy(plan);
      }
    }
    pith_profile_destroy(p);
  }
}

/* The smallest value that a layer sends is no smaller than any that another layer leaves out, up to the next ratio. */
TEST(one_threshold_for_all_layers) {
  const family *f = &families[1];
  size_t compared = 0;
  for (size_t i = 0; i < PROFILES; i++) {
    pith_profile *p = random_profile(f);
    pith_plan *plan;
    pith_plan_request r = {.size = sizeof r, .uniform = f->uniform, .method = PITH_PLAN_GLOBAL};
    CHECK_OK(pith_plan_make(p, &r, &plan));
    double sent = INFINITY, left = 0;
    int is_uniform = 1;
    for (size_t l = 0; l < p->layers; l++) {
      pith_plan_layer layer = PITH_PLAN_LAYER_INIT;
      size_t c;
      CHECK_OK(pith_plan_layer_get(plan, l, &layer));
      CHECK_OK(pith__profile_find(p, layer.spec, &c));
      is_uniform &= p->layer[l].fixed || !strcmp(layer.spec, f->uniform);
      double size[2] = {INFINITY, 0}, before = INFINITY, last = 0;
      size_t values = 0, taken = pith__ratio_count(pith__strength_of(p->codec[c]), p->layer[l].n);
      for (size_t o = 0; o + 1 < p->candidates && !p->layer[l].fixed; o++) { /* ratios rise along the list */
        size_t k = pith__ratio_count(pith__strength_of(p->codec[o]), p->layer[l].n);
        double bytes, error;
        CHECK_OK(pith_profile_get(p, l, o, &bytes, &error));
        if (k > values) {
          before = values ? fmin(before, fmax(0, last - error) / (double)(k - values)) : INFINITY;
          size[0] = k == taken ? before : size[0];
          size[1] = values == taken ? before : size[1];
          last = error;
          values = k;
        }
      }
      sent = fmin(sent, size[0]);
      left = fmax(left, size[1]);
    }
    if (!is_uniform) {
      CHECK_MSG(left <= sent, "left out %g, sent %g", left, sent);
      compared++;
    }
    pith_plan_destroy(plan);
    pith_profile_destroy(p);
  }
  CHECK(compared > PROFILES / 4);
}

TEST(one_threshold_is_for_methods_that_send_the_largest_values) {
  pith_profile *p = random_profile(&families[0]);
  pith_plan *plan = NULL;
  pith_plan_request r = {.size = sizeof r, .uniform = "q:4", .method = PITH_PLAN_GLOBAL};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_UNSUPPORTED);
  CHECK_ERROR_SAYS("largest values");
  r = (pith_plan_request){.size = sizeof r, .uniform = "q:4", .cap = 0.5};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_ARGUMENT);
  r = (pith_plan_request){.size = sizeof r, .uniform = "q:4", .tolerance = 2};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_ARGUMENT);
  r = (pith_plan_request){.size = sizeof r, .uniform = "q:4", .tolerance = 0.1, .alpha = 2};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_ARGUMENT);
  r = (pith_plan_request){.size = sizeof r, .uniform = "q:4", .metric = (pith_plan_metric)7};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_ARGUMENT);
  r = (pith_plan_request){.size = sizeof r, .budget = 1, .cap = 2};
  CHECK_STATUS(pith_plan_make(p, &r, &plan), PITH_ERR_ARGUMENT);
  CHECK(!plan);
  pith_profile_destroy(p);
}

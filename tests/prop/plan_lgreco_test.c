/* SPDX-License-Identifier: Apache-2.0 */
/* The programme against brute force: the least cost within the budget, on small problems; its promises, on large ones.
 */
#include <math.h>
#include <stdlib.h>

#include "solve/lgreco.h"
#include "test.h"

enum { LAYERS_MAX = 7, OPTIONS_MAX = 5, INSTANCES = 600 };

typedef struct instance {
  pith_problem p;
  double cost[LAYERS_MAX * OPTIONS_MAX], error[LAYERS_MAX * OPTIONS_MAX], ready[LAYERS_MAX];
  size_t start[LAYERS_MAX];
} instance;

/* Like quantizers (each option half as dear and four times as lossy), like nothing at all, or with many ties. */
static void fill_options(instance *x, int kind, size_t l) {
  double size = exp(6 * test_uniform()), norm = exp(8 * test_uniform());
  for (size_t o = 0; o < x->p.options; o++) {
    double *cost = &x->cost[l * x->p.options + o], *error = &x->error[l * x->p.options + o];
    if (kind == 0) {
      *cost = floor(1000 * size / exp2((double)o) * (0.8 + 0.4 * test_uniform()));
      *error = norm * pow(4, (double)o) * (0.5 + test_uniform());
    } else if (kind == 1) {
      *cost = floor(1000 * test_uniform());
      *error = test_uniform();
    } else {
      *cost = (double)test_below(4);
      *error = (double)test_below(4);
    }
  }
}

static double uniform_error(const instance *x, size_t option) {
  double sum = 0;
  for (size_t l = 0; l < x->p.layers; l++) {
    sum += x->error[l * x->p.options + option];
  }
  return sum;
}

static void make_instance(instance *x, int kind, int with_time) {
  x->p = (pith_problem){
      .layers = 1 + test_below(LAYERS_MAX), .options = 1 + test_below(OPTIONS_MAX), .cost = x->cost, .error = x->error};
  double ready = 0;
  for (size_t l = 0; l < x->p.layers; l++) {
    fill_options(x, kind, l);
    ready += 500 * test_uniform();
    x->ready[l] = ready;
    x->start[l] = x->p.options / 2;
  }
  x->p.budget = uniform_error(x, x->p.options / 2);
  x->p.start = x->start;
  x->p.ready = with_time ? x->ready : NULL;
}

/* The least cost of all choices within a budget; INFINITY if there is none. */
static double brute_force(const pith_problem *p, double budget) {
  size_t choice[LAYERS_MAX] = {0};
  double best = INFINITY;
  for (;;) {
    if (pith__problem_error(p, choice) <= budget) {
      best = fmin(best, pith__problem_cost(p, choice));
    }
    size_t l = 0;
    while (l < p->layers && ++choice[l] == p->options) {
      choice[l++] = 0;
    }
    if (l == p->layers) {
      return best;
    }
  }
}

/* What rounding up can take away: one step for each layer of what is between the least error and the budget. */
static double safe_budget(const instance *x) {
  double least = 0;
  for (size_t l = 0; l < x->p.layers; l++) {
    double e = INFINITY;
    for (size_t o = 0; o < x->p.options; o++) {
      e = fmin(e, x->error[l * x->p.options + o]);
    }
    least += e;
  }
  return x->p.budget - (x->p.budget - least) * ((double)x->p.layers + 1) / PITH_LGRECO_STEPS;
}

static int check_instance(instance *x) {
  size_t choice[LAYERS_MAX];
  CHECK_OK(pith__lgreco_solve(&x->p, choice));
  double cost = pith__problem_cost(&x->p, choice), best = brute_force(&x->p, x->p.budget);
  double slack = x->p.ready ? 4e-6 * best : 0; /* times so near are the same */
  CHECK_MSG(pith__problem_error(&x->p, choice) <= x->p.budget, "over budget: %.17g of %.17g",
            pith__problem_error(&x->p, choice), x->p.budget);
  CHECK_MSG(cost >= best - slack, "better than the best: %.17g, %.17g", cost, best);
  CHECK_MSG(cost <= brute_force(&x->p, safe_budget(x)) + slack, "not the best within the discretisation: %.17g, %.17g",
            cost, best);
  CHECK_MSG(cost <= pith__problem_cost(&x->p, x->start) + slack, "worse than uniform");
  return cost <= best + slack;
}

static void check_kind(int kind, int with_time) {
  instance x;
  int exact = 0;
  for (int i = 0; i < INSTANCES; i++) {
    make_instance(&x, kind, with_time);
    exact += check_instance(&x);
  }
  CHECK_MSG(exact >= INSTANCES * 98 / 100, "only %d of %d are the optimum", exact, INSTANCES);
}

TEST(least_bytes_as_brute_force_finds_them) { check_kind(0, 0); }
TEST(least_bytes_of_any_tables) { check_kind(1, 0); }
TEST(least_bytes_where_much_is_equal) { check_kind(2, 0); }
TEST(least_time_as_brute_force_finds_it) { check_kind(0, 1); }
TEST(least_time_of_any_tables) { check_kind(1, 1); }

TEST(any_budget_that_can_be_kept_is_kept) {
  instance x;
  size_t choice[LAYERS_MAX];
  int refused = 0;
  for (int i = 0; i < INSTANCES; i++) {
    make_instance(&x, (int)test_below(3), (int)test_below(2));
    x.p.start = NULL;
    x.p.budget *= 1.5 * test_uniform();
    pith_status status = pith__lgreco_solve(&x.p, choice);
    int possible = isfinite(brute_force(&x.p, x.p.budget));
    CHECK_EQ(status, possible ? PITH_OK : PITH_ERR_RANGE);
    CHECK(!possible || pith__problem_error(&x.p, choice) <= x.p.budget);
    refused += !possible;
  }
  CHECK(refused > 0 && refused < INSTANCES);
  CHECK_ERROR_SAYS("the budget cannot be kept");
}

TEST(time_that_is_hidden_buys_less_error) {
  /* The last layer is ready long after the first is served: whatever the first takes, the end is the same. */
  double cost[] = {8, 1, 5, 4}, error[] = {0, 100, 0, 50}, ready[] = {0, 1000};
  size_t start[] = {1, 1}, choice[2];
  pith_problem p = {
      .layers = 2, .options = 2, .cost = cost, .error = error, .budget = 150, .ready = ready, .start = start};
  CHECK_OK(pith__lgreco_solve(&p, choice));
  CHECK_EQ(choice[0], 0);
  CHECK_EQ(choice[1], 1);
}

enum { MANY = 1000, TEN = 10 };

static double wanted_bound(const pith_problem *p, double price) {
  double bound = -price * p->budget;
  for (size_t l = 0; l < p->layers; l++) {
    double least = INFINITY;
    for (size_t o = 0; o < p->options; o++) {
      least = fmin(least, p->cost[l * p->options + o] + price * p->error[l * p->options + o]);
    }
    bound += least;
  }
  return bound;
}

/* Any price of error gives a lower bound; the best of many is near the optimum of a large problem. */
static double lower_bound(const pith_problem *p) {
  double best = 0;
  for (double price = 1e-6; price < 1e9; price *= 1.02) {
    best = fmax(best, wanted_bound(p, price));
  }
  return best;
}

TEST(large_problems_come_near_their_lower_bound) {
  double *cost = malloc(MANY * TEN * sizeof *cost), *error = malloc(MANY * TEN * sizeof *error);
  size_t start[MANY], choice[MANY];
  CHECK(cost && error);
  pith_problem p = {.layers = MANY, .options = TEN, .cost = cost, .error = error, .start = start};
  for (size_t l = 0; l < MANY; l++) {
    double size = exp(6 * test_uniform()), norm = exp(8 * test_uniform());
    for (size_t o = 0; o < TEN; o++) {
      cost[l * TEN + o] = floor(1000 * size * (double)(TEN - o));
      error[l * TEN + o] = norm * pow(4, (double)o) * (0.5 + test_uniform());
    }
    start[l] = 6;
    p.budget += error[l * TEN + 6];
  }
  CHECK_OK(pith__lgreco_solve(&p, choice));
  double found = pith__problem_cost(&p, choice);
  CHECK(pith__problem_error(&p, choice) <= p.budget);
  CHECK(found < pith__problem_cost(&p, start));
  CHECK_MSG(found <= 1.001 * lower_bound(&p), "%.9g, and the bound is %.9g", found, lower_bound(&p));
  free(cost);
  free(error);
}

TEST(no_layers_are_no_problem) {
  pith_problem p = {.layers = 0, .options = 1, .budget = 0};
  size_t choice[1];
  CHECK_OK(pith__lgreco_solve(&p, choice));
}

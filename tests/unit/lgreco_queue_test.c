/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The programme for queues of many layers, where brute force cannot follow: beside a plain dynamic programme that fills
 * its whole table. The bounds that save most of the table must not cost anything.
 */
#include <math.h>
#include <stdlib.h>

#include "solve/lgreco.h"
#include "solve/queue_walk.h"
#include "test.h"

enum { STEPS = PITH_LGRECO_STEPS, LAYERS = 40, OPTIONS = 6, QUEUES = 24 };

typedef struct queue {
  pith_problem p;
  double cost[LAYERS * OPTIONS], error[LAYERS * OPTIONS], ready[LAYERS];
} queue;

/* Layers of all sizes with options like quantizers; `hidden` is the length of the backward pass, of all exchanges with
 * the third option. */
static void make_queue(queue *x, double hidden) {
  double size[LAYERS], sum = 0, done = 0, exchange = 0;
  x->p = (pith_problem){.layers = LAYERS, .options = OPTIONS, .cost = x->cost, .error = x->error, .ready = x->ready};
  for (size_t l = 0; l < LAYERS; l++) {
    double norm = exp(6 * test_uniform());
    size[l] = exp(5 * test_uniform());
    sum += size[l];
    for (size_t o = 0; o < OPTIONS; o++) {
      x->cost[l * OPTIONS + o] = 0.1 + size[l] / exp2((double)o) * (0.8 + 0.4 * test_uniform());
      x->error[l * OPTIONS + o] = o ? norm * pow(4, (double)o) * (0.5 + test_uniform()) : 0;
    }
    exchange += x->cost[l * OPTIONS + 3];
    x->p.budget += x->error[l * OPTIONS + 3];
  }
  for (size_t l = 0; l < LAYERS; l++) {
    done += size[l];
    x->ready[l] = hidden * exchange * done / sum;
  }
}

/* The least end, by the whole table. */
static double plain_programme(const queue *x, double budget) {
  static double ends[STEPS + 1], before[STEPS + 1];
  double best = INFINITY;
  for (size_t i = 0; i <= STEPS; i++) {
    ends[i] = 0;
  }
  for (size_t l = 0; l < LAYERS; l++) {
    memcpy(before, ends, sizeof ends);
    for (size_t i = 0; i <= STEPS; i++) {
      ends[i] = INFINITY;
    }
    for (size_t o = 0; o < OPTIONS; o++) {
      double steps = ceil(x->error[l * OPTIONS + o] / (budget / STEPS));
      for (size_t i = steps <= STEPS ? (size_t)steps : STEPS + 1; i <= STEPS; i++) {
        ends[i] = fmin(ends[i], fmax(before[i - (size_t)steps], x->ready[l]) + x->cost[l * OPTIONS + o]);
      }
    }
  }
  for (size_t i = 0; i <= STEPS; i++) {
    best = fmin(best, ends[i]);
  }
  return best;
}

TEST(bounds_cost_no_time) {
  static const double hidden[] = {0, 0.2, 0.5, 0.8, 1, 1.2, 2, 5};
  size_t choice[LAYERS];
  queue x;
  for (size_t i = 0; i < QUEUES; i++) {
    make_queue(&x, hidden[i % 8]);
    CHECK_OK(pith__lgreco_solve(&x.p, choice));
    /* Rounding may take a step from each layer, here or there. */
    double found = pith__problem_cost(&x.p, choice),
           wanted = plain_programme(&x, x.p.budget * (1 - (LAYERS + 1.0) / STEPS));
    CHECK(pith__problem_error(&x.p, choice) <= x.p.budget);
    CHECK_MSG(found <= wanted * (1 + 4e-6), "hidden %g: %.9g, the whole table finds %.9g", hidden[i % 8], found,
              wanted);
  }
}

/* What the walk promises: prices that do not fall, so that they make a bound, and a bound that is one. */
TEST(prices_of_the_walk_bound_all_choices) {
  queue x;
  size_t choice[LAYERS];
  for (size_t i = 0; i < QUEUES; i++) {
    make_queue(&x, 0.1 * (double)i);
    pith_move moves[LAYERS * OPTIONS];
    double least[LAYERS], price[LAYERS], *room = malloc(pith__queue_room(LAYERS) * sizeof *room);
    size_t first[LAYERS], place[LAYERS];
    pith_queue q = {.layers = LAYERS,
                    .ready = x.ready,
                    .moves = moves,
                    .least = least,
                    .budget = x.p.budget,
                    .first = first,
                    .place = place,
                    .price = price,
                    .room = room};
    CHECK(room);
    for (size_t l = 0; l < LAYERS; l++) { /* two options of each: the first, and the last */
      double saved = x.cost[l * OPTIONS] - x.cost[l * OPTIONS + OPTIONS - 1],
             added = x.error[l * OPTIONS + OPTIONS - 1];
      pith_move m = {saved, added, saved / added, l, 1};
      size_t at = q.count++;
      for (; at > 0 && moves[at - 1].rate < m.rate; at--) {
        moves[at] = moves[at - 1];
      }
      moves[at] = m;
      least[l] = x.cost[l * OPTIONS + OPTIONS - 1];
      q.error += added;
      first[l] = 1;
    }
    double earliest = pith__queue_walk(&q), error = 0, bound = 0, end;
    for (size_t l = 0; l < LAYERS; l++) {
      CHECK(l == 0 || price[l] >= price[l - 1]);
      choice[l] = place[l] ? OPTIONS - 1 : 0;
      double with = x.error[l * OPTIONS + OPTIONS - 1] + price[l] * least[l], without = price[l] * x.cost[l * OPTIONS];
      bound += fmin(with, without) + (price[l] - (l ? price[l - 1] : 0)) * x.ready[l];
    }
    end = pith__problem_cost(&x.p, choice);
    error = pith__problem_error(&x.p, choice);
    CHECK(end >= earliest * (1 - 1e-12));
    CHECK_MSG(error <= x.p.budget * (1 + 1e-12) || price[LAYERS - 1] == 0,
              "the walk ends with an error of %g, the budget is %g", error, x.p.budget);
    /* Σ (price·cost + error) of any choice: at least the bound; and the walk's own comes near it. */
    CHECK_MSG(price[LAYERS - 1] * end + error >= bound * (1 - 1e-9), "%g is below the bound %g",
              price[LAYERS - 1] * end + error, bound);
    CHECK_MSG(price[LAYERS - 1] * end + x.p.budget <= bound * 1.5 || end <= earliest * (1 + 1e-9),
              "%g, and the bound is %g", price[LAYERS - 1] * end + error, bound);
    free(room);
  }
}

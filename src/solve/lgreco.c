/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L-GreCo programme. Where the cost is a sum:
 *
 *  1. A greedy walk from the least error down the convex hulls of all layers gives a good choice, and the price of
 *     error at which it stops (the dual of the relaxed problem).
 *  2. With that price, every option has a lower bound on the cost of any choice that contains it. Options that cannot
 *     beat the greedy choice are out; in large models few layers are left undecided.
 *  3. Dynamic programming over PITH_LGRECO_STEPS steps of the budget that is left decides those. Errors are rounded
 *     up, so the budget is kept whatever the rounding.
 *  4. What rounding left over is spent, the largest saving first.
 *
 * Where the cost is the end of a queue, the walk is that of queue_walk.c, which has a price of time for each layer, and
 * bounds are made of those: what hides behind layers that are ready later is worth nothing, and every second after them
 * all. Nothing that is left is spent.
 */
#include "solve/lgreco.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "base/size.h"
#include "solve/queue_walk.h"

/* Cells of the table. Four are served at once, hence some behind the last; and those before the first are looked at,
 * too. */
enum { STEPS = PITH_LGRECO_STEPS, BEHIND = 4, CELLS = STEPS + BEHIND, ROOM = STEPS + CELLS };
#define SAME_TIME 1e-6

double pith__problem_cost(const pith_problem *p, const size_t *choice) {
  double end = 0;
  for (size_t l = 0; l < p->layers; l++) {
    end = (p->ready ? fmax(end, p->ready[l]) : end) + p->cost[l * p->options + choice[l]];
  }
  return end;
}

double pith__problem_error(const pith_problem *p, const size_t *choice) {
  double sum = 0;
  for (size_t l = 0; l < p->layers; l++) {
    sum += p->error[l * p->options + choice[l]];
  }
  return sum;
}

typedef struct solver {
  const pith_problem *p;
  uint8_t *live;       /* layers × options: 0 for those that are out */
  size_t *hull;        /* layers × options: options from the least error on */
  size_t *hull_length; /* of each layer */
  pith_move *moves;
  size_t *best; /* the best choice so far */
  double best_cost, best_error;
  size_t *trial;
  double price;   /* of error … */
  double *weight; /* … and of cost, for each layer: what bounds are made of. No less than that of the layer before */
  double *least, *room;          /* to work with: a number for each layer, and for pith__queue_walk() */
  double budget;                 /* of a choice that is to be better than the best */
  double *cells, *ends, *before; /* of the dynamic programme: ROOM for each of the two */
  uint8_t *steps;                /* the option taken: undecided layers × CELLS */
  size_t *undecided;
  size_t low, high;  /* the steps at which `ends` says something */
  double add, floor; /* what decided layers since then do to it */
  double unit;       /* the error of a step */
} solver;

static double cost_of(const solver *s, size_t l, size_t o) { return s->p->cost[l * s->p->options + o]; }
static double error_of(const solver *s, size_t l, size_t o) { return s->p->error[l * s->p->options + o]; }

/* Keeps a choice that is feasible and better than the best so far: in cost, or in error at the same cost. Times that
 * differ by less than anybody could measure are the same. */
static void offer(solver *s, const size_t *choice) {
  double cost = pith__problem_cost(s->p, choice), error = pith__problem_error(s->p, choice);
  double same = s->p->ready && isfinite(s->best_cost) ? 2 * SAME_TIME * s->best_cost : 0;
  int better = cost < s->best_cost - same || (cost <= s->best_cost + same && error < s->best_error);
  if (better && error <= s->p->budget) {
    memcpy(s->best, choice, s->p->layers * sizeof *choice);
    s->best_cost = cost;
    s->best_error = error;
  }
}

/* ---- Options that cannot be of use ------------------------------------------------------------------------------- */

/* Whether option a makes b useless: no worse in both, and first of equals. */
static int dominates(const solver *s, size_t l, size_t a, size_t b) {
  double ca = cost_of(s, l, a), cb = cost_of(s, l, b), ea = error_of(s, l, a), eb = error_of(s, l, b);
  return ca <= cb && ea <= eb && (ca < cb || ea < eb || a < b);
}

static void drop_dominated(solver *s, size_t l) {
  uint8_t *live = s->live + l * s->p->options;
  for (size_t b = 0; b < s->p->options; b++) {
    live[b] = 1;
    for (size_t a = 0; a < s->p->options && live[b]; a++) {
      live[b] = a == b || !dominates(s, l, a, b);
    }
  }
}

/* The live option of least error; among live ones no two have the same. */
static size_t least_error(const solver *s, size_t l) {
  size_t best = SIZE_MAX;
  for (size_t o = 0; o < s->p->options; o++) {
    if (s->live[l * s->p->options + o] && (best == SIZE_MAX || error_of(s, l, o) < error_of(s, l, best))) {
      best = o;
    }
  }
  return best;
}

/* ---- Greedy walk ------------------------------------------------------------------------------------------------- */

/* The next point of the hull: the largest saving for each error added. */
static size_t next_on_hull(const solver *s, size_t l, size_t from) {
  size_t best = SIZE_MAX;
  double best_rate = 0;
  for (size_t o = 0; o < s->p->options; o++) {
    double saved = cost_of(s, l, from) - cost_of(s, l, o), added = error_of(s, l, o) - error_of(s, l, from);
    if (s->live[l * s->p->options + o] && saved > 0 && added > 0 && saved / added >= best_rate) {
      int farther =
          best == SIZE_MAX || saved / added > best_rate || added > error_of(s, l, best) - error_of(s, l, from);
      best = farther ? o : best;
      best_rate = saved / added;
    }
  }
  return best;
}

static size_t build_hulls(solver *s) {
  size_t moves = 0;
  for (size_t l = 0; l < s->p->layers; l++) {
    size_t *hull = s->hull + l * s->p->options, length = 1;
    hull[0] = least_error(s, l);
    for (size_t o = next_on_hull(s, l, hull[0]); o != SIZE_MAX; o = next_on_hull(s, l, o)) {
      double saved = cost_of(s, l, hull[length - 1]) - cost_of(s, l, o);
      double added = error_of(s, l, o) - error_of(s, l, hull[length - 1]);
      s->moves[moves++] = (pith_move){saved, added, saved / added, l, length};
      hull[length++] = o;
    }
    s->hull_length[l] = length;
  }
  return moves;
}

/* Best rate first; a total order, so that every rank walks the same way. */
static int compare_moves(const void *a, const void *b) {
  const pith_move *x = a, *y = b;
  if (x->rate != y->rate) {
    return x->rate > y->rate ? -1 : 1;
  }
  if (x->layer != y->layer) {
    return x->layer < y->layer ? -1 : 1;
  }
  return x->place < y->place ? -1 : x->place > y->place;
}

/* Where the cost is a sum: from the least error on, as long as the budget lasts. */
static void walk_sum(solver *s, size_t moves) {
  size_t *place = s->undecided; /* borrowed: how far each layer has come */
  double left = s->p->budget;
  for (size_t l = 0; l < s->p->layers; l++) {
    place[l] = 0;
    s->weight[l] = 1;
    s->trial[l] = s->hull[l * s->p->options];
    left -= error_of(s, l, s->trial[l]);
  }
  s->price = 0;
  for (size_t i = 0; i < moves; i++) {
    const pith_move *m = &s->moves[i];
    if (m->added <= left && place[m->layer] + 1 == m->place) {
      left -= m->added;
      s->trial[m->layer] = s->hull[m->layer * s->p->options + m->place];
      place[m->layer] = m->place;
    } else if (s->price == 0) {
      s->price = m->rate; /* the first that does not fit */
    }
  }
}

/* Where it is the end of a queue: from the least cost on, as long as there is room. Gives the earliest end of all. */
static double walk_queue(solver *s, size_t moves) {
  pith_queue q = {.layers = s->p->layers,
                  .ready = s->p->ready,
                  .moves = s->moves,
                  .count = moves,
                  .least = s->least,
                  .budget = s->p->budget,
                  .same = SAME_TIME,
                  .price = s->weight,
                  .place = s->undecided, /* borrowed, too */
                  .first = s->trial,
                  .room = s->room};
  for (size_t l = 0; l < s->p->layers; l++) {
    q.first[l] = s->hull_length[l] - 1;
    size_t last = s->hull[l * s->p->options + q.first[l]];
    s->least[l] = cost_of(s, l, last);
    q.error += error_of(s, l, last);
  }
  s->price = 1;
  double earliest = pith__queue_walk(&q);
  for (size_t l = 0; l < s->p->layers; l++) {
    s->trial[l] = s->hull[l * s->p->options + q.place[l]];
  }
  return earliest;
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* With weights W_l that do not fall, and w_l what each adds to the one before, the end of a queue, times the last
 * weight, is at least Σ w_l·ready_l + Σ W_l·cost_l: ends are no earlier than a layer's readiness and the cost of all
 * from there on. A sum has the weight 1 everywhere. So a choice of cost C and error E has Σ (W_l·cost_l +
 * price·error_l) ≤ W·C + price·E − Σ w_l·ready_l. */

static double priced(const solver *s, size_t l, size_t o) {
  return s->weight[l] * cost_of(s, l, o) + s->price * error_of(s, l, o);
}

static double least_priced(const solver *s, size_t l) {
  double least = INFINITY;
  for (size_t o = 0; o < s->p->options; o++) {
    least = s->live[l * s->p->options + o] ? fmin(least, priced(s, l, o)) : least;
  }
  return least;
}

/* What waiting for layer l to be ready adds to a bound. */
static double waited(const solver *s, size_t l) {
  return s->p->ready ? (s->weight[l] - (l ? s->weight[l - 1] : 0)) * s->p->ready[l] : 0;
}

/* What costs more than this is worse than the best: not by rounding, and not by less than anybody could measure. */
static double pruned_cost(const solver *s) { return s->best_cost * (1 + 1e-9 + (s->p->ready ? 2 * SAME_TIME : 0)); }

/* The most that a choice can have that is better than the best, in priced cost and error. Rounding must not drop one
 * too many: hence the margin. */
static double most_priced(const solver *s, double error) {
  double weight = s->p->layers ? s->weight[s->p->layers - 1] : 0;
  return weight * pruned_cost(s) + s->price * error + 1e-9 * fabs(s->price * s->budget);
}

/* Drops options with which no choice can be better than the best. */
static void prune(solver *s) {
  double left = most_priced(s, s->budget);
  for (size_t l = 0; l < s->p->layers; l++) {
    s->least[l] = least_priced(s, l);
    left -= s->least[l] + waited(s, l);
  }
  for (size_t l = 0; l < s->p->layers; l++) {
    for (size_t o = 0; o < s->p->options; o++) {
      if (priced(s, l, o) - s->least[l] > left) {
        s->live[l * s->p->options + o] = 0;
      }
    }
  }
}

/* ---- Dynamic programming ----------------------------------------------------------------------------------------- */

/* Steps that an error takes, rounded up: their sum times the unit is never less than the errors. */
static size_t steps_of(const solver *s, size_t l, size_t o) {
  double error = error_of(s, l, o) - error_of(s, l, least_error(s, l));
  double steps = error <= 0 ? 0 : s->unit > 0 ? ceil(error / s->unit) : INFINITY;
  return steps > STEPS ? STEPS + 1 : (size_t)steps;
}

static size_t live_count(const solver *s, size_t l) {
  size_t count = 0;
  for (size_t o = 0; o < s->p->options; o++) {
    count += s->live[l * s->p->options + o];
  }
  return count;
}

/* Pairs of doubles: compilers do not find them by themselves here. Options are doubles too, so that all lanes have one
 * width. */
typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef int64_t pair_mask __attribute__((vector_size(16)));

static pair pick(pair_mask where, pair a, pair b) { return (pair)(((pair_mask)a & where) | ((pair_mask)b & ~where)); }

/* One instruction instead of four, where there is one; nothing here is NaN. */
#ifdef __SSE2__
static pair later_of(pair a, pair b) { return (pair)_mm_max_pd((__m128d)a, (__m128d)b); }
static pair earlier_of(pair a, pair b) { return (pair)_mm_min_pd((__m128d)a, (__m128d)b); }
#else
static pair later_of(pair a, pair b) { return pick(a > b, a, b); }
static pair earlier_of(pair a, pair b) { return pick(a < b, a, b); }
#endif

/* The options of a layer that can be taken. */
typedef struct offered {
  size_t count, most; /* most steps */
  size_t steps[256];
  double cost[256], option[256];
} offered;

/* Four cells at once: the earliest end of all options stays in registers. */
static void serve_cells(const double *before, double *ends, uint8_t *taken, double ready, const offered *f) {
  pair start = {ready, ready}, best[2] = {{INFINITY, INFINITY}, {INFINITY, INFINITY}}, mine[2] = {{0, 0}, {0, 0}};
  for (size_t i = 0; i < f->count; i++) {
    const pair add = {f->cost[i], f->cost[i]}, option = {f->option[i], f->option[i]};
    const double *at = before - f->steps[i];
    for (int h = 0; h < 2; h++) {
      pair from = *(const pair *)(at + 2 * h), end = later_of(from, start) + add;
      pair_mask better = end < best[h];
      best[h] = earlier_of(end, best[h]);
      mine[h] = pick(better, option, mine[h]);
    }
  }
  *(pair *)ends = best[0];
  *(pair *)(ends + 2) = best[1];
  for (int i = 0; i < 4; i++) {
    taken[i] = (uint8_t)(int)mine[i / 2][i % 2];
  }
}

static int is_live(const solver *s, size_t l, size_t o) { return s->live[l * s->p->options + o]; }

static void list_offered(const solver *s, size_t l, offered *f) {
  f->count = f->most = 0;
  for (size_t o = 0; o < s->p->options; o++) {
    size_t steps = is_live(s, l, o) ? steps_of(s, l, o) : STEPS + 1;
    if (s->low + steps <= STEPS) {
      f->steps[f->count] = steps;
      f->cost[f->count] = cost_of(s, l, o);
      f->option[f->count++] = (double)o;
      f->most = pith__most(f->most, steps);
    }
  }
}

/* Decided layers in a row do one thing to an end: max(end + add, floor). */
static void pass_decided(solver *s, size_t l) {
  double cost = cost_of(s, l, s->trial[l]);
  s->add += cost;
  s->floor = s->p->ready ? fmax(s->floor, s->p->ready[l]) + cost : s->floor;
}

static void catch_up(solver *s) {
  double add = s->add, floor = s->floor;
  for (size_t x = s->low; x <= s->high; x++) {
    double end = s->ends[x] + add;
    s->ends[x] = end > floor ? end : floor;
  }
  s->add = 0;
  s->floor = -INFINITY;
}

static void fill_unknown(double *ends, size_t count) {
  for (size_t i = 0; i < count; i++) {
    ends[i] = INFINITY;
  }
}

/* ends[x]: the least cost of the layers so far with x steps of error. Cells that are looked at and say nothing have
 * INFINITY. */
static void serve(solver *s, size_t l, uint8_t *taken) {
  offered f;
  catch_up(s);
  double *before = s->ends, ready = s->p->ready ? s->p->ready[l] : -INFINITY;
  s->ends = s->before;
  s->before = before;
  list_offered(s, l, &f);
  size_t high = pith__least(STEPS, s->high + f.most);
  fill_unknown(before + s->low - f.most, f.most);
  fill_unknown(before + s->high + 1, high - s->high + BEHIND - 1); /* four cells are served at once */
  for (size_t x = s->low; x <= high; x += 4) {
    serve_cells(before + x, s->ends + x, taken + x, ready, &f);
  }
  s->high = high;
}

/* The least that a layer adds to a bound: its cost, and its steps at the price of error. */
static double least_added(const solver *s, size_t l) {
  double least = INFINITY;
  for (size_t o = 0; o < s->p->options; o++) {
    size_t steps = is_live(s, l, o) ? steps_of(s, l, o) : STEPS + 1;
    if (steps <= STEPS) {
      least = fmin(least, s->weight[l] * cost_of(s, l, o) + s->price * s->unit * (double)steps);
    }
  }
  return least + waited(s, l);
}

/* Leaves out steps at both ends from which nothing better than the best can come: `rest` is the least that is still to
 * be added. */
static int narrow(solver *s, double weight, double rest) {
  double limit = most_priced(s, s->unit * STEPS) - rest, slope = s->price * s->unit;
  while (s->low <= s->high && !(weight * s->ends[s->high] + slope * (double)s->high <= limit)) {
    if (s->high-- == 0) {
      return 0;
    }
  }
  while (s->low <= s->high && !(weight * s->ends[s->low] + slope * (double)s->low <= limit)) {
    s->low++;
  }
  return s->low <= s->high;
}

/* Among choices of the same time, that of the least error. */
static size_t last_step(const solver *s) {
  double least = INFINITY;
  size_t x = s->low;
  for (size_t i = s->low; i <= s->high; i++) {
    least = s->ends[i] < least ? s->ends[i] : least;
  }
  while (s->ends[x] > least * (s->p->ready ? 1 + SAME_TIME : 1)) {
    x++;
  }
  return x;
}

static void trace_back(solver *s, size_t count) {
  for (size_t i = count, x = last_step(s); i-- > 0;) {
    size_t l = s->undecided[i], o = s->steps[i * CELLS + x];
    s->trial[l] = o;
    x -= steps_of(s, l, o);
  }
}

/* Layers with one option left are decided; the programme is about the others. */
static void run_programme(solver *s) {
  double rest = 0;
  size_t count = 0;
  for (size_t l = 0; l < s->p->layers; l++) {
    rest += s->least[l] = least_added(s, l);
  }
  s->low = s->high = 0;
  s->ends = s->cells + STEPS;
  s->before = s->ends + ROOM;
  s->ends[0] = 0;
  s->add = 0;
  s->floor = -INFINITY;
  for (size_t l = 0; l < s->p->layers; l++) {
    rest -= s->least[l];
    if (live_count(s, l) == 1) {
      pass_decided(s, l);
      continue;
    }
    serve(s, l, s->steps + count * CELLS);
    s->undecided[count++] = l;
    if (!narrow(s, s->weight[l], rest)) {
      return; /* the best cannot be beaten */
    }
  }
  catch_up(s);
  trace_back(s, count);
}

static pith_status decide(solver *s) {
  double left = s->budget;
  size_t count = 0;
  for (size_t l = 0; l < s->p->layers; l++) {
    size_t options = live_count(s, l);
    if (!options) {
      return PITH_OK; /* the best cannot be beaten */
    }
    s->trial[l] = least_error(s, l);
    left -= error_of(s, l, s->trial[l]);
    count += options > 1;
  }
  if (left < 0 || !count) {
    return PITH_OK; /* the trial is the only choice left; it is offered as any */
  }
  s->unit = left * (1 - 1e-12) / STEPS; /* a hair less, so that roundings of sums cannot exceed the budget */
  s->steps = calloc(count, CELLS);
  PITH_REQUIRE(s->steps, PITH_ERR_MEMORY, "no memory to plan %zu layers", count);
  run_programme(s);
  return PITH_OK;
}

/* ---- What rounding left ------------------------------------------------------------------------------------------ */

static void spend_rest(solver *s, size_t *choice) {
  double left = s->p->budget - pith__problem_error(s->p, choice);
  for (;;) {
    size_t layer = SIZE_MAX, option = 0;
    double most = 0;
    for (size_t l = 0; l < s->p->layers; l++) {
      for (size_t o = 0; o < s->p->options; o++) {
        double saved = cost_of(s, l, choice[l]) - cost_of(s, l, o),
               added = error_of(s, l, o) - error_of(s, l, choice[l]);
        if (saved > most && added <= left) {
          most = saved, layer = l, option = o;
        }
      }
    }
    if (layer == SIZE_MAX) {
      return;
    }
    left -= error_of(s, layer, option) - error_of(s, layer, choice[layer]);
    choice[layer] = option;
  }
}

/* ---- All together ------------------------------------------------------------------------------------------------ */

static void solver_fini(solver *s) {
  free(s->live);
  free(s->hull);
  free(s->hull_length);
  free(s->moves);
  free(s->best);
  free(s->trial);
  free(s->cells);
  free(s->steps);
  free(s->undecided);
  free(s->weight);
  free(s->least);
  free(s->room);
}

static pith_status solver_init(solver *s, const pith_problem *p) {
  size_t cells = p->layers * p->options + 1, layers = p->layers + 1;
  *s = (solver){.p = p,
                .live = malloc(cells),
                .hull = malloc(cells * sizeof *s->hull),
                .hull_length = malloc(layers * sizeof *s->hull_length),
                .moves = malloc(cells * sizeof *s->moves),
                .best = malloc(layers * sizeof *s->best),
                .best_cost = INFINITY,
                .best_error = INFINITY,
                .trial = malloc(layers * sizeof *s->trial),
                .weight = malloc(layers * sizeof *s->weight),
                .least = malloc(layers * sizeof *s->least),
                .room = malloc(pith__queue_room(layers) * sizeof *s->room),
                .budget = p->budget,
                .cells = malloc(2 * ROOM * sizeof *s->cells),
                .undecided = malloc(layers * sizeof *s->undecided)};
  int good = s->live && s->hull && s->hull_length && s->moves && s->best && s->trial && s->weight && s->least &&
             s->room && s->cells && s->undecided;
  PITH_REQUIRE(good, PITH_ERR_MEMORY, "no memory to plan %zu layers", p->layers);
  return PITH_OK;
}

/* The least error possible is a choice too: without it there is none. */
static pith_status start(solver *s) {
  for (size_t l = 0; l < s->p->layers; l++) {
    drop_dominated(s, l);
    s->trial[l] = least_error(s, l);
  }
  if (s->p->start) {
    offer(s, s->p->start);
  }
  offer(s, s->trial);
  PITH_REQUIRE(
      isfinite(s->best_cost), PITH_ERR_RANGE,
      "the budget cannot be kept: it is a squared error of %.6g, and the least that these candidates can do is %.6g",
      s->p->budget, pith__problem_error(s->p, s->trial));
  return PITH_OK;
}

/* A good choice, and prices. */
static void walk(solver *s) {
  size_t moves = build_hulls(s);
  qsort(s->moves, moves, sizeof *s->moves, compare_moves);
  if (!s->p->ready) {
    walk_sum(s, moves);
    spend_rest(s, s->trial);
    offer(s, s->trial);
    return;
  }
  double earliest = walk_queue(s, moves);
  offer(s, s->trial);
  if (s->best_cost <= earliest * (1 + SAME_TIME)) {
    s->budget = s->best_error; /* nothing is faster: only less error is better */
  }
}

static pith_status solve(solver *s) {
  PITH_TRY(start(s));
  walk(s);
  prune(s);
  PITH_TRY(decide(s));
  offer(s, s->trial);
  if (!s->p->ready) { /* what hides behind the queue need not be spent */
    spend_rest(s, s->trial);
    offer(s, s->trial);
  }
  return PITH_OK;
}

pith_status pith__lgreco_solve(const pith_problem *p, size_t *choice) {
  solver s;
  PITH_REQUIRE(p->options >= 1 && p->options <= 255, PITH_ERR_RANGE, "a layer has 1 to 255 options, not %zu",
               p->options);
  pith_status status = solver_init(&s, p);
  if (status == PITH_OK) {
    status = solve(&s);
  }
  if (status == PITH_OK) {
    memcpy(choice, s.best, p->layers * sizeof *choice);
  }
  solver_fini(&s);
  return status;
}

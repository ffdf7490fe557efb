/*
 * The L-GreCo programme. Where the cost is a sum:
 *
 *  1. A greedy walk from the least error down the convex hulls of all layers gives a good choice, and the price of error at which it
 *     stops (the dual of the relaxed problem).
 *  2. With that price, every option has a lower bound on the cost of any choice that contains it. Options that cannot beat the greedy
 *     choice are out; in large models few layers are left undecided.
 *  3. Dynamic programming over PITH_LGRECO_STEPS steps of the budget that is left decides those. Errors are rounded up, so the budget
 *     is kept whatever the rounding.
 *  4. What rounding left over is spent, the largest saving first.
 *
 * Where the cost is the end of a queue, the same holds: the end is never before the sum, so bounds on the sum are bounds on the end. They
 * say little where layers wait to be ready rather than for each other.
 */
#include "plan/lgreco.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"

enum { STEPS = PITH_LGRECO_STEPS, ROOM = STEPS + 2 };
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

typedef struct move {
  double saved, added; /* cost and error from one point of a hull to the next */
  double rate;         /* saved for each added */
  size_t layer, place; /* which step of the layer's hull */
} move;

typedef struct solver {
  const pith_problem *p;
  uint8_t *live;       /* layers × options: 0 for those that are out */
  size_t *hull;        /* layers × options: options from the least error on */
  size_t *hull_length; /* of each layer */
  move *moves;
  size_t *best; /* the best choice so far */
  double best_cost, best_error;
  size_t *trial;
  double price;                  /* of error, in cost */
  double *ends, *before, *taken; /* of the dynamic programme: ROOM each */
  uint8_t *steps;                /* the option taken: undecided layers × (STEPS + 1) */
  size_t *undecided;
  size_t low, high; /* the steps at which `ends` says something */
  double unit;      /* the error of a step */
} solver;

static double cost_of(const solver *s, size_t l, size_t o) { return s->p->cost[l * s->p->options + o]; }
static double error_of(const solver *s, size_t l, size_t o) { return s->p->error[l * s->p->options + o]; }

/* Keeps a choice that is feasible and better than the best so far: in cost, or in error at the same cost. Times that differ by less
 * than anybody could measure are the same. */
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
static int beats(const solver *s, size_t l, size_t a, size_t b) {
  double ca = cost_of(s, l, a), cb = cost_of(s, l, b), ea = error_of(s, l, a), eb = error_of(s, l, b);
  return ca <= cb && ea <= eb && (ca < cb || ea < eb || a < b);
}

static void drop_beaten(solver *s, size_t l) {
  uint8_t *live = s->live + l * s->p->options;
  for (size_t b = 0; b < s->p->options; b++) {
    live[b] = 1;
    for (size_t a = 0; a < s->p->options && live[b]; a++) {
      live[b] = a == b || !beats(s, l, a, b);
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
      s->moves[moves++] = (move){saved, added, saved / added, l, length};
      hull[length++] = o;
    }
    s->hull_length[l] = length;
  }
  return moves;
}

/* Best rate first; a total order, so that every rank walks the same way. */
static int compare_moves(const void *a, const void *b) {
  const move *x = a, *y = b;
  if (x->rate != y->rate) {
    return x->rate > y->rate ? -1 : 1;
  }
  if (x->layer != y->layer) {
    return x->layer < y->layer ? -1 : 1;
  }
  return x->place < y->place ? -1 : x->place > y->place;
}

static void walk(solver *s) {
  size_t moves = build_hulls(s), *place = s->undecided; /* borrowed: how far each layer has come */
  double left = s->p->budget;
  for (size_t l = 0; l < s->p->layers; l++) {
    place[l] = 0;
    s->trial[l] = s->hull[l * s->p->options];
    left -= error_of(s, l, s->trial[l]);
  }
  qsort(s->moves, moves, sizeof *s->moves, compare_moves);
  s->price = 0;
  for (size_t i = 0; i < moves; i++) {
    const move *m = &s->moves[i];
    if (m->added <= left && place[m->layer] + 1 == m->place) {
      left -= m->added;
      s->trial[m->layer] = s->hull[m->layer * s->p->options + m->place];
      place[m->layer] = m->place;
    } else if (s->price == 0) {
      s->price = m->rate; /* the first that does not fit */
    }
  }
}

/* ---- Bounds ------------------------------------------------------------------------------------------------------ */

/* What costs more than this is worse than the best: not by rounding, and not by less than anybody could measure. */
static double hopeless_cost(const solver *s) { return s->best_cost * (1 + 1e-9 + (s->p->ready ? 2 * SAME_TIME : 0)); }

static double priced(const solver *s, size_t l, size_t o) { return cost_of(s, l, o) + s->price * error_of(s, l, o); }

static double least_priced(const solver *s, size_t l) {
  double least = INFINITY;
  for (size_t o = 0; o < s->p->options; o++) {
    least = s->live[l * s->p->options + o] ? fmin(least, priced(s, l, o)) : least;
  }
  return least;
}

/* Drops options with which no choice can be better than the best. Rounding must not drop one too many: hence the margin. */
static void drop_hopeless(solver *s) {
  double bound = -s->price * s->p->budget;
  for (size_t l = 0; l < s->p->layers; l++) {
    bound += least_priced(s, l);
  }
  double limit = hopeless_cost(s) + 1e-9 * fabs(s->price * s->p->budget);
  for (size_t l = 0; l < s->p->layers; l++) {
    double least = least_priced(s, l);
    for (size_t o = 0; o < s->p->options; o++) {
      if (bound + priced(s, l, o) - least > limit) {
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

/* Pairs of doubles: compilers do not find them by themselves here, and they save a quarter of the time. Options are doubles too, so
 * that all lanes have one width. */
typedef double pair __attribute__((vector_size(16), aligned(8), may_alias));
typedef int64_t pair_mask __attribute__((vector_size(16)));

static pair pick(pair_mask where, pair a, pair b) { return (pair)(((pair_mask)a & where) | ((pair_mask)b & ~where)); }

/* count may be odd: what lies behind is INFINITY, and stays so. */
static void serve_option(const double *before, double *ends, double *taken, size_t count, double ready, double cost,
                         double option) {
  pair start = {ready, ready}, add = {cost, cost}, mine = {option, option};
  for (size_t x = 0; x < count; x += 2) {
    pair from = *(const pair *)(before + x), best = *(const pair *)(ends + x),
         end = pick(from > start, from, start) + add;
    pair_mask better = end < best;
    *(pair *)(ends + x) = pick(better, end, best);
    *(pair *)(taken + x) = pick(better, mine, *(const pair *)(taken + x));
  }
}

static int is_live(const solver *s, size_t l, size_t o) { return s->live[l * s->p->options + o]; }

static size_t most_steps(const solver *s, size_t l) {
  size_t most = 0;
  for (size_t o = 0; o < s->p->options; o++) {
    size_t steps = is_live(s, l, o) ? steps_of(s, l, o) : 0;
    most = steps <= STEPS && steps > most ? steps : most;
  }
  return most;
}

/* ends[x]: the least cost of the layers so far with x steps of error. */
static void serve(solver *s, size_t l, uint8_t *taken) {
  double *swap = s->before, ready = s->p->ready ? s->p->ready[l] : -INFINITY;
  size_t low = s->low, high = s->high;
  s->before = s->ends;
  s->ends = swap;
  s->high = pith__least(STEPS, high + most_steps(s, l));
  for (size_t x = low; x <= s->high + 1; x++) {
    s->ends[x] = INFINITY;
    s->taken[x] = 0;
  }
  for (size_t o = 0; o < s->p->options; o++) {
    size_t steps = steps_of(s, l, o);
    if (is_live(s, l, o) && low + steps <= STEPS) {
      size_t count = pith__least(high, STEPS - steps) - low + 1;
      serve_option(s->before + low, s->ends + low + steps, s->taken + low + steps, count, ready, cost_of(s, l, o),
                   (double)o);
    }
  }
  for (size_t x = low; x <= s->high; x++) {
    taken[x] = (uint8_t)(int)s->taken[x];
  }
}

/* The least that an undecided layer adds to a bound: its cost, and its steps at the price of error. */
static double least_added(const solver *s, size_t l) {
  double least = INFINITY;
  for (size_t o = 0; o < s->p->options; o++) {
    size_t steps = steps_of(s, l, o);
    if (is_live(s, l, o) && steps <= STEPS) {
      least = fmin(least, cost_of(s, l, o) + s->price * s->unit * (double)steps);
    }
  }
  return least;
}

/* Leaves out steps at both ends from which nothing better than the best can come: `rest` is the least that is still to be added. */
static int narrow(solver *s, double rest) {
  double limit = hopeless_cost(s) - rest + s->price * s->unit * STEPS, slope = s->price * s->unit;
  while (s->low <= s->high && s->ends[s->high] + slope * (double)s->high > limit) {
    if (s->high-- == 0) {
      return 0;
    }
  }
  while (s->low <= s->high && s->ends[s->low] + slope * (double)s->low > limit) {
    s->low++;
  }
  s->ends[s->high + 1] = INFINITY;
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
    size_t l = s->undecided[i], o = s->steps[i * (STEPS + 1) + x];
    s->trial[l] = o;
    x -= steps_of(s, l, o);
  }
}

/* The programme over undecided layers; `decided` is the cost of the others. */
static void run_programme(solver *s, size_t count, double decided) {
  double rest = decided;
  for (size_t i = 0; i < count; i++) {
    rest += least_added(s, s->undecided[i]);
  }
  s->low = s->high = 0;
  s->ends[0] = 0;
  s->ends[1] = INFINITY;
  for (size_t i = 0; i < count; i++) {
    serve(s, s->undecided[i], s->steps + i * (STEPS + 1));
    rest -= least_added(s, s->undecided[i]);
    if (!narrow(s, rest)) {
      return; /* the best cannot be beaten */
    }
  }
  trace_back(s, count);
}

/* Where the cost is a sum, layers with one option left are decided; in a queue every layer has its place. */
static pith_status decide(solver *s) {
  double left = s->p->budget, decided = 0;
  size_t count = 0;
  for (size_t l = 0; l < s->p->layers; l++) {
    size_t options = live_count(s, l);
    if (!options) {
      return PITH_OK; /* the best cannot be beaten */
    }
    s->trial[l] = least_error(s, l);
    left -= error_of(s, l, s->trial[l]);
    if (options > 1 || s->p->ready) {
      s->undecided[count++] = l;
    } else {
      decided += cost_of(s, l, s->trial[l]);
    }
  }
  if (left < 0 || !count) {
    return PITH_OK; /* the trial is the only choice left; it is offered as any */
  }
  s->unit = left * (1 - 1e-12) / STEPS; /* a hair less, so that roundings of sums cannot exceed the budget */
  s->steps = calloc(count, STEPS + 1);
  PITH_REQUIRE(s->steps, PITH_ERR_MEMORY, "no memory to plan %zu layers", count);
  run_programme(s, count, decided);
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
  free(s->ends);
  free(s->before);
  free(s->taken);
  free(s->steps);
  free(s->undecided);
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
                .ends = calloc(ROOM, sizeof *s->ends),
                .before = calloc(ROOM, sizeof *s->before),
                .taken = calloc(ROOM, sizeof *s->taken),
                .undecided = malloc(layers * sizeof *s->undecided)};
  int good = s->live && s->hull && s->hull_length && s->moves && s->best && s->trial && s->ends && s->before &&
             s->taken && s->undecided;
  PITH_REQUIRE(good, PITH_ERR_MEMORY, "no memory to plan %zu layers", p->layers);
  return PITH_OK;
}

/* The least error possible is a choice too: without it there is none. */
static pith_status start(solver *s) {
  for (size_t l = 0; l < s->p->layers; l++) {
    drop_beaten(s, l);
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

static pith_status solve(solver *s) {
  PITH_TRY(start(s));
  walk(s);
  spend_rest(s, s->trial);
  offer(s, s->trial);
  drop_hopeless(s);
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

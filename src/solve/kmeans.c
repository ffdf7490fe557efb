/*
 * The scheme of CGX (Markov 2022): layers are points (size, norm of the largest entries), in logarithms and whitened.
 * Clusters are put in order of sensitivity, norm against size. A ladder of candidates, from the smallest payload up, is
 * laid along that order: no cluster gets a smaller payload than one that is less sensitive. All such assignments are
 * tried, and the smallest within the budget is taken.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/size.h"
#include "solve/methods.h"

enum { CLUSTERS = 4, RUNGS = 24, ROUNDS = 50 };
#define ROUNDING 1e-12 /* sums of the same errors in another order are the same; the caller adds up once more */

typedef struct point {
  double at[2];
  size_t layer, cluster;
} point;

typedef struct rung {
  size_t candidate;
  double bytes, error; /* of all layers */
} rung;

typedef struct clustering {
  const pith_profile *p;
  point *point;
  size_t points, clusters, rungs;
  double centre[CLUSTERS][2];
  rung ladder[PITH_CANDIDATES_MAX];
  double bytes[CLUSTERS][RUNGS], error[CLUSTERS][RUNGS];
  size_t current[CLUSTERS], best[CLUSTERS];
  double budget, best_bytes;
} clustering;

/* ---- Points ------------------------------------------------------------------------------------------------------ */

static void take_points(clustering *k) {
  for (size_t l = 0; l < k->p->layers; l++) {
    pith_profile_layer info = PITH_PROFILE_LAYER_INIT;
    if (!k->p->layer[l].fixed && pith_profile_layer_get(k->p, l, &info) == PITH_OK) {
      k->point[k->points++] = (point){{log((double)info.n), 0.5 * log(fmax(info.top, 1e-300))}, l, 0};
    }
  }
}

static void whiten(clustering *k) {
  for (int f = 0; f < 2; f++) {
    double mean = 0, square = 0;
    for (size_t i = 0; i < k->points; i++) {
      mean += k->point[i].at[f] / (double)k->points;
    }
    for (size_t i = 0; i < k->points; i++) {
      k->point[i].at[f] -= mean;
      square += k->point[i].at[f] * k->point[i].at[f] / (double)k->points;
    }
    for (size_t i = 0; i < k->points && square > 0; i++) {
      k->point[i].at[f] /= sqrt(square);
    }
  }
}

static double distance(const double *a, const double *b) {
  return (a[0] - b[0]) * (a[0] - b[0]) + (a[1] - b[1]) * (a[1] - b[1]);
}

/* ---- Clusters ---------------------------------------------------------------------------------------------------- */

static double nearest(const clustering *k, const double *at, size_t centres, size_t *cluster) {
  double least = INFINITY;
  for (size_t c = 0; c < centres; c++) {
    double d = distance(at, k->centre[c]);
    if (d < least) {
      least = d;
      *cluster = c;
    }
  }
  return least;
}

/* The first centre is the first layer; each further one the layer farthest from those before: no dice. */
static void place_centres(clustering *k, size_t wanted) {
  memcpy(k->centre[0], k->point[0].at, sizeof k->centre[0]);
  k->clusters = 1;
  while (k->clusters < wanted) {
    size_t farthest = 0, unused;
    double most = 0;
    for (size_t i = 0; i < k->points; i++) {
      double d = nearest(k, k->point[i].at, k->clusters, &unused);
      if (d > most) {
        most = d;
        farthest = i;
      }
    }
    if (most == 0) {
      return; /* fewer different points than clusters */
    }
    memcpy(k->centre[k->clusters++], k->point[farthest].at, sizeof k->centre[0]);
  }
}

static int assign(clustering *k) {
  int changed = 0;
  for (size_t i = 0; i < k->points; i++) {
    size_t cluster = 0;
    nearest(k, k->point[i].at, k->clusters, &cluster);
    changed |= cluster != k->point[i].cluster;
    k->point[i].cluster = cluster;
  }
  return changed;
}

static void move_centres(clustering *k) {
  for (size_t c = 0; c < k->clusters; c++) {
    double sum[2] = {0, 0}, count = 0;
    for (size_t i = 0; i < k->points; i++) {
      if (k->point[i].cluster == c) {
        sum[0] += k->point[i].at[0];
        sum[1] += k->point[i].at[1];
        count++;
      }
    }
    if (count > 0) {
      k->centre[c][0] = sum[0] / count;
      k->centre[c][1] = sum[1] / count;
    }
  }
}

/* Numbers clusters from the least sensitive on: large layers of small norm first. */
static void sort_clusters(clustering *k) {
  size_t place[CLUSTERS];
  for (size_t c = 0; c < k->clusters; c++) {
    place[c] = 0;
    for (size_t o = 0; o < k->clusters; o++) {
      double mine = k->centre[c][1] - k->centre[c][0], other = k->centre[o][1] - k->centre[o][0];
      place[c] += other < mine || (other == mine && o < c);
    }
  }
  for (size_t i = 0; i < k->points; i++) {
    k->point[i].cluster = place[k->point[i].cluster];
  }
}

static void make_clusters(clustering *k) {
  place_centres(k, pith__least(CLUSTERS, pith__least(k->points, k->rungs)));
  assign(k);
  for (int i = 0; i < ROUNDS; i++) {
    move_centres(k);
    if (!assign(k)) {
      break;
    }
  }
  sort_clusters(k);
}

/* ---- Ladder ------------------------------------------------------------------------------------------------------ */

static int compare_rungs(const void *a, const void *b) {
  const rung *x = a, *y = b;
  if (x->bytes != y->bytes) {
    return x->bytes < y->bytes ? -1 : 1;
  }
  return x->error != y->error ? (x->error < y->error ? -1 : 1)
                              : (x->candidate > y->candidate) - (x->candidate < y->candidate);
}

static void add_rung(clustering *k, size_t candidate) {
  rung r = {candidate, 0, 0};
  for (size_t i = 0; i < k->points; i++) {
    double bytes = 0, error = 0;
    pith_profile_get(k->p, k->point[i].layer, candidate, &bytes, &error);
    r.bytes += bytes;
    r.error += error;
  }
  k->ladder[k->rungs++] = r;
}

/* Candidates by size; those that lose more than a smaller one are left out, and of too many every so-and-so-many-th is
 * taken. */
static void make_ladder(clustering *k, const size_t *option, size_t options) {
  for (size_t i = 0; i < options; i++) {
    add_rung(k, option[i]);
  }
  qsort(k->ladder, k->rungs, sizeof *k->ladder, compare_rungs);
  size_t kept = 0;
  for (size_t i = 0; i < k->rungs; i++) {
    if (!kept || k->ladder[i].error < k->ladder[kept - 1].error) {
      k->ladder[kept++] = k->ladder[i];
    }
  }
  k->rungs = pith__least(kept, RUNGS);
  for (size_t i = 0; i < k->rungs && kept > RUNGS; i++) {
    k->ladder[i] = k->ladder[i * (kept - 1) / (RUNGS - 1)];
  }
}

static void sum_clusters(clustering *k) {
  for (size_t i = 0; i < k->points; i++) {
    for (size_t r = 0; r < k->rungs; r++) {
      double bytes = 0, error = 0;
      pith_profile_get(k->p, k->point[i].layer, k->ladder[r].candidate, &bytes, &error);
      k->bytes[k->point[i].cluster][r] += bytes;
      k->error[k->point[i].cluster][r] += error;
    }
  }
}

/* Tries every rung from `lowest` up for a cluster, then the next cluster from there. */
static void try_rungs(clustering *k, size_t cluster, size_t lowest, double bytes, double error) {
  if (error > k->budget * (1 + ROUNDING) || bytes >= k->best_bytes) {
    return;
  }
  if (cluster == k->clusters) {
    k->best_bytes = bytes;
    memcpy(k->best, k->current, sizeof k->best);
    return;
  }
  for (size_t r = lowest; r < k->rungs; r++) {
    k->current[cluster] = r;
    try_rungs(k, cluster + 1, r, bytes + k->bytes[cluster][r], error + k->error[cluster][r]);
  }
}

static pith_status choose(clustering *k, const size_t *option, size_t options, size_t *choice) {
  take_points(k);
  for (size_t l = 0; l < k->p->layers; l++) {
    choice[l] = option[0];
  }
  if (!k->points) {
    return PITH_OK; /* nothing to decide */
  }
  whiten(k);
  make_ladder(k, option, options);
  make_clusters(k);
  sum_clusters(k);
  try_rungs(k, 0, 0, 0, 0);
  PITH_REQUIRE(
      isfinite(k->best_bytes), PITH_ERR_RANGE,
      "the budget cannot be kept: it is a squared error of %.6g, and the least that these candidates can do is %.6g",
      k->budget, k->ladder[k->rungs - 1].error);
  for (size_t i = 0; i < k->points; i++) {
    choice[k->point[i].layer] = k->ladder[k->best[k->point[i].cluster]].candidate;
  }
  return PITH_OK;
}

pith_status pith__kmeans_choose(const pith_profile *p, const size_t *option, size_t options, double budget,
                                size_t *choice) {
  clustering *k = calloc(1, sizeof *k);
  point *points = calloc(p->layers + 1, sizeof *points);
  pith_status status = PITH_ERR_MEMORY;
  if (k && points) {
    k->p = p;
    k->point = points;
    k->budget = budget;
    k->best_bytes = INFINITY;
    status = choose(k, option, options, choice);
  } else {
    pith_fail(status, "no memory to cluster %zu layers", p->layers);
  }
  free(points);
  free(k);
  return status;
}

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The scheme of CGX (Markov 2022): layers are points (size, norm of the largest entries), in logarithms and whitened.
 * Clusters are put in order of sensitivity, norm against size. A ladder of candidates, from the smallest payload up, is
 * laid along that order: no cluster gets a smaller payload than one that is less sensitive. All such assignments are
 * tried, and the smallest within the budget is taken.
 *
 * As CGX has it, points are not in logarithms, the norm alone makes the order, and clusters get neighbouring rungs, one
 * after another. CGX knows no budget: there the user says where the first rung is, here the lowest that keeps the
 * budget is taken. Its centres begin at random places, ours at layers far from each other.
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

typedef struct clustering {
  const pith_assignment *a;
  const pith_profile *p;
  int as_cgx;
  point *point;
  size_t points, clusters;
  double centre[CLUSTERS][2];
  pith_ladder ladder;
  double bytes[CLUSTERS][RUNGS], error[CLUSTERS][RUNGS];
  size_t current[CLUSTERS], best[CLUSTERS];
  double budget, best_bytes;
} clustering;

/* ---- Points ------------------------------------------------------------------------------------------------------ */

static void take_points(clustering *k) {
  for (size_t l = 0; l < k->p->layers; l++) {
    pith_profile_layer info = PITH_PROFILE_LAYER_INIT;
    if (!k->p->layer[l].fixed && pith_profile_layer_get(k->p, l, &info) == PITH_OK) {
      double size = (double)info.n, norm = sqrt(info.top);
      point at = {{size, norm}, l, 0};
      k->point[k->points++] = k->as_cgx ? at : (point){{log(size), log(fmax(norm, 1e-150))}, l, 0};
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

static double sensitivity(const clustering *k, size_t cluster) {
  return k->centre[cluster][1] - (k->as_cgx ? 0 : k->centre[cluster][0]);
}

/* Numbers clusters from the least sensitive on: large layers of small norm first. */
static void sort_clusters(clustering *k) {
  size_t place[CLUSTERS];
  for (size_t c = 0; c < k->clusters; c++) {
    place[c] = 0;
    for (size_t o = 0; o < k->clusters; o++) {
      double mine = sensitivity(k, c), other = sensitivity(k, o);
      place[c] += other < mine || (other == mine && o < c);
    }
  }
  for (size_t i = 0; i < k->points; i++) {
    k->point[i].cluster = place[k->point[i].cluster];
  }
}

static void make_clusters(clustering *k) {
  place_centres(k, pith__least(CLUSTERS, pith__least(k->points, k->ladder.rungs)));
  assign(k);
  for (int i = 0; i < ROUNDS; i++) {
    move_centres(k);
    if (!assign(k)) {
      break;
    }
  }
  sort_clusters(k);
}

/* ---- Rungs ------------------------------------------------------------------------------------------------------- */

static void sum_clusters(clustering *k) {
  for (size_t i = 0; i < k->points; i++) {
    for (size_t r = 0; r < k->ladder.rungs; r++) {
      double bytes, error;
      pith__assignment_price(k->a, k->point[i].layer, k->ladder.rung[r].candidate, &bytes, &error);
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
  for (size_t r = lowest; r < k->ladder.rungs; r++) {
    k->current[cluster] = r;
    try_rungs(k, cluster + 1, r, bytes + k->bytes[cluster][r], error + k->error[cluster][r]);
  }
}

/* Neighbouring rungs for clusters, the first as low as the budget allows. */
static void try_neighbours(clustering *k) {
  for (size_t lowest = 0; lowest + k->clusters <= k->ladder.rungs; lowest++) {
    double bytes = 0, error = 0;
    for (size_t c = 0; c < k->clusters; c++) {
      k->current[c] = lowest + c;
      bytes += k->bytes[c][lowest + c];
      error += k->error[c][lowest + c];
    }
    if (error <= k->budget * (1 + ROUNDING) && bytes < k->best_bytes) {
      k->best_bytes = bytes;
      memcpy(k->best, k->current, sizeof k->best);
    }
  }
}

static void choose(clustering *k, size_t *choice) {
  pith__ladder_make(k->a, RUNGS, &k->ladder);
  take_points(k);
  for (size_t l = 0; l < k->p->layers; l++) {
    choice[l] = k->ladder.rung[k->ladder.rungs - 1].candidate;
  }
  if (!k->points) {
    return; /* nothing to decide */
  }
  whiten(k);
  make_clusters(k);
  sum_clusters(k);
  if (k->as_cgx) {
    try_neighbours(k);
  } else {
    try_rungs(k, 0, 0, 0, 0);
  }
  for (size_t i = 0; i < k->points && isfinite(k->best_bytes); i++) {
    choice[k->point[i].layer] = k->ladder.rung[k->best[k->point[i].cluster]].candidate;
  }
}

pith_status pith__kmeans_choose(const pith_assignment *a, int as_cgx, size_t *choice) {
  clustering *k = calloc(1, sizeof *k);
  point *points = calloc(a->p->layers + 1, sizeof *points);
  pith_status status = PITH_OK;
  if (k && points) {
    k->a = a;
    k->p = a->p;
    k->as_cgx = as_cgx;
    k->point = points;
    k->budget = a->budget;
    k->best_bytes = INFINITY;
    choose(k, choice);
  } else {
    status = pith_fail(PITH_ERR_MEMORY, "no memory to cluster %zu layers", a->p->layers);
  }
  free(points);
  free(k);
  return status;
}

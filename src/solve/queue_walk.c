/* SPDX-License-Identifier: Apache-2.0 */
/* The relaxed problem of a queue: see queue_walk.h. */
#include "solve/queue_walk.h"

#include <math.h>
#include <string.h>

enum { ITERATIONS = 40, HALVINGS = 4 };

/* ---- Rooms ------------------------------------------------------------------------------------------------------- */

/* A tree over layers: node i has the least room below it, `room[i]`, but for what was taken off its whole half at once,
 * `room[i + 2 * width]`. Leaves are at width … 2·width−1. What a layer takes is taken off the rooms of all layers up to
 * it. */

static size_t width_of(size_t layers) {
  size_t width = 1;
  while (width < layers) {
    width *= 2;
  }
  return width;
}

size_t pith__queue_room(size_t layers) { return 4 * width_of(layers); }

static void pull(double *room, size_t width, size_t node) {
  room[node] = fmin(room[2 * node], room[2 * node + 1]) - room[node + 2 * width];
}

static void rooms_fill(pith_queue *q, size_t width, double end) {
  double taken = 0;
  memset(q->room + 2 * width, 0, 2 * width * sizeof *q->room);
  for (size_t k = width; k-- > 0;) {
    taken += k < q->layers ? q->least[k] : 0;
    q->room[width + k] = k < q->layers ? end - q->ready[k] - taken : INFINITY;
  }
  for (size_t node = width - 1; node > 0; node--) {
    pull(q->room, width, node);
  }
}

/* The least room of layers up to this one. */
static double rooms_least(const double *room, size_t width, size_t layer) {
  double least = room[width + layer];
  for (size_t node = width + layer; node > 1; node /= 2) {
    least = node & 1 ? fmin(least, room[node - 1]) : least;
    least -= room[node / 2 + 2 * width];
  }
  return least;
}

static void rooms_take(double *room, size_t width, size_t layer, double taken) {
  room[width + layer] -= taken;
  for (size_t node = width + layer; node > 1; node /= 2) {
    if (node & 1) {
      room[node - 1] -= taken;
      room[node - 1 + 2 * width] += taken;
    }
    pull(room, width, node / 2);
  }
}

/* The first layer up to this one that has the least room of them. */
static size_t rooms_fullest(const double *room, size_t width, size_t layer) {
  size_t best = width + layer;
  double least = room[best];
  for (size_t node = width + layer; node > 1; node /= 2) {
    if (node & 1 && room[node - 1] <= least) {
      least = room[node - 1];
      best = node - 1;
    }
    least -= room[node / 2 + 2 * width];
  }
  while (best < width) {
    best = room[2 * best] <= room[2 * best + 1] ? 2 * best : 2 * best + 1;
  }
  return best - width;
}

/* ---- Walks ------------------------------------------------------------------------------------------------------- */

/* Steps in part. Sets prices and gives the sum of errors; both are those of the relaxed optimum for this end. */
static double walk_in_part(pith_queue *q, size_t width, double end) {
  double error = q->error;
  size_t open = q->layers; /* layers from here on have no room */
  rooms_fill(q, width, end);
  memset(q->price, 0, q->layers * sizeof *q->price);
  for (size_t i = q->count; i-- > 0 && open > 0;) {
    const pith_move *m = &q->moves[i];
    if (m->layer >= open) {
      continue;
    }
    double room = fmax(0, rooms_least(q->room, width, m->layer));
    double taken = fmin(room, m->saved);
    error -= m->added * (taken / m->saved);
    rooms_take(q->room, width, m->layer, taken);
    if (taken < m->saved) {
      size_t full = rooms_fullest(q->room, width, m->layer);
      for (size_t l = full; l < open; l++) {
        q->price[l] = m->added / m->saved;
      }
      open = full;
    }
  }
  return error;
}

/* Whole steps. Sets places. */
static double walk_whole(pith_queue *q, size_t width, double end) {
  double error = q->error;
  rooms_fill(q, width, end);
  memcpy(q->place, q->first, q->layers * sizeof *q->place);
  for (size_t i = q->count; i-- > 0;) {
    const pith_move *m = &q->moves[i];
    if (q->place[m->layer] == m->place && rooms_least(q->room, width, m->layer) >= m->saved) {
      rooms_take(q->room, width, m->layer, m->saved);
      q->place[m->layer] = m->place - 1;
      error -= m->added;
    }
  }
  return error;
}

/* Whole steps waste some of the rooms, so an end a little later is needed: first one that is late enough, then about
 * the first one. */
static void walk_later(pith_queue *q, size_t width, double end) {
  double price = q->layers ? q->price[q->layers - 1] : 0, early = 0, later = 0;
  for (int i = 0; i < ITERATIONS; i++) {
    double error = walk_whole(q, width, end + later);
    if (error <= q->budget || !(price > 0)) {
      break;
    }
    early = later;
    later = fmax(later + (error - q->budget) / price, fmax(1.5 * later, 1e-9 * end));
  }
  for (int i = 0; i < HALVINGS && later > 0; i++) {
    double middle = (early + later) / 2;
    int good = walk_whole(q, width, end + middle) <= q->budget;
    early = good ? early : middle;
    later = good ? middle : later;
  }
  walk_whole(q, width, end + later);
}

static double earliest_end(const pith_queue *q) {
  double end = 0;
  for (size_t l = 0; l < q->layers; l++) {
    end = fmax(end, q->ready[l]) + q->least[l];
  }
  return end;
}

/* The error falls with the end, ever more slowly, and a second more takes the last layer's price off it. So Newton's
 * steps come to the end that the budget needs from below, and each of them is a bound. */
double pith__queue_walk(pith_queue *q) {
  size_t width = width_of(q->layers);
  double earliest = earliest_end(q), end = earliest * (1 + q->same), error;
  for (int i = 0; i < ITERATIONS; i++) {
    error = walk_in_part(q, width, end);
    double price = q->layers ? q->price[q->layers - 1] : 0;
    double later = price > 0 ? end + (error - q->budget) / price : end;
    if (!(later > end * (1 + 1e-9))) {
      break;
    }
    end = later;
  }
  walk_later(q, width, end);
  return earliest;
}

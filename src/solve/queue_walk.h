/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The relaxed problem of a queue, and what it tells the programme (lgreco.c). The end of a queue is the largest of
 * ready_k + Σ_{j≥k} cost_j over all k. So an end of C leaves the layers from k on C − ready_k for their exchanges, for
 * every k: rooms one within the other. For such rooms greed is right: all layers begin with their least cost, and what
 * takes most error off for the time it needs comes first, until it does not fit. Where steps may be taken in part this
 * is the optimum of the relaxed problem; taken whole, they are a good choice.
 *
 * A room that is full stops all layers from there on. The error that a second would have taken off then is the layer's
 * price of time. Prices never fall from a layer to the next, and that is what makes a bound of them, whatever they are.
 */
#ifndef PITH_SOLVE_QUEUE_WALK_H
#define PITH_SOLVE_QUEUE_WALK_H

#include <stddef.h>

/* From one point of a layer's hull to the next: less cost, more error. */
typedef struct pith_move {
  double saved, added; /* cost and error */
  double rate;         /* saved for each added */
  size_t layer, place; /* to this point of the layer's hull */
} pith_move;

typedef struct pith_queue {
  size_t layers;
  const double *ready;
  const pith_move *moves; /* the best rate first */
  size_t count;
  const double *least; /* cost of each layer at the end of its hull */
  double error;        /* the sum of errors there */
  double budget;
  double same;   /* ends that differ by this share of themselves are the same */
  size_t *first; /* layers: the last points of the hulls, where the walk begins */
  size_t *place; /* out: where it ends */
  double *price; /* out: of time, in error, for each layer */
  double *room;  /* pith__queue_room(): a tree of the rooms */
} pith_queue;

/* Doubles that `room` needs. */
size_t pith__queue_room(size_t layers);

/* Fills in place and price. Gives the earliest end that any choice can have, whatever its error. */
double pith__queue_walk(pith_queue *q);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The schedule of one rank in as few bytes as possible: 4,096 ranks have a hundred million tasks. What tasks have in
 * common (bytes of a message, seconds of work) is in a table of classes; edges lie one after another.
 */
#ifndef PITH_SIM_GRAPH_H
#define PITH_SIM_GRAPH_H

#include "collective/job.h"

/* What all tasks of a class do. */
typedef struct pith_sim_class {
  pith_task_kind kind;
  pith_effort effort;
  uint64_t amount; /* WORK: values, times passes; SEND: bytes, without the header */
  int encodes;
  double seconds; /* WORK */
} pith_sim_class;

typedef struct pith_sim_classes {
  pith_sim_class *of;
  uint32_t count, room;
} pith_sim_classes;

#define PITH_SIM_RECEIVE 0       /* the class of a receive whose message has not come */
#define PITH_SIM_RECEIVED 0x8000 /* a bit of the class of one whose message has: the rest is the class of its send */

typedef struct pith_sim_task {
  uint32_t waits; /* tasks that must finish first; of a send in the queue of its link: the next one there */
  uint32_t edges; /* where the tasks that wait for this one begin */
  uint32_t tag;
  uint16_t peer, class;
  uint16_t steps, encodings; /* of the longest chain before it */
} pith_sim_task;

typedef struct pith_sim_graph {
  pith_sim_task *task; /* and one more, for the end of the edges */
  uint32_t *edge;
  uint32_t *receive; /* a hash table of receives: by peer and tag; PITH_NO_TASK: empty */
  uint32_t tasks, edges, receive_mask;
} pith_sim_graph;

/* Seconds and sizes of work. Calls with the same arguments give the same answers. */
typedef struct pith_sim_costs pith_sim_costs;
struct pith_sim_costs {
  /* Bytes of the payload that work of this effort fills or reads, and what work takes. `passes` are the task's. */
  pith_status (*payload)(const pith_sim_costs *costs, pith_effort effort, size_t n, int passes, size_t bound,
                         size_t *bytes);
  double (*seconds)(const pith_sim_costs *costs, pith_effort effort, int mode, size_t n, int passes);
};

/* From a schedule that is written, dry or not. */
pith_status pith__sim_graph_make(const pith_schedule *schedule, const pith_sim_costs *costs, pith_sim_classes *classes,
                                 pith_sim_graph *graph);
void pith__sim_graph_free(pith_sim_graph *graph);

/* The receive of that message; PITH_NO_TASK if there is none. */
uint32_t pith__sim_graph_receive(const pith_sim_graph *graph, int peer, uint32_t tag);

#endif

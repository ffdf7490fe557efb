/* SPDX-License-Identifier: Apache-2.0 */
/* Makes the compact form of a schedule. */
#include "sim/graph.h"

#include <stdlib.h>

#include "base/rng.h"

#define CLASSES_MOST PITH_SIM_RECEIVED
#define MESSAGE_MOST ((size_t)1 << 31) /* bytes */

/* ---- Classes ----------------------------------------------------------------------------------------------------- */

/* The last classes are looked at first: neighbours in a schedule are alike. */
static pith_status class_of(pith_sim_classes *all, pith_sim_class wanted, uint16_t *class) {
  for (uint32_t i = all->count; i > 0; i--) {
    const pith_sim_class *c = &all->of[i - 1];
    if (c->kind == wanted.kind && c->effort == wanted.effort && c->amount == wanted.amount &&
        c->seconds == wanted.seconds) {
      *class = (uint16_t)(i - 1);
      return PITH_OK;
    }
  }
  PITH_REQUIRE(all->count < CLASSES_MOST, PITH_ERR_RANGE, "the schedule has too many kinds of tasks");
  if (all->count == all->room) {
    uint32_t room = all->room ? 2 * all->room : 64;
    pith_sim_class *larger = realloc(all->of, room * sizeof *larger);
    PITH_REQUIRE(larger, PITH_ERR_MEMORY, "no memory for the simulation");
    all->of = larger;
    all->room = room;
  }
  *class = (uint16_t)all->count;
  all->of[all->count++] = wanted;
  return PITH_OK;
}

static int fills_or_reads(const pith_task *t) {
  return t->kind == PITH_TASK_WORK && t->piece && t->effort != PITH_EFFORT_NONE && t->effort != PITH_EFFORT_SUM;
}

/* Payloads have the size that their work gives them; all others have it already. */
static pith_status set_sizes(const pith_schedule *s, const pith_sim_costs *costs) {
  for (uint32_t i = 0; i < s->tasks; i++) {
    const pith_task *t = &s->task[i];
    if (fills_or_reads(t) && t->piece->least < t->piece->capacity) {
      PITH_TRY(costs->payload(costs, t->effort, t->n, t->passes, t->piece->capacity, &t->piece->size));
    }
  }
  return PITH_OK;
}

static pith_status classify(const pith_task *t, const pith_sim_costs *costs, pith_sim_classes *classes,
                            uint16_t *class) {
  pith_sim_class wanted = {.kind = t->kind};
  int passes = t->passes ? t->passes : 1;
  switch (t->kind) {
    case PITH_TASK_RECEIVE:
      *class = PITH_SIM_RECEIVE;
      return PITH_OK;
    case PITH_TASK_SEND:
      PITH_REQUIRE(t->piece->size < MESSAGE_MOST, PITH_ERR_RANGE, "a message of %zu bytes is too long to simulate",
                   t->piece->size);
      wanted.amount = t->piece->size;
      break;
    case PITH_TASK_WORK:
      PITH_REQUIRE(t->effort != PITH_EFFORT_NONE || t->work == pith__work_join, PITH_ERR_STATE,
                   "a task does not say what its work costs");
      wanted.effort = t->effort;
      wanted.amount = (uint64_t)t->n * (uint64_t)passes;
      wanted.encodes = t->effort == PITH_EFFORT_ENCODE || t->effort == PITH_EFFORT_ENCODE_DECODE;
      wanted.seconds = t->effort == PITH_EFFORT_NONE ? 0 : costs->seconds(costs, t->effort, t->mode, t->n, t->passes);
      break;
  }
  return class_of(classes, wanted, class);
}

/* ---- Receives by peer and tag ------------------------------------------------------------------------------------ */

static uint32_t place_of(const pith_sim_graph *g, uint32_t peer, uint32_t tag) {
  return (uint32_t)pith__mix64((uint64_t)peer << 32 | tag) & g->receive_mask;
}

static pith_status index_receives(pith_sim_graph *g, uint32_t receives) {
  uint32_t room = 2;
  while (room < receives + receives / 2) {
    room *= 2;
  }
  g->receive = malloc(room * sizeof *g->receive);
  PITH_REQUIRE(g->receive, PITH_ERR_MEMORY, "no memory for the simulation");
  g->receive_mask = room - 1;
  for (uint32_t i = 0; i < room; i++) {
    g->receive[i] = PITH_NO_TASK;
  }
  for (uint32_t t = 0; t < g->tasks; t++) {
    if (g->task[t].class == PITH_SIM_RECEIVE) {
      uint32_t at = place_of(g, g->task[t].peer, g->task[t].tag);
      while (g->receive[at] != PITH_NO_TASK) {
        at = (at + 1) & g->receive_mask;
      }
      g->receive[at] = t;
    }
  }
  return PITH_OK;
}

uint32_t pith__sim_graph_receive(const pith_sim_graph *g, int peer, uint32_t tag) {
  uint32_t at = place_of(g, (uint32_t)peer, tag), t;
  while ((t = g->receive[at]) != PITH_NO_TASK && (g->task[t].peer != peer || g->task[t].tag != tag)) {
    at = (at + 1) & g->receive_mask;
  }
  return t;
}

/* ---- All of it --------------------------------------------------------------------------------------------------- */

static pith_status copy_tasks(const pith_schedule *s, const pith_sim_costs *costs, pith_sim_classes *classes,
                              pith_sim_graph *g, uint32_t *receives) {
  uint32_t edges = 0;
  for (uint32_t i = 0; i < s->tasks; i++) {
    const pith_task *t = &s->task[i];
    pith_sim_task *to = &g->task[i];
    *to = (pith_sim_task){.waits = t->waits, .edges = edges, .tag = t->tag, .peer = (uint16_t)t->peer};
    PITH_TRY(classify(t, costs, classes, &to->class));
    *receives += t->kind == PITH_TASK_RECEIVE;
    for (uint32_t e = t->edges; e != PITH_NO_TASK; e = s->edge[e].next) {
      g->edge[edges++] = s->edge[e].to;
    }
  }
  g->task[s->tasks] = (pith_sim_task){.edges = edges};
  return PITH_OK;
}

pith_status pith__sim_graph_make(const pith_schedule *s, const pith_sim_costs *costs, pith_sim_classes *classes,
                                 pith_sim_graph *graph) {
  pith_sim_graph g = {.tasks = s->tasks, .edges = s->edges};
  uint32_t receives = 0;
  uint16_t class;
  pith_status status =
      classes->count ? PITH_OK : class_of(classes, (pith_sim_class){.kind = PITH_TASK_RECEIVE}, &class);
  g.task = malloc(((size_t)s->tasks + 1) * sizeof *g.task);
  g.edge = malloc(((size_t)s->edges + 1) * sizeof *g.edge);
  if (status == PITH_OK && !(g.task && g.edge)) {
    status = pith_fail(PITH_ERR_MEMORY, "no memory for the simulation");
  }
  status = status == PITH_OK ? set_sizes(s, costs) : status;
  status = status == PITH_OK ? copy_tasks(s, costs, classes, &g, &receives) : status;
  status = status == PITH_OK ? index_receives(&g, receives) : status;
  if (status != PITH_OK) {
    pith__sim_graph_free(&g);
    return status;
  }
  *graph = g;
  return PITH_OK;
}

void pith__sim_graph_free(pith_sim_graph *g) {
  free(g->task);
  free(g->edge);
  free(g->receive);
  *g = (pith_sim_graph){.task = NULL};
}

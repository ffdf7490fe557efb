/* The cost model: steps, bytes and work of each algorithm, as docs/algorithms.md lists them. */
#include "collective/cost.h"

#include <string.h>

/* Shared memory within a host, 10 Gbit/s between hosts, a codec on one core. */
const pith_cost_model pith__cost_default = {
    .inside = {.latency = 2e-6, .bandwidth = 5e9, .message = 1e-6},
    .across = {.latency = 30e-6, .bandwidth = 1.25e9, .message = 5e-6},
    .values = 1.5e9,
};

static const char *const names[] = {
#define NAME(constant, name, what) name,
    PITH_ALGORITHM_LIST(NAME)
#undef NAME
};

const char *pith__algorithm_name(pith_algorithm algorithm) { return names[algorithm]; }

pith_algorithm pith__algorithm_find(const char *name) {
  int found = 0;
  while (found < PITH_ALGORITHMS && strcmp(names[found], name) != 0) {
    found++;
  }
  return (pith_algorithm)found;
}

/* What one rank sends, and in how many messages and steps. */
typedef struct traffic {
  double steps_inside, steps_across, messages, inside, across; /* bytes: of the rank; across: of its host */
  double values;                                               /* worked on */
} traffic;

static int largest_host(const pith_layout *l) {
  int most = 1;
  for (int h = 0; h < l->hosts; h++) {
    most = pith__layout_members(l, h) > most ? pith__layout_members(l, h) : most;
  }
  return most;
}

/* `bytes` from every rank to others without regard to hosts. */
static void spread(const pith_layout *l, double bytes, traffic *t) {
  double members = largest_host(l), outside = l->ranks > 1 ? (l->ranks - members) / (l->ranks - 1) : 0;
  t->across += members * bytes * outside;
  t->inside += bytes * (1 - outside);
}

static double levels_of(int ranks) {
  double levels = 0;
  for (int reach = 1; reach < ranks; reach *= 2) {
    levels++;
  }
  return levels;
}

/* A step between all ranks goes at the pace of the slowest link. */
static void count_steps(const pith_layout *l, double steps, traffic *t) {
  *(l->hosts > 1 ? &t->steps_across : &t->steps_inside) += steps;
}

static traffic traffic_of(pith_algorithm algorithm, const pith_cost_question *q) {
  const pith_layout *l = q->layout;
  double ranks = l->ranks, hosts = l->hosts, members = largest_host(l), leaders = l->leaders, n = (double)q->n,
         levels = levels_of(l->ranks);
  double share = (ranks - 1) / ranks, host_share = (hosts - 1) / hosts;
  traffic t = {0};
  switch (algorithm) {
    case PITH_ALGORITHM_RING:
      count_steps(l, 2 * (ranks - 1), &t);
      t.messages = 2 * (ranks - 1);
      t.across = hosts > 1 ? 2 * q->coded * share : 0; /* neighbours are on other hosts at two places only */
      t.inside = hosts > 1 && members == 1 ? 0 : 2 * q->coded * share;
      t.values = 3 * n;
      break;
    case PITH_ALGORITHM_TREE:
      count_steps(l, 2 * levels, &t);
      t.messages = levels + 1;
      spread(l, 2 * levels * q->coded, &t);
      t.values = (levels + 2) * n;
      break;
    case PITH_ALGORITHM_HIERARCHICAL:
      t.steps_inside = 2;
      t.steps_across = hosts > 1 ? 2 : 0;
      t.messages = 2 * (hosts - 1) + 2 * members;
      t.across = 2 * q->coded * host_share;
      t.inside = q->raw + q->coded * (members - 1) / leaders;
      t.values = n * members / leaders + n / leaders + n;
      break;
    case PITH_ALGORITHM_GATHER:
      count_steps(l, 1, &t);
      t.messages = ranks - 1;
      spread(l, q->coded * (ranks - 1), &t);
      t.values = q->is_dense ? (2 + ranks) * n
                             : 2 * n + ranks * n * q->coded / (q->raw > 0 ? q->raw : 1); /* encoded, decoded, divided */
      break;
    case PITH_ALGORITHM_RANGES: {
      double union_part = q->coded < q->raw / ranks ? q->coded : q->raw / ranks;
      count_steps(l, 2, &t);
      t.messages = 2 * (ranks - 1);
      spread(l, q->coded * share + union_part * (ranks - 1), &t);
      t.values = 5 * n;
      break;
    }
    default: /* SRA, LINEAR */
      count_steps(l, 2, &t);
      t.messages = 2 * (ranks - 1);
      spread(l, 2 * q->coded * share, &t);
      t.values = 3 * n;
  }
  return t;
}

pith_cost pith__cost_of(pith_algorithm algorithm, const pith_cost_question *q, const pith_cost_model *m) {
  traffic t = traffic_of(algorithm, q);
  double message = q->layout->hosts > 1 ? m->across.message : m->inside.message;
  return (pith_cost){
      .latency = t.steps_inside * m->inside.latency + t.steps_across * m->across.latency + t.messages * message,
      .wire = t.inside / m->inside.bandwidth + t.across / m->across.bandwidth,
      .work = t.values / m->values,
  };
}

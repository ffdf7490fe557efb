/*
 * What an allreduce would cost by each algorithm: a model with few numbers, pure arithmetic, the same on every rank.
 * Its purpose is to choose, not to predict. docs/algorithms.md, "Which one is taken".
 */
#ifndef PITH_COLLECTIVE_COST_H
#define PITH_COLLECTIVE_COST_H

#include "collective/layout.h"

/* X(constant, name, what it does) */
#define PITH_ALGORITHM_LIST(X)                                                                    \
  X(AUTO, "auto", "the cheapest of those that suit")                                              \
  X(SRA, "sra", "scatter, reduce, all-gather")                                                    \
  X(HIERARCHICAL, "hierarchical", "sums within hosts first, then between hosts")                  \
  X(RING, "ring", "from neighbour to neighbour, encoded at each step")                            \
  X(TREE, "tree", "up and down a binomial tree, encoded at each step")                            \
  X(GATHER, "gather", "all payloads to all, encoded once")                                        \
  X(RANGES, "ranges", "entries of sparse payloads to the owners of index ranges, results to all") \
  X(LINEAR, "linear", "the plain sum of payloads")

typedef enum pith_algorithm {
#define PITH_ALGORITHM_ENUM(constant, name, what) PITH_ALGORITHM_##constant,
  PITH_ALGORITHM_LIST(PITH_ALGORITHM_ENUM)
#undef PITH_ALGORITHM_ENUM
      PITH_ALGORITHMS
} pith_algorithm;

const char *pith__algorithm_name(pith_algorithm algorithm);
/* The algorithm of that name; PITH_ALGORITHMS if there is none. */
pith_algorithm pith__algorithm_find(const char *name);

/* Seconds, bytes per second and values per second. */
typedef struct pith_cost_model {
  struct pith_cost_link {
    double latency, bandwidth, message; /* message: what each costs a processor */
  } inside, across;                     /* between ranks of a host, and between hosts: for the host as a whole */
  double values;                        /* encoded, decoded or added */
} pith_cost_model;

extern const pith_cost_model pith__cost_default;

/* n values of which `raw` bytes are in a tensor and `coded` bytes in a payload. */
typedef struct pith_cost_question {
  const pith_layout *layout; /* of hosts, also for algorithms that ignore them */
  size_t n;
  double raw, coded;
  int is_dense; /* a payload has all values: decoding takes as long as encoding */
} pith_cost_question;

typedef struct pith_cost {
  double latency, wire, work;
} pith_cost;

pith_cost pith__cost_of(pith_algorithm algorithm, const pith_cost_question *q, const pith_cost_model *model);

static inline double pith__cost_total(pith_cost c) { return c.latency + c.wire + c.work; }

#endif

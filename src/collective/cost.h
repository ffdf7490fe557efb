/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What an allreduce would cost by each algorithm: a model with few numbers, pure arithmetic, the same on every rank.
 * Its purpose is to choose, not to predict. docs/algorithms.md, "Which one is taken".
 */
#ifndef PITH_COLLECTIVE_COST_H
#define PITH_COLLECTIVE_COST_H

#include "collective/grid.h"
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
  X(LINEAR, "linear", "the plain sum of payloads")                                                \
  X(GRID, "grid", "in groups, then between groups: few messages on many ranks")

typedef enum pith_algorithm {
#define PITH_ALGORITHM_ENUM(constant, name, what) PITH_ALGORITHM_##constant,
  PITH_ALGORITHM_LIST(PITH_ALGORITHM_ENUM)
#undef PITH_ALGORITHM_ENUM
      PITH_ALGORITHMS
} pith_algorithm;

const char *pith__algorithm_name(pith_algorithm algorithm);
/* The algorithm of that name; PITH_ALGORITHMS if there is none. */
pith_algorithm pith__algorithm_find(const char *name);

/* Seconds, and bytes per second. */
typedef struct pith_cost_model {
  struct pith_cost_link {
    double latency, bandwidth;  /* bandwidth: inside of a rank, across of a host */
    double message, byte;       /* of a processor, to send or receive */
  } inside, across;             /* between ranks of a host, and between hosts */
  double encode_call, encode;   /* of a processor, for each call and value */
  double decode_call, decode;   /* and to add a payload to a sum */
  double sum;                   /* a value as it is */
  double pack, pack_entry;      /* entries of a sparse payload: for each value of a range, and each entry */
  double unpack_entry;          /* and to add one */
  double oversubscription;      /* of the switch, and of … */
  double rack_oversubscription; /* … racks */
} pith_cost_model;

extern const pith_cost_model pith__cost_default;

typedef enum pith_cost_kind {
  PITH_COST_RAW,    /* sums of values, or of what rounds exchange */
  PITH_COST_BLOCKS, /* payloads of pieces */
  PITH_COST_WHOLE,  /* payloads of all of it */
} pith_cost_kind;

/* n values of which `raw` bytes are in a tensor and `coded` bytes in a payload. */
typedef struct pith_cost_question {
  const pith_layout *layout; /* of hosts, also for algorithms that ignore them */
  const pith_grid *grid;     /* NULL: there is none */
  pith_cost_kind kind;
  int is_fixed; /* payloads of the same size */
  size_t n;
  double raw, coded;
  double exchanges;      /* of RAW: one after another, of so many bytes together as `coded` says */
  size_t granule;        /* of BLOCKS: values of a part at least */
  size_t chunk, message; /* bytes, as in pith_job */
  int rack_hosts;
} pith_cost_question;

/* Seconds: what it takes, and what of it are latencies and messages, links, and work. These overlap. */
typedef struct pith_cost {
  double seconds, latency, wire, work;
} pith_cost;

pith_cost pith__cost_of(pith_algorithm algorithm, const pith_cost_question *q, const pith_cost_model *model);

#endif

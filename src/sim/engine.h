/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The event engine: runs the graphs of all ranks in virtual time.
 *
 * A rank has one thread, as a comm has: it sends and receives first, then takes the lowest of the tasks that can run.
 * Messages of a link leave in order. A port (the link of a host, or what a rank sends within its host) serves the links
 * that have something to send in turn, a segment each. A segment reaches the other end behind the latency, and waits
 * there, on the links of racks, and in the switch, for those that came before it. Ranks that share cores keep one as
 * long as they have something to do; to the next it comes by way of those that wait, each of which looks for messages.
 * Events at the same time have an order of their own, so that every run gives the same result.
 */
#ifndef PITH_SIM_ENGINE_H
#define PITH_SIM_ENGINE_H

#include "sim/graph.h"

/* Bytes of the header of a message: sizeof(pith_frame), docs/format.md. */
#define PITH_SIM_HEADER 128

typedef struct pith_sim_network {
  const pith_layout *layout;
  double rate, latency, inside_rate, inside_latency;
  uint32_t segment;   /* bytes of one connection that a port sends before it turns to the next */
  double burst;       /* bytes that the link of a host passes at once when it has been idle as long as they take */
  double switch_rate; /* of all hosts together; 0: as much as they send */
  int rack_hosts;     /* 0: there are no racks */
  double rack_rate, rack_latency;
  double message, inside_message, byte, inside_byte;
  int pools;        /* of cores: one for each rank, each host, or all */
  const int *pool;  /* of each rank */
  const int *cores; /* of each pool */
  double poll;      /* where a core goes from one rank to another: for each of those that wait there */
  double look;      /* for each peer, before each piece of work */
  int straggler;
  double straggler_factor;
  int slow_host;
  double slow_rate;
} pith_sim_network;

typedef struct pith_sim_totals {
  double seconds;
  uint64_t messages, rank_bytes, inside_bytes, nic_bytes, switch_bytes, rack_bytes, events;
  unsigned steps, encodings;
} pith_sim_totals;

/* Runs the graphs, one for each rank; they cannot be run again. PITH_ERR_STATE: a schedule waits for a message that
 * nobody sends. */
pith_status pith__sim_run(const pith_sim_network *network, const pith_sim_classes *classes, pith_sim_graph *graphs,
                          pith_sim_totals *totals);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulation: how long a collective takes on a network that you describe. Part of the public API; pith.h includes it.
 *
 * The code that a comm runs writes the schedules of all ranks. They run in virtual time over a model of hosts, links
 * and processors. No value is computed and nothing is sent. docs/scale.md describes the model.
 */
#ifndef PITH_SIM_H
#define PITH_SIM_H

#include <pith/codec.h>

#ifdef __cplusplus
extern "C" {
#endif

/* No rank, or no host. */
#define PITH_SIM_NONE (-1)

/* A network, its hosts and the speed of a rank. Rates are bytes per second, times are seconds. */
typedef struct pith_sim_topology {
  size_t size;                        /* sizeof(pith_sim_topology) */
  int ranks, hosts;                   /* consecutive ranks share a host, nearly the same number on each */
  double rate, latency;               /* of a host's link, in each direction; from host to host */
  double inside_rate, inside_latency; /* between ranks of a host, for one rank, in each direction */
  double oversubscription;            /* rate of all hosts' links together over the rate of the switch; 1: none */
  size_t mtu;                         /* bytes of a packet between hosts, with TCP and IP headers; 0: no headers */
  size_t cores;                       /* of a host, shared by its ranks; 0: one for each rank */
  int shared_cores;                   /* all hosts share these cores, as in pith lab */
  double message, inside_message;     /* processor time of each message sent or received: between hosts, inside one */
  double byte, inside_byte;           /* and of each of its bytes */
  double encode_call, encode_value;   /* processor time to encode: for each call and value */
  double decode_call, decode_value;   /* and to decode and add to a sum */
  double sum_value;                   /* and to add an uncompressed value to a sum */
  double pack_value, pack_entry;      /* and to find the entries of a sparse payload: for each value, and each entry */
  double unpack_entry;                /* and to add an entry to a sum */
  int straggler;                      /* a rank whose processor is slower, or PITH_SIM_NONE … */
  double straggler_factor;            /* … by this factor */
  int slow_host;                      /* a host with a slower link, or PITH_SIM_NONE … */
  double slow_rate;                   /* … and its rate */
  size_t chunk;                       /* as pith_config.chunk */
  uint64_t most_tasks;                /* of all ranks together; a simulation that needs more is refused */
  int rack_hosts;                     /* a rack has this many consecutive hosts; 0: all hosts share one */
  double rack_oversubscription;       /* rate of the links of a rack's hosts over the rate of the rack's uplink */
  double rack_latency;                /* between racks, in addition to latency */
  double poll;                        /* time on a shared core for each peer that a waiting rank polls */
  size_t burst;                       /* bytes that a host's link passes at once after a pause, as token buckets do */
  size_t segment;                     /* bytes of one connection that a link sends before it turns to the next */
  double look;                        /* processor time for each peer that a rank looks at before each piece of work */
} pith_sim_topology;

/* 10 Gbit/s, 30 µs, shared memory inside hosts, one core for each rank. */
#define PITH_SIM_TOPOLOGY_INIT        \
  {.size = sizeof(pith_sim_topology), \
   .ranks = 2,                        \
   .hosts = 2,                        \
   .rate = 1.25e9,                    \
   .latency = 30e-6,                  \
   .inside_rate = 5e9,                \
   .inside_latency = 2e-6,            \
   .oversubscription = 1,             \
   .mtu = 1500,                       \
   .message = 2e-6,                   \
   .inside_message = 0.5e-6,          \
   .byte = 0.15e-9,                   \
   .inside_byte = 0.1e-9,             \
   .encode_call = 0.2e-6,             \
   .encode_value = 0.5e-9,            \
   .decode_call = 0.2e-6,             \
   .decode_value = 0.4e-9,            \
   .sum_value = 0.3e-9,               \
   .pack_value = 0.2e-9,              \
   .pack_entry = 3e-9,                \
   .unpack_entry = 5e-9,              \
   .straggler = PITH_SIM_NONE,        \
   .straggler_factor = 1,             \
   .slow_host = PITH_SIM_NONE,        \
   .slow_rate = 0,                    \
   .chunk = 524288,                   \
   .most_tasks = 140000000,           \
   .rack_hosts = 0,                   \
   .rack_oversubscription = 1,        \
   .rack_latency = 0,                 \
   .poll = 0.4e-6,                    \
   .burst = 0,                        \
   .segment = 32768,                  \
   .look = 0}

/* What an operation took. */
typedef struct pith_sim_result {
  size_t size;            /* sizeof(pith_sim_result) */
  const char *algorithm;  /* that was used */
  int may_be_chosen;      /* 1: auto chooses it where it is the cheapest; 0: only on request */
  double seconds;         /* until the last rank is done */
  uint64_t messages;      /* of all ranks */
  uint64_t rank_bytes;    /* sent by the rank that sends most, headers included */
  uint64_t inside_bytes;  /* within hosts, all together */
  uint64_t nic_bytes;     /* out of, or into, the busiest host */
  uint64_t switch_bytes;  /* between hosts, all together */
  unsigned steps;         /* messages in the longest chain of dependent messages */
  unsigned encodings;     /* how often a value is encoded on its way to the result, at most */
  uint64_t rank_memory;   /* bytes of buffers and schedule of the rank that needs most */
  uint64_t tasks, events; /* of all ranks; of the simulation */
  uint64_t rack_bytes;    /* out of, or into, the busiest rack */
  unsigned peers;         /* ranks with which a rank exchanges messages, for the rank with most */
} pith_sim_result;

#define PITH_SIM_RESULT_INIT {.size = sizeof(pith_sim_result)}

/* Simulates an allreduce of n values. `codec` NULL: uncompressed. `algorithm` NULL: the one that the library would
 * choose. The same arguments give the same result. PITH_ERR_ARGUMENT: the message says which field of the topology is
 * wrong. PITH_ERR_UNSUPPORTED: the algorithm does not suit the codec. PITH_ERR_RANGE: there are more tasks than
 * most_tasks. */
PITH_API pith_status pith_sim_allreduce(const pith_sim_topology *topology, const pith_codec *codec, size_t n,
                                        pith_dtype dtype, const char *algorithm, pith_sim_result *result);

/* Simulates a barrier. */
PITH_API pith_status pith_sim_barrier(const pith_sim_topology *topology, pith_sim_result *result);

/* Writes the network and the tasks of all ranks that pith_sim_allreduce() would run to a file, for other simulators.
 * docs/scale.md has the format. */
PITH_API pith_status pith_sim_export(const pith_sim_topology *topology, const pith_codec *codec, size_t n,
                                     pith_dtype dtype, const char *algorithm, const char *path);

/* The algorithm that the library would choose by its cost model, as a comm that knows the rates of this topology
 * does. */
PITH_API pith_status pith_sim_choose(const pith_sim_topology *topology, const pith_codec *codec, size_t n,
                                     pith_dtype dtype, const char **algorithm);

/* The same, and the seconds that the cost model expects; nothing is simulated. `algorithm` may be NULL. */
PITH_API pith_status pith_sim_estimate(const pith_sim_topology *topology, const pith_codec *codec, size_t n,
                                       pith_dtype dtype, const char **algorithm, double *seconds);

#ifdef __cplusplus
}
#endif
#endif

/* pith_sim_allreduce(): the schedules of all ranks, written as a comm writes them, then run by the engine. */
#include <pith/sim.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "collective/choose.h"
#include "sim/costs.h"
#include "sim/engine.h"

#define RANKS_MOST 32767 /* numbers of tasks and links fit 32 bits */
#define VALUES_MOST ((size_t)1 << 31)
#define ETHERNET 14 /* bytes around a packet */
#define TCP_IP 52   /* and of its headers, time stamps included */

/* What the ranks of a simulation share. */
typedef struct simulation {
  const pith_sim_topology *topology;
  const pith_codec *codec;
  pith_codec *entries;
  pith_state *state; /* of all ranks: schedules only ask it for sizes */
  size_t n;
  pith_dtype dtype;
  const char *asked;
  pith_layout *flat;
  pith_chooser chooser;
  pith_sim_codec_costs costs;
  pith_sim_classes classes;
  pith_sim_graph *graph;
  int *pool, *cores;
  int pools;
} simulation;

/* ---- The topology ------------------------------------------------------------------------------------------------ */

static pith_status check_positive(double value, const char *name) {
  PITH_REQUIRE(value > 0 && value < 1e18, PITH_ERR_ARGUMENT, "%s must be above 0", name);
  return PITH_OK;
}

static pith_status check_seconds(double value, const char *name) {
  PITH_REQUIRE(value >= 0 && value < 1e9, PITH_ERR_ARGUMENT, "%s must be 0 or more seconds", name);
  return PITH_OK;
}

static pith_status check_costs(const pith_sim_topology *t) {
  PITH_TRY(check_seconds(t->latency, "latency"));
  PITH_TRY(check_seconds(t->inside_latency, "inside_latency"));
  PITH_TRY(check_seconds(t->message, "message"));
  PITH_TRY(check_seconds(t->inside_message, "inside_message"));
  PITH_TRY(check_seconds(t->byte, "byte"));
  PITH_TRY(check_seconds(t->inside_byte, "inside_byte"));
  PITH_TRY(check_seconds(t->encode_call, "encode_call"));
  PITH_TRY(check_seconds(t->encode_value, "encode_value"));
  PITH_TRY(check_seconds(t->decode_call, "decode_call"));
  PITH_TRY(check_seconds(t->decode_value, "decode_value"));
  PITH_TRY(check_seconds(t->sum_value, "sum_value"));
  PITH_TRY(check_seconds(t->pack_value, "pack_value"));
  PITH_TRY(check_seconds(t->pack_entry, "pack_entry"));
  return check_seconds(t->unpack_entry, "unpack_entry");
}

static pith_status check(const pith_sim_topology *t) {
  PITH_REQUIRE(t->ranks >= 1 && t->ranks <= RANKS_MOST, PITH_ERR_ARGUMENT, "%d ranks: 1 to %d can be simulated",
               t->ranks, RANKS_MOST);
  PITH_REQUIRE(t->hosts >= 1 && t->hosts <= t->ranks, PITH_ERR_ARGUMENT, "%d hosts: there must be 1 to %d for %d ranks",
               t->hosts, t->ranks, t->ranks);
  PITH_TRY(check_positive(t->rate, "rate"));
  PITH_TRY(check_positive(t->inside_rate, "inside_rate"));
  PITH_TRY(check_positive(t->straggler_factor, "straggler_factor"));
  PITH_REQUIRE(t->oversubscription >= 1, PITH_ERR_ARGUMENT, "oversubscription must be at least 1");
  PITH_REQUIRE(t->mtu == 0 || (t->mtu >= 576 && t->mtu <= 65535), PITH_ERR_ARGUMENT,
               "mtu must be 0, or 576 to 65535 bytes");
  PITH_REQUIRE(t->cores <= 4096, PITH_ERR_ARGUMENT, "cores must be at most 4096");
  PITH_REQUIRE(!t->shared_cores || t->cores, PITH_ERR_ARGUMENT, "shared_cores needs cores");
  PITH_REQUIRE(t->straggler >= PITH_SIM_NONE && t->straggler < t->ranks, PITH_ERR_ARGUMENT,
               "straggler %d is not one of %d ranks", t->straggler, t->ranks);
  PITH_REQUIRE(t->slow_host >= PITH_SIM_NONE && t->slow_host < t->hosts, PITH_ERR_ARGUMENT,
               "slow_host %d is not one of %d hosts", t->slow_host, t->hosts);
  PITH_TRY(t->slow_host == PITH_SIM_NONE ? PITH_OK : check_positive(t->slow_rate, "slow_rate"));
  PITH_REQUIRE(t->chunk >= 1024, PITH_ERR_ARGUMENT, "chunk must be at least 1024 bytes");
  return check_costs(t);
}

static int host_of(const pith_sim_topology *t, int rank) { return (int)((long)rank * t->hosts / t->ranks); }

static pith_status lay_out(simulation *s) {
  const pith_sim_topology *t = s->topology;
  PITH_FREED uint64_t *number = malloc((size_t)t->ranks * sizeof *number);
  s->pool = malloc((size_t)t->ranks * sizeof *s->pool);
  s->cores = malloc((size_t)t->ranks * sizeof *s->cores);
  PITH_REQUIRE(number && s->pool && s->cores, PITH_ERR_MEMORY, "no memory for %d ranks", t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    number[r] = (uint64_t)host_of(t, r);
    s->pool[r] = t->cores == 0 ? r : t->shared_cores ? 0 : host_of(t, r);
    s->cores[r] = t->cores ? (int)t->cores : 1;
  }
  s->pools = s->pool[t->ranks - 1] + 1;
  PITH_TRY(pith__layout_create(t->ranks, NULL, &s->flat));
  PITH_TRY(pith__layout_create(t->ranks, number, &s->chooser.hosts));
  s->chooser.cost = pith__cost_default;
  return PITH_OK;
}

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

#define SOMEWHERE ((void *)(uintptr_t)(1 << 20)) /* where tensors would be: nothing of them is read or written */

/* A chunk that has the whole tensor, whatever its granule. */
static size_t whole_of(const simulation *s) { return (s->n + ((size_t)1 << 20)) * 8; }

static pith_status write_schedule(simulation *s, int rank, size_t chunk, pith_job *job, pith_algorithm *taken) {
  const pith_sim_topology *t = s->topology;
  *job = (pith_job){.rank = rank,
                    .ranks = t->ranks,
                    .src = {SOMEWHERE, s->n, s->dtype},
                    .dst = {SOMEWHERE, s->n, s->dtype},
                    .reduce = PITH_MEAN,
                    .codec = s->codec,
                    .state = s->state,
                    .ctx = {.size = sizeof(pith_ctx), .gamma = 1.0f},
                    .layout = s->flat,
                    .entries = s->entries,
                    .chunk = chunk};
  job->schedule.is_dry = 1;
  job->message = chunk == whole_of(s)
                     ? chunk
                     : pith__message_size(t->hosts > 1, s->n * pith_dtype_size(s->dtype), t->ranks, chunk);
  return pith__allreduce(job, &s->chooser, s->asked, taken);
}

static uint64_t memory_of(const pith_schedule *s) {
  return s->buffers + (uint64_t)s->tasks * (sizeof *s->task + sizeof *s->ready) + (uint64_t)s->edges * sizeof *s->edge;
}

static pith_status make_graph(simulation *s, int rank, size_t chunk, pith_sim_result *result) {
  pith_job job = {.rank = 0};
  pith_algorithm taken = PITH_ALGORITHM_AUTO;
  pith_status status = write_schedule(s, rank, chunk, &job, &taken);
  const pith_sim_topology *t = s->topology;
  uint64_t tasks = job.schedule.tasks, memory = memory_of(&job.schedule);
  if (status == PITH_OK && tasks * (uint64_t)t->ranks > t->most_tasks) {
    status =
        pith_fail(PITH_ERR_RANGE, "%s on %d ranks has about %.0f million tasks, more than %.0f million",
                  pith__algorithm_name(taken), t->ranks, 1e-6 * (double)tasks * t->ranks, 1e-6 * (double)t->most_tasks);
  }
  status =
      status == PITH_OK ? pith__sim_graph_make(&job.schedule, &s->costs.costs, &s->classes, &s->graph[rank]) : status;
  pith__schedule_fini(&job.schedule);
  result->algorithm = pith__algorithm_name(taken);
  result->may_be_chosen = status == PITH_OK && pith__allreduce_may_take(&s->chooser, &job, taken);
  result->tasks += tasks;
  result->rank_memory = memory > result->rank_memory ? memory : result->rank_memory;
  return status;
}

static void free_graphs(simulation *s) {
  for (int r = 0; s->graph && r < s->topology->ranks; r++) {
    pith__sim_graph_free(&s->graph[r]);
  }
  free(s->graph);
  s->graph = NULL;
}

/* ---- Running ----------------------------------------------------------------------------------------------------- */

static double share_of_payload(const pith_sim_topology *t) {
  return t->mtu ? (double)(t->mtu - TCP_IP) / (double)(t->mtu + ETHERNET) : 1;
}

static pith_status run(simulation *s, size_t chunk, pith_sim_result *result, pith_sim_totals *totals) {
  const pith_sim_topology *t = s->topology;
  double share = share_of_payload(t);
  s->graph = calloc((size_t)t->ranks, sizeof *s->graph);
  PITH_REQUIRE(s->graph, PITH_ERR_MEMORY, "no memory for %d ranks", t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    PITH_TRY(make_graph(s, r, chunk, result));
  }
  pith_sim_network network = {.layout = s->chooser.hosts,
                              .rate = t->rate * share,
                              .latency = t->latency,
                              .inside_rate = t->inside_rate,
                              .inside_latency = t->inside_latency,
                              .message = t->message,
                              .inside_message = t->inside_message,
                              .byte = t->byte,
                              .inside_byte = t->inside_byte,
                              .pools = s->pools,
                              .pool = s->pool,
                              .cores = s->cores,
                              .straggler = t->straggler,
                              .straggler_factor = t->straggler_factor,
                              .slow_host = t->slow_host,
                              .slow_rate = t->slow_rate * share};
  network.switch_rate = t->oversubscription > 1 ? network.rate * t->hosts / t->oversubscription : 0;
  return pith__sim_run(&network, &s->classes, s->graph, totals);
}

/* Whether several chunks follow each other. Their buffers are used again, and chains of messages become longer. */
static pith_status has_chunks(simulation *s, int *has) {
  pith_job job = {.rank = 0};
  pith_algorithm taken = PITH_ALGORITHM_AUTO;
  pith_status status = write_schedule(s, 0, s->topology->chunk, &job, &taken);
  uint32_t chunked = job.schedule.tasks;
  pith__schedule_fini(&job.schedule);
  PITH_TRY(status);
  PITH_TRY(write_schedule(s, 0, whole_of(s), &job, &taken));
  *has = chunked != job.schedule.tasks;
  pith__schedule_fini(&job.schedule);
  return PITH_OK;
}

static pith_status simulate(simulation *s, pith_sim_result *result) {
  pith_sim_totals totals, whole;
  pith_sim_result ignored = PITH_SIM_RESULT_INIT;
  int chunks;
  PITH_TRY(run(s, s->topology->chunk, result, &totals));
  free_graphs(s);
  PITH_TRY(has_chunks(s, &chunks));
  whole = totals;
  if (chunks) { /* steps and encodings are those of one chunk */
    PITH_TRY(run(s, whole_of(s), &ignored, &whole));
    free_graphs(s);
  }
  result->seconds = totals.seconds;
  result->messages = totals.messages;
  result->rank_bytes = totals.rank_bytes;
  result->inside_bytes = totals.inside_bytes;
  result->nic_bytes = totals.nic_bytes;
  result->switch_bytes = totals.switch_bytes;
  result->events = totals.events;
  result->steps = whole.steps;
  result->encodings = whole.encodings;
  return PITH_OK;
}

static void destroy(simulation *s) {
  free_graphs(s);
  free(s->classes.of);
  free(s->pool);
  free(s->cores);
  pith__sim_costs_fini(&s->costs);
  pith__layout_destroy(s->flat);
  pith__layout_destroy(s->chooser.hosts);
  pith_codec_destroy(s->entries);
  pith_state_destroy(s->state);
}

static pith_status prepare(simulation *s) {
  PITH_TRY(lay_out(s));
  PITH_TRY(pith_codec_create("threshold:1e-45", &s->entries)); /* as a comm has it */
  PITH_TRY(s->codec ? pith_state_create(s->codec, s->n, 0, &s->state) : PITH_OK);
  pith__sim_costs_init(&s->costs, s->topology, s->codec, s->entries, s->n);
  return PITH_OK;
}

/* What both calls begin with. `full` lives as long as the simulation. */
static pith_status begin(const pith_sim_topology *given, const pith_codec *codec, size_t n, pith_dtype dtype,
                         const char *asked, pith_sim_topology *full, simulation *s) {
  *full = (pith_sim_topology)PITH_SIM_TOPOLOGY_INIT;
  PITH_TRY(PITH_STRUCT_READ(pith_sim_topology, given, full));
  PITH_TRY(check(full));
  PITH_REQUIRE(n > 0 && n < VALUES_MOST, PITH_ERR_ARGUMENT, "%zu values: 1 to %zu can be simulated", n,
               VALUES_MOST - 1);
  PITH_REQUIRE(dtype == PITH_F32 || dtype == PITH_F16 || dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "only f32, f16 and bf16 values can be simulated");
  *s = (simulation){.topology = full, .codec = codec, .n = n, .dtype = dtype, .asked = asked};
  return prepare(s);
}

pith_status pith_sim_allreduce(const pith_sim_topology *topology, const pith_codec *codec, size_t n, pith_dtype dtype,
                               const char *algorithm, pith_sim_result *result) {
  pith_sim_topology full;
  pith_sim_result found = PITH_SIM_RESULT_INIT;
  simulation s = {.n = 0};
  PITH_REQUIRE(topology && result, PITH_ERR_ARGUMENT, "pith_sim_allreduce: topology and result must not be NULL");
  pith_status status = begin(topology, codec, n, dtype, algorithm, &full, &s);
  status = status == PITH_OK ? simulate(&s, &found) : status;
  destroy(&s);
  return status == PITH_OK ? PITH_STRUCT_WRITE(pith_sim_result, &found, result) : status;
}

pith_status pith_sim_choose(const pith_sim_topology *topology, const pith_codec *codec, size_t n, pith_dtype dtype,
                            const char **algorithm) {
  pith_sim_topology full;
  simulation s = {.n = 0};
  pith_job job = {.rank = 0};
  pith_algorithm taken = PITH_ALGORITHM_AUTO;
  PITH_REQUIRE(topology && algorithm, PITH_ERR_ARGUMENT, "pith_sim_choose: topology and algorithm must not be NULL");
  pith_status status = begin(topology, codec, n, dtype, NULL, &full, &s);
  status = status == PITH_OK ? write_schedule(&s, 0, full.chunk, &job, &taken) : status;
  pith__schedule_fini(&job.schedule);
  destroy(&s);
  PITH_TRY(status);
  *algorithm = pith__algorithm_name(taken);
  return PITH_OK;
}

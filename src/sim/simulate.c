/* SPDX-License-Identifier: Apache-2.0 */
/* pith_sim_allreduce(): the schedules of all ranks, written as a comm writes them, then run by the engine. */
#include <errno.h>
#include <pith/sim.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/struct_size.h"
#include "collective/choose.h"
#include "sim/costs.h"
#include "sim/engine.h"
#include "sim/estimate.h"

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
  int is_barrier;
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
  PITH_REQUIRE(t->rack_oversubscription >= 1, PITH_ERR_ARGUMENT, "rack_oversubscription must be at least 1");
  PITH_REQUIRE(t->rack_hosts >= 0 && t->rack_hosts <= RANKS_MOST, PITH_ERR_ARGUMENT, "rack_hosts must be 0 to %d",
               RANKS_MOST);
  PITH_TRY(check_seconds(t->rack_latency, "rack_latency"));
  PITH_TRY(check_seconds(t->poll, "poll"));
  PITH_TRY(check_seconds(t->look, "look"));
  PITH_REQUIRE(t->mtu == 0 || (t->mtu >= 576 && t->mtu <= 65535), PITH_ERR_ARGUMENT,
               "mtu must be 0, or 576 to 65535 bytes");
  PITH_REQUIRE(t->cores <= 4096, PITH_ERR_ARGUMENT, "cores must be at most 4096");
  PITH_REQUIRE(!t->shared_cores || t->cores, PITH_ERR_ARGUMENT, "shared_cores needs cores");
  PITH_REQUIRE(t->straggler >= PITH_SIM_NONE && t->straggler < t->ranks, PITH_ERR_ARGUMENT,
               "straggler %d is not one of %d ranks", t->straggler, t->ranks);
  PITH_REQUIRE(t->slow_host >= PITH_SIM_NONE && t->slow_host < t->hosts, PITH_ERR_ARGUMENT,
               "slow_host %d is not one of %d hosts", t->slow_host, t->hosts);
  PITH_TRY(t->slow_host == PITH_SIM_NONE ? PITH_OK : check_positive(t->slow_rate, "slow_rate"));
  PITH_REQUIRE(t->segment >= 64 && t->segment <= (size_t)1 << 30, PITH_ERR_ARGUMENT,
               "segment must be 64 bytes to 1 GiB");
  PITH_REQUIRE(t->chunk >= 1024, PITH_ERR_ARGUMENT, "chunk must be at least 1024 bytes");
  return check_costs(t);
}

static int host_of(const pith_sim_topology *t, int rank) { return (int)((long)rank * t->hosts / t->ranks); }

static double share_of_payload(const pith_sim_topology *t) {
  return t->mtu ? (double)(t->mtu - TCP_IP) / (double)(t->mtu + ETHERNET) : 1;
}

/* What a comm would choose by that has been told of this network. */
static pith_cost_model model_of(const pith_sim_topology *t) {
  return (pith_cost_model){.inside = {t->inside_latency, t->inside_rate, t->inside_message, t->inside_byte},
                           .across = {t->latency, t->rate * share_of_payload(t), t->message, t->byte},
                           .encode_call = t->encode_call,
                           .encode = t->encode_value,
                           .decode_call = t->decode_call,
                           .decode = t->decode_value,
                           .sum = t->sum_value,
                           .pack = t->pack_value,
                           .pack_entry = t->pack_entry,
                           .unpack_entry = t->unpack_entry,
                           .oversubscription = t->oversubscription,
                           .rack_oversubscription = t->rack_oversubscription};
}

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
  s->chooser.cost = model_of(t);
  s->chooser.rack_hosts = t->rack_hosts;
  return PITH_OK;
}

/* ---- Schedules --------------------------------------------------------------------------------------------------- */

#define SOMEWHERE ((void *)(uintptr_t)(1 << 20)) /* where tensors would be: nothing of them is read or written */

/* A chunk that has the whole tensor, whatever its granule. */
static size_t whole_of(const simulation *s) { return (s->n + ((size_t)1 << 20)) * 8; }

static pith_job job_of(const simulation *s, int rank, size_t chunk) {
  const pith_sim_topology *t = s->topology;
  pith_job job = {.rank = rank,
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
  job.schedule.is_dry = 1;
  job.message = chunk == whole_of(s)
                    ? chunk
                    : pith__message_size(t->hosts > 1, s->n * pith_dtype_size(s->dtype), t->ranks, chunk);
  return job;
}

static pith_status write_schedule(simulation *s, int rank, size_t chunk, pith_job *job, pith_algorithm *taken) {
  *job = job_of(s, rank, chunk);
  return s->is_barrier ? pith__barrier(job) : pith__allreduce(job, &s->chooser, s->asked, taken);
}

/* Ranks that this one exchanges messages with. */
static pith_status count_peers(const simulation *s, const pith_schedule *schedule, unsigned *peers) {
  PITH_FREED char *seen = calloc((size_t)s->topology->ranks, 1);
  PITH_REQUIRE(seen, PITH_ERR_MEMORY, "no memory for %d ranks", s->topology->ranks);
  unsigned count = 0;
  for (uint32_t t = 0; t < schedule->tasks; t++) {
    const pith_task *task = &schedule->task[t];
    count += task->kind != PITH_TASK_WORK && !seen[task->peer];
    seen[task->kind != PITH_TASK_WORK ? task->peer : 0] |= task->kind != PITH_TASK_WORK;
  }
  *peers = count > *peers ? count : *peers;
  return PITH_OK;
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
  status = status == PITH_OK ? count_peers(s, &job.schedule, &result->peers) : status;
  pith__schedule_fini(&job.schedule);
  result->algorithm = s->is_barrier ? "dissemination" : pith__algorithm_name(taken);
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

static pith_sim_network network_of(const simulation *s) {
  const pith_sim_topology *t = s->topology;
  double share = share_of_payload(t);
  pith_sim_network network = {.layout = s->chooser.hosts,
                              .rate = t->rate * share,
                              .latency = t->latency,
                              .burst = (double)t->burst,
                              .segment = (uint32_t)t->segment,
                              .inside_rate = t->inside_rate,
                              .inside_latency = t->inside_latency,
                              .message = t->message,
                              .inside_message = t->inside_message,
                              .byte = t->byte,
                              .inside_byte = t->inside_byte,
                              .pools = s->pools,
                              .pool = s->pool,
                              .cores = s->cores,
                              .poll = t->poll * (t->ranks - 1),
                              .look = t->look,
                              .straggler = t->straggler,
                              .straggler_factor = t->straggler_factor,
                              .slow_host = t->slow_host,
                              .slow_rate = t->slow_rate * share,
                              .rack_hosts = t->rack_hosts,
                              .rack_rate = t->rate * t->rack_hosts / t->rack_oversubscription * share,
                              .rack_latency = t->rack_latency};
  network.switch_rate = t->oversubscription > 1 ? network.rate * t->hosts / t->oversubscription : 0;
  return network;
}

static pith_status make_graphs(simulation *s, size_t chunk, pith_sim_result *result) {
  const pith_sim_topology *t = s->topology;
  s->graph = calloc((size_t)t->ranks, sizeof *s->graph);
  PITH_REQUIRE(s->graph, PITH_ERR_MEMORY, "no memory for %d ranks", t->ranks);
  for (int r = 0; r < t->ranks; r++) {
    PITH_TRY(make_graph(s, r, chunk, result));
  }
  return PITH_OK;
}

static pith_status run(simulation *s, size_t chunk, pith_sim_result *result, pith_sim_totals *totals) {
  PITH_TRY(make_graphs(s, chunk, result));
  pith_sim_network network = network_of(s);
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
  result->rack_bytes = totals.rack_bytes;
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

pith_status pith_sim_barrier(const pith_sim_topology *topology, pith_sim_result *result) {
  pith_sim_topology full;
  pith_sim_result found = PITH_SIM_RESULT_INIT;
  simulation s = {.n = 0};
  PITH_REQUIRE(topology && result, PITH_ERR_ARGUMENT, "pith_sim_barrier: topology and result must not be NULL");
  pith_status status = begin(topology, NULL, 1, PITH_F32, NULL, &full, &s);
  s.is_barrier = 1;
  status = status == PITH_OK ? simulate(&s, &found) : status;
  destroy(&s);
  return status == PITH_OK ? PITH_STRUCT_WRITE(pith_sim_result, &found, result) : status;
}

/* ---- Export: docs/scale.md has the format ------------------------------------------------------------------------ */

static void write_network(const simulation *s, FILE *file) {
  const pith_sim_topology *t = s->topology;
  pith_sim_network n = network_of(s);
  fprintf(file, "pith-schedules 1\nranks %d\nhosts %d\nrate %.17g\nlatency %.17g\ninside_rate %.17g\n", t->ranks,
          t->hosts, n.rate, n.latency, n.inside_rate);
  fprintf(file, "inside_latency %.17g\nswitch_rate %.17g\nmessage %.17g\nbyte %.17g\ninside_message %.17g\n",
          n.inside_latency, n.switch_rate, n.message, n.byte, n.inside_message);
  fprintf(file, "inside_byte %.17g\nrack_hosts %d\nrack_rate %.17g\nrack_latency %.17g\nburst %.17g\n", n.inside_byte,
          n.rack_hosts, n.rack_rate, n.rack_latency, n.burst);
}

static void write_graph(const simulation *s, int rank, FILE *file) {
  const pith_sim_graph *g = &s->graph[rank];
  fprintf(file, "rank %d %d %u\n", rank, s->chooser.hosts->host[rank], g->tasks);
  for (uint32_t i = 0; i < g->tasks; i++) {
    const pith_sim_task *t = &g->task[i];
    const pith_sim_class *class = &s->classes.of[t->class];
    if (class->kind == PITH_TASK_WORK) {
      fprintf(file, "work %.9g", class->seconds);
    } else if (class->kind == PITH_TASK_SEND) {
      fprintf(file, "send %u %u %llu", t->peer, t->tag, (unsigned long long)class->amount + PITH_SIM_HEADER);
    } else {
      fprintf(file, "receive %u %u", t->peer, t->tag);
    }
    for (uint32_t e = t->edges; e < t[1].edges; e++) {
      fprintf(file, " %u", g->edge[e]);
    }
    fputc('\n', file);
  }
}

static pith_status write_file(simulation *s, const char *path) {
  pith_sim_result ignored = PITH_SIM_RESULT_INIT;
  PITH_TRY(make_graphs(s, s->topology->chunk, &ignored));
  FILE *file = fopen(path, "w");
  PITH_REQUIRE(file, PITH_ERR_SYSTEM, "cannot write %s: %s", path, strerror(errno));
  write_network(s, file);
  for (int r = 0; r < s->topology->ranks; r++) {
    write_graph(s, r, file);
  }
  int failed = ferror(file);
  failed |= fclose(file) != 0;
  PITH_REQUIRE(!failed, PITH_ERR_SYSTEM, "cannot write %s", path);
  return PITH_OK;
}

pith_status pith_sim_export(const pith_sim_topology *topology, const pith_codec *codec, size_t n, pith_dtype dtype,
                            const char *algorithm, const char *path) {
  pith_sim_topology full;
  simulation s = {.n = 0};
  PITH_REQUIRE(topology && path, PITH_ERR_ARGUMENT, "pith_sim_export: topology and path must not be NULL");
  pith_status status = begin(topology, codec, n, dtype, algorithm, &full, &s);
  status = status == PITH_OK ? write_file(&s, path) : status;
  destroy(&s);
  return status;
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

/* ---- Estimates --------------------------------------------------------------------------------------------------- */

struct pith_estimator {
  simulation s;
  pith_sim_topology topology;
};

pith_status pith__estimator_create(const pith_sim_topology *topology, pith_estimator **made) {
  pith_estimator *e = calloc(1, sizeof *e);
  PITH_REQUIRE(e, PITH_ERR_MEMORY, "no memory for an estimate");
  pith_status status = begin(topology, NULL, 1, PITH_F32, NULL, &e->topology, &e->s);
  if (status != PITH_OK) {
    pith__estimator_destroy(e);
    return status;
  }
  *made = e;
  return PITH_OK;
}

void pith__estimator_destroy(pith_estimator *e) {
  if (e) {
    destroy(&e->s);
    free(e);
  }
}

/* A state only for methods whose exchanges follow from it. */
static pith_status estimate(simulation *s, const char **algorithm, double *seconds) {
  PITH_TRY(s->codec && pith_codec_rounds(s->codec) && !s->state ? pith_state_create(s->codec, s->n, 0, &s->state)
                                                                : PITH_OK);
  pith_job job = job_of(s, 0, s->topology->chunk);
  pith_algorithm taken = pith__allreduce_estimate(&s->chooser, &job, seconds);
  if (algorithm) {
    *algorithm = pith__algorithm_name(taken);
  }
  return PITH_OK;
}

pith_status pith__estimator_seconds(pith_estimator *e, const pith_codec *codec, double codec_value, size_t n,
                                    const char **algorithm, double *seconds) {
  simulation *s = &e->s;
  s->codec = codec;
  s->n = n ? n : 1;
  s->chooser.cost = model_of(&e->topology);
  if (codec_value >= 0) {
    s->chooser.cost.encode = s->chooser.cost.decode = codec_value / 2;
  }
  pith_status status = estimate(s, algorithm, seconds);
  pith_state_destroy(s->state);
  s->state = NULL;
  return status;
}

pith_status pith_sim_estimate(const pith_sim_topology *topology, const pith_codec *codec, size_t n, pith_dtype dtype,
                              const char **algorithm, double *seconds) {
  pith_sim_topology full;
  simulation s = {.n = 0};
  PITH_REQUIRE(topology && seconds, PITH_ERR_ARGUMENT, "pith_sim_estimate: topology and seconds must not be NULL");
  pith_status status = begin(topology, codec, n, dtype, NULL, &full, &s);
  status = status == PITH_OK ? estimate(&s, algorithm, seconds) : status;
  destroy(&s);
  return status;
}

/*
 * An allreduce on a device over a comm of Pith's own. The host carries payloads: as many groups as there are lanes are
 * under way, and it goes from one to the next in turn, waits until its exchange has ended, enqueues the next stage of
 * its work, and begins its next exchange. While it does that for one group, the payloads of the others travel. The
 * order of exchanges follows from the groups alone, so that it is the same on all ranks.
 */
#include <pith/device.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"
#include "base/struct_size.h"
#include "device/cuda_device.h"
#include "device/device_lane.h"

#define GROUP ((size_t)16 << 20)
#define SLOTS 4
#define SLOTS_MOST 64
#define WHY 512

struct pith_device {
  pith_device_core core;
  pith_device_port port;
  pith_status broken; /* what became of a call that was ended halfway */
  char why[WHY];
};

/* ---- Life -----------------------------------------------------------------------------------------------------------
 */

static pith_status read_options(pith_device_core *o, const pith_device_options *given) {
  pith_device_options options = PITH_DEVICE_OPTIONS_INIT;
  PITH_TRY(given ? PITH_STRUCT_READ(pith_device_options, given, &options) : PITH_OK);
  o->limit = options.group ? options.group : GROUP;
  o->slot_count = options.slots ? options.slots : SLOTS;
  PITH_REQUIRE(o->slot_count <= SLOTS_MOST, PITH_ERR_ARGUMENT, "%zu slots are too many; %d are not", o->slot_count,
               SLOTS_MOST);
  return PITH_OK;
}

static pith_status make(pith_device *o, pith_comm *comm, const pith_layer *layers, size_t count, const char *rules,
                        const pith_device_options *options) {
  pith_device_core *core = &o->core;
  char text[PITH_DEVICE_TEXT];
  PITH_TRY(read_options(core, options));
  PITH_TRY(pith__cuda_module(&core->gpu));
  PITH_REQUIRE(!core->gpu->device(&core->device, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  PITH_TRY(pith__device_make(core, layers, count, rules));
  return pith__device_port_open(&o->port, core, comm);
}

/* A rank that failed says 0, so that the others need not wait for it in vain. */
static pith_status agree(const pith_device *o, pith_comm *comm, pith_status made) {
  char why[WHY];
  uint64_t mine = made == PITH_OK ? o->core.summary : 0, *all = calloc((size_t)o->core.ranks, sizeof *all);
  snprintf(why, sizeof why, "%s", pith_error());
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for %d ranks", o->core.ranks);
  pith_status status = pith_all_gather(comm, (pith_cspan){&mine, 1, PITH_I64},
                                       (pith_span){all, (size_t)o->core.ranks, PITH_I64}, NULL, NULL, NULL);
  if (made != PITH_OK) {
    status = pith_fail(made, "%s", why);
  } else if (status == PITH_OK) {
    status = pith__device_compare(&o->core, all);
  }
  free(all);
  return status;
}

pith_status pith_device_create(pith_comm *comm, const pith_layer *layers, size_t count, const char *rules,
                               uint64_t seed, const pith_device_options *options, pith_device **made) {
  PITH_REQUIRE(comm && rules && made && (layers || count == 0), PITH_ERR_ARGUMENT,
               "pith_device_create: comm, layers, rules and device must not be NULL");
  pith_device *o = calloc(1, sizeof *o);
  PITH_REQUIRE(o, PITH_ERR_MEMORY, "no memory for an allreduce on a device");
  o->core = (pith_device_core){.rank = pith_comm_rank(comm), .ranks = pith_comm_size(comm), .seed = seed, .waits = 1};
  pith_status status = agree(o, comm, make(o, comm, layers, count, rules, options));
  if (status != PITH_OK) {
    pith_device_destroy(o);
    return status;
  }
  *made = o;
  return PITH_OK;
}

void pith_device_destroy(pith_device *o) {
  if (o) {
    pith__device_port_close(&o->port, &o->core);
    pith__device_drop(&o->core);
    free(o);
  }
}

/* ---- Steps ----------------------------------------------------------------------------------------------------------
 */

/* The first stage of a group, if there is such a group. */
static pith_status begin(pith_device *o, pith_device_lane *lane, size_t group, const pith_device_job *job) {
  lane->group = group;
  lane->stage = 0;
  lane->busy = group < o->core.group_count;
  if (!lane->busy) {
    return PITH_OK;
  }
  PITH_TRY(pith__device_work(&o->core, group, 0, job));
  return pith__device_lane_leave(&o->port, lane, &o->core, job->stream);
}

/* The next stage; behind the last one comes another group. */
static pith_status advance(pith_device *o, pith_device_lane *lane, const pith_device_job *job) {
  PITH_TRY(pith__device_lane_arrive(lane, &o->core, job->stream));
  PITH_TRY(pith__device_work(&o->core, lane->group, ++lane->stage, job));
  if (pith__device_exchange(&o->core, lane->group, lane->stage).move == PITH_DEVICE_END) {
    return begin(o, lane, lane->group + o->core.slot_count, job);
  }
  return pith__device_lane_leave(&o->port, lane, &o->core, job->stream);
}

/* Once for every lane that is busy; whether any still is. */
static pith_status go_round(pith_device *o, const pith_device_job *job, int *busy) {
  *busy = 0;
  for (size_t i = 0; i < o->port.count; i++) {
    pith_device_lane *lane = &o->port.lanes[i];
    PITH_TRY(lane->busy ? advance(o, lane, job) : PITH_OK);
    PITH_TRY(lane->busy ? pith__device_lane_post(&o->port, lane, &o->core) : PITH_OK);
    *busy |= lane->busy;
  }
  return PITH_OK;
}

static pith_status reduce(pith_device *o, const pith_device_job *job) {
  int busy = o->port.count > 0;
  o->port.varying = 0;
  o->port.step = job->step;
  for (size_t i = 0; i < o->port.count; i++) {
    PITH_TRY(begin(o, &o->port.lanes[i], i, job));
  }
  for (size_t i = 0; i < o->port.count; i++) {
    PITH_TRY(pith__device_lane_post(&o->port, &o->port.lanes[i], &o->core));
  }
  while (busy) {
    PITH_TRY(go_round(o, job, &busy));
  }
  return PITH_OK;
}

/* The others must not wait for us, and the comm must not write to our memory any more. */
static pith_status give_up(pith_device *o, pith_status status) {
  o->broken = status;
  snprintf(o->why, sizeof o->why, "%s", pith_error());
  pith_comm_abort(o->port.comm, o->why);
  for (size_t i = 0; i < o->port.count; i++) {
    pith_request *request = o->port.lanes[i].request;
    o->port.lanes[i].request = NULL;
    if (request) {
      (void)pith_wait(request);
    }
  }
  return pith_fail(status, "%s", o->why);
}

pith_status pith_device_allreduce(pith_device *o, void *const *gradients, uint64_t step, void *stream) {
  PITH_REQUIRE(o && (gradients || o->core.count == 0), PITH_ERR_ARGUMENT,
               "pith_device_allreduce: device and gradients must not be NULL");
  PITH_REQUIRE(o->broken == PITH_OK, o->broken, "%s", o->why);
  PITH_TRY(pith__device_check(&o->core));
  PITH_TRY(pith__device_check_gradients(&o->core, gradients));
  pith_status status = reduce(o, &(pith_device_job){gradients, step, stream});
  return status == PITH_OK ? PITH_OK : give_up(o, status);
}

pith_status pith_device_scale(pith_device *o, float factor, void *stream) {
  PITH_REQUIRE(o, PITH_ERR_ARGUMENT, "pith_device_scale: device must not be NULL");
  return pith__device_scale(&o->core, factor, stream);
}

/* ---- Facts and checkpoints ------------------------------------------------------------------------------------------
 */

pith_status pith_device_spec(const pith_device *o, size_t layer, const char **spec, const char **reason) {
  return pith__device_spec(o ? &o->core : NULL, layer, spec, reason);
}

size_t pith_device_sent(const pith_device *o) { return o ? pith__device_sent(&o->core) + o->port.varying : 0; }

size_t pith_device_memory(const pith_device *o, size_t *pinned) {
  if (pinned) {
    *pinned = o ? o->port.pinned_size : 0;
  }
  return o ? o->core.memory_size : 0;
}

size_t pith_device_save_size(const pith_device *o) { return pith__device_size(o ? &o->core : NULL); }

pith_status pith_device_save(const pith_device *o, pith_out *out) {
  return pith__device_save(o ? &o->core : NULL, out);
}

pith_status pith_device_load(pith_device *o, pith_bytes bytes) { return pith__device_load(o ? &o->core : NULL, bytes); }

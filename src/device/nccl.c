/*
 * An allreduce on a device over NCCL: all layers of a way are one group, groups take turns in one slot, and exchanges
 * are enqueued like all the rest. What happens between them is device_stage.c.
 */
#include <pith/nccl.h>
#include <stdlib.h>

#include "base/status.h"
#include "device/cuda_device.h"
#include "device/device.h"
#include "device/nccl_library.h"

struct pith_nccl {
  pith_device_core core;
  pith_nccl_link link;
};

pith_status pith_nccl_probe(int *version) {
  const pith_nccl_library *library;
  PITH_TRY(pith__nccl_library(&library));
  if (version) {
    library->version(version);
  }
  return PITH_OK;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

/* All summaries; a rank that failed says 0, so that the others need not wait for it in vain. */
static pith_status exchange_summaries(const pith_nccl *o, uint8_t *device, uint64_t *all) {
  const pith_device_core *core = &o->core;
  size_t each = sizeof *all;
  char text[PITH_DEVICE_TEXT];
  PITH_REQUIRE(!core->gpu->copy(device + (size_t)core->rank * each, &core->summary, each, text), PITH_ERR_SYSTEM,
               "CUDA: %s", text);
  PITH_TRY(pith__nccl_gather(&o->link, device, each, NULL));
  PITH_REQUIRE(!core->gpu->copy(all, device, each * (size_t)core->ranks, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}

static pith_status agree(const pith_nccl *o, pith_status made) {
  const pith_device_core *core = &o->core;
  void *device = NULL;
  char text[PITH_DEVICE_TEXT];
  uint64_t *all = calloc((size_t)core->ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for %d ranks", core->ranks);
  pith_status status = core->gpu->allocate((size_t)core->ranks * sizeof *all, &device, text)
                           ? pith_fail(PITH_ERR_MEMORY, "CUDA: %s", text)
                           : exchange_summaries(o, device, all);
  if (status == PITH_OK) {
    status = made == PITH_OK ? pith__device_compare(core, all) : made;
  }
  if (device) {
    core->gpu->release(device);
  }
  free(all);
  return status;
}

static pith_status open_all(pith_nccl *o, void *comm) {
  PITH_TRY(pith__nccl_link(comm, &o->link));
  o->core.rank = o->link.rank;
  o->core.ranks = o->link.ranks;
  o->core.device = o->link.device;
  PITH_TRY(pith__cuda_module(&o->core.gpu));
  return pith__device_check(&o->core);
}

pith_status pith_nccl_create(void *comm, const pith_layer *layers, size_t count, const char *rules, uint64_t seed,
                             pith_nccl **made) {
  PITH_REQUIRE(comm && rules && made && (layers || count == 0), PITH_ERR_ARGUMENT,
               "pith_nccl_create: comm, layers, rules and nccl must not be NULL");
  pith_nccl *o = calloc(1, sizeof *o);
  PITH_REQUIRE(o, PITH_ERR_MEMORY, "no memory for an allreduce over NCCL");
  o->core = (pith_device_core){.seed = seed, .limit = SIZE_MAX, .slot_count = 1, .spread = 1};
  pith_status status = open_all(o, comm);
  if (status == PITH_OK) {
    status = agree(o, pith__device_make(&o->core, layers, count, rules));
  }
  if (status != PITH_OK) {
    pith_nccl_destroy(o);
    return status;
  }
  *made = o;
  return PITH_OK;
}

void pith_nccl_destroy(pith_nccl *o) {
  if (o) {
    pith__device_drop(&o->core);
    free(o);
  }
}

/* ---- Steps ------------------------------------------------------------------------------------------------------- */

static pith_status exchange(const pith_nccl *o, const pith_device_group *group, const pith_device_exchange *x,
                            void *stream) {
  switch (x->move) {
    case PITH_DEVICE_SCATTER:
      return pith__nccl_scatter(&o->link, x->out, group->bytes, x->in, group->apart, stream);
    case PITH_DEVICE_GATHER:
      return pith__nccl_gather(&o->link, x->in, x->in_size / (size_t)o->link.ranks, stream);
    case PITH_DEVICE_SUM:
      return x->in_size ? pith__nccl_sum(&o->link, (float *)(void *)x->in, x->in_size / sizeof(float), stream)
                        : PITH_OK;
    default:
      return PITH_OK;
  }
}

static pith_status reduce_group(pith_nccl *o, size_t group, const pith_device_job *job) {
  pith_device_exchange x;
  size_t stage = 0;
  do {
    PITH_TRY(pith__device_work(&o->core, group, stage, job));
    x = pith__device_exchange(&o->core, group, stage++);
    PITH_TRY(exchange(o, &o->core.groups[group], &x, job->stream));
  } while (x.move != PITH_DEVICE_END);
  return PITH_OK;
}

pith_status pith_nccl_allreduce(pith_nccl *o, void *const *gradients, uint64_t step, void *stream) {
  PITH_REQUIRE(o && (gradients || o->core.count == 0), PITH_ERR_ARGUMENT,
               "pith_nccl_allreduce: nccl and gradients must not be NULL");
  PITH_TRY(pith__device_check(&o->core));
  PITH_TRY(pith__device_check_gradients(&o->core, gradients));
  for (size_t group = 0; group < o->core.group_count; group++) {
    PITH_TRY(reduce_group(o, group, &(pith_device_job){gradients, step, stream}));
  }
  return PITH_OK;
}

pith_status pith_nccl_scale(pith_nccl *o, float factor, void *stream) {
  PITH_REQUIRE(o, PITH_ERR_ARGUMENT, "pith_nccl_scale: nccl must not be NULL");
  return pith__device_scale(&o->core, factor, stream);
}

/* ---- Facts and checkpoints --------------------------------------------------------------------------------------- */

pith_status pith_nccl_spec(const pith_nccl *o, size_t layer, const char **spec, const char **reason) {
  return pith__device_spec(o ? &o->core : NULL, layer, spec, reason);
}

size_t pith_nccl_sent(const pith_nccl *o) { return o ? pith__device_sent(&o->core) : 0; }

size_t pith_nccl_memory(const pith_nccl *o) { return o ? o->core.memory_size : 0; }

size_t pith_nccl_save_size(const pith_nccl *o) { return pith__device_size(o ? &o->core : NULL); }

pith_status pith_nccl_save(const pith_nccl *o, pith_out *out) { return pith__device_save(o ? &o->core : NULL, out); }

pith_status pith_nccl_load(pith_nccl *o, pith_bytes bytes) { return pith__device_load(o ? &o->core : NULL, bytes); }

/*
 * Places in the memory of a device: what layers keep, then slots, then scratch. Groups differ in what they need of the
 * last two, which are as large as the largest of them.
 */
#include <string.h>

#include "base/size.h"
#include "device/cuda_tasks.h"
#include "device/device.h"
#include "memory/memory.h"

/* Cuts pieces from one; without a base it only counts. */
typedef struct cutter {
  uint8_t *base;
  size_t used;
} cutter;

static void *cut(cutter *c, size_t size) {
  void *piece = c->base && size ? c->base + c->used : NULL;
  c->used = pith__sat_add(c->used, pith__device_aligned(size));
  return piece;
}

/* ---- What is kept ---------------------------------------------------------------------------------------------------
 */

static void cut_unit(pith_device_unit *u, cutter *c) {
  const pith_memory_ops *memory = u->of->codec->memory;
  size_t size = u->n * sizeof(float);
  u->memory = cut(c, memory ? size : 0);
  u->momentum = cut(c, memory && memory->after == PITH_AFTER_CLEAR ? size : 0);
  u->part = cut(c, u->of->way == PITH_DEVICE_FACTORS ? pith_cuda_part(u->of->codec, u->n, u->of->rows) : 0);
}

/* Values of a unit that are ours to average. */
static size_t own_values(const pith_device_core *o, const pith_device_group *g, size_t index) {
  size_t first, n;
  return pith_bucket_piece(g->bucket, index, o->rank, &first, &n) == PITH_OK ? n : 0;
}

static void cut_results(pith_device_core *o, pith_device_group *g, cutter *c) {
  g->own = 0;
  for (size_t i = 0; i < g->count; i++) {
    pith_device_unit *u = &o->units[g->first + i];
    const pith_memory_ops *memory = u->of->codec->memory;
    u->own = own_values(o, g, i);
    u->result = cut(c, memory && memory->after == PITH_AFTER_SUBTRACT ? u->own * sizeof(float) : 0);
    o->memories[g->first + i] = u->memory;
    o->results[g->first + i] = u->result;
    g->own += u->own;
  }
}

static void cut_kept(pith_device_core *o, cutter *c) {
  for (size_t i = 0; i < o->unit_count; i++) {
    cut_unit(&o->units[i], c);
  }
  for (size_t g = 0; g < o->group_count; g++) {
    if (o->groups[g].way == PITH_DEVICE_BLOCKS) {
      cut_results(o, &o->groups[g], c);
    }
  }
}

/* ---- What groups need
 * ------------------------------------------------------------------------------------------------- */

/* Of a slot: parts, and behind them received ones. Of the scratch: sums. */
static void measure_blocks(pith_device_core *o, pith_device_group *g, size_t *slot, size_t *scratch) {
  *slot = pith__sat_add(pith__device_aligned(g->span), pith__sat_mul(g->apart, (size_t)o->ranks));
  *scratch = pith__sat_mul(g->own, sizeof(float));
}

/* Messages; and sums behind the workspace. */
static void measure_whole(pith_device_core *o, pith_device_group *g, size_t *slot, size_t *scratch) {
  cutter sums = {NULL, 0};
  g->room = pith__device_aligned(g->count * sizeof(uint64_t));
  for (size_t i = 0; i < g->count; i++) {
    pith_device_unit *u = &o->units[g->first + i];
    u->at = g->room;
    u->total = sums.used;
    g->room = pith__sat_add(g->room, pith__device_aligned(pith_codec_bound(u->of->codec, u->n)));
    cut(&sums, u->of->dtype == PITH_F32 ? 0 : u->n * sizeof(float));
  }
  *slot = pith__sat_mul(g->room, (size_t)o->ranks);
  *scratch = sums.used;
}

/* The buffer of a round. */
static void measure_factors(pith_device_core *o, pith_device_group *g, size_t *slot, size_t *scratch) {
  memset(g->totals, 0, sizeof g->totals);
  for (size_t i = 0; i < g->count; i++) {
    pith_device_unit *u = &o->units[g->first + i];
    pith_cuda_item item = pith__device_item(o, u, o->rank, 0);
    pith_gpu_lowrank task = pith__gpu_lowrank_task(&item, 0);
    u->counts[0] = task.dense ? 0 : (size_t)task.rank * task.rows;
    u->counts[1] = task.dense ? u->n : (size_t)task.rank * task.cols;
    g->totals[0] += u->counts[0];
    g->totals[1] += u->counts[1];
  }
  *slot = pith__sat_mul(pith__most(g->totals[0], g->totals[1]), sizeof(float));
  *scratch = 0;
}

static size_t workspace_of(pith_device_core *o, const pith_device_group *g) {
  if (g->way == PITH_DEVICE_BLOCKS) {
    return 0;
  }
  for (size_t i = 0; i < g->count; i++) {
    o->items[i] = pith__device_item(o, &o->units[g->first + i], o->rank, 0);
  }
  return pith__device_aligned(pith_cuda_workspace(o->items, g->count));
}

/* Sums of whole tensors lie behind a workspace as large as the largest. Returns what the scratch takes. */
static size_t measure_groups(pith_device_core *o) {
  static void (*const measure[])(pith_device_core *, pith_device_group *, size_t *, size_t *) = {
      [PITH_DEVICE_BLOCKS] = measure_blocks,
      [PITH_DEVICE_WHOLE] = measure_whole,
      [PITH_DEVICE_FACTORS] = measure_factors};
  size_t most[PITH_DEVICE_WAYS] = {0};
  o->slot_size = o->workspace_size = 0;
  for (size_t i = 0; i < o->group_count; i++) {
    pith_device_group *g = &o->groups[i];
    size_t slot, scratch;
    measure[g->way](o, g, &slot, &scratch);
    o->slot_size = pith__most(o->slot_size, pith__device_aligned(slot));
    o->workspace_size = pith__most(o->workspace_size, workspace_of(o, g));
    most[g->way] = pith__most(most[g->way], scratch);
  }
  return pith__most(most[PITH_DEVICE_BLOCKS], pith__sat_add(o->workspace_size, most[PITH_DEVICE_WHOLE]));
}

static void cut_all(pith_device_core *o, size_t scratch, cutter *c) {
  cut_kept(o, c);
  o->kept_size = c->used;
  o->slots = cut(c, pith__sat_mul(o->slot_size, pith__least(o->slot_count, o->group_count)));
  o->scratch = cut(c, scratch);
}

pith_status pith__device_take_memory(pith_device_core *o) {
  char text[PITH_DEVICE_TEXT];
  cutter measure = {NULL, 0};
  cut_kept(o, &measure); /* how many values are our own */
  size_t scratch = measure_groups(o);
  measure.used = 0;
  cut_all(o, scratch, &measure);
  PITH_REQUIRE(measure.used < SIZE_MAX / 2, PITH_ERR_MEMORY, "these layers are too large for any memory");
  PITH_REQUIRE(!o->gpu->allocate(measure.used, &o->memory, text), PITH_ERR_MEMORY, "CUDA: %zu bytes for %zu layers: %s",
               measure.used, o->count, text);
  o->memory_size = measure.used;
  cut_all(o, scratch, &(cutter){o->memory, 0});
  return PITH_OK;
}

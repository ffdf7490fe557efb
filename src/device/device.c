/*
 * The life of an allreduce on a device: layers get their codecs and ways, are cut into units, and units are put into
 * groups. device_memory.c has their places in memory, device_stage.c the steps, device_save.c checkpoints.
 */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/size.h"
#include "base/struct_size.h"
#include "device/cuda_device.h"
#include "device/cuda_tasks.h"

#define LAYERS_MOST ((size_t)1 << 20)
#define SMALL_ROOM 4096   /* bytes that any layer may take */
#define SLICE_VALUES 4096 /* slices begin at multiples of about so many */
#define WHOLE_GROUPS 4    /* times the bytes of gradients where payloads are very small */

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static int has_name(const pith_layer *layers, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(layers[i].name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

static pith_status check_layers(const pith_layer *layers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const pith_layer *l = &layers[i];
    PITH_REQUIRE(l->name && *l->name && (l->shape || l->dimensions == 0), PITH_ERR_ARGUMENT,
                 "layer %zu needs a name and a shape", i);
    PITH_REQUIRE(!has_name(layers, i, l->name), PITH_ERR_ARGUMENT, "there are two layers %s", l->name);
    PITH_REQUIRE(l->dtype == PITH_F32 || l->dtype == PITH_F16 || l->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
                 "layer %s: gradients are f32, f16 or bf16, not %s", l->name, pith_dtype_name(l->dtype));
  }
  return PITH_OK;
}

static pith_status size_of(const pith_layer *l, size_t *n) {
  *n = 1;
  for (size_t d = 0; d < l->dimensions; d++) {
    PITH_REQUIRE(!__builtin_mul_overflow(*n, l->shape[d], n) && *n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT,
                 "layer %s is too large", l->name);
  }
  return PITH_OK;
}

/* Where nobody waits for the size of a payload, its room travels. */
static pith_status check_room(const pith_layer *l, const pith_device_member *m) {
  size_t room = pith_codec_bound(m->codec, m->n), values = m->n * pith_dtype_size(m->dtype);
  PITH_REQUIRE((m->codec->caps & PITH_CAP_FIXED) || room <= values / 2 + SMALL_ROOM, PITH_ERR_UNSUPPORTED,
               "layer %s: payloads of %s vary in size up to %zu bytes, and over NCCL, where nobody waits for sizes, "
               "all of that would travel for "
               "%zu bytes of values; topk with a small ratio has a small bound",
               l->name, m->codec->spec, room, values);
  return PITH_OK;
}

static pith_status choose_way(const pith_device_core *o, const pith_layer *l, pith_device_member *m) {
  if (pith_cuda_supports(m->codec) != PITH_OK) {
    return pith_fail(PITH_ERR_UNSUPPORTED, "layer %s: %s", l->name, pith_error());
  }
  int factors = pith__gpu_is_lowrank(m->codec);
  PITH_REQUIRE(factors || pith_codec_rounds(m->codec) == 0, PITH_ERR_UNSUPPORTED,
               "layer %s: there are no CUDA kernels for the rounds of %s", l->name, m->codec->spec);
  int blocks = pith__gpu_is_block(m->codec) && !(m->codec->caps & PITH_CAP_ONCE);
  m->way = factors ? PITH_DEVICE_FACTORS : blocks ? PITH_DEVICE_BLOCKS : PITH_DEVICE_WHOLE;
  PITH_REQUIRE(m->way == PITH_DEVICE_BLOCKS || m->n <= PITH_GPU_WHOLE_VALUES, PITH_ERR_RANGE,
               "layer %s: %zu values are too many for %s; a GPU takes %u", l->name, m->n, m->codec->spec,
               PITH_GPU_WHOLE_VALUES);
  return m->way == PITH_DEVICE_WHOLE && !o->waits ? check_room(l, m) : PITH_OK;
}

static pith_status fill_member(const pith_device_core *o, const pith_layer *l, pith_device_member *m) {
  pith_match match = PITH_MATCH_INIT;
  *m = (pith_device_member){.dtype = l->dtype, .number = pith__hash64(l->name, strlen(l->name), 0)};
  PITH_TRY(size_of(l, &m->n));
  PITH_TRY(pith_rules_find(o->rules, l->name, l->dimensions, m->n, &match));
  m->codec = match.codec;
  m->reason = match.reason;
  m->rows = l->dimensions > 1 && l->shape[0] <= m->n ? l->shape[0] : 0;
  return choose_way(o, l, m);
}

/* A rule for no layer is probably a slip. */
static pith_status check_rules(const pith_device_core *o, const pith_layer *layers, size_t count) {
  for (size_t rule = 0; rule < pith_rules_count(o->rules); rule++) {
    size_t i = 0;
    while (i < count && !pith_rules_matches(o->rules, rule, layers[i].name)) {
      i++;
    }
    PITH_REQUIRE(i < count || count == 0, PITH_ERR_SPEC, "rule number %zu of \"%s\" matches none of %zu layers",
                 rule + 1, pith_rules_text(o->rules), count);
  }
  return PITH_OK;
}

static pith_status make_members(pith_device_core *o, const pith_layer *layers, size_t count, const char *rules) {
  PITH_TRY(pith_rules_create(rules, &o->rules));
  o->members = calloc(count + 1, sizeof *o->members);
  PITH_REQUIRE(o->members, PITH_ERR_MEMORY, "no memory for %zu layers", count);
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(fill_member(o, &layers[i], &o->members[i]));
  }
  o->count = count;
  return check_rules(o, layers, count);
}

/* ---- Units and groups ----------------------------------------------------------------------------------------------
 */

static size_t member_bytes(const pith_device_member *m) { return m->n * pith_dtype_size(m->dtype); }

/* Values of a slice; all of them where a layer stays whole. Codecs do not see where a tensor was cut: not within a
 * granule. */
static size_t slice_values(const pith_device_core *o, const pith_device_member *m) {
  size_t slices = m->n ? (member_bytes(m) - 1) / o->limit + 1 : 1;
  if (m->way != PITH_DEVICE_BLOCKS || slices == 1) {
    return m->n;
  }
  size_t granule = m->codec->granule, step = (SLICE_VALUES + granule - 1) / granule * granule;
  size_t each = (m->n - 1) / slices + 1;
  return (each + step - 1) / step * step;
}

static size_t count_units(const pith_device_core *o) {
  size_t count = 0;
  for (size_t i = 0; i < o->count; i++) {
    const pith_device_member *m = &o->members[i];
    count += m->n ? (m->n - 1) / slice_values(o, m) + 1 : 1;
  }
  return count;
}

/* Another slice is as another layer, with random numbers of its own. */
static pith_device_unit make_unit(const pith_device_member *m, size_t layer, size_t first, size_t n) {
  pith_device_unit unit = {.of = m, .layer = layer, .first = first, .n = n, .number = m->number};
  unit.number = first ? pith__hash64(&first, sizeof first, m->number) : m->number;
  return unit;
}

/* The group that a unit of so many bytes joins: the last one, or a new one. */
static pith_device_group *find_group(pith_device_core *o, pith_device_way way, size_t size, size_t *filled) {
  size_t limit = way == PITH_DEVICE_BLOCKS ? o->limit : pith__sat_mul(o->limit, WHOLE_GROUPS);
  pith_device_group *last = o->group_count ? &o->groups[o->group_count - 1] : NULL;
  if (!last || last->way != way || (*filled && size > limit - pith__least(*filled, limit))) {
    last = &o->groups[o->group_count++];
    *last = (pith_device_group){.way = way, .first = o->unit_count};
    *filled = 0;
  }
  *filled = pith__sat_add(*filled, size);
  return last;
}

/* Layers without values have a place in buckets, where others follow them in turn, and nowhere else. */
static void add_units(pith_device_core *o, size_t layer, size_t *filled) {
  const pith_device_member *m = &o->members[layer];
  size_t each = slice_values(o, m), first = 0;
  if (m->n == 0 && m->way != PITH_DEVICE_BLOCKS) {
    return;
  }
  do {
    size_t n = pith__least(each, m->n - first);
    find_group(o, m->way, n * pith_dtype_size(m->dtype), filled)->count++;
    o->units[o->unit_count++] = make_unit(m, layer, first, n);
    first += n;
  } while (first < m->n);
}

/* Groups without a value have nothing to exchange. */
static void drop_empty_groups(pith_device_core *o) {
  size_t kept = 0;
  for (size_t g = 0; g < o->group_count; g++) {
    size_t values = 0;
    for (size_t i = 0; i < o->groups[g].count; i++) {
      values += o->units[o->groups[g].first + i].n;
    }
    if (values) {
      o->groups[kept++] = o->groups[g];
    }
  }
  o->group_count = kept;
}

static pith_status make_groups(pith_device_core *o) {
  size_t most = count_units(o) + 1;
  o->units = calloc(most, sizeof *o->units);
  o->groups = calloc(most, sizeof *o->groups);
  o->items = calloc(most, sizeof *o->items);
  o->tensors = calloc(most, sizeof *o->tensors);
  o->memories = calloc(most, sizeof *o->memories);
  o->results = calloc(most, sizeof *o->results);
  PITH_REQUIRE(o->units && o->groups && o->items && o->tensors && o->memories && o->results, PITH_ERR_MEMORY,
               "no memory for %zu layers", o->count);
  for (int way = 0; way < PITH_DEVICE_WAYS; way++) {
    size_t filled = 0;
    for (size_t i = 0; i < o->count; i++) {
      if ((int)o->members[i].way == way) {
        add_units(o, i, &filled);
      }
    }
  }
  drop_empty_groups(o);
  return PITH_OK;
}

/* ---- Buckets -------------------------------------------------------------------------------------------------------
 */

static pith_status make_bucket(const pith_device_core *o, pith_device_group *g) {
  pith_bucket_item *layers = calloc(g->count, sizeof *layers);
  g->bytes = calloc(2 * (size_t)o->ranks, sizeof *g->bytes);
  pith_status status = layers && g->bytes ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory for %zu layers", g->count);
  for (size_t i = 0; status == PITH_OK && i < g->count; i++) {
    const pith_device_unit *u = &o->units[g->first + i];
    layers[i] = (pith_bucket_item){
        .size = sizeof(pith_bucket_item), .codec = u->of->codec, .layer = u->number, .n = u->n, .dtype = u->of->dtype};
  }
  if (status == PITH_OK) {
    g->at = g->bytes + o->ranks;
    status = pith_bucket_create(o->rank, o->ranks, layers, g->count, &g->bucket);
  }
  free(layers);
  return status;
}

/* How large parts are, and how far apart. */
static void place_parts(const pith_device_core *o, pith_device_group *g) {
  size_t largest = 0;
  for (int p = 0; p < o->ranks; p++) {
    g->bytes[p] = pith_bucket_bytes(g->bucket, p);
    largest = pith__most(largest, g->bytes[p]);
  }
  for (int p = 0; p < o->ranks; p++) {
    g->at[p] = g->span;
    g->span = pith__sat_add(g->span, o->spread ? pith__device_aligned(largest) : g->bytes[p]);
  }
  g->apart = o->spread ? pith__device_aligned(largest) : g->bytes[o->rank];
}

static pith_status make_buckets(pith_device_core *o) {
  for (size_t i = 0; i < o->group_count; i++) {
    pith_device_group *g = &o->groups[i];
    if (g->way == PITH_DEVICE_BLOCKS) {
      PITH_TRY(make_bucket(o, g));
      place_parts(o, g);
    }
  }
  return PITH_OK;
}

/* ---- Ranks compare -------------------------------------------------------------------------------------------------
 */

static uint64_t summary_of(const pith_device_core *o) {
  uint64_t shape[3] = {o->count, o->limit, o->slot_count}, hash = pith__hash64(shape, sizeof shape, o->seed);
  for (size_t i = 0; i < o->count; i++) {
    const pith_device_member *m = &o->members[i];
    uint64_t facts[5] = {m->number, m->n, m->rows, (uint64_t)m->dtype, m->codec->fingerprint};
    hash = pith__hash64(facts, sizeof facts, hash);
  }
  return hash | 1;
}

pith_status pith__device_compare(const pith_device_core *o, const uint64_t *all) {
  for (int p = 0; p < o->ranks; p++) {
    PITH_REQUIRE(all[p], PITH_ERR_PEER, "rank %d could not make its object: its own error says why", p);
    PITH_REQUIRE(all[p] == o->summary, PITH_ERR_MISMATCH,
                 "rank %d has other layers, rules, options or another seed than rank %d", p, o->rank);
  }
  return PITH_OK;
}

/* ---- Life ----------------------------------------------------------------------------------------------------------
 */

pith_status pith__device_check(const pith_device_core *o) {
  char text[PITH_DEVICE_TEXT];
  int device = -1;
  PITH_REQUIRE(!o->gpu->device(&device, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  PITH_REQUIRE(device == o->device, PITH_ERR_ARGUMENT,
               "the object is of device %d, and the calling thread's current device is %d", o->device, device);
  return PITH_OK;
}

static pith_status make(pith_device_core *o, const pith_layer *layers, size_t count, const char *rules) {
  PITH_TRY(check_layers(layers, count));
  PITH_TRY(make_members(o, layers, count, rules));
  PITH_TRY(make_groups(o));
  PITH_TRY(make_buckets(o));
  PITH_TRY(pith__device_take_memory(o));
  o->summary = summary_of(o);
  return PITH_OK;
}

pith_status pith__device_make(pith_device_core *o, const pith_layer *given, size_t count, const char *rules) {
  PITH_REQUIRE(count <= LAYERS_MOST, PITH_ERR_ARGUMENT, "more than %zu layers", LAYERS_MOST);
  pith_layer *layers = calloc(count + 1, sizeof *layers);
  pith_status status = layers ? PITH_OK : pith_fail(PITH_ERR_MEMORY, "no memory for %zu layers", count);
  for (size_t i = 0; i < count && status == PITH_OK; i++) {
    status = PITH_STRUCT_READ_AT(pith_layer, given, i, &layers[i]);
  }
  if (status == PITH_OK) {
    status = make(o, layers, count, rules);
  }
  free(layers);
  return status;
}

void pith__device_drop(pith_device_core *o) {
  if (o->memory) {
    o->gpu->release(o->memory);
  }
  for (size_t g = 0; g < o->group_count; g++) {
    pith_bucket_destroy(o->groups[g].bucket);
    free(o->groups[g].bytes);
  }
  free(o->groups);
  free(o->units);
  free(o->items);
  free((void *)o->tensors);
  free((void *)o->memories);
  free((void *)o->results);
  free(o->members);
  pith_rules_destroy(o->rules);
}

/* ---- Facts ---------------------------------------------------------------------------------------------------------
 */

pith_status pith__device_spec(const pith_device_core *o, size_t layer, const char **spec, const char **reason) {
  PITH_REQUIRE(o && layer < o->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", layer);
  if (spec) {
    *spec = o->members[layer].codec->spec;
  }
  if (reason) {
    *reason = o->members[layer].reason;
  }
  return PITH_OK;
}

static size_t group_sent(const pith_device_core *o, const pith_device_group *g) {
  size_t others = (size_t)o->ranks - 1, sent = others * (g->apart + (o->waits ? 0 : g->room));
  for (int p = 0; g->bytes && p < o->ranks; p++) {
    sent += p == o->rank ? 0 : g->bytes[p];
  }
  return sent + 2 * others * (g->totals[0] + g->totals[1]) * sizeof(float) / (size_t)o->ranks;
}

size_t pith__device_sent(const pith_device_core *o) {
  size_t sent = 0;
  for (size_t g = 0; g < o->group_count; g++) {
    sent += group_sent(o, &o->groups[g]);
  }
  return sent;
}

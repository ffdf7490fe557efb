/*
 * The life of an allreduce over NCCL: layers get their codecs and ways, memory is taken, and ranks compare what they have. nccl_step.c has the steps,
 * nccl_save.c checkpoints.
 */
#include "engine/nccl.h"

#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/saturate.h"
#include "base/size.h"
#include "engine/cuda_device.h"
#include "engine/cuda_tasks.h"
#include "memory/memory.h"

#define LAYERS_MOST ((size_t)1 << 20)
#define ALIGNMENT 256 /* of everything on the device */
#define TEXT 256
#define SMALL_ROOM 4096 /* bytes that any layer may take */

static size_t aligned(size_t size) { return pith__sat_add(size, ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

pith_status pith_nccl_probe(int *version) {
  const pith_nccl_library *library;
  PITH_TRY(pith__nccl_library(&library));
  if (version) {
    library->version(version);
  }
  return PITH_OK;
}

/* ---- Layers ------------------------------------------------------------------------------------------------------ */

static int has_name(const pith_nccl_layer *layers, size_t count, const char *name) {
  for (size_t i = 0; i < count; i++) {
    if (strcmp(layers[i].name, name) == 0) {
      return 1;
    }
  }
  return 0;
}

static pith_status check_layers(const pith_nccl_layer *layers, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const pith_nccl_layer *l = &layers[i];
    PITH_REQUIRE(l->name && *l->name && (l->shape || l->dimensions == 0), PITH_ERR_ARGUMENT, "layer %zu needs a name and a shape", i);
    PITH_REQUIRE(!has_name(layers, i, l->name), PITH_ERR_ARGUMENT, "there are two layers %s", l->name);
    PITH_REQUIRE(l->dtype == PITH_F32 || l->dtype == PITH_F16 || l->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
                 "layer %s: gradients are f32, f16 or bf16, not %s", l->name, pith_dtype_name(l->dtype));
  }
  return PITH_OK;
}

static pith_status size_of(const pith_nccl_layer *l, size_t *n) {
  *n = 1;
  for (size_t d = 0; d < l->dimensions; d++) {
    PITH_REQUIRE(!__builtin_mul_overflow(*n, l->shape[d], n) && *n <= SIZE_MAX / 64, PITH_ERR_ARGUMENT, "layer %s is too large", l->name);
  }
  return PITH_OK;
}

/* Of a payload whose size varies, the room travels. */
static pith_status check_room(const pith_nccl_layer *l, const pith_nccl_member *m) {
  size_t room = pith_codec_bound(m->codec, m->n), values = m->n * pith_dtype_size(m->dtype);
  PITH_REQUIRE((m->codec->caps & PITH_CAP_FIXED) || room <= values / 2 + SMALL_ROOM, PITH_ERR_UNSUPPORTED,
               "layer %s: payloads of %s vary in size up to %zu bytes, and over NCCL, where nobody waits for sizes, all of that would travel for "
               "%zu bytes of values; topk with a small ratio has a small bound",
               l->name, m->codec->spec, room, values);
  return PITH_OK;
}

static pith_status choose_way(const pith_nccl_layer *l, pith_nccl_member *m) {
  if (pith_cuda_supports(m->codec) != PITH_OK) {
    return pith_fail(PITH_ERR_UNSUPPORTED, "layer %s: %s", l->name, pith_error());
  }
  int factors = pith__gpu_is_lowrank(m->codec);
  PITH_REQUIRE(factors || pith_codec_rounds(m->codec) == 0, PITH_ERR_UNSUPPORTED, "layer %s: there are no CUDA kernels for the rounds of %s",
               l->name, m->codec->spec);
  m->way = factors ? PITH_NCCL_FACTORS : pith__gpu_is_block(m->codec) ? PITH_NCCL_BLOCKS : PITH_NCCL_WHOLE;
  PITH_REQUIRE(m->way == PITH_NCCL_BLOCKS || m->n <= PITH_GPU_WHOLE_VALUES, PITH_ERR_RANGE,
               "layer %s: %zu values are too many for %s; a GPU takes %u", l->name, m->n, m->codec->spec, PITH_GPU_WHOLE_VALUES);
  return m->way == PITH_NCCL_WHOLE ? check_room(l, m) : PITH_OK;
}

static pith_status fill_member(const pith_nccl *o, const pith_nccl_layer *l, pith_nccl_member *m) {
  pith_match match;
  *m = (pith_nccl_member){.dtype = l->dtype, .number = pith__hash64(l->name, strlen(l->name), 0)};
  PITH_TRY(size_of(l, &m->n));
  PITH_TRY(pith_rules_find(o->rules, l->name, l->dimensions, m->n, &match));
  m->codec = match.codec;
  m->reason = match.reason;
  m->rows = l->dimensions > 1 && l->shape[0] <= m->n ? l->shape[0] : 0;
  return choose_way(l, m);
}

/* A rule for no layer is probably a slip. */
static pith_status check_rules(const pith_nccl *o, const pith_nccl_layer *layers, size_t count) {
  for (size_t rule = 0; rule < pith_rules_count(o->rules); rule++) {
    size_t i = 0;
    while (i < count && !pith_rules_matches(o->rules, rule, layers[i].name)) {
      i++;
    }
    PITH_REQUIRE(i < count || count == 0, PITH_ERR_SPEC, "rule number %zu of \"%s\" matches none of %zu layers", rule + 1,
                 pith_rules_text(o->rules), count);
  }
  return PITH_OK;
}

static pith_status make_members(pith_nccl *o, const pith_nccl_layer *layers, size_t count, const char *rules) {
  PITH_TRY(pith_rules_create(rules, &o->rules));
  o->members = calloc(count + 1, sizeof *o->members);
  PITH_REQUIRE(o->members, PITH_ERR_MEMORY, "no memory for %zu layers", count);
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(fill_member(o, &layers[i], &o->members[i]));
  }
  o->count = count;
  return check_rules(o, layers, count);
}

static pith_status make_lists(pith_nccl *o) {
  for (int way = 0; way < PITH_NCCL_WAYS; way++) {
    pith_nccl_list *list = &o->lists[way];
    list->index = calloc(o->count + 1, sizeof *list->index);
    PITH_REQUIRE(list->index, PITH_ERR_MEMORY, "no memory for %zu layers", o->count);
    for (size_t i = 0; i < o->count; i++) {
      if ((int)o->members[i].way == way) {
        list->index[list->count++] = i;
      }
    }
  }
  size_t blocks = o->lists[PITH_NCCL_BLOCKS].count + 1;
  o->items = calloc(o->count + 1, sizeof *o->items);
  o->tensors = calloc(blocks, sizeof *o->tensors);
  o->memories = calloc(blocks, sizeof *o->memories);
  o->results = calloc(blocks, sizeof *o->results);
  o->bytes = calloc((size_t)o->link.ranks, sizeof *o->bytes);
  PITH_REQUIRE(o->items && o->tensors && o->memories && o->results && o->bytes, PITH_ERR_MEMORY, "no memory for %zu layers", o->count);
  return PITH_OK;
}

/* The bucket of all layers that can be cut; its number of values that are ours, and how far its parts are apart. */
static pith_status make_bucket(pith_nccl *o) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_BLOCKS];
  pith_bucket_layer *layers = calloc(list->count + 1, sizeof *layers);
  PITH_REQUIRE(layers, PITH_ERR_MEMORY, "no memory for %zu layers", list->count);
  for (size_t i = 0; i < list->count; i++) {
    const pith_nccl_member *m = &o->members[list->index[i]];
    layers[i] = (pith_bucket_layer){.codec = m->codec, .layer = m->number, .n = m->n, .dtype = m->dtype};
  }
  pith_status status = pith_bucket_create(o->link.rank, o->link.ranks, layers, list->count, &o->bucket);
  free(layers);
  PITH_TRY(status);
  for (int p = 0; p < o->link.ranks; p++) {
    o->bytes[p] = pith_bucket_bytes(o->bucket, p);
    o->stride = pith__most(o->stride, aligned(o->bytes[p]));
  }
  return PITH_OK;
}

/* ---- Memory of the device ---------------------------------------------------------------------------------------- */

/* Cuts pieces from one; without a base it only counts. */
typedef struct cutter {
  uint8_t *base;
  size_t used;
} cutter;

static void *cut(cutter *c, size_t size) {
  void *piece = c->base && size ? c->base + c->used : NULL;
  c->used = pith__sat_add(c->used, aligned(size));
  return piece;
}

/* Values of a layer that are ours to average. */
static size_t own_values(const pith_nccl *o, size_t index) {
  size_t first, n;
  return pith_bucket_piece(o->bucket, index, o->link.rank, &first, &n) == PITH_OK ? n : 0;
}

static void cut_kept(pith_nccl *o, cutter *c) {
  for (size_t i = 0; i < o->count; i++) {
    pith_nccl_member *m = &o->members[i];
    const pith_memory_ops *memory = m->codec->memory;
    size_t size = m->n * sizeof(float);
    m->memory = cut(c, memory ? size : 0);
    m->momentum = cut(c, memory && memory->after == PITH_AFTER_CLEAR ? size : 0);
    m->part = cut(c, m->way == PITH_NCCL_FACTORS ? pith_cuda_part(m->codec, m->n, m->rows) : 0);
  }
  const pith_nccl_list *list = &o->lists[PITH_NCCL_BLOCKS];
  o->own = 0;
  for (size_t i = 0; i < list->count; i++) {
    pith_nccl_member *m = &o->members[list->index[i]];
    int keeps = m->codec->memory && m->codec->memory->after == PITH_AFTER_SUBTRACT;
    m->own = own_values(o, i);
    m->result = cut(c, keeps ? m->own * sizeof(float) : 0);
    o->own += m->own;
    o->memories[i] = m->memory;
    o->results[i] = m->result;
  }
}

static void cut_blocks(pith_nccl *o, cutter *c) {
  size_t size = pith__sat_mul(o->stride, (size_t)o->link.ranks);
  o->parts = cut(c, size);
  o->received = cut(c, size);
  o->sums = cut(c, o->own * sizeof(float));
}

static void cut_whole(pith_nccl *o, cutter *c) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_WHOLE];
  o->room = aligned(list->count * sizeof(uint64_t));
  for (size_t i = 0; i < list->count; i++) {
    pith_nccl_member *m = &o->members[list->index[i]];
    m->at = o->room;
    m->total = cut(c, m->dtype == PITH_F32 ? 0 : m->n * sizeof(float));
    o->room = pith__sat_add(o->room, aligned(pith_codec_bound(m->codec, m->n)));
  }
  o->messages = cut(c, pith__sat_mul(o->room, (size_t)o->link.ranks));
}

static void cut_factors(pith_nccl *o, cutter *c) {
  const pith_nccl_list *list = &o->lists[PITH_NCCL_FACTORS];
  memset(o->totals, 0, sizeof o->totals);
  for (size_t i = 0; i < list->count; i++) {
    pith_nccl_member *m = &o->members[list->index[i]];
    pith_cuda_item item = pith__nccl_item(o, m, o->link.rank, 0);
    pith_gpu_lowrank task = pith__gpu_lowrank_task(&item, 0);
    m->counts[0] = task.dense ? 0 : (size_t)task.rank * task.rows;
    m->counts[1] = task.dense ? m->n : (size_t)task.rank * task.cols;
    o->totals[0] += m->counts[0];
    o->totals[1] += m->counts[1];
  }
  o->buffer = cut(c, pith__most(o->totals[0], o->totals[1]) * sizeof(float));
}

/* Enough for the layers of any one way, which take turns. */
static size_t workspace_size(pith_nccl *o) {
  size_t most = 0;
  for (int way = PITH_NCCL_WHOLE; way < PITH_NCCL_WAYS; way++) {
    const pith_nccl_list *list = &o->lists[way];
    for (size_t i = 0; i < list->count; i++) {
      o->items[i] = pith__nccl_item(o, &o->members[list->index[i]], o->link.rank, 0);
    }
    most = pith__most(most, pith_cuda_workspace(o->items, list->count));
  }
  return most;
}

static void cut_all(pith_nccl *o, cutter *c) {
  cut_kept(o, c);
  o->kept_size = c->used;
  cut_blocks(o, c);
  cut_whole(o, c);
  cut_factors(o, c);
  o->workspace = cut(c, o->workspace_size);
}

static pith_status take_memory(pith_nccl *o) {
  char text[TEXT];
  cutter measure = {NULL, 0};
  o->workspace_size = workspace_size(o);
  cut_all(o, &measure);
  PITH_REQUIRE(measure.used < SIZE_MAX / 2, PITH_ERR_MEMORY, "these layers are too large for any memory");
  PITH_REQUIRE(!o->gpu->allocate(measure.used, &o->memory, text), PITH_ERR_MEMORY, "CUDA: %zu bytes for %zu layers: %s", measure.used,
               o->count, text);
  o->memory_size = measure.used;
  cut_all(o, &(cutter){o->memory, 0});
  return PITH_OK;
}

/* ---- Ranks compare ----------------------------------------------------------------------------------------------- */

static uint64_t summary_of(const pith_nccl *o) {
  uint64_t hash = pith__hash64(&o->count, sizeof o->count, o->seed);
  for (size_t i = 0; i < o->count; i++) {
    const pith_nccl_member *m = &o->members[i];
    uint64_t facts[5] = {m->number, m->n, m->rows, (uint64_t)m->dtype, m->codec->fingerprint};
    hash = pith__hash64(facts, sizeof facts, hash);
  }
  return hash | 1;
}

static pith_status compare(const pith_nccl *o, const uint64_t *all) {
  for (int p = 0; p < o->link.ranks; p++) {
    PITH_REQUIRE(all[p], PITH_ERR_PEER, "rank %d could not make its object: its own error says why", p);
    PITH_REQUIRE(all[p] == o->summary, PITH_ERR_MISMATCH, "rank %d has other layers, rules or another seed than rank %d", p, o->link.rank);
  }
  return PITH_OK;
}

/* All summaries; a rank that failed says 0, so that the others need not wait for it in vain. */
static pith_status exchange(const pith_nccl *o, uint8_t *device, uint64_t *all) {
  size_t each = sizeof *all;
  char text[TEXT];
  PITH_REQUIRE(!o->gpu->copy(device + (size_t)o->link.rank * each, &o->summary, each, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  PITH_TRY(pith__nccl_gather(&o->link, device, each, NULL));
  PITH_REQUIRE(!o->gpu->copy(all, device, each * (size_t)o->link.ranks, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}

static pith_status agree(const pith_nccl *o, pith_status made) {
  void *device = NULL;
  char text[TEXT];
  uint64_t *all = calloc((size_t)o->link.ranks, sizeof *all);
  PITH_REQUIRE(all, PITH_ERR_MEMORY, "no memory for %d ranks", o->link.ranks);
  pith_status status = o->gpu->allocate((size_t)o->link.ranks * sizeof *all, &device, text)
                           ? pith_fail(PITH_ERR_MEMORY, "CUDA: %s", text)
                           : exchange(o, device, all);
  if (status == PITH_OK) {
    status = made == PITH_OK ? compare(o, all) : made;
  }
  if (device) {
    o->gpu->release(device);
  }
  free(all);
  return status;
}

/* ---- Life -------------------------------------------------------------------------------------------------------- */

pith_status pith__nccl_check_device(const pith_nccl *o) {
  char text[TEXT];
  int device = -1;
  PITH_REQUIRE(!o->gpu->device(&device, text), PITH_ERR_SYSTEM, "CUDA: %s", text);
  PITH_REQUIRE(device == o->link.device, PITH_ERR_ARGUMENT, "the comm is of device %d, and the calling thread's current device is %d",
               o->link.device, device);
  return PITH_OK;
}

static pith_status make(pith_nccl *o, const pith_nccl_layer *layers, size_t count, const char *rules) {
  PITH_TRY(check_layers(layers, count));
  PITH_TRY(make_members(o, layers, count, rules));
  PITH_TRY(make_lists(o));
  PITH_TRY(make_bucket(o));
  PITH_TRY(take_memory(o));
  o->summary = summary_of(o);
  return PITH_OK;
}

static pith_status open_all(pith_nccl *o, void *comm) {
  PITH_TRY(pith__nccl_link(comm, &o->link));
  PITH_TRY(pith__cuda_module(&o->gpu));
  return pith__nccl_check_device(o);
}

pith_status pith_nccl_create(void *comm, const pith_nccl_layer *layers, size_t count, const char *rules, uint64_t seed, pith_nccl **made) {
  PITH_REQUIRE(comm && rules && made && (layers || count == 0), PITH_ERR_ARGUMENT,
               "pith_nccl_create: comm, layers, rules and nccl must not be NULL");
  PITH_REQUIRE(count <= LAYERS_MOST, PITH_ERR_ARGUMENT, "more than %zu layers", LAYERS_MOST);
  pith_nccl *o = calloc(1, sizeof *o);
  PITH_REQUIRE(o, PITH_ERR_MEMORY, "no memory for an allreduce over NCCL");
  o->seed = seed;
  pith_status status = open_all(o, comm);
  if (status == PITH_OK) {
    status = agree(o, make(o, layers, count, rules));
  }
  if (status != PITH_OK) {
    pith_nccl_destroy(o);
    return status;
  }
  *made = o;
  return PITH_OK;
}

void pith_nccl_destroy(pith_nccl *o) {
  if (!o) {
    return;
  }
  if (o->memory) {
    o->gpu->release(o->memory);
  }
  for (int way = 0; way < PITH_NCCL_WAYS; way++) {
    free(o->lists[way].index);
  }
  pith_bucket_destroy(o->bucket);
  free(o->items);
  free((void *)o->tensors);
  free((void *)o->memories);
  free((void *)o->results);
  free(o->bytes);
  free(o->members);
  pith_rules_destroy(o->rules);
  free(o);
}

/* ---- Facts ------------------------------------------------------------------------------------------------------- */

pith_status pith_nccl_spec(const pith_nccl *o, size_t layer, const char **spec, const char **reason) {
  PITH_REQUIRE(o && layer < o->count, PITH_ERR_ARGUMENT, "there is no layer number %zu", layer);
  if (spec) {
    *spec = o->members[layer].codec->spec;
  }
  if (reason) {
    *reason = o->members[layer].reason;
  }
  return PITH_OK;
}

size_t pith_nccl_memory(const pith_nccl *o) { return o ? o->memory_size : 0; }

size_t pith_nccl_sent(const pith_nccl *o) {
  if (!o) {
    return 0;
  }
  size_t others = (size_t)o->link.ranks - 1, sent = others * (o->stride + (o->lists[PITH_NCCL_WHOLE].count ? o->room : 0));
  for (int p = 0; p < o->link.ranks; p++) {
    sent += p == o->link.rank ? 0 : o->bytes[p];
  }
  return sent + 2 * others * (o->totals[0] + o->totals[1]) * sizeof(float) / (size_t)o->link.ranks;
}

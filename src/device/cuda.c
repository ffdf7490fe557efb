/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GPUs: opens the CUDA module, checks what is asked of it, and hands it tasks (cuda_tasks.c).
 *
 * The module is a shared object of its own, so that this library links to libc alone and one build serves machines with
 * and without GPUs. It knows nothing of specs: a task holds the numbers that a codec's parameters come down to
 * (kernel/formats.h).
 */
#include <limits.h>
#include <pith/cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/module_file.h"
#include "base/struct_size.h"
#include "device/cuda_device.h"
#include "device/cuda_tasks.h"
#include "memory/memory.h"

#define FILE_NAME "libpith_cuda.so"
#define TEXT 256
#define WORKSPACE_ALIGNMENT 256

/* ---- The module -------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const pith_cuda_module *module; /* under the lock until it is set */
static char failure[1024], device_text[TEXT];

/* The first file found is the one: if it is broken, that is the reason, and no other is tried. Without one, there may
 * be one where the system looks. */
static pith_status find_entry(char path[PATH_MAX], pith_cuda_entry_fn *entry) {
  static const char advice[] =
      ". Build it again (make cuda, or pip install .), or set PITH_MODULE_PATH to the folder of another one";
  if (pith__find_module((const char *[]){FILE_NAME, NULL}, path)) {
    return pith__open_module(path, "CUDA module", advice, PITH_CUDA_ENTRY, entry);
  }
  memcpy(path, FILE_NAME, sizeof FILE_NAME);
  if (pith__open_module(path, "CUDA module", "", PITH_CUDA_ENTRY, entry) == PITH_OK) {
    return PITH_OK;
  }
  char places[512];
  pith__module_places(places, sizeof places);
  return pith_fail(
      PITH_ERR_UNSUPPORTED,
      "there is no CUDA module: %s was not found in %s (%s). Install a Pith package with CUDA (pip install "
      ". where nvcc is installed), or run make cuda and set PITH_MODULE_PATH to its folder",
      path, places, pith_error());
}

static pith_status open_module(const pith_cuda_module **opened) {
  pith_cuda_entry_fn entry;
  char path[PATH_MAX], text[TEXT];
  PITH_TRY(find_entry(path, &entry));
  const pith_cuda_module *found = entry();
  PITH_REQUIRE(found->abi == PITH_CUDA_ABI, PITH_ERR_UNSUPPORTED,
               "the CUDA module %s is of another version of Pith: it has ABI %u, this library %d; build both from one "
               "source",
               path, found->abi, PITH_CUDA_ABI);
  PITH_REQUIRE(found->describe(text) == 0, PITH_ERR_UNSUPPORTED, "the CUDA module %s is in order, but %s", path, text);
  memcpy(device_text, text, sizeof device_text);
  PITH_LOG_INFO("CUDA: %s (%s)", device_text, path);
  *opened = found;
  return PITH_OK;
}

/* Keeps the reason of a failure: later calls get the same answer. */
pith_status pith__cuda_module(const pith_cuda_module **found) {
  pthread_mutex_lock(&lock);
  if (!module && !failure[0] && open_module(&module) != PITH_OK) {
    snprintf(failure, sizeof failure, "%s", pith_error());
  }
  *found = module;
  pthread_mutex_unlock(&lock);
  PITH_REQUIRE(*found, PITH_ERR_UNSUPPORTED, "%s", failure);
  return PITH_OK;
}

pith_status pith_cuda_probe(const char **device) {
  const pith_cuda_module *found;
  PITH_TRY(pith__cuda_module(&found));
  if (device) {
    *device = device_text;
  }
  return PITH_OK;
}

/* ---- What is accepted -------------------------------------------------------------------------------------------- */

pith_status pith_cuda_supports(const pith_codec *codec) {
  PITH_REQUIRE(codec, PITH_ERR_ARGUMENT, "pith_cuda_supports: codec is NULL");
  const pith_codec_traits *traits = codec->traits;
  PITH_REQUIRE(traits->gpu != PITH_GPU_NO_KERNELS, PITH_ERR_UNSUPPORTED, "%s: there are no CUDA kernels for %s yet",
               codec->spec, codec->ops->name);
  PITH_REQUIRE(!codec->memory || codec->memory->blend, PITH_ERR_UNSUPPORTED, "%s: GPUs cannot run the memory %s",
               codec->spec, codec->memory->name);
  PITH_REQUIRE(!codec->transform || codec->transform->gpu_block, PITH_ERR_UNSUPPORTED,
               "%s: there are no CUDA kernels for %s yet", codec->spec, codec->transform->name);
  PITH_REQUIRE(!codec->transform || codec->granule <= PITH_GPU_TILE_MAX, PITH_ERR_UNSUPPORTED,
               "%s: rotated granules of %zu values are too large for a GPU's shared memory; up to %d are not",
               codec->spec, codec->granule, PITH_GPU_TILE_MAX);
  PITH_REQUIRE(!codec->transform || !traits->gpu_tail_apart || !traits->gpu_tail_apart(codec->args),
               PITH_ERR_UNSUPPORTED, "%s: there are no CUDA kernels for an exact last bucket behind %s", codec->spec,
               codec->transform->name);
  const char *lacks = traits->gpu_lacks ? traits->gpu_lacks(codec->args) : NULL;
  PITH_REQUIRE(!lacks, PITH_ERR_UNSUPPORTED, "%s: %s", codec->spec, lacks);
  return PITH_OK;
}

/* Makes *items those that this library has: the caller's own, or *copy, which the caller frees, if it was built with
 * another header. */
static pith_status read_items(const pith_cuda_item **items, size_t count, pith_cuda_item **copy) {
  const pith_cuda_item *given = *items;
  PITH_REQUIRE(given || count == 0, PITH_ERR_ARGUMENT, "%zu items at NULL", count);
  size_t same = 0;
  while (same < count && given[same].size == sizeof *given) {
    same++;
  }
  if (same == count) {
    return PITH_OK;
  }
  *items = *copy = calloc(count, sizeof **copy);
  PITH_REQUIRE(*copy, PITH_ERR_MEMORY, "no memory for %zu items", count);
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(PITH_STRUCT_READ_AT(pith_cuda_item, given, i, &(*copy)[i]));
  }
  return PITH_OK;
}

static pith_status check_place(const pith_cuda_item *item) {
  const pith_codec *codec = item->codec;
  if (pith__gpu_is_block(codec)) {
    PITH_REQUIRE(item->offset % codec->granule == 0, PITH_ERR_ARGUMENT,
                 "%s: a piece cannot start at value %llu: pieces start at multiples of %zu", codec->spec,
                 (unsigned long long)item->offset, codec->granule);
    return PITH_OK;
  }
  PITH_REQUIRE(item->offset == 0, PITH_ERR_ARGUMENT, "%s takes a tensor as a whole, not from value %llu on",
               codec->spec, (unsigned long long)item->offset);
  PITH_REQUIRE(item->n <= PITH_GPU_WHOLE_VALUES, PITH_ERR_RANGE,
               "%s: %zu values are too many for one tensor; a GPU takes %u", codec->spec, item->n,
               PITH_GPU_WHOLE_VALUES);
  PITH_REQUIRE((codec->caps & PITH_CAP_FIXED) || pith__gpu_is_lowrank(codec) || item->payload_size, PITH_ERR_ARGUMENT,
               "%s: payloads vary in size, and item.payload_size is NULL", codec->spec);
  return PITH_OK;
}

static pith_status check_values(const pith_cuda_item *item) {
  const char *spec = item->codec->spec;
  PITH_REQUIRE(item->dtype == PITH_F32 || item->dtype == PITH_F16 || item->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: tensors are f32, f16 or bf16, not %s", spec, pith_dtype_name(item->dtype));
  PITH_REQUIRE(item->n == 0 || (item->values && item->payload), PITH_ERR_ARGUMENT, "%s: %zu values at NULL", spec,
               item->n);
  PITH_REQUIRE((uintptr_t)item->values % pith_dtype_size(item->dtype) == 0, PITH_ERR_ARGUMENT,
               "%s: values are not aligned for %s", spec, pith_dtype_name(item->dtype));
  return PITH_OK;
}

static pith_status check_item(const pith_cuda_item *item, int encode) {
  const pith_codec *codec = item->codec;
  PITH_TRY(pith_cuda_supports(codec));
  PITH_TRY(check_values(item));
  if (encode && codec->memory && item->n) {
    PITH_REQUIRE(item->memory, PITH_ERR_STATE, "%s: needs its memory", codec->spec);
    PITH_REQUIRE(codec->memory->after != PITH_AFTER_CLEAR || item->momentum, PITH_ERR_STATE, "%s: needs its momentum",
                 codec->spec);
  }
  return check_place(item);
}

static pith_status check_round(const pith_cuda_item *item, size_t index) {
  PITH_TRY(check_item(item, 1));
  const char *spec = item->codec->spec;
  PITH_REQUIRE(pith__gpu_is_lowrank(item->codec), PITH_ERR_UNSUPPORTED, "%s: there are no CUDA kernels for its rounds",
               spec);
  PITH_REQUIRE(index < pith_codec_rounds(item->codec), PITH_ERR_ARGUMENT, "%s has no round %zu", spec, index);
  PITH_REQUIRE(item->part || pith_cuda_part(item->codec, item->n, (size_t)item->rows) == 0, PITH_ERR_STATE,
               "%s: needs its part", spec);
  PITH_REQUIRE((uintptr_t)item->payload % sizeof(float) == 0, PITH_ERR_ARGUMENT,
               "%s: the buffer of a round is not aligned", spec);
  return PITH_OK;
}

/* ---- The workspace ----------------------------------------------------------------------------------------------- */

/* What an item needs of it. The keys of the sampler and the memory do not change that; the step may, where the number
 * of values that travel falls over the first steps. */
static size_t space_of(const pith_cuda_module *gpu, const pith_cuda_item *item) {
  if (pith__gpu_is_sparse(item->codec)) {
    pith_gpu_sparse task = pith__gpu_sparse_task(item, item->codec->memory != NULL);
    return gpu->sparse_space(&task);
  }
  if (pith__gpu_is_lowrank(item->codec)) {
    pith_gpu_lowrank task = pith__gpu_lowrank_task(item, 0);
    return gpu->lowrank_space(&task);
  }
  return pith__gpu_is_lossless(item->codec) ? PITH_GPU_LOSSLESS_SPACE(item->n) : 0;
}

/* Of items that the call itself will refuse, nothing. What kernels need comes first, widened memories behind it. */
static size_t kernel_space(const pith_cuda_item *items, size_t count) {
  const pith_cuda_module *gpu;
  size_t size = 0;
  for (size_t i = 0; i < count; i++) {
    int is_whole = pith_cuda_supports(items[i].codec) == PITH_OK && !pith__gpu_is_block(items[i].codec);
    if (is_whole && items[i].n <= PITH_GPU_WHOLE_VALUES && pith__cuda_module(&gpu) == PITH_OK) {
      size += space_of(gpu, &items[i]);
    }
  }
  return size;
}

static size_t wide_space(const pith_cuda_item *items, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++) {
    size += pith_cuda_supports(items[i].codec) == PITH_OK ? pith__gpu_wide_bytes(&items[i], 1) : 0;
  }
  return size;
}

size_t pith_cuda_workspace(const pith_cuda_item *items, size_t count) {
  PITH_FREED pith_cuda_item *copy = NULL;
  int is_good = read_items(&items, count, &copy) == PITH_OK; /* else the call itself will say so */
  return is_good ? kernel_space(items, count) + wide_space(items, count) : 0;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* What is done to all items of a call: `what` is one of PITH_GPU_LOWRANK_…, which name it for codecs of every kind. */
typedef struct cuda_call {
  int what;
  int is_round;
  size_t index; /* of the round */
  void *workspace;
  size_t size;
  void *stream;
} cuda_call;

static int encodes(const cuda_call *c) { return c->what == PITH_GPU_LOWRANK_ENCODE; }

static pith_status run_blocks(pith_gpu_batch *b, const pith_cuda_item *items, size_t count, const cuda_call *c) {
  for (size_t i = 0; i < count; i++) {
    for (size_t first = 0; pith__gpu_is_block(items[i].codec) && first < items[i].n;) {
      PITH_TRY(pith__gpu_make_room(b));
      first += pith__gpu_next_task(&items[i], encodes(c), first, &b->block[b->used++]);
    }
  }
  return pith__gpu_hand_over(b);
}

/* An item without values still has a payload, unless its size is fixed: that of no values. */
static pith_status run_sparse(pith_gpu_batch *b, const pith_cuda_item *items, size_t count, const cuda_call *c) {
  uint8_t *space = c->workspace;
  for (size_t i = 0; i < count; space += space_of(b->gpu, &items[i]), i++) {
    int has_work = items[i].n || (items[i].payload && !(items[i].codec->caps & PITH_CAP_FIXED));
    if (has_work && pith__gpu_is_sparse(items[i].codec)) {
      PITH_TRY(pith__gpu_make_room(b));
      b->sparse[b->used] = pith__gpu_sparse_task(&items[i], encodes(c));
      b->sparse[b->used++].space = space;
    }
  }
  return pith__gpu_hand_over(b);
}

static pith_status run_lossless(pith_gpu_batch *b, const pith_cuda_item *items, size_t count, const cuda_call *c) {
  uint8_t *space = c->workspace;
  for (size_t i = 0; i < count; space += space_of(b->gpu, &items[i]), i++) {
    if (items[i].payload && pith__gpu_is_lossless(items[i].codec)) {
      PITH_TRY(pith__gpu_make_room(b));
      b->lossless[b->used] = pith__gpu_lossless_task(&items[i]);
      b->lossless[b->used++].space = space;
    }
  }
  return pith__gpu_hand_over(b);
}

static pith_status run_lowrank(pith_gpu_batch *b, const pith_cuda_item *items, size_t count, const cuda_call *c) {
  int with_memory = c->what != PITH_GPU_LOWRANK_SET && c->what != PITH_GPU_LOWRANK_ADD;
  uint8_t *space = c->workspace;
  for (size_t i = 0; i < count; space += space_of(b->gpu, &items[i]), i++) {
    if (pith__gpu_is_lowrank(items[i].codec)) {
      PITH_TRY(pith__gpu_make_room(b));
      b->lowrank[b->used] = pith__gpu_lowrank_task(&items[i], with_memory);
      b->lowrank[b->used++].space = space;
    }
  }
  return pith__gpu_hand_over(b);
}

static pith_status run_kinds(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count,
                             const cuda_call *c) {
  pith_gpu_batch batch = {.gpu = gpu, .stream = c->stream, .what = c->what, .kind = PITH_GPU_BLOCK_TASKS};
  PITH_TRY(run_blocks(&batch, items, count, c));
  batch.kind = PITH_GPU_SPARSE_TASKS;
  PITH_TRY(run_sparse(&batch, items, count, c));
  batch.kind = PITH_GPU_LOSSLESS_TASKS;
  PITH_TRY(run_lossless(&batch, items, count, c));
  batch.kind = PITH_GPU_LOWRANK_TASKS;
  return run_lowrank(&batch, items, count, c);
}

static pith_status run(const pith_cuda_item *items, size_t count, const cuda_call *c) {
  const pith_cuda_module *gpu;
  PITH_FREED pith_cuda_item *copy = NULL;
  PITH_TRY(read_items(&items, count, &copy));
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(c->is_round ? check_round(&items[i], c->index) : check_item(&items[i], encodes(c)));
  }
  PITH_TRY(pith__cuda_module(&gpu));
  size_t space = kernel_space(items, count), wide = encodes(c) ? wide_space(items, count) : 0, needed = space + wide;
  PITH_REQUIRE(needed <= c->size && (needed == 0 || c->workspace), PITH_ERR_BUFFER,
               "these items need a workspace of %zu bytes (pith_cuda_workspace), not %zu", needed, c->size);
  PITH_REQUIRE(needed == 0 || (uintptr_t)c->workspace % WORKSPACE_ALIGNMENT == 0, PITH_ERR_ARGUMENT,
               "the workspace must start at a multiple of %d bytes", WORKSPACE_ALIGNMENT);
  if (!wide) {
    return run_kinds(gpu, items, count, c);
  }
  PITH_FREED pith_cuda_item *widened = malloc((count + 1) * sizeof *widened);
  PITH_REQUIRE(widened, PITH_ERR_MEMORY, "no memory for %zu items", count);
  void *behind = (uint8_t *)c->workspace + space;
  PITH_TRY(pith__gpu_widen(gpu, items, count, behind, widened, c->stream));
  PITH_TRY(run_kinds(gpu, widened, count, c));
  return pith__gpu_pack(gpu, items, count, behind, c->stream);
}

pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size,
                             void *stream) {
  return run(items, count, &(cuda_call){PITH_GPU_LOWRANK_ENCODE, 0, 0, workspace, workspace_size, stream});
}

pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace,
                             size_t workspace_size, void *stream) {
  int what = mode == PITH_ADD ? PITH_GPU_LOWRANK_ADD : PITH_GPU_LOWRANK_SET;
  return run(items, count, &(cuda_call){what, 0, 0, workspace, workspace_size, stream});
}

pith_status pith_cuda_produce(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                              size_t workspace_size, void *stream) {
  int what = index ? PITH_GPU_LOWRANK_PRODUCE_Q : PITH_GPU_LOWRANK_PRODUCE_P;
  return run(items, count, &(cuda_call){what, 1, index, workspace, workspace_size, stream});
}

pith_status pith_cuda_consume(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                              size_t workspace_size, void *stream) {
  int what = index ? PITH_GPU_LOWRANK_CONSUME_Q : PITH_GPU_LOWRANK_CONSUME_P;
  return run(items, count, &(cuda_call){what, 1, index, workspace, workspace_size, stream});
}

pith_status pith_cuda_aggregate(const pith_cuda_item *items, size_t count, void *stream) {
  pith_gpu_batch batch = {.stream = stream, .kind = PITH_GPU_MEAN_TASKS};
  PITH_FREED pith_cuda_item *copy = NULL;
  PITH_TRY(read_items(&items, count, &copy));
  for (size_t i = 0; i < count; i++) {
    PITH_REQUIRE(items[i].codec, PITH_ERR_ARGUMENT, "pith_cuda_aggregate: an item has no codec");
    PITH_TRY(check_values(&items[i]));
    PITH_REQUIRE((uintptr_t)items[i].payload % sizeof(float) == 0, PITH_ERR_ARGUMENT, "%s: sums are not aligned",
                 items[i].codec->spec);
  }
  PITH_TRY(pith__cuda_module(&batch.gpu));
  for (size_t i = 0; i < count; i++) {
    for (size_t first = 0; first < items[i].n;) {
      PITH_TRY(pith__gpu_make_room(&batch));
      first += pith__gpu_next_mean(&items[i], first, &batch.mean[batch.used++]);
    }
  }
  return pith__gpu_hand_over(&batch);
}

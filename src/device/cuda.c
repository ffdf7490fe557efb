/*
 * GPUs: opens the CUDA module, checks what is asked of it, and hands it tasks (cuda_tasks.c).
 *
 * The module is a shared object of its own, so that this library links to libc alone and one build serves machines with
 * and without GPUs. It knows nothing of specs: a task holds the numbers that a codec's parameters come down to
 * (kernel/formats.h).
 */
#include <dlfcn.h>
#include <limits.h>
#include <pith/cuda.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/module_file.h"
#include "base/size.h"
#include "base/struct_size.h"
#include "device/cuda_device.h"
#include "device/cuda_tasks.h"
#include "memory/memory.h"

#define FILE_NAME "libpith_cuda.so"
#define TEXT 256
#define TASKS 64 /* handed to the module at a time */
#define WORKSPACE_ALIGNMENT 256

/* ---- The module -------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const pith_cuda_module *module; /* under the lock until it is set */
static char failure[1024], device_text[TEXT];

/* Keeps the reason: later calls get the same answer. */
__attribute__((format(printf, 1, 2))) static void *refuse(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(failure, sizeof failure, format, arguments);
  va_end(arguments);
  return NULL;
}

/* dlerror() without the path it may start with. */
static const char *open_error(const char *path) {
  const char *why = dlerror();
  size_t size = strlen(path);
  if (!why) {
    return "unknown error";
  }
  return strncmp(why, path, size) == 0 && strncmp(why + size, ": ", 2) == 0 ? why + size + 2 : why;
}

/* The first file found is the one: if it is broken, that is the reason, and no other is tried. */
static void *open_file(char path[PATH_MAX]) {
  int found = pith__find_module((const char *[]){FILE_NAME, NULL}, path);
  if (!found) {
    memcpy(path, FILE_NAME, sizeof FILE_NAME); /* wherever the system looks */
  }
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (handle) {
    return handle;
  }
  if (found) {
    return refuse(
        "the CUDA module %s cannot be opened: %s. Build it again (make cuda, or pip install .), or set "
        "PITH_MODULE_PATH to the folder of another one",
        path, open_error(path));
  }
  char places[512];
  pith__module_places(places, sizeof places);
  return refuse(
      "there is no CUDA module: %s was not found in %s (%s). Install a Pith package with CUDA (pip install . "
      "where nvcc is installed), or run make cuda and set PITH_MODULE_PATH to its folder",
      path, places, open_error(path));
}

static const pith_cuda_module *open_module(void) {
  pith_cuda_entry_fn entry;
  char path[PATH_MAX], text[TEXT];
  void *handle = open_file(path), *symbol = handle ? dlsym(handle, PITH_CUDA_ENTRY) : NULL;
  if (!handle) {
    return NULL;
  }
  if (!symbol) {
    return refuse("%s is not Pith's CUDA module: it does not export %s()", path, PITH_CUDA_ENTRY);
  }
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two kinds of pointers */
  const pith_cuda_module *found = entry();
  if (found->abi != PITH_CUDA_ABI) {
    return refuse(
        "the CUDA module %s is of another version of Pith: it has ABI %u, this library %d; build both from one source",
        path, found->abi, PITH_CUDA_ABI);
  }
  if (found->describe(text) != 0) {
    return refuse("the CUDA module %s is in order, but %s", path, text);
  }
  memcpy(device_text, text, sizeof device_text);
  PITH_LOG_INFO("CUDA: %s (%s)", device_text, path);
  return found;
}

pith_status pith__cuda_module(const pith_cuda_module **found) {
  pthread_mutex_lock(&lock);
  if (!module && !failure[0]) {
    module = open_module();
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

/* Items as this library has them: the caller's own, or *copy, which must be freed, if it was built with another
 * header. */
static pith_status read_items(const pith_cuda_item *given, size_t count, const pith_cuda_item **items,
                              pith_cuda_item **copy) {
  PITH_REQUIRE(given || count == 0, PITH_ERR_ARGUMENT, "%zu items at NULL", count);
  *items = given;
  *copy = NULL;
  size_t same = 0;
  while (same < count && given[same].size == sizeof *given) {
    same++;
  }
  if (same == count) {
    return PITH_OK;
  }
  *copy = calloc(count, sizeof **copy);
  PITH_REQUIRE(*copy, PITH_ERR_MEMORY, "no memory for %zu items", count);
  pith_status status = PITH_OK;
  for (size_t i = 0; i < count && status == PITH_OK; i++) {
    status = PITH_STRUCT_READ_AT(pith_cuda_item, given, i, &(*copy)[i]);
  }
  if (status != PITH_OK) {
    free(*copy);
  }
  *items = *copy;
  return status;
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

static pith_status check_memory(const pith_cuda_item *item) {
  const pith_codec *codec = item->codec;
  if (codec->memory && item->n) {
    PITH_REQUIRE(item->memory, PITH_ERR_STATE, "%s: needs its memory", codec->spec);
    PITH_REQUIRE(codec->memory->after != PITH_AFTER_CLEAR || item->momentum, PITH_ERR_STATE, "%s: needs its momentum",
                 codec->spec);
  }
  return PITH_OK;
}

static pith_status check_item(const pith_cuda_item *item, int encode) {
  PITH_TRY(pith_cuda_supports(item->codec));
  const char *spec = item->codec->spec;
  PITH_REQUIRE(item->dtype == PITH_F32 || item->dtype == PITH_F16 || item->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: tensors are f32, f16 or bf16, not %s", spec, pith_dtype_name(item->dtype));
  PITH_REQUIRE(item->n == 0 || (item->values && item->payload), PITH_ERR_ARGUMENT, "%s: %zu values at NULL", spec,
               item->n);
  PITH_REQUIRE((uintptr_t)item->values % pith_dtype_size(item->dtype) == 0, PITH_ERR_ARGUMENT,
               "%s: values are not aligned for %s", spec, pith_dtype_name(item->dtype));
  PITH_TRY(encode ? check_memory(item) : PITH_OK);
  return check_place(item);
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* The keys of the sampler and the memory do not change what is needed; the step may, where the number of values that
 * travel falls over the first steps. */
static size_t sparse_space(const pith_cuda_module *gpu, const pith_cuda_item *item) {
  pith_gpu_sparse task = pith__gpu_sparse_task(item, item->codec->memory != NULL);
  return gpu->sparse_space(&task);
}

typedef enum way { ENCODE, DECODE_SET, DECODE_ADD } way;

static pith_status hand_over(const pith_cuda_module *gpu, const pith_gpu_task *tasks, size_t count, way how,
                             void *stream) {
  if (how == ENCODE) {
    PITH_CUDA_TRY(gpu->encode, tasks, count, stream);
  } else {
    PITH_CUDA_TRY(gpu->decode, tasks, count, how == DECODE_ADD, stream);
  }
  return PITH_OK;
}

static pith_status run_blocks(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, way how,
                              void *stream) {
  pith_gpu_task tasks[TASKS];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    for (size_t first = 0; pith__gpu_is_block(items[i].codec) && first < items[i].n;) {
      first += pith__gpu_next_task(&items[i], how == ENCODE, first, &tasks[used++]);
      if (used == TASKS) {
        PITH_TRY(hand_over(gpu, tasks, used, how, stream));
        used = 0;
      }
    }
  }
  return used ? hand_over(gpu, tasks, used, how, stream) : PITH_OK;
}

static pith_status hand_over_sparse(const pith_cuda_module *gpu, const pith_gpu_sparse *tasks, size_t count, way how,
                                    void *stream) {
  if (how == ENCODE) {
    PITH_CUDA_TRY(gpu->sparse_encode, tasks, count, stream);
  } else {
    PITH_CUDA_TRY(gpu->sparse_decode, tasks, count, how == DECODE_ADD, stream);
  }
  return PITH_OK;
}

/* An item without values still has a payload, unless its size is fixed: that of no values. */
static int has_work(const pith_cuda_item *item) {
  return pith__gpu_is_sparse(item->codec) && (item->n || (item->payload && !(item->codec->caps & PITH_CAP_FIXED)));
}

static pith_status run_sparse(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, way how,
                              uint8_t *space, void *stream) {
  pith_gpu_sparse tasks[TASKS];
  size_t used = 0;
  for (size_t i = 0; i < count; i++) {
    if (!has_work(&items[i])) {
      continue;
    }
    tasks[used] = pith__gpu_sparse_task(&items[i], how == ENCODE);
    tasks[used++].space = space;
    space += sparse_space(gpu, &items[i]);
    if (used == TASKS) {
      PITH_TRY(hand_over_sparse(gpu, tasks, used, how, stream));
      used = 0;
    }
  }
  return used ? hand_over_sparse(gpu, tasks, used, how, stream) : PITH_OK;
}

static pith_status run_lowrank(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count, int what,
                               uint8_t *space, void *stream) {
  pith_gpu_lowrank tasks[TASKS];
  size_t used = 0;
  for (size_t i = 0; i <= count; i++) {
    if (i < count && pith__gpu_is_lowrank(items[i].codec)) {
      tasks[used] = pith__gpu_lowrank_task(&items[i], what != PITH_GPU_LOWRANK_SET && what != PITH_GPU_LOWRANK_ADD);
      tasks[used].space = space;
      space += gpu->lowrank_space(&tasks[used++]);
    }
    if (used == TASKS || (used && i == count)) {
      PITH_CUDA_TRY(gpu->lowrank, tasks, used, what, stream);
      used = 0;
    }
  }
  return PITH_OK;
}

static size_t sparse_spaces(const pith_cuda_module *gpu, const pith_cuda_item *items, size_t count) {
  size_t size = 0;
  for (size_t i = 0; i < count; i++) {
    size += pith__gpu_is_sparse(items[i].codec) ? sparse_space(gpu, &items[i]) : 0;
  }
  return size;
}

static size_t workspace_of(const pith_cuda_item *items, size_t count) {
  const pith_cuda_module *gpu;
  size_t size = 0;
  for (size_t i = 0; i < count; i++) {
    if (pith_cuda_supports(items[i].codec) != PITH_OK || items[i].n > PITH_GPU_WHOLE_VALUES) {
      continue; /* the call itself will say so */
    }
    if (pith__gpu_is_sparse(items[i].codec) && pith__cuda_module(&gpu) == PITH_OK) {
      size += sparse_space(gpu, &items[i]);
    } else if (pith__gpu_is_lowrank(items[i].codec) && pith__cuda_module(&gpu) == PITH_OK) {
      pith_gpu_lowrank task = pith__gpu_lowrank_task(&items[i], 0);
      size += gpu->lowrank_space(&task);
    }
  }
  return size;
}

size_t pith_cuda_workspace(const pith_cuda_item *given, size_t count) {
  const pith_cuda_item *items;
  pith_cuda_item *copy;
  if (read_items(given, count, &items, &copy) != PITH_OK) {
    return 0; /* the call itself will say so */
  }
  size_t size = workspace_of(items, count);
  free(copy);
  return size;
}

static pith_status check_workspace(size_t needed, const void *workspace, size_t size) {
  PITH_REQUIRE(needed <= size && (needed == 0 || workspace), PITH_ERR_BUFFER,
               "these items need a workspace of %zu bytes (pith_cuda_workspace), not %zu", needed, size);
  PITH_REQUIRE(needed == 0 || (uintptr_t)workspace % WORKSPACE_ALIGNMENT == 0, PITH_ERR_ARGUMENT,
               "the workspace must start at a multiple of %d bytes", WORKSPACE_ALIGNMENT);
  return PITH_OK;
}

static pith_status run(const pith_cuda_item *items, size_t count, way how, void *workspace, size_t workspace_size,
                       void *stream) {
  const pith_cuda_module *gpu;
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(check_item(&items[i], how == ENCODE));
  }
  PITH_TRY(pith__cuda_module(&gpu));
  PITH_TRY(check_workspace(workspace_of(items, count), workspace, workspace_size));
  PITH_TRY(run_blocks(gpu, items, count, how, stream));
  PITH_TRY(run_sparse(gpu, items, count, how, workspace, stream));
  static const int whats[] = {
      [ENCODE] = PITH_GPU_LOWRANK_ENCODE, [DECODE_SET] = PITH_GPU_LOWRANK_SET, [DECODE_ADD] = PITH_GPU_LOWRANK_ADD};
  size_t used = sparse_spaces(gpu, items, count);
  return run_lowrank(gpu, items, count, whats[how], used ? (uint8_t *)workspace + used : workspace, stream);
}

static pith_status read_and_run(const pith_cuda_item *given, size_t count, way how, void *workspace,
                                size_t workspace_size, void *stream) {
  const pith_cuda_item *items;
  pith_cuda_item *copy;
  PITH_TRY(read_items(given, count, &items, &copy));
  pith_status status = run(items, count, how, workspace, workspace_size, stream);
  free(copy);
  return status;
}

pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size,
                             void *stream) {
  return read_and_run(items, count, ENCODE, workspace, workspace_size, stream);
}

pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace,
                             size_t workspace_size, void *stream) {
  return read_and_run(items, count, mode == PITH_ADD ? DECODE_ADD : DECODE_SET, workspace, workspace_size, stream);
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

static pith_status run_round(const pith_cuda_item *items, size_t count, size_t index, int what, void *workspace,
                             size_t size, void *stream) {
  const pith_cuda_module *gpu;
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(check_round(&items[i], index));
  }
  PITH_TRY(pith__cuda_module(&gpu));
  PITH_TRY(check_workspace(workspace_of(items, count), workspace, size));
  return run_lowrank(gpu, items, count, what, workspace, stream);
}

static pith_status read_and_run_round(const pith_cuda_item *given, size_t count, size_t index, int what,
                                      void *workspace, size_t size, void *stream) {
  const pith_cuda_item *items;
  pith_cuda_item *copy;
  PITH_TRY(read_items(given, count, &items, &copy));
  pith_status status = run_round(items, count, index, what, workspace, size, stream);
  free(copy);
  return status;
}

pith_status pith_cuda_produce(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                              size_t workspace_size, void *stream) {
  return read_and_run_round(items, count, index, index ? PITH_GPU_LOWRANK_PRODUCE_Q : PITH_GPU_LOWRANK_PRODUCE_P,
                            workspace, workspace_size, stream);
}

pith_status pith_cuda_consume(const pith_cuda_item *items, size_t count, size_t index, void *workspace,
                              size_t workspace_size, void *stream) {
  return read_and_run_round(items, count, index, index ? PITH_GPU_LOWRANK_CONSUME_Q : PITH_GPU_LOWRANK_CONSUME_P,
                            workspace, workspace_size, stream);
}

/* ---- Means ------------------------------------------------------------------------------------------------------- */

static pith_status check_sums(const pith_cuda_item *item) {
  PITH_REQUIRE(item->codec, PITH_ERR_ARGUMENT, "pith_cuda_aggregate: an item has no codec");
  const char *spec = item->codec->spec;
  PITH_REQUIRE(item->dtype == PITH_F32 || item->dtype == PITH_F16 || item->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: tensors are f32, f16 or bf16, not %s", spec, pith_dtype_name(item->dtype));
  PITH_REQUIRE(item->n == 0 || (item->values && item->payload), PITH_ERR_ARGUMENT, "%s: %zu values at NULL", spec,
               item->n);
  PITH_REQUIRE(
      (uintptr_t)item->values % pith_dtype_size(item->dtype) == 0 && (uintptr_t)item->payload % sizeof(float) == 0,
      PITH_ERR_ARGUMENT, "%s: sums or values are not aligned for their type", spec);
  return PITH_OK;
}

/* Values first … of an item; how many of them. */
static size_t next_mean(const pith_cuda_item *item, size_t first, pith_gpu_mean *task) {
  size_t n = pith__least(item->n - first, PITH_GPU_TASK_VALUES);
  *task = (pith_gpu_mean){
      .sums = (const float *)item->payload + first,
      .values = (uint8_t *)item->values + first * pith_dtype_size(item->dtype),
      .n = (uint32_t)n,
      .factor = 1.0f / (float)(item->ranks ? item->ranks : 1),
      .dtype = (uint8_t)item->dtype,
      .vote = (item->codec->caps & PITH_CAP_VOTE) != 0,
  };
  return n;
}

static pith_status aggregate(const pith_cuda_item *items, size_t count, void *stream) {
  const pith_cuda_module *gpu;
  pith_gpu_mean tasks[TASKS];
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(check_sums(&items[i]));
  }
  PITH_TRY(pith__cuda_module(&gpu));
  size_t used = 0;
  for (size_t i = 0, first = 0; i < count; first = 0, i++) {
    while (first < items[i].n) {
      first += next_mean(&items[i], first, &tasks[used++]);
      if (used == TASKS) {
        PITH_CUDA_TRY(gpu->mean, tasks, used, stream);
        used = 0;
      }
    }
  }
  if (used) {
    PITH_CUDA_TRY(gpu->mean, tasks, used, stream);
  }
  return PITH_OK;
}

pith_status pith_cuda_aggregate(const pith_cuda_item *given, size_t count, void *stream) {
  const pith_cuda_item *items;
  pith_cuda_item *copy;
  PITH_TRY(read_items(given, count, &items, &copy));
  pith_status status = aggregate(items, count, stream);
  free(copy);
  return status;
}

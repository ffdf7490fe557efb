/*
 * GPUs: opens the CUDA module, and turns codecs into tasks that it understands.
 *
 * The module is a shared object of its own, so that this library links to libc alone and one build serves machines with and
 * without GPUs. It knows nothing of specs: a task holds the numbers that a codec's parameters come down to (kernel/formats.h).
 */
#include <dlfcn.h>
#include <limits.h>
#include <pith/cuda.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "base/rng.h"
#include "base/size.h"
#include "codec/codec.h"
#include "kernel/formats.h"
#include "kernel/kernel.h"
#include "memory/memory.h"

#define FILE_NAME "libpith_cuda.so"
#define TEXT 256
#define TASKS 64       /* handed to the module at a time */
#define CAST_BUCKET 512 /* casts have no scales: any cut will do */
#define TILE_VALUES 4096

/* ---- The module -------------------------------------------------------------------------------------------------- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const pith_cuda_module *module; /* under the lock until it is set */
static char failure[512], device_text[TEXT];

static void *open_in(const char *folder, size_t size, const char *below) {
  char path[PATH_MAX];
  int length = snprintf(path, sizeof path, "%.*s%s/" FILE_NAME, (int)size, folder, below);
  if (size == 0 || length >= PATH_MAX || access(path, R_OK) != 0) {
    return NULL;
  }
  return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

static void *open_in_list(const char *folders) {
  void *handle = NULL;
  while (folders && *folders && !handle) {
    size_t size = strcspn(folders, ":");
    handle = open_in(folders, size, "");
    folders += size + (folders[size] == ':');
  }
  return handle;
}

static void *open_beside(const char *file) {
  const char *slash = strrchr(file, '/');
  size_t size = slash ? (size_t)(slash - file) : 0;
  void *handle = open_in(file, size, "");
  handle = handle ? handle : open_in(file, size, "/pith");
  return handle ? handle : open_in(file, size, "/../lib/pith");
}

/* In PITH_MODULE_PATH, beside this library or this program, then wherever the system looks. */
static void *open_file(void) {
  Dl_info info;
  char program[PATH_MAX];
  void *handle = open_in_list(getenv("PITH_MODULE_PATH"));
  if (!handle && dladdr(&module, &info) && info.dli_fname) {
    handle = open_beside(info.dli_fname);
  }
  ssize_t size = handle ? 0 : readlink("/proc/self/exe", program, sizeof program - 1);
  if (size > 0) {
    program[size] = 0;
    handle = open_beside(program);
  }
  return handle ? handle : dlopen(FILE_NAME, RTLD_NOW | RTLD_LOCAL);
}

/* Remembers why it failed: the next call gets the same answer. */
static const pith_cuda_module *open_module(void) {
  pith_cuda_entry_fn entry;
  char text[TEXT];
  void *handle = open_file(), *symbol = handle ? dlsym(handle, PITH_CUDA_ENTRY) : NULL;
  if (!symbol) {
    const char *why = dlerror();
    snprintf(failure, sizeof failure, "the CUDA module cannot be opened: %s", why ? why : FILE_NAME " is not there");
    return NULL;
  }
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast between the two kinds of pointers */
  const pith_cuda_module *found = entry();
  if (found->abi != PITH_CUDA_ABI) {
    snprintf(failure, sizeof failure, "the CUDA module has ABI %u, this library %d: both must come from one build", found->abi,
             PITH_CUDA_ABI);
    return NULL;
  }
  if (found->describe(text) != 0) {
    snprintf(failure, sizeof failure, "the CUDA module is there, but %s", text);
    return NULL;
  }
  memcpy(device_text, text, sizeof device_text);
  PITH_LOG_INFO("CUDA: %s", device_text);
  return found;
}

static pith_status get_module(const pith_cuda_module **found) {
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
  PITH_TRY(get_module(&found));
  if (device) {
    *device = device_text;
  }
  return PITH_OK;
}

/* ---- From codecs to tasks ---------------------------------------------------------------------------------------- */

static const pith_value *arg(const pith_param *params, const pith_value *values, const char *key) {
  for (; params->key; params++, values++) {
    if (strcmp(params->key, key) == 0) {
      return values;
    }
  }
  return NULL;
}

static int64_t int_arg(const pith_codec *codec, const char *key, int64_t otherwise) {
  const pith_value *value = arg(codec->ops->params, codec->args, key);
  return value ? value->i : otherwise;
}

static int log2_of(size_t power) { return 63 - __builtin_clzll((unsigned long long)power); }

/* Bits that hold −levels … levels. */
static int signed_bits(int64_t levels) { return 1 + log2_of((size_t)levels) + 1; }

static void describe_codec(const pith_codec *codec, pith_gpu_task *task) {
  task->kind = codec->ops->wire_id;
  task->bits = (uint8_t)int_arg(codec, "bits", 8);
  task->bucket = (uint32_t)int_arg(codec, "bucket", CAST_BUCKET);
  task->block_size = (uint32_t)codec->ops->block_bound(codec->args, task->bucket);
  switch (task->kind) {
    case PITH_WIRE_Q:
      task->choice = (uint8_t)int_arg(codec, "round", 0);
      break;
    case PITH_WIRE_QSGD:
      task->levels = (int32_t)int_arg(codec, "levels", 0);
      task->bits = (uint8_t)signed_bits(task->levels);
      task->choice = (uint8_t)int_arg(codec, "norm", 0);
      break;
    case PITH_WIRE_GQ:
      task->levels = ((1 << task->bits) - 1) / 2;
      break;
    case PITH_WIRE_SIGN:
      task->choice = (uint8_t)int_arg(codec, "scale", 0);
      break;
    case PITH_WIRE_TERNGRAD:
      task->clip = arg(codec->ops->params, codec->args, "clip")->f;
      break;
    default:
      break;
  }
  if (codec->transform) {
    size_t granule = codec->granule;
    task->rotation = (uint8_t)log2_of(codec->transform->block(codec->transform_args));
    task->tile = (uint32_t)(granule < TILE_VALUES ? TILE_VALUES / granule * granule : granule);
  }
}

static void describe_memory(const pith_codec *codec, float gamma, pith_gpu_task *task) {
  task->beta = (float)arg(codec->memory->params, codec->memory_args, "beta")->f;
  task->keeps = codec->memory->after == PITH_AFTER_SUBTRACT ? PITH_GPU_KEEP_LOST : PITH_GPU_KEEP_ALL;
  task->gamma = codec->memory->after == PITH_AFTER_SUBTRACT ? gamma : (1.0f - task->beta) * gamma;
}

pith_status pith_cuda_supports(const pith_codec *codec) {
  PITH_REQUIRE(codec, PITH_ERR_ARGUMENT, "pith_cuda_supports: codec is NULL");
  uint32_t needed = PITH_CAP_FIXED | PITH_CAP_CHUNKED;
  PITH_REQUIRE((codec->caps & needed) == needed && codec->ops->wire_id <= PITH_WIRE_GQ, PITH_ERR_UNSUPPORTED,
               "%s: there are no CUDA kernels for %s yet; block codecs of fixed size have them", codec->spec, codec->ops->name);
  PITH_REQUIRE(!codec->transform || codec->granule <= PITH_GPU_TILE_MAX, PITH_ERR_UNSUPPORTED,
               "%s: rotated granules of %zu values are too large for a GPU's shared memory; up to %d are not", codec->spec,
               codec->granule, PITH_GPU_TILE_MAX);
  return PITH_OK;
}

static pith_status check_item(const pith_cuda_item *item, int encode) {
  PITH_TRY(pith_cuda_supports(item->codec));
  const char *spec = item->codec->spec;
  PITH_REQUIRE(item->dtype == PITH_F32 || item->dtype == PITH_F16 || item->dtype == PITH_BF16, PITH_ERR_ARGUMENT,
               "%s: tensors are f32, f16 or bf16, not %s", spec, pith_dtype_name(item->dtype));
  PITH_REQUIRE(item->n == 0 || (item->values && item->payload), PITH_ERR_ARGUMENT, "%s: %zu values at NULL", spec, item->n);
  PITH_REQUIRE((uintptr_t)item->values % pith_dtype_size(item->dtype) == 0, PITH_ERR_ARGUMENT,
               "%s: values are not aligned for %s", spec, pith_dtype_name(item->dtype));
  PITH_REQUIRE(!encode || !item->codec->memory || item->n == 0 || item->memory, PITH_ERR_STATE, "%s: needs its memory", spec);
  PITH_REQUIRE(item->ctx.offset % item->codec->granule == 0, PITH_ERR_ARGUMENT,
               "%s: a piece cannot start at value %llu: pieces start at multiples of %zu", spec,
               (unsigned long long)item->ctx.offset, item->codec->granule);
  return PITH_OK;
}

/* The first `first` values are done: the next task of an item. Keys change where an index outgrows 32 bits, and tasks end there. */
static size_t next_task(const pith_cuda_item *item, int encode, size_t first, pith_gpu_task *task) {
  const pith_codec *codec = item->codec;
  uint64_t index = item->ctx.offset + first, border = ((index >> 32) + 1) << 32;
  size_t granule = codec->granule, most = PITH_GPU_TASK_VALUES / granule * granule;
  size_t to_border = (size_t)((border - index + granule - 1) / granule * granule);
  size_t n = pith__least(item->n - first, pith__least(most, to_border));
  pith_ctx ctx = item->ctx;
  pith_key round = pith__rng_key(&ctx, PITH_DOMAIN_ROUND, index), rotate = pith__rng_key(&ctx, PITH_DOMAIN_ROTATE, index);
  *task = (pith_gpu_task){
      .values = (uint8_t *)item->values + first * pith_dtype_size(item->dtype),
      .payload = (uint8_t *)item->payload + pith_codec_bound(codec, first),
      .n = (uint32_t)n,
      .index = (uint32_t)index,
      .key0 = round.k0,
      .key1 = round.k1,
      .rotate0 = rotate.k0,
      .rotate1 = rotate.k1,
      .dtype = (uint8_t)item->dtype,
  };
  describe_codec(codec, task);
  if (encode && codec->memory) {
    task->memory = item->memory + first;
    describe_memory(codec, ctx.gamma != 0 ? ctx.gamma : 1.0f, task);
  }
  return n;
}

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

typedef enum way { ENCODE, DECODE_SET, DECODE_ADD } way;

static pith_status hand_over(const pith_cuda_module *gpu, const pith_gpu_task *tasks, size_t count, way how, void *stream) {
  char text[TEXT];
  int failed = how == ENCODE ? gpu->encode(tasks, count, stream, text)
                             : gpu->decode(tasks, count, how == DECODE_ADD, stream, text);
  PITH_REQUIRE(!failed, PITH_ERR_SYSTEM, "CUDA: %s", text);
  return PITH_OK;
}

static pith_status run(const pith_cuda_item *items, size_t count, way how, void *stream) {
  const pith_cuda_module *gpu;
  pith_gpu_task tasks[TASKS];
  size_t used = 0;
  PITH_REQUIRE(items || count == 0, PITH_ERR_ARGUMENT, "%zu items at NULL", count);
  for (size_t i = 0; i < count; i++) {
    PITH_TRY(check_item(&items[i], how == ENCODE));
  }
  PITH_TRY(get_module(&gpu));
  for (size_t i = 0; i < count; i++) {
    for (size_t first = 0; first < items[i].n;) {
      first += next_task(&items[i], how == ENCODE, first, &tasks[used++]);
      if (used == TASKS) {
        PITH_TRY(hand_over(gpu, tasks, used, how, stream));
        used = 0;
      }
    }
  }
  return used ? hand_over(gpu, tasks, used, how, stream) : PITH_OK;
}

size_t pith_cuda_workspace(const pith_cuda_item *items, size_t count) {
  (void)items, (void)count;
  return 0; /* codecs of fixed size keep everything in registers and shared memory */
}

pith_status pith_cuda_encode(const pith_cuda_item *items, size_t count, void *workspace, size_t workspace_size, void *stream) {
  (void)workspace, (void)workspace_size;
  return run(items, count, ENCODE, stream);
}

pith_status pith_cuda_decode(const pith_cuda_item *items, size_t count, pith_mode mode, void *workspace, size_t workspace_size,
                             void *stream) {
  (void)workspace, (void)workspace_size;
  return run(items, count, mode == PITH_ADD ? DECODE_ADD : DECODE_SET, stream);
}

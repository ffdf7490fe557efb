/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The module's table: sorts the tasks it is given by kernel and launches each kernel once for up to BATCH_TASKS of
 * them. Nothing here waits, allocates or copies, but for the functions under "Memory" and "Events".
 */
#include <stdio.h>

#include "batch.cuh"
#include "decode_block.cuh"
#include "ipc_host.h"
#include "lossless_host.h"
#include "lowrank_host.h"
#include "mean_host.h"
#include "own_host.h"
#include "reduce_host.h"
#include "repack_host.h"
#include "sparse_host.h"
#include "statistics_host.h"
#include "update_host.h"

#define TEXT 256

static int refuse(cudaError_t error, const char *what, char *text) {
  snprintf(text, TEXT, "%s: %s", what, cudaGetErrorString(error));
  return (int)error;
}

/* ---- Which kernel ------------------------------------------------------------------------------------------------ */

enum Way { ENCODE, DECODE_SET, DECODE_ADD };
enum Kernel {
  QUADS,
  TERN,
  SIGNS,
  MINIS,
  PLAIN,
  PLAIN_RARER,
  ROTATED_QUADS,
  ROTATED_SUMS,
  ROTATED,
  KERNELS
}; /* PLAIN_RARER: see is_common() */

/* Payloads are written in words, those of casts in as many bytes as four values take. */
static size_t quad_alignment(const Task &t) {
  return t.kind == PITH_WIRE_NONE ? 16 : t.kind == PITH_WIRE_FP16 || t.kind == PITH_WIRE_BF16 ? 8 : 4;
}

static bool quads_fit(const Task &t) {
  bool kind =
      t.kind <= PITH_WIRE_QSGD || t.kind == PITH_WIRE_GQ || t.kind == PITH_WIRE_NATURAL || t.kind == PITH_WIRE_TREE8;
  bool width = t.bits == 8 || t.bits == 4 || t.bits == 2;
  bool aligned =
      (((uintptr_t)t.values | (uintptr_t)t.memory) & 15) == 0 && (uintptr_t)t.payload % quad_alignment(t) == 0;
  return kind && width && aligned && t.dtype == PITH_GPU_F32 && t.bucket == QUAD_BUCKET && !t.rotation;
}

static bool tern_fits(const Task &t) {
  return t.kind == PITH_WIRE_TERNGRAD && t.dtype == PITH_GPU_F32 && t.bucket == TERN_BUCKET && !t.rotation &&
         !t.memory && ((uintptr_t)t.payload & 3) == 0;
}

static bool signs_fit(const Task &t) {
  return t.kind == PITH_WIRE_SIGN && t.choice == PITH_SCALE_MEAN && t.dtype == PITH_GPU_F32 &&
         t.bucket == SIGN_BUCKET && !t.rotation && t.memory && t.keeps == PITH_GPU_KEEP_LOST &&
         ((uintptr_t)t.payload & 3) == 0;
}

static bool minis_fit(const Task &t) {
  bool aligned = (((uintptr_t)t.values | (uintptr_t)t.memory) & 15) == 0 && ((uintptr_t)t.payload & 3) == 0;
  return is_mini(t) && aligned && t.dtype == PITH_GPU_F32 && t.bucket == QUAD_BUCKET && !t.rotation;
}

/* What rotate_quads.cuh takes: full tiles of f32 values at aligned addresses. */
static bool tiles_turn(const Task &t) {
  bool aligned = (((uintptr_t)t.values | (uintptr_t)t.memory) & 15) == 0 && ((uintptr_t)t.payload & 3) == 0;
  bool rotation = t.rotation && (t.rotation <= 10 || t.rotation == 12);
  return rotation && aligned && t.tile == ROTATED_TILE && t.dtype == PITH_GPU_F32;
}

static bool rotated_quads_fit(const Task &t, Way way) {
  if (way != ENCODE) {
    return tiles_turn(t) && rows_fit(t) && !is_mini(t);
  }
  bool width = t.bits == 8 || t.bits == 4 || t.bits == 2;
  return tiles_turn(t) && t.kind == PITH_WIRE_Q && width && t.bucket == QUAD_BUCKET;
}

static bool rotated_sums_fit(const Task &t, Way way) {
  bool signs = t.kind == PITH_WIRE_SIGN && t.choice == PITH_SCALE_UNBIASED;
  bool levels = t.kind == PITH_WIRE_LLOYD && t.bits != 3;
  return way == ENCODE && tiles_turn(t) && (signs || levels) && t.rotation == 12 && t.bucket == ROTATED_TILE &&
         !t.memory;
}

/* The special kernel that takes pairs of full blocks at the start of a task; PLAIN if there is none. */
static Kernel special_for(const Task &t, Way way) {
  return way != ENCODE  ? PLAIN
         : quads_fit(t) ? QUADS
         : tern_fits(t) ? TERN
         : signs_fit(t) ? SIGNS
         : minis_fit(t) ? MINIS
                        : PLAIN;
}

/* Values first … first + n − 1, which start a block. */
static Task piece_of(const Task &whole, uint32_t first, uint32_t n) {
  Task t = whole;
  t.values = (uint8_t *)t.values + (size_t)first * (t.dtype == PITH_GPU_F32 ? 4 : 2);
  t.payload += (size_t)(first / t.bucket) * t.block_size;
  t.memory = t.memory ? t.memory + first : nullptr;
  t.index += first;
  t.n = n;
  return t;
}

/* The part of a task that a kernel takes; n = 0: nothing. */
static Task part_for(Kernel kernel, Way way, const Task &t) {
  Kernel special = special_for(t, way);
  uint32_t taken = special == PLAIN ? 0 : t.n / (2 * t.bucket) * (2 * t.bucket);
  bool quads = rotated_quads_fit(t, way), sums = rotated_sums_fit(t, way);
  uint32_t tiled = quads || sums ? t.n / t.tile * t.tile : 0;
  bool rarer = way == ENCODE && !is_common(t);
  switch (kernel) {
    case PLAIN:
    case PLAIN_RARER:
      return piece_of(t, taken, t.rotation || rarer != (kernel == PLAIN_RARER) ? 0 : t.n - taken);
    case ROTATED_QUADS:
      return piece_of(t, 0, quads ? tiled : 0);
    case ROTATED_SUMS:
      return piece_of(t, 0, sums ? tiled : 0);
    case ROTATED:
      return piece_of(t, tiled, t.rotation ? t.n - tiled : 0);
    default:
      return piece_of(t, 0, kernel == special ? taken : 0);
  }
}

/* How many items a task makes; see the kernels. */
static uint32_t items_of(Kernel kernel, Way way, const Task &t) {
  uint32_t values = kernel >= ROTATED_QUADS ? t.tile : way == ENCODE ? 2 * t.bucket : DECODE_ITEM;
  return (t.n + values - 1) / values;
}

/* ---- Launching --------------------------------------------------------------------------------------------------- */

static cudaError_t launch(Kernel kernel, Way way, const Batch &batch, cudaStream_t stream) {
  if (batch.count == 0) {
    return cudaSuccess;
  }
  switch (kernel) {
    case QUADS:
      return launch_encode_quads(batch, stream);
    case TERN:
      return launch_encode_tern(batch, stream);
    case SIGNS:
      return launch_encode_signs(batch, stream);
    case MINIS:
      return launch_encode_minis(batch, stream);
    case PLAIN:
      return way == ENCODE ? launch_encode(batch, true, stream) : launch_decode(batch, way == DECODE_ADD, stream);
    case PLAIN_RARER:
      return launch_encode(batch, false, stream);
    case ROTATED_QUADS:
      return way == ENCODE ? launch_encode_rotated_quads(batch, stream)
                           : launch_decode_rotated_quads(batch, way == DECODE_ADD, stream);
    case ROTATED_SUMS:
      return launch_encode_rotated_sums(batch, stream);
    default:
      return way == ENCODE ? launch_encode_rotated(batch, stream)
                           : launch_decode_rotated(batch, way == DECODE_ADD, stream);
  }
}

static cudaError_t run_kernel(Kernel kernel, Way way, const Task *tasks, size_t count, cudaStream_t stream) {
  Batch batch;
  batch.count = batch.items = batch.tables = 0;
  for (size_t i = 0; i < count; i++) {
    Task t = part_for(kernel, way, tasks[i]);
    if (t.n == 0) {
      continue;
    }
    t.begin = batch.items;
    t.end = batch.items += items_of(kernel, way, t);
    batch.task[batch.count++] = t;
    batch.tables |= tables_of(t);
    if (batch.count == BATCH_TASKS || batch.items > 1u << 30) {
      cudaError_t error = launch(kernel, way, batch, stream);
      if (error != cudaSuccess) {
        return error;
      }
      batch.count = batch.items = batch.tables = 0;
    }
  }
  return launch(kernel, way, batch, stream);
}

static int run(const Task *tasks, size_t count, Way way, void *stream, char *text) {
  for (int kernel = 0; kernel < KERNELS; kernel++) {
    cudaError_t error = run_kernel((Kernel)kernel, way, tasks, count, (cudaStream_t)stream);
    if (error != cudaSuccess) {
      return refuse(error, "a kernel could not be launched", text);
    }
  }
  return 0;
}

static int encode(const pith_gpu_task *tasks, size_t count, void *stream, char *text) {
  return run(tasks, count, ENCODE, stream, text);
}

static int decode(const pith_gpu_task *tasks, size_t count, int add, void *stream, char *text) {
  return run(tasks, count, add ? DECODE_ADD : DECODE_SET, stream, text);
}

static int sparse_encode(const pith_gpu_sparse *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__sparse_encode(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "a sparsifier could not be launched", text);
}

static int sparse_decode(const pith_gpu_sparse *tasks, size_t count, int add, void *stream, char *text) {
  cudaError_t error = pith__sparse_decode(tasks, count, add != 0, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "a sparsifier could not be launched", text);
}

static int lowrank(const pith_gpu_lowrank *tasks, size_t count, int what, void *stream, char *text) {
  cudaError_t error = pith__lowrank_run(tasks, count, what, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "low rank could not be launched", text);
}

static int mean(const pith_gpu_mean *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__mean_run(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "means could not be launched", text);
}

static int own(const pith_gpu_own *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__own_run(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "sums could not be launched", text);
}

static int reduce(const pith_gpu_reduce *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__reduce_run(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "sums could not be launched", text);
}

static int lossless_encode(const pith_gpu_lossless *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__lossless_encode(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "lossless could not be launched", text);
}

static int lossless_decode(const pith_gpu_lossless *tasks, size_t count, int add, void *stream, char *text) {
  cudaError_t error = pith__lossless_decode(tasks, count, add != 0, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "lossless could not be launched", text);
}

static int update(const pith_update_task *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__update_run(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "updates could not be launched", text);
}

static int repack(const pith_repack_task *tasks, size_t count, void *stream, char *text) {
  cudaError_t error = pith__repack_run(tasks, count, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "residuals could not be launched", text);
}

/* ---- Statistics -------------------------------------------------------------------------------------------------- */

static int statistics(cudaError_t error, char *text) {
  return error == cudaSuccess ? 0 : refuse(error, "statistics could not be launched", text);
}

static int sample(const pith_gpu_sample *task, void *stream, char *text) {
  return statistics(pith__sample_run(task, (cudaStream_t)stream), text);
}

static int magnitudes(const pith_gpu_magnitudes *task, void *stream, char *text) {
  return statistics(pith__magnitudes_run(task, (cudaStream_t)stream), text);
}

static int uniform_errors(const pith_gpu_uniform *task, void *stream, char *text) {
  return statistics(pith__uniform_run(task, (cudaStream_t)stream), text);
}

static int differences(const pith_gpu_difference *tasks, size_t count, void *space, void *stream, char *text) {
  return statistics(pith__differences_run(tasks, count, space, (cudaStream_t)stream), text);
}

static int keep_if(const double *flag, float *to, const float *from, size_t n, void *stream, char *text) {
  return statistics(pith__keep_run(flag, to, from, n, (cudaStream_t)stream), text);
}

static int stamp(double *nanoseconds, void *stream, char *text) {
  return statistics(pith__stamp_run(nanoseconds, (cudaStream_t)stream), text);
}

/* ---- Messages between GPUs --------------------------------------------------------------------------------------- */

static int ipc_wait(const pith_ipc_wait *task, void *stream, char *text) {
  cudaError_t error = pith__ipc_wait(task, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "a wait could not be launched", text);
}

static int ipc_copy(const pith_ipc_copy *task, void *stream, char *text) {
  cudaError_t error = pith__ipc_copy(task, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "a message could not be launched", text);
}

static int ipc_combine(const pith_ipc_combine *task, void *stream, char *text) {
  cudaError_t error = pith__ipc_combine(task, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "sums could not be launched", text);
}

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static int current_device(int *number, char *text) {
  cudaError_t error = cudaGetDevice(number);
  return error == cudaSuccess ? 0 : refuse(error, "no CUDA device", text);
}

static int allocate(size_t size, void **memory, char *text) {
  cudaError_t error = cudaMalloc(memory, size ? size : 1);
  if (error != cudaSuccess) {
    cudaGetLastError(); /* or the next launch would be blamed for it */
    *memory = nullptr;
    return refuse(error, "no device memory", text);
  }
  error = cudaMemset(*memory, 0, size ? size : 1);
  if (error == cudaSuccess) {
    error = cudaDeviceSynchronize(); /* streams of the caller's may not wait for the default one */
  }
  if (error != cudaSuccess) {
    cudaFree(*memory);
    *memory = nullptr;
    return refuse(error, "device memory cannot be cleared", text);
  }
  return 0;
}

static void release(void *memory) { cudaFree(memory); }

static int copy(void *to, const void *from, size_t size, char *text) {
  cudaError_t error = cudaDeviceSynchronize();
  if (error == cudaSuccess) {
    error = cudaMemcpy(to, from, size, cudaMemcpyDefault);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceSynchronize(); /* from pageable memory the last bytes may still be on their way */
  }
  return error == cudaSuccess ? 0 : refuse(error, "memory could not be copied", text);
}

static int pin(size_t size, void **memory, char *text) {
  cudaError_t error = cudaHostAlloc(memory, size ? size : 1, cudaHostAllocPortable);
  if (error != cudaSuccess) {
    cudaGetLastError();
    *memory = nullptr;
    return refuse(error, "no pinned memory", text);
  }
  return 0;
}

static void unpin(void *memory) {
  cudaDeviceSynchronize();
  cudaFreeHost(memory);
}

static int enqueue_copy(void *to, const void *from, size_t size, cudaMemcpyKind kind, void *stream, char *text) {
  cudaError_t error = size ? cudaMemcpyAsync(to, from, size, kind, (cudaStream_t)stream) : cudaSuccess;
  return error == cudaSuccess ? 0 : refuse(error, "a copy could not be enqueued", text);
}

static int to_host(void *to, const void *from, size_t size, void *stream, char *text) {
  return enqueue_copy(to, from, size, cudaMemcpyDeviceToHost, stream, text);
}

static int to_device(void *to, const void *from, size_t size, void *stream, char *text) {
  return enqueue_copy(to, from, size, cudaMemcpyHostToDevice, stream, text);
}

static int move(void *to, const void *from, size_t size, void *stream, char *text) {
  return enqueue_copy(to, from, size, cudaMemcpyDefault, stream, text);
}

static int clear(void *memory, size_t size, void *stream, char *text) {
  cudaError_t error = size ? cudaMemsetAsync(memory, 0, size, (cudaStream_t)stream) : cudaSuccess;
  return error == cudaSuccess ? 0 : refuse(error, "memory could not be cleared", text);
}

static int use_device(int number, char *text) {
  cudaError_t error = cudaSetDevice(number);
  return error == cudaSuccess ? 0 : refuse(error, "the device cannot be used", text);
}

/* ---- Events ------------------------------------------------------------------------------------------------------ */

static int event_create(void **event, char *text) {
  cudaError_t error = cudaEventCreateWithFlags((cudaEvent_t *)event, cudaEventDisableTiming);
  return error == cudaSuccess ? 0 : refuse(error, "no event", text);
}

static void event_destroy(void *event) { cudaEventDestroy((cudaEvent_t)event); }

static int event_record(void *event, void *stream, char *text) {
  cudaError_t error = cudaEventRecord((cudaEvent_t)event, (cudaStream_t)stream);
  return error == cudaSuccess ? 0 : refuse(error, "an event could not be enqueued", text);
}

static int event_wait(void *event, char *text) {
  cudaError_t error = cudaEventSynchronize((cudaEvent_t)event);
  return error == cudaSuccess ? 0 : refuse(error, "the device failed", text);
}

static int event_done(void *event, int *done, char *text) {
  cudaError_t error = cudaEventQuery((cudaEvent_t)event);
  *done = error != cudaErrorNotReady;
  return error == cudaSuccess || error == cudaErrorNotReady ? 0 : refuse(error, "the device failed", text);
}

static int stream_create(void **stream, char *text) {
  int least, greatest;
  cudaError_t error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (error == cudaSuccess) {
    error = cudaStreamCreateWithPriority((cudaStream_t *)stream, cudaStreamNonBlocking, greatest);
  }
  return error == cudaSuccess ? 0 : refuse(error, "no stream", text);
}

static void stream_destroy(void *stream) { cudaStreamDestroy((cudaStream_t)stream); }

static int stream_wait(void *stream, void *event, char *text) {
  cudaError_t error = cudaStreamWaitEvent((cudaStream_t)stream, (cudaEvent_t)event, 0);
  return error == cudaSuccess ? 0 : refuse(error, "a stream cannot wait", text);
}

/* Why there is no device: what CUDA's runtime says of a missing driver and of one that is too old is the same. */
static int refuse_device(cudaError_t error, char *text) {
  int driver = 0, runtime = 0;
  if (error != cudaErrorInsufficientDriver || cudaDriverGetVersion(&driver) != cudaSuccess ||
      cudaRuntimeGetVersion(&runtime) != cudaSuccess) {
    return refuse(error, "no CUDA device", text);
  }
  if (driver == 0) {
    snprintf(text, TEXT, "no CUDA device: no NVIDIA driver (libcuda.so.1) is installed");
  } else {
    snprintf(text, TEXT, "the NVIDIA driver is for CUDA %d.%d, the module for %d.%d: install a later driver",
             driver / 1000, driver % 100 / 10, runtime / 1000, runtime % 100 / 10);
  }
  return (int)error;
}

static int describe(char *text) {
  int device = 0;
  cudaDeviceProp properties;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    error = cudaGetDeviceProperties(&properties, device);
  }
  if (error != cudaSuccess) {
    return refuse_device(error, text);
  }
  snprintf(text, TEXT, "%.160s, compute capability %d.%d, %.0f GiB", properties.name, properties.major,
           properties.minor, (double)properties.totalGlobalMem / (1 << 30));
  return 0;
}

static const pith_cuda_module module = {PITH_CUDA_ABI,
                                        describe,
                                        encode,
                                        decode,
                                        pith__sparse_space,
                                        sparse_encode,
                                        sparse_decode,
                                        pith__lowrank_space,
                                        lowrank,
                                        mean,
                                        own,
                                        update,
                                        repack,
                                        sample,
                                        magnitudes,
                                        uniform_errors,
                                        differences,
                                        keep_if,
                                        stamp,
                                        current_device,
                                        allocate,
                                        release,
                                        copy,
                                        pin,
                                        unpin,
                                        to_host,
                                        to_device,
                                        event_create,
                                        event_destroy,
                                        event_record,
                                        event_wait,
                                        event_done,
                                        stream_create,
                                        stream_destroy,
                                        stream_wait,
                                        use_device,
                                        move,
                                        clear,
                                        pith__ipc_identify,
                                        pith__ipc_share,
                                        pith__ipc_map,
                                        pith__ipc_unmap,
                                        ipc_wait,
                                        ipc_copy,
                                        ipc_combine,
                                        reduce,
                                        lossless_encode,
                                        lossless_decode};

extern "C" __attribute__((visibility("default"))) const pith_cuda_module *pith_cuda_module_entry(void) {
  return &module;
}

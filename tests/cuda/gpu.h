/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device for tests and benchmarks: memory, copies and clocks by way of the driver's library, which is opened at run
 * time, so that programs compile anywhere and say why they cannot run.
 */
#ifndef PITH_TESTS_CUDA_GPU_H
#define PITH_TESTS_CUDA_GPU_H

#include <dlfcn.h>
#include <pith/cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long gpu_address;
typedef struct gpu_event_tag *gpu_event;

typedef struct gpu_driver {
  int (*init)(unsigned);
  int (*device)(int *, int);
  int (*retain)(void **, int);
  int (*current)(void *);
  int (*alloc)(gpu_address *, size_t);
  int (*release)(gpu_address);
  int (*to_device)(gpu_address, const void *, size_t);
  int (*to_host)(void *, gpu_address, size_t);
  int (*copy)(gpu_address, gpu_address, size_t, void *);
  int (*fill)(gpu_address, unsigned char, size_t);
  int (*wait)(void);
  int (*event_create)(gpu_event *, unsigned);
  int (*event_record)(gpu_event, void *);
  int (*event_wait)(gpu_event);
  int (*event_between)(float *, gpu_event, gpu_event);
  int (*stream_create)(void **, unsigned);
  int (*capture_begin)(void *, int);
  int (*capture_end)(void *, void **);
  int (*graph_make)(void **, void *, unsigned long long);
  int (*graph_launch)(void *, void *);
} gpu_driver;

static gpu_driver gpu;

#define GPU_CHECK(call)                                                                         \
  do {                                                                                          \
    int gpu_error = (call);                                                                     \
    if (gpu_error != 0) {                                                                       \
      fprintf(stderr, "%s:%d: %s gives CUDA error %d\n", __FILE__, __LINE__, #call, gpu_error); \
      abort();                                                                                  \
    }                                                                                           \
  } while (0)

static inline int gpu_symbol(void *library, const char *name, void *function) {
  void *symbol = dlsym(library, name);
  memcpy(function, &symbol, sizeof symbol);
  return symbol != NULL;
}

/* NULL, or why there is no device that Pith can use. */
static inline const char *gpu_open(void) {
  static char text[256];
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  int device;
  if (!library) {
    return "no NVIDIA driver (libcuda.so.1)";
  }
  int found =
      gpu_symbol(library, "cuInit", &gpu.init) && gpu_symbol(library, "cuDeviceGet", &gpu.device) &&
      gpu_symbol(library, "cuDevicePrimaryCtxRetain", &gpu.retain) &&
      gpu_symbol(library, "cuCtxSetCurrent", &gpu.current) && gpu_symbol(library, "cuMemAlloc_v2", &gpu.alloc) &&
      gpu_symbol(library, "cuMemFree_v2", &gpu.release) && gpu_symbol(library, "cuMemcpyHtoD_v2", &gpu.to_device) &&
      gpu_symbol(library, "cuMemcpyDtoH_v2", &gpu.to_host) && gpu_symbol(library, "cuMemcpyDtoDAsync_v2", &gpu.copy) &&
      gpu_symbol(library, "cuMemsetD8_v2", &gpu.fill) && gpu_symbol(library, "cuCtxSynchronize", &gpu.wait) &&
      gpu_symbol(library, "cuEventCreate", &gpu.event_create) &&
      gpu_symbol(library, "cuEventRecord", &gpu.event_record) &&
      gpu_symbol(library, "cuEventSynchronize", &gpu.event_wait) &&
      gpu_symbol(library, "cuEventElapsedTime", &gpu.event_between) &&
      gpu_symbol(library, "cuStreamCreate", &gpu.stream_create) &&
      gpu_symbol(library, "cuStreamBeginCapture_v2", &gpu.capture_begin) &&
      gpu_symbol(library, "cuStreamEndCapture", &gpu.capture_end) &&
      gpu_symbol(library, "cuGraphInstantiateWithFlags", &gpu.graph_make) &&
      gpu_symbol(library, "cuGraphLaunch", &gpu.graph_launch);
  if (!found) {
    return "the NVIDIA driver is too old";
  }
  if (gpu.init(0) || gpu.device(&device, 0) || gpu.retain(&context, device) || gpu.current(context)) {
    return "the NVIDIA driver finds no device";
  }
  if (pith_cuda_probe(NULL) != PITH_OK) {
    snprintf(text, sizeof text, "%s", pith_error());
    return text;
  }
  return NULL;
}

static inline void *gpu_memory(size_t size) {
  gpu_address address = 0;
  GPU_CHECK(gpu.alloc(&address, size ? size : 1));
  return (void *)(uintptr_t)address;
}

static inline void gpu_free(void *p) { GPU_CHECK(gpu.release((gpu_address)(uintptr_t)p)); }
/* Copies of ordinary memory may still be under way when the call returns, and streams of our own do not wait for them.
 */
static inline void gpu_put(void *to, const void *from, size_t size) {
  GPU_CHECK(gpu.to_device((gpu_address)(uintptr_t)to, from, size));
  GPU_CHECK(gpu.wait());
}
static inline void gpu_get(void *to, const void *from, size_t size) {
  GPU_CHECK(gpu.to_host(to, (gpu_address)(uintptr_t)from, size));
}
static inline void gpu_fill(void *to, unsigned char byte, size_t size) {
  GPU_CHECK(gpu.fill((gpu_address)(uintptr_t)to, byte, size));
}

#endif

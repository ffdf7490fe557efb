/* SPDX-License-Identifier: Apache-2.0 */
/* As much of the driver's library as tests/cuda/gpu.h asks for, in main memory: libcuda.so.1 beside the emulated
 * module. */
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

enum { SUCCESS, OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801 };

static void *at(address a) { return (void *)(size_t)a; }

int cuInit(unsigned flags) { return (void)flags, SUCCESS; }
int cuDeviceGet(int *device, int number) { return *device = number, SUCCESS; }
int cuDevicePrimaryCtxRetain(void **context, int device) { return (void)device, *context = NULL, SUCCESS; }
int cuCtxSetCurrent(void *context) { return (void)context, SUCCESS; }
int cuCtxSynchronize(void) { return SUCCESS; }

int cuMemAlloc_v2(address *memory, size_t size) {
  void *found = NULL;
  if (posix_memalign(&found, 256, size)) {
    return OUT_OF_MEMORY;
  }
  *memory = (address)(size_t)found;
  return SUCCESS;
}

int cuMemFree_v2(address memory) { return free(at(memory)), SUCCESS; }
int cuMemcpyHtoD_v2(address to, const void *from, size_t size) { return memcpy(at(to), from, size), SUCCESS; }
int cuMemcpyDtoH_v2(void *to, address from, size_t size) { return memcpy(to, at(from), size), SUCCESS; }
int cuMemcpyDtoDAsync_v2(address to, address from, size_t size, void *stream) {
  return (void)stream, memmove(at(to), at(from), size), SUCCESS;
}
int cuMemsetD8_v2(address to, unsigned char byte, size_t size) { return memset(at(to), byte, size), SUCCESS; }

int cuEventCreate(void **event, unsigned flags) { return (void)flags, *event = NULL, SUCCESS; }
int cuEventRecord(void *event, void *stream) { return (void)event, (void)stream, SUCCESS; }
int cuEventSynchronize(void *event) { return (void)event, SUCCESS; }
int cuEventElapsedTime(float *milliseconds, void *from, void *to) {
  return (void)from, (void)to, *milliseconds = 0, SUCCESS;
}
int cuStreamCreate(void **stream, unsigned flags) { return (void)flags, *stream = NULL, SUCCESS; }
int cuStreamBeginCapture_v2(void *stream, int mode) { return (void)stream, (void)mode, NOT_SUPPORTED; }
int cuStreamEndCapture(void *stream, void **graph) { return (void)stream, (void)graph, NOT_SUPPORTED; }
int cuGraphInstantiateWithFlags(void **program, void *graph, unsigned long long flags) {
  return (void)program, (void)graph, (void)flags, NOT_SUPPORTED;
}
int cuGraphLaunch(void *program, void *stream) { return (void)program, (void)stream, NOT_SUPPORTED; }

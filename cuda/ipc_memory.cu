/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes share: physical memory of the driver (cuMemCreate), whose only handle is a descriptor. A
 * process that was not handed the descriptor cannot map it, and the memory goes when the last process that maps it
 * does. The driver's functions are found at run time, as the module does not link to it.
 */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "ipc_host.h"

#define TEXT 256

typedef struct Driver {
  decltype(&cuMemCreate) create;
  decltype(&cuMemExportToShareableHandle) export_handle;
  decltype(&cuMemImportFromShareableHandle) import_handle;
  decltype(&cuMemAddressReserve) reserve;
  decltype(&cuMemAddressFree) free_address;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemRelease) release;
  decltype(&cuMemGetAllocationGranularity) granularity;
  decltype(&cuDeviceGet) device;
  decltype(&cuDeviceGetAttribute) attribute;
  decltype(&cuDeviceGetUuid) uuid;
  decltype(&cuGetErrorString) error_text;
} Driver;

template <class Function>
static bool find(const char *name, Function *function) {
  void *found = nullptr;
  cudaDriverEntryPointQueryResult result;
#if CUDART_VERSION >= 13000
  cudaError_t error = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
#else
  cudaError_t error = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  *function = (Function)found;
  return error == cudaSuccess && found;
}

static bool open_driver(Driver *d, char *text) {
  bool found = find("cuMemCreate", &d->create) && find("cuMemExportToShareableHandle", &d->export_handle) &&
               find("cuMemImportFromShareableHandle", &d->import_handle) && find("cuMemAddressReserve", &d->reserve) &&
               find("cuMemAddressFree", &d->free_address) && find("cuMemMap", &d->map) &&
               find("cuMemUnmap", &d->unmap) && find("cuMemSetAccess", &d->set_access) &&
               find("cuMemRelease", &d->release) && find("cuMemGetAllocationGranularity", &d->granularity) &&
               find("cuDeviceGet", &d->device) && find("cuDeviceGetAttribute", &d->attribute) &&
               find("cuDeviceGetUuid", &d->uuid) && find("cuGetErrorString", &d->error_text);
  if (!found) {
    cudaGetLastError();
    snprintf(text, TEXT, "this driver has no memory that processes can share");
  }
  return found;
}

static int refuse(const Driver &d, CUresult error, const char *what, char *text) {
  const char *why = nullptr;
  d.error_text(error, &why);
  snprintf(text, TEXT, "%s: %s", what, why ? why : "an unknown error");
  return error ? (int)error : 1;
}

static CUmemAllocationProp properties(int device) {
  CUmemAllocationProp p = {};
  p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p.location.id = device;
  return p;
}

/* Sizes are multiples of this. */
static CUresult round_up(const Driver &d, int device, size_t *size) {
  CUmemAllocationProp p = properties(device);
  size_t unit = 1;
  CUresult error = d.granularity(&unit, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
  *size = (*size + unit - 1) / unit * unit;
  return error;
}

/* Maps it for the device to read and write. The handle is given up: the mapping keeps the memory. */
static CUresult map_handle(const Driver &d, CUmemGenericAllocationHandle handle, size_t size, int device,
                           void **memory) {
  CUdeviceptr at = 0;
  CUmemAccessDesc access = {};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CUresult error = d.reserve(&at, size, 0, 0, 0);
  if (error == CUDA_SUCCESS) {
    error = d.map(at, size, 0, handle, 0);
    if (error == CUDA_SUCCESS && (error = d.set_access(at, size, &access, 1)) != CUDA_SUCCESS) {
      d.unmap(at, size);
    }
    if (error != CUDA_SUCCESS) {
      d.free_address(at, size);
    }
  }
  d.release(handle);
  *memory = error == CUDA_SUCCESS ? (void *)at : nullptr;
  return error;
}

static int current_device(const Driver &d, int *device, char *text) {
  int ordinal = 0, shares = 0;
  CUdevice handle = 0;
  cudaError_t error = cudaFree(nullptr); /* makes the device's context, which the driver's functions need */
  error = error == cudaSuccess ? cudaGetDevice(&ordinal) : error;
  if (error != cudaSuccess) {
    snprintf(text, TEXT, "no CUDA device: %s", cudaGetErrorString(error));
    return (int)error;
  }
  *device = ordinal;
  if (d.device(&handle, ordinal) != CUDA_SUCCESS ||
      d.attribute(&shares, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, handle) != CUDA_SUCCESS ||
      !shares) {
    snprintf(text, TEXT, "the device has no memory that processes can share by descriptors");
    return 1;
  }
  return 0;
}

/* Drivers that do not know of the service's attribute have none that matters. */
int pith__ipc_identify(pith_ipc_device *found, char *text) {
  Driver d;
  int device = 0, mps = 0;
  CUdevice handle = 0;
  CUuuid uuid;
  if (!open_driver(&d, text) || current_device(d, &device, text)) {
    return 1;
  }
  CUresult error = d.device(&handle, device);
  error = error == CUDA_SUCCESS ? d.uuid(&uuid, handle) : error;
  if (error != CUDA_SUCCESS) {
    return refuse(d, error, "the device cannot be told from others", text);
  }
#if CUDA_VERSION >= 12050
  mps = d.attribute(&mps, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, handle) == CUDA_SUCCESS ? mps : 0;
#endif
  *found = pith_ipc_device{};
  memcpy(found->uuid, uuid.bytes, sizeof found->uuid);
  found->has_mps = mps != 0;
  int count = 0;
  for (int other = 0; cudaGetDeviceCount(&count) == cudaSuccess && other < count; other++) {
    int reached = 0;
    found->others += other != device;
    found->reached += other != device && cudaDeviceCanAccessPeer(&reached, device, other) == cudaSuccess && reached;
  }
  return 0;
}

int pith__ipc_share(size_t size, void **memory, int *descriptor, char *text) {
  Driver d;
  int device = 0;
  if (!open_driver(&d, text) || current_device(d, &device, text)) {
    return 1;
  }
  CUmemAllocationProp p = properties(device);
  CUmemGenericAllocationHandle handle;
  CUresult error = round_up(d, device, &size);
  error = error == CUDA_SUCCESS ? d.create(&handle, size, &p, 0) : error;
  if (error != CUDA_SUCCESS) {
    return refuse(d, error, "no device memory to share", text);
  }
  error = d.export_handle(descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  if (error != CUDA_SUCCESS) {
    d.release(handle);
    return refuse(d, error, "device memory cannot be shared", text);
  }
  error = map_handle(d, handle, size, device, memory);
  return error == CUDA_SUCCESS ? 0 : refuse(d, error, "shared device memory cannot be mapped", text);
}

int pith__ipc_map(int descriptor, size_t size, void **memory, char *text) {
  Driver d;
  int device = 0;
  if (!open_driver(&d, text) || current_device(d, &device, text)) {
    return 1;
  }
  CUmemGenericAllocationHandle handle;
  CUresult error = round_up(d, device, &size);
  if (error == CUDA_SUCCESS) {
    error = d.import_handle(&handle, (void *)(uintptr_t)descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  }
  if (error != CUDA_SUCCESS) {
    return refuse(d, error, "its memory cannot be opened", text);
  }
  error = map_handle(d, handle, size, device, memory);
  return error == CUDA_SUCCESS ? 0 : refuse(d, error, "its memory cannot be reached from this device", text);
}

void pith__ipc_unmap(void *memory, size_t size) {
  Driver d;
  int device = 0;
  char text[TEXT];
  if (!memory || !open_driver(&d, text) || current_device(d, &device, text) ||
      round_up(d, device, &size) != CUDA_SUCCESS) {
    return;
  }
  d.unmap((CUdeviceptr)memory, size);
  d.free_address((CUdeviceptr)memory, size);
}

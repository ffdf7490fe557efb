/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for messages between the GPUs of one host. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

/* Functions that return an error as text have room for 256 bytes of it. */
int pith__ipc_identify(pith_ipc_device *device, char *text);
int pith__ipc_share(size_t size, void **memory, int *descriptor, char *text);
int pith__ipc_map(int descriptor, size_t size, void **memory, char *text);
void pith__ipc_unmap(void *memory, size_t size);

cudaError_t pith__ipc_wait(const pith_ipc_wait *task, cudaStream_t stream);
cudaError_t pith__ipc_copy(const pith_ipc_copy *task, cudaStream_t stream);
cudaError_t pith__ipc_combine(const pith_ipc_combine *task, cudaStream_t stream);

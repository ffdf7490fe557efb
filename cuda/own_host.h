/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for the owner's own values. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__own_run(const pith_gpu_own *tasks, size_t count, cudaStream_t stream);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for the owner's step: decode, add up, encode. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__reduce_run(const pith_gpu_reduce *tasks, size_t count, cudaStream_t stream);

/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for means. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

cudaError_t pith__mean_run(const pith_gpu_mean *tasks, size_t count, cudaStream_t stream);

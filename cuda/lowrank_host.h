/* SPDX-License-Identifier: Apache-2.0 */
/* What the module's table calls for low rank. */
#pragma once

#include <cuda_runtime.h>

#include "kernel/formats.h"

size_t pith__lowrank_space(const pith_gpu_lowrank *task);
cudaError_t pith__lowrank_run(const pith_gpu_lowrank *tasks, size_t count, int what, cudaStream_t stream);
